/* tests/cudasim/state.hpp - what the simulator's files share. */
#ifndef CUDASIM_STATE_HPP
#define CUDASIM_STATE_HPP

#include "tests/cudasim/cudasim.h"

#include <functional>

#if defined(__SANITIZE_ADDRESS__)
#define CUDASIM_ASAN
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define CUDASIM_ASAN
#endif
#endif
#ifdef CUDASIM_ASAN
#include <sanitizer/asan_interface.h>
#define CUDASIM_POISON(at, bytes)   __asan_poison_memory_region(at, bytes)
#define CUDASIM_UNPOISON(at, bytes) __asan_unpoison_memory_region(at, bytes)
#else
#define CUDASIM_POISON(at, bytes)   ((void)0)
#define CUDASIM_UNPOISON(at, bytes) ((void)0)
#endif

enum {
    CUDASIM_MOST_THREADS = 1024,
    CUDASIM_SHARED = 48 << 10, /* without cudaFuncSetAttribute */
    CUDASIM_MOST_SHARED = 227 << 10,
    CUDASIM_RED = 256, /* bytes of a red zone, at least */
    CUDASIM_RED_BYTE = 0xa5,
    CUDASIM_POISON_BYTE = 0xff, /* a NaN in fp32, bf16 and double */
};

/* ---- fault.cpp ---- */

/* Opens every call: takes the lock, and says whether the call is to fail. */
struct cudasim_call {
    explicit cudasim_call(const char *name);
    ~cudasim_call();
    cudasim_call(const cudasim_call &) = delete;
    cudasim_call &operator=(const cudasim_call &) = delete;
    cudaError_t rc;                     /* not cudaSuccess: return it */
    cudaError_t failed(cudaError_t rc); /* remembers and returns it */
};
#define CUDASIM_CALL()                                                                                                 \
    cudasim_call call(__func__);                                                                                       \
    if (call.rc != cudaSuccess)                                                                                        \
    return call.rc

bool cudasim_is_lost(void);
extern struct cudasim_counts cudasim_counted;
/* Uniform below n. */
unsigned cudasim_random(unsigned n);
/* Of the environment: a number, 0 if there is none. */
unsigned long cudasim_environment(const char *name);
enum cudasim_streams cudasim_stream_order(void);
enum cudasim_threads cudasim_thread_order(void);

/* ---- symbols.cpp ---- */

/* "norm<bf16>(...)" of a kernel's address; "?" if the program has been stripped. */
const char *cudasim_kernel_name(const void *kernel);
/* Fills the static shared memory of its program's kernels with NaNs: what a block may find there. */
void cudasim_forget_shared(const void *kernel);

/* ---- memory.cpp ---- */

/* Faults, naming `who`, unless all bytes are the device's, or host memory that is registered (to be written, if
 * `writes`). */
void cudasim_check(const char *who, const void *memory, size_t bytes, bool writes);
/* The same for what may be an address or any number. */
void cudasim_check_word(const char *who, const void *word);
/* From now on faults of pages that are the device's are told as what they are. */
void cudasim_watch(void);
/* The device's memory is within reach only between these, while work runs; close looks for damage. */
void cudasim_open_memory(void);
void cudasim_close_memory(void);
size_t cudasim_device_bytes(void);
void cudasim_memory_left(void); /* faults if there is any */

/* ---- block.cpp ---- */

void cudasim_run_grid(const cudasim_launch &launch);
/* Whether the address is in the page that follows shared memory. */
bool cudasim_past_shared(const void *address);
/* Writes where in a kernel the program is, "kernel x, block .., thread ..: ", or "". */
void cudasim_where(char *to, size_t size);

/* ---- stream.cpp ---- */

/* Queues work, which borrows nothing of the caller's. */
void cudasim_queue(cudaStream_t stream, const std::function<void()> &work);
void cudasim_check_stream(cudaStream_t stream, const char *who); /* faults if it is none */
void cudasim_run_stream(cudaStream_t stream);                    /* until all that is in it now is done */
void cudasim_run_all(void);
void cudasim_streams_left(void); /* faults if there is any, or an event */

/* ---- product.cpp ---- */

void cudasim_handles_left(void);

#endif
