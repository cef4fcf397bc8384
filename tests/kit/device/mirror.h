/* tests/kit/device/mirror.h - a test's arrays, and their likes where a device reaches them.
 *
 * Arrays are host memory, each a block of its own. The CPU device works on them as they lie. Another device has a copy
 * of each in its arena, with gaps between them: these hold NaNs, may not be touched where the device's memory is the
 * host's and under the address sanitizer, and are compared afterwards, as all is that was no output. */
#ifndef TESTS_KIT_DEVICE_MIRROR_H
#define TESTS_KIT_DEVICE_MIRROR_H

#include "tests/kit/device/backend.h"

/* n elements of so many bytes, of any content; the mirrors have no like of those of `host_array`. They live until
 * mirror_forget: a checked fixture of the tests. */
void *mirror_array(size_t n, size_t element);
void *mirror_host_array(size_t n, size_t element);
void mirror_forget(void);

struct mirror {
    const struct device_ops *ops;
    const struct plan_backend *plan;
    struct device *dev;
    enum number_type type;
    unsigned n_threads;
    bool skewed; /* arrays begin one element behind a multiple of 16 bytes */
    /* Of a device other than the CPU: */
    size_t bytes, used;   /* of the arena; by arrays, then scratch */
    unsigned char *image; /* (bytes) what is to be there, host */
    struct {
        char *base;
        size_t bytes;
    } scratch[8];
    unsigned n_scratch;
};

/* With room for the arrays that there are now, and for scratch. Asserts that it opens. */
void mirror_open(struct mirror *at, enum number_type type, unsigned n_threads, bool skewed);
void mirror_close(struct mirror *at);

/* The device gets the arrays as they are; then its operations run; then these arrays (n) come back, and all else must
 * be as it was. */
void mirror_begin(struct mirror *at);
void mirror_end(struct mirror *at, void *const outputs[], unsigned n);

/* Where the device has what the host has at `host`, which lies within an array; NULL of NULL. */
void *mirror_of(const struct mirror *at, const void *host);
/* Memory of the device's that holds NaNs, until mirror_end. */
void *mirror_scratch(struct mirror *at, size_t bytes);
/* Copies to and from such memory; done when they return. */
void mirror_put(const struct mirror *at, void *dst, const void *host, size_t bytes);
void mirror_take(const struct mirror *at, void *host, const void *src, size_t bytes);

#endif
