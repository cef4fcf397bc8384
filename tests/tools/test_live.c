/* eps status, mem, save and stop on live daemons: which one is meant, what is said of one and of several, watching in a
 * pipe and on a terminal, and two of everything. Real programs. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_FIXTURE(processes_setup, processes_remove)

static const char *text_at(json_t *object, const char *path)
{
    const char *text = json_string_value(json_at(object, path));

    ck_assert_msg(text != NULL, "no text %s", path);
    return text;
}

static void stop_daemon(const char *name, pid_t pid)
{
    expect(print("eps stop %s", name), 0);
    ck_assert_int_eq(processes_wait(pid), 0);
}

/* Runs a command of eps that goes on; what it prints goes to the file. */
static pid_t start_into(const char *file, const char *command)
{
    const char *const arguments[] = {"-c", print("exec %s/eps %s >%s", BIN_DIR, command, file), NULL};

    return processes_start("/bin/sh", arguments, NULL);
}

/* Until the file has n lines more than it had. */
static void await_more(const char *file, unsigned n)
{
    processes_await_count(file, "\n", processes_count(file, "\n") + n);
}

TEST(without_a_name_one_daemon_is_the_one)
{
    static const char *const keys[] = {"state",
                                       "step",
                                       "n_steps",
                                       "model",
                                       "parameters",
                                       "workers",
                                       "pid",
                                       "uid",
                                       "loss",
                                       "saving",
                                       "saved_step",
                                       "trouble",
                                       "audits",
                                       "audits_redone",
                                       "out",
                                       "address",
                                       "precision",
                                       "commit",
                                       "optimizer_threads",
                                       "idle_workers",
                                       "job",
                                       "queue",
                                       "workers_elsewhere",
                                       "attached",
                                       "left_out"};
    pid_t lab = processes_daemon("lab", 0, NULL);

    expect("eps status", 0, "state        idle, 0 workers, pid ", PROCESSES_RUNTIME "/eps/lab\n");
    json_t *status = expect_json("eps status --json", 0);
    for (int i = 0; i < COUNT(keys); i++)
        json_at(status, keys[i]);
    ck_assert_uint_eq(json_object_size(status), COUNT(keys));
    ck_assert_str_eq(text_at(status, "state"), "idle");
    ck_assert_int_eq((int)json_number_at(status, "pid"), lab);
    ck_assert(json_is_null(json_at(status, "loss")));
    ck_assert_str_eq(strrchr(text_at(status, "address"), '/'), "/lab");
    json_decref(status);
    expect("eps mem", 0, "host", "total");
    expect("eps stop --json", 0, "\"stopped\": true");
    ck_assert_int_eq(processes_wait(lab), 0);
    expect_refusal(&(struct refusal){"eps status", 1, "no daemon of yours is running", PROCESSES_RUNTIME "/eps"});
}

TEST(several_are_listed_and_not_chosen_from)
{
    pid_t home = processes_daemon("home", 0, NULL), lab = processes_daemon("lab", 0, NULL);

    for (int mem = 0; mem < 2; mem++) {
        expect(print("eps %s", mem ? "mem" : "status"), 0, "home  ", "\nlab  ");
        ck_assert_uint_eq(command_out_lines(), 2);
        json_t *all = expect_json(print("eps %s --json", mem ? "mem" : "status"), 0);
        ck_assert_uint_eq(json_array_size(json_at(all, "daemons")), 2);
        ck_assert_str_eq(strrchr(text_at(all, "daemons.0.address"), '/'), "/home");
        ck_assert_str_eq(strrchr(text_at(all, "daemons.1.address"), '/'), "/lab");
        json_at(all, mem ? "daemons.1.host" : "daemons.1.state");
        json_decref(all);
        expect_refusal(&(struct refusal){print("eps %s", mem ? "stop" : "save"), 1, "2 daemons are running",
                                         "name one of home, lab"});
    }
    expect("eps status home --json", 0, print("\"pid\": %d", (int)home));
    expect(print("eps status %s", processes_path(PROCESSES_RUNTIME "/eps/home")), 0, "state ", "/home\n");
    ck_assert_int_eq(mkdir("somewhere", 0700), 0);
    expect("eps status ./somewhere", 1, "./somewhere: no daemon of yours", "see eps status");
    expect("eps save somewhere", 1, "somewhere: no daemon of yours", "see eps status");
    expect("eps stop elsewhere", 1, "no daemon at ", PROCESSES_RUNTIME "/eps/elsewhere");
    expect_refusal(&(struct refusal){"eps save home", 1, "eps save: the daemon trains nothing", NULL});

    /* One that hangs costs the list 3 s and a word on stderr, nothing else. */
    ck_assert_int_eq(kill(home, SIGSTOP), 0);
    expect("eps status", 0, "lab  ", "idle");
    ck_assert_holds(command_err(), "eps status: home: ", "does not answer");
    ck_assert_int_eq(kill(home, SIGCONT), 0);
    stop_daemon("home", home);
    stop_daemon("", lab);
}

