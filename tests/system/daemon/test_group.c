/* epsd --group: a daemon that serves the members of a group, with real programs of several users. Only root can play
 * them, so that for everyone else most of this is skipped. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_SKIP_UNLESS(users_can(), "only root can play several users")
SUITE_TIMEOUT(20)
SUITE_FIXTURE(users_setup, processes_remove)

/* Whoever runs this program ends with this status, and has said both. */
static void says(uid_t uid, bool member, const char *program, const char *const *argv, int status, const char *first,
                 const char *second)
{
    const int got = users_run(uid, member, program, argv);

    ck_assert_msg(got == status, "user %u, %s %s: %d: %s", uid, program, argv[0], got, processes_read(users_log()));
    users_check_log(first, second);
}
#define ARGV(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A directory of this user's. */
static const char *make(const char *name, uid_t uid)
{
    const char *path = processes_path(name);

    ck_assert_int_eq(mkdir(path, 0700) | chown(path, uid, uid), 0);
    return path;
}

TEST(a_group_that_cannot_be_is_misuse)
{
    const char *closed = processes_path(PROCESSES_RUNTIME "/lab");

    says(USERS_OWNER, false, "epsd", ARGV("--listen", users_service(), "--group", users_group_name()), 2,
         "you are not a member", users_group_name());
    ck_assert_int_eq(chown(processes_path(PROCESSES_RUNTIME), USERS_OWNER, USERS_OWNER), 0);
    says(USERS_OWNER, true, "epsd", ARGV("--listen", closed, "--group", users_group_name()), 2, "cannot reach",
         "/" PROCESSES_RUNTIME " is closed to them");
    ck_assert(access(users_service(), F_OK) && access(closed, F_OK));
}

static void check_mode(const char *path, mode_t mode)
{
    struct stat info;

    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_msg((info.st_mode & 07777) == mode && info.st_gid == users_group(), "%s: %o, group %u", path,
                  info.st_mode & 07777, info.st_gid);
}

/* A member's worker, a member's run, with the bits of one in a daemon of its own, over a channel; the owner stops it,
 * members and strangers do not. */
TEST(members_bring_workers_and_jobs_and_do_not_stop_it)
{
    const char *const service = users_service(), *const home = make("home", USERS_MEMBER),
                      *const text = processes_text("tiny.txt", 8000), *const out = make("served", USERS_MEMBER);
    const pid_t daemon = users_start_service("--group");
    struct stat info;

    ck_assert_int_eq(mkdir("model", 0755), 0);
    const char *const model = processes_config("model/config.json", 1, 2, 16, 32);
    processes_write("model/tokenizer.model", "\0\n\xFF\0", 4); /* goes where the weights go */
    check_mode(service, 0710);
    check_mode(print("%s/members", service), 0660);
    const pid_t lent =
        users_start(USERS_MEMBER, true, "eps-worker", ARGV("--connect", service, "--device-mem", "256MiB"));
    processes_await_workers(service, 1);
    says(USERS_MEMBER, true, "eps",
         ARGV("train", "--model", model, "--data", text, "--out", out, "--steps", "3", "--batch", "4", "--connect",
              service),
         0, "", "");
    says(USERS_MEMBER, true, "eps",
         ARGV("train", "--model", model, "--data", text, "--out", home, "--steps", "3", "--batch", "4", "--device-mem",
              "256MiB"),
         0, "", "");
    outputs_check_same_latest(out, home);
    outputs_check_same("model", print("%s/latest", out), "tokenizer.model");
    outputs_check_same("model", print("%s/latest", home), "tokenizer.model");
    ck_assert_int_eq(stat(print("%s/latest/model.safetensors", out), &info), 0);
    ck_assert_uint_eq(info.st_uid, USERS_MEMBER);
    says(USERS_MEMBER, true, "eps",
         ARGV("train", "--resume", out, "--steps", "5", "--save-every", "1", "--connect", service), 0, "", "");
    says(USERS_MEMBER, true, "eps", ARGV("verify", out), 0, "step-4", "step-5");
    says(USERS_PRIMARY, false, "eps", ARGV("status", service), 1, "belongs to another user", "no group of yours");
    says(USERS_MEMBER, true, "eps", ARGV("mem", service), 0, "worker ", "total");
    says(USERS_MEMBER, true, "eps", ARGV("top", service, "--once"), 0, "eps top  ", "\nworker ");
    says(USERS_MEMBER, true, "eps", ARGV("stop", service), 1, "belongs to user 54321", "may stop it");
    says(USERS_STRANGER, false, "eps", ARGV("stop", service), 1, "belongs to another user", "no group of yours");
    ck_assert_int_eq(waitpid(daemon, NULL, WNOHANG), 0);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon) | processes_wait(lent), 0);
    ck_assert_int_ne(access(service, F_OK), 0);
}

