#include "tests/kit/device/array_link.h"

#include "proto/model/norms.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

void array_link_init(struct array_link *link, const struct model *model, const float *weights)
{
    const uint64_t largest = model->largest_unit < model->most_norms ? model->most_norms : model->largest_unit;
    const uint64_t most = largest < MODEL_SLICE ? largest : MODEL_SLICE;

    *link = (struct array_link){.model = model, .weights = weights, .n_buffers = PLAN_MAX_WEIGHT_BUFFERS, .n_inbox = 1};
    link->gradient = calloc(model->segment_n, sizeof(float));
    ck_assert_ptr_nonnull(link->gradient);
    for (int i = 0; i < ARRAY_LINK_SLOTS; i++) {
        link->inbox[i] = malloc(most * sizeof(float));
        ck_assert_ptr_nonnull(link->inbox[i]);
    }
}

void array_link_free(struct array_link *link)
{
    for (int i = 0; i < ARRAY_LINK_PARTS; i++)
        free(link->parts[i]), free(link->norms[i]);
    free(link->gradient);
    for (int i = 0; i < ARRAY_LINK_SLOTS; i++)
        free(link->inbox[i]);
    free(link->rounded);
    free(link->lent);
}

static int count(struct array_link *link)
{
    link->n_calls++;
    if (link->cancel_at == 0 || link->n_calls < link->cancel_at)
        return 0;
    ck_assert_uint_eq(link->n_calls, link->cancel_at); /* nothing is asked of a link that has ended */
    return -ECANCELED;
}

static int pull(void *context, uint64_t version, uint32_t unit)
{
    struct array_link *link = context;

    if (link->n_pulls == 0 && link->on_first_pull)
        link->on_first_pull(link->context);
    ck_assert_uint_eq(version, link->version);
    ck_assert_uint_lt(unit, link->model->n_units);
    ck_assert_uint_lt(link->n_pulls - link->n_waits, link->n_buffers);
    link->asked[link->n_pulls++ % PLAN_MAX_WEIGHT_BUFFERS] = unit;
    return count(link);
}

static const uint16_t *rounded(struct array_link *link)
{
    const size_t n = link->model->segment_n;

    if (link->rounded)
        return link->rounded;
    link->rounded = malloc(n * sizeof *link->rounded);
    ck_assert_ptr_nonnull(link->rounded);
    for (size_t i = 0; i < n; i++)
        link->rounded[i] = number_to_bf16(link->weights[i]);
    return link->rounded;
}

size_t array_link_lend(struct array_link *link)
{
    const size_t bytes = link->model->largest_unit * sizeof(float);

    link->lent = malloc(bytes);
    ck_assert_ptr_nonnull(link->lent);
    return bytes;
}

/* A copy, where the one before was. */
static const void *lend(struct array_link *link, uint32_t unit, const void *weights)
{
    memset(link->lent, 0xff, link->model->largest_unit * sizeof(float)); /* not numbers */
    memcpy(link->lent, weights, link->model->units[unit].n * number_bytes(link->precision));
    return link->lent;
}

static int wait_weights(void *context, struct device_link_weights *weights)
{
    struct array_link *link = context;

    ck_assert_uint_lt(link->n_waits, link->n_pulls);
    const uint32_t unit = link->asked[link->n_waits++ % PLAN_MAX_WEIGHT_BUFFERS];
    const uint64_t offset = link->model->units[unit].offset;
    const void *at = link->precision == NUMBER_BF16 ? (const void *)(rounded(link) + offset) : link->weights + offset;
    const bool lent = link->lent && unit >= link->model->layers[0].n_visits;
    if (lent)
        at = lend(link, unit, at);
    *weights = (struct device_link_weights){.trained = at, .frozen = at, .lent = lent};
    return count(link);
}

static int loss(void *context, uint32_t part, double sum, const struct preference_rewards *rewards, bool finite)
{
    struct array_link *link = context;

    ck_assert_uint_lt(part, ARRAY_LINK_PARTS);
    ck_assert(!link->told[part]);
    ck_assert_uint_eq(link->n_slots, 0);
    link->told[part] = true;
    link->losses[part] = sum;
    link->rewards[part] = *rewards;
    link->finite[part] = finite;
    return count(link);
}

