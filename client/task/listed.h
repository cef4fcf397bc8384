/* client/task/listed.h - rows that are samples of a list, in minibatches as of client/order/batches.h: the order of
 * answers.c, preferences.c, targets.c, labelled.c and images.c, whose rows begin with struct client_listed.
 *
 * Samples that a line made stay together: a tenth of the lines is held out, unless there are data for that. */
#ifndef CLIENT_TASK_LISTED_H
#define CLIENT_TASK_LISTED_H

#include "client/corpus/corpus.h"
#include "client/order/batches.h"
#include "client/task/source.h"

/* What the order asks of the task. */
struct client_listed_ops {
    const char *what;   /* names a row in a sentence: "conversation" */
    const char *reader; /* in the sentence "READER a tokenizer" (client_tokenizer_require); NULL: none is needed */
    unsigned group;     /* samples behind each other that are one: 2 of preferences; else 1 */
    const char *const *sides; /* (group) what a group's samples are called; NULL: it has one sample */
    bool flows;               /* an epoch's last step has the next one's first rows */
    bool by_tokens;           /* reports of progress, and --eval-tokens, are of tokens; else of groups */

    /* Tokens of sample k of these data, uncut. */
    uint32_t (*length)(const struct client_source *source, enum client_part data, size_t k);

    /* What becomes of sample k. NULL: it is kept. */
    enum eps_fate (*find_fate)(const struct client_source *source, enum client_part data, size_t k,
                               enum eps_long long_rows);
    /* Refuses sample k for its length, which --long refuse asks for: -EINVAL with a sentence, or 0: it is not too long.
     * NULL as find_fate. */
    int (*refuse)(const struct client_source *source, enum client_part data, size_t k, struct error *err);
    /* All are dropped: "no conversation has an answer within --seq 8". NULL as find_fate. */
    const char *none;

    /* Tokens of sample k that a row has of it; where group is 1 alone. NULL: length, at most seq. */
    uint32_t (*count)(const struct client_source *source, enum client_part data, size_t k);

    /* The shortest row, at most seq, with room for all of these samples. NULL: count's largest. */
    uint32_t (*room)(const struct client_source *source, enum client_part data, const struct client_sample *samples,
                     uint32_t n);
};

struct client_listed {
    struct client_source source;
    const struct client_listed_ops *ops; /* set by the task's open */
    struct client_tokenizer *tokenizer;  /* until all is read */
    struct client_corpus corpus[2];      /* of data and of eval_data, by enum client_part; either may be empty */
    size_t n[2];                         /* samples of each; set by the task's read */
    uint32_t n_added;                    /* entries of each beside its tokens in the corpus; likewise */
    uint32_t *lengths[2];                /* (n / group) of each group's longest sample, uncut; owned */
    size_t fates[EPS_UNANSWERED + 1];    /* groups of data, or without them of eval_data, of each fate */
    struct client_subset subsets[2];     /* groups to train on, and held out, by enum client_part */
    struct client_share *shares;         /* (n_shares) of those to train on, a file's each; owned */
    size_t n_shares;
    struct client_batches batches; /* of those to train on */
    uint32_t n_held_out;           /* of the groups held out, those that are evaluated */
    uint32_t seq;                  /* set by the task's settle, if it has find_fate */
    uint32_t *work;                /* the task's room for tokens of a row: client_listed_make_work; owned */
};

extern const struct client_order client_listed_order;

/* Opens the tokenizer, which has the tokens of both of the model's vocabularies. Errors as client_tokenizer_require. */
int client_listed_open(struct client_source *source, const struct client_listed_ops *ops, struct error *err);

/* Closes the tokenizer after the last part that has data, and takes over what its corpus says of n and hash. */
void client_listed_has_read(struct client_source *source, enum client_part part);

/* Settles which samples are rows, and which of them are held out. -EINVAL with a sentence that names the part; -ENOMEM. */
int client_listed_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err);

/* The data that a part's rows are of: held-out rows may be of those to train on. */
enum client_part client_listed_data(const struct client_source *source, enum client_part part);

/* Tokens of the longest sample of all data, uncut. */
uint32_t client_listed_longest(const struct client_source *source);

/* What a list of rows is, in facts: whole, flows, n_rows, longest, least 1. */
void client_listed_measure(struct client_source_facts *out, const struct client_source *source);

/* Room for n tokens, once: -ENOMEM. */
int client_listed_make_work(struct client_source *source, size_t n, struct error *err);

/* The numbers of a label for each row held out, in the order of their evaluation: client_score_classes takes them.
 * Owned; NULL with a sentence: no memory. */
uint32_t *client_listed_targets(const struct client_source *source,
                                uint32_t (*label)(const struct client_source *source, enum client_part data, size_t k),
                                struct error *err);

#endif
