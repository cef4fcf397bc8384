/* bench_relay: the cost of the relay. The same layers, store and optimizer run in two ways: in one process with
 * function calls for messages (tests/kit/inprocess/inprocess.h); and as epsd and eps-worker with sessions, shared
 * memory and an optimizer thread. Rounds alternate. The ratio is that of the medians over all steps, without the first
 * two of each round.
 *
 *   bench_relay [WIDTH LAYERS HEADS ROWS TOKENS] */
#include "client/eps.h"
#include "proto/base/process.h"
#include "proto/model/gpt2.h"
#include "tests/kit/inprocess/inprocess.h"
#include "tools/bench/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { ROUNDS = 5 };

static void round_in_process(struct samples *out, const struct workload *w)
{
    const struct inprocess_options options = {
        .config = {.family = &family_gpt2,
                   .n_layers = w->n_layers,
                   .n_heads = w->n_heads,
                   .width = w->width,
                   .inner_width = 4 * w->width,
                   .n_positions = w->seq,
                   .vocabulary = WORKLOAD_VOCABULARY,
                   .tied = true,
                   GPT2_ON(scale_attention),
                   .norm_epsilon = 1e-5f,
                   .initializer_range = 0.02f},
        .batch = w->batch,
        .seq = w->seq,
        .n_parts = 1,
        .n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
    };
    const struct hyper hyper = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};
    const size_t n = (size_t)w->batch * w->seq;
    uint32_t *ids = malloc(2 * n * sizeof *ids);
    struct error err = {""};
    struct inprocess *ip;

    if (!ids || inprocess_open(&ip, &options, &err))
        workload_die("in one process", err.text);
    for (size_t i = 0; i < 2 * n; i++)
        ids[i] = workload_token(i % n);
    for (uint32_t step = 0; step < w->n_steps; step++) {
        double loss, start = samples_now_ms();
        if (inprocess_step(ip, ids, ids + n, n, &hyper, &loss, &err))
            workload_die("in one process", err.text);
        if (step >= WORKLOAD_SKIP)
            samples_add(out, start);
    }
    inprocess_close(ip);
    free(ids);
}

static void round_processes(struct samples *out, const struct workload *w, int round)
{
    struct eps_train_options options = eps_train_defaults();
    char name[32];

    options.save_every = options.eval_every = 0, options.order = EPS_SEQUENTIAL;
    snprintf(name, sizeof name, "run-%d", round);
    workload_train(w, out, options, name);
}

int main(int argc, char **argv)
{
    struct workload w = {.width = 384, .n_layers = 6, .n_heads = 6, .batch = 8, .seq = 256, .n_steps = 10};
    struct samples direct = {.n = 0}, processes = {.n = 0};

    process_bound_spinning(argv); /* as in epsd and eps-worker */
    if (argc == 6)
        workload_resize(&w, argv + 1);
    workload_open(&w);
    for (int round = 0; round < ROUNDS; round++) {
        round_in_process(&direct, &w);
        round_processes(&processes, &w, round);
    }
    const double one = samples_median(&direct), two = samples_median(&processes);
    printf("width %u, %u layers, %u x %u tokens: one process %.1f ms, daemon and worker %.1f ms a step: overhead %.1f "
           "%%\n",
           w.width, w.n_layers, w.batch, w.seq, one, two, 100 * (two / one - 1));
    return workload_remove(&w) != 0;
}
