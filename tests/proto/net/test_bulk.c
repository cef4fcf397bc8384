/* Ranges over a connection of their own: what arrives is what was sent, in every cipher; a peer that does not consume,
 * or that sends something else, costs nobody but itself. */
#include "proto/net/bulk.h"
#include "proto/wire/wire.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST = 6 << 20 };

struct end {
    struct bulk bulk;
    struct end *peer; /* is granted what this one consumes; NULL: nobody is */
    unsigned n_received, n_consumed, n_sent, n_ended, n_closed;
    const char *fault;
};

static uv_loop_t loop;
static struct end sender, receiver;
static uint8_t *from, *to; /* (MOST) */

static void on_received(struct bulk *b)
{
    ((struct end *)b->data)->n_received++;
}

static void on_consumed(struct bulk *b, unsigned n)
{
    struct end *end = b->data;

    end->n_consumed += n;
    if (end->peer)
        ck_assert(bulk_grant(&end->peer->bulk, n));
}

static void on_sent(struct bulk *b)
{
    ((struct end *)b->data)->n_sent++;
}

static void on_end(struct bulk *b, const char *fault)
{
    struct end *end = b->data;

    end->n_ended++;
    end->fault = fault;
}

static void on_closed(struct bulk *b)
{
    ((struct end *)b->data)->n_closed++;
}

static const struct bulk_events events = {on_received, on_consumed, on_sent, on_end, on_closed};

static void open_end(struct end *end, int fd, unsigned flags)
{
    const struct handshake h = {.flags = flags, .send = {1}, .receive = {1}};

    *end = (struct end){.n_ended = 0};
    ck_assert_int_eq(bulk_open(&end->bulk, &loop, fd, &h, &events, end), 0);
}

static void open_pair(unsigned flags)
{
    int ends[2];

    stage_connect_pair(ends);
    open_end(&sender, ends[0], flags);
    open_end(&receiver, ends[1], flags);
    receiver.peer = &sender;
}

