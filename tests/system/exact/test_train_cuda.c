/* A CUDA device from end to end: real daemons and workers, whose device is the simulated one (tests/sim). The
 * programs stand in a directory of their own, beside its module. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(cuda, release)

/* The programs, and in "cuda" the device's module. A link's path is its own, a symbolic one's is not. */
static void setup(void)
{
    static uint16_t ids[400];

    processes_setup();
    expect(
        "mkdir cuda plain driver && for file in eps epsd eps-worker cudasim/eps-cuda.so; do for to in cuda plain; do "
        "cp -l " BIN_DIR "/$file $to 2>/dev/null || cp " BIN_DIR "/$file $to; done; done; rm plain/eps-cuda.so",
        0);
    processes_config("model.json", 2, 2, 16, 8);
    processes_put_text("big.json",
                       "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 16, "
                       "\"n_positions\": 8, \"vocab_size\": 256, \"initializer_range\": 1.0}"); /* overflows */
    processes_text("data.txt", 120);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = (uint16_t)(processes_token(i) * 32);
    processes_config_with("words.json", 2, 2, 16, 8,
                          "\"vocab_size\": 8300, \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_write("words.bin", ids, sizeof ids);
    setenv("CUDASIM_MEMORY", "2147483648", 1);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

#define MODEL "--model model.json --data data.txt --eval-data data.txt --batch 4 --seq 8 --order sequential --seed 5 "
#define TRAIN "cuda/eps train " MODEL

/* The losses of a run's first steps; a skipped one has none: NAN. */
static void read_losses(double *losses, int n, const char *run)
{
    char *text = processes_read(processes_path(print("%s/metrics.jsonl", run))), *line = strtok(text, "\n");

    for (int i = 0; i < n; i++, line = strtok(NULL, "\n")) {
        json_t *step = json_loads(line ? line : "", 0, NULL);
        losses[i] = json_is_true(json_object_get(step, "skipped")) ? NAN : json_number_at(step, "loss");
        json_decref(step);
    }
    free(text);
}

/* The same arithmetic in another order: losses agree to fp32's rounding, or to that of bf16, of 8 bits. */
static void check_losses(const char *run, const char *other, int n, double tolerance)
{
    double a[8], b[8];

    read_losses(a, n, run), read_losses(b, n, other);
    for (int i = 0; i < n; i++)
        ck_assert_msg((isnan(a[i]) && isnan(b[i])) || fabs(a[i] - b[i]) <= tolerance, "step %d: %g and %g", i + 1, a[i],
                      b[i]);
}

/* Weights are uploaded from the worker's own copy of them, contributions sent from its own slots. */
TEST(a_worker_by_tcp_computes_the_bits_of_a_local_one)
{
    static const char job[] = MODEL "--steps 3 --parts 2 --optimizer adamw --deterministic";

    expect(print("cuda/eps train %s --device cuda --device-mem 1GiB --out by_connection", job), 0);
    expect(
        print("cuda/epsd --make-key key && "
              "{ cuda/epsd --listen tcp --listen tcp://127.0.0.1:0 --key key 2>tcp.log & daemon=$!; } && "
              "until grep -q tcp:// tcp.log; do kill -0 $daemon || exit 1; done; "
              "cuda/eps-worker --connect $(grep -o 'tcp://[0-9.:]*' tcp.log) --key key --device cuda --device-mem 1GiB "
              "2>log & "
              "until grep -q 'attached: cuda' tcp.log; do kill -0 $! || exit 1; done; "
              "cuda/eps train --connect tcp %s --out by_tcp; status=$?; kill $daemon; wait; exit $status",
              job),
        0);
    outputs_check_same_latest("by_connection", "by_tcp");
}

TEST(a_run_on_cuda_is_one_in_bf16_and_takes_what_is_planned)
{
    char unit[8];
    double library;

    expect(TRAIN "--steps 3 --device cuda --out bf16 -v", 0, "numbers      bf16, ", "workers      1 on cuda, ",
           "at most (as planned)");
    /* a context is hundreds of MiB, and the plan counts it */
    ck_assert_int_eq(sscanf(strstr(command_out(), "library "), "library %lf %3s", &library, unit), 2);
    ck_assert_msg(strcmp(unit, "GiB") == 0 || library > 100, "%g %s", library, unit);
    expect(TRAIN "--steps 3 --device cpu --precision bf16 --out bf16-cpu", 0, "1 worker on cpu");
    check_losses("bf16", "bf16-cpu", 3, 0.02);
}

/* From a checkpoint of the CPU, against the whole run there; in the numbers stored, where the default would be bf16. */
TEST(a_run_goes_on_on_the_other_device)
{
    expect(TRAIN "--schedule constant --device cpu --steps 4 --out whole", 0);
    expect(TRAIN "--schedule constant --device cpu --steps 2 --out halves", 0);
    expect("cuda/eps train --resume halves --steps 4 --device cuda", 0, "1 worker on cuda", ", fp32\n");
    check_losses("halves", "whole", 4, 1e-4);
}

/* Greedily, so that both take the same tokens. */
TEST(a_model_is_evaluated_and_speaks_on_cuda_as_on_the_cpu)
{
    static const char *const devices[] = {"cuda", "cpu"};
    double losses[2];
    char *texts[2];

    expect(TRAIN "--lr 1e-2 --steps 12 --device cpu --out spoken", 0);
    for (int i = 0; i < 2; i++) {
        json_t *said =
            expect_json(print("cuda/eps eval --model spoken --data data.txt --json --device %s", devices[i]), 0);
        losses[i] = json_number_at(said, "loss");
        json_decref(said);
        said = expect_json(print("cuda/eps generate --model spoken --prompt T --prompt 'An ' --tokens 6 "
                                 "--temperature 0 --json --device %s",
                                 devices[i]),
                           0);
        ck_assert_uint_eq(json_array_size(json_at(said, "1.ids")), 6);
        json_t *ids = json_pack("[O,O]", json_at(said, "0.ids"), json_at(said, "1.ids"));
        texts[i] = json_dumps(ids, 0);
        json_decref(ids), json_decref(said);
    }
    ck_assert_double_eq_tol(losses[0], losses[1], 1e-4);
    ck_assert_str_eq(texts[0], texts[1]);
    free(texts[0]), free(texts[1]);
}

/* The first steps overflow and are skipped, with the same factor of the loss; 11 bits of each number leave losses so
 * near. */
TEST(what_overflows_in_fp16_is_skipped_as_on_the_cpu)
{
    static const char job[] = "--model big.json --data data.txt --batch 2 --seq 8 --order sequential --steps 6 "
                              "--precision fp16 --grad-dtype fp16";
    static const char *const devices[] = {"cuda", "cpu"};
    char *scales[2];

    for (int i = 0; i < 2; i++) {
        expect(print("cuda/eps train %s --device %s --out big-%s", job, devices[i], devices[i]), 0);
        expect(print("grep -c skipped big-%s/metrics.jsonl", devices[i]), 0);
        ck_assert_int_ge(atoi(command_out()), 2);
        ck_assert_int_le(atoi(command_out()), 5);
        expect(print("grep -oE '\"(loss_scale|skipped)\"[^,}]*' big-%s/metrics.jsonl", devices[i]), 0);
        scales[i] = strdup(command_out());
    }
    ck_assert_str_eq(scales[0], scales[1]);
    check_losses("big-cuda", "big-cpu", 6, 0.01);
    free(scales[0]), free(scales[1]);
}

/* From a device with room for the whole head and every activation to the least, in each type: at the same microbatch,
 * of two units of the vocabulary. On from a checkpoint with less in 16 bits; and, with --deterministic, on two devices
 * in fp32. */
TEST_EACH(no_budget_of_a_cuda_device_changes_a_bit, 3)
{
    static const char *const types[] = {"fp32", "bf16", "fp16 --grad-dtype fp16"};
    const char *run =
        print("--model words.json --batch 4 --seq 8 --parts 2 --microbatch 1 --device cuda --precision %s", types[_i]);
    const char *train = print("cuda/eps train %s --data words.bin --eval-data words.bin --steps 2 --save-every 1 "
                              "--keep 0 --out",
                              run);
    char least[32];

    expect(print("rm -rf roomy tight other; eps plan %s --minimum", run), 0);
    snprintf(least, sizeof least, "%.*s", (int)strcspn(command_out(), "\n"), command_out());
    expect(print("%s roomy --device-mem 2GiB -v", train), 0, "activation checkpoints: on the device");
    expect(print("%s tight --device-mem %s", train, least), 0, "activation checkpoints on the host",
           "at most (as planned)");
    if (_i)
        expect(print("cuda/eps train --resume roomy/step-1 --out other --device-mem %s", least), 0);
    else
        expect(print("CUDASIM_DEVICES=2 %s other --workers 2 --deterministic", train), 0, "2 workers on cuda");
    outputs_check_same_latest("roomy", "tight");
    outputs_check_same_latest("roomy", "other");
}

/* Of a library that is not this one, so that each worker who is told of its algorithms says so. */
static const char profile[] =
    "{\"device\": \"cuda\", \"matmul_flops\": {\"fp32\": {\"64\": 1e12, \"512\": 1e12, \"4096\": 1e12, "
    "\"32768\": 1e12}, \"bf16\": {\"64\": 1e12, \"512\": 1e12, \"4096\": 1e12, \"32768\": 1e12}}, "
    "\"link_bytes_per_s\": 1e10, \"memory_bytes_per_s\": 1e12, \"update_parameters_per_s\": 1e9, "
    "\"products\": {\"cublaslt\": 777, \"bf16\": {\"forward\": {\"512\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}}}";

/* A run, and how many of its workers were told of that library's algorithms. */
static void told(const char *run, const char *out, bool has_profile, unsigned least, unsigned most)
{
    expect("rm -rf cache; mkdir -p cache/eps", 0);
    if (has_profile)
        processes_put_text("cache/eps/profile-cuda.json", profile);
    expect(print("XDG_CACHE_HOME=$PWD/cache CUDASIM_DEVICES=2 cuda/eps train %s --out %s", run, out), 0);
    const unsigned n = processes_count(print("%s/log", out), "were chosen for cuBLASLt 777");
    ck_assert_msg(n >= least && n <= most, "%s: %u", out, n);
}

/* What the first worker's profile has goes to all of them, and into the checkpoint: on with it where the profile has
 * gone, and on without it where there is one now. */
TEST(the_algorithms_of_products_are_a_run_s_from_its_beginning)
{
    static const char begun[] = MODEL "--steps 2 --save-every 1 --keep 0 --device cuda --workers 2 --parts 2";

    told(begun, "with", true, 2, 2);
    expect_file("with/step-1/training.json", "\"cublaslt\"");
    told("--resume with/step-1", "with-on", false, 1, 2);
    expect_file("with-on/step-2/training.json", "\"cublaslt\"");
    told(begun, "without", false, 0, 0);
    told("--resume without/step-1", "without-on", true, 0, 0);
}

/* What goes wrong before the first step: by the environment, of which the simulated device alone knows. All sentences
 * are test_cuda.c's; these come from the worker, the module's place, the second worker, an open that fails, and the
 * budget. */
static const char *const refusals[][2] = {
    {"plain/eps train", "eps-cuda.so is neither in"},
    {"CUDASIM_DEVICES=1 cuda/eps train --workers 2", "there is no device cuda:1: 1 is there"},
    {"CUDASIM_FAIL=cudaGetDeviceCount:0:35 cuda/eps train", "the NVIDIA driver is missing or too old"},
    {"CUDASIM_FAIL=cudaMalloc:1:2 cuda/eps train", "the device's memory is full: lower --device-mem"},
    {"CUDASIM_LOSE=cudaStreamSynchronize:0:719 cuda/eps train", "the device is lost"},
    {"CUDASIM_MEMORY=1073741824 cuda/eps train --device-mem 3GiB",
     "--device-mem 3221225472 (3.0 GiB): of cuda:0 only "},
};

TEST_EACH(what_the_device_lacks_is_one_sentence_and_leaves_nothing, COUNT(refusals))
{
    expect_sentence(print("%s " MODEL "--device cuda --out refused", refusals[_i][0]), 1, refusals[_i][1]);
    ck_assert_int_ne(access("refused", F_OK), 0);
}

TEST(a_worker_without_the_devices_module_is_not_worth_starting_again)
{
    expect_sentence("plain/eps-worker --device cuda", 2, "eps-cuda.so is neither in");
    expect_sentence("CUDASIM_DEVICES=1 cuda/eps-worker --device cuda:1", 1, "there is no device cuda:1: 1 is there");
}

/* Numbers, of a daemon's workers too, are those of the devices that the run sees. */
TEST(workers_take_the_devices_that_cuda_visible_devices_leaves)
{
    expect("CUDASIM_DEVICES=4 CUDA_VISIBLE_DEVICES=3,GPU-8f2c0001 " TRAIN
           "--steps 1 --device cuda --workers 2 --parts 2 --out visible",
           0, "2 workers on cuda");
    expect_file("visible/log", "cuda:0 is the cudasim at 0000:3e:00.0");
    expect_file("visible/log", "cuda:1 is the cudasim at 0000:3c:00.0");
    expect_sentence("CUDASIM_DEVICES=4 CUDA_VISIBLE_DEVICES=3 " TRAIN "--workers 2 --device cuda --out refused", 1,
                    "there is no device cuda:1: 1 is there, counted from 0: GPU-8f2c0003 at 0000:3e:00.0 (of those in "
                    "CUDA_VISIBLE_DEVICES=3)");
}

TEST_EACH(a_device_is_named_by_its_uuid_or_its_pci_address, 2)
{
    static const char *const names[] = {"cuda:GPU-8f2c0002", "cuda:3d:00.0"};

    expect(print("rm -rf named; CUDASIM_DEVICES=3 " TRAIN "--steps 1 --device %s --out named", names[_i]), 0,
           "1 worker on cuda");
    expect_file("named/log", "cuda:2 is the cudasim at 0000:3d:00.0");
    expect_sentence(print("CUDASIM_DEVICES=3 " TRAIN "--device %s --workers 2 --out refused", names[_i]), 2,
                    "names one device, and --workers 2 need one each");
}

/* Of the job's memory: the weights, of which it pulls all in each step, its own inbox and its own stash, in whole
 * pages. Beside them four pieces of 1 MiB, for copies of other memory. */
TEST(a_worker_registers_what_it_copies_and_no_more)
{
    enum { PAGE = 4096, WORKERS = 2, PIECES = 4 << 20 };
    static const char options[] = "--model model.json --batch 4 --seq 8 --parts 2 --workers 2 --device cuda";
    uint64_t bytes = PIECES;
    char least[32];

    expect(print("eps plan %s --minimum", options), 0);
    snprintf(least, sizeof least, "%.*s", (int)strcspn(command_out(), "\n"), command_out());
    json_t *plan = expect_json(print("eps plan %s --device-mem %s --json", options, least), 0);
    const double weights = json_number_at(plan, "host.categories.weights.current") +
                           json_number_at(plan, "host.categories.replay.current"),
                 own[] = {json_number_at(plan, "host.categories.inbox.current") / WORKERS,
                          json_number_at(plan, "host.categories.stash.current") / WORKERS};
    json_decref(plan);
    bytes += ((uint64_t)weights + PAGE - 1) / PAGE * PAGE;
    for (int i = 0; i < 2; i++)
        bytes += ((uint64_t)own[i] + PAGE - 1) / PAGE * PAGE;
    for (uint64_t missing = 0; missing <= PAGE; missing += PAGE) {
        expect(
            print("rm -rf registered; CUDASIM_DEVICES=2 CUDASIM_REGISTERED=%" PRIu64
                  " cuda/eps train %s --data data.txt --eval-data data.txt --steps 1 --device-mem %s --out registered",
                  bytes - missing, options, least),
            0);
        ck_assert_uint_eq(processes_count("registered/log", "cannot be locked for the device"), missing ? WORKERS : 0);
    }
}

/* A machine of two sockets, as hwloc reads it from a file; there it binds nothing, so what the log says is all that can
 * be seen. On this machine, which has no such devices, it says nothing. */
TEST(memory_and_threads_are_near_their_devices)
{
    static const char run[] = "CUDASIM_DEVICES=3 " TRAIN "--steps 1 --parts 2 --device-mem 1GiB --device";

    setenv("HWLOC_XMLFILE", TESTS_DIR "/fixtures/topology/two_sockets.xml", 1);
    expect(print("%s cuda --workers 2 --out sockets", run), 0);
    expect_file("sockets/log", "memory: the inbox of the worker at 0000:3b:00.0 lies on node 0, near the device\n");
    expect_file("sockets/log", "memory: the inbox of the worker at 0000:3c:00.0 lies on node 1, near the device\n");
    expect_file("sockets/log", "memory: the weights lie in turn on nodes 0-1, near the devices\n");
    expect_file("sockets/log", "threads run on processors 0-1, near the device at 0000:3b:00.0\n");
    expect_file("sockets/log", "threads run on processors 2-3, near the device at 0000:3c:00.0\n");
    expect(print("%s cuda:1 --out second", run), 0);
    expect_file("second/log", "memory: the weights lie on node 1, near the device\n");
    expect(print("%s cuda:2 --out unknown", run), 0);
    unsetenv("HWLOC_XMLFILE");
    expect(print("%s cuda --out here", run), 0);
    expect("cat unknown/log here/log", 0);
    ck_assert_ptr_null(strstr(command_out(), "near the device"));
}

/* Of the CPU there is always one; where there is a driver (any library goes for it), and a device that does not do, the
 * log says why. */
TEST_EACH(auto_is_cuda_where_it_is_and_else_the_cpu, 4)
{
    static const struct {
        const char *environment, *programs, *device;
    } cases[] = {{"LD_LIBRARY_PATH=$PWD/driver CUDASIM_MAJOR=9", "cuda", "cuda"},
                 {"LD_LIBRARY_PATH=$PWD/driver CUDASIM_MAJOR=7", "cuda", "cpu"},
                 {"CUDASIM_MAJOR=9", "cuda", "cpu"},
                 {"LD_LIBRARY_PATH=$PWD/driver CUDASIM_MAJOR=9", "plain", "cpu"}};

    expect(print("ln -f cuda/eps-cuda.so driver/libcuda.so.1; rm -rf auto; %s %s/eps train " MODEL
                 "--steps 1 --out auto",
                 cases[_i].environment, cases[_i].programs),
           0, print("1 worker on %s\n", cases[_i].device));
    ck_assert_uint_eq(processes_count("auto/log", "the CPU computes instead"), _i == 1);
}

/* Each worker is lost after three steps, and another one started on the device. */
TEST(a_run_whose_device_is_lost_goes_on_with_the_same_bits)
{
    expect(TRAIN "--steps 8 --device cuda --out unharmed", 0);
    expect("CUDASIM_LOSE=cublasLtMatmul:100:719 " TRAIN "--steps 8 --device cuda --out lost", 0, "the device is lost",
           "another one is started");
    expect("cmp unharmed/latest/model.safetensors lost/latest/model.safetensors", 0);
}

/* No worker ends its first step. */
TEST(a_run_whose_device_stays_lost_ends_with_a_sentence_and_goes_on_elsewhere)
{
    expect(TRAIN "--steps 2 --device cuda --out gone", 0);
    expect("CUDASIM_LOSE=cublasLtMatmul:10:719 cuda/eps train --resume gone --steps 4", 1, "the device is lost",
           "eps train --resume");
    expect("cuda/eps train --resume gone --steps 4 --device cpu", 0, ", bf16\n");
}

static pid_t attach(const char *device, const char *log, uint32_t n_workers)
{
    const char *const argv[] = {"--connect", "lab", "--device", device, NULL};
    const pid_t worker = processes_start(processes_path("cuda/eps-worker"), argv, log);

    processes_await_workers("lab", n_workers);
    return worker;
}

/* Its name is free then. */
static void end(pid_t daemon, pid_t worker, pid_t other)
{
    kill(daemon, SIGTERM); /* a killed one's workers would wait for the next */
    ck_assert_int_eq(processes_wait(daemon), 0);
    processes_wait(worker);
    if (other)
        processes_wait(other);
}

/* A run of two workers with this version of cuDNN; how all of them compute attention, and what checkpoints say of
 * it. */
static void attend(const char *run, const char *out, const char *version, const char *told, const char *stored)
{
    expect(print("CUDASIM_DNN=%s XDG_CACHE_HOME=$PWD/cache CUDASIM_DEVICES=2 cuda/eps train %s --out %s", version, run,
                 out),
           0);
    const unsigned n = processes_count(print("%s/log", out), told);
    ck_assert_msg(n == 2, "%s: %u of 2 workers: %s", out, n, processes_read(processes_path(print("%s/log", out))));
    expect_file(print("%s/latest/training.json", out), print("\"attention\":\"%s\"", stored));
}

/* Nothing is taken for faster than our kernels that was not timed on the device; the faster then. A run keeps its way,
 * whatever was timed since. */
TEST(the_way_of_attention_is_a_run_s_from_its_beginning)
{
    static const char ours[] = "attention: our own kernels: the job's way (--attention)",
                      theirs[] = "attention: cuDNN 9.25.1 forward and backward; it took",
                      timed[] =
                          "{\"device\": \"cuda\", \"attention\": \"ordered\", \"attention_flops\": {\"cudnn\": "
                          "{\"forward\": {\"fp32\": 0, \"bf16\": 1e15}, \"backward\": {\"fp32\": 0, \"bf16\": 1e15}}},";
    static const char begun[] = MODEL "--steps 2 --save-every 1 --keep 0 --device cuda --workers 2 --parts 2";

    expect("rm -rf cache; mkdir -p cache/eps", 0);
    attend(begun, "ours", "92501", ours, "own");
    attend(print("%s --attention cudnn", begun), "asked", "92501", theirs, "ordered");
    processes_put_text("cache/eps/profile-cuda.json", print("%s%s", timed, strchr(profile, ',') + 1));
    attend(begun, "theirs", "92501", theirs, "ordered");
    attend(begun, "older", "91900", ours, "own"); /* not timed: it has another way */
    attend("--resume ours/step-1", "ours-on", "92501", ours, "own");
    expect("rm -rf cache", 0);
    attend("--resume theirs/step-1", "theirs-on", "92501", theirs, "ordered");
    expect_sentence("CUDASIM_DNN=91900 CUDASIM_DEVICES=2 cuda/eps train --resume theirs/step-1 --out refused", 1,
                    "--attention ordered: the device's cuDNN has another way, scores: choose --attention own, in a "
                    "resumed run with --change attention");
    attend("--resume theirs/step-1 --change attention --attention own", "changed", "91900", ours, "own");
}

/* Parts go to either, so both must have the same gradients. */
TEST(a_worker_without_the_jobs_way_of_attention_is_left_out)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL);

    setenv("CUDASIM_DEVICES", "2", 1);
    setenv("CUDASIM_DNN", "92501", 1);
    const pid_t with = attach("cuda:0", "with.log", 1);
    unsetenv("CUDASIM_DNN");
    const pid_t without = attach("cuda:1", "without.log", 2);
    expect(TRAIN "--steps 3 --connect lab --precision bf16 --parts 2 --attention cudnn --out differ", 0,
           "is left out: --attention cudnn: the device has no cuDNN");
    end(daemon, with, without);
    expect_file("with.log", "attention: cuDNN 9.25.1 forward and backward; it took");
}

