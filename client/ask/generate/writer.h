/* client/ask/generate/writer.h - writes tokens after others, one at a time: what eps_generate and eps_chat share.
 *
 * The worker keeps the keys and values of the tokens that it has run, of several rows that advance together. Each row
 * has a line of the writer, which draws the next token from the last logits, turns it into text, and knows when the
 * text ends: at an end token of the model, or at a stop string. */
#ifndef CLIENT_ASK_GENERATE_WRITER_H
#define CLIENT_ASK_GENERATE_WRITER_H

#include "client/ask/forward.h"
#include "client/eps.h"
#include "client/model/job.h"
#include "client/text/sample.h"
#include "client/text/stop.h"
#include "client/text/tokenizer.h"

/* The text that is written in a row. */
struct client_line {
    struct client_sampler sampler;
    struct client_stop stop;
    struct client_decoder *decoder; /* NULL without a tokenizer */
};

struct client_writer {
    struct client_forward *forward;     /* borrowed */
    struct client_tokenizer *tokenizer; /* NULL: the model has none */
    uint32_t *ends;                     /* (n_ends), owned: tokens that end a text */
    size_t n_ends;
    struct client_sample_options sample;
    const char *const *stops; /* (n_stops), borrowed */
    size_t n_stops;
    bool plain;                /* special tokens give no text */
    struct client_line *lines; /* (n_lines), owned */
    uint32_t n_lines;
    uint32_t seq;          /* tokens of a row */
    struct client_job job; /* microbatch: the rows that advance together, of as many lines */
};

/* Opens the tokenizer of a model that is open. sample was checked. has_ids: an unsupported
 * tokenizer does no harm, and there is none then. stops (n_stops) are borrowed until close. -EDOM, -EINVAL, -ENOMEM.
 * Undo: client_writer_close, also after a failure. *writer must not move. */
int client_writer_open(struct client_writer *writer, struct client_forward *forward,
                       const struct client_sample_options *sample, const char *const *stops, size_t n_stops,
                       bool has_ids, struct error *err);

/* Starts workers, and a job for n_lines rows (1 .. PLAN_GENERATE_ROWS) of so many tokens; for fewer of them, if the
 * device has no memory for all. */
int client_writer_start(struct client_writer *writer, uint32_t seq, uint32_t n_lines, struct error *err);

/* True if the last call failed as the job has ended: nothing was asked of it for minutes in which others waited. */
bool client_writer_gave_way(const struct client_writer *writer);
/* Opens the job anew then, and waits for its turn. Rows have run nothing. Errors as client_writer_start. */
int client_writer_renew(struct client_writer *writer, struct error *err);

/* True of an encoder-decoder: each row is a target, and has a source. */
static inline bool client_writer_has_source(const struct client_writer *writer)
{
    return writer->job.goal.source > 0;
}

/* Gives a row, which is about to run tokens (from its first one on, or after another row's), its source: n ids. */
void client_writer_put_source(struct plan_tokens *tokens, struct client_writer *writer, uint32_t row,
                              const uint32_t *ids, uint32_t n);

/* Begins a text in a row after these tokens of the vocabulary. */
int client_writer_begin(struct client_writer *writer, uint32_t row, const uint32_t *before, size_t n_before,
                        struct error *err);

/* True of an end token of the model. */
bool client_writer_ends(const struct client_writer *writer, uint32_t id);

/* Draws the row's next token from logits (vocabulary). A draw depends on seed, position, logits and, with a repetition
 * penalty, the text's tokens. *ended: it is an end token. */
int client_writer_choose(uint32_t *id, bool *ended, struct client_writer *writer, uint32_t row, const float *logits,
                         uint64_t position, struct error *err);

/* Runs ids first..first+n-1 of row 0, of which the earlier ones have been run, and draws the next token. */
int client_writer_draw(uint32_t *id, bool *ended, struct client_writer *writer, const uint32_t *ids, uint32_t first,
                       uint32_t n, uint64_t position, struct error *err);

/* Sets *text (*n bytes of UTF-8, borrowed until the next call) to what a token adds to the row's text; NULL without a
 * tokenizer. special: special tokens give their text. An ending token gives none. last: it is the last one. Once
 * client_writer_has_stopped, a stop string was found, and the text before it was given. */
int client_writer_read(const char **text, size_t *n, struct client_writer *writer, uint32_t row, uint32_t id,
                       bool special, bool ended, bool last, struct error *err);
bool client_writer_has_stopped(const struct client_writer *writer, uint32_t row);

/* Closes the job, and frees. */
int client_writer_finish(struct client_writer *writer, struct error *err);
void client_writer_close(struct client_writer *writer); /* safe on a zeroed struct */

#endif
