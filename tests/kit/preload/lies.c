/* A worker whose device computes wrongly: of slices that it contributes to an audited part, or audits, one bit is another
 * before their digest is made, and always the same one. What is not audited is right, so that runs can be compared. $LIES
 * says which, "3-5", counted from 0; $LIES_END: in which one its process is killed. */
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

typedef uint64_t hash_function(const void *data, size_t n, uint64_t seed);

uint64_t XXH3_64bits_withSeed(const void *data, size_t n, uint64_t seed);

static unsigned long end_of(const char *variable)
{
    const char *value = getenv(variable);

    return value ? strtoul(value, NULL, 10) : ULONG_MAX;
}

/* The slot is this process's to write. */
uint64_t XXH3_64bits_withSeed(const void *data, size_t n, uint64_t seed)
{
    static unsigned long n_calls;
    const char *lies = getenv("LIES");
    unsigned long first = 1, last = 0;
    hash_function *real = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "XXH3_64bits_withSeed");
    if (n_calls == end_of("LIES_END"))
        raise(SIGKILL);
    if (lies && sscanf(lies, "%lu-%lu", &first, &last) == 2 && n_calls >= first && n_calls <= last && n > 0)
        ((unsigned char *)(uintptr_t)data)[n / 2] ^= 4;
    n_calls++;
    return real(data, n, seed);
}
