#include "eps/store.h"

#include "proto/random.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

static const struct eps_hyper hyper = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5};

/* cut: wte in two units. big: a block of two slices. */
static const struct model_config
    small = {.n_layers = 2, .n_heads = 2, .width = 8, .inner_width = 32, .n_positions = 5, .vocabulary = 17},
    cut = {.n_layers = 1, .n_heads = 2, .width = 64, .inner_width = 64, .n_positions = 8, .vocabulary = 33000},
    big = {.n_layers = 1, .n_heads = 8, .width = 512, .inner_width = 3200, .n_positions = 8, .vocabulary = 10};

/* A store and all that it borrows. */
struct fixture {
    struct model model;
    struct ledger ledger;
    struct eps_store store;
};

static void open_fixture(struct fixture *f, struct model_config config, bool tied, uint32_t n_accumulators)
{
    const struct eps_store_options options = {.train = true, .n_accumulators = n_accumulators};
    struct error err = {0};

    *f = (struct fixture){0};
    config.tied = tied;
    config.scale_attention = true;
    config.norm_epsilon = 1e-5f;
    config.initializer_range = 0.02f;
    ck_assert_msg(model_init(&f->model, &config, &err) == 0, "%s", err.text);
    ck_assert_msg(eps_store_init(&f->store, &f->model, &options, &f->ledger, &err) == 0, "%s", err.text);
}

static void close_fixture(struct fixture *f)
{
    eps_store_free(&f->store);
    ck_assert_uint_eq(f->ledger.total.current, 0);
    model_free(&f->model);
}

static float *floats(uint64_t n)
{
    float *x = calloc(n, sizeof *x);

    ck_assert_ptr_nonnull(x);
    return x;
}

static float *gradient(uint64_t n, uint64_t seed)
{
    float *g = floats(n);

    for (uint64_t i = 0; i < n; i++) /* a cheap mix, within -1 and 1 */
        g[i] = (float)(int32_t)((uint32_t)(i + seed * 1000003) * 2654435761u) * 0x1p-31f;
    return g;
}

/* Folds a whole unit's contribution, slice by slice, the top one first: their order does not matter. */
static void fold_unit(struct eps_store *store, uint32_t unit, const float *g, bool first, enum eps_store_fold how)
{
    for (uint32_t slice = store->model->units[unit].n_slices; slice-- > 0;)
        ck_assert(eps_store_fold(store, unit, slice, g + (uint64_t)slice * MODEL_SLICE, first, how, &hyper));
}

static void same(const float *a, const float *b, uint64_t n, const char *what)
{
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            ck_abort_msg("%s, element %ju: %a and %a", what, (uintmax_t)i, a[i], b[i]);
}

/* The unit's weights and moments after steps as the optimizer makes them, piece by piece. */
struct expected {
    float *w, *m, *v;
};

static struct expected expect(const struct fixture *f, uint32_t unit)
{
    const uint64_t n = f->model.units[unit].n;
    struct expected e = {floats(n), floats(n), floats(n)};

    memcpy(e.w, eps_store_weights(&f->store, unit), n * sizeof *e.w);
    return e;
}

static void expect_step(struct expected *e, const struct fixture *f, uint32_t unit, const float *g, uint64_t t)
{
    const struct model_unit *u = &f->model.units[unit];

    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct model_piece *p = &f->model.pieces[u->first_piece + i];
        const bool is_matrix = f->model.tensors[p->tensor].n_dims == 2; /* those decay */
        eps_optimizer_step(e->w + p->offset, e->m + p->offset, e->v + p->offset, g + p->offset, p->n, &hyper, t,
                           is_matrix);
    }
}

static void check_and_free(struct expected *e, const struct fixture *f, uint32_t unit)
{
    const struct model_unit *u = &f->model.units[unit];

    same(eps_store_weights(&f->store, unit), e->w, u->n, "w");
    same(f->store.m + u->offset, e->m, u->n, "m");
    same(f->store.v + u->offset, e->v, u->n, "v");
    free(e->w), free(e->m), free(e->v);
}

