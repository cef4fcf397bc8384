/* The order of the calls in lay_out and lay_out_generation is the layout.
 *
 * A row group is a share of its own: setting.share_rows is replaced before anything is sized, and share_parts remembers
 * the whole. Padding is counted too (LEDGER_OTHER), so the categories always sum to the arena.
 *
 * A search tries many layouts, of up to 4,096 blocks each. So loops over units take one period of equal ones and
 * multiply (plan_count_times, struct model_alike). */
#include "proto/plan/memory/plan.h"

#include "proto/plan/memory/chains.h"
#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/segments.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/memory/values.h"

struct layout {
    uint64_t offset;
    uint64_t *bytes; /* (LEDGER_CATEGORIES) */
};

/* n consecutive buffers of `bytes` each; returns the first's offset. Each begins at PLAN_ALIGNMENT; what rounding
 * takes is counted apart. */
static uint64_t take_each(struct layout *l, enum ledger_category category, uint64_t n, uint64_t bytes)
{
    const uint64_t at = l->offset, rounded = plan_align(bytes);

    l->offset += n * rounded;
    l->bytes[category] += n * bytes;
    l->bytes[LEDGER_OTHER] += n * (rounded - bytes);
    return at;
}

static uint64_t plan_take(struct layout *l, enum ledger_category category, uint64_t bytes)
{
    return take_each(l, category, 1, bytes);
}

static uint64_t plan_value_bytes(const struct plan *plan)
{
    return number_bytes(plan->setting.goal.precision);
}

static bool plan_is_training(const struct plan *plan)
{
    return plan->setting.goal.purpose == PLAN_TRAIN;
}

static uint64_t room(const struct plan *plan, const struct model *model, uint32_t unit)
{
    return plan_unit_room(model, unit, plan->head_pad);
}

/* True if the sum of the input's gradient must outlive a unit's visit. In one pass it is complete when that
 * one ends. */
static bool keeps_sum(const struct plan *plan)
{
    return plan->head_sums && !plan->one_pass;
}

/* Room for the decoded pieces of one unit; for all of the head, if its units are on the device at once. */
static void take_decoded(struct plan *plan, const struct model *model, struct layout *l)
{
    const struct model_layer *head = plan_head(model);
    const uint32_t first = model->visits[head->first_visit];
    uint64_t largest = plan_largest_decoded(model, plan->head_apart ? head->n_visits : 0, plan->head_pad);

    if (plan->choice.sparse_singly) /* then none is coded, and the head's are dense */
        largest = 0;
    plan->decoded = plan_take(l, LEDGER_WEIGHTS, largest * plan_value_bytes(plan));
    if (plan->head_apart) /* the first of the head's units is the largest */
        plan->decoded_head = take_each(l, LEDGER_WEIGHTS, head->n_visits,
                                       plan_decoded(model, first, plan->head_pad) * plan_value_bytes(plan));
}

/* Resident units, and buffers for the others: at most one for each. */
static void plan_take_weights(struct plan *plan, const struct model *model, struct layout *l)
{
    const uint32_t passing = plan_count_uploaded(model) - plan->n_resident;
    const uint64_t largest = plan_largest_uploaded(model, plan->n_resident, plan);

    plan->resident = l->offset;
    for (uint32_t first = 0, n, times; first < plan->n_resident; first += n * times) {
        times = plan_count_times(model, first, plan->n_resident, &n);
        for (uint32_t place = first; place < first + n; place++) {
            const uint32_t unit = plan_unit_at(model, place);
            take_each(l, LEDGER_WEIGHTS, times, plan_uploaded_bytes(model, unit, plan));
            plan->resident_bytes += times * model_unit_bytes(&model->units[unit], plan->setting.goal.precision);
        }
    }
    /* More buffers than units that pass through them would stay empty. */
    plan->n_weight_buffers = plan->choice.n_weight_buffers < passing ? plan->choice.n_weight_buffers : passing;
    for (uint32_t i = 0; i < plan->n_weight_buffers; i++)
        plan->weights[i] = plan_take(l, LEDGER_WEIGHTS, largest);
    take_decoded(plan, model, l);
}

