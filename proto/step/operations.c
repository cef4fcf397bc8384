/* Operations of a layer's program, as its schedule's steps run them.
 *
 * A linear map is y = x W + b with W (in, out), or its transpose, (out, in). */
#include "proto/step/operations.h"

#include <assert.h>

static size_t columns(const struct operation_run *r, int value)
{
    return r->layer->program.values[value].columns;
}

/* The address of a kept value: after the kept values before it. */
static void *kept_at(const struct operation_run *r, int value)
{
    const struct layer_pass *pass = r->pass;
    const uint64_t before = r->layer->kept[r->keeping] & ((UINT64_C(1) << value) - 1);

    return (char *)pass->kept + plan_kept_bytes(&r->layer->program, before, pass->setting,
                                                (struct plan_shape){pass->n_rows, pass->n_tokens});
}

static void *at(const struct operation_run *r, int buffer)
{
    const struct schedule_buffer *b = &r->schedule->buffers[buffer];

    switch (b->place) {
    case SCHEDULE_WORKSPACE:
        return (char *)r->pass->workspace + r->places.at[buffer];
    case SCHEDULE_KEPT:
        return kept_at(r, b->value);
    case SCHEDULE_INPUT:
        return (void *)r->pass->input; /* no step writes it */
    case SCHEDULE_OUTPUT:
        return r->pass->output;
    case SCHEDULE_GRADIENT:
        return r->pass->gradient;
    }
    return NULL;
}

enum { WEIGHT, BIAS }; /* an operation's tensors */

static const struct model_piece *piece_of(const struct operation_run *r, const struct program_operation *op, int which)
{
    return &r->pass->model->pieces[r->pass->unit->first_piece + (uint32_t)(op->tensor + which)];
}

static const void *weights_of(const struct operation_run *r, const struct program_operation *op, int which)
{
    return layer_element(r->pass, r->pass->weights, piece_of(r, op, which)->offset);
}

/* NULL: the tensor is frozen. */
static float *contribution_of(const struct operation_run *r, const struct program_operation *op, int which)
{
    const struct model_piece *piece = piece_of(r, op, which);

    return r->pass->model->tensors[piece->tensor].frozen ? NULL : r->pass->contribution + piece->offset;
}

/* ---- forward ---- */

/* What forward and backward have in common. */
static struct device_norm norm_of(const struct operation_run *r, const struct program_operation *op,
                                  const struct schedule_step *step)
{
    return (struct device_norm){.kind = op->norm.rms ? DEVICE_RMS_NORM : DEVICE_LAYER_NORM,
                                .m = layer_tokens(r->pass),
                                .n = columns(r, op->inputs[0]),
                                .offset = op->norm.offset,
                                .x = at(r, step->inputs[0]),
                                .weight = weights_of(r, op, WEIGHT),
                                .statistics = at(r, step->outputs[1])};
}

static void run_norm(const struct operation_run *r, const struct program_operation *op,
                     const struct schedule_step *step)
{
    struct device_norm norm = norm_of(r, op, step);

    norm.epsilon = op->norm.epsilon;
    norm.bias = op->norm.bias ? weights_of(r, op, BIAS) : NULL;
    norm.y = at(r, step->outputs[0]);
    r->pass->ops->norm(r->pass->dev, &norm);
}

/* The heads of queries (which 0) or of keys (1), of x and of arrays with the same rows. */
struct heads {
    size_t first; /* column */
    struct device_norm norm;
};

static struct heads heads_of(const struct operation_run *r, const struct program_operation *op,
                             const struct schedule_step *step, int which)
{
    const struct program_head_norm_options *how = &op->head_norm;
    struct heads heads = {.first = which == 0 ? 0 : (size_t)how->n_heads * how->head_width};
    float *statistics = at(r, step->outputs[1]);

    heads.norm =
        (struct device_norm){.kind = DEVICE_RMS_NORM,
                             .m = layer_tokens(r->pass),
                             .n = how->head_width,
                             .n_heads = which == 0 ? how->n_heads : how->n_kv_heads,
                             .stride = columns(r, op->inputs[0]),
                             .epsilon = how->epsilon,
                             .offset = how->offset,
                             .x = layer_element(r->pass, at(r, step->inputs[0]), heads.first),
                             .weight = weights_of(r, op, which),
                             .statistics = statistics + (which == 0 ? 0 : 2 * layer_tokens(r->pass) * how->n_heads)};
    return heads;
}

