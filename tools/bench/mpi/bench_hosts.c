/* bench_hosts: the relay bandwidth between hosts, against that of bare MPI and of memcpy in the same rounds.
 *
 * A step's traffic: each host fetches the units of all others and sends them slices of as many bytes. Of n hosts that
 * own B / n bytes each, a host receives 2 B (n - 1) / n bytes, and sends as many. Relay bandwidth is these bytes
 * divided by the time of the slowest host: what a host's link carried in each direction. So any number of hosts
 * compares with the link's peak, as nccl-tests' bus bandwidth does. On one machine the peak is that of copies: each
 * byte is copied once or twice by MPI, and all ranks share the cores.
 *
 *   bench_hosts [RANKS [MIB [ROUNDS [LAUNCHER]]]]     MIB: B; LAUNCHER: "mpirun -n" unless named, as "srun -N2 -n"
 *
 * It starts itself as ranks: --table, --raw. */
#include "eps/hosts/hosts.h"
#include "tools/bench/samples.h"

#include <mpi.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PIECE = 16 << 20, N_SLOTS = 3, AHEAD = 4, PINGS = 1000 };

static void bench_hosts_die(const char *what)
{
    fprintf(stderr, "bench_hosts: %s\n", what);
    exit(1);
}

static void *bench_hosts_allocate(size_t bytes)
{
    void *const p = malloc(bytes + 1);

    if (!p)
        bench_hosts_die("no memory; name fewer MiB");
    return memset(p, 1, bytes + 1);
}

static size_t piece_bytes(size_t share, size_t k)
{
    return share - k * PIECE < PIECE ? share - k * PIECE : PIECE;
}

/* ---- by the table ------------------------------------------------------------------------------------------------ */

struct bench {
    const struct hosts_ops *ops;
    struct hosts *hosts;
    uint32_t host, n;
    sem_t sem;
    size_t share, n_pieces;
    uint8_t *exposed, *fetched; /* (share), (n, share) */
    size_t *n_sent, *n_asked;   /* (n) */
    size_t n_in, n_freed, n_fetched, n_ready, n_pongs;
    struct samples ping;
    double ping_ms;
};

static void bench_hosts_wake(void *data)
{
    sem_post(data);
}

static void send_piece(struct bench *b, uint32_t to, uint32_t slot)
{
    const size_t k = b->n_sent[to];

    if (k < b->n_pieces && ++b->n_sent[to])
        b->ops->send_slice(b->hosts, to, slot, NULL, 0, b->exposed + k * PIECE, piece_bytes(b->share, k));
}

static void fetch_piece(struct bench *b, uint32_t from)
{
    const size_t k = b->n_asked[from];

    if (k < b->n_pieces && ++b->n_asked[from])
        b->ops->fetch(b->hosts, from, 0, k * PIECE, b->fetched + from * b->share + k * PIECE, piece_bytes(b->share, k),
                      from);
}

static void bench_hosts_on_message(struct bench *b, const struct hosts_event *e)
{
    if (e->message[0] == 'r') {
        b->n_ready++;
    } else if (b->host == 1) {
        b->n_pongs++;
        b->ops->send(b->hosts, 0, "p", 1);
    } else {
        b->n_pongs++;
        if (b->ping.n < SAMPLES_MAX)
            samples_add(&b->ping, b->ping_ms);
        b->ping_ms = samples_now_ms();
        if (b->n_pongs < PINGS)
            b->ops->send(b->hosts, 1, "p", 1);
    }
}

static void bench_hosts_take(struct bench *b)
{
    struct hosts_event e;

    sem_wait(&b->sem);
    while (b->ops->next(b->hosts, &e)) {
        if (e.kind == HOSTS_LOST)
            bench_hosts_die(e.why);
        if (e.kind == HOSTS_MESSAGE)
            bench_hosts_on_message(b, &e);
        if (e.kind == HOSTS_SLICE)
            b->n_in++, b->ops->free_slot(b->hosts, e.host, e.slot);
        if (e.kind == HOSTS_FREED)
            b->n_freed++, send_piece(b, e.host, e.slot);
        if (e.kind == HOSTS_FETCHED)
            b->n_fetched++, fetch_piece(b, e.host);
    }
}

