#include "tests/kit/relay_trace.h"
#include "tests/kit/relay_world.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

static const char *const traces[] = {"walks-0", "walks-1", "walks-2", "walks-3", "walks-4",
                                     "walks-5", "chaos-0", "chaos-1", "chaos-2"};

static FILE *open_trace(const char *name)
{
    char path[4096];
    snprintf(path, sizeof path, TESTS_DIR "/eps/relay/%s.trace", name);
    FILE *in = fopen(path, "r");
    ck_assert_msg(in, "%s: %s", path, strerror(errno));
    return in;
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* What the allocator is asked for, and which of the requests it is to refuse, counted from 1; 0: none. */
static struct {
    unsigned n_calls, refused;
} allocator;

#if !SANITIZED /* the sanitizers bring an allocator of their own */
void *__libc_malloc(size_t n);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *p, size_t n);

void *malloc(size_t n)
{
    allocator.n_calls++;
    return __libc_malloc(n);
}

void *realloc(void *p, size_t n)
{
    allocator.n_calls++;
    return __libc_realloc(p, n);
}

/* The relay calls these two alone, so only they refuse: the streams of these tests use the others. */
void *calloc(size_t n, size_t size)
{
    allocator.n_calls++;
    return allocator.refused && !--allocator.refused ? NULL : __libc_calloc(n, size);
}

void *reallocarray(void *p, size_t n, size_t size)
{
    size_t bytes = 0;
    allocator.n_calls++;
    if (__builtin_mul_overflow(n, size, &bytes) || (allocator.refused && !--allocator.refused))
        return NULL;
    return __libc_realloc(p, bytes);
}
#endif

/* Refuses each request in turn until the line goes through. Returns how often it did not. */
static unsigned feed_through_refusals(struct relay_trace *trace, const char *line, FILE *out)
{
    unsigned n = 0;
    int rc = -ENOMEM;
    while (rc == -ENOMEM) {
        allocator.refused = ++n;
        rc = relay_trace_feed(trace, line, out);
        allocator.refused = 0;
        ck_assert(rc != -ENOMEM || ftell(out) == 0);
    }
    ck_assert_int_eq(rc, 0);
    return n - 1;
}

/* ---- traces ------------------------------------------------------------------------------------------------------ */

/* The actions of the relay at every event of a file must be those that stand under it, though every request for
 * memory be refused once (n_refusals; or NULL). Returns how many traces the file holds. */
static int replay(const char *name, unsigned *n_refusals)
{
    struct relay_trace trace = {0};
    char *line = NULL, *said = NULL;
    size_t cap = 0, said_bytes = 0, at = 0;
    int n_line = 0, n_traces = 0;
    FILE *in = open_trace(name), *out = open_memstream(&said, &said_bytes);
    while (getline(&line, &cap, in) > 0) {
        n_line++;
        if (line[0] == ' ') {
            size_t n = strlen(line);
            ck_assert_msg(at + n <= said_bytes && !memcmp(said + at, line, n), "%s:%d: not %.40s", name, n_line,
                          said + at);
            at += n;
            continue;
        }
        ck_assert_msg(at == said_bytes, "%s:%d: before it, something more: %s", name, n_line, said + at);
        if (line[0] == '\n' || line[0] == '#')
            continue;
        n_traces += !strncmp(line, "config ", 7);
        rewind(out);
        if (n_refusals)
            *n_refusals += feed_through_refusals(&trace, line, out);
        else
            ck_assert_msg(!relay_trace_feed(&trace, line, out), "%s:%d: not an event", name, n_line);
        fflush(out);
        at = 0;
    }
    ck_assert_uint_eq(at, said_bytes);
    fclose(in);
    fclose(out);
    free(said);
    free(line);
    relay_trace_free(&trace);
    return n_traces;
}

/* tests/eps/relay/generate.py wrote them, from the specification. */
TEST_EACH(actions_are_those_of_the_specification, COUNT(traces))
{
    ck_assert_int_eq(replay(traces[_i], NULL), 40);
}

