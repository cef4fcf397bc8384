/* Sources of rows: what every kind of them keeps, in one list of kinds; then what each yields of its own. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/rows/source.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* 40 ids, of which each window of 4 has the special one 2 ([CLS]) first; 15 rows of one to five letters, which are a token
 * each, between two special ones. */
enum { N_IDS = 40, N_ROWS = 15, BATCH = 3, SEQ = 4, LONG = 8, VOCABULARY = 400, CLS = 2, KINDS = 3 };
static const struct client_source_ops *const kinds[KINDS] = {&client_source_text, &client_source_masked,
                                                             &client_source_labelled};
static const char *const files[KINDS] = {"ids.bin", "ids.bin", "rows.tsv"};
static const uint32_t seqs[KINDS] = {SEQ, SEQ, LONG};

static json_t *side;
static struct model_config config = {.vocabulary = VOCABULARY};

static void put_rows(void)
{
    char text[1000];
    int n = snprintf(text, sizeof text, "sentence\tlabel\n");

    for (int i = 0; i < N_ROWS; i++)
        n += snprintf(text + n, sizeof text - (size_t)n, "%.*s\t%s\n", 1 + i % 5 * 2, "a b c d e f",
                      i % 3 ? "no" : "yes");
    processes_put_text("rows.tsv", text);
    processes_put_text("one.tsv", "sentence\tlabel\na\tyes\nb\tyes\nc\tyes\n");
    processes_put_text("some.tsv", "sentence\tlabel\na\tyes\nb\t\nc\tno\n");
}

static void setup(void)
{
    uint16_t ids[N_IDS];

    processes_setup();
    for (uint16_t i = 0; i < N_IDS; i++)
        ids[i] = i % SEQ ? (uint16_t)(100 + i) : CLS;
    processes_write("ids.bin", ids, sizeof ids);
    put_rows();
    char *text = processes_read(TESTS_DIR "/fixtures/tokenizers/bert.json");
    side = json_pack("{s:s}", "tokenizer.json", text);
    free(text);
}

static void teardown(void)
{
    json_decref(side);
    processes_remove();
}

SUITE_FIXTURE_ONCE(setup, teardown)

/* A source of a kind, and its data. */
struct opened {
    struct client_data data, eval_data;
    struct client_source *source;
};

/* trains: data are trained on, and some held out; else all are held out. */
static int try_open(struct opened *o, int kind, const char *file, bool trains, const struct client_source_rules *rules,
                    struct error *err)
{
    struct client_data *data = trains ? &o->data : &o->eval_data;
    struct client_labels labels = {0};
    const struct client_source_setup with = {.config = &config,
                                             .side = side,
                                             .labels = &labels,
                                             .data = trains ? &o->data : NULL,
                                             .eval_data = &o->eval_data};

    *o = (struct opened){.source = NULL};
    config.n_labels = kinds[kind] == &client_source_labelled ? 2 : 0;
    if (config.n_labels > 0)
        ck_assert_int_eq(client_labels_init(&labels, false, NULL), 0);
    ck_assert_int_eq(kinds[kind]->open(&o->source, &with, err), 0);
    ck_assert_int_eq(kinds[kind]->open_files(data, &file, 1, err), 0);
    return kinds[kind]->read(o->source, trains ? CLIENT_TRAIN : CLIENT_HELD_OUT, rules, err);
}

static void divide(const struct opened *o, int kind, double mask_fraction)
{
    const bool trains = o->data.n_files > 0;
    const struct client_division division = {.batch = trains ? BATCH : 0,
                                             .seq = seqs[kind],
                                             .stride = seqs[kind],
                                             .seed = 7,
                                             .n_train = 3 * N_IDS / 4,
                                             .mask_fraction = mask_fraction};

    ck_assert_int_eq(client_source_divide(o->source, &division, NULL), 0);
    ck_assert_int_eq(client_source_make_room(o->source, BATCH, NULL), 0);
}

