/* What every kind of sources of rows keeps, in one list of kinds. */
#include "tests/client/task/kinds.h"
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "client/options/options.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>

SUITE_FIXTURE_ONCE(kinds_setup, kinds_teardown)

/* Words that a field takes of a minibatch. */
static size_t words_of(const struct client_source *source, unsigned field, uint32_t n_tokens)
{
    const struct plan_field_type *type = &plan_field_types[field];

    if (!(source->ops->fields >> field & 1))
        return 0;
    return type->element_bytes / 4 * BATCH * (type->by_token ? n_tokens : 1);
}

static struct client_minibatch fill(const struct kinds_opened *o, int kind, struct kinds_memory *m, uint64_t step)
{
    const struct client_buffer buffer = kinds_guarded(m, kinds_seqs[kind]);
    struct client_minibatch minibatch;

    ck_assert_int_eq(client_source_fill(&minibatch, &buffer, o->source, step, step * BATCH, NULL), 0);
    return minibatch;
}

TEST(a_model_decides_which_kind_it_takes)
{
    struct model_config model = {.vocabulary = VOCABULARY};

    for (const struct family *const *family = model_families; *family; family++) {
        model.family = *family;
        model.n_labels = 0;
        ck_assert_ptr_eq(client_source_kind(&model, NAN), (*family)->masked       ? &client_source_masked
                                                          : (*family)->has_source ? &client_source_targets
                                                                                  : &client_source_text);
        model.n_labels = 2;
        ck_assert_ptr_eq(client_source_kind(&model, NAN), &client_source_labelled);
    }
}

TEST(a_task_is_found_by_its_bit_and_the_general_comes_first)
{
    const char *const keys[] = {"text",    "conversations", "preferences", "masked",
                                "targets", "spans",         "labels",      "images"};
    const struct eps_task_facts *task;
    unsigned seen = 0;

    for (int i = 0; i < COUNT(keys); i++) {
        task = eps_task_at((size_t)i);
        ck_assert_str_eq(task->key, keys[i]);
        ck_assert_ptr_eq(eps_task_facts(task->task), task);
        ck_assert(!(seen & task->task) && task->task & EPS_OF_ALL);
        ck_assert(strcmp(task->use, "eval") == 0 || strcmp(task->use, "chat") == 0 ||
                  strcmp(task->use, "generate") == 0);
        seen |= task->task;
    }
    ck_assert_ptr_null(eps_task_at(COUNT(keys)));
    ck_assert_ptr_null(eps_task_facts(EPS_OF_HYPOTHESES));
    ck_assert_ptr_null(eps_task_facts(0));
}

TEST(tasks_of_documents_are_named_together)
{
    const unsigned documents = EPS_OF_CONVERSATIONS | EPS_OF_PREFERENCES;

    ck_assert_uint_eq(client_source_expand(EPS_OF_TEXT), EPS_OF_TEXT);
    ck_assert_uint_eq(client_source_expand(EPS_OF_TEXT | EPS_OF_DOCUMENTS), EPS_OF_TEXT | EPS_OF_DOCUMENTS | documents);
    ck_assert_uint_eq(client_source_tasks(&client_source_text), EPS_OF_TEXT | documents | EPS_OF_SPANS);
    ck_assert_uint_eq(client_source_tasks(&client_source_masked), EPS_OF_MASKED);
    ck_assert_uint_eq(client_source_planned(&client_source_text, false), EPS_OF_TEXT | EPS_OF_CONVERSATIONS);
    ck_assert_uint_eq(client_source_planned(&client_source_text, true), EPS_OF_PREFERENCES);
    ck_assert_uint_eq(client_source_planned(&client_source_images, false), EPS_OF_IMAGES);
}

