#include "tests/kit/test.h"

#include "proto/model/model.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct model_config gpt2 = {.family = &family_gpt2,
                                         .n_layers = 12,
                                         .n_heads = 12,
                                         .width = 768,
                                         .inner_width = 3072,
                                         .n_positions = 1024,
                                         .vocabulary = 50257,
                                         .activation = MODEL_GELU_NEW,
                                         .tied = true,
                                         .gpt2.scale_attention = true,
                                         .norm_epsilon = 1e-5f,
                                         .initializer_range = 0.02f};

/* Odd sizes throughout. */
static const struct model_config odd = {.family = &family_gpt2,
                                        .n_layers = 3,
                                        .n_heads = 3,
                                        .width = 21,
                                        .inner_width = 37,
                                        .n_positions = 19,
                                        .vocabulary = 101,
                                        .norm_epsilon = 1e-5f,
                                        .initializer_range = 0.02f};

static struct model m; /* the last that was built */

static void free_model(void)
{
    model_free(&m);
}

SUITE_FIXTURE(NULL, free_model)

static void build(struct model_config config)
{
    struct error err;

    model_free(&m);
    ck_assert_msg(model_init(&m, &config, &err) == 0, "%s", err.text);
}

/* Whatever the configuration: pieces fill units, units fill the segment, and every row of every tensor is in one
 * piece. */
static void check_whole(void)
{
    uint64_t *rows = calloc(m.n_tensors, sizeof *rows);
    uint64_t parameters = 0, largest = 0, offset = 0;
    uint32_t piece = 0, visit = 0;

    for (uint32_t u = 0; u < m.n_units; u++) {
        const struct model_unit *unit = &m.units[u];
        uint64_t n = 0;
        ck_assert_uint_eq(unit->first_piece, piece);
        ck_assert_uint_eq(unit->offset % 32, 0);
        ck_assert_uint_eq(unit->offset, offset);
        for (; piece < unit->first_piece + unit->n_pieces; piece++) {
            const struct model_piece *p = &m.pieces[piece];
            const struct model_tensor *t = &m.tensors[p->tensor];
            ck_assert_uint_eq(p->offset, n);
            ck_assert_uint_eq(p->first_row, rows[p->tensor]);
            ck_assert_uint_eq(p->n, p->n_rows * t->shape[1]);
            ck_assert_uint_gt(p->n_rows, 0);
            rows[p->tensor] += p->n_rows;
            n += p->n;
        }
        ck_assert_uint_eq(unit->n, n);
        ck_assert_uint_eq(unit->n_slices, (n + MODEL_SLICE - 1) / MODEL_SLICE);
        offset += (n + 31) / 32 * 32;
        parameters += n;
        largest = n > largest ? n : largest;
        for (uint32_t other = 0; other < u; other++)
            ck_assert_uint_ne(unit->id, m.units[other].id);
    }
    for (uint32_t t = 0; t < m.n_tensors; t++)
        ck_assert_uint_eq(rows[t], m.tensors[t].shape[0]);
    ck_assert_uint_eq(piece, m.n_pieces);
    ck_assert_uint_eq(m.n_parameters, parameters);
    ck_assert_uint_eq(m.largest_unit, largest);
    ck_assert_uint_eq(m.segment_n, offset);
    for (uint32_t l = 0; l < m.n_layers; l++) {
        ck_assert_uint_eq(m.layers[l].first_visit, visit);
        for (; visit < m.layers[l].first_visit + m.layers[l].n_visits; visit++)
            ck_assert_uint_eq(m.visit_layers[visit], l);
    }
    ck_assert_uint_eq(visit, m.n_visits);
    for (uint32_t u = 0; u < m.n_units; u++) {
        uint32_t n_visits = 0;
        for (visit = 0; visit < m.n_visits; visit++)
            n_visits += m.visits[visit] == u;
        ck_assert_uint_eq(m.units[u].n_visits, n_visits);
    }
    free(rows);
}

/* 124,439,808: the sum over the tensors of the published gpt2. A block has 7,087,872 elements, so wte (50,257 x 768) is
 * cut in ceil(38,597,376 / 7,087,872) = 6 units, but ceil(50,257 / 8,192) = 7 of at most 8,192 rows: ceil(50,257 / 7) =
 * 7,180 each. */
