/* A job through two proxies: each message is handed over with its bytes in place, and segments end at each side's
 * proxy. The test is both sessions. */
#include "proto/net/proxy.h"

#include "proto/net/bulk.h"
#include "proto/net/control.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/message.h"
#include "proto/wire/segment.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <sodium.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* 4 MiB of embedding: more than one grant of credit. */
static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_head\": 2, \"n_embd\": 64, "
                             "\"n_positions\": 16, \"vocab_size\": 16384, \"attn_pdrop\": 0.0, \"embd_pdrop\": 0.0, "
                             "\"resid_pdrop\": 0.0, \"activation_function\": \"relu\"}";
enum { BATCH = 4, SEQ = 16, SLOTS = 2, MAX_FDS = 8 };

static uv_loop_t loop;
static struct model model;
static int daemon_end, worker_end; /* connections */
static unsigned n_closed;
static uint64_t progress;
static struct segment segments[4]; /* the daemon's, in the order of ASSIGN */
static struct segment theirs[4];   /* the worker's */

static void on_closed(void *data)
{
    (void)data;
    n_closed++;
}

static void open_one(bool is_daemon, int connection, int control, int bulk)
{
    const struct handshake h = {.send = {is_daemon}, .receive = {!is_daemon}};
    const struct proxy_setup setup = {.is_daemon = is_daemon,
                                      .peer = "the other",
                                      .connection = connection,
                                      .control = control,
                                      .bulk = bulk,
                                      .on_control = &h,
                                      .on_bulk = &h,
                                      .progress = is_daemon ? NULL : &progress,
                                      .on_closed = on_closed};

    ck_assert_int_eq(proxy_open(&loop, &setup), 0);
}

static void begin(void)
{
    int control[2], bulk[2], connections[2][2];
    struct model_config c;
    struct error err = {""};

    ck_assert_int_ge(sodium_init(), 0);
    uv_loop_init(&loop);
    ck_assert_msg(model_config_parse(&c, config, strlen(config), &err) == 0, "%s", err.text);
    ck_assert_int_eq(model_init(&model, &c, &err), 0);
    stage_connect_pair(control);
    stage_connect_pair(bulk);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, connections[i]), 0);
    daemon_end = connections[0][0];
    worker_end = connections[1][0];
    n_closed = 0;
    progress = 0;
    open_one(true, connections[0][1], control[0], bulk[0]);
    open_one(false, connections[1][1], control[1], bulk[1]);
}

static void close_segments(void)
{
    for (int i = 0; i < 4; i++) {
        segment_close(&segments[i]);
        segment_close(&theirs[i]);
    }
}

static void end(void)
{
    close(daemon_end);
    close(worker_end);
    while (n_closed < 2)
        uv_run(&loop, UV_RUN_ONCE);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    close_segments();
    model_free(&model);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(begin, end)

static void say(int connection, struct message m, const int *fds, unsigned n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(MAX_FDS * sizeof(int))] = {0};
    uint8_t bytes[MESSAGE_MAX_BYTES];
    struct iovec vector = {.iov_base = bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};

    m.sequence = 1;
    vector.iov_len = message_encode(bytes, sizeof bytes, &m);
    if (n_fds > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        *CMSG_FIRSTHDR(&header) = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                                                   .cmsg_type = SCM_RIGHTS,
                                                   .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
        memcpy(CMSG_DATA(CMSG_FIRSTHDR(&header)), fds, n_fds * sizeof(int));
    }
    while (sendmsg(connection, &header, MSG_DONTWAIT) < 0) {
        ck_assert_int_eq(errno, EAGAIN);
        uv_run(&loop, UV_RUN_NOWAIT);
    }
}

