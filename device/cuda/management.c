/* device/cuda/management.c - what a device has free, asked without a context: CUDA tells only who has one already.
 *
 * NVIDIA's management library comes with the driver and is loaded for this one question. */
#include "device/cuda/cuda.h"

#include <dlfcn.h>

struct nvml_memory {
    unsigned long long total, available, used;
};

struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    int (*find)(const char *bus, void **device);
    int (*memory)(void *device, struct nvml_memory *out);
};

static void *look_up(void *library, const char *name)
{
    return library ? dlsym(library, name) : NULL;
}

/* POSIX has dlsym's result be a function's address too; C has no cast for it. */
#define LOOK_UP(member, library, name) *(void **)&(member) = look_up(library, name)

uint64_t cuda_management_available(unsigned index)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL), *device = NULL;
    struct nvml_memory memory = {0};
    struct nvml nvml;
    char bus[32] = "";

    LOOK_UP(nvml.init, library, "nvmlInit_v2");
    LOOK_UP(nvml.shutdown, library, "nvmlShutdown");
    LOOK_UP(nvml.find, library, "nvmlDeviceGetHandleByPciBusId_v2");
    LOOK_UP(nvml.memory, library, "nvmlDeviceGetMemoryInfo");
    if (nvml.init && nvml.shutdown && nvml.find && nvml.memory && nvml.init() == 0) {
        if (cudaDeviceGetPCIBusId(bus, sizeof bus, (int)index) != cudaSuccess || nvml.find(bus, &device) != 0 ||
            nvml.memory(device, &memory) != 0)
            memory.available = 0;
        nvml.shutdown();
    }
    if (library)
        dlclose(library);
    return memory.available;
}
