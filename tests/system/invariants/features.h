/* tests/system/invariants/features.h - what a run can be: a row for each feature of `eps train`, with a tiny model and
 * data that a run of some steps takes fractions of a second with.
 *
 * Each feature is to meet each invariant (test_invariants.c). A cell that the product refuses is a hole, which is named
 * by the beginning of the product's sentence. What is no option string is not here: callbacks of libeps
 * (tests/system/commands/test_blocks.c, test_given.c), runs that begin from a checkpoint of another shape (test_grow.c,
 * test_replace.c), workers by tcp (tests/system/hosts/test_network.c) and what CUDA alone has. */
#ifndef TESTS_SYSTEM_INVARIANTS_FEATURES_H
#define TESTS_SYSTEM_INVARIANTS_FEATURES_H

#include "tools/table_options.h"

#include <wordexp.h>

enum invariant {
    INVARIANT_RESUMED,  /* its client is killed, and it is resumed */
    INVARIANT_BUDGET,   /* the least memory of a device, from the beginning or from a checkpoint on */
    INVARIANT_WORKERS,  /* three of them */
    INVARIANT_LOST,     /* one of three workers is killed */
    INVARIANT_ATTACHED, /* the client of a shared daemon is killed, and another takes its run over */
    INVARIANT_HOSTS,    /* two of them */
    INVARIANT_SAVED,    /* it is saved after each step, and exported */
    INVARIANTS
};

enum { FEATURE_STEPS = 6 };

struct feature {
    const char *name, *model;
    int data;            /* which of the kinds of data */
    const char *options; /* of eps train; they take the place of what all runs are given */
};

extern const struct feature features[];
extern const int n_features;

/* Writes all models and data to the working directory. */
void features_setup(void);
/* The beginning of the sentence by which the product refuses this cell; NULL: it does not. */
const char *feature_refusal(const struct feature *feature, enum invariant invariant);

/* What `eps train` says of a run that has the feature; "": nothing of its own. */
const char *feature_shown(const struct feature *feature);

/* Of `eps train`, with the options of this run alone, "--workers 3 --out three". Valid for some prints. */
const char *feature_line(const struct feature *feature, const char *more);

/* The parsed options of a run. Do not move it. Undo: feature_run_free. */
struct feature_run {
    struct eps_train_options options;
    struct table_options table;
    wordexp_t words;
};
/* Of feature_line. Asserts. */
void feature_run_init(struct feature_run *run, const struct feature *feature, const char *more);
/* The least memory of a device that a plan finds enough for it. Asserts. */
uint64_t feature_minimum(const struct feature *feature);
void feature_run_free(struct feature_run *run);

#endif
