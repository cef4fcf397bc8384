#include "tests/kit/test.h"

#include "proto/model/checkpoint.h"
#include "proto/wire/message.h"
#include "proto/wire/wire.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct ledger some_ledger(void)
{
    struct ledger ledger = {0};

    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++)
        ledger_add(&ledger, i, (uint64_t)1000 << i);
    ledger_sub(&ledger, LEDGER_INBOX, 7);
    return ledger;
}

/* As many as there can be: what takes most room. */
static struct products some_products(void)
{
    struct products products = {.version = 130100};

    for (uint32_t class = 0; class < PRODUCTS_CLASSES; class ++) {
        products.of[class].known = true;
        for (uint32_t i = 0; i < PRODUCTS_CONFIG; i++)
            products.of[class].config[i] = class << 20 | i;
    }
    return products;
}

/* A value of its own in every field; sample adds what is counted. */
static const struct message samples[MESSAGE_KINDS] = {
    [MESSAGE_HELLO] = {.hello = {.role = ROLE_WORKER,
                                 .pid = 4711,
                                 .nonce = UINT64_MAX - 1,
                                 .device = "cuda:1",
                                 .model = "NVIDIA H200",
                                 .host = "node-7",
                                 .budget = (uint64_t)3 << 30,
                                 .library_bytes = (uint64_t)700 << 20,
                                 .attention = 3,
                                 .profile = {.matmul_flops = {{1e9, 2e9, 3e9, 4e9}, {2e9, 4e9, 6e9, 8e9}},
                                             .attention_flops = {{1, 2}, {3, 4}},
                                             .link_bytes_per_s = 5,
                                             .memory_bytes_per_s = 6,
                                             .update_parameters_per_s = 7,
                                             .host_bytes_per_s = 8}}},
    [MESSAGE_WELCOME] = {.welcome = {.id = 3, .address = "ipc:///run/user/1000/eps/gpt2/s/3-5f0c"}},
    [MESSAGE_GREETING] = {.greeting = {.id = 3, .nonce = 0x8000000000000001}},
    [MESSAGE_PONG] = {.pong = {.progress = 99}},
    [MESSAGE_JOB] = {.job = {.goal = {.batch = 64,
                                      .seq = 256,
                                      .n_parts = MESSAGE_MAX_PARTS,
                                      .preference = {0.1, 0.25},
                                      .sampling = {0.3, 0.4, true},
                                      .kept_bits = 8,
                                      .pooled = 4,
                                      .sparse = {0.3, 1.25, 100, 8000, 0.05},
                                      .source = 0x010203,
                                      .smoothing = 0.125,
                                      .drop_layers = 0.375,
                                      .entries = 0x04030201,
                                      .chooses = true,
                                      .sgd = true,
                                      .nesterov = true,
                                      .momentum = 0.9,
                                      .purpose = PLAN_EVALUATE,
                                      .precision = NUMBER_BF16,
                                      .base = FORM_NF4,
                                      .grad = NUMBER_BF16,
                                      .adamw = true,
                                      .packs = true,
                                      .fenced = true},
                             .output = true,
                             .trace = true,
                             .resume = true,
                             .step = 500,
                             .n_steps = 1000,
                             .seed = 42,
                             .microbatch = 4,
                             .beta1 = 0.9,
                             .beta2 = 0.999,
                             .epsilon = 1e-8,
                             .weight_decay = -0.0, /* keeps its sign */
                             .clip_norm = 1.5,
                             .clip_update = 0.25,
                             .host_mem = (uint64_t)5 << 40,
                             .header_bytes = (uint64_t)3 << 33,
                             .out = "/home/jürgen/runs/a",
                             .freeze = "*.bias",
                             .thaw = MODEL_THAWED}},
    [MESSAGE_JOB_OPENED] = {.job_opened = {.n_parameters = 123456789012,
                                           .n_workers = 2,
                                           .data_bytes = 1 << 20,
                                           .resident_bytes = (uint64_t)7 << 33,
                                           .choice = {.microbatch = 8,
                                                      .whole_head = true,
                                                      .keeping = {{3, 6, 2}, {4, 5, 1}, [MODEL_CLASSES - 1] = {7, 9}},
                                                      .n_weight_buffers = 2,
                                                      .n_resident = 5},
                                           .replay = PLAN_REPLAY_OVER_CAP,
                                           .entries = 0x01020304}},
    [MESSAGE_ASSIGN] =
        {.assign = {.config_bytes = 0x100,
                    .goal = {.batch = 64, .seq = 255, .n_parts = 8, .precision = NUMBER_BF16, .base = FORM_INT8},
                    .seed = 42,
                    .max_parts = 5,
                    .n_slots = 4,
                    .n_threads = 16,
                    .takes_turns = true,
                    .trace = true,
                    .weights_bytes = (uint64_t)5 << 40,
                    .choice = {.microbatch = 2,
                               .host_stash = true,
                               .keeping = {{11, MODEL_KEEPS_ALL}},
                               .n_weight_buffers = PLAN_MAX_WEIGHT_BUFFERS,
                               .n_sums = 5,
                               .n_resident = 12},
                    .host_stash_bytes = (uint64_t)6 << 40,
                    .attention = 2,
                    .freeze = "wte.weight"}},
    [MESSAGE_ASSIGNED] = {.assigned = {.arena_bytes = (uint64_t)5 << 32}},
    [MESSAGE_OPEN_STEP] = {.open_step = {.step = 1000,
                                         .buffer = 1,
                                         .n_valid = 16320,
                                         .n_tokens = 512,
                                         .n_real = 16000,
                                         .lr = 1.5,
                                         .drop.blocks = {0x0102030405060708, 0, 1},
                                         .frozen.blocks = {5},
                                         .order = {4, {1, 0, 0x0F0E, 2}}}},
    [MESSAGE_SHARE] = {.share = {.step = 1000,
                                 .buffer = 1,
                                 .n_valid = 16320,
                                 .n_tokens = 512,
                                 .n = MESSAGE_MAX_PARTS,
                                 .loss_scale = 65536,
                                 .drop.blocks = {7, [MODEL_DROP_WORDS - 1] = UINT64_C(1) << 63},
                                 .frozen.blocks = {0, 9},
                                 .order = {3, {2, 0x0102, 0}}}},
    [MESSAGE_PULL] = {.pull = {.version = 1000, .unit = 17}},
    [MESSAGE_WEIGHTS] = {.weights = {.version = 1000,
                                     .unit = 17,
                                     .at = (uint64_t)3 << 36,
                                     .frozen_at = (uint64_t)5 << 37,
                                     .lent = true}},
    [MESSAGE_VOID] = {.voided = {.version = 1001, .unit = 19}},
    [MESSAGE_READ] = {.read = {.version = (uint64_t)1 << 34, .unit = 18}},
    [MESSAGE_LOSS] = {.loss = {.step = 1000,
                               .part = 63,
                               .attempt = 2,
                               .sum = -INFINITY,
                               .rewards = {1, -2, 3, -4, -5},
                               .finite = true}},
    [MESSAGE_CONTRIBUTION] = {.contribution = {{.step = 1000, .visit = 1, .part = 2, .slice = 3, .attempt = 4},
                                               .slot = 5}},
    [MESSAGE_FREE] =
        {.free = {{.step = 0x4000000000000007, .visit = 0x0101, .part = 2, .slice = 0x01020304, .attempt = 6},
                  .slot = 5}},
    [MESSAGE_GRANT] = {.grant = {{.visit = 1, .part = 2, .slice = 3}}},
    [MESSAGE_ARRIVED] = {.arrived = {.step = (uint64_t)1 << 33}},
    [MESSAGE_COVERED] = {.covered = {.step = 1000,
                                     .loss = 3.25,
                                     .rewards = {1, -2, 3, -4, -5},
                                     .device_peak = 2,
                                     .host_bytes = 9,
                                     .grad_norm = 0.75,
                                     .loss_scale = 1024}},
    [MESSAGE_DONE] = {.done = {.step = 1000, .loss = 3.25, .host_bytes = 9, .grad_norm = 0.75, .skipped = true}},
    [MESSAGE_EVALUATE] = {.evaluate = {.buffer = 1, .first_row = 8, .n_rows = 24, .n_tokens = 512}},
    [MESSAGE_EVALUATED] = {.evaluated = {.sum = 12345.678}},
    [MESSAGE_GENERATE] = {.generate = {.n_rows = 3,
                                       .rows = {{0, 511, 2, 0}, {1, 0, 0, 0x05060708}, {0, 0x01020304, 0, 0}}}},
    [MESSAGE_SAVE] = {.save = {.step = 1000}},
    [MESSAGE_SAVED] = {.saved = {.step = 1000}},
    [MESSAGE_STOP] = {.stop = {.job = 0x01020304}},
    [MESSAGE_DESCRIBE] = {.describe = {.job = 3}},
    [MESSAGE_TAKE] = {.take = {.job = 4}},
    [MESSAGE_QUEUED] = {.queued = {.job = 5, .place = 2}},
    [MESSAGE_QUEUE_REPLY] = {.queue_reply = {.last = true,
                                             .job = 5,
                                             .pid = 4711,
                                             .uid = 1000,
                                             .purpose = PLAN_GENERATE,
                                             .step = 500,
                                             .n_steps = 1000,
                                             .out = "/home/jürgen/runs/b"}},
    [MESSAGE_DESCRIPTION] = {.description = {.job = 6,
                                             .step = 500,
                                             .thawed = true,
                                             .config_bytes = 0x100,
                                             .output = true,
                                             .out = "/home/jürgen/runs/a",
                                             .n_workers = 2,
                                             .n_parameters = 123456789012,
                                             .data_bytes = 1 << 20,
                                             .choice = {.microbatch = 8, .keeping = {{3, 6}}, .n_weight_buffers = 2},
                                             .replay = PLAN_REPLAY_ON,
                                             .entries = UINT32_MAX - 1}},
    [MESSAGE_TAKEN] = {.taken = {.opened = 1003,
                                 .arrived = 1002,
                                 .covered = 1001,
                                 .done = 1000,
                                 .waits = true,
                                 .n = 2,
                                 .steps = {{.step = 998, .loss = 3.5, .grad_norm = 0.5, .host_bytes = 9},
                                           {.step = 999, .loss = 3.25, .device_peak = 7, .skipped = true}}}},
    [MESSAGE_LOST] = {.lost = {.worker = 7,
                               .pid = 1234,
                               .step = 99,
                               .waits = true,
                               .how = LOSS_UNFIT,
                               .device = "cuda:1",
                               .host = "big-2",
                               .error.text = "killed"}},
    [MESSAGE_DRAIN] = {.drain = {.worker = 0x01020304}},
    [MESSAGE_SAVE_FAILED] = {.save_failed = {.step = 1000, .code = -ENOSPC, .error.text = "step-1000: no space left"}},
    [MESSAGE_OUTPUT] = {.output = {.id = 7, .step = 1000, .what = OUTPUT_DROP}},
    [MESSAGE_FILES] = {.files = {.trace = true}},
    [MESSAGE_FILE] =
        {.file = {.index = 9, .act = FILE_WRITE, .window = 1, .offset = (uint64_t)5 << 32, .bytes = FILE_WINDOW}},
    [MESSAGE_FILE_DONE] = {.file_done = {.code = -ENOSPC, .size = (uint64_t)6 << 32}},
    [MESSAGE_OUTPUT_DONE] = {.output_done = {.id = 7,
                                             .first_file = 40,
                                             .n_files = 6,
                                             .code = -EACCES,
                                             .error.text = "step-1000 could not be made"}},
    [MESSAGE_STATUS] = {.status = {.n_workers = 3}},
    [MESSAGE_STATUS_REPLY] = {.status_reply = {.state = STATE_ENDING,
                                               .step = 1000,
                                               .n_steps = 2000,
                                               .n_parameters = 30000000,
                                               .n_workers = 1,
                                               .n_foreign = 4,
                                               .n_elsewhere = 3,
                                               .lacks = 5,
                                               .n_idle = 9,
                                               .n_threads = 14,
                                               .pid = 4712,
                                               .uid = 1000,
                                               .job = 7,
                                               .n_queued = 2,
                                               .loss = (double)NAN,
                                               .saved_step = 900,
                                               .saving = true,
                                               .waits = true,
                                               .precision = NUMBER_BF16,
                                               .fenced = true,
                                               .model = "gpt2 6x384",
                                               .out = "/home/jürgen/runs/a",
                                               .trouble = "step-1000: no space left"}},
    [MESSAGE_MEMORY] = {.memory = {.pages = true}},
    [MESSAGE_MEMORY_REPLY] = {.memory_reply = {.last = true,
                                               .worker = 3,
                                               .pid = 4712,
                                               .device = "cpu",
                                               .host = "node-7",
                                               .budget = (uint64_t)3 << 30,
                                               .planned = {0, 1, (uint64_t)2 << 33},
                                               .pages = {true, (uint64_t)5 << 40, 4096, 2 << 20, 2, {7, 1}}}},
    [MESSAGE_UNITS] = {.units = {.first = 900}},
    [MESSAGE_UNITS_REPLY] =
        {.units_reply = {.first = 900, .n = 9, .n_units = 1803, .version = 1000, .units = {0, 1, 2, 3, 4, 5, 6, 7}}},
    [MESSAGE_WORKERS_REPLY] = {.workers_reply = {.last = true,
                                                 .worker = 3,
                                                 .pid = 4712,
                                                 .device = "cuda:1",
                                                 .model = "NVIDIA H200",
                                                 .host = "node-7",
                                                 .budget = (uint64_t)3 << 30,
                                                 .current = (uint64_t)2 << 30,
                                                 .peak = (uint64_t)1 << 31,
                                                 .phase = PHASE_BACKWARD,
                                                 .visit = 11,
                                                 .n_visits = 17,
                                                 .unit = "head wte.2",
                                                 .part = 5,
                                                 .n_parts = 8,
                                                 .microbatch = 4,
                                                 .down_bytes = (uint64_t)7 << 40,
                                                 .up_bytes = (uint64_t)6 << 40,
                                                 .unfit.text = "no arena"}},
    [MESSAGE_RECENT_REPLY] = {.recent_reply = {.step = 1000,
                                               .tokens = (uint64_t)1 << 40,
                                               .tokens_per_s = 12345.5,
                                               .step_ms = (double)NAN,
                                               .n = 3,
                                               .losses = {5.5f, 0, (float)NAN}}},
    [MESSAGE_REFUSED] = {.refused = {.code = -ENOSPC, .error.text = "/home/jürgen/modèles/👍: no space left"}},
    [MESSAGE_FAILED] = {.failed = {.code = -EIO, .error.text = "lost"}},
    [MESSAGE_DISMISSED] = {.dismissed = {.end = END_UNREAD, .code = -EPERM, .error.text = "not today"}},
};

