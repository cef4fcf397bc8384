/* Runs before the data are read as tokens, for which there is no tokenizer yet, so the texts are read twice. Each
 * reading has descriptors of its own. A share of a file may end within a character, which then is no fault; the second
 * reading refuses one that the file itself cuts off. */
#include "client/corpus/learn.h"

#include "client/data/data_file.h"
#include "client/text/tokenizer.h"
#include "client/text/utf8.h"
#include "client/text/words.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More text hardly changes the most frequent pairs. */
enum { ENOUGH_BYTES = 16 << 20 };

struct learning {
    struct client_data_pass pass;
    struct client_words *words;
    char *text; /* (ENOUGH_BYTES) from one file */
};

/* Each document is a text of its own: no word crosses into the next. */
static int learn_count_documents(struct learning *l, const struct client_data_file *file, const char *text, size_t n,
                                 struct error *err)
{
    size_t used;
    int rc = 0;

    for (size_t at = 0; !rc && at < n;) {
        const char *mark = file->marked ? memchr(text + at, CLIENT_DATA_MARK, n - at) : NULL;
        const size_t length = mark ? (size_t)(mark - text) - at : n - at;
        const size_t whole = client_utf8_whole((const uint8_t *)text + at, length);
        const uint8_t *rest = (const uint8_t *)text + at + whole;
        if (whole < length && (mark || client_utf8_character(rest, length - whole) < 0))
            return client_data_not_text(file, (uint64_t)((const char *)rest - l->text), *rest, err);
        rc = client_words_count(l->words, &used, text + at, whole, true, err);
        if (rc)
            error_prefix(err, file->path);
        at += length + 1;
    }
    return rc;
}

static int count_file(struct learning *l, const struct client_data_file *file, uint64_t total, struct error *err)
{
    const uint64_t share = (uint64_t)((unsigned __int128)file->bytes * ENOUGH_BYTES / total);
    const size_t n = (size_t)(total > ENOUGH_BYTES ? share : file->bytes);
    int rc = client_data_next(&l->pass, file, (uint8_t *)l->text, n, 0, err);

    if (rc)
        return rc;
    const size_t head = client_data_cut((const uint8_t *)l->text, n);
    return learn_count_documents(l, file, l->text + head, n - head, err);
}

int client_learn_size(uint64_t *n, struct client_data *data, const struct client_data_rules *rules, struct error *err)
{
    struct client_data_pass pass = {.data = data, .rules = rules, .end = CLIENT_NO_TOKEN};
    int rc = 0;

    *n = 0;
    for (size_t i = 0; !rc && i < data->n_files; i++) {
        rc = client_data_unpack(&pass, &data->files[i], err);
        *n += data->files[i].bytes;
    }
    return rc;
}

/* The texts of a file of data, as a file of its own: who reads data later finds its lines. Close its fd. */
static int open_texts(struct client_data_file *out, struct learning *l, struct client_data_file *file,
                      struct error *err)
{
    int rc = client_data_unpack(&l->pass, file, err);

    if (rc)
        return rc;
    *out = *file;
    out->unread = (struct client_unread){0};
    out->fd = fcntl(file->fd, F_DUPFD_CLOEXEC, 0);
    return out->fd < 0 ? error_set(err, -errno, "%s: %s", file->path, strerror(errno))
                       : client_data_extract(&l->pass, out, err);
}

static int count_files(struct learning *l, struct error *err)
{
    const struct client_data *data = l->pass.data;
    struct client_data_file *texts = calloc(data->n_files + 1, sizeof *texts);
    size_t n = 0;
    uint64_t total = 0;
    int rc = texts ? 0 : error_memory(err);

    for (; !rc && n < data->n_files; n++) {
        texts[n].fd = -1;
        rc = open_texts(&texts[n], l, &data->files[n], err);
        total += texts[n].bytes;
    }
    for (size_t i = 0; !rc && i < n; i++)
        if (client_data_is_a_text(&texts[i]) && texts[i].bytes > 0)
            rc = count_file(l, &texts[i], total, err);
    for (size_t i = 0; i < n; i++) {
        if (texts[i].fd >= 0)
            close(texts[i].fd);
        client_unread_free(&texts[i].unread);
    }
    free(texts);
    return rc;
}

int client_learn(json_t *side, struct client_data *data, uint32_t vocabulary, uint32_t n_positions,
                 const struct client_data_rules *rules, struct error *err)
{
    const bool ends = rules->separator != EPS_SEPARATOR_NONE;
    struct learning l = {.pass = {.data = data, .rules = rules, .end = ends ? CLIENT_TOKENIZER_END : CLIENT_NO_TOKEN},
                         .text = malloc(ENOUGH_BYTES)};
    struct client_token_merge *merges = NULL;
    uint32_t bytes[256];
    size_t n = 0;
    int rc = l.text ? client_words_open(&l.words, err) : error_memory(err);

    client_tokenizer_order(bytes);
    if (!rc)
        rc = count_files(&l, err);
    if (!rc)
        rc = client_words_merge(&merges, &n, l.words, bytes, CLIENT_TOKENIZER_LEARNED, vocabulary, rules->watch, err);
    if (!rc)
        rc = client_tokenizer_add_learned(side, merges, n, n_positions, err);
    client_words_close(l.words);
    free(merges);
    free(l.text);
    return rc;
}
