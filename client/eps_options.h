/* client/eps_options.h - the options of a training run: their struct, and a table with one row for each option.
 *
 * What an option means, and its default, is in its row: `eps train --help all` prints it. Comments here add what only a
 * caller in C needs. Included by eps.h. */
#ifndef CLIENT_EPS_OPTIONS_H
#define CLIENT_EPS_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libeps.so */

enum eps_schedule {
    EPS_SCHEDULE_DEFAULT,
    EPS_SCHEDULE_COSINE,
    EPS_SCHEDULE_LINEAR,
    EPS_SCHEDULE_CONSTANT,
    EPS_SCHEDULE_INVERSE_SQRT,
    EPS_SCHEDULE_STEP
};
enum eps_optimizer_kind { EPS_OPTIMIZER_DEFAULT, EPS_ADAMA, EPS_ADAMW, EPS_SGD };
enum eps_number { EPS_NUMBER_DEFAULT, EPS_FP32, EPS_BF16, EPS_FP16 };
enum eps_moments { EPS_MOMENTS_DEFAULT, EPS_MOMENTS_FP32, EPS_MOMENTS_BF16, EPS_MOMENTS_CODED };
enum eps_master { EPS_MASTER_DEFAULT, EPS_MASTER_FP32, EPS_MASTER_NONE };
/* How attention is computed: by our kernels; these backward, and cuDNN forward; cuDNN's way of both that the device
 * has; one of its ways by name, as training.json stores it. */
enum eps_attention {
    EPS_ATTENTION_DEFAULT,
    EPS_ATTENTION_OWN,
    EPS_ATTENTION_FORWARD,
    EPS_ATTENTION_CUDNN,
    EPS_ATTENTION_SCORES,
    EPS_ATTENTION_TWICE,
    EPS_ATTENTION_ORDERED
};
enum eps_card { EPS_CARD_DEFAULT, EPS_CARD_H100, EPS_CARD_RTX_4090, EPS_CARD_RTX_5090 };
enum eps_base { EPS_BASE_DEFAULT, EPS_BASE_FULL, EPS_BASE_BF16, EPS_BASE_INT8, EPS_BASE_NF4 };
enum eps_commit { EPS_COMMIT_DEFAULT, EPS_EAGER, EPS_FENCED, EPS_FOLDED };
enum eps_separator { EPS_SEPARATOR_DEFAULT, EPS_SEPARATOR_NONE, EPS_SEPARATOR_EOS };
enum eps_task { EPS_TASK_DEFAULT, EPS_CLASSIFY, EPS_REGRESS };
enum eps_train_on { EPS_TRAIN_ON_DEFAULT, EPS_TRAIN_ON_ANSWERS, EPS_TRAIN_ON_ALL, EPS_TRAIN_ON_LAST };
enum eps_split { EPS_SPLIT_DEFAULT, EPS_SPLIT_YES, EPS_SPLIT_NO };
enum eps_long { EPS_LONG_DEFAULT, EPS_LONG_CUT, EPS_LONG_DROP, EPS_LONG_REFUSE };
enum eps_order { EPS_ORDER_DEFAULT, EPS_SHUFFLED, EPS_SEQUENTIAL };

/* The blocks of one step, numbered from 0 nearest the input; of an encoder-decoder, the decoder's blocks follow the
 * encoder's. If all of the decoder's are left out, the encoder's are updated with gradients of zeros.
 *
 * A step computes its blocks in the order of `computed`, forward; backward in its reverse. A block keeps what is its
 * own wherever it stands: weights, index, window. Blocks change places with those that read and write values of the
 * same kind: of an encoder-decoder, within each stack. A function that swaps the middle two of four in every other
 * step:
 *
 *     static void swap(void *user, struct eps_step_blocks *blocks)
 *     {
 *         if (blocks->step % 2)
 *             blocks->computed[1] = 2, blocks->computed[2] = 1;
 *     } */
struct eps_step_blocks {
    uint64_t step;       /* from 1 */
    uint32_t n_blocks;   /* of the model */
    uint32_t *computed;  /* (n_computed, room for n_blocks) in any order; first all, or those that drop_layers leaves */
    uint32_t n_computed; /* 1 at least. The others are left out: not updated, not decayed, not counted */
    uint32_t *frozen;    /* (n_frozen, room for n_blocks) of these, those that the step does not train; first none */
    uint32_t n_frozen;
};

