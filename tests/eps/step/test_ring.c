/* What ring.h promises. Weights are numbered: unit u in turn t is in a slot once it was fetched there. */
#include "eps/step/ring.h"

#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <string.h>

enum { STEP = 5, KEPT = 90, FROZEN = 91, IDLE = 99 }; /* KEPT: a unit that does not pass through; IDLE: a worker */

static uint64_t turns[100]; /* of each unit */

static uint64_t version_of(const void *context, uint32_t unit, uint64_t turn)
{
    (void)context;
    return unit == FROZEN ? UINT64_MAX : STEP - (turns[unit] - turn);
}

static bool counts(const void *context, uint32_t worker, uint64_t version)
{
    (void)context;
    return worker != IDLE && version == STEP;
}

static bool find(const void *context, uint32_t unit, uint64_t *turn)
{
    (void)context;
    if (unit >= KEPT)
        return false;
    *turn = turns[unit];
    return true;
}

static bool has_norms[100]; /* of each unit, or it has none */

static bool is_whole(const void *context, uint32_t unit, uint64_t version)
{
    (void)context;
    ck_assert_uint_eq(version, STEP);
    return has_norms[unit];
}

static struct ring_step step = {.version = version_of, .counts = counts, .find = find, .is_whole = is_whole};
static struct ring ring;

static void begin(uint32_t n_slots)
{
    for (int u = 0; u < COUNT(turns); u++)
        turns[u] = 3, has_norms[u] = true;
    step.lowest = STEP - 1;
    ring_init(&ring, n_slots);
}

/* In the step that is open. Nothing is fetched before it is pulled, but in the tests of that. */
static void pull(uint32_t worker, uint32_t unit)
{
    ring_pull(&ring, worker, STEP, unit);
    ring.ahead = UINT32_MAX;
}

static void pull_answered(uint32_t worker, uint32_t unit)
{
    pull(worker, unit);
    ring_answer(&ring, worker, STEP, unit, turns[unit]);
}

static void expect_nothing(void)
{
    struct ring_act act;

    ck_assert(!ring_next(&ring, &step, &act));
}

/* Returns the slot. */
static uint32_t expect_fetch(uint32_t unit, uint64_t turn)
{
    struct ring_act act;

    ck_assert(ring_next(&ring, &step, &act));
    ck_assert_int_eq(act.kind, RING_FETCH);
    ck_assert_uint_eq(act.unit, unit);
    ck_assert_uint_eq(act.turn, turn);
    ck_assert_uint_lt(act.slot, ring.n_slots);
    return act.slot;
}

static uint32_t expect_answer(int kind, uint32_t worker, uint32_t unit)
{
    struct ring_act act;

    ck_assert(ring_next(&ring, &step, &act));
    ck_assert_int_eq(act.kind, kind);
    ck_assert_uint_eq(act.worker, worker);
    ck_assert_uint_eq(act.unit, unit);
    ck_assert_uint_eq(act.version, STEP);
    return act.slot;
}

/* Pulled, fetched and lent. Returns the slot. */
static uint32_t lend(uint32_t worker, uint32_t unit)
{
    pull_answered(worker, unit);
    const uint32_t slot = expect_fetch(unit, turns[unit]);
    ring_fetched(&ring, slot);
    ck_assert_uint_eq(expect_answer(RING_LEND, worker, unit), slot);
    return slot;
}

/* ---- one pull --------------------------------------------------------------------------------------------------- */

TEST(a_unit_is_fetched_once_its_pull_is_answered_and_lent_once_it_is_here)
{
    begin(3);
    pull(1, 7);
    expect_nothing(); /* its version does not stand anywhere yet */
    ring_answer(&ring, 1, STEP, 7, turns[7]);
    const uint32_t slot = expect_fetch(7, turns[7]);
    expect_nothing();
    ring_fetched(&ring, slot);
    ck_assert_uint_eq(expect_answer(RING_LEND, 1, 7), slot);
    expect_nothing();
}

/* Nor is a later one, which could be lent. */
TEST(a_unit_that_is_here_is_lent_when_its_norms_are_too)
{
    begin(3);
    has_norms[7] = false;
    pull_answered(1, 7);
    pull_answered(1, 8);
    const uint32_t slot = expect_fetch(7, turns[7]), next = expect_fetch(8, turns[8]);
    ring_fetched(&ring, slot);
    ring_fetched(&ring, next);
    expect_nothing();
    ck_assert(ring_awaits(&ring, 1));
    has_norms[7] = true;
    ck_assert_uint_eq(expect_answer(RING_LEND, 1, 7), slot);
    ck_assert_uint_eq(expect_answer(RING_LEND, 1, 8), next);
    expect_nothing();
}

