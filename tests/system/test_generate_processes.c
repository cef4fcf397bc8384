/* Tokens through client, daemon and worker as processes: what the worker says by itself, bit for bit; requests that
 * cannot be; jobs that end in the middle. */
#include "client/daemon/link.h"
#include "device/step/generate.h"
#include "proto/plan/host.h"
#include "proto/wire/segment.h"
#include "tests/kit/device/array_link.h"
#include "tests/kit/inprocess.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SEQ = 90, VOCABULARY = 256, SEED = 3 };

/* A client of a daemon named "gen". */
struct client {
    struct client_link link;
    struct segment data;
    struct message opened;
    struct error err;
    pid_t daemon;
};

static void attach(struct client *c)
{
    char directory[4096];

    ck_assert_int_eq(client_link_init(&c->link, &c->err), 0);
    ck_assert_int_eq(session_directory(directory, sizeof directory, "gen", &c->err), 0);
    ck_assert_int_eq(client_link_open(&c->link, directory, ROLE_CLIENT, &c->err), 0);
}

static struct message job_message(void)
{
    struct message m = {.kind = MESSAGE_JOB};

    m.job.goal.purpose = PLAN_GENERATE;
    m.job.fresh = true;
    m.job.seed = SEED;
    m.job.goal.batch = m.job.goal.n_parts = 1;
    m.job.goal.seq = SEQ;
    return m;
}

static int open_job(struct client *c, const struct message *m, const char *config)
{
    const int fd = open(config, O_RDONLY | O_CLOEXEC);
    int data;

    ck_assert_int_ge(fd, 0);
    client_link_send_fds(&c->link, m, &fd, 1);
    int rc = client_link_expect(&c->link, MESSAGE_JOB_OPENED, &c->opened, &data, &c->err);
    close(fd);
    if (rc == 0)
        rc = segment_attach(&c->data, data, c->opened.job_opened.data_bytes, SEGMENT_READ_WRITE, &c->err);
    return rc;
}

static const char *small(void)
{
    return processes_config("small.json", 3, 4, 64, SEQ + 10);
}

static void begin(struct client *c)
{
    const struct message m = job_message();

    memset(c, 0, sizeof *c);
    c->daemon = processes_daemon("gen", 1, NULL);
    attach(c);
    ck_assert_msg(open_job(c, &m, small()) == 0, "%s", c->err.text);
    for (uint32_t i = 0; i < SEQ; i++)
        ((uint32_t *)c->data.base)[i] = processes_token(i);
}

static void end(struct client *c)
{
    segment_close(&c->data);
    client_link_free(&c->link);
    ck_assert_int_eq(eps_stop("gen", NULL), 0);
    ck_assert_int_eq(processes_wait(c->daemon), 0);
}

static int generate(struct client *c, uint32_t first, uint32_t n)
{
    struct message m = {.kind = MESSAGE_GENERATE, .generate = {first, n}};

    client_link_send(&c->link, &m);
    return client_link_expect(&c->link, MESSAGE_GENERATED, &m, NULL, &c->err);
}

static int close_job(struct client *c)
{
    struct message m = {.kind = MESSAGE_CLOSE};

    client_link_send(&c->link, &m);
    segment_close(&c->data);
    return client_link_expect(&c->link, MESSAGE_CLOSE, &m, NULL, &c->err);
}

static const float *logits_of(const struct client *c)
{
    return (const float *)((const char *)c->data.base + plan_generate_logits(SEQ));
}

/* The same weights on a worker that is called as a function. */
struct direct {
    struct inprocess *ip;
    struct device_worker worker;
    struct ledger ledger;
    struct array_link link;
    float logits[VOCABULARY];
};

