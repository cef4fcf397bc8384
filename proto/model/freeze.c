/* Which tensors are trained, and what follows from that: each unit's pieces, the visits that contribute, units that
 * recur. */
#include "proto/model/model_internal.h"

#include "proto/model/family.h"
#include "proto/model/groups.h"
#include "proto/operation/operation.h"

#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

static bool is_frozen(const struct model *m, const struct model_piece *piece)
{
    return m->tensors[piece->tensor].frozen;
}

/* The value that makes the scores of experts, before an adapter adds to it. */
static int freeze_scores(const struct program *p, const struct program_operation *route)
{
    const int scores = route->inputs[0], maker = p->values[scores].operation;

    return maker >= 0 && p->operations[maker].kind == &operation_adapter ? p->operations[maker].inputs[0] : scores;
}

bool model_is_router(const struct program *p, const struct program_operation *op)
{
    for (int i = 0; i < p->n_operations; i++)
        if (p->operations[i].kind == &operation_route && freeze_scores(p, &p->operations[i]) == op->outputs[0])
            return true;
    return false;
}

static bool is_of_router(const struct program *p, const struct model_piece *piece)
{
    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == &operation_linear && op->tensor == piece->slot)
            return model_is_router(p, op);
    return false;
}

/* Embedding, head, vectors and convolutions over tokens are not multiplied as a linear layer's weight is. A router is,
 * but in few bits its scores would choose other experts. */
static bool is_matrix(const struct model *m, const struct model_unit *unit, const struct model_piece *piece)
{
    const uint32_t n_tables = model_table_visits(m);
    const uint32_t first = m->visits[n_tables];          /* of the lowest layer with a program */
    const uint32_t n = m->n_layers - 1 - (n_tables > 0); /* such layers have a unit each */
    const uint32_t u = (uint32_t)(unit - m->units);

    return u >= first && u - first < n && m->tensors[piece->tensor].n_dims == 2 &&
           !m->tensors[piece->tensor].over_tokens && !is_of_router(&m->programs[unit->program].program, piece);
}

bool model_is_matrix(const struct model *m, uint32_t tensor)
{
    for (uint32_t u = 0; u < m->n_units; u++)
        for (uint32_t p = m->units[u].first_piece; p < m->units[u].first_piece + m->units[u].n_pieces; p++)
            if (m->pieces[p].tensor == tensor)
                return is_matrix(m, &m->units[u], &m->pieces[p]);
    return false;
}

/* Frozen ones are in the job's type, or coded. A unit has its pieces in this order. */
enum kind { TRAINED, VALUES, CODED, KINDS };

static enum kind freeze_kind_of(const struct model *m, const struct model_piece *piece)
{
    return !is_frozen(m, piece) ? TRAINED : piece->form == FORM_VALUES ? VALUES : CODED;
}

/* Places the unit's pieces of one kind, the first at element *n. */
static void place_pieces(struct model *m, struct model_unit *unit, enum kind kind, uint64_t *n)
{
    struct model_piece *const first = &m->pieces[unit->first_piece], *const end = first + unit->n_pieces;

    for (struct model_piece *p = first; p < end; p++) {
        if (freeze_kind_of(m, p) != kind)
            continue;
        p->offset = *n;
        *n += p->n;
        unit->frozen |= kind != TRAINED ? UINT64_C(1) << p->slot : 0;
        if (kind != CODED && p->dense == 0)
            continue;
        *(kind == CODED ? &unit->coded : &unit->sparse) |= UINT64_C(1) << p->slot;
        m->n_sparse += kind != CODED;
        p->coded = unit->coded_bytes, p->decoded = unit->n_decoded;
        unit->coded_bytes += kind == CODED ? form_bytes(p->form, p->n_rows, p->n / p->n_rows) : model_places_bytes(p);
        unit->n_decoded += kind != CODED ? p->dense : p->form == FORM_FP32 ? 0 : p->n;
    }
}

/* Values are rounded up where coded pieces, or places, follow them. */
static void size_unit(struct model *m, struct model_unit *unit, struct model_base base)
{
    struct model_piece *const first = &m->pieces[unit->first_piece], *const end = first + unit->n_pieces;
    uint64_t n[KINDS] = {0};

    for (struct model_piece *p = first; p < end; p++) {
        p->form = m->tensors[p->tensor].fixed ? FORM_FP32
                  : !is_frozen(m, p)          ? FORM_VALUES
                  : is_matrix(m, unit, p)     ? base.matrices
                                              : base.others;
        model_size_piece(m, (uint32_t)(unit - m->units), p);
    }
    unit->frozen = unit->coded = unit->sparse = unit->coded_bytes = unit->n_decoded = 0;
    unit->first_sparse = m->n_sparse;
    for (enum kind kind = TRAINED; kind < KINDS; kind++) {
        n[kind] = kind > TRAINED ? n[kind - 1] : 0;
        place_pieces(m, unit, kind, &n[kind]);
    }
    unit->n = n[CODED];
    unit->n_trained = n[TRAINED];
    unit->n_relayed = unit->coded_bytes > 0 ? model_rounded(n[VALUES]) : n[VALUES];
}

