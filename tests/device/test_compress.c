/* Values in 8, 4 and 1 bits: what is read back, its bytes, and its mean. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

SUITE_FIXTURE(mirror_forget, NULL)

/* One value; ends inside vectors, blocks and pairs of blocks; several threads' pieces. */
static const struct shape {
    size_t n_rows, n;
} shapes[] = {{1, 1}, {3, 5}, {2, 64}, {2, 65}, {4, 96}, {3, 200}, {9, 1000}};
static const unsigned bits[] = {8, 4};
enum { N_CASES = COUNT(shapes) * COMMON_TYPES * COUNT(bits) };

/* The device multiplies a whole number by a step that is rounded once. */
static double near(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0x1p-23;
}

static struct call_test make(enum call_kind kind, int i)
{
    const struct shape *s = &shapes[i / COMMON_TYPES / COUNT(bits)];
    struct call_test test = {.type = (enum number_type)(i % COMMON_TYPES), .call.kind = kind, .near = near};

    test.call.round_values = (struct device_round_values){.n_rows = s->n_rows,
                                                          .n = s->n,
                                                          .bits = bits[i / COMMON_TYPES % COUNT(bits)],
                                                          .key = {{11, 12}},
                                                          .first_row = 7};
    return test;
}

TEST_EACH(rounded_values_are_the_formula, N_CASES)
{
    struct call_test test = make(CALL_round_values, _i);

    call_check(&test);
}

struct round_trip {
    struct device_compress compress;
    struct device_expand expand;
};

/* Writes the codes, and reads them into y; x, codes and y are the host's. */
static void go_and_return(struct round_trip *t, enum number_type type, unsigned n_threads)
{
    void *const outputs[] = {t->compress.codes, t->expand.y};
    struct round_trip there = *t;
    struct mirror at;

    mirror_open(&at, type, n_threads, false);
    mirror_begin(&at);
    there.compress.x = mirror_of(&at, t->compress.x);
    there.compress.codes = mirror_of(&at, t->compress.codes);
    there.expand.codes = there.compress.codes;
    there.expand.y = mirror_of(&at, t->expand.y);
    at.ops->compress(at.dev, &there.compress);
    at.ops->expand(at.dev, &there.expand);
    mirror_end(&at, outputs, COUNT(outputs));
    mirror_close(&at);
}

static struct round_trip make_round_trip(enum number_type type, size_t n_rows, size_t n, unsigned n_bits)
{
    const size_t bytes = n_rows * compress_row_bytes(n, n_bits);

    return (struct round_trip){
        .compress = {n_rows, n, n_bits, operation_values(type, n_rows * n, 1), mirror_array(bytes, 1), {{11, 12}}, 7},
        .expand = {n_rows, n, n_bits, NULL, operation_room(type, n_rows * n)},
    };
}

/* What a layer computes again is rounded where it lies; what it kept went through codes. */
TEST_EACH(codes_hold_what_rounding_gives, N_CASES)
{
    struct call_test in_place = make(CALL_round_values, _i);
    const struct device_round_values *op = &in_place.call.round_values;
    struct round_trip t = make_round_trip(in_place.type, op->n_rows, op->n, op->bits);

    call_make(&in_place); /* the same deviates */
    call_once(&in_place);
    go_and_return(&t, in_place.type, 1 + (unsigned)_i % 3);
    ck_assert_mem_eq(t.expand.y, in_place.host.round_values.x, op->n_rows * op->n * number_bytes(in_place.type));
}

/* Where the largest is L, the step is 1, and whole numbers stay as they are: by hand. 70 values are two blocks. */
TEST_EACH(whole_numbers_are_these_bytes, 2)
{
    const int most = _i ? 7 : 127;
    struct round_trip t = make_round_trip(NUMBER_FP32, 1, 70, bits[_i]);
    float *const x = (float *)(uintptr_t)t.compress.x;
    const uint8_t *codes = t.compress.codes;
    const size_t block = _i ? 32 : 64;
    uint16_t scales[2];

    ck_assert_uint_eq(compress_row_bytes(70, bits[_i]), _i ? 80 : 144);
    for (int i = 0; i < 70; i++)
        x[i] = (float)(i % 2 ? -(i % (most + 1)) : i % (most + 1));
    x[5] = (float)most, x[69] = (float)-most;
    go_and_return(&t, NUMBER_FP32, 1);
    for (int i = 0; i < 70; i++) {
        const uint8_t byte = codes[(size_t)(i / 64) * block + (size_t)(_i ? i % 32 : i % 64)];
        const int got = !_i ? (int8_t)byte : i % 64 < 32 ? (int8_t)(byte << 4) >> 4 : (int8_t)byte >> 4;
        ck_assert_int_eq(got, (int)x[i]);
        ck_assert(((const float *)t.expand.y)[i] == x[i] || _i == 0);
        ck_assert_double_eq_tol((double)((const float *)t.expand.y)[i], (double)x[i], 1e-5);
    }
    memcpy(scales, codes + 2 * block, sizeof scales);
    for (int i = 0; i < 2; i++)
        ck_assert(number_from_bf16(scales[i]) == (float)most);
}

