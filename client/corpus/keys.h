/* client/corpus/keys.h - what of a conversation is read: by its layout (client/corpus/layouts.h), or by the model's
 * template.
 *
 * A template gets all keys of a message, and what stands beside the messages, and prints what it names. So a key that
 * its text does not name is one that nobody reads: it is counted, for the user (client/data/unread.h), and whatever is
 * in it refuses no line. */
#ifndef CLIENT_CORPUS_KEYS_H
#define CLIENT_CORPUS_KEYS_H

#include "client/data/unread.h"
#include "proto/base/error.h"

#include <jansson.h>

struct client_keys; /* of the templates in a model's side files */

/* side: proto/model/file/model_files.h; may be NULL; read during the call. -ENOMEM. Undo: client_keys_close. */
int client_keys_open(struct client_keys **out, const json_t *side, struct error *err);
void client_keys_close(struct client_keys *keys); /* NULL is safe */

/* Counts those keys of a line's object, and of the messages in it, that are not read. */
void client_keys_count(struct client_unread *out, struct client_keys *keys, const json_t *object, uint64_t line);

#endif
