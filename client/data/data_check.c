/* Reads every token once before a run begins, so that a bad token is found now rather than after hours. */
#include "client/data/data_file.h"
#include "client/text/tokenizer.h"
#include "client/text/utf8.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

enum { BLOCK_BYTES = 256 << 10, UNASKED_BYTES = 4 << 20 };

struct check {
    struct client_data_pass pass;
    uint8_t *block; /* (BLOCK_BYTES) */
};

int client_data_next(struct client_data_pass *pass, const struct client_data_file *file, uint8_t *out, size_t n,
                     uint64_t at, struct error *err)
{
    const struct client_watch *watch = pass->rules->watch;

    pass->n_asked += n;
    if (watch && watch->ask && pass->n_asked >= UNASKED_BYTES) {
        int rc = watch->ask(watch->data, err);
        if (rc)
            return rc;
        pass->n_asked = 0;
    }
    return client_data_pread(file, out, n, file->offset + at, err);
}

int client_data_write(int fd, const struct client_data_file *file, const void *bytes, size_t n, uint64_t at,
                      struct error *err)
{
    for (size_t done = 0; done < n;) {
        const ssize_t put = pwrite(fd, (const char *)bytes + done, n - done, (off_t)(at + done));
        if (put < 0 && errno == EINTR)
            continue;
        if (put < 0)
            return error_set(err, -errno, "%s: no room for a temporary copy: %s: set TMPDIR to another directory",
                             file->path, strerror(errno));
        done += (size_t)put;
    }
    return 0;
}

void client_data_add(struct client_data_pass *pass, const uint8_t *raw, size_t n)
{
    XXH3_64bits_update(pass->hash, raw, n);
}

int client_data_not_text(const struct client_data_file *file, uint64_t at, uint8_t byte, struct error *err)
{
    return error_set(err, -EINVAL,
                     "%s: not UTF-8 text at byte %" PRIu64 " (0x%02X): convert it (iconv -t UTF-8), or name files of "
                     "token ids .bin or .npy",
                     file->path, at, byte);
}

size_t client_data_cut(const uint8_t *text, size_t n)
{
    size_t i = 0;

    while (i < 3 && i < n && (text[i] & 0xC0) == 0x80)
        i++;
    return i;
}

/* Checks a text whose bytes are its tokens. The beginning of a character that crosses into the next block is kept. */
static int check_bytes(struct check *c, struct client_data_file *file, struct error *err)
{
    size_t kept = 0;

    file->type = CLIENT_U8, file->n = file->bytes;
    for (uint64_t at = 0; at < file->bytes;) {
        const uint64_t left = file->bytes - at;
        const size_t now = left < BLOCK_BYTES - kept ? (size_t)left : BLOCK_BYTES - kept, n = kept + now;
        int rc = client_data_next(&c->pass, file, c->block + kept, now, at, err);
        if (rc)
            return rc;
        client_data_add(&c->pass, c->block + kept, now);
        const size_t cut = at == 0 ? client_data_cut(c->block, n) : 0;
        const size_t whole = cut + client_utf8_whole(c->block + cut, n - cut);
        if (whole < n && client_utf8_character(c->block + whole, n - whole) < 0)
            return client_data_not_text(file, at - kept + whole, c->block[whole], err);
        at += now;
        kept = n - whole;
        memmove(c->block, c->block + whole, kept);
    }
    if (file->n > 0 && c->pass.data->largest < 255)
        c->pass.data->largest = 255; /* a text may use any byte */
    return 0;
}

struct range {
    int64_t least, most;
};

static inline __attribute__((always_inline)) struct range range_as(const uint8_t *raw, size_t n,
                                                                   enum client_integer type)
{
    struct range r = {INT64_MAX, INT64_MIN};

    for (size_t i = 0; i < n; i++) {
        const int64_t token = client_data_token(raw, i, type);
        r.least = token < r.least ? token : r.least;
        r.most = token > r.most ? token : r.most;
    }
    return r;
}

/* One loop for each type, so that the compiler can vectorise it. */
static struct range data_check_range_of(const uint8_t *raw, size_t n, enum client_integer type)
{
    switch (type) {
    case CLIENT_U8:
        return range_as(raw, n, CLIENT_U8);
    case CLIENT_U16:
        return range_as(raw, n, CLIENT_U16);
    case CLIENT_U32:
        return range_as(raw, n, CLIENT_U32);
    case CLIENT_I32:
        return range_as(raw, n, CLIENT_I32);
    case CLIENT_I64:
        return range_as(raw, n, CLIENT_I64);
    }
    return (struct range){0, 0};
}

static int data_check_check_ids(struct check *c, struct client_data_file *file, struct error *err)
{
    const unsigned width = client_data_width(file->type);
    const uint32_t vocabulary = c->pass.rules->vocabulary;

    for (uint64_t at = 0; at < file->bytes;) {
        const size_t now = file->bytes - at < BLOCK_BYTES ? (size_t)(file->bytes - at) : BLOCK_BYTES, n = now / width;
        int rc = client_data_next(&c->pass, file, c->block, now, at, err);
        if (rc)
            return rc;
        client_data_add(&c->pass, c->block, now);
        const struct range r = data_check_range_of(c->block, n, file->type);
        for (size_t i = 0; (r.least < 0 || r.most >= vocabulary) && i < n; i++) {
            const int64_t token = client_data_token(c->block, i, file->type);
            if (token < 0 || token >= vocabulary)
                return client_data_outside(file, at / width + i, token, vocabulary, err);
        }
        if (r.most > c->pass.data->largest)
            c->pass.data->largest = (uint32_t)r.most;
        at += now;
    }
    return 0;
}

