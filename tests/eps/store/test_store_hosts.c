/* Several hosts' stores, each with the optimizer state of its own units, are one host's store in parts. All are in this
 * process. Whatever a transport would move is copied. */
#include "proto/model/gpt2.h"
#include "proto/plan/memory/host.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(60)

enum { MOST = 3, TABLE = 7, N_RING = 2 }; /* hosts; notes that travel at once; slots of the ring */

static const struct hyper hyper = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

/* Ways to fold: of a block of two slices, of a table whose units have several owners, of tied and frozen units. */
static const struct way {
    const struct model_config *config;
    uint32_t n_hosts, n_parts;
    bool tied, adamw;
    double clip_update;
    const char *freeze;
    enum form base;
} ways[] = {
    {.config = &store_fixture_big, .n_hosts = 2, .n_parts = 2},
    {.config = &store_fixture_cut, .n_hosts = 3, .n_parts = 3, .tied = true},
    {.config = &store_fixture_small, .n_hosts = 2, .n_parts = 3, .tied = true, .adamw = true},
    {.config = &store_fixture_small, .n_hosts = 3, .n_parts = 3, .adamw = true, .clip_update = 0.5},
    {.config = &store_fixture_small, .n_hosts = 3, .n_parts = 4, .freeze = "h.0.*,h.1.mlp.*,wpe.weight"},
    {.config = &store_fixture_small, .n_hosts = 3, .n_parts = 3, .freeze = "h.0.*,h.1.mlp.*,wpe.*", .base = FORM_NF4},
};

/* Types of the relayed weights and of the moments. */
static const enum number_type forms[][2] = {{NUMBER_FP32, NUMBER_FP32},
                                            {NUMBER_BF16, NUMBER_FP32},
                                            {NUMBER_BF16, NUMBER_BF16},
                                            {NUMBER_BF16, NUMBER_CODED}};

/* Each way with each pair of types; the first ones are large, and have one pair each. */
enum { N_LARGE = 2, TRIES = N_LARGE + (COUNT(ways) - N_LARGE) * COUNT(forms) };

static const struct way *way_of(int i)
{
    return &ways[i < N_LARGE ? i : N_LARGE + (i - N_LARGE) / COUNT(forms)];
}

static const enum number_type *forms_of(int i)
{
    return forms[i < N_LARGE ? 2 * i : (i - N_LARGE) % COUNT(forms)];
}

/* One host of n_hosts; of one, the whole store. */
static void open_host(struct store_fixture *f, int i, uint32_t host, uint32_t n_hosts)
{
    const struct way *way = way_of(i);
    struct model_config config = *way->config;
    struct model model;
    struct error err = {""};
    struct store_options options = {.train = true,
                                    .precision = forms_of(i)[0],
                                    .base = way->base,
                                    .moments = forms_of(i)[1],
                                    .n_accumulators = way->adamw,
                                    .n_parts = way->n_parts,
                                    .clip_update = way->clip_update,
                                    .replay = true,
                                    .seed = 7};

    config.tied = way->tied;
    gpt2_edit(&config)->scale_attention = true;
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    ck_assert(!way->freeze ||
              model_freeze(&model, way->freeze, model_base_of(way->base, options.precision), &err) == 0);
    if (n_hosts > 1)
        ck_assert_msg(plan_divide(&options.own_first, &options.n_own, &model, n_hosts, host, &err) == 0, "%s",
                      err.text);
    if (n_hosts > 1)
        options.n_ring = N_RING;
    model_free(&model);
    store_fixture_open_frozen(f, *way->config, way->tied, way->freeze ? way->freeze : "", &options);
}

static void open_hosts(struct store_fixture *hosts, int i, uint32_t n_hosts)
{
    for (uint32_t h = 0; h < n_hosts; h++)
        open_host(&hosts[h], i, h, n_hosts);
}

static void close_hosts(struct store_fixture *hosts, uint32_t n_hosts)
{
    for (uint32_t h = 0; h < n_hosts; h++)
        store_fixture_close(&hosts[h]);
}

