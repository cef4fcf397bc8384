/* Masks: how many tokens are chosen and what becomes of them, against the binomial distribution; on which numbers a
 * draw depends; what has no mask token. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/task/masks.h"
#include "proto/wire/message.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 400, ROWS = 600, VOCABULARY = 400, N_IDS = 327 };
enum { PAD, UNK, CLS, SEP, MASK, N_SPECIAL }; /* of the fixture bert.json, which has 327 tokens */

/* A fixture as tokenizer.json, and maybe a tokenizer_config.json. */
static json_t *side_of(const char *tokenizer, const char *config)
{
    char *text = processes_read(print(TESTS_DIR "/fixtures/tokenizers/%s.json", tokenizer));
    json_t *side = json_pack("{s:s}", "tokenizer.json", text);

    free(text);
    if (config)
        json_object_set_new(side, "tokenizer_config.json", json_string(config));
    return side;
}

static struct client_masks opened(double fraction, uint64_t seed)
{
    json_t *side = side_of("bert", NULL);
    struct client_masks masks;
    struct error err = {""};

    ck_assert_msg(client_masks_open(&masks, side, NULL, VOCABULARY, &err) == 0, "%s", err.text);
    client_masks_set(&masks, fraction, seed);
    json_decref(side);
    return masks;
}

/* Ordinary tokens, but the special ones at every seventh place; some are of no token of the tokenizer. */
static void fill(uint32_t ids[N], uint64_t row)
{
    for (uint32_t i = 0; i < N; i++)
        ids[i] = i % 7 == 3 ? i % N_SPECIAL : N_SPECIAL + (uint32_t)(row * 131 + i * 17) % (VOCABULARY - N_SPECIAL);
}

/* k of n at probability p: neither as few nor as many has a probability below 1e-6. Terms are summed outwards from k,
 * by the ratio of neighbours. */
static void expect_binomial(const char *what, uint64_t k, uint64_t n, double p)
{
    const double nd = (double)n, kd = (double)k;
    const double at = exp(lgamma(nd + 1) - lgamma(kd + 1) - lgamma(nd - kd + 1) + kd * log(p) + (nd - kd) * log1p(-p));
    double few = 0, many = 0, term = at;

    for (double i = kd; i >= 0; i--)
        few += term, term *= i / (nd - i + 1) * (1 - p) / p;
    term = at;
    for (double i = kd; i <= nd; i++)
        many += term, term *= (nd - i) / (i + 1) * p / (1 - p);
    ck_assert_msg(few > 1e-6 && many > 1e-6, "%s: %ju of %ju, and the probability is %g", what, (uintmax_t)k,
                  (uintmax_t)n, p);
}

/* Of a chosen token: 80 % the mask token, 10 % any of 327 at random, 10 % as it was. No token can be chosen for being
 * the only one of its row: with 342 ordinary ones, 0.85^342 < 1e-24. */
TEST(chosen_tokens_and_what_becomes_of_them_have_the_documented_shares)
{
    uint64_t n = 0, chosen = 0, masked = 0, stayed = 0, random = 0, low = 0, pairs = 0, both = 0, at[N] = {0};
    struct client_masks masks = opened(0.15, 0);
    uint32_t before[N], ids[N], labels[N];

    for (uint64_t row = 0; row < ROWS; row++) {
        fill(before, row);
        memcpy(ids, before, sizeof ids);
        client_masks_draw(&masks, ids, labels, 0, N, false, row);
        for (uint32_t i = 0; i < N; i++) {
            const bool is_chosen = labels[i] != PLAN_NO_LABEL;
            ck_assert(is_chosen ? labels[i] == before[i] && before[i] >= N_SPECIAL : ids[i] == before[i]);
            ck_assert(ids[i] == before[i] || ids[i] < N_IDS);
            if (before[i] < N_SPECIAL)
                continue;
            n++, chosen += is_chosen, at[i] += is_chosen;
            if (i % 7 != 2 && i + 1 < N) /* its neighbour is ordinary, too */
                pairs++, both += is_chosen && labels[i + 1] != PLAN_NO_LABEL;
            if (!is_chosen)
                continue;
            masked += ids[i] == MASK, stayed += ids[i] == before[i];
            if (ids[i] != MASK && ids[i] != before[i])
                random++, low += ids[i] < N_IDS / 2;
        }
    }
    expect_binomial("chosen", chosen, n, 0.15);
    for (uint32_t i = 0; i < N; i++)
        if (i % 7 != 3)
            expect_binomial(print("chosen at %u", i), at[i], ROWS, 0.15);
    expect_binomial("chosen with its neighbour", both, pairs, 0.15 * 0.15);
    expect_binomial("replaced by the mask token", masked, chosen, 0.8 + 0.1 / N_IDS);
    expect_binomial("left as they were", stayed, chosen, 0.1 + 0.1 / VOCABULARY); /* 322 of 395 may be drawn again */
    expect_binomial("lower half of the random ones", low, random, (N_IDS / 2 - 1.0) / (N_IDS - 2));
    client_masks_close(&masks);
}

