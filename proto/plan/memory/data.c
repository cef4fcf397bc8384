/* Client, daemon and workers each compute this layout, and none sends an offset: a change here is a change of the
 * protocol (MESSAGE_VERSION). So it follows from the goal and the number of labels alone; norms, whose number needs the
 * whole model, come last.
 *
 * An array that a job lacks takes no bytes but has an offset, the next one's. Nothing reads through it: the goal says
 * what there is. */
#include "proto/plan/memory/data.h"

#include "proto/model/norms.h"

/* A padding token is 0, and a document of its own; a padding row has one token, none of a second text. */
const struct plan_field_type plan_field_types[PLAN_FIELDS] = {
    [PLAN_FIELD_IDS] = {"ids", sizeof(uint32_t), true, .empty = {0}},
    [PLAN_FIELD_LABELS] = {"labels", sizeof(uint32_t), true, .empty = {PLAN_NO_LABEL}},
    [PLAN_FIELD_POSITIONS] = {"positions", sizeof(uint32_t), true, .empty = {0}},
    [PLAN_FIELD_LENGTHS] = {"lengths", sizeof(struct plan_row), .empty = {1, 1}},
    [PLAN_FIELD_REFERENCES] = {"references", sizeof(float), .empty = {0}},
    [PLAN_FIELD_ENTRIES] = {"entries", sizeof(uint32_t), true, .daemons = true, .empty = {PLAN_NO_ENTRY}},
    [PLAN_FIELD_WEIGHTS] = {"weights", sizeof(float), true, .empty = {0}},
};
_Static_assert(sizeof(struct plan_row) == 2 * sizeof(uint32_t), "the words of an empty row");

static unsigned fields_of(const struct plan_goal *goal, uint32_t n_labels)
{
    const bool has[PLAN_FIELDS] = {
        [PLAN_FIELD_IDS] = true,
        [PLAN_FIELD_LABELS] = true,
        [PLAN_FIELD_POSITIONS] = goal->packs,
        [PLAN_FIELD_LENGTHS] = n_labels > 0 || goal->source > 0,
        [PLAN_FIELD_REFERENCES] = plan_has_pairs(goal),
        [PLAN_FIELD_ENTRIES] = goal->entries > 0,
        [PLAN_FIELD_WEIGHTS] = goal->weighted,
    };
    unsigned fields = 0;

    for (unsigned f = 0; f < PLAN_FIELDS; f++)
        fields |= (unsigned)has[f] << f;
    return fields;
}

struct plan_data plan_data_of(const struct plan_goal *goal, uint32_t n_labels)
{
    struct plan_data out = {.fields = fields_of(goal, n_labels),
                            .outputs = plan_has_pairs(goal) ? 1
                                       : goal->weighted     ? goal->seq
                                                            : n_labels};

    for (int i = 0; i < 2; i++)
        for (enum plan_field f = 0; f < PLAN_FIELDS; f++) {
            out.buffers[i].at[f] = out.bytes;
            out.bytes += plan_data_has(&out, f) ? plan_field_bytes(f, goal->batch, goal->seq) : 0;
        }
    out.logits = out.bytes;
    out.bytes += (uint64_t)goal->batch * out.outputs * sizeof(float);
    return out;
}

int plan_divide_rows(struct model_config *config, const struct plan_goal *goal, struct error *err)
{
    const bool parts = goal->purpose == PLAN_GENERATE && goal->source == goal->seq && model_has_source(config);

    if (!parts)
        return model_divide_rows(config, goal->source, goal->seq, err);
    model_part_rows(config, goal->seq);
    return 0;
}

static uint64_t data_rounded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

uint64_t plan_generate_sources(const struct plan_goal *goal)
{
    return data_rounded((uint64_t)goal->batch * goal->seq * sizeof(uint32_t));
}

uint64_t plan_generate_logits(const struct plan_goal *goal)
{
    return plan_generate_sources(goal) * (goal->source > 0 ? 2 : 1);
}

