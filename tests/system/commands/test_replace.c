/* eps train --replace as a user has it: what each tensor of the changed checkpoint is, that a widened model computes
 * what it did before, how it trains on, what is refused. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/runs.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA "--data data.txt --batch 4 --seq 16 --device cpu --device-mem 8MiB --seed 7 "
#define RATE "--lr 1e-3 --schedule constant --warmup 0 --weight-decay 0 "

static const char llama[] = "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 32, "
                            "\"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
                            "\"intermediate_size\": [48, 40, 48], \"max_position_embeddings\": 32, "
                            "\"rms_norm_eps\": 1e-5}";

/* A block for the GPT-2. */
static const char guest[] = "{\"model_type\": \"llama\", \"hidden_size\": 32, \"num_attention_heads\": 2, "
                            "\"num_key_value_heads\": 1, \"intermediate_size\": 40, \"rms_norm_eps\": 1e-5}";

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config_with("gpt2.json", 2, 4, 32, 32, "\"n_inner\": 56");
    processes_put_text("llama.json", llama);
    processes_put_text("guest.json", guest);
    processes_put_text("wide.json", "{\"model_type\": \"gpt2\", \"n_embd\": 64}");
    processes_put_text("bad.json", "{\"model_type\": ");
    expect("cp llama.json halves.json", 0);
    expect("eps train --model gpt2.json " DATA RATE "--steps 3 --out gpt2 && eps train --model llama.json " DATA RATE
           "--steps 3 --out llama && eps train --model halves.json --moments bf16 " DATA RATE "--steps 3 --out halves",
           0);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- checkpoints ---- */

enum { WIDTH = 32, WIDEST = 160 };

/* A tensor of the feed-forward layer: how many numbers each unit has, and how they lie. */
struct part {
    const char *name;
    int n;
    bool columns, out;
};

static const struct part of_gpt2[] = {{"mlp.c_fc.weight", WIDTH, true, false},
                                      {"mlp.c_fc.bias", 1, false, false},
                                      {"mlp.c_proj.weight", WIDTH, false, true}},
                         of_llama[] = {{"mlp.gate_proj.weight", WIDTH, false, false},
                                       {"mlp.up_proj.weight", WIDTH, false, false},
                                       {"mlp.down_proj.weight", WIDTH, true, true}};

static const struct replaced {
    const char *model, *option, *blocks; /* blocks: names of blocks before a tensor's number */
    const struct part *parts;
    bool zeros;
    int n_blocks, before[3], after[3];
    const char *config; /* sed: the config of the new widths */
} cases[] = {
    {"gpt2", "1=88", "transformer.h.", of_gpt2, false, 2, {56, 56}, {56, 88}, "s/: 56/: [56, 88]/"},
    {"gpt2", "0=24,1=64,moments=zero", "transformer.h.", of_gpt2, true, 2, {56, 56}, {24, 64}, "s/: 56/: [24, 64]/"},
    {"gpt2", "1=70,0=70", "transformer.h.", of_gpt2, false, 2, {56, 56}, {70, 70}, "s/: 56/: 70/"},
    {"llama",
     "2=96,1=10,moments=copy",
     "model.layers.",
     of_llama,
     false,
     3,
     {48, 40, 48},
     {48, 10, 96},
     "s/40, 48/10, 96/"},
    {"halves", "2=96,1=10", "model.layers.", of_llama, false, 3, {48, 40, 48}, {48, 10, 96}, "s/40, 48/10, 96/"},
};

static const struct part *part_of(const struct replaced *c, const char *name, int *block)
{
    const size_t n = strlen(c->blocks);
    int at = 0;

    *block = -1;
    if (strncmp(name, c->blocks, n) != 0 || sscanf(name + n, "%d.%n", block, &at) != 1)
        return NULL;
    for (const struct part *p = c->parts; p < c->parts + 3; p++)
        if (c->before[*block] != c->after[*block] && strcmp(name + n + at, p->name) == 0)
            return p;
    return NULL;
}

