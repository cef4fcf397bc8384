/* libeps ends a wait by live_should_stop alone, so a signal and a daemon that hangs both give -EINTR: stopping_observer
 * tells which it was. `until` is set before each call, as the patience is with one daemon at a time. Of several daemons
 * one that fails is dropped, and found again by the next gather if it lives. */
#include "tools/live.h"

#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/ended.h"
#include "tools/screen/screen.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 3000, SLICE_MS = 20 };

struct member {
    char *address;
    struct eps_observer *observer; /* NULL once the daemon is gone */
};

struct live_options {
    const char *address; /* NULL: all of the caller's daemons */
    bool json;
    double watch_s;      /* period; 0: once */
    const char *metrics; /* Prometheus file, "-": standard output; NULL: none */
};

struct live {
    const struct live_view *view;
    const struct live_options *options;
    struct member *members;
    size_t n_members;
    bool several;   /* several daemons: list them, with a short timeout each */
    uint64_t until; /* ms: when to give up on the current daemon */
    struct screen screen;
    struct stopping stopping;
    struct eps_error error;
    char out[PATH_MAX]; /* of the last job that was watched, for when its daemon has ended; empty: none */
};

uint64_t live_now_ms(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

const char *live_name(const char *address)
{
    const char *slash = strrchr(address, '/');

    return slash && slash[1] ? slash + 1 : address;
}

static int live_should_stop(void *user)
{
    struct live *live = user;

    return stopping_observer(&live->stopping) != 0 || (live->several && live_now_ms() >= live->until);
}

static int live_memory(struct live *live)
{
    snprintf(live->error.text, sizeof live->error.text, "out of memory");
    return -ENOMEM;
}

static int open_member(struct live *live, const char *address)
{
    struct member *members = realloc(live->members, (live->n_members + 1) * sizeof *members);

    if (!members)
        return live_memory(live);
    live->members = members;
    live->until = live_now_ms() + PATIENCE_MS;
    struct member member = {.address = strdup(address ? address : "")};
    if (!member.address)
        return live_memory(live);
    const int rc = eps_observer_open(&member.observer, address, live_should_stop, live, &live->error);
    if (rc)
        free(member.address);
    else
        members[live->n_members++] = member;
    return rc;
}

/* The last member takes its place, so the caller looks at i again. */
static void drop_member(struct live *live, size_t i)
{
    eps_observer_close(live->members[i].observer);
    free(live->members[i].address);
    live->members[i] = live->members[--live->n_members];
}

struct names {
    char **items;
    size_t n;
    bool lacks; /* no memory for one of them */
};

static void live_on_daemon(void *user, const char *address)
{
    struct names *names = user;
    char **items = realloc(names->items, (names->n + 1) * sizeof *items);

    names->items = items ? items : names->items;
    char *name = items ? strdup(address) : NULL;
    if (name)
        items[names->n++] = name;
    names->lacks = names->lacks || !name;
}

static bool is_member(const struct live *live, const char *address)
{
    size_t i = 0;

    while (i < live->n_members && strcmp(live->members[i].address, address) != 0)
        i++;
    return i < live->n_members;
}

/* Opens sessions with those of the caller's daemons that have none yet. Skips daemons that have just ended, or that do
 * not answer; the latter with a note, unless the screen is redrawn. */
static int live_gather(struct live *live)
{
    struct names names = {0};
    int rc = eps_daemons(live_on_daemon, &names, &live->error);

    if (!rc && names.lacks)
        rc = live_memory(live);
    live->several = names.n > 1;
    for (size_t i = 0; i < names.n; i++) {
        int failed = !rc && !is_member(live, names.items[i]) ? open_member(live, names.items[i]) : 0;
        if (failed == -ENOMEM || (failed && stopping_observer(&live->stopping)))
            rc = failed;
        else if (failed && failed != -ENOENT && failed != -ECONNREFUSED && live->several && live->options->watch_s == 0)
            fprintf(stderr, "%s: %s: %s\n", live->view->name, live_name(names.items[i]),
                    failed == -EINTR ? "it does not answer" : live->error.text);
        else if (failed && !live->several)
            rc = failed;
        free(names.items[i]);
    }
    free(names.items);
    return rc;
}

static void live_note_out(struct live *live, struct eps_observer *observer)
{
    struct eps_status status;

    if (eps_observer_status(observer, &status, NULL) == 0 && *status.out)
        snprintf(live->out, sizeof live->out, "%s", status.out);
}

static int ask_member(struct live *live, size_t i, FILE *out, json_t *list)
{
    const struct live_view *view = live->view;
    struct eps_observer *observer = live->members[i].observer;
    const bool watched_in_pipe = live->options->watch_s > 0 && !live->screen.terminal;
    json_t *object = NULL;
    int rc;

    live->until = live_now_ms() + PATIENCE_MS;
    if (live->options->watch_s > 0 && !live->several)
        live_note_out(live, observer);
    if (live->options->json || live->options->metrics) {
        rc = view->to_json(&object, observer, &live->error);
        if (!rc)
            json_array_append_new(list, object);
    } else if (live->several || (watched_in_pipe && view->lines_in_pipe))
        rc = view->print_line(out, observer, &live->error);
    else
        rc = view->print(out, observer, &live->error);
    return rc;
}

static void live_print_json(FILE *out, json_t *list, bool several, bool compact)
{
    json_t *all = several ? json_pack("{s:O}", "daemons", list) : json_incref(json_array_get(list, 0));

    answer_write(out, all, compact ? JSON_COMPACT : JSON_INDENT(2));
    fputc('\n', out);
    json_decref(all);
}

/* A new file in place of a leftover. A link that another has planted there is not followed. */
static FILE *live_create(const char *path)
{
    unlink(path);
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0666);
    FILE *file = fd < 0 ? NULL : fdopen(fd, "w");

    if (fd >= 0 && !file)
        close(fd);
    return file;
}

