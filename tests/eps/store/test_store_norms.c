/* What the store remembers of each token: the norms of gradients (eps/store/norms.h). */
#include "eps/store/norms.h"
#include "eps/store/updater.h"
#include "proto/model/gpt2.h"
#include "proto/model/norms.h"
#include "proto/operation/call/sample.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/host.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Two blocks, each with one sampled map; two parts of two rows of three tokens, of data of 20. */
enum { MAPS = 2, PARTS = 2, PART_ROWS = 2, BATCH = PARTS * PART_ROWS, SEQ = 3, TOKENS = BATCH * SEQ, ENTRIES = 20 };

static const struct plan_goal goal = {.purpose = PLAN_TRAIN,
                                      .sampling.share = 0.5,
                                      .entries = ENTRIES,
                                      .adamw = true,
                                      .n_parts = PARTS,
                                      .batch = BATCH,
                                      .seq = SEQ};

static void open_host(struct store_fixture *f, bool fenced, uint32_t host, uint32_t n_hosts)
{
    struct model_config config = store_fixture_small;
    struct store_options options = {.train = true,
                                    .fenced = fenced,
                                    .replay = n_hosts > 1,
                                    .n_accumulators = fenced ? 0 : 2,
                                    .n_entries = ENTRIES,
                                    .batch = BATCH,
                                    .seq = SEQ,
                                    .n_parts = PARTS};
    struct error err = {""};

    *f = (struct store_fixture){0};
    config.tied = true;
    config.activation = MODEL_RELU;
    gpt2_edit(&config)->scale_attention = true;
    ck_assert_int_eq(model_init(&f->model, &config, &err), 0);
    model_approximate(&f->model, &(struct model_approximation){.samples = true});
    plan_remember_norms(&f->model, &goal);
    ck_assert_uint_eq(f->model.n_norm_maps, MAPS);
    if (n_hosts > 1)
        ck_assert_int_eq(plan_divide(&options.own_first, &options.n_own, &f->model, n_hosts, host, &err), 0);
    ck_assert_msg(store_init(&f->store, &f->model, &options, &f->ledger, &err) == 0, "%s", err.text);
}

static void open_store(struct store_fixture *f, bool fenced)
{
    open_host(f, fenced, 0, 1);
}

static const struct model_unit *unit_of(const struct store_fixture *f, uint32_t map)
{
    const struct model *m = &f->model;

    return &m->units[m->visits[m->layers[m->first_block + map].first_visit]];
}

static uint32_t number_of(const struct store_fixture *f, uint32_t map)
{
    return (uint32_t)(unit_of(f, map) - f->model.units);
}

static void begin(struct store_fixture *f, uint64_t step, const uint32_t *entries)
{
    struct error err = {""};

    ck_assert_msg(norms_open_step(&f->store.norms, step, entries, SEQ, &err) == 0, "%s", err.text);
}

/* The norm of a token in a step: nowhere the same, nor exact in bf16. */
static float norm_at(uint32_t map, uint64_t step, uint32_t token)
{
    return 0.1f + 0.37f * (float)token + 11.3f * (float)map + 101.7f * (float)step;
}

/* A part's slice with norms, as a worker contributes it. Returns what the fold says. */
static int fold(struct store_fixture *f, uint32_t map, uint64_t step, uint32_t part, enum number_type type,
                float factor)
{
    const struct hyper hp = {.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f, .grad_scale = 1};
    float wide[PART_ROWS * SEQ];
    uint16_t narrow[PART_ROWS * SEQ];

    for (uint32_t i = 0; i < PART_ROWS * SEQ; i++) {
        wide[i] = factor * norm_at(map, step, part * PART_ROWS * SEQ + i);
        narrow[i] = number_to_bf16(wide[i]);
    }
    const struct store_contribution c = {.g = type == NUMBER_FP32 ? (const void *)wide : narrow,
                                         .type = type,
                                         .first = part == 0,
                                         .part = part};
    ck_assert_uint_eq(unit_of(f, map)->n_slices, 2);
    return store_fold(&f->store, number_of(f, map), 1, &c, f->store.held ? STORE_FOLD_HOLD : STORE_FOLD_SUM, &hp);
}

