/* Packed conversations: what a row has of each document, against the lines of the file, and which rows a run has. A
 * byte is a token. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/task/source.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

enum { N = 80, SEQ = 48, BATCH = 3, LONGEST = 100 };

/* Document i: "I:aa..." with 1 to 13 letters, or 60 in every twentieth, and the answer "bI." */
static uint32_t spell(char out[LONGEST], uint32_t *n_prompt, uint32_t i)
{
    *n_prompt = (uint32_t)sprintf(out, "%u:%.*s", i, i % 20 == 7 ? 60 : 1 + (int)(i * 5 % 13),
                                  "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa");
    return *n_prompt + (uint32_t)sprintf(out + *n_prompt, "b%u.", i);
}

static const char *put_lines(const char *name, uint32_t first, uint32_t n)
{
    static char text[N * (LONGEST + 40)];
    char document[LONGEST], *at = text;
    uint32_t n_prompt;

    for (uint32_t i = first; i < first + n; i++) {
        spell(document, &n_prompt, i);
        at += sprintf(at, "{\"prompt\": \"%.*s\", \"completion\": \"%s\"}\n", (int)n_prompt, document,
                      document + n_prompt);
    }
    return processes_put_text(name, text);
}

/* A source with its data, which it borrows. */
struct opened {
    struct model_config config;
    struct client_data data, eval_data;
    struct client_source *source;
};

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 8, \"n_positions\": 64, "
    "\"vocab_size\": 256}";

static int try_open(struct opened *o, const char *const *paths, size_t n, const struct client_source_rules *rules,
                    struct error *err)
{
    *o = (struct opened){.source = NULL};
    ck_assert_int_eq(model_config_parse(&o->config, gpt2, strlen(gpt2), err), 0);
    const struct client_source_setup setup = {.config = &o->config, .data = &o->data, .eval_data = &o->eval_data};
    ck_assert_int_eq(client_data_open(&o->data, paths, n, err), 0);
    ck_assert_int_eq(client_source_open(&o->source, &client_source_packed, &setup, err), 0);
    return client_source_read(o->source, rules, err);
}

static void open_with(struct opened *o, const char *path, const struct client_source_rules *rules, uint32_t batch)
{
    const struct client_division division = {.batch = batch, .seq = SEQ, .order = rules->order, .seed = rules->seed};
    struct error err = {""};

    ck_assert_msg(try_open(o, &path, 1, rules, &err) == 0, "%s", err.text);
    ck_assert_int_eq(client_source_divide(o->source, &division, &err), 0);
    ck_assert_int_eq(client_source_make_room(o->source, batch, &err), 0);
}

static void close_opened(struct opened *o)
{
    client_source_close(o->source);
    client_data_free(&o->data);
    client_data_free(&o->eval_data);
}

struct memory {
    uint32_t ids[BATCH * SEQ], labels[BATCH * SEQ], positions[BATCH * SEQ], entries[BATCH * SEQ];
};

static struct client_buffer buffer_of(struct memory *m)
{
    return (struct client_buffer){.at = {[PLAN_FIELD_IDS] = m->ids,
                                         [PLAN_FIELD_LABELS] = m->labels,
                                         [PLAN_FIELD_POSITIONS] = m->positions,
                                         [PLAN_FIELD_ENTRIES] = m->entries},
                                  .n_rows = BATCH,
                                  .seq = SEQ};
}

static struct client_minibatch fill(const struct opened *o, struct memory *m, uint64_t step)
{
    const struct client_buffer buffer = buffer_of(m);
    struct client_minibatch minibatch;

    memset(m, 0xAA, sizeof *m);
    ck_assert_int_eq(client_source_fill(&minibatch, &buffer, o->source, step, step * o->source->batch, NULL), 0);
    return minibatch;
}

/* The tokens of the documents before document i. */
static uint32_t count_before(uint32_t i)
{
    char text[LONGEST];
    uint32_t n = 0, n_prompt;

    while (i-- > 0)
        n += spell(text, &n_prompt, i);
    return n;
}

