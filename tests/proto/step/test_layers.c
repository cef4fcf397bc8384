#include "proto/model/gpt2.h"
#include "proto/step/layers.h"

#include "proto/model/family.h"
#include "proto/plan/memory/units.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, slow, on_cuda)

/* Element by element (some, under a sanitizer and on the simulated device): fp32 against double, whose differences are
 * good to 1e-9. Also proves that dropout's masks are the same in forward, in recomputation, in backward and by
 * definition. */
TEST_EACH(gradients_are_the_slopes_of_the_loss, SANITIZED ? 2 : SETTING_CONFIGS)
{
    struct setting s;
    struct array_link link;
    struct reference_gpt2 ref, found;

    setting_open(&s, setting_config(_i), 3, 4);
    const struct device_worker_options options = setting_options(&s, 3, 2);
    setting_step_whole(&link, &s, &options);
    reference_gpt2_init(&ref, &s.model, s.weights);
    reference_gpt2_init(&found, &s.model, link.gradient);
    const struct reference_batch batch = setting_batch(&s);
    ck_assert_double_eq_tol(link.losses[0], reference_gpt2_loss(&ref, &batch), 1e-6 * link.losses[0]);
    for (uint32_t t = 0; t < s.model.n_tensors; t++) {
        const uint64_t n = s.model.tensors[t].n, stride = (SANITIZED || backend_get()->simulated) && n > 100 ? 7 : 1;
        double difference = 0, size = 0;
        for (uint64_t i = 0; i < n; i += stride) {
            const double slope = reference_slope(&ref, reference_gpt2_loss_of, &batch, t, i) / (double)s.n_valid;
            difference += pow(found.tensors[t][i] - slope, 2);
            size += pow(slope, 2);
        }
        ck_assert_msg(sqrt(difference) <= 1e-5 * sqrt(size), "%s: off by %g of %g", s.model.tensors[t].name,
                      sqrt(difference), sqrt(size));
    }
    reference_gpt2_free(&ref);
    reference_gpt2_free(&found);
    array_link_free(&link);
    setting_close(&s);
}

/* A table of 40,000 rows comes in two units, and a block of width 640 in two slices: slopes along random directions. */
TEST_EACH(gradients_of_cut_units_are_the_slopes_of_the_loss, 2)
{
    static const struct model_config large[] = {
        {&family_gpt2, 1, 2, 64, 64, 9, 40000, MODEL_GELU_NEW, true, 1e-5f, 0, GPT2_ON(scale_attention)},
        {&family_gpt2, 1, 2, 640, 2560, 9, 20, MODEL_GELU_NEW, false, 1e-5f, 0, GPT2_ON(scale_attention)},
    };
    struct setting s;
    struct array_link link;
    struct reference_gpt2 ref, found;
    uint64_t state = 2463534242u;

    if (backend_get()->simulated)
        TEST_SKIP("the simulated device is slow: a real one has this");
    setting_open(&s, &large[_i], 2, _i == 0 ? 3 : 2);
    ck_assert_uint_gt(_i == 0 ? s.model.n_visits : s.model.units[s.model.visits[2]].n_slices, _i == 0 ? 5 : 1);
    const struct device_worker_options options = setting_options(&s, 2, 1);
    setting_step_whole(&link, &s, &options);
    reference_gpt2_init(&ref, &s.model, s.weights);
    reference_gpt2_init(&found, &s.model, link.gradient);
    const struct reference_batch batch = setting_batch(&s);
    for (uint32_t t = 0; t < s.model.n_tensors; t++)
        reference_check_direction(&ref, reference_gpt2_loss_of, &batch, s.n_valid, &found, t, &state);
    reference_gpt2_free(&ref);
    reference_gpt2_free(&found);
    array_link_free(&link);
    setting_close(&s);
}

/* One layer alone on a device: all visits of one direction over the whole minibatch. */
struct stage {
    const struct setting *s;
    struct plan plan;
    struct device *dev;
    struct layer_pass pass;
    size_t boundary_n; /* elements */
    float *input;      /* host: (boundary_n), what the layer is given */
};

