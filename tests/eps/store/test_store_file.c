#include "proto/plan/memory/files.h"
#include "tests/kit/command.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* A safetensors file in the making. */
struct draft {
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

static void put_value(struct draft *file, float value, const char *type)
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

/* Of the data from begin on. */
static void add_entry(struct draft *file, const char *name, const char *type, const char *shape, uint64_t begin)
{
    file->header_n +=
        (size_t)snprintf(file->header + file->header_n, sizeof file->header - file->header_n,
                         "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%ju,%ju]}",
                         file->header_n ? ',' : '{', name, type, shape, (uintmax_t)begin, (uintmax_t)file->data_n);
    ck_assert_uint_lt(file->header_n, sizeof file->header - 1);
}

/* shape of a tensor of the model; odd is put at element 3 instead of the usual, if not zero. */
static void add_tensor(struct draft *file, const char *name, const char *type, const struct model_tensor *tensor,
                       float odd)
{
    const uint64_t begin = file->data_n;
    char shape[64];

    snprintf(shape, sizeof shape, tensor->n_dims == 2 ? "%ju,%ju" : "%ju", (uintmax_t)tensor->shape[0],
             (uintmax_t)tensor->shape[1]);
    file->data = realloc(file->data, begin + tensor->n * 4);
    ck_assert_ptr_nonnull(file->data);
    for (uint64_t i = 0; i < tensor->n; i++)
        put_value(file, i == 3 && odd != 0 ? odd : strncmp(name, "v.", 2) == 0 ? fabsf(exact(i)) : exact(i), type);
    add_entry(file, name, type, shape, begin);
}

/* The descriptor; file is done with. */
static int finish(struct draft *file)
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
    *file = (struct draft){0};
    return fd;
}

/* Every tensor but one; type F32, full names. */
static void add_all_but(struct draft *file, const struct model *model, const char *left_out)
{
    for (uint32_t i = 0; i < model->n_tensors; i++)
        if (!left_out || strcmp(model->tensors[i].name, left_out) != 0)
            add_tensor(file, model->tensors[i].name, "F32", &model->tensors[i], 0);
}

static void check_exact(const struct store_fixture *f)
{
    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        const float *w = store_weights(&f->store, at.unit) + at.piece->offset;
        for (uint64_t k = 0; k < at.piece->n; k++)
            if (w[k] != exact(at.first + k))
                ck_abort_msg("%s, unit %u, element %ju: %a", at.tensor->name, at.unit, (uintmax_t)k, w[k]);
    }
}

SUITE_TIMEOUT(60)

/* The three types, short names in the second of two files, and what may be passed over; last, tensors in several
 * units. */
TEST_EACH(weights_of_every_type_are_loaded_from_several_files, 7)
{
    static const char *const types[] = {"F32", "F16", "BF16", "F32"};
    const bool tied = _i % 2 == 0;
    struct model_tensor mask = {.n_dims = 2, .shape = {5, 5}, .n = 25};
    struct draft file = {0};
    struct store_fixture f;
    struct error err = {0};
    int fds[2] = {-1, -1};

    store_fixture_open(&f, _i < 6 ? store_fixture_small : store_fixture_cut, tied, 0);
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
    ck_assert_msg(store_fixture_load(&f.store, (struct file[]){{.fd = fds[0]}, {.fd = fds[1]}}, 2, &err) == 0, "%s",
                  err.text);
    check_exact(&f);
    close(fds[0]), close(fds[1]);
    store_fixture_close(&f);
}

static struct model_config classifier(void)
{
    static const char text[] = "{\"model_type\": \"bert\", \"architectures\": [\"BertForSequenceClassification\"], "
                               "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"hidden_size\": 8, "
                               "\"intermediate_size\": 12, \"vocab_size\": 17}";
    struct model_config config;

    ck_assert_int_eq(model_config_parse(&config, text, strlen(text), NULL), 0);
    return config;
}

