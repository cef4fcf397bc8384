/* client/task/source.h - the rows of a run: what is learned from them, and which of them a step has.
 *
 *   task           a row is                                    its fields               file, order
 *   text           a window of a stream of tokens              ids, labels              next_token, windows
 *   masked         the same, with some of its tokens masked    ids, labels              masked, windows
 *   spans          the same, of which runs are restored        ids, labels, rows        span_corruption, windows
 *   labelled       one text or two, with a class or a number   ids, labels, rows        labelled, list
 *   conversations  a document (client/corpus/documents.h)      ids, labels              answers, list
 *   packed         several documents                           ids, labels, positions   answers, packed
 *   preferences    one of two texts, one of which was chosen   ids, labels, references  preferences, list
 *   targets        a source and its target                     ids, labels, rows        targets, list
 *   images         an image: a token for each pixel            ids, labels, rows        images, list
 *
 * A task is a row of functions in a file of client/task/, which also says what options, commands and plans ask of the
 * task. A new one adds its file, its name in CLIENT_TASKS, and its bit in enum eps_tasks, by which programs that use the
 * library know it. Which rows a step has is the order's, which several tasks share: windows of a stream (windowed.h),
 * minibatches of a list (listed.h), packed rows (packed.h). A source whose rows have positions makes its jobs packed: a
 * row is several documents, and positions begin at 0 in each (struct plan_data, proto/plan/memory/data.h).
 *
 * All data are read once, rows are divided into those to train on and those held out, and then a row's fields are
 * written by the row's sample. Which samples a step has depends on the division and the step alone, so a run resumes
 * where it stopped. The model decides which task it takes: client_source_kind.
 *
 * Calls come in the order below, from one thread. */
#ifndef CLIENT_TASK_SOURCE_H
#define CLIENT_TASK_SOURCE_H

#include "client/corpus/documents.h"
#include "client/data/data.h"
#include "client/eps.h"
#include "client/order/sample.h"
#include "client/corpus/labels.h"
#include "client/task/score.h"
#include "proto/base/error.h"
#include "proto/model/model.h"
#include "proto/plan/memory/data.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Fields of rows (enum plan_field) ---- */

/* Each token of the training data has an entry: its index in the data as a whole, which no order, packing or batch
 * changes. Daemons remember norms of gradients by it (proto/model/norms.h). Padding has PLAN_NO_ENTRY. */

/* Room for a minibatch; borrowed. */
struct client_buffer {
    void *at[PLAN_FIELDS]; /* NULL: it has no room for this field: entries, as nothing is remembered by them, or one
                              * that the source has not */
    uint32_t n_rows, seq;  /* the room: rows, and tokens of each */
};

/* The fields of one row, in a buffer. */
struct client_row_fields {
    void *at[PLAN_FIELDS]; /* NULL where the source has none; of held-out rows nobody wants entries */
    uint32_t n_tokens;     /* of each row of the minibatch */
};

/* Has tokens from .. from+n-1 of a row the entries first .. first+n-1, if entries are wanted. */
void client_row_number(const struct client_row_fields *row, uint32_t from, uint64_t first, uint32_t n);

/* A minibatch in a buffer. */
struct client_minibatch {
    uint32_t n_tokens; /* of each row */
    uint64_t n_valid;  /* that count; of pairs of texts, the pairs */
};

/* ---- Sources ---- */

/* What a source takes from the model and where its data are. All borrowed; labels are taken over, also by a failure,
 * and eval_data may have no files. */
struct client_source_setup {
    const struct model_config *config;    /* n_labels is read when rows are divided, as labels decide it */
    const json_t *side;                   /* proto/model/file/model_files.h; may be NULL */
    struct client_labels *labels;         /* of a classifier, else NULL */
    struct client_data *data, *eval_data; /* opened later; data is NULL if nothing is trained */
};

struct client_source_rules {
    enum eps_separator separator;        /* as in client_data_rules */
    const char *columns;                 /* as in client_labelled_rules */
    bool unlabelled;                     /* as in client_labelled_rules */
    const char *chat_template;           /* of conversations, as are those below: as in client_documents_rules */
    enum eps_train_on train_on;          /* default: answers */
    enum eps_split split_special_tokens; /* default: yes */
    enum eps_long long_rows;             /* default: cut */
    uint32_t seq, source_seq;            /* 0: as in client_source_facts */
    double mask_fraction;                /* of spans */
    uint64_t seed;                       /* that held-out rows are drawn by, and packed ones */
    enum eps_order order;                /* of packed rows; default: shuffled */
    const char *image, *augment;         /* of images: client/images/view.h */
    unsigned n_threads;                  /* that read images; 0: client_pieces_threads */
    const struct client_watch *watch;    /* may be NULL */
};

