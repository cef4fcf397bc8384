/* device/cpu/rope.kernel.c - rotary positions. Su et al., arXiv:2104.09864. */
#include "device/cpu/cpu.h"
#include "device/cpu/value.h"
#include "device/turn.h"

#include <assert.h>

enum { PAIRS = DEVICE_MAX_ROTATED / 2 };

/* Pair j of a head: columns j and n_pairs + j. */
static void rotate(value *head, const float *cosine, const float *sine, size_t n_pairs)
{
    for (size_t j = 0; j < n_pairs; j += VECTOR) {
        const size_t left = n_pairs - j;
        const vec c = vec_load_n(cosine + j, left, 0), s = vec_load_n(sine + j, left, 0);
        const vec x = value_load_n(head + j, left), y = value_load_n(head + n_pairs + j, left);
        value_store_n(head + j, x * c - y * s, left);
        value_store_n(head + n_pairs + j, y * c + x * s, left);
    }
}

static void rope(struct device *dev, const struct device_rope *op)
{
    const size_t n_pairs = op->n_rotated / 2, m = op->n_rows * op->n_tokens;
    uint64_t turns[PAIRS];

    assert(op->n_rotated % 2 == 0 && op->n_rotated <= op->head_width && n_pairs <= PAIRS);
    for (size_t j = 0; j < n_pairs; j++)
        turns[j] = turn_of(op->frequencies[j], op->inverse);
#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (m > 1)
    for (size_t i = 0; i < m; i++) {
        const uint64_t position = op->first + i % op->n_tokens;
        value *x = (value *)op->x + i * op->stride;
        float cosine[PAIRS], sine[PAIRS];

        for (size_t j = 0; j < n_pairs; j++)
            turn_circle(turns[j] * position, &cosine[j], &sine[j]);
        for (size_t head = 0; head < op->n_heads; head++)
            rotate(x + head * op->head_width, cosine, sine, n_pairs);
    }
}

const struct cpu_rope_kernels KERNEL_NAME(cpu_rope) = {.rope = rope};
