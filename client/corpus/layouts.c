/* The line's object is never changed, as its keys are counted afterwards (client/corpus/keys.h), and a preference is
 * taken apart twice: messages that stay are shared, those that change are copied first. */
#include "client/corpus/layouts.h"

#include "client/text/conversation.h"
#include "proto/base/json.h"
#include "proto/base/wide.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Data sets that were joined have null where a row lacks a column. */
static bool layouts_has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return value && !json_is_null(value);
}

/* The order decides where an object has keys of several: what is more particular comes first. */
enum client_layout client_layout_of(const json_t *object)
{
    const json_t *prompt = json_object_get(object, "prompt"), *completion = json_object_get(object, "completion");

    if (layouts_has(object, "chosen") && layouts_has(object, "rejected"))
        return CLIENT_LAYOUT_PREFERENCE;
    if (layouts_has(object, "messages") || layouts_has(object, "conversations") || layouts_has(object, "instruction"))
        return CLIENT_LAYOUT_CONVERSATION;
    if (json_is_string(prompt) && json_is_string(completion))
        return CLIENT_LAYOUT_PROMPT;
    if (json_is_array(prompt) && json_is_array(completion))
        return CLIENT_LAYOUT_CONVERSATION;
    if (json_is_string(json_object_get(object, "source")) && json_is_string(json_object_get(object, "target")))
        return CLIENT_LAYOUT_TARGET;
    return json_is_string(json_object_get(object, "text")) ? CLIENT_LAYOUT_TEXT : CLIENT_LAYOUT_NONE;
}

/* What may stand beside a conversation. */
static const char *const beside[] = {"system", "tools", "functions", "documents", "chat_template_kwargs", NULL};

static bool is_one_of(const char *key, const char *const *keys)
{
    while (*keys && strcmp(*keys, key) != 0)
        keys++;
    return *keys;
}

const json_t *client_layout_target(const json_t *object)
{
    const enum client_layout layout = client_layout_of(object);

    return layout == CLIENT_LAYOUT_TARGET   ? json_object_get(object, "target")
           : layout == CLIENT_LAYOUT_PROMPT ? json_object_get(object, "completion")
                                            : NULL;
}

bool client_layout_has(const json_t *object, const char *key)
{
    static const char *const text[] = {"text", NULL}, *const pair[] = {"prompt", "completion", NULL},
                             *const target[] = {"source", "target", NULL},
                             *const preference[] = {"prompt", "chosen", "rejected", NULL},
                             *const messages[] = {"messages", NULL}, *const sharegpt[] = {"conversations", NULL},
                             *const alpaca[] = {"instruction", "input", "output", "history", NULL};

    switch (client_layout_of(object)) {
    case CLIENT_LAYOUT_TEXT:
        return is_one_of(key, text);
    case CLIENT_LAYOUT_PROMPT:
        return is_one_of(key, pair);
    case CLIENT_LAYOUT_TARGET:
        return is_one_of(key, target);
    case CLIENT_LAYOUT_PREFERENCE:
        return is_one_of(key, preference) ||
               (json_is_array(json_object_get(object, "chosen")) && is_one_of(key, beside));
    case CLIENT_LAYOUT_CONVERSATION:
        return is_one_of(key, layouts_has(object, "messages")        ? messages
                              : layouts_has(object, "conversations") ? sharegpt
                              : layouts_has(object, "instruction")   ? alpaca
                                                                     : pair) ||
               is_one_of(key, beside);
    case CLIENT_LAYOUT_NONE:
        break;
    }
    return false;
}

/* ---- Whether a message is trained ---- */

/* "train" is ours. */
static const char *const trains[] = {"train", "weight", "training", "trainable", "loss_mask", "loss", NULL};
enum { N_TRAINS = sizeof trains / sizeof *trains - 1 };

bool client_layout_has_in_messages(const char *key)
{
    return strcmp(key, "role") == 0 || strcmp(key, "content") == 0 || is_one_of(key, trains);
}

/* 0 or 1, false or true; -1: neither. */
static int truth_of(const json_t *value)
{
    const double number = json_is_number(value) ? json_number_value(value) : json_is_true(value);

    if (!json_is_number(value) && !json_is_boolean(value))
        return -1;
    return number > 0 ? (number < 1 || number > 1 ? -1 : 1) : number < 0 ? -1 : 0;
}

