#include "tests/kit/inprocess/model.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"

#include "proto/model/groups.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/files.h"

#include <check.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

const struct model_config store_fixture_small = GPT2_CONFIG(2, 2, 8, 32, 5, 17),
                          store_fixture_cut = GPT2_CONFIG(1, 2, 64, 64, 8, 33000),
                          store_fixture_big = GPT2_CONFIG(1, 8, 512, 3200, 8, 10);

void store_fixture_open(struct store_fixture *f, struct model_config config, bool tied, uint32_t n_accumulators)
{
    const struct store_options options = {.train = true, .n_accumulators = n_accumulators};

    store_fixture_open_as(f, config, tied, &options);
}

void store_fixture_open_as(struct store_fixture *f, struct model_config config, bool tied,
                           const struct store_options *options)
{
    store_fixture_open_frozen(f, config, tied, "", options);
}

void store_fixture_open_frozen(struct store_fixture *f, struct model_config config, bool tied, const char *freeze,
                               const struct store_options *options)
{
    struct error err = {0};

    *f = (struct store_fixture){0};
    config.tied = tied;
    gpt2_edit(&config)->scale_attention = true;
    ck_assert_msg(model_init(&f->model, &config, &err) == 0, "%s", err.text);
    ck_assert_msg(!*freeze ||
                      model_freeze(&f->model, freeze, model_base_of(options->base, options->precision), &err) == 0,
                  "%s", err.text);
    ck_assert_msg(store_init(&f->store, &f->model, options, &f->ledger, &err) == 0, "%s", err.text);
}

void store_fixture_open_host(struct store_fixture *f, uint32_t host, uint32_t n_hosts)
{
    struct store_options options = {.train = true, .replay = true};
    struct error err = {""};

    store_fixture_open(f, store_fixture_small, true, 0);
    if (n_hosts > 1)
        ck_assert_int_eq(plan_divide(&options.own_first, &options.n_own, &f->model, n_hosts, host, &err), 0);
    store_fixture_close(f);
    store_fixture_open_as(f, store_fixture_small, true, &options);
    store_draw(&f->store, 3);
}

void store_fixture_close(struct store_fixture *f)
{
    store_free(&f->store);
    ck_assert_uint_eq(f->ledger.total.current, 0);
    model_free(&f->model);
}

bool store_fixture_next(const struct store_fixture *f, struct store_piece *at)
{
    const struct model_unit *units = f->model.units;

    while (at->unit < f->model.n_units && at->next == units[at->unit].first_piece + units[at->unit].n_pieces)
        at->unit++;
    if (at->unit == f->model.n_units)
        return false;
    at->piece = &f->model.pieces[at->next++];
    at->tensor = &f->model.tensors[at->piece->tensor];
    at->first = at->piece->first_row * at->tensor->shape[1];
    return true;
}

uint64_t store_fixture_moment_bytes(const struct model *model, uint32_t first, uint32_t end, enum number_type moments)
{
    uint64_t bytes = 0;

    for (const struct model_unit *u = model->units + first; u < model->units + end; u++) {
        if (moments != NUMBER_CODED)
            bytes += (u->n_trained + 31) / 32 * 32 * (moments == NUMBER_FP32 ? 4 : 2);
        for (uint32_t i = 0; moments == NUMBER_CODED && i < u->n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[u->first_piece + i];
            const struct model_tensor *tensor = &model->tensors[piece->tensor];
            const bool coded = tensor->n_dims == 2 && strstr(tensor->name, ".h.");
            if (!tensor->frozen)
                bytes += coded ? piece->n + (piece->n + 63) / 64 * 4 : 4 * piece->n;
        }
    }
    return bytes;
}

struct store_given store_fixture_given(const struct store_fixture *f, uint32_t unit, uint32_t i, uint32_t n_parts)
{
    const struct store_options *o = &f->store.options;
    const bool apart = f->model.units[unit].n_visits > 1 && o->n_parts > 1;
    struct store_given given = {.part = i % n_parts, .first = apart ? i % n_parts == 0 : i == 0};
    uint32_t above = i / n_parts;