/* Rises in fold order: visit downwards, part, slice. */
static uint64_t name_of(const struct array_link *link, uint32_t visit, uint32_t part, uint32_t slice)
{
    return (uint64_t)(link->model->n_visits - visit) << 32 | (uint64_t)part << 16 | slice;
}

static float get(const struct array_link *link, const void *slot, size_t i)
{
    return link->grad == NUMBER_BF16 ? number_from_bf16(((const uint16_t *)slot)[i]) : ((const float *)slot)[i];
}

static void put(struct array_link *link, void *slot, size_t i, float x)
{
    if (link->grad == NUMBER_BF16)
        ((uint16_t *)slot)[i] = number_to_bf16(x);
    else
        ((float *)slot)[i] = x;
}

static int take_slot(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait, void **slot)
{
    struct array_link *link = context;
    const uint64_t name = name_of(link, visit, part, slice);
    const uint32_t n_taken = link->n_slots - link->n_contributions;

    ck_assert(link->told[part]);
    ck_assert_uint_gt(name, link->last_name);
    ck_assert(!wait || n_taken == 0); /* or it could wait for ever */
    *slot = NULL;
    if (n_taken == link->n_inbox) { /* a look, which changes nothing */
        ck_assert(link->cancel_at == 0 || link->n_calls < link->cancel_at);
        return 0;
    }
    uint32_t k = 0;
    while (link->taken[k])
        k++;
    link->n_slots++;
    link->taken[k] = link->last_name = name;
    *slot = link->inbox[k];
    const uint64_t n = model_slice_of(&link->model->units[link->model->visits[visit]], slice).n;
    for (uint64_t i = 0; i < n; i++)
        put(link, *slot, i, NAN); /* all of it is the worker's to fill */
    return count(link);
}

static void take_norms(struct array_link *link, const struct model_unit *unit, uint32_t part,
                       const struct model_slice *slice, const void *slot)
{
    const uint64_t map = unit->n_norms / unit->n_norm_maps, first = unit->first_norm_map * map + slice->first;

    if (!link->norms[part])
        link->norms[part] = calloc(link->model->n_norm_maps * map, sizeof(float));
    ck_assert_ptr_nonnull(link->norms[part]);
    for (uint64_t i = 0; i < slice->n; i++)
        link->norms[part][first + i] = get(link, slot, i);
}

static int contribute(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                      const struct device_link_slice *given)
{
    struct array_link *link = context;
    const struct model_unit *unit = &link->model->units[link->model->visits[visit]];
    const struct model_slice of = model_slice_of(unit, slice);
    const uint64_t name = name_of(link, visit, part, slice);
    uint32_t k = 0;

    ck_assert_uint_eq(given->n, of.n);
    if (given->sum)
        ck_assert(block_sum_equal(*given->sum, contribution_sum(slot, of.n, number_bytes(link->grad))));
    while (k < ARRAY_LINK_SLOTS && link->inbox[k] != slot)
        k++;
    ck_assert_uint_lt(k, ARRAY_LINK_SLOTS);
    ck_assert_uint_eq(link->taken[k], name);
    for (uint32_t other = 0; other < ARRAY_LINK_SLOTS; other++)
        ck_assert(!link->taken[other] || link->taken[other] >= name); /* in the order in which they were taken */
    link->taken[k] = 0;
    link->n_contributions++;
    link->last_offered = name;
    if (!link->parts[part])
        link->parts[part] = calloc(link->model->segment_n, sizeof(float));
    ck_assert_ptr_nonnull(link->parts[part]);
    if (of.is_norms)
        take_norms(link, unit, part, &of, slot);
    for (uint64_t i = 0; i < of.n && !of.is_norms; i++) {
        link->parts[part][unit->offset + of.first + i] += get(link, slot, i);
        link->gradient[unit->offset + of.first + i] += get(link, slot, i);
    }
    return count(link);
}

static int contributed(void *context, uint32_t visit, uint32_t part)
{
    struct array_link *link = context;
    const struct model_unit *unit = &link->model->units[link->model->visits[visit]];

    ck_assert_uint_eq(name_of(link, visit, part, unit->n_slices - 1), link->last_offered);
    link->n_completed++;
    return count(link);
}

static int ended(void *context)
{
    return count(context);
}

const struct device_link array_link = {pull, wait_weights, loss, take_slot, contribute, contributed, ended};
