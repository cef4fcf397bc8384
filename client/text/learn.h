/* client/text/learn.h - a tokenizer for a text that has none. */
#ifndef CLIENT_TEXT_LEARN_H
#define CLIENT_TEXT_LEARN_H

#include "client/data/data.h"

#include <jansson.h>

/* Learns a tokenizer of `vocabulary` tokens from the texts of data, which must not be checked yet, and adds its files
 * to those that come with a model. Of texts longer than 16 MiB together, each gives the same share, from its beginning.
 * rules: separator and watch count. -EINVAL for what is not text; -ENOMEM, -errno. */
int client_learn(json_t *side, struct client_data *data, uint32_t vocabulary, uint32_t n_positions,
                 const struct client_data_rules *rules, struct error *err);

/* Bytes of data's files, after standard input was read and packed ones were unpacked. rules as above. -errno. */
int client_learn_size(uint64_t *n, struct client_data *data, const struct client_data_rules *rules, struct error *err);

#endif
