/* eps/relay/readers.c - saves and snapshots: each reads one version of every unit, while steps go on.
 *
 * A reader's version is the cut when it came (relay_cut). A unit that has that version is captured, before anything is
 * folded into it, and is not updated until the reader has released it. */
#include "eps/relay/relay_state.h"

#include <string.h>

void relay_refuse_reader(struct relay *r, uint32_t reader, const char *why)
{
    *relay_act(r, RELAY_REFUSE) =
        (struct relay_action){.kind = RELAY_REFUSE, .to_reader = true, .reader = reader, .why = why};
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

/* Units already at the cut are captured at once. */
void relay_on_save(struct relay *r, uint32_t id)
{
    const uint64_t cut = relay_cut(r);
    if (relay_find_reader(r, id) || cut == RELAY_NO_STEP) {
        relay_refuse_reader(r, id, "no such reader");
        return;
    }
    if (r->n_readers == RELAY_MAX_READERS) {
        relay_refuse_reader(r, id, "too many readers");
        return;
    }
    struct relay_reader *reader = relay_add_reader(r, id);
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
    struct relay_reader *reader = relay_find_reader(r, id);
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
