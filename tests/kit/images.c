#include "tests/kit/images.h"

#include "tests/kit/processes.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER = 128, CLASSES = 5 };

void images_put_npy(const char *name, const uint8_t *bytes, unsigned n, unsigned side)
{
    const size_t n_bytes = (size_t)n * (side ? 3 * side * side : 1);
    char *file = malloc(HEADER + n_bytes), shape[60];

    ck_assert_ptr_nonnull(file);
    snprintf(shape, sizeof shape, side ? "(%u, %u, %u, 3)" : "(%u,)", n, side, side);
    memset(file, ' ', HEADER);
    memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
    const int used = snprintf(file + 10, HEADER - 10, "{'descr': '|u1', 'fortran_order': False, 'shape': %s, }", shape);
    file[10 + used] = ' ', file[HEADER - 1] = '\n';
    memcpy(file + HEADER, bytes, n_bytes);
    processes_write(name, file, HEADER + n_bytes);
    free(file);
}

void images_put(const char *images, const char *labels, unsigned n, unsigned side, unsigned seed)
{
    const size_t each = 3 * (size_t)side * side;
    uint8_t *bytes = malloc(n * each), *classes = malloc(n);

    ck_assert(bytes && classes);
    for (unsigned k = 0; k < n; k++) {
        classes[k] = (uint8_t)(k % CLASSES);
        for (size_t i = 0; i < each; i++)
            bytes[k * each + i] = (uint8_t)(2 * processes_token(i + (k + seed) * each) + 13u * classes[k]);
    }
    images_put_npy(images, bytes, n, side);
    images_put_npy(labels, classes, n, 0);
    free(bytes), free(classes);
}
