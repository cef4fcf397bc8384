/* Workers that attach by tcp compute the bits of local ones: alone, mixed with local ones, killed, without encryption,
 * in every kind of job. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(slow)

static char address[64]; /* of the daemon under test, "tcp://127.0.0.1:PORT"; a next one gets it, too */
static bool plain;

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 2, 2, 48, 32, "\"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1");
    processes_config_with("relu.json", 2, 2, 48, 32, "\"activation_function\": \"relu\", \"resid_pdrop\": 0.1");
    processes_text("text.txt", 4000);
    processes_text("few.txt", 1000); /* of which steps see rows again */
    expect("epsd --make-key key", 0);
    plain = false;
    *address = 0;
}

SUITE_TIMEOUT(180)
SUITE_FIXTURE(setup, processes_remove)

static pid_t start_daemon(void)
{
    const char *const argv[] = {"--listen",
                                "lab",
                                "--listen",
                                *address ? address : "tcp://127.0.0.1:0",
                                "--key",
                                processes_path("key"),
                                plain ? "--plain-bulk" : NULL,
                                NULL};

    processes_await_free("lab");
    unlink(processes_path("epsd.log"));
    const pid_t pid = processes_start("epsd", argv, processes_path("epsd.log"));
    processes_await_workers("lab", 0);
    char *log = processes_read(processes_path("epsd.log"));
    const char *at = strstr(log, "tcp://");
    ck_assert_ptr_nonnull(at);
    snprintf(address, sizeof address, "%.*s", (int)strcspn(at, " "), at);
    free(log);
    return pid;
}

static pid_t start_worker(bool remote, const char *log)
{
    const char *const there[] = {
        "--connect", address, "--key", processes_path("key"), "--device-mem", "32MiB", plain ? "--plain-bulk" : NULL,
        NULL};
    const char *const here[] = {"--connect", "lab", "--device-mem", "32MiB", NULL};

    return processes_start("eps-worker", remote ? there : here, processes_path(log));
}

/* n workers, those of the bits set in `remote` by tcp. */
static pid_t start_all(pid_t *workers, uint32_t n, unsigned remote)
{
    const pid_t pid = start_daemon();

    for (uint32_t i = 0; i < n; i++) {
        workers[i] = start_worker(remote >> i & 1, print("worker-%u.log", i));
        processes_await_workers("lab", i + 1);
    }
    return pid;
}

static void stop_all(pid_t daemon, const pid_t *workers, uint32_t n)
{
    kill(daemon, SIGTERM);
    ck_assert_int_eq(processes_wait(daemon), 0);
    for (uint32_t i = 0; i < n; i++)
        ck_assert_int_eq(processes_wait(workers[i]), 0);
    processes_await_nobody();
}

/* ---- training --------------------------------------------------------------------------------------------------- */

struct run {
    const char *name;
    uint32_t workers, parts;
    unsigned remote;     /* a bit for each worker */
    const char *options; /* of eps train */
    bool plain;
    const char *model, *data;
};

static const struct run runs[] = {
    {"one, bulk not encrypted", 1, 1, 1, "--optimizer adamw", true, "model.json", "text.txt"},
    {"one and a local one, AdamA in 16 bits", 2, 4, 2,
     "--optimizer adama --precision bf16 --moments bf16 --grad-dtype bf16", false, "model.json", "text.txt"},
    {"one and a local one, most of the model frozen in NF4", 2, 2, 2,
     "--optimizer adamw --freeze 'h.*.c_*.weight' 'w*' --base nf4", false, "model.json", "text.txt"},
    {"one and a local one, norms of gradients remembered", 2, 4, 2, "--optimizer adamw --approximate wta=0.3", false,
     "relu.json", "few.txt"},
};

static const char *train_line(const struct run *run, const char *out)
{
    return print("eps train --connect lab --model %s --data %s --steps 4 --batch 12 --seq 32 --parts %u "
                 "--eval-every 2 --save-every 100 --deterministic %s --out %s",
                 run->model, run->data, run->parts, run->options, out);
}

