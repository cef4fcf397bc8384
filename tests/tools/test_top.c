/* eps top by what is on its screen, in tmux, over a daemon that trains. Real programs; skipped without tmux. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char screen_file[300];
static pid_t lab;

/* tmux with a server of this test's own. */
static int __attribute__((format(printf, 1, 2))) tmux(const char *format, ...)
{
    char command[1200];
    int n = snprintf(command, sizeof command, "tmux -S %s -f /dev/null ", processes_path("tmux"));
    va_list args;

    va_start(args, format);
    vsnprintf(command + n, sizeof command - (size_t)n, format, args);
    va_end(args);
    return system(command);
}

static void setup(void)
{
    unsetenv("TMUX");
    processes_setup();
    snprintf(screen_file, sizeof screen_file, "%s", processes_path("screen"));
}

static void teardown(void)
{
    if (tmux("kill-server 2>/dev/null")) /* no test got as far */
        unlink(screen_file);
    processes_remove();
}

/* What the last test left; its processes have gone with it. */
static void tidy(void)
{
    ck_assert_int_eq(system("rm -rf run/eps run-1 before after status pid"), 0);
    if (access("tmux", F_OK) == 0 && tmux("kill-session -t top 2>/dev/null"))
        unlink(screen_file);
}

SUITE_SKIP_UNLESS(system("command -v tmux >/dev/null") == 0, "no tmux")
SUITE_FIXTURE_ONCE(setup, teardown)
SUITE_FIXTURE(tidy, NULL)

/* A daemon named lab with a worker and a run that does not end by itself. */
static void start_run(void)
{
    static char model[300], data[300], out[300];
    snprintf(model, sizeof model, "%s", processes_config("config.json", 6, 2, 64, 64));
    snprintf(data, sizeof data, "%s", processes_text("text", 65536));
    snprintf(out, sizeof out, "%s", processes_path("run-1"));
    const char *const argv[] = {"train",     "--model", model,     "--data",       data,      "--out", out,
                                "--connect", "lab",     "--steps", "1000000",      "--batch", "4",     "--seq",
                                "64",        "--lr",    "1e-4",    "--save-every", "0",       NULL};

    lab = processes_daemon("lab", 1, NULL);
    processes_start("eps", argv, NULL);
}

/* What is on the screen; to be freed. */
static char *screen(void)
{
    ck_assert_int_eq(tmux("capture-pane -p -t top > %s", screen_file), 0);
    return processes_read(screen_file);
}

static bool shows(void *text)
{
    char *said = screen();
    const bool found = strstr(said, text) != NULL;

    free(said);
    return found;
}

static void await(const char *text)
{
    if (processes_until(shows, (void *)(uintptr_t)text))
        return;
    char *said = screen();
    ck_abort_msg("no '%s' in\n%s", text, said);
}

static bool is_there(void *path)
{
    return access(path, R_OK) == 0;
}

/* The server outlives its last session: one that is about to end would refuse the next test's. */
static int new_session(unsigned width, unsigned height)
{
    return tmux("start-server \\; set-option -s exit-empty off \\; "
                "new-session -d -s top -x %u -y %u 'env ENV= PS1=\"ready \" sh'",
                width, height);
}

/* A shell of this size in which eps top runs; behind it the exit status and the terminal's settings are kept. */
static void start_top(unsigned width, unsigned height)
{
    ck_assert_int_eq(new_session(width, height), 0);
    await("ready");
    ck_assert_int_eq(tmux("send-keys -t top 'cd %s; stty -g > before; sh -c \"echo \\$\\$ > pid; exec %s/eps top "
                          "lab\"; echo $? > status; stty -g > "
                          "after.partial; mv after.partial after' Enter",
                          processes_path("."), BIN_DIR),
                     0);
    await("eps top  lab  training");
}

