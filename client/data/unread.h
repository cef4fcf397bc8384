/* client/data/unread.h - what data have and nobody reads, so that the user hears of it: keys of objects, columns,
 * files.
 *
 * Each file counts its keys as it is read. Files of a directory that are no data are counted when it is opened. */
#ifndef CLIENT_DATA_UNREAD_H
#define CLIENT_DATA_UNREAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_data;

enum client_unread_kind {
    CLIENT_UNREAD_KEY,     /* of a line's object */
    CLIENT_UNREAD_MESSAGE, /* of a message in it */
    CLIENT_UNREAD_COLUMN,  /* of TSV */
    CLIENT_UNREAD_FILE     /* of a directory: its suffix */
};

struct client_unread_key {
    char *name; /* owned */
    enum client_unread_kind kind;
    uint64_t n, line; /* lines that have it; the last of them */
};

struct client_unread {
    struct client_unread_key *keys; /* (n, at most CLIENT_UNREAD_MOST), in the order in which they came; owned */
    size_t n;
    bool more;         /* there are others */
    uint64_t n_behind; /* bytes behind gzip's data */
    uint64_t n_quoted; /* fields of TSV that begin and end with a quote, which is read as a part of them */
};
enum { CLIENT_UNREAD_MOST = 200 };

/* Counts a line that has this key, once. Without memory the key is one of `more`. */
void client_unread_count(struct client_unread *unread, enum client_unread_kind kind, const char *key, uint64_t line);
/* Counts a file of a directory that is passed over. */
void client_unread_pass(struct client_data *data, const char *name);

void client_unread_free(struct client_unread *unread); /* safe on a zeroed struct */

/* Tells what of data, which were read, was not, a sentence each: files and folders in directories, keys of each file.
 * option: "--data". */
void client_unread_tell(const struct client_data *data, const char *option,
                        void (*tell)(void *user, const char *sentence), void *user);

#endif