static void bench_hosts_meet(struct bench *b)
{
    for (uint32_t h = 0; h < b->n; h++)
        if (h != b->host)
            b->ops->send(b->hosts, h, "r", 1);
    while (b->n_ready < b->n - 1)
        bench_hosts_take(b);
    b->n_ready -= b->n - 1;
}

static int run_table(size_t bytes)
{
    static struct bench b;
    struct error err;
    struct rusage before, after;

    b.ops = hosts_find("mpi", &err);
    if (!b.ops || b.ops->open(&b.hosts, &b.host, &b.n, &err))
        bench_hosts_die(err.text);
    sem_init(&b.sem, 0, 0);
    b.share = bytes / b.n;
    b.n_pieces = (b.share + PIECE - 1) / PIECE;
    b.exposed = bench_hosts_allocate(b.share);
    b.fetched = bench_hosts_allocate(b.n * b.share);
    b.n_sent = calloc(b.n, sizeof *b.n_sent);
    b.n_asked = calloc(b.n, sizeof *b.n_asked);
    const struct hosts_options options = {.n_slots = N_SLOTS,
                                          .slot_bytes = PIECE,
                                          .inbox = bench_hosts_allocate((size_t)b.n * N_SLOTS * PIECE),
                                          .silence_ms = 60000,
                                          .notify = bench_hosts_wake,
                                          .data = &b.sem};
    b.ops->expose(b.hosts, 0, b.exposed, b.share);
    if (b.ops->start(b.hosts, &options, &err))
        bench_hosts_die(err.text);
    bench_hosts_meet(&b);
    const double began = samples_now_ms();
    for (uint32_t k = 0; k < AHEAD; k++)
        for (uint32_t i = 1; i < b.n; i++) {
            fetch_piece(&b, (b.host + i) % b.n);
            if (k < N_SLOTS)
                send_piece(&b, (b.host + i) % b.n, k);
        }
    const size_t all = (b.n - 1) * b.n_pieces;
    while (b.n_in < all || b.n_freed < all || b.n_fetched < all)
        bench_hosts_take(&b);
    printf("seconds %.6f\n", (samples_now_ms() - began) / 1e3);
    bench_hosts_meet(&b);
    if (b.host == 0) {
        b.ping_ms = samples_now_ms();
        b.ops->send(b.hosts, 1, "p", 1);
    }
    while (b.host < 2 && b.n_pongs < PINGS)
        bench_hosts_take(&b);
    if (b.host == 0)
        printf("ping %.3f\n", samples_median(&b.ping));
    bench_hosts_meet(&b);
    getrusage(RUSAGE_SELF, &before);
    sleep(2);
    getrusage(RUSAGE_SELF, &after);
    if (b.host == 0)
        printf("idle %.3f\n", ((double)(after.ru_utime.tv_sec + after.ru_stime.tv_sec - before.ru_utime.tv_sec -
                                        before.ru_stime.tv_sec) +
                               1e-6 * (double)(after.ru_utime.tv_usec + after.ru_stime.tv_usec -
                                               before.ru_utime.tv_usec - before.ru_stime.tv_usec)) /
                                  2);
    fflush(stdout);
    b.ops->close(b.hosts);
    return 0;
}

/* ---- by bare MPI, which spins ------------------------------------------------------------------------------------ */

static int run_raw(size_t bytes)
{
    int host, n;

    MPI_Init(NULL, NULL);
    MPI_Comm_rank(MPI_COMM_WORLD, &host);
    MPI_Comm_size(MPI_COMM_WORLD, &n);
    const size_t share = bytes / (size_t)n, n_pieces = (share + PIECE - 1) / PIECE;
    uint8_t *const out = bench_hosts_allocate(share), *const in = bench_hosts_allocate((size_t)n * share);
    MPI_Request *const requests = calloc((size_t)n * n_pieces * 2, sizeof *requests);
    double seconds = 0;
    for (int half = 0; half < 2; half++) { /* as many bytes as are fetched, and as are sent as slices */
        int n_requests = 0;
        MPI_Barrier(MPI_COMM_WORLD);
        const double began = samples_now_ms();
        for (size_t k = 0; k < n_pieces; k++)
            for (int i = 1; i < n; i++) {
                const int to = (host + i) % n, from = (host + n - i) % n;
                MPI_Irecv(in + (size_t)from * share + k * PIECE, (int)piece_bytes(share, k), MPI_BYTE, from, (int)k,
                          MPI_COMM_WORLD, &requests[n_requests++]);
                MPI_Isend(out + k * PIECE, (int)piece_bytes(share, k), MPI_BYTE, to, (int)k, MPI_COMM_WORLD,
                          &requests[n_requests++]);
            }
        MPI_Waitall(n_requests, requests, MPI_STATUSES_IGNORE);
        seconds += (samples_now_ms() - began) / 1e3;
    }
    printf("seconds %.6f\n", seconds);
    MPI_Barrier(MPI_COMM_WORLD);
    double began = samples_now_ms();
    for (int i = 1; i < n; i++) {
        memcpy(in + (size_t)i * share, out, share);
        memcpy(in + (size_t)i * share, out, share);
    }
    printf("copies %.6f\n", (samples_now_ms() - began) / 1e3);
    free(out);
    free(in);
    free(requests);
    MPI_Finalize();
    return 0;
}

