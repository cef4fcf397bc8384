/* Exports of small models, sharded by a limit in place of 4 GiB. Of models that others wrote: test_export_sources. */
#include "client/ask/export.h"

#include "proto/model/file/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

#define EXPORTED "config.json merges.txt model.safetensors vocab.json "

/* Of what is not there, "none". */
static const char *names_in(const char *path)
{
    return access(path, F_OK) ? "none" : outputs_names(path);
}

/* A checkpoint named step-7 and the store it was made of. */
static void make_checkpoint(struct store_fixture *f, bool tied)
{
    store_fixture_open(f, store_fixture_small, tied, 0);
    store_draw(&f->store, 3);
    store_fixture_save(f, "step-7", 7);
}

#define ANY  EPS_DTYPE_DEFAULT
#define FP32 EPS_DTYPE_FP32
#define FP16 EPS_DTYPE_FP16
#define BF16 EPS_DTYPE_BF16

static int export(const char *model, const char *out, enum eps_dtype dtype, struct error *err)
{
    const struct eps_export_options options = {.model = model, .out = out, .dtype = dtype};

    err->text[0] = 0;
    return client_export(NULL, &options, CLIENT_EXPORT_SHARD_BYTES, err);
}

/* Nothing of a half export is left. */
static void check_export(const char *model, const char *out, enum eps_dtype dtype)
{
    struct error err;

    ck_assert_msg(export(model, out, dtype, &err) == 0, "%s: %s", out, err.text);
    ck_assert_str_eq(names_in(out), EXPORTED);
    ck_assert_str_eq(names_in(print("%.*s.partial", (int)strcspn(out, "/"), out)), "none");
}

/* Loads what was exported as the daemon would. */
static void load(struct store_fixture *f, const char *path, bool tied)
{
    struct client_model model;
    struct error err = {""};

    ck_assert_msg(client_model_open(&model, &(struct client_model_name){.path = path}, &err) == 0, "%s", err.text);
    store_fixture_open(f, model.config, tied, 0);
    ck_assert_msg(store_fixture_load(&f->store, model.weights, model.n_weights, &err) == 0, "%s", err.text);
    client_model_close(&model);
}

/* Moments and what eps alone needs stay behind; config.json gains the type of the weights. */
TEST_EACH(an_export_is_the_model_alone, 2)
{
    struct store_fixture f, back;

    make_checkpoint(&f, _i);
    check_export("step-7", "out", ANY);
    outputs_check_file("out/merges.txt", "#version: 0.2\na b\n");
    outputs_check_file("out/vocab.json", "{\"a\": 0}");
    json_t *before = json_load_file("step-7/config.json", 0, NULL), *after = json_load_file("out/config.json", 0, NULL);
    json_object_set_new(before, "torch_dtype", json_string("float32"));
    json_object_set_new(before, "bos_token_id", json_null()); /* GPT-2's, which it implied, are beyond its vocabulary */
    json_object_set_new(before, "eos_token_id", json_null());
    ck_assert(json_equal(before, after));
    json_decref(before), json_decref(after);
    load(&back, "out", _i);
    store_fixture_same(f.store.weights.base, back.store.weights.base, f.model.segment_n, "w");
    outputs_check_python("out step-7");
    store_fixture_close(&f), store_fixture_close(&back);
}

