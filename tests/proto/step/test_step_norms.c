/* The norms that a step appends to its contributions, in whole steps on a device. */
#include "proto/model/norms.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/segments.h"
#include "proto/step/layers.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single, slow, on_cuda)

enum { BATCH = 4, SEQ = 9, ENTRIES = 100, BLOCKS = 3, WIDTH = 15 };

/* GPT-2 with relu: of each block, the second map of its feed-forward layer is sampled. */
static void open_model(struct setting *s)
{
    setting_open(s, setting_config(2), BATCH, SEQ);
}

static struct device_worker_options remembering(struct setting *s, uint32_t part_rows, uint32_t microbatch)
{
    struct device_worker_options options = setting_options(s, part_rows, microbatch);

    options.setting.goal.sampling.share = 0.5;
    options.setting.goal.entries = ENTRIES;
    options.setting.goal.n_parts = BATCH / part_rows;
    model_approximate(&s->model, &(struct model_approximation){.samples = true});
    plan_remember_norms(&s->model, &options.setting.goal);
    return options;
}

/* One step on rows of n_tokens, the first ones of the setting, after a step on whole rows, whose norms are left on the
 * device. */
static void step(struct array_link *link, const struct setting *s, const struct device_worker_options *options,
                 uint32_t n_tokens)
{
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};
    struct device_share share = setting_share(s, BATCH / options->setting.part_rows);

    ck_assert_msg(device_worker_init(&worker, options, &ledger, &err) == 0, "%s", err.text);
    void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
    for (int last = 0; last < 2; last++) {
        share.rows.n_tokens = last ? n_tokens : SEQ;
        array_link_init(link, &s->model, s->weights);
        link->version = SETTING_STEP;
        link->n_buffers = options->choice.n_weight_buffers;
        link->grad = options->setting.goal.grad;
        ck_assert_msg(device_worker_step(&worker, &share, &array_link, link, &err) == 0, "%s", err.text);
        if (!last)
            array_link_free(link);
    }
    device_worker_free(&worker);
    free(stash);
}

/* The gradient of the second map's bias in a block, as a part has it. */
static const float *bias_gradient(const struct array_link *link, uint32_t part, uint32_t block)
{
    const struct model *m = link->model;
    const struct model_unit *unit = &m->units[m->visits[m->layers[m->first_block + block].first_visit]];

    for (uint32_t i = 0; i < unit->n_pieces; i++) {
        const struct model_piece *piece = &m->pieces[unit->first_piece + i];
        if (strstr(m->tensors[piece->tensor].name, "mlp.c_proj.bias"))
            return link->parts[part] + unit->offset + piece->offset;
    }
    ck_abort_msg("block %u has no such bias", block);
}

static double norm_of(const float *x)
{
    double squares = 0;

    for (int i = 0; i < WIDTH; i++)
        squares += (double)x[i] * (double)x[i];
    return sqrt(squares);
}

/* A bias's gradient is the sum of dy over tokens. Of a part of one row of one token, it is dy. Its norm sums 15 squares
 * in fp32. What the row has no token for is 0. */
TEST(of_a_row_of_one_token_it_is_the_norm_of_the_bias_s_gradient)
{
    struct setting s;
    struct array_link link;

    open_model(&s);
    const struct device_worker_options options = remembering(&s, 1, 1);
    step(&link, &s, &options, 1);
    ck_assert_uint_eq(s.model.n_norm_maps, BLOCKS);
    for (uint32_t part = 0; part < BATCH; part++)
        for (uint32_t block = 0; block < BLOCKS; block++) {
            const float *const norms = link.norms[part] + block * SEQ;
            const double want = norm_of(bias_gradient(&link, part, block));
            ck_assert(want > 0);
            ck_assert_double_le(fabs((double)norms[0] - want), 1e-6 * want);
            for (int i = 1; i < SEQ; i++)
                ck_assert(norms[i] == 0);
        }
    array_link_free(&link);
    setting_close(&s);
}

/* In the topmost block, dy of a token depends on that token's label alone, as no later layer mixes tokens. So with this
 * one label the bias's gradient is dy of that token, and that of every other token is 0. T stays the whole minibatch's.
 * The simulated device takes every seventh token: some of each row, one of them without a label. */
