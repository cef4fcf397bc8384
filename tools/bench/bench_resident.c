/* bench_resident: a training step by the worker's own code whose weights and contributions stay on the device: the
 * baseline for the relay. The planner chooses for a machine on which neither host nor link binds, with layers' inputs
 * on the device, in what the budget leaves beside AdamW's 16 bytes a parameter: weights, master, moments and gradient,
 * which stay there in resident training. If they do not fit, it says so, and plans with the whole budget. After the
 * first steps, which warm up, every copy of more than 1 MiB is skipped; sizes, kernels and their order are those of a
 * real step. Weights are random numbers, the same for every unit.
 *
 *   bench_resident --model config.json [--device cpu|cuda[:N]] [--module FILE] [--batch N] [--seq N] [--device-mem MIB]
 *
 * Prints the choice, what such training takes in all, and "ms X": the median of the steps. The device is cuda; FILE is
 * its backend, by default the one beside this program; --device-mem is 31/32 of its free memory, as for a worker. */
#include "device/find.h"
#include "proto/step/step.h"
#include "proto/plan/search.h"
#include "tools/bench/samples.h"

#include <getopt.h>
#include <stdio.h>
#include <string.h>

enum { WARM = 2, STEPS = 7, LARGE = 1 << 20, STATE_BYTES = 16 /* of a parameter */ };

/* State of the copies. There is only one, because the table's functions receive the device only. */
static struct {
    const struct device_ops *ops;
    bool resident; /* from now on large copies are skipped */
} real;

struct resident {
    struct device_worker worker;
    struct ledger ledger;
    struct device_ops ops; /* the device's operations with other copies */
    struct plan_setting setting;
    void *weights, *slot;
    uint32_t *ids, *labels;
};

static void bench_resident_die(const char *what)
{
    fprintf(stderr, "bench_resident: %s\n", what);
    exit(1);
}

static void *bench_resident_allocate(size_t n, size_t size)
{
    void *memory = calloc(n, size);

    if (!memory)
        bench_resident_die("out of memory");
    return memory;
}

static void bench_resident_upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    if (!real.resident || bytes < LARGE)
        real.ops->upload(dev, dst, host, bytes);
}

static void bench_resident_download(struct device *dev, void *host, const void *src, size_t bytes)
{
    if (!real.resident || bytes < LARGE)
        real.ops->download(dev, host, src, bytes);
}

static int bench_resident_pull(void *context, uint64_t version, uint32_t unit)
{
    (void)context, (void)version, (void)unit;
    return 0;
}

static int bench_resident_wait_weights(void *context, struct device_link_weights *weights)
{
    const void *const at = ((struct resident *)context)->weights;

    *weights = (struct device_link_weights){.trained = at, .frozen = at};
    return 0;
}

static int bench_resident_loss(void *context, uint32_t part, double sum, const struct preference_rewards *rewards,
                               bool finite)
{
    (void)context, (void)part, (void)sum, (void)rewards;
    if (!finite)
        bench_resident_die("the loss is not finite");
    return 0;
}

static int bench_resident_take_slot(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait,
                                    void **slot)
{
    (void)visit, (void)part, (void)slice, (void)wait;
    *slot = ((struct resident *)context)->slot;
    return 0;
}

static int bench_resident_contribute(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                                     const struct device_link_slice *of)
{
    (void)context, (void)visit, (void)part, (void)slice, (void)slot, (void)of;
    return 0;
}

static int bench_resident_contributed(void *context, uint32_t visit, uint32_t part)
{
    (void)context, (void)visit, (void)part;
    return 0;
}

static int bench_resident_ended(void *context)
{
    (void)context;
    return 0;
}

static const struct device_link link_resident = {bench_resident_pull,       bench_resident_wait_weights,
                                                 bench_resident_loss,       bench_resident_take_slot,
                                                 bench_resident_contribute, bench_resident_contributed,
                                                 bench_resident_ended};

/* Memory that the device reads directly; if it cannot, copies are only slower. */
static void *lent(struct resident *r, size_t bytes, bool writable)
{
    struct error err = {{0}};
    void *memory = bench_resident_allocate(bytes, 1);

    real.ops->lend(r->worker.dev, memory, bytes, writable, &err);
    return memory;
}

