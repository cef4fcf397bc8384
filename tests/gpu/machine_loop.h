/* tests/gpu/machine_loop.h - the loop of a kernel in which it multiplies, for machine_code.c.
 *
 * A turn of it is what a warp issues for one tile, so its instructions bound the kernel's speed: each pipe of a
 * multiprocessor takes so many of them a cycle. */
#ifndef TESTS_GPU_MACHINE_LOOP_H
#define TESTS_GPU_MACHINE_LOOP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct instruction {
    uint64_t low, high;
};

enum opcode {
    OPCODE_HMMA = 0x23c, /* product on tensor cores */
    OPCODE_LDSM = 0x83b, /* matrices from shared memory */
    OPCODE_LDS = 0x984,
    OPCODE_STS = 0x988,
    OPCODE_LDGSTS = 0xfae, /* asynchronous copy from global memory to shared */
    OPCODE_MUFU = 0x308,   /* special function: powers of 2 */
    OPCODE_BRA = 0x947,
    OPCODE_BRA_UNIFORM = 0x547, /* by a predicate that all lanes share */
};

static inline unsigned opcode_of(struct instruction in)
{
    return in.low & 0xfff;
}

static inline unsigned bytes_at(struct instruction in, unsigned bit)
{
    static const unsigned bytes[] = {1, 1, 2, 2, 4, 8, 16, 0};

    return bytes[in.high >> bit & 7];
}

/* Bytes of a thread's load or store. */
static inline unsigned bytes_of(struct instruction in)
{
    return bytes_at(in, 9);
}

/* Bytes of a thread's copy. */
static inline unsigned bytes_of_copy(unsigned target, struct instruction in)
{
    return bytes_at(in, target >= 100 ? 10 : 9);
}

/* Of a turn of the loop. Counted is what every turn does: of parts that a branch may skip, those that copy or multiply.
 * Masks, and left factors that are loaded once, are skipped in all turns but a few. */
struct machine_loop {
    unsigned issued;                        /* instructions */
    unsigned products, matrix_loads;        /* of them */
    unsigned specials, copies, wide_copies; /* wide: of 16 bytes a thread */
    unsigned shared_bytes;                  /* read and written by a warp in shared memory, 16 x 32 by a matrix load */
    unsigned inner_issued, inner_copies; /* of a turn of the loops inside, which only copy; not in the counts above */
};

/* False if no loop multiplies. target: the architecture, as 90. */
bool machine_loop_find(struct machine_loop *out, unsigned target, const struct instruction *code, size_t n);

#endif