/* Of a replaced layer, which adds it to the sum of all units. */
static bool is_bias_out(const struct replaced *c, const char *name)
{
    int block;

    return sscanf(name, "transformer.h.%d.mlp.c_proj.bias", &block) == 1 && c->before[block] != c->after[block] &&
           strstr(name, ".mlp.c_proj.bias");
}

static float at(const float *tensor, const struct part *part, int units, int unit, int i)
{
    return tensor[part->columns ? i * units + unit : unit * part->n + i];
}

/* The units that are kept: of a wider layer all, of a narrower one those with the largest norms of weights out. */
static int choose(int kept[WIDEST], const struct replaced *c, const struct outputs_tensors *weights, int block)
{
    const struct part *out = &c->parts[2];
    const int n = c->before[block];
    double norms[WIDEST] = {0};
    uint64_t numbers;
    int n_kept = 0;
    const float *tensor = outputs_tensor(weights, print("%s%d.%s", c->blocks, block, out->name), &numbers);

    ck_assert_uint_eq(numbers, (uint64_t)(n * out->n));
    for (int u = 0; u < n; u++)
        for (int i = 0; i < out->n; i++)
            norms[u] += pow(at(tensor, out, n, u, i), 2);
    for (int u = 0; u < n; u++) {
        int larger = 0;
        for (int other = 0; other < n; other++)
            larger += norms[other] > norms[u];
        if (larger < c->after[block])
            kept[n_kept++] = u;
    }
    return n_kept;
}

/* A tensor of the replaced layer, against the checkpoint's; new units against `fresh`, or zeros (NULL). */
static void check_part(const struct replaced *c, const struct part *part, int block, const int *kept, int n_kept,
                       const float *got, const float *old, const float *fresh, bool zeros)
{
    const int n = c->after[block], before = c->before[block];

    for (int u = 0; u < n; u++)
        for (int i = 0; i < part->n; i++) {
            const float want = zeros        ? 0
                               : u < n_kept ? at(old, part, before, kept[u], i)
                               : fresh      ? at(fresh, part, n, u, i)
                                            : 0;
            ck_assert_msg(at(got, part, n, u, i) == want, "%s of block %d, unit %d: %g, not %g", part->name, block, u,
                          (double)at(got, part, n, u, i), (double)want);
        }
}

/* Every tensor of a file of the replaced checkpoint; prefix: "m." of moments. */
static void check_file(const struct replaced *c, const char *step, const char *from, const char *fresh,
                       const char *file, const char *prefix, bool zeros)
{
    struct outputs_tensors to, source, new, weights;
    int n_parts = 0;

    outputs_open_tensors(&to, step, file);
    outputs_open_tensors(&source, from, file);
    outputs_open_tensors(&weights, from, "model.safetensors");
    outputs_open_tensors(&new, fresh, "model.safetensors");
    for (size_t e = 0; e < to.file.n_entries; e++) {
        char name[120];
        uint64_t n_got, n_old;
        int block, kept[WIDEST], n_kept = 0;
        if (to.file.entries[e].type == SAFETENSORS_I64 || strncmp(to.file.entries[e].name, prefix, strlen(prefix)) != 0)
            continue;
        snprintf(name, sizeof name, "%s", to.file.entries[e].name);
        const struct part *part = part_of(c, name + strlen(prefix), &block);
        if (part)
            n_kept = choose(kept, c, &weights, block);
        const float *got = outputs_tensor(&to, name, &n_got);
        float copied[8192];
        memcpy(copied, got, n_got * sizeof *got);
        const float *old = outputs_tensor(&source, name, &n_old);
        if (!part) {
            const bool clears = zeros && is_bias_out(c, name + strlen(prefix));
            ck_assert_uint_eq(n_got, n_old);
            for (uint64_t i = 0; i < n_got; i++)
                ck_assert_msg(copied[i] == (clears ? 0 : old[i]), "%s", name);
            continue;
        }
        const bool draws = !*prefix && !part->out;
        const float *drawn = draws ? outputs_tensor(&new, name, &n_old) : NULL;
        check_part(c, part, block, kept, n_kept, copied, old, part->n > 1 ? drawn : NULL, zeros);
        n_parts++;
    }
    for (int b = 0; b < c->n_blocks; b++)
        n_parts -= c->before[b] != c->after[b] ? 3 : 0;
    ck_assert_int_eq(n_parts, 0);
    outputs_close_tensors(&to);
    outputs_close_tensors(&source);
    outputs_close_tensors(&weights);
    outputs_close_tensors(&new);
}

