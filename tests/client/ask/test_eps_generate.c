/* Texts that go on: the very tokens of transformers, whatever the budget and whoever runs them; and what is refused. */
#include "client/text/sample.h"
#include "client/text/utf8.h"
#include "tests/kit/fixture.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
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
static char model[300];

enum { MAX_TOKENS = 512, N_TEXTS = 3 };

/* What came out. */
struct heard {
    uint32_t ids[MAX_TOKENS], n;
    char text[4 * MAX_TOKENS];
    size_t n_text;
    bool textless;
    uint32_t stop_after; /* tokens; 0: never */
    pid_t (*find)(const char *program);
    pid_t killed;
};

static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    snprintf(model, sizeof model, "%s", processes_path("model"));
    ck_assert_int_eq(mkdir(model, 0700), 0);
    fixture_write_model(&fixture, model);
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
    h->textless |= !text;
    if (text) {
        memcpy(h->text + h->n_text, text, n);
        h->n_text += n;
    }
    if (h->find && h->n == 3) {
        h->killed = h->find("eps-worker");
        ck_assert_int_eq(kill(h->killed, SIGKILL), 0);
    }
}

static int should_stop(void *user)
{
    const struct heard *h = user;
    return h->stop_after > 0 && h->n >= h->stop_after;
}

static const struct eps_generate_events events = {.on_token = on_token, .should_stop = should_stop};

static struct eps_generate_options greedy(const char *prompt)
{
    return (struct eps_generate_options){.model = model,
                                         .programs = BIN_DIR,
                                         .prompt = prompt,
                                         .prompt_bytes = prompt ? strlen(prompt) : 0,
                                         .top_p = NAN};
}

static struct eps_generated generate(struct heard *h, const struct eps_generate_options *options)
{
    struct eps_generated out;
    struct eps_error error;

    *h = (struct heard){0};
    ck_assert_msg(eps_generate(&out, options, &events, h, &error) == 0, "%s", error.text);
    ck_assert_str_eq(error.text, "");
    ck_assert_uint_eq(out.n_tokens, h->n);
    return out;
}

static const char *prompt_of(int i)
{
    return json_string_value(
        json_object_get(json_array_get(json_object_get(fixture.reference, "texts"), (size_t)i), "prompt"));
}

