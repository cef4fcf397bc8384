/* What eps train says of a run, before its first step and after its last: six lines first, or all with --verbose. */
#include "tests/kit/test.h"

#include "tools/account.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char said[4000];
static struct account account;

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
    const struct eps_memory device = {
        .worker = 3, .budget = 19211 * mib, .planned = 13 * mib, .rows = rows, .n_rows = 6};
    const struct eps_memory host = {.planned = 4 * mib, .rows = rows + 5, .n_rows = 1};
    const struct eps_choice choice = {.microbatch = 1,
                                      .host_stash = true,
                                      .blocks = {{"h.0", 12, 2, {"all"}, {"nothing"}}},
                                      .n_blocks = 1,
                                      .n_weight_buffers = 3,
                                      .n_resident = 1,
                                      .replay = "replay off: no room in --host-mem"};

    account_plan(&account, &choice, &host, &device);
}

/* Figures in their own units: not 19211.0 MiB. */
TEST(a_plan_is_two_lines)
{
    account_init(&account);
    snprintf(account.workers, sizeof account.workers, "1 worker on cpu");
    listen_to(plan);
    ck_assert_str_eq(said,
                     "plan         micro-batches of 1; activations kept: 2 of 12 blocks; 1 unit resident; activation "
                     "checkpoints on the host\n"
                     "memory       device 13.0 MiB of 18.8 GiB, host 4.0 MiB; 1 worker on cpu\n");
}

TEST(a_whole_plan_is_grouped_with_the_largest_terms)
{
    account_init(&account);
    account.verbose = true;
    listen_to(plan);
    ck_assert_str_eq(said, "plan         micro-batches of 1\n"
                           "             activations kept: 2 of 12 blocks\n"
                           "             activation checkpoints: on the host\n"
                           "             weights: 1 unit resident, 3 buffers\n"
                           "             replay off: no room in --host-mem\n"
                           "planned      device 13.0 MiB of 18.8 GiB: library 4.0 MiB, weights 3.0 MiB, stash 3.0 MiB, "
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

    account_plan(&account, &choice, &host, &device);
}

TEST(blocks_that_differ_are_summed_and_each_class_told_in_the_whole_plan)
{
    account_init(&account);
    listen_to(plan_of_several);
    ck_assert_holds(said, "activations kept: 8 of 15 blocks, in part; 0 units resident\n");
    account.verbose = true;
    listen_to(plan_of_several);
    ck_assert_holds(said, "             activations kept: 8 of 15 blocks, in part\n"
                          "               4 of 9 like h.0: attention; the others: nothing\n"
                          "               3 of 3 like h.1\n"
                          "               1 of 3 like h.2: all; the others: attention\n"
                          "             activation checkpoints: 9 of 17 layers, on the device\n");
}

static void plan_that_derives(void)
{
    const struct eps_memory side = {.budget = mib, .planned = mib};
    const struct eps_choice choice = {
        .microbatch = 2, .n_inputs = 26, .n_stored = 15, .derives = true, .n_weight_buffers = 1, .replay = "replay on"};

    account_plan(&account, &choice, &side, &side);
}

TEST(a_plan_says_that_inputs_are_derived_again)
{
    account_init(&account);
    account.verbose = true;
    listen_to(plan_that_derives);
    ck_assert_holds(said, "activation checkpoints: 15 of 26 layers, the others derived again, on the device\n");
}

/* ---- The end ---- */

static void end(void)
{
    account_end(&account);
}

/* Steps 1 to n, of this loss. */
static void step(uint64_t first, uint64_t last, double loss)
{
    for (uint64_t i = first; i <= last; i++)
        account_step(&account, &(struct eps_step){
                                   .step = i, .loss = loss, .tokens_per_s = 100, .step_ms = 250, .optimizer_ms = 90});
}

/* Twenty steps, the last two of which are a tenth; of text, in 6 s. */
static void end_of_a_run(void)
{
    account_init(&account);
    snprintf(account.out, sizeof account.out, "/no/such/run");
    snprintf(account.model, sizeof account.model, "small");
    account.teaches = EPS_OF_TEXT;
    account.n_parameters = 1100000, account.n_steps = 20, account.took_ms = 6000;
    account.device_peak = 5 << 20, account.device_planned = 5 << 20, account.device_budget = 8 << 20;
    account.host_peak = 3 << 20, account.host_planned = 2 << 20;
    account_evaluated(&account, 0, 4);
    step(1, 18, 3);
    step(19, 19, 2);
    account_evaluated(&account, 19, 1);
    step(20, 20, 1);
    account_evaluated(&account, 20, 1.5);
}

/* By hand: a mean of 1.5, and e to the power of it 4.482; 20 steps of 25 tokens. */
TEST(a_summary_can_be_pasted)
{
    end_of_a_run();
    listen_to(end);
    ck_assert_str_eq(said, "\n"
                           "run          small, 1.1 M parameters: 20 steps, 500 tokens, 6.0 s\n"
                           "speed        100 tokens/s over 20 steps\n"
                           "loss         1.5000 (perplexity 4.482), mean of the last 2 steps\n"
                           "held out     1.5000 (perplexity 4.482) after 20 steps, 4.0000 before the first\n"
                           "best         1.0000 after 19 steps, without a checkpoint\n"
                           "memory       device 5.0 MiB of 8.0 MiB at most (as planned)\n"
                           "             host 3.0 MiB (2.0 MiB planned)\n"
                           "files        no longer in /no/such/run: it was moved or removed\n");
}

/* Neither of rows, nor of labels that are smoothed: then of the held-out ones alone, which are not. */
TEST(a_perplexity_is_of_tokens)
{
    end_of_a_run();
    account.smoothed = true;
    listen_to(end);
    ck_assert_holds(said, "loss         1.5000, mean", "held out     1.5000 (perplexity 4.482)");
    account.teaches = EPS_OF_MASKED;
    listen_to(end);
    ck_assert_holds(said, "held out     1.5000 (pseudo-perplexity 4.482)");
    account.teaches = EPS_OF_LABELS, account.smoothed = false;
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "perplexity"));
}

