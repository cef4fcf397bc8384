/* proto/base/pages.h - the system's view of a process's memory: resident, locked, in huge pages, by NUMA node.
 *
 * The ledger counts requested bytes; this counts actual pages. It includes anonymous mappings, the heap and memfds, but
 * no programs, libraries and other files. It reads /proc/PID/smaps and numa_maps, for which the kernel walks the page
 * tables: 10 to 20 ns for each page that is not huge. So it must not run on a thread that others wait for. */
#ifndef PROTO_BASE_PAGES_H
#define PROTO_BASE_PAGES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { PAGES_MAX_NODES = 8 };

struct pages {
    bool known;        /* false: the system did not tell, and all below is 0 */
    uint64_t resident; /* bytes; among them: */
    uint64_t locked;
    uint64_t huge;
    uint32_t n_nodes;                /* 0: the kernel reports none */
    uint64_t nodes[PAGES_MAX_NODES]; /* (n_nodes) bytes; the last one includes all further nodes */
};

/* Reads the pages of a process, which must be this user's. shared: includes its memfds; otherwise only private memory.
 * Always sets *out. */
void pages_read(struct pages *out, pid_t pid, bool shared);

/* Parses two files in the kernel's format; numa may be NULL. */
void pages_parse(struct pages *out, FILE *smaps, FILE *numa, bool shared);

#endif
