/* The search's choice where the host binds, against all plans of a list, each played in time. */
#include "tests/kit/inprocess/model.h"
#include "tests/kit/test.h"

#include "proto/plan/memory/room.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/search.h"
#include "proto/plan/time/cost.h"
#include "proto/step/timeline.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(single)

/* Ties of the formula, in steps of a thousandth, and of what is played. */
#define THOUSANDTH 1.001001

static const struct {
    uint32_t n_layers, width, rows, seq;
    enum number_type grad, moments;
    uint64_t budget;
    double gain;  /* at least, of the plan that has the fewest bytes to the one that is played */
    double bytes; /* of the latter, at most so many times the fewest that the list has for that time */
} cases[] = {
    {24, 1024, 16, 512, NUMBER_FP32, NUMBER_FP32, UINT64_MAX, 1.15, 2.6},
    {24, 1024, 16, 512, NUMBER_BF16, NUMBER_BF16, UINT64_MAX, 1.1, 1.001},
    {24, 1024, 16, 512, NUMBER_BF16, NUMBER_FP32, (uint64_t)4 << 30, 1.015, 1.001},
    {6, 2048, 8, 1024, NUMBER_FP32, NUMBER_FP32, (uint64_t)6 << 30, 1.015, 1.3},
};

struct job {
    struct model model;
    struct plan_setting setting;
    struct plan_host_setting host;
    const struct profile *profile;
    uint32_t n_slots;
};

static void job_open(struct job *job, int i)
{
    const struct model_config config =
        GPT2_CONFIG(cases[i].n_layers, cases[i].width / 64, cases[i].width, 4 * cases[i].width, 1024, 50257,
                    .tied = true, GPT2_ON(scale_attention));
    const struct plan_goal goal = {.purpose = PLAN_TRAIN,
                                   .precision = NUMBER_BF16,
                                   .grad = cases[i].grad,
                                   .moments = cases[i].moments,
                                   .batch = cases[i].rows,
                                   .seq = cases[i].seq,
                                   .n_parts = 1};
    const struct plan_room room = {.available = UINT64_MAX, .cap = UINT64_MAX};
    struct plan_host host;

    ck_assert_int_eq(model_init(&job->model, &config, NULL), 0);
    job->profile = profile_default("cuda");
    job->setting = (struct plan_setting){.backend = &plan_cuda, .goal = goal, .attention = job->profile->attention};
    plan_share(&job->setting, 1, 2);
    job->host = (struct plan_host_setting){.goal = goal, .n_workers = 1, .beside = true};
    plan_host(&host, &job->model, &job->host);
    plan_host_add_slots(&host, &job->model, &job->host, &room);
    job->n_slots = host.n_slots;
}

static void job_search(struct plan *out, const struct job *job, plan_player *play, uint64_t budget)
{
    const struct plan_wish wish = {.host = &job->host, .play = play, .n_slots = job->n_slots};
    struct error err = {""};

    ck_assert_msg(plan_search(out, &job->model, &job->setting, &wish, job->profile, budget, &err) == 0, "%s", err.text);
}

static double play_ms(const struct job *job, const struct plan *plan)
{
    const struct step_timeline_setting setting = {plan, &job->model, &job->host, job->profile, job->n_slots};
    struct step_timeline line;

    ck_assert_int_eq(step_timeline(&line, &setting), 0);
    return line.seconds * 1e3;
}

static double formula_ms(const struct job *job, const struct plan *plan)
{
    struct plan_cost cost;

    plan_cost(&cost, plan, &job->model, &job->host, job->profile, NULL);
    return cost.step_ms;
}

/* Of the plans of a list that fit, and of which the formula says no more than `most`: the least that any takes, played;
 * and the fewest bytes of those that take no more than a thousandth longer. */
struct listed {
    double ms;
    uint64_t bytes;
};

static struct listed least_of_list(const struct job *job, uint64_t budget, double most)
{
    static struct listed all[5 * 2 * 3 * 3 * 3];
    const uint32_t n_units = plan_count_uploaded(&job->model);
    struct listed least = {INFINITY, UINT64_MAX};
    uint32_t n = 0;

    for (uint32_t i = 0; i < COUNT(all); i++) {
        const uint32_t kept = job->model.classes[0].n_blocks * (i / 30 % 3) / 2;
        const struct plan_choice choice = {.microbatch = job->setting.part_rows >> i % 5,
                                           .whole_head = i / 5 % 2,
                                           .n_weight_buffers = 1 + i / 10 % 3,
                                           .keeping = {{kept, kept ? MODEL_KEEPS_ALL : MODEL_KEEPS_NOTHING}},
                                           .n_resident = n_units * (i / 90) / 2};
        struct plan plan;
        if (plan_check_choice(&job->model, &job->setting, &choice, NULL))
            continue;
        plan_lay_out(&plan, &job->model, &job->setting, &choice);
        if (plan_total(&plan) > budget || formula_ms(job, &plan) > most)
            continue;
        all[n] = (struct listed){play_ms(job, &plan), plan_total(&plan)};
        least.ms = fmin(least.ms, all[n++].ms);
    }
    for (uint32_t i = 0; i < n; i++)
        if (all[i].ms <= THOUSANDTH * least.ms && all[i].bytes < least.bytes)
            least.bytes = all[i].bytes;
    return least;
}

