/* The compute thread is assigned a job whose model comes as config.json. It believes nothing of it that it has not
 * checked, and a refusal leaves it ready for the next job. */
#include "device/worker/compute.h"

#include "proto/plan/memory/data.h"
#include "proto/wire/segment.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>
#include <unistd.h>

static const char good_config[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 16, \"n_layer\": 2, "
                                  "\"n_head\": 2, \"n_embd\": 16}";
enum { BATCH = 2, SEQ = 8, N_SLOTS = 2 };

static struct mailbox box;
static sem_t posted;
static struct compute_options options;
static struct model model;

static void on_out(void *context)
{
    (void)context;
    sem_post(&posted);
}

static void setup(void)
{
    struct model_config config;
    pthread_t thread;

    ck_assert_int_eq(model_config_parse(&config, good_config, strlen(good_config), NULL), 0);
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    ck_assert_int_eq(sem_init(&posted, 0, 0), 0);
    mailbox_init(&box, on_out, NULL);
    options = (struct compute_options){.device = {.ops = &device_cpu, .name = "cpu", .budget = 64 << 20}, .box = &box};
    ck_assert_int_eq(pthread_create(&thread, NULL, compute_run, &options), 0);
    ck_assert_int_eq(pthread_detach(thread), 0);
}

SUITE_FIXTURE(setup, NULL) /* the thread works for ever: it ends with the test's process */

/* What the thread says, but for its ledger. */
static struct message answer(void)
{
    struct message m;

    for (;;) {
        while (sem_wait(&posted))
            ;
        if (mailbox_collect(&box, &m) && m.kind != MESSAGE_LEDGER)
            return m;
    }
}

/* A descriptor whose segment stands for itself. */
static int segment_of(size_t bytes, const char *text, size_t n)
{
    struct segment segment;

    ck_assert_int_eq(segment_create(&segment, "test", bytes, SEGMENT_READ_WRITE, NULL), 0);
    if (n)
        memcpy(segment.base, text, n);
    const int fd = fcntl(segment.fd, F_DUPFD_CLOEXEC, 0);
    segment_close(&segment);
    return fd;
}

static struct message assign(int config, uint32_t config_bytes)
{
    const struct message m = {.kind = MESSAGE_ASSIGN,
                              .assign = {.config_bytes = config_bytes,
                                         .goal = {.batch = BATCH, .seq = SEQ, .n_parts = 1},
                                         .max_parts = 1,
                                         .choice = {.microbatch = 1, .n_weight_buffers = 1},
                                         .n_slots = N_SLOTS,
                                         .n_threads = 1,
                                         .takes_turns = true,
                                         .weights_bytes = model.segment_n * sizeof(float)}};
    const int fds[] = {
        segment_of(model.segment_n * sizeof(float), NULL, 0),
        segment_of((1 + N_SLOTS) * model_slot_bytes(&model, NUMBER_FP32), NULL, 0),
        segment_of(plan_data_of(&(struct plan_goal){.batch = BATCH, .seq = SEQ}, model.config.n_labels).bytes, NULL, 0),
        config};

    ck_assert(mailbox_deliver(&box, &m, fds, COUNT(fds)));
    const struct message said = answer();
    for (int i = 0; i < COUNT(fds); i++)
        ck_assert_msg(fcntl(fds[i], F_GETFD) < 0, "descriptor %d is still open", i);
    return said;
}

static void expect_assigned(void)
{
    const struct plan_setting setting = {.backend = &plan_cpu,
                                         .share_rows = BATCH,
                                         .part_rows = BATCH,
                                         .goal = {.batch = BATCH, .seq = SEQ},
                                         .n_threads = 1};
    const struct plan_choice choice = {.microbatch = 1, .n_weight_buffers = 1};
    const uint32_t n = (uint32_t)strlen(good_config);
    struct plan plan;

    plan_lay_out(&plan, &model, &setting, &choice);
    const struct message m = assign(segment_of(n, good_config, n), n);
    ck_assert_msg(m.kind == MESSAGE_ASSIGNED, "%s", m.refused.error.text);
    ck_assert_uint_eq(m.assigned.arena_bytes, plan.arena_bytes);
}

TEST(a_model_comes_as_config_json)
{
    expect_assigned();
    expect_assigned(); /* without a word in between, as a daemon that lost its client */
}

static const struct {
    const char *text;
    uint32_t more; /* bytes that are promised beyond the text */
    const char *sentence;
} hostile[] = {
    {"{", 0, "config.json"},
    {"", 1, "config.json"},
    {"[]", 0, "config.json"},
    {good_config, 7, "config.json"}, /* the segment's zeros */
    {good_config, 1 << 16, "config.json came without its "},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 16, \"n_layer\": 2, \"n_head\": 3, \"n_embd\": "
     "16}",
     0, "n_head"},
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 16, \"n_layer\": 5000, \"n_head\": 2, "
     "\"n_embd\": 16}",
     0, "n_layer"},
    {"{\"model_type\": \"gpt3\"}", 0, "model_type"},
    /* Another model than the daemon's segments are of. */
    {"{\"model_type\": \"gpt2\", \"vocab_size\": 9999, \"n_positions\": 16, \"n_layer\": 2, \"n_head\": 2, \"n_embd\": "
     "16}",
     0, "has no room for the model's largest unit"},
};