static void open_direct(struct direct *t)
{
    struct error err = {""};
    struct model_config config;
    char *text = processes_read(small());

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    free(text);
    const struct inprocess_options how = {
        .config = config, .batch = 1, .seq = SEQ, .n_parts = 1, .evaluate_only = true, .seed = SEED};
    const struct device_worker_options options = {
        .config = config,
        .ops = &device_cpu,
        .setting = {.backend = &plan_cpu,
                    .goal = {.purpose = PLAN_GENERATE, .seq = SEQ, .batch = 1},
                    .share_rows = 1,
                    .part_rows = 1,
                    .n_threads = 1},
        .choice = {.microbatch = 1, .n_weight_buffers = 2}};

    *t = (struct direct){0};
    ck_assert_msg(inprocess_open(&t->ip, &how, &err) == 0, "%s", err.text);
    ck_assert_msg(device_worker_init(&t->worker, &options, &t->ledger, &err) == 0, "%s", err.text);
    array_link_init(&t->link, &t->ip->model, t->ip->store.weights.base);
}

static void close_direct(struct direct *t)
{
    array_link_free(&t->link);
    device_worker_free(&t->worker);
    inprocess_close(t->ip);
}

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(processes_give_the_logits_of_one_process)
{
    static const uint32_t lengths[] = {70, 1, 1, 5, 1};
    struct client c;
    struct direct t;
    uint32_t first = 0;

    begin(&c);
    ck_assert_uint_eq(c.opened.job_opened.data_bytes, plan_generate_bytes(SEQ, VOCABULARY));
    ck_assert_uint_eq(c.opened.job_opened.resident_bytes, /* all but the positions, which are looked up on the host */
                      4 * (c.opened.job_opened.n_parameters - (SEQ + 10) * 64));
    open_direct(&t);
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; first += lengths[i++]) {
        const struct device_run run = {.ids = c.data.base, .first = first, .n = lengths[i], .logits = t.logits};
        ck_assert_msg(generate(&c, first, lengths[i]) == 0, "%s", c.err.text);
        ck_assert_int_eq(device_worker_generate(&t.worker, &run, &array_link, &t.link, &c.err), 0);
        ck_assert_mem_eq(logits_of(&c), t.logits, sizeof t.logits);
    }
    close_direct(&t);
    ck_assert_int_eq(close_job(&c), 0);
    end(&c);
}

static void on_status(void *user, const struct eps_status *status)
{
    snprintf(user, 32, "%s", status->state);
}

static void on_memory(void *user, const struct eps_memory *side)
{
    uint64_t *cache = user;

    for (size_t i = 0; i < side->n_rows; i++)
        if (side->worker && strcmp(side->rows[i].category, "cache") == 0)
            *cache += side->rows[i].current;
}

/* Keys and values of 90 tokens, in whole tiles of 64, of 3 layers of width 64. */
TEST(status_and_memory_show_it)
{
    struct client c;
    char state[32] = "";
    uint64_t cache = 0;

    begin(&c);
    ck_assert_int_eq(generate(&c, 0, 3), 0);
    ck_assert_int_eq(eps_status("gen", on_status, state, NULL), 0);
    ck_assert_str_eq(state, "generating");
    ck_assert_int_eq(eps_mem("gen", on_memory, &cache, NULL), 0);
    ck_assert_uint_eq(cache, 3 * 2 * 128 * 64 * 4);
    ck_assert_int_eq(close_job(&c), 0);
    end(&c);
}

/* Whatever comes out of place costs the client its session, and the daemon nothing. */
TEST(requests_that_do_not_fit_end_the_session)
{
    static const struct {
        uint32_t first, n;
    } cases[] = {{0, SEQ + 1}, {1, 2}, {4, 1}, {3, SEQ - 2}, {3, UINT32_MAX}, {UINT32_MAX, 1}};
    struct client c;
    struct message m = job_message();

    begin(&c);
    for (size_t i = 0; i <= sizeof cases / sizeof *cases; i++) {
        ck_assert_int_eq(generate(&c, 0, 3), 0);
        if (i < sizeof cases / sizeof *cases) {
            ck_assert_int_eq(generate(&c, cases[i].first, cases[i].n), -EIO);
            ck_assert_msg(strstr(c.err.text, "do not follow"), "%s", c.err.text);
        } else {
            client_link_send(&c.link, &(struct message){.kind = MESSAGE_EVALUATE, .evaluate = {.n_rows = 1}});
            ck_assert_int_eq(client_link_next(&c.link, &m, NULL, &c.err), -EIO);
            ck_assert_msg(strstr(c.err.text, "does not fit"), "%s", c.err.text);
            m = job_message();
        }
        segment_close(&c.data);
        client_link_free(&c.link);
        attach(&c);
        ck_assert_msg(open_job(&c, &m, small()) == 0, "%s", c.err.text);
    }
    end(&c);
}

