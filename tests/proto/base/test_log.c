#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include "proto/base/error.h"
#include "proto/base/log.h"
#include "proto/base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

SUITE_FIXTURE(processes_setup, processes_remove)

/* 1999 times this letter. */
static const char *letters(char letter)
{
    static char text[2000];

    return memset(text, letter, sizeof text - 1);
}

/* Waits for bytes, and reads at most `cap`: a terminal hands them on when it likes. */
static size_t some(int reader, char *out, size_t cap)
{
    ck_assert_int_eq(poll(&(struct pollfd){.fd = reader, .events = POLLIN}, 1, -1), 1);
    const ssize_t n = read(reader, out, cap);
    ck_assert_int_gt(n, 0);
    return (size_t)n;
}

TEST(a_log_line_is_one_line_with_the_name_in_front)
{
    const int saved = dup(STDERR_FILENO);
    char lines[4096] = "";
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    dup2(fds[1], STDERR_FILENO);
    log_line("started");
    log_name("epsd");
    log_line("started");
    log_line("%s", letters('a'));
    dup2(saved, STDERR_FILENO);
    const size_t n = some(fds[0], lines, sizeof lines), n_short = strlen("eps: started\nepsd: started\n");
    ck_assert_mem_eq(lines, "eps: started\nepsd: started\nepsd: aa", n_short + 8);
    ck_assert_uint_le(n - n_short, 1024);
    ck_assert_str_eq(lines + n - 2, "a\n");
}

/* Stops what stderr is written to, a terminal by flow control and a pipe by filling it; says `lines` lines into it;
 * lets it go on, and says one more. out: what came of that. A terminal cannot be filled for certain: the kernel moves
 * bytes out of its buffer whenever it likes. */
static void stall(char *out, size_t cap, int reader, int writer, unsigned lines)
{
    static char filler[4096];
    const int saved = dup(STDERR_FILENO), flags = fcntl(writer, F_GETFL);
    size_t filled = 0, n = 0;

    dup2(writer, STDERR_FILENO);
    ck_assert_int_eq(fcntl(writer, F_SETFL, flags | O_NONBLOCK), 0);
    ck_assert(!isatty(writer) || tcflow(writer, TCOOFF) == 0);
    for (ssize_t put; (put = write(writer, filler, sizeof filler)) > 0 || (put = write(writer, filler, 1)) > 0;)
        filled += (size_t)put;
    ck_assert_int_eq(fcntl(writer, F_SETFL, flags), 0);
    for (unsigned i = 0; i < lines; i++)
        log_line("lost");
    ck_assert(!isatty(writer) || tcflow(writer, TCOON) == 0);
    while (filled > 0)
        filled -= some(reader, filler, filled < sizeof filler ? filled : sizeof filler);
    log_line("there");
    dup2(saved, STDERR_FILENO);
    close(saved);
    ck_assert_int_eq(fcntl(writer, F_GETFL), flags); /* which are not this process's alone */
    for (out[0] = '\0'; strstr(out, ": there") == NULL || out[n - 1] != '\n'; out[n] = '\0')
        n += some(reader, out + n, cap - 1 - n);
}

#define DROPPED "epsd: 3 lines of the log were dropped: standard error did not take them"

TEST(a_log_that_nobody_reads_loses_lines_and_counts_them)
{
    int ends[2];
    char said[4096];

    log_name("epsd");
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    stall(said, sizeof said, ends[0], ends[1], 3);
    ck_assert_str_eq(said, DROPPED "\nepsd: there\n");
    stall(said, sizeof said, ends[0], ends[1], 1);
    ck_assert_str_eq(said, "epsd: 1 line of the log was dropped: standard error did not take it\nepsd: there\n");
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    stall(said, sizeof said, ends[0], ends[1], 3);
    ck_assert_holds(said, DROPPED "\n");
}

/* Another user's pipe: it cannot be opened anew. */
TEST(a_log_that_cannot_be_opened_anew_does_not_wait_either)
{
    char said[4096];
    int ends[2];

    log_name("epsd");
    ck_assert_int_eq(pipe2(ends, O_CLOEXEC), 0);
    ck_assert_int_eq(fchmod(ends[1], 0), 0);
    const bool root = geteuid() == 0; /* who may open everything */
    if (root)
        ck_assert_int_eq(seteuid(65534), 0);
    stall(said, sizeof said, ends[0], ends[1], 3);
    if (root) /* and may be looked into again, as the leak sanitizer does at the end */
        ck_assert(seteuid(0) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0);
    ck_assert_holds(said, DROPPED);
}

TEST(a_terminal_that_was_stopped_does_not_stop_the_log)
{
    const int screen = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC);
    char said[4096];

    log_name("epsd");
    ck_assert(screen >= 0 && grantpt(screen) == 0 && unlockpt(screen) == 0);
    const int terminal = open(ptsname(screen), O_RDWR | O_NOCTTY | O_CLOEXEC);
    ck_assert_int_ge(terminal, 0);
    stall(said, sizeof said, screen, terminal, 3);
    ck_assert_holds(said, DROPPED "\r\n", ": there\r\n");
}

