#include "tests/kit/test.h"

#include "proto/wire/message.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(long)

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

/* A message of this kind with a value of its own in every field. */
static struct message sample(enum message_kind kind)
{
    struct message m = {.kind = kind, .sequence = 0x0102030405060708 + (uint64_t)kind};

    switch (kind) {
    case MESSAGE_HELLO:
        m.hello.role = ROLE_WORKER;
        m.hello.pid = 4711;
        m.hello.nonce = UINT64_MAX - 1;
        strcpy(m.hello.device, "cuda:1");
        strcpy(m.hello.model, "NVIDIA H200");
        m.hello.budget = (uint64_t)3 << 30;
        m.hello.library_bytes = (uint64_t)700 << 20;
        m.hello.attention = 3;
        m.hello.profile = (struct profile){.matmul_flops = {{1e9, 2e9, 3e9, 4e9}, {2e9, 4e9, 6e9, 8e9}},
                                           .attention_flops = {{1, 2}, {3, 4}},
                                           .link_bytes_per_s = 5,
                                           .memory_bytes_per_s = 6,
                                           .update_parameters_per_s = 7,
                                           .host_bytes_per_s = 8,
                                           .products = some_products()};
        break;
    case MESSAGE_WELCOME:
        m.welcome.id = 3;
        strcpy(m.welcome.address, "ipc:///run/user/1000/eps/gpt2/s/3-5f0c");
        break;
    case MESSAGE_GREETING:
        m.greeting.id = 3;
        m.greeting.nonce = 0x8000000000000001;
        break;
    case MESSAGE_PONG:
        m.pong.progress = 99;
        break;
    case MESSAGE_JOB:
        m.job.output = m.job.trace = m.job.resume = true;
        m.job.step = 500;
        m.job.n_steps = 1000;
        m.job.seed = 42;
        m.job.goal.batch = 64;
        m.job.goal.seq = 256;
        m.job.goal.n_parts = MESSAGE_MAX_PARTS;
        m.job.goal.purpose = PLAN_EVALUATE;
        m.job.goal.adamw = m.job.goal.fenced = true;
        m.job.microbatch = 4;
        m.job.beta1 = 0.9;
        m.job.beta2 = 0.999;
        m.job.epsilon = 1e-8;
        m.job.weight_decay = -0.0; /* keeps its sign */
        m.job.goal.precision = m.job.goal.grad = NUMBER_BF16;
        m.job.clip_norm = 1.5;
        m.job.clip_update = 0.25;
        m.job.host_mem = (uint64_t)5 << 40;
        strcpy(m.job.out, "/home/jürgen/runs/a");
        break;
    case MESSAGE_JOB_OPENED:
        m.job_opened.n_parameters = 123456789012;
        m.job_opened.n_workers = 2;
        m.job_opened.choice.microbatch = 8;
        m.job_opened.data_bytes = 1 << 20;
        m.job_opened.resident_bytes = (uint64_t)7 << 33;
        m.job_opened.choice.whole_head = true;
        m.job_opened.choice.n_kept = 3;
        m.job_opened.choice.kept = 6;
        m.job_opened.choice.kept_below = 2;
        m.job_opened.choice.n_weight_buffers = 2;
        m.job_opened.choice.n_resident = 5;
        break;
    case MESSAGE_ASSIGN:
        m.assign.config_bytes = 0x100;
        m.assign.seed = 42;
        m.assign.goal.batch = 64;
        m.assign.goal.seq = 255;
        m.assign.goal.n_parts = 8;
        m.assign.choice.microbatch = 2;
        m.assign.max_parts = 5;
        m.assign.n_slots = 4;
        m.assign.products = some_products();
        m.assign.n_threads = 16;
        m.assign.takes_turns = m.assign.trace = true;
        m.assign.goal.precision = NUMBER_BF16;
        m.assign.choice.host_stash = true;
        m.assign.attention = 2;
        m.assign.choice.n_kept = 11;
        m.assign.choice.kept = MODEL_KEEPS_ALL;
        m.assign.choice.n_weight_buffers = PLAN_MAX_WEIGHT_BUFFERS;
        m.assign.choice.n_sums = 5;
        m.assign.choice.n_resident = 12;
        m.assign.host_stash_bytes = (uint64_t)6 << 40;
        break;
    case MESSAGE_ASSIGNED:
        m.assigned.arena_bytes = (uint64_t)5 << 32;
        break;
    case MESSAGE_OPEN_STEP:
        m.open_step.step = 1000;
        m.open_step.buffer = 1;
        m.open_step.n_valid = 16320;
        m.open_step.lr = 3e-4;
        break;
    case MESSAGE_SHARE:
        m.share.step = 1000;
        m.share.buffer = 1;
        m.share.n_valid = 16320;
        m.share.n = MESSAGE_MAX_PARTS;
        for (uint32_t i = 0; i < MESSAGE_MAX_PARTS; i++) {
            m.share.parts[i].part = MESSAGE_MAX_PARTS - 1 - i;
            m.share.parts[i].attempt = i * i;
        }
        break;
    case MESSAGE_PULL:
    case MESSAGE_WEIGHTS:
        m.pull.version = 1000;
        m.pull.unit = 17;
        break;
    case MESSAGE_LOSS:
        m.loss.step = 1000;
        m.loss.part = 63;
        m.loss.attempt = 2;
        m.loss.sum = -INFINITY;
        m.loss.finite = true;
        break;
    case MESSAGE_CONTRIBUTION:
        m.contribution.name.step = 1000;
        m.contribution.name.visit = 1;
        m.contribution.name.part = 2;
        m.contribution.name.slice = 3;
        m.contribution.name.attempt = 4;
        m.contribution.slot = 5;
        break;
    case MESSAGE_FREE:
        m.free.slot = 5;
        m.free.name.visit = 1;
        m.free.name.part = 2;
        m.free.name.slice = 3;
        break;
    case MESSAGE_GRANT:
        m.grant.name.visit = 1;
        m.grant.name.part = 2;
        m.grant.name.slice = 3;
        break;
    case MESSAGE_ARRIVED:
        m.arrived.step = (uint64_t)1 << 33;
        break;
    case MESSAGE_COVERED:
    case MESSAGE_DONE:
        m.done.step = 1000;
        m.done.loss = 3.25;
        m.done.device_peak = (uint64_t)2 << 30;
        m.done.host_bytes = (uint64_t)9 << 30;
        m.done.grad_norm = 0.75;
        m.done.skipped = true;
        break;
    case MESSAGE_EVALUATE:
        m.evaluate.buffer = 1;
        m.evaluate.first_row = 8;
        m.evaluate.n_rows = 24;
        break;
    case MESSAGE_EVALUATED:
        m.evaluated.sum = 12345.678;
        break;
    case MESSAGE_GENERATE:
        m.generate.first = 511;
        m.generate.n = 2;
        break;
    case MESSAGE_SAVE:
    case MESSAGE_SAVED:
        m.save.step = 1000;
        break;
    case MESSAGE_SAVE_FAILED:
        m.save_failed.step = 1000;
        m.save_failed.code = -ENOSPC;
        strcpy(m.save_failed.error.text, "step-1000: no space left");
        break;
    case MESSAGE_OUTPUT:
        m.output.id = 7;
        m.output.step = 1000;
        m.output.what = OUTPUT_DROP;
        break;
    case MESSAGE_OUTPUT_DONE:
        m.output_done.id = 7;
        m.output_done.code = -EACCES;
        strcpy(m.output_done.error.text, "step-1000 could not be made");
        break;
    case MESSAGE_STATUS_REPLY:
        m.status_reply.state = STATE_STOPPING;
        m.status_reply.step = 1000;
        m.status_reply.n_steps = 2000;
        m.status_reply.uid = 1000;
        m.status_reply.saved_step = 900;
        m.status_reply.saving = true;
        m.status_reply.precision = NUMBER_BF16;
        m.status_reply.fenced = true;
        strcpy(m.status_reply.out, "/home/jürgen/runs/a");
        strcpy(m.status_reply.trouble, "step-1000: no space left");
        m.status_reply.n_parameters = 30000000;
        m.status_reply.n_workers = 1;
        m.status_reply.n_threads = 14;
        m.status_reply.pid = 4712;
        m.status_reply.loss = (double)NAN;
        strcpy(m.status_reply.model, "gpt2 6x384");
        break;
    case MESSAGE_MEMORY_REPLY:
        m.memory_reply.last = true;
        m.memory_reply.worker = 3;
        strcpy(m.memory_reply.device, "cpu");
        m.memory_reply.budget = (uint64_t)3 << 30;
        m.memory_reply.ledger = some_ledger();
        for (unsigned i = 0; i < LEDGER_CATEGORIES; i++)
            m.memory_reply.planned[i] = (uint64_t)i << 33;
        m.memory_reply.pages = (struct pages){true, (uint64_t)5 << 40, 4096, 2 << 20, 2, {(uint64_t)4 << 40, 1}};
        break;
    case MESSAGE_MEMORY:
        m.memory.pages = true;
        break;
    case MESSAGE_UNITS:
        m.units.first = 900;
        break;
    case MESSAGE_UNITS_REPLY:
        m.units_reply.first = 900;
        m.units_reply.n_units = 1803;
        m.units_reply.version = 1000;
        m.units_reply.n = 9;
        for (uint32_t i = 0; i < 8; i++)
            m.units_reply.units[i] = (uint8_t)i;
        break;
    case MESSAGE_WORKERS_REPLY:
        m.workers_reply.last = true;
        m.workers_reply.worker = 3;
        m.workers_reply.pid = 4712;
        strcpy(m.workers_reply.device, "cuda:1");
        strcpy(m.workers_reply.model, "NVIDIA H200");
        m.workers_reply.budget = (uint64_t)3 << 30;
        m.workers_reply.current = (uint64_t)2 << 30;
        m.workers_reply.peak = (uint64_t)2 << 30;
        m.workers_reply.phase = PHASE_BACKWARD;
        m.workers_reply.visit = 11;
        m.workers_reply.n_visits = 17;
        strcpy(m.workers_reply.unit, "head wte.2");
        m.workers_reply.part = 5;
        m.workers_reply.n_parts = 8;
        m.workers_reply.microbatch = 4;
        m.workers_reply.down_bytes = (uint64_t)7 << 40;
        m.workers_reply.up_bytes = (uint64_t)6 << 40;
        break;
    case MESSAGE_RECENT_REPLY:
        m.recent_reply.step = 1000;
        m.recent_reply.tokens = (uint64_t)1 << 40;
        m.recent_reply.tokens_per_s = 12345.5;
        m.recent_reply.step_ms = (double)NAN;
        m.recent_reply.n = 3;
        m.recent_reply.losses[0] = 5.5f;
        m.recent_reply.losses[2] = (float)NAN;
        break;
    case MESSAGE_LEDGER:
        m.ledger = some_ledger();
        break;
    case MESSAGE_REFUSED:
    case MESSAGE_FAILED:
    case MESSAGE_DISMISSED:
        m.refused.code = -ENOSPC;
        strcpy(m.refused.error.text, "/home/jürgen/modèles/👍: no space left");
        break;
    case MESSAGE_STATUS:
        m.status.n_workers = 3;
        break;
    case MESSAGE_GENERATED:
    case MESSAGE_SNAPSHOT:
    case MESSAGE_PING:
    case MESSAGE_RELEASE:
    case MESSAGE_CLOSE:
    case MESSAGE_WORKERS:
    case MESSAGE_RECENT:
    case MESSAGE_STOP:
    case MESSAGE_BYE:
    case MESSAGE_KINDS:
        break;
    }
    return m;
}

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
    static const uint8_t drawn[] = {0x51,
                                    0xE9,
                                    MESSAGE_VERSION,
                                    MESSAGE_FREE,
                                    28,
                                    0,
                                    0,
                                    0,
                                    9,
                                    0,
                                    0,
                                    0,
                                    0,
                                    0,
                                    0,
                                    0x80, /* header */
                                    7,
                                    0,
                                    0,
                                    0,
                                    0,
                                    0,
                                    0,
                                    0x40,
                                    1,
                                    1,
                                    0,
                                    0,
                                    2,
                                    0,
                                    0,
                                    0,
                                    4,
                                    3,
                                    2,
                                    1,
                                    6,
                                    0,
                                    0,
                                    0,
                                    5,
                                    0,
                                    0,
                                    0};
    struct message m = {.kind = MESSAGE_FREE, .sequence = 0x8000000000000009};
    uint8_t bytes[MESSAGE_MAX_BYTES];

    m.free.slot = 5;
    m.free.name.step = 0x4000000000000007;
    m.free.name.attempt = 6;
    m.free.name.visit = 0x0101;
    m.free.name.part = 2;
    m.free.name.slice = 0x01020304;
    ck_assert_uint_eq(message_encode(bytes, sizeof bytes, &m), sizeof drawn);
    ck_assert_mem_eq(bytes, drawn, sizeof drawn);
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

