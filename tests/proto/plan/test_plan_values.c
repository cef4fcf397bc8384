/* Where gradients of boundary values lie, and values that are derived again: apart from what is there at the same time,
 * and else over one another, and over values that backward is done with. */
#include "proto/plan/memory/chains.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <string.h>

/* Of two rows in one part. */
static void lay_out_as(struct plan *plan, const struct model *model, uint32_t seq, struct plan_choice choice)
{
    const struct plan_setting setting = {.backend = &plan_cpu,
                                         .goal = {.purpose = PLAN_TRAIN, .seq = seq},
                                         .share_rows = 2,
                                         .part_rows = 2,
                                         .n_threads = 1};

    choice.microbatch = 2, choice.n_weight_buffers = 1;
    ck_assert_int_eq(plan_check_choice(model, &setting, &choice, NULL), 0);
    plan_lay_out(plan, model, &setting, &choice);
}

static void lay_out(struct plan *plan, const struct model *model, uint32_t seq, bool host_stash)
{
    lay_out_as(plan, model, seq, (struct plan_choice){.host_stash = host_stash});
}

static void open_net(struct model *model, const char *text)
{
    struct model_config config;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(model, &config, &err) == 0, "%s", err.text);
}

#define WIDE   "{\"model_type\": \"wide_resnet\", \"depth\": 28, \"widen_factor\": 2"
#define GHOSTS ", \"ghost_batch_size\": 2}"
/* Of one block a stage. */
#define SHORT                                                                                                          \
    "{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"basic\", \"depths\": [1, 1, 1, 1], "                   \
    "\"embedding_size\": 8, \"stem\": \"cifar\", \"image_size\": 16}"

static bool has_place(const struct model *m, const struct model_value *v)
{
    return !model_is_small(&m->values.shapes[v->gradient_shape]);
}

/* Of values that are there together; one that takes over the other's place (tests/proto/model/test_values.c) has
 * that. */
static bool are_apart(const struct plan *plan, const struct model *m, const struct model_value *a,
                      const struct model_value *b)
{
    const uint64_t of_a = plan_gradient(plan, m, (uint32_t)(a - m->values.of)),
                   of_b = plan_gradient(plan, m, (uint32_t)(b - m->values.of));
    const bool meet = a->first <= b->top && b->first <= a->top;

    if (!meet || (a->gradient_shape == b->gradient_shape && a->gradient_place == b->gradient_place))
        return true;
    return of_a + plan->values[a->gradient_shape].bytes <= of_b || of_b + plan->values[b->gradient_shape].bytes <= of_a;
}

/* Backward of the value's lowest layer comes after that of the gradient's topmost one, or the value is not stashed. */
static bool is_in_no_way(const struct plan *plan, const struct model *m, const struct model_value *gradient,
                         const struct model_value *v)
{
    const uint64_t of_gradient = plan_gradient(plan, m, (uint32_t)(gradient - m->values.of)),
                   of_v = plan_value(plan, m, (uint32_t)(v - m->values.of));

    if (model_is_small(&m->values.shapes[v->shape]) || (v->stashed && v->first > gradient->top))
        return true;
    return of_gradient + plan->values[gradient->gradient_shape].bytes <= of_v ||
           of_v + plan->values[v->shape].bytes <= of_gradient;
}

static void check_apart(const struct model *m, uint32_t seq)
{
    const struct model_value *const end = m->values.of + m->values.n;
    struct plan plan;

    for (int host_stash = 0; host_stash < 2; host_stash++) {
        lay_out(&plan, m, seq, host_stash);
        for (const struct model_value *a = m->values.of; a < end; a++)
            for (const struct model_value *b = m->values.of; has_place(m, a) && b < end; b++) {
                ck_assert(b == a || !has_place(m, b) || are_apart(&plan, m, a, b));
                ck_assert(is_in_no_way(&plan, m, a, b));
            }
    }
}

TEST(gradients_that_are_there_together_are_apart)
{
    static const char *const nets[] = {WIDE "}", WIDE GHOSTS, SHORT};
    uint64_t state = 88172645463325252u;
    struct model m;

    for (int i = 0; i < COUNT(nets); i++) {
        open_net(&m, nets[i]);
        check_apart(&m, i < 2 ? 1024 : 256);
        model_free(&m);
    }
    for (int i = 0; i < 30; i++) {
        const struct model_config config = setting_random_config(&state);
        ck_assert_int_eq(model_init(&m, &config, NULL), 0);
        check_apart(&m, 4);
        model_free(&m);
    }
}

/* By hand, of two rows in fp32. With ghost batches a block hands the next one value, so backward has one gradient of
 * each size, and two where a block's input and output differ. Those of 32 columns and 32 x 32 pixels, the largest, lie
 * over the second and third stashed value of 64 columns, which a block above the first one of these reads; those of 16
 * columns over the second of 32; those of 64, of half as many pixels across, over the second and third of 128. Only
 * those of 128 have nothing above to lie over. */
