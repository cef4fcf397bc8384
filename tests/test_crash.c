/* A save that ends at each of its system calls, as by kill -9 or by a power cut: `latest` leads to the old checkpoint or
 * to the new one, whole, and the next save works.
 *
 * The calls are this program's own versions of libc's: they count, remember what has not been flushed, and at the
 * chosen one end the process before it is made. A power cut also takes what was not flushed: content, names in a
 * directory, a renaming. */
#include "tests/outputs.h"
#include "tests/processes.h"
#include "tests/store_fixture.h"

#include "eps/capture.h"
#include "eps/output.h"

#include <check.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_FDS = 256, MOST_NAMES = 32, CRASHED = 9, LEAKED = 8, UNORDERED = 7 };

/* Of the process that saves. */
static struct {
    bool watching, power_cut;
    int left; /* calls until the end */
    bool dirty[MOST_FDS];
    struct {
        int directory;
        char name[64];
    } created[MOST_NAMES]; /* names not flushed */
    unsigned n_created;
    bool renamed, exchanged; /* step-N, not flushed */
    int output;
    char from[64], to[64];
} fake;

static void cut_power(void)
{
    for (int fd = 0; fd < MOST_FDS; fd++)
        if (fake.dirty[fd])
            syscall(SYS_ftruncate, fd, 0);
    for (unsigned i = 0; i < fake.n_created; i++)
        syscall(SYS_unlinkat, fake.created[i].directory, fake.created[i].name, 0);
    if (fake.renamed)
        syscall(SYS_renameat2, fake.output, fake.to, fake.output, fake.from, fake.exchanged ? RENAME_EXCHANGE : 0);
}

static void count(void)
{
    if (!fake.watching || fake.left-- > 0)
        return;
    if (fake.power_cut)
        cut_power();
    _exit(CRASHED);
}

static void note_written(int fd)
{
    if (fake.watching)
        fake.dirty[fd] = true;
}

