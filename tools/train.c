#include "client/eps.h"
#include "tools/account.h"
#include "tools/arguments.h"
#include "tools/commands.h"
#include "tools/screen/progress.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

struct train {
    struct progress progress;
    struct stopping stopping;
    struct account account;
    bool free_memory; /* --device-mem was left unset */
    enum eps_task task;
};

static void on_start(void *user, const struct eps_train_options *o, uint64_t n_parameters)
{
    struct train *t = user;

    snprintf(t->account.out, sizeof t->account.out, "%s", o->out);
    t->account.n_steps = o->steps;
    t->account.silent = o->task || !isnan(o->mask_fraction);
    t->task = o->task;
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
    (void)user;
    account_plan(choice, host, device);
}

static void on_note(void *user, const char *sentence)
{
    char text[OPTIONS_TEXT];
    struct train *t = user;

    progress_clear(&t->progress);
    printf("note         %s\n", arguments_options(text, sentence));
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
    if (!isnan(step->step_ms)) {
        t->account.ms += step->step_ms;
        t->account.tokens += step->tokens_per_s * step->step_ms / 1000;
    }
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
    printf("held-out loss after %" PRIu64 " step%s: %.4f over %" PRIu64 " %s\n", step, step == 1 ? "" : "s", loss,
           tokens, t->task ? "rows" : "tokens");
    fflush(stdout);
    if (step == 0)
        t->account.before = loss;
    else
        t->account.after = loss;
    if (step > 0 && t->account.last == 0) /* made up: its step is the checkpoint that was resumed */
        t->progress.saved = step;
}

static void on_scored(void *user, const struct eps_score *scores, size_t n)
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
    return stopping_observer(&t->stopping);
}

