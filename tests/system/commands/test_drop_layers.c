/* eps train --drop-layers as a user has it: what a step leaves alone, with any budget and workers, planned, evaluated,
 * refused. That steps are PyTorch's: tests/system/exact/test_exact_training.c; that other ways to run it change no bit:
 * tests/system/invariants. */
#include "proto/model/drop.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DATA  "--data data.txt --batch 4 --seq 16 --schedule constant --warmup 0 --device cpu "
#define TRAIN "eps train --model tied.json " DATA

#define PAIRS "--data sums.jsonl --seq 24 --source-seq 10 --batch 4 --schedule constant --warmup 0 --device cpu "

enum { BLOCKS = 4, SEED = 11 };

/* Of the blocks of two stacks, the encoder's come first. */
static const char t5[] = "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 40, \"num_layers\": 2, "
                         "\"num_decoder_layers\": 2, \"num_heads\": 4, \"vocab_size\": 256, \"dropout_rate\": 0.1, "
                         "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 20, "
                         "\"is_encoder_decoder\": true, \"decoder_start_token_id\": 0, \"eos_token_id\": 1}";

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_text("held.txt", 1600);
    processes_config("tied.json", BLOCKS, 4, 32, 32);
    expect(TRAIN "--steps 1 --out base", 0);
    processes_put_text("t5.json", t5);
    expect("for i in $(seq 60); do printf '{\"source\": \"%s+1\", \"target\": \"is %s\"}\\n' $i $((i + 1)); done "
           ">sums.jsonl",
           0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- what a step leaves alone ---- */

static bool is_dropped(uint64_t step, int block, double p)
{
    struct model_drop drop;

    model_drop_draw(&drop, BLOCKS, p, SEED, step);
    return block >= 0 && drop.blocks[0] >> block & 1;
}

/* -1: the tensor is of no block. */
static int block_of(const char *name)
{
    const char *found = strstr(name, ".h.");

    return found ? atoi(found + 3) : -1;
}

/* Tensors of blocks that step t dropped are those of the checkpoint before, bit for bit; all others are not. */
static void check_step(uint64_t t, const char *file, double p)
{
    struct outputs_tensors before, after;
    unsigned n_dropped = 0;

    outputs_open_tensors(&before, print("counted/step-%d", (int)t), file);
    outputs_open_tensors(&after, print("counted/step-%d", (int)t + 1), file);
    for (size_t i = 0; i < after.file.n_entries; i++) {
        const struct safetensors_entry *entry = &after.file.entries[i];
        uint64_t n, n_before;
        if (entry->type != SAFETENSORS_F32 || strstr(entry->name, "c_attn.bias"))
            continue; /* keys have no gradient but rounding */
        const float *a = outputs_tensor(&before, entry->name, &n_before), *b = outputs_tensor(&after, entry->name, &n);
        const bool same = n == n_before && memcmp(a, b, n * sizeof *a) == 0;
        const bool dropped = is_dropped(t, block_of(entry->name), p);
        ck_assert_msg(same == dropped, "%s, step %d", entry->name, (int)t);
        n_dropped += dropped;
    }
    ck_assert_uint_gt(after.file.n_entries, n_dropped);
    outputs_close_tensors(&before);
    outputs_close_tensors(&after);
}

/* "updates" is in the order of the model's tensors: two tables, 12 tensors of each block, and two of the last norm. */
static void check_counts(uint64_t n_steps, double p)
{
    struct outputs_tensors moments;
    int64_t counts[2 + 12 * BLOCKS + 2];

    outputs_open_tensors(&moments, print("counted/step-%d", (int)n_steps), "optimizer.safetensors");
    const struct safetensors_entry *entry = safetensors_find(&moments.file, "updates");
    ck_assert(entry && entry->n == COUNT(counts));
    ck_assert_int_eq(safetensors_read_counts(counts, entry, 0, entry->n, NULL), 0);
    for (int i = 0; i < COUNT(counts); i++) {
        const int block = i < 2 || i >= 2 + 12 * BLOCKS ? -1 : (i - 2) / 12;
        int64_t want = 0;
        for (uint64_t t = 0; t < n_steps; t++)
            want += !is_dropped(t, block, p);
        ck_assert_int_eq(counts[i], want);
    }
    outputs_close_tensors(&moments);
}

/* Neither weights nor moments of a dropped block change, and its updates are not counted; weights decay in all
 * others. */
TEST(a_dropped_block_is_neither_updated_nor_decayed)
{
    enum { STEPS = 6 };
    const double p = 0.5;
    unsigned n_dropped = 0;

    expect(print(TRAIN "--drop-layers %g --seed %d --steps %d --save-every 1 --keep 0 --out counted -v", p, SEED,
                 STEPS),
           0, "dropped      blocks, each with probability 0.5 in each step", "held out");
    for (uint64_t t = 1; t < STEPS; t++) {
        check_step(t, "model.safetensors", p);
        check_step(t, "optimizer.safetensors", p);
    }
    check_counts(STEPS, p);
    for (uint64_t t = 0; t < STEPS; t++)
        for (int block = 0; block < BLOCKS; block++)
            n_dropped += is_dropped(t, block, p);
    ck_assert(n_dropped > 0 && n_dropped < BLOCKS * STEPS);
}

/* Adapters alone are trained: a step that would leave out all blocks keeps one, the same in each run. */
TEST(some_adapters_are_trained_in_each_step)
{
    enum { STEPS = 8 };
    const double p = 0.85;
    const struct model_drop all = {.blocks = {(1 << BLOCKS) - 1}};
    struct outputs_tensors before, after;
    unsigned n_kept = 0;

    expect(print("eps train --model base/latest --lora rank=2 " DATA
                 "--drop-layers %g --seed %d --steps %d --save-every 1 "
                 "--keep 0 --out adapters",
                 p, SEED, STEPS),
           0, "held out");
    for (uint64_t t = 1; t < STEPS; t++) {
        struct model_drop drop;
        bool changed[BLOCKS] = {false};
        model_drop_draw(&drop, BLOCKS, p, SEED, t);
        n_kept += drop.blocks[0] == all.blocks[0];
        model_drop_keep_one(&drop, &all, BLOCKS, SEED, t);
        outputs_open_tensors(&before, print("adapters/step-%d", (int)t), "optimizer.safetensors");
        outputs_open_tensors(&after, print("adapters/step-%d", (int)t + 1), "optimizer.safetensors");
        for (size_t i = 0; i < after.file.n_entries; i++) {
            const struct safetensors_entry *entry = &after.file.entries[i];
            uint64_t n;
            if (entry->type != SAFETENSORS_F32)
                continue;
            const float *a = outputs_tensor(&before, entry->name, &n), *b = outputs_tensor(&after, entry->name, &n);
            changed[block_of(entry->name)] |= memcmp(a, b, n * sizeof *a) != 0;
        }
        for (int b = 0; b < BLOCKS; b++)
            ck_assert_int_eq(changed[b], !(drop.blocks[0] >> b & 1));
        outputs_close_tensors(&before), outputs_close_tensors(&after);
    }
    ck_assert_uint_gt(n_kept, 0);
}

/* ---- what changes no bit ---- */

/* From a budget that keeps everything on the device to the smallest, which has a stash on the host and one weight
 * buffer; 1 to 3 workers; with and without replay. */
#define SHARED "--parts 4 --microbatch 1 --deterministic --drop-layers 0.5 "

static void check_ways(const char *train, const char *const *ways, int n)
{
    expect(print("%s --out one", train), 0);
    for (int i = 0; i < n; i++) {
        expect(print("%s --out way-%d %s", train, i, ways[i]), 0);
        outputs_check_same_latest("one", print("way-%d", i));
    }
    expect("rm -rf one way-*", 0);
}

TEST(neither_budget_nor_workers_change_a_bit)
{
    static const char *const ways[] = {"--device-mem 2501KiB", "--workers 2", "--workers 3 --device-mem 3MiB",
                                       "--workers 2 --host-mem 3MiB"};

    check_ways(TRAIN SHARED "--steps 5", ways, COUNT(ways));
}

/* The encoder's output has a reader less in some steps, and none in others. */
TEST(nor_do_they_with_two_stacks)
{
    enum { STEPS = 6, SEED_OF_STACKS = 19 };
    unsigned n_without_readers = 0;

    for (uint64_t t = 0; t < STEPS; t++) {
        struct model_drop drop;
        model_drop_draw(&drop, 4, 0.5, SEED_OF_STACKS, t);
        n_without_readers += (drop.blocks[0] & 0xe) == 0xc; /* block 1 is the encoder's, 2 and 3 the decoder's */
    }
    ck_assert_uint_gt(n_without_readers, 0);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        char train[400], least[64], three[64];
        snprintf(train, sizeof train, "eps train --model t5.json " PAIRS SHARED "--seed %d --steps %d%s",
                 SEED_OF_STACKS, STEPS, bf16 ? " --precision bf16" : "");
        expect(print("eps plan --model t5.json --seq 24 --source-seq 10 --batch 4 --parts 4 --microbatch 1 "
                     "--drop-layers 0.5 --device cpu%s --minimum",
                     bf16 ? " --precision bf16" : ""),
               0);
        const unsigned long long bytes = strtoull(command_out(), NULL, 10);
        snprintf(least, sizeof least, "--device-mem %llu", bytes);
        snprintf(three, sizeof three, "--workers 3 --device-mem %llu", bytes);
        const char *const ways[] = {least, "--workers 2", three};
        check_ways(train, ways, COUNT(ways));
    }
}

