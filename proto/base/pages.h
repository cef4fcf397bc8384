/* proto/base/pages.h - what the system says of a process's memory: how much is there, locked, in huge pages, on which node.
 *
 * The ledger counts what was asked for; this is what the pages came to be. Counted are anonymous mappings, the heap and
 * memfds; programs, libraries and other files are not. Read from /proc/PID/smaps and numa_maps, where the kernel walks
 * the page tables: 10 to 20 ns for each page that is not huge, so never on a thread that others wait for. */
#ifndef PROTO_BASE_PAGES_H
#define PROTO_BASE_PAGES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

enum { PAGES_MAX_NODES = 8 };

struct pages {
    bool known;        /* else the system did not tell, and all below is 0 */
    uint64_t resident; /* bytes; of them: */
    uint64_t locked;
    uint64_t huge;
    uint32_t n_nodes;                /* 0: the kernel knows of none */
    uint64_t nodes[PAGES_MAX_NODES]; /* (n_nodes) bytes; nodes past the last are counted with it */
};

/* Of a process, which must be this user's. shared: its memfds too; without, only what is its own. *out is set in any
 * case. */
void pages_read(struct pages *out, pid_t pid, bool shared);

/* The same from two files as the kernel writes them; numa may be NULL. */
void pages_parse(struct pages *out, FILE *smaps, FILE *numa, bool shared);

#endif
