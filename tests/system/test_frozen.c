/* eps train --freeze as a user has it: killed and resumed, saved, exported, planned, refused. */
#include "proto/model/safetensors.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", 20000);
    processes_config("tied.json", 3, 4, 32, 32);
    processes_config_with("untied.json", 3, 4, 32, 32, "\"tie_word_embeddings\": false, \"resid_pdrop\": 0.1");
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Part of a unit, tied units and whole lower layers; each in one of the two precisions. */
static const struct {
    const char *model, *freeze, *more;
} runs[] = {
    {"tied.json", "wte.weight 'h.*.mlp.*'", "--precision bf16 --moments bf16"},
    {"untied.json", "'wpe.*' --freeze 'wte.*,h.[01].*'", "--workers 2"},
    {"tied.json", "'*.weight'", "--commit fenced --clip-norm 0.5"},
};

static char *command_of(int run, const char *out, uint64_t steps)
{
    static char text[600];

    snprintf(text, sizeof text,
             "eps train --model %s --data data.txt --out %s --steps %" PRIu64
             " --batch 4 --seq 16 --schedule constant --warmup 0 --device cpu --save-every 2 --freeze %s %s",
             runs[run].model, out, steps, runs[run].freeze, runs[run].more);
    return text;
}

static bool is_saved(void *context)
{
    return access(context, F_OK) == 0;
}

/* Killed with more steps to come than there is time for, wherever it is by then. */
TEST_EACH(a_killed_run_resumes_bit_for_bit, COUNT(runs))
{
    const char *cut = print("cut-%d", _i), *whole = print("whole-%d", _i);
    char step[340];

    snprintf(step, sizeof step, "%s", processes_path(print("%s/step-4", cut)));
    const char *const argv[] = {"-c", print("PATH=" BIN_DIR ":$PATH exec %s", command_of(_i, cut, 1000000)), NULL};
    const pid_t client = processes_start("/bin/sh", argv, NULL);
    ck_assert(processes_until(is_saved, step));
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    const uint64_t end = outputs_latest(cut) + 3;
    expect(print("eps train --resume %s --steps %" PRIu64, cut, end), 0);
    expect(command_of(_i, whole, end), 0);
    outputs_check_same_latest(cut, whole);
}

static void open_weights(struct safetensors *out, int *fd, const char *directory)
{
    struct error err = {""};

    *fd = open(processes_path(print("%s/model.safetensors", directory)), O_RDONLY | O_CLOEXEC);
    ck_assert_msg(safetensors_open(out, *fd, &err) == 0, "%s", err.text);
}

/* Both have the tensor, and the same bits of it or not. */
static bool is_same(const struct safetensors_entry *entry, const struct safetensors *other)
{
    const struct safetensors_entry *there = safetensors_find(other, entry->name);
    float a[4096], b[4096];

    ck_assert_msg(there && there->n == entry->n, "%s", entry->name);
    for (uint64_t at = 0; at < entry->n; at += COUNT(a)) {
        const size_t n = entry->n - at < COUNT(a) ? (size_t)(entry->n - at) : COUNT(a);
        ck_assert_int_eq(safetensors_read(a, entry, at, n, NULL), 0);
        ck_assert_int_eq(safetensors_read(b, there, at, n, NULL), 0);
        if (memcmp(a, b, n * sizeof *a) != 0)
            return false;
    }
    return true;
}

static bool always(const char *name)
{
    (void)name;
    return true;
}

/* The patterns of run 0. */
static bool is_frozen(const char *name)
{
    return strstr(name, "wte.weight") || strstr(name, ".mlp.");
}

static void check_tensors(const char *directory, const char *other, bool (*is_kept)(const char *name))
{
    struct safetensors one, two;
    int fds[2];

    open_weights(&one, &fds[0], directory), open_weights(&two, &fds[1], other);
    ck_assert_uint_gt(one.n_entries, 20);
    for (size_t i = 0; i < one.n_entries; i++)
        ck_assert_msg(is_same(&one.entries[i], &two) == is_kept(one.entries[i].name), "%s", one.entries[i].name);
    safetensors_close(&one), safetensors_close(&two);
    close(fds[0]), close(fds[1]);
}