TEST_IF(an_event_that_finds_no_memory_changes_nothing, !SANITIZED)
{
    unsigned n_refusals = 0;
    replay("walks-0", &n_refusals);
    replay("chaos-0", &n_refusals);
    ck_assert_uint_gt(n_refusals, 500); /* every trace opens, attaches and begins steps */
}

TEST(inbox_full_then_its_head_of_line_worker_dies)
{
    ck_assert_int_eq(replay("inbox-full", NULL), 1);
}

TEST(stopped_worker_wakes_after_its_unit_was_updated)
{
    ck_assert_int_eq(replay("woken", NULL), 1);
}

TEST(save_in_the_middle)
{
    ck_assert_int_eq(replay("save", NULL), 1);
}

TEST(step_is_skipped_while_the_thread_reads)
{
    ck_assert_int_eq(replay("skipped", NULL), 1);
}

TEST(frozen_unit_is_answered_at_either_version)
{
    ck_assert_int_eq(replay("frozen", NULL), 1);
}

/* ---- random orders, watched by tests/kit/relay_world.c -------------------------------------------------------------- */

struct dice {
    uint64_t state;
};

/* splitmix64, Steele et al. 2014: below n. */
static uint32_t roll(struct dice *d, uint32_t n)
{
    uint64_t z = d->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (uint32_t)((z ^ z >> 31) % n);
}

static bool chance(struct dice *d, uint32_t percent)
{
    return roll(d, 100) < percent;
}

static struct relay_config random_config(struct dice *d)
{
    struct relay_config c = {.n_parts = 1 + roll(d, WORLD_PARTS),
                             .n_slots = 1 + roll(d, 3),
                             .n_accumulators = 1 + roll(d, 2),
                             .adamw = roll(d, 2),
                             .fenced = chance(d, 30),
                             .deterministic = roll(d, 2),
                             .replay = chance(d, 60)};
    c.adamw |= c.fenced && c.n_parts > 1;
    return c;
}

/* Some of the units in some order, one of them perhaps twice, one of several perhaps frozen. While the step before is
 * not done the units stay as they are. */
static void random_open(struct world *w, struct dice *d)
{
    uint32_t visits[WORLD_VISITS], n_slices[WORLD_VISITS], owners[WORLD_PARTS], n = 0, order = roll(d, WORLD_UNITS);
    for (uint32_t i = 0; i < 1 + order % 4; i++)
        visits[n++] = (order + 5 * i) % WORLD_UNITS;
    if (chance(d, 40)) {
        visits[n] = visits[roll(d, n)];
        n++;
    }
    if (w->n_visits && (w->n_done <= w->t || chance(d, 50)))
        memcpy(visits, w->visits, (n = w->n_visits) * sizeof *visits);
    for (uint32_t v = 0; v < n; v++)
        n_slices[v] = 1 + (visits[v] + order) % WORLD_SLICES;
    uint32_t n_distinct = 0, last = visits[0];
    for (uint32_t v = 1; v < n; v++) {
        n_distinct += visits[v] != visits[0];
        last = visits[v] != visits[0] ? visits[v] : last;
    }
    for (uint32_t p = 0; p < w->config.n_parts; p++) {
        owners[p] = roll(d, WORLD_WORKERS);
        while (!w->attached[owners[p]] && chance(d, 95))
            owners[p] = (owners[p] + 1) % WORLD_WORKERS;
    }
    world_feed(w, &(struct relay_event){.kind = RELAY_OPEN,
                                        .step = w->t + 1 + chance(d, 3),
                                        .visits = visits,
                                        .n_slices = n_slices,
                                        .n_visits = n,
                                        .frozen = &last,
                                        .n_frozen = n_distinct && chance(d, 25),
                                        .owners = owners,
                                        .n_owners = w->config.n_parts - chance(d, 3)});
}

