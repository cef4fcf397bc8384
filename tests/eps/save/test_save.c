/* Checkpoints by a real daemon, while it trains: what they hold, when they come, how a run goes on from them. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
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

/* What the files hold, byte for byte, and how a run goes on from them: test_capture. */
TEST(a_checkpoint_has_what_the_client_brought_stands_and_is_told_of)
{
    struct client_link viewer;
    struct driver driver;
    struct message m;
    struct stat before, after;
    const struct driver_options options = {
        .out = outputs_make("side"),
        .side = "{\"options\": {\"lr\": 0.5}, \"files\": {\"tokenizer.json\": \"{}\\n\", \"merges.txt\": \"\"}}"};

    driver_look(&viewer, "lab");
    driver_status(&viewer, &m);
    ck_assert(m.status_reply.saved_step == MESSAGE_NO_STEP);
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    driver_status(&viewer, &m);
    ck_assert(m.status_reply.saved_step == MESSAGE_NO_STEP);
    driver_ask_save(&driver, 2);
    driver_ask_save(&driver, 2); /* under way: one answer for both */
    driver_await_saves(&driver, 1);
    outputs_check_whole("side", 2);
    ck_assert_str_eq(outputs_names("side"), "latest step-2 ");
    ck_assert_str_eq(outputs_names("side/step-2"), "config.json merges.txt model.safetensors optimizer.safetensors "
                                                   "tokenizer.json training.json ");
    outputs_check_file("side/step-2/config.json", driver_config);
    outputs_check_file("side/step-2/tokenizer.json", "{}\n");
    expect_file("side/step-2/training.json", "\"lr\"");
    driver_status(&viewer, &m);
    ck_assert_uint_eq(m.status_reply.saved_step, 2);
    ck_assert_uint_eq(m.status_reply.n_steps, 100);
    ck_assert_uint_eq(m.status_reply.uid, getuid());
    ck_assert(!m.status_reply.saving);
    ck_assert_str_eq(m.status_reply.trouble, "");
    ck_assert_str_eq(m.status_reply.out, processes_path("side"));

    const unsigned n = driver.n_saved; /* what stands is not written again */
    ck_assert_int_eq(stat("side/step-2", &before), 0);
    driver_ask_save(&driver, 2);
    driver_await_saves(&driver, n + 1);
    driver_ask(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "SAVED");
    ck_assert_int_eq(stat("side/step-2", &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    driver_close(&driver);
    client_link_free(&viewer);
}

/* Large enough for several saves to be under way at a time; all are compared with those of a run that waits. */
TEST(saves_of_every_step_hold_their_steps_and_none_is_of_another)
{
    struct driver driver;
    struct driver_options options = {.adamw = true, .out = outputs_make("hasty"), .n_layers = 6, .n_parts = 4};
    struct error err = {""};
    struct message m;

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
        outputs_check_same_state(print("hasty/step-%ju", (uintmax_t)step), print("patient/step-%ju", (uintmax_t)step));
    }
    driver_ask_save(&driver, 4); /* which costs the client its session */
    ck_assert_int_lt(client_link_next(&driver.link, &m, NULL, &err), 0);
    ck_assert_holds(err.text, "another step");
    driver_leave(&driver);
    ck_assert_str_eq(outputs_names("hasty"), "latest step-1 step-2 step-3 step-4 step-5 ");
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

static const struct {
    struct driver_options options;
    int code;
    const char *sentence;
} refusals[] = {
    {{.step = 2}, -EINVAL, "moments"},
    {{.side = "[]"}, -EINVAL, "side file"}, /* others: test_job */
    {{.resume = "source/step-1", .step = 1, .only_looks = true}, -EINVAL, "training"},
    {{.resume = "source/step-9", .step = 1}, -EINVAL, "is not a tensor of this model"}, /* moments for weights */
    {{.resume = "source/step-1", .step = 1, .headers = 100}, -EINVAL, " bytes, where 100 are left for this model"},
    {{.resume = "source/step-1", .step = 1, .headers = (uint64_t)1 << 40}, -EINVAL, "more than this model's may"},
};

TEST(a_job_resumes_from_what_can_be_resumed_alone)
{
    const struct driver_options options = {.out = outputs_make("source")};
    struct driver driver;
    struct error err = {""};

    driver_open(&driver, "lab", &options);
    driver_save(&driver, 1);
    driver_close(&driver);
    outputs_make("source/step-9");
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(link("source/step-1/optimizer.safetensors",
                              i ? "source/step-9/model.safetensors" : "source/step-9/optimizer.safetensors"),
                         0);
    for (int i = 0; i < COUNT(refusals); i++) {
        ck_assert_int_eq(driver_try(&driver, "lab", &refusals[i].options, &err), refusals[i].code);
        ck_assert_msg(strstr(err.text, refusals[i].sentence) != NULL, "%d: %s", i, err.text);
        driver_leave(&driver);
    }
}
