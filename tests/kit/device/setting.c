#include "tests/kit/device/setting.h"

#include "proto/model/decoder.h"
#include "proto/model/encoder.h"
#include "proto/model/family.h"
#include "proto/model/gpt2.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"
#include "proto/wire/message.h"
#include "tests/families/alternating.h"
#include "tests/kit/device/backend.h"

#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

const uint32_t setting_parts[ARRAY_LINK_PARTS] = {0, 1, 2, 3, 4, 5, 6, 7};

const struct model_config *setting_config(int i)
{
    static const struct model_config configs[SETTING_CONFIGS] = {
        {&family_gpt2, 2, 3, 12, 20, 9, 17, MODEL_GELU_NEW, true, 1e-5f, 0, GPT2_ON(scale_attention)},
        {&family_gpt2, 1, 1, 14, 24, 9, 11, MODEL_GELU, false, 1e-5f, 0, .own = {{0}}},
        {&family_gpt2, 3, 5, 15, 7, 9, 13, MODEL_RELU, true, 1e-3f, 0, GPT2_ON(scale_attention),
         GPT2_ON(scale_by_layer)},
        {&family_gpt2, 2, 2, 10, 16, 9, 12, MODEL_GELU_NEW, false, 1e-5f, 0, .own = {{0}}},
    };
    static struct model_config drops;

    if (i < SETTING_CONFIGS - 1)
        return &configs[i];
    drops = configs[i];
    *gpt2_edit(&drops) = (struct gpt2_config){.scale_attention = true,
                                              .dropout_attention = 0.2f,
                                              .dropout_embedding = 0.3f,
                                              .dropout_residual = 0.1f};
    return &drops;
}

double setting_random(uint64_t *state)
{
    *state ^= *state << 13, *state ^= *state >> 7, *state ^= *state << 17;
    return (double)(*state >> 11) / (double)(UINT64_C(1) << 52) - 1;
}

/* Rows of different length and their labels; every fourth has none. */
static void draw_rows(struct setting *s, uint64_t *state)
{
    const struct model_config *c = &s->model.config;

    s->rows = calloc(s->batch, sizeof *s->rows);
    ck_assert_ptr_nonnull(s->rows);
    for (uint32_t row = 0; row < s->batch; row++) {
        const uint32_t n = 1 + setting_below(state, s->seq), at = row * s->seq;
        const float number = (float)setting_random(state);
        s->rows[row] = (struct plan_row){n, encoder_of(c)->n_segments > 1 ? setting_below(state, n + 1) : n};
        for (uint32_t t = 0; t < s->seq; t++) {
            s->ids[at + t] = setting_below(state, c->vocabulary);
            s->labels[at + t] = PLAN_NO_LABEL;
        }
        if (row % 4 == 2)
            continue;
        s->labels[at] = setting_below(state, c->n_labels);
        if (c->regression)
            memcpy(&s->labels[at], &number, sizeof number);
        s->n_valid++;
    }
}

void setting_open(struct setting *s, const struct model_config *config, uint32_t batch, uint32_t seq)
{
    uint64_t state = 88172645463325252u;

    *s = (struct setting){.batch = batch, .seq = seq};
    ck_assert_int_eq(model_init(&s->model, config, NULL), 0);
    s->weights = calloc(s->model.segment_n, sizeof *s->weights);
    s->ids = calloc((size_t)batch * seq, sizeof *s->ids);
    s->labels = calloc((size_t)batch * seq, sizeof *s->labels);
    ck_assert(s->weights && s->ids && s->labels);
    for (uint32_t p = 0; p < s->model.n_pieces; p++) {
        const struct model_piece *piece = &s->model.pieces[p];
        const struct model_tensor *t = &s->model.tensors[piece->tensor];
        const struct model_unit *unit = s->model.units;
        while (p >= unit->first_piece + unit->n_pieces)
            unit++;
        for (uint64_t i = 0; i < piece->n; i++)
            s->weights[unit->offset + piece->offset + i] =
                (float)((t->init == MODEL_INIT_ONE) +
                        setting_random(&state) * (t->n_dims == 2 ? 0.8 / sqrt(config->width / 12.0) : 0.2));
    }
    if (config->n_labels)
        draw_rows(s, &state);
    for (size_t i = 0; i < (size_t)batch * seq && !s->rows; i++) {
        s->ids[i] = setting_below(&state, config->vocabulary);
        s->labels[i] = i % 6 == 4 ? PLAN_NO_LABEL : setting_below(&state, config->vocabulary);
        s->n_valid += s->labels[i] != PLAN_NO_LABEL;
    }
}

