/* Models of families that only tests have (tests/families), and one of blocks of three families, in real programs:
 * their texts are PyTorch's. That no way to run them changes a bit: tests/system/invariants. */
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(240)

enum { N_IDS = 4000 };

/* The product knows the first model. */
static const char *const families[] = {"guests",   "alternating", "chunked", "experts",
                                       "crossing", "part_norm",   "pictures"};

enum { GENERATING = 4 }; /* the first ones */

static struct fixture fixture;

static void open_family(int which)
{
    uint16_t ids[N_IDS];

    fixture_open_model(&fixture, families[which]);
    expect("mkdir model", 0);
    fixture_write_model(&fixture, processes_path("model"));
    for (size_t i = 0; i < N_IDS; i++)
        ids[i] = (uint16_t)(processes_token(i) % fixture.vocabulary);
    processes_write("ids.bin", ids, sizeof ids);
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

TEST_RANGE(the_product_does_not_know_it, 1, COUNT(families))
{
    open_family(_i);
    expect(BIN_DIR "/eps train --model model --data ids.bin --steps 1 --out no", 1,
           print("model_type is \"%s\": it must be one that eps models lists", families[_i]));
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

    expect(print("%s --device-mem 1000B", ask), 1, "needs at least ");
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