enum { LARGEST = 2 * 32 * 1024 * 4, THIRD = 2 * 64 * 256 * 4, LAST = 2 * 128 * 64 * 4, HEAD = 2 * 128 * 4 };

TEST(gradients_lie_over_values_that_backward_is_done_with)
{
    struct plan plan;
    struct model m;

    open_net(&m, WIDE GHOSTS);
    lay_out(&plan, &m, 1024, false);
    const uint32_t head = plan_head(&m)->edges.reads[0]; /* values 1 to 12 are the blocks' */
    ck_assert_uint_eq(head, 13);
    ck_assert_uint_eq(plan.bytes[LEDGER_GRADIENT], HEAD + LAST);
    for (uint32_t v = 1; v <= 4; v++)
        ck_assert_uint_eq(plan_gradient(&plan, &m, v), plan_value(&plan, &m, 6));
    ck_assert_uint_eq(plan_value(&plan, &m, 8), plan_value(&plan, &m, 6) + LARGEST);
    ck_assert_uint_eq(plan_gradient(&plan, &m, 0), plan_value(&plan, &m, 2));
    for (uint32_t v = 5; v <= 8; v++)
        ck_assert_uint_eq(plan_gradient(&plan, &m, v), plan_value(&plan, &m, 10));
    ck_assert_uint_eq(plan_value(&plan, &m, 12), plan_value(&plan, &m, 10) + THIRD);
    for (uint32_t v = 9; v <= 12; v++)
        ck_assert_uint_eq(plan_gradient(&plan, &m, v), plan_gradient(&plan, &m, head) + HEAD);
    model_free(&m);
}

/* By hand, of two rows in fp32 and 8 channels of 16 x 16 pixels at first: the largest gradients, of 16 KiB, are there
 * at most two at a time, besides a sum of two. These two lie over stashed values of two shapes: two of 8 KiB and four
 * of 4, as layers above have them. The sum, of which backward is further down, lies over two of 8 KiB. */
TEST(a_gradient_lies_over_values_of_several_shapes)
{
    enum { KIB = 1024 };
    struct plan plan;
    struct model m;

    open_net(&m, SHORT);
    lay_out(&plan, &m, 256, false);
    ck_assert_uint_eq(plan_gradient(&plan, &m, 4), plan_value(&plan, &m, 17));
    ck_assert_uint_eq(plan_gradient(&plan, &m, 7), plan_gradient(&plan, &m, 4) + 16 * KIB);
    ck_assert_uint_eq(plan_value(&plan, &m, 21), plan_value(&plan, &m, 17) + 2 * 8 * KIB);
    ck_assert_uint_eq(plan_value(&plan, &m, 31), plan_value(&plan, &m, 21) + 4 * 4 * KIB);
    ck_assert_uint_eq(plan_gradient(&plan, &m, 3), plan_value(&plan, &m, 11));
    ck_assert_uint_eq(plan_value(&plan, &m, 17), plan_value(&plan, &m, 11) + 2 * 8 * KIB);
    model_free(&m);
}

/* ---- a step, value by value ---- */

enum { MOST_THERE = 4096 };

/* What the memory of values has: of value v 2 v, of its gradient 2 v + 1. */
struct memory {
    const struct plan *plan;
    const struct model *model;
    struct {
        uint64_t at, end;
        uint32_t what;
    } there[MOST_THERE];
    uint32_t n;
};

static void put(struct memory *memory, uint64_t at, uint64_t bytes, uint32_t what)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < memory->n; i++)
        if (memory->there[i].end <= at || at + bytes <= memory->there[i].at)
            memory->there[n++] = memory->there[i];
    ck_assert_uint_lt(n, MOST_THERE);
    memory->there[n].at = at, memory->there[n].end = at + bytes, memory->there[n].what = what;
    memory->n = n + 1;
}

static bool has(const struct memory *memory, uint64_t at, uint32_t what)
{
    for (uint32_t i = 0; i < memory->n; i++)
        if (memory->there[i].at == at && memory->there[i].what == what)
            return true;
    return false;
}

/* Reads an operand, or writes it. In the place of an output that is neither the layer works. */
static void touch(struct memory *memory, const struct model_edges *edges, const struct model_operand *o, bool writes)
{
    const bool is_gradient = o->role == MODEL_OUTPUT_GRADIENT || o->role == MODEL_INPUT_GRADIENT;
    const uint32_t v = model_value_of(edges, o), what = 2 * v + is_gradient;
    const struct model_shape *shape = &memory->model->values.shapes[o->shape];

    if (model_is_small(shape))
        return;
    const uint64_t at = (is_gradient ? plan_gradient : plan_value)(memory->plan, memory->model, v);
    if (!writes && o->loads)
        ck_assert_msg(has(memory, at, what), "%s of value %u is gone", is_gradient ? "the gradient" : "what was", v);
    if (writes ? o->stores : !o->loads && !o->stores)
        put(memory, at, plan_shape_bytes(memory->plan, shape), writes ? what : UINT32_MAX);
}

