/* client/rows/layouts.h - the layouts of tuning data: what an object of a .jsonl file says, as one of three kinds.
 *
 *   {"messages": [{"role", "content"}, ...]}             a conversation; "tools" and "chat_template_kwargs" if it has them
 *   {"prompt": [messages], "completion": [messages]}     the same; what the prompt answers is not trained
 *   {"conversations": [{"from", "value"}, ...]}          sharegpt's; "system" and "tools" if it has them
 *   {"instruction", "input", "output"}                   alpaca's; "system" and "history" if it has them
 *   {"prompt": text, "completion": text}                 a prompt with a completion
 *   {"text": text}                                       a text
 *   {"source": text, "target": text}                     what an encoder-decoder reads, and what it says of it; so is a
 *                                                        prompt with a completion
 *   {"prompt", "chosen", "rejected"}                     a preference: two completions of one prompt, each a text or each
 *                                                        messages. Without a prompt of messages, it is the messages that
 *                                                        chosen and rejected begin with alike
 *
 * An instruction and its input are joined by a newline, as LLaMA-Factory joins them. */
#ifndef CLIENT_ROWS_LAYOUTS_H
#define CLIENT_ROWS_LAYOUTS_H

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

/* A conversation in any layout as {"messages": [...], "tools": [...]}: a new reference. NULL with *rc: -EINVAL with a
 * sentence that names the member; -ENOMEM. */
json_t *client_layout_conversation(int *rc, json_t *object, struct error *err);

/* A preference's chosen completion, or the rejected one, as an object with a prompt and a completion, of one of the layouts
 * above: a new reference. NULL with *rc: -EINVAL with a sentence; -ENOMEM. */
json_t *client_layout_choice(int *rc, json_t *object, bool chosen, struct error *err);

#endif