/* The columns of values, which have no norm. */
static void copy_values(const struct operation_run *r, const struct program_operation *op, void *to, const void *from)
{
    const struct program_head_norm_options *how = &op->head_norm;
    const size_t first = (size_t)(how->n_heads + how->n_kv_heads) * how->head_width;
    const struct device_dropout_add copy = {.n_rows = r->pass->n_rows,
                                            .n_tokens = r->pass->n_tokens,
                                            .n = (size_t)how->n_kv_heads * how->head_width,
                                            .stride = columns(r, op->inputs[0]),
                                            .h = layer_element(r->pass, from, first),
                                            .y = layer_element(r->pass, to, first)};

    if (to != from)
        r->pass->ops->dropout_add(r->pass->dev, &copy);
}

static void run_head_norm(const struct operation_run *r, const struct program_operation *op,
                          const struct schedule_step *step)
{
    void *const y = at(r, step->outputs[0]);

    for (int which = 0; which < 2; which++) {
        struct heads heads = heads_of(r, op, step, which);
        heads.norm.y = layer_element(r->pass, y, heads.first);
        r->pass->ops->norm(r->pass->dev, &heads.norm);
    }
    copy_values(r, op, y, at(r, step->inputs[0]));
}

/* One part of a linear map: its columns of the result, and which of the operation's tensors are its own. */
struct part {
    size_t first, columns;
    int weight, bias;
};

static struct part part_of(const struct program_operation *op, int i)
{
    struct part part = {.columns = op->part_columns[i], .weight = i, .bias = op->n_parts + i};

    for (int k = 0; k < i; k++)
        part.first += op->part_columns[k];
    return part;
}

static void run_linear(const struct operation_run *r, const struct program_operation *op,
                       const struct schedule_step *step)
{
    const struct layer_pass *pass = r->pass;
    const size_t in = columns(r, op->inputs[0]), out = columns(r, op->outputs[0]);
    const bool activates = step->activation != SCHEDULE_NONE;
    void *y = at(r, activates ? step->after : step->outputs[0]);

    for (int i = 0; i < op->n_parts; i++) {
        const struct part part = part_of(op, i);
        struct device_matmul matmul = {.transpose_b = op->linear.out_in,
                                       .m = layer_tokens(pass),
                                       .n = part.columns,
                                       .k = in,
                                       .a = at(r, step->inputs[0]),
                                       .a_stride = in,
                                       .b = weights_of(r, op, part.weight),
                                       .b_stride = op->linear.out_in ? in : part.columns,
                                       .c = layer_element(pass, y, part.first),
                                       .c_stride = out,
                                       .epilogue = op->linear.bias ? DEVICE_BIAS : DEVICE_NO_EPILOGUE,
                                       .bias = op->linear.bias ? weights_of(r, op, part.bias) : NULL};
        if (activates) {
            assert(op->linear.bias);
            matmul.epilogue = DEVICE_BIAS_ACTIVATION;
            matmul.activation = r->layer->program.operations[step->activation].activation;
            matmul.pre = at(r, step->outputs[0]);
        }
        pass->ops->matmul(pass->dev, &matmul);
    }
}

/* Rotates queries and keys in place; inverse: their gradients. */
static void turn(const struct operation_run *r, const struct program_operation *op, void *x, bool inverse)
{
    const struct layer_pass *pass = r->pass;
    struct device_rope rope = {.n_rows = pass->n_rows,
                               .n_tokens = pass->n_tokens,
                               .n_heads = op->rope.n_heads,
                               .head_width = op->rope.head_width,
                               .n_rotated = op->rope.n_rotated,
                               .frequencies = r->layer->program.frequencies,
                               .x = x,
                               .stride = columns(r, op->inputs[0]),
                               .inverse = inverse};

    if (!pass->spans)
        pass->ops->rope(pass->dev, &rope);
    for (uint32_t i = 0; i < pass->n_spans; i++) {
        const struct layer_span *span = &pass->spans[i];
        rope.n_tokens = span->n;
        rope.first = span->position;
        rope.x = layer_element(pass, x, span->at * rope.stride);
        pass->ops->rope(pass->dev, &rope);
    }
}

struct device_attention operation_attention(const struct operation_run *r, const struct schedule_step *step)
{
    const struct layer_pass *pass = r->pass;
    const struct program_operation *op = operation_of(r, step);
    const struct program_attention_options *how = &op->attention;
    const bool backward = step->action == SCHEDULE_BACKWARD;

