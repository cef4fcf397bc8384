/* tests/sim/dnn.cpp - cuDNN, where a test says that it is there: descriptors of its backend interface, and the proposals and
 * engines that it has by its version and the device, or as the test wants them.
 *
 * device/cuda/dnn/load.c is compiled to find it here (CMakeLists.txt). What a plan computes is what its graph says, operation
 * by operation (dnn_graph.cpp); that the library itself takes such graphs is tests/gpu/test_dnn.c's to show. */
#include "tests/sim/dnn.hpp"

extern "C" {
void *cudasim_dlopen(const char *path, int mode);
void *cudasim_dlmopen(long space, const char *path, int mode);
int cudasim_dlinfo(void *library, int request, void *out);
void *cudasim_dlsym(void *library, const char *name);
int cudasim_dlclose(void *library);
}

#include <math.h>
#include <string.h>

enum { CONV_ENGINE = 62 /* of convolutions, whatever they are */ };
enum status { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };

struct dnn_handle {
    cudaStream_t stream;
};

static struct dnn_state {
    struct cudasim_dnn as_asked;
    unsigned n_handles, n_descriptors;
} &state = *new dnn_state(); /* never destroyed: the end of the program looks into it */

void cudasim_have_dnn(const struct cudasim_dnn *dnn)
{
    cudasim_call call(NULL);

    state.as_asked = *dnn;
}

void cudasim_dnn_left(void)
{
    if (state.n_handles || state.n_descriptors)
        cudasim_fault("%u handles and %u descriptors of cuDNN are left at the end", state.n_handles,
                      state.n_descriptors);
}

/* ---- descriptors ---- */

static size_t kind_bytes(int kind)
{
    switch (kind) {
    case DNN_KIND_HANDLE:
    case DNN_KIND_INT64:
    case DNN_KIND_POINTER:
    case DNN_KIND_DESCRIPTOR:
        return 8;
    case DNN_KIND_BOOLEAN:
    case DNN_KIND_CHAR:
        return 1;
    }
    return 4;
}

static size_t get_cuda_version()
{
    return CUDART_VERSION;
}

static size_t get_version()
{
    return state.as_asked.version;
}

static const char *error_string(int status)
{
    return status == SUCCESS ? "success" : status == NOT_SUPPORTED ? "not supported" : "failed";
}

static int create_handle(void **out)
{
    *out = new dnn_handle();
    state.n_handles++;
    return SUCCESS;
}

static int destroy_handle(void *handle)
{
    delete (dnn_handle *)handle;
    state.n_handles--;
    return SUCCESS;
}

static int set_stream(void *handle, cudaStream_t stream)
{
    ((dnn_handle *)handle)->stream = stream;
    return SUCCESS;
}

static int create_descriptor(int kind, void **out)
{
    *out = new descriptor{kind, false, {}, 0, NULL, 0, 0};
    state.n_descriptors++;
    return SUCCESS;
}

static int destroy_descriptor(void *d)
{
    delete (descriptor *)d;
    state.n_descriptors--;
    return SUCCESS;
}

static int set_attribute(void *opaque, int name, int kind, int64_t n, const void *elements)
{
    descriptor *d = (descriptor *)opaque;

    if (d->finalized)
        cudasim_fault("cuDNN: attribute %d of a descriptor that is finalized", name);
    if (kind == DNN_KIND_DESCRIPTOR)
        for (int64_t i = 0; i < n; i++)
            if (!((descriptor *const *)elements)[i]->finalized)
                return BAD_PARAM;
    const char *bytes = (const char *)elements;
    d->attributes[name] = {kind, n, {bytes, bytes + (size_t)n * kind_bytes(kind)}};
    return SUCCESS;
}

/* ---- proposals and engines ---- */

static bool has_sum(const descriptor *graph)
{
    return dnn_find_array(graph, DNN_Q_SUM) != NULL;
}

