/* Models of families that only tests have (tests/families), and one of blocks of three families, in real programs:
 * whatever the memory, the workers and the interruptions, each byte is the same; and their texts are PyTorch's. */
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/runs.h"
#include "tests/kit/test.h"

#include <stdlib.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(240)

enum { N_IDS = 4000 };

/* Blocks that differ; of several layers, of which the first of these freezes a block, the others some. The product
 * knows the first model. */
static const struct {
    const char *name, *frozen;
} families[] = {{"guests", "h.1.*,layers.[23].*"},
                {"alternating", "layers.1.*"},
                {"chunked", "layers.1.*,layers.2.mlp.[02].*"},
                {"experts", "layers.0.self_attn.*,layers.1.experts.3.*"},
                {"shifted", "shift.*"},
                {"crossing", "layers.0.*"},
                {"part_norm", "layers.1.part_norm.*"},
                {"pictures", "layers.0.conv1.*"}};

enum { GENERATING = 5 }; /* the first ones */

static struct fixture fixture;

static void open_family(int which)
{
    uint16_t ids[N_IDS];

    fixture_open_model(&fixture, families[which].name);
    expect("mkdir model", 0);
    fixture_write_model(&fixture, processes_path("model"));
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (uint16_t)(processes_token(i) % fixture.vocabulary);
    processes_write("ids.bin", ids, sizeof ids);
    processes_write("held.bin", ids, 250 * sizeof *ids);
}

static void setup(void)
{
    processes_setup();
    processes_know_families();
}

static void remove_all(void)
{
    fixture_close(&fixture);
    processes_remove();
}

SUITE_FIXTURE(setup, remove_all)

#define DATA "--data ids.bin --eval-data held.bin --save-every 2 --keep 0 "

TEST_RANGE(the_product_does_not_know_it, 1, COUNT(families))
{
    open_family(_i);
    expect(BIN_DIR "/eps train --model model " DATA "--steps 1 --out no", 1,
           print("model_type is \"%s\": it must be bert, ", families[_i].name));
}

/* Each with as much as goes together, two of them plain. More budgets, in both number types: test_exact_same. */
TEST_EACH(no_budget_changes_a_bit_and_a_run_goes_on_at_another, COUNT(families) + 2)
{
    const bool plain = _i >= COUNT(families);
    const int which = _i % COUNT(families);
    char run[250];

    open_family(which);
    snprintf(run, sizeof run, "--model model --batch 12 --seq 20 --microbatch 3 --parts 2%s%s",
             plain ? "" : " --precision bf16 --moments bf16 --grad-dtype bf16 --clip-norm 0.5 --freeze ",
             plain ? "" : families[which].frozen);
    runs_check_budgets(run, DATA, "");
}

/* Blocks that differ, whose rows are seen apart or by their parts, and that are no text's. Of all of them that workers
 * change no bit: test_exact_same. */
TEST_EACH(workers_of_which_one_is_killed_make_the_bits_of_one, 5)
{
    static const int chosen[] = {0, 1, 5, 6, 7};
    static const char *const files[] = {"ids.bin"};
    struct eps_train_options options = processes_options("model", files, "alone");

    open_family(chosen[_i]);
    options.steps = 6, options.batch = 12, options.seq = 20, options.parts = 4, options.microbatch = 2;
    options.deterministic = true, options.optimizer = _i % 2 ? EPS_ADAMW : EPS_ADAMA;
    runs_check_killed(&options);
    expect("grep -o 'eval_loss[^,}]*' alone/metrics.jsonl >a && grep -o 'eval_loss[^,}]*' three/metrics.jsonl >b && "
           "cmp a b",
           0);
}

/* PyTorch computes the whole text for each token, eps that token alone. Weights on the device: none and some; of
 * several texts, of which one goes on after another's prompt, all. */
TEST_EACH(texts_are_pytorchs_at_any_budget, GENERATING)
{
    open_family(_i);
    const json_t *greedy = json_object_get(fixture.reference, "greedy");
    char *prompt = json_dumps(json_object_get(greedy, "prompt"), JSON_COMPACT);
    const char *ask = print("eps generate --model model --ids %.*s --tokens 200 --temperature 0 --json",
                            (int)strlen(prompt) - 2, prompt + 1);

    expect(print("%s --device-mem 1000", ask), 1, "needs at least ");
    const char *least = strchr(strstr(command_err(), "needs at least "), '(') + 1;
    const unsigned long long bytes = strtoull(least, NULL, 10);
    for (unsigned i = 0; i < 2; i++) {
        json_t *got = expect_json(print("%s --device-mem %llu", ask, bytes + i * (64 << 10)), 0);
        ck_assert(json_equal(json_object_get(got, "ids"), json_object_get(greedy, "ids")));
        json_decref(got);
    }
    json_t *several = expect_json(print("%s --ids 1,2,3 --samples 2", ask), 0);
    for (size_t k = 0; k < 2; k++)
        ck_assert(json_equal(json_object_get(json_array_get(several, k), "ids"), json_object_get(greedy, "ids")));
    json_decref(several);
    free(prompt);
}

/* A token of these sees more than the tokens before it. */
TEST_EACH(what_reads_whole_rows_generates_nothing, COUNT(families) - GENERATING)
{
    open_family(GENERATING + _i);
    expect("eps generate --model model --ids 1,2,3 --tokens 5", 1, "reads whole rows and cannot continue a text");
    if (_i == 0)
        expect("eps plan --model model --batch 4 --seq 4", 1,
               "--seq 4 is too short: this model takes the first 5 tokens of each row apart");
}