/* ---- the launcher of both ---------------------------------------------------------------------------------------- */

struct round {
    double seconds, copies, ping, idle; /* the slowest rank's */
};

static struct round bench_hosts_run(const char *launcher, int n, const char *program, const char *how, size_t mib)
{
    char line[4096], word[16];
    struct round round = {0};
    double value;

    snprintf(line, sizeof line,
             "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 "
             "OMPI_MCA_hwloc_base_binding_policy=none %s %d %s %s %zu",
             launcher, n, program, how, mib);
    FILE *const pipe = popen(line, "r");
    while (pipe && fscanf(pipe, "%15s %lf", word, &value) == 2) {
        double *const to = strcmp(word, "seconds") == 0  ? &round.seconds
                           : strcmp(word, "copies") == 0 ? &round.copies
                           : strcmp(word, "ping") == 0   ? &round.ping
                                                         : &round.idle;
        *to = value > *to ? value : *to;
    }
    if (!pipe || pclose(pipe) != 0 || round.seconds <= 0)
        bench_hosts_die("the launcher failed");
    return round;
}

static void bench_hosts_add(struct samples *s, double value)
{
    s->ms[s->n++] = value;
}

int main(int argc, char **argv)
{
    if (argc == 3 && strcmp(argv[1], "--table") == 0)
        return run_table(strtoull(argv[2], NULL, 10) << 20);
    if (argc == 3 && strcmp(argv[1], "--raw") == 0)
        return run_raw(strtoull(argv[2], NULL, 10) << 20);
    const int n = argc > 1 ? atoi(argv[1]) : 2, n_rounds = argc > 3 ? atoi(argv[3]) : 5;
    const size_t mib = argc > 2 ? strtoull(argv[2], NULL, 10) : 512;
    const char *const launcher = argc > 4 ? argv[4] : "mpirun -n";
    struct samples table = {0}, raw = {0}, copies = {0}, ping = {0}, idle = {0};
    char program[4096] = "";

    if (n < 2 || mib < 1 || n_rounds < 1 || n_rounds > SAMPLES_MAX)
        bench_hosts_die("usage: bench_hosts [RANKS [MIB [ROUNDS [LAUNCHER]]]], RANKS from 2, MIB from 1");
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0)
        bench_hosts_die("its own file is not to be found");
    const double gigabytes = 2 * (double)mib * (1 << 20) / n * (n - 1) / 1e9;
    for (int i = 0; i < n_rounds; i++) {
        const struct round t = bench_hosts_run(launcher, n, program, "--table", mib),
                           r = bench_hosts_run(launcher, n, program, "--raw", mib);
        bench_hosts_add(&table, gigabytes / t.seconds);
        bench_hosts_add(&ping, t.ping * 1e3);
        bench_hosts_add(&idle, t.idle * 100);
        bench_hosts_add(&raw, gigabytes / r.seconds);
        bench_hosts_add(&copies, gigabytes / r.copies);
    }
    const double by_table = samples_median(&table), by_raw = samples_median(&raw), by_copies = samples_median(&copies);
    printf("%d hosts, %.2f GB each way and host: relay %.2f GB/s, %.2f of bare MPI (%.2f), %.2f of memcpy (%.2f)\n", n,
           gigabytes, by_table, by_table / by_raw, by_raw, by_table / by_copies, by_copies);
    printf("a message there and back %.0f us; an idle host %.1f %% of a core\n", samples_median(&ping),
           samples_median(&idle));
    return 0;
}
