/* What is not trained comes back by an export, byte for byte: of wrappers that transformers wrote, with a head that
 * drafts tokens, a block beyond the last, and types that nobody here knows beside them. */
#include "client/ask/export.h"

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

SUITE_TIMEOUT(180)
SUITE_FIXTURE(processes_setup, processes_remove)

#define FIXTURES TESTS_DIR "/fixtures/"
#define MACHINE  "--data tokens.bin --batch 1 --seq 8 --device cpu --device-mem 64MiB "
#define TRAIN    "eps train " MACHINE "--lr 0.01 "

/* A tensor to write beside a fixture's: text of its members, and the bytes of its data. */
struct beside {
    const char *name, *type, *shape;
    size_t bytes;
};

/* A file of these tensors (the last one has no name), whose bytes look random. */
static void put_tensors(const char *path, const struct beside *tensors)
{
    char header[2000] = "{\"__metadata__\": {\"format\": \"pt\"}";
    uint8_t file[4096];
    size_t n = strlen(header), end = 0;

    for (; tensors->name; end += tensors->bytes, tensors++)
        n += (size_t)snprintf(header + n, sizeof header - n,
                              ", \"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [%zu, %zu]}",
                              tensors->name, tensors->type, tensors->shape, end, end + tensors->bytes);
    n += (size_t)snprintf(header + n, sizeof header - n, "}");
    ck_assert(n < sizeof header && 8 + n + end <= sizeof file);
    for (unsigned i = 0; i < 8; i++)
        file[i] = (uint8_t)(n >> (8 * i));
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < end; i++)
        file[8 + n + i] = (uint8_t)(processes_token(i) * 7 + i);
    processes_write(path, file, 8 + n + end);
}

/* An odd number of bytes first: those behind it would lie across words if the order were kept. */
static const struct beside drafts[] = {{"model.visual.odd", "U8", "[3]", 3},
                                       {"model.visual.later", "F6_E2M3", "[4]", 3},
                                       {"model.visual.never", "X9", "[2, 5]", 7},
                                       {"model.visual.nothing", "F32", "[0, 4]", 0},
                                       {"mtp.layers.0.weight", "F8_E4M3", "[5, 3]", 15},
                                       {"mtp.norm.weight", "BF16", "[7]", 14},
                                       {"model.language_model.layers.2.mlp.up_proj.weight", "F64", "[2, 2, 2]", 64},
                                       {"model.image_newline", "I64", "[]", 8},
                                       {NULL}};

static void put_source(const char *fixture, const struct beside *tensors)
{
    uint16_t tokens[64];

    for (uint16_t i = 0; i < 64; i++)
        tokens[i] = (uint16_t)(i * 7 % 61);
    processes_write("tokens.bin", tokens, sizeof tokens);
    expect(print("rm -rf source && mkdir source && cp " FIXTURES "%s/config.json " FIXTURES
                 "%s/generation_config.json source && cp " FIXTURES "%s/model.safetensors source/a.safetensors",
                 fixture, fixture, fixture),
           0);
    put_tensors("source/b.safetensors", tensors);
    processes_put_text("source/preprocessor_config.json", "{\"size\":  8 }\n");
    processes_put_text("source/processor_config.json", "{}");
    processes_put_text("source/video_preprocessor_config.json", "{\"fps\": 2.50}");
}

/* ---- what came back ---- */

enum { MOST_FILES = 64 };

struct opened {
    struct client_model model;
    struct safetensors files[MOST_FILES];
};

static void open_all(struct opened *out, const char *path)
{
    struct error err = {""};

    ck_assert_msg(client_model_open(&out->model, &(struct client_model_name){.path = path}, &err) == 0, "%s", err.text);
    ck_assert_uint_le(out->model.n_weights, MOST_FILES);
    for (unsigned i = 0; i < out->model.n_weights; i++)
        ck_assert_msg(safetensors_open(&out->files[i], out->model.weights[i].fd, &err) == 0, "%s", err.text);
}

static void close_all(struct opened *opened)
{
    for (unsigned i = 0; i < opened->model.n_weights; i++)
        safetensors_close(&opened->files[i]);
    client_model_close(&opened->model);
}

