/* eps plan as it is called: what it prints, and what it answers to programs. What it refuses: test_cli. */
#include "proto/operation/backend.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static void setup(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1); /* no profile of this machine */
    processes_config("tiny.json", 6, 2, 64, 64);
    /* GPT-2's shape, beside a file of weights, of which a plan asks no more than that it is there. */
    expect("mkdir given && printf '\\2\\0\\0\\0\\0\\0\\0\\0{}' >given/model.safetensors", 0);
    processes_config_with("given/config.json", 12, 12, 768, 1024, "\"vocab_size\": 50257");
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

static json_t *plan_json(int status, const char *options)
{
    return expect_json(print("eps plan --json %s", options), status);
}

static uint64_t bytes_at(json_t *object, const char *path)
{
    return (uint64_t)json_number_at(object, path);
}

static uint64_t printed_number(const char *options)
{
    char *end;

    expect(print("eps plan %s", options), 0);
    const uint64_t number = strtoull(command_out(), &end, 10);
    ck_assert_str_eq(end, "\n");
    return number;
}

/* How one side's object adds up. */
static void check_side(json_t *side)
{
    const char *name;
    json_t *category;
    double sum = 0;

    json_object_foreach(json_at(side, "categories"), name, category)
    {
        ck_assert_double_gt(json_number_at(category, "current"), 0);
        ck_assert_double_eq(json_number_at(category, "current"), json_number_at(category, "peak"));
        sum += json_number_at(category, "current");
    }
    ck_assert_double_eq(json_number_at(side, "current"), sum);
    ck_assert_double_eq(json_number_at(side, "peak"), sum);
}

TEST(json_has_both_sides_the_choice_and_the_traffic)
{
    json_t *all = plan_json(0, "--model tiny.json --batch 8 --workers 2 --device-mem 64MiB");

    ck_assert(json_is_true(json_at(all, "fits")));
    ck_assert_str_eq(json_string_value(json_at(all, "why")), "");
    check_side(json_at(all, "host"));
    ck_assert_uint_eq(json_array_size(json_at(all, "workers")), 2);
    for (unsigned i = 0; i < 2; i++) {
        json_t *worker = json_at(all, print("workers.%u", i));
        check_side(worker);
        ck_assert_uint_eq(bytes_at(worker, "id"), i + 1);
        ck_assert_str_eq(json_string_value(json_at(worker, "device")), "cpu");
        ck_assert_uint_eq(bytes_at(worker, "budget"), 64 << 20);
        ck_assert_uint_le(bytes_at(worker, "current"), 64 << 20);
    }
    ck_assert_uint_gt(bytes_at(all, "bytes_per_step.down"), 0);
    /* up: every parameter once, and the tied table's twice; 256 x 64 of it */
    ck_assert_uint_eq(bytes_at(all, "bytes_per_step.up"), 4 * (bytes_at(all, "parameters") + 256 * 64));
    const uint64_t rows = bytes_at(all, "choice.microbatch");
    ck_assert(rows >= 1 && rows <= 4);
    json_decref(all);
}

TEST(the_table_says_every_term_and_the_choice_in_words)
{
    expect("eps plan --model gpt2 --batch 8 --device-mem 512MiB --host-mem 8GiB", 0,
           "gpt2: 12 layers of 768, 124.4 M parameters", "8 sequences of 1024 tokens in 1 part, on 1 cpu worker",
           "replay                  497759232    474.7 MiB", "first_moment            497759232    474.7 MiB",
           " GiB   of 8.0 GiB", "of 512.0 MiB", "micro-batches of ",
           "activation checkpoints (the blocks' inputs), 336.0 MiB, on the ", "of 12 blocks kept",
           "contributions: 1 sum on the device, 2 slots of a worker's inbox\n",
           "            replay on: old weights stand until a step is folded, ", "the head's logits computed ",
           "a step      down ", "up 621.9 MiB", "eps bench measures this one", "smallest    --device-mem ",
           "fits        yes\n");
}

