/* What a model consists of, and how a unit is divided into what is trained and what is frozen. */
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/model/model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct model_config gpt2 =
    GPT2_CONFIG(12, 12, 768, 3072, 1024, 50257, .activation = MODEL_GELU_NEW, .tied = true, GPT2_ON(scale_attention));

/* Odd sizes throughout: wte 2121, wpe 399, three blocks of 4 * 21^2 + 2 * 21 * 37 + 9 * 21 + 37 = 3544 (of which 184 in
 * biases), ln_f 42, lm_head 2121: 15315 in all. */
static const struct model_config odd = GPT2_CONFIG(3, 3, 21, 37, 19, 101);

static struct model m; /* the last that was built */
static struct error err;

static void free_model(void)
{
    model_free(&m);
}

SUITE_FIXTURE(NULL, free_model)

static void build(struct model_config config)
{
    model_free(&m);
    ck_assert_msg(model_init(&m, &config, &err) == 0, "%s", err.text);
}

/* Pieces of one kind in the order of their tensors, without gaps; rows: (n_tensors) counted. */
static uint64_t follow(const struct model_unit *unit, bool frozen, uint64_t at, uint64_t *rows)
{
    for (const struct model_piece *p = m.pieces + unit->first_piece; p < m.pieces + unit->first_piece + unit->n_pieces;
         p++) {
        const struct model_tensor *t = &m.tensors[p->tensor];
        if (t->frozen != frozen)
            continue;
        ck_assert_uint_eq(p->offset, at);
        ck_assert_uint_eq(p->first_row, rows[p->tensor]);
        ck_assert(p->n_rows > 0 && p->n == p->n_rows * t->shape[1]);
        rows[p->tensor] += p->n_rows;
        at += p->n;
    }
    return at;
}

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Whatever the configuration: pieces fill units, trained ones first, units fill the segment, and every row of every
 * tensor is in one piece. */
static void check_units(void)
{
    uint64_t *rows = calloc(m.n_tensors, sizeof *rows);
    uint64_t n = 0, n_trained = 0, largest = 0, largest_trained = 0, offset = 0, trained_offset = 0, replay_n = 0;
    uint32_t piece = 0, n_frozen = 0, rank = 0;

    for (uint32_t u = 0; u < m.n_units; u++) {
        const struct model_unit *unit = &m.units[u];
        uint32_t n_visits = 0;
        ck_assert_uint_eq(unit->first_piece, piece);
        ck_assert_uint_eq(unit->offset, offset);
        ck_assert_uint_eq(unit->trained_offset, trained_offset);
        ck_assert_uint_eq(unit->replay_offset, unit->n_trained ? replay_n : 0);
        ck_assert_uint_eq(follow(unit, false, 0, rows), unit->n_trained);
        ck_assert_uint_eq(follow(unit, true, unit->n_trained, rows), unit->n);
        ck_assert_uint_eq(unit->n_slices, (unit->n_trained + MODEL_SLICE - 1) / MODEL_SLICE);
        piece += unit->n_pieces;
        replay_n += (unit->n_trained + 31) / 32 * 32;
        offset += (unit->n + 31) / 32 * 32, trained_offset += (unit->n_trained + 31) / 32 * 32;
        n += unit->n, n_trained += unit->n_trained, n_frozen += unit->n_trained == 0;
        largest = larger(unit->n, largest), largest_trained = larger(unit->n_trained, largest_trained);
        for (uint32_t other = 0; other < u; other++)
            ck_assert_uint_ne(unit->id, m.units[other].id);
        for (uint32_t visit = 0; visit < m.n_visits; visit++)
            n_visits += m.visits[visit] == u;
        ck_assert_uint_eq(unit->n_visits, n_visits);
    }
    for (uint32_t t = 0; t < m.n_tensors; t++) {
        ck_assert_uint_eq(rows[t], m.tensors[t].shape[0]);
        ck_assert(m.tensors[t].frozen || m.tensors[t].rank == rank++);
    }
    ck_assert_uint_eq(m.n_trained_tensors, rank);
    ck_assert_uint_eq(m.n_pieces, piece);
    ck_assert(m.n_parameters == n && m.n_trained == n_trained && m.n_frozen_units == n_frozen);
    ck_assert(m.largest_unit == largest && m.largest_trained == largest_trained);
    ck_assert(m.segment_n == offset && m.trained_n == trained_offset && m.replay_n == replay_n);
    free(rows);
}

