#include "client/rows/layouts.h"

#include "client/text/conversation.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Data sets that were joined have null where a row lacks a column. */
static bool has(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);

    return value && !json_is_null(value);
}

enum client_layout client_layout_of(const json_t *object)
{
    const json_t *prompt = json_object_get(object, "prompt"), *completion = json_object_get(object, "completion");

    if (has(object, "chosen") && has(object, "rejected"))
        return CLIENT_LAYOUT_PREFERENCE;
    if (has(object, "messages") || has(object, "conversations") || has(object, "instruction"))
        return CLIENT_LAYOUT_CONVERSATION;
    if (json_is_string(prompt) && json_is_string(completion))
        return CLIENT_LAYOUT_PROMPT;
    if (json_is_array(prompt) && json_is_array(completion))
        return CLIENT_LAYOUT_CONVERSATION;
    if (json_is_string(json_object_get(object, "source")) && json_is_string(json_object_get(object, "target")))
        return CLIENT_LAYOUT_TARGET;
    return json_is_string(json_object_get(object, "text")) ? CLIENT_LAYOUT_TEXT : CLIENT_LAYOUT_NONE;
}

static int add_message(json_t *messages, const char *role, json_t *content, struct error *err)
{
    json_t *message = json_pack("{s:s, s:O}", "role", role, "content", content);

    return message && json_array_append_new(messages, message) == 0 ? 0 : error_set(err, -ENOMEM, "out of memory");
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
    json_t *value = json_object_get(turn, "value"), *train = json_object_get(turn, "train");

    if (json_object_get(turn, "role"))
        return json_array_append(messages, turn) ? error_set(err, -ENOMEM, "out of memory") : 0;
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
    const int rc = add_message(messages, role, value, err);
    if (!rc && train && json_object_set(json_array_get(messages, json_array_size(messages) - 1), "train", train))
        return error_set(err, -ENOMEM, "out of memory");
    return rc;
}

static int take_sharegpt(json_t *messages, json_t *object, struct error *err)
{
    json_t *turns = json_object_get(object, "conversations"), *turn;
    int rc = 0;
    json_t *system = optional_text(&rc, object, "system", err);
    size_t i;

    if (!rc && !json_is_array(turns))
        rc = error_set(err, -EINVAL, "its conversations are no list");
    if (!rc && system)
        rc = add_message(messages, "system", system, err);
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
    const int rc = add_message(messages, "user", question, err);
    return rc ? rc : add_message(messages, "assistant", answer, err);
}

static int take_alpaca(json_t *messages, json_t *object, struct error *err)
{
    json_t *output = json_object_get(object, "output"), *history = json_object_get(object, "history"), *pair;
    int rc = 0;
    json_t *instruction = optional_text(&rc, object, "instruction", err),
           *input = optional_text(&rc, object, "input", err), *system = optional_text(&rc, object, "system", err);
    size_t i;

    if (!rc && !json_is_string(output))
        rc = error_set(err, -EINVAL, "it has an instruction and no \"output\", a text");
    if (!rc && history && !json_is_null(history) && !json_is_array(history))
        rc = error_set(err, -EINVAL, "its history is no list");
    if (!rc && !instruction && !input)
        rc = error_set(err, -EINVAL, "its instruction is empty");
    if (!rc && system)
        rc = add_message(messages, "system", system, err);
    json_array_foreach(history, i, pair)
    {
        if (!rc)
            rc = add_pair(messages, pair, i, err);
    }
    json_t *question = rc ? NULL : join_lines(instruction, input);
    if (!rc && !question)
        rc = error_set(err, -ENOMEM, "out of memory");
    if (!rc)
        rc = add_message(messages, "user", question, err);
    json_decref(question);
    return rc ? rc : add_message(messages, "assistant", output, err);
}

/* ---- Messages ---- */

