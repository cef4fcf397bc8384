#include "device/worker/mailbox.h"

#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static struct mailbox box;
static atomic_uint n_woken;

static void on_out(void *context)
{
    ck_assert_ptr_eq(context, &n_woken);
    atomic_fetch_add(&n_woken, 1);
}

static void setup(void)
{
    mailbox_init(&box, on_out, &n_woken);
}

SUITE_FIXTURE(setup, NULL)

static struct message numbered(uint32_t i)
{
    return (struct message){.kind = MESSAGE_PULL, .pull = {.version = 1000 + i, .unit = i}};
}

static void check_number(const struct message *m, uint32_t i)
{
    ck_assert_int_eq(m->kind, MESSAGE_PULL);
    ck_assert_uint_eq(m->pull.unit, i);
    ck_assert_uint_eq(m->pull.version, 1000 + i);
}

static bool deliver(uint32_t i)
{
    const struct message m = numbered(i);

    return mailbox_deliver(&box, &m, NULL, 0);
}

static void post(uint32_t i)
{
    const struct message m = numbered(i);

    mailbox_post(&box, &m);
}

static void wait_for(uint32_t i)
{
    struct mail mail;

    mailbox_wait(&box, &mail);
    check_number(&mail.message, i);
    ck_assert_uint_eq(mail.n_fds, 0);
}

static void collect(uint32_t i)
{
    struct message m;

    ck_assert(mailbox_collect(&box, &m));
    check_number(&m, i);
}

/* More than fits at once, so that both rings go round. */
TEST(messages_keep_their_order_both_ways)
{
    struct message m;
    uint32_t given = 0, taken = 0;

    for (uint32_t round = 1; round <= MAILBOX_ENTRIES; round += 7) {
        for (uint32_t i = 0; i < round; i++, given++) {
            ck_assert(deliver(given));
            post(given);
        }
        for (; taken < given; taken++) {
            wait_for(taken);
            collect(taken);
        }
        ck_assert(!mailbox_collect(&box, &m));
    }
    ck_assert_uint_gt(given, 3 * MAILBOX_ENTRIES);
    ck_assert_uint_eq(atomic_load(&n_woken), given); /* the loop is woken for each, and for nothing that came in */
}

TEST(a_full_ring_refuses_delivery_and_keeps_what_it_has)
{
    for (uint32_t i = 0; i < MAILBOX_ENTRIES; i++)
        ck_assert(deliver(i));
    ck_assert(!deliver(999));
    post(7); /* the other direction has its own room */
    collect(7);
    wait_for(0);
    ck_assert(deliver(MAILBOX_ENTRIES));
    ck_assert(!deliver(999));
    for (uint32_t i = 1; i <= MAILBOX_ENTRIES; i++)
        wait_for(i);
}

static bool deliver_free(uint32_t slot)
{
    const struct message m = {.kind = MESSAGE_FREE, .free = {.name = {.visit = 3}, .slot = slot}};

    return mailbox_deliver(&box, &m, NULL, 0);
}

static void take_free(uint32_t slot)
{
    struct mail mail;

    ck_assert(mailbox_poll(&box, &mail));
    ck_assert_int_eq(mail.message.kind, MESSAGE_FREE);
    ck_assert_uint_eq(mail.message.free.slot, slot);
    ck_assert_uint_eq(mail.n_fds, 0);
}

/* As many as there can be slots, beside all else that there is room for. */
TEST(freed_slots_need_no_room_among_the_messages_and_keep_their_order)
{
    struct mail mail;

    for (uint32_t round = 0; round < 3; round++) {
        ck_assert(deliver_free(7));
        for (uint32_t i = 0; i < MAILBOX_ENTRIES; i++)
            ck_assert(deliver(i));
        ck_assert(!deliver(999));
        for (uint32_t slot = 1; slot <= MAILBOX_MAX_SLOTS; slot++)
            ck_assert(deliver_free(slot));
        ck_assert(!deliver_free(0));
        take_free(7);
        for (uint32_t i = 0; i < MAILBOX_ENTRIES; i++)
            wait_for(i);
        ck_assert(deliver(1000));
        for (uint32_t slot = 1; slot <= MAILBOX_MAX_SLOTS; slot++)
            take_free(slot);
        wait_for(1000);
        ck_assert(!mailbox_poll(&box, &mail));
    }
}