static void draw_weights(struct resident *r)
{
    const size_t n = r->worker.model.largest_unit, most = n < LARGE ? n : LARGE;
    float *numbers = bench_resident_allocate(most, sizeof *numbers);

    random_normal(numbers, (struct random_key){{3, 5}}, 0, 0, most);
    for (size_t i = 0; i < n; i++)
        if (r->setting.goal.precision == NUMBER_BF16)
            ((uint16_t *)r->weights)[i] = number_to_bf16(0.02f * numbers[i % most]);
        else
            ((float *)r->weights)[i] = 0.02f * numbers[i % most];
    free(numbers);
}

/* All rows at once, where activations of all blocks fit then; otherwise what is predicted to take the least time. */
static void bench_resident_choose(struct plan *plan, const struct resident *r, const struct model *model,
                                  struct profile profile, uint64_t budget)
{
    const uint64_t state = STATE_BYTES * model->n_parameters;
    const bool fits = state < budget;
    struct plan_wish wish = {.microbatch = r->setting.part_rows, .no_host_stash = true};
    struct error err = {{0}};

    profile.link_bytes_per_s = profile.update_parameters_per_s = 1e15, profile.host_bytes_per_s = 0;
    budget -= fits ? state : 0;
    if (plan_search(plan, model, &r->setting, &wish, &profile, budget, &err) ||
        plan->choice.keeping[0].n_kept < model->config.n_layers) {
        wish.microbatch = 0;
        if (plan_search(plan, model, &r->setting, &wish, &profile, budget, &err))
            bench_resident_die(err.text);
    }
    printf("resident training takes %zu MiB: %zu of this plan, and %zu of weights, master, moments and gradient%s\n",
           (size_t)((plan_total(plan) + state) >> 20), (size_t)(plan_total(plan) >> 20), (size_t)(state >> 20),
           fits ? "" : ", which do not fit: planned without them");
}

static void open_worker(struct resident *r, const struct model_config *config, unsigned index, uint64_t budget)
{
    struct device_worker_options options = {.config = *config, .ops = &r->ops, .setting = r->setting, .index = index};
    struct error err = {{0}};
    struct profile profile;
    struct model model;
    struct plan plan;

    if (profile_find(&profile, NULL, real.ops->name, &err) || model_init(&model, config, &err))
        bench_resident_die(err.text);
    bench_resident_choose(&plan, r, &model, profile, budget);
    model_free(&model);
    options.choice = plan.choice;
    if (device_worker_init(&r->worker, &options, &r->ledger, &err))
        bench_resident_die(err.text);
    printf("%s, microbatches of %u of %u rows of %u, stash on the %s, %u blocks kept, %u units stay, budget %zu MiB\n",
           number_name(r->setting.goal.precision), plan.choice.microbatch, r->setting.part_rows, r->setting.goal.seq,
           plan.choice.host_stash ? "host" : "device", plan.choice.keeping[0].n_kept, plan.choice.n_resident,
           (size_t)(budget >> 20));
    if (r->worker.plan.host_stash_bytes)
        r->worker.stash = lent(r, r->worker.plan.host_stash_bytes, true);
    r->weights = lent(r, r->worker.model.largest_unit * number_bytes(r->setting.goal.precision), false);
    r->slot = lent(r, model_slot_bytes(&r->worker.model, NUMBER_FP32), true);
    draw_weights(r);
}

static double bench_resident_step(struct resident *r, uint64_t number)
{
    const uint32_t part = 0;
    const uint64_t n = (uint64_t)r->setting.share_rows * r->setting.goal.seq;
    const struct device_share share = {.step = number,
                                       .n_valid = n,
                                       .n_parts = 1,
                                       .parts = &part,
                                       .rows = {.n_tokens = r->setting.goal.seq, .ids = r->ids, .labels = r->labels}};
    struct error err = {{0}};
    const double began = samples_now_ms();

    if (device_worker_step(&r->worker, &share, &link_resident, r, &err) || real.ops->sync(r->worker.dev))
        bench_resident_die(err.text);
    return samples_now_ms() - began;
}

