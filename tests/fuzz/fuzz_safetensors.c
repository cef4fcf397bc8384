/* tests/fuzz/fuzz_safetensors.c - a file of weights, and a model's tensors in it.
 *
 * Each input is tried as it is, and as a header: behind the length that it has, before 256 bytes of data. */
#include "client/model/model.h"
#include "proto/model/coded.h"
#include "proto/model/file/safetensors.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { DATA_BYTES = 256, MOST_BYTES = 1 << 16 };

/* A model of 2 tokens and width 4, whose tensors the seeds name. */
static const char config[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 2, \"n_positions\": 2, \"n_embd\": 4,"
                             " \"n_layer\": 1, \"n_head\": 1}";

static void match(int fd)
{
    struct error err = {""};
    struct client_model model;
    const int config_fd = memfd_create("config", MFD_CLOEXEC);

    fuzz_demand(config_fd >= 0 && write(config_fd, config, sizeof config - 1) == sizeof config - 1);
    if (!fuzz_took(client_model_from(&model, &(struct client_model_name){.path = "m"}, config_fd,
                                     fcntl(fd, F_DUPFD_CLOEXEC, 0), NULL, &err),
                   &err))
        abort(); /* safetensors_open has taken it */
    fuzz_took(client_model_match(&model, &err), &err);
    client_model_close(&model);
}

/* Reads the last values of tensors that are coded; of fp8 with small blocks, or with one scale a tensor. */
static void decode(struct safetensors *file)
{
    const struct quantized quantized = {true, file->n_entries % 3 ? 2 : 0, file->n_entries % 3 ? 32 : 0};
    struct error err = {""};

    if (!fuzz_took(coded_find(file, 1, &quantized, &err), &err))
        return;
    for (size_t i = 0; i < file->n_entries; i++) {
        const struct safetensors_entry *entry = &file->entries[i];
        const uint64_t few = entry->n < 8 ? entry->n : 8;
        float values[8];

        if (entry->coded)
            fuzz_demand(safetensors_read(values, entry, entry->n - few, few, &err) == 0);
    }
}

static void try(const void *bytes, size_t n)
{
    const int fd = fuzz_file(bytes, n);
    struct safetensors file;
    struct error err = {""};

    if (!fuzz_took(safetensors_open(&file, fd, &err), &err))
        return;
    for (size_t i = 0; i < file.n_entries; i++) {
        const struct safetensors_entry *entry = &file.entries[i];
        const uint64_t few = entry->n < 8 ? entry->n : 8;
        float values[8];
        int64_t counts[8];

        fuzz_demand(safetensors_find(&file, entry->name) == entry);
        if (safetensors_is_real(entry))
            fuzz_demand(safetensors_read(values, entry, entry->n - few, few, &err) == 0);
        else if (entry->type == SAFETENSORS_I64)
            fuzz_demand(safetensors_read_counts(counts, entry, entry->n - few, few, &err) == 0);
    }
    decode(&file);
    safetensors_close(&file);
    match(fd);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static uint8_t whole[8 + MOST_BYTES + DATA_BYTES];

    try(bytes, n);
    if (n > MOST_BYTES)
        return 0;
    memset(whole, 0, sizeof whole);
    for (unsigned i = 0; i < 8; i++)
        whole[i] = (uint8_t)((uint64_t)n >> (8 * i));
    if (n > 0)
        memcpy(whole + 8, bytes, n);
    try(whole, 8 + n + DATA_BYTES);
    return 0;
}
