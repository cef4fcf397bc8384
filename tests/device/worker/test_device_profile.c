/* What a profile is measured on: a device that looks at its operands, and computes nothing. */
#include "device/cpu/cpu.h"
#include "device/worker/profile.h"
#include "proto/operation/attention_path.h"
#include "proto/operation/call.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { LOOKED = 4096 };

static unsigned n_products, n_attentions, n_convolutions, n_norms;

static double number_at(const struct device *dev, const void *at, size_t i)
{
    return dev->type == NUMBER_BF16 ? (double)number_from_bf16(((const uint16_t *)at)[i]) : ((const float *)at)[i];
}

/* Mean 0 and deviation 1, each to six deviations of their own: 1/64, and about as much for the other. */
static void check_random(const struct device *dev, const void *at)
{
    double sum = 0, squares = 0;

    for (size_t i = 0; i < LOOKED; i++) {
        const double x = number_at(dev, at, i);
        sum += x, squares += x * x;
    }
    ck_assert_double_eq_tol(sum / LOOKED, 0, 6.0 / 64);
    ck_assert_double_eq_tol(sqrt(squares / LOOKED), 1, 6.0 / 64);
}

/* Of a CPU: x and the weights, whatever is computed. */
static void conv2d(struct device *dev, const struct device_conv2d *op)
{
    n_convolutions++;
    check_random(dev, op->x ? op->x : op->weight);
    check_random(dev, op->y ? op->weight : op->y_gradient);
}

static void norm(struct device *dev, const struct device_norm *op)
{
    n_norms++;
    check_random(dev, op->x);
}

static void matmul(struct device *dev, const struct device_matmul *op)
{
    n_products++;
    check_random(dev, op->a);
    check_random(dev, op->b);
}

static void attention(struct device *dev, const struct device_attention *op)
{
    n_attentions++;
    check_random(dev, op->qkv);
}

static void attention_backward(struct device *dev, const struct device_attention *op)
{
    n_attentions++;
    check_random(dev, op->qkv);
    check_random(dev, op->out_gradient);
}

TEST(operations_are_timed_on_random_numbers)
{
    struct device_ops ops = device_cpu;
    struct error err = {""};
    struct profile p;

    memset(&p, 0xff, sizeof p); /* what is measured, and what is not */
    ops.matmul = matmul, ops.attention = attention, ops.attention_backward = attention_backward;
    ops.conv2d = ops.conv2d_input_gradient = ops.conv2d_weight_gradient = conv2d;
    ops.norm = ops.norm_backward = norm;
    ck_assert_msg(device_profile(&p, &ops, 0, 1, NULL, &err) == 0, "%s", err.text);
    ck_assert_double_eq(p.host_bytes_per_s, 0);
    ck_assert_uint_gt(n_products, NUMBER_TYPES * PROFILE_ROWS);
    ck_assert_uint_gt(n_attentions, NUMBER_TYPES * PROFILE_DIRECTIONS);
    ck_assert_uint_gt(n_convolutions, PROFILE_TYPES * CONV2D_KINDS);
    ck_assert_uint_gt(n_norms, PROFILE_DIRECTIONS);
    for (int kind = 0; kind < CONV2D_KINDS; kind++) {
        ck_assert_double_gt(p.conv2d_flops[kind][CONV2D_OWN][NUMBER_BF16], 0);
        ck_assert_double_eq(p.conv2d_flops[kind][CONV2D_LIBRARY][NUMBER_BF16], 0);
    }
    ck_assert_double_eq(p.narrow_flops[0][NUMBER_FP32][0], 0);
    for (int head = 0; head < PROFILE_HEADS; head++) {
        const double(*const by_keys)[PROFILE_HEADS][PROFILE_LENGTHS] =
            p.attention_by_shape[PROFILE_BACKWARD][ATTENTION_PLAIN][NUMBER_BF16];
        ck_assert_double_gt(by_keys[PROFILE_OWN_KEYS][head][1], 0);
        ck_assert_double_eq(by_keys[PROFILE_SHARED_KEYS][head][1], 0);
    }
}

/* ---- a GPU with all paths: it computes nothing, and has no memory either ----
 *
 * While it is open, time is what its calls are said to take; else it passes, as the host is measured then. */