/* Anything at all: units, slots, steps and attempts that never were, or are no more. */
static struct relay_event hostile_event(const struct world *w, struct dice *d)
{
    static const enum relay_event_kind kinds[] = {RELAY_PULL,         RELAY_LOSS, RELAY_CONTRIBUTION,
                                                  RELAY_CONTRIBUTION, RELAY_SAVE, RELAY_RELEASED};
    static const uint32_t far[] = {1u << 20, UINT32_MAX - 1, UINT32_MAX};
    struct relay_event e = {.kind = kinds[roll(d, 6)],
                            .worker = roll(d, WORLD_WORKERS),
                            .unit = roll(d, WORLD_UNITS + 1),
                            .name = {.visit = roll(d, WORLD_VISITS),
                                     .part = roll(d, WORLD_PARTS),
                                     .slice = roll(d, WORLD_SLICES),
                                     .attempt = roll(d, 3)},
                            .slot = roll(d, WORLD_SLOTS + 1),
                            .reader = roll(d, WORLD_READERS),
                            .step = w->t + roll(d, 4) - 1,
                            .ok = chance(d, 90)};
    uint32_t *const fields[] = {&e.unit, &e.name.visit, &e.name.part, &e.name.slice, &e.name.attempt, &e.slot};
    if (chance(d, 30))
        *fields[roll(d, 6)] = far[roll(d, 3)];
    if (chance(d, 5))
        e.step = UINT64_MAX - roll(d, 2);
    if (chance(d, 50) && e.name.part < w->config.n_parts && w->owner[e.name.part] < WORLD_WORKERS) {
        e.worker = w->owner[e.name.part]; /* often all right but for one thing */
        e.name.attempt = w->attempt[e.name.part] - chance(d, 20);
        e.step = w->t;
    }
    e.name.step = e.step;
    return e;
}

static void random_job(struct world *w, struct dice *d, uint32_t percent_bad)
{
    uint32_t unit = roll(d, WORLD_UNITS), slice = roll(d, WORLD_SLICES);
    if (w->jobs[unit][slice].flying)
        world_finish_job(w, unit, slice, !chance(d, percent_bad));
    else if (w->updating[unit])
        world_finish_update(w, unit);
}

static void random_reader(struct world *w, struct dice *d)
{
    uint32_t reader = roll(d, WORLD_READERS), unit = roll(d, WORLD_UNITS);
    if (w->readers[reader].here && w->readers[reader].captured[unit])
        world_feed(w, &(struct relay_event){.kind = RELAY_RELEASED, .reader = reader, .unit = unit});
    else if (chance(d, 10))
        world_feed(w, &(struct relay_event){.kind = RELAY_SAVE, .reader = reader});
}

static void random_pull(struct world *w, struct dice *d)
{
    world_feed(w, &(struct relay_event){.kind = RELAY_PULL,
                                        .worker = roll(d, WORLD_WORKERS),
                                        .unit = w->visits[roll(d, w->n_visits)],
                                        .step = w->t + chance(d, 10)});
}

static void random_event(struct world *w, struct dice *d)
{
    uint32_t worker = roll(d, WORLD_WORKERS), part = roll(d, w->config.n_parts), x = roll(d, 100);
    bool owned = w->owner[part] != WORLD_WORKERS;
    if (x < 2 || (x < 30 && !owned)) {
        world_attach(w, worker);
    } else if (x < 3) {
        world_feed(w, &(struct relay_event){.kind = RELAY_LOST, .worker = worker});
    } else if (x < 8) {
        struct relay_event e = hostile_event(w, d);
        world_feed(w, &e);
        if (chance(d, 50))
            world_feed(w, &e); /* twice */
    } else if (x < 20) {
        random_reader(w, d);
    } else if (x < 30 && w->n_visits) {
        random_pull(w, d);
    } else if (x < 40 && owned && !w->loss[part]) {
        world_feed(w, &(struct relay_event){.kind = RELAY_LOSS,
                                            .worker = w->owner[part],
                                            .name = {.step = w->t, .part = part, .attempt = w->attempt[part]},
                                            .ok = !chance(d, 3)});
    } else if (x < 65) {
        random_job(w, d, 1);
    } else if (w->covered && owned && x < 75) {
        random_open(w, d);
    } else {
        world_contribute(w, part);
    }
}

