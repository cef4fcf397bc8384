/* A failure wipes the whole state first, so nothing that was derived outlives it, and no call after it can succeed.
 *
 * Flags may be changed on their way until a proof covers both hellos. So the answerer judges --plain-bulk after the
 * caller's proof; the caller judges at once, as it ends its own attempt alone. A connection that is merely closed was
 * cut by a full port (proto/net/dial.c tries again), so a caller with another key is told so, in zeros. */
#include "proto/net/handshake.h"

#include "proto/wire/wire.h"

#include <assert.h>
#include <errno.h>
#include <sodium.h>
#include <string.h>

/* Places in a hello. */
enum { AT_VERSION = 4, AT_ROLE, AT_CHANNEL, AT_FLAGS, AT_SESSION, AT_ZERO = 16, AT_PUBLIC = 32 };

static const uint8_t *public_of(const uint8_t *hello)
{
    return hello + AT_PUBLIC;
}

static void write_hello(const struct handshake *h, uint8_t *out)
{
    const struct handshake_setup *s = &h->setup;

    memset(out, 0, HANDSHAKE_HELLO_BYTES);
    wire_put(out, HANDSHAKE_MAGIC, 4);
    out[AT_VERSION] = HANDSHAKE_VERSION;
    out[AT_ROLE] = s->calls ? HANDSHAKE_WORKER : HANDSHAKE_DAEMON;
    out[AT_CHANNEL] = (uint8_t)h->channel;
    out[AT_FLAGS] = (uint8_t)s->flags;
    wire_put(out + AT_SESSION, h->session, 8);
    crypto_scalarmult_base(out + AT_PUBLIC, s->secret);
}

/* A hello that this side can answer, or that answers its own. */
static int check_hello(const struct handshake *h, const uint8_t *hello, const char **why)
{
    const bool calls = h->setup.calls;
    static const uint8_t zeros[AT_PUBLIC - AT_ZERO];

    *why = NULL;
    if (wire_get(hello, 4) != HANDSHAKE_MAGIC)
        *why = "sent what is no greeting of eps";
    else if (hello[AT_VERSION] != HANDSHAKE_VERSION) {
        *why = "speaks another version of the handshake: use programs of one build";
        return -EPROTONOSUPPORT;
    } else if (hello[AT_ROLE] != (calls ? HANDSHAKE_DAEMON : HANDSHAKE_WORKER))
        *why = calls ? "is no daemon" : "is no worker";
    else if (hello[AT_CHANNEL] != HANDSHAKE_CONTROL && hello[AT_CHANNEL] != HANDSHAKE_BULK)
        *why = "asked for a channel that there is none of";
    else if (hello[AT_FLAGS] & ~(HANDSHAKE_AES | HANDSHAKE_PLAIN) || memcmp(hello + AT_ZERO, zeros, sizeof zeros) != 0)
        *why = "sent a greeting with unknown bits";
    else if (calls && (hello[AT_CHANNEL] != (uint8_t)h->channel || wire_get(hello + AT_SESSION, 8) != h->session))
        *why = "answered another greeting";
    return *why ? -EPROTO : 0;
}

static void handshake_derive(const struct handshake *h, uint8_t out[32], const char *purpose, unsigned direction)
{
    crypto_generichash_state state;
    const uint8_t tail[2] = {(uint8_t)direction, (uint8_t)h->channel};

    crypto_generichash_init(&state, h->root, sizeof h->root, 32);
    crypto_generichash_update(&state, (const uint8_t *)purpose, strlen(purpose));
    crypto_generichash_update(&state, tail, sizeof tail);
    crypto_generichash_final(&state, out, 32);
    sodium_memzero(&state, sizeof state);
}

/* The proof, or for "eps full" the refusal, of the side that sends in this direction. */
static void prove(const struct handshake *h, uint8_t out[HANDSHAKE_PROOF_BYTES], const char *purpose,
                  unsigned direction)
{
    uint8_t key[32];

    handshake_derive(h, key, purpose, direction);
    crypto_generichash(out, HANDSHAKE_PROOF_BYTES, h->hellos[0], sizeof h->hellos, key, sizeof key);
    sodium_memzero(key, sizeof key);
}

/* Both hellos are here. False: the other's public key is one of the few that give no secret. */
static bool agree(struct handshake *h, const uint8_t *key)
{
    crypto_generichash_state state;
    uint8_t shared[32];

    if (crypto_scalarmult(shared, h->setup.secret, public_of(h->hellos[h->setup.calls])) != 0)
        return false;
    crypto_generichash_init(&state, key, KEY_BYTES, sizeof h->root);
    crypto_generichash_update(&state, shared, sizeof shared);
    crypto_generichash_update(&state, h->hellos[0], sizeof h->hellos);
    crypto_generichash_final(&state, h->root, sizeof h->root);
    sodium_memzero(shared, sizeof shared);
    sodium_memzero(&state, sizeof state); /* it holds the key */
    return true;
}

static int handshake_fail(struct handshake *h, int code, const char *reason, const char **why)
{
    handshake_wipe(h);
    h->state = HANDSHAKE_FAILED;
    *why = reason;
    return code;
}

