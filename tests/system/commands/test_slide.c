/* Texts longer than the model's positions, against a plain reference that keeps no cache: it computes each token anew
 * from the tokens that the model is said to see. */
#include "proto/model/file/safetensors.h"
#include "tests/kit/processes.h"
#include "tests/kit/reference/reference_gpt2.h"
#include "tests/kit/test.h"

#include "client/eps.h"

#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long, slow)

#define MODEL TESTS_DIR "/fixtures/tied" /* 16 positions, a vocabulary of 61, no tokenizer */

enum { POSITIONS = 16, VOCABULARY = 61, MOST = 80 };

static struct model model;
static struct reference_gpt2 reference;

static void read_weights(float *weights)
{
    struct safetensors file;
    struct error err;
    const int fd = open(MODEL "/model.safetensors", O_RDONLY);

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    for (uint32_t u = 0; u < model.n_units; u++) {
        for (uint32_t p = 0; p < model.units[u].n_pieces; p++) {
            const struct model_piece *piece = &model.pieces[model.units[u].first_piece + p];
            const struct safetensors_entry *entry = safetensors_find(&file, model.tensors[piece->tensor].name);
            ck_assert_ptr_nonnull(entry);
            const uint64_t first = piece->first_row * model.tensors[piece->tensor].shape[1];
            ck_assert_int_eq(safetensors_read(weights + model.units[u].offset + piece->offset, entry, first, piece->n,
                                              &err),
                             0);
        }
    }
    safetensors_close(&file);
    close(fd);
}

static void setup(void)
{
    struct model_config config;
    struct error err;

    processes_setup();
    char *text = processes_read(MODEL "/config.json");
    ck_assert_msg(model_config_parse(&config, text, strlen(text), &err) == 0, "%s", err.text);
    free(text);
    ck_assert_uint_eq(config.n_positions, POSITIONS);
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    float *weights = calloc(model.segment_n, sizeof *weights);
    read_weights(weights);
    reference_gpt2_init(&reference, &model, weights);
    free(weights);
}

static void teardown(void)
{
    reference_gpt2_free(&reference);
    model_free(&model);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, teardown)

/* The likeliest token after these (n), by asking for the loss of each. */
static uint32_t likeliest(const uint32_t *ids, uint32_t n)
{
    uint32_t labels[POSITIONS], best = 0;
    double least = INFINITY;

    memset(labels, 0xff, sizeof labels);
    for (uint32_t k = 0; k < VOCABULARY; k++) {
        const struct reference_batch batch = {.ids = ids, .labels = labels, .n_rows = 1, .seq = n};
        labels[n - 1] = k;
        const double loss = reference_gpt2_loss(&reference, &batch);
        if (loss < least)
            least = loss, best = k;
    }
    return best;
}

static void on_token(void *user, uint32_t id, const char *text, size_t n)
{
    uint32_t **next = user;

    (void)text, (void)n;
    *(*next)++ = id;
}

/* The tokens after a prompt go to ids. */
static struct eps_generated generate(uint32_t *ids, const uint32_t *prompt, size_t n_prompt, uint32_t n_tokens,
                                     double temperature)
{
    static const struct eps_generate_events events = {.on_token = on_token};
    const struct eps_prompt text = {.ids = prompt, .n_ids = n_prompt};
    struct eps_generate_options options = eps_generate_defaults();
    struct eps_generated out;
    struct eps_error error;
    uint32_t *next = ids;

    options.model = MODEL, options.programs = BIN_DIR;
    options.prompts = &text, options.n_prompts = 1;
    options.n_tokens = n_tokens;
    options.sampling.temperature = temperature, options.sampling.seed = 1; /* which draws no end token */
    ck_assert_msg(eps_generate(&out, &options, &events, &next, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(out.n_tokens, n_tokens);
    ck_assert_int_eq(next - ids, n_tokens);
    return out;
}

/* By hand, of 16 positions: the window is full with 16 tokens; one more, and it begins anew with the last 8. */
static const struct {
    uint32_t n_prompt, n_tokens, n_slides;
} cases[] = {
    {5, 11, 0},  /* 16 in all */
    {5, 12, 0},  /* the last token is not looked at */
    {5, 13, 1},  /* 17 were to be looked at */
    {5, 40, 4},  /* at 17, and each 9 further: 26, 35, 44 of the 44 that are looked at */
    {16, 1, 0},  /* a prompt that fills all */
    {17, 1, 1},  /* one that does not fit: its last 8 */
    {40, 12, 2}, /* 8 of it; full with 8 more */
};

TEST_EACH(each_token_is_the_likeliest_after_those_in_the_window, COUNT(cases))
{
    const uint32_t n_prompt = cases[_i].n_prompt;
    const uint32_t n_all = n_prompt + cases[_i].n_tokens;
    uint32_t all[MOST], heard[MOST], start = 0;

    for (uint32_t i = 0; i < n_prompt; i++)
        all[i] = (i * 23 + 7) % VOCABULARY;
    const struct eps_generated out = generate(heard, all, n_prompt, cases[_i].n_tokens, 0);
    ck_assert_uint_eq(out.n_slides, cases[_i].n_slides);
    ck_assert_uint_eq(out.n_prompt, n_prompt);
    for (uint32_t at = n_prompt; at < n_all; at++) {
        if (at - start > POSITIONS)
            start = at - POSITIONS / 2;
        all[at] = likeliest(all + start, at - start);
        ck_assert_msg(heard[at - n_prompt] == all[at], "token %u is %u, not %u", at, heard[at - n_prompt], all[at]);
    }
}

TEST(a_drawn_text_that_slides_comes_again_with_its_seed)
{
    static const uint32_t prompt[] = {1, 60, 0, 7};
    uint32_t a[60], b[60];

    generate(a, prompt, 4, 60, 1);
    generate(b, prompt, 4, 60, 1);
    ck_assert_mem_eq(a, b, sizeof a);
}
