#include "client/eps.h"
#include "tools/account.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/stopping.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct train {
    struct progress progress;
    struct stopping stopping;
    struct account account;
    bool free_memory; /* --device-mem was left to choose */
};

static void on_start(void *user, const struct eps_train_options *o, uint64_t n_parameters)
{
    struct train *t = user;

    snprintf(t->account.out, sizeof t->account.out, "%s", o->out);
    t->account.n_steps = o->steps;
    account_options(o, n_parameters, t->free_memory);
}

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    (void)user;
    account_plan(choice, host, device);
}

static void on_note(void *user, const char *sentence)
{
    struct train *t = user;

    progress_clear(&t->progress);
    printf("note         %s\n", sentence);
    fflush(stdout);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct train *t = user;

    if (t->account.last == 0)
        t->account.first = step->step - 1;
    t->account.last = step->step;
    t->account.n_skipped += step->skipped;
    t->account.loss = step->loss;
    t->account.ms += step->step_ms;
    t->account.tokens += step->tokens_per_s * step->step_ms / 1000;
    progress_step(&t->progress, step);
}

static void on_evaluating(void *user, uint64_t n_tokens, uint64_t n_all)
{
    struct train *t = user;
    progress_evaluating(&t->progress, n_tokens, n_all);
}

static void on_evaluated(void *user, uint64_t step, double loss, uint64_t tokens)
{
    struct train *t = user;

    progress_clear(&t->progress);
    printf("held-out loss after %" PRIu64 " step%s: %.4f over %" PRIu64 " tokens\n", step, step == 1 ? "" : "s", loss,
           tokens);
    fflush(stdout);
    if (step == 0)
        t->account.before = loss;
    else
        t->account.after = loss;
}

static void on_memory(void *user, const struct eps_memory *side)
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

static int should_stop(void *user)
{
    struct train *t = user;
    return stopping_look(&t->stopping);
}

