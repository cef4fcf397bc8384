#include "tests/kit/test.h"
#include "tests/proto/wire/message_samples.h"

#include "proto/model/file/checkpoint.h"
#include "proto/wire/message.h"
#include "proto/wire/wire.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As the fuzzer takes it (tests/fuzz/fuzz_message.c): the kind, then the body, if there is one. */
static size_t fuzzed(uint8_t *out, enum message_kind kind)
{
    const struct message m = message_sample(kind);
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const size_t n = message_encode(bytes, sizeof bytes, &m) - MESSAGE_HEADER_BYTES;

    *out = (uint8_t)kind;
    memcpy(out + 1, bytes + MESSAGE_HEADER_BYTES, n);
    return n ? 1 + n : 0;
}

static FILE *open_corpus(const char *directory, enum message_kind kind, const char *mode)
{
    char path[600];

    snprintf(path, sizeof path, "%s/%s", directory, message_name(kind));
    return fopen(path, mode);
}

/* test_message tests/fuzz/corpus/message: writes the fuzzer's first inputs anew. */
static int write_corpus(int argc, char **argv)
{
    uint8_t bytes[MESSAGE_MAX_BYTES + 1];
    bool written = argc == 2;

    for (enum message_kind kind = MESSAGE_HELLO; written && kind < MESSAGE_KINDS; kind++) {
        const size_t n = fuzzed(bytes, kind);
        FILE *file = n ? open_corpus(argv[1], kind, "wb") : NULL;
        written = !n || (file && fwrite(bytes, 1, n, file) == n);
        written &= !file || fclose(file) == 0;
    }
    return !written;
}
SUITE_COMMAND(write_corpus);

/* Decodes from a heap block of exactly n bytes, so that the address sanitizer sees a read past it. */
static int decode(struct message *out, const uint8_t *bytes, size_t n, const char **why)
{
    uint8_t *exact = malloc(n ? n : 1);

    ck_assert_ptr_nonnull(exact);
    memcpy(exact, bytes, n);
    int rc = message_decode(out, exact, n, why);
    free(exact);
    return rc;
}

static const char *refusal(const uint8_t *bytes, size_t n)
{
    struct message out;
    const char *why;

    ck_assert_int_eq(decode(&out, bytes, n, &why), -EBADMSG);
    return why;
}

TEST_RANGE(every_kind_comes_back_as_it_was_sent, MESSAGE_HELLO, MESSAGE_KINDS)
{
    struct message m = message_sample((enum message_kind)_i), back;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    size_t n = message_encode(bytes, sizeof bytes, &m);
    ck_assert_uint_le(n, sizeof bytes);
    ck_assert_int_eq(decode(&back, bytes, n, &why), 0);
    ck_assert_ptr_null(why);
    ck_assert_mem_eq(&back, &m, sizeof m); /* both were zeroed first, padding included */
    ck_assert_str_ne(message_name((enum message_kind)_i), "?");
}

/* Drawn by hand from the layout in message.h. */
TEST(the_bytes_of_a_free_are_these)
{
    static const uint8_t header[] = {0x51, 0xE9, MESSAGE_VERSION, MESSAGE_FREE, 28, 0, 0, 0};
    static const char body[] = "\x07\0\0\0\0\0\0\x40"
                               "\1\1\0\0"
                               "\2\0\0\0"
                               "\4\3\2\1"
                               "\6\0\0\0"
                               "\5\0\0";
    const struct message m = message_sample(MESSAGE_FREE);
    uint8_t bytes[MESSAGE_MAX_BYTES];

    ck_assert_uint_eq(message_encode(bytes, sizeof bytes, &m), MESSAGE_HEADER_BYTES + sizeof body);
    ck_assert_mem_eq(bytes, header, sizeof header);
    ck_assert_mem_eq(bytes + sizeof header, &m.sequence, 8); /* of a little-endian machine */
    ck_assert_mem_eq(bytes + MESSAGE_HEADER_BYTES, body, sizeof body);
}

/* Whoever changes the bytes of a kind raises the version, writes the new hash here, and the fuzzer's inputs with
 * build/bin/test_message tests/fuzz/corpus/message. */
