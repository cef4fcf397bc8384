/* What people do with a daemon: a client that trains from the last checkpoint on, and a viewer. */
#include "client/daemon/link.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/safetensors.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/segment.h"
#include "tests/system/world/world.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <xxhash.h>

struct world_result script_result;
bool script_in_job;
char script_error[512];
uint64_t script_pause_ns;

struct client {
    struct client_link link;
    struct segment data;
    uint64_t opened, arrived, covered, done, saved; /* steps; saved: the last */
    bool save_failed, ends;                         /* ends: STOP came */
};

long script_last_step(void)
{
    DIR *dir = opendir(world_wants->directory);
    long last = -1, n;

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        char *end;
        if (strncmp(entry->d_name, "step-", 5) != 0)
            continue;
        n = strtol(entry->d_name + 5, &end, 10);
        if (!*end && n > last)
            last = n;
    }
    if (dir)
        closedir(dir);
    return last;
}

static uint64_t hash_of(int fd)
{
    static char bytes[1 << 20];
    const ssize_t n = pread(fd, bytes, sizeof bytes, 0);

    if (n <= 0 || n == sizeof bytes)
        world_fail("a checkpoint's file cannot be read");
    return XXH3_64bits(bytes, (size_t)n);
}

static int open_in(long step, const char *name)
{
    char path[400];

    snprintf(path, sizeof path, "%s/step-%ld/%s", world_wants->directory, step, name);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        world_fail("%s: %s", path, strerror(errno));
    return fd;
}

/* The first run to save a step says what is right. */
static void check_file(uint64_t *seen, const uint64_t *expected, int fd, const char *what, uint64_t step)
{
    *seen = hash_of(fd);
    close(fd);
    if (expected && *seen != *expected)
        world_fail("%s of step %" PRIu64 " are not those of a run without faults", what, step);
}

void script_check_saved(uint64_t step)
{
    const struct world_result *expected = world_wants->expected;

    if (step == 0)
        return;
    check_file(&script_result.weights[step], expected ? &expected->weights[step] : NULL,
               open_in((long)step, CHECKPOINT_WEIGHTS), "the weights", step);
    check_file(&script_result.moments[step], expected ? &expected->moments[step] : NULL,
               open_in((long)step, CHECKPOINT_MOMENTS), "the moments", step);
}

/* ---- the job ---------------------------------------------------------------------------------------------------- */

static int memory_file(const char *text)
{
    struct error err = {""};
    const int fd = segment_seal("world", text, strlen(text), &err);

    if (fd < 0)
        world_fail("no memory file: %s", err.text);
    return fd;
}

static int open_config(void)
{
    static const char alternating[] = ", \"wide_intermediate_size\": 20, \"sliding_window\": 3, "
                                      "\"window_key_value_heads\": 1, \"window_head_dim\": 6";
    char text[400];

    if (world_is->family)
        snprintf(
            text, sizeof text,
            "{\"model_type\": \"%s\", \"num_attention_heads\": 2, \"num_hidden_layers\": %u, "
            "\"max_position_embeddings\": 16, \"hidden_size\": 8, \"intermediate_size\": 12, \"vocab_size\": %u%s}",
            world_is->family, world_is->n_layers, world_is->vocabulary,
            strcmp(world_is->family, "alternating") == 0 ? alternating : "");
    else
        snprintf(text, sizeof text,
                 "{\"model_type\": \"gpt2\", \"n_head\": 2, \"n_layer\": %u, \"n_positions\": 16, \"n_embd\": 8, "
                 "\"vocab_size\": %u, \"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1%s}",
                 world_is->n_layers, world_is->vocabulary,
                 world_is->n_entries ? ", \"activation_function\": \"relu\"" : "");
    return memory_file(text);
}

