/* An encoder-decoder with dynamic convolutions as a user has it: trained by the command, it writes what it has learned,
 * and is scored. Its tokens, by an independent search: test_eps_generate_targets. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config[] =
    "{\"model_type\": \"dynamic_conv\", \"d_model\": 32, \"num_heads\": 2, \"ffn_dim\": 40, \"encoder_layers\": 2, "
    "\"decoder_layers\": 2, \"encoder_kernel_sizes\": [3, 7], \"decoder_kernel_sizes\": [4, 11], \"vocab_size\": 180, "
    "\"decoder_start_token_id\": 0, \"eos_token_id\": 1, \"dropout\": 0.1, \"weight_dropout\": 0.1}";

enum { PAIRS = 6, STEPS = 120 };
static const char *const sources[PAIRS] = {"the cat", "a dog runs", "the house", "he is here", "cats run", "the sea"};
static const char *const targets[PAIRS] = {"die katze",   "ein hund rennt", "das haus, hier.",
                                           "er ist hier", "sie rennen",     "das meer!"};

#define TRAIN                                                                                                          \
    "eps train --model conv/config.json --data pairs.jsonl --eval-data pairs.jsonl --label-smoothing 0.1 --batch 6 "   \
    "--parts 2 --deterministic --lr 1e-2 --schedule inverse-sqrt --warmup 10 --device cpu --save-every 5 "

static void setup(void)
{
    processes_setup();
    expect("mkdir conv && cp " TESTS_DIR "/fixtures/tokenizers/t5.json conv/tokenizer.json", 0);
    processes_put_text("conv/config.json", config);
    FILE *lines = fopen(processes_path("pairs.jsonl"), "w");
    ck_assert_ptr_nonnull(lines);
    for (int i = 0; i < PAIRS; i++)
        fprintf(lines, "{\"source\": \"%s\", \"target\": \"%s\"}\n", sources[i], targets[i]);
    fclose(lines);
    expect(print(TRAIN "--steps %d --out whole", STEPS), 0);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* By heart, which dropout and smoothing do not hinder. */
TEST(it_writes_what_it_has_learned)
{
    json_t *answer =
        expect_json("eps eval --model whole --data pairs.jsonl --bleu --beams 3 --predictions written.txt --json "
                    "--device cpu",
                    0);
    char *const written = processes_read(processes_path("written.txt"));
    const char *line = written;

    ck_assert_double_eq_tol(json_number_at(answer, "bleu"), 100, 1e-9);
    for (int i = 0; i < PAIRS; i++, line = strchr(line, '\n') + 1)
        ck_assert_msg(strncmp(line, targets[i], strlen(targets[i])) == 0, "%s: %s", sources[i], line);
    free(written);
    json_decref(answer);
    answer =
        expect_json(print("eps generate --model whole --beams 3 --json --device cpu --prompt '%s'", sources[1]), 0);
    ck_assert_str_eq(json_string_value(json_at(answer, "text")), targets[1]);
    json_decref(answer);
}

/* One that has learned nothing does not. */
TEST(a_fresh_one_scores_nothing)
{
    expect("eps train --model conv/config.json --data pairs.jsonl --steps 1 --device cpu --out fresh", 0);
    json_t *answer = expect_json("eps eval --model fresh --data pairs.jsonl --bleu --json --device cpu", 0);

    ck_assert_double_lt(json_number_at(answer, "bleu"), 10);
    json_decref(answer);
}
