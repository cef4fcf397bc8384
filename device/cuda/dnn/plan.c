/* A plan that is missing or too large is no failure: the caller then uses our own kernels. That choice is made before
 * anything runs. Once the library has begun, its output may be half written, so a failure is the device's: dnn_note
 * marks it, and the next sync reports it. */
#include "device/cuda/dnn/plan.h"

#include <stdio.h>

void *dnn_plan_make(const struct cuda_dnn *dnn, void *config, int64_t most_bytes)
{
    const struct dnn_api *api = &dnn->api;
    int64_t n = 0, bytes = 0;
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
        status = api->get(plan, DNN_PLAN_WORKSPACE, DNN_KIND_INT64, 1, &n, &bytes);
    if (!status && bytes <= most_bytes)
        return plan;
    api->destroy_descriptor(plan);
    return NULL;
}

int dnn_plan_execute(const struct cuda_dnn *dnn, void *plan, const struct dnn_pack *given, const void *workspace)
{
    const struct dnn_api *api = &dnn->api;
    void *pack = NULL;

    int status = api->create_descriptor(DNN_VARIANT_PACK, &pack);
    if (status)
        return status;
    status = api->set(pack, DNN_PACK_IDS, DNN_KIND_INT64, given->n, given->ids);
    if (!status)
        status = api->set(pack, DNN_PACK_POINTERS, DNN_KIND_POINTER, given->n, given->pointers);
    if (!status)
        status = api->set(pack, DNN_PACK_WORKSPACE, DNN_KIND_POINTER, 1, &workspace);
    if (!status)
        status = api->finalize(pack);
    if (!status)
        status = api->execute(dnn->handle, plan, pack);
    api->destroy_descriptor(pack);
    return status;
}

bool dnn_note(struct device *dev, int status, const char *what)
{
    if (status && dev->failed == cudaSuccess)
        snprintf(dev->failed_at, sizeof dev->failed_at, "cuda:%u, %s through cuDNN (%s)", dev->index, what,
                 dev->dnn->api.error_string(status));
    cuda_note(dev, status ? cudaErrorUnknown : cudaSuccess);
    return true;
}
