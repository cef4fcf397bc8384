#include "tests/kit/preload/allocations.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

/* glibc's own, under the names that stay reachable when malloc is replaced. */
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);
void __libc_free(void *p);

static struct allocations before_start, *counters = &before_start;
static uintptr_t program_start, program_end; /* addresses of the main program's own code */

static int note_program(struct dl_phdr_info *info, size_t size, void *data)
{
    (void)size, (void)data;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_LOAD && info->dlpi_phdr[i].p_flags & PF_X) {
            program_start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
            program_end = program_start + info->dlpi_phdr[i].p_memsz;
        }
    return 1; /* the first object is the main program */
}

__attribute__((constructor)) static void start(void)
{
    const char *dir = getenv("ALLOCATIONS_DIR");
    char path[512];

    dl_iterate_phdr(note_program, NULL);
    if (!dir)
        return;
    snprintf(path, sizeof path, "%s/%s-%d", dir, program_invocation_short_name, (int)getpid());
    int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0 || ftruncate(fd, sizeof before_start))
        return;
    struct allocations *shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (shared == MAP_FAILED)
        return;
    *shared = before_start;
    counters = shared;
}

static void *count(void *p, const void *caller)
{
    const uintptr_t at = (uintptr_t)caller;

    if (p)
        __atomic_add_fetch(&counters->live_bytes, (int64_t)malloc_usable_size(p), __ATOMIC_RELAXED);
    __atomic_add_fetch(&counters->all, 1, __ATOMIC_RELAXED);
    if (at >= program_start && at < program_end)
        __atomic_add_fetch(&counters->ours, 1, __ATOMIC_RELAXED);
    return p;
}

static void forget(void *p)
{
    if (p)
        __atomic_sub_fetch(&counters->live_bytes, (int64_t)malloc_usable_size(p), __ATOMIC_RELAXED);
}

void *malloc(size_t bytes)
{
    return count(__libc_malloc(bytes), __builtin_return_address(0));
}

void *calloc(size_t n, size_t bytes)
{
    return count(__libc_calloc(n, bytes), __builtin_return_address(0));
}

void *realloc(void *p, size_t bytes)
{
    forget(p);
    return count(__libc_realloc(p, bytes), __builtin_return_address(0));
}

void *memalign(size_t alignment, size_t bytes)
{
    return count(__libc_memalign(alignment, bytes), __builtin_return_address(0));
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    return count(__libc_memalign(alignment, bytes), __builtin_return_address(0));
}

int posix_memalign(void **out, size_t alignment, size_t bytes)
{
    *out = count(__libc_memalign(alignment, bytes), __builtin_return_address(0));
    return *out ? 0 : ENOMEM;
}

void free(void *p)
{
    forget(p);
    __libc_free(p);
}