TEST(gpt2_has_the_published_size_and_is_cut_by_hand_alike)
{
    build(gpt2);
    check_whole();
    ck_assert_uint_eq(m.n_parameters, 124439808);
    ck_assert_uint_eq(m.n_tensors, 148);
    ck_assert_uint_eq(m.n_units, 7 + 1 + 12 + 1);
    ck_assert_uint_eq(m.n_visits, 7 + 1 + 12 + 1 + 7);
    ck_assert_uint_eq(m.n_layers, 15);
    ck_assert_uint_eq(m.pieces[0].n_rows, 7180);
    ck_assert_uint_eq(m.pieces[6].n_rows, 50257 - 6 * 7180);
    ck_assert_uint_eq(m.largest_unit, 7087872);
    ck_assert_uint_eq(m.units[8].n_slices, 2);
}

TEST(units_and_visits_have_the_names_that_people_use)
{
    static const char *const names[] = {"wte.0", "wte.6", "wpe", "h.0", "h.11", "ln_f"};
    static const uint32_t units[] = {0, 6, 7, 8, 19, 20}; /* also visits: all but the head's */
    struct model_config config = gpt2;
    build(config);
    char name[MODEL_NAME_BYTES];

    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        ck_assert_str_eq(model_unit_name(name, &m, units[i]), names[i]);
        ck_assert_str_eq(model_visit_name(name, &m, units[i]), names[i]);
    }
    ck_assert_str_eq(model_visit_name(name, &m, 21), "head wte.0");
    ck_assert_str_eq(model_visit_name(name, &m, 27), "head wte.6");
    config.tied = false;
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

TEST(a_tied_head_visits_the_embedding_again)
{
    build(gpt2);
    const struct model_layer *head = &m.layers[m.n_layers - 1];

    ck_assert_int_eq(head->kind, MODEL_HEAD);
    ck_assert_uint_eq(head->n_visits, 7);
    for (uint32_t i = 0; i < head->n_visits; i++) {
        ck_assert_uint_eq(m.visits[head->first_visit + i], i);
        ck_assert_uint_eq(m.units[i].n_visits, 2);
    }
    ck_assert_uint_eq(m.units[7].n_visits, 1); /* wpe */
    ck_assert_ptr_null(model_find(&m, "lm_head.weight"));
}

TEST(an_untied_head_has_units_of_its_own)
{
    struct model_config config = gpt2;
    config.tied = false;
    build(config);
    check_whole();
    ck_assert_uint_eq(m.n_parameters, 124439808 + 50257 * 768);
    ck_assert_uint_eq(m.n_units, 7 + 1 + 12 + 1 + 7);
    for (uint32_t u = 0; u < m.n_units; u++)
        ck_assert_uint_eq(m.units[u].n_visits, 1);
    const struct model_tensor *head = model_find(&m, "lm_head.weight");
    ck_assert_ptr_nonnull(head);
    ck_assert_uint_eq(head->shape[0], 50257);
    ck_assert_uint_eq(head->shape[1], 768);
    ck_assert(head->decays);
}

