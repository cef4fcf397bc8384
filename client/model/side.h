/* client/model/side.h - what comes with a model besides its numbers: the tokenizer, and how to generate.
 *
 * These files are kept as they came: the client reads them beside the weights, a job's side file carries them to the
 * daemon, every checkpoint and export holds them again. So they are text in one JSON object, {NAME: "content", ...}. */
#ifndef CLIENT_MODEL_SIDE_H
#define CLIENT_MODEL_SIDE_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stddef.h>

/* Of all files together: as a JSON text, where a quote takes two bytes, they still fit a job's side file. */
enum { CLIENT_SIDE_MAX_BYTES = 32 << 20 };

/* tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, special_tokens_map.json, added_tokens.json and
 * generation_config.json, those that are in the directory. An object, owned (json_decref), empty if there is none.
 * -EINVAL (not UTF-8), -EFBIG, -errno, with a sentence that names the file. */
int client_side_read(json_t **out, const char *directory, struct error *err);

/* Checks what a stranger wrote: only the names above, with texts, within the limit. -EINVAL, -EFBIG. */
int client_side_check(json_t *files, struct error *err);

/* The text of one of them (n bytes, no zero byte among them), borrowed; NULL if it did not come. files may be NULL. */
const char *client_side_find(const json_t *files, const char *name, size_t *n);

/* Writes them into a directory that holds none of them. -errno. */
int client_side_write(const json_t *files, int directory_fd, struct error *err);

#endif
