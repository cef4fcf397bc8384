/* What the commands share: how --json is written. */
#include "tools/commands.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* By Python's json.dumps. What looks like a number in a text or a key stays as it is. */
TEST(a_real_of_an_answer_has_the_fewest_digits)
{
    static const char text[] =
        "{\"a\": 19.99, \"1.10\": [1e-07, 1e+22, -2.50, 0.0, 12], \"b\": \"0.10000 \\\"1.50\\\\\", "
        "\"c\": {\"d\": true, \"e\": -7}}",
                      want[] =
                          "{\"a\": 19.99, \"1.10\": [1e-07, 1e+22, -2.5, 0.0, 12], \"b\": \"0.10000 \\\"1.50\\\\\", "
                          "\"c\": {\"d\": true, \"e\": -7}}";
    char *got = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&got, &n);
    json_t *value = json_loads(text, 0, NULL);

    answer_write(out, value, 0);
    fclose(out);
    ck_assert_str_eq(got, want);
    free(got);
    json_decref(value);
}

/* As json_pack gives NULL for a number that is not finite: nothing on stdout, one sentence, and no success. */
TEST(an_answer_that_could_not_be_made_is_a_failure)
{
    char said[200] = "";
    int ends[2], status;

    ck_assert_int_eq(pipe(ends), 0);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(ends[1], STDOUT_FILENO), dup2(ends[1], STDERR_FILENO);
        answer_print(NULL);
        _exit(0);
    }
    close(ends[1]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_gt(read(ends[0], said, sizeof said - 1), 0);
    close(ends[0]);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    ck_assert_ptr_nonnull(strstr(said, "eps: the answer is no JSON"));
}
