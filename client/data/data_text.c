/* Tokenises text in pieces into a nameless file of ids, which occupies page cache and ends with the run. */
#include "client/data/data_file.h"
#include "client/data/data.h"
#include "client/text/tokenizer.h"
#include "client/text/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 20 };

struct tokenising {
    struct client_data_pass *pass;
    const struct client_data_file *file;
    int fd; /* receives the ids */
    unsigned width;
    uint64_t n; /* tokens written */
    struct client_tokens tokens;
    char *text; /* (cap) bytes read but not tokenised yet */
    size_t n_text, cap;
};

/* Narrows the ids in place and appends them to the file. */
static int write_ids(struct tokenising *t, struct error *err)
{
    const size_t bytes = t->tokens.n * t->width;
    uint8_t *raw = (uint8_t *)t->tokens.ids;

    for (size_t i = 0; i < t->tokens.n; i++) {
        const uint32_t id = t->tokens.ids[i];
        if (id > t->pass->data->largest)
            t->pass->data->largest = id;
        for (unsigned k = 0; k < t->width; k++)
            raw[i * t->width + k] = (uint8_t)(id >> (8 * k));
    }
    client_data_add(t->pass, raw, bytes);
    const int rc = client_data_write(t->fd, t->file, raw, bytes, t->n * t->width, err);
    t->n += t->tokens.n;
    t->tokens.n = 0;
    return rc;
}

/* Reads more text behind what t->text holds; doubles the buffer when it is full. */
static int read_piece(struct tokenising *t, uint64_t *at, struct error *err)
{
    if (t->n_text == t->cap) {
        const size_t cap = t->cap ? 2 * t->cap : PIECE_BYTES;
        char *larger = cap > 2 * (size_t)CLIENT_TOKENIZER_MAX_WORD ? NULL : realloc(t->text, cap);
        if (!larger)
            return error_set(err, t->cap > CLIENT_TOKENIZER_MAX_WORD ? -EINVAL : -ENOMEM,
                             "%s: a word of %zu bytes is too long%s", t->file->path, t->cap,
                             t->cap > CLIENT_TOKENIZER_MAX_WORD ? ": give token ids as .bin or .npy" : ": no memory");
        t->text = larger, t->cap = cap;
    }
    const uint64_t left = t->file->bytes - *at;
    const size_t now = left < t->cap - t->n_text ? (size_t)left : t->cap - t->n_text;
    int rc = client_data_next(t->pass, t->file, (uint8_t *)t->text + t->n_text, now, *at, err);
    t->n_text += now, *at += now;
    return rc;
}

/* Drops the first n bytes of the text. */
static void drop_front(struct tokenising *t, size_t n)
{
    t->n_text -= n;
    memmove(t->text, t->text + n, t->n_text);
}

static int encode_word(struct tokenising *t, const char *bytes, size_t n, struct error *err)
{
    int rc = client_tokenizer_encode_word(&t->tokens, t->pass->rules->tokenizer, bytes, n, err);

    if (rc)
        error_prefix(err, t->file->path);
    return rc;
}

/* What the tokenizer puts before each document. */
static int begin_document(struct tokenising *t, struct error *err)
{
    size_t n;
    const uint32_t *ids = client_tokenizer_begins(t->pass->rules->tokenizer, &n);

    return n > 0 ? client_tokens_add(&t->tokens, ids, n, err) : 0;
}

/* What the tokenizer puts after each document; then, if another one follows, the end token, unless it is there. */
static int end_document(struct tokenising *t, bool followed, struct error *err)
{
    const uint32_t end = t->pass->end;
    size_t n;
    const uint32_t *ids = client_tokenizer_ends(t->pass->rules->tokenizer, &n);
    int rc = n > 0 ? client_tokens_add(&t->tokens, ids, n, err) : 0;

    if (rc || !followed || end == CLIENT_NO_TOKEN || (n > 0 && ids[n - 1] == end))
        return rc;
    return client_tokens_add(&t->tokens, &end, 1, err);
}

/* Tokenises the first n bytes of t->text, which begins at byte `at` of the file; *used of them were consumed. last: a
 * document ends there. */
static int encode_text(struct tokenising *t, size_t *used, size_t n, uint64_t at, bool last, struct error *err)
{
    const uint8_t *text = (const uint8_t *)t->text;
    const size_t whole = client_utf8_whole(text, n);

    if (whole < n && client_utf8_character(text + whole, n - whole) < 0)
        return client_data_not_text(t->file, at + whole, text[whole], err);
    int rc = client_tokenizer_encode(&t->tokens, used, t->pass->rules->tokenizer, t->text, whole, last, err);
    if (rc) {
        error_prefix(err, t->file->path);
        return rc;
    }
    if (last) { /* part of a character may be left at the end */
        rc = encode_word(t, t->text + whole, n - whole, err);
        *used = n;
    }
    return rc;
}

/* Tokenises as much of t->text as possible: bytes [at - n_text, at) of the file. */
static int encode_piece(struct tokenising *t, uint64_t at, struct error *err)
{
    const char *mark;
    size_t used = 0;

    while (t->file->marked && (mark = memchr(t->text, CLIENT_DATA_MARK, t->n_text))) {
        const size_t n = (size_t)(mark - t->text);
        int rc = encode_text(t, &used, n, at - t->n_text, true, err);
        if (!rc)
            rc = end_document(t, true, err);
        if (!rc)
            rc = begin_document(t, err);
        if (rc)
            return rc;
        drop_front(t, n + 1);
    }
    int rc = encode_text(t, &used, t->n_text, at - t->n_text, at == t->file->bytes, err);
    drop_front(t, used);
    return rc;
}

static int tokenise(struct tokenising *t, bool followed, struct error *err)
{
    uint64_t at = 0;
    int rc = t->file->bytes > 0 ? begin_document(t, err) : 0;

    while (!rc && at < t->file->bytes) {
        const bool first = at == 0;
        rc = read_piece(t, &at, err);
        const size_t head = first && !rc ? client_data_cut((const uint8_t *)t->text, t->n_text) : 0;
        if (head) /* part of a character at the beginning */
            rc = encode_word(t, t->text, head, err);
        drop_front(t, head);
        if (!rc)
            rc = encode_piece(t, at, err);
        if (!rc)
            rc = write_ids(t, err);
    }
    if (rc || t->n == 0)
        return rc;
    rc = end_document(t, followed, err);
    return rc ? rc : write_ids(t, err);
}

int client_data_tokenise(struct client_data_pass *pass, struct client_data_file *file, bool followed, struct error *err)
{
    const bool small = pass->rules->vocabulary <= 65536;
    struct tokenising t = {.pass = pass,
                           .file = file,
                           .width = small ? 2 : 4,
                           .fd = client_data_nameless("tokens", err)};
    int rc = t.fd < 0 ? t.fd : tokenise(&t, followed, err);

    free(t.text);
    free(t.tokens.ids);
    if (rc) {
        if (t.fd >= 0)
            close(t.fd);
        return rc;
    }
    close(file->fd);
    file->fd = t.fd;
    file->type = small ? CLIENT_U16 : CLIENT_U32;
    file->n = t.n;
    return 0;
}