/* What becomes of a step whose rows are given. */
enum eps_rows {
    EPS_ROWS_TRAIN,
    EPS_ROWS_END,  /* the run ends before it, as by should_stop's 1 */
    EPS_ROWS_DROP, /* it ends at once, as by should_stop's 2 */
    /* What is done so far is saved first, if it is not; then the rows are asked for again. Not with no_save. */
    EPS_ROWS_SAVE,
    EPS_ROWS_SCORE, /* the rows are not trained: the model says how likely their labels are, in log_p; then likewise */
    EPS_ROWS_WEIGHTS, /* on_weights looks at them first; then likewise */
};

/* The rows of one step, in the order in which the step has them. */
#define EPS_NO_LABEL UINT32_MAX
struct eps_step_rows {
    uint64_t step; /* from 1 */
    uint32_t n_rows, n_tokens, vocabulary;
    bool adapts;      /* the model has adapters */
    uint32_t *ids;    /* (n_rows, n_tokens) below the vocabulary */
    uint32_t *labels; /* (n_rows, n_tokens) what each token predicts; EPS_NO_LABEL: nothing */
    /* (n_rows, n_tokens) finite; first all 1. The step's loss is the sum of -log p of each label times its weight, over
     * the number of labels. So any loss L of the log p is trained: by weights of -dL/dlog p times that number. */
    float *weights;
    double lr; /* the step's */
    /* For EPS_ROWS_SCORE: which of the rows, first all; whether with the dropout that the step will have in these rows;
     * and whether without the model's adapters, which it must have. */
    uint32_t first_scored, n_scored;
    bool drops, base;
    /* Of the rows that were scored just before: (n_scored of that time, n_tokens) log p of each label, in nats, 0 where
     * there is none; valid until this call returns. NULL: none were. */
    const float *log_p;
};

/* Whole rows of a tensor, its first dimension, that follow one another in memory. */
struct eps_tensor_piece {
    const void *at;  /* the first element; it can only be read */
    uint64_t offset; /* of it in the daemon's memory, in bytes */
    uint64_t first_row, n_rows;
};

/* A tensor in the daemon's memory. Its element (i, j, ...) is (i - first_row) * strides[0] + j * strides[1] + ...
 * elements behind the first one of the piece that has row i. Convolutions have their channels last there; all else is
 * dense. */
struct eps_tensor {
    const char *name;     /* a checkpoint's; of an adapter's base, the one in the base's files */
    enum eps_number type; /* of 16 bits: what workers compute with, the master rounded to nearest, ties away from 0 */
    uint32_t n_dims;
    uint64_t shape[4], strides[4];
    const struct eps_tensor_piece *pieces; /* (n_pieces) by rows; one, but of a table that is divided */
    size_t n_pieces;
    const char *why; /* why there are none: "is coded in nf4, ..."; else NULL */
    bool frozen;
};

/* The weights after a step, in the order of a checkpoint. */
struct eps_weights {
    uint64_t step; /* updates done */
    const struct eps_tensor *tensors;
    size_t n_tensors;
    /* The daemon's memory, and its size: for a mapping of the caller's own (PROT_READ, MAP_SHARED), or one of a
     * server's, which is sent the descriptor and each piece's offset. Whoever maps it keeps it in memory. */
    int fd;
    uint64_t bytes;
};

/* Start from eps_train_defaults(), which leaves every option unset, and set data, which has no default. Unset are NULL,
 * NAN and DEFAULT; a whole number is unset at 0, or at its type's maximum if 0 has a meaning. Texts are borrowed. */
struct eps_train_options {
    const char *model;       /* a file takes precedence over a preset of the same name */
    char model_note[96];     /* resolved: why the model was chosen, "chosen for 1.2 M tokens"; or empty */
    const char *const *data; /* (n_data) files, directories, glob(7) patterns, "-" for standard input */
    size_t n_data;
    const char *eval_data;
    enum eps_task task;  /* default: the model's own, if it is a classifier; else it predicts tokens */
    char task_note[200]; /* resolved, as "2 classes: no, yes; 900 rows, 100 held out"; or empty */
    unsigned teaches;    /* resolved: what a row teaches, one of enum eps_tasks */
    const char *columns;
    const char *image, *augment; /* "224x224,shorter=256", "crop=4,flip"; must be unset for models that see no images */
    uint32_t n_labels;           /* for eps_plan: training counts the classes of its data */
    enum eps_card card;          /* for eps_plan: by its data sheet, whatever was measured; device is cuda */
    /* For eps_plan, likewise: tokens of the data, whose norms of gradients are remembered for --approximate wta; 0:
     * none. */
    uint32_t data_tokens;
    enum eps_separator separator;
    const char
        *chat_template; /* of conversations: the name of one of the model's templates; NULL: as in transformers */
    enum eps_train_on train_on;
    enum eps_split split_special_tokens; /* those that messages of conversations spell; default: yes, they are text */
    enum eps_long long_rows;
    bool pack;
    const char *out;
    const char *name; /* of the run: out is runs/NAME */

