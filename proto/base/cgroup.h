/* proto/base/cgroup.h - what a container, a service or a job of a batch system may still take of the host's memory.
 *
 * The system's MemAvailable knows nothing of such limits, and whoever goes beyond one is killed. */
#ifndef PROTO_BASE_CGROUP_H
#define PROTO_BASE_CGROUP_H

#include <stdint.h>

/* The least that is left of the memory limits of this process's group and those around it (cgroup v2, or v1's memory
 * controller); pages of files that the system can take back count as free. UINT64_MAX, or more than any machine has,
 * where there is no limit. In every program but tests
 * membership is /proc/self/cgroup and mount /sys/fs/cgroup. */
uint64_t cgroup_available_bytes(const char *membership, const char *mount);

#endif
