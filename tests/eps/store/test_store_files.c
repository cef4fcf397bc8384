#include "tests/kit/plain.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* These two stand in for the C library's: a file system that cannot reserve, one that is full after so many bytes. */
static int reserve_code;
static off_t room = INT64_MAX;

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    if (reserve_code == 0)
        return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    errno = reserve_code;
    return -1;
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    if (room == 0) {
        errno = ENOSPC;
        return -1;
    }
    const size_t now = (off_t)n < room ? n : (size_t)room; /* then the write is short */
    room -= (off_t)now;
    return (ssize_t)syscall(SYS_pwrite64, fd, data, now, offset);
}

static int make_file(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    return fd;
}

/* Weights from a seed, moments and counts that tell units and elements apart. */
static void fill(struct store_fixture *f)
{
    store_draw(&f->store, 9);
    for (uint64_t i = 0; i < f->model.segment_n; i++) {
        f->store.m[i] = -(float)i;
        f->store.v[i] = (float)i / 2;
    }
    for (uint32_t u = 0; u < f->model.n_units; u++)
        f->store.updates[u] = 5;
}

/* Only what belongs to units: what lies between them is in no file. */
static void check_same(const struct store_fixture *a, const struct store_fixture *b)
{
    for (uint32_t u = 0; u < a->model.n_units; u++) {
        const struct model_unit *unit = &a->model.units[u];
        store_fixture_same(store_weights(&a->store, u), store_weights(&b->store, u), unit->n, "w");
        store_fixture_same(a->store.m + unit->offset, b->store.m + unit->offset, unit->n, "m");
        store_fixture_same(a->store.v + unit->offset, b->store.v + unit->offset, unit->n, "v");
        ck_assert_uint_eq(a->store.updates[u], b->store.updates[u]);
    }
}

static const struct model_config *const configs[] = {&store_fixture_small, &store_fixture_cut, &store_fixture_big};

SUITE_TIMEOUT(60)