static void update(struct store_fixture *f, uint32_t map, uint64_t step)
{
    norms_update(&f->store.norms, &f->model, number_of(f, map), step);
}

/* What the workers of a step find. */
static const uint16_t *gather(struct store_fixture *f, uint32_t map, uint64_t step)
{
    static uint16_t found[TOKENS];

    memset(found, 0xff, sizeof found);
    norms_gather(&f->store.norms, &f->model, number_of(f, map), step, found);
    return found;
}

static float entry_of(const struct store_fixture *f, uint32_t map, uint32_t entry)
{
    return number_from_bf16(norms_of(&f->store.norms, unit_of(f, map), 0)[entry]);
}

/* Tokens 0 .. 11 of the minibatch: the data's, out of order, and two of padding. */
static const uint32_t some[TOKENS] = {7, 8, 9, 19, 0, PLAN_NO_ENTRY, 3, 2, 1, PLAN_NEW_ENTRY, 12, 13};
/* The next minibatch has some of them, elsewhere, and others. */
static const uint32_t others[TOKENS] = {0, 1, 2, 3, 4, 5, 13, PLAN_NO_ENTRY, 14, 15, 16, 9};

/* bf16 has 8 bits: half of the last place is 2^-9 of it, at most 2^-8 of the number. */
TEST(an_entry_becomes_the_norm_in_bf16_and_no_other_changes)
{
    struct store_fixture f;
    bool seen[ENTRIES] = {false};

    open_store(&f, false);
    begin(&f, 0, some);
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 1, 0, part, part ? NUMBER_BF16 : NUMBER_FP32, part ? 1 : -1),
                         0);               /* signs count not */
    for (uint32_t e = 0; e < ENTRIES; e++) /* not before the update */
        ck_assert(entry_of(&f, 1, e) == 0);
    update(&f, 1, 0);
    for (uint32_t t = 0; t < TOKENS; t++) {
        const float want = norm_at(1, 0, t);
        if (some[t] >= PLAN_NEW_ENTRY)
            continue;
        seen[some[t]] = true;
        ck_assert_float_le(fabsf(entry_of(&f, 1, some[t]) - want), want / 256);
    }
    for (uint32_t e = 0; e < ENTRIES; e++) {
        ck_assert((entry_of(&f, 1, e) == 0) == !seen[e]);
        ck_assert(entry_of(&f, 0, e) == 0); /* of the other map */
    }
    store_fixture_close(&f);
}

/* A token whose gradient is 0 has been trained on: its entry is the least number, which is not 0. */
TEST(a_norm_of_0_is_known)
{
    struct store_fixture f;

    open_store(&f, false);
    begin(&f, 0, some);
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 0, 0, part, NUMBER_FP32, 0), 0);
    update(&f, 0, 0);
    for (uint32_t t = 0; t < TOKENS; t++)
        ck_assert(some[t] >= PLAN_NEW_ENTRY || entry_of(&f, 0, some[t]) == number_from_bf16(1));
    store_fixture_close(&f);
}

