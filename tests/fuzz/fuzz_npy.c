/* tests/fuzz/fuzz_npy.c - the header of a NumPy array: what is taken lies behind the header, and has integers. */
#include "client/data/npy.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_npy npy;
    struct error err = {""};

    if (fuzz_took(client_npy_parse(&npy, bytes, n, &err), &err))
        fuzz_demand(npy.offset <= n && npy.type != CLIENT_U8 && npy.type <= CLIENT_I64);
    return 0;
}
