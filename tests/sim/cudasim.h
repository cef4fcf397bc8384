/* tests/sim/cudasim.h - the simulated device's controls, for tests.
 *
 * tests/sim stands in for CUDA where there is none: the sources of device/cuda, kernels and host side, are compiled
 * as they are against its headers (tests/sim/include) and run on the CPU. It is a judge, not an emulator: what a
 * device would let pass most of the time is a fault here, or a wrong result in one of the orders that a test asks for.
 *
 *   block.cpp    a block's threads: fibres, in any order between their meetings
 *   stream.cpp   streams are queues: nothing runs before the host waits, and then in any order that events allow
 *   memory.cpp   the device's memory: out of the host's reach, red zones around it, NaNs in it; lent host memory
 *   device.cpp   what the device says of itself
 *   target.cpp   what of a launch a device of that kind has no room for
 *   product.cpp  cuBLASLt's products, as plain loops
 *   clock.cpp    virtual time, where a test asks for it: how long work takes, and who waited for whom
 *   priced.c     what each operation of the backend reads, writes and computes
 *   dnn.cpp      cuDNN, where a test says that it is there
 *   symbols.cpp  kernels' names, and their static shared memory, full of NaNs when a block begins
 *   fault.cpp    what goes wrong, and errors that a test asks for
 *
 * A fault says one sentence on stderr, "cudasim: ...", and aborts. Errors that the runtime returns are returned.
 *
 * build/bin/cudasim/eps-cuda.so, the whole backend on this device, exports these functions too. One device at a time;
 * any thread may call, and one runs at a time. */
#ifndef CUDASIM_H
#define CUDASIM_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#include "proto/plan/time/profile.h"

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
 * cudaErrorMemoryAllocation. And of host memory that can be registered, no limit at first (CUDASIM_REGISTERED, beside
 * the other): cudaErrorMemoryAllocation. */
void cudasim_limit(size_t device_bytes, size_t registered_bytes);

/* The device is of this kind from now on: sm_90 at first, or sm_80, sm_86, sm_89, sm_100. A block that asks for more
 * shared memory than it has is refused, as there: 163 KiB, 99 (86 and 89) or 227. So are threads whose registers it has
 * not, as the table says (build/cuda-kernels.txt, which nvcc's words are made into; NULL: there is none). It must then
 * name every kernel that is launched. */
void cudasim_target(const char *name, const char *table);

/* The call of this name (or any: NULL), after `calls` others of it, returns rc, once, and does nothing. */
void cudasim_fail(const char *name, unsigned calls, cudaError_t rc);
/* The device is lost: from now on every call returns rc. */
void cudasim_lose(cudaError_t rc);
/* For whole programs CUDASIM_FAIL=NAME:CALLS:CODE says the first, and CUDASIM_LOSE that the device is lost with that
 * call; CUDASIM_DEVICES=n that there are n devices (device.cpp has their UUIDs and places), one of which a process
 * uses; CUDA_VISIBLE_DEVICES which of them it sees; CUDASIM_MAJOR=n how old they are; CUDASIM_DRIVER=n the CUDA version
 * of the driver, such as 12040, or 0, where none is installed. */

/* cuBLASLt knows no algorithm, which is no error, for the next n products that it is asked about. */
void cudasim_no_algorithm(unsigned n);

/* Products take their (virtual) time, and their results stay what they were: for sizes that take too long. */
void cudasim_idle_products(bool are_idle);

/* cuDNN, for devices that are opened from now on; it is not there at first. For whole programs CUDASIM_DNN=n says that
 * its version n is there, with what that can on the device. */
enum { CUDASIM_DNN_PROPOSALS = 8 };
struct cudasim_dnn_proposal {
    bool varies;       /* it says so: its bits may differ from run to run */
    bool is_refused;   /* when a plan is made of it */
    int64_t refuses;   /* convolutions of so many images, then */
    int64_t workspace; /* that the plan wants, or CUDASIM_DNN_USUAL: as the library does; what is in it is lost */
};
enum { CUDASIM_DNN_USUAL = -1 };
struct cudasim_dnn {
    size_t version; /* 91100; 0: it is not there */
    /* For any graph that it is asked about; 0: it has no algorithm. Of a convolution each is proposed twice: first with
     * sums in parts, as many images as there are say where they are divided; then with whole sums. */
    unsigned n_proposals;
    struct cudasim_dnn_proposal proposals[CUDASIM_DNN_PROPOSALS];
    bool fails;       /* when a plan is executed */
    bool no_backward; /* it has no algorithm for that */
};
void cudasim_have_dnn(const struct cudasim_dnn *dnn);

