/* client/text/template.h - chat templates: a conversation as the text that a model was trained on.
 *
 * A template is the Jinja text in chat_template.jinja or tokenizer_config.json. It is rendered as transformers'
 * apply_chat_template does, with the same white space rules (trim_blocks, lstrip_blocks). The subset:
 *
 *     statements   set (also of a block, and of a namespace's members), if, for (with if, else, break, continue),
 *                  macro, call, filter, with, raw, generation
 *     expressions  literals, + - * / // % ** ~, comparisons, in, and, or, not, x if y else z, members, slices, calls
 *     the tables   of functions, methods, filters and tests in template/call.c, text.c, filter.c and test.c
 *
 * What is beyond it is refused with its line and column: other statements when the template is opened, other names when
 * one is used, attributes of loop among them. Lists and objects cannot be printed, except by tojson. Numbers are
 * printed as Python prints them; variables may hold wide ones (proto/base/wide.h), which are not computed with.
 *
 * A template is untrusted: time, memory and depth of a rendering are bounded. */
#ifndef CLIENT_TEXT_TEMPLATE_H
#define CLIENT_TEXT_TEMPLATE_H

#include "proto/base/error.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

enum { CLIENT_TEMPLATE_MAX_BYTES = 1 << 20 };

struct client_template;

/* Reads a template (n bytes of UTF-8). -EINVAL with a sentence that begins with line and column; -EFBIG; -ENOMEM. Undo:
 * client_template_close. */
int client_template_open(struct client_template **out, const char *text, size_t n, struct error *err);
void client_template_close(struct client_template *template); /* NULL is safe */

/* Renders it with these variables, such as {"messages": [{"role": "user", "content": "..."}], "bos_token": "<s>",
 * "add_generation_prompt": true}; borrowed and not changed. now: of strftime_now, in local time. *text (*n bytes, then
 * 0) is owned: free. -EINVAL with a sentence that begins with line and column, also if the template itself raises an
 * exception; -E2BIG: past a bound; -ENOMEM. */
int client_template_render(char **text, size_t *n, const struct client_template *template, const json_t *variables,
                           time_t now, struct error *err);

/* What is known of a byte of a rendered conversation. The low bits are 1 + the index in `messages` of the message that
 * the innermost loop over messages was at when the byte was printed; 0: none, or one beyond the bits. */
enum {
    CLIENT_LABEL_UNTRUSTED = 1 << 15, /* it comes from a text of `messages` (roles aside), `tools` or `documents` */
    CLIENT_LABEL_GENERATED = 1 << 14, /* it is between {% generation %} and {% endgeneration %} */
    CLIENT_LABEL_MESSAGE = (1 << 14) - 1
};

struct client_rendering {
    char *text; /* (n, then 0), owned: free */
    uint16_t *
        labels; /* (n, then n_empty: 1 + the indices of messages that {% generation %} marks nothing of), owned: free */
    size_t n, n_empty;
};

/* Renders as client_template_render does, and labels each byte. Labels follow a text through variables, macros, filters
 * and methods: what trim, split or replace leave of a message is still the message's. All that tojson makes of a value
 * with a text of a message in it is untrusted. On failure *out is zeroed. */
int client_template_render_labelled(struct client_rendering *out, const struct client_template *template,
                                    const json_t *variables, time_t now, struct error *err);

/* True if the template has {% generation %}. */
bool client_template_marks_answers(const struct client_template *template);

/* True if the text is a literal of the template, such as a role that it asks for. */
bool client_template_names(const struct client_template *template, const char *text);

/* Opens a template in a model's side files (proto/model/file/model_files.h; may be NULL): in chat_template.jinja,
 * tokenizer_config.json or chat_template.json, the first that has one. Where there is a list, name says which, as
 * --chat-template does. NULL: as in transformers `tool_use`, if it is there and tools is true, else `default`. *out is
 * NULL, with 0, if the model has none. -EDOM: none has this name; -ENOKEY: no name is given, and none is called
 * default; else errors as client_template_open; sentences begin with the file's name. */
int client_template_find(struct client_template **out, const json_t *side, const char *name, bool tools,
                         struct error *err);

#endif