    return (struct device_attention){
        .n_rows = pass->n_rows,
        .n_tokens = pass->n_tokens,
        .n_heads = how->n_heads,
        .n_kv_heads = how->n_kv_heads,
        .full = how->full,
        .window = how->window,
        .lengths = pass->lengths,
        .width = columns(r, op->outputs[0]),
        .scale = how->scale_by_layer ? how->scale / (float)(pass->layer->index + 1) : how->scale,
        .qkv = at(r, step->inputs[0]),
        .out = at(r, step->outputs[0]),
        .log_sum_exp = at(r, step->outputs[1]),
        .scratch = at(r, step->scratch),
        .out_gradient = backward ? at(r, step->y_gradient) : NULL,
        .qkv_gradient = backward ? at(r, step->x_gradient) : NULL,
        .dropout = layer_dropout(pass, how->dropout.p, how->dropout.site),
    };
}

/* The text's cache holds keys and values of its tokens before this pass. */
static void run_attention_cached(const struct operation_run *r, const struct device_attention *attention,
                                 const struct schedule_step *step, const struct layer_span *span)
{
    const struct layer_pass *pass = r->pass;
    const size_t qkv_width = columns(r, operation_of(r, step)->inputs[0]);
    const struct device_attention_cached op = {.first = span->position,
                                               .n_tokens = span->n,
                                               .n_heads = attention->n_heads,
                                               .n_kv_heads = attention->n_kv_heads,
                                               .window = attention->window,
                                               .width = attention->width,
                                               .n_positions = pass->setting->goal.seq,
                                               .scale = attention->scale,
                                               .qkv = layer_element(pass, attention->qkv, span->at * qkv_width),
                                               .out = layer_element(pass, attention->out, span->at * attention->width),
                                               .cache =
                                                   (char *)span->cache + pass->layer->index * pass->plan->cache_bytes,
                                               .scratch = attention->scratch};

    pass->ops->attention_cached(pass->dev, &op);
}

static void run_attention(const struct operation_run *r, const struct schedule_step *step)
{
    const struct device_attention attention = operation_attention(r, step);

    if (!r->pass->spans)
        r->pass->ops->attention(r->pass->dev, &attention);
    for (uint32_t i = 0; i < r->pass->n_spans; i++)
        run_attention_cached(r, &attention, step, &r->pass->spans[i]);
}

static void run_activation(const struct operation_run *r, const struct program_operation *op,
                           const struct schedule_step *step)
{
    r->pass->ops->activate(r->pass->dev,
                           &(struct device_activate){.n = layer_tokens(r->pass) * columns(r, op->inputs[0]),
                                                     .activation = op->activation,
                                                     .x = at(r, step->inputs[0]),
                                                     .y = at(r, step->outputs[0])});
}

/* What forward and backward have in common. */
static struct device_glu glu_of(const struct operation_run *r, const struct program_operation *op,
                                const struct schedule_step *step)
{
    const size_t n = columns(r, op->outputs[0]);
    const void *x = at(r, step->inputs[0]);

    return (struct device_glu){.m = layer_tokens(r->pass),
                               .n = n,
                               .activation = op->activation,
                               .gate = x,
                               .up = layer_element(r->pass, x, n),
                               .stride = 2 * n};
}

static void run_glu(const struct operation_run *r, const struct program_operation *op, const struct schedule_step *step)
{
    struct device_glu glu = glu_of(r, op, step);

    glu.y = at(r, step->outputs[0]);
    r->pass->ops->glu(r->pass->dev, &glu);
}

/* y = x + dropout(h), or dropout(h) without x. */
static void add(const struct operation_run *r, const struct program_operation *op, void *y, const void *x,
                const void *h)
{
    const struct layer_pass *pass = r->pass;
    const struct device_dropout_add sum = {.n_rows = pass->n_rows,
                                           .n_tokens = pass->n_tokens,
                                           .n = columns(r, op->outputs[0]),
                                           .x = x,
                                           .h = h,
                                           .y = y,
                                           .dropout = layer_dropout(pass, op->dropout.p, op->dropout.site)};

    pass->ops->dropout_add(pass->dev, &sum);
}