static void check_end(const char *status)
{
    ck_assert(processes_until(is_there, (void *)(uintptr_t)processes_path("after")));
    char *before = processes_read(processes_path("before")), *after = processes_read(processes_path("after"));
    char *exited = processes_read(processes_path("status"));
    ck_assert_str_eq(before, after);
    ck_assert_str_eq(exited, status);
    free(before);
    free(after);
    free(exited);
}

/* What every screen has, whatever its size; the title and the map are found where they belong. NULL, or what is not. */
static const char *missing(const char *said)
{
    static const char *const parts[] = {"\nloss ",
                                        " tokens/s  ",
                                        " ms a step  ",
                                        " left  ",
                                        "\nworker ",
                                        " cpu  ",
                                        " MiB of  256.0 MiB",
                                        "] ",
                                        "down ",
                                        "up ",
                                        "\nhost  ",
                                        "  weights ",
                                        "\nunits 9 at ",
                                        "  . waits  > relayed  f folded"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(said, parts[i]))
            return parts[i];
    if (strncmp(said, "eps top  lab  training  step ", 29) != 0)
        return "title";
    const char *map = strstr(said, "\nunits ");
    map = strchr(map + 1, '\n') + 1;
    return strncmp(map, "  ", 2) == 0 && strspn(map + 2, ".+>fu") == 9 ? NULL : "map";
}

static bool is_whole(void *context)
{
    char *said = screen();
    const bool whole = !missing(said);

    (void)context;
    free(said);
    return whole;
}

/* A screen may be caught half drawn. */
static void await_parts(void)
{
    if (processes_until(is_whole, NULL))
        return;
    char *said = screen();
    ck_abort_msg("no %s in\n%s", missing(said), said);
}

TEST(a_screen_follows_the_run_and_the_window)
{
    start_run();
    start_top(80, 24);
    await(" ms a step ");
    await("B/s"); /* the second look */
    await_parts();
    ck_assert_int_eq(tmux("resize-window -t top -x 60 -y 15"), 0);
    await("\n  down "); /* a line of their own where it is narrow */
    await_parts();
    ck_assert_int_eq(tmux("resize-window -t top -x 200 -y 50"), 0);
    await("               ] "); /* a long bar */
    await_parts();
    ck_assert_int_eq(tmux("send-keys -t top q"), 0);
    check_end("0\n");
    await("ready"); /* the shell's own screen again */
    char *said = screen();
    ck_assert_msg(strstr(said, "\nunits ") == NULL, "%s", said);
    free(said);
}

static pid_t read_pid(void)
{
    char *text = processes_read(processes_path("pid"));
    const pid_t pid = (pid_t)strtol(text, NULL, 10);

    free(text);
    ck_assert_int_gt(pid, 0);
    return pid;
}

static bool has_colour(const char *bytes)
{
    const int rc = tmux("capture-pane -e -p -t top > %s", screen_file);
    char *said = processes_read(screen_file);
    const bool found = rc == 0 && strstr(said, bytes) != NULL;

    free(said);
    return found;
}

static bool labels_are_cyan(void *unused)
{
    (void)unused;
    return has_colour("\033[36mworker");
}

TEST(labels_have_a_colour_unless_no_color_says_no)
{
    start_run();
    start_top(80, 24);
    ck_assert(processes_until(labels_are_cyan, NULL));
    ck_assert_int_eq(tmux("send-keys -t top q"), 0);
    check_end("0\n");
    ck_assert_int_eq(tmux("kill-session -t top"), 0);
    ck_assert_int_eq(unlink(processes_path("after")), 0);
    ck_assert_int_eq(tmux("set-environment -g NO_COLOR 1"), 0);
    start_top(80, 24);
    await("\nloss ");
    ck_assert(!has_colour("\033[36m"));
    ck_assert_int_eq(tmux("set-environment -gu NO_COLOR"), 0);
    ck_assert_int_eq(tmux("send-keys -t top q"), 0);
    check_end("0\n");
}

