/* tests/fuzz/fuzz_data.c - files of training data: text, JSON lines, ids, arrays, compressed or not.
 *
 * The first byte selects the file's name, the rest is its content. What is taken can be read, window by window. */
#include "client/order/windows.h"
#include "client/text/tokenizer.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <unistd.h>

static const char *const names[] = {"text.txt",    "lines.jsonl",    "ids.bin",      "array.npy",
                                    "text.txt.gz", "lines.jsonl.gz", "text.txt.zst", "array.npy.zst"};
enum { NAMES = sizeof names / sizeof *names, VOCABULARY = 256, SEQ = 7 };

static void read_windows(const struct client_data *data)
{
    const struct client_windows windows = client_windows_of(data, 0, data->n, SEQ, 1);
    uint32_t ids[SEQ], labels[SEQ];
    struct error err = {""};

    for (uint64_t k = 0; k < windows.n; k++) {
        fuzz_demand(client_windows_read(&windows, ids, labels, k, &err) == 0);
        for (unsigned i = 0; i < SEQ; i++)
            fuzz_demand(ids[i] <= data->largest && labels[i] <= data->largest);
    }
}

/* An end token separates the texts; or, of a byte model, nothing does. */
static struct client_tokenizer *open_tokenizer(bool separates)
{
    json_t *side = separates ? json_object() : NULL;
    struct client_tokenizer *tokenizer;
    struct error err = {""};

    if (separates)
        fuzz_demand(client_tokenizer_add_learned(side, NULL, 0, SEQ, &err) == 0);
    fuzz_demand(client_tokenizer_open(&tokenizer, side, NULL, VOCABULARY + separates, &err) == 0 && tokenizer);
    json_decref(side);
    return tokenizer;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static struct client_tokenizer *tokenizers[2];
    struct client_data data;
    struct error err = {""};

    if (n == 0)
        return 0;
    const bool separates = bytes[0] & 0x80;
    const char *path = fuzz_write(names[bytes[0] % NAMES], bytes + 1, n - 1);
    if (!tokenizers[separates])
        tokenizers[separates] = open_tokenizer(separates);
    const struct client_data_rules rules = {.vocabulary = VOCABULARY + separates, .tokenizer = tokenizers[separates]};
    if (fuzz_took(client_data_open(&data, &path, 1, &err), &err)) {
        if (fuzz_took(client_data_check(&data, &rules, &err), &err)) {
            fuzz_demand(data.n == 0 || data.largest < rules.vocabulary);
            read_windows(&data);
        }
        client_data_free(&data);
    }
    return 0;
}
