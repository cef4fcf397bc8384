/* --mirror: what it holds, what becomes of one that cannot be written, and that it is whole whenever its process is
 * killed: at each call that changes the disk. */
#include "client/run/mirror.h"

#include "client/eps.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/runs.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(own long)

/* ---- calls, of which the process dies in one ---- */

static atomic_long n_left = LONG_MAX; /* before that one */

static void count_call(void)
{
    if (atomic_fetch_sub(&n_left, 1) == 1)
        kill(getpid(), SIGKILL);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    count_call();
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

int fsync(int fd)
{
    count_call();
    return (int)syscall(SYS_fsync, fd);
}

int mkdirat(int fd, const char *name, mode_t mode)
{
    count_call();
    return (int)syscall(SYS_mkdirat, fd, name, mode);
}

int unlinkat(int fd, const char *name, int flags)
{
    count_call();
    return (int)syscall(SYS_unlinkat, fd, name, flags);
}

int symlinkat(const char *to, int fd, const char *name)
{
    count_call();
    return (int)syscall(SYS_symlinkat, to, fd, name);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    count_call();
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, 0);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    count_call();
    return (int)syscall(SYS_renameat2, from_fd, from, to_fd, to, flags);
}

/* ---- runs ---- */

#define TRAIN                                                                                                          \
    "eps train --model model.json --data text.txt --batch 4 --seq 16 --steps 6 --save-every 2 --eval-every 2 "         \
    "--device-mem 256MiB "

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 1, 2, 16, 16, "\"attn_pdrop\": 0.1");
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

TEST(a_mirror_has_the_run_s_checkpoints_and_is_resumed_to_the_same_bits)
{
    expect(TRAIN "--keep 2 --out run --mirror on/disk", 0);
    expect("test -d on/disk/step-6 && diff -r run on/disk -x log -x mirror-of -x report.svg && eps verify on/disk", 0);
    expect("eps train --resume on/disk --steps 8 && eps train --resume run --steps 8", 0);
    outputs_check_same("on/disk/step-8", "run/step-8", "model.safetensors");
    outputs_check_same("on/disk/step-8", "run/step-8", "optimizer.safetensors");
    outputs_check_same_metrics("run", "on/disk", 8);
}

TEST(a_resumed_run_brings_its_mirror_up_to_date)
{
    expect(TRAIN "--steps 2 --out run && eps train --resume run --steps 4 --mirror copy", 0);
    ck_assert_str_eq(outputs_names("copy"), "best latest metrics.jsonl mirror-of step-2 step-4 ");
    expect("cp -r run/step-4 copy/step-9; sed -i 's/\"step\":4/\"step\":9/' copy/step-9/training.json", 0);
    expect("eps train --resume run --steps 6 --mirror copy", 0, "copy/step-9.later");
    expect("test $(readlink copy/latest) = step-6 && eps verify copy", 0);
}

/* Below the newest: of --keep 0 each. */
TEST(a_resumed_run_mirrors_all_that_its_mirror_has_missed)
{
    expect(TRAIN "--keep 0 --out run --mirror copy && rm -r copy/step-4 copy/step-6 && ln -sfn step-2 copy/latest && "
                 "eps train --resume run --steps 8 --mirror copy && eps verify copy",
           0);
    ck_assert_str_eq(outputs_names("copy"), "best latest metrics.jsonl mirror-of step-2 step-4 step-6 step-8 ");
}

static pid_t start(const char *more)
{
    const char *line = print("exec %s/eps train --model model.json --data text.txt --batch 4 --seq 16 --steps 1000000 "
                             "--save-every 2 --keep 0 --schedule constant --warmup 0 --out run --mirror copy %s",
                             BIN_DIR, more);
    const pid_t pid = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);

    processes_await_file("copy/step-4");
    return pid;
}

/* The daemon saves alone, and nobody copies that; whoever goes on with the run does. */
TEST_EACH(the_mirror_of_a_killed_client_catches_up, 2)
{
    const pid_t daemon = _i ? processes_daemon("lab", 1, NULL) : 0, client = start(_i ? "--connect lab" : "");

    if (_i) {
        ck_assert_int_eq(kill(client, SIGKILL), 0);
        ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
        expect("until eps status lab | grep -q detached; do :; done; eps save lab", 0);
    } else {
        runs_kill_client(client, "run");
    }
    const unsigned missed = (unsigned)outputs_latest("run");
    if (_i) {
        const char *line = print("exec %s/eps train --attach lab --mirror copy", BIN_DIR);
        const pid_t next = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
        processes_await_file(print("copy/step-%u", missed));
        ck_assert_int_eq(kill(next, SIGINT), 0);
        ck_assert_int_eq(processes_wait(next), 130);
        expect_stop(daemon);
    } else {
        expect(print("eps train --resume run --steps %u --mirror copy", missed + 2), 0);
    }
    expect(print("test -d copy/step-%u && ls run >a && ls copy | grep -v mirror-of >b && grep -vE 'log|report.svg' a | "
                 "cmp - b && "
                 "eps verify copy",
                 missed),
           0);
}

