/* device/cpu/kernels/decode.kernel.c - frozen weights from their codes (proto/base/form.h). */
#include "device/cpu/cpu.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>

enum {
    DECODED = 1024,       /* elements at a time, through the stack; whole blocks of NF4 */
    PIECE = 16 * DECODED, /* elements of a thread */
};

/* Both codes of a byte at once. */
struct pairs {
    float of[256][2];
};

static void fill_pairs(struct pairs *pairs)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        pairs->of[byte][0] = form_nf4[byte >> 4];
        pairs->of[byte][1] = form_nf4[byte & 15];
    }
}

static void decode_bf16(float *out, const uint16_t *codes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = number_from_bf16(codes[i]);
}

/* From element `at` on, a row's rest at a time. */
static void decode_int8(float *out, const struct device_decode *op, size_t at, size_t n)
{
    const int8_t *codes = (const int8_t *)op->codes + at;

    for (size_t i = 0, now; i < n; i += now) {
        const float scale = op->scales[(at + i) / op->columns];
        now = size_smaller(n - i, op->columns - (at + i) % op->columns);
        for (size_t j = i; j < i + now; j++)
            out[j] = form_value_int8(codes[j], scale);
    }
}

/* From element `at` on, which begins a block. */
static void decode_nf4(float *out, const struct device_decode *op, const struct pairs *pairs, size_t at, size_t n)
{
    const uint8_t *codes = (const uint8_t *)op->codes + at / 2;

    for (size_t i = 0; i < n; i += 2) {
        const float scale = op->scales[(at + i) / FORM_BLOCK];
        out[i] = pairs->of[codes[i / 2]][0] * scale;
        out[i + 1] = pairs->of[codes[i / 2]][1] * scale; /* n is even, or there is room behind it */
    }
}

static void decode_some(const struct device_decode *op, const struct pairs *pairs, size_t at, size_t n)
{
    value *const y = (value *)op->y + at;
    float out[DECODED + VECTOR] = {0};

    if (op->form == FORM_BF16)
        decode_bf16(out, (const uint16_t *)op->codes + at, n);
    else if (op->form == FORM_INT8)
        decode_int8(out, op, at, n);
    else
        decode_nf4(out, op, pairs, at, n);
    for (size_t i = 0; i < n; i += VECTOR)
        value_store_n(y + i, vec_load(out + i), n - i);
}

void KERNEL_NAME(cpu_decode)(struct device *dev, const struct device_decode *op)
{
    const size_t n = op->rows * op->columns;
    struct pairs pairs;

    assert(op->form != FORM_VALUES && op->form != FORM_FP32 && op->form < FORMS);
    fill_pairs(&pairs);
#pragma omp parallel for num_threads(dev->n_threads) schedule(static) if (n > PIECE)
    for (size_t first = 0; first < n; first += PIECE)
        for (size_t at = first; at < n && at < first + PIECE; at += DECODED)
            decode_some(op, &pairs, at, size_smaller(DECODED, n - at));
}
