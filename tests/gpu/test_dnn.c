/* What cuDNN says to our graph of attention, of devices that need not be there: it plans for their properties alone, if it
 * finds some driver to load, which the toolkit's stub is. */
#include "device/cuda/dnn.h"
#include "tests/run.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

/* As the library writes them of a device; what matters is its kind and its multiprocessors. */
static const struct properties {
    const char *name;
    int version, n_processors, shared_bytes;
} devices[] = {{"NVIDIA A100", 800, 108, 166912},
               {"NVIDIA H200", 900, 132, 232448},
               {"NVIDIA B200", 1000, 148, 232448}};
enum { N_DEVICES = sizeof devices / sizeof *devices };

static const struct dnn_shape shapes[] = {{2, 1024, 12, 768}, {1, 8192, 32, 4096}, {3, 77, 4, 128}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static struct dnn_api api;

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
        "\"l2CacheSize\":41943040,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
        "\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,\"pciDeviceId\":0,\"maxCtasPerSM\":32,"
        "\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,\"supportCoopLaunch\":1}",
        device->name, device->version, device->n_processors, device->shared_bytes);
    ck_assert_int_eq(api.create_descriptor(DNN_DEVICE_PROPERTIES, &d), 0);
    ck_assert_int_eq(api.set(d, DNN_PROPERTIES_JSON, DNN_KIND_CHAR, n, json), 0);
    ck_assert_int_eq(api.finalize(d), 0);
    return d;
}

START_TEST(a_deterministic_plan_is_proposed_for_every_device)
{
    const struct dnn_shape *s = &shapes[_i % N_SHAPES];
    void *properties = properties_of(&devices[_i / N_SHAPES]), *configs[DNN_MAX_CONFIGS];
    struct dnn_graph graph;

    ck_assert_msg(dnn_graph_attention(&graph, &api, NULL, s), "%s", api.error_string(graph.status));
    const unsigned n = dnn_graph_configs(&graph, properties, configs);
    ck_assert_msg(graph.status == 0, "%s", api.error_string(graph.status));
    ck_assert_uint_ge(n, 1);
    dnn_graph_free(&graph);
    api.destroy_descriptor(properties);
}
END_TEST

int main(void)
{
    TCase *tests = tcase_create("dnn");
    const char *why;

    if (!dnn_api_load(&api, &why)) {
        fprintf(stderr, "test_dnn: skipped: %s\n", why);
        return 77;
    }
    if (api.version() < 91100) {
        fprintf(stderr, "test_dnn: skipped: cuDNN %zu plans for no device that is not there\n", api.version());
        return 77;
    }
    tcase_add_loop_test(tests, a_deterministic_plan_is_proposed_for_every_device, 0, N_DEVICES * N_SHAPES);
    return run_tests(tests);
}
