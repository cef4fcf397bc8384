/* The timeline of a step: clock, played daemon and prices, against the same steps of a worker on the simulated CUDA
 * device, which has queues and prices of its own, with a daemon played otherwise (tests/kit/device/timed.h); and
 * against the sum of its visits. */
#include "tests/kit/device/simulated.h"
#include "tests/kit/device/timed.h"

#include "proto/step/timeline.h"
#include "proto/plan/time/cost.h"
#include "proto/plan/time/work.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(cuda)

/* Times are the same in every build: under a sanitizer, where the simulated device is slow, a few steps will do. */
enum { N_DRAWN = SANITIZED ? 3 : 11 };

/* ---- against the simulated device ---- */

/* Width 16 to 64, 1 to 6 blocks, a vocabulary of 40 to 140. */
static struct model_config drawn_model(uint64_t *state)
{
    const uint32_t heads = 1 + setting_below(state, 2), width = heads * 8 * (2 + setting_below(state, 3));

    return (struct model_config)GPT2_CONFIG(1 + setting_below(state, 6), heads, width, 4 * width, 16,
                                            40 + setting_below(state, 100),
                                            .activation = (enum model_activation)setting_below(state, 3),
                                            .tied = setting_below(state, 2), GPT2_ON(scale_attention));
}

/* 10^from to 10^to. */
static double power(uint64_t *state, double from, double to)
{
    return pow(10, from + (setting_random(state) + 1) / 2 * (to - from));
}

/* Links and updates from far faster than products to far slower. */
static struct profile drawn_profile(uint64_t *state)
{
    const double flops = 1e9, attention = power(state, 8, 9);
    struct profile p = {.attention_flops = {{{attention, attention}}, {{attention / 2, attention / 2}}},
                        .link_bytes_per_s = power(state, 6.5, 9),
                        .memory_bytes_per_s = power(state, 9, 10),
                        .update_parameters_per_s = power(state, 5.5, 8)};

    p.norm_bytes_per_s[0] = p.memory_bytes_per_s / 2, p.norm_bytes_per_s[1] = p.memory_bytes_per_s / 3;
    for (int i = 0; i < PROFILE_DIRECTIONS * PROFILE_TYPES; i++) /* all rows here are short, of narrow heads */
        p.attention_by_shape[i / PROFILE_TYPES][ATTENTION_PLAIN][i % PROFILE_TYPES][i % PROFILE_KEYS][0][0] =
            attention / (2 + i);
    for (int i = 0; i < PROFILE_ROWS; i++) {
        p.matmul_flops[NUMBER_FP32][i] = flops / (4 - i), p.matmul_flops[NUMBER_BF16][i] = 6 * flops / (4 - i);
        for (int j = 0; j < PROFILE_NARROW; j++) /* all models here are narrow */
            p.narrow_flops[j][NUMBER_BF16][i] = p.matmul_flops[NUMBER_BF16][i] / (3 - j);
    }
    return p;
}

struct drawn {
    struct setting s;
    struct timed_options options;
    struct plan_host_setting host;
    struct timed_price prices[2];
};

/* Bytes that the optimizer touches, by hand, of the 28 that profiles measure: a fold with one part is the update too;
 * of parts each adds to both moments, then weights are updated; what is tied is added up first, of parts by visit, and
 * then the one sum takes in the other. */
static void set_prices(struct drawn *d, uint32_t n_parts)
{
    const double grad = (double)number_bytes(d->host.goal.grad);
    const struct timed_price whole = {(grad + 24) / 28, 0}, in_parts = {(grad + 16) / 28, 16.0 / 28};

    d->prices[0] = n_parts == 1 ? whole : in_parts;
    d->prices[1] = (struct timed_price){(grad + 8) / 28, (24.0 + 4 + (n_parts == 1 ? 0 : 12)) / 28};
    d->options.prices = d->prices;
}

