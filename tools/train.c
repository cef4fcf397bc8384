/* Everything that prints clears the progress line first, and what is printed is flushed, so that a reader of a pipe
 * sees it as it happens. The end's account is made of what the events told, as the run's structs are gone by then. A
 * resumed run may owe the evaluation of the checkpoint it began from, which is told before any step: no step of this
 * run saved it. */
#include "client/eps.h"
#include "tools/account.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/screen/progress.h"
#include "tools/table_options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

struct train {
    struct progress progress;
    struct stopping stopping;
    struct account account;
    bool free_memory;    /* --device-mem was left unset */
    const char *counted; /* what a held-out loss is the mean of */
    uint64_t made_up;    /* step of an evaluation before the first step: the checkpoint that was resumed; 0: none */
};

static void train_on_start(void *user, const struct eps_train_options *o, uint64_t n_parameters)
{
    struct train *t = user;

    snprintf(t->account.out, sizeof t->account.out, "%s", o->out);
    t->account.n_steps = o->steps;
    t->account.silent = o->task || !isnan(o->mask_fraction) || o->source_seq > 0;
    t->counted = o->task ? "rows" : isnan(o->dpo_beta) ? "tokens" : "preferences";
    account_options(o, n_parameters, t->free_memory);
}

static void on_disk(void *user, uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes)
{
    (void)user;
    account_disk(checkpoint_bytes, n_most, free_bytes);
}

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    struct train *t = user;

    t->account.predicted_ms = choice->predicted_ms;
    t->account.predicted_compute_ms = choice->predicted_compute_ms;
    t->account.predicted_optimizer_ms = choice->predicted_optimizer_ms;
    account_plan(choice, host, device);
}

static void train_on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];
    struct train *t = user;

    progress_clear(&t->progress);
    printf("note         %s\n", arguments_options(text, sentence));
    fflush(stdout);
}

static void train_on_step(void *user, const struct eps_step *step)
{
    struct train *t = user;

    if (t->account.last == 0) {
        t->account.first = step->step - 1;
        if (t->made_up == step->step) /* it was this step's own, which is reported before it */
            t->made_up = 0;
    }
    t->account.last = step->step;
    t->account.n_skipped += step->skipped;
    t->account.loss = step->loss;
    t->account.pixels = step->pixels;
    if (!isnan(step->step_ms)) {
        t->account.ms += step->step_ms;
        t->account.optimizer_ms += step->optimizer_ms;
        t->account.tokens += step->tokens_per_s * step->step_ms / 1000;
    }
    progress_step(&t->progress, step);
}

static void train_on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct train *t = user;
    progress_evaluating(&t->progress, n_tokens, n_all);
}

static void train_on_evaluated(void *user, uint64_t step, double loss, uint64_t tokens)
{
    struct train *t = user;

    progress_clear(&t->progress);
    printf("held-out loss after %" PRIu64 " step%s: %.4f over %" PRIu64 " %s\n", step, step == 1 ? "" : "s", loss,
           tokens, t->counted);
    fflush(stdout);
    if (step == 0)
        t->account.before = loss;
    else
        t->account.after = loss;
    if (t->account.last == 0)
        t->made_up = step;
}

static void train_on_scored(void *user, const struct eps_score *scores, size_t n)
{
    struct train *t = user;

    t->account.n_scores = n < ACCOUNT_SCORES ? n : ACCOUNT_SCORES;
    printf("held-out");
    for (size_t i = 0; i < n; i++) {
        printf("%s %s %.4f", i ? "," : "", scores[i].name, scores[i].value);
        if (i < ACCOUNT_SCORES)
            t->account.scores[i] = scores[i];
    }
    putchar('\n');
    fflush(stdout);
}

static void train_on_memory(void *user, const struct eps_memory *side)
{
    struct train *t = user;

    if (side->worker == 0) {
        t->account.host_peak = side->peak;
        t->account.host_planned = side->planned;
    } else if (side->peak >= t->account.device_peak) {
        t->account.device_peak = side->peak;
        t->account.device_budget = side->budget;
        t->account.device_planned = side->planned;
    }
}

static void on_sample(void *user, uint64_t step, const char *prompt, const char *text, size_t n)
{
    struct train *t = user;

    progress_clear(&t->progress);
    printf("sample after %" PRIu64 " step%s: %s | ", step, step == 1 ? "" : "s", prompt);
    fwrite(text, 1, n, stdout);
    putchar('\n');
    fflush(stdout);
}

static void on_saved(void *user, uint64_t step, const char *path)
{
    struct train *t = user;
    progress_saved(&t->progress, step, path);
}

static void on_save_failed(void *user, uint64_t step, const char *why)
{
    struct train *t = user;

    (void)step;
    progress_trouble(&t->progress, why);
}

static int train_should_stop(void *user)
{
    struct train *t = user;
    return stopping_observer(&t->stopping);
}

static int train_run(const struct command *command, const struct eps_train_options *options)
{
    const struct eps_train_events events = {.on_start = train_on_start,
                                            .on_disk = on_disk,
                                            .on_plan = on_plan,
                                            .on_step = train_on_step,
                                            .on_evaluating = train_on_evaluating,
                                            .on_evaluated = train_on_evaluated,
                                            .on_scored = train_on_scored,
                                            .on_memory = train_on_memory,
                                            .on_sample = on_sample,
                                            .on_saved = on_saved,
                                            .on_save_failed = on_save_failed,
                                            .on_note = train_on_note,
                                            .should_stop = train_should_stop};
    struct train t = {.account = {.before = NAN, .after = NAN},
                      .free_memory = options->device_mem == 0 && !options->resume && !options->attach};
    struct eps_error error;

    stopping_init(&t.stopping);
    progress_init(&t.progress, stdout);
    int rc = eps_train(options, &events, &t, &error);
    progress_finish(&t.progress);
    t.account.saved = t.progress.saved != UINT64_MAX || t.made_up == 0 ? t.progress.saved : t.made_up;
    t.account.complete = rc == 0;
    if (t.account.host_peak > 0)
        account_end(&t.account);
    fflush(stdout);
    if (!rc)
        return 0;
    int status = arguments_fail(command, rc, error.text);
    return rc == -EINTR ? stopping_status(&t.stopping, status) : status;
}

int command_train(int argc, char **argv)
{
    struct eps_train_options asked = eps_train_defaults();
    struct table_options options = {.options = &asked};

    table_options_take(&options, EPS_COMMAND_TRAIN);
    const struct command command = {
        "eps train",
        "Trains a model. A daemon (epsd) holds it in host memory; workers (eps-worker) pull it layer by layer. Both "
        "start and end with the command, unless --connect names a daemon. Ctrl-C, SIGTERM or SIGHUP finishes the "
        "current step, saves (unless --save-every is 0, or with --no-save) and ends; a second Ctrl-C or SIGTERM ends "
        "at once.",
        options.arguments, options.n};
    int status = table_options_parse(&options, &command, argc, argv);
    if (status < 0)
        status = train_run(&command, &asked);
    table_options_free(&options);
    return status;
}
