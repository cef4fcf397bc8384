/* Which blocks steps drop, and of which models. What a step does without them is tests/system/exact's. */
#include "proto/model/drop.h"

#include "proto/operation/operation.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

static bool has(const struct model_drop *drop, uint32_t block)
{
    return drop->blocks[block / 64] >> block % 64 & 1;
}

/* By tests/oracle/make_drop.py. */
static const struct {
    uint64_t seed, step;
    double p;
    uint64_t dropped[2];
} drawn[] = {
    {0x7, 0x0, 0.25, {0xc8200300b9c82580, 0x0a}},
    {0x7, 0x1, 0.25, {0x4540008489841004, 0x35}},
    {0x7, 0x1, 0.5, {0x574001a78b841044, 0x3d}},
    {0x10000000000, 0x500000000, 0.25, {0x1004502007005006, 0x1a}},
};

/* A block's fate does not depend on how many others there are. */
TEST_EACH(a_step_drops_the_blocks_that_its_words_say, COUNT(drawn))
{
    const struct model_drop want = {.blocks = {drawn[_i].dropped[0], drawn[_i].dropped[1]}};
    struct model_drop drop;

    model_drop_draw(&drop, 70, drawn[_i].p, drawn[_i].seed, drawn[_i].step);
    ck_assert_mem_eq(&drop, &want, sizeof drop);
    model_drop_draw(&drop, 64, drawn[_i].p, drawn[_i].seed, drawn[_i].step);
    ck_assert(drop.blocks[0] == want.blocks[0] && drop.blocks[1] == 0);
}

/* Of 4096 blocks in 16 steps p times as many, within four standard deviations; of probability 0 none. */
TEST(a_share_of_p_is_dropped)
{
    static const double chances[] = {0, 0.1, 0.5, 0.9};
    const double n = 16 * 4096;

    for (size_t i = 0; i < COUNT(chances); i++) {
        double dropped = 0;
        for (uint64_t step = 0; step < 16; step++) {
            struct model_drop drop;
            model_drop_draw(&drop, 4096, chances[i], 3, step);
            for (uint32_t block = 0; block < 4096; block++)
                dropped += has(&drop, block);
        }
        ck_assert_double_le(fabs(dropped - n * chances[i]), 4 * sqrt(n * chances[i] * (1 - chances[i])));
    }
}

TEST(blocks_beyond_a_models_are_seen)
{
    struct model_drop drop = {0};

    ck_assert(model_drop_is_empty(&drop) && !model_drop_exceeds(&drop, 0));
    drop.blocks[1] = 1;
    ck_assert(!model_drop_is_empty(&drop) && model_drop_exceeds(&drop, 64) && !model_drop_exceeds(&drop, 65));
}

/* Visits of a block's unit alone are dropped, never those of embedding and head. */
TEST(only_blocks_are_dropped)
{
    struct model_drop drop;
    struct setting s;
    uint32_t n = 0;

    setting_open(&s, setting_config(0), 4, 8);
    memset(&drop, 0xff, sizeof drop);
    for (uint32_t visit = 0; visit < s.model.n_visits; visit++)
        n += model_drop_has(&drop, &s.model, visit);
    ck_assert_uint_eq(n, s.model.config.n_layers);
    ck_assert(!model_drop_has(NULL, &s.model, s.model.layers[s.model.first_block].first_visit));
    setting_close(&s);
}

static int prepare(struct setting *s, double p, const char *freeze, struct error *err)
{
    int rc = model_freeze(&s->model, freeze, (struct model_base){FORM_VALUES, FORM_VALUES}, err);

    ck_assert_int_eq(rc, 0);
    rc = model_drop_prepare(&s->model, p, err);
    setting_close(s);
    return rc;
}

TEST(a_probability_is_below_one)
{
    static const double bad[] = {-0.1, 1, 1.5, NAN, 1 - 1e-12}; /* the last is 1 in fp32 */
    struct error err;
    struct setting s;

    for (size_t i = 0; i < COUNT(bad); i++) {
        setting_open(&s, setting_config(0), 4, 8);
        ck_assert_int_eq(prepare(&s, bad[i], NULL, &err), -EINVAL);
        ck_assert_holds(err.text, "it must be from 0 to below 1");
    }
}