static const struct safetensors_entry *find_in(const struct opened *opened, const char *name)
{
    const struct safetensors_entry *found = NULL;

    for (unsigned i = 0; !found && i < opened->model.n_weights; i++)
        found = safetensors_find(&opened->files[i], name);
    return found;
}

static bool has_same_bytes(const struct safetensors_entry *a, const struct safetensors_entry *b)
{
    const size_t n = safetensors_entry_bytes(a);
    uint8_t *bytes = malloc(2 * n + 1);
    bool same = n == safetensors_entry_bytes(b);

    if (same) {
        ck_assert_int_eq(pread(a->file.fd, bytes, n, (off_t)a->offset), (ssize_t)n);
        ck_assert_int_eq(pread(b->file.fd, bytes + n, n, (off_t)b->offset), (ssize_t)n);
        same = memcmp(bytes, bytes + n, n) == 0;
    }
    free(bytes);
    return same;
}

/* Tensors of the two blocks, the table, the last norm and the head are trained. */
static bool is_trained(const char *name)
{
    static const char *const text[] = {"language_model.", "model.language_model.", "lm_head."};

    for (int i = 0; i < COUNT(text); i++)
        if (strncmp(name, text[i], strlen(text[i])) == 0)
            return !strstr(name, "layers.2.") || !strstr(name, "model.language_model");
    return false;
}

/* The export has each name of the source and no other; what is not trained has its type, shape and bytes, and its data
 * begins at a multiple of its elements' size. */
static void check_passed(const char *path, bool trained_too)
{
    struct opened source, out;
    size_t n_source = 0, n_out = 0, n_passed = 0;

    open_all(&source, "source"), open_all(&out, path);
    for (unsigned f = 0; f < out.model.n_weights; f++)
        n_out += out.files[f].n_entries;
    for (unsigned f = 0; f < source.model.n_weights; f++)
        for (size_t k = 0; k < source.files[f].n_entries; k++) {
            const struct safetensors_entry *a = &source.files[f].entries[k], *b = find_in(&out, a->name);
            n_source++;
            ck_assert_msg(b != NULL, "%s: %s is lost", path, a->name);
            ck_assert_mem_eq(a->shape, b->shape, sizeof a->shape);
            if (is_trained(a->name) && !trained_too)
                continue;
            n_passed++;
            ck_assert_msg(strcmp(a->dtype, b->dtype) == 0, "%s: %s is of type %s", path, a->name, b->dtype);
            ck_assert_msg(has_same_bytes(a, b), "%s: %s has other bytes", path, a->name);
            ck_assert_msg(a->n == 0 || b->offset % (safetensors_entry_bytes(a) / a->n) == 0, "%s: %s at %ju", path,
                          a->name, (uintmax_t)b->offset);
        }
    ck_assert_uint_eq(n_source, n_out);
    ck_assert_uint_ge(n_passed, 20);
    close_all(&source), close_all(&out);
}

static void check_files(const char *path, bool config_too)
{
    static const char *const names[] = {"preprocessor_config.json", "processor_config.json",
                                        "video_preprocessor_config.json", "generation_config.json"};

    for (int i = 0; i < COUNT(names); i++)
        expect(print("cmp source/%s %s/%s", names[i], path, names[i]), 0);
    if (config_too)
        expect(print("cmp source/config.json %s/config.json", path), 0);
}

static const char *const fixtures[] = {"wrapped_qwen2", "wrapped_gemma3", "wrapped_qwen3_5_moe"};

TEST_EACH(a_wrapper_comes_back_whole, COUNT(fixtures))
{
    struct eps_export_options cut = {.model = "run", .out = "cut"};
    struct eps_exported written;
    struct error err;

    put_source(fixtures[_i], drafts);
    expect("eps export --model source --out same", 0, "same holds the model in fp32", "AutoModelForImageTextToText");
    check_passed("same", true);
    check_files("same", true);
    expect(TRAIN "--model source --steps 1 --out run && eps train --resume run --steps 2", 0,
           "are not trained: ", "eps export writes them as they are");
    expect("eps export --model run --out back && eps export --model run --average 2 --dtype bf16 --out half", 0,
           "back holds the model in fp32", "exported as they are", "half holds the model in bf16");
    check_passed("back", false);
    check_files("back", true);
    check_passed("half", false);
    check_files("half", false);
    expect_file("half/config.json", "\"dtype\": \"bfloat16\"", "ForConditionalGeneration", "vision_config");
    ck_assert_msg(client_export(&written, &cut, 3000, &err) == 0, "%s", err.text);
    expect("test -e cut/model.safetensors.index.json && ! test -e cut/model.safetensors", 0);
    check_passed("cut", false);
    expect(TRAIN "--model cut --steps 1 --out again && eps export --model again --out over", 0);
    check_passed("over", false);
    expect(TRAIN "--model run --steps 1 --out further && eps export --model further --out after", 0);
    check_passed("after", false);
}