static void run_forward(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);

    switch (op->kind) {
    case PROGRAM_NORM:
        run_norm(r, op, step);
        return;
    case PROGRAM_LINEAR:
        run_linear(r, op, step);
        return;
    case PROGRAM_HEAD_NORM:
        run_head_norm(r, op, step);
        return;
    case PROGRAM_ROPE:
        assert(step->inputs[0] == step->outputs[0]);
        turn(r, op, at(r, step->outputs[0]), false);
        return;
    case PROGRAM_ATTENTION:
        run_attention(r, step);
        return;
    case PROGRAM_ACTIVATION:
        run_activation(r, op, step);
        return;
    case PROGRAM_GLU:
        run_glu(r, op, step);
        return;
    case PROGRAM_ADD:
        add(r, op, at(r, step->outputs[0]), at(r, step->inputs[0]), at(r, step->inputs[1]));
        return;
    case PROGRAM_DROPOUT:
        add(r, op, at(r, step->outputs[0]), NULL, at(r, step->inputs[0]));
        return;
    case PROGRAM_KINDS:
        break;
    }
    assert(0 && "an operation");
}

/* ---- backward ---- */

/* W's gradient += x^T dy, or its transpose dy^T x; a bias's gradient += the sum of dy's rows. Trained tensors only. */
static void run_contribution(const struct operation_run *r, const struct program_operation *op,
                             const struct schedule_step *step)
{
    const struct layer_pass *pass = r->pass;
    const size_t in = columns(r, op->inputs[0]), out = columns(r, op->outputs[0]);
    const void *dy = at(r, step->y_gradient);

    for (int i = 0; i < op->n_parts; i++) {
        const struct part part = part_of(op, i);
        const void *const x = at(r, step->inputs[0]), *const dy_part = layer_element(pass, dy, part.first);
        const bool swap = op->linear.out_in;
        const struct device_matmul matmul = {.transpose_a = true,
                                             .m = swap ? part.columns : in,
                                             .n = swap ? in : part.columns,
                                             .k = layer_tokens(pass),
                                             .a = swap ? dy_part : x,
                                             .a_stride = swap ? out : in,
                                             .b = swap ? x : dy_part,
                                             .b_stride = swap ? in : out,
                                             .c = contribution_of(r, op, part.weight),
                                             .c_stride = swap ? in : part.columns,
                                             .wide = true,
                                             .over_rows = true,
                                             .beta = pass->fresh ? 0 : 1};
        float *const bias = op->linear.bias ? contribution_of(r, op, part.bias) : NULL;
        if (matmul.c)
            pass->ops->matmul(pass->dev, &matmul);
        if (bias)
            pass->ops->reduce_rows(pass->dev,
                                   &(struct device_reduce_rows){bias, dy_part, layer_tokens(pass), part.columns, out});
    }
}

/* dx = dy W^T, part after part; if x is an activation, times its slope: the gradient of the activation's operand. */
static void run_linear_backward(const struct operation_run *r, const struct program_operation *op,
                                const struct schedule_step *step)
{
    const struct layer_pass *pass = r->pass;
    const size_t in = columns(r, op->inputs[0]), out = columns(r, op->outputs[0]);

    for (int i = 0; i < op->n_parts; i++) {
        const struct part part = part_of(op, i);
        struct device_matmul matmul = {.transpose_b = !op->linear.out_in,
                                       .m = layer_tokens(pass),
                                       .n = in,
                                       .k = part.columns,
                                       .a = layer_element(pass, at(r, step->y_gradient), part.first),
                                       .a_stride = out,
                                       .b = weights_of(r, op, part.weight),
                                       .b_stride = op->linear.out_in ? in : part.columns,
                                       .c = at(r, step->x_gradient),
                                       .c_stride = in,
                                       .beta = step->accumulate || i > 0 ? 1 : 0};
        if (step->activation != SCHEDULE_NONE) {
            matmul.epilogue = DEVICE_ACTIVATION_GRADIENT;
            matmul.activation = r->layer->program.operations[step->activation].activation;
            matmul.pre = at(r, step->inputs[0]);
        }
        pass->ops->matmul(pass->dev, &matmul);
    }
}

static void run_norm_backward(const struct operation_run *r, const struct program_operation *op,
                              const struct schedule_step *step)
{
    struct device_norm norm = norm_of(r, op, step);

    norm.y_gradient = at(r, step->y_gradient);
    norm.x_gradient = at(r, step->x_gradient);
    norm.accumulate = step->accumulate;
    norm.weight_gradient = contribution_of(r, op, WEIGHT);
    norm.bias_gradient = op->norm.bias ? contribution_of(r, op, BIAS) : NULL;
    r->pass->ops->norm_backward(r->pass->dev, &norm);
}

