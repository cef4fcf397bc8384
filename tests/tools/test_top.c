/* eps top by what is on its screen, in tmux, over a daemon that trains. Real programs; skipped without tmux. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pid_t lab;

/* tmux with a server of this test's own. */
static int tmux(const char *command)
{
    return system(print("tmux -S %s -f /dev/null %s", processes_path("tmux"), command));
}

static void keys(const char *what)
{
    ck_assert_int_eq(tmux(print("send-keys -t top %s", what)), 0);
}

/* A daemon named lab with a worker and a run that does not end by itself. */
static void setup(void)
{
    const char *const train[] = {"train",     "--model", "config.json", "--data",       "text",    "--out", "run-1",
                                 "--connect", "lab",     "--steps",     "1000000",      "--batch", "4",     "--seq",
                                 "64",        "--lr",    "1e-4",        "--save-every", "0",       NULL};

    unsetenv("TMUX");
    processes_setup();
    processes_config("config.json", 6, 2, 64, 64);
    processes_text("text", 65536);
    lab = processes_daemon("lab", 1, NULL);
    processes_start("eps", train, NULL);
}

static void teardown(void)
{
    if (tmux("kill-server 2>/dev/null")) /* the test got no further */
        unlink("screen");
    processes_remove();
}

SUITE_SKIP_UNLESS(system("command -v tmux >/dev/null") == 0, "no tmux")
SUITE_FIXTURE(setup, teardown)

/* What is on the screen, with its colours or without; to be freed. */
static char *screen(bool colours)
{
    ck_assert_int_eq(tmux(print("capture-pane %s -p -t top > screen", colours ? "-e" : "")), 0);
    return processes_read("screen");
}

static bool shows(void *text)
{
    char *said = screen(*(const char *)text == '\033');
    const bool found = strstr(said, text) != NULL;

    free(said);
    return found;
}

static void await(const char *text)
{
    if (processes_until(shows, (void *)(uintptr_t)text))
        return;
    ck_abort_msg("no '%s' in\n%s", text, screen(false));
}

static bool is_there(void *path)
{
    return access(path, R_OK) == 0;
}

static void start_shell(unsigned width, unsigned height)
{
    ck_assert_int_eq(tmux(print("new-session -d -s top -x %u -y %u 'env ENV= PS1=\"ready \" sh'", width, height)), 0);
    await("ready");
}

/* A shell of this size in which eps top runs; behind it the exit status and the terminal's settings are kept. */
static void start_top(const char *environment, unsigned width, unsigned height)
{
    start_shell(width, height);
    keys(print("'stty -g > before; %s sh -c \"echo \\$\\$ > pid; exec %s/eps top lab\"; echo $? > status; stty -g > "
               "after.partial; mv after.partial after' Enter",
               environment, BIN_DIR));
    await("eps top  lab  training");
}

static void check_end(const char *status)
{
    ck_assert(processes_until(is_there, "after"));
    expect("cmp before after && cat status", 0);
    ck_assert_str_eq(command_out(), status);
}

/* What every screen has, whatever its size; test_top_draw has all of it. NULL, or what is not. */
static const char *missing(const char *said)
{
    static const char *const parts[] = {
        "\nstep ",     "\nloss ",        " tokens/s  ", "\nworker 1  cpu  ", " MiB, budget 256.0 MiB", "] ",
        "weights in ", "gradients out ", "\nhost  ",    "  weights ",        "\nlayers 9 after step "};

    for (int i = 0; i < COUNT(parts); i++)
        if (!strstr(said, parts[i]))
            return parts[i];
    if (strncmp(said, "eps top  lab  training  ", 24) != 0)
        return "title";
    const char *map = strstr(said, "\nlayers ");
    map = strchr(map + 1, '\n') + 1;
    return strncmp(map, "  ", 2) == 0 && strspn(map + 2, ".+>fu") == 9 ? NULL : "map";
}

static bool is_whole(void *context)
{
    char *said = screen(false);
    const bool whole = !missing(said);

    (void)context;
    free(said);
    return whole;
}

/* A screen may be caught half drawn. */
static void await_parts(void)
{
    if (!processes_until(is_whole, NULL))
        ck_abort_msg("no %s in\n%s", missing(screen(false)), screen(false));
}