/* A step finds what steps before it wrote, never what it writes itself, though it is asked again after its update. */
TEST(a_step_reads_what_earlier_steps_wrote)
{
    struct store_fixture f;

    open_store(&f, false);
    begin(&f, 0, some);
    for (uint32_t t = 0; t < TOKENS; t++)
        ck_assert_uint_eq(gather(&f, 0, 0)[t], t == 0 ? 0 : 0xffff); /* the first time alone */
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 0, 0, part, NUMBER_FP32, 1), 0);
    update(&f, 0, 0);
    ck_assert_uint_eq(gather(&f, 0, 0)[0], 0xffff); /* left as it is: the old ones */
    begin(&f, 1, others);
    const uint16_t *found = gather(&f, 0, 1);
    for (uint32_t t = 0; t < TOKENS; t++) {
        uint16_t want = others[t] == PLAN_NO_ENTRY ? SAMPLE_PADDING : 0;
        for (uint32_t before = 0; before < TOKENS; before++)
            if (others[t] != PLAN_NO_ENTRY && some[before] == others[t])
                want = number_to_bf16(norm_at(0, 0, before));
        ck_assert_uint_eq(found[t], want);
    }
    store_fixture_close(&f);
}

/* The update of a step may come when the next step is open, with other tokens. */
TEST(an_update_is_of_its_own_step_s_tokens)
{
    struct store_fixture f;

    open_store(&f, false);
    begin(&f, 0, some);
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 0, 0, part, NUMBER_FP32, 1), 0);
    begin(&f, 1, others);
    update(&f, 0, 0);
    ck_assert(entry_of(&f, 0, 7) > 0 && entry_of(&f, 0, 4) == 0);
    store_fixture_close(&f);
}

/* As an epoch's end and the next one's begin may be in one minibatch. */
TEST_EACH(of_a_token_in_two_rows_the_last_counts_whatever_the_order_of_folds, 2)
{
    struct store_fixture f;
    uint32_t entries[TOKENS];

    for (uint32_t t = 0; t < TOKENS; t++)
        entries[t] = t % 5;
    open_store(&f, false);
    begin(&f, 0, entries);
    for (uint32_t i = 0; i < PARTS; i++)
        ck_assert_int_eq(fold(&f, 0, 0, (i + (uint32_t)_i) % PARTS, NUMBER_FP32, 1), 0);
    update(&f, 0, 0);
    for (uint32_t e = 0; e < 5; e++)
        ck_assert(entry_of(&f, 0, e) == number_from_bf16(number_to_bf16(norm_at(0, 0, e < 2 ? 10 + e : 5 + e))));
    store_fixture_close(&f);
}

/* Rows of two tokens are compact: a part's norms are in the first four places of its six. */
TEST(shorter_rows_lie_closer)
{
    static const uint32_t entries[BATCH * 2] = {10, 11, 0, 1, 5, 6, 17, 18};
    struct store_fixture f;
    struct error err = {""};

    open_store(&f, false);
    ck_assert_int_eq(norms_open_step(&f.store.norms, 0, entries, 2, &err), 0);
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 1, 0, part, NUMBER_FP32, 1), 0);
    update(&f, 1, 0);
    for (uint32_t t = 0; t < BATCH * 2; t++)
        ck_assert(entry_of(&f, 1, entries[t]) == number_from_bf16(number_to_bf16(norm_at(1, 0, t / 4 * 6 + t % 4))));
    ck_assert_int_eq(norms_open_step(&f.store.norms, 1, entries, 2, &err), 0);
    const uint16_t *const found = gather(&f, 1, 1);
    for (uint32_t t = 0; t < TOKENS; t++)
        ck_assert_uint_eq(found[t], t < BATCH * 2 ? number_to_bf16(norm_at(1, 0, t / 4 * 6 + t % 4)) : 0xffff);
    store_fixture_close(&f);
}

/* Fenced: a step that does not count has no update. */
TEST(a_skipped_step_changes_no_entry)
{
    struct store_fixture f;

    open_store(&f, true);
    begin(&f, 0, some);
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 0, 0, part, NUMBER_FP32, 1), 0);
    begin(&f, 1, others);
    for (uint32_t part = 0; part < PARTS; part++)
        ck_assert_int_eq(fold(&f, 0, 1, part, NUMBER_FP32, 1), 0);
    update(&f, 0, 1);
    ck_assert(entry_of(&f, 0, 7) == 0 && entry_of(&f, 0, 8) == 0 && entry_of(&f, 0, 19) == 0);
    ck_assert(entry_of(&f, 0, 0) == number_from_bf16(number_to_bf16(norm_at(0, 1, 0))));
    store_fixture_close(&f);
}