static uint32_t owner_of(const struct store_fixture *hosts, uint32_t n_hosts, uint32_t unit)
{
    uint32_t owner = n_hosts;

    for (uint32_t h = 0; h < n_hosts; h++)
        if (store_owns(&hosts[h].store, unit)) {
            ck_assert_uint_eq(owner, n_hosts); /* it has one */
            owner = h;
        }
    ck_assert_uint_lt(owner, n_hosts);
    return owner;
}

static size_t bytes_of(const struct store *store, uint64_t n)
{
    return n * number_bytes(store->options.precision);
}

/* As fetches do it: tables are kept, other units pass through the ring. The owner's place is known from its range. */
static void fetch(struct store *to, const struct store *from, uint32_t unit)
{
    const struct model_unit *u = &to->model->units[unit];
    struct plan_own theirs;

    plan_own(&theirs, to->model, from->options.precision, from->options.own_first, from->options.n_own);
    store_swap(to, unit);
    const uint32_t buffer = store_buffer(to, unit, false);
    const char *source = (const char *)from->weights.base + store_weights_at(to, &theirs, unit, buffer);
    if (store_keeps(to, unit)) {
        memcpy((char *)to->weights.base + store_weights_at(to, &to->own, unit, buffer), source,
               bytes_of(to, u->n_trained));
        return;
    }
    char *slot = (char *)to->weights.base + store_ring_at(to, unit % N_RING);
    ck_assert(slot + model_unit_bytes(u, to->options.precision) <= (char *)to->weights.base + to->weights.bytes);
    const size_t trained = bytes_of(to, u->n_trained);
    memcpy(slot, source, trained);
    memcpy(slot + trained, (const char *)from->weights.base + store_weights_at(to, &theirs, unit, 0) + trained,
           model_unit_bytes(u, to->options.precision) - trained);
}

static void step(struct store_fixture *f, uint32_t unit, const struct way *way, uint64_t t)
{
    const struct model_unit *u = &f->model.units[unit];
    const enum store_fold how = store_fold_kind(&f->store, unit, way->n_parts, way->adamw);
    float *g = plain_zeros(u->n, sizeof *g);

    for (uint32_t i = 0; i < u->n_visits * way->n_parts; i++) {
        struct store_given given = store_fixture_given(f, unit, i, way->n_parts);
        for (uint64_t k = 0; k < u->n_trained; k++)
            g[k] = plain_number(k, t * 100 + unit * 10 + i);
        given.g = g;
        store_fixture_fold(f, unit, &given, how, &hyper);
    }
    ck_assert_int_eq(store_update(&f->store, unit, how, &hyper), 0);
    store_swap(&f->store, unit);
    free(g);
}

static void train(struct store_fixture *whole, struct store_fixture *hosts, uint32_t n_hosts, const struct way *way)
{
    for (uint64_t t = 1; t <= 3; t++)
        for (uint32_t unit = 0; unit < whole->model.n_units; unit++) {
            if (whole->model.units[unit].n_trained == 0)
                continue;
            const uint32_t owner = owner_of(hosts, n_hosts, unit);
            step(whole, unit, way, t);
            step(&hosts[owner], unit, way, t);
            for (uint32_t h = 0; h < n_hosts; h++)
                if (h != owner)
                    fetch(&hosts[h].store, &hosts[owner].store, unit);
        }
}

static const char *relayed(const struct store *store, uint32_t unit)
{
    return (const char *)store->weights.base +
           store_weights_at(store, &store->own, unit, store_buffer(store, unit, false));
}

/* Trained weights are in the current buffer, those behind them in the first one. */
static bool is_same(const struct store *a, const struct store *b, uint32_t unit)
{
    const struct model_unit *u = &a->model->units[unit];
    const size_t trained = bytes_of(a, u->n_trained), bytes = model_unit_bytes(u, a->options.precision);
    const char *x = (const char *)a->weights.base + store_weights_at(a, &a->own, unit, 0);
    const char *y = (const char *)b->weights.base + store_weights_at(b, &b->own, unit, 0);

    return (trained == 0 || memcmp(relayed(a, unit), relayed(b, unit), trained) == 0) &&
           memcmp(x + trained, y + trained, bytes - trained) == 0;
}

