/* client/corpus/learn.h - learns a tokenizer from the training text (client/text/words.h says how). */
#ifndef CLIENT_CORPUS_LEARN_H
#define CLIENT_CORPUS_LEARN_H

#include "client/data/data.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stdint.h>

/* Learns a tokenizer of `vocabulary` tokens from the texts of data and adds its files to the model's side files. data
 * must not be checked yet, and are only unpacked. If the texts are longer than 16 MiB together, only the beginning of
 * each is used, in equal proportion. Uses separator and watch of rules. -EINVAL for a file that is not text; -ENOMEM,
 * -errno. */
int client_learn(json_t *side, struct client_data *data, uint32_t vocabulary, uint32_t n_positions,
                 const struct client_data_rules *rules, struct error *err);

/* Total bytes of data's files, with standard input read and compressed files expanded. rules as above. -errno. */
int client_learn_size(uint64_t *n, struct client_data *data, const struct client_data_rules *rules, struct error *err);

#endif
