/* proto/model/file/checkpoint_layout.h - where each tensor lies in a checkpoint's two large files, known before they are
 * written.
 *
 * model.safetensors has the tensors in the model's order, before them the family's constants (model_constant), which
 * transformers keeps as buffers and would compute with whatever memory held if the file lacked them; adapter_model.safetensors, in its stead, those that a model
 * with adapters saves (struct model_tensor), whose names have PEFT's prefix. optimizer.safetensors has first the
 * updates, the widest type; then m, then v of the trained tensors, each in the model's order, as memory has them; then
 * the norms that are remembered, map by map. So what lies together in a unit lies together in the file. */
#ifndef PROTO_MODEL_FILE_CHECKPOINT_LAYOUT_H
#define PROTO_MODEL_FILE_CHECKPOINT_LAYOUT_H

#include "proto/model/model.h"
#include "proto/model/file/safetensors.h"

/* The constants are the end of the layout's header. -ENOMEM, -EFBIG. Undo: safetensors_layout_free. */
int checkpoint_lay_out_weights(struct safetensors_layout *out, const struct model *model, struct error *err);
/* n_moments: 2; of SGD 1, which is m, or 0. moments: fp32; bf16, of 16-bit moments (checkpoint_moment_type); or coded:
 * where a tensor's would be are its scales, and its codes are behind all else. */
int checkpoint_lay_out_moments(struct safetensors_layout *out, const struct model *model, unsigned n_moments,
                               enum number_type moments, struct error *err);
/* The type in the file of first or of second moments that are not coded, or of codes. */
enum safetensors_type checkpoint_moment_type(enum number_type moments, bool second);
/* True if a tensor's moments are coded in this form. */
static inline bool checkpoint_is_coded(const struct model_tensor *tensor, enum number_type moments)
{
    return moments == NUMBER_CODED && tensor->grouped;
}

/* Constants in the file of weights; none in that of an adapter. */
uint32_t checkpoint_count_constants(const struct model *model);

/* The names of the config, of the file of weights, and of a saved tensor in it. */
enum {
    CHECKPOINT_PREFIX_BYTES =
        sizeof ADAPTER_PREFIX - 1 + sizeof "model." + ADAPTER_WITHIN_BYTES, /* most before a name */
    CHECKPOINT_TENSOR_BYTES = sizeof((struct model_tensor *)0)->name + CHECKPOINT_PREFIX_BYTES
};
const char *checkpoint_config_name(const struct model_config *config);
const char *checkpoint_weights_name(const struct model *model);
const char *checkpoint_tensor_name(char out[CHECKPOINT_TENSOR_BYTES], const struct model *model,
                                   const struct model_tensor *tensor);

/* Index of a trained tensor's first or second moment in the layout of the moments; of a coded one of its scales. */
uint64_t checkpoint_moment(const struct model *model, bool second, uint32_t tensor);
/* Of a coded one its codes, behind so many moments of each tensor. */
uint64_t checkpoint_codes(const struct model *model, unsigned n_moments, bool second, uint32_t tensor);
/* "m.NAME.codes" (I8) and "v.NAME.codes" (U8), of the tensor's shape; "m.NAME.scales" and "v.NAME.scales" (F32), one for
 * each group (proto/model/groups.h). */
#define CHECKPOINT_CODES  ".codes"
#define CHECKPOINT_SCALES ".scales"

/* What an entry has of a moment: all, or a coded one's codes or scales. A set. */
enum checkpoint_part {
    CHECKPOINT_WHOLE = 1,
    CHECKPOINT_OF_CODES = 2,
    CHECKPOINT_OF_SCALES = 4,
    CHECKPOINT_CODED = CHECKPOINT_OF_CODES | CHECKPOINT_OF_SCALES
};
/* The tensor of "m.NAME", "v.NAME", "m.NAME.codes" and so on; NULL: there is none. */
const struct model_tensor *checkpoint_moment_tensor(enum checkpoint_part *part, const struct model *model,
                                                    const char *name);

/* Index of a map's norms (model_norm_map), one of the model's n_norm_maps, behind so many moments of each tensor; and
 * their name, by the map's first tensor. */
#define CHECKPOINT_NORMS "norms."
enum { CHECKPOINT_MOMENT_BYTES = sizeof((struct model_tensor *)0)->name + sizeof "m." + sizeof CHECKPOINT_SCALES };
uint64_t checkpoint_norms(const struct model *model, unsigned n_moments, uint32_t map);
const char *checkpoint_norms_name(char out[CHECKPOINT_MOMENT_BYTES], const struct model_tensor *tensor);

/* Sparse weights (proto/model/sparse.h) add "rewired" (I64, three numbers) behind the updates; for each sparse tensor
 * "places.NAME" (U32), a bit for each element of the tensor in rows of whole words, behind the moments, which are
 * vectors. Returns the index of these; number: the tensor's among the sparse ones. */
#define CHECKPOINT_REWIRED "rewired"
#define CHECKPOINT_PLACES  "places."
enum { CHECKPOINT_REWIRED_AT = 1, CHECKPOINT_REWIRED_NUMBERS = 3 };
uint64_t checkpoint_places(const struct model *model, unsigned n_moments, uint32_t number);
/* How many entries that are. */
uint64_t checkpoint_count_places(const struct model *model);

#endif
