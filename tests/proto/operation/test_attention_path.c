/* Which implementation computes attention, by what a device told of the families' shapes (tests/gpu/RECORD.md, the
 * lines family-*), by what device/cuda/README.md lists, and by what cuDNN plans for (tests/gpu/test_dnn.c). */
#include "proto/operation/attention_path.h"
#include "tests/kit/test.h"

enum { P = ATTENTION_PLAIN, T = ATTENTION_TENSOR, D = ATTENTION_DRAWING, L = ATTENTION_LIBRARY };

static const uint32_t given[1];
#define SHAPE(rows, tokens, heads, columns) .n_rows = rows, .n_tokens = tokens, .n_heads = heads, .width = columns
#define WORDS                               given
/* A bias of this many buckets of one direction, of which the last one begins so many places away. */
#define BIAS(n, farthest) .bias = (const float *)(const void *)given, .buckets = {n, false, {[(n)-1] = farthest}}

static const struct {
    const char *name;
    struct device_attention op;
    int paths[3]; /* forward, queries, keys; on an H100 with cuDNN 9.14 */
} calls[] = {
    {"GPT-2", {SHAPE(8, 1024, 12, 768)}, {L, T, T}},
    {"GPT-2 with dropout", {SHAPE(8, 1024, 12, 768), .dropout.p = 0.1f}, {D, D, D}},
    {"heads of 80", {SHAPE(2, 4096, 32, 2560)}, {L, L, L}},
    {"heads of 128 in long rows", {SHAPE(1, 8192, 32, 4096)}, {L, T, T}},
    {"rows of 1,000 tokens, which stored scores do not take", {SHAPE(1, 1000, 12, 1536)}, {L, T, T}},
    {"Llama 3", {SHAPE(2, 4096, 32, 4096), .n_kv_heads = 8}, {L, T, T}},
    {"Llama 3 with dropout", {SHAPE(2, 4096, 32, 4096), .n_kv_heads = 8, .dropout.p = 0.1f}, {D, D, D}},
    {"Llama 3 in packed rows", {SHAPE(2, 4096, 32, 4096), .n_kv_heads = 8, .positions = WORDS}, {T, T, T}},
    {"Mistral", {SHAPE(1, 8192, 32, 4096), .n_kv_heads = 8, .window = 4096}, {L, T, T}},
    {"a window of the whole row", {SHAPE(8, 1024, 12, 768), .window = 1024}, {L, T, T}},
    {"Gemma 7B", {SHAPE(1, 8192, 16, 4096)}, {L, T, T}},
    {"heads of 256 with dropout", {SHAPE(1, 8192, 16, 4096), .dropout.p = 0.1f}, {P, P, P}},
    {"heads of 256 in full rows", {SHAPE(1, 512, 4, 1024), .full = true}, {L, P, P}},
    {"heads of 264", {SHAPE(1, 512, 4, 1056)}, {P, P, P}},
    {"BERT", {SHAPE(8, 512, 16, 1024), .full = true, .lengths = WORDS}, {L, T, T}},
    {"a wide BERT", {SHAPE(8, 512, 8, 1024), .full = true}, {L, L, L}},
    {"Gemma 2, with capped scores", {SHAPE(1, 4096, 8, 2048), .n_kv_heads = 4, .cap = 50}, {P, P, P}},
    {"Bloom, with ALiBi", {SHAPE(1, 2048, 32, 4096), .alibi = true}, {P, P, P}},
    {"gpt-oss, with sinks", {SHAPE(1, 4096, 64, 4096), .n_kv_heads = 8, .window = 128, .sinks = given}, {T, T, T}},
    {"ModernBERT's local blocks", {SHAPE(8, 512, 12, 768), .full = true, .window = 65}, {P, P, P}},
    {"both sides' window of the whole row", {SHAPE(8, 512, 12, 768), .full = true, .window = 512}, {L, T, T}},
    {"BERT with dropout", {SHAPE(8, 512, 16, 1024), .full = true, .lengths = WORDS, .dropout.p = 0.1f}, {D, D, D}},
    {"wide heads in full rows with dropout", {SHAPE(8, 512, 8, 1024), .full = true, .dropout.p = 0.1f}, {D, D, D}},
    {"shared keys in full rows", {SHAPE(8, 512, 16, 1024), .n_kv_heads = 4, .full = true}, {L, T, P}},
    {"a window and dropout, heads of 64", {SHAPE(8, 1024, 12, 768), .window = 100, .dropout.p = 0.1f}, {D, D, D}},
    {"a window and dropout, heads of 128", {SHAPE(8, 1024, 6, 768), .window = 100, .dropout.p = 0.1f}, {P, D, P}},
    {"T5's encoder", {SHAPE(8, 512, 12, 768), .full = true, .lengths = WORDS, BIAS(16, 91)}, {T, T, T}},
    {"T5's decoder", {SHAPE(8, 512, 12, 768), BIAS(32, 113)}, {T, T, T}},
    {"T5's decoder with dropout", {SHAPE(8, 512, 12, 768), BIAS(32, 113), .dropout.p = 0.1f}, {D, D, D}},
    {"T5 3B", {SHAPE(8, 512, 32, 4096), .full = true, BIAS(16, 91)}, {T, T, T}},
    {"T5 3B with dropout", {SHAPE(8, 512, 32, 4096), .full = true, BIAS(16, 91), .dropout.p = 0.1f}, {D, D, D}},
    {"T5's decoder with chosen queries",
     {SHAPE(8, 512, 12, 768), BIAS(32, 113), .chosen = WORDS, .n_chosen = 9},
     {T, T, P}},
    {"a bias whose last bucket begins at 128", {SHAPE(8, 512, 12, 768), BIAS(32, 128)}, {T, T, T}},
    {"a bias whose last bucket begins at 129", {SHAPE(8, 512, 12, 768), BIAS(32, 129)}, {P, P, P}},
    {"a bias and a window", {SHAPE(8, 512, 12, 768), BIAS(32, 113), .window = 511}, {P, P, P}},
    {"a bias of wide heads", {SHAPE(1, 512, 16, 4096), BIAS(32, 113)}, {P, P, P}},
    {"cross attention", {SHAPE(8, 512, 12, 768), .full = true, .kv = given, .n_keys = 300}, {T, T, T}},
    {"cross attention with dropout",
     {SHAPE(8, 512, 12, 768), .full = true, .kv = given, .n_keys = 300, .dropout.p = 0.1f},
     {D, D, D}},
    {"cross attention of wide heads with dropout",
     {SHAPE(8, 512, 8, 1024), .full = true, .kv = given, .n_keys = 300, .dropout.p = 0.1f},
     {D, D, D}},
    {"cross attention with shared keys",
     {SHAPE(8, 512, 12, 768), .n_kv_heads = 4, .full = true, .kv = given, .n_keys = 300},
     {T, T, P}},
    {"cross attention with chosen queries",
     {SHAPE(8, 512, 12, 768), .full = true, .kv = given, .n_keys = 300, .chosen = WORDS, .n_chosen = 9},
     {T, T, T}},
    {"chosen queries", {SHAPE(8, 1024, 12, 768), .chosen = WORDS, .n_chosen = 300}, {T, T, T}},
    {"chosen queries of shared keys",
     {SHAPE(2, 4096, 32, 4096), .n_kv_heads = 8, .chosen = WORDS, .n_chosen = 9},
     {T, T, T}},
    {"chosen queries of wide heads", {SHAPE(1, 8192, 16, 4096), .chosen = WORDS, .n_chosen = 300}, {T, T, P}},
    {"heads of 24", {SHAPE(8, 1024, 32, 768)}, {L, L, L}},
    {"heads of 20", {SHAPE(8, 1024, 12, 240)}, {P, P, P}},
};

