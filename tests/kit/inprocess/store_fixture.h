/* tests/kit/inprocess/store_fixture.h - a small model and its store, for the tests of eps/store/store.c and
 * eps/store/store_file.c. */
#ifndef TESTS_KIT_INPROCESS_STORE_FIXTURE_H
#define TESTS_KIT_INPROCESS_STORE_FIXTURE_H

#include "eps/store/store_files.h"

/* small: everything in a few KiB. cut: wte in two units. big: a block of two slices. */
extern const struct model_config store_fixture_small, store_fixture_cut, store_fixture_big;

/* A store and all that it borrows. */
struct store_fixture {
    struct model model;
    struct ledger ledger;
    struct store store;
};

/* A fresh store for training; tied overrides the configuration's. */
void store_fixture_open(struct store_fixture *f, struct model_config config, bool tied, uint32_t n_accumulators);
void store_fixture_open_as(struct store_fixture *f, struct model_config config, bool tied,
                           const struct store_options *options);
/* Tensors of these patterns are frozen: model_freeze. */
void store_fixture_open_frozen(struct store_fixture *f, struct model_config config, bool tied, const char *freeze,
                               const struct store_options *options);
/* The small model's store of one of n_hosts hosts, with replay; its weights are drawn. */
void store_fixture_open_host(struct store_fixture *f, uint32_t host, uint32_t n_hosts);
/* Checks that the ledger is empty afterwards. */
void store_fixture_close(struct store_fixture *f);

/* Piece after piece, from a zeroed one on: for (struct store_piece at = {0}; store_fixture_next(f, &at);) */
struct store_piece {
    uint32_t next, unit;
    const struct model_piece *piece;
    const struct model_tensor *tensor;
    uint64_t first; /* its first element among the tensor's */
};
bool store_fixture_next(const struct store_fixture *f, struct store_piece *at);

/* A contribution to a whole unit, its slices from the top one down, whose order does not matter. g (n_trained) travels
 * as `type`; first, part, visit: as in struct store_contribution. Every slice is taken. */
struct store_given {
    const float *g;
    enum number_type type;
    bool first;
    uint32_t part, visit;
};
/* The i-th of a unit's contributions: visit downwards, part by part. Its numbers are the caller's to give. */
struct store_given store_fixture_given(const struct store_fixture *f, uint32_t unit, uint32_t i, uint32_t n_parts);
void store_fixture_fold(struct store_fixture *f, uint32_t unit, const struct store_given *given, enum store_fold how,
                        const struct hyper *hp);

/* Bytes of one moment of units first .. end-1 in this form, by hand: coded ones of GPT-2's matrices in blocks, of one
 * slice, the others in fp32. */
uint64_t store_fixture_moment_bytes(const struct model *model, uint32_t first, uint32_t end, enum number_type moments);

/* A unit's arrays, whatever their form; m and v are NULL in an evaluation, and zero where they are frozen, or SGD has
 * none. */
struct store_values {
    float *w, *m, *v; /* (n) each */
};
struct store_values store_fixture_values(const struct store_fixture *f, uint32_t unit);
void store_values_free(struct store_values *values);

/* Writes the store's weights, and its moments unless moments_fd is -1, units from the last to the first, as
 * eps/store/store_files.h does; checkpoint may be NULL. */
void store_fixture_write(const struct store *store, int weights_fd, int moments_fd, struct checkpoint *checkpoint);
/* An empty file in memory. */
int store_fixture_file(void);
/* store_load and store_load_moments, with as much memory for the headers as plan_load_bytes says. */
int store_fixture_load(struct store *store, const struct file *files, unsigned n_files, struct error *err);
int store_fixture_load_moments(struct store *store, const struct file *file, struct error *err);
/* Writes weights and moments, and loads `to` from them: in an evaluation the weights alone. */
void store_fixture_reload(struct store_fixture *to, const struct store_fixture *from);

/* A whole checkpoint: a new directory with the model's config.json, weights and moments, vocab.json and merges.txt as
 * side files, and training.json. */
void store_fixture_save(const struct store_fixture *f, const char *directory, uint64_t step);

/* Fails the test at the first element whose bits differ. */
void store_fixture_same(const float *a, const float *b, uint64_t n, const char *what);
/* The same of all units' weights and moments, and of their numbers of updates. */
void store_fixture_same_stores(const struct store_fixture *a, const struct store_fixture *b);

#endif
