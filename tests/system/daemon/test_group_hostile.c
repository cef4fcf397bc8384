/* A member of the group who means ill: what they can reach, and what becomes of everybody else. */
#include "proto/wire/files.h"
#include "proto/wire/message.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* The names in a directory of the service's, a blank behind each. */
static const char *entries(const char *directory)
{
    return outputs_names(print("%s/%s", users_service(), directory));
}

/* What a member's hostile process does; it says hello as each role, and is a peer that nothing keeps from anything
 * else. */
static uint8_t hello[MESSAGE_MAX_BYTES], question[MESSAGE_MAX_BYTES];
static size_t n_hello, n_question;

static void prepare_words(enum message_role role)
{
    const struct message m = {.kind = MESSAGE_HELLO, .sequence = 1, .hello = {.role = role, .device = "cpu"}};
    const struct message status = {.kind = MESSAGE_STATUS, .sequence = 2};

    n_hello = message_encode(hello, sizeof hello, &m);
    n_question = message_encode(question, sizeof question, &status);
}

/* A socket that is connected to this file of the daemon's, or -errno. */
static int knock(const char *name, int type)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const int fd = socket(AF_UNIX, type | SOCK_CLOEXEC, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/%.25s", users_service(), name);
    if (connect(fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    const int rc = -errno;
    close(fd);
    return rc;
}

/* With n descriptors; whether it is taken or not. */
static void throw(int fd, const void *bytes, size_t n, unsigned n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {0};
    struct iovec vector = {.iov_base = (void *)(uintptr_t)bytes, .iov_len = n};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    struct cmsghdr *c = (struct cmsghdr *)(void *)control;

    if (n_fds > 0) {
        header.msg_control = control;
        header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
        *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET,
                              .cmsg_type = SCM_RIGHTS,
                              .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
        for (unsigned i = 0; i < n_fds; i++)
            memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof fd);
    }
    sendmsg(fd, &header, MSG_NOSIGNAL | MSG_DONTWAIT);
}

static void throw_all_sorts(int fd, unsigned i)
{
    uint8_t bytes[2048];

    for (size_t k = 0; k < sizeof bytes; k++)
        bytes[k] = (uint8_t)rand();
    if (i % 4 > 0)
        throw(fd, hello, n_hello, i % 4 == 1 ? 128 : 0);
    throw(fd, bytes, i % 8 > 3 ? sizeof bytes : 100, i % 3 * 60);
    for (unsigned k = 0; i % 4 == 2 && k < 1000; k++) /* and reads none of the answers */
        throw(fd, question, n_question, 0);
    throw(fd, question, n_question, 253);
}

enum { N_ATTACKS = 120, N_HELD = 300 };

/* Exit status 0: it was kept out of where it may not come, and its connections are limited. */
static int attack(const char *channel, int told, int wait)
{
    char name[320];
    unsigned n_let_in = 0, n_refused = 0;
    char byte;

    snprintf(name, sizeof name, "s/%s", channel);
    if (knock(name, SOCK_STREAM) != -EACCES || knock("listener", SOCK_SEQPACKET) != -EACCES)
        return 3;
    snprintf(name, sizeof name, "%s/s", users_service());
    if (opendir(name) || errno != EACCES)
        return 4;
    for (unsigned i = 0; i < N_ATTACKS; i++) {
        prepare_words(i % 2 ? ROLE_VIEWER : ROLE_CLIENT);
        const int fd = knock("members", SOCK_SEQPACKET);
        if (fd < 0)
            return 5;
        throw_all_sorts(fd, i);
        close(fd);
    }
    if (write(told, "x", 1) != 1 || read(wait, &byte, 1) != 1)
        return 6;
    prepare_words(ROLE_VIEWER);
    for (unsigned i = 0; i < N_HELD; i++) { /* kept: an answer to HELLO, or a word of farewell */
        uint8_t bytes[MESSAGE_MAX_BYTES];
        const int fd = knock("members", SOCK_SEQPACKET);
        throw(fd, hello, n_hello, 0);
        ssize_t n;
        while ((n = recv(fd, bytes, sizeof bytes, 0)) < 0 && errno == ECONNRESET) /* told once, before the farewell */
            ;
        n_let_in += n > 3 && bytes[3] == MESSAGE_WELCOME;
        n_refused += n > 3 && bytes[3] == MESSAGE_DISMISSED;
    }
    if (write(told, "x", 1) != 1 || read(wait, &byte, 1) != 1)
        return 7;
    return n_let_in > 0 && n_refused > 0 ? 0 : 8;
}

/* As the member whose run it is not. */
static pid_t start_attack(const char *channel, int told, int wait)
{
    const pid_t pid = fork();

    if (pid == 0)
        _exit(users_become(USERS_PRIMARY, true) ? attack(channel, told, wait) : 2);
    return pid;
}

struct count {
    pid_t pid;
    unsigned n;
};

static bool has_as_few_fds(void *context)
{
    const struct count *count = context;

    return processes_count_fds(count->pid) <= count->n;
}

static off_t size_of_metrics(void)
{
    struct stat info;

    return stat("served/metrics.jsonl", &info) == 0 ? info.st_size : 0;
}

static bool has_grown(void *size)
{
    return size_of_metrics() > *(off_t *)size;
}

/* A few steps. */
static void check_goes_on(void)
{
    off_t size = size_of_metrics() + 1000;

    ck_assert_msg(processes_until(has_grown, &size), "the run stands");
}

SUITE_SKIP_UNLESS(users_can(), "only root can play several users")
SUITE_TIMEOUT(300)
SUITE_FIXTURE(users_setup, processes_remove)

/* One member's run, the owner's worker, and another member who means ill. */
TEST(a_hostile_member_reaches_no_channel_and_disturbs_nobody)
{
    const char *const service = users_service(), *const model = processes_config("tiny.json", 1, 2, 16, 32),
                      *const text = processes_text("tiny.txt", 8000), *const out = processes_path("served");
    const char *const worker[] = {"--connect", service, "--device-mem", "256MiB", NULL};
    const char *const train[] = {"train",   "--model",   model,       "--data", text,      "--out", out,
                                 "--steps", "100000000", "--connect", service,  "--batch", "4",     NULL};
    const pid_t daemon = users_start_service("--group"), own = users_start(USERS_OWNER, true, "eps-worker", worker);
    char channel[64], byte;
    int from[2], to[2];

    processes_await_workers(service, 1);
    snprintf(channel, sizeof channel, "%.*s", (int)strcspn(entries("s"), " "), entries("s"));
    ck_assert_str_eq(entries("s"), print("%s ", channel)); /* the only one */
    ck_assert_int_eq(mkdir(out, 0700) | chown(out, USERS_MEMBER, users_group()), 0);
    const pid_t run = users_start(USERS_MEMBER, true, "eps", train);
    check_goes_on();
    struct count fds = {.pid = daemon, .n = processes_count_fds(daemon)};

    ck_assert_int_eq(pipe2(from, O_CLOEXEC), 0);
    ck_assert_int_eq(pipe2(to, O_CLOEXEC), 0);
    const pid_t hostile = start_attack(channel, from[1], to[0]);
    close(from[1]);
    ck_assert_msg(read(from[0], &byte, 1) == 1, "status %d", processes_wait(hostile));
    ck_assert_msg(processes_until(has_as_few_fds, &fds), "%u descriptors, not %u", processes_count_fds(daemon), fds.n);
    check_goes_on();
    ck_assert_int_eq(write(to[1], "x", 1), 1);
    ck_assert_msg(read(from[0], &byte, 1) == 1, "status %d", processes_wait(hostile));
    check_goes_on();                                                /* while it keeps all that it can have */
    ck_assert_uint_le(processes_count_fds(daemon), fds.n + 64 + 4); /* and what is open for a moment */
    ck_assert_int_eq(users_eps(USERS_MEMBER, "status"), 0);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(processes_wait(own), 0);
    ck_assert_int_gt(processes_wait(run), 0); /* it was stopped, and has saved: */
    ck_assert_int_eq(access("served/latest/model.safetensors", R_OK), 0);
    ck_assert_int_eq(write(to[1], "x", 1), 1);
    ck_assert_int_eq(processes_wait(hostile), 0);
}

/* The number that a member's process tells when it does this. */
static int told_by_member(void (*act)(int told))
{
    char line[40] = "";
    int ends[2];

    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    const pid_t hostile = fork();
    ck_assert_int_ge(hostile, 0);
    if (hostile == 0) {
        if (!users_become(USERS_MEMBER, true))
            _exit(2);
        act(ends[1]);
        _exit(0);
    }
    close(ends[1]);
    const ssize_t n = read(ends[0], line, sizeof line - 1);
    close(ends[0]);
    ck_assert_int_eq(processes_wait(hostile), 0);
    ck_assert_int_gt(n, 0);
    return atoi(line);
}

enum { N_FLOODING = 16, N_SECONDS = 2, A_SECOND = 512 / 2 /* answers, which cost two messages each */ };

/* Answers of one connection that have come. */
static unsigned take_answers(int fd)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    unsigned n_answers = 0;

    for (ssize_t n; (n = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT)) > 3;)
        n_answers += bytes[3] == MESSAGE_STATUS_REPLY;
    return n_answers;
}

