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
    size_t ops_bytes; /* size of the table in the module's build */
    const void *ops;
};

/* What the program expects of it. */
struct module_kind {
    const char *file;    /* "eps-mpi.so" */
    const char *symbol;  /* the name of its struct module */
    size_t ops_bytes;    /* size of the table in the program's build */
    const char *version; /* the program's */
    int flags;           /* dlopen's flags besides RTLD_NOW */
    const char *library; /* the library that the module needs, as the loader's message names it */
    const char *remedy;  /* how to get that library */
};

/* Finds a module: beside the running program (sets `directory` to the program's), else in the installed library
 * directory. False: it is in neither. */
bool module_find(char path[PATH_MAX], char directory[PATH_MAX], const struct module_kind *kind);
/* Loads a module, for good, and returns its table. NULL with a sentence: it does not load, is no module, or belongs to
 * another build. */
const void *module_load(const char *path, const struct module_kind *kind, struct error *err);

#endif
