/* client/data/data_file.h - one file of a stream: what data.c and data_check.c share. */
#ifndef CLIENT_DATA_DATA_FILE_H
#define CLIENT_DATA_DATA_FILE_H

#include "client/data/data.h"
#include "client/text/tokenizer.h"

enum { CLIENT_DATA_HEAD_BYTES = 4096 }; /* of a file, that tell what it is */

/* Between two documents of one file: a byte that no UTF-8 holds. */
enum { CLIENT_DATA_MARK = 0xFF };

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

/* Text as it is, or in JSON lines. */
static inline bool client_data_is_a_text(const struct client_data_file *file)
{
    return file->kind == CLIENT_DATA_TEXT || file->kind == CLIENT_DATA_LINES;
}

/* A check on its way from file to file. */
struct client_data_pass {
    struct client_data *data;
    const struct client_data_rules *rules;
    void *hash;       /* of xxhash */
    uint64_t n_asked; /* bytes read since the watch was asked */
    uint32_t end;     /* the token between two documents; CLIENT_NO_TOKEN: none */
};

/* Reads the next n bytes of a file's tokens, and asks the watch now and then. */
int client_data_next(struct client_data_pass *pass, const struct client_data_file *file, uint8_t *out, size_t n,
                     uint64_t at, struct error *err);

/* Hashes tokens as they are stored. */
void client_data_add(struct client_data_pass *pass, const uint8_t *raw, size_t n);

/* Bytes at the beginning of a file that end a character of another one: three at most. */
size_t client_data_cut(const uint8_t *text, size_t n);

int client_data_not_text(const struct client_data_file *file, uint64_t at, uint8_t byte, struct error *err);

/* Puts a file of the text's tokens in the file's place, pass->end among them after each document, and after the last one
 * if another file follows: data_text.c. */
int client_data_tokenise(struct client_data_pass *pass, struct client_data_file *file, bool followed,
                         struct error *err);

/* Writes to a nameless file that takes the place of `file`, which is named where there is no room. */
int client_data_write(int fd, const struct client_data_file *file, const void *bytes, size_t n, uint64_t at,
                      struct error *err);

/* Of a .npy: its header. */
int client_data_describe_npy(struct client_data_file *file, struct error *err);

/* What a file's first bytes (n) say of it. */
enum client_packing client_data_packing(const uint8_t *head, size_t n);

/* JSON objects, one a line; whole: the head is all there is. */
bool client_data_is_lines(const uint8_t *head, size_t n, bool whole);

/* Refuses by its name what is neither text nor, by the name's end, ids: data_format.c. -EINVAL. */
int client_data_recognise(const struct client_data_file *file, const uint8_t *head, size_t n, struct error *err);

/* Before anything else is done with a file: standard input is read, what is compressed is expanded, into a nameless file
 * in this one's place; other formats are refused. Once: a second call finds it done. data_unpack.c. */
int client_data_unpack(struct client_data_pass *pass, struct client_data_file *file, struct error *err);

/* Unpacks it, and JSON lines become the texts in them, marked where pass->end is a token, in the same way: data_lines.c.
 * -EINVAL with the line's number. */
int client_data_extract(struct client_data_pass *pass, struct client_data_file *file, struct error *err);

#endif
