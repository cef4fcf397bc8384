/* eps plan and eps train agree to the byte: over random models and options, also of families that only tests have, each
 * category of the host and of every worker has at its peak what eps_plan said without any of them. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(release)

enum { N_RUNS = 18, N_TOKENS = 400 };

static uint32_t state;

/* 0 .. n-1, by Numerical Recipes' congruential generator. */
static uint32_t draw(uint32_t n)
{
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)state * n >> 32);
}

static uint32_t within(uint32_t least, uint32_t most)
{
    return least + draw(most - least + 1);
}

static void setup(void)
{
    uint16_t ids[N_TOKENS];

    processes_setup();
    processes_know_families();
    for (size_t i = 0; i < N_TOKENS; i++)
        ids[i] = (uint16_t)processes_token(i);
    processes_write("data.bin", ids, sizeof ids);
    processes_text("data.txt", N_TOKENS);
}

SUITE_TIMEOUT(300)
SUITE_FIXTURE_ONCE(setup, processes_remove)

/* test_plan_train FIRST END: others than those of every day. */
static int first_run, end_run = N_RUNS;

static int choose_runs(int argc, char **argv)
{
    first_run = atoi(argv[1]);
    end_run = argc > 2 ? atoi(argv[2]) : N_RUNS;
    return -1;
}

SUITE_COMMAND(choose_runs)

/* A directory with config.json and, half of the time, what comes with a tokenizer, of some KiB. */
static const char *write_model(uint32_t n_layers, uint32_t n_positions, uint32_t vocabulary)
{
    static const uint32_t widths[] = {8, 24, 40, 64, 96};
    const uint32_t width = widths[draw(5)];
    char text[9100];

    expect("rm -rf drawn trained before && mkdir drawn", 0);
    processes_config_with("drawn/config.json", n_layers, 1u << draw(3), width, n_positions,
                          print("\"vocab_size\": %u, \"tie_word_embeddings\": %s", vocabulary,
                                draw(2) ? "true" : "false"));
    if (draw(3) == 0)
        expect("printf %5000s >>drawn/config.json", 0);
    for (uint32_t i = draw(3); i > 0; i--) {
        snprintf(text, sizeof text, "{\"x\": \"%*s\"}", (int)draw(9000), "\\n");
        processes_put_text(i > 1 ? "drawn/special_tokens_map.json" : "drawn/generation_config.json", text);
    }
    return "drawn/config.json";
}

/* A model whose blocks are of several layers. */
static const char *write_layered(const char *family, uint32_t n_layers, uint32_t n_positions, uint32_t vocabulary)
{
    const uint32_t heads = 1u << draw(3);

    expect("rm -rf drawn trained before && mkdir drawn", 0);
    return processes_put_text(
        "drawn/config.json",
        print("{\"model_type\": \"%s\", \"num_hidden_layers\": %u, \"num_attention_heads\": %u, "
              "\"num_key_value_heads\": %u, \"head_dim\": %u, \"hidden_size\": %u, \"intermediate_size\": %u, "
              "\"max_position_embeddings\": %u, \"vocab_size\": %u, \"tie_word_embeddings\": %s}",
              family, n_layers, heads, draw(2) ? heads : 1, 2 * within(1, 20), within(1, 70), 4 * within(1, 50),
              n_positions, vocabulary, draw(2) ? "true" : "false"));
}

/* A model whose blocks differ. */
static const char *write_alternating(uint32_t n_layers, uint32_t n_positions, uint32_t vocabulary)
{
    const uint32_t heads = 1u << draw(3);

    expect("rm -rf drawn trained before && mkdir drawn", 0);
    return processes_put_text(
        "drawn/config.json",
        print("{\"model_type\": \"alternating\", \"num_hidden_layers\": %u, \"num_attention_heads\": %u, "
              "\"num_key_value_heads\": %u, \"head_dim\": %u, \"hidden_size\": %u, \"intermediate_size\": %u, "
              "\"wide_intermediate_size\": %u, \"sliding_window\": %u, \"window_key_value_heads\": %u, "
              "\"window_head_dim\": %u, \"max_position_embeddings\": %u, \"vocab_size\": %u, \"tie_word_embeddings\": "
              "%s}",
              n_layers, heads, draw(2) ? heads : 1, 2 * within(1, 20), within(1, 70), within(1, 200), within(1, 300),
              within(1, 40), draw(2) ? heads : 1, 2 * within(1, 20), n_positions, vocabulary,
              draw(2) ? "true" : "false"));
}