/* As it was before: without the rest, and as a model of its own. */
TEST(a_text_model_alone_needs_no_source)
{
    put_source("wrapped_qwen2", drafts);
    expect(TRAIN "--model source --steps 1 --out run && eps export --model source --text-only --out first", 0,
           "first holds the text model of LlavaForConditionalGeneration (without vision) in fp32");
    expect("mv source elsewhere && eps export --model run --text-only --out text", 0, "AutoModelForCausalLM");
    ck_assert_str_eq(outputs_names("text"), "config.json generation_config.json model.safetensors ");
    expect_file("text/config.json", "\"model_type\": \"qwen2\"", "Qwen2ForCausalLM");
    expect_absent("text/config.json", "vision_config");
    expect("grep -aE 'visual|mtp|vision|language_model|layers.2' text/model.safetensors", 1);
    outputs_check_python("text");
    outputs_check_python("first");
}

TEST(a_source_that_is_gone_or_changed_is_refused_with_the_way_out)
{
    put_source("wrapped_qwen2", drafts);
    expect(TRAIN "--model source --steps 1 --out run && cp -r source other && mv source elsewhere", 0);
    expect_refusal(&(struct refusal){"eps export --model run --out no", 1,
                                     "/source, No such file or directory: name where that model is with --base-model",
                                     "leave the rest out with --text-only"});
    expect("eps export --model run --base-model elsewhere --out back && mv elsewhere source", 0);
    check_passed("back", false);
    processes_flip("other/a.safetensors", -1);
    expect_refusal(&(struct refusal){"eps export --model run --base-model other --out no", 1,
                                     "other, which holds other weights than when its training began", "--text-only"});
    expect("cp source/a.safetensors other", 0);
    processes_flip("other/b.safetensors", -1); /* of no type that is computed with */
    expect_refusal(&(struct refusal){"eps export --model run --base-model other --out no", 1,
                                     "other, which holds other weights than when its training began", "--text-only"});
    expect("rm other/b.safetensors", 0);
    expect_refusal(&(struct refusal){"eps export --model run --base-model other --out no", 1,
                                     "other, which holds other weights than when its training began", "--base-model"});
    expect_refusal(&(struct refusal){"eps export --model run --base-model nowhere --out no", 1,
                                     "nowhere, No such file or directory", "--text-only"});
    expect_refusal(&(struct refusal){"eps export --model run --base-model source --text-only --out no", 2,
                                     "--base-model source is for an adapter, or for a model that has more",
                                     "leave it"});
    expect_refusal(&(struct refusal){"eps export --model " FIXTURES "qwen3 --base-model source --out no", 2,
                                     "--base-model source is for an adapter", NULL});
    expect("cp -r source linked && ln -sf gone linked/processor_config.json", 0);
    expect_refusal(&(struct refusal){"eps export --model run --base-model linked --out no", 1,
                                     "processor_config.json: No such file or directory", NULL});
    expect_refusal(&(struct refusal){"eps export --model run --base-model linked --out nowhere/no", 1,
                                     "processor_config.json: No such file or directory", NULL}); /* nothing was begun */
    expect("chmod -R a-w source && eps export --model run --out unwritable && chmod -R u+w source", 0);
    check_passed("unwritable", false);
}

/* A patch embedding over three dimensions, in fp8 with one scale: what an export writes of it is decoded. Codes that
 * nothing scales are bytes to it. */