static void run_head_norm_backward(const struct operation_run *r, const struct program_operation *op,
                                   const struct schedule_step *step)
{
    void *const dy = at(r, step->y_gradient), *const dx = at(r, step->x_gradient);

    assert(!step->accumulate); /* no other operation reads x */
    for (int which = 0; which < 2; which++) {
        struct heads heads = heads_of(r, op, step, which);
        heads.norm.y_gradient = layer_element(r->pass, dy, heads.first);
        heads.norm.x_gradient = layer_element(r->pass, dx, heads.first);
        heads.norm.weight_gradient = contribution_of(r, op, which);
        r->pass->ops->norm_backward(r->pass->dev, &heads.norm);
    }
    copy_values(r, op, dx, dy);
}

static void run_attention_backward(const struct operation_run *r, const struct schedule_step *step)
{
    const struct device_attention attention = operation_attention(r, step);

    r->pass->ops->attention_backward(r->pass->dev, &attention);
}

static void run_glu_backward(const struct operation_run *r, const struct program_operation *op,
                             const struct schedule_step *step)
{
    struct device_glu glu = glu_of(r, op, step);

    glu.y_gradient = at(r, step->y_gradient);
    glu.gate_gradient = at(r, step->x_gradient);
    glu.up_gradient = layer_element(r->pass, glu.gate_gradient, glu.n);
    glu.gradient_stride = 2 * glu.n;
    r->pass->ops->glu_backward(r->pass->dev, &glu);
}

/* The gradient of an activation that no linear map's step computes: in place, so the gradient it begins with may have to be
 * copied. */
static void run_activation_backward(const struct operation_run *r, const struct program_operation *op,
                                    const struct schedule_step *step)
{
    const struct layer_pass *pass = r->pass;
    const size_t n = columns(r, op->inputs[0]);
    const struct device_dropout_add copy = {.n_rows = pass->n_rows,
                                            .n_tokens = pass->n_tokens,
                                            .n = n,
                                            .h = at(r, step->y_gradient),
                                            .y = at(r, step->x_gradient)};

    assert(!step->accumulate);
    if (step->y_gradient != step->x_gradient)
        pass->ops->dropout_add(pass->dev, &copy);
    pass->ops->activate_backward(pass->dev, &(struct device_activate){.n = layer_tokens(pass) * n,
                                                                      .activation = op->activation,
                                                                      .x = at(r, step->inputs[0]),
                                                                      .gradient = at(r, step->x_gradient)});
}

static void run_backward(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);

    switch (op->kind) {
    case PROGRAM_NORM:
        run_norm_backward(r, op, step);
        return;
    case PROGRAM_LINEAR:
        run_linear_backward(r, op, step);
        return;
    case PROGRAM_HEAD_NORM:
        run_head_norm_backward(r, op, step);
        return;
    case PROGRAM_ROPE:
        assert(step->y_gradient == step->x_gradient);
        turn(r, op, at(r, step->x_gradient), true);
        return;
    case PROGRAM_GLU:
        run_glu_backward(r, op, step);
        return;
    case PROGRAM_ATTENTION:
        run_attention_backward(r, step);
        return;
    case PROGRAM_ADD: /* dropout's gradient */
    case PROGRAM_DROPOUT:
        assert(!step->accumulate);
        add(r, op, at(r, step->x_gradient), NULL, at(r, step->y_gradient));
        return;
    case PROGRAM_ACTIVATION:
        run_activation_backward(r, op, step);
        return;
    case PROGRAM_KINDS:
        break;
    }
    assert(0 && "an operation");
}

bool operation_contributes(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool has_gradients =
        step->action == SCHEDULE_CONTRIBUTE ||
        (step->action == SCHEDULE_BACKWARD && (op->kind == PROGRAM_NORM || op->kind == PROGRAM_HEAD_NORM));

    for (int i = 0; has_gradients && i < op->n_tensors; i++)
        if (contribution_of(r, op, i))
            return true;
    return false;
}

void operation_step(const struct operation_run *r, const struct schedule_step *step)
{
    switch (step->action) {
    case SCHEDULE_FORWARD:
        run_forward(r, step);
        break;
    case SCHEDULE_CONTRIBUTE:
        run_contribution(r, operation_of(r, step), step);
        break;
    case SCHEDULE_BACKWARD:
        run_backward(r, step);
        break;
    }
}
