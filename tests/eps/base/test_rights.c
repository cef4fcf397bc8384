/* What the daemon's user may do and a client may not, a client does not get by way of the daemon: with real processes
 * of two users. Only root can play them. */
#include "proto/model/file/checkpoint.h"
#include "proto/wire/segment.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define WORDS "words of the owner's\n"

static char theirs[300], mine[300], sticky[300], half[300];

static void give(const char *path, uid_t uid, mode_t mode)
{
    ck_assert_int_eq(chown(path, uid, users_group()), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void make_directory(char *path, const char *name, uid_t uid, mode_t mode)
{
    snprintf(path, 300, "%s", processes_path(name));
    ck_assert_int_eq(mkdir(path, 0700), 0);
    give(path, uid, mode);
}

/* The owner's directory with two files of theirs, the member's, and one that is open to all, where half a checkpoint
 * stands, which is swept where a run begins. */
static void setup(void)
{
    users_setup();
    make_directory(theirs, "theirs", USERS_OWNER, 0755);
    make_directory(mine, "mine", USERS_MEMBER, 0700);
    make_directory(sticky, "sticky", 0, 01777);
    make_directory(half, "sticky/step-3.partial", USERS_OWNER, 0755);
    give(processes_put_text("theirs/secret", WORDS), USERS_OWNER, 0600);
    give(processes_put_text("theirs/hers.json", WORDS), USERS_OWNER, 0644);
    give(processes_put_text("sticky/step-3.partial/model.safetensors", WORDS), USERS_OWNER, 0644);
}

static void check_theirs(void)
{
    ck_assert_str_eq(outputs_names(theirs), "hers.json secret ");
    outputs_check_file(processes_path("theirs/secret"), WORDS);
    outputs_check_file(processes_path("theirs/hers.json"), WORDS);
    outputs_check_file(processes_path("sticky/step-3.partial/model.safetensors"), WORDS);
}

static pid_t start(void)
{
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    const pid_t daemon = users_start_service("--group");

    users_start(USERS_OWNER, true, "eps-worker", worker);
    processes_await_workers(users_service(), 1);
    return daemon;
}

static void stop(pid_t daemon)
{
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

SUITE_SKIP_UNLESS(users_can(), "only root can play several users")
SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

/* ---- a member's files -------------------------------------------------------------------------------------------- */

static struct driver driver; /* the member's, in a process of its own */

static int open_file(const char *directory, const char *name, int flags)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    const int fd = open(path, flags | O_CLOEXEC, 0600);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    return fd;
}

/* Weights, moments, config.json and training.json go into the first four. */
enum { MOST = CHECKPOINT_MAX_FILES + 2, TRAINING = 3 };

static void open_files(int fds[MOST])
{
    static const char *const names[] = {"a", "b", "d", "c"};

    for (int i = 0; i < MOST; i++)
        fds[i] = open_file(mine, names[i % COUNT(names)], O_RDWR | O_CREAT);
    ck_assert_int_eq(pwrite(fds[TRAINING], "left over", 9, 100000), 9);
}

static void answer(uint32_t id, int code, const int *fds, unsigned n_fds)
{
    struct message m = {.kind = MESSAGE_OUTPUT_DONE, .output_done = {.id = id, .n_files = n_fds, .code = code}};

    ck_assert_int_eq(client_files_add(&m.output_done.first_file, driver.files, fds, n_fds, NULL), 0);
    client_link_send(&driver.link, &m);
}

static struct message await(enum message_kind kind)
{
    struct message m = {0};

    driver_next(&driver.link, &m);
    ck_assert_msg(m.kind == kind, "%s where %s was due: %s", message_name(m.kind), message_name(kind),
                  m.kind == MESSAGE_SAVE_FAILED ? m.save_failed.error.text : "");
    return m;
}

static uint32_t await_output(enum message_output what, uint64_t step)
{
    const struct message m = await(MESSAGE_OUTPUT);

    ck_assert_uint_eq(m.output.what, what);
    ck_assert_uint_eq(m.output.step, step);
    return m.output.id;
}

/* A job asks for a checkpoint of its first step. The files that are wanted. */
static uint32_t ask_save(void)
{
    driver_open(&driver, users_service(), &(struct driver_options){.files = true});
    driver_train(&driver, 1);
    driver_ask_save(&driver, 1);
    return await_output(OUTPUT_OPEN, 1);
}

/* What a client answers: files, then that they stand in their place; and what is odd in it. The daemon goes on
 * anyway. */
enum odd {
    READ_ONLY = 1 << 0, /* one of the files is the owner's, opened for reading */
    DROPPED = 1 << 1,   /* the client is told to drop its files */
    LEAVES = 1 << 2,    /* it goes away when files are wanted */
    LEAVES_LATE = 1 << 3,
    /* An answer that is not wanted, with files: that is all. */
    UNASKED = 1 << 4,
    OF_ANOTHER = 1 << 5,
    TWICE = 1 << 6,
};

static const struct answers {
    const char *name;
    unsigned n_files, odd;
    int open_code, place_code, code; /* its answers; of SAVE_FAILED, or 0: it is saved */
    const char *sentence;
} answers[] = {
    {"as it should", 4, 0, 0, 0, 0, ""},
    {"for reading", 4, READ_ONLY | DROPPED, 0, 0, -EINVAL, "a file: could not be emptied: "},
    {"too few", 2, DROPPED, 0, 0, -EINVAL, "a checkpoint has 3 to 17 files, and "},
    {"too many", MOST, DROPPED, 0, 0, -EINVAL, "a checkpoint has 3 to 17 files, and "},
    {"that it cannot", 2, 0, -EROFS, 0, -EROFS, ""},
    {"that it cannot place them", 4, 0, 0, -EEXIST, -EEXIST, ""},
    {"unasked", 4, UNASKED, 0, 0, 0, ""},
    {"for another first", 4, OF_ANOTHER, 0, 0, 0, ""},
    {"twice", 4, TWICE, 0, 0, 0, ""},
    {"nothing", 4, LEAVES, 0, 0, 0, ""},
    {"nothing when it is written", 4, LEAVES_LATE, 0, 0, 0, ""},
};

static void save(int i)
{
    const struct answers *a = &answers[i];
    char text[4096] = "";
    int fds[MOST];

    open_files(fds);
    const uint32_t id = ask_save();
    if (a->odd & (UNASKED | OF_ANOTHER))
        answer(a->odd & UNASKED ? 0 : id + 7, 0, fds, 4);
    if (a->odd & LEAVES) {
        driver_leave(&driver);
        return;
    }
    if (a->odd & READ_ONLY)
        fds[2] = open_file(theirs, "hers.json", O_RDONLY);
    answer(id, a->open_code, fds, a->n_files);
    if (!a->open_code && !(a->odd & DROPPED)) {
        await_output(OUTPUT_PLACE, 1);
        ck_assert_int_gt(pread(fds[TRAINING], text, sizeof text - 1, 0), 0);
        ck_assert_int_lt(lseek(fds[TRAINING], 0, SEEK_END), 100000);
        ck_assert_holds(text, "\"" CHECKPOINT_CONFIG "\"", "\"step\":1,");
        if (a->odd & LEAVES_LATE) {
            driver_leave(&driver);
            return;
        }
        answer(id, a->place_code, fds, a->place_code ? 4 : 0); /* with files that nobody wants */
    }
    if (a->odd & DROPPED)
        await_output(OUTPUT_DROP, 1);
    const struct message m = await(a->code ? MESSAGE_SAVE_FAILED : MESSAGE_SAVED);
    if (a->code)
        ck_assert_int_eq(m.save_failed.code, a->code);
    ck_assert_holds(a->code ? m.save_failed.error.text : "", a->sentence);
    ck_assert(a->code || m.saved.step == 1);
    if (a->odd & TWICE)
        answer(id, 0, fds, 4);
    driver_train(&driver, 3);
    driver_close(&driver);
}

/* The first is written, and waits for its place, when the second is asked for: one at a time. */
static void save_two(int i)
{
    struct message status;
    int fds[MOST];

    (void)i;
    open_files(fds);
    const uint32_t id = ask_save();
    answer(id, 0, fds, 4);
    await_output(OUTPUT_PLACE, 1);
    driver_train(&driver, 2);
    driver_ask_save(&driver, 2);
    driver_status(&driver.link, &status); /* and nothing else */
    ck_assert(status.status_reply.saving);
    answer(id, 0, NULL, 0);
    await(MESSAGE_SAVED);
    answer(await_output(OUTPUT_OPEN, 2), 0, fds, 4);
    answer(await_output(OUTPUT_PLACE, 2), 0, NULL, 0);
    ck_assert_uint_eq(await(MESSAGE_SAVED).saved.step, 2);
    driver_close(&driver);
}

/* A directory is taken from the owner alone: nothing is made there, and no checkpoint that stands there goes. The
 * member's own is none either: below it something else may be mounted. */
static void bring_directory(int i)
{
    const char *const places[] = {theirs, sticky, mine};
    struct error err = {""};

    ck_assert_int_eq(driver_try(&driver, users_service(), &(struct driver_options){.out = places[i]}, &err), -EIO);
    ck_assert(strstr(err.text, "Operation not permitted") || strstr(err.text, "sent descriptors")); /* test_listen */
    driver_leave(&driver);
}

/* Neither a config in memory, nor the files that its message names. */
static void bring_nothing(int i)
{
    const struct message m = {.kind = MESSAGE_JOB,
                              .job = {.goal.n_parts = 1, .fresh = true, .config_bytes = i == 0 ? 0 : 10}};
    struct error err = {""};
    struct message reply;

    driver_attach(&driver.link, users_service(), ROLE_CLIENT);
    client_link_send(&driver.link, &m);
    ck_assert_int_eq(client_link_expect(&driver.link, MESSAGE_JOB_OPENED, &reply, NULL, &err), -EINVAL);
    ck_assert_str_eq(err.text, "the job came without its files");
    driver_leave(&driver);
}

/* Root may send descriptors. What is read at once is memory: no file that is only named, nor one that a hung disk or
 * network may have. */
static void bring_config(int i)
{
    const int fd = i == 0 ? open_file(theirs, "secret", O_PATH) : open_file(mine, "config", O_RDWR | O_CREAT);
    const struct message m = {.kind = MESSAGE_JOB, .job = {.goal.n_parts = 1, .fresh = true, .side = i == 2}};
    struct error err = {""};
    const int fds[] = {i == 2 ? segment_seal("config.json", "{}", 2, &err) : fd, fd};
    struct message reply;

    if (i > 0)
        ck_assert_int_eq(write(fd, "{}", 2), 2);
    driver_attach(&driver.link, users_service(), ROLE_CLIENT);
    client_link_send_fds(&driver.link, &m, fds, i == 2 ? 2 : 1);
    ck_assert_int_lt(client_link_expect(&driver.link, MESSAGE_JOB_OPENED, &reply, NULL, &err), 0);
    ck_assert_str_eq(err.text, i == 2 ? "the job's side file did not come in sealed memory: use programs of one build"
                                      : "config.json did not come in sealed memory: use programs of one build");
    driver_leave(&driver);
}

/* As the member, in a process of its own: what it asserts is the test's. */
static void as_member(const char *what, void (*act)(int i), int i)
{
    const pid_t pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        ck_assert(users_become(USERS_MEMBER, true));
        act(i);
        _exit(0);
    }
    ck_assert_msg(processes_wait(pid) == 0, "%s %d", what, i);
    check_theirs();
}

/* One job after the other: the daemon serves the next one, whatever became of the last. */
TEST(a_job_gets_nothing_by_way_of_the_daemon_that_its_user_might_not)
{
    const pid_t daemon = start();

    for (int i = 0; i < COUNT(answers); i++)
        as_member(answers[i].name, save, i);
    as_member("two at a time", save_two, 0);
    for (int i = 0; i < 3; i++)
        as_member("a directory", bring_directory, i);
    for (int i = 0; i < 2; i++)
        as_member("nothing", bring_nothing, i);
    for (int i = 0; i < 3; i++)
        bring_config(i);
    stop(daemon);
}

/* ---- whole runs -------------------------------------------------------------------------------------------------- */

static char run_out[320];

/* The member's run. */
static pid_t start_training(const char *steps, const char *option, const char *value)
{
    const char *model = processes_config("tiny.json", 1, 2, 16, 32), *text = processes_text("tiny.txt", 8000);

    snprintf(run_out, sizeof run_out, "%s/run", mine);
    const char *const argv[] = {"train",         "--model", model, "--data",  text, "--out",
                                run_out,         "--steps", steps, "--batch", "4",  "--connect",
                                users_service(), option,    value, NULL};
    return users_start(USERS_MEMBER, true, "eps", argv);
}

/* A trace is a file of the client's: a worker of a third user is not given it. */
TEST_EACH(a_trace_is_open_to_the_workers_of_client_and_owner, 3)
{
    static const struct {
        uid_t uid;
        bool traced;
    } lenders[] = {{USERS_OWNER, true}, {USERS_MEMBER, true}, {USERS_PRIMARY, false}};
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    char trace[340];
    const char *const epsd[] = {"--listen", users_service(), "--group", users_group_name(), "--share-workers", NULL};
    const pid_t daemon = users_start(USERS_OWNER, true, "epsd", epsd);

    processes_await_workers(users_service(), 0);
    users_start(lenders[_i].uid, true, "eps-worker", worker);
    processes_await_workers(users_service(), 1);
    snprintf(trace, sizeof trace, "%s/trace.json", mine);
    ck_assert_msg(processes_wait(start_training("2", "--trace", trace)) == 0, "%s", processes_read(users_log()));
    char *said = processes_read(trace);
    ck_assert_ptr_nonnull(strstr(said, "\"epsd\""));
    ck_assert((strstr(said, "\"eps-worker") != NULL) == lenders[_i].traced);
    free(said);
    stop(daemon);
}

static bool is_training(void *context)
{
    char path[400];

    (void)context;
    snprintf(path, sizeof path, "%s/metrics.jsonl", run_out);
    char *said = access(path, R_OK) == 0 ? processes_read(path) : NULL;
    const bool yes = said && strchr(said, '\n');
    free(said);
    return yes;
}

/* The owner of the daemon, who may not even list the member's directory, asks for a checkpoint, then for the end. */
TEST(a_members_run_is_saved_in_its_place_whoever_asks)
{
    struct stat info;
    const pid_t daemon = start(), client = start_training("1000000", "--save-every", "900000");

    ck_assert(processes_until(is_training, NULL));
    ck_assert_msg(users_eps(USERS_OWNER, "save") == 0, "%s", processes_read(users_log()));
    users_check_log(run_out, "/run/step-");
    ck_assert_int_eq(users_eps(USERS_OWNER, "status"), 0);
    users_check_log(run_out, "training");
    ck_assert_int_eq(stat(strcat(run_out, "/latest/model.safetensors"), &info), 0);
    ck_assert_uint_eq(info.st_uid, USERS_MEMBER);
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_ne(processes_wait(client), 0);
    *strstr(run_out, "/latest") = '\0';
    ck_assert_int_eq(users_run(USERS_MEMBER, true, "eps", (const char *const[]){"verify", run_out, NULL}), 0);
}

TEST(a_daemon_stops_whoever_it_waits_for)
{
    int told[2];
    char byte;

    ck_assert_int_eq(pipe(told), 0);
    const pid_t daemon = start(), client = fork();
    if (client == 0) { /* it waits for files, and for ever */
        ck_assert(users_become(USERS_MEMBER, true));
        ask_save();
        ck_assert_int_eq(write(told[1], "x", 1), 1);
        for (;;)
            pause();
    }
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0); /* the run is asked to end, and does not */
    ck_assert_int_eq(kill(daemon, SIGINT), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    processes_wait(client);
}