TEST(weights_that_are_here_are_lent_without_another_fetch)
{
    begin(3);
    const uint32_t slot = lend(1, 7);
    pull_answered(2, 7);
    ck_assert_uint_eq(expect_answer(RING_LEND, 2, 7), slot);
    ring_read(&ring, 1, STEP, 7);
    ring_read(&ring, 2, STEP, 7);
    pull_answered(1, 7);
    ck_assert_uint_eq(expect_answer(RING_LEND, 1, 7), slot);
}

/* As a part that is redone reads the version before the update. */
TEST(two_turns_of_a_unit_are_fetched_apart)
{
    begin(3);
    turns[7] = 4;
    const uint32_t slot = lend(1, 7);
    pull(2, 7);
    ring_answer(&ring, 2, STEP, 7, 3);
    const uint32_t other = expect_fetch(7, 3);
    ck_assert_uint_ne(slot, other);
    ring_fetched(&ring, other);
    ck_assert_uint_eq(expect_answer(RING_LEND, 2, 7), other);
}

/* ---- who may have how much -------------------------------------------------------------------------------------- */

TEST(a_worker_has_two_units_and_gets_a_third_once_it_has_read_one)
{
    begin(7);
    lend(1, 7);
    lend(1, 8);
    pull_answered(1, 9);
    ring_fetched(&ring, expect_fetch(9, turns[9])); /* there is room for it */
    expect_nothing();
    ring_read(&ring, 1, STEP, 8);
    expect_answer(RING_LEND, 1, 9);
    expect_nothing();
}

TEST(units_are_lent_in_the_order_of_the_pulls_in_whatever_order_they_are_answered)
{
    begin(7);
    pull(1, 7);
    pull_answered(1, 8);
    ring_fetched(&ring, expect_fetch(8, turns[8]));
    expect_nothing();
    ring_answer(&ring, 1, STEP, 7, turns[7]);
    ring_fetched(&ring, expect_fetch(7, turns[7]));
    expect_answer(RING_LEND, 1, 7);
    expect_answer(RING_LEND, 1, 8);
}

TEST(a_slot_that_is_read_or_fetched_into_is_not_fetched_into)
{
    begin(3);
    lend(1, 7);
    lend(1, 8);
    pull_answered(2, 9);
    const uint32_t slot = expect_fetch(9, turns[9]);
    pull_answered(3, 10);
    expect_nothing();
    ring_fetched(&ring, slot);
    expect_answer(RING_LEND, 2, 9);
    expect_nothing();
    ring_read(&ring, 2, STEP, 9);
    ck_assert_uint_eq(expect_fetch(10, turns[10]), slot);
}

TEST(the_slot_that_was_used_longest_ago_is_taken)
{
    begin(2);
    lend(1, 7);
    const uint32_t slot = lend(1, 8);
    ring_read(&ring, 1, STEP, 7);
    ring_read(&ring, 1, STEP, 8);
    pull_answered(1, 7); /* is used again */
    expect_answer(RING_LEND, 1, 7);
    ring_read(&ring, 1, STEP, 7);
    pull_answered(1, 9);
    ck_assert_uint_eq(expect_fetch(9, turns[9]), slot);
}

/* ---- pulls of which nothing is taken ---------------------------------------------------------------------------- */

TEST(a_pull_that_counts_for_nothing_is_void_and_takes_no_slot)
{
    begin(1);
    pull_answered(IDLE, 7);
    expect_answer(RING_VOID, IDLE, 7);
    ck_assert_uint_eq(ring.n_pulls, 0);
    lend(1, 8);
}

TEST(weights_that_their_owner_may_overwrite_are_neither_fetched_nor_lent)
{
    begin(3);
    pull_answered(1, 7);
    ring_fetched(&ring, expect_fetch(7, turns[7]));
    step.lowest = STEP + 1;
    expect_answer(RING_VOID, 1, 7);
    pull_answered(1, 8);
    expect_answer(RING_VOID, 1, 8);
    expect_nothing();
}

