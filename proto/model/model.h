/* proto/model/model.h - a model's tensors, the units in which they are relayed, and the layers that visit them.
 *
 * Daemon, worker and client each build the same description from the same config.json (struct model_config). So a unit
 * is a 32-bit index on the wire, and no message has to carry shapes.
 *
 * The family defines the layers, their names, initial values and programs (proto/model/family.h). From bottom to top:
 *   EMBEDDING  visits its tables: that of tokens first; each is one unit or several, cut by rows. Models of images have
 *              none
 *   BLOCK      n_layers blocks, one above the other, each one layer or several. A layer has a program and one unit: the
 *              tensors of its program, in its order. Blocks may differ: those are the kinds of block
 *   SINGLE     other programs, below the blocks or above: GPT-2's last norm; one unit each
 *   HEAD       visits the table of tokens again when tied, else its own, cut by rows into vocabulary chunks
 * Backward runs over the visits in reverse. All microbatches pass a visit before any passes the next one, so what need
 * not be on the device together is several layers: the chunks of a wide MLP, experts.
 *
 * What layers give to each other are boundary values (proto/model/config/values.h). */
#ifndef PROTO_MODEL_MODEL_H
#define PROTO_MODEL_MODEL_H

#include "proto/base/error.h"
#include "proto/base/form.h"
#include "proto/base/number.h"
#include "proto/model/config/model_config.h"
#include "proto/model/sparse.h"
#include "proto/model/config/values.h"
#include "proto/operation/schedule.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_TENSOR_BYTES = 80 };
struct model_tensor {
    char name[MODEL_TENSOR_BYTES]; /* "transformer.h.0.attn.c_attn.weight" */
    uint32_t n_dims;               /* 1 or 2 */
    uint64_t shape[2];             /* rows, columns; a vector is (n), shape[1] = 1 */
    uint64_t n;                    /* elements */
    bool decays;                   /* weight decay: matrices yes, biases and norms no */
    bool frozen;                   /* not trained: model_freeze, or the base of an adapter */
    bool adapts;                   /* of an adapter: the base's files do not have it */
    bool fixed;                    /* no gradient descends it either: it stays, frozen, in FORM_FP32; no parameter */
    bool averages; /* no gradient descends it: it moves by PROGRAM_RUNNING_RATE towards minus its gradient */
    uint32_t height,
        width;          /* of a convolution's windows, 0 of others: files have it by channel first (model_file_shape) */
    bool over_tokens;   /* of a convolution of each channel by itself: files have (channels, 1, taps) */
    uint32_t n_stacked; /* so many tensors an operation reads as one array (struct program_tensor); 0: it is none */
    uint32_t heads;     /* of a vector: files have it as (heads, n / heads); 0: as it is */
    bool saved;         /* in checkpoints: all, or of a model with adapters what its base does not hold */
    uint32_t place;     /* index among the saved tensors, if it is saved */
    uint32_t rank;      /* index among the trained tensors, if it is trained */
    /* Moments that are coded are coded by groups (proto/model/groups.h) where it is true: how many groups it has, and
     * its index among such tensors. */
    bool grouped;
    uint64_t n_groups;
    uint32_t group_rank;
    enum model_init init;
    /* Standard deviation for MODEL_INIT_NORMAL; MODEL_INIT_UNIFORM: the largest; MODEL_INIT_CONSTANT: each element;
     * MODEL_INIT_LOG_UNIFORM, MODEL_INIT_STEP: the largest number, and `least` the smallest. */
    float deviation, least;
};

/* True of a convolution's weights: (rows, taps, channels) in units, (rows, channels, height, width) in files; over
 * tokens (1, taps, channels) in units, (channels, 1, taps) in files. */
static inline bool model_is_filter(const struct model_tensor *tensor)
{
    return tensor->height > 0;
}

/* The number in its row, in a file, of a row's number i here. */
static inline uint64_t model_place_in_file(const struct model_tensor *tensor, uint64_t i)
{
    const uint64_t n_taps = (uint64_t)tensor->height * tensor->width, n_channels = tensor->shape[1] / n_taps;

    return i % n_channels * n_taps + i / n_channels;
}

/* Its shape in files; returns the number of dimensions. */
uint32_t model_file_shape(uint64_t out[4], const struct model_tensor *tensor);