TEST(a_key_that_has_no_effect_is_said)
{
    expect("cat >nested.json <<'END'\n"
           "{\"model_type\": \"olmo3\", \"hidden_size\": 32, \"num_attention_heads\": 4, \"num_hidden_layers\": 4,"
           " \"intermediate_size\": 8, \"vocab_size\": 50, \"pad_token_id\": null, \"max_position_embeddings\": 64,"
           " \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 100, \"rope_type\": \"yarn\","
           " \"factor\": 4.0, \"original_max_position_embeddings\": 16, \"truncate\": false},"
           " \"sliding_attention\": {\"rope_theta\": 100, \"rope_type\": \"default\"}}}\nEND",
           0);
    expect("eps plan --model nested.json --seq 32", 0,
           "\nrope_parameters.full_attention.truncate in config.json has no effect: transformers does not read it "
           "there\n");
    json_t *const nested = plan_json(0, "--model nested.json --seq 32"), *const tiny =
                                                                             plan_json(0, "--model tiny.json");
    ck_assert_str_eq(json_string_value(json_at(nested, "ignored")), "rope_parameters.full_attention.truncate");
    ck_assert_ptr_null(json_object_get(tiny, "ignored"));
    json_decref(nested);
    json_decref(tiny);
}

TEST(a_plan_of_images_counts_images)
{
    expect("eps plan --model resnet-18 --image 32x32 --labels 10 --batch 8", 0, "to classify images: 10 classes\n",
           "\n8 images of 32x32 pixels in ", " of a part's 8 images\n", " images at a time\n",
           " images per worker on (assumed); yours has 8\n");
    ck_assert_ptr_null(strstr(command_out(), "sequence"));
    ck_assert_ptr_null(strstr(command_out(), "token"));
}

/* By hand, of 16 rows of 512 tokens: 14 layers above the embedding have inputs of 24 MiB. The host has no room for
 * them, and the device for seven: 300,000,000 bytes are 27 MiB of weights, as many of a contribution, 24 of a gradient,
 * 23.3 of workspace and library, and 184.7 more. */
TEST(layers_with_activation_checkpoints_are_counted)
{
    static const char command[] =
        "eps plan --model gpt2 --batch 16 --seq 512 --device-mem 300000000 --host-mem 1800000000";
    json_t *all = expect_json(print("%s --json", command), 0);

    ck_assert_uint_eq(bytes_at(all, "choice.inputs"), 14);
    ck_assert_uint_eq(bytes_at(all, "choice.stored_inputs"), 7);
    ck_assert(json_is_false(json_object_get(json_object_get(all, "choice"), "derives_inputs")));
    json_decref(all);
    expect(
        command, 0,
        "activation checkpoints of 7 of 14 layers; with those that are computed again, a segment at a time, 168.0 MiB, "
        "on the device\n",
        "fits        yes\n");
}

/* The seven blocks of tests/families/alternating.c are of three classes: a line for each in place of one for all, and a
 * list. */
TEST(of_blocks_that_differ_each_class_is_said)
{
    static const char command[] = "PATH=" BIN_DIR "/families:$PATH; eps plan --model " TESTS_DIR
                                  "/fixtures/alternating --batch 8 --seq 64 --device-mem 64MiB";
    static const uint32_t n_blocks[] = {2, 3, 2};
    json_t *all = expect_json(print("%s --json", command), 0);

    ck_assert_uint_eq(json_array_size(json_at(all, "choice.blocks")), 3);
    for (int i = 0; i < 3; i++) {
        const uint64_t n_kept = bytes_at(all, print("choice.blocks.%d.kept", i));
        const char *const names = json_string_value(json_at(all, print("choice.blocks.%d.kept_activations", i)));
        const char *const lowest = json_string_value(json_at(all, print("choice.blocks.%d.lowest", i)));
        ck_assert_str_eq(lowest, print("layers.%d", i));
        ck_assert_uint_eq(bytes_at(all, print("choice.blocks.%d.blocks", i)), n_blocks[i]);
        ck_assert_uint_gt(n_kept, 0);
        expect(command, 0,
               print("            activations kept of %u of %u blocks like layers.%d: %s\n", (int)n_kept, n_blocks[i],
                     i, names));
    }
    json_decref(all);
}

