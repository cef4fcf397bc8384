/* Runs that begin in the same second, in a directory without any: each has a directory of its own. */
#include "client/run/run.h"

#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

SUITE_LABELS(own)
SUITE_FIXTURE(processes_setup, processes_remove)

/* The other run comes as soon as there is a place: of this second, or of the next. */
int mkdir(const char *path, mode_t mode)
{
    const long rc = syscall(SYS_mkdirat, AT_FDCWD, path, mode);

    for (time_t at = time(NULL), end = at + 2; rc == 0 && strcmp(path, "runs") == 0 && at < end; at++) {
        struct tm local;
        char named[80];
        localtime_r(&at, &local);
        strftime(named, sizeof named, "runs/small-%Y%m%d-%H%M%S", &local);
        ck_assert_int_eq(syscall(SYS_mkdirat, AT_FDCWD, named, mode), 0);
    }
    return (int)rc;
}

TEST(a_directory_that_another_run_has_just_made_is_left_to_it)
{
    struct client_run run;
    struct error err = {""};

    client_run_init(&run);
    snprintf(run.model.name, sizeof run.model.name, "small");
    ck_assert_msg(client_run_make_directory(&run, NULL, &err) == 0, "%s", err.text);
    const size_t n = strlen(run.directory);
    ck_assert_str_eq(run.directory + n - 2, "-2");
    client_run_forget_directory(&run);
    ck_assert_int_eq(access("runs", F_OK), 0); /* it holds theirs */
    client_run_close(&run);
}