TEST(in_the_topmost_block_it_is_that_of_each_token)
{
    struct setting s;
    struct array_link all, one;
    uint32_t labels[BATCH * SEQ];

    open_model(&s);
    const struct device_worker_options options = remembering(&s, 2, 1);
    step(&all, &s, &options, SEQ);
    memcpy(labels, s.labels, sizeof labels);
    for (uint32_t row = 0; row < BATCH; row++)
        for (uint32_t t = 0; t < SEQ; t++) {
            if (backend_get()->simulated && (row * SEQ + t) % 7)
                continue;
            const uint32_t part = row / 2;
            const float norm = all.norms[part][((BLOCKS - 1) * 2 + row % 2) * SEQ + t];
            for (uint32_t i = 0; i < BATCH * SEQ; i++)
                s.labels[i] = i == row * SEQ + t ? labels[i] : PLAN_NO_LABEL;
            step(&one, &s, &options, SEQ);
            const double want = norm_of(bias_gradient(&one, part, BLOCKS - 1));
            ck_assert_double_le(fabs((double)norm - want), 1e-6 * want);
            ck_assert((want > 0) == (labels[row * SEQ + t] != PLAN_NO_LABEL));
            array_link_free(&one);
        }
    array_link_free(&all);
    setting_close(&s);
}

/* Whatever the budget allows, and with other microbatches, parts and lengths of the row's place: the same norms. */
TEST(no_choice_changes_a_norm)
{
    struct setting s;
    struct array_link link, other;
    uint64_t state = 362436069u;

    open_model(&s);
    struct device_worker_options options = remembering(&s, 2, 1);
    step(&link, &s, &options, 7);
    for (int k = 0; k < (backend_get()->simulated ? 2 : SANITIZED ? 4 : 30); k++) {
        setting_choose(&options.choice, &s.model, &state);
        options.choice.microbatch = 1 + setting_below(&state, 2);
        step(&other, &s, &options, 7);
        for (uint32_t part = 0; part < 2; part++)
            for (uint32_t i = 0; i < BLOCKS * 2 * SEQ; i++)
                ck_assert_double_le(fabs((double)other.norms[part][i] - (double)link.norms[part][i]),
                                    1e-5 * (double)link.norms[part][i]);
        array_link_free(&other);
    }
    const struct device_worker_options whole = remembering(&s, BATCH, 3);
    step(&other, &s, &whole, 7);
    for (uint32_t block = 0; block < BLOCKS; block++)
        for (uint32_t i = 0; i < BATCH * 7; i++) /* rows are compact, and 7 tokens long: of two parts, 14 each */
            ck_assert_double_le(fabs((double)other.norms[0][block * BATCH * SEQ + i] -
                                     (double)link.norms[i / 14][block * 2 * SEQ + i % 14]),
                                1e-5 * (double)other.norms[0][block * BATCH * SEQ + i]);
    array_link_free(&other);
    array_link_free(&link);
    setting_close(&s);
}

/* As contributions travel in bf16: rounded to nearest. */
TEST(they_travel_in_the_gradient_s_type)
{
    struct setting s;
    struct array_link wide, narrow;

    open_model(&s);
    struct device_worker_options options = remembering(&s, 2, 1);
    step(&wide, &s, &options, SEQ);
    options.setting.goal.grad = NUMBER_BF16;
    step(&narrow, &s, &options, SEQ);
    for (uint32_t part = 0; part < 2; part++)
        for (uint32_t i = 0; i < BLOCKS * 2 * SEQ; i++)
            ck_assert(narrow.norms[part][i] == number_from_bf16(number_to_bf16(wide.norms[part][i])));
    array_link_free(&wide);
    array_link_free(&narrow);
    setting_close(&s);
}

/* The planned bytes: of each set, an entry in bf16 for each token of the share, of the unit with the most maps. */
TEST(the_plan_has_room_for_one_unit_s)
{
    struct setting s;
    struct error err;
    struct device_worker worker;
    struct ledger ledger = {0};
    uint64_t bytes[2];

    open_model(&s);
    for (int with = 0; with < 2; with++) {
        struct device_worker_options options = remembering(&s, 2, 1);
        options.setting.goal.entries = with ? ENTRIES : 0;
        ck_assert_int_eq(device_worker_lay_out(&worker, &options, &ledger, &err), 0);
        bytes[with] = worker.plan.bytes[LEDGER_DATA];
        if (with)
            bytes[1] -= worker.plan.n_sets * BATCH * SEQ * sizeof(uint16_t);
        device_worker_free(&worker);
    }
    ck_assert_uint_eq(bytes[0], bytes[1]);
    setting_close(&s);
}