static void bench_resident_measure(struct resident *r)
{
    const size_t n = (size_t)r->setting.share_rows * r->setting.goal.seq;
    const uint32_t vocabulary = r->worker.model.config.vocabulary;
    struct samples samples = {.n = 0};

    r->ids = bench_resident_allocate(n, sizeof *r->ids), r->labels = bench_resident_allocate(n, sizeof *r->labels);
    for (size_t i = 0; i < n; i++) {
        r->ids[i] = (uint32_t)(i * 2654435761u) % vocabulary;
        r->labels[i] = (uint32_t)((i + 1) * 2654435761u) % vocabulary;
    }
    for (uint64_t i = 0; i < WARM + STEPS; i++) {
        real.resident = i > 0;
        const double ms = bench_resident_step(r, i);
        if (i >= WARM)
            samples.ms[samples.n++] = ms;
    }
    printf("ms %.3f\n", samples_median(&samples));
}

static struct model_config bench_resident_read_config(const char *path)
{
    struct model_config config;
    struct error err = {{0}};
    char text[65536];
    FILE *file = fopen(path, "r");
    const size_t n = file ? fread(text, 1, sizeof text, file) : 0;

    if (!file)
        bench_resident_die("--model names no file that can be read");
    fclose(file);
    if (model_config_parse(&config, text, n, &err))
        bench_resident_die(err.text);
    return config;
}

static int bench_resident_misuse(void)
{
    fprintf(stderr, "usage: bench_resident --model config.json [--device cpu|cuda[:N]] [--module FILE] [--batch N] "
                    "[--seq N] [--device-mem MIB]\n");
    return 2;
}

struct options {
    const char *model, *device, *module;
    unsigned batch, seq;
    uint64_t budget; /* 0: unset */
};

static bool take_options(struct options *o, int argc, char **argv)
{
    static const struct option names[] = {{"model", required_argument, NULL, 'm'},
                                          {"device", required_argument, NULL, 'd'},
                                          {"module", required_argument, NULL, 'o'},
                                          {"batch", required_argument, NULL, 'b'},
                                          {"seq", required_argument, NULL, 's'},
                                          {"device-mem", required_argument, NULL, 'M'},
                                          {NULL, 0, NULL, 0}};
    int name;

    while ((name = getopt_long(argc, argv, "", names, NULL)) != -1) {
        if (name == 'm')
            o->model = optarg;
        else if (name == 'd')
            o->device = optarg;
        else if (name == 'o')
            o->module = optarg;
        else if (name == 'b')
            o->batch = (unsigned)atoi(optarg);
        else if (name == 's')
            o->seq = (unsigned)atoi(optarg);
        else if (name == 'M')
            o->budget = (uint64_t)atoll(optarg) << 20;
        else
            return false;
    }
    return o->model && optind == argc && o->batch && o->seq;
}

int main(int argc, char **argv)
{
    struct options o = {.device = "cuda", .batch = 16, .seq = 1024};
    struct resident r = {.setting = {.goal.purpose = PLAN_TRAIN, .n_threads = 1}};
    struct device_facts facts;
    struct error err = {{0}};

    if (!take_options(&o, argc, argv))
        return bench_resident_misuse();
    const bool cpu = strcmp(o.device, "cpu") == 0;
    const unsigned index = !cpu && strlen(o.device) > 5 ? (unsigned)atoi(o.device + 5) : 0;
    const struct model_config config = bench_resident_read_config(o.model);
    real.ops = o.module ? device_load(o.module, &err) : device_find(cpu ? "cpu" : "cuda", &err);
    if (!real.ops || real.ops->probe(index, &facts, &err))
        bench_resident_die(err.text);
    r.ops = *real.ops;
    r.ops.upload = bench_resident_upload, r.ops.download = bench_resident_download;
    r.setting.share_rows = r.setting.part_rows = r.setting.goal.batch = o.batch, r.setting.goal.seq = o.seq;
    r.setting.backend = plan_backend_find(real.ops->name);
    r.setting.goal.precision = cpu ? NUMBER_FP32 : NUMBER_BF16;
    r.setting.library_bytes = facts.library_bytes;
    r.setting.attention = facts.attention;
    open_worker(&r, &config, index, o.budget ? o.budget : facts.available_bytes / 32 * 31);
    bench_resident_measure(&r);
    device_worker_free(&r.worker);
    return 0;
}
