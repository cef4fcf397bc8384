/* Preferences: both texts of a pair stay together, and the longer one counts. A byte is a token. */
#include "tests/client/task/kinds.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/family.h"

#include <errno.h>
#include <string.h>

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

enum { MOST = 6, ROWS = 4 }; /* tokens of a row; rows of a step */

static const char gpt2[] =
    "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 1, \"n_embd\": 8, \"n_positions\": 64, "
    "\"vocab_size\": 256}";

/* Inputs of the chosen and the rejected text: 4 and 2; 1 and 6; 7, of which 6 stay, and 6; 2 and 1; 7 each, of which 6
 * have no answer. */
static const char trained[] = "{\"prompt\": \"ab\", \"chosen\": \"cde\", \"rejected\": \"f\"}\n"
                              "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cdefgh\"}\n"
                              "{\"prompt\": \"abcdef\", \"chosen\": \"gh\", \"rejected\": \"g\"}\n"
                              "{\"prompt\": \"a\", \"chosen\": \"bc\", \"rejected\": \"d\"}\n"
                              "{\"prompt\": \"abcdefg\", \"chosen\": \"h\", \"rejected\": \"i\"}\n";
/* 4 and 2, 1 and 4, 4 and 4. */
static const char held_out[] = "{\"prompt\": \"ab\", \"chosen\": \"cde\", \"rejected\": \"f\"}\n"
                               "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"cdef\"}\n"
                               "{\"prompt\": \"ab\", \"chosen\": \"cde\", \"rejected\": \"fgh\"}\n";

static struct model_config config;

static int try_open(struct kinds_opened *o, enum eps_long long_rows, struct error *err)
{
    const char *data = processes_put_text("trained.jsonl", trained);
    const struct client_source_rules rules = {.seq = MOST, .long_rows = long_rows};
    const struct client_source_ops *kind;

    *o = (struct kinds_opened){.source = NULL};
    ck_assert_int_eq(model_config_parse(&config, gpt2, strlen(gpt2), err), 0);
    const struct client_source_setup setup = {.config = &config, .data = &o->data, .eval_data = &o->eval_data};
    ck_assert_int_eq(client_data_open(&o->data, &data, 1, err), 0);
    const char *eval_data = processes_put_text("held_out.jsonl", held_out);
    ck_assert_int_eq(client_data_open(&o->eval_data, &eval_data, 1, err), 0);
    ck_assert_int_eq(client_source_find_kind(&kind, &config, 0, &o->data, &o->eval_data, NULL, err), 0);
    ck_assert_ptr_eq(kind, &client_source_preferences);
    ck_assert_int_eq(client_source_open(&o->source, kind, &setup, err), 0);
    return client_source_read(o->source, &rules, err);
}

static void open_divided(struct kinds_opened *o, enum eps_long long_rows, uint64_t eval_tokens)
{
    const struct client_division division = {
        .batch = ROWS, .part = ROWS, .seq = MOST, .order = EPS_SEQUENTIAL, .eval_tokens = eval_tokens};
    struct error err = {""};

    ck_assert_msg(try_open(o, long_rows, &err) == 0, "%s", err.text);
    ck_assert_int_eq(client_source_divide(o->source, &division, &err), 0);
    ck_assert_int_eq(client_source_make_room(o->source, ROWS, &err), 0);
}

TEST(a_pair_is_cut_or_left_out_with_either_of_its_texts)
{
    static const struct {
        enum eps_long long_rows;
        uint64_t n_rows;
        const char *said;
    } cases[] = {
        {EPS_LONG_CUT, 8, "5 preferences, 3 held out; at --seq 6 1 cut; at --seq 6 1 left out"},
        {EPS_LONG_DROP, 6, "5 preferences, 3 held out; at --seq 6 2 left out"},
    };
    struct error err = {""};
    struct kinds_opened o;
    char said[200];

    for (size_t i = 0; i < COUNT(cases); i++) {
        open_divided(&o, cases[i].long_rows, 0);
        const struct client_source_facts facts = client_source_measure(o.source);
        ck_assert(facts.pairs && facts.whole && !facts.flows && facts.longest == 7 && facts.seq == 8);
        ck_assert_uint_eq(facts.n_rows, cases[i].n_rows);
        client_source_describe(said, sizeof said, o.source);
        ck_assert_str_eq(said, cases[i].said);
        kinds_close(&o);
    }
    ck_assert_int_eq(try_open(&o, EPS_LONG_REFUSE, &err), -EINVAL);
    ck_assert_holds(err.text, "trained.jsonl: line 3: 7 tokens are more than --seq 6", "--long cut or drop");
    kinds_close(&o);
}

/* Both texts count as long as the longer one: 4 and 6, then 6 and 2. */
TEST(a_step_has_whole_pairs)
{
    static const uint64_t n_tokens[] = {0, 2 * (4 + 6), 2 * (4 + 6 + 6 + 2)};
    struct client_sample samples[ROWS];
    struct kinds_opened o;

    open_divided(&o, EPS_LONG_CUT, 0);
    for (uint64_t step = 0; step < 2; step++) {
        ck_assert_uint_eq(client_source_pick(samples, o.source, step, step * ROWS), ROWS);
        for (uint64_t i = 0; i < ROWS; i++)
            ck_assert_uint_eq(samples[i].id, step * ROWS + i);
    }
    for (size_t i = 0; i < COUNT(n_tokens); i++)
        ck_assert_uint_eq(client_source_n_tokens(o.source, i, i * ROWS), n_tokens[i]);
    kinds_close(&o);
}

/* Of 24 tokens 16 are two of three pairs. Progress is of pairs. */
TEST(whole_pairs_are_evaluated)
{
    struct kinds_opened o;

    for (uint64_t n = 2; n <= 3; n++) {
        open_divided(&o, EPS_LONG_CUT, n == 2 ? 16 : 0);
        ck_assert_uint_eq(client_source_n_rows(o.source, CLIENT_HELD_OUT), 2 * n);
        ck_assert_uint_eq(client_source_progress(o.source, 2 * n), n);
        for (uint64_t k = 0; k < 2 * n; k += 2) {
            const uint64_t id = client_source_pick_held_out(o.source, k).id;
            ck_assert(id % 2 == 0 && client_source_pick_held_out(o.source, k + 1).id == id + 1);
        }
        kinds_close(&o);
    }
}
