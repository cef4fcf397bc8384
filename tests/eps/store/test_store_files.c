#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

SUITE_LABELS(own)

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

static const struct store_options fp32 = {.train = true},
                                  narrow = {.train = true, .precision = NUMBER_BF16, .moments = NUMBER_BF16},
                                  split = {.train = true, .precision = NUMBER_BF16};

/* Its moments and weights are like those of a run: of no particular bits. */
static void open_trained(struct store_fixture *f, const struct model_config *config, bool tied,
                         const struct store_options *options)
{
    const struct hyper hp = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .grad_scale = 1};

    store_fixture_open_as(f, *config, tied, options);
    store_draw(&f->store, 9);
    for (uint32_t u = 0; u < f->model.n_units; u++) {
        const enum store_fold how = f->model.units[u].n_visits > 1 ? STORE_FOLD_SUM : STORE_FOLD_DIRECT;
        float *g = plain_zeros(f->model.units[u].n, sizeof *g);
        for (uint64_t i = 0; i < f->model.units[u].n; i++)
            g[i] = plain_number(i, 0);
        store_fixture_fold(f, u, &(struct store_given){.g = g, .first = true}, how, &hp);
        store_update(&f->store, u, how, &hp);
        free(g);
    }
}

/* What a form had in the files, it finds again, and so does fp32. */
static const struct {
    const struct model_config *config;
    bool tied;
    const struct store_options *written, *loaded;
} trips[] = {
    {&store_fixture_small, true, &fp32, &fp32},      {&store_fixture_small, false, &fp32, &fp32},
    {&store_fixture_cut, true, &fp32, &fp32},        {&store_fixture_cut, false, &split, &fp32},
    {&store_fixture_big, false, &fp32, &fp32},       {&store_fixture_small, true, &split, &split},
    {&store_fixture_small, false, &narrow, &narrow}, {&store_fixture_small, false, &narrow, &fp32},
};

SUITE_TIMEOUT(60)

TEST_EACH(what_was_written_is_loaded_bit_for_bit, COUNT(trips))
{
    struct store_fixture a, b;

    open_trained(&a, trips[_i].config, trips[_i].tied, trips[_i].written);
    store_fixture_open_as(&b, *trips[_i].config, trips[_i].tied, trips[_i].loaded);
    store_fixture_reload(&b, &a);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* An evaluation has the high halves alone, as a training run relays them; moments that were fp32 become 16 bits to
 * nearest. */
TEST(a_narrower_form_takes_the_file_to_nearest)
{
    const struct store_options options = {.precision = NUMBER_BF16};
    struct store_fixture a, b, c, d;

    open_trained(&a, &store_fixture_small, false, &split);
    store_fixture_open_as(&b, store_fixture_small, false, &options);
    store_fixture_reload(&b, &a);
    ck_assert_ptr_null(b.store.low);
    ck_assert_mem_eq(a.store.weights.base, b.store.weights.base, 2 * b.model.segment_n);
    open_trained(&c, &store_fixture_small, false, &fp32);
    store_fixture_open_as(&d, store_fixture_small, false, &narrow);
    store_fixture_reload(&d, &c);
    for (uint64_t i = 0; i < c.model.segment_n; i++)
        if (d.store.m16[i] != number_to_bf16(c.store.m[i]) || d.store.v16[i] != number_to_v16(c.store.v[i]))
            ck_abort_msg("element %ju", (uintmax_t)i);
    store_fixture_close(&a), store_fixture_close(&b), store_fixture_close(&c), store_fixture_close(&d);
}

/* The moments of the first matrix of a block, as memory and as the file have them. */
static void check_moments(const struct store_fixture *f, const struct safetensors *file, bool second,
                          enum safetensors_type type, size_t each)
{
    const struct model_unit *const u = &f->model.units[1];
    const struct model_piece *piece = &f->model.pieces[u->first_piece];
    char bytes[1 << 16], name[100];

    while (f->model.tensors[piece->tensor].n_dims < 2)
        piece++;
    snprintf(name, sizeof name, "%c.%s", second ? 'v' : 'm', f->model.tensors[piece->tensor].name);
    const struct safetensors_entry *const entry = safetensors_find(file, name);
    ck_assert(entry && entry->type == type && entry->n == piece->n && piece->n * each <= sizeof bytes);
    ck_assert_int_eq(file_read(&entry->file, bytes, piece->n * each, entry->offset, NULL), 0);
    const struct parameters p = store_parameters(&f->store, 1, piece->offset, piece->n, 0);
    const void *const narrow_of = second ? p.v16 : p.m16, *const wide_of = second ? p.v : p.m;
    ck_assert_mem_eq(bytes, each == 2 ? narrow_of : wide_of, piece->n * each);
}

TEST_EACH(moments_are_in_the_file_as_in_memory, 2)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    const size_t each = _i ? sizeof(uint16_t) : sizeof(float);
    struct safetensors file;
    struct store_fixture f;
    uint64_t header, n = 0;
    struct error err = {0};
    struct stat st;

    open_trained(&f, &store_fixture_small, false, _i ? &narrow : &split);
    store_fixture_write(&f.store, weights, moments, NULL);
    ck_assert_msg(safetensors_open(&file, moments, &err) == 0, "%s", err.text);
    check_moments(&f, &file, false, _i ? SAFETENSORS_BF16 : SAFETENSORS_F32, each);
    check_moments(&f, &file, true, _i ? SAFETENSORS_U16 : SAFETENSORS_F32, each);
    ck_assert_int_eq(fstat(moments, &st), 0);
    ck_assert_int_eq(safetensors_header_bytes(&header, &(struct file){.fd = moments}, &err), 0);
    for (uint32_t t = 0; t < f.model.n_tensors; t++)
        n += f.model.tensors[t].n;
    ck_assert_uint_eq((uint64_t)st.st_size, header + 2 * each * n + f.model.n_tensors * sizeof(uint64_t));
    safetensors_close(&file);
    close(weights), close(moments);
    store_fixture_close(&f);
}

