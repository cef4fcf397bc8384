#include "tests/kit/device/mirror.h"
#include "tests/kit/test.h"
#include "device/cpu/cpu.h"
#include "device/find.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

#if SANITIZED && defined __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum { MAX_ARRAYS = 256, GAP = 256, SCRATCH = 512 << 10, KEPT = 2 << 20 };

/* The test's, one test at a time. */
static struct arrays {
    struct array {
        char *host;
        size_t bytes, element, offset; /* offset: in the arena of the last mirror that began */
        bool is_mirrored;
    } a[MAX_ARRAYS];
    unsigned n;
} arrays;

static void *add(size_t n, size_t element, bool is_mirrored)
{
    struct array *array = &arrays.a[arrays.n++];

    ck_assert_uint_le(arrays.n, MAX_ARRAYS);
    *array = (struct array){calloc(n > 0 ? n : 1, element), n * element, element, 0, is_mirrored};
    ck_assert_ptr_nonnull(array->host);
    return array->host;
}

void *mirror_array(size_t n, size_t element)
{
    return add(n, element, true);
}

void *mirror_host_array(size_t n, size_t element)
{
    return add(n, element, false);
}

void mirror_forget(void)
{
    while (arrays.n > 0)
        free(arrays.a[--arrays.n].host);
}

static bool is_apart(const struct mirror *at)
{
    return at->ops != &device_cpu;
}

static size_t round_up(size_t bytes)
{
    return (bytes + GAP - 1) / GAP * GAP;
}

/* Sets every array's place; returns the end of the last. */
static size_t lay_out(bool skewed)
{
    size_t end = GAP;

    for (unsigned i = 0; i < arrays.n; i++)
        if (arrays.a[i].is_mirrored) {
            arrays.a[i].offset = end + (skewed ? arrays.a[i].element : 0);
            end = round_up(arrays.a[i].offset + arrays.a[i].bytes) + GAP;
        }
    return end;
}

/* Opening a device takes its time: one of each type, on the CPU of each number of threads, stays open, until it is too
 * small. */
enum { MOST_THREADS = 8 };
static struct kept {
    struct device *dev;
    const struct device_ops *ops;
    size_t bytes;
} kept[NUMBER_TYPES][1 + MOST_THREADS];

static void close_kept(void)
{
    for (int type = 0; type < NUMBER_TYPES; type++)
        for (struct kept *k = kept[type]; k <= kept[type] + MOST_THREADS; k++)
            if (k->dev)
                k->ops->close(k->dev);
}

static struct device *keep(struct kept *k, enum number_type type, size_t bytes, unsigned n_threads)
{
    static bool is_late;
    struct error err = {""};

    if (k->dev && k->bytes >= bytes)
        return k->dev;
    if (k->dev)
        k->ops->close(k->dev);
    *k = (struct kept){NULL, backend_get()->ops, bytes};
    ck_assert_msg(k->ops->open(&k->dev, 0, type, bytes, n_threads, &err) == 0, "%s", err.text);
    if (!is_late)
        atexit(close_kept); /* before the module's own, which was loaded earlier */
    is_late = true;
    return k->dev;
}

/* With the best kernels, as it was opened; all threads work, however small an operation is. */
static struct device *keep_cpu(enum number_type type, unsigned n_threads)
{
    struct device *dev = keep(&kept[type][n_threads], type, 4096, n_threads);

    cpu_isa_use_best(dev);
    dev->alone = 0;
    return dev;
}

void mirror_open(struct mirror *at, enum number_type type, unsigned n_threads, bool skewed)
{
    const struct backend *backend = backend_get();

    *at = (struct mirror){
        .ops = backend->ops, .plan = backend->plan, .type = type, .n_threads = n_threads, .skewed = skewed};
    if (!is_apart(at)) {
        ck_assert_uint_le(n_threads, MOST_THREADS);
        at->dev = keep_cpu(type, n_threads);
        return;
    }
    at->bytes = 3 * lay_out(skewed) + SCRATCH;
    at->dev = keep(&kept[type][0], type, at->bytes > KEPT ? at->bytes : KEPT, 1);
    ck_assert_ptr_nonnull(at->image = malloc(at->bytes));
}

void mirror_close(struct mirror *at)
{
    free(at->image);
}

static char *arena(const struct mirror *at)
{
    return at->ops->arena(at->dev);
}

/* Of the device's memory, where the host's own instructions would reach it. */
static void forbid(const struct mirror *at, size_t from, size_t to)
{
    if (backend_get()->simulated)
        ASAN_POISON_MEMORY_REGION(arena(at) + from, to - from);
}

static void allow(const struct mirror *at, size_t from, size_t to)
{
    if (backend_get()->simulated)
        ASAN_UNPOISON_MEMORY_REGION(arena(at) + from, to - from);
}

