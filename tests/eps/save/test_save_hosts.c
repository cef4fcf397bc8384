/* One checkpoint of several hosts, whose daemons' parts for it are all in this process. A seed draws in which order
 * they do what they have to do, and how late each hears what another has said. */
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "eps/relay/relay.h"
#include "eps/save/save.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 3, STEP = 5, WORDS = 64, SEEDS = 15 };

SUITE_TIMEOUT(60)
SUITE_FIXTURE(processes_setup, processes_remove)

struct host {
    struct store_fixture fixture;
    uv_loop_t loop;
    struct peers peers;
    struct job job;
    struct saves saves;
    struct updater *updater;
    struct host_message words[WORDS]; /* (n_words) on their way to it, oldest first; from: */
    uint32_t from[WORDS];
    bool is_read; /* host 0 fetches its notes: */
    struct host_message runs;
    const void *notes; /* that it has told of; they can be read until HOST_SAVED is here */
    uint32_t n_words;
};

struct cluster {
    struct host hosts[MOST];
    uint32_t n;
    uint32_t seed;
    bool is_slow;   /* no fetch ends */
    unsigned heard; /* set of 1 << enum host_message_kind */
};

static uint32_t draw(struct cluster *c, uint32_t n)
{
    c->seed = c->seed * 1664525 + 1013904223;
    return (c->seed >> 16) % n;
}

static void on_wake(uv_async_t *wake)
{
    (void)wake;
}

static void on_done(void *context)
{
    (void)context;
}

static int open_directory(const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    return fd;
}

static void set_step(struct host *h, uint64_t step)
{
    h->job.step = step;
    for (uint32_t u = 0; u < h->fixture.model.n_units; u++)
        h->fixture.store.updates[u] = h->job.store.updates[u] = step;
}

/* A job that rests at STEP, with no step opened yet: the relay knows no units. */
static void open_host(struct host *h, uint32_t host, uint32_t n, const char *out)
{
    static char config[] = "{}";
    const struct relay_config relay = {.first_step = STEP, .n_parts = 1, .n_slots = 2, .replay = true};
    struct error err = {""};

    store_fixture_open_host(&h->fixture, host, n);
    ck_assert_int_eq(uv_loop_init(&h->loop), 0);
    h->peers = (struct peers){.loop = &h->loop, .host = host, .n_hosts = n};
    ck_assert_int_eq(uv_async_init(&h->loop, &h->peers.wake, on_wake), 0);
    h->job = (struct job){.peers = &h->peers,
                          .backend = plan_backend_find("cpu"),
                          .state = JOB_RESTING,
                          .request = {.job = {.goal = {.purpose = PLAN_TRAIN, .n_parts = 1}}},
                          .config = {.base = config},
                          .config_bytes = 2,
                          .output = open_directory(out),
                          .trace_file = -1,
                          .model = h->fixture.model,
                          .store = h->fixture.store,
                          .facts = {.has_masters = n == 1},
                          .aligned = true,
                          .lent = n > 1,
                          .own_first = h->fixture.store.options.own_first,
                          .n_own = h->fixture.store.options.n_own};
    set_step(h, STEP);
    ck_assert_int_eq(updater_start(&h->peers.updater, &h->job.store, 1, on_done, NULL), 0);
    ck_assert_int_eq(relay_open(&h->job.relay, &relay), 0);
    h->saves.job = &h->job;
    ck_assert_int_eq(save_init(&h->saves, &err), 0);
}

static void close_host(struct host *h)
{
    ck_assert_ptr_null(h->saves.first);
    save_free(&h->saves);
    updater_stop(h->peers.updater);
    relay_close(h->job.relay);
    close(h->job.output);
    uv_close((uv_handle_t *)&h->peers.wake, NULL);
    uv_run(&h->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&h->loop), 0);
    store_fixture_close(&h->fixture);
}

static void open_cluster(struct cluster *c, uint32_t n, uint32_t seed, const char *out)
{
    *c = (struct cluster){.n = n, .seed = seed};
    outputs_make(out);
    for (uint32_t h = 0; h < n; h++)
        open_host(&c->hosts[h], h, n, out);
}

