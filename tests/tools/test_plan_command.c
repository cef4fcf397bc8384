/* eps plan as it is called: what it prints, what it answers to programs, what it refuses. */
#include "proto/plan/backend.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>

static char config[300], out_file[300], err_file[300];

static void setup(void)
{
    processes_setup();
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1); /* no profile of this machine */
    snprintf(config, sizeof config, "%s", processes_config("tiny.json", 6, 2, 64, 64));
    snprintf(out_file, sizeof out_file, "%s", processes_path("out"));
    snprintf(err_file, sizeof err_file, "%s", processes_path("err"));
}

SUITE_FIXTURE(setup, processes_remove)

static json_t *plan_json(int wanted, const char *options)
{
    ck_assert_int_eq(processes_eps("plan --json %s", options), wanted);
    return processes_answer(out_file);
}

static uint64_t number_in(json_t *object, const char *key)
{
    ck_assert_msg(json_is_integer(json_object_get(object, key)), "no whole number %s", key);
    return (uint64_t)json_integer_value(json_object_get(object, key));
}

static uint64_t printed_number(const char *options)
{
    ck_assert_int_eq(processes_eps("plan %s", options), 0);
    char *text = processes_read(out_file), *end;
    const uint64_t number = strtoull(text, &end, 10);
    ck_assert_str_eq(end, "\n");
    free(text);
    return number;
}

/* How one side's object adds up. */
static void check_side(json_t *side)
{
    const char *name;
    json_t *category;
    uint64_t sum = 0;

    json_object_foreach(json_object_get(side, "categories"), name, category)
    {
        ck_assert_uint_gt(number_in(category, "current"), 0);
        ck_assert_uint_eq(number_in(category, "current"), number_in(category, "peak"));
        sum += number_in(category, "current");
    }
    ck_assert_uint_eq(number_in(side, "current"), sum);
    ck_assert_uint_eq(number_in(side, "peak"), sum);
}

TEST(json_has_both_sides_the_choice_and_the_traffic)
{
    char options[400];

    snprintf(options, sizeof options, "--model %s --batch 8 --workers 2 --device-mem 64MiB", config);
    json_t *all = plan_json(0, options), *workers = json_object_get(all, "workers");
    ck_assert(json_is_true(json_object_get(all, "fits")));
    ck_assert_str_eq(json_string_value(json_object_get(all, "why")), "");
    check_side(json_object_get(all, "host"));
    ck_assert_uint_eq(json_array_size(workers), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *worker = json_array_get(workers, i);
        check_side(worker);
        ck_assert_uint_eq(number_in(worker, "id"), i + 1);
        ck_assert_str_eq(json_string_value(json_object_get(worker, "device")), "cpu");
        ck_assert_uint_eq(number_in(worker, "budget"), 64 << 20);
        ck_assert_uint_le(number_in(worker, "current"), 64 << 20);
    }
    ck_assert_uint_gt(number_in(json_object_get(all, "bytes_per_step"), "down"), 0);
    /* up: every parameter once, and the tied table's twice; 256 x 64 of it */
    ck_assert_uint_eq(number_in(json_object_get(all, "bytes_per_step"), "up"),
                      4 * (number_in(all, "parameters") + 256 * 64));
    const uint64_t rows = number_in(json_object_get(all, "choice"), "microbatch");
    ck_assert_uint_ge(rows, 1);
    ck_assert_uint_le(rows, 4);
    json_decref(all);
}

TEST(the_table_says_every_term_and_the_choice_in_words)
{
    char *text;

    ck_assert_int_eq(processes_eps("plan --model gpt2 --batch 8 --device-mem 512MiB --host-mem 8GiB"), 0);
    text = processes_read(out_file);
    static const char *const said[] = {"gpt2: 12 layers of 768, 124.4 M parameters",
                                       "8 sequences of 1024 tokens in 1 part, on 1 cpu worker",
                                       "first_moment            497759232    474.7 MiB",
                                       " GiB   of 8.0 GiB",
                                       "of 512.0 MiB",
                                       "micro-batches of ",
                                       "activation checkpoints (the blocks' inputs), 336.0 MiB, on the ",
                                       "of 12 blocks kept",
                                       "contributions: 1 sum on the device, 2 slots of a worker's inbox\n",
                                       "the head's logits computed ",
                                       "a step      down ",
                                       "up 0.61 GiB",
                                       "eps bench measures this one",
                                       "smallest    --device-mem ",
                                       "fits        yes\n"};
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        ck_assert_msg(strstr(text, said[i]) != NULL, "'%s' is not in %s", said[i], text);
    free(text);
}