static char *const far = (char *)(uintptr_t)(1 << 30);
static struct {
    enum number_type type;
    size_t bytes;                /* of its arena */
    double opened;               /* 0: it is not open */
    double multiplied, attended; /* seconds since then in products, and in attention but for its usual shape */
    double prepare_s;            /* of a shape's plans */
    bool is_slow;                /* by the algorithm that was chosen last */
    unsigned n[ATTENTION_PATHS]; /* calls in bf16; in fp32 there is one path */
    unsigned n_convolutions[CONV2D_KINDS][CONV2D_PATHS], n_norms;
    struct device_attention prepared_attention; /* the shape that its library takes; no tokens: none */
    unsigned prepared;                          /* kinds of convolutions */
    double seconds, busy[2];                    /* the link's ways, since the last wait */
} pretended;

enum { LIBRARY = 7 /* of convolutions */, MULTIPROCESSORS = 114 };
static const double way_bytes_per_s[] = {50e9, 40e9}, narrow_flops = 1e12, wide_flops = 4e12, call_s = 1e-5;

static double real_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double pretend_clock(void)
{
    return pretended.seconds + (pretended.opened > 0 ? pretended.opened : real_clock());
}

static int pretend_probe(unsigned index, struct device_facts *facts, struct error *err)
{
    (void)index, (void)err;
    *facts = (struct device_facts){.attention = PLAN_ATTENTION_SCORES,
                                   .convolution = LIBRARY,
                                   .n_multiprocessors = MULTIPROCESSORS};
    return 0;
}

static int pretend_open(struct device **out, unsigned index, enum number_type type, size_t bytes, unsigned n_threads,
                        struct error *err)
{
    (void)index, (void)n_threads, (void)err;
    pretended.type = type, pretended.bytes = bytes, pretended.prepared = 0;
    pretended.prepared_attention = (struct device_attention){0};
    pretended.opened = real_clock(), pretended.multiplied = pretended.attended = 0;
    *out = (struct device *)far;
    return 0;
}

static void pretend_close(struct device *dev)
{
    (void)dev;
    pretended.opened = 0;
}

static void *pretend_arena(struct device *dev)
{
    (void)dev;
    return far;
}

static void pretend_upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    (void)dev, (void)host;
    ck_assert((char *)dst >= far && (char *)dst + bytes <= far + pretended.bytes);
    pretended.busy[0] += (double)bytes / way_bytes_per_s[0];
}

static void pretend_download(struct device *dev, void *host, const void *src, size_t bytes)
{
    (void)dev, (void)host;
    ck_assert((const char *)src >= far && (const char *)src + bytes <= far + pretended.bytes);
    pretended.busy[1] += (double)bytes / way_bytes_per_s[1];
}

static int pretend_lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    (void)dev, (void)host, (void)bytes, (void)writable, (void)err;
    return 0;
}

/* Both ways are at work at once. */
static int pretend_sync(struct device *dev)
{
    (void)dev;
    pretended.seconds += fmax(pretended.busy[0], pretended.busy[1]);
    pretended.busy[0] = pretended.busy[1] = 0;
    return 0;
}

/* Of two algorithms the first is a tenth slower. */
static void pretend_propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    (void)dev, (void)op;
    *out = (struct products_candidates){.version = 1, .n = 2, .of = {{true, {1}}, {true, {2}}}};
}

static int pretend_choose(struct device *dev, const struct products *products, struct error *err)
{
    (void)dev, (void)err;
    pretended.is_slow = false;
    for (int class = 0; class < PRODUCTS_CLASSES; class ++)
        pretended.is_slow |= products->of[class].known && products->of[class].config[0] == 1;
    return 0;
}

/* Its clock is twice as high until it has worked for a second. */
static void pretend_matmul(struct device *dev, const struct device_matmul *op)
{
    const double flops = (op->n == 4096 ? wide_flops : narrow_flops) * (pretended.multiplied < 1 ? 2 : 1) *
                         (pretended.is_slow ? 0.9 : 1);
    const double seconds = 2.0 * (double)op->m * (double)op->n * (double)op->k / flops;

    (void)dev;
    pretended.seconds += seconds;
    pretended.multiplied += seconds;
}

static void pretend_add(struct device *dev, const struct device_dropout_add *op)
{
    (void)dev, (void)op;
    pretended.seconds += call_s;
}

static void pretend_prepare(struct device *dev, const struct device_attention *ops, const enum plan_attention *ways,
                            size_t n, char told[DEVICE_TOLD])
{
    (void)dev;
    ck_assert_uint_eq(n, 1);
    ck_assert_int_eq(ways[0], PLAN_ATTENTION_SCORES);
    ck_assert(attention_suits_library(pretended.type, &ops[0]));
    pretended.prepared_attention = ops[0];
    pretended.seconds += pretended.prepare_s, pretended.attended += pretended.prepare_s;
    told[0] = 0;
}

