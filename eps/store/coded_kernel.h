/* eps/store/coded_kernel.h - moments in 8 bits each, by groups of MODEL_GROUP elements (proto/model/groups.h).
 *
 * A group has a scale for m, the largest |m| in it, and one for v, the largest v. With x = |m| / scale and r = v /
 * scale, and codes c of 0 to 127 and of 0 to 255:
 *   m    x_c = c / (254 - c), with m's sign      c = 127 * 2x / (1 + x)
 *   v    r_c = c^2 / 65025                       c = 255 * sqrt(r)
 * The curves are those of FlashOptim (Gonzalez Ortiz et al., arXiv:2602.23349),
 * whose groups have 32 elements and scales in fp16: steps near zero are finer, where most moments are.
 *
 * Rounding is unbiased in the value, not in the code: between x_c and x_(c+1) up with probability
 * p = (x - x_c) / (x_(c+1) - x_c). In code space, as the curves are convex, the mean of v would be 1.1 % high at a
 * quarter of the group's largest root and 30 % at a hundredth. Without a division, u uniform in (0, 1):
 *   m    x_(c+1) - x_c = 254 / ((253 - c) (254 - c)), so up where 254 u < (x (254 - c) - c) (253 - c)
 *   v    r_(c+1) - r_c = (2c + 1) / 65025, so up where (2c + 1) u < 65025 r - c^2
 * u is (2k + 1) / 2^17 for 16 random bits k: v may decay by a thousandth a step, which 8 bits would miss by a third at
 * code 12. The same 16 bits serve m and, with their bytes exchanged, v.
 *
 * c itself need not be exact. One too small: the right side is 254, or 2c + 1, and more, so it goes up; one too large:
 * the right side is negative, so it stays. All else is IEEE arithmetic, so all paths give the same bits.
 *
 * The largest element of a group has the top code, and so its scale exactly: the inverse of a scale is rounded up, and
 * then x and r are 1 or more there, for which each test is true with the largest u. So a scale decays as the element
 * would in fp32, and what is decoded and not changed is encoded alike but for rounding's 2^-17.
 *
 * A v above 0 has code 1 at least, so that no m is divided by a v that vanished: below 1 / 255 of the group's largest
 * root v is as large as there. Decoded, it is FLT_MIN at least; an m below FLT_MIN is 0 (eps/store/optimizer.h). */
#ifndef EPS_STORE_CODED_KERNEL_H
#define EPS_STORE_CODED_KERNEL_H

#include <stddef.h>
#include <stdint.h>

/* n consecutive moments from a group's first element on. m: -127 to 127. */
struct coded_moments {
    int8_t *m;                  /* (n) NULL: moments are not coded */
    uint8_t *v;                 /* (n) */
    float *m_scales, *v_scales; /* a group each; 0 where all of it is 0 */
};

/* The contents of coded.kernel.c, once for each instruction set. Serial. */
struct coded_kernel {
    void (*decode)(float *restrict m, float *restrict v, const struct coded_moments *from, size_t n);
    /* random (n): 16 bits an element. Renews the scales. */
    void (*encode)(const struct coded_moments *to, const float *restrict m, const float *restrict v,
                   const uint16_t *restrict random, size_t n);
};

extern const struct coded_kernel coded_kernel_v2, coded_kernel_v3, coded_kernel_v4;

#endif