TEST_EACH(a_config_that_cannot_be_is_refused_and_the_next_job_is_taken, COUNT(hostile))
{
    const size_t n = strlen(hostile[_i].text);
    const struct message m = assign(segment_of(n + 1, hostile[_i].text, n), (uint32_t)n + hostile[_i].more);

    ck_assert_int_eq(m.kind, MESSAGE_REFUSED);
    ck_assert_msg(strstr(m.refused.error.text, hostile[_i].sentence) != NULL, "'%s' is not in '%s'",
                  hostile[_i].sentence, m.refused.error.text);
    expect_assigned();
}

TEST(a_config_that_is_no_file_is_refused)
{
    int ends[2];

    ck_assert_int_eq(pipe(ends), 0);
    const struct message m = assign(ends[0], 10);
    ck_assert_int_eq(m.kind, MESSAGE_REFUSED);
    ck_assert_str_eq(m.refused.error.text, "config.json came without its 10 bytes");
    close(ends[1]);
    expect_assigned();
}

static const char classifier[] = "{\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"], "
                                 "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 16, "
                                 "\"intermediate_size\": 20, \"vocab_size\": 64}";

/* The data segment is zeros. */
TEST(a_job_whose_rows_cannot_be_fails_and_the_next_one_is_taken)
{
    static const struct {
        struct message m;
        const char *sentence;
    } wrongs[] = {
        {{.kind = MESSAGE_SHARE, .share = {.n_valid = 2, .n_tokens = SEQ, .n = 1}}, "row 0 has 0 tokens"},
        {{.kind = MESSAGE_EVALUATE, .evaluate = {.n_rows = 2, .n_tokens = UINT32_MAX}}, "rows of 4294967295 tokens"},
    };
    const uint32_t n = (uint32_t)strlen(classifier);
    struct model_config config;

    model_free(&model);
    ck_assert_int_eq(model_config_parse(&config, classifier, n, NULL), 0);
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    for (int i = 0; i < COUNT(wrongs); i++) {
        ck_assert_int_eq(assign(segment_of(n, classifier, n), n).kind, MESSAGE_ASSIGNED);
        ck_assert(mailbox_deliver(&box, &wrongs[i].m, NULL, 0));
        const struct message m = answer();
        ck_assert_int_eq(m.kind, MESSAGE_FAILED);
        ck_assert_holds(m.failed.error.text, wrongs[i].sentence);
    }
}
