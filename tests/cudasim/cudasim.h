/* tests/cudasim/cudasim.h - the simulated device's controls, for tests.
 *
 * tests/cudasim stands in for CUDA where there is none: the sources of device/cuda, kernels and host side, are compiled
 * as they are against its headers (tests/cudasim/include) and run on the CPU. It is a judge, not an emulator: what a
 * device would let pass most of the time is a fault here, or a wrong result in one of the orders that a test asks for.
 *
 *   block.cpp    a block's threads: fibres, in any order between their meetings
 *   stream.cpp   streams are queues: nothing runs before the host waits, and then in any order that events allow
 *   memory.cpp   the device's memory: out of the host's reach, red zones around it, NaNs in it; lent host memory
 *   device.cpp   what the device says of itself
 *   product.cpp  cuBLASLt's products, as plain loops
 *   symbols.cpp  kernels' names, and their static shared memory, full of NaNs when a block begins
 *   fault.cpp    what goes wrong, and errors that a test asks for
 *
 * A fault says one sentence on stderr, "cudasim: ...", and aborts. Errors that the runtime returns are returned.
 *
 * build/bin/cudasim/eps-cuda.so, the whole backend on this device, exports these functions too. One device at a time; any
 * thread may call, and one runs at a time. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Which stream goes on, of those that no event holds back. */
enum cudasim_streams {
    CUDASIM_STREAMS_AS_ISSUED,    /* as if there were one queue */
    CUDASIM_STREAMS_OLDEST_FIRST, /* each as far as it gets, from the first created on */
    CUDASIM_STREAMS_NEWEST_FIRST,
    CUDASIM_STREAMS_RANDOM,
};

/* Which thread of a block goes on, of those that wait for nobody; and which block is next. */
enum cudasim_threads {
    CUDASIM_THREADS_FORWARD, /* a warp as far as it gets, then the next */
    CUDASIM_THREADS_BACKWARD,
    CUDASIM_THREADS_RANDOM,
};

/* From the next operation on. As issued and forward at first; or, for whole programs, as the environment says:
 * CUDASIM_STREAMS=0..3, CUDASIM_THREADS=0..2, CUDASIM_SEED=n. */
void cudasim_order(enum cudasim_streams streams, enum cudasim_threads threads, uint64_t seed);

/* The device's memory in bytes, 4 GiB at first (CUDASIM_MEMORY): a cudaMalloc that does not fit returns
 * cudaErrorMemoryAllocation. And of host memory that can be registered, no limit at first: cudaErrorMemoryAllocation. */
void cudasim_limit(size_t device_bytes, size_t registered_bytes);

/* The call of this name (or any: NULL), after `calls` others of it, returns rc, once, and does nothing. */
void cudasim_fail(const char *name, unsigned calls, cudaError_t rc);
/* The device is lost: from now on every call returns rc. */
void cudasim_lose(cudaError_t rc);
/* For whole programs CUDASIM_FAIL=NAME:CALLS:CODE says the first, and CUDASIM_LOSE that the device is lost with that
 * call; CUDASIM_DEVICES=n that there are n devices, one of which a process uses, and CUDASIM_MAJOR=n how old they are;
 * CUDASIM_DRIVER=n the CUDA version of the driver, such as 12040, or 0, where none is installed. */

/* Calls and work since the start. */
struct cudasim_counts {
    unsigned long device_waits, stream_waits,
        event_waits;           /* cudaDeviceSynchronize, -StreamSynchronize, -EventSynchronize */
    unsigned long allocations; /* and frees, of device and of host memory, registrations too */
    unsigned long launches, products, copies;
    unsigned long pageable_copies; /* of these: from or to host memory that was not registered */
};
struct cudasim_counts cudasim_count(void);

/* Runs what is queued and faults if a stream, event, allocation, registration or handle is left: leaks. Also done when
 * the process exits, unless the device is lost. */
void cudasim_finish(void);

#ifdef __cplusplus
}
#endif

#endif
