/* How long a run is, and how often it measures: what is left to choose of batch, epochs, steps and evaluations.
 *
 * A run has to take enough steps to learn anything, however few its data are: Adam moves each weight by about the
 * learning rate a step, so three steps at 2e-5 change nothing. Given weights get some RUN_STEPS of them: the batch
 * shrinks first, then a text is read again. Fine-tuning on 200 conversations took 3 steps of 16 Ki tokens, and left the
 * loss where it was; it takes 60 of 9 rows.
 *
 * Evaluations take at most about a sixth of the time: a forward pass takes a third of a step, so half as many
 * minibatches are evaluated as are trained. A short run evaluates fewer tokens first, then less often. */
#include "client/options/options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

enum {
    RUN_STEPS = 60, /* of given weights, where the data allow it */
    FEW_STEPS = 20, /* fewer are said to be few */
    TASK_BATCH = 32,
    ROWS_EPOCHS = 3,
    PRESET_EPOCHS = 10,
    WARMUP = 45, /* preset's steps of warm-up; 30 % of a run under 150 steps */
    SAVE_MINUTES = 10,
    EVALUATIONS = 10,
    EVAL_TOKENS = 65536, /* their mean is good to a hundredth of a nat; more would only take longer */
    LEAST_EVAL_TOKENS = 4096,
};

/* Rows for about n_tokens: a multiple of n_parts, no more than `most` if each part still gets a row. */
static uint32_t length_rows_of(uint64_t n_tokens, uint32_t seq, uint32_t n_parts, uint64_t most)
{
    uint64_t rows = (n_tokens + seq / 2) / seq;

    if (rows > most)
        rows = most;
    rows -= rows % n_parts;
    return rows ? (uint32_t)rows : n_parts;
}

uint32_t client_options_batch(uint32_t seq, uint32_t n_parts, uint64_t n_windows)
{
    return length_rows_of(CLIENT_BATCH_TOKENS, seq, n_parts, n_windows);
}

/* ---- the batch ---- */

/* The smallest batch: of each part a row, a preference, which is two, or the images of a ghost batch. */
static uint32_t least_batch(const struct eps_train_options *o, const struct client_facts *facts)
{
    return o->parts * (facts->pairs ? 2 : facts->task && facts->joined ? facts->joined : 1);
}

static double usual_epochs(const struct client_facts *facts)
{
    return facts->whole && !facts->masked ? ROWS_EPOCHS : 1;
}

/* At most the rows by which a run of so many epochs has RUN_STEPS steps. */
static uint32_t given_batch(uint32_t most, const struct eps_train_options *o, const struct client_facts *facts,
                            uint64_t n_rows)
{
    const double epochs = o->epochs > 0 ? o->epochs : usual_epochs(facts), rows = epochs * (double)n_rows / RUN_STEPS;
    const uint32_t least = least_batch(o, facts);

    if (rows >= most)
        return most;
    return rows >= least ? (uint32_t)rows / least * least : least;
}

uint32_t client_options_choose_batch(const struct eps_train_options *o, const struct client_facts *facts,
                                     uint64_t n_rows)
{
    const uint32_t least = least_batch(o, facts);

    if (facts->preset) {
        const uint64_t n_train = facts->whole ? facts->n_tokens : client_options_n_train(o, facts->n_tokens);
        return length_rows_of(client_preset_batch_tokens(facts->preset, n_train), o->seq, o->parts, n_rows);
    }
    const uint32_t usual =
        facts->task ? length_rows_of(TASK_BATCH, 1, least, n_rows) : client_options_batch(o->seq, least, n_rows);
    return facts->fresh ? usual : given_batch(usual, o, facts, n_rows);
}

/* ---- steps ---- */

/* A preset's steps: enough to learn from the data, too few to overfit. */
static uint64_t preset_steps(const struct eps_preset *preset, uint64_t n_windows, uint32_t batch)
{
    const uint64_t once = (n_windows + batch - 1) / batch, most = (PRESET_EPOCHS * n_windows + batch - 1) / batch;
    const uint64_t usual = client_preset_recipe(preset)->steps;

    return once > usual ? once : most < usual ? most : usual;
}

/* A preset's warm-up: 3 % of more than 1500 steps, as for any model. A shorter run keeps the number of steps; otherwise
 * the rate would peak before the second moments have settled. */
static uint64_t preset_warmup(uint64_t steps)
{
    const double share = 0.03 * (double)steps, most = 0.3 * (double)steps;

    return (uint64_t)round(share > WARMUP ? share : most < WARMUP ? most : WARMUP);
}

/* A text is read again, up to three times, where even the smallest batches of it are fewer than RUN_STEPS. */
static double length_epochs(const struct eps_train_options *o, const struct client_facts *facts, uint64_t n_windows)
{
    const double usual = usual_epochs(facts), once = (double)n_windows / o->batch;

    if (facts->fresh || o->batch > least_batch(o, facts) || usual * once >= RUN_STEPS)
        return usual;
    return fmax(usual, fmin(ROWS_EPOCHS, RUN_STEPS / once));
}

static int resolve_steps(struct eps_train_options *o, const struct client_facts *facts, uint64_t n_windows,
                         struct error *err)
{
    const uint64_t most = (uint64_t)1 << 40;

