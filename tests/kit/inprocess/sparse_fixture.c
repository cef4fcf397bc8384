#include "tests/kit/inprocess/sparse_fixture.h"

#include "proto/plan/memory/files.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <unistd.h>

static const struct model_config config = GPT2_CONFIG(2, 2, 32, 96, 8, 17);
const struct sparse sparse_fixture_usual = {.keep = 0.3, .room = 1.25, .every = SPARSE_FIXTURE_EVERY, .moved = 0.1};

const struct store_options sparse_fixture_forms[SPARSE_FIXTURE_FORMS] = {
    {.train = true, .seed = SPARSE_FIXTURE_SEED},
    {.train = true, .seed = SPARSE_FIXTURE_SEED, .replay = true},
    {.train = true, .seed = SPARSE_FIXTURE_SEED, .fenced = true, .sgd = true, .momentum = 0.9},
    {.train = true, .seed = SPARSE_FIXTURE_SEED, .precision = NUMBER_BF16},
    {.train = true, .seed = SPARSE_FIXTURE_SEED, .precision = NUMBER_BF16, .moments = NUMBER_BF16, .replay = true},
};

void sparse_fixture_open(struct store_fixture *f, const struct sparse *sparse, const struct store_options *options)
{
    struct model_config c = config;
    struct error err = {""};

    *f = (struct store_fixture){0};
    c.tied = true;
    gpt2_edit(&c)->scale_attention = true;
    ck_assert_msg(model_init(&f->model, &c, &err) == 0, "%s", err.text);
    model_sparsify(&f->model, sparse);
    ck_assert_msg(store_init(&f->store, &f->model, options, &f->ledger, &err) == 0, "%s", err.text);
}

static struct sparse_elements sparse_elements_of(const struct store *store, uint32_t unit,
                                                 const struct model_piece *piece)
{
    const struct sparse_places p = store_places(store, unit, piece);
    struct sparse_elements e = {.n_dense = piece->dense, .n = sparse_places_used(&p)};
    float *const all[] = {plain_zeros(piece->n, sizeof(float)), plain_zeros(piece->n, sizeof(float)),
                          plain_zeros(piece->n, sizeof(float))};
    float **const out[] = {&e.w, &e.m, &e.v};
    const struct parameters from = store_parameters(store, unit, piece->offset, piece->n, 0);

    optimizer_read(&from, all[0], store_moments(store) > 0 ? all[1] : NULL, store_moments(store) > 1 ? all[2] : NULL);
    for (int a = 0; a < 3; a++) {
        *out[a] = plain_zeros(piece->dense, sizeof(float));
        for (uint64_t i = 0; i < piece->dense; i++)
            (*out[a])[i] = NAN;
        uint64_t at = 0;
        for (uint64_t i = 0; i < piece->dense; i++) {
            const uint64_t row = i / p.columns, column = i % p.columns;
            ck_assert(column > 0 || p.starts[row] == at);
            if (p.places[row * p.words + column / 32] >> column % 32 & 1)
                (*out[a])[i] = all[a][at++];
        }
        ck_assert_uint_eq(at, e.n);
        for (uint64_t i = e.n; i < piece->n; i++) /* what is free is 0 */
            ck_assert(all[a][i] == 0);
        free(all[a]);
    }
    return e;
}

static void sparse_elements_free(struct sparse_elements *e)
{
    free(e->w);
    free(e->m);
    free(e->v);
}

struct sparse_snapshot sparse_snapshot_take(const struct store_fixture *f)
{
    struct sparse_snapshot s = {0};

    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        if (at.piece->dense == 0)
            continue;
        ck_assert_int_lt(s.n, SPARSE_FIXTURE_MOST_PIECES);
        s.unit[s.n] = at.unit, s.piece[s.n] = at.piece;
        s.of[s.n] = sparse_elements_of(&f->store, at.unit, at.piece);
        s.n_elements += s.of[s.n++].n;
    }
    ck_assert_int_eq(s.n, 8); /* four matrices of each block */
    return s;
}

void sparse_snapshot_free(struct sparse_snapshot *s)
{
    for (int i = 0; i < s->n; i++)
        sparse_elements_free(&s->of[i]);
}

void sparse_fixture_scatter(struct store_fixture *f, uint64_t seed)
{
    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        if (at.piece->dense == 0)
            continue;
        const struct sparse_places p = store_places(&f->store, at.unit, at.piece);
        for (uint64_t i = 0; i < sparse_places_used(&p); i++) {
            const struct parameters to = store_parameters(&f->store, at.unit, at.piece->offset + i, 1, 0);
            const uint64_t number = at.piece->tensor * UINT64_C(100000) + i;
            const float w = plain_number(number, seed) * (seed % 2 ? 0.008f : 0.04f),
                        m = plain_number(number, seed + 1), v = fabsf(plain_number(number, seed + 2));
            optimizer_write(&to, &w, store_moments(&f->store) > 0 ? &m : NULL,
                            store_moments(&f->store) > 1 ? &v : NULL);
        }
    }
}

void sparse_fixture_open_dense(struct store_fixture *f)
{
    struct model_config c = config;

    store_fixture_open_as(f, c, true, &sparse_fixture_forms[0]);
    store_draw(&f->store, SPARSE_FIXTURE_SEED);
}

void sparse_fixture_open_given(struct store_fixture *f, const struct store_fixture *dense,
                               const struct store_options *options)
{
    const struct file file = file_own(store_fixture_file());
    struct error err = {""};

    store_fixture_write(&dense->store, file.fd, -1, NULL);
    sparse_fixture_open(f, &sparse_fixture_usual, options);
    ck_assert_msg(store_fixture_load(&f->store, &file, 1, &err) == 0, "%s", err.text);
    close(file.fd);
}

int sparse_fixture_load_places(struct store_fixture *to, const struct file *moments, struct error *err)
{
    struct reserve reserve = {.bytes = plan_load_bytes(&to->model, 1, 1 << 20)};

    reserve.memory = malloc(reserve.bytes);
    const int rc = store_load_places(&to->store, moments, &reserve, err);
    free(reserve.memory);
    return rc;
}

void sparse_fixture_reload(struct store_fixture *to, const struct store_fixture *from)
{
    const struct file weights = file_own(store_fixture_file()), moments = file_own(store_fixture_file());
    struct error err = {""};

    store_fixture_write(&from->store, weights.fd, moments.fd, NULL);
    ck_assert_msg(sparse_fixture_load_places(to, &moments, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load(&to->store, &weights, 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load_moments(&to->store, &moments, &err) == 0, "%s", err.text);
    close(weights.fd);
    close(moments.fd);
}