/* *o must not move: the source borrows its data. */
static void open_kind(struct opened *o, int kind, bool trains)
{
    const struct client_source_rules rules = {.columns = NULL};
    struct error err = {""};

    ck_assert_msg(try_open(o, kind, files[kind], trains, &rules, &err) == 0, "%s", err.text);
    divide(o, kind, 0.5);
}

static void close_kind(struct opened *o)
{
    client_source_close(o->source);
    client_data_free(&o->data);
    client_data_free(&o->eval_data);
}

/* ---- Every kind ---- */

/* Memory of a minibatch, with words around each field that nobody may touch. */
enum { ROOM = 2 + BATCH * LONG, GUARD = 77777 };
struct memory {
    uint32_t at[CLIENT_FIELDS][ROOM];
};

static struct client_buffer guarded(struct memory *m, uint32_t seq)
{
    for (int f = 0; f < CLIENT_FIELDS; f++)
        for (int i = 0; i < ROOM; i++)
            m->at[f][i] = GUARD;
    struct client_buffer buffer = {.n_rows = BATCH, .seq = seq};

    for (int f = 0; f < CLIENT_FIELDS; f++)
        buffer.at[f] = m->at[f] + 1;
    return buffer;
}

/* Words that a field takes of a minibatch. */
static size_t words_of(const struct client_source *source, unsigned field, uint32_t n_tokens)
{
    const struct client_field_type *type = &client_field_types[field];

    if (!(source->ops->fields >> field & 1))
        return 0;
    return type->element_bytes / 4 * BATCH * (type->by_token ? n_tokens : 1);
}

