/* What each kind of sources of rows yields of its own. */
#include "tests/client/task/kinds.h"
#include "tests/kit/test.h"

#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <string.h>

SUITE_FIXTURE_ONCE(kinds_setup, kinds_teardown)

/* By hand: the second held-out window of ten, from token 34 on; each label is the id after its own. */
TEST(a_token_of_text_predicts_its_successor)
{
    struct kinds_opened o;
    struct kinds_memory m;
    const struct client_buffer buffer = kinds_guarded(&m, SEQ);
    struct client_minibatch minibatch;

    kinds_open(&o, 0, true);
    ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, 1, 1, NULL), 0);
    ck_assert_mem_eq(buffer.at[PLAN_FIELD_IDS], ((uint32_t[]){134, 135, CLS, 137}), SEQ * sizeof(uint32_t));
    ck_assert_mem_eq(buffer.at[PLAN_FIELD_LABELS], ((uint32_t[]){135, CLS, 137, 138}), SEQ * sizeof(uint32_t));
    ck_assert_uint_eq(minibatch.n_valid, SEQ);
    kinds_close(&o);
}

/* At a fraction that chooses all that may be, each of ten tokens has one label, but the two special ones: in windows of
 * four, four and two, the last of which also shows the two before. */
TEST(each_masked_token_is_predicted_once_and_special_ones_never)
{
    const struct client_source_rules rules = {.columns = NULL};
    unsigned labelled[N_IDS] = {0};
    struct kinds_opened o;
    struct kinds_memory m;

    ck_assert_int_eq(kinds_try_open(&o, 1, kinds_files[1], true, &rules, NULL), 0);
    kinds_divide(&o, 1, nextafter(1, 0));
    const struct client_buffer buffer = kinds_guarded(&m, SEQ);
    const uint32_t *labels = buffer.at[PLAN_FIELD_LABELS];
    struct client_minibatch minibatch;
    for (uint64_t k = 0; k < 3; k++) {
        ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, k, 1, NULL), 0);
        for (uint32_t i = 0; i < SEQ; i++)
            if (labels[i] != PLAN_NO_LABEL)
                labelled[labels[i] - 100]++;
    }
    for (unsigned i = 30; i < N_IDS; i++)
        ck_assert_uint_eq(labelled[i], i % SEQ ? 1 : 0);
    kinds_close(&o);
}

static void read_labels(const struct kinds_opened *o, uint32_t labels[SEQ], enum client_part part,
                        struct client_sample sample)
{
    uint32_t ids[SEQ];
    const struct client_row_fields row = {.at = {ids, labels, NULL}, .n_tokens = SEQ};

    ck_assert_int_eq(o->source->ops->read_row(o->source, &row, part, sample, NULL), 0);
}

TEST(masks_depend_on_a_row_s_number_in_the_run)
{
    uint32_t labels[3][SEQ], n_same = 0;
    struct kinds_opened o;

    kinds_open(&o, 1, true);
    for (uint64_t draw = 0; draw < 40; draw++) {
        read_labels(&o, labels[0], CLIENT_TRAIN, (struct client_sample){0, 99});
        read_labels(&o, labels[1], CLIENT_TRAIN, (struct client_sample){0, draw});
        read_labels(&o, labels[2], CLIENT_TRAIN, (struct client_sample){0, draw});
        ck_assert_mem_eq(labels[1], labels[2], sizeof labels[1]);
        n_same += memcmp(labels[0], labels[1], sizeof labels[0]) == 0;
    }
    ck_assert_uint_lt(n_same, 20); /* three tokens at 1/2 have 7 patterns: 6 or so of 40 are expected */
    kinds_close(&o);
}

/* Tokens 1 and 3 are ordinary ones in both windows. A third of the draws agree in both; of the same draws, all but an
 * eighth would. */
TEST(an_evaluation_has_masks_of_its_own)
{
    uint32_t labels[2][SEQ], n_same = 0;
    struct kinds_opened o;

    kinds_open(&o, 1, true);
    for (uint64_t draw = 0; draw < 40; draw++) {
        read_labels(&o, labels[0], CLIENT_TRAIN, (struct client_sample){0, draw});
        read_labels(&o, labels[1], CLIENT_HELD_OUT, (struct client_sample){0, draw});
        n_same += (labels[0][1] == PLAN_NO_LABEL) == (labels[1][1] == PLAN_NO_LABEL) &&
                  (labels[0][3] == PLAN_NO_LABEL) == (labels[1][3] == PLAN_NO_LABEL);
    }
    ck_assert_uint_lt(n_same, 25);
    kinds_close(&o);
}

