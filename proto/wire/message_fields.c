/* A count that was read is not to be trusted until the fault is looked at: wire_u32_in reports one out of range, but
 * leaves it as it came. So loops over a count ask for w->why, or repeat the limit; those over a constant run on, as
 * after a fault every number reads as 0.
 *
 * What decodes must encode to the same bytes. So a set of blocks has one form, without words of 0 behind its last. */
#include "proto/wire/message_internal.h"

enum number_type message_number_field(struct wire *w, enum number_type value)
{
    return wire_choice(w, value, NUMBER_FP32, NUMBER_FP16);
}

void message_commit_field(struct wire *w, bool *fenced, bool *folded)
{
    enum { EAGER, FENCED, FOLDED };
    const unsigned commit = wire_choice(w, *fenced ? FENCED : *folded ? FOLDED : EAGER, EAGER, FOLDED);

    *fenced = commit == FENCED;
    *folded = commit == FOLDED;
}

void message_name_fields(struct wire *w, struct contribution_name *name)
{
    wire_u64(w, &name->step);
    wire_u32(w, &name->visit);
    wire_u32_in(w, &name->part, 0, MESSAGE_MAX_PARTS - 1);
    wire_u32(w, &name->slice);
    wire_u32(w, &name->attempt);
}

void message_drop_fields(struct wire *w, struct model_drop *drop)
{
    uint32_t n = MODEL_DROP_WORDS;

    while (n > 0 && drop->blocks[n - 1] == 0)
        n--;
    wire_u32_in(w, &n, 0, MODEL_DROP_WORDS);
    for (uint32_t i = 0; !w->why && i < n; i++)
        wire_u64(w, &drop->blocks[i]);
    if (!w->why && n > 0 && drop->blocks[n - 1] == 0)
        wire_wrong(w, "a set of blocks that ends with none");
}

/* Its receiver knows the model, and judges the order by it. */
void message_order_fields(struct wire *w, struct model_order *order)
{
    wire_u32_in(w, &order->n, 0, MODEL_ORDER_BLOCKS);
    for (uint32_t i = 0; !w->why && i < order->n; i++)
        wire_u16(w, &order->blocks[i]);
}

void message_goal_fields(struct wire *w, struct plan_goal *goal)
{
    goal->purpose = wire_choice(w, goal->purpose, PLAN_TRAIN, PLAN_GENERATE);
    goal->precision = message_number_field(w, goal->precision);
    goal->base = wire_choice(w, goal->base, FORM_VALUES, FORM_NF4);
    goal->moments = wire_choice(w, goal->moments, NUMBER_FP32, NUMBER_CODED);
    goal->grad = message_number_field(w, goal->grad);
    message_commit_field(w, &goal->fenced, &goal->folded);
    wire_flag(w, &goal->adamw);
    wire_flag(w, &goal->packs);
    wire_u32(w, &goal->batch);
    wire_u32(w, &goal->seq);
    wire_u32_in(w, &goal->n_parts, 1, MESSAGE_MAX_PARTS);
    wire_f64_from_0(w, &goal->preference.beta);
    wire_f64_from_0(w, &goal->preference.smoothing);
    wire_f64_from_0(w, &goal->sampling.share);
    wire_f64_from_0(w, &goal->sampling.queries);
    goal->sampling.rule = wire_choice(w, goal->sampling.rule, SAMPLE_PAPER, SAMPLE_ALL);
    wire_u32(w, &goal->sampling.draw);
    wire_u64(w, &goal->sampling.begin);
    wire_u32_in(w, &goal->kept_bits, 0, 8);
    wire_u32_in(w, &goal->pooled, 0, 8);
    wire_u32(w, &goal->source);
    wire_f64_from_0(w, &goal->smoothing);
    wire_f64_from_0(w, &goal->drop_layers);
    wire_u32_in(w, &goal->entries, 0, UINT32_MAX - 2);
    wire_flag(w, &goal->chooses);
    wire_flag(w, &goal->sgd);
    wire_flag(w, &goal->nesterov);
    wire_f64_from_0(w, &goal->momentum);
    wire_f64_from_0(w, &goal->sparse.keep);
    wire_f64_from_0(w, &goal->sparse.room);
    wire_u32(w, &goal->sparse.every);
    wire_u64(w, &goal->sparse.until);
    wire_f64_from_0(w, &goal->sparse.moved);
    wire_flag(w, &goal->no_master);
    goal->sums = message_number_field(w, goal->sums);
    wire_flag(w, &goal->weighted);
    wire_flag(w, &goal->checks_memory);
    for (int i = 0; i < PLAN_ROW_TOKENS; i++)
        wire_u32(w, &goal->row_tokens[i]);
}