/* As a fresh model's would be, by the seed. */
TEST(a_head_that_is_missing_is_drawn)
{
    static const struct store_options with = {.train = true, .seed = 77, .draws_head = true};
    struct draft file = {0};
    struct store_fixture f, fresh;
    struct error err = {0};

    store_fixture_open_as(&f, classifier(), false, &with);
    store_fixture_open_as(&fresh, classifier(), false, &with);
    store_draw(&fresh.store, 77);
    add_all_but(&file, &f.model, "classifier.weight");
    const int fd = finish(&file);
    ck_assert_msg(store_fixture_load(&f.store, &(struct file){.fd = fd}, 1, &err) == 0, "%s", err.text);
    const uint32_t last = f.model.n_units - 1; /* classifier.weight */
    ck_assert_str_eq(f.model.tensors[f.model.pieces[f.model.units[last].first_piece].tensor].name, "classifier.weight");
    store_fixture_same(store_weights(&f.store, last), store_weights(&fresh.store, last), f.model.units[last].n,
                       "drawn");
    ck_assert_float_ne(store_weights(&f.store, last)[0], 0);
    ck_assert_float_eq(store_weights(&f.store, 0)[3], exact(3)); /* the others are the file's */
    f.store.options.draws_head = false;
    ck_assert_int_eq(store_fixture_load(&f.store, &(struct file){.fd = fd}, 1, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "classifier.weight is missing"));
    close(fd);
    store_fixture_close(&f);
    store_fixture_close(&fresh);
}

TEST(a_tensor_in_two_files_is_refused)
{
    struct draft file = {0};
    struct store_fixture f;
    struct error err = {0};
    int fds[2];

    store_fixture_open(&f, store_fixture_small, false, 0);
    add_all_but(&file, &f.model, NULL);
    fds[0] = finish(&file);
    add_tensor(&file, "lm_head.weight", "F32", model_find(&f.model, "lm_head.weight"), 0);
    fds[1] = finish(&file);
    ck_assert_int_eq(store_fixture_load(&f.store, (struct file[]){{.fd = fds[0]}, {.fd = fds[1]}}, 2, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "lm_head.weight is there twice"));
    ck_assert_int_eq(store_fixture_load(&f.store, &(struct file){.fd = fds[1]}, 1, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "transformer.wte.weight is missing"));
    ck_assert_int_eq(store_fixture_load(&f.store, NULL, 0, &err), -EINVAL);
    ck_assert_msg(store_fixture_load(&f.store, &(struct file){.fd = fds[0]}, 1, &err) == 0, "%s",
                  err.text); /* after all that, still */
    check_exact(&f);
    close(fds[0]), close(fds[1]);
    store_fixture_close(&f);
}

/* "updates": n times 5, but odd for the third. */
static void add_updates(struct draft *file, const char *type, uint32_t n, int64_t odd)
{
    const uint64_t begin = file->data_n;
    char shape[32];

    snprintf(shape, sizeof shape, "%u", n);
    file->data = realloc(file->data, begin + n * sizeof odd);
    ck_assert_ptr_nonnull(file->data);
    for (uint32_t i = 0; i < n; i++, file->data_n += sizeof odd) {
        const int64_t updates = i == 2 ? odd : 5;
        memcpy(file->data + file->data_n, &updates, sizeof updates);
    }
    add_entry(file, "updates", type, shape, begin);
}

static void add_moments_but(struct draft *file, const struct model *model, const char *left_out)
{
    char name[sizeof model->tensors->name + 2];

    for (uint32_t i = 0; i < 2 * model->n_tensors; i++) {
        const struct model_tensor *tensor = &model->tensors[i / 2];
        snprintf(name, sizeof name, "%c.%s", i % 2 ? 'v' : 'm', tensor->name);
        if (!left_out || strcmp(name, left_out) != 0)
            add_tensor(file, name, "F32", tensor, 0);
    }
}