/* n values or gradients of a shape: in the arena, or behind the others in the host's stash. */
static uint64_t take_values(struct plan *plan, struct layout *l, enum ledger_category category,
                            const struct model_shape *shape, uint64_t n)
{
    const uint64_t bytes = plan_shape_bytes(plan, shape), at = plan->host_stash_bytes;

    if (!plan->choice.host_stash)
        return take_each(l, category, n, bytes);
    plan->host_stash_bytes += n * plan_align(bytes);
    return at;
}

/* The gradient of the head's input may be summed in fp32, and is then rounded in place: the arena has room for that,
 * and as the host does not round, twice the bytes do there. It comes first. */
static void take_head_gradient(struct plan *plan, struct layout *l, const struct model_shape *shape)
{
    const uint64_t rounding = plan->setting.backend->rounding_bytes, bytes = plan_shape_bytes(plan, shape);

    if (!keeps_sum(plan) || plan->choice.host_stash) {
        plan->gradient = plan->gradient_sum = take_values(plan, l, LEDGER_GRADIENT, shape, keeps_sum(plan) ? 2 : 1);
        return;
    }
    plan->gradient_sum = l->offset + rounding;
    plan->gradient = plan_take(l, LEDGER_GRADIENT, rounding + bytes / plan_value_bytes(plan) * sizeof(float));
}

/* Chains, and gradients. begin: of the places of values. Their bytes are found by placing them, not by adding: many
 * lie in places of values that are no longer needed. */
static void take_turns(struct plan *plan, const struct model *model, struct layout *l, uint64_t begin)
{
    const struct model_value *of_head = &model->values.of[plan_head(model)->edges.reads[0]];
    uint64_t *const end = plan->choice.host_stash ? &plan->host_stash_bytes : &l->offset;

    take_head_gradient(plan, l, &model->values.shapes[of_head->gradient_shape]);
    const uint64_t before = *end;
    struct plan_turns turns = {.begin = begin, .end = before};
    plan_take_turns(plan, model, &turns);
    *end = turns.end;
    if (plan->choice.host_stash)
        return;
    l->bytes[LEDGER_STASH] += turns.chains; /* what aligns them included */
    l->bytes[LEDGER_GRADIENT] += turns.gradients;
    l->bytes[LEDGER_OTHER] += turns.end - before - turns.chains - turns.gradients;
}

/* Sets of tiles, as large as those of any layer; of the second set only if there are tiles in the host's stash. With
 * the stash on the device nothing is stored in tiles, but a layer may see a value in another type: one set suffices. */
static void plan_take_tiles(struct plan *plan, const struct model *model, struct layout *l)
{
    uint64_t most[3] = {0};
    struct plan_tiles tiles;

    for (uint32_t i = 0; i < model->values.n_passages; i++)
        for (int backward = 0; backward < (plan_is_training(plan) ? 2 : 1); backward++) {
            plan_tiles(&tiles, plan, model, &model->values.passages[i], backward);
            for (int k = 0; k < 3; k++)
                most[k] = most[k] < tiles.bytes[k] ? tiles.bytes[k] : most[k];
        }
    for (uint32_t set = 0; set < (plan->choice.host_stash ? plan->n_sets : 1); set++) {
        plan->input[set] = plan_take(l, LEDGER_STASH, most[0]);
        plan->output[set] = plan_take(l, LEDGER_STASH, most[1]);
        plan->dy[set] = plan_take(l, LEDGER_GRADIENT, most[2]);
    }
}

/* Boundary values and, in training, their gradients. */
static void take_boundaries(struct plan *plan, const struct model *model, struct layout *l)
{
    const uint64_t begin = plan->choice.host_stash ? plan->host_stash_bytes : l->offset;

    for (uint32_t i = 0; i < model->values.n_shapes; i++) {
        const struct model_shape *shape = &model->values.shapes[i];
        struct plan_values *values = &plan->values[i];
        if (model_is_small(shape))
            continue;
        values->bytes = plan_align(plan_shape_bytes(plan, shape));
        /* Of generation, where rows that are not joined begin apart. */
        values->row_bytes = plan_align(plan_row_tile(plan) * plan_element_bytes(plan, shape));
        if (plan->choice.n_cuts == 0)
            values->stashed =
                take_values(plan, l, LEDGER_STASH, shape, plan_is_training(plan) ? plan_count_stashed(plan, shape) : 0);
        values->passing =
            take_values(plan, l, LEDGER_STASH, shape, plan_is_training(plan) ? shape->n_passing : shape->n_forward);
    }
    if (plan->choice.n_cuts > 0) {
        uint64_t *const end = plan->choice.host_stash ? &plan->host_stash_bytes : &l->offset, at = *end;
        *end = plan_place_segments(plan, model, at);
        l->bytes[LEDGER_STASH] += plan->choice.host_stash ? 0 : *end - at; /* what aligns them included */
    }
    if (plan_is_training(plan))
        take_turns(plan, model, l, begin);
    plan_take_tiles(plan, model, l);
}