static void check_whole(void)
{
    uint32_t visit = 0, n_trained = 0;

    check_units();
    for (uint32_t l = 0; l < m.n_layers; l++) {
        ck_assert_uint_eq(m.layers[l].first_visit, visit);
        for (; visit < m.layers[l].first_visit + m.layers[l].n_visits; visit++) {
            ck_assert_uint_eq(m.visit_layers[visit], l);
            ck_assert_uint_eq(m.trained_below[visit], n_trained);
            if (m.units[m.visits[visit]].n_trained > 0)
                ck_assert_uint_eq(m.trained_visits[n_trained++], visit);
        }
    }
    ck_assert_uint_eq(visit, m.n_visits);
    ck_assert_uint_eq(n_trained, m.n_trained_visits);
}

/* 124,439,808: the sum over the tensors of the published gpt2. A block has 7,087,872 elements, so wte (50,257 x 768) is
 * cut in ceil(38,597,376 / 7,087,872) = 6 units, but ceil(50,257 / 8,192) = 7 of at most 8,192 rows: ceil(50,257 / 7) =
 * 7,180 each. The tied head visits them again. */
TEST(gpt2_has_the_published_size_and_is_cut_by_hand_alike)
{
    static const struct {
        const char *name;
        uint32_t visit, unit;
    } names[] = {{"wte.0", 0, 0},  {"wte.6", 6, 6},  {"wpe", 7, 7},         {"h.0", 8, 8},
                 {"h.11", 19, 19}, {"ln_f", 20, 20}, {"head wte.0", 21, 0}, {"head wte.6", 27, 6}};
    char name[MODEL_NAME_BYTES];

    build(gpt2);
    check_whole();
    ck_assert_uint_eq(m.n_parameters, 124439808);
    ck_assert_uint_eq(m.n_tensors, 148);
    ck_assert_uint_eq(m.n_units, 7 + 1 + 12 + 1);
    ck_assert_uint_eq(m.n_visits, 7 + 1 + 12 + 1 + 7);
    ck_assert_uint_eq(m.n_layers, 15);
    ck_assert_int_eq(m.layers[14].kind, MODEL_HEAD);
    ck_assert_uint_eq(m.layers[14].n_visits, 7);
    ck_assert_uint_eq(m.pieces[0].n_rows, 7180);
    ck_assert_uint_eq(m.pieces[6].n_rows, 50257 - 6 * 7180);
    ck_assert_uint_eq(m.largest_unit, 7087872);
    ck_assert_uint_eq(m.units[8].n_slices, 2);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_FP32), 16 << 20);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_BF16), 8 << 20);
    ck_assert_ptr_null(model_find(&m, "lm_head.weight"));
    ck_assert(model_is_tied_copy(&m, "lm_head.weight") && !model_is_tied_copy(&m, "lm_head.bias"));
    for (int i = 0; i < COUNT(names); i++) {
        ck_assert_uint_eq(m.visits[names[i].visit], names[i].unit);
        ck_assert_str_eq(model_visit_name(name, &m, names[i].visit), names[i].name);
        if (names[i].visit == names[i].unit)
            ck_assert_str_eq(model_unit_name(name, &m, names[i].unit), names[i].name);
    }
}

TEST(an_untied_head_has_units_of_its_own)
{
    struct model_config config = gpt2;
    char name[MODEL_NAME_BYTES];

    config.tied = false;
    build(config);
    check_whole();
    ck_assert_uint_eq(m.n_parameters, 124439808 + 50257 * 768);
    ck_assert_uint_eq(m.n_units, 7 + 1 + 12 + 1 + 7);
    for (uint32_t u = 0; u < m.n_units; u++)
        ck_assert_uint_eq(m.units[u].n_visits, 1);
    const struct model_tensor *head = model_find(&m, "lm_head.weight");
    ck_assert_ptr_nonnull(head);
    ck_assert(head->shape[0] == 50257 && head->shape[1] == 768 && head->decays);
    ck_assert(!model_is_tied_copy(&m, "lm_head.weight"));
    config.vocabulary = 1000;
    build(config);
    ck_assert_str_eq(model_unit_name(name, &m, 0), "wte");
    ck_assert_str_eq(model_unit_name(name, &m, 15), "lm_head");
    ck_assert_str_eq(model_visit_name(name, &m, 15), "head lm_head");
}

