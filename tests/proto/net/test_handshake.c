/* The handshake and the frames after it, against tests/oracle/handshake.py, which is plain Python; and against
 * everybody without the key, or in between. */
#include "proto/net/cipher.h"
#include "proto/net/handshake.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX = 256 };

static json_t *fixture(void)
{
    static json_t *all;
    json_error_t why;

    ck_assert_int_ge(sodium_init(), 0);
    if (!all)
        all = json_load_file(TESTS_DIR "/fixtures/net/handshake.json", 0, &why);
    ck_assert_ptr_nonnull(all);
    return all;
}

static size_t bytes_of(uint8_t *out, const json_t *value)
{
    size_t n = 0;

    ck_assert_int_eq(sodium_hex2bin(out, MAX, json_string_value(value), json_string_length(value), NULL, &n, NULL), 0);
    return n;
}

static void expect_bytes(const uint8_t *bytes, size_t n, const json_t *value)
{
    uint8_t expected[MAX];

    ck_assert_uint_eq(bytes_of(expected, value), n);
    ck_assert_mem_eq(bytes, expected, n);
}

struct pair {
    struct handshake caller, answerer;
    uint8_t key[KEY_BYTES]; /* the answerer's */
    uint8_t callers_key[KEY_BYTES];
    bool knows; /* the session */
    bool is_full;
};

static const uint8_t *find_key(void *user, enum handshake_channel channel, uint64_t session)
{
    const struct pair *pair = user;

    (void)channel, (void)session;
    return pair->knows ? pair->key : NULL;
}

static bool has_room(void *user)
{
    return !((const struct pair *)user)->is_full;
}

/* Both sides as in a fixture; the caller's hello is in `hello`. */
static void begin(struct pair *pair, const json_t *f, unsigned caller_flags, unsigned answerer_flags, uint8_t *hello)
{
    struct handshake_setup caller = {.calls = true,
                                     .channel =
                                         (enum handshake_channel)json_integer_value(json_object_get(f, "channel")),
                                     .session = (uint64_t)json_integer_value(json_object_get(f, "session")),
                                     .flags = caller_flags},
                           answerer = {.flags = answerer_flags,
                                       .find_key = find_key,
                                       .has_room = has_room,
                                       .user = pair};
    uint8_t none[HANDSHAKE_HELLO_BYTES];
    size_t n;

    pair->knows = true;
    pair->is_full = false;
    bytes_of(pair->key, json_object_get(f, "key"));
    memcpy(pair->callers_key, pair->key, KEY_BYTES);
    caller.key = pair->callers_key;
    bytes_of(caller.secret, json_object_get(f, "caller"));
    bytes_of(answerer.secret, json_object_get(f, "answerer"));
    handshake_begin(&pair->caller, &caller, hello, &n);
    ck_assert_uint_eq(n, HANDSHAKE_HELLO_BYTES);
    handshake_begin(&pair->answerer, &answerer, none, &n);
    ck_assert_uint_eq(n, 0);
}

static json_t *one(size_t i)
{
    return json_array_get(json_object_get(fixture(), "handshakes"), i);
}

/* The four messages, in order: message i goes to the answerer if i is even. */
struct wire {
    uint8_t bytes[4][HANDSHAKE_HELLO_BYTES];
    size_t n[4];
};

static int turn(struct pair *pair, struct wire *wire, int i)
{
    struct handshake *to = i % 2 ? &pair->caller : &pair->answerer;
    uint8_t none[HANDSHAKE_HELLO_BYTES];
    const char *why = NULL;
    size_t n;

    ck_assert_uint_eq(handshake_wants(to), wire->n[i]);
    const int rc =
        handshake_take(to, wire->bytes[i], i < 3 ? wire->bytes[i + 1] : none, i < 3 ? &wire->n[i + 1] : &n, &why);
    ck_assert((rc == 0) == (why == NULL));
    return rc;
}

static void whole(struct pair *pair, struct wire *wire, const json_t *f)
{
    begin(pair, f, HANDSHAKE_AES, HANDSHAKE_AES, wire->bytes[0]);
    wire->n[0] = HANDSHAKE_HELLO_BYTES;
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(turn(pair, wire, i), 0);
}

