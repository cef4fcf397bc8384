/* Real runs at every kind of budget: whatever the device's memory, the files at the end are the same, byte for byte. The smallest that
 * `eps plan` names trains, and a byte less does not. */
#include "client/eps.h"
#include "tests/kit/outputs.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

SUITE_LABELS(release)

enum { SEQ = 20, STEPS = 3, ROOMY = 1 << 30 };

static void write_config(const char *name, unsigned n_layers, unsigned n_heads, unsigned width, unsigned vocabulary)
{
    processes_config_with(name, n_layers, n_heads, width, 32,
                          print("\"vocab_size\": %u, \"attn_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"resid_pdrop\": 0.1",
                                vocabulary));
}

static void setup(void)
{
    static uint16_t ids[2000];

    processes_setup();
    write_config("middle.json", 4, 3, 48, 256);
    write_config("wide.json", 1, 2, 128, 256);
    write_config("words.json", 2, 2, 16, 40000); /* a head of several units */
    write_config("shallow.json", 12, 1, 8, 256);
    write_config("deep.json", 384, 1, 8, 256);
    processes_text("text.txt", 8000);
    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
        ids[i] = (uint16_t)(processes_token(i) * 150);
    processes_write("words.bin", ids, sizeof ids);
    processes_text("held.txt", SEQ + 1); /* evaluated at the end of each run */
    processes_write("held.bin", ids, (SEQ + 1) * sizeof *ids);
}

SUITE_TIMEOUT(240)
SUITE_FIXTURE(setup, processes_remove)

/* What a run says of its device. */
struct seen {
    struct eps_choice choice;
    uint64_t device_planned, device_peak, steps;
};

static void on_plan(void *user, const struct eps_choice *choice, const struct eps_memory *host,
                    const struct eps_memory *device)
{
    struct seen *seen = user;

    (void)host;
    seen->choice = *choice;
    seen->device_planned = device->planned;
}

static void on_step(void *user, const struct eps_step *step)
{
    struct seen *seen = user;

    seen->device_peak = step->device_peak_bytes;
    seen->steps++;
}

static const struct eps_train_events events = {.on_plan = on_plan, .on_step = on_step};

static struct eps_train_options options_for(const char *model, const char *out)
{
    static const char *const files[][1] = {{"text.txt"}, {"words.bin"}};
    const bool words = strcmp(model, "words.json") == 0;
    struct eps_train_options o = processes_options(model, files[words], out);

    o.eval_data = words ? "held.bin" : "held.txt";
    o.steps = STEPS;
    o.batch = 12;
    o.seq = SEQ;
    o.microbatch = 3;
    o.parts = 2;
    o.save_every = 0;
    o.deterministic = true;
    return o;
}

static struct seen train(const struct eps_train_options *o)
{
    struct seen seen = {.steps = 0};
    struct eps_error error = {""};

    ck_assert_msg(eps_train(o, &events, &seen, &error) == 0, "%" PRIu64 " bytes: %s", o->device_mem, error.text);
    ck_assert_uint_gt(seen.steps, 0);
    ck_assert_uint_eq(seen.device_peak, seen.device_planned);
    ck_assert_uint_le(seen.device_peak, o->device_mem);
    return seen;
}

static uint64_t minimum(const struct eps_train_options *o)
{
    struct eps_error error = {""};
    uint64_t bytes;

    ck_assert_msg(eps_plan_minimum(&bytes, o, &error) == 0, "%s", error.text);
    return bytes;
}

