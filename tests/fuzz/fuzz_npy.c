/* tests/fuzz/fuzz_npy.c - the header of a NumPy array: what is taken lies behind the header, and has integers; token
 * ids are an array, too. */
#include "client/data/npy.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct client_npy_array array;
    struct client_npy npy;
    struct error err = {""};
    const bool any = fuzz_took(client_npy_parse_array(&array, bytes, n, &err), &err);

    if (any)
        fuzz_demand(array.offset <= n && array.type <= CLIENT_I64 && array.n_sizes <= CLIENT_NPY_MOST);
    if (fuzz_took(client_npy_parse(&npy, bytes, n, &err), &err))
        fuzz_demand(any && npy.offset <= n && npy.type != CLIENT_U8 && npy.type <= CLIENT_I64);
    return 0;
}
