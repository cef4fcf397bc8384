#include "client/eps.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/progress.h"
#include "tools/stopping.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { UNSET = 1000 }; /* of a choice: the option was not given */

struct train {
    struct progress progress;
    struct stopping stopping;
    char out[4096];
    bool free_memory;              /* --device-mem was left to choose */
    uint64_t first, last, n_steps; /* updates: when this began, and so far; of the run */
    double loss, before, after;    /* of the last step; held out */
    double tokens, ms;             /* of all steps here */
    uint64_t device_peak, device_planned, device_budget, host_peak, host_planned;
};

/* free_memory: nobody said how much. */
static void print_workers(const struct eps_train_options *o, bool free_memory)
{
    char text[24];

    if (o->connect)
        printf("workers      those of the daemon %s\n", o->connect);
    else
        printf("workers      %u, device memory %s each%s\n", o->workers, eps_format_bytes(text, o->device_mem),
               free_memory ? ": what is free but a margin of an eighth" : "");
}

static void print_optimizer(const struct eps_train_options *o)
{
    static const char *const numbers[] = {"default", "fp32", "bf16"};

    printf("optimizer    %s, betas %g,%g, epsilon %g, weight decay %g%s\n",
           o->optimizer == EPS_ADAMW ? "adamw" : "adama", o->beta1, o->beta2, o->epsilon, o->weight_decay,
           o->deterministic ? ", deterministic" : "");
    printf("commit       %s", o->commit == EPS_FENCED ? "fenced" : "eager");
    if (!isnan(o->clip_norm))
        printf(", gradient clipped to a norm of %g", o->clip_norm);
    if (!isnan(o->clip_update))
        printf(", updates clipped to %g", o->clip_update);
    printf("\nnumbers      %s, moments %s, gradients %s\n", numbers[o->precision], numbers[o->moments],
           numbers[o->grad_dtype]);
}

static void on_start(void *user, const struct eps_train_options *o, uint64_t n_parameters)
{
    static const char *const schedules[] = {"default", "cosine", "linear", "constant"};

    struct train *t = user;
    snprintf(t->out, sizeof t->out, "%s", o->out);
    t->n_steps = o->steps;
    printf("model        %s%s%s, %" PRIu64 " parameters\n", o->model, *o->model_note ? ", " : "", o->model_note,
           n_parameters);
    printf("data         %s%s, %s order, seed %" PRIu64 "\n", o->data[0], o->n_data > 1 ? " and more" : "",
           o->order == EPS_SEQUENTIAL ? "sequential" : "shuffled", o->seed);
    printf("held out     %s\n", o->eval_data ? o->eval_data : "the end of the data: 1 %, at least a row");
    printf("steps        %" PRIu64 " of %u rows of %u tokens, in %u part%s\n", o->steps, o->batch, o->seq, o->parts,
           o->parts == 1 ? "" : "s");
    print_optimizer(o);
    printf("rate         %g to %g, %s, %" PRIu64 " steps of warm-up\n", o->lr, o->min_lr, schedules[o->schedule],
           o->warmup);
    print_workers(o, t->free_memory);
    printf("checkpoints  ");
    if (o->save_every == 0 || o->save_every >= o->steps)
        printf("at the end");
    else
        printf("every %" PRIu64 " step%s", o->save_every, o->save_every == 1 ? "" : "s");
    if (o->keep > 0)
        printf(", the last %u stay", o->keep);
    printf("\nout          %s\n", o->out);
    fflush(stdout);
}

/* "device 47 MiB of 64 MiB: workspace 20 MiB, stash 8 MiB, ...": the largest terms of what is planned. */
static void print_planned(const struct eps_memory *side)
{
    enum { NAMED = 4 };
    char bytes[24], budget[24];
    uint64_t left = side->planned, told = 0; /* bit i: row i */

    printf("%s %s", side->worker ? "device" : "host", eps_format_bytes(bytes, side->planned));
    if (side->budget)
        printf(" of %s", eps_format_bytes(budget, side->budget));
    for (unsigned n = 0; n < NAMED && left > 0; n++) {
        size_t most = side->n_rows;
        for (size_t i = 0; i < side->n_rows && i < 64; i++)
            if (!(told >> i & 1) && (most == side->n_rows || side->rows[i].planned > side->rows[most].planned))
                most = i;
        if (most == side->n_rows)
            break;
        told |= (uint64_t)1 << most;
        left -= side->rows[most].planned;
        printf("%s %s %s", n ? "," : ":", side->rows[most].category, eps_format_bytes(bytes, side->rows[most].planned));
    }
    printf("%s\n", left > 0 ? ", ..." : "");
}

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    (void)user;
    if (device->planned == 0)
        return;
    printf("plan         ");
    if (choice->microbatch)
        printf("%u row%s at a time, ", choice->microbatch, choice->microbatch == 1 ? "" : "s");
    printf("stash on the %s, %u of %u blocks kept, %u weight buffer%s, %u unit%s stay%s\n",
           choice->host_stash ? "host" : "device", choice->n_kept, choice->n_blocks, choice->n_weight_buffers,
           choice->n_weight_buffers == 1 ? "" : "s", choice->n_resident, choice->n_resident == 1 ? "" : "s",
           choice->whole_head ? ", the head whole" : "");
    printf("planned      ");
    print_planned(device);
    printf("             ");
    print_planned(host);
    fflush(stdout);
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

    if (t->last == 0)
        t->first = step->step - 1;
    t->last = step->step;
    t->loss = step->loss;
    t->ms += step->step_ms;
    t->tokens += step->tokens_per_s * step->step_ms / 1000;
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
        t->before = loss;
    else
        t->after = loss;
}