TEST(a_mirror_that_cannot_be_is_refused)
{
    expect("mkdir -p other/step-2 && touch other/step-2/training.json", 0);
    expect_refusal(
        &(struct refusal){TRAIN "--out run --mirror other", 1, "--mirror other holds checkpoints", "name an empty"});
    expect_refusal(
        &(struct refusal){TRAIN "--out run --mirror run/", 2, "--mirror run/ is the run's own directory", NULL});
    expect_refusal(&(struct refusal){TRAIN "--out run --mirror text.txt", 1, "--mirror", "Not a directory"});
    expect(TRAIN "--steps 2 --out run --mirror copy && cp -r run moved", 0);
    expect_refusal(
        &(struct refusal){TRAIN "--out new --mirror run", 1, "--mirror run is the directory of a run, and no ", NULL});
    expect_refusal(
        &(struct refusal){"eps train --resume moved --steps 4 --mirror run", 1, "is the directory of a run", NULL});
    expect_refusal(&(struct refusal){"eps train --resume moved --steps 4 --mirror copy", 1,
                                     "checkpoints of another run, ", "/run: name another directory"});
    expect("echo $PWD/moved >copy/mirror-of && eps train --resume moved --steps 4 --mirror copy && test -d copy/step-4",
           0);
}

/* Of its last checkpoint, and of the one before: the next makes that good. */
TEST_EACH_IF(a_mirror_that_loses_a_checkpoint_is_a_warning_and_of_the_last_one_a_failure, 2, !SANITIZED)
{
    const char *lost = _i == 0 ? "copy/step-6.partial/model.safetensors" : "copy/step-4.partial/optimizer.safetensors";

    outputs_write(".", "losing", lost);
    expect(print("LOSING_DISK=$PWD/losing LD_PRELOAD=%s/liblosing_disk.so " TRAIN
                 "--keep 0 --out run --mirror copy >said",
                 BIN_DIR),
           _i == 0);
    expect_file("said", print("step-%d is not in the mirror copy: ", _i == 0 ? 6 : 4), "is not what was written");
    if (_i == 0)
        ck_assert_holds(command_err(), "step-6 is not in the mirror copy: model.safetensors is not what was written");
    expect(print("eps verify run && eps verify copy && test -d copy/step-%d && ! test -d copy/step-%d", _i == 0 ? 4 : 6,
                 _i == 0 ? 6 : 4),
           0);
}

/* ---- kills ---- */

static void copy_all(struct client_mirror *m, uint64_t step)
{
    ck_assert_int_eq(client_mirror_add(m, step, false), 0);
    do
        ck_assert_msg(!client_mirror_poll(m), "%s", m->why.text);
    while (client_mirror_is_busy(m) && poll(NULL, 0, 1) == 0);
}

static void mirror(int run_fd, long most)
{
    const struct client_mirror_options options = {.path = "copy", .run_fd = run_fd, .keep = 1, .after = UINT64_MAX};
    struct client_mirror m;
    struct error err = {""}, note;

    atomic_store(&n_left, most);
    ck_assert_msg(client_mirror_open(&m, &options, &note, NULL, &err) == 0, "%s", err.text);
    for (uint64_t step = 2; step <= 6; step += 2)
        copy_all(&m, step);
    client_mirror_close(&m);
    atomic_store(&n_left, LONG_MAX);
}

static bool dies_at(int run_fd, long n)
{
    const pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        mirror(run_fd, n);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFSIGNALED(status) || WEXITSTATUS(status) == 0);
    return WIFSIGNALED(status);
}

static unsigned n_whole;

static void on_checked(void *user, const struct eps_verified *c)
{
    (void)user;
    ck_assert_msg(!c->why && !c->edited, "%s: %s", c->path, c->why ? c->why : c->edited);
    n_whole++;
}

/* Each checkpoint with its name is whole, once there was one there is always one, and the next mirror goes on. */
TEST(a_mirror_is_whole_whenever_its_process_is_killed)
{
    bool had = false;
    long n = 1;

    expect(TRAIN "--keep 0 --out run", 0);
    const int run_fd = open("run", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    for (; dies_at(run_fd, n); n++) {
        n_whole = 0;
        const int rc = eps_verify("copy", on_checked, NULL, NULL);
        ck_assert_int_eq(rc, n_whole > 0 ? 0 : -ENOENT);
        ck_assert_msg(n_whole > 0 || !had, "after %ld calls", n);
        had = n_whole > 0;
        ck_assert(access("copy/latest", F_OK) == 0 || n_whole <= 1);
        if (n % 16 == 0) {
            mirror(run_fd, LONG_MAX);
            expect("test $(readlink copy/latest) = step-6 && eps verify copy && ! ls copy | grep partial", 0);
        }
        ck_assert_int_eq(system("rm -rf copy"), 0);
    }
    ck_assert_int_gt(n, 60);
    ck_assert_int_eq(eps_verify("copy", NULL, NULL, NULL), 0);
    close(run_fd);
}
