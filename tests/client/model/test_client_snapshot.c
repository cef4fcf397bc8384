#include "client/ask/forward.h"
#include "client/text/side.h"

#include "tests/kit/command.h"
#include "tests/kit/stage.h"
#include "tests/kit/store_fixture.h"
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

/* What the daemon, another process, does when it is asked for a snapshot. */
enum course { GOOD, NO_SIDE, REFUSE, BAD_CONFIG, BAD_WEIGHTS, BAD_SIDE, STRANGE_SIDE, SILENT, DIE };
static enum course plan;

static void put(int fd, const char *text)
{
    ck_assert_int_eq(write(fd, text, strlen(text)), (ssize_t)strlen(text)); /* which moves the shared position */
}

static void write_snapshot(const int *fds)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, true, 0);
    store_draw(&f.store, 3);
    if (plan == BAD_WEIGHTS)
        put(fds[0], "half of it");
    else
        store_fixture_write(&f.store, fds[0], -1, NULL);
    put(fds[1], plan == BAD_CONFIG ? "{" : config);
    if (plan == BAD_SIDE)
        put(fds[2], "{\"files\":");
    else if (plan == STRANGE_SIDE)
        put(fds[2], "{\"files\": {\"../x\": \"\"}}");
    else if (plan != NO_SIDE)
        put(fds[2], "{\"options\": {\"precision\": \"bf16\"}, \"files\": {\"merges.txt\": \"a b\\n\"}}");
    store_fixture_close(&f);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct message reply = {.kind = MESSAGE_STATUS_REPLY};

    if (m->kind == MESSAGE_STATUS) {
        strcpy(reply.status_reply.model, "gpt2 2x8");
        session_send(s, &reply);
        return;
    }
    ck_assert_int_eq(m->kind, MESSAGE_SNAPSHOT);
    ck_assert_uint_eq(n_fds, 3);
    if (plan == DIE)
        raise(SIGKILL);
    if (plan == REFUSE)
        reply = (struct message){.kind = MESSAGE_REFUSED,
                                 .refused = {-ENODATA, {"no model is trained here: begin with eps train"}}};
    else
        reply = (struct message){.kind = MESSAGE_SAVED, .saved.step = 7};
    if (plan != REFUSE && plan != SILENT)
        write_snapshot(fds);
    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
    if (plan != SILENT)
        session_send(s, &reply);
}

static void on_open(struct session *s, const struct message *peer)
{
    (void)s;
    ck_assert_int_eq(peer->hello.role, ROLE_VIEWER);
}

static void on_closed(struct session *s, const char *reason)
{
    (void)s, (void)reason;
}

static void be_the_daemon(struct stage *stage)
{
    static const struct session_events events = {on_open, on_message, on_closed};
    struct error err = {""};

    ck_assert_msg(session_listen(&stage->listener, &stage->loop, stage->directory, &events, NULL, &err) == 0, "%s",
                  err.text);
    stage_signal(stage);
    uv_run(&stage->loop, UV_RUN_DEFAULT);
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

    stage_begin(&st);
    const pid_t pid = stage_fork(&st, be_the_daemon);
    stage_await(&st);
    int rc = client_snapshot_fetch(model, step, st.directory, plan == SILENT ? &watch : NULL, NULL, err);
    stage_kill(pid);
    ck_assert_int_eq(system(print("rm -r %s", st.directory)), 0); /* what a daemon leaves behind that was killed */
    return rc;
}

SUITE_TIMEOUT(60)

/* Its weights: test_export. */
TEST_EACH(a_snapshot_is_a_model_like_any_other, 2)
{
    struct client_model model;
    struct error err = {""};
    uint64_t step = 0;
    size_t n;

    plan = _i ? NO_SIDE : GOOD;
    ck_assert_msg(fetch(&model, &step, &err) == 0, "%s", err.text);
    ck_assert_str_eq(model.name, "gpt2 2x8");
    ck_assert(step == 7 && model.config.width == 8 && model.n_weights == 1);
    ck_assert_int_eq(lseek(model.config_fd, 0, SEEK_CUR), 0);
    ck_assert_pstr_eq(model.side ? client_side_find(model.side, "merges.txt", &n) : NULL, _i ? NULL : "a b\n");
    ck_assert_int_eq(model.precision, _i ? NUMBER_FP32 : NUMBER_BF16);
    client_model_close(&model);
}

static const struct {
    enum course plan;
    int rc;
    const char *sentence;
} failures[] = {
    {REFUSE, -ENODATA, "no model is trained here: begin with eps train"},
    {BAD_CONFIG, -EINVAL, "gpt2 2x8: "},
    {BAD_WEIGHTS, -EINVAL, "gpt2 2x8: not a safetensors file"},
    {BAD_SIDE, -EPROTO, "the daemon's side file: line 1: "},
    {STRANGE_SIDE, -EINVAL, "gpt2 2x8: ../x is not one of a model's side files"},
    {SILENT, -EINTR, "interrupted"},
    {DIE, -EIO, "the daemon is gone: killed"},
};

TEST_EACH(what_goes_wrong_is_said_and_nothing_stays_open, COUNT(failures))
{
    struct client_model model;
    struct error err = {""};

    plan = failures[_i].plan;
    const int next = dup(STDIN_FILENO);
    close(next);
    ck_assert_int_eq(fetch(&model, NULL, &err), failures[_i].rc);
    ck_assert_msg(strncmp(err.text, failures[_i].sentence, strlen(failures[_i].sentence)) == 0, "%s", err.text);
    ck_assert_int_eq(model.config_fd, -1);
    ck_assert_uint_eq(model.n_weights, 0);
    client_model_close(&model);
    for (int fd = next; fd < 256; fd++) { /* what is open is not one of the three files, which have no name */
        struct stat s;
        if (fstat(fd, &s) == 0 && S_ISREG(s.st_mode))
            ck_assert_uint_gt(s.st_nlink, 0);
    }
}