static void close_cluster(struct cluster *c)
{
    for (uint32_t h = 0; h < c->n; h++)
        close_host(&c->hosts[h]);
}

static void deliver(struct cluster *c, uint32_t to)
{
    struct host *h = &c->hosts[to];
    const struct host_message word = h->words[0];
    const uint32_t from = h->from[0];

    c->heard |= 1u << word.kind;
    h->n_words--;
    memmove(h->words, h->words + 1, h->n_words * sizeof *h->words);
    memmove(h->from, h->from + 1, h->n_words * sizeof *h->from);
    if (word.kind != HOST_RUNS)
        save_on_word(&h->saves, from, &word);
    else if (save_wants_notes(&h->saves, word.id) && save_may_have_notes(&h->saves, word.bytes))
        c->hosts[from].is_read = true, c->hosts[from].runs = word;
}

/* Host 0 has fetched the notes. */
static void fetched(struct cluster *c, uint32_t from)
{
    struct host *h = &c->hosts[from];
    void *notes = malloc(h->runs.bytes);

    memcpy(notes, h->notes, h->runs.bytes);
    h->is_read = false;
    if (!job_is_open(&c->hosts[0].job))
        free(notes);
    else
        save_on_notes(&c->hosts[0].saves, h->runs.id, notes, h->runs.bytes);
}

static bool is_fetching(const struct cluster *c)
{
    bool any = false;

    for (uint32_t h = 0; h < c->n; h++)
        any |= c->hosts[h].is_read;
    return any;
}

static void say(struct cluster *c, uint32_t from, uint32_t to, const struct host_message *word)
{
    struct host *h = &c->hosts[to];

    ck_assert_uint_lt(h->n_words, WORDS);
    h->from[h->n_words] = from;
    h->words[h->n_words++] = *word;
}

static void take_words(struct cluster *c, uint32_t from)
{
    struct host *h = &c->hosts[from];
    struct host_message word;

    while (job_is_open(&h->job) && save_next_word(&h->saves, &word, &h->notes, from > 0 || !is_fetching(c)))
        for (uint32_t to = 0; to < c->n; to++)
            if (to != from && (from == 0 || to == 0))
                say(c, from, to, &word);
}

/* One iteration of a host's loop, as drain_events has it. */
static void turn(struct cluster *c, uint32_t host)
{
    struct host *h = &c->hosts[host];
    struct event event;

    uv_run(&h->loop, UV_RUN_NOWAIT);
    while (event_take(&h->peers, &event)) {
        ck_assert_int_eq(event.kind, EVENT_WRITTEN);
        save_on_written(&h->saves);
    }
    take_words(c, host);
    save_pump(&h->saves);
    take_words(c, host);
}

static bool is_idle(const struct cluster *c)
{
    for (uint32_t h = 0; h < c->n; h++)
        if (c->hosts[h].saves.first || c->hosts[h].n_words)
            return false;
    return !is_fetching(c);
}

static void act(struct cluster *c)
{
    const uint32_t h = draw(c, c->n);

    if (c->hosts[h].n_words && draw(c, 2))
        deliver(c, h);
    else if (c->hosts[h].is_read && !c->is_slow && draw(c, 2))
        fetched(c, h);
    else
        turn(c, h);
    sched_yield(); /* the writers are threads */
}

/* As drain_events has it, while the job ends. */
static void act_ending(struct cluster *c)
{
    for (uint32_t h = 0; h < c->n; h++)
        if (c->hosts[h].job.state == JOB_ENDING)
            save_on_job_over(&c->hosts[h].saves);
    act(c);
}

/* Until nothing is left to do: in the order that the seed draws. */
static void drain_all(struct cluster *c)
{
    while (!is_idle(c))
        act_ending(c);
}

static void begin(struct cluster *c)
{
    struct error err = {""};

    ck_assert_msg(save_without_client(&c->hosts[0].saves, &err) == 0, "%s", err.text);
}

static void check_saved(const struct cluster *c, uint64_t step)
{
    for (uint32_t h = 0; h < c->n; h++) {
        ck_assert_uint_eq(c->hosts[h].saves.saved_step, step);
        ck_assert_str_eq(c->hosts[h].saves.trouble, "");
    }
}