/* Elements of the largest sparse piece, were it dense; 0: there is none. */
static uint64_t largest_dense(const struct model *model)
{
    uint64_t most = 0;

    for (const struct model_piece *p = model->pieces; p < model->pieces + model->n_pieces; p++)
        most = most < p->dense ? p->dense : most;
    return most;
}

/* Sums for the units without a sum of their own, and the head's for every part if they lie apart. Free bytes for
 * rounding precede each sum; the head's, which are rounded from first to last, share them. The head's units of one
 * pass are all made before any is sent, so they have sums of their own. */
static void take_contributions(struct plan *plan, const struct model *model, struct layout *l)
{
    const struct model_layer *head = plan_head(model);
    const uint32_t n_apart = plan_count_apart(plan, model);
    uint64_t most = 0;

    plan->rounding_bytes = plan->setting.goal.grad != NUMBER_FP32 ? plan->setting.backend->rounding_bytes : 0;
    if (n_apart > 0)
        plan_take(l, LEDGER_CONTRIBUTION, plan->rounding_bytes);
    plan->head = l->offset;
    for (uint32_t part = 0; part < plan->setting.share_rows / plan->setting.part_rows; part++)
        for (uint32_t i = 0; i < n_apart; i++)
            plan_take(l, LEDGER_CONTRIBUTION, room(plan, model, model->visits[head->first_visit + i]) * sizeof(float));
    plan->head_bytes = (l->offset - plan->head) / (plan->setting.share_rows / plan->setting.part_rows);
    for (uint32_t visit = 0, n; visit < model->n_visits - n_apart; visit += n) {
        const uint32_t unit = model->visits[visit];
        const struct model_alike *alike = &model->units[unit].alike;
        const uint64_t sum = plan_unit_sum(model, unit, plan->head_pad);
        const bool is_block = model->layers[model->visit_layers[visit]].kind == MODEL_BLOCK;
        const bool ends_period = is_block && unit - alike->first >= alike->period - 1; /* the rest only recurs */
        n = ends_period ? alike->end - unit : 1;
        most = most < sum ? sum : most;
    }
    if (model->sparse.keep > 0)
        plan->dense = plan_take(l, LEDGER_CONTRIBUTION, largest_dense(model) * sizeof(float));
    for (uint32_t i = 0; i < plan->n_sums; i++) {
        plan_take(l, LEDGER_CONTRIBUTION, plan->rounding_bytes);
        plan->contribution[i] = plan_take(l, LEDGER_CONTRIBUTION, most * sizeof(float));
    }
}

/* At least one for each set of tiles. More only if the search asks for them, and never more than contributions in a
 * step. */
static uint32_t count_sums(const struct plan *plan, const struct model *model)
{
    const uint64_t parts = plan->setting.share_rows / plan->setting.part_rows;
    const uint64_t most = parts * (model->n_trained_visits - plan_count_apart(plan, model));

    if (plan->n_sets == 1 || plan->choice.n_sums <= plan->n_sets || most <= plan->n_sets)
        return plan->n_sets;
    return plan->choice.n_sums < most ? plan->choice.n_sums : (uint32_t)most;
}

