/* Defaults and limits of a run, and the learning rate of each step. */
#include "tests/kit/command.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "client/options/options.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char *const text[] = {"some.txt"};

static struct eps_train_options given(void)
{
    struct eps_train_options options = eps_train_defaults();

    options.model = "m", options.data = text, options.n_data = 1;
    return options;
}

/* 100,001 tokens: 1,000 held out leave 99,001, which are 386 windows of 256. */
static const struct client_facts facts = {.n_positions = 256, .fresh = true, .n_tokens = 100001};

static void resolve(struct eps_train_options *out, const struct eps_train_options *in, const struct client_facts *known)
{
    struct error err = {""};

    ck_assert_msg(client_options_resolve(out, in, known, &err) == 0, "%s", err.text);
}

TEST(what_is_left_to_choose_is_chosen_by_the_documented_rules)
{
    const struct eps_train_options in = given();
    struct eps_train_options out;

    resolve(&out, &in, &facts);
    ck_assert_str_eq(print("lr %.9g to %.9g, decay %g, betas %g,%g, epsilon %g", out.lr, out.min_lr, out.weight_decay,
                           out.beta1, out.beta2, out.epsilon),
                     "lr 0.0003 to 3e-05, decay 0.01, betas 0.9,0.999, epsilon 1e-08");
    /* 16,384 / 256; ceil(386 / 64); round(0.21); 7 / 2 evaluations of a minibatch; the worker chooses its memory */
    ck_assert_str_eq(print("seq %u, batch %u, steps %ju, warmup %ju, keep %u, eval %ju every %ju, seed %ju, memory %ju",
                           out.seq, out.batch, (uintmax_t)out.steps, (uintmax_t)out.warmup, out.keep,
                           (uintmax_t)out.eval_tokens, (uintmax_t)out.eval_every, (uintmax_t)out.seed,
                           (uintmax_t)out.device_mem),
                     "seq 256, batch 64, steps 7, warmup 0, keep 2, eval 4096 every 3, seed 0, memory 0");
    ck_assert(out.save_every == UINT64_MAX && out.save_minutes == 10);
    ck_assert(out.workers == 1 && out.parts == 1 && out.optimizer == EPS_ADAMA && out.order == EPS_SHUFFLED);
    ck_assert(out.schedule == EPS_SCHEDULE_COSINE && out.separator == EPS_SEPARATOR_NONE && out.commit == EPS_EAGER);
    ck_assert(out.moments == EPS_MOMENTS_FP32 && out.grad_dtype == EPS_NUMBER_DEFAULT && isnan(out.clip_norm) &&
              isnan(out.clip_update));
    ck_assert(out.master == EPS_MASTER_FP32 && out.sums == EPS_FP32);
    ck_assert_uint_eq(client_options_n_train(&out, 100001), 99001);
}

TEST(frozen_weights_keep_the_form_in_which_they_came_unless_another_is_named)
{
    struct eps_train_options in = given(), out;
    struct client_facts quantised = facts;

    quantised.fresh = false, quantised.coded = FORM_NF4;
    resolve(&out, &in, &quantised);
    ck_assert_int_eq(out.base, EPS_BASE_FULL); /* nothing is frozen */
    in.freeze = "wte.*";
    resolve(&out, &in, &quantised);
    ck_assert_int_eq(out.base, EPS_BASE_NF4);
    in.base = EPS_BASE_FULL;
    resolve(&out, &in, &quantised);
    ck_assert_int_eq(out.base, EPS_BASE_FULL);
    in = given(), quantised.adapts = true, quantised.coded = FORM_INT8;
    resolve(&out, &in, &quantised);
    ck_assert_int_eq(out.base, EPS_BASE_INT8);
}

/* 99,001 tokens without a successor: 386 windows of 256 still; 256 tokens are one window. */
TEST(masked_tokens_are_a_fraction_and_have_no_successor)
{
    struct eps_train_options in = given(), out;
    struct client_facts masked = facts;
    struct error err;

    masked.masked = true;
    resolve(&out, &in, &masked);
    ck_assert_double_eq(out.mask_fraction, 0.15);
    in.mask_fraction = 0.3, in.eval_data = "e", masked.n_tokens = masked.n_eval_tokens = 256;
    resolve(&out, &in, &masked);
    ck_assert_double_eq(out.mask_fraction, 0.3);
    ck_assert_uint_eq(out.steps, 1);
    static const double wrong[] = {0, -0.1, 1, 1.5, INFINITY};
    for (int i = 0; i < COUNT(wrong); i++) {
        in.mask_fraction = wrong[i];
        ck_assert_int_eq(client_options_resolve(&out, &in, &masked, &err), -EDOM);
        ck_assert_holds(err.text, "--mask-fraction", "above 0 and below 1");
    }
    in = given();
    resolve(&out, &in, &facts);
    ck_assert(isnan(out.mask_fraction));
}

/* 1,000 rows are ceil(1000 / 32) = 32 steps an epoch, whose last one has 8 rows; 61 tokens are 64 in eights. */
TEST(a_task_has_minibatches_of_rows)
{
    struct eps_train_options in = given(), out;
    struct client_facts task = {.n_positions = 256,
                                .whole = true,
                                .task = EPS_CLASSIFY,
                                .n_rows = 1000,
                                .longest = 61,
                                .least = 3,
                                .n_tokens = 20000};
    struct error err;

    resolve(&out, &in, &task);
    ck_assert_str_eq(print("lr %g, batch %u, seq %u, steps %ju, eval %ju, task %d", out.lr, out.batch, out.seq,
                           (uintmax_t)out.steps, (uintmax_t)out.eval_tokens, (int)out.task),
                     "lr 2e-05, batch 32, seq 64, steps 96, eval 0, task 1");
    task.flows = true; /* 3 epochs are 3,000 rows in ceil(3000 / 32) steps */
    resolve(&out, &in, &task);
    ck_assert_uint_eq(out.steps, 94);
    task.flows = false;
    in.epochs = 0.5, in.batch = 100, task.longest = 255;
    resolve(&out, &in, &task);
    ck_assert(out.steps == 5 && out.seq == 256);
    in = given(), in.parts = 3, task.n_rows = 10, task.longest = 9999, task.fresh = true;
    resolve(&out, &in, &task);
    ck_assert(out.batch == 9 && out.seq == 256);
    in.seq = 2;
    ck_assert_int_eq(client_options_resolve(&out, &in, &task, &err), -EDOM);
    ck_assert_holds(err.text, "--seq 2", "choose 3 or more");
    in = given(), task.n_rows = 0;
    ck_assert_int_eq(client_options_resolve(&out, &in, &task, &err), -EINVAL);
    ck_assert_holds(err.text, "some.txt", "one row is too few");
}