TEST(why_there_is_no_replay_is_said)
{
    json_t *roomy = plan_json(0, "--model tiny.json --batch 8 --device-mem 64MiB");
    const uint64_t host = bytes_at(roomy, "host.peak");

    ck_assert(json_is_true(json_at(roomy, "choice.replay")));
    expect(print("eps plan --model tiny.json --batch 8 --device-mem 64MiB --host-mem %" PRIu64, host), 0, "replay on");
    expect(print("eps plan --model tiny.json --batch 8 --device-mem 64MiB --host-mem %" PRIu64, host - 1), 0,
           "            replay off: no room in --host-mem\n");
    expect("eps plan --model tiny.json --batch 8 --device-mem 64MiB --commit fenced", 0,
           "            replay off: weights stand until the step is folded\n");
    json_decref(roomy);
}

TEST(weights_are_not_needed_and_not_looked_at)
{
    ck_assert_int_eq(mkdir("dir", 0777), 0);
    processes_config("dir/config.json", 6, 2, 64, 64);
    expect("eps plan --model dir", 0);
    processes_put_text("dir/model.safetensors", "garbage");
    expect("eps plan --model dir", 0);
}

TEST(the_minimum_fits_and_one_byte_less_does_not)
{
    const uint64_t least = printed_number("--model tiny.json --batch 8 --minimum");
    expect(print("eps plan --model tiny.json --batch 8 --device-mem %" PRIu64, least), 0);
    json_t *all = plan_json(1, print("--model tiny.json --batch 8 --device-mem %" PRIu64, least - 1));
    const char *figure = print("(%" PRIu64 " bytes) of device memory", least);
    ck_assert(json_is_false(json_at(all, "fits")));
    ck_assert_holds(json_string_value(json_at(all, "why")), figure);
    ck_assert_holds(command_err(), figure);
    ck_assert_uint_eq(bytes_at(all, "minimum"), least);
    json_decref(all);
}

/* A host that holds all but a stash and replay: what is kept on the device then makes its minimum larger. */
TEST(the_minimum_is_of_what_the_host_has_room_for)
{
    json_t *roomy = plan_json(0, "--model tiny.json --batch 8 --device-mem 1GiB");
    const uint64_t host = bytes_at(roomy, "host.peak") - bytes_at(roomy, "host.categories.replay.peak");
    const uint64_t least = printed_number(print("--model tiny.json --batch 8 --host-mem %" PRIu64 " --minimum", host));
    ck_assert_uint_gt(least, bytes_at(roomy, "minimum"));
    for (unsigned less = 0; less < 2; less++)
        expect(print("eps plan --model tiny.json --batch 8 --host-mem %" PRIu64 " --device-mem %" PRIu64, host,
                     least - less),
               (int)less);
    json_decref(roomy);
}

/* Layers and rows up to the figure fit, one more does not: asked of eps plan itself with a config of that depth. */
TEST(depth_and_batch_are_the_most_that_fit)
{
    static const char memory[] = "--device-mem 32MiB --host-mem 24MiB";
    static const char *const forms[] = {"", "--lora rank=2 --base nf4 --approximate coded=8", "--lora rank=2"};
    uint32_t depths[COUNT(forms)];

    for (int i = 0; i < COUNT(forms); i++) {
        const uint32_t depth = depths[i] =
            (uint32_t)printed_number(print("--model tiny.json --batch 8 %s %s --find-depth", forms[i], memory));
        processes_config("deep.json", depth, 2, 64, 64);
        expect(print("eps plan --model deep.json --batch 8 %s %s", forms[i], memory), 0);
        processes_config("deep.json", depth + 1, 2, 64, 64);
        expect(print("eps plan --model deep.json --batch 8 %s %s", forms[i], memory), 1, "of host memory (",
               "--host-mem is 24.0 MiB", i == 0 ? "--moments bf16 would take" : "");
    }
    ck_assert(depths[0] >= 7 && depths[2] > depths[0] && depths[1] > 2 * depths[2]);
    const uint32_t rows = (uint32_t)printed_number(print("--model tiny.json --parts 2 %s --find-batch", memory));
    ck_assert_uint_ge(rows, 2);
    ck_assert_uint_eq(rows % 2, 0);
    for (uint32_t more = 0; more < 2; more++)
        expect(print("eps plan --model tiny.json --parts 2 --batch %u %s", rows + 2 * more, memory), (int)more);
}

