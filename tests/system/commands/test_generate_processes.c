/* Tokens through client, daemon and worker as processes: what the worker says by itself, bit for bit; requests that
 * cannot be; jobs that end in the middle. */
#include "client/daemon/link.h"
#include "proto/step/generate.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/segment.h"
#include "tests/kit/command.h"
#include "tests/kit/device/array_link.h"
#include "tests/kit/driver.h"
#include "tests/kit/inprocess/inprocess.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQ = 90, VOCABULARY = 256, SEED = 3 };

/* A client of a daemon named "gen", with one worker. */
struct client {
    struct client_link link;
    struct segment data;
    struct message opened;
    struct error err;
    pid_t daemon;
};

static const struct message job = {.kind = MESSAGE_JOB,
                                   .job = {.goal = {.purpose = PLAN_GENERATE, .batch = 1, .n_parts = 1, .seq = SEQ},
                                           .fresh = true,
                                           .seed = SEED}};

static int open_job(struct client *c, const struct message *m, const char *config)
{
    char *const text = processes_read(processes_path(config));
    const int fd = segment_seal(config, text, strlen(text), &c->err);
    int data;

    free(text);
    ck_assert_int_ge(fd, 0);
    client_link_send_fds(&c->link, m, &fd, 1);
    int rc = client_link_expect(&c->link, MESSAGE_JOB_OPENED, &c->opened, &data, &c->err);
    close(fd);
    if (rc == 0)
        rc = segment_attach(&c->data, data, c->opened.job_opened.data_bytes, SEGMENT_READ_WRITE, &c->err);
    return rc;
}

static void open_small(struct client *c)
{
    ck_assert_msg(open_job(c, &job, "small.json") == 0, "%s", c->err.text);
}

