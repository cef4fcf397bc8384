/* eps/store/store_code.h - writes weights into the store in the form in which they are relayed.
 *
 * A source gives a piece's values, a run at a time, so that no tensor is ever in memory as fp32. Threads share a piece
 * by elements. A row or block of a coded one (proto/base/form.h) belongs to the thread whose range has its first
 * element. A row of int8 that is longer than a run is read for its magnitude, for each scale that is tried, and to be
 * coded: at most FORM_TRIALS + 2 times. */
#ifndef EPS_STORE_STORE_CODE_H
#define EPS_STORE_STORE_CODE_H

#include "eps/store/store.h"

/* Maximum elements of a run, 64 KiB: runs are in the stack. Whole blocks of every form. */
enum { STORE_RUN = 16384 };

struct store_source {
    /* Gives elements first .. first+n-1 of a piece. 0 or -errno. Called by any thread, in any order. */
    int (*read)(void *context, uint64_t first, size_t n, float *out);
    void *context;
};

/* Writes elements begin .. begin+n-1 of a piece: of a coded one, the groups (form_group) that begin there. So the
 * ranges of a piece may be written by different threads. 0; -EDOM: a value too large for int8; or the source's
 * -errno. */
int store_code(const struct store *store, uint32_t unit, const struct model_piece *piece, uint64_t begin, uint64_t n,
               const struct store_source *source);

#endif
