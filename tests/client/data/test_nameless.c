#include "client/data/data.h"

#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where the file is, as the system says; "/dir/#123 (deleted)" */
static void place_of(char out[400], int fd)
{
    char link[40];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, out, 399);
    ck_assert_int_gt(n, 0);
    out[n] = 0;
}

static void check_usable(int fd)
{
    char back[3] = "";
    struct stat st;

    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(fstat(fd, &st), 0);
    ck_assert_uint_eq(st.st_nlink, 0);
    ck_assert_int_eq(pwrite(fd, "ab", 2, 1 << 20), 2);
    ck_assert_int_eq(pread(fd, back, 2, 1 << 20), 2);
    ck_assert_str_eq(back, "ab");
    close(fd);
}

SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(it_lies_where_tmpdir_says_or_where_it_can)
{
    static const char *const others[] = {"/nonexistent", "", "/proc"};
    char place[400], own[300];

    snprintf(own, sizeof own, "%s", processes_path("run")); /* which is there */
    int fd = open(own, O_TMPFILE | O_RDWR, 0600);
    const bool takes_any = fd >= 0;
    if (fd >= 0)
        close(fd);
    setenv("TMPDIR", own, 1);
    fd = client_data_nameless("a test", NULL);
    place_of(place, fd);
    ck_assert_msg(!takes_any || strncmp(place, own, strlen(own)) == 0, "%s", place);
    check_usable(fd);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        setenv("TMPDIR", others[i], 1);
        check_usable(client_data_nameless("a test", NULL));
    }
    unsetenv("TMPDIR");
    check_usable(client_data_nameless("a test", NULL));
}
