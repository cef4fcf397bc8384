#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "proto/base/random.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(60)

static const struct hyper hyper = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

TEST(a_drawn_weight_depends_on_seed_tensor_and_index_alone)
{
    const struct random_key key = random_site_key(42, 0, 0, RANDOM_WEIGHTS);
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_cut, false, 0);
    plain_set_threads(3);
    store_draw(&f.store, 42);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        const float *w = store_weights(&f.store, at.unit) + at.piece->offset;
        for (uint64_t k = 0; k<at.piece->n; k += at.piece->n> 2000 ? 997 : 1) {
            float want = at.tensor->init == MODEL_INIT_ONE;
            if (at.tensor->init == MODEL_INIT_NORMAL) {
                random_normal(&want, key, at.piece->tensor, at.first + k, 1);
                want *= at.tensor->deviation;
            }
            if (w[k] != want)
                ck_abort_msg("%s, unit %u, element %ju: %a, not %a", at.tensor->name, at.unit, (uintmax_t)k, w[k],
                             want);
        }
    }
    store_fixture_close(&f);
}

#define DECODER(type) "\"model_type\":\"" type "\",\"num_key_value_heads\":2,"

/* As transformers' _init_weights has it: nn.Embedding with a padding_idx. Of RoBERTa both the word's row and the
 * position's, of BERT the word's; GPT-2 has none, whatever its config says. Tied heads share the row. */
static const struct {
    const char *config; /* vocabulary 40, 12 positions, width 8 */
    int word, position; /* the rows of zeros; -1: none */
} paddings[] = {
    {"\"model_type\":\"roberta\",\"pad_token_id\":3,\"type_vocab_size\":1,\"layer_norm_eps\":1e-5,", 3, 3},
    {"\"model_type\":\"bert\",\"pad_token_id\":3,", 3, -1},
    {"\"model_type\":\"bert\",", 0, -1},
    {DECODER("qwen2") "\"pad_token_id\":39,", 39, -1},
    {DECODER("qwen2") "\"pad_token_id\":-2,\"tie_word_embeddings\":true,", 38, -1},
    {DECODER("gemma") "\"head_dim\":4,", 0, -1},
    {DECODER("llama"), -1, -1},
    {"\"model_type\":\"gpt2\",\"pad_token_id\":3,\"n_embd\":8,\"n_layer\":1,\"n_head\":2,\"n_positions\":12,", -1, -1},
};

TEST_EACH(a_fresh_row_of_padding_is_zero, COUNT(paddings))
{
    static const char rest[] = "\"hidden_size\":8,\"intermediate_size\":8,\"num_attention_heads\":2,"
                               "\"num_hidden_layers\":1,\"max_position_embeddings\":12,";
    struct model_config config;
    struct error err = {""};
    struct store_fixture f;
    char text[1000];
    unsigned n_zero[2] = {0, 0}; /* rows */

    snprintf(text, sizeof text, "{%s%s\"vocab_size\":40}", paddings[_i].config, _i == COUNT(paddings) - 1 ? "" : rest);
    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s: %s", text, err.text);
    store_fixture_open(&f, config, config.tied, 0);
    store_draw(&f.store, 42);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        const bool word = at.tensor->shape[0] == 40 && at.tensor->n_dims == 2, position = at.tensor->shape[0] == 12;
        const float *w = store_weights(&f.store, at.unit) + at.piece->offset;
        if (at.tensor->init != MODEL_INIT_NORMAL)
            continue;
        for (uint64_t row = 0; row < at.piece->n_rows; row++) {
            unsigned n = 0;
            for (uint64_t k = 0; k < at.tensor->shape[1]; k++)
                n += w[row * at.tensor->shape[1] + k] == 0;
            ck_assert_msg(n == 0 || n == at.tensor->shape[1], "%s: part of row %ju", at.tensor->name, (uintmax_t)row);
            if (n == 0)
                continue;
            ck_assert_msg(word || position, "%s", at.tensor->name);
            ck_assert_int_eq((int)(at.piece->first_row + row), word ? paddings[_i].word : paddings[_i].position);
            n_zero[position]++;
        }
    }
    ck_assert_uint_eq(n_zero[0], paddings[_i].word >= 0);
    ck_assert_uint_eq(n_zero[1], paddings[_i].position >= 0);
    store_fixture_close(&f);
}

