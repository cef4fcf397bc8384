/* What the daemon's user may do and a client may not, a client does not get by way of the daemon: with real processes
 * of two users. Only root can play them. */
#include "proto/model/checkpoint.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char theirs[300], mine[300], secret[340], hers[340]; /* directories of owner and member; files of the owner's */

static void give(const char *path, uid_t uid, mode_t mode)
{
    ck_assert_int_eq(chown(path, uid, users_group()), 0);
    ck_assert_int_eq(chmod(path, mode), 0);
}

static void setup(void)
{
    const char *words = "words of the owner's\n";

    users_setup();
    snprintf(theirs, sizeof theirs, "%s", processes_path("theirs"));
    snprintf(mine, sizeof mine, "%s", processes_path("mine"));
    ck_assert_int_eq(mkdir(theirs, 0755), 0);
    ck_assert_int_eq(mkdir(mine, 0700), 0);
    snprintf(secret, sizeof secret, "%s", processes_write("theirs/secret", words, strlen(words)));
    snprintf(hers, sizeof hers, "%s", processes_write("theirs/hers.json", words, strlen(words)));
    give(secret, USERS_OWNER, 0600);
    give(hers, USERS_OWNER, 0644);
    give(theirs, USERS_OWNER, 0755);
    give(mine, USERS_MEMBER, 0700);
}

static void check_theirs(void)
{
    static const char *const names[] = {"secret", "hers.json"};
    unsigned n = 0;
    DIR *dir = opendir(theirs);

    for (const struct dirent *entry; (entry = readdir(dir));)
        n += entry->d_name[0] != '.';
    closedir(dir);
    ck_assert_uint_eq(n, 2);
    for (int i = 0; i < 2; i++) {
        char path[340];
        snprintf(path, sizeof path, "%s/%s", theirs, names[i]);
        char *said = processes_read(path);
        ck_assert_str_eq(said, "words of the owner's\n");
        free(said);
    }
}

/* As the member, in a process of its own: what it asserts is the test's. */
static void as_member(void (*act)(int i), int i)
{
    const pid_t pid = fork();
    int status;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        ck_assert(users_become(USERS_MEMBER, true));
        act(i);
        _exit(0);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
}

static pid_t start(void)
{
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    const pid_t daemon = users_start_service();

    users_start(USERS_OWNER, true, "eps-worker", worker);
    processes_await_workers(users_service(), 1);
    return daemon;
}

static void stop(pid_t daemon)
{
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(users_wait(daemon), 0);
}

static void refused(const char *out)
{
    struct driver driver;
    struct error err = {""};

    ck_assert_int_eq(driver_try(&driver, users_service(), &(struct driver_options){.out = out}, &err), -EACCES);
    ck_assert_msg(strstr(err.text, "the job came with a directory, where the daemon would write as user 54321"), "%s",
                  err.text);
    driver_leave(&driver);
}

static void bring_directories(int i)
{
    (void)i;
    refused(theirs);
    refused(processes_path("sticky"));
    refused(mine); /* below which something else may be mounted */
}

/* Nothing is made there, and no checkpoint that stands there goes: half a one neither, which is swept where a run
 * begins. */
TEST(a_directory_is_taken_from_the_owner_alone)
{
    const pid_t daemon = start();
    struct stat info;

    ck_assert_int_eq(mkdir(processes_path("sticky"), 0777), 0);
    ck_assert_int_eq(mkdir(processes_path("sticky/step-3.partial"), 0755), 0);
    processes_write("sticky/step-3.partial/model.safetensors", "x", 1);
    give(processes_path("sticky/step-3.partial"), USERS_OWNER, 0755);
    give(processes_path("sticky/step-3.partial/model.safetensors"), USERS_OWNER, 0644);
    give(processes_path("sticky"), 0, 01777);
    as_member(bring_directories, 0);
    check_theirs();
    ck_assert_int_eq(stat(processes_path("sticky/step-3.partial/model.safetensors"), &info), 0);
    ck_assert_int_eq(info.st_size, 1);
    stop(daemon);
}

static int open_here(const char *name, int flags)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s", mine, name);
    const int fd = open(path, flags | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_ge(fd, 0);
    return fd;
}

static int open_theirs(const char *path, int flags)
{
    const int fd = open(path, flags | O_CLOEXEC);

    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    return fd;
}

