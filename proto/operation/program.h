/* proto/operation/program.h - a layer as a short program: operations over values, written once by its family.
 *
 * A layer maps values to values, for each element of a microbatch: of a text each token. All else follows from the
 * program: the tensors of its unit, the order of forward and backward and what backward computes again
 * (proto/operation/schedule.h), where values lie (proto/plan/memory/layers.h), how long operations take
 * (proto/plan/time/work.h), and their calls to the device. What differs from operation to operation stands in its own
 * file (proto/operation/operation.h).
 *
 * A program is written by calling the functions below and those of the operations' headers in order, as in
 *
 *     const int x = program_begin(p, width);
 *     const int n = program_norm(p, x, "ln_1", &norm);
 *     const int u = program_linear(p, n, "mlp.c_fc", inner, &linear);
 *
 * A value is named by the number that the function returns. One operation writes it, any number read it. A program that
 * exceeds the limits is a mistake in its family's file: an assertion fails.
 *
 * Values that leave the program are boundary values: other layers read them. The first input and the first output are
 * by default the stream, the value that passes from layer to layer; others have names (program_input, program_output).
 * Each boundary value has a domain, as all that is computed from it: how many elements of it a row has. */
#ifndef PROTO_OPERATION_PROGRAM_H
#define PROTO_OPERATION_PROGRAM_H

#include "proto/operation/list.h"

#include <stdbool.h>
#include <stdint.h>

enum model_init {
    MODEL_INIT_ZERO,
    MODEL_INIT_ONE,
    MODEL_INIT_CONSTANT,
    MODEL_INIT_NORMAL,
    MODEL_INIT_UNIFORM,
    MODEL_INIT_LOG_UNIFORM, /* the logarithm of a uniform number, at least MODEL_LEAST_LOGGED */
    MODEL_INIT_STEP,        /* log(1 + exp(it)), a step's size, is log-uniform */
};
#define MODEL_LEAST_LOGGED 0.01

/* Sets of operations and of values are bits of 64. */
enum {
    PROGRAM_OPERATIONS = 64,
    PROGRAM_VALUES = 64,
    PROGRAM_TENSORS = 96,
    PROGRAM_NUMBERS = 512,
    PROGRAM_INPUTS = 3,     /* of one operation */
    PROGRAM_OUTPUTS = 2,    /* of one operation */
    PROGRAM_BOUNDARIES = 4, /* inputs of a program, or outputs */
    PROGRAM_NAME_BYTES = 72,
};

/* A value's domain: how many elements each row has. TOKENS: one per token; ROW: one; PART: one for the whole part.
 * Domains from OWN on are the family's own: some tokens of each row, or the pixels of its image at one resolution.
 * Those of an encoder-decoder are SOURCE and TARGET. */
enum {
    PROGRAM_TOKENS,
    PROGRAM_ROW,
    PROGRAM_PART,
    PROGRAM_OWN,
    PROGRAM_SOURCE = PROGRAM_OWN,
    PROGRAM_TARGET,
    PROGRAM_DOMAINS = PROGRAM_OWN + 8 /* an image's resolutions: a ResNet has six */
};

/* A domain of the family's own: tokens first .. first+n-1 of each row, whatever its length. With `of`: the row is
 * divided into as many parts, however long it is, and the domain has parts first .. first+n-1. With `height`: height *
 * width pixels, line by line, whatever the tokens; a value's columns are channels. Taken of tokens, it is the first
 * ones. */
struct program_own {
    uint32_t first, n, of;
    uint32_t height, width; /* 0: no image */
};

/* The first token of the domain in a row of n_tokens, and how many it has. */
static inline uint32_t program_own_first(const struct program_own *own, uint32_t n_tokens)
{
    return own->of ? (uint32_t)((uint64_t)own->first * n_tokens / own->of) : own->first;
}

static inline uint32_t program_own_elements(const struct program_own *own, uint32_t n_tokens)
{
    const uint64_t end = (uint64_t)own->first + own->n;

    if (own->height)
        return own->height * own->width;
    return own->of ? (uint32_t)(end * n_tokens / own->of) - program_own_first(own, n_tokens) : own->n;
}

/* The least tokens that a row must have for the domain to be taken of them. */
static inline uint32_t program_own_least(const struct program_own *own)
{
    if (own->height)
        return own->height * own->width;
    return own->of ? (own->of + own->n - 1) / own->n : own->first + own->n;
}

struct operation; /* proto/operation/operation.h */

enum program_type {
    PROGRAM_VALUE,     /* of the device's type, as weights are */
    PROGRAM_STATISTIC, /* fp32 */
};

struct program_value {
    enum program_type type;
    uint32_t domain;
    uint32_t columns; /* numbers per element: a width; 2 for a norm's statistics; n_heads for attention's */
    int operation;    /* the one that writes it; -1: an input of the layer */
    unsigned bits;    /* 8, 4 or 1: backward reads it in as many (program_compress); 0: as it is */
};