TEST(quantised_tensors_outside_of_the_model_are_decoded)
{
    struct opened source, out;

    put_source("wrapped_qwen2",
               (const struct beside[]){{"model.visual.five.weight", "F8_E4M3", "[2, 1, 3, 1, 1]", 6},
                                       {"model.visual.five.weight_scale_inv", "F32", "[]", 4},
                                       {"model.visual.eight.weight", "F8_E4M3", "[1, 1, 1, 1, 1, 1, 2, 3]", 6},
                                       {"model.visual.eight.weight_scale_inv", "F32", "[]", 4},
                                       {"model.visual.bare.weight", "F8_E4M3", "[3, 2]", 6},
                                       {NULL}});
    expect("sed -i '0,/{/s//{\"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": null},/' "
           "source/config.json && " TRAIN
           "--model source --steps 1 --out run && eps export --model run --dtype bf16 --out back",
           0, "30 tensors");
    open_all(&source, "source"), open_all(&out, "back");
    const struct safetensors_entry *five = find_in(&out, "model.visual.five.weight"),
                                   *eight = find_in(&out, "model.visual.eight.weight");
    ck_assert(five && eight && !find_in(&out, "model.visual.five.weight_scale_inv"));
    ck_assert(five->n_dims == 5 && five->shape[0] == 2 && five->shape[2] == 3 && five->type == SAFETENSORS_BF16);
    ck_assert(has_same_bytes(find_in(&source, "model.visual.bare.weight"), find_in(&out, "model.visual.bare.weight")));
    ck_assert(eight->n_dims == 8 && eight->shape[7] == 3 && eight->n == 6);
    close_all(&source), close_all(&out);
    expect_absent("back/config.json", "quantization_config");
}

TEST(a_strangers_names_do_not_steer_the_terminal)
{
    put_source("wrapped_qwen2", (const struct beside[]){{"\\u001b[31mvision.w", "F32", "[1]", 4}, {NULL}});
    expect("eps export --model source --out back", 0, "not trained: ", "?[31mvision.*");
    expect_refusal(&(struct refusal){"eps export --model " FIXTURES "adapter_qwen3 --text-only --out no", 2,
                                     "--text-only of adapters needs --merge", NULL});
}

/* xIELU's, which transformers leaves uninitialised where a file lacks them. */
TEST(constants_that_are_not_trained_are_written_with_a_whole_model)
{
    struct opened source, whole, merged;
    unsigned n_constants = 0;

    put_source("apertus", (const struct beside[]){{"mtp.layers.0.mlp.act_fn.beta", "BF16", "[]", 2},
                                                  {"model.layers.2.mlp.act_fn.eps", "BF16", "[]", 2},
                                                  {NULL}}); /* of a head, and of a block, that nobody computes */
    expect(TRAIN "--model source --lora rank=2 --steps 1 --out run", 0);
    expect("eps export --model source --out whole && eps export --model run --out alone && "
           "eps export --model run --merge --dtype fp32 --out merged",
           0);
    open_all(&source, "source"), open_all(&whole, "whole"), open_all(&merged, "merged");
    for (size_t k = 0; k < 2; k++)
        ck_assert(has_same_bytes(&source.files[1].entries[k], find_in(&whole, source.files[1].entries[k].name)));
    for (size_t k = 0; k < source.files[0].n_entries; k++) {
        const struct safetensors_entry *a = &source.files[0].entries[k], *b = find_in(&whole, a->name),
                                       *c = find_in(&merged, a->name);
        ck_assert_msg(b && c, "%s is lost", a->name);
        ck_assert_msg(b->n_dims == a->n_dims && has_same_bytes(a, b), "%s", a->name);
        if (a->n_dims > 0)
            continue;
        n_constants++;
        ck_assert_msg(c->n_dims == 0 && has_same_bytes(a, c), "%s", a->name);
    }
    ck_assert_uint_eq(n_constants, 4);
    close_all(&source), close_all(&whole), close_all(&merged);
    expect("! grep -a act_fn.beta alone/adapter_model.safetensors", 0);
}

