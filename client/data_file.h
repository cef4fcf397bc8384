/* client/data_file.h - one file of a stream: what data.c and data_check.c share. */
#ifndef CLIENT_DATA_FILE_H
#define CLIENT_DATA_FILE_H

#include "client/data.h"

/* Bytes of one token. */
unsigned client_data_width(enum client_integer type);

/* The i-th of raw tokens. Inlined where type is a constant, it is one load. */
static inline int64_t client_data_token(const uint8_t *raw, size_t i, enum client_integer type)
{
    static const unsigned widths[] = {
        [CLIENT_U8] = 1, [CLIENT_U16] = 2, [CLIENT_U32] = 4, [CLIENT_I32] = 4, [CLIENT_I64] = 8};
    const uint8_t *at = raw + i * widths[type];
    uint64_t bits = 0;

    for (unsigned k = 0; k < widths[type]; k++)
        bits |= (uint64_t)at[k] << (8 * k);
    return type == CLIENT_I32 ? (int32_t)bits : (int64_t)bits;
}

/* Reads exactly n bytes at offset. -EIO if the file is shorter by now, -errno. */
int client_data_pread(const struct client_data_file *file, uint8_t *out, size_t n, uint64_t offset, struct error *err);

/* The sentence about token number `at` of a file. */
int client_data_outside(const struct client_data_file *file, uint64_t at, int64_t token, uint32_t vocabulary,
                        struct error *err);

/* A check on its way from file to file. */
struct client_data_pass {
    struct client_data *data;
    const struct client_data_rules *rules;
    void *hash;       /* of xxhash */
    uint64_t n_asked; /* bytes read since the watch was asked */
};

/* Reads the next n bytes of a file's tokens, and asks the watch now and then. */
int client_data_next(struct client_data_pass *pass, const struct client_data_file *file, uint8_t *out, size_t n,
                     uint64_t at, struct error *err);

/* Hashes tokens as they are stored. */
void client_data_add(struct client_data_pass *pass, const uint8_t *raw, size_t n);

/* Bytes at the beginning of a file that end a character of another one: three at most. */
size_t client_data_cut(const uint8_t *text, size_t n);

int client_data_not_text(const struct client_data_file *file, uint64_t at, uint8_t byte, struct error *err);

/* Puts a file of the text's tokens in the file's place: data_text.c. */
int client_data_tokenise(struct client_data_pass *pass, struct client_data_file *file, struct error *err);

#endif
