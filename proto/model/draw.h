/* proto/model/draw.h - fresh weights. Each is a function of the seed, its tensor's index and its own place in the
 * tensor. */
#ifndef PROTO_MODEL_DRAW_H
#define PROTO_MODEL_DRAW_H

#include "proto/base/random.h"
#include "proto/model/model.h"

/* Elements first .. first+n-1 of a model's tensor. key: of the site RANDOM_WEIGHTS in step 0, unit 0. The zero row
 * (model_zero_row) is drawn as all others. */
void model_draw(float *out, const struct model_tensor *tensor, struct random_key key, uint32_t index, uint64_t first,
                size_t n);

#endif