TEST(a_screen_follows_the_run_and_the_window)
{
    start_top("", 80, 24);
    await("B/s"); /* the second look */
    await(" |");  /* a curve */
    await_parts();
    await("\033[36mworker"); /* labels are cyan */
    ck_assert_int_eq(tmux("resize-window -t top -x 60 -y 15"), 0);
    await("\n  weights in "); /* a line of their own where it is narrow */
    await_parts();
    ck_assert_int_eq(tmux("resize-window -t top -x 200 -y 50"), 0);
    await("MiB  weights in "); /* no more where it is wide */
    await_parts();
    keys("q");
    check_end("0\n");
    await("ready"); /* the shell's own screen again */
    char *said = screen(false);
    ck_assert_msg(strstr(said, "\nlayers ") == NULL, "%s", said);
    free(said);
}

static pid_t read_pid(void)
{
    char *text = processes_read("pid");
    const pid_t pid = (pid_t)strtol(text, NULL, 10);

    free(text);
    ck_assert_int_gt(pid, 0);
    return pid;
}

static bool is_gone(void *pid)
{
    return processes_status_bytes(*(pid_t *)pid, "VmRSS") == 0;
}

TEST_EACH(however_it_ends_the_terminal_is_as_it_was, 5)
{
    static const char *const statuses[] = {"130\n", "143\n", "131\n", "0\n"};

    start_top("NO_COLOR=1", 80, 24);
    await_parts();
    ck_assert(!shows("\033[36m"));
    pid_t top = read_pid();
    if (_i == 0)
        keys("C-c");
    else if (_i == 1)
        ck_assert_int_eq(kill(top, SIGTERM), 0);
    else if (_i == 2)
        keys("'C-\\'");
    else if (_i == 3)
        ck_assert_int_eq(kill(lab, SIGKILL), 0);
    else { /* the terminal itself closes */
        ck_assert(!is_gone(&top));
        ck_assert_int_eq(tmux("kill-session -t top"), 0);
        ck_assert(processes_until(is_gone, &top));
        return;
    }
    check_end(statuses[_i]);
    if (_i == 3) {
        await("ended: ");
        await("\nstep         "); /* the run's last line */
    }
}

/* The shell has its terminal while top is suspended, and top its screen when it goes on. */
TEST(it_can_be_suspended)
{
    start_shell(80, 24);
    keys(print("'stty -g > before; %s/eps top lab' Enter", BIN_DIR));
    await("\nlayers ");
    keys("C-z");
    await("Stopped"); /* what is typed earlier may be lost with the terminal's settings */
    keys("'stty -g > after; cmp before after && echo s''ame' Enter");
    await("\nsame");
    keys("fg Enter");
    await("\nlayers ");
    keys("Q");
    await("\nsame");
}

TEST(once_is_a_screen_of_text)
{
    unsigned n = 0;

    processes_await_count("run-1/metrics.jsonl", "\n", 2); /* a rate is between two steps */
    expect("LC_ALL=C eps top --once", 0);
    const char *said = command_out();
    ck_assert_msg(!missing(said), "no %s in\n%s", missing(said), said);
    for (const char *at = said; *at; at += strcspn(at, "\n") + 1, n++)
        ck_assert_msg(strcspn(at, "\n") <= 80, "%s", said);
    ck_assert_uint_le(n, 24);
    for (const char *at = said; *at; at++)
        ck_assert_msg((unsigned char)*at < 128 && *at != '\033', "%s", said);
    expect("LC_ALL=C.UTF-8 eps top lab --once", 0, "▁");
}

/* The daemon alone has the last losses; its memory of them begins with the client. */
TEST(a_curve_begins_with_the_run)
{
    unsigned first = 0, last = 0;

    processes_await_count("run-1/metrics.jsonl", "\n", 300); /* more than a daemon keeps */
    expect("LC_ALL=C eps top lab --once", 0);
    const char *axis = strstr(command_out(), "\n           1 ");
    ck_assert_msg(axis != NULL, "%s", command_out());
    ck_assert_int_eq(sscanf(axis, "%u %u", &first, &last), 2);
    ck_assert_msg(first == 1 && last >= 300, "%s", command_out());
}

TEST(where_it_cannot_be_it_says_so)
{
    expect("eps top nobody --once", 1, "eps top: ", "no daemon at ");
    expect("eps top", 2, "eps top: ", "not a terminal: --once");
    start_shell(80, 24);
    keys(print("'TERM=nonsense %s/eps top' Enter", BIN_DIR));
    await("'nonsense' (TERM) is not known");
    keys(print("'TERM=dumb %s/eps top' Enter", BIN_DIR)); /* as in a pipe */
    await("not a terminal: --once prints one screen");
}