/* All arrays are in the arena and apart from each other, the scratch of cuDNN's method included. */
static void check_arrays(struct call *call)
{
    const bool attends = call->kind == CALL_attention || call->kind == CALL_attention_backward;
    const struct call_device on = {&plan_cuda, pretended.type, 1, PLAN_ATTENTION_SCORES, true, 0};
    const struct device_attention *op = &call->attention;
    struct plan_attention_scratch scratch;
    struct call_work work;

    call_describe(&work, call, &on);
    if (attends) { /* of another kind, the union's attention is whatever lies there */
        const struct plan_attention_sizes sizes = attention_sizes(op);
        plan_attention_lay_out(&scratch, PLAN_ATTENTION_SCORES, &sizes);
    }
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const char *a = call_get(&work.arrays[i]);
        size_t n = work.arrays[i].n * call_type_bytes(work.arrays[i].type, pretended.type);
        n = attends && a == op->scratch && n < scratch.bytes ? scratch.bytes : n;
        ck_assert_msg(a >= far && a + n <= far + pretended.bytes, "%s is not in the arena", work.arrays[i].name);
        for (unsigned j = 0; j < work.n_arrays; j++) {
            const char *b = call_get(&work.arrays[j]);
            ck_assert_msg(i == j || b < a || b >= a + n, "%s is in %s", work.arrays[j].name, work.arrays[i].name);
        }
    }
}

/* A rate of its own for each path and shape. */
static double flops_of(enum attention_path path, enum profile_direction direction, bool shared, size_t head, size_t n)
{
    static const double of_path[ATTENTION_PATHS] = {15e12, 300e12, 100e12, 500e12};

    return of_path[path] * (direction == PROFILE_BACKWARD ? 0.7 : 1) * (shared ? 0.9 : 1) *
           (1 - 0.05 * log2((double)head)) * log2((double)n) / 16;
}

static bool is_prepared(const struct device_attention *op)
{
    return pretended.prepared_attention.n_tokens > 0 && device_attention_alike(&pretended.prepared_attention, op);
}

/* Backward takes the paths of two kernels: 3 of 7 products one, 4 the other. */
static void on_attention(struct call *call, enum profile_direction direction)
{
    static const struct {
        enum attention_kernel kernel;
        double products;
    } kernels[] = {{ATTENTION_FORWARD, 2}, {ATTENTION_QUERIES, 5 * 3.0 / 7}, {ATTENTION_KEYS, 5 * 4.0 / 7}};
    const struct device_attention *op = &call->attention;
    const enum plan_attention way = is_prepared(op) ? PLAN_ATTENTION_SCORES : PLAN_ATTENTION_OWN;
    const double each = (double)(op->n_rows * op->n_tokens) * (double)(op->n_tokens * op->width);
    double seconds = call_s;

    check_arrays(call);
    for (int i = direction == PROFILE_FORWARD ? 0 : 1; i < (direction == PROFILE_FORWARD ? 1 : 3); i++) {
        const enum attention_path path = attention_path_of(pretended.type, op, kernels[i].kernel, way);
        const double flops = flops_of(path, direction, device_kv_heads(op->n_heads, op->n_kv_heads) < op->n_heads,
                                      op->width / op->n_heads, op->n_tokens);
        seconds += kernels[i].products * each / flops;
        pretended.n[path] += pretended.type == NUMBER_BF16;
    }
    pretended.seconds += seconds;
    pretended.attended += op->n_tokens != 2048 ? seconds : 0;
}

static void pretend_attention(struct device *dev, const struct device_attention *op)
{
    (void)dev;
    on_attention(&(struct call){.kind = CALL_attention, .attention = *op}, PROFILE_FORWARD);
}

static void pretend_attention_backward(struct device *dev, const struct device_attention *op)
{
    (void)dev;
    on_attention(&(struct call){.kind = CALL_attention_backward, .attention_backward = *op}, PROFILE_BACKWARD);
}

static void pretend_prepare_conv2d(struct device *dev, const struct device_conv2d *ops, size_t n, uint32_t convolution,
                                   char told[DEVICE_TOLD])
{
    (void)dev;
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(convolution, LIBRARY);
    ck_assert_int_eq(pretended.type, NUMBER_BF16);
    pretended.prepared |= 1u << (ops->weight_gradient ? CONV2D_WEIGHTS
                                 : ops->x_gradient    ? CONV2D_INPUT
                                                      : CONV2D_FORWARD);
    told[0] = 0;
}

static void on_convolution(enum call_kind kind, const struct device_conv2d *op, enum conv2d_kind conv2d)
{
    pretended.seconds += call_s;
    check_arrays(&(struct call){.kind = kind, .conv2d = *op});
    pretended.n_convolutions[conv2d][pretended.prepared >> conv2d & 1]++;
}

