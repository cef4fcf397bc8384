/* client/options/table.c - one row for each option of a training run (client/eps_options.h).
 *
 * A new option is a row here, a member in eps_options.h, a paragraph in tools/man/eps.1, and the code that acts on it.
 * Parsing, --help, completion, training.json, resume and attach follow from the row. */
#include "client/eps.h"

#include <assert.h>

#define AT(member) offsetof(struct eps_train_options, member)

static_assert(AT(beta2) == AT(beta1) + sizeof(double), "a pair");
static_assert(AT(n_data) == AT(data) + sizeof(const char *const *), "files and their number");
static_assert(sizeof(enum eps_schedule) == sizeof(uint32_t), "a choice is stored as a count");

static const struct eps_option rows[] = {
    {.kind = EPS_OPTION_HEADING, .train = "Model and data", .plan = "Model and batch"},
    {.name = "--model",
     .value = "DIR|config.json|PRESET",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(model),
     .train = "a directory with config.json and *.safetensors; or, for fresh random weights, a config.json alone or a "
              "preset: text-small, text-medium, text-large (learn a tokenizer from the text), byte-small, byte-medium, "
              "byte-large, gpt2, gpt2-medium, gpt2-large, gpt2-xl (on text with a vocabulary of 256 bytes). Default: a "
              "preset that fits the data and the memory, with its own batch, steps, learning rate and betas, which are "
              "printed",
     .plan = "as in eps train; from a directory only config.json is read"},
    {.name = "--data",
     .value = "FILE...",
     .kind = EPS_OPTION_FILES,
     .offset = AT(data),
     .train =
         "training data: files, directories and patterns, joined into one stream of tokens. UTF-8 text, tokenised "
         "by the model's tokenizer (one byte a token with a vocabulary of 256); .jsonl (text, or prompt and "
         "completion); .bin (16-bit ids; 32-bit for vocabularies over 65536); .npy (one dimension of "
         "integers); each also as .gz or .zst. - is standard input. Conversations are rows of their own: .jsonl with "
         "messages, prompt and completion, or the layouts of sharegpt and alpaca; FILE=2 takes each twice an epoch, "
         "FILE=0.5 half of them"},
    {.name = "--eval-data",
     .value = "FILE",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(eval_data),
     .train =
         "held-out data, in the same formats; default: the last 1 % of the data; with --task, and of conversations, "
         "a tenth of the rows, drawn by the seed"},
    {.name = "--task",
     .value = "classify|regress",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(task),
     .train = "train a BERT or RoBERTa model to predict a class, or a number, of each row of --data, which is then TSV "
              "or .jsonl with labels. Default: the model's own task, if it is a classifier",
     .plan = "train a BERT or RoBERTa model to predict a class, or a number, of each row, as in eps train"},
    {.name = "--labels",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(n_labels),
     .plan = "with --task classify: number of classes; default 2"},
    {.name = "--data-tokens",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(data_tokens),
     .plan = "with --approximate wta: tokens of the training data, of each of which a run of several epochs remembers "
             "norms of gradients in 2 bytes a matrix behind a relu; default: 1, as the data are not read"},
    {.name = "--columns",
     .value = "TEXT,LABEL",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(columns),
     .key = 2,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_TAKES,
     .train = "with --task: the columns of the data, or TEXT,TEXT,LABEL for pairs of texts: names in the first line of "
              "TSV, keys of .jsonl, or numbers from 1 for TSV without a line of names. Default: known names, such as "
              "sentence, sentence1,sentence2 or text,text_pair, and label or score"},
    {.name = "--image",
     .value = "HxW",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(image),
     .key = 49,
     .stored = EPS_STORED_ABSENT,
     .train =
         "of images: the pixels of a row, as in 224x224. Each image is scaled to cover them, and its middle is seen; "
         "224x224,shorter=256 scales its shorter side to 256 pixels. Default: the images' own size, which must then "
         "be the same for all"},
    {.name = "--augment",
     .value = "NAME,...",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(augment),
     .key = 50,
     .stored = EPS_STORED_ABSENT,
     .train =
         "of images to train on: crop=N sees the row anywhere in N more pixels on each side, which are black, or with "
         "reflect the image's own; resized-crop=X a part of at least this share, at proportions from 3:4 to 4:3, "
         "default 0.08; flip mirrors half of them. Drawn by the seed, anew each epoch. Evaluations see the middle"},
    {.name = "--separator",
     .value = "none|eos",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(separator),
     .key = 25,
     .stored = EPS_STORED_LATER,
     .train = "what separates files of text and texts in .jsonl: eos is the tokenizer's end-of-text token, the default "
              "if it has one"},
    {.name = "--train-on",
     .value = "answers|all|last",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(train_on),
     .key = 38,
     .stored = EPS_STORED_LATER,
     .train =
         "of conversations: the tokens that the loss is of. answers: those of messages of the role assistant, the "
         "default; all; last: those of each conversation's last answer. A message with \"train\": false is left out"},
    {.name = "--dpo-beta",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(dpo_beta),
     .key = 40,
     .stored = EPS_STORED_NULL,
     .train = "of preferences (.jsonl with prompt, chosen and rejected), which are trained by direct preference "
              "optimisation: beta, how much a departure from the reference model costs, which is the model before "
              "the run; default 0.1",
     .plan = "plan for preferences, as in eps train: each is two rows of --batch"},
    {.name = "--dpo-smoothing",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(dpo_smoothing),
     .key = 41,
     .stored = EPS_STORED_NULL,
     .train = "of preferences: the share that is taken to be the wrong way round, from 0 to 0.5; default 0"},
    {.name = "--label-smoothing",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(label_smoothing),
     .key = 46,
     .stored = EPS_STORED_NULL,
     .train = "spread this share of each label evenly over all labels, as torch's cross entropy does; held-out losses "
              "are without it; default 0"},
    {.name = "--long",
     .value = "cut|drop|refuse",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(long_rows),
     .key = 39,
     .stored = EPS_STORED_LATER,
     .train = "what becomes of conversations of more than --seq tokens: cut at the end (the default), dropped, or "
              "refused. Those that are left without an answer are dropped. Counts are printed"},
    {.name = "--pack",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(pack),
     .key = 42,
     .stored = EPS_STORED_LATER,
     .train = "of conversations: fill each row of --seq tokens with several. None attends to another, and positions "
              "begin at 0 in each. Rows and their fill are printed. Default: each conversation is a row",
     .plan = "plan for rows of several conversations, as in eps train"},
    {.name = "--out",
     .value = "DIR",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(out),
     .train = "run directory for metrics.jsonl, log, step-N/, latest and best; default: runs/MODEL-TIME, or the "
              "directory of --resume"},
    {.kind = EPS_OPTION_HEADING, .train = "Checkpoints"},
    {.name = "--resume",
     .value = "DIR",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(resume),
     .train = "continue from a run's newest checkpoint, or from the given step-N, bit for bit as if it had never "
              "stopped. Options left unset take the stored values. Other values are refused, except for --steps, "
              "--epochs, --microbatch, --out, the groups Checkpoints, Measuring and Machine, and the options that "
              "--change names. With --out, a new run begins from the checkpoint"},
    {.name = "--attach",
     .value = "[ADDRESS]",
     .kind = EPS_OPTION_OPTIONAL_TEXT,
     .offset = AT(attach),
     .train = "take over the detached job of this daemon: one whose eps train was killed. The run goes on bit for bit "
              "as if that had not happened, from the daemon's weights, with its own options. Default: your only daemon "
              "with such a job. Only the job's user and root may; the daemon keeps the job until it is stopped, or "
              "until another job waits: then it is saved first, or stays if it cannot be saved"},
    {.name = "--change",
     .value = "NAME,...",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(change),
     .train = "with --resume: these options take their new values, as in --change lr,batch --lr 1e-4 --batch 32. NAME "
              "is batch, lr, min-lr, schedule, warmup, weight-decay, clip-norm, clip-update, drop-layers or "
              "freeze-until. The "
              "optimizer's moments are kept, the data continue with the next sequence, and checkpoints record the "
              "change"},
    {.name = "--grow",
     .value = "N",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(grow),
     .train = "with --resume and --out: begin the new run with N more blocks, copies of the topmost N, put above them "
              "(progressive stacking). Copies take the moments of what they copy, and its number of updates; with "
              "N,moments=zero none. Step, rates and data go on"},
    {.name = "--replace",
     .value = "BLOCK=WIDTH,...",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(replace),
     .train =
         "with --resume and --out: begin the new run with feed-forward layers of other widths in these blocks, which "
         "count from 0 (of an encoder-decoder, the decoder's follow the encoder's). A wider layer computes what it "
         "did before: new units have fresh weights in, and zeros out. A narrower one keeps the units whose weights "
         "out have the largest norms. What is kept has its moments; with BLOCK=WIDTH,...,moments=zero these layers "
         "have none. Step, rates and data go on"},
    {.name = "--save-every",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(save_every),
     .key = 30,
     .resume = EPS_RESUME_TAKES,
     .train = "save a checkpoint every N steps while training goes on; 0: at the end only, not on interrupts; default: "
              "a tenth of the steps"},
    {.name = "--save-minutes",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(save_minutes),
     .key = 31,
     .stored = EPS_STORED_LATER,
     .resume = EPS_RESUME_TAKES,
     .train = "also save when the newest checkpoint is X minutes old, unless --save-every is 0; it is removed once "
              "there is a newer one; 0: never; default 10"},
    {.name = "--keep",
     .value = "N",
     .kind = EPS_OPTION_NUMBER_32,
     .offset = AT(keep),
     .key = 32,
     .resume = EPS_RESUME_TAKES,
     .train = "keep the newest N checkpoints and the best one; 0: all; default 2"},
    {.kind = EPS_OPTION_HEADING, .train = "Length and batch"},
    {.name = "--steps",
     .value = "N",
     .kind = EPS_OPTION_LONG,
     .offset = AT(steps),
     .key = 4,
     .resume = EPS_RESUME_TAKES,
     .train = "optimizer steps; default: as many as --epochs takes, rounded up"},
    {.name = "--epochs",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(epochs),
     .train = "passes over the data; default 1; with --task and of conversations 3; for a preset as many as 1500 steps "
              "take (750 for a text "
              "preset), at most 10"},
    {.name = "--batch",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(batch),
     .key = 5,
     .resume = EPS_RESUME_CHANGES,
     .train = "sequences per optimizer step, a multiple of --parts; default: about 16 Ki tokens; with --task 32; for a "
              "preset 1/1500 of the data, from 1 Ki to 16 Ki tokens (text preset: 1/750, from 2 Ki)",
     .plan = "sequences per optimizer step; default: about 16 Ki tokens; with --task 32"},
    {.name = "--seq",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(seq),
     .key = 6,
     .train = "tokens per sequence; default: the model's positions, at most 1024; with --task the longest row's, of "
              "conversations that at most 1024. Longer rows are cut",
     .plan = "tokens per sequence; default: the model's positions, at most 1024. With --task: tokens of the longest "
             "row; default: the model's positions"},
    {.name = "--source-seq",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(source_seq),
     .key = 45,
     .train = "of an encoder-decoder: tokens of each --seq that are the source, the others the target; default: the "
              "longest source's, at most 512. Rows are padded to the longest of their batch, in this proportion",
     .plan = "of an encoder-decoder: tokens of each --seq that are the source; default: half of them"},
    {.name = "--microbatch",
     .value = "N|auto",
     .kind = EPS_OPTION_AUTO,
     .offset = AT(microbatch),
     .key = 7,
     .resume = EPS_RESUME_TAKES,
     .train = "sequences that a device computes at once (micro-batch); gradient accumulation covers the rest of the "
              "batch. Default auto: the fastest that fits",
     .plan = "sequences that a device computes at once (micro-batch); default auto: the fastest that fits"},
    {.name = "--parts",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(parts),
     .key = 8,
     .train = "split the batch into N parts, which are distributed to the workers; default: the number of workers, of "
              "all hosts",
     .plan = "parts of the batch, distributed to the workers; default: the number of workers"},
    {.kind = EPS_OPTION_HEADING, .train = "Optimizer", .plan = "Optimizer and numbers"},
    {.name = "--lr",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(lr),
     .key = 9,
     .resume = EPS_RESUME_CHANGES,
     .train = "peak learning rate; default 3e-4 for fresh weights, 2e-4 with --lora, else 2e-5; presets: 3e-3 for "
              "text-small, 2e-3 for byte-small, 1e-3 for the medium ones"},
    {.name = "--min-lr",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(min_lr),
     .key = 10,
     .resume = EPS_RESUME_CHANGES,
     .train = "final learning rate; default: a tenth of --lr; with --schedule inverse-sqrt the least, default 0"},
    {.name = "--schedule",
     .value = "cosine|linear|constant|inverse-sqrt",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(schedule),
     .key = 11,
     .resume = EPS_RESUME_CHANGES,
     .train =
         "learning rate schedule after warm-up; inverse-sqrt: as one over the root of the step, whatever --steps is; "
         "default cosine"},
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
     .train = "decoupled weight decay, except on biases and norms; default 0.01"},
    {.name = "--betas",
     .value = "A,B",
     .kind = EPS_OPTION_PAIR,
     .offset = AT(beta1),
     .key = 14,
     .train = "decay rates of Adam's moments; default 0.9,0.999; for a preset 0.9,0.99"},
    {.name = "--epsilon",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(epsilon),
     .key = 15,
     .train = "Adam's epsilon; default 1e-8"},
    {.name = "--optimizer",
     .value = "adama|adamw",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(optimizer),
     .key = 16,
     .train =
         "AdamA squares each part's gradient, AdamW the sum of all; default adamw. With one part they are the same",
     .plan = "default adamw; with one part they are the same"},
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
     .plan = "as in eps train"},
    {.name = "--approximate",
     .value = "wta=X,attention=X,coded=N|any",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(approximate),
     .key = 44,
     .stored = EPS_STORED_ABSENT,
     .train =
         "allow inexact gradients; no budget and no number of workers changes a bit of them. wta=X: gradients of the "
         "layers' matrices from a share X of each row's tokens (0.01 to 1), winners kept and the rest drawn (WTA-CRS). "
         "They are unbiased, and take less time. attention=X: gradients of attention's keys and values from a share X "
         "of each row's queries, in the same way; they are unbiased, and so are those of all below, which they change. "
         "rule=paper|variance: how many are winners, by the published rule (default) or for less variance. coded=8|4: "
         "layers keep activations in 8 bits; with 4, in 4 where that does no harm; gradients are biased. All else "
         "stays exact. any: as the planner chooses, at the run's beginning: an inexact form only for a step of at "
         "least 5 % less time",
     .plan =
         "allow inexact gradients, as in eps train; any: compare what each form takes and gives, a line for each, and "
         "say which one eps train chooses"},
    {.name = "--commit",
     .value = "eager|fenced",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(commit),
     .key = 20,
     .stored = EPS_STORED_LATER,
     .train = "eager updates each unit as soon as its gradient is complete. fenced updates after all gradients are "
              "complete, and skips the step if one is not finite; it takes 4 more bytes of host memory per parameter "
              "and, with several --parts, requires adamw. Default eager",
     .plan = "default eager; with --clip-norm fenced"},
    {.kind = EPS_OPTION_HEADING, .train = "Numbers"},
    {.name = "--precision",
     .value = "fp32|bf16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(precision),
     .key = 17,
     .stored = EPS_STORED_LATER,
     .train = "type of weights and activations on the device; sums, losses and the optimizer's master weights stay "
              "fp32. Default fp32; bf16 on CUDA",
     .plan = "type of weights and activations; default fp32; bf16 on CUDA"},
    {.name = "--moments",
     .value = "fp32|bf16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(moments),
     .key = 18,
     .stored = EPS_STORED_LATER,
     .train = "type of the optimizer's moments in host memory: 8 or 4 bytes per parameter; default fp32",
     .plan = "type of the optimizer's moments: 8 or 4 bytes per parameter; default fp32"},
    {.name = "--grad-dtype",
     .value = "fp32|bf16",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(grad_dtype),
     .key = 19,
     .stored = EPS_STORED_LATER,
     .train = "type of gradients in transfer to the host, which sums them in fp32; default fp32",
     .plan = "type of gradients in transfer to the host; default fp32"},
    {.kind = EPS_OPTION_HEADING, .train = "Order and chance"},
    {.name = "--order",
     .value = "shuffled|sequential",
     .kind = EPS_OPTION_CHOICE,
     .offset = AT(order),
     .key = 24,
     .train = "order of the sequences; default shuffled"},
    {.name = "--mask-fraction",
     .value = "X",
     .kind = EPS_OPTION_REAL,
     .offset = AT(mask_fraction),
     .key = 23,
     .stored = EPS_STORED_ABSENT,
     .train = "for a model that predicts masked tokens: the fraction of tokens that it has to predict, drawn anew in "
              "each epoch. Of these, 80 % are replaced by the mask token, 10 % by a random token, and 10 % stay. "
              "Special tokens are never drawn. Default 0.15. For an encoder-decoder: train it on text to restore spans "
              "of three tokens on average, this fraction of all (T5)"},
    {.name = "--seed",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(seed),
     .key = 26,
     .train = "seed for fresh weights, order, masks and dropout; default 0"},
    {.name = "--deterministic",
     .kind = EPS_OPTION_FLAG,
     .offset = AT(deterministic),
     .key = 33,
     .train = "give the same bits for any number of workers, with the same --microbatch"},
    {.kind = EPS_OPTION_HEADING, .train = "Measuring"},
    {.name = "--eval-every",
     .value = "N",
     .kind = EPS_OPTION_LONG,
     .offset = AT(eval_every),
     .key = 27,
     .resume = EPS_RESUME_TAKES,
     .train = "measure the held-out loss every N steps and before the first; it is always measured after the last. The "
              "checkpoint with the lowest loss is kept as DIR/best"},
    {.name = "--eval-tokens",
     .value = "N",
     .kind = EPS_OPTION_NUMBER,
     .offset = AT(eval_tokens),
     .key = 28,
     .stored = EPS_STORED_LATER,
     .resume = EPS_RESUME_TAKES,
     .train = "tokens per evaluation, spread over the held-out data; 0: all; default 65536; with --task always all"},
    {.name = "--patience",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(patience),
     .key = 29,
     .stored = EPS_STORED_LATER,
     .resume = EPS_RESUME_TAKES,
     .train = "early stopping: end after N evaluations in a row without a new best"},
    {.name = "--trace",
     .value = "FILE",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(trace),
     .train = "write a timeline of all threads to a new file, for chrome://tracing or ui.perfetto.dev"},
    {.kind = EPS_OPTION_HEADING, .train = "Machine", .plan = "Machine"},
    {.name = "--restarts",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(restarts),
     .train = "go on from the newest checkpoint, at most N times, if the daemon, one of its hosts, or the last worker "
              "that can do a step is lost; with --connect, wait for the next daemon at ADDRESS; default 0"},
    {.name = "--device",
     .value = "auto|cpu|cuda[:N]",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(device),
     .key = 1,
     .stored = EPS_STORED_ABSENT,
     .resume = EPS_RESUME_TAKES,
     .train = "cuda is the first CUDA device; with --workers N it is the first N devices; cuda:1 is the second device. "
              "Default auto: CUDA if there is one, else the CPU",
     .plan = "kind of device; this machine need not have one; default auto: the CPU"},
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
             "much as is useful"},
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
    {.name = "--workers",
     .value = "N",
     .kind = EPS_OPTION_COUNT,
     .offset = AT(workers),
     .key = 36,
     .resume = EPS_RESUME_TAKES,
     .train = "worker processes; default 1",
     .plan = "worker processes; default 1"},
    {.name = "--connect",
     .value = "ADDRESS",
     .kind = EPS_OPTION_TEXT,
     .offset = AT(connect),
     .train =
         "use this daemon (name or directory) and its workers; default: private ones that start and end with the run"},
    {.name = "--wait",
     .value = "SECONDS",
     .kind = EPS_OPTION_REAL,
     .offset = AT(wait),
     .train = "with --connect: how long to wait for the daemon, and for a worker on each of its hosts; seconds in "
              "which this process is stopped do not count; 0: not at all; default 60"},
};

const struct eps_option *eps_options(size_t *n)
{
    *n = sizeof rows / sizeof *rows;
    return rows;
}