/* Where a worker is: in text, and as JSON. */
TEST(every_observer_tells_host_and_pid_of_a_worker)
{
    pid_t worker, lab = processes_daemon("lab", 1, &worker);
    char host[65];

    ck_assert_int_eq(gethostname(host, sizeof host), 0);
    const char *where = print("on %s, pid %d\n", host, (int)worker);
    expect("eps status", 0, where);
    expect("eps mem", 0, where, print("on %s, pid %d\n", host, (int)lab));
    expect("eps top --once", 0, where);
    json_t *status = expect_json("eps status --json", 0), *memory = expect_json("eps mem --json", 0);
    ck_assert_int_eq((int)json_number_at(status, "attached.0.pid"), worker);
    ck_assert_str_eq(text_at(status, "attached.0.on"), host);
    ck_assert_int_eq((int)json_number_at(memory, "workers.0.pid"), worker);
    ck_assert_str_eq(text_at(memory, "workers.0.on"), host);
    ck_assert_int_eq((int)json_number_at(memory, "host.pid"), lab);
    json_decref(status);
    json_decref(memory);
    stop_daemon("lab", lab);
}

/* Each side of a daemon with a worker, as the system sees it too; and the same as a file for Prometheus, which is
 * replaced as a whole. */
TEST(memory_is_told_with_its_pages_and_as_metrics)
{
    static const char *const keys[] = {"current",  "peak",   "planned", "categories",
                                       "resident", "locked", "huge",    "numa"};
    pid_t worker, lab = processes_daemon("lab", 1, &worker);

    json_t *all = expect_json("eps mem --json", 0);
    for (int i = 0; i < COUNT(keys); i++)
        json_at(all, print("host.%s", keys[i])), json_at(all, print("workers.0.%s", keys[i]));
    ck_assert(json_number_at(all, "host.resident") > 0 && json_number_at(all, "workers.0.resident") > 0);
    json_decref(all);
    expect("eps mem lab --prometheus lab.prom", 0);
    expect("eps mem --prometheus", 0, "# TYPE eps_memory_bytes gauge\n", "{daemon=\"lab\",side=\"worker\",worker=\"");
    expect_file("lab.prom", "# HELP ", "eps_memory_budget_bytes{");
    ck_assert_int_ne(access("lab.prom.partial", F_OK), 0);
    expect("eps mem lab --prometheus nowhere/lab.prom", 1, "eps mem: --prometheus nowhere/lab.prom: ", "No such file");
    ck_assert_int_eq(symlink("/proc/self/fd/1", "link.prom"), 0);
    expect("eps mem lab --prometheus link.prom", 1, "eps mem: --prometheus link.prom: not a regular file",
           "leave it out");
    ck_assert_int_eq(symlink("all.json", "lab.prom.partial"), 0); /* by another: it is replaced, not followed */
    expect("echo mine >all.json && eps mem lab --prometheus lab.prom && grep -q mine all.json && test -f lab.prom", 0);
    expect("test ! -L lab.prom && test ! -e lab.prom.partial", 0);
    stop_daemon("lab", lab);
}

