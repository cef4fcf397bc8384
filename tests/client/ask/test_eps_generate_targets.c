/* Targets of an encoder-decoder's sources: the very tokens of transformers, and with dynamic convolutions of a plain
 * search, greedy and by beams, whatever the budget and whoever runs them. */
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

SUITE_LABELS(single)

/* Made by tests/oracle/make_targets.py: six sources for each of three models, and six ways to write a target. The third
 * has dynamic convolutions, and a table of their own for sources. */
enum { FIXTURES = 3, TEXTS = 6, WAYS = 6, MAX_TOKENS = 64 };
static const char *const names[FIXTURES] = {"targets", "targets_gated", "targets_conv"};
static struct fixture fixtures[FIXTURES];
static uint32_t sources[FIXTURES][TEXTS][MAX_TOKENS];
static struct eps_prompt prompts[FIXTURES][TEXTS];

static uint32_t read_ids(uint32_t *out, const json_t *ids)
{
    ck_assert_uint_le(json_array_size(ids), MAX_TOKENS);
    for (size_t i = 0; i < json_array_size(ids); i++)
        out[i] = (uint32_t)json_integer_value(json_array_get(ids, i));
    return (uint32_t)json_array_size(ids);
}

static const json_t *text_of(int model, int text)
{
    return json_array_get(json_object_get(fixtures[model].reference, "texts"), (size_t)text);
}

static const json_t *target_of(int model, int text, int way)
{
    return json_array_get(json_object_get(text_of(model, text), "targets"), (size_t)way);
}

static void setup(void)
{
    processes_setup();
    for (int m = 0; m < FIXTURES; m++) {
        fixture_open_model(&fixtures[m], names[m]);
        ck_assert_int_eq(mkdir(names[m], 0700), 0);
        fixture_write_model(&fixtures[m], names[m]);
        for (int i = 0; i < TEXTS; i++)
            prompts[m][i] = (struct eps_prompt){
                .ids = sources[m][i],
                .n_ids = read_ids(sources[m][i], json_object_get(text_of(m, i), "source")),
            };
    }
}

static void remove_all(void)
{
    for (int m = 0; m < FIXTURES; m++)
        fixture_close(&fixtures[m]);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, remove_all)

/* What came out. */
struct heard {
    uint32_t ids[TEXTS][MAX_TOKENS], n[TEXTS];
    struct eps_generated ends[TEXTS];
    size_t n_begun, n_ended;
    bool targets;
    pid_t victim; /* a worker that is killed after some tokens; 0: none */
    int asked;
};

static void on_targets(void *user)
{
    ((struct heard *)user)->targets = true;
}

static void on_begin(void *user, size_t prompt, uint32_t sample)
{
    struct heard *h = user;

    ck_assert(prompt == h->n_begun && sample == 0 && h->n_ended == h->n_begun);
    h->n_begun++;
}

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct heard *h = user;
    const size_t at = h->n_begun - 1;

    ck_assert(!text && n == 0 && h->n[at] < MAX_TOKENS); /* the model has no tokenizer */
    h->ids[at][h->n[at]++] = id;
}

static void on_end(void *user, const struct eps_generated *text)
{
    struct heard *h = user;
    h->ends[h->n_ended++] = *text;
}

/* Asked before each pass. */
static int should_stop(void *user)
{
    struct heard *h = user;

    if (++h->asked > 12 && h->victim > 0) {
        ck_assert_int_eq(kill(h->victim, SIGKILL), 0);
        h->victim = 0;
    }
    return 0;
}

static const struct eps_generate_events events = {
    .on_targets = on_targets, .on_begin = on_begin, .on_token = on_token, .on_end = on_end, .should_stop = should_stop};

/* n of the model's texts, from `first` on, written this way. */
static struct eps_generate_options written(int model, int first, size_t n, int way)
{
    struct eps_generate_options options = eps_generate_defaults();
    const json_t *target = target_of(model, 0, way);
    const uint32_t n_beams = (uint32_t)json_integer_value(json_object_get(target, "beams"));

    options.model = names[model], options.programs = BIN_DIR, options.device = "cpu";
    options.prompts = &prompts[model][first], options.n_prompts = n;
    options.n_tokens = (uint32_t)json_integer_value(json_object_get(fixtures[model].reference, "tokens"));
    if (n_beams == 1)
        options.sampling.temperature = 0;
    else
        options.n_beams = n_beams, options.length_penalty = json_real_value(json_object_get(target, "length_penalty"));
    return options;
}

static void check(int model, int first, size_t n, int way, const struct heard *h, const struct eps_generated *out)
{
    uint32_t n_tokens = 0;

    ck_assert(h->targets && h->n_begun == n && h->n_ended == n && out->n_texts == n);
    for (size_t i = 0; i < n; i++) {
        uint32_t want[MAX_TOKENS];
        const uint32_t n_want = read_ids(want, json_object_get(target_of(model, first + (int)i, way), "ids"));
        ck_assert_msg(h->n[i] == n_want && memcmp(h->ids[i], want, n_want * sizeof *want) == 0, "%s: text %zu, way %d",
                      names[model], i, way);
        ck_assert_uint_eq(h->ends[i].n_prompt, prompts[model][first + (int)i].n_ids);
        ck_assert(n_want < 40 ? h->ends[i].ended : h->ends[i].n_tokens == 40);
        n_tokens += n_want;
    }
    ck_assert_uint_eq(out->n_tokens, n_tokens);
}

