/* client/ask/merge.h - adds an adapter to a weight: W + factor * B A, or its transpose where W is (in, out).
 *
 * In fp32, as PEFT's merge_and_unload. W comes in blocks; A and B, which are small, are read at once. */
#ifndef CLIENT_ASK_MERGE_H
#define CLIENT_ASK_MERGE_H

#include "proto/model/weights.h"

#define MERGE_NONE UINT32_MAX

struct client_merge {
    /* W += factor * left right; owned; NULL: nothing is added. B A, or A^T B^T. */
    float *left, *right; /* (rows of W, rank), (rank, columns of W) */
    uint64_t rank, columns;
    float factor;
};

/* Reads the adapter of a tensor of the model, if it has one. MERGE_NONE: nothing is added. Errors as safetensors_read;
 * -ENOMEM. Undo: client_merge_close, also after a failure. */
int client_merge_open(struct client_merge *out, const struct model *model, const struct weights *weights,
                      uint32_t tensor, struct error *err);

/* Adds to elements first .. first+n-1 of W. */
void client_merge_add(const struct client_merge *merge, float *values, uint64_t first, uint64_t n);

void client_merge_close(struct client_merge *merge);

#endif