/* Names and shapes as in the state_dict of GPT2LMHeadModel, where Conv1D keeps weights as (in, out). */
TEST(a_block_holds_its_tensors_in_the_order_of_its_program)
{
    static const struct {
        const char *name;
        uint32_t n_dims;
        uint64_t rows, columns;
        double deviation;
    } expected[] = {
        {"transformer.h.2.ln_1.weight", 1, 21, 1, 0},
        {"transformer.h.2.ln_1.bias", 1, 21, 1, 0},
        {"transformer.h.2.attn.c_attn.weight", 2, 21, 63, 0.02},
        {"transformer.h.2.attn.c_attn.bias", 1, 63, 1, 0},
        {"transformer.h.2.attn.c_proj.weight", 2, 21, 21, 0.008164966}, /* 0.02 / sqrt(6) */
        {"transformer.h.2.attn.c_proj.bias", 1, 21, 1, 0},
        {"transformer.h.2.ln_2.weight", 1, 21, 1, 0},
        {"transformer.h.2.ln_2.bias", 1, 21, 1, 0},
        {"transformer.h.2.mlp.c_fc.weight", 2, 21, 37, 0.02},
        {"transformer.h.2.mlp.c_fc.bias", 1, 37, 1, 0},
        {"transformer.h.2.mlp.c_proj.weight", 2, 37, 21, 0.008164966},
        {"transformer.h.2.mlp.c_proj.bias", 1, 21, 1, 0},
    };
    build(odd);
    const struct model_unit *unit = &m.units[m.visits[m.layers[3].first_visit]];

    check_whole();
    ck_assert_int_eq(m.layers[3].kind, MODEL_BLOCK);
    ck_assert_uint_eq(m.layers[3].index, 2);
    ck_assert_uint_eq(unit->id, (uint64_t)MODEL_BLOCK << 56 | 2 << 24);
    ck_assert_uint_eq(unit->n_pieces, sizeof expected / sizeof *expected);
    for (uint32_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        const struct model_tensor *t = &m.tensors[m.pieces[unit->first_piece + i].tensor];
        ck_assert_str_eq(t->name, expected[i].name);
        ck_assert_uint_eq(t->n_dims, expected[i].n_dims);
        ck_assert_uint_eq(t->shape[0], expected[i].rows);
        ck_assert_uint_eq(t->shape[1], expected[i].columns);
        ck_assert_double_eq_tol((double)t->deviation, expected[i].deviation, 1e-9); /* one rounding to fp32 */
        ck_assert_int_eq(t->decays, t->n_dims == 2);
        const bool is_norm = strstr(t->name, "ln_") && strstr(t->name, "weight");
        ck_assert_int_eq(t->init, is_norm ? MODEL_INIT_ONE : t->n_dims == 2 ? MODEL_INIT_NORMAL : MODEL_INIT_ZERO);
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

/* By hand: a block of `odd` has 4 * 21^2 + 2 * 21 * 37 + 9 * 21 + 37 = 3544 elements, more than wte's 2121. */
TEST(a_slot_holds_the_largest_slice_in_whole_cache_lines)
{
    build(odd);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_FP32), 14208); /* 221.5 lines */
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_BF16), 7104);  /* 110.75 */
    build(gpt2);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_FP32), 16 << 20);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_BF16), 8 << 20);
}

TEST(a_tensor_is_found_with_and_without_its_prefix)
{
    build(odd);
    ck_assert_ptr_eq(model_find(&m, "transformer.wte.weight"), &m.tensors[0]);
    ck_assert_ptr_eq(model_find(&m, "wte.weight"), &m.tensors[0]);
    ck_assert_str_eq(model_find(&m, "h.1.ln_2.bias")->name, "transformer.h.1.ln_2.bias");
    ck_assert_str_eq(model_find(&m, "lm_head.weight")->name, "lm_head.weight");
    ck_assert_ptr_null(model_find(&m, "transformer.lm_head.weight"));
    ck_assert_ptr_null(model_find(&m, "h.3.ln_2.bias"));
    ck_assert_ptr_null(
        model_find(&m, "ht")); /* what is left of lm_head.weight after as many letters as the prefix has */
    ck_assert_ptr_null(model_find(&m, "transformer."));
    ck_assert_ptr_null(model_find(&m, ""));
}

TEST(masks_are_told_from_weights)
{
    static const char *const masks[] = {"h.0.attn.bias", "transformer.h.11.attn.masked_bias"},
                             *const others[] = {"h.0.attn.c_attn.bias",
                                                "h.attn.bias",
                                                "attn.bias",
                                                "h.0.attn.bias2",
                                                "transformer.transformer.h.0.attn.bias",
                                                ""};
    build(odd);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
        ck_assert_msg(model_is_mask(&m, masks[i]), "%s", masks[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        ck_assert_msg(!model_is_mask(&m, others[i]), "%s", others[i]);
}

TEST(a_refused_configuration_leaves_nothing_behind)
{
    struct model_config config = odd;
    struct model refused, zero = {0};
    struct error err;

    config.n_heads = 2;
    ck_assert_int_eq(model_init(&refused, &config, &err), -EINVAL);
    ck_assert_str_eq(err.text, "n_embd is 21: it must be a multiple of n_head, which is 2");
    ck_assert_mem_eq(&refused, &zero, sizeof m);
    model_free(&refused); /* is safe */
    ck_assert_int_eq(model_init(&refused, &config, NULL), -EINVAL);
}
