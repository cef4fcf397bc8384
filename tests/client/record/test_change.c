/* What --change takes, and a run that goes on with it: the data, the moments and the record. */
#include "client/record/change.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Batches of 8 for 2 steps, of 4 for 3, then of 6. */
static const char history[] = "[{\"step\": 2, \"option\": \"lr\", \"from\": 0.01, \"to\": 0.005},"
                              " {\"step\": 2, \"option\": \"batch\", \"from\": 8, \"to\": 4},"
                              " {\"step\": 5, \"option\": \"clip-norm\", \"from\": null, \"to\": 1.5},"
                              " {\"step\": 5, \"option\": \"batch\", \"from\": 4, \"to\": 6}]";

TEST(rows_are_counted_with_the_batch_that_each_step_had_and_each_change_is_a_sentence)
{
    static const uint64_t rows[] = {0, 8, 16, 20, 24, 28, 34, 40};
    json_t *changes = json_loads(history, 0, NULL);
    struct error said;
    uint64_t step;

    ck_assert(client_change_check(changes, 6) && client_change_check(NULL, 6));
    for (step = 0; step < COUNT(rows); step++)
        ck_assert_uint_eq(client_change_rows(changes, 6, step), rows[step]);
    ck_assert_uint_eq(client_change_rows(NULL, 6, 7), 42);
    ck_assert_uint_eq(client_change_batch_step(changes), 5);
    ck_assert_uint_eq(client_change_batch_step(NULL), 0);

    ck_assert(client_change_say(&said, &step, changes, 0));
    ck_assert_str_eq(said.text, "after step 2: lr 0.01 to 0.005, batch 8 to 4");
    ck_assert_uint_eq(step, 2);
    ck_assert(client_change_say(&said, &step, changes, 1));
    ck_assert_str_eq(said.text, "after step 5: clip-norm none to 1.5, batch 4 to 6");
    ck_assert_uint_eq(step, 5);
    ck_assert(!client_change_say(&said, &step, changes, 2) && !client_change_say(&said, &step, NULL, 0));
    json_decref(changes);
}

#define BATCH(step, from, to) "{\"step\": " #step ", \"option\": \"batch\", \"from\": " #from ", \"to\": " #to "}"

TEST(a_list_that_was_not_written_by_us_is_refused)
{
    static const char *const wrong[] = {
        "{}",
        "[1]",
        "[{\"step\": -1, \"option\": \"lr\", \"from\": 1, \"to\": 2}]",
        "[{\"step\": \"1\", \"option\": \"lr\", \"from\": 1, \"to\": 2}]",
        "[{\"step\": 1, \"option\": 7, \"from\": 1, \"to\": 2}]",
        "[{\"step\": 1, \"option\": \"lr\", \"to\": 2}]",
        "[{\"step\": 1, \"option\": \"lr\", \"from\": 2}]",
        "[{\"step\": 1, \"option\": \"batch\", \"from\": 2, \"to\": 5}]",
        "[{\"step\": 1, \"option\": \"batch\", \"from\": -2, \"to\": 6}]",
        "[{\"step\": 1, \"option\": \"batch\", \"from\": \"2\", \"to\": 6}]",
        "[" BATCH(1, 2, 0) "]",
        "[" BATCH(1, 2, "3") ", " BATCH(2, 4, 6) "]",
        "[" BATCH(1, 2, 3) ", " BATCH(2, 4, 6) "]",
        "[" BATCH(3, 2, 4) ", " BATCH(2, 4, 6) "]",
    };

    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        json_t *changes = json_loads(wrong[i], 0, NULL);
        ck_assert_ptr_nonnull(changes);
        ck_assert_msg(!client_change_check(changes, 6), "%s", wrong[i]);
        json_decref(changes);
    }
}

