/* client/ask/generate/sampling.h - how tokens are drawn: as it was asked for, else as the model's authors say.
 *
 * Who publishes a model says in its generation_config.json how to draw from it: temperature, top_k and top_p, or
 * do_sample false, the likeliest token always. Drawn otherwise, small models ramble and large ones lose much of what
 * they were tuned for. */
#ifndef CLIENT_ASK_GENERATE_SAMPLING_H
#define CLIENT_ASK_GENERATE_SAMPLING_H

#include "client/eps_texts.h"
#include "client/text/sample.h"

#include <jansson.h>

/* As asked, and what is unset as without any file; unchecked. */
struct client_sample_options client_sampling_of(const struct eps_sampling *asked);

/* As asked, and what is unset of temperature, top_k and top_p as the model's files say; side: its files
 * (proto/model/file/model_files.h), may be NULL. do_sample false holds unless the caller asks for a way to draw. *note
 * says what was taken, or is empty. -EINVAL with a sentence: the file has a value that cannot be. */
int client_sampling_resolve(struct client_sample_options *out, struct error *note, const struct eps_sampling *asked,
                            const json_t *side, struct error *err);

#endif