enum { GUARD_BYTES = 4096 }; /* behind the workspace, which lies last */

static char *arena_of(const struct stage *st)
{
    return backend_get()->ops->arena(st->dev);
}

/* Value 0 or 1 of the stream. */
static uint64_t place_of(const struct stage *st, uint32_t i)
{
    return st->plan.values[0].stashed + i * st->plan.values[0].bytes;
}

/* The layer's input is boundary 0, its output boundary 1, its weights in buffer 0. */
static struct layer_pass pass_of(const struct stage *st, uint32_t layer)
{
    const struct plan *p = &st->plan;
    char *a = arena_of(st);

    return (struct layer_pass){.ops = backend_get()->ops,
                               .dev = st->dev,
                               .model = &st->s->model,
                               .layer = &st->s->model.layers[layer],
                               .program = st->s->model.layers[layer].program,
                               .edges = &st->s->model.layers[layer].edges,
                               .weights = a + p->weights[0],
                               .at = {[MODEL_INPUT] = {a + place_of(st, 0)}, [MODEL_OUTPUT] = {a + place_of(st, 1)}},
                               .ids = (uint32_t *)(a + p->ids),
                               .labels = (uint32_t *)(a + p->labels),
                               .running = (float *)(a + p->running),
                               .losses = (double *)(a + p->losses),
                               .workspace = a + p->workspace,
                               .n_rows = st->s->batch,
                               .n_tokens = st->s->seq,
                               .seed = SETTING_SEED,
                               .step = SETTING_STEP,
                               .loss_scale = 0.25f,
                               .dropout = true,
                               .setting = &p->setting,
                               .plan = p};
}

static void upload(const struct stage *st, uint64_t offset, const void *from, size_t bytes)
{
    ck_assert_int_eq(backend_get()->ops->sync(st->dev), 0);
    backend_get()->ops->upload(st->dev, arena_of(st) + offset, from, bytes);
    ck_assert_int_eq(backend_get()->ops->sync(st->dev), 0);
}

/* n values, rounded to the device's precision. */
static void upload_values(const struct stage *st, uint64_t offset, const float *from, size_t n)
{
    const enum number_type type = st->plan.setting.goal.precision;
    uint16_t *rounded = malloc(n * sizeof *rounded);

    ck_assert_ptr_nonnull(rounded);
    for (size_t i = 0; i < n; i++)
        rounded[i] = number_to_half(type, from[i]);
    upload(st, offset, type != NUMBER_FP32 ? (const void *)rounded : from, n * number_bytes(type));
    free(rounded);
}

static void download(const struct stage *st, void *to, uint64_t offset, size_t bytes)
{
    ck_assert_int_eq(backend_get()->ops->sync(st->dev), 0);
    backend_get()->ops->download(st->dev, to, arena_of(st) + offset, bytes);
    ck_assert_int_eq(backend_get()->ops->sync(st->dev), 0);
}

static void download_values(const struct stage *st, float *to, uint64_t offset, size_t n)
{
    const enum number_type type = st->plan.setting.goal.precision;
    uint16_t *rounded = malloc(n * sizeof *rounded);

    ck_assert_ptr_nonnull(rounded);
    download(st, type != NUMBER_FP32 ? (void *)rounded : to, offset, n * number_bytes(type));
    for (size_t i = 0; type != NUMBER_FP32 && i < n; i++)
        to[i] = number_from_half(type, rounded[i]);
    free(rounded);
}