static struct eps_train_options draw_options(const char *model, const char *const *files, uint32_t n_positions,
                                             const char *const frozen[7])
{
    struct eps_train_options o = processes_options(model, files, "trained");

    o.workers = within(1, 3);
    o.parts = draw(2) ? 0 : within(1, 4);
    o.batch = (o.parts ? o.parts : o.workers) * within(1, 4);
    o.seq = within(1, n_positions);
    o.steps = within(1, 4);
    o.precision = draw(2) ? EPS_BF16 : EPS_FP32;
    o.moments = draw(2) ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    o.grad_dtype = draw(2) ? EPS_BF16 : EPS_FP32;
    o.master = o.precision == EPS_BF16 && draw(2) ? EPS_MASTER_NONE : EPS_MASTER_DEFAULT;
    o.optimizer = (enum eps_optimizer_kind)draw(3);
    if (o.optimizer != EPS_ADAMA)
        o.commit = (enum eps_commit)draw(3);
    else if (draw(2))
        o.commit = EPS_FOLDED;
    o.sums = o.commit == EPS_FENCED && draw(2) ? EPS_BF16 : EPS_NUMBER_DEFAULT;
    o.save_every = draw(4);
    o.eval_every = draw((uint32_t)o.steps + 1);
    o.keep = draw(3);
    o.microbatch = draw(3) == 0;
    o.deterministic = draw(4) == 0;
    o.freeze = frozen[draw(7)];
    o.base = o.freeze ? (enum eps_base)draw(EPS_BASE_NF4 + 1) : EPS_BASE_DEFAULT;
    if (draw(3) == 0 && (o.optimizer != EPS_ADAMA || o.parts == 1))
        o.moments = EPS_MOMENTS_CODED;
    return o;
}

/* What the sides had at the end. */
struct seen {
    const struct eps_plan *plan;
    unsigned n_workers;
};

static uint64_t term_of(const struct eps_plan_side *side, const char *category)
{
    for (size_t i = 0; i < side->n_terms; i++)
        if (strcmp(side->terms[i].category, category) == 0)
            return side->terms[i].bytes;
    return 0;
}

static void compare(const struct eps_memory *side, const struct eps_plan_side *planned)
{
    for (size_t i = 0; i < side->n_rows; i++) {
        const struct eps_memory_row *row = &side->rows[i];
        const uint64_t term = term_of(planned, row->category);
        ck_assert_msg(row->peak == term && row->planned == term,
                      "%s %s: peak %" PRIu64 ", planned by eps train %" PRIu64 ", by eps plan %" PRIu64,
                      side->worker ? "worker" : "host", row->category, row->peak, row->planned, term);
    }
    ck_assert_uint_eq(side->peak, planned->bytes);
}

static void on_memory(void *user, const struct eps_memory *side)
{
    struct seen *seen = user;

    if (side->worker == 0)
        compare(side, &seen->plan->host);
    else if (seen->n_workers++ < seen->plan->n_workers)
        compare(side, &seen->plan->worker);
    else
        ck_assert_uint_eq(side->peak, 0); /* it has no share */
}

/* A daemon with that many workers of that much, and the run is theirs. */
static pid_t start_lab(struct eps_train_options *o)
{
    char device_mem[32];
    const pid_t daemon = processes_daemon("lab", 0, NULL);

    snprintf(device_mem, sizeof device_mem, "%" PRIu64, o->device_mem);
    for (uint32_t i = 0; i < o->workers; i++)
        processes_worker("lab", device_mem, NULL);
    processes_await_workers("lab", o->workers);
    o->connect = "lab", o->workers = 0, o->device_mem = 0;
    return daemon;
}

/* Another job of the same daemon and workers, which takes what the run does not. */
static void train_before(const struct eps_train_options *options)
{
    struct eps_train_options o = *options;
    struct eps_error error;

    o.out = "before", o.steps = 1, o.eval_every = 0;
    o.optimizer = 0, o.commit = options->commit == EPS_FENCED ? EPS_EAGER : EPS_FENCED;
    ck_assert_msg(eps_train(&o, NULL, NULL, &error) == 0, "%s", error.text);
}