/* A tensor that would change what is computed is none that is passed. */
static const struct {
    struct beside beside[2];
    const char *why; /* NULL: it is passed */
} names[] = {
    {{{"model.language_model.layers.0.self_attn.extra.weight", "F32", "[1]", 4}, {NULL}}, "is not a tensor of this"},
    {{{"model.language_model.embed_norm.weight", "F32", "[1]", 4}, {NULL}}, "is not a tensor of this model"},
    {{{"model.layers.1.extra.weight", "F32", "[1]", 4}, {NULL}}, "is not a tensor of this model"},
    {{{"lm_head.bias", "F32", "[1]", 4}, {NULL}}, "lm_head.bias is not a tensor of this model"},
    {{{"model.language_model.norm.weight", "F32", "[24]", 96}, {NULL}}, "is there twice: remove one of the two"},
    {{{"model.visual.x", "f32", "[1]", 4}, {NULL}}, "its type is unknown (dtype f32)"},
    {{{"model.visual.x", "F32", "[2]", 4}, {NULL}}, "2 elements of F32 do not fill its 4 bytes"},
    {{{"model.language_model.layers.2.self_attn.extra.weight", "F32", "[1]", 4}, {NULL}}, NULL},
    {{{"model.language_model.mtp.fc.weight", "F32", "[1]", 4}, {NULL}}, NULL},
    {{{"audio_tower.layers.0.norm.weight", "F32", "[1]", 4}, {NULL}}, NULL},
};

TEST_EACH(what_belongs_to_the_trained_part_is_not_passed, COUNT(names))
{
    put_source("wrapped_qwen2", names[_i].beside);
    if (names[_i].why) {
        expect_sentence(TRAIN "--model source --steps 1 --out run", 1, names[_i].why);
        expect_sentence("eps export --model source --out whole", 1, names[_i].why);
        return;
    }
    expect("eps export --model source --out whole", 0);
    check_passed("whole", true);
}

TEST(a_tensor_that_is_there_twice_is_refused_also_if_it_is_passed)
{
    static const struct beside twice[] = {{"model.vision_tower.post_layernorm.bias", "F32", "[8]", 32}, {NULL}};

    put_source("wrapped_qwen2", twice);
    expect_sentence("eps export --model source --out whole", 1,
                    "model.vision_tower.post_layernorm.bias is there twice");
    expect("test -e whole || test -e whole.partial", 1);
}

/* Its blocks are then others than those beyond the last one that the source had. */
TEST(a_block_that_was_added_is_not_mixed_with_one_that_was_beyond)
{
    put_source("wrapped_qwen2", drafts);
    expect(TRAIN "--model source --steps 1 --out run && eps reshape run --grow 1 --out grown", 0);
    expect_sentence("eps export --model grown --out whole", 1,
                    "model.language_model.layers.2.mlp.up_proj.weight is a tensor of this model, and another one",
                    "--text-only");
    expect("sed -i 's/language_model.layers.2/language_model.layers.7/' source/b.safetensors && " TRAIN
           "--model source --steps 1 --out other && eps reshape other --grow 1 --out taller && eps export --model "
           "taller --out whole",
           0);
    expect_file("whole/config.json", "\"num_hidden_layers\": 3", "LlavaForConditionalGeneration");
    expect("grep -aq model.language_model.layers.2.mlp.up_proj.weight whole/model.safetensors", 0);
}

/* Layers of a published BERT that other heads read; names are those of today, whatever the file's were. */
TEST(a_pooler_comes_back_beside_a_model_for_masked_tokens)
{
    struct outputs_tensors was, is;

    expect("cp -r " FIXTURES "bert_old source && eps export --model source --out whole && eps export --model source "
           "--text-only --out text",
           0, "4 tensors (2.5 KiB) are not trained: bert.pooler.*, cls.seq_relationship.*: exported as they are");
    expect("grep -aq cls.predictions.transform.LayerNorm.weight whole/model.safetensors && ! grep -aq pooler "
           "text/model.safetensors",
           0);
    outputs_open_tensors(&was, "source", "model.safetensors");
    outputs_open_tensors(&is, "whole", "model.safetensors");
    ck_assert(has_same_bytes(safetensors_find(&was.file, "bert.pooler.dense.weight"),
                             safetensors_find(&is.file, "bert.pooler.dense.weight")));
    ck_assert(has_same_bytes(safetensors_find(&was.file, "cls.seq_relationship.weight"),
                             safetensors_find(&is.file, "cls.seq_relationship.weight")));
    outputs_close_tensors(&was), outputs_close_tensors(&is);
}

/* The record of what is passed has the directory's name, an adapter its base's, and every checkpoint those of its data:
 * all in JSON. The note about a key that is ignored is here, too, as it is of a model that is opened. */
