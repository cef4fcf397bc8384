/* Preferences, as a user trains on them, stops and resumes, and what is refused. The weights are fresh ones of a small
 * GPT-2 of bytes, beside a chat template. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE "--device cpu --device-mem 64MiB "
#define TRAIN   "eps train --model chat/config.json --data pairs.jsonl --batch 8 --lr 1e-2 " MACHINE

static const char template[] = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '\n' }}{% endfor %}"
                               "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

/* 40 preferences for "yes" and a number over "no" of other lengths; the same as texts, and without a prompt of their
 * own. */
static void setup(void)
{
    processes_setup();
    expect("mkdir chat bare", 0);
    processes_config("chat/config.json", 2, 2, 16, 96);
    processes_config("bare/config.json", 2, 2, 16, 96);
    processes_put_text("chat/chat_template.jinja", template);
    expect(
        "for i in $(seq 40); do printf '{\"prompt\": [{\"role\": \"user\", \"content\": \"%s?\"}], \"chosen\": "
        "[{\"role\": \"assistant\", \"content\": \"yes %s\"}], \"rejected\": [{\"role\": \"assistant\", \"content\": "
        "\"no%s\"}]}\\n' $i $i $(seq -s '' $((i % 9))); done >pairs.jsonl; "
        "sed 's/\"prompt\": \\[\\([^]]*\\)\\], \"chosen\": \\[\\([^]]*\\)\\], \"rejected\": \\[/\"chosen\": [\\1, "
        "\\2], "
        "\"rejected\": [\\1, /' pairs.jsonl >implicit.jsonl; "
        "for i in $(seq 40); do printf '{\"prompt\": \"%s+1=\", \"chosen\": \"%s\", \"rejected\": \"%s\"}\\n' $i "
        "$((i + 1)) $((i - 1)); done >sums.jsonl; seq 500 >plain.txt",
        0);
}

SUITE_TIMEOUT(200)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Before the first step the model is its own reference: the loss is log 2, up to the rounding of two passes. */
TEST(what_was_chosen_becomes_more_likely)
{
    expect(TRAIN "--epochs 12 --eval-every 20 --out run", 0, ": 40 preferences, 4 held out",
           "held-out rewards/accuracies", "rewards/margins");
    json_t *first = expect_json("head -n 1 run/metrics.jsonl", 0),
           *last = expect_json("tail -n 1 run/metrics.jsonl", 0);

    ck_assert_double_eq_tol(json_number_at(first, "loss"), log(2), 1e-5);
    ck_assert_double_eq_tol(json_number_at(first, "eval_loss_before"), log(2), 1e-5);
    ck_assert_double_eq_tol(json_number_at(first, "rewards/chosen"), 0, 1e-4);
    ck_assert_double_eq(json_number_at(first, "rewards/accuracies"), 0); /* no text is the likelier one */
    ck_assert_double_lt(json_number_at(last, "loss"), 0.3);
    ck_assert_double_lt(json_number_at(last, "eval_loss"), 0.5);
    ck_assert_double_eq(json_number_at(last, "eval_rewards/accuracies"), 1);
    ck_assert_double_gt(json_number_at(last, "logps/chosen"), json_number_at(first, "logps/chosen"));
    ck_assert_double_eq_tol(json_number_at(last, "rewards/margins"),
                            json_number_at(last, "rewards/chosen") - json_number_at(last, "rewards/rejected"), 1e-9);
    json_decref(first), json_decref(last);
}

/* A prompt may be the messages that both texts begin with. */
TEST(a_prompt_is_given_or_found)
{
    expect(
        TRAIN
        "--steps 3 --out given && "
        "eps train --model chat/config.json --data implicit.jsonl --batch 8 --lr 1e-2 --steps 3 --out found " MACHINE,
        0);
    expect("cmp given/latest/model.safetensors found/latest/model.safetensors", 0);
    expect(
        "eps train --model bare/config.json --data sums.jsonl --batch 4 --steps 2 --dpo-beta 0.5 --dpo-smoothing 0.1 "
        "--approximate coded=8 --out texts " MACHINE,
        0, ": 40 preferences");
    expect(TRAIN "--steps 1 --approximate any --out any", 0, "any chose ");
    expect_sentence("eps report texts --bias", 1, "texts/step-2: its run learns preferences");
}

