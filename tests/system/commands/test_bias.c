/* eps report --bias: its figures against gradients that weights give away, in runs whose update is a function of the
 * gradient alone; what it leaves behind, and what it refuses. */
#include "proto/model/file/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TRAIN "eps train --data data.txt --batch 4 --seq 24 --device cpu "

static const char bert[] = "{\"model_type\": \"bert\", \"vocab_size\": 330, \"hidden_size\": 48, "
                           "\"num_hidden_layers\": 2, \"num_attention_heads\": 3, \"intermediate_size\": 96, "
                           "\"max_position_embeddings\": 32}",
                  t5[] = "{\"model_type\": \"t5\", \"d_model\": 24, \"d_kv\": 6, \"d_ff\": 32, \"num_layers\": 2, "
                         "\"num_heads\": 4, \"vocab_size\": 180, \"decoder_start_token_id\": 0, \"pad_token_id\": 0, "
                         "\"eos_token_id\": 1}";

/* 24 grey images of 12x12 in three classes, in IDX files, and a net of three blocks. */
static void put_images(void)
{
    static uint8_t images[16 + 24 * 144] = {0, 0, 8, 3, 0, 0, 0, 24, 0, 0, 0, 12, 0, 0, 0, 12},
                                    labels[8 + 24] = {0, 0, 8, 1, 0, 0, 0, 24};

    for (size_t k = 0; k < 24; k++) {
        labels[8 + k] = (uint8_t)(k % 3);
        for (size_t i = 144 * k; i < 144 * (k + 1); i++)
            images[16 + i] = (uint8_t)(2 * processes_token(i) + 13 * (k % 3));
    }
    processes_write("train-images", images, sizeof images);
    processes_write("train-labels", labels, sizeof labels);
    processes_put_text("net.json", "{\"model_type\": \"wide_resnet\", \"depth\": 10, \"widen_factor\": 1, "
                                   "\"image_size\": 12, \"num_channels\": 1, \"num_labels\": 3}");
}

/* Rows of several kinds, and a model for each. */
static void put_kinds(void)
{
    uint16_t ids[2000];

    for (size_t i = 0; i < COUNT(ids); i++)
        ids[i] = (uint16_t)processes_token(i);
    processes_write("ids.bin", ids, sizeof ids);
    expect("mkdir bert t5 chat && cp " TESTS_DIR "/fixtures/tokenizers/bert.json bert/tokenizer.json && cp " TESTS_DIR
           "/fixtures/tokenizers/t5.json t5/tokenizer.json && cp " TESTS_DIR "/fixtures/bytes/tokenizer.json chat",
           0);
    processes_put_text("bert/config.json", bert);
    processes_put_text("t5/config.json", t5);
    processes_config("chat/config.json", 2, 2, 16, 96);
    expect("for i in $(seq 60); do printf '{\"prompt\": \"%s+1=\", \"completion\": \"%s\"}\\n' $i $((i + 1)); done "
           ">pairs.jsonl; (printf 'label\\ttext\\n'; for i in $(seq 60); do printf '%s\\tnumber %s\\n' $((i % 3)) $i; "
           "done) >classes.tsv",
           0);
}

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config_with("config.json", 12, 4, 32, 32, "\"resid_pdrop\": 0.1");
    expect(TRAIN "--model config.json --steps 1 --lr 0.01 --out first && eps export --model first/latest --out base",
           0);
    put_kinds();
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Of one step: weights before and after it. */
struct step {
    int fds[2];
    struct safetensors files[2];
};

static void open_step(struct step *step, const char *run, const char *file)
{
    for (int i = 0; i < 2; i++) {
        step->fds[i] = open(processes_path(print("%s/step-%d/%s", run, i + 1, file)), O_RDONLY | O_CLOEXEC);
        ck_assert_int_ge(step->fds[i], 0);
        ck_assert_int_eq(safetensors_open(&step->files[i], step->fds[i], NULL), 0);
    }
}

static void close_step(struct step *step)
{
    for (int i = 0; i < 2; i++) {
        safetensors_close(&step->files[i]);
        close(step->fds[i]);
    }
}

enum { RATE = 10 };

