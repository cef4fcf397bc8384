/* eps plan without a model: each row against eps plan --model, and the device that the rows are of. */
#include "client/eps.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A GPU with room for some models only, and so has its host. Short rows make small searches. */
#define DEVICE "--device cuda --device-mem 6GB --host-mem 24GiB"
#define SHORT  " --seq 64 --batch 1"

static void setup(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1); /* no profile of this machine */
    setenv("CUDA_VISIBLE_DEVICES", "", 1);                /* nor its GPU */
    ck_assert_int_eq(mkdir(processes_path("m"), 0700), 0);
    expect("mkdir gpu; cp " BIN_DIR "/eps gpu", 0);
}

SUITE_LABELS(long)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static json_t *table_of(const char *options)
{
    return expect_json(print("eps plan --json %s", options), 0);
}

static const char *text_at(json_t *row, const char *path)
{
    return json_string_value(json_at(row, path));
}

/* The row's own command with another model, "eps plan --model m --lora rank=16 ..." */
static const char *command_for(json_t *row, const char *command, const char *model)
{
    const char *words = text_at(row, print("commands.%s", command)), *name = text_at(row, "model");
    const char *at = strstr(words, name);

    ck_assert_ptr_nonnull(at);
    return print("%.*s%s%s", (int)(at - words), words, model, at + strlen(name));
}

/* A row's `why` is that of eps plan up to its remedy. */
static void expect_same(json_t *row, json_t *plan, const char *command)
{
    json_t *const mine = json_deep_copy(json_at(row, "plan"));
    const char *brief = json_string_value(json_object_get(mine, "why")), *whole = text_at(plan, "why");

    ck_assert_msg(strncmp(whole, brief, strlen(brief)) == 0, "%s: %s: %s", command, brief, whole);
    json_object_set(mine, "why", json_at(plan, "why"));
    ck_assert_msg(json_equal(mine, plan), "%s", command);
    json_decref(mine);
}

TEST(each_row_is_what_eps_plan_says_of_a_directory_with_its_config)
{
    json_t *table = table_of(DEVICE SHORT), *row;
    size_t i, n_fit = 0;

    json_array_foreach(json_at(table, "rows"), i, row)
    {
        const struct eps_published *p = eps_published(i / 3);
        ck_assert_str_eq(text_at(row, "model"), p->name);
        ck_assert_str_eq(text_at(row, "trained"), ((const char *[]){"whole", "adapters", "adapters on nf4"})[i % 3]);
        ck_assert_str_eq(text_at(row, "published.config"),
                         print("https://huggingface.co/%s/blob/main/config.json", p->name));
        processes_put_text("m/config.json", p->config);
        /* An adapter names its base's directory, which takes some bytes of the host: so its config is named alone. */
        const char *command = command_for(row, "plan", i % 3 ? "m/config.json" : "m");
        const bool fits = json_is_true(json_at(row, "plan.fits"));
        json_t *plan = expect_json(print("%s --json", command), fits ? 0 : 1);
        expect_same(row, plan, command);
        json_decref(plan);
        n_fit += fits;
    }
    ck_assert_uint_eq(i % 3, 0);
    ck_assert_ptr_null(eps_published(i / 3));
    ck_assert(n_fit > 10 && n_fit + 10 < i); /* both kinds are compared */
    json_decref(table);
}

/* Nothing of the kind is there. */
TEST(a_row_of_the_table_is_planned_by_its_name_alone)
{
    json_t *table = table_of(DEVICE SHORT), *row = json_array_get(json_at(table, "rows"), 4);
    json_t *plan = expect_json(print("%s --json", text_at(row, "commands.plan")), 0);

    expect_same(row, plan, text_at(row, "commands.plan"));
    json_decref(plan);
    json_decref(table);
}

TEST(the_text_has_every_row_and_of_those_that_fit_the_command)
{
    json_t *table = table_of(DEVICE SHORT), *row;
    size_t i;

    expect("eps plan " DEVICE SHORT, 0, " cores", "no CUDA device",
           "planned for   cuda with 5.6 GiB, host memory of 24.0 GiB", "*             estimated",
           "google-bert/bert-base-uncased, 109.5 M parameters, 1 row of 64 tokens a step\n");
    char *const text = strdup(command_out());
    json_array_foreach(json_at(table, "rows"), i, row)
    {
        char bytes[2][24];
        const double device = json_number_at(row, "plan.workers.0.current"),
                     host = json_number_at(row, "plan.host.current");
        const bool fits = json_is_true(json_at(row, "plan.fits"));
        const char *train = text_at(row, "commands.train");
        const char *line =
            print("  %-4s %10s  %10s  ", fits ? "yes" : "no", eps_format_bytes(bytes[0], (uint64_t)device),
                  eps_format_bytes(bytes[1], (uint64_t)host));
        ck_assert_msg(strstr(text, line) != NULL, "%s", line);
        ck_assert_msg((strstr(text, print("  %s\n", train)) != NULL) == fits, "%s", train);
    }
    ck_assert_holds(text, "  host needs ", ", has 24.0 GiB\n");
    free(text);
    json_decref(table);
}

/* What eps train does not have is left out; the data's name is the user's to fill in. */
TEST(a_command_has_the_options_that_were_given)
{
    json_t *table = table_of("--card=rtx-4090 --data-tokens 5 --moments bf16 --host-mem 1TiB" SHORT);

    ck_assert_str_eq(text_at(table, "rows.0.commands.train"),
                     "eps train --model google-bert/bert-base-uncased --task classify --moments bf16 --host-mem 1TiB "
                     "--seq 64 --batch 1 --data FILE");
    json_decref(table);
}

