/* Tokenises text block by block into a nameless file of ids, which occupies page cache and ends with the run. */
#include "client/data/data_file.h"
#include "client/data/data.h"
#include "client/data/pieces.h"
#include "client/text/tokenizer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Memory for each thread: 1 MiB of text and its ids, about as many bytes. Pieces of 256 KiB keep all threads busy until
 * a block ends; 4 KiB hold hundreds of words. */
enum { READ_BYTES = 1 << 20, PIECE_BYTES = READ_BYTES / CLIENT_PIECES_OF_A_THREAD, OVERLAP_BYTES = 4 << 10 };

struct tokenising {
    struct client_data_pass *pass;
    const struct client_data_file *file;
    struct client_pieces *pieces;
    int fd; /* receives the ids */
    unsigned width;
    uint64_t n; /* tokens written */
    char *text; /* (cap) bytes read but not tokenised yet */
    size_t n_text, cap;
};

/* Narrows the ids in place and appends them to the file. */
static int data_text_write_ids(void *data, uint32_t *ids, size_t n, struct error *err)
{
    struct tokenising *t = data;
    const size_t bytes = n * t->width;
    uint8_t *raw = (uint8_t *)ids;

    for (size_t i = 0; i < n; i++) {
        const uint32_t id = ids[i];
        if (id > t->pass->data->largest)
            t->pass->data->largest = id;
        for (unsigned k = 0; k < t->width; k++)
            raw[i * t->width + k] = (uint8_t)(id >> (8 * k));
    }
    client_data_add(t->pass, raw, bytes);
    const int rc = client_data_write(t->fd, t->file, raw, bytes, t->n * t->width, err);
    t->n += n;
    return rc;
}

/* Doubles the buffer, which is full of a word that does not end. */
static int data_text_widen(struct tokenising *t, struct error *err)
{
    const size_t most = 2 * (size_t)CLIENT_TOKENIZER_MAX_WORD, cap = t->cap < most / 2 ? 2 * t->cap : most;
    char *larger = t->cap < most ? realloc(t->text, cap) : NULL;

    if (!larger)
        return error_set(err, t->cap > CLIENT_TOKENIZER_MAX_WORD ? -EINVAL : -ENOMEM,
                         "%s: a word of %zu bytes is too long%s", t->file->path, t->cap,
                         t->cap > CLIENT_TOKENIZER_MAX_WORD ? ": give token ids as .bin or .npy" : ": no memory");
    t->text = larger, t->cap = cap;
    return 0;
}

/* Reads more text behind what t->text holds until it is full or the file ends. */
static int data_text_read_block(struct tokenising *t, uint64_t *at, struct error *err)
{
    int rc = t->n_text == t->cap ? data_text_widen(t, err) : 0;

    while (!rc && *at < t->file->bytes && t->n_text < t->cap) {
        const uint64_t left = t->file->bytes - *at;
        size_t now = t->cap - t->n_text < READ_BYTES ? t->cap - t->n_text : READ_BYTES; /* the watch is asked between */
        now = left < now ? (size_t)left : now;
        rc = client_data_next(t->pass, t->file, (uint8_t *)t->text + t->n_text, now, *at, err);
        t->n_text += now, *at += now;
    }
    return rc;
}

/* Drops the first n bytes of the text. */
static void drop_front(struct tokenising *t, size_t n)
{
    t->n_text -= n;
    memmove(t->text, t->text + n, t->n_text);
}

static int tokenise(struct tokenising *t, bool followed, struct error *err)
{
    uint64_t at = 0;
    int rc = 0;

    while (!rc && at < t->file->bytes) {
        const bool first = at == 0;
        rc = data_text_read_block(t, &at, err);
        if (first && !rc) { /* the file may begin with part of a character */
            const size_t head = client_data_cut((const uint8_t *)t->text, t->n_text);
            rc = client_pieces_begin(t->pieces, t->text, head, data_text_write_ids, t, err);
            drop_front(t, head);
        }
        size_t used = 0;
        if (!rc)
            rc = client_pieces_encode(t->pieces, &used, t->text, t->n_text, at - t->n_text, at == t->file->bytes,
                                      data_text_write_ids, t, err);
        if (!rc)
            drop_front(t, used);
    }
    return rc || t->n == 0 ? rc : client_pieces_end(t->pieces, followed, data_text_write_ids, t, err);
}

static int open_pieces(struct tokenising *t, struct error *err)
{
    const uint64_t n_pieces = t->file->bytes / PIECE_BYTES;
    const unsigned n_cores = client_pieces_threads();
    const struct client_pieces_options options = {.tokenizer = t->pass->rules->tokenizer,
                                                  .file = t->file,
                                                  .end = t->pass->end,
                                                  .watch = t->pass->rules->watch,
                                                  .n_threads = n_pieces < n_cores ? (unsigned)n_pieces : n_cores,
                                                  .piece_bytes = PIECE_BYTES,
                                                  .overlap_bytes = OVERLAP_BYTES};

    t->cap = READ_BYTES * (size_t)(options.n_threads > 0 ? options.n_threads : 1);
    t->text = malloc(t->cap);
    return t->text ? client_pieces_open(&t->pieces, &options, err)
                   : error_set(err, -ENOMEM, "%s: out of memory", t->file->path);
}

int client_data_tokenise(struct client_data_pass *pass, struct client_data_file *file, bool followed, struct error *err)
{
    const bool small = pass->rules->vocabulary <= 65536;
    struct tokenising t = {.pass = pass,
                           .file = file,
                           .width = small ? 2 : 4,
                           .fd = client_data_nameless("tokens", err)};
    int rc = t.fd < 0 ? t.fd : open_pieces(&t, err);

    if (!rc)
        rc = tokenise(&t, followed, err);
    client_pieces_close(t.pieces);
    free(t.text);
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
