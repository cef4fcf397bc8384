/* tests/sim/device.cpp - what devices there are and what they say of themselves: the kind that target.cpp says, with
 * two processors, so that small grids too have more blocks than there are places. */
#include "tests/sim/state.hpp"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int chosen;

cudaError_t cudaDriverGetVersion(int *version)
{
    CUDASIM_CALL();

    *version = getenv("CUDASIM_DRIVER") ? (int)cudasim_environment("CUDASIM_DRIVER") : CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    CUDASIM_CALL();

    *version = CUDART_VERSION;
    return cudaSuccess;
}

/* ---- which there are ----
 *
 * All alike, with the memory of one: a process uses one of them. Device i of the machine has the UUID
 * GPU-8f2c000i-0000-4000-8000-00000000000i and the place 0000:(3b+i):00.0. */

enum { MOST_DEVICES = 16, FIRST_BUS = 0x3b };

static void write_uuid(char bytes[16], int machine)
{
    static const unsigned char beginning[16] = {0x8f, 0x2c, 0, 0, 0, 0, 0x40, 0, 0x80};

    memcpy(bytes, beginning, sizeof beginning);
    bytes[3] = bytes[15] = (char)machine;
}

/* Whether an entry of CUDA_VISIBLE_DEVICES means this device: its number, or the beginning of its UUID. */
static bool is_named(const char *entry, size_t n, int machine)
{
    char uuid[64], number[12];

    snprintf(number, sizeof number, "%d", machine);
    snprintf(uuid, sizeof uuid, "GPU-8f2c%04x-0000-4000-8000-%012x", machine, machine);
    return n == strlen(number) ? strncmp(entry, number, n) == 0 : n > 4 && strncmp(entry, uuid, n) == 0;
}

/* Fills in the numbers, on the machine, of the devices that the process sees, and returns how many there are. As the
 * runtime does, it takes the list in CUDA_VISIBLE_DEVICES up to the first entry that means no device. */
static int visible(int machine[MOST_DEVICES])
{
    const unsigned long asked = cudasim_environment("CUDASIM_DEVICES");
    const int there = asked ? (int)asked : 1;
    const char *entry = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;

    if (there > MOST_DEVICES)
        cudasim_fault("CUDASIM_DEVICES=%d: %d is the most", there, MOST_DEVICES);
    if (!entry) {
        for (; n < there; n++)
            machine[n] = n;
        return n;
    }
    for (;; entry++) {
        const size_t length = strcspn(entry, ",");
        int i = 0;
        while (i < there && !is_named(entry, length, i))
            i++;
        if (i == there || n == there)
            return n;
        machine[n++] = i;
        entry += length;
        if (!*entry)
            return n;
    }
}

static int n_devices()
{
    int machine[MOST_DEVICES];

    return visible(machine);
}

static int capability(int *minor)
{
    const unsigned long n = cudasim_environment("CUDASIM_MAJOR");
    const int major = cudasim_capability(minor);

    *minor = n ? 0 : *minor;
    return n ? (int)n : major;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    CUDASIM_CALL();

    *count = n_devices();
    return *count ? cudaSuccess : call.failed(cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int device)
{
    CUDASIM_CALL();

    if (device < 0 || device >= n_devices())
        return call.failed(cudaErrorInvalidDevice);
    chosen = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    CUDASIM_CALL();

    *device = chosen;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    CUDASIM_CALL();
    int minor;

    if (device < 0 || device >= n_devices())
        return call.failed(cudaErrorInvalidDevice);
    switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = CUDASIM_SHARED;
        return cudaSuccess;
    case cudaDevAttrMultiProcessorCount:
        *value = 2;
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
        *value = capability(&minor);
        return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
        capability(value);
        return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = (int)cudasim_most_shared();
        return cudaSuccess;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
    case cudaDevAttrHostRegisterSupported:
    case cudaDevAttrHostRegisterReadOnlySupported:
        *value = 1;
        return cudaSuccess;
    }
    return call.failed(cudaErrorInvalidValue);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int device)
{
    CUDASIM_CALL();
    int machine[MOST_DEVICES];

    if (device < 0 || device >= visible(machine))
        return call.failed(cudaErrorInvalidDevice);
    *properties = {};
    write_uuid(properties->uuid.bytes, machine[device]);
    snprintf(properties->name, sizeof properties->name, "cudasim");
    properties->totalGlobalMem = cudasim_device_bytes();
    properties->sharedMemPerBlock = CUDASIM_SHARED, properties->sharedMemPerBlockOptin = cudasim_most_shared();
    properties->major = capability(&properties->minor), properties->multiProcessorCount = 2;
    return cudaSuccess;
}

/* In upper case, as the runtime writes it. */
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    CUDASIM_CALL();
    int machine[MOST_DEVICES];

    if (device < 0 || device >= visible(machine))
        return call.failed(cudaErrorInvalidDevice);
    snprintf(id, (size_t)size, "0000:%02X:00.0", FIRST_BUS + (unsigned)machine[device]);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetByPCIBusId(int *device, const char *id)
{
    CUDASIM_CALL();
    int machine[MOST_DEVICES];
    const int n = visible(machine);
    unsigned bus;

    for (int i = 0; sscanf(id, "0000:%2x:00.0", &bus) == 1 && i < n; i++)
        if (bus == FIRST_BUS + (unsigned)machine[i]) {
            *device = i;
            return cudaSuccess;
        }
    return call.failed(cudaErrorInvalidValue);
}