TEST(resolved_options_resolve_to_themselves)
{
    struct eps_train_options in = given(), once, twice;
    struct client_facts served = facts;

    in.epochs = 3, in.workers = 2;
    for (int connect = 0; connect < 2; connect++) {
        ck_assert_int_eq(client_options_resolve(&once, &in, &served, NULL), 0);
        ck_assert_int_eq(client_options_resolve(&twice, &once, &served, NULL), 0);
        ck_assert_mem_eq(&once, &twice, sizeof once);
        in = given(), in.connect = "d", served.n_workers = 4;
    }
}

TEST(at_least_a_window_is_held_out_and_none_with_data_of_its_own)
{
    struct eps_train_options options = given();

    options.seq = 100;
    ck_assert_uint_eq(client_options_n_train(&options, 1000), 899);
    ck_assert_uint_eq(client_options_n_train(&options, 100000), 99000);
    ck_assert_uint_eq(client_options_n_train(&options, 101), 0);
    options.eval_data = "other.txt";
    ck_assert_uint_eq(client_options_n_train(&options, 1000), 1000);
}

static const struct eps_preset byte_small = {"byte-small", 4, 4, 128, 128, 256, 842496, false};
static const struct eps_preset byte_medium = {"byte-medium", 6, 6, 384, 256, 256, 10844160, false};
static const struct eps_preset byte_large = {"byte-large", 12, 12, 768, 1024, 256, 86039040, false};
static const struct eps_preset text_small = {"text-small", 4, 4, 128, 128, 2048, 1071872, true};
static const struct eps_preset text_medium = {"text-medium", 6, 6, 384, 256, 8192, 13891584, true};

/* By hand, 1 % or a window held out. 1,000,000: 990,000 to train on, 7734 windows of 128; a 1500th of them is less
 * than 1 Ki, which is 8 rows; 967 such steps go once through. 4,000,000: a 1500th of 3,960,000 is 2640, 21 rows (20.6);
 * 30,937 windows. 10,000,000 of byte-medium: 6600, 26 rows of 256 (25.8); 38,671 windows. 300,000,000 of byte-large:
 * 16 Ki, 16 rows; 290,039 windows of 1024, of which once is 18,128 steps. 20,000: 154 windows, of which ten times is
 * 193 steps of 8. 2000: 14 windows, ten times 18 steps (17.5). 257: 128 held out, as many and one to train on. Of
 * text-small, 1,000,000: a 750th is less than 2 Ki, 16 rows; 4,000,000: 5280, 41 rows (41.3), and 20,000: ten times 154
 * windows are 97 steps of 16 (96.3). 3,000,000 of text-medium: 3960, 15 rows of 256 (15.5 less a half). */
static const struct {
    const struct eps_preset *model;
    uint64_t n_tokens;
    uint32_t seq, batch;
    uint64_t steps;
    double lr;
} chosen[] = {
    {&byte_small, 4, 1, 1, 10, 2e-3},
    {&byte_small, 257, 127, 1, 10, 2e-3},
    {&byte_small, 258, 128, 1, 10, 2e-3},
    {&byte_small, 2000, 128, 8, 18, 2e-3},
    {&byte_small, 20000, 128, 8, 193, 2e-3},
    {&byte_small, 200000, 128, 8, 1500, 2e-3},
    {&byte_small, 1000000, 128, 8, 1500, 2e-3},
    {&byte_small, 4000000, 128, 21, 1500, 2e-3},
    {&byte_medium, 10000000, 256, 26, 1500, 1e-3},
    {&byte_large, 300000000, 1024, 16, 18128, 3e-4},
    {&text_small, 20000, 128, 16, 97, 3e-3},
    {&text_small, 1000000, 128, 16, 750, 3e-3},
    {&text_small, 4000000, 128, 41, 755, 3e-3},
    {&text_medium, 3000000, 256, 15, 774, 1e-3},
};

static struct client_facts facts_of(const struct eps_preset *model, uint64_t n_tokens)
{
    return (
        struct client_facts){.n_positions = model->n_positions, .fresh = true, .preset = model, .n_tokens = n_tokens};
}

TEST_EACH(a_preset_is_trained_as_its_data_allow, COUNT(chosen))
{
    const struct client_facts known = facts_of(chosen[_i].model, chosen[_i].n_tokens);
    const struct eps_train_options in = given();
    struct eps_train_options out, twice;

    resolve(&out, &in, &known);
    ck_assert(out.seq == chosen[_i].seq && out.batch == chosen[_i].batch && out.steps == chosen[_i].steps);
    ck_assert(out.lr == chosen[_i].lr && out.beta1 == 0.9 && out.beta2 == 0.99);
    ck_assert_int_eq(client_options_resolve(&twice, &out, &known, NULL), 0);
    ck_assert_mem_eq(&out, &twice, sizeof out);
}

/* By hand: 1 Ki is 43 rows of 24 (42.7); 360 rows are 9 steps of them, the last one shorter. */
TEST(a_preset_is_trained_on_rows_by_its_recipe)
{
    struct client_facts known = facts_of(&byte_small, 8000);
    const struct eps_train_options in = given();
    struct eps_train_options out;

    known.whole = true, known.seq = 24, known.n_rows = 360;
    resolve(&out, &in, &known);
    ck_assert(out.seq == 24 && out.batch == 43 && out.steps == 90);
}

