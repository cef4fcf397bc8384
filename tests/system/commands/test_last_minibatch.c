/* An epoch's last minibatch, which has fewer rows than the others: no figure that a run reports depends on the places
 * that stay empty. The same three rows are trained on by minibatches of three, and of sixteen in four parts, of which
 * three are empty. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

static const char bert[] = "{\"model_type\": \"bert\", \"vocab_size\": 330, \"hidden_size\": 32, "
                           "\"num_hidden_layers\": 2, \"num_attention_heads\": 2, \"intermediate_size\": 64, "
                           "\"max_position_embeddings\": 64, \"initializer_range\": 0.2, \"hidden_dropout_prob\": 0, "
                           "\"attention_probs_dropout_prob\": 0}";
static const char t5[] = "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 48, \"num_layers\": 1, "
                         "\"num_heads\": 4, \"vocab_size\": 180, \"dropout_rate\": 0, \"decoder_start_token_id\": 0, "
                         "\"eos_token_id\": 1, \"pad_token_id\": 0}";
static const char net[] = "{\"model_type\": \"wide_resnet\", \"depth\": 10, \"widen_factor\": 1, \"image_size\": 8, "
                          "\"num_channels\": 1}";
static const char chat_template[] = "{% for m in messages %}{{ '<' + m.role + '>' + m.content + '.' }}{% endfor %}"
                                    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

static void setup(void)
{
    uint8_t images[16 + 3 * 64] = {0, 0, 8, 3, 0, 0, 0, 3, 0, 0, 0, 8, 0, 0, 0, 8};

    processes_setup();
    expect("mkdir bert t5 chat && cp " TESTS_DIR "/fixtures/tokenizers/bert.json bert/tokenizer.json && "
           "cp " TESTS_DIR "/fixtures/tokenizers/t5.json t5/tokenizer.json",
           0);
    processes_put_text("bert/config.json", bert);
    processes_put_text("t5/config.json", t5);
    processes_put_text("net.json", net);
    processes_config("chat/config.json", 2, 2, 16, 64);
    processes_put_text("chat/chat_template.jinja", chat_template);
    processes_put_text("classes.tsv", "sentence\tlabel\na fox\tx\nthe dog and fox\ty\nfox\tx\n");
    processes_put_text("numbers.tsv", "sentence\tlabel\na fox\t0.5\nthe dog and fox\t2\nfox\t-1\n");
    expect("for i in 1 2 3; do s=$(seq -s ' ' $i); "
           "echo \"{\\\"prompt\\\": \\\"$i+1=\\\", \\\"chosen\\\": \\\"$s\\\", \\\"rejected\\\": \\\"no $i\\\"}\" "
           ">>pairs; "
           "echo \"{\\\"messages\\\": [{\\\"role\\\": \\\"user\\\", \\\"content\\\": \\\"q $i\\\"}, {\\\"role\\\": "
           "\\\"assistant\\\", \\\"content\\\": \\\"$s\\\"}]}\" >>messages; "
           "echo \"{\\\"source\\\": \\\"the $s\\\", \\\"target\\\": \\\"das $s\\\"}\" >>targets; "
           "done; for f in pairs messages targets; do mv $f $f.jsonl; done",
           0);
    for (uint32_t i = 16; i < sizeof images; i++)
        images[i] = (uint8_t)(i * 37 + i / 64 * 101);
    processes_write("train-images", images, sizeof images);
    processes_write("train-labels", (uint8_t[]){0, 0, 8, 1, 0, 0, 0, 3, 0, 1, 0}, 11);
}

SUITE_TIMEOUT(200)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* What the only step of a run says; --eval-every 1 evaluates before it and behind it. */
static json_t *trained(const char *options, const char *batch)
{
    expect("rm -rf run", 0);
    expect(print("eps train %s %s --steps 1 --eval-every 1 --clip-norm 1000 --seed 3 --device cpu --device-mem 64MiB "
                 "--out run",
                 options, batch),
           0);
    return expect_json("tail -n 1 run/metrics.jsonl", 0);
}

static bool is_measured(const char *name)
{
    static const char *const machine[] = {"time", "tokens_per_s", "step_ms", "device_peak_bytes", "host_bytes"};

    for (size_t i = 0; i < COUNT(machine); i++)
        if (strcmp(name, machine[i]) == 0)
            return false;
    return true;
}

#define DATA(model, file) "--model " model " --data " file " --eval-data " file
static const struct {
    const char *options, *full;
    const char *figures[3]; /* that must be among them */
} kinds[] = {
    {DATA("chat/config.json", "pairs.jsonl"), "--batch 6", {"rewards/margins", "eval_rewards/margins", "logps/chosen"}},
    {DATA("chat/config.json", "pairs.jsonl") " --dpo-smoothing 0.1", "--batch 6", {"rewards/accuracies"}},
    {DATA("chat/config.json", "messages.jsonl"), "--batch 3", {"eval_loss"}},
    {DATA("t5/config.json", "targets.jsonl") " --label-smoothing 0.1", "--batch 3", {"eval_loss"}},
    {DATA("bert/config.json", "classes.tsv") " --task classify", "--batch 3", {"eval_accuracy", "eval_f1"}},
    {DATA("bert/config.json", "numbers.tsv") " --task regress", "--batch 3", {"eval_pearson"}},
};

/* To fp32's rounding of sums over parts. */
TEST_EACH(no_figure_depends_on_how_full_a_minibatch_is, COUNT(kinds))
{
    json_t *want = trained(kinds[_i].options, kinds[_i].full),
           *got = trained(kinds[_i].options, "--batch 16 --parts 4"), *value;
    const char *name;

    json_object_foreach(want, name, value)
    {
        if (!json_is_number(value) || !is_measured(name))
            continue;
        const double x = json_number_value(value), y = json_number_at(got, name);
        ck_assert_msg(fabs(x - y) <= 1e-6 * fmax(1, fabs(x)), "%s: %s: %.9g, alone %.9g", kinds[_i].options, name, y,
                      x);
    }
    for (int i = 0; i < 3 && kinds[_i].figures[i]; i++)
        ck_assert_ptr_nonnull(json_object_get(want, kinds[_i].figures[i]));
    json_number_at(want, "loss"), json_number_at(want, "grad_norm"), json_number_at(want, "tokens");
    json_decref(want), json_decref(got);
}

/* A batch norm's statistics are of all places of a part, so images fill them: 16 of 64 pixels. */
TEST(a_minibatch_of_images_is_always_full)
{
    json_t *step = trained(DATA("net.json", "train-images"), "--batch 16 --parts 4");

    ck_assert_double_eq(json_number_at(step, "tokens"), 16 * 64);
    json_decref(step);
}
