/* proto/plan/memory/data.h - a job's data segment: minibatches, a classifier's logits, texts that are generated.
 *
 * Client, daemon and workers share it (proto/wire/segment.h); its layout follows from the job's sizes. */
#ifndef PROTO_PLAN_MEMORY_DATA_H
#define PROTO_PLAN_MEMORY_DATA_H

#include "proto/model/model.h"
#include "proto/plan/memory/plan.h"

#include <stdbool.h>
#include <stdint.h>

/* A row of a classifier's minibatch, or of an encoder-decoder's. */
struct plan_row {
    uint32_t n_tokens; /* length of the row, or of its source, at least 1; what is beyond is padding */
    uint32_t second;   /* the first token of segment 1; n_tokens: there is none, as in a source */
};

/* Label of a position that does not count. */
#define PLAN_NO_LABEL UINT32_MAX

/* The entry of padding, and that of a token of which nothing is remembered, as it is none of the training data's. */
#define PLAN_NO_ENTRY  UINT32_MAX
#define PLAN_NEW_ENTRY (UINT32_MAX - 1)

/* What a row may have. */
enum plan_field {
    PLAN_FIELD_IDS,
    PLAN_FIELD_LABELS,
    PLAN_FIELD_POSITIONS,  /* of packed jobs */
    PLAN_FIELD_LENGTHS,    /* of classifiers and encoder-decoders */
    PLAN_FIELD_REFERENCES, /* of pairs: the sum of log p that the reference model gives the row */
    PLAN_FIELD_ENTRIES,    /* if the goal has entries */
    PLAN_FIELD_WEIGHTS,    /* if the goal is weighted: by which a token's loss counts */
    PLAN_FIELDS
};

/* A field in the memory of a minibatch: rows follow each other without gaps. */
struct plan_field_type {
    const char *name;     /* "ids" */
    size_t element_bytes; /* a multiple of 4: u32 or float, or struct plan_row */
    bool by_token;        /* (n_rows, n_tokens) elements; else (n_rows) */
    bool daemons;         /* for the daemon alone: workers do not have it */
    uint32_t empty[2];    /* the words of an element that has no value; those of its size count */
};
extern const struct plan_field_type plan_field_types[PLAN_FIELDS];

/* Bytes of a field in n rows of n_tokens. */
static inline uint64_t plan_field_bytes(enum plan_field field, uint64_t n, uint32_t n_tokens)
{
    const struct plan_field_type *type = &plan_field_types[field];

    return n * (type->by_token ? n_tokens : 1) * type->element_bytes;
}

/* Layout of a job's data segment, in bytes from its start: two buffers, each a minibatch; then a classifier's logits;
 * then, if the model remembers norms, those of both buffers (plan_data_norms_at).
 *
 * Rows of a step have a length of its own, n_tokens <= seq; ids and labels are then (batch, n_tokens), without gaps. A
 * label is the token to predict. A classifier's row has its label at its first token: the class, or the bits of a
 * float. In an encoder-decoder a row is its source and its target's inputs, each at its place (model_divide_rows), and
 * the source has no labels. PLAN_NO_LABEL: no label. Of a pair of texts the chosen one is the row before the rejected
 * one's.
 *
 * A row of a packed job is several documents, one behind the other. A position is a token's index in its document: 0 at
 * each document's first token, and one more at each next one. A padding token is a document of its own.
 *
 * A token's entry is its index in the training data as a whole, whatever row it is in: less than the goal's entries, or
 * one of those above. The unit's daemon finds what it remembers of the token there, and leaves it in the norms before
 * the unit is pulled: for each map of the model (batch, seq) bf16, of which row r has the d norms from r * d on, as in
 * proto/model/norms.h. On several hosts, each has those of its own units, and of others' units those of its own
 * rows. */
struct plan_data {
    unsigned fields;  /* 1u << enum plan_field of each that its rows have */
    uint32_t outputs; /* numbers of each row that an evaluation returns */
    struct {
        uint64_t at[PLAN_FIELDS]; /* those that there are */
    } buffers[2];
    /* (batch, outputs) float: an evaluation writes its rows' logits in a classifier, log p of pairs, and of a weighted
     * job log p of each token's label, 0 where there is none. */
    uint64_t logits;
    uint64_t bytes; /* without norms */
};
/* goal: batch, seq, and what rows are; n_labels: model_config.n_labels. */
struct plan_data plan_data_of(const struct plan_goal *goal, uint32_t n_labels);

static inline bool plan_data_has(const struct plan_data *data, enum plan_field field)
{
    return data->fields >> field & 1;
}

/* In a generation the segment has (batch, seq) ids, u32; with goal->source at plan_generate_sources as many of the
 * sources; and at plan_generate_logits (batch, vocabulary) logits, float. */
uint64_t plan_generate_sources(const struct plan_goal *goal);
uint64_t plan_generate_logits(const struct plan_goal *goal);
uint64_t plan_generate_bytes(const struct plan_goal *goal, const struct model_config *config);

/* Gives rows their source and target, if they have any, as the job needs them. -EINVAL as model_divide_rows. */
int plan_divide_rows(struct model_config *config, const struct plan_goal *goal, struct error *err);

/* True if microbatches may compute no more tokens of their rows than the longest has: not of images; not where
 * something is of all tokens of a part, or where a token sees all others of its row, and rows have no lengths; nor
 * where what is drawn of a row, or the codes that are kept of it, depend on its length, which is then the same in any
 * microbatch. */
bool plan_may_cut_rows(const struct plan_goal *goal, const struct model *model);

/* True if they do. Then attention is computed by our own kernels, as no library is prepared for all lengths: plan_fit
 * decides for all workers of a job. */
static inline bool plan_cuts_rows(const struct plan_setting *setting, const struct model *model)
{
    return setting->attention == PLAN_ATTENTION_OWN && plan_may_cut_rows(&setting->goal, model);
}

/* Tokens of each row in microbatches of so many rows, as prices have them. */
uint32_t plan_row_tokens(const struct plan_setting *setting, const struct model *model, uint32_t rows);

/* Bytes of a job's data segment. */
uint64_t plan_data_bytes(const struct plan_goal *goal, const struct model *model);

/* Has the model remember norms, if the goal has entries: model_remember_norms. Of a job that generates, or samples
 * nothing, none are. The goal's batch is a multiple of n_parts > 0. */
void plan_remember_norms(struct model *model, const struct plan_goal *goal);

/* model_approximate, then this, as the goal has it. */
void plan_approximate(struct model *model, const struct plan_goal *goal);

/* Memory with which a daemon changes places of sparse weights (eps/store/rewire.h): offsets in bytes from its start,
 * which has PLAN_REWIRE_PIECE for each sparse piece, and of all; of the piece that has the most elements, a word and a
 * byte for each. 0 for all: none is sparse. */
enum { PLAN_REWIRE_PIECE = 64 };
struct plan_rewire {
    uint64_t ranks, pruned, bytes;
};
struct plan_rewire plan_rewire(const struct model *model);

/* Bytes of a daemon's memory for the norms of n_maps, those of its own units (eps/store/norms.h): of each map an entry
 * in bf16 for each token of the data, and for each of the minibatch, and 8 bytes; the entries of two minibatches. 0 for
 * none. */
uint64_t plan_norms_bytes(const struct plan_goal *goal, uint32_t n_maps);

/* Offset in the data segment of what is known of a map, one of the model's n_norm_maps, in a buffer. */
uint64_t plan_data_norms_at(const struct plan_goal *goal, const struct model *model, uint32_t buffer, uint32_t map);

#endif