/* Relayed weights are where they are kept; low halves and moments with the owner. */
static void check_same(const struct store_fixture *whole, const struct store_fixture *hosts, uint32_t n_hosts)
{
    for (uint32_t unit = 0; unit < whole->model.n_units; unit++) {
        const uint64_t n = whole->model.units[unit].n;
        const uint32_t owner = owner_of(hosts, n_hosts, unit);
        for (uint32_t h = 0; h < n_hosts; h++)
            ck_assert_msg(!store_keeps(&hosts[h].store, unit) || is_same(&whole->store, &hosts[h].store, unit),
                          "unit %u on host %u", unit, h);
        struct store_values x = store_fixture_values(whole, unit), y = store_fixture_values(&hosts[owner], unit);
        store_fixture_same(x.w, y.w, n, "w"), store_fixture_same(x.m, y.m, n, "m");
        store_fixture_same(x.v, y.v, n, "v");
        ck_assert_uint_eq(whole->store.updates[unit], hosts[owner].store.updates[unit]);
        store_values_free(&x), store_values_free(&y);
    }
}

TEST_EACH(each_owner_updates_its_units_as_one_host_would, TRIES)
{
    const struct way *way = way_of(_i);
    struct store_fixture whole, hosts[MOST];

    open_host(&whole, _i, 0, 1), open_hosts(hosts, _i, way->n_hosts);
    store_draw(&whole.store, 3);
    for (uint32_t h = 0; h < way->n_hosts; h++)
        store_draw(&hosts[h].store, 3);
    check_same(&whole, hosts, way->n_hosts);
    train(&whole, hosts, way->n_hosts, way);
    check_same(&whole, hosts, way->n_hosts);
    store_fixture_close(&whole), close_hosts(hosts, way->n_hosts);
}

/* By hand, from the units: what each host takes is that of its units, and the plan knows it to the byte. */
TEST_EACH(a_host_takes_the_bytes_of_its_own_units_as_planned, TRIES)
{
    const struct way *way = way_of(_i);
    struct store_fixture hosts[MOST];
    uint64_t all = 0;

    open_hosts(hosts, _i, way->n_hosts);
    for (uint32_t h = 0; h < way->n_hosts; h++) {
        const struct store_options *o = &hosts[h].store.options;
        const struct plan_host_setting s = {.goal = {.purpose = PLAN_TRAIN,
                                                     .adamw = way->adamw,
                                                     .n_parts = way->n_parts,
                                                     .batch = way->n_parts,
                                                     .seq = 1,
                                                     .precision = o->precision,
                                                     .moments = o->moments},
                                            .n_workers = 1,
                                            .replay = true,
                                            .own_first = o->own_first,
                                            .n_own = o->n_own,
                                            .own_parts = 1};
        struct plan_host plan;
        uint64_t n = 0, n_tied = 0;
        for (uint32_t u = o->own_first; u < o->own_first + o->n_own; u++) {
            const uint64_t rounded = (hosts[h].model.units[u].n_trained + 31) / 32 * 32;
            n += rounded, n_tied += hosts[h].model.units[u].n_visits > 1 ? rounded : 0;
        }
        const uint64_t *got = hosts[h].store.ledgered;
        ck_assert_uint_eq(got[LEDGER_MASTER], o->precision == NUMBER_BF16 ? 2 * n : 0);
        if (_i >= N_LARGE) /* of one slice each */
            ck_assert_uint_eq(got[LEDGER_FIRST_MOMENT],
                              store_fixture_moment_bytes(&hosts[h].model, o->own_first, o->own_first + o->n_own,
                                                         o->moments));
        ck_assert_uint_eq(got[LEDGER_SECOND_MOMENT], got[LEDGER_FIRST_MOMENT]);
        ck_assert_uint_eq(got[LEDGER_TIED], (way->adamw ? 4 : 8) * n_tied); /* AdamW's lower visits have accumulators */
        plan_host(&plan, &hosts[h].model, &s);
        plan.bytes[LEDGER_WEIGHTS] -= ((uint64_t)plan.n_ring - N_RING) * hosts[h].store.own.slot_bytes;
        for (enum ledger_category c = 0; c < LEDGER_CATEGORIES; c++)
            if (c == LEDGER_WEIGHTS || c == LEDGER_REPLAY || c == LEDGER_MASTER || c == LEDGER_FIRST_MOMENT ||
                c == LEDGER_SECOND_MOMENT || c == LEDGER_TIED)
                ck_assert_uint_eq(got[c], plan.bytes[c]);
        all += n;
    }
    ck_assert_uint_eq(all, hosts[0].model.trained_n);
    close_hosts(hosts, way->n_hosts);
}

