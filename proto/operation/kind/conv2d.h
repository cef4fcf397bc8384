/* proto/operation/kind/conv2d.h - y = convolution of the images x with weights W. */
#ifndef PROTO_OPERATION_KIND_CONV2D_H
#define PROTO_OPERATION_KIND_CONV2D_H

#include "proto/operation/call/conv2d.h"

#include <stdbool.h>

struct operation_run;
struct program;
struct schedule_step;

struct program_conv2d_options {
    uint32_t height, width; /* of x, if its domain is TOKENS; else 0, as the domain says it */
    struct image_window window;
    uint32_t n_groups; /* > 0 */
    bool bias;
    float deviation; /* standard deviation of the fresh weight; its bias is 0 */
    /* program_pool sets it: the weight's gradient is computed from means of this x this pixels of x. 0: from x. */
    uint32_t pooled;
};

/* Returns y, of this domain of pixels (as many as windows fit, program_own) and as many columns. Its weight is
 * (columns, window.height * window.width * x's columns / n_groups), the channels of a pixel side by side: what PyTorch
 * stores as [o][c][ky][kx] is [o][ky][kx][c] here. */
int program_conv2d(struct program *p, int x, const char *stem, uint32_t domain, uint32_t columns,
                   const struct program_conv2d_options *conv);

/* The device's call for a step of a convolution: forward, the gradient of x, or that of its weight. */
struct device_conv2d operation_conv2d_call(const struct operation_run *r, const struct schedule_step *step);

#endif