TEST_EACH(what_was_written_is_loaded_bit_for_bit, 6)
{
    const struct model_config *config = configs[_i / 2];
    const int weights = make_file("weights"), moments = make_file("moments");
    struct store_fixture a, b;
    struct error err = {0};

    store_fixture_open(&a, *config, _i % 2, 0);
    store_fixture_open(&b, *config, _i % 2, 0);
    fill(&a);
    store_fixture_write(&a.store, weights, moments, NULL);
    ck_assert_msg(store_load(&b.store, &weights, 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_load_moments(&b.store, moments, &err) == 0, "%s", err.text);
    check_same(&a, &b);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* The checksums are those of the bytes on disk, all of them, in runs of at most 4 MiB. */
TEST_EACH(every_byte_is_under_one_checksum, 3)
{
    char path[] = "/tmp/test_store_files.XXXXXX";
    struct checkpoint written = {0}, read;
    struct store_fixture f;
    struct error err = {0};

    ck_assert_ptr_nonnull(mkdtemp(path));
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int weights = openat(dir, CHECKPOINT_WEIGHTS, O_RDWR | O_CREAT | O_CLOEXEC, 0666),
              moments = openat(dir, CHECKPOINT_MOMENTS, O_RDWR | O_CREAT | O_CLOEXEC, 0666),
              config = openat(dir, CHECKPOINT_CONFIG, O_RDWR | O_CREAT | O_CLOEXEC, 0666),
              training = openat(dir, CHECKPOINT_TRAINING, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    store_fixture_open(&f, *configs[_i], true, 0);
    fill(&f);
    checkpoint_add_file(&written, CHECKPOINT_CONFIG, 0);
    store_fixture_write(&f.store, weights, moments, &written);
    for (size_t i = 0; i < written.n_files; i++)
        for (size_t k = 0; k < written.files[i].n_runs; k++)
            ck_assert_uint_le(written.files[i].runs[k].bytes, 4 << 20);
    char *text = checkpoint_print(&written);
    ck_assert_int_eq(write(training, text, strlen(text)), (ssize_t)strlen(text));
    ck_assert_msg(checkpoint_read(&read, dir, &err) == 0, "%s", err.text); /* no gap, no overlap */
    ck_assert_msg(checkpoint_check(&read, dir, NULL, NULL, NULL, &err) == 0, "%s", err.text);
    free(text);
    checkpoint_free(&written), checkpoint_free(&read);
    close(weights), close(moments), close(config), close(training);
    unlinkat(dir, CHECKPOINT_WEIGHTS, 0), unlinkat(dir, CHECKPOINT_MOMENTS, 0);
    unlinkat(dir, CHECKPOINT_CONFIG, 0), unlinkat(dir, CHECKPOINT_TRAINING, 0);
    close(dir);
    rmdir(path);
    store_fixture_close(&f);
}

TEST(a_unit_is_written_as_it_is_when_it_is_captured)
{
    const int weights = make_file("weights"), moments = make_file("moments");
    struct store_fixture a, b;
    struct store_files files;
    struct error err = {0};

    store_fixture_open(&a, store_fixture_cut, true, 0);
    store_fixture_open(&b, store_fixture_cut, true, 0);
    fill(&a);
    ck_assert_int_eq(store_files_init(&files, &a.store, &err), 0);
    for (int save = 0; save < 2; save++) { /* one layout serves one save after the other */
        fill(&a);
        ck_assert_int_eq(store_files_begin(&files, weights, moments, NULL, &err), 0);
        for (uint32_t u = 0; u < a.model.n_units; u++) {
            ck_assert_int_eq(store_files_write(&files, u, &err), 0);
            store_weights(&a.store, u)[0] = a.store.m[a.model.units[u].offset] = 1e9f;
            a.store.updates[u]++;
        }
        ck_assert_int_eq(store_files_end(&files, &err), 0);
        ck_assert_msg(store_load(&b.store, &weights, 1, &err) == 0, "%s", err.text);
        ck_assert_msg(store_load_moments(&b.store, moments, &err) == 0, "%s", err.text);
        fill(&a);
        check_same(&a, &b);
    }
    store_files_free(&files);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* Readers in Python view a tensor in place only where it is aligned for its type. */
TEST(every_tensor_is_aligned)
{
    struct store_files files;
    struct store_fixture f;
    struct error err = {0};

    store_fixture_open(&f, store_fixture_small, true, 0);
    ck_assert_int_eq(store_files_init(&files, &f.store, &err), 0);
    ck_assert_uint_eq(files.moments.offsets[0] % 8, 0);
    for (uint32_t i = 0; i < f.model.n_tensors; i++) {
        ck_assert_uint_eq(files.weights.offsets[i] % 4, 0);
        ck_assert_uint_eq(files.moments.offsets[1 + 2 * i] % 4, 0);
    }
    store_files_free(&files);
    store_files_free(&files);
    store_fixture_close(&f);
}

/* A file system that cannot reserve space is written to all the same; one that is full is not begun with. */
TEST(room_is_asked_for_first)
{
    const int weights = make_file("weights"), moments = make_file("moments");
    struct store_files files;
    struct store_fixture f;
    struct error err = {0};
    struct stat st;
    int fds[2];

    store_fixture_open(&f, store_fixture_small, true, 0);
    ck_assert_int_eq(store_files_init(&files, &f.store, &err), 0);
    reserve_code = ENOSPC;
    ck_assert_int_eq(store_files_begin(&files, weights, moments, NULL, &err), -ENOSPC);
    ck_assert(strncmp(err.text, "model.safetensors: no room for its ", 35) == 0);
    fstat(weights, &st);
    ck_assert_int_eq(st.st_size, 0);
    reserve_code = EOPNOTSUPP;
    ck_assert_int_eq(store_files_begin(&files, weights, moments, NULL, &err), 0);
    fstat(moments, &st);
    ck_assert_uint_eq((uint64_t)st.st_size, files.moments.file_bytes);
    reserve_code = 0;
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(store_files_begin(&files, fds[1], -1, NULL, &err), -ESPIPE);
    close(fds[0]), close(fds[1]);
    store_files_free(&files);
    close(weights), close(moments);
    store_fixture_close(&f);
}

/* For every byte at which the disk may be full, in steps of a prime. */
TEST(a_disk_that_is_full_is_reported_wherever_it_is)
{
    const int weights = make_file("weights"), moments = make_file("moments");
    struct store_files files;
    struct store_fixture f;
    struct error err;

    store_fixture_open(&f, store_fixture_small, true, 0);
    ck_assert_int_eq(store_files_init(&files, &f.store, &err), 0);
    const off_t bytes = (off_t)(files.weights.file_bytes + files.moments.file_bytes);
    for (off_t some = 0; some <= bytes; some += some < bytes && some + 997 > bytes ? bytes - some : 997) {
        room = some;
        int rc = store_files_begin(&files, weights, moments, NULL, &err);
        for (uint32_t u = 0; rc == 0 && u < f.model.n_units; u++)
            rc = store_files_write(&files, u, &err);
        if (rc == 0)
            rc = store_files_end(&files, &err);
        ck_assert_int_eq(rc, some == bytes ? 0 : -ENOSPC);
        if (rc != 0)
            ck_assert_ptr_nonnull(strstr(err.text, "safetensors: cannot be written: No space left on device"));
    }
    room = INT64_MAX;
    store_files_free(&files);
    close(weights), close(moments);
    store_fixture_close(&f);
}

/* ---- narrower forms: files are fp32 always ------------------------------------------------------------------------ */

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

TEST_EACH(every_form_is_written_and_loaded_into_either, 4)
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
