/* A classifier, as a user trains, measures, uses and resumes it, and what is refused. The weights are fresh ones, of a
 * small BERT with a real tokenizer. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE "--device cpu --device-mem 64MiB "
#define TRAIN   "eps train --model bert/config.json --task classify --data train.tsv --batch 8 --lr 3e-3 " MACHINE

static const char config[] = "{\"model_type\": \"bert\", \"architectures\": [\"BertModel\"], \"vocab_size\": 330, "
                             "\"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                             "\"intermediate_size\": 64, \"max_position_embeddings\": 64, \"initializer_range\": 0.1, "
                             "\"hidden_dropout_prob\": 0, \"attention_probs_dropout_prob\": 0}";

/* 62 rows of 3 to 14 tokens, in turn of a fox and of a dog; pairs with the number of the first text as their score. */
static void setup(void)
{
    processes_setup();
    expect("mkdir bert && cp " TESTS_DIR "/fixtures/tokenizers/bert.json bert/tokenizer.json", 0);
    processes_put_text("bert/config.json", config);
    processes_config("gpt2.json", 1, 2, 16, 16);
    expect("{ printf 'sentence\\tlabel\\n'; for i in $(seq 31); do a=$(seq -s ' ' 1 $((i % 6)));"
           "printf '%s fox %s\\tfox\\n%s dog\\tdog\\n' \"$a\" \"$a\" \"$a\"; done; } >train.tsv; "
           "cut -f 1 train.tsv >plain.tsv; "
           "{ printf 'sentence1\\tsentence2\\tscore\\n'; for i in $(seq 40); do "
           "printf 'the %s\\tquick fox\\t%s\\n' $((i % 5)) $((i % 5)); done; } >pairs.tsv; "
           "printf 'sentence\\tlabel\\na fox\\tcat\\n' >cat.tsv; printf 'sentence\\tlabel\\na\\tx\\nb\\tx\\n' >one.tsv",
           0);
}

SUITE_TIMEOUT(200)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* As pandas writes a field with a quote in it; one that only begins with a quote is plain. */
TEST(columns_and_quotes_that_nobody_reads_are_told)
{
    expect("printf 'idx\\tsentence\\tlabel\\n0\\t\"a \"\"fox\"\"\"\\tx\\n1\\t\"a\" fox\\ty\\n' >quotes.tsv && eps "
           "train --model "
           "bert/config.json --task classify --data quotes.tsv --eval-data quotes.tsv --steps 1 --out quotes " MACHINE,
           0, "note         quotes.tsv: the column \"idx\" is not read",
           "note         quotes.tsv: 1 field is in quotes, which are read as part of the text");
}

/* Mean of -log p over the rows, p in the column of a row's own label: rows are fox and dog in turn, columns dog and
 * fox. */
static double loss_of_predictions(const char *path, int n_expected)
{
    FILE *file = fopen(processes_path(path), "r");
    char line[200], name[100];
    double sum = 0, p[2];
    int n = 0;

    ck_assert_ptr_nonnull(file);
    ck_assert_ptr_nonnull(fgets(line, sizeof line, file));
    ck_assert_str_eq(line, "prediction\tdog\tfox\n");
    while (fgets(line, sizeof line, file)) {
        ck_assert_int_eq(sscanf(line, "%99s %lf %lf", name, &p[0], &p[1]), 3);
        ck_assert_double_eq_tol(p[0] + p[1], 1, 2e-6); /* six digits each */
        ck_assert_str_eq(name, p[1] > p[0] ? "fox" : "dog");
        sum -= log(p[n++ % 2 == 0]);
    }
    fclose(file);
    ck_assert_int_eq(n, n_expected);
    return sum / n;
}