/* Classes follow each other, and in each its blocks, the lowest first. */
static void take_kept(struct plan *plan, const struct model *model, struct layout *l)
{
    for (uint32_t c = 0; c < model->n_classes; c++) {
        const struct plan_keeping *keeping = &plan->choice.keeping[c];
        struct plan_kept *const below = &plan->kept[c][0], *const above = &plan->kept[c][1];
        *below = plan_keep(plan, model, c, keeping->kept_below);
        *above = plan_keep(plan, model, c, keeping->kept);
        below->n_blocks = above->first = model->classes[c].n_blocks - keeping->n_kept;
        above->n_blocks = keeping->n_kept;
        below->at = plan_take(l, LEDGER_KEPT, below->n_blocks * below->bytes);
        above->at = plan_take(l, LEDGER_KEPT, above->n_blocks * above->bytes);
    }
}

/* Copies of the units of layers whose results are derived again. */
static void take_chain_units(struct plan *plan, const struct model *model, struct layout *l)
{
    plan->chain_units = l->offset;
    for (const struct model_layer *layer = model->layers; layer < model->layers + model->n_layers; layer++)
        if (plan_is_copied(plan, model, layer))
            plan_take(l, LEDGER_WEIGHTS, plan_uploaded_bytes(model, model->visits[layer->first_visit], plan));
}

/* The most that a layer up to `top` needs. It comes last, so its end is the arena's, without rounding. What the
 * library takes is outside the arena, but in the device's memory, and so in the total. */
static void take_workspace(struct plan *plan, const struct model *model, struct layout *l, enum model_layer_kind top,
                           struct plan_workspaces *known)
{
    for (enum model_layer_kind kind = MODEL_EMBEDDING; kind <= top; kind++) {
        uint64_t bytes = plan_workspace(plan, model, kind, known);
        if (plan->workspace_bytes < bytes)
            plan->workspace_bytes = bytes;
    }
    plan->workspace = l->offset;
    plan->bytes[LEDGER_WORKSPACE] += plan->workspace_bytes;
    plan->arena_bytes = l->offset + plan->workspace_bytes;
    plan->bytes[LEDGER_LIBRARY] = plan->setting.library_bytes
                                      ? plan->setting.library_bytes
                                      : plan->setting.backend->library_bytes(plan->setting.n_threads);
}

/* Values of rows and parts. A part's gradients are sums, one for each part, as all parts pass a layer before any passes
 * the next one. */
static void take_small_values(struct plan *plan, const struct model *model, struct layout *l)
{
    const uint32_t n_parts = plan->setting.share_rows / plan->setting.part_rows;

    for (uint32_t i = 0; i < model->values.n_shapes; i++) {
        const struct model_shape *shape = &model->values.shapes[i];
        struct plan_values *values = &plan->values[i];
        const uint64_t bytes = plan_shape_bytes(plan, shape), copies = shape->by_part ? n_parts : 1;
        const bool is_constant = shape->domain == PROGRAM_PART && !shape->by_part;
        if (!model_is_small(shape))
            continue;
        values->bytes = copies * plan_align(bytes);
        values->stashed =
            take_each(l, is_constant ? LEDGER_WEIGHTS : LEDGER_STATISTICS, shape->n_stashed * copies, bytes);
        values->gradients =
            take_each(l, shape->domain == PROGRAM_PART ? LEDGER_CONTRIBUTION : LEDGER_GRADIENT,
                      plan_is_training(plan) && shape->trained ? shape->n_gradients * copies : 0, bytes);
    }
}

