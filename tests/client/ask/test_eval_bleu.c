/* eps eval --bleu: it scores the very targets that eps generate writes, against the texts of the data. What BLEU is:
 * test_bleu. */
#include "client/text/bleu.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(single)

static const char config[] =
    "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 40, \"num_layers\": 2, \"num_decoder_layers\": "
    "2, "
    "\"num_heads\": 2, \"vocab_size\": 180, \"relative_attention_num_buckets\": 8, \"dropout_rate\": 0.0, "
    "\"relative_attention_max_distance\": 20, \"eos_token_id\": 1, \"decoder_start_token_id\": 0}";

enum { PAIRS = 8 };
static const char *const sources[PAIRS] = {"the cat",  "a dog runs", "the house", "he is here",
                                           "cats run", "the sea",    "a red car", "we see it"};
static const char *const targets[PAIRS] = {"die katze",  "ein hund rennt", "das haus, hier.", "er ist hier",
                                           "sie rennen", "das meer!",      "ein auto",        "wir sehen es"};

/* The pairs as two texts and as .jsonl, and a model that has learnt them a little. */
static void setup(void)
{
    FILE *lines;

    processes_setup();
    lines = fopen(processes_path("pairs.jsonl"), "w");
    ck_assert_ptr_nonnull(lines);
    for (int i = 0; i < PAIRS; i++)
        fprintf(lines, "{\"source\": \"%s\", \"target\": \"%s\"}\n", sources[i], targets[i]);
    fclose(lines);
    for (int side = 0; side < 2; side++) {
        lines = fopen(processes_path(side ? "targets.txt" : "sources.txt"), "w");
        ck_assert_ptr_nonnull(lines);
        for (int i = 0; i < PAIRS; i++)
            fprintf(lines, "%s\n", (side ? targets : sources)[i]);
        fclose(lines);
    }
    expect("mkdir fresh", 0);
    processes_put_text("fresh/config.json", config);
    expect("cp " TESTS_DIR "/fixtures/tokenizers/t5.json fresh/tokenizer.json", 0);
    expect(
        "eps train --model fresh/config.json --data pairs.jsonl --steps 30 --batch 4 --lr 1e-2 --device cpu --out run "
        "--eval-data pairs.jsonl",
        0);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Line i of a text, owned. */
static char *line_of(const char *text, int i)
{
    for (; i > 0; i--)
        text = strchr(text, '\n') + 1;
    return strndup(text, strcspn(text, "\n"));
}

static const char *const ways[] = {"--data pairs.jsonl",
                                   "--data sources.txt targets.txt --beams 2 --length-penalty 0.5",
                                   "--data pairs.jsonl --beams 1 --tokens 5 --device-mem 4MiB"};

TEST_EACH(the_score_is_of_the_targets_that_generate_writes, COUNT(ways))
{
    const char *const search[] = {"--beams 4", "--beams 2 --length-penalty 0.5", "--beams 1 --tokens 5"};
    struct client_bleu bleu = {0};
    struct client_bleu_score score;
    struct error err;
    char command[400];

    snprintf(command, sizeof command, "eps eval --model run/latest %s --bleu --json --device cpu --predictions out.txt",
             ways[_i]);
    json_t *answer = expect_json(command, 0);
    char *const written = processes_read(processes_path("out.txt"));
    for (int i = 0; i < PAIRS; i++) {
        char *const line = line_of(written, i);
        snprintf(command, sizeof command, "eps generate --model run/latest %s --json --device cpu --prompt \"%s\"",
                 search[_i], sources[i]);
        json_t *alone = expect_json(command, 0);
        const char *text = json_string_value(json_object_get(alone, "text"));
        ck_assert_ptr_nonnull(text);
        if (!strstr(text, "<")) /* which has no special token's text */
            ck_assert_str_eq(line, text);
        ck_assert_int_eq(client_bleu_add(&bleu, line, strlen(line), targets[i], strlen(targets[i]), &err), 0);
        json_decref(alone);
        free(line);
    }
    client_bleu_score(&score, &bleu);
    ck_assert_double_eq(json_number_at(answer, "bleu"), score.score);
    ck_assert_double_eq(json_number_at(answer, "precisions.0"), score.precisions[0]);
    ck_assert(score.precisions[0] > 0);
    ck_assert_double_eq(json_number_at(answer, "brevity_penalty"), score.brevity_penalty);
    ck_assert_double_eq(json_number_at(answer, "segments"), PAIRS);
    ck_assert_double_eq(json_number_at(answer, "reference_tokens"), (double)score.n_reference_tokens);
    ck_assert_str_eq(json_string_value(json_object_get(answer, "signature")), CLIENT_BLEU_SIGNATURE);
    json_decref(answer);
    free(written);
}

TEST(what_bleu_has_no_use_for_is_refused)
{
    expect("eps eval --model run/latest --data pairs.jsonl --bleu --seq 20", 2, "--seq is not for --bleu");
    expect("eps eval --model run/latest --data pairs.jsonl --beams 3", 2, "are for --bleu");
    expect("eps eval --model run/latest --data sources.txt --bleu", 1, "a text alone: give two");
    expect("eps eval --model run/latest --data pairs.jsonl --bleu --predictions pairs.jsonl", 2,
           "--predictions pairs.jsonl is a file of --data");
    processes_config("gpt.json", 1, 2, 32, 32);
    expect("eps train --model gpt.json --data sources.txt --steps 1 --seq 8 --batch 1 --device cpu --out gpt", 0);
    expect("eps eval --model gpt/latest --data pairs.jsonl --bleu", 2, "a gpt2 model does not");
}