/* A run of given weights: of a text of so many windows of 256, or of so many rows of 112 tokens, of which 20 are held
 * out. By hand. 386 windows / 60 are 6, of which once is 65 steps; 30 are twice 30 steps of one; of 10 three times are
 * all. 180 rows three times, / 60, are 9; of 100,000 it is 16,384 tokens, 146 rows. Four parts of 180 have 8 rows, two
 * of preferences at least 4, of 60 / 60 * 3. A class of 200 rows has 10, of 1,000 no more than 32. Half an epoch of 800
 * rows is 6. */
enum { TEXT, ROWS, PAIRS, CLASSES };
static const struct {
    int of;
    uint64_t n;
    uint32_t parts;
    double epochs;
    uint32_t batch;
    uint64_t steps;
} tuned[] = {
    {TEXT, 386, 1, NAN, 6, 65},     {TEXT, 30, 1, NAN, 1, 60},       {TEXT, 10, 1, NAN, 1, 30},
    {TEXT, 30, 2, NAN, 2, 45},      {TEXT, 30, 1, 1, 1, 30},         {ROWS, 180, 1, NAN, 9, 60},
    {ROWS, 20, 1, NAN, 1, 60},      {ROWS, 5, 1, NAN, 1, 15},        {ROWS, 100000, 1, NAN, 146, 2055},
    {ROWS, 180, 4, NAN, 8, 69},     {ROWS, 800, 1, 0.5, 6, 67},      {PAIRS, 60, 2, NAN, 4, 45},
    {CLASSES, 200, 1, NAN, 10, 60}, {CLASSES, 1000, 1, NAN, 32, 96},
};

static struct client_facts tuned_facts(int of, uint64_t n)
{
    struct client_facts known = {.n_positions = 256, .n_tokens = n * 256 + 1 + 257};

    if (of == TEXT && n * 256 + 1 > 99 * 257) /* more than a window is held out: 1 % */
        known.n_tokens = (n * 256 + 1) * 100 / 99 + 1;
    if (of != TEXT)
        known.whole = true, known.n_rows = (uint32_t)n, known.n_held_out = 20, known.longest = 112, known.least = 1;
    known.pairs = of == PAIRS;
    known.task = of == CLASSES ? EPS_CLASSIFY : EPS_TASK_DEFAULT;
    return known;
}

TEST_EACH(given_weights_get_some_sixty_steps, COUNT(tuned))
{
    const struct client_facts known = tuned_facts(tuned[_i].of, tuned[_i].n);
    struct eps_train_options in = given(), out;
    struct error said;

    in.parts = tuned[_i].parts, in.epochs = tuned[_i].epochs;
    resolve(&out, &in, &known);
    ck_assert_str_eq(print("%ju of %u", (uintmax_t)out.steps, out.batch),
                     print("%ju of %u", (uintmax_t)tuned[_i].steps, tuned[_i].batch));
    ck_assert(client_options_say_short(&said, &in, &out) == (tuned[_i].steps < 20));
    in.steps = 3, in.epochs = NAN;
    resolve(&out, &in, &known);
    ck_assert(out.steps == 3 && !client_options_say_short(&said, &in, &out)); /* who asks for it knows it */
}

TEST(a_short_run_says_so_with_the_remedy)
{
    struct eps_train_options in = given(), out;
    const struct client_facts known = tuned_facts(ROWS, 5);
    struct error said;

    resolve(&out, &in, &known);
    ck_assert(client_options_say_short(&said, &in, &out));
    ck_assert_str_eq(said.text, "15 steps teach a model little: give more data or more --epochs");
    in.batch = 5, in.epochs = 1;
    resolve(&out, &in, &known);
    ck_assert(client_options_say_short(&said, &in, &out));
    ck_assert_str_eq(said.text, "1 step teaches a model little: give more data or more --epochs, or a smaller --batch");
    in.resume = "run"; /* it was said at its beginning */
    ck_assert(!client_options_say_short(&said, &in, &out));
}

/* By hand. 60 steps of 9 rows: 20 rows are 3 minibatches, and 10 evaluations of these half of 60. 60 steps of 9 are 3
 * minibatches for each 20 steps, 27 rows of 112 tokens, fewer than 4096. 300 rows are 34 minibatches: of 4096 tokens 36
 * rows, 4 minibatches, and 60 / 8 evaluations, one after every ninth step. With all of them one alone fits. Of 2,055
 * steps of 146 rows 102 minibatches would do, so it is 65,536 tokens. */
TEST(evaluations_take_a_part_of_the_time)
{
    static const struct {
        uint64_t n, eval_tokens;
        uint32_t n_held_out;
        uint64_t tokens, every;
    } cases[] = {
        {180, UINT64_MAX, 20, 4096, 6},
        {180, UINT64_MAX, 300, 4096, 9},
        {180, 0, 300, 0, 60},
        {100000, UINT64_MAX, 20000, 65536, 206},
    };
    struct eps_train_options in, out;

    for (int i = 0; i < COUNT(cases); i++) {
        struct client_facts known = tuned_facts(ROWS, cases[i].n);
        in = given(), in.eval_tokens = cases[i].eval_tokens, known.n_held_out = cases[i].n_held_out;
        resolve(&out, &in, &known);
        ck_assert_str_eq(print("%ju, %ju", (uintmax_t)out.eval_tokens, (uintmax_t)out.eval_every),
                         print("%ju, %ju", (uintmax_t)cases[i].tokens, (uintmax_t)cases[i].every));
        for (uint64_t every = 0; every < 2; every++) {
            in.eval_every = every;
            resolve(&out, &in, &known);
            ck_assert_uint_eq(out.eval_every, every);
            ck_assert_uint_eq(out.eval_tokens, in.eval_tokens == UINT64_MAX ? 65536 : in.eval_tokens);
        }
    }
}

static enum eps_rows give_none(void *user, struct eps_step_rows *rows)
{
    (void)user, (void)rows;
    return EPS_ROWS_END;
}