    for (uint32_t visit = f->model.n_visits; visit-- > 0;)
        if (f->model.visits[visit] == unit && above-- == 0)
            given.visit = visit;
    return given;
}

void store_fixture_fold(struct store_fixture *f, uint32_t unit, const struct store_given *given, enum store_fold how,
                        const struct hyper *hp)
{
    const uint64_t n = f->model.units[unit].n_trained;
    uint16_t *narrow = plain_zeros(n, sizeof *narrow);

    for (uint64_t i = 0; given->type == NUMBER_BF16 && i < n; i++)
        narrow[i] = number_to_bf16(given->g[i]);
    for (uint32_t slice = f->model.units[unit].n_slices; slice-- > 0;) {
        const uint64_t first = (uint64_t)slice * MODEL_SLICE;
        const struct store_contribution contribution = {.g = given->type == NUMBER_BF16 ? (const void *)(narrow + first)
                                                                                        : given->g + first,
                                                        .type = given->type,
                                                        .first = given->first,
                                                        .part = given->part,
                                                        .visit = given->visit};
        ck_assert_int_eq(store_fold(&f->store, unit, slice, &contribution, how, hp), 0);
    }
    free(narrow);
}

struct store_values store_fixture_values(const struct store_fixture *f, uint32_t unit)
{
    const struct model_unit *u = &f->model.units[unit];
    const bool train = f->store.options.train;
    struct store_values x = {plain_zeros(u->n, sizeof *x.w), train ? plain_zeros(u->n, sizeof *x.m) : NULL,
                             train ? plain_zeros(u->n, sizeof *x.v) : NULL};

    for (const struct model_piece *p = &f->model.pieces[u->first_piece], *end = p + u->n_pieces; p < end; p++) {
        const bool moves = train && p->offset < u->n_trained;
        store_read(&f->store, unit, p->offset, p->n, x.w + p->offset);
        if (!moves)
            continue;
        for (uint64_t at = p->offset, stop; at < p->offset + p->n; at = stop) { /* run by run: groups of coded ones */
            stop = model_run_end(p, at);
            const struct parameters run = store_parameters(&f->store, unit, at, stop - at, 0);
            optimizer_read(&run, NULL, store_moments(&f->store) > 0 ? x.m + at : NULL,
                           store_moments(&f->store) > 1 ? x.v + at : NULL);
        }
    }
    return x;
}

void store_values_free(struct store_values *x)
{
    free(x->w), free(x->m), free(x->v);
}

void store_fixture_write(const struct store *store, int weights_fd, int moments_fd, struct checkpoint *checkpoint)
{
    struct store_files files;
    struct error err = {""};

    ck_assert_msg(store_files_init(&files, store, &err) == 0, "%s", err.text);
    ck_assert_msg(store_files_begin(&files, file_own(weights_fd), file_own(moments_fd), checkpoint, &err) == 0, "%s",
                  err.text);
    for (uint32_t u = store->model->n_units; u-- > 0;)
        ck_assert_msg(store_files_write(&files, u, &err) == 0, "%s", err.text);
    ck_assert_msg(store_files_end(&files, &err) == 0, "%s", err.text);
    store_files_free(&files);
}