static double clock_s(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Asks as many questions as the daemon takes, for N_SECONDS at least; tells the number of its answers. They are no more
 * than it owes in so many seconds: its own are no shorter than the clock's, and may be one more at either end. */
static void flood(int told)
{
    struct message m = {.kind = MESSAGE_STATUS, .sequence = 1};
    const double began = clock_s();
    unsigned n_answers = 0;
    int fds[N_FLOODING];
    uint64_t sent[N_FLOODING];

    prepare_words(ROLE_VIEWER);
    for (unsigned i = 0; i < N_FLOODING; i++) {
        fds[i] = knock("members", SOCK_SEQPACKET);
        throw(fds[i], hello, n_hello, 0);
        sent[i] = 1;
    }
    while (clock_s() - began < N_SECONDS || n_answers < A_SECOND)
        for (unsigned i = 0; i < N_FLOODING; i++) {
            m.sequence = sent[i] + 1;
            n_question = message_encode(question, sizeof question, &m);
            sent[i] += send(fds[i], question, n_question, MSG_DONTWAIT | MSG_NOSIGNAL) > 0;
            n_answers += take_answers(fds[i]);
        }
    ck_assert_double_le(n_answers, (clock_s() - began + 2) * (A_SECOND + N_FLOODING));
    dprintf(told, "%u", n_answers);
}

/* 512 messages in a second are a user's, whatever the number of its connections. */
TEST(a_members_flood_of_requests_is_answered_at_a_bounded_rate)
{
    const pid_t daemon = users_start_service("--group");

    ck_assert_int_ge(told_by_member(flood), A_SECOND);
    ck_assert_int_eq(users_eps(USERS_MEMBER, "status"), 0);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

enum { N_PLANNED = 40, MOST_LAYERS = 4096 };

/* Asks for the memory by which a client serves its files, and puts this config.json there. */
static void put_config(int fd, const char *config)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(FILES_SENT * sizeof(int))];
    const struct message files = {.kind = MESSAGE_FILES, .sequence = 2};
    uint8_t bytes[MESSAGE_MAX_BYTES] = {0};
    struct iovec vector = {.iov_base = bytes, .iov_len = sizeof bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1};
    struct segment memory;
    int fds[FILES_SENT];

    n_question = message_encode(question, sizeof question, &files);
    throw(fd, question, n_question, 0);
    while (bytes[3] != MESSAGE_FILES) {
        header.msg_control = control, header.msg_controllen = sizeof control;
        ck_assert_int_gt(recvmsg(fd, &header, 0), 0);
    }
    ck_assert_uint_ge(header.msg_controllen, CMSG_LEN(sizeof fds));
    memcpy(fds, CMSG_DATA((struct cmsghdr *)(void *)control), sizeof fds);
    ck_assert_int_eq(segment_attach(&memory, fds[1], FILES_BYTES, SEGMENT_READ_WRITE, NULL), 0);
    memcpy(memory.base, config, strlen(config));
    segment_close(&memory);
}

