/* The store places its pieces in the same order (eps/store/moments.c), and asserts that it comes to these numbers. */
#include "proto/plan/memory/coded.h"

static void coded_add(struct plan_coded *out, const struct model *model, const struct model_unit *unit)
{
    for (uint32_t i = 0; i < unit->n_pieces; i++) {
        const struct model_piece *piece = &model->pieces[unit->first_piece + i];
        const struct model_tensor *tensor = &model->tensors[piece->tensor];
        out->n_wide += tensor->frozen || tensor->grouped ? 0 : piece->n;
        out->n_codes += tensor->grouped ? piece->n : 0;
        out->n_scales += tensor->n_groups;
    }
}

static uint64_t coded_bytes_of(const struct plan_coded *coded)
{
    return coded->n_wide * sizeof(float) + coded->n_scales * sizeof(float) + coded->n_codes;
}

void plan_coded(struct plan_coded *out, const struct model *model, const struct plan_own *own)
{
    *out = (struct plan_coded){0};
    for (uint32_t u = own->first; u < own->end; u++)
        coded_add(out, model, &model->units[u]);
}

uint64_t plan_moment_bytes(const struct model *model, const struct plan_own *own, enum number_type moments)
{
    struct plan_coded coded;

    if (moments != NUMBER_CODED)
        return own->trained_n * number_bytes(moments);
    plan_coded(&coded, model, own);
    return coded_bytes_of(&coded);
}

uint64_t plan_unit_moment_bytes(const struct model *model, const struct model_unit *unit, enum number_type moments)
{
    struct plan_coded coded = {0};

    if (moments != NUMBER_CODED)
        return unit->n_trained * number_bytes(moments);
    coded_add(&coded, model, unit);
    return coded_bytes_of(&coded);
}