/* Blocks of a GPT-2 and of a Qwen 3 in a Llama: the first shape's line, and behind it that of heads which share no
 * keys. */
TEST(attention_of_every_block_is_prepared)
{
    static const char model[] =
        "{\"model_type\": \"eps_llama\", \"num_hidden_layers\": 3, \"hidden_size\": 24, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 8, \"intermediate_size\": 24, \"vocab_size\": 256, "
        "\"max_position_embeddings\": 64, \"eps_blocks\": [{\"blocks\": [1], \"config\": {\"model_type\": \"gpt2\", "
        "\"n_head\": 3, \"attn_pdrop\": 0.0, \"resid_pdrop\": 0.0}}, {\"blocks\": [2], \"config\": {\"model_type\": "
        "\"qwen3\", \"hidden_size\": 24, \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"head_dim\": 8, "
        "\"intermediate_size\": 24, \"use_sliding_window\": true, \"sliding_window\": 4, \"max_window_layers\": 0}}]}";
    const pid_t daemon = processes_daemon("lab", 0, NULL);

    processes_write("guests.json", model, sizeof model - 1);
    setenv("CUDASIM_DNN", "91900", 1);
    const pid_t worker = attach("cuda", "guests.log", 1);
    expect("cuda/eps train --model guests.json --data data.txt --eval-data data.txt --seq 20 --batch 2 --steps 2 "
           "--connect lab --precision "
           "bf16 --attention cudnn --out guests",
           0);
    end(daemon, worker, 0);
    unsetenv("CUDASIM_DNN");
    expect_file(
        "guests.log",
        "attention: cuDNN 9.19.0 forward, our own kernels backward (they are better for this shape); 3 heads of "
        "8: forward, our own kernels backward (it has none for this shape); it took");
}