/* By hand: with betas of 0 and an epsilon of 1 the update is RATE * g / (|g| + 1). Owned. */
static double *gradient_of(const struct step *step, size_t tensor)
{
    const struct safetensors_entry *from = &step->files[0].entries[tensor], *to = &step->files[1].entries[tensor];
    float *const before = malloc(from->n * sizeof *before), *const after = malloc(from->n * sizeof *after);
    double *const gradient = malloc(from->n * sizeof *gradient);

    ck_assert(before && after && gradient);
    ck_assert_str_eq(from->name, to->name);
    ck_assert_int_eq(safetensors_read(before, from, 0, from->n, NULL), 0);
    ck_assert_int_eq(safetensors_read(after, to, 0, to->n, NULL), 0);
    for (uint64_t i = 0; i < from->n; i++) {
        const double update = ((double)before[i] - (double)after[i]) / RATE;
        gradient[i] = update / (1 - fabs(update));
    }
    free(before);
    free(after);
    return gradient;
}

/* The JSON's figures for a layer are those of the tensors whose names begin with its name, or of all. */
static void check_layer(json_t *layer, const struct step *approximate, const struct step *exact)
{
    const char *name = json_string_value(json_object_get(layer, "layer"));
    const bool all = strcmp(name, "all") == 0;
    double product = 0, square = 0, exact_square = 0, n = 0;

    for (size_t t = 0; t < exact->files[0].n_entries; t++) {
        const char *tensor = strstr(exact->files[0].entries[t].name, "transformer."); /* moments lack PEFT's prefix */
        if (!all && (!tensor || strncmp(tensor, name, strlen(name)) != 0 || tensor[strlen(name)] != '.'))
            continue;
        double *const a = gradient_of(approximate, t), *const e = gradient_of(exact, t);
        n += (double)exact->files[0].entries[t].n;
        for (uint64_t i = 0; i < exact->files[0].entries[t].n; i++)
            product += a[i] * e[i], square += a[i] * a[i], exact_square += e[i] * e[i];
        free(a);
        free(e);
    }
    ck_assert_double_eq(json_number_at(layer, "elements"), n);
    /* Weights around 1 hold updates to 6e-8, and gradients are 1e-3 of a layer's norm and more. */
    ck_assert_double_eq_tol(json_number_at(layer, "norm"), sqrt(square), 1e-4 * sqrt(square));
    ck_assert_double_eq_tol(json_number_at(layer, "exact_norm"), sqrt(exact_square), 1e-4 * sqrt(exact_square));
    ck_assert_double_eq_tol(json_number_at(layer, "cosine"), product / sqrt(square * exact_square), 1e-4);
    ck_assert_double_lt(json_number_at(layer, "cosine"), 0.9999);
}

/* Two runs, of approximate and of exact gradients, whose first step leaves the weights as they are: from there, one
 * step with a rate. The figures of the first checkpoint are those of that step. Blocks follow each other by number. */
TEST_EACH(cosine_and_norms_are_those_of_the_updates, 4)
{
    static const struct {
        const char *run, *form, *file;
    } runs[] = {
        {"--model config.json", "wta=0.3", "model.safetensors"},
        {"--model config.json", "attention=0.3", "model.safetensors"},
        {"--model config.json --parts 2 --moments bf16", "coded=4", "model.safetensors"},
        {"--model base --lora rank=3", "wta=0.3,coded=4", "adapter_model.safetensors"},
    };
    static const char still[] = "--schedule constant --warmup 0 --weight-decay 0 --betas 0,0 --epsilon 1 --lr 1e-12 "
                                "--save-every 1 --keep 0";
    struct step approximate, exact;

    for (int i = 0; i < 2; i++)
        expect(print(TRAIN "%s %s %s%s --steps 1 --out run-%d-%d && eps train --resume run-%d-%d --steps 2 --change "
                           "lr,min-lr --lr %d --min-lr %d",
                     runs[_i].run, still, i ? "" : "--approximate ", i ? "" : runs[_i].form, _i, i, _i, i, RATE, RATE),
               0);
    open_step(&approximate, print("run-%d-0", _i), runs[_i].file);
    open_step(&exact, print("run-%d-1", _i), runs[_i].file);
    json_t *bias = expect_json(print("eps report run-%d-0/step-1 --bias --json", _i), 0),
           *layers = json_object_get(bias, "layers"), *layer;
    size_t k;
    ck_assert_double_eq(json_number_at(bias, "step"), 1);
    ck_assert_str_eq(json_string_value(json_object_get(bias, "approximate")), runs[_i].form);
    json_array_foreach(layers, k, layer)
    {
        const char *name = json_string_value(json_object_get(layer, "layer"));
        if (k < 12)
            ck_assert_str_eq(name, print("transformer.h.%zu", k));
        if (strcmp(name, "other") != 0)
            check_layer(layer, &approximate, &exact);
    }
    ck_assert_uint_eq(k, strstr(runs[_i].run, "--lora") ? 13 : 14);
    json_decref(bias);
    close_step(&approximate);
    close_step(&exact);
}