TEST_EACH(workers_by_tcp_compute_the_bits_of_local_ones, COUNT(runs))
{
    const struct run *run = &runs[_i];
    pid_t workers[2] = {0}, daemon;

    daemon = start_all(workers, run->workers, 0);
    expect(train_line(run, "whole"), 0);
    stop_all(daemon, workers, run->workers);
    plain = run->plain;
    daemon = start_all(workers, run->workers, run->remote);
    expect(train_line(run, "remote"), 0);
    outputs_check_same_latest("whole", "remote");
    expect("eps top lab --once", 0, plain ? "by tcp, bulk not encrypted" : "by tcp");
    expect_file(processes_path("epsd.log"), plain ? "bulk by Poly1305, not encrypted" : "has the key; bulk by ");
    expect_absent(processes_path("epsd.log"), "was cut off", "turned away");
    stop_all(daemon, workers, run->workers);
}

/* Rows of an encoder-decoder have lengths; and from the second epoch, the third step, on, the norms of their
 * gradients. */
TEST(a_worker_by_tcp_trains_an_encoder_decoder)
{
    static const char job[] =
        "--model t5.json --data sums.jsonl --seq 64 --source-seq 24 --batch 12 --parts 2 --steps 4 "
        "--microbatch 3 --approximate wta=0.3,coded=8 --save-every 100";

    processes_put_text(
        "t5.json", "{\"model_type\": \"t5\", \"d_model\": 32, \"d_kv\": 8, \"d_ff\": 64, \"num_heads\": 4, "
                   "\"num_layers\": 2, \"vocab_size\": 256, \"dropout_rate\": 0.1, \"feed_forward_proj\": \"relu\", "
                   "\"relative_attention_num_buckets\": 8, \"relative_attention_max_distance\": 16, "
                   "\"decoder_start_token_id\": 0, \"pad_token_id\": 0, \"eos_token_id\": 1}");
    expect("for i in $(seq 24); do printf '{\"source\": \"%s and one\", \"target\": \"is %s\"}\\n' $i $((i + 1)); done "
           ">sums.jsonl",
           0);
    expect(print("eps train %s --device cpu --device-mem 32MiB --out whole", job), 0,
           "norms of gradients are remembered");
    const pid_t daemon = start_daemon();
    const pid_t worker = start_worker(true, "worker.log");
    processes_await_workers("lab", 1);
    expect(print("eps train --connect lab %s --out remote", job), 0);
    outputs_check_same_latest("whole", "remote");
    expect("eps eval --connect lab --model remote/latest --data sums.jsonl", 0);
    stop_all(daemon, &worker, 1);
}

/* The stash is on the host of its worker. */
TEST(a_worker_by_tcp_stays_in_the_smallest_memory)
{
    static const char job[] = "--model model.json --data text.txt --steps 3 --batch 12 --seq 32 --save-every 100";
    const char *const argv[] = {"--connect", address, "--key", processes_path("key"), "--device-mem", "2804352", NULL};

    expect(print("eps train %s --device-mem 2804352 --out whole", job), 0, "activation checkpoints on the host");
    const pid_t daemon = start_daemon();
    const pid_t worker = processes_start("eps-worker", argv, processes_path("worker.log"));
    expect(print("eps train --connect lab %s --out remote", job), 0);
    outputs_check_same_latest("whole", "remote");
    stop_all(daemon, &worker, 1);
}

/* ---- lost ------------------------------------------------------------------------------------------------------- */

/* At the end of a step, while the next may be under way. */
struct fate {
    int signal; /* 0: nothing happens */
    pid_t worker, next;
};

static void on_step(void *user, const struct eps_step *step)
{
    struct fate *fate = user;

    if (step->step != 2 || !fate->signal)
        return;
    kill(fate->worker, fate->signal);
    fate->next = start_worker(true, "next.log");
}

static void train_with(struct fate *fate, const char *out)
{
    static const char *const files[] = {"text.txt"};
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options options = processes_options("model.json", files, out);
    struct eps_error error = {""};

    options.connect = "lab";
    options.steps = 8, options.batch = 12, options.seq = 32, options.parts = 2;
    options.optimizer = EPS_ADAMW, options.deterministic = true;
    const int rc = eps_train(&options, &events, fate, &error);
    ck_assert_msg(rc == 0, "%s", error.text);
}