/* Consecutive rows of one tensor inside one unit. */
struct model_piece {
    uint32_t tensor;
    uint8_t slot; /* the program's tensor that it is, or is of the stack of; of a table 0 */
    uint64_t first_row, n_rows;
    uint64_t offset; /* elements from the unit's start */
    uint64_t n;      /* elements; of a sparse one those that it has room for */
    uint64_t dense;  /* of a sparse one (proto/model/sparse.h) rows times columns; else 0 */
    enum form form;  /* how it is relayed; FORM_VALUES for all trained ones */
    /* A coded or sparse piece: bytes from the start of the unit's coded pieces to its codes, or to its starts and
     * places; elements from the start of the unit's decoded pieces. */
    uint64_t coded, decoded;
};

/* Consecutive units, first .. end-1, that recur: each equals (n, program, frozen and coded pieces) the one `period`
 * below it, if that is among them. */
struct model_alike {
    uint32_t first, end, period;
};

struct model_unit {
    uint64_t id; /* stable: kind << 56 | layer << 24 | chunk, the same in every checkpoint of the model; layer is a
                  * block's index, 0 for tokens, 1 for positions, else 0 */
    uint32_t first_piece, n_pieces; /* in model.pieces, in the order of its tensors. They fill the unit without gaps:
                                     * trained pieces first, then frozen ones in the job's type, then coded ones, each
                                     * in this order */
    uint64_t n;                     /* elements */
    uint64_t n_trained;             /* trained elements: those of contributions, moments and sums */
    uint64_t n_relayed;             /* elements that are relayed in the job's type; as model_rounded, if coded bytes
                                     * follow them */
    uint64_t coded_bytes;           /* bytes of the coded pieces, and of sparse ones' places */
    uint64_t n_decoded;             /* elements of the coded and sparse pieces, as layers read them */
    uint64_t offset;         /* elements from the weight segment's start, besides coded bytes; as model_rounded */
    uint64_t coded_offset;   /* coded bytes from the weight segment's start, besides elements */
    uint64_t trained_offset; /* elements from the start of an array of the trained ones; as model_rounded */
    uint64_t replay_offset;  /* elements from the start of second buffers, in jobs with replay; as model_rounded */
    uint64_t n_norms;        /* norms behind them in a contribution (proto/model/norms.h); mostly 0 */
    uint32_t first_norm_map, n_norm_maps; /* its maps among the model's whose norms are remembered; n 0: it has none */
    uint32_t n_slices;                    /* of a contribution: model_slice_of */
    uint32_t n_visits;                    /* 2 when tied */
    uint32_t program;                     /* index of the program that the unit's layer runs; 0 for a table's unit */
    uint32_t first_sparse;                /* how many pieces of the units before it are sparse */
    uint64_t frozen, coded, sparse;       /* sets: bit i: pieces of the unit in slot i are frozen; coded; sparse */
    struct model_alike alike;             /* the run of recurring units that this one belongs to */
};

/* Maximum elements of a slice: 16 MiB of fp32. */
#ifndef MODEL_SLICE /* tests of small models want units of several slices */
#define MODEL_SLICE (4 << 20)
#endif

enum model_layer_kind { MODEL_EMBEDDING, MODEL_BLOCK, MODEL_SINGLE, MODEL_HEAD };

/* What forward leaves for backward, as a set of the program's groups of values (program_kept_groups): bit i for group
 * i. Bits beyond a program's groups are ignored. */
enum { MODEL_KEEPS_NOTHING = 0, MODEL_KEEPINGS = 1 << PROGRAM_KEPT_GROUPS, MODEL_KEEPS_ALL = MODEL_KEEPINGS - 1 };

/* A program and its derived data, shared by all layers that run it. */
struct model_program {
    struct program program;
    const struct family_layer *row; /* in the list of the family that wrote it */
    uint32_t form,
        kind; /* of its blocks: which config wrote it, and how it is adapted (proto/model/programs.c), and the family's
               * kind; 0 of
                          * single layers */
    uint32_t n_layers;                  /* number of layers that run it */
    uint32_t class;                     /* index of the class of these layers, if blocks run it */
    bool passes;                        /* schedule.passes, the same whatever is kept */
    bool skips;                         /* model_drop_skips */
    uint32_t reads;                     /* program_inputs_read */
    const struct model_program *finish; /* what finishes its layers (struct family_layer); NULL: nothing */
    uint32_t n_keepings;                /* number of distinct keepings: the first of MODEL_KEEPINGS */
    /* (n_keepings) for each keeping: the kept values, and the schedules. */
    uint64_t kept[MODEL_KEEPINGS];
    struct schedule forward[MODEL_KEEPINGS], backward[MODEL_KEEPINGS];
};