enum { N_ASKED = 60, MOST_SENT = 12 };

static bool is_read(void *fd)
{
    int unread;

    ck_assert_int_eq(ioctl(*(int *)fd, SIOCOUTQ, &unread), 0);
    return unread == 0;
}

/* Asks for files again and again, and reads the answers only then; tells how many came with descriptors. */
static void hoard_files(int told)
{
    int fd = knock("members", SOCK_SEQPACKET);
    uint8_t bytes[MESSAGE_MAX_BYTES];
    unsigned n_sent = 0, n_refused = 0;

    prepare_words(ROLE_CLIENT);
    throw(fd, hello, n_hello, 0);
    for (unsigned i = 0; i < N_ASKED; i++) {
        const struct message files = {.kind = MESSAGE_FILES, .sequence = 2 + i};
        n_question = message_encode(question, sizeof question, &files);
        throw(fd, question, n_question, 0);
    }
    ck_assert(processes_until(is_read, &fd));                                      /* by the daemon */
    while (n_sent + n_refused < N_ASKED && recv(fd, bytes, sizeof bytes, 0) > 0) { /* which closes the descriptors */
        n_sent += bytes[3] == MESSAGE_FILES;
        n_refused += bytes[3] == MESSAGE_REFUSED;
    }
    dprintf(told, "%u", n_sent + n_refused == N_ASKED ? n_sent : N_ASKED);
}

