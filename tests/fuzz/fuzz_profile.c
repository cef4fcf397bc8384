/* tests/fuzz/fuzz_profile.c - the profile of a device: what is taken is valid, and says the same when written. */
#include "proto/plan/time/profile.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const devices[] = {"cpu", "cuda"};
    const char *device = devices[n & 1];
    struct profile profile, again;
    struct error err = {""};

    const char *path = fuzz_write("profile.json", bytes, n);
    if (!fuzz_took(profile_read(&profile, path, device, &err), &err))
        return 0;
    fuzz_demand(profile_check(&profile, &err) == 0);
    fuzz_demand(profile_write(&profile, path, device, &err) == 0);
    fuzz_demand(profile_read(&again, path, device, &err) == 0);
    fuzz_demand(memcmp(&again, &profile, offsetof(struct profile, products)) == 0);
    return 0;
}