/* The one that stays is of this host. */
TEST(a_killed_worker_by_tcp_costs_no_bit)
{
    pid_t workers[2];
    const pid_t daemon = start_all(workers, 2, 2);
    struct fate none = {0}, fate = {.signal = SIGKILL, .worker = workers[1]};

    train_with(&none, "whole");
    train_with(&fate, "remote");
    outputs_check_same_latest("whole", "remote");
    expect_file(processes_path("epsd.log"), "was lost after", "killed");
    workers[1] = fate.next;
    stop_all(daemon, workers, 2);
}

/* It has read what the daemon answered: before that it waits without a word. */
static bool is_attached_again(void *context)
{
    (void)context;
    return processes_count(processes_path("worker-0.log"), "attached as a worker") == 2;
}

static bool waits_again(void *context)
{
    (void)context;
    return processes_count(processes_path("worker-0.log"), "is gone") == 2;
}

/* Whenever the share ends: nothing is lost. */
TEST(a_worker_by_tcp_that_is_told_to_leave_finishes_its_share)
{
    pid_t workers[2];
    const pid_t daemon = start_all(workers, 2, 3);
    struct fate none = {0}, fate = {.signal = SIGTERM, .worker = workers[1]};

    train_with(&none, "whole");
    train_with(&fate, "remote");
    outputs_check_same_latest("whole", "remote");
    ck_assert_int_eq(processes_wait(workers[1]), 0);
    expect_absent(processes_path("epsd.log"), "was lost", "does not send");
    workers[1] = fate.next;
    stop_all(daemon, workers, 2);
}

/* The daemon is killed and started again on the same port: the worker comes by itself. Again, and a signal ends a
 * worker that waits. */
