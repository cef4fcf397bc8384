/* The places of boundary values: of two that are needed at once each has its own, and there are no more than are
 * needed. */
#include "proto/model/family.h"
#include "proto/operation/operation.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include <string.h>

/* ---- a block whose values last for different times ---- */

static const struct program_norm_options norm = {.epsilon = 1e-5f};
static const struct program_linear_options linear = {.deviation = 0.02f};
static const struct program_dropout none = {0};

static void write_first(struct program *p, const struct model_config *c)
{
    const int x = program_begin(p, c->width);
    const int r =
        program_add(p, x, program_linear(p, program_norm(p, x, "ln_1", &norm), "a", c->width, &linear), &none);
    const int n = program_norm(p, r, "ln_2", &norm);

    program_output(p, "r", r);
    program_output(p, "n", n);
    program_output(p, "s", program_linear(p, n, "b", c->width, &linear));
}

/* s ends where t begins. */
static void write_second(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int s = program_input(p, "s", PROGRAM_TOKENS, c->width), n = program_input(p, "n", PROGRAM_TOKENS, c->width);
    program_output(p, "t", program_add(p, s, program_linear(p, n, "c", c->width, &linear), &none));
}

static void write_third(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int n = program_input(p, "n", PROGRAM_TOKENS, c->width);
    program_add_to(p, "sum", program_linear(p, n, "d", c->width, &linear));
}

static void write_last(struct program *p, const struct model_config *c)
{
    program_init(p);
    const int r = program_input(p, "r", PROGRAM_TOKENS, c->width), t = program_input(p, "t", PROGRAM_TOKENS, c->width);
    const int sum = program_input(p, "sum", PROGRAM_TOKENS, c->width),
              n = program_input(p, "n", PROGRAM_TOKENS, c->width);
    const int e = program_add(p, sum, program_linear(p, n, "e", c->width, &linear), &none);
    program_end(p, program_add(p, r, program_add(p, t, e, &none), &none));
}

static void write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, program_norm(p, program_begin(p, c->width), "ln_f", &norm));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "h.%u", .write = write_first},
    {MODEL_BLOCK, "h.%u.b", .goes_on = true, .write = write_second},
    {MODEL_BLOCK, "h.%u.c", .goes_on = true, .write = write_third},
    {MODEL_BLOCK, "h.%u.d", .goes_on = true, .write = write_last},
    {MODEL_SINGLE, "ln_f", .write = write_norm},
    {0},
};

static struct family family;

static struct model_config entangled(uint32_t n_layers)
{
    struct model_config config = GPT2_CONFIG(n_layers, 2, 8, 16, 64, 40, .tied = true);

    family = family_gpt2;
    family.layers = layers;
    config.family = &family;
    return config;
}

/* ---- what must hold ---- */

enum kept { STASHED, PASSING, FORWARD, GRADIENT, KEPT };

/* Where a value is, as one of these; false: it is none of them. */
static bool find_place(const struct model *m, const struct model_value *v, enum kept as, uint32_t *shape,
                       uint32_t *place)
{
    *shape = as == GRADIENT ? v->gradient_shape : v->shape;
    *place = as == GRADIENT ? v->gradient_place : as == FORWARD ? v->forward_place : v->place;
    if (model_is_small(&m->values.shapes[v->shape]))
        return false;
    return as == FORWARD || (as == GRADIENT && v->trained) || (as == STASHED && v->stashed) ||
           (as == PASSING && !v->stashed);
}

/* True if the gradient of x is made where that of y was. */
static bool hands_over(const struct model *m, const struct model_value *x, const struct model_value *y)
{
    const struct model_layer *layer = &m->layers[x->top];

    return x->top == y->first && layer->program && layer->program->passes &&
           &m->values.of[layer->edges.reads[0]] == x && &m->values.of[layer->edges.writes[0]] == y;
}

static bool are_at_once(const struct model_value *a, const struct model_value *b)
{
    return a->first <= b->top && b->first <= a->top;
}

/* Of a stash, for the whole step: it is read again in backward. */
static void check_apart(const struct model *m, enum kept as)
{
    for (const struct model_value *a = m->values.of; a < m->values.of + m->values.n; a++)
        for (const struct model_value *b = m->values.of; b < a; b++) {
            uint32_t shapes[2], places[2];
            if (!find_place(m, a, as, &shapes[0], &places[0]) || !find_place(m, b, as, &shapes[1], &places[1]) ||
                shapes[0] != shapes[1] || places[0] != places[1])
                continue;
            if (as == GRADIENT && (hands_over(m, a, b) || hands_over(m, b, a)))
                continue;
            ck_assert_msg(as != STASHED && !are_at_once(a, b), "values %u and %u share place %u, as %d",
                          (unsigned)(a - m->values.of), (unsigned)(b - m->values.of), places[0], as);
        }
}

/* The most that are needed at a layer, of a shape. What is handed over counts once. */
static uint32_t count_most(const struct model *m, uint32_t shape, enum kept as)
{
    uint32_t most = 0, of, place;

    for (uint32_t l = 0; l < m->n_layers; l++) {
        uint32_t n = 0;
        for (const struct model_value *v = m->values.of; v < m->values.of + m->values.n; v++) {
            bool is_there =
                find_place(m, v, as, &of, &place) && of == shape && (as == STASHED || (v->first <= l && l <= v->top));
            for (const struct model_value *y = m->values.of; is_there && y < m->values.of + m->values.n; y++)
                is_there = as != GRADIENT || l != v->top || y->gradient_shape != v->gradient_shape ||
                           y->gradient_place != v->gradient_place || !hands_over(m, v, y);
            n += is_there;
        }
        most = most < n ? n : most;
    }
    return most;
}

