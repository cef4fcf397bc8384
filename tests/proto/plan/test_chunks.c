/* A block that is one layer, and the same block as five: what is not on the device together is not planned together. */
#include "tests/kit/device/backend.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/family.h"
#include "proto/plan/search.h"

/* W columns, the MLP's inner ones I in four chunks; T tokens. The chunks are larger than the rest. */
enum { W = 16, I = 32 * W, CHUNK = I / 4, T = 12, F = sizeof(float) };
/* Elements of the largest units. */
enum { BLOCK = 4 * W * W + 2 * W + 2 * W * I, LARGEST = 2 * W * CHUNK };

static const struct program_linear_options linear = {.deviation = 0.02f};
static const struct program_dropout none = {0};

/* r and its norm. */
static void write_start(struct program *p, const struct model_config *c, int *r, int *n)
{
    const struct program_norm_options norm = {.epsilon = 1e-5f, .rms = true};
    const struct program_attention_options attention = {.n_heads = c->n_heads, .scale = 1};
    const int x = program_begin(p, W);
    const int qkv = program_linear(p, program_norm(p, x, "ln_1", &norm), "qkv", 3 * W, &linear);

    *r = program_add(p, x, program_linear(p, program_attention(p, qkv, &attention), "o", W, &linear), &none);
    *n = program_norm(p, *r, "ln_2", &norm);
}

static int write_mlp(struct program *p, int n, uint32_t inner)
{
    return program_linear(p, program_activation(p, program_linear(p, n, "up", inner, &linear), MODEL_GELU), "down", W,
                          &linear);
}

static void write_whole(struct program *p, const struct model_config *c)
{
    int r, n;

    write_start(p, c, &r, &n);
    program_end(p, program_add(p, r, write_mlp(p, n, I), &none));
}

static void write_first(struct program *p, const struct model_config *c)
{
    int r, n;

    write_start(p, c, &r, &n);
    program_output(p, "residual", r);
    program_output(p, "normed", n);
}

static void write_chunk(struct program *p, const struct model_config *c)
{
    (void)c;
    program_init(p);
    program_add_to(p, "mixed", write_mlp(p, program_input(p, "normed", PROGRAM_TOKENS, W), CHUNK));
}

static void write_last(struct program *p, const struct model_config *c)
{
    (void)c;
    program_init(p);
    const int r = program_input(p, "residual", PROGRAM_TOKENS, W), mixed = program_input(p, "mixed", PROGRAM_TOKENS, W);
    const int y = write_mlp(p, program_input(p, "normed", PROGRAM_TOKENS, W), CHUNK);
    program_end(p, program_add(p, r, program_add(p, mixed, y, &none), &none));
}

static void write_norm(struct program *p, const struct model_config *c)
{
    (void)c;
    program_end(p, program_norm(p, program_begin(p, W), "ln_f", &(struct program_norm_options){.epsilon = 1e-5f}));
}

#define ABOVE                                                                                                          \
    {MODEL_SINGLE, "ln_f", .write = write_norm},                                                                       \
    {                                                                                                                  \
        0                                                                                                              \
    }
static const struct family_layer whole[] = {{MODEL_BLOCK, "h.%u", .write = write_whole}, ABOVE};
static const struct family_layer chunked[] = {{MODEL_BLOCK, "h.%u", .write = write_first},
                                              {MODEL_BLOCK, "h.%u.mlp.0", .goes_on = true, .write = write_chunk},
                                              {MODEL_BLOCK, "h.%u.mlp.1", .goes_on = true, .write = write_chunk},
                                              {MODEL_BLOCK, "h.%u.mlp.2", .goes_on = true, .write = write_chunk},
                                              {MODEL_BLOCK, "h.%u.mlp.3", .goes_on = true, .write = write_last},
                                              ABOVE};

static void find_smallest(struct plan *out, const struct family_layer *layers, enum number_type precision)
{
    struct family family = family_gpt2;
    struct model_config config = GPT2_CONFIG(6, 2, W, I, T, 16, .tied = true);
    const struct plan_setting setting = {
        .backend = &plan_cpu,
        .goal = {.purpose = PLAN_TRAIN, .precision = precision, .batch = 4, .seq = T, .n_parts = 1},
        .share_rows = 4,
        .part_rows = 4,
        .n_threads = 1};
    struct model model;

    family.layers = layers;
    config.family = &family;
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    plan_smallest(out, &model, &setting, &(struct plan_wish){0});
    model_free(&model);
}

/* Each of one buffer: the largest unit's weights, and its sum. */
static void check_units(const struct plan *one, const struct plan *five, uint64_t value)
{
    ck_assert_uint_eq(one->bytes[LEDGER_WEIGHTS] - five->bytes[LEDGER_WEIGHTS], (BLOCK - LARGEST) * value);
    ck_assert_uint_eq(one->bytes[LEDGER_CONTRIBUTION] - five->bytes[LEDGER_CONTRIBUTION], (BLOCK - LARGEST) * F);
}

/* By hand, in fp32. The one layer has a tile of its input, of its output and of a gradient. Of the five, the last reads
 * three values, and going back has the gradients of its output (where that of "residual" is made), of "mixed" and of
 * "normed"; one that adds to the sum has a tile of that and one that it writes. In bf16 sums are twice as wide, and
 * there are tiles of what they are rounded to, and of what is added to them. */
TEST(what_passes_one_by_one_is_on_the_device_one_by_one)
{
    enum { TILE = T * W * F, HALF = TILE / 2 };
    struct plan one, five;

    find_smallest(&one, whole, NUMBER_FP32);
    find_smallest(&five, chunked, NUMBER_FP32);
    ck_assert(one.choice.host_stash && five.choice.host_stash);
    check_units(&one, &five, F);
    ck_assert_uint_eq(one.bytes[LEDGER_STASH], 2 * TILE);
    ck_assert_uint_eq(five.bytes[LEDGER_STASH], (3 + 2) * TILE);
    ck_assert_uint_eq(one.bytes[LEDGER_GRADIENT], TILE);
    ck_assert_uint_eq(five.bytes[LEDGER_GRADIENT], 3 * TILE);
    ck_assert_uint_eq(five.bytes[LEDGER_WORKSPACE], one.bytes[LEDGER_WORKSPACE]); /* the attention's in both */
    ck_assert_uint_eq(plan_total(&one) - plan_total(&five), 2 * (BLOCK - LARGEST) * F - 5 * TILE);

    find_smallest(&one, whole, NUMBER_BF16);
    find_smallest(&five, chunked, NUMBER_BF16);
    check_units(&one, &five, 2);
    ck_assert_uint_eq(one.bytes[LEDGER_STASH], 2 * HALF);
    ck_assert_uint_eq(five.bytes[LEDGER_STASH], (2 + 2 + 1) * HALF + (2 + 1) * HALF);
    ck_assert_uint_eq(one.bytes[LEDGER_GRADIENT], HALF);
    ck_assert_uint_eq(five.bytes[LEDGER_GRADIENT], (1 + 2 + 1) * HALF + HALF);
}
