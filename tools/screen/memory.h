/* tools/screen/memory.h - prints one side's memory by category, for people. */
#ifndef TOOLS_SCREEN_MEMORY_H
#define TOOLS_SCREEN_MEMORY_H

#include "client/eps.h"

#include <stdio.h>

void memory_print(FILE *out, const struct eps_memory *side);

#endif
