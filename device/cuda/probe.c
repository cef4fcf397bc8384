/* device/cuda/probe.c - properties of a device before it is opened, and its errors in words.
 *
 * A process that uses a device holds memory for a context and for loaded kernels. The driver loads a kernel at its
 * first launch: in the middle of a step, and beyond any budget. So all kernels are loaded here, and the memory is
 * measured. */
#include "device/cuda/cuda.h"

#include "proto/base/process.h"

#include <assert.h>
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Least compute capability: the kernels need bf16 tensor cores and 8.0's shared memory. */
enum { OLDEST_MAJOR = 8 };

/* A context outside these bounds was mismeasured: another process came or went. */
enum { CONTEXT_LEAST = 32 << 20, CONTEXT_MOST = 2000 << 20 };

/* Devices whose contexts are remembered. */
enum { DEVICES = 64 };

static int probe_say(struct error *err, int code, const char *what, cudaError_t rc, const char *meaning)
{
    return error_set(err, code, "%s: %s (%s: %s)", what, meaning, cudaGetErrorName(rc), cudaGetErrorString(rc));
}

/* Each code with what a person can do about it. -ENODEV: another device may do; -EIO: this process has lost it. */
int cuda_say(struct error *err, const char *what, cudaError_t rc)
{
    cudaGetLastError(); /* reported here */
    switch ((int)rc) {
    case cudaErrorNoDevice:
        return probe_say(err, -ENODEV, what, rc,
                         "the driver sees no NVIDIA device: is one there, and given to this process?");
    case cudaErrorInvalidDevice:
        return probe_say(err, -ENODEV, what, rc, "there is no such device: nvidia-smi -L lists them");
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
        return probe_say(err, -ENODEV, what, rc, "the NVIDIA driver is missing or too old: install a newer one");
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorOperatingSystem:
        return probe_say(err, -ENODEV, what, rc, "the NVIDIA driver does not start: does nvidia-smi run here?");
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
        return probe_say(err, -ENODEV, what, rc,
                         "the device is busy: another process holds it, or its compute mode forbids more "
                         "(nvidia-smi -q -d COMPUTE)");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidPtx:
        return probe_say(err, -ENODEV, what, rc,
                         "eps-cuda.so was not built for this device: build it for its architecture");
    case cudaErrorMemoryAllocation:
        return probe_say(err, -ENOMEM, what, rc,
                         "the device's memory is full: lower --device-mem, or end what else uses the device");
    case cudaErrorECCUncorrectable:
        return probe_say(err, -EIO, what, rc, "the device's memory has failed: see nvidia-smi -q -d ECC, and reset it");
    case cudaErrorNotSupported:
        return probe_say(err, -EIO, what, rc, "the library cannot do this on this device: install a newer one");
    default:
        return probe_say(
            err, -EIO, what, rc,
            "the device is lost: start the worker again; if that does not help, dmesg shows the driver's reason");
    }
}

static int check_age(const char *what, unsigned index, char model[64], struct error *err)
{
    struct cudaDeviceProp properties;
    cudaError_t rc = cudaGetDeviceProperties(&properties, (int)index);

    if (rc != cudaSuccess)
        return cuda_say(err, what, rc);
    snprintf(model, 64, "%.63s", properties.name);
    if (properties.major < OLDEST_MAJOR)
        return error_set(
            err, -ENODEV,
            "%s (%.63s) has compute capability %d.%d, which is too old: the CUDA device needs %d.0 (2020) or "
            "newer",
            what, properties.name, properties.major, properties.minor, OLDEST_MAJOR);
    return 0;
}

/* Before anything is asked of the device, as the runtime's own message for an old driver names neither version. */
static int check_driver(const char *what, struct error *err)
{
    int driver = 0, built = 0;
    cudaError_t rc = cudaDriverGetVersion(&driver);

    if (rc == cudaSuccess)
        rc = cudaRuntimeGetVersion(&built);
    if (rc != cudaSuccess)
        return cuda_say(err, what, rc);
    if (driver == 0)
        return error_set(err, -ENODEV, "%s: no NVIDIA driver is installed here (libcuda.so.1 is missing): install one",
                         what);
    if (driver / 1000 < built / 1000)
        return error_set(
            err, -ENODEV,
            "%s: the NVIDIA driver is too old: it knows CUDA %d.%d, and eps was built for %d.%d: install a "
            "newer driver",
            what, driver / 1000, driver % 1000 / 10, built / 1000, built % 1000 / 10);
    return 0;
}