enum { MOST = CHECKPOINT_MAX_FILES + 2 };

enum trick { READ_ONLY, TOO_FEW, TOO_MANY, TRICKS };

SUITE_SKIP_UNLESS(users_can(), "only root can play several users")
SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

static void answer(struct driver *driver, uint32_t id, int code, const int *fds, unsigned n_fds)
{
    const struct message m = {.kind = MESSAGE_OUTPUT_DONE, .output_done = {.id = id, .code = code}};

    client_link_send_fds(&driver->link, &m, fds, n_fds);
}

static struct message await(struct driver *driver, enum message_kind kind)
{
    struct message m = {0};

    driver_next(&driver->link, &m);
    ck_assert_msg(m.kind == kind, "%s where %s was due: %s", message_name(m.kind), message_name(kind),
                  m.kind == MESSAGE_SAVE_FAILED ? m.save_failed.error.text : "");
    return m;
}

static struct message await_output(struct driver *driver, enum message_output what, uint64_t step)
{
    const struct message m = await(driver, MESSAGE_OUTPUT);

    ck_assert_uint_eq(m.output.what, what);
    ck_assert_uint_eq(m.output.step, step);
    return m;
}

static void open_job(struct driver *driver)
{
    driver_open(driver, users_service(), &(struct driver_options){.files = true});
    driver_train(driver, 1);
}

static void bring_files(int i)
{
    const unsigned n = i == TOO_FEW ? 2 : i == TOO_MANY ? MOST : 4;
    struct driver driver;
    int fds[MOST];

    open_job(&driver);
    driver_ask_save(&driver, 1);
    for (unsigned k = 0; k < MOST; k++)
        fds[k] = k == 2 && i == READ_ONLY ? open_theirs(hers, O_RDONLY) : open_here("a", O_WRONLY);
    answer(&driver, await_output(&driver, OUTPUT_OPEN, 1).output.id, 0, fds, n);
    await_output(&driver, OUTPUT_DROP, 1);
    const struct message m = await(&driver, MESSAGE_SAVE_FAILED);
    ck_assert_msg(strstr(m.save_failed.error.text, i == READ_ONLY ? "regular files that came open for writing"
                                                                  : "a checkpoint has 3 to 17 files, and "),
                  "%s", m.save_failed.error.text);
    driver_train(&driver, 2); /* and the run goes on */
    driver_close(&driver);
}

/* What a descriptor must be is shown by test_snapshot. */
TEST_EACH(a_checkpoint_goes_into_files_that_the_client_opened_for_writing, TRICKS)
{
    const pid_t daemon = start();

    as_member(bring_files, _i);
    check_theirs();
    stop(daemon);
}

/* Weights, moments, config.json and training.json stand in them, at their beginning. */
static void save_well(int i)
{
    const int fds[] = {open_here("a", O_RDWR), open_here("b", O_WRONLY), open_here("d", O_RDWR),
                       open_here("c", O_RDWR)};
    struct driver driver;
    char text[4096] = "";

    (void)i;
    ck_assert_int_eq(pwrite(fds[3], "left over", 9, 100000), 9);
    open_job(&driver);
    driver_ask_save(&driver, 1);
    const uint32_t id = await_output(&driver, OUTPUT_OPEN, 1).output.id;
    answer(&driver, id, 0, fds, 4);
    await_output(&driver, OUTPUT_PLACE, 1);
    ck_assert_int_gt(pread(fds[3], text, sizeof text - 1, 0), 0);
    ck_assert_int_lt(lseek(fds[3], 0, SEEK_END), 100000);
    ck_assert_ptr_nonnull(strstr(text, "\"" CHECKPOINT_CONFIG "\""));
    ck_assert_msg(strstr(text, "\"step\":1,") != NULL, "%s", text);
    answer(&driver, id, 0, NULL, 0);
    ck_assert_uint_eq(await(&driver, MESSAGE_SAVED).saved.step, 1);
    driver_close(&driver);
}

TEST(files_that_were_opened_for_it_are_written)
{
    const pid_t daemon = start();

    as_member(save_well, 0);
    stop(daemon);
}

enum { NOT_ASKED, TWICE, OF_ANOTHER, LEAVES, LEAVES_IN_PLACE, CANNOT, CANNOT_PLACE, ANSWERS };