TEST(a_run_that_ended_early_or_went_on_says_which_steps_it_did)
{
    end_of_a_run();
    account.n_steps = 40;
    listen_to(end);
    ck_assert_holds(said, "parameters: 20 of 40 steps, ");
    account_init(&account);
    step(31, 32, 1);
    listen_to(end);
    ck_assert_holds(said, "parameters: steps 31 to 32, 50 tokens, ", "loss         1.0000 at step 32\n");
}

TEST(no_evaluation_below_the_first_is_said)
{
    account_init(&account);
    account_evaluated(&account, 0, 1);
    step(1, 1, 2);
    account_evaluated(&account, 1, 3);
    listen_to(end);
    ck_assert_holds(said, "best         1.0000 before the first step: none was lower\n");
}

/* Of 20 steps, 250 ms each are within 15 % of 290, and not of 295; of 4 they are too few to judge. */
TEST(a_run_says_when_its_steps_were_not_as_predicted)
{
    account_init(&account);
    account.predicted_ms = 1;
    step(1, 4, 1);
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "predicted"));
    end_of_a_run();
    account.predicted_ms = 290;
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "predicted"));
    account.predicted_ms = 295, account.predicted_optimizer_ms = 78, account.predicted_compute_ms = 150;
    listen_to(end);
    ck_assert_holds(
        said, "over 20 steps; a step took 250 ms, where 295 were predicted from what eps bench measured here: the "
              "optimizer worked for 90 of them, where 78 were predicted\n");
    account.predicted_optimizer_ms = 79; /* within 15 % */
    listen_to(end);
    ck_assert_holds(said, "the optimizer worked for 90 of them, about as predicted, so it was the device, of which 150 "
                          "were predicted, or its link\n");
    account.predicted_ms = 0;
    listen_to(end);
    ck_assert_ptr_null(strstr(said, "predicted"));
}

