/* Reports what a GPU and its machine allow. It uses the CUDA runtime only, and nothing else needs to be built.
 *
 *     probe [DEVICE]
 *
 * Prints a line for each finding, in the form of tools/gpu_check.sh: NAME|VERDICT|SENTENCE. The verdict is passed,
 * failed, missing (not available on the machine) or fact. Exit status: 0, or 1 without a device. */
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

enum { COPIES = 5 };

static const size_t gibibyte = (size_t)1 << 30;

static double probe_now_ms(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static int attribute(enum cudaDeviceAttr name, int device)
{
    int value = 0;

    return cudaDeviceGetAttribute(&value, name, device) == cudaSuccess ? value : -1;
}

static bool tell_device(int device)
{
    struct cudaDeviceProp p;
    int driver = 0, runtime = 0;
    size_t available = 0, total = 0;
    const cudaError_t rc = cudaGetDeviceProperties(&p, device);

    if (rc != cudaSuccess || cudaSetDevice(device) != cudaSuccess) {
        printf("device|failed|device %d: %s\n", device, cudaGetErrorString(rc));
        return false;
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    cudaMemGetInfo(&available, &total);
    printf("device|fact|%s, compute capability %d.%d, %d multiprocessors, %zu MiB, L2 %d MiB, CUDA %d.%d (runtime "
           "%d.%d)\n",
           p.name, p.major, p.minor, p.multiProcessorCount, total >> 20, p.l2CacheSize >> 20, driver / 1000,
           driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
    printf("context|fact|%zu MiB of the device are taken once a process has opened it\n", (total - available) >> 20);
    printf("host-memory-attributes|fact|read-only registration %d, pageable access %d, registered pointers as they are "
           "%d\n",
           attribute(cudaDevAttrHostRegisterReadOnlySupported, device),
           attribute(cudaDevAttrPageableMemoryAccess, device),
           attribute(cudaDevAttrCanUseHostPointerForRegisteredMem, device));
    return true;
}

/* Which driver the runtime finds: a machine may have several, or one where ld.so does not look. */
static void tell_driver(void)
{
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY);
    struct link_map *map = NULL;

    if (driver && dlinfo(driver, RTLD_DI_LINKMAP, &map) == 0)
        printf("driver-library|fact|%s\n", map->l_name);
    else
        printf("driver-library|missing|%s\n", dlerror());
}

static void tell_limit(void)
{
    struct rlimit limit = {0};

    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur == RLIM_INFINITY)
        printf("memory-lock|fact|no limit on locked memory\n");
    else
        printf("memory-lock|fact|%ju MiB of locked memory at most (ulimit -l)\n", (uintmax_t)limit.rlim_cur >> 20);
}

/* Makes a sealed segment like the daemon's: *rw is the daemon's mapping, *ro a worker's. */
static bool probe_seal(char **rw, char **ro, size_t bytes)
{
    const int fd = memfd_create("probe", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    const char *what = NULL;

    *rw = *ro = MAP_FAILED;
    if (fd < 0 || ftruncate(fd, (off_t)bytes))
        what = "memfd_create";
    else if ((*rw = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)) == MAP_FAILED)
        what = "mapping it";
    else if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE))
        what = "sealing it against writing";
    if (what)
        printf("sealing|failed|a segment of %zu MiB: %s: %s\n", bytes >> 20, what, strerror(errno));
    else if (mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) != MAP_FAILED)
        printf("sealing|failed|a sealed segment can be mapped for writing\n");
    else
        printf("sealing|passed|a segment of %zu MiB can be sealed against later mappings that write\n", bytes >> 20);
    *ro = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (*rw == MAP_FAILED || *ro == MAP_FAILED)
        return false;
    for (size_t i = 0; i < bytes / 8; i++)
        ((uint64_t *)*rw)[i] = i * 2654435761u;
    return true;
}

