/* Attention forward through cuDNN, where it is found and its plan gives the same bits every time. Backward it either sums
 * up in whatever order blocks come, or keeps a matrix of scores: that is for our own kernel. So is dropout, whose bits
 * must be ours. */
#include "device/cuda/dnn.h"

#include "plan/backend.h"

#include <dlfcn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_PLANS = 8 };

/* One shape's plan; the table is searched from its start, and a new shape takes the place of the oldest. */
struct plan {
    struct dnn_shape shape; /* n_rows 0: none */
    struct dnn_graph graph;
    void *plan; /* NULL: the library has none for this shape */
    int64_t workspace_bytes;
};

struct cuda_dnn {
    struct dnn_api api;
    void *handle;
    struct plan plans[N_PLANS];
    unsigned next; /* to be replaced */
};

static void *open_library(void)
{
#ifdef CUDASIM /* a simulated device is none of the library's */
    return NULL;
#endif
    static const char file[] = "libcudnn_graph.so.9";
    static const char *const places[] = {"", "/usr/local/cuda/lib64/"};
    const char *directory = getenv("EPS_CUDNN");
    char path[4096];

    if (directory) {
        snprintf(path, sizeof path, "%s/%s", directory, file);
        return *directory ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
    }
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(path, sizeof path, "%s%s", places[i], file);
        void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (library)
            return library;
    }
    return NULL;
}

bool dnn_api_load(struct dnn_api *api, const char **why)
{
    const struct {
        const char *name;
        void *function; /* where its address goes */
    } names[] = {
        {"cudnnGetVersion", &api->version},
        {"cudnnGetErrorString", &api->error_string},
        {"cudnnCreate", &api->create},
        {"cudnnDestroy", &api->destroy},
        {"cudnnSetStream", &api->set_stream},
        {"cudnnBackendCreateDescriptor", &api->create_descriptor},
        {"cudnnBackendDestroyDescriptor", &api->destroy_descriptor},
        {"cudnnBackendSetAttribute", &api->set},
        {"cudnnBackendGetAttribute", &api->get},
        {"cudnnBackendFinalize", &api->finalize},
        {"cudnnBackendExecute", &api->execute},
    };

    *api = (struct dnn_api){.library = open_library()};
    if (!api->library) {
        *why = getenv("EPS_CUDNN") ? "EPS_CUDNN has no libcudnn_graph.so.9 that loads"
                                   : "no libcudnn_graph.so.9 was found; EPS_CUDNN=DIR says where it is";
        return false;
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        void *function = dlsym(api->library, names[i].name);
        if (!function) {
            *why = "libcudnn_graph.so.9 lacks a function of cuDNN 9";
            dnn_api_unload(api);
            return false;
        }
        memcpy(names[i].function, &function, sizeof function);
    }
    return true;
}

void dnn_api_unload(struct dnn_api *api)
{
    if (api->library)
        dlclose(api->library);
    *api = (struct dnn_api){0};
}

void cuda_dnn_open(struct device *dev)
{
    struct cuda_dnn *dnn = calloc(1, sizeof *dnn);
    const char *why;

    if (!dnn || !dnn_api_load(&dnn->api, &why)) {
        free(dnn);
        return;
    }
    dev->dnn = dnn;
    if (dnn->api.create(&dnn->handle) != 0 || dnn->api.set_stream(dnn->handle, dev->queue.stream) != 0)
        cuda_dnn_close(dev);
}

static void free_plan(const struct dnn_api *api, struct plan *p)
{
    if (p->plan)
        api->destroy_descriptor(p->plan);
    dnn_graph_free(&p->graph);
    *p = (struct plan){.plan = NULL};
}

void cuda_dnn_close(struct device *dev)
{
    if (!dev->dnn)
        return;
    for (unsigned i = 0; i < N_PLANS; i++)
        if (dev->dnn->plans[i].shape.n_rows)
            free_plan(&dev->dnn->api, &dev->dnn->plans[i]);
    if (dev->dnn->handle)
        dev->dnn->api.destroy(dev->dnn->handle);
    /* the library stays: what it has registered with the driver would outlive it */
    free(dev->dnn);
    dev->dnn = NULL;
}

