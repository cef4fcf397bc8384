/* The worker's link over its mailbox. The test plays the daemon: what it has to say stands in the ring before the call
 * that waits for it, so that no second thread is needed; what a call has taken in is seen by what is left there. */
#include "device/worker/link.h"

#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { N_SLOTS = 2, SLOT_FLOATS = 16, STEP = 7 };

static struct mailbox box;
static struct model model;
static float weights_base[1 << 16], inbox_base[(1 + N_SLOTS) * SLOT_FLOATS];
static const struct segment weights = {.base = weights_base, .bytes = sizeof weights_base},
                            inbox = {.base = inbox_base, .bytes = sizeof inbox_base};
static struct link link_;

static void on_out(void *context)
{
    (void)context;
}

static void setup(void)
{
    struct model_config config = store_fixture_small;
    struct error err = {""};

    config.norm_epsilon = 1e-5f;
    config.initializer_range = 0.02f;
    ck_assert_msg(model_init(&model, &config, &err) == 0, "%s", err.text);
    ck_assert_uint_ge(model.n_units, 3);
    ck_assert_uint_le(model.segment_n + model.replay_n, sizeof weights_base / sizeof *weights_base);
    mailbox_init(&box, on_out, NULL);
    link_ = (struct link){.box = &box,
                          .model = &model,
                          .weights = &weights,
                          .inbox = &inbox,
                          .slot_bytes = SLOT_FLOATS * sizeof(float),
                          .n_slots = N_SLOTS};
    link_begin(&link_, STEP);
}

static void tear_down(void)
{
    model_free(&model);
}

SUITE_TIMEOUT(10)
static const struct preference_rewards rewards = {0.5, -0.25, 1, -7, -9};

SUITE_FIXTURE(setup, tear_down)

/* The daemon's side. */
static void say(struct message m)
{
    ck_assert(mailbox_deliver(&box, &m, NULL, 0));
}

static void say_weights_at(uint64_t version, uint32_t unit, uint64_t at)
{
    say((struct message){.kind = MESSAGE_WEIGHTS,
                         .weights = {.version = version, .unit = unit, .at = at, .frozen_at = at}});
}

static void lend(uint64_t version, uint32_t unit)
{
    say((struct message){.kind = MESSAGE_WEIGHTS, .weights = {.version = version, .unit = unit, .lent = true}});
}

static void say_weights(uint64_t version, uint32_t unit)
{
    say_weights_at(version, unit, model.units[unit].offset * sizeof(float));
}

static void say_free(uint32_t slot)
{
    say((struct message){.kind = MESSAGE_FREE, .free = {.slot = slot}});
}

static void say_grant_of(uint64_t step, uint32_t attempt, uint32_t visit, uint32_t part, uint32_t slice)
{
    const struct contribution_name name = {
        .step = step, .visit = visit, .part = part, .slice = slice, .attempt = attempt};

    say((struct message){.kind = MESSAGE_GRANT, .grant = {.name = name}});
}

static void say_grant(uint32_t visit, uint32_t part, uint32_t slice)
{
    say_grant_of(link_.step, link_.attempts[part], visit, part, slice);
}

static struct message heard(enum message_kind kind)
{
    struct message m = {0};

    ck_assert(mailbox_collect(&box, &m));
    ck_assert_str_eq(message_name(m.kind), message_name(kind));
    return m;
}

static void check_silence(void)
{
    struct message m;

    ck_assert(!mailbox_collect(&box, &m));
}

static size_t unread(void)
{
    return box.in.n + box.freed.n;
}

/* The worker's side. */
static void pull(uint64_t version, uint32_t unit)
{
    ck_assert_int_eq(link_session.pull(&link_, version, unit), 0);
}

static bool lent; /* what wait_weights gave last */

static const void *wait_weights(void)
{
    struct device_link_weights at;

    ck_assert_int_eq(link_session.wait_weights(&link_, &at), 0);
    lent = at.lent;
    ck_assert_ptr_eq(at.trained, at.frozen);
    return at.trained;
}