/* What is asked for already stays asked for: on_rows has weights for any rows. */
TEST(a_goal_follows_from_the_fields_of_its_rows)
{
    const struct {
        unsigned fields;
        bool packs, weighted;
    } rows[] = {{client_source_fields(EPS_OF_TEXT), false, false},
                {client_source_packed.fields, true, false},
                {1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_WEIGHTS, false, true},
                {client_source_fields(0), false, false}};

    for (int i = 0; i < COUNT(rows); i++) {
        struct plan_goal goal = {.batch = 1}, asked = {.packs = true, .weighted = true};
        client_source_ask(&goal, rows[i].fields);
        client_source_ask(&asked, rows[i].fields);
        ck_assert(goal.packs == rows[i].packs && goal.weighted == rows[i].weighted);
        ck_assert(asked.packs && asked.weighted);
    }
    ck_assert_uint_eq(client_source_fields(EPS_OF_TEXT), client_source_text.fields);
}

TEST_EACH(a_minibatch_has_its_source_s_fields_and_nothing_around_them_is_touched, KINDS)
{
    struct kinds_opened o;
    struct kinds_memory m;

    kinds_open(&o, _i, true);
    for (uint64_t step = 0; step < 9; step++) {
        const struct client_minibatch minibatch = fill(&o, _i, &m, step);
        ck_assert(minibatch.n_tokens > 0 && minibatch.n_tokens <= kinds_seqs[_i] && minibatch.n_valid > 0);
        for (unsigned f = 0; f < PLAN_FIELDS; f++) {
            const size_t n = words_of(o.source, f, minibatch.n_tokens);
            ck_assert_uint_eq(m.at[f][0], GUARD);
            for (size_t i = 1; i < ROOM; i++)
                ck_assert_msg((m.at[f][i] == GUARD) == (i > n), "%s %zu", plan_field_types[f].name, i);
        }
    }
    kinds_close(&o);
}

/* Of ids.bin. */
static void check_entry(int kind, const struct kinds_memory *m, size_t at)
{
    const uint32_t entry = m->at[PLAN_FIELD_ENTRIES][at], label = m->at[PLAN_FIELD_LABELS][at],
                   id = kind == 1 && label != PLAN_NO_LABEL ? label : m->at[PLAN_FIELD_IDS][at];

    ck_assert_uint_eq(id, entry % SEQ ? 100 + entry : CLS);
}

/* Whatever the epoch and the order. Of held-out rows none are remembered. */
TEST_EACH(a_token_s_entry_is_its_place_in_the_data, KINDS)
{
    uint32_t firsts[N_ROWS + 1] = {0}, n_checked = 0;
    struct client_minibatch held_out;
    struct kinds_opened o;
    struct kinds_memory m;

    for (uint32_t k = 0; k < N_ROWS; k++) /* one to five letters; two texts would have three special tokens */
        firsts[k + 1] = firsts[k] + 1 + k % 5 + 3;
    kinds_open(&o, _i, true);
    ck_assert_uint_eq(client_source_n_entries(o.source), _i < 2 ? N_IDS : firsts[N_ROWS]);
    for (uint64_t step = 0; step < 12; step++) {
        const struct client_minibatch minibatch = fill(&o, _i, &m, step);
        for (uint32_t row = 0; row < BATCH; row++) {
            const struct plan_row *length = (const struct plan_row *)(m.at[PLAN_FIELD_LENGTHS] + 1) + row;
            const uint32_t n = _i < 2 ? minibatch.n_tokens : length->n_tokens;
            const size_t at = 1 + row * (size_t)minibatch.n_tokens;
            const uint32_t first = m.at[PLAN_FIELD_ENTRIES][at];
            for (uint32_t t = 0; t < n && first != PLAN_NO_ENTRY; t++, n_checked++) {
                ck_assert_uint_eq(m.at[PLAN_FIELD_ENTRIES][at + t], first + t);
                if (_i < 2)
                    check_entry(_i, &m, at + t);
            }
            for (uint32_t t = n; t < minibatch.n_tokens; t++)
                ck_assert_uint_eq(m.at[PLAN_FIELD_ENTRIES][at + t], PLAN_NO_ENTRY);
            uint32_t k = 0;
            while (_i == 2 && first != PLAN_NO_ENTRY && firsts[k] != first)
                ck_assert_uint_lt(++k, N_ROWS);
            ck_assert(_i < 2 || first == PLAN_NO_ENTRY || firsts[k + 1] - firsts[k] == n + 1);
        }
    }
    ck_assert_uint_gt(n_checked, 12 * BATCH);
    const struct client_buffer buffer = kinds_guarded(&m, kinds_seqs[_i]);
    ck_assert_int_eq(client_source_fill_held_out(&held_out, &buffer, o.source, 0, 1, NULL), 0);
    for (uint32_t t = 0; t < held_out.n_tokens; t++)
        ck_assert_uint_eq(m.at[PLAN_FIELD_ENTRIES][1 + t], PLAN_NO_ENTRY);
    kinds_close(&o);
}