/* Each step of what a load does notes at least a piece of every 4 MiB; nothing is done or counted once it is
 * abandoned. */
TEST(a_load_counts_its_pieces_and_ends_where_it_is_abandoned)
{
    struct pieces pieces = {0};
    const struct store_options options = {.train = true, .pieces = &pieces};
    struct ledger ledger = {0};
    struct store_fixture f;
    struct store again;
    struct error err = {""};

    store_fixture_open_as(&f, store_fixture_big, false, &options);
    const uint64_t touched = pieces_count(&pieces), least = 12 * f.model.n_parameters / PIECES_BYTES;
    ck_assert_uint_ge(touched, least);
    ck_assert_int_eq(store_draw(&f.store, 1), 0);
    const uint64_t drawn = pieces_count(&pieces);
    ck_assert_uint_ge(drawn - touched, 4 * f.model.n_parameters / PIECES_BYTES);
    const int weights = store_fixture_file(), moments = store_fixture_file();
    store_fixture_write(&f.store, weights, moments, NULL);
    ck_assert_msg(store_fixture_load(&f.store, (struct file[]){file_own(weights)}, 1, &err) == 0, "%s", err.text);
    const uint64_t loaded = pieces_count(&pieces);
    ck_assert_uint_ge(loaded - drawn, 4 * f.model.n_parameters / PIECES_BYTES);
    const float kept = store_weights(&f.store, 1)[5];
    pieces_abandon(&pieces);
    ck_assert_int_eq(store_draw(&f.store, 2), -ECANCELED);
    ck_assert_int_eq(store_fixture_load(&f.store, (struct file[]){file_own(weights)}, 1, &err), -ECANCELED);
    ck_assert_int_eq(store_fixture_load_moments(&f.store, (struct file[]){file_own(moments)}, &err), -ECANCELED);
    ck_assert_int_eq(store_init(&again, &f.model, &options, &ledger, &err), -ECANCELED);
    ck_assert_uint_eq(ledger.total.current, 0);
    ck_assert_uint_eq(pieces_count(&pieces), loaded);
    ck_assert_float_eq(store_weights(&f.store, 1)[5], kept);
    close(weights);
    close(moments);
    store_fixture_close(&f);
}

/* Every way to fold, of the models' units: of the big one a block of two slices, cut inside a tensor; of the cut one a
 * tied table in several units, with two visits each. With one part all ways are AdamW. */
static const struct way {
    const struct model_config *config;
    enum store_fold how;
    uint32_t n_parts;
    bool tied;
} ways[] = {
    {&store_fixture_big, STORE_FOLD_DIRECT, 1, false}, {&store_fixture_big, STORE_FOLD_MOMENTS, 1, false},
    {&store_fixture_big, STORE_FOLD_SUM, 1, false},    {&store_fixture_big, STORE_FOLD_HOLD, 1, false},
    {&store_fixture_cut, STORE_FOLD_SUM, 1, true},     {&store_fixture_small, STORE_FOLD_MOMENTS, 3, false},
    {&store_fixture_small, STORE_FOLD_SUM, 3, false},  {&store_fixture_small, STORE_FOLD_HOLD, 3, true},
};

/* A contribution to a unit, in the store and in plain arrays. */
static void fold_both(struct store_fixture *f, uint32_t unit, struct store_values *want, float *sum, uint64_t seed,
                      const struct store_given *given, enum store_fold how)
{
    const uint64_t n = f->model.units[unit].n;
    float *g = plain_zeros(n, sizeof *g);

    for (uint64_t i = 0; i < n; i++)
        g[i] = plain_number(i, seed);
    store_fixture_fold(f, unit, &(struct store_given){.g = g, .first = given->first, .part = given->part}, how, &hyper);
    if (how == STORE_FOLD_MOMENTS)
        plain_fold(want->m, want->v, g, n, &hyper, given->first);
    else
        plain_sum(sum, g, n, given->first);
    free(g);
}

static void update_both(struct store_fixture *f, uint32_t unit, struct store_values *want, const float *sum, uint64_t t,
                        enum store_fold how)
{
    const struct model_unit *u = &f->model.units[unit];

