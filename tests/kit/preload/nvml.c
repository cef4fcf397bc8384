/* A stand-in for NVIDIA's management library, libnvidia-ml.so.1: two devices, of which one is too old for eps. */
#include <stdio.h>
#include <string.h>

struct memory {
    unsigned long long total, available, used;
};

static const struct {
    const char *name, *uuid;
    unsigned long long total, available;
    int major, minor;
} devices[] = {
    {"Tesla T4", "GPU-0a0a0a0a-0000-0000-0000-000000000000", 16ULL << 30, 15ULL << 30, 7, 5},
    {"NVIDIA GeForce RTX 4090", "GPU-1b1b1b1b-0000-0000-0000-000000000000", 24ULL << 30, 20ULL << 30, 8, 9},
};
enum { N_DEVICES = sizeof devices / sizeof *devices };

static int copy(char *out, unsigned n, const char *text)
{
    return (unsigned)snprintf(out, n, "%s", text) < n ? 0 : 7;
}

static unsigned index_of(const void *device)
{
    return (unsigned)(((const char *)device - (const char *)devices) / (long)sizeof *devices);
}

int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetCount_v2(unsigned *n);
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device);
int nvmlDeviceGetName(void *device, char *name, unsigned n);
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned n);
int nvmlDeviceGetMemoryInfo(void *device, struct memory *out);
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor);

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned *n)
{
    *n = N_DEVICES;
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{
    *device = (void *)(size_t)&devices[index];
    return 0;
}

int nvmlDeviceGetName(void *device, char *name, unsigned n)
{
    return copy(name, n, devices[index_of(device)].name);
}

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned n)
{
    return copy(uuid, n, devices[index_of(device)].uuid);
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
    const unsigned i = index_of(device);

    *out = (struct memory){devices[i].total, devices[i].available, devices[i].total - devices[i].available};
    return 0;
}

int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor)
{
    *major = devices[index_of(device)].major, *minor = devices[index_of(device)].minor;
    return 0;
}
