/* Stores in their narrower forms, written to files, which are fp32 always, and read from them. */
#include "tests/kit/plain.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const struct store_options fp32 = {.train = true},
                                  narrow = {.train = true, .precision = NUMBER_BF16, .moments = NUMBER_BF16},
                                  split = {.train = true, .precision = NUMBER_BF16};

/* Its moments and weights are like those of a run: of no particular bits. */
static void open_trained(struct store_fixture *f, struct model_config config, const struct store_options *options)
{
    const struct hyper hp = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8};

    store_fixture_open_as(f, config, false, options);
    store_draw(&f->store, 9);
    for (uint32_t u = 0; u < f->model.n_units; u++) {
        const uint64_t n = f->model.units[u].n;
        float *g = calloc(n, sizeof *g);
        ck_assert_ptr_nonnull(g);
        ck_assert_uint_le(n, MODEL_SLICE);
        for (uint64_t i = 0; i < n; i++)
            g[i] = (float)(int32_t)((uint32_t)i * 2654435761u) * 0x1p-31f;
        ck_assert(plain_store_fold(&f->store, u, 0, g, true, STORE_FOLD_DIRECT, &hp));
        store_update(&f->store, u, STORE_FOLD_DIRECT, &hp);
        free(g);
    }
}

struct files {
    int weights, moments;
};

static struct files write_files(const struct store_fixture *f)
{
    const struct files files = {memfd_create("weights", MFD_CLOEXEC), memfd_create("moments", MFD_CLOEXEC)};

    ck_assert(files.weights >= 0 && files.moments >= 0);
    store_fixture_write(&f->store, files.weights, files.moments, NULL);
    return files;
}

static void load(struct store_fixture *f, const struct files *files)
{
    struct error err = {""};

    ck_assert_msg(store_load(&f->store, &files->weights, 1, &err) == 0, "%s", err.text);
    if (f->store.options.train)
        ck_assert_msg(store_load_moments(&f->store, files->moments, &err) == 0, "%s", err.text);
}

static void close_files(const struct files *files)
{
    close(files->weights), close(files->moments);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE_ONCE(store_fixture_best, NULL)

TEST_EACH(what_was_written_is_loaded_bit_for_bit_into_either_form, 4)
{
    struct store_fixture a, b;

    open_trained(&a, store_fixture_small, _i < 2 ? &narrow : &split);
    const struct files files = write_files(&a);
    store_fixture_open_as(&b, store_fixture_small, false, _i % 2 ? &fp32 : a.store.options.moments ? &narrow : &split);
    load(&b, &files);
    store_fixture_same_stores(&a, &b);
    close_files(&files);
    store_fixture_close(&a), store_fixture_close(&b);
}

static void same_bytes(int a, int b)
{
    struct stat x, y;

    ck_assert(fstat(a, &x) == 0 && fstat(b, &y) == 0);
    ck_assert_int_eq(x.st_size, y.st_size);
    void *p = mmap(NULL, (size_t)x.st_size, PROT_READ, MAP_SHARED, a, 0);
    void *q = mmap(NULL, (size_t)y.st_size, PROT_READ, MAP_SHARED, b, 0);
    ck_assert(p != MAP_FAILED && q != MAP_FAILED);
    ck_assert_int_eq(memcmp(p, q, (size_t)x.st_size), 0);
    munmap(p, (size_t)x.st_size), munmap(q, (size_t)y.st_size);
}

/* With runs of more than 4 MiB. */
TEST(a_split_master_is_written_as_an_fp32_master_is)
{
    struct store_fixture a, b;

    open_trained(&a, store_fixture_cut, &fp32), open_trained(&b, store_fixture_cut, &split);
    const struct files one = write_files(&a), two = write_files(&b);
    same_bytes(one.weights, two.weights);
    same_bytes(one.moments, two.moments);
    close_files(&one), close_files(&two);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* An evaluation has the high halves alone, as a training run relays them. */
TEST(an_evaluation_in_bf16_rounds_the_file_to_nearest)
{
    const struct store_options options = {.precision = NUMBER_BF16};
    struct store_fixture a, b;

    open_trained(&a, store_fixture_small, &split);
    const struct files files = write_files(&a);
    store_fixture_open_as(&b, store_fixture_small, false, &options);
    load(&b, &files);
    ck_assert_ptr_null(b.store.low);
    ck_assert_uint_eq(b.ledger.total.current, 2 * b.model.segment_n);
    ck_assert_mem_eq(a.store.weights.base, b.store.weights.base, 2 * b.model.segment_n);
    close_files(&files);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* Of a run that had them in fp32. */
TEST(moments_of_32_bits_are_loaded_to_nearest)
{
    struct store_fixture a, b;

    open_trained(&a, store_fixture_small, &fp32);
    const struct files files = write_files(&a);
    store_fixture_open_as(&b, store_fixture_small, false, &narrow);
    load(&b, &files);
    for (uint64_t i = 0; i < a.model.segment_n; i++) {
        ck_assert_uint_eq(b.store.m16[i], number_to_bf16(a.store.m[i]));
        ck_assert_uint_eq(b.store.v16[i], number_to_v16(a.store.v[i]));
    }
    close_files(&files);
    store_fixture_close(&a), store_fixture_close(&b);
}
