/* What ends a wait for the daemon's next message, and what it may not swallow. And memory while a run goes on: when it is
 * asked, and what becomes of the answers. */
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/daemon/memory.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static pid_t daemon_pid;

static void setup(void)
{
    processes_setup();
    daemon_pid = processes_daemon("linked", 0, NULL);
}

SUITE_FIXTURE_ONCE(setup, processes_remove)

/* Says once that the wait is to end, at the moment in which a message is there. */
struct wish {
    const struct client_link *link;
    unsigned n_asked;
};

static int ask_once(void *data, struct error *err)
{
    struct wish *wish = data;

    if (wish->link->n_mail == 0 || wish->n_asked++ > 0)
        return 0;
    return error_set(err, -EINTR, "enough");
}

TEST(a_wish_to_end_that_comes_with_a_message_ends_the_next_wait)
{
    static const struct message question = {.kind = MESSAGE_STATUS};
    struct client_link link;
    struct wish wish = {.link = &link};
    struct message m;
    struct error err = {""};

    driver_look(&link, "linked");
    link.watches[1] = (struct client_watch){.ask = ask_once, .data = &wish};
    client_link_send(&link, &question);
    ck_assert_int_eq(client_link_expect(&link, MESSAGE_STATUS_REPLY, &m, NULL, &err), 0);
    ck_assert_uint_eq(wish.n_asked, 1);
    client_link_send(&link, &question);
    ck_assert_int_eq(client_link_expect(&link, MESSAGE_STATUS_REPLY, &m, NULL, &err), -EINTR);
    ck_assert_str_eq(err.text, "enough");
    /* It ended that wait alone. */
    ck_assert_int_eq(client_link_expect(&link, MESSAGE_STATUS_REPLY, &m, NULL, &err), 0);
    client_link_free(&link);
}

TEST(a_daemon_that_is_gone_ends_every_wait)
{
    struct client_link link;
    struct message m;
    struct error err = {""};

    driver_look(&link, "linked");
    kill(daemon_pid, SIGKILL);
    ck_assert_int_eq(client_link_next(&link, &m, NULL, &err), -EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "the daemon is gone"));
    ck_assert_int_eq(client_link_next(&link, &m, NULL, &err), -EIO);
    client_link_free(&link);
}

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
