/* eps/store/memory.h - large, long-lived memory: near the threads that work on it, in huge pages, locked.
 *
 * All three are wishes, each worth a few per cent. Without huge pages, a pass over the moments waits for the page
 * table. Without locking, the system may swap the pages out. Without binding, half of the passes cross to another
 * node. While memory is prepared, refusals of the system are collected; the log names them once. Pages come zeroed.
 * Each lies on the node of the thread that touches it first; those that devices copy, near these (memory_near). */
#ifndef EPS_STORE_MEMORY_H
#define EPS_STORE_MEMORY_H

#include "proto/base/error.h"

#include <hwloc.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MEMORY_HUGE = 1, MEMORY_SHARED_HUGE = 2, MEMORY_LOCK = 4, MEMORY_BIND = 8 };

struct memory {
    hwloc_topology_t topology; /* owned */
    hwloc_nodeset_t near;      /* owned; empty: shared pages are for the node of the thread that touches them first */
    unsigned denied;           /* MEMORY_...: wishes that the system refused */
    uint64_t prepared_bytes;   /* so far, in whole pages */
};

/* -ENOMEM. Undo: memory_free, which leaves prepared and allocated memory alone. */
int memory_init(struct memory *memory);
void memory_free(struct memory *memory); /* safe on a zeroed one */

/* From now on memory_prepare puts shared pages near the devices at these n PCI addresses: on their node, or in turn on
 * the nodes of several. Where none is known (proto/base/near.h), or n is 0, they lie as all others do. The log says
 * where `what` lies. */
void memory_near(struct memory *memory, const char *what, const char *const *buses, unsigned n);

/* Prepares pages that were mapped elsewhere and are not touched yet; shared: a memfd's. */
void memory_prepare(struct memory *memory, void *base, size_t bytes, bool shared);

/* Private zero pages, prepared. NULL if there is no room. Undo: memory_unmap with the same size. */
void *memory_map(struct memory *memory, size_t bytes);
void memory_unmap(void *base, size_t bytes); /* NULL is fine */

/* 0, or -EPERM if locking was refused. The sentence says what `ulimit -l` is, and what it must be for all prepared
 * memory. */
int memory_check_locked(const struct memory *memory, struct error *err);

/* Logs one line on what the system refused and what the machine's owner can do about it. Logs nothing if nothing was
 * refused beyond what the log has (MEMORY_...) already. */
void memory_report(const struct memory *memory, unsigned said);

#endif
