#include "tests/kit/test.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct test_suite program;
static struct test_entry *tests, **last = &tests;

struct test_suite *test_program(void)
{
    return &program;
}

void test_register(struct test_entry *entry)
{
    *last = entry;
    last = &entry->next;
}

int test_forks(void)
{
    const char *forks = getenv("CK_FORK");

    return !forks || strcmp(forks, "no") != 0;
}

/* Check writes down each assertion that holds, to tell after a crash which was the last: half the time of tests that compare
 * arrays. The linker puts this in its place, which lets each line through once. */
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line)
{
    static unsigned char seen[1 << 13];
    const size_t place = ((uintptr_t)file * 31 + (unsigned)line) % sizeof seen;

    if (!__atomic_exchange_n(&seen[place], 1, __ATOMIC_RELAXED))
        __real__mark_point(file, line);
}

/* Check ends a test at a message of 4 KiB, and shows none of it. A long one goes to stderr, and its beginning to Check. */
void __real__ck_assert_failed(const char *file, int line, const char *expr, const char *message, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
void __wrap__ck_assert_failed(const char *file, int line, const char *expr, const char *message, ...)
    __attribute__((noreturn, format(printf, 4, 5)));
void __wrap__ck_assert_failed(const char *file, int line, const char *expr, const char *message, ...)
{
    enum { MOST = 3000 };
    char *text = NULL;
    va_list args;

    if (!message)
        __real__ck_assert_failed(file, line, expr, NULL);
    va_start(args, message);
    const int n = vasprintf(&text, message, args);
    va_end(args);
    if (n > MOST)
        fprintf(stderr, "%s:%d: %s\n", file, line, text);
    __real__ck_assert_failed(file, line, expr, "%.*s%s", MOST, n < 0 ? expr : text,
                             n > MOST ? "... (all of it on stderr)" : "");
}

static TCase *make_case(void)
{
    TCase *tcase = tcase_create(program_invocation_short_name);

    if (program.timeout_s > 0)
        tcase_set_timeout(tcase, program.timeout_s);
    if (program.setup_once || program.teardown_once)
        tcase_add_unchecked_fixture(tcase, program.setup_once, program.teardown_once);
    if (program.setup_each || program.teardown_each)
        tcase_add_checked_fixture(tcase, program.setup_each, program.teardown_each);
    for (const struct test_entry *t = tests; t; t = t->next)
        tcase_add_loop_test_raise_signal(tcase, t->test, t->signal, t->first(), t->end());
    return tcase;
}

int main(int argc, char **argv)
{
    const int rc = argc > 1 && program.command ? program.command(argc, argv) : -1;

    if (rc >= 0)
        return rc;
    if (program.runs && !program.runs()) {
        fprintf(stderr, "%s: skipped: %s\n", program_invocation_short_name, program.skip_reason);
        return 77;
    }
    Suite *suite = suite_create(program_invocation_short_name);
    SRunner *runner = srunner_create(suite);
    suite_add_tcase(suite, make_case());
    srunner_run_all(runner, CK_ENV);
    const int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed != 0;
}

void test_holds(const char *file, int line, const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(text, *words))
            ck_abort_msg("%s:%d: no \"%s\" in: %s", file, line, *words, text);
}
