/* tests/sim/priced.c - the backend's table, which says of each operation what its kernels read, write and compute.
 *
 * In the field's terms: an operation reads each of its inputs and writes each of its outputs once, in whatever memory they
 * are (proto/operation/call.h), and computes what its formula says. What a kernel does beyond that is its own fault, and
 * none of its time here: so a time is the best that a kernel may reach, and a planner that knows the operation knows the
 * time. Products and copies are priced where they are queued (product.cpp, memory.cpp).
 *
 * Attention is 2 n^2 width a row forward, the causal half of two products, and 2.5 times that backward, of five; twice as
 * much where all keys are seen. */
#include "device/cuda/cuda.h"
#include "device/find.h"
#include "proto/operation/call.h"
#include "tests/sim/cudasim.h"

extern const struct device_ops unpriced_device_cuda; /* device/cuda/cuda.c's */

static double values(const struct device *dev, double n)
{
    return n * (double)number_bytes(dev->type);
}

static struct cudasim_price price_arrays(const struct device *dev, struct call *call)
{
    struct cudasim_price price = {0};
    struct call_work work;

    call_describe(&work, call, &(struct call_device){&plan_cuda, dev->type, 1});
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const struct call_array *a = &work.arrays[i];
        const double bytes = (double)a->touched * (double)call_type_bytes(a->type, dev->type);
        price.bytes += bytes * (!!(a->use & CALL_READ) + !!(a->use & CALL_WRITTEN));
        price.host_bytes += a->use & CALL_ANYWHERE ? bytes : 0;
    }
    return price;
}

static struct cudasim_price price_of(const struct device *dev, struct call *call)
{
    const struct device_matmul *product = &call->matmul;
    const struct device_attention *all = &call->attention;
    const struct device_attention_cached *cached = &call->attention_cached;
    struct cudasim_price price = price_arrays(dev, call);
    const bool backward = call->kind == CALL_attention_backward;

    if (call->kind == CALL_matmul) { /* what it did not fuse reads and writes c, and reads pre */
        price.bytes =
            values(dev, (product->epilogue == DEVICE_BIAS ? 2.0 : 3.0) * (double)product->m * (double)product->n);
    } else if (call->kind == CALL_attention || backward) {
        price.operations = (backward ? 2.5 : 1) * (all->full ? 4 : 2) * (double)all->n_rows * (double)all->n_tokens *
                           (double)all->n_tokens * (double)all->width;
        price.flops = cudasim_attention_flops(backward ? PROFILE_BACKWARD : PROFILE_FORWARD, dev->type);
    } else if (call->kind == CALL_attention_cached) { /* new keys and values are written, those of all positions read */
        const double tokens = (double)cached->n_tokens, keys = (double)cached->first + tokens;
        const size_t kv_width = device_kv_width(cached->n_heads, cached->n_kv_heads, cached->width);
        price.bytes += values(dev, 2 * (tokens + keys) * (double)kv_width);
        price.operations = 4 * tokens * keys * (double)cached->width;
        price.flops = cudasim_attention_flops(PROFILE_FORWARD, dev->type);
    }
    return price;
}

static void on_call(struct device *dev, struct call *call)
{
    if (call->kind == CALL_zero) { /* a copy's like */
        call_run(&unpriced_device_cuda, dev, call);
        return;
    }
    const struct cudasim_price price = price_of(dev, call);
    cudasim_operation(&price);
    call_run(&unpriced_device_cuda, dev, call);
    cudasim_operation(NULL);
}
CALL_TABLE(on_call)

static struct device_ops priced;

__attribute__((constructor)) static void price(void)
{
    priced = unpriced_device_cuda;
    call_intercept(&priced);
}

__attribute__((visibility("default"))) const struct module device_module = {
    .version = EPS_VERSION,
    .ops_bytes = sizeof(struct device_ops),
    .ops = &priced,
};
