/* tests/sim/memory.cpp - the device's memory and what the host lends it.
 *
 * An allocation lies between red zones and pages that are not there, is full of NaNs at first, and its addresses are
 * never used again. Its pages come within reach when work first touches them, and only until that work is done: a host
 * that reads them is told so. Host memory is as it is: copies of registered memory touch it when they run, others as
 * the runtime has it, which takes the source before it returns and waits for the destination. */
#include "tests/sim/state.hpp"

#include <algorithm>
#include <map>
#include <memory>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct allocation {
    char *pages, *data;
    size_t mapped, bytes; /* mapped: of pages between the two that are not there */
    bool live;
};

/* What work touched, and so much around it. */
struct reach {
    allocation *of;
    char *pages;
    size_t bytes;
};

struct registration {
    char *data;
    size_t bytes;
    bool read_only, allocated; /* by cudaHostAlloc */
};

static struct memory_state {
    std::map<const char *, allocation> allocations; /* by their pages; freed ones, too */
    std::vector<reach> touched;
    std::vector<registration> registrations;
    size_t limit = (size_t)4 << 30, used, registered_limit = SIZE_MAX, registered;
    bool open; /* work runs */
    struct sigaction others;
} &memory = *new memory_state(); /* never destroyed: the end of the program looks into it */

/* ---- whose memory ---- */

/* Pages that are not there, on either side of an allocation. */
enum { GUARD = 1 << 20 };

static size_t page_bytes()
{
    return (size_t)sysconf(_SC_PAGESIZE);
}

/* The allocation whose pages, with those around that are not there, have the address. */
static allocation *find_allocation(const void *address)
{
    const char *at = (const char *)address;
    auto next = memory.allocations.upper_bound(at + GUARD);

    if (next == memory.allocations.begin())
        return NULL;
    allocation &a = std::prev(next)->second;
    return at < a.pages + a.mapped + GUARD ? &a : NULL;
}

/* A registration that has any of the bytes, or `at` itself. */
static registration *find_registration(const void *address, size_t bytes)
{
    const char *at = (const char *)address;

    for (registration &r : memory.registrations)
        if (at < r.data + r.bytes && r.data < at + (bytes ? bytes : 1))
            return &r;
    return NULL;
}

void cudasim_check(const char *who, const void *address, size_t bytes, bool writes)
{
    const char *at = (const char *)address;

    if (const allocation *a = find_allocation(at)) {
        if (!a->live)
            cudasim_fault("%s: %p is device memory that has been freed", who, address);
        if (at < a->data || at + bytes > a->data + a->bytes)
            cudasim_fault("%s: %zu bytes at byte %td of device memory of %zu bytes", who, bytes, at - a->data,
                          a->bytes);
        return;
    }
    const registration *r = find_registration(at, bytes);
    if (!r)
        cudasim_fault("%s: %p is host memory that is not registered", who, address);
    if (at < r->data || at + bytes > r->data + r->bytes)
        cudasim_fault("%s: %zu bytes at byte %td of registered memory of %zu bytes", who, bytes, at - r->data,
                      r->bytes);
    if (writes && r->read_only)
        cudasim_fault("%s: %p is registered memory that is not to be written", who, address);
}

bool cudasim_is_device(const void *address)
{
    return find_allocation(address) != NULL;
}

bool cudasim_is_host(const void *address)
{
    return find_registration((const char *)address, 0);
}

/* The sanitizer's own, which is mapped: two sizes in one word look like it. */
static bool is_shadow(uintptr_t at)
{
#ifdef CUDASIM_ASAN
    return at >= 0x7fff8000 && at < 0x10007fff8000;
#else
    return at == 0;
#endif
}

void cudasim_check_word(const char *who, const void *word)
{
    const uintptr_t at = (uintptr_t)word, page = at / page_bytes() * page_bytes();

    if (at >> 47 || !page || is_shadow(at) || find_registration(word, 0))
        return;
    if (find_allocation(word) || msync((void *)page, 1, MS_ASYNC) == 0)
        cudasim_check(who, word, 0, false);
}

/* ---- reach and damage ---- */

static void protect(char *pages, size_t bytes, int protection)
{
    if (mprotect(pages, bytes, protection))
        cudasim_fault("mprotect failed");
}