/* As they once were. */
TEST(sixteen_bit_moments_that_were_saved_as_fp32_are_the_same)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct store_fixture a, b, c;
    struct error err = {0};

    open_trained(&a, &store_fixture_small, false, &narrow);
    store_fixture_open_as(&b, store_fixture_small, false, &split);
    store_fixture_reload(&b, &a);
    store_fixture_write(&b.store, weights, moments, NULL);
    store_fixture_open_as(&c, store_fixture_small, false, &narrow);
    ck_assert_int_eq(store_fixture_load_moments(&c.store, &(struct file){.fd = moments}, &err), 0);
    ck_assert_mem_eq(a.store.m16, c.store.m16, 2 * a.model.segment_n);
    ck_assert_mem_eq(a.store.v16, c.store.v16, 2 * a.model.segment_n);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b), store_fixture_close(&c);
}

static const struct model_config *const configs[] = {&store_fixture_small, &store_fixture_cut, &store_fixture_big};

/* The checksums are those of the bytes on disk, all of them, in runs of at most 4 MiB. */
TEST_EACH(every_byte_is_under_one_checksum, COUNT(configs))
{
    char path[] = "/tmp/test_store_files.XXXXXX", command[60];
    struct checkpoint read;
    struct store_fixture f;
    struct error err = {0};

    store_fixture_open(&f, *configs[_i], true, 0);
    fill(&f);
    ck_assert_ptr_nonnull(mkdtemp(path));
    ck_assert_int_eq(rmdir(path), 0);
    store_fixture_save(&f, path, 3);
    const int dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    ck_assert_msg(checkpoint_read(&read, dir, &err) == 0, "%s", err.text); /* no gap, no overlap */
    ck_assert_msg(checkpoint_check(&read, dir, NULL, NULL, NULL, &err) == 0, "%s", err.text);
    for (size_t i = 0; i < read.n_files; i++)
        for (size_t k = 0; k < read.files[i].n_runs; k++)
            ck_assert_uint_le(read.files[i].runs[k].bytes, 4 << 20);
    checkpoint_free(&read);
    close(dir);
    snprintf(command, sizeof command, "rm -r %s", path);
    ck_assert_int_eq(system(command), 0);
    store_fixture_close(&f);
}

