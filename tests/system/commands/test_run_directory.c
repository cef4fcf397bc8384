/* The directory of a run where it is not as a run left it: real runs in it. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/preload/record.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <string.h>

SUITE_LABELS(long)

#define TRAIN                                                                                                          \
    "eps train --model tiny.json --data text.txt --seq 16 --batch 4 --device-mem 64MiB --save-every 1 --steps 3 "      \
    "--eval-every 0 "

static void set_up(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(set_up, processes_remove)

/* What is saved is told to be, and the old ones go; what can be pasted next works. */
TEST(a_directory_in_place_of_latest_costs_no_checkpoint)
{
    expect("mkdir -p odd/latest; " TRAIN "--keep 1 --out odd", 0,
           "is saved, but odd/latest does not name it: it is a directory; move it away",
           "generate --model odd/step-3\n");
    expect_absent("out", "not saved");
    ck_assert_uint_eq(processes_count("out", "saved odd/step-"), 3);
    ck_assert_str_eq(outputs_names("odd"), "latest log metrics.jsonl step-3 ");
    expect("eps generate --model odd --tokens 1", 1, "--model odd holds no config.json and no latest checkpoint");
    expect("eps verify odd/step-3 && rmdir odd/latest && eps train --resume odd --steps 4", 0);
    ck_assert_uint_eq(outputs_latest("odd"), 4);
}

/* As a kill between the name of step-3 and the link leaves it: the run is complete, and cannot go on by itself. */
TEST(what_a_kill_after_the_name_left_undone_is_done_by_the_next_that_looks)
{
    expect(TRAIN "--keep 0 --out cut && ln -sfn step-2 cut/latest", 0);
    expect("eps train --resume cut --keep 2", 1, "the run is complete");
    ck_assert_uint_eq(outputs_latest("cut"), 3);
    ck_assert_str_eq(outputs_names("cut"), "latest log metrics.jsonl step-2 step-3 ");

    /* Refused, and nothing is touched. */
    expect("rm cut/latest; eps train --resume cut --keep 1 --steps 4 --save-every 0 --lr 1", 2);
    ck_assert_str_eq(outputs_names("cut"), "log metrics.jsonl step-2 step-3 ");
    expect("eps train --resume cut --keep 1 --steps 4", 0,
           "cut/latest names step-3 now: the run was ended before it could");
    ck_assert_uint_eq(outputs_latest("cut"), 4);
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

/* A name that is not flushed is lost with the machine, and with it all that is below. Of the run itself: or nothing was
 * recorded. A sanitizer must be preloaded first. */
TEST_IF(the_directories_that_a_run_makes_are_flushed_into_their_parents, !SANITIZED)
{
    static const char *const flushed[] = {"", "deep", "deep/er", "deep/er/run"};
    static char records[8 << 20];

    expect("RECORD_DIRECTORY=$PWD RECORD_FILE=$PWD.records LD_PRELOAD=" BIN_DIR "/librecord.so " TRAIN
           "--out deep/er/run && mv $PWD.records records",
           0);
    FILE *f = fopen("records", "r");
    ck_assert_ptr_nonnull(f);
    const size_t n = fread(records, 1, sizeof records, f);
    fclose(f);
    for (int i = 0; i < COUNT(flushed); i++)
        ck_assert_msg(was_flushed(records, n, flushed[i]), "./%s", flushed[i]);
}
