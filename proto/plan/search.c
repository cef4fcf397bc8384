/* A refusal names the smallest budget, and the search must find a plan within that. So plan_smallest looks at nothing
 * that plan_search leaves out: every candidate is first followed over `plain` links, which no profile changes. */
#include "proto/plan/search.h"

#include "proto/plan/cuts.h"
#include "proto/plan/links.h"
#include "proto/plan/refusal.h"
#include "proto/plan/ties.h"
#include "proto/plan/memory/chains.h"
#include "proto/plan/time/cost.h"
#include "proto/plan/memory/layers.h"
#include "proto/plan/memory/units.h"
#include "proto/plan/time/work.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum {
    CUT_STEPS = 32,   /* from the fewest bytes of layers' inputs to all */
    CUT_STRIDE = 4,   /* between those that are looked at for the fewest bytes of a plan */
    EVERY_COUNT = 16, /* microbatches of a part: all counts up to here, then doubled ones */
    MAX_COUNTS = EVERY_COUNT + 32,
};

struct search {
    const struct model *model;
    const struct plan_setting *setting;
    const struct profile *profile;
    struct plan_prices *prices;
    struct plan_workspaces *known;
    struct plan_host_setting host; /* no choice made here affects what the prediction reads of it */
    uint64_t budget;
    /* All or nothing, class after class, whatever the profile, as the smallest plan must be on it; and the best ones
     * for the current microbatch. */
    struct plan_links plain, best_links;
    struct plan_cuts *cuts; /* of row groups of `cut_rows` */
    uint32_t cut_rows;      /* 0: none yet */
    bool pulls_once;        /* several hosts: units pass through a ring once in each direction */
    struct plan best;
    int64_t best_time;
    bool found;
    struct plan_ties *ties; /* offered what the search is; NULL: bytes decide among ties */
};

/* What plans are compared by. */
struct measure {
    int64_t time;
    double busy; /* the device's part of the step; 1: it binds */
};

/* Everything is chosen but the kept values and the resident units. */
struct chain {
    struct plan_choice choice;
    const struct plan_links *links;
    uint32_t most_kept, most_resident; /* most_kept: blocks of all links */
    bool resident_first;
};

static uint32_t chain_end(const struct chain *chain)
{
    return chain->most_kept + chain->most_resident;
}

static void lay_out_at(struct plan *out, const struct search *s, const struct chain *chain, uint32_t at)
{
    const uint32_t first = chain->resident_first ? chain->most_resident : chain->most_kept;
    const uint32_t of_first = at < first ? at : first;
    struct plan_choice choice = chain->choice;

    choice.n_resident = chain->resident_first ? of_first : at - of_first;
    plan_links_keep(&choice, chain->links, s->model, chain->resident_first ? at - of_first : of_first);
    plan_lay_out_next(out, s->model, s->setting, &choice, s->known);
}

/* Predicted time in steps of a thousandth: smaller differences are ties, as predictions are no better. Whole steps, so
 * that the minimum over more plans never grows. In generation only copies are predicted, and even a unit of few rows
 * counts: billionths. */
static struct measure search_measure(const struct search *s, const struct plan *plan)
{
    const double steps = s->setting->goal.purpose == PLAN_GENERATE ? 1e9 : 1e3, least = 1e-300, most = 1e300;
    struct plan_cost cost;

    plan_cost(&cost, plan, s->model, &s->host, s->profile, s->prices);
    const double ms = cost.step_ms - cost.message_ms; /* messages are the same in all plans */
    return (struct measure){
        .time = (int64_t)floor(log(fmin(fmax(ms, least), most)) * steps), /* bounded for absurd profiles */
        .busy = cost.device_ms / cost.step_ms,
    };
}

/* True if layers' inputs are computed again. */
static bool recomputes(const struct plan *plan)
{
    return plan->choice.n_cuts > 0 || plan->choice.derives;
}

/* Of equal times the one with fewer bytes; but nothing is computed again for bytes that are there. */
static void search_offer_measured(struct search *s, const struct plan *plan, const struct measure *m)
{
    const bool is_less = plan_total(plan) < plan_total(&s->best) && (!recomputes(plan) || recomputes(&s->best));

    if (s->ties)
        plan_ties_offer(s->ties, plan, m->time, m->busy);
    if (s->found && (m->time > s->best_time || (m->time == s->best_time && !is_less)))
        return;
    s->best = *plan, s->best_time = m->time, s->found = true;
}