/* The daemon serves the next job in any case. */
static void answer_oddly(int i)
{
    const int fds[] = {open_here("a", O_RDWR), open_here("b", O_WRONLY), open_here("d", O_RDWR),
                       open_here("c", O_RDWR)};
    struct driver driver;
    uint32_t id = 0;

    open_job(&driver);
    if (i != NOT_ASKED) {
        driver_ask_save(&driver, 1);
        id = await_output(&driver, OUTPUT_OPEN, 1).output.id;
    }
    if (i == OF_ANOTHER) /* closed, and that is all */
        answer(&driver, id + 7, 0, fds, 4);
    if (i == CANNOT)
        answer(&driver, id, -EROFS, fds, 2);
    else if (i != LEAVES)
        answer(&driver, id, 0, fds, 4);
    if (i == NOT_ASKED) { /* of no checkpoint that there is */
        driver_train(&driver, 2);
    } else if (i == CANNOT) {
        ck_assert_int_eq(await(&driver, MESSAGE_SAVE_FAILED).save_failed.code, -EROFS);
    } else if (i != LEAVES) {
        await_output(&driver, OUTPUT_PLACE, 1);
        if (i == CANNOT_PLACE) {
            answer(&driver, id, -EEXIST, fds, 4); /* with files that nobody wants */
            ck_assert_int_eq(await(&driver, MESSAGE_SAVE_FAILED).save_failed.code, -EEXIST);
        } else if (i != LEAVES_IN_PLACE) {
            answer(&driver, id, 0, NULL, 0);
            await(&driver, MESSAGE_SAVED);
        }
        if (i == TWICE)
            answer(&driver, id, 0, fds, 4);
    }
    if (i == LEAVES || i == LEAVES_IN_PLACE) {
        driver_leave(&driver);
    } else {
        driver_train(&driver, 3);
        driver_close(&driver);
    }
    driver_open(&driver, users_service(), &(struct driver_options){.files = true});
    driver_train(&driver, 2);
    driver_close(&driver);
}

TEST_EACH(whatever_a_client_answers_the_daemon_goes_on, ANSWERS)
{
    const pid_t daemon = start();

    as_member(answer_oddly, _i);
    check_theirs();
    stop(daemon);
}

/* The first is written, and waits for its place, when the second is asked for. */
static void save_two(int i)
{
    const int fds[] = {open_here("a", O_RDWR), open_here("b", O_WRONLY), open_here("d", O_RDWR),
                       open_here("c", O_RDWR)};
    struct driver driver;
    struct message status;

    (void)i;
    open_job(&driver);
    driver_ask_save(&driver, 1);
    const uint32_t id = await_output(&driver, OUTPUT_OPEN, 1).output.id;
    answer(&driver, id, 0, fds, 4);
    await_output(&driver, OUTPUT_PLACE, 1);
    driver_train(&driver, 2);
    driver_ask_save(&driver, 2);
    driver_status(&driver.link, &status); /* and nothing else */
    ck_assert(status.status_reply.saving);
    answer(&driver, id, 0, NULL, 0);
    await(&driver, MESSAGE_SAVED);
    answer(&driver, await_output(&driver, OUTPUT_OPEN, 2).output.id, 0, fds, 4);
    answer(&driver, await_output(&driver, OUTPUT_PLACE, 2).output.id, 0, NULL, 0);
    ck_assert_uint_eq(await(&driver, MESSAGE_SAVED).saved.step, 2);
    driver_close(&driver);
}

TEST(checkpoints_are_opened_one_at_a_time)
{
    const pid_t daemon = start();

    as_member(save_two, 0);
    stop(daemon);
}

/* What is read is what came open for reading. */
static void bring_config(int i)
{
    const int flags = i == 0 ? O_PATH : O_WRONLY;
    const int fd = i == 0 ? open_theirs(secret, flags) : open_here("config", flags);
    const struct message m = {.kind = MESSAGE_JOB, .job = {.goal = {.n_parts = 1}, .fresh = true}};
    struct driver driver;
    struct error err = {""};
    struct message reply;

    ck_assert_int_eq(driver_try(&driver, users_service(), &(struct driver_options){.out = theirs}, &err), -EACCES);
    if (i == 1)
        ck_assert_int_eq(write(fd, "{}", 2), 2);
    client_link_send_fds(&driver.link, &m, &fd, 1);
    ck_assert_int_lt(client_link_expect(&driver.link, MESSAGE_JOB_OPENED, &reply, NULL, &err), 0);
    ck_assert_str_eq(err.text, "config.json could not be read");
    driver_leave(&driver);
}

