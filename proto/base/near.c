/* Placement is speed, never correctness: any failure leaves the thread where it was, without a word. A binding only
 * narrows what the thread was given, so the limits of a container, of taskset and of a batch system hold.
 *
 * Some GPUs' own memory is a NUMA node. If such nodes counted, a machine with one socket would seem to have several,
 * and host memory would be taken from a GPU. */
#include "proto/base/near.h"

#include "proto/base/log.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static int load(hwloc_topology_t *out, bool with_devices)
{
    hwloc_topology_t topology;

    *out = NULL;
    if (hwloc_topology_init(&topology) < 0)
        return -ENOMEM;
    if (with_devices)
        hwloc_topology_set_type_filter(topology, HWLOC_OBJ_PCI_DEVICE, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    /* sysfs has the devices, too; libpciaccess, by which this component finds them, is never given back */
    hwloc_topology_set_components(topology, HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, "pci");
    if (hwloc_topology_load(topology) < 0) {
        hwloc_topology_destroy(topology);
        return -ENOMEM;
    }
    *out = topology;
    return 0;
}

/* Looking for devices takes milliseconds in a virtual machine, for each word that it reads of them. */
int near_load(hwloc_topology_t *out)
{
    const int rc = load(out, false);

    if (rc || hwloc_get_nbobjs_by_type(*out, HWLOC_OBJ_NUMANODE) == 1)
        return rc;
    hwloc_topology_destroy(*out);
    return load(out, true);
}

/* False of memory that is a GPU's, or slow. */
static bool is_ordinary(const struct hwloc_obj *node)
{
    return !node->subtype || strcmp(node->subtype, "DRAM") == 0;
}

bool near_nodes(hwloc_nodeset_t nodes, hwloc_topology_t topology, const char *bus)
{
    hwloc_obj_t device = *bus ? hwloc_get_pcidev_by_busidstring(topology, bus) : NULL;
    hwloc_obj_t place = device ? hwloc_get_non_io_ancestor_obj(topology, device) : NULL, node = NULL;
    unsigned n = 0, n_near = 0;

    while (place && (node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node))) {
        n += is_ordinary(node);
        n_near += is_ordinary(node) && hwloc_bitmap_isset(place->nodeset, node->os_index);
    }
    if (n_near == 0 || n_near == n)
        return false;
    while ((node = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, node)))
        if (is_ordinary(node) && hwloc_bitmap_isset(place->nodeset, node->os_index))
            hwloc_bitmap_set(nodes, node->os_index);
    return true;
}

static void bind_thread(hwloc_topology_t topology, const char *bus, hwloc_nodeset_t nodes, hwloc_cpuset_t all,
                        hwloc_cpuset_t near)
{
    char text[128];

    if (!near_nodes(nodes, topology, bus) || hwloc_get_cpubind(topology, all, HWLOC_CPUBIND_THREAD) < 0)
        return;
    hwloc_cpuset_from_nodeset(topology, near, nodes);
    hwloc_bitmap_and(near, near, all);
    if (hwloc_bitmap_iszero(near) || hwloc_set_cpubind(topology, near, HWLOC_CPUBIND_THREAD) < 0)
        return;
    hwloc_bitmap_list_snprintf(text, sizeof text, near);
    log_line("threads run on processors %s, near the device at %s", text, bus);
}

void near_bind(const char *bus)
{
    hwloc_bitmap_t nodes, all, near;
    hwloc_topology_t topology;

    if (!*bus || near_load(&topology))
        return;
    nodes = hwloc_bitmap_alloc(), all = hwloc_bitmap_alloc(), near = hwloc_bitmap_alloc();
    if (nodes && all && near)
        bind_thread(topology, bus, nodes, all, near);
    hwloc_bitmap_free(nodes), hwloc_bitmap_free(all), hwloc_bitmap_free(near);
    hwloc_topology_destroy(topology);
}