START_TEST(a_fresh_store_is_zero_and_in_the_ledger)
{
    struct fixture f;

    open_fixture(&f, small, true, 3);
    const uint64_t bytes = f.model.segment_n * sizeof(float);
    const float *w = f.store.weights.base;
    for (uint64_t i = 0; i < f.model.segment_n; i++)
        ck_assert(w[i] == 0 && f.store.m[i] == 0 && f.store.v[i] == 0);
    ck_assert_uint_eq(f.ledger.rows[LEDGER_WEIGHTS].current, bytes);
    ck_assert_uint_eq(f.ledger.rows[LEDGER_FIRST_MOMENT].current, bytes);
    ck_assert_uint_eq(f.ledger.rows[LEDGER_SECOND_MOMENT].current, bytes);
    ck_assert_uint_eq(f.ledger.rows[LEDGER_TIED].current, (17 * 8 + 8) * 4); /* wte, up to a multiple of 16 */
    /* A block by hand: norms 4 * 8, products 8 * 24 + 8 * 8 + 2 * 8 * 32, biases 24 + 8 + 32 + 8: 872, up to 880 */
    ck_assert_uint_eq(f.ledger.rows[LEDGER_ACCUMULATORS].current, 3 * 880 * 4);
    close_fixture(&f);
}
END_TEST

START_TEST(without_training_there_are_weights_alone)
{
    const struct eps_store_options options = {.train = false};
    struct fixture f;
    struct error err = {0};

    open_fixture(&f, small, true, 0);
    eps_store_free(&f.store);
    ck_assert_int_eq(eps_store_init(&f.store, &f.model, &options, &f.ledger, &err), 0);
    ck_assert_ptr_null(f.store.m);
    ck_assert_ptr_null(f.store.v);
    ck_assert_uint_eq(f.ledger.total.current, f.model.segment_n * sizeof(float));
    eps_store_draw(&f.store, 1);
    close_fixture(&f);
}
END_TEST

START_TEST(a_drawn_weight_depends_on_seed_tensor_and_index_alone)
{
    const struct random_key key = random_site_key(42, 0, 0, RANDOM_WEIGHTS);
    struct fixture f;

    open_fixture(&f, cut, false, 0);
#ifdef _OPENMP
    omp_set_num_threads(3);
#endif
    eps_store_draw(&f.store, 42);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        for (uint32_t i = 0; i < f.model.units[u].n_pieces; i++) {
            const struct model_piece *p = &f.model.pieces[f.model.units[u].first_piece + i];
            const struct model_tensor *tensor = &f.model.tensors[p->tensor];
            const float *w = eps_store_weights(&f.store, u) + p->offset;
            for (uint64_t k = 0; k<p->n; k += p->n> 2000 ? 997 : 1) {
                float want = tensor->init == MODEL_INIT_ONE;
                if (tensor->init == MODEL_INIT_NORMAL) {
                    random_normal(&want, key, p->tensor, p->first_row * tensor->shape[1] + k, 1);
                    want *= tensor->deviation;
                }
                if (w[k] != want)
                    ck_abort_msg("%s, unit %u, element %ju: %a, not %a", tensor->name, u, (uintmax_t)k, w[k], want);
            }
        }
    close_fixture(&f);
}
END_TEST

/* The sample deviation of 33000 * 64 elements is within 0.2 % of the tensor's at 4 sigma. */
START_TEST(drawn_weights_have_the_deviation_of_their_tensor)
{
    struct fixture f;
    double sum = 0, squares = 0;
    uint64_t n = 0;

    open_fixture(&f, cut, true, 0);
    eps_store_draw(&f.store, 7);
    for (uint32_t u = 0; f.model.units[u].n_visits == 2; u++)
        for (uint64_t i = 0; i < f.model.units[u].n; i++, n++) {
            double w = eps_store_weights(&f.store, u)[i];
            sum += w;
            squares += w * w;
        }
    ck_assert_uint_eq(n, 33000 * 64);
    ck_assert_double_eq_tol(sum / (double)n, 0, 0.02 * 3 / sqrt((double)n));
    ck_assert_double_eq_tol(sqrt(squares / (double)n), 0.02, 0.02 * 2e-3);
    close_fixture(&f);
}
END_TEST