static void search_offer(struct search *s, const struct plan *plan)
{
    const struct measure m = search_measure(s, plan);

    search_offer_measured(s, plan, &m);
}

/* Points where bytes may fall along the chain: once all of the head's units, or all units, are resident, buffers
 * shrink; once all blocks of a class keep the same, the workspace does. Between them bytes grow. The last is past the
 * end. */
enum { CHAIN_BREAKS = MODEL_CLASSES * (MODEL_KEEPINGS - 1) + 5 };

static int find_breaks(uint32_t at[CHAIN_BREAKS], const struct search *s, const struct chain *chain)
{
    const uint32_t n_head = plan_head(s->model)->n_visits;
    const uint32_t resident = chain->resident_first ? 0 : chain->most_kept;
    const uint32_t kept = chain->resident_first ? chain->most_resident : 0;
    int n = 0;

    if (chain->resident_first) {
        at[n++] = 0;
        at[n++] = n_head;
    }
    at[n++] = kept;
    for (uint32_t i = 0, steps = 0; steps < chain->most_kept; i++) {
        steps += s->model->classes[chain->links->of[i].class].n_blocks;
        at[n++] = kept + steps;
    }
    if (!chain->resident_first) {
        at[n++] = resident + n_head;
        at[n++] = resident + chain->most_resident;
    }
    at[n++] = chain_end(chain) + 1;
    return n;
}

/* The furthest point of the chain that fits. */
static bool find_furthest(struct plan *out, uint32_t *at, const struct search *s, const struct chain *chain)
{
    uint32_t breaks[CHAIN_BREAKS];
    struct plan plan;
    int i = find_breaks(breaks, s, chain) - 1;

    do {
        if (--i < 0)
            return false;
        lay_out_at(out, s, chain, breaks[i]);
    } while (plan_total(out) > s->budget);
    uint32_t low = breaks[i], high = breaks[i + 1] > low ? breaks[i + 1] - 1 : low;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        lay_out_at(&plan, s, chain, middle);
        if (plan_total(&plan) <= s->budget)
            low = middle, *out = plan;
        else
            high = middle - 1;
    }
    *at = low;
    return true;
}

/* Offers the first point of the chain, before `high`, that takes no more of time or device than *most; if none fits,
 * none. *out: it, or the furthest one, which is there already. */
static void search_first(struct plan *out, struct search *s, const struct chain *chain, uint32_t high,
                         const struct measure *most)
{
    struct measure m, first = {0};
    struct plan plan;
    bool found = false;

    for (uint32_t low = 0; low < high;) {
        const uint32_t middle = low + (high - low) / 2;
        lay_out_at(&plan, s, chain, middle);
        m = search_measure(s, &plan);
        if (m.time <= most->time && m.busy <= most->busy)
            high = middle, *out = plan, first = m, found = true;
        else
            low = middle + 1;
    }
    if (found && plan_total(out) <= s->budget)
        search_offer_measured(s, out, &first);
}

/* Takes the first point of the chain with the predicted time of the furthest that fits; and of ties those where the
 * device first has this much less to do. */
static void search_follow(struct search *s, const struct chain *chain)
{
    struct plan furthest, least, plan;
    uint32_t high;

    if (!find_furthest(&furthest, &high, s, chain))
        return;
    const struct measure m = search_measure(s, &furthest);
    if (s->found && m.time > s->best_time)
        return;
    search_offer_measured(s, &furthest, &m);
    least = furthest;
    search_first(&least, s, chain, high, &(struct measure){m.time, INFINITY});
    for (uint32_t i = PLAN_TIES; s->ties && --i > 0 && m.busy <= plan_ties_busy(i);)
        if (plan_ties_want(s->ties, i, plan_total(&least)))
            search_first(&plan, s, chain, high, &(struct measure){m.time, plan_ties_busy(i)});
}

/* The longest chain: all units that can be resident, and all blocks through all links if blocks can keep values. */
static struct chain chain_of(const struct search *s, const struct plan_choice *choice, const struct plan_links *links)
{
    return (struct chain){.choice = *choice,
                          .links = links,
                          .most_kept = plan_may_keep(s->setting, choice) ? plan_links_blocks(links, s->model) : 0,
                          .most_resident = plan_count_uploaded(s->model)};
}