static const struct {
    enum eps_number precision, moments, grad_dtype;
    double clip_norm; /* 0: eager */
} forms[] = {
    {EPS_FP32, EPS_FP32, EPS_FP32, 0},
    {EPS_BF16, EPS_FP32, EPS_FP32, 0},
    {EPS_BF16, EPS_BF16, EPS_BF16, 0.5},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static void set_form(struct eps_train_options *o, int i)
{
    o->precision = forms[i].precision;
    o->moments = forms[i].moments;
    o->grad_dtype = forms[i].grad_dtype;
    if (forms[i].clip_norm > 0)
        o->clip_norm = forms[i].clip_norm, o->optimizer = EPS_ADAMW;
}

static struct seen go_on(const char *from, const char *out, uint64_t device_mem)
{
    struct eps_train_options o = eps_train_defaults();

    o.resume = from, o.out = out, o.programs = BIN_DIR;
    o.device_mem = device_mem;
    return train(&o);
}

/* At the least memory the stash is on the host and one unit there at a time; with room, all stays and is kept. From
 * either a run goes on with the other, the rows at a time as stored; with a byte less than the least it is refused. */
TEST_EACH(no_budget_changes_a_bit_and_a_run_goes_on_at_another, N_FORMS)
{
    struct eps_train_options o = options_for("middle.json", "roomy");
    struct eps_error error;

    set_form(&o, _i);
    o.steps = 4, o.save_every = 2, o.keep = 0;
    const uint64_t least = minimum(&o);
    o.device_mem = ROOMY;
    const struct seen roomy = train(&o);
    ck_assert(!roomy.choice.host_stash && roomy.choice.n_kept == 4);
    ck_assert(go_on("roomy/step-2", "on", least).choice.host_stash);
    outputs_check_same_latest("roomy", "on");
    o.out = "least", o.device_mem = least;
    const struct seen tight = train(&o);
    ck_assert(tight.choice.host_stash && tight.choice.n_kept == 0);
    outputs_check_same_latest("roomy", "least");
    ck_assert(!go_on("least/step-2", "back", ROOMY).choice.host_stash);
    outputs_check_same_latest("roomy", "back");
    o.out = "two", o.device_mem = least * 5 / 4, o.workers = 2;
    train(&o);
    outputs_check_same_latest("roomy", "two");
    struct eps_train_options rest = eps_train_defaults();
    rest.resume = "least/step-2", rest.out = "refused", rest.programs = BIN_DIR, rest.device_mem = least - 1;
    ck_assert_int_eq(eps_train(&rest, NULL, NULL, &error), -ENOSPC);
    ck_assert_msg(strstr(error.text, "of device memory") != NULL, "%s", error.text);
}

static const struct {
    const char *model;
    uint32_t batch, parts, workers, microbatch;
    enum eps_number precision;
} models[] = {
    {"middle.json", 12, 1, 1, 0, EPS_FP32}, {"wide.json", 2, 2, 1, 0, EPS_FP32},
    {"words.json", 3, 1, 1, 0, EPS_BF16},   {"words.json", 12, 3, 2, 4, EPS_FP32},
    {"shallow.json", 2, 1, 1, 0, EPS_BF16},
};

TEST_EACH(the_minimum_trains_and_a_byte_less_is_refused_with_that_figure, COUNT(models))
{
    struct eps_train_options o = options_for(models[_i].model, "minimum");
    struct eps_error error = {""};
    struct seen seen = {.steps = 0};
    char bytes[64];

    o.batch = models[_i].batch;
    o.parts = models[_i].parts;
    o.workers = models[_i].workers;
    o.microbatch = models[_i].microbatch;
    o.precision = models[_i].precision;
    o.steps = 1;
    o.device_mem = minimum(&o);
    ck_assert_uint_eq(train(&o).device_peak, o.device_mem);
    snprintf(bytes, sizeof bytes, "(%" PRIu64 " bytes)", o.device_mem);
    o.out = "refused";
    o.device_mem--;
    ck_assert_int_eq(eps_train(&o, &events, &seen, &error), -ENOSPC);
    ck_assert_msg(strstr(error.text, bytes) != NULL, "%s", error.text);
    ck_assert_uint_eq(seen.steps, 0);
}

/* Constant memory: 384 layers in the bytes of 12, and the weights of a device with room for all of them. */
TEST(three_hundred_and_eighty_four_layers_train_in_the_memory_of_twelve)
{
    struct eps_train_options shallow = options_for("shallow.json", "shallow"), deep = options_for("deep.json", "deep"),
                             roomy = options_for("deep.json", "deep-roomy");

    shallow.steps = deep.steps = roomy.steps = 2;
    shallow.microbatch = deep.microbatch = roomy.microbatch = 6;
    shallow.device_mem = deep.device_mem = minimum(&shallow);
    roomy.device_mem = ROOMY;
    const struct seen a = train(&shallow), b = train(&deep), c = train(&roomy);
    ck_assert_uint_eq(a.device_peak, b.device_peak);
    ck_assert(b.choice.host_stash && !c.choice.host_stash);
    ck_assert_uint_eq(c.choice.n_kept, 384);
    outputs_check_same_latest("deep", "deep-roomy");
}
