/* Texts that go on: the very tokens of transformers, whatever the budget and whoever runs them. What eps generate
 * prints: test_generate_command. What is refused: test_cli. */
#include "client/text/utf8.h"
#include "tests/kit/command.h"
#include "tests/kit/fixtures/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <libgen.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(single)

/* Made by tests/oracle/make_generate.py: byte vocabulary, 512 positions, three texts of 200 tokens, greedy. */
static struct fixture fixture;

enum { MAX_TOKENS = 512, N_TEXTS = 3 };

/* What came out. */
struct heard {
    uint32_t ids[MAX_TOKENS], n;
    char text[4 * MAX_TOKENS];
    size_t n_text;
    uint32_t stop_after; /* tokens; 0: never */
    bool kills;          /* the worker, after the third */
};

#define GENERATE "eps generate --model model "
#define PROMPT   "In the beginning " /* the first text's */

static json_t *of_text(int i, const char *key)
{
    return json_object_get(json_array_get(json_object_get(fixture.reference, "texts"), (size_t)i), key);
}

static const char *prompt_of(int i)
{
    return json_string_value(of_text(i, "prompt"));
}

static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    ck_assert_int_eq(mkdir("model", 0700), 0);
    fixture_write_model(&fixture, "model");
    ck_assert_str_eq(prompt_of(0), PROMPT);
}

static void remove_all(void)
{
    fixture_close(&fixture);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, remove_all)

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct heard *h = user;

    ck_assert_uint_lt(h->n, MAX_TOKENS);
    h->ids[h->n++] = id;
    memcpy(h->text + h->n_text, text, n);
    h->n_text += n;
    if (h->kills && h->n == 3)
        ck_assert_int_eq(kill(processes_find("eps-worker"), SIGKILL), 0);
}

static int should_stop(void *user)
{
    const struct heard *h = user;
    return h->stop_after > 0 && h->n >= h->stop_after;
}

static const struct eps_generate_events events = {.on_token = on_token, .should_stop = should_stop};

/* Prompts of the last options that greedy made. */
static struct eps_prompt prompts[8];
static size_t n_prompts;

static struct eps_generate_options greedy(const char *prompt)
{
    struct eps_generate_options options = eps_generate_defaults();

    struct eps_prompt *at = &prompts[n_prompts++ % COUNT(prompts)];
    *at = (struct eps_prompt){.text = prompt, .n_bytes = prompt ? strlen(prompt) : 0};
    options.model = "model", options.programs = BIN_DIR;
    options.prompts = at, options.n_prompts = 1;
    options.sampling.temperature = 0;
    return options;
}

/* The text is that of the tokens, which are bytes: whole characters, and all of it. */
static struct eps_generated generate(struct heard *h, const struct eps_generate_options *options)
{
    struct client_stream stream = {0};
    struct eps_generated out;
    struct eps_error error;
    char bytes[MAX_TOKENS];
    const char *text;
    size_t n;

    *h = (struct heard){0};
    ck_assert_msg(eps_generate(&out, options, &events, h, &error) == 0, "%s", error.text);
    ck_assert_str_eq(error.text, "");
    ck_assert_uint_eq(out.n_tokens, h->n);
    for (uint32_t i = 0; i < h->n; i++)
        bytes[i] = (char)h->ids[i];
    ck_assert_int_eq(client_stream_push(&stream, &text, &n, bytes, h->n, true, NULL), 0);
    ck_assert_uint_eq(h->n_text, n);
    ck_assert_mem_eq(h->text, text, n);
    client_stream_free(&stream);
    return out;
}

static void check_text(const struct heard *h, int i)
{
    const json_t *ids = of_text(i, "ids");

    ck_assert_uint_eq(json_array_size(ids), 200);
    ck_assert_uint_eq(h->n, 200);
    for (size_t k = 0; k < 200; k++)
        ck_assert_msg(json_integer_value(json_array_get(ids, k)) == h->ids[k], "text %d: token %zu is %u", i, k,
                      h->ids[k]);
}

