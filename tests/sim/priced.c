/* tests/sim/priced.c - the backend's table, which says of each operation what its kernels read, write and compute.
 *
 * In the field's terms: an operation reads each of its inputs and writes each of its outputs once, in whatever memory
 * they are, and computes what its formula says: proto/operation/call.h. What a kernel does beyond that is its own
 * fault, and none of its time here, but that its last blocks leave multiprocessors idle: so a time is the best that a
 * kernel may reach, and a planner that knows the operation knows the time. Products and copies are priced where they
 * are queued (product.cpp, memory.cpp). */
#include "device/cuda/cuda.h"
#include "device/find.h"
#include "proto/operation/call.h"
#include "tests/sim/cudasim.h"

extern const struct device_ops unpriced_device_cuda; /* device/cuda/cuda.c's */

/* Of a product only what its library did not fuse is left: it reads and writes c, and reads pre. */
static struct cudasim_price price_epilogue(const struct device *dev, const struct device_matmul *op)
{
    const double arrays = op->epilogue == DEVICE_BIAS ? 2 : 3;

    return (struct cudasim_price){.bytes = arrays * (double)op->m * (double)op->n * (double)number_bytes(dev->type)};
}

/* The rate of the paths together. */
static double attention_flops(const struct call_work *work, enum number_type type)
{
    const enum profile_direction direction = work->rate == CALL_RATE_ATTENTION ? PROFILE_FORWARD : PROFILE_BACKWARD;
    double seconds = 0;

    for (int path = 0; path < ATTENTION_PATHS; path++) {
        const double flops = cudasim_attention_flops(direction, (enum attention_path)path,
                                                     profile_type(&plan_cuda, type), &work->attention);
        if (flops == 0) /* no time passes */
            return 0;
        seconds += work->lasting[path] / flops;
    }
    return work->operations / seconds;
}

static struct cudasim_price price_of(const struct device *dev, struct call *call)
{
    struct cudasim_price price = {0};
    struct call_work work;

    if (call->kind == CALL_matmul)
        return price_epilogue(dev, &call->matmul);
    call_describe(&work, call,
                  &(struct call_device){&plan_cuda, dev->type, 1, PLAN_ATTENTION_OWN, false,
                                        cudasim_multiprocessors()});
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const struct call_array *a = &work.arrays[i];
        const double bytes = (double)a->touched * (double)call_type_bytes(a->type, dev->type);
        price.bytes += bytes * (!!(a->use & CALL_READ) + !!(a->use & CALL_WRITTEN));
        price.host_bytes += a->use & CALL_ANYWHERE ? bytes : 0;
    }
    price.operations = work.operations;
    if (work.pass != CALL_PASS)
        price.bytes *= cudasim_norm_slowness(work.pass == CALL_PASS_NORM ? PROFILE_FORWARD : PROFILE_BACKWARD);
    if (work.rate == CALL_RATE_CONV2D)
        price.flops =
            cudasim_conv2d_flops(work.conv2d, work.conv2d_path, profile_type(&plan_cuda, dev->type), (double)work.rows);
    else if (work.rate != CALL_RATE_NONE)
        price.flops = attention_flops(&work, dev->type);
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