/* Runs the loop until a message has come. False: the connection has ended. */
static bool hear(struct message *m, int connection, int *fds, unsigned *n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(MAX_FDS * sizeof(int))];
    uint8_t bytes[MESSAGE_MAX_BYTES];
    struct iovec vector = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr header = {.msg_iov = &vector,
                            .msg_iovlen = 1,
                            .msg_control = control,
                            .msg_controllen = sizeof control};
    const char *why;
    ssize_t n;

    while ((n = recvmsg(connection, &header, MSG_DONTWAIT)) < 0 && errno == EAGAIN)
        uv_run(&loop, UV_RUN_NOWAIT);
    if (n <= 0)
        return false;
    ck_assert_int_eq(message_decode(m, bytes, (size_t)n, &why), 0);
    const struct cmsghdr *c = CMSG_FIRSTHDR(&header);
    *n_fds = c ? (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
    if (c)
        memcpy(fds, CMSG_DATA(c), *n_fds * sizeof(int));
    return true;
}

static struct message expect_message(int connection, enum message_kind kind)
{
    struct message m;
    int fds[MAX_FDS];
    unsigned n_fds;

    ck_assert(hear(&m, connection, fds, &n_fds));
    ck_assert_str_eq(message_name(m.kind), message_name(kind));
    ck_assert_uint_eq(n_fds, 0);
    return m;
}

static void fill(void *base, size_t n, unsigned seed)
{
    for (size_t i = 0; i < n; i++)
        ((uint8_t *)base)[i] = (uint8_t)((i + seed) * 2654435761u >> 11);
}

/* What the rows of a job have: nothing else; positions; entries, by which norms are remembered. */
enum rows { PLAIN, PACKED, REMEMBERED, ROWS };

static struct plan_goal goal_of(enum rows rows)
{
    return (struct plan_goal){.purpose = PLAN_TRAIN,
                              .batch = BATCH,
                              .seq = SEQ,
                              .n_parts = 1,
                              .packs = rows == PACKED,
                              .sampling.share = rows == REMEMBERED ? 0.5 : 0,
                              .entries = rows == REMEMBERED ? 99 : 0};
}

static struct message assignment(enum rows rows)
{
    struct message m = {.kind = MESSAGE_ASSIGN};

    m.assign.config_bytes = (uint32_t)strlen(config);
    m.assign.goal = goal_of(rows);
    m.assign.max_parts = 1;
    m.assign.n_slots = SLOTS;
    m.assign.n_threads = 1;
    m.assign.weights_bytes = model.segment_n * sizeof(float);
    m.assign.choice = (struct plan_choice){.microbatch = BATCH, .n_weight_buffers = 1, .n_sums = 1};
    return m;
}

static struct message weights_of(uint32_t unit)
{
    const uint64_t at = model.units[unit].offset * sizeof(float);

    return (struct message){.kind = MESSAGE_WEIGHTS, .weights = {.unit = unit, .at = at, .frozen_at = at}};
}

/* A job whose segments are filled; the worker has its own. */
static void assign_as(enum rows rows)
{
    const struct plan_goal goal = goal_of(rows);
    plan_approximate(&model, &goal);
    const size_t bytes[4] = {model.segment_n * sizeof(float), (1 + SLOTS) * model_slot_bytes(&model, NUMBER_FP32),
                             plan_data_bytes(&goal, &model), strlen(config)};
    struct message m = assignment(rows);
    struct error err = {""};
    int fds[MAX_FDS];
    unsigned n_fds;

    for (int i = 0; i < 4; i++) {
        const enum segment_access others = i == 0 ? SEGMENT_READ : SEGMENT_READ_WRITE;
        ck_assert_int_eq(segment_create(&segments[i], "test", bytes[i], others, &err), 0);
        fds[i] = segments[i].fd;
        if (i != 1)
            fill(segments[i].base, bytes[i], (unsigned)i);
    }
    memcpy(segments[3].base, config, strlen(config));
    say(daemon_end, m, fds, 4);
    ck_assert(hear(&m, worker_end, fds, &n_fds));
    ck_assert_int_eq(m.kind, MESSAGE_ASSIGN);
    ck_assert_uint_eq(n_fds, 4);
    for (int i = 0; i < 4; i++)
        ck_assert_msg(segment_attach(&theirs[i], fds[i], bytes[i], i == 0 || i == 3 ? SEGMENT_READ : SEGMENT_READ_WRITE,
                                     &err) == 0,
                      "%s", err.text);
    ck_assert_mem_eq(theirs[3].base, config, strlen(config));
}

