/* A mapping's header is told from its fields by shape alone: two hexadecimal numbers with a hyphen. Of its fields, Rss
 * comes first and VmFlags last, so the resident size is known when the flags say that it is locked.
 *
 * In numa_maps a page is what kernelpagesize_kB says, and that remains 4 where transparent huge pages are mapped. The
 * two files are read one after the other, of a process that goes on: their sums need not agree. */
#include "proto/base/pages.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* True for a mapping that counts. path: from smaps, or what follows "file=" in numa_maps; "" is anonymous. */
static bool is_counted(const char *path, bool shared)
{
    if (strncmp(path, "/memfd:", 7) == 0)
        return shared;
    return path[0] != '/';
}

/* The path in "7f52-7f53 rw-p 0 00:00 0    /path\n"; NULL for a line of another kind. */
static const char *find_path(char *line)
{
    int at = 0;

    if (sscanf(line, "%*x-%*x %*s %*x %*s %*u %n", &at) < 0 || at == 0)
        return NULL;
    line[strcspn(line, "\n")] = '\0';
    return line + at;
}

static void parse_smaps(struct pages *out, FILE *file, bool shared)
{
    char *line = NULL;
    size_t cap = 0;
    bool counted = false;
    uint64_t resident = 0, kib;

    while (getline(&line, &cap, file) > 0) {
        const char *path = find_path(line);
        if (path) {
            counted = is_counted(path, shared);
            resident = 0;
        } else if (!counted) {
            continue;
        } else if (sscanf(line, "Rss: %" SCNu64 " kB", &kib) == 1) {
            resident = kib << 10;
            out->resident += resident;
        } else if (sscanf(line, "AnonHugePages: %" SCNu64 " kB", &kib) == 1 ||
                   sscanf(line, "ShmemPmdMapped: %" SCNu64 " kB", &kib) == 1) {
            out->huge += kib << 10;
        } else if (strncmp(line, "VmFlags:", 8) == 0 && strstr(line, " lo")) {
            out->locked += resident; /* "Locked:" would divide it among the processes that map it */
        }
    }
    out->known = !ferror(file);
    free(line);
}

/* Parses " N0=512 N1=3 kernelpagesize_kB=4". */
static void add_nodes(struct pages *out, const char *line)
{
    const char *size = strstr(line, " kernelpagesize_kB=");
    const uint64_t page = size ? strtoull(size + 19, NULL, 10) << 10 : 4096;

    for (const char *at = line; (at = strstr(at, " N")); at++) {
        unsigned node;
        uint64_t n;
        if (sscanf(at, " N%u=%" SCNu64, &node, &n) != 2)
            continue;
        if (node >= PAGES_MAX_NODES)
            node = PAGES_MAX_NODES - 1;
        if (out->n_nodes <= node)
            out->n_nodes = node + 1;
        out->nodes[node] += n * page;
    }
}

static void parse_numa(struct pages *out, FILE *file, bool shared)
{
    char *line = NULL;
    size_t cap = 0;

    while (getline(&line, &cap, file) > 0) {
        const char *path = strstr(line, " file=");
        if (is_counted(path ? path + 6 : "", shared))
            add_nodes(out, line);
    }
    free(line);
}

void pages_parse(struct pages *out, FILE *smaps, FILE *numa, bool shared)
{
    *out = (struct pages){0};
    parse_smaps(out, smaps, shared);
    if (out->known && numa)
        parse_numa(out, numa, shared);
    if (!out->known)
        *out = (struct pages){0};
}

static FILE *open_of(pid_t pid, const char *name)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    return fopen(path, "re");
}

void pages_read(struct pages *out, pid_t pid, bool shared)
{
    FILE *smaps = open_of(pid, "smaps"), *numa = smaps ? open_of(pid, "numa_maps") : NULL;

    *out = (struct pages){0};
    if (smaps) {
        pages_parse(out, smaps, numa, shared);
        fclose(smaps);
    }
    if (numa)
        fclose(numa);
}