TEST(a_member_that_reads_nothing_hoards_no_descriptors)
{
    const pid_t daemon = users_start_service("--group");
    const int n_sent = told_by_member(hoard_files);

    ck_assert_int_ge(n_sent, 1);
    ck_assert_int_le(n_sent, MOST_SENT);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* The config.json of the largest job that there can be: to plan it takes long, and it is refused. */
static const char *huge_config(void)
{
    return print("{\"model_type\": \"gpt2\", \"n_layer\": %d, \"n_head\": 64, \"n_embd\": 65536, "
                 "\"n_positions\": 1024, \"vocab_size\": 4000000}",
                 MOST_LAYERS);
}

static void bring_huge_job(int fd)
{
    const struct message job = {.kind = MESSAGE_JOB,
                                .sequence = 3,
                                .job = {.goal = {.purpose = PLAN_TRAIN, .batch = 4096, .seq = 1024, .n_parts = 64},
                                        .fresh = true,
                                        .files = true,
                                        .config_bytes = (uint32_t)strlen(huge_config()),
                                        .n_steps = 1,
                                        .beta1 = 0.9,
                                        .beta2 = 0.999,
                                        .epsilon = 1e-8}};

    n_question = message_encode(question, sizeof question, &job);
    throw(fd, question, n_question, 0);
}

/* Tells the most answers in a second. */
static void bring_huge_jobs(int told)
{
    unsigned n_answers = 0, n_before = 0, most = 0, n_seconds = 0;
    double second = clock_s();
    int fds[N_PLANNED];

    prepare_words(ROLE_CLIENT);
    for (unsigned i = 0; i < N_PLANNED; i++) {
        fds[i] = knock("members", SOCK_SEQPACKET);
        throw(fds[i], hello, n_hello, 0);
        put_config(fds[i], huge_config());
    }
    for (unsigned i = 0; i < N_PLANNED; i++)
        bring_huge_job(fds[i]);
    while ((n_seconds < N_SECONDS || n_answers == 0) && n_answers < N_PLANNED) {
        for (unsigned i = 0; i < N_PLANNED; i++) {
            uint8_t bytes[MESSAGE_MAX_BYTES];
            for (ssize_t n; (n = recv(fds[i], bytes, sizeof bytes, MSG_DONTWAIT)) > 3;) {
                n_answers += bytes[3] == MESSAGE_REFUSED;
                most = n_answers - n_before > most ? n_answers - n_before : most;
            }
        }
        if (clock_s() >= second + 1)
            n_seconds++, n_before = n_answers, second = clock_s();
    }
    dprintf(told, "%u", most);
}

/* The daemon answers nobody while it plans, so what is planned in a second is bounded by time: less than half of these,
 * where one takes 5 ms or more. */
TEST(a_members_huge_jobs_do_not_take_all_of_the_daemons_time)
{
    const pid_t daemon = users_start_service("--group");
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    const pid_t own = users_start(USERS_OWNER, true, "eps-worker", worker);

    processes_await_workers(users_service(), 1);
    const int most = told_by_member(bring_huge_jobs);
    ck_assert_int_ge(most, 1);
    ck_assert_int_lt(most, N_PLANNED / 2);
    /* once it answers again, which takes long where planning one does */
    processes_await_workers(users_service(), 1);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(processes_wait(own), 0);
}

/* The worker of a member has no channel either. */
TEST(a_members_worker_comes_by_the_connection)
{
    pid_t daemon = users_start_service("--group");
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    const pid_t lent = users_start(USERS_MEMBER, true, "eps-worker", worker);

    processes_await_workers(users_service(), 1);
    ck_assert_str_eq(entries("s"), "");
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(processes_wait(lent), 0);
}
