/* The store walks its own units in the same order (eps/store/checks.c), and the number of a block is its place among
 * the sums. An array that the goal lacks has no sums. Arrays of the trained elements have one for each block, so one
 * number serves all of these. */
#include "proto/plan/memory/checksums.h"

#include "proto/model/groups.h"
#include "proto/plan/memory/host.h"

uint64_t plan_blocks_before(const struct model_piece *piece, uint64_t at)
{
    return model_parts_before(piece, at, PLAN_BLOCK);
}

uint64_t plan_piece_blocks(const struct model *model, const struct model_piece *piece)
{
    return model->tensors[piece->tensor].frozen ? 0 : plan_blocks_before(piece, piece->offset + piece->n - 1) + 1;
}

uint64_t plan_fixed_blocks(const struct model_unit *unit, enum number_type precision)
{
    const uint64_t bytes = model_unit_bytes(unit, precision) - unit->n_trained * number_bytes(precision);

    return (bytes + BLOCK_SUM_BYTES - 1) / BLOCK_SUM_BYTES;
}

void plan_checksums(struct plan_checksums *out, const struct model *model, const struct plan_own *own,
                    const struct plan_goal *goal, bool replay, uint32_t n_accumulators)
{
    *out = (struct plan_checksums){0};
    if (!goal->checks_memory)
        return;
    for (uint32_t u = own->first; u < own->end; u++) {
        const struct model_unit *const unit = &model->units[u];
        uint64_t n = 0;
        for (uint32_t i = 0; i < unit->n_pieces; i++)
            n += plan_piece_blocks(model, &model->pieces[unit->first_piece + i]);
        out->n_blocks += n;
        out->n_tied += unit->n_visits > 1 ? n : 0;
        out->n_most = out->n_most < n ? n : out->n_most;
        out->n_fixed += plan_fixed_blocks(unit, own->precision);
    }
    out->n[PLAN_CHECKED_WEIGHTS] = out->n_blocks;
    out->n[PLAN_CHECKED_REPLAY] = replay ? out->n_blocks : 0;
    out->n[PLAN_CHECKED_MASTER] = goal->precision != NUMBER_FP32 && !goal->no_master ? out->n_blocks : 0;
    out->n[PLAN_CHECKED_FIRST] = plan_moments(goal) > 0 ? out->n_blocks : 0;
    out->n[PLAN_CHECKED_SECOND] = plan_moments(goal) > 1 ? out->n_blocks : 0;
    out->n[PLAN_CHECKED_FIRST_SCALES] = goal->moments == NUMBER_CODED ? out->n[PLAN_CHECKED_FIRST] : 0;
    out->n[PLAN_CHECKED_SECOND_SCALES] = goal->moments == NUMBER_CODED ? out->n[PLAN_CHECKED_SECOND] : 0;
    out->n[PLAN_CHECKED_HELD] = goal->fenced ? out->n_blocks : 0;
    out->n[PLAN_CHECKED_TIED] = plan_tied_sums(goal) * out->n_tied;
    out->n[PLAN_CHECKED_ACCUMULATORS] = n_accumulators * out->n_most;
    out->n[PLAN_CHECKED_FIXED] = out->n_fixed;
    out->bytes = (1 + (uint64_t)model->n_pieces) * sizeof(uint64_t);
    for (int i = 0; i < PLAN_CHECKED_ARRAYS; i++)
        out->bytes += out->n[i] * sizeof(struct block_sum);
}