/* Version 1.0 of numpy's format: 40 images of 8 x 8 in colour, and their classes. */
static void put_images(void)
{
    enum { N = 40, SIDE = 8, HEADER = 128, EACH = 3 * SIDE * SIDE };
    static const char *const names[] = {"images.npy", "labels.npy"}, *const shapes[] = {"40, 8, 8, 3", "40,"};
    static const size_t n_bytes[] = {N * EACH, N};

    for (int f = 0; f < 2; f++) {
        static uint8_t file[HEADER + N * EACH];
        char header[HEADER];
        const int n =
            snprintf(header, sizeof header, "{'descr': '|u1', 'fortran_order': False, 'shape': (%s), }", shapes[f]);
        memset(file, ' ', HEADER);
        memcpy(file, "\x93NUMPY\1\0\x76\0", 10);
        memcpy(file + 10, header, (size_t)n);
        file[HEADER - 1] = '\n';
        for (size_t i = 0; i < n_bytes[f]; i++)
            file[HEADER + i] = (uint8_t)(f == 1 ? i % 5 : 2 * processes_token(i) + 13 * (i / EACH % 5));
        processes_write(names[f], file, HEADER + n_bytes[f]);
    }
}

/* A block of 16 images and three by themselves, then one: by the library, all but the first one's gradient of weights.
 * The losses are those of our own kernels but for roundings. */
