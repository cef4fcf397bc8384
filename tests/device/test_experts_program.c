/* Experts as operations of a program, on the CPU: backward with the choice kept or made again, and gradients that are
 * summed over microbatches. */
#include "proto/base/random.h"
#include "proto/operation/operation.h"
#include "tests/kit/device/mirror.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 12, EXPERTS = 5, CHOSEN = 2, INNER = 7, ROWS = 2, TOKENS = 30, MOST = 1 << 16 };

static struct program program;
static struct schedule forward, backward;

static void write_program(void)
{
    const struct program_linear_options linear = {.deviation = 0.02f, .out_in = true};
    const struct program_route_options route = {.n_chosen = CHOSEN, .normalises = true};
    const struct program_experts_names names = {.gate = "experts.%u.gate",
                                                .up = "experts.%u.up",
                                                .down = "experts.%u.down"};
    const int x = program_begin(&program, WIDTH), n = program_linear(&program, x, "in", WIDTH, &linear);
    const int scores = program_linear(&program, n, "router", EXPERTS, &linear);

    program_end(&program, program_experts(&program, n, scores, INNER, &names, &route, 0.02f));
}

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

static float *drawn(size_t n, uint32_t seed)
{
    float *x = room(n);

    random_normal(x, (struct random_key){{seed, 0}}, 0, 0, n);
    return x;
}

static size_t size_of(const struct program_tensor *t)
{
    return (size_t)t->rows * (t->columns ? t->columns : 1) * (t->n_stacked ? t->n_stacked : 1);
}

/* What a run leaves: gradients of the program's tensors, and of x. */
struct ran {
    float *gradients[PROGRAM_TENSORS], *input_gradient;
};

/* Each buffer by itself; those that are kept by value. x: these rows of all. */
static void place(struct operation_run *r, const struct schedule *s, uint32_t first, void *of_values[PROGRAM_VALUES])
{
    const size_t n = (size_t)r->n_rows * TOKENS * WIDTH, before = (size_t)first * TOKENS * WIDTH;

    r->schedule = s;
    for (int i = 0; i < s->n_buffers; i++) {
        const struct schedule_buffer *b = &s->buffers[i];
        const bool is_input = b->place == SCHEDULE_INPUT, is_slope = b->place == SCHEDULE_GRADIENT;
        r->at[i] = b->place == SCHEDULE_KEPT ? of_values[b->value] : room(MOST);
        if (is_input || is_slope)
            memcpy(r->at[i], drawn(ROWS * TOKENS * WIDTH, is_input ? 1 : 2) + before, n * sizeof(float));
    }
}

/* Forward, then backward, of these rows; gradients of tensors are summed unless fresh. */
static void run_rows(struct ran *ran, struct mirror *at, uint64_t kept, uint32_t first, uint32_t n_rows, bool fresh)
{
    struct operation_run r = {.ops = at->ops,
                              .dev = at->dev,
                              .type = NUMBER_FP32,
                              .program = &program,
                              .fresh = fresh,
                              .n_rows = n_rows,
                              .n_tokens = TOKENS,
                              .n_positions = TOKENS,
                              .backend = &plan_cpu};
    void *of_values[PROGRAM_VALUES];

    for (int i = 0; i < program.n_values; i++)
        of_values[i] = room(MOST);
    for (int i = 0; i < program.n_tensors; i++) {
        r.weights[i] = drawn(size_of(&program.tensors[i]), 10 + (uint32_t)i);
        r.gradients[i] = ran->gradients[i];
    }
    schedule_forward(&forward, &program, kept);
    schedule_backward(&backward, &program, kept);
    place(&r, &forward, first, of_values);
    operation_run_steps(&r, 0, forward.n_steps);
    place(&r, &backward, first, of_values);
    operation_run_steps(&r, 0, backward.n_steps);
    ran->input_gradient = r.at[backward.gradients[0]];
    ck_assert_int_eq(at->ops->sync(at->dev), 0);
}

static struct ran run_in(struct mirror *at, uint64_t kept, uint32_t microbatch)
{
    struct ran ran;

    for (int i = 0; i < program.n_tensors; i++)
        ran.gradients[i] = drawn(size_of(&program.tensors[i]), 99); /* the first microbatch overwrites them */
    for (uint32_t first = 0; first < ROWS; first += microbatch)
        run_rows(&ran, at, kept, first, microbatch, first == 0);
    return ran;
}

SUITE_FIXTURE(forget, NULL)

TEST(a_choice_that_is_made_again_gives_the_same_gradients)
{
    struct mirror at;

    write_program();
    mirror_open(&at, NUMBER_FP32, 2, false);
    const struct ran kept = run_in(&at, program_keepable(&program), ROWS), again = run_in(&at, 0, ROWS);
    ck_assert_mem_eq(kept.input_gradient, again.input_gradient, ROWS * TOKENS * WIDTH * sizeof(float));
    for (int i = 0; i < program.n_tensors; i++)
        ck_assert_mem_eq(kept.gradients[i], again.gradients[i], size_of(&program.tensors[i]) * sizeof(float));
    mirror_close(&at);
}

/* Sums of 60 products in another order. */
TEST(gradients_are_summed_over_microbatches)
{
    struct mirror at;

    write_program();
    mirror_open(&at, NUMBER_FP32, 2, false);
    const struct ran whole = run_in(&at, 0, ROWS), parts = run_in(&at, 0, 1);
    for (int i = 0; i < program.n_tensors; i++) {
        const size_t n = size_of(&program.tensors[i]);
        float most = 0;
        for (size_t k = 0; k < n; k++)
            most = fmaxf(most, fabsf(whole.gradients[i][k]));
        ck_assert_float_gt(most, 0);
        for (size_t k = 0; k < n; k++)
            ck_assert_msg(fabsf(whole.gradients[i][k] - parts.gradients[i][k]) <= 60 * 0x1p-24f * 2 * most,
                          "%s: %g, not %g", program.tensors[i].name, (double)parts.gradients[i][k],
                          (double)whole.gradients[i][k]);
    }
    mirror_close(&at);
}