static void set_up(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
    expect("tail -c +257 text.txt >rest.txt && " /* without 2 steps of 8 windows of 16 tokens */
           "eps train --model tiny.json --data text.txt --eval-data text.txt --seq 16 --batch 8 "
           "--microbatch 2 --order sequential --lr 0.01 --schedule constant --warmup 0 --steps 2 "
           "--device-mem 64MiB --out run",
           0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(set_up, processes_remove)

static json_t *line_of(const char *run, unsigned n)
{
    return expect_json(print("sed -n %up %s/metrics.jsonl", n, run), 0);
}

#define CHANGED "after step 2: batch 8 to 4, lr 0.01 to 0.005, min-lr 0.01 to 0.005"

/* The loss of a step is of the weights before it and of its rows: the same as that of the first step of a new run from
 * those weights, over the text without what was read. Moments know nothing of the rate, so after one step they are
 * those of a run that did not change it. */
TEST(the_next_window_the_moments_and_the_record_go_on)
{
    json_t *step, *first;

    expect("eps train --resume run --steps 4 --out same", 0);
    expect("eps train --resume run --steps 4 --out slow --change lr --lr 0.002 --save-every 1", 0);
    expect("eps train --resume run --steps 3 --out plain", 0);
    expect("cmp slow/step-3/optimizer.safetensors plain/step-3/optimizer.safetensors && "
           "! cmp -s slow/step-3/model.safetensors plain/step-3/model.safetensors",
           0);
    expect("eps train --resume run --steps 4 --out less --change batch,lr --batch 4 --lr 0.005", 0,
           "changed " CHANGED "; the optimizer's moments are kept",
           "16 windows are done, and step 3 begins with the next");
    expect("eps train --model run/step-2 --data rest.txt --eval-data text.txt --seq 16 --batch 4 "
           "--microbatch 2 --order sequential --lr 0.005 --steps 1 --device-mem 64MiB --out "
           "anew",
           0);
    step = line_of("less", 1), first = line_of("anew", 1);
    ck_assert_double_eq(json_number_value(json_object_get(step, "loss")),
                        json_number_value(json_object_get(first, "loss")));
    ck_assert_double_eq(json_number_value(json_object_get(step, "lr")), 0.005);
    ck_assert_int_eq(json_integer_value(json_object_get(step, "tokens")), (16 + 4) * 16);
    ck_assert_str_eq(json_string_value(json_object_get(step, "changed")), CHANGED);
    json_decref(step), json_decref(first);

    expect("eps train --resume less --steps 5", 0, "changed " CHANGED "\n");
    step = line_of("less", 3);
    ck_assert_double_eq(json_number_value(json_object_get(step, "lr")), 0.005);
    ck_assert_int_eq(json_integer_value(json_object_get(step, "tokens")), (16 + 3 * 4) * 16);
    ck_assert_ptr_null(json_object_get(step, "changed"));
    json_decref(step);
    expect_file("less/latest/training.json", "\"changes\"");
    expect("eps verify less", 0);
    if (system("command -v gnuplot >/dev/null") == 0)
        expect("eps report less", 0, "changed " CHANGED "\n");
}

/* 4000 bytes are 249 windows of 16. By hand: 16 of them with batches of 8, and 233 with batches of 4 are 58.25
 * steps. */
TEST(epochs_count_the_rows_of_each_batch)
{
    expect("eps train --resume run --epochs 1 --out epoch --change batch --batch 4 --save-every 0", 0);
    json_t *step = line_of("epoch", 59);
    ck_assert_int_eq(json_integer_value(json_object_get(step, "step")), 2 + 59);
    json_decref(step);
    ck_assert_int_eq(access("epoch/step-61/training.json", F_OK), 0);
}

TEST(what_cannot_be_changed_is_refused_in_a_sentence)
{
    static const struct {
        const char *arguments, *first, *second;
    } cases[] = {
        {"--lr 0.5", "--lr 0.5 differs from the run's 0.01", "add --change lr to go on with it"},
        {"--batch 16 --lr 0.5 --change lr", "--batch 16 differs", "add --change batch"},
        {"--seq 8", "--seq 8 differs", "leave it out, or start a new run"},
        {"--seq 8 --change seq", "--change seq: ", "can name batch, lr"},
        {"--change lr", "--change lr without --lr", "say what it changes to"},
        {"--change lr, --lr 0.5", "--change : ", "can name"},
        {"--change lr --lr 0.001 --min-lr 0.01", "--min-lr 0.01 is not within 0 and --lr 0.001", "--change lr,min-lr"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect(print("eps train --resume run --steps 4 --out refused %s", cases[i].arguments), 2, cases[i].first,
               cases[i].second);
        ck_assert_int_ne(access("refused", F_OK), 0);
    }
}

/* A microbatch that no longer fits is chosen anew; a clip needs the fence, and says what that takes. */
TEST(what_would_contradict_a_change_follows_it)
{
    expect("eps train --resume run --steps 3 --out one --change batch,clip-norm --batch 1 "
           "--clip-norm 1",
           0, "changed after step 2: batch 8 to 1, commit eager to fenced, clip-norm none to 1",
           "--clip-norm turns --commit fenced on");
    expect_file("one/step-3/training.json", "\"commit\"");
}
