/* proto/model/outside.h - tensors in a model's files that are no part of what is computed here: a vision tower beside a
 * text model, a head that drafts tokens (MTP), blocks above the last one of config.json, a pooler.
 *
 * They are not read, and an export has them as they came. What belongs to the part that is computed must be a tensor of
 * the model, since the model would be another one with it; so a name is outside by what is known of it, never by being
 * unknown. */
#ifndef PROTO_MODEL_OUTSIDE_H
#define PROTO_MODEL_OUTSIDE_H

#include "proto/model/model.h"

/* How the files name the model's own tensors. */
struct outside_names {
    const char *wrapper; /* precedes the names (proto/model/wrapper.h); NULL: nothing does */
    bool prefixed;       /* they have the family's prefix, "model." */
};

/* True for the name of a tensor outside of the model, which none of its own has. */
bool outside_has(const struct model *model, const struct outside_names *names, const char *name);

/* "model.visual.*" of "model.visual.blocks.0.norm.weight": what such a tensor belongs to, cut to fit; wrapper: as
 * above. Returns out. */
enum { OUTSIDE_PART_BYTES = 80 };
const char *outside_part(char out[OUTSIDE_PART_BYTES], const struct model *model, const char *wrapper,
                         const char *name);

#endif