TEST(weights_are_not_needed_and_not_looked_at)
{
    mkdir(processes_path("dir"), 0777);
    ck_assert_int_eq(rename(config, processes_path("dir/config.json")), 0);
    ck_assert_int_eq(processes_eps("plan --model %s", processes_path("dir")), 0);
    processes_write("dir/model.safetensors", "garbage", 7);
    ck_assert_int_eq(processes_eps("plan --model %s", processes_path("dir")), 0);
}

TEST(the_minimum_fits_and_one_byte_less_does_not)
{
    char options[400];

    snprintf(options, sizeof options, "--model %s --batch 8 --minimum", config);
    const uint64_t least = printed_number(options);
    ck_assert_int_eq(processes_eps("plan --model %s --batch 8 --device-mem %" PRIu64, config, least), 0);
    snprintf(options, sizeof options, "--model %s --batch 8 --device-mem %" PRIu64, config, least - 1);
    json_t *all = plan_json(1, options);
    char *said = processes_read(err_file), figure[40];
    snprintf(figure, sizeof figure, "(%" PRIu64 " bytes) of device memory", least);
    ck_assert(json_is_false(json_object_get(all, "fits")));
    ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(all, "why")), figure));
    ck_assert_msg(strstr(said, figure) != NULL, "%s", said);
    ck_assert_uint_eq(number_in(all, "minimum"), least);
    json_decref(all);
    free(said);
}

/* A host that holds all but a stash: what is kept on the device then makes its minimum larger. */
TEST(the_minimum_is_of_what_the_host_has_room_for)
{
    char options[400];

    snprintf(options, sizeof options, "--model %s --batch 8 --device-mem 1GiB", config);
    json_t *roomy = plan_json(0, options);
    const uint64_t host = number_in(json_object_get(roomy, "host"), "peak");
    snprintf(options, sizeof options, "--model %s --batch 8 --host-mem %" PRIu64 " --minimum", config, host);
    const uint64_t least = printed_number(options);
    ck_assert_uint_gt(least, number_in(roomy, "minimum"));
    for (unsigned less = 0; less < 2; less++)
        ck_assert_int_eq(processes_eps("plan --model %s --batch 8 --host-mem %" PRIu64 " --device-mem %" PRIu64, config,
                                       host, least - less),
                         (int)less);
    json_decref(roomy);
}

/* Layers and rows up to the figure fit, one more does not: asked of eps plan itself with a config of that depth. */
TEST(depth_and_batch_are_the_most_that_fit)
{
    static const char memory[] = "--device-mem 32MiB --host-mem 24MiB";
    char options[500];

    snprintf(options, sizeof options, "--model %s --batch 8 %s --find-depth", config, memory);
    const uint32_t depth = (uint32_t)printed_number(options);
    ck_assert_uint_ge(depth, 7);
    for (uint32_t more = 0; more < 2; more++) {
        const char *deep = processes_config("deep.json", depth + more, 2, 64, 64);
        ck_assert_int_eq(processes_eps("plan --model %s --batch 8 %s", deep, memory), (int)more);
    }
    char *said = processes_read(err_file);
    ck_assert_msg(strstr(said, "of host memory (") && strstr(said, "--host-mem is 24.0 MiB") &&
                      strstr(said, "--moments bf16 would take"),
                  "%s", said);
    free(said);
    snprintf(options, sizeof options, "--model %s --parts 2 %s --find-batch", config, memory);
    const uint32_t rows = (uint32_t)printed_number(options);
    ck_assert_uint_ge(rows, 2);
    ck_assert_uint_eq(rows % 2, 0);
    for (uint32_t more = 0; more < 2; more++)
        ck_assert_int_eq(processes_eps("plan --model %s --parts 2 --batch %u %s", config, rows + 2 * more, memory),
                         (int)more);
}

TEST(nothing_at_all_fits_is_said_with_what_would)
{
    static const char *const finds[] = {"--find-depth", "--find-batch"};

    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(processes_eps("plan --model %s --device-mem 1MiB %s", config, finds[i]), 1);
        char *said = processes_read(err_file);
        ck_assert_msg(strstr(said, "this model needs at least") != NULL, "%s", said);
        free(said);
    }
}

/* The published claim: 50 B parameters with a device of 16 GB and a host of 512 GB. 8192 wide, 62 layers. */
TEST(fifty_billion_parameters_fit_a_host_of_512_gb_with_16_bit_moments_alone)
{
    static const char memory[] = "--seq 1024 --batch 16 --device-mem 16000000000 --host-mem 512000000000";
    char options[500];
    const char *large = processes_config("50b.json", 62, 64, 8192, 1024);

    snprintf(options, sizeof options, "--model %s %s", large, memory);
    json_t *all = plan_json(1, options);
    ck_assert_uint_ge(number_in(all, "parameters"), 49900000000);
    ck_assert_uint_ge(number_in(json_object_get(all, "host"), "current"), 12 * number_in(all, "parameters"));
    json_decref(all);
    snprintf(options, sizeof options, "--model %s %s --precision bf16 --moments bf16", large, memory);
    all = plan_json(0, options);
    ck_assert_uint_le(number_in(json_object_get(all, "host"), "current"), 512000000000);
    json_decref(all);
}