/* From weights in bf16, which are those that training begins with. */
TEST(frozen_tensors_stay_as_they_were_and_are_exported)
{
    expect("eps train --model tied.json --data data.txt --out begun --steps 1 --batch 4 --seq 16 --device cpu", 0);
    expect("eps export --model begun/latest --out given --dtype bf16", 0);
    expect("eps train --model given --data data.txt --out tuned --steps 4 --batch 4 --seq 16 --lr 1e-2 --device cpu "
           "--precision bf16 --freeze wte.weight 'h.*.mlp.*'",
           0, "frozen       wte.weight,h.*.mlp.*");
    check_tensors("given", "tuned/latest", is_frozen);
    expect("eps export --model tuned/latest --out exported", 0);
    check_tensors("tuned/latest", "exported", always);
    expect_file("tuned/latest/training.json", "\"freeze\":\"wte.weight,h.*.mlp.*\"");
    expect_absent("begun/latest/training.json", "freeze");
}

TEST(the_plan_says_what_it_saves)
{
    const char *line = "eps plan --model %s --batch 4 --seq 16 --device cpu --device-mem 64MiB %s --json";
    json_t *all = expect_json(print(line, "untied.json", ""), 0);
    json_t *some = expect_json(print(line, "untied.json", "--freeze 'lm_head.*' 'h.[01].*'"), 0);
    const json_t *frozen = json_object_get(some, "frozen");
    json_int_t host = 0, device = 0, parameters = 0;

    /* lm_head (256, 32); a block of 12 * 32^2 + 13 * 32 */
    ck_assert_int_eq(json_unpack((json_t *)(uintptr_t)frozen, "{s:I, s:I, s:I}", "host", &host, "device", &device,
                                 "parameters", &parameters),
                     0);
    ck_assert_int_eq(parameters, 256 * 32 + 2 * (12 * 32 * 32 + 13 * 32));
    const json_t *whole_host = json_object_get(all, "host"), *other_host = json_object_get(some, "host");
    ck_assert_int_eq(json_integer_value(json_object_get(whole_host, "current")) -
                         json_integer_value(json_object_get(other_host, "current")),
                     host);
    ck_assert_int_ge(host, 8 * parameters); /* both moments, and less room for the moments' checksums */
    ck_assert_int_ge(device, 0);
    ck_assert_ptr_null(json_object_get(all, "frozen"));
    json_decref(all), json_decref(some);
}

static const struct refusal refusals[] = {
    {"eps train --model tied.json --data data.txt --out no --freeze wpe.weight nothing", 2, "--freeze nothing",
     "matches no tensor"},
    {"eps train --model tied.json --data data.txt --out no --freeze '*'", 2, "--freeze *", "leave one to train"},
    {"eps plan --model tied.json --freeze lm_head.weight", 2, "--freeze lm_head.weight", "matches no tensor"},
    {"eps plan --model tied.json --freeze 'h.*' --find-depth", 2, "--find-depth", "--freeze"},
    {"eps plan --model tied.json --freeze '" /* 256 characters */
     "********************************************************************************************************"
     "********************************************************************************************************"
     "************************************************'",
     2, "--freeze", "256 characters"},
};

TEST_EACH(what_cannot_be_frozen_is_refused, COUNT(refusals))
{
    expect_refusal(&refusals[_i]);
}

TEST(a_resumed_run_keeps_its_frozen_tensors)
{
    expect("eps train --model tied.json --data data.txt --out kept --steps 1 --batch 4 --seq 16 --device cpu "
           "--freeze wte.weight",
           0);
    expect_refusal(&(struct refusal){"eps train --resume kept --steps 2 --freeze 'wpe.*'", 2, "--freeze wpe.*",
                                     "the run's wte.weight"});
    expect_refusal(&(struct refusal){"eps train --resume kept --steps 2 --freeze 'wpe.*' --change freeze", 2,
                                     "--change freeze", NULL});
    expect("eps train --resume kept --steps 2 --freeze wte.weight", 0, "frozen       wte.weight");
    expect("eps train --resume kept --steps 3", 0, "frozen       wte.weight");
}