static void check_text(const struct heard *h, int i)
{
    const json_t *ids = json_object_get(json_array_get(json_object_get(fixture.reference, "texts"), (size_t)i), "ids");

    ck_assert_uint_eq(json_array_size(ids), 200);
    ck_assert_uint_eq(h->n, 200);
    for (size_t k = 0; k < 200; k++)
        ck_assert_msg(json_integer_value(json_array_get(ids, k)) == h->ids[k], "text %d: token %zu is %u", i, k,
                      h->ids[k]);
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

/* The least budget for `prompt` and n tokens, as the refusal of a smaller one says. */
static uint64_t least_budget(const char *prompt, uint32_t n_tokens)
{
    struct eps_generate_options options = greedy(prompt);
    struct eps_generated out;
    struct eps_error error;

    options.n_tokens = n_tokens;
    options.device_mem = 100 << 10;
    ck_assert_int_lt(eps_generate(&out, &options, NULL, NULL, &error), 0);
    ck_assert_holds(error.text, "--device-mem is 0.1 MiB");
    const char *bytes = strstr(error.text, "needs at least ");
    ck_assert_msg(bytes && (bytes = strchr(bytes, '(')), "%s", error.text);
    return strtoull(bytes + 1, NULL, 10);
}

/* Budgets in which no, some and all weights find room to stay. */
TEST(a_text_does_not_depend_on_the_budget)
{
    const uint64_t least = least_budget(prompt_of(0), 200);
    uint64_t resident[4];

    for (uint64_t i = 0; i < 4; i++) {
        struct eps_generate_options options = greedy(prompt_of(0));
        struct heard h;
        options.device_mem = least + (i << 19);
        const struct eps_generated out = generate(&h, &options);
        check_text(&h, 0);
        resident[i] = out.resident_bytes;
        ck_assert(i == 0 || resident[i] >= resident[i - 1]);
    }
    ck_assert_uint_lt(resident[0], 4 * 256 * 64); /* not even the table stayed */
    ck_assert_uint_lt(resident[1], resident[2]);
    ck_assert_uint_eq(resident[3], 4 * (4 * (12 * 64 * 64 + 13 * 64) + 2 * 64 + 256 * 64));
}

TEST(ids_begin_a_text_as_their_bytes_do)
{
    struct eps_generate_options options = greedy(NULL);
    const char *prompt = prompt_of(2);
    uint32_t ids[MAX_TOKENS];
    struct heard h;

    for (size_t i = 0; prompt[i]; i++)
        ids[i] = (unsigned char)prompt[i];
    options.prompt_ids = ids;
    options.n_prompt_ids = strlen(prompt);
    generate(&h, &options);
    check_text(&h, 2);
}

TEST(without_a_prompt_bytes_begin_after_a_new_line)
{
    const struct eps_generate_options nothing = greedy(NULL), empty = greedy(""), line = greedy("\n");
    struct heard a, b, c;

    ck_assert_uint_eq(generate(&a, &nothing).n_prompt, 1);
    generate(&b, &empty);
    generate(&c, &line);
    ck_assert_mem_eq(a.ids, c.ids, 200 * sizeof *a.ids);
    ck_assert_mem_eq(b.ids, c.ids, 200 * sizeof *a.ids);
}

TEST(a_daemon_with_workers_gives_the_same_text)
{
    struct eps_generate_options options = greedy(prompt_of(0));
    struct eps_error error;
    struct heard h;
    pid_t daemon = processes_daemon("lab", 2, NULL);

    options.connect = "lab";
    for (int i = 0; i < 2; i++) { /* and has forgotten all about it when the next comes */
        generate(&h, &options);
        check_text(&h, 0);
    }
    ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

TEST(a_drawn_text_comes_again_with_its_seed)
{
    struct eps_generate_options options = greedy(prompt_of(0));
    struct heard first, again;

    options.temperature = NAN, options.top_k = 50, options.top_p = 0.95, options.seed = 7;
    options.n_tokens = 100;
    generate(&first, &options);
    ck_assert_uint_eq(first.n, 100);
    options.device_mem = least_budget(prompt_of(0), 100);
    generate(&again, &options);
    ck_assert_mem_eq(first.ids, again.ids, 100 * sizeof *first.ids);
}

/* The fifth token of this text is 200, the first byte of two. */
TEST(text_comes_as_whole_characters_and_all_of_it)
{
    static const uint32_t lengths[] = {200, 5};
    struct eps_generate_options options = greedy(prompt_of(1));
    struct client_stream stream = {0};
    uint8_t bytes[MAX_TOKENS];
    const char *text;
    struct heard h;
    size_t n;

    for (int k = 0; k < 2; k++) {
        options.n_tokens = lengths[k];
        generate(&h, &options);
        for (uint32_t i = 0; i < h.n; i++)
            bytes[i] = (uint8_t)h.ids[i];
        ck_assert_uint_eq(bytes[4], 200);
        ck_assert_int_eq(client_stream_push(&stream, &text, &n, bytes, h.n, true, NULL), 0);
        ck_assert_uint_eq(h.n_text, n);
        ck_assert_mem_eq(h.text, text, n);
    }
    client_stream_free(&stream);
}

static void check_refused(const struct eps_generate_options *options, int code, const char *first, const char *second)
{
    struct eps_generated out;
    struct eps_error error;
    struct heard h = {0};
    int rc = eps_generate(&out, options, &events, &h, &error);

    ck_assert_msg(rc == code, "%d: %s", rc, error.text);
    ck_assert_holds(error.text, first, second);
    ck_assert_uint_eq(h.n, 0);
    ck_assert_uint_eq(out.n_tokens, 0);
}

TEST(what_cannot_be_generated_is_refused_in_a_sentence)
{
    static const uint32_t beyond[] = {5, 256};
    static const char tied[] = TESTS_DIR "/fixtures/tied";
    char config[400];
    const struct {
        struct eps_generate_options options; /* over greedy's */
        int code;
        const char *first, *second;
    } cases[] = {
        {{.prompt = "caf\xC3 noir"}, -EINVAL, "not UTF-8", "byte 3 is 0xC3"},
        {{.prompt = "cut \xE2\x82"}, -EINVAL, "not UTF-8", "byte 4 is 0xE2"},
        {{.prompt_ids = beyond, .n_prompt_ids = 2}, -EDOM, "--ids: 256 is not a token", "255"},
        {{.prompt = "x", .prompt_ids = beyond, .n_prompt_ids = 1}, -EDOM, "--prompt", "--ids"},
        {{.prompt = "x", .temperature = -1}, -EDOM, "--temperature -1", "at least 0"},
        {{.prompt = "x", .top_p = 1.5}, -EDOM, "--top-p 1.5", "at most 1"},
        {{.prompt = "x", .connect = "nowhere"}, -ENOENT, "nowhere", ""},
        {{.prompt = "x", .connect = "nowhere", .device_mem = 1 << 20}, -EDOM, "--device-mem", "--connect"},
        {{.prompt = "x", .model = "/nonexistent/model"}, -ENOENT, "/nonexistent/model", ""},
        {{.prompt = "x", .model = "byte-small"}, -EINVAL, "--model byte-small is a preset", "directory"},
        {{.prompt = "x", .model = "."}, -ENOENT, "holds no config.json", "latest"},
        {{.prompt = "x", .model = config}, -EINVAL, "config.json has no weights", "directory"},
        {{.prompt = "x", .model = tied}, -EINVAL, "has no tokenizer", "--ids"},
        {{.model = tied}, -EDOM, "--ids is needed", "tokenizer"},
    };

    snprintf(config, sizeof config, "%s/config.json", model);
    for (int i = 0; i < COUNT(cases); i++) {
        struct eps_generate_options o = greedy(cases[i].options.prompt);
        const struct eps_generate_options *given = &cases[i].options;
        o.prompt_ids = given->prompt_ids, o.n_prompt_ids = given->n_prompt_ids, o.temperature = given->temperature;
        o.connect = given->connect, o.device_mem = given->device_mem;
        o.model = given->model ? given->model : model;
        o.top_p = given->top_p > 0 ? given->top_p : o.top_p;
        check_refused(&o, cases[i].code, cases[i].first, cases[i].second);
    }
}

static bool nobody_is_left(void *context)
{
    (void)context;
    return !processes_find("epsd") && !processes_find("eps-worker");
}

TEST(an_interrupt_leaves_what_was_generated)
{
    const struct eps_generate_options options = greedy(prompt_of(0));
    const json_t *ids = json_object_get(json_array_get(json_object_get(fixture.reference, "texts"), 0), "ids");
    struct heard h = {.stop_after = 5};
    struct eps_generated out;
    struct eps_error error;

    ck_assert_int_eq(eps_generate(&out, &options, &events, &h, &error), -EINTR);
    ck_assert_str_eq(error.text, "interrupted");
    ck_assert_uint_eq(h.n, 5);
    ck_assert_uint_eq(out.n_tokens, 5);
    for (size_t i = 0; i < 5; i++)
        ck_assert_uint_eq(h.ids[i], (uint32_t)json_integer_value(json_array_get(ids, i)));
    ck_assert(nobody_is_left(NULL)); /* at once: they were waited for */
}

TEST(a_worker_that_dies_is_told_of)
{
    const struct eps_generate_options options = greedy(prompt_of(0));
    struct heard h = {.find = processes_find};
    struct eps_generated out;
    struct eps_error error;

    ck_assert_int_eq(eps_generate(&out, &options, &events, &h, &error), -EIO);
    ck_assert_holds(error.text, "worker");
    ck_assert_uint_ge(out.n_tokens, 3);
    ck_assert(processes_until(nobody_is_left, NULL));
}

/* Weights of 1e38 make infinities: said, and not drawn from. */
TEST(logits_that_are_no_numbers_end_it)
{
    char path[400], copy[300], command[1024];
    struct eps_generate_options options = greedy("x");

    snprintf(copy, sizeof copy, "%s", processes_path("astray"));
    snprintf(command, sizeof command, "cp -r %s %s", model, copy);
    ck_assert_int_eq(system(command), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", copy);
    int fd = open(path, O_RDWR);
    float huge[4096];
    for (size_t i = 0; i < 4096; i++)
        huge[i] = i % 2 ? 3e38f : -3e38f;
    const off_t end = lseek(fd, 0, SEEK_END);
    for (off_t at = end / 2; at < end - (off_t)sizeof huge; at += (off_t)sizeof huge)
        ck_assert_int_eq(pwrite(fd, huge, sizeof huge, at), sizeof huge);
    close(fd);
    options.model = copy;
    check_refused(&options, -EINVAL, "logit of token ", "at position 1 is ");
}