TEST(an_answer_takes_less_than_100_ms)
{
    struct rusage before, after;
    const char *deep = processes_config("deep.json", 96, 16, 1024, 1024);

    getrusage(RUSAGE_CHILDREN, &before);
    ck_assert_int_eq(processes_eps("plan --model %s --batch 16 --device-mem 4GiB --host-mem 64GiB", deep), 0);
    getrusage(RUSAGE_CHILDREN, &after);
    const double ms = (double)(after.ru_utime.tv_sec - before.ru_utime.tv_sec) * 1e3 +
                      (double)(after.ru_utime.tv_usec - before.ru_utime.tv_usec) / 1e3;
    fprintf(stderr, "96 layers: %.1f ms of the processor's\n", ms);
    ck_assert_double_lt(ms, SANITIZED ? 2000 : 100);
}

TEST(misuse_is_one_sentence_and_status_2)
{
    static const struct {
        const char *options, *says;
    } mistakes[] = {
        {"", "--model is missing"},
        {"--model gpt2 --device-mem 0", "--device-mem: '0' is less than a byte"},
        {"--model gpt2 --device-mem 9223372036854775809",
         "--device-mem: '9223372036854775809' is more than any machine has"},
        {"--model gpt2 --host-mem -1", "--host-mem: '-1' is less than a byte"},
        {"--model gpt2 --batch 7 --parts 2", "--batch 7 is not a multiple of --parts 2"},
        {"--model gpt2 --batch 2 --microbatch 3", "--microbatch 3 is more than the 2 rows"},
        {"--model gpt2 --seq 2000", "--seq 2000 is more than the model's 1024 positions"},
        {"--model gpt2 --minimum --find-depth", "at a time"},
        {"--model gpt2 --parts 2 --batch 2 --clip-norm 1 --optimizer adama", "--clip-norm 1"},
        {"--model gpt2 --precision fp8", "--precision 'fp8'"},
    };

    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
        ck_assert_msg(processes_eps("plan %s", mistakes[i].options) == 2, "%s", mistakes[i].options);
        char *said = processes_read(err_file);
        ck_assert_msg(strncmp(said, "eps plan: ", 10) == 0 && strchr(said, '\n') == said + strlen(said) - 1, "%s",
                      said);
        ck_assert_msg(strstr(said, mistakes[i].says) != NULL, "%s", said);
        free(said);
    }
}

TEST(a_model_that_is_none_or_too_large_is_a_sentence_and_status_1)
{
    static const char *const says[] = {"gpt9", "n_layer is 4097: it must be from 1 to 4096"};

    for (int i = 0; i < 2; i++) {
        const char *model = i ? processes_config("large.json", 4097, 2, 64, 64) : "gpt9";
        ck_assert_int_eq(processes_eps("plan --model %s", model), 1);
        char *said = processes_read(err_file);
        ck_assert_msg(strstr(said, says[i]) != NULL, "%s", said);
        free(said);
    }
}

TEST(one_byte_of_device_memory_is_refused_with_what_is_needed)
{
    ck_assert_int_eq(processes_eps("plan --model %s --device-mem 1", config), 1);
    char *said = processes_read(err_file);
    ck_assert_msg(strstr(said, "--device-mem is 0.0 MiB (1 bytes)") != NULL, "%s", said);
    free(said);
}

static json_t *only_worker(json_t *all)
{
    return json_array_get(json_object_get(all, "workers"), 0);
}