static void assign(void)
{
    assign_as(PLAIN);
}

static void greet(void)
{
    say(worker_end,
        (struct message){.kind = MESSAGE_HELLO,
                         .hello = {.role = ROLE_WORKER, .model = "a fast one", .bus = "0000:3b:00.0"}},
        NULL, 0);
    const struct message hello = expect_message(daemon_end, MESSAGE_HELLO);
    ck_assert_str_eq(hello.hello.model, "a fast one, by tcp");
    ck_assert_str_eq(hello.hello.bus, ""); /* there it would mean another device */
}

static void release(void)
{
    say(daemon_end, (struct message){.kind = MESSAGE_RELEASE}, NULL, 0);
    expect_message(worker_end, MESSAGE_RELEASE);
    say(worker_end, (struct message){.kind = MESSAGE_RELEASE}, NULL, 0);
    expect_message(daemon_end, MESSAGE_RELEASE);
}

/* With the block's unit came what is known of the share's tokens, in that buffer alone; its contribution ends with
 * those of the step. Those of another step stay. */
static void check_norms(const struct plan_goal *goal)
{
    const size_t first = plan_data_norms_at(goal, &model, 0, 0), second = plan_data_norms_at(goal, &model, 1, 0),
                 bytes = BATCH * SEQ * sizeof(uint16_t), slot = model_slot_bytes(&model, NUMBER_FP32);
    uint32_t visit = 0;
    struct message m;

    ck_assert_uint_eq(model.n_norm_maps, 1);
    ck_assert_mem_eq((char *)theirs[2].base + second, (char *)segments[2].base + second, bytes);
    ck_assert(memcmp((char *)theirs[2].base + first, (char *)segments[2].base + first, bytes) != 0);
    while (model.units[model.visits[visit]].n_norm_maps == 0)
        visit++;
    fill((char *)segments[2].base + second, bytes, 55);
    m = weights_of(model.visits[visit]);
    m.weights.version = 1;
    say(daemon_end, m, NULL, 0);
    expect_message(worker_end, MESSAGE_WEIGHTS);
    ck_assert(memcmp((char *)theirs[2].base + second, (char *)segments[2].base + second, bytes) != 0);

    fill((char *)theirs[1].base + slot, slot, 200);
    m = (struct message){.kind = MESSAGE_CONTRIBUTION,
                         .contribution = {.name = {.visit = visit, .slice = 1}, .slot = 1}};
    say(worker_end, m, NULL, 0);
    expect_message(daemon_end, MESSAGE_CONTRIBUTION);
    ck_assert_mem_eq((char *)segments[1].base + slot, (char *)theirs[1].base + slot, BATCH * SEQ * sizeof(float));
    say(daemon_end, (struct message){.kind = MESSAGE_FREE, .free = {.slot = 1}}, NULL, 0);
    expect_message(worker_end, MESSAGE_FREE);
}

