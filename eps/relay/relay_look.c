/* What those who look are shown of the units, and whom the step waits for. */
#include "eps/relay/relay_state.h"

/* Losses come first: nothing is folded without all of them. What stands in a slot has been given. */
uint32_t relay_owes(struct relay *r)
{
    if (r->torn || r->covered)
        return RELAY_NOBODY;
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        if (!r->parts[p].loss)
            return r->parts[p].owner;
    if (!relay_find_mark(r))
        return RELAY_NOBODY;
    for (size_t i = 0; i < r->n_standing; i++)
        if (r->standing[i].name == r->mark_name)
            return RELAY_NOBODY;
    return r->parts[r->mark.part].owner;
}

/* The standing list is in the order of names; a name that was redone may be in it twice. */
bool relay_has_all(const struct relay *r)
{
    uint32_t n = r->n_folded;

    if (n + r->n_standing < r->n_names)
        return false;
    for (size_t i = 0; i < r->n_standing; i++)
        n += (i == 0 || r->standing[i].name != r->standing[i - 1].name) && !relay_is_folded(r, r->standing[i].name);
    return !r->torn && r->n_losses == r->config.n_parts && n == r->n_names;
}

static bool is_folding(const struct relay_unit *unit)
{
    for (uint32_t s = 0; s < unit->cap_slices; s++) {
        if (unit->slices[s].flying)
            return true;
    }
    return false;
}

void relay_look(const struct relay *r, uint32_t first, uint32_t n, struct relay_view *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct relay_unit *unit = first + i < r->n_units ? &r->units[first + i] : NULL;
        out[i] = (struct relay_view){.at = RELAY_AT_REST};
        if (!unit)
            continue;
        out[i].version = unit->version;
        out[i].at = unit->updating ? RELAY_AT_UPDATE : is_folding(unit) ? RELAY_AT_FOLD : RELAY_AT_REST;
    }
    for (size_t i = 0; i < r->n_standing; i++) {
        const uint32_t unit = r->standing[i].tag.unit;
        if (unit >= first && unit - first < n && out[unit - first].at == RELAY_AT_REST)
            out[unit - first].at = RELAY_AT_INBOX;
    }
}
