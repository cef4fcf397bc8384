#include "tests/client/task/kinds.h"

#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/model/gpt2.h"

#include <stdlib.h>

const struct client_source_ops *const kinds[KINDS] = {&client_source_text, &client_source_masked,
                                                      &client_source_labelled};
const char *const kinds_files[KINDS] = {"ids.bin", "ids.bin", "rows.tsv"};
const uint32_t kinds_seqs[KINDS] = {SEQ, SEQ, LONG};
struct model_config kinds_config = {.family = &family_gpt2, .vocabulary = VOCABULARY};
static json_t *side;

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

void kinds_setup(void)
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

void kinds_teardown(void)
{
    json_decref(side);
    processes_remove();
}

int kinds_try_open(struct kinds_opened *o, int kind, const char *file, bool trains,
                   const struct client_source_rules *rules, struct error *err)
{
    struct client_data *data = trains ? &o->data : &o->eval_data;
    struct client_labels labels = {0};
    const struct client_source_setup with = {.config = &kinds_config,
                                             .side = side,
                                             .labels = &labels,
                                             .data = trains ? &o->data : NULL,
                                             .eval_data = &o->eval_data};

    *o = (struct kinds_opened){.source = NULL};
    kinds_config.n_labels = kinds[kind] == &client_source_labelled ? 2 : 0;
    if (kinds_config.n_labels > 0)
        ck_assert_int_eq(client_labels_init(&labels, false, NULL), 0);
    ck_assert_int_eq(client_source_open(&o->source, kinds[kind], &with, err), 0);
    ck_assert_int_eq(kinds[kind]->open_files(data, &file, 1, err), 0);
    const int rc = client_source_read_part(o->source, trains ? CLIENT_TRAIN : CLIENT_HELD_OUT, rules, err);
    return rc ? rc : client_source_settle(o->source, rules, err);
}

void kinds_divide(const struct kinds_opened *o, int kind, double mask_fraction)
{
    const bool trains = o->data.n_files > 0;
    const struct client_division division = {.batch = trains ? BATCH : 0,
                                             .seq = kinds_seqs[kind],
                                             .stride = kinds_seqs[kind],
                                             .seed = 7,
                                             .n_train = 3 * N_IDS / 4,
                                             .mask_fraction = mask_fraction};

    ck_assert_int_eq(client_source_divide(o->source, &division, NULL), 0);
    ck_assert_int_eq(client_source_make_room(o->source, BATCH, NULL), 0);
}

void kinds_open(struct kinds_opened *o, int kind, bool trains)
{
    const struct client_source_rules rules = {.columns = NULL};
    struct error err = {""};

    ck_assert_msg(kinds_try_open(o, kind, kinds_files[kind], trains, &rules, &err) == 0, "%s", err.text);
    kinds_divide(o, kind, 0.5);
}

void kinds_close(struct kinds_opened *o)
{
    client_source_close(o->source);
    client_data_free(&o->data);
    client_data_free(&o->eval_data);
}

struct client_buffer kinds_guarded(struct kinds_memory *m, uint32_t seq)
{
    for (int f = 0; f < PLAN_FIELDS; f++)
        for (int i = 0; i < ROOM; i++)
            m->at[f][i] = GUARD;
    struct client_buffer buffer = {.n_rows = BATCH, .seq = seq};

    for (int f = 0; f < PLAN_FIELDS; f++)
        buffer.at[f] = m->at[f] + 1;
    return buffer;
}