/* vocabulary: 0, or so large that the head has several units, whose gradient is added up in a stash on the host. */
static void draw(struct drawn *d, int seed, uint32_t vocabulary)
{
    uint64_t state = 0x9e3779b97f4a7c15u + (uint64_t)seed * 77;
    struct model_config config = drawn_model(&state);
    const uint32_t part_rows = 1 + setting_below(&state, 4), n_parts = 1 + setting_below(&state, 2);
    struct plan_choice *choice = &d->options.worker.choice;

    *d = (struct drawn){.host = {.goal.n_parts = n_parts, .n_workers = 1}};
    config.vocabulary = vocabulary ? vocabulary : config.vocabulary;
    setting_open(&d->s, &config, n_parts * part_rows, 4 + setting_below(&state, 13));
    d->s.precision = setting_below(&state, 4) || vocabulary ? NUMBER_BF16 : NUMBER_FP32;
    d->host.goal.grad = setting_below(&state, 2) ? NUMBER_BF16 : NUMBER_FP32;
    d->options = (struct timed_options){.worker = timed_worker(&d->s, part_rows, 1 + setting_below(&state, part_rows)),
                                        .profile = drawn_profile(&state),
                                        .n_slots = 1 + setting_below(&state, ARRAY_LINK_SLOTS),
                                        .n_steps = 2};
    d->options.worker.setting.goal.grad = d->host.goal.grad;
    setting_choose(choice, &d->s.model, &state);
    if (vocabulary) {
        choice->host_stash = true, choice->n_cuts = 0;
        choice->keeping[0] = (struct plan_keeping){0}, choice->whole_head = false;
    }
    choice->n_sums = setting_below(&state, 7);
    set_prices(d, n_parts);
    d->options.profile.message_s = power(&state, -5, -2.5);
    d->options.profile.n_multiprocessors = seed % 2 ? 1 + setting_below(&state, 40) : 0;
}

static struct step_timeline timeline_of(const struct drawn *d)
{
    const struct device_worker_options *o = &d->options.worker;
    struct step_timeline out;
    struct plan plan;

    plan_lay_out(&plan, &d->s.model, &o->setting, &o->choice);
    const struct step_timeline_setting setting = {.plan = &plan,
                                                  .model = &d->s.model,
                                                  .host = &d->host,
                                                  .profile = &d->options.profile,
                                                  .n_slots = d->options.n_slots};
    ck_assert_int_eq(step_timeline(&out, &setting), 0);
    return out;
}

/* Each queue is at work or waits, all the time. */
static void check_sums(const struct step_timeline *line)
{
    for (int i = 0; i < PLAN_QUEUES; i++) {
        double all = line->queues[i].busy;
        for (int j = 0; j <= PLAN_QUEUES; j++)
            all += line->queues[i].waited[j];
        ck_assert_double_eq_tol(all, line->seconds, 1e-9 * line->seconds);
    }
}

SUITE_FIXTURE(simulated_load, NULL)

/* Of both steps, the second of which begins while the optimizer is at work on the first. Most draws agree to rounding.
 * What is left is found with a stash on the host behind a single buffer, and with an embedding of several units, each
 * of which the simulated device prices as if all tokens were its own. */
TEST(a_step_takes_as_long_as_on_the_simulated_device)
{
    unsigned n_bound[PLAN_QUEUES] = {0};

    for (int i = 0; i < N_DRAWN; i++) {
        struct drawn d;
        struct timed t;
        draw(&d, i, i == N_DRAWN - 1 ? 8320 : 0);
        timed_run(&t, &d.s, &d.options);
        const struct step_timeline line = timeline_of(&d);
        const double second = t.ends[1] - t.ends[0];
        ck_assert_uint_eq(t.report.unpriced, 0);
        check_sums(&line);
        ck_assert_msg(fabs(line.first / t.ends[0] - 1) <= 0.003 && fabs(line.seconds / second - 1) < 0.001,
                      "draw %d: %g and %g s, simulated %g and %g", i, line.first, line.seconds, t.ends[0], second);
        n_bound[line.binds]++;
        timed_free(&t);
        setting_close(&d.s);
    }
    for (int i = 0; i < PLAN_QUEUES; i++)
        ck_assert_msg(n_bound[i] > 0 || SANITIZED, "queue %d binds in no step", i);
}

/* A block of 17 slices, the last one shorter, of which each is folded by itself. The link is one on which contributions
 * take longer than all else. */