/* Derives what can be kept, and the schedules, from p->program. */
void model_complete_program(struct model_program *p);

/* The index of this keeping among the first n_keepings. */
static inline uint32_t model_keeping(const struct model_program *p, uint32_t keeping)
{
    return keeping & (p->n_keepings - 1);
}

/* "all", "nothing", or the operations whose results are kept: "attn.c_attn, attention". Returns out. */
enum { MODEL_KEEPING_BYTES = 4 * PROGRAM_NAME_BYTES };
const char *model_keeping_name(char out[MODEL_KEEPING_BYTES], const struct model_program *p, uint32_t keeping);

/* Layers of blocks whose programs are alike (program_is_alike), so that they keep the same sets of values in the same
 * bytes. */
struct model_class {
    const struct model_program *program; /* the lowest layer's */
    uint32_t first, n_blocks;            /* range in model.ranked */
};

enum {
    MODEL_CLASSES = 32, /* maximum: model_init refuses more */
    MODEL_PERIOD = 64,  /* longest period that is looked for, in layers */
};

/* The row of a table that a token takes. */
enum model_lookup {
    MODEL_BY_TOKEN,    /* the row of its id; not of a source's token that has a table of its own */
    MODEL_BY_SOURCE,   /* the row of its id, for the tokens of a row's source */
    MODEL_BY_POSITION, /* the row of its position in the sequence */
    MODEL_BY_SEGMENT,  /* row 0; in a classifier, row 1 for tokens of segment 1 */
};

struct model_table {
    enum model_lookup by;
    const char *name; /* the family's: "wte" */
    uint32_t tensor;
    uint32_t first; /* MODEL_BY_POSITION: the row of position 0 */
};

enum { MODEL_TABLES = 3 };

/* A model's first layer: the sum of rows of its tables, one of them scaled, and dropout. */
struct model_embedding {
    struct model_table tables[MODEL_TABLES]; /* the first is by token */
    uint32_t n_tables;
    float scale; /* factor on rows of the table of tokens, rounded to the weights' type; 0: 1 */
    struct program_dropout dropout;
};

struct model_layer {
    enum model_layer_kind kind;
    const struct model_program *program; /* one of the model's; NULL for embedding and head */
    uint32_t index;   /* among the layers of its kind, 0 nearest the input; for a block's layers, the block's index */
    uint32_t part;    /* in a block: index among the block's layers */
    uint32_t rank;    /* in a block: index among the layers of its class */
    const char *name; /* the family's, for a layer with a program: "h.%u", "ln_f" */
    uint32_t first_visit, n_visits;
    struct model_edges edges;  /* values that the layer reads and writes */
    struct model_edges finish; /* values that program->finish reads and writes, once a part */
};