TEST(convolutions_are_cudnns_where_every_worker_has_it)
{
    static const char model[] = "{\"model_type\": \"wide_resnet\", \"depth\": 10, \"widen_factor\": 1, "
                                "\"image_size\": 8, \"num_channels\": 3, \"image_mean\": [0.5, 0.5, 0.5], "
                                "\"image_std\": [0.25, 0.25, 0.25], \"num_labels\": 5}";
    static const char train[] = "cuda/eps train --model net.json --data images.npy --image 8x8 --batch 40 --parts 2 "
                                "--microbatch 19 --steps 3 --precision bf16 --connect lab --seed 5 --lr 1e-3";

    put_images();
    processes_write("net.json", model, sizeof model - 1);
    for (int i = 0; i < 2; i++) {
        const pid_t daemon = processes_daemon("lab", 0, NULL);
        if (i == 0)
            setenv("CUDASIM_DNN", "92501", 1);
        else
            unsetenv("CUDASIM_DNN");
        const pid_t worker = attach("cuda", i ? "own.log" : "library.log", 1);
        expect(print("%s --out %s", train, i ? "own" : "library"), 0);
        end(daemon, worker, 0);
    }
    expect_file("library.log", "convolutions: cuDNN 9.25.1 computes 52 of 54, our own kernels the others; it took");
    expect_file("own.log", "convolutions: our own kernels: no libcudnn_graph.so.9 of this CUDA was found");
    check_losses("library", "own", 3, 0.01);
}

