/* What a run says before its first step, once the job is open: choices are final then, and defaults can be told from
 * what was asked. on_plan comes last, as it waits for the daemon's answer. Nothing here fails a run but that wait. */
#include "client/daemon/memory.h"
#include "client/member.h"
#include "client/model/adapter.h"
#include "client/model/passed.h"
#include "client/record/change.h"
#include "client/record/checkpoints.h"
#include "client/run/train_state.h"
#include "proto/base/process.h"

#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>

static int tell_plan(struct client_train *t, struct error *err)
{
    const struct client_steps *s = &t->steps;
    struct client_memory memory = {0};
    const struct eps_memory *sides;
    int rc = s->events->on_plan ? client_memory_await(&memory, &t->link, err) : 0;

    if (!rc && client_memory_take(&memory, &sides) == 2)
        s->events->on_plan(s->user, &t->job.choice, &sides[0], &sides[1]);
    return rc;
}

/* "1 of 3 workers has no share: the minibatch has 2 parts (--parts)". The daemon has told of those that are left
 * out. */
static void note_idle(const struct client_train *t)
{
    const uint32_t n = t->n_workers - t->job.n_workers, parts = t->run.options.parts;
    struct error sentence;

    if (t->n_workers <= t->job.n_workers || t->job.n_workers < parts)
        return;
    error_set(&sentence, 0, "%u of %u workers %s no share: the minibatch has %u part%s (--parts)", n, t->n_workers,
              n > 1 ? "have" : "has", parts, parts > 1 ? "s" : "");
    client_train_note(t, sentence.text);
}

/* The model is made again for its sizes alone; if that fails, these notes are left out, and the run goes on. */
static void note_memory(const struct client_train *t)
{
    const struct client_run *run = &t->run;
    const struct eps_train_options options = client_run_job_options(run);
    struct error sentence;
    struct model model;

    const int rc = client_options_model(&model, &run->model.config, &options, NULL);

    if (!rc && client_options_say_fenced(&sentence, &run->asked, &run->options, model.n_trained))
        client_train_note(t, sentence.text);
    if (!rc && run->options.verbose && client_options_say_summed(&sentence, &run->asked, &run->options, &model))
        client_train_note(t, sentence.text);
    model_free(&model);
    if (!rc && client_run_say_norms(&sentence, run))
        client_train_note(t, sentence.text);
}

/* Reports present and earlier changes. */
static void say_changes(const struct client_train *t)
{
    const struct client_run *run = &t->run;
    const bool rebatched = run->options.batch != run->resume.record.options.batch;
    struct error sentence, change;
    uint64_t step;

    for (size_t i = 0; client_change_say(&change, &step, run->changes, i); i++) {
        error_set(&sentence, 0, "changed %.400s%s", change.text,
                  step == run->first_step ? "; the optimizer's moments are kept" : "");
        client_train_note(t, sentence.text);
    }
    if (!rebatched)
        return;
    error_set(&sentence, 0,
              "the batch changes, the data's order does not: %" PRIu64 " windows are done, and step %" PRIu64
              " begins with the next",
              client_run_rows(run, run->first_step), run->first_step + 1);
    client_train_note(t, sentence.text);
}

static void on_unread(void *user, const char *sentence)
{
    client_train_note(user, sentence);
}

static void note_unread(const struct client_train *t)
{
    client_unread_tell(&t->run.data, "--data", on_unread, (void *)(uintptr_t)t);
    client_unread_tell(&t->run.eval_data, "--eval-data", on_unread, (void *)(uintptr_t)t);
}

/* Whether a file of held-out data is one to train on. */
static bool is_trained_on(const struct client_run *run, const char *path)
{
    struct stat held_out, other;
    bool same = false;

    if (strcmp(path, CLIENT_DATA_INPUT) == 0 || stat(path, &held_out))
        return false;
    for (size_t i = 0; i < run->data.n_files && !same; i++)
        same = strcmp(run->data.files[i].path, CLIENT_DATA_INPUT) != 0 && stat(run->data.files[i].path, &other) == 0 &&
               other.st_dev == held_out.st_dev && other.st_ino == held_out.st_ino;
    return same;
}

/* Data that are read, and teach nothing or tell nothing. */
static void note_futile(const struct client_train *t)
{
    const struct client_run *run = &t->run;
    const struct client_data *const parts[] = {&run->data, &run->eval_data};
    const bool copied =
        run->eval_data.n_files > 0 && run->data.n == run->eval_data.n && run->data.hash == run->eval_data.hash;
    struct error sentence;

    for (size_t part = 0; part < 2; part++) {
        for (size_t i = 0; i < parts[part]->n_files; i++) {
            const char *const path = parts[part]->files[i].path;
            error_set(&sentence, 0, "%s %.300s: nothing but white space", part ? "--eval-data" : "--data", path);
            if (parts[part]->files[i].blank)
                client_train_note(t, sentence.text);
            if (part == 0 || (!copied && !is_trained_on(run, path)))
                continue;
            error_set(&sentence, 0,
                      "--eval-data %.300s: it is trained on, too: the held-out loss does not tell what the model makes "
                      "of other data",
                      path);
            client_train_note(t, sentence.text);
        }
    }
}