/* Without a figure the device has as much as the fastest choice takes; the numbers are those that it is good at. */
TEST(a_plan_for_cuda_needs_no_cuda)
{
    static const char *const said[] = {"on 1 cuda worker; bf16, moments in fp32", "\nhost\n",
                                       "(library is an allowance: ", " (in parallel)"};
    json_t *all = plan_json(0, "--model gpt2 --batch 8 --host-mem 8GiB --device cuda");

    json_t *worker = only_worker(all);
    check_side(worker);
    ck_assert_str_eq(json_string_value(json_object_get(worker, "device")), "cuda");
    ck_assert_ptr_null(json_object_get(worker, "budget"));
    const json_t *library = json_object_get(json_object_get(worker, "categories"), "library");
    ck_assert_uint_eq((uint64_t)json_integer_value(json_object_get(library, "current")), plan_cuda.library_bytes(1));
    const uint64_t most = number_in(worker, "current");
    json_decref(all);
    all = plan_json(0, "--model gpt2 --batch 8 --host-mem 8GiB --device cuda --device-mem 1GiB");
    ck_assert_uint_eq(number_in(only_worker(all), "budget"), 1 << 30);
    ck_assert_uint_lt(number_in(only_worker(all), "current"), most);
    json_decref(all);
    ck_assert_int_eq(processes_eps("plan --model gpt2 --batch 8 --host-mem 8GiB --device cuda"), 0);
    char *text = processes_read(out_file);
    for (size_t i = 0; i < sizeof said / sizeof *said; i++)
        ck_assert_msg(strstr(text, said[i]) != NULL, "no '%s' in\n%s", said[i], text);
    free(text);
    ck_assert_int_eq(processes_eps("plan --model gpt2 --device cuda --device-mem 700MiB"), 1);
    text = processes_read(err_file);
    ck_assert_msg(strstr(text, "(library 872.0 MiB, "), "%s", text);
    free(text);
}

static double real_in(json_t *object, const char *key)
{
    ck_assert_msg(json_is_number(json_object_get(object, key)), "no number %s", key);
    return json_number_value(json_object_get(object, key));
}

/* Each queue works or waits for another, all the time; the screen says the same in words. */
TEST(a_step_is_played_in_time)
{
    static const char *const queues[] = {"down", "compute", "up", "optimizer"};
    char options[400];
    double busiest = 0;

    snprintf(options, sizeof options, "--timeline --model %s --device cuda --batch 8 --seq 32", config);
    json_t *line = plan_json(0, options), *each = json_object_get(line, "queues");
    const double step = real_in(line, "step_ms");
    ck_assert_double_eq_tol(real_in(line, "tokens_per_s"), 8 * 32 / step * 1e3, 1e-6 * 8 * 32 / step * 1e3);
    for (int i = 0; i < 4; i++) {
        json_t *queue = json_object_get(each, queues[i]), *waits = json_object_get(queue, "waits_ms"), *wait;
        const char *name;
        double all = real_in(queue, "busy_ms");
        busiest = all > busiest ? all : busiest;
        json_object_foreach(waits, name, wait) all += json_number_value(wait);
        ck_assert_double_eq_tol(all, step, 1e-6 * step);
    }
    json_t *binds = json_object_get(each, json_string_value(json_object_get(line, "binds")));
    ck_assert_double_eq(real_in(binds, "busy_ms"), busiest);
    ck_assert_double_eq_tol(real_in(line, "device_waits_ms"),
                            step - real_in(json_object_get(each, "compute"), "busy_ms"), 1e-9 * step);
    json_decref(line);
    ck_assert_int_eq(processes_eps("plan %s", options), 0);
    char *text = processes_read(out_file);
    ck_assert_msg(strstr(text, "TFLOP/s") && strstr(text, "\nbinds ") && strstr(text, "\ndevice      works "), "%s",
                  text);
    free(text);
}

/* 80 GB/s for the optimizer and both ways of the link: a step that they bind takes longer than with a memory of its own
 * for each, and no less than all the bytes do. */
TEST(a_profile_says_how_fast_the_host_s_memory_is)
{
    char options[400];
    double ms[2];

    snprintf(options, sizeof options, "--timeline --model %s --device cuda --batch 8 --seq 32", config);
    ck_assert_int_eq(system("mkdir -p \"$XDG_CACHE_HOME/eps\""), 0);
    for (int i = 0; i < 2; i++) {
        FILE *file = fopen(processes_path("cache/eps/profile-cuda.json"), "w");
        ck_assert_ptr_nonnull(file);
        fprintf(file,
                "{\"device\": \"cuda\", \"matmul_flops\": {\"fp32\": {\"64\": 1e13, \"512\": 1e13, \"4096\": 1e13, "
                "\"32768\": 1e13}, \"bf16\": {\"64\": 1e14, \"512\": 1e14, \"4096\": 1e14, \"32768\": 1e14}}, "
                "\"link_bytes_per_s\": 5e10, \"memory_bytes_per_s\": 3e12, \"update_parameters_per_s\": 2.8e9%s}",
                i ? ", \"host_bytes_per_s\": 8e10" : "");
        ck_assert_int_eq(fclose(file), 0);
        json_t *line = plan_json(0, options);
        ck_assert(json_is_true(json_object_get(line, "measured")));
        ms[i] = real_in(line, "step_ms");
        json_decref(line);
    }
    remove(processes_path("cache/eps/profile-cuda.json"));
    ck_assert_double_gt(ms[1], 1.01 * ms[0]);
}
