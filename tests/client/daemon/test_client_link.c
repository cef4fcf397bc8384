/* What ends a wait for the daemon's next message, and what it may not swallow. */
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

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
