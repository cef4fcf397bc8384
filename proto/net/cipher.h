/* proto/net/cipher.h - frames on a connection after its handshake.
 *
 *   frame: bytes of payload u32 | payload, encrypted | tag (16)
 * The nonce is the frame's number on its connection and in its direction, which both sides count; it never travels. So
 * a frame that is repeated, left out, moved or reflected does not open, nor does one of another length. Frames are
 * independent of each other: threads may seal and open them in any order.
 *
 * AES-256-GCM where both processors have instructions for it (2.4 GB/s on one core), else ChaCha20-Poly1305 (1.6 GB/s).
 * Plain frames have the tag alone: Poly1305 under a key of its own for each frame (4.9 GB/s). */
#ifndef PROTO_NET_CIPHER_H
#define PROTO_NET_CIPHER_H

#include "proto/net/key.h"

#include <sodium.h>
#include <stdbool.h>
#include <stddef.h>

enum { CIPHER_HEADER_BYTES = 4, CIPHER_TAG_BYTES = 16 };

enum cipher_kind { CIPHER_CHACHA, CIPHER_AES, CIPHER_PLAIN };

/* One direction of one connection. */
struct cipher {
    _Alignas(16) crypto_aead_aes256gcm_state aes;
    uint8_t key[KEY_BYTES];
    enum cipher_kind kind;
};

/* True if this processor has AES-GCM. */
bool cipher_has_aes(void);
void cipher_init(struct cipher *c, enum cipher_kind kind, const uint8_t key[KEY_BYTES]);
/* "AES-256-GCM". */
const char *cipher_name(enum cipher_kind kind);

/* Writes header, payload (n) and tag to `to` (n + CIPHER_HEADER_BYTES + CIPHER_TAG_BYTES). Any thread. */
void cipher_seal(const struct cipher *c, uint8_t *to, const uint8_t *from, size_t n, uint64_t number);
/* Opens the payload (n) and tag at from, whose header said n, into `to`, which may be from. -EBADMSG, and `to` holds
 * nothing of it. Any thread. */
int cipher_open(const struct cipher *c, uint8_t *to, const uint8_t *from, size_t n, uint64_t number);

#endif
