/* A row's cache is right up to n_run tokens. The number is lowered before anything behind it is written, and raised
 * when a pass is queued. So after a failure the same tokens can be run again.
 *
 * A run is cut into tiles: up to plan_row_tile tokens of each row that has some left, side by side. Rows do not wait
 * for each other, as positions and caches are their own; a pass ends when the last of its spans has gone through all
 * layers. Only spans that end a row's tokens go on to the head. */
#include "proto/step/generate.h"

#include "proto/base/size.h"
#include "proto/operation/call/gated_delta.h"
#include "proto/plan/memory/values.h"
#include "proto/step/boundaries.h"
#include "proto/step/layers.h"
#include "proto/step/weights.h"

#include <errno.h>
#include <string.h>

enum { COPIED_IDS = PLAN_GENERATE_ROWS * PLAN_GENERATE_TILE }; /* at once */

/* One pass through the layers: a tile of each row that has tokens left, side by side. */
struct tiles {
    struct device_worker *worker;
    const struct device_run *run;
    const struct device_link *link;
    void *context;
    struct device_weights weights;
    uint32_t side; /* PROGRAM_SOURCE or PROGRAM_TARGET of an encoder-decoder; else 0 */
    uint32_t ids[COPIED_IDS];
    struct operation_span spans[PLAN_GENERATE_ROWS];
    uint32_t rows[PLAN_GENERATE_ROWS]; /* (n_spans) of the spans */
    uint32_t n_spans;
    uint32_t ends[PLAN_GENERATE_ROWS]; /* (n_ends) spans that end their row's tokens, whose logits are needed */
    uint32_t n_ends;
    uint64_t loaded; /* DEVICE_PULL: ids may be overwritten */
};

static void *address(const struct device_worker *w, uint64_t offset)
{
    return (char *)w->ops->arena(w->dev) + offset;
}

/* Backends that may round a token differently beside others, or at another alignment, run each row as if it were
 * alone. */
static bool joins(const struct device_worker *w)
{
    return w->plan.setting.backend->joins_rows;
}

/* Tokens in a boundary value: of a row, if rows are not joined, else of all rows side by side. */
struct place {
    uint32_t row, token;
};

/* The place of a span's first token; above the blocks, of an end. */
static struct place place_of_span(const struct tiles *t, uint32_t span)
{
    return joins(t->worker) ? (struct place){.token = t->spans[span].at} : (struct place){.row = span};
}

static struct place place_of_end(const struct tiles *t, uint32_t end)
{
    return joins(t->worker) ? (struct place){.token = end} : (struct place){.row = end};
}

/* n tokens. To the layers they are one row, whatever rows they are of. */
static struct layer_pass generate_pass_of(const struct tiles *t, uint32_t visit,
                                          const struct device_weights_at *weights, uint32_t n)
{
    struct layer_pass p = layer_pass_of(t->worker, visit);

    p.weights = weights->relayed;
    p.decoded = weights->decoded;
    p.fresh = true;
    p.side = t->side;
    p.n_rows = 1;
    p.n_tokens = n;
    return p;
}

/* What the layer reads `from` a place, or writes `to` one. */
static struct device_operand operand_of(const struct layer_pass *pass, const struct model_operand *o, uint64_t narrow,
                                        struct place from, struct place to)
{
    const struct plan *plan = pass->plan;
    const struct model_shape *shape = &pass->model->values.shapes[o->shape];
    const bool reads = o->role == MODEL_INPUT;
    const struct place *place = reads ? &from : &to;
    const uint64_t at = plan_value(plan, pass->model, model_value_of(pass->edges, o)) +
                        (model_is_small(shape) ? 0
                                               : place->row * plan->values[o->shape].row_bytes +
                                                     place->token * plan_element_bytes(plan, shape));
    char *const arena = pass->ops->arena(pass->dev);

    return (struct device_operand){.is = o,
                                   .shape = shape,
                                   .n = plan_shape_elements(shape, 1, pass->n_tokens) * shape->columns,
                                   .stored = arena + at,
                                   .narrow = narrow == PLAN_NO_TILE
                                                 ? NULL
                                                 : arena + (reads ? plan->input[0] : plan->output[0]) + narrow};
}

/* The layer over its tokens. */
static void generate_run_layer(const struct layer_ops *const *layers, struct layer_pass *pass, struct place from,
                               struct place to)
{
    const struct model_passage *passage = &pass->model->values.passages[pass->edges->passage];
    struct device_operand operands[MODEL_OPERANDS];
    struct plan_tiles tiles;