/* The disk has room for a checkpoint, which was tried, but not for all that may lie there at once. */
static void note_disk(const struct client_train *t)
{
    const struct client_run *run = &t->run;
    const uint64_t each = client_disk_bytes(&t->disk), most = client_disk_most(&run->options),
                   free_bytes = client_disk_free(run->directory_fd);
    struct client_checkpoints standing = {0};
    char all[PROCESS_BYTES_TEXT], room[PROCESS_BYTES_TEXT];
    struct error sentence;

    if (run->options.no_save || client_checkpoints_list(&standing, run->directory_fd, NULL))
        return;
    const uint64_t more = most > standing.n ? most - standing.n : 0;
    client_checkpoints_free(&standing);
    if (more <= 1 || more <= free_bytes / each)
        return;
    const uint64_t bytes = more <= UINT64_MAX / each ? more * each : UINT64_MAX;
    error_set(&sentence, 0,
              "the disk is too small for the run's checkpoints: %" PRIu64
              " more of them take %s, and %s are free: keep "
              "fewer (--keep), or choose --out on another disk",
              more, process_format_bytes(all, bytes), process_format_bytes(room, free_bytes));
    client_train_note(t, sentence.text);
}

static void report_resumed(const struct client_train *t)
{
    const struct client_run *run = &t->run;
    const struct eps_train_options *stored = &run->resume.record.options;
    struct error sentence;

    error_set(&sentence, 0, "continuing from %s after %" PRIu64 " steps", run->resume.path, run->first_step);
    client_train_note(t, sentence.text);
    if (run->latest_mended) {
        error_set(&sentence, 0, "%s/latest names step-%" PRIu64 " now: the run was ended before it could",
                  run->directory, run->first_step);
        client_train_note(t, sentence.text);
    }
    say_changes(t);
    if (run->thawed && run->first_step == run->options.freeze_until) {
        error_set(&sentence, 0,
                  "after step %" PRIu64 ", --freeze-until: %.200s is frozen no more; its moments and counts of updates "
                  "begin with zero",
                  run->first_step, run->options.freeze);
        client_train_note(t, sentence.text);
    }
    if (run->options.steps != stored->steps) {
        const enum eps_schedule schedule = run->options.schedule;
        const bool ends = schedule == EPS_SCHEDULE_COSINE || schedule == EPS_SCHEDULE_LINEAR;
        error_set(&sentence, 0, "the run's end moves from step %" PRIu64 " to %" PRIu64 "%s", stored->steps,
                  run->options.steps, ends ? ", and the learning-rate schedule with it" : "");
        client_train_note(t, sentence.text);
    }
    if (stored->microbatch && run->options.microbatch != stored->microbatch) {
        error_set(&sentence, 0, "microbatches have %u rows, and the run had %u: results agree only to rounding",
                  run->options.microbatch, stored->microbatch);
        client_train_note(t, sentence.text);
    }
}

/* Once in a run's life. */
static void note_passed(struct client_train *t)
{
    char passed[CLIENT_PASSED_BYTES];
    struct error sentence;

    client_passed_print(passed, t->run.asked.resume ? NULL : t->run.model.passed);
    error_set(&sentence, 0, "%s; eps export writes them as they are", passed);
    if (*passed)
        client_train_note(t, sentence.text);
}

static void report_start(struct client_train *t)
{
    const struct client_run *run = &t->run;
    struct error sentence;

    if (t->steps.events->on_start)
        t->steps.events->on_start(t->steps.user, &run->options, t->job.n_parameters);
    if (t->steps.events->on_disk && !run->options.no_save)
        t->steps.events->on_disk(t->steps.user, client_disk_bytes(&t->disk), client_disk_most(&run->options),
                                 client_disk_free(run->directory_fd));
    note_disk(t);
    if (run->preset && run->options.verbose &&
        client_options_say_recipe(&sentence, run->preset, &run->asked, &run->options))
        client_train_note(t, sentence.text);
    if (client_options_say_short(&sentence, &run->asked, &run->options))
        client_train_note(t, sentence.text);
    if (*run->drawn) {
        error_set(&sentence, 0, "drawn by the seed, as the model lacks them: %s", run->drawn);
        client_train_note(t, sentence.text);
    }
    note_passed(t);
    if (*t->form.text)
        client_train_note(t, t->form.text);
    note_memory(t);
    note_idle(t);
    note_unread(t);
    note_futile(t);
    if (run->asked.resume)
        report_resumed(t);
}

int client_train_report(struct client_train *t, struct error *err)
{
    report_start(t);
    return tell_plan(t, err);
}

int client_train_note_adapted(const struct client_train *t, struct error *err)
{
    char note[CLIENT_ADAPTER_NOTE_BYTES];
    const int rc = client_adapter_note(note, &t->run.model.config, err);

    if (*note)
        client_train_note(t, note);
    return rc;
}