static void check_weights_of(uint32_t unit)
{
    ck_assert_ptr_eq(wait_weights(), weights_base + model.units[unit].offset);
}

static const float *last_slot;

/* Waits for a slot for this slice; returns its number. */
static uint32_t slot_for(uint32_t visit, uint32_t part, uint32_t slice)
{
    void *slot = NULL;

    ck_assert_int_eq(link_session.take_slot(&link_, visit, part, slice, true, &slot), 0);
    last_slot = slot;
    ck_assert_int_eq((last_slot - inbox_base) % SLOT_FLOATS, 0);
    return (uint32_t)((last_slot - inbox_base) / SLOT_FLOATS);
}

static const struct device_link_slice slot_slice = {.n = SLOT_FLOATS};

/* Of the slot that was taken last. */
static void contribute(uint32_t visit, uint32_t part, uint32_t slice)
{
    ck_assert_int_eq(link_session.contribute(&link_, visit, part, slice, last_slot, &slot_slice), 0);
}

static void fill_ordinary_slots(void)
{
    for (uint32_t slice = 0; slice < N_SLOTS; slice++) {
        ck_assert_uint_eq(slot_for(5, 0, slice), 1 + slice);
        contribute(5, 0, slice);
        heard(MESSAGE_CONTRIBUTION);
    }
}

/* The digest of n numbers in a slot, of a part with this loss: as its owner, or its auditor, sends it. */
static uint64_t digest_of(bool audits, double sum, const float *numbers, uint64_t n)
{
    const struct device_link *way = audits ? &link_audit : &link_session;
    const struct preference_rewards none = {0};
    void *slot = NULL;

    link_begin(&link_, STEP);
    link_.audited = audits ? 0 : 1 + 2;
    ck_assert_int_eq(way->loss(&link_, 2, sum, &none, true), 0);
    if (!audits)
        heard(MESSAGE_LOSS);
    ck_assert_int_eq(way->take_slot(&link_, 5, 2, 1, true, &slot), 0);
    memcpy(slot, numbers, n * sizeof *numbers);
    ck_assert_int_eq(way->contribute(&link_, 5, 2, 1, slot, &(struct device_link_slice){.n = n}), 0);
    ck_assert_int_eq(way->contributed(&link_, 5, 2), 0);
    const struct message m = heard(audits ? MESSAGE_DIGEST : MESSAGE_CONTRIBUTION);
    check_silence();
    if (!audits)
        return m.contribution.digest;
    ck_assert(m.digest.step == STEP && m.digest.visit == 5 && m.digest.part == 2 && m.digest.slice == 1);
    return m.digest.digest;
}

TEST(an_audit_sends_the_digest_of_a_contribution_and_keeps_no_slot)
{
    float numbers[SLOT_FLOATS];

    for (size_t i = 0; i < SLOT_FLOATS; i++)
        numbers[i] = (float)i;
    link_.grad = NUMBER_FP32;
    const uint64_t digest = digest_of(true, 7, numbers, SLOT_FLOATS);
    for (int i = 0; i <= N_SLOTS; i++) /* more than there are slots, none of which is folded */
        ck_assert(digest_of(true, 7, numbers, SLOT_FLOATS) == digest);
    ck_assert(digest_of(false, 7, numbers, SLOT_FLOATS) == digest);
    say_free(1);
    ck_assert(digest_of(true, 8, numbers, SLOT_FLOATS) != digest);
    for (size_t i = 0; i < SLOT_FLOATS; i++) { /* any number, by its lowest bit */
        float other[SLOT_FLOATS];
        memcpy(other, numbers, sizeof other);
        other[i] = nextafterf(other[i], INFINITY);
        ck_assert(digest_of(true, 7, other, SLOT_FLOATS) != digest);
    }
}

