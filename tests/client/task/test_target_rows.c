/* Sources and their targets: what a row has of each, where it is cut, how long a minibatch is, and which rows are held
 * out. A byte is a token. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/task/source.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

enum { BATCH = 3, ROOM = 64, START = 7 };

static const char t5[] = "{\"model_type\": \"t5\", \"num_layers\": 1, \"num_heads\": 1, \"d_model\": 8, \"d_kv\": 8, "
                         "\"d_ff\": 8, \"vocab_size\": 256, \"decoder_start_token_id\": 7}";

/* A source with its data, which it borrows. */
struct opened {
    struct model_config config;
    struct client_data data, eval_data;
    struct client_source *source;
    struct client_source_facts facts;
};

static int try_open_of(struct opened *o, const char *config, const char *text, const struct client_source_rules *rules,
                       struct error *err)
{
    const char *path = processes_put_text("rows.jsonl", text);

    *o = (struct opened){.source = NULL};
    ck_assert_msg(model_config_parse(&o->config, config, strlen(config), err) == 0, "%s", err->text);
    ck_assert(client_source_kind(&o->config, NAN) == &client_source_targets);
    const struct client_source_setup setup = {.config = &o->config, .data = &o->data, .eval_data = &o->eval_data};
    ck_assert_int_eq(client_data_open(&o->data, &path, 1, err), 0);
    ck_assert_int_eq(client_source_open(&o->source, &client_source_targets, &setup, err), 0);
    return client_source_read(o->source, rules, err);
}

static int try_open(struct opened *o, const char *text, const struct client_source_rules *rules, struct error *err)
{
    return try_open_of(o, t5, text, rules, err);
}

static void divide_rows(struct opened *o)
{
    struct error err = {""};

    o->facts = client_source_measure(o->source);
    const struct client_division division = {.batch = BATCH, .seq = o->facts.seq, .order = EPS_SEQUENTIAL};
    ck_assert_int_eq(client_source_divide(o->source, &division, &err), 0);
    ck_assert_int_eq(client_source_make_room(o->source, BATCH, &err), 0);
}

static void open_rows(struct opened *o, const char *text, const struct client_source_rules *rules)
{
    struct error err = {""};

    ck_assert_msg(try_open(o, text, rules, &err) == 0, "%s", err.text);
    divide_rows(o);
}

static void close_rows(struct opened *o)
{
    client_source_close(o->source);
    client_data_free(&o->data);
    client_data_free(&o->eval_data);
}

struct memory {
    uint32_t ids[BATCH * ROOM], labels[BATCH * ROOM], entries[BATCH * ROOM];
    struct plan_row rows[BATCH];
};

static struct client_minibatch fill(const struct opened *o, struct memory *m)
{
    const struct client_buffer buffer = {.at = {[PLAN_FIELD_IDS] = m->ids,
                                                [PLAN_FIELD_LABELS] = m->labels,
                                                [PLAN_FIELD_LENGTHS] = m->rows,
                                                [PLAN_FIELD_ENTRIES] = m->entries},
                                         .n_rows = BATCH,
                                         .seq = ROOM};
    struct client_minibatch minibatch;

    memset(m, 0xAA, sizeof *m);
    ck_assert_int_eq(client_source_fill(&minibatch, &buffer, o->source, 0, 0, NULL), 0);
    return minibatch;
}

/* A row of n tokens, the first n_source of which are its source's. */
static void check_row(const struct memory *m, uint32_t row, uint32_t n, uint32_t n_source, const char *source,
                      const char *target)
{
    const uint32_t *ids = m->ids + row * n, *labels = m->labels + row * n;
    const size_t n_target = strlen(target);

    ck_assert_uint_eq(m->rows[row].n_tokens, strlen(source));
    ck_assert_uint_eq(m->rows[row].second, strlen(source));
    for (uint32_t t = 0; t < n_source; t++) {
        ck_assert_uint_eq(ids[t], t < strlen(source) ? (uint8_t)source[t] : 0);
        ck_assert_uint_eq(labels[t], PLAN_NO_LABEL);
    }
    for (uint32_t t = 0; t < n - n_source; t++) {
        ck_assert_uint_eq(ids[n_source + t], t == 0 ? START : t < n_target ? (uint8_t)target[t - 1] : 0);
        ck_assert_uint_eq(labels[n_source + t], t < n_target ? (uint8_t)target[t] : PLAN_NO_LABEL);
    }
}

static const char four[] = "{\"source\": \"abcdefghij\", \"target\": \"xyz\"}\n"
                           "{\"prompt\": \"ab\", \"completion\": \"0123456789\"}\n"
                           "{\"source\": \"a\", \"target\": \"x\"}\n"
                           "{\"source\": \"abcdef\", \"target\": \"uvwxyz\"}\n";