TEST_RANGE(every_changed_byte_is_refused_or_comes_back, MESSAGE_HELLO, MESSAGE_KINDS)
{
    struct message m = sample((enum message_kind)_i), out;
    uint8_t again[MESSAGE_MAX_BYTES];
    const char *why;

    size_t n = message_encode(again, sizeof again, &m);
    uint8_t *bytes = malloc(n); /* exactly, as above */
    ck_assert_ptr_nonnull(bytes);
    memcpy(bytes, again, n);
    for (size_t at = 0; at < n; at++) {
        for (unsigned change = 1; change < 256; change++) {
            bytes[at] ^= (uint8_t)change;
            int rc = message_decode(&out, bytes, n, &why);
            bool fine = rc == 0 ? message_encode(again, sizeof again, &out) == n && memcmp(again, bytes, n) == 0
                                : rc == (at == 2 ? -EPROTONOSUPPORT : -EBADMSG) && why;
            if (!fine) /* an assertion of Check writes to a file each time, too slow for here */
                ck_abort_msg("byte %zu changed by %u: rc %d", at, change, rc);
            bytes[at] ^= (uint8_t)change;
        }
    }
    free(bytes);
}

TEST(what_is_refused_leaves_the_message_alone)
{
    struct message m = sample(MESSAGE_JOB), out, before;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    memset(&out, 0x5A, sizeof out);
    memcpy(&before, &out, sizeof out);
    size_t n = message_encode(bytes, sizeof bytes, &m);
    ck_assert_int_eq(message_decode(&out, bytes, n - 1, &why), -EBADMSG);
    ck_assert_mem_eq(&out, &before, sizeof out);
}

