#include "proto/base/near.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

/* tests/fixtures/topology/two_sockets.xml has two sockets. Device 0000:3b:00.0 is at the first and 3c at the second, whose
 * node 2 is a GPU's own memory; of 3d nothing is told but that it is there. The file has no comment: hwloc reads those by a
 * plugin alone, which is a package of its own. */
static const struct {
    const char *bus, *nodes; /* "": none */
} cases[] = {
    {"0000:3b:00.0", "0"}, {"3b:00.0", "0"}, {"0000:3c:00.0", "1"}, /* node 2 of that socket is a GPU's own */
    {"0000:3d:00.0", ""},                                           /* no socket is told */
    {"0000:3e:00.0", ""},                                           /* not there */
    {"0001:3b:00.0", ""},  {"3b", ""},       {"", ""},
};

static void check(hwloc_topology_t topology, const char *bus, const char *want)
{
    hwloc_nodeset_t nodes = hwloc_bitmap_alloc();
    char text[64];

    ck_assert_int_eq(near_nodes(nodes, topology, bus), *want != '\0');
    hwloc_bitmap_list_snprintf(text, sizeof text, nodes);
    ck_assert_msg(strcmp(text, want) == 0, "%s: nodes %s, not %s", bus, text, want);
    hwloc_bitmap_free(nodes);
}

TEST_EACH(the_nodes_near_a_device_are_those_of_its_socket, COUNT(cases))
{
    hwloc_topology_t topology;

    setenv("HWLOC_XMLFILE", TESTS_DIR "/fixtures/topology/two_sockets.xml", 1);
    ck_assert_int_eq(near_load(&topology), 0);
    ck_assert_int_eq(hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE), 3);
    check(topology, cases[_i].bus, cases[_i].nodes);
    hwloc_topology_destroy(topology);
}

TEST(the_nodes_near_several_devices_are_all_of_theirs)
{
    hwloc_nodeset_t nodes = hwloc_bitmap_alloc();
    hwloc_topology_t topology;

    setenv("HWLOC_XMLFILE", TESTS_DIR "/fixtures/topology/two_sockets.xml", 1);
    ck_assert_int_eq(near_load(&topology), 0);
    ck_assert(near_nodes(nodes, topology, "0000:3c:00.0"));
    ck_assert(near_nodes(nodes, topology, "0000:3b:00.0"));
    ck_assert(!near_nodes(nodes, topology, "0000:3d:00.0")); /* changes nothing */
    ck_assert_int_eq(hwloc_bitmap_weight(nodes), 2);
    ck_assert(hwloc_bitmap_isset(nodes, 0) && hwloc_bitmap_isset(nodes, 1));
    hwloc_bitmap_free(nodes);
    hwloc_topology_destroy(topology);
}

/* Synthetic: no PCI devices, as in a container. */
TEST(where_hwloc_knows_no_device_nothing_is_near)
{
    static const char *const machines[] = {"pack:2 [numa] core:2 pu:1", "pack:1 core:2 pu:1"};
    hwloc_topology_t topology;

    for (size_t i = 0; i < COUNT(machines); i++) {
        setenv("HWLOC_SYNTHETIC", machines[i], 1);
        ck_assert_int_eq(near_load(&topology), 0);
        check(topology, "0000:3b:00.0", "");
        hwloc_topology_destroy(topology);
    }
}