/* As a run does that resumes in the middle. */
TEST_EACH(a_step_s_rows_do_not_depend_on_the_steps_before, KINDS)
{
    struct kinds_opened o, resumed;
    struct kinds_memory first, again;

    kinds_open(&o, _i, true);
    kinds_open(&resumed, _i, true);
    for (uint64_t step = 0; step < 12; step++)
        fill(&o, _i, &first, step);
    fill(&o, _i, &first, 5);
    const struct client_minibatch minibatch = fill(&resumed, _i, &again, 5);
    ck_assert_uint_eq(minibatch.n_valid > 0, 1);
    ck_assert_mem_eq(&first, &again, sizeof first);
    fill(&resumed, _i, &again, 6);
    ck_assert_mem_ne(&first, &again, sizeof first);
    kinds_close(&o), kinds_close(&resumed);
}

TEST_EACH(an_epoch_has_every_row_once, KINDS)
{
    struct kinds_opened o;
    struct client_sample samples[BATCH];
    unsigned seen[N_IDS] = {0}, n_seen = 0;

    kinds_open(&o, _i, true);
    const uint64_t n = client_source_n_rows(o.source, CLIENT_TRAIN);
    ck_assert_uint_gt(n, BATCH);
    for (uint64_t step = 0; n_seen < n; step++) {
        const uint32_t got = client_source_pick(samples, o.source, step, step * BATCH);
        ck_assert(got >= 1 && got <= BATCH);
        for (uint32_t i = 0; i < got && n_seen < n; i++, n_seen++)
            ck_assert_uint_eq(seen[samples[i].id]++, 0);
    }
    kinds_close(&o);
}

/* By hand: of 30 tokens to train on, a text has 7 windows with a successor, and masked tokens as many; 10 are held out:
 * 3 windows, one of them short. Of 15 rows one is held out. Held out alone they are 10 windows or 15 rows. */
TEST_EACH(rows_to_train_on_and_held_out_are_counted, KINDS)
{
    static const uint64_t counts[KINDS][3] = {{7, 3, 10}, {7, 3, 10}, {14, 1, 15}};
    struct kinds_opened o, all;

    kinds_open(&o, _i, true);
    kinds_open(&all, _i, false);
    ck_assert_uint_eq(client_source_n_rows(o.source, CLIENT_TRAIN), counts[_i][0]);
    ck_assert_uint_eq(client_source_n_rows(o.source, CLIENT_HELD_OUT), counts[_i][1]);
    ck_assert_uint_eq(client_source_n_rows(all.source, CLIENT_TRAIN), 0);
    ck_assert_uint_eq(client_source_n_rows(all.source, CLIENT_HELD_OUT), counts[_i][2]);
    kinds_close(&o), kinds_close(&all);
}

