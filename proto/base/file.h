/* proto/base/file.h - an open file: a descriptor of this process, or a file that another process opened and serves.
 *
 * A daemon must not touch a file of another user: its disk or network may never answer, and no thread can be taken back
 * from there. So the user's own program acts on the file, and the daemon asks it to (proto/wire/files.h). Whoever reads
 * and writes weights, moments and checkpoints sees no difference.
 *
 * Functions return 0 or -errno with a sentence that a file's name may precede. They block; err may be NULL. Any thread
 * may call them for an own descriptor, one at a time for the files of one server. */
#ifndef PROTO_BASE_FILE_H
#define PROTO_BASE_FILE_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { FILE_WINDOW = 4 << 20 }; /* bytes that are served at once */

/* RESERVE sets the length, and takes its room on the disk if the file system can promise that. FLUSH is fsync, after
 * which the system forgets the content: whoever reads it next gets what the disk has. */
enum file_act { FILE_SIZE, FILE_READ, FILE_WRITE, FILE_RESERVE, FILE_TRUNCATE, FILE_FLUSH };

struct file_server {
    /* *out is n bytes (at most FILE_WINDOW) at offset, until the next call. The server may change them at any time:
     * copy them, then check the copy. The `ahead` bytes behind them are requested, too. */
    int (*window)(struct file_server *server, const void **out, uint32_t index, uint64_t offset, size_t n, size_t ahead,
                  struct error *err);
    /* Does all acts but READ. WRITE: bytes (n, at most FILE_WINDOW) go to offset. RESERVE and TRUNCATE: offset is the
     * length. SIZE: sets *size. */
    int (*act)(struct file_server *server, enum file_act act, uint32_t index, uint64_t offset, const void *bytes,
               size_t n, uint64_t *size, struct error *err);
};

struct file {
    int fd;                     /* descriptor of this process; -1: the file is served, or there is none */
    struct file_server *server; /* borrowed; or NULL */
    uint32_t index;             /* its number at the server */
};

static inline struct file file_own(int fd)
{
    return (struct file){.fd = fd, .server = NULL, .index = 0};
}

static inline struct file file_served(struct file_server *server, uint32_t index)
{
    return (struct file){.fd = -1, .server = server, .index = index};
}

/* False: there is no file. */
static inline bool file_is_open(const struct file *file)
{
    return file->fd >= 0 || file->server;
}

/* The size of a regular file; of any other: -EINVAL. */
int file_size(uint64_t *bytes, const struct file *file, struct error *err);
/* Reads all n bytes at offset; -EIO if the file is shorter. */
int file_read(const struct file *file, void *out, uint64_t n, uint64_t offset, struct error *err);
int file_write(const struct file *file, const void *bytes, uint64_t n, uint64_t offset, struct error *err);
int file_reserve(const struct file *file, uint64_t bytes, struct error *err);
int file_truncate(const struct file *file, uint64_t bytes, struct error *err);
int file_flush(const struct file *file, struct error *err);

#endif