static int run(const struct command *command, const struct eps_train_options *options)
{
    const struct eps_train_events events = {.on_start = on_start,
                                            .on_disk = on_disk,
                                            .on_plan = on_plan,
                                            .on_step = on_step,
                                            .on_evaluating = on_evaluating,
                                            .on_evaluated = on_evaluated,
                                            .on_scored = on_scored,
                                            .on_memory = on_memory,
                                            .on_saved = on_saved,
                                            .on_save_failed = on_save_failed,
                                            .on_note = on_note,
                                            .should_stop = should_stop};
    struct train t = {.account = {.before = NAN, .after = NAN},
                      .free_memory = options->device_mem == 0 && !options->resume && !options->attach};
    struct eps_error error;

    stopping_init(&t.stopping);
    progress_init(&t.progress, stdout);
    int rc = eps_train(options, &events, &t, &error);
    progress_finish(&t.progress);
    t.account.saved = t.progress.saved;
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
    struct eps_train_options options = eps_train_defaults();
    struct argument_texts data = {0}, freeze = {0};
    double betas[2] = {NAN, NAN};
    uint64_t keep = UINT64_MAX;
    unsigned schedule = 0, optimizer = 0, order = 0, separator = 0, task = 0;
    unsigned precision = 0, moments = 0, grad_dtype = 0, commit = 0;
    const struct argument arguments[] = {
        {"Model and data", .kind = ARGUMENT_HEADING},
        {"--model", "DIR|config.json|PRESET", ARGUMENT_TEXT, &options.model,
         "a directory with config.json and *.safetensors; or, for fresh random weights, a config.json alone or a "
         "preset: text-small, text-medium, text-large (learn a tokenizer from the text), byte-small, byte-medium, "
         "byte-large, gpt2, gpt2-medium, gpt2-large, gpt2-xl (on text with a vocabulary of 256 bytes). Default: a "
         "preset that fits the data and the memory, with its own batch, steps, learning rate and betas, which are "
         "printed"},
        {"--data", "FILE...", ARGUMENT_TEXTS, &data,
         "training data: files, directories and patterns, joined into one stream of tokens. UTF-8 text, tokenised by "
         "the model's tokenizer (one byte a token with a vocabulary of 256); .jsonl (text, prompt and completion, or "
         "messages); .bin (16-bit ids; 32-bit for vocabularies over 65536); .npy (one dimension of integers); each "
         "also as .gz or .zst. - is standard input"},
        {"--eval-data", "FILE", ARGUMENT_TEXT, &options.eval_data,
         "held-out data, in the same formats; default: the last 1 % of the data; with --task a tenth of the rows, "
         "drawn by the seed"},
        {"--task", "classify|regress", ARGUMENT_CHOICE, &task,
         "train a BERT or RoBERTa model to predict a class, or a number, of each row of --data, which is then TSV or "
         ".jsonl with labels. Default: the model's own task, if it is a classifier"},
        {"--columns", "TEXT,LABEL", ARGUMENT_TEXT, &options.columns,
         "with --task: the columns of the data, or TEXT,TEXT,LABEL for pairs of texts: names in the first line of TSV, "
         "keys of .jsonl, or numbers from 1 for TSV without a line of names. Default: known names, such as sentence, "
         "sentence1,sentence2 or text,text_pair, and label or score"},
        {"--separator", "none|eos", ARGUMENT_CHOICE, &separator,
         "what separates files of text and texts in .jsonl: eos is the tokenizer's end-of-text token, the default if "
         "it has one"},
        {"--out", "DIR", ARGUMENT_TEXT, &options.out,
         "run directory for metrics.jsonl, log, step-N/, latest and best; default: runs/MODEL-TIME, or the directory "
         "of --resume"},
        {"Checkpoints", .kind = ARGUMENT_HEADING},
        {"--resume", "DIR", ARGUMENT_TEXT, &options.resume,
         "continue from a run's newest checkpoint, or from the given step-N, bit for bit as if it had never stopped. "
         "Options left unset take the stored values. Other values are refused, except for --steps, --epochs, "
         "--microbatch, --out, the groups Checkpoints, Measuring and Machine, and the options that --change names. "
         "With --out, a new run begins from the checkpoint"},
        {"--attach", "[ADDRESS]", ARGUMENT_MAYBE, &options.attach,
         "take over the detached job of this daemon: one whose eps train was killed. The run goes on bit for bit as if "
         "that had not happened, from the daemon's weights, with its own options. Default: your only daemon with such "
         "a job. Only the job's user and root may; the daemon keeps the job until it is stopped, or until another job "
         "waits: then it is saved first, or stays if it cannot be saved"},
        {"--change", "NAME,...", ARGUMENT_TEXT, &options.change,
         "with --resume: these options take their new values, as in --change lr,batch --lr 1e-4 --batch 32. NAME is "
         "batch, lr, min-lr, schedule, warmup, weight-decay, clip-norm or clip-update. The optimizer's moments are "
         "kept, the data continue with the next sequence, and checkpoints record the change"},
        {"--save-every", "N", ARGUMENT_NUMBER, &options.save_every,
         "save a checkpoint every N steps while training goes on; 0: at the end only, not on interrupts; default: a "
         "tenth of the steps"},
        {"--save-minutes", "X", ARGUMENT_REAL, &options.save_minutes,
         "also save when the newest checkpoint is X minutes old, unless --save-every is 0; it is removed once there is "
         "a "
         "newer one; 0: never; default 10"},
        {"--keep", "N", ARGUMENT_NUMBER, &keep, "keep the newest N checkpoints and the best one; 0: all; default 2"},
        {"Length and batch", .kind = ARGUMENT_HEADING},
        {"--steps", "N", ARGUMENT_LONG, &options.steps,
         "optimizer steps; default: as many as --epochs takes, rounded up"},
        {"--epochs", "X", ARGUMENT_REAL, &options.epochs,
         "passes over the data; default 1; with --task 3; for a preset as many as 1500 steps take (750 for a text "
         "preset), at most 10"},
        {"--batch", "N", ARGUMENT_COUNT, &options.batch,
         "sequences per optimizer step, a multiple of --parts; default: about 16 Ki tokens; with --task 32; for a "
         "preset 1/1500 of the data, from 1 Ki to 16 Ki tokens (text preset: 1/750, from 2 Ki)"},
        {"--seq", "N", ARGUMENT_COUNT, &options.seq,
         "tokens per sequence; default: the model's positions, at most 1024; with --task the longest row's. Longer "
         "rows are cut"},
        {"--microbatch", "N|auto", ARGUMENT_AUTO, &options.microbatch,
         "sequences that a device computes at once (micro-batch); gradient accumulation covers the rest of the batch. "
         "Default auto: the fastest that fits"},
        {"--parts", "N", ARGUMENT_COUNT, &options.parts,
         "split the batch into N parts, which are distributed to the workers; default: the number of workers, of all "
         "hosts"},
        {"Optimizer", .kind = ARGUMENT_HEADING},
        {"--lr", "X", ARGUMENT_REAL, &options.lr,
         "peak learning rate; default 3e-4 for fresh weights, else 2e-5; presets: 3e-3 for text-small, 2e-3 for "
         "byte-small, 1e-3 for the medium ones"},
        {"--min-lr", "X", ARGUMENT_REAL, &options.min_lr, "final learning rate; default: a tenth of --lr"},
        {"--schedule", "cosine|linear|constant", ARGUMENT_CHOICE, &schedule,
         "learning rate schedule after warm-up; default cosine"},
        {"--warmup", "N", ARGUMENT_NUMBER, &options.warmup,
         "steps of linear warm-up; default: 3 % of the steps; for a preset at least 45, but at most 30 %"},
        {"--weight-decay", "X", ARGUMENT_REAL, &options.weight_decay,
         "decoupled weight decay, except on biases and norms; default 0.01"},
        {"--betas", "A,B", ARGUMENT_PAIR, betas,
         "decay rates of Adam's moments; default 0.9,0.999; for a preset 0.9,0.99"},
        {"--epsilon", "X", ARGUMENT_REAL, &options.epsilon, "Adam's epsilon; default 1e-8"},
        {"--optimizer", "adama|adamw", ARGUMENT_CHOICE, &optimizer,
         "AdamA squares each part's gradient, AdamW the sum of all; default adamw. With one part they are the same"},
        {"--clip-norm", "X", ARGUMENT_REAL, &options.clip_norm,
         "clip the gradient to this global norm; implies --commit fenced"},
        {"--clip-update", "X", ARGUMENT_REAL, &options.clip_update,
         "clip each tensor's update to this root mean square, before the learning rate (Adafactor's clipping); a "
         "tensor split into units is clipped unit by unit. Takes no memory"},
        {"--freeze", "PATTERN...", ARGUMENT_TEXTS, &freeze,
         "do not train tensors whose names match, as in --freeze 'wte.*' 'h.[0-5].*': globs on names in the model's "
         "files, without the family's prefix. They take no gradient and no optimizer memory"},
        {"--commit", "eager|fenced", ARGUMENT_CHOICE, &commit,
         "eager updates each unit as soon as its gradient is complete. fenced updates after all gradients are "
         "complete, and skips the step if one is not finite; it takes 4 more bytes of host memory per parameter and, "
         "with several --parts, requires adamw. Default eager"},
        {"Numbers", .kind = ARGUMENT_HEADING},
        {"--precision", "fp32|bf16", ARGUMENT_CHOICE, &precision,
         "type of weights and activations on the device; sums, losses and the optimizer's master weights stay fp32. "
         "Default fp32; bf16 on CUDA"},
        {"--moments", "fp32|bf16", ARGUMENT_CHOICE, &moments,
         "type of the optimizer's moments in host memory: 8 or 4 bytes per parameter; default fp32"},
        {"--grad-dtype", "fp32|bf16", ARGUMENT_CHOICE, &grad_dtype,
         "type of gradients in transfer to the host, which sums them in fp32; default fp32"},
        {"Order and chance", .kind = ARGUMENT_HEADING},
        {"--order", "shuffled|sequential", ARGUMENT_CHOICE, &order, "order of the sequences; default shuffled"},
        {"--mask-fraction", "X", ARGUMENT_REAL, &options.mask_fraction,
         "for a model that predicts masked tokens: the fraction of tokens that it has to predict, drawn anew in each "
         "epoch. Of these, 80 % are replaced by the mask token, 10 % by a random token, and 10 % stay. Special tokens "
         "are never drawn. Default 0.15"},
        {"--seed", "N", ARGUMENT_NUMBER, &options.seed, "seed for fresh weights, order, masks and dropout; default 0"},
        {"--deterministic", NULL, ARGUMENT_FLAG, &options.deterministic,
         "give the same bits for any number of workers, with the same --microbatch"},
        {"Measuring", .kind = ARGUMENT_HEADING},
        {"--eval-every", "N", ARGUMENT_LONG, &options.eval_every,
         "measure the held-out loss every N steps and before the first; it is always measured after the last. The "
         "checkpoint with the lowest loss is kept as DIR/best"},
        {"--eval-tokens", "N", ARGUMENT_NUMBER, &options.eval_tokens,
         "tokens per evaluation, spread over the held-out data; 0: all; default 65536; with --task always all"},
        {"--patience", "N", ARGUMENT_COUNT, &options.patience,
         "early stopping: end after N evaluations in a row without a new best"},
        {"--trace", "FILE", ARGUMENT_TEXT, &options.trace,
         "write a timeline of all threads to a new file, for chrome://tracing or ui.perfetto.dev"},
        {"Machine", .kind = ARGUMENT_HEADING},
        {"--restarts", "N", ARGUMENT_COUNT, &options.restarts,
         "go on from the newest checkpoint, at most N times, if the daemon, one of its hosts, or the last worker that "
         "can do "
         "a step is lost; with --connect, wait for the next daemon at ADDRESS; default 0"},
        {"--device", "auto|cpu|cuda[:N]", ARGUMENT_TEXT, &options.device,
         "cuda is the first CUDA device; with --workers N it is the first N devices; cuda:1 is the second device. "
         "Default auto: CUDA if there is one, else the CPU"},
        {"--device-mem", "BYTES", ARGUMENT_BYTES, &options.device_mem,
         "hard cap on each worker's memory, as in 2GiB. To stay below it, the planner uses micro-batches, activation "
         "checkpointing (recomputation) and host memory. Default: 7/8 of free memory, divided by the workers; on CUDA "
         "31/32 of the device's free memory"},
        {"--host-mem", "BYTES", ARGUMENT_BYTES, &options.host_mem,
         "hard cap on host memory for the model, its optimizer and transfer buffers; default: free memory"},
        {"--require-pinned", NULL, ARGUMENT_FLAG, &options.require_pinned,
         "fail if host memory cannot be locked (ulimit -l); default: print a note"},
        {"--workers", "N", ARGUMENT_COUNT, &options.workers, "worker processes; default 1"},
        {"--connect", "ADDRESS", ARGUMENT_TEXT, &options.connect,
         "use this daemon (name or directory) and its workers; default: private ones that start and end with the run"},
        {"--wait", "SECONDS", ARGUMENT_REAL, &options.wait,
         "with --connect: how long to wait for the daemon, and for a worker on each of its hosts; seconds in which "
         "this "
         "process is stopped do not count; 0: not at all; default 60"},
    };
    const struct command command = {
        "eps train",
        "Trains a model. A daemon (epsd) holds it in host memory; workers (eps-worker) pull it layer by layer. Both "
        "start and end with the command, unless --connect names a daemon. Ctrl-C, SIGTERM or SIGHUP finishes the "
        "current step, saves (unless --save-every is 0) and ends; a second Ctrl-C or SIGTERM ends at once.",
        arguments, sizeof arguments / sizeof *arguments};
    int rc, status = arguments_parse(&command, argc, argv);
    char *const frozen = arguments_join(&freeze, &rc);

    if (status < 0 && rc)
        status = arguments_fail(&command, rc, "out of memory");
    if (status < 0) {
        options.freeze = frozen;
        options.data = data.items, options.n_data = data.n;
        options.beta1 = betas[0], options.beta2 = betas[1];
        options.optimizer = (enum eps_optimizer_kind)optimizer;
        options.order = (enum eps_order)order;
        options.task = (enum eps_task)task;
        options.separator = (enum eps_separator)separator;
        options.schedule = (enum eps_schedule)schedule;
        options.precision = (enum eps_number)precision;
        options.moments = (enum eps_number)moments;
        options.grad_dtype = (enum eps_number)grad_dtype;
        options.commit = (enum eps_commit)commit;
        if (keep != UINT64_MAX)
            options.keep = keep < UINT32_MAX ? (uint32_t)keep : UINT32_MAX - 1;
        status = run(&command, &options);
    }
    free(frozen);
    free(freeze.items);
    free(data.items);
    return status;
}
