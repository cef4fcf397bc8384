/* device/cuda/memory.c - host memory for the device: lent to it, or copied through page-locked pieces.
 *
 * The driver can also copy memory that is not lent, but its manual leaves open when such a call blocks. Here
 * cuda_download returns when all bytes have arrived. What fits in a piece is uploaded as host memory holds it during
 * the call. More, such as weights whose mapping a device cannot register, is read until the upload is done: a thread of
 * the driver's fills one piece while the device empties the other, and the caller goes on launching. */
#include "device/cuda/cuda.h"

#include "proto/base/process.h"
#include "proto/base/size.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* pulled: it is filled by the driver's thread, which an event must tell of. */
static cudaError_t open_piece(struct cuda_piece *piece, bool pulled)
{
    cudaError_t rc = cudaEventCreateWithFlags(&piece->done, cudaEventDisableTiming | cudaEventBlockingSync);

    if (rc == cudaSuccess && pulled)
        rc = cudaEventCreateWithFlags(&piece->filled, cudaEventDisableTiming);
    if (rc == cudaSuccess)
        rc = cudaHostAlloc((void **)&piece->host, CUDA_PIECE_BYTES, cudaHostAllocDefault);
    return rc;
}

static void close_piece(struct cuda_piece *piece)
{
    if (piece->host)
        cudaFreeHost(piece->host);
    if (piece->filled)
        cudaEventDestroy(piece->filled);
    if (piece->done)
        cudaEventDestroy(piece->done);
}

cudaError_t cuda_memory_open(struct device *dev)
{
    cudaError_t rc = cudaStreamCreateWithFlags(&dev->filling, cudaStreamNonBlocking);

    for (unsigned i = 0; i < CUDA_PIECES && rc == cudaSuccess; i++) {
        rc = open_piece(&dev->pieces[i], false);
        if (rc == cudaSuccess)
            rc = open_piece(&dev->pulled[i], true);
    }
    return rc;
}

void cuda_memory_close(struct device *dev)
{
    for (unsigned i = 0; i < CUDA_LENT; i++)
        if (dev->lent[i].host)
            cuda_unlend(dev, dev->lent[i].host);
    if (dev->filling) { /* waits for the host's threads, too */
        cudaStreamSynchronize(dev->filling);
        cudaStreamDestroy(dev->filling);
    }
    for (unsigned i = 0; i < CUDA_PIECES; i++)
        close_piece(&dev->pieces[i]), close_piece(&dev->pulled[i]);
    for (struct cuda_fill *f = dev->newest_fill, *next; f; f = next != dev->newest_fill ? next : NULL) {
        next = f->next;
        free(f);
    }
}

static int memory_refuse(struct error *err, size_t bytes, cudaError_t rc)
{
    struct rlimit limit;
    char size[PROCESS_BYTES_TEXT], most[PROCESS_BYTES_TEXT] = "unlimited";

    cudaGetLastError(); /* reported here */
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY)
        process_format_bytes(most, limit.rlim_cur);
    return error_set(
        err, rc == cudaErrorMemoryAllocation ? -ENOMEM : -EPERM,
        "%s of host memory cannot be locked for the device (%s: %s), so that copies are slower: what limits "
        "it is free memory, the memory limit of a container, or ulimit -l, which is %s",
        process_format_bytes(size, bytes), cudaGetErrorName(rc), cudaGetErrorString(rc), most);
}

/* Registers read-only memory as such if the device supports that; a mapping that cannot be written needs it. */
static unsigned flags_for(const struct device *dev, bool writable)
{
    int read_only = 0;

    if (!writable)
        cudaDeviceGetAttribute(&read_only, cudaDevAttrHostRegisterReadOnlySupported, (int)dev->index);
    return cudaHostRegisterMapped | (read_only ? cudaHostRegisterReadOnly : 0);
}