TEST_EACH(however_it_ends_the_terminal_is_as_it_was, 4)
{
    static const struct {
        const char *keys;
        int signal;
        const char *status;
    } ends[] = {{"C-c", 0, "130\n"}, {NULL, SIGTERM, "143\n"}, {"'C-\\'", 0, "131\n"}, {"Q", 0, "0\n"}};

    start_run();
    start_top(80, 24);
    if (ends[_i].keys)
        ck_assert_int_eq(tmux("send-keys -t top %s", ends[_i].keys), 0);
    else
        ck_assert_int_eq(kill(read_pid(), ends[_i].signal), 0);
    check_end(ends[_i].status);
}

static bool is_gone(void *pid)
{
    return processes_status_bytes(*(pid_t *)pid, "VmRSS") == 0;
}

TEST(a_terminal_that_closes_ends_it)
{
    start_run();
    start_top(80, 24);
    pid_t top = read_pid();
    ck_assert(!is_gone(&top));
    ck_assert_int_eq(tmux("kill-session -t top"), 0);
    ck_assert(processes_until(is_gone, &top));
}

/* The shell has its terminal while top is suspended, and top its screen when it goes on. */
TEST(it_can_be_suspended)
{
    start_run();
    ck_assert_int_eq(new_session(80, 24), 0);
    await("ready");
    ck_assert_int_eq(tmux("send-keys -t top 'cd %s; stty -g > before; %s/eps top lab' Enter", processes_path("."),
                          BIN_DIR),
                     0);
    await("\nunits ");
    ck_assert_int_eq(tmux("send-keys -t top C-z"), 0);
    await("Stopped"); /* what is typed earlier may be lost with the terminal's settings */
    ck_assert_int_eq(tmux("send-keys -t top 'stty -g > after; cmp before after && echo s''ame' Enter"), 0);
    await("\nsame");
    ck_assert_int_eq(tmux("send-keys -t top fg Enter"), 0);
    await("\nunits ");
    ck_assert_int_eq(tmux("send-keys -t top q"), 0);
    await("\nsame");
}

TEST(a_daemon_that_is_killed_ends_it_with_a_word)
{
    start_run();
    start_top(80, 24);
    ck_assert_int_eq(kill(lab, SIGKILL), 0);
    check_end("0\n");
    await("ended: ");
}

/* Which is between two steps. */
static bool has_a_rate(void *context)
{
    (void)context;
    if (!is_there((void *)(uintptr_t)processes_path("run-1/metrics.jsonl")))
        return false;
    char *said = processes_read(processes_path("run-1/metrics.jsonl"));
    const char *second = strchr(said, '\n');
    const bool found = second && strchr(second + 1, '\n');

    free(said);
    return found;
}

TEST(once_is_a_screen_of_text)
{
    unsigned n = 0;

    start_run();
    ck_assert(processes_until(has_a_rate, NULL));
    ck_assert_int_eq(setenv("LC_ALL", "C", 1), 0);
    expect("eps top --once", 0);
    const char *said = command_out();
    ck_assert_msg(!missing(said), "no %s in\n%s", missing(said), said);
    for (const char *at = said; *at; at += strcspn(at, "\n") + 1, n++)
        ck_assert_msg(strcspn(at, "\n") <= 80, "%s", said);
    ck_assert_uint_le(n, 24);
    for (const char *at = said; *at; at++)
        ck_assert_msg((unsigned char)*at < 128 && *at != '\033', "%s", said);
    ck_assert_int_eq(setenv("LC_ALL", "C.UTF-8", 1), 0);
    expect("eps top lab --once", 0, "█");
}

TEST(where_it_cannot_be_it_says_so)
{
    expect("eps top --once", 1, "eps top: ", "no daemon of yours is running");
    processes_daemon("idle", 0, NULL);
    expect("eps top", 2, "eps top: ", "not a terminal: --once");
    expect("eps top --once", 0);
    ck_assert_int_eq(new_session(80, 24), 0);
    await("ready");
    ck_assert_int_eq(tmux("send-keys -t top 'TERM=nonsense %s/eps top' Enter", BIN_DIR), 0);
    await("'nonsense' (TERM) is not known");
}
