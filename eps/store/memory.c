/* All that is asked of pages is asked between mapping and their first touch. A page's size and node are decided when
 * it is touched; to ask later would copy it. */
#include "eps/store/memory.h"

#include "proto/base/near.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PAGE_BYTES = 4096 };

int memory_init(struct memory *memory)
{
    *memory = (struct memory){.near = hwloc_bitmap_alloc()};
    if (memory->near && near_load(&memory->topology) == 0)
        return 0;
    memory_free(memory);
    return -ENOMEM;
}

void memory_free(struct memory *memory)
{
    if (memory->topology)
        hwloc_topology_destroy(memory->topology);
    hwloc_bitmap_free(memory->near);
    *memory = (struct memory){0};
}

/* Reads the setting in brackets in one of the kernel's files on huge pages: do callers of madvise get them? */
static bool gives_huge_pages(const char *path)
{
    char text[128] = "[never]";
    FILE *file = fopen(path, "re");

    if (file) {
        if (!fgets(text, sizeof text, file))
            text[0] = '\0';
        fclose(file);
    }
    return !strstr(text, "[never]") && !strstr(text, "[deny]");
}

void memory_near(struct memory *memory, const char *what, const char *const *buses, unsigned n)
{
    char nodes[64];

    hwloc_bitmap_zero(memory->near);
    for (unsigned i = 0; i < n; i++)
        near_nodes(memory->near, memory->topology, buses[i]);
    if (hwloc_bitmap_iszero(memory->near))
        return;
    hwloc_bitmap_list_snprintf(nodes, sizeof nodes, memory->near);
    if (hwloc_bitmap_weight(memory->near) == 1)
        log_line("memory: %s on node %s, near the device", what, nodes);
    else
        log_line("memory: %s in turn on nodes %s, near the devices", what, nodes);
}

/* A node that is full does not end the daemon: the others take the rest. */
static int bind_pages(const struct memory *memory, void *base, size_t bytes, bool shared)
{
    const int n = shared ? hwloc_bitmap_weight(memory->near) : 0;
    const hwloc_membind_policy_t policy = n == 0   ? HWLOC_MEMBIND_FIRSTTOUCH
                                          : n == 1 ? HWLOC_MEMBIND_BIND
                                                   : HWLOC_MEMBIND_INTERLEAVE;

    return hwloc_set_area_membind(memory->topology, base, bytes,
                                  n ? memory->near : hwloc_topology_get_allowed_nodeset(memory->topology), policy,
                                  HWLOC_MEMBIND_BYNODESET);
}

void memory_prepare(struct memory *memory, void *base, size_t bytes, bool shared)
{
    static const char *const settings[] = {"/sys/kernel/mm/transparent_hugepage/enabled",
                                           "/sys/kernel/mm/transparent_hugepage/shmem_enabled"};

    if (madvise(base, bytes, MADV_HUGEPAGE) < 0 || !gives_huge_pages(settings[shared]))
        memory->denied |= shared ? MEMORY_SHARED_HUGE : MEMORY_HUGE;
    if (hwloc_get_nbobjs_by_type(memory->topology, HWLOC_OBJ_NUMANODE) > 1 &&
        bind_pages(memory, base, bytes, shared) < 0)
        memory->denied |= MEMORY_BIND;
    memory->prepared_bytes += (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    if (mlock2(base, bytes, MLOCK_ONFAULT) < 0) /* on fault: locking must not touch pages from this thread */
        memory->denied |= MEMORY_LOCK;
}

void *memory_map(struct memory *memory, size_t bytes)
{
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (base == MAP_FAILED)
        return NULL;
    memory_prepare(memory, base, bytes, false);
    return base;
}

void memory_unmap(void *base, size_t bytes)
{
    if (base)
        munmap(base, bytes);
}

int memory_check_locked(const struct memory *memory, struct error *err)
{
    const uint64_t need = memory->prepared_bytes / 1024; /* ulimit counts KiB */
    struct rlimit limit = {0};

    if (!(memory->denied & MEMORY_LOCK))
        return 0;
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return error_set(err, -EPERM,
                     "%" PRIu64 " KiB must be locked in memory (--require-pinned), and `ulimit -l` is %" PRIu64
                     " KiB for this daemon; start it where that is %" PRIu64
                     " or unlimited, or train without --require-pinned",
                     need, (uint64_t)limit.rlim_cur / 1024, need);
}

void memory_report(const struct memory *memory, unsigned said)
{
    static const struct {
        unsigned what;
        const char *name;
    } wishes[] = {
        {MEMORY_LOCK, "locking pages (ulimit -l)"},
        {MEMORY_HUGE, "huge pages (/sys/kernel/mm/transparent_hugepage/enabled)"},
        {MEMORY_SHARED_HUGE, "huge shared pages (/sys/kernel/mm/transparent_hugepage/shmem_enabled)"},
        {MEMORY_BIND, "binding to nodes"},
    };
    char text[512] = "";
    size_t n = 0;

    for (size_t i = 0; i < sizeof wishes / sizeof *wishes; i++)
        if (memory->denied & ~said & wishes[i].what)
            n += (size_t)snprintf(text + n, sizeof text - n, "%s %s", n ? "," : "", wishes[i].name);
    if (n)
        log_warning("memory: the system does not allow%s; it works without, a little slower", text);
}
