/* The messages of a conversation are checked, and given to the template as transformers gives them. Whether a role that
 * the template does not name is printed is found by rendering the conversation with another one in its place. */
#include "client/text/turns.h"

#include "client/text/conversation.h"
#include "proto/base/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { TODAY = 1721991600 /* 26 July 2024, 11:00 UTC: the same day in nearly every zone */ };

/* Renders the first n messages. */
int client_turns_render(struct client_rendering *out, const struct client_turns *t, size_t n, bool prompts,
                        struct error *err)
{
    json_t *variables = json_copy_whole(t->variables), *messages = json_array();
    int rc = variables && messages ? 0 : -ENOMEM;

    *out = (struct client_rendering){0};
    for (size_t i = 0; !rc && i < n; i++)
        rc = json_array_append(messages, json_array_get(t->messages, i)) ? -ENOMEM : 0;
    if (!rc && (json_object_set(variables, "messages", messages) ||
                json_object_set_new(variables, "add_generation_prompt", json_boolean(prompts))))
        rc = -ENOMEM;
    if (rc)
        error_memory(err);
    else if ((rc = client_template_render_labelled(out, t->template, variables, TODAY, err)) != 0)
        error_prefix(err, "the chat template");
    json_decref(messages);
    json_decref(variables);
    return rc;
}

bool client_turns_is_role(const json_t *message, const char *role)
{
    const char *is = json_string_value(json_object_get(message, "role"));
    return is && strcmp(is, role) == 0;
}

bool client_conversation_has_zero(const json_t *text)
{
    return json_is_string(text) && strlen(json_string_value(text)) < json_string_length(text);
}

static bool turns_is_word(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-";
    const size_t n = strlen(text);

    return n > 0 && n <= 40 && strspn(text, letters) == n;
}

/* True if the text of the conversation has the role of message i: so has it the template of one that prints any. Roles
 * are no plain text (client/text/template.h), so only words are printed. */
static bool prints_role(struct client_turns *t, size_t i)
{
    static const char probe[] = "role_that_nobody_has";
    json_t *message = json_array_get(t->messages, i), *copy = json_copy_whole(message);
    struct client_rendering text = {0};
    bool found = false;

    if (!turns_is_word(json_string_value(json_object_get(message, "role"))) || !copy)
        goto done;
    json_incref(message);
    if (json_object_set_new(copy, "role", json_string(probe)) == 0 && json_array_set(t->messages, i, copy) == 0) {
        found =
            client_turns_render(&text, t, t->n, false, NULL) == 0 && memmem(text.text, text.n, probe, strlen(probe));
        json_array_set(t->messages, i, message);
    }
    json_decref(message);
done:
    free(text.text);
    free(text.labels);
    json_decref(copy);
    return found;
}

/* A role that a template neither names nor prints is one whose message it may leave out. */
static int check_role(struct client_turns *t, size_t i, struct error *err)
{
    static const char *const known[] = {"system", "user", "assistant", "tool"};
    const char *role = json_string_value(json_object_get(json_array_get(t->messages, i), "role"));

    for (size_t k = 0; k < sizeof known / sizeof *known; k++)
        if (strcmp(role, known[k]) == 0)
            return 0;
    if (client_template_names(t->template, role) || prints_role(t, i))
        return 0;
    return error_set(err, -EINVAL,
                     "message %zu has the role %.40s, which the chat template does not know: roles are system, user, "
                     "assistant and tool",
                     i + 1, role);
}

static int turns_check_message(const json_t *message, size_t i, struct error *err)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    const json_t *train = json_object_get(message, "train");

    if (!role)
        return error_set(err, -EINVAL,
                         "message %zu has no role: a message is {\"role\": \"user\", \"content\": \"...\"}", i + 1);
    if (client_conversation_has_zero(json_object_get(message, "role")))
        return error_set(err, -EINVAL, "message %zu has a role with a zero character", i + 1);
    if (train && !json_is_boolean(train))
        return error_set(err, -EINVAL, "message %zu: its \"train\" is neither true nor false", i + 1);
    if (json_is_true(train) && !client_turns_is_role(message, "assistant"))
        return error_set(err, -EINVAL, "message %zu: \"train\": true is for answers, messages of the role assistant",
                         i + 1);
    return 0;
}