/* Which of the four is held out follows from the seed; the rows that are left come in their order. */
static void find_rows(const struct opened *o, uint32_t left[3])
{
    struct client_sample held = client_source_pick_held_out(o->source, 0);

    ck_assert_uint_eq(o->facts.n_rows, 3);
    ck_assert_uint_eq(client_source_n_rows(o->source, CLIENT_HELD_OUT), 1);
    for (uint32_t i = 0, k = 0; i < 4; i++)
        if (i != held.id)
            left[k++] = i;
}

/* Row k of the four: the data have its source and its target, one behind the other, uncut. */
static void check_entries(const struct memory *m, uint32_t row, uint32_t n, uint32_t n_source, uint32_t k,
                          uint32_t n_of_source, uint32_t n_of_target)
{
    static const uint32_t first[] = {0, 13, 25, 27}, sources[] = {10, 2, 1, 6};
    const uint32_t *entries = m->entries + row * n;

    for (uint32_t t = 0; t < n_source; t++)
        ck_assert_uint_eq(entries[t], t < n_of_source ? first[k] + t : PLAN_NO_ENTRY);
    for (uint32_t t = 0; t < n - n_source; t++)
        ck_assert_uint_eq(entries[n_source + t], t < n_of_target ? first[k] + sources[k] + t : PLAN_NO_ENTRY);
}

/* The longest source and target have 10 tokens, which are rounded up to 16 each. */
TEST(rows_are_sources_and_targets)
{
    static const char *const texts[][2] = {{"abcdefghij", "xyz"},
                                           {"ab", "0123456789"},
                                           {"a", "x"},
                                           {"abcdef", "uvwxyz"}};
    static const uint32_t lengths[] = {10, 10, 1, 6};
    uint32_t left[3], longest = 0, n_labels = 0;
    struct memory m;
    struct opened o;

    open_rows(&o, four, &(struct client_source_rules){.seed = 3});
    ck_assert_uint_eq(o.facts.seq, 32);
    ck_assert_uint_eq(o.facts.source, 16);
    find_rows(&o, left);
    const struct client_minibatch minibatch = fill(&o, &m);
    for (int i = 0; i < 3; i++) {
        longest = lengths[left[i]] > longest ? lengths[left[i]] : longest;
        n_labels += (uint32_t)strlen(texts[left[i]][1]);
    }
    ck_assert_uint_eq(minibatch.n_tokens, (2 * longest + 7) / 8 * 8);
    ck_assert_uint_eq(minibatch.n_valid, n_labels);
    for (uint32_t i = 0; i < 3; i++) {
        check_row(&m, i, minibatch.n_tokens, minibatch.n_tokens / 2, texts[left[i]][0], texts[left[i]][1]);
        check_entries(&m, i, minibatch.n_tokens, minibatch.n_tokens / 2, left[i], (uint32_t)strlen(texts[left[i]][0]),
                      (uint32_t)strlen(texts[left[i]][1]));
    }
    ck_assert_uint_eq(client_source_n_entries(o.source), 39);
    close_rows(&o);
}

/* Each side keeps its last token, which ends it. A row of 12 tokens has 8 of source. */
TEST(long_sides_are_cut)
{
    static const char *const texts[][2] = {{"abcdefgj", "xyz"}, {"ab", "0129"}, {"a", "x"}, {"abcdef", "uvwz"}};
    uint32_t left[3];
    struct memory m;
    struct opened o;

    open_rows(&o, four, &(struct client_source_rules){.seq = 12, .source_seq = 8, .seed = 3});
    find_rows(&o, left);
    const struct client_minibatch minibatch = fill(&o, &m);
    ck_assert_uint_eq(minibatch.n_tokens, 12);
    for (uint32_t i = 0; i < 3; i++) {
        check_row(&m, i, 12, 8, texts[left[i]][0], texts[left[i]][1]);
        check_entries(&m, i, 12, 8, left[i], (uint32_t)strlen(texts[left[i]][0]), (uint32_t)strlen(texts[left[i]][1]));
    }
    close_rows(&o);
}

/* A minibatch of short rows is short on both sides, in the proportion of whole rows: of three tokens of source and one
 * of target 24 and 8, or rounded up 8 in all, of which 6 and 2. */
