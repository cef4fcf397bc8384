/* The end of a step on several hosts: new weights come from their owners, and a checkpoint may follow. */
#include "eps/step/spread_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* ---- new weights ------------------------------------------------------------------------------------------------ */

/* Other hosts fetch them while this one's workers do. */
static void tell_updated(struct spread *s, const struct updater_task *work)
{
    spread_say_all(s, &(struct word){.kind = WORD_UPDATED,
                                     .step = work->step,
                                     .unit = work->unit,
                                     .buffer = store_buffer(&s->job->store, work->unit, false)});
}

static void on_updated(struct spread *s, uint32_t from, const struct word *w)
{
    const struct store *store = &s->job->store;

    if (w->unit >= s->job->model.n_units || s->owner[w->unit] != from || w->buffer > 1 ||
        w->step != relay_version(s->job->relay, w->unit)) {
        job_end(s->job, -EPROTO, "host %u tells of a version that cannot be", from);
        return;
    }
    const struct store_relayed there = store_relayed(store, w->unit, w->buffer),
                               here = store_relayed(store, w->unit, !store_buffer(store, w->unit, false));
    s->n_left[w->unit] = spread_fetch(s, &(struct spread_fetch){.from = from,
                                                                .region = REGION_WEIGHTS,
                                                                .offset = there.offset,
                                                                .into = (char *)store->weights.base + here.offset,
                                                                .bytes = there.trained_bytes,
                                                                .token = w->unit});
}

static void note_unit(struct spread *s, uint32_t unit, enum spread_unit flag)
{
    s->units[unit] |= (uint8_t)flag;
    if (s->units[unit] == (SPREAD_WANTED | SPREAD_HERE))
        s->arrived[s->n_arrived++] = unit;
}

void spread_on_unit_fetched(struct spread *s, uint32_t unit)
{
    if (job_is_open(s->job))
        note_unit(s, unit, SPREAD_HERE);
}

void spread_on_update(struct spread *s, uint32_t unit)
{
    note_unit(s, unit, SPREAD_WANTED);
}

/* From now on, workers are answered with the unit's next version. */
static bool tell_arrived(struct spread *s)
{
    if (s->n_arrived == 0)
        return false;
    const uint32_t unit = s->arrived[--s->n_arrived];
    s->units[unit] = 0;
    if (s->owner[unit] != s->host)
        store_turn(&s->job->store, unit);
    steps_feed(s->steps, &(struct relay_event){.kind = RELAY_UPDATED, .unit = unit});
    return true;
}

/* Local waits for it: own has updated the unit after the last of this host's slices, too. */
void spread_on_updated(struct spread *s, const struct updater_task *work)
{
    assert(s->units[work->unit] == SPREAD_WANTED);
    note_unit(s, work->unit, SPREAD_HERE);
    tell_arrived(s);
    tell_updated(s, work);
    spread_feed(s, &(struct relay_event){.kind = RELAY_UPDATED, .unit = work->unit});
}

/* ---- the end of a step ------------------------------------------------------------------------------------------ */

void spread_on_covered(struct spread *s)
{
    s->local_covered = true;
}

static void note_covered(struct spread *s, uint32_t host, uint64_t step)
{
    s->others[host].covered = step + 1;
    for (uint32_t h = 0; h < s->n; h++)
        if (s->others[h].covered <= step)
            return;
    steps_on_covered(s->steps, step);
}

/* The step is folded as far as this host is concerned: its parts everywhere, its units of all parts. */
static bool tell_covered(struct spread *s)
{
    const uint64_t step = s->n_opened - 1;

    if (!s->own_covered || !s->local_covered || s->told_covered)
        return false;
    s->told_covered = true;
    if (s->host == 0) {
        note_covered(s, 0, step);
        return true;
    }
    steps_on_covered(s->steps, step);
    spread_say(s, 0, &(struct word){.kind = WORD_COVERED, .step = step});
    return true;
}

static void note_done(struct spread *s, uint32_t host, uint64_t step)
{
    s->others[host].done = step + 1;
    for (uint32_t h = 0; h < s->n; h++)
        if (s->others[h].done <= s->n_done)
            return;
    steps_on_done(s->steps, s->n_done++);
}

void spread_on_done(struct spread *s, uint64_t step)
{
    if (s->host == 0) {
        note_done(s, 0, step);
        return;
    }
    steps_on_done(s->steps, step);
    spread_say(s, 0, &(struct word){.kind = WORD_DONE, .step = step});
}

/* ---- saves ------------------------------------------------------------------------------------------------------ */

/* Of what another host has written for a save: one save at a time. */
static void fetch_notes(struct spread *s, uint32_t from, const struct word *word)
{
    struct spread_host *other = &s->others[from];

    if (!save_wants_notes(s->steps->saves, word->id)) /* it has failed meanwhile, and they may be gone */
        return;
    other->notes = other->n_left_notes || word->bytes == 0 ? NULL : malloc(word->bytes);
    other->n_notes_bytes = word->bytes;
    other->save = word->id;
    if (!other->notes) {
        job_end(s->job, -ENOMEM, "out of memory");
        return;
    }
    other->n_left_notes = spread_fetch(s, &(struct spread_fetch){.from = from,
                                                                 .region = REGION_TEXT,
                                                                 .into = other->notes,
                                                                 .bytes = word->bytes,
                                                                 .token = SPREAD_TOKEN_NOTES + from});
}

/* What saves have to tell: host 0 all others, they host 0. The end of a save waits until its notes are fetched: they are
 * kept no longer. */
static bool tell_save(struct spread *s)
{
    const void *notes;
    struct word word;

    for (uint32_t h = 0; h < s->n; h++)
        if (s->others[h].n_left_notes)
            return false;
    if (!save_next_word(s->steps->saves, &word, &notes))
        return false;
    if (word.kind == WORD_RUNS)
        s->ops->expose(s->hosts, REGION_TEXT, notes, word.bytes);
    spread_tell(s, &word);
    return true;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

void spread_on_word_of_end(struct spread *s, uint32_t from, const struct word *word)
{
    if (word->kind == WORD_UPDATED)
        on_updated(s, from, word);
    else if (word->kind == WORD_COVERED)
        note_covered(s, from, word->step);
    else if (word->kind == WORD_DONE)
        note_done(s, from, word->step);
    else if (word->kind == WORD_RUNS)
        fetch_notes(s, from, word);
}

bool spread_end_go_on(struct spread *s)
{
    return tell_save(s) || tell_arrived(s) || tell_covered(s);
}
