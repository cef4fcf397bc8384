/* What eps train says of a run, before its first step and after its last. */
#include "tests/kit/test.h"

#include "tools/account.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char said[4000];

/* Calls it with stdout in a file, whose content is in `said` then. */
static void listen_to(void (*speak)(void))
{
    FILE *file = tmpfile();
    const int before = dup(STDOUT_FILENO);

    fflush(stdout);
    ck_assert_int_ge(dup2(fileno(file), STDOUT_FILENO), 0);
    speak();
    fflush(stdout);
    ck_assert_int_ge(dup2(before, STDOUT_FILENO), 0);
    close(before);
    rewind(file);
    said[fread(said, 1, sizeof said - 1, file)] = 0;
    fclose(file);
}

static const uint64_t mib = 1 << 20;

static void plan(void)
{
    const struct eps_memory_row rows[] = {{"weights", 0, 0, 3 * mib}, {"stash", 0, 0, 3 * mib},
                                          {"data", 0, 0, mib},        {"gradient", 0, 0, 2 * mib},
                                          {"other", 9, 9, 0},         {"library", 0, 0, 4 * mib}};
    const struct eps_memory device = {.worker = 3, .budget = 20 * mib, .planned = 13 * mib, .rows = rows, .n_rows = 6};
    const struct eps_memory host = {.planned = 4 * mib, .rows = rows + 5, .n_rows = 1};
    const struct eps_choice choice = {.microbatch = 1,
                                      .host_stash = true,
                                      .blocks = {{"h.0", 12, 2, {"all"}, {"nothing"}}},
                                      .n_blocks = 1,
                                      .n_weight_buffers = 3,
                                      .n_resident = 1,
                                      .replay = "replay off: no room in --host-mem"};

    account_plan(&choice, &host, &device);
}

TEST(a_plan_is_three_lines_with_the_largest_terms)
{
    listen_to(plan);
    ck_assert_str_eq(
        said, "plan         micro-batches of 1, activation checkpoints on the host, activations of 2 of 12 blocks "
              "kept, 3 weight buffers, 1 unit resident, replay off: no room in --host-mem\n"
              "planned      device 13.0 MiB of 20.0 MiB: library 4.0 MiB, weights 3.0 MiB, stash 3.0 MiB, "
              "gradient 2.0 MiB, ...\n"
              "             host 4.0 MiB: library 4.0 MiB\n");
}

static void plan_of_several(void)
{
    const struct eps_memory_row rows[] = {{"weights", 0, 0, mib}};
    const struct eps_memory device = {.budget = mib, .planned = mib, .rows = rows, .n_rows = 1}, host = device;
    const struct eps_choice choice = {.microbatch = 2,
                                      .n_inputs = 17,
                                      .n_stored = 9,
                                      .blocks = {{"h.0", 9, 4, {"attention"}, {"nothing"}},
                                                 {"h.1", 3, 3, {"all"}, {"nothing"}},
                                                 {"h.2", 3, 1, {"all"}, {"attention"}}},
                                      .n_blocks = 3,
                                      .n_weight_buffers = 1,
                                      .replay = "replay on"};

    account_plan(&choice, &host, &device);
}

TEST(a_plan_says_of_blocks_that_differ_what_each_of_them_keeps)
{
    listen_to(plan_of_several);
    ck_assert_holds(said,
                    "activation checkpoints of 9 of 17 layers on the device, activations kept of 4 of 9 blocks like "
                    "h.0: attention; activations of 3 of 3 "
                    "blocks like h.1 kept; activations kept of 1 of 3 blocks like h.2: all; of the others: attention, "
                    "1 weight buffer");
}

static void plan_that_derives(void)
{
    const struct eps_memory side = {.budget = mib, .planned = mib};
    const struct eps_choice choice = {
        .microbatch = 2, .n_inputs = 26, .n_stored = 15, .derives = true, .n_weight_buffers = 1, .replay = "replay on"};

    account_plan(&choice, &side, &side);
}

TEST(a_plan_says_that_inputs_are_derived_again)
{
    listen_to(plan_that_derives);
    ck_assert_holds(said, "activation checkpoints of 15 of 26 layers, the others derived again, on the device, ");
}

