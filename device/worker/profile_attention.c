/* Attention: each path in one shape, and then in those that models train with.
 *
 * On a GPU the arrays of all shapes have as many numbers, so none needs much more memory than the first. A CPU computes
 * a head in one thread: there is a head for each of them. */
#include "device/worker/profile_measure.h"

#include "proto/operation/call.h"

#include <math.h>

enum {
    HOST_HEAD = 64, /* typical head width and tokens of a row */
    DEVICE_HEAD = 128,
    HOST_TOKENS = 512,
    DEVICE_TOKENS = 2048,
    DEVICE_ROWS = 4,
    DEVICE_NUMBERS = DEVICE_ROWS * DEVICE_TOKENS * MEASURE_DEVICE_WIDTH, /* of the output */
    HOST_NUMBERS = 4 << 20,                                              /* at most */
    LONG_TOKENS = 8192,                                                  /* from here on, rows are narrower: */
    LONG_WIDTH = 1024,
    SHARING = 4,        /* query heads with the same keys */
    ROUND_MS = 5,       /* there are many shapes */
    MOST_CALL_MS = 250, /* a shape is left out if a call of it should take longer, */
    HOST_MS = 4000,     /* or if all before it have taken so long */
    DEVICE_MS = 10000,
};

/* Uses the arena for qkv, out and its gradient, qkv's gradient, workspace, log-sum-exp, a bias. */
enum { ARRAYS = 8, ARRAYS_READ = 4 };

static struct measure_attention usual_shape(const struct measured *b)
{
    const size_t n_heads = b->width / (b->of_host ? HOST_HEAD : DEVICE_HEAD);

    return b->of_host ? (struct measure_attention){1, HOST_TOKENS, n_heads, n_heads, b->width}
                      : (struct measure_attention){DEVICE_ROWS, DEVICE_TOKENS, n_heads, n_heads, b->width};
}

/* The shapes of struct profile, by their place there. */
enum { SHAPES = PROFILE_LENGTHS * PROFILE_KEYS * PROFILE_HEADS };

struct place {
    int length;
    enum profile_keys keys;
    int head;
};

/* Short rows first, as they tell what longer ones will take. */
static struct place profile_attention_place_of(int i)
{
    return (struct place){i / (PROFILE_KEYS * PROFILE_HEADS), (enum profile_keys)(i / PROFILE_HEADS % PROFILE_KEYS),
                          i % PROFILE_HEADS};
}

static struct measure_attention shape_at(const struct measured *b, struct place at)
{
    const size_t head = profile_heads[at.head], n_tokens = profile_lengths[at.length];
    const size_t width = b->of_host ? head * b->n_threads : n_tokens < LONG_TOKENS ? b->width : LONG_WIDTH;
    const size_t n_heads = width / head, n_kv_heads = at.keys == PROFILE_SHARED_KEYS ? n_heads / SHARING : n_heads;

    return (struct measure_attention){b->of_host ? 1 : DEVICE_NUMBERS / (n_tokens * width), n_tokens, n_heads,
                                      n_kv_heads, width};
}

/* Numbers of one array of the output's size. */
static size_t numbers_of(const struct measure_attention *a)
{
    return a->n_rows * a->n_tokens * a->width;
}

/* Enough for every path. */
static size_t profile_attention_scratch_bytes(const struct measured *b, const struct measure_attention *a)
{
    const struct plan_attention_sizes sizes = {.n_rows = a->n_rows,
                                               .n_tokens = a->n_tokens,
                                               .n_heads = a->n_heads,
                                               .n_kv_heads = a->n_kv_heads,
                                               .width = a->width};
    const uint64_t own = plan_backend_find(b->ops->name)->scratch_bytes(&sizes, b->n_threads);
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, b->way, &sizes);
    return scratch.way != PLAN_ATTENTION_OWN && scratch.bytes > own ? scratch.bytes : own;
}

static size_t sums_bytes(const struct measure_attention *a)
{
    return a->n_rows * a->n_tokens * a->n_heads * sizeof(float);
}