TEST(a_name_that_no_json_can_hold_is_refused_by_a_true_sentence)
{
    put_source("wrapped_qwen2", drafts);
    expect("mv source \"$(printf 'so\\377rce')\" && cp -r " FIXTURES "qwen3 \"$(printf 'pl\\377in')\" && "
           "cp tokens.bin \"$(printf 'to\\377kens.bin')\"",
           0);
    expect_sentence(TRAIN "--model \"$(printf 'so\\377rce')\" --steps 1 --out run", 1,
                    "its name is not UTF-8, so a checkpoint cannot hold it: rename it");
    expect_sentence(TRAIN "--model \"$(printf 'pl\\377in')\" --steps 1 --out run", 1, "its name is not UTF-8");
    expect_sentence(TRAIN "--model \"$(printf 'pl\\377in')\" --lora rank=2 --steps 1 --out run", 1,
                    "its name is not UTF-8");
    expect_sentence(
        "eps train --data \"$(printf 'to\\377kens.bin')\" --batch 1 --seq 8 --device cpu --device-mem 64MiB "
        "--lr 0.01 --model " FIXTURES "qwen3 --steps 1 --out run",
        1, "kens.bin: its name is not UTF-8");
}

TEST(a_key_that_is_ignored_is_told_of)
{
    static const char told[] = "ignored: rope_parameters.full_attention.truncate in its config.json has no effect";

    put_source("olmo3", (const struct beside[]){{NULL}});
    expect("rm source/b.safetensors && mv source ignored && sed -i 's/\"rope_type\": \"linear\"/\"rope_type\": "
           "\"yarn\", \"original_max_position_embeddings\": 8, \"truncate\": false/' ignored/config.json",
           0);
    expect(TRAIN "--model ignored --steps 1 --out run 2>&1", 0, told);
    expect("eps eval --device cpu --data tokens.bin --seq 8 --model ignored 2>&1", 0, told);
    expect("eps export --model ignored --out whole 2>&1", 0, told);
    expect("sed -i 's/, \"truncate\": false//' ignored/config.json && mv ignored plain && " TRAIN
           "--model plain --steps 1 --out other 2>&1",
           0);
    ck_assert_ptr_null(strstr(command_out(), "has no effect"));
    outputs_check_same("run/latest", "other/latest", "model.safetensors");
}

/* A model that is no wrapper keeps its config, its names and its draft head. */
TEST(a_draft_head_beside_a_model_comes_back)
{
    static const struct beside beside[] = {{"mtp.fc.weight", "F16", "[3]", 6},
                                           {"model.layers.2.eh_proj.weight", "BF16", "[2, 2]", 8},
                                           {"visual.patch.weight", "F32", "[2]", 8},
                                           {NULL}};
    static const struct beside inside[] = {{"model.embed_norm.weight", "F32", "[2]", 8}, {NULL}};

    put_source("qwen3", beside);
    expect(TRAIN "--model source --steps 1 --out run && eps export --model run --out back", 0,
           "3 tensors (22 B) are not trained: model.layers.2.*, mtp.*, visual.*: exported as they are");
    for (const struct beside *b = beside; b->name; b++) {
        struct opened source, out;
        open_all(&source, "source"), open_all(&out, "back");
        const struct safetensors_entry *was = find_in(&source, b->name), *is = find_in(&out, b->name);
        ck_assert_msg(is && strcmp(was->dtype, is->dtype) == 0 && has_same_bytes(was, is), "%s", b->name);
        ck_assert(find_in(&out, "model.layers.1.mlp.up_proj.weight") != NULL);
        close_all(&source), close_all(&out);
    }
    expect("cmp source/config.json back/config.json && cmp source/processor_config.json back/processor_config.json", 0);
    put_source("qwen3", inside);
    expect_sentence(TRAIN "--model source --steps 1 --out no", 1, "model.embed_norm.weight is not a tensor of this");
}

