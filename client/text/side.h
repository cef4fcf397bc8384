/* client/text/side.h - a model's side files: its tokenizer and its generation settings.
 *
 * Side files are kept unchanged. The client reads them beside the weights, a job's side file carries them to the
 * daemon, and every checkpoint and export holds them again. They are kept in one JSON object, {NAME: "string", ...}: a
 * text as it is, tokenizer.model in base64 (proto/model/side_file.h). */
#ifndef CLIENT_TEXT_SIDE_H
#define CLIENT_TEXT_SIDE_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stddef.h>

/* Limit for all files together: Gemma 3 has 37 MiB, and 45 as JSON text, where a quote takes two bytes and three bytes
 * of base64 four. A job's side file holds 64 MiB of that. */
enum { CLIENT_SIDE_MAX_BYTES = 40 << 20 };

/* Reads the directory's side files: any of tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, vocab.txt,
 * special_tokens_map.json, added_tokens.json, chat_template.jinja, generation_config.json and tokenizer.model. *out is
 * an object, owned (json_decref), maybe empty. -EINVAL (not UTF-8, Git LFS's pointer), -EFBIG, -errno, with a sentence
 * that names the file. */
int client_side_read(json_t **out, const char *directory, struct error *err);

/* Checks untrusted side files: only the names above, with strings, within the limit. -EINVAL, -EFBIG. */
int client_side_check(json_t *files, struct error *err);

/* The text of one file (n bytes, no zero byte in it), borrowed; NULL if it is absent. files may be NULL. Not for
 * tokenizer.model. */
const char *client_side_find(const json_t *files, const char *name, size_t *n);

/* One file as a JSON value, owned; NULL if it is absent or no JSON. If a whole number needs more than 64 bits, all
 * numbers are reals: transformers writes a model_max_length of 1e30 for a tokenizer without a limit. */
json_t *client_side_json(const json_t *files, const char *name);

/* A token in the files' settings, such as eos_token: a string, or an object that holds one as "content". The string,
 * borrowed; NULL if there is none. config may be NULL. */
json_t *client_side_token(const json_t *config, const char *key);

/* Writes the files into a directory that holds none of them. -errno. */
int client_side_write(const json_t *files, int directory_fd, struct error *err);

#endif