TEST(a_classifier_is_trained_measured_and_used)
{
    expect(TRAIN "--eval-data train.tsv --epochs 4 --eval-every 8 --out run", 0,
           ": 2 classes: dog, fox; 62 rows, 62 held out; held out: train.tsv\n", "rows of at most", "held-out accuracy",
           "scores       accuracy", "eps eval --model run/latest --data FILE");
    json_t *line = expect_json("tail -n 1 run/metrics.jsonl", 0);
    json_t *said =
        expect_json("eps eval --model run --data train.tsv --batch 8 --predictions all.tsv --json " MACHINE, 0);

    ck_assert_double_eq(json_number_at(line, "step"), 32); /* 4 times 8 minibatches, the last one of 6 rows */
    ck_assert_double_ge(json_number_at(said, "accuracy"), 0.9);
    ck_assert_double_eq(json_number_at(said, "rows"), 62);
    ck_assert_double_eq_tol(json_number_at(said, "loss"), json_number_at(line, "eval_loss"), 1e-10); /* 12 digits */
    for (int i = 0; i < 3; i++) {
        const char *name = ((const char *const[]){"accuracy", "f1", "matthews"})[i];
        ck_assert_double_eq_tol(json_number_at(said, name), json_number_at(line, print("eval_%s", name)), 1e-10);
    }
    ck_assert_double_eq_tol(loss_of_predictions("all.tsv", 62), json_number_at(said, "loss"), 1e-4);
    expect("eps eval --model run --data plain.tsv --batch 8 --predictions plain.out " MACHINE, 0,
           "62 predictions in plain.out");
    ck_assert_ptr_null(strstr(command_out(), "loss"));
    expect("cmp all.tsv plain.out", 0);
    /* Without labels, no loss shows it: the last class's weights become the largest numbers. */
    expect("cp -rL run/latest damaged && rm damaged/training.json && for i in $(seq 32); do printf "
           "'\\377\\377\\177\\177'; done | dd of=damaged/model.safetensors bs=1 "
           "seek=$(($(stat -c %s damaged/model.safetensors) - 128)) conv=notrunc",
           0);
    expect("eps eval --model damaged --data plain.tsv --predictions damaged.out " MACHINE, 1,
           "the model's answer to row 0 is infinite: its weights are damaged");
    expect("eps eval --model run --data absent.tsv --predictions plain.out " MACHINE, 1, "absent.tsv");
    expect("cmp all.tsv plain.out", 0); /* what is refused leaves the file */
    expect("eps eval --model run --data train.tsv " MACHINE, 0, "per row over 62 rows", "accuracy ", ", matthews ");
    expect_file("run/latest/config.json", "BertForSequenceClassification", "\"id2label\"", "\"fox\"");
    expect("eps export --model run --out exported && cmp exported/config.json run/latest/config.json", 0);
    /* Its own labels stay, and go on being found by name. */
    expect("eps train --model run/latest --data train.tsv --steps 1 --batch 8 --out again " MACHINE, 0,
           ": 2 classes: dog, fox");
    json_decref(line), json_decref(said);
}

/* Real tokens: each row's pieces and the two special ones, cut at --seq. In the last epoch the run ends after a
 * step. */
TEST(tokens_are_counted_without_padding)
{
    expect(TRAIN "--epochs 1 --out counted --eval-data train.tsv --order sequential", 0);
    json_t *line = expect_json("tail -n 1 counted/metrics.jsonl", 0);
    double n = 0;

    for (int i = 1; i <= 31; i++)
        n += 2 * 2 + 2 + 3 * (i % 6); /* "fox" and "dog" are one token, and so is a digit */
    ck_assert_double_eq(json_number_at(line, "tokens"), n);
    json_decref(line);
}

TEST(a_regression_is_trained_and_measured)
{
    expect("eps train --model bert/config.json --task regress --data pairs.tsv --eval-data pairs.tsv --epochs 12 --lr "
           "3e-3 --batch 8 --out numbers " MACHINE,
           0, ": 40 rows, 40 held out", "pearson", "spearman");
    json_t *said =
        expect_json("eps eval --model numbers --data pairs.tsv --predictions numbers.tsv --json " MACHINE, 0);

    ck_assert_double_ge(json_number_at(said, "pearson"), 0.5);
    ck_assert_double_ge(json_number_at(said, "spearman"), 0.5);
    expect("head -n 1 numbers.tsv | grep -qx prediction && [ $(wc -l <numbers.tsv) = 41 ]", 0);
    json_decref(said);
}

/* An epoch has 7 steps of 56 rows, so step 5 is within the first and step 10 within the second. */
TEST(a_run_that_was_stopped_within_an_epoch_ends_with_the_same_bits)
{
    expect(TRAIN "--steps 10 --save-every 5 --keep 0 --seed 3 --out whole", 0, "56 rows, 6 held out");
    expect("mkdir stopped && cp -r whole/step-5 stopped && eps train --resume stopped", 0, "continuing from");
    expect("cmp whole/step-10/model.safetensors stopped/step-10/model.safetensors && "
           "cmp whole/step-10/optimizer.safetensors stopped/step-10/optimizer.safetensors",
           0);
    expect(TRAIN "--steps 10 --seed 4 --out seeded", 0);
    expect("cmp -s whole/step-10/model.safetensors seeded/step-10/model.safetensors", 1);
}

