/* tests/fuzz/fuzz_side.c - a job's side file: as the daemon takes it from a client, as a client takes a daemon's. */
#include "client/text/side.h"
#include "eps/job/side.h"
#include "proto/model/side_file.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>

static void read_files(json_t *files)
{
    struct error err = {""};
    const char *name, *bytes;
    size_t promised, n;
    json_t *string;
    char *made;

    json_object_foreach(files, name, string)
    {
        fuzz_demand(side_file_size(&promised, name, string) == 0);
        fuzz_demand(side_file_bytes(&bytes, &n, &made, name, string) == 0 && n == promised);
        free(made);
    }
    fuzz_took(client_side_check(files, &err), &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct products products;
    struct error err = {""};
    json_t *side;

    if (!fuzz_took(side_parse(&side, (const char *)bytes, n, &err), &err))
        return 0;
    fuzz_took(side_products(&products, side, &err), &err);
    if (json_object_get(side, "files"))
        read_files(json_object_get(side, "files"));
    json_decref(side);
    return 0;
}