TEST(a_slice_that_is_not_finite_is_refused)
{
    struct store_fixture f;

    open_store(&f, false);
    begin(&f, 0, others);
    ck_assert_int_eq(fold(&f, 0, 0, 0, NUMBER_FP32, INFINITY), -EDOM);
    ck_assert_int_eq(fold(&f, 0, 0, 0, NUMBER_BF16, NAN), -EDOM);
    /* The largest of fp32 is beyond bf16's, to which it is cut. */
    ck_assert_int_eq(fold(&f, 0, 0, 0, NUMBER_FP32, 3e38f / norm_at(0, 0, 0)), -EDOM); /* others overflow */
    ck_assert_int_eq(fold(&f, 0, 0, 0, NUMBER_FP32, 3.4e38f / norm_at(0, 0, 5)), 0);
    ck_assert_int_eq(fold(&f, 0, 0, 1, NUMBER_FP32, 1), 0);
    update(&f, 0, 0);
    ck_assert(entry_of(&f, 0, 5) == number_from_bf16(0x7f7f));
    store_fixture_close(&f);
}

/* They are a client's, in memory that it may write at any time. */
TEST(an_entry_beyond_the_data_is_refused)
{
    struct store_fixture f;
    uint32_t entries[TOKENS];
    struct error err = {""};

    open_store(&f, false);
    memcpy(entries, some, sizeof entries);
    entries[11] = ENTRIES;
    ck_assert_int_eq(norms_open_step(&f.store.norms, 4, entries, SEQ, &err), -EINVAL);
    ck_assert_str_eq(err.text, "step 5 has token 20 of the training data, which have 20");
    entries[11] = ENTRIES - 1;
    ck_assert_int_eq(norms_open_step(&f.store.norms, 4, entries, SEQ, &err), 0);
    store_fixture_close(&f);
}

/* Of 2 maps: 20 entries and 12 tokens of 2 bytes, and 8 bytes; the entries of two minibatches. */
TEST(the_ledger_has_what_was_planned)
{
    struct store_fixture f;
    struct plan_host host;
    const uint64_t bytes = MAPS * ((ENTRIES + TOKENS) * 2 + 8) + 2 * TOKENS * 4;

    open_store(&f, false);
    ck_assert_uint_eq(f.ledger.rows[LEDGER_NORMS].current, bytes);
    plan_host(&host, &f.model, &(struct plan_host_setting){.goal = goal, .n_workers = 1});
    ck_assert_uint_eq(host.bytes[LEDGER_NORMS], bytes);
    plan_remember_norms(&f.model, &(struct plan_goal){.purpose = PLAN_TRAIN, .n_parts = 1});
    plan_host(&host, &f.model, &(struct plan_host_setting){.goal = goal, .n_workers = 1});
    ck_assert_uint_eq(host.bytes[LEDGER_NORMS], 0);
    plan_remember_norms(&f.model, &goal);
    store_fixture_close(&f);
}

static void fill(struct store_fixture *f)
{
    begin(f, 0, some);
    for (uint32_t map = 0; map < MAPS; map++) {
        for (uint32_t part = 0; part < PARTS; part++)
            ck_assert_int_eq(fold(f, map, 0, part, NUMBER_FP32, 1), 0);
        update(f, map, 0);
    }
}

TEST(a_checkpoint_keeps_them)
{
    struct store_fixture f, loaded;

    open_store(&f, false);
    open_store(&loaded, false);
    fill(&f);
    store_fixture_reload(&loaded, &f);
    for (uint32_t map = 0; map < MAPS; map++)
        ck_assert_mem_eq(norms_of(&f.store.norms, unit_of(&f, map), 0),
                         norms_of(&loaded.store.norms, unit_of(&loaded, map), 0), ENTRIES * sizeof(uint16_t));
    ck_assert(entry_of(&loaded, 1, 7) > 0);
    store_fixture_close(&f);
    store_fixture_close(&loaded);
}