TEST(the_bytes_of_this_version_are_those_of_all_its_builds)
{
    static uint8_t bytes[MESSAGE_KINDS][MESSAGE_MAX_BYTES];

    for (int kind = MESSAGE_HELLO; kind < MESSAGE_KINDS; kind++) {
        const struct message m = message_sample((enum message_kind)kind);
        message_encode(bytes[kind], sizeof bytes[kind], &m);
    }
    const uint64_t hash = checkpoint_hash(bytes, sizeof bytes);
    ck_assert_msg(MESSAGE_VERSION == 60 && hash == 0xdb772e516139e6cc, "version %d: 0x%016jx", MESSAGE_VERSION,
                  (uintmax_t)hash);
}

TEST_RANGE(the_fuzzer_begins_with_this_layout, MESSAGE_HELLO, MESSAGE_KINDS)
{
    uint8_t want[MESSAGE_MAX_BYTES + 1], got[sizeof want + 1];
    const size_t n = fuzzed(want, (enum message_kind)_i);
    FILE *file = n ? open_corpus(TESTS_DIR "/fuzz/corpus/message", (enum message_kind)_i, "rb") : NULL;

    if (n == 0)
        TEST_SKIP("the fuzzer begins with no such message");
    ck_assert_msg(file && fread(got, 1, sizeof got, file) == n && memcmp(got, want, n) == 0,
                  "%s is of another layout: build/bin/test_message tests/fuzz/corpus/message",
                  message_name((enum message_kind)_i));
    fclose(file);
}

TEST_RANGE(every_truncation_is_refused, MESSAGE_HELLO, MESSAGE_KINDS)
{
    struct message m = message_sample((enum message_kind)_i), out;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    size_t n = message_encode(bytes, sizeof bytes, &m);
    for (size_t cut = 0; cut < n; cut++) {
        ck_assert_int_eq(decode(&out, bytes, cut, &why), -EBADMSG);
        if (cut < MESSAGE_HEADER_BYTES)
            continue;
        bytes[4] = (uint8_t)(cut - MESSAGE_HEADER_BYTES); /* with the length put right too */
        bytes[5] = (uint8_t)((cut - MESSAGE_HEADER_BYTES) >> 8);
        ck_assert_int_eq(decode(&out, bytes, cut, &why), -EBADMSG);
        ck_assert_ptr_nonnull(why);
        message_encode(bytes, sizeof bytes, &m);
    }
}

/* Each bit, and all at once. */
TEST_RANGE(every_changed_byte_is_refused_or_comes_back, MESSAGE_HELLO, MESSAGE_KINDS)
{
    struct message m = message_sample((enum message_kind)_i), out;
    uint8_t again[MESSAGE_MAX_BYTES];
    const char *why;

    size_t n = message_encode(again, sizeof again, &m);
    uint8_t *bytes = malloc(n); /* exactly, as above */
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, again, n);
    for (size_t at = 0; at < n; at++)
        for (int bit = 0; bit <= 8; bit++) {
            const uint8_t change = (uint8_t)(bit < 8 ? 1 << bit : 255);
            bytes[at] ^= change;
            int rc = message_decode(&out, bytes, n, &why);
            bool fine = rc == 0 ? message_encode(again, sizeof again, &out) == n && memcmp(again, bytes, n) == 0
                                : rc == (at == 2 ? -EPROTONOSUPPORT : -EBADMSG) && why;
            if (!fine) /* an assertion of Check writes to a file each time, too slow for here */
                ck_abort_msg("byte %zu changed by %u: rc %d", at, change, rc);
            bytes[at] ^= change;
        }
    free(bytes);
}

TEST(another_version_is_told_apart_and_named)
{
    struct message m = {.kind = MESSAGE_PING}, out, before;
    uint8_t bytes[MESSAGE_MAX_BYTES + 1] = {0};
    const char *why;

    memset(&out, 0x5A, sizeof out);
    memcpy(&before, &out, sizeof out);
    size_t n = message_encode(bytes, MESSAGE_MAX_BYTES, &m);
    ck_assert_str_eq(refusal(bytes, sizeof bytes), "longer than any message");
    ck_assert_int_eq(message_version(bytes, n), MESSAGE_VERSION);
    bytes[2] = MESSAGE_VERSION + 1;
    ck_assert_int_eq(decode(&out, bytes, n, &why), -EPROTONOSUPPORT);
    ck_assert_int_eq(message_version(bytes, n), MESSAGE_VERSION + 1);
    ck_assert_int_eq(message_version(bytes, n - 1), -1);
    bytes[0]++;
    ck_assert_int_eq(message_version(bytes, n), -1);
    ck_assert_int_eq(decode(&out, bytes, n, &why), -EBADMSG);
    ck_assert_mem_eq(&out, &before, sizeof out); /* what is refused leaves the message alone */
}