/* What options depend on before the rows are divided. */
struct client_source_facts {
    bool masked;        /* a row predicts tokens of its own, not successors */
    bool pairs;         /* two rows, one behind the other, are a pair of texts */
    bool whole;         /* rows are as they come; else they are cut from a stream of tokens, and the rest is 0 */
    bool flows;         /* each step has all its rows, from the next epoch if need be; else an epoch's last has fewer */
    enum eps_task task; /* EPS_TASK_DEFAULT: they predict tokens */
    uint32_t seq;       /* to be chosen if no other is asked for; 0: the longest row's */
    uint32_t source;    /* tokens of it that are a source; 0: there is none */
    uint32_t n_rows;    /* to train on */
    uint32_t n_held_out;
    uint32_t longest; /* tokens of the longest row */
    uint32_t least;   /* the least seq that all rows have room in */
};

/* How rows are divided. All are resolved options. */
struct client_division {
    uint32_t batch, part; /* rows of a step, 0 if nothing is trained; of one of its parts, 0: all */
    uint32_t seq, stride; /* stride: client_windows_held_out */
    enum eps_order order;
    uint64_t seed;
    uint64_t n_train;     /* tokens of data that are trained on: the others are held out, unless there are eval_data */
    uint64_t eval_tokens; /* that an evaluation predicts at most, spread evenly; 0: all */
    double mask_fraction;
    double beta; /* of preferences: struct preference */
};

struct client_source {
    const struct client_source_ops *ops;
    struct client_source_setup setup;     /* without labels */
    struct client_labels labels;          /* of a classifier's rows */
    uint32_t seq;                         /* most tokens of a row, once they are divided */
    uint32_t batch;                       /* client_source_make_room */
    struct client_sample *samples;        /* (batch) of the minibatch that is filled; owned */
    struct client_row_fields *fields;     /* (batch) likewise */
    uint32_t row_tokens[PLAN_ROW_TOKENS]; /* client_batches_measure, once rows are divided; zeros: all are as long */
    /* Results of the last evaluation: */
    float *logits; /* (n_rows of CLIENT_HELD_OUT, n_logits) in the order of evaluation, owned; NULL: there are none */
    uint32_t n_logits;           /* of a row */
    struct client_scores scores; /* beside the loss */
    /* Log p that the reference model gives each text of preferences, of data (n_references[CLIENT_TRAIN]), then of
     * eval_data; owned; NULL: other rows. Whoever trains sets them before the first step. */
    float *references;
    uint32_t n_references[2];
};

/* Which samples a step has, and which are evaluated. Every member is required, but init and close. */
struct client_order {
    void (*init)(struct client_source *source); /* makes what is zeroed safe to close */
    bool fixes_batch; /* a step's rows depend on every step's batch: it cannot be changed in a run */

    /* Divides the rows, once, as client_source_divide says; source->seq is set. */
    int (*divide)(struct client_source *source, const struct client_division *division, struct error *err);

    /* As client_source_n_rows, and so on. */
    uint64_t (*n_rows)(const struct client_source *source, enum client_part part);
    uint64_t (*n_entries)(const struct client_source *source);
    uint64_t (*tokens)(struct client_source *source, uint64_t step, uint64_t n_before);
    uint32_t (*pick)(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before);
    struct client_sample (*pick_held_out)(const struct client_source *source, uint64_t k);
    uint64_t (*progress)(const struct client_source *source, uint64_t n);

    /* Length to which the rows of a minibatch are padded: at most seq. */
    uint32_t (*length)(const struct client_source *source, enum client_part part, const struct client_sample *samples,
                       uint32_t n);

    void (*close)(struct client_source *source); /* frees what the order owns */
};

/* A task. Every member is required, unless it says otherwise. */
struct client_source_ops {
    struct eps_task_facts facts;
    const struct client_order *order;
    size_t bytes;    /* of its struct, which begins with the order's, which begins with struct client_source */
    unsigned fields; /* 1u << enum plan_field of each that its rows have */

    /* Whether models of this family learn such rows, some of them at least. */
    bool (*learns)(const struct family *family);
    /* Whether rows for this model are such, whatever the data: client_source_kind. NULL: the data say it. */
    bool (*takes)(const struct model_config *config, double mask_fraction);
    /* Whether such an object, in the first line of some .jsonl file, makes a text model's rows such ones. NULL: none
     * does. */
    bool (*has_line)(const json_t *line);
    const struct client_source_ops *packing; /* several of these rows in one; NULL: none is */
    bool masks;                              /* --mask-fraction says how much is learned */
    bool compares;                           /* with the weights that a run began from: there are references */
    bool labels;                             /* what is learned are labels of whole rows: client_source_labels */