static const struct refusal refusals[] = {
    {"eps train --task classify --data train.tsv " MACHINE, 2, "--task needs --model", "BERT"},
    {"eps train --model gpt2.json --task classify --data train.tsv " MACHINE, 2,
     "--task classify is for these types of model: bert, ", "this is a gpt2"},
    {"eps train --model byte-small --task classify --data train.tsv " MACHINE, 2, "--task", "byte-small"},
    {"eps train --model gpt2.json --columns 1,2 --data train.tsv " MACHINE, 2, "--columns", "--task"},
    {TRAIN "--separator eos", 2, "--separator eos", "predict tokens"},
    {TRAIN "--mask-fraction 0.2", 2, "--mask-fraction", "predict tokens"},
    {TRAIN "--eval-tokens 100", 2, "--eval-tokens", "predict tokens"},
    {TRAIN "--columns sentence", 2, "--columns 'sentence'", "TEXT,LABEL"},
    {TRAIN "--columns text,label", 1, "train.tsv: line 1: no column 'text'", "'sentence', 'label'"},
    {TRAIN "--seq 2", 2, "--seq 2", "choose 3 or more"},
    {TRAIN "--seq 65", 2, "--seq 65", "64 positions"},
    {TRAIN "--eval-data cat.tsv", 1, "--eval-data: cat.tsv: line 2: its label 'cat' is no class", "dog, fox"},
    {"eps train --model bert/config.json --task classify --data one.tsv " MACHINE, 1, "every row has the label 'x'",
     "two classes"},
    {"eps train --model bert/config.json --task regress --data train.tsv --columns sentence,label " MACHINE, 1,
     "train.tsv: line 2: its label 'fox' is not a number", "--task regress"},
    {"eps train --model own/latest --task regress --data pairs.tsv " MACHINE, 1, "a classifier already", "classes"},
    {"eps train --resume own --change batch --batch 4 --steps 9", 2, "--change batch", "--batch 8"},
    {"eps train --resume own --steps 9 --data cat.tsv", 1, "its label 'cat' is no class", NULL},
    {"eps train --resume own --steps 9 --data part.tsv", 1, "part.tsv", "not what the run was trained on"},
    {"eps eval --model own --data cat.tsv " MACHINE, 1, "cat.tsv: line 2: its label 'cat' is no class", "dog, fox"},
    {"eps eval --model own --data plain.tsv " MACHINE, 1, "plain.tsv: line 1: no column with a known name for a label",
     "'sentence'"},
    {"eps eval --model own --data train.tsv --stride 8 " MACHINE, 2, "--stride", "whole rows"},
    {"eps eval --model own --data train.tsv --eval-tokens 8 " MACHINE, 2, "--eval-tokens", "whole rows"},
    {"eps eval --model own --data train.tsv --train-on last " MACHINE, 2, "--train-on", "whole rows"},
    {"eps eval --model own --data train.tsv --long refuse " MACHINE, 2, "--long", "whole rows"},
    {"eps eval --model own --data train.tsv --source-seq 4 " MACHINE, 2, "--source-seq 4", "encoder-decoders"},
    {"eps eval --model own --data train.tsv --predictions none/x " MACHINE, 1, "--predictions none/x", "No such file"},
    {"(cat train.tsv; for i in 1 2 3 4; do tail -n +2 train.tsv; done) >long.tsv; eps eval --model own --data long.tsv "
     "--predictions /dev/full " MACHINE,
     1, "--predictions /dev/full: No space left", NULL},
    {"eps eval --model gpt2/latest --data train.tsv --predictions x " MACHINE, 2, "--predictions", "predicts tokens"},
    {"eps eval --model own --data train.tsv --columns sentence,lable --predictions x " MACHINE, 1, "no column 'lable'",
     "leave it out of --columns"},
    {"eps eval --model own --data mine.tsv --predictions mine.tsv " MACHINE, 2,
     "--predictions mine.tsv is a file of --data", NULL},
    {"eps eval --model own --data 'min?.tsv' --predictions linked.tsv " MACHINE, 2, "linked.tsv is a file of --data",
     NULL},
    {"eps eval --model own --data - --predictions mine.tsv <mine.tsv " MACHINE, 2, "mine.tsv is a file of --data",
     NULL},
    {"eps train --model bert/config.json --task classify --data many.tsv " MACHINE, 1, "--data: 30000 classes",
     "more than 1024 KiB"},
    {"sed 's/\\t/,/' train.tsv | eps train --model bert/config.json --task classify --data - " MACHINE, 1,
     "-: line 1: it has commas and no tab", "(TSV)"},
    {"sed 's/\\t/,/' train.tsv >named.txt && eps eval --model own --data named.txt " MACHINE, 1,
     "named.txt: line 1: it has commas and no tab", "(TSV)"},
    {"eps train --model gpt2.json --data train.tsv " MACHINE, 1, "train.tsv: this is TSV", "--task classify"},
    {"eps train --model bert/config.json --data train.tsv " MACHINE, 1, "can be trained; --task classify",
     "makes a classifier of it"},
    {"eps train --model headless --data train.tsv " MACHINE, 1,
     "headless: ", "--task classify or --task regress makes"},
    {"eps plan --model bert/config.json", 1, "can be trained; --task classify", "makes a classifier of it"},
    {"eps plan --model byte-small --task classify", 2, "--task", "byte-small"},
    {"eps plan --model bert/config.json --task classify --labels 1", 2, "--labels 1", "2 and 65536"},
    {"eps plan --model bert/config.json --task classify --labels 30000", 1, "--labels: 30000 classes", "1024 KiB"},
    {"eps plan --model bert/config.json --task regress --labels 3", 2, "--labels 3", "--task classify"},
    {"eps plan --model own --labels 3", 2, "--labels 3", "2 classes"},
    {"eps generate --model own --prompt fox " MACHINE, 1, "a bert model predicts labels and cannot continue a text",
     "generate"},
    {"echo fox | eps chat --model own " MACHINE, 1, "eps chat: a bert model predicts labels and cannot continue a text",
     "choose a model that predicts the next token"},
};