/* Checks the document that begins at `at` of a row of n tokens. Returns its tokens. */
static uint32_t check_document(unsigned seen[N], const struct memory *m, uint32_t at, uint32_t n, bool is_held_out)
{
    char text[LONGEST];
    uint32_t i = 0, n_prompt;

    for (uint32_t t = at; m->ids[t] != ':'; t++) {
        ck_assert(m->ids[t] >= '0' && m->ids[t] <= '9' && t - at < 2);
        i = 10 * i + m->ids[t] - '0';
    }
    const uint32_t all = spell(text, &n_prompt, i) - 1, length = all < SEQ ? all : SEQ;
    ck_assert_uint_le(length, n);
    for (uint32_t t = 0; t < length; t++) {
        ck_assert_uint_eq(m->ids[at + t], (uint8_t)text[t]);
        ck_assert_uint_eq(m->labels[at + t], t + 1 < n_prompt ? PLAN_NO_LABEL : (uint8_t)text[t + 1]);
        ck_assert_uint_eq(m->positions[at + t], t);
        ck_assert(m->entries[at + t] == count_before(i) + t || is_held_out);
        ck_assert(!is_held_out || m->entries[at + t] == PLAN_NO_ENTRY);
    }
    seen[i]++;
    return length;
}

/* Checks a row, of which what follows its documents is padding. Returns its documents. */
static uint32_t check_row(unsigned seen[N], const struct memory *m, uint32_t row, uint32_t n_tokens, bool is_held_out)
{
    uint32_t at = row * n_tokens, n = 0;
    const uint32_t end = at + n_tokens;

    for (; at < end && m->ids[at]; n++)
        at += check_document(seen, m, at, end - at, is_held_out);
    for (; at < end; at++)
        ck_assert(m->ids[at] == 0 && m->labels[at] == PLAN_NO_LABEL && m->positions[at] == 0 &&
                  m->entries[at] == PLAN_NO_ENTRY);
    return n;
}

static bool is_kept(uint32_t i)
{
    return i % 20 != 7; /* the others have no answer within SEQ */
}

/* By shuffled and by sequential order. Rows of an epoch, and those that are held out, have all documents together. */
static const enum eps_order orders[] = {EPS_SHUFFLED, EPS_SEQUENTIAL};

TEST_EACH(a_document_in_a_row_is_what_it_is_alone, COUNT(orders))
{
    const struct client_source_rules rules = {.seq = SEQ, .seed = 3, .order = orders[_i]};
    unsigned seen[N] = {0}, n_documents = 0, n_several = 0;
    struct opened o;
    struct memory m;

    open_with(&o, put_lines("all.jsonl", 0, N), &rules, 1);
    ck_assert(client_source_packs(o.source));
    const uint64_t n_rows = client_source_n_rows(o.source, CLIENT_TRAIN);
    ck_assert_uint_lt(n_rows, N / 2);
    uint64_t n_tokens = 0;
    for (uint64_t step = 0; step < n_rows; step++) {
        ck_assert_uint_eq(client_source_n_tokens(o.source, step, step), n_tokens);
        const struct client_minibatch minibatch = fill(&o, &m, step);
        const uint32_t n = check_row(seen, &m, 0, minibatch.n_tokens, false);
        for (uint32_t t = 0; t < minibatch.n_tokens; t++)
            n_tokens += m.ids[t] != 0;
        n_documents += n, n_several += n > 1;
    }
    ck_assert_uint_gt(n_several, n_rows / 2);
    for (uint64_t n = 5 * n_rows + 2; n > 0; n = n * 2 / 3) { /* far, and near, and backwards */
        const uint64_t one = client_source_n_tokens(o.source, n + 1, n + 1),
                       none = client_source_n_tokens(o.source, n, n);
        fill(&o, &m, n);
        unsigned own = 0;
        for (uint32_t t = 0; t < SEQ; t++)
            own += m.ids[t] != 0 && m.ids[t] != 0xAAAAAAAA;
        ck_assert_uint_eq(one - none, own);
        ck_assert_uint_eq(client_source_n_tokens(o.source, n_rows * 3, n_rows * 3), 3 * n_tokens);
    }
    ck_assert_uint_eq(n_documents, N - N / 20 - 7); /* a tenth of 76 is held out */
    const struct client_buffer buffer = buffer_of(&m);
    for (uint64_t k = 0; k < client_source_n_rows(o.source, CLIENT_HELD_OUT); k++) {
        struct client_minibatch minibatch;
        ck_assert_int_eq(client_source_fill_held_out(&minibatch, &buffer, o.source, k, 1, NULL), 0);
        n_documents += check_row(seen, &m, 0, minibatch.n_tokens, true);
    }
    ck_assert_uint_eq(n_documents, N - N / 20);
    for (uint32_t i = 0; i < N; i++)
        ck_assert_msg(seen[i] == is_kept(i), "document %u is there %u times", i, seen[i]);
    close_opened(&o);
}