/* ---- what is evaluated, planned, refused ---- */

/* Whoever evaluates the checkpoint knows of no dropped blocks. */
TEST(a_held_out_loss_is_of_all_blocks)
{
    expect(TRAIN "--eval-data held.txt --drop-layers 0.6 --steps 3 --out evaluated", 0);
    outputs_check_held_out("evaluated", "--data held.txt --seq 16 --device cpu");
}

static const struct refusal refusals[] = {
    {TRAIN "--out no --drop-layers 1", 2, "--drop-layers", "it must be from 0 to below 1"},
    {TRAIN "--out no --drop-layers -0.5", 2, "--drop-layers", "it must be from 0 to below 1"},
    {TRAIN "--out no --drop-layers some", 2, "--drop-layers 'some'", NULL},
    {"eps plan --model tied.json --drop-layers 2", 2, "--drop-layers", "it must be from 0 to below 1"},
    {"eps train --resume kept --steps 2 --drop-layers 0.25", 2, "--drop-layers 0.25", "the run's 0.5"},
};

TEST(what_cannot_be_dropped_is_refused)
{
    expect(TRAIN "--out kept --steps 1 --drop-layers 0.5", 0);
    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
    expect("eps train --resume kept --steps 2 --drop-layers 0.5 -v", 0,
           "dropped      blocks, each with probability 0.5");
    expect("eps train --resume kept --steps 3 --change drop-layers --drop-layers 0.25 -v", 0,
           "dropped      blocks, each with probability 0.25");
    expect_file("kept/latest/training.json", "\"drop_layers\":0.25");
    expect(TRAIN "--out all --steps 1", 0);
    expect_file("all/latest/training.json", "\"drop_layers\":null");
}