TEST(a_worker_by_tcp_finds_the_successor_of_a_killed_daemon)
{
    pid_t worker, daemon = start_all(&worker, 1, 1);

    ck_assert_int_eq(kill(daemon, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(daemon), 128 + SIGKILL);
    processes_await_text("worker-0.log", print("the daemon at %s is gone: killed; waiting for the next one", address));
    daemon = start_daemon();
    processes_await_workers("lab", 1);
    ck_assert_uint_eq(processes_count(processes_path("worker-0.log"), "is gone"), 1);
    expect_absent(processes_path("epsd.log"), "turned away", "put off");
    ck_assert(processes_until(is_attached_again, NULL));

    ck_assert_int_eq(kill(daemon, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(daemon), 128 + SIGKILL);
    ck_assert(processes_until(waits_again, NULL));
    ck_assert_int_eq(kill(worker, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(worker), 0);
}

struct crowd {
    struct sockaddr_in at;
    int fds[64];
};

static bool is_closed(int fd)
{
    char byte;

    return fd < 0 || recv(fd, &byte, 1, MSG_DONTWAIT) >= 0 || errno != EAGAIN;
}

/* For each that the daemon has closed another one comes, until the worker is in. */
static bool is_in(void *context)
{
    struct crowd *crowd = context;

    for (size_t i = 0; i < COUNT(crowd->fds); i++) {
        if (!is_closed(crowd->fds[i]))
            continue;
        if (crowd->fds[i] >= 0)
            close(crowd->fds[i]);
        crowd->fds[i] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        ck_assert_int_eq(connect(crowd->fds[i], (struct sockaddr *)&crowd->at, sizeof crowd->at), 0);
    }
    return processes_count(processes_path("epsd.log"), "has the key") > 0;
}

/* Others hold all places, and want each that is taken from them back. */
TEST(a_worker_with_the_key_comes_in_although_others_knock)
{
    struct crowd crowd = {.at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)}};
    const pid_t daemon = start_daemon();

    crowd.at.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    for (size_t i = 0; i < COUNT(crowd.fds); i++)
        crowd.fds[i] = -1;
    ck_assert(!is_in(&crowd));

    const pid_t worker = start_worker(true, "worker.log");
    ck_assert(processes_until(is_in, &crowd));
    for (size_t i = 0; i < COUNT(crowd.fds); i++)
        close(crowd.fds[i]);
    processes_await_workers("lab", 1);
    stop_all(daemon, &worker, 1);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

TEST(evaluation_and_generation_by_tcp_are_those_of_local_workers)
{
    static const char *const commands[] = {
        "eps eval --model whole/latest --data text.txt --json",
        "eps generate --model whole/latest --prompt 'The ' --tokens 20 --seed 3",
        "eps generate --model whole/latest --prompt 'The ' --prompt A --samples 2 --tokens 20 --seed 3",
    };
    pid_t worker;

    expect("eps train --model model.json --data text.txt --steps 2 --batch 12 --seq 32 --out whole", 0);
    const pid_t daemon = start_all(&worker, 1, 1);
    for (int i = 0; i < COUNT(commands); i++) {
        char here[512];
        expect(commands[i], 0);
        snprintf(here, sizeof here, "%s", command_out());
        ck_assert_msg(*here, "%s: nothing was said", commands[i]);
        expect(print("%s --connect lab", commands[i]), 0, here);
    }
    stop_all(daemon, &worker, 1);
}

/* Its process has a number of another host: here some other process may have it. */
TEST(of_a_worker_by_tcp_the_system_has_no_figures)
{
    pid_t workers[2];
    const pid_t daemon = start_all(workers, 2, 2);
    json_t *memory = expect_json("eps mem lab --json", 0);

    ck_assert_double_gt(json_number_at(memory, "workers.0.resident"), 0);
    ck_assert(json_is_null(json_at(memory, "workers.1.resident")));
    json_decref(memory);
    stop_all(daemon, workers, 2);
}

TEST(a_worker_without_the_key_hears_why)
{
    pid_t worker;
    const pid_t daemon = start_daemon();

    expect("epsd --make-key other", 0);
    expect(print("eps-worker --connect %s --key other --device cpu --device-mem 32MiB", address), 1);
    ck_assert_holds(command_err(), "its key is another one; tried 3 times\n");
    expect(print("eps-worker --connect %s --key key --plain-bulk --device cpu --device-mem 32MiB", address), 1);
    ck_assert_holds(command_err(), "encrypts all bytes", "give it to both, or to neither; tried 3 times\n");
    ck_assert_uint_eq(processes_count(processes_path("epsd.log"), "has no key, or another one"),
                      3); /* as damage may pass */
    worker = start_worker(true, "worker.log");
    processes_await_workers("lab", 1);
    stop_all(daemon, &worker, 1);
}

/* What the processes that have the key hold of it: how often, and whether a core dump would have it. */
struct copies {
    unsigned n, n_dumped;
};

static void count_in(struct copies *copies, int memory, unsigned long from, unsigned long to, const uint8_t *what,
                     size_t n)
{
    enum { CHUNK = 1 << 20 };
    static uint8_t bytes[CHUNK + 128];

    for (unsigned long at = from; at < to; at += CHUNK) {
        const size_t wanted = to - at < sizeof bytes ? to - at : sizeof bytes; /* what lies across two chunks, too */
        const ssize_t got = pread(memory, bytes, wanted, (off_t)at);
        for (const uint8_t *p = bytes; got > 0 && (p = memmem(p, (size_t)(bytes + got - p), what, n)); p++)
            copies->n += p < bytes + CHUNK;
    }
}

/* Mappings that are left out of cores have "dd" among their flags. */
static struct copies find_copies(pid_t pid, const uint8_t *what, size_t n)
{
    struct copies all = {0}, here = {0};
    char path[64], line[512];

    snprintf(path, sizeof path, "/proc/%d/mem", (int)pid);
    const int memory = open(path, O_RDONLY | O_CLOEXEC);
    snprintf(path, sizeof path, "/proc/%d/smaps", (int)pid);
    FILE *maps = fopen(path, "re");
    ck_assert(memory >= 0 && maps);
    while (fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        if (sscanf(line, "%lx-%lx r", &from, &to) == 2 && strchr(line, '-') < strchr(line, ' ')) {
            here = (struct copies){0};
            count_in(&here, memory, from, to, what, n);
            all.n += here.n;
        } else if (strncmp(line, "VmFlags:", 8) == 0 && !strstr(line, " dd")) {
            all.n_dumped += here.n;
        }
    }
    fclose(maps);
    close(memory);
    return all;
}

TEST_IF(the_key_is_in_memory_once_and_in_no_core, !SANITIZED)
{
    pid_t processes[2]; /* worker, daemon */
    uint8_t key[32];

    processes[1] = start_all(processes, 1, 1);
    char *line = processes_read(processes_path("key"));
    for (unsigned i = 0; i < sizeof key; i++)
        ck_assert_int_eq(sscanf(line + strlen("eps-key-1 ") + 2 * i, "%2hhx", &key[i]), 1);
    for (unsigned i = 0; i < 2; i++) {
        const struct copies bytes = find_copies(processes[i], key, sizeof key);
        const struct copies digits = find_copies(processes[i], (const uint8_t *)line + strlen("eps-key-1 "), 64);
        ck_assert_msg(bytes.n == 1 && bytes.n_dumped == 0, "%s: %u, of these %u in a core", i ? "epsd" : "eps-worker",
                      bytes.n, bytes.n_dumped);
        ck_assert_uint_eq(digits.n, 0);
    }
    free(line);
    stop_all(processes[1], processes, 1);
}

/* It ends, though the daemon lives, and another worker has the job. The thread sanitizer writes a file of its own. */
TEST_IF(a_worker_that_cannot_take_a_job_does_not_come_again, !THREAD_SANITIZED)
{
    pid_t other;
    const pid_t daemon = start_all(&other, 1, 0);
    const char *line = print("(ulimit -f 0; exec %s/eps-worker --connect %s --key key --device cpu --device-mem 32MiB "
                             "2>&1) | cat >worker.log",
                             BIN_DIR, address);
    const pid_t worker = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);

    processes_await_workers("lab", 2);
    expect("eps train --connect lab --model model.json --data text.txt --batch 4 --parts 2 --steps 2 --out run", 0);
    ck_assert_int_eq(processes_wait(worker), 0);
    ck_assert_uint_eq(processes_count(processes_path("worker.log"), "attached as"), 1);
    expect_file(processes_path("worker.log"), "refused: ", "(ulimit -f)");
    stop_all(daemon, &other, 1);
}

/* It takes the request, and has no room for the weights. */
TEST_IF(a_worker_that_cannot_keep_the_weights_is_left_out, !THREAD_SANITIZED)
{
    pid_t other;
    const pid_t daemon = start_all(&other, 1, 0);
    const char *line = print("ulimit -f 8; exec %s/eps-worker --connect %s --key key --device cpu --device-mem 32MiB",
                             BIN_DIR, address);
    const pid_t worker = processes_start("/bin/bash", (const char *const[]){"-c", line, NULL}, NULL);

    processes_await_workers("lab", 2);
    expect("eps train --connect lab --model model.json --data text.txt --batch 4 --parts 2 --steps 2 --out run", 0,
           " is left out: ", "eps-weights", "(ulimit -f)");
    ck_assert_uint_eq(processes_workers("lab"), 2);
    stop_all(daemon, (const pid_t[]){other, worker}, 2);
}

static int listen_anywhere(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at) | listen(listener, 8), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", ntohs(at.sin_port));
    return listener;
}

