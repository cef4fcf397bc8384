/* tests/run.h - what the main of every test program ends with. */
#ifndef TESTS_RUN_H
#define TESTS_RUN_H

#include <check.h>

/* Runs the tests; returns the exit status of a program that has no others: 0 if all passed. Frees them. */
int run_tests(TCase *tests);

#endif
