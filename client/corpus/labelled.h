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
 * The parts of a sample (struct client_example) are its texts. The checksum covers tokens, lengths and labels. */
#ifndef CLIENT_CORPUS_LABELLED_H
#define CLIENT_CORPUS_LABELLED_H

#include "client/corpus/corpus.h"
#include "client/corpus/labels.h"
#include "client/corpus/pairs.h"

struct client_labelled_rules {
    struct client_tokenizer *tokenizer; /* borrowed for the call */
    const char *columns;                /* NULL: known names */
    bool unlabelled;                    /* rows need no label */
    const struct client_watch *watch;   /* as in client_data_rules */
};

/* Reads every row of the files (client_data_open_rows); adds to labels, or finds the rows' there if they are fixed, and
 * sorts them. *pairs becomes what the tokenizer puts around texts. Returns -EINVAL, -EDOM (columns) or -errno with a sentence that begins with the file and the line: a
 * column is missing, a line has too few or too many fields, a row has no token, a label is none, or the first line is
 * one of names where columns are numbers. Undo: client_corpus_free, also after a failure. */
int client_labelled_read(struct client_corpus *out, struct client_pairs *pairs, struct client_data *data,
                         struct client_labels *labels, const struct client_labelled_rules *rules, struct error *err);

/* Tokens of row k, special ones included. */
uint32_t client_labelled_length(const struct client_corpus *rows, const struct client_pairs *pairs, size_t k);

/* Reads row k: ids (seq), and the first token of segment 1 as client_pairs_write. Returns its length, or -errno. work
 * (2 * seq) is the caller's. */
int64_t client_labelled_get(const struct client_corpus *rows, const struct client_pairs *pairs, uint32_t *ids,
                            uint32_t *second, uint32_t *work, size_t k, uint32_t seq, struct error *err);

/* The least seq that every row has room in for one token of each text. */
uint32_t client_labelled_least(const struct client_corpus *rows, const struct client_pairs *pairs);

#endif