static size_t profile_attention_bytes_of(const struct measured *b, const struct measure_attention *a)
{
    return ARRAYS * numbers_of(a) * number_bytes(b->type) + profile_attention_scratch_bytes(b, a) + sums_bytes(a) +
           a->n_heads * sizeof(float);
}

/* Tensor cores and cuDNN compute in 16 bits. Without them, shared keys are nothing of their own. */
static bool profile_attention_is_wanted(const struct measured *b, enum attention_path path, struct place at)
{
    const struct measure_attention a = shape_at(b, at);

    if (b->of_host && numbers_of(&a) > HOST_NUMBERS)
        return false;
    if (path == ATTENTION_PLAIN)
        return at.keys == PROFILE_OWN_KEYS && (b->of_host || b->type == NUMBER_FP32);
    return !b->of_host && b->type != NUMBER_FP32 && (path != ATTENTION_LIBRARY || b->way != PLAN_ATTENTION_OWN);
}

size_t measure_attention_bytes(const struct measured *b)
{
    struct measure_attention a = usual_shape(b);
    size_t most = profile_attention_bytes_of(b, &a);

    for (int i = 0; i < SHAPES; i++)
        for (int path = 0; path < ATTENTION_PATHS; path++)
            if (profile_attention_is_wanted(b, (enum attention_path)path, profile_attention_place_of(i))) {
                a = shape_at(b, profile_attention_place_of(i));
                most = profile_attention_bytes_of(b, &a) > most ? profile_attention_bytes_of(b, &a) : most;
            }
    return most;
}

/* b->attention, so that this path takes it: with dropout; or, in 16 bits on a GPU, with a bias by distance and a
 * window, of which tensor cores take either. */
static struct device_attention profile_attention_attention_of(const struct measured *b)
{
    const struct measure_attention *a = &b->attention;
    const size_t n = numbers_of(a) * number_bytes(b->type);
    char *const scratch = b->arena + ARRAYS * n, *const sums = scratch + profile_attention_scratch_bytes(b, a);
    struct device_attention op = {.n_rows = a->n_rows,
                                  .n_tokens = a->n_tokens,
                                  .n_heads = a->n_heads,
                                  .n_kv_heads = a->n_kv_heads,
                                  .width = a->width,
                                  .scale = 1 / sqrtf((float)(a->width / a->n_heads)),
                                  .qkv = b->arena,
                                  .out_gradient = b->arena + 3 * n,
                                  .out = b->arena + 4 * n,
                                  .qkv_gradient = b->arena + 5 * n,
                                  .scratch = scratch,
                                  .log_sum_exp = (float *)sums};

    if (b->path == ATTENTION_DRAWING)
        op.dropout.p = 0.1f;
    if (b->path == ATTENTION_PLAIN && !b->of_host && b->type != NUMBER_FP32)
        op.bias = (float *)(sums + sums_bytes(a)), op.buckets.n = 1, op.window = a->n_tokens - 1;
    return op;
}

static void profile_attention_attend(const struct measured *b)
{
    const struct device_attention op = profile_attention_attention_of(b);

    b->ops->attention(b->dev, &op);
}

static void attend_backward(const struct measured *b)
{
    const struct device_attention op = profile_attention_attention_of(b);

    b->ops->attention_backward(b->dev, &op);
}

/* The library's plans of b->attention. It then takes this shape, and no other. */
static void profile_attention_prepare(const struct measured *b)
{
    const struct device_attention op = profile_attention_attention_of(b);
    char told[DEVICE_TOLD];

    b->ops->prepare_attention(b->dev, &op, &b->way, 1, told);
}

