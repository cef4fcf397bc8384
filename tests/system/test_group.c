/* epsd --group: a daemon that serves the members of a group, with real programs of several users. Only root can play
 * them, so that for everyone else most of this is skipped. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static void check_mode(const char *path, mode_t mode)
{
    struct stat info;

    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_msg((info.st_mode & 07777) == mode && info.st_gid == users_group(), "%s: %o, group %u", path,
                  info.st_mode & 07777, info.st_gid);
}

SUITE_SKIP_UNLESS(users_can(), "only root can play several users")
SUITE_FIXTURE(users_setup, processes_remove)

TEST(a_group_that_cannot_be_is_misuse)
{
    const char *const foreign[] = {"--listen", users_service(), "--group", users_group_name(), NULL};
    const char *const closed[] = {"--listen", processes_path("run/lab"), "--group", users_group_name(), NULL};

    ck_assert_int_eq(users_run(USERS_OWNER, false, "epsd", foreign), 2);
    users_check_log("you are not a member", users_group_name());
    ck_assert_int_eq(chown(processes_path("run"), USERS_OWNER, USERS_OWNER), 0);
    ck_assert_int_eq(users_run(USERS_OWNER, true, "epsd", closed), 2);
    users_check_log("cannot reach", "/run is closed to them");
    ck_assert_int_ne(access(users_service(), F_OK), 0);
    ck_assert_int_ne(access(processes_path("run/lab"), F_OK), 0);
}

/* The same run in a daemon of its own, over a channel. */
static void check_same_as_private(const char *out, const char *model, const char *text)
{
    char home[300], command[1500];

    snprintf(home, sizeof home, "%s", processes_path("home"));
    ck_assert_int_eq(mkdir(home, 0700), 0);
    ck_assert_int_eq(chown(home, USERS_MEMBER, USERS_MEMBER), 0);
    const char *const train[] = {"train",   "--model", model,          "--data", text,      "--out", home,
                                 "--steps", "3",       "--device-mem", "256MiB", "--batch", "4",     NULL};
    ck_assert_msg(users_run(USERS_MEMBER, true, "eps", train) == 0, "%s", processes_read(users_log()));
    snprintf(command, sizeof command, "cmp '%s/latest/model.safetensors' '%s/latest/model.safetensors'", out, home);
    ck_assert_int_eq(system(command), 0);
}

/* A member's worker, a member's run; the owner stops it, members and strangers do not. */
TEST(members_bring_workers_and_jobs_and_do_not_stop_it)
{
    char model[300], text[300], out[300], path[320];
    pid_t daemon = users_start_service();
    const char *const worker[] = {"--connect", users_service(), "--device-mem", "256MiB", NULL};

    snprintf(path, sizeof path, "%s/members", users_service());
    check_mode(users_service(), 0710);
    check_mode(path, 0660);
    pid_t lent = users_start(USERS_MEMBER, true, "eps-worker", worker);
    processes_await_workers(users_service(), 1);
    snprintf(model, sizeof model, "%s", processes_config("tiny.json", 1, 2, 16, 32));
    snprintf(text, sizeof text, "%s", processes_text("tiny.txt", 8000));
    snprintf(out, sizeof out, "%s", processes_path("out"));
    ck_assert_int_eq(mkdir(out, 0700), 0);
    ck_assert_int_eq(chown(out, USERS_MEMBER, users_group()), 0);
    const char *const train[] = {"train",   "--model", model,       "--data",        text,      "--out", out,
                                 "--steps", "3",       "--connect", users_service(), "--batch", "4",     NULL};
    ck_assert_msg(users_run(USERS_MEMBER, true, "eps", train) == 0, "%s", processes_read(users_log()));
    check_same_as_private(out, model, text);
    struct stat info;
    ck_assert_int_eq(stat(strcat(out, "/latest/model.safetensors"), &info), 0);
    ck_assert_uint_eq(info.st_uid, USERS_MEMBER);
    const char *const resume[] = {"train", "--resume",  processes_path("out"), "--steps",
                                  "5",     "--connect", users_service(),       NULL};
    ck_assert_msg(users_run(USERS_MEMBER, true, "eps", resume) == 0, "%s", processes_read(users_log()));
    ck_assert_int_eq(users_run(USERS_MEMBER, true, "eps", (const char *const[]){"verify", processes_path("out"), NULL}),
                     0);
    users_check_log("step-4", "step-5");
    ck_assert_int_eq(users_eps(USERS_PRIMARY, "status"), 1); /* not a member yet */
    users_check_log("belongs to another user", "no group of yours");
    ck_assert_int_eq(users_eps(USERS_MEMBER, "mem"), 0);
    users_check_log("worker ", "total");
    ck_assert_int_eq(users_run(USERS_MEMBER, true, "eps",
                               (const char *const[]){"top", users_service(), "--once", NULL}),
                     0);
    users_check_log("eps top  ", "\nworker ");
    ck_assert_int_eq(users_eps(USERS_MEMBER, "stop"), 1);
    users_check_log("belongs to user 54321", "may stop it");
    ck_assert_int_eq(users_eps(USERS_STRANGER, "stop"), 1);
    users_check_log("belongs to another user", "no group of yours");
    ck_assert_int_eq(waitpid(daemon, NULL, WNOHANG), 0);
    ck_assert_int_eq(users_eps(USERS_OWNER, "stop"), 0);
    ck_assert_int_eq(users_wait(daemon), 0);
    ck_assert_int_eq(users_wait(lent), 0);
    ck_assert_int_ne(access(users_service(), F_OK), 0);
}