/* Every byte of the arena is `filling` at first. */
static void open_stage(struct stage *st, const struct setting *s, uint32_t layer, int filling)
{
    const struct device_worker_options options = setting_options(s, s->batch, s->batch);
    const size_t tokens = (size_t)s->batch * s->seq;
    uint64_t state = 362436069u;
    struct model model;

    *st = (struct stage){.s = s, .boundary_n = tokens * s->model.config.width};
    ck_assert_int_eq(model_init(&model, &s->model.config, NULL), 0); /* as it is when nothing is cut otherwise */
    plan_lay_out(&st->plan, &model, &options.setting, &options.choice);
    model_free(&model);
    const size_t bytes = st->plan.arena_bytes + GUARD_BYTES;
    ck_assert_int_eq(backend_get()->ops->open(&st->dev, 0, s->precision, bytes, 1, NULL), 0);
    char *fill = malloc(bytes);
    st->input = malloc(st->boundary_n * sizeof(float));
    ck_assert(fill && st->input);
    memset(fill, filling, bytes);
    for (size_t i = 0; i < st->boundary_n; i++)
        st->input[i] = number_from_bf16(number_to_bf16((float)setting_random(&state))); /* as it is in either type */
    upload(st, 0, fill, bytes);
    upload_values(st, place_of(st, 0), st->input, st->boundary_n);
    upload_values(st, st->plan.gradient, st->input, st->boundary_n); /* any numbers do */
    upload(st, st->plan.ids, s->ids, tokens * sizeof(uint32_t));
    upload(st, st->plan.labels, s->labels, tokens * sizeof(uint32_t));
    st->pass = pass_of(st, layer);
    free(fill);
}

static void close_stage(struct stage *st)
{
    backend_get()->ops->close(st->dev);
    free(st->input);
}

/* Visit i of the layer, its unit uploaded, with zeros in what pads it. */
static void enter_visit(struct stage *st, uint32_t i)
{
    const struct model *m = st->pass.model;
    const uint32_t unit = m->visits[st->pass.layer->first_visit + i];
    const size_t value = number_bytes(st->plan.setting.goal.precision);

    st->pass.unit = &m->units[unit];
    backend_get()->ops->zero(st->dev,
                             &(struct device_zero){arena_of(st) + st->plan.weights[0] + st->pass.unit->n * value,
                                                   (plan_unit_room(m, unit, st->plan.head_pad) - st->pass.unit->n) *
                                                       value});
    st->pass.bottom = i == 0;
    st->pass.top = i == st->pass.layer->n_visits - 1;
    upload_values(st, st->plan.weights[0], st->s->weights + st->pass.unit->offset, st->pass.unit->n);
}

/* contribution (segment_n) gets that of every visit. */
static void run_backward(struct stage *st, float *contribution)
{
    st->pass.contribution = (float *)(arena_of(st) + st->plan.contribution[0]);
    st->pass.at[MODEL_OUTPUT_GRADIENT][0] = st->pass.at[MODEL_INPUT_GRADIENT][0] = arena_of(st) + st->plan.gradient;
    for (uint32_t i = st->pass.layer->n_visits; i-- > 0;) {
        enter_visit(st, i);
        backend_get()->ops->zero(st->dev,
                                 &(struct device_zero){st->pass.contribution, st->pass.unit->n * sizeof(float)});
        layer_table[st->pass.layer->kind]->backward(&st->pass);
        download(st, contribution + st->pass.unit->offset, st->plan.contribution[0], st->pass.unit->n * sizeof(float));
    }
}

/* All behind what this layer asked for is as it was. */
static void check_guard(const struct stage *st, int filling)
{
    const size_t used = plan_workspace(&st->plan, st->pass.model, st->pass.layer->kind, NULL);
    const size_t n = st->plan.arena_bytes + GUARD_BYTES - st->plan.workspace - used;
    unsigned char *guard = malloc(n);

    ck_assert_ptr_nonnull(guard);
    download(st, guard, st->plan.workspace + used, n);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(guard[i], (unsigned)filling);
    free(guard);
}

/* What a layer leaves; the head losses, the others an output. */
struct outcome {
    float *output, *gradient, *contribution;
    double *losses;
};

/* Forward and backward of one layer in an arena full of `filling`. Input and what lies behind the workspace must stay.
 */