/* GLM-4.5's block that drafts tokens has experts, a router and a bias of its own. */
TEST(a_drafting_block_with_experts_comes_back)
{
    static const struct beside beside[] = {{"model.layers.3.eh_proj.weight", "BF16", "[2, 2]", 8},
                                           {"model.layers.3.mlp.gate.e_score_correction_bias", "F32", "[3]", 12},
                                           {"model.layers.3.mlp.experts.0.up_proj.weight", "BF16", "[2, 3]", 12},
                                           {"model.layers.3.shared_head.head.weight", "BF16", "[3]", 6},
                                           {NULL}};

    put_source("glm4_moe", beside);
    expect(TRAIN "--model source --steps 1 --out run && eps export --model run --out back --dtype bf16", 0,
           "4 tensors (38 B) are not trained: model.layers.3.*: exported as they are");
    for (const struct beside *b = beside; b->name; b++) {
        struct opened source, out;
        open_all(&source, "source"), open_all(&out, "back");
        const struct safetensors_entry *was = find_in(&source, b->name), *is = find_in(&out, b->name);
        ck_assert_msg(is && strcmp(was->dtype, is->dtype) == 0 && has_same_bytes(was, is), "%s", b->name);
        close_all(&source), close_all(&out);
    }
}

/* A file with a copy of a tensor of another one, under this name. */
static void put_copy(const char *path, const char *name, const char *from, const char *tensor)
{
    const int fd = open(processes_path(from), O_RDONLY | O_CLOEXEC);
    const int to = open(processes_path(path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    const struct safetensors_plan plan = {.name = name};
    struct safetensors_writer writer;
    struct safetensors file;

    ck_assert_int_eq(safetensors_open(&file, fd, NULL), 0);
    const struct safetensors_entry *entry = safetensors_find(&file, tensor);
    ck_assert_int_eq(safetensors_begin_copies(&writer, to, &plan, &entry, 1, NULL), 0);
    ck_assert_int_eq(safetensors_append_file(&writer, fd, entry->offset, safetensors_entry_bytes(entry), NULL), 0);
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    safetensors_close(&file);
    close(fd), close(to);
}

TEST(a_tied_head_that_the_source_stores_is_the_table_as_it_is_now)
{
    static const struct beside draft[] = {{"mtp.fc.weight", "F32", "[1]", 4}, {NULL}};
    static const char table[] = "language_model.model.embed_tokens.weight", head[] = "language_model.lm_head.weight";
    struct outputs_tensors out;
    uint64_t n, m;

    put_source("wrapped_gemma3", draft);
    put_copy("source/c.safetensors", head, "source/a.safetensors", table);
    expect(TRAIN "--model source --steps 1 --out run && eps export --model run --out back", 0);
    outputs_open_tensors(&out, "back", "model.safetensors");
    const float *copy = outputs_tensor(&out, head, &n), *now = outputs_tensor(&out, table, &m);
    ck_assert(n == m && memcmp(copy, now, n * sizeof *copy) == 0);
    outputs_close_tensors(&out);
    check_passed("back", false);
}

/* PEFT's, who loads them into the whole: the text model's modules alone, though the vision tower has a q_proj, too. */
TEST(adapters_of_a_text_model_have_their_names_within_the_whole)
{
    static const char prefix[] = "base_model.model.model.language_model.layers.";
    struct outputs_tensors alone;

    put_source("wrapped_qwen2", drafts);
    expect(TRAIN "--model source --steps 2 --lora rank=2,targets=q_proj,down_proj --out run && eps export --model run "
                 "--out alone && eps export --model run --merge --out merged",
           0, "merged holds the model in fp32", "exported as they are");
    check_passed("merged", false);
    check_files("merged", true);
    outputs_open_tensors(&alone, "alone", "adapter_model.safetensors");
    ck_assert_uint_eq(alone.file.n_entries, 8);
    for (size_t i = 0; i < alone.file.n_entries; i++)
        ck_assert_msg(strncmp(alone.file.entries[i].name, prefix, strlen(prefix)) == 0, "%s",
                      alone.file.entries[i].name);
    outputs_close_tensors(&alone);
    expect_file("alone/adapter_config.json",
                "\"model\\\\.language_model\\\\.(?:.*\\\\.)?(?:self_attn\\\\.q_proj|mlp\\\\.down_proj)\"");
    expect("for m in run alone; do eps eval --model $m --data tokens.bin --seq 8 --device cpu --json >$m.json || exit; "
           "done; cmp run.json alone.json && rm alone/base_config.json && eps eval --model alone --data tokens.bin "
           "--seq 8 "
           "--device cpu --json | cmp - run.json",
           0);
    expect("eps train --model source --data tokens.bin --batch 1 --seq 8 --steps 1 --lora targets=linear_1 --out no",
           2);
    ck_assert_holds(command_err(), "the target linear_1 matches no linear map that can be adapted here");
}