/* Long runs of what is possible with what is not in between; then everyone does what is left, and it must end well. */
TEST_EACH(any_order_keeps_the_rules, 4)
{
    uint64_t seen[RELAY_ABANDON + 1] = {0};
    for (uint64_t seed = 0; seed < 100; seed++) {
        struct dice dice = {.state = (uint64_t)_i << 32 | seed};
        struct relay_config config = random_config(&dice);
        struct world w;
        world_open(&w, &config);
        world_attach(&w, 0);
        w.owner[0] = WORLD_WORKERS;
        random_open(&w, &dice);
        for (int i = 0; i < 2000 && !w.torn; i++)
            random_event(&w, &dice);
        while (w.t == UINT64_MAX || (w.covered && chance(&dice, 50)))
            random_open(&w, &dice);
        world_settle(&w);
        if (w.torn) { /* whoever asks is told, and nothing moves */
            struct relay_event e = hostile_event(&w, &dice);
            world_feed(&w, &e);
        }
        for (int kind = 0; kind <= RELAY_ABANDON; kind++)
            seen[kind] += w.n_actions[kind];
        world_close(&w);
    }
    for (int kind = 0; kind <= RELAY_ABANDON; kind++)
        ck_assert_msg(seen[kind] > 0, "no action of kind %d in all these runs", kind);
}

static int feed_counted(struct relay *relay, const struct relay_event *e, const struct relay_action **actions)
{
    unsigned before = allocator.n_calls;
    int n = relay_feed(relay, e, actions);
    ck_assert_msg(allocator.n_calls == before, "event of kind %d allocates", (int)e->kind);
    return n;
}

/* Steps of the same shape in random orders, with pulls and readers. */
TEST_IF(nothing_is_allocated_after_the_second_step, !SANITIZED)
{
    static const uint32_t visits[] = {2, 0, 1, 3, 2}, n_slices[] = {3, 1, 2, 1, 3}, owners[] = {0, 1, 2, 2};
    struct relay_config config = {
        .n_parts = 4, .n_slots = 2, .n_accumulators = 1, .adamw = true, .deterministic = true, .replay = true};
    struct dice dice = {.state = 1};
    struct world w;
    world_open(&w, &config);
    for (uint32_t worker = 0; worker < 3; worker++)
        world_attach(&w, worker);
    for (uint64_t step = 0; step < 50; step++) {
        w.feed = step < 2 ? relay_feed : feed_counted;
        world_feed(&w, &(struct relay_event){.kind = RELAY_OPEN,
                                             .step = step,
                                             .visits = visits,
                                             .n_slices = n_slices,
                                             .n_visits = 5,
                                             .owners = owners,
                                             .n_owners = 4});
        for (int i = 0; i < 200; i++) {
            world_contribute(&w, roll(&dice, 4));
            random_job(&w, &dice, 0);
            if (i % 8 == 0)
                random_pull(&w, &dice);
            random_reader(&w, &dice);
        }
        world_settle(&w);
    }
    world_close(&w);
}

TEST(more_readers_than_64_are_refused)
{
    struct relay_trace trace = {0};
    char line[32], said[4096] = "";
    FILE *out = fmemopen(said, sizeof said, "w");
    ck_assert_int_eq(relay_trace_feed(&trace, "config parts=1 slots=1", out), 0);
    ck_assert_int_eq(relay_trace_feed(&trace, "attached 0", out), 0);
    ck_assert_int_eq(relay_trace_feed(&trace, "open 0 0 - 0 1", out), 0);
    for (int i = 0; i < 65; i++) {
        snprintf(line, sizeof line, "save %d", i);
        ck_assert_int_eq(relay_trace_feed(&trace, line, out), 0);
    }
    ck_assert_int_eq(relay_trace_feed(&trace, "released 63 0", out), 0);
    fclose(out);
    ck_assert_ptr_nonnull(strstr(said, "  capture 63 0 0\n  refuse 64 too_many_readers\n  saved 63 0\n"));
    relay_trace_free(&trace);
}