/* Each is one wrong field; offsets are from the body's start, counted from the lists in message.h. */
static const struct {
    enum message_kind kind;
    size_t at;
    uint8_t value;
    const char *why;
} wrong_fields[] = {
    {MESSAGE_HELLO, 0, 0, "an enumeration out of range"},
    {MESSAGE_HELLO, 0, 4, "an enumeration out of range"},
    {MESSAGE_HELLO, 13, 0x1B, "a text that is not printable UTF-8"},
    {MESSAGE_HELLO, 13, 0xC3, "a text that is not printable UTF-8"},
    {MESSAGE_HELLO, 30, 'x', "bytes after the end of a text"},
    {MESSAGE_HELLO, 224, 0xC1, "a number below zero"},  /* the first rate's sign */
    {MESSAGE_JOB, 0, 3, "an enumeration out of range"}, /* purpose, then precision, base, moments and grad */
    {MESSAGE_JOB, 1, 3, "an enumeration out of range"},
    {MESSAGE_JOB, 2, 4, "an enumeration out of range"},
    {MESSAGE_JOB, 3, 4, "an enumeration out of range"},
    {MESSAGE_JOB, 4, 3, "an enumeration out of range"},
    {MESSAGE_JOB, 5, 3, "an enumeration out of range"}, /* commit */
    {MESSAGE_JOB, 7, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 16, 0, "a count or an index out of range"},  /* n_parts 0 */
    {MESSAGE_JOB, 16, 65, "a count or an index out of range"}, /* n_parts 65 */
    {MESSAGE_JOB, 43, 0xBF, "a number below zero"},            /* shares of rows and of queries, and their rule */
    {MESSAGE_JOB, 51, 0xBF, "a number below zero"},
    {MESSAGE_JOB, 52, 4, "an enumeration out of range"},
    {MESSAGE_JOB, 65, 9, "a count or an index out of range"}, /* bits of what is kept */
    {MESSAGE_JOB, 69, 9, "a count or an index out of range"}, /* pixels to a mean */
    {MESSAGE_JOB, 144, 2, "a flag that is neither 0 nor 1"},  /* no master */
    {MESSAGE_JOB, 145, 3, "an enumeration out of range"},     /* type of the sums */
    {MESSAGE_JOB, 146, 2, "a flag that is neither 0 nor 1"},  /* weights of tokens */
    {MESSAGE_JOB, 147, 2, "a flag that is neither 0 nor 1"},  /* sums of memory */
    {MESSAGE_EVALUATE, 16, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_EVALUATE, 25, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 254, 0xBF, "a number below zero"},         /* -1.5 as a norm */
    {MESSAGE_JOB, 254, 0x7F, "a number that is not finite"}, /* NaN as a norm */
    {MESSAGE_JOB, 5, 0, "a clipped norm without a fenced commit"},
    {MESSAGE_JOB, 262, 0xBF, "a number below zero"},
    {MESSAGE_ASSIGN, 4, 3, "an enumeration out of range"},
    {MESSAGE_ASSIGN, 212, 0, "an assignment without weights"},
    {MESSAGE_ASSIGN, 223, 0, "a stash without its bytes, or bytes without it"},
    {MESSAGE_ASSIGN, 228, 16, "a count or an index out of range"}, /* what blocks keep */
    {MESSAGE_ASSIGN, 232, 16, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 600, 16, "a count or an index out of range"}, /* those of the last class */
    {MESSAGE_ASSIGN, 604, 16, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 608, 0, "a count or an index out of range"}, /* no weight buffers */
    {MESSAGE_ASSIGN, 608, 4, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 1, 0, "a count or an index out of range"},        /* a config of no bytes */
    {MESSAGE_ASSIGN, 2, 17, "a count or an index out of range"},       /* and of more than a MiB */
    {MESSAGE_JOB_OPENED, 434, 2, "a flag that is neither 0 nor 1"},    /* sparse weights decoded singly */
    {MESSAGE_JOB_OPENED, 435, 2, "a flag that is neither 0 nor 1"},    /* inputs derived again */
    {MESSAGE_JOB_OPENED, 436, 65, "a count or an index out of range"}, /* cuts between segments */
    {MESSAGE_JOB_OPENED, 455, 0xC0, "a number below zero"},            /* the predicted step's sign */
    {MESSAGE_JOB_OPENED, 456, 4, "an enumeration out of range"},
    {MESSAGE_WEIGHTS, 12, 32, "weights that are not at a multiple of 64 bytes"},
    {MESSAGE_MAPPED, 26, 2, "a count or an index out of range"}, /* more units than in one */
    {MESSAGE_MAPPED, 29, 2, "an enumeration out of range"},      /* a buffer of a unit beyond them */
    {MESSAGE_SHARE, 8, 2, "a count or an index out of range"},
    {MESSAGE_SHARE, 24, 65, "a count or an index out of range"},
    {MESSAGE_SHARE, 24, 63, "a count or an index out of range"}, /* the last part is taken for dropped blocks */
    {MESSAGE_SHARE, 28, 64, "an enumeration out of range"},
    {MESSAGE_SHARE, 355, 0xC0, "a number below zero"}, /* the loss's factor */
    {MESSAGE_SHARE, 356, 65, "a count or an index out of range"},
    {MESSAGE_SHARE, 356, 63, "a set of blocks that ends with none"},
    {MESSAGE_SHARE, 871, 0, "a set of blocks that ends with none"},
    {MESSAGE_OPEN_STEP, 60, 0, "a set of blocks that ends with none"},
    {MESSAGE_OPEN_STEP, 40, 2, "a set of blocks that ends with none"}, /* the second word is zero */
    {MESSAGE_OPEN_STEP, 72, 0, "a set of blocks that ends with none"}, /* of frozen ones */
    {MESSAGE_SHARE, 884, 0, "a set of blocks that ends with none"},
    {MESSAGE_STATUS_REPLY, 0, 9, "an enumeration out of range"},
    {MESSAGE_QUEUED, 4, 0, "a count or an index out of range"}, /* no place */
    {MESSAGE_TAKEN, 33, 9, "a count or an index out of range"},
    {MESSAGE_TAKEN, 25, 9, "steps that end before they begin"},
    {MESSAGE_REFUSED, 1, 0xFF, "a count or an index out of range"}, /* below any errno */
    {MESSAGE_JOB, 271, 1, "an output directory, and files in its place"},
    {MESSAGE_OUTPUT, 12, 3, "an enumeration out of range"},
    {MESSAGE_DISMISSED, 0, END_CLOSED, "an enumeration out of range"}, /* which no message says */
    {MESSAGE_JOB, 720, 3, "an enumeration out of range"},              /* when it thaws */
    {MESSAGE_JOB, 722, 1, "a directory, and files that are served"},   /* 256 bytes of config.json */
    {MESSAGE_JOB, 723, 17, "a count or an index out of range"},        /* more than a MiB of it */
    {MESSAGE_JOB, 725, 1, "files that are served, without a config"},
    {MESSAGE_JOB, 729, 1, "files that are served, without a config"},
    {MESSAGE_JOB, 729, 129, "a count or an index out of range"},
    {MESSAGE_FILE, 4, 6, "an enumeration out of range"},
    {MESSAGE_FILE, 4, FILE_FLUSH, "bytes that no window or no file has"}, /* a flush of bytes */
    {MESSAGE_FILE, 5, 2, "a count or an index out of range"},
    {MESSAGE_FILE, 16, 0x80, "bytes that no window or no file has"}, /* beyond any file */
    {MESSAGE_FILE, 17, 1, "bytes that no window or no file has"},    /* one more than a window's */
    {MESSAGE_FILE, 19, 0, "bytes that no window or no file has"},    /* a write of nothing */
    {MESSAGE_FILE_DONE, 2, 1, "a count or an index out of range"},   /* below any errno */
    {MESSAGE_OUTPUT_DONE, 8, 129, "a count or an index out of range"},
    {MESSAGE_OPEN_STEP, 39, 0x7F, "a number that is not finite"},   /* NaN as a rate */
    {MESSAGE_OPEN_STEP, 21, 0, "a count or an index out of range"}, /* rows of no tokens */
    {MESSAGE_SHARE, 21, 0, "a count or an index out of range"},
    {MESSAGE_EVALUATE, 13, 0, "a count or an index out of range"},
    {MESSAGE_GENERATE, 0, 0, "a count or an index out of range"}, /* no rows */
    {MESSAGE_GENERATE, 0, 65, "a count or an index out of range"},
    {MESSAGE_GENERATE, 0, 2, "longer than its kind"},
    {MESSAGE_GENERATE, 4, 3, "a count or an index out of range"}, /* after a row that is not there */
    {MESSAGE_GENERATE, 12, 0, "a generation without tokens"},
};

