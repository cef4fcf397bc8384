/* What cuDNN says to our graphs of attention and convolutions, of devices that need not be there: it plans for their
 * properties alone, if it finds some driver to load, which the toolkit's stub is. */
#include "device/cuda/dnn/graph.h"
#include "tests/kit/test.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(cuda, slow)
SUITE_TIMEOUT(120) /* of what is compiled */

/* As the library writes them of a device; what matters is its kind and its multiprocessors. */
static const struct properties {
    const char *name;
    int version, n_processors, shared_bytes;
    int64_t engine;                /* forward's, for this kind of tensor cores: mma, wgmma, tcgen05 */
    const char *kernel, *backward; /* what their names hold */
} devices[] = {
    {"NVIDIA A100", 800, 108, 166912, 1, "sdpa_sm80_flash_fprop", "sdpa_sm80_flash_bprop"},
    {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 2, "sdpa_sm90_flash_fprop_wgmma", "sdpa_sm90_flash_bprop_wgmma"},
    {"NVIDIA H200", 900, 132, 232448, 2, "sdpa_sm90_flash_fprop_wgmma", "sdpa_sm90_flash_bprop_wgmma"},
    {"NVIDIA B200", 1000, 148, 232448, 3, "sdpa_sm100_flash_fprop", "sdpa_sm100_flash_bprop"},
};
enum { N_DEVICES = sizeof devices / sizeof *devices };

/* (n_rows, n_tokens, n_heads, head_width): small, of an 8 B model whose heads share keys by fours, long, odd, and 16 Ki
 * tokens in one row; full rows, as BERT has them, and those of a classifier; windows of Mistral's and of Gemma 3's
 * heads. Then by family: Qwen2.5 of 0.5 B and 7 B, whose heads share keys by sevens, Llama 3 of 1 B and 70 B, Gemma of
 * 2 B and 7 B, Gemma 3 of 27 B, Qwen3-8B in one row of 32 Ki, Phi-2, GPT-2 XL, BERT-Large, a vision transformer's
 * patches. */
