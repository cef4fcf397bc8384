/* proto/model/model_internal.h - what the files that build a model's description have in common. */
#ifndef PROTO_MODEL_MODEL_INTERNAL_H
#define PROTO_MODEL_MODEL_INTERNAL_H

#include "proto/model/family.h"

/* "NAME is VALUE: accepted", of a config.json. Returns -EINVAL. */
struct json_t;
int model_config_refuse(struct error *err, const char *name, const struct json_t *value, const char *accepted);

/* Reads a config.json's object. host: the model in which its blocks will be guests (proto/model/guests.h); its width,
 * blocks, positions, vocabulary and head are that model's, and the object may leave them out. NULL: the object is a
 * model's. As model_config_parse; with a host of another width -EINVAL. */
int model_config_read(struct model_config *out, const struct json_t *object, const struct model_config *host,
                      struct error *err);

/* True for the place in struct model_config of a number that concerns the whole model, and not its blocks alone. */
bool model_is_of_frame(size_t offset);

/* The family's layers, of the model's head. */
const struct family_layer *model_layers_of(const struct model_config *config);

/* Writes the programs of all layers, and counts each one's. -ENOMEM; -EINVAL with a sentence: blocks have too many
 * shapes. */
int model_write_programs(struct model *model, struct error *err);

/* The programs of a block's layers. */
struct model_kind {
    uint32_t first, n;
};

/* The tokens of domain PROGRAM_OWN + own: the source's and the target's, or of the family's own; else none. */
struct program_own model_own_domain(const struct model_config *config, uint32_t own);

struct model_kind model_kind_of_block(const struct model *model, uint32_t index);

/* The number in a block's name. */
uint32_t model_block_number(const struct model *model, uint32_t index);

/* The family of a block. */
const struct family *model_family_of_block(const struct model *model, uint32_t index);

/* A tensor's name without its family's prefix, if it has one. Borrowed. */
const char *model_without_prefix(const struct model *model, const char *name);

/* The head's table. */
const char *model_logits_name(const struct model *model);

/* Ways in which layers are adapted, at least 1, and a block's. */
uint32_t model_count_adapter_forms(const struct model_adapter *adapter);
uint32_t model_adapter_form_of(const struct model_adapter *adapter, uint32_t block);

/* Adds adapters of this form to a program. */
void model_adapt_program(struct program *p, const struct model_adapter *adapter, uint32_t form);

/* Sets what is saved; and freezes the rest, which is the base of an adapter. Before model_divide. */
void model_set_saved(struct model *model);

/* True if experts are chosen by what the operation makes. */
bool model_is_router(const struct program *p, const struct program_operation *op);

/* -EINVAL with a sentence if of one stack (struct program_tensor) some tensors are frozen and others are not. */
int model_check_stacks(const struct model *model, struct error *err);

/* Sets all that depends on which tensors are frozen, and on their forms. After model_bind_values, and whenever that
 * changes. */
void model_divide(struct model *model, struct model_base base);

/* Sets the piece's elements: all of its rows', or what a sparse one has room for. */
void model_size_piece(struct model *model, uint32_t unit, struct model_piece *piece);

/* The first layer of the block above; beyond the blocks, the layer above them. */
const struct model_layer *model_next_block(const struct model_layer *layer);

#endif