TEST(each_text_is_shown_as_chosen_or_rejected)
{
    expect("eps data pairs.jsonl --model chat --limit 2", 0,
           "row 1, pairs.jsonl:1, chosen: ", "row 2, pairs.jsonl:1, rejected: ");
    json_t *said = expect_json("eps data pairs.jsonl --model chat --limit 2 --json", 0);
    const json_t *second = json_array_get(json_object_get(said, "rows"), 1);

    ck_assert_str_eq(json_string_value(json_object_get(second, "side")), "rejected");
    ck_assert_str_eq(json_string_value(json_object_get(json_object_get(said, "counts"), "kind")), "preferences");
    json_decref(said);
}

/* Device and data to the byte; a part has whole preferences. */
TEST(what_a_run_takes_is_what_is_planned)
{
    static const char run[] = "eps train --model chat/config.json --data pairs.jsonl --batch 16 --seq 64 --steps 4 "
                              "--parts 2 --out planned " MACHINE;
    json_t *plan =
        expect_json("eps plan --model chat/config.json --dpo-beta 0.1 --batch 16 --seq 64 --parts 2 --json " MACHINE,
                    0);
    json_t *worker = json_array_get(json_object_get(plan, "workers"), 0);

    expect(run, 0);
    json_t *step = expect_json("grep memory planned/metrics.jsonl | tail -n 1", 0);
    ck_assert_double_eq(json_number_at(step, "device_peak_bytes"), json_number_at(worker, "current"));
    ck_assert_double_eq(json_number_at(step, "memory.host.data"), json_number_at(plan, "host.categories.data.current"));
    json_decref(plan), json_decref(step);
    expect("eps plan --model chat/config.json --dpo-beta 0.1 --seq 64 --parts 2 --find-batch " MACHINE, 0);
}

/* An epoch has 9 steps. The reference is the model before step 1, wherever a run goes on. */
TEST(a_run_that_was_stopped_ends_with_the_same_bits_against_the_same_reference)
{
    expect(TRAIN "--steps 8 --save-every 4 --keep 0 --seed 3 --out whole", 0);
    expect("mkdir stopped && cp -r whole/step-4 whole/references.npy stopped && eps train --resume stopped", 0,
           "continuing from");
    expect("eps train --resume whole/step-4 --out other", 0, "continuing from");
    expect("for run in stopped other; do cmp whole/step-8/model.safetensors $run/step-8/model.safetensors && cmp "
           "whole/references.npy $run/references.npy || exit 1; done",
           0);
    expect("eps verify whole && eps verify other/step-8", 0);
    expect("mkdir lost && cp -r whole/step-4 lost && eps train --resume lost", 1, "lost: references.npy",
           "copy it from there");
    expect("eps verify lost 1>&2", 1, "references.npy: No such file", "copy it from there");
    expect("head -c 200 whole/references.npy >lost/references.npy && eps train --resume lost", 1,
           "references.npy is damaged, or of other texts");
    expect("cp whole/references.npy lost && printf x | dd of=lost/references.npy bs=1 seek=201 conv=notrunc "
           "2>/dev/null && eps "
           "train --resume lost",
           1, "references.npy is damaged, or of other texts");
    expect("eps verify lost 1>&2", 1, "references.npy is damaged, or of other texts");
    expect("rm lost/references.npy && mkfifo lost/references.npy && eps verify lost 1>&2", 1,
           "references.npy is damaged, or of other texts");
    expect("eps train --resume stopped --steps 9 --dpo-beta 0.2", 2, "--dpo-beta");
}

/* As in TRL 1.16 (DPOTrainer, the adapter "ref"): of an adapter that goes on being trained, the reference is that
 * adapter as it was, not its base. So the first loss is log 2 again, though the adapter has moved away from the
 * base. */
