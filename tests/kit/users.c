#include "tests/kit/users.h"

#include "tests/kit/processes.h"

#include <check.h>
#include <fcntl.h>
#include <grp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static gid_t group; /* one that has a name here, and is not root's */
static char group_name[64], service[300], log_file[300];

void users_setup(void)
{
    processes_setup();
    ck_assert_int_eq(chmod(processes_path("."), 0711), 0);
    snprintf(service, sizeof service, "%s", processes_path("service"));
    snprintf(log_file, sizeof log_file, "%s", processes_path("log"));
    ck_assert_int_eq(mkdir(service, 0711), 0);
    ck_assert_int_eq(chown(service, USERS_OWNER, USERS_OWNER), 0);
    ck_assert_int_eq(close(open(log_file, O_CREAT | O_WRONLY | O_CLOEXEC, 0666)), 0);
    ck_assert_int_eq(chmod(log_file, 0666), 0);
    strcat(service, "/lab");
}

gid_t users_group(void)
{
    return group;
}

const char *users_group_name(void)
{
    return group_name;
}

const char *users_service(void)
{
    return service;
}

const char *users_log(void)
{
    return log_file;
}

bool users_become(uid_t uid, bool member)
{
    const gid_t groups[] = {uid, group};

    unsetenv("XDG_RUNTIME_DIR");
    return setgroups(member ? 2 : 1, groups) == 0 && setresgid(uid, uid, uid) == 0 && setresuid(uid, uid, uid) == 0 &&
           chdir("/") == 0;
}

/* The program is opened by root: its directory may be closed to others. */
pid_t users_start(uid_t uid, bool member, const char *program, const char *const *argv)
{
    char path[400];
    const char *all[24] = {program};
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
        if (users_become(uid, member))
            fexecve(fd, (char *const *)all, environ);
        _exit(127);
    }
    close(fd);
    close(log);
    return pid;
}

int users_run(uid_t uid, bool member, const char *program, const char *const *argv)
{
    return processes_wait(users_start(uid, member, program, argv));
}

int users_eps(uid_t uid, const char *word)
{
    const char *const argv[] = {word, service, NULL};

    return users_run(uid, uid == USERS_OWNER || uid == USERS_MEMBER, "eps", argv);
}

void users_check_log(const char *first, const char *second)
{
    char *said = processes_read(log_file);

    ck_assert_msg(strstr(said, first) && strstr(said, second), "no \"%s\" and \"%s\": %s", first, second, said);
    free(said);
}

pid_t users_start_service(const char *option)
{
    const char *const argv[] = {"--listen", service, option, group_name, NULL};
    pid_t daemon = users_start(USERS_OWNER, true, "epsd", argv);

    processes_await_workers(service, 0); /* as root, who may look at everybody's */
    return daemon;
}

bool users_can(void)
{
    const struct group *g = geteuid() == 0 ? getgrgid(100) : NULL; /* users, on most systems */

    if (geteuid() != 0)
        return false;
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
