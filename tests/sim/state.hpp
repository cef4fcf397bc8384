/* tests/sim/state.hpp - what the simulator's files share. */
#ifndef CUDASIM_STATE_HPP
#define CUDASIM_STATE_HPP

#include "tests/sim/cudasim.h"

#include <functional>
#include <vector>

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

/* Opens every call: takes the lock, and says whether the call is to fail. One of the test's, which has no name, never is. */
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
/* Fills static shared memory with NaNs, which is what a block may find there; but not that of other kernels. */
void cudasim_forget_shared(const void *kernel);

bool cudasim_is_static_shared(const void *kernel, const void *address);

/* ---- memory.cpp ---- */

/* Faults, naming `who`, unless all bytes are the device's, or host memory that is registered (to be written, if
 * `writes`). */
void cudasim_check(const char *who, const void *memory, size_t bytes, bool writes);
/* The same for what may be an address or any number. */
void cudasim_check_word(const char *who, const void *word);
/* Whether it is in host memory that is registered. */
bool cudasim_is_host(const void *address);
bool cudasim_is_device(const void *address);
/* From now on faults of pages that are the device's are told as what they are. */
void cudasim_watch(void);
/* The device's memory is within reach only between these, while work runs; close looks for damage. */
void cudasim_open_memory(void);
void cudasim_close_memory(void);
size_t cudasim_device_bytes(void);
void cudasim_memory_left(void); /* faults if there is any */

/* ---- stream.cpp ---- */

/* A word among a kernel's arguments that is, or may be (in a struct), an address. */
struct cudasim_pointer {
    const void *address;
    bool writes; /* not to const */
    bool surely;
    unsigned argument;
};

struct cudasim_launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    std::function<void()> body; /* one thread of it */
    std::vector<cudasim_pointer> pointers;
};

/* ---- block.cpp ---- */

void cudasim_run_grid(const cudasim_launch &launch);
/* Whether the address is in the page that follows shared memory. */
bool cudasim_past_shared(const void *address);
/* Writes where in a kernel the program is, "kernel x, block .., thread ..: ", or "". */
void cudasim_where(char *to, size_t size);

/* ---- clock.cpp ---- */

enum cudasim_engine { CUDASIM_UPLOADS, CUDASIM_DOWNLOADS, CUDASIM_COMPUTES, CUDASIM_ENGINES };

/* How long a piece of work takes on what. */
struct cudasim_duration {
    enum cudasim_engine engine;
    double seconds;
};

bool cudasim_has_time(void);
/* These are of no duration where no time passes. */
struct cudasim_duration cudasim_copy_duration(double bytes, bool to_device, bool from_device);
struct cudasim_duration cudasim_product_duration(double operations, double bytes, double rows, double width,
                                                 enum number_type type);
struct cudasim_duration cudasim_kernel_duration(const cudasim_launch &launch);

/* When the next piece of a lane would begin, which was issued then. */
double cudasim_beginning(unsigned lane, double issued, const struct cudasim_duration *duration);
/* It does: returns its end. */
double cudasim_begin(unsigned lane, double issued, const struct cudasim_duration *duration);
/* What comes after in this lane waits until then, for another one. */
void cudasim_lane_awaits(unsigned lane, unsigned other, double until);
void cudasim_host_meets(unsigned lane, double until);
unsigned cudasim_make_lane(const char *name);

/* The thread of a block that runs; false: none does. */
struct cudasim_running {
    unsigned thread, meetings; /* so far, of all threads of its warp or block */
    uint64_t block;            /* of all that have run */
    const void *kernel;
};
bool cudasim_is_running(struct cudasim_running *running);
bool cudasim_is_shared(const void *address); /* of the block that runs */

/* ---- access/, in programs that have it; else nothing ---- */

/* The thread that runs touches memory, in the code at pc. */
void cudasim_touched(const void *pc, const void *address, size_t bytes);
void cudasim_touched_rows(const uintptr_t rows[]);

/* ---- stream.cpp ---- */

/* Queues work, which borrows nothing of the caller's. */
void cudasim_queue(cudaStream_t stream, const struct cudasim_duration &duration, const std::function<void()> &work);
/* Gives a lane to each stream that there is; time begins. */
void cudasim_streams_begin(void);
void cudasim_check_stream(cudaStream_t stream, const char *who); /* faults if it is none */
void cudasim_run_stream(cudaStream_t stream);                    /* until all that is in it now is done */
void cudasim_run_all(void);
void cudasim_await_all(void);    /* the same, and the host waits for it */
void cudasim_streams_left(void); /* faults if there is any, or an event */

/* ---- target.cpp ---- */

int cudasim_capability(int *minor); /* the major number */
size_t cudasim_most_shared(void);   /* of a block */
/* What the launch returns if registers or shared memory are too few. */
cudaError_t cudasim_fits(const cudasim_launch &launch);

/* ---- product.cpp ---- */

void cudasim_handles_left(void);
extern bool cudasim_products_are_idle; /* they take their time, and compute nothing */

/* ---- dnn.cpp ---- */

void cudasim_dnn_left(void); /* faults if there is a handle or descriptor */

#endif