TEST(what_is_frozen_is_never_overwritten)
{
    begin(3);
    step.lowest = STEP + 100;
    pull_answered(1, FROZEN);
    const uint32_t slot = expect_fetch(FROZEN, turns[FROZEN]);
    ck_assert(!ring_is_fetching(&ring, STEP + 100));
    ring_fetched(&ring, slot);
    expect_answer(RING_LEND, 1, FROZEN);
}

TEST(a_version_that_is_fetched_keeps_its_step_from_being_covered)
{
    begin(3);
    pull_answered(1, 7);
    const uint32_t slot = expect_fetch(7, turns[7]);
    ck_assert(!ring_is_fetching(&ring, STEP - 1));
    ck_assert(ring_is_fetching(&ring, STEP));
    ck_assert(ring_is_fetching(&ring, STEP + 1));
    ring_fetched(&ring, slot);
    ck_assert(!ring_is_fetching(&ring, STEP + 1));
}

TEST(a_pull_whose_weights_come_no_more_is_forgotten)
{
    begin(3);
    pull(1, 7);
    pull_answered(1, 8);
    ring_drop(&ring, 1, STEP, 7);
    ck_assert_uint_eq(ring.n_pulls, 1);
    ring_fetched(&ring, expect_fetch(8, turns[8]));
    expect_answer(RING_LEND, 1, 8); /* which waits for it no more */
}

/* ---- workers that read no more ---------------------------------------------------------------------------------- */

TEST(a_worker_that_has_gone_holds_nothing_and_waits_for_nothing)
{
    begin(2);
    lend(1, 7);
    lend(1, 8);
    pull_answered(1, 9);
    pull_answered(2, 10);
    expect_nothing();
    ring_forget(&ring, 1);
    ck_assert_uint_eq(ring.n_pulls, 1);
    ring_fetched(&ring, expect_fetch(10, turns[10]));
    expect_answer(RING_LEND, 2, 10);
}

TEST(what_was_lent_in_an_earlier_step_is_not_held_in_the_next)
{
    begin(1);
    lend(1, 7);
    pull(1, 8); /* and an answer to this is still to come */
    pull_answered(2, 9);
    ring_begin(&ring, STEP); /* what is lent is of this step */
    expect_nothing();
    ring_begin(&ring, STEP + 1);
    expect_fetch(9, turns[9]);
    ring_answer(&ring, 1, STEP, 8, turns[8]);
}

TEST(reading_what_was_not_lent_changes_nothing)
{
    begin(1);
    lend(1, 7);
    ring_read(&ring, 2, STEP, 7);
    ring_read(&ring, 1, STEP + 1, 7);
    ring_read(&ring, 1, STEP, 8);
    pull_answered(2, 9);
    expect_nothing();
}

/* ---- waiting ---------------------------------------------------------------------------------------------------- */

TEST(a_worker_awaits_what_is_answered_and_what_it_may_have)
{
    begin(7);
    ck_assert(!ring_awaits(&ring, 1));
    pull(1, 7);
    ck_assert(!ring_awaits(&ring, 1)); /* for its relay, not for the ring */
    ring_answer(&ring, 1, STEP, 7, turns[7]);
    ck_assert(ring_awaits(&ring, 1));
    ck_assert(!ring_awaits(&ring, 2));
    ring_fetched(&ring, expect_fetch(7, turns[7]));
    expect_answer(RING_LEND, 1, 7);
    ck_assert(!ring_awaits(&ring, 1));
    lend(1, 8);
    pull_answered(1, 9);
    ck_assert(!ring_awaits(&ring, 1)); /* it has two */
}

/* ---- ahead ------------------------------------------------------------------------------------------------------ */

/* UINT32_MAX: none. */
static uint32_t fetched_ahead(uint32_t first, uint32_t second)
{
    struct ring_act act;

    begin(7);
    ring_pull(&ring, 1, STEP, first);
    ring_pull(&ring, 1, STEP, second);
    return ring_next(&ring, &step, &act) ? act.unit : UINT32_MAX;
}

TEST(one_unit_is_fetched_ahead_in_the_direction_of_the_pulls)
{
    ck_assert_uint_eq(fetched_ahead(7, 8), 9);
    expect_nothing();
    ck_assert_uint_eq(fetched_ahead(8, 7), 6);
    ck_assert_uint_eq(fetched_ahead(1, 0), UINT32_MAX); /* there is none below */
    ck_assert_uint_eq(fetched_ahead(KEPT - 2, KEPT - 1), UINT32_MAX);
}

