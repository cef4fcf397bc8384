/* Memory while a run goes on: when the daemon is asked, and what becomes of the answers. */
#include "client/daemon/memory.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdio.h>

SUITE_FIXTURE(processes_setup, processes_remove)

static struct client_link nobody; /* without a session: what is sent goes nowhere */

static struct message reply(uint32_t worker, uint64_t weights, uint64_t total, bool last)
{
    struct message m = {.kind = MESSAGE_MEMORY_REPLY, .memory_reply = {.worker = worker, .last = last}};

    snprintf(m.memory_reply.device, sizeof m.memory_reply.device, "device %u", worker);
    m.memory_reply.ledger.rows[LEDGER_WEIGHTS] = (struct ledger_row){weights, weights};
    m.memory_reply.ledger.total = (struct ledger_row){total, total};
    return m;
}

static void hear(struct client_memory *memory, struct message m)
{
    client_memory_hear(memory, &m);
}

TEST(the_host_and_the_device_that_has_most_are_told_once)
{
    struct client_memory memory = {0};
    const struct eps_memory *sides;

    client_memory_ask(&memory, &nobody, false);
    hear(&memory, reply(0, 7, 70, false));
    hear(&memory, reply(3, 1, 100, false));
    hear(&memory, reply(4, 2, 300, false));
    ck_assert_uint_eq(client_memory_take(&memory, &sides), 0); /* more is to come */
    hear(&memory, reply(5, 3, 200, true));
    ck_assert_uint_eq(client_memory_take(&memory, &sides), 2);
    ck_assert_uint_eq(sides[0].worker, 0);
    ck_assert_uint_eq(sides[0].current, 70);
    ck_assert_uint_eq(sides[0].n_rows, 1);
    ck_assert_str_eq(sides[0].rows[0].category, "weights");
    ck_assert_uint_eq(sides[0].rows[0].current, 7);
    ck_assert_uint_eq(sides[1].worker, 4);
    ck_assert_str_eq(sides[1].device, "device 4");
    ck_assert_uint_eq(sides[1].rows[0].current, 2);
    ck_assert_uint_eq(client_memory_take(&memory, &sides), 0);
}

TEST(it_is_asked_once_a_second_unless_it_has_to_be_at_once)
{
    struct client_memory memory = {0};
    const struct eps_memory *sides;

    client_memory_ask(&memory, &nobody, false);
    const uint64_t first = memory.asked_ns;
    client_memory_ask(&memory, &nobody, true);
    ck_assert_uint_eq(memory.asked_ns, first); /* an answer is under way */
    hear(&memory, reply(0, 1, 1, true));
    ck_assert_uint_eq(client_memory_take(&memory, &sides), 1); /* no worker has one yet */
    client_memory_ask(&memory, &nobody, false);
    ck_assert(!memory.asked);
    client_memory_ask(&memory, &nobody, true);
    ck_assert(memory.asked);
    hear(&memory, reply(0, 1, 1, true));
    memory.asked_ns -= UINT64_C(1000000000);
    client_memory_ask(&memory, &nobody, false);
    ck_assert(memory.asked);
}

TEST(an_answer_that_nobody_asked_for_is_passed_over)
{
    struct client_memory memory = {0};
    const struct eps_memory *sides;

    hear(&memory, reply(0, 1, 1, true));
    ck_assert_uint_eq(client_memory_take(&memory, &sides), 0);
}

/* The question that is on its way is the one whose answer is awaited. */
TEST(an_awaited_answer_is_reported_next_and_leaves_no_other)
{
    struct client_memory memory = {0};
    const struct eps_memory *sides;
    struct client_link link;
    struct message m;
    struct error err = {""};

    const pid_t daemon = processes_daemon("asked", 0, NULL);
    driver_look(&link, "asked");
    client_memory_ask(&memory, &link, false);
    ck_assert_int_eq(client_memory_await(&memory, &link, &err), 0);
    ck_assert_uint_eq(client_memory_take(&memory, &sides), 1);
    ck_assert_int_eq((int)sides[0].pid, daemon);
    client_link_send(&link, &(struct message){.kind = MESSAGE_STATUS});
    ck_assert_int_eq(client_link_next(&link, &m, NULL, &err), 0);
    ck_assert_int_eq(m.kind, MESSAGE_STATUS_REPLY);
    client_link_free(&link);
}
