/* proto/model/coded.h - weights that files hold as codes and scales, as other tools quantised them.
 *
 * Such a tensor has companions: other tensors in the same files, which scale its codes. What is read is the fp32 value
 * code * scale, without the rounding to a model's type that follows elsewhere:
 *
 *   bitsandbytes, 4 bits  NAME (codes; the first of two elements has the high bits), NAME.absmax (a scale for each
 *                         block), NAME.quant_map (16 values), NAME.quant_state.bitsandbytes__nf4 or __fp4 (JSON: shape,
 *                         blocksize). Scales may be codes, too: of NAME.nested_quant_map (256 values), scaled by
 *                         NAME.nested_absmax for each block of blocks, with an offset
 *   bitsandbytes, 8 bits  MODULE.weight (I8), MODULE.SCB (a row's largest magnitude): code * SCB * fl(1 / 127)
 *   MXFP4                 NAME_blocks (rows, blocks, 16; U8; the first of two elements has the low bits) and
 *                         NAME_scales (rows, blocks; U8): E2M1 times 2^(scale - 127), 32 elements a block. NAME is the
 *                         tensor's, with or without ".weight"
 *   fp8                   NAME (F8_E4M3, torch's float8_e4m3fn), NAME_scale_inv (F32, F16, BF16 or F8_E8M0): a number
 *                         for the tensor, or for each block: (rows / block's rows, columns / block's columns), rounded
 *                         up. The size of blocks is config.json's. MODULE.activation_scale is for activations, and not
 *                         read
 *
 * Sources: bitsandbytes 0.50, functional.QuantState and nn.Linear8bitLt; MXFP4 - OCP Microscaling Formats 1.0, section
 * 5.3, in gpt-oss's layout. fp8 - transformers 5.24, integrations/finegrained_fp8; E4M3 - OCP 8-bit Floating Point
 * Specification 1.0. */
#ifndef PROTO_MODEL_CODED_H
#define PROTO_MODEL_CODED_H

#include "proto/base/form.h"
#include "proto/model/config/quantized.h"
#include "proto/model/file/safetensors.h"

enum coded_kind { CODED_TABLE, CODED_ROWS, CODED_MXFP4, CODED_FP8 };

struct coded {
    enum coded_kind kind;
    uint64_t block;                                             /* elements, of fp8 columns, that share a scale */
    uint64_t block_rows;                                        /* of fp8, that share a scale */
    uint64_t columns, scale_columns;                            /* of fp8: of the tensor; its blocks in a row */
    struct safetensors_entry codes;                             /* as the file has it */
    const struct safetensors_entry *scales, *table;             /* table: CODED_TABLE's */
    const struct safetensors_entry *outer_scales, *outer_table; /* of scales that are codes; else NULL */
    uint64_t outer_block;                                       /* scales that share an outer one */
    float outer_offset;
};

/* Finds coded tensors in the open files of a model: gives each its true shape and values' type, and marks companions as
 * taken. quantized: what the model's config says, borrowed. Memory is what the files' headers have to spare. -EINVAL
 * with a sentence: a companion is missing, misshapen or of another type; -ENOMEM, -EIO. Tensors of type fp8 stay as they
 * are where the config says nothing of it, or where they have no scales: they may be outside of the model. */
int coded_find(struct safetensors *files, unsigned n_files, const struct quantized *quantized, struct error *err);

/* The form that codes the same values again without a change (proto/base/form.h); of MXFP4 bf16, which holds them all.
 * FORM_VALUES: none does, as of fp8, or the table of codes cannot be read. */
enum form coded_form(const struct coded *coded);

/* As safetensors_most, safetensors_window and safetensors_convert. */
uint64_t coded_most(const struct coded *coded);
int coded_window(struct safetensors_window *out, const struct coded *coded, uint64_t first, uint64_t n,
                 struct error *err);
void coded_convert(float *out, const struct coded *coded, const struct safetensors_window *window, uint64_t first,
                   uint64_t n);
/* As safetensors_read. */
int coded_read(float *out, const struct coded *coded, uint64_t first, uint64_t n, struct error *err);

#endif