/* A value that layers share. */
struct program_boundary {
    char name[PROGRAM_NAME_BYTES]; /* "": the stream */
    int value;                     /* index in program.values */
    bool adds; /* an output: added to what the layers of the block before this one wrote, in fp32; the first one begins
                * with zeros */
};

/* A tensor of the layer's unit. The unit holds them in the order in which the operations name them. */
struct program_tensor {
    char name[PROGRAM_NAME_BYTES]; /* MODULE.PARAMETER, "attn.c_attn.weight": its last dot ends the module's name */
    uint32_t rows, columns;        /* columns 0: a vector */
    uint32_t heads;                /* of a vector that files have as (heads, rows / heads); 0: as it is */
    enum model_init init;
    /* Standard deviation for MODEL_INIT_NORMAL; MODEL_INIT_UNIFORM: the largest; MODEL_INIT_CONSTANT: each element;
     * MODEL_INIT_LOG_UNIFORM, MODEL_INIT_STEP: the largest number, and `least` the smallest. */
    float deviation, least;
    bool adapts;   /* of an adapter */
    bool averages; /* it follows what its gradient observes (struct model_tensor) */
    bool fixed;    /* not trained, and the operation reads it in fp32 (struct model_tensor) */
    /* A convolution's window: files have (rows, columns / (height width), height, width). 0: no convolution. */
    uint32_t height, width;
    bool over_tokens; /* of each channel by itself, one row here: files have (columns / width, 1, width) */
    /* Of a stack: so many tensors of this shape, one behind the other, each of them a tensor of the model and of files,
     * whose name has its number in place of %u. They are trained together, or frozen. 0: one tensor. */
    uint32_t n_stacked;
};

struct program_operation {
    const struct operation *kind;
    int n_inputs, n_outputs;
    int inputs[PROGRAM_INPUTS], outputs[PROGRAM_OUTPUTS];
    int tensor, n_tensors; /* the first: weights, then biases */
    bool frozen;           /* its tensors are not trained: no layer that runs the program needs their gradients */
#define PROGRAM_OPTIONS(name, options) struct options name;
    union { /* by kind */
        OPERATIONS(PROGRAM_OPTIONS)
    };
#undef PROGRAM_OPTIONS
};

struct program {
    int n_operations, n_values, n_tensors, n_numbers;
    int n_inputs, n_outputs;
    struct program_boundary inputs[PROGRAM_BOUNDARIES], outputs[PROGRAM_BOUNDARIES];
    struct program_own own[PROGRAM_DOMAINS - PROGRAM_OWN]; /* the family's own domains */
    int logit_bias;                                        /* the tensor that the head adds to logits; -1: none */
    uint64_t held; /* values that can be kept, though cheap to make: of what they are made of signs alone are read */
    struct program_operation operations[PROGRAM_OPERATIONS];
    struct program_value values[PROGRAM_VALUES];
    struct program_tensor tensors[PROGRAM_TENSORS];
    double numbers[PROGRAM_NUMBERS]; /* (n_numbers) of operations' options */
};

/* Begins a program; returns its input from the stream, of tokens. */
int program_begin(struct program *p, uint32_t columns);

/* Begins a program without an input. */
void program_init(struct program *p);

/* Adds an input: the value of this name that was written last, by a layer below. name "": the stream. Values of the
 * domains ROW and PART are fp32. All inputs come before the first operation. */
int program_input(struct program *p, const char *name, uint32_t domain, uint32_t columns);

/* Adds an output, a value y of an operation: readers above find it by the name. */
void program_output(struct program *p, const char *name, int y);

/* Adds y to a sum in fp32 that layers of one block share: where one layer is too large for the device, several sum up
 * its parts. The layers that add, one above the other, come before those that read the sum. */
void program_add_to(struct program *p, const char *name, int y);

/* Adds a parameter, a vector (n_outputs: model_outputs), as an output that the head adds to the logits. After the
 * stream's; one layer above the blocks may have it. */
#define PROGRAM_LOGIT_BIAS "logit bias"
void program_logit_bias(struct program *p, const char *name, uint32_t n_outputs);

/* Elements of a domain in a row of n_tokens; of a value in such a row; of a value in n_rows of them. */
static inline uint32_t program_domain_elements(const struct program *p, uint32_t domain, uint32_t n_tokens)
{
    if (domain >= PROGRAM_OWN)
        return program_own_elements(&p->own[domain - PROGRAM_OWN], n_tokens);
    return domain == PROGRAM_TOKENS ? n_tokens : 1;
}

static inline uint32_t program_row_elements(const struct program *p, int index, uint32_t n_tokens)
{
    return program_domain_elements(p, p->values[index].domain, n_tokens);
}

static inline uint64_t program_elements(const struct program *p, int index, uint32_t n_rows, uint32_t n_tokens)
{
    return (p->values[index].domain == PROGRAM_PART ? 1 : (uint64_t)n_rows) * program_row_elements(p, index, n_tokens);
}

