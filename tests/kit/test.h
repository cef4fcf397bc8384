/* tests/kit/test.h - the tests of a file: what they need, and what they may have to know of their build.
 *
 * A test is a block that registers itself in its file's suite. A program has the suites of a folder. kit/test.c has its
 * main, which runs the suite that the program is called by, or that its first argument names (test_x for test_x.c), or
 * all of them, each in a process of its own. A suite's tests run in the order of the source. The exit status is 0 if
 * all passed, 1 if not, 77 if the suites were skipped. A test that cannot check anything here says so by TEST_SKIP:
 * Check counts it as passed, tools/summary.awk as skipped:
 *
 *     SUITE_FIXTURE(setup, teardown)
 *
 *     TEST(a_name_is_a_sentence)
 *     {
 *         ck_assert_int_eq(1 + 1, 2);
 *     }
 *
 *     TEST_EACH(no_message_is_longer_than_any, N_MESSAGES)
 *     {
 *         ck_assert_uint_le(messages[_i].n, MESSAGE_MAX);
 *     }
 *
 * A suite's own lines begin with SUITE_, at most one of each. All are for C and C++. */
#ifndef TESTS_KIT_TEST_H
#define TESTS_KIT_TEST_H

#include <check.h>
#include <stdbool.h>

/* Under a sanitizer memory is not what it is otherwise, nothing can be loaded before it, and everything is slow. gcc
 * defines names for them, clang answers questions. */
#ifdef __has_feature
#define ASKED(sanitizer) __has_feature(sanitizer)
#else
#define ASKED(sanitizer) 0
#endif
#if defined __SANITIZE_THREAD__ || ASKED(thread_sanitizer)
#define THREAD_SANITIZED 1
#else
#define THREAD_SANITIZED 0
#endif
#if THREAD_SANITIZED || defined __SANITIZE_ADDRESS__ || ASKED(address_sanitizer)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif

/* Ends a test that has checked nothing, as this machine, device or case has none of what it checks: a line on
 * stderr. */
#define TEST_SKIP(reason)                                                                                              \
    do {                                                                                                               \
        test_skip(__FILE__, __LINE__, reason);                                                                         \
        return;                                                                                                        \
    } while (0)

/* The number of elements of an array. */
#define COUNT(array) ((int)(sizeof(array) / sizeof *(array)))

/* A text holds each of the words that follow. */
#define ck_assert_holds(text, ...) test_holds(__FILE__, __LINE__, text, (const char *const[]){__VA_ARGS__, NULL})

/* One test. */
#define TEST(name) TEST_REGISTER(name, 0, 1, 0, true)
/* One test for each _i from 0 to n - 1. n, like all other expressions here, is evaluated when the program starts. */
#define TEST_EACH(name, n) TEST_REGISTER(name, 0, n, 0, true)
/* Of these, one where the condition on _i holds, and no process for the others. */
#define TEST_EACH_IF(name, n, condition) TEST_REGISTER(name, 0, n, 0, condition)
/* One for each _i from first to end - 1. */
#define TEST_RANGE(name, first, end) TEST_REGISTER(name, first, end, 0, true)
/* One test where the condition holds, none elsewhere. */
#define TEST_IF(name, condition) TEST_REGISTER(name, 0, (condition) ? 1 : 0, 0, true)
/* One test that the signal must end. Left out under CK_FORK=no, where the signal would end the program. */
#define TEST_SIGNAL(name, signal) TEST_REGISTER(name, 0, test_forks(), signal, true)

/* For CMake, which reads this line: when and how ctest runs the suite. tests/CMakeLists.txt says what each label
 * means. */
#define SUITE_LABELS(...)

/* setup runs before each test and teardown after it, in the test's process; either may be NULL. */
#define SUITE_FIXTURE(setup, teardown) SUITE_SET(fixture, suite->setup_each = setup, suite->teardown_each = teardown)
/* setup runs before all tests and teardown after them, in the suite's own process; either may be NULL. */
#define SUITE_FIXTURE_ONCE(setup, teardown) SUITE_SET(once, suite->setup_once = setup, suite->teardown_once = teardown)
/* The limit of each test, in place of Check's own. */
#define SUITE_TIMEOUT(seconds) SUITE_SET(timeout, suite->timeout_s = (seconds))
/* Where the condition does not hold, no test runs, and the reason goes to stderr. */
#define SUITE_SKIP_UNLESS(condition, reason)                                                                           \
    static bool suite_runs(void)                                                                                       \
    {                                                                                                                  \
        return condition;                                                                                              \
    }                                                                                                                  \
    SUITE_SET(skip, suite->runs = suite_runs, suite->skip_reason = reason)
/* A suite that was given arguments calls int command(int argc, char **argv), and exits with what that returns, without
 * a test. A negative number: the tests run. */
#define SUITE_COMMAND(command_) SUITE_SET(command, suite->command = command_)

struct test_suite {
    char name[64]; /* the file's, without folder and suffix */
    struct test_entry *tests, **end;
    void (*setup_each)(void), (*teardown_each)(void);
    void (*setup_once)(void), (*teardown_once)(void);
    double timeout_s; /* 0: Check's own */
    bool (*runs)(void);
    const char *skip_reason;
    int (*command)(int argc, char **argv);
};

struct test_entry {
    const struct TTest *test;
    int (*first)(void), (*end)(void);
    bool (*suits)(int i);
    int signal;
    struct test_entry *next;
};

#ifdef __cplusplus
extern "C" {
#endif

/* 1 if each test runs in a process of its own, 0 under CK_FORK=no. */
int test_forks(void);
/* The suite of a file, __BASE_FILE__. */
struct test_suite *test_suite_of(const char *file);
/* Appends a test. Constructors of one file run in the order of the source. */
void test_register(struct test_suite *suite, struct test_entry *entry);
void test_holds(const char *file, int line, const char *text, const char *const *words);
void test_skip(const char *file, int line, const char *reason);

#ifdef __cplusplus
}
#endif

/* Not instrumented: what tests/sim/access has in the place of the thread sanitizer's runtime is itself still to be
 * constructed. */
#define TEST_CONSTRUCTOR __attribute__((constructor, no_sanitize_thread))

#define SUITE_SET(what, ...)                                                                                           \
    TEST_CONSTRUCTOR static void suite_set_##what(void)                                                                \
    {                                                                                                                  \
        struct test_suite *const suite = test_suite_of(__BASE_FILE__);                                                 \
        __VA_ARGS__;                                                                                                   \
    }

#define TEST_REGISTER(name, first_, end_, signal_, condition)                                                          \
    static void name##_test(int);                                                                                      \
    static int name##_first(void)                                                                                      \
    {                                                                                                                  \
        return (int)(first_);                                                                                          \
    }                                                                                                                  \
    static int name##_end(void)                                                                                        \
    {                                                                                                                  \
        return (int)(end_);                                                                                            \
    }                                                                                                                  \
    static bool name##_suits(int _i CK_ATTRIBUTE_UNUSED)                                                               \
    {                                                                                                                  \
        return condition;                                                                                              \
    }                                                                                                                  \
    TEST_CONSTRUCTOR static void name##_register(void)                                                                 \
    {                                                                                                                  \
        static const struct TTest test = {#name, name##_test, __FILE__, __LINE__};                                     \
        static struct test_entry entry = {&test, name##_first, name##_end, name##_suits, signal_, NULL};               \
        test_register(test_suite_of(__BASE_FILE__), &entry);                                                           \
    }                                                                                                                  \
    static void name##_test(int _i CK_ATTRIBUTE_UNUSED)

#endif
