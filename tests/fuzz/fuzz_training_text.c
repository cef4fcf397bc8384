/* tests/fuzz/fuzz_training_text.c - a job's training text: as the daemon takes it from a client, as a client takes a
 * daemon's. */
#include "proto/model/file/model_files.h"
#include "proto/wire/training_text.h"
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
        fuzz_demand(model_files_size(&promised, name, string) == 0);
        fuzz_demand(model_files_decode(&bytes, &n, &made, name, string) == 0 && n == promised);
        free(made);
    }
    fuzz_took(model_files_check(files, &err), &err);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    struct products products;
    struct error err = {""};
    json_t *parsed;

    if (!fuzz_took(training_text_parse(&parsed, (const char *)bytes, n, &err), &err))
        return 0;
    fuzz_took(training_text_products(&products, parsed, &err), &err);
    if (json_object_get(parsed, "files"))
        read_files(json_object_get(parsed, "files"));
    json_decref(parsed);
    return 0;
}
