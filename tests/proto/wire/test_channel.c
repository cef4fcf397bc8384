#include "tests/kit/test.h"

#include "proto/wire/channel.h"

#include "proto/wire/message.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pair.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(own)

static struct end {
    struct channel channel;
    bool open;
    uint64_t n_packets;
    size_t last;
    unsigned n_closed;
} daemon_end, peer_end;

static struct end *const ends[] = {&daemon_end, &peer_end};
static uv_loop_t loop;
static char directory[64], address[128];

/* Packets are their own number, repeated to their length. */
static void on_packet(struct channel *channel, const uint8_t *bytes, size_t n)
{
    struct end *end = channel->data;
    uint64_t number;

    memcpy(&number, bytes, sizeof number);
    if (number != end->n_packets)
        ck_abort_msg("packet %llu came as number %llu", (unsigned long long)number, (unsigned long long)end->n_packets);
    end->n_packets++;
    end->last = n;
}

static void on_fault(struct channel *channel, const char *fault)
{
    (void)channel;
    ck_abort_msg("%s", fault);
}

static void on_closed(struct channel *channel)
{
    struct end *end = channel->data;

    end->n_closed++;
}

static const struct channel_events events = {on_packet, on_fault, on_closed};

static void start(void)
{
    daemon_end = peer_end = (struct end){0};
    snprintf(directory, sizeof directory, "/tmp/eps-channel-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(address, sizeof address, "ipc://%s/s-1", directory);
    uv_loop_init(&loop);
}

static void finish(void)
{
    struct stat info;

    for (int i = 0; i < 2; i++)
        if (ends[i]->open)
            channel_close(&ends[i]->channel);
    uv_run(&loop, UV_RUN_DEFAULT);
    for (int i = 0; i < 2; i++)
        ck_assert_uint_eq(ends[i]->n_closed, ends[i]->open);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_int_eq(stat(address + 6, &info), -1); /* nanomsg removes the socket's file */
    ck_assert_int_eq(rmdir(directory), 0);
}

SUITE_FIXTURE(start, finish)

static void open_end(struct end *end)
{
    ck_assert_int_eq(channel_open(&end->channel, &loop, address, end == &daemon_end, &events, end), 0);
    end->open = true;
}

static void run_until(const uint64_t *count, uint64_t n)
{
    while (*count < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static int send_number(struct end *end, uint64_t number, size_t n)
{
    uint8_t bytes[MESSAGE_MAX_BYTES] = {0};

    memcpy(bytes, &number, sizeof number);
    return channel_send(&end->channel, bytes, n);
}

/* The first before a peer has come, all others before either reads any: they fill nanomsg and wait in the queues. */
TEST(ten_thousand_packets_each_way_arrive_in_order)
{
    const uint64_t n = 10000, sizes = 1145; /* all within CHANNEL_MAX_QUEUED */

    open_end(&daemon_end);
    for (uint64_t i = 0; i < n; i++) {
        ck_assert_int_eq(send_number(&daemon_end, i, 8 + i % sizes), 0);
        if (i == 0) {
            ck_assert_uint_gt(channel_queued(&daemon_end.channel), 0);
            open_end(&peer_end);
        }
        ck_assert_int_eq(send_number(&peer_end, i, 8), 0);
    }
    ck_assert_uint_gt(channel_queued(&daemon_end.channel), 0);
    ck_assert_uint_gt(channel_queued(&peer_end.channel), 0);
    run_until(&peer_end.n_packets, n);
    run_until(&daemon_end.n_packets, n);
    ck_assert_uint_eq(channel_queued(&daemon_end.channel), 0);
    ck_assert_uint_eq(peer_end.last, 8 + (n - 1) % sizes);
}

static void on_timer(uv_timer_t *timer)
{
    uv_close((uv_handle_t *)timer, NULL);
}

/* Both of nanomsg's descriptors are level-triggered: watched wrongly, the loop would turn without end. */
TEST(an_idle_channel_lets_the_loop_sleep)
{
    static uv_timer_t timer; /* closed by finish */
    unsigned n_turns = 0;

    open_end(&daemon_end);
    open_end(&peer_end);
    ck_assert_int_eq(send_number(&daemon_end, 0, 8), 0);
    run_until(&peer_end.n_packets, 1);
    uv_timer_init(&loop, &timer);
    uv_timer_start(&timer, on_timer, 20, 0);
    while (!uv_is_closing((uv_handle_t *)&timer)) {
        uv_run(&loop, UV_RUN_ONCE);
        n_turns++;
    }
    ck_assert_uint_le(n_turns, 10); /* in 20 ms; it spins some ten thousand times in that */
}

TEST(the_queue_has_an_end)
{
    uint64_t n = 0;
    int rc;

    open_end(&daemon_end); /* nobody will ever read */
    while ((rc = send_number(&daemon_end, n, MESSAGE_MAX_BYTES)) == 0)
        n++;
    ck_assert_int_eq(rc, -ENOBUFS);
    ck_assert_uint_eq(n, CHANNEL_MAX_QUEUED / (MESSAGE_MAX_BYTES + 2));
}

TEST(an_overlong_packet_shows_its_length)
{
    static uint8_t bytes[100000];

    open_end(&daemon_end);
    int raw = nn_socket(AF_SP, NN_PAIR);
    ck_assert_int_ge(nn_connect(raw, address), 0);
    ck_assert_int_eq(nn_send(raw, bytes, sizeof bytes, 0), sizeof bytes);
    run_until(&daemon_end.n_packets, 1);
    ck_assert_uint_eq(daemon_end.last, sizeof bytes);
    nn_close(raw);
}

TEST(addresses_that_would_abort_nanomsg_do_not_fit)
{
    char text[109];

    ck_assert(!channel_address_fits("ipc://relative/s-1"));
    ck_assert(!channel_address_fits("tcp://127.0.0.1:80"));
    ck_assert(!channel_address_fits(""));
    memset(text, 'x', sizeof text);
    memcpy(text, "ipc:///", 7);
    text[108] = '\0';
    ck_assert(!channel_address_fits(text));
    text[107] = '\0';
    ck_assert(channel_address_fits(text));
}

/* nanomsg forgets 736 bytes each time a bind fails. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:nn_bipc_create";
}

TEST(an_address_that_cannot_be_bound_is_an_error)
{
    snprintf(address, sizeof address, "ipc://%s/none/s-1", directory);
    ck_assert_int_eq(channel_open(&daemon_end.channel, &loop, address, true, &events, &daemon_end), -ENOENT);
}
