/* proto/model/side_file.h - a file that a model has beside its weights, as a string of JSON.
 *
 * A job's side file carries these files to the daemon, {NAME: "string", ...}. A text is its own string.
 * tokenizer.model, sentencepiece's vocabulary, is binary: its string is base64 (RFC 4648, section 4, padded). eps does
 * not read it, but llama.cpp's converter does, for Gemma, Llama 2 and Mistral. */
#ifndef PROTO_MODEL_SIDE_FILE_H
#define PROTO_MODEL_SIDE_FILE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

/* True for tokenizer.model. */
bool side_file_is_binary(const char *name);

/* The string of a file of n bytes, owned. NULL: no memory; or the file is no binary one, and has a zero byte or is not
 * UTF-8. */
json_t *side_file_string(const char *name, const char *bytes, size_t n);

/* The size of the file in an untrusted string. -EINVAL: no string, or not the base64 of any bytes. */
int side_file_size(size_t *n, const char *name, const json_t *string);

/* The file (*n bytes) in a string that side_file_size accepts. *out is borrowed from the string, or is *made, which the
 * caller frees; *made is NULL if nothing was made. -ENOMEM. */
int side_file_bytes(const char **out, size_t *n, char **made, const char *name, const json_t *string);

#endif
