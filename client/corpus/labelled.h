/* client/corpus/labelled.h - labelled rows from files: one text or two, and a label.
 *
 * A file named .jsonl (or .ndjson) has an object in each line. Any other is TSV: fields separated by tabs, without
 * quoting, as GLUE's files are; a field in quotes keeps them, and is counted (client/data/unread.h). Its first line
 * names the columns, unless `columns` has numbers. Each may be compressed (data.h).
 *
 * The columns are those in `columns`: "text,label" or "first,second,label"; without it, known names of GLUE's files:
 * text and text_pair, sentence1 and sentence2, question1 and question2, premise and hypothesis, question and sentence,
 * sentence; and label, gold_label, is_duplicate or score.
 *
 * An empty text is a text: its row has the special tokens alone. So is an empty line after the first in TSV of one
 * column; in other files empty lines are passed over. Rows that are to be predicted may lack a label: the column is
 * missing, or the label is empty, null, or, for a classifier without a class of this name, the -1 of GLUE's test files.
 *
 * Texts are tokenised once, into a nameless file. A row takes 28 bytes of memory beside that. */
#ifndef CLIENT_CORPUS_LABELLED_H
#define CLIENT_CORPUS_LABELLED_H

#include "client/data/data.h"
#include "client/corpus/labels.h"
#include "client/corpus/pairs.h"

struct client_row {
    uint64_t at;    /* the first text's first token in the file; the second text follows */
    uint32_t n[2];  /* tokens of the texts */
    uint32_t label; /* a class, the bits of a number, or PLAN_NO_LABEL */
    uint32_t is_paired;
};

struct client_rows {
    struct client_row *list; /* (n), owned */
    uint32_t *lengths;       /* (n) tokens of each, special ones included; owned */
    size_t n, cap;
    int fd; /* tokens, u32 */
    struct client_pairs pairs;
    uint64_t n_tokens; /* of all texts */
    uint64_t hash;     /* xxh3, 64 bits, over tokens, lengths and labels of all rows */
    bool labelled;
};

struct client_rows_rules {
    struct client_tokenizer *tokenizer; /* borrowed for the call */
    const char *columns;                /* NULL: known names */
    bool unlabelled;                    /* rows need no label */
    const struct client_watch *watch;   /* as in client_data_rules */
};

/* Reads every row of the files (client_data_open_rows); adds to labels, or finds the rows' there if they are fixed, and
 * sorts them. Returns -EINVAL, -EDOM (columns) or -errno with a sentence that begins with the file and the line: a
 * column is missing, a line has too few or too many fields, a row has no token, a label is none, or the first line is
 * one of names where columns are numbers. Undo: client_rows_free, also after a failure. */
int client_rows_read(struct client_rows *out, struct client_data *data, struct client_labels *labels,
                     const struct client_rows_rules *rules, struct error *err);
void client_rows_free(struct client_rows *rows); /* safe on a zeroed struct whose fd is -1 */

/* Tokens of row k, special ones included, when it is cut to seq. */
uint32_t client_rows_length(const struct client_rows *rows, size_t k, uint32_t seq);

/* Reads row k: ids (seq), and the first token of segment 1 as client_pairs_write. Returns its length, or -errno. work
 * (2 * seq) is the caller's. */
int64_t client_rows_get(const struct client_rows *rows, uint32_t *ids, uint32_t *second, uint32_t *work, size_t k,
                        uint32_t seq, struct error *err);

/* Tokens of the longest row, uncut. */
uint32_t client_rows_longest(const struct client_rows *rows);

/* Rows that are longer than seq. */
size_t client_rows_n_cut(const struct client_rows *rows, uint32_t seq);

/* The least seq that every row has room in for one token of each text. */
uint32_t client_rows_least(const struct client_rows *rows);

#endif
