/* What a failed test says. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <stdlib.h>

SUITE_FIXTURE(processes_setup, processes_remove)

/* The program below, and only there. */
TEST_IF(what_fails_with_a_long_text, getenv("FAILS") != NULL)
{
    ck_abort_msg("the first word%20000sthe last", " ");
}

TEST_IF(a_long_text_is_shown_to_its_last_word, getenv("FAILS") == NULL)
{
    expect("FAILS=1 " BIN_DIR "/test_test >checked", 1, "the first word ", " the last\n");
    expect_file("checked", "Failures: 1, Errors: 0", "the first word ", "(all of it on stderr)");
}