/* The block of `big` is two slices, the cut between them inside a tensor. */
START_TEST(a_direct_fold_is_adamw_tensor_by_tensor)
{
    struct fixture f;

    open_fixture(&f, big, false, 0);
    eps_store_draw(&f.store, 1);
    for (uint32_t unit = 0; unit < f.model.n_units; unit++) {
        struct expected e = expect(&f, unit);
        for (uint64_t t = 1; t <= 2; t++) {
            float *g = gradient(f.model.units[unit].n, t);
            fold_unit(&f.store, unit, g, true, EPS_FOLD_DIRECT);
            eps_store_update(&f.store, unit, EPS_FOLD_DIRECT, &hyper);
            expect_step(&e, &f, unit, g, t);
            ck_assert_uint_eq(f.store.updates[unit], t);
            free(g);
        }
        check_and_free(&e, &f, unit);
    }
    ck_assert_uint_eq(f.model.largest_unit > MODEL_SLICE, 1);
    close_fixture(&f);
}
END_TEST

/* One part: all three ways are AdamW, bit for bit. */
START_TEST(with_one_part_every_way_gives_the_same_bits)
{
    const enum eps_store_fold how = (enum eps_store_fold)_i;
    const uint32_t unit = 2; /* a block */
    struct fixture f;

    open_fixture(&f, small, true, 1);
    eps_store_draw(&f.store, 1);
    struct expected e = expect(&f, unit);
    for (uint64_t t = 1; t <= 3; t++) {
        float *g = gradient(f.model.units[unit].n, t);
        fold_unit(&f.store, unit, g, true, how);
        eps_store_update(&f.store, unit, how, &hyper);
        expect_step(&e, &f, unit, g, t);
        free(g);
    }
    check_and_free(&e, &f, unit);
    close_fixture(&f);
}
END_TEST

START_TEST(adama_folds_each_part_into_the_moments)
{
    const uint32_t unit = 2;
    struct fixture f;

    open_fixture(&f, small, true, 0);
    eps_store_draw(&f.store, 1);
    const struct model_unit *u = &f.model.units[unit];
    struct expected e = expect(&f, unit);
    for (uint64_t part = 0; part < 3; part++) {
        float *g = gradient(u->n, part);
        fold_unit(&f.store, unit, g, part == 0, EPS_FOLD_MOMENTS);
        eps_optimizer_fold(e.m, e.v, g, u->n, &hyper, part == 0);
        free(g);
    }
    same(eps_store_weights(&f.store, unit), e.w, u->n, "w before the update");
    eps_store_update(&f.store, unit, EPS_FOLD_MOMENTS, &hyper);
    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct model_piece *p = &f.model.pieces[u->first_piece + i];
        eps_optimizer_update(e.w + p->offset, e.m + p->offset, e.v + p->offset, p->n, &hyper, 1,
                             f.model.tensors[p->tensor].n_dims == 2);
    }
    check_and_free(&e, &f, unit);
    close_fixture(&f);
}
END_TEST

