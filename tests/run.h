/* tests/run.h - what the main of every test program ends with, and what it may have to know of its build. */
#ifndef TESTS_RUN_H
#define TESTS_RUN_H

#include <check.h>

/* Under a sanitizer memory is not what it is otherwise, nothing can be loaded before it, and everything is slow. */
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif

/* Runs the tests; returns the exit status of a program that has no others: 0 if all passed. Frees them. */
int run_tests(TCase *tests);

#endif