TEST_IF(a_unit_of_many_slices_takes_as_long_as_on_the_simulated_device, !SANITIZED)
{
    const struct model_config config =
        GPT2_CONFIG(1, 1, 32, 1 << 20, 4, 40, .activation = MODEL_RELU, .tied = true, GPT2_ON(scale_attention));
    struct drawn d = {.host = {.goal.n_parts = 1, .n_workers = 1}};
    struct timed t;

    setting_open(&d.s, &config, 2, 2);
    d.s.precision = NUMBER_BF16;
    d.options = (struct timed_options){.worker = timed_worker(&d.s, 2, 1),
                                       .profile = {.attention_flops = {{{1e9, 1e9}}, {{1e9, 1e9}}},
                                                   .link_bytes_per_s = 1e8,
                                                   .memory_bytes_per_s = 1e9,
                                                   .update_parameters_per_s = 1e8},
                                       .n_slots = ARRAY_LINK_SLOTS,
                                       .n_steps = 2};
    for (int i = 0; i < PROFILE_ROWS; i++)
        d.options.profile.matmul_flops[NUMBER_FP32][i] = d.options.profile.matmul_flops[NUMBER_BF16][i] = 1e9;
    set_prices(&d, 1);
    ck_assert_uint_gt(d.s.model.units[d.s.model.visits[d.s.model.layers[1].first_visit]].n_slices, 16);
    simulated.idle_products(true); /* their time counts, their values do not */
    timed_run(&t, &d.s, &d.options);
    simulated.idle_products(false);
    const struct step_timeline line = timeline_of(&d);
    ck_assert_double_eq_tol(line.first, t.ends[0], 0.003 * t.ends[0]);
    ck_assert_double_eq_tol(line.seconds, t.ends[1] - t.ends[0], 0.001 * line.seconds);
    timed_free(&t);
    setting_close(&d.s);
}

/* All is contributed before anything is updated: so no step of the fenced kind is shorter than its two halves. */
TEST(fenced_commit_updates_after_the_last_contribution)
{
    struct drawn d;

    draw(&d, 13, 0); /* the optimizer binds */
    const double parameters = (double)d.s.model.n_parameters, rate = d.options.profile.update_parameters_per_s;
    d.host.goal.fenced = true;
    const struct step_timeline line = timeline_of(&d);
    check_sums(&line);
    ck_assert_int_eq(line.binds, PLAN_QUEUE_OPTIMIZER);
    ck_assert_double_ge(line.seconds, parameters * (8 + 16 + 4) / 28 / rate); /* weights, moments, the sum */
    setting_close(&d.s);
}

/* Sums of contributions are made from their bytes, which a simulation has none of, and take no time in it. */
TEST(a_step_whose_contributions_have_sums_takes_as_long)
{
    struct drawn d;

    draw(&d, 13, 0);
    const struct step_timeline line = timeline_of(&d);
    d.options.worker.setting.goal.checks_memory = d.host.goal.checks_memory = true;
    d.options.worker.setting.backend = &plan_cuda; /* which sums what has arrived */
    ck_assert_double_eq(timeline_of(&d).seconds, line.seconds);
    setting_close(&d.s);
}

/* ---- sums ---- */

enum { PART_ROWS = 5, MICROBATCH = 2, N_PARTS = 2 }; /* microbatches of 2, 2 and 1 rows */

#define SIZES_OF(blocks)                                                                                               \
    "'num_hidden_layers': " #blocks ", 'num_attention_heads': 2, 'hidden_size': 16, 'intermediate_size': 32, "         \
    "'max_position_embeddings': 16, "

/* Each embedding and each head: heads of one unit and of several, padded or not; and what is frozen. Of the five blocks
 * two neighbours differ in nothing but what is frozen. */
