/* What the relay shows of its units: two of one slice, two parts, folded in order. */
#include "eps/relay/relay.h"
#include "tests/kit/test.h"

#include <errno.h>

static const uint32_t visits[] = {0, 1}, n_slices[] = {1, 1}, owners[] = {7, 7};
static struct relay *relay;

static void feed(struct relay_event event)
{
    const struct relay_action *actions;

    event.worker = 7;
    ck_assert_int_ge(relay_feed(relay, &event, &actions), 0);
}

static void setup(void)
{
    const struct relay_config config = {.n_parts = 2, .n_slots = 2, .n_accumulators = 1, .deterministic = true};

    ck_assert_int_eq(relay_open(&relay, &config), 0);
    feed((struct relay_event){.kind = RELAY_ATTACHED});
}

static void teardown(void)
{
    relay_close(relay);
}

SUITE_FIXTURE(setup, teardown)

static void check(enum relay_at lower, uint64_t lower_version, enum relay_at upper, uint64_t upper_version)
{
    struct relay_view views[2], one;

    relay_look(relay, 0, 2, views);
    ck_assert_uint_eq(views[0].at, lower);
    ck_assert_uint_eq(views[0].version, lower_version);
    ck_assert_uint_eq(views[1].at, upper);
    ck_assert_uint_eq(views[1].version, upper_version);
    relay_look(relay, 1, 1, &one); /* a page that begins later says the same */
    ck_assert_uint_eq(one.at, upper);
    ck_assert_uint_eq(one.version, upper_version);
}

static void contribute(uint32_t visit, uint32_t part, uint32_t slot)
{
    feed((struct relay_event){.kind = RELAY_CONTRIBUTION, .name = {.visit = visit, .part = part}, .slot = slot});
}

TEST(a_unit_is_at_rest_in_an_inbox_folded_and_updated)
{
    check(RELAY_AT_REST, 0, RELAY_AT_REST, 0); /* no step yet: no units either */
    feed((struct relay_event){
        .kind = RELAY_OPEN, .visits = visits, .n_slices = n_slices, .n_visits = 2, .owners = owners, .n_owners = 2});
    for (uint32_t part = 0; part < 2; part++)
        feed((struct relay_event){.kind = RELAY_LOSS, .name.part = part, .ok = true});
    check(RELAY_AT_REST, 0, RELAY_AT_REST, 0);
    contribute(1, 1, 1); /* its turn is after part 0 */
    check(RELAY_AT_REST, 0, RELAY_AT_INBOX, 0);
    contribute(1, 0, 2);
    check(RELAY_AT_REST, 0, RELAY_AT_FOLD, 0);
    for (uint32_t i = 0; i < 2; i++)
        feed((struct relay_event){.kind = RELAY_FOLDED, .unit = 1, .ok = true});
    check(RELAY_AT_REST, 0, RELAY_AT_UPDATE, 0);
    feed((struct relay_event){.kind = RELAY_UPDATED, .unit = 1});
    check(RELAY_AT_REST, 0, RELAY_AT_REST, 1);
}

/* In fold order: the upper unit first, part by part. */
TEST(a_step_waits_for_the_worker_of_the_next_loss_or_contribution)
{
    static const uint32_t two[] = {7, 8};
    const struct relay_action *actions;
    struct relay_event of_other = {.kind = RELAY_ATTACHED, .worker = 8};

    ck_assert_uint_eq(relay_owes(relay), UINT32_MAX); /* no step */
    ck_assert_int_ge(relay_feed(relay, &of_other, &actions), 0);
    feed((struct relay_event){
        .kind = RELAY_OPEN, .visits = visits, .n_slices = n_slices, .n_visits = 2, .owners = two, .n_owners = 2});
    ck_assert_uint_eq(relay_owes(relay), 7);
    feed((struct relay_event){.kind = RELAY_LOSS, .name.part = 0, .ok = true});
    ck_assert_uint_eq(relay_owes(relay), 8);
    of_other = (struct relay_event){.kind = RELAY_LOSS, .worker = 8, .name.part = 1, .ok = true};
    ck_assert_int_ge(relay_feed(relay, &of_other, &actions), 0);
    ck_assert_uint_eq(relay_owes(relay), 7);
    contribute(0, 0, 1); /* not its turn: it stands there, and the other one is still to come */
    ck_assert_uint_eq(relay_owes(relay), 7);
    contribute(1, 0, 2);
    ck_assert_uint_eq(relay_owes(relay), UINT32_MAX); /* with the optimizer thread */
    feed((struct relay_event){.kind = RELAY_FOLDED, .unit = 1, .ok = true});
    ck_assert_uint_eq(relay_owes(relay), 8);
}

TEST(what_is_past_the_last_unit_is_at_rest)
{
    struct relay_view views[3] = {{9, RELAY_AT_FOLD}, {9, RELAY_AT_FOLD}, {9, RELAY_AT_FOLD}};

    relay_look(relay, 4000, 3, views);
    for (int i = 0; i < 3; i++) {
        ck_assert_uint_eq(views[i].at, RELAY_AT_REST);
        ck_assert_uint_eq(views[i].version, 0);
    }
}
