/* Texts that go on: the very tokens of transformers, whatever the budget and whoever runs them. What is refused:
 * tests/tools/test_cli.c. */
#include "client/text/utf8.h"
#include "tests/kit/command.h"
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

enum { MAX_TOKENS = 512, N_TEXTS = 3 };

/* What came out. */
struct heard {
    uint32_t ids[MAX_TOKENS], n;
    char text[4 * MAX_TOKENS];
    size_t n_text;
    uint32_t stop_after; /* tokens; 0: never */
    bool kills;          /* the worker, after the third */
};

static void setup(void)
{
    processes_setup();
    fixture_open_model(&fixture, "generate");
    ck_assert_int_eq(mkdir("model", 0700), 0);
    fixture_write_model(&fixture, "model");
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

static struct eps_generate_options greedy(const char *prompt)
{
    return (struct eps_generate_options){.model = "model",
                                         .programs = BIN_DIR,
                                         .prompt = prompt,
                                         .prompt_bytes = prompt ? strlen(prompt) : 0,
                                         .top_p = NAN};
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

static json_t *of_text(int i, const char *key)
{
    return json_object_get(json_array_get(json_object_get(fixture.reference, "texts"), (size_t)i), key);
}

static const char *prompt_of(int i)
{
    return json_string_value(of_text(i, "prompt"));
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

TEST(a_text_begins_with_ids_as_with_their_bytes_and_without_either_after_a_new_line)
{
    const struct eps_generate_options nothing = greedy(NULL), empty = greedy(""), line = greedy("\n");
    struct eps_generate_options options = greedy(NULL);
    uint32_t ids[MAX_TOKENS];
    struct heard a, b, c;

    options.prompt_ids = ids, options.n_prompt_ids = strlen(prompt_of(2));
    for (size_t i = 0; i < options.n_prompt_ids; i++)
        ids[i] = (unsigned char)prompt_of(2)[i];
    generate(&a, &options);
    check_text(&a, 2);
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
TEST(a_text_that_ends_inside_a_character_says_so)
{
    struct eps_generate_options options = greedy(prompt_of(1));
    struct heard h;

    options.n_tokens = 5;
    generate(&h, &options);
    ck_assert_uint_eq(h.ids[4], 200);
    ck_assert_mem_eq(h.text + h.n_text - 3, "\xEF\xBF\xBD", 3);
}

static bool nobody_is_left(void *context)
{
    (void)context;
    return !processes_find("epsd") && !processes_find("eps-worker");
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
    ck_assert(nobody_is_left(NULL)); /* at once: they were waited for */

    ck_assert_int_eq(eps_generate(&out, &options, &events, &lost, &error), -EIO);
    ck_assert_holds(error.text, "worker");
    ck_assert_uint_ge(out.n_tokens, 3);
    ck_assert(processes_until(nobody_is_left, NULL));
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