/* Whole pages are registered, as the driver takes no others; what else is on them is lent, too. */
int cuda_lend(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), before = (uintptr_t)host % page;
    const size_t whole = (before + bytes + page - 1) / page * page;
    struct cuda_lent *lent = dev->lent;
    char *pages = (char *)(uintptr_t)host - before;
    void *device = NULL;

    assert(bytes > 0);
    while (lent < dev->lent + CUDA_LENT && lent->host)
        lent++;
    assert(lent < dev->lent + CUDA_LENT);
    cudaError_t rc = cudaHostRegister(pages, whole, flags_for(dev, writable));
    if (rc != cudaSuccess)
        return memory_refuse(err, bytes, rc);
    rc = cudaHostGetDevicePointer(&device, pages, 0);
    if (rc != cudaSuccess) {
        cudaHostUnregister(pages);
        return memory_refuse(err, bytes, rc);
    }
    *lent = (struct cuda_lent){.host = host, .bytes = bytes, .pages = pages, .device = (char *)device + before};
    return 0;
}

void cuda_unlend(struct device *dev, const void *host)
{
    for (struct cuda_lent *lent = dev->lent; lent < dev->lent + CUDA_LENT; lent++)
        if (lent->host == host) {
            cuda_note(dev, cudaHostUnregister(lent->pages));
            *lent = (struct cuda_lent){0};
            return;
        }
}

/* Written so that no sum can overflow. */
static bool within(const void *at, size_t bytes, const char *base, size_t size)
{
    const uintptr_t first = (uintptr_t)at, start = (uintptr_t)base;

    return base && first >= start && first - start <= size && bytes <= size - (first - start);
}

static const struct cuda_lent *find_lent(const struct device *dev, const void *host, size_t bytes)
{
    for (const struct cuda_lent *lent = dev->lent; lent < dev->lent + CUDA_LENT; lent++)
        if (within(host, bytes, lent->host, lent->bytes))
            return lent;
    return NULL;
}

const void *cuda_reach(const struct device *dev, const void *at, size_t bytes)
{
    if (within(at, bytes, dev->arena, dev->arena_bytes))
        return at;
    const struct cuda_lent *lent = find_lent(dev, at, bytes);
    return lent ? lent->device + ((const char *)at - lent->host) : NULL;
}

/* Waits for the least recently used piece. */
static struct cuda_piece *take_piece(struct device *dev)
{
    struct cuda_piece *piece = &dev->pieces[dev->next_piece];

    dev->next_piece = (dev->next_piece + 1) % CUDA_PIECES;
    cuda_note(dev, cudaEventSynchronize(piece->done));
    return piece;
}

/* What fits in a piece, on either queue that reads host memory: pulls, or computation. */
static void feed(struct device *dev, enum device_queue queue, void *dst, const void *host, size_t bytes)
{
    struct cuda_piece *piece = take_piece(dev);

    memcpy(piece->host, host, bytes);
    cuda_note(dev, cudaMemcpyAsync(dst, piece->host, bytes, cudaMemcpyHostToDevice, dev->streams[queue]));
    cuda_note(dev, cudaEventRecord(piece->done, dev->streams[queue]));
}

/* ---- pulls: pieces that are filled on a stream of their own ---- */

/* The oldest if it is done, as they are done in order; else one more, behind the newest. */
static struct cuda_fill *take_fill(struct device *dev)
{
    struct cuda_fill *newest = dev->newest_fill, *f = newest ? newest->next : NULL;

    if (!f || !__atomic_load_n(&f->done, __ATOMIC_ACQUIRE)) {
        f = calloc(1, sizeof *f);
        if (!f)
            return NULL;
        f->next = newest ? newest->next : f;
        if (newest)
            newest->next = f;
    }
    return dev->newest_fill = f;
}

/* Called by the driver, where no call of its own is allowed. */
static void CUDART_CB memory_fill(void *data)
{
    struct cuda_fill *f = data;

    memcpy(f->to, f->from, f->bytes);
    __atomic_store_n(&f->done, true, __ATOMIC_RELEASE);
}