struct model {
    struct model_config config;
    struct sparse sparse; /* how its sparse pieces are trained; keep 0: it has none */
    struct model_embedding embedding;
    float logit_cap;                       /* c: the head's logits are c * tanh(logit / c); 0: they are as they are */
    const struct model_tensor *logit_bias; /* (vocabulary), in a layer above the blocks; NULL: none */
    struct model_program *programs;        /* (n_programs + n_finishes) of layers, then what finishes layers */
    uint32_t n_programs, n_finishes;
    uint32_t block, n_block_programs; /* index of the blocks' first program, and how many blocks have */
    uint32_t first_block, n_block_layers;
    /* Kinds of block recur every `period` blocks, at most half of them. Where no period holds throughout, it is the one
     * with the fewest exceptions. */
    uint32_t period;
    struct model_class classes[MODEL_CLASSES]; /* by their lowest blocks */
    uint32_t n_classes;
    uint32_t *ranked; /* (n_block_layers) blocks' layers, class after class, each from its lowest on */
    struct model_values values;
    struct model_tensor *tensors;
    struct model_piece *pieces;
    struct model_unit *units;
    struct model_layer *layers;
    uint32_t *visits;       /* unit of each visit, bottom first */
    uint32_t *visit_layers; /* layer of each visit */
    uint32_t n_tensors, n_pieces, n_units, n_layers, n_visits;
    uint32_t least_tokens; /* tokens that a row must have at least: those that programs take */
    uint64_t n_parameters; /* tied parameters count once */
    /* The weight segment without replay, padding included: elements, and coded bytes. */
    uint64_t segment_n, segment_coded;
    uint64_t replay_n;     /* elements that replay adds to it: a second buffer of each unit's trained ones */
    uint64_t largest_unit; /* elements */
    /* Elements of the trained tensors: all of them; with each unit's padding; the most in one unit. */
    uint64_t n_trained, trained_n, largest_trained;
    uint32_t n_trained_tensors, n_frozen_units; /* units without a trained piece */
    uint32_t n_grouped;                         /* tensors */
    uint32_t n_saved;                           /* tensors in checkpoints */
    uint32_t n_slices;                          /* slices of all units */
    uint32_t n_sparse;                          /* pieces that are sparse, each a whole tensor */
    uint32_t n_norm_maps;                       /* maps of all units whose norms are remembered */
    uint32_t n_norm_entries;                    /* numbers that each remembers: the tokens of the training data */
    uint64_t most_norms;                        /* the most in one unit's contribution */
    uint32_t *trained_visits; /* (n_trained_visits) visits of units with trained pieces, bottom first */
    uint32_t *trained_below;  /* (n_visits) how many trained_visits are below the visit */
    uint32_t n_trained_visits;
    uint32_t lowest_trained; /* lowest layer that visits a unit with trained pieces; nothing below needs a gradient */
};

/* Builds the description; owned by the caller: model_free. -ENOMEM, or as model_config_check. On failure *out is
 * zeroed. */
int model_init(struct model *out, const struct model_config *config, struct error *err);
void model_free(struct model *model); /* safe on a zeroed one */

enum { MODEL_FREEZE_BYTES = 256 }; /* maximum length of a list of patterns, its final 0 included */

/* The forms of frozen tensors: of matrices in layers with a program, which products read; and of all others. */
struct model_base {
    enum form matrices, others;
};

/* True for a matrix of a layer with a program, which products read; not for a router's (struct program_route_options). */
bool model_is_matrix(const struct model *model, uint32_t tensor);

/* The forms for --base. FORM_VALUES: all frozen tensors have the job's type. FORM_BF16: all are bf16. Otherwise
 * matrices have this form, as bitsandbytes replaces linear layers alone, and all others are bf16. What would be coded
 * in the job's own type is not coded. */
struct model_base model_base_of(enum form base, enum number_type precision);

/* What blocks keep of their activations: exact, if all is 0. */
struct model_approximation {
    unsigned bits; /* 8 or 4: in as many (program_compress) */
    bool samples;  /* those that serve the gradients of weights alone, for some tokens only (program_sample) */
    uint32_t side; /* 2, 4 or 8: inputs of convolutions, as means of side x side pixels (program_pool) */
};

/* Called once, after model_init. */
void model_approximate(struct model *model, const struct model_approximation *how);

/* What blocks have that an inexact form could serve: activations that are kept in fewer bits (after model_approximate
 * with `bits`); linear maps that are trained; attention; convolutions whose inputs can be means. */
enum { MODEL_CODES = 1, MODEL_SAMPLES = 2, MODEL_ATTENDS = 4, MODEL_POOLS = 8 };
unsigned model_approximates(const struct model *model);

/* True if some block keeps of a text's tokens the last ones alone, or a state behind the last
 * (proto/operation/kind/short_conv.h, gated_delta.h): in generation a text then goes on after its last token, and runs
 * again to go back to another. */
bool model_has_tails(const struct model *model);

/* True if some block keeps a state behind a text's tokens (proto/operation/kind/gated_delta.h). */
bool model_has_states(const struct model *model);

/* True for an encoder-decoder: a row is a source and its target, one behind the other. */
bool model_has_source(const struct model_config *config);

/* Has rows of `row` tokens begin with `source` tokens of source, and shorter ones in proportion; of a model that has
 * none, and with a source of 0, nothing changes. Before model_init. -EINVAL with a sentence: source is not less
 * than row, or of a model without a source it is not 0. */