/* Candidate rows of a microbatch, multiples of `whole`, descending; returns their number. */
static uint32_t list_rows(uint32_t rows[MAX_COUNTS], uint32_t part_rows, uint32_t whole, uint32_t wish)
{
    uint32_t n = 0;

    rows[n++] = wish ? wish : part_rows;
    for (uint64_t count = 2; !wish && rows[n - 1] > whole && n < MAX_COUNTS; count += count < EVERY_COUNT ? 1 : count) {
        const uint32_t next = (uint32_t)((part_rows / whole + count - 1) / count) * whole;
        if (next < rows[n - 1])
            rows[n++] = next;
    }
    return n;
}

/* Sets s->cuts for a plan without cuts. False: its layers cannot be divided into segments. */
static bool find_cuts(struct search *s, const struct plan *plan)
{
    if (s->pulls_once || s->setting->goal.purpose != PLAN_TRAIN)
        return false;
    if (s->cut_rows != plan->setting.share_rows)
        plan_cuts_init(s->cuts, plan, s->model);
    s->cut_rows = plan->setting.share_rows;
    return s->cuts->n > 1;
}

static void lay_out_cut(struct plan *out, const struct search *s, struct plan_choice *choice, uint32_t step)
{
    const bool can = plan_cut(choice, s->cuts, s->cuts->least + (s->cuts->most - s->cuts->least) / CUT_STEPS * step);

    assert(can);
    plan_lay_out_next(out, s->model, s->setting, choice, s->known);
}

static uint64_t search_bytes_of(const struct plan *plan)
{
    return plan->choice.host_stash ? plan->host_stash_bytes : plan_total(plan);
}

/* Cuts a choice to the fewest bytes. Of several steps, as gradients lie where values were. */
static void cut_to_fewest(struct plan *out, const struct search *s, struct plan_choice *choice)
{
    struct plan plan;

    for (uint32_t step = 0; step <= CUT_STEPS; step += CUT_STRIDE) {
        lay_out_cut(&plan, s, choice, step);
        if (step == 0 || search_bytes_of(&plan) < search_bytes_of(out))
            *out = plan;
    }
    *choice = out->choice;
}

/* A stash on the host takes no memory of the device, whatever the depth. Segments only add copies there, so it has them
 * where the host has no room for more. */
static void cut_host_stash(struct search *s, struct plan_choice *choice)
{
    struct plan plan;

    choice->n_weight_buffers = 1;
    plan_lay_out_next(&plan, s->model, s->setting, choice, s->known);
    if (find_cuts(s, &plan))
        cut_to_fewest(&plan, s, choice);
}

/* Calls visit for each candidate with this many rows, and parts in a row group, that derives or does not. */
static void look_through_groups(struct search *s, uint32_t rows, uint32_t group, bool derives,
                                const struct plan_wish *wish,
                                void (*visit)(struct search *s, const struct plan_choice *choice))
{
    for (unsigned i = 0; i < (s->model->n_sparse > 0 ? 8 : 4); i++) {
        struct plan_choice choice = {.microbatch = rows,
                                     .group_parts = group,
                                     .derives = derives,
                                     .host_stash = i & 1,
                                     .whole_head = i & 2,
                                     .sparse_singly = i & 4};
        if ((choice.host_stash && wish->no_host_stash) || (derives && !plan_may_derive(s->model, s->setting, &choice)))
            continue;
        if (choice.host_stash && wish->least_host_stash)
            cut_host_stash(s, &choice);
        for (choice.n_weight_buffers = 1; choice.n_weight_buffers <= PLAN_MAX_WEIGHT_BUFFERS; choice.n_weight_buffers++)
            if (plan_check_choice(s->model, s->setting, &choice, NULL) == 0)
                visit(s, &choice);
    }
}

/* Row groups in as many sizes as differ: the share in one, in two, ... down to single parts. */
static void search_look_through(struct search *s, uint32_t rows, const struct plan_wish *wish,
                                void (*visit)(struct search *s, const struct plan_choice *choice))
{
    const struct plan_setting *set = s->setting;
    const bool groups = plan_may_group(set) && !s->pulls_once;
    const uint32_t parts = groups ? set->share_rows / set->part_rows : 1;

    for (unsigned derives = 0; derives < 2; derives++) {
        look_through_groups(s, rows, 0, derives, wish, visit);
        for (uint32_t n = 2, last = parts; n <= parts; n++) {
            const uint32_t size = (parts + n - 1) / n;
            if (size < last)
                look_through_groups(s, rows, size, derives, wish, visit);
            last = size;
        }
    }
}