    /* A file of options, as "options" in a checkpoint's training.json, and another run, whose options are taken.
     * Options that are set win over the file's, and these over the run's. Neither goes with resume or attach. */
    const char *config, *like;
    bool dry_run; /* ends with on_plan: no step is done, and nothing is written */

    /* On `resume`, options left unset take the stored values; what other values may do, their rows say (enum
     * eps_resume). The data may be moved if its content is the same. On `attach`, all options are the job's: a given
     * one must have its value, except data and eval_data. "" or "-" attach to the caller's only daemon with a detached
     * job. attach goes with neither resume nor connect, and needs out if the daemon is another user's. */
    const char *resume, *attach;
    const char *change; /* names of options, "lr,batch", whose given values replace the stored ones on resume */

    /* If save_every is not 0, `best` points to the best evaluation that has a checkpoint. With eval_every or patience
     * each new best gets one; where neither is given, only if saving takes at most 3 % of the time. Such a checkpoint,
     * and one that save_minutes asked for, which is saved no oftener, is removed once there is a newer one. */
    uint64_t save_every; /* 0: at the end only, not where the run is interrupted or this process dies; unset: by time */
    double save_minutes; /* 0: never */
    uint32_t keep;       /* 0: all */
    /* A directory to which each checkpoint is copied while training goes on, and verified there; it is made, and resume
     * takes it. Not stored: a resumed run is given it again. If the last checkpoint is not in it at the end, eps_train
     * fails. */
    const char *mirror;
    /* No checkpoint at all, and no disk space is asked for; save_every is 0. The four above, grow and replace must be
     * unset; on resume, what was stored of them has no effect. */
    bool no_save;

    uint64_t steps; /* resolved: set, and epochs is not */
    double epochs;
    uint32_t batch, seq, microbatch, parts;
    uint32_t source_seq; /* of an encoder-decoder: those of seq that are the source; must be unset for other models */

    double lr, min_lr;
    enum eps_schedule schedule;
    const char *lr_steps; /* of EPS_SCHEDULE_STEP, which needs them: "60,120,160"; must be unset for others */
    double lr_factor;     /* likewise */
    uint64_t warmup;
    double weight_decay, beta1, beta2, epsilon; /* the last three must be unset for EPS_SGD */
    enum eps_optimizer_kind optimizer;
    double momentum;                /* of EPS_SGD; must be unset for others */
    bool nesterov;                  /* likewise */
    double clip_norm, clip_update;  /* unset: no clipping */
    double dpo_beta, dpo_smoothing; /* of preferences; must be unset for other data */
    double drop_layers;             /* unset: 0 */
    /* Called before each step, and for a resumed run before each that it does: may write other lists, which count for
     * this step alone. Residual branches are scaled by drop_layers as it is given, whatever is left out; not at all if
     * it is unset. No row of the table, and not stored: a run that is resumed, or attached to, is given it anew. A list
     * that cannot be ends the run: -EINVAL. Not on several hosts. */
    void (*on_blocks)(void *user, struct eps_step_blocks *blocks);
    void *blocks_user;
    /* Called before each step, once the one before it is done: may rewrite the step's rows and its rate. Rows are of
     * one document, of models that predict tokens. No row of the table, and not stored, as on_blocks. Of `restarts` it
     * is called again for the steps behind the checkpoint that the run goes on from. Ids and labels that the vocabulary
     * has not, or no label at all, end the run: -EINVAL. */
    enum eps_rows (*on_rows)(void *user, struct eps_step_rows *rows);
    void *rows_user;
    /* Called when on_rows asks for it, and after every weights_every steps (0: not): the weights are where the daemon
     * has them, without a copy, for a server that takes them after a step. They are those of a checkpoint of that step.
     * No step begins before it has returned; then what it was given is void: weights move, and change. No row of the
     * table, and not stored, as on_blocks. Not on several hosts. A server that asks for tensors in an order of its own:
     *
     *     static void update(void *user, const struct eps_weights *weights)
     *     {
     *         server_start(user, weights->step);
     *         for (const char *name; (name = server_next(user));)
     *             for (size_t i = 0; i < weights->n_tensors; i++)
     *                 if (strcmp(weights->tensors[i].name, name) == 0)
     *                     server_take(user, &weights->tensors[i]);
     *         server_finish(user);
     *     } */
    void (*on_weights)(void *user, const struct eps_weights *weights);
    void *weights_user;
    uint64_t weights_every;
    double label_smoothing; /* not of numbers or preferences; held-out losses are without it */
    const char *freeze;     /* globs on tensor names, "wte.weight,h.*.attn.*" */
    uint64_t freeze_until;  /* with freeze: steps after which these tensors are trained, too; unset: never */
    enum eps_base base;     /* form of frozen weights; full: that of precision */
    const char *lora;       /* "rank=16,alpha=32,targets=q_proj,v_proj": train adapters of the model alone */
    const char *base_model; /* of an adapter: the directory of its base; unset: the one that it names */
    const char *grow;       /* with resume: "4" or "4,moments=zero"; out must be set */
    const char *replace; /* with resume: "3=512,4=llama.json", "3=512,moments=zero"; out must be set; not with grow */
    const char *approximate; /* "wta=0.3,attention=0.3,coded=8", "pool=2"; unset: gradients are exact */
    const char *sparse;      /* "keep=0.3,every=100"; unset: all weights are trained. Not on several hosts */
    enum eps_commit commit;
    /* fp32 or bf16: what the four below are unless they are set; unset: fp32, but gradients travel in bf16 if weights
     * are in bf16. bf16: moments, if there are any, and gradients; no
     * master, of weights in 16 bits; sums, if there are any. */
    enum eps_number state;
    enum eps_number precision, grad_dtype;
    enum eps_moments moments; /* coded: 8 bits each in matrices of blocks; Adam's alone, of dense weights */
    enum eps_master master;   /* none: of weights in 16 bits */
    enum eps_number sums;     /* of a fenced commit: fp32 or bf16 */
    /* Unset: the fastest of those that `eps bench` has timed on the device; our kernels where it has not. But for
     * these, in bf16 on CUDA alone; other devices are left out. */
    enum eps_attention attention;