static void check_places(const struct model_config *config)
{
    struct model m;

    ck_assert_int_eq(model_init(&m, config, NULL), 0);
    for (enum kept as = 0; as < KEPT; as++)
        check_apart(&m, as);
    for (uint32_t s = 0; s < m.values.n_shapes; s++) {
        const struct model_shape *shape = &m.values.shapes[s];
        if (model_is_small(shape))
            continue;
        ck_assert_uint_eq(shape->n_stashed, count_most(&m, s, STASHED));
        ck_assert_uint_eq(shape->n_passing, count_most(&m, s, PASSING));
        ck_assert_uint_eq(shape->n_forward, count_most(&m, s, FORWARD));
        ck_assert_uint_eq(shape->n_gradients, count_most(&m, s, GRADIENT));
    }
    model_free(&m);
}

TEST(values_that_are_needed_at_once_are_apart)
{
    for (uint32_t n = 1; n <= 4; n++) {
        const struct model_config config = entangled(n);
        check_places(&config);
    }
}

TEST(so_they_are_in_every_family)
{
    uint64_t state = 88172645463325252u;

    for (int i = 0; i < 100; i++) {
        const struct model_config config = setting_random_config(&state);
        check_places(&config);
    }
}

/* By hand. Passing: r, s and t; in fp32 the sum. Outside training four at once: the input with the first layer's
 * outputs, or n with r, s and t. Gradients: the output's, which becomes r's; t's, which becomes s's; the sum's; in fp32
 * that of n, which several layers read. */
TEST(an_entangled_block_has_the_places_that_are_counted_by_hand)
{
    const struct model_config config = entangled(3);
    struct model m;

    ck_assert_int_eq(model_init(&m, &config, NULL), 0);
    ck_assert_uint_eq(m.values.n_shapes, 2);
    const struct model_shape *narrow = &m.values.shapes[0], *wide = &m.values.shapes[1];
    ck_assert(!narrow->wide && wide->wide);
    ck_assert_uint_eq(narrow->n_stashed, 3 + 2 + 3); /* each block's input, the last norm's and the head's; each n */
    ck_assert_uint_eq(narrow->n_passing, 3);
    ck_assert_uint_eq(narrow->n_forward, 4);
    ck_assert_uint_eq(narrow->n_gradients, 3);
    ck_assert_uint_eq(wide->n_stashed, 0);
    ck_assert_uint_eq(wide->n_passing, 1);
    ck_assert_uint_eq(wide->n_forward, 1);
    ck_assert_uint_eq(wide->n_gradients, 1);
    model_free(&m);
}

static void open_image_net(struct model *m, const char *text)
{
    struct model_config config;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_int_eq(model_init(m, &config, NULL), 0);
}

/* Layers: the first convolution, its norm; of each block two, or three, to a convolution's result, and the sum.
 * ResNet-18's first stage has no shortcut, so the sum there begins with what the norm above the first convolution
 * gave. */
static const struct {
    const char *text;
    struct {
        uint32_t n, lowest, topmost;
    } chains[MODEL_CHAINS];
} residual[] = {
    {"{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"basic\", \"depths\": [2, 2, 2, 2], \"stem\": "
     "\"cifar\"}",
     {{3, 1, 8}, {2, 10, 14}, {2, 16, 20}, {1, 22, 25}}},
    {"{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"bottleneck\", \"depths\": [3, 4, 6, 3]}",
     {{1, 1, 2}, {3, 5, 14}, {4, 17, 30}, {6, 33, 54}, {2, 57, 65}}},
    {"{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"basic\", \"depths\": [2, 2, 2, 2], "
     "\"ghost_batch_size\": 4}",
     {{0}}},
    {"{\"model_type\": \"wide_resnet\", \"depth\": 16, \"widen_factor\": 1}", {{0}}},
};

TEST_EACH(each_stage_of_a_residual_net_has_a_chain, COUNT(residual))
{
    uint32_t n = 0;
    struct model m;

    open_image_net(&m, residual[_i].text);
    for (; residual[_i].chains[n].n > 0; n++) {
        const struct model_chain *chain = &m.values.chains[n];
        ck_assert_uint_eq(chain->n, residual[_i].chains[n].n);
        ck_assert_uint_eq(chain->lowest, residual[_i].chains[n].lowest);
        ck_assert_uint_eq(chain->topmost, residual[_i].chains[n].topmost);
    }
    ck_assert_uint_eq(m.values.n_chains, n);
    model_free(&m);
}

static const char *const images[] = {
    "{\"model_type\": \"wide_resnet\", \"depth\": 10, \"widen_factor\": 1}",
    ("{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"bottleneck\", \"depths\": [1, 2, 1, 1], "
     "\"embedding_size\": 8, \"stem\": \"cifar\", \"image_size\": 32}"),
};

/* They would be a quarter of all products. */
TEST_EACH(no_convolution_before_a_batch_norm_is_computed_again, COUNT(images))
{
    struct model m;
    size_t n = 0;

    open_image_net(&m, images[_i]);
    for (const struct model_program *p = m.programs; p < m.programs + m.n_programs; p++)
        for (uint32_t k = 0; k < p->n_keepings; k++)
            for (int i = 0; i < p->backward[k].n_steps; i++) {
                const struct schedule_step *step = &p->backward[k].steps[i];
                const bool is_conv = p->program.operations[step->operation].kind == &operation_conv2d;
                ck_assert(!is_conv || step->action != SCHEDULE_FORWARD);
                n += is_conv;
            }
    ck_assert_uint_gt(n, 0);
    model_free(&m);
}