/* By hand: of 10 documents number 7 is too long and number 3 is held out. The others have 5, 10, 15 and 12 inputs, 42
 * in the first row; 17 are too many for it, and begin the second one, with 9, 6 and 11. 85 of 96 are 88.5 %. */
TEST(rows_and_their_fill_are_described)
{
    const struct client_source_rules rules = {.seq = SEQ, .order = EPS_SEQUENTIAL};
    struct client_source_facts facts;
    char note[200];
    struct opened o;

    open_with(&o, put_lines("some.jsonl", 0, 10), &rules, 1);
    facts = client_source_measure(o.source);
    ck_assert(facts.whole && facts.flows && facts.task == EPS_TASK_DEFAULT);
    ck_assert_uint_eq(facts.n_rows, 2);
    ck_assert_uint_eq(client_source_n_rows(o.source, CLIENT_TRAIN), 2);
    client_source_describe(note, sizeof note, o.source);
    ck_assert_str_eq(note,
                     "10 conversations, 1 documents held out; 2 packed rows of 4.0 documents, 89 % full; at --seq 48 "
                     "1 unanswered and left out");
    close_opened(&o);
}

/* As a run does that resumes in the middle, and one whose batch has changed: its rows go on. */
TEST(which_documents_a_row_has_depends_on_the_seed_and_the_epoch_alone)
{
    const struct client_source_rules rules = {.seq = SEQ, .seed = 3}, others = {.seq = SEQ, .seed = 4};
    const char *path = put_lines("all.jsonl", 0, N);
    struct opened o, resumed, single, other;
    struct memory first, again;
    struct client_minibatch minibatch;

    open_with(&o, path, &rules, BATCH);
    open_with(&resumed, path, &rules, BATCH);
    open_with(&single, path, &rules, 1);
    open_with(&other, path, &others, BATCH);
    for (uint64_t step = 0; step < 20; step++)
        fill(&o, &first, step);
    fill(&o, &first, 17);
    minibatch = fill(&resumed, &again, 17);
    ck_assert_mem_eq(&first, &again, sizeof first);
    for (uint32_t row = 0; row < BATCH; row++) {
        const uint32_t n = fill(&single, &again, 17 * BATCH + row).n_tokens;
        ck_assert_mem_eq(again.ids, first.ids + row * minibatch.n_tokens, n * sizeof *again.ids);
    }
    fill(&other, &again, 17);
    ck_assert_mem_ne(&first, &again, sizeof first);
    close_opened(&o), close_opened(&resumed), close_opened(&single), close_opened(&other);
}

/* Of two files, the second thrice an epoch. */
TEST(a_file_is_taken_a_whole_number_of_times)
{
    const struct client_source_rules rules = {.seq = SEQ};
    const char *once = put_lines("once.jsonl", 0, 30), *thrice = put_lines("thrice.jsonl", 30, 30);
    char weighted[200], halves[200];
    snprintf(weighted, sizeof weighted, "%s=3", thrice);
    snprintf(halves, sizeof halves, "%s=1.5", thrice);
    const char *const paths[] = {once, weighted}, *const refused[] = {once, halves};
    const struct client_division division = {.batch = 1, .seq = SEQ};
    unsigned seen[N] = {0}, n_held_out = 0;
    struct error err = {""};
    struct memory m;
    struct opened o;

    ck_assert_msg(try_open(&o, paths, 2, &rules, &err) == 0, "%s", err.text);
    ck_assert_int_eq(client_source_divide(o.source, &division, &err), 0);
    ck_assert_int_eq(client_source_make_room(o.source, 1, &err), 0);
    for (uint64_t step = 0; step < client_source_n_rows(o.source, CLIENT_TRAIN); step++)
        check_row(seen, &m, 0, fill(&o, &m, step).n_tokens, false);
    for (uint32_t i = 0; i < 60; i++) {
        ck_assert(seen[i] == 0 || seen[i] == (i < 30 ? 1 : 3));
        n_held_out += is_kept(i) && seen[i] == 0;
    }
    ck_assert_uint_eq(n_held_out, 5); /* a tenth of 57 */
    close_opened(&o);
    ck_assert_int_eq(try_open(&o, refused, 2, &rules, &err), -EINVAL);
    ck_assert_holds(err.text, "not 1.5", "leave out --pack");
    close_opened(&o);
}