    plan_tiles(&tiles, pass->plan, pass->model, passage, false);
    for (uint32_t i = 0; i < passage->n[0]; i++) {
        const struct model_operand *o = &passage->operands[0][i];
        operands[i] = operand_of(pass, o, tiles.of[i].narrow, from, to);
        pass->at[o->role][o->index] = device_operand_enter(pass, &operands[i]);
    }
    layers[pass->layer->kind]->forward(pass);
    for (uint32_t i = 0; i < passage->n[0]; i++)
        device_operand_leave(pass, &operands[i], pass->at[operands[i].is->role][operands[i].is->index]);
}

/* The sources of rows, one after another: the encoder's layers, and what targets read of it in the decoder's. An
 * encoder's attention has no cache, and so no spans. */
static void run_sources(const struct tiles *t, uint32_t visit, const struct device_weights_at *weights)
{
    const struct device_worker *w = t->worker;
    const struct model_layer *layer = &w->model.layers[w->model.visit_layers[visit]];

    for (uint32_t i = 0; i < t->n_spans; i++) {
        const struct place place = place_of_span(t, i);
        struct layer_pass pass = generate_pass_of(t, visit, weights, t->spans[i].n);
        pass.ids = (const uint32_t *)address(w, w->plan.ids) + t->spans[i].at;
        if (layer->kind == MODEL_BLOCK)
            pass.source = (char *)t->spans[i].cache + plan_source_cache(&w->plan, layer);
        generate_run_layer(w->layers, &pass, place, place);
    }
}

/* As many spans at a time as the backend joins and the workspace has room for. */
static void generate_run_spans(const struct tiles *t, uint32_t visit, const struct device_weights_at *weights)
{
    const struct device_worker *w = t->worker;
    const struct model_layer *layer = &w->model.layers[w->model.visit_layers[visit]];
    const bool is_block = layer->kind == MODEL_BLOCK;
    const uint64_t cache = is_block ? plan_block_cache(&w->plan, layer) : 0;
    const uint64_t source = is_block ? plan_source_cache(&w->plan, layer) : 0;
    const uint32_t room = plan_shape_of(&w->plan).n_tokens;
    struct operation_span spans[PLAN_GENERATE_ROWS];

    for (uint32_t first = 0, n; first < t->n_spans; first += n) {
        const uint32_t at = t->spans[first].at;
        uint32_t n_tokens = 0;
        for (n = 0; first + n < t->n_spans && n_tokens + t->spans[first + n].n <= room; n++) {
            if (n > 0 && !joins(w))
                break;
            spans[n] = t->spans[first + n];
            spans[n].at -= at;
            spans[n].source = (char *)spans[n].cache + source;
            spans[n].cache = (char *)spans[n].cache + cache;
            spans[n].n_source = w->n_source[t->rows[first + n]];
            n_tokens += spans[n].n;
        }
        const struct place place = place_of_span(t, first);
        struct layer_pass pass = generate_pass_of(t, visit, weights, n_tokens);
        pass.ids = (const uint32_t *)address(w, w->plan.ids) + at;
        pass.spans = spans;
        pass.n_spans = n;
        generate_run_layer(w->layers, &pass, place, place);
    }
}

/* Above the blocks only the last tokens continue, side by side: the first layer there reads each from its span. */
static void run_ends(const struct tiles *t, uint32_t visit, const struct device_weights_at *weights)
{
    const struct device_worker *w = t->worker;
    const uint32_t l = w->model.visit_layers[visit];
    const bool gathers = w->model.layers[l - 1].kind == MODEL_BLOCK;
    const uint32_t n = gathers || !joins(w) ? 1 : t->n_ends;

    for (uint32_t end = 0; end < t->n_ends; end += n) {
        const uint32_t span = t->ends[end];
        const struct place place = place_of_end(t, end);
        struct place last = place_of_span(t, span);
        last.token += t->spans[span].n - 1;
        struct layer_pass pass = generate_pass_of(t, visit, weights, n);
        pass.logits = (float *)address(w, w->plan.logits) + end * w->plan.logits_stride;
        generate_run_layer(w->layers, &pass, gathers ? last : place, place);
    }
}

/* The encoder's layers come one after another. Targets read the encoder's result from the caches, where run_sources
 * has put it. */
static void skip_encoder(struct device_weights *weights, const struct model *model)
{
    for (const struct model_layer *layer = model->layers; layer < model->layers + model->n_layers; layer++)
        if (model_is_of_source(layer)) {
            weights->skipped = weights->n_skipped == 0 ? layer->first_visit : weights->skipped;
            weights->n_skipped += layer->n_visits;
        }
    weights->n_visits -= weights->n_skipped;
}

