/* proto/cgroup.h - what a container, a service or a job of a batch system may still take of the host's memory.
 *
 * The system's MemAvailable knows nothing of such limits, and whoever goes beyond one is killed. */
#ifndef PROTO_CGROUP_H
#define PROTO_CGROUP_H

#include <stdint.h>

/* The least that memory.max leaves in this process's group and those around it (cgroup v2); pages of files that the
 * system can take back count as free. UINT64_MAX where there is no limit, or no v2. In every program but tests
 * membership is /proc/self/cgroup and mount /sys/fs/cgroup. */
uint64_t cgroup_available_bytes(const char *membership, const char *mount);

#endif
