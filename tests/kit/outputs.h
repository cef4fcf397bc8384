/* tests/kit/outputs.h - output directories, by name in the working directory: made, looked at, compared. Everything
 * asserts. */
#ifndef TESTS_KIT_OUTPUTS_H
#define TESTS_KIT_OUTPUTS_H

#include "proto/model/file/safetensors.h"

#include <stddef.h>
#include <stdint.h>

/* Makes it; returns the name. */
const char *outputs_make(const char *name);
/* The names in a directory, sorted, a blank behind each; without report.svg, which is there where gnuplot is. */
const char *outputs_names(const char *path);
void outputs_write(const char *directory, const char *name, const char *content);
void outputs_check_file(const char *path, const char *content);
/* Its config.json is the other directory's, but for tie_word_embeddings, which is false. */
void outputs_check_untied(const char *directory, const char *other);

/* A file of both directories is the same, byte for byte; weights, moments and training.json are. */
void outputs_check_same(const char *directory, const char *other, const char *name);
void outputs_check_same_state(const char *step, const char *other);
/* So are weights and moments of two runs' latest checkpoints. */
void outputs_check_same_latest(const char *out, const char *other);

/* Their metrics.jsonl have n_steps lines, which are the same but for what depends on the clock, and on when the memory
 * was asked for. Up to two of `out` may have no loss where the other has one: of steps that a daemon saved while their
 * client was killed. */
void outputs_check_same_metrics(const char *out, const char *other, size_t n_steps);

/* The held-out loss of the run's last line is what eps eval with these options makes of its latest checkpoint. */
void outputs_check_held_out(const char *out, const char *options);

/* Every byte of step-N is what its training.json says, and `latest` points there. */
void outputs_check_whole(const char *out, uint64_t step);

/* The step that `latest` points to. */
uint64_t outputs_latest(const char *out);

/* An open file of tensors of a directory; and one of its tensors in fp32, of up to 8,192 numbers, until the next but
 * one. */
struct outputs_tensors {
    int fd;
    struct safetensors file;
};
void outputs_open_tensors(struct outputs_tensors *out, const char *directory, const char *name);
void outputs_close_tensors(struct outputs_tensors *tensors);
const float *outputs_tensor(const struct outputs_tensors *tensors, const char *name, uint64_t *n);

/* With a Python that has transformers at hand (EPS_ORACLE_PYTHON), it loads these exports, too: the arguments of
 * tests/oracle/check_saved.py. */
void outputs_check_python(const char *arguments);

#endif