TEST_EACH(a_field_out_of_range_is_refused_with_its_reason, COUNT(wrong_fields))
{
    struct message m = message_sample(wrong_fields[_i].kind);
    uint8_t bytes[MESSAGE_MAX_BYTES];

    size_t n = message_encode(bytes, sizeof bytes, &m);
    bytes[MESSAGE_HEADER_BYTES + wrong_fields[_i].at] = wrong_fields[_i].value;
    ck_assert_str_eq(refusal(bytes, n), wrong_fields[_i].why);
}

/* All parts, in an order of all blocks that a model may have, of which the last is dropped and frozen. */
TEST(the_longest_share_is_a_message)
{
    struct message m = message_sample(MESSAGE_SHARE), back;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    m.share.drop.blocks[MODEL_DROP_WORDS - 1] = m.share.frozen.blocks[MODEL_DROP_WORDS - 1] = 1;
    m.share.order.n = MODEL_ORDER_BLOCKS;
    for (uint32_t i = 0; i < MODEL_ORDER_BLOCKS; i++)
        m.share.order.blocks[i] = (uint16_t)(MODEL_ORDER_BLOCKS - 1 - i);
    const size_t n = message_encode(bytes, sizeof bytes, &m);
    ck_assert_int_eq(message_decode(&back, bytes, n, &why), 0);
    ck_assert(memcmp(&back.share.order, &m.share.order, sizeof m.share.order) == 0 &&
              back.share.n == MESSAGE_MAX_PARTS);
    m.share.order.n = MODEL_ORDER_BLOCKS + 1;
    for (size_t end = 4; end <= 8; end += 4) { /* the audited part, and that to audit, are counted from 1 */
        wire_put(bytes + n - end, MESSAGE_MAX_PARTS + 1, 4);
        ck_assert_str_eq(refusal(bytes, n), "a count or an index out of range");
        wire_put(bytes + n - end, MESSAGE_MAX_PARTS, 4);
    }
    wire_put(bytes + n - 2 * MODEL_ORDER_BLOCKS - 12, m.share.order.n, 4);
    ck_assert_str_eq(refusal(bytes, n), "a count or an index out of range");
}