/* Few pages at a time: each costs the system more than most kernels here do with it. */
static void bring_within_reach(allocation *a, const char *at)
{
    const size_t most = 128 << 10;
    char *const pages = a->pages + (size_t)(at - a->pages) / most * most;
    const size_t left = (size_t)(a->pages + a->mapped - pages), bytes = std::min(left, most);

    protect(pages, bytes, PROT_READ | PROT_WRITE);
    memory.touched.push_back({a, pages, bytes});
}

static void on_segv(int signal, siginfo_t *info, void *context)
{
    const char *at = (const char *)info->si_addr;
    allocation *a = find_allocation(at);
    (void)context;

    if (a && a->live && memory.open && a->pages <= at && at < a->pages + a->mapped) {
        bring_within_reach(a, at);
        return; /* the instruction runs again */
    }
    if (a && !a->live)
        cudasim_fault("device memory that has been freed is touched");
    if (a && !memory.open)
        cudasim_fault("the host touches device memory, byte %td of %zu", at - a->data, a->bytes);
    if (a)
        cudasim_fault("byte %td of device memory of %zu bytes is touched", at - a->data, a->bytes);
    if (cudasim_past_shared(info->si_addr))
        cudasim_fault("memory past the block's shared memory is touched");
    sigaction(signal, &memory.others, NULL); /* happens again there */
}

void cudasim_watch(void)
{
    struct sigaction ours = {};

    ours.sa_sigaction = on_segv;
    ours.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK;
    sigaction(SIGSEGV, &ours, &memory.others);
}

__attribute__((no_sanitize("address"))) static void check_red(const reach &r)
{
    const allocation &a = *r.of;
    const char *const end = r.pages + r.bytes;

    for (const char *at = r.pages; at < end; at++) {
        if (a.data <= at && at < a.data + a.bytes)
            at = a.data + a.bytes;
        if (at < end && *at != (char)CUDASIM_RED_BYTE)
            cudasim_fault("device memory of %zu bytes is damaged at byte %td", a.bytes, at - a.data);
    }
}

void cudasim_open_memory(void)
{
    memory.open = true;
}

/* Memory that the work did not touch is as it was. While products are idle the memory stays open: there is much of it
 * then, and nothing to find. */
void cudasim_close_memory(void)
{
    for (const reach &r : memory.touched)
        check_red(r);
    if (cudasim_products_are_idle)
        return;
    for (const reach &r : memory.touched)
        protect(r.pages, r.bytes, PROT_NONE);
    memory.touched.clear();
    memory.open = false;
}

void cudasim_memory_left(void)
{
    for (const auto &[pages, a] : memory.allocations)
        if (a.live)
            cudasim_fault("%zu bytes of device memory are left at the end", a.bytes);
    for (const registration &r : memory.registrations)
        cudasim_fault("%zu bytes of host memory are left %s at the end", r.bytes,
                      r.allocated ? "allocated" : "registered");
}

void cudasim_limit(size_t device_bytes, size_t registered_bytes)
{
    memory.limit = device_bytes, memory.registered_limit = registered_bytes;
}

/* ---- allocations ---- */

size_t cudasim_device_bytes(void)
{
    return memory.limit;
}

cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    CUDASIM_CALL();

    *total = memory.limit;
    *available = memory.used < memory.limit ? memory.limit - memory.used : 0;
    return cudaSuccess;
}

/* Makes fresh memory NaNs. Whole pages of it are those of a file: what nobody touches takes no memory, and no time when
 * pages are put out of reach and back. */
static bool spoil(char *data, size_t bytes)
{
    static const size_t chunk = (size_t)8 << 20;
    static int fd = -1;
    const uintptr_t page = page_bytes();
    char *const first = (char *)(((uintptr_t)data + page - 1) / page * page);
    char *const last = (char *)(((uintptr_t)data + bytes) / page * page);

    if (first >= last) {
        memset(data, CUDASIM_POISON_BYTE, bytes);
        return true;
    }
    if (fd < 0) {
        const std::vector<char> spoilt(chunk, (char)CUDASIM_POISON_BYTE);
        fd = memfd_create("cudasim", MFD_CLOEXEC);
        if (fd < 0 || write(fd, spoilt.data(), chunk) != (ssize_t)chunk)
            return false;
    }
    for (char *at = first; at < last; at += chunk) {
        const size_t n = (size_t)(last - at) < chunk ? (size_t)(last - at) : chunk;
        if (mmap(at, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, fd, 0) == MAP_FAILED)
            return false;
    }
    memset(data, CUDASIM_POISON_BYTE, (size_t)(first - data));
    memset(last, CUDASIM_POISON_BYTE, (size_t)(data + bytes - last));
    return true;
}

