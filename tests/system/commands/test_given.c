/* on_rows of libeps in real runs: steps of rows that the caller writes are those of a run that reads the same rows; a rate
 * counts for its step; a save is made when it is asked for; what no rows can be is refused. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 4, SEQ = 16, STEPS = 4, TEXT = 20000 };

static const char *const files[] = {"data.txt"}, *const others[] = {"other.txt"};
static unsigned char text[TEXT];

static void setup(void)
{
    processes_setup();
    processes_text("data.txt", TEXT);
    processes_text("other.txt", 3 * SEQ * ROWS);
    processes_config("model.json", 2, 4, 32, SEQ);
    FILE *file = fopen("data.txt", "r");
    ck_assert_uint_eq(fread(text, 1, TEXT, file), TEXT);
    fclose(file);
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE_ONCE(setup, processes_remove)

static struct eps_train_options options_of(const char *const *data, const char *out)
{
    struct eps_train_options o = processes_options("model.json", data, out);

    o.batch = ROWS, o.seq = SEQ, o.steps = STEPS, o.lr = 1e-3, o.min_lr = 1e-3, o.schedule = EPS_SCHEDULE_CONSTANT;
    o.warmup = 0, o.order = EPS_SEQUENTIAL, o.eval_data = "data.txt", o.eval_tokens = 64;
    o.device = "cpu", o.device_mem = 8 << 20, o.save_every = 100, o.keep = 0, o.deterministic = true;
    return o;
}

struct given {
    enum eps_rows answers[STEPS + 2]; /* to each time that it is asked */
    double lr;                        /* of the second step; 0: as it is */
    uint32_t id, label;               /* the last ones of the second step; 0: the text's */
    bool none;                        /* the second step has no labels */
    unsigned n_asked;
    double rates[STEPS + 1];
};

/* Into the file `rates`: those of the first three steps, and how often rows were asked for. */
static void tell(const struct given *g)
{
    processes_put_text("rates", print("%g %g %g %u", g->rates[1], g->rates[2], g->rates[3], g->n_asked));
}

/* The text's rows in their order. */
static enum eps_rows give(void *user, struct eps_step_rows *rows)
{
    struct given *g = user;
    const size_t n = (size_t)rows->n_rows * rows->n_tokens, from = (rows->step - 1) * n;
    const enum eps_rows answer = g->answers[g->n_asked++];

    tell(g);
    ck_assert(rows->n_rows == ROWS && rows->n_tokens == SEQ && rows->vocabulary == 256);
    if (answer != EPS_ROWS_TRAIN)
        return answer;
    for (size_t i = 0; i < n; i++)
        rows->ids[i] = text[from + i], rows->labels[i] = text[from + i + 1];
    if (rows->step != 2)
        return answer;
    rows->lr = g->lr != 0 ? g->lr : rows->lr;
    rows->ids[n - 1] = g->id ? g->id : rows->ids[n - 1];
    rows->labels[n - 1] = g->label ? g->label : rows->labels[n - 1];
    for (size_t i = 0; g->none && i < n; i++)
        rows->labels[i] = EPS_NO_LABEL;
    return answer;
}

static void on_step(void *user, const struct eps_step *step)
{
    struct given *g = user;

    g->rates[step->step] = step->lr;
    tell(g);
}

static int train(const struct eps_train_options *options, struct given *given)
{
    tell(given);
    return processes_train_with(options, &(struct eps_train_events){.on_step = on_step}, given);
}

static int train_given(const char *out, struct given given)
{
    struct eps_train_options o = options_of(others, out);

    o.on_rows = give, o.rows_user = &given;
    return train(&o, &given);
}

TEST(given_rows_train_as_the_same_rows_of_a_file_do)
{
    struct eps_train_options o = options_of(files, "read");
    struct given unused = {.n_asked = 0};

    ck_assert_int_eq(train(&o, &unused), 0);
    ck_assert_int_eq(train_given("given", (struct given){.n_asked = 0}), 0);
    expect("cmp read/latest/model.safetensors given/latest/model.safetensors", 0);
    expect("cat rates", 0, "0.001 0.001 0.001 4");
    ck_assert_int_eq(train_given("slower", (struct given){.lr = 1e-4}), 0);
    expect("cat rates", 0, "0.001 0.0001 0.001 4");
    expect("cmp -s given/latest/model.safetensors slower/latest/model.safetensors", 1);
}

/* Before the first step there is nothing to save; after the second there is; then it is there already. The run ends before
 * its fourth, and saves the third. */
TEST(a_save_and_an_end_come_between_steps)
{
    const struct given given = {
        .answers = {EPS_ROWS_SAVE, EPS_ROWS_TRAIN, EPS_ROWS_TRAIN, EPS_ROWS_SAVE, EPS_ROWS_TRAIN, EPS_ROWS_END}};

    ck_assert_int_eq(train_given("ended", given), -EINTR);
    expect("cat rates", 0, "0.001 0.001 0.001 6");
    expect("ls -d ended/step-3 && readlink ended/latest", 0, "step-3");
    ck_assert_int_eq(train_given("whole", (struct given){.n_asked = 0}), 0);
    struct eps_train_options o = processes_options("model.json", files, "ended");
    struct given rest = {.n_asked = 0};
    o.model = o.out = NULL, o.n_data = 0, o.resume = "ended", o.on_rows = give, o.rows_user = &rest;
    ck_assert_int_eq(train(&o, &rest), 0);
    expect("cmp ended/latest/model.safetensors whole/latest/model.safetensors", 0);
}

static const struct {
    struct given given;
    const char *says;
} wrong[] = {
    {{.id = 256}, "on_rows of step 2: row 3, token 15: the id 256 is not below the vocabulary's 256"},
    {{.label = 300}, "on_rows of step 2: row 3, token 15: the label 300 is not below the vocabulary's 256"},
    {{.none = true}, "on_rows of step 2: no token has a label"},
    {{.lr = -1}, "on_rows of step 2: the rate -1 is no rate"},
    {{.lr = INFINITY}, "on_rows of step 2: the rate inf is no rate"},
};

TEST_EACH(what_no_rows_can_be_ends_the_run, COUNT(wrong))
{
    ck_assert_int_eq(train_given(print("wrong-%d", _i), wrong[_i].given), -EINVAL);
    expect("cat said", 0, wrong[_i].says);
}

/* Its rows have lengths, too. */
TEST(an_encoder_decoder_does_not_take_them)
{
    static const char *const pairs[] = {"pairs.jsonl"};
    struct eps_train_options o = options_of(pairs, "pairs");
    struct given given = {.n_asked = 0};
    char lines[1024] = "";

    for (int i = 0; i < 16; i++)
        strcat(lines, "{\"source\": \"one two\", \"target\": \"two\"}\n");
    processes_put_text("pairs.jsonl", lines);
    processes_put_text("t5.json", quoted("{'model_type': 't5', 'd_model': 16, 'd_kv': 8, 'd_ff': 24, 'num_layers': 1, "
                                         "'num_heads': 2, 'vocab_size': 256}"));
    o.model = "t5.json", o.eval_data = "pairs.jsonl", o.on_rows = give, o.rows_user = &given;
    ck_assert_int_eq(train(&o, &given), -EDOM);
    expect("cat said", 0,
           "on_rows is for models that predict tokens, in rows of one document; these are of the t5 model");
    expect("cat rates", 0, " 0"); /* it was not asked */
}
