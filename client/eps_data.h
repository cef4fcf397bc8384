/* client/eps_data.h - what a model sees of training data: tokens, what is trained of them, borders, and counts.
 *
 * Included by eps.h. */
#ifndef CLIENT_EPS_DATA_H
#define CLIENT_EPS_DATA_H

#include "eps_options.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default) /* exported by libeps.so */

struct eps_error; /* eps.h */

/* Rows of tokens, and which of them the model is trained to predict. The data are conversations, or texts for a model
 * that predicts the next token; or images, of which there are facts, and which need no model. Start from
 * eps_data_defaults(), and set data, and model or images. */
struct eps_data_options {
    const char *model;       /* a directory; weights are not read */
    const char *base_model;  /* of an adapter, as in eps_train_options, as are those below */
    const char *const *data; /* (n_data) */
    size_t n_data;
    uint32_t seq; /* 0: chosen */
    const char *chat_template;
    enum eps_train_on train_on;
    enum eps_split split_special_tokens;
    enum eps_long long_rows;
    enum eps_separator separator;
    bool pack;             /* shows the rows that eps_train with these options has, in the order of its first epoch */
    bool images;           /* goes with image, eval_data and seed alone */
    const char *image;     /* with images: as in eps_train_options */
    const char *eval_data; /* with pack or images: if there are none, a tenth of the data is held out */
    enum eps_order order;  /* with pack */
    uint64_t seed;         /* with pack or images */
    uint64_t limit;        /* not with images: rows that on_row gets, UINT64_MAX: 10; all are counted */
};
struct eps_data_options eps_data_defaults(void); /* all options unset */

enum eps_fate {
    EPS_KEPT,
    EPS_CUT,       /* it has more tokens than are seen */
    EPS_DROPPED,   /* as long_rows says */
    EPS_UNANSWERED /* dropped, as no token that is seen is trained */
};

struct eps_data_token {
    uint32_t id;
    bool trained;
    const char *text; /* (n) bytes, not terminated: of the text for byte-level tokens, else as in the vocabulary */
    size_t n;
};

/* One of several in a packed row. */
struct eps_data_document {
    const char *path;   /* the file */
    uint64_t line;      /* in the file, from 1 */
    enum eps_fate fate; /* EPS_KEPT or EPS_CUT */
    size_t n;           /* tokens that are seen, of which the last is predicted alone: n - 1 take room in the row */
};

struct eps_data_row {
    uint64_t number;  /* from 1, over all files */
    const char *path; /* of a conversation the file; else "" */
    uint64_t line;    /* and the line, from 1; else 0 */
    const char *side; /* of a preference "chosen" or "rejected"; else NULL */
    enum eps_fate fate;
    const struct eps_data_token *tokens; /* (n), also those that are not seen */
    size_t n;
    size_t n_seen; /* the last of them is predicted alone; 0: the row is dropped */
    /* (n_documents) of a packed row, one behind the other: none attends to another, and positions begin at 0 in
     * each. */
    const struct eps_data_document *documents;
    size_t n_documents; /* 0: the row is not packed */
};

enum { EPS_DATA_QUANTILES = 4, EPS_DATA_CHANNELS = 3 };

/* Facts of images. Means and deviations are of the rows to train on, from 0 (black) to 1, as an evaluation sees
 * them. */
struct eps_data_images {
    uint64_t n, n_held_out; /* to train on; held out */
    uint32_t n_classes;
    uint32_t height, width;                                       /* of a row */
    uint32_t channels;                                            /* 1: all are grey; 3: red, green, blue */
    uint32_t least_height, least_width;                           /* of any image */
    uint32_t most_height, most_width;                             /* of any image */
    double mean[EPS_DATA_CHANNELS], deviation[EPS_DATA_CHANNELS]; /* of each channel */
};

struct eps_data_counts {
    unsigned teaches;         /* what the rows teach, one of enum eps_tasks; of images 0 */
    bool conversations;       /* else windows of a stream of text */
    bool preferences;         /* the conversations are; a preference is two rows */
    uint32_t seq;             /* resolved */
    uint64_t n_lines, n_rows; /* a conversation may make several rows */
    uint64_t n_documents;     /* in packed rows: of the data, as often as an epoch takes each */
    char packing[200];        /* what eps_train says of packed rows; or empty */
    uint64_t n_spelled;       /* special tokens that messages spell, which are split like any text */
    uint64_t n_cut, n_dropped, n_unanswered;
    uint64_t n_tokens, n_trained;           /* of rows that are kept, as far as they are seen */
    uint64_t longest;                       /* tokens of a row, or of a document in packed rows, uncut */
    uint64_t quantiles[EPS_DATA_QUANTILES]; /* tokens that 50, 90, 95 and 99 % of them do not exceed, uncut */
    struct eps_data_images images;          /* with options.images; all else is then 0 */
};

struct eps_data_events {
    void (*on_row)(void *user, const struct eps_data_row *row); /* its argument is valid during the call only */
    /* With images, each class in their order: rows to train on, and held out. */
    void (*on_class)(void *user, const char *name, uint64_t n, uint64_t n_held_out);
    int (*should_stop)(void *user); /* asked now and then; not 0: -EINTR */
    void (*on_note)(void *user,
                    const char *sentence); /* what the data have that is not read: files, keys; at the end */
};
/* events may be NULL, and so may each callback. */
int eps_data(struct eps_data_counts *out, const struct eps_data_options *options, const struct eps_data_events *events,
             void *user, struct eps_error *error);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif

#endif