/* A line a period in a pipe, over one session; daemons come and go, and the watch ends with the last. */
TEST(a_watch_without_a_name_follows_all_until_the_end)
{
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = start_into("watch", "status --watch 0.1"), home;
    const char *sockets = print("readlink /proc/%d/fd/* | grep socket:", (int)watcher);

    await_more("watch", 1);
    expect(sockets, 0);
    ck_assert_uint_eq(command_out_lines(), 1);
    char *before = strdup(command_out());
    await_more("watch", 5);
    expect(sockets, 0);
    ck_assert_str_eq(command_out(), before);
    free(before);
    home = processes_daemon("home", 0, NULL);
    await_more("watch", 4);
    expect_file("watch", "lab  ", "home  ");
    stop_daemon("lab", lab);
    await_more("watch", 3);
    stop_daemon("home", home);
    ck_assert_int_eq(processes_wait(watcher), 0);
    char *said = processes_read("watch");
    ck_assert_str_eq(said + strlen(said) - 7, "\nended\n");
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n"))
        ck_assert_msg(!strncmp(line, "lab  ", 5) || !strncmp(line, "home  ", 6) || !strcmp(line, "ended"), "%s", line);
    free(said);
}

TEST_EACH(a_watch_for_programs_is_an_object_a_line_until_a_signal, 2)
{
    const int number = _i ? SIGTERM : SIGINT;
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = start_into("watch", "mem --watch 0.1 --json");

    await_more("watch", 3);
    ck_assert_int_eq(kill(watcher, number), 0);
    ck_assert_int_eq(processes_wait(watcher), 128 + number);
    char *said = processes_read("watch");
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n")) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(object && json_object_get(object, "host"), "%s", line);
        json_decref(object);
    }
    free(said);
    stop_daemon("lab", lab);
}

/* A terminal that eps watches on, and all that it has shown. */
static struct {
    int fd;
    size_t n;
    char said[65536];
} tty;

static pid_t watch_on(const char *term, const char *what, const struct winsize *size)
{
    const pid_t pid = forkpty(&tty.fd, NULL, NULL, size);

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        setenv("TERM", term, 1);
        execl(BIN_DIR "/eps", "eps", what, "--watch", "0.1", (char *)NULL);
        _exit(127);
    }
    return pid;
}

/* Until `what` has come n times. */
static void read_until(const char *what, unsigned n)
{
    for (;;) {
        struct pollfd ready = {.fd = tty.fd, .events = POLLIN};
        unsigned found = 0;
        tty.said[tty.n] = 0;
        for (const char *at = tty.said; (at = strstr(at, what)); at++)
            found++;
        if (found >= n)
            return;
        ck_assert_int_eq(poll(&ready, 1, 60000), 1);
        ssize_t got = read(tty.fd, tty.said + tty.n, sizeof tty.said - 1 - tty.n);
        ck_assert_msg(got > 0, "ended: %s", tty.said);
        tty.n += (size_t)got;
    }
}

/* 30 columns: home each time, every line erased to its end and never wider than the terminal, nothing cleared whole,
 * nothing left switched. Then the window grows. */
