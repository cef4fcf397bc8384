/* Checkpoints on a disk that acknowledges what is written and loses it: they are read back from the disk before they
 * are called saved, so the one before stands. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

static void setup(void)
{
    processes_setup();
    setenv("LOSING_DISK", processes_path("losing"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liblosing_disk.so", 1);
}

SUITE_SKIP_UNLESS(!SANITIZED, "a sanitizer must be preloaded first")
SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "config.json", "training.json"};

TEST_EACH(a_checkpoint_of_which_the_disk_loses_a_file_fails_and_the_next_works, COUNT(files))
{
    const struct driver_options options = {.out = outputs_make("out")};
    struct driver driver;

    processes_daemon("lab", 1, NULL);
    unsetenv("LD_PRELOAD");
    driver_open(&driver, "lab", &options);
    driver_save(&driver, 1);
    ck_assert_uint_eq(driver.n_failed, 0);
    outputs_write(".", "losing", print("step-2.partial/%s", files[_i]));
    driver_save(&driver, 2);
    ck_assert_uint_eq(driver.n_failed, 1);
    ck_assert_int_eq(driver.failed.save_failed.code, -EIO);
    ck_assert_holds(driver.failed.save_failed.error.text,
                    print("out/step-2.partial/%s is not what was written", files[_i]),
                    ": the disk has lost what it took; look after the disk");
    ck_assert_str_eq(outputs_names("out"), "latest step-1 ");
    outputs_check_whole("out", 1);
    driver_save(&driver, 3);
    ck_assert_uint_eq(driver.n_failed, 1);
    outputs_check_whole("out", 3);
    driver_close(&driver);
}

TEST(a_run_keeps_the_checkpoint_before_the_lost_one_and_exits_with_1)
{
    processes_config("model.json", 1, 2, 16, 32), processes_text("text.txt", 8000);
    outputs_write(".", "losing", "step-4.partial/model.safetensors");
    expect("eps train --model model.json --data text.txt --batch 4 --steps 4 --save-every 2 --keep 1 --out run "
           "--eval-every 0 --device-mem 256MiB",
           1);
    ck_assert_holds(command_err(), "the last checkpoint, step-4, could not be written: ", "is not what was written",
                    "eps train --resume run continues from step 2");
    expect("eps verify run", 0);
    ck_assert_str_eq(outputs_names("run"), "latest log metrics.jsonl step-2 ");
}
