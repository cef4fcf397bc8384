/* proto/wire/directory.h - a daemon's directory: made, locked, and removed at the end.
 *
 * Its lock says that a daemon lives there (session_is_live): so the directory of a killed one can be taken over. For
 * proto/wire/listen.c. */
#ifndef PROTO_WIRE_DIRECTORY_H
#define PROTO_WIRE_DIRECTORY_H

#include "proto/base/error.h"

#include <sys/types.h>

enum { DIRECTORY_MAX = 128 }; /* bytes of its path; longer than any address allows */

/* Makes the directory (0700, with parents), locks it, removes the sockets of a killed daemon, and makes the directory
 * of channels. *lock stays -1 without the lock. -EADDRINUSE, -EACCES, -ENOTDIR, -ENAMETOOLONG, -errno with a sentence.
 * Undo, also after a failure: directory_give_back. */
int directory_take(char out[DIRECTORY_MAX], int *lock, const char *path, struct error *err);
/* Removes sockets, lock and directory, if the lock is held and still the directory's; then sets it to -1. */
void directory_give_back(const char *directory, int *lock);

/* Checks that members of the group can pass every directory above; otherwise they could not reach the daemon. -EDOM,
 * -errno with a sentence. */
int directory_check_way(const char *directory, gid_t group, struct error *err);

#endif