TEST(small_tables_are_cut_by_rows_alone)
{
    struct model_config config = odd;

    config.vocabulary = 8192; /* 0.7 MB: one unit, though a block has 14 KB */
    build(config);
    check_whole();
    ck_assert_uint_eq(m.n_units, 1 + 1 + 3 + 1 + 1);
    config.vocabulary = 50257; /* 4,221,588 bytes, over 4 MiB: two by bytes, seven by rows */
    config.tied = true;
    build(config);
    check_whole();
    ck_assert_uint_eq(m.n_units, 7 + 1 + 3 + 1);
    ck_assert_uint_eq(m.pieces[0].n_rows, 7180);
}

/* Names and shapes as in the state_dict of GPT2LMHeadModel, where Conv1D keeps weights as (in, out). What writes to the
 * residual stream deviates by 0.02 / sqrt(6). */
TEST(a_block_holds_its_tensors_in_the_order_of_its_program)
{
    static const struct {
        const char *name;
        uint64_t rows, columns; /* 1: of a vector */
        double deviation;
        enum model_init init;
    } expected[] = {
        {"transformer.h.2.ln_1.weight", 21, 1, 0, MODEL_INIT_ONE},
        {"transformer.h.2.ln_1.bias", 21, 1, 0, MODEL_INIT_ZERO},
        {"transformer.h.2.attn.c_attn.weight", 21, 63, 0.02, MODEL_INIT_NORMAL},
        {"transformer.h.2.attn.c_attn.bias", 63, 1, 0, MODEL_INIT_ZERO},
        {"transformer.h.2.attn.c_proj.weight", 21, 21, 0.008164966, MODEL_INIT_NORMAL},
        {"transformer.h.2.attn.c_proj.bias", 21, 1, 0, MODEL_INIT_ZERO},
        {"transformer.h.2.ln_2.weight", 21, 1, 0, MODEL_INIT_ONE},
        {"transformer.h.2.ln_2.bias", 21, 1, 0, MODEL_INIT_ZERO},
        {"transformer.h.2.mlp.c_fc.weight", 21, 37, 0.02, MODEL_INIT_NORMAL},
        {"transformer.h.2.mlp.c_fc.bias", 37, 1, 0, MODEL_INIT_ZERO},
        {"transformer.h.2.mlp.c_proj.weight", 37, 21, 0.008164966, MODEL_INIT_NORMAL},
        {"transformer.h.2.mlp.c_proj.bias", 21, 1, 0, MODEL_INIT_ZERO},
    };

    build(odd);
    const struct model_unit *unit = &m.units[m.visits[m.layers[3].first_visit]];
    ck_assert_int_eq(m.layers[3].kind, MODEL_BLOCK);
    ck_assert_uint_eq(m.layers[3].index, 2);
    ck_assert_uint_eq(unit->id, (uint64_t)MODEL_BLOCK << 56 | 2 << 24);
    ck_assert_uint_eq(unit->n_pieces, COUNT(expected));
    for (uint32_t i = 0; i < COUNT(expected); i++) {
        const struct model_tensor *t = &m.tensors[m.pieces[unit->first_piece + i].tensor];
        ck_assert_str_eq(t->name, expected[i].name);
        ck_assert(t->shape[0] == expected[i].rows && t->shape[1] == expected[i].columns);
        ck_assert_uint_eq(t->n_dims, expected[i].columns > 1 ? 2 : 1);
        ck_assert_int_eq(t->decays, expected[i].columns > 1);
        ck_assert_double_eq_tol((double)t->deviation, expected[i].deviation, 1e-9); /* one rounding to fp32 */
        ck_assert_int_eq(t->init, expected[i].init);
    }
}

TEST(the_largest_description_is_whole)
{
    struct model_config config = odd;

    config.n_layers = 4096;
    build(config);
    ck_assert_uint_eq(m.n_tensors, 4096 * 12 + 5);
    ck_assert_str_eq(m.tensors[m.n_tensors - 4].name, "transformer.h.4095.mlp.c_proj.bias");
    config.n_heads = 1, config.width = 65536, config.inner_width = 1 << 20;
    config.n_positions = config.vocabulary = 1 << 24;
    build(config);
    ck_assert_uint_eq(m.units[m.n_units - 1].offset % 32, 0);
    ck_assert_uint_gt(m.n_parameters, (uint64_t)4096 * 65536 * (4 * 65536 + 2 * (1 << 20))); /* no overflow */
}

