/* proto/operation/kind/adapter.h - y' = y + factor * dropout(x) A^T B^T: low-rank adapters of the linear maps that made y of
 * x (LoRA: Hu et al., arXiv:2106.09685).
 *
 * A linear operation has several maps side by side; any of them may be adapted. Each adapted one has a rank, a factor
 * and tensors of its own, "STEM.lora_A.weight" (rank, in) and "STEM.lora_B.weight" (out, rank), as PEFT names them, and
 * drops elements of x by a mask of its own. y' lies over y. The rank-sized values between A and B are not kept:
 * backward computes them again from x, which it reads anyway. */
#ifndef PROTO_OPERATION_KIND_ADAPTER_H
#define PROTO_OPERATION_KIND_ADAPTER_H

#include "proto/operation/kind/linear.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct program;

/* The operation's options. Its tensors are A, B of each map. */
struct program_adapter_options {
    uint32_t rank; /* the largest */
    float dropout; /* probability */
    int n_maps;
    struct {
        uint32_t first, columns; /* of y */
        uint32_t rank;
        float factor;
    } maps[PROGRAM_PARTS];
};

/* How one linear map is adapted. */
struct program_adapter_map {
    uint32_t rank; /* 0: it is not */
    float factor;
};

/* What to adapt in a program. */
struct program_adaptation {
    struct program_adapter_map all;         /* of each module */
    const struct program_adapter_map *maps; /* of each module, in their order; NULL: `all` is */
    float dropout;
    const char *modules; /* stems of the linear maps, "self_attn.q_proj,mlp.up_proj" */
    const char *trained; /* modules that are trained as a whole, "classifier,score" */
};

/* Adds an adapter behind each linear map that is named, and marks the operations that are not trained any more. Called
 * once, after the last operation was added. */
void program_adapt(struct program *p, const struct program_adaptation *how);

/* The name of a module, or its end, in transformers' model, which PEFT adapts: files of mixtures have block_sparse_moe
 * where it has mlp. name: of n characters. Returns out. */
enum { PROGRAM_ADAPTED_BYTES = 128 };
const char *program_adapted_name(char out[PROGRAM_ADAPTED_BYTES], const char *name, size_t n);

/* True if a list, "a,b", has this name of n characters. */
bool program_adapter_lists(const char *list, const char *name, size_t n);

/* True if a tensor, "bert.pooler.dense.weight", is inside a module of the list, by the end of its name: "pooler". */
bool program_adapter_holds(const char *list, const char *tensor);

#endif