/* Two of three slots are read, and what is in the third is waited for. */
TEST(what_is_fetched_ahead_takes_no_slot_that_somebody_waits_for)
{
    begin(3);
    lend(1, 7);
    lend(1, 8);
    pull_answered(1, 9);
    ring_fetched(&ring, expect_fetch(9, turns[9]));
    ring_pull(&ring, 1, STEP, 10); /* 11 would be next */
    expect_nothing();
}

TEST(nothing_is_fetched_ahead_that_its_owner_may_overwrite)
{
    begin(3);
    step.lowest = STEP + 1;
    ring_pull(&ring, 1, STEP, 7);
    ring_pull(&ring, 1, STEP, 8);
    expect_nothing();
}

/* ---- many workers ----------------------------------------------------------------------------------------------- */

enum { WORKERS = 4, UNITS = 9, MOST_AHEAD = 3 };

/* Of its pulls of units 0, 1, ... UNITS - 1, in this order. */
struct reader {
    uint32_t n_pulled, n_answered, n_lent, n_read, slots[UNITS];
};

static struct {
    bool filled, fetching;
    uint32_t unit, n_readers;
} held[RING_SLOTS]; /* what the slots have, by what was said of them */
static uint32_t fetching[RING_SLOTS], n_fetching;

static void take(const struct ring_act *act, struct reader *readers)
{
    struct reader *r = &readers[act->worker];

    ck_assert_int_ne(act->kind, RING_VOID);
    if (act->kind == RING_FETCH) {
        ck_assert(!held[act->slot].fetching && held[act->slot].n_readers == 0);
        held[act->slot].filled = held[act->slot].fetching = true;
        held[act->slot].unit = act->unit;
        fetching[n_fetching++] = act->slot;
        return;
    }
    ck_assert(held[act->slot].filled && !held[act->slot].fetching);
    ck_assert_uint_eq(held[act->slot].unit, act->unit);
    ck_assert_uint_eq(act->unit, r->n_lent);
    held[act->slot].n_readers++;
    r->slots[r->n_lent++] = act->slot;
    ck_assert_uint_le(r->n_lent - r->n_read, RING_LENT);
}

static void end_fetch(uint64_t *state)
{
    const uint32_t i = setting_below(state, n_fetching), slot = fetching[i];

    fetching[i] = fetching[--n_fetching];
    held[slot].fetching = false;
    ring_fetched(&ring, slot);
}

/* One thing that may happen next; what is drawn and cannot be does nothing. */
static void move(struct reader *readers, uint64_t *state)
{
    const uint32_t w = setting_below(state, WORKERS);
    struct reader *r = &readers[w];

    switch (setting_below(state, 4)) {
    case 0:
        if (r->n_pulled < UNITS && r->n_pulled - r->n_read < MOST_AHEAD)
            ring_pull(&ring, w, STEP, r->n_pulled++);
        break;
    case 1:
        if (r->n_answered < r->n_pulled) {
            ring_answer(&ring, w, STEP, r->n_answered, turns[r->n_answered]);
            r->n_answered++;
        }
        break;
    case 2:
        if (r->n_read < r->n_lent) {
            held[r->slots[r->n_read]].n_readers--;
            ring_read(&ring, w, STEP, r->n_read++);
        }
        break;
    default:
        if (n_fetching > 0)
            end_fetch(state);
        break;
    }
}

static bool have_read_all(const struct reader *readers)
{
    for (int w = 0; w < WORKERS; w++)
        if (readers[w].n_read < UNITS)
            return false;
    return true;
}

/* Two slots a worker, and one: in any order of events all get all units, and no slot is taken from who reads it. */
TEST_EACH(no_worker_waits_for_what_another_one_reads, 200)
{
    struct reader readers[WORKERS] = {0};
    uint64_t state = (uint64_t)_i + 1;
    struct ring_act act;

    begin(RING_LENT * WORKERS + 1);
    memset(held, 0, sizeof held);
    n_fetching = 0;
    for (int i = 0; i < 20000 && !have_read_all(readers); i++) {
        move(readers, &state);
        while (ring_next(&ring, &step, &act))
            take(&act, readers);
    }
    ck_assert(have_read_all(readers));
    ck_assert_uint_eq(ring.n_pulls, 0);
}
