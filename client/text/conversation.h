/* client/text/conversation.h - a conversation as the tokens of a row, and which of them a model is trained on.
 *
 * The model's chat template renders the conversation (client/text/template.h), and its tokenizer encodes the text;
 * special tokens count where the template prints them, not where a message spells them (client/text/rendered.h).
 * Dates in templates are 26 July 2024, so that a run's data do not depend on the day.
 *
 * An answer is a message of the role assistant. Its tokens are
 *
 *   by the mark    those that have a byte between {% generation %} and {% endgeneration %}, as transformers'
 *                  return_assistant_tokens_mask has them; and the special token that ends the turn, if the template
 *                  prints it after the mark
 *   by prefixes    if the template marks nothing: what the text of the messages up to the answer has after the text of
 *                  the messages before it with a generation prompt. The one must begin with the other, or the
 *                  conversation is refused
 *
 * By prefixes an answer is trained in a row only if that row begins with the text up to the answer: with the very
 * tokens that the model sees when it answers. Most templates print a message whatever follows it, and a conversation
 * is one row. Those that change earlier messages (Qwen 3 leaves out earlier thinking) make several: the whole, in
 * which the last answers are trained, and for each earlier answer that was changed the text up to it. */
#ifndef CLIENT_TEXT_CONVERSATION_H
#define CLIENT_TEXT_CONVERSATION_H

#include "client/eps.h"
#include "client/text/tokenizer.h"

#include <jansson.h>
#include <stdint.h>

#define CLIENT_TOKEN_TRAINED (UINT32_C(1) << 31) /* in an id of a row: the model is trained to predict this token */

struct client_conversations; /* how a model's conversations are encoded; used by one thread */

/* Opens the templates in a model's side files (proto/model/file/model_files.h; may be NULL), by name as in
 * client_template_find. Without one, conversations are refused and the other rows are not. tokenizer is borrowed, side
 * shared; train_on is resolved. Errors as client_template_find. Undo: client_conversations_close. */
int client_conversations_open(struct client_conversations **out, struct client_tokenizer *tokenizer, const json_t *side,
                              const char *name, enum eps_train_on train_on, struct error *err);
void client_conversations_close(struct client_conversations *conversations); /* NULL is safe */

/* From here on answers are found by prefixes, whatever the template marks: an answer is all that follows its prompt, as
 * in TRL's preferences. */
void client_conversations_by_prefixes(struct client_conversations *conversations);

/* From here on special tokens that messages spell are tokens, as transformers' apply_chat_template has it. */
void client_conversations_parse(struct client_conversations *conversations);

/* Special tokens that messages have spelled so far, and that were split like any text. */
uint64_t client_conversations_n_spelled(const struct client_conversations *conversations);

/* Takes the ids (n) of a row, which begin with a token that is not trained. */
typedef int client_conversation_take(void *user, const uint32_t *ids, size_t n, struct error *err);

/* Gives the rows of a conversation to `take`: {"messages": [...]}, with "tools", "documents" and "chat_template_kwargs"
 * if it has them. A message may have "train": false, and then is not trained, or true, which is for answers under
 * EPS_TRAIN_ON_LAST. -EINVAL with a sentence: there is no template, no answer, an unknown role, a message that is none,
 * or what the template says; -E2BIG, -ENOMEM; what take returns. */
int client_conversation_encode(struct client_conversations *conversations, const json_t *conversation,
                               client_conversation_take *take, void *user, struct error *err);

/* Gives `take` the row of a text, or of a prompt with a completion: without the template, and special tokens count
 * everywhere, as in texts of a stream. What the tokenizer puts before each text begins the row, and its end token ends
 * it. No token of a prompt is trained, unless train_on is EPS_TRAIN_ON_ALL. Errors as client_conversation_encode. */
int client_conversation_encode_text(struct client_conversations *conversations, const json_t *prompt,
                                    const json_t *text, client_conversation_take *take, void *user, struct error *err);

/* True for a text with a zero character, which is no name of a role. */
bool client_conversation_has_zero(const json_t *text);

#endif