TEST(every_message_finds_its_bytes)
{
    const size_t slot = model_slot_bytes(&model, NUMBER_FP32);
    struct message m;

    greet();
    for (enum rows job = PLAIN; job < ROWS; job++) { /* the next job has segments of its own */
        const struct plan_goal goal = goal_of(job);
        const struct plan_data data = plan_data_of(&goal, 0);
        assign_as(job);
        m = (struct message){.kind = MESSAGE_SHARE, .share = {.buffer = 1, .n_valid = 1, .n_tokens = SEQ, .n = 1}};
        say(daemon_end, m, NULL, 0);
        expect_message(worker_end, MESSAGE_SHARE);
        const size_t second = data.buffers[1].at[PLAN_FIELD_IDS];
        ck_assert_mem_eq((char *)theirs[2].base + second, (char *)segments[2].base + second, BATCH * SEQ * 4);
        ck_assert_mem_eq((char *)theirs[2].base + data.buffers[1].at[PLAN_FIELD_LABELS],
                         (char *)segments[2].base + data.buffers[1].at[PLAN_FIELD_LABELS], BATCH * SEQ * 4);
        ck_assert(job != PACKED || data.buffers[1].at[PLAN_FIELD_POSITIONS] == second + 2 * BATCH * SEQ * 4);
        if (job == PACKED)
            ck_assert_mem_eq((char *)theirs[2].base + data.buffers[1].at[PLAN_FIELD_POSITIONS],
                             (char *)segments[2].base + data.buffers[1].at[PLAN_FIELD_POSITIONS], BATCH * SEQ * 4);
        ck_assert(memcmp(theirs[2].base, segments[2].base, BATCH * SEQ * 4) != 0); /* the other buffer was not sent */

        for (uint32_t u = 0; u < model.n_units; u++) {
            const size_t at = model.units[u].offset * sizeof(float), n = model.units[u].n * sizeof(float);
            say(daemon_end, (struct message)weights_of(u), NULL, 0);
            ck_assert_uint_eq(expect_message(worker_end, MESSAGE_WEIGHTS).weights.unit, u);
            ck_assert_mem_eq((char *)theirs[0].base + at, (char *)segments[0].base + at, n);
        }
        ck_assert_uint_gt(progress, 0);
        if (job == REMEMBERED)
            check_norms(&goal);

        for (uint32_t k = 0; k < SLOTS; k++) {
            const struct model_unit *unit = &model.units[model.visits[k]];
            fill((char *)theirs[1].base + k * slot, slot, 100 + k);
            m = (struct message){.kind = MESSAGE_CONTRIBUTION, .contribution = {.name = {.visit = k}, .slot = k}};
            say(worker_end, m, NULL, 0);
            ck_assert_uint_eq(expect_message(daemon_end, MESSAGE_CONTRIBUTION).contribution.slot, k);
            ck_assert_mem_eq((char *)segments[1].base + k * slot, (char *)theirs[1].base + k * slot,
                             unit->n_trained * sizeof(float));
        }
        release();
        close_segments();
    }
}

/* Whatever overtakes what, each arrives, and the end comes after all of them. */
TEST(the_end_is_heard_last)
{
    unsigned n_pulls = 0, n_contributions = 0;
    struct message m;
    int fds[MAX_FDS];
    unsigned n_fds;

    greet();
    assign();
    for (uint32_t k = 0; k <= SLOTS; k++) {
        say(worker_end, (struct message){.kind = MESSAGE_CONTRIBUTION, .contribution = {.slot = k}}, NULL, 0);
        say(worker_end, (struct message){.kind = MESSAGE_PULL, .pull = {.unit = k}}, NULL, 0);
    }
    say(worker_end, (struct message){.kind = MESSAGE_BYE}, NULL, 0);
    while (hear(&m, daemon_end, fds, &n_fds) && m.kind != MESSAGE_BYE) {
        n_pulls += m.kind == MESSAGE_PULL;
        n_contributions += m.kind == MESSAGE_CONTRIBUTION;
    }
    ck_assert_int_eq(m.kind, MESSAGE_BYE);
    ck_assert_uint_eq(n_pulls, 1 + SLOTS);
    ck_assert_uint_eq(n_contributions, 1 + SLOTS);
}

/* Of a job with 3 slots, and few units. A contribution into a slot that is in use would change what is being folded. */
static const struct {
    bool first; /* slot 1 is in use */
    struct message m;
} wrongs[] = {
    {true, {.kind = MESSAGE_CONTRIBUTION, .contribution = {.slot = 1}}},
    {false, {.kind = MESSAGE_CONTRIBUTION, .contribution = {.slot = 1 + SLOTS}}},
    {false, {.kind = MESSAGE_CONTRIBUTION, .contribution = {.name = {.visit = 1000}}}},
    {false, {.kind = MESSAGE_CONTRIBUTION, .contribution = {.name = {.slice = 1}}}},
    {false, {.kind = MESSAGE_GENERATED}},
};