/* Zeroed first, padding included, so that two can be compared as bytes. */
static struct message sample(enum message_kind kind)
{
    struct message m;

    memcpy(&m, &samples[kind], sizeof m);
    m.kind = kind;
    m.sequence = 0x8102030405060708 + (uint64_t)kind;
    if (kind == MESSAGE_HELLO)
        m.hello.profile.products = some_products();
    if (kind == MESSAGE_ASSIGN)
        m.assign.products = some_products();
    if (kind == MESSAGE_LEDGER)
        m.ledger = some_ledger();
    if (kind == MESSAGE_MEMORY_REPLY)
        m.memory_reply.ledger = some_ledger();
    for (uint32_t i = 0; kind == MESSAGE_SHARE && i < MESSAGE_MAX_PARTS; i++) {
        m.share.parts[i].part = MESSAGE_MAX_PARTS - 1 - i;
        m.share.parts[i].attempt = i * i;
    }
    return m;
}

/* As the fuzzer takes it (tests/fuzz/fuzz_message.c): the kind, then the body, if there is one. */
static size_t fuzzed(uint8_t *out, enum message_kind kind)
{
    const struct message m = sample(kind);
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
    struct message m = sample((enum message_kind)_i), back;
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
    const struct message m = sample(MESSAGE_FREE);
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
        const struct message m = sample((enum message_kind)kind);
        message_encode(bytes[kind], sizeof bytes[kind], &m);
    }
    const uint64_t hash = checkpoint_hash(bytes, sizeof bytes);
    ck_assert_msg(MESSAGE_VERSION == 38 && hash == 0xad10d86bc2bfcc64, "version %d: 0x%016jx", MESSAGE_VERSION,
                  (uintmax_t)hash);
}