/* Host 0 knows what went wrong first. Another one may have found its directory removed before it heard of that. */
static void check_not_saved(const struct cluster *c, const char *why)
{
    ck_assert_holds(c->hosts[0].saves.trouble, why);
    for (uint32_t h = 0; h < c->n; h++) {
        ck_assert_uint_eq(c->hosts[h].saves.saved_step, MESSAGE_NO_STEP);
        ck_assert_str_ne(c->hosts[h].saves.trouble, "");
    }
}

/* What one host saves, by the same functions. */
static void save_alone(const char *out, uint64_t step)
{
    struct cluster one;

    open_cluster(&one, 1, 0, out);
    set_step(&one.hosts[0], step);
    begin(&one);
    drain_all(&one);
    check_saved(&one, step);
    close_cluster(&one);
}

/* Two checkpoints, one after the other. */
TEST_EACH(hosts_save_together_what_one_host_saves, SEEDS)
{
    const uint32_t n = 2 + (uint32_t)_i % 2;
    struct cluster c;

    save_alone("alone", STEP);
    open_cluster(&c, n, (uint32_t)_i, "together");
    begin(&c);
    drain_all(&c);
    check_saved(&c, STEP);
    ck_assert_uint_eq(c.heard, 1 << HOST_SAVE | 1 << HOST_FILES | 1 << HOST_RUNS | 1 << HOST_SAVED);
    outputs_check_whole("together", STEP);
    outputs_check_same_state("alone/step-5", "together/step-5");
    outputs_check_same("alone/step-5", "together/step-5", "config.json");

    save_alone("later", STEP + 1);
    for (uint32_t h = 0; h < n; h++)
        set_step(&c.hosts[h], STEP + 1);
    begin(&c);
    drain_all(&c);
    check_saved(&c, STEP + 1);
    outputs_check_same_state("later/step-6", "together/step-6");
    close_cluster(&c);
}

/* A host that does not see host 0's directory, whichever it is; then one that does. */
TEST_EACH(a_host_that_cannot_write_ends_the_checkpoint_on_all_and_not_the_next, SEEDS)
{
    const uint32_t n = 2 + (uint32_t)_i % 2, bad = (uint32_t)_i / 2 % n;
    struct cluster c;

    outputs_make("elsewhere");
    open_cluster(&c, n, (uint32_t)_i, "out");
    struct job *job = &c.hosts[bad].job;
    close(job->output);
    job->output = open_directory("elsewhere");
    if (bad == 0) /* its partial directory cannot be made */
        outputs_write(outputs_make("elsewhere/step-5.partial"), "mine.c", "int x;");
    begin(&c);
    drain_all(&c);
    check_not_saved(&c, bad == 0 ? "step-5.partial could not be made" : "step-5.partial could not be opened");
    ck_assert_str_eq(outputs_names("out"), "");
    ck_assert_str_eq(outputs_names("elsewhere"), bad == 0 ? "step-5.partial " : "");
    close(job->output);
    job->output = open_directory("out");
    begin(&c);
    drain_all(&c);
    check_saved(&c, STEP);
    outputs_check_whole("out", STEP);
    close_cluster(&c);
}

/* At any moment, with words under way. What host 0 was putting in place stands; else nothing is left. */
TEST_EACH(a_checkpoint_ends_with_the_job, SEEDS)
{
    const uint32_t n = 2 + (uint32_t)_i % 2;
    struct cluster c;

    open_cluster(&c, n, (uint32_t)_i, "out");
    begin(&c);
    for (int i = 0; i < 4 * _i && !is_idle(&c); i++)
        act(&c);
    const bool was_saved = c.hosts[0].saves.saved_step == STEP;
    for (uint32_t h = 0; h < n; h++) {
        c.hosts[h].n_words = 0;
        c.hosts[h].job.state = JOB_ENDING;
    }
    for (int i = 0; i < 20 || is_fetching(&c); i++) /* a fetch ends before what it reads is freed */
        act_ending(&c);
    for (uint32_t h = 0; h < n; h++)
        c.hosts[h].job.lent = false;
    drain_all(&c);
    if (c.hosts[0].saves.saved_step == STEP) {
        outputs_check_whole("out", STEP);
    } else {
        ck_assert(!was_saved);
        ck_assert_str_eq(c.hosts[0].saves.trouble, "the job ended before all hosts had written step 5");
        ck_assert_str_eq(outputs_names("out"), "");
    }
    close_cluster(&c);
}

