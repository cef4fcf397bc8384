#include "tools/answer.h"

#include <stdio.h>

void answer_print(json_t *answer)
{
    json_dumpf(answer, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(answer);
}