/* n tensors have had `changed` updates, the rest `others`. */
static void check_counts(const char *step, int64_t changed, int64_t others, int n)
{
    struct outputs_tensors moments;
    int64_t counts[200];
    int n_changed = 0;

    outputs_open_tensors(&moments, step, "optimizer.safetensors");
    const struct safetensors_entry *entry = safetensors_find(&moments.file, "updates");
    ck_assert(entry && entry->n <= COUNT(counts));
    ck_assert_int_eq(safetensors_read_counts(counts, entry, 0, entry->n, NULL), 0);
    for (uint64_t i = 0; i < entry->n; i++) {
        ck_assert_int_eq(counts[i], counts[i] == others ? others : changed);
        n_changed += counts[i] != others;
    }
    ck_assert_int_eq(n_changed, n);
    outputs_close_tensors(&moments);
}

static void check_updates(const struct replaced *c, const char *step, int64_t changed, int64_t others)
{
    int n = 0;

    for (int b = 0; b < c->n_blocks && changed != others; b++)
        n += c->before[b] != c->after[b] ? 3 + (c->parts == of_gpt2) : 0;
    check_counts(step, changed, others, n);
}

/* fresh-N: a model that begins with the new widths; frozen layers have what they were drawn with. Where all blocks have
 * one width it is one number again, so that transformers loads the checkpoint. */
TEST_EACH(each_unit_is_kept_or_new_and_trains_on, COUNT(cases))
{
    const struct replaced *c = &cases[_i];
    char out[20], step[40], from[20], fresh[20]; /* print's texts do not last */

    snprintf(out, sizeof out, "out-%d", _i);
    snprintf(step, sizeof step, "%s/replaced/step-3", out);
    snprintf(from, sizeof from, "%s/step-3", c->model);
    snprintf(fresh, sizeof fresh, "fresh-%d/step-1", _i);
    expect(print("sed '%s' %s.json >%d.json && eps train --model %d.json " DATA
                 "--freeze '*.mlp.*' --steps 1 --out fresh-%d",
                 c->config, c->model, _i, _i, _i),
           0);
    expect(print("eps train --resume %s --replace %s --out %s --steps 5 --save-every 1 --keep 0", c->model, c->option,
                 out),
           0, "held out");
    expect(print("eps verify %s/replaced && eps verify %s", out, out), 0, "step-3", "step-5");
    expect(print("wc -l <%s/metrics.jsonl", out), 0, "2\n");
    check_file(c, step, from, fresh, "model.safetensors", "", false);
    check_file(c, step, from, fresh, "optimizer.safetensors", "m.", c->zeros);
    check_file(c, step, from, fresh, "optimizer.safetensors", "v.", c->zeros);
    check_updates(c, step, c->zeros ? 0 : 3, 3);
    check_updates(c, print("%s/step-5", out), c->zeros ? 2 : 5, 5);
    if (c->after[0] == c->after[1])
        outputs_check_python(print("%s/step-5", out));
}

static double loss_of(const char *model)
{
    expect(print("eps eval --model %s --data data.txt --seq 16 --json | sed -n 's/.*\"loss\": *//p' >loss", model), 0);
    FILE *in = fopen(processes_path("loss"), "r");
    double loss = 0;
    ck_assert(in && fscanf(in, "%lf", &loss) == 1);
    fclose(in);
    return loss;
}

