#include "tests/kit/test.h"

#include "proto/base/block_sum.h"

#include <stdlib.h>
#include <string.h>

SUITE_TIMEOUT(120)

enum { MOST = BLOCK_SUM_BYTES / BLOCK_SUM_VECTOR };

static const struct block_sum_kernel *const kernels[] = {&block_sum_kernel_v2, &block_sum_kernel_v3,
                                                         &block_sum_kernel_v4};

/* Those of this machine. */
static int count_kernels(void)
{
    return block_sum_kernel() == &block_sum_kernel_v4 ? 3 : block_sum_kernel() == &block_sum_kernel_v3 ? 2 : 1;
}

static void fill(uint8_t *bytes, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        bytes[i] = (uint8_t)(seed >> 56);
    }
}

static uint64_t rotate(uint64_t x, unsigned by)
{
    return by == 0 ? x : x << by | x >> (64 - by);
}

/* As the header has it: word after word, with the maps of the lanes. */
static struct block_sum plain_sum(const uint8_t *bytes, size_t n)
{
    static const unsigned rotations[8] = {56, 24, 4, 20, 10, 9, 19, 25}, shifts[8] = {8, 7, 15, 22, 9, 11, 22, 18};
    const size_t n_vectors = (n + 63) / 64;
    uint8_t padded[BLOCK_SUM_BYTES] = {0};
    struct block_sum sum = {0};

    memcpy(padded, bytes, n);
    for (unsigned lane = 0; lane < 8; lane++) {
        uint64_t b = 0, word = 0;
        for (size_t i = 0; i < n_vectors; i++) {
            memcpy(&word, padded + 64 * i + 8 * lane, 8);
            sum.a ^= word;
            b ^= rotate(word, (unsigned)(n_vectors - 1 - i) % 64);
            if (i == 0 && n_vectors % 2 == 0)
                b ^= rotate(word, 20);
        }
        sum.b ^= b ^ rotate(b, rotations[lane]) ^ b << shifts[lane];
    }
    return sum;
}

/* Any length, at any address; in one call, or in two of which the first has whole vectors. */
TEST(every_instruction_set_gives_the_sum_that_the_words_give_one_by_one)
{
    uint8_t bytes[BLOCK_SUM_BYTES + 8];
    const size_t lengths[] = {1, 3, 8, 63, 64, 65, 127, 128, 1000, 2047, 2048, 2050, 4032, 4094, 4096};

    fill(bytes, sizeof bytes, 1);
    for (size_t k = 0; k < sizeof lengths / sizeof *lengths; k++)
        for (int isa = 0; isa < count_kernels(); isa++) {
            const size_t n = lengths[k], whole = n / 128 * 64;
            const uint8_t *const at = bytes + k % 8;
            struct block_summing summing = {0};
            ck_assert(block_sum_equal(block_sum(kernels[isa], at, n), plain_sum(at, n)));
            if (whole > 0)
                kernels[isa]->add(&summing, at, whole);
            kernels[isa]->add(&summing, at + whole, n - whole);
            ck_assert(block_sum_equal(kernels[isa]->end(&summing), plain_sum(at, n)));
        }
}

TEST(zeros_have_a_sum_of_zero)
{
    const uint8_t zeros[BLOCK_SUM_BYTES] = {0};

    for (int isa = 0; isa < count_kernels(); isa++)
        for (size_t n = 0; n <= sizeof zeros; n += 512)
            ck_assert(block_sum_equal(block_sum(kernels[isa], zeros, n), (struct block_sum){0}));
}

static int compare(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(struct block_sum));
}

/* Sums are linear over bits. So two flips are missed if and only if their own sums are equal, and an odd number of
 * flips is found if `a` of each has an odd number of bits. */
TEST_EACH(any_two_bits_and_any_odd_number_of_bits_are_found, MOST)
{
    const size_t n = (size_t)(_i + 1) * BLOCK_SUM_VECTOR, n_bits = 8 * n;
    struct block_sum *const sums = malloc(n_bits * sizeof *sums);
    uint8_t bytes[BLOCK_SUM_BYTES] = {0};

    ck_assert_ptr_nonnull(sums);
    for (size_t i = 0; i < n_bits; i++) {
        bytes[i / 8] = (uint8_t)(1 << i % 8);
        sums[i] = block_sum(block_sum_kernel(), bytes, n);
        bytes[i / 8] = 0;
        ck_assert_int_eq(__builtin_popcountll(sums[i].a) % 2, 1);
    }
    qsort(sums, n_bits, sizeof *sums, compare);
    for (size_t i = 1; i < n_bits; i++)
        ck_assert(!block_sum_equal(sums[i - 1], sums[i]));
    free(sums);
}

/* One word in the place of another throughout: such changes are a space of 64 dimensions, none of which may vanish. */
TEST_EACH(one_constant_in_the_place_of_another_is_found, MOST)
{
    const size_t n = (size_t)(_i + 1) * BLOCK_SUM_VECTOR;
    uint64_t words[BLOCK_SUM_BYTES / 8];
    struct block_sum basis[64];
    int rank = 0;

    for (int bit = 0; bit < 64; bit++) {
        for (size_t i = 0; i < n / 8; i++)
            words[i] = UINT64_C(1) << bit;
        struct block_sum sum = block_sum(block_sum_kernel(), words, n);
        for (int i = 0; i < rank; i++) /* Gauss: each of the basis has its lowest bit to itself */
            if (basis[i].a ? sum.a & (basis[i].a & -basis[i].a) : sum.b & (basis[i].b & -basis[i].b)) {
                sum.a ^= basis[i].a;
                sum.b ^= basis[i].b;
            }
        ck_assert(sum.a || sum.b);
        basis[rank++] = sum;
    }
}

TEST(a_run_is_told_from_one_whose_blocks_changed_places_or_bits)
{
    enum { N = 5 * BLOCK_SUM_BYTES + 100 };
    static uint8_t bytes[N], other[N];
    struct block_sum sum, gathered = {0};

    fill(bytes, N, 2);
    sum = block_sum_run(bytes, N, BLOCK_SUM_BYTES);
    for (int i = 5; i >= 0; i--) /* in any order */
        block_sum_gather(&gathered,
                         block_sum(block_sum_kernel(), bytes + i * BLOCK_SUM_BYTES, i == 5 ? 100 : BLOCK_SUM_BYTES),
                         (uint64_t)i);
    ck_assert(block_sum_equal(sum, gathered));
    memcpy(other, bytes, N);
    memcpy(other, bytes + BLOCK_SUM_BYTES, BLOCK_SUM_BYTES);
    memcpy(other + BLOCK_SUM_BYTES, bytes, BLOCK_SUM_BYTES);
    ck_assert(!block_sum_equal(sum, block_sum_run(other, N, BLOCK_SUM_BYTES)));
    for (size_t at = 0; at < N; at += 97) {
        memcpy(other, bytes, N);
        other[at] ^= (uint8_t)(1 << at % 8);
        ck_assert(!block_sum_equal(sum, block_sum_run(other, N, BLOCK_SUM_BYTES)));
    }
}
