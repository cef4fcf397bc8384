/* client/options/table.c - one row for each option of a training run, and of the commands that have a column beside it
 * (client/eps_options.h).
 *
 * A new option is a row here or in a .inc beside this file, a member in the command's struct, and the code that acts on
 * it; what its help has no room for is in tools/man/eps-COMMAND.1.in. Parsing, --help, the manual page, completion,
 * training.json, resume and attach follow from the row. */
#include "client/eps.h"

#include <assert.h>

#define AT(member)                          offsetof(struct eps_train_options, member)
#define EVAL_OF(of, member, help)           .columns[EPS_COMMAND_EVAL] = {offsetof(struct eps_eval_options, member), of, help}
#define DATA_OF(of, member, help)           .columns[EPS_COMMAND_DATA] = {offsetof(struct eps_data_options, member), of, help}
#define COLUMN(command, type, member, help) .columns[EPS_COMMAND_##command] = {offsetof(struct type, member), 0, help}
#define GENERATE(member, help)              COLUMN(GENERATE, eps_generate_options, member, help)
#define CHAT(member, help)                  COLUMN(CHAT, eps_chat_options, member, help)
#define EXPORT(member, help)                COLUMN(EXPORT, eps_export_options, member, help)
#define EVAL(member, help)                  EVAL_OF(0, member, help)
#define DATA(member, help)                  DATA_OF(0, member, help)

#define STREAMS (EPS_OF_TEXT | EPS_OF_MASKED | EPS_OF_SPANS)
#define TOKENS  (STREAMS | EPS_OF_DOCUMENTS | EPS_OF_TARGETS)

static_assert(AT(beta2) == AT(beta1) + sizeof(double), "a pair");
static_assert(AT(n_data) == AT(data) + sizeof(const char *const *), "files and their number");
static_assert(AT(n_sample_prompts) == AT(sample_prompts) + sizeof(const char *const *), "prompts and their number");
static_assert(sizeof(enum eps_schedule) == sizeof(uint32_t), "a choice is stored as a count");