/* By hand: of ten windows two are evaluated, 0 and 5, with the masks that they have among all ten. */
TEST(a_window_has_the_same_masks_in_every_evaluation)
{
    const struct client_source_rules rules = {.columns = NULL};
    const struct client_division division = {
        .seq = SEQ, .stride = SEQ, .seed = 7, .eval_tokens = 2 * SEQ, .mask_fraction = 0.5};
    uint32_t labels[2][SEQ];
    struct kinds_opened all, some;

    kinds_open(&all, 1, false);
    ck_assert_int_eq(kinds_try_open(&some, 1, kinds_files[1], false, &rules, NULL), 0);
    ck_assert_int_eq(client_source_divide(some.source, &division, NULL), 0);
    ck_assert_uint_eq(client_source_n_rows(some.source, CLIENT_HELD_OUT), 2);
    for (uint64_t k = 0; k < 2; k++) {
        const struct client_sample sample = client_source_pick_held_out(some.source, k);
        ck_assert(sample.id == k && sample.draw == 5 * k);
        read_labels(&some, labels[0], CLIENT_HELD_OUT, sample);
        read_labels(&all, labels[1], CLIENT_HELD_OUT, client_source_pick_held_out(all.source, 5 * k));
        ck_assert_mem_eq(labels[0], labels[1], sizeof labels[0]);
    }
    kinds_close(&all), kinds_close(&some);
}

/* Its label is at its first token; a row is [CLS], letters, [SEP]; rows of an evaluation come by their length. */
TEST(a_labelled_row_has_its_class_at_its_first_token_and_its_length_beside)
{
    struct kinds_opened o;
    struct kinds_memory m;
    const struct client_buffer buffer = kinds_guarded(&m, LONG);
    struct client_minibatch minibatch;

    kinds_open(&o, 2, false);
    ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, 12, BATCH, NULL), 0);
    const uint32_t *ids = buffer.at[PLAN_FIELD_IDS], *labels = buffer.at[PLAN_FIELD_LABELS];
    const struct plan_row *rows = buffer.at[PLAN_FIELD_LENGTHS];
    ck_assert_uint_eq(minibatch.n_tokens, LONG); /* 7, in eights */
    ck_assert_uint_eq(minibatch.n_valid, BATCH);
    for (uint32_t i = 0; i < BATCH; i++) { /* 4, 9 and 14 are the longest */
        ck_assert_uint_eq(rows[i].n_tokens, 7);
        ck_assert_uint_eq(rows[i].second, 7);
        ck_assert(ids[i * LONG] == CLS && ids[i * LONG + 6] == 3 && ids[i * LONG + 7] == 0);
        ck_assert_uint_eq(labels[i * LONG], (4 + 5 * i) % 3 == 0);
        ck_assert_uint_eq(labels[i * LONG + 1], PLAN_NO_LABEL);
    }
    kinds_close(&o);
}

TEST(rows_of_one_class_teach_no_classifier)
{
    const struct client_source_rules rules = {.columns = NULL};
    struct error err = {""};
    struct kinds_opened o;

    ck_assert_int_eq(kinds_try_open(&o, 2, "one.tsv", true, &rules, &err), -EINVAL);
    ck_assert_str_eq(err.text, "every row has the label 'yes': a classifier needs two classes");
    kinds_close(&o);
    ck_assert_int_eq(kinds_try_open(&o, 2, "one.tsv", false, &rules, &err), 0); /* but they can be evaluated */
    kinds_close(&o);
}

/* By hand: of three rows two have labels. */
TEST(a_loss_of_some_rows_alone_is_withdrawn)
{
    const struct client_source_rules rules = {.unlabelled = true};
    struct kinds_opened o, all;
    uint64_t n_labels = 2;
    double loss = 0.5;

    kinds_open(&all, 2, false);
    ck_assert_int_eq(kinds_try_open(&o, 2, "some.tsv", false, &rules, NULL), 0);
    kinds_divide(&o, 2, 0);
    ck_assert_int_eq(o.source->ops->score(o.source, &loss, &n_labels, NULL), 0);
    ck_assert(isnan(loss) && n_labels == 0 && o.source->scores.n == 0);
    loss = 0.5, n_labels = N_ROWS;
    ck_assert_uint_eq(all.source->n_logits, 2);
    for (uint64_t k = 0; k < N_ROWS; k++) /* right for "no", ten rows of fifteen */
        all.source->logits[2 * k] = 1;
    ck_assert_int_eq(all.source->ops->score(all.source, &loss, &n_labels, NULL), 0);
    ck_assert(loss == 0.5 && n_labels == N_ROWS && all.source->scores.n == 3);
    ck_assert_str_eq(all.source->scores.list[0].name, "accuracy");
    ck_assert_double_eq_tol(all.source->scores.list[0].value, 10.0 / 15, 1e-12); /* one division */
    kinds_close(&o), kinds_close(&all);
}
