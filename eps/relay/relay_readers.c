/* eps/relay/relay_readers.c - checkpoint, evaluation, export: who reads all units at one version, while the run goes on. */
#include "eps/relay/relay_state.h"

#include <string.h>

static uint32_t reader_index(const struct relay *r, uint32_t id)
{
    uint32_t i = 0;
    while (i < r->n_readers && r->readers[i].id < id)
        i++;
    return i;
}

static struct relay_reader *find_reader(struct relay *r, uint32_t id)
{
    uint32_t i = reader_index(r, id);
    return i < r->n_readers && r->readers[i].id == id ? &r->readers[i] : NULL;
}

static struct relay_reader *add_reader(struct relay *r, uint32_t id)
{
    uint32_t i = reader_index(r, id);
    uint64_t used = 0;
    for (uint32_t j = 0; j < r->n_readers; j++)
        used |= r->readers[j].bit;
    memmove(&r->readers[i + 1], &r->readers[i], (r->n_readers - i) * sizeof *r->readers);
    r->readers[i] = (struct relay_reader){.id = id, .bit = ~used & (used + 1)};
    r->n_readers++;
    return &r->readers[i];
}

void relay_refuse_reader(struct relay *r, uint32_t reader, const char *why)
{
    struct relay_action *a = relay_act(r, RELAY_REFUSE);
    a->to_reader = true;
    a->reader = reader;
    a->why = why;
}

/* The version that all units have, or will all have next: the present one while no fold of the open step was issued, else
 * the one it leads to. */
uint64_t relay_cut(const struct relay *r)
{
    const bool begun = r->t + 1 != r->config.first_step;

    if (r->torn || !begun)
        return RELAY_NO_STEP;
    return r->covered || r->n_folded || r->n_flying ? r->t + 1 : r->t;
}

/* Units that are at the cut already are captured at once. */
void relay_on_save(struct relay *r, uint32_t id)
{
    const uint64_t cut = relay_cut(r);
    if (find_reader(r, id) || cut == RELAY_NO_STEP) {
        relay_refuse_reader(r, id, "no such reader");
        return;
    }
    if (r->n_readers == RELAY_MAX_READERS) {
        relay_refuse_reader(r, id, "too many readers");
        return;
    }
    struct relay_reader *reader = add_reader(r, id);
    reader->version = cut;
    for (uint32_t u = 0; u < r->n_units; u++) {
        if (r->units[u].n_visits) {
            r->units[u].to_come |= reader->bit;
            reader->n_to_come++;
        }
    }
    for (uint32_t u = 0; u < r->n_units; u++) {
        if (r->units[u].n_visits)
            relay_capture(r, u);
    }
}

void relay_on_released(struct relay *r, uint32_t id, uint32_t unit)
{
    struct relay_reader *reader = find_reader(r, id);
    if (!reader)
        return;
    if (unit < r->n_units && r->units[unit].captured & reader->bit) {
        r->units[unit].captured &= ~reader->bit;
        reader->n_captured--;
    }
    if (reader->n_to_come || reader->n_captured)
        return;
    struct relay_action *a = relay_act(r, RELAY_SAVED);
    a->reader = id;
    a->step = reader->version;
    r->n_readers--;
    memmove(reader, reader + 1, (size_t)(&r->readers[r->n_readers] - reader) * sizeof *reader);
}

void relay_capture(struct relay *r, uint32_t unit)
{
    struct relay_unit *u = &r->units[unit];
    for (uint32_t i = 0; i < r->n_readers && u->to_come; i++) {
        struct relay_reader *reader = &r->readers[i];
        if (!(u->to_come & reader->bit) || u->version != reader->version)
            continue;
        u->to_come &= ~reader->bit;
        u->captured |= reader->bit;
        reader->n_to_come--;
        reader->n_captured++;
        struct relay_action *a = relay_act(r, RELAY_CAPTURE);
        a->reader = reader->id;
        a->unit = unit;
        a->step = u->version;
    }
}

void relay_abandon_readers(struct relay *r)
{
    for (uint32_t i = 0; i < r->n_readers; i++)
        relay_act(r, RELAY_ABANDON)->reader = r->readers[i].id;
    r->n_readers = 0;
}
