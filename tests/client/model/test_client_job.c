/* What a client sends to open a job, and what it keeps of the answer, against a daemon that is played. */
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/message_samples.h"

#include "client/model/job.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

static const struct plan_goal goal = {.batch = 2, .seq = 8, .n_parts = 1};

static struct stage st;
static pid_t daemon_pid;
static struct client_link link_;
static struct client_model model;
static struct message answer;
static unsigned n_due; /* descriptors that JOB comes with, else it is refused */

static void answer_job(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    const struct message refused = {.kind = MESSAGE_REFUSED, .refused = {.code = -E2BIG, .error = {"descriptors"}}};
    struct segment data;

    (void)fds;
    if (m->kind != MESSAGE_JOB)
        return;
    if (n_fds != n_due) {
        session_send(s, &refused);
        return;
    }
    ck_assert_int_eq(segment_create(&data, "data", plan_data_of(&goal, 0).bytes, SEGMENT_READ_WRITE, NULL), 0);
    session_send_fds(s, &answer, &data.fd, 1);
    segment_close(&data);
}

/* A model of so many files, which are all the same: an empty list of tensors. */
static void open_model(unsigned n_files)
{
    static const char header[] = "\x08\0\0\0\0\0\0\0{}      ";

    processes_config("model.json", 1, 2, 8, 16);
    ck_assert_int_eq(client_model_open_fresh(&model, &(struct client_model_name){.path = "model.json"}, NULL, NULL), 0);
    processes_write("empty.safetensors", header, sizeof header - 1);
    for (; model.n_weights < n_files; model.n_weights++) {
        model.weights[model.n_weights] = file_own(open("empty.safetensors", O_RDONLY | O_CLOEXEC));
        ck_assert(file_is_open(&model.weights[model.n_weights]));
    }
}

static void setup(void)
{
    processes_setup();
    answer = message_sample(MESSAGE_JOB_OPENED);
    answer.job_opened.data_bytes = plan_data_of(&goal, 0).bytes;
    answer.job_opened.entries = 0;
}

static void attach(void)
{
    struct error err = {""};

    daemon_pid = stage_begin_daemon(&st, answer_job);
    ck_assert_msg(client_link_init(&link_, &err) == 0 && client_link_open(&link_, st.directory, ROLE_CLIENT, &err) == 0,
                  "%s", err.text);
}

static void teardown(void)
{
    client_link_free(&link_);
    client_model_close(&model);
    stage_end_daemon(&st, daemon_pid);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)

static int open_job(struct client_job *job, const struct client_job_files *files, struct error *err)
{
    struct message request = {.kind = MESSAGE_JOB, .job.goal = goal};

    return client_job_open(job, &link_, &request, &model, files, err);
}

TEST(the_most_files_that_a_model_may_have_go_with_all_others_of_a_job)
{
    struct client_job job;
    struct error err = {""};

    open_model(CLIENT_MODEL_MAX_FILES);
    n_due = SESSION_MAX_FDS;
    attach();
    const int fd = model.weights[0].fd;
    ck_assert_msg(open_job(&job, &(const struct client_job_files){fd, fd, fd, fd}, &err) == 0, "%s", err.text);
    client_job_free(&job);
}

static const struct {
    uint64_t bytes; /* fewer, or more */
    uint32_t entries;
    const char *says;
} refused[] = {
    {-UINT64_C(1), 0, "the daemon opened the job with "},
    {1 << 20, 7, "the daemon opened the job for norms of 7 tokens, not 0"},
};

TEST_EACH(an_answer_that_is_refused_leaves_no_descriptor, COUNT(refused))
{
    struct client_job job;
    struct error err = {""};

    answer.job_opened.data_bytes += refused[_i].bytes;
    answer.job_opened.entries = refused[_i].entries;
    open_model(0);
    n_due = 1;
    attach();
    const unsigned n_fds = processes_count_fds(getpid());
    ck_assert_int_eq(open_job(&job, NULL, &err), -EPROTO);
    ck_assert_holds(err.text, refused[_i].says);
    client_job_free(&job);
    ck_assert_uint_eq(processes_count_fds(getpid()), n_fds);
}