/* Another thread of this process, and whether the kernel says that it sleeps. */
struct sleeper {
    pthread_t thread;
    atomic_int tid;
    struct mail mail;
};

static bool sleeps(void *context)
{
    const struct sleeper *s = context;
    char path[64], state = 0;
    const int tid = atomic_load(&s->tid);

    if (!tid)
        return false;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", tid);
    FILE *file = fopen(path, "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%*d (%*[^)]) %c", &state), 1);
    fclose(file);
    return state == 'S';
}

static void start(struct sleeper *s, void *(*run)(void *))
{
    memset(s, 0, sizeof *s);
    ck_assert_int_eq(pthread_create(&s->thread, NULL, run, s), 0);
    ck_assert(processes_until(sleeps, s));
}

static void *post_one_more(void *arg)
{
    struct sleeper *s = arg;

    atomic_store(&s->tid, gettid());
    post(MAILBOX_ENTRIES);
    return NULL;
}

TEST(a_post_into_a_full_ring_waits_until_one_is_collected)
{
    struct sleeper s;
    struct message m;

    for (uint32_t i = 0; i < MAILBOX_ENTRIES; i++)
        post(i);
    start(&s, post_one_more);
    ck_assert_uint_eq(atomic_load(&n_woken), MAILBOX_ENTRIES);
    ck_assert(deliver(0)); /* wakes it, but makes no room there */
    wait_for(0);
    ck_assert(processes_until(sleeps, &s));
    ck_assert_uint_eq(atomic_load(&n_woken), MAILBOX_ENTRIES);
    collect(0);
    pthread_join(s.thread, NULL);
    ck_assert_uint_eq(atomic_load(&n_woken), MAILBOX_ENTRIES + 1);
    for (uint32_t i = 1; i <= MAILBOX_ENTRIES; i++)
        collect(i);
    ck_assert(!mailbox_collect(&box, &m));
}

static void *wait_for_one(void *arg)
{
    struct sleeper *s = arg;

    atomic_store(&s->tid, gettid());
    mailbox_wait(&box, &s->mail);
    return NULL;
}

TEST(waiting_ends_with_the_message_that_comes)
{
    struct sleeper s;

    start(&s, wait_for_one);
    ck_assert(deliver(42));
    pthread_join(s.thread, NULL);
    check_number(&s.mail.message, 42);
}

TEST(polling_takes_what_is_there_and_does_not_wait)
{
    struct mail mail;

    ck_assert(!mailbox_poll(&box, &mail));
    ck_assert(deliver(1));
    ck_assert(deliver(2));
    ck_assert(mailbox_poll(&box, &mail));
    check_number(&mail.message, 1);
    wait_for(2);
    ck_assert(!mailbox_poll(&box, &mail));
}

TEST(descriptors_travel_with_their_message)
{
    const struct message assign = {.kind = MESSAGE_ASSIGN, .assign = {.n_slots = 5}};
    int fds[2];
    struct mail mail;
    char byte = 0;

    ck_assert_int_eq(pipe(fds), 0);
    ck_assert(deliver(1));
    ck_assert(mailbox_deliver(&box, &assign, fds, 2));
    ck_assert(deliver(2));
    wait_for(1);
    mailbox_wait(&box, &mail);
    ck_assert_int_eq(mail.message.kind, MESSAGE_ASSIGN);
    ck_assert_uint_eq(mail.message.assign.n_slots, 5);
    ck_assert_uint_eq(mail.n_fds, 2);
    ck_assert_int_eq(write(mail.fds[1], "x", 1), 1); /* open still, and in this order */
    ck_assert_int_eq(read(mail.fds[0], &byte, 1), 1);
    ck_assert_int_eq(byte, 'x');
    close(mail.fds[0]);
    close(mail.fds[1]);
    wait_for(2); /* has none */
}

TEST_SIGNAL(more_descriptors_than_there_is_room_for_is_a_mistake, SIGABRT)
{
    const struct message m = numbered(0);
    const int fds[MAILBOX_FDS + 1] = {0};

    mailbox_deliver(&box, &m, fds, MAILBOX_FDS + 1);
}