TEST_EACH(every_byte_is_as_plain_python_has_it, 2)
{
    const json_t *f = one((size_t)_i), *hellos = json_object_get(f, "hellos"), *proofs = json_object_get(f, "proofs"),
                 *frames = json_object_get(f, "frames");
    struct pair pair;
    struct wire wire;

    whole(&pair, &wire, f);
    for (size_t i = 0; i < 2; i++) {
        expect_bytes(wire.bytes[i], HANDSHAKE_HELLO_BYTES, json_array_get(hellos, i));
        expect_bytes(wire.bytes[2 + i], HANDSHAKE_PROOF_BYTES, json_array_get(proofs, i));
    }
    expect_bytes(pair.caller.send, KEY_BYTES, json_array_get(frames, 0));
    expect_bytes(pair.answerer.receive, KEY_BYTES, json_array_get(frames, 0));
    expect_bytes(pair.caller.receive, KEY_BYTES, json_array_get(frames, 1));
    expect_bytes(pair.answerer.send, KEY_BYTES, json_array_get(frames, 1));
    expect_bytes(pair.caller.child, KEY_BYTES, json_object_get(f, "child"));
    expect_bytes(pair.answerer.child, KEY_BYTES, json_object_get(f, "child"));
    for (int i = 0; i < 2; i++) {
        const uint64_t name = i ? pair.caller.name : pair.answerer.name; /* little-endian, as this machine */
        expect_bytes((const uint8_t *)&name, sizeof name, json_object_get(f, "name"));
    }
    ck_assert_uint_eq(pair.answerer.session, (uint64_t)json_integer_value(json_object_get(f, "session")));
    ck_assert_uint_eq(pair.answerer.flags, HANDSHAKE_AES);
    ck_assert_uint_eq(handshake_wants(&pair.caller), 0);
}

/* Whoever has the key hears that there is no room. The second connection of a session has its room. */
TEST(a_full_answerer_says_so_in_place_of_its_proof)
{
    const json_t *control = one(0);
    struct pair pair;
    struct wire wire;

    begin(&pair, control, HANDSHAKE_AES, HANDSHAKE_AES, wire.bytes[0]);
    wire.n[0] = HANDSHAKE_HELLO_BYTES;
    pair.is_full = true;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(turn(&pair, &wire, i), 0);
    ck_assert_int_eq(turn(&pair, &wire, 2), -EBUSY);
    expect_bytes(wire.bytes[3], wire.n[3], json_object_get(control, "refusal"));
    ck_assert_int_eq(turn(&pair, &wire, 3), -EBUSY);
    ck_assert_int_eq(pair.caller.state, HANDSHAKE_FAILED);
    ck_assert_int_eq(pair.answerer.state, HANDSHAKE_FAILED);

    begin(&pair, one(1), HANDSHAKE_AES, HANDSHAKE_AES, wire.bytes[0]);
    pair.is_full = true;
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(turn(&pair, &wire, i), 0);
}

/* Plays until somebody refuses; which message that was. */
static int refused_at(struct pair *pair, struct wire *wire, int tampered, size_t at, uint8_t mask)
{
    begin(pair, one(0), HANDSHAKE_AES, HANDSHAKE_AES, wire->bytes[0]);
    wire->n[0] = HANDSHAKE_HELLO_BYTES;
    for (int i = 0; i < 4; i++) {
        if (i == tampered)
            wire->bytes[i][at] ^= mask;
        if (turn(pair, wire, i) < 0)
            return i;
    }
    return 4;
}

/* A flipped bit of a hello is found at once, or by the proof of the side that got it: the other learns of it by that
 * side's silence. Bit 255 of a public key is no part of it (RFC 7748), but it is under the proof. */
TEST_EACH(every_flipped_bit_is_refused, 2 * HANDSHAKE_HELLO_BYTES + 2 * HANDSHAKE_PROOF_BYTES)
{
    const int message = _i < 64 ? 0 : _i < 128 ? 1 : _i < 160 ? 2 : 3;
    const size_t at = (size_t)(message < 2 ? _i % 64 : _i % 32);
    struct pair pair;
    struct wire wire;

    for (int bit = 0; bit < 8; bit++) {
        const int i = refused_at(&pair, &wire, message, at, (uint8_t)(1 << bit));
        ck_assert_int_ge(i, message);
        ck_assert_int_le(i, message < 2 ? 2 : message);
    }
}