TEST(rows_that_a_caller_gives_are_not_measured_by_others)
{
    struct eps_train_options in = given(), out;

    in.on_rows = give_none;
    resolve(&out, &in, &facts);
    ck_assert_uint_eq(out.eval_every, 0);
}

static const struct model_config config = GPT2_CONFIG(1, 2, 16, 64, 32, 256, GPT2_ON(scale_attention), .tied = true);

#define RECIPE "the preset's recipe: "
/* What is given of the options, what is known, and what then holds of those that are resolved. */
#define RULES(X)                                                                                                       \
    /* 100,001 - 1,025 held out = 98,976 tokens, 96 windows; 16 rows, a multiple of 3; ceil(2.5 * 96 / 15) */          \
    X((o->workers = 3, o->epochs = 2.5), (f->n_positions = 4096),                                                      \
      out.seq == 1024 && out.parts == 3 && out.batch == 15 && out.steps == 16)                                         \
    X((void)0, (f->fresh = false), out.lr == 2e-5)                                                                     \
    X((o->connect = "d"), (f->n_workers = 2), out.parts == 2 && out.workers == 0)                                      \
    /* 7 windows beside the one held out: fewer than a batch */                                                        \
    X((o->parts = 2), (f->n_tokens = 2050), out.batch == 6)                                                            \
    X((o->steps = 1000), (void)0, out.warmup == 30) /* 3 % */                                                          \
    /* what is printed is what it ends at */                                                                           \
    X((o->schedule = EPS_SCHEDULE_CONSTANT, o->lr = 0.5), (void)0, out.min_lr == 0.5)                                  \
    X((o->schedule = EPS_SCHEDULE_INVERSE_SQRT), (void)0, out.min_lr == 0)                                             \
    /* What is given stands for a preset: 9899 windows, twice, are 309.3 batches. */                                   \
    X((o->batch = 64, o->epochs = 2, o->lr = 5e-4, o->beta1 = 0.8, o->beta2 = 0.9, o->seq = 100),                      \
      (*f = facts_of(&byte_small, 1000000)),                                                                           \
      out.batch == 64 && out.seq == 100 && out.steps == 310 && out.lr == 5e-4 && out.beta1 == 0.8 && out.beta2 == 0.9) \
    X((o->parts = o->workers = 3), (*f = facts_of(&byte_small, 1000000)), out.batch == 6) /* of 8 */                   \
    X((o->eval_data = "e.txt"), (*f = facts_of(&byte_small, 1000), f->n_eval_tokens = 50), out.seq == 49)              \
    X((o->eval_data = "e.txt"), (*f = facts_of(&byte_small, 40), f->n_eval_tokens = 50), out.seq == 39)                \
    /* A short run of a preset warms up as slowly as a long one: 30 % of 100, of 10, of 1; 45 steps; 3 % of 18,000. */ \
    X((o->steps = 1), (*f = facts_of(&byte_small, 1000000)), out.warmup == 0)                                          \
    X((o->steps = 10), (*f = facts_of(&byte_small, 1000000)), out.warmup == 3)                                         \
    X((o->steps = 100), (*f = facts_of(&byte_small, 1000000)), out.warmup == 30)                                       \
    X((o->steps = 150), (*f = facts_of(&byte_small, 1000000)), out.warmup == 45)                                       \
    X((o->steps = 18000), (*f = facts_of(&byte_small, 1000000)), out.warmup == 540)                                    \
    /* What a run of 1000 steps stored stands where it now ends after 20: the warm-up is never left. */                \
    X((o->steps = 20, o->warmup = 30, o->eval_every = o->save_every = 100), (f->resumed = true),                       \
      out.warmup == 30 && fabs(client_options_lr(&out, 19) - out.lr * 20 / 31) < 1e-18)                                \
    /* Adding a worker, and so a part, must not change the result unless the user says so, who then knows. */          \
    X((void)0, (void)0, !client_options_say_summed(&said, o, &out, &model))                                            \
    X((o->workers = 2), (void)0,                                                                                       \
      out.parts == 2 && out.optimizer == EPS_ADAMW && client_options_say_summed(&said, o, &out, &model) &&             \
          strstr(said.text, "--optimizer adama squares each, and would save 16.0 KiB"))                                \
    X((o->workers = 2, o->commit = EPS_FENCED), (void)0,                                                               \
      out.optimizer == EPS_ADAMW && !client_options_say_summed(&said, o, &out, &model))                                \
    X((o->parts = 4, o->optimizer = EPS_ADAMA), (void)0,                                                               \
      out.optimizer == EPS_ADAMA && !client_options_say_summed(&said, o, &out, &model))                                \
    /* A clipped norm turns the fenced commit on and says what it costs, here of 768 Mi parameters. */                 \
    X((void)0, (void)0, !client_options_say_fenced(&said, o, &out, 1000))                                              \
    X((o->clip_norm = 0.5), (void)0,                                                                                   \
      out.commit == EPS_FENCED && client_options_say_fenced(&said, o, &out, (uint64_t)3 << 28) &&                      \
          strstr(said.text, "--clip-norm turns --commit fenced on") && strstr(said.text, "3.0 GiB of host memory"))    \
    X((o->clip_norm = 0.5, o->commit = EPS_FENCED), (void)0, !client_options_say_fenced(&said, o, &out, 1000))         \
    X((o->clip_norm = 0.5, o->commit = EPS_FENCED, o->optimizer = EPS_ADAMW, o->parts = 2), (void)0, true)             \
    X((o->clip_update = 1, o->parts = 2), (void)0, out.commit == EPS_EAGER)                                            \
    X((o->commit = EPS_FOLDED, o->parts = 4, o->optimizer = EPS_ADAMA), (void)0, out.commit == EPS_FOLDED)             \
    X((o->commit = EPS_FOLDED, o->parts = 4, o->optimizer = EPS_SGD, o->momentum = 0.9), (void)0,                      \
      out.commit == EPS_FOLDED)                                                                                        \
    /* As client/README.md says. */                                                                                    \
    X((void)0, (void)0, out.save_minutes == 10)                                                                        \
    /* The recipe of a preset is said, without what is given. */                                                       \
    X((void)0, (*f = facts_of(&byte_small, 1000000)),                                                                  \
      client_options_say_recipe(&said, &byte_small, o, &out) &&                                                        \
          !strcmp(said.text, RECIPE "--seq 128 --batch 8 --steps 1500 --lr 0.002 --warmup 45 --betas 0.9,0.99") &&     \
          !client_options_say_recipe(&said, &byte_small, &out, &out))                                                  \
    X((o->epochs = 1, o->lr = 0.5, o->seq = 64), (*f = facts_of(&byte_small, 1000000)),                                \
      client_options_say_recipe(&said, &byte_small, o, &out) &&                                                        \
          !strncmp(said.text, RECIPE "--batch 16 --warmup 45 --betas 0.9,0.99", 66))                                   \
    X((void)0, (*f = facts_of(&byte_small, 20000)),                                                                    \
      client_options_say_recipe(&said, &byte_small, o, &out) &&                                                        \
          strstr(said.text, "--steps 193 --lr 0.002 --warmup 45 --betas 0.9,0.99; a longer text"))                     \
    /* Two windows at least, or one and one to evaluate. */                                                            \
    X((void)0, (f->n_tokens = 2 * 257), out.batch == 1)                                                                \
    X((o->eval_data = "e.txt"), (f->n_tokens = f->n_eval_tokens = 257), out.batch == 1)

