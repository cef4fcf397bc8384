/* A gated delta rule as an operation of a program, on the CPU: backward with its states kept or made again, and a text in
 * tiles, with another one beside it. */
#include "proto/operation/operation.h"
#include "proto/base/random.h"
#include "tests/kit/device/mirror.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

enum { WIDTH = 12, HEADS = 4, KEY = 6, VALUE = 5, QKV = 2 * 2 * KEY + HEADS * VALUE, ROWS = 2, TOKENS = 150 };
enum { STATE = HEADS * KEY * VALUE, MOST = 1 << 17, CACHE = 4096 };

static struct program program;
static struct schedule forward, backward;

static void write_program(void)
{
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_short_conv_options conv = {.n_taps = 4, .silu = true, .deviation = 0.02f};
    const struct program_gated_delta_options delta = {
        .n_heads = HEADS, .n_key_heads = 2, .key_width = KEY, .doubled = true, .largest = 16};
    const int x = program_begin(&program, WIDTH), qkv = program_linear(&program, x, "mixer.qkv", QKV, &linear);
    const int u = program_short_conv(&program, qkv, "mixer.conv", &conv);
    const int gates = program_linear(&program, x, "mixer.ab", 2 * HEADS, &linear);

    program_end(&program, program_linear(&program, program_gated_delta(&program, u, gates, "mixer", &delta),
                                         "mixer.out", WIDTH, &linear));
}

/* What a run begins with and leaves. */
struct ran {
    float *out, *gradients[PROGRAM_TENSORS], *input_gradient;
};

/* Floats at the start of a cache line, until the test ends. */
static float *blocks[512];
static size_t n_blocks;

static float *room(size_t n)
{
    float *block = aligned_alloc(64, (n * sizeof *block + 63) / 64 * 64);

    ck_assert(block && n_blocks < COUNT(blocks));
    return blocks[n_blocks++] = block;
}

static void forget(void)
{
    while (n_blocks > 0)
        free(blocks[--n_blocks]);
    mirror_forget();
}

static const float *drawn(size_t n, uint32_t seed)
{
    float *x = room(n);

    random_normal(x, (struct random_key){{seed, 0}}, 0, 0, n);
    return x;
}

static size_t size_of(const struct program_tensor *t)
{
    return (size_t)t->rows * (t->columns ? t->columns : 1);
}

/* Each buffer by itself; those that are kept, and what leaves the program, by value. */
static void place(struct operation_run *r, const struct schedule *s, const float *x, void *of_values[PROGRAM_VALUES],
                  struct ran *ran)
{
    r->schedule = s;
    for (int i = 0; i < s->n_buffers; i++) {
        const struct schedule_buffer *b = &s->buffers[i];
        if (b->place == SCHEDULE_INPUT)
            r->at[i] = memcpy(room(ROWS * TOKENS * WIDTH), x, ROWS * TOKENS * WIDTH * 4);
        else if (b->place == SCHEDULE_GRADIENT)
            r->at[i] = memcpy(room(ROWS * TOKENS * WIDTH), drawn(ROWS * TOKENS * WIDTH, 2), ROWS * TOKENS * WIDTH * 4);
        else if (b->place == SCHEDULE_OUTPUT && !b->gradient)
            r->at[i] = ran->out;
        else if (b->place == SCHEDULE_KEPT)
            r->at[i] = of_values[b->value];
        else
            r->at[i] = room(MOST);
    }
}

static struct operation_run run_of(struct mirror *at, struct ran *ran)
{
    struct operation_run r = {.ops = at->ops,
                              .dev = at->dev,
                              .type = NUMBER_FP32,
                              .program = &program,
                              .fresh = true,
                              .n_rows = ROWS,
                              .n_tokens = TOKENS,
                              .n_positions = TOKENS,
                              .backend = &plan_cpu};

    ran->out = room(ROWS * TOKENS * WIDTH);
    for (int i = 0; i < program.n_tensors; i++) {
        r.weights[i] = drawn(size_of(&program.tensors[i]), 10 + (uint32_t)i);
        r.gradients[i] = ran->gradients[i] = room(size_of(&program.tensors[i]));
        memset(ran->gradients[i], 0, size_of(&program.tensors[i]) * sizeof(float));
    }
    return r;
}

