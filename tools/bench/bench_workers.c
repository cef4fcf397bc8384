/* bench_workers: what a part costs on one of W CPU workers, relative to one worker. The same run of 8 parts a step,
 * with --deterministic, by 1, 2, 3 and 8 workers that share this machine's cores; rounds alternate. The ratio is that
 * of the medians over all steps, without the first two of each round: parts/s per core, as all runs have the same
 * cores. Weights after the last step must be equal.
 *
 *   bench_workers [WIDTH LAYERS HEADS ROWS TOKENS [ROUNDS]] */
#include "client/eps.h"
#include "tools/bench/workload.h"

#include <stdio.h>
#include <stdlib.h>

enum { PARTS = 8 };

static const uint32_t workers[] = {1, 2, 3, 8};
enum { N_RUNS = sizeof workers / sizeof *workers };

static void bench_workers_run(struct samples *out, const struct workload *w, uint32_t n_workers)
{
    struct eps_train_options options = eps_train_defaults();
    char name[32];

    options.parts = PARTS, options.workers = n_workers, options.microbatch = 1, options.deterministic = true;
    snprintf(name, sizeof name, "run-%u", n_workers);
    workload_train(w, out, options, name);
}

/* True if their last checkpoints hold the same weights. */
static bool are_equal(const char *dir, uint32_t a, uint32_t b)
{
    char command[1000];

    snprintf(command, sizeof command, "cmp -s %s/run-%u/latest/model.safetensors %s/run-%u/latest/model.safetensors",
             dir, a, dir, b);
    return system(command) == 0;
}

int main(int argc, char **argv)
{
    static struct samples samples[N_RUNS];
    struct workload w = {.width = 384, .n_layers = 6, .n_heads = 6, .batch = 16, .seq = 256, .n_steps = 8};
    const int rounds = argc > 6 ? atoi(argv[6]) : 3;
    bool equal = true;

    if (argc >= 6)
        workload_resize(&w, argv + 1);
    workload_open(&w);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < N_RUNS; i++)
            bench_workers_run(&samples[i], &w, workers[i]);
    const double one = samples_median(&samples[0]);
    printf("width %u, %u layers, %u x %u tokens in %d parts; medians of %zu steps\n", w.width, w.n_layers, w.batch,
           w.seq, PARTS, samples[0].n);
    for (int i = 0; i < N_RUNS; i++) {
        const double ms = samples_median(&samples[i]);
        const bool same = are_equal(w.dir, workers[0], workers[i]);
        equal = equal && same;
        printf("%u worker%s %.1f ms a step, %.2f parts/s, %.3f of one worker's parts/s per core, weights %s\n",
               workers[i], workers[i] == 1 ? ": " : "s:", ms, PARTS * 1e3 / ms, one / ms, same ? "equal" : "DIFFERENT");
    }
    return workload_remove(&w) != 0 || !equal;
}
