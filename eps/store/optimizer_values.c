/* Values of parameters in any form, as fp32 and back, outside of a pass: for files, and whoever moves weights. */
#include "eps/store/optimizer.h"
#include "eps/store/optimizer_kernel.h"
#include "proto/base/size.h"

#include <assert.h>
#include <string.h>

enum { SOME = 512 }; /* elements at a time */

void optimizer_read_halves(float *w, const struct parameters *p, size_t at, size_t n)
{
    if (p->low)
        p->kernel->halves[p->type].join(w, p->high + at, p->low + at, n);
    else
        p->kernel->halves[p->type].widen(w, p->high + at, n);
}

void optimizer_read(const struct parameters *p, float *w, float *m, float *v)
{
    const size_t bytes = p->n * sizeof(float);

    if (m && p->coded.m) {
        p->kernel->coded->decode(m, v, &p->coded, p->n);
        m = v = NULL;
    }
    if (w && p->w)
        memcpy(w, p->w, bytes);
    else if (w)
        optimizer_read_halves(w, p, 0, p->n);
    if (m && p->m)
        memcpy(m, p->m, bytes);
    else if (m)
        p->kernel->halves[NUMBER_BF16].widen(m, p->m16, p->n);
    if (v && p->v)
        memcpy(v, p->v, bytes);
    else if (v)
        p->kernel->widen_v(v, p->v16, p->n);
}

/* The upper halves of split masters alone. */
static void write_upper(const struct parameters *p, const float *w)
{
    int16_t low[SOME];

    for (size_t at = 0, n; at < p->n; at += n) {
        n = size_smaller(SOME, p->n - at);
        p->kernel->halves[p->type].split(p->high + at, low, w + at, n);
    }
}

void optimizer_write(const struct parameters *p, const float *w, const float *m, const float *v)
{
    const size_t bytes = p->n * sizeof(float);

    assert(!p->coded.m || !(m || v));
    if (w && p->w)
        memcpy(p->w, w, bytes);
    else if (w && p->low)
        p->kernel->halves[p->type].split(p->high, p->low, w, p->n);
    else if (w && p->is_upper)
        write_upper(p, w);
    else if (w)
        p->kernel->halves[p->type].narrow(p->high, w, p->n);
    if (m && p->m)
        memcpy(p->m, m, bytes);
    else if (m)
        p->kernel->halves[NUMBER_BF16].narrow(p->m16, m, p->n);
    if (v && p->v)
        memcpy(p->v, v, bytes);
    else if (v)
        p->kernel->narrow_v(p->v16, v, p->n);
}
