/* client/data/npy.h - the header of a NumPy array on disk.
 *
 * magic "\x93NUMPY" | version major u8, minor u8 | header length u16 (version 1) or u32 (2 and 3), little-endian |
 * a Python dictionary as text: 'descr', 'fortran_order', 'shape' | the array.
 * Read strictly: one dimension, little-endian integers of 2, 4 or 8 bytes, each key once and nothing else.
 * Format: numpy.lib.format, "Format Version 1.0". */
#ifndef CLIENT_DATA_NPY_H
#define CLIENT_DATA_NPY_H

#include "proto/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum client_integer { CLIENT_U8, CLIENT_U16, CLIENT_U32, CLIENT_I32, CLIENT_I64 };

enum { CLIENT_NPY_HEAD_BYTES = 4096 }; /* a header of one dimension fits well */

struct client_npy {
    enum client_integer type;
    uint64_t n;      /* elements */
    uint64_t offset; /* of the first, bytes from the file's start */
};

/* head (n) is the file's beginning, all of it or CLIENT_NPY_HEAD_BYTES; it may hold anything.
 * -EINVAL with a sentence. */
int client_npy_parse(struct client_npy *out, const uint8_t *head, size_t n, struct error *err);

#endif