static float next_bf16(uint32_t bits)
{
    float value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Of a value's two neighbours in bf16 the nearer, the even one where both are as near: for every upper half, and lower
 * halves on both sides of every border. Distances of such neighbours are exact in double. */
TEST(rounding_to_bf16_is_to_nearest_even)
{
    static const uint16_t lows[] = {0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF};

    for (uint32_t high = 0; high < 0x10000; high++)
        for (size_t k = 0; k < sizeof lows / sizeof *lows; k++) {
            const uint32_t bits = high << 16 | lows[k];
            const float value = next_bf16(bits);
            uint16_t got = 0;
            const size_t n = client_export_round(&got, &value, 1, SAFETENSORS_BF16);
            if (isnan(value)) {
                ck_assert(n == 1 && isnan(next_bf16((uint32_t)got << 16)));
                continue;
            }
            const double below = fabs((double)value - (double)next_bf16(high << 16));
            /* One past the largest is infinity by its bits; as a number it would be 2^128. */
            const bool top = (high & 0x7FFF) == 0x7F7F;
            const double above =
                top ? 0x1p128 - fabs((double)value) : fabs((double)next_bf16((high + 1) << 16) - (double)value);
            const uint32_t want = lows[k] == 0 || below < above || (below == above && high % 2 == 0) ? high : high + 1;
            if (top && want != high)
                ck_assert_uint_eq(n, 0);
            else if (n != 1 || got != want)
                ck_abort_msg("%08x became %04x, not %04x", bits, got, want);
        }
}

/* Of IEEE 754's binary16, by its definition; one past the largest counts as 2^16. */
static double half_value(unsigned bits)
{
    const int exponent = bits >> 10 & 31, mantissa = bits & 1023;

    return exponent == 0 ? ldexp(mantissa, -24) : ldexp(1024 + mantissa, exponent - 25);
}

/* All values of fp16 but infinity, with the numbers of fp32 beside each and beside each middle between two of them;
 * both signs. Distances are exact in double. */
TEST(rounding_to_fp16_is_to_nearest_even)
{
    for (unsigned half = 0; half < 0x7c00; half++) {
        const double here = half_value(half), next = half_value(half + 1);
        const float points[] = {(float)here, (float)((here + next) / 2)};
        for (int k = 0; k < 6; k++) {
            const float point = points[k / 3];
            const float value = k % 3 == 0 ? point : nextafterf(point, k % 3 == 1 ? 0 : INFINITY);
            const double above = next - (double)value, below = (double)value - here;
            if (value == 0 && k > 0)
                continue;
            /* Beside the value itself, half is nearest. */
            const unsigned want = k < 3 || below < above || (below == above && half % 2 == 0) ? half : half + 1;
            for (int sign = 0; sign < 2; sign++) {
                const float signed_value = sign ? -value : value;
                uint16_t got;
                const size_t n = client_export_round(&got, &signed_value, 1, SAFETENSORS_F16);
                if (want == 0x7c00)
                    ck_assert_uint_eq(n, 0);
                else if (n != 1 || got != (want | (unsigned)sign << 15))
                    ck_abort_msg("%a became %04x, not %04x", (double)signed_value, got, want);
            }
        }
    }
}

TEST(what_is_no_number_in_fp16_stays_so_and_what_is_too_large_is_found)
{
    const float values[] = {INFINITY, -INFINITY, NAN, 0x1p-149f, -0x1p-26f, 65504, 65519.996f, 65520};
    const uint16_t want[] = {0x7c00, 0xfc00, 0x7e00, 0, 0x8000, 0x7bff, 0x7bff};
    uint16_t got[8];

    ck_assert_uint_eq(client_export_round(got, values, 8, SAFETENSORS_F16), 7);
    got[2] &= 0x7fff;
    ck_assert_mem_eq(got, want, sizeof want);
}

TEST_EACH(an_export_in_bf16_has_every_weight_rounded, 2)
{
    struct store_fixture f, back;

    make_checkpoint(&f, _i);
    store_weights(&f.store, 0)[0] = 0; /* for the disk has another value there: what is exported is the file's */
    check_export("step-7", "out", BF16);
    load(&back, "out", _i);
    store_draw(&f.store, 3);
    for (uint64_t i = 0; i < f.model.segment_n; i++) {
        const float w = ((const float *)f.store.weights.base)[i], got = ((const float *)back.store.weights.base)[i];
        uint32_t bits;
        memcpy(&bits, &got, sizeof bits);
        ck_assert_uint_eq(bits & 0xFFFF, 0);
        ck_assert_double_le(fabs((double)got - (double)w), fabs((double)w) * 0x1p-8); /* half a unit in the 8th place */
    }
    outputs_check_python("out");
    store_fixture_close(&f), store_fixture_close(&back);
}

/* 7744 bytes of tensors, the largest with 1024. One limit holds several tensors, the other one at most. */
TEST_EACH(a_large_model_goes_to_several_files_of_whole_tensors, 2)
{
    const uint64_t limit = _i ? 1 : 4000;
    struct store_fixture f, back;
    struct client_model model;
    struct error err;

    make_checkpoint(&f, true);
    ck_assert_int_eq(client_export(NULL, &(struct eps_export_options){.model = "step-7", .out = "out"}, limit, &err),
                     0);
    json_t *index = json_load_file("out/model.safetensors.index.json", 0, NULL);
    json_t *map = json_at(index, "weight_map");
    ck_assert_uint_eq(json_object_size(map), f.model.n_tensors);
    ck_assert_double_eq(json_number_at(index, "metadata.total_size"), (double)(4 * f.model.n_parameters));
    ck_assert_int_eq(client_model_open(&model, &(struct client_model_name){.path = "out"}, &err), 0);
    ck_assert_uint_eq(model.n_weights, _i ? f.model.n_tensors : 3);
    for (unsigned i = 0; i < model.n_weights; i++) {
        struct safetensors file;
        uint64_t n = 0;
        char name[64];
        ck_assert_int_eq(safetensors_open(&file, model.weights[i].fd, &err), 0);
        snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", i + 1, model.n_weights);
        for (size_t k = 0; k < file.n_entries; k++) {
            n += file.entries[k].n;
            ck_assert_str_eq(json_string_value(json_object_get(map, file.entries[k].name)), name);
        }
        ck_assert(4 * n <= limit || file.n_entries == 1);
        safetensors_close(&file);
    }
    client_model_close(&model);
    json_decref(index);
    load(&back, "out", true);
    store_fixture_same(f.store.weights.base, back.store.weights.base, f.model.segment_n, "w");
    outputs_check_python("out step-7");
    store_fixture_close(&f), store_fixture_close(&back);
}

/* A model as others may have left it: one tensor of each file is given by the test. */
static void put_model(const struct safetensors_plan *more, const void *data, size_t bytes, const char *left_out)
{
    struct safetensors_plan plan[32];
    struct safetensors_writer writer;
    struct store_fixture f;
    size_t n = 0;

    make_checkpoint(&f, true);
    ck_assert(unlink("step-7/training.json") == 0 && unlink("step-7/model.safetensors") == 0);
    ck_assert_int_eq(rename("step-7", "model"), 0);
    for (uint32_t t = 0; t < f.model.n_tensors; t++)
        if (!left_out || strcmp(f.model.tensors[t].name, left_out) != 0)
            plan[n++] = (struct safetensors_plan){f.model.tensors[t].name + strlen("transformer."),
                                                  f.model.tensors[t].n_dims,
                                                  {f.model.tensors[t].shape[0], f.model.tensors[t].shape[1]},
                                                  SAFETENSORS_F32};
    if (more)
        plan[n++] = *more;
    int fd = open("model/model.safetensors", O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
    ck_assert_int_eq(safetensors_begin(&writer, fd, plan, n, NULL), 0);
    for (uint32_t t = 0; t < f.model.n_tensors; t++)
        if (!left_out || strcmp(f.model.tensors[t].name, left_out) != 0)
            ck_assert_int_eq(safetensors_append(&writer, f.store.weights.base, 4 * f.model.tensors[t].n, NULL), 0);
    ck_assert_int_eq(safetensors_append(&writer, data, bytes, NULL), 0);
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    close(fd);
    store_fixture_close(&f);
}

static const struct {
    const char *left_out, *name; /* name: of the tensor that is there in its place, of n numbers */
    uint64_t n;
    enum safetensors_type type;
    int rc;
    const char *sentence;
} models[] = {
#define NORM_BIAS "transformer.ln_f.bias"
    {NULL, "h.0.attn.bias", 8, SAFETENSORS_F32, 0, ""},
    {NORM_BIAS, "ln_f.bias", 8, SAFETENSORS_BF16, 0, ""},
    {NORM_BIAS, "ln_f.bias", 8, SAFETENSORS_F32, -ERANGE,
     NORM_BIAS ": element 3 is 3.4e+38, too large for bf16: give --dtype fp32"},
    {NORM_BIAS, "ln_f.b", 8, SAFETENSORS_F32, -EINVAL,
     "ln_f.b is not a tensor of this model; " NORM_BIAS " is missing"},
};

TEST_EACH(a_model_of_others_is_exported_or_refused_by_name, COUNT(models))
{
    static const float numbers[16] = {1, 2, 3, 3.4e38f};
    static const size_t bytes[] = {[SAFETENSORS_F32] = 4, [SAFETENSORS_BF16] = 2, [SAFETENSORS_I64] = 8};
    const struct safetensors_plan plan = {models[_i].name, 1, {models[_i].n, 1}, models[_i].type};
    struct error err;

    put_model(&plan, numbers, models[_i].n * bytes[models[_i].type], models[_i].left_out);
    if (models[_i].rc == 0) {
        check_export("model", "out", BF16);
        return;
    }
    ck_assert_msg(export("model", "out", BF16, &err) == models[_i].rc, "%s", err.text);
    ck_assert_holds(err.text, models[_i].sentence);
    ck_assert_msg(strncmp(err.text, "model: ", 7) == 0, "%s", err.text);
    ck_assert_str_eq(names_in("out"), "none");
    ck_assert_str_eq(names_in("out.partial"), "none");
    if (models[_i].rc == -ERANGE) /* there is room for it in fp32 */
        check_export("model", "out", FP32);
}

/* A head that is tied may stand in the file, if it says the same as wte. */
TEST_EACH(a_tied_head_that_differs_is_refused, 2)
{
    static float head[17 * 8];
    const struct safetensors_plan plan = {"lm_head.weight", 2, {17, 8}, SAFETENSORS_F32};
    struct store_fixture f;
    struct error err;

    store_fixture_open(&f, store_fixture_small, true, 0);
    store_draw(&f.store, 3);
    memcpy(head, f.store.weights.base, sizeof head);
    store_fixture_close(&f);
    head[100] += _i ? 1 : 0;
    put_model(&plan, head, sizeof head, NULL);
    ck_assert_int_eq(export("model", "out", ANY, &err), _i ? -EINVAL : 0);
    if (_i)
        ck_assert_holds(err.text, "lm_head.weight differs from wte.weight");
    ck_assert_str_eq(names_in("out"), _i ? "none" : EXPORTED);
}

#define DAMAGE(file) "printf '?' | dd conv=notrunc bs=1 seek=3000 of=" file

TEST(only_a_whole_model_is_exported_and_only_to_a_new_or_empty_directory)
{
    static const struct {
        const char *command, *model, *out; /* command: of the shell, before */
        int code;
        const char *sentence;
    } cases[] = {
        {"mkdir empty", "step-7", "empty/", 0, NULL},
        {"true", "step-7", "empty", -EEXIST, "--out empty is not empty"},
        {"mkdir -p full/dir", "step-7", "full", -EEXIST, ""},
        {"touch file", "step-7", "file", -ENOTDIR, ""},
        {"true", "step-7", "none/out", -ENOENT, "--out none/out: No such file or directory"},
        {"true", "step-7", NULL, -EDOM, ""},
        {"true", "none", "new", -ENOENT, ""},
        {"true", "step-7/config.json", "new", -EINVAL, "--model step-7/config.json"},
        /* What a killed export left is no hindrance; what it did not write is. */
        {"mkdir left.partial; touch left.partial/model-00001-of-00002.safetensors left.partial/config.json", "step-7",
         "left", 0, NULL},
        {"mkdir -p more.partial/additional_chat_templates; touch more.partial/config.json "
         "more.partial/additional_chat_templates/rag.jinja",
         "step-7", "more", 0, NULL},
        {"mkdir mine.partial; touch mine.partial/notes mine.partial/config.json", "step-7", "mine", -EEXIST,
         "mine.partial holds files that no export wrote"},
        /* Moments are not exported. */
        {"mkdir run; cp -r step-7 run; ln -s step-7 run/latest; " DAMAGE("run/step-7/optimizer.safetensors"), "run",
         "good", 0, NULL},
        {DAMAGE("run/step-7/model.safetensors"), "run/step-7", "new", -EINVAL,
         "/run/step-7: model.safetensors is not what was written"},
        {"true", "run", "new", -EINVAL, "/run/step-7: model.safetensors is not what was written"},
    };
    const struct eps_export_options both = {.model = "step-7", .connect = "lab", .out = "new"};
    struct store_fixture f;
    struct error err;

    make_checkpoint(&f, true);
    for (int i = 0; i < COUNT(cases); i++) {
        expect(cases[i].command, 0);
        if (cases[i].code == 0) {
            check_export(cases[i].model, cases[i].out, ANY);
            continue;
        }
        ck_assert_msg(export(cases[i].model, cases[i].out, ANY, &err) == cases[i].code, "%d: %s", i, err.text);
        ck_assert_holds(err.text, cases[i].sentence);
    }
    ck_assert_int_eq(client_export(NULL, &both, CLIENT_EXPORT_SHARD_BYTES, &err), -EDOM);
    ck_assert_str_eq(names_in("new"), "none");
    ck_assert_str_eq(names_in("full"), "dir ");
    ck_assert_str_eq(names_in("mine.partial"), "config.json notes ");
    const int fd = open(outputs_make("busy.partial"), O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    ck_assert_int_eq(export("step-7", "busy", ANY, &err), -EBUSY);
    ck_assert_str_eq(err.text, "--out busy: another export is writing it");
    ck_assert_str_eq(names_in("busy.partial"), "");
    close(fd);
    store_fixture_close(&f);
}

TEST(the_command_says_where_it_is_and_how_to_load_it)
{
    struct store_fixture f;

    make_checkpoint(&f, true);
    expect("eps export --model step-7 --out small --dtype fp16", 0);
    ck_assert_str_eq(command_out(), "small holds the model in fp16. In Python: "
                                    "transformers.AutoModelForCausalLM.from_pretrained(\"small\")\n");
    expect_refusal(&(struct refusal){"eps export --model step-7 --out small", 1,
                                     "--out small is not empty: choose a new directory", NULL});
    store_fixture_close(&f);
}

/* What comes from a live daemon is what a checkpoint of the same step gives: in the type that its run began from, or
 * the one asked for. */
TEST_EACH(a_live_model_is_exported_while_its_run_goes_on, 2)
{
    struct driver driver;
    struct driver_options options = {
        .side = "{\"options\": {\"source_dtype\": \"fp16\"}, \"files\": {\"merges.txt\": \"a b\\n\", "
                "\"chat_template.jinja\": \"{{ messages }}\", \"tokenizer.model\": \"AP8K\"}}"};
    const struct eps_export_options live = {.connect = "lab", .out = "live", .dtype = _i ? BF16 : ANY};
    struct eps_exported written;
    struct error err;

    processes_daemon("lab", 1, NULL);
    options.out = outputs_make("trained");
    driver_open(&driver, "lab", &options);
    driver_train(&driver, 2);
    ck_assert_msg(client_export(&written, &live, CLIENT_EXPORT_SHARD_BYTES, &err) == 0, "%s", err.text);
    ck_assert_int_eq(written.dtype, _i ? BF16 : FP16);
    driver_ask_save(&driver, 2);
    driver_await_saves(&driver, 1);
    driver_train(&driver, 3);
    driver_close(&driver);
    ck_assert_int_eq(export("trained", "saved", _i ? BF16 : ANY, &err), 0);
    expect("diff -r live saved", 0);
    outputs_check_file("live/chat_template.jinja", "{{ messages }}");
    expect("printf '\\0\\377\\n' | cmp - live/tokenizer.model", 0);
}

/* Weights in fp32 that came in two types stay in fp32; fp16 reaches to 65504. */
TEST(a_type_is_chosen_that_holds_the_weights)
{
    static const float numbers[8] = {1, 2, 3, 4, 5, 65520};
    static const uint16_t halves[8] = {1, 0x3c00, 0x7bff};
    const struct safetensors_plan large = {"ln_f.bias", 1, {8, 1}, SAFETENSORS_F32},
                                  half = {"ln_f.bias", 1, {8, 1}, SAFETENSORS_F16};
    struct eps_exported written = {.dtype = ANY};
    struct error err;

    put_model(&large, numbers, sizeof numbers, "transformer.ln_f.bias");
    ck_assert_int_eq(export("model", "out", FP16, &err), -ERANGE);
    ck_assert_holds(err.text, NORM_BIAS ": element 5 is 65520, too large for fp16: give --dtype fp32");
    expect("rm -r model", 0);
    put_model(&half, halves, sizeof halves, "transformer.ln_f.bias");
    ck_assert_int_eq(client_export(&written, &(struct eps_export_options){.model = "model", .out = "mixed"},
                                   CLIENT_EXPORT_SHARD_BYTES, &err),
                     0);
    ck_assert_int_eq(written.dtype, FP32);
}

/* The two newest of three, whose files are in several shards in between; and the newest alone, bit for bit. */
TEST(a_mean_is_that_of_the_newest_checkpoints)
{
    struct store_fixture f[3], back;
    struct error err = {""};
    struct eps_export_options options = {.model = "run", .out = "mean", .average = 2};

    mkdir("run", 0777);
    for (int i = 0; i < COUNT(f); i++) {
        store_fixture_open(&f[i], store_fixture_small, true, 0);
        store_draw(&f[i].store, 3 + (uint64_t)i);
        store_fixture_save(&f[i], print("run/step-%d", 9 + i), 9 + (uint64_t)i);
    }
    ck_assert_msg(client_export(NULL, &options, 10000, &err) == 0, "%s", err.text);
    load(&back, "mean", true);
    float *want = f[0].store.weights.base;
    const float *a = f[1].store.weights.base, *b = f[2].store.weights.base;
    for (uint64_t i = 0; i < back.model.segment_n; i++)
        want[i] = (float)(((double)a[i] + b[i]) / 2);
    store_fixture_same(want, back.store.weights.base, back.model.segment_n, "mean");
    store_fixture_close(&back);
    options.average = 1, options.out = "newest";
    ck_assert_msg(client_export(NULL, &options, CLIENT_EXPORT_SHARD_BYTES, &err) == 0, "%s", err.text);
    check_export("run/step-11", "alone", ANY);
    expect("cmp newest/model.safetensors alone/model.safetensors", 0);
    for (int i = 0; i < COUNT(f); i++)
        store_fixture_close(&f[i]);
}

TEST(a_mean_of_what_is_not_alike_or_not_there_is_refused)
{
    struct store_fixture f;
    struct error err;
    struct eps_export_options options = {.model = "run", .out = "mean", .average = 2};

    mkdir("run", 0777);
    store_fixture_open(&f, store_fixture_small, true, 0);
    store_fixture_save(&f, "run/step-1", 1);
    store_fixture_close(&f);
    ck_assert_int_eq(client_export(NULL, &options, CLIENT_EXPORT_SHARD_BYTES, &err), -EINVAL);
    ck_assert_holds(err.text, "--average 2: run holds 1 checkpoint: ", "--keep");
    store_fixture_open(&f, store_fixture_cut, true, 0);
    store_fixture_save(&f, "run/step-2", 2);
    store_fixture_close(&f);
    ck_assert_int_eq(client_export(NULL, &options, CLIENT_EXPORT_SHARD_BYTES, &err), -EINVAL);
    ck_assert_holds(err.text, "step-1: its tensors are not those of step-2, so there is no mean");
    options.model = NULL;
    ck_assert_int_eq(client_export(NULL, &options, CLIENT_EXPORT_SHARD_BYTES, &err), -EDOM);
    ck_assert_holds(err.text, "--average 2 needs --model");
    ck_assert_str_eq(names_in("mean"), "none");
}