cudaError_t cudaMalloc(void **to, size_t bytes)
{
    CUDASIM_CALL();
    const size_t page = page_bytes();
    allocation a = {};

    cudasim_counted.allocations++;
    *to = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (bytes > memory.limit || memory.used > memory.limit - bytes)
        return call.failed(cudaErrorMemoryAllocation);
    a.mapped = (CUDASIM_RED + bytes + CUDASIM_RED + page - 1) / page * page;
    char *all =
        (char *)mmap(NULL, GUARD + a.mapped + GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED || mprotect(all + GUARD, a.mapped, PROT_READ | PROT_WRITE))
        return call.failed(cudaErrorMemoryAllocation);
    a.pages = all + GUARD, a.data = a.pages + CUDASIM_RED, a.bytes = bytes, a.live = true;
    memset(a.pages, CUDASIM_RED_BYTE, CUDASIM_RED);
    memset(a.data + bytes, CUDASIM_RED_BYTE, (size_t)(a.pages + a.mapped - a.data) - bytes);
    if (!spoil(a.data, bytes))
        return call.failed(cudaErrorMemoryAllocation);
    CUDASIM_POISON(a.pages, CUDASIM_RED);
    CUDASIM_POISON(a.data + bytes, (size_t)(a.pages + a.mapped - a.data) - bytes);
    protect(a.pages, a.mapped, PROT_NONE);
    memory.allocations[a.pages] = a;
    memory.used += bytes;
    *to = a.data;
    return cudaSuccess;
}

cudaError_t cudaFree(void *address)
{
    CUDASIM_CALL();
    allocation *a = find_allocation(address);

    cudasim_counted.allocations++;
    if (!address)
        return cudaSuccess;
    if (!a || address != a->data || !a->live)
        cudasim_fault("cudaFree: %p is not device memory, or has been freed", address);
    cudasim_await_all(); /* as the runtime does */
    cudasim_close_memory();
    protect(a->pages, a->mapped, PROT_NONE);
    memory.touched.erase(std::remove_if(memory.touched.begin(), memory.touched.end(),
                                        [=](const reach &r) { return r.of == a; }),
                         memory.touched.end());
    a->live = false;
    memory.used -= a->bytes;
    madvise(a->pages, a->mapped, MADV_DONTNEED);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *address, size_t bytes, unsigned flags)
{
    CUDASIM_CALL();

    cudasim_counted.allocations++;
    if (!address || bytes == 0 ||
        (flags & ~(unsigned)(cudaHostRegisterPortable | cudaHostRegisterMapped | cudaHostRegisterReadOnly)) ||
        find_allocation(address))
        return call.failed(cudaErrorInvalidValue);
    if (find_registration(address, bytes))
        return call.failed(cudaErrorHostMemoryAlreadyRegistered);
    if (bytes > memory.registered_limit || memory.registered > memory.registered_limit - bytes)
        return call.failed(cudaErrorMemoryAllocation);
    memory.registrations.push_back({(char *)address, bytes, (flags & cudaHostRegisterReadOnly) != 0, false});
    memory.registered += bytes;
    return cudaSuccess;
}

/* False: there is no such registration. */
static bool unregister(void *address, bool allocated)
{
    for (auto r = memory.registrations.begin(); r != memory.registrations.end(); r++)
        if (r->data == address && r->allocated == allocated) {
            memory.registered -= r->bytes;
            memory.registrations.erase(r);
            return true;
        }
    return false;
}

cudaError_t cudaHostUnregister(void *address)
{
    CUDASIM_CALL();

    cudasim_counted.allocations++;
    return unregister(address, false) ? cudaSuccess : call.failed(cudaErrorHostMemoryNotRegistered);
}