/* Trained matrices of blocks, whole in their unit. */
static void group_pieces(struct model *m, const struct model_unit *unit)
{
    const struct model_piece *const first = &m->pieces[unit->first_piece], *const end = first + unit->n_pieces;

    for (const struct model_piece *p = first; p < end; p++) {
        struct model_tensor *const t = &m->tensors[p->tensor];
        t->grouped = !t->frozen && p->dense == 0 && p->n == t->n && is_matrix(m, unit, p) &&
                     model_runs_in_blocks(m, unit->program);
        t->n_groups = t->grouped ? model_parts_before(p, p->offset + p->n - 1, MODEL_GROUP) + 1 : 0;
        t->group_rank = t->grouped ? m->n_grouped++ : 0;
    }
}

/* Sets what follows from which of the unit's pieces are frozen, and their forms. */
static void divide_unit(struct model *m, struct model_unit *unit, struct model_base base)
{
    size_unit(m, unit, base);
    group_pieces(m, unit);
    unit->n_slices = (uint32_t)((unit->n_trained + MODEL_SLICE - 1) / MODEL_SLICE);
    unit->offset = m->segment_n, unit->coded_offset = m->segment_coded;
    m->segment_n += model_rounded(unit->n_relayed), m->segment_coded += unit->coded_bytes;
    unit->trained_offset = m->trained_n;
    m->trained_n += model_rounded(unit->n_trained);
    unit->replay_offset = unit->n_trained > 0 ? m->replay_n : 0;
    m->replay_n += model_rounded(unit->n_trained);
    m->n_trained += unit->n_trained;
    m->n_frozen_units += unit->n_trained == 0;
    m->n_slices += unit->n_slices;
    if (m->largest_trained < unit->n_trained)
        m->largest_trained = unit->n_trained;
    if (m->largest_unit < unit->n)
        m->largest_unit = unit->n;
}

/* Alike units have the same layout, so figures of one serve for all. */
static bool are_alike(const struct model_unit *a, const struct model_unit *b)
{
    return a->n == b->n && a->program == b->program && a->frozen == b->frozen && a->coded == b->coded &&
           a->sparse == b->sparse;
}

/* Units of the lowest blocks, as many as a period has; 1, if that is longer than any that is looked for. */
static uint32_t count_period_units(const struct model *m)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < m->period; i++)
        n += model_kind_of_block(m, i).n;
    return n > MODEL_PERIOD ? 1 : n;
}

/* Finds recurring units: below the blocks, in the blocks, and above them. */
static void find_alike(struct model *m)
{
    const uint32_t first = m->visits[m->layers[m->first_block].first_visit], above = first + m->n_block_layers;
    const uint32_t of_blocks = count_period_units(m);

    for (uint32_t u = 0, end; u < m->n_units; u = end) {
        const uint32_t limit = u < first ? first : u < above ? above : m->n_units;
        const uint32_t period = u >= first && u < above ? of_blocks : 1;
        for (end = u + 1; end < limit; end++)
            if (end - u >= period && !are_alike(&m->units[end - period], &m->units[end]))
                break;
        for (uint32_t i = u; i < end; i++)
            m->units[i].alike = (struct model_alike){u, end, period};
    }
}

/* May be called again, when what is frozen changes: all that it counts begins from 0. */
void model_divide(struct model *m, struct model_base base)
{
    m->segment_n = m->segment_coded = m->replay_n = 0;
    m->n_trained = m->trained_n = m->largest_trained = m->largest_unit = 0;
    m->n_trained_tensors = m->n_frozen_units = m->n_trained_visits = m->n_slices = m->n_sparse = 0;
    m->n_grouped = 0;
    for (struct model_tensor *t = m->tensors; t < m->tensors + m->n_tensors; t++)
        t->rank = t->frozen ? 0 : m->n_trained_tensors++;
    for (uint32_t u = 0; u < m->n_units; u++)
        divide_unit(m, &m->units[u], base);
    for (uint32_t visit = 0; visit < m->n_visits; visit++) {
        m->trained_below[visit] = m->n_trained_visits;
        if (m->units[m->visits[visit]].n_trained > 0)
            m->trained_visits[m->n_trained_visits++] = visit;
    }
    find_alike(m);
    model_mark_trained_values(m);
    m->lowest_trained = m->n_trained_visits ? m->visit_layers[m->trained_visits[0]] : m->n_layers;
}

static const char *without(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 ? name + n : name;
}