static struct client_minibatch fill(const struct opened *o, int kind, struct memory *m, uint64_t step)
{
    const struct client_buffer buffer = guarded(m, seqs[kind]);
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

TEST_EACH(a_minibatch_has_its_source_s_fields_and_nothing_around_them_is_touched, KINDS)
{
    struct opened o;
    struct memory m;

    open_kind(&o, _i, true);
    for (uint64_t step = 0; step < 9; step++) {
        const struct client_minibatch minibatch = fill(&o, _i, &m, step);
        ck_assert(minibatch.n_tokens > 0 && minibatch.n_tokens <= seqs[_i] && minibatch.n_labels > 0);
        for (unsigned f = 0; f < CLIENT_FIELDS; f++) {
            const size_t n = words_of(o.source, f, minibatch.n_tokens);
            ck_assert_uint_eq(m.at[f][0], GUARD);
            for (size_t i = 1; i < ROOM; i++)
                ck_assert_msg((m.at[f][i] == GUARD) == (i > n), "%s %zu", client_field_types[f].name, i);
        }
    }
    close_kind(&o);
}

/* Of ids.bin. */
static void check_entry(int kind, const struct memory *m, size_t at)
{
    const uint32_t entry = m->at[CLIENT_FIELD_ENTRIES][at], label = m->at[CLIENT_FIELD_LABELS][at],
                   id = kind == 1 && label != PLAN_NO_LABEL ? label : m->at[CLIENT_FIELD_IDS][at];

    ck_assert_uint_eq(id, entry % SEQ ? 100 + entry : CLS);
}

/* Whatever the epoch and the order. Of held-out rows none are remembered. */
TEST_EACH(a_token_s_entry_is_its_place_in_the_data, KINDS)
{
    uint32_t firsts[N_ROWS + 1] = {0}, n_checked = 0;
    struct client_minibatch held_out;
    struct opened o;
    struct memory m;

    for (uint32_t k = 0; k < N_ROWS; k++) /* one to five letters; two texts would have three special tokens */
        firsts[k + 1] = firsts[k] + 1 + k % 5 + 3;
    open_kind(&o, _i, true);
    ck_assert_uint_eq(o.source->ops->n_entries(o.source), _i < 2 ? N_IDS : firsts[N_ROWS]);
    for (uint64_t step = 0; step < 12; step++) {
        const struct client_minibatch minibatch = fill(&o, _i, &m, step);
        for (uint32_t row = 0; row < BATCH; row++) {
            const struct plan_row *length = (const struct plan_row *)(m.at[CLIENT_FIELD_ROWS] + 1) + row;
            const uint32_t n = _i < 2 ? minibatch.n_tokens : length->n_tokens;
            const size_t at = 1 + row * (size_t)minibatch.n_tokens;
            const uint32_t first = m.at[CLIENT_FIELD_ENTRIES][at];
            for (uint32_t t = 0; t < n && first != PLAN_NO_ENTRY; t++, n_checked++) {
                ck_assert_uint_eq(m.at[CLIENT_FIELD_ENTRIES][at + t], first + t);
                if (_i < 2)
                    check_entry(_i, &m, at + t);
            }
            for (uint32_t t = n; t < minibatch.n_tokens; t++)
                ck_assert_uint_eq(m.at[CLIENT_FIELD_ENTRIES][at + t], PLAN_NO_ENTRY);
            uint32_t k = 0;
            while (_i == 2 && first != PLAN_NO_ENTRY && firsts[k] != first)
                ck_assert_uint_lt(++k, N_ROWS);
            ck_assert(_i < 2 || first == PLAN_NO_ENTRY || firsts[k + 1] - firsts[k] == n + 1);
        }
    }
    ck_assert_uint_gt(n_checked, 12 * BATCH);
    const struct client_buffer buffer = guarded(&m, seqs[_i]);
    ck_assert_int_eq(client_source_fill_held_out(&held_out, &buffer, o.source, 0, 1, NULL), 0);
    for (uint32_t t = 0; t < held_out.n_tokens; t++)
        ck_assert_uint_eq(m.at[CLIENT_FIELD_ENTRIES][1 + t], PLAN_NO_ENTRY);
    close_kind(&o);
}

/* As a run does that resumes in the middle. */
TEST_EACH(a_step_s_rows_do_not_depend_on_the_steps_before, KINDS)
{
    struct opened o, resumed;
    struct memory first, again;

    open_kind(&o, _i, true);
    open_kind(&resumed, _i, true);
    for (uint64_t step = 0; step < 12; step++)
        fill(&o, _i, &first, step);
    fill(&o, _i, &first, 5);
    const struct client_minibatch minibatch = fill(&resumed, _i, &again, 5);
    ck_assert_uint_eq(minibatch.n_labels > 0, 1);
    ck_assert_mem_eq(&first, &again, sizeof first);
    fill(&resumed, _i, &again, 6);
    ck_assert_mem_ne(&first, &again, sizeof first);
    close_kind(&o), close_kind(&resumed);
}

TEST_EACH(an_epoch_has_every_row_once, KINDS)
{
    struct opened o;
    struct client_sample samples[BATCH];
    unsigned seen[N_IDS] = {0}, n_seen = 0;

    open_kind(&o, _i, true);
    const uint64_t n = o.source->ops->n_rows(o.source, CLIENT_TRAIN);
    ck_assert_uint_gt(n, BATCH);
    for (uint64_t step = 0; n_seen < n; step++) {
        const uint32_t got = o.source->ops->pick(samples, o.source, step, step * BATCH);
        ck_assert(got >= 1 && got <= BATCH);
        for (uint32_t i = 0; i < got && n_seen < n; i++, n_seen++)
            ck_assert_uint_eq(seen[samples[i].id]++, 0);
    }
    close_kind(&o);
}

/* By hand: of 30 tokens to train on, a text has 7 windows with a successor, and masked tokens as many; 10 are held out: 3
 * windows, one of them short. Of 15 rows one is held out. Held out alone they are 10 windows or 15 rows. */
TEST_EACH(rows_to_train_on_and_held_out_are_counted, KINDS)
{
    static const uint64_t counts[KINDS][3] = {{7, 3, 10}, {7, 3, 10}, {14, 1, 15}};
    struct opened o, all;

    open_kind(&o, _i, true);
    open_kind(&all, _i, false);
    ck_assert_uint_eq(o.source->ops->n_rows(o.source, CLIENT_TRAIN), counts[_i][0]);
    ck_assert_uint_eq(o.source->ops->n_rows(o.source, CLIENT_HELD_OUT), counts[_i][1]);
    ck_assert_uint_eq(all.source->ops->n_rows(all.source, CLIENT_TRAIN), 0);
    ck_assert_uint_eq(all.source->ops->n_rows(all.source, CLIENT_HELD_OUT), counts[_i][2]);
    close_kind(&o), close_kind(&all);
}

/* What is held out is evaluated row by row, each once, and the report of progress ends where it says it will. */
TEST_EACH(every_held_out_row_is_evaluated_once, KINDS)
{
    static const uint64_t progress[KINDS] = {N_IDS - 1, N_IDS, N_ROWS};
    struct opened o;
    bool seen[N_IDS] = {false};
    struct memory m;

    open_kind(&o, _i, false);
    const struct client_source_ops *ops = o.source->ops;
    const uint64_t n = ops->n_rows(o.source, CLIENT_HELD_OUT);
    for (uint64_t k = 0; k < n; k++) {
        const uint64_t id = ops->pick_held_out(o.source, k).id;
        ck_assert(id < n && !seen[id]);
        seen[id] = true;
        ck_assert_uint_lt(ops->progress(o.source, k), ops->progress(o.source, k + 1));
    }
    ck_assert_uint_eq(ops->progress(o.source, n), progress[_i]);
    for (uint64_t first = 0; first < n; first += BATCH) {
        const struct client_buffer buffer = guarded(&m, seqs[_i]);
        struct client_minibatch minibatch;
        const uint32_t left = n - first < BATCH ? (uint32_t)(n - first) : BATCH;
        ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, first, left, NULL), 0);
        ck_assert_uint_gt(minibatch.n_labels, 0);
    }
    close_kind(&o);
}

