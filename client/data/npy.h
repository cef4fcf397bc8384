/* client/data/npy.h - the header of a NumPy array on disk.
 *
 *   magic "\x93NUMPY" | version major u8, minor u8 | header length u16 (version 1) or u32 (2 and 3), little-endian |
 *   a Python dictionary as text: 'descr', 'fortran_order', 'shape' | the array
 *
 * The parser is strict. It accepts little-endian integers of up to 8 bytes, up to four dimensions, and exactly these
 * three keys, each once. Format: numpy.lib.format, "Format Version 1.0". */
#ifndef CLIENT_DATA_NPY_H
#define CLIENT_DATA_NPY_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum client_integer { CLIENT_U8, CLIENT_U16, CLIENT_U32, CLIENT_I32, CLIENT_I64 };

enum { CLIENT_NPY_HEAD_BYTES = 4096, CLIENT_NPY_MOST = 4 }; /* ample for a header; dimensions */

struct client_npy_array {
    enum client_integer type;
    uint64_t sizes[CLIENT_NPY_MOST]; /* (n_sizes) */
    size_t n_sizes;
    bool fortran;    /* the first dimension is contiguous, not the last */
    uint64_t offset; /* as below */
};

/* Parses head (n): the whole file, or its first CLIENT_NPY_HEAD_BYTES. The bytes are not trusted. -EINVAL with a
 * sentence. */
int client_npy_parse_array(struct client_npy_array *out, const uint8_t *head, size_t n, struct error *err);

struct client_npy {
    enum client_integer type;
    uint64_t n;      /* elements */
    uint64_t offset; /* byte position of the first element in the file */
};

/* Parses an array of token ids: as client_npy_parse_array, but one dimension of 2, 4 or 8 bytes. */
int client_npy_parse(struct client_npy *out, const uint8_t *head, size_t n, struct error *err);

#endif