/* Follows both chains: kept values, then resident units; and the reverse. */
static void follow_both(struct search *s, const struct plan_choice *choice, const struct plan_links *links)
{
    struct chain chain = chain_of(s, choice, links);

    search_follow(s, &chain);
    chain.resident_first = true;
    if (chain.most_kept)
        search_follow(s, &chain);
}

static void visit_plain(struct search *s, const struct plan_choice *choice)
{
    follow_both(s, choice, &s->plain);
}

static void visit_best(struct search *s, const struct plan_choice *choice)
{
    if (plan_may_keep(s->setting, choice))
        follow_both(s, choice, &s->best_links);
}

/* True if a choice would take longer than the best plan even with all units resident, and computing nothing again. */
static bool is_slow(const struct search *s, const struct plan_choice *choice)
{
    struct plan_choice resident = *choice;
    struct plan plan;

    resident.n_resident = plan_count_uploaded(s->model);
    plan_lay_out_next(&plan, s->model, s->setting, &resident, s->known);
    return s->found && search_measure(s, &plan).time > s->best_time;
}

/* Where not each layer's input finds room: the fewest operations computed again; and the fewest bytes of inputs, which
 * leaves the most for resident units. */
static void visit_segments(struct search *s, const struct plan_choice *choice)
{
    struct plan_choice cut = *choice;
    struct plan plan;

    plan_lay_out_next(&plan, s->model, s->setting, choice, s->known);
    if (choice->host_stash || choice->derives || plan_total(&plan) <= s->budget || is_slow(s, choice) ||
        !find_cuts(s, &plan))
        return;
    cut_to_fewest(&plan, s, &cut);
    if (plan_total(&plan) > s->budget)
        return;
    follow_both(s, &cut, &s->plain);
    uint32_t low = 0, high = CUT_STEPS;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        lay_out_cut(&plan, s, &cut, middle);
        if (plan_total(&plan) <= s->budget)
            low = middle;
        else
            high = middle - 1;
    }
    lay_out_cut(&plan, s, &cut, low);
    follow_both(s, &cut, &s->plain); /* if it does not fit, nothing is offered */
}

static void offer_least(struct search *s, const struct plan_choice *choice)
{
    const struct chain chain = chain_of(s, choice, &s->plain);
    uint32_t breaks[CHAIN_BREAKS];
    struct plan plan;
    const int n = find_breaks(breaks, s, &chain);

    for (int i = 0; i < n - 1; i++) {
        lay_out_at(&plan, s, &chain, breaks[i]);
        if (!s->found || plan_total(&plan) < plan_total(&s->best))
            s->best = plan, s->found = true;
    }
}

static void visit_bytes(struct search *s, const struct plan_choice *choice)
{
    struct plan_choice cut = *choice;
    struct plan plan;

    offer_least(s, choice);
    plan_lay_out_next(&plan, s->model, s->setting, choice, s->known);
    if (choice->host_stash || choice->derives || !find_cuts(s, &plan))
        return;
    cut_to_fewest(&plan, s, &cut);
    offer_least(s, &cut);
}

static bool pulls_once(const struct plan_wish *wish)
{
    return wish->host && wish->host->n_own > 0;
}

void plan_smallest(struct plan *out, const struct model *model, const struct plan_setting *setting,
                   const struct plan_wish *wish)
{
    struct plan_workspaces known = {0};
    struct plan_cuts cuts;
    struct search s = {
        .model = model, .setting = setting, .known = &known, .cuts = &cuts, .pulls_once = pulls_once(wish)};

    plan_links_plain(&s.plain, model);
    search_look_through(&s, wish->microbatch ? wish->microbatch : plan_joined_rows(&setting->goal, &model->config),
                        wish, visit_bytes);
    assert(s.found);
    *out = s.best;
}

/* Adds sums in the memory that the best plan leaves. Contributions are sent in order, so more than two sums gain a few
 * percent at most, if a small unit such as the last norm stands between large ones. So sums come last, and only as many
 * as the prediction favours. */
static void search_add_sums(struct search *s)
{
    struct plan_choice choice = s->best.choice;
    struct plan plan;

    for (choice.n_sums = s->best.n_sums + 1; s->best.n_sets > 1 && choice.n_sums <= PLAN_MAX_SUMS; choice.n_sums++) {
        plan_lay_out_next(&plan, s->model, s->setting, &choice, s->known);
        if (plan.n_sums < choice.n_sums || plan_total(&plan) > s->budget)
            return;
        search_offer(s, &plan);
    }
}