/* The journal is known by device and inode of the stream that it gave the process. */
TEST_EACH(the_journal_gets_levels_in_place_of_the_name, 2)
{
    const int saved = dup(STDERR_FILENO);
    char text[64], said[4096] = "";
    struct stat st;
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    ck_assert_int_eq(fstat(fds[1], &st), 0);
    snprintf(text, sizeof text, "%ju:%ju", (uintmax_t)st.st_dev, (uintmax_t)st.st_ino + (unsigned)_i);
    setenv("JOURNAL_STREAM", text, 1);
    dup2(fds[1], STDERR_FILENO);
    log_name("epsd");
    log_line("three");
    log_warning("four");
    log_error("five");
    dup2(saved, STDERR_FILENO);
    some(fds[0], said, sizeof said - 1);
    ck_assert_str_eq(said, _i ? "epsd: three\nepsd: four\nepsd: five\n" : "<6>three\n<4>four\n<3>five\n");
}

TEST(a_level_leaves_out_what_is_less_important)
{
    static const char *const levels[] = {"error", "warning", "info"};
    const int saved = dup(STDERR_FILENO);
    struct error err = {""};
    char said[4096] = "";
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    dup2(fds[1], STDERR_FILENO);
    log_name("epsd");
    for (int i = 0; i < COUNT(levels); i++) {
        ck_assert_int_eq(log_set_level(levels[i], &err), 0);
        log_line("l%d", i);
        log_warning("w%d", i);
        log_error("e%d", i);
    }
    dup2(saved, STDERR_FILENO);
    some(fds[0], said, sizeof said - 1);
    ck_assert_str_eq(said, "epsd: e0\nepsd: w1\nepsd: e1\nepsd: l2\nepsd: w2\nepsd: e2\n");
    ck_assert_int_eq(log_set_level("loud", &err), -EDOM);
    ck_assert_holds(err.text, "--log-level loud");
}

/* "2026-11-22T10:00:00+0100 " */
static void check_time(const char *line)
{
    static const char form[] = "dddd-dd-ddTdd:dd:dd+dddd ";

    for (size_t i = 0; form[i]; i++)
        ck_assert_msg(form[i] == 'd'   ? line[i] >= '0' && line[i] <= '9'
                      : form[i] == '+' ? line[i] == '+' || line[i] == '-'
                                       : line[i] == form[i],
                      "%s", line);
}

TEST(a_file_gets_times_and_levels_and_can_be_rotated)
{
    const int saved = dup(STDERR_FILENO);
    const size_t time = strlen("2026-11-22T10:00:00+0100 ");
    struct error err = {""};
    struct stat st;

    log_name("epsd");
    log_reopen(); /* without a file: nothing */
    processes_put_text("log", "before\n");
    ck_assert_int_eq(chdir(processes_directory()), 0);
    ck_assert_int_eq(log_open("log", &err), 0);
    ck_assert_int_eq(chdir("/"), 0); /* its name stays the same */
    log_warning("one");
    ck_assert_int_eq(rename(processes_path("log"), processes_path("log.1")), 0);
    log_line("two");
    log_reopen();
    log_error("three");
    dup2(saved, STDERR_FILENO);
    char *old = processes_read(processes_path("log.1")), *new = processes_read(processes_path("log"));
    ck_assert_int_eq(strncmp(old, "before\n", 7), 0);
    check_time(old + 7);
    ck_assert_int_eq(strncmp(old + 7 + time, "epsd: warning: one\n", 19), 0);
    ck_assert_str_eq(old + 7 + time + 19 + time, "epsd: two\n");
    ck_assert_holds(new, " epsd: the log was opened anew", " epsd: error: three\n");
    ck_assert(stat(processes_path("log"), &st) == 0 && (st.st_mode & 07) == 0);
    free(old);
    free(new);
}

static void refuse_link(void)
{
    struct error err = {""};

    ck_assert_int_eq(log_open(processes_path("log"), &err), -ELOOP);
    ck_assert_holds(err.text, "--log ", "/log: it is a link, and may be another user's: name its file");
}

/* To a file that is not there, and to one that is; at once, and by a link of one's own. */
TEST_EACH(a_link_that_another_has_planted_is_not_followed, geteuid() == 0 ? 4 : 0)
{
    const char *const name = _i & 2 ? "planted" : "log";

    if (_i & 1)
        processes_put_text("mine", "mine");
    ck_assert_int_eq(symlink("mine", name), 0);
    ck_assert_int_eq(lchown(name, 4321, 4321), 0);
    if (_i & 2)
        ck_assert_int_eq(symlink("planted", "log"), 0);
    refuse_link();
    if (_i & 1) {
        char *mine = processes_read("mine");
        ck_assert_str_eq(mine, "mine");
        free(mine);
    } else {
        ck_assert_int_ne(access("mine", F_OK), 0);
    }
}

