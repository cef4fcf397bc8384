/* Hosts under mpirun: this program starts itself as 2, 3 or 4 ranks of a scenario, and reads what mpirun and they say.
 * Each rank checks what it receives, byte by byte, by what any rank can compute. */
#include "eps/hosts/hosts.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <uv.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(120)

static bool has_mpirun(void)
{
    return access(BIN_DIR "/eps-mpi.so", F_OK) == 0 && system("command -v mpirun >/dev/null 2>&1") == 0;
}
SUITE_SKIP_UNLESS(has_mpirun(),
                  "Open MPI is not installed: apt-get install libopenmpi-dev openmpi-bin, and build again")

/* ---- a rank ------------------------------------------------------------------------------------------------------ */

enum { N_SLOTS = 3 };

struct rank {
    const struct hosts_ops *ops;
    struct hosts *hosts;
    uint32_t host, n;
    struct hosts_options options;
    uv_loop_t loop;
    uv_async_t async;
    void (*on_event)(struct rank *rank, const struct hosts_event *event);
    bool done;
    uint64_t *sent, *received; /* (n) */
    bool *is_short;            /* (n) */
    uint64_t n_slices;
    uint8_t *outgoing; /* (n, N_SLOTS, slot_bytes) */
    uint8_t *exposed;
};

#define EXPECT(condition)                                                                                              \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "rank fails at line %d: %s\n", __LINE__, #condition);                                      \
            _exit(3);                                                                                                  \
        }                                                                                                              \
    } while (0)

/* Byte i of what `from` sends `to` the k-th time. */
static uint8_t pattern(uint32_t from, uint32_t to, uint64_t k, size_t i)
{
    return (uint8_t)(from * 131 + to * 31 + k * 7 + i * 13 + (i >> 8) * 3 + (i >> 16));
}

static void fill(uint8_t *bytes, size_t n, uint32_t from, uint32_t to, uint64_t k)
{
    for (size_t i = 0; i < n; i++)
        bytes[i] = pattern(from, to, k, i);
}

static bool is_filled(const uint8_t *bytes, size_t n, uint32_t from, uint32_t to, uint64_t k)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] != pattern(from, to, k, i))
            return false;
    return true;
}

static void wake(void *data)
{
    uv_async_send(data);
}

static void on_async(uv_async_t *async)
{
    struct rank *const rank = async->data;
    struct hosts_event event;

    while (!rank->done && rank->ops->next(rank->hosts, &event)) {
        if (event.kind == HOSTS_LOST) {
            fprintf(stderr, "rank %u: %s\n", rank->host, event.why);
            rank->ops->close(rank->hosts);
            _exit(1);
        }
        rank->on_event(rank, &event);
    }
    if (rank->done)
        uv_stop(&rank->loop);
}

static void on_term(uv_signal_t *signal, int number)
{
    (void)number;
    fprintf(stderr, "rank %u: the launcher ends the job\n", ((struct rank *)signal->data)->host);
    _exit(1);
}

