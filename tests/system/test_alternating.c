/* A family that only tests have (tests/families/alternating.c), in real programs that know it: those of bin/families. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#define WITH "PATH=" BIN_DIR "/families:$PATH; "

static const char config[] =
    "{\"model_type\": \"alternating\", \"num_hidden_layers\": 6, \"num_attention_heads\": 4, \"num_key_value_heads\": "
    "2, "
    "\"hidden_size\": 32, \"intermediate_size\": 40, \"max_position_embeddings\": 32, \"vocab_size\": 256, "
    "\"sliding_window\": 5}";

static void setup(void)
{
    processes_setup();
    processes_put_text("model.json", config);
    processes_text("text.txt", 8000);
}
SUITE_FIXTURE_ONCE(setup, processes_remove)

#define RUN "--model model.json --data text.txt --seq 24 --batch 4 "

TEST(programs_of_tests_train_it_and_the_product_refuses_it)
{
    expect("eps train " RUN "--steps 1 --out no", 1, "model_type is \"alternating\": it must be ");
    expect(WITH "eps train " RUN "--steps 1 --out run", 0);
    expect(WITH "eps eval --model run/latest --data text.txt --seq 24", 0, "loss");
}