TEST(another_version_is_told_apart_and_named)
{
    struct message m = {.kind = MESSAGE_PING}, out;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    size_t n = message_encode(bytes, sizeof bytes, &m);
    ck_assert_int_eq(message_version(bytes, n), MESSAGE_VERSION);
    bytes[2] = MESSAGE_VERSION + 1;
    ck_assert_int_eq(decode(&out, bytes, n, &why), -EPROTONOSUPPORT);
    ck_assert_int_eq(message_version(bytes, n), MESSAGE_VERSION + 1);
    ck_assert_int_eq(message_version(bytes, n - 1), -1);
    bytes[0]++;
    ck_assert_int_eq(message_version(bytes, n), -1);
    ck_assert_int_eq(decode(&out, bytes, n, &why), -EBADMSG);
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
    {MESSAGE_HELLO, 136, 0xC1, "a number below zero"},  /* the first rate's sign */
    {MESSAGE_JOB, 0, 3, "an enumeration out of range"}, /* purpose, then precision, moments and grad */
    {MESSAGE_JOB, 1, 2, "an enumeration out of range"},
    {MESSAGE_JOB, 2, 2, "an enumeration out of range"},
    {MESSAGE_JOB, 3, 2, "an enumeration out of range"},
    {MESSAGE_JOB, 4, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 5, 2, "a flag that is neither 0 nor 1"},
    {MESSAGE_JOB, 14, 0, "a count or an index out of range"},  /* n_parts 0 */
    {MESSAGE_JOB, 14, 65, "a count or an index out of range"}, /* n_parts 65 */
    {MESSAGE_JOB, 92, 0xBF, "a number below zero"},            /* -1.5 as a norm */
    {MESSAGE_JOB, 92, 0x7F, "a number that is not finite"},    /* NaN as a norm */
    {MESSAGE_JOB, 4, 0, "a clipped norm without a fenced commit"},
    {MESSAGE_JOB, 100, 0xBF, "a number below zero"},
    {MESSAGE_ASSIGN, 4, 3, "an enumeration out of range"},
    {MESSAGE_ASSIGN, 48, 0, "a stash without its bytes, or bytes without it"},
    {MESSAGE_ASSIGN, 53, 16, "a count or an index out of range"}, /* what blocks keep */
    {MESSAGE_ASSIGN, 57, 16, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 61, 0, "a count or an index out of range"}, /* no weight buffers */
    {MESSAGE_ASSIGN, 61, 4, "a count or an index out of range"},
    {MESSAGE_ASSIGN, 1, 0, "a count or an index out of range"},  /* a config of no bytes */
    {MESSAGE_ASSIGN, 2, 17, "a count or an index out of range"}, /* and of more than a MiB */
    {MESSAGE_SHARE, 8, 2, "a count or an index out of range"},
    {MESSAGE_SHARE, 20, 65, "a count or an index out of range"},
    {MESSAGE_SHARE, 20, 63, "longer than its kind"},
    {MESSAGE_SHARE, 24, 64, "a count or an index out of range"},
    {MESSAGE_STATUS_REPLY, 0, 6, "an enumeration out of range"},
    {MESSAGE_REFUSED, 1, 0xFF, "a count or an index out of range"}, /* below any errno */
    {MESSAGE_JOB, 109, 1, "an output directory, and files in its place"},
    {MESSAGE_OUTPUT, 12, 3, "an enumeration out of range"},
};

