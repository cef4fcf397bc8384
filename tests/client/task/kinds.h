/* tests/client/task/kinds.h - sources of rows, one of each kind, over files of a few rows. */
#ifndef TESTS_CLIENT_TASK_KINDS_H
#define TESTS_CLIENT_TASK_KINDS_H

#include "client/task/source.h"

/* 40 ids, of which each window of 4 has the special one 2 ([CLS]) first; 15 rows of one to five letters, which are a
 * token each, between two special ones. */
enum { N_IDS = 40, N_ROWS = 15, BATCH = 3, SEQ = 4, LONG = 8, VOCABULARY = 400, CLS = 2, KINDS = 3 };
extern const struct client_source_ops *const kinds[KINDS]; /* of text, masked, labelled */
extern const char *const kinds_files[KINDS];
extern const uint32_t kinds_seqs[KINDS];
extern struct model_config kinds_config; /* the model's */

/* Writes the files into a directory of the test's own; and removes it. */
void kinds_setup(void);
void kinds_teardown(void);

/* A source of a kind, and its data. */
struct kinds_opened {
    struct client_data data, eval_data;
    struct client_source *source;
};

/* trains: data are trained on, and some held out; else all are held out. *o must not move: the source borrows its data.
 * Returns what reading did. Undo: kinds_close, also after a failure. */
int kinds_try_open(struct kinds_opened *o, int kind, const char *file, bool trains,
                   const struct client_source_rules *rules, struct error *err);
void kinds_divide(const struct kinds_opened *o, int kind, double mask_fraction);

/* Both, with the kind's file; half of the tokens are masked. Asserts. */
void kinds_open(struct kinds_opened *o, int kind, bool trains);
void kinds_close(struct kinds_opened *o);

/* Memory of a minibatch, with words around each field that nobody may touch. */
enum { ROOM = 2 + BATCH * LONG, GUARD = 77777 };
struct kinds_memory {
    uint32_t at[PLAN_FIELDS][ROOM];
};
struct client_buffer kinds_guarded(struct kinds_memory *m, uint32_t seq);

#endif