TEST(pulls_are_handed_over_in_their_order_however_they_are_answered)
{
    static const uint32_t units[] = {0, 2, 1};

    for (int i = 0; i < 3; i++)
        pull(STEP, units[i]);
    for (int i = 0; i < 3; i++) {
        const struct message m = heard(MESSAGE_PULL);
        ck_assert_uint_eq(m.pull.version, STEP);
        ck_assert_uint_eq(m.pull.unit, units[i]);
    }
    say_weights(STEP, 1);
    say_weights(STEP, 2);
    say_weights(STEP, 0);
    check_weights_of(0);
    ck_assert_uint_eq(unread(), 0); /* it waited for the last of them */
    check_weights_of(2);
    pull(STEP, 0); /* there is room for one again: behind the one that waits */
    say_weights(STEP, 0);
    check_weights_of(1);
    check_weights_of(0);
}

TEST(weights_of_another_version_or_unit_answer_no_pull)
{
    pull(STEP, 1);
    say_weights(STEP - 1, 1);
    say_weights(STEP, 2);
    say_weights(STEP, 1);
    check_weights_of(1);
    ck_assert_uint_eq(unread(), 0);
}

static void say_void(uint64_t version, uint32_t unit)
{
    say((struct message){.kind = MESSAGE_VOID, .voided = {.version = version, .unit = unit}});
}

TEST(a_pull_that_is_void_ends_the_share_and_one_of_an_earlier_share_does_not)
{
    struct device_link_weights at;

    pull(STEP, 1);
    say_void(STEP - 1, 1);
    say_void(STEP, 2);
    ck_assert_int_eq(link_session.ended(&link_), 0);
    say_void(STEP, 1);
    ck_assert_int_eq(link_session.wait_weights(&link_, &at), -ESTALE);
    link_end(&link_);
    link_begin(&link_, STEP + 1);
    ck_assert_int_eq(link_session.ended(&link_), 0);
}

/* The daemon could not tell its pulls from those of a step. */
TEST(an_evaluation_pulls_the_weights_of_no_step)
{
    link_begin(&link_, MESSAGE_NO_STEP);
    pull(0, 1);
    ck_assert_uint_eq(heard(MESSAGE_PULL).pull.version, MESSAGE_NO_STEP);
    say_weights(MESSAGE_NO_STEP, 1);
    check_weights_of(1);
}

TEST(weights_are_where_the_daemon_says)
{
    const uint64_t last = sizeof weights_base - model.units[0].n * sizeof(float), at = last / 64 * 64;

    pull(STEP, 0);
    pull(STEP, 1);
    say_weights_at(STEP, 1, 64);
    say_weights_at(STEP, 0, at);
    ck_assert_ptr_eq(wait_weights(), (char *)weights_base + at);
    ck_assert_ptr_eq(wait_weights(), (char *)weights_base + 64);
    ck_assert(!lent);
}

TEST_EACH(a_place_beyond_the_weights_is_refused, 2)
{
    const uint64_t beyond = sizeof weights_base - model.units[1].n * sizeof(float) + 1;
    struct device_link_weights at = {0};

    pull(STEP, 1);
    say_weights_at(STEP, 1, _i ? UINT64_MAX / 64 * 64 : (beyond + 63) / 64 * 64);
    ck_assert_int_eq(link_session.wait_weights(&link_, &at), -EPROTO);
    ck_assert_holds(link_.error.text, "the daemon named a place of ", "beyond the weights' memory");
    ck_assert_ptr_null(at.trained);
}

static void expect_read(uint64_t version, uint32_t unit)
{
    const struct message m = heard(MESSAGE_READ);

    ck_assert_uint_eq(m.read.version, version);
    ck_assert_uint_eq(m.read.unit, unit);
}