/* Rows that a minibatch has no sample for are empty ones: no label, and of one token. */
TEST_EACH(a_minibatch_that_is_not_full_ends_with_empty_rows, KINDS)
{
    struct opened o;
    struct memory m;
    const struct client_buffer buffer = guarded(&m, seqs[_i]);
    struct client_minibatch minibatch;

    open_kind(&o, _i, false);
    ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, 0, 1, NULL), 0);
    const uint32_t *ids = buffer.at[CLIENT_FIELD_IDS], *labels = buffer.at[CLIENT_FIELD_LABELS];
    for (uint32_t i = minibatch.n_tokens; i < BATCH * minibatch.n_tokens; i++)
        ck_assert(ids[i] == 0 && labels[i] == PLAN_NO_LABEL);
    const struct plan_row *rows = buffer.at[CLIENT_FIELD_ROWS];
    for (uint32_t i = 1; i < BATCH && o.source->ops->fields >> CLIENT_FIELD_ROWS & 1; i++)
        ck_assert(rows[i].n_tokens == 1 && rows[i].second == 1);
    close_kind(&o);
}

/* Without padding. */
TEST_EACH(tokens_before_a_step_are_those_of_the_steps_before, KINDS)
{
    struct opened o;
    uint64_t sum = 0;
    struct memory m;

    open_kind(&o, _i, true);
    for (uint64_t step = 0; step < 12; step++) {
        ck_assert_uint_eq(o.source->ops->tokens(o.source, step, step * BATCH), sum);
        const struct client_minibatch minibatch = fill(&o, _i, &m, step);
        const uint32_t *ids = m.at[CLIENT_FIELD_IDS] + 1;
        for (uint32_t i = 0; i < BATCH * minibatch.n_tokens; i++)
            sum += ids[i] != 0; /* no token of these data is padding */
    }
    close_kind(&o);
}