static void visit(struct memory *memory, const struct model_layer *layer, bool backward)
{
    const struct model_passage *passage = &memory->model->values.passages[layer->edges.passage];

    for (int writes = 0; writes < 2; writes++)
        for (uint32_t i = 0; i < passage->n[backward]; i++)
            touch(memory, &layer->edges, &passage->operands[backward][i], writes);
}

static void check_step(const struct model *m, uint32_t seq, bool derives)
{
    static struct memory memory;
    struct plan plan;

    lay_out_as(&plan, m, seq, (struct plan_choice){.derives = derives});
    memory = (struct memory){.plan = &plan, .model = m};
    for (uint32_t l = 0; l < m->n_layers; l++)
        visit(&memory, &m->layers[l], false);
    for (uint32_t l = m->n_layers; l-- > 0;) {
        for (uint32_t c = 0; derives && c < m->values.n_chains; c++)
            for (uint32_t i = 0; l == m->values.chains[c].topmost && i < m->values.chains[c].n; i++)
                visit(&memory, plan_chain_layer(m, &m->values.chains[c], i), false);
        visit(&memory, &m->layers[l], true);
    }
}

#define RESNET(type, depths)                                                                                           \
    "{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"" type "\", \"depths\": " depths                       \
    ", \"embedding_size\": 64, \"image_size\": 32, \"stem\": "
#define RESNET_18 RESNET("basic", "[2, 2, 2, 2]") "\"cifar\"}"

TEST(what_a_layer_reads_is_there_when_it_reads_it)
{
    static const char *const nets[] = {SHORT,
                                       RESNET_18,
                                       RESNET("basic", "[3, 4, 6, 3]") "\"imagenet\"}",
                                       RESNET("bottleneck", "[3, 4, 6, 3]") "\"imagenet\"}",
                                       RESNET("bottleneck", "[1, 5, 1, 2]") "\"cifar\"}",
                                       WIDE "}",
                                       WIDE GHOSTS};
    struct model m;

    for (int i = 0; i < COUNT(nets); i++) {
        open_net(&m, nets[i]);
        const uint32_t seq = m.config.n_positions;
        check_step(&m, seq, false);
        if (m.values.n_chains > 0)
            check_step(&m, seq, true);
        ck_assert_int_eq(m.values.n_chains > 0, i < 5);
        model_free(&m);
    }
}

/* By hand, of two images in fp32, in elements of one: convolutions give 65,536 in the stem, and in stage s 4 times
 * 65,536 / 2^s, from the second on once more for the shortcut. With the one input that the last stage derives, of
 * 8,192, that is the most. Stored are besides the classifier's input, of 512, and all inputs of blocks: 65,536 for the
 * first stage's two blocks and the second stage, and two of each next size, but for the last result, which backward
 * does not read. */
TEST(of_resnet_18_what_is_not_derived_is_three_fifths)
{
    enum { Z = 65536 + 4 * (65536 + 32768 + 16384 + 8192) + 32768 + 16384 + 8192, TOP = 512, LAST_STAGE = 8192 };
    enum { INPUTS = 3 * 65536 + 2 * 32768 + 2 * 16384 + 8192, EACH = 2 * 4 };
    struct plan stored, derived;
    struct model m;

    open_net(&m, RESNET_18);
    lay_out_as(&stored, &m, 1024, (struct plan_choice){0});
    lay_out_as(&derived, &m, 1024, (struct plan_choice){.derives = true});
    ck_assert_uint_eq(plan_stash_bytes(&stored, &m), EACH * (Z + TOP + INPUTS));
    ck_assert_uint_eq(plan_stash_bytes(&derived, &m), EACH * (Z + LAST_STAGE));
    ck_assert_uint_lt(plan_total(&derived), plan_total(&stored));
    model_free(&m);
}

/* Two norms' scales, shifts, means and variances of 128 channels where there is a shortcut, else one's: as fp32, and in
 * copies but for what stays on the device. From the top down these are the head, its bias, the last block's sum, and
 * its convolutions. */
TEST(scales_and_shifts_are_copied_of_units_that_do_not_stay)
{
    enum { NORM = 4 * 4, ALL = NORM * (3 * 64 + 3 * 128 + 3 * 256 + 2 * 512) };
    struct plan copied, resident;
    struct model m;

    open_net(&m, RESNET_18);
    lay_out_as(&copied, &m, 1024, (struct plan_choice){.derives = true});
    lay_out_as(&resident, &m, 1024, (struct plan_choice){.derives = true, .n_resident = plan_count_uploaded(&m)});
    const struct model_layer *top = plan_chain_layer(&m, &m.values.chains[3], 0);
    const uint64_t end = plan_chain_unit(&copied, &m, top) + NORM * 2 * 512;
    ck_assert_uint_eq(end - copied.chain_units, ALL);
    ck_assert_uint_eq(plan_chain_unit(&resident, &m, top), plan_resident(&resident, &m, m.visits[top->first_visit]));
    model_free(&m);
}
