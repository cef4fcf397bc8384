/* eps status, mem, save and stop on live daemons: which one is meant, what is said of one and of several, watching in a
 * pipe and on a terminal, and two of everything. Real programs. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char watch_file[300];

static void setup(void)
{
    processes_setup();
    snprintf(watch_file, sizeof watch_file, "%s", processes_path("watch"));
}

SUITE_FIXTURE(setup, processes_remove)

static size_t count_lines(const char *file)
{
    char *said = processes_read(file);
    size_t n = 0;

    for (const char *at = said; (at = strchr(at, '\n')); at++)
        n++;
    free(said);
    return n;
}

static const char *text_at(json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));

    ck_assert_msg(text != NULL, "no text %s", key);
    return text;
}

static void stop_daemon(const char *name, pid_t pid)
{
    expect(print("eps stop %s", name), 0);
    ck_assert_int_eq(processes_wait(pid), 0);
}

TEST(without_a_name_one_daemon_is_the_one)
{
    static const char *const keys[] = {"state", "step",    "n_steps",   "model",  "parameters",       "workers",
                                       "pid",   "uid",     "loss",      "saving", "saved_step",       "trouble",
                                       "out",   "address", "precision", "commit", "optimizer_threads"};
    pid_t lab = processes_daemon("lab", 0, NULL);

    expect("eps status", 0, "state        idle, 0 workers, pid ", "run/eps/lab\n");
    json_t *status = expect_json("eps status --json", 0);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_msg(json_object_get(status, keys[i]) != NULL, "no %s", keys[i]);
    ck_assert_uint_eq(json_object_size(status), sizeof keys / sizeof *keys);
    ck_assert_str_eq(text_at(status, "state"), "idle");
    ck_assert_int_eq(json_integer_value(json_object_get(status, "pid")), lab);
    ck_assert(json_is_null(json_object_get(status, "loss")));
    ck_assert_str_eq(strrchr(text_at(status, "address"), '/'), "/lab");
    json_decref(status);
    expect("eps mem", 0, "host", "total");
    stop_daemon("", lab);
    expect_refusal(&(struct refusal){"eps status", 1, "no daemon of yours is running", "run/eps"});
}

TEST(several_are_listed_and_not_chosen_from)
{
    pid_t home = processes_daemon("home", 0, NULL), lab = processes_daemon("lab", 0, NULL);

    for (int mem = 0; mem < 2; mem++) {
        expect(print("eps %s", mem ? "mem" : "status"), 0, "home  ", "\nlab  ");
        ck_assert_uint_eq(command_out_lines(), 2);
        json_t *all = expect_json(print("eps %s --json", mem ? "mem" : "status"), 0),
               *daemons = json_object_get(all, "daemons");
        ck_assert_uint_eq(json_array_size(daemons), 2);
        ck_assert_str_eq(strrchr(text_at(json_array_get(daemons, 0), "address"), '/'), "/home");
        ck_assert_str_eq(strrchr(text_at(json_array_get(daemons, 1), "address"), '/'), "/lab");
        ck_assert_ptr_nonnull(json_object_get(json_array_get(daemons, 1), mem ? "host" : "state"));
        json_decref(all);
        expect_refusal(&(struct refusal){print("eps %s", mem ? "stop" : "save"), 1, "2 daemons are running",
                                         "name one of home, lab"});
    }
    json_t *one = expect_json("eps status home --json", 0);
    ck_assert_int_eq(json_integer_value(json_object_get(one, "pid")), home);
    json_decref(one);
    expect(print("eps status %s", processes_path("run/eps/home")), 0, "state ", "/home\n");
    stop_daemon("home", home);
    stop_daemon("", lab);
}

/* Each side of a daemon with a worker, as the system sees it too; and the same as a file for Prometheus, which is
 * replaced as a whole. */
