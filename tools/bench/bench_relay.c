/* bench_relay: the cost of the relay. The same layers, store and optimizer run in two ways: in one process with
 * function calls for messages (tests/kit/inprocess.h); and as epsd and eps-worker with sessions, shared memory and an
 * optimizer thread. Rounds alternate. The ratio is that of the medians over all steps, without the first two of each
 * round.
 *
 *   bench_relay [WIDTH LAYERS HEADS ROWS TOKENS] */
#include "client/eps.h"
#include "proto/base/process.h"
#include "tests/kit/inprocess.h"
#include "tools/bench/samples.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROUNDS = 5, STEPS = 10, SKIP = 2, VOCABULARY = 256 };

struct size {
    uint32_t width, n_layers, n_heads, batch, seq;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_relay: %s: %s\n", what, why);
    exit(1);
}

static void write_files(const char *dir, const struct size *size)
{
    const size_t n = (size_t)size->batch * size->seq * (STEPS + 4);
    char path[300];

    snprintf(path, sizeof path, "%s/config.json", dir);
    FILE *config = fopen(path, "w");
    snprintf(path, sizeof path, "%s/data.txt", dir);
    FILE *data = fopen(path, "w");
    if (!config || !data)
        die(path, "cannot be written");
    fprintf(config,
            "{\"model_type\": \"gpt2\", \"n_layer\": %u, \"n_head\": %u, \"n_embd\": %u, \"n_positions\": %u, "
            "\"vocab_size\": %d, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, \"resid_pdrop\": 0.0}\n",
            size->n_layers, size->n_heads, size->width, size->seq, VOCABULARY);
    for (size_t i = 0; i < n; i++)
        fputc((int)(32 + i * 2654435761u % 95), data);
    fclose(config);
    fclose(data);
}

static void round_in_process(struct samples *out, const struct size *size)
{
    const struct inprocess_options options = {
        .config = {.family = &family_gpt2,
                   .n_layers = size->n_layers,
                   .n_heads = size->n_heads,
                   .width = size->width,
                   .inner_width = 4 * size->width,
                   .n_positions = size->seq,
                   .vocabulary = VOCABULARY,
                   .tied = true,
                   .gpt2.scale_attention = true,
                   .norm_epsilon = 1e-5f,
                   .initializer_range = 0.02f},
        .batch = size->batch,
        .seq = size->seq,
        .n_parts = 1,
        .n_threads = (uint32_t)sysconf(_SC_NPROCESSORS_ONLN),
    };
    const struct hyper hyper = {.lr = 1e-4, .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.01};
    const size_t n = (size_t)size->batch * size->seq;
    uint32_t *ids = malloc(2 * n * sizeof *ids);
    struct error err = {""};
    struct inprocess *ip;

    if (!ids || inprocess_open(&ip, &options, &err))
        die("in one process", err.text);
    for (size_t i = 0; i < 2 * n; i++)
        ids[i] = (uint32_t)(32 + i % n * 2654435761u % 95);
    for (int step = 0; step < STEPS; step++) {
        double loss, start = samples_now_ms();
        if (inprocess_step(ip, ids, ids + n, n, &hyper, &loss, &err))
            die("in one process", err.text);
        if (step >= SKIP)
            samples_add(out, start);
    }
    inprocess_close(ip);
    free(ids);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct samples *out = user;

    if (step->step > SKIP)
        out->ms[out->n++] = step->step_ms;
}

static void round_processes(struct samples *out, const struct size *size, const char *dir, int round)
{
    char model[300], data[300], run[300];
    const char *files[] = {data};
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options options = eps_train_defaults();
    struct eps_error error;

    snprintf(model, sizeof model, "%s/config.json", dir);
    snprintf(data, sizeof data, "%s/data.txt", dir);
    snprintf(run, sizeof run, "%s/run-%d", dir, round);
    options.model = model;
    options.data = files;
    options.n_data = 1;
    options.eval_data = data;
    options.out = run;
    options.steps = STEPS;
    options.save_every = 0;
    options.batch = size->batch;
    options.seq = size->seq;
    options.order = EPS_SEQUENTIAL;
    if (eps_train(&options, &events, out, &error))
        die("as processes", error.text);
}

int main(int argc, char **argv)
{
    struct size size = {384, 6, 6, 8, 256};
    struct samples direct = {.n = 0}, processes = {.n = 0};
    char dir[] = "/tmp/eps-bench-XXXXXX", command[64];

    process_bound_spinning(argv); /* as in epsd and eps-worker */
    if (argc == 6)
        size = (struct size){(uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                             (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5])};
    if (!mkdtemp(dir))
        die(dir, "cannot be made");
    write_files(dir, &size);
    for (int round = 0; round < ROUNDS; round++) {
        round_in_process(&direct, &size);
        round_processes(&processes, &size, dir, round);
    }
    const double one = samples_median(&direct), two = samples_median(&processes);
    printf("width %u, %u layers, %u x %u tokens: one process %.1f ms, daemon and worker %.1f ms a step: overhead %.1f "
           "%%\n",
           size.width, size.n_layers, size.batch, size.seq, one, two, 100 * (two / one - 1));
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0;
}