/* Two visits of wte, cut into units: each unit's sum is its own. */
START_TEST(tied_units_are_summed_over_their_visits)
{
    struct fixture f;

    open_fixture(&f, cut, true, 0);
    eps_store_draw(&f.store, 1);
    ck_assert_uint_gt(f.model.units[1].n_visits, 1); /* more than one tied unit */
    for (uint64_t t = 1; t <= 2; t++) {
        struct expected e[2];
        float *g[2][2], *sum[2];
        for (uint32_t unit = 0; unit < 2; unit++) {
            const uint64_t n = f.model.units[unit].n;
            e[unit] = expect(&f, unit);
            memcpy(e[unit].m, f.store.m + f.model.units[unit].offset, n * sizeof(float));
            memcpy(e[unit].v, f.store.v + f.model.units[unit].offset, n * sizeof(float));
            sum[unit] = floats(n);
            for (uint64_t visit = 0; visit < 2; visit++)
                g[unit][visit] = gradient(n, t * 10 + unit * 2 + visit);
            for (uint64_t i = 0; i < n; i++)
                sum[unit][i] = g[unit][0][i] + g[unit][1][i];
        }
        for (int visit = 0; visit < 2; visit++)
            for (uint32_t unit = 0; unit < 2; unit++)
                fold_unit(&f.store, unit, g[unit][visit], visit == 0, EPS_FOLD_SUM);
        for (uint32_t unit = 0; unit < 2; unit++) {
            eps_store_update(&f.store, unit, EPS_FOLD_SUM, &hyper);
            expect_step(&e[unit], &f, unit, sum[unit], t);
            check_and_free(&e[unit], &f, unit);
            free(g[unit][0]), free(g[unit][1]), free(sum[unit]);
        }
    }
    close_fixture(&f);
}
END_TEST

START_TEST(accumulators_go_round)
{
    struct fixture f;

    open_fixture(&f, small, false, 2);
    for (uint32_t unit = 0; unit < f.model.n_units; unit++) {
        float *g = gradient(f.model.units[unit].n, unit);
        fold_unit(&f.store, unit, g, true, EPS_FOLD_SUM);
        ck_assert_ptr_nonnull(f.store.sums[unit]);
        if (unit > 0) { /* two at a time; the one before is done */
            ck_assert_ptr_ne(f.store.sums[unit], f.store.sums[unit - 1]);
            eps_store_update(&f.store, unit - 1, EPS_FOLD_SUM, &hyper);
            ck_assert_ptr_null(f.store.sums[unit - 1]);
        }
        free(g);
    }
    close_fixture(&f);
}
END_TEST

START_TEST(a_slice_that_is_not_finite_changes_nothing)
{
    const enum eps_store_fold how = (enum eps_store_fold)_i;
    struct fixture f;

    open_fixture(&f, big, false, 1);
    eps_store_draw(&f.store, 1);
    const uint32_t unit = 2;
    const struct model_unit *u = &f.model.units[unit];
    ck_assert_uint_eq(u->n_slices, 2);
    float *g = gradient(u->n, 1);
    struct expected e = expect(&f, unit);
    g[u->n - 1] = NAN;
    ck_assert(!eps_store_fold(&f.store, unit, 1, g + MODEL_SLICE, true, how, &hyper));
    ck_assert_ptr_null(f.store.sums[unit]);
    check_and_free(&e, &f, unit);
    ck_assert(eps_store_fold(&f.store, unit, 0, g, true, how, &hyper)); /* the other slice is good */
    free(g);
    close_fixture(&f);
}
END_TEST

/* ---- files ---- */

/* A safetensors file in the making. */
struct file {
    char header[65536];
    size_t header_n;
    uint8_t *data;
    uint64_t data_n;
};

/* Exact in all three types, so that one expectation serves all. */
static float exact(uint64_t i)
{
    return (float)((int)(i * 7 % 127) - 63) * 0x1p-5f;
}

static void put_value(struct file *file, float value, const char *type)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof bits);
    if (strcmp(type, "BF16") == 0) {
        bits >>= 16;
    } else if (strcmp(type, "F16") == 0) { /* a normal number or zero: rebias the exponent from 127 to 15 */
        uint32_t exponent = bits >> 23 & 0xff;
        bits = (bits >> 16 & 0x8000) | (exponent ? (exponent - 112) << 10 : 0) | (bits >> 13 & 0x3ff);
    }
    size_t size = strcmp(type, "F32") == 0 ? 4 : 2;
    memcpy(file->data + file->data_n, &bits, size); /* little-endian */
    file->data_n += size;
}