static bool is_backward(const descriptor *graph)
{
    return !dnn_find_conv(graph) && dnn_find_array(graph, DNN_OUT_GRADIENT) != NULL;
}

static int capability()
{
    int major = 0, minor = 0;

    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    return 10 * major + minor;
}

static int64_t knob_of(const descriptor *config, int knob)
{
    const auto knobs = config->attributes.find(DNN_CONFIG_KNOBS);

    for (int64_t i = 0; knobs != config->attributes.end() && i < knobs->second.n; i++) {
        const descriptor *choice = element<descriptor *>(config, DNN_CONFIG_KNOBS, i);
        if (element<int>(choice, DNN_KNOB) == knob)
            return element<int64_t>(choice, DNN_KNOB_VALUE);
    }
    return -1;
}

/* Engines by number, which keep an order: 6 of Hopper, which adds up queries' gradient in turn, and 5 of Blackwell, which
 * computes it by itself. Their tiles' knobs came with 9.23. */
static bool has_engine(const descriptor *config)
{
    const descriptor *engine = element<descriptor *>(config, DNN_CONFIG_ENGINE);
    const int64_t index = element<int64_t>(engine, DNN_ENGINE_INDEX), stages = knob_of(config, DNN_KNOB_STAGES);
    const bool sums = has_sum(element<descriptor *>(engine, DNN_ENGINE_GRAPH)),
               has_tiles = state.as_asked.version >= 92300;

    if (dnn_find_conv(element<descriptor *>(engine, DNN_ENGINE_GRAPH)))
        return index == CONV_ENGINE && knob_of(config, DNN_KNOB_SPLITS) > 0;
    if (state.as_asked.no_backward || (knob_of(config, DNN_KNOB_TILE_M) >= 0) != has_tiles)
        return false;
    if (index == 6)
        return stages == 4 && sums && state.as_asked.version >= 92500 && capability() == 90;
    return index == 5 && stages == 2 && !sums && state.as_asked.version >= 91800 && capability() / 10 == 10;
}

/* Bytes that a plan wants; what the library says, by tests/gpu/test_dnn.c. */
static int64_t workspace_of(const descriptor *config)
{
    const int64_t asked = state.as_asked.proposals[config->proposal].workspace;
    const descriptor *k = config->splits ? NULL : dnn_find_array(config->graph, DNN_OUT_GRADIENT);
    int64_t shape[4];

    if (!k)
        return asked == CUDASIM_DNN_USUAL ? 256 : asked;
    for (int i = 0; i < 4; i++)
        shape[i] = element<int64_t>(k, DNN_TENSOR_SHAPE, i);
    const int64_t heads = shape[0] * shape[1], tokens = shape[2], numbers = 2 * heads * tokens * shape[3];
    const bool shares = element<int64_t>(dnn_find_array(config->graph, DNN_K), DNN_TENSOR_SHAPE, 1) < shape[1];
    if (config->engine == 6)
        return 256 + (heads * ((tokens + 31) / 32) * 4 + 127) / 128 * 128 + (shares ? 2 * numbers : 0);
    if (config->engine == 5)
        return shares ? 4 * numbers + 128 : 0;
    return asked == CUDASIM_DNN_USUAL ? heads * tokens * tokens * 2 + 256 + (shares ? 2 * numbers : 0) : asked;
}

static bool refuses(const descriptor *config)
{
    const cudasim_dnn_proposal &proposal = state.as_asked.proposals[config->proposal];
    const descriptor *op = dnn_find_conv(config->graph);

    if (!op || !proposal.refuses)
        return proposal.is_refused;
    return dnn_conv_images(op) == proposal.refuses;
}