/* The published claim: 50 B parameters with a device of 16 GB and a host of 512 GB. 8192 wide, 62 layers. */
TEST(fifty_billion_parameters_fit_a_host_of_512_gb_with_16_bit_moments_alone)
{
    static const char memory[] = "--seq 1024 --batch 16 --device-mem 16000000000 --host-mem 512000000000";
    const char *large = processes_config("50b.json", 62, 64, 8192, 1024);

    json_t *all = plan_json(1, print("--model %s %s", large, memory));
    ck_assert_uint_ge(bytes_at(all, "parameters"), 49900000000);
    ck_assert_uint_ge(bytes_at(all, "host.current"), 12 * bytes_at(all, "parameters"));
    json_decref(all);
    all = plan_json(0, print("--model %s %s --precision bf16 --moments bf16", large, memory));
    ck_assert_uint_le(bytes_at(all, "host.current"), 512000000000);
    json_decref(all);
}

TEST(what_does_not_fit_is_said_with_what_would)
{
    expect("eps plan --model tiny.json --device-mem 1B", 1, "--device-mem is 0.0 MiB (1 bytes)");
    expect("eps plan --model tiny.json --device-mem 1MiB --find-depth", 1, "this model needs at least");
    expect("eps plan --model tiny.json --device-mem 1MiB --find-batch", 1, "this model needs at least");
}

/* Lines from exact to least exact: one is chosen, which is 5 % faster than each more exact one that was faster than all
 * before it by as much; no line below it is 5 % faster. Returns it. */
static json_t *check_choice(json_t *lines)
{
    json_t *chosen = NULL, *line;
    double best = INFINITY;
    unsigned n_chosen = 0;
    size_t i;

    json_array_foreach(lines, i, line)
    {
        const double ms = json_number_at(line, "step_ms");
        n_chosen += json_is_true(json_object_get(line, "chosen"));
        if (20 * ms <= 19 * best)
            best = ms, chosen = line;
    }
    ck_assert_uint_eq(n_chosen, 1);
    ck_assert(json_is_true(json_object_get(chosen, "chosen")));
    return chosen;
}

/* What can be kept exactly in the same time stays exact; a sum over some tokens that takes less time is taken; codes
 * only where memory is short. */
TEST(the_choice_leaves_exactness_for_time_alone)
{
    static const struct {
        const char *run, *form;
    } choices[] = {
        {"--model given --seq 1024 --batch 8 --device cuda --device-mem 8GiB", NULL},
        {"--model given --seq 1024 --batch 8 --device-mem 8GiB", "wta=0.3"},
        {"--model given --seq 1024 --batch 8 --device-mem 1200MiB", "wta=0.3,coded=4"},
        {"--model given --seq 8 --batch 1 --device-mem 8GiB", NULL},
    };

    for (size_t i = 0; i < COUNT(choices); i++) {
        json_t *lines = expect_json(print("eps plan --json --host-mem 8GiB %s --approximate any", choices[i].run), 0);
        const char *form = json_string_value(json_object_get(check_choice(lines), "approximate"));
        ck_assert_str_eq(form ? form : "", choices[i].form ? choices[i].form : "");
        json_decref(lines);
    }
    expect(print("eps plan --host-mem 8GiB %s --approximate any", choices[1].run), 0,
           "\neps train --approximate any chooses wta=0.3\n");
    expect(print("eps plan --host-mem 8GiB %s --approximate any", choices[0].run), 0, "chooses exact gradients\n");
}

/* Whatever time an inexact form saves: of a preset, and of a config.json alone, though not under adapters, whose base
 * is there when it is trained. */
TEST(fresh_weights_are_trained_exactly)
{
    static const char run[] = "--seq 1024 --batch 8 --device-mem 8GiB --host-mem 8GiB --approximate any";

    expect(print("eps plan --model gpt2 %s", run), 0,
           "\neps train --approximate any chooses exact gradients: inexact ones train fresh weights worse\n");
    expect(print("eps plan --model given/config.json %s", run), 0, "chooses exact gradients: inexact ones");
    expect(print("eps plan --model given/config.json --lora rank=8 %s", run), 0, "chooses ");
    ck_assert_ptr_null(strstr(command_out(), "fresh"));
    expect("eps plan --model gpt2 --seq 1024 --batch 8 --device-mem 111000000 --host-mem 8GiB --approximate any", 0,
           "exact gradients do not fit, and eps train --approximate any chooses no others for fresh weights");
}