/* What there is: the plan is made for the device memory that is named, and is the same at any time. */
TEST_RANGE(what_is_planned_is_what_is_taken, first_run, end_run)
{
    static const struct eps_train_events events = {.on_memory = on_memory};
    static const char *const families[] = {"alternating", "chunked", "experts"};
    static const char *const frozen[3][7] = {
        {NULL, NULL, "wte.*", "*.weight", "h.0.*,wpe.*", "h.*,wte.*", "ln_f.*,*.c_attn.*"},
        {NULL, NULL, "embed_tokens.*", "*.mlp.*", "layers.[1-3].*", "layers.*", "norm.*,*layernorm.*"},
        {NULL, NULL, "embed_tokens.*", "*.up_proj.*", "layers.0.*", "layers.*", "norm.*,*layernorm.*"}};
    const char *family = _i % 3 == 1 ? families[_i / 3 % 3] : NULL;
    const bool alternates = family == families[0];
    const uint32_t n_positions = (state = (uint32_t)_i * 7919 + 1, within(8, 64));
    const uint32_t vocabulary = 256 + draw(2) * draw(3000);
    const char *const files[] = {vocabulary == 256 ? "data.txt"
                                                   : "data.bin"}; /* with text comes a tokenizer of bytes */
    const char *model = alternates ? write_alternating(within(3, 9), n_positions, vocabulary)
                        : family   ? write_layered(family, within(1, 3), n_positions, vocabulary)
                                   : write_model(within(1, 4), n_positions, vocabulary);
    struct eps_train_options options = draw_options(model, files, n_positions, frozen[alternates ? 1 : family ? 2 : 0]);
    struct seen seen = {.plan = NULL};
    struct eps_error error = {""};
    struct eps_plan plan;
    uint64_t least;
    pid_t daemon = 0;

    ck_assert_msg(eps_plan_minimum(&least, &options, &error) == 0, "%s", error.text);
    options.device_mem = least + (draw(3) ? draw(4 << 20) : 0);
    ck_assert_msg(eps_plan(&plan, &options, &error) == 0, "%s", error.text);
    ck_assert_msg(plan.fits, "%s", plan.why);
    seen.plan = &plan;
    if (_i % 3 == 2) {
        daemon = start_lab(&options);
        train_before(&options);
    }
    const int rc = eps_train(&options, &events, &seen, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
    ck_assert_uint_ge(seen.n_workers, plan.n_workers);
    if (daemon) {
        kill(daemon, SIGTERM);
        ck_assert_int_eq(processes_wait(daemon), 0);
    }
}

/* In the least device memory. */
static void check_least(struct eps_train_options *options)
{
    static const struct eps_train_events events = {.on_memory = on_memory};
    struct seen seen = {.plan = NULL};
    struct eps_error error = {""};
    struct eps_plan plan;
    uint64_t least;

    ck_assert_msg(eps_plan_minimum(&least, options, &error) == 0, "%s", error.text);
    options->device_mem = least;
    ck_assert_msg(eps_plan(&plan, options, &error) == 0, "%s", error.text);
    ck_assert_msg(plan.fits, "%s", plan.why);
    seen.plan = &plan;
    ck_assert_msg(eps_train(options, &events, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_ge(seen.n_workers, plan.n_workers);
}

/* The least device memory is enough whomever tokens choose. Where all weights are 0 all experts' scores are equal, and
 * each token has the first one: nobody has another, in any step. With a bias of the choice, without, and with the delta rule. */
TEST_EACH(a_mixture_takes_what_is_planned_whomever_tokens_choose, 18)
{
    static const char *const frozen[7] = {NULL, NULL, NULL, "*.experts.*", "layers.0.*", "*.up_proj.*", "*gate.weight"};
    static const char *const experts[] = {
        "\"qwen2_moe\", \"shared_expert_intermediate_size\": 20, \"num_experts\"",
        "\"glm4_moe\", \"n_shared_experts\": 2, \"first_k_dense_replace\": 1, \"n_routed_experts\"",
        "\"qwen3_5_moe_text\", \"shared_expert_intermediate_size\": 20, \"head_dim\": 8, \"full_attention_interval\": "
        "2, "
        "\"linear_num_key_heads\": 1, \"linear_num_value_heads\": 2, \"linear_key_head_dim\": 4, "
        "\"linear_value_head_dim\": 8, \"num_experts\""};
    const char *const files[] = {"data.txt"};
    const bool alike = _i % 2 == 0;

    state = (uint32_t)_i * 104729 + 1;
    expect("rm -rf drawn trained && mkdir drawn", 0);
    const char *model =
        processes_put_text("drawn/config.json",
                           print("{\"model_type\": %s: %u, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                                 "\"num_key_value_heads\": 2, \"hidden_size\": %u, \"intermediate_size\": 20, "
                                 "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": %u, "
                                 "\"max_position_embeddings\": 64, \"vocab_size\": 256, \"initializer_range\": %s}",
                                 experts[_i / 6], within(2, 40), 4 * within(1, 10), within(1, 40),
                                 alike ? "0.0" : "0.5"));
    struct eps_train_options options = draw_options(model, files, 64, frozen);
    check_least(&options);
}

/* Adapters of all linear maps, or of experts alone, over a base of any form; one token that is repeated. */
TEST_EACH(adapters_of_experts_take_what_is_planned, 6)
{
    static const char *const none[7] = {NULL}, *const files[] = {"zeros.bin"};

    state = (uint32_t)_i * 15485863 + 1;
    expect("rm -rf trained && head -c 800 /dev/zero >zeros.bin", 0);
    struct eps_train_options options = draw_options(TESTS_DIR "/fixtures/qwen3_moe", files, 16, none);
    options.lora = _i % 2 ? "rank=3" : "rank=2,targets=experts";
    options.base = (enum eps_base)draw(EPS_BASE_NF4 + 1);
    check_least(&options);
}

static const struct {
    uint32_t workers, parts;
    enum eps_optimizer_kind optimizer;
    enum eps_number number;
    enum eps_commit commit;
} remembering[] = {{1, 1, EPS_ADAMW, EPS_FP32, EPS_EAGER},
                   {2, 4, EPS_ADAMA, EPS_BF16, EPS_EAGER},
                   {2, 4, EPS_ADAMA, EPS_FP32, EPS_FOLDED},
                   {2, 4, EPS_SGD, EPS_BF16, EPS_EAGER},
                   {2, 2, EPS_ADAMW, EPS_FP32, EPS_FENCED}};

/* Norms of gradients, of each of the tokens: behind contributions, in the daemon, in minibatches, in checkpoints. */
TEST_EACH(remembered_norms_take_what_is_planned, COUNT(remembering))
{
    static const struct eps_train_events events = {.on_memory = on_memory};
    static const char *const files[] = {"data.txt"};
    struct seen seen = {.plan = NULL};
    struct eps_error error = {""};
    struct eps_plan plan, without;
    uint64_t norms = 0;

    processes_config_with("relu.json", 3, 2, 24, 40, "\"activation_function\": \"relu\"");
    struct eps_train_options o = processes_options("relu.json", files, "norms");
    o.workers = remembering[_i].workers, o.parts = remembering[_i].parts;
    o.optimizer = remembering[_i].optimizer, o.commit = remembering[_i].commit;
    o.precision = o.grad_dtype = remembering[_i].number;
    o.moments = remembering[_i].number == EPS_BF16 ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    o.steps = 3, o.batch = 8, o.seq = 24, o.device_mem = 16 << 20;
    o.approximate = "wta=0.3";
    ck_assert_msg(eps_plan(&without, &o, &error) == 0, "%s", error.text);
    o.data_tokens = N_TOKENS;
    ck_assert_msg(eps_plan(&plan, &o, &error) == 0 && plan.fits, "%s", error.text);
    /* Three maps; two bytes for each token of data and minibatch, and eight; entries of two minibatches. */
    for (size_t i = 0; i < plan.host.n_terms; i++)
        norms += strcmp(plan.host.terms[i].category, "norms") == 0 ? plan.host.terms[i].bytes : 0;
    ck_assert_uint_eq(norms, 3 * (2 * (N_TOKENS + 8 * 24) + 8) + 2 * 4 * 8 * 24);
    ck_assert_uint_ge(plan.checkpoint_bytes, without.checkpoint_bytes + UINT64_C(3) * 2 * N_TOKENS);
    seen.plan = &plan;
    o.data_tokens = 0; /* the data are read */
    ck_assert_msg(eps_train(&o, &events, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_ge(seen.n_workers, plan.n_workers);
    expect("rm -r norms", 0);
}

static const char bert[] = "{\"model_type\": \"bert\", \"architectures\": [\"BertModel\"], \"vocab_size\": 330, "
                           "\"hidden_size\": 32, \"num_hidden_layers\": 2, \"num_attention_heads\": 2, "
                           "\"intermediate_size\": 64, \"max_position_embeddings\": 64}";

/* From files, whose headers are read into memory of the plan. */
TEST(a_model_that_is_loaded_takes_what_is_planned)
{
    static const struct eps_train_events events = {.on_memory = on_memory};
    const char *const files[] = {"data.txt"};
    struct eps_train_options options = processes_options("text-small", files, "drawn-first");
    struct seen seen = {.plan = NULL};
    struct eps_error error = {""};
    struct eps_plan fresh, plan;

    options.workers = 1, options.batch = 4, options.seq = 16, options.steps = 1, options.device_mem = 64 << 20;
    ck_assert_msg(eps_train(&options, NULL, NULL, &error) == 0, "%s", error.text);
    options.model = "drawn-first/step-1/config.json", options.out = "loaded";
    ck_assert_msg(eps_plan(&fresh, &options, &error) == 0, "%s", error.text);
    options.model = "drawn-first/step-1";
    ck_assert_msg(eps_plan(&plan, &options, &error) == 0, "%s", error.text);
    ck_assert_uint_gt(plan.host.bytes, fresh.host.bytes);
    seen.plan = &plan;
    ck_assert_msg(eps_train(&options, &events, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(seen.n_workers, 1);
}

/* 300 classes, so that their weights, logits and names all count; and one number. */
TEST_EACH(a_task_takes_what_is_planned_without_its_data, 2)
{
    static const struct eps_train_events events = {.on_memory = on_memory};
    const char *const files[] = {"rows.tsv"};
    struct eps_train_options options =
        processes_options("bert/config.json", files, processes_path(print("task%d", _i)));
    struct seen seen = {.plan = NULL};
    struct eps_error error = {""};
    struct eps_plan plan;

    options.eval_tokens = UINT64_MAX; /* rows have none */
    expect("mkdir -p bert && cp " TESTS_DIR "/fixtures/tokenizers/bert.json bert/tokenizer.json", 0);
    expect(_i ? "{ printf 'text\\tscore\\n'; seq 0 299 | sed 's/.*/fox &\\t&/'; } >rows.tsv"
              : "{ printf 'text\\tlabel\\n'; seq 0 299 | sed 's/.*/fox &\\tLABEL_&/'; } >rows.tsv",
           0);
    processes_put_text("bert/config.json", bert);
    options.task = _i ? EPS_REGRESS : EPS_CLASSIFY;
    options.n_labels = _i ? 0 : 300;
    options.workers = 1, options.batch = 8, options.seq = 16, options.steps = 2, options.device_mem = 64 << 20;
    ck_assert_msg(eps_plan(&plan, &options, &error) == 0, "%s", error.text);
    seen.plan = &plan;
    ck_assert_msg(eps_train(&options, &events, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(seen.n_workers, 1);
}

/* What its tokenizer will take is planned before it has learned one. */
TEST(a_preset_that_learns_takes_what_is_planned)
{
    static const struct eps_train_events events = {.on_memory = on_memory};
    const char *const files[] = {TESTS_DIR "/fixtures/learned/text.txt"};
    struct eps_train_options options = processes_options("text-small", files, processes_path("learned"));
    struct seen seen = {.plan = NULL};
    struct eps_error error = {""};
    struct eps_plan plan;

    options.workers = 1, options.batch = 4, options.seq = 64, options.steps = 2, options.device_mem = 64 << 20;
    ck_assert_msg(eps_plan(&plan, &options, &error) == 0, "%s", error.text);
    seen.plan = &plan;
    ck_assert_msg(eps_train(&options, &events, &seen, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(seen.n_workers, 1);
}
