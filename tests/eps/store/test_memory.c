#include "tests/kit/test.h"

#include "eps/store/memory.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

enum { BYTES = 5 << 20 };

/* What fn writes to stderr. */
static void captured(char *out, size_t cap, const struct memory *memory, unsigned said)
{
    int ends[2], kept = dup(STDERR_FILENO);

    ck_assert_int_eq(pipe(ends), 0);
    dup2(ends[1], STDERR_FILENO);
    memory_report(memory, said);
    dup2(kept, STDERR_FILENO);
    close(ends[1]);
    ssize_t n = read(ends[0], out, cap - 1);
    out[n > 0 ? n : 0] = '\0';
    close(ends[0]);
    close(kept);
}

SUITE_TIMEOUT(60)

TEST(mapped_memory_is_zero_can_be_written_and_goes)
{
    struct memory memory;
    unsigned char resident;

    ck_assert_int_eq(memory_init(&memory), 0);
    unsigned char *base = memory_map(&memory, BYTES);
    ck_assert_ptr_nonnull(base);
    for (size_t i = 0; i < BYTES; i += 511)
        if (base[i])
            ck_abort_msg("byte %zu is %u", i, base[i]);
    memset(base, 0x5A, BYTES);
    ck_assert_int_eq(mincore(base + BYTES - 4096, 4096, &resident), 0);
    memory_unmap(base, BYTES);
    ck_assert_int_eq(mincore(base + BYTES - 4096, 4096, &resident), -1);
    ck_assert_int_eq(errno, ENOMEM); /* nothing is mapped there */
    memory_unmap(NULL, BYTES);
    ck_assert_ptr_null(memory_map(&memory, SIZE_MAX / 4)); /* more than the address space */
    memory_free(&memory);
    memory_free(&memory); /* twice is harmless */
}

/* RLIMIT_MEMLOCK binds everybody but root, who has nothing to report then. */
TEST(pages_that_may_not_be_locked_are_used_and_reported)
{
    const struct rlimit none = {.rlim_cur = 8192, .rlim_max = 8192};
    struct memory memory;
    char text[512];

    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    ck_assert_int_eq(memory_init(&memory), 0);
    char *base = memory_map(&memory, BYTES);
    ck_assert_ptr_nonnull(base);
    base[0] = 1;
    captured(text, sizeof text, &memory, 0);
    if (memory.denied & MEMORY_LOCK) {
        ck_assert_ptr_nonnull(strstr(text, "locking pages (ulimit -l)"));
        ck_assert_ptr_eq(strchr(text, '\n'), text + strlen(text) - 1); /* one line */
    } else {
        ck_assert_int_eq(geteuid(), 0);
    }
    memory_unmap(base, BYTES);
    memory_free(&memory);
}

static const struct {
    unsigned denied, said;
    const char *holds; /* NULL: nothing is reported */
} reports[] = {
    {0, 0, NULL},
    {MEMORY_SHARED_HUGE, 0, "the system does not allow huge shared pages ("},
    {~0u, 0, "the system does not allow locking pages (ulimit -l), huge pages ("},
    {~0u, 0, ", binding to nodes; it works without"},
    {~0u, ~0u, NULL}, /* all of it was said before */
    {~0u, (unsigned)~MEMORY_LOCK, "the system does not allow locking pages (ulimit -l); it works without"},
};

TEST_EACH(what_was_denied_and_not_said_yet_is_reported, COUNT(reports))
{
    const struct memory memory = {.denied = reports[_i].denied};
    char text[512];

    captured(text, sizeof text, &memory, reports[_i].said);
    ck_assert_int_eq(*text == '\0', reports[_i].holds == NULL);
    ck_assert_msg(!reports[_i].holds || strstr(text, reports[_i].holds), "%s", text);
}

/* Pages of a memfd, as weights are. */
TEST(shared_pages_are_prepared_where_they_are)
{
    struct memory memory;
    int fd = memfd_create("test", MFD_CLOEXEC);

    ck_assert_int_eq(ftruncate(fd, BYTES), 0);
    char *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(base, MAP_FAILED);
    ck_assert_int_eq(memory_init(&memory), 0);
    memory_prepare(&memory, base, BYTES, true);
    ck_assert_uint_eq(memory.denied & MEMORY_HUGE, 0); /* that one is for private pages */
    base[BYTES - 1] = 7;
    memory_free(&memory);
    ck_assert_int_eq(base[BYTES - 1], 7);
    munmap(base, BYTES);
    close(fd);
}

/* The kernel's policy for the mapping at base, "prefer (many):0"; as in /proc/self/numa_maps. */
static void read_policy(char out[64], const void *base)
{
    FILE *file = fopen("/proc/self/numa_maps", "re");
    unsigned long at;
    char line[512];

    out[0] = '\0';
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "%lx %63[^=]", &at, out) == 2 && at == (uintptr_t)base)
            break;
    ck_assert_ptr_nonnull(file);
    fclose(file);
}

/* A machine of two sockets, as a file has it, that is taken for this one: the kernel leaves out nodes that are not
 * there. */
TEST_IF(shared_pages_lie_near_devices_and_others_where_they_did, access("/proc/self/numa_maps", R_OK) == 0)
{
    static const char *const buses[] = {"0000:3b:00.0", "0000:3c:00.0", "0000:3d:00.0" /* it is not known where */};
    static const struct {
        unsigned first, n;
        bool shared;
        const char *policy;
    } cases[] = {{0, 1, true, "prefer"},
                 {0, 2, true, "interleave:0"},
                 {2, 1, true, "local"},
                 {0, 0, true, "local"},
                 {0, 2, false, "local"}};
    struct memory memory;
    char policy[64];

    setenv("HWLOC_XMLFILE", TESTS_DIR "/fixtures/topology/two_sockets.xml", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    ck_assert_int_eq(memory_init(&memory), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *base = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_ANONYMOUS | MAP_SHARED, -1, 0);
        ck_assert_ptr_ne(base, MAP_FAILED);
        memory_near(&memory, "it lies", buses + cases[i].first, cases[i].n);
        memory_prepare(&memory, base, BYTES, cases[i].shared);
        base[0] = 1;
        read_policy(policy, base);
        ck_assert_msg(strncmp(policy, cases[i].policy, strlen(cases[i].policy)) == 0, "case %zu: %s", i, policy);
        munmap(base, BYTES);
    }
    memory_free(&memory);
}