TEST(a_worker_on_a_lost_device_ends_and_the_step_goes_on_with_the_next)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL);
    const char *line = print("exec " TRAIN "--steps 3 --connect lab --out served >served.said");

    setenv("CUDASIM_LOSE", "cublasLtMatmul:10:719", 1);
    const pid_t lost = attach("cuda", "worker.log", 1);
    const pid_t train = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, "served.err");
    ck_assert_int_eq(processes_wait(lost), 1);
    expect_file("worker.log", "the device is lost");
    processes_await_text("served.said", "the step waits for another worker to attach");
    unsetenv("CUDASIM_LOSE");
    const pid_t next = attach("cuda", NULL, 1);
    ck_assert_int_eq(processes_wait(train), 0);
    expect_file("served.said", "(cuda:0) was lost");
    end(daemon, next, 0);
}

TEST(a_cuda_worker_and_one_on_the_cpu_share_a_job_unless_its_bits_must_be_the_same)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL);
    const pid_t workers[] = {attach("cuda", NULL, 1), attach("cpu", NULL, 2)};

    expect_sentence(TRAIN "--steps 3 --connect lab --deterministic --out mixed", 1,
                    "--deterministic requires workers of one kind");
    expect(TRAIN "--steps 3 --connect lab --out mixed", 0, "workers of lab, on cpu and cuda\n", ", fp32\n");
    expect(TRAIN "--steps 3 --device cpu --parts 2 --out mixed-cpu", 0);
    check_losses("mixed", "mixed-cpu", 3, 1e-4);
    end(daemon, workers[0], workers[1]);
}