/* Lays out everything, in order. */
static void lay_out(struct plan *plan, const struct model *model, struct plan_workspaces *known)
{
    const struct plan_setting *s = &plan->setting;
    const uint64_t tokens = (uint64_t)s->share_rows * s->goal.seq;
    const uint64_t predicted = (uint64_t)s->share_rows * model_predicted(model, s->goal.seq);
    struct layout l = {.bytes = plan->bytes};

    plan_take_weights(plan, model, &l);
    take_boundaries(plan, model, &l);
    if (plan_is_training(plan)) {
        take_contributions(plan, model, &l);
        take_kept(plan, model, &l);
        take_chain_units(plan, model, &l);
    }
    take_small_values(plan, model, &l);
    plan->running = plan_take(&l, LEDGER_STATISTICS, predicted * 3 * sizeof(float));
    plan->losses = plan_take(&l, LEDGER_STATISTICS, predicted * sizeof(double));
    plan->ids = plan_take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    plan->labels = plan_take(&l, LEDGER_DATA, predicted * sizeof(uint32_t));
    if (s->goal.packs)
        plan->positions = plan_take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    for (uint32_t set = 0; plan_is_training(plan) && set < plan->n_sets; set++)
        plan->norms[set] =
            plan_take(&l, LEDGER_DATA, s->share_rows / s->part_rows * model->most_norms * sizeof(uint16_t));
    if (plan_has_pairs(&s->goal)) {
        plan->references = plan_take(&l, LEDGER_DATA, s->share_rows * sizeof(float));
        plan->log_p = plan_take(&l, LEDGER_STATISTICS, s->share_rows * sizeof(double));
    }
    if (plan_has_pairs(&s->goal) || s->goal.weighted)
        plan->scales = plan_take(&l, LEDGER_STATISTICS, tokens * sizeof(float));
    if (model_has_lengths(&model->config))
        plan->lengths = plan_take(&l, LEDGER_DATA, s->share_rows * sizeof(uint32_t));
    if (model_has_segments(&model->config))
        plan->segments = plan_take(&l, LEDGER_DATA, tokens * sizeof(uint32_t));
    if (model->config.n_labels) {
        plan->logits = plan_take(&l, LEDGER_DATA, (uint64_t)s->share_rows * model->config.n_labels * sizeof(float));
    }
    take_workspace(plan, model, &l, MODEL_HEAD, known);
}

/* Places the caches of all rows, each a multiple of PLAN_ALIGNMENT. A row's caches lie together, so a text is copied
 * to another row in one piece. */
static void take_caches(struct plan *plan, const struct model *model, struct layout *l)
{
    const uint64_t rows = plan->choice.microbatch;

    plan->cache = l->offset;
    for (uint32_t c = 0; c < model->n_classes; c++) {
        const uint64_t own = plan_cache_bytes(&plan->setting, model, c),
                       source = plan_source_bytes(&plan->setting, model, c);
        const uint64_t bytes = source > 0 ? plan_align(own) + source : own;
        plan->caches[c].at = plan->row_cache_bytes;
        plan->caches[c].source = plan_align(own);
        plan->caches[c].bytes = plan_align(bytes);
        plan->row_cache_bytes += model->classes[c].n_blocks * plan->caches[c].bytes;
        take_each(l, LEDGER_CACHE, rows * model->classes[c].n_blocks, bytes);
    }
}

/* The head's workspace in generation. Its logits are outside the workspace, and its product needs none. */
static void lay_out_generation(struct plan *plan, const struct model *model, struct plan_workspaces *known)
{
    const struct model_config *c = &model->config;
    const uint64_t rows = plan->choice.microbatch;
    const uint64_t logits = c->vocabulary * sizeof(float);
    struct layout l = {.bytes = plan->bytes};

    plan_take_weights(plan, model, &l);
    take_caches(plan, model, &l);
    take_boundaries(plan, model, &l);
    take_small_values(plan, model, &l);
    plan->ids = plan_take(&l, LEDGER_DATA, rows * plan_row_tile(plan) * sizeof(uint32_t));
    plan->logits = take_each(&l, LEDGER_DATA, rows, logits);
    plan->logits_stride = plan_align(logits) / sizeof(float);
    take_workspace(plan, model, &l, MODEL_SINGLE, known);
}

/* Derived figures come first, since sizes depend on them: sets, sums, tiles of the head. Then memory is taken in one
 * order, which is the layout; nothing is ever freed within a plan. */
