/* Templates as a whole: opened, rendered, found among a model's files. */
#include "client/text/template/template_internal.h"

#include "proto/model/model_files.h"

#include <errno.h>
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
    template_labels_close(r);
}

static int open_run(struct template_run *r, const struct client_template *t, bool live, struct error *err)
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
        if (!open_run(r, t, false, err))
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
    open_run(r, t, true, err);
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
    const int rc = r->rc;
    if (!rc) {
        *out = (struct client_rendering){r->out.bytes.bytes, r->out.labels, r->out.bytes.n - 1};
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

/* "chat_template": "...", or [{"name": "default", "template": "..."}, ...]. */
static const json_t *find_template(const json_t *config)
{
    const json_t *found = json_object_get(config, "chat_template"), *item;
    size_t i;

    json_array_foreach(found, i, item)
    {
        const char *name = json_string_value(json_object_get(item, "name"));
        if (name && strcmp(name, "default") == 0)
            return json_object_get(item, "template");
    }
    return found;
}

int client_template_find(struct client_template **out, const json_t *side, struct error *err)
{
    size_t n;
    const char *file = "chat_template.jinja", *text = model_files_find(side, file, &n);
    json_t *config = text ? NULL : model_files_json(side, "tokenizer_config.json");
    int rc = 0;

    *out = NULL;
    if (config) {
        const json_t *found = find_template(config);
        file = "tokenizer_config.json: chat_template", text = json_string_value(found), n = json_string_length(found);
    }
    if (text)
        rc = client_template_open(out, text, n, err);
    if (rc)
        error_prefix(err, file);
    json_decref(config);
    return rc;
}