/* A run of this user's, which could use two workers, by one or by none: *by is its number. The daemon says this of
 * another. */
static void trains(uid_t uid, const char *out, const unsigned *by, const char *of_another)
{
    char none[] = "no worker of yours or of its owner after 0.1 s, only 1 of other users";

    says(uid, true, "eps",
         ARGV("train", "--model", processes_path("tiny.json"), "--data", processes_path("tiny.txt"), "--out",
              make(out, uid), "--steps", "2", "--batch", "4", "--parts", "2", "--wait", "0.1", "--connect",
              users_service()),
         by ? 0 : 1, by ? print("epsd: worker %u: arena of ", *by) : none, of_another);
    char *said = processes_read(users_log());
    ck_assert_msg(!strstr(said, ") is left out: "), "%s", said); /* the daemon's line is "is left out of the job" */
    free(said);
}

struct attached {
    pid_t pid;
    unsigned id;
};

static struct attached attach(uid_t uid, uint32_t n_workers)
{
    struct attached worker = {users_start(uid, true, "eps-worker",
                                          ARGV("--connect", users_service(), "--device-mem", "256MiB")),
                              0};

    processes_await_workers(users_service(), n_workers);
    char *said = processes_read(users_log());
    const char *line = strstr(said, "epsd: worker ");
    ck_assert_msg(line && sscanf(line, "epsd: worker %u attached", &worker.id) == 1, "%s", said);
    free(said);
    return worker;
}

#define FOREIGN "it belongs to user 54322 and the job to user 54321"

/* What a worker sends is taken for true, so a job has those alone whose users could as well change its files. */
TEST(a_job_is_computed_by_workers_of_its_user_and_the_owner)
{
    pid_t daemon = users_start_service("--group");

    processes_text("tiny.txt", 8000);
    processes_config("tiny.json", 1, 2, 16, 32);
    const struct attached theirs = attach(USERS_MEMBER, 1);
    trains(USERS_OWNER, "none", NULL, ": those that are there are other users'");
    trains(USERS_MEMBER, "own", &theirs.id, "");
    const struct attached owners = attach(USERS_OWNER, 2);
    trains(USERS_OWNER, "owners", &owners.id, FOREIGN);
    ck_assert_int_eq(kill(theirs.pid, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(theirs.pid), 0);
    trains(USERS_MEMBER, "lent", &owners.id, "");
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon) | processes_wait(owners.pid), 0);
    daemon = users_start(USERS_OWNER, true, "epsd",
                         ARGV("--listen", users_service(), "--group", users_group_name(), "--share-workers"));
    processes_await_workers(users_service(), 0);
    const struct attached shared = attach(USERS_MEMBER, 1);
    trains(USERS_OWNER, "shared", &shared.id, "");
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon) | processes_wait(shared.pid), 0);
}

/* The job has no seat for another worker, and does not look at it. */
TEST(a_running_job_says_why_it_will_not_have_a_later_worker)
{
    const pid_t daemon = users_start_service("--group");
    const char *const out = make("long", USERS_OWNER), *const model = processes_config("tiny.json", 1, 2, 16, 32),
                      *const text = processes_text("tiny.txt", 8000);
    const struct attached owners = attach(USERS_OWNER, 1);
    const pid_t run = users_start(USERS_OWNER, true, "eps",
                                  ARGV("train", "--model", model, "--data", text, "--out", out, "--steps", "1000000",
                                       "--batch", "4", "--parts", "1", "--connect", users_service()));

    processes_await_text(print("%s/metrics.jsonl", out), "\"step\": 2");
    const struct attached theirs = attach(USERS_MEMBER, 2);
    json_t *status = expect_json(print("eps status %s --json", users_service()), 0);
    ck_assert_int_eq((int)json_number_at(status, "left_out.0.worker"), (int)theirs.id);
    ck_assert_holds(json_string_value(json_at(status, "left_out.0.why")), FOREIGN);
    json_decref(status);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(run), 1);
    ck_assert_int_eq(processes_wait(daemon) | processes_wait(owners.pid) | processes_wait(theirs.pid), 0);
}