void message_choice_fields(struct wire *w, struct plan_choice *choice)
{
    wire_u32(w, &choice->microbatch);
    wire_u32(w, &choice->group_parts);
    wire_flag(w, &choice->host_stash);
    for (struct plan_keeping *k = choice->keeping; k < choice->keeping + MODEL_CLASSES; k++) {
        wire_u32(w, &k->n_kept);
        wire_u32_in(w, &k->kept, 0, MODEL_KEEPS_ALL);
        wire_u32_in(w, &k->kept_below, 0, MODEL_KEEPS_ALL);
    }
    wire_u32_in(w, &choice->n_weight_buffers, 1, PLAN_MAX_WEIGHT_BUFFERS);
    wire_u32(w, &choice->n_sums);
    wire_u32(w, &choice->n_resident);
    wire_flag(w, &choice->whole_head);
    wire_flag(w, &choice->sparse_singly);
    wire_flag(w, &choice->derives);
    wire_u32_in(w, &choice->n_cuts, 0, PLAN_MAX_CUTS);
    for (uint32_t i = 0; i < choice->n_cuts && i < PLAN_MAX_CUTS; i++)
        wire_u32(w, &choice->cuts[i]);
}

void message_ledger_fields(struct wire *w, struct ledger *ledger)
{
    for (unsigned i = 0; i < LEDGER_CATEGORIES; i++) {
        wire_u64(w, &ledger->rows[i].current);
        wire_u64(w, &ledger->rows[i].peak);
    }
    wire_u64(w, &ledger->total.current);
    wire_u64(w, &ledger->total.peak);
}

void message_code_field(struct wire *w, int32_t *value)
{
    uint32_t positive = (uint32_t) - *value;

    wire_u32_in(w, &positive, 0, 4095);
    *value = -(int32_t)(positive & 4095);
}

void message_products_fields(struct wire *w, struct products *p)
{
    wire_u64(w, &p->version);
    for (unsigned class = 0; p->version && class < PRODUCTS_CLASSES; class ++) {
        wire_flag(w, &p->of[class].known);
        for (unsigned i = 0; p->of[class].known && i < PRODUCTS_CONFIG; i++)
            wire_u32(w, &p->of[class].config[i]);
    }
}

void message_profile_fields(struct wire *w, struct profile *p)
{
    for (unsigned type = 0; type < PROFILE_TYPES; type++)
        for (unsigned rows = 0; rows < PROFILE_ROWS; rows++)
            wire_f64_from_0(w, &p->matmul_flops[type][rows]);
    for (unsigned direction = 0; direction < PROFILE_DIRECTIONS; direction++)
        for (unsigned path = 0; path < ATTENTION_PATHS; path++)
            for (unsigned type = 0; type < PROFILE_TYPES; type++)
                wire_f64_from_0(w, &p->attention_flops[direction][path][type]);
    double *const by_shape = (double *)p->attention_by_shape;
    for (size_t i = 0; i < sizeof p->attention_by_shape / sizeof *by_shape; i++)
        wire_f64_from_0(w, &by_shape[i]);
    for (unsigned width = 0; width < PROFILE_NARROW; width++)
        for (unsigned type = 0; type < PROFILE_TYPES; type++)
            for (unsigned rows = 0; rows < PROFILE_ROWS; rows++)
                wire_f64_from_0(w, &p->narrow_flops[width][type][rows]);
    for (unsigned kind = 0; kind < CONV2D_KINDS; kind++)
        for (unsigned path = 0; path < CONV2D_PATHS; path++)
            for (unsigned type = 0; type < PROFILE_TYPES; type++)
                wire_f64_from_0(w, &p->conv2d_flops[kind][path][type]);
    wire_f64_from_0(w, &p->link_bytes_per_s);
    wire_f64_from_0(w, &p->memory_bytes_per_s);
    for (unsigned direction = 0; direction < PROFILE_DIRECTIONS; direction++)
        wire_f64_from_0(w, &p->norm_bytes_per_s[direction]);
    wire_f64_from_0(w, &p->update_parameters_per_s);
    wire_f64_from_0(w, &p->host_bytes_per_s);
    wire_f64_from_0(w, &p->call_s);
    wire_f64_from_0(w, &p->message_s);
    wire_f64_from_0(w, &p->n_multiprocessors);
    message_products_fields(w, &p->products);
    p->attention = wire_choice(w, p->attention, PLAN_ATTENTION_OWN, PLAN_ATTENTIONS - 1);
}

void message_rewards_fields(struct wire *w, struct preference_rewards *rewards)
{
    wire_f64(w, &rewards->chosen);
    wire_f64(w, &rewards->rejected);
    wire_f64(w, &rewards->right);
    wire_f64(w, &rewards->chosen_log_p);
    wire_f64(w, &rewards->rejected_log_p);
}

void message_done_fields(struct wire *w, struct message_done *done)
{
    wire_u64(w, &done->step);
    wire_f64(w, &done->loss);
    message_rewards_fields(w, &done->rewards);
    wire_u64(w, &done->device_peak);
    wire_u64(w, &done->host_bytes);
    wire_f64(w, &done->grad_norm);
    wire_flag(w, &done->skipped);
    wire_f64_from_0(w, &done->loss_scale);
    wire_f64_from_0(w, &done->optimizer_ms);
}