TEST(a_unit_is_written_as_it_is_when_it_is_captured)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct store_fixture a, b;
    struct store_files files;
    struct error err = {0};

    store_fixture_open(&a, store_fixture_cut, true, 0);
    store_fixture_open(&b, store_fixture_cut, true, 0);
    fill(&a);
    ck_assert_int_eq(store_files_init(&files, &a.store, &err), 0);
    for (int save = 0; save < 2; save++) { /* one layout serves one save after the other */
        fill(&a);
        ck_assert_int_eq(store_files_begin(&files, file_own(weights), file_own(moments), NULL, &err), 0);
        for (uint32_t u = 0; u < a.model.n_units; u++) {
            ck_assert_int_eq(store_files_write(&files, u, &err), 0);
            store_weights(&a.store, u)[0] = a.store.m[a.model.units[u].offset] = 1e9f;
            a.store.updates[u]++;
        }
        ck_assert_int_eq(store_files_end(&files, &err), 0);
        ck_assert_msg(store_fixture_load(&b.store, (struct file[]){file_own(weights)}, 1, &err) == 0, "%s", err.text);
        ck_assert_msg(store_fixture_load_moments(&b.store, (struct file[]){file_own(moments)}, &err) == 0, "%s",
                      err.text);
        fill(&a);
        store_fixture_same_stores(&a, &b);
    }
    store_files_free(&files);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* A file system that cannot reserve space is written to all the same; one that is full is not begun with. Readers in
 * Python view a tensor in place only where it is aligned for its type. */
TEST(room_is_asked_for_first_and_every_tensor_is_aligned)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct store_files files;
    struct store_fixture f;
    struct error err = {0};
    struct stat st;
    int fds[2];

    store_fixture_open(&f, store_fixture_small, true, 0);
    ck_assert_int_eq(store_files_init(&files, &f.store, &err), 0);
    ck_assert_uint_eq(files.moments.offsets[0] % 8, 0);
    for (uint32_t i = 0; i < f.model.n_tensors; i++)
        ck_assert(files.weights.offsets[i] % 4 == 0 && files.moments.offsets[1 + 2 * i] % 4 == 0);
    reserve_code = ENOSPC;
    ck_assert_int_eq(store_files_begin(&files, file_own(weights), file_own(moments), NULL, &err), -ENOSPC);
    ck_assert(strncmp(err.text, "model.safetensors: no room for its ", 35) == 0);
    fstat(weights, &st);
    ck_assert_int_eq(st.st_size, 0);
    reserve_code = EOPNOTSUPP;
    ck_assert_int_eq(store_files_begin(&files, file_own(weights), file_own(moments), NULL, &err), 0);
    fstat(moments, &st);
    ck_assert_uint_eq((uint64_t)st.st_size, files.moments.file_bytes);
    reserve_code = 0;
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(store_files_begin(&files, file_own(fds[1]), file_own(-1), NULL, &err), -ESPIPE);
    close(fds[0]), close(fds[1]);
    store_files_free(&files);
    store_files_free(&files);
    close(weights), close(moments);
    store_fixture_close(&f);
}

/* For every byte at which the disk may be full, in steps of a prime. */
TEST(a_disk_that_is_full_is_reported_wherever_it_is)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct store_files files;
    struct store_fixture f;
    struct error err;

    store_fixture_open(&f, store_fixture_small, true, 0);
    ck_assert_int_eq(store_files_init(&files, &f.store, &err), 0);
    const off_t bytes = (off_t)(files.weights.file_bytes + files.moments.file_bytes);
    for (off_t some = 0; some <= bytes; some += some < bytes && some + 997 > bytes ? bytes - some : 997) {
        room = some;
        int rc = store_files_begin(&files, file_own(weights), file_own(moments), NULL, &err);
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
