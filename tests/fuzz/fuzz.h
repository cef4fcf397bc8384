/* tests/fuzz/fuzz.h - what the fuzz targets share.
 *
 * A target, fuzz_X.c, gives one decoder whatever libFuzzer makes of tests/fuzz/corpus/X. The sanitizers find memory
 * errors; the target itself aborts where a promise of the decoder's header is broken. tests/fuzz/run.sh runs them. */
#ifndef TESTS_FUZZ_FUZZ_H
#define TESTS_FUZZ_FUZZ_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* libFuzzer calls it; defined by each target. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

/* Aborts unless the promise holds. */
void fuzz_demand(bool promise);

/* True if a decoder took its input (rc 0). Where it refused it (-errno), err must hold one printable sentence. */
bool fuzz_took(int rc, const struct error *err);

/* The process's own directory, made in $TMPDIR at the first call, which also becomes $TMPDIR. */
const char *fuzz_directory(void);
/* Makes the file NAME in it hold these bytes. Returns its path, which is valid until the next call. */
const char *fuzz_write(const char *name, const void *bytes, size_t n);

/* A nameless file with these bytes; the same descriptor for each call, read from its beginning. */
int fuzz_file(const void *bytes, size_t n);

/* Cuts the next part off an input whose parts are separated by zero bytes. *part is a string, owned: free. False at the
 * input's end. */
bool fuzz_part(char **part, size_t *n_part, const uint8_t **bytes, size_t *n);

#endif
