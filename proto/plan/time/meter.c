/* Computing and moving overlap inside a kernel, so a call takes the longer of the two. What runs as a pass behind it
 * does not overlap with it, and is added; so are launches.
 *
 * Uses must sum to what was charged. So the whole price of a call, its launch and waits for memory included, is split
 * among its paths by the time that each computes; calls that compute nothing are in no use. */
#include "proto/plan/time/meter.h"

#include <math.h>

/* Bytes that another pass moves: c is read and written, and pre is read or written. */
static double bytes_behind(const struct plan_meter *meter, const struct call *call)
{
    const struct device_matmul *op = &call->matmul;

    if (call->kind != CALL_matmul)
        return 0;
    const double c = (double)op->m * (double)op->n * (double)number_bytes(meter->on.type);
    switch (op->epilogue) {
    case DEVICE_BIAS_ACTIVATION:
    case DEVICE_ACTIVATION_GRADIENT:
        return 3 * c;
    case DEVICE_NO_EPILOGUE:
    case DEVICE_BIAS:
        break;
    }
    return 0;
}

/* The share of an array that the call's own pass touches, beyond what the call knows. */
static double share_of(const struct plan_meter *meter, const struct call *call, const struct call_array *array)
{
    const bool looks_up = call->kind == CALL_embed && meter->found > 0;

    if (looks_up && (array->use & CALL_ANYWHERE || (array->use & CALL_WRITTEN && !call->embed.accumulate)))
        return meter->found;
    return call->kind == CALL_matmul && array->member == &call->matmul.pre && bytes_behind(meter, call) > 0 ? 0 : 1;
}

/* What the call computes, by part, from the first of its kind on. */
struct computing {
    enum plan_use first;
    unsigned n;
    double operations[ATTENTION_PATHS], seconds[ATTENTION_PATHS], all;
};

static void meter_multiply(struct computing *out, const struct plan_meter *meter, const struct call_work *work)
{
    const enum number_type type = work->in_fp32 ? NUMBER_FP32 : profile_type(meter->on.backend, meter->on.type);

    out->n = 1;
    out->operations[0] = work->operations;
    out->all = out->seconds[0] = work->operations / (work->filled > 0 ? work->filled : 1) /
                                 profile_flops(meter->profile, type, (double)work->rows, call_width(work));
}

static void meter_convolve(struct computing *out, const struct plan_meter *meter, const struct call_work *work)
{
    const enum number_type type = profile_type(meter->on.backend, meter->on.type);

    out->first = PLAN_USE_CONVOLUTIONS + work->conv2d * CONV2D_PATHS + work->conv2d_path;
    out->n = 1;
    out->operations[0] = work->operations;
    out->all = out->seconds[0] =
        work->operations / work->filled /
        profile_conv2d_flops(meter->profile, work->conv2d, work->conv2d_path, type, (double)work->rows);
}

static void meter_attend(struct computing *out, const struct plan_meter *meter, const struct call_work *work,
                         enum profile_direction direction)
{
    const enum number_type type = profile_type(meter->on.backend, meter->on.type);

    out->n = ATTENTION_PATHS;
    for (int path = 0; path < ATTENTION_PATHS; path++) {
        out->operations[path] = work->by_path[path];
        out->seconds[path] =
            work->lasting[path] /
            profile_attention_flops(meter->profile, direction, (enum attention_path)path, type, &work->attention);
        out->all += out->seconds[path];
    }
}

static struct computing compute(const struct plan_meter *meter, const struct call_work *work)
{
    struct computing c = {.first = PLAN_USE_PRODUCTS};

    switch (work->rate) {
    case CALL_RATE_PRODUCT:
        meter_multiply(&c, meter, work);
        break;
    case CALL_RATE_CONV2D:
        meter_convolve(&c, meter, work);
        break;
    case CALL_RATE_ATTENTION:
        c.first = PLAN_USE_ATTENTION;
        meter_attend(&c, meter, work, PROFILE_FORWARD);
        break;
    case CALL_RATE_ATTENTION_BACKWARD:
        c.first = PLAN_USE_ATTENTION_BACKWARD;
        meter_attend(&c, meter, work, PROFILE_BACKWARD);
        break;
    case CALL_RATE_NONE:
        break;
    }
    return c;
}

static double bytes_per_s(const struct profile *profile, enum call_pass pass)
{
    switch (pass) {
    case CALL_PASS_NORM:
        return profile_norm_bytes_per_s(profile, PROFILE_FORWARD);
    case CALL_PASS_NORM_BACKWARD:
        return profile_norm_bytes_per_s(profile, PROFILE_BACKWARD);
    case CALL_PASS:
        break;
    }
    return profile->memory_bytes_per_s;
}

static double meter_price(const struct plan_meter *meter, struct call *call, struct computing *c)
{
    const struct profile *profile = meter->profile;
    struct call_work work;
    double bytes = 0, gathered = 0;

    call_describe(&work, call, &meter->on);
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const struct call_array *a = &work.arrays[i];
        const double each = (double)call_type_bytes(a->type, meter->on.type) * share_of(meter, call, a);
        bytes += (double)a->touched * each * (!!(a->use & CALL_READ) + !!(a->use & CALL_WRITTEN));
        gathered += a->use & CALL_ANYWHERE ? (double)a->touched * each : 0;
    }
    const double moving = fmax(bytes / bytes_per_s(profile, work.pass), gathered / profile->link_bytes_per_s);
    const double behind = bytes_behind(meter, call);
    const double n_launches = call->kind == CALL_zero ? 0 : (double)work.n_launches + (behind > 0);

    *c = compute(meter, &work);
    return fmax(c->all, moving) + behind / profile->memory_bytes_per_s + n_launches * profile->call_s;
}

double plan_meter_price(const struct plan_meter *meter, struct call *call)
{
    struct computing c;

    return meter_price(meter, call, &c);
}

static void on_call(struct device *dev, struct call *call)
{
    struct plan_meter *meter = (struct plan_meter *)dev;
    struct computing c;
    const double seconds = meter_price(meter, call, &c);

    meter->seconds += seconds;
    for (unsigned i = 0; i < c.n && c.all > 0; i++) {
        meter->uses.seconds[c.first + i] += seconds * (c.seconds[i] / c.all);
        meter->uses.operations[c.first + i] += c.operations[i];
    }
}

CALL_TABLE(on_call)

const struct device_ops plan_meter_ops = {.name = "meter", DEVICE_CALLS(CALL_ROW)};