/* New units go out by zeros, so the loss is the same but for the rounding of sums that are cut elsewhere. */
TEST(a_widened_model_computes_what_it_did)
{
    const double before = loss_of("llama/latest");

    expect("eps train --resume llama --replace 0=130,2=49 --out wide --steps 4", 0);
    ck_assert_double_gt(before, 1);
    ck_assert_double_eq_tol(loss_of("wide/replaced/step-3"), before, 1e-6 * before);
}

TEST_EACH(who_remembered_norms_is_told_that_they_are_left_behind, 2)
{
    const char *const option = _i == 0 ? "--grow 1" : "--replace 1=24";
    char resume[120];

    processes_config_with("relu.json", 2, 4, 32, 32, "\"activation_function\": \"relu\"");
    processes_text("few.txt", 400); /* read several times */
    snprintf(resume, sizeof resume, "eps train --resume norms-%d %s --steps 9 --out left-%d", _i, option, _i);
    expect(print("eps train --model relu.json --data few.txt --batch 4 --seq 16 --device cpu --approximate wta=0.3 "
                 "--steps 8 --out norms-%d",
                 _i),
           0, "norms of gradients are remembered");
    expect(resume, 0, print("%.*s leaves behind the norms of gradients", (int)strcspn(option, " "), option));
    expect(print("! eps train --resume gpt2 %s --steps 4 --out none-%d 2>&1 | grep norms", option, _i), 0);
}

/* At any budget, stopped and resumed: the same bits. */
TEST(a_replaced_run_is_a_run_like_another)
{
    static const char replace[] = "eps train --resume gpt2 --replace 0=80,1=24 --steps 7 --save-every 2 --keep 0";

    expect(print("%s --out whole", replace), 0);
    expect(
        print("%s --out less --device-mem $(eps plan --model whole/step-4 --batch 4 --seq 16 --microbatch 4 --minimum)",
              replace),
        0, "checkpoints on the host");
    expect("eps train --resume whole/step-4 --out on --steps 7", 0);
    outputs_check_same_latest("whole", "less");
    outputs_check_same_latest("whole", "on");
}

/* So may its worker be killed. */
TEST(a_killed_worker_changes_no_bit_of_a_replaced_run)
{
    runs_check_killed_command("eps train --resume gpt2 --replace 0=80,1=guest.json --steps 200 --save-every 0");
}

/* ---- other programs ---- */

#define OF_GUEST "model.layers.1."

/* Weights as in a fresh model of the same config, moments and updates zeros; the other blocks as they were. */
TEST(another_block_is_fresh_and_trains_on)
{
    static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "optimizer.safetensors"},
                             *const prefixes[] = {"", "m.", "v."};
    int n_fresh = 0;

    expect("eps train --resume gpt2 --replace 1=guest.json --out mixed --steps 5 --save-every 1 --keep 0", 0,
           "held out");
    expect("eps verify mixed/replaced && eps verify mixed", 0, "step-3", "step-5");
    expect("mkdir fresh && cp mixed/replaced/step-3/config.json fresh && eps train --model fresh/config.json " DATA
           "--freeze '*layers*' --steps 1 --out fresh-guest",
           0);
    for (size_t i = 0; i < COUNT(files); i++) {
        struct outputs_tensors to, old, fresh;
        outputs_open_tensors(&to, "mixed/replaced/step-3", files[i]);
        outputs_open_tensors(&old, "gpt2/step-3", files[i]);
        outputs_open_tensors(&fresh, "fresh-guest/step-1", "model.safetensors");
        for (size_t e = 0; e < to.file.n_entries; e++) {
            const char *name = to.file.entries[e].name;
            const bool is_fresh = strncmp(name + strlen(prefixes[i]), OF_GUEST, strlen(OF_GUEST)) == 0;
            uint64_t n, n_want;
            if (to.file.entries[e].type != SAFETENSORS_F32 || strncmp(name, prefixes[i], strlen(prefixes[i])) != 0)
                continue;
            const float *got = outputs_tensor(&to, name, &n);
            const float *want =
                outputs_tensor(is_fresh ? &fresh : &old, name + (is_fresh ? strlen(prefixes[i]) : 0), &n_want);
            ck_assert_uint_eq(n, n_want);
            for (uint64_t k = 0; k < n; k++)
                ck_assert_msg(got[k] == (is_fresh && i > 0 ? 0 : want[k]), "%s, number %d", name, (int)k);
            n_fresh += is_fresh;
        }
        outputs_close_tensors(&to);
        outputs_close_tensors(&old);
        outputs_close_tensors(&fresh);
    }
    ck_assert_int_eq(n_fresh, 3 * 9);
    check_counts("mixed/replaced/step-3", 0, 3, 9);
    check_counts("mixed/step-5", 2, 5, 9);
}