/* Root's puppet. The member's worker may not redo its share, so the job does not wait. */
TEST(a_worker_that_fails_ends_a_job_that_no_other_may_compute)
{
    const pid_t daemon = users_start_service("--group"), puppet = puppet_start(users_service(), PUPPET_FAILS);

    processes_await_workers(users_service(), 1);
    const struct attached theirs = attach(USERS_MEMBER, 2);
    says(USERS_OWNER, true, "eps",
         ARGV("train", "--model", processes_config("tiny.json", 1, 2, 16, 32), "--data",
              processes_text("tiny.txt", 8000), "--out", make("failed", USERS_OWNER), "--steps", "3", "--batch", "4",
              "--eval-every", "0", "--connect", users_service()),
         1, "(cpu): no mood", "");
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon) | processes_wait(puppet) | processes_wait(theirs.pid), 0);
}

TEST(viewers_observe_and_do_nothing_else)
{
    const char *const service = users_service(), *const home = make("home", USERS_MEMBER),
                      *const text = processes_text("tiny.txt", 8000),
                      *const model = processes_config("tiny.json", 1, 2, 16, 32);
    const pid_t daemon = users_start_service("--viewers");

    says(USERS_MEMBER, true, "eps", ARGV("status", service), 0, "state        idle", "");
    says(USERS_MEMBER, true, "eps-worker", ARGV("--connect", service, "--device-mem", "64MiB"), 1,
         "you may only observe this daemon", "");
    const pid_t worker =
        users_start(USERS_OWNER, true, "eps-worker", ARGV("--connect", service, "--device-mem", "64MiB"));
    processes_await_workers(service, 1);
    says(USERS_MEMBER, true, "eps",
         ARGV("train", "--model", model, "--data", text, "--out", home, "--connect", service), 1,
         "you may only observe this daemon", "");
    says(USERS_MEMBER, true, "eps", ARGV("drain", "1", service), 1, "belongs to user 54321", "");
    says(USERS_MEMBER, true, "eps", ARGV("stop", service), 1, "may stop it", "");
    says(USERS_STRANGER, false, "eps", ARGV("status", service), 1, "no group of yours", "");
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon) | processes_wait(worker), 0);
}

