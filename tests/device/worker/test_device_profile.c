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
}

/* ---- a GPU with all paths: it computes nothing, and has no memory either ----
 *
 * Time is what its calls are said to take, beside what really passes, as the host's work does. */

static char *const far = (char *)(uintptr_t)(1 << 30);
static struct {
    enum number_type type;
    size_t bytes;                /* of its arena */
    unsigned n[ATTENTION_PATHS]; /* calls in bf16; in fp32 there is one path */
    unsigned n_convolutions[CONV2D_KINDS][CONV2D_PATHS], n_norms;
    bool is_prepared;
    unsigned prepared;       /* kinds of convolutions */
    double seconds, busy[2]; /* the link's ways, since the last wait */
} pretended;

enum { LIBRARY = 7 /* of convolutions */, MULTIPROCESSORS = 114 };
static const double way_bytes_per_s[] = {50e9, 40e9}, narrow_flops = 1e12, wide_flops = 4e12, call_s = 1e-3;

static double pretend_clock(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return pretended.seconds + (double)t.tv_sec + (double)t.tv_nsec / 1e9;
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
    pretended.type = type, pretended.bytes = bytes, pretended.is_prepared = false, pretended.prepared = 0;
    *out = (struct device *)far;
    return 0;
}

static void pretend_close(struct device *dev)
{
    (void)dev;
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

static void pretend_propose(struct device *dev, const struct device_matmul *op, struct products_candidates *out)
{
    (void)dev, (void)op;
    *out = (struct products_candidates){.n = 0};
}

static int pretend_choose(struct device *dev, const struct products *products, struct error *err)
{
    (void)dev, (void)products, (void)err;
    return 0;
}

static void pretend_matmul(struct device *dev, const struct device_matmul *op)
{
    (void)dev;
    pretended.seconds +=
        2.0 * (double)op->m * (double)op->n * (double)op->k / (op->n == 4096 ? wide_flops : narrow_flops);
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
    pretended.is_prepared = true;
    told[0] = 0;
}

/* All arrays are in the arena and apart from each other, the scratch of cuDNN's method included. */
static void check_arrays(struct call *call)
{
    const bool attends = call->kind == CALL_attention || call->kind == CALL_attention_backward;
    const struct call_device on = {&plan_cuda, pretended.type, 1, PLAN_ATTENTION_SCORES, true, 0};
    const struct device_attention *op = &call->attention;
    const struct plan_attention_sizes sizes = attention_sizes(op);
    struct plan_attention_scratch scratch;
    struct call_work work;

    call_describe(&work, call, &on);
    if (attends)
        plan_attention_lay_out(&scratch, PLAN_ATTENTION_SCORES, &sizes);
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

static void on_attention(struct call *call, enum attention_kernel kernel)
{
    const enum plan_attention way = pretended.is_prepared ? PLAN_ATTENTION_SCORES : PLAN_ATTENTION_OWN;

    pretended.seconds += call_s;
    check_arrays(call);
    pretended.n[attention_path_of(pretended.type, &call->attention, kernel, way)] += pretended.type == NUMBER_BF16;
}

static void pretend_attention(struct device *dev, const struct device_attention *op)
{
    (void)dev;
    on_attention(&(struct call){.kind = CALL_attention, .attention = *op}, ATTENTION_FORWARD);
}

static void pretend_attention_backward(struct device *dev, const struct device_attention *op)
{
    (void)dev;
    on_attention(&(struct call){.kind = CALL_attention_backward, .attention_backward = *op}, ATTENTION_KEYS);
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
    ck_assert_double_eq_tol(p.link_bytes_per_s / way_bytes_per_s[1], 1, 0.1);
    ck_assert_double_eq_tol(p.matmul_flops[NUMBER_BF16][3] / wide_flops, 1, 0.1);
    ck_assert_double_eq_tol(p.narrow_flops[1][NUMBER_BF16][3] / narrow_flops, 1, 0.1);
}

/* In /tmp, if not where sockets should be; without descriptors for these they are those of the machine without a profile. */
TEST(messages_are_timed_where_there_may_be_a_socket)
{
    const double known = profile_default("cuda")->message_s;
    const struct rlimit few = {4, 4};
    struct profile p;

    setenv("XDG_RUNTIME_DIR", "/nonexistent", 1);
    profile_pretended(&p);
    ck_assert_double_gt(p.message_s, 0);
    ck_assert_double_ne(p.message_s, known);
    if (SANITIZED) /* nanomsg without descriptors uses a mutex that it has not made */
        return;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &few), 0);
    profile_pretended(&p);
    ck_assert_double_eq(p.message_s, known);
}