const char *model_without_prefix(const struct model *m, const char *name)
{
    const char *bare = without(name, m->config.family->prefix);

    for (uint32_t i = 0; bare == name && i < m->config.guests.n; i++)
        bare = without(name, m->config.guests.at[i].family->prefix);
    return bare;
}

static const struct model_tensor *first_of_block(const struct model *m)
{
    const uint32_t unit = m->visits[m->layers[m->first_block].first_visit];

    return &m->tensors[m->pieces[m->units[unit].first_piece].tensor];
}

/* With the family's prefix, or without, as users write it. */
static bool matches(const struct model *m, const char *pattern, const struct model_tensor *t)
{
    return fnmatch(pattern, t->name, 0) == 0 || fnmatch(pattern, model_without_prefix(m, t->name), 0) == 0;
}

static uint32_t freeze_matches(struct model *m, const char *pattern)
{
    uint32_t n = 0;

    for (struct model_tensor *t = m->tensors; t < m->tensors + m->n_tensors; t++)
        if (matches(m, pattern, t)) {
            t->frozen = true;
            n++;
        }
    return n;
}

static const char *first_pattern(const char *patterns)
{
    return patterns && *patterns ? patterns : NULL;
}

/* The next pattern of a list, whose rest is *at; NULL: it is at its end. False: none is left. */
static bool next_pattern(char out[MODEL_FREEZE_BYTES], const char **at)
{
    if (!*at)
        return false;
    const size_t n = strcspn(*at, ",");
    snprintf(out, MODEL_FREEZE_BYTES, "%.*s", (int)n, *at);
    *at = (*at)[n] ? *at + n + 1 : NULL;
    return true;
}

bool model_is_named(const struct model *m, const struct model_tensor *tensor, const char *patterns)
{
    char pattern[MODEL_FREEZE_BYTES];

    for (const char *at = first_pattern(patterns); next_pattern(pattern, &at);)
        if (matches(m, pattern, tensor))
            return true;
    return false;
}

enum form model_thawed_base(const struct model_config *config, enum form base)
{
    return config->adapter.rank > 0 ? base : FORM_VALUES;
}

struct model_base model_base_of(enum form base, enum number_type precision)
{
    const enum form others = base == FORM_VALUES || precision == NUMBER_BF16 ? FORM_VALUES : FORM_BF16;

    return (struct model_base){base == FORM_VALUES || base == FORM_BF16 ? others : base, others};
}

uint64_t model_largest_bytes(const struct model *m, enum number_type precision)
{
    uint64_t most = 0;

    for (uint32_t u = 0; u < m->n_units; u++) {
        const uint64_t bytes = model_unit_bytes(&m->units[u], precision);
        most = most < bytes ? bytes : most;
    }
    return most;
}

int model_check_stacks(const struct model *m, struct error *err)
{
    const struct model_piece *end = m->pieces + m->n_pieces;

    for (const struct model_piece *p = m->pieces + 1; p < end; p++) {
        const struct model_tensor *t = &m->tensors[p->tensor], *before = &m->tensors[p[-1].tensor];
        if (t->n_stacked && before->n_stacked && p->slot == p[-1].slot && t->frozen != before->frozen)
            return error_set(err, -EINVAL,
                             "%s is trained and %s is not: the experts of a block are trained, or frozen, together",
                             t->frozen ? before->name : t->name, t->frozen ? t->name : before->name);
    }
    return 0;
}

int model_freeze(struct model *m, const char *patterns, struct model_base base, struct error *err)
{
    char pattern[MODEL_FREEZE_BYTES];

    if ((!patterns || !*patterns) && base.others == FORM_VALUES && base.matrices == FORM_VALUES)
        return 0;
    for (const char *at = first_pattern(patterns); next_pattern(pattern, &at);)
        if (strlen(pattern) >= sizeof m->tensors->name || freeze_matches(m, pattern) == 0)
            return error_set(err, -EINVAL,
                             "--freeze %.200s matches no tensor of this model: its tensors have names like %s and %s",
                             pattern, model_without_prefix(m, m->tensors[0].name),
                             model_without_prefix(m, first_of_block(m)->name));
    const int rc = model_check_stacks(m, err);
    if (rc)
        return rc;
    model_divide(m, base);
    return m->n_trained > 0
               ? 0
               : error_set(err, -EINVAL, "--freeze %.200s freezes all tensors of this model: leave one to train",
                           patterns);
}

int model_recode(struct model *out, const struct model *model, struct model_base base, struct error *err)
{
    const int rc = model_init(out, &model->config, err);

    if (rc != 0)
        return rc;
    for (uint32_t t = 0; t < model->n_tensors; t++)
        out->tensors[t].frozen = model->tensors[t].frozen;
    out->sparse = model->sparse;
    model_divide(out, base);
    return 0;
}