TEST(a_token_outside_the_vocabulary_ends_the_job_with_a_word)
{
    struct client c;
    const struct message m = job_message();

    begin(&c);
    ((uint32_t *)c.data.base)[7] = VOCABULARY;
    ck_assert_int_eq(generate(&c, 0, 7), 0);
    ck_assert_int_ne(generate(&c, 7, 1), 0);
    ck_assert_msg(strstr(c.err.text, "token id 256 at position 7: the vocabulary has 256"), "%s", c.err.text);
    segment_close(&c.data);
    ck_assert_msg(open_job(&c, &m, small()) == 0, "%s", c.err.text);
    ck_assert_int_eq(generate(&c, 0, 7), 0);
    ck_assert_int_eq(close_job(&c), 0);
    end(&c);
}

TEST(jobs_that_cannot_generate_are_refused)
{
    struct client c;
    struct message m[2] = {job_message(), job_message()};

    begin(&c);
    ck_assert_int_eq(close_job(&c), 0);
    m[0].job.goal.batch = 2;
    m[1].job.goal.batch = m[1].job.goal.n_parts = 2;
    for (size_t i = 0; i < 2; i++) {
        ck_assert_int_eq(open_job(&c, &m[i], small()), -EINVAL);
        ck_assert_msg(strstr(c.err.text, "a job that generates"), "%s", c.err.text);
    }
    m[0] = job_message();
    m[0].job.goal.seq = SEQ + 11;
    ck_assert_int_eq(open_job(&c, &m[0], small()), -EINVAL);
    ck_assert_msg(strstr(c.err.text, "positions"), "%s", c.err.text);
    m[0].job.goal.seq = SEQ; /* a block of 277 MB, where the worker has 256 MiB */
    ck_assert_int_eq(open_job(&c, &m[0], processes_config("large.json", 2, 2, 2400, 128)), -ENOSPC);
    ck_assert_msg(strstr(c.err.text, "needs at least") && strstr(c.err.text, "to generate"), "%s", c.err.text);
    end(&c);
}

/* The prompt of a model that takes a while: the worker is in the middle of it when its job is closed, or its client
 * goes; in both cases the next job finds it free. */
TEST_EACH(a_job_closed_in_mid_run_leaves_the_worker_free, 2)
{
    struct client c;
    struct message m = job_message();
    const char *config = processes_config("slow.json", 12, 2, 64, 4096);

    begin(&c);
    ck_assert_int_eq(close_job(&c), 0);
    m.job.goal.seq = 4096;
    ck_assert_msg(open_job(&c, &m, config) == 0, "%s", c.err.text);
    client_link_send(&c.link, &(struct message){.kind = MESSAGE_GENERATE, .generate = {0, 4096}});
    if (_i == 0) {
        ck_assert_msg(close_job(&c) == 0, "%s", c.err.text);
    } else {
        segment_close(&c.data);
        client_link_free(&c.link);
        attach(&c);
    }
    m.job.goal.seq = SEQ;
    ck_assert_msg(open_job(&c, &m, small()) == 0, "%s", c.err.text);
    ck_assert_int_eq(generate(&c, 0, SEQ), 0);
    ck_assert_int_eq(close_job(&c), 0);
    end(&c);
}
