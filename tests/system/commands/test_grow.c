/* eps train --grow as a user has it: what each tensor of the grown checkpoint is, how it trains on, what is refused. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/runs.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "--data data.txt --batch 4 --seq 16 --device cpu --device-mem 8MiB "
#define RATE "--lr 1e-3 --schedule constant --warmup 0 --weight-decay 0 "

static const char llama[] = "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 32, "
                            "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                            "\"intermediate_size\": 48, \"max_position_embeddings\": 32, \"rms_norm_eps\": 1e-5}",
                  gemma[] = "{\"model_type\": \"gemma3_text\", \"vocab_size\": 256, \"hidden_size\": 32, "
                            "\"num_hidden_layers\": 4, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                            "\"head_dim\": 8, \"intermediate_size\": 48, \"max_position_embeddings\": 32, "
                            "\"sliding_window\": 8, \"layer_types\": [\"sliding_attention\", \"full_attention\", "
                            "\"sliding_attention\", \"full_attention\"]}";

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config("gpt2.json", 2, 4, 32, 32);
    processes_put_text("llama.json", llama);
    processes_put_text("gemma.json", gemma);
    expect("sed 's/, \"layer_types.*/}/' gemma.json >pattern.json", 0); /* then each sixth block attends to all */
    expect("eps train --model gpt2.json " DATA RATE "--steps 3 --out gpt2 && eps train --model llama.json " DATA RATE
           "--steps 3 --out llama && eps train --model gpt2.json --moments bf16 " DATA RATE
           "--steps 3 --out narrow && eps train --model gemma.json " DATA RATE
           "--steps 3 --out gemma && eps train --model pattern.json " DATA RATE "--steps 1 --out pattern",
           0);
    expect("eps train --model gpt2/latest --lora rank=2 " DATA
           "--steps 2 --out lora && eps train --model gpt2/latest --freeze "
           "'wte.*' " DATA "--steps 2 --out frozen",
           0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- checkpoints ---- */

/* The block in a tensor's name, behind "h." or "layers."; -1: none. *at: where its number begins. */
static int block_of(const char *name, const char **at)
{
    const char *found = strstr(name, ".h."), *layers = strstr(name, ".layers.");

    *at = found ? found + 3 : layers ? layers + 8 : NULL;
    return *at ? atoi(*at) : -1;
}

/* The tensor that it is a copy of, if the model had n blocks and n_added were added. */
static const char *source_of(const char *name, int n, int n_added, bool *added)
{
    const char *at;
    const int block = block_of(name, &at);

    *added = block >= n;
    return *added ? print("%.*s%d%s", (int)(at - name), name, block - n_added, at + strspn(at, "0123456789")) : name;
}

/* Every tensor of a grown file is the one that it copies, bit for bit; without_moments: zeros in added blocks. */
static void check_copies(const char *grown, const char *from, const char *name, int n, int n_added, bool zeros)
{
    struct outputs_tensors to, source;
    size_t n_copies = 0;

    outputs_open_tensors(&to, grown, name);
    outputs_open_tensors(&source, from, name);
    for (size_t i = 0; i < to.file.n_entries; i++) {
        const struct safetensors_entry *entry = &to.file.entries[i];
        uint64_t n_got, n_want;
        bool added;
        if (entry->type == SAFETENSORS_I64)
            continue;
        const char *copied = source_of(entry->name, n, n_added, &added);
        const float *got = outputs_tensor(&to, entry->name, &n_got), *want = outputs_tensor(&source, copied, &n_want);
        ck_assert_uint_eq(n_got, n_want);
        for (uint64_t k = 0; k < n_got; k++)
            ck_assert_msg(got[k] == (added && zeros ? 0 : want[k]), "%s", entry->name);
        n_copies += added;
    }
    ck_assert_uint_gt(n_copies, 0);
    ck_assert_uint_eq(to.file.n_entries, source.file.n_entries + n_copies);
    outputs_close_tensors(&to);
    outputs_close_tensors(&source);
}

/* "updates" of a checkpoint: those of tensors in blocks from n on, and of all others. */
static void check_updates(const char *step, int n, int64_t added, int64_t others)
{
    struct outputs_tensors moments, weights;
    int64_t counts[200];
    size_t n_added = 0, n_found = 0;

    outputs_open_tensors(&moments, step, "optimizer.safetensors");
    outputs_open_tensors(&weights, step, "model.safetensors");
    const struct safetensors_entry *entry = safetensors_find(&moments.file, "updates");
    ck_assert(entry && entry->n <= COUNT(counts));
    ck_assert_int_eq(safetensors_read_counts(counts, entry, 0, entry->n, NULL), 0);
    for (size_t i = 0; i < weights.file.n_entries; i++) {
        const char *at;
        n_added += block_of(weights.file.entries[i].name, &at) >= n;
    }
    for (uint64_t i = 0; i < entry->n; i++) {
        ck_assert(counts[i] == added || counts[i] == others);
        n_found += counts[i] == added;
    }
    ck_assert_uint_eq(n_found, added == others ? entry->n : n_added);
    outputs_close_tensors(&moments);
    outputs_close_tensors(&weights);
}

static const struct grown {
    const char *from;
    int n, n_added;
    bool zeros;
} cases[] = {{"gpt2", 2, 2, false},  {"gpt2", 2, 1, true},  {"llama", 3, 3, false}, {"llama", 3, 2, true},
             {"gemma", 4, 4, false}, {"gemma", 4, 1, true}, {"narrow", 2, 1, true}, {"narrow", 2, 2, false}};

/* The checkpoint that the run begins from has each block's copies; then all train, the copies with counts of their own.
 * What transformers makes of such a directory, check_saved.py tells. */
TEST_EACH(each_tensor_is_what_it_copies_and_trains_on, COUNT(cases))
{
    const struct grown *c = &cases[_i];
    char out[20], step[40], from[20]; /* print's texts do not last */

    snprintf(out, sizeof out, "grown-%d", _i);
    snprintf(step, sizeof step, "%s/grown/step-3", out);
    snprintf(from, sizeof from, "%s/step-3", c->from);

    expect(print("eps train --resume %s --grow %d%s --out %s --steps 5 --save-every 1 --keep 0", c->from, c->n_added,
                 c->zeros ? ",moments=zero" : "", out),
           0, "held out");
    expect(print("eps verify %s/grown && eps verify %s", out, out), 0, "step-3", "step-5");
    expect(print("wc -l <%s/metrics.jsonl", out), 0, "2\n");
    check_copies(step, from, "model.safetensors", c->n, c->n_added, false);
    check_copies(step, from, "optimizer.safetensors", c->n, c->n_added, c->zeros);
    check_updates(step, c->n, c->zeros ? 0 : 3, 3);
    check_updates(print("%s/step-5", out), c->n, c->zeros ? 2 : 5, 5);
    if (_i == 0)
        outputs_check_python(step);
}

/* Adam's first update of a tensor is the rate in each element, against its gradient's sign: so it is in blocks whose
 * moments begin with zeros, and not in those that have had three updates. */
TEST(a_new_block_s_first_update_is_corrected_as_a_first_one)
{
    struct outputs_tensors before, after;
    const double rate = 1e-3;

    expect("eps train --resume gpt2 --grow 2,moments=zero --out first --steps 4 --save-every 1 --keep 0", 0);
    outputs_open_tensors(&before, "first/grown/step-3", "model.safetensors");
    outputs_open_tensors(&after, "first/step-4", "model.safetensors");
    for (int block = 0; block < 4; block++) {
        const char *name = print("transformer.h.%d.mlp.c_fc.weight", block);
        uint64_t n, n_rates = 0;
        const float *old = outputs_tensor(&before, name, &n), *new = outputs_tensor(&after, name, &n);
        for (uint64_t i = 0; i < n; i++)
            n_rates += fabs(fabs((double)(new[i] - old[i])) - rate) < 0.01 * rate;
        ck_assert_msg(block < 2 ? n_rates < n / 5 : n_rates > n * 9 / 10, "block %d: %ju of %ju", block,
                      (uintmax_t)n_rates, (uintmax_t)n);
    }
    outputs_close_tensors(&before);
    outputs_close_tensors(&after);
}

/* At any budget, stopped and resumed, by two workers: the same bits. */
TEST(a_grown_run_is_a_run_like_another)
{
    static const char grow[] = "eps train --resume parts --grow 2,moments=zero --steps 7 --save-every 2 --keep 0";

    expect("eps train --model gpt2.json " DATA RATE "--parts 2 --deterministic --steps 3 --out parts", 0);
    expect(print("%s --out whole", grow), 0);
    expect(print("%s --out less --device-mem $(eps plan --model whole/step-4 --batch 4 --parts 2 --seq 16 "
                 "--microbatch 2 --minimum)",
                 grow),
           0, "activation checkpoints on the host");
    expect("eps train --resume whole/step-4 --out on --steps 7", 0);
    expect(print("%s --out two --workers 2", grow), 0, "2 workers on cpu");
    outputs_check_same_latest("whole", "less");
    outputs_check_same_latest("whole", "on");
    outputs_check_same_latest("whole", "two");
}

/* So may its worker be killed. */
TEST(a_killed_worker_changes_no_bit_of_a_grown_run)
{
    runs_check_killed_command("eps train --resume gpt2 --grow 2,moments=zero --steps 200 --save-every 0");
}

/* By itself, and then trained on: the same bits. */
TEST(a_reshaped_run_is_one_that_grew_as_it_began)
{
    expect("eps train --resume gpt2 --grow 1,moments=zero --out at-once --steps 5", 0);
    expect("eps reshape gpt2 --grow 1,moments=zero --out by-itself", 0, "eps train --resume by-itself");
    expect("eps verify by-itself && eps train --resume by-itself --steps 5", 0);
    outputs_check_same_latest("at-once", "by-itself");
}

/* What was refused after the model had grown leaves nothing in the way of the command as it should have been. */
TEST(a_corrected_command_begins_where_a_wrong_one_ended)
{
    expect("eps train --resume gpt2 --grow 2 --out new/deep --lr 1e-2", 2, "--change");
    expect("eps train --resume gpt2 --grow 2 --out new/deep --lr 1e-2 --change lr --steps 5", 0);
    outputs_check_whole("new/deep", 5);
}

static const struct {
    const char *command;
    int status;
    const char *words[2];
} refused[] = {
    {"eps train --grow 2 --out x", 2, {"--grow changes the model of a checkpoint", "--resume"}},
    {"eps train --resume gpt2 --grow 2", 2, {"--grow begins another run", "--out"}},
    {"eps train --resume gpt2 --grow 2 --out gpt2", 2, {"--out gpt2 is the one that it begins from", ""}},
    {"eps train --resume gpt2 --grow 3 --out x", 2, {"--grow 3: the model has 2 blocks", ""}},
    {"eps train --resume gpt2 --grow 0 --out x", 2, {"--grow 0: it takes a number of blocks", "moments=zero"}},
    {"eps train --resume gpt2 --grow 2,moments=half --out x", 2, {"--grow 2,moments=half: it takes", ""}},
    {"eps train --resume pattern --grow 2 --out x", 1, {"--grow 2: block 5 would be of another kind than block 3", ""}},
    {"eps train --resume lora --grow 1 --out x", 2, {"holds adapters", "change the model that they adapt"}},
    {"eps train --resume frozen --grow 1 --out x", 2, {"has frozen tensors, by --freeze wte.*", ""}},
    {"eps train --resume gpt2 --grow 2 --out llama", 1, {"--out llama holds a run already", ""}},
    {"eps train --resume gpt2 --grow 2 --out data.txt", 1, {"--out data.txt/grown: ", ""}},
    {"eps reshape gpt2 --grow 3 --out x", 2, {"--grow 3: the model has 2 blocks", ""}},
    {"eps reshape gpt2 --grow 2 --replace 0=8 --out x", 2, {"one of --grow and --replace says what changes", ""}},
    {"eps reshape gpt2 --out x", 2, {"one of --grow and --replace says what changes: name one", ""}},
    {"eps reshape gpt2 --grow 2", 2, {"no --out: the directory", ""}},
    {"eps reshape none --grow 2 --out x", 1, {"none: No such file", ""}},
    {"eps reshape gpt2 --grow 2 --out llama", 1, {"--out llama holds a run already", ""}},
    {"eps train --attach none --grow 2", 2, {"--grow does not go with --attach", ""}},
};

TEST_EACH(what_cannot_grow_is_refused, COUNT(refused))
{
    expect(refused[_i].command, refused[_i].status, refused[_i].words[0], refused[_i].words[1]);
    expect("! ls -d x/step-* x/grown/step-*", 0);
}
