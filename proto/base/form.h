/* proto/base/form.h - the forms in which frozen weights are kept and relayed.
 *
 * A frozen weight needs no more bits than its model can spare. The host quantises a matrix once, when it is loaded; the
 * codes and scales are what is stored, sent to workers and uploaded; the device turns them back into its own type
 * before it computes with them. Value for value, codes, scales and decoded weights are those of bitsandbytes 0.50:
 *
 *   BF16   2 bytes     rounded to nearest, ties to even
 *   INT8   1 byte      a row's scale s is its largest magnitude (fp32); code = round(w * (127 / s)), ties to even;
 *                      decoded as (code * s) * fl(1 / 127)
 *   NF4    half a byte blocks of 64 consecutive elements; a block's scale s is its largest magnitude (fp32); code: the
 *                      nearest of 16 quantiles of the normal distribution to w / s; decoded as quantile * s. Of two
 *                      elements in a byte, the first has the high bits
 *
 * And FP32, 4 bytes, of vectors that decide which experts a token has: layers read it as it is, so it is never decoded
 * on a device, and it is no choice of --base.
 *
 * A matrix with a last block of fewer than 64 elements has a shorter one. Magnitudes below FORM_LEAST are coded as
 * zeros, as 1 / s overflows there. INT8 has no rows with magnitudes above FORM_MOST.
 *
 * Decoded weights are written to checkpoints, and coded again on resume. That gives the same decoded weights: in bf16
 * because all of them are bf16; in NF4 because the largest element of a block decodes to exactly s or -s. In INT8, 127
 * times s times fl(1 / 127) may not be s. So a row that the largest magnitude does not decode to itself is tried with
 * scales a few steps of fp32 around it, and the first that decodes to the row, if there is one, is taken.
 *
 * Sources: rows of 8 bits - Dettmers et al., arXiv:2208.07339. NF4 - Dettmers et al., arXiv:2305.14314, appendix E. */
#ifndef PROTO_BASE_FORM_H
#define PROTO_BASE_FORM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* VALUES: the job's own type, as trained weights have it; none of the functions below but form_name takes it. Those of
 * --base are the first four. */
enum form { FORM_VALUES, FORM_BF16, FORM_INT8, FORM_NF4, FORM_FP32, FORMS };

/* True of forms whose codes are the values, rounded or as they are: no scales. */
static inline bool form_is_plain(enum form form)
{
    return form == FORM_BF16 || form == FORM_FP32;
}

enum {
    FORM_BLOCK = 64, /* NF4: elements of a block */
    FORM_ALIGNMENT = 64,
};
#define FORM_LEAST     1e-36f
#define FORM_MOST      2.6e36f               /* INT8: 127 times more is beyond fp32 */
#define FORM_INT8_UNIT 7.874015718698502e-3f /* fl(1 / 127) */

static inline uint64_t form_aligned(uint64_t bytes)
{
    return (bytes + FORM_ALIGNMENT - 1) / FORM_ALIGNMENT * FORM_ALIGNMENT;
}

extern const float form_nf4[16]; /* ascending */

/* "values", "bf16", "int8", "nf4", "fp32". */
const char *form_name(enum form form);

/* The number of scales of a matrix: 0 of plain forms. */
uint64_t form_scales(enum form form, uint64_t rows, uint64_t columns);
/* Codes come first, scales (fp32) after them, each aligned. form_scales_at: bytes of the codes, rounded up; form_bytes:
 * of both, rounded up. */
uint64_t form_scales_at(enum form form, uint64_t rows, uint64_t columns);
uint64_t form_bytes(enum form form, uint64_t rows, uint64_t columns);

/* Elements that share a scale and so are coded together: a row, a block; 1 of plain forms. */
uint64_t form_group(enum form form, uint64_t columns);

/* ---- NF4: a block at a time, n <= FORM_BLOCK. is_short: the matrix's last block, shorter than the others;
 * bitsandbytes divides there, where it multiplies by 1 / s elsewhere. Writes (n + 1) / 2 bytes. */
void form_encode_nf4(uint8_t *codes, float *scale, const float *values, size_t n, bool is_short);

/* ---- INT8: a row, which need not be in memory at once. First its largest magnitude is found; then a scale is chosen,
 * the first of FORM_TRIALS that decodes all of the row to itself, else the magnitude; then it is coded. */
enum { FORM_TRIALS = 9 };
float form_largest(float so_far, const float *values, size_t n);
/* The scale to try, 0 .. FORM_TRIALS-1; the first is the magnitude itself. */
float form_trial(float largest, unsigned trial);
/* True if this scale decodes all values to themselves. */
bool form_reproduces(float scale, const float *values, size_t n);
void form_encode_int8(int8_t *codes, float scale, const float *values, size_t n);

/* Decodes elements first .. first+n-1 of a matrix. scales: NULL of plain forms. */
void form_decode(float *out, enum form form, const void *codes, const float *scales, uint64_t columns, uint64_t first,
                 size_t n);

/* One code: for INT8 and NF4. */
static inline float form_value_int8(int code, float scale)
{
    return (float)code * scale * FORM_INT8_UNIT;
}

static inline unsigned form_code_nf4(const uint8_t *codes, uint64_t i)
{
    return i % 2 ? codes[i / 2] & 15u : codes[i / 2] >> 4;
}

#endif
