/* eps/job/side.h - a job's side file: what each checkpoint stores for the client beside weights and moments.
 *
 * It is JSON, {"options": {...}, "files": {NAME: STRING, ...}}: the run's options, and files such as the tokenizer's,
 * as proto/model/side_file.h has them. */
#ifndef EPS_JOB_SIDE_H
#define EPS_JOB_SIDE_H

#include "proto/base/error.h"
#include "proto/operation/products.h"

#include <jansson.h>
#include <stddef.h>

/* Parses untrusted text. Each name must be allowed in a checkpoint beside its own four files. *out is owned:
 * json_decref. -EINVAL with a sentence. */
int side_parse(json_t **out, const char *text, size_t n_bytes, struct error *err);

/* The algorithms of products among the options; version 0 if there are none. -EINVAL, -ENOMEM with a sentence. */
int side_products(struct products *out, const json_t *side, struct error *err);

#endif
