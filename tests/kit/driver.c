#include "tests/kit/driver.h"
#include "tests/kit/processes.h"

#include "proto/model/file/checkpoint.h"
#include "proto/model/file/safetensors.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/files.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As no program of ours would write it: what is saved is a copy, for it says fp32 already, not a rewriting. */
const char driver_config[] = "\n{  \"model_type\":\"gpt2\",\t\"n_head\": 2, \"n_layer\": 2,\r\n"
                             "\"n_positions\": 32, \"n_embd\": 16, \"vocab_size\": 256,\n"
                             "\"torch_dtype\" :\"float32\", \"bos_token_id\": null, \"eos_token_id\":null, "
                             "\"embd_pdrop\": 0.1, \"attn_pdrop\": 0.100, \"resid_pdrop\": 1e-1}\n\n ";

static int text_file(const char *text, size_t n)
{
    const int fd = segment_seal("driver", text, n, NULL);

    ck_assert_int_ge(fd, 0);
    return fd;
}

static int open_config(const struct driver_options *options)
{
    char text[400];
    int n;

    if (options->entries) {
        n = snprintf(text, sizeof text,
                     "{\"model_type\": \"gpt2\", \"n_head\": 2, \"n_layer\": 2, \"n_positions\": 32, \"n_embd\": %u, "
                     "\"vocab_size\": %u, \"activation_function\": \"relu\", \"embd_pdrop\": 0, \"attn_pdrop\": 0, "
                     "\"resid_pdrop\": 0}",
                     options->vocabulary ? 512 : 16, options->vocabulary ? options->vocabulary : 256);
        return text_file(text, (size_t)n);
    }
    if (!options->n_layers && !options->vocabulary)
        return text_file(driver_config, sizeof driver_config - 1);
    n = snprintf(text, sizeof text,
                 "{\"model_type\": \"gpt2\", \"n_head\": 2, \"n_layer\": %u, \"n_positions\": 32, \"n_embd\": 128, "
                 "\"vocab_size\": %u, \"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1}",
                 options->n_layers ? options->n_layers : 2, options->vocabulary ? options->vocabulary : 256);
    return text_file(text, (size_t)n);
}

static int open_in(const char *directory, const char *name)
{
    char path[400];

    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_msg(fd >= 0, "%s: %s", path, strerror(errno));
    return fd;
}

