/* proto/plan/time/profile_tables.h - for the files of profiles: figures of a profile that have names at several
 * levels. */
#ifndef PROTO_PLAN_TIME_PROFILE_TABLES_H
#define PROTO_PLAN_TIME_PROFILE_TABLES_H

#include "proto/plan/time/profile.h"

#include <assert.h>

enum { PROFILE_LEVELS = 6 };

struct profile_level {
    const char *by; /* what its names are of */
    int n;
    const char *const *names;
    size_t stride; /* figures from a name's to the next one's */
};

struct profile_table {
    const char *name;
    size_t offset;  /* of the first figure in struct profile */
    bool needed;    /* in a file */
    int optional;   /* the level whose names a file may lack; -1: none */
    bool is_sparse; /* a file may lack names at all levels; their figures are 0, and it is written without them */
    int n_known;    /* so many of the first level's names have no figure that is 0, which means that it is not known */
    bool is_whole;  /* of the last level, all figures are known or none */
    int n_levels;   /* 0: devices of this kind have no such table */
    struct profile_level levels[PROFILE_LEVELS];
};

enum {
    PROFILE_MATMUL,
    PROFILE_NARROWER,
    PROFILE_CONV2D,
    PROFILE_ATTENTION,
    PROFILE_SHAPES,
    PROFILE_NORM,
    PROFILE_TABLES
};

/* Of a GPU, which has all; of a CPU. */
extern const struct profile_table profile_tables[2][PROFILE_TABLES];

static inline const struct profile_level *profile_level(const struct profile_table *table, int i)
{
    assert(i < PROFILE_LEVELS && i < table->n_levels);
    return &table->levels[i];
}

static inline double *profile_figures(struct profile *profile, const struct profile_table *table)
{
    return (double *)((char *)profile + table->offset);
}

/* Figures by themselves, which every profile has. */
enum { PROFILE_FIGURES = 3 };
extern const char *const profile_figure_names[PROFILE_FIGURES];
double *profile_figure(struct profile *profile, int i);

/* Figures by themselves that a profile may lack. */
enum { PROFILE_OPTIONAL = 4 };
extern const struct profile_optional {
    const char *name;
    size_t offset;   /* in struct profile */
    bool is_derived; /* where it is missing, it is the default profile's, not 0 */
    bool is_of_gpu;  /* other devices have none */
    bool is_time;    /* from 0 to 1 seconds; others have the range of all figures, or are 0 */
} profile_optional[PROFILE_OPTIONAL];

static inline double *profile_optional_figure(struct profile *profile, const struct profile_optional *optional)
{
    return (double *)((char *)profile + optional->offset);
}

#endif
