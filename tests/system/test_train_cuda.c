/* A CUDA device from end to end: real daemons and workers, whose device is the simulated one (tests/sim). The
 * programs stand in a directory of their own, beside its module. */
#include "client/eps.h"
#include "proto/plan/backend.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(cuda, release)

enum { BATCH = 4, SEQ = 8, STEPS = 3, N_TOKENS = 6 };

static const char *files[1];

/* The programs, and with a module the device: in the directory `name`. A link's path is its own, a symbolic one's is
 * not. */
static void link_programs(const char *name, bool module)
{
    const char *const programs[] = {"eps", "epsd", "eps-worker", "cudasim/eps-cuda.so"};
    char command[2048];

    ck_assert_int_eq(mkdir(processes_path(name), 0700), 0);
    for (size_t i = 0; i < 3 + (size_t)module; i++) {
        snprintf(command, sizeof command, "cp -l %s/%s %s 2>/dev/null || cp %s/%s %s", BIN_DIR, programs[i],
                 processes_path(name), BIN_DIR, programs[i], processes_path(name));
        ck_assert_int_eq(system(command), 0);
    }
}

static void setup(void)
{
    processes_setup();
    link_programs("cuda", true);
    link_programs("plain", false);
    processes_config("model.json", 2, 2, 16, SEQ);
    processes_text("data.txt", 120);
    setenv("CUDASIM_MEMORY", "2147483648", 1);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* What a run said. */
struct told {
    char device[32];
    enum eps_number precision;
    unsigned n_steps, n_workers;
    double losses[16], last;
    uint64_t planned, peak, library, budget;
    char devices[4][32]; /* (n_workers) */
};

static void on_start(void *user, const struct eps_train_options *resolved, uint64_t n_parameters)
{
    struct told *t = user;

    (void)n_parameters;
    snprintf(t->device, sizeof t->device, "%s", resolved->device);
    t->precision = resolved->precision;
    t->budget = resolved->device_mem;
}

static void on_step(void *user, const struct eps_step *step)
{
    struct told *t = user;

    ck_assert_uint_lt(t->n_steps, 16);
    t->losses[t->n_steps++] = t->last = step->loss;
}

static void on_memory(void *user, const struct eps_memory *side)
{
    struct told *t = user;

    if (side->worker == 0)
        return;
    ck_assert_uint_eq(side->peak, side->planned);
    for (size_t i = 0; i < side->n_rows; i++) {
        ck_assert_uint_eq(side->rows[i].peak, side->rows[i].planned);
        if (strcmp(side->rows[i].category, "library") == 0)
            t->library = side->rows[i].peak;
    }
    t->planned = side->planned;
    t->peak = side->peak;
    snprintf(t->devices[t->n_workers++], 32, "%s", side->device);
}

static struct eps_train_options options_of(const char *out, const char *device)
{
    static char programs[300];

    files[0] = processes_path("data.txt");
    struct eps_train_options options = processes_options(processes_path("model.json"), files, processes_path(out));
    snprintf(programs, sizeof programs, "%s", processes_path("cuda"));
    options.programs = programs;
    options.device = device;
    options.steps = STEPS, options.batch = BATCH, options.seq = SEQ;
    return options;
}

static int try_to_train(struct told *t, const struct eps_train_options *options, struct eps_error *error)
{
    static const struct eps_train_events events = {.on_start = on_start, .on_step = on_step, .on_memory = on_memory};

    *t = (struct told){.device = ""};
    return eps_train(options, &events, t, error);
}

static struct told train(const struct eps_train_options *options)
{
    struct eps_error error;
    struct told t;

    ck_assert_msg(try_to_train(&t, options, &error) == 0, "%s", error.text);
    return t;
}

/* The same arithmetic in another order: losses agree to fp32's rounding, or to that of bf16, of 8 bits. */
static void check_losses(const struct told *a, const struct told *b, double tolerance)
{
    ck_assert_uint_eq(a->n_steps, b->n_steps);
    for (unsigned i = 0; i < a->n_steps; i++)
        ck_assert_double_eq_tol(a->losses[i], b->losses[i], tolerance);
}

TEST(a_run_on_cuda_is_one_in_bf16_and_takes_what_is_planned)
{
    struct eps_train_options options = options_of("bf16", "cuda");
    const struct told cuda = train(&options);

    ck_assert_str_eq(cuda.device, "cuda");
    ck_assert_int_eq(cuda.precision, EPS_BF16);
    ck_assert_str_eq(cuda.devices[0], "cuda:0");
    ck_assert_uint_eq(cuda.n_workers, 1);
    ck_assert_uint_eq(cuda.peak, cuda.planned);
    ck_assert_uint_gt(cuda.library, 100 << 20); /* a context is hundreds of MiB, and the plan counts it */
    ck_assert_uint_le(cuda.planned, cuda.budget);
    options = options_of("bf16-cpu", "cpu"), options.precision = EPS_BF16;
    const struct told cpu = train(&options);
    ck_assert_str_eq(cpu.device, "cpu");
    check_losses(&cuda, &cpu, 0.02);
}

/* From a checkpoint of the CPU, against the whole run there. */
TEST(a_run_goes_on_on_the_other_device)
{
    struct eps_train_options options = options_of("whole", "cpu"), rest = eps_train_defaults();

    options.schedule = EPS_SCHEDULE_CONSTANT, options.steps = 4, options.precision = EPS_FP32;
    const struct told whole = train(&options);
    options.out = processes_path("halves"), options.steps = 2;
    train(&options);
    rest.resume = processes_path("halves"), rest.programs = options.programs, rest.device = "cuda";
    rest.steps = 4;
    const struct told half = train(&rest);
    ck_assert_str_eq(half.device, "cuda");
    ck_assert_int_eq(half.precision, EPS_FP32); /* as stored, where the default would be bf16 */
    ck_assert_uint_eq(half.n_steps, 2);
    ck_assert_double_eq_tol(half.last, whole.last, 1e-4);
}

static double evaluate(const char *model, const char *device)
{
    const struct eps_eval_options options = {
        .model = model, .data = files, .n_data = 1, .programs = processes_path("cuda"), .device = device};
    struct eps_error error;
    uint64_t tokens;
    double loss;

    ck_assert_msg(eps_eval(&loss, &tokens, &options, NULL, NULL, &error) == 0, "%s", error.text);
    return loss;
}

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    uint32_t **next = user;

    (void)text;
    (void)n;
    *(*next)++ = id;
}