/* At any budget, stopped and resumed: the same bits. */
TEST(a_run_with_another_block_is_a_run_like_another)
{
    static const char replace[] =
        "eps train --resume gpt2 --replace 0=guest.json --steps 7 --save-every 2 --keep 0 --change lr --lr 2e-3";

    expect(print("%s --out run", replace), 0);
    expect(print("%s --out small --device-mem $(eps plan --model run/step-4 --batch 4 --seq 16 --microbatch 4 "
                 "--minimum)",
                 replace),
           0);
    expect("eps train --resume run/step-4 --out further --steps 7", 0);
    outputs_check_same_latest("run", "small");
    outputs_check_same_latest("run", "further");
}

/* It is asked, grows, changes again and is exported as others are; no other program takes it for a GPT-2. */
TEST(a_model_of_several_families_is_a_model)
{
    expect("eps train --resume gpt2 --replace 1=guest.json --out both --steps 4", 0);
    expect("tr -d ' \n' <both/latest/config.json", 0, "\"model_type\":\"eps_gpt2\"",
           "\"eps_blocks\":[{\"blocks\":[1],\"config\":{\"model_type\":\"llama\"");
    expect("eps export --model both/latest --out both-out", 0);
    ck_assert(loss_of("both-out") == loss_of("both/latest"));
    expect("eps generate --model both/latest --prompt a --tokens 5 --seed 1", 0);
    expect("eps train --resume both --grow 1 --out taller --steps 5 && tr -d ' \n' <taller/latest/config.json", 0,
           "\"n_layer\":3", "\"blocks\":[1,2]");
    expect("eps train --resume both --replace 0=24 --out narrow --steps 5 && tr -d ' \n' <narrow/latest/config.json", 0,
           "\"n_inner\":[24,56]", "\"blocks\":[1]");
    expect("eps train --resume both --replace 1=24 --out no", 2,
           "--replace 1=24: that block has a config of its own (eps_blocks)", "1=FILE");
    expect("sed -i 's/eps_gpt2/gpt2/' both-out/config.json && eps eval --model both-out --data data.txt", 1,
           "with eps_blocks it must begin with eps_");
}

/* Widths go on with the blocks that are copied. */
TEST(a_replaced_model_grows)
{
    expect("eps train --resume llama --grow 2 --out deep --steps 4", 0);
    expect("tr -d ' \\n' <deep/latest/config.json", 0, "\"intermediate_size\":[48,40,48,40,48]");
}

/* What is exported has the list, and is read again. */
TEST(a_list_of_widths_is_exported_and_imported)
{
    expect("eps export --model llama/latest --out exported && tr -d ' \\n' <exported/config.json", 0,
           "\"intermediate_size\":[48,40,48]");
    ck_assert(loss_of("exported") == loss_of("llama/latest"));
    expect(
        "cd exported && sed -i 's/40,/44,/' config.json && cd .. && eps eval --model exported --data data.txt --seq 16",
        1, "model.layers.1.mlp.", "44");
}