static int begin(struct rank *rank, size_t slot_bytes, size_t exposed_bytes, unsigned silence_ms)
{
    struct error err = {""};

    rank->ops = hosts_find("mpi", &err);
    if (!rank->ops || rank->ops->open(&rank->hosts, &rank->host, &rank->n, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    uv_loop_init(&rank->loop);
    uv_async_init(&rank->loop, &rank->async, on_async);
    rank->async.data = rank;
    uint8_t *const exposed = malloc(exposed_bytes + 1);
    fill(exposed, exposed_bytes, rank->host, 0, 99);
    rank->options = (struct hosts_options){.n_slots = N_SLOTS,
                                           .slot_bytes = slot_bytes,
                                           .inbox = malloc(rank->n * N_SLOTS * slot_bytes + 1),
                                           .silence_ms = silence_ms,
                                           .notify = wake,
                                           .data = &rank->async};
    rank->exposed = exposed;
    rank->ops->expose(rank->hosts, 1, exposed, exposed_bytes);
    rank->sent = calloc(rank->n, sizeof *rank->sent);
    rank->received = calloc(rank->n, sizeof *rank->received);
    rank->is_short = calloc(rank->n, sizeof *rank->is_short);
    rank->outgoing = malloc(rank->n * N_SLOTS * slot_bytes + 1);
    if (rank->ops->start(rank->hosts, &rank->options, &err)) {
        fprintf(stderr, "%s\n", err.text);
        rank->ops->close(rank->hosts);
        return 1;
    }
    return 0;
}

static int end(struct rank *rank)
{
    uv_run(&rank->loop, UV_RUN_DEFAULT);
    rank->ops->close(rank->hosts);
    printf("rank %u of %u is done\n", rank->host, rank->n);
    fflush(stdout);
    free(rank->sent);
    free(rank->received);
    free(rank->is_short);
    free(rank->outgoing);
    free(rank->options.inbox);
    free(rank->exposed);
    uv_close((uv_handle_t *)&rank->async, NULL);
    uv_run(&rank->loop, UV_RUN_DEFAULT);
    uv_loop_close(&rank->loop);
    return 0;
}

static bool all_received(const struct rank *rank, uint64_t n)
{
    for (uint32_t h = 0; h < rank->n; h++)
        if (h != rank->host && rank->received[h] < n)
            return false;
    return true;
}

/* Messages: each to each, far more than a window, of all sizes, in order. */
enum { N_MESSAGES = 2000 };

static void send_messages(struct rank *rank, uint32_t to)
{
    uint8_t message[HOSTS_MESSAGE_BYTES];

    while (!rank->is_short[to] && rank->sent[to] < N_MESSAGES) {
        const size_t n = rank->sent[to] % (HOSTS_MESSAGE_BYTES + 1);
        fill(message, n, rank->host, to, rank->sent[to]);
        const int rc = rank->ops->send(rank->hosts, to, message, n);
        EXPECT(rc == 0 || rc == -EAGAIN);
        rank->is_short[to] = rc == -EAGAIN;
        rank->sent[to] += rc == 0;
    }
}

static void on_message(struct rank *rank, const struct hosts_event *event)
{
    if (event->kind == HOSTS_ROOM) {
        EXPECT(rank->is_short[event->host]);
        rank->is_short[event->host] = false;
        send_messages(rank, event->host);
    } else {
        EXPECT(event->kind == HOSTS_MESSAGE);
        const uint64_t k = rank->received[event->host]++;
        EXPECT(event->message_bytes == k % (HOSTS_MESSAGE_BYTES + 1));
        EXPECT(is_filled(event->message, event->message_bytes, event->host, rank->host, k));
    }
    rank->done = all_received(rank, N_MESSAGES);
    for (uint32_t h = 0; h < rank->n; h++)
        rank->done &= h == rank->host || rank->sent[h] == N_MESSAGES;
}

static int run_messages(struct rank *rank)
{
    if (begin(rank, 16, 0, 60000))
        return 1;
    for (uint32_t h = 0; h < rank->n; h++)
        if (h != rank->host)
            send_messages(rank, h);
    for (uint32_t h = 0; h < rank->n; h++)
        EXPECT(h == rank->host || (rank->is_short[h] && rank->sent[h] >= HOSTS_WINDOW)); /* nothing was taken yet */
    rank->on_event = on_message;
    return end(rank);
}

/* Slices: each to each, of sizes from 0 to 64 MiB, beside fetches of all that the others expose. A message goes ahead
 * of each slice, and must have come before it. */
static const size_t slice_sizes[] = {0, 1, 63, 4096, 65537, 1 << 20, 0, 5 << 20, 64 << 20, 17};
enum { N_SLICES = sizeof slice_sizes / sizeof *slice_sizes, EXPOSED = (1 << 20) + 5, SLOT = 64 << 20 };

/* Those of host 0 alone are so large. */
static size_t slice_size(uint32_t from, uint64_t k)
{
    return slice_sizes[k] >> (from ? 4 : 0);
}

static void send_slice(struct rank *rank, uint32_t to, uint32_t slot)
{
    const uint64_t k = rank->sent[to]++;
    uint8_t *const data = rank->outgoing + ((size_t)to * N_SLOTS + slot) * SLOT;

    fill(data, slice_size(rank->host, k), rank->host, to, k);
    EXPECT(rank->ops->send(rank->hosts, to, &k, sizeof k) == 0);
    EXPECT(rank->ops->send_slice(rank->hosts, to, slot, &k, sizeof k, data, slice_size(rank->host, k)) == 0);
}

static uint8_t *fetched[8];

static void on_slice(struct rank *rank, const struct hosts_event *event)
{
    static uint64_t announced[8], n_freed, n_fetched;
    uint64_t k;

    memcpy(&k, event->message, sizeof k);
    if (event->kind == HOSTS_MESSAGE) {
        announced[event->host]++;
    } else if (event->kind == HOSTS_SLICE) {
        EXPECT(k < announced[event->host] && event->bytes == slice_size(event->host, k));
        const uint8_t *const slot =
            (uint8_t *)rank->options.inbox + ((size_t)event->host * N_SLOTS + event->slot) * SLOT;
        EXPECT(is_filled(slot, event->bytes, event->host, rank->host, k));
        rank->received[event->host]++;
        EXPECT(rank->ops->free_slot(rank->hosts, event->host, event->slot) == 0);
    } else if (event->kind == HOSTS_FREED) {
        n_freed++;
        if (rank->sent[event->host] < N_SLICES)
            send_slice(rank, event->host, event->slot);
    } else {
        EXPECT(event->kind == HOSTS_FETCHED && event->token == 1000 + event->host);
        for (size_t i = 5; i < EXPOSED; i++)
            EXPECT(fetched[event->host][i - 5] == pattern(event->host, 0, 99, i));
        n_fetched++;
    }
    rank->done = all_received(rank, N_SLICES) && n_freed == (rank->n - 1) * N_SLICES && n_fetched == rank->n - 1;
}

static int run_slices(struct rank *rank)
{
    if (begin(rank, SLOT, EXPOSED, 60000))
        return 1;
    for (uint32_t h = 0; h < rank->n; h++)
        if (h != rank->host) {
            fetched[h] = malloc(EXPOSED);
            EXPECT(rank->ops->fetch(rank->hosts, h, 1, 5, fetched[h], EXPOSED - 5, 1000 + h) == 0);
            for (uint32_t slot = 0; slot < N_SLOTS; slot++)
                send_slice(rank, h, slot);
        }
    rank->on_event = on_slice;
    const int rc = end(rank);
    for (int h = 0; h < COUNT(fetched); h++)
        free(fetched[h]);
    return rc;
}

/* Rank 1 dies, or hangs, as soon as all have met; the others wait for what will not come. */
static int fault_signal;

static void on_met(struct rank *rank, const struct hosts_event *event)
{
    EXPECT(event->kind == HOSTS_MESSAGE);
    if (rank->host == 1 && ++rank->received[event->host] && all_received(rank, 1))
        kill(getpid(), fault_signal);
}

static int run_fault(struct rank *rank)
{
    uv_signal_t term;

    if (begin(rank, 16, 16, 3000))
        return 1;
    uv_signal_init(&rank->loop, &term);
    term.data = rank;
    uv_signal_start(&term, on_term, SIGTERM);
    for (uint32_t h = 0; h < rank->n; h++)
        EXPECT(h == rank->host || rank->ops->send(rank->hosts, h, "met", 3) == 0);
    rank->on_event = on_met;
    return end(rank);
}

/* Rank 1 has slots of another size. */
static int run_other_sizes(struct rank *rank)
{
    return begin(rank, getenv("OMPI_COMM_WORLD_RANK")[0] == '1' ? 32 : 16, 0, 60000) ? 1 : 3;
}

/* Rank 1 cannot start: 2 GiB are more than a message of MPI's holds. */
static int run_impossible(struct rank *rank)
{
    return begin(rank, getenv("OMPI_COMM_WORLD_RANK")[0] == '1' ? (size_t)1 << 31 : 16, 0, 60000) ? 1 : 3;
}

static int command(int argc, char **argv)
{
    static struct rank rank;

    if (argc != 3 || strcmp(argv[1], "--rank") != 0)
        return -1;
    alarm(60);
    fault_signal = strcmp(argv[2], "hang") == 0 ? SIGSTOP : SIGKILL;
    if (strcmp(argv[2], "messages") == 0)
        return run_messages(&rank);
    if (strcmp(argv[2], "slices") == 0)
        return run_slices(&rank);
    if (strcmp(argv[2], "sizes") == 0)
        return run_other_sizes(&rank);
    if (strcmp(argv[2], "impossible") == 0)
        return run_impossible(&rank);
    return run_fault(&rank);
}
SUITE_COMMAND(command)

/* ---- the test ---------------------------------------------------------------------------------------------------- */

/* mpirun's exit status; what it and the ranks wrote is in output. */
static char output[65536];

static int mpirun(int n, const char *options, const char *scenario)
{
    char line[1000];
    size_t length = 0;

    snprintf(
        line, sizeof line,
        "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
        "OMPI_MCA_hwloc_base_binding_policy=none ASAN_OPTIONS=detect_leaks=0 mpirun %s -n %d %s/test_hosts --rank %s "
        "2>&1 </dev/null",
        options, n, BIN_DIR, scenario);
    prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    FILE *const pipe = popen(line, "r");
    ck_assert_ptr_nonnull(pipe);
    for (size_t got; (got = fread(output + length, 1, sizeof output - 1 - length, pipe)) > 0;)
        length += got;
    output[length] = 0;
    const int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static unsigned count(const char *what)
{
    unsigned n = 0;

    for (const char *at = output; (at = strstr(at, what)); at += strlen(what))
        n++;
    return n;
}

static const int ranks[] = {2, 3, 4};

TEST_EACH(messages_of_all_pairs_at_once_arrive_in_order_within_the_window, COUNT(ranks))
{
    const int rc = mpirun(ranks[_i], "", "messages");
    ck_assert_msg(rc == 0, "%d: %s", rc, output);
    ck_assert_uint_eq(count("is done"), (unsigned)ranks[_i]);
}

TEST_EACH(slices_and_fetches_of_all_pairs_at_once_keep_every_byte, COUNT(ranks))
{
    const int rc = mpirun(ranks[_i], "", "slices");
    ck_assert_msg(rc == 0, "%d: %s", rc, output);
    ck_assert_uint_eq(count("is done"), (unsigned)ranks[_i]);
}

/* Over Open MPI's tcp, as between hosts. */
TEST(slices_and_fetches_keep_every_byte_over_tcp)
{
    const int rc = mpirun(2, "--mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include lo", "slices");
    ck_assert_msg(rc == 0, "%d: %s", rc, output);
    ck_assert_uint_eq(count("is done"), 2);
}

/* Ranks that mpirun left are this process's to wait for; one that was left alive ends by its alarm. */
static void expect_no_orphan(void)
{
    for (int status; waitpid(-1, &status, 0) > 0;)
        ck_assert_msg(!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM, "a rank lived on: %s", output);
}

/* mpirun itself notices the death, names the rank, and ends the others by SIGTERM. */
TEST(a_rank_that_is_killed_ends_the_others_by_the_launcher)
{
    const int rc = mpirun(3, "", "killed");
    ck_assert_msg(rc != 0 && rc != 3, "%d: %s", rc, output);
    ck_assert_holds(output, "process rank 1", "exited on signal 9");
    ck_assert_msg(count("is done") == 0, "%s", output);
    expect_no_orphan();
}

/* A launcher that lets the others go on, as srun without --kill-on-bad-exit: they notice the silence themselves. */
TEST(a_rank_that_is_killed_is_named_by_each_other_within_its_silence)
{
    mpirun(3, "--mca orte_enable_recovery 1", "killed"); /* whose status does not say so then */
    ck_assert_holds(output, "rank 2: host 1 is lost: nothing came from it for 3000 ms",
                    "rank 0: host 1 is lost, as host 2 says");
    ck_assert_uint_eq(count("is lost"), 2);
    expect_no_orphan();
}

TEST(a_rank_that_hangs_is_lost_like_one_that_is_killed)
{
    const int rc = mpirun(2, "", "hang");
    ck_assert_msg(rc == 1, "%d: %s", rc, output);
    ck_assert_holds(output, "rank 0: host 1 is lost: nothing came from it for 3000 ms");
    expect_no_orphan();
}

/* mpirun leaves each the time to say so, however soon the other has ended; its own status then says nothing. */
TEST(hosts_with_other_sizes_do_not_start)
{
    mpirun(2, "--mca orte_abort_on_non_zero_status 0", "sizes");
    ck_assert_uint_eq(count("the hosts of this job have slots of different numbers or sizes"), 2);
}

TEST(a_host_that_cannot_start_keeps_no_other_waiting)
{
    mpirun(2, "--mca orte_abort_on_non_zero_status 0", "impossible");
    ck_assert_holds(output, "a slot of 2147483648 bytes is larger than an MPI message",
                    "the hosts of this job have slots of different numbers or sizes");
}

TEST(a_process_that_no_launcher_started_is_refused)
{
    uint32_t host, n;
    struct hosts *hosts;
    struct error err;

    ck_assert_int_eq(hosts_find("mpi", &err)->open(&hosts, &host, &n, &err), -EINVAL);
    ck_assert_str_eq(err.text, "no launcher started this process: start it by mpirun or srun");
    ck_assert_ptr_null(hosts_find("smoke", &err));
    ck_assert_str_eq(err.text, "hosts are not reached by 'smoke': it is mpi");
}
