#include "tests/kit/test.h"

#include "proto/base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

/* 1999 times this letter. */
static const char *letters(char letter)
{
    static char text[2000];

    return memset(text, letter, sizeof text - 1);
}

TEST(a_sentence_is_kept_with_its_prefix_and_end_and_its_code_returned)
{
    struct error err;

    ck_assert_int_eq(error_set(&err, -EINVAL, "--%s is %d", "parts", 0), -EINVAL);
    ck_assert_str_eq(err.text, "--parts is 0");
    error_prefix(&err, "config.json");
    error_append(&err, "; %s continues from step %d", "eps", 7);
    ck_assert_str_eq(err.text, "config.json: --parts is 0; eps continues from step 7");
    error_set(&err, -EINVAL, "%s", "a\nb\x1B[2Jc\x7F \xC3\xBC"); /* control characters do not reach the terminal */
    ck_assert_str_eq(err.text, "a?b?[2Jc? \xC3\xBC");
    ck_assert_int_eq(error_set(NULL, -ENOMEM, "nobody asked for %s", "it"), -ENOMEM);
    error_append(NULL, "nobody asked");
}

/* What to do about it must be read: of a long sentence the end makes room for it. */
TEST(a_sentence_too_long_is_cut_off_but_never_what_is_appended)
{
    struct {
        struct error err;
        char after;
    } box = {.after = 'x'};

    error_set(&box.err, -EINVAL, "%s", letters('a'));
    ck_assert_uint_eq(strlen(box.err.text), ERROR_TEXT_BYTES - 1);
    error_prefix(&box.err, letters('a'));
    ck_assert_uint_lt(strlen(box.err.text), ERROR_TEXT_BYTES);
    ck_assert_ptr_nonnull(strstr(box.err.text, "a: a")); /* both of them are still there */
    error_set(&box.err, 0, "%s", letters('x'));
    error_append(&box.err, "; remedy");
    ck_assert_uint_eq(strlen(box.err.text), ERROR_TEXT_BYTES - 1);
    ck_assert_str_eq(box.err.text + strlen(box.err.text) - 10, "xx; remedy");
    error_append(&box.err, "%s", letters('x'));
    ck_assert_uint_eq(strlen(box.err.text), ERROR_TEXT_BYTES - 1);
    ck_assert_int_eq(box.after, 'x');
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

/* Stops what stderr is written to, a terminal by flow control and a pipe by filling it; says `lines` lines into it; lets it
 * go on, and says one more. out: what came of that. A terminal cannot be filled for certain: the kernel moves bytes out
 * of its buffer whenever it likes. */
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