TEST(on_a_terminal_a_watch_redraws_in_place)
{
    struct winsize size = {.ws_row = 10, .ws_col = 30};
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = watch_on("xterm", "status", &size);

    read_until("\033[J", 3);
    for (const char *line = strstr(tty.said, "\033[H") + 3; line && *line; line = strchr(line, '\n')) {
        line += strspn(line, "\n");
        while (*line == '\033')
            line += 3;
        const size_t width = strcspn(line, "\033\r\n");
        ck_assert_uint_le(width, 29);
        ck_assert(width == 0 || line[width] == 0 || strncmp(line + width, "\033[K\r\n", 5) == 0);
    }
    ck_assert_holds(tty.said, "\033[Hstate        idle, 0 workers,\033[K\r\n"); /* 29 columns of it */
    ck_assert(!strstr(tty.said, "\033[2J") && !strstr(tty.said, "\033[?"));
    size.ws_col = 100;
    ck_assert_int_eq(ioctl(tty.fd, TIOCSWINSZ, &size), 0);
    read_until("\033[Hstate        idle, 0 workers, pid ", 1);
    ck_assert_int_eq((int)write(tty.fd, "\003", 1), 1); /* Ctrl-C */
    ck_assert_int_eq(processes_wait(watcher), 130);
    stop_daemon("lab", lab);
}

TEST(a_dumb_terminal_gets_plain_lines)
{
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = watch_on("dumb", "mem", NULL);

    read_until("total", 2);
    ck_assert_ptr_null(strchr(tty.said, '\033'));
    stop_daemon("lab", lab);
    ck_assert_int_eq(processes_wait(watcher), 0);
}

/* The kernel lists the daemon's own end, and that of each who has come. */
static bool two_are_at_the_connection(void *context)
{
    (void)context;
    return processes_count("/proc/net/unix", processes_path(PROCESSES_RUNTIME "/eps/lab/listener")) == 3;
}

TEST(two_stops_at_once_both_succeed)
{
    const char *const stop[] = {"stop", "lab", NULL};
    const char *log = processes_path("stops");
    pid_t lab = processes_daemon("lab", 0, NULL);

    ck_assert_int_eq(kill(lab, SIGSTOP), 0); /* so that both are at its connection before it hears of either */
    pid_t first = processes_start("eps", stop, log), second = processes_start("eps", stop, log);
    ck_assert(processes_until(two_are_at_the_connection, NULL));
    ck_assert_int_eq(kill(lab, SIGCONT), 0);
    ck_assert_int_eq(processes_wait(lab), 0);
    const int a = processes_wait(first), b = processes_wait(second);
    ck_assert_msg(a == 0 && b == 0, "%d, %d: %s", a, b, processes_read(log));
}

/* Where Prometheus' own checker is installed. */
static const char check_metrics[] = "if command -v promtool; then eps mem --prometheus | promtool check metrics; fi";

/* A run with processes of its own that is some steps in; its output directory is `book`. */
static pid_t begin_run(void)
{
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("tiny.txt", 8000);
    pid_t client = start_into("train", "train --model tiny.json --data tiny.txt --out book --steps 1000000 --batch 4 "
                                       "--save-every 900000 --device-mem 256MiB --host-mem 1GiB");
    await_more("book/metrics.jsonl", 3);
    return client;
}

