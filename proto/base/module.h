/* proto/base/module.h - parts of eps that need a library which not every machine has: modules, eps-NAME.so, loaded on
 * demand. So the programs run without that library, and start as fast. */
#ifndef PROTO_BASE_MODULE_H
#define PROTO_BASE_MODULE_H

#include "proto/base/error.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

/* What a module exports. */
struct module {
    char version[16];
    size_t ops_bytes; /* of the table, as the module knows it */
    const void *ops;
};

/* What the program expects of it. */
struct module_kind {
    const char *file;    /* "eps-mpi.so" */
    const char *symbol;  /* the name of its struct module */
    size_t ops_bytes;    /* of the table, as the program knows it */
    const char *version; /* the program's */
    int flags;           /* of dlopen, besides RTLD_NOW */
    const char *library; /* which the module needs, as the loader's message names it; */
    const char *remedy;  /* how to get it */
};

/* Where it is: beside the running program, whose directory is in `directory` then, else in the installed library
 * directory. False: in neither. */
bool module_find(char path[PATH_MAX], char directory[PATH_MAX], const struct module_kind *kind);
/* Loads it; its table, which stays. NULL with a sentence: it does not load, is no module, or is of another build. */
const void *module_load(const char *path, const struct module_kind *kind, struct error *err);

#endif