/* What is lent is given back once: when the next is waited for, or the step ends. */
TEST(weights_that_were_lent_are_given_back)
{
    for (uint32_t u = 0; u < 3; u++) {
        pull(STEP, u);
        heard(MESSAGE_PULL);
    }
    lend(STEP, 0);
    say_weights(STEP, 1);
    wait_weights();
    ck_assert(lent);
    check_silence();
    wait_weights();
    ck_assert(!lent);
    expect_read(STEP, 0);
    lend(STEP, 2);
    wait_weights();
    check_silence();
    link_end(&link_);
    expect_read(STEP, 2);
    link_end(&link_);
    check_silence();
}

/* A share was replaced: nobody waits for what it pulled, whether it has come or not. */
TEST(weights_that_nobody_waits_for_any_more_are_given_back)
{
    pull(STEP, 0);
    pull(STEP, 1);
    heard(MESSAGE_PULL);
    heard(MESSAGE_PULL);
    lend(STEP, 0);
    ck_assert_int_eq(link_session.ended(&link_), 0);
    link_end(&link_);
    expect_read(STEP, 0);
    link_begin(&link_, STEP + 1);
    lend(STEP, 1);
    ck_assert_int_eq(link_session.ended(&link_), 0);
    expect_read(STEP, 1);
    check_silence();
}

TEST(the_same_unit_pulled_twice_is_answered_twice)
{
    pull(STEP, 0);
    pull(STEP, 1);
    pull(STEP, 1);
    say_weights(STEP, 1);
    say_weights(STEP, 1); /* the first one stands answered, not taken */
    say_weights(STEP, 0);
    check_weights_of(0);
    check_weights_of(1);
    check_weights_of(1);
    ck_assert_uint_eq(unread(), 0);
}

TEST(a_full_inbox_waits_for_a_slot_and_takes_the_one_that_is_freed)
{
    fill_ordinary_slots();
    say_free(2);
    ck_assert_uint_eq(slot_for(5, 0, 2), 2);
    ck_assert_uint_eq(unread(), 0);
    contribute(5, 0, 2);
    say_free(1);
    say_free(2);
    ck_assert_uint_eq(slot_for(5, 0, 3), 1);
    ck_assert_uint_eq(unread(), 1); /* no longer than it must */
}

TEST(the_reserved_slot_is_for_the_slice_that_it_is_granted_to)
{
    fill_ordinary_slots();
    say_grant(5, 1, 1);                 /* another slice, */
    say_grant(5, 0, 2);                 /* another part, */
    say_grant(6, 1, 2);                 /* another visit, */
    say_grant_of(STEP - 1, 0, 5, 1, 2); /* another step, */
    say_grant_of(STEP, 9, 5, 1, 2);     /* another attempt */
    say_grant(5, 1, 2);
    ck_assert_uint_eq(slot_for(5, 1, 2), 0);
    ck_assert_uint_eq(unread(), 0);
    contribute(5, 1, 2);
    ck_assert_uint_eq(heard(MESSAGE_CONTRIBUTION).contribution.slot, 0);

    say_free(0); /* free, but granted to nobody who asks */
    say_free(1);
    ck_assert_uint_eq(slot_for(5, 1, 3), 1);
    ck_assert_uint_eq(unread(), 0);
}

/* A part that is redone begins with what its first worker contributed. No ordinary slot comes free before the grant is
 * used, as the inbox holds what comes after it. */
TEST(what_comes_before_a_grant_is_folded_and_is_not_sent)
{
    static const uint32_t before[][3] = {{6, 1, 3}, {5, 0, 3}, {5, 1, 1}}; /* visit, part, slice */

    fill_ordinary_slots();
    say_grant(5, 1, 2);
    for (size_t i = 0; i < sizeof before / sizeof *before; i++) {
        ck_assert_uint_eq(slot_for(before[i][0], before[i][1], before[i][2]), 0);
        contribute(before[i][0], before[i][1], before[i][2]);
        check_silence();
    }
    ck_assert_uint_eq(slot_for(5, 1, 2), 0);
    contribute(5, 1, 2);
    ck_assert_uint_eq(heard(MESSAGE_CONTRIBUTION).contribution.slot, 0);
    say_free(1);
    ck_assert_uint_eq(slot_for(6, 1, 3), 1); /* in an ordinary slot it is sent: the daemon drops it */
    contribute(6, 1, 3);
    ck_assert_uint_eq(heard(MESSAGE_CONTRIBUTION).contribution.slot, 1);
}

