/* Both ciphers are broken by a nonce that serves twice under one key. A key is of one connection and one direction, and
 * its frames are numbered from 0 up, so a frame that is sealed again needs a number of its own. What is authenticated
 * as the header is the length that the opener expects, not the one that came: a caller that forgot to compare them
 * would fail here.
 *
 * Plain frames are copied before they are tagged, and opened frames are copied after: the tag is always of bytes that
 * nobody else can change meanwhile. */
#include "proto/net/cipher.h"

#include "proto/wire/wire.h"

#include <errno.h>
#include <string.h>

enum { NONCE_BYTES = 12 }; /* of all of them: a zero u32, the frame's number */

bool cipher_has_aes(void)
{
    return sodium_init() >= 0 && crypto_aead_aes256gcm_is_available();
}

void cipher_init(struct cipher *c, enum cipher_kind kind, const uint8_t key[KEY_BYTES])
{
    c->kind = kind;
    memcpy(c->key, key, KEY_BYTES);
    if (kind == CIPHER_AES)
        crypto_aead_aes256gcm_beforenm(&c->aes, key);
}

const char *cipher_name(enum cipher_kind kind)
{
    switch (kind) {
    case CIPHER_CHACHA:
        return "ChaCha20-Poly1305";
    case CIPHER_AES:
        return "AES-256-GCM";
    case CIPHER_PLAIN:
        return "Poly1305, not encrypted";
    }
    return "?";
}

static void write_nonce(uint8_t nonce[NONCE_BYTES], uint64_t number)
{
    memset(nonce, 0, NONCE_BYTES);
    wire_put(nonce + 4, number, 8);
}

/* Poly1305 of header and payload, under a key that serves this frame alone: the cipher's first bytes at its nonce. */
static void tag_plain(const struct cipher *c, uint8_t tag[CIPHER_TAG_BYTES], const uint8_t *header,
                      const uint8_t *payload, size_t n, const uint8_t *nonce)
{
    crypto_onetimeauth_state state;
    uint8_t key[crypto_onetimeauth_KEYBYTES];

    crypto_stream_chacha20_ietf(key, sizeof key, nonce, c->key);
    crypto_onetimeauth_init(&state, key);
    crypto_onetimeauth_update(&state, header, CIPHER_HEADER_BYTES);
    crypto_onetimeauth_update(&state, payload, n);
    crypto_onetimeauth_final(&state, tag);
    sodium_memzero(key, sizeof key);
}

void cipher_seal(const struct cipher *c, uint8_t *to, const uint8_t *from, size_t n, uint64_t number)
{
    uint8_t nonce[NONCE_BYTES], *payload = to + CIPHER_HEADER_BYTES, *tag = payload + n;

    write_nonce(nonce, number);
    wire_put(to, n, CIPHER_HEADER_BYTES);
    switch (c->kind) {
    case CIPHER_AES:
        crypto_aead_aes256gcm_encrypt_detached_afternm(payload, tag, NULL, from, n, to, CIPHER_HEADER_BYTES, NULL,
                                                       nonce, &c->aes);
        break;
    case CIPHER_CHACHA:
        crypto_aead_chacha20poly1305_ietf_encrypt_detached(payload, tag, NULL, from, n, to, CIPHER_HEADER_BYTES, NULL,
                                                           nonce, c->key);
        break;
    case CIPHER_PLAIN:
        memcpy(payload, from, n);
        tag_plain(c, tag, to, payload, n, nonce);
        break;
    }
}

static int open_plain(const struct cipher *c, uint8_t *to, const uint8_t *header, const uint8_t *from, size_t n,
                      const uint8_t *nonce)
{
    uint8_t tag[CIPHER_TAG_BYTES];

    tag_plain(c, tag, header, from, n, nonce);
    if (sodium_memcmp(tag, from + n, sizeof tag) != 0)
        return -1;
    memmove(to, from, n);
    return 0;
}

int cipher_open(const struct cipher *c, uint8_t *to, const uint8_t *from, size_t n, uint64_t number)
{
    uint8_t nonce[NONCE_BYTES], header[CIPHER_HEADER_BYTES];
    int rc = -1;

    write_nonce(nonce, number);
    wire_put(header, n, CIPHER_HEADER_BYTES);
    switch (c->kind) {
    case CIPHER_AES:
        rc = crypto_aead_aes256gcm_decrypt_detached_afternm(to, NULL, from, n, from + n, header, sizeof header, nonce,
                                                            &c->aes);
        break;
    case CIPHER_CHACHA:
        rc = crypto_aead_chacha20poly1305_ietf_decrypt_detached(to, NULL, from, n, from + n, header, sizeof header,
                                                                nonce, c->key);
        break;
    case CIPHER_PLAIN:
        rc = open_plain(c, to, header, from, n, nonce);
        break;
    }
    return rc == 0 ? 0 : -EBADMSG;
}
