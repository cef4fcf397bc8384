/* tests/kit/run.h - what the main of a test program ends with that makes its own case. */
#ifndef TESTS_KIT_RUN_H
#define TESTS_KIT_RUN_H

#include "tests/kit/test.h"

/* Runs the tests; returns the exit status of a program that has no others: 0 if all passed. Frees them. */
int run_tests(TCase *tests);

#endif