/* The first text with its continuation, in windows that overlap or do not; the loss is in fp32. */
TEST_EACH(a_perplexity_is_that_of_transformers, 3)
{
    const json_t *want = json_array_get(json_object_get(fixture.reference, "perplexity"), (size_t)_i);
    const double loss = json_real_value(json_object_get(want, "loss"));
    const char *const data = "whole.bin";
    const struct eps_eval_options options = {.model = "model",
                                             .data = &data,
                                             .n_data = 1,
                                             .programs = BIN_DIR,
                                             .seq =
                                                 (uint32_t)json_integer_value(json_object_get(want, "max_length")) - 1,
                                             .stride = (uint32_t)json_integer_value(json_object_get(want, "stride"))};
    const size_t n_prompt = strlen(PROMPT), n = n_prompt + json_array_size(of_text(0, "ids"));
    struct eps_error error;
    uint16_t ids[MAX_TOKENS];
    uint64_t tokens;
    double got;

    for (size_t i = 0; i < n; i++)
        ids[i] = i < n_prompt ? (uint16_t)PROMPT[i]
                              : (uint16_t)json_integer_value(json_array_get(of_text(0, "ids"), i - n_prompt));
    processes_write(data, ids, n * sizeof *ids);
    ck_assert_msg(eps_eval(&got, &tokens, &options, NULL, NULL, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(tokens, (uint64_t)json_integer_value(json_object_get(want, "tokens")));
    ck_assert_double_eq_tol(got, loss, 1e-6 * loss);
    expect("eps eval --model model --data whole.bin --seq 8 --stride 9", 2, "--stride 9 is more than --seq 8");
}

TEST_EACH(greedy_texts_are_those_of_transformers, N_TEXTS)
{
    const struct eps_generate_options options = greedy(prompt_of(_i));
    struct heard h;
    const struct eps_generated out = generate(&h, &options);

    check_text(&h, _i);
    ck_assert_uint_eq(out.n_prompt, strlen(prompt_of(_i)));
    ck_assert(!out.ended && out.prompt_ms > 0 && out.tokens_ms > 0);
    /* 4 blocks of 12*64*64 + 13*64, a norm, wte; and wpe, of which a token reads one row. */
    ck_assert_uint_eq(out.token_bytes, 4 * (4 * (12 * 64 * 64 + 13 * 64) + 2 * 64 + 256 * 64));
    ck_assert_uint_eq(out.weight_bytes, out.token_bytes + 4 * 512 * 64);
    ck_assert_uint_eq(out.resident_bytes, out.token_bytes);
}

/* A penalty on what the text has already; tests/oracle/make_sampling.py. */
TEST_EACH(penalised_texts_are_those_of_transformers, N_TEXTS)
{
    json_t *file = json_load_file(TESTS_DIR "/fixtures/sampling.json", 0, NULL);
    const json_t *text = json_array_get(json_object_get(file, "greedy"), (size_t)_i),
                 *ids = json_object_get(text, "ids");
    struct eps_generate_options options = greedy(json_string_value(json_object_get(text, "prompt")));
    struct heard h;

    options.n_tokens = 100;
    options.sampling.repetition_penalty = json_real_value(json_object_get(text, "repetition_penalty"));
    generate(&h, &options);
    ck_assert_uint_eq(json_array_size(ids), 100);
    for (size_t k = 0; k < 100; k++)
        ck_assert_uint_eq((uint32_t)json_integer_value(json_array_get(ids, k)), h.ids[k]);
    json_decref(file);
}

/* The least budget for `prompt` and n tokens, as the refusal of a smaller one says. */
static uint64_t least_budget(const char *prompt, uint32_t n_tokens)
{
    struct eps_generate_options options = greedy(prompt);
    struct eps_generated out;
    struct eps_error error;

    options.n_tokens = n_tokens;
    options.device_mem = 100 << 10;
    ck_assert_int_lt(eps_generate(&out, &options, NULL, NULL, &error), 0);
    ck_assert_holds(error.text, "`device_mem` is 0.1 MiB");
    const char *bytes = strstr(error.text, "needs at least ");
    ck_assert_msg(bytes && (bytes = strchr(bytes, '(')), "%s", error.text);
    return strtoull(bytes + 1, NULL, 10);
}

TEST(a_text_begins_with_ids_as_with_their_bytes_and_without_either_after_a_new_line)
{
    struct eps_generate_options nothing = greedy(NULL), empty = greedy(""), line = greedy("\n"), options = greedy(NULL);
    uint32_t ids[MAX_TOKENS];
    struct heard a, b, c;
    struct eps_error error;

    struct eps_prompt prompt = {.ids = ids, .n_ids = strlen(prompt_of(2))};
    options.prompts = &prompt;
    for (size_t i = 0; i < prompt.n_ids; i++)
        ids[i] = (unsigned char)prompt_of(2)[i];
    generate(&a, &options);
    check_text(&a, 2);
    prompt.text = "x", prompt.n_bytes = 1; /* with one of them */
    ck_assert_int_eq(eps_generate(&(struct eps_generated){0}, &options, NULL, NULL, &error), -EDOM);
    ck_assert_holds(error.text, "`prompt`", "`ids`");
    nothing.n_tokens = empty.n_tokens = line.n_tokens = 20;
    ck_assert_uint_eq(generate(&a, &nothing).n_prompt, 1);
    generate(&b, &empty);
    generate(&c, &line);
    ck_assert_mem_eq(a.ids, c.ids, 20 * sizeof *a.ids);
    ck_assert_mem_eq(b.ids, c.ids, 20 * sizeof *a.ids);
}

TEST(a_drawn_text_comes_again_with_its_seed)
{
    struct eps_generate_options options = greedy(prompt_of(0));
    struct heard first, again;

    options.sampling = (struct eps_sampling){
        .temperature = NAN, .top_k = 50, .top_p = 0.95, .min_p = 0.01, .repetition_penalty = 1.2, .seed = 7};
    options.n_tokens = 100;
    generate(&first, &options);
    ck_assert_uint_eq(first.n, 100);
    options.device_mem = least_budget(prompt_of(0), 100);
    generate(&again, &options);
    ck_assert_mem_eq(first.ids, again.ids, 100 * sizeof *first.ids);
}

/* Three prompts by two samples in one call; each text is what a call of its own gives, with the seed after. The second
 * prompt is empty; the third fills the model's positions, so that its window slides. */
enum { MOST_TEXTS = 12 };
struct texts {
    struct heard heard[MOST_TEXTS];
    struct eps_generated ends[MOST_TEXTS];
    size_t n, n_ended, prompts[MOST_TEXTS];
    uint32_t samples[MOST_TEXTS];
};

static void on_begin(void *user, size_t prompt, uint32_t sample)
{
    struct texts *t = user;

    ck_assert(t->n < MOST_TEXTS && t->n_ended == t->n);
    t->prompts[t->n] = prompt, t->samples[t->n] = sample;
    t->n++;
}

static void on_texts_token(void *user, uint32_t id, const char *text, size_t n)
{
    struct texts *t = user;
    on_token(&t->heard[t->n - 1], id, text, n);
}

static void on_end(void *user, const struct eps_generated *text)
{
    struct texts *t = user;
    t->ends[t->n_ended++] = *text;
}

static const struct eps_generate_events all = {.on_begin = on_begin, .on_token = on_texts_token, .on_end = on_end};
static struct texts t;

/* All together, and one after another in the same row, where what a slide leaves is no prompt any more. */
TEST_EACH(texts_of_one_call_are_those_of_calls_of_their_own, 2)
{
    char full[509];
    struct eps_generated out, sum = {0};
    struct eps_error error;

    memset(full, 'y', sizeof full - 1), full[sizeof full - 1] = 0;
    const char *const texts[] = {PROMPT, NULL, full};
    const struct eps_prompt three[] = {{.text = texts[0], .n_bytes = strlen(texts[0])},
                                       {.text = NULL},
                                       {.text = full, .n_bytes = 508}};
    struct eps_generate_options options = greedy(NULL);
    options.prompts = three, options.n_prompts = 3;
    options.n_samples = 2, options.n_tokens = 10;
    options.device_mem = _i ? least_budget(full, 10) : 0;
    options.sampling =
        (struct eps_sampling){.temperature = 1.5, .top_p = NAN, .min_p = NAN, .repetition_penalty = 1.5, .seed = 11};
    t = (struct texts){.n = 0};
    ck_assert_msg(eps_generate(&out, &options, &all, &t, &error) == 0, "%s", error.text);
    ck_assert(t.n == 6 && t.n_ended == 6);
    for (size_t i = 0; i < 6; i++) {
        struct eps_generate_options one = greedy(texts[i / 2]);
        struct heard alone;
        ck_assert(t.prompts[i] == i / 2 && t.samples[i] == i % 2);
        one.n_tokens = 10, one.sampling = options.sampling;
        one.sampling.seed += i % 2;
        const struct eps_generated end = generate(&alone, &one);
        ck_assert_mem_eq(t.heard[i].ids, alone.ids, 10 * sizeof *alone.ids);
        ck_assert(t.heard[i].n == 10 && t.heard[i].n_text == alone.n_text);
        ck_assert_mem_eq(t.heard[i].text, alone.text, alone.n_text);
        ck_assert(t.ends[i].n_prompt == end.n_prompt && t.ends[i].n_slides == end.n_slides);
        ck_assert(i / 2 == 2 ? end.n_slides > 0 : end.n_slides == 0);
        sum.n_prompt += end.n_prompt, sum.n_slides += end.n_slides;
    }
    ck_assert(memcmp(t.heard[0].ids, t.heard[1].ids, 40) != 0 && memcmp(t.heard[4].ids, t.heard[5].ids, 40) != 0);
    ck_assert(out.n_texts == 6 && out.n_tokens == 60 && out.n_prompt == sum.n_prompt && out.n_slides == sum.n_slides);
}

/* Three that advance together, two of them, or one after another; with no, some and all weights on the device. */
TEST_EACH(greedy_texts_of_one_call_are_those_of_transformers_at_any_budget, 4)
{
    struct eps_prompt three[N_TEXTS];
    struct eps_generate_options options = greedy(NULL);
    struct eps_generated out;
    struct eps_error error;
    uint64_t least = 0;

    for (int i = 0; i < N_TEXTS; i++) {
        const uint64_t of_one = least_budget(prompt_of(i), 200);
        three[i] = (struct eps_prompt){.text = prompt_of(i), .n_bytes = strlen(prompt_of(i))};
        least = of_one > least ? of_one : least;
    }
    options.prompts = three, options.n_prompts = N_TEXTS;
    options.device_mem = least + ((uint64_t)_i << 19);
    t = (struct texts){.n = 0};
    ck_assert_msg(eps_generate(&out, &options, &all, &t, &error) == 0, "%s", error.text);
    ck_assert(t.n_ended == N_TEXTS && out.n_tokens == N_TEXTS * 200);
    ck_assert(_i > 0 || out.resident_bytes < 4 * 256 * 64); /* not even the table stayed */
    for (int i = 0; i < N_TEXTS; i++)
        check_text(&t.heard[i], i);
}

/* At stop strings and after 30 tokens, with samples that begin after a prompt that another row has run, or is running:
 * of eight texts all at a time, or three. In the third case a row begins another prompt while its last one is to be
 * copied. */
TEST_EACH(texts_that_end_at_different_times_leave_their_rows_to_others, 3)
{
    static const char *const texts[] = {
        PROMPT, "x", "A text of some more tokens than one tile of 64 can hold, so that it takes two.", "y\n"};
    static const char *const stops[] = {"a", "e", "i", "n", "o", "r", "s", "t", "E", "T", "  ", "0"};
    struct eps_prompt prompts_of_call[4];
    struct eps_generate_options options = greedy(NULL);
    struct eps_generated out;
    struct eps_error error;
    uint32_t n_stopped = 0, n_long = 0;

    for (int i = 0; i < 4; i++)
        prompts_of_call[i] = (struct eps_prompt){.text = texts[i], .n_bytes = strlen(texts[i])};
    options.prompts = prompts_of_call, options.n_prompts = 4;
    options.n_samples = 2, options.n_tokens = 30;
    options.stops = stops, options.n_stops = _i < 2 ? COUNT(stops) : 0;
    options.sampling = (struct eps_sampling){
        .temperature = 0.9, .top_p = NAN, .min_p = NAN, .repetition_penalty = _i == 1 ? 1.3 : NAN, .seed = 3};
    options.device_mem = _i == 0 ? 0 : least_budget(texts[2], 30) + (20 << 15);
    t = (struct texts){.n = 0};
    ck_assert_msg(eps_generate(&out, &options, &all, &t, &error) == 0, "%s", error.text);
    ck_assert(t.n == 8 && t.n_ended == 8 && out.n_texts == 8);
    for (size_t i = 0; i < 8; i++) {
        struct eps_generate_options one = options;
        struct heard alone = {0};
        ck_assert(t.prompts[i] == i / 2 && t.samples[i] == i % 2);
        one.prompts = &prompts_of_call[i / 2], one.n_prompts = 1, one.n_samples = 1, one.device_mem = 0;
        one.sampling.seed += i % 2;
        ck_assert_msg(eps_generate(&out, &one, &events, &alone, &error) == 0, "%s", error.text);
        ck_assert(t.heard[i].n == alone.n && t.heard[i].n_text == alone.n_text);
        ck_assert_mem_eq(t.heard[i].ids, alone.ids, alone.n * sizeof *alone.ids);
        ck_assert_mem_eq(t.heard[i].text, alone.text, alone.n_text);
        ck_assert(t.ends[i].stopped == out.stopped && t.ends[i].n_tokens == alone.n);
        n_stopped += out.stopped, n_long += alone.n == 30;
    }
    ck_assert_msg(_i == 2 || (n_stopped > 2 && n_long > 0), "%u stopped, %u long", n_stopped, n_long);
}

static int stop_after_five(void *user)
{
    const struct texts *heard = user;
    return heard->n > 0 && heard->heard[0].n >= 5;
}

/* The first as it was drawn, the others at the end, in their order. */
TEST(an_interrupt_leaves_what_was_generated_of_each_text)
{
    struct eps_generate_events interrupts = all;
    struct eps_prompt three[N_TEXTS];
    struct eps_generate_options options = greedy(NULL);
    struct eps_generated out;
    struct eps_error error;

    for (int i = 0; i < N_TEXTS; i++)
        three[i] = (struct eps_prompt){.text = prompt_of(i), .n_bytes = strlen(prompt_of(i))};
    options.prompts = three, options.n_prompts = N_TEXTS;
    interrupts.should_stop = stop_after_five;
    t = (struct texts){.n = 0};
    ck_assert_int_eq(eps_generate(&out, &options, &interrupts, &t, &error), -EINTR);
    ck_assert(t.n == N_TEXTS && t.n_ended == N_TEXTS && out.n_tokens == 5 * N_TEXTS);
    for (int i = 0; i < N_TEXTS; i++) {
        ck_assert(t.heard[i].n == 5 && !t.ends[i].ended && !t.ends[i].stopped);
        for (size_t k = 0; k < 5; k++)
            ck_assert_uint_eq(t.heard[i].ids[k], (uint32_t)json_integer_value(json_array_get(of_text(i, "ids"), k)));
    }
}

/* The fifth token of this text is 200, the first byte of two. */
TEST(a_text_that_ends_inside_a_character_says_so)
{
    struct eps_generate_options options = greedy(prompt_of(1));
    struct heard h;

    options.n_tokens = 5;
    generate(&h, &options);
    ck_assert_uint_eq(h.ids[4], 200);
    ck_assert_mem_eq(h.text + h.n_text - 3, "\xEF\xBF\xBD", 3);
}

TEST(an_interrupt_or_a_lost_worker_leaves_what_was_generated)
{
    const struct eps_generate_options options = greedy(prompt_of(0));
    struct heard stopped = {.stop_after = 5}, lost = {.kills = true};
    struct eps_generated out;
    struct eps_error error;

    ck_assert_int_eq(eps_generate(&out, &options, &events, &stopped, &error), -EINTR);
    ck_assert_str_eq(error.text, "interrupted");
    ck_assert_uint_eq(stopped.n, 5);
    ck_assert_uint_eq(out.n_tokens, 5);
    for (size_t i = 0; i < 5; i++)
        ck_assert_uint_eq(stopped.ids[i], (uint32_t)json_integer_value(json_array_get(of_text(0, "ids"), i)));
    ck_assert(processes_nobody()); /* at once: they were waited for */

    ck_assert_int_eq(eps_generate(&out, &options, &events, &lost, &error), -EIO);
    ck_assert_holds(error.text, "worker");
    ck_assert_uint_ge(out.n_tokens, 3);
    processes_await_nobody();
}

/* Weights of 1e38 make infinities: said, and not drawn from. */
TEST(logits_that_are_no_numbers_end_it)
{
    struct eps_generate_options options = greedy("x");
    float huge[4096];

    expect("cp -r model astray", 0);
    const int fd = open("astray/model.safetensors", O_RDWR);
    for (size_t i = 0; i < 4096; i++)
        huge[i] = i % 2 ? 3e38f : -3e38f;
    const off_t end = lseek(fd, 0, SEEK_END);
    for (off_t at = end / 2; at < end - (off_t)sizeof huge; at += (off_t)sizeof huge)
        ck_assert_int_eq(pwrite(fd, huge, sizeof huge, at), sizeof huge);
    close(fd);
    struct heard h = {0};
    struct eps_generated out;
    struct eps_error error;
    options.model = "astray";
    ck_assert_int_eq(eps_generate(&out, &options, &events, &h, &error), -EINVAL);
    ck_assert_holds(error.text, "logit of token ", "at position 1 is ");
    ck_assert_uint_eq(h.n + out.n_tokens, 0);
}

/* The text without a stop string, byte for byte a token, and where the stop string begins. */
TEST(a_text_ends_before_a_stop_string_that_several_tokens_make)
{
    struct eps_generate_options options = greedy(prompt_of(1));
    struct eps_generated out;
    struct eps_error error;
    struct heard whole, cut = {0};
    char stop[16] = "";
    size_t from = 40, to;

    generate(&whole, &options);
    while ((whole.text[from] & 0xC0) == 0x80)
        from++;
    for (to = from + 5; (whole.text[to] & 0xC0) == 0x80; to++)
        ;
    memcpy(stop, whole.text + from, to - from);
    const char *const stops[] = {"no such text", stop};
    const size_t n = (size_t)((char *)memmem(whole.text, whole.n_text, stop, to - from) - whole.text);
    ck_assert_uint_eq(strlen(stop), to - from);
    options.stops = stops, options.n_stops = 2;
    ck_assert_msg(eps_generate(&out, &options, &events, &cut, &error) == 0, "%s", error.text);
    ck_assert(out.stopped && !out.ended);
    ck_assert_uint_lt(out.n_tokens, 200);
    ck_assert_uint_eq(cut.n, out.n_tokens);
    ck_assert_mem_eq(cut.ids, whole.ids, cut.n * sizeof *cut.ids);
    ck_assert_uint_eq(cut.n_text, n);
    ck_assert_mem_eq(cut.text, whole.text, n);
}

/* Of every family, 200 tokens (tests/oracle/logits.py): past windows of a few keys, and past the positions of those
 * models that have 16. transformers computed the whole context for each token. Alone, and together with other texts,
 * one of which goes on after its prompt. */
TEST(every_family_goes_on_as_with_transformers)
{
    glob_t found;

    ck_assert_int_eq(glob(TESTS_DIR "/fixtures/*/greedy.json", 0, NULL, &found), 0);
    for (size_t i = 0; i < found.gl_pathc; i++) {
        json_t *wanted = json_load_file(found.gl_pathv[i], 0, NULL), *ids = json_object_get(wanted, "ids");
        char *prompt = json_dumps(json_object_get(wanted, "prompt"), JSON_COMPACT);
        json_t *got =
            expect_json(print("eps generate --model %s --ids %.*s --tokens %zu --temperature 0 --json",
                              dirname(found.gl_pathv[i]), (int)strlen(prompt) - 2, prompt + 1, json_array_size(ids)),
                        0);
        ck_assert_uint_eq(json_array_size(ids), 200);
        ck_assert_msg(json_equal(json_object_get(got, "ids"), ids), "%s", found.gl_pathv[i]);
        json_t *several = expect_json(print("eps generate --model %s --ids 1,2,3 --ids %.*s --samples 2 --tokens 60 "
                                            "--temperature 0 --json",
                                            found.gl_pathv[i], (int)strlen(prompt) - 2, prompt + 1),
                                      0);
        while (json_array_size(ids) > 60)
            json_array_remove(ids, 60);
        for (size_t k = 2; k < 4; k++)
            ck_assert_msg(json_equal(json_object_get(json_array_get(several, k), "ids"), ids), "%s, text %zu",
                          found.gl_pathv[i], k);
        json_decref(several);
        free(prompt);
        json_decref(wanted), json_decref(got);
    }
    globfree(&found);
}