int store_fixture_file(void)
{
    const int fd = memfd_create("store_fixture", MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    return fd;
}

static struct reserve reserve_for(const struct store *store, const struct file *files, unsigned n_files)
{
    uint64_t sum = 0, bytes;

    for (unsigned i = 0; i < n_files; i++)
        sum += safetensors_header_bytes(&bytes, &files[i], NULL) == 0 ? bytes : 0;
    const uint64_t needed = plan_load_bytes(store->model, n_files ? n_files : 1, sum);
    return (struct reserve){.memory = malloc(needed), .bytes = needed};
}

int store_fixture_load(struct store *store, const struct file *files, unsigned n_files, struct error *err)
{
    struct reserve reserve = reserve_for(store, files, n_files);
    const int rc = store_load(store, files, n_files, &reserve, err);

    free(reserve.memory);
    return rc;
}

int store_fixture_load_moments(struct store *store, const struct file *file, struct error *err)
{
    struct reserve reserve = reserve_for(store, file, 1);
    const int rc = store_load_moments(store, file, &reserve, err);

    free(reserve.memory);
    return rc;
}

void store_fixture_reload(struct store_fixture *to, const struct store_fixture *from)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct error err = {""};

    store_fixture_write(&from->store, weights, moments, NULL);
    ck_assert_msg(store_fixture_load(&to->store, &(struct file){.fd = weights}, 1, &err) == 0, "%s", err.text);
    if (to->store.options.train)
        ck_assert_msg(store_fixture_load_moments(&to->store, &(struct file){.fd = moments}, &err) == 0, "%s", err.text);
    close(weights), close(moments);
}

/* With its checksum, unless checkpoint is NULL. */
static void put_text(int directory_fd, const char *name, const char *text, struct checkpoint *checkpoint)
{
    const size_t n = strlen(text);
    int fd = openat(directory_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, text, n), (ssize_t)n);
    close(fd);
    if (checkpoint)
        ck_assert_int_eq(checkpoint_add_run(checkpoint_add_file(checkpoint, name, n), 0, n, checkpoint_hash(text, n)),
                         0);
}

void store_fixture_save(const struct store_fixture *f, const char *directory, uint64_t step)
{
    const struct model_config *c = &f->model.config;
    struct checkpoint checkpoint = {.step = step};
    char config[512];

    snprintf(config, sizeof config,
             "{\n  \"model_type\": \"gpt2\",\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"n_layer\": %u,\n"
             "  \"n_head\": %u,\n  \"n_embd\": %u,\n  \"n_inner\": %u,\n  \"n_positions\": %u,\n"
             "  \"vocab_size\": %u,\n  \"tie_word_embeddings\": %s,\n  \"layer_norm_epsilon\": 1e-05\n}\n",
             c->n_layers, c->n_heads, c->width, c->inner_width, c->n_positions, c->vocabulary,
             c->tied ? "true" : "false");
    ck_assert_int_eq(mkdir(directory, 0777), 0);
    const int dir = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int weights = openat(dir, CHECKPOINT_WEIGHTS, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666),
              moments = openat(dir, CHECKPOINT_MOMENTS, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    put_text(dir, CHECKPOINT_CONFIG, config, &checkpoint);
    put_text(dir, "vocab.json", "{\"a\": 0}", &checkpoint);
    put_text(dir, "merges.txt", "#version: 0.2\na b\n", &checkpoint);
    store_fixture_write(&f->store, weights, moments, &checkpoint);
    char *training = checkpoint_print(&checkpoint);
    put_text(dir, CHECKPOINT_TRAINING, training, NULL);
    free(training);
    checkpoint_free(&checkpoint);
    close(weights), close(moments), close(dir);
}

void store_fixture_same(const float *a, const float *b, uint64_t n, const char *what)
{
    for (uint64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof *a) != 0)
            ck_abort_msg("%s, element %ju: %a and %a", what, (uintmax_t)i, a[i], b[i]);
}

void store_fixture_same_stores(const struct store_fixture *a, const struct store_fixture *b)
{
    for (uint32_t u = 0; u < a->model.n_units; u++) {
        struct store_values x = store_fixture_values(a, u), y = store_fixture_values(b, u);
        store_fixture_same(x.w, y.w, a->model.units[u].n, "w");
        store_fixture_same(x.m, y.m, a->model.units[u].n, "m");
        store_fixture_same(x.v, y.v, a->model.units[u].n, "v");
        ck_assert_uint_eq(a->store.updates[u], b->store.updates[u]);
        store_values_free(&x), store_values_free(&y);
    }
}
