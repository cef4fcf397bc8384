/* Limits of memory, from files like those of /proc/self/cgroup and /sys/fs/cgroup. */
#include "proto/base/cgroup.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static void put(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");

    ck_assert_ptr_nonnull(file);
    ck_assert_int_ge(fputs(text, file), 0);
    ck_assert_int_eq(fclose(file), 0);
}

static uint64_t available(const char *membership)
{
    put("self", membership);
    return cgroup_available_bytes("self", "fs");
}

/* A container: its own group is the root that it sees. */
TEST(a_limit_leaves_what_is_not_used_yet)
{
    put("fs/memory.max", "1000000\n");
    put("fs/memory.current", "300000\n");
    ck_assert_uint_eq(available("0::/\n"), 700000);
    put("fs/memory.stat", "anon 150000\nfile 150000\nactive_file 40000\ninactive_file 60000\n");
    ck_assert_uint_eq(available("0::/\n"), 800000); /* those pages can be taken back */
    put("fs/memory.current", "90000\n");
    ck_assert_uint_eq(available("0::/\n"), 1000000); /* read at another instant: no more than all of it */
    put("fs/memory.stat", "anon 90000\n");
    put("fs/memory.current", "1000001\n"); /* a limit can be lowered below what is used */
    ck_assert_uint_eq(available("0::/\n"), 0);
}

TEST(the_narrowest_of_a_group_and_those_around_it_counts)
{
    put("fs/a/memory.max", "500\n");
    put("fs/a/memory.current", "100\n");
    put("fs/a/b/memory.max", "max\n");
    put("fs/a/b/memory.current", "100\n");
    ck_assert_uint_eq(available("0::/a/b\n"), 400);
    put("fs/a/b/memory.max", "250\n");
    ck_assert_uint_eq(available("0::/a/b\n"), 150);
    ck_assert_uint_eq(available("0::/a\n"), 400);
    ck_assert_uint_eq(available("0::/a/missing\n"), 400);
}

TEST(without_a_limit_there_is_none)
{
    ck_assert_uint_eq(available("0::/\n"), UINT64_MAX);
    put("fs/memory.max", "max\n");
    put("fs/memory.current", "300000\n");
    ck_assert_uint_eq(available("0::/\n"), UINT64_MAX);
    put("fs/memory.max", "1000\n");
    ck_assert_uint_eq(available("3:cpuset:/\n2:memory_of_what:/a\n"), UINT64_MAX);
    ck_assert_uint_eq(available("0:/\n:\n::\n4:memory\n"), UINT64_MAX);
    ck_assert_uint_eq(available(""), UINT64_MAX);
    ck_assert_uint_eq(cgroup_available_bytes("nowhere", "fs"), UINT64_MAX);
}

/* The older interface: by controller, with other names, a group's file pages counted with those below it, and
 * 2^63 - 4096 for no limit. Some systems have both. */
TEST(the_limit_of_an_older_system_counts_too)
{
    put("fs/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("fs/memory/memory.usage_in_bytes", "5000\n");
    ck_assert_uint_eq(available("4:memory:/\n"), 9223372036854771712u - 5000);
    put("fs/memory/a/memory.limit_in_bytes", "1000\n");
    put("fs/memory/a/memory.usage_in_bytes", "400\n");
    ck_assert_uint_eq(available("5:cpu:/x\n4:memory:/a\n0::/\n"), 600);
    ck_assert_uint_eq(available("4:cpuset,memory,cpu:/a\n"), 600);
    put("fs/memory/a/memory.stat", "inactive_file 1\nactive_file 2\ntotal_inactive_file 60\ntotal_active_file 40\n");
    ck_assert_uint_eq(available("4:memory:/a\n"), 700);
    put("fs/memory.max", "650\n");
    put("fs/memory.current", "0\n");
    ck_assert_uint_eq(available("4:memory:/a\n0::/\n"), 650);
}

static void setup(void)
{
    processes_setup();
    ck_assert_int_eq(mkdir("fs", 0777) || mkdir("fs/a", 0777) || mkdir("fs/a/b", 0777), 0);
    ck_assert_int_eq(mkdir("fs/memory", 0777) || mkdir("fs/memory/a", 0777), 0);
}

SUITE_FIXTURE(setup, processes_remove)