/* ---- files ------------------------------------------------------------------------------------------------------ */

static void begin(struct checkpoint *checkpoint, const struct store_fixture *f, const int *fds)
{
    struct error err = {""};

    *checkpoint = (struct checkpoint){.step = 3};
    ck_assert_msg(store_files_begin(f->store.files, file_own(fds[0]), file_own(fds[1]), checkpoint, &err) == 0, "%s",
                  err.text);
}

static void write_own(const struct store_fixture *f)
{
    struct error err = {""};

    for (uint32_t u = f->store.own.first; u < f->store.own.end; u++)
        ck_assert_msg(store_files_write(f->store.files, u, &err) == 0, "%s", err.text);
}

/* The notes of a host, few at a time, as messages carry them. */
static int hand_over(const struct store_fixture *to, const struct store_fixture *from, struct error *err)
{
    struct store_files_note notes[TABLE];
    int rc = 0;

    for (uint64_t at = 0; rc == 0;) {
        const size_t n = store_files_notes(notes, TABLE, from->store.files, at);
        if (n == 0)
            break;
        rc = store_files_add(to->store.files, notes, n, err);
        at += n;
    }
    return rc;
}

/* Writes a checkpoint's files, each host its units, the last host first. Returns training.json, to be freed. */
static char *save(const struct store_fixture *hosts, uint32_t n_hosts, const int *fds)
{
    struct checkpoint checkpoints[MOST];
    struct error err = {""};

    for (uint32_t h = 0; h < n_hosts; h++)
        begin(&checkpoints[h], &hosts[h], fds);
    for (uint32_t h = n_hosts; h-- > 0;) {
        write_own(&hosts[h]);
        if (h > 0) {
            ck_assert_msg(store_files_end(hosts[h].store.files, &err) == 0, "%s", err.text);
            ck_assert_msg(hand_over(&hosts[0], &hosts[h], &err) == 0, "%s", err.text);
        }
    }
    ck_assert_msg(store_files_end(hosts[0].store.files, &err) == 0, "%s", err.text);
    char *training = checkpoint_print(&checkpoints[0]);
    for (uint32_t h = 0; h < n_hosts; h++)
        checkpoint_free(&checkpoints[h]);
    return training;
}

static void check_same_file(int a, int b)
{
    struct stat x, y;

    ck_assert(fstat(a, &x) == 0 && fstat(b, &y) == 0);
    ck_assert_int_eq(x.st_size, y.st_size);
    char *const left = plain_zeros((size_t)x.st_size, 1), *const right = plain_zeros((size_t)x.st_size, 1);
    ck_assert_int_eq(pread(a, left, (size_t)x.st_size, 0), x.st_size);
    ck_assert_int_eq(pread(b, right, (size_t)x.st_size, 0), x.st_size);
    ck_assert_mem_eq(left, right, (size_t)x.st_size);
    free(left), free(right);
}