/* Replaces what message i says of this, if it does, by "train", and drops nulls. A prompt is not trained. */
static int settle_train(json_t *messages, size_t i, bool is_prompt, struct error *err)
{
    json_t *message = json_array_get(messages, i), *copy;
    const char *by = NULL, *role = json_string_value(json_object_get(message, "role"));
    int train = -1;
    bool other = false;

    for (size_t k = 0; k < N_TRAINS; k++) {
        if (!layouts_has(message, trains[k])) {
            other |= json_object_get(message, trains[k]) != NULL;
            continue;
        }
        const int truth = truth_of(json_object_get(message, trains[k]));
        if (truth < 0)
            return error_set(err, -EINVAL, "message %zu: its \"%s\" is neither %s: a message is trained, or it is not",
                             i + 1, trains[k], k == 0 ? "true nor false" : "0 nor 1, false nor true");
        if (train >= 0 && truth != train)
            return error_set(
                err, -EINVAL,
                "message %zu: its \"%s\" says that it is %strained, and its \"%s\" that it is%s: keep one of "
                "them",
                i + 1, by, train ? "" : "not ", trains[k], truth ? "" : " not");
        train = truth, by = trains[k], other |= k > 0;
    }
    if (train == 1 && is_prompt)
        return error_set(err, -EINVAL,
                         "message %zu: its \"%s\" says that it is trained, and a prompt is not: leave it out", i + 1,
                         by);
    if (train == 1 && role && strcmp(role, "assistant") != 0)
        return error_set(err, -EINVAL, "message %zu: \"%s\": %s is for answers, messages of the role assistant", i + 1,
                         by, json_is_boolean(json_object_get(message, by)) ? "true" : "1");
    if (!other)
        return 0;
    copy = json_copy_whole(message);
    for (size_t k = 0; k < N_TRAINS; k++)
        json_object_del(copy, trains[k]);
    return copy && (train < 0 || json_object_set_new(copy, "train", json_boolean(train)) == 0) &&
                   json_array_set_new(messages, i, copy) == 0
               ? 0
               : error_memory(err);
}

/* A reference is taken to content. */
static int layouts_add_message(json_t *messages, const char *role, json_t *content, struct error *err)
{
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);

    return message && json_array_append_new(messages, message) == 0 ? 0 : error_memory(err);
}

/* A text that may be missing or null; else *rc is -EINVAL. Borrowed. */
static json_t *optional_text(int *rc, const json_t *object, const char *key, struct error *err)
{
    json_t *value = json_object_get(object, key);

    if (!value || json_is_null(value))
        return NULL;
    if (!json_is_string(value) && !*rc)
        *rc = error_set(err, -EINVAL, "its \"%s\" is no text", key);
    return *rc || json_string_length(value) == 0 ? NULL : value;
}

/* ---- sharegpt ---- */

/* Names of speakers that known data sets have. NULL: unknown, which is refused, never guessed. */
static const char *role_of(const char *from)
{
    static const char *const roles[][2] = {{"human", "user"},
                                           {"user", "user"},
                                           {"gpt", "assistant"},
                                           {"assistant", "assistant"},
                                           {"chatgpt", "assistant"},
                                           {"model", "assistant"},
                                           {"system", "system"},
                                           {"tool", "tool"},
                                           {"observation", "tool"},
                                           {"function_response", "tool"},
                                           {"function_call", "assistant"}};

    for (size_t i = 0; from && i < sizeof roles / sizeof *roles; i++)
        if (strcmp(from, roles[i][0]) == 0)
            return roles[i][1];
    return NULL;
}

/* {"from": "human", "value": "..."}; or a message as such. */
static int add_turn(json_t *messages, json_t *turn, size_t i, struct error *err)
{
    const json_t *named = json_object_get(turn, "from");
    const char *from = json_string_value(named), *role = role_of(from);
    json_t *value = json_object_get(turn, "value");

    if (json_object_get(turn, "role"))
        return json_array_append(messages, turn) ? error_memory(err) : 0;
    if (!from || !json_is_string(value))
        return error_set(err, -EINVAL, "turn %zu of its conversations is no {\"from\": text, \"value\": text}", i + 1);
    if (client_conversation_has_zero(named))
        return error_set(err, -EINVAL, "turn %zu of its conversations has a role with a zero character", i + 1);
    if (!role)
        return error_set(
            err, -EINVAL,
            "turn %zu of its conversations is from %.40s, an unknown role: known are human, gpt, system, tool, "
            "observation and function_call",
            i + 1, from);
    int rc = layouts_add_message(messages, role, value, err);
    for (size_t k = 0; !rc && k < N_TRAINS; k++) {
        json_t *train = json_object_get(turn, trains[k]);
        if (train && json_object_set(json_array_get(messages, json_array_size(messages) - 1), trains[k], train))
            rc = error_memory(err);
    }
    return rc;
}

