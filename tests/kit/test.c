#include "tests/kit/test.h"

#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77 };

static struct test_suite suites[64];
static int n_suites;

static struct test_suite *find_suite(const char *name, size_t length)
{
    for (int i = 0; i < n_suites; i++)
        if (strlen(suites[i].name) == length && memcmp(suites[i].name, name, length) == 0)
            return &suites[i];
    return NULL;
}

struct test_suite *test_suite_of(const char *file)
{
    const char *const slash = strrchr(file, '/'), *const name = slash ? slash + 1 : file;
    const size_t length = strcspn(name, ".");
    struct test_suite *suite = find_suite(name, length);

    if (suite)
        return suite;
    if (n_suites == COUNT(suites) || length >= sizeof suite->name)
        abort();
    suite = &suites[n_suites++];
    memcpy(suite->name, name, length);
    suite->end = &suite->tests;
    return suite;
}

void test_register(struct test_suite *suite, struct test_entry *entry)
{
    *suite->end = entry;
    suite->end = &entry->next;
}

int test_forks(void)
{
    const char *forks = getenv("CK_FORK");

    return !forks || strcmp(forks, "no") != 0;
}

/* Check writes down each assertion that holds, to tell after a crash which was the last: half the time of tests that
 * compare arrays. The linker puts this in its place, which lets each line through once. */
void __real__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line);
void __wrap__mark_point(const char *file, int line)
{
    static unsigned char seen[1 << 13];
    const size_t place = ((uintptr_t)file * 31 + (unsigned)line) % sizeof seen;

    if (!__atomic_exchange_n(&seen[place], 1, __ATOMIC_RELAXED))
        __real__mark_point(file, line);
}

/* Check ends a test at a message of 4 KiB, and shows none of it. A long one goes to stderr, and its beginning to
 * Check. */
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

static TCase *make_case(const struct test_suite *suite)
{
    TCase *tcase = tcase_create(suite->name);

    if (suite->timeout_s > 0)
        tcase_set_timeout(tcase, suite->timeout_s);
    if (suite->setup_once || suite->teardown_once)
        tcase_add_unchecked_fixture(tcase, suite->setup_once, suite->teardown_once);
    if (suite->setup_each || suite->teardown_each)
        tcase_add_checked_fixture(tcase, suite->setup_each, suite->teardown_each);
    for (const struct test_entry *t = suite->tests; t; t = t->next)
        for (int i = t->first(); i < t->end(); i++)
            if (t->suits(i))
                tcase_add_loop_test_raise_signal(tcase, t->test, t->signal, i, i + 1);
    return tcase;
}

static int run_suite(const struct test_suite *suite, int argc, char **argv)
{
    const int rc = argc > 1 && suite->command ? suite->command(argc, argv) : -1;

    if (rc >= 0)
        return rc;
    if (suite->runs && !suite->runs()) {
        fprintf(stderr, "%s: skipped: %s\n", suite->name, suite->skip_reason);
        return SKIPPED;
    }
    Suite *checked = suite_create(suite->name);
    SRunner *runner = srunner_create(checked);
    suite_add_tcase(checked, make_case(suite));
    srunner_run_all(runner, CK_ENV);
    const int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed != 0;
}

/* What one suite does to its process, another does not see. */
static int run_all(char *program)
{
    char *argv[] = {program, NULL};
    int n_skipped = 0, n_failed = 0;

    for (int i = 0; i < n_suites; i++) {
        int status = 0;
        fflush(NULL);
        const pid_t pid = fork();
        if (pid == 0)
            exit(run_suite(&suites[i], 1, argv));
        const bool ended = pid > 0 && waitpid(pid, &status, 0) == pid && WIFEXITED(status);
        n_skipped += ended && WEXITSTATUS(status) == SKIPPED;
        n_failed += !ended || (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != SKIPPED);
    }
    return n_failed ? 1 : n_skipped == n_suites ? SKIPPED : 0;
}

int main(int argc, char **argv)
{
    const char *const called = program_invocation_short_name;
    const struct test_suite *suite = n_suites == 1 ? &suites[0] : find_suite(called, strlen(called));

    if (suite)
        return run_suite(suite, argc, argv);
    if (argc == 1)
        return run_all(argv[0]);
    suite = find_suite(argv[1], strlen(argv[1]));
    if (suite)
        return run_suite(suite, argc - 1, argv + 1);
    fprintf(stderr, "%s: no suite is called %s; there are:", called, argv[1]);
    for (int i = 0; i < n_suites; i++)
        fprintf(stderr, " %s", suites[i].name);
    fprintf(stderr, "\n");
    return 2;
}

void test_holds(const char *file, int line, const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(text, *words))
            ck_abort_msg("%s:%d: no \"%s\" in: %s", file, line, *words, text);
}

void test_skip(const char *file, int line, const char *reason)
{
    fprintf(stderr, "skipped: %s:%d: %s\n", file, line, reason);
}
