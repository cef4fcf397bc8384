#include "tests/kit/device/extents.h"

#include "tests/kit/device/backend.h"
#include "proto/operation/call.h"

struct device_ops device_extents;
static struct extents *record;
static unsigned threads;

static bool is_inside(const char *at)
{
    return at >= record->arena && at < record->arena + record->arena_bytes;
}

static void place(const void *at, size_t bytes)
{
    const char *p = at;

    if (!p || bytes == 0)
        return;
    if (p < record->arena || p + bytes > record->arena + record->arena_bytes) {
        record->n_outside++;
        return;
    }
    if (record->high_water < (size_t)(p + bytes - record->arena))
        record->high_water = (size_t)(p + bytes - record->arena);
}

static void on_call(struct device *dev, struct call *call)
{
    struct call_work work;

    call_describe(&work, call,
                  &(struct call_device){backend_get()->plan, record->type, threads, PLAN_ATTENTION_OWN, false, 0});
    for (unsigned i = 0; i < work.n_arrays; i++) {
        const struct call_array *a = &work.arrays[i];
        if (!(a->use & CALL_ANYWHERE) || is_inside(call_get(a)))
            place(call_get(a), a->n * call_type_bytes(a->type, record->type));
    }
    call_run(backend_get()->ops, dev, call);
}
CALL_TABLE(on_call)

static int open_device(struct device **out, unsigned index, enum number_type type, size_t arena_bytes,
                       unsigned n_threads, struct error *err)
{
    int rc = backend_get()->ops->open(out, index, type, arena_bytes, n_threads, err);

    if (rc == 0) {
        record->arena = backend_get()->ops->arena(*out);
        record->arena_bytes = arena_bytes;
        record->type = type;
        threads = n_threads;
    }
    return rc;
}

static void upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    place(dst, bytes);
    record->copied += bytes;
    backend_get()->ops->upload(dev, dst, host, bytes);
}

static void download(struct device *dev, void *host, const void *src, size_t bytes)
{
    place(src, bytes);
    record->copied += bytes;
    backend_get()->ops->download(dev, host, src, bytes);
}

void extents_begin(struct extents *extents)
{
    *extents = (struct extents){0};
    record = extents;
    device_extents = *backend_get()->ops;
    device_extents.name = "extents";
    device_extents.open = open_device;
    device_extents.upload = upload, device_extents.download = download;
    call_intercept(&device_extents);
}
