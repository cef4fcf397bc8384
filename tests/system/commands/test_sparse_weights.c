/* eps train --sparse as a user has it: how much of the weights is there, when places change, resumed, evaluated,
 * refused. That steps are PyTorch's: tests/system/exact/test_exact_training.c; how places change:
 * tests/eps/store/test_rewire.c; that no way to run it changes a bit: tests/system/invariants. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#define DATA   "--data data.txt --batch 4 --seq 16 --schedule constant --warmup 0 --device cpu "
#define TRAIN  "eps train --model tied.json " DATA
#define SPARSE "--sparse keep=0.3,every=3,until=12,moved=0.2 "

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_text("held.txt", 1600);
    processes_config("tied.json", 4, 4, 32, 32);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* ---- what is there ---- */

static uint64_t count_nonzero(const char *step, const char *name)
{
    struct outputs_tensors model;
    uint64_t n, found = 0;

    outputs_open_tensors(&model, step, "model.safetensors");
    const float *w = outputs_tensor(&model, name, &n);
    for (uint64_t i = 0; i < n; i++)
        found += w[i] != 0;
    outputs_close_tensors(&model);
    return found;
}

/* Checkpoints have whole matrices, of which three in ten elements are there, and moments of these alone. The number of
 * all stays when places change, before the steps that --sparse says. */
TEST(a_run_trains_a_share_of_its_weights)
{
    static const uint64_t sizes[] = {32 * 96, 32 * 32, 32 * 128, 128 * 32};
    static const char *const names[] = {"attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"};
    uint64_t n = 0, begun = 0;

    expect(TRAIN SPARSE "--lr 1e-2 --steps 14 --save-every 1 --keep 0 --out share -v", 0,
           "sparse       keep=0.3,every=3,until=12,moved=0.2, of blocks' matrices", "(as planned)");
    for (int step = 1; step <= 14; step += 13) {
        n = 0;
        for (int block = 0; block < 4; block++)
            for (int i = 0; i < 4; i++)
                n += count_nonzero(print("share/step-%d", step), print("transformer.h.%d.%s.weight", block, names[i]));
        for (int i = 0; i < 4; i++)
            begun += step == 1 ? 4 * (sizes[i] * 3 / 10) : 0;
        ck_assert_uint_eq(n, begun);
    }
    for (int step = 1; step <= 13; step++) {
        const char *line = print("epsd: step %d: ", step);
        expect(print("grep -c '%s.*sparse weights' share/log || true", line), 0,
               step % 3 == 0 && step <= 12 ? "1" : "0");
    }
    expect(TRAIN "--steps 1 --out dense", 0);
    expect("test $(stat -c %s share/latest/optimizer.safetensors) -lt "
           "$(($(stat -c %s dense/latest/optimizer.safetensors) * 6 / 10))",
           0);
}

/* ---- bits ---- */

/* Where it ends and goes on, and what it saves between, makes no difference. */
TEST(a_run_goes_on_as_if_it_had_never_stopped)
{
    expect(TRAIN SPARSE "--lr 1e-2 --steps 14 --out whole", 0);
    for (int end = 5; end <= 6; end++) { /* one of them between two steps at which places change */
        expect(print(TRAIN SPARSE "--lr 1e-2 --steps %d --out cut-%d && eps train --resume cut-%d --steps 14", end, end,
                     end),
               0);
        outputs_check_same_latest("whole", print("cut-%d", end));
    }
    expect(TRAIN SPARSE "--lr 1e-2 --steps 14 --save-every 1 --out saved", 0);
    outputs_check_same_latest("whole", "saved");
}

/* A run that ends where a longer one's places would have changed: they are left, and change when it is next time. */
TEST(a_run_that_is_made_longer_leaves_the_places_at_which_it_ended)
{
    expect(TRAIN "--sparse keep=0.3,every=2 --steps 4 --out cut && eps train --resume cut --steps 8", 0);
    for (int step = 2; step <= 8; step += 2)
        expect(print("grep -c 'epsd: step %d: .*sparse weights' cut/log || true", step), 0,
               step == 2 || step == 6 ? "1" : "0");
}

/* ---- what is evaluated, planned, refused ---- */

TEST(whoever_reads_a_checkpoint_sees_whole_matrices)
{
    expect(TRAIN SPARSE "--eval-data held.txt --steps 5 --out evaluated", 0);
    outputs_check_held_out("evaluated", "--data held.txt --seq 16 --device cpu");
}

/* Of a model of which each matrix has as many weights as a run begins with, all of them stay. */
TEST(the_largest_weights_of_a_model_stay)
{
    expect(TRAIN "--sparse keep=0.3,every=0 --steps 5 --out given", 0);
    expect("eps train --model given/latest " DATA "--sparse keep=0.3 --lr 1e-12 --steps 1 --out again", 0);
    json_t *given = expect_json("eps eval --model given/latest --data held.txt --seq 16 --device cpu --json", 0);
    json_t *again = expect_json("eps eval --model again/latest --data held.txt --seq 16 --device cpu --json", 0);
    ck_assert_double_eq_tol(json_number_at(again, "loss"), json_number_at(given, "loss"), 1e-6);
    json_decref(given), json_decref(again);
}

static const struct refusal refusals[] = {
    {TRAIN "--out no --sparse 0.3", 2, "--sparse 0.3", "it takes keep=X"},
    {TRAIN "--out no --sparse keep=1", 2, "--sparse keep=1", "from 0.0001 and below 1"},
    {TRAIN "--out no --sparse every=5", 2, "--sparse", "add keep=0.3"},
    {TRAIN "--out no --sparse keep=0.3,", 2, "--sparse", "commas"},
    {TRAIN "--out no --sparse keep=0.3,keep=0.4", 2, "--sparse keep=0.4", "each once"},
    {TRAIN "--out no --sparse keep=0.3,room=0.5", 2, "--sparse room=0.5", "a factor from 1 to 10000"},
    {TRAIN "--out no --sparse keep=0.3,moved=2", 2, "--sparse moved=2", "above 0 and below 1"},
    {TRAIN "--out no --sparse keep=0.3,every=-1", 2, "--sparse every=-1", "a number of steps"},
    {TRAIN "--out no --sparse keep=0.3,until=0", 2, "--sparse until=0", "a number of steps"},
    {TRAIN "--out no --sparse keep=0.3 --freeze wte.* --freeze-until 2 --steps 4", 2, "--freeze-until 2", "--sparse"},
    {TRAIN "--out no --sparse keep=0.3 --freeze h.*", 2, "--sparse", "no matrix of this model can be sparse"},
    {"eps train --model kept/latest " DATA "--out no --sparse keep=0.3 --lora rank=2", 2, "--sparse",
     "no matrix of this model can be sparse"},
    {"eps train --resume kept --steps 2 --sparse keep=0.5", 2, "--sparse keep=0.5", "the run's keep=0.3"},
    {"eps train --resume kept --steps 2 --grow 1 --out no", 2, "--grow", "--sparse"},
    {"eps train --resume kept --steps 2 --replace 0=64 --out no", 2, "--replace", "--sparse"},
};

TEST(what_cannot_be_sparse_is_refused)
{
    expect(TRAIN "--out kept --steps 1 --sparse keep=0.3", 0);
    for (int i = 0; i < COUNT(refusals); i++)
        expect_refusal(&refusals[i]);
}
