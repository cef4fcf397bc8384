/* A checkpoint that several hosts write: their messages to each other. */
#include "eps/save/save_state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOTES = 1024 }; /* copied at a time */

static uint32_t host_of(const struct save *s)
{
    return s->saves->job->peers->host;
}

static struct save *save_hosts_find(const struct saves *saves, uint32_t id)
{
    struct save *s = saves->first;

    while (s && (!s->is_sharded || s->reader != id))
        s = s->next;
    return s;
}

/* ---- notes ------------------------------------------------------------------------------------------------------ */

void save_free_notes(struct save *s)
{
    while (s->notes) {
        struct save_notes *next = s->notes->next;
        free(s->notes->notes);
        free(s->notes);
        s->notes = next;
    }
}

static int keep_notes(struct save *s, struct store_files_note *notes, size_t n)
{
    struct save_notes *kept = malloc(sizeof *kept);

    if (!kept) {
        free(notes);
        return -ENOMEM;
    }
    *kept = (struct save_notes){s->notes, notes, n};
    s->notes = kept;
    s->n_notes++;
    return 0;
}

/* This host's own: they stay until host 0 has read them. */
static int take_notes(struct save *s, struct error *err)
{
    struct store_files_note *notes = NULL, some[NOTES];
    size_t n = 0;

    for (size_t more; (more = capture_notes(some, NOTES, &s->capture, n)) > 0; n += more) {
        struct store_files_note *longer = realloc(notes, (n + more) * sizeof *notes);
        if (!longer) {
            free(notes);
            return error_memory(err);
        }
        notes = longer;
        memcpy(notes + n, some, more * sizeof *notes);
    }
    return keep_notes(s, notes, n) ? error_memory(err) : 0;
}

int save_do_notes(struct save *s, struct error *err)
{
    int rc = 0;

    for (const struct save_notes *x = s->notes; !rc && x; x = x->next)
        rc = capture_add(&s->capture, x->notes, x->n, err);
    if (!rc)
        rc = capture_finish(&s->capture, &s->loss_scale, err);
    return rc || host_of(s) == 0 ? rc : take_notes(s, err);
}

bool save_has_notes(const struct save *s)
{
    return !s->is_sharded || host_of(s) > 0 || s->n_notes == s->saves->job->peers->n_hosts - 1;
}

bool save_wants_notes(const struct saves *saves, uint32_t id)
{
    const struct save *s = save_hosts_find(saves, id);

    return s && !s->over;
}

bool save_may_have_notes(const struct saves *saves, uint64_t n_bytes)
{
    const uint64_t n = n_bytes / sizeof(struct store_files_note);

    return n > 0 && n_bytes % sizeof(struct store_files_note) == 0 &&
           n <= store_files_most_notes(saves->job->store.files);
}

void save_on_notes(struct saves *saves, uint32_t id, void *notes, uint64_t n_bytes)
{
    struct save *s = save_hosts_find(saves, id);
    struct error err;

    if (!s || s->rc)
        free(notes);
    else if (keep_notes(s, notes, n_bytes / sizeof(struct store_files_note)))
        save_give_up(s, -ENOMEM, (error_memory(&err), &err));
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static bool save_hosts_is_due(struct save *s, enum save_announced what, bool is_so)
{
    if (!is_so || s->told & what)
        return false;
    s->told |= what;
    return true;
}

static bool next_of(struct save *s, struct host_message *message, const void **notes, bool may_end)
{
    const bool leads = host_of(s) == 0;

    *message = (struct host_message){.id = s->reader, .step = s->step, .code = s->rc};
    if (leads && save_hosts_is_due(s, SAVE_TOLD_BEGIN, true)) {
        message->kind = HOST_SAVE;
    } else if (leads && save_hosts_is_due(s, SAVE_TOLD_FILES, s->has_files && !s->rc)) {
        message->kind = HOST_FILES;
    } else if (!leads && save_hosts_is_due(s, SAVE_TOLD_RUNS, s->awaits == SAVE_FOR_PLACE && s->notes != NULL)) {
        message->kind = HOST_RUNS;
        message->bytes = s->notes->n * sizeof *s->notes->notes;
        *notes = s->notes->notes;
    } else if (save_hosts_is_due(s, SAVE_TOLD_END, s->over && may_end)) {
        message->kind = leads ? HOST_SAVED : HOST_FAILED;
        snprintf(message->text, sizeof message->text, "%s", s->rc ? s->error.text : "");
        return leads || s->rc;
    } else {
        return false;
    }
    return true;
}

bool save_next_word(struct saves *saves, struct host_message *message, const void **notes, bool may_end)
{
    for (struct save *s = saves->first; s; s = s->next)
        if (s->is_sharded && next_of(s, message, notes, may_end))
            return true;
    return false;
}

/* Its files are made by host 0, which says so. */
static void save_hosts_begin(struct saves *saves, const struct host_message *message)
{
    struct error err;
    struct save *s;
    const int rc = save_add(&s, saves, true, &err);

    if (rc) {
        job_end(saves->job, rc, "step %" PRIu64 " cannot be saved: %s", message->step, err.text);
        return;
    }
    s->reader = saves->n_readers = message->id;
    s->awaits = SAVE_FOR_FILES;
    if (s->step != message->step)
        job_end(saves->job, -EPROTO, "host 0 saves step %" PRIu64 ", and here is step %" PRIu64, message->step,
                s->step);
    else
        save_begin(s);
}

static void save_hosts_give_up(struct save *s, int rc, const char *format, uint32_t host, const char *why)
{
    struct error err;

    error_set(&err, rc, format, host, why);
    s->awaits = SAVE_FOR_NOTHING;
    save_give_up(s, rc, &err);
    if (!s->begun && !s->over)
        save_conclude(s);
}

void save_on_word(struct saves *saves, uint32_t from, const struct host_message *message)
{
    struct save *s = save_hosts_find(saves, message->id);

    if (message->kind == HOST_SAVE) {
        save_hosts_begin(saves, message);
    } else if (!s || s->over) { /* it has failed here before */
        return;
    } else if (message->kind == HOST_FILES && s->awaits == SAVE_FOR_FILES) {
        s->awaits = SAVE_FOR_NOTHING;
    } else if (message->kind == HOST_SAVED && message->code == 0) {
        s->awaits = SAVE_FOR_NOTHING;
        s->is_saved = true;
    } else if (message->code) {
        save_hosts_give_up(s, message->code, "host %u: %.400s", from, message->text);
    }
}
