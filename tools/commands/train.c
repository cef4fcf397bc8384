/* Everything that prints clears the progress line first, and what is printed is flushed, so that a reader of a pipe
 * sees it as it happens. The end's account is made of what the events told, as the run's structs are gone by then; the
 * picture and the best evaluation are those of metrics.jsonl, which has earlier calls' steps, too. A resumed run may
 * owe the evaluation of the checkpoint it began from, which is told before any step: no step of this run saved it. */
#include "client/eps.h"
#include "tools/account.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/hub.h"
#include "tools/live.h"
#include "tools/screen/picture.h"
#include "tools/screen/plot.h"
#include "tools/screen/progress.h"
#include "tools/table_options.h"
#include "tools/usual.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct train {
    struct progress progress;
    struct stopping stopping;
    struct account account;
    struct printed printed; /* not printed_init: a reader that closes its pipe stops the run */
    const char *counted;    /* what a held-out loss is the mean of */
    uint64_t made_up;       /* step of an evaluation before the first step: the checkpoint that was resumed; 0: none */
};

static void train_on_start(void *user, const struct eps_train_options *o, uint64_t n_parameters)
{
    struct train *t = user;

    t->counted = o->task ? "rows" : isnan(o->dpo_beta) ? "tokens" : "preferences";
    account_start(&t->account, o, n_parameters);
}

static void on_disk(void *user, uint64_t checkpoint_bytes, uint64_t n_most, uint64_t free_bytes)
{
    struct train *t = user;
    account_disk(&t->account, checkpoint_bytes, n_most, free_bytes);
}

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    struct train *t = user;
    account_plan(&t->account, choice, host, device);
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

    if (t->account.last == 0 && t->made_up == step->step) /* it was this step's own, which is reported before it */
        t->made_up = 0;
    account_step(&t->account, step);
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
    account_evaluated(&t->account, step, loss);
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
    printf("sample after %" PRIu64 " step%s: ", step, step == 1 ? "" : "s");
    printed_text(&t->printed, prompt, strlen(prompt));
    fputs(" | ", stdout);
    printed_text(&t->printed, text, n);
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

static void plot_on_step(void *user, const struct eps_step *step)
{
    plot_add(user, step);
}

static void write_picture(FILE *script, const void *of, const char *format)
{
    const struct plot_titled *run = of;
    plot_write(script, run->plot, format, run->title);
}

/* Draws the whole run into report.svg, if gnuplot is there. A run is not worth less without its picture. */
static void train_draw(struct train *t)
{
    struct account *a = &t->account;
    struct plot_titled run = {calloc(1, sizeof *run.plot), a->out};
    struct eps_error error;
    char path[sizeof a->out + 16];

    if (run.plot && eps_metrics_read(a->out, plot_on_step, run.plot, NULL, &error) == 0 && run.plot->n_steps > 0) {
        if (!isnan(run.plot->best.loss))
            a->best = run.plot->best;
        snprintf(path, sizeof path, "%s/report.svg", a->out);
        const int rc = picture_draw(path, write_picture, &run, &error);
        if (rc && rc != -ENOENT)
            printf("note         there is no picture of the run: %s\n", error.text);
        a->drawn = rc == 0;
    }
    free(run.plot);
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
    struct eps_error error;
    struct train t = {.printed = {.terminal = isatty(STDOUT_FILENO) == 1}};

    account_init(&t.account);
    t.account.verbose = options->verbose;
    t.account.free_memory = options->device_mem == 0 && !options->resume && !options->attach;
    stopping_init(&t.stopping);
    progress_init(&t.progress, stdout);
    int rc = eps_train(options, &events, &t, &error);
    progress_finish(&t.progress);
    t.account.saved = t.progress.saved != UINT64_MAX || t.made_up == 0 ? t.progress.saved : t.made_up;
    t.account.complete = rc == 0;
    t.account.took_ms = t.account.began_ms ? live_now_ms() - t.account.began_ms : 0;
    if ((rc == 0 || rc == -EINTR) && t.account.last > t.account.first && t.stopping.level < 2)
        train_draw(&t);
    if (t.account.host_peak > 0)
        account_end(&t.account);
    if (!rc && options->dry_run)
        printf("dry run      ends before the first step; nothing was written\n");
    fflush(stdout);
    if (!rc)
        return 0;
    int status = arguments_fail(command, rc, error.text);
    return rc == -EINTR ? stopping_status(&t.stopping, status) : status;
}

