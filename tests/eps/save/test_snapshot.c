/* Viewers of a run in training: the weights of one version in files of their own, or why there are none. A checkpoint
 * when they ask for it: test_save, test_save_failures, test_save_slow. */
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

static void expect_refused(struct client_link *viewer, const char *sentence)
{
    struct message m = {0};

    driver_next(viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "REFUSED");
    ck_assert_holds(m.refused.error.text, sentence);
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

static void ask_save(struct client_link *viewer)
{
    client_link_send(viewer, &(struct message){.kind = MESSAGE_SAVE, .save = {.step = MESSAGE_NO_STEP}});
}

/* A save needs a model in training and somewhere to be put, a snapshot the same and three files of the viewer's. */
TEST(a_viewer_is_told_why_nothing_can_be_saved)
{
    const int files[3] = {make_file("a"), make_file("b"), make_file("c")};
    int pipe_fds[2];
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};

    driver_look(&viewer, "lab");
    ask_save(&viewer), expect_refused(&viewer, "the daemon trains nothing: there is nothing to save");
    ask_snapshot(&viewer, files, 3), expect_refused(&viewer, "the daemon trains nothing; name a --model");
    driver_open(&driver, "lab", &(struct driver_options){.only_looks = true});
    ask_snapshot(&viewer, files, 3), expect_refused(&viewer, "the daemon trains nothing");
    driver_close(&driver);

    driver_open(&driver, "lab", &(struct driver_options){0});
    ask_save(&viewer), expect_refused(&viewer, "begun with --no-save");
    ask_snapshot(&viewer, files, 2), expect_refused(&viewer, "");
    ck_assert_int_eq(pipe(pipe_fds), 0);
    const int kinds[] = {pipe_fds[1], open("a", O_RDONLY), open("a", O_WRONLY | O_APPEND), open(".", O_RDONLY),
                         open("a", O_PATH)};
    for (int i = 0; i < COUNT(kinds); i++) {
        ask_snapshot(&viewer, (int[3]){files[0], files[1], kinds[i]}, 3), expect_refused(&viewer, "");
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

/* What could not be written is over, but has units to come; the job ends while the last of them is updated, which a
 * save waits for as well. */
TEST(a_job_ends_with_a_snapshot_that_failed_beside_a_save)
{
    struct client_link viewer;
    struct driver driver;
    int files[3];
    const struct driver_options options = {.out = outputs_make("beside"), .vocabulary = 50000};

    for (int i = 0; i < 3; i++) {
        files[i] = memfd_create("sealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
        ck_assert_int_eq(fcntl(files[i], F_ADD_SEALS, F_SEAL_GROW | F_SEAL_WRITE), 0);
    }
    for (int i = 0; i < 3; i++) {
        driver_open(&driver, "lab", &options);
        driver_begin(&driver);
        driver_await_covered(&driver, 1);
        driver_look(&viewer, "lab");
        driver_serve(&driver, &viewer);
        ask_snapshot(&viewer, files, 3);
        driver_ask_save(&driver, 1);
        driver_close(&driver);
        expect_refused(&viewer, "");
        client_link_free(&viewer);
        outputs_check_whole("beside", 1);
    }
    for (int i = 0; i < 3; i++)
        close(files[i]);
}
