/* client/ask/export_items.h - what an export writes, and into which file each tensor goes.
 *
 * The model's tensors come first, in its order, then its constants, then those that are passed, in that of their source.
 * In a file larger elements precede smaller ones, as readers want them aligned; between files the order above holds. */
#ifndef CLIENT_ASK_EXPORT_ITEMS_H
#define CLIENT_ASK_EXPORT_ITEMS_H

#include "client/ask/export.h"
#include "proto/model/model.h"

struct export_item {
    char *name;                             /* in the file, owned */
    uint32_t tensor;                        /* of the model; EXPORT_PASSED, EXPORT_CONSTANT: */
    const struct safetensors_entry *passed; /* it is the source's, borrowed; copied unless its values are coded */
    float constant;                         /* or the family's (struct family_constant): one element, no dimension */
    bool joined;                            /* it and those that its source has joined with it (proto/model/joined.h) */
    uint64_t bytes;                         /* as written */
    unsigned element_bytes;
    uint32_t shard; /* from 0 */
};
#define EXPORT_PASSED   UINT32_MAX
#define EXPORT_CONSTANT (UINT32_MAX - 1)

struct export_items {
    struct export_item *at; /* (n) owned */
    size_t n;
    uint32_t n_shards;
    const char *alone; /* the file's name, if there is one; static */
};

/* Lists what is written of a model and its form, and assigns it to files in order: a file is full when the next tensor
 * would pass form->shard_bytes. Adapters have one, as PEFT reads no other. -EINVAL if a tensor that is passed has the
 * name of one that the model has got since; -ENOMEM. Undo: export_items_free, also after a failure. */
int export_items_init(struct export_items *out, const struct model *model, const struct client_export_form *form,
                      struct error *err);
void export_items_free(struct export_items *items);

/* Name of a shard's file. Returns out. */
enum { EXPORT_SHARD_BYTES = 64 };
const char *export_items_file(char out[EXPORT_SHARD_BYTES], const struct export_items *items, uint32_t shard);

/* The items of a shard, in the order of its file: pointers (n), owned; *n is at least 1. NULL: no memory. */
const struct export_item **export_items_of(size_t *n, const struct export_items *items, uint32_t shard);

/* The text of model.safetensors.index.json: the file of each tensor. Owned; NULL: no memory. */
char *export_items_index(const struct export_items *items);

#endif