/* shape of a tensor of the model; odd is put at element 3 instead of the usual, if not zero. */
static void add_tensor(struct file *file, const char *name, const char *type, const struct model_tensor *tensor,
                       float odd)
{
    const uint64_t begin = file->data_n;
    char shape[64];

    snprintf(shape, sizeof shape, tensor->n_dims == 2 ? "%ju,%ju" : "%ju", (uintmax_t)tensor->shape[0],
             (uintmax_t)tensor->shape[1]);
    file->data = realloc(file->data, begin + tensor->n * 4);
    ck_assert_ptr_nonnull(file->data);
    for (uint64_t i = 0; i < tensor->n; i++)
        put_value(file, i == 3 && odd != 0 ? odd : exact(i), type);
    file->header_n +=
        (size_t)snprintf(file->header + file->header_n, sizeof file->header - file->header_n,
                         "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%ju,%ju]}",
                         file->header_n ? ',' : '{', name, type, shape, (uintmax_t)begin, (uintmax_t)file->data_n);
    ck_assert_uint_lt(file->header_n, sizeof file->header - 1);
}

/* The descriptor; file is done with. */
static int finish(struct file *file)
{
    int fd = memfd_create("weights", MFD_CLOEXEC);

    file->header[file->header_n++] = '}';
    while (file->header_n % 8)
        file->header[file->header_n++] = ' ';
    const uint64_t n = file->header_n;
    ck_assert_int_eq(write(fd, &n, 8), 8);
    ck_assert_int_eq(write(fd, file->header, n), (ssize_t)n);
    ck_assert_int_eq(write(fd, file->data, file->data_n), (ssize_t)file->data_n);
    free(file->data);
    *file = (struct file){0};
    return fd;
}

/* Every tensor but one; type F32, full names. */
static void add_all_but(struct file *file, const struct model *model, const char *left_out)
{
    for (uint32_t i = 0; i < model->n_tensors; i++)
        if (!left_out || strcmp(model->tensors[i].name, left_out) != 0)
            add_tensor(file, model->tensors[i].name, "F32", &model->tensors[i], 0);
}

static void check_exact(const struct fixture *f)
{
    for (uint32_t u = 0; u < f->model.n_units; u++)
        for (uint32_t i = 0; i < f->model.units[u].n_pieces; i++) {
            const struct model_piece *p = &f->model.pieces[f->model.units[u].first_piece + i];
            const struct model_tensor *tensor = &f->model.tensors[p->tensor];
            const float *w = eps_store_weights(&f->store, u) + p->offset;
            for (uint64_t k = 0; k < p->n; k++)
                if (w[k] != exact(p->first_row * tensor->shape[1] + k))
                    ck_abort_msg("%s, unit %u, element %ju: %a", tensor->name, u, (uintmax_t)k, w[k]);
        }
}

START_TEST(what_was_written_is_loaded_bit_for_bit)
{
    struct fixture a, b;
    struct error err = {0};
    int fd = memfd_create("weights", MFD_CLOEXEC);

    open_fixture(&a, cut, _i, 0);
    open_fixture(&b, cut, _i, 0);
    eps_store_draw(&a.store, 9);
    ck_assert_msg(eps_store_write(&a.store, fd, &err) == 0, "%s", err.text);
    ck_assert_int_eq(lseek(fd, 0, SEEK_SET), 0);
    ck_assert_msg(eps_store_load(&b.store, &fd, 1, &err) == 0, "%s", err.text);
    same(a.store.weights.base, b.store.weights.base, a.model.segment_n, "w");
    close(fd);
    close_fixture(&a), close_fixture(&b);
}
END_TEST

START_TEST(a_full_disk_is_said)
{
    struct fixture f;
    struct error err = {0};
    FILE *full = fopen("/dev/full", "w");

    ck_assert_ptr_nonnull(full);
    open_fixture(&f, small, true, 0);
    ck_assert_int_eq(eps_store_write(&f.store, fileno(full), &err), -ENOSPC);
    ck_assert_str_ne(err.text, "");
    fclose(full);
    close_fixture(&f);
}
END_TEST