/* Median of COPIES uploads, in GB/s; 0 if one fails. */
static double rate(void *to, const void *from, size_t bytes)
{
    double ms[COPIES];

    for (int i = 0; i < COPIES; i++) {
        const double began = probe_now_ms();
        if (cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, 0) != cudaSuccess ||
            cudaStreamSynchronize(0) != cudaSuccess)
            return 0;
        ms[i] = probe_now_ms() - began;
        for (int j = i; j > 0 && ms[j] < ms[j - 1]; j--) {
            const double swap = ms[j];
            ms[j] = ms[j - 1], ms[j - 1] = swap;
        }
    }
    return (double)bytes / ms[COPIES / 2] * 1e-6;
}

static bool probe_arrived(const void *device, const void *host, size_t bytes)
{
    char *back = malloc(bytes);
    const bool same = back && cudaMemcpy(back, device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess &&
                      memcmp(back, host, bytes) == 0;

    free(back);
    return same;
}

/* Registers the memory, copies, and unregisters it. */
static void try_register(const char *name, const char *what, void *host, size_t bytes, unsigned flags, void *device)
{
    const double began = probe_now_ms();
    cudaError_t rc = cudaHostRegister(host, bytes, flags);
    const double ms = probe_now_ms() - began;

    if (rc != cudaSuccess) {
        cudaGetLastError();
        printf("%s|missing|%s cannot be registered: %s\n", name, what, cudaGetErrorString(rc));
        return;
    }
    cudaMemset(device, 0, bytes);
    const double speed = rate(device, host, bytes);
    const bool same = probe_arrived(device, host, bytes);
    rc = cudaHostUnregister(host);
    printf("%s|%s|%s: %zu MiB registered in %.0f ms, uploaded at %.1f GB/s%s%s\n", name,
           same && rc == cudaSuccess ? "passed" : "failed", what, bytes >> 20, ms, speed,
           same ? "" : ", not as they were", rc == cudaSuccess ? "" : ", and not let go");
}

static void try_pinned(size_t bytes, void *device)
{
    void *host;

    if (cudaMallocHost(&host, bytes) != cudaSuccess) {
        printf("pinned|missing|%zu MiB of pinned memory cannot be had\n", bytes >> 20);
        return;
    }
    memset(host, 1, bytes);
    const double down = rate(device, host, bytes), up = rate(host, device, bytes);
    printf("pinned|fact|cudaMallocHost's memory: down at %.1f GB/s, up at %.1f GB/s\n", down, up);
    cudaFreeHost(host);
}

static void tell_registration(void)
{
    char *rw, *ro;
    void *device;

    if (cudaMalloc(&device, gibibyte) != cudaSuccess) {
        printf("register|failed|1 GiB of the device cannot be had\n");
        return;
    }
    try_pinned(gibibyte, device);
    if (probe_seal(&rw, &ro, gibibyte)) {
        try_register("register-shared", "a shared segment, for reading and writing", rw, gibibyte, 0, device);
        try_register("register-read-only", "a sealed segment mapped for reading, by the read-only flag", ro, gibibyte,
                     cudaHostRegisterReadOnly, device);
        try_register("register-read-only-plain", "the same without that flag", ro, gibibyte, 0, device);
        try_register("register-portion", "64 MiB in the middle of it", ro + gibibyte / 2, gibibyte / 16,
                     cudaHostRegisterReadOnly, device);
        printf("pageable|fact|the same segment not registered: uploaded at %.1f GB/s\n", rate(device, ro, gibibyte));
    }
    cudaFree(device);
}

int main(int argc, char **argv)
{
    int n = 0;
    tell_driver();
    const int device = argc > 1 ? atoi(argv[1]) : 0;
    const cudaError_t rc = cudaGetDeviceCount(&n);

    if (rc != cudaSuccess || device >= n) {
        printf("device|missing|no GPU: %s\n",
               rc != cudaSuccess ? cudaGetErrorString(rc) : "there are fewer devices than that");
        return 1;
    }
    if (!tell_device(device))
        return 1;
    tell_limit();
    tell_registration();
    const cudaError_t last = cudaDeviceSynchronize();
    if (last != cudaSuccess)
        printf("device|failed|%s\n", cudaGetErrorString(last));
    return last != cudaSuccess;
}
