/* What the store of a job in this process holds, tensor by tensor. */
#include "eps/store/sparse.h"
#include "tests/kit/inprocess/inprocess.h"

#include <string.h>

int inprocess_values(void *context, uint64_t first, size_t n, float *out)
{
    memcpy(out, (const float *)context + first, n * sizeof *out);
    return 0;
}

/* Of a sparse piece: out of a buffer of whole units, to its places in the tensor; or the largest values into the
 * store. */
static void copy_sparse(const struct inprocess *ip, uint32_t unit, const struct model_piece *piece,
                        const float *segment, float *out, const float *values)
{
    const struct store_source from = {inprocess_values, (float *)(uintptr_t)values};

    if (out) {
        const struct sparse_places p = store_places(&ip->store, unit, piece);
        memset(out, 0, piece->dense * sizeof *out);
        for (uint64_t row = 0; row < p.rows; row++)
            for (uint64_t c = sparse_next(&p, row, 0); c < p.columns; c = sparse_next(&p, row, c + 1))
                out[row * p.columns + c] = *segment++;
        return;
    }
    store_choose_places(&ip->store, unit, piece, &from);
    store_fill_places(&ip->store, unit, piece, &from);
}

static void copy_tensor(const struct inprocess *ip, uint32_t tensor, const float *segment, float *out, float *into,
                        const float *values)
{
    const struct model *model = &ip->model;
    const uint64_t columns = model->tensors[tensor].shape[1];

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + i];
            const uint64_t at = inprocess_at(model, u) + piece->offset, row = piece->first_row * columns;
            if (piece->tensor != tensor)
                continue;
            if (piece->dense > 0)
                copy_sparse(ip, u, piece, segment + at, out, values);
            else if (out)
                memcpy(out + row, segment + at, piece->n * sizeof *out);
            else
                memcpy(into + at, values + row, piece->n * sizeof *values);
        }
}

void inprocess_masters(const struct inprocess *ip, float *segment)
{
    for (uint32_t u = 0; u < ip->model.n_units; u++) {
        const struct model_unit *unit = &ip->model.units[u];
        const uint64_t n = unit->n_trained;
        float *const to = segment + inprocess_at(&ip->model, u);
        const struct parameters trained = store_parameters(&ip->store, u, 0, n, 0);
        optimizer_read(&trained, to, NULL, NULL);
        for (uint32_t i = 0; i < unit->n_pieces; i++) {
            const struct model_piece *piece = &ip->model.pieces[unit->first_piece + i];
            if (piece->offset >= n)
                store_read(&ip->store, u, piece->offset, piece->n, to + piece->offset);
        }
    }
}

void inprocess_get(const struct inprocess *ip, float *out, const float *segment, uint32_t tensor)
{
    copy_tensor(ip, tensor, segment, out, NULL, NULL);
}

void inprocess_set(const struct inprocess *ip, float *segment, uint32_t tensor, const float *values)
{
    copy_tensor(ip, tensor, NULL, NULL, segment, values);
}