static const struct {
    const char *config, *frozen;
    enum form base;
} models[] = {
    {SIZES_OF(5) "'model_type': 'qwen2', 'vocab_size': 48, 'tie_word_embeddings': true, 'sliding_window': 3, "
                 "'use_sliding_window': true, 'max_window_layers': 0, 'layer_types': ['full_attention', "
                 "'sliding_attention', 'sliding_attention', 'full_attention', 'full_attention']",
     "layers.1.*,layers.4.mlp.*", FORM_VALUES},
    {"'model_type': 'gpt2', 'n_layer': 2, 'n_head': 2, 'n_embd': 16, 'n_positions': 16, 'vocab_size': 45, "
     "'embd_pdrop': 0.1, 'attn_pdrop': 0.2, 'resid_pdrop': 0.3",
     NULL, FORM_VALUES},
    {"'model_type': 'gpt2', 'n_layer': 2, 'n_head': 2, 'n_embd': 16, 'n_positions': 16, 'vocab_size': 8201, "
     "'tie_word_embeddings': false",
     "wte.weight,wpe.weight,h.*,ln_f.*", FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'gemma', 'vocab_size': 8202, 'tie_word_embeddings': true, 'num_key_value_heads': 1, "
                 "'head_dim': 8",
     NULL, FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'gemma3_text', 'vocab_size': 43, 'tie_word_embeddings': false, "
                 "'final_logit_softcapping': 3.0, 'num_key_value_heads': 1, 'head_dim': 8, 'sliding_window': 3",
     NULL, FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'bert', 'vocab_size': 8203, 'pad_token_id': null", NULL, FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'bert', 'vocab_size': 41", "cls.predictions.bias,embeddings.position*", FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'roberta', 'vocab_size': 45, 'pad_token_id': 3, 'type_vocab_size': 1", NULL,
     FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'bert', 'vocab_size': 45, 'architectures': ['BertForSequenceClassification'], "
                 "'id2label': {'0': 'a', '1': 'b', '2': 'c'}",
     NULL, FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'bert', 'vocab_size': 45, 'architectures': ['BertForSequenceClassification'], "
                 "'id2label': {'0': 'a'}",
     NULL, FORM_VALUES},
    {SIZES_OF(2) "'model_type': 'roberta', 'vocab_size': 45, 'type_vocab_size': 1, "
                 "'architectures': ['RobertaForSequenceClassification'], 'id2label': {'0': 'a'}",
     "classifier.out_proj.bias", FORM_VALUES},
    {"'model_type': 'gpt2', 'n_layer': 2, 'n_head': 2, 'n_embd': 16, 'n_positions': 16, 'vocab_size': 8203, "
     "'tie_word_embeddings': false",
     "h.*.attn.c_attn.*,h.1.*.weight,wpe.*,lm_head.*", FORM_NF4},
    {SIZES_OF(2) "'model_type': 'bert', 'vocab_size': 8203", "embeddings.*,encoder.layer.0.*", FORM_INT8},
    {"'model_type': 't5', 'd_model': 16, 'd_kv': 4, 'd_ff': 24, 'num_layers': 2, 'num_decoder_layers': 1, 'num_heads': "
     "2, "
     "'vocab_size': 8201, 'dropout_rate': 0.1",
     NULL, FORM_VALUES},
    {"'model_type': 't5', 'd_model': 16, 'd_kv': 4, 'd_ff': 24, 'num_layers': 1, 'num_heads': 2, 'vocab_size': 45, "
     "'tie_word_embeddings': false, 'feed_forward_proj': 'gated-gelu'",
     "shared.*,encoder.*", FORM_VALUES},
};
enum { MODELS = COUNT(models), DRAWS = 8 /* of each */ };

