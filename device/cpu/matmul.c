/* device/cpu/matmul.c - matrix products: tiles of the result, each one call of oneDNN's dnnl_sgemm on one thread.
 *
 * Why not one call on all threads: given several threads, the library may split the sum over k among them (it does for
 * b transposed, k = 2048), and results would depend on the thread count. In tiles that depend on the shape alone they
 * cannot. It costs 0 to 8 % of the call's speed, and gives back: the epilogue finds its tile in the cache, a thread that
 * loses its core for a while does not hold up the others, and the library's packing buffers have a bound. */
#include "device/cpu/cpu.h"

#include <assert.h>
#include <dnnl.h>

enum {
    LARGEST_EDGE = 512, /* of a tile: c, a and b of one fit a 1 MiB cache about */
    SMALLEST_EDGE = 128,
    ENOUGH_TILES = 8, /* edges are halved until there are as many, to keep threads busy */
    EDGE_UNIT = 16,   /* tiles begin at a cache line */
};

/* How one dimension of c is cut: even pieces, the last one smaller. */
struct cut {
    size_t edge, n_tiles;
};

static struct cut cut(size_t n, size_t largest)
{
    const size_t wanted = (n + largest - 1) / largest;
    const size_t edge = ((n + wanted - 1) / wanted + EDGE_UNIT - 1) / EDGE_UNIT * EDGE_UNIT;

    return (struct cut){edge, (n + edge - 1) / edge};
}

static void cut_tiles(struct cut *rows, struct cut *columns, size_t m, size_t n)
{
    size_t tallest = LARGEST_EDGE, widest = LARGEST_EDGE;

    for (;;) {
        *rows = cut(m, tallest);
        *columns = cut(n, widest);
        if (rows->n_tiles * columns->n_tiles >= ENOUGH_TILES)
            return;
        if (rows->edge >= columns->edge && rows->edge > SMALLEST_EDGE)
            tallest = rows->edge / 2;
        else if (columns->edge > SMALLEST_EDGE)
            widest = columns->edge / 2;
        else
            return;
    }
}

static void multiply_tile(struct device *dev, const struct device_matmul *op, size_t row, size_t column,
                          const size_t size[2])
{
    const float *a = op->a + (op->transpose_a ? row : row * op->a_stride);
    const float *b = op->b + (op->transpose_b ? column * op->b_stride : column);
    dnnl_status_t status;

    status =
        dnnl_sgemm(op->transpose_a ? 'T' : 'N', op->transpose_b ? 'T' : 'N', (dnnl_dim_t)size[0], (dnnl_dim_t)size[1],
                   (dnnl_dim_t)op->k, 1, a, (dnnl_dim_t)op->a_stride, b, (dnnl_dim_t)op->b_stride, op->beta,
                   op->c + row * op->c_stride + column, (dnnl_dim_t)op->c_stride);
    assert(status == dnnl_success);
    dev->kernels->rows->epilogue(op, row, column, size[0], size[1]);
}

void cpu_matmul(struct device *dev, const struct device_matmul *op)
{
    struct cut rows, columns;

    assert(op->beta == 0 || (op->beta == 1 && op->epilogue == DEVICE_NO_EPILOGUE));
    cut_tiles(&rows, &columns, op->m, op->n);
#pragma omp parallel for num_threads(dev->n_threads) schedule(dynamic)
    for (size_t tile = 0; tile < rows.n_tiles * columns.n_tiles; tile++) {
        const size_t row = tile / columns.n_tiles * rows.edge, column = tile % columns.n_tiles * columns.edge;
        const size_t m = op->m - row < rows.edge ? op->m - row : rows.edge;
        const size_t n = op->n - column < columns.edge ? op->n - column : columns.edge;

        multiply_tile(dev, op, row, column, (const size_t[2]){m, n});
    }
}

size_t cpu_library_bytes(unsigned n_threads)
{
    return ((size_t)16 << 20) + n_threads * ((size_t)8 << 20);
}