/* The short help: what most runs need, the first three first. Texts fit one line of 80 columns behind the option. */
static const struct argument train_usual[] = {
    {"eps train --data book.txt --device-mem 256MiB --out runs/book", .kind = ARGUMENT_EXAMPLE},
    {"eps train --model ./qwen3 --data chat.jsonl --lora rank=16 --device-mem 1GiB", .kind = ARGUMENT_EXAMPLE},
    {"eps train --resume runs/book --steps 2000", .kind = ARGUMENT_EXAMPLE},
    {"--data", .kind = ARGUMENT_USUAL, .help = "training data: text, .jsonl, token ids, images"},
    {"--device-mem", .kind = ARGUMENT_USUAL, .help = "most memory of each device, as in 2GiB"},
    {"--model", .kind = ARGUMENT_USUAL, .help = "a model to tune; or a preset, for fresh weights"},
    {"--out", .kind = ARGUMENT_USUAL, .help = "the run's directory, for metrics and checkpoints"},
    {"--resume", .kind = ARGUMENT_USUAL, .help = "go on from a run's newest checkpoint"},
    {"--eval-data", .kind = ARGUMENT_USUAL, .help = "held-out data; default: a part of --data"},
    {"--eval-every", .kind = ARGUMENT_USUAL, .help = "steps from one held-out loss to the next"},
    {"--epochs", .kind = ARGUMENT_USUAL, .help = "passes over the data"},
    {"--steps", .kind = ARGUMENT_USUAL, .help = "optimizer steps, in place of --epochs"},
    {"--batch", .kind = ARGUMENT_USUAL, .help = "sequences in each step"},
    {"--seq", .kind = ARGUMENT_USUAL, .help = "tokens in each sequence"},
    {"--lr", .kind = ARGUMENT_USUAL, .help = "peak learning rate"},
    {"--lora", .kind = ARGUMENT_USUAL, .help = "train low-rank adapters, as in rank=16"},
    {"--base", .kind = ARGUMENT_USUAL, .help = "form of the weights that adapters leave as they are"},
    {"--precision", .kind = ARGUMENT_USUAL, .help = "type of weights and activations on the device"},
};

int command_train(int argc, char **argv)
{
    struct eps_train_options asked = eps_train_defaults();
    struct table_options options = {.options = &asked};
    struct usual usual = {.threads = 0};
    struct hub hub = {.yes = false};

    table_options_take(&options, EPS_COMMAND_TRAIN);
    table_options_add(&options, train_usual, sizeof train_usual / sizeof *train_usual);
    usual_add(&options, &usual, "print nothing but errors: every step is in metrics.jsonl, in the run's directory");
    table_options_add(&options, &(struct argument)HUB_YES(&hub), 1);
    const struct command command = {
        "eps train",
        "Trains a model inside --device-mem. A daemon (epsd) holds it in host memory; workers (eps-worker) pull it "
        "layer by layer. Both start and end with the command, unless --connect names a daemon. Ctrl-C, SIGTERM or "
        "SIGHUP finishes the current step, saves and ends (with --save-every 0 or --no-save it does not save); a "
        "second Ctrl-C or SIGTERM ends at once.",
        options.arguments, options.n};
    int status = table_options_parse(&options, &command, argc, argv);
    if (status < 0)
        status = usual_apply(&usual, &command, asked.connect);
    if (status < 0 && usual.quiet && !freopen("/dev/null", "w", stdout)) /* all but errors goes to standard output */
        status = arguments_fail(&command, -errno, "/dev/null cannot be opened");
    if (status < 0)
        status = hub_find(&hub, &asked.model, HUB_MODEL, &command);
    if (status < 0)
        status = train_run(&command, &asked);
    table_options_free(&options);
    return status;
}