static int take_sharegpt(json_t *messages, json_t *object, struct error *err)
{
    json_t *turns = json_object_get(object, "conversations"), *turn;
    int rc = json_is_array(turns) ? 0 : error_set(err, -EINVAL, "its conversations are no list");
    size_t i;

    json_array_foreach(turns, i, turn)
    {
        if (!rc)
            rc = add_turn(messages, turn, i, err);
    }
    return rc;
}

/* ---- alpaca ---- */

/* With a line's end between them; either may be NULL. Owned; NULL: out of memory. */
static json_t *join_lines(const json_t *first, const json_t *second)
{
    const size_t n_first = json_string_length(first), n_second = json_string_length(second),
                 n = n_first + n_second + (first && second);
    char *text = malloc(n + 1);
    json_t *joined;

    if (!text)
        return NULL;
    if (n_first > 0)
        memcpy(text, json_string_value(first), n_first);
    if (first && second)
        text[n_first] = '\n';
    if (n_second > 0)
        memcpy(text + n - n_second, json_string_value(second), n_second);
    joined = json_stringn(text, n);
    free(text);
    return joined;
}

static int add_pair(json_t *messages, json_t *pair, size_t i, struct error *err)
{
    json_t *question = json_array_get(pair, 0), *answer = json_array_get(pair, 1);

    if (json_array_size(pair) != 2 || !json_is_string(question) || !json_is_string(answer))
        return error_set(err, -EINVAL, "turn %zu of its history is no list of two texts", i + 1);
    const int rc = layouts_add_message(messages, "user", question, err);
    return rc ? rc : layouts_add_message(messages, "assistant", answer, err);
}

/* The last turn is the instruction with its input; the history comes before it. */
static int take_alpaca(json_t *messages, json_t *object, struct error *err)
{
    json_t *output = json_object_get(object, "output"), *history = json_object_get(object, "history"), *pair;
    int rc = 0;
    json_t *instruction = optional_text(&rc, object, "instruction", err),
           *input = optional_text(&rc, object, "input", err);
    size_t i;

    if (!rc && !json_is_string(output))
        rc = error_set(err, -EINVAL, "it has an instruction and no \"output\", a text");
    if (!rc && history && !json_is_null(history) && !json_is_array(history))
        rc = error_set(err, -EINVAL, "its history is no list");
    if (!rc && !instruction && !input)
        rc = error_set(err, -EINVAL, "its instruction is empty");
    json_array_foreach(history, i, pair)
    {
        if (!rc)
            rc = add_pair(messages, pair, i, err);
    }
    json_t *question = rc ? NULL : join_lines(instruction, input);
    if (!rc && !question)
        rc = error_memory(err);
    if (!rc)
        rc = layouts_add_message(messages, "user", question, err);
    json_decref(question);
    return rc ? rc : layouts_add_message(messages, "assistant", output, err);
}

/* ---- Messages ---- */

/* Its messages are copied, as each gets "train": false. */
static int take_prompt(json_t *messages, json_t *object, struct error *err)
{
    json_t *prompt = json_object_get(object, "prompt"), *message;
    size_t i;

    json_array_foreach(prompt, i, message)
    {
        json_t *copy = json_copy_whole(message);
        if (!copy || json_array_append_new(messages, copy))
            return error_memory(err);
        const int rc = settle_train(messages, i, true, err);
        if (rc)
            return rc;
        if (json_is_object(message) && json_object_set_new(json_array_get(messages, i), "train", json_false()))
            return error_memory(err);
    }
    return json_array_extend(messages, json_object_get(object, "completion")) ? error_memory(err) : 0;
}

static int layouts_take_messages(json_t *messages, json_t *object, struct error *err)
{
    json_t *given = json_object_get(object, "messages");

    if (!json_is_array(given))
        return error_set(err, -EINVAL, "its messages are no list");
    return json_array_extend(messages, given) ? error_memory(err) : 0;
}

/* A list, or the JSON text of one, as data sets have it whose columns are texts: a new reference. NULL, with 0: there
 * is none. An empty list is one, as in transformers: a template may ask whether there is one. */