/* Where attention is our own kernels', too. */
TEST_EACH(a_worker_on_the_cpu_joins_a_job_that_began_on_cuda_unless_its_bits_must_be_the_same, 3)
{
    const pid_t daemon = processes_start("epsd", (const char *const[]){"--listen", "lab", NULL}, "lab.log");
    const char *line = print("exec " TRAIN "--steps 1000000 --parts 2 --connect lab --precision bf16 --save-every 0 "
                             "--eval-every 1000000 %s --out joined-%d >joined.said",
                             ((const char *const[]){"", "--deterministic", "--attention cudnn"})[_i], _i);

    processes_await_workers("lab", 0);
    setenv("CUDASIM_DNN", "92501", 1);
    const pid_t first = attach("cuda", "first.log", 1);
    unsetenv("CUDASIM_DNN");
    const pid_t train = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, "joined.err");
    processes_await_text(print("joined-%d/metrics.jsonl", _i), "\"step\": 2,");
    const pid_t second = attach("cpu", NULL, 2);
    if (_i) {
        processes_await_text("joined.said", _i == 1
                                                ? " is left out: --deterministic requires workers of one kind, and the "
                                                  "job has cuda"
                                                : " is left out: --attention cudnn: the device has no cuDNN");
    } else {
        processes_await_text("lab.log", " joins after ");
        expect("eps status lab --json", 0, "\"left_out\": []", "\"idle_workers\": 0");
    }
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(train), 1);
    ck_assert_int_eq(processes_wait(first) | processes_wait(second), 0);
    expect_file("first.log", _i == 2 ? "attention: cuDNN 9.25.1 forward and backward; it took"
                                     : "attention: our own kernels: the job's way (--attention)");
}
