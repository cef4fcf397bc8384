/* epsd --group: a daemon that serves the members of a group, with real programs of several users. Only root can play
 * them, so that for everyone else most of this is skipped. */
#include "tests/processes.h"
#include "tests/run.h"

#include <check.h>
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

enum { OWNER = 54321, MEMBER, PRIMARY, STRANGER };

static gid_t group; /* one that has a name here, and is not root's */
static char group_name[64], service[300], log_file[300];

static void setup(void)
{
    processes_setup();
    ck_assert_int_eq(chmod(processes_path("."), 0711), 0);
    snprintf(service, sizeof service, "%s", processes_path("service"));
    snprintf(log_file, sizeof log_file, "%s", processes_path("log"));
    ck_assert_int_eq(mkdir(service, 0711), 0);
    ck_assert_int_eq(chown(service, OWNER, OWNER), 0);
    ck_assert_int_eq(close(open(log_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0666)), 0);
    ck_assert_int_eq(chmod(log_file, 0666), 0);
    strcat(service, "/lab");
}

/* Starts a program as this user, in the group or not; what it says goes to the log. The program is opened by root: its
 * directory may be closed to others. */
static pid_t start_as(uid_t uid, bool member, const char *program, const char *const *argv)
{
    char path[400];
    const char *all[24] = {program};
    const gid_t groups[] = {uid, group};
    pid_t pid;

    for (size_t i = 0; argv[i]; i++)
        all[i + 1] = argv[i];
    snprintf(path, sizeof path, "%s/%s", BIN_DIR, program);
    const int fd = open(path, O_RDONLY | O_CLOEXEC), log = open(log_file, O_WRONLY | O_TRUNC | O_APPEND | O_CLOEXEC);
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        dup2(log, STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        unsetenv("XDG_RUNTIME_DIR");
        if (setgroups(member ? 2 : 1, groups) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0 &&
            chdir("/") == 0)
            fexecve(fd, (char *const *)all, environ);
        _exit(127);
    }
    close(fd);
    close(log);
    return pid;
}