TEST(short_rows_make_short_minibatches)
{
    struct memory m;
    struct opened o;

    open_rows(&o,
              "{\"source\": \"abc\", \"target\": \"x\"}\n{\"source\": \"abc\", \"target\": \"x\"}\n"
              "{\"source\": \"abc\", \"target\": \"x\"}\n{\"source\": \"abc\", \"target\": \"x\"}\n",
              &(struct client_source_rules){.seq = 32, .source_seq = 24});
    const struct client_minibatch minibatch = fill(&o, &m);
    ck_assert_uint_eq(minibatch.n_tokens, 8);
    for (uint32_t i = 0; i < 3; i++)
        check_row(&m, i, 8, 6, "abc", "x");
    close_rows(&o);
}

TEST(a_row_that_is_asked_for_is_divided_as_the_longest_sides_are)
{
    struct opened o;

    open_rows(&o, four, &(struct client_source_rules){.seq = 40});
    ck_assert_uint_eq(o.facts.source, 20);
    close_rows(&o);
    open_rows(&o, four, &(struct client_source_rules){.source_seq = 24});
    ck_assert_uint_eq(o.facts.seq, 40);
    close_rows(&o);
}

TEST(long_rows_can_be_dropped)
{
    struct opened o;

    open_rows(&o, four,
              &(struct client_source_rules){.seq = 14, .source_seq = 8, .long_rows = EPS_LONG_DROP, .seed = 3});
    ck_assert_uint_eq(o.facts.n_rows + client_source_n_rows(o.source, CLIENT_HELD_OUT), 2);
    close_rows(&o);
}

static const struct {
    const char *text;
    struct client_source_rules rules;
    int rc;
    const char *sentence;
} refused[] = {
    {"{\"text\": \"abc\"}\n", {0}, -EINVAL, "line 1: no object with \"source\" and \"target\", both texts"},
    {"{\"source\": \"abc\", \"target\": \"\"}\n", {0}, -EINVAL, "line 1: its target is empty"},
    {"{\"source\": \"a\", \"target\": \"b\"}\n{\"source\": \"\", \"target\": \"b\"}\n",
     {0},
     -EINVAL,
     "line 2: its source is empty"},
    {"{\"source\": \"abc\", \"target\": 3}\n", {0}, -EINVAL, "line 1: no object with \"source\" and \"target\""},
    {"{\"source\": \"abc\", \"target\": \"x\"}\n", {0}, -EINVAL, "one row is too few to train on"},
    {four, {.seq = 8, .source_seq = 8}, -EDOM, "--seq 8 leaves no room for a target after --source-seq 8"},
    {four,
     {.seq = 12, .source_seq = 8, .long_rows = EPS_LONG_REFUSE},
     -EINVAL,
     "line 1: 10 tokens of source and 3 of target, in rows of 8 and 4: give a larger --seq and --source-seq"},
};

TEST_EACH(what_is_no_row_is_refused, COUNT(refused))
{
    struct error err = {""};
    struct opened o;

    ck_assert_int_eq(try_open(&o, refused[_i].text, &refused[_i].rules, &err), refused[_i].rc);
    ck_assert_msg(strstr(err.text, refused[_i].sentence), "%s", err.text);
    close_rows(&o);
}

/* A byte tokenizer has 256 tokens, of which sources may have those up to "c" here. */
static const char apart[] = "{\"model_type\": \"dynamic_conv\", \"d_model\": 8, \"num_heads\": 1, \"ffn_dim\": 8, "
                            "\"encoder_layers\": 1, \"decoder_layers\": 1, \"encoder_kernel_sizes\": [3], "
                            "\"decoder_kernel_sizes\": [3], \"vocab_size\": 256, \"source_vocab_size\": 100}";

TEST(a_token_beyond_a_sides_vocabulary_is_refused)
{
    static const char rows[] = "{\"source\": \"abd\", \"target\": \"xyz\"}\n"
                               "{\"source\": \"abc\", \"target\": \"xyz\"}\n"
                               "{\"source\": \"a\", \"target\": \"x\"}\n"
                               "{\"source\": \"b\", \"target\": \"y\"}\n";
    struct client_minibatch minibatch;
    struct error err = {""};
    struct memory m;
    struct opened o;

    ck_assert_msg(try_open_of(&o, apart, rows, &(struct client_source_rules){.seed = 1}, &err) == 0, "%s", err.text);
    divide_rows(&o);
    const struct client_buffer buffer = {
        .at = {[PLAN_FIELD_IDS] = m.ids, [PLAN_FIELD_LABELS] = m.labels, [PLAN_FIELD_LENGTHS] = m.rows},
        .n_rows = BATCH,
        .seq = ROOM};
    ck_assert_uint_ne(client_source_pick_held_out(o.source, 0).id, 0);
    ck_assert_int_eq(client_source_fill(&minibatch, &buffer, o.source, 0, 0, &err), -EINVAL);
    ck_assert_holds(err.text, "line 1: token 100 is not among the 100 of sources (source_vocab_size)");
    close_rows(&o);
}
