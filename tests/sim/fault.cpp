/* tests/sim/fault.cpp - what goes wrong: faults, errors that a test asks for, the last error. */
#include "tests/sim/state.hpp"

#include <mutex>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string>

struct cudasim_counts cudasim_counted;

/* An error to come, or the device's loss. */
struct planned {
    bool armed;
    std::string name; /* "": any */
    unsigned calls;
    cudaError_t rc;

    bool is_due(const char *call)
    {
        return armed && (name.empty() || name == call) && calls-- == 0;
    }
};

static struct fault_state {
    std::recursive_mutex lock;
    cudaError_t last, lost;
    planned fail, lose;
    bool started;
    enum cudasim_streams streams;
    enum cudasim_threads threads;
    uint64_t random;
} &state = *new fault_state(); /* never destroyed: the end of the program looks into it */

void cudasim_fault(const char *format, ...)
{
    char where[400], what[800];
    va_list list;

    cudasim_where(where, sizeof where);
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    fflush(stdout);
    fprintf(stderr, "cudasim: %s%s\n", where, what);
    abort();
}

static void finish_at_exit()
{
    if (state.lost == cudaSuccess)
        cudasim_finish();
}

unsigned long cudasim_environment(const char *name)
{
    const char *text = getenv(name);

    return text ? strtoul(text, NULL, 10) : 0;
}

/* "NAME:CALLS:CODE", as cudasim_fail takes them. */
static planned environment_plan(const char *name)
{
    const char *text = getenv(name);
    char call[64] = "";
    unsigned calls = 0;
    int rc = 0;

    if (text && sscanf(text, "%63[^:]:%u:%d", call, &calls, &rc) != 3)
        cudasim_fault("%s=%s is not NAME:CALLS:CODE", name, text);
    return {text != NULL, call, calls, (cudaError_t)rc};
}

static void start()
{
    if (state.started)
        return;
    state.started = true;
    state.streams = (enum cudasim_streams)cudasim_environment("CUDASIM_STREAMS");
    state.threads = (enum cudasim_threads)cudasim_environment("CUDASIM_THREADS");
    state.random = cudasim_environment("CUDASIM_SEED");
    if (cudasim_environment("CUDASIM_MEMORY")) {
        const size_t registered = cudasim_environment("CUDASIM_REGISTERED");
        cudasim_limit(cudasim_environment("CUDASIM_MEMORY"), registered ? registered : SIZE_MAX);
    }
    state.fail = environment_plan("CUDASIM_FAIL");
    state.lose = environment_plan("CUDASIM_LOSE");
    cudasim_watch();
    atexit(finish_at_exit);
}

cudasim_call::cudasim_call(const char *name) : rc(cudaSuccess)
{
    state.lock.lock();
    start();
    if (!name)
        return;
    if (state.lost == cudaSuccess && state.lose.is_due(name))
        state.lost = state.lose.rc;
    if (state.lost != cudaSuccess) {
        rc = state.lost;
    } else if (state.fail.is_due(name)) {
        state.fail.armed = false;
        rc = failed(state.fail.rc);
    }
}

cudasim_call::~cudasim_call()
{
    state.lock.unlock();
}

cudaError_t cudasim_call::failed(cudaError_t error)
{
    return state.last = error;
}

void cudasim_order(enum cudasim_streams streams, enum cudasim_threads threads, uint64_t seed)
{
    std::lock_guard<std::recursive_mutex> guard(state.lock);

    start();
    state.streams = streams, state.threads = threads, state.random = seed;
}

void cudasim_fail(const char *name, unsigned calls, cudaError_t rc)
{
    std::lock_guard<std::recursive_mutex> guard(state.lock);

    start();
    state.fail = {true, name ? name : "", calls, rc};
}

void cudasim_lose(cudaError_t rc)
{
    std::lock_guard<std::recursive_mutex> guard(state.lock);

    start();
    state.lost = rc;
}

bool cudasim_is_lost(void)
{
    return state.lost != cudaSuccess;
}

struct cudasim_counts cudasim_count(void)
{
    std::lock_guard<std::recursive_mutex> guard(state.lock);

