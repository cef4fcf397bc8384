/* Limits of memory, from files like those of /proc/self/cgroup and /sys/fs/cgroup. */
#include "proto/base/cgroup.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <sys/stat.h>

static void setup(void)
{
    static const char *const directories[] = {"fs", "fs/a", "fs/a/b", "fs/memory", "fs/memory/a"};

    processes_setup();
    for (int i = 0; i < COUNT(directories); i++)
        ck_assert_int_eq(mkdir(directories[i], 0777), 0);
}

SUITE_FIXTURE(setup, processes_remove)

#define ALL UINT64_MAX
enum { OWN, AROUND, NONE, OLDER, SCENARIOS };

/* One after the other, in a fresh tree for each scenario: a file of fs/ is written, if one is named; then a process
 * with this membership, if one is given, has so much available. */
static const struct {
    int scenario;
    const char *file, *text, *membership;
    uint64_t available;
} steps[] = {
    /* A container: its own group is the root that it sees. What is not used yet is left. */
    {OWN, "memory.max", "1000000\n", NULL, 0},
    {OWN, "memory.current", "300000\n", "0::/\n", 700000},
    /* Pages of files can be taken back. */
    {OWN, "memory.stat", "anon 150000\nfile 150000\nactive_file 40000\ninactive_file 60000\n", "0::/\n", 800000},
    {OWN, "memory.current", "90000\n", "0::/\n", 1000000}, /* read at another instant: no more than all of it */
    {OWN, "memory.stat", "anon 90000\n", NULL, 0},
    {OWN, "memory.current", "1000001\n", "0::/\n", 0}, /* a limit can be lowered below what is used */
    /* The narrowest of a group and those around it counts. */
    {AROUND, "a/memory.max", "500\n", NULL, 0},
    {AROUND, "a/memory.current", "100\n", NULL, 0},
    {AROUND, "a/b/memory.max", "max\n", NULL, 0},
    {AROUND, "a/b/memory.current", "100\n", "0::/a/b\n", 400},
    {AROUND, "a/b/memory.max", "250\n", "0::/a/b\n", 150},
    {AROUND, NULL, NULL, "0::/a\n", 400},
    {AROUND, NULL, NULL, "0::/a/missing\n", 400},
    {NONE, NULL, NULL, "0::/\n", ALL},
    {NONE, "memory.max", "max\n", NULL, 0},
    {NONE, "memory.current", "300000\n", "0::/\n", ALL},
    {NONE, "memory.max", "1000\n", "3:cpuset:/\n2:memory_of_what:/a\n", ALL},
    {NONE, NULL, NULL, "0:/\n:\n::\n4:memory\n", ALL},
    {NONE, NULL, NULL, "", ALL},
    /* The older interface: by controller, with other names, a group's file pages counted with those below it, and
     * 2^63 - 4096 for no limit. Some systems have both. */
    {OLDER, "memory/memory.limit_in_bytes", "9223372036854771712\n", NULL, 0},
    {OLDER, "memory/memory.usage_in_bytes", "5000\n", "4:memory:/\n", 9223372036854771712u - 5000},
    {OLDER, "memory/a/memory.limit_in_bytes", "1000\n", NULL, 0},
    {OLDER, "memory/a/memory.usage_in_bytes", "400\n", "5:cpu:/x\n4:memory:/a\n0::/\n", 600},
    {OLDER, NULL, NULL, "4:cpuset,memory,cpu:/a\n", 600},
    {OLDER, NULL, NULL, "2:memory_of_what:/a\n", ALL},
    {OLDER, "memory/a/memory.stat", "inactive_file 1\nactive_file 2\ntotal_inactive_file 60\ntotal_active_file 40\n",
     "4:memory:/a\n", 700},
    {OLDER, "memory.max", "650\n", NULL, 0},
    {OLDER, "memory.current", "0\n", "4:memory:/a\n0::/\n", 650},
};

TEST_EACH(the_least_of_all_limits_is_available, SCENARIOS)
{
    char path[64];

    ck_assert_uint_eq(cgroup_available_bytes("nowhere", "fs"), ALL);
    for (int i = 0; i < COUNT(steps); i++) {
        if (steps[i].scenario != _i)
            continue;
        snprintf(path, sizeof path, "fs/%s", steps[i].file ? steps[i].file : "");
        if (steps[i].file)
            processes_put_text(path, steps[i].text);
        if (!steps[i].membership)
            continue;
        const uint64_t available = cgroup_available_bytes(processes_put_text("self", steps[i].membership), "fs");
        ck_assert_msg(available == steps[i].available, "step %d: %ju", i, (uintmax_t)available);
    }
}