/* Nor does it hear that there is no room. */
TEST_EACH(another_key_is_refused_before_the_daemon_has_shown_that_it_has_one, 2)
{
    struct pair pair;
    struct wire wire;

    begin(&pair, one(0), 0, 0, wire.bytes[0]);
    wire.n[0] = HANDSHAKE_HELLO_BYTES;
    pair.is_full = _i;
    pair.key[31] ^= 1;
    ck_assert_int_eq(turn(&pair, &wire, 0), 0);
    ck_assert_int_eq(turn(&pair, &wire, 1), 0);
    ck_assert_int_eq(turn(&pair, &wire, 2), -EACCES);
    ck_assert_int_eq(pair.answerer.state, HANDSHAKE_FAILED);
    ck_assert_uint_eq(wire.n[3], HANDSHAKE_PROOF_BYTES);
    for (unsigned i = 0; i < HANDSHAKE_PROOF_BYTES; i++)
        ck_assert_uint_eq(wire.bytes[3][i], 0);
    ck_assert_int_eq(turn(&pair, &wire, 3), -EACCES);
}

/* The caller's next version, which takes this one for the last. */
TEST(another_version_is_named_to_both_sides)
{
    enum { AT_VERSION = 4 };
    struct pair pair;
    struct wire wire;

    begin(&pair, one(0), 0, 0, wire.bytes[0]);
    wire.n[0] = HANDSHAKE_HELLO_BYTES;
    wire.bytes[0][AT_VERSION]++;
    ck_assert_int_eq(turn(&pair, &wire, 0), -EPROTONOSUPPORT);
    ck_assert_uint_eq(wire.n[1], HANDSHAKE_HELLO_BYTES);
    ck_assert_uint_eq(wire.bytes[1][AT_VERSION], HANDSHAKE_VERSION);
    wire.bytes[1][AT_VERSION]--;
    ck_assert_int_eq(turn(&pair, &wire, 1), -EPROTONOSUPPORT);
}

TEST(a_session_that_there_is_none_of_is_refused)
{
    struct pair pair;
    struct wire wire;

    begin(&pair, one(1), 0, 0, wire.bytes[0]);
    wire.n[0] = HANDSHAKE_HELLO_BYTES;
    pair.knows = false;
    ck_assert_int_eq(turn(&pair, &wire, 0), -EACCES);
}

/* What was recorded is sent again: the daemon's half of the secret is another one. */
TEST(a_recorded_handshake_is_of_no_use)
{
    struct pair pair, again;
    struct wire recorded, wire;
    struct handshake_setup setup = {.find_key = find_key, .user = &again};
    size_t n;

    whole(&pair, &recorded, one(0));
    again = pair;
    bytes_of(again.key, json_object_get(one(0), "key"));
    randombytes_buf(setup.secret, sizeof setup.secret);
    handshake_begin(&again.answerer, &setup, wire.bytes[0], &n);
    wire = recorded;
    ck_assert_int_eq(turn(&again, &wire, 0), 0);
    memcpy(wire.bytes[2], recorded.bytes[2], HANDSHAKE_PROOF_BYTES);
    wire.n[2] = HANDSHAKE_PROOF_BYTES;
    ck_assert_int_eq(turn(&again, &wire, 2), -EACCES);
}

/* Whoever has no key sends back what it gets. */
TEST(a_reflected_message_is_refused)
{
    struct pair pair;
    struct wire wire;

    begin(&pair, one(0), 0, 0, wire.bytes[0]);
    memcpy(wire.bytes[1], wire.bytes[0], HANDSHAKE_HELLO_BYTES);
    wire.n[1] = HANDSHAKE_HELLO_BYTES;
    ck_assert_int_eq(turn(&pair, &wire, 1), -EPROTO);

    begin(&pair, one(0), 0, 0, wire.bytes[0]);
    wire.n[0] = HANDSHAKE_HELLO_BYTES;
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(turn(&pair, &wire, i), 0);
    memcpy(wire.bytes[3], wire.bytes[2], HANDSHAKE_PROOF_BYTES);
    wire.n[3] = HANDSHAKE_PROOF_BYTES;
    ck_assert_int_eq(turn(&pair, &wire, 3), -EACCES);
}

/* Points of small order, which give everybody the same secret. */
TEST_EACH(a_public_key_that_gives_no_secret_is_refused, 2)
{
    struct pair pair;
    struct wire wire;

    begin(&pair, one(0), 0, 0, wire.bytes[0]);
    memset(wire.bytes[0] + 32, 0, 32);
    wire.bytes[0][32] = (uint8_t)_i;
    wire.n[0] = HANDSHAKE_HELLO_BYTES;
    ck_assert_int_eq(turn(&pair, &wire, 0), -EPROTO);
}