TEST(defaults_follow_what_is_given_and_the_model_the_workers_and_the_data)
{
    struct eps_train_options given_options, out, *const o = &given_options;
    struct client_facts known, *const f = &known;
    struct error said = {""};
    struct model model;

    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
#define X(set, know, holds)                                                                                            \
    *o = given(), *f = facts;                                                                                          \
    set, know;                                                                                                         \
    resolve(&out, o, f);                                                                                               \
    ck_assert_msg(holds, "with %s and %s: not %s: %s", #set, #know, #holds, said.text);
    RULES(X)
#undef X
    *o = given(), o->seq = 128; /* what is given is not lowered */
    *f = facts_of(&byte_small, 257);
    ck_assert_int_eq(client_options_resolve(&out, o, f, NULL), -EINVAL);
    model_free(&model);
}

TEST(a_text_of_hardly_any_bytes_is_refused)
{
    const struct eps_train_options in = given();
    struct eps_train_options out;
    struct error err;

    for (uint64_t n = 0; n < 4; n++) {
        const struct client_facts known = facts_of(&byte_small, n);
        ck_assert_int_eq(client_options_resolve(&out, &in, &known, &err), -EINVAL);
        ck_assert_holds(err.text, "give more data");
        ck_assert_ptr_null(strstr(err.text, "lower"));
    }
}

/* One wrong option each: how to set it, and the words that the sentence must hold. */
#define WRONGS(X)                                                                                                      \
    X((o->lr = 0), -EDOM, "--lr 0", "1e-12 and 10")                                                                    \
    X((o->lr = -1), -EDOM, "--lr -1", "")                                                                              \
    X((o->lr = 1e9), -EDOM, "--lr 1e+09", "")                                                                          \
    X((o->lr = INFINITY), -EDOM, "--lr inf", "")                                                                       \
    X((o->lr = 1e-4, o->min_lr = 1e-3), -EDOM, "--min-lr 0.001", "--lr 0.0001")                                        \
    X((o->weight_decay = -0.1), -EDOM, "--weight-decay -0.1", "0 and 10")                                              \
    X((o->beta2 = 1), -EDOM, "--betas 0.9,1", "less than 1")                                                           \
    X((o->beta1 = -0.1), -EDOM, "--betas -0.1", "")                                                                    \
    X((o->epsilon = 0), -EDOM, "--epsilon 0", "")                                                                      \
    X((o->label_smoothing = 1), -EDOM, "--label-smoothing 1 ", "less than 1")                                          \
    X((o->seq = 257), -EDOM, "--seq 257", "256 positions")                                                             \
    X((o->parts = 65), -EDOM, "--parts 65", "64")                                                                      \
    X((o->workers = 65), -EDOM, "--workers 65", "64")                                                                  \
    X((o->batch = 7, o->parts = 2), -EDOM, "--batch 7", "choose 6")                                                    \
    X((o->batch = UINT32_MAX), -EDOM, "--batch 4294967295", "at most")                                                 \
    X((o->batch = 1 << 20), -EDOM, "--batch 1048576", "--seq 256")                                                     \
    X((o->batch = 8, o->parts = 2, o->microbatch = 5), -EDOM, "--microbatch 5", "4 rows")                              \
    X((o->steps = 3, o->epochs = 1), -EDOM, "--steps", "--epochs")                                                     \
    X((o->steps = UINT64_MAX), -EDOM, "--steps", "at most")                                                            \
    X((o->epochs = 0), -EDOM, "--epochs 0", "")                                                                        \
    X((o->epochs = -2), -EDOM, "--epochs -2", "")                                                                      \
    X((o->epochs = 1e300), -EDOM, "--epochs 1e+300", "")                                                               \
    X((o->steps = 3, o->warmup = 4), -EDOM, "--warmup 4", "3 steps")                                                   \
    X((o->patience = 3, o->eval_every = 0), -EDOM, "--patience 3", "--eval-every 0")                                   \
    X((o->steps = 3, o->eval_every = 4), -EDOM, "--eval-every 4", "3 steps")                                           \
    X((o->seed = (uint64_t)1 << 63), -EDOM, "--seed 9223372036854775808", "2^63")                                      \
    X((o->save_every = (uint64_t)1 << 41), -EDOM, "--save-every 2199023255552", "more than")                           \
    X((o->save_minutes = -1), -EDOM, "--save-minutes -1", "0 and 1e6")                                                 \
    X((o->save_minutes = INFINITY), -EDOM, "--save-minutes inf", "0 and 1e6")                                          \
    X((o->connect = "x", o->workers = 1), -EDOM, "--workers 1", "--connect")                                           \
    X((o->connect = "x", o->device_mem = 1 << 30), -EDOM, "--device-mem", "--connect")                                 \
    X((o->connect = "x", o->device = "cuda"), -EDOM, "--device cuda", "--connect")                                     \
    X((o->device = "gpu"), -EDOM, "--device gpu", "cuda:N")                                                            \
    X((o->device = "cuda:1", o->workers = 2), -EDOM, "--device cuda:1", "--workers 2")                                 \
    X((o->clip_norm = 0), -EDOM, "--clip-norm 0 ", "above 0")                                                          \
    X((o->clip_norm = -1), -EDOM, "--clip-norm -1 ", "leave it out")                                                   \
    X((o->clip_norm = INFINITY), -EDOM, "--clip-norm inf ", "")                                                        \
    X((o->clip_update = 0), -EDOM, "--clip-update 0 ", "above 0")                                                      \
    X((o->clip_update = INFINITY), -EDOM, "--clip-update inf ", "")                                                    \
    X((o->clip_norm = 1, o->commit = EPS_EAGER), -EDOM, "--clip-norm 1 does not go with --commit eager",               \
      "--commit fenced, or --clip-update")                                                                             \
    X((o->clip_norm = 1, o->parts = 2, o->optimizer = EPS_ADAMA), -EDOM, "--clip-norm with --parts 2",                 \
      "--optimizer adamw")                                                                                             \
    X((o->commit = EPS_FENCED, o->parts = 4, o->optimizer = EPS_ADAMA), -EDOM, "--commit fenced with --parts 4",       \
      "--optimizer adamw")                                                                                             \
    X((o->commit = EPS_FOLDED, o->parts = 4), -EDOM, "--commit folded", "--optimizer adama, or --commit fenced")       \
    X((o->commit = EPS_FOLDED, o->optimizer = EPS_SGD, o->momentum = 0), -EDOM, "--optimizer sgd without --momentum",  \
      "--momentum alone")                                                                                              \
    X((o->commit = EPS_FOLDED, o->optimizer = EPS_SGD, o->momentum = 0.9, o->nesterov = true), -EDOM,                  \
      "sgd with --nesterov", "--momentum alone")                                                                       \
    X((o->commit = EPS_FOLDED, o->clip_norm = 1), -EDOM, "--clip-norm 1 does not go with --commit folded",             \
      "--commit fenced")                                                                                               \
    X((o->commit = EPS_FOLDED, o->precision = EPS_FP16), -EDOM, "--precision fp16 does not go with --commit folded",   \
      "fenced, or bf16")                                                                                               \
    X((o->commit = EPS_FOLDED, o->sums = EPS_BF16), -EDOM, "--sums bf16", "--commit fenced")                           \
    X((o->optimizer = EPS_SGD, o->beta1 = 0.9, o->beta2 = 0.99), -EDOM, "--betas", "--momentum")                       \
    X((o->optimizer = EPS_SGD, o->epsilon = 1e-8), -EDOM, "--epsilon", "--optimizer sgd")                              \
    X((o->optimizer = EPS_SGD, o->clip_update = 1), -EDOM, "--clip-update 1", "--clip-norm")                           \
    X((o->optimizer = EPS_SGD, o->momentum = 1), -EDOM, "--momentum 1 ", "less than 1")                                \
    X((o->optimizer = EPS_SGD, o->momentum = -0.1), -EDOM, "--momentum -0.1 ", "at least 0")                           \
    X((o->optimizer = EPS_SGD, o->momentum = 0, o->nesterov = true), -EDOM, "--nesterov", "--momentum 0")              \
    X((o->optimizer = EPS_SGD, o->momentum = 0, o->moments = EPS_MOMENTS_BF16), -EDOM, "--moments bf16",               \
      "--momentum 0")                                                                                                  \
    X((o->optimizer = EPS_SGD, o->moments = EPS_MOMENTS_CODED), -EDOM, "--moments coded are Adam's", "sgd")            \
    X((o->optimizer = EPS_ADAMA, o->batch = 8, o->parts = 2, o->moments = EPS_MOMENTS_CODED), -EDOM,                   \
      "--moments coded are encoded once a step", "2 --parts")                                                          \
    X((o->sparse = "keep=0.3", o->moments = EPS_MOMENTS_CODED), -EDOM, "--moments coded are of dense", "--sparse")     \
    X((o->freeze = "h.*", o->freeze_until = 1, o->moments = EPS_MOMENTS_CODED), -EDOM, "--moments coded are grouped",  \
      "--freeze-until")                                                                                                \
    X((o->momentum = 0.9), -EDOM, "--momentum is for --optimizer sgd", "--betas")                                      \
    X((o->nesterov = true, o->optimizer = EPS_ADAMW), -EDOM, "--nesterov is for --optimizer sgd", "leave it out")      \
    X((o->schedule = EPS_SCHEDULE_STEP), -EDOM, "--schedule step", "--lr-steps")                                       \
    X((o->lr_steps = "3"), -EDOM, "--lr-steps", "--schedule step")                                                     \
    X((o->lr_factor = 0.5), -EDOM, "--lr-factor", "--schedule step")                                                   \
    X((o->schedule = EPS_SCHEDULE_STEP, o->lr_steps = "3,3"), -EDOM, "--lr-steps 3,3", "ascend")                       \
    X((o->schedule = EPS_SCHEDULE_STEP, o->lr_steps = "3,"), -EDOM, "--lr-steps 3,", "ascend")                         \
    X((o->schedule = EPS_SCHEDULE_STEP, o->lr_steps = "0,3"), -EDOM, "--lr-steps 0,3", "ascend")                       \
    X((o->schedule = EPS_SCHEDULE_STEP, o->lr_steps = "18446744073709551616"), -EDOM, "--lr-steps 184", "ascend")      \
    X((o->schedule = EPS_SCHEDULE_STEP, o->lr_steps = ""), -EDOM, "--lr-steps ", "ascend")                             \
    X((o->schedule = EPS_SCHEDULE_STEP, o->lr_steps = "3", o->lr_factor = 2), -EDOM, "--lr-factor 2 ", "at most 1")    \
    X((o->steps = 20, o->warmup = 30), -EDOM, "--warmup 30", "20 steps")                                               \
    X((f->n_tokens = 0), -EINVAL, "--data some.txt is empty", "")                                                      \
    X((o->eval_data = "e.txt", f->n_eval_tokens = 0), -EINVAL, "--eval-data e.txt is empty", "")                       \
    X((f->n_tokens = 2 * 257 - 1), -EINVAL, "some.txt: 513 tokens are too few for two windows", "")                    \
    X((o->eval_data = "e.txt", f->n_tokens = 257, f->n_eval_tokens = 256), -EINVAL, "--eval-data e.txt: 256 tokens",   \
      "")                                                                                                              \
    X((o->eval_data = "e.txt", f->n_tokens = 256, f->n_eval_tokens = 257), -EINVAL, "too few for a window", "")        \
    X((o->connect = "x"), -EAGAIN, "no worker", "eps-worker")

TEST(a_wrong_option_is_refused_by_name_value_and_remedy)
{
    struct eps_train_options in, out, *const o = &in;
    struct client_facts known, *const f = &known;
    struct error err;

#define X(set, code, first, second)                                                                                    \
    in = given(), known = facts;                                                                                       \
    set;                                                                                                               \
    ck_assert_msg(client_options_resolve(&out, o, f, &err) == code, "with %s", #set);                                  \
    ck_assert_holds(err.text, first, second);
    WRONGS(X)
#undef X
}

/* By hand, warmup 3 of 11 steps: 1/4, 2/4, 3/4, then the top, and eight steps of the way down. */
TEST(the_rate_warms_up_and_falls)
{
    struct eps_train_options o = {.lr = 8, .min_lr = 0, .warmup = 3, .steps = 11, .schedule = EPS_SCHEDULE_LINEAR};
    static const double linear[] = {2, 4, 6, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0};

    for (uint64_t step = 0; step < 13; step++)
        ck_assert_double_eq_tol(client_options_lr(&o, step), linear[step], 1e-14);
    o.schedule = EPS_SCHEDULE_COSINE, o.min_lr = 2;
    ck_assert_double_eq_tol(client_options_lr(&o, 2), 6, 1e-14);
    ck_assert_double_eq_tol(client_options_lr(&o, 3), 8, 1e-14);
    ck_assert_double_eq_tol(client_options_lr(&o, 7), 5, 1e-14);                 /* half way: the middle */
    ck_assert_double_eq_tol(client_options_lr(&o, 5), 5 + 3 * sqrt(0.5), 1e-14); /* a quarter: cos 45 degrees */
    ck_assert_double_eq_tol(client_options_lr(&o, 11), 2, 1e-14);
    o.schedule = EPS_SCHEDULE_CONSTANT;
    ck_assert_double_eq(client_options_lr(&o, 10), 8);
    o.warmup = 0;
    ck_assert_double_eq(client_options_lr(&o, 0), 8);
    /* Half at four times the step, a third at nine times, whatever the last one is. */
    o.schedule = EPS_SCHEDULE_INVERSE_SQRT, o.warmup = 3, o.min_lr = 0;
    ck_assert_double_eq_tol(client_options_lr(&o, 1), 4, 1e-14);
    ck_assert_double_eq_tol(client_options_lr(&o, 3), 8, 1e-14);
    ck_assert_double_eq_tol(client_options_lr(&o, 15), 4, 1e-14);
    ck_assert_double_eq_tol(client_options_lr(&o, 35), 8.0 / 3, 1e-14);
    o.min_lr = 3;
    ck_assert_double_eq(client_options_lr(&o, 35), 3);
    /* torch's MultiStepLR: once so many steps are done, whatever the last one is. */
    o.schedule = EPS_SCHEDULE_STEP, o.warmup = 1, o.min_lr = 0.25, o.lr_steps = "3,5,40", o.lr_factor = 0.25;
    static const double falling[] = {4, 8, 8, 2, 2, 0.5, 0.5, 0.5};
    for (uint64_t step = 0; step < 8; step++)
        ck_assert_double_eq_tol(client_options_lr(&o, step), falling[step], 1e-14);
    ck_assert_double_eq_tol(client_options_lr(&o, 39), 0.5, 1e-14);
    ck_assert_double_eq(client_options_lr(&o, 40), 0.25); /* not 0.125 */
}

/* What SGD leaves unset is of Adam alone, and the other way round; resolved again, nothing changes. */
TEST(sgd_has_its_own_defaults)
{
    struct eps_train_options in = given(), out, again;
    struct client_facts pretrained = facts;

    in.optimizer = EPS_SGD, in.parts = 2;
    resolve(&out, &in, &facts);
    ck_assert(out.lr == 0.1 && out.momentum == 0.9 && !out.nesterov && out.weight_decay == 0);
    ck_assert(isnan(out.beta1) && isnan(out.beta2) && isnan(out.epsilon) && out.commit == EPS_EAGER);
    resolve(&again, &out, &facts);
    ck_assert(again.lr == 0.1 && again.momentum == 0.9 && isnan(again.beta1) && isnan(again.epsilon));
    struct plan_goal goal = client_options_goal(&out);
    ck_assert(goal.sgd && !goal.nesterov && goal.momentum == 0.9 && !plan_sums_parts(&goal));
    pretrained.fresh = false;
    in.nesterov = true, in.clip_norm = 1, in.momentum = 0.5, in.weight_decay = 1e-4;
    resolve(&out, &in, &pretrained);
    ck_assert(out.lr == 0.01 && out.momentum == 0.5 && out.weight_decay == 1e-4 && out.commit == EPS_FENCED);
    goal = client_options_goal(&out);
    ck_assert(goal.sgd && goal.nesterov && goal.fenced && plan_sums_parts(&goal));
    in = given(), in.schedule = EPS_SCHEDULE_STEP, in.lr_steps = "2";
    resolve(&out, &in, &facts);
    ck_assert(out.lr_factor == 0.1 && out.min_lr == 0 && isnan(out.momentum));
    goal = client_options_goal(&out);
    ck_assert(!goal.sgd && goal.momentum == 0);
}

/* One word for four types; those that are named stay; a resumed run has its own, and the word must say the same. */
TEST(a_narrow_state_is_all_that_applies_in_16_bits)
{
    struct eps_train_options in = given(), out;
    struct error err = {""};

    in.state = EPS_BF16, in.precision = EPS_FP32;
    resolve(&out, &in, &facts);
    ck_assert(out.moments == EPS_MOMENTS_BF16 && out.grad_dtype == EPS_BF16 && out.master == EPS_MASTER_FP32);
    ck_assert_int_eq(out.sums, EPS_FP32);
    in.precision = EPS_FP16, in.moments = EPS_MOMENTS_FP32;
    resolve(&out, &in, &facts);
    ck_assert(out.moments == EPS_MOMENTS_FP32 && out.grad_dtype == EPS_BF16 && out.master == EPS_MASTER_NONE);
    ck_assert_int_eq(out.sums, EPS_BF16);
    in = given(), in.state = EPS_BF16, in.precision = EPS_BF16, in.optimizer = EPS_SGD, in.momentum = 0;
    resolve(&out, &in, &facts);
    ck_assert(out.moments == EPS_MOMENTS_FP32 && out.grad_dtype == EPS_BF16 && out.master == EPS_MASTER_NONE);
    in = out, in.resume = "run";
    resolve(&out, &in, &facts);
    in.state = EPS_FP32;
    ck_assert_int_eq(client_options_resolve(&out, &in, &facts, &err), -EDOM);
    ck_assert_msg(strstr(err.text, "--state fp32: the run's state has other types"), "%s", err.text);
}

/* What is asked of precision, state and gradients; in which type these travel on the CPU, and on a GPU. */
static const struct {
    enum eps_number precision, state, asked, on_cpu, on_gpu;
} travels[] = {
    {EPS_NUMBER_DEFAULT, EPS_NUMBER_DEFAULT, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_BF16},
    {EPS_FP32, EPS_NUMBER_DEFAULT, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_FP32},
    {EPS_BF16, EPS_NUMBER_DEFAULT, EPS_NUMBER_DEFAULT, EPS_BF16, EPS_BF16},
    {EPS_FP16, EPS_NUMBER_DEFAULT, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_FP32},
    {EPS_NUMBER_DEFAULT, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_FP32, EPS_FP32},
    {EPS_BF16, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_FP32, EPS_FP32},
    {EPS_FP32, EPS_NUMBER_DEFAULT, EPS_BF16, EPS_BF16, EPS_BF16},
    {EPS_BF16, EPS_FP32, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_FP32},
    {EPS_NUMBER_DEFAULT, EPS_FP32, EPS_NUMBER_DEFAULT, EPS_FP32, EPS_FP32},
    {EPS_FP32, EPS_BF16, EPS_NUMBER_DEFAULT, EPS_BF16, EPS_BF16},
};

TEST_EACH(gradients_travel_in_bf16_with_weights_in_bf16, COUNT(travels))
{
    struct eps_train_options in = given(), out;

    in.precision = travels[_i].precision, in.state = travels[_i].state, in.grad_dtype = travels[_i].asked;
    for (int cuda = 0; cuda < 2; cuda++) {
        const struct client_devices devices = {!cuda, cuda, 5 << 20};
        resolve(&out, &in, &facts);
        client_options_complete(&out, &devices);
        ck_assert_int_eq(out.grad_dtype, cuda ? travels[_i].on_gpu : travels[_i].on_cpu);
    }
}

/* Which numbers, by whose devices. */
TEST(what_the_workers_devices_decide_follows_them)
{
    static const struct {
        struct client_devices devices;
        enum eps_number precision;
        const char *device;
    } cases[] = {{{true, false, 5 << 20}, EPS_FP32, "cpu"},
                 {{false, true, 5 << 20}, EPS_BF16, "cuda"},
                 {{true, true, 5 << 20}, EPS_FP32, "cpu and cuda"}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct eps_train_options o = eps_train_defaults();
        client_options_complete(&o, &cases[i].devices);
        ck_assert_int_eq(o.precision, cases[i].precision);
        ck_assert_str_eq(o.device, cases[i].device);
        ck_assert_uint_eq(o.device_mem, 5 << 20);
        for (int given = EPS_FP32; given <= EPS_BF16; given++) {
            o.precision = (enum eps_number)given, o.device_mem = 3 << 20;
            client_options_complete(&o, &cases[i].devices);
            ck_assert_int_eq(o.precision, given);
            ck_assert_uint_eq(o.device_mem, 3 << 20);
        }
        o = eps_train_defaults(), o.connect = "lab";
        client_options_complete(&o, &cases[i].devices);
        ck_assert_uint_eq(o.device_mem, 0); /* it is the workers' own */
    }
}

TEST(a_device_is_auto_unless_it_is_named)
{
    struct device_name name;

    ck_assert_int_eq(client_options_device(&name, NULL, 2, NULL, NULL), 0);
    ck_assert_int_eq(name.kind, DEVICE_AUTO);
    ck_assert_int_eq(client_options_device(&name, NULL, 0, "lab", NULL), 0);
    ck_assert_int_eq(client_options_device(&name, "cuda", 2, NULL, NULL), 0);
    ck_assert_int_eq(name.kind, DEVICE_CUDA);
    ck_assert(!name.indexed);
    ck_assert_int_eq(client_options_device(&name, "cuda:3", 1, NULL, NULL), 0);
    ck_assert_uint_eq(name.index, 3);
    struct error err;
    ck_assert_int_eq(client_options_device(&name, "auto:1", 1, NULL, &err), -EDOM);
    ck_assert_msg(strstr(err.text, "auto takes no number"), "%s", err.text);
}