/* Each line of the frontier is the plan of its form; beside it is the exact plan within the same memory. */
TEST(the_frontier_is_made_of_plans)
{
    static const char run[] = "--model tiny.json --batch 8 --host-mem 1GiB --device-mem 3MiB";
    static const char *const forms[] = {
        NULL,      "wta=0.3", "wta=0.1",         "attention=0.3",  "wta=0.3,attention=0.3",
        "coded=8", "coded=4", "wta=0.3,coded=8", "wta=0.3,coded=4"};
    json_t *lines = expect_json(print("eps plan --json %s --approximate any", run), 0);

    ck_assert_uint_eq(json_array_size(lines), COUNT(forms));
    ck_assert(json_is_true(json_at(lines, "0.chosen"))); /* its weights are fresh */
    for (size_t i = 0; i < COUNT(forms); i++) {
        json_t *line = json_array_get(lines, i);
        const char *form = json_string_value(json_object_get(line, "approximate"));
        const char *kind = json_string_value(json_object_get(line, "kind"));
        ck_assert(forms[i] ? form && strcmp(form, forms[i]) == 0 : !form);
        ck_assert_str_eq(kind, !form ? "exact" : strstr(form, "coded") ? "biased" : "unbiased");
        json_t *own = plan_json(0, print("%s%s%s", run, form ? " --approximate " : "", form ? form : ""));
        const uint64_t device = bytes_at(json_array_get(json_at(own, "workers"), 0), "current");
        ck_assert_uint_eq(bytes_at(line, "device"), device);
        ck_assert_uint_eq(bytes_at(line, "host"), bytes_at(json_at(own, "host"), "current"));
        ck_assert_double_eq(json_number_at(line, "step_ms"), json_number_at(own, "ms.step"));
        json_t *rival =
            plan_json(0, print("--model tiny.json --batch 8 --host-mem 1GiB --device-mem %ju", (uintmax_t)device));
        ck_assert_double_eq(json_number_at(line, "exact_step_ms"), json_number_at(rival, "ms.step"));
        json_decref(rival);
        json_decref(own);
    }
    json_decref(lines);
    lines = expect_json("eps plan --json --model tiny.json --lora rank=4 --approximate any", 0);
    ck_assert_uint_eq(json_array_size(lines), COUNT(forms));
    json_decref(lines);
    expect(print("eps plan %s --approximate any", run), 0, "exact in the same", "wta=0.3,coded=4", "unbiased");
    expect(print("eps plan %s --approximate coded=8", run), 0, "\nexact       in as much device memory: ", " (here ");
    expect(print("eps plan %s --approximate wta=0.3,rule=all", run), 0, "of the largest terms, so they are biased\n");
    expect(
        print("eps plan --json %s >exact && eps plan --json %s --approximate wta=1,attention=1 >all && cmp exact all",
              run, run),
        0);
    expect("eps plan --model tiny.json --device-mem 4KiB --approximate any", 1, "nothing fits, exact or not");
}

/* Means of blocks of pixels are forms of nets of images alone. */
TEST(a_frontier_of_images_has_means)
{
    json_t *lines = expect_json("eps plan --json --model resnet-18 --image 16x16 --batch 4 --approximate any", 0);
    const json_t *last = json_array_get(lines, json_array_size(lines) - 1);

    ck_assert_str_eq(json_string_value(json_object_get(last, "approximate")), "pool=8");
    ck_assert_str_eq(json_string_value(json_object_get(last, "kind")), "biased");
    json_decref(lines);
}

/* By torchvision 0.29, for 1000 classes. */
static const struct {
    const char *layer_type, *depths;
    uint64_t n_parameters;
} resnets[] = {{"basic", "[2, 2, 2, 2]", 11689512},
               {"basic", "[3, 4, 6, 3]", 21797672},
               {"bottleneck", "[3, 4, 6, 3]", 25557032},
               {"bottleneck", "[3, 4, 23, 3]", 44549160}};