/* What is held out is evaluated row by row, each once, and the report of progress ends where it says it will. */
TEST_EACH(every_held_out_row_is_evaluated_once, KINDS)
{
    static const uint64_t progress[KINDS] = {N_IDS - 1, N_IDS, N_ROWS};
    struct kinds_opened o;
    bool seen[N_IDS] = {false};
    struct kinds_memory m;

    kinds_open(&o, _i, false);
    const uint64_t n = client_source_n_rows(o.source, CLIENT_HELD_OUT);
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t id = client_source_pick_held_out(o.source, k).id;
        ck_assert(id < n && !seen[id]);
        seen[id] = true;
        ck_assert_uint_lt(client_source_progress(o.source, k), client_source_progress(o.source, k + 1));
    }
    ck_assert_uint_eq(client_source_progress(o.source, n), progress[_i]);
    for (uint64_t first = 0; first < n; first += BATCH) {
        const struct client_buffer buffer = kinds_guarded(&m, kinds_seqs[_i]);
        struct client_minibatch minibatch;
        const uint32_t left = n - first < BATCH ? (uint32_t)(n - first) : BATCH;
        ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, first, left, NULL), 0);
        ck_assert_uint_gt(minibatch.n_valid, 0);
    }
    kinds_close(&o);
}

/* Rows that a minibatch has no sample for are empty ones: no label, and of one token. */
TEST_EACH(a_minibatch_that_is_not_full_ends_with_empty_rows, KINDS)
{
    struct kinds_opened o;
    struct kinds_memory m;
    const struct client_buffer buffer = kinds_guarded(&m, kinds_seqs[_i]);
    struct client_minibatch minibatch;

    kinds_open(&o, _i, false);
    ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, 0, 1, NULL), 0);
    const uint32_t *ids = buffer.at[PLAN_FIELD_IDS], *labels = buffer.at[PLAN_FIELD_LABELS];
    for (uint32_t i = minibatch.n_tokens; i < BATCH * minibatch.n_tokens; i++)
        ck_assert(ids[i] == 0 && labels[i] == PLAN_NO_LABEL);
    const struct plan_row *rows = buffer.at[PLAN_FIELD_LENGTHS];
    for (uint32_t i = 1; i < BATCH && o.source->ops->fields >> PLAN_FIELD_LENGTHS & 1; i++)
        ck_assert(rows[i].n_tokens == 1 && rows[i].second == 1);
    kinds_close(&o);
}

/* Without padding. */
TEST_EACH(tokens_before_a_step_are_those_of_the_steps_before, KINDS)
{
    struct kinds_opened o;
    uint64_t sum = 0;
    struct kinds_memory m;

    kinds_open(&o, _i, true);
    for (uint64_t step = 0; step < 12; step++) {
        ck_assert_uint_eq(client_source_n_tokens(o.source, step, step * BATCH), sum);
        const struct client_minibatch minibatch = fill(&o, _i, &m, step);
        const uint32_t *ids = m.at[PLAN_FIELD_IDS] + 1;
        for (uint32_t i = 0; i < BATCH * minibatch.n_tokens; i++)
            sum += ids[i] != 0; /* no token of these data is padding */
    }
    kinds_close(&o);
}