/* The three types, short names in the second of two files, and what may be passed over. */
START_TEST(weights_of_every_type_are_loaded_from_several_files)
{
    static const char *const types[] = {"F32", "F16", "BF16"};
    const bool tied = _i % 2;
    struct model_tensor mask = {.n_dims = 2, .shape = {5, 5}, .n = 25};
    struct file file = {0};
    struct fixture f;
    struct error err = {0};
    int fds[2];

    open_fixture(&f, small, tied, 0);
    for (uint32_t i = 0; i < f.model.n_tensors; i++) {
        const char *name = f.model.tensors[i].name;
        if (i == f.model.n_tensors / 2)
            fds[0] = finish(&file);
        if (i >= f.model.n_tensors / 2 && strncmp(name, "transformer.", 12) == 0)
            name += 12;
        add_tensor(&file, name, types[(unsigned)_i / 2], &f.model.tensors[i], 0);
    }
    add_tensor(&file, "h.1.attn.bias", "F32", &mask, NAN);
    add_tensor(&file, "transformer.h.0.attn.masked_bias", "F16", &mask, 0);
    if (tied)
        add_tensor(&file, "lm_head.weight", "F32", model_find(&f.model, "wte.weight"), 0);
    fds[1] = finish(&file);
    ck_assert_msg(eps_store_load(&f.store, fds, 2, &err) == 0, "%s", err.text);
    check_exact(&f);
    close(fds[0]), close(fds[1]);
    close_fixture(&f);
}
END_TEST

START_TEST(a_tensor_cut_over_units_is_loaded_in_order_of_rows)
{
    struct file file = {0};
    struct fixture f;
    struct error err = {0};

    open_fixture(&f, cut, true, 0);
    add_all_but(&file, &f.model, NULL);
    add_tensor(&file, "lm_head.weight", "F32", model_find(&f.model, "wte.weight"), 0);
    int fd = finish(&file);
    ck_assert_msg(eps_store_load(&f.store, &fd, 1, &err) == 0, "%s", err.text);
    check_exact(&f);
    close(fd);
    close_fixture(&f);
}
END_TEST

/* A file as it should be but for one tensor, which says what is wrong. */
static const struct {
    const char *left_out, *added, *type;
    uint64_t rows; /* 0: as it should be */
    float odd;
    const char *sentence;
} bad_files[] = {
    {"transformer.ln_f.bias", NULL, NULL, 0, 0, "transformer.ln_f.bias is missing"},
    {"transformer.wpe.weight", "transformer.wpe.weight", "F32", 4, 0,
     "transformer.wpe.weight is 4 x 8, the model's is 5 x 8"},
    {NULL, "transformer.h.2.ln_1.bias", "F32", 8, 0, "transformer.h.2.ln_1.bias is no tensor of this model"},
    {NULL, "attn.bias", "F32", 8, 0, "attn.bias is no tensor of this model"},
    {NULL, "h.0.ln_1.weight", "F32", 0, 0, "transformer.h.0.ln_1.weight comes twice"},
    {"transformer.h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "F32", 0, NAN,
     "h.1.mlp.c_fc.bias has a value that is not finite"},
    {"transformer.h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "BF16", 0, INFINITY,
     "h.1.mlp.c_fc.bias has a value that is not finite"},
    {"transformer.h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "I16", 0, 0,
     "h.1.mlp.c_fc.bias is of a type that is not read here"},
    {NULL, "lm_head.weight", "F32", 0, 0.5f, "lm_head.weight differs from wte.weight"},
    {NULL, "lm_head.weight", "F32", 16, 0, "lm_head.weight is 16 x 8, the model's is 17 x 8"},
};