    if (o->steps && !isnan(o->epochs))
        return error_set(err, -EDOM, "give --steps or --epochs, not both");
    if (o->steps == 0 && isnan(o->epochs) && facts->preset)
        o->steps = preset_steps(facts->preset, n_windows, o->batch);
    if (o->steps == 0) {
        if (isnan(o->epochs))
            o->epochs = length_epochs(o, facts, n_windows);
        if (!(o->epochs > 0 && o->epochs <= 1e9))
            return error_set(err, -EDOM, "--epochs %g is not above 0 and at most 1e9", o->epochs);
        /* Rows before batch_row were read in steps of another size, which are counted already. */
        const double rows = o->epochs * (double)n_windows - (double)facts->batch_row;
        const double steps = (double)facts->batch_step + fmax(0, ceil(rows / o->batch));
        o->steps = steps > (double)most ? most + 1 : (uint64_t)steps;
    }
    if (o->steps > most)
        return error_set(err, -EDOM, "a run has at most %" PRIu64 " steps: give fewer --steps or --epochs", most);
    o->epochs = NAN;
    if (o->save_every > most && o->save_every != UINT64_MAX)
        return error_set(err, -EDOM, "--save-every %" PRIu64 " is more than %" PRIu64, o->save_every, most);
    return 0;
}

/* ---- evaluations ---- */

/* Minibatches of an evaluation. */
static uint64_t count_evaluated(const struct eps_train_options *o, const struct client_facts *facts)
{
    const uint64_t n_tokens =
        o->eval_data ? facts->n_eval_tokens : facts->n_tokens - client_options_n_train(o, facts->n_tokens);
    const uint64_t held_out = facts->whole ? facts->n_held_out : n_tokens / o->seq, limit = o->eval_tokens / o->seq;
    const uint64_t rows = o->eval_tokens > 0 && limit < held_out ? limit : held_out;

    return rows > o->batch ? (rows + o->batch - 1) / o->batch : 1;
}

/* Rows that a caller gives step by step are not those of the data, and what they teach the caller measures. */
static void choose_evaluations(struct eps_train_options *o, const struct client_facts *facts)
{
    const bool chooses = o->eval_every == UINT64_MAX;
    const uint64_t each = o->steps / (2 * EVALUATIONS), of_batch = (uint64_t)o->batch * o->seq;

    if (o->eval_tokens == UINT64_MAX) {
        o->eval_tokens = EVAL_TOKENS;
        if (chooses && each < EVAL_TOKENS / of_batch)
            o->eval_tokens = each * of_batch > LEAST_EVAL_TOKENS ? each * of_batch : LEAST_EVAL_TOKENS;
    }
    if (!chooses)
        return;
    uint64_t n = o->steps / (2 * count_evaluated(o, facts));
    n = n > EVALUATIONS ? EVALUATIONS : n > 0 ? n : 1;
    o->eval_every = o->on_rows ? 0 : (o->steps + n - 1) / n;
    o->eval_chosen = true;
}

int client_options_length(struct eps_train_options *o, const struct client_facts *facts, uint64_t n_windows,
                          struct error *err)
{
    const int rc = resolve_steps(o, facts, n_windows, err);

    if (rc)
        return rc;
    if (o->warmup == UINT64_MAX)
        o->warmup = facts->preset ? preset_warmup(o->steps) : (uint64_t)round(0.03 * (double)o->steps);
    if (o->no_save)
        o->save_every = 0;
    o->save_minutes = isnan(o->save_minutes) ? SAVE_MINUTES : o->save_minutes;
    if (!(o->save_minutes >= 0 && o->save_minutes <= 1e6))
        return error_set(err, -EDOM, "--save-minutes %g is not within 0 and 1e6", o->save_minutes);
    if (o->keep == UINT32_MAX)
        o->keep = 2;
    choose_evaluations(o, facts);
    if (o->patience > 0 && o->eval_every == 0)
        return error_set(err, -EDOM,
                         "--patience %u counts evaluations, and --eval-every 0 leaves them out: give one "
                         "above 0, or leave it out",
                         o->patience);
    /* A stored option may be more than the steps that are left, which is no mistake. */
    if (facts->resumed)
        return 0;
    if (o->warmup > o->steps)
        return error_set(err, -EDOM, "--warmup %" PRIu64 " is more than the run's %" PRIu64 " steps", o->warmup,
                         o->steps);
    if (o->eval_every > o->steps)
        return error_set(err, -EDOM, "--eval-every %" PRIu64 " is more than the run's %" PRIu64 " steps", o->eval_every,
                         o->steps);
    return client_options_check_thaw(o, err);
}

bool client_options_say_short(struct error *sentence, const struct eps_train_options *asked,
                              const struct eps_train_options *resolved)
{
    const uint64_t steps = resolved->steps;

    error_set(sentence, 0, "%" PRIu64 " step%s teach%s a model little: give more data or more --epochs%s", steps,
              steps == 1 ? "" : "s", steps == 1 ? "es" : "",
              resolved->batch > resolved->parts ? ", or a smaller --batch" : "");
    return steps < FEW_STEPS && asked->steps == 0 && !asked->resume;
}