/* Once the device has emptied the piece. */
static cudaError_t fill_behind(struct device *dev, struct cuda_piece *piece, const char *host, size_t bytes)
{
    struct cuda_fill *f = take_fill(dev);
    cudaError_t rc = f ? cudaStreamWaitEvent(dev->filling, piece->done, 0) : cudaErrorMemoryAllocation;

    if (rc != cudaSuccess)
        return rc;
    f->to = piece->host, f->from = host, f->bytes = bytes, f->done = false;
    rc = cudaLaunchHostFunc(dev->filling, memory_fill, f);
    if (rc != cudaSuccess)
        f->done = true;
    return rc == cudaSuccess ? cudaEventRecord(piece->filled, dev->filling) : rc;
}

static void memory_pull(struct device *dev, char *dst, const char *host, size_t bytes)
{
    const cudaStream_t stream = dev->streams[DEVICE_PULL];

    for (size_t at = 0; at < bytes && !dev->failed; at += CUDA_PIECE_BYTES) {
        struct cuda_piece *piece = &dev->pulled[dev->next_pulled];
        const size_t here = size_smaller(bytes - at, CUDA_PIECE_BYTES);
        dev->next_pulled = (dev->next_pulled + 1) % CUDA_PIECES;
        cuda_note(dev, fill_behind(dev, piece, host + at, here));
        cuda_note(dev, cudaStreamWaitEvent(stream, piece->filled, 0));
        cuda_note(dev, cudaMemcpyAsync(dst + at, piece->host, here, cudaMemcpyHostToDevice, stream));
        cuda_note(dev, cudaEventRecord(piece->done, stream));
    }
}

/* ---- */

void cuda_fetch(struct device *dev, const void *host, size_t bytes)
{
    assert(bytes <= CUDA_PIECE_BYTES);
    feed(dev, DEVICE_COMPUTE, dev->workspace, host, bytes);
}

void cuda_upload(struct device *dev, void *dst, const void *host, size_t bytes)
{
    if (bytes == 0)
        return;
    if (find_lent(dev, host, bytes))
        cuda_note(dev, cudaMemcpyAsync(dst, host, bytes, cudaMemcpyHostToDevice, dev->streams[DEVICE_PULL]));
    else if (bytes > CUDA_PIECE_BYTES)
        memory_pull(dev, dst, host, bytes);
    else
        feed(dev, DEVICE_PULL, dst, host, bytes);
}

/* The device fills one piece while the host empties the one before. */
static void memory_drain(struct device *dev, char *host, const char *src, size_t bytes)
{
    const size_t n_pieces = (bytes + CUDA_PIECE_BYTES - 1) / CUDA_PIECE_BYTES;
    const cudaStream_t stream = dev->streams[DEVICE_PUSH];
    struct cuda_piece *pieces[CUDA_PIECES];
    size_t n_asked = 0;

    for (size_t i = 0; i < n_pieces; i++) {
        for (; n_asked < n_pieces && n_asked < i + CUDA_PIECES && !dev->failed; n_asked++) {
            const size_t at = n_asked * CUDA_PIECE_BYTES, here = size_smaller(bytes - at, CUDA_PIECE_BYTES);
            struct cuda_piece *piece = pieces[n_asked % CUDA_PIECES] = take_piece(dev);
            cuda_note(dev, cudaMemcpyAsync(piece->host, src + at, here, cudaMemcpyDeviceToHost, stream));
            cuda_note(dev, cudaEventRecord(piece->done, stream));
        }
        if (dev->failed)
            return;
        cuda_note(dev, cudaEventSynchronize(pieces[i % CUDA_PIECES]->done));
        memcpy(host + i * CUDA_PIECE_BYTES, pieces[i % CUDA_PIECES]->host,
               size_smaller(bytes - i * CUDA_PIECE_BYTES, CUDA_PIECE_BYTES));
    }
}

void cuda_download(struct device *dev, void *host, const void *src, size_t bytes)
{
    if (bytes == 0)
        return;
    if (find_lent(dev, host, bytes))
        cuda_note(dev, cudaMemcpyAsync(host, src, bytes, cudaMemcpyDeviceToHost, dev->streams[DEVICE_PUSH]));
    else
        memory_drain(dev, host, src, bytes);
}
