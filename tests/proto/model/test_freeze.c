/* Which tensors are frozen, and how a unit is divided into what is trained and what is not. */
#include "proto/model/model.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <string.h>

/* wte 2121, wpe 399, three blocks of 3544 (of which 184 in biases), ln_f 42, lm_head 2121: 15315 in all. */
static const struct model_config odd = {.family = &family_gpt2,
                                        .n_layers = 3,
                                        .n_heads = 3,
                                        .width = 21,
                                        .inner_width = 37,
                                        .n_positions = 19,
                                        .vocabulary = 101,
                                        .norm_epsilon = 1e-5f,
                                        .initializer_range = 0.02f};

static struct model model;

static void setup(void)
{
    ck_assert_int_eq(model_init(&model, &odd, NULL), 0);
}

static void teardown(void)
{
    model_free(&model);
}

SUITE_FIXTURE(setup, teardown)

/* Layers: 0 the embedding, 1 to 3 the blocks, 4 the norm, 5 the head. */
static const struct {
    const char *patterns;
    uint64_t n_trained, largest;
    uint32_t n_frozen_units, n_trained_visits, lowest;
} sets[] = {
    {NULL, 15315, 3544, 0, 7, 0},
    {"", 15315, 3544, 0, 7, 0},
    {"wte.weight", 15315 - 2121, 3544, 1, 6, 0},
    {"transformer.wte.weight", 15315 - 2121, 3544, 1, 6, 0},
    {"*.weight", 3 * 184 + 21, 184, 3, 4, 1},
    {"wte.*,wpe.*,h.[01].*", 3544 + 42 + 2121, 3544, 4, 3, 3},
    {"h.*,ln_f.*", 2121 + 399 + 2121, 2121, 4, 3, 0},
    {"lm_head.*,wte.*,wpe.*,h.*", 42, 42, 6, 1, 4},
    {"h.*.attn.c_proj.weight", 15315 - 3 * 441, 3544 - 441, 0, 7, 0},
};

/* Pieces of one kind in the order of their tensors, without gaps. */
static uint64_t follow(const struct model_unit *unit, bool frozen, uint64_t at)
{
    for (uint32_t i = 0; i < unit->n_pieces; i++) {
        const struct model_piece *piece = &model.pieces[unit->first_piece + i];
        if (model.tensors[piece->tensor].frozen != frozen)
            continue;
        ck_assert_uint_eq(piece->offset, at);
        at += piece->n;
    }
    return at;
}

TEST_EACH(trained_pieces_come_first_then_frozen_ones, COUNT(sets))
{
    uint64_t n_trained = 0, trained_n = 0;
    uint32_t visits = 0;

    ck_assert_int_eq(model_freeze(&model, sets[_i].patterns, NULL), 0);
    for (const struct model_unit *u = model.units; u < model.units + model.n_units; u++) {
        ck_assert_uint_eq(follow(u, false, 0), u->n_trained);
        ck_assert_uint_eq(follow(u, true, u->n_trained), u->n);
        ck_assert_uint_eq(u->n_slices, u->n_trained > 0);
        ck_assert_uint_eq(u->trained_offset, trained_n);
        n_trained += u->n_trained, trained_n += (u->n_trained + 31) / 32 * 32;
    }
    for (uint32_t v = 0; v < model.n_visits; v++) {
        ck_assert_uint_eq(model.trained_below[v], visits);
        if (model.units[model.visits[v]].n_trained > 0)
            ck_assert_uint_eq(model.trained_visits[visits++], v);
    }
    ck_assert_uint_eq(n_trained, sets[_i].n_trained);
    ck_assert_uint_eq(model.n_trained, sets[_i].n_trained);
    ck_assert_uint_eq(model.trained_n, trained_n);
    ck_assert_uint_eq(model.n_parameters, 15315);
    ck_assert_uint_eq(model.largest_trained, sets[_i].largest);
    ck_assert_uint_eq(model_slot_bytes(&model, NUMBER_FP32), (sets[_i].largest * 4 + 63) / 64 * 64);
    ck_assert_uint_eq(model.n_frozen_units, sets[_i].n_frozen_units);
    ck_assert_uint_eq(model.n_trained_visits, sets[_i].n_trained_visits);
    ck_assert_uint_eq(visits, sets[_i].n_trained_visits);
    ck_assert_uint_eq(model.lowest_trained, sets[_i].lowest);
}

TEST(ranks_count_the_trained_tensors_in_order)
{
    uint32_t rank = 0;

    ck_assert_int_eq(model_freeze(&model, "h.1.*,wpe.*", NULL), 0);
    for (const struct model_tensor *t = model.tensors; t < model.tensors + model.n_tensors; t++) {
        ck_assert_int_eq(t->frozen, strstr(t->name, "h.1.") || strstr(t->name, "wpe."));
        if (!t->frozen)
            ck_assert_uint_eq(t->rank, rank++);
    }
    ck_assert_uint_eq(model.n_trained_tensors, rank);
}

static const struct {
    const char *patterns, *sentence;
} refused[] = {
    {"wtf.weight", "--freeze wtf.weight matches no tensor of this model: its tensors have names like wte.weight and "
                   "h.0.ln_1.weight"},
    {"wte.*,h.9.*", "--freeze h.9.* matches no tensor of this model: its tensors have names like wte.weight and "
                    "h.0.ln_1.weight"},
    {"wte.weight,,wpe.weight", "--freeze  matches no tensor"},
    {"wte", "--freeze wte matches no tensor"},
    {"*", "--freeze * freezes all tensors of this model: leave one to train"},
    {"*.weight,*.bias", "--freeze *.weight,*.bias freezes all tensors of this model: leave one to train"},
    /* longer than any name */
    {"****************************************************************", "matches no tensor"},
};

TEST_EACH(a_pattern_that_freezes_nothing_or_all_is_refused, COUNT(refused))
{
    struct error err;

    ck_assert_int_eq(model_freeze(&model, refused[_i].patterns, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, refused[_i].sentence) != NULL, "%s", err.text);
}