/* Carries bytes from one socket to the other until one ends; flips a bit of byte `at` from the first. */
static void carry(const int *ends, long at)
{
    struct pollfd polls[2] = {{.fd = ends[0], .events = POLLIN}, {.fd = ends[1], .events = POLLIN}};
    uint8_t bytes[65536];
    long n_carried = 0;

    while (poll(polls, 2, -1) > 0)
        for (int i = 0; i < 2; i++) {
            const ssize_t n = polls[i].revents ? read(ends[i], bytes, sizeof bytes) : 1;
            if (n <= 0)
                return;
            if (!polls[i].revents)
                continue;
            if (i == 0 && at >= n_carried && at < n_carried + n)
                bytes[at - n_carried] ^= 4;
            n_carried += i == 0 ? n : 0;
            for (ssize_t done = 0, now; done < n; done += now)
                if ((now = write(ends[!i], bytes + done, (size_t)(n - done))) <= 0)
                    return;
        }
}

/* Each connection to the listener goes on to the daemon; in the first n of them a byte of the worker's greeting is
 * damaged. */
static pid_t damage(int listener, int port, int n)
{
    struct sockaddr_in there = {.sin_family = AF_INET,
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                .sin_port = htons((uint16_t)port)};
    const pid_t pid = fork();

    if (pid != 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (int i = 0;; i++) {
        const int ends[2] = {accept4(listener, NULL, NULL, SOCK_CLOEXEC),
                             socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
        if (fork() == 0) {
            if (connect(ends[1], (struct sockaddr *)&there, sizeof there) == 0)
                carry(ends, i < n ? 40 : -1);
            _exit(0);
        }
        close(ends[0]), close(ends[1]);
    }
}

/* Another key looks the same: so the third ends it. */
TEST_EACH(a_handshake_that_was_damaged_is_tried_again_up_to_three_times, 2)
{
    const pid_t daemon = start_daemon();
    const int port = atoi(strrchr(address, ':') + 1), listener = listen_anywhere();
    const pid_t carrier = damage(listener, port, _i == 0 ? 2 : 3), worker = start_worker(true, "worker.log");

    if (_i == 0) {
        processes_await_workers("lab", 1);
        expect_file(processes_path("worker.log"), "its key is another one; trying again in 0.5 s, as a byte damaged",
                    "trying again in 1.0 s");
        stop_all(daemon, &worker, 1);
    } else {
        ck_assert_int_eq(processes_wait(worker), 1);
        expect_file(processes_path("worker.log"), "its key is another one; tried 3 times");
        stop_all(daemon, NULL, 0);
    }
    ck_assert_int_eq(kill(carrier, SIGKILL), 0);
    waitpid(carrier, NULL, 0);
    close(listener);
}

/* Somebody takes its connection, and dies. */
TEST(a_worker_by_tcp_whose_first_connection_breaks_comes_again)
{
    const int listener = listen_anywhere();
    const pid_t worker = start_worker(true, "worker.log");
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);

    close(listener);
    close(fd);
    processes_await_text("worker.log", "Connection refused; trying again, after pauses of up to 2 s");
    const pid_t daemon = start_daemon();
    processes_await_workers("lab", 1);
    stop_all(daemon, &worker, 1);
}

/* Whoever listens there says nothing. */
TEST(a_signal_ends_a_worker_that_dials)
{
    const int listener = listen_anywhere();
    char byte;

    const pid_t worker = start_worker(true, "worker.log");
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    ck_assert_int_eq(read(fd, &byte, 1), 1);
    ck_assert_int_eq(kill(worker, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(worker), 0);
    close(fd);
    close(listener);
}

/* ---- two network namespaces ------------------------------------------------------------------------------------- */

static int open_tunnel(void)
{
    struct ifreq request = {.ifr_name = "eps0", .ifr_flags = IFF_TUN | IFF_NO_PI};
    const int fd = open("/dev/net/tun", O_RDWR | O_CLOEXEC);

    return fd >= 0 && ioctl(fd, TUNSETIFF, &request) == 0 ? fd : -1;
}

/* As `test_network tunnel PID`: makes a device eps0 in this network namespace and one in that of the process, and
 * carries packets between them until it is killed. As `test_network probe`: only makes the first; status 0 if that is
 * allowed. */
static int tunnel(int argc, char **argv)
{
    char packet[65536], path[64];

    if (argc == 2 && strcmp(argv[1], "probe") == 0)
        return open_tunnel() < 0;
    if (argc != 3 || strcmp(argv[1], "tunnel") != 0)
        return -1;
    struct pollfd ends[2] = {{.fd = open_tunnel(), .events = POLLIN}, {.events = POLLIN}};
    snprintf(path, sizeof path, "/proc/%s/ns/net", argv[2]);
    const int there = open(path, O_RDONLY | O_CLOEXEC);
    if (ends[0].fd < 0 || there < 0 || setns(there, CLONE_NEWNET) || (ends[1].fd = open_tunnel()) < 0)
        return 1;
    puts("joined");
    fflush(stdout);
    while (poll(ends, 2, -1) > 0)
        for (int i = 0; i < 2; i++) {
            const ssize_t n = ends[i].revents & POLLIN ? read(ends[i].fd, packet, sizeof packet) : 0;
            if (n > 0 && write(ends[!i].fd, packet, (size_t)n) < 0 && errno != EIO) /* EIO: it is not up yet */
                return 1;
        }
    return 0;
}

SUITE_COMMAND(tunnel)

static bool can_make_tunnels(void)
{
    const bool can = system("unshare -rn " BIN_DIR "/test_network probe 2>/dev/null") == 0;

    if (!can)
        fprintf(stderr, "test_network: no network namespaces or tunnels are allowed here: training across two is not "
                        "tested\n");
    return can;
}

/* Of two ports, the system takes the even one for a connection first. The daemon comes later, and finds its port
 * free. */
TEST_IF(a_worker_is_not_taken_for_the_daemon_that_it_looks_for, can_make_tunnels())
{
    static const char script[] =
        "ip link set lo up && echo 40000 40001 >/proc/sys/net/ipv4/ip_local_port_range || exit 99\n"
        "eps-worker --connect tcp://127.0.0.1:40000 --key key --device cpu --device-mem 32MiB\n"
        "status=$?\n"
        "epsd --listen lab --listen tcp://127.0.0.1:40000 --key key & daemon=$!\n"
        "until grep -q ': listening at' err; do kill -0 $daemon || break; done\n"
        "kill $daemon\n"
        "wait $daemon || exit 99\n"
        "exit $status\n";

    processes_put_text("itself.sh", script);
    const int status = system(
        print("cd %s && PATH=" BIN_DIR ":$PATH timeout 60 unshare -rn bash itself.sh 2>err", processes_directory()));
    ck_assert_int_eq(WEXITSTATUS(status), 1);
    expect_file(processes_path("err"), "connecting to tcp://127.0.0.1:40000: Connection refused", "tried for 10 s",
                "listening at tcp://127.0.0.1:40000 for workers with the key");
}

/* Both programs run as root of a user namespace, each in a network of its own. */
TEST_IF(two_network_namespaces_train_by_tcp, can_make_tunnels())
{
    static const char script[] =
        "unshare -n sleep 1000 & there=$!\n"
        "trap 'kill $worker $daemon; wait $worker $daemon; kill $there $tunnel' EXIT\n"
        "until [ \"$(readlink /proc/$there/ns/net)\" != \"$(readlink /proc/self/ns/net)\" ]; do :; done\n"
        "exec 3< <(" BIN_DIR "/test_network tunnel $there); tunnel=$!\n"
        "read -r word <&3 && [ \"$word\" = joined ] || exit 1\n"
        "set -e\n"
        "there=\"$there -n\"\n"
        "ip addr add 10.77.0.1 peer 10.77.0.2 dev eps0\n"
        "ip link set eps0 up\n"
        "nsenter -t $there ip addr add 10.77.0.2 peer 10.77.0.1 dev eps0\n"
        "nsenter -t $there ip link set eps0 up\n"
        "epsd --listen lab --listen tcp://10.77.0.1:7070 --key key 2>epsd.log & daemon=$!\n"
        "nsenter -t $there eps-worker --connect tcp://10.77.0.1:7070 --key key --device cpu --device-mem 32MiB 2>log "
        "& worker=$!\n"
        "until grep -q 'worker 1 attached' epsd.log; do kill -0 $daemon; done\n"
        "eps train --connect lab --model model.json --data text.txt --steps 3 --batch 12 --seq 32 --out remote\n";

    processes_put_text("namespaces.sh", script);
    expect("eps train --model model.json --data text.txt --steps 3 --batch 12 --seq 32 --device cpu --device-mem 32MiB "
           "--out whole",
           0);
    ck_assert_int_eq(system(print("cd %s && PATH=" BIN_DIR ":$PATH timeout 120 unshare -rn bash namespaces.sh "
                                  ">out 2>err",
                                  processes_directory())),
                     0);
    outputs_check_same_latest("whole", "remote");
    expect_file(processes_path("epsd.log"), "worker at 10.77.0.2:", "has the key");
}