TEST(what_cannot_be_classified_is_refused)
{
    expect(TRAIN "--steps 2 --out own", 0);
    expect("cp train.tsv text.txt && eps train --model gpt2.json --data text.txt --steps 1 --batch 2 --seq 8 --out "
           "gpt2 " MACHINE "&& head -n 40 train.tsv >part.tsv",
           0);
    expect("cp train.tsv mine.tsv && ln mine.tsv linked.tsv && cp -rL own/latest headless && rm headless/training.json "
           "headless/optimizer.safetensors && "
           "sed -i s/BertForSequenceClassification/BertForMaskedLM/ headless/config.json && "
           "{ printf 'text\\tlabel\\n'; seq 30000 | sed 's/^/a\\t/'; } >many.tsv",
           0);
    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
    expect("cmp train.tsv mine.tsv && [ ! -e x ]", 0); /* nothing was written, and nothing is left */
}

TEST(a_directory_gives_its_tables)
{
    expect("mkdir -p tables/old tables/older && head -n 20 train.tsv >tables/a.tsv && cp train.tsv tables/notes.txt && "
           "{ head -n 1 train.tsv; tail -n 43 train.tsv; } >tables/b.tsv",
           0);
    expect("eps train --model bert/config.json --task classify --data tables --eval-data train.tsv --steps 1 --batch 8 "
           "--out tabled " MACHINE,
           0, "62 rows, 62 held out", "1 file in directories of --data passed over: not named .tsv or .jsonl",
           "2 folders in directories of --data passed over: tables/old and others; name them too");
    expect("eps eval --model tabled --data tables --predictions tabled.tsv " MACHINE, 0, "62 predictions");
}

TEST(a_plan_says_what_is_planned_for)
{
    expect("eps plan --model bert/config.json --task classify", 0,
           ", to classify rows: 2 classes\n32 rows of at most 64 "
           "tokens in 1 part");
    expect("eps plan --model bert/config.json --task classify --labels 7 --seq 16 --batch 8", 0,
           ": 7 classes\n8 rows of "
           "at most 16 tokens");
    expect("eps plan --model bert/config.json --task regress", 0, ", to predict a number of each row\n32 rows");
    expect("eps plan --model bert/config.json --task classify --minimum && "
           "eps plan --model bert/config.json --task classify --find-batch --device-mem 64MiB --host-mem 64MiB && "
           "eps plan --model bert/config.json --task classify --timeline",
           0);
}