START_TEST(what_is_wrong_with_a_file_is_said_by_name)
{
    const char *added = bad_files[_i].added;
    struct file file = {0};
    struct fixture f;
    struct error err = {0};

    open_fixture(&f, small, true, 0);
    add_all_but(&file, &f.model, bad_files[_i].left_out);
    if (added) {
        struct model_tensor tensor = {.n_dims = 2, .shape = {1, 8}};
        const char *like = strcmp(added, "lm_head.weight") == 0 ? "wte.weight" : added;
        if (model_find(&f.model, like))
            tensor = *model_find(&f.model, like);
        if (bad_files[_i].rows)
            tensor.shape[0] = bad_files[_i].rows;
        tensor.n = tensor.shape[0] * tensor.shape[1];
        add_tensor(&file, added, bad_files[_i].type, &tensor, bad_files[_i].odd);
    }
    int fd = finish(&file);
    ck_assert_int_eq(eps_store_load(&f.store, &fd, 1, &err), -EINVAL);
    if (strncmp(err.text, bad_files[_i].sentence, strlen(bad_files[_i].sentence)) != 0)
        ck_abort_msg("'%s', not '%s...'", err.text, bad_files[_i].sentence);
    close(fd);
    close_fixture(&f);
}
END_TEST

START_TEST(a_tensor_in_two_files_is_refused)
{
    struct file file = {0};
    struct fixture f;
    struct error err = {0};
    int fds[2];

    open_fixture(&f, small, false, 0);
    add_all_but(&file, &f.model, NULL);
    fds[0] = finish(&file);
    add_tensor(&file, "lm_head.weight", "F32", model_find(&f.model, "lm_head.weight"), 0);
    fds[1] = finish(&file);
    ck_assert_int_eq(eps_store_load(&f.store, fds, 2, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "lm_head.weight comes twice"));
    ck_assert_int_eq(eps_store_load(&f.store, fds + 1, 1, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "transformer.wte.weight is missing"));
    ck_assert_int_eq(eps_store_load(&f.store, NULL, 0, &err), -EINVAL);
    ck_assert_msg(eps_store_load(&f.store, fds, 1, &err) == 0, "%s", err.text); /* after all that, still */
    check_exact(&f);
    close(fds[0]), close(fds[1]);
    close_fixture(&f);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store");
    TCase *tcase = tcase_create("store");

    eps_optimizer_select(EPS_ISA_BEST);
    tcase_set_timeout(tcase, 60);
    tcase_add_test(tcase, a_fresh_store_is_zero_and_in_the_ledger);
    tcase_add_test(tcase, without_training_there_are_weights_alone);
    tcase_add_test(tcase, a_drawn_weight_depends_on_seed_tensor_and_index_alone);
    tcase_add_test(tcase, drawn_weights_have_the_deviation_of_their_tensor);
    tcase_add_test(tcase, a_direct_fold_is_adamw_tensor_by_tensor);
    tcase_add_loop_test(tcase, with_one_part_every_way_gives_the_same_bits, EPS_FOLD_DIRECT, EPS_FOLD_SUM + 1);
    tcase_add_test(tcase, adama_folds_each_part_into_the_moments);
    tcase_add_test(tcase, tied_units_are_summed_over_their_visits);
    tcase_add_test(tcase, accumulators_go_round);
    tcase_add_loop_test(tcase, a_slice_that_is_not_finite_changes_nothing, EPS_FOLD_DIRECT, EPS_FOLD_SUM + 1);
    tcase_add_loop_test(tcase, what_was_written_is_loaded_bit_for_bit, 0, 2);
    tcase_add_test(tcase, a_full_disk_is_said);
    tcase_add_loop_test(tcase, weights_of_every_type_are_loaded_from_several_files, 0, 6);
    tcase_add_test(tcase, a_tensor_cut_over_units_is_loaded_in_order_of_rows);
    tcase_add_loop_test(tcase, what_is_wrong_with_a_file_is_said_by_name, 0, sizeof bad_files / sizeof *bad_files);
    tcase_add_test(tcase, a_tensor_in_two_files_is_refused);
    suite_add_tcase(suite, tcase);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}
