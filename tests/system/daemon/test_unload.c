/* The end of a job whose memory takes long to give back: the daemon answers meanwhile. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <unistd.h>

static void set_up(void)
{
    processes_setup();
    processes_config("tiny.json", 2, 2, 64, 32); /* of 100,000 parameters: 400 KB of each */
    processes_text("text.txt", 4000);
}

static void tear_down(void)
{
    unlink("held");
    processes_remove();
}

SUITE_SKIP_UNLESS(!SANITIZED, "a sanitizer must be preloaded first")
SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(set_up, tear_down)

/* The daemon's state is this one; asked by a process of its own, which gives up on a daemon that says nothing. */
static bool is(void *state)
{
    return processes_eps("status lab --json") == 0 && processes_count("out", state) == 1;
}

TEST(the_daemon_answers_while_memory_is_given_back)
{
    static const char *const train[] = {"train",   "--connect", "lab",     "--model", "tiny.json", "--data", "text.txt",
                                        "--batch", "4",         "--steps", "2",       "--out",     "run",    NULL};
    static const char *const daemon[] = {"--listen", "lab", NULL};
    char idle[] = "\"idle\"", ending[] = "\"ending\"";

    setenv("SLOW_UNMAP", processes_path("held"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/libslow_unmap.so", 1);
    processes_start("epsd", daemon, NULL);
    unsetenv("LD_PRELOAD");
    processes_worker("lab", "64MiB", NULL); /* it waits for the daemon, and the client for both */
    ck_assert(processes_until(is, idle));   /* what its start gives back is not held */
    processes_put_text("held", "");
    const pid_t pid = processes_start("eps", train, "train.err");
    ck_assert(processes_until(is, ending));
    ck_assert(is(ending)); /* for as long as it takes */
    expect("eps mem lab --json", 0);
    ck_assert_int_eq(unlink("held"), 0);
    ck_assert_int_eq(processes_wait(pid), 0);
    expect("eps status lab && eps verify run", 0);
}