static void run_until(const unsigned *count, unsigned n)
{
    while (*count < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static void close_end(struct end *end)
{
    bulk_close(&end->bulk);
    run_until(&end->n_closed, 1);
}

static void begin(void)
{
    ck_assert_int_ge(sodium_init(), 0);
    uv_loop_init(&loop);
    from = malloc(MOST);
    to = calloc(1, MOST);
    for (size_t i = 0; i < MOST; i++)
        from[i] = (uint8_t)(i * 2654435761u >> 13);
}

static void end(void)
{
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    free(from);
    free(to);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(begin, end)

/* Not every processor has instructions for the last. */
static const unsigned flags[] = {0, HANDSHAKE_PLAIN, HANDSHAKE_AES};

/* Around the size of a chunk, and more than the window at once; expected before and after they come. */
static const size_t sizes[] = {1, BULK_CHUNK - 1, BULK_CHUNK, BULK_CHUNK + 1, 100, 1234567, 3 * BULK_CHUNK, 7, 1000000};

TEST_EACH(ranges_arrive_in_order_and_whole, COUNT(flags) - !cipher_has_aes())
{
    size_t at = 0;

    open_pair(flags[_i]);
    for (int round = 0; round < 8; round++) {
        at = 0;
        memset(to, 0, MOST);
        for (int i = 0; i < COUNT(sizes); at += sizes[i++]) {
            ck_assert_int_eq(bulk_send(&sender.bulk, from + at, sizes[i]), 0);
            if (round % 2)
                uv_run(&loop, UV_RUN_NOWAIT);
            ck_assert_int_eq(bulk_expect(&receiver.bulk, to + at, sizes[i]), 0);
        }
        run_until(&receiver.n_received, (unsigned)((round + 1) * COUNT(sizes)));
        ck_assert_mem_eq(to, from, at);
    }
    run_until(&sender.n_sent, 1);
    ck_assert(bulk_is_idle(&sender.bulk) && bulk_is_idle(&receiver.bulk));
    close_end(&sender);
    close_end(&receiver);
}

/* The window is all that a sender is ahead, however much waits, and the receiver's socket may hold even less. */
TEST(a_peer_that_does_not_consume_holds_up_nobody)
{
    static struct end other, others;
    int ends[2];

    open_pair(0);
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(bulk_send(&sender.bulk, from, MOST), 0);
    stage_connect_pair(ends);
    open_end(&other, ends[0], 0);
    open_end(&others, ends[1], 0);
    others.peer = &other;
    for (unsigned i = 0; i < 20; i++) {
        ck_assert_int_eq(bulk_send(&other.bulk, from, MOST), 0);
        ck_assert_int_eq(bulk_expect(&others.bulk, to, MOST), 0);
    }
    run_until(&others.n_received, 20);
    ck_assert_uint_eq(receiver.n_received, 0);
    ck_assert_uint_le(sender.bulk.n_sent, BULK_WINDOW);
    close_end(&other);
    close_end(&others);
    close_end(&sender);
    close_end(&receiver);
}

/* Also one whose receiver consumes, but grants nothing. */
TEST(no_more_is_sent_than_was_granted)
{
    open_pair(0);
    receiver.peer = NULL;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(bulk_send(&sender.bulk, from, MOST), 0);
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq(bulk_expect(&receiver.bulk, to, MOST), 0);
    run_until(&receiver.n_consumed, BULK_WINDOW);
    ck_assert_uint_eq(sender.bulk.n_sent, BULK_WINDOW);
    ck_assert_uint_eq(receiver.n_received, 1); /* 24 chunks */
    ck_assert(!bulk_grant(&sender.bulk, BULK_WINDOW + 1));
    ck_assert(bulk_grant(&sender.bulk, BULK_WINDOW));
    run_until(&receiver.n_consumed, 2 * BULK_WINDOW);
    ck_assert_uint_eq(sender.bulk.n_sent, 2 * BULK_WINDOW);
    close_end(&sender);
    close_end(&receiver);
}

/* ---- in between ------------------------------------------------------------------------------------------------- */

/* The sender's frames, by hand. */
static size_t seal(uint8_t *frame, size_t n, uint64_t number, unsigned with)
{
    const uint8_t key[KEY_BYTES] = {1};
    struct cipher cipher;

    cipher_init(&cipher, with & HANDSHAKE_PLAIN ? CIPHER_PLAIN : CIPHER_CHACHA, key);
    cipher_seal(&cipher, frame, from, n, number);
    return CIPHER_HEADER_BYTES + n + CIPHER_TAG_BYTES;
}

static const struct {
    const char *name;
    unsigned flags;
    size_t n;        /* of the frame; 1000 are expected */
    uint64_t number; /* 0 is due */
    size_t flips;    /* byte of it; 0: none */
    size_t cuts;     /* bytes at its end */
    const char *fault;
} deeds[] = {
    {"a bit", 0, 1000, 0, 500, 0, "that its key did not seal"},
    {"a bit of the tag", 0, 1000, 0, 1010, 0, "that its key did not seal"},
    {"a bit of a plain one", HANDSHAKE_PLAIN, 1000, 0, 500, 0, "that its key did not seal"},
    {"another's place", 0, 1000, 1, 0, 0, "that its key did not seal"},
    {"another's place, plain", HANDSHAKE_PLAIN, 1000, 1, 0, 0, "that its key did not seal"},
    {"shorter", 0, 999, 0, 0, 0, "of another length"},
    {"longer", 0, 1001, 0, 0, 0, "of another length"},
    {"endless", 0, 1000, 0, 3, 0, "of another length"},
    {"cut off", 0, 1000, 0, 0, 1, "was cut off within a transfer"},
    {"not there", 0, 1000, 0, 0, 1020, "was cut off within a transfer"},
};

TEST_EACH(a_chunk_that_is_not_as_it_was_sent_ends_the_connection, COUNT(deeds))
{
    static uint8_t frame[2000];
    int ends[2];

    stage_connect_pair(ends);
    open_end(&receiver, ends[1], deeds[_i].flags);
    ck_assert_int_eq(bulk_expect(&receiver.bulk, to, 1000), 0);
    const size_t n = seal(frame, deeds[_i].n, deeds[_i].number, deeds[_i].flags) - deeds[_i].cuts;
    if (deeds[_i].flips)
        frame[deeds[_i].flips] ^= 0x80;
    ck_assert_int_eq(send(ends[0], frame, n, MSG_NOSIGNAL), (ssize_t)n);
    close(ends[0]);
    run_until(&receiver.n_ended, 1);
    ck_assert_holds(receiver.fault, deeds[_i].fault);
    ck_assert_uint_eq(receiver.n_received, 0);
    for (int i = 0; i < 1000; i++)
        ck_assert_uint_eq(to[i], 0); /* nothing of it was written */
    close_end(&receiver);
}

TEST(an_end_between_transfers_is_no_fault)
{
    int ends[2];

    stage_connect_pair(ends);
    open_end(&receiver, ends[1], 0);
    uint8_t frame[64];
    const size_t n = seal(frame, 8, 0, 0);
    ck_assert_int_eq(bulk_expect(&receiver.bulk, to, 8), 0);
    ck_assert_int_eq(send(ends[0], frame, n, MSG_NOSIGNAL), (ssize_t)n);
    run_until(&receiver.n_received, 1);
    close(ends[0]);
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(receiver.n_ended, 0); /* the other connection tells */
    close_end(&receiver);
}

TEST(closing_waits_for_the_threads)
{
    for (int i = 0; i < 20; i++) {
        open_pair(0);
        ck_assert_int_eq(bulk_send(&sender.bulk, from, MOST), 0);
        ck_assert_int_eq(bulk_expect(&receiver.bulk, to, MOST), 0);
        for (int k = 0; k < i; k++)
            uv_run(&loop, UV_RUN_NOWAIT);
        bulk_close(&sender.bulk);
        bulk_close(&receiver.bulk);
        bulk_close(&receiver.bulk);
        run_until(&sender.n_closed, 1);
        run_until(&receiver.n_closed, 1);
        ck_assert_uint_eq(sender.bulk.n_working + receiver.bulk.n_working, 0);
    }
}

/* Keeps one of libuv's threads busy. */
static void wait_for_go(uv_work_t *work)
{
    sem_wait(work->data);
}

static void on_waited(uv_work_t *work, int status)
{
    (void)work, (void)status;
}

/* With the last thread the struct is the caller's again, who frees it: a sanitizer sees whether anybody reads it
 * later. */
static void on_closed_free(struct bulk *b)
{
    sender.n_closed++;
    free(b);
}

TEST(nothing_is_read_after_on_closed)
{
    static const struct bulk_events freeing = {on_received, on_consumed, on_sent, on_end, on_closed_free};
    const struct handshake h = {.send = {1}, .receive = {1}};
    struct bulk *b = malloc(sizeof *b);
    uv_work_t busy[64]; /* at least as many as there are threads, unless UV_THREADPOOL_SIZE says more */
    sem_t go;
    int ends[2];

    sem_init(&go, 0, 0);
    for (int i = 0; i < COUNT(busy); i++) {
        busy[i].data = &go;
        uv_queue_work(&loop, &busy[i], wait_for_go, on_waited);
    }
    stage_connect_pair(ends);
    sender = (struct end){.n_closed = 0};
    ck_assert_int_eq(bulk_open(b, &loop, ends[0], &h, &freeing, &sender), 0);
    ck_assert_int_eq(bulk_send(b, from, 1), 0);
    bulk_close(b);
    while (!b->tcp_closed)
        uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(sender.n_closed, 0);
    for (int i = 0; i < COUNT(busy); i++)
        sem_post(&go);
    run_until(&sender.n_closed, 1);
    uv_run(&loop, UV_RUN_DEFAULT);
    sem_destroy(&go);
    close(ends[1]);
}

/* Otherwise a firewall in between forgets a connection that is idle between jobs. */
TEST(an_idle_connection_is_kept_alive)
{
    socklen_t size = sizeof(int);
    int on = 0;
    uv_os_fd_t fd;

    open_pair(0);
    ck_assert_int_eq(uv_fileno((uv_handle_t *)&sender.bulk.tcp, &fd), 0);
    ck_assert_int_eq(getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, &size), 0);
    ck_assert_int_eq(on, 1);
    close_end(&sender);
    close_end(&receiver);
}