/* Host 0 reads the notes of the last host when the job ends, or another host has failed. */
TEST_EACH(notes_stay_while_they_are_fetched, 10)
{
    const struct host_message failed = {.kind = HOST_FAILED, .id = 1, .code = -EIO, .text = "no disk"};
    const bool ends = _i % 2;
    struct cluster c;

    open_cluster(&c, MOST, (uint32_t)_i, "out");
    struct host *last = &c.hosts[MOST - 1];
    c.is_slow = true;
    begin(&c);
    while (!last->is_read)
        act(&c);
    if (!ends)
        save_on_word(&c.hosts[0].saves, 1, &failed);
    for (uint32_t h = 0; ends && h < MOST; h++) {
        c.hosts[h].n_words = 0;
        c.hosts[h].job.state = JOB_ENDING;
    }
    for (int i = 0; i < 1000; i++)
        act_ending(&c);
    ck_assert_ptr_nonnull(last->saves.first);
    c.is_slow = false;
    while (is_fetching(&c))
        act_ending(&c);
    for (uint32_t h = 0; ends && h < MOST; h++)
        c.hosts[h].job.lent = false;
    drain_all(&c);
    check_not_saved(&c, ends ? "the job ended before all hosts had written step 5" : "host 1: no disk");
    ck_assert_str_eq(outputs_names("out"), "");
    close_cluster(&c);
}

/* Of a kind that no checkpoint has. */
TEST(notes_that_cannot_be_end_the_checkpoint)
{
    const struct store_files_note wrong = {.kind = 7};
    struct store_files_note *note = malloc(sizeof *note);
    struct cluster c;

    *note = wrong;
    open_cluster(&c, 2, 1, "out");
    begin(&c);
    turn(&c, 0);
    ck_assert_uint_eq(c.hosts[1].words[0].kind, HOST_SAVE);
    save_on_notes(&c.hosts[0].saves, c.hosts[1].words[0].id, note, sizeof *note);
    drain_all(&c);
    ck_assert_holds(c.hosts[0].saves.trouble, "note of kind 7");
    ck_assert_str_eq(outputs_names("out"), "");
    close_cluster(&c);
}

TEST(notes_are_whole_and_no_more_than_all_hosts_have)
{
    const size_t each = sizeof(struct store_files_note);
    struct cluster c;

    open_cluster(&c, 2, 0, "out");
    const struct saves *saves = &c.hosts[0].saves;
    const uint64_t most = each * store_files_most_notes(c.hosts[0].job.store.files);
    ck_assert(save_may_have_notes(saves, each) && save_may_have_notes(saves, most));
    ck_assert(!save_may_have_notes(saves, 0) && !save_may_have_notes(saves, most - 1));
    ck_assert(!save_may_have_notes(saves, most + each) && !save_may_have_notes(saves, UINT64_MAX / each * each));
    close_cluster(&c);
}

/* The writer's first task takes longer than it may; a second one follows it. */
TEST(a_disk_that_answers_again_is_not_blamed_any_more)
{
    enum { MOST_QUIET = 3 };
    struct cluster c;

    open_cluster(&c, 1, 0, "out");
    begin(&c);
    turn(&c, 0);
    struct saves *saves = &c.hosts[0].saves;
    ck_assert_ptr_nonnull(saves->writing);
    for (int i = 0; i < MOST_QUIET; i++)
        save_tick(saves, MOST_QUIET);
    ck_assert_str_eq(saves->trouble, "");
    save_tick(saves, MOST_QUIET);
    ck_assert_holds(saves->trouble, "step 5 ", " 4 s");
    while (saves->n_tasks == 0)
        turn(&c, 0);
    ck_assert_ptr_nonnull(saves->first);
    ck_assert_str_eq(saves->trouble, "");
    drain_all(&c);
    check_saved(&c, STEP);
    close_cluster(&c);
}
