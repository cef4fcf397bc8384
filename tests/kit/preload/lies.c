/* A worker whose device computes wrongly: of slices that it contributes to an audited part, or audits, one bit is
 * another before their digest is made, and always the same one. What is not audited is right, so that runs can be
 * compared. $LIES says which, "3-5", counted from 0; $LIES_END: in which one its process is killed.
 *
 * $FLIPS: of those that stand in slots of its inbox, counted from 0 apart, one bit becomes another once the digest is
 * made: as if host memory changed. */
#include <dlfcn.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t hash_function(const void *data, size_t n, uint64_t seed);

uint64_t XXH3_64bits_withSeed(const void *data, size_t n, uint64_t seed);

static unsigned long end_of(const char *variable)
{
    const char *value = getenv(variable);

    return value ? strtoul(value, NULL, 10) : ULONG_MAX;
}

static int is_chosen(const char *variable, unsigned long n)
{
    const char *value = getenv(variable);
    unsigned long first = 1, last = 0;

    return value && sscanf(value, "%lu-%lu", &first, &last) == 2 && n >= first && n <= last;
}

static int is_in_inbox(const void *data)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    unsigned long begin = 0, end = 0;
    char line[400];
    int found = 0;

    while (maps && !found && fgets(line, sizeof line, maps))
        found = strstr(line, "eps-inbox") && sscanf(line, "%lx-%lx", &begin, &end) == 2 && (uintptr_t)data >= begin &&
                (uintptr_t)data < end;
    if (maps)
        fclose(maps);
    return found;
}

/* The slot is this process's to write. */
uint64_t XXH3_64bits_withSeed(const void *data, size_t n, uint64_t seed)
{
    static unsigned long n_calls, n_slots;
    unsigned char *const bytes = (unsigned char *)(uintptr_t)data;
    hash_function *real = NULL;

    *(void **)&real = dlsym(RTLD_NEXT, "XXH3_64bits_withSeed");
    if (n_calls == end_of("LIES_END"))
        raise(SIGKILL);
    if (is_chosen("LIES", n_calls) && n > 0)
        bytes[n / 2] ^= 4;
    n_calls++;
    const uint64_t digest = real(data, n, seed);
    if (n > 0 && getenv("FLIPS") && is_in_inbox(data) && is_chosen("FLIPS", n_slots++))
        bytes[n / 2] ^= 4;
    return digest;
}