void mirror_begin(struct mirror *at)
{
    if (!is_apart(at))
        return;
    at->used = lay_out(at->skewed);
    ck_assert_uint_le(at->used, at->bytes);
    at->n_scratch = 0;
    memset(at->image, 0xff, at->bytes);
    for (unsigned i = 0; i < arrays.n; i++)
        if (arrays.a[i].is_mirrored)
            memcpy(at->image + arrays.a[i].offset, arrays.a[i].host, arrays.a[i].bytes);
    allow(at, 0, at->bytes); /* after a test that failed */
    mirror_put(at, arena(at), at->image, at->used);
    forbid(at, 0, at->bytes);
    for (unsigned i = 0; i < arrays.n; i++)
        if (arrays.a[i].is_mirrored)
            allow(at, arrays.a[i].offset, arrays.a[i].offset + arrays.a[i].bytes);
}

void mirror_put(const struct mirror *at, void *dst, const void *host, size_t bytes)
{
    const struct device_ops *ops = at->ops;

    ops->follow(at->dev, DEVICE_PULL, DEVICE_COMPUTE, ops->mark(at->dev, DEVICE_COMPUTE));
    ops->upload(at->dev, dst, host, bytes);
    ck_assert_int_eq(ops->sync(at->dev), 0);
}

void mirror_take(const struct mirror *at, void *host, const void *src, size_t bytes)
{
    const struct device_ops *ops = at->ops;

    ops->follow(at->dev, DEVICE_PUSH, DEVICE_COMPUTE, ops->mark(at->dev, DEVICE_COMPUTE));
    ops->download(at->dev, host, src, bytes);
    ck_assert_int_eq(ops->sync(at->dev), 0);
}

static const struct array *find(const void *host)
{
    for (unsigned i = 0; i < arrays.n; i++)
        if ((const char *)host >= arrays.a[i].host && (const char *)host < arrays.a[i].host + arrays.a[i].bytes + 1)
            return &arrays.a[i];
    ck_abort_msg("the device is given what is no array of the test's");
}

void *mirror_of(const struct mirror *at, const void *host)
{
    if (!is_apart(at) || !host)
        return (void *)(uintptr_t)host;
    const struct array *array = find(host);
    ck_assert(array->is_mirrored);
    return arena(at) + array->offset + ((const char *)host - array->host);
}

void *mirror_scratch(struct mirror *at, size_t bytes)
{
    const size_t offset = at->used;
    char *base;

    ck_assert_uint_lt(at->n_scratch, sizeof at->scratch / sizeof *at->scratch);
    if (is_apart(at)) {
        at->used = round_up(offset + bytes) + GAP;
        ck_assert_uint_le(at->used, at->bytes);
        base = arena(at) + offset;
        allow(at, offset, at->used);
        mirror_put(at, base, at->image + offset, at->used - offset);
        forbid(at, offset + bytes, at->used);
    } else {
        base = malloc(bytes > 0 ? bytes : 1);
        ck_assert_ptr_nonnull(base);
        memset(base, 0xff, bytes);
    }
    at->scratch[at->n_scratch].base = base;
    at->scratch[at->n_scratch++].bytes = bytes;
    return base;
}

/* The first byte that is not as it was; where, in a test's words. */
static void check_rest(const struct mirror *at, const unsigned char *now)
{
    size_t i = 0;

    if (memcmp(at->image, now, at->used) == 0)
        return;
    while (at->image[i] == now[i])
        i++;
    for (unsigned a = 0; a < arrays.n; a++)
        if (arrays.a[a].is_mirrored && i < arrays.a[a].offset + arrays.a[a].bytes)
            ck_abort_msg("array %u (of %zu bytes) is written to at byte %td%s", a, arrays.a[a].bytes,
                         (ptrdiff_t)(i - arrays.a[a].offset), i < arrays.a[a].offset ? "" : ", and is no output");
    ck_abort_msg("something is written behind the last array or around scratch");
}

static void end_apart(struct mirror *at, void *const outputs[], unsigned n)
{
    unsigned char *now = malloc(at->used);

    ck_assert_ptr_nonnull(now);
    allow(at, 0, at->bytes);
    mirror_take(at, now, arena(at), at->used);
    for (unsigned i = 0; i < n; i++) {
        const struct array *array = find(outputs[i]);
        memcpy(array->host, now + array->offset, array->bytes);
        memcpy(at->image + array->offset, now + array->offset, array->bytes);
    }
    for (unsigned i = 0; i < at->n_scratch; i++) {
        const size_t offset = (size_t)(at->scratch[i].base - arena(at));
        memcpy(at->image + offset, now + offset, at->scratch[i].bytes);
    }
    check_rest(at, now);
    free(now);
}

void mirror_end(struct mirror *at, void *const outputs[], unsigned n)
{
    ck_assert_int_eq(at->ops->sync(at->dev), 0);
    if (is_apart(at))
        end_apart(at, outputs, n);
    else
        for (unsigned i = 0; i < at->n_scratch; i++)
            free(at->scratch[i].base);
    at->n_scratch = 0;
}