static void load(struct store_fixture *f, const int *fds)
{
    struct error err = {""};

    ck_assert_msg(store_fixture_load(&f->store, (struct file[]){file_own(fds[0])}, 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load_moments(&f->store, (struct file[]){file_own(fds[1])}, &err) == 0, "%s", err.text);
}

/* Both files and all checksums are what one host writes, byte for byte. Any number of hosts goes on from them. */
TEST_EACH(hosts_write_the_files_of_one_and_others_go_on_from_them, TRIES)
{
    const struct way *way = way_of(_i);
    const uint32_t n_others = way->n_hosts == 2 ? 3 : 2;
    const int here[] = {store_fixture_file(), store_fixture_file()},
              there[] = {store_fixture_file(), store_fixture_file()};
    struct store_fixture whole, hosts[MOST], others[MOST];

    open_host(&whole, _i, 0, 1), open_hosts(hosts, _i, way->n_hosts), open_hosts(others, _i, n_others);
    store_draw(&whole.store, 3);
    for (uint32_t h = 0; h < way->n_hosts; h++)
        store_draw(&hosts[h].store, 3);
    train(&whole, hosts, way->n_hosts, way);
    for (int again = 0; again < 2; again++) { /* one layout serves one save after the other */
        char *const one = save(&whole, 1, here), *const several = save(hosts, way->n_hosts, there);
        ck_assert_str_eq(one, several);
        check_same_file(here[0], there[0]), check_same_file(here[1], there[1]);
        free(one), free(several);
    }
    for (uint32_t h = 0; h < n_others; h++)
        load(&others[h], there);
    check_same(&whole, others, n_others);
    train(&whole, others, n_others, way);
    check_same(&whole, others, n_others);
    for (int i = 0; i < 2; i++)
        close(here[i]), close(there[i]);
    store_fixture_close(&whole), close_hosts(hosts, way->n_hosts), close_hosts(others, n_others);
}

/* Halfway between two bf16, both of even upper half and of odd. An upper half without its lower one is that of the
 * split nevertheless, and not the nearest even. */
TEST(the_upper_halves_of_others_units_are_those_of_the_split)
{
    const int fds[] = {store_fixture_file(), store_fixture_file()}, i = N_LARGE + 1;
    static const struct store_options fp32 = {.train = true};
    struct store_fixture from, whole, hosts[2];

    ck_assert(forms[1][0] == NUMBER_BF16);
    store_fixture_open_as(&from, *ways[N_LARGE].config, ways[N_LARGE].tied, &fp32);
    for (uint64_t k = 0; k < from.model.segment_n; k++)
        ((float *)from.store.weights.base)[k] = number_from_pattern(0x3f808000u + (uint32_t)(k % 64 << 16));
    store_fixture_write(&from.store, fds[0], fds[1], NULL);
    open_host(&whole, i, 0, 1), open_hosts(hosts, i, 2);
    load(&whole, fds), load(&hosts[0], fds), load(&hosts[1], fds);
    check_same(&whole, hosts, 2);
    close(fds[0]), close(fds[1]);
    store_fixture_close(&from), store_fixture_close(&whole), close_hosts(hosts, 2);
}

/* A host with the table of tokens, one without it, and one where it is frozen: each compares what it has of it. */
TEST(a_copy_of_the_tied_head_is_accepted_on_every_host)
{
    const int weights = store_fixture_file();
    static const struct store_options fp32 = {.train = true},
                                      bf16 = {.train = true, .precision = NUMBER_BF16, .replay = true};
    struct store_fixture from, hosts[2], frozen;
    struct error err = {""};

    store_fixture_open_as(&from, store_fixture_small, false, &fp32);
    store_draw(&from.store, 3);
    float *table = NULL;
    for (struct store_piece at = {0}; store_fixture_next(&from, &at);) {
        float *const w = store_weights(&from.store, at.unit) + at.piece->offset;
        if (strstr(at.tensor->name, "wte"))
            table = w;
        else if (strstr(at.tensor->name, "lm_head"))
            memcpy(w, table, at.piece->n * sizeof *w);
    }
    store_fixture_write(&from.store, weights, -1, NULL);
    open_hosts(hosts, N_LARGE + 1, 2);
    store_fixture_open_frozen(&frozen, store_fixture_small, true, "wte.weight", &bf16);
    for (int h = 0; h < 2; h++)
        ck_assert_msg(store_fixture_load(&hosts[h].store, (struct file[]){file_own(weights)}, 1, &err) == 0, "%s",
                      err.text);
    ck_assert_msg(store_fixture_load(&frozen.store, (struct file[]){file_own(weights)}, 1, &err) == 0, "%s", err.text);
    close(weights);
    store_fixture_close(&from), store_fixture_close(&frozen), close_hosts(hosts, 2);
}

/* ---- notes ------------------------------------------------------------------------------------------------------ */

static const struct {
    struct store_files_note note;
    const char *why;
} wrong[] = {
    {{.kind = 3}, "note of kind 3"},
    {{.kind = STORE_FILES_WEIGHTS, .run = {4096, 0, 0}}, "model.safetensors: another host's run of 0 bytes at 4096"},
    {{.kind = STORE_FILES_WEIGHTS, .run = {4096, (4 << 20) + 1, 0}}, "4194305 bytes at 4096"},
    {{.kind = STORE_FILES_MOMENTS, .run = {0, 4, 0}}, "optimizer.safetensors: another host's run of 4 bytes at 0"},
    {{.kind = STORE_FILES_MOMENTS, .run = {1 << 30, 4, 0}}, "1073741824 is outside its file"},
    {{.kind = STORE_FILES_WEIGHTS, .run = {UINT64_MAX, 4, 0}}, "18446744073709551615 is outside its file"},
    {{.kind = STORE_FILES_UPDATES, .tensor = 1000000}, "tensor 1000000"},
    {{.kind = STORE_FILES_UPDATES, .tensor = 0, .updates = 9}, "wte.weight has had 0 updates on one host, and 9"},
};

TEST_EACH(a_note_that_cannot_be_is_refused, COUNT(wrong))
{
    const int fds[] = {store_fixture_file(), store_fixture_file()};
    struct checkpoint checkpoint;
    struct store_fixture hosts[2];
    struct error err = {""};

    open_hosts(hosts, N_LARGE, 2);
    begin(&checkpoint, &hosts[0], fds);
    write_own(&hosts[0]);
    ck_assert_int_eq(store_files_add(hosts[0].store.files, &wrong[_i].note, 1, &err), -EPROTO);
    ck_assert_holds(err.text, wrong[_i].why);
    checkpoint_free(&checkpoint);
    close(fds[0]), close(fds[1]);
    close_hosts(hosts, 2);
}

/* As many runs as the whole model can have were made room for, and no more come in. */
TEST(more_runs_than_a_model_has_are_refused)
{
    const int fds[] = {store_fixture_file(), store_fixture_file()};
    struct checkpoint checkpoint;
    struct store_fixture hosts[2];
    struct error err = {""};
    int rc = 0;

    open_hosts(hosts, N_LARGE, 2);
    begin(&checkpoint, &hosts[0], fds);
    const struct store_files *files = hosts[0].store.files;
    const struct store_files_note note = {.kind = STORE_FILES_WEIGHTS, .run = {files->weights.header_bytes, 4, 0}};
    size_t n = files->weights_file->n_runs;
    for (; rc == 0; n++)
        rc = store_files_add(hosts[0].store.files, &note, 1, &err);
    ck_assert_int_eq(rc, -EPROTO);
    ck_assert_holds(err.text, "is one more than the model's units have");
    ck_assert_uint_eq(n - 1, files->n_weights_runs);
    checkpoint_free(&checkpoint);
    close(fds[0]), close(fds[1]);
    close_hosts(hosts, 2);
}

/* All notes but one of a run of each file, or of a count. */
TEST_EACH(a_checkpoint_that_lacks_a_hosts_note_does_not_end, 3)
{
    static const char *const whys[] = {"model.safetensors: the hosts have written ",
                                       "optimizer.safetensors: the hosts have written ",
                                       "no host has counted the updates of "};
    const int fds[] = {store_fixture_file(), store_fixture_file()};
    struct checkpoint checkpoints[2];
    struct store_fixture hosts[2];
    struct store_files_note note;
    struct error err = {""};
    bool left_out = false;

    open_hosts(hosts, N_LARGE, 2);
    for (int h = 0; h < 2; h++) {
        begin(&checkpoints[h], &hosts[h], fds);
        write_own(&hosts[h]);
    }
    ck_assert_int_eq(store_files_end(hosts[1].store.files, &err), 0);
    for (uint64_t at = 0; store_files_notes(&note, 1, hosts[1].store.files, at) == 1; at++) {
        const bool is_it = !left_out && note.kind == (uint32_t)_i &&
                           (note.kind != STORE_FILES_UPDATES || hosts[0].store.files->updates[note.tensor] != 0) &&
                           (note.kind != STORE_FILES_UPDATES || note.updates != UINT64_MAX);
        left_out |= is_it;
        if (!is_it)
            ck_assert_msg(store_files_add(hosts[0].store.files, &note, 1, &err) == 0, "%s", err.text);
    }
    ck_assert(left_out);
    ck_assert_int_eq(store_files_end(hosts[0].store.files, &err), -EPROTO);
    ck_assert_holds(err.text, whys[_i]);
    checkpoint_free(&checkpoints[0]), checkpoint_free(&checkpoints[1]);
    close(fds[0]), close(fds[1]);
    close_hosts(hosts, 2);
}
