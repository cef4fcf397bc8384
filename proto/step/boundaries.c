#include "proto/step/boundaries.h"

static bool is_head(const struct layer_pass *visit)
{
    return visit->layer->kind == MODEL_HEAD;
}

static uint32_t layer_of(const struct layer_pass *visit)
{
    return (uint32_t)(visit->layer - visit->model->layers);
}

/* On entry the gradient is that of the layer's output, afterwards that of its input; the head creates it. */
static bool has_gradient(const struct layer_pass *visit, bool backward)
{
    return backward || visit->chunks;
}

static size_t bytes_of(const struct layer_pass *visit, size_t tokens)
{
    return tokens * visit->model->config.width * number_bytes(visit->setting->goal.precision);
}

/* Offset of the boundary above a layer, and of its gradient, from `token` on. */
static uint64_t place_of_boundary(const struct device_pass *pass, const struct layer_pass *visit, uint32_t layer,
                                  size_t token)
{
    const struct plan *plan = &pass->worker->plan;

    return plan->boundaries + layer % plan->n_boundaries * plan->boundary_bytes + bytes_of(visit, token);
}

static uint64_t place_of_gradient(const struct device_pass *pass, const struct layer_pass *visit, size_t token)
{
    return pass->worker->plan.gradient + bytes_of(visit, token);
}

/* The same for fp32. */
static uint64_t place_of_sum(const struct device_pass *pass, const struct layer_pass *visit, size_t token)
{
    return pass->worker->plan.gradient_sum + token * visit->model->config.width * sizeof(float);
}

static bool has_sum(const struct device_pass *pass, const struct layer_pass *visit, bool backward)
{
    return pass->worker->plan.head_sums && is_head(visit) && backward;
}

static size_t sum_bytes(const struct layer_pass *visit)
{
    return layer_tokens(visit) * visit->model->config.width * sizeof(float);
}

static size_t tile_bytes(const struct layer_pass *visit)
{
    return bytes_of(visit, layer_tokens(visit));
}

static void record(const struct device_pass *pass, const struct layer_pass *visit, uint64_t since, const char *what,
                   size_t bytes)
{
    char name[MODEL_NAME_BYTES];

    if (pass->worker->trace)
        trace_end(pass->worker->trace, since, what,
                  model_unit_name(name, visit->model, (uint32_t)(visit->unit - visit->model->units)),
                  (struct trace_arg[]){{"bytes", bytes}, {NULL, 0}});
}

static void upload(const struct device_pass *pass, const struct layer_pass *visit, void *to, uint64_t place,
                   size_t bytes)
{
    const uint64_t since = trace_begin(pass->worker->trace);

    visit->ops->upload(visit->dev, to, (const char *)pass->worker->stash + place, bytes);
    record(pass, visit, since, "upload tile", bytes);
}

static void download(const struct device_pass *pass, const struct layer_pass *visit, uint64_t place, const void *from,
                     size_t bytes)
{
    const uint64_t since = trace_begin(pass->worker->trace);

    visit->ops->download(visit->dev, (char *)pass->worker->stash + place, from, bytes);
    record(pass, visit, since, "download tile", bytes);
}

/* The set of the next tiles. */
static struct device_tiles *tiles_of(struct device_pass *pass)
{
    return &pass->tiles[pass->tile];
}

/* Mark of this microbatch's last write. */
static uint64_t *stashed_of(const struct device_pass *pass, size_t token)
{
    return &pass->worker->stashed[token / pass->n_tokens];
}

/* A layer with several visits adds to the output of the visit before. The input, which is never written to, need not
 * wait for downloads. */