TEST_EACH(a_field_out_of_range_is_refused_with_its_reason, COUNT(wrong_fields))
{
    struct message m = sample(wrong_fields[_i].kind);
    uint8_t bytes[MESSAGE_MAX_BYTES];

    size_t n = message_encode(bytes, sizeof bytes, &m);
    bytes[MESSAGE_HEADER_BYTES + wrong_fields[_i].at] = wrong_fields[_i].value;
    ck_assert_str_eq(refusal(bytes, n), wrong_fields[_i].why);
}

TEST(a_text_without_its_end_is_refused)
{
    struct message m = sample(MESSAGE_HELLO);
    uint8_t bytes[MESSAGE_MAX_BYTES];

    size_t n = message_encode(bytes, sizeof bytes, &m);
    memset(bytes + MESSAGE_HEADER_BYTES + 13, 'x', sizeof m.hello.device);
    ck_assert_str_eq(refusal(bytes, n), "a text without its end");
}

TEST(a_learning_rate_that_is_not_finite_is_refused)
{
    struct message m = sample(MESSAGE_OPEN_STEP);
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const double infinite = INFINITY;

    size_t n = message_encode(bytes, sizeof bytes, &m);
    memcpy(bytes + MESSAGE_HEADER_BYTES + 20, &infinite, 8);
    ck_assert_str_eq(refusal(bytes, n), "a number that is not finite");
}

TEST(a_message_longer_than_any_is_refused)
{
    uint8_t bytes[MESSAGE_MAX_BYTES + 1] = {0x51, 0xE9, MESSAGE_VERSION, MESSAGE_PING, 0xF1, 0x03};

    ck_assert_str_eq(refusal(bytes, sizeof bytes), "longer than any message");
}

/* Control characters could drive the terminal that a sentence is shown on: of ASCII, Unicode's C1, and broken UTF-8. */
TEST(unprintable_bytes_of_a_sentence_are_sent_as_question_marks)
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
}

TEST(an_overlong_sentence_is_cut)
{
    struct message m = {.kind = MESSAGE_FAILED}, back;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;

    memset(m.failed.error.text, 'x', sizeof m.failed.error.text); /* not even terminated */
    size_t n = message_encode(bytes, sizeof bytes, &m);
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