static int finalize(void *opaque)
{
    descriptor *d = (descriptor *)opaque;

    if (d->kind == DNN_PLAN && refuses(element<descriptor *>(d, DNN_PLAN_CONFIG)))
        return NOT_SUPPORTED;
    if (d->kind == DNN_ENGINE_CONFIG) {
        if (!has_engine(d))
            return NOT_SUPPORTED;
        const descriptor *engine = element<descriptor *>(d, DNN_CONFIG_ENGINE);
        d->engine = element<int64_t>(engine, DNN_ENGINE_INDEX);
        d->graph = element<descriptor *>(engine, DNN_ENGINE_GRAPH);
        if (dnn_find_conv(d->graph)) {
            d->proposal = (unsigned)knob_of(d, DNN_KNOB_KERNEL);
            d->splits = knob_of(d, DNN_KNOB_SPLITS);
        }
    }
    d->finalized = true;
    return SUCCESS;
}

static int propose(const descriptor *heuristics, int64_t most, int64_t *n, descriptor **configs)
{
    descriptor *graph = element<descriptor *>(heuristics, DNN_HEURISTICS_GRAPH);

    cudasim_counted.dnn_searches++;
    *n = state.as_asked.n_proposals < most ? state.as_asked.n_proposals : most;
    if (is_backward(graph) && state.as_asked.no_backward)
        *n = 0;
    const bool is_conv = dnn_find_conv(graph) != NULL;
    if (is_conv)
        *n = !dnn_takes_conv(graph) ? 0 : 2 * *n < most ? 2 * *n : most;
    for (int64_t i = 0; i < *n; i++) {
        configs[i]->proposal = (unsigned)(is_conv ? i / 2 : i);
        configs[i]->splits = is_conv ? 2 - i % 2 : 0;
        configs[i]->graph = graph;
        configs[i]->finalized = true;
    }
    return SUCCESS;
}

/* As if they had been set. */
template <typename T> static void say(descriptor *d, int name, int kind, T value)
{
    const char *bytes = (const char *)&value;

    d->attributes[name] = {kind, 1, {bytes, bytes + sizeof value}};
}

static void say_knobs(const descriptor *config, int64_t *n, descriptor **choices)
{
    *n = 2;
    say(choices[0], DNN_KNOB, DNN_KIND_KNOB, (int)DNN_KNOB_KERNEL);
    say(choices[0], DNN_KNOB_VALUE, DNN_KIND_INT64, (int64_t)config->proposal);
    say(choices[1], DNN_KNOB, DNN_KIND_KNOB, (int)DNN_KNOB_SPLITS);
    say(choices[1], DNN_KNOB_VALUE, DNN_KIND_INT64, config->splits);
    choices[0]->finalized = choices[1]->finalized = true;
}

static int get_attribute(const void *opaque, int name, int kind, int64_t most, int64_t *n, void *elements)
{
    const descriptor *d = (const descriptor *)opaque;
    const struct cudasim_dnn_proposal *proposal = &state.as_asked.proposals[d->proposal];

    (void)kind;
    *n = 1;
    if (!d->finalized && d->kind != DNN_ENGINE)
        cudasim_fault("cuDNN: attribute %d is read of a descriptor that is not finalized", name);
    switch (name) {
    case DNN_HEURISTICS_RESULTS:
        return propose(d, most, n, (descriptor **)elements);
    case DNN_CONFIG_ENGINE:
        (*(descriptor **)elements)->proposal = d->proposal;
        return SUCCESS;
    case DNN_CONFIG_KNOBS:
        say_knobs(d, n, (descriptor **)elements);
        return SUCCESS;
    case DNN_KNOB:
        *(int *)elements = element<int>(d, DNN_KNOB);
        return SUCCESS;
    case DNN_KNOB_VALUE:
        *(int64_t *)elements = element<int64_t>(d, DNN_KNOB_VALUE);
        return SUCCESS;
    case DNN_ENGINE_INDEX:
        *(int64_t *)elements = CONV_ENGINE;
        return SUCCESS;
    case DNN_ENGINE_NOTES:
        *n = proposal->varies;
        if (proposal->varies)
            *(int *)elements = DNN_NOTE_NONDETERMINISTIC;
        return SUCCESS;
    case DNN_PLAN_WORKSPACE:
        *(int64_t *)elements = workspace_of(element<descriptor *>(d, DNN_PLAN_CONFIG));
        return SUCCESS;
    }
    return NOT_SUPPORTED;
}