static void pretend_conv2d(struct device *dev, const struct device_conv2d *op)
{
    (void)dev;
    on_convolution(CALL_conv2d, op, CONV2D_FORWARD);
}

static void pretend_conv2d_input(struct device *dev, const struct device_conv2d *op)
{
    (void)dev;
    on_convolution(CALL_conv2d_input_gradient, op, CONV2D_INPUT);
}

static void pretend_conv2d_weights(struct device *dev, const struct device_conv2d *op)
{
    (void)dev;
    on_convolution(CALL_conv2d_weight_gradient, op, CONV2D_WEIGHTS);
}

static void pretend_norm(struct device *dev, const struct device_norm *op)
{
    (void)dev;
    pretended.n_norms++;
    pretended.seconds += call_s;
    ck_assert_int_eq(pretended.type, NUMBER_BF16);
    check_arrays(&(struct call){.kind = CALL_norm, .norm = *op});
}

static void pretend_norm_backward(struct device *dev, const struct device_norm *op)
{
    (void)dev;
    pretended.n_norms++;
    pretended.seconds += call_s;
    check_arrays(&(struct call){.kind = CALL_norm_backward, .norm_backward = *op});
}

static void profile_pretended(struct profile *out)
{
    const struct device_ops ops = {.name = "cuda",
                                   .probe = pretend_probe,
                                   .open = pretend_open,
                                   .close = pretend_close,
                                   .arena = pretend_arena,
                                   .upload = pretend_upload,
                                   .download = pretend_download,
                                   .lend = pretend_lend,
                                   .sync = pretend_sync,
                                   .propose = pretend_propose,
                                   .choose = pretend_choose,
                                   .matmul = pretend_matmul,
                                   .dropout_add = pretend_add,
                                   .prepare_attention = pretend_prepare,
                                   .attention = pretend_attention,
                                   .attention_backward = pretend_attention_backward,
                                   .prepare_conv2d = pretend_prepare_conv2d,
                                   .conv2d = pretend_conv2d,
                                   .conv2d_input_gradient = pretend_conv2d_input,
                                   .conv2d_weight_gradient = pretend_conv2d_weights,
                                   .norm = pretend_norm,
                                   .norm_backward = pretend_norm_backward};
    struct error err = {""};

    ck_assert_msg(device_profile(out, &ops, 0, 1, pretend_clock, &err) == 0, "%s", err.text);
}

/* The slower way of the link tells, as both are at work; narrow products have rates of their own. */
TEST(a_gpu_is_timed_on_each_path)
{
    struct profile p;

    profile_pretended(&p);
    ck_assert_int_eq(p.attention, PLAN_ATTENTION_SCORES);
    for (int path = 0; path < ATTENTION_PATHS; path++) {
        ck_assert_msg(pretended.n[path] > 0, "path %d was not timed", path);
        for (int direction = 0; direction < PROFILE_DIRECTIONS; direction++) {
            ck_assert_double_gt(p.attention_flops[direction][path][NUMBER_BF16], 0);
            ck_assert_int_eq(p.attention_flops[direction][path][NUMBER_FP32] > 0, path == ATTENTION_PLAIN);
        }
    }
    for (int kind = 0; kind < CONV2D_KINDS; kind++)
        for (int path = 0; path < CONV2D_PATHS; path++) {
            ck_assert_msg(pretended.n_convolutions[kind][path] > 0, "kind %d, path %d was not timed", kind, path);
            ck_assert_double_gt(p.conv2d_flops[kind][path][NUMBER_BF16], 0);
        }
    ck_assert_double_eq(p.conv2d_flops[CONV2D_FORWARD][CONV2D_LIBRARY][NUMBER_FP32], 0);
    ck_assert_uint_gt(pretended.n_norms, PROFILE_DIRECTIONS);
    ck_assert_double_eq(p.n_multiprocessors, MULTIPROCESSORS);
    ck_assert_double_gt(p.message_s, 0);
    ck_assert_double_eq_tol(p.link_bytes_per_s / way_bytes_per_s[1], 1, 1e-6);
    /* Updates take no time here, and copies each way that of the slower one: of a slice of n numbers, 28 n bytes and k
     * times 8 n in k times 4 n / 40e9 s, so fewer copies move more. Where updates alone are slow, as sanitized, k is at
     * its limit. */
    const double k = fmin(ceil(p.link_bytes_per_s / 4 / p.update_parameters_per_s), 1000);
    ck_assert_double_eq_tol(p.host_bytes_per_s / (2 * way_bytes_per_s[1] + 7 * way_bytes_per_s[1] / k), 1, 1e-6);
    for (int class = 0; class < PRODUCTS_CLASSES; class ++)
        ck_assert(p.products.of[class].known && p.products.of[class].config[0] == 2);
    for (int type = 0; type < PROFILE_TYPES; type++)
        for (int rows = 0; rows < PROFILE_ROWS; rows++) {
            ck_assert_double_eq_tol(p.matmul_flops[type][rows] / wide_flops, 1, 1e-6);
            for (int width = 0; width < PROFILE_NARROW; width++)
                ck_assert_double_eq_tol(p.narrow_flops[width][type][rows] / narrow_flops, 1, 1e-6);
        }
}

