/* Every combination of the options that change numbers, as somebody would try them: it trains in both numbers of parts
 * and workers, stopping and going on changes no bit, and a resumed run in which one of them differs is refused by name. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

SUITE_LABELS(release)

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 1, 2, 16, 16);
    processes_text("tiny.txt", 4000);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

enum { MODES = 16 };

/* Precision, moments, gradients and commit by bits; each pair of them with both optimizers and, but for adama fenced,
 * which cannot, with one part and with two. */
static const char *mode(int i)
{
    static char text[200];
    const bool fenced = i & 8, adamw = (i ^ (i >> 1) ^ (i >> 2) ^ (i >> 3)) & 1, several = (i ^ (i >> 1)) & 1;
    const unsigned parts = several && (adamw || !fenced) ? 2 : 1;

    snprintf(text, sizeof text,
             "--precision %s --moments %s --grad-dtype %s --commit %s%s --optimizer %s --parts %u --workers %u",
             i & 1 ? "bf16" : "fp32", i & 2 ? "bf16" : "fp32", i & 4 ? "bf16" : "fp32", fenced ? "fenced" : "eager",
             fenced  ? " --clip-norm 0.5"
             : i & 1 ? " --clip-update 1"
                     : "",
             adamw ? "adamw" : "adama", parts, parts);
    return text;
}

static void train(const char *out, int steps, const char *options)
{
    ck_assert_msg(processes_eps("train --model tiny.json --data tiny.txt --batch 4 --seed 3 --deterministic --steps %d "
                                "--save-every 2 --lr 1e-3 --min-lr 1e-3 --warmup 0 --device-mem 8MiB --out %s %s",
                                steps, out, options) == 0,
                  "%s", options);
}

TEST_EACH(each_combination_trains_and_goes_on_bit_for_bit, MODES)
{
    train("whole", 4, mode(_i));
    train("stopped", 2, mode(_i));
    expect("eps train --resume stopped --steps 4 --device-mem 7MiB", 0);
    outputs_check_same_latest("whole", "stopped");
}

static void refused(const char *option, const char *value, const char *stored)
{
    const char *sentence = print("eps train: %s %s differs from the run's", option, value);

    expect(print("eps train --resume run --steps 4 %s %s", option, value), 2, sentence);
    ck_assert_msg(strstr(strstr(command_err(), sentence) + strlen(sentence), stored), "%s", command_err());
}

TEST(what_the_numbers_depend_on_may_not_differ_and_is_named)
{
    train("run", 2, "--precision bf16 --commit fenced --clip-norm 2");
    refused("--precision", "fp32", "bf16");
    refused("--moments", "bf16", "fp32");
    refused("--grad-dtype", "bf16", "fp32");
    refused("--commit", "eager", "fenced");
    refused("--clip-norm", "3", "2");
    refused("--clip-update", "1", "");
    expect("eps train --resume run --steps 4 --precision bf16 --clip-norm 2 --host-mem 6MiB", 0);
}

/* The record without these words, and with the checksum that it would have had. */
static void forget_words(const char *path)
{
    static const char *const words[] = {"precision", "moments", "grad_dtype", "commit", "clip_norm", "clip_update"};
    char *text = processes_read(path), key[32];

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(key, sizeof key, ",\"%s\":", words[i]);
        char *at = strstr(text, key);
        ck_assert_ptr_nonnull(at);
        const char *rest = at + 1 + strcspn(at + 1, ",");
        memmove(at, rest, strlen(rest) + 1);
    }
    char *checksum = strstr(text, "\"checksum\"");
    ck_assert_ptr_nonnull(checksum);
    const uint64_t hash = XXH3_64bits(text, (size_t)(checksum - text));
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_gt(fprintf(file, "%.*s\"checksum\": \"%016" PRIx64 "\"}\n", (int)(checksum - text), text, hash), 0);
    ck_assert_int_eq(fclose(file), 0);
    free(text);
}

/* A checkpoint of before these words were recorded. */
TEST(without_the_words_a_checkpoint_is_of_what_there_was_then)
{
    train("whole", 4, "");
    train("old", 2, "");
    forget_words(processes_path("old/step-2/training.json"));
    expect("eps train --resume old --steps 4", 0);
    outputs_check_same_latest("whole", "old");
}
