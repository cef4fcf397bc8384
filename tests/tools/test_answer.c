/* What the commands share: how --json is written. */
#include "tools/commands.h"
#include "tests/kit/test.h"

#include <stdio.h>
#include <stdlib.h>

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