int model_divide_rows(struct model_config *config, uint32_t source, uint32_t row, struct error *err);

/* For generation: a row of up to `row` tokens is a source, or a target. Before model_init. */
void model_part_rows(struct model_config *config, uint32_t row);

/* True of an encoder's layer: nothing that it computes is of targets. */
bool model_is_of_source(const struct model_layer *layer);

/* The first token of a row of n_tokens that has a prediction, and how many have one. */
uint32_t model_first_predicted(const struct model *model, uint32_t n_tokens);
uint32_t model_predicted(const struct model *model, uint32_t n_tokens);

/* True of a model that is trained to restore masked tokens: a token sees all others of its row. */
bool model_restores_tokens(const struct model_config *config);

/* True of a classifier of texts, whose rows have up to two segments. */
static inline bool model_has_segments(const struct model_config *config)
{
    return config->n_labels > 0 && config->image.height == 0;
}

/* True if rows have lengths of their own on the device: a classifier's of texts, or those of their sources. */
static inline bool model_has_lengths(const struct model_config *config)
{
    return model_has_segments(config) || model_has_source(config);
}

/* Freezes tensors: they are relayed and computed with, but not trained. patterns: globs (fnmatch) on names with or
 * without the family's prefix, separated by commas; NULL or "": none but those of the base of an adapter. Called once,
 * after model_init. -EINVAL with a sentence if a pattern matches no tensor or no tensor is left to train; the model can
 * then only be freed. */
int model_freeze(struct model *model, const char *patterns, struct model_base base, struct error *err);

/* When the tensors that a job's patterns name are trained after all: a run freezes them for its first steps alone. */
enum model_thaw { MODEL_THAW_NEVER, MODEL_THAW_LATER, MODEL_THAWED };

/* True if one of the patterns of model_freeze is the tensor's. */
bool model_is_named(const struct model *model, const struct model_tensor *tensor, const char *patterns);

/* The form of frozen weights once no pattern freezes any: with adapters their base remains, else nothing does. */
enum form model_thawed_base(const struct model_config *config, enum form base);

/* A model of the same config with the same frozen tensors, in other forms; as model_init. */
int model_recode(struct model *out, const struct model *model, struct model_base base, struct error *err);

/* The tensor of this name, with or without the family's prefix in front, or NULL. Borrowed. */
const struct model_tensor *model_find(const struct model *model, const char *name);

/* The table of the embedding whose tensor this is. */
const struct model_table *model_table_of(const struct model *model, uint32_t tensor);

/* How many of the first visits are the embedding's. */
uint32_t model_table_visits(const struct model *model);

#define MODEL_NO_ROW UINT64_MAX
/* The row of a tensor that a fresh model has as zeros, as transformers does (PyTorch's padding_idx): the token of
 * padding, and the position that RoBERTa gives to it. */
uint64_t model_zero_row(const struct model *model, uint32_t tensor);

/* The layer of this rank in a class. */
static inline const struct model_layer *model_ranked(const struct model *model, uint32_t class, uint32_t rank)
{
    return &model->layers[model->ranked[model->classes[class].first + rank]];
}

/* The class of a layer of a block. */
static inline uint32_t model_class_of(const struct model_layer *layer)
{
    return layer->program->class;
}

/* True if blocks run this program, one of the model's. */
static inline bool model_runs_in_blocks(const struct model *model, uint32_t program)
{
    return program >= model->block && program - model->block < model->n_block_programs;
}

/* True if a layer is above the blocks. */
static inline bool model_is_above_blocks(const struct model *model, const struct model_layer *layer)
{
    return layer >= &model->layers[model->first_block + model->n_block_layers];
}

/* The family's name of a unit, cut to fit: "h.3", "ln_f", "wpe"; "wte.2" if a table has several units. Returns out. */
enum { MODEL_NAME_BYTES = 32 };
const char *model_unit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t unit);
/* The name of a visit's unit, as model_unit_name; "head wte.2" where the head visits it. */
const char *model_visit_name(char out[MODEL_NAME_BYTES], const struct model *model, uint32_t visit);

/* Number i of what files have beside the tensors as constants (struct family_constant): its name there, and its value.
 * False: there are no more. */
bool model_constant(char name[MODEL_TENSOR_BYTES], float *value, const struct model *model, uint32_t i);
/* How many there are. */
uint32_t model_count_constants(const struct model *model);
/* True for the name of such a constant, with the family's prefix or without. */
bool model_is_constant(float *value, const struct model *model, const char *name);