/* Blocks that keep some of their values may leave less memory for sums than blocks that keep all or nothing, so both
 * are tried and the better one is used. */
static void search_links(struct search *s, const uint32_t *rows, uint32_t n_rows, const struct plan_wish *wish)
{
    struct search plain = *s;

    for (uint32_t i = 0; i < n_rows; i++) {
        plan_links_best(&s->best_links, s->model, s->setting, s->profile, s->prices, rows[i]);
        if (s->best_links.n > 1 || s->model->n_classes > 1)
            search_look_through(s, rows[i], wish, visit_best);
    }
    search_add_sums(s);
    search_add_sums(&plain);
    search_offer(s, &plain.best);
}

static double ms_per_text(const struct search *s)
{
    struct plan_cost cost;

    plan_cost(&cost, &s->best, s->model, &s->host, s->profile, s->prices);
    return cost.step_ms / s->best.choice.microbatch;
}

/* Texts that advance together share the weights that pass, so as many as fit are taken; but fewer, if more weights stay
 * on the device then, and each text is faster by more than a thousandth. */
static void search_texts(struct search *s, uint32_t most, uint32_t least, const struct plan_wish *wish)
{
    double best_ms = 0;

    for (uint32_t rows = most; rows >= least; rows--) {
        struct search these = *s;
        these.found = false;
        search_look_through(&these, rows, wish, visit_plain);
        const double ms = these.found ? ms_per_text(&these) : 0;
        if (these.found && (!s->found || ms < 0.999 * best_ms))
            *s = these, best_ms = ms;
    }
}

int plan_search(struct plan *out, const struct model *model, const struct plan_setting *setting,
                const struct plan_wish *wish, const struct profile *profile, uint64_t budget, struct error *err)
{
    const struct plan_host_setting nominal = {.goal = {.purpose = setting->goal.purpose,
                                                       .precision = setting->goal.precision,
                                                       .n_parts = setting->part_rows
                                                                      ? setting->share_rows / setting->part_rows
                                                                      : 1},
                                              .n_workers = 1};
    struct plan_workspaces known = {0};
    struct plan_ties ties = {.time = INT64_MAX};
    struct plan_prices prices = {0};
    struct plan_cuts cuts;
    struct search s = {.model = model,
                       .setting = setting,
                       .profile = profile,
                       .prices = &prices,
                       .known = &known,
                       .cuts = &cuts,
                       .ties = wish->play && setting->goal.purpose == PLAN_TRAIN && !pulls_once(wish) ? &ties : NULL,
                       .pulls_once = pulls_once(wish),
                       .host = wish->host ? *wish->host : nominal,
                       .budget = budget};
    uint32_t rows[MAX_COUNTS];
    int rc = plan_check(model, setting, err);

    if (rc)
        return rc;
    if (wish->microbatch > setting->part_rows)
        return error_set(err, -EINVAL, "--microbatch %u is more than the %u rows of a part", wish->microbatch,
                         setting->part_rows);
    if (plan_check_rows(model, setting, wish->microbatch, err))
        return -EINVAL;
    plan_links_plain(&s.plain, model);
    const bool generates = setting->goal.purpose == PLAN_GENERATE;
    const uint32_t n_rows = generates ? 0
                                      : list_rows(rows, setting->part_rows,
                                                  plan_joined_rows(&setting->goal, &model->config), wish->microbatch);
    for (uint32_t i = 0; i < n_rows; i++)
        search_look_through(&s, rows[i], wish, visit_plain);
    for (uint32_t i = 0; i < n_rows; i++)
        search_look_through(&s, rows[i], wish, visit_segments);
    if (generates)
        search_texts(&s, wish->microbatch ? wish->microbatch : setting->part_rows,
                     wish->microbatch ? wish->microbatch : 1, wish);
    if (s.found) {
        if (setting->goal.purpose == PLAN_TRAIN)
            search_links(&s, rows, n_rows, wish);
        *out = s.best;
        if (s.ties && ties.time == s.best_time)
            plan_ties_play(out, &ties, model, &s.host, profile, wish->play, wish->n_slots);
        return 0;
    }
    plan_smallest(out, model, setting, wish);
    return plan_refuse(out, model, setting, wish, budget, err);
}