static int generate_run_layers(struct tiles *t)
{
    struct device_worker *w = t->worker;

    device_weights_init(&t->weights, w, t->link, t->context);
    if (t->n_ends == 0) /* no tile needs the layers above the blocks */
        t->weights.n_visits = w->model.layers[w->model.first_block + w->model.n_block_layers].first_visit;
    if (t->side == PROGRAM_TARGET)
        skip_encoder(&t->weights, &w->model);
    for (uint32_t place = 0; place < t->weights.n_visits; place++) {
        const uint32_t visit = device_weights_visit(&t->weights, place);
        struct device_weights_at weights;
        /* Between layers, so that a job's end is noticed within one of them. */
        int rc = t->link->ended(t->context);
        if (rc == 0)
            rc = device_weights_next(&t->weights, place, &weights);
        if (rc != 0)
            return rc;
        if (t->side == PROGRAM_SOURCE)
            run_sources(t, visit, &weights);
        else if (model_is_above_blocks(&w->model, &w->model.layers[w->model.visit_layers[visit]]))
            run_ends(t, visit, &weights);
        else
            generate_run_spans(t, visit, &weights);
    }
    return 0;
}

static void begin_tiles(struct tiles *t, uint32_t side)
{
    t->n_spans = t->n_ends = 0;
    t->side = t->worker->plan.setting.goal.source > 0 ? side : 0;
}

/* Takes the sources that have not run. False: there are none. */
static bool take_sources(struct tiles *t)
{
    const struct device_worker *w = t->worker;
    uint32_t at = 0;

    begin_tiles(t, PROGRAM_SOURCE);
    for (uint32_t row = 0; row < t->run->n_rows; row++) {
        const uint32_t n = t->run->rows[row].n > 0 ? t->run->rows[row].source : 0;
        if (n == 0)
            continue;
        t->rows[t->n_spans] = row;
        t->spans[t->n_spans++] =
            (struct operation_span){.at = at, .n = n, .cache = address(w, plan_row_cache(&w->plan, row))};
        at += n;
    }
    return t->n_spans > 0;
}

/* Tokens of a row's next tile. It ends where a chunk of a state's tokens does, so that a text's tokens are divided into
 * the same chunks whatever tokens ran before. */
static uint32_t tile_from(const struct device_worker *w, uint32_t position, uint32_t left)
{
    uint32_t most = plan_row_tile(&w->plan);

    if (model_has_states(&w->model))
        most = (uint32_t)size_smaller(most, DEVICE_DELTA_CHUNK - position % DEVICE_DELTA_CHUNK);
    return left < most ? left : most;
}

/* Takes the next tile of each row. False: no row has tokens left. n_run says where a row goes on: it is raised only
 * after the tile was run. */
static bool generate_take_tiles(struct tiles *t)
{
    const struct device_worker *w = t->worker;
    uint32_t at = 0;

    begin_tiles(t, PROGRAM_TARGET);
    for (uint32_t row = 0; row < t->run->n_rows; row++) {
        const struct plan_tokens *tokens = &t->run->rows[row];
        const uint32_t left = tokens->n > 0 ? tokens->first + tokens->n - w->n_run[row] : 0;
        if (left == 0)
            continue;
        const uint32_t n = tile_from(w, w->n_run[row], left);
        if (left == n)
            t->ends[t->n_ends++] = t->n_spans;
        t->rows[t->n_spans] = row;
        t->spans[t->n_spans++] = (struct operation_span){.at = at,
                                                         .n = n,
                                                         .position = w->n_run[row],
                                                         .cache = address(w, plan_row_cache(&w->plan, row))};
        at += n;
    }
    return t->n_spans > 0;
}

/* Uploads the ids that were copied. Later copies wait until they have arrived. */
static void send_ids(struct tiles *t, uint32_t sent, uint32_t n)
{
    struct device_worker *w = t->worker;

    w->ops->upload(w->dev, (uint32_t *)address(w, w->plan.ids) + sent, t->ids, n * sizeof *t->ids);
    t->loaded = w->ops->mark(w->dev, DEVICE_PULL);
}

static int wait_ids(struct tiles *t)
{
    return t->worker->ops->finish(t->worker->dev, DEVICE_PULL, t->loaded) != 0 ? -EIO : 0;
}

/* Checks and uses a copy of the ids, as the client can write its own at any time. Everything uploaded for this pass,
 * including weights, waits until the previous pass is done. */