    /* What is said of an option that it does not take, unless client/options/tasks.c has a sentence for that option or
     * command: a format of the option's name, and then its value. */
    const char *refusal;
    /* A model of text may be asked for its options, and only the data show what is to be said of them. */
    bool refused_late;

    /* Opens what the rows need of the model, before any data are read. NULL: nothing. -EINVAL with a sentence: the
     * model lacks it; and as client_tokenizer_open. close follows, also after a failure. */
    int (*open)(struct client_source *source, struct error *err);

    /* Opens files that hold such rows: client_data_open, or another one with its contract. */
    int (*open_files)(struct client_data *out, const char *const *names, size_t n_names, struct error *err);

    /* Reads and checks all data of a part, once. Blocks for as long as that takes; the watch can interrupt. Sets n and
     * hash of the data. -EINVAL, -EDOM, -EINTR or -errno with a sentence. */
    int (*read)(struct client_source *source, enum client_part part, const struct client_source_rules *rules,
                struct error *err);

    /* Settles which rows there are, once all parts are read: client_source_settle. NULL: all that were read. -EINVAL,
     * -ENOMEM, with a sentence that names the part. */
    int (*settle)(struct client_source *source, const struct client_source_rules *rules, struct error *err);

    /* What is known then; of what it does not set all is 0. Cannot fail. NULL: nothing. */
    void (*measure)(struct client_source_facts *out, const struct client_source *source);

    /* Prepares reading rows, once they are divided. NULL: there is nothing to prepare. -EINVAL, -ENOMEM. */
    int (*divide)(struct client_source *source, const struct client_division *division, struct error *err);

    /* Describes the division, "900 rows, 100 held out". Cut to fit. NULL: there is nothing to say. */
    void (*describe)(char *out, size_t cap, const struct client_source *source);

    /* Writes the fields of a row, which are empty. What it leaves is padding. -EIO if the data have changed; -errno. */
    int (*read_row)(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err);

    /* Writes the fields of n rows as read_row does, on threads of its own. NULL: read_row does it, one by one. Returns
     * the error of the first row that cannot be read. */
    int (*read_rows)(struct client_source *source, const struct client_row_fields *rows, enum client_part part,
                     const struct client_sample *samples, uint32_t n, struct error *err);

    /* Judges an evaluation of all held-out rows: sets source->scores by source->logits, and withdraws a loss that would
     * mislead (*loss NAN, *n_valid 0). n_valid: labels that the loss is the mean of. -EINVAL: there were none;
     * -ENOMEM. */
    int (*score)(struct client_source *source, double *loss, uint64_t *n_valid, struct error *err);

    /* After an evaluation (score): tells of each class its rows held out, and how many of them were predicted. NULL:
     * there is nothing to tell. -ENOMEM. */
    int (*tell_classes)(const struct client_source *source,
                        void (*tell)(void *user, const char *name, uint64_t n_rows, uint64_t n_right), void *user,
                        struct error *err);

    void (*close)(struct client_source *source); /* frees what the task owns, even if it is half open; NULL: nothing */
};

/* All tasks. The first that takes a model's rows, or the first line of documents, has them: what is more particular
 * comes first. */
#define CLIENT_TASKS(of)                                                                                               \
    of##images, of##labelled, of##spans, of##targets, of##masked, of##preferences, of##conversations, of##text
extern const struct client_source_ops CLIENT_TASKS(client_source_), client_source_packed;

/* Opens rows of this task. *out is owned: client_source_close. Errors as ops->open; -ENOMEM. On failure *out is
 * NULL. */
int client_source_open(struct client_source **out, const struct client_source_ops *ops,
                       const struct client_source_setup *setup, struct error *err);

/* The task of a model's rows, if they are not documents. mask_fraction: of an encoder-decoder, above 0: it restores
 * spans. */
const struct client_source_ops *client_source_kind(const struct model_config *config, double mask_fraction);

/* Finds the kind of source once the files are open: if a model predicts the next token, either of the data may have
 * documents (client/corpus/documents.h); eval_data may be NULL. Unpacks them. Errors as client_documents_ask. */
int client_source_find_kind(const struct client_source_ops **out, const struct model_config *config,
                            double mask_fraction, struct client_data *data, struct client_data *eval_data,
                            const struct client_watch *watch, struct error *err);

/* The task of data that are documents, if they are; else *out stays. Unpacks them. Errors as client_documents_ask. */
int client_source_find_documents(const struct client_source_ops **out, struct client_data *data,
                                 const struct client_watch *watch, struct error *err);

/* Tasks (enum eps_tasks) that rows may have while the data are not read: a model of text may be given documents. Those
 * are among them whose options are refused late. */