/* A message as transformers gives it to a template: without what is null, and its reasoning by all names. */
static json_t *clean_message(const json_t *message)
{
    static const char *const names[] = {"reasoning_content", "reasoning", "thinking"};
    json_t *out = json_object(), *value, *reasoning = NULL;
    const char *key;

    for (size_t i = 0; !json_is_string(reasoning) && i < sizeof names / sizeof *names; i++)
        reasoning = json_object_get(message, names[i]);
    json_object_foreach((json_t *)message, key, value)
    {
        if (!json_is_null(value) && strcmp(key, "train") != 0)
            json_put(&out, key, json_incref(value));
    }
    if (json_is_string(reasoning)) {
        json_put(&out, "reasoning_content", json_incref(reasoning));
        if (!json_object_get(out, "thinking"))
            json_put(&out, "thinking", json_incref(reasoning));
    }
    return out;
}

/* Roles are checked once all messages are there, as prints_role renders the whole conversation. */
static int turns_take_messages(struct client_turns *t, const json_t *messages, struct error *err)
{
    const enum eps_train_on train_on = t->train_on;
    size_t last = SIZE_MAX;
    int rc = 0;

    t->n = json_array_size(messages);
    t->trained = calloc(t->n + 1, sizeof *t->trained);
    if (!t->trained)
        return error_memory(err);
    if (t->n == 0 || t->n > CLIENT_LABEL_MESSAGE)
        return error_set(err, -EINVAL,
                         t->n == 0 ? "its messages are no list with something in it" : "more than %d messages",
                         CLIENT_LABEL_MESSAGE);
    for (size_t i = 0; !rc && i < t->n; i++) {
        const json_t *message = json_array_get(messages, i), *train = json_object_get(message, "train");
        rc = turns_check_message(message, i, err);
        if (rc)
            break;
        const bool is_answer = client_turns_is_role(message, "assistant");
        last = is_answer ? i : last;
        t->trained[i] = train_on == EPS_TRAIN_ON_ALL    ? !json_is_false(train)
                        : train_on == EPS_TRAIN_ON_LAST ? json_is_true(train)
                                                        : is_answer && !json_is_false(train);
        if (json_array_append_new(t->messages, clean_message(message)))
            rc = error_memory(err);
    }
    for (size_t i = 0; !rc && i < t->n; i++)
        rc = check_role(t, i, err);
    if (!rc && last == SIZE_MAX)
        return error_set(err, -EINVAL, "it has no answer, a message of the role assistant");
    if (!rc && train_on == EPS_TRAIN_ON_LAST &&
        !json_is_false(json_object_get(json_array_get(messages, last), "train")))
        t->trained[last] = true;
    for (size_t i = 0; !rc && i < t->n; i++)
        t->n_trained += t->trained[i];
    return rc || t->n_trained > 0 ? rc : error_set(err, -EINVAL, "none of its answers is trained (\"train\": false)");
}

int client_turns_open(struct client_turns *t, const struct client_template *template, const json_t *variables,
                      enum eps_train_on train_on, const json_t *conversation, struct error *err)
{
    const json_t *tools = json_object_get(conversation, "tools"),
                 *documents = json_object_get(conversation, "documents"),
                 *kwargs = json_object_get(conversation, "chat_template_kwargs");

    *t = (struct client_turns){.template = template, .train_on = train_on};
    t->variables = json_copy_whole(variables);
    if (json_object_set_new(t->variables, "messages", json_array())) /* also without variables, then freeing the list */
        return error_memory(err);
    t->messages = json_object_get(t->variables, "messages");
    if (tools && !json_is_null(tools) && !json_is_array(tools))
        return error_set(err, -EINVAL, "its tools are no list");
    if (kwargs && !json_is_null(kwargs) && !json_is_object(kwargs))
        return error_set(err, -EINVAL, "its chat_template_kwargs are no object");
    if (json_is_array(tools) && json_object_set(t->variables, "tools", (json_t *)(uintptr_t)tools))
        return error_memory(err);
    if (json_is_array(documents) && json_object_set(t->variables, "documents", (json_t *)(uintptr_t)documents))
        return error_memory(err);
    if (json_is_object(kwargs) && json_object_update_missing(t->variables, (json_t *)(uintptr_t)kwargs))
        return error_memory(err);
    return turns_take_messages(t, json_object_get(conversation, "messages"), err);
}

void client_turns_close(struct client_turns *t)
{
    json_decref(t->variables);
    free(t->trained);
}