static int generate_load_ids(struct tiles *t, struct error *err)
{
    struct device_worker *w = t->worker;
    const struct model_config *c = &w->model.config;
    const bool is_source = t->side == PROGRAM_SOURCE;
    const uint32_t vocabulary = is_source && c->source_vocabulary > 0 ? c->source_vocabulary : c->vocabulary;
    const uint32_t seq = w->plan.setting.goal.seq;
    const uint32_t *const all = is_source ? t->run->sources : t->run->ids;
    uint32_t n = 0, sent = 0;

    if (wait_ids(t))
        return -EIO;
    w->ops->follow(w->dev, DEVICE_PULL, DEVICE_COMPUTE, w->ops->mark(w->dev, DEVICE_COMPUTE));
    for (const struct operation_span *span = t->spans; span < t->spans + t->n_spans; span++) {
        const uint32_t *ids = all + (uint64_t)t->rows[span - t->spans] * seq + span->position;
        for (uint32_t i = 0; i < span->n; i++) {
            if (n == COPIED_IDS) {
                send_ids(t, sent, n);
                if (wait_ids(t))
                    return -EIO;
                sent += n, n = 0;
            }
            t->ids[n] = ids[i];
            if (t->ids[n++] >= vocabulary)
                return error_set(err, -EINVAL, "token id %u at position %u: the vocabulary has %u", t->ids[n - 1],
                                 span->position + i, vocabulary);
        }
    }
    send_ids(t, sent, n);
    return 0;
}

/* Downloads the logits of the rows that have ended. In the order of rows, wherever their spans were in the pass. */
static void give_logits(const struct tiles *t)
{
    const struct device_worker *w = t->worker;
    const size_t vocabulary = w->model.config.vocabulary;

    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, w->ops->mark(w->dev, DEVICE_COMPUTE));
    for (uint32_t i = 0; i < t->n_ends; i++)
        w->ops->download(w->dev, t->run->logits + t->rows[t->ends[i]] * vocabulary,
                         (const float *)address(w, w->plan.logits) + i * w->plan.logits_stride,
                         vocabulary * sizeof(float));
    w->ops->follow(w->dev, DEVICE_COMPUTE, DEVICE_PUSH, w->ops->mark(w->dev, DEVICE_PUSH)); /* before the next pass's */
}

static int run_tiles(struct tiles *t, struct error *err)
{
    struct device_worker *w = t->worker;
    int rc = 0;

    if (!w->loaded) {
        device_weights_init(&t->weights, w, t->link, t->context);
        rc = device_weights_load(&t->weights);
        w->loaded = rc == 0;
    }
    /* Sources run before any target: a target's first token reads them. */
    if (rc == 0 && take_sources(t)) {
        rc = generate_load_ids(t, err);
        if (rc == 0)
            rc = generate_run_layers(t);
        for (uint32_t i = 0; rc == 0 && i < t->n_spans; i++)
            w->n_source[t->rows[i]] = t->spans[i].n;
    }
    while (rc == 0 && generate_take_tiles(t)) {
        rc = generate_load_ids(t, err);
        if (rc == 0)
            rc = generate_run_layers(t);
        if (rc != 0)
            break;
        give_logits(t);
        for (uint32_t i = 0; i < t->n_spans; i++)
            w->n_tail[t->rows[i]] = w->n_run[t->rows[i]] += t->spans[i].n;
    }
    return rc;
}

/* Keys and values of another row, with whatever follows them; and states, which are fp32 whatever values are: so as
 * pieces that are moved, as no sum of values keeps the bits of all that two halves of such a number may be. */
static void copy_cache(const struct device_worker *w, uint32_t to, uint32_t from)
{
    const size_t bytes = w->plan.row_cache_bytes;
    const struct device_regroup copy = {.m = bytes / PLAN_ALIGNMENT,
                                        .n_groups = 1,
                                        .n_parts = 1,
                                        .n = PLAN_ALIGNMENT / number_bytes(w->plan.setting.goal.precision),
                                        .x = address(w, plan_row_cache(&w->plan, from)),
                                        .y = address(w, plan_row_cache(&w->plan, to))};

    if (bytes > 0)
        w->ops->regroup(w->dev, &copy);
}