static void generate(uint32_t ids[N_TOKENS], const char *model, const char *device)
{
    static const struct eps_generate_events events = {.on_token = on_token};
    const struct eps_generate_options options = {.model = model,
                                                 .programs = processes_path("cuda"),
                                                 .device = device,
                                                 .prompt = "T",
                                                 .prompt_bytes = 1,
                                                 .n_tokens = N_TOKENS,
                                                 .top_p = NAN};
    struct eps_generated out;
    struct eps_error error;

    ck_assert_msg(eps_generate(&out, &options, &events, &ids, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(out.n_tokens, N_TOKENS);
}

/* Greedily, so that both take the same tokens. */
TEST(a_model_is_evaluated_and_speaks_on_cuda_as_on_the_cpu)
{
    struct eps_train_options options = options_of("spoken", "cpu");
    uint32_t cpu[N_TOKENS], cuda[N_TOKENS];

    options.lr = 1e-2, options.steps = 12;
    train(&options);
    const char *model = processes_path("spoken");
    ck_assert_double_eq_tol(evaluate(model, "cuda"), evaluate(model, "cpu"), 1e-4);
    generate(cuda, model, "cuda");
    generate(cpu, model, "cpu");
    ck_assert_mem_eq(cuda, cpu, sizeof cpu);
}

/* Of two units of the vocabulary, in two parts of two microbatches. */
static struct eps_train_options words_of(const char *out)
{
    struct eps_train_options options = options_of(out, "cuda");

    files[0] = processes_path("words.bin");
    options.model = processes_path("words.json");
    options.eval_data = files[0];
    options.parts = 2, options.microbatch = 1;
    return options;
}

static void write_words(void)
{
    static uint16_t ids[400];

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = (uint16_t)(processes_token(i) * 32);
    processes_config_with("words.json", 2, 2, 16, 8,
                          "\"vocab_size\": 8300, \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_write("words.bin", ids, sizeof ids);
}

/* Of this round of a loop. */
static const char *named(const char *name, int i)
{
    static char path[8][300];
    static unsigned n;
    char *to = path[n++ % 8];

    snprintf(to, sizeof *path, "%s-%d", processes_path(name), i);
    return to;
}

static struct told go_on(const char *from, const char *out, uint64_t device_mem)
{
    struct eps_train_options options = eps_train_defaults();
    char resumed[300];

    snprintf(resumed, sizeof resumed, "%s/step-1", from);
    options.programs = processes_path("cuda");
    options.resume = resumed, options.out = out, options.device_mem = device_mem;
    return train(&options);
}

/* From a device with room for the whole head and every activation to the least, in fp32 and bf16: at the same microbatch. On
 * from a checkpoint with less and with more; and, with --deterministic, on two devices. */
TEST_EACH(no_budget_of_a_cuda_device_changes_a_bit, 2)
{
    const char *const roomy = named("roomy", _i), *const other = named("other", _i), *const tight = named("tight", _i),
                      *const less = named("less", _i), *const more = named("more", _i), *const two = named("two", _i);
    struct eps_train_options options = words_of("words");
    struct eps_error error;
    uint64_t least;

    write_words();
    options.precision = _i ? EPS_BF16 : EPS_FP32;
    options.steps = 2, options.save_every = 1, options.keep = 0;
    ck_assert_int_eq(eps_plan_minimum(&least, &options, &error), 0);
    options.out = roomy, options.device_mem = (uint64_t)2 << 30;
    const uint64_t most = train(&options).peak;
    ck_assert_uint_gt(most, least);
    options.out = other, options.device_mem = (most + least) / 2;
    train(&options);
    outputs_check_same_latest(roomy, other);
    options.out = tight, options.device_mem = least;
    ck_assert_uint_eq(train(&options).peak, least);
    outputs_check_same_latest(roomy, tight);
    ck_assert_uint_eq(go_on(roomy, less, least).n_steps, 1);
    outputs_check_same_latest(roomy, less);
    ck_assert_uint_eq(go_on(tight, more, (uint64_t)2 << 30).n_steps, 1);
    outputs_check_same_latest(roomy, more);
    setenv("CUDASIM_DEVICES", "2", 1);
    options.out = two, options.device_mem = 0, options.workers = 2, options.deterministic = true;
    const struct told shared = train(&options);
    ck_assert_uint_eq(shared.n_workers, 2);
    ck_assert_str_ne(shared.devices[0], shared.devices[1]);
    outputs_check_same_latest(roomy, two);
}

/* Of a library that is not this one, so that each worker who is told of them says so. */
static void write_profile(void)
{
    static const char profile[] =
        "{\"device\": \"cuda\", \"matmul_flops\": {\"fp32\": {\"64\": 1e12, \"512\": 1e12, \"4096\": 1e12, "
        "\"32768\": 1e12}, \"bf16\": {\"64\": 1e12, \"512\": 1e12, \"4096\": 1e12, \"32768\": 1e12}}, "
        "\"link_bytes_per_s\": 1e10, \"memory_bytes_per_s\": 1e12, \"update_parameters_per_s\": 1e9, "
        "\"products\": {\"cublaslt\": 777, \"bf16\": {\"forward\": {\"512\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}}}}";

    mkdir(processes_path("cache"), 0700);
    mkdir(processes_path("cache/eps"), 0700);
    processes_write("cache/eps/profile-cuda.json", profile, sizeof profile - 1);
    setenv("XDG_CACHE_HOME", processes_path("cache"), 1);
}

static void forget_profile(void)
{
    unlink(processes_path("cache/eps/profile-cuda.json"));
    unsetenv("XDG_CACHE_HOME");
}

/* How many of a run's workers were told of that library's algorithms. */
static unsigned count_told(const char *out)
{
    char name[64];
    unsigned n = 0;

    snprintf(name, sizeof name, "%s/log", out);
    char *log = processes_read(processes_path(name));
    for (const char *at = log; (at = strstr(at, "were chosen for cuBLASLt 777")); at++)
        n++;
    free(log);
    return n;
}

static void begin_in(const char *out)
{
    struct eps_train_options options = options_of(out, "cuda");

    options.steps = 2, options.save_every = 1, options.keep = 0, options.workers = 2, options.parts = 2;
    train(&options);
}

static void go_on_in(const char *from, const char *out)
{
    struct eps_train_options rest = eps_train_defaults();

    rest.programs = processes_path("cuda");
    rest.resume = processes_path(from), rest.out = processes_path(out);
    train(&rest);
}

/* What the first worker's profile has goes to all of them, and into the checkpoint: on with it where the profile has gone,
 * and on without it where there is one now. */
TEST(the_algorithms_of_products_are_a_run_s_from_its_beginning)
{
    setenv("CUDASIM_DEVICES", "2", 1);
    write_profile();
    begin_in("with");
    ck_assert_uint_eq(count_told("with"), 2);
    expect_file("with/step-1/training.json", "\"cublaslt\"");
    forget_profile();
    go_on_in("with/step-1", "with-on");
    ck_assert_uint_ge(count_told("with-on"), 1);
    expect_file("with-on/step-2/training.json", "\"cublaslt\"");
    begin_in("without");
    ck_assert_uint_eq(count_told("without"), 0);
    write_profile();
    go_on_in("without/step-1", "without-on");
    ck_assert_uint_eq(count_told("without-on"), 0);
    forget_profile();
}

/* What goes wrong before the first step: by the environment, of which the simulated device alone knows. All sentences are
 * test_cuda.c's; these come from the worker, the module's place, the second worker, an open that fails, and the budget. */
static const struct {
    const char *programs, *name, *value, *device, *words;
    uint32_t workers;
    uint64_t device_mem;
} refusals[] = {
    {"plain", "CUDASIM_DEVICES", "1", "cuda", "eps-cuda.so is neither in", 1, 0},
    {"cuda", "CUDASIM_DEVICES", "1", "cuda", "there is no device cuda:1: 1 is there", 2, 0},
    {"cuda", "CUDASIM_FAIL", "cudaGetDeviceCount:0:35", "cuda", "the NVIDIA driver is missing or too old", 1, 0},
    {"cuda", "CUDASIM_FAIL", "cudaMalloc:1:2", "cuda", "the device's memory is full: lower --device-mem", 1, 0},
    {"cuda", "CUDASIM_LOSE", "cudaStreamSynchronize:0:719", "cuda", "the device is lost", 1, 0},
    {"cuda", "CUDASIM_MEMORY", "1073741824", "cuda", "--device-mem 3221225472 (3.0 GiB): of cuda:0 only ", 1,
     (uint64_t)3 << 30},
};

TEST_EACH(what_the_device_lacks_is_one_sentence_and_leaves_nothing, COUNT(refusals))
{
    struct eps_train_options options = options_of("refused", refusals[_i].device);
    struct eps_error error;
    struct told t;

    setenv(refusals[_i].name, refusals[_i].value, 1);
    options.programs = processes_path(refusals[_i].programs);
    options.workers = refusals[_i].workers, options.device_mem = refusals[_i].device_mem;
    ck_assert_int_ne(try_to_train(&t, &options, &error), 0);
    ck_assert_msg(strstr(error.text, refusals[_i].words) && !strchr(error.text, '\n'), "%s", error.text);
    ck_assert_int_eq(access(options.out, F_OK), -1);
}

/* Of the CPU there is always one; where there is a driver, and a device that does not do, the log says why. */
TEST_EACH(auto_is_cuda_where_it_is_and_else_the_cpu, 4)
{
    static const struct {
        const char *programs, *major, *device;
        bool driver;
    } cases[] = {{"cuda", "9", "cuda", true},
                 {"cuda", "7", "cpu", true},
                 {"cuda", "9", "cpu", false},
                 {"plain", "9", "cpu", true}};
    char name[16];

    ck_assert_int_eq(mkdir(processes_path("driver"), 0700), 0);
    snprintf(name, sizeof name, "auto%d", _i);
    struct eps_train_options options = options_of(name, NULL);
    options.programs = processes_path(cases[_i].programs);
    options.steps = 1;
    setenv("CUDASIM_MAJOR", cases[_i].major, 1);
    if (cases[_i].driver) { /* any library goes for the driver's */
        ck_assert_int_eq(link(processes_path("cuda/eps-cuda.so"), processes_path("driver/libcuda.so.1")), 0);
        setenv("LD_LIBRARY_PATH", processes_path("driver"), 1);
    }
    const struct told t = train(&options);
    ck_assert_str_eq(t.device, cases[_i].device);
    ck_assert_str_eq(t.devices[0], strcmp(t.device, "cuda") == 0 ? "cuda:0" : "cpu");
    snprintf(name, sizeof name, "auto%d/log", _i);
    char *log = processes_read(processes_path(name));
    ck_assert_int_eq(strstr(log, "the CPU computes instead") != NULL, _i == 1);
    free(log);
    unlink(processes_path("driver/libcuda.so.1"));
    rmdir(processes_path("driver"));
}

/* Lost in the middle of the run, after its first checkpoint: on with it elsewhere. */
TEST(a_run_whose_device_is_lost_ends_with_a_sentence_and_goes_on_from_its_checkpoint)
{
    struct eps_train_options options = options_of("lost", "cuda"), rest = eps_train_defaults();
    struct eps_error error;
    struct told t;

    setenv("CUDASIM_LOSE", "cublasLtMatmul:400:719", 1);
    options.save_every = 1, options.steps = 1000;
    ck_assert_int_eq(try_to_train(&t, &options, &error), -EIO);
    ck_assert_msg(strstr(error.text, "the device is lost") && strstr(error.text, "eps train --resume"), "%s",
                  error.text);
    ck_assert_uint_gt(t.n_steps, 1);
    ck_assert_uint_lt(t.n_steps, 16);
    unsetenv("CUDASIM_LOSE");
    rest.resume = processes_path("lost"), rest.programs = options.programs, rest.steps = t.n_steps + 2;
    rest.device = "cpu";
    const struct told on = train(&rest);
    ck_assert_int_eq(on.precision, EPS_BF16);
}

static void on_state(void *user, const struct eps_status *status)
{
    snprintf(user, 32, "%s", status->state);
}

static bool is_idle(void *context)
{
    struct eps_error error;
    char *state = context;

    ck_assert_msg(eps_status("lab", on_state, state, &error) == 0, "%s", error.text);
    return strcmp(state, "idle") == 0;
}

static pid_t attach(const char *device, const char *log)
{
    const char *const argv[] = {"--connect", "lab", "--device", device, NULL};

    return processes_start(processes_path("cuda/eps-worker"), argv, log);
}

/* Its name is free then. */
static void end(pid_t daemon)
{
    kill(daemon, SIGKILL);
    ck_assert_int_eq(processes_wait(daemon), 128 + SIGKILL);
}

static void on_worker(void *user, const struct eps_memory *side)
{
    snprintf(user, 32, "%s", side->device);
}

static bool is_attached(void *context)
{
    struct eps_error error;
    char device[32] = "";

    return eps_mem("lab", on_worker, device, &error) == 0 && strcmp(device, context) == 0;
}

static void on_count(void *user, const struct eps_status *status)
{
    *(unsigned *)user = status->n_workers;
}

static bool are_two(void *context)
{
    unsigned n = 0;

    (void)context;
    return eps_status("lab", on_count, &n, NULL) == 0 && n == 2;
}

TEST(attention_is_cudnns_where_every_worker_has_it)
{
    struct eps_train_options options = options_of("theirs", NULL);
    char cuda[] = "cuda:0";

    setenv("CUDASIM_DNN", "92501", 1);
    const pid_t daemon = processes_daemon("lab", 0, NULL), worker = attach("cuda", processes_path("theirs.log"));
    ck_assert(processes_until(is_attached, cuda));
    options.connect = "lab", options.programs = NULL, options.precision = EPS_BF16;
    train(&options);
    end(daemon);
    processes_wait(worker);
    expect_file("theirs.log", "attention: cuDNN 9.25.1 forward and backward; it took");
}

/* Parts go to either, so both must have the same gradients. */
TEST(backward_is_ours_where_one_worker_has_no_cudnn)
{
    struct eps_train_options options = options_of("differ", NULL);
    char cuda[] = "cuda:0";

    setenv("CUDASIM_DEVICES", "2", 1);
    setenv("CUDASIM_DNN", "92501", 1);
    const pid_t daemon = processes_daemon("lab", 0, NULL), with = attach("cuda:0", processes_path("with.log"));
    ck_assert(processes_until(is_attached, cuda));
    unsetenv("CUDASIM_DNN");
    const pid_t without = attach("cuda:1", processes_path("without.log"));
    ck_assert(processes_until(are_two, NULL));
    options.connect = "lab", options.programs = NULL, options.precision = EPS_BF16, options.parts = 2;
    train(&options);
    end(daemon);
    processes_wait(with), processes_wait(without);
    expect_file("with.log",
                "attention: cuDNN 9.25.1 forward, our own kernels backward (another worker of the job has it not)");
    expect_file("without.log", "attention: our own kernels: no libcudnn_graph.so.9 was found");
}

TEST(a_worker_on_a_lost_device_ends_and_its_daemon_serves_the_next)
{
    struct eps_train_options options = options_of("served", NULL);
    const pid_t daemon = processes_daemon("lab", 0, NULL);
    const char *log = processes_path("worker.log");
    char state[32] = "", cuda[] = "cuda:0", cpu[] = "cpu";
    struct eps_error error;
    struct told t;

    setenv("CUDASIM_LOSE", "cublasLtMatmul:30:719", 1);
    pid_t worker = attach("cuda", log);
    ck_assert(processes_until(is_attached, cuda));
    options.connect = "lab", options.programs = NULL;
    ck_assert_int_eq(try_to_train(&t, &options, &error), -EIO);
    ck_assert_msg(strstr(error.text, "(cuda:0)") && strstr(error.text, "lost"), "%s", error.text);
    ck_assert_int_eq(processes_wait(worker), 1);
    expect_file(log, "the device is lost");
    ck_assert(processes_until(is_idle, state));
    worker = attach("cpu", NULL);
    ck_assert(processes_until(is_attached, cpu));
    options.out = processes_path("served-again");
    ck_assert_str_eq(train(&options).device, "cpu");
    kill(worker, SIGKILL);
    end(daemon);
}

TEST(a_cuda_worker_and_one_on_the_cpu_share_a_job_unless_its_bits_must_be_the_same)
{
    struct eps_train_options options = options_of("mixed", NULL);
    const pid_t daemon = processes_daemon("lab", 0, NULL), workers[] = {attach("cuda", NULL), attach("cpu", NULL)};
    struct eps_error error;
    struct told t;

    ck_assert(processes_until(are_two, NULL));
    options.connect = "lab", options.deterministic = true;
    ck_assert_int_eq(try_to_train(&t, &options, &error), -EINVAL);
    ck_assert_msg(strstr(error.text, "--deterministic requires workers of one kind"), "%s", error.text);
    options.deterministic = false;
    const struct told mixed = train(&options);
    ck_assert_str_eq(mixed.device, "cpu and cuda");
    ck_assert_int_eq(mixed.precision, EPS_FP32);
    ck_assert_uint_eq(mixed.n_workers, 2);
    options = options_of("mixed-cpu", "cpu"), options.parts = 2;
    const struct told cpu = train(&options);
    check_losses(&mixed, &cpu, 1e-4);
    kill(workers[0], SIGKILL);
    kill(workers[1], SIGKILL);
    end(daemon);
}
