/* on_rows of libeps in real runs: steps of rows that the caller writes are those of a run that reads the same rows; a
 * rate counts for its step; a save is made when it is asked for; what no rows can be is refused. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
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
    enum eps_rows answers[2 * STEPS]; /* to each time that it is asked */
    double lr;                        /* of the second step; 0: as it is */
    uint32_t id, label;               /* the last ones of the second step; 0: the text's */
    bool misleads;                    /* writes into the fields that say what it is asked for, too */
    bool none;                        /* the second step has no labels */
    bool halves, weighs;              /* every other label is left out; or has no weight, and the others 2 */
    float weight;                     /* the last one of the second step; 0: as it is */
    uint32_t n_scored;                /* 0: as it is */
    bool drops;
    double scored, loss;     /* minus the mean of the last log p of all rows; the loss of the last step */
    float log_p[ROWS * SEQ]; /* of the rows when all were scored; then rows 1 and 2 are */
    bool again;
    uint64_t kills; /* the daemon, once this step is done; 0: not */
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
    FILE *asked = fopen("asked", "a");
    fprintf(asked, " %" PRIu64, rows->step);
    fclose(asked);
    ck_assert(rows->n_rows == ROWS && rows->n_tokens == SEQ && rows->vocabulary == 256);
    if (rows->log_p && !g->again) {
        g->scored = 0;
        for (size_t i = 0; i < n; i++)
            g->scored -= (double)rows->log_p[i] / (double)n;
        memcpy(g->log_p, rows->log_p, sizeof g->log_p);
    } else if (rows->log_p) {
        for (size_t i = 0; i < 2 * SEQ; i++)
            ck_assert_float_eq_tol(rows->log_p[i], g->log_p[SEQ + i], 1e-5F);
    }
    g->again = rows->log_p;
    if (answer != EPS_ROWS_TRAIN && answer != EPS_ROWS_SCORE)
        return answer;
    rows->n_scored = g->n_scored ? g->n_scored : rows->n_scored, rows->drops = g->drops;
    if (g->again)
        rows->first_scored = 1, rows->n_scored = 2;
    for (size_t i = 0; i < n; i++)
        ck_assert(rows->weights[i] == 1);
    for (size_t i = 0; i < n; i++)
        rows->ids[i] = text[from + i], rows->labels[i] = text[from + i + 1];
    for (size_t i = 1; i < n; i += 2) {
        rows->labels[i] = g->halves ? EPS_NO_LABEL : rows->labels[i];
        rows->weights[i] = g->weighs ? 0 : 1, rows->weights[i - 1] = g->weighs ? 2 : 1;
    }
    if (rows->step != 2)
        return answer;
    rows->weights[n - 1] = g->weight != 0 ? g->weight : rows->weights[n - 1];
    rows->lr = g->lr != 0 ? g->lr : rows->lr;
    rows->ids[n - 1] = g->id ? g->id : rows->ids[n - 1];
    rows->labels[n - 1] = g->label ? g->label : rows->labels[n - 1];
    for (size_t i = 0; g->none && i < n; i++)
        rows->labels[i] = EPS_NO_LABEL;
    if (g->misleads)
        rows->vocabulary = UINT32_MAX, rows->step = rows->n_rows = 0, rows->ids = rows->labels = NULL;
    return answer;
}

