/* A model that restores masked tokens, as a user trains and measures it: what is said, and what is refused. That a
 * killed run resumes with the same bits: chaos.sh; that no budget changes one: test_budgets.c. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

#define SMALL "--seq 16 --batch 4 --device cpu --device-mem 64MiB "
#define TRAIN "eps train --model bert/config.json --data text.jsonl --eval-data held.txt " SMALL

static const char config[] = "{\"model_type\": \"bert\", \"vocab_size\": 330, \"hidden_size\": 32, "
                             "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 64, "
                             "\"max_position_embeddings\": 32}";

static void setup(void)
{
    processes_setup();
    expect("mkdir bert bare small && cp " TESTS_DIR "/fixtures/tokenizers/bert.json bert/tokenizer.json && "
           "cp bert/tokenizer.json small",
           0);
    processes_put_text("bert/config.json", config);
    processes_put_text("bare/config.json", config);
    processes_put_text("small/config.json", "{\"model_type\": \"bert\", \"vocab_size\": 300, \"hidden_size\": 32, "
                                            "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                                            "\"intermediate_size\": 64, \"max_position_embeddings\": 32}");
    processes_config("gpt2.json", 1, 2, 16, 16);
    expect(
        "for i in $(seq 60); do echo \"{\\\"text\\\": \\\"$i: the quick brown fox jumps over the lazy dog\\\"}\"; done "
        ">text.jsonl && seq 200 >held.txt",
        0);
    processes_write("special.bin", (uint16_t[200]){0}, 400); /* [PAD] alone */
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* The run's held-out masks are those of eps eval with the run's seed and fraction. Fresh weights find all 330 tokens
 * about equally likely. */
TEST(the_loss_of_eps_eval_is_the_run_s)
{
    expect(TRAIN "--steps 5 --eval-every 5 --seed 7 --mask-fraction 0.2 --lr 1e-2 --out run -v", 0,
           "masks        20 % of the tokens", "held-out loss after 5 steps", "eps eval --model run/latest --data FILE");
    json_t *first = expect_json("head -n 1 run/metrics.jsonl", 0),
           *line = expect_json("tail -n 1 run/metrics.jsonl", 0);
    const double held_out = json_number_at(line, "eval_loss");
    const char *eval = "eps eval --model run --data held.txt --eval-tokens 65536 --mask-fraction 0.2 " SMALL;
    json_t *same = expect_json(print("%s --seed 7 --json", eval), 0);
    json_t *other = expect_json(print("%s --seed 8 --json", eval), 0);

    ck_assert_double_eq_tol(json_number_at(first, "loss"), log(330), 0.1); /* a mean over labels, not over all tokens */
    ck_assert_double_eq_tol(json_number_at(same, "loss"), held_out, 1e-10); /* metrics.jsonl has 12 digits */
    ck_assert_double_gt(fabs(json_number_at(other, "loss") - held_out), 1e-6);
    ck_assert_double_eq_tol(json_number_at(same, "pseudo_perplexity"), exp(held_out), 1e-9 * exp(held_out));
    ck_assert_ptr_null(json_object_get(same, "perplexity"));
    expect("eps eval --model run --data held.txt " SMALL, 0, "nats per masked token", "pseudo-perplexity");
    expect("eps train --resume run --steps 6 --verbose", 0, "masks        20 % of the tokens");
    json_decref(first), json_decref(line), json_decref(same), json_decref(other);
}

static const struct refusal refusals[] = {
    {"eps train --model bare/config.json --data text.jsonl " SMALL, 1, "no tokenizer to name the mask token", "bare"},
    {"eps train --model small/config.json --data text.jsonl " SMALL, 1, "tokenizer.json", "300"},
    {TRAIN "--mask-fraction 0", 2, "--mask-fraction 0", "above 0 and below 1"},
    {TRAIN "--mask-fraction 1.5", 2, "--mask-fraction 1.5", "above 0 and below 1"},
    {TRAIN "--mlm-probability 0.3", 2, "--mlm-probability", "--mask-fraction"},
    {"eps train --model gpt2.json --data text.jsonl --mask-fraction 0.15", 2, "--mask-fraction", "the next token"},
    {"eps train --resume kept --steps 3 --mask-fraction 0.3", 2, "--mask-fraction 0.3", "the run's 0.15"},
    {"eps eval --model kept --data held.txt --stride 8 " SMALL, 2, "--stride 8", "masked tokens"},
    {"eps eval --model kept --data held.txt --mask-fraction 0 " SMALL, 2, "--mask-fraction 0", "above 0 and below 1"},
    {TRAIN "--sample-every 2 --sample-prompt fox", 1, "--sample-every: a bert model restores masked tokens and cannot",
     "choose a model that predicts the next token"},
    {"echo fox | eps chat --model kept --device cpu", 1,
     "eps chat: a bert model restores masked tokens and cannot continue",
     "choose a model that predicts the next token"},
};

TEST(what_cannot_be_masked_is_refused)
{
    expect(TRAIN "--steps 2 --out kept", 0);
    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
    expect("eps train --model bert/config.json --data special.bin --steps 1 --eval-every 0 " SMALL "--out special", 1,
           "all tokens of its 4 rows are special");
    expect("eps train --model bert/config.json --data special.bin --steps 1 " SMALL "--out special", 1,
           "the data has only special tokens");
}