/* Calls and work since the start. */
struct cudasim_counts {
    unsigned long device_waits, stream_waits,
        event_waits;           /* cudaDeviceSynchronize, -StreamSynchronize, -EventSynchronize */
    unsigned long allocations; /* and frees, of device and of host memory, registrations too */
    unsigned long launches, products, copies;
    unsigned long pageable_copies;   /* of these: from or to host memory that was not registered */
    unsigned long events;            /* created */
    unsigned long products_in_parts; /* of the products: those whose sums may be added up in parts */
    unsigned long products_by[3]; /* by the heuristic's first algorithm, its second (a quarter faster, but half slower
                                              where rows are summed over), its third (twice as fast, an eighth) for bf16 */
    unsigned long zeroings, zeroed_bytes;  /* cudaMemsetAsync */
    unsigned long host_stores;             /* of the launches: those of kernels that are to write to host memory */
    unsigned long dnn_searches, dnn_plans; /* cuDNN: graphs that it was asked about, plans executed */
    unsigned long dnn_backwards;           /* of these plans: backward */
    unsigned long dnn_convolutions;        /* of these plans: of convolutions and their gradients */
};
struct cudasim_counts cudasim_count(void);

/* ---- time ----
 *
 * Virtual: no clock of this machine is read, so a test's times are the same everywhere, to the last bit. Work takes
 *
 *   copies     their bytes at the profile's link, each way by itself
 *   products   2 m n k at the profile's rate for the rows of activations (k where they are summed over, else m) and the
 *              width, or their matrices' bytes at the memory's rate if that takes longer
 *   kernels    what tests/sim/priced.c says of the backend's operation: bytes at the memory's rate, or operations at
 *              the rate of attention, or bytes of host memory at the link's, whichever takes longest. The operation's
 *              first kernel takes all of it. A kernel that no operation launched takes no time, and is counted as
 *              unpriced
 *
 * A piece begins when the host has issued it, what is before it in its stream is done, events that the stream waits for
 * are reached, and its engine is free: there is one for copies each way, and one for all else. While time passes,
 * streams go on in the order of their beginnings, whatever cudasim_order says.
 *
 * The host is the one thread that queues work: its calls take no time, waiting for the device does, and so does what
 * cudasim_host_works says. Other threads of the host, such as an optimizer, are lanes of their own to which work is
 * given. */

enum {
    CUDASIM_LANES = 16,
    CUDASIM_HOST = 0,              /* the lane of the thread that queues work; streams follow, as they were created */
    CUDASIM_NOBODY = CUDASIM_LANES /* a cause: there was nothing to do */
};

/* Finishes what is queued; then time begins at 0, with the streams that there are, or (NULL) ends. The profile is
 * copied; profile_check holds of it. */
void cudasim_time(const struct profile *profile);
/* Seconds that the host has come to. */
double cudasim_now(void);
void cudasim_host_works(double seconds);
/* A lane for another thread of the host; the name is borrowed. */
unsigned cudasim_thread(const char *name);
/* Gives a thread work that the host has for it now: it begins when what the thread was given before is done. Returns
 * when it will be done. */
double cudasim_thread_works(unsigned thread, double seconds);
/* The same, but the host had it at `since`: for threads that choose what they do next, which is known later. */
double cudasim_thread_worked(unsigned thread, double since, double seconds);
/* The host waits for what the thread has done by then. */
void cudasim_host_awaits(unsigned thread, double until);

struct cudasim_lane {
    char name[16];     /* "host", "stream 0", or the thread's */
    double busy, idle; /* seconds: the makespan, together */
    /* Whom it waited for while it was idle, by lane: who was at work then, if need be at the end of a chain of
     * waits. */
    double waited[CUDASIM_LANES + 1];
};

struct cudasim_report {
    double makespan; /* seconds since time began until all that was queued or given is done */
    unsigned n_lanes;
    struct cudasim_lane lanes[CUDASIM_LANES];
    unsigned long unpriced; /* kernels that took no time */
};

/* Finishes what is queued. Time goes on afterwards. */
void cudasim_tell_time(struct cudasim_report *report);
/* A line for each lane: its name, milliseconds busy and idle, and whom it waited for. */
void cudasim_print_time(FILE *to, const struct cudasim_report *report);

/* Of tests/sim/priced.c: the kernels launched until the next call belong to one operation, or (NULL) to none. */
struct cudasim_price {
    double bytes, host_bytes; /* that it reads and writes of the device's memory; of the host's, if it touches that */
    double operations, flops; /* and at what rate: of the profile's attention */
};
void cudasim_operation(const struct cudasim_price *price);
/* Of the profile; 0 where no time passes. */
double cudasim_multiprocessors(void);
/* Operations a second, of the profile; 0 where no time passes. */
double cudasim_conv2d_flops(enum conv2d_kind kind, enum conv2d_path path, enum number_type type, double pixels);
double cudasim_attention_flops(enum profile_direction direction, enum attention_path path, enum number_type type,
                               const struct attention_shape *shape);
/* Seconds of a norm, for each that memory needs for its bytes. */
double cudasim_norm_slowness(enum profile_direction direction);

/* Runs what is queued and faults if a stream, event, allocation, registration or handle is left: leaks. Also done when
 * the process exits, unless the device is lost. */
void cudasim_finish(void);

#ifdef __cplusplus
}
#endif

#endif