/* A directory that a shell would take apart, of a run that stands; conversations go on with eps chat. */
TEST(commands_to_go_on_with_can_be_pasted)
{
    char directory[] = "/tmp/it's a run.XXXXXX", path[64];

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    FILE *file = fopen(path, "w");
    fclose(file);
    end_of_a_run();
    snprintf(account.out, sizeof account.out, "%s", directory);
    account.saved = 20, account.drawn = true;
    listen_to(end);
    /* Nothing there is named `latest`. */
    const char *end_of_name = strrchr(directory, '.') + 1;
    snprintf(path, sizeof path, " generate --model '/tmp/it'\\''s a run.%s'/step-20\n", end_of_name);
    ck_assert_holds(said, path, "/report.svg\n");
    snprintf(path, sizeof path, " train --resume '/tmp/it'\\''s a run.%s' --steps 40\n", end_of_name);
    ck_assert_holds(said, path);
    account.teaches = EPS_OF_CONVERSATIONS;
    listen_to(end);
    ck_assert_holds(said, " chat --model '/tmp/it'");
    account.teaches = EPS_OF_LABELS;
    listen_to(end);
    ck_assert_holds(said, " eval --model '/tmp/it'", "/step-20 --data FILE\n");
    snprintf(path, sizeof path, "%s/metrics.jsonl", directory);
    ck_assert_int_eq(unlink(path) | rmdir(directory), 0);
}

TEST(steps_that_were_skipped_are_counted)
{
    end_of_a_run();
    account.n_skipped = 3;
    listen_to(end);
    ck_assert_holds(said, "skipped      3 of these steps, whose gradient was not finite\n");
}

/* ---- The beginning ---- */

static struct eps_train_options resolved;

static void begin(void)
{
    account_init(&account);
    account.verbose = resolved.verbose;
    account_start(&account, &resolved, 1000);
    if (!resolved.no_save)
        account_disk(&account, 10 * mib, 3, 1 << 30);
}

static void resolve(void)
{
    static const char *const data[] = {"data", "more"};

    resolved = eps_train_defaults();
    resolved.model = "model", resolved.data = data, resolved.n_data = 2, resolved.out = "out";
    resolved.device = "cpu", resolved.optimizer = EPS_ADAMA, resolved.parts = 1, resolved.workers = 1;
    resolved.steps = 30, resolved.batch = 16, resolved.seq = 128, resolved.lr = 3e-3, resolved.min_lr = 3e-4;
    resolved.schedule = EPS_SCHEDULE_COSINE, resolved.save_every = 3, resolved.keep = 2;
}

TEST(a_run_begins_with_four_lines_before_its_plan)
{
    resolve();
    listen_to(begin);
    ck_assert_str_eq(said, "model        model, 1000 parameters\n"
                           "data         data and 1 more; held out: the last 1 % of it\n"
                           "steps        30 of 16 sequences of 128 tokens; rate 0.003 to 0.0003; adamw, fp32\n"
                           "saves        out, every 3 steps: 10.0 MiB each, at most 30.0 MiB\n");
    resolved.no_save = true, resolved.lora = "rank=8", resolved.base = EPS_BASE_NF4;
    snprintf(resolved.task_note, sizeof resolved.task_note, "200 conversations, 20 rows held out");
    listen_to(begin);
    ck_assert_str_eq(said, "model        model, 1000 parameters; adapters rank=8, the base in nf4\n"
                           "data         data and 1 more: 200 conversations, 20 rows held out\n"
                           "steps        30 of 16 rows of at most 128 tokens; rate 0.003 to 0.0003; adamw, fp32\n"
                           "saves        nothing (--no-save); steps in out\n");
}

/* As --help and the manual have it: adamw by default; with one part the two are the same. */
TEST(the_optimizer_is_named_as_the_help_names_it)
{
    resolve();
    resolved.verbose = true;
    listen_to(begin);
    ck_assert_holds(said, "optimizer    adamw, ", "checkpoints  every 3 steps, the last 2 stay\n",
                    "disk         10.0 MiB a checkpoint, at most 3 at once: 30.0 MiB; 1.0 GiB free\n");
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