TEST_RANGE(the_fuzzer_begins_with_this_layout, MESSAGE_HELLO, MESSAGE_KINDS)
{
    uint8_t want[MESSAGE_MAX_BYTES + 1], got[sizeof want + 1];
    const size_t n = fuzzed(want, (enum message_kind)_i);
    FILE *file = n ? open_corpus(TESTS_DIR "/fuzz/corpus/message", (enum message_kind)_i, "rb") : NULL;

    if (n == 0)
        return;
    ck_assert_msg(file && fread(got, 1, sizeof got, file) == n && memcmp(got, want, n) == 0,
                  "%s is of another layout: build/bin/test_message tests/fuzz/corpus/message",
                  message_name((enum message_kind)_i));
    fclose(file);
}

TEST_RANGE(every_truncation_is_refused, MESSAGE_HELLO, MESSAGE_KINDS)
{
    struct message m = sample((enum message_kind)_i), out;
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
    struct message m = sample((enum message_kind)_i), out;
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
    {MESSAGE_HELLO, 200, 0xC1, "a number below zero"},  /* the first rate's sign */
    {MESSAGE_JOB, 0, 3, "an enumeration out of range"}, /* purpose, then precision, base, moments and grad */
    {MESSAGE_JOB, 1, 3, "an enumeration out of range"},
    {MESSAGE_JOB, 2, 4, "an enumeration out of range"},
    {MESSAGE_JOB, 3, 3, "an enumeration out of range"},
    {MESSAGE_JOB, 4, 3, "an enumeration out of range"},
    {MESSAGE_JOB, 5, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 7, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 16, 0, "a count or an index out of range"},  /* n_parts 0 */
    {MESSAGE_JOB, 16, 65, "a count or an index out of range"}, /* n_parts 65 */
    {MESSAGE_JOB, 43, 0xBF, "a number below zero"},            /* shares of rows and of queries, and their rule */
    {MESSAGE_JOB, 51, 0xBF, "a number below zero"},
    {MESSAGE_JOB, 52, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 53, 9, "a count or an index out of range"}, /* bits of what is kept */
    {MESSAGE_JOB, 57, 9, "a count or an index out of range"}, /* pixels to a mean */
    {MESSAGE_JOB, 206, 0xBF, "a number below zero"},          /* -1.5 as a norm */
    {MESSAGE_JOB, 206, 0x7F, "a number that is not finite"},  /* NaN as a norm */
    {MESSAGE_JOB, 5, 0, "a clipped norm without a fenced commit"},
    {MESSAGE_JOB, 214, 0xBF, "a number below zero"},
    {MESSAGE_ASSIGN, 4, 3, "an enumeration out of range"},
    {MESSAGE_ASSIGN, 163, 0, "an assignment without weights"},
    {MESSAGE_ASSIGN, 174, 0, "a stash without its bytes, or bytes without it"},
    {MESSAGE_ASSIGN, 179, 16, "a count or an index out of range"}, /* what blocks keep */
    {MESSAGE_ASSIGN, 183, 16, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 551, 16, "a count or an index out of range"}, /* those of the last class */
    {MESSAGE_ASSIGN, 555, 16, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 559, 0, "a count or an index out of range"}, /* no weight buffers */
    {MESSAGE_ASSIGN, 559, 4, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 1, 0, "a count or an index out of range"},  /* a config of no bytes */
    {MESSAGE_ASSIGN, 2, 17, "a count or an index out of range"}, /* and of more than a MiB */
    {MESSAGE_JOB_OPENED, 434, 4, "an enumeration out of range"},
    {MESSAGE_WEIGHTS, 12, 32, "weights that are not at a multiple of 64 bytes"},
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
    {MESSAGE_JOB, 223, 1, "an output directory, and files in its place"},
    {MESSAGE_OUTPUT, 12, 3, "an enumeration out of range"},
    {MESSAGE_DISMISSED, 0, END_CLOSED, "an enumeration out of range"}, /* which no message says */
    {MESSAGE_JOB, 672, 3, "an enumeration out of range"},              /* when it thaws */
    {MESSAGE_JOB, 674, 1, "a directory, and files that are served"},   /* 256 bytes of config.json */
    {MESSAGE_JOB, 675, 17, "a count or an index out of range"},        /* more than a MiB of it */
    {MESSAGE_JOB, 677, 1, "files that are served, without a config"},
    {MESSAGE_JOB, 681, 1, "files that are served, without a config"},
    {MESSAGE_JOB, 681, 129, "a count or an index out of range"},
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
    struct message m = sample(wrong_fields[_i].kind);
    uint8_t bytes[MESSAGE_MAX_BYTES];

    size_t n = message_encode(bytes, sizeof bytes, &m);
    bytes[MESSAGE_HEADER_BYTES + wrong_fields[_i].at] = wrong_fields[_i].value;
    ck_assert_str_eq(refusal(bytes, n), wrong_fields[_i].why);
}

/* All parts, in an order of all blocks that a model may have, of which the last is dropped and frozen. */
TEST(the_longest_share_is_a_message)
{
    struct message m = sample(MESSAGE_SHARE), back;
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
    wire_put(bytes + n - 2 * MODEL_ORDER_BLOCKS - 4, m.share.order.n, 4);
    ck_assert_str_eq(refusal(bytes, n), "a count or an index out of range");
}

TEST(a_text_without_its_end_is_refused)
{
    struct message m = sample(MESSAGE_HELLO);
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