/* The first tensor of the layers above the blocks. Those after it are theirs too, unless a head is tied. */
uint32_t model_first_above_blocks(const struct model *model);

/* True if a tensor of this name may be in the model's files but is no weight here: a mask, frequencies of positions, a
 * tensor of another head. Checkpoints leave it out. */
bool model_is_mask(const struct model *model, const char *name);

/* True if the model is tied and this is the name of the head's table; files may hold a copy of it: "lm_head.weight". */
bool model_is_tied_copy(const struct model *model, const char *name);

/* "gpt2 12x768": a model's title in one line; "no model" without a family. Returns out. */
enum { MODEL_TITLE_BYTES = 48 };
const char *model_title(char out[MODEL_TITLE_BYTES], const struct model_config *config);

/* True if the visit's unit has a trained piece, and so a contribution. */
static inline bool model_contributes(const struct model *model, uint32_t visit)
{
    return model->units[model->visits[visit]].n_trained > 0;
}

/* Places are the visits in the order of a step: forward 0..n_visits-1, then backward, down again. Backward ends before
 * this place: at the first visit of the lowest layer that is trained. */
static inline uint32_t model_end_of_backward(const struct model *model)
{
    return 2 * model->n_visits - model->layers[model->lowest_trained].first_visit;
}

/* Contributions are numbered in the order in which backward makes them: by visits that contribute, from the top down,
 * and for each by runs (the parts of a worker's share, n_runs). The number of one, if no block above is dropped: */
static inline uint64_t model_contribution_number(const struct model *model, uint32_t visit, uint32_t run,
                                                 uint32_t n_runs)
{
    return (uint64_t)(model->n_trained_visits - 1 - model->trained_below[visit]) * n_runs + run;
}

/* n elements, rounded up to whole cache lines of 64 bytes for elements of four bytes and of two. */
static inline uint64_t model_rounded(uint64_t n)
{
    return (n + 31) / 32 * 32;
}

/* Bytes of a unit as it is relayed: its elements in the job's type, then its coded pieces. */
static inline uint64_t model_unit_bytes(const struct model_unit *unit, enum number_type precision)
{
    return unit->n_relayed * number_bytes(precision) + unit->coded_bytes;
}

/* Elements of a unit that are relayed in the job's type; the others follow them, coded. */
static inline uint64_t model_unit_values(const struct model *model, const struct model_unit *unit)
{
    uint64_t n = unit->n;

    for (uint32_t i = 0; unit->coded && i < unit->n_pieces; i++)
        n -= unit->coded >> model->pieces[unit->first_piece + i].slot & 1 ? model->pieces[unit->first_piece + i].n : 0;
    return n;
}

/* Elements of a unit in files, where sparse pieces have all of theirs. */
static inline uint64_t model_unit_dense(const struct model *model, const struct model_unit *unit)
{
    uint64_t n = unit->n;

    for (uint32_t i = 0; unit->sparse && i < unit->n_pieces; i++)
        if (unit->sparse >> model->pieces[unit->first_piece + i].slot & 1)
            n += model->pieces[unit->first_piece + i].dense - model->pieces[unit->first_piece + i].n;
    return n;
}

/* Bytes from a unit's start, as it is relayed, to a piece, which begins there. */
static inline uint64_t model_piece_at(const struct model_unit *unit, const struct model_piece *piece,
                                      enum number_type precision)
{
    return piece->form == FORM_VALUES ? piece->offset * number_bytes(precision)
                                      : unit->n_relayed * number_bytes(precision) + piece->coded;
}

/* Bytes from a unit's start, as it is relayed, to a sparse piece's starts (proto/model/sparse.h); places follow. */
static inline uint64_t model_starts_at(const struct model_unit *unit, const struct model_piece *piece,
                                       enum number_type precision)
{
    return unit->n_relayed * number_bytes(precision) + piece->coded;
}

/* Bytes of the largest unit, as it is relayed. */
uint64_t model_largest_bytes(const struct model *model, enum number_type precision);

/* Bytes of an inbox slot for contributions of this type: the largest slice of any unit, rounded up to a cache line. */
size_t model_slot_bytes(const struct model *model, enum number_type type);

#endif
