/* eps train --freeze-until as a user has it: what the thawed run equals, changed, planned, refused. That no way to run
 * it changes a bit: tests/system/invariants. */
#include "proto/model/file/checkpoint.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define DATA  "--data data.txt --batch 4 --seq 16 --lr 1e-3 --schedule constant --warmup 0 "
#define OWN   DATA "--device cpu --device-mem 8MiB "
#define TRAIN "eps train --model gpt2.json " OWN
#define FROZE "--freeze 'h.*.mlp.*' wte.weight "

enum { THAW = 3, STEPS = 8 };

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config("gpt2.json", 3, 4, 32, 32);
    expect(TRAIN "--steps 1 --out base", 0);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- by hand ---- */

enum { MOST = 128 };

/* What a run whose tensors were never frozen would have saved, had their moments stayed zero and uncounted: the moments
 * of `from` and zeros for all that has none. */
static void write_moments(const char *from, const char *to)
{
    struct outputs_tensors weights, moments;
    struct safetensors_plan plan[1 + 2 * MOST];
    struct safetensors_writer writer;
    static char names[2 * MOST][96];
    int64_t counts[MOST];
    size_t n = 1;

    outputs_open_tensors(&weights, from, CHECKPOINT_WEIGHTS);
    outputs_open_tensors(&moments, from, CHECKPOINT_MOMENTS);
    const struct safetensors_entry *updates = safetensors_find(&moments.file, "updates");
    ck_assert(updates && updates->n <= MOST && weights.file.n_entries <= MOST);
    ck_assert_int_eq(safetensors_read_counts(counts, updates, 0, updates->n, NULL), 0);
    plan[0] = (struct safetensors_plan){"updates", 1, {updates->n, 1}, SAFETENSORS_I64};
    for (size_t i = 0; i < 2 * weights.file.n_entries; i++, n++) {
        const struct safetensors_entry *entry = &weights.file.entries[i / 2];
        snprintf(names[i], sizeof names[i], "%c.%s", i % 2 ? 'v' : 'm', entry->name);
        plan[n] = (struct safetensors_plan){names[i],
                                            entry->n_dims,
                                            {entry->shape[0], entry->n_dims > 1 ? entry->shape[1] : 1},
                                            SAFETENSORS_F32};
    }
    const int fd = open(print("%s/" CHECKPOINT_MOMENTS, to), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(safetensors_begin(&writer, fd, plan, n, NULL), 0);
    ck_assert_int_eq(safetensors_append(&writer, counts, updates->n * sizeof *counts, NULL), 0);
    for (size_t i = 1; i < n; i++) {
        static const float zeros[8192];
        const uint64_t n_values = plan[i].shape[0] * plan[i].shape[1];
        uint64_t n_found = n_values;
        const bool found = safetensors_find(&moments.file, plan[i].name);
        const float *values = found ? outputs_tensor(&moments, plan[i].name, &n_found) : zeros;
        ck_assert(n_found == n_values && n_values <= COUNT(zeros));
        ck_assert_int_eq(safetensors_append(&writer, values, n_values * sizeof *values, NULL), 0);
    }
    ck_assert_int_eq(safetensors_end(&writer, NULL), 0);
    close(fd);
    outputs_close_tensors(&weights);
    outputs_close_tensors(&moments);
}

/* Its training.json: no options but what such a run would have had, and the new file's checksum. */
static void write_training(const char *from, const char *to)
{
    const int from_fd = open(from, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int fd = open(print("%s/" CHECKPOINT_MOMENTS, to), O_RDONLY | O_CLOEXEC);
    struct checkpoint was, is = {0};
    static char bytes[1 << 20];

    ck_assert(from_fd >= 0 && fd >= 0 && checkpoint_read(&was, from_fd, NULL) == 0);
    const ssize_t n = read(fd, bytes, sizeof bytes);
    ck_assert(n > 0 && (size_t)n < sizeof bytes);
    is.step = was.step;
    is.options = json_deep_copy(was.options);
    json_object_del(is.options, "freeze");
    json_object_set_new(is.options, "base", json_string("full"));
    for (size_t i = 0; i < was.n_files; i++) {
        const struct checkpoint_file *file = &was.files[i];
        const bool is_new = strcmp(file->name, CHECKPOINT_MOMENTS) == 0;
        struct checkpoint_file *added = checkpoint_add_file(&is, file->name, is_new ? (uint64_t)n : file->bytes);
        if (is_new)
            ck_assert_int_eq(checkpoint_add_run(added, 0, (uint64_t)n, checkpoint_hash(bytes, (size_t)n)), 0);
        for (size_t k = 0; !is_new && k < file->n_runs; k++)
            checkpoint_add_run(added, file->runs[k].offset, file->runs[k].bytes, file->runs[k].hash);
    }
    char *text = checkpoint_print(&is);
    outputs_write(to, CHECKPOINT_TRAINING, text);
    free(text);
    checkpoint_free(&was), checkpoint_free(&is);
    close(from_fd), close(fd);
}

/* "updates" of a checkpoint: how many are of a thawed tensor. Two tables, 12 tensors of each block, two of the last
 * norm. */
static void check_counts(const char *step)
{
    struct outputs_tensors moments;
    int64_t counts[2 + 12 * 3 + 2];

    outputs_open_tensors(&moments, step, CHECKPOINT_MOMENTS);
    const struct safetensors_entry *entry = safetensors_find(&moments.file, "updates");
    ck_assert(entry && entry->n == COUNT(counts));
    ck_assert_int_eq(safetensors_read_counts(counts, entry, 0, entry->n, NULL), 0);
    for (int i = 0; i < COUNT(counts); i++) {
        const bool mlp = i >= 2 && i < 2 + 12 * 3 && (i - 2) % 12 >= 8; /* the last four of a block */
        ck_assert_int_eq(counts[i], mlp || i == 0 ? STEPS - THAW : STEPS);
    }
    outputs_close_tensors(&moments);
}

static const char *const forms[] = {
    "",
    "--base nf4 --precision bf16 --moments bf16",
    "--clip-norm 0.5 --workers 2 --parts 2",
    "--clip-update 0.01 --drop-layers 0.3",
    "--optimizer adama --parts 2 --microbatch 1",
};

/* The run that thaws by itself is the one that was frozen to its end, whose checkpoint is completed here and resumed as
 * that of a run in which nothing was ever frozen. */
TEST_EACH(a_thawed_run_is_one_resumed_with_fresh_moments, COUNT(forms))
{
    char once[20], frozen[20], from[40], to[40];

    snprintf(once, sizeof once, "once-%d", _i);
    snprintf(frozen, sizeof frozen, "frozen-%d", _i);
    snprintf(from, sizeof from, "%s/step-%d", frozen, THAW);
    snprintf(to, sizeof to, "hand-%d/step-%d", _i, THAW);
    expect(print(TRAIN FROZE "%s --deterministic --steps %d --freeze-until %d --save-every 0 --out %s", forms[_i],
                 STEPS, THAW, once),
           0, "until step 3 is done", "after step 3, --freeze-until: h.*.mlp.*,wte.weight is frozen no more",
           "held out");
    expect(print(TRAIN FROZE "%s --deterministic --steps %d --save-every %d --keep 0 --out %s", forms[_i], STEPS, THAW,
                 frozen),
           0);
    expect(print("mkdir hand-%d && cp -r %s hand-%d", _i, from, _i), 0);
    write_moments(from, to);
    write_training(from, to);
    expect(print("eps train --resume hand-%d", _i), 0);
    outputs_check_same_latest(once, print("hand-%d", _i));
    if (!strstr(forms[_i], "drop")) /* a dropped block is not updated */
        check_counts(print("%s/step-%d", once, STEPS));
    expect(print("wc -l <%s/metrics.jsonl && eps verify %s && ls -d %s/step-*", once, once, once), 0,
           print("%d\n", STEPS), "step-3", "step-8");
}

/* ---- resumed ---- */

/* Frozen blocks have no norms of gradients in the checkpoint before the thaw, the others have. */
TEST(norms_of_thawed_blocks_begin_at_zero)
{
    processes_config_with("relu.json", 3, 4, 32, 32, "\"activation_function\": \"relu\"");
    processes_text("few.txt", 400); /* read several times */
    expect("eps train --model relu.json --data few.txt --batch 4 --seq 16 --device cpu --approximate wta=0.3 "
           "--freeze 'h.0.*' h.1.mlp.c_proj.weight --steps 8 --freeze-until 3 --save-every 1 --keep 0 --out norms",
           0, "norms of gradients are remembered for 2 matrices", "norms of gradients are remembered for 3 matrices");
    for (int step = 3; step < 6; step += 2) {
        expect(print("cp -r norms again-%d && rm -r again-%d/step-[%d-8] && eps train --resume again-%d", step, step,
                     step + 1, step),
               0);
        outputs_check_same_latest("norms", print("again-%d", step));
    }
}

/* ---- changed, grown, adapted ---- */

/* Thawed where the run stopped; later than it would have been; and in a run that was to stay frozen. */
TEST(the_thaw_of_a_resumed_run_may_move)
{
    expect(print(TRAIN FROZE "--steps %d --freeze-until %d --out moved", STEPS, THAW), 0);
    expect(print(TRAIN FROZE "--steps %d --freeze-until 2 --keep 0 --save-every 1 --out early", STEPS), 0);
    expect(print("rm -r early/step-[3-8] && eps train --resume early --change freeze-until --freeze-until %d", THAW), 0,
           "freeze-until 2 to 3");
    outputs_check_same_latest("moved", "early");
    expect(print(TRAIN FROZE "--steps %d --keep 0 --save-every 1 --out never", STEPS), 0);
    expect("rm -r never/step-[2-8] && eps train --resume never --change freeze-until --freeze-until 3", 0);
    outputs_check_same_latest("moved", "never");
}

TEST(adapters_thaw_and_a_thawed_run_grows)
{
    expect("eps train --model base/latest --lora rank=2 " OWN
           "--freeze '*.lora_A.*' --base int8 --steps 4 --freeze-until 2 "
           "--out lora",
           0, "is frozen no more");
    expect(TRAIN FROZE "--steps 4 --freeze-until 2 --keep 0 --save-every 1 --out grows", 0);
    expect_sentence("eps train --resume grows/step-2 --grow 1 --out grown", 2, "has frozen tensors, by --freeze");
    expect("eps train --resume grows/step-3 --grow 1 --steps 5 --out grown", 0, "held out");
    expect("eps verify grown", 0, "step-5");
}

/* ---- planned, refused ---- */

TEST(a_plan_is_of_both_forms)
{
    json_t *both =
        expect_json("eps plan --model gpt2.json --seq 16 --batch 4 --device-mem 8MiB --json " FROZE "--freeze-until 3",
                    0);
    json_t *frozen = expect_json("eps plan --model gpt2.json --seq 16 --batch 4 --device-mem 8MiB --json " FROZE, 0);
    json_t *all = expect_json("eps plan --model gpt2.json --seq 16 --batch 4 --device-mem 8MiB --json", 0);

    ck_assert_double_eq(json_number_at(both, "host.current"), json_number_at(frozen, "host.current"));
    ck_assert_double_gt(json_number_at(both, "thawed.host"), json_number_at(all, "host.current")); /* it reads files */
    ck_assert_double_eq(json_number_at(both, "thawed.device"), json_number_at(all, "workers.0.current"));
    ck_assert_double_eq(json_number_at(both, "disk.checkpoint"), json_number_at(all, "disk.checkpoint"));
    ck_assert_double_gt(json_number_at(all, "host.current"), json_number_at(frozen, "host.current"));
    expect("eps plan --model gpt2.json --seq 16 --batch 4 --device-mem 8MiB " FROZE "--freeze-until 3", 0,
           "thawed      after step 3: host ");
    json_decref(both), json_decref(frozen), json_decref(all);
}

/* Between what the two forms take, both commands refuse before anything is trained; a run that stays frozen fits. */
TEST(a_run_that_has_no_room_once_it_is_thawed_is_refused_before_its_first_step)
{
#define ROOM "--batch 4 --seq 16 --device-mem 8MiB --host-mem 700KiB "
    expect("eps plan --model gpt2.json " ROOM FROZE, 0, "fits        yes");
    expect("eps plan --model gpt2.json " ROOM FROZE "--freeze-until 3", 1, "stay frozen");
    expect_sentence("eps train --model gpt2.json --data data.txt --device cpu " ROOM FROZE
                    "--freeze-until 3 --steps 4 --out no >/dev/null",
                    1, "leave --freeze-until out, and they stay frozen");
    expect("ls -d no", 2);
}

static bool plan_fits(const char *run, int bytes)
{
    json_t *plan = expect_json(print("eps plan --json %s --host-mem %d || [ $? -eq 1 ]", run, bytes), 0);
    const bool fits = json_is_true(json_at(plan, "fits"));

    json_decref(plan);
    return fits;
}

/* The least host memory that a plan finds enough is enough for both jobs, a byte less for none: the second one, which
 * needs more, also reads the headers of the first one's checkpoint. */
TEST_EACH(the_least_host_memory_lasts_through_a_thaw, 2)
{
    static const char *const runs[] = {"--batch 4 --seq 16 --device-mem 8MiB --freeze-until 2 --model gpt2.json " FROZE,
                                       "--batch 4 --seq 16 --device-mem 8MiB --freeze-until 2 --model base/latest "
                                       "--lora rank=2 --freeze '*.lora_A.*'"};
    const char *const run = runs[_i];
    int least = 0, most = 4 << 20;

    ck_assert(plan_fits(run, most));
    while (most - least > 1) {
        const int middle = (least + most) / 2;
        *(plan_fits(run, middle) ? &most : &least) = middle;
    }
    expect(print("eps train --data data.txt --device cpu %s --steps 4 --out tight-%d --host-mem %d", run, _i, most), 0,
           "is frozen no more", "held out");
    expect_sentence(print("eps train --data data.txt --device cpu %s --steps 4 --out over --host-mem %d >/dev/null",
                          run, most - 1),
                    1, "leave --freeze-until out, and they stay frozen");
    expect("ls -d over", 2);
}

/* Likewise for want of the norms that blocks remember once they are thawed: of the first steps, all blocks are
 * frozen. */
TEST(norms_of_the_thawed_form_are_counted_before_the_first_step)
{
    static const char run[] = "--model relu.json --batch 4 --seq 16 --device-mem 8MiB --freeze 'h.*' --freeze-until 3 "
                              "--approximate wta=0.3";

    processes_config_with("relu.json", 3, 4, 32, 32, "\"activation_function\": \"relu\"");
    json_t *plan = expect_json(print("eps plan --json %s --data-tokens 20000", run), 0);
    const int bytes = (int)json_number_at(plan, "thawed.host");
    json_decref(plan);
    expect_sentence(print("eps train --data data.txt --device cpu %s --steps 400 --out none --host-mem %d >/dev/null",
                          run, bytes - 400 * 1024),
                    1, "leave --freeze-until out, and they stay frozen");
    expect("ls -d none", 2);
}

/* Rows that a plan computes at once. */
static int microbatch_of(int kib, const char *options)
{
    json_t *plan =
        expect_json(print("eps plan --json --model gpt2.json --batch 4 --seq 32 --device-mem %dKiB %s", kib, options),
                    0);
    const int n = (int)json_number_at(plan, "choice.microbatch");

    json_decref(plan);
    return n;
}

/* In the least memory where the frozen form alone would compute more rows at once than the other one, both compute the
 * latter's. */
TEST(both_forms_have_one_microbatch)
{
    int kib = 2550, n = 0;

    while (kib < 2800 && (n = microbatch_of(kib, "")) == microbatch_of(kib, FROZE))
        kib += 5;
    ck_assert_int_lt(kib, 2800);
    expect(print("eps train --model gpt2.json --data data.txt --batch 4 --seq 32 --device cpu --device-mem %dKiB " FROZE
                 "--steps 4 --freeze-until 2 --save-every 2 --out narrow",
                 kib),
           0);
    ck_assert_int_eq(microbatch_of(kib, FROZE "--freeze-until 2"), n);
    expect_file("narrow/step-2/training.json", print("\"microbatch\":%d,", n));
    expect_file("narrow/step-4/training.json", print("\"microbatch\":%d,", n));
}

static const struct refusal refusals[] = {
    {TRAIN "--steps 4 --out no --freeze-until 2", 2, "--freeze-until 2 is for frozen tensors",
     "name them with --freeze"},
    {TRAIN "--steps 4 --out no " FROZE "--freeze-until 0", 2, "--freeze-until '0'", NULL},
    {TRAIN "--steps 4 --out no " FROZE "--freeze-until 4", 2, "--freeze-until 4 is not below the run's 4 steps", NULL},
    {TRAIN "--steps 4 --out no " FROZE "--freeze-until 2 --trace x", 2, "--freeze-until 2 does not go with --trace",
     NULL},
    {"eps train --model gpt2.json --data - --eval-data data.txt --seq 16 <data.txt --steps 4 --out no " FROZE
     "--freeze-until 2",
     2, "standard input can be read once", "name a file"},
    {"eps plan --model gpt2.json --freeze-until 2", 2, "--freeze-until 2 is for frozen tensors", NULL},
    {"eps train --resume kept --steps 5 --freeze-until 3", 2, "--freeze-until 3", "the run's 2"},
    {"eps train --resume kept --steps 5 --change freeze-until --freeze-until 4", 2, "trained all tensors since step 2",
     NULL},
    {"eps train --resume stays --steps 5 --change freeze-until --freeze-until 1", 2, "--freeze-until 1",
     "choose 3 or more"},
};

TEST(what_cannot_thaw_is_refused)
{
    expect(TRAIN FROZE "--freeze-until 2 --steps 3 --out kept", 0);
    expect(TRAIN FROZE "--steps 3 --out stays", 0);
    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
    expect("eps train --resume kept --steps 5 --freeze-until 2", 0, "held out");
    expect_absent("stays/latest/training.json", "freeze_until");
}
