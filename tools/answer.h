/* tools/answer.h - what a command says to programs, with --json. */
#ifndef TOOLS_ANSWER_H
#define TOOLS_ANSWER_H

#include <jansson.h>

/* Prints an object or a list on stdout, and drops the caller's reference. */
void answer_print(json_t *answer);

#endif
