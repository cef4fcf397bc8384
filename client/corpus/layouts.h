/* client/corpus/layouts.h - the layouts of tuning data: what an object of a .jsonl file says, as one of three kinds.
 *
 *   {"messages": [{"role", "content"}, ...]}             a conversation
 *   {"prompt": [messages], "completion": [messages]}     the same; what the prompt answers is not trained
 *   {"conversations": [{"from", "value"}, ...]}          sharegpt's
 *   {"instruction", "input", "output"}                   alpaca's; "history" if it has it
 *   {"prompt": text, "completion": text}                 a prompt with a completion
 *   {"text": text}                                       a text
 *   {"source": text, "target": text}                     what an encoder-decoder reads, and what it says of it; so is a
 *                                                        prompt with a completion
 *   {"prompt", "chosen", "rejected"}                     a preference: two completions of one prompt, each a text or
 *                                                        each messages. Without a prompt of messages, it is the
 *                                                        messages that chosen and rejected begin with alike
 *
 * An instruction and its input are joined by a newline, as LLaMA-Factory joins them.
 *
 * Beside a conversation may stand "system", a text, which becomes its first message; "tools", or OpenAI's older
 * "functions", which become tools; "documents" and "chat_template_kwargs", for the template. A message says whether it
 * is trained by "train", or as others say it: "weight" (OpenAI, Mistral, Together), "training" and "trainable"
 * (axolotl), "loss_mask" or "loss" (ms-swift), each 0 or 1, false or true. */
#ifndef CLIENT_CORPUS_LAYOUTS_H
#define CLIENT_CORPUS_LAYOUTS_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>

enum client_layout {
    CLIENT_LAYOUT_NONE,
    CLIENT_LAYOUT_TEXT,
    CLIENT_LAYOUT_PROMPT,
    CLIENT_LAYOUT_CONVERSATION,
    CLIENT_LAYOUT_PREFERENCE,
    CLIENT_LAYOUT_TARGET
};

enum client_layout client_layout_of(const json_t *object);

/* True if the layout of this object has the key: if it is read. */
bool client_layout_has(const json_t *object, const char *key);

/* True if messages have the key by itself, whatever their template: roles, contents and whether they are trained. */
bool client_layout_has_in_messages(const char *key);

/* A conversation in any layout as {"messages": [...], "tools": [...]}, with "documents" and "chat_template_kwargs" if
 * it has them; messages have no other word than "train" for whether they are trained: a new reference. NULL with *rc:
 * -EINVAL with a sentence that names the member; -ENOMEM. */
json_t *client_layout_conversation(int *rc, json_t *object, struct error *err);

/* What an encoder-decoder is to say: a target, or a completion that is a text. Borrowed; NULL: it has none. */
const json_t *client_layout_target(const json_t *object);

/* A preference's chosen completion, or the rejected one, as an object with a prompt and a completion, of one of the
 * layouts above: a new reference. NULL with *rc: -EINVAL with a sentence; -ENOMEM. */
json_t *client_layout_choice(int *rc, json_t *object, bool chosen, struct error *err);

#endif
