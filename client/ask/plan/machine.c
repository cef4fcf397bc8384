/* eps_machine. A worker knows its device best, but to ask it takes a process, the CUDA runtime and a context: half a
 * second and more. NVIDIA's management library comes with the driver, answers at once, and counts memory as
 * nvidia-smi does. It numbers devices by bus and knows nothing of CUDA_VISIBLE_DEVICES, so that is read here. */
#include "client/eps.h"

#include "proto/base/module.h"
#include "proto/base/process.h"
#include "proto/operation/backend.h"
#include "proto/plan/time/card.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OLDEST_MAJOR = 8, UUID_BYTES = 96 }; /* compute capability that the kernels need: device/cuda/probe.c */

struct machine_memory {
    unsigned long long total, available, used;
};

/* NVML, of version 2 of its interface. Functions return 0 if they could. */
struct machine_driver {
    void *library;
    int (*init)(void);
    int (*shutdown)(void);
    int (*count)(unsigned *n);
    int (*find)(unsigned index, void **device);
    int (*name)(void *device, char *name, unsigned bytes);
    int (*uuid)(void *device, char *uuid, unsigned bytes);
    int (*memory)(void *device, struct machine_memory *out);
    int (*capability)(void *device, int *major, int *minor);
};

static bool machine_open_driver(struct machine_driver *out)
{
    const struct {
        const char *name;
        void *to; /* a pointer to a function, as dlsym gives it: POSIX has no other cast */
    } functions[] = {
        {"nvmlInit_v2", &out->init},
        {"nvmlShutdown", &out->shutdown},
        {"nvmlDeviceGetCount_v2", &out->count},
        {"nvmlDeviceGetHandleByIndex_v2", &out->find},
        {"nvmlDeviceGetName", &out->name},
        {"nvmlDeviceGetUUID", &out->uuid},
        {"nvmlDeviceGetMemoryInfo", &out->memory},
        {"nvmlDeviceGetCudaComputeCapability", &out->capability},
    };

    *out = (struct machine_driver){.library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL)};
    bool found = out->library != NULL;
    for (size_t i = 0; found && i < sizeof functions / sizeof *functions; i++) {
        void *const function = dlsym(out->library, functions[i].name);
        memcpy(functions[i].to, &function, sizeof function);
        found = function != NULL;
    }
    if (found && out->init() == 0)
        return true;
    if (out->library)
        dlclose(out->library);
    return false;
}

/* Whether CUDA shows this device: a list of numbers and of beginnings of UUIDs, and of none from the first that is
 * neither. */
static bool machine_shows(unsigned index, const char *uuid)
{
    const char *at = getenv("CUDA_VISIBLE_DEVICES");
    char *end;

    if (!at)
        return true;
    for (size_t n; *at; at += n + (at[n] == ',')) {
        n = strcspn(at, ",");
        const unsigned long number = strtoul(at, &end, 10);
        const bool numbered = end == at + n && n > 0 && *at != '-';
        if (!numbered && strncmp(at, "GPU-", 4) != 0)
            return false;
        if (numbered ? number == index : strncmp(uuid, at, n) == 0)
            return true;
    }
    return false;
}

static const char *machine_refuses(int major)
{
    static const struct module_kind cuda = {.file = "eps-cuda.so"};
    char directory[PATH_MAX], path[PATH_MAX];

    if (major < OLDEST_MAJOR)
        return "its compute capability is below 8.0";
    return module_find(path, directory, &cuda) ? NULL : "this build of eps has no CUDA";
}

static void machine_read_device(struct eps_machine *out, const struct machine_driver *driver, unsigned index)
{
    struct eps_machine_device *d = &out->devices[out->n_devices];
    struct machine_memory memory = {0};
    char uuid[UUID_BYTES] = "";
    int major = 0, minor = 0;
    void *device = NULL;

    *d = (struct eps_machine_device){.name = ""};
    if (driver->find(index, &device) != 0 || driver->name(device, d->name, sizeof d->name) != 0 ||
        driver->uuid(device, uuid, sizeof uuid) != 0 || driver->memory(device, &memory) != 0 ||
        driver->capability(device, &major, &minor) != 0 || !machine_shows(index, uuid))
        return;
    const struct card *card = card_find(d->name);
    d->bytes = memory.total, d->available_bytes = memory.available;
    d->default_mem = plan_default_budget(&plan_cuda, memory.available, 1);
    d->card = card ? (enum eps_card)(card - cards + 1) : EPS_CARD_DEFAULT;
    d->why = machine_refuses(major);
    d->computes = !d->why;
    out->n_devices++;
}

void eps_machine(struct eps_machine *out)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN), pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    struct machine_driver driver;
    unsigned n = 0;

    *out = (struct eps_machine){.n_cores = n_cores > 0 ? (uint32_t)n_cores : 1,
                                .host_bytes = pages > 0 && page > 0 ? (uint64_t)pages * (uint64_t)page : UINT64_MAX,
                                .host_available_bytes = process_available_bytes()};
    if (!machine_open_driver(&driver))
        return;
    if (driver.count(&n) != 0)
        n = 0;
    for (unsigned i = 0; i < n && out->n_devices < EPS_MACHINE_DEVICES; i++)
        machine_read_device(out, &driver, i);
    driver.shutdown();
    dlclose(driver.library);
}