/* eps trains on the second device of tests/kit/preload/nvml.c, of whose 24 GiB 20 are free: 31/32 of these are a
 * worker's. */
#define GPU "LD_LIBRARY_PATH=" BIN_DIR "/nvml gpu/eps plan --host-mem 24GiB" SHORT

TEST(rows_are_of_this_machines_gpu_that_eps_trains_on)
{
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    expect("touch gpu/eps-cuda.so", 0);
    json_t *table = expect_json(GPU " --json", 0), *devices = json_at(table, "machine.devices");
    ck_assert_uint_eq(json_array_size(devices), 2);
    ck_assert(json_is_false(json_at(devices, "0.computes")) && json_is_true(json_at(devices, "1.computes")));
    ck_assert_str_eq(text_at(devices, "0.why"), "its compute capability is below 8.0");
    ck_assert_double_eq(json_number_at(devices, "1.available"), 20.0 * (1 << 30));
    json_t *row = json_array_get(json_at(table, "rows"), 0);
    ck_assert_str_eq(text_at(row, "commands.plan"),
                     "eps plan --model google-bert/bert-base-uncased --task classify --device cuda --device-mem "
                     "20803747840 --card rtx-4090 --host-mem 24GiB --seq 64 --batch 1");
    ck_assert_str_eq(text_at(row, "commands.train"), "eps train --model google-bert/bert-base-uncased --task classify "
                                                     "--host-mem 24GiB --seq 64 --batch 1 --data FILE");
    json_t *plan = expect_json(print("%s --json", text_at(row, "commands.plan")), 0);
    expect_same(row, plan, text_at(row, "commands.plan"));
    json_decref(plan);
    json_decref(table);
    expect(GPU, 0, "Tesla T4, 15.0 GiB of 16.0 GiB free, not used: its compute capability is below 8.0\n",
           "NVIDIA GeForce RTX 4090, 20.0 GiB of 24.0 GiB free\n", "planned for   cuda with 19.4 GiB");
}

/* What the environment shows, what this build can, what is asked for. */
TEST(rows_are_of_the_cpu_where_no_gpu_computes_and_of_the_device_that_is_named)
{
    static const struct {
        const char *before, *options, *visible, *holds;
    } cases[] = {
        {"touch gpu/eps-cuda.so", "", "0", "planned for   cpu with "},
        {"true", "", "GPU-1b", "planned for   cuda with 19.4 GiB"},
        {"true", "", "-1", "no CUDA device\n"},
        {"true", "--device cpu", "0,1", "planned for   cpu with "},
        {"true", "--device cpu --device-mem 3GiB", "0,1", "planned for   cpu with 3.0 GiB"},
        {"true", "--device-mem 3GiB", "0,1", "planned for   cuda with 3.0 GiB"},
        {"true", "--device-mem 3GiB", "", "planned for   cuda with 3.0 GiB"},
        {"true", "--card h100", "0,1", "planned for   cuda with 77.5 GiB"},
        {"rm gpu/eps-cuda.so", "", "0,1", "20.0 GiB of 24.0 GiB free, not used: this build of eps has no CUDA\n"},
    };

    for (int i = 0; i < COUNT(cases); i++) {
        setenv("CUDA_VISIBLE_DEVICES", cases[i].visible, 1);
        expect(cases[i].before, 0);
        expect(print(GPU " %s", cases[i].options), 0, cases[i].holds);
    }
}

/* As eps train chooses it. The card's rates are known, though nobody has measured them here. */
TEST(a_plan_of_one_model_is_for_the_device_that_the_rows_are_of)
{
    setenv("CUDA_VISIBLE_DEVICES", "0,1", 1);
    expect("touch gpu/eps-cuda.so", 0);
    json_t *found = expect_json(GPU " --model byte-small --json", 0);
    json_t *named = expect_json("eps plan --host-mem 24GiB" SHORT " --model byte-small --device cuda --device-mem "
                                "20803747840 --card rtx-4090 --json",
                                0);
    ck_assert_str_eq(text_at(found, "workers.0.device"), "cuda");
    ck_assert(json_equal(found, named));
    json_decref(named);
    json_decref(found);
    expect("rm gpu/eps-cuda.so; " GPU " --model byte-small", 0, "on 1 cpu worker;");
}

TEST(on_a_narrow_terminal_a_command_has_a_line_of_its_own)
{
    static const char command[] = "eps train --model openai-community/gpt2 --lora rank=16 --device cuda";

    ck_assert_holds(expect_on_terminal("eps plan " DEVICE SHORT, 0, 80), print("adapters       \r\n      %s", command));
    ck_assert_holds(expect_on_terminal("eps plan " DEVICE SHORT, 0, 160), print("adapters         %s", command));
}

/* An option that no model takes is the command's; one that some do not take is theirs. */
TEST(options_that_a_model_refuses_are_said_in_its_row)
{
    json_t *table = table_of(DEVICE " --batch 1 --seq 600");

    ck_assert_str_eq(text_at(table, "rows.0.refusal"), "--seq 600 is more than the model's 512 positions");
    ck_assert(json_is_true(json_at(table, "rows.3.plan.fits")));
    json_decref(table);
    expect("eps plan " DEVICE " --batch 1 --seq 600", 0, "command\ngoogle-bert/bert-base-uncased, 109.5 M parameters\n",
           "\n  no   whole: --seq 600 is more than the model's 512 positions\n");
}
