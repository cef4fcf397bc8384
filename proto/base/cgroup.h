/* proto/base/cgroup.h - host memory left within the limits of a container, a service or a batch job.
 *
 * MemAvailable ignores such limits, and a process that exceeds one is killed. */
#ifndef PROTO_BASE_CGROUP_H
#define PROTO_BASE_CGROUP_H

#include <stdint.h>

/* The smallest remainder among the memory limits of this process's group and its ancestors (cgroup v2, or v1's memory
 * controller). Reclaimable file pages count as free. Without a limit: UINT64_MAX, or more than any machine has.
 * Programs pass /proc/self/cgroup as membership and /sys/fs/cgroup as mount; tests pass others. */
uint64_t cgroup_available_bytes(const char *membership, const char *mount);

#endif