static void open_model(struct model *model, int which)
{
    struct model_config parsed;
    char config[600];
    struct error err = {""};

    snprintf(config, sizeof config, "{%s}", models[which].config);
    for (char *c = config; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    ck_assert_msg(model_config_parse(&parsed, config, strlen(config), &err) == 0, "%s", err.text);
    if (model_has_source(&parsed))
        ck_assert_int_eq(model_divide_rows(&parsed, 5, 8, &err), 0);
    ck_assert_int_eq(model_init(model, &parsed, &err), 0);
    ck_assert(which > 0 || model->n_block_programs == 2);
    if (models[which].frozen)
        ck_assert_msg(model_freeze(model, models[which].frozen, model_base_of(models[which].base, NUMBER_FP32), &err) ==
                          0,
                      "%s", err.text);
}

/* What one part sends with the stash on the device: losses and contributions. */
static double bytes_of_part(const struct plan *plan, const struct model *model)
{
    double bytes = PART_ROWS * (double)model_predicted(model, plan->setting.goal.seq) * sizeof(double);

    for (uint32_t visit = 0; visit < model->n_visits; visit++)
        bytes += (double)model->units[model->visits[visit]].n_trained * (double)number_bytes(plan->setting.goal.grad);
    return bytes;
}

/* The step itself derives, so the timeline's computing and pulling are what it does: what the sum of visits adds for it
 * is that to rounding, in two workers' parts of three microbatches each, and nothing is pulled for it. */
TEST(what_is_derived_again_takes_time_and_no_pull)
{
    static const char text[] =
        "{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"basic\", \"depths\": [2, 1, 2, 1], "
        "\"embedding_size\": 8, \"image_size\": 16, \"stem\": \"cifar\"}";
    uint64_t state = 0x9e3779b97f4a7c15u;
    const struct profile profile = drawn_profile(&state);
    struct model_config config;
    struct step_timeline line[2];
    struct plan_cost cost[2];
    struct model model;
    struct plan plan;

    ck_assert_int_eq(model_config_parse(&config, text, strlen(text), NULL), 0);
    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    const struct plan_setting setting = {
        .backend = &plan_cuda,
        .goal = {.purpose = PLAN_TRAIN, .batch = N_PARTS * PART_ROWS, .seq = 256, .n_parts = N_PARTS},
        .share_rows = N_PARTS * PART_ROWS,
        .part_rows = PART_ROWS,
        .n_threads = 1};
    const struct plan_host_setting host = {.goal = setting.goal, .n_workers = 1};
    for (int derives = 0; derives < 2; derives++) {
        const struct plan_choice choice = {.microbatch = MICROBATCH, .n_weight_buffers = 2, .derives = derives};
        plan_lay_out(&plan, &model, &setting, &choice);
        plan_cost(&cost[derives], &plan, &model, &host, &profile, NULL);
        ck_assert_int_eq(step_timeline(&line[derives],
                                       &(struct step_timeline_setting){&plan, &model, &host, &profile, 2}),
                         0);
    }
    const double added = (cost[1].compute_ms - cost[0].compute_ms) / 1e3;
    ck_assert_double_gt(added, 0);
    ck_assert_double_eq_tol(line[1].queues[PLAN_QUEUE_COMPUTE].busy - line[0].queues[PLAN_QUEUE_COMPUTE].busy, added,
                            1e-6 * added);
    ck_assert_uint_eq(cost[1].down_bytes, cost[0].down_bytes);
    ck_assert_double_eq_tol(line[1].queues[PLAN_QUEUE_PULL].busy, line[0].queues[PLAN_QUEUE_PULL].busy, 1e-9);
    model_free(&model);
}

/* Where host memory is so slow that all else is nothing beside it, a step takes the bytes of all workers' copies and of
 * the optimizer at its rate. Queues that share nothing tell how many there are of one worker, and of the optimizer. */
TEST_EACH(workers_with_links_of_their_own_share_host_memory, MODELS)
{
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(_i + 1);
    struct profile profile = drawn_profile(&state), slow = profile;
    struct plan_choice choice = {.microbatch = MICROBATCH};
    struct step_timeline line, shared;
    struct model model;
    struct plan plan;

    open_model(&model, _i);
    profile.host_bytes_per_s = 0, slow.host_bytes_per_s = 1;
    for (uint32_t n_workers = 1; n_workers <= N_PARTS; n_workers++) {
        const struct plan_setting setting = {.backend = &plan_cuda,
                                             .goal = {.purpose = PLAN_TRAIN,
                                                      .batch = n_workers * PART_ROWS,
                                                      .seq = 8,
                                                      .source = model.config.source,
                                                      .n_parts = n_workers},
                                             .share_rows = PART_ROWS,
                                             .part_rows = PART_ROWS,
                                             .n_threads = 1};
        const struct plan_host_setting host = {.goal = setting.goal, .n_workers = n_workers};
        setting_choose(&choice, &model, &state);
        ck_assert_int_eq(plan_check_choice(&model, &setting, &choice, NULL), 0);
        plan_lay_out(&plan, &model, &setting, &choice);
        ck_assert_int_eq(step_timeline(&line, &(struct step_timeline_setting){&plan, &model, &host, &profile, 2}), 0);
        ck_assert_int_eq(step_timeline(&shared, &(struct step_timeline_setting){&plan, &model, &host, &slow, 2}), 0);
        const double copied = (line.queues[PLAN_QUEUE_PULL].busy + line.queues[PLAN_QUEUE_PUSH].busy) *
                              profile.link_bytes_per_s,
                     optimized = line.queues[PLAN_QUEUE_OPTIMIZER].busy * profile.update_parameters_per_s *
                                 PLAN_WORK_UPDATE_BYTES;
        ck_assert_double_eq_tol(shared.seconds, n_workers * copied + optimized, 1e-6 * shared.seconds);
    }
    model_free(&model);
}

/* As proto/plan/time/cost.h adds up visits one by one: operations of programs, formulas of embedding and head, and
 * zeros that pad. On a device of its own, and on one that takes turns with the optimizer: there nothing overlaps, so
 * that the times of all queues add up, and its two workers share it. */
TEST_EACH(a_step_takes_what_its_visits_and_copies_take, MODELS *DRAWS)
{
    uint64_t state = 0x9e3779b97f4a7c15u * (uint64_t)(_i + 1);
    const bool takes_turns = _i % 2;
    const uint32_t n_workers = 1 + setting_below(&state, N_PARTS), n_runs = N_PARTS / n_workers;
    struct profile profile = drawn_profile(&state);
    struct plan_choice choice = {.microbatch = MICROBATCH};
    struct step_timeline line;
    struct plan_cost cost;
    struct model model;
    struct plan plan;

    open_model(&model, _i / DRAWS);
    const struct plan_setting setting = {.backend = takes_turns ? &plan_cpu : &plan_cuda,
                                         .goal = {.purpose = PLAN_TRAIN,
                                                  .precision = setting_below(&state, 2) ? NUMBER_BF16 : NUMBER_FP32,
                                                  .grad = setting_below(&state, 2) ? NUMBER_BF16 : NUMBER_FP32,
                                                  .fenced = setting_below(&state, 2),
                                                  .batch = N_PARTS * PART_ROWS,
                                                  .seq = 8,
                                                  .source = model.config.source,
                                                  .n_parts = N_PARTS},
                                         .share_rows = n_runs * PART_ROWS,
                                         .part_rows = PART_ROWS,
                                         .n_threads = 1};
    const struct plan_host_setting host = {.goal = setting.goal, .n_workers = n_workers};
    profile.link_bytes_per_s = 1e15;                   /* gathering rows then takes less than storing them */
    profile.memory_bytes_per_s = power(&state, 7, 10); /* products take less than their matrices, or longer */
    profile.message_s = takes_turns ? power(&state, -7, -5) : 0;
    setting_choose(&choice, &model, &state);
    ck_assert_int_eq(plan_check_choice(&model, &setting, &choice, NULL), 0);
    plan_lay_out(&plan, &model, &setting, &choice);
    ck_assert_int_eq(step_timeline(&line, &(struct step_timeline_setting){&plan, &model, &host, &profile, 2}), 0);
    plan_cost(&cost, &plan, &model, &host, &profile, NULL);
    const double computing = cost.compute_ms / 1e3;
    const double sending =
        n_runs * (takes_turns ? n_workers : 1.0) * bytes_of_part(&plan, &model) / profile.link_bytes_per_s;
    ck_assert_double_eq_tol(line.queues[PLAN_QUEUE_COMPUTE].busy, computing, 1e-9 * computing);
    if (!choice.host_stash)
        ck_assert_double_eq_tol(line.queues[PLAN_QUEUE_PUSH].busy, sending, 1e-9 * sending);
    check_sums(&line);
    double all = 0;
    for (int i = 0; i < PLAN_QUEUES; i++)
        all += line.queues[i].busy;
    if (takes_turns) { /* slots are freed while units are updated; pulls, two for each visit at most, are answered */
        const double told = 2.0 * profile.message_s * n_runs * model.n_trained_visits, least = 1e-9 * all;
        ck_assert_double_eq_tol(cost.message_ms, told * 1e3, 1e-9 * told * 1e3);
        ck_assert_double_ge(line.seconds - all, told / 2 - least);
        ck_assert_double_le(line.seconds - all, told + 4.0 * profile.message_s * model.n_visits + least);
    }
    model_free(&model);
}
