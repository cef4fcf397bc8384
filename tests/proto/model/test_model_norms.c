/* What contributions have behind their gradients (proto/model/norms.h): counts and places, by hand. */
#include "proto/model/norms.h"
#include "tests/kit/test.h"

#include <string.h>

static void open_model(struct model *m, const char *text, const char *freeze)
{
    struct model_config config;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    ck_assert_int_eq(model_has_source(&config) ? model_divide_rows(&config, 6, 10, &err) : 0, 0);
    ck_assert_int_eq(model_init(m, &config, &err), 0);
    if (freeze)
        ck_assert_int_eq(model_freeze(m, freeze, (struct model_base){0}, &err), 0);
    model_approximate(m, &(struct model_approximation){.samples = true});
}

static const char gpt2[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 2, \"n_embd\": 8, \"n_inner\": 16, "
                           "\"n_positions\": 16, \"vocab_size\": 20, \"activation_function\": \"relu\"}",
                  t5[] = "{\"model_type\": \"t5\", \"num_layers\": 1, \"num_heads\": 2, \"d_model\": 8, \"d_kv\": 4, "
                         "\"d_ff\": 16, \"vocab_size\": 20, \"feed_forward_proj\": \"relu\", "
                         "\"decoder_start_token_id\": 0}",
                  gelu[] = "{\"model_type\": \"gpt2\", \"n_layer\": 3, \"n_head\": 2, \"n_embd\": 8, \"n_inner\": 16, "
                           "\"n_positions\": 16, \"vocab_size\": 20}";

/* A block has 8*24 + 24, 8*8 + 8, 8*16 + 16, 16*8 + 8 and twice 16 elements: 600, on the device 608 before the
 * norms. */
TEST(a_block_s_contribution_ends_with_its_norms)
{
    struct model m;

    open_model(&m, gpt2, NULL);
    const uint32_t first = m.visits[m.layers[m.first_block].first_visit], n_slices = m.n_slices;
    model_remember_norms(&m, 40, 7);
    ck_assert_uint_eq(m.n_norm_maps, 3);
    ck_assert_uint_eq(m.n_norm_entries, 7);
    ck_assert_uint_eq(m.most_norms, 40);
    ck_assert_uint_eq(m.n_slices, n_slices + 3);
    for (uint32_t u = 0; u < m.n_units; u++) {
        const struct model_unit *unit = &m.units[u];
        const bool is_block = u >= first && u < first + 3;
        ck_assert_uint_eq(unit->n_norms, is_block ? 40 : 0);
        ck_assert_uint_eq(unit->n_slices, is_block ? 2 : 1);
        if (!is_block) {
            ck_assert_uint_eq(model_contribution_end(unit), unit->n_trained);
            continue;
        }
        ck_assert_uint_eq(unit->first_norm_map, u - first);
        ck_assert_uint_eq(unit->n_trained, 600);
        ck_assert_uint_eq(model_norms_at(unit), 608);
        ck_assert_uint_eq(model_contribution_end(unit), 648);
        const struct model_slice gradient = model_slice_of(unit, 0), norms = model_slice_of(unit, 1);
        ck_assert(gradient.first == 0 && gradient.n == 600 && !gradient.is_norms);
        ck_assert(norms.first == 0 && norms.n == 40 && norms.is_norms);
        ck_assert_uint_eq(model_slice_at(unit, &gradient), 0);
        ck_assert_uint_eq(model_slice_at(unit, &norms), 608);
        const struct model_norm_map map = model_norm_map(&m, u, 0, 9);
        ck_assert(strstr(map.tensor->name, ".mlp.c_proj.weight") && map.first == 0 && map.n == 9);
    }
    model_remember_norms(&m, 0, 0);
    ck_assert_uint_eq(m.n_slices, n_slices);
    ck_assert_uint_eq(m.n_norm_maps + m.most_norms, 0);
    model_free(&m);
}

/* Norms of many tokens are more than a gradient: slots of an inbox have room for a slice of them. */
TEST(many_norms_travel_in_several_slices)
{
    struct model m;

    open_model(&m, gpt2, NULL);
    model_remember_norms(&m, 1000, 1);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_FP32), 4032); /* a multiple of 64 */
    model_remember_norms(&m, 2 * (uint64_t)MODEL_SLICE + 5, 1);
    const struct model_unit *unit = &m.units[m.visits[m.layers[m.first_block].first_visit]];
    ck_assert_uint_eq(unit->n_slices, 4);
    ck_assert_uint_eq(model_slot_bytes(&m, NUMBER_FP32), (uint64_t)MODEL_SLICE * 4);
    const struct model_slice second = model_slice_of(unit, 2), last = model_slice_of(unit, 3);
    ck_assert(second.first == MODEL_SLICE && second.n == MODEL_SLICE);
    ck_assert(last.first == 2 * (uint64_t)MODEL_SLICE && last.n == 5);
    ck_assert_uint_eq(model_slice_at(unit, &last), 608 + 2 * (uint64_t)MODEL_SLICE);
    model_free(&m);
}

/* Of an encoder-decoder, an encoder's map is of the source, a decoder's of the target: of rows of 5 tokens, 3 and 2. */
TEST(a_map_has_the_tokens_of_its_own_side)
{
    struct model m;
    uint32_t seen = 0;

    open_model(&m, t5, NULL);
    model_remember_norms(&m, 10, 1);
    ck_assert_uint_eq(m.n_norm_maps, 2);
    for (uint32_t u = 0; u < m.n_units; u++) {
        if (m.units[u].n_norm_maps == 0)
            continue;
        const struct model_norm_map map = model_norm_map(&m, u, 0, 5);
        const bool decodes = strncmp(map.tensor->name, "decoder", 7) == 0;
        ck_assert_uint_eq(map.first, decodes ? 3 : 0);
        ck_assert_uint_eq(map.n, decodes ? 2 : 3);
        seen |= 1u << decodes;
    }
    ck_assert_uint_eq(seen, 3);
    model_free(&m);
}

/* Nothing is sampled behind gelu; a unit that is not trained contributes nothing. */
TEST(others_have_none)
{
    struct model m;

    open_model(&m, gelu, NULL);
    model_remember_norms(&m, 40, 7);
    ck_assert_uint_eq(m.n_norm_maps + m.most_norms, 0);
    model_free(&m);
    open_model(&m, gpt2, "h.1.*");
    model_remember_norms(&m, 40, 7);
    ck_assert_uint_eq(m.n_norm_maps, 2);
    ck_assert_uint_eq(m.units[m.visits[m.layers[m.first_block + 1].first_visit]].n_slices, 0);
    ck_assert_uint_eq(m.units[m.visits[m.layers[m.first_block + 2].first_visit]].first_norm_map, 1);
    model_free(&m);
}