TEST_EACH(bytes_that_are_not_of_the_job_end_the_session, COUNT(wrongs))
{
    struct message m;
    int fds[MAX_FDS];
    unsigned n_fds;

    greet();
    assign();
    if (wrongs[_i].first) {
        say(worker_end, (struct message){.kind = MESSAGE_CONTRIBUTION, .contribution = {.slot = 1}}, NULL, 0);
        expect_message(daemon_end, MESSAGE_CONTRIBUTION);
    }
    say(worker_end, wrongs[_i].m, NULL, 0);
    ck_assert(!hear(&m, daemon_end, fds, &n_fds) || m.kind == MESSAGE_DISMISSED);
}

TEST(a_slot_is_free_again_once_the_daemon_says_so)
{
    greet();
    assign();
    for (int i = 0; i < 5; i++) {
        say(worker_end, (struct message){.kind = MESSAGE_CONTRIBUTION, .contribution = {.slot = 1}}, NULL, 0);
        expect_message(daemon_end, MESSAGE_CONTRIBUTION);
        say(daemon_end, (struct message){.kind = MESSAGE_FREE, .free = {.slot = 1}}, NULL, 0);
        expect_message(worker_end, MESSAGE_FREE);
    }
}

/* More messages than the connection's queue holds wait in the proxy. */
TEST(a_session_that_reads_late_gets_everything)
{
    struct message m = {.kind = MESSAGE_LEDGER};

    greet();
    for (uint64_t i = 0; i < 3000; i++) {
        m.ledger.total.current = i;
        say(worker_end, m, NULL, 0);
    }
    for (int i = 0; i < 1000; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    for (uint64_t i = 0; i < 3000; i++)
        ck_assert_uint_eq(expect_message(daemon_end, MESSAGE_LEDGER).ledger.total.current, i);
}

TEST(a_worker_asks_to_leave)
{
    greet();
    say(worker_end, (struct message){.kind = MESSAGE_DRAIN}, NULL, 0);
    expect_message(daemon_end, MESSAGE_DRAIN);
}

static void say_all_weights(void)
{
    for (uint32_t u = 0; u < model.n_units; u++)
        say(daemon_end, (struct message)weights_of(u), NULL, 0);
}

/* The daemon's session ends at once, as when it refuses the worker; its message goes after another one. */
TEST_EACH(a_refusal_in_the_middle_of_a_transfer_is_heard, 10)
{
    struct message m = {.kind = MESSAGE_DISMISSED,
                        .dismissed = {.end = END_SILENT, .code = -ETIMEDOUT, .error = {"silent"}}};
    int fds[MAX_FDS];
    unsigned n_fds;

    greet();
    assign();
    say_all_weights();
    for (int i = 0; i < _i; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    say(daemon_end, (struct message){.kind = MESSAGE_RELEASE}, NULL, 0);
    say(daemon_end, m, NULL, 0);
    shutdown(daemon_end, SHUT_WR);
    do
        ck_assert(hear(&m, worker_end, fds, &n_fds));
    while (m.kind != MESSAGE_DISMISSED);
    ck_assert_str_eq(m.dismissed.error.text, "silent");
    ck_assert_int_eq(m.dismissed.end, END_SILENT);
}

/* Threads may have chunks of it by then. */
TEST_EACH(a_session_may_end_in_the_middle_of_a_transfer, 20)
{
    greet();
    assign();
    say_all_weights();
    for (uint32_t k = 0; k <= SLOTS; k++)
        say(worker_end, (struct message){.kind = MESSAGE_CONTRIBUTION, .contribution = {.slot = k}}, NULL, 0);
    for (int i = 0; i < _i; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
}

/* ---- a daemon by hand ------------------------------------------------------------------------------------------- */

/* Bytes of a message go when the test sends them. */
struct hand {
    struct control control;
    struct bulk bulk;
    unsigned n_sent, n_closed;
};

static void on_frame(struct control *c, const uint8_t *payload, size_t n)
{
    (void)c, (void)payload, (void)n;
}

static void on_control_end(struct control *c, const char *fault)
{
    (void)c, (void)fault;
}

static void on_control_closed(struct control *c)
{
    ((struct hand *)c->data)->n_closed++;
}

static void on_bulk_sent(struct bulk *b)
{
    (void)b;
}

static void on_bulk_end(struct bulk *b, const char *fault)
{
    (void)b, (void)fault;
}

static void on_bulk_closed(struct bulk *b)
{
    ((struct hand *)b->data)->n_closed++;
}

/* Opens a worker's proxy at its other end; returns the connection. */
static int open_hand(struct hand *hand)
{
    static const struct control_events control_events = {on_frame, on_control_end, on_control_closed};
    static const struct bulk_events bulk_events = {.on_sent = on_bulk_sent,
                                                   .on_end = on_bulk_end,
                                                   .on_closed = on_bulk_closed};
    const struct handshake h = {.send = {true}};
    int control[2], bulk[2], connections[2];

    *hand = (struct hand){.n_sent = 0};
    stage_connect_pair(control);
    stage_connect_pair(bulk);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK, 0, connections), 0);
    open_one(false, connections[1], control[1], bulk[1]);
    ck_assert_int_eq(control_open(&hand->control, &loop, control[0], &h, &control_events, hand), 0);
    ck_assert_int_eq(bulk_open(&hand->bulk, &loop, bulk[0], &h, &bulk_events, hand), 0);
    return connections[0];
}

static void say_by_hand(struct hand *hand, struct message m)
{
    enum { FRAME_MESSAGE = 1 };
    uint8_t bytes[MESSAGE_MAX_BYTES];

    m.sequence = ++hand->n_sent;
    ck_assert_int_eq(control_send(&hand->control, FRAME_MESSAGE, bytes, message_encode(bytes, sizeof bytes, &m)), 0);
}

static void assign_by_hand(struct hand *hand, int connection)
{
    struct message m;
    int fds[MAX_FDS];
    unsigned n_fds;

    say_by_hand(hand, assignment(PLAIN));
    ck_assert_int_eq(bulk_send(&hand->bulk, config, strlen(config)), 0);
    ck_assert(hear(&m, connection, fds, &n_fds));
    ck_assert_int_eq(m.kind, MESSAGE_ASSIGN);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
}

static void close_hand(struct hand *hand, int connection)
{
    close(connection);
    control_close(&hand->control);
    bulk_close(&hand->bulk);
    while (hand->n_closed < 2)
        uv_run(&loop, UV_RUN_ONCE);
}

/* The daemon stops: nobody needs the weights that are on their way any more. */
TEST(a_goodbye_waits_for_no_bytes)
{
    static struct hand hand;
    const int connection = open_hand(&hand);

    assign_by_hand(&hand, connection);
    say_by_hand(&hand, (struct message){.kind = MESSAGE_WEIGHTS});
    say_by_hand(&hand, (struct message){.kind = MESSAGE_BYE});
    expect_message(connection, MESSAGE_BYE);
    close_hand(&hand, connection);
}

/* Its memory would be the next one's, with the last one's weights still to come. */
TEST(a_job_in_the_middle_of_a_transfer_is_refused)
{
    static struct hand hand;
    const int connection = open_hand(&hand);
    struct message m;

    assign_by_hand(&hand, connection);
    say_by_hand(&hand, (struct message){.kind = MESSAGE_WEIGHTS});
    say_by_hand(&hand, assignment(PLAIN));
    m = expect_message(connection, MESSAGE_DISMISSED);
    ck_assert_holds(m.dismissed.error.text, "in the middle of a transfer");
    close_hand(&hand, connection);
}