    if (how != STORE_FOLD_DIRECT)
        store_fixture_same(store_weights(&f->store, unit), want->w, u->n, "w before the update");
    store_update(&f->store, unit, how, &hyper);
    if (how != STORE_FOLD_MOMENTS)
        plain_fold(want->m, want->v, sum, u->n, &hyper, true);
    for (struct store_piece at = {0}; store_fixture_next(f, &at);)
        if (at.unit == unit)
            plain_update(want->w + at.piece->offset, want->m + at.piece->offset, want->v + at.piece->offset,
                         at.piece->n, &hyper, t, at.tensor->n_dims == 2); /* those decay */
    ck_assert_uint_eq(f->store.updates[unit], t);
}

/* All units' contributions come in turn, as far as they go: each unit's sum is its own. */
TEST_EACH(a_step_is_the_optimizers_tensor_by_tensor, COUNT(ways))
{
    enum { MAX_UNITS = 8 };
    const struct way *way = &ways[_i];
    const bool sums = way->how == STORE_FOLD_SUM && !way->tied;
    const struct store_options options = {.train = true,
                                          .fenced = way->how == STORE_FOLD_HOLD,
                                          .n_accumulators = sums ? MAX_UNITS : 0};
    struct store_values want[MAX_UNITS];
    struct store_fixture f;
    float *sum[MAX_UNITS];

    store_fixture_open_as(&f, *way->config, way->tied, &options);
    store_draw(&f.store, 1);
    /* The units whose way this is: of the tied ones' model they alone. */
    const uint32_t n_units = way->how == STORE_FOLD_SUM && way->tied ? 2 : f.model.n_units;
    ck_assert_uint_le(n_units, MAX_UNITS);
    ck_assert(way->config != &store_fixture_big || f.model.largest_unit > MODEL_SLICE);
    ck_assert(n_units != 2 || f.model.units[1].n_visits == 2);
    for (uint32_t u = 0; u < n_units; u++) {
        want[u] = store_fixture_values(&f, u);
        sum[u] = plain_zeros(f.model.units[u].n, sizeof *sum[u]);
    }
    for (uint64_t t = 1; t <= 2; t++) {
        for (uint32_t i = 0; i < 2 * way->n_parts; i++)
            for (uint32_t u = 0; u < n_units; u++)
                if (i < f.model.units[u].n_visits * way->n_parts)
                    fold_both(&f, u, &want[u], sum[u], t * 100 + u * 10 + i,
                              &(struct store_given){.first = i == 0, .part = i % way->n_parts}, way->how);
        for (uint32_t u = 0; u < n_units; u++)
            update_both(&f, u, &want[u], sum[u], t, way->how);
    }
    for (uint32_t u = 0; u < n_units; u++) {
        struct store_values got = store_fixture_values(&f, u);
        store_fixture_same(got.w, want[u].w, f.model.units[u].n, "w");
        store_fixture_same(got.m, want[u].m, f.model.units[u].n, "m");
        store_fixture_same(got.v, want[u].v, f.model.units[u].n, "v");
        store_values_free(&got), store_values_free(&want[u]), free(sum[u]);
    }
    store_fixture_close(&f);
}

TEST(accumulators_go_round)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, false, 2);
    float *g = plain_zeros(f.model.largest_unit, sizeof *g);
    for (uint32_t unit = 0; unit < f.model.n_units; unit++) {
        store_fixture_fold(&f, unit, &(struct store_given){.g = g, .first = true}, STORE_FOLD_SUM, &hyper);
        ck_assert_ptr_nonnull(f.store.sums[unit]);
        if (unit > 0) { /* two at a time; the one before is done */
            ck_assert_ptr_ne(f.store.sums[unit], f.store.sums[unit - 1]);
            store_update(&f.store, unit - 1, STORE_FOLD_SUM, &hyper);
            ck_assert_ptr_null(f.store.sums[unit - 1]);
        }
    }
    free(g);
    store_fixture_close(&f);
}

/* In the second of two slices, in every way to fold and both types: at its first element, the last but one, the
 * last. */