void plan_lay_out_next(struct plan *out, const struct model *model, const struct plan_setting *share,
                       const struct plan_choice *choice, struct plan_workspaces *known)
{
    const uint32_t n_head = plan_head(model)->n_visits;
    const struct plan_setting *const setting = &out->setting;
    const bool pairs = plan_has_pairs(&share->goal); /* their gradient needs the losses of all tokens */

    *out = (struct plan){.setting = *share,
                         .choice = *choice,
                         .share_parts = share->share_rows / share->part_rows,
                         .n_resident = choice->n_resident};
    if (choice->group_parts > 0)
        out->setting.share_rows = choice->group_parts * share->part_rows;
    const bool alone =
        n_head == 1 && setting->share_rows / setting->part_rows == 1 && !pairs; /* no sum waits for another */
    out->n_sets = !setting->backend->takes_turns && choice->n_weight_buffers > 1 ? PLAN_MAX_SETS : 1;
    out->head_apart = choice->whole_head && !alone;
    out->n_sums = count_sums(out, model);
    /* On the CPU a classifier's head takes one row at a time, so that no microbatch changes its sums. */
    out->head_tile = model->config.n_labels && setting->backend->joins_rows ? 1 : setting->backend->head_tile;
    out->head_pad = setting->goal.purpose == PLAN_GENERATE ? 1 : setting->backend->head_pad;
    out->one_pass = plan_is_training(out) && (choice->whole_head || alone);
    out->head_sums =
        plan_is_training(out) && setting->backend->head_sums && n_head > 1 && setting->goal.precision != NUMBER_FP32;
    /* The head's units come first among those that may be resident: here all of them have to be. */
    if (out->head_apart && out->n_resident < n_head)
        out->n_resident = n_head;
    if (setting->goal.purpose == PLAN_GENERATE)
        lay_out_generation(out, model, known);
    else
        lay_out(out, model, known);
}

void plan_lay_out(struct plan *out, const struct model *model, const struct plan_setting *setting,
                  const struct plan_choice *choice)
{
    struct plan_workspaces known = {0};

    plan_lay_out_next(out, model, setting, choice, &known);
}

uint64_t plan_row_cache(const struct plan *plan, uint32_t row)
{
    return plan->cache + row * plan->row_cache_bytes;
}

uint64_t plan_block_cache(const struct plan *plan, const struct model_layer *block)
{
    const uint32_t c = model_class_of(block);

    return plan->caches[c].at + block->rank * plan->caches[c].bytes;
}

uint64_t plan_source_cache(const struct plan *plan, const struct model_layer *block)
{
    return plan_block_cache(plan, block) + plan->caches[model_class_of(block)].source;
}

/* The same walk as plan_take_weights: offsets are not stored, as there may be thousands. */
uint64_t plan_resident(const struct plan *plan, const struct model *model, uint32_t unit)
{
    const uint32_t end = plan_place_of(model, unit);
    uint64_t at = plan->resident;

    for (uint32_t first = 0, n, times; first < end; first += n * times) {
        times = plan_count_times(model, first, end, &n);
        for (uint32_t place = first; place < first + n; place++)
            at += times * plan_align(plan_uploaded_bytes(model, plan_unit_at(model, place), plan));
    }
    return at;
}

uint64_t plan_decoded_at(const struct plan *plan, const struct model *model, uint32_t unit)
{
    const struct model_layer *head = plan_head(model);
    const uint32_t first = model->visits[head->first_visit], place = plan_place_of(model, unit);

    if (!plan->head_apart || place >= head->n_visits)
        return plan->decoded;
    return plan->decoded_head +
           (unit - first) * plan_align(plan_decoded(model, first, plan->head_pad) * plan_value_bytes(plan));
}

uint64_t plan_head_contribution(const struct plan *plan, const struct model *model, uint32_t part, uint32_t i)
{
    const uint32_t first = model->visits[plan_head(model)->first_visit]; /* the others are no larger */

    return plan->head + part * plan->head_bytes + i * plan_align(room(plan, model, first) * sizeof(float));
}

/* Called again and again with the same set, it names terms from the largest down; -1: the rest are 0. */
int plan_largest(const uint64_t *bytes, int n, uint32_t *named)
{
    int largest = -1;

    for (int i = 0; i < n; i++)
        if (!(*named >> i & 1) && bytes[i] > (largest < 0 ? 0 : bytes[largest]))
            largest = i;
    if (largest >= 0)
        *named |= UINT32_C(1) << largest;
    return largest;
}

uint64_t plan_total(const struct plan *plan)
{
    return plan->arena_bytes + plan->bytes[LEDGER_LIBRARY];
}

/* The largest share: parts are whole, so some workers may have one more than others. */
void plan_share(struct plan_setting *setting, uint32_t n_workers, long n_cores)
{
    const struct plan_goal *goal = &setting->goal;

    setting->part_rows = goal->batch / goal->n_parts;
    setting->share_rows = (goal->n_parts + n_workers - 1) / n_workers * setting->part_rows;
    setting->n_threads = n_cores > n_workers ? (uint32_t)n_cores / n_workers : 1;
}