TEST_EACH(moments_and_their_counts_are_loaded, 2)
{
    struct draft file = {0};
    struct store_fixture f;
    struct error err = {0};

    store_fixture_open(&f, store_fixture_cut, _i, 0);
    add_moments_but(&file, &f.model, NULL);
    add_updates(&file, "I64", f.model.n_tensors, 5);
    int fd = finish(&file);
    ck_assert_msg(store_fixture_load_moments(&f.store, &(struct file){.fd = fd}, &err) == 0, "%s", err.text);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        ck_assert_uint_eq(f.store.updates[u], 5);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        const uint64_t i = f.model.units[at.unit].offset + at.piece->offset;
        for (uint64_t k = 0; k < at.piece->n; k++)
            if (f.store.m[i + k] != exact(at.first + k) || f.store.v[i + k] != fabsf(exact(at.first + k)))
                ck_abort_msg("%s, unit %u, element %ju", at.tensor->name, at.unit, (uintmax_t)k);
    }
    close(fd);
    store_fixture_close(&f);
}

/* One step of a unit of the cut model, whose third tensor has had 2 updates where its neighbours have had 5: each is
 * corrected by its own. In one pass; summed; part by part; and clipped, at a size that no update has. */
static const struct {
    enum store_fold how;
    double clip_update;
} folds[] = {{STORE_FOLD_DIRECT, 0}, {STORE_FOLD_HOLD, 0}, {STORE_FOLD_MOMENTS, 0}, {STORE_FOLD_MOMENTS, 1e9}};

TEST_EACH(a_tensor_counts_its_own_updates, COUNT(folds))
{
    const struct hyper hyper = {
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};
    const enum store_fold how = folds[_i].how;
    const struct store_options options = {.train = true,
                                          .fenced = how == STORE_FOLD_HOLD,
                                          .clip_update = folds[_i].clip_update};
    struct store_fixture f, again;
    struct draft file = {0};
    struct error err = {0};

    store_fixture_open_as(&f, store_fixture_cut, true, &options);
    store_fixture_open_as(&again, store_fixture_cut, true, &options);
    store_draw(&f.store, 1);
    add_moments_but(&file, &f.model, NULL);
    add_updates(&file, "I64", f.model.n_tensors, 2);
    const int fd = finish(&file);
    ck_assert_msg(store_fixture_load_moments(&f.store, &(struct file){.fd = fd}, &err) == 0, "%s", err.text);
    float *g = plain_zeros(f.model.largest_unit, sizeof *g);
    for (uint64_t i = 0; i < f.model.largest_unit; i++)
        g[i] = plain_number(i, 7);
    uint32_t n_young = 0;
    for (uint32_t u = 0; u < f.model.n_units; u++) {
        if (f.model.units[u].n_visits > 1) /* a tied unit is summed in any case */
            continue;
        struct store_values want = store_fixture_values(&f, u);
        store_fixture_fold(&f, u, &(struct store_given){.g = g, .first = true}, how, &hyper);
        ck_assert_int_eq(store_update(&f.store, u, how, &hyper), 0);
        for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
            const uint64_t o = at.piece->offset;
            const bool young = at.tensor == &f.model.tensors[2];
            if (at.unit != u)
                continue;
            plain_fold(want.m + o, want.v + o, g + o, at.piece->n, &hyper, true);
            plain_update(want.w + o, want.m + o, want.v + o, at.piece->n, &hyper, young ? 3 : 6,
                         at.tensor->n_dims == 2);
            n_young += young;
        }
        store_fixture_same(store_weights(&f.store, u), want.w, f.model.units[u].n, "w");
        store_values_free(&want);
    }
    ck_assert_uint_eq(n_young, 1);
    store_fixture_reload(&again, &f);
    for (struct store_piece at = {0}; store_fixture_next(&again, &at);) {
        const uint32_t piece = (uint32_t)(at.piece - again.model.pieces);
        const uint64_t done = again.model.units[at.unit].n_visits == 1;
        ck_assert_uint_eq(store_updates(&again.store, at.unit, piece),
                          (at.tensor == &again.model.tensors[2] ? 2 : 5) + done);
    }
    free(g);
    close(fd);
    store_fixture_close(&f), store_fixture_close(&again);
}

