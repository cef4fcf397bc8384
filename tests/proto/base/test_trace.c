/* Traces: of several processes in one file, of a real run, and what is left of those that did not end well. */
#include "client/daemon/link.h"
#include "client/eps.h"
#include "proto/base/trace.h"
#include "proto/wire/segment.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STEPS = 5, PARTS = 2, VISITS = 6, SAVE_EVERY = 2, MANY = 2000 };

/* Of the model below, tied: by hand. */
static const char *const visits[VISITS] = {"wte", "wpe", "h.0", "h.1", "ln_f", "head wte"};
static const char *const units[VISITS] = {"wte", "wpe", "h.0", "h.1", "ln_f", "wte"};

static void setup(void)
{
    processes_setup();
    processes_config("config.json", 2, 2, 16, 16);
    processes_text("data.txt", 1200);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- reading ---------------------------------------------------------------------------------------------------- */

struct event {
    const char *name;
    int pid, tid;
    int64_t begin, end; /* ns; the microseconds of the file have three digits behind the point */
    json_t *args;       /* NULL: none */
};

struct events {
    json_t *json;
    struct event *items; /* (n) those with a duration, by track, time, and the longer one first */
    size_t n;
};

static int compare(const void *a, const void *b)
{
    const struct event *x = a, *y = b;
    const int64_t order = x->tid != y->tid       ? x->tid - y->tid
                          : x->begin != y->begin ? x->begin - y->begin
                                                 : y->end - x->end;
    return (order > 0) - (order < 0);
}

/* On one track, whatever begins within an event ends within it. */
static void check_nesting(const struct events *events)
{
    const struct event *open[8];
    size_t depth = 0;

    for (const struct event *e = events->items; e < events->items + events->n; e++) {
        ck_assert_int_ge(e->end, e->begin);
        while (depth > 0 && (open[depth - 1]->tid != e->tid || open[depth - 1]->end <= e->begin))
            depth--;
        ck_assert_msg(depth == 0 || e->end <= open[depth - 1]->end, "'%s' ends after what is around it", e->name);
        ck_assert_uint_lt(depth, 8);
        open[depth++] = e;
    }
}

/* An array that lacks its end is given one; a file that was finished has it. */
static struct events read_events(const char *path, bool finished)
{
    char *text = processes_read(path);
    const size_t n = strlen(text);
    struct events events = {0};
    json_error_t why;
    size_t i;
    json_t *value;

    if (!finished) {
        ck_assert_msg(n > 2 && strcmp(text + n - 2, ",\n") == 0, "%s ends with '%s'", path, text + (n > 9 ? n - 9 : 0));
        text[n - 2] = ']', text[n - 1] = 0;
    }
    events.json = json_loads(text, JSON_REJECT_DUPLICATES, &why);
    ck_assert_msg(events.json != NULL, "%s:%d: %s", path, why.line, why.text);
    free(text);
    events.items = calloc(json_array_size(events.json), sizeof *events.items);
    json_array_foreach(events.json, i, value)
    {
        struct event *e = &events.items[events.n];
        const char *phase;
        double begin, length;
        ck_assert_int_eq(json_unpack(value, "{s:s, s:s, s:i, s:i, s?o}", "ph", &phase, "name", &e->name, "pid", &e->pid,
                                     "tid", &e->tid, "args", &e->args),
                         0);
        if (strcmp(phase, "M") == 0)
            continue;
        ck_assert_str_eq(phase, "X");
        ck_assert_msg(json_unpack(value, "{s:f, s:f}", "ts", &begin, "dur", &length) == 0,
                      "a time is no number with a fraction");
        e->begin = (int64_t)(begin * 1000 + 0.5);
        e->end = e->begin + (int64_t)(length * 1000 + 0.5);
        events.n++;
    }
    qsort(events.items, events.n, sizeof *events.items, compare);
    check_nesting(&events);
    return events;
}

static void free_events(struct events *events)
{
    json_decref(events->json);
    free(events->items);
}

/* As read, and that many. */
static void check_count(const char *path, bool finished, size_t n)
{
    struct events events = read_events(path, finished);

    ck_assert_uint_eq(events.n, n);
    free_events(&events);
}

static int64_t arg(const struct event *e, const char *key)
{
    const json_t *value = json_object_get(e->args, key);

    return value ? json_integer_value(value) : -1;
}

/* Those of a track have this metadata name: "thread_name" of the tid, "process_name" of the pid. */
static bool has_name(const struct events *events, const char *kind, int pid, int tid, const char *name)
{
    json_t *entry = json_pack("{s:s, s:i, s:i, s:s, s:{s:s}}", "ph", "M", "pid", pid, "tid", tid, "name", kind, "args",
                              "name", name);
    bool found = false;
    size_t i;
    json_t *value;

    json_array_foreach(events->json, i, value) found = found || json_equal(value, entry);
    json_decref(entry);
    return found;
}

/* ---- the file --------------------------------------------------------------------------------------------------- */

static int create(const char *path)
{
    struct error err = {""};
    int fd;

    ck_assert_msg(trace_create(&fd, path, &err) == 0, "%s", err.text);
    return fd;
}

/* Each with another inside it. Asserts nothing, since the child's assertions would reach nobody. */
static int record_many(int fd, const char *process)
{
    struct trace t;

    trace_open(&t, fd, process, "counter");
    for (uint64_t i = 0; i < MANY; i++) {
        const uint64_t outer = trace_begin(&t), inner = trace_begin(&t);
        trace_end(&t, inner, "inner", NULL, NULL);
        trace_end(&t, outer, "outer", process, (struct trace_arg[]){{"i", i}, {"most", UINT64_MAX / 2}, {NULL, 0}});
    }
    return trace_close(&t);
}

TEST(two_processes_write_one_file_without_tearing_it)
{
    const int fd = create("two.json");
    const int64_t before = (int64_t)trace_clock();
    const pid_t child = fork();
    int64_t next[2] = {0, 0};
    int status;

    if (child == 0)
        _exit(-record_many(fd, "child"));
    ck_assert_int_eq(record_many(fd, "parent"), 0);
    ck_assert(waitpid(child, &status, 0) == child && status == 0);
    const int64_t after = (int64_t)trace_clock();
    ck_assert_int_eq(trace_finish(fd), 0);
    close(fd);
    struct events events = read_events("two.json", true);
    ck_assert_uint_eq(events.n, 4 * MANY);
    for (const struct event *e = events.items; e < events.items + events.n; e++) {
        ck_assert(e->pid == child || e->pid == getpid());
        ck_assert(e->begin >= before && e->end <= after);
        if (strcmp(e->name, "inner") == 0)
            continue;
        ck_assert_str_eq(e->name, e->pid == child ? "outer child" : "outer parent");
        ck_assert_int_eq(arg(e, "i"), next[e->pid == child]++); /* by time */
        ck_assert_int_eq(arg(e, "most"), INT64_MAX);
    }
    ck_assert_int_eq(next[0], MANY);
    ck_assert(has_name(&events, "process_name", child, child, "child"));
    ck_assert(has_name(&events, "thread_name", getpid(), getpid(), "counter"));
    free_events(&events);
}

TEST(a_file_can_be_read_while_it_is_written)
{
    const int fd = create("open.json");
    struct trace t;

    trace_open(&t, fd, "p", "t");
    for (size_t i = 0; i < 100; i++) { /* more than one write */
        trace_end(&t, trace_begin(&t), "event", NULL, NULL);
        trace_flush(&t);
        check_count("open.json", false, i + 1);
    }
    trace_close(&t);
    close(fd);
}

/* Nor is what is no trace written to: a daemon looks at a descriptor that came first. */
TEST(a_file_that_is_there_is_not_touched)
{
    struct error err = {""};
    int ends[2], fd;

    processes_write("mine.json", "precious", 8);
    ck_assert_int_eq(trace_create(&fd, "mine.json", &err), -EEXIST);
    ck_assert_int_eq(fd, -1);
    ck_assert_holds(err.text, "--trace mine.json is there already");
    outputs_check_file("mine.json", "precious");
    ck_assert_int_eq(trace_create(&fd, "no/such/place", &err), -ENOENT);
    ck_assert_holds(err.text, "--trace no/such/place");

    ck_assert(trace_is_file(create("is.json")));
    ck_assert(!trace_is_file(open("is.json", O_RDWR | O_CLOEXEC))); /* several would write over each other */
    ck_assert(!trace_is_file(open("is.json", O_RDONLY | O_APPEND | O_CLOEXEC)));
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(fcntl(ends[1], F_SETFL, O_APPEND), 0);
    ck_assert(!trace_is_file(ends[1])); /* a write could wait for ever */
    ck_assert(!trace_is_file(-1));
}

/* What a write leaves that was cut short at any of its bytes, with another track's behind it or not. */
TEST(a_torn_event_ends_the_trace_before_it)
{
    static const char event[] = "{\"ph\":\"X\",\"pid\":1,\"tid\":2,\"ts\":3.000,\"dur\":4.000,\"name\":\"a\"},\n";
    const ssize_t n = sizeof event - 1;
    int fd = create("torn.json");

    ck_assert_int_eq(trace_finish(fd), 0);
    close(fd);
    outputs_check_file("torn.json", "[]"); /* of none */
    for (ssize_t cut = 1; cut < n; cut++)
        for (int more = 0; more < 2; more++) {
            unlink("torn.json");
            fd = create("torn.json");
            ck_assert_int_eq(write(fd, event, (size_t)n), n);
            ck_assert_int_eq(write(fd, event, (size_t)cut), cut);
            if (more)
                ck_assert_int_eq(write(fd, event, (size_t)n), n);
            ck_assert_int_eq(trace_finish(fd), -ENODATA);
            close(fd);
            check_count("torn.json", true, 1);
        }
}

static void limit_files(rlim_t bytes)
{
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};

    signal(SIGXFSZ, SIG_IGN);
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(a_file_that_cannot_grow_ends_the_trace_and_nothing_else)
{
    const int fd = create("full.json");
    struct trace t;

    limit_files(10000);
    trace_open(&t, fd, "p", "t");
    for (uint64_t i = 0; i < MANY; i++)
        trace_end(&t, trace_begin(&t), "event", NULL, (struct trace_arg[]){{"i", i}, {NULL, 0}});
    ck_assert_int_lt(trace_close(&t), 0);
    ck_assert_int_eq(trace_finish(fd), -ENODATA); /* the write that met the limit was cut short */
    limit_files(RLIM_INFINITY);                   /* where Check has its own */
    close(fd);
    struct events events = read_events("full.json", true);
    ck_assert_uint_gt(events.n, 50);
    for (size_t i = 0; i < events.n; i++)
        ck_assert_int_eq(arg(&events.items[i], "i"), (int64_t)i);
    free_events(&events);
}

/* ---- a run ------------------------------------------------------------------------------------------------------ */

static const char *files[] = {"data.txt"};

static struct eps_train_options run_options(const char *out, const char *trace)
{
    struct eps_train_options options = processes_options("config.json", files, out);

    options.trace = trace;
    options.steps = STEPS;
    options.batch = 4;
    options.seq = 16;
    options.parts = PARTS;
    options.optimizer = EPS_ADAMA;
    options.save_every = SAVE_EVERY;
    options.eval_every = 3;
    options.eval_tokens = UINT64_MAX;
    options.deterministic = true;
    options.grad_dtype = EPS_BF16; /* both sides count its bytes */
    return options;
}

static void train(const struct eps_train_options *options, const struct eps_train_events *events, void *user)
{
    struct eps_error error = {""};

    ck_assert_msg(eps_train(options, events, user, &error) == 0, "%s", error.text);
}

/* The one event of this name with these; visit, part -1: whichever. */
static const struct event *find(const struct events *events, const char *what, const char *name, int64_t step,
                                int64_t visit, int64_t part)
{
    const struct event *found = NULL;
    char full[80];

    snprintf(full, sizeof full, "%s %s", what, name);
    for (const struct event *e = events->items; e < events->items + events->n; e++) {
        if (strcmp(e->name, full) != 0 || arg(e, "step") != step || (visit >= 0 && arg(e, "visit") != visit) ||
            (part >= 0 && arg(e, "part") != part))
            continue;
        ck_assert_msg(!found, "%s of step %d, part %d is there twice", full, (int)step, (int)part);
        found = e;
    }
    ck_assert_msg(found != NULL, "%s of step %d, part %d is not there", full, (int)step, (int)part);
    return found;
}

/* One visit of one step: what the protocol promises of the order, read off the clock. */
static void check_visit(const struct events *events, int64_t step, int64_t visit)
{
    const char *name = visits[visit], *unit = units[visit];
    const struct event *update = find(events, "update", unit, step, -1, -1);
    const struct event *forward = find(events, "forward", name, step, visit, -1);
    const bool one_pass = strncmp(name, "head", 4) == 0; /* backward is part of forward: the budget has room for that */

    ck_assert_int_eq(arg(forward, "microbatches"), PARTS * 2); /* of one row, of four in two parts */
    for (int64_t part = 0; part < PARTS; part++) {
        char fold_name[40];
        snprintf(fold_name, sizeof fold_name, "%s part %d", unit, (int)part);
        const struct event *backward = one_pass ? forward : find(events, "backward", name, step, visit, part);
        const struct event *download = find(events, "download", name, step, visit, part);
        const struct event *fold = find(events, "fold", fold_name, step, visit, part);
        ck_assert(one_pass || backward->begin >= forward->end);
        ck_assert_int_ge(download->begin, backward->end);
        ck_assert_int_ge(fold->begin, download->end);
        ck_assert_int_ge(update->begin, fold->end);
        ck_assert_int_eq(arg(fold, "bytes"), arg(download, "bytes"));
    }
    if (step % SAVE_EVERY == 0 || step == STEPS)
        ck_assert_int_ge(find(events, "write", unit, step, -1, -1)->begin, update->end);
    if (step < STEPS)
        ck_assert_int_ge(find(events, "forward", name, step + 1, visit, -1)->begin, update->end);
}

static unsigned count(const struct events *events, const char *name, const char *key)
{
    unsigned n = 0;

    for (size_t i = 0; i < events->n; i++)
        n += strcmp(events->items[i].name, name) == 0 && arg(&events->items[i], key) >= 0;
    return n;
}

/* Each event is of the thread that it belongs to. */
static void check_tracks(const struct events *events)
{
    static const struct {
        const char *event, *process, *thread;
    } tracks[] = {
        {"fold", "epsd", "optimizer"},          {"update", "epsd", "optimizer"},
        {"write", "epsd", "checkpoint writer"}, {"flush", "epsd", "checkpoint writer"},
        {"forward", "eps-worker", "compute"},   {"backward", "eps-worker", "compute"},
    };

    for (const struct event *e = events->items; e < events->items + events->n; e++)
        for (int i = 0; i < COUNT(tracks); i++)
            if (strncmp(e->name, tracks[i].event, strlen(tracks[i].event)) == 0) {
                ck_assert(has_name(events, "thread_name", e->pid, e->tid, tracks[i].thread));
                ck_assert(has_name(events, "process_name", e->pid, e->tid, tracks[i].process));
            }
}

TEST(a_run_is_recorded_step_by_step_and_trains_the_same_bits)
{
    struct eps_train_options options = run_options("plain", NULL);

    options.microbatch = 1;
    train(&options, NULL, NULL);
    options.out = "traced";
    options.trace = "traced/trace.json"; /* in a directory that is made first */
    train(&options, NULL, NULL);
    outputs_check_same_state("plain/step-5", "traced/step-5");

    struct events events = read_events(options.trace, true);
    check_tracks(&events);
    ck_assert_uint_eq(count(&events, "step", "parts"), STEPS);
    ck_assert_uint_eq(count(&events, "prepare data", "step"), STEPS);
    /* Before the first step, after the third and the last; (1200 - 1) / 16 = 74 windows are 19 times four rows. */
    ck_assert_uint_eq(count(&events, "evaluate", "step"), 3);
    ck_assert_uint_eq(count(&events, "evaluate", "rows"), 3 * 19);
    for (int64_t step = 1; step <= STEPS; step++)
        for (int64_t visit = 0; visit < VISITS; visit++)
            check_visit(&events, step, visit);
    free_events(&events);
}

TEST(a_run_whose_trace_is_refused_leaves_nothing)
{
    struct eps_train_options options = run_options("refused", "old.json");
    struct eps_error error;

    processes_write("old.json", "precious", 8);
    ck_assert_int_eq(eps_train(&options, NULL, NULL, &error), -EEXIST);
    outputs_check_file("old.json", "precious");
    ck_assert_int_eq(access("refused", F_OK), -1);
    options.trace = "new.json";
    options.programs = "/nowhere";
    ck_assert_int_eq(eps_train(&options, NULL, NULL, &error), -ENOENT);
    ck_assert_int_eq(access("new.json", F_OK), -1);
}

/* The daemon writes to what a client names, so it looks at it first. */
TEST(a_daemon_writes_to_no_pipe)
{
    struct message m = {.kind = MESSAGE_JOB,
                        .job = {.goal = {.batch = 4, .seq = 16, .n_parts = 1}, .fresh = true, .trace = true}};
    struct client_link link;
    struct error err = {""};
    char directory[300];
    int ends[2];

    processes_daemon("lab", 1, NULL);
    ck_assert_int_eq(session_directory(directory, sizeof directory, "lab", &err), 0);
    ck_assert_int_eq(client_link_init(&link, &err), 0);
    ck_assert_int_eq(client_link_open(&link, directory, ROLE_CLIENT, &err), 0);
    ck_assert_int_eq(pipe(ends), 0);
    char *config = processes_read("config.json");
    client_link_send_fds(&link, &m, (const int[]){segment_seal("config", config, strlen(config), &err), ends[1]}, 2);
    free(config);
    ck_assert_int_eq(client_link_expect(&link, MESSAGE_JOB_OPENED, &m, NULL, &err), -EINVAL);
    ck_assert_holds(err.text, "trace is not a regular file");
    client_link_free(&link);
}

struct limited {
    unsigned n_notes, n_steps;
    char note[200];
};

static void on_limited_step(void *user, const struct eps_step *step)
{
    struct limited *l = user;
    struct stat st;

    l->n_steps++;
    if (step->step != 2)
        return;
    ck_assert_int_eq(stat("limited.json", &st), 0);
    limit_files((rlim_t)st.st_size); /* of this process: not of the daemon, which has checkpoints to write */
}

static void on_limited_note(void *user, const char *sentence)
{
    struct limited *l = user;

    l->n_notes++;
    snprintf(l->note, sizeof l->note, "%s", sentence);
    limit_files(RLIM_INFINITY); /* there is room again: too late for the client's track */
}

TEST(a_run_whose_trace_finds_no_room_goes_on_and_says_so)
{
    const struct eps_train_events events = {.on_step = on_limited_step, .on_note = on_limited_note};
    struct eps_train_options options = run_options("limited", "limited.json");
    struct limited limited = {0};

    options.eval_data = NULL; /* a note says that it is trained on, too */
    train(&options, &events, &limited);
    ck_assert_uint_eq(limited.n_steps, STEPS);
    ck_assert_uint_eq(limited.n_notes, 1);
    ck_assert_str_eq(limited.note, "the trace limited.json ends at step 3: File too large; training goes on");
    struct events read = read_events("limited.json", true);
    ck_assert_uint_gt(read.n, 0);
    free_events(&read);
}

static bool is_long(void *context)
{
    struct stat st;

    (void)context;
    return stat("killed.json", &st) == 0 && st.st_size > 30000;
}

TEST(the_trace_of_a_killed_run_can_be_read)
{
    const char *const argv[] = {"train",  "--model", "config.json", "--data",  "data.txt",    "--steps",
                                "100000", "--batch", "4",           "--seq",   "16",          "--save-every",
                                "0",      "--out",   "killed",      "--trace", "killed.json", NULL};
    const pid_t pid = processes_start("eps", argv, "killed.log");

    ck_assert(processes_until(is_long, NULL));
    kill(pid, SIGKILL);
    ck_assert_int_eq(processes_wait(pid), 128 + SIGKILL);
    processes_await_nobody();
    struct events events = read_events("killed.json", false);
    find(&events, "forward", "h.1", 2, 3, -1);
    free_events(&events);
}