/* Whether a value is above 0: by hand. Rows end inside bytes, blocks and pairs of blocks. */
TEST_EACH(signs_are_these_bits, COUNT(shapes) * COMMON_TYPES)
{
    const struct shape *s = &shapes[_i / COMMON_TYPES];
    const enum number_type type = (enum number_type)(_i % COMMON_TYPES);
    const size_t row_bytes = compress_row_bytes(s->n, 1);
    struct round_trip t = make_round_trip(type, s->n_rows, s->n, 1);

    ck_assert_uint_eq(row_bytes, (s->n + 127) / 128 * 16);
    for (size_t i = 3; i < s->n_rows * s->n; i += 7)
        operation_set(type, (void *)(uintptr_t)t.compress.x, i, i % 2 ? 0 : -0.0f);
    memset(t.compress.codes, 0xff, s->n_rows * row_bytes);
    go_and_return(&t, type, 1 + (unsigned)_i % 3);
    for (size_t row = 0; row < s->n_rows; row++)
        for (size_t i = 0; i < 8 * row_bytes; i++) {
            const bool above = i < s->n && operation_get(type, t.compress.x, row * s->n + i) > 0;
            ck_assert_int_eq(t.compress.codes[row * row_bytes + i / 8] >> i % 8 & 1, above);
            ck_assert(i >= s->n || operation_get(type, t.expand.y, row * s->n + i) == (above ? 1 : 0));
        }
}

/* A row alone has the bits that it has among others. */
TEST_EACH(a_row_alone_is_compressed_as_among_others, 2)
{
    enum { ROWS = 4, N = 100 };
    struct round_trip all = make_round_trip(NUMBER_FP32, ROWS, N, bits[_i]),
                      alone = make_round_trip(NUMBER_FP32, 1, N, bits[_i]);
    const size_t row_bytes = compress_row_bytes(N, bits[_i]);

    go_and_return(&all, NUMBER_FP32, 2);
    for (size_t row = 0; row < ROWS; row++) {
        memcpy((void *)(uintptr_t)alone.compress.x, (const float *)all.compress.x + row * N, N * sizeof(float));
        alone.compress.first_row = all.compress.first_row + row;
        go_and_return(&alone, NUMBER_FP32, 1);
        ck_assert_mem_eq(alone.compress.codes, all.compress.codes + row * row_bytes, row_bytes);
    }
}

/* Each of many rows holds the same values: their mean is the value, and they vary as a number that is rounded up with
 * the probability f of its fraction: by f (1 - f) steps squared. */
TEST_EACH(the_mean_is_what_was_written, 2)
{
    enum { N = 64, MOST_ROWS = 4000 };
    const size_t n_rows = backend_get()->cuda ? 500 : MOST_ROWS;
    struct round_trip t = make_round_trip(NUMBER_FP32, n_rows, N, bits[_i]);
    float *const x = (float *)(uintptr_t)t.compress.x;
    const float *const y = t.expand.y;
    uint16_t scale;

    for (size_t i = N; i < n_rows * N; i++)
        x[i] = x[i % N];
    go_and_return(&t, NUMBER_FP32, 1);
    memcpy(&scale, t.compress.codes + compress_block_bytes(bits[_i]), sizeof scale);
    const double step = (double)number_from_bf16(scale) / (_i ? 7 : 127);
    for (size_t i = 0; i < N; i++) {
        const double at = (double)x[i] / step, f = at - floor(at), deviation = step * sqrt(f * (1 - f));
        double mean = 0, squares = 0;
        for (size_t row = 0; row < n_rows; row++) {
            mean += ((double)y[row * N + i] - (double)x[i]) / (double)n_rows;
            squares += pow((double)y[row * N + i] - (double)x[i], 2) / (double)n_rows;
        }
        ck_assert_msg(fabs(mean) <= 4.5 * deviation / sqrt((double)n_rows) + 1e-4 * step, "value %zu: off by %g steps",
                      i, mean / step);
        ck_assert_msg(fabs(squares - deviation * deviation) <= 0.15 * step * step / sqrt((double)n_rows / 500), "%zu",
                      i);
    }
}

/* A block with a NaN, of any pattern, or an infinity is NaN; one of numbers without an inverse is 0; the largest number
 * stays finite. The block beside it is as without them. */
TEST_EACH(blocks_at_the_ends_of_numbers, 5)
{
    static const uint32_t patterns[] = {0x7fffffff, 0xffc00000, 0x7f800000, 0x00000001, 0x7f7fffff};
    struct round_trip t = make_round_trip(NUMBER_FP32, 1, 128, 8);
    float *const x = (float *)(uintptr_t)t.compress.x;
    const float *const y = t.expand.y;

    for (int i = 0; i < 64; i++)
        x[i] = 0;
    memcpy(&x[7], &patterns[_i], sizeof *x);
    go_and_return(&t, NUMBER_FP32, 1);
    for (int i = 0; i < 64; i++)
        ck_assert(_i < 3 ? isnan(y[i]) : i == 7 && _i == 4 ? y[i] > 3e38f && isfinite(y[i]) : y[i] == 0);
    for (int i = 64; i < 128; i++)
        ck_assert(fabsf(y[i] - x[i]) < 0.1f);
}
