/* The head comes first, as it is where forward turns to backward: its units are used last and then first again. Its own
 * are not always above the blocks' in number: a tied head's unit is the embedding's, so the head's places are separate
 * from the others, and both directions of the map ask for it first.
 *
 * Periods of equal units are counted downwards, as places are: a run of them ends at the first unit of its kind. */
#include "proto/model/norms.h"
#include "proto/plan/memory/units.h"

/* Units in the order of proto/model/model.c: the embedding's, if there is one, one per layer with a program, the head's
 * own unless tied. */
static uint32_t count_programmed(const struct model *model)
{
    return model->n_layers - 1 - (model_table_visits(model) > 0);
}

static uint32_t first_programmed(const struct model *model)
{
    return model->visits[model_table_visits(model)];
}

static uint32_t last_programmed(const struct model *model)
{
    return first_programmed(model) + count_programmed(model) - 1;
}

uint32_t plan_count_uploaded(const struct model *model)
{
    return plan_head(model)->n_visits + count_programmed(model);
}

uint32_t plan_unit_at(const struct model *model, uint32_t place)
{
    const struct model_layer *head = plan_head(model);

    if (place < head->n_visits)
        return model->visits[head->first_visit + head->n_visits - 1 - place];
    return last_programmed(model) - (place - head->n_visits);
}

uint32_t plan_place_of(const struct model *model, uint32_t unit)
{
    const struct model_layer *head = plan_head(model);
    const uint32_t first_of_head = model->visits[head->first_visit];

    if (unit >= first_of_head && unit - first_of_head < head->n_visits)
        return head->n_visits - 1 - (unit - first_of_head);
    if (unit >= first_programmed(model))
        return head->n_visits + last_programmed(model) - unit;
    return plan_count_uploaded(model);
}

uint32_t plan_count_times(const struct model *model, uint32_t place, uint32_t end, uint32_t *n)
{
    const uint32_t n_head = plan_head(model)->n_visits, unit = plan_unit_at(model, place);
    const struct model_alike *alike = &model->units[unit].alike;
    const uint32_t places = (place < n_head && end > n_head ? n_head : end) - place, units = unit - alike->first + 1;
    const uint32_t times = (places < units ? places : units) / alike->period;

    *n = times > 1 ? alike->period : 1;
    return times > 1 ? times : 1;
}

uint64_t plan_unit_room(const struct model *model, uint32_t unit, uint32_t pad)
{
    if (plan_place_of(model, unit) >= plan_head(model)->n_visits)
        return model->units[unit].n;
    return plan_head_pad(model->pieces[model->units[unit].first_piece].n_rows, pad) * model->config.width;
}

uint64_t plan_unit_sum(const struct model *model, uint32_t unit, uint32_t pad)
{
    const struct model_unit *u = &model->units[unit];

    return u->n_trained < u->n || u->n_norms > 0 ? model_contribution_end(u) : plan_unit_room(model, unit, pad);
}

uint32_t plan_count_apart(const struct plan *plan, const struct model *model)
{
    const struct model_layer *head = plan_head(model);

    return plan->head_apart && model_contributes(model, head->first_visit) ? head->n_visits : 0;
}

uint64_t plan_uploaded_bytes(const struct model *model, uint32_t unit, const struct plan *plan)
{
    const struct model_unit *u = &model->units[unit];
    const enum number_type precision = plan->setting.goal.precision;

    return u->coded_bytes > 0 ? model_unit_bytes(u, precision)
                              : plan_unit_room(model, unit, plan->head_pad) * number_bytes(precision);
}

bool plan_stays(const struct plan *plan, const struct model *model, uint32_t unit)
{
    const bool trains = plan->setting.goal.purpose == PLAN_TRAIN;

    return trains && plan_place_of(model, unit) < plan->n_resident && model->units[unit].sparse == 0;
}

uint64_t plan_pulled_bytes(const struct plan *plan, const struct model *model, uint32_t unit)
{
    const struct model_unit *u = &model->units[unit];
    const enum number_type precision = plan->setting.goal.precision;

    return plan_stays(plan, model, unit) ? u->n_trained * number_bytes(precision) : model_unit_bytes(u, precision);
}

uint64_t plan_decoded(const struct model *model, uint32_t unit, uint32_t pad)
{
    const struct model_unit *u = &model->units[unit];

    return u->n_decoded > 0 ? u->n_decoded + plan_unit_room(model, unit, pad) - u->n : 0;
}

/* The largest of one of the two sizes. */
enum size { UPLOADED, DECODED };

static uint64_t units_find_largest(const struct model *model, uint32_t first, const struct plan *plan, uint32_t pad,
                                   enum size size)
{
    const uint32_t end = plan_count_uploaded(model);
    uint64_t most = 0;

    for (uint32_t begin = first, n, times; begin < end; begin += n * times) {
        times = plan_count_times(model, begin, end, &n);
        for (uint32_t place = begin; place < begin + n; place++) {
            const uint32_t unit = plan_unit_at(model, place);
            const uint64_t found =
                size == UPLOADED ? plan_uploaded_bytes(model, unit, plan) : plan_decoded(model, unit, pad);
            most = most < found ? found : most;
        }
    }
    return most;
}

uint64_t plan_largest_uploaded(const struct model *model, uint32_t first, const struct plan *plan)
{
    return units_find_largest(model, first, plan, plan->head_pad, UPLOADED);
}

uint64_t plan_largest_decoded(const struct model *model, uint32_t first, uint32_t pad)
{
    return units_find_largest(model, first, NULL, pad, DECODED);
}