static void run_layer(struct outcome *o, const struct setting *s, uint32_t layer, int filling)
{
    struct stage st;
    const size_t tokens = (size_t)s->batch * s->seq;

    open_stage(&st, s, layer, filling);
    *o = (struct outcome){.output = calloc(st.boundary_n, sizeof(float)),
                          .gradient = calloc(st.boundary_n, sizeof(float)),
                          .contribution = calloc(s->model.segment_n, sizeof(float)),
                          .losses = calloc(tokens, sizeof(double))};
    ck_assert(o->output && o->gradient && o->contribution && o->losses);
    for (uint32_t i = 0; i < st.pass.layer->n_visits; i++) {
        enter_visit(&st, i);
        layer_table[st.pass.layer->kind]->forward(&st.pass);
    }
    if (st.pass.layer->kind == MODEL_HEAD)
        download(&st, o->losses, st.plan.losses, tokens * sizeof(double));
    else
        download_values(&st, o->output, place_of(&st, 1), st.boundary_n);
    run_backward(&st, o->contribution);
    download_values(&st, o->gradient, place_of(&st, 0), st.boundary_n);
    ck_assert(setting_same_bits(o->gradient, st.input, st.boundary_n));
    download_values(&st, o->gradient, st.plan.gradient, st.boundary_n);
    check_guard(&st, filling);
    close_stage(&st);
}

static void free_outcome(struct outcome *o)
{
    free(o->output);
    free(o->gradient);
    free(o->contribution);
    free(o->losses);
}

/* All bits set are NaNs: one that was read would show. */
TEST_EACH(layers_read_nothing_that_they_were_not_given, NUMBER_TYPES *SETTING_CONFIGS)
{
    struct setting s;
    struct outcome clean, dirty;

    setting_open(&s, setting_config(_i / NUMBER_TYPES), 3, 7);
    s.precision = (enum number_type)(_i % NUMBER_TYPES);
    const size_t tokens = 3 * 7, n = tokens * s.model.config.width;
    for (uint32_t layer = 0; layer < s.model.n_layers; layer++) {
        run_layer(&clean, &s, layer, 0);
        run_layer(&dirty, &s, layer, 0xff);
        ck_assert(setting_same_bits(clean.output, dirty.output, n));
        ck_assert(setting_same_bits(clean.gradient, dirty.gradient, n));
        ck_assert(setting_same_bits(clean.contribution, dirty.contribution, s.model.segment_n));
        ck_assert_int_eq(memcmp(clean.losses, dirty.losses, tokens * sizeof(double)), 0);
        for (size_t i = 0; i < n; i++)
            ck_assert(isfinite(clean.gradient[i]) && isfinite(clean.output[i]));
        free_outcome(&clean);
        free_outcome(&dirty);
    }
    setting_close(&s);
}

enum { CUT_ROW = 4 };

/* Cuts the table of positions (9 rows), which is unit 1, in two. Only the embedding of *cut can be run. */
static void cut_positions(struct model *cut, const struct model *m)
{
    const uint64_t first_n = CUT_ROW * (uint64_t)m->config.width;
    const size_t piece = m->units[1].first_piece;

    *cut = *m;
    cut->units = calloc(m->n_units + 1, sizeof *cut->units);
    cut->pieces = calloc(m->n_pieces + 1, sizeof *cut->pieces);
    cut->visits = calloc(m->n_visits, sizeof *cut->visits);
    cut->layers = calloc(m->n_layers, sizeof *cut->layers);
    ck_assert(cut->units && cut->pieces && cut->visits && cut->layers);
    memcpy(cut->units, m->units, m->n_units * sizeof *m->units);
    memcpy(cut->pieces, m->pieces, m->n_pieces * sizeof *m->pieces);
    memcpy(cut->layers, m->layers, m->n_layers * sizeof *m->layers);
    cut->units[m->n_units] = m->units[1]; /* also in its id, which names dropout's bits */
    cut->units[m->n_units].first_piece = m->n_pieces;
    cut->units[m->n_units].offset += first_n;
    cut->units[m->n_units].n -= first_n;
    cut->pieces[m->n_pieces] = m->pieces[piece];
    cut->pieces[m->n_pieces].first_row = CUT_ROW;
    cut->pieces[m->n_pieces].n_rows -= CUT_ROW;
    cut->units[1].n = first_n;
    cut->pieces[piece].n_rows = CUT_ROW;
    cut->layers[0].n_visits = 3;
    cut->visits[1] = 1;
    cut->visits[2] = m->n_units;
}

