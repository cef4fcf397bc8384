/* device/cuda/marks.c - marks: one event each.
 *
 * An event is reused only when its mark is reached. If it were reused earlier, a queue that follows the old mark would
 * wait for the new one too: the upload of a tile would wait for all downloads since. A step of L layers in n
 * microbatches has up to 2 L n marks of tiles pending, so the number of events grows on demand. The host runs at most
 * one step ahead of the device, so the first step reaches the final number. */
#include "device/cuda/cuda.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* Makes room for `more` further marks. */
static cudaError_t marks_make_room(struct cuda_marks *marks, size_t more)
{
    const size_t room = marks->room + more;
    cudaEvent_t *events = calloc(room, sizeof *events);
    cudaError_t rc = events ? cudaSuccess : cudaErrorMemoryAllocation;
    uint64_t next = marks->n + 1;

    for (; next <= marks->n + more && rc == cudaSuccess; next++)
        rc = cudaEventCreateWithFlags(&events[next % room], cudaEventDisableTiming | cudaEventBlockingSync);
    if (rc != cudaSuccess) {
        while (events && --next > marks->n)
            if (events[next % room])
                cudaEventDestroy(events[next % room]);
        free(events);
        return rc;
    }
    for (uint64_t i = marks->n + 1 - marks->room; i <= marks->n; i++)
        events[i % room] = marks->events[i % marks->room];
    free(marks->events);
    marks->events = events;
    marks->room = room;
    return cudaSuccess;
}

cudaError_t cuda_marks_open(struct cuda_marks *marks)
{
    return marks_make_room(marks, CUDA_MARKS);
}

void cuda_marks_close(struct cuda_marks *marks)
{
    for (size_t i = 0; i < marks->room; i++)
        cudaEventDestroy(marks->events[i]);
    free(marks->events);
    *marks = (struct cuda_marks){0};
}

static cudaEvent_t event_of(const struct cuda_marks *marks, uint64_t mark)
{
    return marks->events[mark % marks->room];
}

/* Notes which marks are reached by now. */
static void update_reached(struct device *dev, struct cuda_marks *marks)
{
    cudaError_t rc = cudaSuccess;

    while (marks->reached < marks->n && (rc = cudaEventQuery(event_of(marks, marks->reached + 1))) == cudaSuccess)
        marks->reached++;
    if (rc == cudaErrorNotReady)
        cudaGetLastError(); /* "not ready" is no error */
    else
        cuda_note(dev, rc);
}

uint64_t cuda_mark(struct device *dev, enum device_queue queue)
{
    struct cuda_marks *marks = &dev->marks[queue];

    if (marks->n - marks->reached >= marks->room)
        update_reached(dev, marks);
    if (marks->n - marks->reached >= marks->room && dev->failed == cudaSuccess)
        cuda_note(dev, marks_make_room(marks, marks->room));
    marks->n++;
    cuda_note(dev, cudaEventRecord(event_of(marks, marks->n), dev->streams[queue]));
    return marks->n;
}

void cuda_follow(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t mark)
{
    const struct cuda_marks *marks = &dev->marks[other];

    assert(mark <= marks->n);
    if (mark > marks->reached && queue != other)
        cuda_note(dev, cudaStreamWaitEvent(dev->streams[queue], event_of(marks, mark), 0));
}

int cuda_finish(struct device *dev, enum device_queue queue, uint64_t mark)
{
    struct cuda_marks *marks = &dev->marks[queue];

    assert(mark <= marks->n);
    if (mark > marks->reached && dev->failed == cudaSuccess) {
        cuda_note(dev, cudaEventSynchronize(event_of(marks, mark)));
        if (dev->failed == cudaSuccess)
            marks->reached = mark;
    }
    return dev->failed == cudaSuccess ? 0 : -EIO;
}

/* Waits on marks, where the host sleeps. Waiting on a stream would spin on a core that others need. */
int cuda_sync(struct device *dev)
{
    int rc = 0;

    for (unsigned i = 0; i < DEVICE_QUEUES && rc == 0; i++)
        rc = cuda_finish(dev, (enum device_queue)i, cuda_mark(dev, (enum device_queue)i));
    return rc;
}