/* In a directory's place on the way: another's is not passed, one's own is. */
TEST_EACH(a_directory_that_another_has_planted_is_not_passed, geteuid() == 0 ? 2 : 0)
{
    const int saved = dup(STDERR_FILENO);
    struct error err = {""};

    ck_assert(mkdir("there", 0700) == 0 && symlink("there", "way") == 0);
    if (_i == 0)
        ck_assert_int_eq(lchown("way", 4321, 4321), 0);
    ck_assert_int_eq(log_open(processes_path("way/./log"), &err), _i == 0 ? -ELOOP : 0);
    dup2(saved, STDERR_FILENO);
    ck_assert_int_eq(access("there/log", F_OK), _i == 0 ? -1 : 0);
}

/* A second name in one's own directory is one's own; not in a directory for all, or in another user's. The file keeps its
 * bytes. */
TEST_EACH(a_file_that_another_has_named_anew_is_not_written, geteuid() == 0 ? 3 : 2)
{
    struct error err = {""};

    processes_put_text("mine", "mine");
    ck_assert(mkdir("all", 0700) == 0 && chmod("all", _i == 1 ? 01777 : 0700) == 0);
    ck_assert_int_eq(link("mine", "all/log"), 0);
    if (_i == 2)
        ck_assert_int_eq(chown("all", 4321, 4321), 0);
    const int fd = path_open(processes_path("all/log"), O_WRONLY | O_CREAT | O_TRUNC, 0666, &err);
    char *mine = processes_read("mine");
    if (_i > 0) {
        ck_assert_int_eq(fd, -EMLINK);
        ck_assert_holds(err.text, "it has two names");
        ck_assert_str_eq(mine, "mine");
    } else {
        ck_assert_int_ge(fd, 0);
        ck_assert_str_eq(mine, "");
    }
    free(mine);
}

/* A hard link is how another user plants a link that is not his. */
TEST(a_link_with_two_names_or_without_an_end_is_not_followed)
{
    ck_assert(symlink("mine", "log") == 0 && linkat(AT_FDCWD, "log", AT_FDCWD, "planted", 0) == 0);
    refuse_link();
    ck_assert_int_ne(access("mine", F_OK), 0);
    ck_assert(unlink("log") == 0 && symlink("around", "log") == 0 && symlink("log", "around") == 0);
    refuse_link();
}

/* Links that are absolute, and relative to another directory; the second opening makes the file. */
TEST(a_link_of_ones_own_is_followed)
{
    const int saved = dup(STDERR_FILENO);
    struct error err = {""};

    processes_put_text("mine", "before\n");
    ck_assert(mkdir("logs", 0700) == 0 && symlink("../mine", "logs/second") == 0);
    ck_assert(symlink("logs/second", "first") == 0 && symlink(processes_path("first"), "log") == 0);
    ck_assert_msg(log_open(processes_path("log"), &err) == 0, "%s", err.text);
    log_line("one");
    ck_assert_int_eq(rename("mine", "mine.1"), 0);
    log_reopen();
    log_line("two");
    dup2(saved, STDERR_FILENO);
    char *old = processes_read("mine.1"), *new = processes_read("mine");
    ck_assert_int_eq(strncmp(old, "before\n", 7), 0);
    ck_assert_holds(old, ": one\n");
    ck_assert_holds(new, ": the log was opened anew", ": two\n");
    free(old);
    free(new);
}

/* /dev/stderr is root's, and so is what it leads to where the user was changed; where that leads has no name. */
TEST_EACH(a_descriptor_may_take_the_log, geteuid() == 0 ? 3 : 2)
{
    const bool changes_user = _i == 2;
    const int saved = dup(STDERR_FILENO);
    char path[64], said[4096] = "";
    struct error err = {""};
    int fds[2];

    log_name("epsd");
    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    snprintf(path, sizeof path, _i ? "/dev/stderr" : "/proc/self/fd/%d", fds[1]);
    dup2(_i ? fds[1] : saved, STDERR_FILENO);
    if (changes_user)
        ck_assert(fchmod(fds[1], 0666) == 0 && seteuid(65534) == 0);
    ck_assert_msg(log_open(path, &err) == 0, "%s", err.text);
    if (changes_user)
        ck_assert(seteuid(0) == 0 && prctl(PR_SET_DUMPABLE, 1) == 0); /* as above */
    log_line("there");
    dup2(saved, STDERR_FILENO);
    some(fds[0], said, sizeof said - 1);
    ck_assert_holds(said, " epsd: there\n");
}

/* A directory has taken its name. */
TEST(a_file_that_cannot_be_opened_anew_goes_on)
{
    const int saved = dup(STDERR_FILENO);
    struct error err = {""};

    log_name("epsd");
    ck_assert_int_eq(log_open(processes_path("none/log"), &err), -ENOENT);
    ck_assert_holds(err.text, "--log ", "none/log: No such file");
    ck_assert_int_eq(log_open(processes_path("log"), &err), 0);
    ck_assert_int_eq(rename(processes_path("log"), processes_path("log.1")), 0);
    ck_assert_int_eq(mkdir(processes_path("log"), 0700), 0);
    log_reopen();
    log_line("on");
    dup2(saved, STDERR_FILENO);
    char *old = processes_read(processes_path("log.1"));
    ck_assert_holds(old, " epsd: warning: the log could not be opened anew, and goes on where it is: ", " epsd: on\n");
    free(old);
}