/* Tails stand after one token. A row that goes on after another one runs again from its first. */
static void generate_take_tails(struct device_worker *w, const struct device_run *run)
{
    uint32_t n_tail[PLAN_GENERATE_ROWS];

    memcpy(n_tail, w->n_tail, sizeof n_tail);
    for (uint32_t row = 0; row < run->n_rows; row++) {
        if (run->rows[row].n == 0)
            continue;
        w->n_tail[row] = n_tail[run->rows[row].from];
        if (model_has_tails(&w->model) && w->n_tail[row] != w->n_run[row])
            w->n_run[row] = 0;
    }
}

/* After a failure some layers have gone on, others have not. */
static void lose_tails(struct device_worker *w, const struct device_run *run)
{
    for (uint32_t row = 0; row < run->n_rows; row++)
        if (run->rows[row].n > 0)
            w->n_tail[row] = UINT32_MAX;
}

/* Keys and values from each row's first new token on are replaced, or will have to be. */
static void generate_forget(struct device_worker *w, const struct device_run *run)
{
    for (uint32_t row = 0; row < run->n_rows; row++)
        if (run->rows[row].n > 0)
            w->n_run[row] = run->rows[row].first;
    for (uint32_t row = 0; row < run->n_rows; row++)
        if (run->rows[row].n > 0 && run->rows[row].source > 0)
            w->n_source[row] = 0;
}

/* A row may go on after another's tokens (beams, samples): it begins with a copy of that one's cache. */
static void copy_caches(struct device_worker *w, const struct device_run *run)
{
    for (uint32_t row = 0; row < run->n_rows; row++)
        if (run->rows[row].n > 0 && run->rows[row].from != row) {
            copy_cache(w, row, run->rows[row].from);
            w->n_source[row] = w->n_source[run->rows[row].from];
        }
}

/* A target has a source: one that runs now, before its first token, or that has run. */
static int generate_check_source(const struct device_worker *w, const struct plan_tokens *row, uint32_t index,
                                 struct error *err)
{
    const struct plan_goal *goal = &w->plan.setting.goal;

    if (row->source > (goal->source > 0 ? goal->seq : 0))
        return error_set(err, -EINVAL, "a source of %u tokens: up to %u are possible", row->source, goal->source);
    if (row->source > 0 && (row->first > 0 || row->from != index))
        return error_set(err, -EINVAL, "a source of %u tokens before token %u of row %u", row->source, row->first,
                         row->from);
    if (goal->source > 0 && row->source == 0 && w->n_source[row->from] == 0)
        return error_set(err, -EINVAL, "row %u has no source", index);
    return 0;
}

/* All of it is judged before anything is changed: rows, ranges, and what they go on from. */
static int generate_check_rows(const struct device_worker *w, const struct device_run *run, struct error *err)
{
    const struct plan *plan = &w->plan;
    bool any = false;

    if (plan->setting.goal.purpose != PLAN_GENERATE || run->n_rows > plan->choice.microbatch)
        return error_set(err, -EINVAL, "%u texts to generate: this worker was planned for %u", run->n_rows,
                         plan->setting.goal.purpose == PLAN_GENERATE ? plan->choice.microbatch : 0);
    for (uint32_t i = 0; i < run->n_rows; i++) {
        const struct plan_tokens *row = &run->rows[i];
        any = any || row->n > 0;
        if (row->n > 0 && (row->from >= run->n_rows || run->rows[row->from].from != row->from))
            return error_set(err, -EINVAL, "row %u goes on after row %u, which has no tokens of its own", i, row->from);
        if (row->n > 0 && (row->first > w->n_run[row->from] || row->n > plan->setting.goal.seq - row->first))
            return error_set(err, -EINVAL, "tokens %u to %llu to run: %u of up to %u were run so far", row->first,
                             (unsigned long long)row->first + row->n, w->n_run[row->from], plan->setting.goal.seq);
        if (row->n > 0 && generate_check_source(w, row, i, err))
            return -EINVAL;
    }
    return any ? 0 : error_set(err, -EINVAL, "no row has tokens to run");
}

int device_worker_generate(struct device_worker *worker, const struct device_run *run, const struct device_link *link,
                           void *context, struct error *err)
{
    int rc = generate_check_rows(worker, run, err);

    if (rc != 0)
        return rc;
    struct tiles t = {.worker = worker, .run = run, .link = link, .context = context};
    generate_forget(worker, run);
    generate_take_tails(worker, run);
    copy_caches(worker, run);
    rc = run_tiles(&t, err);
    if (rc != 0) {
        generate_forget(worker, run);
        lose_tails(worker, run);
    }
    if (rc == -EIO || worker->ops->sync(worker->dev) != 0)
        return worker->ops->fault(worker->dev, err);
    return rc;
}
