/* A program that has closed its standard input gets descriptor 0 for what it opens next: one like any other. */
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "client/run/attach.h"
#include "client/run/resume.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

static void setup(void)
{
    processes_setup();
    close(STDIN_FILENO);
}

SUITE_FIXTURE(setup, processes_remove)

static void expect_closed(void)
{
    ck_assert(fcntl(STDIN_FILENO, F_GETFD) < 0 && errno == EBADF);
}

TEST(a_run_gives_it_back)
{
    struct eps_train_options given = eps_train_defaults();
    struct client_resume resume;
    struct error err;

    ck_assert_int_eq(mkdir("run", 0777), 0);
    given.resume = "run";
    ck_assert_int_lt(client_resume_open(&resume, &given, NULL, &err), 0); /* it has no checkpoint */
    ck_assert_int_eq(resume.directory_fd, STDIN_FILENO);
    client_resume_close(&resume);
    expect_closed();
}

TEST(a_job_that_is_taken_over_gives_it_back)
{
    struct client_attach attach;

    client_attach_init(&attach);
    attach.data_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    ck_assert_int_eq(attach.data_fd, STDIN_FILENO);
    client_attach_close(&attach);
    expect_closed();
    client_attach_close(&attach);
}