TEST(root_stops_anyones)
{
    pid_t daemon = users_start_service();
    struct eps_error error;

    ck_assert_msg(eps_stop(users_service(), &error) == 0, "%s", error.text);
    ck_assert_int_eq(users_wait(daemon), 0);
}

/* What looks like a service and is not says nothing of its group: nobody is to hand it files. */
TEST(a_directory_open_to_all_is_not_trusted)
{
    pid_t daemon = users_start_service();

    ck_assert_int_eq(chmod(users_service(), 0755), 0);
    ck_assert_int_eq(users_eps(USERS_MEMBER, "status"), 1);
    users_check_log("belongs to another user", "");
    ck_assert_int_eq(chmod(users_service(), 0710), 0);
    ck_assert_int_eq(users_eps(USERS_MEMBER, "status"), 0);
    ck_assert_int_eq(eps_stop(users_service(), NULL), 0);
    ck_assert_int_eq(users_wait(daemon), 0);
}

/* Anybody can make it before its user does, and in /tmp only they can remove it. */
TEST(a_base_that_another_user_took_is_told_with_a_way_out)
{
    const uid_t victim = 3000000 + (uid_t)getpid(); /* whose name in /tmp no other test has */
    const char *const listen[] = {"--listen", "lab", NULL}, *const connect[] = {"--connect", "lab", NULL};
    const char *const words[] = {"status", "mem", "save", "stop"};
    const char *model = processes_config("tiny.json", 1, 2, 16, 32), *text = processes_text("tiny.txt", 8000);
    const char *out = processes_path("out");
    const char *const train[] = {"train", "--model", model, "--data", text, "--out", out, "--steps", "1", NULL};
    char base[40];

    snprintf(base, sizeof base, "/tmp/eps-%u", (unsigned)victim);
    ck_assert_int_eq(mkdir(base, 0777), 0);
    ck_assert_int_eq(chown(base, USERS_STRANGER, USERS_STRANGER), 0);
    ck_assert_int_eq(mkdir(out, 0700), 0);
    ck_assert_int_eq(chown(out, victim, victim), 0);
    ck_assert_int_eq(users_run(victim, false, "epsd", listen), 1);
    users_check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    ck_assert_int_eq(users_run(victim, false, "eps-worker", connect), 1);
    users_check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    ck_assert_int_eq(users_run(victim, false, "eps", train), 1);
    users_check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ck_assert_int_eq(users_run(victim, false, "eps", (const char *const[]){words[i], NULL}), 1);
        users_check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    }
    ck_assert_int_eq(rmdir(base), 0); /* nothing was put there */
}