TEST(the_reference_of_an_adapter_is_the_adapter_as_it_was)
{
#define ADAPT(model) "eps train --data pairs.jsonl --batch 8 --lr 1e-2 " MACHINE "--model " model " "
    expect(ADAPT("chat/config.json") "--steps 1 --out grown && eps export --model grown/latest --out trunk && " ADAPT(
               "trunk") "--lora rank=4 --steps 6 --out grafted && " ADAPT("grafted/latest") "--steps 1 --out regrafted",
           0);
    json_t *line = expect_json("head -n 1 regrafted/metrics.jsonl", 0);
    ck_assert_double_eq_tol(json_number_at(line, "loss"), log(2), 1e-5);
    json_decref(line);
    line = expect_json("tail -n 1 grafted/metrics.jsonl", 0);
    ck_assert_double_lt(json_number_at(line, "loss"), 0.69); /* of the reference that the base is */
    json_decref(line);
    expect("cmp grafted/references.npy regrafted/references.npy", 1);
}

static const struct {
    const char *command;
    int status;
    const char *words[2];
} refused[] = {
    {"eps train --model bare/config.json --data pairs.jsonl " MACHINE, 1, {"line 1: ", "chat_template.jinja"}},
    {TRAIN "--batch 6 --parts 2 --steps 1", 2, {"--batch 6: each part (--parts 2) has whole preferences", "choose 4"}},
    {TRAIN "--microbatch 3 --steps 1", 2, {"--microbatch 3: a preference is two rows", "choose 4"}},
    {TRAIN "--train-on all", 2, {"--train-on is not for preferences", "leave it out"}},
    {TRAIN "--pack", 2, {"--pack is not for preferences", "leave it out"}},
    {"eps plan --model chat/config.json --dpo-beta 0.1 --pack", 2, {"--pack is not for preferences", ""}},
    {"echo '{\"model_type\": \"t5\", \"d_model\": 16, \"d_kv\": 8, \"d_ff\": 24, \"num_layers\": 1, \"num_heads\": 2, "
     "\"vocab_size\": 300}' >t5.json; eps plan --model t5.json --dpo-beta 0.1 " MACHINE,
     2,
     {"--dpo-beta is for models that predict the next token", "this t5 model does not"}},
    {"eps plan --model byte-small --dpo-beta 0.1", 2, {"--dpo-beta is for preferences", "byte-small is a preset"}},
    {TRAIN "--dpo-beta 0", 2, {"--dpo-beta 0 is not above 0", ""}},
    {TRAIN "--dpo-smoothing 0.6", 2, {"--dpo-smoothing 0.6 is not within 0 and 0.5", ""}},
    {"eps train --model byte-small --data plain.txt --dpo-beta 0.1 " MACHINE, 2, {"--dpo-beta is for preferences", ""}},
    {"(head -n 3 pairs.jsonl; echo '{\"text\": \"a\"}') >mixed.jsonl; eps train --model chat/config.json --data "
     "mixed.jsonl " MACHINE,
     1,
     {"mixed.jsonl: line 4: it has no \"chosen\" and \"rejected\"", ""}},
    {"printf '{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [1]}\\n' >odd.jsonl; eps train --model "
     "bare/config.json --data odd.jsonl " MACHINE,
     1,
     {"odd.jsonl: line 1: ", "neither all texts nor lists of messages"}},
    {"head -n 1 sums.jsonl >one.jsonl; eps train --model bare/config.json --data one.jsonl " MACHINE,
     1,
     {"eps train: --data: one pair is too few", "or --eval-data"}},
    {"printf '{\"chosen\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", \"content\": \"b\"}, "
     "{\"role\": \"user\", \"content\": \"c\"}], \"rejected\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": "
     "\"assistant\", \"content\": \"d\"}]}\\n' >many.jsonl; eps train --model chat/config.json --data "
     "many.jsonl " MACHINE,
     1,
     {"many.jsonl: line 1: its chosen text has 2 messages after the prompt", ""}},
    {"eps data pairs.jsonl --model chat --train-on all", 2, {"--train-on is not for preferences", ""}},
    {"eps data pairs.jsonl --model chat --pack", 2, {"--pack is not for preferences", ""}},
    {TRAIN "--seq 8", 1, {"eps train: pairs.jsonl: no pair has both answers within --seq 8", ""}},
    {"eps eval --model bare/config.json --data sums.jsonl " MACHINE, 1, {"", ""}},
};

TEST_EACH(what_is_no_preference_is_refused, COUNT(refused))
{
    expect(refused[_i].command, refused[_i].status, refused[_i].words[0], refused[_i].words[1]);
}