TEST(a_text_without_its_end_is_refused)
{
    struct message m = message_sample(MESSAGE_HELLO);
    uint8_t bytes[MESSAGE_MAX_BYTES];

    size_t n = message_encode(bytes, sizeof bytes, &m);
    memset(bytes + MESSAGE_HEADER_BYTES + 13, 'x', sizeof m.hello.device);
    ck_assert_str_eq(refusal(bytes, n), "a text without its end");
}

/* Control characters could drive the terminal that a sentence is shown on: of ASCII, Unicode's C1, and broken UTF-8. */
TEST(unprintable_bytes_of_a_sentence_are_sent_as_question_marks_and_its_excess_not_at_all)
{
    struct message m = {.kind = MESSAGE_FAILED}, back;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    m.failed.code = -EINVAL;
    strcpy(m.failed.error.text, "a\x1B[2J\n\xC2\x9B"
                                "b\xC0\xAF\xED\xA0\x80 \xC3\xBC \xE2\x82");
    size_t n = message_encode(bytes, sizeof bytes, &m);
    ck_assert_int_eq(decode(&back, bytes, n, &why), 0);
    ck_assert_str_eq(back.failed.error.text, "a?[2J???b????? \xC3\xBC ??");
    memset(m.failed.error.text, 'x', sizeof m.failed.error.text); /* not even terminated */
    n = message_encode(bytes, sizeof bytes, &m);
    ck_assert_int_eq(decode(&back, bytes, n, &why), 0);
    ck_assert_uint_eq(strlen(back.failed.error.text), ERROR_TEXT_BYTES - 1);
}

TEST(numbers_outside_the_enumeration_have_no_name)
{
    ck_assert_str_eq(message_name(MESSAGE_HELLO), "HELLO");
    ck_assert_str_eq(message_name(MESSAGE_BYE), "BYE");
    ck_assert_str_eq(message_name(0), "?");
    ck_assert_str_eq(message_name(MESSAGE_KINDS), "?");
}
