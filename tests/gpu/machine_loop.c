/* A branch's operand is the distance in units of 4 bytes from the instruction behind it. Up to compute capability 8.9
 * it is in bits 34 to 81; from 9.0 on its low 8 bits are in 16 to 23, and the others from 34 on. Source: the branch to
 * itself that ends every kernel's code, whose distance is known. */
#include "tests/gpu/machine_loop.h"

#include <string.h>

enum { WARP = 32 };

/* Instructions from a branch to where it leads, backward if negative; 0 for all others. */
static ptrdiff_t distance(unsigned target, struct instruction in)
{
    const uint64_t field = (in.high & 0x3ffff) << 30 | in.low >> 34;
    int64_t fours = (int64_t)(field << 16) >> 16;

    if (opcode_of(in) != OPCODE_BRA && opcode_of(in) != OPCODE_BRA_UNIFORM)
        return 0;
    if (target >= 90)
        fours = fours * 256 + (int64_t)(in.low >> 16 & 0xff);
    return (ptrdiff_t)(fours / 4) + 1;
}

struct span {
    size_t first, last;
};

static unsigned count(const struct instruction *code, struct span in, unsigned opcode)
{
    unsigned n = 0;

    for (size_t i = in.first; i <= in.last; i++)
        n += opcode_of(code[i]) == opcode;
    return n;
}

static bool works(const struct instruction *code, struct span in)
{
    return count(code, in, OPCODE_HMMA) + count(code, in, OPCODE_LDGSTS) > 0;
}

static unsigned shared_bytes(unsigned target, struct instruction in)
{
    const bool never = (in.low >> 12 & 15) == 15; /* by its predicate */

    switch (never ? 0 : opcode_of(in)) {
    case OPCODE_LDSM:
        return 16 * WARP;
    case OPCODE_LDS:
    case OPCODE_STS:
        return bytes_of(in) * WARP;
    case OPCODE_LDGSTS:
        return bytes_of_copy(target, in) * WARP;
    default:
        return 0;
    }
}

static void add(struct machine_loop *to, unsigned target, struct instruction in)
{
    const unsigned opcode = opcode_of(in);

    to->issued++;
    to->products += opcode == OPCODE_HMMA;
    to->matrix_loads += opcode == OPCODE_LDSM;
    to->specials += opcode == OPCODE_MUFU;
    to->copies += opcode == OPCODE_LDGSTS;
    to->wide_copies += opcode == OPCODE_LDGSTS && bytes_of_copy(target, in) == 16;
    to->shared_bytes += shared_bytes(target, in);
}

/* The shortest loop with most products. */
static bool find(struct span *out, unsigned target, const struct instruction *code, size_t n)
{
    unsigned most = 0;

    for (size_t i = 0; i < n; i++) {
        const ptrdiff_t far = distance(target, code[i]);
        const struct span loop = {(size_t)((ptrdiff_t)i + far), i};
        if (far >= 0 || far < -(ptrdiff_t)i)
            continue;
        const unsigned products = count(code, loop, OPCODE_HMMA);
        if (products > most || (products > 0 && products == most && loop.last - loop.first < out->last - out->first))
            most = products, *out = loop;
    }
    return most > 0;
}

bool machine_loop_find(struct machine_loop *out, unsigned target, const struct instruction *code, size_t n)
{
    struct span loop = {0, 0};

    memset(out, 0, sizeof *out);
    if (!find(&loop, target, code, n))
        return false;
    for (size_t i = loop.first; i <= loop.last; i++) {
        const ptrdiff_t far = distance(target, code[i]);
        const struct span skipped = {i + 1, (size_t)((ptrdiff_t)i + far) - 1};
        add(out, target, code[i]);
        if (far > 1 && skipped.last < loop.last && !works(code, skipped))
            i = skipped.last;
    }
    for (size_t i = loop.first; i < loop.last; i++) {
        const ptrdiff_t far = distance(target, code[i]);
        if (far >= 0 || far < -(ptrdiff_t)(i - loop.first))
            continue;
        struct machine_loop inner = {0};
        for (size_t at = (size_t)((ptrdiff_t)i + far); at <= i; at++)
            add(&inner, target, code[at]);
        out->inner_issued += inner.issued, out->inner_copies += inner.copies;
        out->issued -= inner.issued, out->copies -= inner.copies, out->wide_copies -= inner.wide_copies;
        out->shared_bytes -= inner.shared_bytes;
    }
    return true;
}