TEST(options_that_a_source_has_no_use_for_are_refused)
{
    const struct eps_train_options none = eps_train_defaults();
    const struct eps_eval_options plain = eps_eval_defaults();
    struct eps_train_options columns = none, separator = none, fraction = none, limited = none;
    struct eps_eval_options stride = plain, columned = plain, evaluated = plain;

    columns.columns = "a,b", separator.separator = EPS_SEPARATOR_EOS, fraction.mask_fraction = 0.2;
    limited.eval_tokens = 500, stride.stride = 2, columned.columns = "a,b", evaluated.eval_tokens = 500;
    const struct {
        const struct eps_train_options *asked;
        const char *option;
        bool refused[KINDS];
    } runs[] = {{&none, "", {false, false, false}},
                {&columns, "--columns", {true, true, false}},
                {&separator, "--separator eos", {false, false, true}},
                {&fraction, "--mask-fraction", {false, false, true}}, /* of a text, its options refuse it */
                {&limited, "--eval-tokens", {false, false, true}}};
    const struct {
        const struct eps_eval_options *asked;
        bool predicts;
        const char *option;
        bool refused[KINDS];
    } evaluations[] = {{&plain, false, "", {false, false, false}},
                       {&plain, true, "--predictions", {true, true, false}},
                       {&columned, false, "--columns", {true, true, false}},
                       {&stride, false, "--stride", {false, true, true}},
                       {&evaluated, false, "--eval-tokens", {false, false, true}}};

    for (int kind = 0; kind < KINDS; kind++) {
        for (int i = 0; i < COUNT(runs); i++) {
            struct error err = {""};
            ck_assert_int_eq(kinds[kind]->check(runs[i].asked, &err), runs[i].refused[kind] ? -EDOM : 0);
            ck_assert_holds(err.text, runs[i].refused[kind] ? runs[i].option : "");
        }
        for (int i = 0; i < COUNT(evaluations); i++) {
            struct error err = {""};
            ck_assert_int_eq(kinds[kind]->check_evaluation(evaluations[i].asked, evaluations[i].predicts, &err),
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
        struct opened o;
        struct client_source_facts got;
        char text[100];
        open_kind(&o, kind, true);
        o.source->ops->measure(&got, o.source);
        ck_assert(got.masked == facts[kind].masked && got.task == facts[kind].task &&
                  got.n_rows == facts[kind].n_rows && got.longest == facts[kind].longest &&
                  got.least == facts[kind].least);
        ck_assert_int_eq(o.source->ops->fixes_batch, kind == 2);
        o.source->ops->describe(text, sizeof text, o.source);
        ck_assert_str_eq(text, kind == 2 ? "2 classes: no, yes; 14 rows, 1 held out" : "");
        close_kind(&o);
    }
}

/* ---- Each kind ---- */

/* By hand: the second held-out window of ten, from token 34 on; each label is the id after its own. */
TEST(a_token_of_text_predicts_its_successor)
{
    struct opened o;
    struct memory m;
    const struct client_buffer buffer = guarded(&m, SEQ);
    struct client_minibatch minibatch;

    open_kind(&o, 0, true);
    ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, 1, 1, NULL), 0);
    ck_assert_mem_eq(buffer.at[CLIENT_FIELD_IDS], ((uint32_t[]){134, 135, CLS, 137}), SEQ * sizeof(uint32_t));
    ck_assert_mem_eq(buffer.at[CLIENT_FIELD_LABELS], ((uint32_t[]){135, CLS, 137, 138}), SEQ * sizeof(uint32_t));
    ck_assert_uint_eq(minibatch.n_labels, SEQ);
    close_kind(&o);
}

/* At a fraction that chooses all that may be, each of ten tokens has one label, but the two special ones: in windows of
 * four, four and two, the last of which also shows the two before. */
TEST(each_masked_token_is_predicted_once_and_special_ones_never)
{
    const struct client_source_rules rules = {.columns = NULL};
    unsigned labelled[N_IDS] = {0};
    struct opened o;
    struct memory m;

    ck_assert_int_eq(try_open(&o, 1, files[1], true, &rules, NULL), 0);
    divide(&o, 1, nextafter(1, 0));
    const struct client_buffer buffer = guarded(&m, SEQ);
    const uint32_t *labels = buffer.at[CLIENT_FIELD_LABELS];
    struct client_minibatch minibatch;
    for (uint64_t k = 0; k < 3; k++) {
        ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, k, 1, NULL), 0);
        for (uint32_t i = 0; i < SEQ; i++)
            if (labels[i] != PLAN_NO_LABEL)
                labelled[labels[i] - 100]++;
    }
    for (unsigned i = 30; i < N_IDS; i++)
        ck_assert_uint_eq(labelled[i], i % SEQ ? 1 : 0);
    close_kind(&o);
}