TEST_EACH(a_resnet_has_as_many_parameters_as_torchvisions, COUNT(resnets))
{
    processes_put_text("resnet.json",
                       print("{\"model_type\": \"torchvision_resnet\", \"layer_type\": \"%s\", \"depths\": %s, "
                             "\"image_size\": 224, \"num_labels\": 1000}",
                             resnets[_i].layer_type, resnets[_i].depths));
    json_t *all = plan_json(0, "--model resnet.json --batch 2");

    ck_assert_uint_eq(bytes_at(all, "parameters"), resnets[_i].n_parameters);
    json_decref(all);
}

/* Without a figure the device has as much as the fastest choice takes; the numbers are those that it is good at. */
TEST(a_plan_for_cuda_needs_no_cuda)
{
    json_t *all = plan_json(0, "--model gpt2 --batch 8 --host-mem 8GiB --device cuda");

    json_t *worker = json_at(all, "workers.0");
    check_side(worker);
    ck_assert_str_eq(json_string_value(json_at(worker, "device")), "cuda");
    ck_assert_ptr_null(json_object_get(worker, "budget"));
    ck_assert_uint_eq(bytes_at(worker, "categories.library.current"), plan_cuda.library_bytes(1));
    const uint64_t most = bytes_at(worker, "current");
    json_decref(all);
    all = plan_json(0, "--model gpt2 --batch 8 --host-mem 8GiB --device cuda --device-mem 960MiB");
    ck_assert_uint_eq(bytes_at(all, "workers.0.budget"), 960 << 20);
    ck_assert_uint_lt(bytes_at(all, "workers.0.current"), most);
    json_decref(all);
    expect("eps plan --model gpt2 --batch 8 --host-mem 8GiB --device cuda", 0,
           "on 1 cuda worker; bf16, moments in fp32", "\nhost\n", "(library is an estimate: ", " (in parallel)");
    expect("eps plan --model gpt2 --device cuda --device-mem 700MiB", 1, "(library 872.0 MiB, ");
}

#define TIMELINE "--timeline --model tiny.json --device cuda --batch 8 --seq 32"

/* Each queue works or waits for another, all the time; the screen says the same in words. */
TEST(a_step_is_played_in_time)
{
    static const char *const queues[] = {"down", "compute", "up", "optimizer"};
    double busiest = 0;

    json_t *line = plan_json(0, TIMELINE);
    const double step = json_number_at(line, "step_ms"), rate = 8 * 32 / step * 1e3;
    ck_assert_double_eq_tol(json_number_at(line, "tokens_per_s"), rate, 1e-6 * rate);
    for (int i = 0; i < 4; i++) {
        json_t *wait;
        const char *name;
        double all = json_number_at(line, print("queues.%s.busy_ms", queues[i]));
        busiest = all > busiest ? all : busiest;
        json_object_foreach(json_at(line, print("queues.%s.waits_ms", queues[i])), name, wait) all +=
            json_number_value(wait);
        ck_assert_double_eq_tol(all, step, 1e-6 * step);
    }
    const char *binds = json_string_value(json_at(line, "binds"));
    ck_assert_double_eq(json_number_at(line, print("queues.%s.busy_ms", binds)), busiest);
    ck_assert_double_eq_tol(json_number_at(line, "device_waits_ms"),
                            step - json_number_at(line, "queues.compute.busy_ms"), 1e-9 * step);
    json_decref(line);
    expect("eps plan " TIMELINE, 0, "TFLOP/s", "\nbinds ", "\ndevice      works ",
           "\npaths       products: cublaslt at ");
}

/* The first path of a kind; "" if it takes no time. */
static const char *path_of(const json_t *line, const char *kind)
{
    size_t i;
    const json_t *path;

    json_array_foreach(json_object_get(line, "paths"), i,
                       path) if (strcmp(json_string_value(json_object_get(path, "kind")), kind) ==
                                 0) return json_string_value(json_object_get(path, "path"));
    return "";
}