static const struct {
    const char *command;
    int status;
    const char *words[2];
} refused[] = {
    {"eps train --replace 1=8 --out x", 2, {"--replace changes the model of a checkpoint", "--resume"}},
    {"eps train --resume gpt2 --replace 1=8", 2, {"--replace begins another run", "--out"}},
    {"eps train --resume gpt2 --replace 1=8 --out gpt2", 2, {"--out gpt2 is the one that it begins from", ""}},
    {"eps train --resume gpt2 --replace 2=8 --out x", 2, {"--replace 2=8: the model has 2 blocks, 0 to 1", ""}},
    {"eps train --resume gpt2 --replace 2=guest.json --out x", 2, {"the model has 2 blocks, 0 to 1", ""}},
    {"eps train --resume gpt2 --replace 1=guest.json,1=9 --out x", 2, {"--replace names block 1 twice", ""}},
    {"eps train --resume gpt2 --replace 1=none.json --out x", 1, {"--replace: none.json: No such file", ""}},
    {"eps train --resume gpt2 --replace 1=gpt2 --out x", 1, {"--replace: gpt2: not a regular file", ""}},
    {"eps train --resume gpt2 --replace 1=bad.json --out x", 1, {"--replace: bad.json: not JSON at line 1", ""}},
    {"eps train --resume gpt2 --replace 1=wide.json --out x", 1, {"--replace: wide.json: n_head is missing", ""}},
    {"echo '[1, 2]' >list.json && eps train --resume gpt2 --replace 1=list.json --out x",
     1,
     {"--replace: list.json: a config must be an object", ""}},
    {"eps train --model gpt2/latest --freeze 'h.1.*' --freeze-until 1 " DATA
     "--steps 2 --out thawed && eps train --resume thawed --replace 1=guest.json --out x",
     1,
     {"--replace: --freeze h.1.* matches no tensor of this model", ""}},
    {"eps train --resume gpt2 --replace 1=0 --out x", 2, {"--replace 1=0: a width is from 1 to 1048576", ""}},
    {"eps train --resume gpt2 --replace 1=1048577 --out x", 2, {"a width is from 1 to 1048576", ""}},
    {"eps train --resume gpt2 --replace 1=99999999999999999999 --out x", 2, {"a width is from 1 to 1048576", ""}},
    {"eps train --resume gpt2 --replace 1=56 --out x", 2, {"--replace 1=56: that block has this width already", ""}},
    {"eps train --resume gpt2 --replace 1=8,1=9 --out x", 2, {"--replace names block 1 twice", ""}},
    {"eps train --resume gpt2 --replace 1 --out x", 2, {"--replace 1: it takes BLOCK=WIDTH", "moments=zero"}},
    {"eps train --resume gpt2 --replace 1=8,moments=half --out x", 2, {"it takes BLOCK=WIDTH", ""}},
    {"eps train --resume gpt2 --replace 1=8, --out x", 2, {"it takes BLOCK=WIDTH", ""}},
    {"eps train --resume gpt2 --grow 1 --replace 1=8 --out x", 2, {"--grow and --replace each begin another run", ""}},
    {"eps train --resume gpt2 --replace 1=8 --out llama", 1, {"--out llama holds a run already", ""}},
    {"eps train --attach none --replace 1=8", 2, {"--replace does not go with --attach", ""}},
    {"eps train --model gpt2/latest --lora rank=2 " DATA
     "--steps 2 --out lora && eps train --resume lora --replace 1=8 --out x",
     2,
     {"holds adapters", "change the model that they adapt"}},
};

TEST_EACH(what_cannot_be_replaced_is_refused, COUNT(refused))
{
    expect(refused[_i].command, refused[_i].status, refused[_i].words[0], refused[_i].words[1]);
    expect("! ls -d x/step-* x/replaced/step-*", 0);
}
