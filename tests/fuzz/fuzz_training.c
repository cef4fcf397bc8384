/* tests/fuzz/fuzz_training.c - training.json of a checkpoint, and the options of its run.
 *
 * Each input is tried as it is, and, if it ends in a brace, with its right checksum put there. */
#include "client/record/change.h"
#include "client/record/record.h"
#include "proto/model/file/checkpoint.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void read_changes(const json_t *options, uint32_t batch)
{
    const json_t *changes = json_object_get(options, "changes");
    struct error sentence;
    uint64_t step;

    if (!client_change_check(changes, batch))
        return;
    fuzz_demand(client_change_rows(changes, batch, 0) == 0);
    client_change_rows(changes, batch, client_change_batch_step(changes));
    for (size_t i = 0; client_change_say(&sentence, &step, changes, i); i++)
        fuzz_demand(sentence.text[0] != 0);
}

static void read_options(json_t *options)
{
    const struct eps_train_options given = {.resume = "run"};
    struct eps_train_options merged;
    struct client_record record;
    struct error err = {""};

    if (!fuzz_took(client_record_read(&record, options, &err), &err))
        return;
    read_changes(options, record.options.batch);
    fuzz_took(client_record_merge(&merged, &given, &record, &err), &err);
    client_record_free(&record);
}

static void try(const void *bytes, size_t n)
{
    struct checkpoint checkpoint;
    struct error err = {""};

    fuzz_write(CHECKPOINT_TRAINING, bytes, n);
    const int directory = open(fuzz_directory(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fuzz_took(checkpoint_read(&checkpoint, directory, &err), &err)) {
        read_options(checkpoint.options);
        fuzz_took(checkpoint_check(&checkpoint, directory, NULL, NULL, NULL, &err), &err);
        checkpoint_free(&checkpoint);
    }
    close(directory);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    try(bytes, n);
    if (n < 2 || bytes[n - 1] != '}')
        return 0;
    char *whole = malloc(n + 64);
    memcpy(whole, bytes, n - 1);
    whole[n - 1] = ',';
    n += (size_t)sprintf(whole + n, "\"checksum\": \"%016" PRIx64 "\"}\n", checkpoint_hash(whole, n));
    try(whole, n);
    free(whole);
    return 0;
}