static int check_bin(struct check *c, struct client_data_file *file, struct error *err)
{
    file->type = c->pass.rules->vocabulary > 65536 ? CLIENT_U32 : CLIENT_U16;
    const unsigned width = client_data_width(file->type);
    file->n = file->bytes / width;
    if (file->bytes % width)
        return error_set(err, -EINVAL,
                         "%s: %" PRIu64 " bytes are not a whole number of tokens: .bin has %u bytes per token for a "
                         "vocabulary of %u",
                         file->path, file->bytes, width, c->pass.rules->vocabulary);
    return data_check_check_ids(c, file, err);
}

static int check_text(struct check *c, struct client_data_file *file, struct error *err)
{
    struct client_tokenizer *tokenizer = c->pass.rules->tokenizer;
    const bool followed = file + 1 < c->pass.data->files + c->pass.data->n_files && client_data_is_a_text(file + 1);

    if (tokenizer && !client_tokenizer_is_bytes(tokenizer))
        return client_data_tokenise(&c->pass, file, followed, err);
    if (c->pass.rules->vocabulary == 256)
        return check_bytes(c, file, err);
    const int rc = client_tokenizer_refuse_unread(c->pass.rules->side, err);
    if (rc) {
        error_prefix(err, file->path);
        return rc;
    }
    return error_set(err, -EINVAL,
                     "%s: text needs a tokenizer, and this model with a vocabulary of %u has none (tokenizer.json, or "
                     "vocab.json and merges.txt, beside its weights): give token ids as .bin or .npy, or train a byte "
                     "model, with a vocabulary of 256",
                     file->path, c->pass.rules->vocabulary);
}

/* Reads a text up to its first byte that is no white space: of nearly every text one block. */
static int look_for_text(struct check *c, struct client_data_file *file, struct error *err)
{
    enum { LOOK_BYTES = 4096 };

    file->blank = file->kind == CLIENT_DATA_TEXT && file->bytes > 0;
    for (uint64_t at = 0; file->blank && at < file->bytes;) {
        const size_t now = file->bytes - at < LOOK_BYTES ? (size_t)(file->bytes - at) : LOOK_BYTES;
        const int rc = client_data_next(&c->pass, file, c->block, now, at, err);
        if (rc)
            return rc;
        for (size_t i = 0; i < now; i++)
            file->blank = file->blank && (c->block[i] == CLIENT_DATA_MARK || isspace(c->block[i]));
        at += now;
    }
    return 0;
}

static int data_check_check_file(struct check *c, struct client_data_file *file, struct error *err)
{
    int rc = client_data_extract(&c->pass, file, err);

    if (!rc)
        rc = look_for_text(c, file, err);
    if (rc)
        return rc;
    switch (file->kind) {
    case CLIENT_DATA_TEXT:
    case CLIENT_DATA_LINES:
        rc = check_text(c, file, err);
        break;
    case CLIENT_DATA_BIN:
        rc = check_bin(c, file, err);
        break;
    case CLIENT_DATA_NPY:
        rc = data_check_check_ids(c, file, err);
        break;
    }
    file->first = c->pass.data->n;
    c->pass.data->n += file->n;
    return rc;
}

/* Without an end token, the last that the tokenizer puts after each text separates them: BERT's [SEP]. */
static uint32_t tokenizer_end(const struct client_tokenizer *tokenizer)
{
    const uint32_t end = client_tokenizer_end(tokenizer);
    size_t n;
    const uint32_t *ends = client_tokenizer_ends(tokenizer, &n);

    return end == CLIENT_NO_TOKEN && n > 0 ? ends[n - 1] : end;
}

/* Finds the token between two documents; CLIENT_NO_TOKEN if there is none. */
static int find_end_token(uint32_t *end, const struct client_data *data, const struct client_data_rules *rules,
                          struct error *err)
{
    *end = CLIENT_NO_TOKEN;
    if (data->has_text && rules->tokenizer && rules->separator != EPS_SEPARATOR_NONE)
        *end = tokenizer_end(rules->tokenizer);
    if (data->has_text && rules->separator == EPS_SEPARATOR_EOS && *end == CLIENT_NO_TOKEN)
        return error_set(err, -EDOM,
                         "--separator eos: the model's tokenizer has no end token: choose --separator none");
    if (*end == CLIENT_NO_TOKEN)
        return 0;
    const int rc = client_tokenizer_check(rules->tokenizer, *end, err);
    if (rc)
        error_prefix(err, "--separator none is needed, as texts end with another token");
    return rc;
}

int client_data_check(struct client_data *data, const struct client_data_rules *rules, struct error *err)
{
    XXH3_state_t *hash = XXH3_createState();
    struct check c = {.pass = {.data = data, .rules = rules, .hash = hash}, .block = malloc(BLOCK_BYTES)};
    int rc = hash && c.block ? find_end_token(&c.pass.end, data, rules, err) : error_memory(err);

    if (!rc)
        rc = client_data_refuse_weights(data, err);
    data->vocabulary = rules->vocabulary;
    data->separated = c.pass.end != CLIENT_NO_TOKEN;
    if (!rc)
        XXH3_64bits_reset(hash);
    for (size_t i = 0; !rc && i < data->n_files; i++)
        rc = data_check_check_file(&c, &data->files[i], err);
    if (!rc)
        data->hash = XXH3_64bits_digest(hash);
    XXH3_freeState(hash);
    free(c.block);
    return rc;
}
