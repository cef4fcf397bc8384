/* Exports of models that transformers wrote, and of what was trained from them: every bit, in its type. */
#include "client/ask/export.h"

#include "proto/model/file/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

#define FP32 EPS_DTYPE_FP32
#define FP16 EPS_DTYPE_FP16
#define BF16 EPS_DTYPE_BF16

/* Every tensor of one directory is in the other, with its type, shape and bytes; but those of this name. */
static void check_same_tensors(const char *path, const char *other, const char *but)
{
    struct client_model both[2];
    struct safetensors files[2][16];
    struct error err;
    size_t n[2] = {0};

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(client_model_open(&both[i], &(struct client_model_name){.path = i ? other : path}, &err), 0);
        ck_assert_uint_le(both[i].n_weights, COUNT(files[i]));
        for (unsigned k = 0; k < both[i].n_weights; k++) {
            ck_assert_int_eq(safetensors_open(&files[i][k], both[i].weights[k].fd, &err), 0);
            n[i] += files[i][k].n_entries;
        }
    }
    ck_assert_uint_eq(n[0], n[1]);
    for (unsigned k = 0; k < both[0].n_weights; k++)
        for (size_t e = 0; e < files[0][k].n_entries; e++) {
            const struct safetensors_entry *a = &files[0][k].entries[e], *b = NULL;
            for (unsigned j = 0; !b && j < both[1].n_weights; j++)
                b = safetensors_find(&files[1][j], a->name);
            ck_assert_msg(b && a->type == b->type && a->n_dims == b->n_dims, "%s", a->name);
            ck_assert_mem_eq(a->shape, b->shape, sizeof a->shape);
            const size_t bytes = a->n * (a->type == SAFETENSORS_F32 ? 4 : 2);
            uint8_t *data = malloc(2 * bytes + 1);
            ck_assert_int_eq(pread(a->file.fd, data, bytes, (off_t)a->offset), (ssize_t)bytes);
            ck_assert_int_eq(pread(b->file.fd, data + bytes, bytes, (off_t)b->offset), (ssize_t)bytes);
            ck_assert_msg(strstr(but, a->name) || memcmp(data, data + bytes, bytes) == 0, "%s", a->name);
            free(data);
        }
    for (int i = 0; i < 2; i++) {
        for (unsigned k = 0; k < both[i].n_weights; k++)
            safetensors_close(&files[i][k]);
        client_model_close(&both[i]);
    }
}

#define CAUSAL   "AutoModelForCausalLM"
#define MASKED   "AutoModelForMaskedLM" /* does not generate */
#define SEQUENCE "AutoModelForSeq2SeqLM"

/* By transformers (tests/oracle/logits.py, make_saved.py): fp32, bf16 and fp16, in one file and in several. */
static const struct {
    const char *name;
    enum eps_dtype dtype;
    const char *loader;
} sources[] = {{"tied", FP32, CAUSAL},        {"untied", FP32, CAUSAL},      {"bf16", BF16, CAUSAL},
               {"fp16", FP16, CAUSAL},        {"qwen2_tied", FP32, CAUSAL},  {"qwen3", FP32, CAUSAL},
               {"gemma", FP32, CAUSAL},       {"gemma3_tied", FP32, CAUSAL}, {"mistral_window", FP32, CAUSAL},
               {"bert", FP32, MASKED},        {"roberta", FP32, MASKED},     {"saved_t5", FP32, SEQUENCE},
               {"saved_flan", BF16, SEQUENCE}};