    enum eps_order order;
    double mask_fraction; /* must be unset for a model that predicts the next token */
    uint64_t seed;        /* below 2^63 */
    bool deterministic;

    uint64_t eval_every; /* 0: after the last step only; else also before the first step of a new run */
    /* Resolved: eval_every was left to choose. Stored beside it; no row of the table. */
    bool eval_chosen;
    uint64_t eval_tokens;
    uint32_t patience;                 /* 0: never */
    const char *trace;                 /* on a full disk the trace ends with a note, and training goes on */
    const char *tensorboard;           /* likewise */
    uint64_t sample_every;             /* steps between texts that continue sample_prompts (on_sample); 0: none */
    const char *const *sample_prompts; /* (n_sample_prompts) UTF-8 */
    size_t n_sample_prompts;
    bool verbose; /* on_note also explains what was chosen by default */

    uint32_t restarts;   /* not with trace, nor data from standard input */
    const char *device;  /* resolved: "cpu", "cuda", or "cpu and cuda" at a daemon with both */
    uint64_t device_mem; /* bytes for each private worker */
    uint64_t host_mem;   /* bytes for the job at the daemon */
    bool require_pinned;
    bool check_memory; /* weights, moments and gradients have sums, by which damage is found */
    uint32_t workers;
    uint64_t audit; /* steps from one audit of a part to the next; 0: none. Not on several hosts */
    const char *connect;
    double wait;
    const char *programs; /* directory of epsd and eps-worker; NULL: the calling program's, then libeps's, then PATH */
};
/* All options unset. */
struct eps_train_options eps_train_defaults(void);

/* Type of an option's value, and of its member. */
enum eps_option_kind {
    EPS_OPTION_HEADING,       /* no option, but a heading above those that follow */
    EPS_OPTION_FLAG,          /* bool */
    EPS_OPTION_TEXT,          /* const char * */
    EPS_OPTION_OPTIONAL_TEXT, /* the same; "-" if no word follows */
    EPS_OPTION_PATTERNS,      /* the same: one or more words, joined by commas */
    EPS_OPTION_TEXTS,         /* const char *const *, then size_t: one or more words and their number */
    EPS_OPTION_COUNT,         /* uint32_t, from 1 */
    EPS_OPTION_AUTO,          /* the same, or auto: 0 */
    EPS_OPTION_NUMBER_32,     /* uint32_t, from 0; UINT32_MAX: unset */
    EPS_OPTION_LONG,          /* uint64_t, from 1 */
    EPS_OPTION_NUMBER,        /* uint64_t, from 0; UINT64_MAX: unset */
    EPS_OPTION_BYTES,         /* uint64_t, as eps_parse_bytes takes it */
    EPS_OPTION_REAL,          /* double */
    EPS_OPTION_PAIR,          /* two doubles, as in 0.9,0.999 */
    EPS_OPTION_CHOICE         /* an enumeration: the number of the word in `value`, from 1 */
};

