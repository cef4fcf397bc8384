/* client/data/nameless.h - nameless temporary files for large data that ends with the run. */
#ifndef CLIENT_DATA_NAMELESS_H
#define CLIENT_DATA_NAMELESS_H

#include "proto/base/error.h"

/* Opens an empty temporary file for reading and writing. It lies in $TMPDIR or /var/tmp, where it occupies page cache;
 * if neither directory accepts it, it lies in memory. -errno; the sentence says what the file was for. */
int client_nameless_open(const char *what, struct error *err);

#endif