/* A plan of this configuration that fits; NULL otherwise. */
static void *make_plan(const struct cuda_dnn *dnn, void *config, int64_t most_bytes, int64_t *workspace_bytes)
{
    const struct dnn_api *api = &dnn->api;
    int64_t n = 0;
    void *plan = NULL;
    int status = api->create_descriptor(DNN_PLAN, &plan);

    if (status)
        return NULL;
    status = api->set(plan, DNN_PLAN_HANDLE, DNN_KIND_HANDLE, 1, &dnn->handle);
    if (!status)
        status = api->set(plan, DNN_PLAN_CONFIG, DNN_KIND_DESCRIPTOR, 1, &config);
    if (!status)
        status = api->finalize(plan);
    if (!status)
        status = api->get(plan, DNN_PLAN_WORKSPACE, DNN_KIND_INT64, 1, &n, workspace_bytes);
    if (!status && *workspace_bytes <= most_bytes)
        return plan;
    api->destroy_descriptor(plan);
    return NULL;
}

static struct plan *find_plan(struct cuda_dnn *dnn, const struct dnn_shape *shape, int64_t most_bytes)
{
    void *configs[DNN_MAX_CONFIGS];

    for (unsigned i = 0; i < N_PLANS; i++)
        if (memcmp(&dnn->plans[i].shape, shape, sizeof *shape) == 0)
            return &dnn->plans[i];
    struct plan *p = &dnn->plans[dnn->next];
    dnn->next = (dnn->next + 1) % N_PLANS;
    free_plan(&dnn->api, p);
    const unsigned n =
        dnn_graph_attention(&p->graph, &dnn->api, dnn->handle, shape) ? dnn_graph_configs(&p->graph, NULL, configs) : 0;
    for (unsigned i = 0; i < n && !p->plan; i++)
        p->plan = make_plan(dnn, configs[i], most_bytes, &p->workspace_bytes);
    p->shape = *shape;
    return p;
}

static bool is_aligned(const void *address)
{
    return (uintptr_t)address % 16 == 0;
}

static int execute(struct cuda_dnn *dnn, const struct plan *p, const struct device_attention *op)
{
    static const int64_t ids[] = {DNN_Q, DNN_K, DNN_V, DNN_OUT, DNN_LOG_SUM_EXP, DNN_SCALE, DNN_MASKED};
    static const float masked = -INFINITY;
    float scale = op->scale;
    const size_t third = op->width * sizeof(uint16_t);
    const char *q = op->qkv;
    const void *pointers[] = {q, q + third, q + 2 * third, op->out, op->log_sum_exp, &scale, &masked};
    const int64_t n = sizeof ids / sizeof *ids;
    const struct dnn_api *api = &dnn->api;
    void *pack = NULL;

    int status = api->create_descriptor(DNN_VARIANT_PACK, &pack);
    if (status)
        return status;
    status = api->set(pack, DNN_PACK_IDS, DNN_KIND_INT64, n, ids);
    if (!status)
        status = api->set(pack, DNN_PACK_POINTERS, DNN_KIND_POINTER, n, pointers);
    if (!status)
        status = api->set(pack, DNN_PACK_WORKSPACE, DNN_KIND_POINTER, 1, &op->scratch);
    if (!status)
        status = api->finalize(pack);
    if (!status)
        status = api->execute(dnn->handle, p->plan, pack);
    api->destroy_descriptor(pack);
    return status;
}

bool cuda_dnn_attention(struct device *dev, const struct device_attention *op)
{
    const struct dnn_shape shape = {op->n_rows, op->n_tokens, op->n_heads, op->width};
    const size_t head_width = op->width / op->n_heads;

    if (!dev->dnn || dev->type != NUMBER_BF16 || op->dropout.p > 0 || head_width % 8 != 0 || head_width > 128 ||
        !is_aligned(op->qkv) || !is_aligned(op->out) || !is_aligned(op->scratch) || op->width % 8 != 0)
        return false;
    const struct plan *p =
        find_plan(dev->dnn, &shape, (int64_t)plan_cuda_attention_scratch(op->n_rows, op->n_tokens, op->n_heads));
    return p->plan && execute(dev->dnn, p, op) == 0;
}
