/* proto/model/file/model_files.h - the files that a model has beside its weights and config.json: tokenizer and
 * generation settings.
 *
 * They are kept unchanged: the client reads them, a job's training text carries them to the daemon
 * (proto/wire/training_text.h), and every checkpoint and export holds them again. In memory they are one JSON object,
 * {NAME: "string", ...}. A text is its own string. tokenizer.model, sentencepiece's vocabulary, is binary: its string
 * is base64 (RFC 4648, section 4, padded). eps does not read it, but llama.cpp's converter does, for Gemma, Llama 2 and
 * Mistral. */
#ifndef PROTO_MODEL_FILE_MODEL_FILES_H
#define PROTO_MODEL_FILE_MODEL_FILES_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* Limit for all files together: Gemma 3 has 37 MiB, and 45 as JSON text, where a quote takes two bytes and three bytes
 * of base64 four. A job's training text holds 64 MiB of that. */
enum { MODEL_FILES_MAX_BYTES = 40 << 20 };

/* Reads a directory's files: any of tokenizer.json, tokenizer_config.json, vocab.json, merges.txt, vocab.txt,
 * special_tokens_map.json, added_tokens.json, chat_template.jinja, chat_template.json, generation_config.json,
 * tokenizer.model and an adapter's adapter_config.json. Templates in the folder additional_chat_templates, and then
 * chat_template.jinja too, become the list in tokenizer_config.json, where transformers finds them as well; "file"
 * names where each came from. *out is an object, owned (json_decref), maybe empty. -EINVAL (not UTF-8, Git LFS's
 * pointer), -EFBIG, -errno, with a sentence that names the file. */
int model_files_read(json_t **out, const char *directory, struct error *err);

/* Gives files without a chat template those in the tokenizer_config.json of `from`, which may be NULL. -ENOMEM,
 * -EINVAL. */
int model_files_keep_templates(json_t *files, const json_t *from, struct error *err);

#define MODEL_FILES_TEMPLATES "additional_chat_templates" /* the one folder that may come with a model */

/* Writes the files into a directory that holds none of them, and a list of templates to where they came from.
 * -errno. */
int model_files_write(const json_t *files, int directory_fd, struct error *err);

/* Checks untrusted files: only the names above, with strings, within the limit. -EINVAL, -EFBIG. */
int model_files_check(json_t *files, struct error *err);

/* The text of one file (n bytes, no zero byte in it), borrowed; NULL if it is absent. files may be NULL. Not for
 * tokenizer.model. */
const char *model_files_find(const json_t *files, const char *name, size_t *n);

/* One file as a JSON value, owned; NULL if it is absent or no JSON. If a whole number needs more than 64 bits, all
 * numbers are reals: transformers writes a model_max_length of 1e30 for a tokenizer without a limit. */
json_t *model_files_json(const json_t *files, const char *name);

/* A token in the files' settings, such as eos_token: a string, or an object that holds one as "content". The string,
 * borrowed; NULL if there is none. config may be NULL. */
json_t *model_files_token(const json_t *config, const char *key);

/* ---- one file and its string ---- */

/* True for tokenizer.model. */
bool model_files_is_binary(const char *name);

/* True for the texts that a user may edit in a checkpoint: tokenizer, chat template, generation settings. Not for an
 * adapter's config, which says what its weights are. */
bool model_files_is_editable(const char *name);

/* The string of a file of n bytes, owned. NULL: no memory; or the file is no binary one, and has a zero byte or is not
 * UTF-8. */
json_t *model_files_encode(const char *name, const char *bytes, size_t n);

/* The size of the file in an untrusted string. -EINVAL: no string, or not the base64 of any bytes. */
int model_files_size(size_t *n, const char *name, const json_t *string);

/* The file (*n bytes) in a string that model_files_size accepts. *out is borrowed from the string, or is *made, which
 * the caller frees; *made is NULL if nothing was made. -ENOMEM. */
int model_files_decode(const char **out, size_t *n, char **made, const char *name, const json_t *string);

#endif
