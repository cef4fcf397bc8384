#include "tests/client/run/played_daemon.h"

#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct played_daemon played = {.holds = PLAYED_NEVER,
                               .skips_from = PLAYED_NEVER,
                               .stops_at = PLAYED_NEVER,
                               .answers_twice = PLAYED_NEVER};

static unsigned n_evaluated, n_saves;
static uint64_t late; /* 0: no SAVED is owed */

static void say(const char *format, uint64_t n)
{
    FILE *log = fopen("log", "a");

    ck_assert_ptr_nonnull(log);
    fprintf(log, format, (uintmax_t)n);
    fclose(log);
}

static void send_saved(struct session *s, uint64_t step)
{
    const struct message saved = {.kind = MESSAGE_SAVED, .saved.step = step};
    const char *path = print("out/step-%ju", (uintmax_t)step);

    mkdir(path, 0700); /* or it is there */
    outputs_write(path, "training.json", "{}");
    unlink("out/latest");
    ck_assert_int_eq(symlink(print("step-%ju", (uintmax_t)step), "out/latest"), 0);
    session_send(s, &saved);
}

static void on_save(struct session *s, uint64_t step)
{
    const struct message full = {.kind = MESSAGE_SAVE_FAILED,
                                 .save_failed = {.step = step, .code = -ENOSPC, .error = {"no room"}}};

    if (step == MESSAGE_NO_STEP) {
        say("save any|", 0);
        step = played.holds;
    } else {
        say("save %ju|", step);
    }
    n_saves++;
    if (n_saves <= played.n_full)
        session_send(s, &full);
    else if (played.saves_late && n_saves == 1)
        late = step;
    else
        send_saved(s, step);
}

static void on_evaluate(struct session *s, const struct message *m)
{
    const uint64_t n_labels = (uint64_t)m->evaluate.n_rows * PLAYED_SEQ;
    const double loss = n_evaluated < played.n_losses ? played.losses[n_evaluated] : 1;
    const struct message reply = {.kind = MESSAGE_EVALUATED, .evaluated.sum = loss * (double)n_labels};

    say("evaluate|", 0);
    if (++n_evaluated == 3 && late > 0) {
        say("(saved %ju)|", late);
        send_saved(s, late);
    }
    session_send(s, &reply);
}

static void on_open(struct session *s, uint64_t step)
{
    const bool skipped = step >= played.skips_from;
    const struct message done = {.kind = MESSAGE_DONE,
                                 .done = {.step = step,
                                          .loss = skipped ? NAN : 10 - (double)step,
                                          .grad_norm = skipped ? NAN : 1,
                                          .skipped = skipped}};

    say("open %ju|", step);
    if (step == played.holds)
        return;
    session_send(s, &(struct message){.kind = MESSAGE_ARRIVED, .arrived.step = step});
    session_send(s, &(struct message){.kind = MESSAGE_COVERED, .covered.step = step});
    if (step == played.stops_at)
        session_send(s, &(struct message){.kind = MESSAGE_STOP});
    session_send(s, &done);
    if (step == played.answers_twice)
        session_send(s, &done);
}

void played_on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    (void)fds, (void)n_fds;
    if (m->kind == MESSAGE_OPEN_STEP)
        on_open(s, m->open_step.step);
    if (m->kind == MESSAGE_EVALUATE)
        on_evaluate(s, m);
    if (m->kind == MESSAGE_SAVE)
        on_save(s, m->save.step);
    if (m->kind == MESSAGE_MEMORY)
        session_send(s, &(struct message){.kind = MESSAGE_MEMORY_REPLY, .memory_reply.last = true});
    if (m->kind == MESSAGE_STATUS)
        session_send(s, &(struct message){.kind = MESSAGE_STATUS_REPLY, .status_reply.waits = true});
    if (m->kind == MESSAGE_TAKE)
        session_send(s, &played.taken);
}
