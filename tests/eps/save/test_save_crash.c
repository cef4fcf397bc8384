/* A crash at every call of a save. A real daemon's calls on the output directory are recorded (tests/kit/preload/record.h);
 * each prefix of them is played onto a model of the disk (tests/kit/disk.h), which then loses what it may lose: nothing, as
 * when the daemon is killed, or what was not flushed, as when the machine stops. Every checkpoint that then stands is
 * whole, and `latest` names one: the old one or, at the latest when the client has been told of it, the new one. */
#include "tests/kit/disk.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define OUT      "out"
#define RECORDED "recorded"
#define CRASHED  "crashed"

enum { NONE = -1, MAX_STANDING = 8 };

/* What stood after a crash. */
struct standing {
    uint64_t steps[MAX_STANDING];
    size_t n;
    char broken[400]; /* the first that was not whole */
};

static void on_checked(void *user, const char *path, uint64_t step, const char *why)
{
    struct standing *standing = user;

    ck_assert_uint_lt(standing->n, MAX_STANDING);
    standing->steps[standing->n++] = step;
    if (why && !standing->broken[0])
        snprintf(standing->broken, sizeof standing->broken, "%s: %s", path, why);
}

/* The N of the step-N that `latest` names, which must be there; NONE. */
static int64_t latest_of(const char *directory, const struct standing *standing)
{
    char path[300], target[64] = "", name[64];

    snprintf(path, sizeof path, "%s/latest", directory);
    if (readlink(path, target, sizeof target - 1) < 0)
        return NONE;
    for (size_t i = 0; i < standing->n; i++) {
        snprintf(name, sizeof name, "step-%ju", (uintmax_t)standing->steps[i]);
        if (strcmp(name, target) == 0)
            return (int64_t)standing->steps[i];
    }
    ck_abort_msg("latest names %s, which is not there", target);
    return NONE;
}

/* In this program: thousands of saves, of which none has to outlive the machine. */
int fsync(int fd)
{
    (void)fd;
    return 0;
}

/* The next save of a run that goes on from there: nothing that a crash left is in its way, or stays beside it. */
static void check_next_save(uint64_t step)
{
    int directory, output = open(CRASHED, O_RDONLY | O_DIRECTORY);
    struct error err = {""};
    char name[64];

    ck_assert_int_ge(output, 0);
    ck_assert_msg(output_begin(&directory, output, step, &err) == 0, "%s", err.text);
    ck_assert_msg(output_write(directory, "training.json", "next", 4, &err) == 0, "%s", err.text);
    ck_assert_msg(output_place(output, directory, step, &err) == 0, "%s", err.text);
    close(directory);
    close(output);
    outputs_check_file(CRASHED "/latest/training.json", "next");
    snprintf(name, sizeof name, "step-%ju.", (uintmax_t)step);
    ck_assert_msg(!strstr(outputs_names(CRASHED), name), "%s", outputs_names(CRASHED));
}

static void check_crash(const struct disk *disk, const struct disk_loss *loss, int64_t before, int64_t after)
{
    struct standing standing = {.n = 0};
    struct eps_error error = {""};

    disk_crash(disk, CRASHED, loss);
    const int rc = eps_verify(CRASHED, on_checked, &standing, &error);
    ck_assert_msg(rc == 0 || (rc == -ENOENT && before == NONE), "%s (%s)", standing.broken, error.text);
    const int64_t latest = latest_of(CRASHED, &standing);
    ck_assert_msg(latest == before || latest == after, "latest is step %jd, not %jd nor %jd", (intmax_t)latest,
                  (intmax_t)before, (intmax_t)after);
    check_next_save((uint64_t)after);
    disk_remove(CRASHED);
}

/* Everything that a crash now may leave. The crashed daemon's next one begins from there. */
static unsigned check_crashes(const struct disk *disk, int64_t before, int64_t after)
{
    unsigned n = 0;

    for (size_t behind = 0; behind < disk_n_states(disk); behind++)
        for (unsigned losses = 0; losses < (behind ? 8 : 4); losses++, n++)
            check_crash(disk, &(struct disk_loss){losses & 1, losses & 2, losses & 4, behind}, before, after);
    return n;
}

static size_t recorded_bytes(void)
{
    struct stat st;

    return stat(RECORDED, &st) == 0 ? (size_t)st.st_size : 0;
}

/* One save: of this step, by a client whose job is at this step already, or trains until it is. */
static size_t save(struct driver *driver, uint64_t step)
{
    const unsigned n = driver->n_saved;

    driver_train(driver, step);
    driver_ask_save(driver, step);
    driver_await_saves(driver, n + 1);
    ck_assert_uint_eq(driver->n_failed, 0);
    return recorded_bytes();
}

static void start_daemon(void)
{
    char *directory = realpath(OUT, NULL), *here = realpath(".", NULL), file[400];

    ck_assert(directory && here);
    snprintf(file, sizeof file, "%s/" RECORDED, here);
    setenv("RECORD_DIRECTORY", directory, 1);
    setenv("RECORD_FILE", file, 1);
    setenv("LD_PRELOAD", BIN_DIR "/librecord.so", 1);
    processes_daemon("lab", 1, NULL);
    unsetenv("LD_PRELOAD");
    free(directory), free(here);
}

/* What has been played is what is there: no call went by unrecorded. */
static void check_played(const struct disk *disk)
{
    disk_crash(disk, CRASHED, &(struct disk_loss){.behind = 0});
    ck_assert_int_eq(system("diff -r --no-dereference " OUT " " CRASHED), 0);
    disk_remove(CRASHED);
}

SUITE_SKIP_UNLESS(!SANITIZED, "a sanitizer must be preloaded first")
SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

/* The first save; one more; then another run that comes to step 1 again, so that step-1 is exchanged and removed. In the
 * way at first: what a run left that was killed. */
TEST(a_crash_at_any_call_leaves_the_old_checkpoint_or_the_new_one)
{
    static const int64_t latest[] = {NONE, 1, 2, 1};
    const struct driver_options options = {.out = outputs_make(OUT)};
    struct driver driver;
    size_t ends[3], at = 0;
    unsigned n_calls = 0, n_crashes = 0;

    ck_assert_int_eq(mkdir(OUT "/step-1.partial", 0700), 0);
    outputs_write(OUT "/step-1.partial", "model.safetensors", "half of it");
    struct disk *disk = disk_open(OUT);
    start_daemon();
    driver_open(&driver, "lab", &options);
    ends[0] = save(&driver, 1);
    ends[1] = save(&driver, 2);
    driver_close(&driver);
    driver_open(&driver, "lab", &options);
    ends[2] = save(&driver, 1);
    driver_close(&driver);

    char *records = processes_read(RECORDED);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_gt(ends[i], at);
        for (; at < ends[i]; n_calls++) {
            n_crashes += check_crashes(disk, latest[i], latest[i + 1]);
            at += disk_play(disk, records + at);
        }
        n_crashes += check_crashes(disk, latest[i + 1], latest[i + 1]); /* the client has been told: it stays */
    }
    while (at < recorded_bytes())
        at += disk_play(disk, records + at);
    check_played(disk);
    ck_assert_uint_gt(n_calls, 60); /* or the shim has missed them */
    printf("%u calls, %u crashes\n", n_calls, n_crashes);
    free(records);
    disk_close(disk);
}