/* Tensors of the model that a program's tensors before this one are; index n_tensors: all of them. */
static inline uint32_t program_tensors_before(const struct program *p, int tensor)
{
    uint32_t n = 0;

    for (int i = 0; i < tensor; i++)
        n += p->tensors[i].n_stacked ? p->tensors[i].n_stacked : 1;
    return n;
}

/* True if two programs have the same values and operations, their options and tensors aside. */
bool program_is_alike(const struct program *a, const struct program *b);

/* The program's first operation of a kind. NULL: it has none. */
const struct program_operation *program_find(const struct program *p, const struct operation *kind);

/* True of an encoder-decoder's program that makes values of sources, and none of targets. */
bool program_is_of_source(const struct program *p);

/* What targets read of a source in this program: the keys and values of its cross attention. -1: nothing. */
int program_source_read(const struct program *p);

/* The first operation that mixes documents of a row whatever it is told of them (struct operation). NULL: none does. */
const struct program_operation *program_find_mixing(const struct program *p);

/* Adds the output to the stream: y, as wide as the input from it. */
void program_end(struct program *p, int y);

/* The number of operations that read a value, and of outputs that it is. */
int program_count_readers(const struct program *p, int value);

/* True if the gradient of the first input takes the place of that of the first output: they have the same shape, and no
 * other layer still reads the latter. */
bool program_passes_gradient(const struct program *p);

/* The index of the input, or of the output, that is this value; -1: it is none. */
int program_input_of(const struct program *p, int value);
int program_output_of(const struct program *p, int value);

/* True of an output that is there in backward, and so not made again: a small one, in fp32 of a row or a part; and what
 * has moments, as batch norms read it in their own backward passes, so that it is stashed anyway. */
bool program_is_at_hand(const struct program *p, int value);

/* The inputs that backward reads, as a set of their indices, whatever is kept; those that only forward reads need not
 * wait for it. */
uint32_t program_inputs_read(const struct program *p);

/* The values that backward reads and that are expensive to recompute: all that a layer can keep. */
uint64_t program_keepable(const struct program *p);

/* Has backward read the keepable values in this number of bits, 8 or 4, or in more where a derivative bears no fewer
 * (struct operation); 0: as they are. Statistics stay as they are. Whether a layer keeps these values or computes them
 * again, backward then reads the same bits. Slopes of relu jump, so of its operand signs are read, which are exact, and
 * its result is held, unless it serves frozen tensors alone, or is a layer's last value; then also with 0 bits. After
 * program_sample. */
void program_compress(struct program *p, unsigned bits);

/* True of what backward makes again rather than have it kept. */
bool program_is_cheap(const struct program *p, int value);

/* True if the program is batch norms, additions, activations and max pools alone, none of which is random: what it
 * writes can be made again, the same to the bit, in the time that reading its inputs takes. */
bool program_is_light(const struct program *p);

/* True if backward reads a value as another, of fewer bits. */
bool program_is_rounded(const struct program *p, int value);
bool program_is_compressed(const struct program *p); /* of any */

/* Has backward read some rows alone of those inputs of linear maps that are the output of a relu, or of a dropout
 * behind one, and serve nothing but the gradient of the map's weights. All others it makes again, exactly, from values
 * that it reads anyway. What model_freeze freezes counts as trained here; only an adapter's base does not. */
void program_sample(struct program *p);

bool program_samples(const struct program_operation *op); /* a linear map, of its input */

/* Has the gradients of convolutions' weights read their inputs as means of blocks of side x side pixels (Barley and
 * Froening, arXiv 2409.11902): inputs that are cheap to make, that nothing but convolutions reads, and that are no
 * boundary's. Backward makes these again in any case, for what it makes of them, and takes the means then: nothing more
 * is kept. All other gradients are exact. side 0 or 1: none. As program_sample, before program_compress. */
void program_pool(struct program *p, uint32_t side);

bool program_can_pool(const struct program *p);

/* True for a convolution that reads its input as means. */
bool program_pools(const struct program_operation *op);

/* Bytes of a value's means, in n_rows. */
uint64_t program_pooled_bytes(const struct program *p, int value, uint32_t n_rows, size_t element_bytes);

/* The linear map that samples this value, or the first convolution that pools it; -1: none. */
int program_sampler(const struct program *p, int value);

/* Divides the keepable values into groups, which are kept or not: one for each operation that writes some, the last
 * ones sharing a group if they are too many; into one group if some are compressed, as what is computed again needs
 * what it is computed from as it is. Rows of a relu's result are in the group of its signs. Returns the number of
 * groups, and sets each one's values and first operation. */
enum { PROGRAM_KEPT_GROUPS = 4 };
int program_kept_groups(const struct program *p, uint64_t values[PROGRAM_KEPT_GROUPS],
                        int operations[PROGRAM_KEPT_GROUPS]);

/* The values that backward reads. */
uint64_t program_read_backward(const struct program *p);

#endif
