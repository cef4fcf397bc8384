/* tools/screen/mem_metrics.h - daemons' memory as metrics in Prometheus' text format.
 *
 * Each metric is a gauge in bytes, labelled with the daemon's name and the side; mem_metrics.c lists them. Format:
 * "Exposition formats", text-based format 0.0.4, in Prometheus' documentation. */
#ifndef TOOLS_SCREEN_MEM_METRICS_H
#define TOOLS_SCREEN_MEM_METRICS_H

#include <jansson.h>
#include <stdio.h>

/* list: objects as printed by eps mem --json. Absent and null values are left out. */
void mem_metrics_print(FILE *out, const json_t *list);

#endif