TEST_EACH(an_export_has_every_bit_of_its_source_in_one_file_and_in_several, COUNT(sources))
{
    const char *source = print("%s/fixtures/%s", TESTS_DIR, sources[_i].name);
    struct eps_export_options cut = {.model = source, .out = "cut"}, whole = {.model = "cut", .out = "whole"};
    const bool generates = strcmp(sources[_i].loader, MASKED) != 0;
    struct eps_exported written;
    struct error err;

    expect("rm -rf cut whole", 0);
    ck_assert_msg(client_export(&written, &cut, 10000, &err) == 0, "%s", err.text);
    ck_assert_int_eq(written.dtype, sources[_i].dtype);
    ck_assert_msg(client_export(&written, &whole, CLIENT_EXPORT_SHARD_BYTES, &err) == 0, "%s", err.text);
    ck_assert_int_eq(written.dtype, sources[_i].dtype);
    check_same_tensors(source, "cut", "");
    check_same_tensors(source, "whole", "");
    ck_assert_str_eq(written.loader, sources[_i].loader);
    ck_assert_str_eq(outputs_names("whole"), generates ? "config.json generation_config.json model.safetensors "
                                                       : "config.json model.safetensors ");
    expect("test -e cut/model.safetensors.index.json && ! test -e cut/model.safetensors", 0);
    if (strcmp(sources[_i].name, "saved_flan") == 0) /* transformers 5 calls it tied, and it is not */
        outputs_check_untied("whole", source);
    else
        outputs_check_same("whole", source, "config.json");
    if (generates)
        expect(print("cmp whole/generation_config.json %s/generation_config.json", source), 0);
    outputs_check_python(print("whole %s", source));
    outputs_check_python("cut");
}

/* Of Gemma 3 with the names that published files have, and of a Qwen 2 with those of transformers: each tensor of the
 * text model has its bits, and all others are left out. */
static const struct {
    const char *name, *prefix, *type, *architecture, *part;
} wrapped[] = {
    {"wrapped_gemma3", "language_model.", "gemma3_text", "Gemma3ForCausalLM",
     "text model of Gemma3ForConditionalGeneration (without vision)"},
    {"wrapped_qwen2", "model.language_model.", "qwen2", "Qwen2ForCausalLM",
     "text model of LlavaForConditionalGeneration (without vision)"},
};

/* The name within the wrapper of a tensor of the text model. */
static const char *name_within(const char *prefix, const char *name)
{
    if (strcmp(prefix, "language_model.") == 0)
        return print("%s%s", prefix, name);
    return strncmp(name, "model.", 6) == 0 ? print("%s%s", prefix, name + 6) : name;
}

static void check_text_tensors(const char *source, const char *prefix)
{
    struct safetensors from, to;
    const int a = open(print("%s/model.safetensors", source), O_RDONLY | O_CLOEXEC);
    const int b = open("text/model.safetensors", O_RDONLY | O_CLOEXEC);
    float values[2][8192];
    size_t n_text = 0;

    ck_assert(safetensors_open(&from, a, NULL) == 0 && safetensors_open(&to, b, NULL) == 0);
    for (size_t i = 0; i < to.n_entries; i++) {
        const struct safetensors_entry *got = &to.entries[i];
        const struct safetensors_entry *want = safetensors_find(&from, name_within(prefix, got->name));
        const size_t bytes = got->n * sizeof **values;
        ck_assert_msg(want && want->n == got->n && bytes <= sizeof *values, "%s", got->name);
        ck_assert_int_eq(pread(a, values[0], bytes, (off_t)want->offset), (ssize_t)bytes);
        ck_assert_int_eq(pread(b, values[1], bytes, (off_t)got->offset), (ssize_t)bytes);
        ck_assert_mem_eq(values[0], values[1], bytes);
    }
    for (size_t i = 0; i < from.n_entries; i++)
        n_text += strstr(from.entries[i].name, "language_model") || strstr(from.entries[i].name, "lm_head");
    ck_assert(to.n_entries == n_text && n_text < from.n_entries);
    safetensors_close(&from), safetensors_close(&to);
    close(a), close(b);
}

#define TRAIN "eps train --data tokens.bin --batch 1 --seq 8 --device-mem 64MiB --steps 1 --deterministic "