unsigned client_source_tasks(const struct client_source_ops *kind);

/* The same of a plan, which reads no data: with a reference to compare with, or without one. */
unsigned client_source_planned(const struct client_source_ops *kind, bool compares);

/* Tasks that a family's models learn. */
unsigned client_source_learned(const struct family *family);

/* True if the family's models predict the next token of a text. */
bool client_source_predicts_next(const struct family *family);

/* A set of enum eps_tasks, and for EPS_OF_DOCUMENTS in it all tasks of documents. */
unsigned client_source_expand(unsigned tasks);

/* The sentence for an option that none of these tasks takes: ops->refusal of the first of them. NULL: there is none of
 * them. */
const char *client_source_refusal(unsigned tasks);

/* Fields of the rows of a task (one of enum eps_tasks); 0: it is none. */
unsigned client_source_fields(unsigned task);

/* The kind whose rows are several of this kind's, if it has one; else the kind itself, which refuses --pack. */
const struct client_source_ops *client_source_pack(const struct client_source_ops *kind);

/* Sets what of a goal follows from the fields of its rows (struct client_source_ops): packs, weighted. */
void client_source_ask(struct plan_goal *goal, unsigned fields);

/* True if its rows are several documents each. */
bool client_source_packs(const struct client_source *source);

/* Refuses a model whose rows cannot be several documents: it restores masked tokens, or as plan_check_packs. -EDOM with
 * a sentence. */
int client_source_check_packs(const struct model *model, struct error *err);

/* Puts an option in front of the sentence about what it names, but of misuse (-EDOM), which names its own, and of an
 * interruption. Returns rc. */
int client_source_prefixed(int rc, const char *option, struct error *err);

/* Where a part's data are; NULL: nothing is trained. */
struct client_data *client_source_data(const struct client_source *source, enum client_part part);

/* The labels of its rows; NULL: they are tokens. */
const struct client_labels *client_source_labels(const struct client_source *source);

/* Reads a part; one without files does nothing. Errors as ops->read. */
int client_source_read_part(struct client_source *source, enum client_part part,
                            const struct client_source_rules *rules, struct error *err);

/* Reads all parts and settles the rows: read and settle. A sentence about a part's data begins with its option:
 * client_source_prefixed. */
int client_source_read(struct client_source *source, const struct client_source_rules *rules, struct error *err);
int client_source_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err);

struct client_source_facts client_source_measure(const struct client_source *source);

/* Divides the rows, once, and makes room for an evaluation's logits. Without eval_data some of data are held out.
 * -EINVAL: too few rows; -ENOMEM. */
int client_source_divide(struct client_source *source, const struct client_division *division, struct error *err);

void client_source_describe(char *out, size_t cap, const struct client_source *source); /* as ops->describe */

/* Rows of a part; an epoch's, of those to train on. */
uint64_t client_source_n_rows(const struct client_source *source, enum client_part part);

/* Entries that rows to train on may have, all below this number, once all parts are read. */
uint64_t client_source_n_entries(const struct client_source *source);

/* Tokens, without padding, of all steps before `step` (from 0). n_before: rows before it, if all minibatches are
 * full. */
uint64_t client_source_n_tokens(struct client_source *source, uint64_t step, uint64_t n_before);

/* The samples (batch) of a step, which begins with row n_before of the run. Returns how many: at most batch, at least
 * one. */
uint32_t client_source_pick(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before);

/* The held-out sample that is evaluated at place k. */
struct client_sample client_source_pick_held_out(const struct client_source *source, uint64_t k);

/* What the first n held-out rows count in reports of progress: tokens that they predict, or rows. */
uint64_t client_source_progress(const struct client_source *source, uint64_t n);

/* Makes room for minibatches of up to `batch` rows, which fill then takes. -ENOMEM. */
int client_source_make_room(struct client_source *source, uint32_t batch, struct error *err);

/* Writes the rows of a step, or held-out rows first .. first+n-1, into a buffer; its other rows become empty ones.
 * Errors as read_row. */
int client_source_fill(struct client_minibatch *out, const struct client_buffer *buffer, struct client_source *source,
                       uint64_t step, uint64_t n_before, struct error *err);
int client_source_fill_held_out(struct client_minibatch *out, const struct client_buffer *buffer,
                                struct client_source *source, uint64_t first, uint32_t n, struct error *err);

/* As client_source_fill_held_out, of the rows whose references are first .. first+n-1: all of one part. */
int client_source_fill_referenced(struct client_minibatch *out, const struct client_buffer *buffer,
                                  struct client_source *source, uint32_t first, uint32_t n, struct error *err);

void client_source_close(struct client_source *source); /* safe on NULL */

#endif