static int take_prompt(json_t *messages, json_t *object, struct error *err)
{
    json_t *prompt = json_object_get(object, "prompt"), *message;
    size_t i;

    json_array_foreach(prompt, i, message)
    {
        json_t *copy = json_copy(message);
        if (!copy || (json_is_object(copy) && json_object_set_new(copy, "train", json_false())) ||
            json_array_append_new(messages, copy))
            return error_set(err, -ENOMEM, "out of memory");
    }
    return json_array_extend(messages, json_object_get(object, "completion")) ? error_set(err, -ENOMEM, "out of memory")
                                                                              : 0;
}

static int take_messages(json_t *messages, json_t *object, struct error *err)
{
    json_t *given = json_object_get(object, "messages");

    if (!json_is_array(given))
        return error_set(err, -EINVAL, "its messages are no list");
    return json_array_extend(messages, given) ? error_set(err, -ENOMEM, "out of memory") : 0;
}

/* A list, or the JSON text of one, as data sets have it whose columns are texts. */
static int take_tools(json_t *out, json_t *object, struct error *err)
{
    json_t *tools = json_object_get(object, "tools"), *parsed = NULL;
    int rc = 0;

    if (!tools || json_is_null(tools) || (json_is_string(tools) && json_string_length(tools) == 0))
        return 0;
    if (json_is_string(tools))
        tools = parsed = json_loadb(json_string_value(tools), json_string_length(tools), JSON_ALLOW_NUL, NULL);
    if (!json_is_array(tools))
        rc = error_set(err, -EINVAL, "its tools are no list");
    else if (json_array_size(tools) > 0 && json_object_set(out, "tools", tools))
        rc = error_set(err, -ENOMEM, "out of memory");
    json_decref(parsed);
    return rc;
}

json_t *client_layout_conversation(int *rc, json_t *object, struct error *err)
{
    json_t *messages = json_array(), *out = json_pack("{s:o}", "messages", messages), *message,
           *kwargs = json_object_get(object, "chat_template_kwargs");
    size_t i;

    *rc = out ? 0 : error_set(err, -ENOMEM, "out of memory");
    if (!*rc)
        *rc = has(object, "messages")        ? take_messages(messages, object, err)
              : has(object, "conversations") ? take_sharegpt(messages, object, err)
              : has(object, "instruction")   ? take_alpaca(messages, object, err)
                                             : take_prompt(messages, object, err);
    json_array_foreach(messages, i, message)
    {
        if (!*rc && !json_is_object(message))
            *rc = error_set(err, -EINVAL,
                            "message %zu is no object: a message is {\"role\": \"user\", \"content\": \"...\"}", i + 1);
    }
    if (!*rc)
        *rc = take_tools(out, object, err);
    if (!*rc && has(object, "chat_template_kwargs") && json_object_set(out, "chat_template_kwargs", kwargs))
        *rc = error_set(err, -ENOMEM, "out of memory");
    if (!*rc)
        return out;
    json_decref(out);
    return NULL;
}

/* ---- Preferences ---- */

/* How many messages two lists begin with alike; fewer than either has. */
static size_t count_alike(const json_t *a, const json_t *b)
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
           *other = json_object_get(object, chosen ? "rejected" : "chosen"), *tools = json_object_get(object, "tools"),
           *kwargs = has(object, "chat_template_kwargs") ? json_object_get(object, "chat_template_kwargs") : NULL, *out;

    *rc = 0;
    if (json_is_string(prompt) && json_is_string(completion) && json_is_string(other)) {
        out = json_pack("{s:O, s:O}", "prompt", prompt, "completion", completion);
    } else if (json_is_array(completion) && json_is_array(other)) {
        const size_t n = json_is_array(prompt) ? 0 : count_alike(completion, other);
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
    if (!out || (tools && json_object_set(out, "tools", tools)) ||
        (kwargs && json_object_set(out, "chat_template_kwargs", kwargs)))
        *rc = error_set(err, -ENOMEM, "out of memory");
    else if (json_is_array(completion) && json_array_size(json_object_get(out, "completion")) != 1)
        *rc = error_set(err, -EINVAL, "its %s text has %zu messages after the prompt: give one answer",
                        chosen ? "chosen" : "rejected", json_array_size(json_object_get(out, "completion")));
    if (!*rc)
        return out;
    json_decref(out);
    return NULL;
}
