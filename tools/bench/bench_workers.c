/* bench_workers: what a part costs on one of W CPU workers, relative to one worker. The same run of 8 parts a step, with
 * --deterministic, by 1, 2, 3 and 8 workers that share this machine's cores; rounds alternate. The ratio is that of the
 * medians over all steps, without the first two of each round: parts/s per core, as all runs have the same cores. Weights
 * after the last step must be equal.
 *
 *   bench_workers [WIDTH LAYERS HEADS ROWS TOKENS [ROUNDS]] */
#include "client/eps.h"
#include "tools/bench/samples.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 8, SKIP = 2, PARTS = 8, VOCABULARY = 256 };

static const uint32_t workers[] = {1, 2, 3, 8};
enum { N_RUNS = sizeof workers / sizeof *workers };

struct size {
    uint32_t width, n_layers, n_heads, batch, seq;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "bench_workers: %s: %s\n", what, why);
    exit(1);
}

static void write_files(const char *dir, const struct size *size)
{
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
    for (size_t i = 0; i < (size_t)size->batch * size->seq * (STEPS + 4); i++)
        fputc((int)(32 + i * 2654435761u % 95), data);
    fclose(config);
    fclose(data);
}

static void on_step(void *user, const struct eps_step *step)
{
    struct samples *out = user;

    if (step->step > SKIP && out->n < SAMPLES_MAX)
        out->ms[out->n++] = step->step_ms;
}

static void run(struct samples *out, const struct size *size, const char *dir, uint32_t n_workers)
{
    char model[300], data[300], run_dir[300], command[1000];
    const char *files[] = {data};
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options options = eps_train_defaults();
    struct eps_error error;

    snprintf(model, sizeof model, "%s/config.json", dir);
    snprintf(data, sizeof data, "%s/data.txt", dir);
    snprintf(run_dir, sizeof run_dir, "%s/run-%u", dir, n_workers);
    snprintf(command, sizeof command, "rm -rf %s", run_dir);
    options.model = model, options.data = files, options.n_data = 1, options.eval_data = data, options.out = run_dir;
    options.steps = STEPS, options.batch = size->batch, options.seq = size->seq, options.parts = PARTS;
    options.workers = n_workers, options.microbatch = 1, options.deterministic = true;
    if (system(command) || eps_train(&options, &events, out, &error))
        die("a run", error.text);
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
    struct size size = {384, 6, 6, 16, 256};
    char dir[] = "/tmp/eps-bench-XXXXXX", command[64];
    const int rounds = argc > 6 ? atoi(argv[6]) : 3;
    bool equal = true;

    if (argc >= 6)
        size = (struct size){(uint32_t)atoi(argv[1]), (uint32_t)atoi(argv[2]), (uint32_t)atoi(argv[3]),
                             (uint32_t)atoi(argv[4]), (uint32_t)atoi(argv[5])};
    if (!mkdtemp(dir))
        die(dir, "cannot be made");
    write_files(dir, &size);
    for (int round = 0; round < rounds; round++)
        for (int i = 0; i < N_RUNS; i++)
            run(&samples[i], &size, dir, workers[i]);
    const double one = samples_median(&samples[0]);
    printf("width %u, %u layers, %u x %u tokens in %d parts; medians of %zu steps\n", size.width, size.n_layers,
           size.batch, size.seq, PARTS, samples[0].n);
    for (int i = 0; i < N_RUNS; i++) {
        const double ms = samples_median(&samples[i]);
        const bool same = are_equal(dir, workers[0], workers[i]);
        equal = equal && same;
        printf("%u worker%s %.1f ms a step, %.2f parts/s, %.3f of one worker's parts/s per core, weights %s\n",
               workers[i], workers[i] == 1 ? ": " : "s:", ms, PARTS * 1e3 / ms, one / ms, same ? "equal" : "DIFFERENT");
    }
    snprintf(command, sizeof command, "rm -rf %s", dir);
    return system(command) != 0 || !equal;
}