static void free_cut(struct model *cut)
{
    free(cut->units);
    free(cut->pieces);
    free(cut->visits);
    free(cut->layers);
}

/* Rows of 3 tokens do not reach the second unit of positions, rows of 7 do. */
TEST_EACH(positions_cut_in_two_units_are_as_in_one, 2)
{
    struct setting whole, parted;
    struct outcome one, two;
    const uint32_t seq = _i ? 7 : 3;

    setting_open(&whole, setting_config(3), 3, seq);
    parted = whole;
    cut_positions(&parted.model, &whole.model);
    run_layer(&one, &whole, 0, 0xff);
    run_layer(&two, &parted, 0, 0xff);
    const size_t n = (size_t)3 * seq * whole.model.config.width;
    ck_assert(setting_same_bits(one.output, two.output, n));
    ck_assert(setting_same_bits(one.contribution, two.contribution, whole.model.segment_n));
    free_outcome(&one);
    free_outcome(&two);
    free_cut(&parted.model);
    setting_close(&whole);
}

/* Tokens 2 to 4 of a text, where positions are cut at 4, and token 0 of another one; by hand: the row of wte plus that
 * of wpe, one rounding. */
TEST(embedding_begins_at_the_position_of_each_text)
{
    enum { N = 4 };
    static const struct operation_span spans[] = {{.n = 3, .position = 2}, {.at = 3, .n = 1, .position = 0}};
    static const size_t positions[N] = {2, 3, 4, 0};
    struct setting whole, parted;
    struct stage st;
    float got[N * 16];

    setting_open(&whole, setting_config(3), 1, 7);
    parted = whole;
    cut_positions(&parted.model, &whole.model);
    open_stage(&st, &parted, 0, 0xff);
    st.pass.n_tokens = N;
    st.pass.spans = spans;
    st.pass.n_spans = COUNT(spans);
    st.pass.dropout = false;
    for (uint32_t i = 0; i < 3; i++) {
        enter_visit(&st, i);
        layer_table[MODEL_EMBEDDING]->forward(&st.pass);
    }
    const size_t width = whole.model.config.width;
    download(&st, got, place_of(&st, 1), N * width * sizeof(float));
    const float *wte = whole.weights + whole.model.units[0].offset, *wpe = whole.weights + whole.model.units[1].offset;
    for (size_t i = 0; i < N; i++)
        for (size_t j = 0; j < width; j++)
            ck_assert(got[i * width + j] == wte[whole.ids[i] * width + j] + wpe[positions[i] * width + j]);
    close_stage(&st);
    free_cut(&parted.model);
    setting_close(&whole);
}

static float scale_of(const struct model_config *c)
{
    (void)c;
    return 4.898979f;
}

static float rounded(enum number_type type, float x)
{
    return type == NUMBER_FP32 ? x : number_from_half(type, number_to_half(type, x));
}

/* By the square root of 24, which is 4.90625 in bf16, 4.8984375 in fp16. By hand: a row of wte times that, and the row
 * of wpe added. */
TEST_EACH(an_embedding_is_scaled_in_the_weights_type, NUMBER_TYPES)
{
    const enum number_type type = (enum number_type)_i;
    const float scale = type == NUMBER_BF16 ? 4.90625f : type == NUMBER_FP16 ? 4.8984375f : 4.898979f;
    struct family scaling = family_gpt2;
    struct model_config config = *setting_config(0);
    struct setting s;
    struct outcome o;

    scaling.embedding_scale = scale_of, config.family = &scaling;
    setting_open(&s, &config, 2, 5);
    s.precision = type;
    run_layer(&o, &s, 0, 0xff);
    const float *wte = s.weights + s.model.units[0].offset, *wpe = s.weights + s.model.units[1].offset;
    for (size_t i = 0; i < (size_t)2 * 5 * config.width; i++) {
        const size_t token = i / config.width, j = i % config.width;
        const float scaled = rounded(type, rounded(type, wte[s.ids[token] * config.width + j]) * scale);
        ck_assert(o.output[i] == rounded(type, scaled + rounded(type, wpe[token % 5 * config.width + j])));
    }
    free_outcome(&o);
    setting_close(&s);
}