/* Of five blocks that are all dropped: tests/oracle/make_drop.py. */
static const struct {
    uint64_t seed, step, trained;
    uint32_t kept;
} one_kept[] = {
    {3, 0, 0x1f, 4}, {3, 1, 0x1f, 0}, {3, 2, 0x1f, 4}, {3, 2, 0x6, 2}, {3, 3, 0x11, 4},
};

TEST_EACH(a_step_that_would_train_nothing_keeps_a_block, COUNT(one_kept))
{
    const struct model_drop trained = {.blocks = {one_kept[_i].trained}};
    struct model_drop drop = {.blocks = {0x1f}};

    model_drop_keep_one(&drop, &trained, 5, one_kept[_i].seed, one_kept[_i].step);
    ck_assert_uint_eq(drop.blocks[0], 0x1f & ~(UINT64_C(1) << one_kept[_i].kept));
    drop.blocks[0] = 0x1f & ~(one_kept[_i].trained & -one_kept[_i].trained); /* one that is trained is there */
    const uint64_t before = drop.blocks[0];
    model_drop_keep_one(&drop, &trained, 5, one_kept[_i].seed, one_kept[_i].step);
    ck_assert_uint_eq(drop.blocks[0], before);
}

static void open_fixture(struct model *model, const char *name)
{
    struct model_config config;
    struct error err = {""};
    char *text = processes_read(print(TESTS_DIR "/fixtures/%s/config.json", name));

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(model, &config, &err) == 0, "%s", err.text);
    free(text);
}

/* Norms before, after, and on both sides; kinds of block that alternate; a bias from below; two stacks. Each branch is
 * scaled. */
static const struct {
    const char *name;
    int n_branches; /* of a block, at least */
} droppable[] = {{"a", 2},      {"bert", 2},        {"roberta", 2}, {"llama3", 2},       {"qwen3", 2},
                 {"gemma3", 2}, {"alternating", 1}, {"t5", 2},      {"dynamic_conv", 2}, {"crossing", 2}};

TEST(blocks_that_add_to_what_they_read_can_be_dropped)
{
    struct error err = {""};

    for (size_t i = 0; i < COUNT(droppable); i++) {
        struct model m;
        open_fixture(&m, droppable[i].name);
        ck_assert_msg(model_drop_prepare(&m, 0.25, &err) == 0, "%s: %s", droppable[i].name, err.text);
        for (uint32_t l = m.first_block; l < m.first_block + m.n_block_layers; l++) {
            const struct program *p = &m.layers[l].program->program;
            int n = 0, n_sums = 0;
            for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
                n_sums += op->kind == &operation_add;
                n += op->kind == &operation_add && op->add.survival == 0.75f;
            }
            ck_assert_msg(n == n_sums && n >= (m.layers[l].part == 0) * droppable[i].n_branches, "%s: %d branches",
                          droppable[i].name, n);
        }
        model_free(&m);
    }
}

/* The norm at the end of T5's encoder belongs to its last block, and is not dropped with it. */
TEST(a_norm_behind_a_stack_stays)
{
    const struct model_drop all = {.blocks = {UINT64_MAX}};
    uint32_t n = 0, n_dropped = 0;
    struct model m;

    open_fixture(&m, "t5");
    for (uint32_t visit = 0; visit < m.n_visits; visit++) {
        const struct model_layer *layer = &m.layers[m.visit_layers[visit]];
        char name[MODEL_NAME_BYTES];
        n += layer->kind == MODEL_BLOCK;
        n_dropped += model_drop_has(&all, &m, visit);
        if (strcmp(model_visit_name(name, &m, visit), "encoder") == 0)
            ck_assert(layer->kind == MODEL_BLOCK && !model_drop_has(&all, &m, visit));
    }
    ck_assert(n == m.config.n_layers + 1 && n_dropped == m.config.n_layers);
    model_free(&m);
}

/* Blocks of several layers; what finishes a layer. */
TEST(other_blocks_cannot)
{
    static const char *const names[] = {"chunked", "experts", "part_norm"};

    for (size_t i = 0; i < COUNT(names); i++) {
        struct error err = {""};
        struct model m;
        open_fixture(&m, names[i]);
        ck_assert_msg(model_drop_prepare(&m, 0.25, &err) == -EINVAL, "%s", names[i]);
        ck_assert_holds(err.text,
                        "model can be dropped: a step may leave out blocks whose first layer adds to its first input, "
                        "and whose layers give nothing else");
        model_free(&m);
    }
}
