/* Viewers of a run in training: a checkpoint when they ask for it, the weights of one version in files of their own. */
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void setup(void)
{
    processes_setup();
    processes_daemon("lab", 1, NULL);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

TEST(a_viewers_save_is_told_to_both)
{
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};
    const struct driver_options options = {.out = outputs_make("viewed")};

    driver_open(&driver, "lab", &options);
    driver_look(&viewer, "lab");
    driver_train(&driver, 2);
    driver_ask(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "SAVED");
    ck_assert_uint_eq(m.saved.step, 2);
    driver_await_saves(&driver, 1);
    ck_assert_uint_eq(driver.saved[0], 2);
    driver_ask(&viewer, &m); /* it stands */
    ck_assert_str_eq(message_name(m.kind), "SAVED");
    outputs_check_whole("viewed", 2);
    client_link_free(&viewer);
    driver_train(&driver, 3);
    driver_close(&driver);
}

TEST(a_viewer_is_told_why_nothing_can_be_saved)
{
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};

    driver_look(&viewer, "lab");
    driver_ask(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "REFUSED");
    ck_assert_str_eq(m.refused.error.text, "the daemon trains nothing: there is nothing to save");
    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_ask(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "REFUSED");
    ck_assert_msg(strstr(m.refused.error.text, "no output directory") != NULL, "%s", m.refused.error.text);
    driver_close(&driver);
    client_link_free(&viewer);
}

static void ask_snapshot(struct client_link *viewer, const int *files, unsigned n)
{
    const struct message m = {.kind = MESSAGE_SNAPSHOT};

    client_link_send_fds(viewer, &m, files, n);
}

static int make_file(const char *path)
{
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    ck_assert_int_ge(fd, 0);
    return fd;
}

/* Whatever version it is, a checkpoint of that version stands beside it. */
TEST(a_snapshot_is_the_weights_of_one_version)
{
    const int files[3] = {make_file("model.safetensors"), make_file("config.json"), make_file("side.json")};
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};
    char path[40];
    const struct driver_options options = {.out = outputs_make("snapshot"),
                                           .n_layers = 4,
                                           .side = "{\"options\": {\"a\": 1}}"};

    outputs_write(".", "side.json", "longer than what is to come, which is short");
    driver_open(&driver, "lab", &options);
    driver_look(&viewer, "lab");
    for (uint64_t step = 1; step <= 6; step++) {
        driver_begin(&driver);
        if (step == 4)
            ask_snapshot(&viewer, files, 3);
        driver_await_covered(&driver, step);
        driver_ask_save(&driver, step);
    }
    driver_await_done(&driver, 6);
    driver_await_saves(&driver, 6);
    driver_next(&viewer, &m);
    ck_assert_msg(m.kind == MESSAGE_SAVED, "%s", m.kind == MESSAGE_REFUSED ? m.refused.error.text : "?");
    ck_assert_uint_ge(m.saved.step, 1);
    ck_assert_uint_le(m.saved.step, 6);
    snprintf(path, sizeof path, "snapshot/step-%ju", (uintmax_t)m.saved.step);
    outputs_check_same(path, ".", "model.safetensors");
    outputs_check_same(path, ".", "config.json");
    outputs_check_file("side.json", options.side);
    driver_close(&driver);
    client_link_free(&viewer);
    for (int i = 0; i < 3; i++)
        close(files[i]);
}

TEST(a_snapshot_needs_a_model_in_training_and_three_files)
{
    const int files[3] = {make_file("a"), make_file("b"), make_file("c")};
    int pipe_fds[2], wrong[3] = {files[0], files[1], -1};
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};

    driver_look(&viewer, "lab");
    ask_snapshot(&viewer, files, 3);
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "REFUSED");
    ck_assert_str_eq(m.refused.error.text, "the daemon trains nothing; name a --model");
    driver_open(&driver, "lab", &(struct driver_options){.only_looks = true});
    ask_snapshot(&viewer, files, 3);
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "REFUSED");
    driver_close(&driver);

    driver_open(&driver, "lab", &(struct driver_options){0});
    ask_snapshot(&viewer, files, 2);
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "REFUSED");
    ck_assert_int_eq(pipe(pipe_fds), 0);
    const int kinds[] = {pipe_fds[1], open("a", O_RDONLY), open("a", O_WRONLY | O_APPEND), open(".", O_RDONLY),
                         open("a", O_PATH)};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        wrong[2] = kinds[i];
        ask_snapshot(&viewer, wrong, 3);
        driver_next(&viewer, &m);
        ck_assert_str_eq(message_name(m.kind), "REFUSED");
        close(kinds[i]);
    }
    close(pipe_fds[0]);
    ask_snapshot(&viewer, files, 3); /* at rest, before the first step, without an output directory */
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "SAVED");
    ck_assert_uint_eq(m.saved.step, 0);
    driver_train(&driver, 1);
    driver_close(&driver);
    client_link_free(&viewer);
    for (int i = 0; i < 3; i++)
        close(files[i]);
}

/* What could not be written is over, but has units to come; the job ends while the last of them is updated, which a save
 * waits for as well. */
TEST(a_job_ends_with_a_snapshot_that_failed_beside_a_save)
{
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};
    int files[3];
    const struct driver_options options = {.out = outputs_make("beside"), .vocabulary = 50000};

    for (int i = 0; i < 3; i++) {
        files[i] = memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        ck_assert_int_eq(fcntl(files[i], F_ADD_SEALS, F_SEAL_GROW | F_SEAL_WRITE), 0);
    }
    driver_look(&viewer, "lab");
    for (int i = 0; i < 3; i++) {
        driver_open(&driver, "lab", &options);
        driver_begin(&driver);
        driver_await_covered(&driver, 1);
        ask_snapshot(&viewer, files, 3);
        driver_ask_save(&driver, 1);
        driver_close(&driver);
        driver_next(&viewer, &m);
        ck_assert_str_eq(message_name(m.kind), "REFUSED");
        outputs_check_whole("beside", 1);
    }
    client_link_free(&viewer);
    for (int i = 0; i < 3; i++)
        close(files[i]);
}
