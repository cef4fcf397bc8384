/* Pointers are read and written by memcpy: `member` is the address of a pointer of whatever type the operation's struct
 * declares, and reading it as a void ** would break the aliasing rules. The switches have no default, and a row of
 * DEVICE_CALLS without its description does not link. */
#include "proto/operation/call.h"

#include <assert.h>
#include <string.h>

void *call_get(const struct call_array *array)
{
    void *at;

    memcpy(&at, array->member, sizeof at);
    return at;
}

void call_set(const struct call_array *array, const void *at)
{
    memcpy(array->member, &at, sizeof at);
}

size_t call_type_bytes(enum call_type type, enum number_type values)
{
    static const size_t bytes[] = {0, sizeof(float), sizeof(uint16_t), sizeof(double), sizeof(uint32_t), 1};

    return type == CALL_VALUES ? number_bytes(values) : bytes[type];
}

void call_add_array(struct call_work *to, const char *name, void *member, enum call_type type, unsigned use,
                    struct call_extent extent)
{
    struct call_array *array = &to->arrays[to->n_arrays];

    assert(to->n_arrays < CALL_ARRAYS);
    *array = (struct call_array){name, member, type, use, extent.n, extent.touched};
    to->n_arrays += !(use & CALL_OPTIONAL) || call_get(array);
}

void call_describe(struct call_work *out, struct call *call, const struct call_device *on)
{
#define DESCRIBE(name, type)                                                                                           \
    case CALL_##name:                                                                                                  \
        return device_##name##_describe(out, &call->name);

    *out = (struct call_work){.on = *on, .n_launches = 1};
    switch (call->kind) {
        DEVICE_CALLS(DESCRIBE)
    }
}

void call_run(const struct device_ops *ops, struct device *dev, const struct call *call)
{
#define RUN(name, type)                                                                                                \
    case CALL_##name:                                                                                                  \
        return ops->name(dev, &call->name);

    switch (call->kind) {
        DEVICE_CALLS(RUN)
    }
}
