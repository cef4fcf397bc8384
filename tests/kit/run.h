/* tests/kit/run.h - what the main of every test program ends with, and what it may have to know of its build. */
#ifndef TESTS_KIT_RUN_H
#define TESTS_KIT_RUN_H

#include <check.h>

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

/* Runs the tests; returns the exit status of a program that has no others: 0 if all passed. Frees them. */
int run_tests(TCase *tests);

#endif