/* As a device tells of these models' attention: tests/proto/operation/test_attention_path.c. */
TEST(a_step_s_computing_is_told_by_path)
{
    static const struct {
        const char *config, *forward, *backward;
    } models[] = {
        {"{'model_type': 'gpt2', 'n_layer': 2, 'n_head': 2, 'n_embd': 128, 'n_positions': 256, 'vocab_size': 64, "
         "'attn_pdrop': 0.0}",
         "cudnn", "tensor"},
        {"{'model_type': 'gpt2', 'n_layer': 2, 'n_head': 2, 'n_embd': 128, 'n_positions': 256, 'vocab_size': 64}",
         "dropout", "dropout"},
        {"{'model_type': 'qwen3', 'num_hidden_layers': 2, 'num_attention_heads': 4, 'num_key_value_heads': 2, "
         "'head_dim': "
         "64, 'hidden_size': 256, 'intermediate_size': 512, 'vocab_size': 64, 'max_position_embeddings': 256}",
         "cudnn", "tensor"},
        {"{'model_type': 't5', 'd_model': 128, 'd_kv': 64, 'd_ff': 256, 'num_layers': 2, 'num_heads': 2, 'vocab_size': "
         "64}",
         "dropout", "dropout"},
        {"{'model_type': 't5', 'd_model': 128, 'd_kv': 64, 'd_ff': 256, 'num_layers': 2, 'num_heads': 2, 'vocab_size': "
         "64, 'dropout_rate': 0.0}",
         "tensor", "tensor"},
        {"{'model_type': 't5', 'd_model': 128, 'd_kv': 24, 'd_ff': 256, 'num_layers': 2, 'num_heads': 2, 'vocab_size': "
         "64}",
         "plain", "plain"},
    };

    for (int i = 0; i < COUNT(models); i++) {
        double busy = 0, share = 0;
        size_t k;
        json_t *path;
        processes_put_text("paths.json", quoted(models[i].config));
        json_t *line =
            plan_json(0, "--timeline --model paths.json --device cuda --attention cudnn --batch 8 --seq 256");
        ck_assert_str_eq(path_of(line, "products"), "cublaslt");
        ck_assert_str_eq(path_of(line, "attention"), models[i].forward);
        ck_assert_str_eq(path_of(line, "attention_backward"), models[i].backward);
        ck_assert_str_eq(path_of(line, "rest"), "memory");
        json_array_foreach(json_object_get(line, "paths"), k, path)
        {
            busy += json_number_at(path, "busy_ms"), share += json_number_at(path, "share");
            ck_assert_int_eq(json_object_get(path, "tflops") == NULL, k + 1 == json_array_size(json_at(line, "paths")));
        }
        ck_assert_double_eq_tol(busy / json_number_at(line, "queues.compute.busy_ms"), 1, 1e-6);
        ck_assert_double_eq_tol(share, 1, 1e-6);
        json_decref(line);
    }
}

/* Text and JSON, of a step and of a timeline; a card that is named has its data sheet, whatever was measured here. */
TEST(times_that_were_not_measured_are_called_assumed)
{
    static const char job[] = "--model gpt2 --batch 8 --seq 256 --device cuda --precision bf16";
    double ms[2];

    expect(print("eps plan %s", job), 0, " ms (assumed): computing ",
           "            assumed: by rates of another machine, ", " on (assumed); yours has");
    expect(print("eps plan %s --timeline", job), 0,
           " ms (assumed): ", "            assumed: by rates of another machine, ");
    for (int i = 0; i < 2; i++) {
        json_t *line = plan_json(0, print("%s --timeline %s", job, i ? "--card rtx-4090" : "--card h100"));
        ck_assert(json_is_true(json_at(line, "assumed")) && json_is_false(json_at(line, "measured")));
        ms[i] = json_number_at(line, "queues.compute.busy_ms");
        json_decref(line);
        line = plan_json(0, print("%s %s", job, i ? "--card rtx-4090" : ""));
        ck_assert(json_is_true(json_at(line, "assumed")));
        json_decref(line);
    }
    ck_assert_double_gt(ms[1], ms[0]); /* its memory moves 0.3 of an H100's, its tensor cores multiply at 0.17 */
    expect_sentence("eps plan --model gpt2 --device cpu --card rtx-5090", 2,
                    "--card rtx-5090 is a CUDA device: choose --device cuda, or leave it out");
}

/* A step's time in words, of eps plan with these options: "85 ms". */
static char *planned_step(const char *options)
{
    const char *const end = " (assumed): computing ";

    expect(print("eps plan %s", options), 0, end);
    const char *const at = strstr(command_out(), end);
    const char *from = at;
    while (from > command_out() && from[-1] != '\n')
        from--;
    from += strspn(from, " ");
    return strndup(from, (size_t)(at - from));
}

