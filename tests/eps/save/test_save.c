/* Checkpoints by a real daemon, while it trains: what they hold, when they come, how a run goes on from them. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(slow)

static void setup(void)
{
    processes_setup();
    processes_daemon("lab", 1, NULL);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

/* One run saves after 3 steps without stopping; another stops there; a third goes on from where that one stopped. Other
 * optimizers and numbers of parts: test_capture. */
TEST(a_save_under_way_holds_its_step_and_resumes_bit_for_bit)
{
    struct driver driver;
    struct driver_options options = {.adamw = true, .n_parts = 4, .out = outputs_make("going")};

    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    driver_begin(&driver);
    driver_await_covered(&driver, 3);
    driver_ask_save(&driver, 3);
    driver_save(&driver, 6);
    driver_await_saves(&driver, 2);
    ck_assert_uint_eq(driver.saved[0], 3);
    ck_assert_uint_eq(driver.saved[1], 6);
    driver_close(&driver);
    outputs_check_whole("going", 6);

    options.out = outputs_make("stopped");
    driver_open(&driver, "lab", &options);
    driver_save(&driver, 3);
    driver_close(&driver);
    outputs_check_whole("stopped", 3);
    outputs_check_same_state("going/step-3", "stopped/step-3");

    options.out = outputs_make("resumed");
    options.resume = "stopped/step-3";
    options.step = 3;
    driver_open(&driver, "lab", &options);
    driver_save(&driver, 6);
    driver_close(&driver);
    outputs_check_same_state("going/step-6", "resumed/step-6");
}

TEST(a_checkpoint_has_the_models_config_the_options_and_the_side_files)
{
    struct driver driver;
    const struct driver_options options = {
        .out = outputs_make("side"),
        .side = "{\"options\": {\"lr\": 0.5}, \"files\": {\"tokenizer.json\": \"{}\\n\", \"merges.txt\": \"\"}}"};

    driver_open(&driver, "lab", &options);
    driver_save(&driver, 1);
    driver_close(&driver);
    outputs_check_whole("side", 1);
    ck_assert_str_eq(outputs_names("side"), "latest step-1 ");
    ck_assert_str_eq(outputs_names("side/step-1"), "config.json merges.txt model.safetensors optimizer.safetensors "
                                                   "tokenizer.json training.json ");
    outputs_check_file("side/step-1/config.json", driver_config);
    outputs_check_file("side/step-1/tokenizer.json", "{}\n");
    expect_file("side/step-1/training.json", "\"lr\"");
}

/* Nothing is known to the relay before the first step, so the daemon reads by itself, and the step must wait. */
TEST(a_save_before_the_first_step_holds_what_was_there)
{
    struct driver driver;
    struct driver_options options = {.out = outputs_make("before"), .n_layers = 6};

    driver_open(&driver, "lab", &options);
    driver_ask_save(&driver, 0);
    driver_train(&driver, 2);
    driver_await_saves(&driver, 1);
    driver_close(&driver);
    outputs_check_whole("before", 0);

    options.out = outputs_make("idle");
    driver_open(&driver, "lab", &options);
    driver_ask_save(&driver, 0);
    driver_await_saves(&driver, 1);
    driver_close(&driver);
    outputs_check_same_state("before/step-0", "idle/step-0");
}

/* Large enough for several saves to be under way at a time; all are compared with those of a run that waits. */
TEST(saves_of_every_step_hold_their_steps)
{
    struct driver driver;
    struct driver_options options = {.out = outputs_make("hasty"), .n_layers = 6, .n_parts = 2};
    char hasty[40], patient[40];

    driver_open(&driver, "lab", &options);
    for (uint64_t step = 1; step <= 5; step++) {
        driver_begin(&driver);
        driver_await_covered(&driver, step);
        driver_ask_save(&driver, step);
    }
    driver_await_done(&driver, 5);
    driver_await_saves(&driver, 5);
    driver_close(&driver);

    options.out = outputs_make("patient");
    driver_open(&driver, "lab", &options);
    for (uint64_t step = 1; step <= 5; step++) {
        driver_save(&driver, step);
        ck_assert_uint_eq(driver.saved[step - 1], step);
        snprintf(hasty, sizeof hasty, "hasty/step-%ju", (uintmax_t)step);
        snprintf(patient, sizeof patient, "patient/step-%ju", (uintmax_t)step);
        outputs_check_same_state(hasty, patient);
    }
    driver_close(&driver);
    ck_assert_str_eq(outputs_names("hasty"), "latest step-1 step-2 step-3 step-4 step-5 ");
}

TEST(the_client_may_close_right_after_it_asked)
{
    struct driver driver;
    const struct driver_options options = {.out = outputs_make("closing"), .vocabulary = 50000};

    driver_open(&driver, "lab", &options);
    driver_begin(&driver);
    driver_await_covered(&driver, 1);
    driver_ask_save(&driver, 1);
    driver_close(&driver); /* while the table of tokens is updated */
    outputs_check_whole("closing", 1);
}

