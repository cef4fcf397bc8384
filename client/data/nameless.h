/* client/data/nameless.h - files without a name, for what is large and gone when the run is. */
#ifndef CLIENT_DATA_NAMELESS_H
#define CLIENT_DATA_NAMELESS_H

#include "proto/base/error.h"

/* A descriptor of an empty one, for reading and writing: in $TMPDIR or /var/tmp, so that it takes page cache rather than
 * memory, or, where neither takes one, in memory. -errno with a sentence that says what it is for. */
int client_nameless_open(const char *what, struct error *err);

#endif