/* ---- which devices there are ---- */

/* Number of devices that the runtime shows. */
static int probe_count(unsigned *n_devices, const char *what, struct error *err)
{
    int n = 0, rc = check_driver(what, err);

    if (rc)
        return rc;
    const cudaError_t counted = cudaGetDeviceCount(&n);
    *n_devices = (unsigned)n;
    return counted == cudaSuccess ? 0 : cuda_say(err, what, counted);
}

/* "" if the driver does not tell, as for a device behind a hypervisor. */
static void read_bus(char out[DEVICE_BUS_BYTES], unsigned index)
{
    char bus[DEVICE_BUS_BYTES];

    if (cudaDeviceGetPCIBusId(bus, sizeof bus, (int)index) == cudaSuccess && device_name_bus(out, bus))
        return;
    cudaGetLastError(); /* it only means that */
    out[0] = '\0';
}

/* As nvidia-smi -L prints it. */
static void read_uuid(char out[DEVICE_ID_BYTES], unsigned index)
{
    struct cudaDeviceProp properties;
    size_t n = (size_t)snprintf(out, DEVICE_ID_BYTES, "GPU");

    if (cudaGetDeviceProperties(&properties, (int)index) != cudaSuccess) {
        cudaGetLastError();
        out[0] = '\0';
        return;
    }
    for (unsigned i = 0; i < sizeof properties.uuid.bytes; i++)
        n += (size_t)snprintf(out + n, DEVICE_ID_BYTES - n, "%s%02x",
                              i == 0 || i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
                              (unsigned)(unsigned char)properties.uuid.bytes[i]);
}

/* "there is no device cuda:7", and those that there are; of UUIDs the first 8 digits, which tell them apart. */
static int probe_refuse(struct error *err, const char *what, const char *remark, unsigned n)
{
    enum { LISTED = 8, SHOWN = 12 };
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");

    error_set(err, -ENODEV, "there is no device %s: %s%u %s there, counted from 0", what, remark, n,
              n == 1 ? "is" : "are");
    for (unsigned i = 0; i < n && i < LISTED; i++) {
        char uuid[DEVICE_ID_BYTES], bus[DEVICE_BUS_BYTES];
        read_uuid(uuid, i);
        read_bus(bus, i);
        error_append(err, "%s %.*s%s%s", i ? "," : ":", SHOWN, uuid, *bus ? " at " : "", bus);
    }
    if (visible)
        error_append(err, " (of those in CUDA_VISIBLE_DEVICES=%.40s)", visible);
    return -ENODEV;
}

/* The bus is asked for directly; a UUID is compared with each device's, since the runtime cannot look one up. */
int cuda_find(unsigned *index, const char *id, struct error *err)
{
    char what[DEVICE_NAME_BYTES], uuid[DEVICE_ID_BYTES];
    unsigned n, n_found = 0;
    int at;

    snprintf(what, sizeof what, "cuda:%s", id);
    const int rc = probe_count(&n, what, err);
    if (rc)
        return rc;
    if (strncmp(id, "GPU-", 4) != 0) {
        if (cudaDeviceGetByPCIBusId(&at, id) == cudaSuccess) {
            *index = (unsigned)at;
            return 0;
        }
        cudaGetLastError(); /* reported here */
        return probe_refuse(err, what, "", n);
    }
    for (unsigned i = 0; i < n; i++) {
        read_uuid(uuid, i);
        if (strncmp(uuid, id, strlen(id)) == 0 && n_found++ == 0)
            *index = i;
    }
    return n_found == 1 ? 0 : probe_refuse(err, what, n_found ? "several UUIDs begin so; " : "", n);
}

int cuda_check(unsigned index, char model[64], struct error *err)
{
    char what[24];
    unsigned n;

    snprintf(what, sizeof what, "cuda:%u", index);
    const int rc = probe_count(&n, what, err);
    if (rc)
        return rc;
    return index < n ? check_age(what, index, model, err) : probe_refuse(err, what, "", n);
}

