/* tools/answer.h - a command's output for programs, with --json. */
#ifndef TOOLS_ANSWER_H
#define TOOLS_ANSWER_H

#include <jansson.h>

/* Prints an object or a list on stdout and releases the caller's reference. */
void answer_print(json_t *answer);

#endif
