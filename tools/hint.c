#include "tools/arguments.h"

#include "client/eps.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { MAX_OPTIONS = 80 };

#define LORA    "all of an adapter is one option: --lora rank=16,alpha=32,targets=q_proj,v_proj,dropout=0.05"
#define ADAPTER "--model takes an adapter's directory, and finds its base"
#define TRACKERS                                                                                                       \
    "--tensorboard writes event files; W&B is in the Python package: eps.train(..., wandb=\"PROJECT\"); every step "   \
    "is in metrics.jsonl (--out)"

/* Names that transformers, torchrun, nanoGPT, llama.cpp and similar programs use for our options. Of several matching
 * lines, the first whose option the command has counts. */
static const struct {
    const char *theirs, *ours; /* an asterisk stands for any ending of theirs; a space and a value may follow ours */
    const char *why;           /* NULL: "it is called OURS here" */
} aliases[] = {
    {"--batch-size", "--batch", NULL},
    {"--bs", "--batch", NULL},
    {"--train-batch-size", "--batch", NULL},
    {"--global-batch-size", "--batch", NULL},
    {"--per-device-train-batch-size", "--microbatch",
     "--batch is the whole batch of a step, --microbatch the rows that a device computes at once, which the planner "
     "chooses"},
    {"--per-device-eval-batch-size", "--batch", NULL},
    {"--gradient-accumulation-steps", "--microbatch",
     "gradients are accumulated over the micro-batches of --batch automatically; the planner chooses their size "
     "(--microbatch sets it)"},
    {"--grad-accum", "--microbatch",
     "gradients are accumulated over the micro-batches of --batch automatically; the planner chooses their size "
     "(--microbatch sets it)"},
    {"--micro-batch-size", "--microbatch", NULL},
    {"--gradient-checkpointing", "--device-mem",
     "the planner decides what is kept and what is recomputed (activation checkpointing), so that it fits "
     "--device-mem"},
    {"--activation-checkpointing", "--device-mem",
     "the planner decides what is kept and what is recomputed (activation checkpointing), so that it fits "
     "--device-mem"},
    {"--cpu-offload", "--device-mem", "the planner decides what waits in host memory, so that it fits --device-mem"},
    {"--learning-rate", "--lr", NULL},
    {"--min-learning-rate", "--min-lr", NULL},
    {"--lr-scheduler-type", "--schedule", NULL},
    {"--lr-schedule", "--schedule", NULL},
    {"--scheduler", "--schedule", NULL},
    {"--warmup-steps", "--warmup", NULL},
    {"--warmup-iters", "--warmup", NULL},
    {"--warmup-ratio", "--warmup", "--warmup takes steps; its default is 3 % of them"},
    {"--num-train-epochs", "--epochs", NULL},
    {"--num-epochs", "--epochs", NULL},
    {"--max-steps", "--steps", NULL},
    {"--max-iters", "--steps", NULL},
    {"--num-steps", "--steps", NULL},
    {"--iterations", "--steps", NULL},
    {"--seq-len", "--seq", NULL},
    {"--max-seq-length", "--seq", NULL},
    {"--max-seq-len", "--seq", NULL},
    {"--sequence-length", "--seq", NULL},
    {"--block-size", "--seq", NULL},
    {"--context-length", "--seq", NULL},
    {"--max-length", "--tokens", NULL},
    {"--max-length", "--seq", NULL},
    {"--max-new-tokens", "--tokens", NULL},
    {"--max-tokens", "--tokens", NULL},
    {"--num-tokens", "--tokens", NULL},
    {"--n-predict", "--tokens", NULL},
    {"--num-return-sequences", "--samples", NULL},
    {"--repeat-penalty", "--repetition-penalty", NULL},
    {"--output-dir", "--out", NULL},
    {"--output", "--out", NULL},
    {"--save-dir", "--out", NULL},
    {"--overwrite-output-dir", "--out", "no run is overwritten: name another --out, or continue it with --resume"},
    {"--train-file", "--data", NULL},
    {"--dataset", "--data", NULL},
    {"--train-data", "--data", NULL},
    {"--validation-file", "--eval-data", NULL},
    {"--val-data", "--eval-data", NULL},
    {"--model-name-or-path", "--model", NULL},
    {"--assistant-only-loss", "--train-on", "the loss on conversations is of the answers; --train-on says otherwise"},
    {"--completion-only-loss", "--train-on", "the loss on conversations is of the answers; --train-on says otherwise"},
    {"--train-on-inputs", "--train-on all", NULL},
    {"--train-on-prompt", "--train-on all", NULL},
    {"--mask-history", "--train-on last", NULL},
    {"--truncation", "--long", NULL},
    {"--checkpoint", "--model", NULL},
    {"--resume-from-checkpoint", "--resume", NULL},
    {"--bf16", "--precision bf16", NULL},
    {"--fp16", "--precision fp16", NULL},
    {"--amp", "--precision bf16", NULL},
    {"--fp32", "--precision fp32", NULL},
    {"--mixed-precision", "--precision", NULL},
    {"--dtype", "--precision", NULL},
    {"--torch-dtype", "--precision", NULL},
    {"--max-grad-norm", "--clip-norm", NULL},
    {"--grad-clip", "--clip-norm", NULL},
    {"--gradient-clip-val", "--clip-norm", NULL},
    {"--mlm-probability", "--mask-fraction", NULL},
    {"--mask-prob", "--mask-fraction", NULL},
    {"--optim", "--optimizer", NULL},
    {"--lr-decay-steps", "--lr-steps", "--schedule step --lr-steps 60,120,160 lets the rate fall after these steps"},
    {"--milestones", "--lr-steps", "--schedule step --lr-steps 60,120,160 lets the rate fall after these steps"},
    {"--gamma", "--lr-factor", NULL},
    {"--sgd-momentum", "--momentum", NULL},
    {"--wd", "--weight-decay", NULL},
    {"--beta1", "--betas", "--betas takes both, as in 0.9,0.999"},
    {"--beta2", "--betas", "--betas takes both, as in 0.9,0.999"},
    {"--adam-beta1", "--betas", "--betas takes both, as in 0.9,0.999"},
    {"--adam-beta2", "--betas", "--betas takes both, as in 0.9,0.999"},
    {"--adam-epsilon", "--epsilon", NULL},
    {"--save-steps", "--save-every", NULL},
    {"--save-total-limit", "--keep", NULL},
    {"--eval-steps", "--eval-every", NULL},
    {"--eval-interval", "--eval-every", NULL},
    {"--eval-strategy", "--eval-every", "--eval-every N evaluates every N steps"},
    {"--save-strategy", "--save-every", "--save-every N saves every N steps"},
    {"--num-workers", "--workers", NULL},
    {"--nproc-per-node", "--workers", NULL},
    {"--gpus", "--workers", NULL},
    {"--cuda", "--device cuda", NULL},
    {"--gpu", "--device cuda", NULL},
    {"--cpu", "--device cpu", NULL},
    {"--memory", "--device-mem", NULL},
    {"--max-memory", "--device-mem", NULL},
    {"--lora-*", "--lora", LORA},
    {"--qlora*", "--lora", LORA},
    {"--use-lora", "--lora", LORA},
    {"--use-peft", "--lora", LORA},
    {"--peft*", "--lora", LORA},
    {"--target-modules", "--lora", LORA},
    {"--adapter*", "--model", ADAPTER},
    {"--lora*", "--model", ADAPTER},
    {"--peft*", "--model", ADAPTER},
    {"--merge-*", "--merge", NULL},
    /* What there is none of here. */
    {"--load-in-4bit", "--base", "--base nf4 keeps frozen weights (--lora, --freeze) in 4 bits"},
    {"--load-in-8bit", "--base", "--base int8 keeps frozen weights (--lora, --freeze) in 8 bits"},
    {"--load-in-*", "--base", "--base nf4 or int8 keeps frozen weights (--lora, --freeze) in 4 or 8 bits"},
    {"--quantization*", "--base", "--base nf4 or int8 keeps frozen weights (--lora, --freeze) in 4 or 8 bits"},
    {"--bnb-*", "--base", "--base nf4 keeps frozen weights (--lora, --freeze) in 4 bits"},
    {"--packing", "--pack",
     "it is for conversations; texts are always joined into one stream, and cut into rows of --seq"},
    {"--beta", "--dpo-beta", NULL},
    {"--do-sample", "--temperature", "tokens are sampled unless --temperature is 0"},
    {"--logging-steps", "--out",
     "every step is in metrics.jsonl in the run's directory (--out), which eps report plots"},
    {"--wandb*", "--tensorboard", TRACKERS},
    {"--report-to", "--tensorboard", TRACKERS},
    {"--tensorboard*", "--tensorboard", NULL},
    {"--config", "--model",
     "there is no file of options: give them on the command line; --model takes a model's config.json"},
};