static json_t *optional_list(int *rc, json_t *object, const char *key, struct error *err)
{
    json_t *list = json_object_get(object, key), *parsed = NULL;
    json_error_t why;

    if (!layouts_has(object, key) || (json_is_string(list) && json_string_length(list) == 0))
        return NULL;
    if (json_is_string(list))
        list = parsed = wide_read(json_string_value(list), json_string_length(list), JSON_ALLOW_NUL, &why);
    if (!json_is_array(list) && !*rc)
        *rc = error_set(err, -EINVAL, "its %s are no list", key);
    list = *rc ? NULL : json_incref(list);
    json_decref(parsed);
    return list;
}

/* The one of two lists, either of which may be NULL, that is not empty. */
static json_t *fuller(json_t *a, json_t *b)
{
    return !b || json_array_size(a) > 0 ? a : json_array_size(b) > 0 || !a ? b : a;
}

static bool are_full(const json_t *a, const json_t *b)
{
    return json_array_size(a) > 0 && json_array_size(b) > 0;
}

/* OpenAI's tools before they had types. */
static json_t *tools_of_functions(const json_t *functions)
{
    json_t *tools = json_array(), *function;
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)functions, i, function)
    {
        if (json_array_append_new(tools, json_object_get(function, "function")
                                             ? json_incref(function)
                                             : json_pack("{s:s, s:O}", "type", "function", "function", function))) {
            json_decref(tools);
            return NULL;
        }
    }
    return tools;
}

static int take_tools(json_t *out, json_t *object, struct error *err)
{
    int rc = 0;
    json_t *tools = optional_list(&rc, object, "tools", err), *functions = optional_list(&rc, object, "functions", err);

    if (!rc && are_full(tools, functions) && !json_equal(tools, functions))
        rc = error_set(err, -EINVAL, "it has \"tools\" and \"functions\": keep one of them");
    json_t *kept = json_incref(fuller(tools, functions));
    if (kept && kept == functions) {
        json_decref(kept);
        kept = tools_of_functions(functions);
    }
    if (!rc && (tools || functions) && (!kept || json_object_set(out, "tools", kept)))
        rc = error_memory(err);
    json_decref(tools), json_decref(functions), json_decref(kept);
    return rc;
}

/* "chat_template_kwargs", without "documents", which may be one of them, or stand beside them. */
static int take_kwargs(json_t *out, json_t *object, struct error *err)
{
    static const char *const own[] = {"messages", "conversation", "tools", "add_generation_prompt"};
    json_t *given =
        layouts_has(object, "chat_template_kwargs") ? json_object_get(object, "chat_template_kwargs") : NULL;
    int rc = given && !json_is_object(given) ? error_set(err, -EINVAL, "its chat_template_kwargs are no object") : 0;
    json_t *documents = optional_list(&rc, object, "documents", err), *other = NULL, *kwargs = json_copy_whole(given);

    for (size_t i = 0; !rc && i < sizeof own / sizeof *own; i++)
        if (layouts_has(given, own[i]))
            rc = error_set(err, -EINVAL, "its chat_template_kwargs have \"%s\": leave it out there", own[i]);
    if (!rc && are_full(other = optional_list(&rc, given, "documents", err), documents))
        rc = error_set(err, -EINVAL, "it has \"documents\", and its chat_template_kwargs have them, too: keep one");
    if (!rc && (documents || other) && json_object_set(out, "documents", fuller(documents, other)))
        rc = error_memory(err);
    json_object_del(kwargs, "documents");
    if (!rc && given && (!kwargs || json_object_set(out, "chat_template_kwargs", kwargs)))
        rc = error_memory(err);
    json_decref(documents), json_decref(other), json_decref(kwargs);
    return rc;
}

/* "system" becomes the first message, if that is none already. */
static int take_system(json_t *messages, json_t *object, bool is_prompt, struct error *err)
{
    const json_t *first = json_array_get(messages, 0);
    const char *role = json_string_value(json_object_get(first, "role"));
    int rc = 0;
    json_t *system = optional_text(&rc, object, "system", err);

    if (rc || !system)
        return rc;
    if (role && strcmp(role, "system") == 0)
        return json_equal(system, json_object_get(first, "content"))
                   ? 0
                   : error_set(err, -EINVAL,
                               "it has a \"system\", and a first message of the role system: keep one of them");
    json_t *message = json_pack("{s:s, s:O}", "role", "system", "content", system);
    if (!message || json_array_insert_new(messages, 0, message))
        return error_memory(err);
    return is_prompt && json_object_set_new(message, "train", json_false()) ? error_memory(err) : 0;
}

