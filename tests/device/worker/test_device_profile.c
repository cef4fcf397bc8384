/* What a profile is measured on: a device that looks at its operands, and computes nothing. */
#include "device/cpu/cpu.h"
#include "device/worker/profile.h"
#include "proto/operation/call.h"
#include "tests/kit/test.h"
#include "device/find.h"

#include <math.h>
#include <string.h>

enum { LOOKED = 4096 };

static unsigned n_products, n_attentions;

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

TEST(products_and_attention_are_timed_on_random_numbers)
{
    struct device_ops ops = device_cpu;
    struct error err = {""};
    struct profile p;

    memset(&p, 0xff, sizeof p); /* what is measured, and what is not */
    ops.matmul = matmul, ops.attention = attention, ops.attention_backward = attention_backward;
    ck_assert_msg(device_profile(&p, &ops, 0, 1, &err) == 0, "%s", err.text);
    ck_assert_double_eq(p.host_bytes_per_s, 0);
    ck_assert_uint_gt(n_products, NUMBER_TYPES * PROFILE_ROWS);
    ck_assert_uint_gt(n_attentions, NUMBER_TYPES * PROFILE_DIRECTIONS);
}

/* ---- a device with several paths of attention: it computes nothing, and has no memory either ---- */

static char *const far = (char *)(uintptr_t)(1 << 30);
static struct {
    enum number_type type;
    size_t bytes; /* of its arena */
    unsigned n[ATTENTION_PATHS];
    bool is_prepared;
} pretended;

static int pretend_probe(unsigned index, struct device_facts *facts, struct error *err)
{
    (void)index, (void)err;
    *facts = (struct device_facts){.attention = PLAN_ATTENTION_SCORES};
    return 0;
}

static int pretend_open(struct device **out, unsigned index, enum number_type type, size_t bytes, unsigned n_threads,
                        struct error *err)
{
    (void)index, (void)n_threads, (void)err;
    pretended.type = type, pretended.bytes = bytes, pretended.is_prepared = false;
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
}

static int pretend_lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    (void)dev, (void)host, (void)bytes, (void)writable, (void)err;
    return 0;
}

static int pretend_sync(struct device *dev)
{
    (void)dev;
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
    (void)dev, (void)op;
}

static void pretend_add(struct device *dev, const struct device_dropout_add *op)
{
    (void)dev, (void)op;
}

static void pretend_prepare(struct device *dev, const struct device_attention *op, enum plan_attention way,
                            char told[DEVICE_TOLD])
{
    (void)dev;
    ck_assert_int_eq(way, PLAN_ATTENTION_SCORES);
    ck_assert(attention_suits_library(pretended.type, op));
    pretended.is_prepared = true;
    told[0] = 0;
}

/* All arrays are in the arena and apart from each other, the scratch of cuDNN's method included. */
static void check_arrays(struct call *call)
{
    const struct call_device on = {&plan_cuda, pretended.type, 1, PLAN_ATTENTION_SCORES};
    const struct device_attention *op = &call->attention;
    struct plan_attention_scratch scratch;
    struct call_work work;

    call_describe(&work, call, &on);
    plan_attention_lay_out(&scratch, PLAN_ATTENTION_SCORES, op->n_rows, op->n_tokens, op->n_heads, op->width);
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const char *a = call_get(&work.arrays[i]);
        size_t n = work.arrays[i].n * call_type_bytes(work.arrays[i].type, pretended.type);
        n = a == op->scratch && n < scratch.bytes ? scratch.bytes : n;
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

    check_arrays(call);
    pretended.n[attention_path_of(pretended.type, &call->attention, kernel, way)]++;
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

TEST(attention_of_a_gpu_is_timed_on_each_path)
{
    const struct device_ops ops = {.name = "cuda",
                                   .probe = pretend_probe,
                                   .open = pretend_open,
                                   .close = pretend_close,
                                   .arena = pretend_arena,
                                   .upload = pretend_upload,
                                   .lend = pretend_lend,
                                   .sync = pretend_sync,
                                   .propose = pretend_propose,
                                   .choose = pretend_choose,
                                   .matmul = pretend_matmul,
                                   .dropout_add = pretend_add,
                                   .prepare_attention = pretend_prepare,
                                   .attention = pretend_attention,
                                   .attention_backward = pretend_attention_backward};
    struct error err = {""};
    struct profile p;

    ck_assert_msg(device_profile(&p, &ops, 0, 1, &err) == 0, "%s", err.text);
    ck_assert_int_eq(p.attention, PLAN_ATTENTION_SCORES);
    for (int path = 0; path < ATTENTION_PATHS; path++) {
        ck_assert_msg(pretended.n[path] > 0, "path %d was not timed", path);
        for (int direction = 0; direction < PROFILE_DIRECTIONS; direction++) {
            ck_assert_double_gt(p.attention_flops[direction][path][NUMBER_BF16], 0);
            ck_assert_int_eq(p.attention_flops[direction][path][NUMBER_FP32] > 0, path == ATTENTION_PLAIN);
        }
    }
}
