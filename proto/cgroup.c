#include "proto/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* The number behind a key that begins a line; with an empty key the file's first word. False for "max" and no file. */
static bool read_number(uint64_t *out, const char *group, const char *name, const char *key)
{
    char path[PATH_MAX], line[128];
    const size_t n = strlen(key);
    bool found = false;

    if (snprintf(path, sizeof path, "%s/%s", group, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, key, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
    if (file)
        fclose(file);
    return found;
}

static uint64_t left_in(const char *group)
{
    uint64_t most, used, active, inactive;

    if (!read_number(&most, group, "memory.max", "") || !read_number(&used, group, "memory.current", ""))
        return UINT64_MAX;
    if (read_number(&active, group, "memory.stat", "active_file ") &&
        read_number(&inactive, group, "memory.stat", "inactive_file "))
        used -= active + inactive < used ? active + inactive : used;
    return most > used ? most - used : 0;
}

uint64_t cgroup_available_bytes(const char *membership, const char *mount)
{
    char line[PATH_MAX], group[2 * PATH_MAX];
    FILE *file = fopen(membership, "r");
    uint64_t least = UINT64_MAX;

    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, "0::/", 4) != 0) /* v2's; the others are v1's */
            continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(group, sizeof group, "%s%s", mount, line + 3);
        for (size_t n = strlen(group); n >= strlen(mount); n--) { /* from the group to the root, which is `mount` */
            if (group[n] && group[n] != '/')
                continue;
            group[n] = '\0';
            const uint64_t left = left_in(group);
            least = left < least ? left : least;
        }
    }
    if (file)
        fclose(file);
    return least;
}
