/* Templates as a whole: opened, rendered, found among a model's files. */
#include "client/text/template/template_internal.h"

#include "proto/model/file/model_files.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void free_run(struct template_run *r)
{
    while (r->n_variables > 0)
        json_decref(r->variables[--r->n_variables].value);
    free(r->variables);
    json_decref(r->namespaces);
    json_decref(r->undefined);
    template_text_free(&r->out);
    free(r->empty);
    template_labels_close(r);
}

static int template_open_run(struct template_run *r, const struct client_template *t, bool live, struct error *err)
{
    *r = (struct template_run){.template = t,
                               .at = t->tokens,
                               .live = live,
                               .undefined = json_array(),
                               .namespaces = json_array(),
                               .err = err};
    if (!r->undefined || !r->namespaces)
        template_no_memory(r);
    return r->rc;
}

/* Newlines become \n; one at the end goes. */
static int copy_source(struct client_template *t, const char *text, size_t n, struct error *err)
{
    t->source = malloc(n + 1);
    if (!t->source)
        return error_set(err, -ENOMEM, "out of memory for a chat template");
    for (size_t i = 0; i < n; i++) {
        if (text[i] != '\n' || i == 0 || text[i - 1] != '\r')
            t->source[t->n_source++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (t->n_source > 0 && t->source[t->n_source - 1] == '\n')
        t->n_source--;
    t->source[t->n_source] = 0;
    return 0;
}

int client_template_open(struct client_template **out, const char *text, size_t n, struct error *err)
{
    struct client_template *t = calloc(1, sizeof *t);
    struct template_run *r = malloc(sizeof *r);
    int rc = 0;

    *out = NULL;
    if (!t || !r)
        rc = error_set(err, -ENOMEM, "out of memory for a chat template");
    else if (n > CLIENT_TEMPLATE_MAX_BYTES)
        rc = error_set(err, -EFBIG, "has more than %d MiB", CLIENT_TEMPLATE_MAX_BYTES >> 20);
    else if (client_utf8_whole((const uint8_t *)text, n) < n)
        rc = error_set(err, -EINVAL, "is not UTF-8 text");
    else
        rc = copy_source(t, text, n, err);
    if (!rc)
        rc = template_read(t, err);
    if (!rc) {
        /* A run that is not live reads all of the template, so its grammar is checked once, before any conversation. */
        if (!template_open_run(r, t, false, err))
            template_run_to(r, NULL);
        rc = r->rc;
        free_run(r);
    }
    free(r);
    if (rc)
        client_template_close(t);
    else
        *out = t;
    return rc;
}

void client_template_close(struct client_template *t)
{
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        json_decref(t->tokens[i].value);
    free(t->tokens);
    free(t->source);
    free(t);
}

static int render(struct client_rendering *out, const struct client_template *t, const json_t *variables, time_t now,
                  bool labelled, struct error *err)
{
    struct template_run *r = malloc(sizeof *r);
    const char *key;
    json_t *value;

    *out = (struct client_rendering){0};
    if (!r)
        return error_set(err, -ENOMEM, "out of memory for a chat template");
    template_open_run(r, t, true, err);
    r->now = now;
    if (!r->rc && labelled)
        template_labels_open(r, variables);
    json_object_foreach((json_t *)variables, key, value)
    {
        const struct template_token name = {.text = key, .n = strlen(key)};
        if (!r->rc)
            template_set(r, &name, json_incref(value));
    }
    if (!r->rc)
        template_run_to(r, NULL);
    if (!r->rc)
        template_add(r, &r->out, "", 1);
    if (!r->rc)
        template_labels_append_empty(r);
    /* The 0 that ends the text is its last byte, and not counted. */
    const int rc = r->rc;
    if (!rc) {
        *out = (struct client_rendering){r->out.bytes.bytes, r->out.labels, r->out.bytes.n - 1, r->n_empty};
        r->out = (struct template_text){0};
    }
    free_run(r);
    free(r);
    return rc;
}

int client_template_render(char **text, size_t *n, const struct client_template *t, const json_t *variables, time_t now,
                           struct error *err)
{
    struct client_rendering rendering;
    const int rc = render(&rendering, t, variables, now, false, err);

    *text = rendering.text;
    if (!rc)
        *n = rendering.n;
    return rc;
}

int client_template_render_labelled(struct client_rendering *out, const struct client_template *t,
                                    const json_t *variables, time_t now, struct error *err)
{
    return render(out, t, variables, now, true, err);
}

bool client_template_marks_answers(const struct client_template *t)
{
    for (size_t i = 0; i + 1 < t->n; i++)
        if (t->tokens[i].kind == TEMPLATE_TAG && template_is(&t->tokens[i + 1], TEMPLATE_NAME, "generation"))
            return true;
    return false;
}

bool client_template_names(const struct client_template *t, const char *text)
{
    for (size_t i = 0; i < t->n; i++) {
        const char *literal = t->tokens[i].kind == TEMPLATE_LITERAL ? json_string_value(t->tokens[i].value) : NULL;
        if (literal && strcmp(literal, text) == 0)
            return true;
    }
    return false;
}

/* ---- The template of a model ---- */

enum { NAMES_BYTES = 200 };

/* The template of this name in [{"name": "default", "template": "..."}, ...], a string, or NULL. */
static const json_t *find_named(const json_t *list, const char *name)
{
    const json_t *item;
    size_t i;

    json_array_foreach(list, i, item)
    {
        const char *is = json_string_value(json_object_get(item, "name"));
        if (is && strcmp(is, name) == 0)
            return json_object_get(item, "template");
    }
    return NULL;
}

/* The names of a list as "default, rag", or those that there is room for. */
static const char *list_names(char out[NAMES_BYTES], const json_t *list)
{
    const json_t *item;
    size_t i, n = 0;

    *out = 0;
    json_array_foreach(list, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && n < NAMES_BYTES)
            n += (size_t)snprintf(out + n, NAMES_BYTES - n, "%s%.60s", n > 0 ? ", " : "", name);
    }
    return out;
}

/* Chooses among what a file has: a text, whose name is default, or a list. */
static int template_choose(const json_t **out, const json_t *found, const char *name, bool tools, struct error *err)
{
    char names[NAMES_BYTES];

    *out = NULL;
    if (json_is_array(found) && name)
        *out = find_named(found, name);
    else if (json_is_array(found))
        *out = tools && find_named(found, "tool_use") ? find_named(found, "tool_use") : find_named(found, "default");
    else if (!name || strcmp(name, "default") == 0)
        *out = found;
    if (json_is_string(*out) || (!json_is_array(found) && !name))
        return 0;
    if (name)
        return error_set(err, -EDOM, "--chat-template %.60s: the model has no chat template of this name%s%s", name,
                         json_is_array(found) ? ", but " : ": it has one, which is called default",
                         json_is_array(found) ? list_names(names, found) : "");
    return error_set(err, -ENOKEY,
                     "the model has the chat templates %s, and none is called default: give --chat-template",
                     list_names(names, found));
}

int client_template_find(struct client_template **out, const json_t *side, const char *name, bool tools,
                         struct error *err)
{
    static const char *const files[] = {"tokenizer_config.json", "chat_template.json"};
    const char *file = "chat_template.jinja";
    const json_t *found = json_object_get(side, file), *text = NULL;
    json_t *config = NULL;
    int rc = 0;

    *out = NULL;
    for (size_t i = 0; !found && i < sizeof files / sizeof *files; i++) {
        json_decref(config);
        config = model_files_json(side, files[i]);
        file = files[i], found = json_object_get(config, "chat_template");
        found = json_is_string(found) || json_is_array(found) ? found : NULL;
    }
    if (found)
        rc = template_choose(&text, found, name, tools, err);
    else if (name)
        rc = error_set(err, -EDOM, "--chat-template %.60s: the model has no chat template", name);
    if (!rc && json_is_string(text)) {
        rc = client_template_open(out, json_string_value(text), json_string_length(text), err);
        if (rc && config)
            error_prefix(err, "chat_template");
        if (rc)
            error_prefix(err, file);
    }
    json_decref(config);
    return rc;
}