enum { DRAWS = 3 };

/* By hand, over all trained elements, from the updates of runs with one draw each. */
static void sum_draws(double *noise, double *off, struct step draws[DRAWS], const struct step *exact)
{
    *noise = *off = 0;
    for (size_t t = 0; t < exact->files[0].n_entries; t++) {
        double *const e = gradient_of(exact, t), *d[DRAWS];
        for (int k = 0; k < DRAWS; k++)
            d[k] = gradient_of(&draws[k], t);
        for (uint64_t i = 0; i < exact->files[0].entries[t].n; i++) {
            double mean = 0;
            for (int k = 0; k < DRAWS; k++)
                mean += d[k][i] / DRAWS;
            for (int k = 0; k < DRAWS; k++)
                *noise += pow(d[k][i] - mean, 2) / (DRAWS - 1);
            *off += pow(mean - e[i], 2);
        }
        free(e);
        for (int k = 0; k < DRAWS; k++)
            free(d[k]);
    }
    *noise = sqrt(*noise), *off = sqrt(*off);
}

/* --draws: a run's exact gradients beside a form that it does not have. Each number draws anew; that of all rows, which
 * is biased, draws nothing. */
TEST_EACH(noise_and_mean_of_several_draws_are_those_of_the_updates, 3)
{
    static const char still[] = "--schedule constant --warmup 0 --weight-decay 0 --betas 0,0 --epsilon 1 --lr 1e-12 "
                                "--save-every 1 --keep 0",
                      *const forms[] = {"wta=0.3", "attention=0.5,coded=4", "wta=0.3,rule=all"};
    struct step exact, draws[DRAWS];
    double noise, off;

    for (int k = -1; k < DRAWS; k++)
        expect(print(TRAIN "--model config.json %s %s%s --steps 1 --out drawn-%d-%d && eps train --resume drawn-%d-%d "
                           "--steps 2 --change lr,min-lr --lr %d --min-lr %d",
                     still, k < 0 ? "" : print("--approximate %s", forms[_i]), k > 0 ? print(",draw=%d", k) : "", _i, k,
                     _i, k, RATE, RATE),
               0);
    open_step(&exact, print("drawn-%d--1", _i), "model.safetensors");
    for (int k = 0; k < DRAWS; k++)
        open_step(&draws[k], print("drawn-%d-%d", _i, k), "model.safetensors");
    sum_draws(&noise, &off, draws, &exact);
    json_t *bias = expect_json(print("eps report drawn-%d--1/step-1 --bias --approximate %s --draws %d --json", _i,
                                     forms[_i], DRAWS),
                               0),
           *layers = json_object_get(bias, "layers"), *all = json_array_get(layers, json_array_size(layers) - 1);
    ck_assert_str_eq(json_string_value(json_object_get(bias, "approximate")), forms[_i]);
    ck_assert_double_eq(json_number_at(bias, "draws"), DRAWS);
    ck_assert_double_eq_tol(json_number_at(all, "noise"), noise, 1e-3 * off);
    ck_assert_double_eq_tol(json_number_at(all, "off"), off, 1e-3 * off);
    ck_assert_double_gt(off, 0);
    ck_assert((noise > 0.5 * off) == (_i < 2));
    json_decref(bias);
    expect(
        print(
            "eps report drawn-%d--1/step-1 --bias --approximate %s --draws 2 >told && ! ls -A drawn-%d--1 | grep bias",
            _i, forms[_i], _i),
        0);
    expect("grep -c '^transformer.h' told", 0, "12\n");
    close_step(&exact);
    for (int k = 0; k < DRAWS; k++)
        close_step(&draws[k]);
}

/* Every checkpoint is measured, the oldest first; the run's directory is as it was, and the run goes on from it as if
 * nobody had looked. What is not sampled is exact: outside of blocks the gradients agree in every digit that is
 * printed. */
TEST(a_run_is_only_read)
{
    const char *train = TRAIN "--model config.json --approximate wta=0.3 --save-every 2 --keep 0 --steps";

    expect(
        print("%s 4 --out read && ls -A read >before && cp -r read looked && eps report looked --bias >said && ls -A "
              "looked | cmp - before",
              train),
        0);
    expect("grep -c '^step [24], wta=0.3$' said", 0, "2\n");
    expect("grep '^other' said | sort -u", 0, "other             1.0000  1.0000\n");
    expect("eps train --resume looked --steps 6 && eps train --resume read --steps 6", 0);
    expect("cmp looked/step-6/model.safetensors read/step-6/model.safetensors", 0);
    expect("cmp looked/step-6/optimizer.safetensors read/step-6/optimizer.safetensors", 0);
    expect("eps report looked --bias --device-mem 1KiB", 1, "of device memory");
    expect("! ls -A looked | grep bias", 0);
}