TEST_EACH(the_text_model_within_another_is_trained_and_exported_by_itself, COUNT(wrapped))
{
    uint16_t tokens[64];
    char source[200];

    snprintf(source, sizeof source, "%s/fixtures/%s", TESTS_DIR, wrapped[_i].name);
    expect(print("eps export --model %s --text-only --out text", source), 0,
           print("text holds the %s in fp32", wrapped[_i].part));
    json_t *config = json_load_file("text/config.json", 0, NULL);
    ck_assert_str_eq(json_string_value(json_object_get(config, "model_type")), wrapped[_i].type);
    ck_assert_str_eq(json_string_value(json_array_get(json_object_get(config, "architectures"), 0)),
                     wrapped[_i].architecture);
    json_decref(config);
    check_text_tensors(source, wrapped[_i].prefix);
    outputs_check_python("text");
    for (uint16_t i = 0; i < 64; i++)
        tokens[i] = (uint16_t)(i * 7 % 61);
    processes_write("tokens.bin", tokens, sizeof tokens);
    expect(print(TRAIN "--model %s --out run", source), 0, wrapped[_i].part);
    expect(TRAIN "--model text --out again && cmp run/step-1/model.safetensors again/step-1/model.safetensors", 0);
    expect(print("eps eval --model %s --data tokens.bin --seq 8 2>&1", source), 0, wrapped[_i].part);
}

/* A run keeps fp32, and frozen tensors keep their bits; what it exports is in the type that it began from, also when it
 * was resumed and when another run began from it. */
TEST_EACH(a_trained_model_goes_back_in_the_type_it_came_in, 2)
{
    static const char *const dtypes[] = {"fp16", "bf16"}, *const frozen[] = {"embed*,layers.*,lm_head*", "w*,h.*"};
    const char *source = print("%s/fixtures/%s", TESTS_DIR, dtypes[_i]);
    uint16_t tokens[64];

    for (uint16_t i = 0; i < 64; i++)
        tokens[i] = (uint16_t)(i * 7 % 61);
    processes_write("tokens.bin", tokens, sizeof tokens);
    expect(
        print("eps train --model %s --data tokens.bin --batch 1 --seq 8 --device-mem 64MiB --steps 1 --lr 1 --freeze "
              "'%s' --out run && eps train --resume run --steps 2 && eps train --model run --data tokens.bin --batch 1 "
              "--seq 8 --device-mem 64MiB --steps 1 --out again",
              source, frozen[_i]),
        0);
    expect_file("run/step-1/config.json", "\"dtype\": \"float32\"");
    expect("eps export --model run --out back && eps export --model again --out over", 0,
           print("back holds the model in %s", dtypes[_i]), print("over holds the model in %s", dtypes[_i]));
    json_t *came = json_load_file(print("%s/config.json", source), 0, NULL);
    json_t *left = json_load_file("back/config.json", 0, NULL);
    ck_assert(json_equal(came, left));
    json_decref(came), json_decref(left);
    expect(print("cmp back/generation_config.json %s/generation_config.json", source), 0);
    check_same_tensors(source, "back", "model.norm.weight transformer.ln_f.weight transformer.ln_f.bias");
    outputs_check_python("back");
}

/* ---- the bias with which experts are chosen ---- */

static const char *const biased[] = {"lfm2_moe", "glm4_moe", "minimax_m2"};

static bool is_bias(const char *name)
{
    return strstr(name, "expert_bias") || strstr(name, "e_score_correction_bias");
}

/* Both have the same biases, in fp32; returns their number. */
static unsigned check_biases(const char *path, const char *other)
{
    const int a = open(print("%s/model.safetensors", path), O_RDONLY | O_CLOEXEC);
    const int b = open(print("%s/model.safetensors", other), O_RDONLY | O_CLOEXEC);
    struct safetensors from, to;
    float values[2][64];
    unsigned n = 0;

    ck_assert(safetensors_open(&from, a, NULL) == 0 && safetensors_open(&to, b, NULL) == 0);
    for (size_t i = 0; i < from.n_entries; i++) {
        const struct safetensors_entry *was = &from.entries[i], *is = safetensors_find(&to, was->name);
        if (!is_bias(was->name))
            continue;
        const size_t bytes = was->n * sizeof **values;
        ck_assert_msg(is && is->type == SAFETENSORS_F32 && was->type == SAFETENSORS_F32, "%s", was->name);
        ck_assert_int_eq(pread(a, values[0], bytes, (off_t)was->offset), (ssize_t)bytes);
        ck_assert_int_eq(pread(b, values[1], bytes, (off_t)is->offset), (ssize_t)bytes);
        ck_assert_mem_eq(values[0], values[1], bytes);
        n++;
    }
    safetensors_close(&from), safetensors_close(&to);
    close(a), close(b);
    return n;
}

