/* proto/model/checkpoint_layout.h - where each tensor lies in a checkpoint's two large files, known before they are
 * written.
 *
 * model.safetensors has the tensors in the model's order. optimizer.safetensors has first the updates, the widest type;
 * then m, then v of the trained tensors, each in the model's order. So what lies together in a unit lies together in
 * the file. */
#ifndef PROTO_MODEL_CHECKPOINT_LAYOUT_H
#define PROTO_MODEL_CHECKPOINT_LAYOUT_H

#include "proto/model/model.h"
#include "proto/model/safetensors.h"

/* -ENOMEM, -EFBIG. Undo: safetensors_layout_free. */
int checkpoint_lay_out_weights(struct safetensors_layout *out, const struct model *model, struct error *err);
int checkpoint_lay_out_moments(struct safetensors_layout *out, const struct model *model, struct error *err);

/* Index of a trained tensor's first or second moment in the layout of the moments. */
uint64_t checkpoint_moment(const struct model *model, bool second, uint32_t tensor);

#endif
