/* tools/screen/mem_metrics.h - the memory of daemons as metrics, in the text format of Prometheus.
 *
 * Each metric is a gauge in bytes, with the daemon's name and which side as labels; see mem_metrics.c for the list.
 * Format: "Exposition formats", text-based format 0.0.4, of Prometheus' documentation. */
#ifndef TOOLS_SCREEN_MEM_METRICS_H
#define TOOLS_SCREEN_MEM_METRICS_H

#include <jansson.h>
#include <stdio.h>

/* list: objects as eps mem --json prints them. What is null or not there is left out. */
void mem_metrics_print(FILE *out, const json_t *list);

#endif