static const struct {
    const char *job;
    const char *forms[5]; /* that the line has, in order */
} narrow[] = {
    {"--device cuda --model gpt2 --batch 8 --seq 1024 --grad-dtype fp32",
     {"--grad-dtype bf16", "--moments bf16", "--master none", "--state bf16"}},
    {"--device cuda --model gpt2 --batch 8 --seq 1024 --grad-dtype bf16 --moments bf16 --clip-norm 1",
     {"--sums bf16", "--master none", "--state bf16"}},
    {"--device cuda --model gpt2 --batch 8 --seq 256 --precision fp32 --optimizer sgd --momentum 0 --grad-dtype fp32",
     {"--grad-dtype bf16"}},
    {"--device cuda --model gpt2 --batch 8 --seq 1024 --grad-dtype bf16 --master none", {"--moments bf16"}}, /* all */
    {"--device cuda --model gpt2-medium --batch 8 --seq 1024 --grad-dtype bf16", /* fewer embeddings */
     {"--moments bf16", "--moments coded", "--master none", "--state bf16"}},
    {"--device cuda --model gpt2 --batch 8 --seq 1024 --state bf16", {NULL}}, /* it is narrow */
    {"--device cuda --model gpt2 --batch 128 --seq 1024", {NULL}},            /* computing binds */
    {"--device cpu --model gpt2 --batch 1 --seq 16", {NULL}}, /* nothing overlaps, so no one thing binds */
};

/* Each form's figure is that of eps plan with it. */
TEST_EACH(where_the_optimizer_binds_narrower_forms_are_told_of, COUNT(narrow))
{
    char *const today = planned_step(narrow[_i].job), *const output = strdup(command_out());
    const char *const begin = "            the optimizer binds: ", *at = strstr(output, begin);

    ck_assert_msg((at != NULL) == (narrow[_i].forms[0] != NULL), "%s", output);
    at += at ? strlen(begin) : 0;
    for (int i = 0; i < 5 && narrow[_i].forms[i]; i++) {
        char *const then = planned_step(print("%s %s", narrow[_i].job, narrow[_i].forms[i]));
        const char *const told = i == 0
                                     ? print("%s would take %s a step instead of %s", narrow[_i].forms[i], then, today)
                                     : print(", %s %s", narrow[_i].forms[i], then);
        ck_assert_msg(strncmp(at, told, strlen(told)) == 0, "'%s' is not '%s'", at, told);
        at += strlen(told);
        free(then);
    }
    ck_assert(!at || *at == '\n');
    free(today), free(output);
}

/* 80 GB/s for the optimizer and both ways of the link: a step that they bind takes longer than with a memory of its own
 * for each, and no less than all the bytes do. */
TEST(a_profile_says_how_fast_the_host_s_memory_is)
{
    double ms[2];

    expect("mkdir -p $XDG_CACHE_HOME/eps", 0);
    for (int i = 0; i < 2; i++) {
        processes_put_text(
            "cache/eps/profile-cuda.json",
            print("{\"device\": \"cuda\", \"matmul_flops\": {\"fp32\": {\"64\": 1e13, \"512\": 1e13, \"4096\": 1e13, "
                  "\"32768\": 1e13}, \"bf16\": {\"64\": 1e14, \"512\": 1e14, \"4096\": 1e14, \"32768\": 1e14}}, "
                  "\"link_bytes_per_s\": 5e10, \"memory_bytes_per_s\": 3e12, \"update_parameters_per_s\": 2.8e9, "
                  "\"call_s\": 0, \"message_s\": 0%s}",
                  i ? ", \"host_bytes_per_s\": 8e10" : ""));
        json_t *line = plan_json(0, TIMELINE);
        ck_assert(json_is_true(json_at(line, "measured")) && json_is_false(json_at(line, "assumed")));
        ms[i] = json_number_at(line, "step_ms");
        json_decref(line);
    }
    remove(processes_path("cache/eps/profile-cuda.json"));
    ck_assert_double_gt(ms[1], 1.01 * ms[0]);
}