/* Forward, then backward. */
static struct ran run_both(struct mirror *at, uint64_t kept)
{
    struct ran ran;
    struct operation_run r = run_of(at, &ran);
    void *of_values[PROGRAM_VALUES];
    const float *x = drawn(ROWS * TOKENS * WIDTH, 1);

    for (int i = 0; i < program.n_values; i++)
        of_values[i] = room(MOST);
    schedule_forward(&forward, &program, kept);
    schedule_backward(&backward, &program, kept);
    place(&r, &forward, x, of_values, &ran);
    operation_run_steps(&r, 0, forward.n_steps);
    place(&r, &backward, x, of_values, &ran);
    operation_run_steps(&r, 0, backward.n_steps);
    ran.input_gradient = r.at[backward.gradients[0]];
    ck_assert_int_eq(at->ops->sync(at->dev), 0);
    return ran;
}

SUITE_FIXTURE(forget, NULL)

TEST(states_that_are_made_again_give_the_same_gradients)
{
    struct mirror at;

    write_program();
    mirror_open(&at, NUMBER_FP32, 2, false);
    const struct ran kept = run_both(&at, program_keepable(&program)), again = run_both(&at, 0);
    ck_assert_mem_eq(kept.out, again.out, ROWS * TOKENS * WIDTH * sizeof(float));
    ck_assert_mem_eq(kept.input_gradient, again.input_gradient, ROWS * TOKENS * WIDTH * sizeof(float));
    for (int i = 0; i < program.n_tensors; i++) {
        const size_t n = size_of(&program.tensors[i]);
        size_t n_zero = 0;
        ck_assert_mem_eq(kept.gradients[i], again.gradients[i], n * sizeof(float));
        for (size_t k = 0; k < n; k++)
            n_zero += kept.gradients[i][k] == 0;
        ck_assert_msg(n_zero == 0, "%s", program.tensors[i].name);
    }
    mirror_close(&at);
}

/* Both rows as texts, in tiles side by side: tails and states lie in one place of each text, and no bit differs from
 * the rows'. */
TEST(texts_in_tiles_are_as_the_rows)
{
    static char caches[ROWS][CACHE];
    const struct operation_texts texts = {&plan_cpu, NUMBER_FP32, TOKENS};
    const float *x = drawn(ROWS * TOKENS * WIDTH, 1);
    struct mirror at;

    write_program();
    mirror_open(&at, NUMBER_FP32, 2, false);
    const struct ran rows = run_both(&at, 0);
    ck_assert_uint_le(operation_cache_bytes(&program, &texts), CACHE);
    memset(caches, 0x7f, sizeof caches); /* not read before the first token */
    for (uint32_t first = 0; first < TOKENS; first += 64) {
        const uint32_t n = TOKENS - first < 64 ? TOKENS - first : 64;
        const struct operation_span spans[] = {{.at = 0, .n = n, .position = first, .cache = caches[0]},
                                               {.at = n, .n = n, .position = first, .cache = caches[1]}};
        float *tiles = room(ROWS * TOKENS * WIDTH);
        struct ran ran;
        struct operation_run r = run_of(&at, &ran);

        for (uint32_t row = 0; row < ROWS; row++)
            memcpy(tiles + row * n * WIDTH, x + (row * TOKENS + first) * WIDTH, n * WIDTH * sizeof(float));
        r.n_rows = 1, r.n_tokens = 2 * n, r.spans = spans, r.n_spans = ROWS;
        place(&r, &forward, tiles, (void *[PROGRAM_VALUES]){NULL}, &ran);
        operation_run_steps(&r, 0, forward.n_steps);
        ck_assert_int_eq(at.ops->sync(at.dev), 0);
        for (uint32_t row = 0; row < ROWS; row++)
            ck_assert_mem_eq(ran.out + row * n * WIDTH, rows.out + (row * TOKENS + first) * WIDTH,
                             n * WIDTH * sizeof(float));
    }
    mirror_close(&at);
}