/* Named after itself, found without a name or by its output directory, saved while it goes on, gone with its client. */
TEST(a_private_run_is_found_saved_and_stopped)
{
    const char *const save[] = {"save", "--json", NULL};
    pid_t client = begin_run(), watcher = start_into("watch", "status --watch 0.1");

    json_t *status = expect_json("eps status --json", 0);
    ck_assert_str_eq(text_at(status, "state"), "training");
    ck_assert_holds(text_at(status, "address"), "/" PROCESSES_RUNTIME "/eps/run-");
    ck_assert_holds(text_at(status, "out"), "/book");
    ck_assert_int_eq((int)json_number_at(status, "n_steps"), 1000000);
    ck_assert(json_is_null(json_at(status, "saved_step")));
    json_decref(status);
    expect("eps mem", 0, "first_moment", "worker ");
    expect("eps mem --prometheus", 0, "\neps_steps{daemon=\"run-", "\"} 1000000\n", "\neps_loss{daemon=\"run-",
           "\neps_learning_rate{daemon=\"run-", "\neps_tokens_per_second{daemon=\"run-",
           ",side=\"host\"} 1073741824\n");
    expect("eps mem --prometheus | grep '^eps_tokens{' | grep -v '} 0$'", 0, "eps_tokens{daemon=\"run-");
    expect(check_metrics, 0);
    expect("eps status book", 0, "/book\n", "training", "\nsaved        nothing yet\n");
    expect("eps status ./book/../book/ --json", 0);
    expect(print("eps status %s", processes_path("book")), 0);
    expect("eps status .", 1);

    expect("eps save", 0, "/book/step-");
    const double first = atof(strstr(command_out(), "/step-") + 6);
    expect(print("eps verify %s", command_out()), 0);
    await_more("book/metrics.jsonl", 2);
    json_t *saved = expect_json("eps save book --json", 0);
    ck_assert_double_ge(json_number_at(saved, "step"), first);
    ck_assert_holds(text_at(saved, "path"), "/book/step-");
    json_decref(saved);
    pid_t one = processes_start("eps", save, NULL), two = processes_start("eps", save, NULL);
    ck_assert_int_eq(processes_wait(one), 0);
    ck_assert_int_eq(processes_wait(two), 0);
    expect("eps status", 0, "\nsaved        step ");
    status = expect_json("eps status --json", 0);
    ck_assert_double_ge(json_number_at(status, "saved_step"), first);
    ck_assert(json_is_null(json_at(status, "trouble")));
    json_decref(status);

    expect("eps stop book", 0, "saving, then stopping; Ctrl-C to stop at once\n");
    ck_assert_int_gt(processes_wait(client), 0);
    ck_assert_int_eq(processes_wait(watcher), 0);
    expect_file("watch", "/1000000", "\nstate        ended: no daemon of yours has this run\nstep         ");
    expect("eps verify book", 0); /* what it promised */
    expect("eps status", 1);
    ck_assert_int_eq(rmdir(PROCESSES_RUNTIME "/eps"), 0); /* empty */
}

static pid_t begin_stop(const char *log)
{
    const pid_t stop = start_into(log, "stop");

    processes_await_text(log, "saving, then stopping; Ctrl-C to stop at once\n");
    return stop;
}

/* The client hangs, so that what it promised is never saved. All who ask for the end wait for it alike. SIGTERM ends
 * one's wait, another's first Ctrl-C the daemon. */
TEST(ctrl_c_ends_at_once_what_several_wait_for)
{
    pid_t client = begin_run();

    ck_assert_int_eq(kill(client, SIGSTOP), 0);
    const pid_t first = begin_stop("first"), second = begin_stop("second"), third = begin_stop("third");
    ck_assert_int_eq(kill(first, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(first), 128 + SIGTERM);
    expect("eps status", 0, "stopping", "/book\n");
    ck_assert_int_eq(kill(third, SIGINT), 0);
    ck_assert_int_eq(processes_wait(third), 0);
    ck_assert_int_eq(processes_wait(second), 0);
    expect_file("third", "\nstopping at once\n");
    ck_assert_int_eq(kill(client, SIGCONT), 0);
    ck_assert_int_gt(processes_wait(client), 0);
}

/* A directory of a run is asked for, and not a daemon: what is over is no mistake. For programs it is an error, as it
 * was. */
TEST(a_run_that_has_ended_says_so_with_its_last_step)
{
    static const char *const commands[] = {"status", "top", "top --once"};

    processes_config("config.json", 1, 2, 16, 32);
    processes_text("text", 4096);
    expect("eps train --model config.json --data text --out over --steps 3 --batch 2 --seq 16", 0);
    for (int i = 0; i < COUNT(commands); i++) {
        expect(print("eps %s over", commands[i]), 0, "state        ended: ", "\nstep         3 of 3, loss ",
               ", held out ", " after step 3\n", "\nout          over\nsaved        step 3\n");
        ck_assert_str_eq(command_err(), "");
    }
    expect("eps status over --json", 1, "over: no daemon of yours");
    expect("eps status over --watch", 0, "state        ended: ");
    ck_assert_int_eq(mkdir("nothing", 0700), 0);
    expect("eps status nothing", 1, "nothing: no daemon of yours");
}