static struct account account = {.out = "/no/such/run",
                                 .last = 4,
                                 .n_steps = 4,
                                 .saved = UINT64_MAX,
                                 .loss = 2.5,
                                 .before = NAN,
                                 .after = NAN,
                                 .tokens = 100,
                                 .ms = 1000,
                                 .device_peak = 5 << 20,
                                 .device_planned = 5 << 20,
                                 .device_budget = 8 << 20,
                                 .host_peak = 3 << 20,
                                 .host_planned = 2 << 20};

static void end(void)
{
    account_end(&account);
}

TEST(the_end_compares_what_was_used_with_the_plan)
{
    listen_to(end);
    ck_assert_holds(said, "loss         2.5000 at step 4\n");
    ck_assert_holds(said, "speed        100 tokens/s over 4 steps\n");
    ck_assert_holds(said, "memory       device 5.0 MiB of 8.0 MiB at most (as planned)\n"
                          "             host 3.0 MiB (2.0 MiB planned)\n");
    ck_assert_ptr_null(strstr(said, "skipped"));
}

/* 1,000 ms in 4 steps are too few; in 5, 200 ms each are within 15 % of 230, and not of 236. */
TEST(a_run_says_when_its_steps_were_not_as_predicted)
{
    const struct account before = account;

    account.predicted_ms = 1;
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "predicted"));
    account.last = 5, account.predicted_ms = 230;
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "predicted"));
    account.predicted_ms = 236;
    listen_to(end);
    account.optimizer_ms = 5 * 90, account.predicted_optimizer_ms = 78, account.predicted_compute_ms = 150;
    listen_to(end);
    ck_assert_holds(said,
                    "over 5 steps; a step took 200 ms, where 236 were predicted from what eps bench measured here: the "
                    "optimizer worked for 90 of them, where 78 were predicted\n");
    account.predicted_optimizer_ms = 79; /* within 15 % */
    listen_to(end);
    ck_assert_holds(said, "the optimizer worked for 90 of them, about as predicted, so it was the device, of which 150 "
                          "were predicted, or its link\n");
    account.predicted_ms = 0;
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "predicted"));
    account = before;
}

/* A directory that a shell would take apart, of a run that stands. */
TEST(commands_to_go_on_with_can_be_pasted)
{
    char directory[] = "/tmp/it's a run.XXXXXX", path[64];

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    FILE *file = fopen(path, "w");
    fclose(file);
    snprintf(account.out, sizeof account.out, "%s", directory);
    account.saved = 4;
    listen_to(end);
    ck_assert_int_eq(unlink(path) | rmdir(directory), 0);
    /* Nothing there is named `latest`. */
    snprintf(path, sizeof path, " generate --model '/tmp/it'\\''s a run.%s'/step-4\n", strrchr(directory, '.') + 1);
    ck_assert_holds(said, path);
    snprintf(path, sizeof path, " train --resume '/tmp/it'\\''s a run.%s' --steps 8\n", strrchr(directory, '.') + 1);
    ck_assert_holds(said, path);
}

TEST(steps_that_were_skipped_are_counted)
{
    account.n_skipped = 3;
    listen_to(end);
    ck_assert_holds(said, "skipped      3 of these steps, whose gradient was not finite\n");
}

static struct eps_train_options resolved;

static void begin(void)
{
    account_options(&resolved, 1000, false);
}

/* As --help and the manual have it: adamw by default; with one part the two are the same. */
TEST(the_optimizer_is_named_as_the_help_names_it)
{
    const char *const data = "data";

    resolved = eps_train_defaults();
    resolved.model = "model", resolved.data = &data, resolved.n_data = 1, resolved.out = "out";
    resolved.device = "cpu", resolved.optimizer = EPS_ADAMA, resolved.parts = 1;
    listen_to(begin);
    ck_assert_holds(said, "optimizer    adamw, ");
    resolved.parts = 2;
    listen_to(begin);
    ck_assert_holds(said, "optimizer    adama, ");
    resolved.optimizer = EPS_SGD, resolved.momentum = 0.9, resolved.nesterov = true, resolved.weight_decay = 1e-4;
    resolved.schedule = EPS_SCHEDULE_STEP, resolved.lr = 0.1, resolved.lr_steps = "60,120", resolved.lr_factor = 0.2;
    resolved.warmup = 5;
    listen_to(begin);
    ck_assert_holds(said, "optimizer    sgd, momentum 0.9 (Nesterov's), weight decay 0.0001\n");
    ck_assert_holds(said, "rate         0.1, times 0.2 after each of the steps 60,120, 5 steps of warm-up\n");
}
