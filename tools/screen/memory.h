/* tools/screen/memory.h - memory by category: a table for people, metrics for Prometheus. */
#ifndef TOOLS_SCREEN_MEMORY_H
#define TOOLS_SCREEN_MEMORY_H

#include "client/eps.h"

#include <jansson.h>
#include <stdio.h>

/* Prints one side, the host or a worker. */
void memory_print(FILE *out, const struct eps_memory *side);

/* Prints daemons' runs and memory in Prometheus' text format ("Exposition formats", text-based format 0.0.4, in its
 * documentation). Each metric is a gauge, labelled with the daemon's name, and of memory with the side; memory.c lists
 * them. list: objects as printed by eps mem --json. Absent and null values are left out. */
void mem_metrics_print(FILE *out, const json_t *list);

#endif