TEST(options_that_a_source_has_no_use_for_are_refused)
{
    const struct eps_train_options none = eps_train_defaults();
    const struct eps_eval_options plain = eps_eval_defaults();
    struct eps_train_options columns = none, separator = none, fraction = none, limited = none;
    struct eps_eval_options stride = plain, columned = plain, evaluated = plain, predicted = plain;

    columns.columns = "a,b", separator.separator = EPS_SEPARATOR_EOS, fraction.mask_fraction = 0.2;
    limited.eval_tokens = 500, stride.stride = 2, columned.columns = "a,b", evaluated.eval_tokens = 500;
    predicted.predictions = "p.tsv";
    const struct {
        const struct eps_train_options *asked;
        const char *option;
        bool refused[KINDS];
    } runs[] = {{&none, "", {false, false, false}},
                {&columns, "--columns", {true, true, false}},
                {&separator, "--separator eos", {false, false, true}},
                {&fraction, "--mask-fraction", {true, false, true}},
                {&limited, "--eval-tokens", {false, false, true}}};
    const struct {
        const struct eps_eval_options *asked;
        const char *option;
        bool refused[KINDS];
    } evaluations[] = {{&plain, "", {false, false, false}},
                       {&predicted, "--predictions", {true, true, false}},
                       {&columned, "--columns", {true, true, false}},
                       {&stride, "--stride", {false, true, true}},
                       {&evaluated, "--eval-tokens", {false, false, true}}};

    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < COUNT(runs); i++) {
            struct error err = {""};
            ck_assert_int_eq(client_options_check_tasks(runs[i].asked, EPS_COMMAND_TRAIN, kinds[kind]->facts.task,
                                                        false, &err),
                             runs[i].refused[kind] ? -EDOM : 0);
            ck_assert_holds(err.text, runs[i].refused[kind] ? runs[i].option : "");
        }
        for (int i = 0; i < COUNT(evaluations); i++) {
            struct error err = {""};
            ck_assert_int_eq(client_options_check_tasks(evaluations[i].asked, EPS_COMMAND_EVAL, kinds[kind]->facts.task,
                                                        false, &err),
                             evaluations[i].refused[kind] ? -EDOM : 0);
            ck_assert_holds(err.text, evaluations[i].refused[kind] ? evaluations[i].option : "");
        }
    }
}

/* By hand: the longest row has five letters and two special tokens; a row has room from one letter on. */
TEST(facts_are_those_of_the_rows)
{
    static const struct client_source_facts facts[KINDS] = {
        {.masked = false},
        {.masked = true},
        {.task = EPS_CLASSIFY, .n_rows = N_ROWS - 1, .longest = 5 + 2, .least = 2 + 1}};

    for (int kind = 0; kind < KINDS; kind++) {
        struct kinds_opened o;
        struct client_source_facts got;
        char text[100];
        kinds_open(&o, kind, true);
        got = client_source_measure(o.source);
        ck_assert(got.masked == facts[kind].masked && got.task == facts[kind].task &&
                  got.n_rows == facts[kind].n_rows && got.longest == facts[kind].longest &&
                  got.least == facts[kind].least);
        ck_assert_int_eq(o.source->ops->order->fixes_batch, kind == 2);
        client_source_describe(text, sizeof text, o.source);
        ck_assert_str_eq(text, kind == 2 ? "2 classes: no, yes; 14 rows, 1 held out" : "");
        kinds_close(&o);
    }
}

TEST_EACH(an_evaluation_of_tokens_without_a_label_is_refused, 2)
{
    struct kinds_opened o;
    struct error err = {""};
    uint64_t n_labels = 0;
    double loss = NAN;

    kinds_open(&o, _i, false);
    ck_assert_int_eq(o.source->ops->score(o.source, &loss, &n_labels, &err), -EINVAL);
    ck_assert_holds(err.text, "only special tokens");
    n_labels = 1, loss = 2;
    ck_assert_int_eq(o.source->ops->score(o.source, &loss, &n_labels, &err), 0);
    ck_assert(loss == 2 && o.source->scores.n == 0 && !o.source->logits);
    kinds_close(&o);
}

TEST(a_model_without_what_rows_need_is_refused_before_any_data)
{
    static const char *const whys[KINDS] = {NULL, "no tokenizer to name the mask token", "it has no tokenizer.json"};
    json_t *none = json_object();

    for (int kind = 0; kind < KINDS; kind++) {
        struct client_labels labels = {0};
        const struct client_source_setup with = {.config = &kinds_config, .side = none, .labels = &labels};
        struct client_source *source;
        struct error err = {""};
        ck_assert_int_eq(client_labels_init(&labels, false, NULL), 0);
        ck_assert_int_eq(client_source_open(&source, kinds[kind], &with, &err), whys[kind] ? -EINVAL : 0);
        if (whys[kind])
            ck_assert_holds(err.text, whys[kind]);
        ck_assert((source == NULL) == (whys[kind] != NULL));
        if (kinds[kind] != &client_source_labelled)
            client_labels_free(&labels);
        client_source_close(source);
    }
    json_decref(none);
}
