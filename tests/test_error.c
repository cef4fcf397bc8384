#include "tests/run.h"

#include "proto/error.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

START_TEST(a_sentence_is_kept_and_its_code_returned)
{
    struct error err;

    ck_assert_int_eq(error_set(&err, -EINVAL, "--%s is %d", "parts", 0), -EINVAL);
    ck_assert_str_eq(err.text, "--parts is 0");
    ck_assert_int_eq(error_set(NULL, -ENOMEM, "nobody asked for %s", "it"), -ENOMEM);
}
END_TEST

START_TEST(a_sentence_too_long_is_cut_off)
{
    struct {
        struct error err;
        char after;
    } box = {.after = 'x'};
    char text[2000];

    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    error_set(&box.err, -EINVAL, "%s", text);
    ck_assert_uint_eq(strlen(box.err.text), ERROR_TEXT_BYTES - 1);
    error_prefix(&box.err, text);
    ck_assert_uint_lt(strlen(box.err.text), ERROR_TEXT_BYTES);
    ck_assert_ptr_nonnull(strstr(box.err.text, "a: a")); /* both of them are still there */
    ck_assert_int_eq(box.after, 'x');
}
END_TEST

START_TEST(control_characters_do_not_reach_the_terminal)
{
    struct error err;

    error_set(&err, -EINVAL, "%s", "a\nb\x1B[2Jc\x7F \xC3\xBC");
    ck_assert_str_eq(err.text, "a?b?[2Jc? \xC3\xBC");
}
END_TEST

START_TEST(a_prefix_goes_in_front)
{
    struct error err;

    error_set(&err, -EINVAL, "n_layer is missing");
    error_prefix(&err, "config.json");
    ck_assert_str_eq(err.text, "config.json: n_layer is missing");
}
END_TEST

/* What log_line writes to stderr, which is a pipe meanwhile. */
static size_t logged(char *out, size_t cap, const char *text)
{
    const int saved = dup(STDERR_FILENO);
    int fds[2];

    ck_assert_int_eq(pipe2(fds, O_CLOEXEC), 0);
    dup2(fds[1], STDERR_FILENO);
    log_line("%s", text);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(fds[1]);
    const ssize_t n = read(fds[0], out, cap);
    close(fds[0]);
    ck_assert_int_gt(n, 0);
    return (size_t)n;
}

START_TEST(a_log_line_is_one_line_with_the_name_in_front)
{
    char line[4096], text[2000];

    size_t n = logged(line, sizeof line, "started");
    ck_assert_uint_eq(n, strlen("eps: started\n"));
    ck_assert_mem_eq(line, "eps: started\n", n);
    log_name("epsd");
    n = logged(line, sizeof line, "started");
    ck_assert_mem_eq(line, "epsd: started\n", n);
    memset(text, 'a', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    n = logged(line, sizeof line, text);
    ck_assert_uint_le(n, 1024);
    ck_assert_int_eq(line[n - 2], 'a');
    ck_assert_int_eq(line[n - 1], '\n');
}
END_TEST

/* What to do about it must be read: of a long sentence the end makes room for it. */
START_TEST(what_is_appended_is_never_lost)
{
    struct error err;
    char longest[600];

    error_set(&err, 0, "disk full");
    error_append(&err, "; %s continues from step %d", "eps", 7);
    ck_assert_str_eq(err.text, "disk full; eps continues from step 7");
    memset(longest, 'x', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    error_set(&err, 0, "%s", longest);
    error_append(&err, "; remedy");
    ck_assert_uint_eq(strlen(err.text), sizeof err.text - 1);
    ck_assert_str_eq(err.text + strlen(err.text) - 10, "xx; remedy");
    error_append(&err, "%s", longest);
    ck_assert_uint_eq(strlen(err.text), sizeof err.text - 1);
    error_append(NULL, "nobody asked");
}
END_TEST

int main(void)
{
    TCase *tcase = tcase_create("error");

    tcase_add_test(tcase, a_sentence_is_kept_and_its_code_returned);
    tcase_add_test(tcase, a_sentence_too_long_is_cut_off);
    tcase_add_test(tcase, control_characters_do_not_reach_the_terminal);
    tcase_add_test(tcase, a_prefix_goes_in_front);
    tcase_add_test(tcase, a_log_line_is_one_line_with_the_name_in_front);
    tcase_add_test(tcase, what_is_appended_is_never_lost);
    return run_tests(tcase);
}