static int run_as(uid_t uid, bool member, const char *program, const char *const *argv)
{
    int status;

    ck_assert_int_eq(waitpid(start_as(uid, member, program, argv), &status, 0) > 0, 1);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int eps_as(uid_t uid, const char *word)
{
    const char *const argv[] = {word, service, NULL};

    return run_as(uid, uid == OWNER || uid == MEMBER, "eps", argv);
}

static void check_log(const char *first, const char *second)
{
    char *said = processes_read(log_file);

    ck_assert_msg(strstr(said, first) && strstr(said, second), "no \"%s\" and \"%s\": %s", first, second, said);
    free(said);
}

struct service {
    uint32_t n_workers; /* wanted */
};

static void on_status(void *user, const struct eps_status *status)
{
    struct service *s = user;

    if (status->n_workers >= s->n_workers)
        s->n_workers = UINT32_MAX;
}

/* As root, who may look at everybody's. */
static bool is_up(void *context)
{
    struct service s = *(struct service *)context;

    return eps_status(service, on_status, &s, NULL) == 0 && s.n_workers == UINT32_MAX;
}

static pid_t start_service(void)
{
    const char *const argv[] = {"--listen", service, "--group", group_name, NULL};
    pid_t daemon = start_as(OWNER, true, "epsd", argv);

    ck_assert(processes_until(is_up, &(struct service){0}));
    return daemon;
}

static int status_of(pid_t pid)
{
    int status;

    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static void check_mode(const char *path, mode_t mode)
{
    struct stat info;

    ck_assert_int_eq(stat(path, &info), 0);
    ck_assert_msg((info.st_mode & 07777) == mode && info.st_gid == group, "%s: %o, group %u", path,
                  info.st_mode & 07777, info.st_gid);
}

START_TEST(a_group_that_cannot_be_is_misuse)
{
    const char *const unknown[] = {"--listen", service, "--group", "no-such-group", NULL};
    const char *const foreign[] = {"--listen", service, "--group", group_name, NULL};
    const char *const both[] = {"--listen", service, "--private", "--group", group_name, NULL};
    const char *const closed[] = {"--listen", processes_path("run/lab"), "--group", group_name, NULL};

    ck_assert_int_eq(run_as(OWNER, true, "epsd", unknown), 2);
    check_log("epsd: --group no-such-group", "no such group");
    ck_assert_int_eq(run_as(OWNER, false, "epsd", foreign), 2);
    check_log("you are not a member", group_name);
    ck_assert_int_eq(run_as(OWNER, true, "epsd", both), 2);
    check_log("--private", "--group");
    ck_assert_int_eq(chown(processes_path("run"), OWNER, OWNER), 0);
    ck_assert_int_eq(run_as(OWNER, true, "epsd", closed), 2);
    check_log("cannot reach", "/run is closed to them");
    ck_assert_int_ne(access(service, F_OK), 0);
    ck_assert_int_ne(access(processes_path("run/lab"), F_OK), 0);
}
END_TEST

/* A member's worker, a member's run; the owner stops it, members and strangers do not. */
START_TEST(members_bring_workers_and_jobs_and_do_not_stop_it)
{
    char model[300], text[300], out[300], door[320];
    pid_t daemon = start_service();
    const char *const worker[] = {"--connect", service, "--device-mem", "256MiB", NULL};

    snprintf(door, sizeof door, "%s/door", service);
    check_mode(service, 0710);
    check_mode(door, 0660);
    pid_t lent = start_as(MEMBER, true, "eps-worker", worker);
    ck_assert(processes_until(is_up, &(struct service){1}));
    snprintf(model, sizeof model, "%s", processes_config("tiny.json", 1, 2, 16, 32));
    snprintf(text, sizeof text, "%s", processes_text("tiny.txt", 8000));
    snprintf(out, sizeof out, "%s", processes_path("out"));
    ck_assert_int_eq(mkdir(out, 0700), 0);
    ck_assert_int_eq(chown(out, MEMBER, group), 0);
    ck_assert_int_eq(chmod(out, 02750), 0); /* the daemon writes there as its own user */
    const char *const train[] = {"train",   "--model", model,       "--data", text,      "--out", out,
                                 "--steps", "3",       "--connect", service,  "--batch", "4",     NULL};
    ck_assert_int_eq(run_as(MEMBER, true, "eps", train), 1);
    check_log("--out: user 54321", "chmod g+ws");
    ck_assert_int_eq(chmod(out, 02770), 0);
    ck_assert_msg(run_as(MEMBER, true, "eps", train) == 0, "%s", processes_read(log_file));
    ck_assert_int_eq(access(strcat(out, "/latest/model.safetensors"), R_OK), 0);
    ck_assert_int_eq(eps_as(PRIMARY, "status"), 1); /* not a member yet */
    check_log("belongs to another user", "no group of yours");
    ck_assert_int_eq(eps_as(MEMBER, "mem"), 0);
    check_log("worker ", "total");
    ck_assert_int_eq(run_as(MEMBER, true, "eps", (const char *const[]){"top", service, "--once", NULL}), 0);
    check_log("eps top  ", "\nworker ");
    ck_assert_int_eq(eps_as(MEMBER, "stop"), 1);
    check_log("belongs to user 54321", "may stop it");
    ck_assert_int_eq(eps_as(STRANGER, "stop"), 1);
    check_log("belongs to another user", "no group of yours");
    ck_assert_int_eq(waitpid(daemon, NULL, WNOHANG), 0);
    ck_assert_int_eq(eps_as(OWNER, "stop"), 0);
    ck_assert_int_eq(status_of(daemon), 0);
    ck_assert_int_eq(status_of(lent), 0);
    ck_assert_int_ne(access(service, F_OK), 0);
}
END_TEST

START_TEST(root_stops_anyones)
{
    pid_t daemon = start_service();
    struct eps_error error;

    ck_assert_msg(eps_stop(service, &error) == 0, "%s", error.text);
    ck_assert_int_eq(status_of(daemon), 0);
}
END_TEST

/* What looks like a service and is not says nothing of its group: nobody is to hand it files. */
START_TEST(a_directory_open_to_all_is_not_trusted)
{
    pid_t daemon = start_service();

    ck_assert_int_eq(chmod(service, 0755), 0);
    ck_assert_int_eq(eps_as(MEMBER, "status"), 1);
    check_log("belongs to another user", "");
    ck_assert_int_eq(chmod(service, 0710), 0);
    ck_assert_int_eq(eps_as(MEMBER, "status"), 0);
    ck_assert_int_eq(eps_stop(service, NULL), 0);
    ck_assert_int_eq(status_of(daemon), 0);
}
END_TEST

/* Anybody can make it before its user does, and in /tmp only they can remove it. */
START_TEST(a_base_that_another_user_took_is_told_with_a_way_out)
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
    ck_assert_int_eq(chown(base, STRANGER, STRANGER), 0);
    ck_assert_int_eq(mkdir(out, 0700), 0);
    ck_assert_int_eq(chown(out, victim, victim), 0);
    ck_assert_int_eq(run_as(victim, false, "epsd", listen), 1);
    check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    ck_assert_int_eq(run_as(victim, false, "eps-worker", connect), 1);
    check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    ck_assert_int_eq(run_as(victim, false, "eps", train), 1);
    check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ck_assert_int_eq(run_as(victim, false, "eps", (const char *const[]){words[i], NULL}), 1);
        check_log("belongs to user 54324: set XDG_RUNTIME_DIR", base);
    }
    ck_assert_int_eq(rmdir(base), 0); /* nothing was put there */
}
END_TEST

static bool find_group(void)
{
    const struct group *g = getgrgid(100); /* users, on most systems */

    setgrent();
    while (!g || g->gr_gid == 0) {
        g = getgrent();
        if (!g)
            return false;
    }
    group = g->gr_gid;
    snprintf(group_name, sizeof group_name, "%s", g->gr_name);
    endgrent();
    return true;
}

int main(void)
{
    if (geteuid() != 0 || !find_group()) {
        puts("skipped: only root can play several users");
        return 77;
    }
    TCase *tests = tcase_create("group");

    tcase_add_checked_fixture(tests, setup, processes_remove);
    tcase_add_test(tests, a_group_that_cannot_be_is_misuse);
    tcase_add_test(tests, members_bring_workers_and_jobs_and_do_not_stop_it);
    tcase_add_test(tests, root_stops_anyones);
    tcase_add_test(tests, a_directory_open_to_all_is_not_trusted);
    tcase_add_test(tests, a_base_that_another_user_took_is_told_with_a_way_out);
    return run_tests(tests);
}
