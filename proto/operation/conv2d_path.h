/* proto/operation/conv2d_path.h - which implementation computes a convolution on a CUDA device: one decision, for what
 * cuDNN is asked (device/cuda/dnn/conv.c), and for what it is priced at (proto/plan/time/meter.h).
 *
 * cuDNN's plans are of blocks of images, and of single ones for what is left, so that an image's bits do not depend on
 * the images beside it: a call is a launch for each. The library may still lack a plan of a convolution that suits it;
 * then our own kernels compute it, and the price is too low. */
#ifndef PROTO_OPERATION_CONV2D_PATH_H
#define PROTO_OPERATION_CONV2D_PATH_H

#include "proto/base/number.h"
#include "proto/base/size.h"
#include "proto/operation/call/conv2d.h"

enum conv2d_kind { CONV2D_FORWARD, CONV2D_INPUT, CONV2D_WEIGHTS, CONV2D_KINDS }; /* and the gradients of x and weight */

enum conv2d_path {
    CONV2D_OWN,     /* without tensor cores; the only path of the CPU, and of fp32 and fp16 */
    CONV2D_LIBRARY, /* cuDNN */
    CONV2D_PATHS
};

enum { CONV2D_BLOCK = 16 /* images */, CONV2D_TERMS = 64 /* channels of a tile */ };

/* True if the result is added to what is there: cuDNN always adds weights'. */
static inline bool conv2d_adds(const struct device_conv2d *op, enum conv2d_kind kind)
{
    return kind == CONV2D_WEIGHTS || (kind == CONV2D_INPUT && op->accumulate);
}

/* True for calls that cuDNN is asked for: in bf16, images that begin at a multiple of 16 bytes wherever a block does,
 * no bias, gradients of one group. It adds to nothing whose channels are not packs of 16 bytes
 * (tests/gpu/test_dnn.c). */
static inline bool conv2d_suits_library(enum number_type type, const struct device_conv2d *op, enum conv2d_kind kind)
{
    const size_t whole = 16 / number_bytes(NUMBER_BF16), x = op->height * op->width * op->n_in,
                 y = device_conv2d_height(op) * device_conv2d_width(op) * op->n_out;

    return type == NUMBER_BF16 && x % whole == 0 && y % whole == 0 && !op->bias &&
           (kind == CONV2D_FORWARD || op->n_groups == 1) && (!conv2d_adds(op, kind) || op->n_in % whole == 0);
}

/* has_library: the device has it, and all of the job's workers have the same one. */
static inline enum conv2d_path conv2d_path_of(enum number_type type, const struct device_conv2d *op,
                                              enum conv2d_kind kind, bool has_library)
{
    return has_library && conv2d_suits_library(type, op, kind) ? CONV2D_LIBRARY : CONV2D_OWN;
}

/* Of what is multiplied, the share that the convolution asks for: a tile of the library's has channels of one place of
 * the window, and is filled up. So an H100 took 19 times as long for 3 as at its rate; between 3 and 64 none was
 * timed. */
static inline double conv2d_filled(const struct device_conv2d *op, enum conv2d_path path)
{
    const size_t terms = op->n_in / op->n_groups;

    return path == CONV2D_OWN ? 1 : (double)terms / (double)(size_pieces(terms, CONV2D_TERMS) * CONV2D_TERMS);
}

/* Launches of a call, in a row: by the library one for each block and each single image, and before it a copy of what
 * is added to. Our own kernels take one. */
static inline size_t conv2d_launches(const struct device_conv2d *op, enum conv2d_kind kind, enum conv2d_path path)
{
    const size_t plans = op->n_rows / CONV2D_BLOCK + op->n_rows % CONV2D_BLOCK;

    return path == CONV2D_OWN ? 1 : plans * (conv2d_adds(op, kind) ? 2 : 1);
}

#endif