/* ---- what is known ---- */

/* What blocks of a step were given, on a device whose memory is the host's: of each, forward and backward. */
static struct {
    const uint16_t *norms; /* the minibatch's */
    uint32_t n_tokens, n_seen[2];
} seen;

static void see(const struct layer_pass *pass, int direction)
{
    const struct model_unit *unit = pass->unit;

    ck_assert_ptr_nonnull(pass->norms);
    ck_assert_uint_eq(unit->n_norm_maps, 1);
    for (uint32_t row = 0; row < pass->n_rows; row++)
        for (uint32_t t = 0; t < seen.n_tokens; t++, seen.n_seen[direction]++)
            ck_assert_uint_eq(
                pass->norms[(pass->norms_row + row) * seen.n_tokens + t],
                seen.norms[unit->first_norm_map * BATCH * SEQ + (pass->first_row + row) * seen.n_tokens + t]);
}

static void see_forward(const struct layer_pass *pass)
{
    see(pass, 0);
    layer_program.forward(pass);
}

static void see_backward(const struct layer_pass *pass)
{
    see(pass, 1);
    layer_program.backward(pass);
}

/* Blocks that a step computes again. */
static uint32_t count_again(const struct device_worker *worker)
{
    const struct model *model = &worker->model;
    uint32_t n = 0;

    for (uint32_t s = 0; s <= worker->plan.choice.n_cuts; s++) {
        const struct plan_visits again = plan_again_of(&worker->plan.choice, model, s);
        for (uint32_t visit = again.first; visit < again.first + again.n; visit++)
            n += model->layers[model->visit_layers[visit]].kind == MODEL_BLOCK;
    }
    return n;
}

/* Each microbatch of a block has the numbers of its own rows, forward and backward, whatever else is chosen: the last
 * parts of the minibatch, in rows that are shorter than the plan's. */
TEST_IF(a_block_is_given_what_is_known_of_its_rows, !backend_get()->cuda)
{
    static const struct layer_ops spy = {see_forward, see_backward};
    const struct layer_ops *const table[] = {[MODEL_EMBEDDING] = &layer_embedding,
                                             [MODEL_BLOCK] = &spy,
                                             [MODEL_SINGLE] = &layer_program,
                                             [MODEL_HEAD] = &layer_head};
    static const uint32_t parts[] = {1, 2, 3};
    uint16_t norms[BLOCKS * BATCH * SEQ];
    uint64_t state = 88675123u;
    struct setting s;

    open_model(&s);
    for (size_t i = 0; i < COUNT(norms); i++)
        norms[i] = (uint16_t)setting_below(&state, 1 << 15);
    s.norms = seen.norms = norms;
    uint32_t n_again = 0;
    struct device_worker_options options = remembering(&s, 1, 1);
    for (int k = 0; k < 20; k++) {
        struct device_worker worker;
        struct ledger ledger = {0};
        struct array_link link;
        struct error err = {""};
        struct device_share share = setting_share(&s, 3);
        seen.n_tokens = share.rows.n_tokens = 1 + setting_below(&state, SEQ);
        seen.n_seen[0] = seen.n_seen[1] = 0;
        share.parts = parts;
        setting_choose(&options.choice, &s.model, &state);
        array_link_init(&link, &s.model, s.weights);
        ck_assert_msg(device_worker_init(&worker, &options, &ledger, &err) == 0, "%s", err.text);
        worker.layers = table;
        void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
        link.version = SETTING_STEP;
        link.n_buffers = options.choice.n_weight_buffers;
        ck_assert_msg(device_worker_step(&worker, &share, &array_link, &link, &err) == 0, "%s", err.text);
        ck_assert_uint_eq(seen.n_seen[0], (BLOCKS + count_again(&worker)) * 3 * seen.n_tokens);
        ck_assert_uint_eq(seen.n_seen[1], BLOCKS * 3 * seen.n_tokens);
        n_again += count_again(&worker);
        device_worker_free(&worker);
        array_link_free(&link);
        free(stash);
    }
    ck_assert_uint_gt(n_again, 0);
    setting_close(&s);
}