void setting_fill(struct setting *s)
{
    for (uint32_t row = 0; row < s->batch; row++) {
        uint32_t *const last = &s->labels[(row + 1) * s->seq - 1];
        if (s->rows) {
            s->rows[row].second += s->rows[row].second == s->rows[row].n_tokens ? s->seq - s->rows[row].n_tokens : 0;
            s->rows[row].n_tokens = s->seq;
        } else if (*last == PLAN_NO_LABEL) {
            *last = 0, s->n_valid++;
        }
    }
}

void setting_close(struct setting *s)
{
    model_free(&s->model);
    free(s->weights);
    free(s->ids);
    free(s->labels);
    free(s->rows);
}

uint32_t setting_below(uint64_t *state, uint32_t n)
{
    return (uint32_t)((setting_random(state) + 1) / 2 * n) % n;
}

static const struct family *find_family(const char *name)
{
    const struct family *const *family = model_families;

    while (strcmp((*family)->model_type, name) != 0)
        family++;
    return *family;
}

/* The same sizes, of BERT or RoBERTa; with a label to predict or without. */
static struct model_config random_encoder(struct model_config c, uint64_t *state)
{
    const uint32_t first = setting_below(state, 2) ? 2 : 0;
    const struct gpt2_config gpt2 = *gpt2_of(&c);

    c.family = find_family(first ? "roberta" : "bert");
    c.n_labels = setting_below(state, 4);
    c.regression = c.n_labels == 1;
    c.tied = c.n_labels == 0;
    *encoder_edit(&c) = (struct encoder_config){.n_segments = 1 + setting_below(state, 2),
                                                .n_rows = first + c.n_positions,
                                                .first_row = first,
                                                .dropout_attention = gpt2.dropout_attention,
                                                .dropout_hidden = gpt2.dropout_residual,
                                                .dropout_classifier = gpt2.dropout_embedding};
    return c;
}

/* The same sizes, of a family whose blocks differ: a period of them, or more. */
static struct model_config random_alternating(struct model_config c, uint64_t *state)
{
    c.family = find_family("alternating");
    c.n_layers += 3;
    struct alternating_config *a = alternating_edit(&c);
    *a = (struct alternating_config){.decoder.rope.base = 10000};
    a->decoder.n_kv_heads = setting_below(state, 2) ? c.n_heads : 1;
    a->decoder.head_width = 2 * (1 + setting_below(state, 4));
    a->wide_width = 1 + setting_below(state, 60);
    a->decoder.window = 1 + setting_below(state, 8);
    a->n_window_kv_heads = setting_below(state, 2) ? c.n_heads : 1;
    a->window_head_width = 2 * (1 + setting_below(state, 4));
    c.family->complete(&c);
    return c;
}

/* The same sizes, of a family whose blocks are of several layers. */
static struct model_config random_layered(struct model_config c, const char *family, uint64_t *state)
{
    c.family = find_family(family);
    c.n_layers = (c.n_layers + 1) / 2;
    c.inner_width = 4 * ((c.inner_width + 3) / 4);
    *decoder_edit(&c) = (struct decoder_config){.n_kv_heads = setting_below(state, 2) ? c.n_heads : 1,
                                                .head_width = 2 * (1 + setting_below(state, 4)),
                                                .rope = {.base = 10000}};
    c.family->complete(&c);
    return c;
}

/* Of a family that tests alone have. */
static struct model_config random_own(struct model_config c, uint64_t *state)
{
    static const char *const layered[] = {"chunked", "experts", "part_norm", NULL};
    const char *family = layered[setting_below(state, sizeof layered / sizeof *layered)];

    return family ? random_layered(c, family, state) : random_alternating(c, state);
}

struct model_config setting_classifier(uint32_t n_labels, uint32_t n_segments)
{
    struct model_config config = *setting_config(0);

