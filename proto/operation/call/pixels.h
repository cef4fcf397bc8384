/* proto/operation/call/pixels.h - images as values on the device. */
#ifndef PROTO_OPERATION_CALL_PIXELS_H
#define PROTO_OPERATION_CALL_PIXELS_H

#include <stddef.h>
#include <stdint.h>

enum { DEVICE_MAX_CHANNELS = 4 };

/* y[i][c] = byte c of ids[i] * scale[c] + shift[c], where byte 0 is the lowest; in double, then rounded to fp32, and
 * from there to the device's type. */
struct device_pixels {
    size_t m, n;         /* pixels; channels, at most DEVICE_MAX_CHANNELS */
    const uint32_t *ids; /* (m) */
    void *y;             /* (m, n) */
    double scale[DEVICE_MAX_CHANNELS], shift[DEVICE_MAX_CHANNELS];
};

#endif