static void generate(int model, int first, size_t n, int way, const struct eps_generate_options *options,
                     struct heard *h)
{
    struct eps_generated out;
    struct eps_error error;

    ck_assert_msg(eps_generate(&out, options, &events, h, &error) == 0, "%s", error.text);
    check(model, first, n, way, h, &out);
}

/* One by one. */
TEST_EACH(targets_are_those_of_the_oracle, FIXTURES *WAYS)
{
    const int model = _i / WAYS, way = _i % WAYS;

    for (int i = 0; i < TEXTS; i += 2) {
        const struct eps_generate_options options = written(model, i, 1, way);
        struct heard h = {0};
        generate(model, i, 1, way, &options, &h);
    }
}

/* The least budget, as the refusal of a smaller one says. */
static uint64_t least_budget(const struct eps_generate_options *options)
{
    struct eps_generate_options small = *options;
    struct eps_generated out;
    struct eps_error error;

    small.device_mem = 16 << 10;
    ck_assert_int_lt(eps_generate(&out, &small, NULL, NULL, &error), 0);
    const char *bytes = strstr(error.text, "needs at least ");
    ck_assert_msg(bytes && (bytes = strchr(bytes, '(')), "%s", error.text);
    return strtoull(bytes + 1, NULL, 10);
}

/* All sources in one call: in as many rows as the budget has room for, with no, some and all weights on the device. */
TEST_EACH(budgets_change_no_token_of_targets, FIXTURES * 2 * 4)
{
    const int model = _i / 8, way = _i / 4 % 2 ? 2 : 0;
    struct eps_generate_options options = written(model, 0, TEXTS, way);
    struct heard h = {0};

    if (_i % 4 < 3 && way == 0)
        options.device_mem = least_budget(&options) + ((uint64_t)(_i % 4) << 17);
    if (_i % 4 < 3 && way > 0) /* four beams are the least that can advance */
        options.device_mem = least_budget(&options) + (600 << 10) + ((uint64_t)(_i % 4) << 17);
    generate(model, 0, TEXTS, way, &options, &h);
}

/* Of two workers one runs the texts; the other runs them again, sources first. */
TEST_EACH(a_killed_worker_changes_no_token_of_targets, 2)
{
    const int way = _i ? 2 : 0;
    struct eps_generate_options options = written(1, 0, TEXTS, way);
    struct heard h = {0};
    pid_t workers[2];
    const pid_t daemon = processes_daemon("targets", 2, workers);

    options.connect = "targets";
    h.victim = workers[0];
    options.device = NULL;
    generate(1, 0, TEXTS, way, &options, &h);
    ck_assert_int_eq(h.victim, 0);
    ck_assert_int_eq(eps_stop("targets", NULL), 0);
    processes_wait(daemon);
}

static void on_sample(void *user, size_t prompt, uint32_t sample)
{
    struct heard *h = user;

    ck_assert(prompt == 0 && sample == h->n_begun && h->n_ended == h->n_begun);
    h->n_begun++;
}

/* Samples of one source go on after the row that has run it. */
TEST(samples_of_a_source_are_those_of_calls_of_their_own)
{
    struct eps_generate_events of_samples = events;
    struct eps_generate_options options = written(1, 3, 1, 0);
    struct heard together = {0};
    struct eps_generated out;
    struct eps_error error;

    of_samples.on_begin = on_sample;
    options.sampling.temperature = 1.5, options.sampling.seed = 5, options.n_samples = 3;
    ck_assert_msg(eps_generate(&out, &options, &of_samples, &together, &error) == 0, "%s", error.text);
    ck_assert(together.n_ended == 3 && out.n_texts == 3);
    options.n_samples = 1;
    for (uint32_t k = 0; k < 3; k++) {
        struct heard alone = {0};
        options.sampling.seed = 5 + k;
        ck_assert_msg(eps_generate(&out, &options, &of_samples, &alone, &error) == 0, "%s", error.text);
        ck_assert_uint_eq(alone.n[0], together.n[k]);
        ck_assert_mem_eq(alone.ids[0], together.ids[k], alone.n[0] * sizeof *alone.ids[0]);
    }
    ck_assert(memcmp(together.ids[0], together.ids[1], sizeof together.ids[0]) != 0);
}

/* Options that a search has no use for, and what an encoder-decoder needs. */
TEST(what_targets_cannot_have_is_refused)
{
    expect("eps generate --model targets --beams 4", 2, "--prompt or --ids is needed: a t5 model writes");
    expect("eps generate --model targets --ids 5,1 --beams 4 --top-k 3", 2, "--top-k is not for --beams");
    expect("eps generate --model targets --ids 5,1 --beams 4 --samples 2", 2, "--samples is not for --beams");
    expect("eps generate --model targets --ids 5,1 --beams 65", 2, "--beams 65: 1 to 64 are possible");
    expect("eps generate --model targets --ids 5,1 --length-penalty 2", 2, "--length-penalty is for a search");
    expect("eps generate --model targets --ids 5,97", 2, "97 is not a token");
    expect("echo a | eps chat --model targets", 1, "a t5 model writes the target of a source", "use eps generate");
}

TEST(beams_that_the_device_has_no_memory_for_are_refused)
{
    struct eps_generate_options options = written(0, 1, 1, 2);
    struct eps_generated out;
    struct eps_error error;

    options.device_mem = least_budget(&options);
    ck_assert_int_eq(eps_generate(&out, &options, NULL, NULL, &error), -ENOSPC);
    ck_assert_holds(error.text, "`beams` 4 needs memory for as many texts at once, and the device has it for 1");
}
