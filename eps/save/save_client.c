/* Checkpoints of another user's job: the client opens their files and puts them in place, since the daemon would do both
 * with its own user's rights (eps/rights.c). What is between, the units, is written as any other's (eps/save/save.c).
 *
 * One is open at a time. It waits for nothing that a later one holds: what its version still lacks are updates of a step
 * whose contributions are all folded. */
#include "eps/save/save_state.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

bool save_needs_files(const struct save *s)
{
    return s->by_client && !s->begun && !s->over && !s->rc && !save_is_other_open(s);
}

void save_ask_client(struct save *s, enum message_output what)
{
    const struct job *job = &s->daemon->job;
    const struct message m = {.kind = MESSAGE_OUTPUT, .output = {.id = s->reader, .step = s->step, .what = what}};

    if (what != OUTPUT_DROP) {
        s->begun = true;
        s->awaits = what == OUTPUT_OPEN ? SAVE_FOR_FILES : SAVE_FOR_PLACE;
    }
    if (job->client) /* else the job is ending, and this with it */
        session_send(job->client->session, &m);
}

static struct save *find_save(const struct job *job, uint32_t id)
{
    struct save *s = job->saves;

    while (s && (!s->by_client || s->reader != id))
        s = s->next;
    return s;
}

static int take_files(struct save *s, const int *fds, unsigned n_fds, struct error *err)
{
    int rc = n_fds > EPS_CAPTURE_SMALL && n_fds <= EPS_CAPTURE_MOST
                 ? rights_files(fds, n_fds, err)
                 : error_set(err, -EINVAL, "a checkpoint has %d to %d files, and %u came", EPS_CAPTURE_SMALL + 1,
                             EPS_CAPTURE_MOST, n_fds);

    if (rc)
        return rc;
    memcpy(s->options.files, fds, n_fds * sizeof *fds);
    s->options.n_files = n_fds;
    return 0;
}

void save_on_output_done(struct daemon *d, const struct message *m, const int *fds, unsigned n_fds)
{
    struct save *s = find_save(&d->job, m->output_done.id);
    struct error err = m->output_done.error;
    int rc = m->output_done.code;
    bool taken = false;

    if (s && !s->rc && s->awaits == SAVE_FOR_NOTHING) {
        job_close_fds(fds, n_fds);
        peer_refuse(d->job.client, "a checkpoint's files that nobody asked for");
        return;
    }
    if (s && !s->rc) {
        const bool placed = s->awaits == SAVE_FOR_PLACE;
        s->awaits = SAVE_FOR_NOTHING;
        s->begun = !placed && !rc; /* what failed, the client has removed */
        if (!rc && !placed)
            rc = take_files(s, fds, n_fds, &err);
        taken = !rc && !placed;
        if (rc)
            save_give_up(s, rc, &err);
        if (!s->begun)
            save_conclude(s);
    }
    if (!taken) /* of one that was given up meanwhile, too */
        job_close_fds(fds, n_fds);
    save_release(d);
    save_pump(d);
    job_finish(d);
}