/* A masked family, a classifier, and an operation that mixes tokens. */
TEST(models_that_cannot_keep_documents_apart_are_refused)
{
    static const char bert[] = "{\"model_type\": \"bert\", \"vocab_size\": 330, \"hidden_size\": 32, "
                               "\"num_hidden_layers\": 1, \"num_attention_heads\": 2, \"intermediate_size\": 64, "
                               "\"max_position_embeddings\": 32, \"hidden_act\": \"gelu\"}";
    struct model_config config;
    struct model model;
    struct error err = {""};

    ck_assert_msg(model_config_parse(&config, bert, strlen(bert), &err) == 0, "%s", err.text);
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    ck_assert_int_eq(client_source_check_packs(&model, &err), -EDOM);
    ck_assert_str_eq(err.text, "a bert model restores masked tokens, and --pack is for conversations: leave it out");
    model_free(&model);
    ck_assert_int_eq(model_config_parse(&config, gpt2, strlen(gpt2), &err), 0);
    ck_assert_int_eq(model_init(&model, &config, &err), 0);
    ck_assert_int_eq(client_source_check_packs(&model, &err), 0);
    model.programs[model.block].program.operations->kind = &operation_batch_norm;
    ck_assert_int_eq(client_source_check_packs(&model, &err), -EDOM);
    ck_assert_holds(err.text, "batch norm mixes them", "leave out --pack");
    model_free(&model);
}

/* ---- Positions in a minibatch ---- */

static uint32_t pick_one(struct client_sample *out, struct client_source *source, uint64_t step, uint64_t n_before)
{
    (void)source, (void)step, (void)n_before;
    *out = (struct client_sample){0};
    return 1;
}

static uint32_t length_of_six(const struct client_source *source, enum client_part part,
                              const struct client_sample *samples, uint32_t n)
{
    (void)source, (void)part, (void)samples, (void)n;
    return 6;
}

/* Documents of 2 tokens, and of 3. */
static int read_two(struct client_source *source, const struct client_row_fields *row, enum client_part part,
                    struct client_sample sample, struct error *err)
{
    static const uint32_t positions[] = {0, 1, 0, 1, 2};

    (void)source, (void)part, (void)sample, (void)err;
    memcpy(row->at[PLAN_FIELD_POSITIONS], positions, sizeof positions);
    ck_assert_ptr_null(row->at[PLAN_FIELD_LENGTHS]);
    return 0;
}

/* What a source leaves of positions is padding: documents of one token each, in rows of none too. */
TEST(a_source_with_positions_packs)
{
    static const struct client_order one = {.pick = pick_one, .length = length_of_six};
    static const struct client_source_ops packs = {.order = &one,
                                                   .fields = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS |
                                                             1u << PLAN_FIELD_POSITIONS,
                                                   .read_row = read_two};
    const uint32_t expected[12] = {0, 1, 0, 1, 2};
    struct client_sample sample;
    struct client_row_fields fields;
    struct client_source source = {.ops = &packs, .batch = 1, .samples = &sample, .fields = &fields},
                         other = {.ops = &client_source_labelled};
    uint32_t ids[12], labels[12], positions[13];
    const struct client_buffer buffer = {
        .at = {[PLAN_FIELD_IDS] = ids, [PLAN_FIELD_LABELS] = labels, [PLAN_FIELD_POSITIONS] = positions},
        .n_rows = 2,
        .seq = 6};
    struct client_minibatch minibatch;

    positions[12] = 77;
    ck_assert(client_source_packs(&source) && !client_source_packs(&other));
    ck_assert_int_eq(client_source_fill(&minibatch, &buffer, &source, 0, 0, NULL), 0);
    ck_assert_uint_eq(minibatch.n_tokens, 6);
    ck_assert_mem_eq(positions, expected, sizeof expected);
    ck_assert_uint_eq(positions[12], 77); /* nothing behind them is touched */
}