/* A member's job is theirs to end, and the owner's. */
TEST(members_end_jobs_of_their_own)
{
    const char *const service = users_service(), *const out = make("theirs", USERS_OWNER),
                      *const text = processes_text("tiny.txt", 8000),
                      *const model = processes_config("tiny.json", 1, 2, 16, 32),
                      *const next = make("mine", USERS_MEMBER);
    const char *const worker[] = {"--connect", service, "--device-mem", "256MiB", NULL};
    const char *const train[] = {"train",   "--model", model,     "--data", text,        "--out", out,
                                 "--steps", "1000000", "--batch", "4",      "--connect", service, NULL};
    const pid_t daemon = users_start_service("--group");

    users_start(USERS_OWNER, true, "eps-worker", worker);
    processes_await_workers(service, 1);
    const pid_t first = users_start(USERS_OWNER, true, "eps", train);
    processes_await_text(print("%s/metrics.jsonl", out), "\"step\": 2");
    says(USERS_MEMBER, true, "eps", ARGV("stop", service, "1"), 1, "the job belongs to user 54321", "stop it");
    const char *const wait[] = {"train",   "--model", model,     "--data", text,        "--out", next,
                                "--steps", "3",       "--batch", "4",      "--connect", service, NULL};
    const pid_t second = users_start(USERS_MEMBER, true, "eps", wait);
    processes_await_text(users_log(), "1st in the queue");
    says(USERS_MEMBER, true, "eps", ARGV("stop", service, "2"), 0, "", "");
    ck_assert_int_eq(processes_wait(second), 1);
    says(USERS_OWNER, true, "eps", ARGV("stop", service, "1"), 0, "", "");
    ck_assert_int_eq(processes_wait(first), 1);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* Only its client can open a member's files: without one the daemon keeps the job, and says so. */
TEST(a_members_detached_job_waits_for_them)
{
    const char *const service = users_service(), *const text = processes_text("tiny.txt", 8000),
                      *const model = processes_config("tiny.json", 1, 2, 16, 32),
                      *const out = make("mine", USERS_MEMBER);
    const pid_t daemon = users_start_service("--group");

    users_start(USERS_OWNER, true, "eps-worker", ARGV("--connect", service, "--device-mem", "256MiB"));
    processes_await_workers(service, 1);
    const pid_t first = users_start(USERS_MEMBER, true, "eps",
                                    ARGV("train", "--model", model, "--data", text, "--out", out, "--steps", "1000000",
                                         "--batch", "4", "--save-every", "0", "--connect", service));
    processes_await_text(print("%s/metrics.jsonl", out), "\"step\": 2");
    kill(first, SIGKILL);
    processes_wait(first);
    processes_await_state(service, "detached");
    says(USERS_OWNER, true, "eps", ARGV("train", "--attach", service), 1, "belongs to user 54322", "may take it over");
    says(USERS_OWNER, true, "eps", ARGV("save", service), 1, "the job is detached", "eps train --attach takes it over");
    says(USERS_OWNER, true, "eps", ARGV("stop", service, "1"), 1, "only a client of that user can save it",
         "stop it again");
    says(USERS_MEMBER, true, "eps", ARGV("status", service), 0, "state        detached", "mine");
    says(USERS_MEMBER, true, "eps", ARGV("train", "--attach", service), 2,
         "is another user's: name the run's directory with --out; it says ", out);
    const pid_t heir = users_start(USERS_MEMBER, true, "eps", ARGV("train", "--attach", service, "--out", out));
    processes_await_text(users_log(), "took over job 1 of ");
    says(USERS_OWNER, true, "eps", ARGV("stop", service, "1"), 0, "", "");
    ck_assert_int_eq(processes_wait(heir), 1);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* The daemon has the directory of its owner's job. */
TEST(root_names_the_directory_of_a_job_to_take_over)
{
    const char *const service = users_service(), *const text = processes_text("tiny.txt", 8000),
                      *const model = processes_config("tiny.json", 1, 2, 16, 32),
                      *const out = make("theirs", USERS_OWNER), *const other = make("other", USERS_OWNER);
    const pid_t daemon = users_start_service("--group");

    users_start(USERS_OWNER, true, "eps-worker", ARGV("--connect", service, "--device-mem", "256MiB"));
    processes_await_workers(service, 1);
    const pid_t first = users_start(USERS_OWNER, true, "eps",
                                    ARGV("train", "--model", model, "--data", text, "--out", out, "--steps", "1000000",
                                         "--batch", "4", "--save-every", "0", "--connect", service));
    processes_await_text(print("%s/metrics.jsonl", out), "\"step\": 2");
    kill(first, SIGKILL);
    processes_wait(first);
    processes_await_state(service, "detached");
    says(0, false, "eps", ARGV("train", "--attach", service), 2, "is another user's: name the run's directory", out);
    says(0, false, "eps", ARGV("train", "--attach", service, "--out", other), 1,
         "is not the directory that the daemon has", other);
    const pid_t heir = users_start(0, false, "eps", ARGV("train", "--attach", service, "--out", out));
    processes_await_text(users_log(), "took over job 1 of ");
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(processes_wait(heir), 1);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* What looks like a service and is not says nothing of its group: nobody is to hand it files. Root stops anyone's. */
TEST(a_directory_open_to_all_is_not_trusted)
{
    const pid_t daemon = users_start_service("--group");

    ck_assert_int_eq(chmod(users_service(), 0755), 0);
    says(USERS_MEMBER, true, "eps", ARGV("status", users_service()), 1, "belongs to another user", "");
    ck_assert_int_eq(chmod(users_service(), 0710), 0);
    says(USERS_MEMBER, true, "eps", ARGV("status", users_service()), 0, "", "");
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* Anybody can make it before its user does, and in /tmp only they can remove it. */
TEST(a_base_that_another_user_took_is_told_with_a_way_out)
{
    static const char *const words[] = {"status", "mem", "save", "stop"};
    static const char taken[] = "belongs to user 54324: set XDG_RUNTIME_DIR";
    const uid_t victim = 3000000 + (uid_t)getpid(); /* whose name in /tmp no other test has */
    const char *base = print("/tmp/eps-%u", (unsigned)victim);

    ck_assert_int_eq(mkdir(base, 0777) | chown(base, USERS_STRANGER, USERS_STRANGER), 0);
    says(victim, false, "epsd", ARGV("--listen", "lab"), 1, taken, base);
    says(victim, false, "eps-worker", ARGV("--connect", "lab"), 1, taken, base);
    says(victim, false, "eps",
         ARGV("train", "--model", processes_config("tiny.json", 1, 2, 16, 32), "--data",
              processes_text("tiny.txt", 8000), "--out", make("victim", victim), "--steps", "1"),
         1, taken, base);
    for (int i = 0; i < COUNT(words); i++)
        says(victim, false, "eps", ARGV(words[i]), 1, taken, base);
    ck_assert_int_eq(rmdir(base), 0); /* nothing was put there */
}
