/* device/turn.h - angles as parts of a turn, for rotary positions on every backend.
 *
 * 2^64 is a whole turn, so the product of a position and its angle wraps around and is exact at any position. In fp32
 * the product would be off by 0.004 of a radian at position 2^16. */
#ifndef DEVICE_TURN_H
#define DEVICE_TURN_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define TURN_INLINE static __host__ __device__ inline
#else
#define TURN_INLINE static inline
#endif

/* Converts an angle in radians, at least 0; its negative if inverse. */
TURN_INLINE uint64_t turn_of(double radians, bool inverse)
{
    const double turns = radians / 6.283185307179586476925;
    const uint64_t turn = (uint64_t)ldexp(turns - floor(turns), 64);

    return inverse ? 0 - turn : turn;
}

/* Taylor polynomials for up to an eighth of a turn either way, where the next terms are 2e-9. */
TURN_INLINE void turn_circle(uint64_t turn, float *cosine, float *sine)
{
    const uint64_t quarter = (turn + (1ull << 61)) >> 62; /* the nearest; 4 is 0 again */
    const float x = (float)(int64_t)(turn - (quarter << 62)) * 3.40612158e-19f /* of 2^64 a turn */, y = x * x;
    const float s = x + x * y * (-1.66666667e-1f + y * (8.33333333e-3f + y * (-1.98412698e-4f + y * 2.75573192e-6f)));
    const float c =
        1 + y * (-0.5f + y * (4.16666667e-2f + y * (-1.38888889e-3f + y * (2.48015873e-5f - y * 2.75573192e-7f))));

    *cosine = quarter & 1 ? (quarter & 2 ? s : -s) : (quarter & 2 ? -c : c);
    *sine = quarter & 1 ? (quarter & 2 ? -c : c) : (quarter & 2 ? -s : s);
}

#endif