static unsigned open_files(int fds[4], long step)
{
    unsigned n = 0;

    fds[n++] = open_config();
    fds[n++] = open(world_wants->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (step >= 0) {
        fds[n++] = open_in(step, CHECKPOINT_WEIGHTS);
        fds[n++] = open_in(step, CHECKPOINT_MOMENTS);
    }
    return n;
}

/* Of a checkpoint's files the moments' has the longer header. */
static uint64_t header_bytes(int moments)
{
    const struct file file = file_own(moments);
    struct error err;
    uint64_t bytes;

    if (safetensors_header_bytes(&bytes, &file, &err))
        world_fail("a checkpoint's moments: %s", err.text);
    return bytes;
}

static struct plan_goal goal_of(const struct world_setting *setting)
{
    return (struct plan_goal){.purpose = PLAN_TRAIN,
                              .fenced = setting->fenced,
                              .checks_memory = setting->checks_memory,
                              .folded = setting->folded,
                              .adamw = setting->adamw,
                              .precision = setting->bf16 ? NUMBER_BF16 : NUMBER_FP32,
                              .batch = setting->batch,
                              .seq = setting->seq,
                              .drop_layers = setting->drop_layers,
                              .chooses = setting->orders,
                              .sparse = {setting->sparse ? 0.4 : 0, 1.25, 2, 0, 0.2},
                              .sampling.share = setting->n_entries ? 0.5 : 0,
                              .entries = setting->n_entries,
                              .n_parts = setting->n_parts};
}

/* The code of the refusal, or of whatever else came. */
static int open_job(struct client *c, struct error *err)
{
    const struct world_setting *setting = world_is;
    const long step = script_last_step();
    struct message m = {
        .kind = MESSAGE_JOB,
        .job = {.goal = goal_of(setting),
                .fresh = step < 0,
                .output = true,
                .resume = step >= 0,
                .deterministic = true,
                .step = step < 0 ? 0 : (uint64_t)step,
                .n_steps = setting->n_steps,
                .seed = WORLD_SEED,
                .microbatch = 1,
                .beta1 = 0.9,
                .beta2 = 0.999,
                .epsilon = 1e-8,
                .weight_decay = 0.01,
                .audit_every = setting->audit_every,
                .clip_norm = setting->fenced ? 0.125 : 0},
    };
    struct message opened;
    int fds[4], fd = -1;
    const unsigned n_fds = open_files(fds, step);

    m.job.header_bytes = step < 0 ? 0 : header_bytes(fds[n_fds - 1]);
    client_link_send_fds(&c->link, &m, fds, n_fds);
    int rc = client_link_expect(&c->link, MESSAGE_JOB_OPENED, &opened, &fd, err);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
    if (rc)
        return rc;
    c->opened = c->arrived = c->covered = c->done = c->saved = m.job.step;
    return segment_attach(&c->data, fd, plan_data_of(&m.job.goal, 0).bytes, SEGMENT_READ_WRITE, err);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static uint32_t token(uint64_t i)
{
    return (uint32_t)((i * 2654435761u >> 7) % world_is->vocabulary);
}

/* The data of a step, in its buffer. */
static void write_data(const struct client *c, uint64_t step)
{
    const size_t n = (size_t)world_is->batch * world_is->seq;
    const struct plan_goal goal = goal_of(world_is);
    const struct plan_data data = plan_data_of(&goal, 0);
    uint32_t *ids = (uint32_t *)((char *)c->data.base + data.buffers[step % 2].at[PLAN_FIELD_IDS]),
             *labels = (uint32_t *)((char *)c->data.base + data.buffers[step % 2].at[PLAN_FIELD_LABELS]),
             *entries = (uint32_t *)((char *)c->data.base + data.buffers[step % 2].at[PLAN_FIELD_ENTRIES]);

    for (size_t i = 0; i < n; i++) {
        ids[i] = token(step * n + i);
        labels[i] = token(step * n + i + 1);
        if (world_is->n_entries)
            entries[i] = (uint32_t)((step * n + 7 * i) % world_is->n_entries);
    }
}

static void open_step(struct client *c)
{
    const size_t n = (size_t)world_is->batch * world_is->seq;
    const uint64_t step = c->opened++;
    struct message m = {.kind = MESSAGE_OPEN_STEP,
                        .open_step = {.step = step,
                                      .buffer = step % 2,
                                      .n_valid = n,
                                      .n_tokens = world_is->seq,
                                      .n_real = n,
                                      .lr = 1e-2 / (double)(1 + step)}};

    model_drop_draw(&m.open_step.drop, world_is->n_layers, world_is->drop_layers, WORLD_SEED, step);
    world_order(&m.open_step.order, step);
    write_data(c, step);
    client_link_send(&c->link, &m);
}

/* Of the rows of the next step, before it. Workers add up their rows, and a job may have more or fewer of them after a
 * restart: the sum differs by rounding. */
static int evaluate(struct client *c, struct error *err)
{
    const uint64_t step = c->opened;
    const struct message m = {.kind = MESSAGE_EVALUATE,
                              .evaluate = {.buffer = step % 2, .n_rows = world_is->batch, .n_tokens = world_is->seq}};
    const double expected = world_wants->expected ? world_wants->expected->evaluations[step] : 0;
    struct message reply;

    write_data(c, step);
    client_link_send(&c->link, &m);
    int rc = client_link_expect(&c->link, MESSAGE_EVALUATED, &reply, NULL, err);
    if (rc)
        return rc;
    script_result.evaluations[step] = reply.evaluated.sum;
    if (world_wants->expected && !(fabs(reply.evaluated.sum - expected) <= 1e-6 * expected))
        world_fail("before step %" PRIu64 " the evaluation is %.17g, not %.17g", step, reply.evaluated.sum, expected);
    return 0;
}

static void save(struct client *c, uint64_t step)
{
    const struct message m = {.kind = MESSAGE_SAVE, .save = {.step = step}};

    c->save_failed = false;
    client_link_send(&c->link, &m);
}

static void on_done(struct client *c, const struct message *m)
{
    const uint64_t step = m->done.step;
    const struct world_result *expected = world_wants->expected;

    if (step != c->done || step >= world_is->n_steps)
        world_fail("DONE of step %" PRIu64 " where %" PRIu64 " was due", step, c->done);
    c->done++;
    if (m->done.skipped || !isfinite(m->done.loss))
        world_fail("step %" PRIu64 " was skipped", step);
    script_result.losses[step] = m->done.loss;
    if (expected && memcmp(&expected->losses[step], &m->done.loss, sizeof m->done.loss) != 0)
        world_fail("the loss of step %" PRIu64 " is %.17g, not %.17g", step, m->done.loss, expected->losses[step]);
}

static void on_aside(void *data, const struct message *m)
{
    struct client *c = data;

    if (m->kind == MESSAGE_SAVED) {
        script_check_saved(m->saved.step);
        c->saved = m->saved.step > c->saved ? m->saved.step : c->saved;
    }
    if (m->kind == MESSAGE_SAVE_FAILED) {
        c->save_failed = true;
        if (world_wants->kept == 0)
            world_fail("step %" PRIu64 " is not saved, and no fault had come: %s", m->save_failed.step,
                       m->save_failed.error.text);
    }
    if (m->kind == MESSAGE_STOP)
        c->ends = true;
}

static int take_message(struct client *c, struct error *err)
{
    const uint64_t pause_ns = script_pause_ns;
    struct message m;

    script_pause_ns = 0;
    if (pause_ns)
        fiber_sleep(pause_ns); /* in a callback, or printing into a full pipe */
    int rc = client_link_next(&c->link, &m, NULL, err);
    if (rc)
        return rc;
    if (m.kind == MESSAGE_COVERED) {
        if (m.covered.step != c->covered++)
            world_fail("COVERED of step %" PRIu64, m.covered.step);
        c->arrived = c->arrived > c->covered ? c->arrived : c->covered;
    } else if (m.kind == MESSAGE_ARRIVED) {
        if (m.arrived.step != c->arrived++ || c->arrived > c->opened)
            world_fail("ARRIVED of step %" PRIu64, m.arrived.step);
    } else if (m.kind == MESSAGE_DONE) {
        on_done(c, &m);
    } else if (client_link_is_aside(&m)) {
        on_aside(c, &m);
    } else {
        world_fail("the daemon sent %s in a step", message_name(m.kind));
    }
    return 0;
}

static int save_last(struct client *c, struct error *err)
{
    int rc = 0;

    save(c, c->opened);
    while (!rc && c->saved < c->opened) {
        rc = take_message(c, err);
        if (!rc && c->save_failed) {
            rc = client_link_pause(&c->link, 1000, err);
            save(c, c->opened);
        }
    }
    return rc;
}

static bool is_evaluated(uint64_t step)
{
    return world_is->evaluates && step % 2 == 0;
}

static bool is_saved(uint64_t step)
{
    return step % world_is->save_every == 0;
}

/* What is due before a step waits for the one before it. Without that, a step opens when the contributions to the one
 * before it have arrived. */
static bool may_open(const struct client *c)
{
    return c->opened < world_is->n_steps && !c->ends && c->opened == c->arrived &&
           (c->opened == c->covered || !is_saved(c->opened)) && (c->opened == c->done || !is_evaluated(c->opened));
}

static int begin_step(struct client *c, struct error *err)
{
    if (is_saved(c->opened) && c->opened > c->saved)
        save(c, c->opened);
    const int rc = is_evaluated(c->opened) ? evaluate(c, err) : 0;
    if (!rc)
        open_step(c);
    return rc;
}

static int train(struct client *c, struct error *err)
{
    int rc = 0;

    while (!rc && (c->done < c->opened || (c->opened < world_is->n_steps && !c->ends))) {
        if (may_open(c))
            rc = begin_step(c, err);
        if (!rc)
            rc = take_message(c, err);
    }
    return rc;
}

static int close_job(struct client *c, struct error *err)
{
    const struct message m = {.kind = MESSAGE_CLOSE};
    struct message reply;

    client_link_send(&c->link, &m);
    return client_link_expect(&c->link, MESSAGE_CLOSE, &reply, NULL, err);
}

static int work(struct client *c, struct error *err)
{
    int rc = client_link_open(&c->link, WORLD_ADDRESS, ROLE_CLIENT, err);

    if (!rc)
        rc = open_job(c, err);
    script_in_job = !rc;
    if (!rc)
        rc = train(c, err);
    if (!rc)
        rc = save_last(c, err);
    return rc ? rc : close_job(c, err);
}

int script_client(void *arg)
{
    struct client c = {.link.on_aside = NULL};
    struct error err = {""};

    (void)arg;
    script_in_job = false;
    script_pause_ns = 0;
    if (script_last_step() == (long)world_is->n_steps)
        return 0;
    int rc = client_link_init(&c.link, &err);
    c.link.on_aside = on_aside;
    c.link.aside_data = &c;
    if (!rc)
        rc = work(&c, &err);
    if (rc)
        world_say("says: %s", err.text);
    snprintf(script_error, sizeof script_error, "%s", err.text);
    segment_close(&c.data);
    client_link_free(&c.link);
    return rc || c.ends ? 1 : 0;
}

/* ---- others --------------------------------------------------------------------------------------------------- */

/* Asks for a job of its own, and closes it at once if it gets it. */
int script_rival(void *arg)
{
    struct client c = {.ends = false};
    struct error err = {""};

    (void)arg;
    if (client_link_init(&c.link, &err))
        return 1;
    c.link.on_aside = on_aside;
    c.link.aside_data = &c;
    int rc = client_link_open(&c.link, WORLD_ADDRESS, ROLE_CLIENT, &err);
    if (!rc)
        rc = open_job(&c, &err);
    if (!rc)
        rc = close_job(&c, &err);
    if (rc)
        world_say("says: %s", err.text);
    segment_close(&c.data);
    client_link_free(&c.link);
    return rc ? 1 : 0;
}

static int ask(struct client_link *link, const struct message *m, struct error *err)
{
    struct message reply;

    client_link_send(link, m);
    return client_link_next(link, &reply, NULL, err);
}

int script_viewer(void *arg)
{
    static const struct message status = {.kind = MESSAGE_STATUS}, units = {.kind = MESSAGE_UNITS},
                                recent = {.kind = MESSAGE_RECENT},
                                checkpoint = {.kind = MESSAGE_SAVE, .save.step = MESSAGE_NO_STEP},
                                snapshot = {.kind = MESSAGE_SNAPSHOT};
    struct client_link link;
    struct error err = {""};
    struct message reply;
    uint64_t hash;
    int fds[3];

    (void)arg;
    if (client_link_init(&link, &err))
        return 1;
    int rc = client_link_open(&link, world_address(process_running->host), ROLE_VIEWER, &err);
    if (!rc)
        rc = ask(&link, &status, &err);
    if (!rc)
        rc = ask(&link, &units, &err);
    if (!rc)
        rc = ask(&link, &recent, &err);
    if (!rc)
        rc = ask(&link, &checkpoint, &err);
    if (!rc) {
        for (unsigned i = 0; i < 3; i++)
            fds[i] = memory_file("");
        client_link_send_fds(&link, &snapshot, fds, 3);
        rc = client_link_next(&link, &reply, NULL, &err);
        if (!rc && reply.saved.step > 0 && world_wants->expected)
            check_file(&hash, &world_wants->expected->weights[reply.saved.step], dup(fds[0]), "a snapshot's weights",
                       reply.saved.step);
    }
    if (rc)
        world_say("says: %s", err.text);
    client_link_free(&link);
    return rc ? 1 : 0;
}