/* ---- free memory, without a context ----
 *
 * CUDA reports it only to a process that has a context. NVIDIA's management library, which comes with the driver, is
 * loaded for this one question. */

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

/* POSIX lets dlsym return a function's address; C has no cast for it. */
#define LOOK_UP(member, library, name) *(void **)&(member) = look_up(library, name)

/* 0: not known. Loaded and unloaded for one question, since it keeps threads and memory. */
static uint64_t management_available(unsigned index)
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

/* ---- loading all kernels ----
 *
 * The compiler's start-up code registers each kernel with the runtime. The linker redirects these calls to this file
 * (--wrap), which so knows all kernels. */

#ifdef CUDASIM

cudaError_t cuda_load_kernels(void)
{
    return cudaSuccess; /* kernels are functions of this program */
}

#else

enum { KERNELS = 1024 };

/* Filled before main, by constructors of the compiler. */
static const void *kernels[KERNELS];
static unsigned n_kernels;

void __real___cudaRegisterFunction(void **binary, const char *kernel, char *name, const char *device_name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *size);
void __wrap___cudaRegisterFunction(void **binary, const char *kernel, char *name, const char *device_name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *size);

void __wrap___cudaRegisterFunction(void **binary, const char *kernel, char *name, const char *device_name, int limit,
                                   void *thread, void *block, void *block_dim, void *grid_dim, int *size)
{
    __real___cudaRegisterFunction(binary, kernel, name, device_name, limit, thread, block, block_dim, grid_dim, size);
    assert(n_kernels < KERNELS);
    kernels[n_kernels++] = kernel;
}

/* Asking for a kernel's attributes makes the driver load it. */
cudaError_t cuda_load_kernels(void)
{
    cudaError_t rc = cudaSuccess;

    for (unsigned i = 0; i < n_kernels && rc == cudaSuccess; i++) {
        struct cudaFuncAttributes attributes;
        rc = cudaFuncGetAttributes(&attributes, kernels[i]);
    }
    return rc;
}

#endif

/* Makes the context and loads all kernels. *context: the memory that took; *available: free memory afterwards. What
 * it took is what was free before, less what is free now: another process that comes or goes meanwhile spoils that. */
static cudaError_t probe_load(unsigned index, size_t *available, uint64_t *context)
{
    static uint64_t known[DEVICES]; /* a process makes each context once, and measures it then */
    const bool first = index >= DEVICES || known[index] == 0;
    const uint64_t before = first ? management_available(index) : 0;
    size_t total;
    cudaError_t rc = cudaSetDevice((int)index);

    if (rc == cudaSuccess)
        rc = cuda_load_kernels();
    if (rc == cudaSuccess)
        rc = cudaMemGetInfo(available, &total);
    if (rc != cudaSuccess)
        return rc;
    *context = first ? before - *available : known[index];
    if (first && (before < *available || *context < CONTEXT_LEAST || *context > CONTEXT_MOST))
        *context = PLAN_CUDA_CONTEXT_BYTES;
    if (index < DEVICES)
        known[index] = *context;
    return cudaSuccess;
}

int cuda_probe(unsigned index, struct device_facts *facts, struct error *err)
{
    uint64_t context;
    size_t available;
    int n_multiprocessors = 0;
    char what[24];

    *facts = (struct device_facts){0};
    int rc = cuda_check(index, facts->model, err);
    if (rc)
        return rc;
    cudaError_t loaded = probe_load(index, &available, &context);
    if (loaded != cudaSuccess) {
        snprintf(what, sizeof what, "cuda:%u", index);
        return cuda_say(err, what, loaded);
    }
    read_bus(facts->bus, index);
    facts->library_bytes = context + PLAN_CUDA_LIBRARY_BYTES - PLAN_CUDA_CONTEXT_BYTES;
    facts->available_bytes = available + context;
    if (cudaDeviceGetAttribute(&n_multiprocessors, cudaDevAttrMultiProcessorCount, (int)index) != cudaSuccess)
        cudaGetLastError(); /* it is then not known */
    facts->n_multiprocessors = (uint32_t)n_multiprocessors;
    facts->attention = cuda_dnn_way(index);
    facts->convolution = cuda_dnn_convolution(index);
    return 0;
}