static int run(const struct command *command, const struct eps_train_options *options)
{
    const struct eps_train_events events = {.on_start = on_start,
                                            .on_plan = on_plan,
                                            .on_step = on_step,
                                            .on_evaluating = on_evaluating,
                                            .on_evaluated = on_evaluated,
                                            .on_memory = on_memory,
                                            .on_saved = on_saved,
                                            .on_save_failed = on_save_failed,
                                            .on_note = on_note,
                                            .should_stop = should_stop};
    struct train t = {.account = {.before = NAN, .after = NAN},
                      .free_memory = options->device_mem == 0 && !options->resume};
    struct eps_error error;

    stopping_init(&t.stopping);
    progress_init(&t.progress, stdout);
    int rc = eps_train(options, &events, &t, &error);
    progress_finish(&t.progress);
    t.account.saved = t.progress.saved;
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
    struct eps_train_options options = eps_train_defaults();
    struct argument_texts data = {0};
    double betas[2] = {NAN, NAN};
    uint64_t keep = UINT64_MAX;
    unsigned schedule = 0, optimizer = 0, order = 0;
    unsigned precision = 0, moments = 0, grad_dtype = 0, commit = 0;
    const struct argument arguments[] = {
        {"Model and data", .kind = ARGUMENT_HEADING},
        {"--model", "DIR|config.json|PRESET", ARGUMENT_TEXT, &options.model,
         "a directory with config.json and *.safetensors; or fresh weights: a config.json\nalone, byte-small, "
         "byte-medium, byte-large, gpt2, gpt2-medium, gpt2-large,\ngpt2-xl (on text with a vocabulary of bytes); "
         "default what suits the data and\nthe memory, by a batch, steps, a rate and betas that suit it, and are "
         "shown"},
        {"--data", "FILE...", ARGUMENT_TEXTS, &data,
         "one stream of tokens, from files and patterns: UTF-8 text, by the model's own\ntokenizer or, for a "
         "vocabulary of 256, a byte a token; .bin (u16; u32 for\nvocabularies over 65536); .npy (1 dimension of "
         "integers)"},
        {"--eval-data", "FILE", ARGUMENT_TEXT, &options.eval_data,
         "measure the loss on this, as --data; default the last 1 % of the data, held out"},
        {"--out", "DIR", ARGUMENT_TEXT, &options.out,
         "metrics.jsonl, log, step-N/, latest go here; default runs/MODEL-TIME,\nor that of --resume"},
        {"Checkpoints", .kind = ARGUMENT_HEADING},
        {"--resume", "DIR", ARGUMENT_TEXT, &options.resume,
         "go on from a run's newest checkpoint, or from the step-N named: bit for bit as\n"
         "if it had never stopped. What is stored there need not be given, and what\n"
         "differs is refused, but for --steps, --epochs, --microbatch, --out and the groups\n"
         "Checkpoints, Measuring and Machine. With --out a run of its own begins there"},
        {"--save-every", "N", ARGUMENT_NUMBER, &options.save_every,
         "steps between checkpoints, which are written while training goes on; 0: only at\nthe end, and not when "
         "interrupted; default a tenth of the steps"},
        {"--keep", "N", ARGUMENT_NUMBER, &keep, "checkpoints that stay, the newest; 0: all; default 2"},
        {"Length and batch", .kind = ARGUMENT_HEADING},
        {"--steps", "N", ARGUMENT_LONG, &options.steps, "updates; default what --epochs takes, rounded up"},
        {"--epochs", "X", ARGUMENT_REAL, &options.epochs,
         "times through the data; default 1; without --model up to 10, for 1500 steps"},
        {"--batch", "N", ARGUMENT_COUNT, &options.batch,
         "rows behind one update, a multiple of --parts; default about 16 Ki tokens; without\n--model a 1500th of the "
         "data, 1 Ki to 16 Ki"},
        {"--seq", "N", ARGUMENT_COUNT, &options.seq, "tokens of a row; default the model's positions, at most 1024"},
        {"--microbatch", "N|auto", ARGUMENT_AUTO, &options.microbatch,
         "rows that a device runs at once; default auto: what takes the least time"},
        {"--parts", "N", ARGUMENT_COUNT, &options.parts,
         "runs of the batch that are shared out; default the number of workers.\nWith 1, adama is AdamW"},
        {"Optimizer", .kind = ARGUMENT_HEADING},
        {"--lr", "X", ARGUMENT_REAL, &options.lr,
         "learning rate; default 3e-4 for fresh weights, else 2e-5; without --model 2e-3 for\nbyte-small, 1e-3 "
         "for byte-medium"},
        {"--min-lr", "X", ARGUMENT_REAL, &options.min_lr, "the rate at the end; default a tenth of --lr"},
        {"--schedule", "cosine|linear|constant", ARGUMENT_CHOICE, &schedule, "how it falls; default cosine"},
        {"--warmup", "N", ARGUMENT_NUMBER, &options.warmup, "steps in which it rises first; default 3 % of them"},
        {"--weight-decay", "X", ARGUMENT_REAL, &options.weight_decay, "not on biases and norms; default 0.01"},
        {"--betas", "A,B", ARGUMENT_PAIR, betas, "default 0.9,0.999; without --model 0.9,0.99"},
        {"--epsilon", "X", ARGUMENT_REAL, &options.epsilon, "default 1e-8"},
        {"--optimizer", "adama|adamw", ARGUMENT_CHOICE, &optimizer,
         "adama squares each part's gradient, adamw their sum; default adama"},
        {"--clip-norm", "X", ARGUMENT_REAL, &options.clip_norm,
         "scale the whole gradient down to this norm; turns --commit fenced on"},
        {"--clip-update", "X", ARGUMENT_REAL, &options.clip_update,
         "scale each tensor's update down to this root mean square, before the rate; of a\ntensor that is cut into "
         "units, each unit's piece. Takes no memory"},
        {"--commit", "eager|fenced", ARGUMENT_CHOICE, &commit,
         "eager updates a unit when its last gradient is in; fenced when all of the step's\nare, and skips a step that "
         "is not finite: 4 more bytes a parameter in host memory,\nadamw where there are several --parts; default "
         "eager"},
        {"Numbers", .kind = ARGUMENT_HEADING},
        {"--precision", "fp32|bf16", ARGUMENT_CHOICE, &precision,
         "of weights and activations on the device; sums, statistics and the optimizer's\nmaster weights stay fp32; "
         "default fp32, with CUDA bf16"},
        {"--moments", "fp32|bf16", ARGUMENT_CHOICE, &moments,
         "of the optimizer's moments in host memory: 8 bytes a parameter, or 4; default fp32"},
        {"--grad-dtype", "fp32|bf16", ARGUMENT_CHOICE, &grad_dtype,
         "of gradients on their way to the host, where they are summed in fp32; default fp32"},
        {"Order and chance", .kind = ARGUMENT_HEADING},
        {"--order", "shuffled|sequential", ARGUMENT_CHOICE, &order, "of the windows; default shuffled, by the seed"},
        {"--seed", "N", ARGUMENT_NUMBER, &options.seed, "of fresh weights, order and dropout; default 0"},
        {"--deterministic", NULL, ARGUMENT_FLAG, &options.deterministic,
         "the same bits whatever the number of workers"},
        {"Measuring", .kind = ARGUMENT_HEADING},
        {"--eval-every", "N", ARGUMENT_LONG, &options.eval_every,
         "steps between held-out losses, and one before the first step; after the last there\nis one anyway"},
        {"--trace", "FILE", ARGUMENT_TEXT, &options.trace,
         "a new file for what every thread did when, for chrome://tracing or\nui.perfetto.dev"},
        {"Machine", .kind = ARGUMENT_HEADING},
        {"--device", "auto|cpu|cuda[:N]", ARGUMENT_TEXT, &options.device,
         "cuda is the first CUDA device, with --workers the first ones; cuda:1 the second;\n"
         "default auto: CUDA if there is one, else the processor"},
        {"--device-mem", "BYTES", ARGUMENT_BYTES, &options.device_mem,
         "a hard cap on each worker's memory, as in 2GiB; default what is free but an\n"
         "eighth, divided by the workers, or what a CUDA device has free but a 32nd"},
        {"--host-mem", "BYTES", ARGUMENT_BYTES, &options.host_mem,
         "of host memory for the model, its optimizer and what goes between host and devices,\nat most; default what "
         "is free"},
        {"--require-pinned", NULL, ARGUMENT_FLAG, &options.require_pinned,
         "refuse where that memory cannot be locked (ulimit -l); default a note"},
        {"--workers", "N", ARGUMENT_COUNT, &options.workers, "processes that compute; default 1"},
        {"--connect", "ADDRESS", ARGUMENT_TEXT, &options.connect,
         "use this daemon, by name or directory, and its workers; default private ones\nthat start and end with the "
         "run"},
    };
    const struct command command = {
        "eps train",
        "Trains a model: a daemon (epsd) holds it in host memory, workers (eps-worker) pull it layer by layer.\n"
        "Both are started privately, unless --connect names a daemon. Ctrl-C, SIGTERM or SIGHUP finishes the open "
        "step,\n"
        "saves and ends, unless --save-every is 0; a second Ctrl-C or SIGTERM ends at once.",
        arguments, sizeof arguments / sizeof *arguments};
    int status = arguments_parse(&command, argc, argv);

    if (status < 0) {
        options.data = data.items, options.n_data = data.n;
        options.beta1 = betas[0], options.beta2 = betas[1];
        options.optimizer = (enum eps_optimizer_kind)optimizer;
        options.order = (enum eps_order)order;
        options.schedule = (enum eps_schedule)schedule;
        options.precision = (enum eps_number)precision;
        options.moments = (enum eps_number)moments;
        options.grad_dtype = (enum eps_number)grad_dtype;
        options.commit = (enum eps_commit)commit;
        if (keep != UINT64_MAX)
            options.keep = keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX - 1;
        status = run(&command, &options);
    }
    free(data.items);
    return status;
}
