/* What ends a wait for the daemon's next message, and what it may not swallow. */
#include "proto/wire/files.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

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

/* For a message, or for a time. */
TEST_EACH(a_wish_to_end_that_comes_with_a_message_ends_the_next_wait, 2)
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
    ck_assert_int_eq(_i == 0 ? client_link_expect(&link, MESSAGE_STATUS_REPLY, &m, NULL, &err)
                             : client_link_pause(&link, 1, &err),
                     -EINTR);
    ck_assert_str_eq(err.text, "enough");
    /* It ended that wait alone. */
    ck_assert_int_eq(client_link_expect(&link, MESSAGE_STATUS_REPLY, &m, NULL, &err), 0);
    client_link_free(&link);
}

static void count_aside(void *data, const struct message *m)
{
    ck_assert_int_eq(m->kind, MESSAGE_STATUS_REPLY);
    ++*(unsigned *)data;
}

TEST(what_comes_aside_goes_to_who_hears_it_and_is_a_fault_where_nobody_does)
{
    struct client_link link;
    struct message m;
    struct error err = {""};
    unsigned n_heard = 0;

    driver_look(&link, "linked");
    for (int heard = 1; heard >= 0; heard--) {
        link.on_aside = heard ? count_aside : NULL;
        link.aside_data = &n_heard;
        client_link_send(&link, &(struct message){.kind = MESSAGE_STATUS});
        client_link_send(&link, &(struct message){.kind = MESSAGE_MEMORY});
        ck_assert_int_eq(client_link_expect(&link, MESSAGE_MEMORY_REPLY, &m, NULL, &err), heard ? 0 : -EPROTO);
        ck_assert_uint_eq(n_heard, 1);
    }
    ck_assert_str_eq(err.text, "the daemon sent STATUS_REPLY where MEMORY_REPLY was due");
    client_link_free(&link);
}

/* Read without a place for them, or never read. */
TEST_EACH(descriptors_that_nobody_takes_are_closed, 2)
{
    unsigned n_fds[3];
    struct client_link link;
    struct message m;
    struct error err = {""};

    for (int i = 0; i < COUNT(n_fds); i++) { /* the first time, more stays open */
        driver_attach(&link, "linked", ROLE_CLIENT);
        client_link_send(&link, &(struct message){.kind = MESSAGE_FILES});
        while (link.n_mail == 0)
            uv_run(&link.loop, UV_RUN_ONCE);
        ck_assert_uint_eq(link.mail[link.first_mail].n_fds, FILES_SENT);
        if (_i == 0)
            ck_assert_int_eq(client_link_next(&link, &m, NULL, &err), 0);
        client_link_free(&link);
        n_fds[i] = processes_count_fds(getpid());
    }
    ck_assert_uint_eq(n_fds[2], n_fds[1]);
}

/* Longer than the gap that is taken for a stop of the machine; half of it may pass in such gaps on a busy one. */
TEST(a_pause_is_time_spent_awake)
{
    struct client_link link;
    struct error err = {""};

    ck_assert_int_eq(client_link_init(&link, &err), 0);
    ck_assert_int_eq(client_link_pause(&link, 1000, &err), 0);
    ck_assert_uint_ge(link.awake_ms, 500);
    client_link_free(&link);
}

/* The daemon lives: it is not gone, and no worker is the cause. */
TEST(a_client_that_was_sent_away_says_so)
{
    struct client_link link;
    struct message m;
    struct error err = {""};

    driver_attach(&link, "linked", ROLE_CLIENT);
    client_link_send(&link, &(struct message){.kind = MESSAGE_ARRIVED});
    ck_assert_int_eq(client_link_next(&link, &m, NULL, &err), -EIO);
    ck_assert_str_eq(err.text,
                     "the daemon has ended the session of this client: a message that its role does not send");
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

static int kill_it(void *data, struct error *err)
{
    (void)err;
    kill(*(const pid_t *)data, SIGKILL);
    return 0;
}

/* Its listener may outlive its sessions for a moment: who knocks then is to wait for the next daemon. */
TEST(a_daemon_that_ends_before_the_session_is_open_is_none)
{
    struct client_link link;
    struct error err = {""};
    pid_t ending = processes_daemon("ending", 0, NULL);
    char directory[PATH_MAX];

    ck_assert_int_eq(kill(ending, SIGSTOP), 0);
    ck_assert_int_eq(client_link_init(&link, &err) | session_directory(directory, sizeof directory, "ending", &err), 0);
    link.watches[1] = (struct client_watch){.ask = kill_it, .data = &ending};
    ck_assert_msg(client_link_open(&link, directory, ROLE_VIEWER, &err) == -ECONNREFUSED, "%s", err.text);
    client_link_free(&link);
}
