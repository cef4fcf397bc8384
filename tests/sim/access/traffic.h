/* tests/sim/access/traffic.h - how many bytes of which array a kernel asks for: of requests (access.hpp), in whole
 * sectors of 32 bytes, as often as they are asked for. No cache is taken into account. */
#ifndef CUDASIM_TRAFFIC_H
#define CUDASIM_TRAFFIC_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct cudasim_array {
    const void *at; /* in the device's memory, at a whole sector */
    size_t bytes;
    size_t moved; /* bytes read and written, in whole sectors */
};

/* From now on sectors are counted for the arrays that hold them, which are borrowed until the next call. n = 0: no
 * more. */
void cudasim_count_arrays(struct cudasim_array *arrays, unsigned n);

#ifdef __cplusplus
}
#endif

#endif