static unsigned collect_files(int fds[5], const struct driver_options *options)
{
    unsigned n = 0;

    fds[n++] = open_config(options);
    if (options->out)
        ck_assert_int_ge(fds[n++] = open(options->out, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0);
    if (options->side)
        fds[n++] = text_file(options->side, strlen(options->side));
    if (options->resume) {
        fds[n++] = open_in(options->resume, CHECKPOINT_WEIGHTS);
        fds[n++] = open_in(options->resume, CHECKPOINT_MOMENTS);
    }
    return n;
}

void driver_attach(struct client_link *link, const char *name, enum message_role role)
{
    char directory[300];
    struct error err = {""};

    ck_assert_msg(session_directory(directory, sizeof directory, name, &err) == 0, "%s", err.text);
    ck_assert_msg(client_link_init(link, &err) == 0, "%s", err.text);
    ck_assert_msg(client_link_open(link, directory, role, &err) == 0, "%s", err.text);
}

/* What may come before JOB_OPENED. */
static void on_early(void *data, const struct message *m)
{
    struct driver *driver = data;

    ck_assert_msg(m->kind == MESSAGE_LOST, "%s", message_name(m->kind));
    driver->n_lost++;
    driver->lost = *m;
}

void driver_open_mute(struct driver *driver)
{
    struct message m = {.kind = MESSAGE_FILES};
    struct segment memory;
    struct error err = {""};
    int fds[CLIENT_MAIL_FDS];
    unsigned n_fds;

    client_link_send(&driver->link, &m);
    ck_assert_int_eq(client_link_expect_fds(&driver->link, MESSAGE_FILES, &m, fds, &n_fds, &err), 0);
    ck_assert_uint_eq(n_fds, FILES_SENT);
    ck_assert_int_eq(segment_attach(&memory, fds[1], FILES_BYTES, SEGMENT_READ_WRITE, &err), 0);
    memcpy(memory.base, driver_config, sizeof driver_config - 1);
    segment_close(&memory);
    driver->mute_socket = fds[0];
}

uint64_t driver_header_bytes(const int *fds, unsigned n_fds)
{
    uint64_t most = 1, bytes;

    for (unsigned i = n_fds - 2; i < n_fds; i++) {
        const struct file file = file_own(fds[i]);
        if (safetensors_header_bytes(&bytes, &file, NULL) == 0 && bytes > most)
            most = bytes;
    }
    return most;
}

static void send_job(struct driver *driver, struct message *m, const struct driver_options *options, struct error *err)
{
    const char *side = options->side ? options->side : "";
    uint32_t first;

    driver->n_fds = collect_files(driver->fds, options);
    if (options->resume)
        m->job.header_bytes = options->headers ? options->headers : driver_header_bytes(driver->fds, driver->n_fds);
    if (!client_files_are_needed(&driver->link) || options->out) {
        client_link_send_fds(&driver->link, m, driver->fds, driver->n_fds);
        return;
    }
    if (options->mute) {
        driver_open_mute(driver);
    } else {
        ck_assert_msg(client_files_open(&driver->files, &driver->link, -1, err) == 0, "%s", err->text);
        ck_assert_int_eq(client_files_add(&first, driver->files, driver->fds + 1, driver->n_fds - 1, err), 0);
        client_files_put_config(driver->files, driver_config, sizeof driver_config - 1);
    }
    m->job.config_bytes = sizeof driver_config - 1;
    m->job.side_bytes = (uint32_t)strlen(side);
    m->job.n_files = options->resume ? 2 : 0;
    client_link_send(&driver->link, m);
}

static void close_files(struct driver *driver)
{
    client_files_close(driver->files);
    for (unsigned i = 0; i < driver->n_fds; i++)
        close(driver->fds[i]);
    driver->files = NULL;
    driver->n_fds = 0;
}

static struct plan_data layout_of(const struct driver_options *options)
{
    return plan_data_of(&(struct plan_goal){.batch = DRIVER_BATCH, .seq = DRIVER_SEQ, .entries = options->entries}, 0);
}

int driver_try(struct driver *driver, const char *name, const struct driver_options *options, struct error *err)
{
    struct message m = {
        .kind = MESSAGE_JOB,
        .job = {.goal = {.purpose = options->only_looks ? PLAN_EVALUATE : PLAN_TRAIN,
                         .precision = options->fp16   ? NUMBER_FP16
                                      : options->bf16 ? NUMBER_BF16
                                                      : NUMBER_FP32,
                         .no_master = options->no_master,
                         .checks_memory = options->checks_memory,
                         .sums = options->bf16_sums ? NUMBER_BF16 : NUMBER_FP32,
                         .fenced = options->fenced || options->clip_norm > 0,
                         .folded = options->folded,
                         .adamw = options->adamw,
                         .sgd = options->sgd,
                         .nesterov = options->nesterov,
                         .momentum = options->momentum,
                         .batch = DRIVER_BATCH,
                         .seq = DRIVER_SEQ,
                         .sampling.share = options->entries ? 0.5 : 0,
                         .entries = options->entries,
                         .n_parts = options->n_parts ? options->n_parts : 1},
                .fresh = !options->resume,
                .output = options->out != NULL,
                .files = options->files,
                .side = options->side != NULL,
                .resume = options->resume != NULL,
                .deterministic = true,
                .step = options->step,
                .n_steps = 100,
                .seed = 5,
                .microbatch = options->microbatch,
                .beta1 = 0.9,
                .beta2 = 0.999,
                .epsilon = 1e-8,
                .weight_decay = 0.01,
                .audit_every = options->audit_every,
                .clip_norm = options->clip_norm,
                .clip_update = options->clip_update},
    };
    int fd = -1;

    *driver = (struct driver){.options = *options, .opened = options->step};
    driver->arrived = driver->covered = driver->done = options->step;
    driver_attach(&driver->link, name, ROLE_CLIENT);
    driver->link.on_aside = on_early;
    driver->link.aside_data = driver;
    send_job(driver, &m, options, err);
    int rc = client_link_expect(&driver->link, MESSAGE_JOB_OPENED, &driver->opened_with, &fd, err);
    driver->link.on_aside = NULL;
    if (!driver->files)
        close_files(driver);
    if (!rc)
        rc = segment_attach(&driver->data, fd,
                            options->entries ? driver->opened_with.job_opened.data_bytes : layout_of(options).bytes,
                            SEGMENT_READ_WRITE, err);
    return rc;
}

void driver_open(struct driver *driver, const char *name, const struct driver_options *options)
{
    struct error err = {""};

    ck_assert_msg(driver_try(driver, name, options, &err) == 0, "%s", err.text);
}

void driver_leave(struct driver *driver)
{
    segment_close(&driver->data);
    close_files(driver);
    client_link_free(&driver->link);
}

void driver_close(struct driver *driver)
{
    const struct message close_message = {.kind = MESSAGE_CLOSE};
    struct message m;

    client_link_send(&driver->link, &close_message);
    do
        driver_next(&driver->link, &m);
    while (m.kind == MESSAGE_SAVED || m.kind == MESSAGE_SAVE_FAILED || m.kind == MESSAGE_STOP ||
           m.kind == MESSAGE_LOST || m.kind == MESSAGE_ARRIVED || m.kind == MESSAGE_COVERED || m.kind == MESSAGE_DONE);
    ck_assert_str_eq(message_name(m.kind), "CLOSE");
    driver_leave(driver);
}

void driver_begin(struct driver *driver)
{
    const size_t n = (size_t)DRIVER_BATCH * DRIVER_SEQ;
    const uint64_t step = driver->opened++;
    const struct plan_data data = layout_of(&driver->options);
    char *const base = driver->data.base;
    uint32_t *const ids = (uint32_t *)(void *)(base + data.buffers[step % 2].at[PLAN_FIELD_IDS]),
                    *const entries = (uint32_t *)(void *)(base + data.buffers[step % 2].at[PLAN_FIELD_ENTRIES]);
    const struct message m = {.kind = MESSAGE_OPEN_STEP,
                              .open_step = {.step = step,
                                            .buffer = step % 2,
                                            .n_valid = n,
                                            .n_tokens = DRIVER_SEQ,
                                            .n_real = n - DRIVER_PADDING,
                                            .lr = 1e-2 / (double)(1 + step)}};

    for (size_t i = 0; i < n; i++) {
        ids[i] = processes_token(step * n + i);
        ids[n + i] = processes_token(step * n + i + 1);
        if (driver->options.entries)
            entries[i] = driver->options.entry(step, (uint32_t)i);
    }
    client_link_send(&driver->link, &m);
}

void driver_next(struct client_link *link, struct message *m)
{
    struct error err = {""};
    int rc = client_link_next(link, m, NULL, &err);

    ck_assert_msg(rc == 0 || m->kind == MESSAGE_REFUSED || m->kind == MESSAGE_FAILED, "%s", err.text);
}

void driver_turn(struct driver *driver)
{
    struct message m = {0};

    driver_next(&driver->link, &m);
    if (m.kind == MESSAGE_ARRIVED) {
        ck_assert_uint_eq(driver->arrived, driver->covered); /* before COVERED, and after the step before */
        ck_assert_uint_eq(m.arrived.step, driver->arrived++);
    } else if (m.kind == MESSAGE_COVERED) {
        ck_assert_uint_eq(m.covered.step, driver->covered++);
    } else if (m.kind == MESSAGE_DONE) {
        ck_assert_uint_eq(m.done.step, driver->done++);
        driver->last_done = m;
    } else if (m.kind == MESSAGE_SAVED) {
        ck_assert_uint_lt(driver->n_saved, DRIVER_MAX_SAVES);
        driver->saved[driver->n_saved++] = m.saved.step;
    } else if (m.kind == MESSAGE_SAVE_FAILED) {
        driver->n_failed++;
        driver->failed = m;
    } else if (m.kind == MESSAGE_LOST) {
        driver->n_lost++;
        driver->lost = m;
    } else {
        ck_assert_msg(m.kind == MESSAGE_STOP, "%s: %s", message_name(m.kind),
                      m.kind == MESSAGE_FAILED ? m.failed.error.text : "");
        driver->n_stops++;
    }
}

void driver_await_arrived(struct driver *driver, uint64_t n_steps)
{
    while (driver->arrived < n_steps)
        driver_turn(driver);
}

void driver_await_covered(struct driver *driver, uint64_t n_steps)
{
    while (driver->covered < n_steps)
        driver_turn(driver);
}

void driver_await_done(struct driver *driver, uint64_t n_steps)
{
    while (driver->done < n_steps)
        driver_turn(driver);
}

void driver_await_saves(struct driver *driver, unsigned n)
{
    while (driver->n_saved + driver->n_failed < n)
        driver_turn(driver);
}

void driver_train(struct driver *driver, uint64_t n_steps)
{
    while (driver->opened < n_steps) {
        driver_await_covered(driver, driver->opened);
        driver_begin(driver);
    }
    driver_await_done(driver, n_steps);
}

void driver_ask_save(struct driver *driver, uint64_t step)
{
    const struct message m = {.kind = MESSAGE_SAVE, .save = {.step = step}};

    client_link_send(&driver->link, &m);
}

void driver_save(struct driver *driver, uint64_t step)
{
    const unsigned n = driver->n_saved + driver->n_failed;

    driver_train(driver, step);
    driver_ask_save(driver, step);
    driver_await_saves(driver, n + 1);
}

void driver_look(struct client_link *link, const char *name)
{
    driver_attach(link, name, ROLE_VIEWER);
}

static int serve(void *viewer, struct error *err)
{
    (void)err;
    uv_run(&((struct client_link *)viewer)->loop, UV_RUN_NOWAIT);
    return 0;
}

void driver_serve(struct driver *driver, struct client_link *viewer)
{
    driver->link.watches[1] = (struct client_watch){.ask = serve, .data = viewer};
}

void driver_status(struct client_link *link, struct message *status)
{
    const struct message m = {.kind = MESSAGE_STATUS};

    client_link_send(link, &m);
    driver_next(link, status);
    ck_assert_str_eq(message_name(status->kind), "STATUS_REPLY");
}

void driver_ask(struct client_link *link, struct message *answer)
{
    const struct message m = {.kind = MESSAGE_SAVE, .save = {.step = MESSAGE_NO_STEP}};

    client_link_send(link, &m);
    driver_next(link, answer);
}