static void on_step(void *user, const struct eps_step *step)
{
    struct given *g = user;

    g->rates[step->step] = step->lr;
    g->loss = step->loss;
    tell(g);
    processes_put_text("losses", print("%.6f %.6f", g->scored, g->loss));
    if (step->step != g->kills)
        return;
    g->kills = 0;
    ck_assert_int_eq(kill(processes_find("epsd"), SIGKILL), 0);
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

/* The thaw is a restart of the run from its checkpoint. */
TEST(a_run_that_thaws_goes_on_asking)
{
    struct eps_train_options o = options_of(files, "thawed-read");
    struct given given = {.n_asked = 0};

    o.freeze = "h.0.*", o.freeze_until = 2;
    ck_assert_int_eq(train(&o, &given), 0);
    o.data = others, o.out = "thawed-given", o.on_rows = give, o.rows_user = &given;
    ck_assert_int_eq(train(&o, &given), 0);
    expect("cat rates", 0, "0.001 0.001 0.001 4");
    expect("cmp thawed-read/latest/model.safetensors thawed-given/latest/model.safetensors", 0);
}

/* Before the first step there is nothing to save; after the second there is; then it is there already. The run ends
 * before its fourth, and saves the third. */
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

/* A sum of losses twice as large over twice as many labels is the same number, and so are all gradients. */
TEST(labels_without_weight_count_as_if_they_were_none)
{
    ck_assert_int_eq(train_given("halves", (struct given){.halves = true}), 0);
    expect("cp losses half", 0);
    ck_assert_int_eq(train_given("weighs", (struct given){.weighs = true}), 0);
    expect("cmp halves/latest/model.safetensors weighs/latest/model.safetensors && cmp losses half", 0);
    ck_assert_int_eq(train_given("plain", (struct given){.n_asked = 0}), 0);
    expect("cmp -s plain/latest/model.safetensors weighs/latest/model.safetensors", 1);
}

/* The fourth step's rows are scored before it: their mean is the loss that the step then has, with its dropout or, of a
 * model that drops nothing, without. Scoring changes nothing. */
TEST(rows_are_scored_as_the_step_computes_them)
{
    const enum eps_rows scores[] = {EPS_ROWS_TRAIN, EPS_ROWS_TRAIN, EPS_ROWS_TRAIN,
                                    EPS_ROWS_SCORE, EPS_ROWS_SCORE, EPS_ROWS_TRAIN};
    struct given given = {.drops = true};
    struct eps_train_options o = options_of(others, "dropping");
    double scored, loss;

    memcpy(given.answers, scores, sizeof scores);
    ck_assert_int_eq(train_given("scored", given), 0);
    expect("cat rates", 0, "0.001 0.001 0.001 6");
    FILE *file = fopen("losses", "r");
    ck_assert_int_eq(fscanf(file, "%lf %lf", &scored, &loss), 2);
    fclose(file);
    ck_assert_double_eq_tol(scored, loss, 2e-6);
    ck_assert_int_eq(train_given("unscored", (struct given){.n_asked = 0}), 0);
    expect("cmp scored/latest/model.safetensors unscored/latest/model.safetensors", 0);
    for (int drops = 0; drops < 2; drops++) {
        struct given again = given;
        again.drops = drops;
        processes_put_text("dropping.json", quoted("{'model_type': 'gpt2', 'n_layer': 2, 'n_head': 4, 'n_embd': 32, "
                                                   "'n_positions': 16, 'vocab_size': 256, 'resid_pdrop': 0.3, "
                                                   "'embd_pdrop': 0.3, 'attn_pdrop': 0.3}"));
        o.model = "dropping.json", o.out = drops ? "dropping" : "evaluated", o.on_rows = give, o.rows_user = &again;
        ck_assert_int_eq(train(&o, &again), 0);
        file = fopen("losses", "r");
        ck_assert_int_eq(fscanf(file, "%lf %lf", &scored, &loss), 2);
        fclose(file);
        ck_assert_msg((fabs(scored - loss) < 2e-6) == drops, "%g and %g", scored, loss);
    }
}

TEST(several_workers_train_given_rows_to_the_same_bits)
{
    for (unsigned n_workers = 1; n_workers <= 3; n_workers += 2) {
        struct eps_train_options o = options_of(others, n_workers == 1 ? "one" : "three");
        struct given given = {.n_asked = 0};
        o.workers = n_workers, o.parts = ROWS, o.microbatch = 1, o.on_rows = give, o.rows_user = &given;
        ck_assert_int_eq(train(&o, &given), 0);
    }
    expect("cmp one/latest/model.safetensors three/latest/model.safetensors && "
           "cmp one/latest/optimizer.safetensors three/latest/optimizer.safetensors",
           0);
}

/* A daemon is killed behind the third step, and the second one was saved: the third one's rows are asked for again. */
TEST(a_restarted_run_asks_for_rows_again)
{
    struct eps_train_options o = options_of(others, "restarted");
    struct given given = {.answers = {EPS_ROWS_TRAIN, EPS_ROWS_TRAIN, EPS_ROWS_SAVE}, .kills = 3};

    o.restarts = 1, o.on_rows = give, o.rows_user = &given;
    expect("rm -f asked", 0);
    ck_assert_int_eq(train(&o, &given), 0);
    expect("grep -c '^ 1 2 3 3 .*3 4$' asked", 0, "1\n");
    ck_assert_int_eq(train_given("unharmed", (struct given){.n_asked = 0}), 0);
    expect("cmp restarted/latest/model.safetensors unharmed/latest/model.safetensors", 0);
}

static const struct {
    struct given given;
    const char *says;
} wrong[] = {
    {{.id = 256}, "on_rows of step 2: row 3, token 15: the id 256 is not below the vocabulary's 256"},
    {{.id = 256, .misleads = true}, "on_rows of step 2: row 3, token 15: the id 256 is not below the vocabulary's 256"},
    {{.label = 300}, "on_rows of step 2: row 3, token 15: the label 300 is not below the vocabulary's 256"},
    {{.none = true}, "on_rows of step 2: no token has a label"},
    {{.lr = -1}, "on_rows of step 2: the rate -1 is no rate"},
    {{.lr = INFINITY}, "on_rows of step 2: the rate inf is no rate"},
    {{.weight = INFINITY}, "on_rows of step 2: row 3, token 15: the weight inf is not finite"},
    {{.answers = {EPS_ROWS_SCORE}, .n_scored = 5},
     "on_rows of step 1: 5 rows to score from row 0 on: the minibatch has 4"},
};

TEST_EACH(what_no_rows_can_be_ends_the_run, COUNT(wrong))
{
    ck_assert_int_eq(train_given(print("wrong-%d", _i), wrong[_i].given), -EINVAL);
    expect("cat said", 0, wrong[_i].says);
}

/* Behind the first step, when there would be something to save. */
TEST(a_run_that_saves_nothing_is_asked_for_no_save)
{
    struct eps_train_options o = options_of(others, "unsaved");
    struct given given = {.answers = {EPS_ROWS_TRAIN, EPS_ROWS_SAVE}};

    o.no_save = true, o.save_every = UINT64_MAX, o.keep = UINT32_MAX;
    o.on_rows = give, o.rows_user = &given;
    ck_assert_int_eq(train(&o, &given), -EINVAL);
    expect("cat said", 0, "on_rows of step 2: it asks for a save, and no_save is set");
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
