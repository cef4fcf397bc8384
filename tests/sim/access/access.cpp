#include "tests/sim/access/access.hpp"

#include "tests/sim/access/traffic.h"
#include "tests/sim/state.hpp"

#include <algorithm>
#include <set>
#include <tuple>
#include <unordered_map>

enum { SECTOR = 32, BANKS = 32, WORD = 4, STACK = 128 << 10 /* above the caller's frame, at most */ };

/* One access of the source, by one way of calls, for the n-th time since the warp's meeting. */
typedef std::tuple<unsigned, uintptr_t, unsigned, unsigned, bool> place; /* warp, way, meetings, n, shared */

struct touch {
    unsigned lane;
    uintptr_t address;
    size_t bytes;
};

struct repeated {
    unsigned meetings, n;
};

static struct access_state {
    std::map<std::string, cudasim_accesses> kernels;
    struct cudasim_array *arrays;
    unsigned n_arrays;
    uint64_t block; /* that is under way: */
    std::string kernel;
    std::map<place, std::vector<touch>> requests;
    std::unordered_map<uintptr_t, repeated> times[CUDASIM_MOST_THREADS];
    std::vector<uintptr_t> calls[CUDASIM_MOST_THREADS];
} &state = *new access_state(); /* never destroyed: the end of the program looks into it */

static uintptr_t mix(uintptr_t a, uintptr_t b)
{
    return (a ^ b) * 0x9e3779b97f4a7c15u + (a >> 29);
}

/* ---- counting ---- */

static void count_sector(uintptr_t sector)
{
    for (unsigned i = 0; i < state.n_arrays; i++)
        if (sector * SECTOR - (uintptr_t)state.arrays[i].at < state.arrays[i].bytes)
            state.arrays[i].moved += SECTOR;
}

static void count_global(cudasim_accesses *to, const std::vector<touch> &request)
{
    std::set<uintptr_t> sectors, bytes;

    for (const touch &t : request)
        for (size_t i = 0; i < t.bytes; i++)
            sectors.insert((t.address + i) / SECTOR), bytes.insert(t.address + i);
    for (uintptr_t sector : sectors)
        count_sector(sector);
    to->global++;
    to->sectors += sectors.size();
    to->excess += sectors.size() - (bytes.size() + SECTOR - 1) / SECTOR;
}

/* Turns after the first of the threads from `first` up to `end`. */
static unsigned long conflicts(const std::vector<touch> &request, unsigned first, unsigned end)
{
    std::set<uintptr_t> words[BANKS];
    size_t most = 0;

    for (const touch &t : request)
        for (size_t i = 0; t.lane >= first && t.lane < end && i < t.bytes; i++)
            words[(t.address + i) / WORD % BANKS].insert((t.address + i) / WORD);
    for (const auto &bank : words)
        most = std::max(most, bank.size());
    return most > 1 ? most - 1 : 0;
}

static void count_shared(cudasim_accesses *to, const std::vector<touch> &request)
{
    const size_t bytes = request[0].bytes;
    const unsigned at_once = bytes <= WORD ? warpSize : bytes <= 2 * WORD ? warpSize / 2 : warpSize / 4;

    to->shared++;
    for (unsigned first = 0; first < warpSize; first += at_once)
        to->conflicts += conflicts(request, first, first + at_once);
}

static void finish_block()
{
    if (state.requests.empty())
        return;
    cudasim_accesses *to = &state.kernels[state.kernel];
    for (const auto &request : state.requests) {
        if (std::get<4>(request.first))
            count_shared(to, request.second);
        else
            count_global(to, request.second);
    }
    state.requests.clear();
}

/* The thread that runs; a new block begins with nothing. False: none does. */
static bool begin(struct cudasim_running *running)
{
    if (!cudasim_is_running(running))
        return false;
    if (running->block != state.block) {
        finish_block();
        state.block = running->block;
        state.kernel = cudasim_kernel_name(running->kernel);
        for (auto &times : state.times)
            times.clear();
    }
    return true;
}

/* Most accesses are. */
static bool is_of_stack(const void *address)
{
    return (uintptr_t)address - (uintptr_t)__builtin_frame_address(0) < STACK;
}

void cudasim_touched(const void *pc, const void *address, size_t bytes)
{
    struct cudasim_running running;

    if (is_of_stack(address) || !begin(&running))
        return;
    const bool shared = cudasim_is_shared(address);
    if (!shared && !cudasim_is_device(address) && !cudasim_is_host(address))
        return;
    uintptr_t way = (uintptr_t)pc;
    for (uintptr_t call : state.calls[running.thread])
        way = mix(way, call);
    repeated &times = state.times[running.thread][way];
    if (times.meetings != running.meetings)
        times = {running.meetings, 0};
    const place at = {running.thread / warpSize, way, running.meetings, times.n++, shared};
    state.requests[at].push_back({running.thread % warpSize, (uintptr_t)address, bytes});
}

/* Seen once for each of the warp: by its first lane. */
void cudasim_touched_rows(const uintptr_t rows[warpSize])
{
    struct cudasim_running running;

    if (!begin(&running) || running.thread % warpSize != 0)
        return;
    cudasim_accesses *to = &state.kernels[state.kernel];
    for (unsigned first = 0; first < warpSize; first += 8) {
        std::vector<touch> request;
        for (unsigned lane = first; lane < first + 8; lane++)
            request.push_back({lane - first, rows[lane], 16});
        to->shared++;
        to->conflicts += conflicts(request, 0, 8);
    }
}

std::map<std::string, cudasim_accesses> cudasim_take_accesses()
{
    std::map<std::string, cudasim_accesses> taken;

    finish_block();
    taken.swap(state.kernels);
    return taken;
}

void cudasim_count_arrays(struct cudasim_array *arrays, unsigned n)
{
    finish_block();
    state.arrays = arrays, state.n_arrays = n;
}

/* ---- what the compiler calls ---- */

extern "C" {

#define ACCESS(name, bytes)                                                                                            \
    void __tsan_##name(void *address);                                                                                 \
    void __tsan_##name(void *address)                                                                                  \
    {                                                                                                                  \
        cudasim_touched(__builtin_return_address(0), address, bytes);                                                  \
    }
#define ACCESSES(name) ACCESS(name##1, 1) ACCESS(name##2, 2) ACCESS(name##4, 4) ACCESS(name##8, 8) ACCESS(name##16, 16)
ACCESSES(read)
ACCESSES(write)
ACCESSES(unaligned_read)
ACCESSES(unaligned_write)
#undef ACCESSES
#undef ACCESS

void __tsan_init(void);
void __tsan_init(void)
{
}

void __tsan_read_range(void *address, size_t bytes);
void __tsan_read_range(void *address, size_t bytes)
{
    cudasim_touched(__builtin_return_address(0), address, bytes);
}

void __tsan_write_range(void *address, size_t bytes);
void __tsan_write_range(void *address, size_t bytes)
{
    cudasim_touched(__builtin_return_address(0), address, bytes);
}

void __tsan_vptr_update(void **address, void *value);
void __tsan_vptr_update(void **address, void *value)
{
    (void)address, (void)value;
}

void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *caller)
{
    struct cudasim_running running;

    if (cudasim_is_running(&running))
        state.calls[running.thread].push_back((uintptr_t)caller);
}

void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
    struct cudasim_running running;

    if (cudasim_is_running(&running) && !state.calls[running.thread].empty())
        state.calls[running.thread].pop_back();
}
}
