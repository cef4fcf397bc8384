/* tests/sim/device.cpp - what devices there are and what they say of themselves: the kind that target.cpp says, with
 * two processors, so that small grids too have more blocks than there are places. */
#include "tests/sim/state.hpp"

#include <stdio.h>
#include <stdlib.h>

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

/* All alike, with the memory of one: a process uses one of them. */
static int n_devices()
{
    const unsigned long n = cudasim_environment("CUDASIM_DEVICES");

    return n ? (int)n : 1;
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
    return cudaSuccess;
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

    if (device < 0 || device >= n_devices())
        return call.failed(cudaErrorInvalidDevice);
    *properties = {};
    snprintf(properties->name, sizeof properties->name, "cudasim");
    properties->totalGlobalMem = cudasim_device_bytes();
    properties->sharedMemPerBlock = CUDASIM_SHARED, properties->sharedMemPerBlockOptin = cudasim_most_shared();
    properties->major = capability(&properties->minor), properties->multiProcessorCount = 2;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    CUDASIM_CALL();

    (void)id, (void)size, (void)device; /* it is in no slot */
    return call.failed(cudaErrorNotSupported);
}