/* In the order of --help. Numbers of keys have another order, that of training.json, which only ever grows. */
static const struct eps_option rows[] = {
#include "client/options/table_data.inc"
    {.kind = EPS_OPTION_HEADING, .train = "Optimizer", .plan = "Optimizer and numbers"},
    {.name = "--lr",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(lr),
     .key = 9,
     .resume = EPS_RESUME_CHANGES,
     .train = "peak learning rate; default 3e-4 for fresh weights, 2e-4 with --lora, else 2e-5; presets: 3e-3 for "
              "text-small, 2e-3 for byte-small, 1e-3 for the medium ones; with sgd 0.1 for fresh weights, else 0.01"},
    {.name = "--min-lr",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(min_lr),
     .key = 10,
     .resume = EPS_RESUME_CHANGES,
     .train = "final learning rate; default: a tenth of --lr; with --schedule inverse-sqrt, step the least, default 0"},
    {.name = "--schedule",
     .value = "cosine|linear|constant|inverse-sqrt|step",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(schedule),
     .key = 11,
     .resume = EPS_RESUME_CHANGES,
     .train = "learning rate schedule after warm-up; inverse-sqrt: as one over the root of the step, whatever --steps "
              "is; step: falls after each of --lr-steps; default cosine"},
    {.name = "--lr-steps",
     .value = "N,...",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(lr_steps),
     .key = 53,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_CHANGES,
     .train = "with --schedule step: steps after each of which the rate is multiplied by --lr-factor"},
    {.name = "--lr-factor",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(lr_factor),
     .key = 54,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_CHANGES,
     .train = "with --schedule step; default 0.1"},
    {.name = "--warmup",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(warmup),
     .key = 12,
     .resume = EPS_RESUME_CHANGES,
     .train = "steps of linear warm-up; default: 3 % of the steps; for a preset at least 45, but at most 30 %"},
    {.name = "--weight-decay",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(weight_decay),
     .key = 13,
     .resume = EPS_RESUME_CHANGES,
     .train = "weight decay, except on biases and norms; decoupled, default 0.01; of sgd in the gradient, default 0"},
    {.name = "--betas",
     .value = "A,B",
     .kind = EPS_OPTION_PAIR,
     .offset = AT(beta1),
     .key = 14,
     .stored = EPS_STORED_ABSENT,
     .train = "decay rates of Adam's moments; default 0.9,0.999; for a preset 0.9,0.99"},
    {.name = "--epsilon",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(epsilon),
     .key = 15,
     .stored = EPS_STORED_ABSENT,
     .train = "Adam's epsilon; default 1e-8"},
    {.name = "--optimizer",
     .value = "adama|adamw|sgd",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(optimizer),
     .key = 16,
     .train = "AdamA squares each part's gradient, AdamW the sum of all; default adamw; with one part they are the "
              "same. Of a "
              "tied table AdamA, too, squares the sum, for which it keeps 4 bytes per parameter. "
              "sgd: PyTorch's, with momentum; 8 bytes of host memory per parameter, not 12",
     .plan = "default adamw; with one part adama is the same"},
    {.name = "--momentum",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(momentum),
     .key = 51,
     .stored = EPS_STORED_ABSENT,
     .train = "with sgd: decay rate of its momentum; default 0.9; 0 keeps none: 4 bytes less per parameter",
     .plan = "with sgd: default 0.9; 0 keeps none"},
    {.name = "--nesterov",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(nesterov),
     .key = 52,
     .stored = EPS_STORED_ABSENT,
     .train = "with sgd: Nesterov's momentum, for which several --parts are summed, as for adamw",
     .plan = "with sgd: Nesterov's momentum, for which several --parts are summed"},
    {.name = "--clip-norm",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(clip_norm),
     .key = 21,
     .stored = EPS_STORED_NULL,
     .resume = EPS_RESUME_CHANGES,
     .train = "clip the gradient to this global norm; implies --commit fenced",
     .plan = "clip the gradient to this global norm; implies --commit fenced"},
    {.name = "--clip-update",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(clip_update),
     .key = 22,
     .stored = EPS_STORED_NULL,
     .resume = EPS_RESUME_CHANGES,
     .train = "clip each tensor's update to this root mean square, before the learning rate (Adafactor's clipping); a "
              "tensor split into units is clipped unit by unit. Takes no memory"},
    {.name = "--drop-layers",
     .value = "P",
     .kind = EPS_OPTION_REAL,
     .offset = AT(drop_layers),
     .key = 47,
     .stored = EPS_STORED_NULL,
     .resume = EPS_RESUME_CHANGES,
     .train =
         "stochastic depth: each step leaves out each block with probability P, drawn by --seed, step and block. A "
         "block left out is not computed, updated or decayed; the others add their residual branches times 1/(1-P). "
         "Held-out losses are of all blocks. Of an encoder-decoder, both stacks' blocks are drawn. Default 0",
     .plan = "plan for steps that leave out blocks, as in eps train"},
    {.name = "--freeze",
     .value = "PATTERN...",
     .kind = EPS_OPTION_PATTERNS,
     .offset = AT(freeze),
     .key = 3,
     .stored = EPS_STORED_ABSENT,
     .train = "do not train tensors whose names match, as in --freeze 'wte.*' 'h.[0-5].*': globs on names in the "
              "model's files, without the family's prefix. They take no gradient and no optimizer memory",
     .plan = "tensors that are not trained, as in eps train; the plan says what they save"},
    {.name = "--freeze-until",
     .value = "N",
     .kind = EPS_OPTION_LONG,
     .offset = AT(freeze_until),
     .key = 48,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_CHANGES,
     .train =
         "with --freeze: once N steps are done, train those tensors, too. Their moments and counts of updates begin "
         "with zero; all else goes on. A checkpoint is saved there, and the memory of both forms is checked before "
         "the first step",
     .plan = "with --freeze: plan for both forms, before and after these tensors are trained, too"},
    {.name = "--base",
     .value = "full|bf16|int8|nf4",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(base),
     .key = 37,
     .stored = EPS_STORED_LATER,
     .train = "how frozen weights are kept on the host and sent to the device, which decodes them as it computes: full "
              "(the type of --precision), bf16, or the matrices of the layers in int8 or nf4, as bitsandbytes codes "
              "them, and the rest in bf16: 4, 2, 1 or 0.56 bytes a parameter. Default full; for files that are "
              "quantised, the form that keeps all their values, if there is one: nf4, int8, or bf16 for MXFP4",
     .plan = "how frozen weights are kept and sent, as in eps train"},
    {.name = "--lora",
     .value = "KEY=VALUE,...",
     .kind = EPS_OPTION_PATTERNS,
     .offset = AT(lora),
     .key = 43,
     .stored = EPS_STORED_ABSENT,
     .train =
         "train low-rank adapters (LoRA) of the model and leave its weights as they are: rank=N (default 16), alpha=X "
         "(default twice the rank), targets=q_proj,v_proj,... (ends of names of linear maps; default all-linear: all "
         "but the head), dropout=X, rslora (divide alpha by the root of the rank). Checkpoints hold the adapters "
         "alone, as PEFT does; eps export --merge adds them to the weights. The head of a classifier is trained, too",
     .plan = "train adapters, as in eps train; a config.json without weights will do"},
    {.name = "--base-model",
     .value = "DIR",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(base_model),
     .train = "where the base of an adapter is, if --model, or the checkpoint of --resume, is an adapter whose "
              "adapter_config.json names another place",
     .plan = "as in eps train",
     DATA_OF(EPS_OF_TEXT | EPS_OF_DOCUMENTS, base_model,
             "where the base of an adapter is, if its adapter_config.json names another place"),
     EVAL(base_model, "where the base of an adapter is, if its adapter_config.json names another place"),
     GENERATE(base_model, ""),
     CHAT(base_model, ""),
     EXPORT(base_model, "where the base of an adapter is, if its adapter_config.json names another place; of any other "
                        "model, where the one that its training began from is now, for what was not trained")},
    {.name = "--approximate",
     .value = "wta=X,attention=X,coded=N,pool=N|any",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(approximate),
     .key = 44,
     .stored = EPS_STORED_ABSENT,
     .train =
         "allow inexact gradients; no budget and no number of workers changes a bit of them. wta=X: gradients of the "
         "layers' matrices from a share X of each row's tokens (0.01 to 1), winners kept and the rest drawn (WTA-CRS). "
         "They are unbiased, and take less time; while the rate warms up they are exact, but behind a relu, as samples "
         "of the first steps leave fresh weights worse for good. attention=X: gradients of attention's keys and values "
         "from a share X "
         "of each row's queries, in the same way; they are unbiased, and so are those of all below, which they change. "
         "rule=paper|variance|none|all: how many are winners, by the published rule (default), for less variance, "
         "none (column-row sampling) or all, which is biased; draw=N: another draw of them. coded=8|4: "
         "layers keep activations in 8 bits; with 4, in 4 where that does little harm; gradients are biased. "
         "pool=2|4|8: "
         "gradients of convolutions' weights from their inputs' means over 2x2, 4x4 or 8x8 pixels; they are biased, "
         "and take less time. All else stays exact. The held-out loss of fresh weights after 100 steps of the "
         "quickstart's text is higher by (six seeds): wta=0.3 0.09 to 0.44, coded=8 0.00. any: as the planner chooses, "
         "at the "
         "run's beginning: an inexact form only for a step of at least 5 % less time, and none for fresh weights",
     .plan =
         "allow inexact gradients, as in eps train; any: compare what each form takes and gives, a line for each, and "
         "say which one eps train chooses"},
    {.name = "--sparse",
     .value = "keep=X[,KEY=VALUE...]",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(sparse),
     .key = 55,
     .stored = EPS_STORED_ABSENT,
     .train =
         "train a share X of the weights of blocks' matrices (in nets of images: of filters larger than 1x1); all "
         "others are 0. What is relayed, the optimizer's memory and its part of checkpoints shrink with them. Fresh "
         "weights are drawn at random places; of a model's weights the largest stay. Places change as training goes "
         "on (dynamic sparse reparameterization): after every=N steps (default 100; 0: never), to step N at until=N "
         "(default 80 % of --steps), so that about a share moved=X of these weights (default 0.05), the smallest, "
         "begins anew elsewhere. room=X: a matrix has room for so many times the weights that it begins with "
         "(default 1.25)",
     .plan = "plan for sparse weights, as in eps train"},
    {.name = "--commit",
     .value = "eager|fenced|folded",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(commit),
     .key = 20,
     .stored = EPS_STORED_LATER,
     .train = "eager updates each unit as soon as its gradient is complete. fenced updates after all gradients are "
              "complete, and skips the step if one is not finite; it takes 4 more bytes of host memory per parameter, "
              "2 with --sums bf16, and, with several --parts, refuses adama. folded updates after all gradients are "
              "complete, too, but puts each part's into the moments at once, as adama does, or sgd with momentum "
              "alone; of these it changes no bit. fenced and folded may take some parts through the whole model before "
              "the next, which saves memory of the device. Default eager; fenced in fp16",
     .plan = "fenced and folded may take some parts through the whole model before the next; default eager; with "
             "--clip-norm or --precision fp16 fenced"},
    {.kind = EPS_OPTION_HEADING, .train = "Numbers"},
    {.name = "--precision",
     .value = "fp32|bf16|fp16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(precision),
     .key = 17,
     .stored = EPS_STORED_LATER,
     .train = "type of weights and activations on the device; losses stay fp32, and, unless --sums and --master say "
              "otherwise, sums and the optimizer's master weights. fp16 implies --commit fenced, and "
              "scales the loss by a power of two: halved by a step "
              "whose gradient overflows, which is skipped, and doubled after 2,000 others. Default fp32; bf16 on CUDA",
     .plan = "type of weights and activations; default fp32; bf16 on CUDA"},
    {.name = "--state",
     .value = "fp32|bf16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(state),
     .train = "type of the optimizer's state in host memory. bf16: --moments bf16, --grad-dtype bf16, with --precision "
              "bf16 or fp16 --master none, and with --commit fenced --sums bf16; each may be named beside it. "
              "12 bytes per parameter become 6, or 8 in fp32. Default fp32, but --grad-dtype as it says",
     .plan = "type of the optimizer's state: bf16 is --moments, --grad-dtype and, where they apply, --master none and "
             "--sums bf16 in one; default fp32, but --grad-dtype as it says"},
    {.name = "--moments",
     .value = "fp32|bf16|coded",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(moments),
     .key = 18,
     .stored = EPS_STORED_LATER,
     .train =
         "type of the optimizer's moments in host memory: 8 or 4 bytes per parameter (sgd: 4 or 2). In bf16 they are "
         "rounded at random: without bias, also in 50 --parts of adama, where a single second moment is off by 4 %, "
         "with one part by 2 %. coded: 2.125 bytes in matrices of blocks, 8 elsewhere: 8 bits each, and a scale for 64 "
         "elements; rounded at random without bias; adamw, or adama with one part. Default fp32",
     .plan =
         "type of the optimizer's moments: 8, 4 or, in matrices of blocks, 2.125 bytes per parameter (sgd: 4 or 2); "
         "default fp32"},
    {.name = "--grad-dtype",
     .value = "fp32|bf16|fp16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(grad_dtype),
     .key = 19,
     .stored = EPS_STORED_LATER,
     .train = "type of gradients in transfer to the host: fp16 with --precision fp16 alone; default bf16 with "
              "--precision bf16, unless --state says otherwise, else fp32",
     .plan = "type of gradients in transfer to the host; default bf16 with --precision bf16, else fp32"},
    {.name = "--master",
     .value = "fp32|none",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(master),
     .key = 56,
     .stored = EPS_STORED_LATER,
     .train =
         "none: weights in 16 bits have no master; an update rounds them at random, up or down by how near each is, "
         "so that small steps count on average. 2 bytes of host memory per parameter less; default fp32",
     .plan = "none: weights in 16 bits have no fp32 master, 2 bytes per parameter less; default fp32"},
    {.name = "--sums",
     .value = "fp32|bf16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(sums),
     .key = 57,
     .stored = EPS_STORED_LATER,
     .train = "with --commit fenced: type of the gradient that it holds, 4 or 2 bytes per parameter; in bf16 each "
              "addition of a part is rounded at random, as with --master none; default fp32",
     .plan = "with --commit fenced: type of the gradient that it holds; default fp32"},
    {.name = "--attention",
     .value = "own|forward|cudnn|scores|twice|ordered",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(attention),
     .tasks = TOKENS | EPS_OF_LABELS,
     .key = 61,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_CHANGES,
     .train = "how attention is computed: own: by our kernels; cudnn: by cuDNN, in the way that the device has, which "
              "the run's checkpoints name: scores, twice or ordered; forward: its gradient by our kernels. All "
              "workers compute it in one way; devices that cannot are left out. Default: the fastest that eps bench "
              "has timed on the device, else own",
     .plan = "how attention is computed; default: the fastest that the profile has figures of, else own"},
    {.kind = EPS_OPTION_HEADING, .train = "Order and chance"},
    {.name = "--order",
     .value = "shuffled|sequential",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(order),
     .key = 24,
     .train = "order of the sequences; default shuffled",
     .plan = "with --data: as in eps train",
     DATA_OF(EPS_OF_CONVERSATIONS, order, "with --pack: as in eps train")},
    {.name = "--mask-fraction",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(mask_fraction),
     .tasks = EPS_OF_MASKED | EPS_OF_SPANS,
     .key = 23,
     .stored = EPS_STORED_ABSENT,
     .train = "for a model that predicts masked tokens: the fraction of tokens that it has to predict, drawn anew in "
              "each epoch. Of these, 80 % are replaced by the mask token, 10 % by a random token, and 10 % stay. "
              "Special tokens are never drawn. Default 0.15. For an encoder-decoder: train it on text to restore spans "
              "of three tokens on average, this fraction of all (T5)",
     .plan = "with --data: as in eps train",
     EVAL(mask_fraction, "of a model that predicts masked tokens: the fraction of tokens to mask; default 0.15")},
    {.name = "--seed",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(seed),
     .key = 26,
     .train = "seed for fresh weights, order, masks and dropout; default 0",
     .plan = "with --data: as in eps train",
     EVAL_OF(EPS_OF_MASKED | EPS_OF_SPANS, seed, "seed for the masks; default 0"),
     DATA(seed, "with --pack or --images: as in eps train")},
    {.name = "--deterministic",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(deterministic),
     .key = 33,
     .train = "give the same bits for any number of workers, with the same --microbatch and --parts"},
    {.kind = EPS_OPTION_HEADING, .train = "Measuring"},
    {.name = "--eval-every",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(eval_every),
     .key = 27,
     .resume = EPS_RESUME_TAKES,
     .train = "measure the held-out loss every N steps and before the first; it is always measured after the last. The "
              "checkpoint with the lowest loss is kept as DIR/best; each new lowest gets one. 0: after the last alone. "
              "Default: ten times a run, or less often where that would take over a sixth of the time; a new lowest "
              "gets a checkpoint only where saving takes at most 3 % of it"},
    {.name = "--limit",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     DATA_OF(EPS_OF_TEXT | EPS_OF_DOCUMENTS, limit, "show the first N rows; default 10. All rows are counted")},
    {.name = "--stride",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     EVAL_OF(EPS_OF_TEXT, stride,
             "tokens from one sequence's begin to the next one's; default: --seq. Fewer predict each token from more "
             "tokens before it, and take longer")},
    {.name = "--eval-tokens",
     .value = "N",
     .kind = EPS_OPTION_LONG,
     EVAL_OF(TOKENS, eval_tokens, "measure N tokens, spread over the data; default: all")},
    {.name = "--eval-tokens",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(eval_tokens),
     .tasks = TOKENS,
     .key = 28,
     .stored = EPS_STORED_LATER,
     .resume = EPS_RESUME_TAKES,
     .train =
         "tokens per evaluation, spread over the held-out data; 0: all; default 65536, or 4096 and more in a short "
         "run without --eval-every; with --task always all"},
    {.name = "--patience",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(patience),
     .key = 29,
     .stored = EPS_STORED_LATER,
     .resume = EPS_RESUME_TAKES,
     .train = "early stopping: end after N evaluations (--eval-every) in a row without a new best"},
    {.name = "--trace",
     .value = "FILE",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(trace),
     .train = "write a timeline of all threads to a new file, for chrome://tracing or ui.perfetto.dev"},
    {.name = "--tensorboard",
     .value = "DIR",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(tensorboard),
     .train = "write the steps as event files into this directory, for tensorboard --logdir DIR"},
    {.name = "--sample-every",
     .value = "N",
     .kind = EPS_OPTION_LONG,
     .offset = AT(sample_every),
     .train =
         "every N steps, print what the model writes after each --sample-prompt: up to 64 tokens, drawn by the seed "
         "and the step. --tensorboard has them, too. Training waits meanwhile; the copy takes memory of its own"},
    {.name = "--sample-prompt",
     .value = "TEXT...",
     .kind = EPS_OPTION_TEXTS,
     .offset = AT(sample_prompts),
     .train = "with --sample-every: a text to continue; may be given several times"},
    {.name = "--verbose",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(verbose),
     .train = "print every setting and the whole plan before the first step, not six lines of them; also -v"},
#include "client/options/table_texts.inc"
    {.kind = EPS_OPTION_HEADING,
     .train = "Machine",
     .plan = "Machine",
     EVAL(model, "Machine"),
     GENERATE(model, ""),
     CHAT(model, "")},
    {.name = "--restarts",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(restarts),
     .train = "go on from the newest checkpoint, at most N times, if the daemon, one of its hosts, or the last worker "
              "that can do a step is lost, or the job has made room for others, as its client asked for nothing for 5 "
              "minutes; with --connect, wait for the next daemon at ADDRESS, or in the queue; default 0"},
    {.name = "--device",
     .value = "auto|cpu|cuda[:ID]",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(device),
     .key = 1,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_TAKES,
     .train = "cuda is the first CUDA device; with --workers N it is the first N devices; cuda:1 is the second device; "
              "cuda:GPU-8f2c is named by its UUID, cuda:0000:3b:00.0 by its PCI address. Default auto: CUDA if there "
              "is one, else the CPU",
     .plan = "kind of device; this machine need not have one; default auto: "
             "CUDA if there is one, else the CPU",
     EVAL(device, "default auto: CUDA if there is one, else the CPU"),
     GENERATE(device, ""),
     CHAT(device, "")},
    {.name = "--device-mem",
     .value = "BYTES",
     .kind = EPS_OPTION_BYTES,
     .offset = AT(device_mem),
     .key = 34,
     .resume = EPS_RESUME_TAKES,
     .train = "hard cap on each worker's memory, as in 2GiB. To stay below it, the planner uses micro-batches, "
              "activation checkpointing (recomputation) and host memory. Default: 7/8 of free memory, divided by the "
              "workers; on CUDA 31/32 of the device's free memory",
     .plan = "memory of each worker; default: 7/8 of this machine's free memory, divided by the workers; on CUDA as "
             "much as is useful",
     EVAL(device_mem,
          "hard cap on the worker's memory, as in 2GiB; default: 7/8 of free memory, on CUDA 31/32 of the device's"),
     GENERATE(device_mem, ""),
     CHAT(device_mem, "")},
    {.name = "--host-mem",
     .value = "BYTES",
     .kind = EPS_OPTION_BYTES,
     .offset = AT(host_mem),
     .key = 35,
     .stored = EPS_STORED_LATER,
     .resume = EPS_RESUME_TAKES,
     .train = "hard cap on host memory for the model, its optimizer and transfer buffers; default: free memory",
     .plan = "host memory of the daemon, on any machine; default: this machine's free memory, shared with CPU workers"},
    {.name = "--require-pinned",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(require_pinned),
     .train = "fail if host memory cannot be locked (ulimit -l); default: print a note"},
    {.name = "--check-memory",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(check_memory),
     .resume = EPS_RESUME_TAKES,
     .train =
         "find host memory that changes by itself: weights, moments and gradients have sums, which are checked when "
         "they are used, and before they are saved. A damaged gradient is computed again where that can be; else the "
         "run ends, with exit code 1, and with --restarts goes on from the last checkpoint. About 0.4 % more host "
         "memory",
     .plan = "plan for sums of weights, moments and gradients, as in eps train"},
    {.name = "--workers",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(workers),
     .key = 36,
     .resume = EPS_RESUME_TAKES,
     .train = "worker processes; default 1",
     .plan = "worker processes; default 1"},
    {.name = "--audit",
     .value = "N",
     .kind = EPS_OPTION_LONG,
     .offset = AT(audit),
     .resume = EPS_RESUME_TAKES,
     .train =
         "in every N-th step, have one part computed by a second worker, or twice by the only one, and compare all "
         "bits before they count: finds devices that compute wrongly. If two results differ, further ones tell "
         "which worker is wrong, and that one is dropped. Takes up to 1/N of a step. Not on several hosts"},
    {.name = "--connect",
     .value = "ADDRESS",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(connect),
     .train =
         "use this daemon (name or directory) and its workers; default: private ones that start and end with the run",
     EVAL(connect, "with --model: use this daemon and its workers; without: use the model that it trains"),
     GENERATE(connect, ""),
     CHAT(connect, ""),
     EXPORT(connect, "that daemon, by name or directory; default: your only daemon")},
    {.name = "--wait",
     .value = "SECONDS",
     .kind = EPS_OPTION_REAL,
     .offset = AT(wait),
     .train = "with --connect: how long to wait for the daemon, and for a worker on each of its hosts; seconds in "
              "which this process is stopped do not count; 0: not at all; default 60",
     EVAL(wait, "with --connect: how long to wait for the daemon, and for a worker on each of its hosts or, without "
                "--model, for its run; 0: not at all; default 60"),
     GENERATE(wait, ""),
     CHAT(wait, "")},
    {.kind = EPS_OPTION_HEADING, EVAL(model, "Output")},
    {.name = "--predictions",
     .value = "FILE",
     .kind = EPS_OPTION_TEXT,
     EVAL_OF(EPS_OF_LABELS | EPS_OF_IMAGES | EPS_OF_HYPOTHESES, predictions,
             "for a classifier: write a line for each row, as TSV, or as JSON if FILE ends in .jsonl: what is "
             "predicted, and the probability of each class. The data then needs no labels: no column, or labels that "
             "are empty, null, or -1 for classes. With --bleu: each target that was written, in a line")},
    {.name = "--merge",
     .kind = EPS_OPTION_FLAG,
     EXPORT(merge, "of a model with adapters (eps train --lora, PEFT): add them to the weights, and write the whole "
                   "model; default: the adapters alone, which PEFT loads")},
    {.name = "--text-only",
     .kind = EPS_OPTION_FLAG,
     EXPORT(text_only, "leave out what was not trained and write the text model as one of its own; default: tensors of "
                       "a vision tower, a draft head or a pooler, and the config and processor files of the model "
                       "around the text model, come back as they are in the model that the training began from")},
    {.name = "--average",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     EXPORT(average, "the mean of the weights of the N newest checkpoints of the run that --model names")},
    {.name = "--dtype",
     .value = "fp32|fp16|bf16",
     .kind = EPS_OPTION_CHOICE,
     EXPORT(dtype, "type of the weights; default: the type in which the model came, also after training; fp32 if it "
                   "had several, and of adapters alone. fp16 and bf16 are rounded to nearest")},
};

const struct eps_option *eps_options(size_t *n)
{
    *n = sizeof rows / sizeof *rows;
    return rows;
}