/* The file is replaced atomically, so a collector never reads half of it. */
static int write_metrics(struct live *live, const json_t *list)
{
    const char *path = live->options->metrics;
    char partial[PATH_MAX];
    struct stat st;

    if ((size_t)snprintf(partial, sizeof partial, "%s.partial", path) >= sizeof partial)
        return snprintf(live->error.text, sizeof live->error.text, "--prometheus %.80s...: its name is too long", path),
               -EDOM;
    if (lstat(path, &st) == 0 && !S_ISREG(st.st_mode)) /* a rename would replace /dev/stdout by a file */
        return snprintf(live->error.text, sizeof live->error.text,
                        "--prometheus %.300s: not a regular file: leave it out for standard output", path),
               -EINVAL;
    FILE *file = live_create(partial);
    int rc = file ? 0 : -errno;
    if (file) {
        live->view->print_metrics(file, list);
        if (fflush(file) || ferror(file))
            rc = -errno;
        if (fclose(file) && !rc)
            rc = -errno;
    }
    if (!rc && rename(partial, path))
        rc = -errno;
    if (rc) {
        snprintf(live->error.text, sizeof live->error.text, "--prometheus %.300s: %s", path, strerror(-rc));
        if (file)
            unlink(partial);
    }
    return rc;
}

/* Shows all daemons once, and drops those that are gone. -EIO when none is left. All of it is composed in memory
 * first: a screen is drawn, and a pipe written, in one go. */
static int live_show(struct live *live)
{
    const bool watching = live->options->watch_s > 0;
    json_t *list = json_array();
    char *text = NULL;
    size_t size = 0, i = 0;
    FILE *out = open_memstream(&text, &size);
    int rc = out ? 0 : -ENOMEM;

    while (!rc && i < live->n_members) {
        int failed = ask_member(live, i, out, list);
        if (!failed) {
            i++;
            continue;
        }
        if (stopping_observer(&live->stopping) || live->n_members == 1)
            rc = failed;
        drop_member(live, i);
    }
    if (!rc && live->options->metrics && strcmp(live->options->metrics, "-") != 0)
        rc = write_metrics(live, list);
    else if (!rc && live->options->metrics)
        live->view->print_metrics(out, list);
    else if (!rc && live->options->json)
        live_print_json(out, list, live->several, watching);
    else if (!rc && watching && !live->screen.terminal && !live->view->lines_in_pipe)
        fputc('\n', out); /* between blocks */
    if (out)
        fclose(out);
    if (!rc && watching)
        screen_draw(&live->screen, text);
    else if (!rc)
        fputs(text, stdout);
    free(text);
    json_decref(list);
    return rc;
}