/* Of several hosts, by hand as above; one that has none takes nothing for them, and looks at no entry. Each reads its
 * own from the checkpoint of one host. */
TEST_EACH(a_host_has_those_of_its_own_units, 2)
{
    const uint32_t n_hosts = 2 + (uint32_t)_i;
    const int weights = store_fixture_file(), moments = store_fixture_file();
    const struct file file = file_own(moments);
    struct store_fixture whole, host;
    struct error err = {""};
    uint32_t n_maps = 0;

    open_store(&whole, false);
    fill(&whole);
    store_fixture_write(&whole.store, weights, moments, NULL);
    for (uint32_t h = 0; h < n_hosts; h++) {
        struct store_fixture *const f = &host;
        struct plan_host plan;
        uint32_t n_own = 0;
        open_host(f, false, h, n_hosts);
        ck_assert_msg(store_fixture_load_moments(&f->store, &file, &err) == 0, "%s", err.text);
        for (uint32_t map = 0; map < MAPS; map++) {
            if (!store_owns(&f->store, number_of(f, map)))
                continue;
            n_own++;
            ck_assert_mem_eq(norms_of(&whole.store.norms, unit_of(&whole, map), 0),
                             norms_of(&f->store.norms, unit_of(f, map), 0), ENTRIES * sizeof(uint16_t));
        }
        const uint64_t bytes = n_own ? n_own * ((ENTRIES + TOKENS) * 2 + 8) + 2 * TOKENS * 4 : 0;
        const struct plan_host_setting setting = {.goal = goal,
                                                  .n_workers = 1,
                                                  .replay = true,
                                                  .own_first = f->store.options.own_first,
                                                  .n_own = f->store.options.n_own,
                                                  .own_parts = 1};
        plan_host(&plan, &f->model, &setting);
        ck_assert_uint_eq(f->ledger.rows[LEDGER_NORMS].current, bytes);
        ck_assert_uint_eq(plan.bytes[LEDGER_NORMS], bytes);
        ck_assert_int_eq(norms_open_step(&f->store.norms, 1, some, SEQ, &err), 0);
        n_maps += n_own;
        store_fixture_close(f);
    }
    ck_assert_uint_eq(n_maps, MAPS);
    store_fixture_close(&whole);
    close(weights), close(moments);
}

/* What is in the file of moments is another's, or damaged. */
TEST(other_data_s_norms_are_refused)
{
    struct store_fixture f, other;
    struct error err = {""};

    open_store(&f, false);
    fill(&f);
    const int weights = store_fixture_file(), moments = store_fixture_file();
    const struct file file = file_own(moments);
    store_fixture_write(&f.store, weights, moments, NULL);
    open_store(&other, false);
    other.store.norms.n_entries = ENTRIES - 1;
    ck_assert_int_eq(store_fixture_load_moments(&other.store, &file, &err), -EINVAL);
    ck_assert_str_eq(err.text,
                     "norms.transformer.h.0.mlp.c_proj.weight is BF16 of 20 numbers, not one in BF16 for each of "
                     "the 19 tokens of the training data: are they other data?");
    store_fixture_close(&other);

    norms_of(&f.store.norms, unit_of(&f, 1), 0)[3] = 0x7fc0; /* NaN */
    store_fixture_write(&f.store, weights, moments, NULL);
    open_store(&other, false);
    ck_assert_int_eq(store_fixture_load_moments(&other.store, &file, &err), -EINVAL);
    ck_assert_str_eq(err.text,
                     "norms.transformer.h.1.mlp.c_proj.weight has a value that is no norm: the file is damaged");
    store_fixture_close(&other);
    store_fixture_close(&f);
    close(weights), close(moments);
}