/* Lengths of rows, by hand. Those of 32 Ki tokens would take the plain kernel 0.3 s. With dropout, tensor cores have no
 * heads of 256; cuDNN's gradients are for heads of 128 with keys of their own, up to 4 Ki. */
static int lengths_known(enum attention_path path, enum profile_direction direction, enum number_type type,
                         enum profile_keys keys, int head)
{
    const bool is_backward = direction == PROFILE_BACKWARD, is_shared = keys == PROFILE_SHARED_KEYS;

    switch (path) {
    case ATTENTION_PLAIN:
        return type == NUMBER_FP32 && !is_shared ? 2 : 0;
    case ATTENTION_TENSOR:
        return type == NUMBER_FP32 ? 0 : 3;
    case ATTENTION_DRAWING:
        return type == NUMBER_FP32 || head == 2 ? 0 : 3;
    case ATTENTION_LIBRARY:
        return type == NUMBER_FP32 ? 0 : !is_backward ? 3 : head == 1 && !is_shared ? 2 : 0;
    case ATTENTION_PATHS:
        break;
    }
    return 0;
}

TEST(attention_is_timed_in_the_shapes_that_models_train_with)
{
    struct profile p;

    profile_pretended(&p);
    for (int i = 0; i < PROFILE_DIRECTIONS * ATTENTION_PATHS * PROFILE_TYPES * PROFILE_KEYS * PROFILE_HEADS; i++) {
        const int head = i % 3, keys = i / 3 % 2, type = i / 6 % 2, path = i / 12 % ATTENTION_PATHS,
                  direction = i / 12 / ATTENTION_PATHS;
        const double *const flops = p.attention_by_shape[direction][path][type][keys][head];
        for (int length = 0; length < PROFILE_LENGTHS; length++) {
            const double by_hand = flops_of((enum attention_path)path, (enum profile_direction)direction, keys == 1,
                                            (size_t)64 << head, (size_t)512 << 3 * length);
            const bool known = length < lengths_known((enum attention_path)path, (enum profile_direction)direction,
                                                      (enum number_type)type, (enum profile_keys)keys, head);
            ck_assert_msg(known ? fabs(flops[length] / by_hand - 1) < 1e-6 : flops[length] == 0,
                          "direction %d, path %d, type %d, keys %d, head %d, length %d: %g, by hand %g", direction,
                          path, type, keys, head, length, flops[length], known ? by_hand : 0);
        }
    }
}

/* A library that takes two seconds for each of 18 shapes' plans: after 10 seconds no shape begins, and the last took
 * less than 5. */
TEST(timing_attention_ends_where_a_library_takes_long)
{
    struct profile p;

    pretended.prepare_s = 2;
    profile_pretended(&p);
    pretended.prepare_s = 0;
    ck_assert_double_gt(p.attention_by_shape[0][ATTENTION_TENSOR][NUMBER_BF16][PROFILE_SHARED_KEYS][2][2], 0);
    ck_assert_double_gt(p.attention_by_shape[0][ATTENTION_LIBRARY][NUMBER_BF16][PROFILE_OWN_KEYS][0][0], 0);
    ck_assert_double_eq(p.attention_by_shape[0][ATTENTION_LIBRARY][NUMBER_BF16][PROFILE_SHARED_KEYS][2][2], 0);
    ck_assert_double_lt(pretended.attended, 2 + 10 + 5); /* and the plan of the usual shape */
}

/* In /tmp, if not where sockets should be; without descriptors for these they are those of the machine without a
 * profile. */
TEST(messages_are_timed_where_there_may_be_a_socket)
{
    const double known = profile_default("cuda")->message_s;
    const struct rlimit few = {4, 4};
    struct profile p;

    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    profile_pretended(&p);
    ck_assert_double_gt(p.message_s, 0);
    ck_assert_double_ne(p.message_s, known);
    if (SANITIZED)
        TEST_SKIP("nanomsg without descriptors uses a mutex that it has not made");
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    profile_pretended(&p);
    ck_assert_double_eq(p.message_s, known);
}