/* The kind's messages first, then what each says of training, and the system's message last: positions in sentences are
 * those of the line. */
json_t *client_layout_conversation(int *rc, json_t *object, struct error *err)
{
    json_t *messages = json_array(), *out = json_pack("{s:o}", "messages", messages);
    const bool is_prompt = !layouts_has(object, "messages") && !layouts_has(object, "conversations") &&
                           !layouts_has(object, "instruction");

    *rc = out ? 0 : error_memory(err);
    if (!*rc)
        *rc = layouts_has(object, "messages")        ? layouts_take_messages(messages, object, err)
              : layouts_has(object, "conversations") ? take_sharegpt(messages, object, err)
              : layouts_has(object, "instruction")   ? take_alpaca(messages, object, err)
                                                     : take_prompt(messages, object, err);
    for (size_t i = 0; !*rc && i < json_array_size(messages); i++)
        *rc =
            json_is_object(json_array_get(messages, i))
                ? settle_train(messages, i, false, err)
                : error_set(err, -EINVAL,
                            "message %zu is no object: a message is {\"role\": \"user\", \"content\": \"...\"}", i + 1);
    if (!*rc)
        *rc = take_system(messages, object, is_prompt, err);
    if (!*rc)
        *rc = take_tools(out, object, err);
    if (!*rc)
        *rc = take_kwargs(out, object, err);
    if (!*rc)
        return out;
    json_decref(out);
    return NULL;
}

/* ---- Preferences ---- */

/* How many messages two lists begin with alike; fewer than either has. */
static size_t layouts_count_alike(const json_t *a, const json_t *b)
{
    size_t n = 0;

    while (n + 1 < json_array_size(a) && n + 1 < json_array_size(b) &&
           json_equal(json_array_get(a, n), json_array_get(b, n)))
        n++;
    return n;
}

/* messages first .. end-1: a new reference, or NULL. */
static json_t *slice(const json_t *messages, size_t first, size_t end)
{
    json_t *out = json_array();

    for (size_t i = first; out && i < end; i++)
        if (json_array_append(out, json_array_get(messages, i))) {
            json_decref(out);
            out = NULL;
        }
    return out;
}

json_t *client_layout_choice(int *rc, json_t *object, bool chosen, struct error *err)
{
    json_t *prompt = json_object_get(object, "prompt"),
           *completion = json_object_get(object, chosen ? "chosen" : "rejected"),
           *other = json_object_get(object, chosen ? "rejected" : "chosen"), *out;

    *rc = 0;
    if (json_is_string(prompt) && json_is_string(completion) && json_is_string(other)) {
        out = json_pack("{s:O, s:O}", "prompt", prompt, "completion", completion);
    } else if (json_is_array(completion) && json_is_array(other)) {
        const size_t n = json_is_array(prompt) ? 0 : layouts_count_alike(completion, other);
        if (n == 0 && !json_is_array(prompt)) {
            *rc = error_set(err, -EINVAL, "its chosen and rejected messages do not begin alike, so there is no prompt");
            return NULL;
        }
        out = json_pack("{s:o, s:o}", "prompt", n > 0 ? slice(completion, 0, n) : json_incref(prompt), "completion",
                        slice(completion, n, json_array_size(completion)));
    } else {
        *rc =
            error_set(err, -EINVAL,
                      "its prompt, chosen and rejected are neither all texts nor lists of messages: give {\"prompt\": "
                      "text, \"chosen\": text, \"rejected\": text}, or lists of messages");
        return NULL;
    }
    bool whole = out;
    for (const char *const *key = beside; whole && *key; key++)
        whole = !layouts_has(object, *key) || json_object_set(out, *key, json_object_get(object, *key)) == 0;
    if (!whole)
        *rc = error_memory(err);
    else if (json_is_array(completion) && json_array_size(json_object_get(out, "completion")) != 1)
        *rc = error_set(err, -EINVAL, "its %s text has %zu messages after the prompt: give one answer",
                        chosen ? "chosen" : "rejected", json_array_size(json_object_get(out, "completion")));
    if (!*rc)
        return out;
    json_decref(out);
    return NULL;
}