TEST(what_has_no_bias_or_cannot_tell_is_refused)
{
    expect(TRAIN "--model config.json --steps 1 --out exact", 0);
    expect("eps train --data - --batch 4 --seq 24 --model config.json --steps 1 --approximate coded=8 --out piped "
           "<data.txt",
           0);
    expect_sentence("eps report exact --bias", 1, "exact/step-1: its run has exact gradients", "--approximate");
    expect_sentence("eps report exact --bias --approximate any", 2, "--approximate any", "a form is needed");
    expect_sentence("eps report exact --bias --approximate wta=2", 2, "--approximate wta=2", "share of the tokens");
    expect_sentence("eps report exact --bias --approximate wta=0.3,draw=1 --draws 2", 2, "draw=1", "once");
    expect_sentence("eps report exact --bias --approximate pool=2 --draws 2", 2, "--draws 2", "draws nothing");
    expect_sentence("eps report exact --draws 2", 2, "--draws", "go with --bias");
    expect_sentence("eps report exact --bias --draws 0", 2, "--draws '0'", "a whole number from 1");
    expect_sentence("eps report piped --bias", 1, "piped/step-1: the data", "standard input");
    expect_sentence("mkdir -p empty && eps report empty --bias", 1, "empty holds no checkpoint", "step-N");
    expect_sentence("eps report nowhere --bias", 1, "nowhere", "No such file");
    expect_sentence("eps report exact piped --bias", 2, "--bias is of one run", "name one");
    expect_sentence("eps report exact --bias --out a.svg", 2, "--out is a picture", "only one");
    expect_sentence("eps report exact --json", 2, "--json", "go with --bias");
}

/* Of a task, of masked tokens, of conversations in shared rows, and of sources and their targets: the form is chosen,
 * and each one's gradients are compared. */
TEST_EACH(rows_of_any_kind_have_a_form_and_a_bias, 4)
{
    static const struct {
        const char *run, *blocks;
    } kinds[] = {
        {"--model bert/config.json --task classify --data classes.tsv", "^bert.encoder.layer.[01] "},
        {"--model bert/config.json --data ids.bin --mask-fraction 0.3 --seq 24", "^bert.encoder.layer.[01] "},
        {"--model chat/config.json --data pairs.jsonl --pack --seq 48", "^transformer.h.[01] "},
        {"--model t5/config.json --data pairs.jsonl", "^[de][en]coder.block.[01] "},
    };
    const char *train = print("eps train %s --batch 4 --steps 1 --device cpu", kinds[_i].run);

    expect(print("%s --approximate any --out chosen-%d", train, _i), 0, "any chose ");
    expect(print("%s --approximate wta=0.3,coded=4 --out form-%d && eps report form-%d/step-1 --bias | grep -c '%s'",
                 train, _i, _i, kinds[_i].blocks),
           0, _i == 3 ? "4\n" : "2\n");
}

/* Means of blocks stand for the inputs of blocks' convolutions alone: the first, of the image, and the head are exact
 * in every digit that is printed. */
TEST(means_of_blocks_bias_layers_of_convolutions_alone)
{
    put_images();
    expect("eps train --model net.json --data train-images --batch 8 --parts 2 --steps 1 --approximate pool=2 --out "
           "pooled --device cpu",
           0);
    json_t *bias = expect_json("eps report pooled/step-1 --bias --json", 0), *layers = json_object_get(bias, "layers"),
           *layer;
    size_t k;
    ck_assert_str_eq(json_string_value(json_object_get(bias, "approximate")), "pool=2");
    ck_assert_uint_eq(json_array_size(layers), 5); /* three blocks, the others, all */
    json_array_foreach(layers, k, layer)
    {
        const double cosine = json_number_at(layer, "cosine");
        if (k == 3) {
            ck_assert_str_eq(json_string_value(json_object_get(layer, "layer")), "other");
            ck_assert_double_gt(json_number_at(layer, "exact_norm"), 0);
            ck_assert_double_eq(json_number_at(layer, "norm"), json_number_at(layer, "exact_norm"));
            ck_assert_double_eq_tol(cosine, 1, 1e-12);
        } else {
            ck_assert_double_gt(cosine, 0);
            ck_assert_double_lt(cosine, 0.9999);
        }
    }
    json_decref(bias);
    expect("eps report pooled/step-1 --bias | grep -Ec '^other +1\\.0000 +1\\.0000$'", 0, "1\n");
}
