/* bench_network: how fast ranges of memory pass through two bulk connections (proto/net/bulk.h) on loopback, from one
 * process to another, with what bounds them measured in the same rounds: plain tcp, by chunks of the same size from one
 * thread to one thread; and each cipher by itself, sealed in one process while the other opens. On a machine of two
 * cores all of these share them, so sealing, sending, receiving and opening together cannot come to the lower of the
 * two.
 *
 *   bench_network [MIB] */
#include "proto/net/bulk.h"
#include "tools/bench/samples.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 7, RANGE = 16 << 20, KINDS = 3 };

static const struct kind {
    enum cipher_kind kind;
    unsigned flags;
} kinds[KINDS] = {{CIPHER_AES, HANDSHAKE_AES}, {CIPHER_CHACHA, 0}, {CIPHER_PLAIN, HANDSHAKE_PLAIN}};

static size_t total = (size_t)512 << 20; /* bytes of a round */
static uint8_t *memory;                  /* (RANGE) */

static void bench_network_die(const char *what)
{
    perror(what);
    exit(1);
}

/* Two ends of a tcp connection on loopback. */
static void connect_pair(int ends[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);

    if (bind(listener, (struct sockaddr *)&at, sizeof at) || listen(listener, 1) ||
        getsockname(listener, (struct sockaddr *)&at, &size))
        bench_network_die("listening");
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(ends[0], (struct sockaddr *)&at, sizeof at))
        bench_network_die("connecting");
    ends[1] = accept(listener, NULL, NULL);
    if (ends[1] < 0)
        bench_network_die("accepting");
    close(listener);
}

/* ---- what bounds it ---------------------------------------------------------------------------------------------- */

static void send_plain(int fd)
{
    for (size_t at = 0; at < total;) {
        const ssize_t n = send(fd, memory + at % RANGE, BULK_CHUNK, MSG_NOSIGNAL);
        if (n < 0)
            bench_network_die("sending");
        at += (size_t)n;
    }
}

static void receive_plain(int fd)
{
    for (size_t at = 0; at < total;) {
        const ssize_t n = recv(fd, memory + at % (RANGE - BULK_CHUNK), BULK_CHUNK, 0);
        if (n <= 0)
            bench_network_die("receiving");
        at += (size_t)n;
    }
}

static void run_cipher(const struct kind *kind, bool seals)
{
    static const uint8_t key[KEY_BYTES] = {7};
    uint8_t *frame = malloc(CIPHER_HEADER_BYTES + BULK_CHUNK + CIPHER_TAG_BYTES);
    struct cipher cipher;

    cipher_init(&cipher, kind->kind, key);
    cipher_seal(&cipher, frame, memory, BULK_CHUNK, 0);
    for (size_t at = 0; at < total; at += BULK_CHUNK) {
        if (seals)
            cipher_seal(&cipher, frame, memory + at % RANGE, BULK_CHUNK, 0);
        else if (cipher_open(&cipher, memory + at % RANGE, frame + CIPHER_HEADER_BYTES, BULK_CHUNK, 0))
            exit(1);
    }
    free(frame);
}

/* ---- bulk -------------------------------------------------------------------------------------------------------- */

struct end {
    struct bulk bulk;
    uv_poll_t grants; /* the sender's: a byte for each grant */
    int grant_fd;
    size_t n_left; /* ranges */
};

static void bench_network_on_received(struct bulk *b)
{
    struct end *end = b->data;

    if (--end->n_left == 0)
        uv_stop(b->tcp.loop);
}

static void bench_network_on_consumed(struct bulk *b, unsigned n)
{
    const struct end *end = b->data;
    const uint8_t byte = (uint8_t)n;

    if (write(end->grant_fd, &byte, 1) != 1)
        bench_network_die("granting");
}

static void on_grant(uv_poll_t *poll, int status, int events)
{
    struct end *end = poll->data;
    uint8_t bytes[64];
    const ssize_t n = read(end->grant_fd, bytes, sizeof bytes);

    (void)status, (void)events;
    for (ssize_t i = 0; i < n; i++)
        bulk_grant(&end->bulk, bytes[i]);
    if (n == 0)
        uv_stop(poll->loop); /* all has come */
}

