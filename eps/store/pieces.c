#include "eps/store/pieces.h"

#include <string.h>

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

void pieces_zero(struct pieces *pieces, void *base, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && pieces_note(pieces) == 0; at += PIECES_BYTES)
        memset((char *)base + at, 0, smaller(n_bytes - at, PIECES_BYTES));
}

void pieces_copy(struct pieces *pieces, void *to, const void *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && pieces_note(pieces) == 0; at += PIECES_BYTES)
        memcpy((char *)to + at, (const char *)from + at, smaller(n_bytes - at, PIECES_BYTES));
}