TEST_EACH(a_file_is_read_that_came_open_for_reading, 2)
{
    const pid_t daemon = start();

    as_member(bring_config, _i);
    stop(daemon);
}

/* A trace is a file of the client's: a worker of a third user is not given it. */
TEST_EACH(a_trace_is_open_to_the_workers_of_client_and_owner, 3)
{
    static const struct {
        uid_t uid;
        bool traced;
    } lenders[] = {{USERS_OWNER, true}, {USERS_MEMBER, true}, {USERS_PRIMARY, false}};
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};
    char model[300], text[300], out[340], trace[340];
    const pid_t daemon = users_start_service();

    users_start(lenders[_i].uid, true, "eps-worker", worker);
    processes_await_workers(users_service(), 1);
    snprintf(model, sizeof model, "%s", processes_config("tiny.json", 1, 2, 16, 32));
    snprintf(text, sizeof text, "%s", processes_text("tiny.txt", 8000));
    snprintf(out, sizeof out, "%s/run", mine);
    snprintf(trace, sizeof trace, "%s/trace.json", mine);
    const char *const train[] = {"train", "--model",   model,           "--data",  text, "--out",   out,   "--steps",
                                 "2",     "--connect", users_service(), "--batch", "4",  "--trace", trace, NULL};
    ck_assert_msg(users_run(USERS_MEMBER, true, "eps", train) == 0, "%s", processes_read(users_log()));
    char *said = processes_read(trace);
    ck_assert_ptr_nonnull(strstr(said, "\"epsd\""));
    ck_assert((strstr(said, "\"eps-worker") != NULL) == lenders[_i].traced);
    free(said);
    stop(daemon);
}

static char run_out[320];

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
    char model[300], text[300];
    struct stat info;
    const pid_t daemon = start();

    snprintf(model, sizeof model, "%s", processes_config("tiny.json", 1, 2, 16, 32));
    snprintf(text, sizeof text, "%s", processes_text("tiny.txt", 8000));
    snprintf(run_out, sizeof run_out, "%s/run", mine);
    const char *const train[] = {"train",         "--model", model,          "--data", text,      "--out", run_out,
                                 "--steps",       "1000000", "--save-every", "900000", "--batch", "4",     "--connect",
                                 users_service(), NULL};
    const pid_t client = users_start(USERS_MEMBER, true, "eps", train);
    ck_assert(processes_until(is_training, NULL));
    ck_assert_msg(users_eps(USERS_OWNER, "save") == 0, "%s", processes_read(users_log()));
    users_check_log(run_out, "/run/step-");
    ck_assert_int_eq(users_eps(USERS_OWNER, "status"), 0);
    users_check_log(run_out, "training");
    ck_assert_int_eq(stat(strcat(run_out, "/latest/model.safetensors"), &info), 0);
    ck_assert_uint_eq(info.st_uid, USERS_MEMBER);
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(users_wait(daemon), 0);
    ck_assert_int_ne(users_wait(client), 0);
    *strstr(run_out, "/latest") = '\0';
    ck_assert_int_eq(users_run(USERS_MEMBER, true, "eps", (const char *const[]){"verify", run_out, NULL}), 0);
}

static int told[2]; /* a pipe: the member's process waits for files, and for ever */

static void ask_and_hang(int i)
{
    struct driver driver;

    (void)i;
    open_job(&driver);
    driver_ask_save(&driver, 1);
    await_output(&driver, OUTPUT_OPEN, 1);
    ck_assert_int_eq(write(told[1], "x", 1), 1);
    for (;;)
        pause();
}

TEST(a_daemon_stops_whoever_it_waits_for)
{
    ck_assert_int_eq(pipe(told), 0);
    const pid_t daemon = start(), client = fork();
    char byte;

    if (client == 0) {
        ck_assert(users_become(USERS_MEMBER, true));
        ask_and_hang(0);
    }
    ck_assert_int_eq(read(told[0], &byte, 1), 1);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0); /* the run is asked to end, and does not */
    ck_assert_int_eq(kill(daemon, SIGINT), 0);
    ck_assert_int_eq(users_wait(daemon), 0);
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    users_wait(client);
}