static bool same_draw(const struct client_masks *a, bool evaluates_a, uint64_t row_a, const struct client_masks *b,
                      bool evaluates_b, uint64_t row_b)
{
    uint32_t ids[2][N], labels[2][N];

    fill(ids[0], 1), fill(ids[1], 1);
    client_masks_draw(a, ids[0], labels[0], 0, N, evaluates_a, row_a);
    client_masks_draw(b, ids[1], labels[1], 0, N, evaluates_b, row_b);
    return memcmp(ids[0], ids[1], sizeof ids[0]) == 0 && memcmp(labels[0], labels[1], sizeof labels[0]) == 0;
}

TEST(a_draw_depends_on_seed_row_and_purpose_alone)
{
    struct client_masks a = opened(0.15, 5), again = opened(0.15, 5), other = opened(0.15, 6);
    const uint64_t late = ((uint64_t)1 << 40) + 1;

    ck_assert(same_draw(&a, false, 1, &again, false, 1));
    ck_assert(same_draw(&a, true, late, &again, true, late));
    ck_assert(!same_draw(&a, false, 1, &again, false, 2));
    ck_assert(!same_draw(&a, false, 1, &again, false, late));
    ck_assert(!same_draw(&a, false, 1, &again, true, 1));
    ck_assert(!same_draw(&a, false, 1, &other, false, 1));
    client_masks_close(&a), client_masks_close(&again), client_masks_close(&other);
}

/* Of short rows and few draws. In one of two tokens at 1 %, the probability that the draws choose none is 98 %, and
 * then the first is chosen in half of the rows. It has the lowest draw, so a larger fraction chooses it, too. */
TEST(a_row_has_a_label_unless_all_its_tokens_are_special)
{
    struct client_masks masks = opened(0.01, 0), more = opened(0.5, 0);
    uint64_t n_first = 0, n_both = 0;
    uint32_t labels[4], others[4];

    for (uint64_t row = 0; row < 1000; row++) {
        uint32_t ids[4] = {CLS, 20, 30, SEP}, again[4] = {CLS, 20, 30, SEP};
        client_masks_draw(&masks, ids, labels, 0, 4, false, row);
        client_masks_draw(&more, again, others, 0, 4, false, row);
        const bool first = labels[1] == 20, second = labels[2] == 30;
        ck_assert(labels[0] == PLAN_NO_LABEL && labels[3] == PLAN_NO_LABEL && (first || second));
        ck_assert((!first || others[1] == 20) && (!second || others[2] == 30));
        n_first += first, n_both += first && second;
    }
    expect_binomial("the first", n_first, 1000, 0.01 + 0.99 * 0.99 / 2);
    expect_binomial("both", n_both, 1000, 0.0001);
    uint32_t ids[4] = {CLS, UNK, PAD, SEP};
    client_masks_draw(&masks, ids, labels, 0, 4, false, 1);
    for (int i = 0; i < 4; i++)
        ck_assert(labels[i] == PLAN_NO_LABEL);
    ck_assert(ids[0] == CLS && ids[1] == UNK && ids[2] == PAD && ids[3] == SEP);
    client_masks_close(&masks), client_masks_close(&more);
}

/* By name in either file; else by the text that BERT and RoBERTa have. */
TEST(the_mask_token_is_the_one_that_the_files_name)
{
    static const struct {
        const char *tokenizer, *config;
        uint32_t mask;
    } cases[] = {
        {"bert", NULL, MASK},
        {"bert", "{\"mask_token\": {\"content\": \"[PAD]\"}}", PAD},
        {"bert", "{\"mask_token\": \"no such token\"}", 327}, /* the next number, as in transformers */
        {"roberta", "{\"model_max_length\": 512}", 400},
    };

    for (int i = 0; i < COUNT(cases); i++) {
        json_t *side = side_of(cases[i].tokenizer, cases[i].config);
        struct client_masks masks;
        ck_assert_int_eq(client_masks_open(&masks, side, NULL, 401, NULL), 0);
        ck_assert_uint_eq(masks.mask, cases[i].mask);
        client_masks_close(&masks);
        json_decref(side);
    }
}

TEST(a_model_without_a_mask_token_is_refused)
{
    json_t *llama = side_of("llama3", NULL), *small = side_of("bert", NULL), *none = json_object();
    json_t *words = json_pack("{ss}", "vocab.txt", "[UNK]");
    const struct {
        const json_t *side;
        uint32_t vocabulary;
        const char *why;
    } cases[] = {
        {llama, 4096, "its tokenizer has no mask token"},
        {none, 4096, "no tokenizer to name the mask token"},
        {NULL, 256, "no tokenizer to name the mask token"},
        {words, 4096, "the model's tokenizer is a vocab.txt, which is not read here: make a tokenizer.json of it"},
        {small, 326, "326"}, /* another vocabulary than the model's */
    };

    for (int i = 0; i < COUNT(cases); i++) {
        struct client_masks masks;
        struct error err = {""};
        ck_assert_int_eq(client_masks_open(&masks, cases[i].side, NULL, cases[i].vocabulary, &err), -EINVAL);
        ck_assert_holds(err.text, cases[i].why);
        ck_assert_ptr_null(masks.special);
    }
    json_decref(llama), json_decref(small), json_decref(words);
    json_decref(none);
}