/* By bytes alone the choice takes longer than what the list has. As played, nothing of the list is shorter; nor does the
 * formula, which decides before, have it longer. */
TEST_EACH(of_plans_that_tie_the_fastest_as_played_is_chosen, COUNT(cases))
{
    struct plan by_bytes, played;
    struct job job;

    job_open(&job, _i);
    job_search(&by_bytes, &job, NULL, cases[_i].budget);
    job_search(&played, &job, step_timeline_play, cases[_i].budget);
    const double formula = formula_ms(&job, &by_bytes), ms = play_ms(&job, &played);
    const struct listed least = least_of_list(&job, cases[_i].budget, formula * THOUSANDTH);
    ck_assert_double_ge(play_ms(&job, &by_bytes), cases[_i].gain * least.ms);
    ck_assert_double_le(ms, least.ms * THOUSANDTH);
    ck_assert_double_le((double)plan_total(&played), cases[_i].bytes * (double)least.bytes);
    ck_assert_double_le(formula_ms(&job, &played), formula * THOUSANDTH);
    ck_assert_uint_le(plan_total(&played), cases[_i].budget);
    model_free(&job.model);
}

/* ---- what is played, of plans offered by hand ---- */

/* Seconds by microbatch, and how many times each was played. */
static double seconds_of[9];
static uint32_t n_played[9];

static double play_table(const struct plan *plan, const struct model *model, const struct plan_host_setting *host,
                         const struct profile *profile, uint32_t n_slots)
{
    (void)model, (void)host, (void)profile;
    ck_assert_uint_eq(n_slots, 5);
    n_played[plan->choice.microbatch]++;
    return seconds_of[plan->choice.microbatch];
}

static void lay_out_rows(struct plan *out, const struct model *model, uint32_t rows)
{
    const struct plan_setting setting = {
        .backend = &plan_cpu, .goal.purpose = PLAN_TRAIN, .goal.seq = 64, .share_rows = 8, .part_rows = 8};
    const struct plan_choice choice = {.microbatch = rows, .n_weight_buffers = 1};

    plan_lay_out(out, model, &setting, &choice);
}

/* Of microbatches of 1, 2, 4 and 8 rows, each of more bytes and less to do for the device than the one before; and one
 * of 3 rows that does not take less of the device than that of 2. */
static const struct {
    double seconds[9];
    uint32_t chosen;
} played[] = {
    {{[1] = 1, [2] = 0.9, [3] = 0.1, [4] = 0.8995, [8] = 0.95}, 2},
    {{[1] = 1, [2] = 0.9, [3] = 0.1, [4] = 0.8985, [8] = 0.95}, 4},
    {{[1] = 1, [2] = 1, [3] = 0.1, [4] = 1, [8] = 1}, 1},
    {{[1] = 1, [2] = 1.1, [3] = 0.1, [4] = 1.1, [8] = 0.5}, 8},
    {{[1] = INFINITY, [2] = 0.9, [3] = 0.1, [4] = INFINITY, [8] = INFINITY}, 2},
};

TEST_EACH(of_those_as_fast_as_played_the_one_with_the_fewest_bytes_is_taken, COUNT(played))
{
    static const double busy[9] = {[1] = 1, [2] = 0.6, [3] = 0.6, [4] = 0.5, [8] = 0.3};
    const struct model_config config = GPT2_CONFIG(2, 2, 64, 256, 64, 96, .tied = true, GPT2_ON(scale_attention));
    struct plan_ties ties = {.time = INT64_MAX};
    struct plan plan, best;
    struct model model;

    ck_assert_int_eq(model_init(&model, &config, NULL), 0);
    memcpy(seconds_of, played[_i].seconds, sizeof seconds_of);
    memset(n_played, 0, sizeof n_played);
    lay_out_rows(&plan, &model, 7);
    plan_ties_offer(&ties, &plan, 12, 0.2); /* forgotten as soon as there are faster ones */
    for (uint32_t rows = 8; rows > 0; rows--) {
        lay_out_rows(&plan, &model, rows);
        if (busy[rows] > 0)
            plan_ties_offer(&ties, &plan, 10, busy[rows]);
        else
            plan_ties_offer(&ties, &plan, 11, 0.1); /* slower */
    }
    lay_out_rows(&best, &model, 1);
    plan_ties_play(&best, &ties, &model, NULL, NULL, play_table, 5);
    ck_assert_uint_eq(best.choice.microbatch, played[_i].chosen);
    for (uint32_t rows = 0; rows < 9; rows++)
        ck_assert_uint_eq(n_played[rows], rows == 1 || rows == 2 || rows == 4 || rows == 8);
    model_free(&model);
}