TEST(plain_bulk_takes_both)
{
    struct pair pair;
    struct wire wire;

    for (unsigned i = 0; i < 2; i++) {
        begin(&pair, one(0), i ? HANDSHAKE_PLAIN : 0, i ? 0 : HANDSHAKE_PLAIN, wire.bytes[0]);
        wire.n[0] = HANDSHAKE_HELLO_BYTES;
        ck_assert_int_eq(turn(&pair, &wire, 0), 0);
        ck_assert_int_eq(turn(&pair, &wire, 1), -EPROTO);
    }
    begin(&pair, one(0), HANDSHAKE_PLAIN | HANDSHAKE_AES, HANDSHAKE_PLAIN, wire.bytes[0]);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(turn(&pair, &wire, i), 0);
    ck_assert_uint_eq(pair.caller.flags, HANDSHAKE_PLAIN);
    ck_assert_uint_eq(pair.answerer.flags, HANDSHAKE_PLAIN);
}

/* ---- frames ----------------------------------------------------------------------------------------------------- */

struct frame {
    struct cipher cipher;
    size_t n;
    uint64_t number;
    uint8_t payload[MAX], sealed[MAX];
};

static void frame_of(struct frame *out, size_t i, enum cipher_kind kind)
{
    const json_t *f = json_array_get(json_object_get(fixture(), "frames"), i);
    uint8_t key[MAX];

    bytes_of(key, json_object_get(f, "key"));
    cipher_init(&out->cipher, kind, key);
    out->n = (size_t)json_integer_value(json_object_get(f, "n"));
    out->number = (uint64_t)json_integer_value(json_object_get(f, "number"));
    ck_assert_uint_eq(bytes_of(out->payload, json_object_get(f, "payload")), out->n);
    bytes_of(out->sealed, json_array_get(json_object_get(f, "sealed"), kind));
}

/* Not every processor has instructions for the last. */
static const enum cipher_kind cipher_kinds[] = {CIPHER_CHACHA, CIPHER_PLAIN, CIPHER_AES};

TEST_EACH(frames_are_as_plain_python_has_them, COUNT(cipher_kinds) - !cipher_has_aes())
{
    for (size_t i = 0; i < 5; i++) {
        struct frame f;
        uint8_t sealed[MAX], opened[MAX];
        frame_of(&f, i, cipher_kinds[_i]);
        cipher_seal(&f.cipher, sealed, f.payload, f.n, f.number);
        ck_assert_mem_eq(sealed, f.sealed, CIPHER_HEADER_BYTES + f.n + CIPHER_TAG_BYTES);
        ck_assert_int_eq(cipher_open(&f.cipher, opened, sealed + CIPHER_HEADER_BYTES, f.n, f.number), 0);
        ck_assert_mem_eq(opened, f.payload, f.n);
    }
}

TEST_EACH(a_frame_that_was_changed_moved_or_cut_does_not_open, COUNT(cipher_kinds) - !cipher_has_aes())
{
    struct frame f, other;
    uint8_t opened[MAX];

    frame_of(&f, 4, cipher_kinds[_i]);
    uint8_t *body = f.sealed + CIPHER_HEADER_BYTES;
    for (size_t at = 0; at < f.n + CIPHER_TAG_BYTES; at++) {
        body[at] ^= 0x10;
        ck_assert_int_eq(cipher_open(&f.cipher, opened, body, f.n, f.number), -EBADMSG);
        body[at] ^= 0x10;
    }
    ck_assert_int_eq(cipher_open(&f.cipher, opened, body, f.n, f.number + 1), -EBADMSG);
    ck_assert_int_eq(cipher_open(&f.cipher, opened, body, f.n, f.number - 1), -EBADMSG);
    for (size_t n = 0; n < f.n; n++)
        ck_assert_int_eq(cipher_open(&f.cipher, opened, body, n, f.number), -EBADMSG);
    ck_assert_int_eq(cipher_open(&f.cipher, opened, body, f.n, f.number), 0);
    frame_of(&other, 4, cipher_kinds[_i]);
    f.cipher.key[0] ^= 1; /* the other direction's */
    cipher_init(&other.cipher, cipher_kinds[_i], f.cipher.key);
    ck_assert_int_eq(cipher_open(&other.cipher, opened, body, f.n, f.number), -EBADMSG);
}
