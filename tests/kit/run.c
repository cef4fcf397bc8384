#include "tests/kit/run.h"

#include <errno.h>

int run_tests(TCase *tests)
{
    Suite *suite = suite_create(program_invocation_short_name);
    SRunner *runner = srunner_create(suite);

    suite_add_tcase(suite, tests);
    srunner_run_all(runner, CK_ENV);
    const int n_failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return n_failed != 0;
}
