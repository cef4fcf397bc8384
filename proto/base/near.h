/* proto/base/near.h - what is near a PCI device: NUMA nodes and processors, as hwloc knows them.
 *
 * A GPU hangs on one socket. Copies between it and memory of another socket cross the link between the two, which
 * others use, too. On a machine with one node, in a container that hides PCI devices, and for a device that hwloc
 * cannot place, nothing is near, and everything stays as it was.
 *
 * Devices are named by their PCI addresses (device_name_bus); "" is none. */
#ifndef PROTO_BASE_NEAR_H
#define PROTO_BASE_NEAR_H

#include <hwloc.h>
#include <stdbool.h>

/* This machine; with its PCI devices, if it has more than one node. -ENOMEM. Undo: hwloc_topology_destroy. */
int near_load(hwloc_topology_t *out);

/* Adds the nodes near the device to `nodes`: those of its socket with ordinary memory. False: none is known to be
 * nearer than the others. */
bool near_nodes(hwloc_nodeset_t nodes, hwloc_topology_t topology, const char *bus);

/* From now on this thread, and those that it makes, run on the processors near the device, of those where they may run.
 * The log says so. */
void near_bind(const char *bus);

#endif
