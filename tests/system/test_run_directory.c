/* The directory of a run where it is not as a run left it: real runs in it. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/preload/record.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(long)

#define TRAIN                                                                                                          \
    "eps train --model tiny.json --data text.txt --seq 16 --batch 4 --device-mem 64MiB --save-every 1 --steps 3 "

static void set_up(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(set_up, processes_remove)

static void check_latest(const char *path, const char *name)
{
    char target[64] = "";

    ck_assert_int_gt(readlink(path, target, sizeof target - 1), 0);
    ck_assert_str_eq(target, name);
}

/* What is saved is told to be, and the old ones go. */
TEST(a_directory_in_place_of_latest_costs_no_checkpoint)
{
    ck_assert_int_eq(system("mkdir -p odd/latest"), 0);
    expect(TRAIN "--keep 1 --out odd", 0);
    ck_assert_str_eq(outputs_names("odd"), "latest log metrics.jsonl step-3 ");
    ck_assert_uint_eq(processes_count("out",
                                      "is saved, but odd/latest does not name it: it is a directory; move it away"),
                      1);
    ck_assert_uint_eq(processes_count("out", "generate --model odd/step-3\n"), 1); /* what can be pasted next works */
    ck_assert_uint_eq(processes_count("out", "not saved"), 0);
    ck_assert_uint_eq(processes_count("out", "saved odd/step-"), 3);
    expect("eps generate --model odd --tokens 1", 1);
    ck_assert_uint_eq(processes_count("err", "--model odd holds no config.json and no latest checkpoint"), 1);
    expect("eps verify odd/step-3", 0);
    ck_assert_int_eq(system("rmdir odd/latest"), 0);
    expect("eps train --resume odd --steps 4", 0);
    check_latest("odd/latest", "step-4");
}

/* As a kill between the name of step-3 and the link leaves it: the run is complete, and cannot go on by itself. */
TEST(what_a_kill_after_the_name_left_undone_is_done_by_the_next_that_looks)
{
    expect(TRAIN "--keep 0 --out cut", 0);
    ck_assert_int_eq(system("ln -sfn step-2 cut/latest"), 0);
    expect("eps train --resume cut --keep 2", 1);
    ck_assert_uint_eq(processes_count("err", "the run is complete"), 1);
    check_latest("cut/latest", "step-3");
    ck_assert_str_eq(outputs_names("cut"), "latest log metrics.jsonl step-2 step-3 ");

    ck_assert_int_eq(system("rm cut/latest"), 0);
    expect("eps train --resume cut --keep 1 --steps 4 --save-every 0 --lr 1", 2); /* refused: */
    ck_assert_int_ne(access("cut/latest", F_OK), 0);                              /* untouched */
    expect("eps train --resume cut --keep 1 --steps 4", 0);
    ck_assert_uint_eq(processes_count("out", "cut/latest names step-3 now: the run was ended before it could"), 1);
    check_latest("cut/latest", "step-4");
    ck_assert_str_eq(outputs_names("cut"), "latest log metrics.jsonl step-4 ");
}

static bool was_flushed(const char *records, size_t n, const char *path)
{
    struct record record;

    for (size_t at = 0; at + sizeof record <= n;) {
        memcpy(&record, records + at, sizeof record);
        const char *name = records + at + sizeof record;
        if (record.kind == RECORD_FLUSH && record.path_bytes == strlen(path) &&
            memcmp(name, path, record.path_bytes) == 0)
            return true;
        at += sizeof record + record.path_bytes + record.other_bytes + record.data_bytes;
    }
    return false;
}

/* A name that is not flushed is lost with the machine, and with it all that is below. */
/* A sanitizer must be preloaded first. */
TEST_IF(the_directories_that_a_run_makes_are_flushed_into_their_parents, !SANITIZED)
{
    static const char *const parents[] = {"", "deep", "deep/er"};
    char *here = realpath(".", NULL), file[400];
    static char records[8 << 20];

    snprintf(file, sizeof file, "%s.records", here);
    setenv("RECORD_DIRECTORY", here, 1);
    setenv("RECORD_FILE", file, 1);
    setenv("LD_PRELOAD", BIN_DIR "/librecord.so", 1);
    expect(TRAIN "--out deep/er/run", 0);
    unsetenv("LD_PRELOAD");
    FILE *f = fopen(file, "r");
    ck_assert_ptr_nonnull(f);
    const size_t n = fread(records, 1, sizeof records, f);
    fclose(f);
    unlink(file);
    ck_assert(was_flushed(records, n, "deep/er/run")); /* or nothing was recorded */
    for (size_t i = 0; i < sizeof parents / sizeof *parents; i++)
        ck_assert_msg(was_flushed(records, n, parents[i]), "./%s", parents[i]);
    free(here);
}