static void put_biased_tokens(void)
{
    uint16_t tokens[64];

    for (uint16_t i = 0; i < 64; i++)
        tokens[i] = (uint16_t)(i * 7 % 61);
    processes_write("tokens.bin", tokens, sizeof tokens);
}

/* Neither a step in bf16, nor a checkpoint, nor a base in nf4, nor an export rounds it. */
TEST_EACH(a_choices_bias_keeps_every_bit_whatever_the_type, COUNT(biased))
{
    char source[200];

    snprintf(source, sizeof source, "%s/fixtures/%s", TESTS_DIR, biased[_i]);
    put_biased_tokens();
    expect(print(TRAIN "--model %s --precision bf16 --out run && eps export --model run --dtype bf16 --out rounded && "
                       "eps export --model run --dtype fp16 --out halved",
                 source),
           0);
    ck_assert_uint_ge(check_biases(source, "run/step-1"), 2);
    check_biases(source, "rounded"), check_biases(source, "halved");
    expect(print(TRAIN "--model %s --lora rank=2,targets=q_proj --base nf4 --precision bf16 --out lora && "
                       "eps export --model lora --merge --dtype bf16 --out merged",
                 source),
           0);
    check_biases(source, "merged");
    outputs_check_python("rounded");
}

/* All biases 64 more: in fp32 the same experts are chosen, in bf16 all biases would be alike. */
TEST_EACH(a_choices_bias_is_added_in_fp32, COUNT(biased))
{
    char source[200];
    struct safetensors file;
    float values[64];

    snprintf(source, sizeof source, "%s/fixtures/%s", TESTS_DIR, biased[_i]);
    put_biased_tokens();
    expect(print("rm -rf more && cp -r %s more && chmod -R u+w more", source), 0);
    const int fd = open("more/model.safetensors", O_RDWR | O_CLOEXEC);
    ck_assert_int_eq(safetensors_open(&file, fd, NULL), 0);
    for (size_t i = 0; i < file.n_entries; i++) {
        const struct safetensors_entry *entry = &file.entries[i];
        const size_t bytes = entry->n * sizeof *values;
        if (!is_bias(entry->name))
            continue;
        ck_assert_int_eq(pread(fd, values, bytes, (off_t)entry->offset), (ssize_t)bytes);
        for (size_t k = 0; k < entry->n; k++)
            values[k] += 64;
        ck_assert_int_eq(pwrite(fd, values, bytes, (off_t)entry->offset), (ssize_t)bytes);
    }
    safetensors_close(&file);
    close(fd);
    expect(print(TRAIN "--model %s --precision bf16 --out run && " TRAIN "--model more --precision bf16 --out other && "
                       "grep -o '\"loss\": *[0-9.]*' run/metrics.jsonl >was && "
                       "grep -o '\"loss\": *[0-9.]*' other/metrics.jsonl >is && cmp was is",
                 source),
           0);
}

static void check_types(const char *path, const char *name)
{
    json_t *config = expect_json(print("cat %s/config.json", path), 0);

    ck_assert_pstr_eq(json_string_value(json_object_get(config, "torch_dtype")), name);
    ck_assert_pstr_eq(json_string_value(json_object_get(config, "dtype")), name);
    json_decref(config);
}

/* The source says bf16 in transformers' older word and its newer one; the run keeps fp32, and so does what it saves. */
TEST(what_is_saved_says_what_it_holds_whatever_the_source_said)
{
    processes_config_with("model.json", 1, 2, 16, 32, "\"dtype\": \"bfloat16\", \"torch_dtype\": \"bfloat16\"");
    processes_text("text.txt", 4000);
    expect(
        "eps train --model model.json --data text.txt --batch 4 --steps 1 --device-mem 64MiB --precision bf16 --out "
        "run "
        "&& eps verify run && eps export --model run --out plain && eps export --model run --out rounded --dtype bf16 "
        "&& eps train --resume run --steps 2 --data text.txt && cmp run/step-1/config.json run/step-2/config.json",
        0);
    check_types("run/step-1", "float32");
    check_types("plain", "float32");
    check_types("rounded", "bfloat16");
    outputs_check_python("plain run/step-1");
}