/* One unit, one part, one slice; steps begin at 0 or where a run is resumed. */
TEST_EACH(the_cut_is_known_before_a_reader_comes, 2)
{
    const struct relay_config config = {.first_step = _i ? 70 : 0, .n_parts = 1, .n_slots = 1, .n_accumulators = 1};
    const uint32_t unit = 0, one = 1, owner = 0;
    const uint64_t t = config.first_step;
    const struct relay_event events[] = {
        {.kind = RELAY_ATTACHED},
        {.kind = RELAY_SAVE, .reader = 1}, /* refused: no unit is known */
        {.kind = RELAY_OPEN,
         .step = t,
         .visits = &unit,
         .n_slices = &one,
         .n_visits = 1,
         .owners = &owner,
         .n_owners = 1},
        {.kind = RELAY_LOSS, .name.step = t, .ok = true},
        {.kind = RELAY_CONTRIBUTION, .name.step = t, .slot = 1},
        {.kind = RELAY_FOLDED, .ok = true},
        {.kind = RELAY_UPDATED},
        {.kind = RELAY_SAVE, .reader = 2},
    };
    const uint64_t cuts[] = {UINT64_MAX, UINT64_MAX, t, t, t + 1, t + 1, t + 1, t + 1};
    const struct relay_action *actions = NULL;
    struct relay *relay;
    int n = 0;

    ck_assert_int_eq(relay_open(&relay, &config), 0);
    ck_assert_uint_eq(relay_cut(relay), UINT64_MAX);
    for (size_t i = 0; i < sizeof events / sizeof *events; i++) {
        n = relay_feed(relay, &events[i], &actions);
        ck_assert_int_ge(n, 0);
        ck_assert_msg(relay_cut(relay) == cuts[i], "after event %zu: %ju", i, (uintmax_t)relay_cut(relay));
        ck_assert(i != 1 || (n == 1 && actions[0].kind == RELAY_REFUSE && actions[0].to_reader));
    }
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(actions[0].kind, RELAY_CAPTURE);
    ck_assert_uint_eq(actions[0].step, t + 1);
    relay_close(relay);
}

TEST(a_step_of_more_names_than_can_be_numbered_is_not_opened)
{
    static const uint32_t owners[1 << 16]; /* all are worker 0's */
    struct relay_config config = {.n_parts = 1 << 16, .n_slots = 1, .n_accumulators = 1};
    const uint32_t unit = 0, n_slices = 1 << 16, one = 1;
    struct relay_event open = {.kind = RELAY_OPEN,
                               .visits = &unit,
                               .n_slices = &n_slices,
                               .n_visits = 1,
                               .owners = owners,
                               .n_owners = 1 << 16};
    const struct relay_action *actions = NULL;
    struct relay *relay = NULL;
    ck_assert_int_eq(relay_open(&relay, &config), 0);
    ck_assert_int_eq(relay_feed(relay, &(struct relay_event){.kind = RELAY_ATTACHED}, &actions), 0);
    ck_assert_int_eq(relay_feed(relay, &open, &actions), -ENOMEM);
    open.n_slices = &one;
    ck_assert_int_eq(relay_feed(relay, &open, &actions), 1);
    ck_assert_int_eq(actions[0].kind, RELAY_SHARE);
    relay_close(relay);
}

/* test_relay --trace FILE...: echoes each event and puts its actions under it, like the specification's own --trace. */
static int print_trace(int argc, char **argv)
{
    struct relay_trace trace = {0};
    char *line = NULL;
    size_t cap = 0;
    int rc = 0;
    for (int i = 2; i < argc && !rc; i++) {
        FILE *in = fopen(argv[i], "r");
        if (!in) {
            perror(argv[i]);
            return 1;
        }
        while (!rc && getline(&line, &cap, in) > 0) {
            if (line[0] == ' ' || line[0] == '#' || line[0] == '\n')
                continue;
            fputs(line, stdout);
            rc = relay_trace_feed(&trace, line, stdout);
        }
        fclose(in);
    }
    free(line);
    relay_trace_free(&trace);
    return rc ? 1 : 0;
}

SUITE_COMMAND(print_trace)
