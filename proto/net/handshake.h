/* proto/net/handshake.h - how a worker on another host and the daemon come to know each other. Pure: bytes in, bytes
 * out.
 *
 * The worker's side begins ("caller"); the daemon's answers ("answerer"). All messages have fixed lengths:
 *   hello    caller to answerer, then back, 64 bytes, little-endian:
 *            magic u32 | version u8 | role u8 | channel u8 | flags u8 | session u64 | zero (16) | X25519 public key
 *            (32)
 *   proof    the same order, 32 bytes: shows that its sender has the key and saw the same hellos
 * With shared = X25519(own secret, other's public), || for concatenation, and BLAKE2b throughout:
 *   secret          = BLAKE2b-512(key: the pre-shared key; shared || caller's hello || answerer's hello)
 *   subkey(purpose) = BLAKE2b-256(key: secret; purpose || direction u8 || channel u8)
 *   proof           = BLAKE2b-256(key: subkey("eps proof"); caller's hello || answerer's hello)
 *   refusal         = BLAKE2b-256(key: subkey("eps full"); the same bytes), in place of the answerer's proof: it has no
 *                     room for the session; zeros: the caller has no key, or another one
 *   frame key       = subkey("eps frame")                                      proto/net/cipher.h
 *   session key     = subkey("eps child"), direction 0: the pre-shared key of the session's second connection
 *   session         = the first 8 bytes of subkey("eps name"), direction 0: its number in that connection's hellos
 * Direction is 0 from caller to answerer, 1 back. The secret halves of X25519 live for one handshake, so the key alone
 * does not open recorded traffic. The answerer sends nothing that needs the key before the caller's proof.
 *
 * Whoever has no key, another key, or changes, repeats, reorders, reflects or cuts off bytes gets no further than a
 * proof. The flags and version are under it, too, so that nobody can talk both into a weaker cipher. */
#ifndef PROTO_NET_HANDSHAKE_H
#define PROTO_NET_HANDSHAKE_H

#include "proto/net/key.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    HANDSHAKE_MAGIC = 0x7E951,
    HANDSHAKE_VERSION = 1,
    HANDSHAKE_HELLO_BYTES = 64,
    HANDSHAKE_PROOF_BYTES = 32,
};

enum handshake_role { HANDSHAKE_DAEMON = 1, HANDSHAKE_WORKER };
enum handshake_channel { HANDSHAKE_CONTROL = 1, HANDSHAKE_BULK };
enum handshake_flags {
    HANDSHAKE_AES = 1,   /* the processor has instructions for AES-GCM */
    HANDSHAKE_PLAIN = 2, /* --plain-bulk: the second connection is authenticated, but not encrypted */
};

struct handshake_setup {
    bool calls;                     /* the caller's side */
    enum handshake_channel channel; /* the caller's; the answerer takes either */
    unsigned flags;                 /* enum handshake_flags */
    uint64_t session;               /* HANDSHAKE_BULK: the session that the connection belongs to */
    const uint8_t *key;             /* the caller's: KEY_BYTES, borrowed until the answerer's hello was taken */
    uint8_t secret[32];             /* X25519's, fresh random bytes */
    /* The answerer's: the key for this channel and session, KEY_BYTES; NULL: there is none. */
    const uint8_t *(*find_key)(void *user, enum handshake_channel channel, uint64_t session);
    /* The answerer's: false if it has no room for another session. Asked once the caller of HANDSHAKE_CONTROL has
     * proved its key. NULL: there always is. */
    bool (*has_room)(void *user);
    void *user;
};

enum handshake_state {
    HANDSHAKE_HELLO, /* ends with the other's hello */
    HANDSHAKE_PROOF, /* ends with the other's proof */
    HANDSHAKE_DONE,  /* both are who they say; the results below are set */
    HANDSHAKE_FAILED
};

struct handshake {
    enum handshake_state state;
    struct handshake_setup setup;
    uint8_t hellos[2][HANDSHAKE_HELLO_BYTES]; /* the caller's, the answerer's */
    uint8_t root[64];                         /* `secret` above */
    /* Once it is done: */
    enum handshake_channel channel;
    uint64_t session;
    unsigned flags;                              /* flags that both sides have set */
    uint8_t send[KEY_BYTES], receive[KEY_BYTES]; /* frame keys */
    uint8_t child[KEY_BYTES];                    /* session key */
    uint64_t name;                               /* number of the session in the hellos of its second connection */
};

/* Begins. The caller's first bytes (HANDSHAKE_HELLO_BYTES) go to out and *n_out; the answerer has none yet. */
void handshake_begin(struct handshake *h, const struct handshake_setup *setup, uint8_t *out, size_t *n_out);
/* Number of bytes that the next handshake_take needs; 0 if it is done or has failed. */
size_t handshake_wants(const struct handshake *h);
/* Takes handshake_wants bytes. *n_out bytes (at most HANDSHAKE_HELLO_BYTES) in out must be sent, also if it is now
 * done. -EACCES, -EPROTO, -EPROTONOSUPPORT, -EBUSY (both have the key, but the answerer has no room) and *why, a
 * constant: close the connection. With -EACCES for a proof, -EBUSY and -EPROTONOSUPPORT the answerer first sends its
 * *n_out bytes, which say why; otherwise *n_out is 0. */
int handshake_take(struct handshake *h, const uint8_t *bytes, uint8_t *out, size_t *n_out, const char **why);
/* Forgets all secrets. */
void handshake_wipe(struct handshake *h);

#endif