static void on_memory(void *user, const struct eps_memory *side)
{
    struct train *t = user;

    if (side->worker == 0) {
        t->host_peak = side->peak;
        t->host_planned = side->planned;
    } else if (side->peak >= t->device_peak) {
        t->device_peak = side->peak;
        t->device_budget = side->budget;
        t->device_planned = side->planned;
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

/* Whether a file of the run is where it should be: the directory may have been removed, or moved. */
static bool stands(const struct train *t, const char *name)
{
    char path[sizeof t->out + 64];

    snprintf(path, sizeof path, "%s/%s", t->out, name);
    return access(path, F_OK) == 0;
}

/* What stands, which need not be the last step's, and what it is good for. */
static void print_files(const struct train *t)
{
    const char *const eps = program_invocation_name; /* to be pasted: as it was called this time */
    const uint64_t saved = t->progress.saved;

    if (!stands(t, "metrics.jsonl")) {
        printf("files        no longer in %s: it was moved or removed\n", t->out);
        return;
    }
    if (saved == UINT64_MAX) {
        printf("files        steps in %s/metrics.jsonl\n", t->out);
        return;
    }
    printf("files        weights in %s/step-%" PRIu64 ", steps in %s/metrics.jsonl\n", t->out, saved, t->out);
    if (saved < t->n_steps)
        printf("next         %s train --resume %s\n", eps, t->out);
    else
        printf("next         %s generate --model %s/latest\n"
               "             %s train --resume %s --steps %" PRIu64 "\n",
               eps, t->out, eps, t->out, 2 * saved);
}

static void print_against(uint64_t peak, uint64_t planned)
{
    char text[24];

    if (peak == planned)
        printf(" (as planned)");
    else if (planned > 0)
        printf(" (%s planned)", eps_format_bytes(text, planned));
}

/* After the last step of the run, or the last before it was interrupted. */
static void print_summary(const struct train *t)
{
    char peak[24], budget[24], host[24];

    printf("\nloss         %.4f at step %" PRIu64, t->loss, t->last);
    if (!isnan(t->after))
        printf("; held out %.4f%s", t->after, isnan(t->before) ? "" : ", ");
    if (!isnan(t->before))
        printf("%.4f before the first step", t->before);
    putchar('\n');
    printf("speed        %.0f tokens/s over %" PRIu64 " step%s\n", t->ms > 0 ? t->tokens * 1000 / t->ms : 0,
           t->last - t->first, t->last - t->first == 1 ? "" : "s");
    printf("memory       device %s of %s at most", eps_format_bytes(peak, t->device_peak),
           eps_format_bytes(budget, t->device_budget));
    print_against(t->device_peak, t->device_planned);
    printf(", host %s", eps_format_bytes(host, t->host_peak));
    print_against(t->host_peak, t->host_planned);
    putchar('\n');
    print_files(t);
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
    struct train t = {.before = NAN, .after = NAN, .free_memory = options->device_mem == 0 && !options->resume};
    struct eps_error error;

    stopping_init(&t.stopping);
    progress_init(&t.progress, stdout);
    int rc = eps_train(options, &events, &t, &error);
    progress_finish(&t.progress);
    if (t.host_peak > 0)
        print_summary(&t);
    fflush(stdout);
    if (!rc)
        return 0;
    int status = arguments_fail(command, rc, error.text);
    return rc == -EINTR ? stopping_status(&t.stopping, status) : status;
}

/* Words stand in the order of the enumeration's values, of which 0 is left to choose. */
static unsigned chosen(unsigned word)
{
    return word == UNSET ? 0 : word + 1;
}

int command_train(int argc, char **argv)
{
    struct eps_train_options options = eps_train_defaults();
    struct argument_texts data = {0};
    double betas[2] = {NAN, NAN};
    uint64_t keep = UINT64_MAX;
    unsigned schedule = UNSET, optimizer = UNSET, order = UNSET, device;
    unsigned precision = UNSET, moments = UNSET, grad_dtype = UNSET, commit = UNSET;
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
         "rows that a device runs at once; default auto: what fits"},
        {"--parts", "N", ARGUMENT_COUNT, &options.parts,
         "runs of the batch that are shared out; default the number of workers.\nWith 1, adama is AdamW"},
        {"Optimizer", .kind = ARGUMENT_HEADING},
        {"--lr", "X", ARGUMENT_REAL, &options.lr,
         "learning rate; default 3e-4 for fresh weights, else 2e-5; without --model 1e-3 for\nbyte-small and "
         "byte-medium"},
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
         "default fp32"},
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
        {"--device", "auto|cpu", ARGUMENT_CHOICE, &device, "default auto: the processor, so far"},
        {"--device-mem", "BYTES", ARGUMENT_BYTES, &options.device_mem,
         "a hard cap on each worker's memory, as in 2GiB; default what is free but an\neighth, divided by the workers"},
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
        options.optimizer = (enum eps_optimizer_kind)chosen(optimizer);
        options.order = (enum eps_order)chosen(order);
        options.schedule = (enum eps_schedule)chosen(schedule);
        options.precision = (enum eps_number)chosen(precision);
        options.moments = (enum eps_number)chosen(moments);
        options.grad_dtype = (enum eps_number)chosen(grad_dtype);
        options.commit = (enum eps_commit)chosen(commit);
        if (keep != UINT64_MAX)
            options.keep = keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX - 1;
        status = run(&command, &options);
    }
    free(data.items);
    return status;
}
