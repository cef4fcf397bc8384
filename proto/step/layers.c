#include "proto/step/layers.h"

const struct layer_ops *const layer_table[] = {
    [MODEL_EMBEDDING] = &layer_embedding,
    [MODEL_BLOCK] = &layer_program,
    [MODEL_SINGLE] = &layer_program,
    [MODEL_HEAD] = &layer_head,
};