    config.family = find_family("bert");
    config.n_labels = n_labels;
    config.regression = n_labels == 1;
    config.tied = false;
    *encoder_edit(&config) = (struct encoder_config){.n_segments = n_segments, .n_rows = config.n_positions};
    return config;
}

struct model_config setting_random_config(uint64_t *state)
{
    const uint32_t heads = 1 + setting_below(state, 3);
    const bool cut = setting_below(state, 2) && !backend_get()->simulated, drops = setting_below(state, 3) == 0;
    struct model_config c = {.family = &family_gpt2,
                             .n_layers = 1 + setting_below(state, 4),
                             .n_heads = heads,
                             .width = heads * (1 + setting_below(state, cut ? 3 : 8)),
                             .inner_width = 1 + setting_below(state, 40),
                             .n_positions = 12,
                             .vocabulary = cut ? 8193 + setting_below(state, 10000) : 2 + setting_below(state, 60),
                             .activation = (enum model_activation)setting_below(state, 3),
                             .tied = setting_below(state, 2),
                             GPT2_ON(scale_attention),
                             .norm_epsilon = 1e-5f};

    if (drops)
        *gpt2_edit(&c) = (struct gpt2_config){.scale_attention = true,
                                              .dropout_attention = 0.1f,
                                              .dropout_embedding = 0.2f,
                                              .dropout_residual = 0.3f};
    switch (setting_below(state, 3)) {
    case 0:
        return random_encoder(c, state);
    case 1:
        return random_own(c, state);
    default:
        return c;
    }
}

/* Segments of layers, in the place of what blocks keep. */
static void choose_cuts(struct plan_choice *choice, const struct model *model, uint64_t *state)
{
    memset(choice->keeping, 0, sizeof choice->keeping);
    for (uint32_t layer = 1; layer < model->n_layers && choice->n_cuts < PLAN_MAX_CUTS; layer++)
        if (plan_may_cut(model, layer) && setting_below(state, 2))
            choice->cuts[choice->n_cuts++] = layer;
}

void setting_choose(struct plan_choice *choice, const struct model *model, uint64_t *state)
{
    choice->host_stash = setting_below(state, 2), choice->n_cuts = 0;
    for (uint32_t c = 0; c < model->n_classes; c++) {
        struct plan_keeping *keeping = &choice->keeping[c];
        keeping->n_kept = choice->host_stash ? 0 : setting_below(state, model->classes[c].n_blocks + 1);
        keeping->kept = keeping->n_kept ? 1 + setting_below(state, MODEL_KEEPS_ALL) : MODEL_KEEPS_NOTHING;
        keeping->kept_below = keeping->n_kept ? setting_below(state, MODEL_KEEPINGS) : MODEL_KEEPS_NOTHING;
    }
    choice->n_weight_buffers = 1 + setting_below(state, 3);
    choice->n_resident = setting_below(state, 2) ? setting_below(state, plan_count_uploaded(model) + 1) : 0;
    choice->whole_head = setting_below(state, 2);
    choice->n_sums = setting_below(state, 2) ? setting_below(state, PLAN_MAX_SUMS + 1) : 0;
    if (setting_below(state, 2))
        choose_cuts(choice, model, state);
}

struct device_worker_options setting_options(const struct setting *s, uint32_t part_rows, uint32_t microbatch)
{
    return (struct device_worker_options){.config = s->model.config,
                                          .ops = backend_get()->ops,
                                          .setting = {.backend = backend_get()->plan,
                                                      .attention = backend_get()->attention,
                                                      .convolution = backend_get()->convolution,
                                                      .goal = {.purpose = PLAN_TRAIN,
                                                               .seq = s->seq,
                                                               .batch = s->batch,
                                                               .precision = s->precision,
                                                               .packs = s->positions != NULL},
                                                      .share_rows = s->batch,
                                                      .part_rows = part_rows,
                                                      .n_threads = 1},
                                          .choice = {.microbatch = microbatch ? microbatch : part_rows,
                                                     .n_weight_buffers = 2},
                                          .seed = SETTING_SEED};
}

