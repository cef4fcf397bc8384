/* device/cuda/probe.c - what there is before a device is opened, and what its errors mean for whoever runs this. */
#include "device/cuda/cuda.h"

#include "proto/process.h"

#include <errno.h>
#include <stdio.h>

/* Compute capability: bf16 tensor cores, and 8.0's shared memory. */
enum { OLDEST_MAJOR = 8 };

/* What the driver takes for a context and its kernels' room to run, if nobody can be asked what was free before; and
 * what cuBLASLt's kernels take that are loaded when they are first needed. */
enum { CONTEXT_BYTES = 512 << 20, LAZY_BYTES = 160 << 20 };

static int say(struct error *err, int code, const char *what, cudaError_t rc, const char *meaning)
{
    return error_set(err, code, "%s: %s (%s: %s)", what, meaning, cudaGetErrorName(rc), cudaGetErrorString(rc));
}

int cuda_say(struct error *err, const char *what, cudaError_t rc)
{
    cudaGetLastError(); /* it is told here */
    switch ((int)rc) {
    case cudaErrorNoDevice:
        return say(err, -ENODEV, what, rc,
                   "the driver sees no NVIDIA device: is one there, and given to this process?");
    case cudaErrorInvalidDevice:
        return say(err, -ENODEV, what, rc, "there is no such device: nvidia-smi -L lists them");
    case cudaErrorInsufficientDriver:
    case cudaErrorCallRequiresNewerDriver:
        return say(err, -ENODEV, what, rc, "the NVIDIA driver is missing or too old: install a newer one");
    case cudaErrorInitializationError:
    case cudaErrorSystemNotReady:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
    case cudaErrorOperatingSystem:
        return say(err, -ENODEV, what, rc, "the NVIDIA driver does not start: does nvidia-smi run here?");
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceAlreadyInUse:
        return say(err, -ENODEV, what, rc,
                   "the device is busy: another process holds it, or its compute mode forbids more "
                   "(nvidia-smi -q -d COMPUTE)");
    case cudaErrorNoKernelImageForDevice:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorInvalidPtx:
        return say(err, -ENODEV, what, rc, "eps-cuda.so was not built for this device: build it for its architecture");
    case cudaErrorMemoryAllocation:
        return say(err, -ENOMEM, what, rc,
                   "the device's memory is full: lower --device-mem, or end what else uses the device");
    case cudaErrorECCUncorrectable:
        return say(err, -EIO, what, rc, "the device's memory has failed: see nvidia-smi -q -d ECC, and reset it");
    case cudaErrorNotSupported:
        return say(err, -EIO, what, rc, "the library cannot do this on this device: install a newer one");
    default:
        return say(
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

int cuda_probe(unsigned index, struct device_facts *facts, struct error *err)
{
    size_t available, total;
    char what[24];
    int n = 0;

    snprintf(what, sizeof what, "cuda:%u", index);
    cudaError_t rc = cudaGetDeviceCount(&n);
    if (rc != cudaSuccess)
        return cuda_say(err, what, rc);
    if (index >= (unsigned)n)
        return error_set(err, -ENODEV, "there is no device cuda:%u: %d %s there, counted from 0", index, n,
                         n == 1 ? "is" : "are");
    *facts = (struct device_facts){0};
    int age = check_age(what, index, facts->model, err);
    if (age)
        return age;
    rc = cudaSetDevice((int)index);
    if (rc == cudaSuccess)
        rc = cudaMemGetInfo(&available, &total);
    if (rc != cudaSuccess)
        return cuda_say(err, what, rc);
    facts->library_bytes = CONTEXT_BYTES + LAZY_BYTES + CUDA_WORKSPACE_BYTES + CUDA_SCRATCH_BYTES;
    facts->available_bytes = available + CONTEXT_BYTES;
    return 0;
}