TEST(memory_is_told_with_its_pages_and_as_metrics)
{
    static const char *const keys[] = {"current",  "peak",   "planned", "categories",
                                       "resident", "locked", "huge",    "numa"};
    pid_t worker, lab = processes_daemon("lab", 1, &worker);

    json_t *all = expect_json("eps mem --json", 0), *host = json_object_get(all, "host");
    const json_t *one = json_array_get(json_object_get(all, "workers"), 0);
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        ck_assert_msg(json_object_get(host, keys[i]) && json_object_get(one, keys[i]), "no %s", keys[i]);
    ck_assert_int_gt(json_integer_value(json_object_get(host, "resident")), 0);
    ck_assert_int_gt(json_integer_value(json_object_get(one, "resident")), 0);
    json_decref(all);
    expect("eps mem lab --prometheus lab.prom", 0);
    expect("eps mem --prometheus", 0, "# TYPE eps_memory_bytes gauge\n", "{daemon=\"lab\",side=\"worker\",worker=\"");
    expect_file("lab.prom", "# HELP ", "eps_memory_budget_bytes{");
    ck_assert_int_ne(access(processes_path("lab.prom.partial"), F_OK), 0);
    expect("eps mem lab --prometheus nowhere/lab.prom", 1, "eps mem: --prometheus nowhere/lab.prom: ", "No such file");
    ck_assert_int_eq(symlink("/proc/self/fd/1", processes_path("link.prom")), 0);
    expect("eps mem lab --prometheus link.prom", 1, "eps mem: --prometheus link.prom: not a regular file",
           "leave it out");
    expect("eps mem --json --prometheus", 2, "--json or --prometheus", "not both");
    stop_daemon("lab", lab);
}

/* One that hangs costs the list 3 s and a word on stderr, nothing else. */
TEST(one_that_does_not_answer_hides_no_other)
{
    pid_t home = processes_daemon("home", 0, NULL), lab = processes_daemon("lab", 0, NULL);

    ck_assert_int_eq(kill(home, SIGSTOP), 0);
    expect("eps status", 0, "lab  ", "idle");
    ck_assert_msg(strstr(command_err(), "eps status: home: ") && strstr(command_err(), "does not answer"), "%s",
                  command_err());
    ck_assert_int_eq(kill(home, SIGCONT), 0);
    stop_daemon("home", home);
    stop_daemon("lab", lab);
}

TEST(what_is_asked_for_in_vain_is_one_sentence)
{
    pid_t lab = processes_daemon("lab", 0, NULL);

    ck_assert_int_eq(mkdir(processes_path("somewhere"), 0700), 0);
    expect("eps status ./somewhere", 1, "./somewhere: no daemon at it", "trains into it");
    expect("eps save somewhere", 1, "somewhere: no daemon at it", "trains into it");
    expect("eps stop elsewhere", 1, "no daemon at ", "run/eps/elsewhere");
    expect_refusal(&(struct refusal){"eps save", 1, "eps save: the daemon trains nothing", NULL});
    expect("eps status --watch 0", 2, "--watch '0'", "0.1 to 86400");
    expect("eps status --watch=soon", 2, "--watch 'soon'", "seconds");
    stop_daemon("lab", lab);
}

/* eps ..., going on; what it prints goes to the file. */
static pid_t start_into(const char *file, const char *const *argv)
{
    char path[400];
    const char *all[8] = {"eps"};
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    for (size_t i = 0; argv[i]; i++)
        all[i + 1] = argv[i];
    snprintf(path, sizeof path, "%s/eps", BIN_DIR);
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    dup2(fd, STDOUT_FILENO);
    signal(SIGINT, SIG_DFL);
    execv(path, (char *const *)all);
    _exit(127);
}

static pid_t watch(const char *what, const char *period, const char *json)
{
    const char *const argv[] = {what, "--watch", period, json, NULL};

    return start_into(watch_file, argv);
}