void setting_step(struct array_link *link, const struct setting *s, const struct device_worker_options *options,
                  uint32_t n_parts, const uint32_t *parts)
{
    struct device_worker worker;
    struct ledger ledger = {0};
    struct error err = {""};
    struct device_share share = setting_share(s, n_parts);

    share.parts = parts;
    ck_assert_msg(device_worker_init(&worker, options, &ledger, &err) == 0, "%s", err.text);
    void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
    memset(stash, 0xff, worker.plan.host_stash_bytes); /* NaN: nothing is read before it is written */
    if (s->lends) {
        const size_t bytes = array_link_lend(link);
        worker.ops->lend(worker.dev, link->lent, bytes, false, &err);
    }
    link->version = SETTING_STEP;
    link->precision = options->setting.goal.precision;
    link->grad = options->setting.goal.grad;
    link->n_buffers = options->choice.n_weight_buffers;
    ck_assert_msg(device_worker_step(&worker, &share, &array_link, link, &err) == 0, "%s", err.text);
    device_worker_free(&worker);
    free(stash);
}

void setting_step_whole(struct array_link *link, const struct setting *s, const struct device_worker_options *options)
{
    array_link_init(link, &s->model, s->weights);
    setting_step(link, s, options, s->batch / options->setting.part_rows, setting_parts);
}

void setting_check_bits(const struct array_link *same, const struct setting *s,
                        const struct device_worker_options *options)
{
    struct array_link link;

    setting_step_whole(&link, s, options);
    ck_assert_msg(setting_same_bits(link.gradient, same->gradient, s->model.segment_n), "another gradient");
    ck_assert_mem_eq(link.losses, same->losses, sizeof link.losses);
    array_link_free(&link);
}

double setting_evaluate(const struct setting *s, const struct device_worker_options *options,
                        const struct device_evaluation *evaluation, unsigned *n_pulls)
{
    struct device_worker worker;
    struct ledger ledger = {0};
    struct array_link link;
    struct error err = {""};
    double sum = 0;

    ck_assert_msg(device_worker_init(&worker, options, &ledger, &err) == 0, "%s", err.text);
    void *stash = worker.stash = malloc(worker.plan.host_stash_bytes);
    array_link_init(&link, &s->model, s->weights);
    link.version = evaluation->version;
    link.n_buffers = options->choice.n_weight_buffers;
    ck_assert_int_eq(device_worker_evaluate(&worker, evaluation, &array_link, &link, &sum, &err), 0);
    ck_assert_uint_eq(link.n_waits, link.n_pulls);
    if (n_pulls)
        *n_pulls = link.n_pulls;
    array_link_free(&link);
    device_worker_free(&worker);
    free(stash);
    return sum;
}

struct device_rows setting_rows(const struct setting *s)
{
    return (struct device_rows){.n_tokens = s->seq,
                                .ids = s->ids,
                                .labels = s->labels,
                                .positions = s->positions,
                                .rows = s->rows,
                                .norms = s->norms};
}

struct device_share setting_share(const struct setting *s, uint32_t n_parts)
{
    return (struct device_share){.step = SETTING_STEP,
                                 .n_valid = s->n_valid,
                                 .loss_scale = s->loss_scale,
                                 .n_parts = n_parts,
                                 .parts = setting_parts,
                                 .rows = setting_rows(s)};
}

struct reference_batch setting_batch(const struct setting *s)
{
    return (struct reference_batch){.ids = s->ids,
                                    .labels = s->labels,
                                    .n_rows = s->batch,
                                    .seq = s->seq,
                                    .dropout = true,
                                    .seed = SETTING_SEED,
                                    .step = SETTING_STEP};
}

bool setting_same_bits(const float *a, const float *b, size_t n)
{
    return memcmp(a, b, n * sizeof *a) == 0;
}

double setting_distance(const struct model *model, const float *a, const float *b)
{
    struct reference_gpt2 x, y;
    double worst = 0;

    reference_gpt2_init(&x, model, a);
    reference_gpt2_init(&y, model, b);
    for (uint32_t t = 0; t < model->n_tensors; t++) {
        double difference = 0, size = 0;
        for (uint64_t i = 0; i < model->tensors[t].n; i++) {
            difference += pow(x.tensors[t][i] - y.tensors[t][i], 2);
            size += pow(y.tensors[t][i], 2);
        }
        worst = fmax(worst, sqrt(difference / size));
    }
    reference_gpt2_free(&x);
    reference_gpt2_free(&y);
    return worst;
}
