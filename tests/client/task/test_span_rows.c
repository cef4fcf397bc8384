/* Rows of spans: what a row has of its window, how long it is for what is asked, and what has no room or no
 * sentinels. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/task/spans.h"
#include "client/task/source.h"
#include "client/text/tokenizer.h"
#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

enum { START = 7, END = 1, FIRST_SENTINEL = 172, ROOM = 64, WORDS = 120 };

static const char t5[] = "{\"model_type\": \"t5\", \"num_layers\": 1, \"num_heads\": 1, \"d_model\": 8, \"d_kv\": 8, "
                         "\"d_ff\": 8, \"vocab_size\": 400, \"decoder_start_token_id\": 7}";

struct opened {
    struct model_config config;
    struct client_data data, eval_data;
    json_t *side;
    struct client_source *source;
    struct client_source_facts facts;
};

static int try_open(struct opened *o, const char *tokenizer, const struct client_source_rules *rules, struct error *err)
{
    char text[4 * WORDS + 1], *file = processes_read(print(TESTS_DIR "/fixtures/tokenizers/%s.json", tokenizer));
    int rc;

    for (int i = 0; i < WORDS; i++)
        memcpy(text + 4 * i, i % 3 ? "the " : "and ", 5);
    const char *path = processes_put_text("text.txt", text);
    *o = (struct opened){
        .side = json_pack("{s:s, s:s}", "tokenizer.json", file, "tokenizer_config.json", "{\"eos_token\": \"</s>\"}")};
    free(file);
    ck_assert_msg(model_config_parse(&o->config, t5, strlen(t5), err) == 0, "%s", err->text);
    const struct client_source_setup setup = {.config = &o->config,
                                              .side = o->side,
                                              .data = &o->data,
                                              .eval_data = &o->eval_data};
    ck_assert(client_source_kind(&o->config, rules->mask_fraction) == &client_source_spans);
    ck_assert_int_eq(client_data_open(&o->data, &path, 1, err), 0);
    ck_assert_int_eq(client_data_open(&o->eval_data, &path, 1, err), 0);
    rc = client_source_open(&o->source, &client_source_spans, &setup, err);
    return rc ? rc : client_source_read(o->source, rules, err);
}

static void close_rows(struct opened *o)
{
    client_source_close(o->source);
    client_data_free(&o->data);
    client_data_free(&o->eval_data);
    json_decref(o->side);
}

/* What is asked, of 15 %: at most 12 tokens of source are a window of 12 tokens: 10 with a sentinel and the end, and 2
 * in one span. */
static const struct {
    uint32_t seq, source_seq, is_seq, is_source, window;
} lengths[] = {{0, 12, 16, 12, 12}, {20, 12, 20, 12, 12}, {16, 0, 16, 12, 12}, {18, 0, 18, 14, 14}};

TEST_EACH(a_row_is_as_long_as_asked, sizeof lengths / sizeof *lengths)
{
    const struct client_source_rules rules = {.seq = lengths[_i].seq,
                                              .source_seq = lengths[_i].source_seq,
                                              .mask_fraction = 0.15};
    struct error err = {""};
    char text[200];
    struct opened o;

    ck_assert_msg(try_open(&o, "t5", &rules, &err) == 0, "%s", err.text);
    o.facts = client_source_measure(o.source);
    ck_assert_uint_eq(o.facts.seq, lengths[_i].is_seq);
    ck_assert_uint_eq(o.facts.source, lengths[_i].is_source);
    ck_assert_uint_eq(o.facts.n_rows, o.data.n / lengths[_i].window);
    client_source_describe(text, sizeof text, o.source);
    ck_assert(strstr(text, print("windows of %u tokens", lengths[_i].window)));
    close_rows(&o);
}

/* Of a row of 20 tokens whose window of 12 begins at `first`, and has its span at the end. */
static void check_entries(const uint32_t *entries, uint32_t first)
{
    /* Of the source: ten tokens, the sentinel as the span's first, the end. Of the target: the sentinel as the token
     * before the span, the span, the end, which is no token of the data; padding. */
    static const int places[20] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, -1, 9, 10, 11, -1, -2, -2, -2, -2};

    for (int t = 0; t < 20; t++)
        ck_assert_uint_eq(entries[t], places[t] == -2 ? PLAN_NO_ENTRY
                                      : places[t] < 0 ? PLAN_NEW_ENTRY
                                                      : first + (uint32_t)places[t]);
}

