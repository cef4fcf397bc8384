/* client/text/rendered.h - the text of a conversation, as a chat template renders it, as tokens.
 *
 * One rule for training, evaluations and chats: special tokens count where the template prints them. What a message, a
 * tool or a document spells is split like any text: else a user could end his turn, and begin the system's, by typing
 * it. */
#ifndef CLIENT_TEXT_RENDERED_H
#define CLIENT_TEXT_RENDERED_H

#include "client/text/template.h"
#include "client/text/tokenizer.h"

/* Appends the tokens of a rendering; tokens (n_places, from the caller): as client_tokenizer_encode_marked sets them.
 * parse: special tokens count wherever they are. *n_spelled grows by those that messages spell. Errors as
 * client_tokenizer_encode. */
int client_rendered_encode(struct client_tokens *out, size_t *tokens, uint64_t *n_spelled,
                           struct client_tokenizer *tokenizer, const struct client_rendering *text,
                           const struct client_place *places, size_t n_places, bool parse, struct error *err);

#endif