/* A viewer asks in the middle of a step, and the client goes away: at once, or a little later each time. */
TEST(a_save_is_whole_or_not_there_whenever_the_client_goes)
{
    const struct message save = {.kind = MESSAGE_SAVE, .save = {.step = MESSAGE_NO_STEP}};
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};
    const struct driver_options options = {.out = outputs_make("gone"), .n_layers = 6};
    uint64_t last = 0;

    driver_look(&viewer, "lab");
    for (int i = 0; i < 12; i++) {
        driver_open(&driver, "lab", &options); /* waits for the other's end */
        const char *names = outputs_names("gone");
        ck_assert_msg(strstr(names, "partial") == NULL, "%s", names);
        driver_train(&driver, 1);
        driver_begin(&driver);
        for (int k = 0; k < 4 * i; k++)
            driver_status(&viewer, &m);
        client_link_send(&viewer, &save);
        driver_leave(&driver);
        do
            driver_next(&viewer, &m);
        while (m.kind == MESSAGE_STATUS_REPLY);
        if (m.kind == MESSAGE_SAVED)
            outputs_check_whole("gone", last = m.saved.step);
        else
            ck_assert_str_eq(message_name(m.kind), "REFUSED");
    }
    ck_assert_uint_le(last, 2);
    client_link_free(&viewer);
}

TEST(what_stands_is_not_written_again)
{
    struct driver driver;
    const struct driver_options options = {.out = outputs_make("twice")};
    struct stat before, after;

    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    driver_ask_save(&driver, 1);
    driver_ask_save(&driver, 1); /* under way: one answer for both */
    driver_await_saves(&driver, 1);
    ck_assert_int_eq(stat("twice/step-1", &before), 0);
    const unsigned n = driver.n_saved;
    driver_ask_save(&driver, 1);
    driver_await_saves(&driver, n + 1);
    ck_assert_int_eq(stat("twice/step-1", &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    driver_close(&driver);
}

TEST(a_save_of_another_step_costs_the_client_its_session)
{
    struct driver driver;
    const struct driver_options options = {.out = outputs_make("wrong")};
    struct error err = {""};
    struct message m;

    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    driver_ask_save(&driver, 1);
    ck_assert_int_lt(client_link_next(&driver.link, &m, NULL, &err), 0);
    ck_assert_msg(strstr(err.text, "another step") != NULL, "%s", err.text);
    driver_leave(&driver);
}

TEST(a_job_resumes_from_what_can_be_resumed_alone)
{
    struct driver driver;
    struct driver_options options = {.step = 2};
    struct error err = {""};

    ck_assert_int_eq(driver_try(&driver, "lab", &options, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, "moments") != NULL, "%s", err.text);
    driver_leave(&driver);

    options = (struct driver_options){.side = "[]"}; /* others: test_capture */
    ck_assert_int_eq(driver_try(&driver, "lab", &options, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, "side file") != NULL, "%s", err.text);
    driver_leave(&driver);

    options = (struct driver_options){.out = outputs_make("source")};
    driver_open(&driver, "lab", &options);
    driver_save(&driver, 1);
    driver_close(&driver);
    options = (struct driver_options){.resume = "source/step-1", .step = 1, .only_looks = true};
    ck_assert_int_eq(driver_try(&driver, "lab", &options, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, "training") != NULL, "%s", err.text);
    driver_leave(&driver);
    ck_assert_int_eq(rename("source/step-1/model.safetensors", "source/step-1/optimizer.safetensors"), 0);
    ck_assert_int_eq(system("cp source/step-1/optimizer.safetensors source/step-1/model.safetensors"), 0);
    options.only_looks = false;
    ck_assert_int_lt(driver_try(&driver, "lab", &options, &err), 0);
    driver_leave(&driver);
}

TEST(the_status_tells_of_saves)
{
    struct client_link viewer;
    struct driver driver;
    struct message m;
    const struct driver_options options = {.out = outputs_make("status")};

    driver_look(&viewer, "lab");
    driver_status(&viewer, &m);
    ck_assert(m.status_reply.saved_step == MESSAGE_NO_STEP);
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    driver_status(&viewer, &m);
    ck_assert(m.status_reply.saved_step == MESSAGE_NO_STEP);
    driver_ask_save(&driver, 2);
    driver_await_saves(&driver, 1);
    driver_status(&viewer, &m);
    ck_assert_uint_eq(m.status_reply.saved_step, 2);
    ck_assert_uint_eq(m.status_reply.n_steps, 100);
    ck_assert_uint_eq(m.status_reply.uid, getuid());
    ck_assert(!m.status_reply.saving);
    ck_assert_str_eq(m.status_reply.trouble, "");
    char *path = realpath("status", NULL);
    ck_assert_str_eq(m.status_reply.out, path);
    free(path);
    driver_close(&driver);
    client_link_free(&viewer);
}