static int take_hello(struct handshake *h, const uint8_t *bytes, uint8_t *out, size_t *n_out, const char **why)
{
    const bool calls = h->setup.calls;
    const uint8_t *key = h->setup.key;
    int rc = check_hello(h, bytes, why);

    if (rc == -EPROTONOSUPPORT && !calls) { /* the own version tells the caller why */
        write_hello(h, out);
        *n_out = HANDSHAKE_HELLO_BYTES;
    }
    if (rc)
        return handshake_fail(h, rc, *why, why);
    memcpy(h->hellos[calls], bytes, HANDSHAKE_HELLO_BYTES);
    if (!calls) {
        h->channel = (enum handshake_channel)bytes[AT_CHANNEL];
        h->session = wire_get(bytes + AT_SESSION, 8);
        key = h->setup.find_key(h->setup.user, h->channel, h->session);
        if (!key)
            return handshake_fail(h, -EACCES, "asked for a session that there is none of", why);
        write_hello(h, h->hellos[1]);
    }
    const unsigned both = h->hellos[0][AT_FLAGS] & h->hellos[1][AT_FLAGS];
    const unsigned either = h->hellos[0][AT_FLAGS] | h->hellos[1][AT_FLAGS];
    if (calls && (both ^ either) & HANDSHAKE_PLAIN)
        return handshake_fail(
            h, -EPROTO,
            h->setup.flags & HANDSHAKE_PLAIN
                ? "encrypts all bytes, but this worker has --plain-bulk: give it to both, or to neither"
                : "has --plain-bulk, but this worker has not: give it to both, or to neither",
            why);
    h->flags = both;
    if (!agree(h, key))
        return handshake_fail(h, -EPROTO, "sent a public key that gives no secret", why);
    if (calls)
        prove(h, out, "eps proof", 0);
    else
        memcpy(out, h->hellos[1], HANDSHAKE_HELLO_BYTES);
    *n_out = calls ? HANDSHAKE_PROOF_BYTES : HANDSHAKE_HELLO_BYTES;
    h->state = HANDSHAKE_PROOF;
    return 0;
}

/* The other's proof; or, if the caller's side finds the answerer's refusal in its place, -EBUSY. */
static int check_proof(const struct handshake *h, const uint8_t *bytes, const char **why)
{
    const bool calls = h->setup.calls;
    uint8_t expected[HANDSHAKE_PROOF_BYTES];

    prove(h, expected, "eps proof", calls);
    if (sodium_memcmp(expected, bytes, sizeof expected) == 0)
        return 0;
    if (calls) {
        prove(h, expected, "eps full", 1);
        if (sodium_memcmp(expected, bytes, sizeof expected) == 0) {
            *why = "has as many workers by tcp as it takes; eps drain there lets one go";
            return -EBUSY;
        }
    }
    *why = calls ? "turned this worker away: its key is another one" : "has no key, or another one";
    return -EACCES;
}

static int take_proof(struct handshake *h, const uint8_t *bytes, uint8_t *out, size_t *n_out, const char **why)
{
    const bool calls = h->setup.calls;
    uint8_t name[32];
    const int rc = check_proof(h, bytes, why);

    if (rc && !calls) { /* no proof is all zeros; a connection that just ends was cut */
        memset(out, 0, HANDSHAKE_PROOF_BYTES);
        *n_out = HANDSHAKE_PROOF_BYTES;
    }
    if (rc)
        return handshake_fail(h, rc, *why, why);
    if ((h->hellos[0][AT_FLAGS] ^ h->hellos[1][AT_FLAGS]) & HANDSHAKE_PLAIN)
        return handshake_fail(h, -EPROTO, "has --plain-bulk and the daemon has not, or the other way around", why);
    if (!calls) {
        const bool refuses = h->channel == HANDSHAKE_CONTROL && h->setup.has_room && !h->setup.has_room(h->setup.user);
        prove(h, out, refuses ? "eps full" : "eps proof", 1);
        *n_out = HANDSHAKE_PROOF_BYTES;
        if (refuses)
            return handshake_fail(h, -EBUSY, "came when there were as many workers by tcp as the daemon takes", why);
    }
    handshake_derive(h, h->send, "eps frame", !calls);
    handshake_derive(h, h->receive, "eps frame", calls);
    handshake_derive(h, h->child, "eps child", 0);
    handshake_derive(h, name, "eps name", 0);
    h->name = wire_get(name, 8);
    sodium_memzero(h->root, sizeof h->root);
    sodium_memzero(&h->setup.secret, sizeof h->setup.secret);
    h->state = HANDSHAKE_DONE;
    return 0;
}

void handshake_begin(struct handshake *h, const struct handshake_setup *setup, uint8_t *out, size_t *n_out)
{
    *h = (struct handshake){.state = HANDSHAKE_HELLO, .setup = *setup};
    *n_out = 0;
    if (!setup->calls)
        return;
    h->channel = setup->channel;
    h->session = setup->session;
    write_hello(h, h->hellos[0]);
    memcpy(out, h->hellos[0], HANDSHAKE_HELLO_BYTES);
    *n_out = HANDSHAKE_HELLO_BYTES;
}

size_t handshake_wants(const struct handshake *h)
{
    return h->state == HANDSHAKE_HELLO   ? HANDSHAKE_HELLO_BYTES
           : h->state == HANDSHAKE_PROOF ? HANDSHAKE_PROOF_BYTES
                                         : 0;
}

int handshake_take(struct handshake *h, const uint8_t *bytes, uint8_t *out, size_t *n_out, const char **why)
{
    assert(handshake_wants(h) > 0);
    *n_out = 0;
    return h->state == HANDSHAKE_HELLO ? take_hello(h, bytes, out, n_out, why) : take_proof(h, bytes, out, n_out, why);
}

void handshake_wipe(struct handshake *h)
{
    sodium_memzero(h, sizeof *h);
    h->state = HANDSHAKE_FAILED;
}
