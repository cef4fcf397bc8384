/* client/order/windows.h - a stream of tokens cut into windows, each a row.
 *
 * Window k has tokens k*seq .. k*seq+seq-1. If each token predicts its successor, T tokens give floor((T-1)/seq)
 * windows, as the last token is only predicted; if masked tokens are predicted, they give floor(T/seq). */
#ifndef CLIENT_ORDER_WINDOWS_H
#define CLIENT_ORDER_WINDOWS_H

#include "client/data/data.h"
#include "client/eps.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

/* A range of the stream as windows. */
struct client_windows {
    const struct client_data *data; /* borrowed */
    uint64_t first;                 /* first token */
    uint32_t seq;
    uint32_t ahead; /* tokens after a window that its labels need: 1 for successors, else 0 */
    /* Tokens from a window to the next. Fewer than seq: windows overlap, and each predicts the tokens that none before
     * it does. */
    uint32_t stride;
    uint64_t n;    /* windows */
    uint64_t of;   /* windows in the stream, among which the n are spread evenly */
    uint32_t last; /* tokens in the last of those windows: seq or fewer */
};

/* How many of n_tokens tokens are trained on. The others, after them, are held out: none if held-out data are apart,
 * else the last 1 % and at least seq + 1. */
uint64_t client_windows_n_train(uint64_t n_tokens, uint32_t seq, bool apart);

/* The whole windows of n_tokens tokens; what is left at their end is in none. */
struct client_windows client_windows_of(const struct client_data *data, uint64_t first, uint64_t n_tokens, uint32_t seq,
                                        uint32_t ahead);

/* Windows for evaluation; stride: 1 .. seq, and with ahead = 0 seq. At most most_tokens are predicted (0: all), in
 * windows at equal distances; at least one window. Tokens beyond the last whole window form a shorter one, and there
 * are none if n_tokens <= seq. */
struct client_windows client_windows_held_out(const struct client_data *data, uint64_t first, uint64_t n_tokens,
                                              uint32_t seq, uint32_t stride, uint64_t most_tokens, uint32_t ahead);

/* Number of tokens that windows first .. first+n-1 predict; of masked ones, that they may predict. */
uint64_t client_windows_tokens(const struct client_windows *windows, uint64_t first, uint64_t n);

/* Reads ids (seq) and labels (seq), the successors, of window k; ahead is 1. A short window is padded with id 0, and
 * what it does not predict has the label PLAN_NO_LABEL. Errors as client_data_read. */
int client_windows_read(const struct client_windows *windows, uint32_t *ids, uint32_t *labels, uint64_t k,
                        struct error *err);

/* The index in the data of the first token that client_windows_read reads of window k. */
uint64_t client_windows_first(const struct client_windows *windows, uint64_t k);

/* Reads ids (seq) of window k without padding: a short one begins earlier, so that it ends with the stream's last
 * token. *known: the tokens at its begin that the window before it has, too. Errors as client_data_read. */
int client_windows_read_whole(const struct client_windows *windows, uint32_t *ids, uint32_t *known, uint64_t k,
                              struct error *err);

/* The stream's window that is window k of these. */
uint64_t client_windows_number(const struct client_windows *windows, uint64_t k);

/* Returns the window for row `row` of the run; row is step * batch + i, and n >= 1. Sequential order: row modulo n.
 * Shuffled order: each epoch of n rows is its own permutation, drawn from the seed. */
uint64_t client_windows_pick(const struct client_windows *windows, enum eps_order order, uint64_t seed, uint64_t row);

#endif