/* In the usual shape. Forward runs first, as backward reads its output. */
static int measure_path(struct profile *out, struct measured *b, enum attention_path path)
{
    b->attention = usual_shape(b), b->path = path;
    const double each = (double)numbers_of(&b->attention) * (double)b->attention.n_tokens;
    int rc = 0;

    if (path == ATTENTION_LIBRARY)
        profile_attention_prepare(b);
    out->attention_flops[PROFILE_FORWARD][path][b->type] = 2 * each / measure_time(b, profile_attention_attend, &rc);
    if (!rc && (path != ATTENTION_LIBRARY || b->way != PLAN_ATTENTION_FORWARD)) /* else it is our kernels' */
        out->attention_flops[PROFILE_BACKWARD][path][b->type] = 5 * each / measure_time(b, attend_backward, &rc);
    return rc;
}

/* A call of b->attention, as it is priced. */
static struct call_work profile_attention_work_of(const struct measured *b, enum profile_direction direction)
{
    const struct call_device on = {plan_backend_find(b->ops->name),
                                   b->type,
                                   b->n_threads,
                                   b->path == ATTENTION_LIBRARY ? b->way : PLAN_ATTENTION_OWN,
                                   false,
                                   b->n_multiprocessors};
    struct call call = {.kind = direction == PROFILE_FORWARD ? CALL_attention : CALL_attention_backward,
                        .attention = profile_attention_attention_of(b)};
    struct call_work work;

    call_describe(&work, &call, &on);
    return work;
}

/* Nothing where the path has no part, or not the whole, of such calls, or where the rate of shorter rows makes one too
 * long. */
static int measure_direction(double flops[PROFILE_LENGTHS], const struct measured *b, enum profile_direction direction,
                             int length)
{
    const struct call_work work = profile_attention_work_of(b, direction);
    const double n = work.lasting[b->path];
    int rc = 0;

    if (work.by_path[b->path] < work.operations)
        return 0;
    if (length > 0 && !(flops[length - 1] > 0 && n / flops[length - 1] <= MOST_CALL_MS / 1e3))
        return 0;
    const double seconds =
        measure_time(b, direction == PROFILE_FORWARD ? profile_attention_attend : attend_backward, &rc);
    flops[length] = n / measure_computing(seconds, (double)work.n_launches * b->call_s);
    return rc;
}

static int measure_shape(struct profile *out, struct measured *b, enum attention_path path, struct place at)
{
    int rc = 0;

    b->attention = shape_at(b, at), b->path = path;
    if (path == ATTENTION_LIBRARY)
        profile_attention_prepare(b);
    for (int direction = 0; !rc && direction < PROFILE_DIRECTIONS; direction++)
        rc = measure_direction(out->attention_by_shape[direction][path][b->type][at.keys][at.head], b,
                               (enum profile_direction)direction, at.length);
    return rc;
}

static int measure_shapes(struct profile *out, struct measured *b)
{
    const double until = b->now() + (b->of_host ? HOST_MS : DEVICE_MS) / 1e3;
    const double usual = b->round_s;
    int rc = measure_fill(b, measure_attention_bytes(b) / ARRAYS * ARRAYS_READ / number_bytes(b->type));

    b->round_s = ROUND_MS / 1e3;
    for (int path = 0; path < ATTENTION_PATHS; path++) /* cuDNN last, as its plans may take long */
        for (int i = 0; i < SHAPES; i++)
            if (!rc && profile_attention_is_wanted(b, (enum attention_path)path, profile_attention_place_of(i)) &&
                b->now() < until)
                rc = measure_shape(out, b, (enum attention_path)path, profile_attention_place_of(i));
    b->round_s = usual;
    return rc;
}

/* The paths that the device has for this type, cuDNN last: once it is prepared, it takes the shape. */
int measure_attention(struct profile *out, struct measured *b)
{
    int rc = measure_path(out, b, ATTENTION_PLAIN);

    if (!b->of_host && b->type != NUMBER_FP32) {
        if (!rc)
            rc = measure_path(out, b, ATTENTION_TENSOR);
        if (!rc)
            rc = measure_path(out, b, ATTENTION_DRAWING);
        if (!rc && b->way != PLAN_ATTENTION_OWN)
            rc = measure_path(out, b, ATTENTION_LIBRARY);
    }
    return rc ? rc : measure_shapes(out, b);
}