static void enter_tiles(struct device_pass *pass, struct layer_pass *visit, size_t token, bool backward)
{
    const struct plan *plan = &pass->worker->plan;
    const struct device_ops *ops = visit->ops;
    const struct device_tiles *tiles = tiles_of(pass);
    const uint32_t layer = layer_of(visit);

    ops->follow(visit->dev, DEVICE_PULL, DEVICE_COMPUTE, tiles->used);
    ops->follow(visit->dev, DEVICE_PULL, DEVICE_PUSH, *stashed_of(pass, token));
    if (layer > 0) {
        void *input = device_pass_address(pass, plan->input[pass->tile]);
        upload(pass, visit, input, place_of_boundary(pass, visit, layer - 1, token), tile_bytes(visit));
        visit->input = input;
    }
    ops->follow(visit->dev, DEVICE_PULL, DEVICE_PUSH, tiles->saved);
    if (!is_head(visit)) {
        visit->output = device_pass_address(pass, plan->output[pass->tile]);
        if (!backward && !visit->bottom)
            upload(pass, visit, visit->output, place_of_boundary(pass, visit, layer, token), tile_bytes(visit));
    }
    if (has_sum(pass, visit, backward)) {
        visit->gradient_sum = device_pass_address(pass, plan->output[pass->tile]);
        visit->gradient = device_pass_address(pass, plan->input[pass->tile]);
        if (!visit->top)
            upload(pass, visit, visit->gradient_sum, place_of_sum(pass, visit, token), sum_bytes(visit));
    } else if (has_gradient(visit, backward)) {
        visit->gradient = device_pass_address(pass, plan->dy[pass->tile]);
        if (backward && !(is_head(visit) && visit->top))
            upload(pass, visit, visit->gradient, place_of_gradient(pass, visit, token), tile_bytes(visit));
    }
    ops->follow(visit->dev, DEVICE_COMPUTE, DEVICE_PULL,
                ops->mark(visit->dev, DEVICE_PULL)); /* includes earlier waits */
}

/* Nobody reads the gradient after the embedding's last visit. */
static void leave_tiles(struct device_pass *pass, const struct layer_pass *visit, size_t token, bool backward)
{
    const struct device_ops *ops = visit->ops;
    struct device_tiles *tiles = tiles_of(pass);

    tiles->used = ops->mark(visit->dev, DEVICE_COMPUTE);
    ops->follow(visit->dev, DEVICE_PUSH, DEVICE_COMPUTE, tiles->used);
    if (!backward && visit->output)
        download(pass, visit, place_of_boundary(pass, visit, layer_of(visit), token), visit->output, tile_bytes(visit));
    if (visit->gradient_sum && !visit->bottom)
        download(pass, visit, place_of_sum(pass, visit, token), visit->gradient_sum, sum_bytes(visit));
    else if (has_gradient(visit, backward) && !(visit->layer->kind == MODEL_EMBEDDING && visit->bottom))
        download(pass, visit, place_of_gradient(pass, visit, token), visit->gradient, tile_bytes(visit));
    tiles->saved = *stashed_of(pass, token) = ops->mark(visit->dev, DEVICE_PUSH);
    if (visit->gradient_sum && visit->bottom) /* away from the next input's place */
        ops->follow(visit->dev, DEVICE_PULL, DEVICE_PUSH, tiles->saved);
    pass->tile = (pass->tile + 1) % pass->worker->plan.n_sets;
}

void device_boundaries_enter(struct device_pass *pass, struct layer_pass *visit, size_t token, bool backward)
{
    const uint32_t layer = layer_of(visit);

    if (pass->worker->plan.choice.host_stash) {
        enter_tiles(pass, visit, token, backward);
        return;
    }
    if (layer > 0)
        visit->input = device_pass_address(pass, place_of_boundary(pass, visit, layer - 1, token));
    if (!is_head(visit))
        visit->output = device_pass_address(pass, place_of_boundary(pass, visit, layer, token));
    if (has_gradient(visit, backward))
        visit->gradient = device_pass_address(pass, place_of_gradient(pass, visit, token));
    if (has_sum(pass, visit, backward))
        visit->gradient_sum = device_pass_address(pass, place_of_sum(pass, visit, token));
}

void device_boundaries_leave(struct device_pass *pass, const struct layer_pass *visit, size_t token, bool backward)
{
    if (pass->worker->plan.choice.host_stash)
        leave_tiles(pass, visit, token, backward);
}
