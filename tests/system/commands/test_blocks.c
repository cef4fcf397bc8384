/* on_blocks of libeps in real runs: steps that leave out blocks are those of a model without them; a frozen block stays
 * as with --freeze; neither workers, a killed one, nor a resume change a bit; what no step can be is refused. */
#include "proto/model/file/checkpoint.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCKS = 4, STEPS = 6, MOST = 128 };

#define TRAIN                                                                                                          \
    "eps train --data data.txt --batch 4 --seq 16 --microbatch 2 --lr 1e-3 --schedule constant --warmup 0 "            \
    "--order sequential --seed 5 --device cpu --device-mem 8MiB --eval-data data.txt --eval-tokens 256 "

static const char *const files[] = {"data.txt"};

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config("four.json", BLOCKS, 4, 32, 32);
    processes_config("two.json", 2, 4, 32, 32);
    expect(TRAIN "--model four.json --steps 1 --out base", 0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static struct eps_train_options options_of(const char *out)
{
    struct eps_train_options o = processes_options("base/latest", files, out);

    o.batch = 4, o.seq = 16, o.microbatch = 2, o.steps = STEPS, o.lr = 1e-3, o.schedule = EPS_SCHEDULE_CONSTANT;
    o.warmup = 0, o.device = "cpu", o.device_mem = 8 << 20;
    o.save_every = 3, o.keep = 0;
    return o;
}

/* A worker of this process is killed at this step; 0: none is. */
static void on_step(void *user, const struct eps_step *step)
{
    const uint64_t *kills = user;

    if (step->step == *kills)
        kill(processes_find("eps-worker"), SIGKILL);
}

static int train(const struct eps_train_options *options, uint64_t kills)
{
    return processes_train_with(options, &(struct eps_train_events){.on_step = on_step}, &kills);
}

/* ---- which blocks ---- */

static void outer(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    ck_assert(blocks->n_blocks == BLOCKS && blocks->n_computed == BLOCKS && blocks->n_frozen == 0);
    for (uint32_t i = 0; i < BLOCKS; i++)
        ck_assert_uint_eq(blocks->computed[i], i);
    blocks->computed[0] = 0, blocks->computed[1] = BLOCKS - 1;
    blocks->n_computed = 2;
}

static void freeze_one(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->frozen[0] = 1;
    blocks->n_frozen = 1;
}

/* What a step leaves out, and what it freezes: by a table. */
static const struct {
    int dropped, frozen; /* -1: none */
} table[STEPS] = {{-1, -1}, {0, -1}, {2, 3}, {-1, 0}, {3, 1}, {1, -1}};

static void by_table(void *user, struct eps_step_blocks *blocks)
{
    const int dropped = table[blocks->step - 1].dropped, frozen = table[blocks->step - 1].frozen;

    (void)user;
    blocks->n_computed = 0;
    for (int i = 0; i < BLOCKS; i++)
        if (i != dropped)
            blocks->computed[blocks->n_computed++] = (uint32_t)i;
    if (frozen >= 0)
        blocks->frozen[blocks->n_frozen++] = (uint32_t)frozen;
}

/* Bit i of a step: block i is left out. */
static void of_stacks(void *user, struct eps_step_blocks *blocks)
{
    static const uint32_t left_out[STEPS] = {0x0, 0x1, 0xc, 0xa, 0x3, 0xd};

    (void)user;
    blocks->n_computed = 0;
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (!(left_out[blocks->step - 1] >> i & 1))
            blocks->computed[blocks->n_computed++] = i;
}

/* Each step its own order, of all blocks or of some; block 0 is frozen in one. */
static const struct {
    uint32_t n, computed[BLOCKS];
    int frozen; /* -1: none */
} orders[STEPS] = {{4, {3, 1, 2, 0}, -1}, {4, {0, 1, 2, 3}, -1}, {3, {2, 0, 3}, -1},
                   {4, {1, 0, 3, 2}, 0},  {2, {3, 0}, -1},       {4, {2, 3, 0, 1}, -1}};

static void in_order(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->n_computed = orders[blocks->step - 1].n;
    memcpy(blocks->computed, orders[blocks->step - 1].computed, blocks->n_computed * sizeof *blocks->computed);
    if (orders[blocks->step - 1].frozen >= 0)
        blocks->frozen[blocks->n_frozen++] = (uint32_t)orders[blocks->step - 1].frozen;
}

/* One block of another order is left out, one is frozen; and the same blocks of the model that has this order. */
static void some_outer_first(void *user, struct eps_step_blocks *blocks)
{
    static const uint32_t order[] = {3, 1, 2};

    (void)user;
    memcpy(blocks->computed, order, sizeof order);
    blocks->n_computed = 3;
    blocks->frozen[blocks->n_frozen++] = 3;
}

static void some_in_place(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->n_computed = 3;
    blocks->frozen[blocks->n_frozen++] = 0;
}

/* The same in each step. */
static void outer_first(void *user, struct eps_step_blocks *blocks)
{
    static const uint32_t order[BLOCKS] = {3, 1, 2, 0};

    (void)user;
    memcpy(blocks->computed, order, sizeof order);
}

/* A run that goes on from another's third step ends as that one did. */
static void check_resumed(const char *run, void (*on_blocks)(void *user, struct eps_step_blocks *blocks))
{
    struct eps_train_options o = eps_train_defaults();
    char out[64];

    snprintf(out, sizeof out, "%s-resumed", run);
    o.resume = out, o.on_blocks = on_blocks, o.programs = processes_programs();
    expect(print("mkdir %s && cp -r %s/step-3 %s", out, run, out), 0);
    ck_assert_int_eq(train(&o, 0), 0);
    outputs_check_same_latest(out, run);
}

/* ---- a model without the blocks ---- */

/* The name of a tensor of the model of two blocks in the one of four, whose outer ones it has. */
static const char *name_in_four(const char *name)
{
    const char *at = strstr(name, ".h.1.");

    return at ? print("%.*s.h.%d.%s", (int)(at - name), name, BLOCKS - 1, at + 5) : name;
}

/* The same in a model of four whose outer blocks have changed places. */
static const char *name_swapped(const char *name)
{
    const char *at = strstr(name, ".h.");

    return at && strchr("03", at[3]) ? print("%.*s.h.%c%s", (int)(at - name), name, at[3] == '0' ? '3' : '0', at + 4)
                                     : name;
}

/* A model in `folder`, of the names and shapes of the one in `like`: each tensor is the base's of the name that
 * name_in_base gives. */
static void write_model(const char *folder, const char *like, const char *(*name_in_base)(const char *))
{
    struct outputs_tensors four, two;
    struct safetensors_plan plan[MOST];
    struct safetensors_writer writer;

    expect(print("mkdir -p %s && cp %s/config.json %s/tokenizer*.json %s", folder, like, like, folder), 0);
    outputs_open_tensors(&four, "base/latest", CHECKPOINT_WEIGHTS);
    outputs_open_tensors(&two, like, CHECKPOINT_WEIGHTS);
    for (size_t i = 0; i < two.file.n_entries; i++) {
        const struct safetensors_entry *entry = &two.file.entries[i];
        plan[i] = (struct safetensors_plan){entry->name,
                                            entry->n_dims,
                                            {entry->shape[0], entry->n_dims > 1 ? entry->shape[1] : 1},
                                            SAFETENSORS_F32};
    }
    const int fd = open(print("%s/" CHECKPOINT_WEIGHTS, folder), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ck_assert(fd >= 0 && safetensors_begin(&writer, fd, plan, two.file.n_entries, NULL) == 0);
    for (size_t i = 0; i < two.file.n_entries; i++) {
        uint64_t n;
        const float *values = outputs_tensor(&four, name_in_base(plan[i].name), &n);
        ck_assert_int_eq(safetensors_append(&writer, values, n * sizeof *values, NULL), 0);
    }
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    close(fd);
    outputs_close_tensors(&four), outputs_close_tensors(&two);
}

/* All tensors of a file of that model are those of the other. */
static void check_tensors(const char *two_step, const char *four_step, const char *file,
                          const char *(*name_in_base)(const char *))
{
    struct outputs_tensors four, two;

    outputs_open_tensors(&two, two_step, file);
    outputs_open_tensors(&four, four_step, file);
    for (size_t i = 0; i < two.file.n_entries; i++) {
        uint64_t n, n_four;
        if (two.file.entries[i].type != SAFETENSORS_F32)
            continue;
        const char *name = two.file.entries[i].name;
        const float *a = outputs_tensor(&two, name, &n), *b = outputs_tensor(&four, name_in_base(name), &n_four);
        ck_assert_msg(n == n_four && memcmp(a, b, n * sizeof *a) == 0, "%s", name);
    }
    outputs_close_tensors(&two), outputs_close_tensors(&four);
}

TEST(steps_without_the_inner_blocks_are_those_of_a_model_without_them)
{
    struct eps_train_options o = options_of("outer");

    o.on_blocks = outer;
    ck_assert_int_eq(train(&o, 0), 0);
    expect(TRAIN "--model two.json --steps 1 --out names", 0);
    write_model("pruned", "names/latest", name_in_four);
    expect(print(TRAIN "--model pruned --steps %d --out two", STEPS), 0);
    check_tensors(print("two/step-%d", STEPS), print("outer/step-%d", STEPS), CHECKPOINT_WEIGHTS, name_in_four);
    check_tensors(print("two/step-%d", STEPS), print("outer/step-%d", STEPS), CHECKPOINT_MOMENTS, name_in_four);
}

/* ---- blocks in another order ---- */

/* The model has no dropout, nor anything else by which a block's index matters. */
TEST(steps_in_another_order_are_those_of_a_model_with_its_blocks_so)
{
    struct eps_train_options o = options_of("swapping");

    o.on_blocks = outer_first;
    ck_assert_int_eq(train(&o, 0), 0);
    write_model("swapped", "base/latest", name_swapped);
    expect(print(TRAIN "--model swapped --steps %d --out other", STEPS), 0);
    check_tensors(print("other/step-%d", STEPS), print("swapping/step-%d", STEPS), CHECKPOINT_WEIGHTS, name_swapped);
    check_tensors(print("other/step-%d", STEPS), print("swapping/step-%d", STEPS), CHECKPOINT_MOMENTS, name_swapped);
    o = options_of("some-swapping");
    o.on_blocks = some_outer_first;
    ck_assert_int_eq(train(&o, 0), 0);
    o.model = "swapped", o.out = "some", o.on_blocks = some_in_place;
    ck_assert_int_eq(train(&o, 0), 0);
    check_tensors(print("some/step-%d", STEPS), print("some-swapping/step-%d", STEPS), CHECKPOINT_WEIGHTS,
                  name_swapped);
    check_tensors(print("some/step-%d", STEPS), print("some-swapping/step-%d", STEPS), CHECKPOINT_MOMENTS,
                  name_swapped);
}

/* The smallest budget has its stash on the host, and one unit at a time. What is trained is the two upper blocks and
 * what is above: some orders put one of these at the bottom, so backward goes further down than in the model's
 * order. */
TEST(an_order_is_the_same_whoever_computes_it)
{
    struct eps_train_options o = options_of("ordered");

    o.on_blocks = in_order;
    o.parts = 2, o.deterministic = true, o.freeze = "w?e.*,h.[01].*";
    ck_assert_int_eq(train(&o, 0), 0);
    expect("eps plan --model base/latest --batch 4 --seq 16 --microbatch 2 --parts 2 --freeze 'w?e.*' 'h.[01].*' "
           "--device cpu "
           "--minimum",
           0);
    o.out = "ordered-least", o.device_mem = strtoull(command_out(), NULL, 10);
    ck_assert_int_eq(train(&o, 0), 0);
    outputs_check_same_latest("ordered-least", "ordered");
    o.out = "ordered-killed", o.workers = 2, o.device_mem = 8 << 20;
    ck_assert_int_eq(train(&o, 3), 0);
    outputs_check_same_latest("ordered-killed", "ordered");
    check_resumed("ordered", in_order);
}

/* ---- frozen blocks ---- */

static void check_same_weights(const char *step, const char *other)
{
    outputs_check_same(step, other, CHECKPOINT_WEIGHTS);
}

TEST(a_block_that_is_frozen_in_each_step_is_frozen)
{
    struct eps_train_options o = options_of("still");

    o.on_blocks = freeze_one;
    o.clip_norm = 0.5, o.workers = o.parts = 2, o.deterministic = true;
    ck_assert_int_eq(train(&o, 0), 0);
    expect(print(TRAIN "--model base/latest --freeze 'h.1.*' --clip-norm 0.5 --workers 2 --parts 2 --deterministic "
                       "--steps %d --out frozen",
                 STEPS),
           0);
    check_same_weights(print("still/step-%d", STEPS), print("frozen/step-%d", STEPS));
}

/* ---- each step its own ---- */

/* Weights and moments of blocks that the step left out, or froze, are those before; others are not; and so are
 * counts. */
static void check_step(int t, int64_t counts[BLOCKS])
{
    struct outputs_tensors before, after;

    for (int k = 0; k < 2; k++) {
        const char *file = k ? CHECKPOINT_MOMENTS : CHECKPOINT_WEIGHTS;
        outputs_open_tensors(&before, print("table/step-%d", t), file);
        outputs_open_tensors(&after, print("table/step-%d", t + 1), file);
        for (size_t i = 0; i < after.file.n_entries; i++) {
            const struct safetensors_entry *entry = &after.file.entries[i];
            const char *found = strstr(entry->name, ".h.");
            const int block = found ? atoi(found + 3) : -2;
            uint64_t n;
            if (entry->type != SAFETENSORS_F32 || strstr(entry->name, "c_attn.bias"))
                continue; /* keys have no gradient but rounding */
            const float *a = outputs_tensor(&before, entry->name, &n), *b = outputs_tensor(&after, entry->name, &n);
            const bool same = memcmp(a, b, n * sizeof *a) == 0;
            ck_assert_msg(same == (block == table[t].dropped || block == table[t].frozen), "%s, step %d", entry->name,
                          t);
        }
        if (k) {
            int64_t got[2 + 12 * BLOCKS + 2];
            const struct safetensors_entry *entry = safetensors_find(&after.file, "updates");
            ck_assert(entry && entry->n == COUNT(got) && safetensors_read_counts(got, entry, 0, entry->n, NULL) == 0);
            for (int i = 2; i < 2 + 12 * BLOCKS; i++)
                ck_assert_int_eq(got[i], counts[(i - 2) / 12]);
        }
        outputs_close_tensors(&before), outputs_close_tensors(&after);
    }
}

TEST(each_step_has_its_own_blocks_whoever_computes_it)
{
    struct eps_train_options o = options_of("table");
    int64_t counts[BLOCKS] = {0};

    o.on_blocks = by_table;
    o.parts = 2, o.deterministic = true, o.save_every = 1;
    ck_assert_int_eq(train(&o, 0), 0);
    for (int t = 0; t < STEPS; t++) {
        for (int b = 0; b < BLOCKS; b++)
            counts[b] += b != table[t].dropped && b != table[t].frozen;
        if (t > 0)
            check_step(t, counts);
    }
    o.out = "killed", o.workers = 2;
    ck_assert_int_eq(train(&o, 2), 0);
    outputs_check_same_latest("killed", "table");
    check_resumed("table", by_table);
}

/* The job after --freeze-until asks, too. */
TEST(a_run_that_thaws_asks_on)
{
    struct eps_train_options o = options_of("thaws");

    o.on_blocks = by_table;
    o.freeze = "wpe.*", o.freeze_until = 3;
    ck_assert_int_eq(train(&o, 0), 0);
    check_resumed("thaws", by_table);
}

/* Of a T5 with two blocks in each stack. */
static struct eps_train_options options_of_stacks(const char *out)
{
    static const char *const pairs[] = {"pairs.jsonl"};
    struct eps_train_options o = options_of(out);

    expect("for i in $(seq 40); do printf '{\"source\": \"%s+1\", \"target\": \"is %s\"}\\n' $i $((i + 1)); done "
           ">pairs.jsonl",
           0);
    processes_put_text("t5.json",
                       "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 40, \"num_layers\": 2, "
                       "\"num_decoder_layers\": 2, \"num_heads\": 4, \"vocab_size\": 256, "
                       "\"is_encoder_decoder\": true, \"decoder_start_token_id\": 0, \"eos_token_id\": 1}");
    o.model = "t5.json", o.data = pairs, o.eval_data = *pairs, o.source_seq = 8;
    return o;
}

/* Encoder blocks 0 and 1, decoder blocks 2 and 3: a step of both stacks' own, one without a decoder block. */
TEST(blocks_of_two_stacks_are_left_out_whoever_computes_them)
{
    struct eps_train_options o = options_of_stacks("stacks");

    o.on_blocks = of_stacks;
    o.parts = 2, o.deterministic = true;
    ck_assert_int_eq(train(&o, 0), 0);
    o.out = "stacks-killed", o.workers = 2;
    ck_assert_int_eq(train(&o, 4), 0);
    outputs_check_same_latest("stacks-killed", "stacks");
    check_resumed("stacks", of_stacks);
}

/* ---- what no step can be ---- */

static void none(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->n_computed = 0;
}

static void unknown(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->computed[1] = BLOCKS;
}

static void of_a_larger_model(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->n_blocks = UINT32_MAX, blocks->step = 9;
    blocks->computed[1] = 1000000;
}

static void twice(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->computed[1] = 0;
}

static void too_many(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->n_frozen = BLOCKS + 1;
}

static void frozen_and_left_out(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->n_computed = 2;
    blocks->frozen[0] = 3, blocks->n_frozen = 1;
}

static void all_frozen(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    memcpy(blocks->frozen, blocks->computed, BLOCKS * sizeof *blocks->frozen);
    blocks->n_frozen = blocks->step == 2 ? BLOCKS : 0;
}

static const struct {
    void (*on_blocks)(void *user, struct eps_step_blocks *blocks);
    const char *freeze, *said;
} impossible[] = {
    {none, NULL, "on_blocks of step 1: no block is named"},
    {unknown, NULL, "on_blocks of step 1: the model has no block 4"},
    {of_a_larger_model, NULL, "on_blocks of step 1: the model has no block 1000000"},
    {twice, NULL, "on_blocks of step 1: block 0 is named twice"},
    {too_many, NULL, "on_blocks of step 1: 5 blocks are more than the model has"},
    {frozen_and_left_out, NULL, "on_blocks of step 1: block 3 is frozen, and not computed"},
    {all_frozen, "w?e.*,ln_f.*", "on_blocks of step 2: nothing is left to train"},
};

static void across_stacks(void *user, struct eps_step_blocks *blocks)
{
    (void)user;
    blocks->computed[1] = 2, blocks->computed[2] = 1;
}

TEST_EACH(a_step_that_cannot_be_ends_the_run, COUNT(impossible))
{
    struct eps_train_options o = options_of(print("bad-%d", _i));

    o.on_blocks = impossible[_i].on_blocks;
    o.freeze = impossible[_i].freeze;
    ck_assert_int_eq(train(&o, 0), -EINVAL);
    expect_file("said", impossible[_i].said);
}

/* Block 1 is the encoder's last, block 2 the decoder's first. */
TEST(a_block_does_not_run_in_the_other_stack)
{
    struct eps_train_options o = options_of_stacks("across");

    o.on_blocks = across_stacks;
    ck_assert_int_eq(train(&o, 0), -EINVAL);
    expect_file("said", "on_blocks of step 1: block 2 cannot be computed in the place of block 1");
}