static int status_of(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static size_t wanted_lines;

static bool has_lines(void *context)
{
    return access(context, R_OK) == 0 && count_lines(context) >= wanted_lines;
}

static void await_lines_of(const char *file, size_t n)
{
    wanted_lines = n;
    ck_assert(processes_until(has_lines, (void *)(uintptr_t)file));
}

static void await_lines(size_t n)
{
    await_lines_of(watch_file, n);
}

TEST(a_watch_in_a_pipe_is_a_line_a_period_until_the_end)
{
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = watch("status", "0.1", NULL);

    await_lines(3);
    stop_daemon("lab", lab);
    ck_assert_int_eq(status_of(watcher), 0);
    char *said = processes_read(watch_file);
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n"))
        ck_assert_msg(strncmp(line, "lab  ", 5) == 0 || strcmp(line, "ended") == 0, "%s", line);
    free(said);
    said = processes_read(watch_file);
    ck_assert_str_eq(said + strlen(said) - 7, "\nended\n");
    free(said);
}

TEST(a_watch_for_programs_is_an_object_a_line)
{
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = watch("mem", "0.1", "--json");

    await_lines(3);
    ck_assert_int_eq(kill(watcher, SIGINT), 0);
    ck_assert_int_eq(status_of(watcher), 130);
    char *said = processes_read(watch_file);
    size_t n = 0;
    for (char *line = strtok(said, "\n"); line; line = strtok(NULL, "\n"), n++) {
        json_t *object = json_loads(line, JSON_REJECT_DUPLICATES, NULL);
        ck_assert_msg(object && json_object_get(object, "host"), "%s", line);
        json_decref(object);
    }
    ck_assert_uint_ge(n, 3);
    free(said);
    stop_daemon("lab", lab);
}

/* The sockets of a process; *name is the last one's. */
static unsigned n_sockets(pid_t pid, char *name, size_t cap)
{
    char path[400];
    unsigned n = 0;

    snprintf(path, sizeof path, "/proc/%d/fd", (int)pid);
    DIR *dir = opendir(path);
    ck_assert_ptr_nonnull(dir);
    for (const struct dirent *entry; (entry = readdir(dir));) {
        char link[100] = "";
        snprintf(path, sizeof path, "/proc/%d/fd/%s", (int)pid, entry->d_name);
        if (readlink(path, link, sizeof link - 1) > 0 && strncmp(link, "socket:", 7) == 0) {
            snprintf(name, cap, "%s", link);
            n++;
        }
    }
    closedir(dir);
    return n;
}

TEST(a_watch_keeps_its_session)
{
    char before[100], after[100];
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = watch("status", "0.1", NULL);

    await_lines(1);
    ck_assert_uint_eq(n_sockets(watcher, before, sizeof before), 1);
    await_lines(count_lines(watch_file) + 5);
    ck_assert_uint_eq(n_sockets(watcher, after, sizeof after), 1);
    ck_assert_str_eq(before, after);
    ck_assert_int_eq(kill(watcher, SIGTERM), 0);
    ck_assert_int_eq(status_of(watcher), 128 + SIGTERM);
    stop_daemon("lab", lab);
}

/* They come and go; the watch ends with the last. */
TEST(a_watch_without_a_name_follows_all)
{
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = watch("status", "0.1", NULL), home;

    await_lines(2);
    home = processes_daemon("home", 0, NULL);
    await_lines(count_lines(watch_file) + 4);
    expect_file(watch_file, "lab  ", "home  ");
    stop_daemon("lab", lab);
    await_lines(count_lines(watch_file) + 3);
    stop_daemon("home", home);
    ck_assert_int_eq(status_of(watcher), 0);
    char *said = processes_read(watch_file);
    ck_assert_str_eq(said + strlen(said) - 7, "\nended\n");
    free(said);
}

/* Reads from a terminal until `what` has come n times; everything read is kept. */
static void read_until(int fd, char *said, size_t *n_said, size_t cap, const char *what, unsigned n)
{
    for (;;) {
        struct pollfd ready = {.fd = fd, .events = POLLIN};
        unsigned found = 0;
        said[*n_said] = 0;
        for (const char *at = said; (at = strstr(at, what)); at++)
            found++;
        if (found >= n)
            return;
        ck_assert_int_eq(poll(&ready, 1, 60000), 1);
        ssize_t got = read(fd, said + *n_said, cap - 1 - *n_said);
        ck_assert_msg(got > 0, "ended: %s", said);
        *n_said += (size_t)got;
    }
}

/* 30 columns: home each time, every line erased to its end and never wider than the terminal, nothing cleared whole,
 * nothing left switched. Then the window grows. */
TEST(on_a_terminal_a_watch_redraws_in_place)
{
    struct winsize size = {.ws_row = 10, .ws_col = 30};
    char said[65536], path[400];
    size_t n = 0;
    int fd;
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = forkpty(&fd, NULL, NULL, &size);

    ck_assert_int_ge(watcher, 0);
    if (watcher == 0) {
        snprintf(path, sizeof path, "%s/eps", BIN_DIR);
        setenv("TERM", "xterm", 1);
        execl(path, "eps", "status", "--watch", "0.1", (char *)NULL);
        _exit(127);
    }
    read_until(fd, said, &n, sizeof said, "\033[J", 3);
    for (const char *line = strstr(said, "\033[H") + 3; line && *line; line = strchr(line, '\n')) {
        line += strspn(line, "\n");
        while (*line == '\033')
            line += 3;
        const size_t width = strcspn(line, "\033\r\n");
        ck_assert_uint_le(width, 29);
        ck_assert(width == 0 || line[width] == 0 || strncmp(line + width, "\033[K\r\n", 5) == 0);
    }
    ck_assert_ptr_nonnull(strstr(said, "\033[Hstate        idle, 0 workers,\033[K\r\n")); /* 29 columns of it */
    ck_assert_ptr_null(strstr(said, "\033[2J"));
    ck_assert_ptr_null(strstr(said, "\033[?"));
    size.ws_col = 100;
    ck_assert_int_eq(ioctl(fd, TIOCSWINSZ, &size), 0);
    read_until(fd, said, &n, sizeof said, "\033[Hstate        idle, 0 workers, pid ", 1);
    ck_assert_int_eq((int)write(fd, "\003", 1), 1); /* Ctrl-C */
    ck_assert_int_eq(status_of(watcher), 130);
    close(fd);
    stop_daemon("lab", lab);
}

TEST(a_dumb_terminal_gets_plain_lines)
{
    char said[65536], path[400];
    size_t n = 0;
    int fd;
    pid_t lab = processes_daemon("lab", 0, NULL), watcher = forkpty(&fd, NULL, NULL, NULL);

    ck_assert_int_ge(watcher, 0);
    if (watcher == 0) {
        snprintf(path, sizeof path, "%s/eps", BIN_DIR);
        setenv("TERM", "dumb", 1);
        execl(path, "eps", "mem", "--watch", "0.1", (char *)NULL);
        _exit(127);
    }
    read_until(fd, said, &n, sizeof said, "total", 2);
    ck_assert_ptr_null(strchr(said, '\033'));
    stop_daemon("lab", lab);
    ck_assert_int_eq(status_of(watcher), 0);
    close(fd);
}

TEST(a_second_daemon_of_one_name_is_refused_and_the_first_goes_on)
{
    const char *const again[] = {"--listen", "lab", NULL};
    const char *log = processes_path("second.log");
    pid_t lab = processes_daemon("lab", 0, NULL);

    ck_assert_int_eq(processes_wait(processes_start("epsd", again, log)), 1);
    expect_file(log, "another daemon listens at ", "/lab");
    ck_assert_uint_eq(count_lines(log), 1);
    expect("eps status lab", 0);
    stop_daemon("lab", lab);
}

TEST(two_stops_at_once_both_succeed)
{
    const char *const stop[] = {"stop", "lab", NULL};
    const char *log = processes_path("stops");

    pid_t lab = processes_daemon("lab", 0, NULL);
    ck_assert_int_eq(kill(lab, SIGSTOP), 0); /* so that both are at its door before it hears of either */
    pid_t first = processes_start("eps", stop, log), second = processes_start("eps", stop, log);
    ck_assert_int_eq(kill(lab, SIGCONT), 0);
    ck_assert_int_eq(processes_wait(lab), 0);
    const int a = processes_wait(first), b = processes_wait(second);
    char *said = processes_read(log);
    ck_assert_msg(a == 0 || b == 0, "%d, %d: %s", a, b, said);
    ck_assert_msg(a + b == 0 || strstr(said, "daemon"), "%d, %d: %s", a, b, said);
    free(said);
}

/* A run with processes of its own that is some steps in; its output directory is `book`. */
static pid_t begin_run(void)
{
    char model[300], text[300], metrics[300];

    snprintf(model, sizeof model, "%s", processes_config("tiny.json", 1, 2, 16, 32));
    snprintf(text, sizeof text, "%s", processes_text("tiny.txt", 8000));
    snprintf(metrics, sizeof metrics, "%s", processes_path("book/metrics.jsonl"));
    const char *const train[] = {
        "train",   "--model", model,     "--data", text,           "--out",  processes_path("book"),
        "--steps", "1000000", "--batch", "4",      "--save-every", "900000", "--device-mem",
        "256MiB",  NULL};
    pid_t client = processes_start("eps", train, NULL);
    wanted_lines = 3;
    ck_assert(processes_until(has_lines, metrics));
    return client;
}

/* Named after itself, found without a name or by its output directory, gone with its client. */
TEST(a_private_run_is_found_and_stopped)
{
    pid_t client = begin_run(), watcher = watch("status", "0.1", NULL);

    json_t *status = expect_json("eps status --json", 0);
    ck_assert_str_eq(text_at(status, "state"), "training");
    ck_assert_ptr_nonnull(strstr(text_at(status, "address"), "/run/eps/run-"));
    ck_assert_ptr_nonnull(strstr(text_at(status, "out"), "/book"));
    ck_assert_int_eq(json_integer_value(json_object_get(status, "n_steps")), 1000000);
    ck_assert(json_is_null(json_object_get(status, "saved_step")));
    json_decref(status);
    expect("eps mem", 0, "first_moment", "worker ");
    expect("eps status book", 0, "/book\n", "training");
    expect("eps status ./book/../book/ --json", 0);
    expect(print("eps status %s", processes_path("book")), 0);
    expect("eps status .", 1);
    expect("eps stop book", 0, "saving, then stopping; again to stop at once\n");
    ck_assert_int_gt(processes_wait(client), 0);
    ck_assert_int_eq(status_of(watcher), 0);
    expect_file(watch_file, "/1000000", "\nended\n");
    expect("eps verify book", 0); /* what it promised */
    expect("eps status", 1);
    ck_assert_int_eq(rmdir(processes_path("run/eps")), 0); /* empty */
}

TEST(a_save_prints_what_stands_and_training_goes_on)
{
    const char *const save[] = {"save", "--json", NULL};
    pid_t client = begin_run();

    expect("eps save", 0);
    char *path = strdup(command_out());
    path[strcspn(path, "\n")] = 0;
    ck_assert_msg(strstr(path, "/book/step-") != NULL, "%s", path);
    expect(print("eps verify %s", path), 0);
    const double first = atof(strstr(path, "/step-") + 6);
    free(path);
    await_lines_of(processes_path("book/metrics.jsonl"), 5);
    json_t *saved = expect_json("eps save book --json", 0);
    ck_assert_double_ge(json_number_value(json_object_get(saved, "step")), first);
    ck_assert_ptr_nonnull(strstr(text_at(saved, "path"), "/book/step-"));
    json_decref(saved);
    pid_t one = processes_start("eps", save, NULL), two = processes_start("eps", save, NULL);
    ck_assert_int_eq(processes_wait(one), 0);
    ck_assert_int_eq(processes_wait(two), 0);
    json_t *status = expect_json("eps status --json", 0);
    ck_assert_double_ge(json_number_value(json_object_get(status, "saved_step")), first);
    ck_assert(json_is_null(json_object_get(status, "trouble")));
    json_decref(status);
    json_t *stopped = expect_json("eps stop --json", 0);
    ck_assert(json_is_true(json_object_get(stopped, "stopped")));
    json_decref(stopped);
    ck_assert_int_gt(processes_wait(client), 0);
}

/* The client hangs, so that what it promised is never saved: one stop waits for it, until Ctrl-C; the next does not. */
TEST(ctrl_c_leaves_a_stop_to_the_daemon)
{
    const char *const stop[] = {"stop", NULL};
    char log[300];
    pid_t client = begin_run();

    snprintf(log, sizeof log, "%s", processes_path("stop.log"));
    ck_assert_int_eq(kill(client, SIGSTOP), 0);
    pid_t first = start_into(log, stop);
    await_lines_of(log, 1);
    expect_file(log, "saving, then stopping", "");
    ck_assert_int_eq(kill(first, SIGINT), 0);
    ck_assert_int_eq(status_of(first), 130);
    expect("eps status", 0, "stopping", "/book\n");
    expect("eps stop", 0, "stopping at once\n");
    ck_assert_int_eq(kill(client, SIGCONT), 0);
    ck_assert_int_gt(processes_wait(client), 0);
}
