/* device/cpu/matmul.c - matrix products: tiles of the result, each one call of oneDNN's dnnl_sgemm on one thread.
 *
 * Why not one call on all threads: given several threads, the library may split the sum over k among them (it does for
 * b transposed, k = 2048), and results would depend on the thread count. In tiles that depend on the shape alone they
 * cannot. It costs 0 to 6 % of the call's speed, and gives back: the epilogue finds its tile in the cache, a thread
 * that loses its core for a while does not hold up the others, and the library's packing buffers have a bound. */
#include "device/cpu/cpu.h"

#include <assert.h>
#include <dlfcn.h>
#include <dnnl.h>
#ifdef _OPENMP
#include <omp.h>
#endif

enum {
    LARGEST_EDGE = 768, /* of a tile: what the library packs of a and b stays in a cache of 1 or 2 MiB */
    SMALLEST_EDGE = 64,
    ENOUGH_TILES = 4, /* to keep threads busy; more cost 2 % each time they double */
    EDGE_UNIT = 16,   /* tiles begin at a cache line */
};

/* Edges are halved, the longer one first: tiles are even, and share out evenly among 2, 4 or more threads. */
static void cut_tiles(size_t *height, size_t *width, size_t m, size_t n)
{
    size_t n_tiles = 1;

    *height = m, *width = n;
    while (*height > LARGEST_EDGE || *width > LARGEST_EDGE || n_tiles < ENOUGH_TILES) {
        size_t *edge = *height >= *width ? height : width;
        if (*edge < 2 * SMALLEST_EDGE)
            return;
        *edge = (*edge + 1) / 2;
        n_tiles *= 2;
    }
}

static size_t round_up(size_t n)
{
    return (n + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;
}

static void multiply_tile(struct device *dev, const struct device_matmul *op, size_t row, size_t column,
                          const size_t size[2])
{
    const float *a = (const float *)op->a + (op->transpose_a ? row : row * op->a_stride);
    const float *b = (const float *)op->b + (op->transpose_b ? column * op->b_stride : column);
    dnnl_status_t status;

    status =
        dnnl_sgemm(op->transpose_a ? 'T' : 'N', op->transpose_b ? 'T' : 'N', (dnnl_dim_t)size[0], (dnnl_dim_t)size[1],
                   (dnnl_dim_t)op->k, 1, a, (dnnl_dim_t)op->a_stride, b, (dnnl_dim_t)op->b_stride, op->beta,
                   (float *)op->c + row * op->c_stride + column, (dnnl_dim_t)op->c_stride);
    assert(status == dnnl_success);
    dev->kernels->rows->epilogue(op, row, column, size[0], size[1]);
}

/* Sets how many threads the library may use when this thread calls it; returns how many it was. Inside a team it uses
 * one of its own accord, but a team of one is none to it. Without OpenMP of ours it still has its own. */
static int set_library_threads(int n)
{
#ifdef _OPENMP
    const int before = omp_get_max_threads();

    omp_set_num_threads(n);
    return before;
#else
    void (*set)(int);

    *(void **)&set = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    if (set)
        set(n);
    return n;
#endif
}

void cpu_matmul(struct device *dev, const struct device_matmul *op)
{
    size_t height, width, n_down, n_across;

    assert(op->beta == 0 || (op->beta == 1 && op->epilogue == DEVICE_NO_EPILOGUE));
    if (op->m == 1 && !op->transpose_a && op->beta == 0) { /* the library would pack a matrix that is used once */
        dev->kernels->single->multiply(dev, op);
        return;
    }
    const int library_threads = set_library_threads(1);
    cut_tiles(&height, &width, op->m, op->n);
    height = round_up(height), width = round_up(width);
    n_down = (op->m + height - 1) / height, n_across = (op->n + width - 1) / width;
#pragma omp parallel for num_threads(dev->n_threads) schedule(dynamic)
    for (size_t tile = 0; tile < n_down * n_across; tile++) {
        const size_t row = tile / n_across * height, column = tile % n_across * width;
        const size_t m = op->m - row < height ? op->m - row : height;
        const size_t n = op->n - column < width ? op->n - column : width;

        multiply_tile(dev, op, row, column, (const size_t[2]){m, n});
    }
    set_library_threads(library_threads);
}