/* Normalises "--Batch_Size=8" and "-batch-size" to "--batch-size". */
static void hint_normalise(char *out, size_t cap, const char *option)
{
    const size_t n_dashes = strspn(option, "-");

    snprintf(out, cap, "--%.*s", (int)strcspn(option + n_dashes, "="), option + n_dashes);
    for (char *c = out; *c; c++) {
        if (*c == '_')
            *c = '-';
        else if (*c >= 'A' && *c <= 'Z')
            *c = (char)(*c - 'A' + 'a');
    }
}

static bool hint_has(const struct command *command, const char *option)
{
    const size_t n = strcspn(option, " ");

    for (size_t i = 0; i < command->n_arguments; i++) {
        const char *name = command->arguments[i].name;
        if (strlen(name) == n && memcmp(name, option, n) == 0)
            return true;
    }
    return false;
}

static bool hint_matches(const char *theirs, const char *name)
{
    const size_t n = strlen(theirs);

    return theirs[n - 1] == '*' ? strncmp(name, theirs, n - 1) == 0 : strcmp(name, theirs) == 0;
}

static const char *hint_nearest(const struct command *command, const char *option)
{
    const char *names[MAX_OPTIONS];
    size_t n = 0;

    for (size_t i = 0; i < command->n_arguments && n < MAX_OPTIONS - 1; i++) {
        if (command->arguments[i].name[0] == '-')
            names[n++] = command->arguments[i].name + 2; /* dashes do not count as similarity */
    }
    names[n++] = "help";
    return eps_nearest(option + 2, names, n);
}

void hint_option(char *out, size_t cap, const struct command *command, const char *option)
{
    char name[80];

    hint_normalise(name, sizeof name, option);
    const int said = snprintf(out, cap, "%.*s is not an option",
                              (int)(strcspn(option, "=") < 80 ? strcspn(option, "=") : 80), option);
    const size_t used = said > 0 && (size_t)said < cap ? (size_t)said : 0;
    if (hint_has(command, name)) { /* only its dashes or its case are wrong */
        snprintf(out + used, cap - used, ": did you mean %s?", name);
        return;
    }
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++) {
        if (!hint_matches(aliases[i].theirs, name) || !hint_has(command, aliases[i].ours))
            continue;
        if (aliases[i].why)
            snprintf(out + used, cap - used, ": %s", aliases[i].why);
        else
            snprintf(out + used, cap - used, ": it is called %s here", aliases[i].ours);
        return;
    }
    const char *meant = hint_nearest(command, name);
    if (meant)
        snprintf(out + used, cap - used, ": did you mean --%s?", meant);
    else
        snprintf(out + used, cap - used, " of %s: see %s --help", command->name, command->name);
}