    return cudasim_counted;
}

void cudasim_finish(void)
{
    std::lock_guard<std::recursive_mutex> guard(state.lock);

    cudasim_run_all();
    cudasim_handles_left();
    cudasim_dnn_left();
    cudasim_streams_left();
    cudasim_memory_left();
}

enum cudasim_streams cudasim_stream_order(void)
{
    return state.streams;
}

enum cudasim_threads cudasim_thread_order(void)
{
    return state.threads;
}

/* SplitMix64 - Steele, Lea & Flood, "Fast splittable pseudorandom number generators", 2014. */
unsigned cudasim_random(unsigned n)
{
    uint64_t z = state.random += 0x9e3779b97f4a7c15u;

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (unsigned)((z ^ z >> 31) % n);
}

static const struct {
    cudaError_t rc;
    const char *name, *sentence;
} errors[] = {
#define ERROR(rc, sentence)                                                                                            \
    {                                                                                                                  \
        rc, #rc, sentence                                                                                              \
    }
    ERROR(cudaSuccess, "no error"),
    ERROR(cudaErrorInvalidValue, "invalid argument"),
    ERROR(cudaErrorMemoryAllocation, "out of memory"),
    ERROR(cudaErrorInitializationError, "initialization error"),
    ERROR(cudaErrorInvalidConfiguration, "invalid configuration argument"),
    ERROR(cudaErrorInsufficientDriver, "the driver is too old for the runtime"),
    ERROR(cudaErrorDevicesUnavailable, "the device is busy or unavailable"),
    ERROR(cudaErrorInvalidDeviceFunction, "invalid device function"),
    ERROR(cudaErrorNoDevice, "there is no device"),
    ERROR(cudaErrorInvalidDevice, "invalid device ordinal"),
    ERROR(cudaErrorNoKernelImageForDevice, "no kernel image for the device"),
    ERROR(cudaErrorECCUncorrectable, "uncorrectable ECC error"),
    ERROR(cudaErrorOperatingSystem, "a call of the operating system failed"),
    ERROR(cudaErrorInvalidResourceHandle, "invalid resource handle"),
    ERROR(cudaErrorNotReady, "not ready"),
    ERROR(cudaErrorIllegalAddress, "illegal memory access"),
    ERROR(cudaErrorLaunchOutOfResources, "too many resources requested for launch"),
    ERROR(cudaErrorHostMemoryAlreadyRegistered, "host memory already registered"),
    ERROR(cudaErrorHostMemoryNotRegistered, "host memory not registered"),
    ERROR(cudaErrorLaunchFailure, "unspecified launch failure"),
    ERROR(cudaErrorNotPermitted, "not permitted"),
    ERROR(cudaErrorNotSupported, "not supported"),
    ERROR(cudaErrorCallRequiresNewerDriver, "the call needs a newer driver"),
    ERROR(cudaErrorInvalidKernelImage, "invalid kernel image"),
    ERROR(cudaErrorDeviceAlreadyInUse, "the device is in exclusive use"),
    ERROR(cudaErrorInvalidPtx, "invalid PTX"),
    ERROR(cudaErrorUnsupportedPtxVersion, "PTX newer than the driver"),
    ERROR(cudaErrorSystemNotReady, "the system is not ready"),
    ERROR(cudaErrorCompatNotSupportedOnDevice, "forward compatibility not supported on the device"),
    ERROR(cudaErrorSystemDriverMismatch, "driver and library do not match"),
#undef ERROR
};

const char *cudaGetErrorName(cudaError_t rc)
{
    for (const auto &error : errors)
        if (error.rc == rc)
            return error.name;
    return "cudaErrorUnknown";
}

const char *cudaGetErrorString(cudaError_t rc)
{
    for (const auto &error : errors)
        if (error.rc == rc)
            return error.sentence;
    return "unknown error";
}

cudaError_t cudaPeekAtLastError(void)
{
    return state.lost != cudaSuccess ? state.lost : state.last;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t rc = cudaPeekAtLastError();

    state.last = cudaSuccess;
    return rc;
}