/* What a value does on resume that is not the stored one. */
enum eps_resume {
    EPS_RESUME_REFUSES,
    EPS_RESUME_CHANGES, /* refused, unless `change` names the option: then it counts from here on */
    EPS_RESUME_TAKES    /* it counts */
};

/* How a checkpoint's training.json says that an option is unset. If a key is missing, a choice is its first word, and
 * any other option is unset. */
enum eps_stored {
    EPS_STORED_SET,   /* by nothing: the option is always set, and its key is there */
    EPS_STORED_LATER, /* the same, but checkpoints older than the option lack the key */
    EPS_STORED_NULL,  /* null; older checkpoints lack the key */
    EPS_STORED_ABSENT /* no key */
};

/* What a row teaches, or is measured by: bits, as several go with an option. */
enum eps_tasks {
    EPS_OF_TEXT = 1,          /* the next token of a stream of text */
    EPS_OF_MASKED = 2,        /* masked tokens of such a stream */
    EPS_OF_SPANS = 4,         /* masked spans of it */
    EPS_OF_CONVERSATIONS = 8, /* a document each, or packed */
    EPS_OF_PREFERENCES = 16,
    EPS_OF_TARGETS = 32,     /* a source and its target */
    EPS_OF_LABELS = 64,      /* texts with a class or a number */
    EPS_OF_IMAGES = 128,     /* with classes */
    EPS_OF_HYPOTHESES = 256, /* of eps_eval with bleu: targets that are written */
    EPS_OF_ALL = 0x3FFFFFFF,
    EPS_OF_DOCUMENTS = 0x40000000 /* stands for all of these tasks whose rows are documents of their own */
};

/* A task of a run. All is static. */
struct eps_task_facts {
    unsigned task;          /* one of enum eps_tasks */
    const char *key, *name; /* "spans", "masked spans" */
    const char *use;        /* the command that uses what was learned: "generate", "chat" or "eval" */
    const char *perplexity; /* what exp of its loss is called; NULL: the loss is no mean of -log p of tokens */
};
/* The i-th task, what is more general first; NULL: there are no more. */
const struct eps_task_facts *eps_task_at(size_t i);
/* One of enum eps_tasks; NULL: it is no task of a run. */
const struct eps_task_facts *eps_task_facts(unsigned task);

/* Commands that have options of the table, each with a struct of its own; eps plan has that of eps train. */
enum eps_command {
    EPS_COMMAND_TRAIN,
    EPS_COMMAND_PLAN,
    EPS_COMMAND_DATA,
    EPS_COMMAND_EVAL,
    EPS_COMMAND_GENERATE,
    EPS_COMMAND_CHAT,
    EPS_COMMAND_EXPORT,
    EPS_COMMANDS
};

/* An option of a command other than eps train and eps plan. */
struct eps_option_column {
    size_t offset;    /* of its member in the command's struct */
    unsigned tasks;   /* of enum eps_tasks that it goes with there; 0: as in eps train */
    const char *help; /* NULL: the command does not have the option; "": as in the command before */
};

/* A row of the table. */
struct eps_option {
    const char *name;  /* "--min-lr"; the key in training.json is min_lr */
    const char *value; /* its value in the help: "N"; of a choice its words, "cosine|linear|constant"; NULL: a flag */
    enum eps_option_kind kind;
    size_t offset;  /* of its member in struct eps_train_options */
    unsigned tasks; /* of enum eps_tasks that it goes with: of a run of others it is refused; 0: all */
    /* Position of its key in training.json, from 1, so that files stay comparable byte by byte: a new option takes the
     * next number. 0: it is not stored, or not with the others (model, data, eval_data). */
    unsigned key;
    enum eps_stored stored;
    enum eps_resume resume;
    /* Help in eps train and in eps plan, with the default in words; NULL: that command does not have the option. Of a
     * heading: its text. */
    const char *train, *plan;
    struct eps_option_column columns[EPS_COMMANDS];
};

/* All (*n) options in the order of the help. Constant. */
const struct eps_option *eps_options(size_t *n);

/* The row as it is for a command: offset, tasks with those that EPS_OF_DOCUMENTS stands for and, in `train`, the help.
 * False: its struct has no such member. */
bool eps_option_of(struct eps_option *out, const struct eps_option *row, enum eps_command command);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