/* What a header may take is known before any of it is read. */
TEST(a_header_for_which_there_is_no_memory_is_refused)
{
    enum { ANNOUNCED = 1 << 16 };
    const uint64_t header = 8 << 20;
    const int fd = memfd_create("moments", MFD_CLOEXEC);
    static _Alignas(8) char memory[1 << 20];
    struct store_fixture f;
    struct error err = {0};

    store_fixture_open(&f, store_fixture_small, true, 0);
    struct reserve reserve = {.memory = memory, .bytes = plan_load_bytes(&f.model, 1, ANNOUNCED)};
    ck_assert_uint_le(reserve.bytes, sizeof memory);
    ck_assert_int_eq(write(fd, &header, sizeof header), sizeof header);
    ck_assert_int_eq(ftruncate(fd, 16 << 20), 0);
    ck_assert_int_eq(store_load_moments(&f.store, &(struct file){.fd = fd}, &reserve, &err), -EINVAL);
    ck_assert_holds(err.text, "a header of 8388608 bytes, where ", " are left for this model");
    ck_assert_uint_eq(reserve.used, 0);
    close(fd);
    store_fixture_close(&f);
}

/* A T5 in whose file the encoder or the decoder has a table, which is the model's, or differs in one number. */
TEST_EACH(a_stack_s_table_is_the_model_s_or_refused, 4)
{
    static const char *const names[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight"};
    const char *const text = quoted("{'model_type': 't5', 'd_model': 8, 'd_kv': 4, 'd_ff': 12, 'num_layers': 1, "
                                    "'num_heads': 2, 'vocab_size': 17}");
    const char *const name = names[_i / 2];
    const bool differs = _i % 2 == 1;
    struct model_config config;
    struct draft file = {0};
    struct store_fixture f;
    struct error err = {0};

    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    store_fixture_open(&f, config, false, 0);
    add_all_but(&file, &f.model, NULL);
    add_tensor(&file, name, "F32", model_find(&f.model, "shared.weight"), differs ? 0.5f : 0);
    const int fd = finish(&file);
    ck_assert_int_eq(store_fixture_load(&f.store, &(struct file){.fd = fd}, 1, &err), differs ? -EINVAL : 0);
    if (differs)
        ck_assert_holds(err.text, name, " differs from shared.weight, and eps has one table");
    close(fd);
    store_fixture_close(&f);
}

/* A file of the small, tied model as it should be, but for one tensor, which says what is wrong: weights, or moments
 * and their counts. like: the tensor of the model whose shape the added one has, but for its rows if they are named. Of
 * "updates", rows and updates: how many, and the count of the third tensor, h.0.ln_1.weight. */
static const struct bad {
    const char *left_out, *added, *like, *type;
    uint64_t rows; /* 0: as it should be */
    float odd;
    int64_t updates; /* 0: these are weights */
    const char *sentence;
} bad_files[] = {
    {"transformer.ln_f.bias", NULL, NULL, NULL, 0, 0, 0, "transformer.ln_f.bias is missing"},
    {NULL, "transformer.h.1.ln_3.bias", "ln_f.bias", "F32", 0, 0, 0,
     "transformer.h.1.ln_3.bias is not a tensor of this model"},
    {"transformer.h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "F32", 0, NAN, 0,
     "h.1.mlp.c_fc.bias has a value that is not finite"},
    {"transformer.h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bias", "BF16", 0, INFINITY, 0,
     "h.1.mlp.c_fc.bias has a value that is not finite"},
    {NULL, "lm_head.weight", "wte.weight", "F32", 0, 0.5f, 0, "lm_head.weight differs from wte.weight"},
    {"v.transformer.ln_f.bias", NULL, NULL, NULL, 0, 0, 5, "v.transformer.ln_f.bias is missing"},
    {"m.transformer.wpe.weight", "m.wpe.weight", "wpe.weight", "F32", 4, 0, 5,
     "m.wpe.weight is 4 x 8, the model's is 5 x 8"},
    {NULL, "m.h.2.ln_1.bias", "ln_f.bias", "F32", 0, 0, 5, "m.h.2.ln_1.bias is no moment of this model"},
    {NULL, "transformer.ln_f.bias", "ln_f.bias", "F32", 0, 0, 5, "transformer.ln_f.bias is no moment of this model"},
    {NULL, "m", "ln_f.bias", "F32", 0, 0, 5, "m is no moment of this model"},
    {NULL, "v.ln_f.bias", "ln_f.bias", "F32", 0, 0, 5, "v.transformer.ln_f.bias comes twice"},
    {"m.transformer.ln_f.bias", "m.ln_f.bias", "ln_f.bias", "F32", 0, NAN, 5,
     "m.ln_f.bias has a value that is not finite"},
    {"v.transformer.ln_f.bias", "v.ln_f.bias", "ln_f.bias", "F32", 0, INFINITY, 5,
     "v.ln_f.bias has a value that is not finite"},
    {"v.transformer.ln_f.bias", "v.ln_f.bias", "ln_f.bias", "F32", 0, -0x1p-149f, 5,
     "v.ln_f.bias has a negative value"},
    {"m.transformer.ln_f.bias", "m.ln_f.bias", "ln_f.bias", "F16", 0, 0, 5,
     "m.ln_f.bias is F16; such moments are F32 or BF16"},
    {"v.transformer.ln_f.bias", "v.ln_f.bias", "ln_f.bias", "BF16", 0, 0, 5,
     "v.ln_f.bias is BF16; such moments are F32 or U16"},
    {NULL, "updates", NULL, "F64", 28, 0, 5, "updates is 28, not one count (I64)"},
    {NULL, "updates", NULL, "I64", 27, 0, 5, "updates is 27, not one count (I64)"},
    {NULL, "updates", NULL, "I64", 28, 0, -1, "updates: -1 for transformer.h.0.ln_1.weight is no count"},
    {NULL, "updates", NULL, "I64", 28, 0, ((int64_t)1 << 48) + 1, "updates: 281474976710657 for"},
    {NULL, "updates", NULL, "I64", 0, 0, 5, "updates is missing"},
};

TEST_EACH(what_is_wrong_with_a_file_is_said_by_name, COUNT(bad_files))
{
    const struct bad *bad = &bad_files[_i];
    const bool odd_updates = bad->added && strcmp(bad->added, "updates") == 0;
    struct draft file = {0};
    struct store_fixture f;
    struct error err = {0};

    store_fixture_open(&f, store_fixture_small, true, 0);
    if (bad->updates)
        add_moments_but(&file, &f.model, bad->left_out);
    else
        add_all_but(&file, &f.model, bad->left_out);
    if (bad->like) {
        struct model_tensor tensor = *model_find(&f.model, bad->like);
        tensor.shape[0] = bad->rows ? bad->rows : tensor.shape[0];
        tensor.n = tensor.shape[0] * tensor.shape[1];
        add_tensor(&file, bad->added, bad->type, &tensor, bad->odd);
    }
    if (odd_updates && bad->rows)
        add_updates(&file, bad->type, (uint32_t)bad->rows, bad->updates);
    if (bad->updates && !odd_updates)
        add_updates(&file, "I64", f.model.n_tensors, 5);
    int fd = finish(&file);
    ck_assert_int_eq(bad->updates ? store_fixture_load_moments(&f.store, &(struct file){.fd = fd}, &err)
                                  : store_fixture_load(&f.store, &(struct file){.fd = fd}, 1, &err),
                     -EINVAL);
    if (strncmp(err.text, bad->sentence, strlen(bad->sentence)) != 0)
        ck_abort_msg("'%s', not '%s...'", err.text, bad->sentence);
    close(fd);
    store_fixture_close(&f);
}
