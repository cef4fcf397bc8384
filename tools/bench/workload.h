/* tools/bench/workload.h - the training that several benchmarks time: a GPT-2 with random weights, of any size, on a
 * synthetic text. All its files are in one temporary directory. Whatever fails ends the program with status 1. */
#ifndef TOOLS_BENCH_WORKLOAD_H
#define TOOLS_BENCH_WORKLOAD_H

#include "client/eps.h"
#include "tools/bench/samples.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { WORKLOAD_VOCABULARY = 256 /* bytes */, WORKLOAD_SKIP = 2 /* first steps of a run, which are not timed */ };

struct workload {
    uint32_t width, n_layers, n_heads, batch, seq; /* batch x seq tokens a step */
    uint32_t n_steps;                              /* steps of a run */
    char dir[32];                                  /* holds its files and runs; from workload_open */
};

static inline _Noreturn void workload_die(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s: %s\n", program_invocation_short_name, what, why);
    exit(1);
}

/* Takes the size from the words WIDTH LAYERS HEADS ROWS TOKENS. */
static inline void workload_resize(struct workload *w, char **words)
{
    w->width = (uint32_t)atoi(words[0]);
    w->n_layers = (uint32_t)atoi(words[1]);
    w->n_heads = (uint32_t)atoi(words[2]);
    w->batch = (uint32_t)atoi(words[3]);
    w->seq = (uint32_t)atoi(words[4]);
}

/* Token i of the text: a printable character. */
static inline uint32_t workload_token(size_t i)
{
    return (uint32_t)(32 + i * 2654435761u % 95);
}

/* Makes the directory, with config.json and data.txt. Undo: workload_remove. */
static inline void workload_open(struct workload *w)
{
    char path[64];

    snprintf(w->dir, sizeof w->dir, "/tmp/eps-bench-XXXXXX");
    if (!mkdtemp(w->dir))
        workload_die(w->dir, "cannot be made");
    snprintf(path, sizeof path, "%s/config.json", w->dir);
    FILE *config = fopen(path, "w");
    snprintf(path, sizeof path, "%s/data.txt", w->dir);
    FILE *data = fopen(path, "w");
    if (!config || !data)
        workload_die(path, "cannot be written");
    fprintf(config,
            "{\"model_type\": \"gpt2\", \"n_layer\": %u, \"n_head\": %u, \"n_embd\": %u, \"n_positions\": %u, "
            "\"vocab_size\": %d, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0}\n",
            w->n_layers, w->n_heads, w->width, w->seq, WORKLOAD_VOCABULARY);
    for (size_t i = 0; i < (size_t)w->batch * w->seq * (w->n_steps + 4); i++)
        fputc((int)workload_token(i), data);
    fclose(config);
    fclose(data);
}

/* Returns 0, or not if something is left. */
static inline int workload_remove(const struct workload *w)
{
    char command[64];

    snprintf(command, sizeof command, "rm -rf %s", w->dir);
    return system(command);
}

static inline void workload_on_step(void *user, const struct eps_step *step)
{
    struct samples *out = user;

    if (step->step > WORKLOAD_SKIP && out->n < SAMPLES_MAX)
        out->ms[out->n++] = step->step_ms;
}

/* One run, by a daemon and its workers, into the folder `run` of the directory; one that is there is replaced. options:
 * what differs from eps_train_defaults, without model, data, out and size. Adds the times of its steps to *out. */
static inline void workload_train(const struct workload *w, struct samples *out, struct eps_train_options options,
                                  const char *run)
{
    char model[64], data[64], run_dir[64], command[96];
    const char *files[] = {data};
    const struct eps_train_events events = {.on_step = workload_on_step};
    struct eps_error error = {""};

    snprintf(model, sizeof model, "%s/config.json", w->dir);
    snprintf(data, sizeof data, "%s/data.txt", w->dir);
    snprintf(run_dir, sizeof run_dir, "%s/%s", w->dir, run);
    snprintf(command, sizeof command, "rm -rf %s", run_dir);
    options.model = model, options.data = files, options.n_data = 1, options.eval_data = data, options.out = run_dir;
    options.steps = w->n_steps, options.batch = w->batch, options.seq = w->seq;
    if (system(command) || eps_train(&options, &events, out, &error))
        workload_die(run, error.text);
}

#endif
