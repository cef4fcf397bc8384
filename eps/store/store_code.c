/* Ranges of threads are cut anywhere, so each end is rounded up to a group's begin, by one function for both: what one
 * range leaves out, the next one takes, and no byte of a code or scale has two writers. A row that fits into a run is
 * read once and tried from memory; a longer one is read again each time, as nothing larger than a run is held. */
#include "eps/store/store_code.h"

#include <assert.h>
#include <errno.h>

/* ---- pieces ----------------------------------------------------------------------------------------------------- */

const struct model_piece *store_piece(const struct store *store, uint32_t unit, uint64_t first)
{
    const struct model_unit *u = &store->model->units[unit];
    const struct model_piece *piece = &store->model->pieces[u->first_piece];

    while (first < piece->offset || first - piece->offset >= piece->n) {
        piece++;
        assert(piece < &store->model->pieces[u->first_piece + u->n_pieces]);
    }
    return piece;
}

struct store_codes store_codes(const struct store *store, uint32_t unit, const struct model_piece *piece)
{
    const struct model_unit *u = &store->model->units[unit];
    const uint64_t columns = piece->n / piece->n_rows;
    char *const codes = (char *)store->weights.base + store_weights_at(store, &store->own, unit, 0) +
                        model_piece_at(u, piece, store->options.precision);

    assert(piece->form != FORM_VALUES);
    return (struct store_codes){.form = piece->form,
                                .columns = columns,
                                .codes = codes,
                                .scales = (float *)(codes + form_scales_at(piece->form, piece->n_rows, columns))};
}

void store_read(const struct store *store, uint32_t unit, uint64_t first, size_t n, float *out)
{
    const struct model_piece *piece = store_piece(store, unit, first);

    if (piece->form == FORM_VALUES || form_is_plain(piece->form)) {
        const struct parameters p = store_parameters(store, unit, first, n, 0);
        optimizer_read(&p, out, NULL, NULL);
    } else {
        const struct store_codes from = store_codes(store, unit, piece);
        form_decode(out, from.form, from.codes, from.scales, from.columns, first - piece->offset, n);
    }
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

static size_t store_code_run_of(uint64_t left)
{
    return left < STORE_RUN ? (size_t)left : STORE_RUN;
}

/* Values that need no scale. */
static int store_code_write_values(const struct store *store, uint32_t unit, const struct model_piece *piece,
                                   uint64_t begin, uint64_t end, const struct store_source *source)
{
    float values[STORE_RUN];
    int rc = 0;

    for (uint64_t at = begin; rc == 0 && at < end; at += store_code_run_of(end - at)) {
        const size_t n = store_code_run_of(end - at);
        const struct parameters p = store_parameters(store, unit, piece->offset + at, n, 0);
        rc = source->read(source->context, at, n, values);
        if (rc == 0)
            optimizer_write(&p, values, NULL, NULL);
    }
    return rc;
}

/* The end of the groups that begin before `at`. */
static uint64_t group_end(uint64_t at, uint64_t group, uint64_t all)
{
    const uint64_t end = (at + group - 1) / group * group;

    return end < all ? end : all;
}

static int store_code_write_blocks(const struct store_codes *to, uint64_t all, uint64_t begin, uint64_t end,
                                   const struct store_source *source)
{
    float values[STORE_RUN];
    int rc = 0;

    for (uint64_t at = begin; rc == 0 && at < end; at += store_code_run_of(end - at)) {
        const size_t n = store_code_run_of(end - at);
        rc = source->read(source->context, at, n, values);
        for (size_t i = 0; rc == 0 && i < n; i += FORM_BLOCK) {
            const uint64_t left = all - at - i;
            form_encode_nf4((uint8_t *)to->codes + (at + i) / 2, &to->scales[(at + i) / FORM_BLOCK], values + i,
                            left < FORM_BLOCK ? (size_t)left : FORM_BLOCK, left < FORM_BLOCK);
        }
    }
    return rc;
}

/* A row on its way: its values, where they are kept as a whole. */
struct row {
    const struct store_source *source;
    uint64_t first, n;
    float *values; /* (STORE_RUN) */
};

static int store_code_read_row(const struct row *row, uint64_t at)
{
    return row->n <= STORE_RUN && at == 0
               ? 0
               : row->source->read(row->source->context, row->first + at, store_code_run_of(row->n - at), row->values);
}

static int store_code_find_largest(const struct row *row, float *largest)
{
    int rc = 0;

    *largest = 0;
    for (uint64_t at = 0; rc == 0 && at < row->n; at += STORE_RUN) {
        rc = row->source->read(row->source->context, row->first + at, store_code_run_of(row->n - at), row->values);
        if (rc == 0)
            *largest = form_largest(*largest, row->values, store_code_run_of(row->n - at));
    }
    return rc;
}

/* *fits: the scale decodes the row to itself. */
static int try_scale(const struct row *row, float scale, bool *fits)
{
    int rc = 0;

    *fits = true;
    for (uint64_t at = 0; rc == 0 && *fits && at < row->n; at += STORE_RUN) {
        rc = store_code_read_row(row, at);
        *fits = rc == 0 && form_reproduces(scale, row->values, store_code_run_of(row->n - at));
    }
    return rc;
}

static int choose_scale(const struct row *row, float *scale)
{
    float largest;
    bool fits = false;
    int rc = store_code_find_largest(row, &largest);

    if (rc == 0 && largest > FORM_MOST)
        rc = -EDOM;
    *scale = largest;
    for (unsigned trial = 0; rc == 0 && !fits && trial < FORM_TRIALS; trial++) {
        rc = try_scale(row, form_trial(largest, trial), &fits);
        *scale = fits ? form_trial(largest, trial) : largest;
    }
    return rc;
}

static int store_code_write_row(const struct row *row, const struct store_codes *to)
{
    float scale;
    int rc = choose_scale(row, &scale);

    for (uint64_t at = 0; rc == 0 && at < row->n; at += STORE_RUN) {
        rc = store_code_read_row(row, at);
        if (rc == 0)
            form_encode_int8((int8_t *)to->codes + row->first + at, scale, row->values, store_code_run_of(row->n - at));
    }
    to->scales[row->first / to->columns] = scale;
    return rc;
}

static int store_code_write_rows(const struct store_codes *to, uint64_t begin, uint64_t end,
                                 const struct store_source *source)
{
    float values[STORE_RUN];
    int rc = 0;

    for (uint64_t first = begin; rc == 0 && first < end; first += to->columns)
        rc = store_code_write_row(&(struct row){source, first, to->columns, values}, to);
    return rc;
}

int store_code(const struct store *store, uint32_t unit, const struct model_piece *piece, uint64_t begin, uint64_t n,
               const struct store_source *source)
{
    if (piece->form == FORM_VALUES || form_is_plain(piece->form))
        return store_code_write_values(store, unit, piece, begin, begin + n, source);
    const struct store_codes to = store_codes(store, unit, piece);
    const uint64_t group = form_group(piece->form, to.columns);
    const uint64_t first = group_end(begin, group, piece->n), end = group_end(begin + n, group, piece->n);
    assert(piece->form == FORM_INT8 || piece->form == FORM_NF4);
    return piece->form == FORM_NF4 ? store_code_write_blocks(&to, piece->n, first, end, source)
                                   : store_code_write_rows(&to, first, end, source);
}