/* Those of later parts may wait for others to be folded, which nobody can promise. */
TEST(with_row_groups_the_reserved_slot_is_for_all_parts_up_to_the_grant_s)
{
    static const uint32_t names[][3] = {{6, 1, 3}, {5, 0, 3}, {5, 1, 2}, {4, 1, 0}}; /* visit, part, slice */
    void *slot;

    link_.groups = true;
    fill_ordinary_slots();
    say_grant_of(STEP - 1, 0, 0, 5, 0); /* another step */
    say_grant(0, 1, 0);                 /* the last name of part 1 */
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        ck_assert_uint_eq(slot_for(names[i][0], names[i][1], names[i][2]), 0);
        contribute(names[i][0], names[i][1], names[i][2]);
        ck_assert_uint_eq(heard(MESSAGE_CONTRIBUTION).contribution.slot, 0);
        say_free(0);
    }
    ck_assert_int_eq(link_session.take_slot(&link_, 6, 2, 0, false, &slot), 0);
    ck_assert_ptr_null(slot);
    say_free(1);
    ck_assert_uint_eq(slot_for(6, 2, 0), 1);
}

/* Each is another; one is there again when the daemon has freed it. */
TEST(several_slots_are_taken_before_the_first_is_contributed)
{
    const float *first;
    void *slot;

    ck_assert_uint_eq(slot_for(5, 0, 0), 1);
    first = last_slot;
    ck_assert_uint_eq(slot_for(5, 0, 1), 2);
    ck_assert_int_eq(link_session.take_slot(&link_, 5, 0, 2, false, &slot), 0);
    ck_assert_ptr_null(slot);
    ck_assert_int_eq(link_session.contribute(&link_, 5, 0, 0, first, &slot_slice), 0);
    ck_assert_uint_eq(heard(MESSAGE_CONTRIBUTION).contribution.slot, 1);
    contribute(5, 0, 1);
    ck_assert_uint_eq(heard(MESSAGE_CONTRIBUTION).contribution.slot, 2);
    say_free(1); /* taken in without waiting for it */
    ck_assert_int_eq(link_session.take_slot(&link_, 5, 0, 2, false, &slot), 0);
    ck_assert_ptr_eq(slot, first);
    ck_assert_uint_eq(unread(), 0);
}

/* The sum is the step's, which has the slice's bytes where they were made; the link adds none of its own. */
TEST(a_contribution_carries_the_sum_that_comes_with_it)
{
    const struct block_sum sum = {1, 2};
    const struct device_link_slice slice = {.n = SLOT_FLOATS, .sum = &sum};

    slot_for(5, 0, 0);
    ck_assert_int_eq(link_session.contribute(&link_, 5, 0, 0, last_slot, &slice), 0);
    ck_assert(block_sum_equal(heard(MESSAGE_CONTRIBUTION).contribution.sum, sum));
    slot_for(5, 0, 1);
    contribute(5, 0, 1);
    ck_assert(block_sum_equal(heard(MESSAGE_CONTRIBUTION).contribution.sum, (struct block_sum){0}));
}

TEST(an_ordinary_slot_is_taken_before_a_granted_one)
{
    fill_ordinary_slots();
    say_grant(6, 0, 0);
    say_free(2);
    link_.takes_turns = true; /* takes both in */
    say_free(1);
    ck_assert_int_eq(link_session.contributed(&link_, 5, 0), 0);
    ck_assert(link_.granted);
    ck_assert_uint_eq(slot_for(6, 0, 0), 1);
}

