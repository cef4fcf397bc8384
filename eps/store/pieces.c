#include "eps/store/pieces.h"

#include "proto/base/size.h"

#include <string.h>

void pieces_zero(struct pieces *pieces, void *base, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && pieces_note(pieces) == 0; at += PIECES_BYTES)
        memset((char *)base + at, 0, size_smaller(n_bytes - at, PIECES_BYTES));
}

void pieces_copy(struct pieces *pieces, void *to, const void *from, size_t n_bytes)
{
    for (size_t at = 0; at < n_bytes && pieces_note(pieces) == 0; at += PIECES_BYTES)
        memcpy((char *)to + at, (const char *)from + at, size_smaller(n_bytes - at, PIECES_BYTES));
}
