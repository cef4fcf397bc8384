/* client/data/data_file.h - one file of a stream: shared by data.c and data_check.c. */
#ifndef CLIENT_DATA_DATA_FILE_H
#define CLIENT_DATA_DATA_FILE_H

#include "client/data/data.h"
#include "client/text/tokenizer.h"

/* First bytes of a file, enough to recognise its format, and for the header of a .npy file. */
enum { CLIENT_DATA_HEAD_BYTES = CLIENT_NPY_HEAD_BYTES };

/* Separates two documents within a file: a byte that never occurs in UTF-8. */
enum { CLIENT_DATA_MARK = 0xFF };

/* Bytes of one token. */
unsigned client_data_width(enum client_integer type);

/* Token i of raw, the stored tokens. With a constant type it compiles to one load. */
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

/* Reads exactly n bytes at offset. -EIO if the file has become shorter, -errno. */
int client_data_pread(const struct client_data_file *file, uint8_t *out, size_t n, uint64_t offset, struct error *err);

/* Reads a file's first bytes, *n of them: fewer if it is shorter. As client_data_pread. In data_unpack.c. */
int client_data_head(uint8_t head[CLIENT_DATA_HEAD_BYTES], size_t *n, const struct client_data_file *file,
                     struct error *err);

/* Reports token number `at` of a file as outside the vocabulary. -EINVAL. */
int client_data_outside(const struct client_data_file *file, uint64_t at, int64_t token, uint32_t vocabulary,
                        struct error *err);

/* Plain text or JSON lines. */
static inline bool client_data_is_a_text(const struct client_data_file *file)
{
    return file->kind == CLIENT_DATA_TEXT || file->kind == CLIENT_DATA_LINES;
}

/* State of client_data_check, carried from file to file. */
struct client_data_pass {
    struct client_data *data;
    const struct client_data_rules *rules;
    void *hash;       /* XXH3_state_t */
    uint64_t n_asked; /* bytes read since the watch was last asked */
    uint32_t end;     /* the token between two documents; CLIENT_NO_TOKEN if there is none */
};

/* Reads n bytes of a file's tokens at byte `at`. Asks the watch every few MiB. */
int client_data_next(struct client_data_pass *pass, const struct client_data_file *file, uint8_t *out, size_t n,
                     uint64_t at, struct error *err);

/* Adds stored tokens to the hash. */
void client_data_add(struct client_data_pass *pass, const uint8_t *raw, size_t n);

/* Bytes at the start of a text that continue a character from another file: at most three. */
size_t client_data_cut(const uint8_t *text, size_t n);

int client_data_not_text(const struct client_data_file *file, uint64_t at, uint8_t byte, struct error *err);

/* Replaces a text file by a file of its token ids. pass->end follows each document, and the last one if another file
 * follows. In data_text.c. */
int client_data_tokenise(struct client_data_pass *pass, struct client_data_file *file, bool followed,
                         struct error *err);

/* Writes n bytes at `at` to fd, a nameless file that will replace `file`. The error for a full disk names `file`. */
int client_data_write(int fd, const struct client_data_file *file, const void *bytes, size_t n, uint64_t at,
                      struct error *err);

/* True if the first n bytes of path end in `end`, in any case, and begin before it. */
bool client_data_ends_with(const char *path, size_t n, const char *end);

/* Length of a path without the suffix of compressed data. */
size_t client_data_stem(const char *path);

/* scandirat of entries that do not begin with a dot, in the order of their bytes. */
struct dirent;
int client_data_scan(struct dirent ***out, int at, const char *path);

/* Opens a regular file: path, fd, packing and bytes. -EINVAL or -errno; client_data_free and the like close it, also
 * then. */
int client_data_open_file(struct client_data_file *file, const char *path, struct error *err);

/* Reads the header of a .npy file. */
int client_data_describe_npy(struct client_data_file *file, struct error *err);

/* Compression, recognised by a file's first n bytes. */
enum client_compression client_data_packing(const uint8_t *head, size_t n);

/* True for JSON lines. whole: the head is the entire file. */
bool client_data_is_lines(const uint8_t *head, size_t n, bool whole);

/* Refuses files that are neither text nor, by suffix, token ids; the error names the format. -EINVAL. In
 * data_format.c. */
int client_data_recognise(const struct client_data_file *file, bool rows, const uint8_t *head, size_t n,
                          struct error *err);

/* First step for every file. Reads standard input and expands compressed files into a nameless file, which replaces the
 * original; refuses other formats. A second call does nothing. In data_unpack.c. */
int client_data_unpack(struct client_data_pass *pass, struct client_data_file *file, struct error *err);

/* The first part of it, for files that are not recognised by their first bytes: expands a compressed file. */
int client_data_expand(struct client_data_pass *pass, struct client_data_file *file, struct error *err);

/* Calls on_line for each line of an unpacked file, without its newline, the first one without a byte order mark; number
 * counts from 1. on_line's error ends the loop. -EINVAL: a line of 64 MiB or more; -EIO, -ENOMEM. In data_each.c. */
int client_data_each_line(struct client_data_pass *pass, const struct client_data_file *file,
                          int (*on_line)(void *user, const char *line, size_t n, uint64_t number, struct error *err),
                          void *user, struct error *err);

/* True if a line has only blanks, tabs and carriage returns. */
bool client_data_is_blank(const char *line, size_t n);

/* Unpacks a file, then replaces JSON lines by the texts in them; CLIENT_DATA_MARK separates the texts if pass->end is a
 * token. -EINVAL with the line number. In data_lines.c. */
int client_data_extract(struct client_data_pass *pass, struct client_data_file *file, struct error *err);

#endif
