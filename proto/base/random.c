/* Every stored run depends on these bits: a change of one expression here changes masks, orders and fresh weights of
 * runs that are resumed. Each element is computed from its own quad of words, so ranges may be drawn in any pieces;
 * deviates are computed in double and rounded once. */
#include "proto/base/random.h"

#include <math.h>

struct random_key random_site_key(uint64_t seed, uint64_t step, uint64_t unit, enum random_site site)
{
    const uint32_t counter[4] = {(uint32_t)step, (uint32_t)(step >> 32), (uint32_t)unit, (uint32_t)(unit >> 32)};
    const struct random_key key = {{(uint32_t)seed, (uint32_t)(seed >> 32)}};
    uint32_t first[4], second[4];

    random_philox(first, counter, key);
    first[3] ^= (uint32_t)site;
    random_philox(second, first, key);
    return (struct random_key){{second[0], second[1]}};
}

void random_normal(float *out, struct random_key key, uint64_t row, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n;) {
        uint32_t word[4];
        double normal[4];

        random_quad(word, key, row, i / 4);
        for (int pair = 0; pair < 2; pair++) {
            double u = ((double)word[2 * pair] + 0.5) * 0x1p-32; /* in (0, 1), so the logarithm is finite */
            double angle = (double)word[2 * pair + 1] * (6.283185307179586 * 0x1p-32);
            double radius = sqrt(-2 * log(u));
            normal[2 * pair] = radius * cos(angle);
            normal[2 * pair + 1] = radius * sin(angle);
        }
        for (unsigned lane = (unsigned)(i % 4); lane < 4 && i < first + n; lane++, i++)
            out[i - first] = (float)normal[lane];
    }
}

void random_uniform(float *out, struct random_key key, uint64_t row, uint64_t first, uint64_t n)
{
    for (uint64_t i = first; i < first + n;) {
        uint32_t word[4];

        random_quad(word, key, row, i / 4);
        for (unsigned lane = (unsigned)(i % 4); lane < 4 && i < first + n; lane++, i++)
            out[i - first] = (float)(((double)word[lane] + 0.5) * 0x1p-31 - 1);
    }
}

uint64_t random_permute(struct random_key key, uint64_t index, uint64_t n)
{
    unsigned half = 1;

    while (half < 32 && (uint64_t)1 << (2 * half) < n)
        half++;
    const uint32_t mask = half == 32 ? UINT32_MAX : ((uint32_t)1 << half) - 1;
    do {
        uint32_t left = (uint32_t)(index >> half) & mask, right = (uint32_t)index & mask;
        for (uint32_t round = 0; round < 4; round++) {
            const uint32_t counter[4] = {right, round, 0, 0};
            uint32_t word[4];
            random_philox(word, counter, key);
            uint32_t next = left ^ (word[0] & mask);
            left = right;
            right = next;
        }
        index = (uint64_t)left << half | right;
    } while (index >= n);
    return index;
}