static void bench_network_on_sent(struct bulk *b)
{
    (void)b;
}

static void bench_network_on_end(struct bulk *b, const char *fault)
{
    (void)b;
    if (fault) {
        fprintf(stderr, "bench_network: %s\n", fault);
        exit(1);
    }
}

static void bench_network_on_closed(struct bulk *b)
{
    (void)b;
}

static const struct bulk_events events = {bench_network_on_received, bench_network_on_consumed, bench_network_on_sent,
                                          bench_network_on_end, bench_network_on_closed};

static void run_bulk(const struct kind *kind, int fd, int grant_fd, bool sends)
{
    struct end end = {.grant_fd = grant_fd, .n_left = total / RANGE};
    struct handshake h = {.flags = kind->flags};
    uv_loop_t loop;

    uv_loop_init(&loop);
    if (bulk_open(&end.bulk, &loop, fd, &h, &events, &end))
        bench_network_die("opening");
    for (size_t i = 0; i < total / RANGE; i++)
        if (sends ? bulk_send(&end.bulk, memory, RANGE) : bulk_expect(&end.bulk, memory, RANGE))
            exit(1);
    if (sends) {
        uv_poll_init(&loop, &end.grants, grant_fd);
        end.grants.data = &end;
        uv_poll_start(&end.grants, UV_READABLE, on_grant);
    }
    uv_run(&loop, UV_RUN_DEFAULT);
}

/* ---- rounds ------------------------------------------------------------------------------------------------------ */

enum what { PLAIN_TCP, CIPHER, BULK };

/* Bytes/s, in GB/s: the parent sends or seals, a child receives or opens; until the child is done. */
static double bench_network_measure(enum what what, const struct kind *kind)
{
    int ends[2], grants[2];
    int status;

    connect_pair(ends);
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, grants))
        bench_network_die("a pair of sockets");
    const double began = samples_now_ms();
    const pid_t child = fork();
    if (child < 0)
        bench_network_die("forking");
    const bool sends = child > 0;
    const int fd = ends[!sends], grant_fd = grants[!sends];
    close(ends[sends]);
    close(grants[sends]);
    if (what == BULK)
        run_bulk(kind, fd, grant_fd, sends);
    else if (what == CIPHER)
        run_cipher(kind, sends);
    else if (sends)
        send_plain(fd);
    else
        receive_plain(fd);
    if (!sends)
        _exit(0);
    if (waitpid(child, &status, 0) < 0 || status)
        exit(1);
    close(grant_fd);
    if (what != BULK)
        close(fd);
    return (double)total / 1e6 / (samples_now_ms() - began);
}

static double middle(const double *rates)
{
    struct samples s = {.n = ROUNDS};

    memcpy(s.ms, rates, ROUNDS * sizeof *rates);
    return samples_median(&s);
}

int main(int argc, char **argv)
{
    double tcp[ROUNDS], cipher[KINDS][ROUNDS], bulk[KINDS][ROUNDS];

    if (argc > 1)
        total = (size_t)atoi(argv[1]) << 20;
    total -= total % RANGE;
    memory = malloc(RANGE);
    if (sodium_init() < 0 || !memory || !total)
        return 1;
    memset(memory, 1, RANGE);
    for (int r = 0; r < ROUNDS; r++) {
        tcp[r] = bench_network_measure(PLAIN_TCP, NULL);
        for (int k = 0; k < KINDS; k++) {
            const bool can = kinds[k].kind != CIPHER_AES || cipher_has_aes();
            cipher[k][r] = can ? bench_network_measure(CIPHER, &kinds[k]) : 0;
            bulk[k][r] = can ? bench_network_measure(BULK, &kinds[k]) : 0;
        }
    }
    printf("plain tcp, chunks of %d KiB: %.2f GB/s\n", BULK_CHUNK >> 10, middle(tcp));
    for (int k = 0; k < KINDS; k++) {
        const double c = middle(cipher[k]), lower = c < middle(tcp) ? c : middle(tcp);
        if (c > 0)
            printf("%-24s bulk %.2f GB/s, cipher %.2f GB/s: %.2f of the lower of tcp and cipher\n",
                   cipher_name(kinds[k].kind), middle(bulk[k]), c, middle(bulk[k]) / lower);
    }
    return 0;
}