static void read_labels(const struct opened *o, uint32_t labels[SEQ], enum client_part part,
                        struct client_sample sample)
{
    uint32_t ids[SEQ];
    const struct client_row_fields row = {.at = {ids, labels, NULL}, .n_tokens = SEQ};

    ck_assert_int_eq(o->source->ops->read_row(o->source, &row, part, sample, NULL), 0);
}

TEST(masks_depend_on_a_row_s_number_in_the_run)
{
    uint32_t labels[3][SEQ], n_same = 0;
    struct opened o;

    open_kind(&o, 1, true);
    for (uint64_t draw = 0; draw < 40; draw++) {
        read_labels(&o, labels[0], CLIENT_TRAIN, (struct client_sample){0, 99});
        read_labels(&o, labels[1], CLIENT_TRAIN, (struct client_sample){0, draw});
        read_labels(&o, labels[2], CLIENT_TRAIN, (struct client_sample){0, draw});
        ck_assert_mem_eq(labels[1], labels[2], sizeof labels[1]);
        n_same += memcmp(labels[0], labels[1], sizeof labels[0]) == 0;
    }
    ck_assert_uint_lt(n_same, 20); /* three tokens at 1/2 have 7 patterns: 6 or so of 40 are expected */
    close_kind(&o);
}

/* Tokens 1 and 3 are ordinary ones in both windows. A third of the draws agree in both; of the same draws, all but an
 * eighth would. */
TEST(an_evaluation_has_masks_of_its_own)
{
    uint32_t labels[2][SEQ], n_same = 0;
    struct opened o;

    open_kind(&o, 1, true);
    for (uint64_t draw = 0; draw < 40; draw++) {
        read_labels(&o, labels[0], CLIENT_TRAIN, (struct client_sample){0, draw});
        read_labels(&o, labels[1], CLIENT_HELD_OUT, (struct client_sample){0, draw});
        n_same += (labels[0][1] == PLAN_NO_LABEL) == (labels[1][1] == PLAN_NO_LABEL) &&
                  (labels[0][3] == PLAN_NO_LABEL) == (labels[1][3] == PLAN_NO_LABEL);
    }
    ck_assert_uint_lt(n_same, 25);
    close_kind(&o);
}

/* By hand: of ten windows two are evaluated, 0 and 5, with the masks that they have among all ten. */
TEST(a_window_has_the_same_masks_in_every_evaluation)
{
    const struct client_source_rules rules = {.columns = NULL};
    const struct client_division division = {
        .seq = SEQ, .stride = SEQ, .seed = 7, .eval_tokens = 2 * SEQ, .mask_fraction = 0.5};
    uint32_t labels[2][SEQ];
    struct opened all, some;

    open_kind(&all, 1, false);
    ck_assert_int_eq(try_open(&some, 1, files[1], false, &rules, NULL), 0);
    ck_assert_int_eq(client_source_divide(some.source, &division, NULL), 0);
    ck_assert_uint_eq(some.source->ops->n_rows(some.source, CLIENT_HELD_OUT), 2);
    for (uint64_t k = 0; k < 2; k++) {
        const struct client_sample sample = some.source->ops->pick_held_out(some.source, k);
        ck_assert(sample.id == k && sample.draw == 5 * k);
        read_labels(&some, labels[0], CLIENT_HELD_OUT, sample);
        read_labels(&all, labels[1], CLIENT_HELD_OUT, all.source->ops->pick_held_out(all.source, 5 * k));
        ck_assert_mem_eq(labels[0], labels[1], sizeof labels[0]);
    }
    close_kind(&all), close_kind(&some);
}