TEST(a_grant_ends_with_its_step)
{
    fill_ordinary_slots();
    say_grant(5, 0, 2);
    say_free(1);
    ck_assert_uint_eq(slot_for(5, 0, 9), 1); /* takes the grant in */
    contribute(5, 0, 9);
    link_begin(&link_, STEP + 1);
    say_free(2);
    ck_assert_uint_eq(slot_for(5, 0, 2), 2);
    ck_assert_uint_eq(unread(), 0);
}

/* Turns: all slots, the reserved one too. */
TEST(contributed_waits_until_all_is_folded_when_it_takes_turns)
{
    link_.takes_turns = true;
    ck_assert_int_eq(link_session.contributed(&link_, 5, 0), 0); /* nothing to wait for */
    fill_ordinary_slots();
    say_grant(5, 0, 2);
    ck_assert_uint_eq(slot_for(5, 0, 2), 0);
    contribute(5, 0, 2);
    say_free(2);
    say_free(1);
    say_weights(STEP, 0);
    say_free(0);
    ck_assert_int_eq(link_session.contributed(&link_, 5, 0), 0);
    ck_assert_uint_eq(unread(), 0);
    for (uint32_t k = 0; k <= N_SLOTS; k++)
        ck_assert_int_eq(link_.slots[k], LINK_SLOT_FREE);
}

TEST(contributed_goes_on_at_once_when_it_takes_no_turns)
{
    fill_ordinary_slots();
    say_free(1);
    ck_assert_int_eq(link_session.contributed(&link_, 5, 0), 0);
    ck_assert_uint_eq(unread(), 1);
}

TEST_EACH(release_cancels_every_wait_and_all_that_follows, 4)
{
    struct device_link_weights at;
    void *slot;

    fill_ordinary_slots();
    pull(STEP, 0);
    link_.takes_turns = true;
    say((struct message){.kind = MESSAGE_RELEASE});
    switch (_i) {
    case 0:
        ck_assert_int_eq(link_session.wait_weights(&link_, &at), -ECANCELED);
        break;
    case 1:
    case 2:
        ck_assert_int_eq(link_session.take_slot(&link_, 5, 0, 2, _i == 1, &slot), -ECANCELED);
        break;
    default:
        ck_assert_int_eq(link_session.contributed(&link_, 5, 0), -ECANCELED);
    }
    ck_assert_uint_eq(unread(), 0);
    ck_assert_int_eq(link_session.pull(&link_, STEP, 1), -ECANCELED);
    ck_assert_int_eq(link_session.loss(&link_, 0, 1.0, &rewards, true), -ECANCELED);
    ck_assert_int_eq(link_session.contribute(&link_, 5, 0, 2, inbox_base, &slot_slice), -ECANCELED);
    link_.takes_turns = false;
    ck_assert_int_eq(link_session.contributed(&link_, 5, 0), -ECANCELED);
}

/* It takes in whatever has come, without waiting for more. */
TEST(whether_the_job_has_ended_is_seen_without_waiting)
{
    ck_assert_int_eq(link_session.ended(&link_), 0);
    pull(STEP, 1);
    say_free(1);
    say_weights(STEP, 1);
    ck_assert_int_eq(link_session.ended(&link_), 0);
    ck_assert_uint_eq(unread(), 0);
    check_weights_of(1);
    say((struct message){.kind = MESSAGE_RELEASE});
    ck_assert_int_eq(link_session.ended(&link_), -ECANCELED);
    ck_assert_int_eq(link_session.ended(&link_), -ECANCELED);
}

TEST(a_share_that_comes_early_is_kept)
{
    const struct message share = {.kind = MESSAGE_SHARE,
                                  .share = {.step = STEP + 1,
                                            .buffer = 1,
                                            .n_valid = 99,
                                            .n_tokens = 7,
                                            .n = 1,
                                            .parts = {{.part = 3, .attempt = 4}}}};

    fill_ordinary_slots();
    link_.takes_turns = true;
    say_free(1);
    say(share);
    say((struct message){.kind = MESSAGE_STATUS}); /* no business of a worker's: it is not what comes next */
    say_free(2);
    ck_assert_int_eq(link_session.contributed(&link_, 5, 0), 0);
    link_begin(&link_, STEP + 1);
    ck_assert(link_.has_next);
    ck_assert_mem_eq(&link_.next.message, &share, sizeof share);
    ck_assert_uint_eq(link_.next.n_fds, 0);
}