static const struct dnn_shape shapes[] = {
    {2, 1024, 12, 64, 12, 1, .full = false},   {2, 4096, 32, 128, 32, 4, .full = false},
    {1, 8192, 32, 128, 32, 1, .full = false},  {3, 77, 4, 32, 4, 1, .full = false},
    {1, 1024, 12, 96, 12, 1, .full = false},   {1, 16384, 32, 80, 32, 1, .full = false},
    {2, 512, 16, 64, 16, 1, .full = true},     {3, 77, 4, 32, 4, 1, .full = true, .has_lengths = true},
    {1, 8192, 32, 128, 32, 4, .window = 4096}, {2, 4096, 8, 256, 8, 2, .window = 1024},
    {2, 1024, 14, 64, 14, 7, .full = false},   {2, 1024, 28, 128, 28, 7, .full = false},
    {1, 2048, 32, 64, 32, 4, .full = false},   {1, 4096, 64, 128, 64, 8, .full = false},
    {2, 2048, 8, 256, 8, 8, .full = false},    {1, 2048, 16, 256, 16, 1, .full = false},
    {1, 4096, 32, 128, 32, 2, .window = 1024}, {1, 32768, 32, 128, 32, 4, .full = false},
    {1, 2048, 32, 80, 32, 1, .full = false},   {4, 1024, 25, 64, 25, 1, .full = false},
    {4, 512, 16, 64, 16, 1, .full = true},     {4, 197, 12, 64, 12, 1, .full = true}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

/* True if the device before has the same properties but its name: what is compiled for it is compiled for both. What is
 * proposed may yet differ. */
static bool is_compiled_before(const struct properties *device)
{
    if (device == devices)
        return false;
    const struct properties *before = device - 1;
    return before->version == device->version && before->n_processors == device->n_processors &&
           before->shared_bytes == device->shared_bytes;
}

/* Of a plan, the device that it is compiled for. */
enum { PLAN_PROPERTIES = 407 };

static struct dnn_api api;
static const char *(*stand_in_kernel)(void); /* that was compiled last */

static void *properties_of(const struct properties *device)
{
    char json[1024];
    void *d = NULL;

    const int n = snprintf(
        json, sizeof json,
        "{\"deviceName\":\"%s\",\"deviceVer\":%d,\"multiProcessorCount\":%d,\"maxSharedMemoryPerBlockOptin\":%d,"
        "\"cudaDeviceId\":0,\"driverVer\":13000,\"totalGlobalMem\":85899345920,\"maxGridSize\":[2147483647,65535,65535]"
        ","
        "\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,\"smClockRateKHz\":1500000,\"memClockRateKHz\":2600000,"
        "\"memoryBusWidth\":5120,"
        "\"l2CacheSize\":41943040,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,\"maxCtasPerSM\":32,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1}",
        device->name, device->version, device->n_processors, device->shared_bytes);
    ck_assert_int_eq(api.create_descriptor(DNN_DEVICE_PROPERTIES, &d), 0);
    ck_assert_int_eq(api.set(d, DNN_PROPERTIES_JSON, DNN_KIND_CHAR, n, json), 0);
    ck_assert_int_eq(api.finalize(d), 0);
    return d;
}

struct proposals {
    unsigned n;
    int64_t engines[DNN_MAX_CONFIGS], workspace[DNN_MAX_CONFIGS];
    char kernels[DNN_MAX_CONFIGS][256];
};

/* Compiles a configuration's plan, which wants the workspace that it said it would. */
static void compile(struct proposals *p, unsigned i, void *config, void *properties)
{
    void *plan = NULL;
    int64_t n = 0, workspace = -1;

    ck_assert_int_eq(api.create_descriptor(DNN_PLAN, &plan), 0);
    ck_assert_int_eq(api.set(plan, DNN_PLAN_CONFIG, DNN_KIND_DESCRIPTOR, 1, &config), 0);
    ck_assert_int_eq(api.set(plan, PLAN_PROPERTIES, DNN_KIND_DESCRIPTOR, 1, &properties), 0);
    const int status = api.finalize(plan);
    ck_assert_msg(status == 0, "%s", api.error_string(status));
    ck_assert_int_eq(api.get(plan, DNN_PLAN_WORKSPACE, DNN_KIND_INT64, 1, &n, &workspace), 0);
    ck_assert_int_eq(workspace, p->workspace[i]);
    snprintf(p->kernels[i], sizeof p->kernels[i], "%s", stand_in_kernel());
    api.destroy_descriptor(plan);
}

/* What a configuration says of itself. */
static void look(struct proposals *p, unsigned i, void *config)
{
    int64_t n = 0;
    int notes[DNN_NOTES];
    void *engine = NULL;

    ck_assert_int_eq(api.get(config, DNN_CONFIG_WORKSPACE, DNN_KIND_INT64, 1, &n, &p->workspace[i]), 0);
    ck_assert_int_eq(n, 1);
    ck_assert_int_eq(api.create_descriptor(DNN_ENGINE, &engine), 0);
    ck_assert_int_eq(api.get(config, DNN_CONFIG_ENGINE, DNN_KIND_DESCRIPTOR, 1, &n, &engine), 0);
    ck_assert_int_eq(api.get(engine, DNN_ENGINE_INDEX, DNN_KIND_INT64, 1, &n, &p->engines[i]), 0);
    ck_assert_int_eq(api.get(engine, DNN_ENGINE_NOTES, DNN_KIND_NOTE, DNN_NOTES, &n, notes), 0);
    for (int64_t k = 0; k < n; k++)
        ck_assert_int_ne(notes[k], DNN_NOTE_NONDETERMINISTIC);
    api.destroy_descriptor(engine);
}

/* compiles: the first of the device's own, which takes a second; the others are the same engine's. */
static struct proposals propose(const struct properties *device, const struct dnn_shape *s, bool compiles)
{
    void *properties = properties_of(device), *configs[DNN_MAX_CONFIGS];
    struct dnn_graph graph;
    struct proposals p = {0};

    ck_assert_msg(dnn_graph_attention(&graph, &api, NULL, s), "%s", api.error_string(graph.status));
    p.n = dnn_graph_configs(&graph, properties, configs);
    ck_assert_msg(graph.status == 0, "%s", api.error_string(graph.status));
    for (unsigned i = 0; i < p.n; i++) {
        look(&p, i, configs[i]);
        if (compiles && p.engines[i] == device->engine) {
            compile(&p, i, configs[i], properties);
            compiles = false;
        }
    }
    dnn_graph_free(&graph);
    api.destroy_descriptor(properties);
    return p;
}

static bool has_libraries(void)
{
    const char *why;

    if (!dnn_api_load(&api, &why)) {
        fprintf(stderr, "%s\n", why);
        return false;
    }
    if (api.version() < 91100) {
        fprintf(stderr, "cuDNN %zu plans for no device that is not there\n", api.version());
        return false;
    }
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    *(void **)&stand_in_kernel = driver ? dlsym(driver, "stand_in_kernel") : NULL;
    if (!stand_in_kernel)
        fprintf(stderr, "libcuda.so.1 is not the tests' own driver\n");
    return stand_in_kernel != NULL;
}

SUITE_SKIP_UNLESS(has_libraries(), "no cuDNN or no driver to plan with")

/* Only such are proposed, the device's own engine among them; and they are the same when they are asked for again. */
TEST_EACH(a_deterministic_plan_that_fits_is_proposed_for_every_device, N_DEVICES *N_SHAPES)
{
    const struct dnn_shape *s = &shapes[_i % N_SHAPES];
    const struct properties *device = &devices[_i / N_SHAPES];
    const bool is_chosen = s == shapes || s->n_tokens % 128 != 0; /* rows of whole tiles, and others */
    const bool compiles = is_chosen && !is_compiled_before(device);
    const struct proposals p = propose(device, s, compiles), again = propose(device, s, false);
    const int64_t most = (int64_t)plan_cuda_attention_scratch(1, s->n_tokens, s->n_heads);
    bool fits = false;

    ck_assert_uint_ge(p.n, 1);
    for (unsigned i = 0; i < p.n; i++) {
        ck_assert_msg(!*p.kernels[i] || strstr(p.kernels[i], device->kernel), "%s: kernel %s", device->name,
                      p.kernels[i]);
        fits |= p.engines[i] == device->engine && p.workspace[i] <= most;
    }
    ck_assert_msg(fits, "%s: engine %d is not among %u proposals, first %d with %d bytes of workspace", device->name,
                  (int)device->engine, p.n, (int)p.engines[0], (int)p.workspace[0]);
    ck_assert_int_le(p.workspace[0], most); /* the first is what is taken */
    ck_assert_uint_eq(p.n, again.n);
    ck_assert_mem_eq(p.engines, again.engines, sizeof p.engines);
    ck_assert_mem_eq(p.workspace, again.workspace, sizeof p.workspace);
}

/* Backward's layout of scratch, as the planner makes it, for a device and this version. */
static struct plan_attention_scratch scratch_of(const struct properties *device, const struct dnn_shape *s)
{
    struct plan_attention_scratch scratch;

    plan_attention_lay_out(&scratch, dnn_backward_way(api.version(), device->version / 10),
                           &(struct plan_attention_sizes){.n_rows = s->n_rows,
                                                          .n_tokens = s->n_tokens,
                                                          .n_heads = s->n_heads,
                                                          .n_kv_heads = s->n_heads / s->n_sharing,
                                                          .width = s->n_heads * s->head_width,
                                                          .is_sliding = s->window > 0});
    return scratch;
}

/* True if a kernel for both shapes differs neither in its heads nor in its mask, nor in whether its rows are whole
 * tiles. */
static bool have_one_kernel(const struct dnn_shape *a, const struct dnn_shape *b)
{
    return a->head_width == b->head_width && (a->n_sharing > 1) == (b->n_sharing > 1) && a->full == b->full &&
           a->has_lengths == b->has_lengths && (a->window > 0) == (b->window > 0) &&
           (a->n_tokens % 128 == 0) == (b->n_tokens % 128 == 0);
}

/* True if no earlier device and shape has this one's kernel. */
static bool is_to_be_compiled(const struct properties *device, const struct dnn_shape *s, enum plan_attention way)
{
    bool is_first = !is_compiled_before(device);

    for (const struct dnn_shape *other = shapes; other < s; other++)
        is_first &= scratch_of(device, other).way != way || !have_one_kernel(other, s);
    return is_first;
}

/* The first of what is proposed is what is taken: it compiles to the device's own kernel, and wants no more than the
 * plan has for it; where its order is kept by turns, some of that is for these. compiles: else another one with its
 * kernel was compiled. */
static void check_backward(const struct properties *device, const struct dnn_shape *slice,
                           const struct plan_attention_scratch *scratch, bool compiles)
{
    void *properties = properties_of(device), *configs[DNN_MAX_CONFIGS];
    struct proposals p = {0};
    struct dnn_graph graph;

    ck_assert_msg(dnn_graph_attention_backward(&graph, &api, NULL, slice, scratch->way), "%s",
                  api.error_string(graph.status));
    p.n = dnn_graph_backward_configs(&graph, scratch->way, properties, configs);
    ck_assert_msg(p.n > 0 && graph.status == 0, "%s: %s", device->name, api.error_string(graph.status));
    look(&p, 0, configs[0]);
    if (compiles) {
        compile(&p, 0, configs[0], properties);
        ck_assert_msg(strstr(p.kernels[0], device->backward), "%s: kernel %s", device->name, p.kernels[0]);
        if (scratch->way == PLAN_ATTENTION_TWICE)
            ck_assert_msg(strstr(p.kernels[0], "_kernel1_"), "%s: one kernel alone: %s", device->name, p.kernels[0]);
    }
    ck_assert_uint_le((uint64_t)p.workspace[0], scratch->workspace_bytes);
    if (scratch->way == PLAN_ATTENTION_ORDERED)
        ck_assert_int_gt(p.workspace[0], 256);
    if (scratch->way == PLAN_ATTENTION_SCORES) /* none of them may add up in memory */
        ck_assert_uint_ge((uint64_t)p.workspace[0],
                          2 * (uint64_t)slice->n_tokens * slice->n_tokens * slice->n_heads * slice->n_rows);
    dnn_graph_free(&graph);
    api.destroy_descriptor(properties);
}

TEST_EACH(backward_of_fixed_bits_fits_the_plan_on_every_device, N_DEVICES *N_SHAPES)
{
    const struct dnn_shape *s = &shapes[_i % N_SHAPES];
    const struct properties *device = &devices[_i / N_SHAPES];
    const struct plan_attention_scratch scratch = scratch_of(device, s);
    struct dnn_shape slice = *s;

    slice.n_rows = scratch.slice_rows, slice.n_heads = scratch.slice_heads;

    if (scratch.way == PLAN_ATTENTION_OWN)
        TEST_SKIP("cuDNN does not take this shape");
    check_backward(device, &slice, &scratch, is_to_be_compiled(device, s, scratch.way));
    if (slice.n_rows == 1)
        return;
    slice.n_rows = 1; /* the rows that are left over */
    check_backward(device, &slice, &scratch, false);
}

/* What of the above is not ours: of this version, all that the planner believes in. */
TEST(the_planner_believes_in_backward_for_what_was_compiled)
{
    const size_t version = api.version();

    for (size_t d = 0; d < N_DEVICES; d++)
        for (size_t i = 0; i < N_SHAPES; i++) {
            const bool is_whole = shapes[i].n_tokens % 128 == 0, is_wide = shapes[i].head_width > 128,
                       is_slower = shapes[i].n_sharing > 1 || shapes[i].head_width == 64 || shapes[i].n_tokens == 8192;
            const enum plan_attention way = scratch_of(&devices[d], &shapes[i]).way;
            const bool has = devices[d].version == 1000 ? version >= 91801 && !is_wide
                                                        : (is_whole && !is_slower && !is_wide) ||
                                                              (devices[d].version == 900 && version >= 92500);
            ck_assert_msg((way != PLAN_ATTENTION_OWN) == has, "%s, shape %zu: way %d", devices[d].name, i, (int)way);
        }
}

/* ---- convolutions ----
 *
 * All that WRN-28-2 has at 32 x 32, ResNet-18 and ResNet-50 at 224 x 224: size of x, channels in and out, window,
 * stride. */

static const struct conv {
    uint32_t size, n_in, n_out, window, stride;
} convs[] = {
    {32, 3, 16, 3, 1},    {32, 16, 32, 3, 1},    {32, 16, 32, 1, 1},     {32, 32, 32, 3, 1},    {32, 32, 64, 3, 2},
    {32, 32, 64, 1, 2},   {16, 64, 64, 3, 1},    {16, 64, 128, 3, 2},    {16, 64, 128, 1, 2},   {8, 128, 128, 3, 1},
    {224, 3, 64, 7, 2},   {56, 64, 64, 3, 1},    {56, 64, 128, 3, 2},    {56, 64, 128, 1, 2},   {28, 128, 128, 3, 1},
    {28, 128, 256, 3, 2}, {28, 128, 256, 1, 2},  {14, 256, 256, 3, 1},   {14, 256, 512, 3, 2},  {14, 256, 512, 1, 2},
    {7, 512, 512, 3, 1},  {56, 64, 64, 1, 1},    {56, 64, 256, 1, 1},    {56, 256, 64, 1, 1},   {56, 256, 128, 1, 1},
    {56, 128, 128, 3, 2}, {28, 128, 512, 1, 1},  {56, 256, 512, 1, 2},   {28, 512, 128, 1, 1},  {28, 512, 256, 1, 1},
    {28, 256, 256, 3, 2}, {14, 256, 1024, 1, 1}, {28, 512, 1024, 1, 2},  {14, 1024, 256, 1, 1}, {14, 1024, 512, 1, 1},
    {14, 512, 512, 3, 2}, {7, 512, 2048, 1, 1},  {14, 1024, 2048, 1, 2}, {7, 2048, 512, 1, 1},
};
enum { N_CONVS = sizeof convs / sizeof *convs };

/* Forward, the gradient of x, the same added to what is there, and that of weights. */
enum { N_WAYS = 4 };

static struct device_conv2d conv_of(const struct conv *c)
{
    return (struct device_conv2d){.n_rows = CONV2D_BLOCK,
                                  .height = c->size,
                                  .width = c->size,
                                  .n_in = c->n_in,
                                  .n_out = c->n_out,
                                  .n_groups = 1,
                                  .window = {c->window, c->window, c->stride, c->window / 2}};
}

static enum conv2d_kind kind_of(int way)
{
    return way == 0 ? CONV2D_FORWARD : way == 3 ? CONV2D_WEIGHTS : CONV2D_INPUT;
}

static bool is_divided(const struct dnn_choice *choices, int n)
{
    for (int i = 0; i < n; i++)
        if (((choices[i].knob == DNN_KNOB_SPLIT_K || choices[i].knob == DNN_KNOB_SPLITS ||
              choices[i].knob == DNN_KNOB_SPLIT_PIXELS) &&
             choices[i].value > 1) ||
            (choices[i].knob == DNN_KNOB_STREAM_K && choices[i].value != 0))
            return true;
    return false;
}

/* Bytes of the workspace that are left beside a copy of what the result is added to (conv.c). */
static int64_t room_of(const struct device_conv2d *op, enum conv2d_kind kind, bool adds)
{
    const size_t weights = op->n_out * device_conv2d_taps(op) * sizeof(float),
                 x = op->n_rows * op->height * op->width * op->n_in * sizeof(uint16_t);

    return (int64_t)PLAN_CUDA_WORKSPACE_BYTES - (int64_t)(kind == CONV2D_WEIGHTS ? weights : adds ? x : 0) - 256;
}

/* Whether one image has the same engine with the same knobs, and what workspace it has then. */
static bool has_alike(const struct device_conv2d *op, enum conv2d_kind kind, bool adds, void *config, void *properties)
{
    struct dnn_choice choices[DNN_MAX_KNOBS];
    struct dnn_graph graph;
    int64_t engine = 0, got = 0, workspace = -1;
    const int n = dnn_config_choices(&api, config, &engine, choices);

    if (n < 0 || is_divided(choices, n))
        return false;
    ck_assert(dnn_graph_conv(&graph, &api, NULL, op, 1, kind, adds));
    void *const alike = dnn_graph_config(&graph, engine, properties, choices, (unsigned)n);
    if (alike)
        ck_assert_int_eq(api.get(alike, DNN_CONFIG_WORKSPACE, DNN_KIND_INT64, 1, &got, &workspace), 0);
    dnn_graph_free(&graph);
    return alike && workspace <= room_of(op, kind, adds);
}

static void check_conv(const struct properties *device, const struct conv *c, int way, void *properties)
{
    const enum conv2d_kind kind = kind_of(way);
    struct device_conv2d op = conv_of(c);
    void *configs[DNN_MAX_CONFIGS];
    int64_t least = INT64_MAX;
    struct dnn_graph graph;

    ck_assert_msg(dnn_graph_conv(&graph, &api, NULL, &op, CONV2D_BLOCK, kind, way == 2), "%s",
                  api.error_string(graph.status));
    const unsigned n = dnn_graph_configs(&graph, properties, configs);
    ck_assert_int_eq(graph.status, 0);
    for (unsigned i = 0; i < n; i++) {
        struct proposals p = {0};
        look(&p, 0, configs[i]);
        if (p.workspace[0] < least &&
            (kind == CONV2D_WEIGHTS || has_alike(&op, kind, way == 2, configs[i], properties)))
            least = p.workspace[0];
    }
    op.accumulate = way == 2;
    if (!conv2d_suits_library(NUMBER_BF16, &op, kind))
        ck_assert_uint_le(n, api.version() >= 92600); /* from then on it proposes some, which are not used */
    else
        ck_assert_msg(least <= room_of(&op, kind, way == 2),
                      "%s: %u x %u, %u to %u, window %u, way %d: of %u none fits", device->name, c->size, c->size,
                      c->n_in, c->n_out, c->window, way, n);
    dnn_graph_free(&graph);
}

/* Each convolution has a proposal that fits the workspace that products have, and, but for the gradient of weights, has
 * whole sums and is there for one image as for a block; nothing is proposed for what does not suit. Each is planned for
 * one of the devices, in turn. */
TEST_EACH(convolutions_are_proposed_for_a_device, N_DEVICES *N_WAYS)
{
    const struct properties *device = &devices[_i / N_WAYS];
    void *properties = properties_of(device);

    for (int i = _i / N_WAYS; i < N_CONVS; i += N_DEVICES)
        check_conv(device, &convs[i], _i % N_WAYS, properties);
    api.destroy_descriptor(properties);
}

/* The first of what is proposed compiles, of a block in the middle of ResNet-50. */
TEST_EACH(convolutions_compile_for_every_kind_of_device, N_DEVICES *N_WAYS)
{
    const struct properties *device = &devices[_i / N_WAYS];
    if (is_compiled_before(device))
        TEST_SKIP("a device like the one before");
    const int way = _i % N_WAYS;
    const enum conv2d_kind kind = kind_of(way);
    const struct device_conv2d op = conv_of(&(struct conv){14, 256, 256, 3, 1});
    void *properties = properties_of(device), *configs[DNN_MAX_CONFIGS];
    struct proposals p = {0};
    struct dnn_graph graph;

    ck_assert(dnn_graph_conv(&graph, &api, NULL, &op, CONV2D_BLOCK, kind, way == 2));
    ck_assert_uint_gt(dnn_graph_configs(&graph, properties, configs), 0);
    look(&p, 0, configs[0]);
    compile(&p, 0, configs[0], properties);
    dnn_graph_free(&graph);
    api.destroy_descriptor(properties);
}