static int execute(void *handle, void *opaque_plan, void *opaque_pack)
{
    cudasim_call call("cudnnBackendExecute");
    const descriptor *plan = (const descriptor *)opaque_plan, *pack = (const descriptor *)opaque_pack;
    const cudaStream_t stream = ((dnn_handle *)handle)->stream;

    if (call.rc != cudaSuccess || state.as_asked.fails)
        return EXECUTION_FAILED;
    if (!plan->finalized || !pack->finalized)
        return BAD_PARAM;
    const descriptor *config = element<descriptor *>(plan, DNN_PLAN_CONFIG);
    const size_t workspace_bytes = (size_t)workspace_of(config);
    char *workspace = element<char *>(pack, DNN_PACK_WORKSPACE);
    dnn_given given = dnn_take_given(config->graph, pack);
    given.workspace = workspace, given.workspace_bytes = workspace_bytes;
    const descriptor *graph = config->graph;
    const bool is_ordered = config->engine == 6;
    const int64_t splits = config->splits;
    if (!splits && state.as_asked.version < 91000 && isinf(given.scalars[DNN_MASKED]))
        cudasim_fault("cuDNN: before 9.10 a masked score is the least number, not minus infinity");
    cudasim_check_stream(stream, "cudnnBackendExecute");
    cudasim_counted.dnn_plans++;
    cudasim_counted.dnn_backwards += is_backward(graph);
    cudasim_counted.dnn_convolutions += splits > 0;
    cudasim_queue(stream, cudasim_kernel_duration(cudasim_launch{}), [=]() {
        if (workspace_bytes) {
            cudasim_check("cuDNN, workspace", workspace, workspace_bytes, true);
            memset(workspace, CUDASIM_POISON_BYTE, workspace_bytes);
        }
        dnn_compute(graph, given, is_ordered, splits);
    });
    return SUCCESS;
}

/* ---- the library ---- */

void *cudasim_dlopen(const char *path, int mode)
{
    const unsigned long version = cudasim_environment("CUDASIM_DNN");

    (void)mode;
    if (version && !state.as_asked.version)
        state.as_asked = cudasim_dnn{version, 1, {{false, false, 0, CUDASIM_DNN_USUAL}}, false, false};
    return state.as_asked.version && strstr(path, "libcudnn_graph.so.9") ? &state : NULL;
}

void *cudasim_dlmopen(long space, const char *path, int mode)
{
    (void)space;
    return cudasim_dlopen(path, mode);
}

/* It lies nowhere. */
int cudasim_dlinfo(void *library, int request, void *out)
{
    (void)library, (void)request, (void)out;
    return -1;
}

int cudasim_dlclose(void *library)
{
    (void)library;
    return 0;
}

void *cudasim_dlsym(void *library, const char *name)
{
    static const struct {
        const char *name;
        void *function;
    } functions[] = {
        {"cudnnGetVersion", (void *)get_version},
        {"cudnnGetCudartVersion", (void *)get_cuda_version},
        {"cudnnGetErrorString", (void *)error_string},
        {"cudnnCreate", (void *)create_handle},
        {"cudnnDestroy", (void *)destroy_handle},
        {"cudnnSetStream", (void *)set_stream},
        {"cudnnBackendCreateDescriptor", (void *)create_descriptor},
        {"cudnnBackendDestroyDescriptor", (void *)destroy_descriptor},
        {"cudnnBackendSetAttribute", (void *)set_attribute},
        {"cudnnBackendGetAttribute", (void *)get_attribute},
        {"cudnnBackendFinalize", (void *)finalize},
        {"cudnnBackendExecute", (void *)execute},
    };

    (void)library;
    for (const auto &f : functions)
        if (!strcmp(f.name, name))
            return f.function;
    return NULL;
}