static void setup(void)
{
    processes_setup();
    processes_config("small.json", 3, 4, 64, SEQ + 10);
    processes_config("large.json", 2, 2, 2400, 128); /* a block of 277 MB, where the worker has 256 MiB */
    processes_config("slow.json", 12, 2, 64, 4096);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

static void begin(struct client *c)
{
    *c = (struct client){.daemon = processes_daemon("gen", 1, NULL)};
    driver_attach(&c->link, "gen", ROLE_CLIENT);
    open_small(c);
    for (uint32_t i = 0; i < SEQ; i++)
        ((uint32_t *)c->data.base)[i] = processes_token(i);
}

static void leave(struct client *c)
{
    segment_close(&c->data);
    client_link_free(&c->link);
}

static void end(struct client *c)
{
    leave(c);
    ck_assert_int_eq(eps_stop("gen", NULL), 0);
    ck_assert_int_eq(processes_wait(c->daemon), 0);
}

static struct message of_row_0(uint32_t first, uint32_t n)
{
    return (struct message){.kind = MESSAGE_GENERATE, .generate = {1, {{.first = first, .n = n}}}};
}

static int generate(struct client *c, uint32_t first, uint32_t n)
{
    struct message m = of_row_0(first, n);

    client_link_send(&c->link, &m);
    return client_link_expect(&c->link, MESSAGE_GENERATED, &m, NULL, &c->err);
}

static void close_job(struct client *c)
{
    struct message m = {.kind = MESSAGE_CLOSE};

    client_link_send(&c->link, &m);
    segment_close(&c->data);
    ck_assert_msg(client_link_expect(&c->link, MESSAGE_CLOSE, &m, NULL, &c->err) == 0, "%s", c->err.text);
}

/* The same weights on a worker that is called as a function. */
static void open_direct(struct inprocess **ip, struct device_worker *worker)
{
    static struct ledger ledger;
    struct error err = {""};
    char *text = processes_read("small.json");
    struct inprocess_options how = {.batch = 1, .seq = SEQ, .n_parts = 1, .evaluate_only = true, .seed = SEED};
    struct device_worker_options options = {.ops = &device_cpu,
                                            .setting = {.backend = &plan_cpu,
                                                        .goal = {.purpose = PLAN_GENERATE, .seq = SEQ, .batch = 1},
                                                        .share_rows = 1,
                                                        .part_rows = 1,
                                                        .n_threads = 1},
                                            .choice = {.microbatch = 1, .n_weight_buffers = 2}};

    ck_assert_msg(model_config_parse(&how.config, text, strlen(text), &err) == 0, "%s", err.text);
    free(text);
    options.config = how.config;
    ck_assert_msg(inprocess_open(ip, &how, &err) == 0, "%s", err.text);
    ck_assert_msg(device_worker_init(worker, &options, &ledger, &err) == 0, "%s", err.text);
}

/* The data segment has 90 tokens, in whole lines of 64 bytes, and a row of logits. Of the model all but the positions,
 * which are looked up on the host, is resident. The cache has keys and values of 90 tokens, in whole tiles of 64, of 3
 * layers of width 64. */
TEST(processes_give_the_logits_of_one_process_and_show_what_they_do)
{
    static const uint32_t lengths[] = {70, 1, 1, 5, 1};
    struct device_worker worker;
    struct array_link link;
    struct inprocess *ip;
    struct client c;
    float logits[VOCABULARY];

    begin(&c);
    ck_assert_uint_eq(c.opened.job_opened.data_bytes, 384 + VOCABULARY * 4);
    ck_assert_uint_eq(c.opened.job_opened.resident_bytes, 4 * (c.opened.job_opened.n_parameters - (SEQ + 10) * 64));
    open_direct(&ip, &worker);
    array_link_init(&link, &ip->model, ip->store.weights.base);
    for (uint32_t i = 0, first = 0; i < COUNT(lengths); first += lengths[i++]) {
        const struct plan_tokens row = {.first = first, .n = lengths[i]};
        const struct device_run run = {.ids = c.data.base, .rows = &row, .n_rows = 1, .logits = logits};
        ck_assert_msg(generate(&c, first, lengths[i]) == 0, "%s", c.err.text);
        ck_assert_int_eq(device_worker_generate(&worker, &run, &array_link, &link, &c.err), 0);
        ck_assert_mem_eq((const char *)c.data.base + plan_generate_logits(&(struct plan_goal){.batch = 1, .seq = SEQ}),
                         logits, sizeof logits);
    }
    array_link_free(&link);
    device_worker_free(&worker);
    inprocess_close(ip);
    json_t *status = expect_json("eps status gen --json", 0), *memory = expect_json("eps mem gen --json", 0);
    ck_assert_str_eq(json_string_value(json_at(status, "state")), "generating");
    ck_assert_double_eq(json_number_at(memory, "workers.0.categories.cache.current"), 3 * 2 * 128 * 64 * 4);
    json_decref(status), json_decref(memory);
    close_job(&c);
    end(&c);
}

/* What was run at a position, and after it, is forgotten when another token is run there: 70 tokens as they were, then
 * 20 others from position 30 on, in which a tile and a run begin elsewhere. */
TEST(a_row_that_goes_back_gives_the_logits_of_one_that_did_not)
{
    struct client c;
    float straight[VOCABULARY];
    uint32_t *ids;

    begin(&c);
    ids = c.data.base;
    ck_assert_msg(generate(&c, 0, 30) == 0, "%s", c.err.text);
    for (uint32_t i = 30; i < 50; i++)
        ids[i] = processes_token(i + 500);
    ck_assert_int_eq(generate(&c, 30, 20), 0);
    memcpy(straight, (const char *)c.data.base + plan_generate_logits(&(struct plan_goal){.batch = 1, .seq = SEQ}),
           sizeof straight);
    for (uint32_t i = 30; i < 70; i++)
        ids[i] = processes_token(i);
    ck_assert_int_eq(generate(&c, 30, 40), 0);
    ck_assert_mem_ne((const char *)c.data.base + plan_generate_logits(&(struct plan_goal){.batch = 1, .seq = SEQ}),
                     straight, sizeof straight);
    for (uint32_t i = 30; i < 50; i++)
        ids[i] = processes_token(i + 500);
    ck_assert_int_eq(generate(&c, 30, 20), 0);
    ck_assert_mem_eq((const char *)c.data.base + plan_generate_logits(&(struct plan_goal){.batch = 1, .seq = SEQ}),
                     straight, sizeof straight);
    close_job(&c);
    end(&c);
}

/* Whatever comes out of place costs the client its session, and the daemon nothing. */
TEST(requests_that_do_not_fit_end_the_session)
{
    static const struct message wrongs[] = {
        {.kind = MESSAGE_GENERATE, .generate = {1, {{0, 0, SEQ + 1}}}},
        {.kind = MESSAGE_GENERATE, .generate = {1, {{0, 4, 1}}}},
        {.kind = MESSAGE_GENERATE, .generate = {1, {{0, 3, SEQ - 2}}}},
        {.kind = MESSAGE_GENERATE, .generate = {1, {{0, 3, UINT32_MAX}}}},
        {.kind = MESSAGE_GENERATE, .generate = {1, {{0, UINT32_MAX, 1}}}},
        {.kind = MESSAGE_EVALUATE, .evaluate = {.n_rows = 1, .n_tokens = 1}},
    };
    struct message m;
    struct client c;

    begin(&c);
    for (int i = 0; i < COUNT(wrongs); i++) {
        ck_assert_int_eq(generate(&c, 0, 3), 0);
        client_link_send(&c.link, &wrongs[i]);
        ck_assert_int_eq(client_link_next(&c.link, &m, NULL, &c.err), -EIO);
        ck_assert_holds(c.err.text, wrongs[i].kind == MESSAGE_GENERATE ? "do not follow" : "does not fit");
        leave(&c);
        driver_attach(&c.link, "gen", ROLE_CLIENT);
        open_small(&c);
    }
    end(&c);
}

/* Of three rows: the daemon counts each row's tokens, and passes all to one worker. A cache has keys and values of 90
 * tokens, in whole tiles of 64, of 3 layers of width 64; the segment 3 rows of ids, in whole lines, and of logits. */
TEST(rows_that_advance_together_give_the_logits_of_jobs_of_their_own)
{
    static const struct plan_tokens passes[][3] = {{{0, 0, 70, 0}, {1, 0, 5, 0}, {2, 0, 30, 0}},
                                                   {{0, 70, 1, 0}, {1, 5, 1, 0}, {2, 0, 0, 0}},
                                                   {{0, 0, 4, 0}, {0, 70, 2, 0}, {2, 30, 9, 0}}};
    float *const got = calloc(COUNT(passes) * 3 * VOCABULARY, sizeof *got), *to = got;
    struct message m = job;
    struct client c;

    begin(&c);
    close_job(&c);
    m.job.goal.batch = 3;
    ck_assert_msg(open_job(&c, &m, "small.json") == 0, "%s", c.err.text);
    ck_assert_uint_eq(c.opened.job_opened.choice.microbatch, 3);
    ck_assert_uint_eq(c.opened.job_opened.data_bytes, 1088 + 3 * 256 * 4);
    json_t *memory = expect_json("eps mem gen --json", 0);
    ck_assert_double_eq(json_number_at(memory, "workers.0.categories.cache.current"), 3 * (3 * 2 * 128 * 64 * 4));
    ck_assert_double_eq(json_number_at(memory, "host.categories.data.current"), 1088 + 3 * 256 * 4);
    json_decref(memory);
    for (uint32_t i = 0; i < 3 * SEQ; i++)
        ((uint32_t *)c.data.base)[i] = processes_token(i < 2 * SEQ ? i % SEQ : i); /* the first two rows are equal */
    for (int p = 0; p < COUNT(passes); p++, to += 3 * VOCABULARY) {
        m = (struct message){.kind = MESSAGE_GENERATE, .generate.n_rows = 3};
        memcpy(m.generate.rows, passes[p], sizeof passes[p]);
        client_link_send(&c.link, &m);
        ck_assert_int_eq(client_link_expect(&c.link, MESSAGE_GENERATED, &m, NULL, &c.err), 0);
        memcpy(to, (const char *)c.data.base + plan_generate_logits(&(struct plan_goal){.batch = 3, .seq = SEQ}),
               3 * VOCABULARY * sizeof *to);
    }
    close_job(&c);
    for (uint32_t row = 0; row < 3; row++) {
        open_small(&c);
        for (uint32_t i = 0; i < SEQ; i++)
            ((uint32_t *)c.data.base)[i] = processes_token(row < 2 ? i : 2 * SEQ + i);
        for (int p = 0; p < COUNT(passes); p++) {
            const struct plan_tokens *tokens = &passes[p][row];
            if (tokens->from != row) /* what the other row had run of the same tokens */
                ck_assert_int_eq(generate(&c, 0, 70), 0);
            if (tokens->n > 0)
                ck_assert_int_eq(generate(&c, tokens->first, tokens->n), 0);
            if (tokens->n > 0)
                ck_assert_mem_eq(got + (size_t)(3 * p + (int)row) * VOCABULARY,
                                 (const char *)c.data.base +
                                     plan_generate_logits(&(struct plan_goal){.batch = 1, .seq = SEQ}),
                                 VOCABULARY * sizeof *got);
        }
        close_job(&c);
    }
    free(got);
    end(&c);
}

/* The request ends the session, after which there is a new one without a job. */
static void check_does_not_follow(struct client *c, const struct message *request)
{
    struct message m;

    client_link_send(&c->link, request);
    ck_assert_int_eq(client_link_next(&c->link, &m, NULL, &c->err), -EIO);
    ck_assert_holds(c->err.text, "do not follow");
    leave(c);
    driver_attach(&c->link, "gen", ROLE_CLIENT);
}

/* Of 4,096 positions a row's cache takes 24 MiB, so the worker's 256 MiB hold about ten of 64 rows. */
TEST(a_job_gets_as_many_rows_as_its_worker_has_memory_for)
{
    struct message m = job;
    struct client c;

    begin(&c);
    close_job(&c);
    m.job.goal.batch = PLAN_GENERATE_ROWS, m.job.goal.seq = 4096;
    ck_assert_msg(open_job(&c, &m, "slow.json") == 0, "%s", c.err.text);
    const uint32_t rows = c.opened.job_opened.choice.microbatch;
    json_t *memory = expect_json("eps mem gen --json", 0);
    ck_assert(rows >= 8 && rows <= 10);
    ck_assert_double_eq(json_number_at(memory, "workers.0.categories.cache.current"), (double)rows * (24 << 20));
    ck_assert_double_le(json_number_at(memory, "workers.0.current"), 256 << 20);
    json_decref(memory);
    m = (struct message){.kind = MESSAGE_GENERATE, .generate.n_rows = rows + 1};
    for (uint32_t i = 0; i <= rows; i++)
        m.generate.rows[i] = (struct plan_tokens){.from = i, .n = 1};
    check_does_not_follow(&c, &m);
    open_small(&c);
    end(&c);
}

/* After four tokens of row 0 and two of row 1. */
TEST(requests_of_several_rows_that_do_not_fit_end_the_session)
{
    static const struct message wrongs[] = {
        {.kind = MESSAGE_GENERATE, .generate = {4, {{0, 4, 1}, {1, 2, 1}, {2, 0, 1}, {3, 0, 1}}}},
        {.kind = MESSAGE_GENERATE, .generate = {2, {{0, 4, 1}, {1, 3, 1}}}},
        {.kind = MESSAGE_GENERATE, .generate = {2, {{0, 4, 1}, {0, 5, 1}}}},
        {.kind = MESSAGE_GENERATE, .generate = {2, {{0, 4, 1}, {0, 4, SEQ}}}},
        {.kind = MESSAGE_GENERATE, .generate = {3, {{0, 4, 1}, {2, 0, 1}, {1, 0, 1}}}},
    };
    struct message m, begun = {.kind = MESSAGE_GENERATE, .generate = {2, {{0, 0, 4}, {1, 0, 2}}}}, three = job;
    struct client c;

    begin(&c);
    close_job(&c);
    three.job.goal.batch = 3;
    for (int i = 0; i < COUNT(wrongs); i++) {
        ck_assert_msg(open_job(&c, &three, "small.json") == 0, "%s", c.err.text);
        client_link_send(&c.link, &begun);
        ck_assert_int_eq(client_link_expect(&c.link, MESSAGE_GENERATED, &m, NULL, &c.err), 0);
        check_does_not_follow(&c, &wrongs[i]);
    }
    open_small(&c);
    end(&c);
}

TEST(a_token_outside_the_vocabulary_ends_the_job_with_a_word)
{
    struct client c;

    begin(&c);
    ((uint32_t *)c.data.base)[7] = VOCABULARY;
    ck_assert_int_eq(generate(&c, 0, 7), 0);
    ck_assert_int_ne(generate(&c, 7, 1), 0);
    ck_assert_holds(c.err.text, "token id 256 at position 7");
    segment_close(&c.data);
    open_small(&c);
    ck_assert_int_eq(generate(&c, 0, 7), 0);
    close_job(&c);
    end(&c);
}

TEST(jobs_that_cannot_generate_are_refused)
{
    static const struct {
        uint32_t batch, n_parts, seq;
        const char *config;
        int rc;
        const char *words[2];
    } cases[] = {
        {PLAN_GENERATE_ROWS + 1, 1, SEQ, "small.json", -EINVAL, {"a job that generates", "64 rows"}},
        {2, 2, SEQ, "small.json", -EINVAL, {"a job that generates", ""}},
        {1, 1, SEQ + 11, "small.json", -EINVAL, {"positions", ""}},
        {1, 1, SEQ, "large.json", -ENOSPC, {"needs at least", "to generate"}},
    };
    struct message m = job;
    struct client c;

    begin(&c);
    close_job(&c);
    for (int i = 0; i < COUNT(cases); i++) {
        m.job.goal.batch = cases[i].batch, m.job.goal.n_parts = cases[i].n_parts, m.job.goal.seq = cases[i].seq;
        ck_assert_int_eq(open_job(&c, &m, cases[i].config), cases[i].rc);
        ck_assert_holds(c.err.text, cases[i].words[0], cases[i].words[1]);
    }
    end(&c);
}

/* The prompt of a model that takes a while: the worker is in the middle of it when its job is closed, or its client
 * goes; in both cases the next job finds it free. */
TEST_EACH(a_job_closed_in_mid_run_leaves_the_worker_free, 2)
{
    struct message m = job;
    struct client c;

    begin(&c);
    close_job(&c);
    m.job.goal.seq = 4096;
    ck_assert_msg(open_job(&c, &m, "slow.json") == 0, "%s", c.err.text);
    client_link_send(&c.link, &(struct message){.kind = MESSAGE_GENERATE, .generate = {1, {{0, 0, 4096}}}});
    if (_i == 0) {
        close_job(&c);
    } else {
        leave(&c);
        driver_attach(&c.link, "gen", ROLE_CLIENT);
    }
    open_small(&c);
    ck_assert_int_eq(generate(&c, 0, SEQ), 0);
    close_job(&c);
    end(&c);
}
