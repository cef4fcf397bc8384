/* What the system says of a process's memory: the kernel's files, read from texts and from a live process. */
#include "proto/base/pages.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Shortened from proc(5): a program, a heap, a locked anonymous mapping with a huge page, and a memfd. */
static const char smaps[] = "55e0c000-55e0d000 r-xp 00001000 fe:00 1836 /usr/bin/epsd\n"
                            "Rss:                 900 kB\n"
                            "VmFlags: rd ex mr mw me lo\n"
                            "55e1c000-55e1d000 rw-p 00000000 00:00 0                                  [heap]\n"
                            "Rss:                  12 kB\n"
                            "AnonHugePages:         0 kB\n"
                            "VmFlags: rd wr mr mw me ac sd\n"
                            "7f000000-7f400000 rw-p 00000000 00:00 0 \n"
                            "Rss:                4096 kB\n"
                            "AnonHugePages:      2048 kB\n"
                            "Locked:             4096 kB\n"
                            "VmFlags: rd wr mr mw me lo ac sd hg\n"
                            "7f500000-7f900000 rw-s 00000000 00:01 1027 /memfd:weights (deleted)\n"
                            "Rss:                 100 kB\n"
                            "ShmemPmdMapped:       64 kB\n"
                            "Locked:               50 kB\n"
                            "VmFlags: rd wr sh mr mw me ms lo\n";
static const char numa[] = "55e0c000 default file=/usr/bin/epsd mapped=225 N0=225 kernelpagesize_kB=4\n"
                           "55e1c000 default heap anon=3 dirty=3 N1=3 kernelpagesize_kB=4\n"
                           "7f000000 default anon=1024 dirty=1024 N0=1000 N1=24 kernelpagesize_kB=4\n"
                           "7f500000 default file=/memfd:weights\\040(deleted) dirty=25 N11=25 kernelpagesize_kB=4\n";

static struct pages parse(const char *first, const char *second, bool shared)
{
    struct pages pages;
    FILE *a = fmemopen((void *)(uintptr_t)first, strlen(first), "r");
    FILE *b = second ? fmemopen((void *)(uintptr_t)second, strlen(second), "r") : NULL;

    pages_parse(&pages, a, b, shared);
    fclose(a);
    if (b)
        fclose(b);
    return pages;
}

/* "Locked:" of memory that two processes map is halved; it is locked as a whole. */
TEST(programs_are_left_out_and_memfds_are_counted_where_they_are_given_out)
{
    const struct pages all = parse(smaps, numa, true), own = parse(smaps, numa, false);

    ck_assert(all.known && own.known);
    ck_assert_uint_eq(all.resident, (12 + 4096 + 100) << 10);
    ck_assert_uint_eq(own.resident, (12 + 4096) << 10);
    ck_assert_uint_eq(all.huge, (2048 + 64) << 10);
    ck_assert_uint_eq(own.huge, 2048 << 10);
    ck_assert_uint_eq(all.locked, (4096 + 100) << 10);
    ck_assert_uint_eq(own.n_nodes, 2);
    ck_assert_uint_eq(own.nodes[0], 1000 * 4096);
    ck_assert_uint_eq(own.nodes[1], 27 * 4096);
    ck_assert_uint_eq(all.n_nodes, PAGES_MAX_NODES);
    ck_assert_uint_eq(all.nodes[PAGES_MAX_NODES - 1], 25 * 4096); /* further nodes are counted with the last */
    ck_assert_uint_eq(parse(smaps, NULL, true).n_nodes, 0);
}

TEST(what_is_touched_becomes_resident_and_of_no_process_nothing_is_known)
{
    enum { BYTES = 8 << 20 };
    struct pages before, after;
    char *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(base, MAP_FAILED);
    pages_read(&before, getpid(), true);
    memset(base, 1, BYTES);
    pages_read(&after, getpid(), true);
    ck_assert(before.known && after.known);
    ck_assert_uint_ge(after.resident, before.resident + BYTES);
    munmap(base, BYTES);
    pages_read(&after, -1, true);
    ck_assert(!after.known);
    ck_assert_uint_eq(after.resident, 0);
}
