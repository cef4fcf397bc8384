#include "client/ask/forward.h"
#include "proto/model/file/model_files.h"

#include "tests/kit/command.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct stage st; /* each test is a process of its own */

static const char config[] = "{\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_head\": 2, \"n_embd\": 8, \"n_inner\": 32,"
                             "\"n_positions\": 5, \"vocab_size\": 17}";

#define SIDE "{\"options\": {\"precision\": \"bf16\"}, \"files\": {\"merges.txt\": \"a b\\n\"}}"

/* What the daemon, another process, writes and does when it is asked for a snapshot, and what becomes of that. */
static const struct course {
    const char *config, *weights, *side; /* weights: NULL for good ones */
    enum { SAVE, REFUSE, SILENT, DIE } does;
    int rc;
    const char *sentence; /* its beginning; of what succeeds, merges.txt or NULL */
} courses[] = {
    {config, NULL, SIDE, SAVE, 0, "a b\n"},
    {config, NULL, "", SAVE, 0, NULL},
    {"{", NULL, SIDE, SAVE, -EINVAL, "gpt2 2x8: "},
    {config, "half of it", SIDE, SAVE, -EINVAL, "gpt2 2x8: not a safetensors file"},
    {config, NULL, "{\"files\":", SAVE, -EPROTO, "the daemon's side file: line 1: "},
    {config, NULL, "{\"files\": {\"../x\": \"\"}}", SAVE, -EINVAL, "gpt2 2x8: ../x is not one of a model's side files"},
    {config, NULL, SIDE, REFUSE, -ENODATA, "no model is trained here: begin with eps train"},
    {config, NULL, SIDE, SILENT, -EINTR, "interrupted"},
    {config, NULL, SIDE, DIE, -EIO, "the daemon is gone: killed"},
};
static const struct course *course;

static void put(int fd, const char *text)
{
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text)); /* which moves the shared position */
}

static void write_snapshot(const int *fds)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, true, 0);
    if (course->weights)
        put(fds[0], course->weights);
    else
        store_fixture_write(&f.store, fds[0], -1, NULL);
    put(fds[1], course->config);
    put(fds[2], course->side);
    store_fixture_close(&f);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    const struct message refused = {.kind = MESSAGE_REFUSED,
                                    .refused = {-ENODATA, {"no model is trained here: begin with eps train"}}};
    const struct message saved = {.kind = MESSAGE_SAVED, .saved.step = 7};
    struct message status = {.kind = MESSAGE_STATUS_REPLY};

    if (m->kind == MESSAGE_STATUS) {
        strcpy(status.status_reply.model, "gpt2 2x8");
        session_send(s, &status);
        return;
    }
    ck_assert_int_eq(m->kind, MESSAGE_SNAPSHOT);
    ck_assert_uint_eq(n_fds, 3);
    if (course->does == DIE)
        raise(SIGKILL);
    if (course->does == SAVE)
        write_snapshot(fds);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
    if (course->does != SILENT)
        session_send(s, course->does == SAVE ? &saved : &refused);
}

static int n_asked;

static int give_up(void *data, struct error *err)
{
    (void)data;
    return ++n_asked < 5 ? 0 : error_set(err, -EINTR, "interrupted");
}

static int fetch(struct client_model *model, uint64_t *step, struct error *err)
{
    const struct client_watch watch = {give_up, NULL};

    const pid_t pid = stage_begin_daemon(&st, on_message);
    const struct client_snapshot snapshot = {.address = st.directory, .watch = course->does == SILENT ? &watch : NULL};
    int rc = client_snapshot_fetch(model, step, &snapshot, err);
    stage_end_daemon(&st, pid);
    return rc;
}

SUITE_TIMEOUT(60)

/* Its weights: test_export. */
TEST_EACH(a_snapshot_is_a_model_like_any_other_or_what_goes_wrong_is_said_and_nothing_stays_open, COUNT(courses))
{
    struct client_model model;
    struct error err = {""};
    uint64_t step = 0;
    size_t n;

    course = &courses[_i];
    const int next = dup(STDIN_FILENO);
    close(next);
    ck_assert_msg(fetch(&model, &step, &err) == course->rc, "%s", err.text);
    if (course->rc == 0) {
        ck_assert_str_eq(model.name, "gpt2 2x8");
        ck_assert(step == 7 && model.config.width == 8 && model.n_weights == 1);
        ck_assert_int_eq(lseek(model.config_fd, 0, SEEK_CUR), 0);
        ck_assert_pstr_eq(model.side ? model_files_find(model.side, "merges.txt", &n) : NULL, course->sentence);
        ck_assert_int_eq(model.precision, course->sentence ? NUMBER_BF16 : NUMBER_FP32);
    } else {
        ck_assert_msg(strncmp(err.text, course->sentence, strlen(course->sentence)) == 0, "%s", err.text);
        ck_assert_int_eq(model.config_fd, -1);
        ck_assert_uint_eq(model.n_weights, 0);
    }
    client_model_close(&model);
    for (int fd = next; fd < 256; fd++) { /* what is open is not one of the three files, which have no name */
        struct stat s;
        if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode))
            ck_assert_uint_gt(s.st_nlink, 0);
    }
}
