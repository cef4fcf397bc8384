/* proto/base/path.h - opens a file by its name, where others may write to its directory.
 *
 * There, a link may be another user's, and lead to a file that only this process may write. So a link in the file's
 * place, or in a directory's on the way to it, is followed only if root or this process's effective user owns it; and a
 * file with two names is refused where others may make names, or in another's directory. /dev/stdout, /dev/fd/1 and /proc/self/fd/1 are the
 * descriptor itself. */
#ifndef PROTO_BASE_PATH_H
#define PROTO_BASE_PATH_H

#include "proto/base/error.h"

#include <sys/types.h>

/* The sentence about a link that is not followed; a remedy is appended. */
#define PATH_IS_A_LINK "it is a link, and may be another user's"

/* open(2) for writing, with O_CLOEXEC; a new file gets `mode`. Never waits for a pipe's reader. Returns the descriptor,
 * or -errno with a sentence that the path may precede; -ELOOP: a link that is not followed; -EMLINK: a file with two
 * names, which keeps its bytes. */
int path_open(const char *path, int flags, mode_t mode, struct error *err);

/* Makes the directories above a file that are not there, as mkdir -p does. 0, or -errno of the first that cannot be
 * made. */
int path_make_parents(const char *path);

#endif
