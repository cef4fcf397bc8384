/* tests/fuzz/fuzz_rows.c - labelled rows, TSV and JSON lines: each row that is taken can be read.
 *
 * The bits of the first byte: the format, compressed, columns (2), rows to be predicted, numbers as labels. */
#include "client/corpus/labelled.h"
#include "proto/model/file/model_files.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <unistd.h>

enum { SEQ = 12 };

static struct client_tokenizer *open_tokenizer(void)
{
    struct client_tokenizer *tokenizer;
    struct error err = {""};
    json_t *text = json_load_file(TESTS_DIR "/fixtures/tokenizers/bert.json", 0, NULL);
    char *printed = json_dumps(text, 0);
    json_t *side = json_pack("{s:s}", "tokenizer.json", printed);

    fuzz_demand(client_tokenizer_open(&tokenizer, side, NULL, 4096, &err) == 0 && tokenizer);
    json_decref(text);
    json_decref(side);
    free(printed);
    return tokenizer;
}

static void read_rows(const struct client_corpus *rows, const struct client_pairs *pairs,
                      const struct client_labels *labels)
{
    uint32_t ids[SEQ], second, work[2 * SEQ];
    struct error err = {""};

    for (size_t k = 0; k < rows->n; k++) {
        const uint32_t label = rows->list[k].label;
        const int64_t length = client_labelled_get(rows, pairs, ids, &second, work, k, SEQ, &err);
        const int64_t total = client_labelled_length(rows, pairs, k);
        fuzz_demand(length > 0 && length <= SEQ && length == (total < SEQ ? total : SEQ) && second <= SEQ);
        fuzz_demand(labels->numbers || label == PLAN_NO_LABEL || label < labels->n);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
    static const char *const names[] = {"r.tsv", "r.jsonl", "r.tsv.gz", "r.jsonl.zst"};
    static const char *const columns[] = {NULL, "1,2", "text,label", "3,1,2"};
    static struct client_tokenizer *tokenizer;
    struct client_corpus rows = {.fd = -1};
    struct client_pairs pairs;
    struct client_labels labels;
    struct client_data data;
    struct error err = {""};

    if (n == 0)
        return 0;
    if (!tokenizer)
        tokenizer = open_tokenizer();
    const char *path = fuzz_write(names[bytes[0] & 3], bytes + 1, n - 1);
    const struct client_labelled_rules rules = {.tokenizer = tokenizer,
                                                .columns = columns[bytes[0] >> 2 & 3],
                                                .unlabelled = bytes[0] & 16};
    fuzz_demand(client_labels_init(&labels, bytes[0] & 32, &err) == 0);
    if (fuzz_took(client_data_open_rows(&data, &path, 1, &err), &err)) {
        if (fuzz_took(client_labelled_read(&rows, &pairs, &data, &labels, &rules, &err), &err))
            read_rows(&rows, &pairs, &labels);
        client_corpus_free(&rows);
        client_data_free(&data);
    }
    client_labels_free(&labels);
    return 0;
}