/* Its label is at its first token; a row is [CLS], letters, [SEP]; rows of an evaluation come by their length. */
TEST(a_labelled_row_has_its_class_at_its_first_token_and_its_length_beside)
{
    struct opened o;
    struct memory m;
    const struct client_buffer buffer = guarded(&m, LONG);
    struct client_minibatch minibatch;

    open_kind(&o, 2, false);
    ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, 12, BATCH, NULL), 0);
    const uint32_t *ids = buffer.at[CLIENT_FIELD_IDS], *labels = buffer.at[CLIENT_FIELD_LABELS];
    const struct plan_row *rows = buffer.at[CLIENT_FIELD_ROWS];
    ck_assert_uint_eq(minibatch.n_tokens, LONG); /* 7, in eights */
    ck_assert_uint_eq(minibatch.n_labels, BATCH);
    for (uint32_t i = 0; i < BATCH; i++) { /* 4, 9 and 14 are the longest */
        ck_assert_uint_eq(rows[i].n_tokens, 7);
        ck_assert_uint_eq(rows[i].second, 7);
        ck_assert(ids[i * LONG] == CLS && ids[i * LONG + 6] == 3 && ids[i * LONG + 7] == 0);
        ck_assert_uint_eq(labels[i * LONG], (4 + 5 * i) % 3 == 0);
        ck_assert_uint_eq(labels[i * LONG + 1], PLAN_NO_LABEL);
    }
    close_kind(&o);
}

TEST(rows_of_one_class_teach_no_classifier)
{
    const struct client_source_rules rules = {.columns = NULL};
    struct error err = {""};
    struct opened o;

    ck_assert_int_eq(try_open(&o, 2, "one.tsv", true, &rules, &err), -EINVAL);
    ck_assert_str_eq(err.text, "every row has the label 'yes': a classifier needs two classes");
    close_kind(&o);
    ck_assert_int_eq(try_open(&o, 2, "one.tsv", false, &rules, &err), 0); /* but they can be evaluated */
    close_kind(&o);
}

/* By hand: of three rows two have labels. */
TEST(a_loss_of_some_rows_alone_is_withdrawn)
{
    const struct client_source_rules rules = {.unlabelled = true};
    struct opened o, all;
    uint64_t n_labels = 2;
    double loss = 0.5;

    open_kind(&all, 2, false);
    ck_assert_int_eq(try_open(&o, 2, "some.tsv", false, &rules, NULL), 0);
    divide(&o, 2, 0);
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
    close_kind(&o), close_kind(&all);
}

TEST_EACH(an_evaluation_of_tokens_without_a_label_is_refused, 2)
{
    struct opened o;
    struct error err = {""};
    uint64_t n_labels = 0;
    double loss = NAN;

    open_kind(&o, _i, false);
    ck_assert_int_eq(o.source->ops->score(o.source, &loss, &n_labels, &err), -EINVAL);
    ck_assert_holds(err.text, "only special tokens");
    n_labels = 1, loss = 2;
    ck_assert_int_eq(o.source->ops->score(o.source, &loss, &n_labels, &err), 0);
    ck_assert(loss == 2 && o.source->scores.n == 0 && !o.source->logits);
    close_kind(&o);
}

TEST(a_model_without_what_rows_need_is_refused_before_any_data)
{
    static const char *const whys[KINDS] = {NULL, "no tokenizer to name the mask token", "it has no tokenizer.json"};
    json_t *none = json_object();

    for (int kind = 0; kind < KINDS; kind++) {
        struct client_labels labels = {0};
        const struct client_source_setup with = {.config = &config, .side = none, .labels = &labels};
        struct client_source *source;
        struct error err = {""};
        ck_assert_int_eq(client_labels_init(&labels, false, NULL), 0);
        ck_assert_int_eq(kinds[kind]->open(&source, &with, &err), whys[kind] ? -EINVAL : 0);
        if (whys[kind])
            ck_assert_holds(err.text, whys[kind]);
        ck_assert((source == NULL) == (whys[kind] != NULL));
        if (kinds[kind] != &client_source_labelled)
            client_labels_free(&labels);
        client_source_close(source);
    }
    json_decref(none);
}