/* Both sides of every row of an epoch are its window again; the decoder reads the target one place later. */
TEST(a_row_restores_its_window)
{
    enum { SOURCE = 12, SEQ = 20, BATCH = 4 };
    uint32_t ids[BATCH * SEQ], labels[BATCH * SEQ], entries[BATCH * SEQ];
    struct plan_row rows[BATCH];
    struct error err = {""};
    struct opened o;

    ck_assert_int_eq(try_open(&o, "t5",
                              &(struct client_source_rules){.seq = SEQ, .source_seq = SOURCE, .mask_fraction = 0.15},
                              &err),
                     0);
    o.facts = client_source_measure(o.source);
    const struct client_division division = {
        .batch = BATCH, .seq = SEQ, .order = EPS_SEQUENTIAL, .n_train = o.data.n, .mask_fraction = 0.15};
    ck_assert_int_eq(client_source_divide(o.source, &division, &err), 0);
    ck_assert_int_eq(client_source_make_room(o.source, BATCH, &err), 0);
    const struct client_buffer buffer = {.at = {[PLAN_FIELD_IDS] = ids,
                                                [PLAN_FIELD_LABELS] = labels,
                                                [PLAN_FIELD_LENGTHS] = rows,
                                                [PLAN_FIELD_ENTRIES] = entries},
                                         .n_rows = BATCH,
                                         .seq = SEQ};
    struct client_tokens tokens = {0};
    struct client_tokenizer *tokenizer;
    size_t used;
    char *text = processes_read(processes_path("text.txt"));
    ck_assert_int_eq(client_tokenizer_open(&tokenizer, o.side, NULL, o.config.vocabulary, &err), 0);
    ck_assert_int_eq(client_tokenizer_encode(&tokens, &used, tokenizer, text, strlen(text), true, &err), 0);
    for (uint64_t step = 0; step < 2; step++) {
        struct client_minibatch minibatch;
        ck_assert_int_eq(client_source_fill(&minibatch, &buffer, o.source, step, step * BATCH, &err), 0);
        ck_assert_uint_eq(minibatch.n_tokens, SEQ);
        ck_assert_uint_eq(minibatch.n_valid, BATCH * 4);
        for (uint32_t r = 0; r < BATCH; r++) {
            const uint32_t *source = ids + r * SEQ, *target = labels + r * SEQ + SOURCE,
                           *window = tokens.ids + (step * BATCH + r) * SOURCE, *input = source + SOURCE;
            ck_assert_uint_eq(rows[r].n_tokens, SOURCE);
            ck_assert_uint_eq(rows[r].second, SOURCE);
            ck_assert_mem_eq(source, window, 10 * sizeof *window);
            ck_assert_uint_eq(source[10], FIRST_SENTINEL);
            ck_assert_uint_eq(source[11], END);
            ck_assert_uint_eq(target[0], FIRST_SENTINEL);
            ck_assert_mem_eq(target + 1, window + 10, 2 * sizeof *window);
            ck_assert_uint_eq(target[3], END);
            ck_assert_uint_eq(input[0], START);
            ck_assert_mem_eq(input + 1, target, 3 * sizeof *target);
            for (uint32_t t = 0; t < SOURCE; t++)
                ck_assert_uint_eq(labels[r * SEQ + t], PLAN_NO_LABEL);
            check_entries(entries + r * SEQ, (uint32_t)(step * BATCH + r) * SOURCE);
            for (uint32_t t = 4; t < SEQ - SOURCE; t++)
                ck_assert_uint_eq(target[t], PLAN_NO_LABEL);
        }
    }
    free(text);
    free(tokens.ids);
    client_tokenizer_close(tokenizer);
    close_rows(&o);
}

static const struct {
    const char *tokenizer;
    uint32_t seq, source_seq;
    int rc;
    const char *sentence;
} refusals[] = {{"t5", 5, 0, -EDOM, "has no room for spans"},
                {"t5", 12, 12, -EDOM, "has no room for spans"},
                {"t5", 0, 64, -EDOM, "the tokenizer 2 tokens <extra_id_N>"},
                {"bert", 0, 12, -EINVAL, "no special token <extra_id_0>"}};

TEST_EACH(what_has_no_room_is_refused, sizeof refusals / sizeof *refusals)
{
    const struct client_source_rules rules = {.seq = refusals[_i].seq,
                                              .source_seq = refusals[_i].source_seq,
                                              .mask_fraction = 0.15};
    struct error err = {""};
    struct opened o;

    ck_assert_int_eq(try_open(&o, refusals[_i].tokenizer, &rules, &err), refusals[_i].rc);
    ck_assert_msg(strstr(err.text, refusals[_i].sentence) != NULL, "%s", err.text);
    close_rows(&o);
}