/* A worker was lost: the share of this step, or of the one before, has more parts. What is in slots already stays
 * there, and is not waited for; a slot that was not contributed is free again, and a grant of the step stands. */
TEST_EACH(a_share_of_a_step_under_way_replaces_it, 2)
{
    const struct message share = {
        .kind = MESSAGE_SHARE,
        .share = {.step = STEP - (unsigned)_i, .n_valid = 99, .n_tokens = 7, .n = 1, .parts = {{.part = 3}}}};
    struct device_link_weights at;
    void *slot;

    ck_assert_uint_eq(slot_for(5, 0, 0), 1);
    contribute(5, 0, 0);
    heard(MESSAGE_CONTRIBUTION);
    ck_assert_uint_eq(slot_for(5, 0, 1), 2);
    pull(STEP, 0);
    heard(MESSAGE_PULL);
    say(share);
    say_grant_of(share.share.step, 0, 5, 3, 0);
    ck_assert_int_eq(link_session.wait_weights(&link_, &at), -ESTALE);
    ck_assert_int_eq(link_session.take_slot(&link_, 5, 0, 2, true, &slot), -ESTALE);
    ck_assert_int_eq(link_session.pull(&link_, STEP, 1), -ESTALE);
    ck_assert_int_eq(link_session.ended(&link_), -ESTALE);
    ck_assert(link_.has_next);
    ck_assert_mem_eq(&link_.next.message, &share, sizeof share);
    link_.takes_turns = true;
    link_end(&link_);
    link_begin(&link_, share.share.step);
    link_.attempts[3] = 0;
    ck_assert_int_eq(link_session.contributed(&link_, 5, 3), 0); /* slot 1 is of before */
    ck_assert_uint_eq(slot_for(5, 3, 9), 2);
    ck_assert_uint_eq(slot_for(5, 3, 0), 0); /* granted */
}

TEST(losses_and_contributions_carry_step_and_attempt)
{
    link_.attempts[0] = 1;
    link_.attempts[3] = 6;
    link_begin(&link_, STEP + 2);
    ck_assert_int_eq(link_session.loss(&link_, 3, 2.5, &rewards, true), 0);
    ck_assert_int_eq(link_session.loss(&link_, 0, 2.5, &rewards, false), 0);
    struct message m = heard(MESSAGE_LOSS);
    ck_assert_uint_eq(m.loss.step, STEP + 2);
    ck_assert_uint_eq(m.loss.part, 3);
    ck_assert_uint_eq(m.loss.attempt, 6);
    ck_assert(m.loss.finite && m.loss.sum == 2.5);
    ck_assert_mem_eq(&m.loss.rewards, &rewards, sizeof rewards);
    m = heard(MESSAGE_LOSS);
    ck_assert_uint_eq(m.loss.part, 0);
    ck_assert_uint_eq(m.loss.attempt, 1);
    ck_assert(!m.loss.finite && m.loss.sum == 0 && m.loss.rewards.chosen == 0);

    ck_assert_uint_eq(slot_for(4, 3, 2), 1);
    check_silence(); /* a slot is not asked for */
    contribute(4, 3, 2);
    m = heard(MESSAGE_CONTRIBUTION);
    ck_assert_uint_eq(m.contribution.name.step, STEP + 2);
    ck_assert_uint_eq(m.contribution.name.visit, 4);
    ck_assert_uint_eq(m.contribution.name.part, 3);
    ck_assert_uint_eq(m.contribution.name.slice, 2);
    ck_assert_uint_eq(m.contribution.name.attempt, 6);
    ck_assert_uint_eq(m.contribution.slot, 1);
    check_silence();
}
