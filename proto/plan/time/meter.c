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

static double rate_of(const struct plan_meter *meter, const struct call_work *work)
{
    const enum number_type type = profile_type(meter->on.backend, meter->on.type);

    switch (work->rate) {
    case CALL_RATE_PRODUCT:
        return profile_flops(meter->profile, type, (double)work->rows);
    case CALL_RATE_ATTENTION:
        return meter->profile->attention_flops[PROFILE_FORWARD][type];
    case CALL_RATE_ATTENTION_BACKWARD:
        return meter->profile->attention_flops[PROFILE_BACKWARD][type];
    case CALL_RATE_NONE:
        break;
    }
    return 1;
}

double plan_meter_price(const struct plan_meter *meter, struct call *call)
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
    const double moving = fmax(bytes / profile->memory_bytes_per_s, gathered / profile->link_bytes_per_s);
    const double behind = bytes_behind(meter, call);
    const int n_launches = call->kind == CALL_zero ? 0 : behind > 0 ? 2 : 1;

    return fmax(work.operations / rate_of(meter, &work), moving) + behind / profile->memory_bytes_per_s +
           n_launches * profile->call_s;
}

static void on_call(struct device *dev, struct call *call)
{
    struct plan_meter *meter = (struct plan_meter *)dev;

    meter->seconds += plan_meter_price(meter, call);
}

CALL_TABLE(on_call)

const struct device_ops plan_meter_ops = {.name = "meter", DEVICE_CALLS(CALL_ROW)};
