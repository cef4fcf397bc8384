#include "tests/kit/test.h"

#include "proto/base/error.h"

#include <errno.h>
#include <string.h>

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
