/* JSON lines: each line is an object that holds a text. The texts go one after the other into a nameless file, which is
 * then read like any text. */
#include "client/data/data_file.h"
#include "client/data/data.h"
#include "client/text/utf8.h"
#include "proto/base/wide.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct lines {
    struct client_data_file *file;
    int fd; /* receives the texts */
    uint64_t line, n_written;
    struct client_text text; /* the current line's text */
};

static int data_lines_refuse(const struct lines *l, const char *why, struct error *err)
{
    return error_set(err, -EINVAL, "%s: line %" PRIu64 ": %s", l->file->path, l->line, why);
}

static int data_lines_add(struct lines *l, const char *bytes, size_t n, struct error *err)
{
    int rc = client_text_add(&l->text, bytes, n, err);

    if (rc)
        error_prefix(err, l->file->path);
    return rc;
}

static int data_lines_add_string(struct lines *l, const json_t *string, struct error *err)
{
    return data_lines_add(l, json_string_value(string), json_string_length(string), err);
}

static int data_lines_add_object(struct lines *l, const json_t *object, struct error *err)
{
    const json_t *text = json_object_get(object, "text");
    const json_t *prompt = json_object_get(object, "prompt"), *completion = json_object_get(object, "completion");

    if (json_is_string(text))
        return data_lines_add_string(l, text, err);
    if (json_is_string(prompt) && json_is_string(completion)) {
        const int rc = data_lines_add_string(l, prompt, err);
        return rc ? rc : data_lines_add_string(l, completion, err);
    }
    if (json_object_get(object, "messages") || json_object_get(object, "conversations") ||
        json_object_get(object, "instruction"))
        return data_lines_refuse(
            l,
            "a conversation, in a stream of text: conversations need a model with a chat template (--model "
            "DIR), and the "
            "first line of a file must be one",
            err);
    return data_lines_refuse(l, "no object with \"text\", or \"prompt\" and \"completion\", as texts", err);
}

static void data_lines_count_unread(struct lines *l, const json_t *object)
{
    const bool has_text = json_is_string(json_object_get(object, "text"));
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)(uintptr_t)object, key, value)
    {
        const bool is_read =
            has_text ? strcmp(key, "text") == 0 : strcmp(key, "prompt") == 0 || strcmp(key, "completion") == 0;
        if (!is_read && !json_is_null(value))
            client_unread_count(&l->file->unread, CLIENT_UNREAD_KEY, key, l->line);
    }
}

/* Writes the text of a line and its separator: before it the mark of a document, or after it a newline. */
static int data_lines_write_text(struct lines *l, struct error *err)
{
    const char mark = (char)CLIENT_DATA_MARK;
    int rc = 0;

    if (l->text.n == 0)
        return 0;
    if (!l->file->marked && l->text.bytes[l->text.n - 1] != '\n')
        rc = data_lines_add(l, "\n", 1, err);
    if (!rc && l->file->marked && l->n_written > 0)
        rc = client_data_write(l->fd, l->file, &mark, 1, l->n_written++, err);
    if (!rc)
        rc = client_data_write(l->fd, l->file, l->text.bytes, l->text.n, l->n_written, err);
    l->n_written += l->text.n;
    return rc;
}

static int take_line(void *user, const char *line, size_t n, uint64_t number, struct error *err)
{
    struct lines *l = user;
    json_error_t why;

    l->line = number;
    l->text.n = 0;
    if (client_data_is_blank(line, n))
        return 0;
    json_t *object = wide_read(line, n, JSON_ALLOW_NUL, &why);
    int rc = object ? data_lines_add_object(l, object, err) : 0;
    if (!object)
        rc = error_set(err, -EINVAL, "%s: line %" PRIu64 " is not JSON (%.100s): .jsonl has one object per line",
                       l->file->path, l->line, why.text);
    data_lines_count_unread(l, object);
    json_decref(object);
    return rc ? rc : data_lines_write_text(l, err);
}

/* From here on the file is one of plain text: its descriptor is the nameless file's, and the first one is closed. */
int client_data_extract(struct client_data_pass *pass, struct client_data_file *file, struct error *err)
{
    int rc = client_data_unpack(pass, file, err);

    if (rc || file->kind != CLIENT_DATA_LINES)
        return rc;
    file->marked = pass->end != CLIENT_NO_TOKEN;
    struct lines l = {.file = file, .fd = client_data_nameless("texts", err)};
    rc = l.fd < 0 ? l.fd : client_data_each_line(pass, file, take_line, &l, err);

    free(l.text.bytes);
    if (rc) {
        if (l.fd >= 0)
            close(l.fd);
        return rc;
    }
    close(file->fd);
    file->fd = l.fd;
    file->bytes = l.n_written;
    file->kind = CLIENT_DATA_TEXT;
    return 0;
}