/* Waits until the next answer is due and keeps all sessions alive. The end of any daemon ends the wait. */
static int wait_all(struct live *live, uint64_t until)
{
    for (uint64_t now = live_now_ms(); now < until; now = live_now_ms()) {
        const uint64_t left = until - now;
        live->until = until + PATIENCE_MS;
        for (size_t i = 0; i < live->n_members; i++) {
            const uint64_t slice = live->n_members == 1 || left < SLICE_MS ? left : SLICE_MS;
            int rc = eps_observer_wait(live->members[i].observer, slice, &live->error);
            if (!rc)
                continue;
            if (stopping_observer(&live->stopping))
                return rc;
            drop_member(live, i);
            return live->n_members > 0 ? 0 : rc;
        }
    }
    return 0;
}

/* A round that took longer than the period does not hurry the next ones. */
static int live_watch(struct live *live)
{
    const uint64_t period = (uint64_t)(live->options->watch_s * 1000);
    uint64_t due = live_now_ms();
    int rc = 0;

    while (!rc && !ferror(stdout)) {
        rc = live_show(live);
        due = live_now_ms() >= due + period ? live_now_ms() + period : due + period;
        if (!rc)
            rc = wait_all(live, due);
        if (!rc && !live->options->address)
            rc = live_gather(live);
    }
    return rc;
}

static int live_run(const struct command *command, const struct live_view *view, const struct live_options *options)
{
    struct live live = {.view = view, .options = options};
    struct ended ended;
    int rc;

    stopping_init(&live.stopping);
    screen_init(&live.screen, stdout);
    if (options->json || options->metrics)
        live.screen.terminal = false;
    rc = options->address ? 0 : live_gather(&live);
    if (!rc && live.n_members == 0)
        rc = open_member(&live, options->address); /* its error says why there is none */
    const bool begun = !rc;
    if (!rc)
        rc = options->watch_s > 0 ? live_watch(&live) : live_show(&live);
    while (live.n_members > 0)
        drop_member(&live, 0);
    free(live.members);
    if (rc && stopping_observer(&live.stopping)) {
        if (live.screen.begun)
            putchar('\n'); /* below the echoed ^C */
        return stopping_status(&live.stopping, 0);
    }
    if (rc == -EIO && begun && options->watch_s > 0) {
        if (!options->json && !options->metrics && !ended_read(&ended, live.out, -ENOENT))
            puts("ended");
        else if (!options->json && !options->metrics)
            ended_print(stdout, &ended);
        return 0;
    }
    if (rc == -EINTR) /* the timeout */
        return arguments_fail(command, rc, "the daemon does not answer");
    if (rc && !begun && !options->json && !options->metrics && ended_read(&ended, options->address, rc)) {
        ended_print(stdout, &ended);
        return 0;
    }
    return rc ? arguments_fail(command, rc, live.error.text) : 0;
}

int live_command(int argc, char **argv, const struct live_view *view)
{
    struct live_options options = {0};
    const struct argument arguments[] = {
        {"ADDRESS", NULL, ARGUMENT_POSITIONAL, &options.address,
         "the daemon's name or directory, or its run's --out; default: all your daemons"},
        {"--watch", "[SECONDS]", ARGUMENT_PERIOD, &options.watch_s,
         view->lines_in_pipe ? "repeat every second, or every SECONDS, until the daemon ends or Ctrl-C; in place on a "
                               "terminal, one line each time in a pipe"
                             : "repeat every second, or every SECONDS, until the daemon ends or Ctrl-C; in place on a "
                               "terminal, one block each time in a pipe"},
        {"--json", NULL, ARGUMENT_FLAG, &options.json, view->json},
        {"--prometheus", "[FILE]", ARGUMENT_MAYBE, &options.metrics,
         "write metrics for the textfile collector of Prometheus' node exporter. FILE, which ends in .prom, is "
         "replaced atomically; without FILE, standard output"},
    };
    const size_t n_arguments = sizeof arguments / sizeof *arguments - (view->print_metrics ? 0 : 1);
    const struct command command = {view->name, view->text, arguments, n_arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status < 0 && options.json && options.metrics)
        return arguments_fail(&command, -EDOM, "give --json or --prometheus, not both");
    return status >= 0 ? status : live_run(&command, view, &options);
}

void live_print_status(FILE *out, const struct eps_status *s)
{
    char step[48] = "-";

    if (*s->model && s->n_steps)
        snprintf(step, sizeof step, "%" PRIu64 "/%" PRIu64, s->step, s->n_steps);
    fprintf(out, "%-18s  %-10s  %11s  %-26s  pid %-7" PRIu32 "  %s%s", live_name(s->address), s->state, step,
            *s->model ? s->model : "-", s->pid, *s->out ? s->out : "-", *s->trouble ? "  NOT SAVED" : "");
}