TEST_EACH(a_slice_that_is_not_finite_changes_nothing, 8)
{
    const enum store_fold how = (enum store_fold)(_i / 2);
    const enum number_type type = (enum number_type)(_i % 2);
    const bool holds = how == STORE_FOLD_HOLD;
    const struct store_options options = {.train = true, .fenced = holds, .n_accumulators = !holds};
    const uint32_t unit = 2;
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_big, false, &options);
    store_draw(&f.store, 1);
    const struct model_unit *u = &f.model.units[unit];
    const uint64_t n = u->n - MODEL_SLICE, places[] = {0, n - 2, n - 1};
    void *g = plain_zeros(n, sizeof(float)); /* zeros in either type */
    const struct store_contribution contribution = {.g = g, .type = type, .first = true};
    struct store_values before = store_fixture_values(&f, unit);
    for (int i = 0; i < COUNT(places); i++) {
        char *at = (char *)g + places[i] * number_bytes(type);
        memcpy(at, type == NUMBER_BF16 ? (const void *)&(uint16_t){i ? 0x7f80 : 0xffc0} : &(float){i ? INFINITY : NAN},
               number_bytes(type));
        ck_assert_int_eq(store_fold(&f.store, unit, 1, &contribution, how, &hyper), -EDOM);
        memset(at, 0, number_bytes(type));
    }
    struct store_values after = store_fixture_values(&f, unit);
    ck_assert(holds || !f.store.sums[unit]);
    if (holds)
        store_fixture_same(f.store.held + u->offset, before.m, u->n, "held"); /* zeros */
    store_fixture_same(after.w, before.w, u->n, "w");
    store_fixture_same(after.m, before.m, u->n, "m");
    store_fixture_same(after.v, before.v, u->n, "v");
    ck_assert_int_eq(store_fold(&f.store, unit, 1, &contribution, how, &hyper), 0); /* mended, it counts */
    store_values_free(&before), store_values_free(&after), free(g);
    store_fixture_close(&f);
}

/* Each slice is finite; by hand: 3e38 twice is more than FLT_MAX as a sum, and so are two first moments of a beta of 0.
 * With one part the weights do it: their largest value, decayed by a factor of 99 in size. */
TEST_EACH(finite_slices_that_make_a_weight_that_is_not_are_told, 6)
{
    static const struct {
        enum store_fold how;
        double clip_update;
    } cases[] = {{STORE_FOLD_DIRECT, 0}, {STORE_FOLD_MOMENTS, 0}, {STORE_FOLD_SUM, 0},
                 {STORE_FOLD_HOLD, 0},   {STORE_FOLD_MOMENTS, 1}, {STORE_FOLD_SUM, 1}};
    const enum store_fold how = cases[_i].how;
    const bool fenced = how == STORE_FOLD_HOLD, direct = how == STORE_FOLD_DIRECT;
    const struct store_options options = {.train = true,
                                          .fenced = fenced,
                                          .n_accumulators = !fenced,
                                          .clip_update = cases[_i].clip_update};
    struct hyper hp = {.lr = 1, .beta1 = 0, .beta2 = 0.9, .epsilon = 1e-8, .grad_scale = 1};
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_big, false, &options);
    const uint32_t unit = 2;
    const struct model_unit *u = &f.model.units[unit];
    float *g = plain_zeros(u->n, sizeof *g);
    const struct store_contribution first = {.g = g, .type = NUMBER_FP32, .first = true},
                                    second = {.g = g, .type = NUMBER_FP32, .part = 1};
    ck_assert_int_eq(store_fold(&f.store, unit, 0, &first, how, &hp), 0);
    ck_assert_int_eq(store_update(&f.store, unit, how, &hp), 0); /* as it should be */
    g[MODEL_SLICE - 1] = 3e38f;
    if (direct)
        hp.weight_decay = 100, store_weights(&f.store, unit)[MODEL_SLICE - 1] = 3e38f;
    ck_assert_int_eq(store_fold(&f.store, unit, 0, &first, how, &hp), direct ? -ERANGE : 0);
    if (!direct) {
        ck_assert_int_eq(store_fold(&f.store, unit, 0, &second, how, &hp), 0);
        ck_assert_int_eq(store_update(&f.store, unit, how, &hp), -ERANGE);
    }
    free(g);
    store_fixture_close(&f);
}