TEST(a_tensor_is_found_with_and_without_its_prefix_and_masks_are_told_from_weights)
{
    static const struct {
        const char *name, *found; /* NULL: none */
        bool mask;
    } rows[] = {
        {"transformer.wte.weight", "transformer.wte.weight", false},
        {"wte.weight", "transformer.wte.weight", false},
        {"h.1.ln_2.bias", "transformer.h.1.ln_2.bias", false},
        {"lm_head.weight", "lm_head.weight", false},
        {"transformer.lm_head.weight", NULL, false},
        {"h.3.ln_2.bias", NULL, false},
        {"ht", NULL, false}, /* what is left of lm_head.weight after as many letters as the prefix has */
        {"transformer.", NULL, false},
        {"", NULL, false},
        {"h.0.attn.bias", NULL, true},
        {"transformer.h.11.attn.masked_bias", NULL, true},
        {"h.0.attn.c_attn.bias", "transformer.h.0.attn.c_attn.bias", false},
        {"h.attn.bias", NULL, false},
        {"attn.bias", NULL, false},
        {"h.0.attn.bias2", NULL, false},
        {"transformer.transformer.h.0.attn.bias", NULL, false},
    };

    build(odd);
    for (int i = 0; i < COUNT(rows); i++) {
        const struct model_tensor *found = model_find(&m, rows[i].name);
        ck_assert_pstr_eq(found ? found->name : NULL, rows[i].found);
        ck_assert_msg(model_is_mask(&m, rows[i].name) == rows[i].mask, "%s", rows[i].name);
    }
}

TEST(a_refused_configuration_leaves_nothing_behind)
{
    struct model_config config = odd;
    struct model refused, zero = {0};

    config.n_heads = 2;
    ck_assert_int_eq(model_init(&refused, &config, &err), -EINVAL);
    ck_assert_holds(err.text, "n_embd is 21", "n_head, which is 2");
    ck_assert_mem_eq(&refused, &zero, sizeof m);
    model_free(&refused); /* is safe */
    ck_assert_int_eq(model_init(&refused, &config, NULL), -EINVAL);
}

/* ---- what is frozen ---- */

/* Layers: 0 the embedding, 1 to 3 the blocks, 4 the norm, 5 the head. */
static const struct {
    const char *patterns;
    uint64_t n_trained, largest, slot_bytes; /* in whole cache lines */
    uint32_t n_frozen_units, n_trained_visits, lowest;
} sets[] = {
    {NULL, 15315, 3544, 14208, 0, 7, 0},
    {"", 15315, 3544, 14208, 0, 7, 0},
    {"transformer.wte.weight", 15315 - 2121, 3544, 14208, 1, 6, 0},
    {"*.weight", 3 * 184 + 21, 184, 768, 3, 4, 1},
    {"wte.*,wpe.*,h.[01].*", 3544 + 42 + 2121, 3544, 14208, 4, 3, 3},
    {"h.*,ln_f.*", 2121 + 399 + 2121, 2121, 8512, 4, 3, 0},
    {"lm_head.*,wte.*,wpe.*,h.*", 42, 42, 192, 6, 1, 4},
    {"h.*.attn.c_proj.weight", 15315 - 3 * 441, 3544 - 441, 12416, 0, 7, 0},
};

TEST_EACH(trained_pieces_come_first_then_frozen_ones, COUNT(sets))
{
    build(odd);
    ck_assert_int_eq(model_freeze(&m, sets[_i].patterns, (struct model_base){0}, NULL), 0);
    check_whole();
    ck_assert_uint_eq(m.n_parameters, 15315);
    ck_assert_uint_eq(m.n_trained, sets[_i].n_trained);
    ck_assert_uint_eq(m.largest_trained, sets[_i].largest);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_FP32), sets[_i].slot_bytes);
    ck_assert_uint_eq(m.n_frozen_units, sets[_i].n_frozen_units);
    ck_assert_uint_eq(m.n_trained_visits, sets[_i].n_trained_visits);
    ck_assert_uint_eq(m.lowest_trained, sets[_i].lowest);
}

static const struct {
    const char *patterns, *sentence;
} refused[] = {
    {"wte.*,h.9.*",
     "--freeze h.9.* matches no tensor of this model: its tensors have names like wte.weight and h.0.ln_1.weight"},
    {"wte.weight,,wpe.weight", "--freeze  matches no tensor"},
    {"wte", "--freeze wte matches no tensor"},
    {"*.weight,*.bias", "--freeze *.weight,*.bias freezes all tensors of this model: leave one to train"},
    /* longer than any name */
    {"************************************************************************************************",
     "matches no tensor"},
};

TEST_EACH(a_pattern_that_freezes_nothing_or_all_is_refused, COUNT(refused))
{
    build(odd);
    ck_assert_int_eq(model_freeze(&m, refused[_i].patterns, (struct model_base){0}, &err), -EINVAL);
    ck_assert_holds(err.text, refused[_i].sentence);
}