uint64_t plan_generate_bytes(const struct plan_goal *goal, const struct model_config *config)
{
    return plan_generate_logits(goal) + data_rounded((uint64_t)goal->batch * config->vocabulary * sizeof(float));
}

/* Bytes of one map's norms in one buffer. */
static uint64_t map_bytes(const struct plan_goal *goal)
{
    return (uint64_t)goal->batch * goal->seq * sizeof(uint16_t);
}

uint64_t plan_data_norms_at(const struct plan_goal *goal, const struct model *model, uint32_t buffer, uint32_t map)
{
    return plan_data_of(goal, model->config.n_labels).bytes +
           ((uint64_t)buffer * model->n_norm_maps + map) * map_bytes(goal);
}

uint64_t plan_norms_bytes(const struct plan_goal *goal, uint32_t n_maps)
{
    const uint64_t tokens = (uint64_t)goal->batch * goal->seq,
                   map = sizeof(uint64_t) + (tokens + goal->entries) * sizeof(uint16_t);

    return n_maps == 0 ? 0 : 2 * tokens * sizeof(uint32_t) + n_maps * map;
}

struct plan_rewire plan_rewire(const struct model *model)
{
    uint64_t n_pieces = 0, most_n = 0;
    struct plan_rewire out = {0};

    for (const struct model_piece *p = model->pieces; p < model->pieces + model->n_pieces; p++)
        if (p->dense > 0) {
            n_pieces++;
            most_n = most_n < p->n ? p->n : most_n;
        }
    if (n_pieces == 0)
        return out;
    out.ranks = n_pieces * PLAN_REWIRE_PIECE;
    out.pruned = out.ranks + most_n * sizeof(uint32_t);
    out.bytes = out.pruned + most_n;
    return out;
}

bool plan_may_cut_rows(const struct plan_goal *goal, const struct model *model)
{
    const struct model_config *config = &model->config;
    const bool has_one_length = config->image.height > 0 || model->n_finishes > 0 ||
                                (model_restores_tokens(config) && !model_has_lengths(config));
    const bool draws_of_length = goal->sampling.share > 0 || goal->sampling.queries > 0 || goal->kept_bits > 0;

    return goal->row_tokens[0] > 0 && !has_one_length && !draws_of_length;
}

uint32_t plan_row_tokens(const struct plan_setting *setting, const struct model *model, uint32_t rows)
{
    const uint32_t seq = setting->goal.seq;
    uint32_t i = 0;

    while (i + 1 < PLAN_ROW_TOKENS && rows >> (i + 1) > 0)
        i++;
    const uint32_t n = setting->goal.row_tokens[i];
    return plan_cuts_rows(setting, model) && n > 0 && n < seq ? n : seq;
}

uint64_t plan_data_bytes(const struct plan_goal *goal, const struct model *model)
{
    return goal->purpose == PLAN_GENERATE ? plan_generate_bytes(goal, &model->config)
                                          : plan_data_norms_at(goal, model, 2, 0);
}

void plan_remember_norms(struct model *model, const struct plan_goal *goal)
{
    const bool remembers = goal->purpose == PLAN_TRAIN && goal->sampling.share > 0 && goal->entries > 0;
    const uint64_t part_tokens = remembers ? (uint64_t)(goal->batch / goal->n_parts) * goal->seq : 0;

    /* More tokens are refused, but not here. */
    model_remember_norms(model, remembers && part_tokens <= UINT32_MAX ? part_tokens : 0, goal->entries);
}

void plan_approximate(struct model *model, const struct plan_goal *goal)
{
    model_approximate(model, &(struct model_approximation){goal->kept_bits, goal->sampling.share > 0, goal->pooled});
    if (goal->purpose == PLAN_TRAIN)
        model_sparsify(model, &goal->sparse);
    plan_remember_norms(model, goal);
}