TEST_EACH(a_call_takes_the_path_that_a_device_told_of, COUNT(calls))
{
    for (int kernel = ATTENTION_FORWARD; kernel <= ATTENTION_KEYS; kernel++) {
        const int path =
            (int)attention_path_of(NUMBER_BF16, &calls[_i].op, (enum attention_kernel)kernel, PLAN_ATTENTION_SCORES);
        ck_assert_msg(path == calls[_i].paths[kernel], "%s, kernel %d: path %d", calls[_i].name, kernel, path);
    }
}

static void check(enum number_type type, struct device_attention op, enum plan_attention way, int forward, int queries,
                  int keys)
{
    ck_assert_int_eq(attention_path_of(type, &op, ATTENTION_FORWARD, way), forward);
    ck_assert_int_eq(attention_path_of(type, &op, ATTENTION_QUERIES, way), queries);
    ck_assert_int_eq(attention_path_of(type, &op, ATTENTION_KEYS, way), keys);
}

/* cuDNN computes in bf16 alone; in fp16 only simple calls have kernels for tensor cores, in fp32 none. */
TEST(a_path_depends_on_the_type_and_on_the_library)
{
    const struct device_attention gpt2 = {SHAPE(8, 1024, 12, 768)}, slides = {SHAPE(8, 1024, 12, 768), .window = 100},
                                  cross = {SHAPE(8, 512, 12, 768), .full = true, .kv = given, .n_keys = 300},
                                  t5 = {SHAPE(8, 512, 12, 768), BIAS(32, 113)}, narrow = {SHAPE(8, 1024, 32, 768)},
                                  llama = {SHAPE(2, 4096, 32, 4096), .n_kv_heads = 8},
                                  gemma = {SHAPE(1, 8192, 16, 4096), .window = 1024};

    check(NUMBER_FP32, gpt2, PLAN_ATTENTION_ORDERED, P, P, P);
    check(NUMBER_FP16, gpt2, PLAN_ATTENTION_ORDERED, T, T, T);
    check(NUMBER_FP16, slides, PLAN_ATTENTION_OWN, P, P, P);
    check(NUMBER_FP16, cross, PLAN_ATTENTION_OWN, T, T, T);
    check(NUMBER_FP16, t5, PLAN_ATTENTION_OWN, P, P, P);
    check(NUMBER_FP32, cross, PLAN_ATTENTION_OWN, P, P, P);
    check(NUMBER_FP32, t5, PLAN_ATTENTION_OWN, P, P, P);
    check(NUMBER_BF16, slides, PLAN_ATTENTION_OWN, T, T, T);
    check(NUMBER_BF16, gpt2, PLAN_ATTENTION_OWN, T, T, T);
    check(NUMBER_BF16, gpt2, PLAN_ATTENTION_FORWARD, L, T, T);
    check(NUMBER_BF16, gpt2, PLAN_ATTENTION_ORDERED, L, L, L);
    check(NUMBER_BF16, gpt2, PLAN_ATTENTION_TWICE, L, L, L);
    check(NUMBER_BF16, llama, PLAN_ATTENTION_ORDERED, L, L, L);
    check(NUMBER_BF16, llama, PLAN_ATTENTION_TWICE, L, L, L);
    check(NUMBER_BF16, narrow, PLAN_ATTENTION_OWN, P, P, P);
    check(NUMBER_BF16, slides, PLAN_ATTENTION_ORDERED, L, L, L);
    check(NUMBER_BF16, slides, PLAN_ATTENTION_TWICE, L, L, L);
    check(NUMBER_BF16, gemma, PLAN_ATTENTION_ORDERED, L, L, L);
    check(NUMBER_BF16, gemma, PLAN_ATTENTION_TWICE, L, T, T);
}