cudaError_t cudaHostAlloc(void **to, size_t bytes, unsigned flags)
{
    CUDASIM_CALL();
    (void)flags;

    cudasim_counted.allocations++;
    if (bytes > memory.registered_limit || memory.registered > memory.registered_limit - bytes ||
        posix_memalign(to, page_bytes(), bytes ? bytes : 1))
        return call.failed(cudaErrorMemoryAllocation);
    memset(*to, CUDASIM_POISON_BYTE, bytes);
    memory.registrations.push_back({(char *)*to, bytes, false, true});
    memory.registered += bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **to, size_t bytes)
{
    CUDASIM_CALL();

    return cudaHostAlloc(to, bytes, cudaHostAllocDefault);
}

cudaError_t cudaFreeHost(void *address)
{
    CUDASIM_CALL();

    cudasim_counted.allocations++;
    if (!address)
        return cudaSuccess;
    if (!unregister(address, true))
        cudasim_fault("cudaFreeHost: %p is not memory of cudaHostAlloc, or has been freed", address);
    free(address);
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned flags)
{
    CUDASIM_CALL();

    if (flags || !find_registration(host, 0))
        return call.failed(cudaErrorInvalidValue);
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *address)
{
    CUDASIM_CALL();
    const allocation *a = find_allocation(address);

    *attributes = {};
    if (a && a->live) {
        attributes->type = cudaMemoryTypeDevice;
        attributes->devicePointer = (void *)address;
    } else if (find_registration(address, 0)) {
        attributes->type = cudaMemoryTypeHost;
        attributes->devicePointer = attributes->hostPointer = (void *)address;
    }
    return cudaSuccess;
}

/* ---- copies ---- */

static cudaError_t copy_pageable(void *to, const void *from, size_t bytes, bool upload, cudaStream_t stream)
{
    const char *who = "cudaMemcpyAsync";
    const struct cudasim_duration duration = cudasim_copy_duration((double)bytes, upload, !upload);

    cudasim_counted.pageable_copies++;
    if (upload) {
        std::shared_ptr<char> taken((char *)malloc(bytes), free);
        memcpy(taken.get(), from, bytes);
        cudasim_queue(stream, duration, [=]() {
            cudasim_check(who, to, bytes, true);
            memcpy(to, taken.get(), bytes);
        });
    } else {
        cudasim_queue(stream, duration, [=]() {
            cudasim_check(who, from, bytes, false);
            memcpy(to, from, bytes);
        });
        cudasim_run_stream(stream);
    }
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    CUDASIM_CALL();
    const char *who = "cudaMemcpyAsync";
    const bool to_device = find_allocation(to), from_device = find_allocation(from);
    const int really = to_device ? (from_device ? cudaMemcpyDeviceToDevice : cudaMemcpyHostToDevice)
                                 : (from_device ? cudaMemcpyDeviceToHost : cudaMemcpyHostToHost);

    cudasim_check_stream(stream, who);
    if (kind != cudaMemcpyDefault && (int)kind != really)
        return call.failed(cudaErrorInvalidValue);
    if (really == cudaMemcpyHostToHost)
        return call.failed(cudaErrorNotSupported);
    if (bytes == 0)
        return cudaSuccess;
    cudasim_counted.copies++;
    if (to_device || find_registration(to, bytes))
        cudasim_check(who, to, bytes, true);
    if (from_device || find_registration(from, bytes))
        cudasim_check(who, from, bytes, false);
    if ((!to_device && !find_registration(to, bytes)) || (!from_device && !find_registration(from, bytes)))
        return copy_pageable(to, from, bytes, to_device, stream);
    const double moved = to_device && from_device ? 2.0 * (double)bytes : (double)bytes;
    cudasim_queue(stream, cudasim_copy_duration(moved, to_device, from_device), [=]() {
        cudasim_check(who, to, bytes, true);
        cudasim_check(who, from, bytes, false);
        memcpy(to, from, bytes);
    });
    return cudaSuccess;
}

cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, cudaStream_t stream)
{
    CUDASIM_CALL();
    const char *who = "cudaMemsetAsync";

    cudasim_check_stream(stream, who);
    cudasim_check(who, to, bytes, true);
    cudasim_counted.zeroings++;
    cudasim_counted.zeroed_bytes += bytes;
    cudasim_queue(stream, cudasim_copy_duration((double)bytes, true, true), [=]() {
        cudasim_check(who, to, bytes, true);
        memset(to, value, bytes);
    });
    return cudaSuccess;
}
