/* In a container, the group's own directory may be mounted as the root, while the membership still has its path on the
 * host, which leads nowhere. So a file that is missing is no error, only no limit; and every walk up the path ends at
 * the mount, where such a container's limit is.
 *
 * Use includes the page cache, which the kernel reclaims before it kills. If it counted, a machine that has just read a
 * model's weights would seem full. */
#include "proto/base/cgroup.h"

#include <inttypes.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Reads the number after a key that begins a line; with an empty key, the first word. False for "max" or a missing
 * file. */
static bool cgroup_read_number(uint64_t *out, const char *group, const char *name, const char *key)
{
    char path[PATH_MAX], line[128];
    const size_t n = strlen(key);
    bool found = false;

    if (snprintf(path, sizeof path, "%s/%s", group, name) >= (int)sizeof path)
        return false;
    FILE *file = fopen(path, "re");
    while (file && !found && fgets(line, sizeof line, file))
        found = strncmp(line, key, n) == 0 && sscanf(line + n, "%" SCNu64, out) == 1;
    if (file)
        fclose(file);
    return found;
}

/* File names of an interface version. Version 1 mounts each controller in a directory of its own, and writes an unset
 * limit as a number beyond any memory. */
struct version {
    const char *mount, *limit, *used, *active, *inactive;
};

static const struct version versions[] = {
    {"", "memory.max", "memory.current", "active_file ", "inactive_file "},
    {"/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_active_file ", "total_inactive_file "},
};

static uint64_t left_in(const char *group, const struct version *version)
{
    uint64_t most, used, active, inactive;

    if (!cgroup_read_number(&most, group, version->limit, "") || !cgroup_read_number(&used, group, version->used, ""))
        return UINT64_MAX;
    if (cgroup_read_number(&active, group, "memory.stat", version->active) &&
        cgroup_read_number(&inactive, group, "memory.stat", version->inactive))
        used -= active + inactive < used ? active + inactive : used;
    return most > used ? most - used : 0;
}

/* The least left from the group up to the root, `mount`. path comes from /proc/self/cgroup and begins with '/'. */
static uint64_t least_left(const char *mount, const struct version *version, const char *path)
{
    char group[2 * PATH_MAX];
    uint64_t least = UINT64_MAX;
    const size_t root = (size_t)snprintf(group, sizeof group, "%s%s", mount, version->mount);

    if (root + strlen(path) >= sizeof group)
        return UINT64_MAX;
    strcpy(group + root, path);
    for (size_t n = strlen(group); n >= root; n--) {
        if (group[n] && group[n] != '/')
            continue;
        group[n] = '\0';
        const uint64_t left = left_in(group, version);
        least = left < least ? left : least;
    }
    return least;
}

/* "0::/path" is version 2; "4:memory:/path" is version 1, where controllers may share a line: "4:cpu,memory:/path". */
static const struct version *cgroup_version_of(const char *line, const char **path)
{
    const char *controllers = strchr(line, ':'), *end = controllers ? strchr(controllers + 1, ':') : NULL;

    if (!end || end[1] != '/')
        return NULL;
    *path = end + 1;
    if (strncmp(line, "0::", 3) == 0)
        return &versions[0];
    for (const char *at = controllers + 1; at < end; at += strcspn(at, ",:") + 1)
        if (strcspn(at, ",:") == strlen("memory") && strncmp(at, "memory", strlen("memory")) == 0)
            return &versions[1];
    return NULL;
}

uint64_t cgroup_available_bytes(const char *membership, const char *mount)
{
    char line[PATH_MAX];
    FILE *file = fopen(membership, "re");
    uint64_t least = UINT64_MAX;

    while (file && fgets(line, sizeof line, file)) {
        const char *path;
        const struct version *version = cgroup_version_of(line, &path);
        line[strcspn(line, "\n")] = '\0';
        const uint64_t left = version ? least_left(mount, version, path) : UINT64_MAX;
        least = left < least ? left : least;
    }
    if (file)
        fclose(file);
    return least;
}
