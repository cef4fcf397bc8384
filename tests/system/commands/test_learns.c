/* A first fine-tuning, without an option that says how: 200 conversations, and a model that this test trains on a text
 * of the same words. The loss of conversations that were held out must fall far, with the figures of a curve on the
 * way. What is drawn follows from seeds, so the losses are the same each time. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE "--device cpu --device-mem 256MiB "
#define PLAN    "eps plan --model model " MACHINE "--host-mem 1GiB "

enum { N_ROWS = 200, N_LINES = 4000 };

static const char *const names[] = {"Anna", "Bert", "Cleo", "Dora", "Emil", "Fritz", "Greta", "Hugo", "Ida", "Jan"};
static const char *const cities[] = {"Rome", "Oslo",  "Bonn",  "Bern",  "Paris",
                                     "Lima", "Cairo", "Delhi", "Quito", "Nice"};
static const char *const things[] = {"a map",  "a book", "two apples", "a red coat", "some bread",
                                     "a lamp", "a key",  "a blue cup", "three pens", "a small dog"};

static uint64_t state;

/* One of so many, by a generator of 64 bits (Knuth's MMIX). */
static unsigned one_of(unsigned n)
{
    state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (unsigned)(state >> 33) % n;
}

static FILE *begin(const char *name)
{
    FILE *file = fopen(processes_put_text(name, ""), "w");

    ck_assert_ptr_nonnull(file);
    return file;
}

/* Prose, in which questions and answers do not occur. */
static void put_prose(void)
{
    static const char *const sentences[] = {"%s lives in %s and has %s.\n", "%s was seen in %s with %s.\n",
                                            "%s came to %s for %s.\n"};
    FILE *file = begin("prose.txt");

    for (int i = 0; i < N_LINES; i++) {
        const char *sentence = sentences[one_of(3)], *name = names[one_of(10)], *city = cities[one_of(10)];
        fprintf(file, sentence, name, city, things[one_of(10)]);
    }
    fclose(file);
}

static void put_conversations(void)
{
    FILE *file = begin("chat.jsonl");

    for (int i = 0; i < N_ROWS; i++) {
        const char *name = names[one_of(10)], *city = cities[one_of(10)], *thing = things[one_of(10)];
        const bool where = one_of(2);
        fprintf(file,
                "{\"messages\": [{\"role\": \"user\", \"content\": \"%s of %s has %s. %s %s%s?\"}, "
                "{\"role\": \"assistant\", \"content\": \"%s %s %s.\"}]}\n",
                name, city, thing, where ? "Where is" : "What does", name, where ? "" : " have", name,
                where ? "is in" : "has", where ? city : thing);
    }
    fclose(file);
}

static void setup(void)
{
    processes_setup();
    put_prose();
    put_conversations();
    expect("mkdir base", 0);
    processes_config("base/config.json", 2, 4, 160, 128);
    processes_put_text("base/chat_template.jinja",
                       "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}"
                       "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}");
    expect("eps train --model base/config.json --data prose.txt --steps 500 --batch 4 --seq 112 --lr 3e-3 --warmup 30 "
           "--eval-every 0 --out made " MACHINE "&& eps export --model made/latest --out model",
           0);
}

SUITE_TIMEOUT(300)
SUITE_FIXTURE_ONCE(setup, processes_remove)

struct curve {
    double before, after;
    unsigned n_steps, n_evaluations;
};

static struct curve read_curve(const char *run)
{
    struct curve curve = {NAN, NAN, 0, 0};
    char *text = processes_read(print("%s/metrics.jsonl", run));

    for (const char *line = text; *line; line = strchr(line, '\n') + 1, curve.n_steps++) {
        json_t *values = json_loads(line, JSON_DISABLE_EOF_CHECK, NULL);
        const json_t *before = json_object_get(values, "eval_loss_before"),
                     *loss = json_object_get(values, "eval_loss");
        if (json_is_number(before))
            curve.before = json_number_value(before);
        if (json_is_number(loss))
            curve.after = json_number_value(loss), curve.n_evaluations++;
        json_decref(values);
    }
    free(text);
    return curve;
}

/* 180 conversations three times, in 60 steps of 9. Measured: the loss falls from 2.3410 to 1.2115. */
TEST(two_hundred_conversations_are_learned_without_an_option)
{
    expect("eps train --model model --data chat.jsonl --out tuned " MACHINE, 0, "200 conversations, 20 rows held out",
           "steps        60 of 9 rows of at most");
    ck_assert_ptr_null(strstr(command_out(), "teach a model little"));
    const struct curve curve = read_curve("tuned");
    printf("held-out loss: %.4f before, %.4f after %u steps, %u evaluations\n", curve.before, curve.after,
           curve.n_steps, curve.n_evaluations);
    ck_assert_uint_eq(curve.n_steps, 60);
    ck_assert_uint_eq(curve.n_evaluations, 10);
    ck_assert_double_lt(curve.after, 0.6 * curve.before);
    expect("test -e tuned/best/model.safetensors && eps verify tuned", 0);
}

/* The steps alone make the difference: all at once, the same rows teach next to nothing. */
TEST(few_steps_teach_little_and_say_so)
{
    expect("eps train --model model --data chat.jsonl --batch 180 --epochs 3 --out few " MACHINE, 0);
    ck_assert_holds(command_out(),
                    "3 steps teach a model little: give more data or more --epochs, or a smaller --batch");
    const struct curve curve = read_curve("few");
    ck_assert_uint_eq(curve.n_steps, 3);
    ck_assert_double_gt(curve.after, 0.9 * curve.before);
}

/* A plan of the data is the plan of what the run says that it does. */
TEST(a_plan_of_the_data_chooses_as_the_run_does)
{
    unsigned steps, batch, seq;

    expect("eps train --model model --data chat.jsonl --epochs 1 --out planned " MACHINE, 0);
    ck_assert_int_eq(sscanf(strstr(command_out(), "\nsteps "), " steps %u of %u rows of at most %u tokens", &steps,
                            &batch, &seq),
                     3);
    expect(PLAN "--data chat.jsonl --epochs 1", 0, print("%u sequences of %u tokens in 1 part", batch, seq));
    expect(print(PLAN "--data chat.jsonl --epochs 1 --json >with && " PLAN "--batch %u --seq %u --json >named && "
                      "cmp with named",
                 batch, seq),
           0);
    expect(PLAN "--data chat.jsonl --find-batch >with && " PLAN "--seq 96 --find-batch >named && cmp with named", 0);
    expect_sentence(PLAN "--data none.jsonl", 1, "none.jsonl");
    expect_sentence("eps plan --data prose.txt --train-on last", 2, "--train-on is for conversations");
    expect_sentence(PLAN "--train-on last", 2, "--train-on says how --data are read");
}