ssize_t write(int fd, const void *data, size_t n)
{
    if (fd > STDERR_FILENO) {
        count();
        note_written(fd);
    }
    return syscall(SYS_write, fd, data, n);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    count();
    note_written(fd);
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

int fallocate(int fd, int mode, off_t offset, off_t n)
{
    count();
    note_written(fd);
    return (int)syscall(SYS_fallocate, fd, mode, offset, n);
}

int fsync(int fd)
{
    unsigned kept = 0;

    count();
    if (fake.watching) {
        fake.dirty[fd] = false;
        for (unsigned i = 0; i < fake.n_created; i++)
            if (fake.created[i].directory != fd)
                fake.created[kept++] = fake.created[i];
        fake.n_created = kept;
        fake.renamed = fake.renamed && fd != fake.output;
    }
    return 0; /* the disk itself has no part in this */
}

int close(int fd)
{
    if (fake.watching && fd < MOST_FDS && fake.dirty[fd])
        _exit(LEAKED);
    return (int)syscall(SYS_close, fd);
}

int openat(int directory, const char *name, int flags, ...)
{
    va_list args;

    va_start(args, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    if (flags & O_CREAT) {
        count();
        if (fake.watching && fake.n_created < MOST_NAMES) {
            fake.created[fake.n_created].directory = directory;
            snprintf(fake.created[fake.n_created++].name, 64, "%s", name);
        }
    }
    return (int)syscall(SYS_openat, directory, name, flags, mode);
}

int mkdirat(int directory, const char *name, mode_t mode)
{
    count();
    return (int)syscall(SYS_mkdirat, directory, name, mode);
}

int unlinkat(int directory, const char *name, int flags)
{
    count();
    return (int)syscall(SYS_unlinkat, directory, name, flags);
}

int symlinkat(const char *target, int directory, const char *name)
{
    count();
    return (int)syscall(SYS_symlinkat, target, directory, name);
}

int renameat(int from_directory, const char *from, int directory, const char *to)
{
    count();
    if (fake.watching && fake.renamed) /* latest would stand without what it leads to */
        _exit(UNORDERED);
    return (int)syscall(SYS_renameat2, from_directory, from, directory, to, 0);
}

int renameat2(int from_directory, const char *from, int directory, const char *to, unsigned flags)
{
    count();
    const int rc = (int)syscall(SYS_renameat2, from_directory, from, directory, to, flags);
    if (rc == 0 && fake.watching) {
        fake.renamed = true;
        fake.exchanged = flags & RENAME_EXCHANGE;
        fake.output = directory;
        snprintf(fake.from, sizeof fake.from, "%s", from);
        snprintf(fake.to, sizeof fake.to, "%s", to);
    }
    return rc;
}

/* ---- a save ----------------------------------------------------------------------------------------------------- */

static struct store_fixture fixture;

static void setup(void)
{
    processes_setup();
    ck_assert_int_eq(chdir(processes_path(".")), 0);
    store_fixture_open(&fixture, store_fixture_small, true, 0);
    outputs_make("out");
}

static void remove_all(void)
{
    store_fixture_close(&fixture);
    ck_assert_int_eq(chdir("/"), 0);
    processes_remove();
}

static int save(uint64_t step)
{
    static const char config[] = "{}", side[] = "{\"options\": {}, \"files\": {\"merges.txt\": \"a b\\n\"}}";
    int output = open("out", O_RDONLY | O_DIRECTORY);
    const struct eps_capture_options options = {.store = &fixture.store,
                                                .step = step,
                                                .config = config,
                                                .config_bytes = sizeof config - 1,
                                                .side = side,
                                                .side_bytes = sizeof side - 1,
                                                .checkpoint = true,
                                                .output = output};
    struct eps_capture capture;
    struct error err = {""};

    int rc = eps_capture_open(&capture, &options, &err);
    for (uint32_t u = 0; !rc && u < fixture.model.n_units; u++)
        rc = eps_capture_write(&capture, u, &err);
    if (!rc)
        rc = eps_capture_finish(&capture, &err);
    close(output);
    return rc;
}

/* The exit status of a process that saves and ends before its n-th call. */
static int save_until(uint64_t step, int n, bool power_cut)
{
    int status;
    pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        fake.watching = true;
        fake.power_cut = power_cut;
        fake.left = n;
        _exit(save(step) ? 1 : 0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status));
    return WEXITSTATUS(status);
}

/* The step that `latest` leads to, all of it there. */
static uint64_t read_latest(void)
{
    struct checkpoint checkpoint;
    struct error err = {""};
    int fd = open("out/latest", O_RDONLY | O_DIRECTORY);

    ck_assert_int_ge(fd, 0);
    ck_assert_msg(checkpoint_read(&checkpoint, fd, &err) == 0, "%s", err.text);
    ck_assert_msg(checkpoint_check(&checkpoint, fd, NULL, NULL, NULL, &err) == 0, "%s", err.text);
    const uint64_t step = checkpoint.step;
    checkpoint_free(&checkpoint);
    close(fd);
    return step;
}

/* _i: bit 0, the power is cut; bit 1, the step stands there already and is replaced. */
START_TEST(a_crash_at_any_call_leaves_the_old_or_the_new_checkpoint)
{
    const bool power_cut = _i & 1;
    const uint64_t old = 1, new = _i & 2 ? 1 : 2;
    unsigned n_old = 0, n_new = 0;
    int rc = CRASHED;

    for (int n = 0; rc == CRASHED; n++) {
        ck_assert_int_lt(n, 1000);
        ck_assert_int_eq(system("rm -rf out/*"), 0);
        eps_store_draw(&fixture.store, 1);
        ck_assert_int_eq(save(old), 0);
        eps_store_draw(&fixture.store, 2);
        rc = save_until(new, n, power_cut);
        ck_assert_msg(rc == CRASHED || rc == 0, "%d: %s", n,
                      rc == LEAKED      ? "a file was closed that had not been flushed"
                      : rc == UNORDERED ? "latest was renamed before the step's name was flushed"
                                        : "failed");
        const uint64_t latest = read_latest();
        n_old += latest == old;
        n_new += latest == new;
        ck_assert_msg(latest == old || latest == new, "%d: %ju", n, (uintmax_t)latest);
        ck_assert_int_eq(save(new), 0); /* whatever is left is in nobody's way */
        ck_assert_uint_eq(read_latest(), new);
        ck_assert_str_eq(outputs_names("out"), new == 1 ? "latest step-1 " : "latest step-1 step-2 ");
    }
    ck_assert_uint_gt(n_old, 20);
    ck_assert_uint_gt(n_new, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("crash");
    TCase *tests = tcase_create("crash");

    tcase_add_checked_fixture(tests, setup, remove_all);
    tcase_set_timeout(tests, 120);
    tcase_add_loop_test(tests, a_crash_at_any_call_leaves_the_old_or_the_new_checkpoint, 0, 4);
    suite_add_tcase(suite, tests);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    const int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
