/* Templates are searched as text, not run: a key that one mentions anywhere passes as read. Answers are remembered, as
 * data have many lines of few keys; by how the name is used, as a member may be read whose name as a variable is
 * not. */
#include "client/corpus/keys.h"

#include "client/corpus/layouts.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct client_keys {
    json_t *texts; /* a list: of all templates */
    json_t *known; /* {word: true or false}: whether one names it */
};

/* ---- What templates name ---- */

static int add_templates(json_t *texts, const char *file, json_t *content)
{
    const char *text = json_string_value(content);
    const size_t n = strlen(file);
    json_t *root, *value, *item;
    size_t i;
    int rc = 0;

    if (text && n > 6 && strcmp(file + n - 6, ".jinja") == 0)
        return json_array_append(texts, content);
    if (!text || (strcmp(file, "tokenizer_config.json") != 0 && strcmp(file, "chat_template.json") != 0))
        return 0;
    root = json_loads(text, 0, NULL);
    value = json_object_get(root, "chat_template");
    if (json_is_string(value))
        rc = json_array_append(texts, value);
    json_array_foreach(value, i, item)
    {
        if (json_is_string(json_object_get(item, "template")))
            rc |= json_array_append(texts, json_object_get(item, "template"));
    }
    json_decref(root);
    return rc;
}

int client_keys_open(struct client_keys **out, const json_t *side, struct error *err)
{
    struct client_keys *keys = calloc(1, sizeof *keys);
    const char *file;
    json_t *content;
    int rc = 0;

    *out = keys;
    if (keys)
        *keys = (struct client_keys){json_array(), json_object()};
    json_object_foreach((json_t *)(uintptr_t)side, file, content) rc |=
        keys ? add_templates(keys->texts, file, content) : 0;
    if (keys && keys->texts && keys->known && !rc)
        return 0;
    client_keys_close(keys);
    *out = NULL;
    return error_memory(err);
}

void client_keys_close(struct client_keys *keys)
{
    if (!keys)
        return;
    json_decref(keys->texts);
    json_decref(keys->known);
    free(keys);
}

static bool is_of_name(char c)
{
    return isalnum((unsigned char)c) || c == '_';
}

/* member: a name of a member, behind a point or a quote; else any name. */
static bool names(const char *text, const char *word, bool member)
{
    const size_t n = strlen(word);

    for (const char *at = text; n > 0 && (at = strstr(at, word)); at++) {
        const char before = at > text ? at[-1] : ' ';
        if (!is_of_name(at[n]) && (member ? before && strchr(".'\"", before) : !is_of_name(before)))
            return true;
    }
    return false;
}

enum { MOST_KNOWN = 1000 }; /* names whose answer is kept: data may have any number of keys */

static bool any_names(struct client_keys *keys, const char *word, bool member)
{
    char memo[80];
    size_t i;
    json_t *text;
    bool found = false;

    if (strlen(word) + 2 > sizeof memo)
        return true; /* no name in a template */
    memo[0] = member ? '.' : ' ';
    strcpy(memo + 1, word);
    const json_t *known = json_object_get(keys->known, memo);
    if (known)
        return json_is_true(known);
    json_array_foreach(keys->texts, i, text) found |= names(json_string_value(text), word, member);
    if (json_object_size(keys->known) < MOST_KNOWN)
        json_object_set_new(keys->known, memo, json_boolean(found));
    return found;
}

/* Templates have a message's reasoning by several names (client/text/conversation.c). */
static bool reads_in_message(struct client_keys *keys, const char *key)
{
    static const char *const reasoning[] = {"reasoning_content", "reasoning", "thinking"};
    bool found = client_layout_has_in_messages(key) || any_names(keys, key, true);

    for (size_t i = 0; i < 3 && !found; i++)
        if (strcmp(key, reasoning[i]) == 0)
            found = any_names(keys, reasoning[0], true) || any_names(keys, reasoning[2], true);
    return found;
}

static bool reads_beside(struct client_keys *keys, const char *key)
{
    if (strcmp(key, "tools") == 0 || strcmp(key, "functions") == 0)
        return any_names(keys, "tools", false);
    return strcmp(key, "documents") != 0 || any_names(keys, "documents", false);
}

/* ---- Counting ---- */

static void count_message(struct client_unread *out, struct client_keys *keys, const json_t *message, uint64_t line)
{
    const bool turn = !json_object_get(message, "role"); /* sharegpt's, of which a template gets nothing else */
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        const bool is_read = turn ? strcmp(key, "from") == 0 || strcmp(key, "value") == 0 ||
                                        (strcmp(key, "content") != 0 && client_layout_has_in_messages(key))
                                  : reads_in_message(keys, key);
        if (!json_is_null(value) && !is_read)
            client_unread_count(out, CLIENT_UNREAD_MESSAGE, key, line);
    }
}

static bool keys_is_empty(const json_t *value)
{
    return json_is_null(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_string(value) && json_string_length(value) == 0);
}

void client_keys_count(struct client_unread *out, struct client_keys *keys, const json_t *object, uint64_t line)
{
    static const char *const lists[] = {"messages", "conversations", "prompt", "completion", "chosen", "rejected"};
    const char *key;
    json_t *value, *message;
    size_t i;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        if (json_is_null(value))
            continue;
        if (!client_layout_has(object, key) || (!keys_is_empty(value) && !reads_beside(keys, key)))
            client_unread_count(out, CLIENT_UNREAD_KEY, key, line);
    }
    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        value = client_layout_has(object, lists[k]) ? json_object_get(object, lists[k]) : NULL;
        json_array_foreach(value, i, message) count_message(out, keys, message, line);
    }
}
