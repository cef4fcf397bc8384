/* Jobs that wait for their turn at a shared daemon, and those that are taken out. Real programs. */
#include "client/eps.h"
#include "eps/daemon.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/kit/users.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup_tiny, processes_remove)

/* A run of eps train at the daemon, OUT.said and OUT.err what it says. */
static pid_t start(const char *out, unsigned steps, const char *more)
{
    const char *line = print("exec %s/eps train --connect lab --model model.json --data text.txt --batch 8 --seq 32 "
                             "--out %s --steps %u %s >%s.said 2>%s.err",
                             BIN_DIR, out, steps, more, out, out);

    return processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
}

enum { ENDLESS = 1000000 };

static pid_t start_first(const char *out)
{
    const pid_t pid = start(out, ENDLESS, "");

    processes_await_text(print("%s/metrics.jsonl", out), "\"step\": 2");
    return pid;
}

static unsigned n_queued;

static bool are_queued(void *context)
{
    json_t *status = expect_json("eps status lab --json", 0);
    const bool yes = json_array_size(json_at(status, "queue")) == n_queued;

    (void)context;
    json_decref(status);
    return yes;
}

static void await_queued(unsigned n)
{
    n_queued = n;
    ck_assert(processes_until(are_queued, NULL));
}

TEST(jobs_wait_in_turn_and_are_taken_out_by_their_numbers)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL), first = start_first("first");
    const pid_t second = start("second", 3, "");

    await_queued(1);
    const pid_t third = start("third", 3, "");
    await_queued(2);
    const pid_t fourth = start("fourth", 4, "");
    await_queued(3);
    processes_await_text("fourth.said", "job 4 waits for its turn at the daemon: 3rd in the queue");
    expect("eps status lab", 0, "state        training", "\njob          1\n", "\nqueue        job 2, training, user ",
           "/second\n             job 3, training, user ", "/third\n             job 4");
    json_t *status = expect_json("eps status lab --json", 0);
    ck_assert_int_eq((int)json_number_at(status, "job"), 1);
    ck_assert_int_eq((int)json_number_at(status, "queue.1.job"), 3);
    ck_assert_int_eq((int)json_number_at(status, "queue.1.place"), 2);
    ck_assert_int_eq((int)json_number_at(status, "queue.1.n_steps"), 3);
    ck_assert_str_eq(json_string_value(json_at(status, "queue.1.does")), "training");
    json_decref(status);
    expect_refusal(&(struct refusal){"eps stop lab 9", 1, "the daemon has no job 9", "eps status"});
    expect_refusal(&(struct refusal){"eps stop lab nine", 2, "JOB 'nine' is not a job's number", NULL});

    /* Of three that wait, the second goes; the next moves up. */
    expect("eps stop lab 3", 0);
    ck_assert_int_eq(processes_wait(third), 1);
    expect_file("third.err", "eps train: job 3 was taken out of the queue by request\n");
    ck_assert_int_ne(access("third", F_OK), 0); /* nothing of it is left */
    processes_await_text("fourth.said", "2nd in the queue");

    /* The one that runs saves, and ends; then the others run, the one that waited longest first. */
    json_t *stopped = expect_json("eps stop 1 --json", 0);
    ck_assert_int_eq((int)json_number_at(stopped, "job"), 1);
    json_decref(stopped);
    ck_assert_int_eq(processes_wait(first), 1);
    expect_file("first.err", "eps train: the job was stopped: the run ended after ", "; saved in first/step-",
                "eps train --resume first");
    ck_assert_int_eq(processes_wait(second), 0);
    ck_assert_int_eq(processes_wait(fourth), 0);
    expect_file("fourth.said", "1st in the queue", "loss ");
    expect("eps verify second", 0, "step-3");
    await_queued(0);
    expect_stop(daemon);
}

/* With its own model, an evaluation is a job, too. A client that leaves makes room; a full queue refuses. */
TEST(a_queue_has_a_limit_and_forgets_those_who_leave)
{
    static const char *const daemon_argv[] = {"--listen", "lab", "--queue", "1", NULL};
    const pid_t daemon = processes_start("epsd", daemon_argv, "log");

    processes_await_workers("lab", 0);
    processes_worker("lab", "256MiB", NULL);
    processes_await_workers("lab", 1);
    ck_assert_int_eq(processes_wait(start("model", 2, "")), 0);
    const pid_t first = start_first("first"), second = start("second", 3, "");
    await_queued(1);
    expect_refusal(&(struct refusal){
        "eps train --connect lab --model model.json --data text.txt --batch 8 --seq 32 --out third --steps 3", 1,
        "the daemon is busy, and 1 job waits already", "epsd --queue"});
    ck_assert_int_eq(kill(second, SIGINT), 0);
    ck_assert_int_eq(processes_wait(second), 130);
    expect_file("second.err", "interrupted before the first step");
    await_queued(0);
    const char *line =
        print("exec %s/eps eval --connect lab --model model/latest --data text.txt >eval.said 2>eval.err", BIN_DIR);
    const pid_t eval = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
    await_queued(1);
    expect("eps status lab", 0, ", evaluating, user ");
    expect("eps stop lab 2", 0);
    ck_assert_int_eq(processes_wait(first), 1);
    ck_assert_int_eq(processes_wait(eval), 0);
    expect_stop(daemon);
    expect_refusal(
        &(struct refusal){"epsd --listen lab --queue many", 2, "--queue many: a number of jobs, 0 to 256", NULL});
}

TEST(those_who_wait_are_told_that_the_daemon_stops)
{
    const pid_t daemon = processes_daemon("lab", 1, NULL), first = start_first("first"),
                second = start("second", 3, "");

    await_queued(1);
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(first), 1);
    ck_assert_int_eq(processes_wait(second), 1);
    expect_file("first.err", "the daemon was stopped: the run ended after ", "saved in first/step-");
    expect_file("second.err", "eps train: the daemon was stopped\n");
}

/* A daemon for whose clients others wait for a second, not five minutes; it ends with this process. */
static pid_t start_impatient(void)
{
    char directory[300];
    struct daemon_options options = {.directory = directory, .queue = 4, .most_away = 1};
    const pid_t parent = getpid(), pid = fork();
    struct error err;

    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(open(processes_path("epsd.log"), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
        log_name("epsd");
        signal(SIGPIPE, SIG_IGN);
        _exit(getppid() != parent || session_directory(directory, sizeof directory, "lab", &err) ||
              daemon_run(&options, &err));
    }
    processes_await_workers("lab", 0);
    processes_worker("lab", "256MiB", NULL);
    processes_await_workers("lab", 1);
    return pid;
}

/* The driver's, while this test does something else: nobody calls its loop. */
TEST(the_job_of_a_client_that_is_away_is_saved_for_the_next_one)
{
    const pid_t daemon = start_impatient();
    struct driver away;
    struct message m;

    ck_assert_int_eq(mkdir("first", 0777), 0);
    driver_open(&away, "lab", &(struct driver_options){.n_parts = 1, .out = "first", .side = "{\"options\": {}}"});
    driver_train(&away, 3);
    driver_await_done(&away, 3);
    const pid_t second = start("second", 3, "");
    ck_assert_int_eq(processes_wait(second), 0);
    ck_assert_int_eq(access("first/step-3/config.json", F_OK), 0);

    struct error err = {""};
    int rc = 0;
    while (!rc)
        rc = client_link_next(&away.link, &m, NULL, &err);
    ck_assert_int_eq(m.kind, MESSAGE_FAILED);
    ck_assert_holds(err.text,
                    "saved and ended after 3 steps: its client asked for nothing for 1 s while others waited");
    expect_file("epsd.log", "it is saved, and ends\n", "step 3 saved\n");
    driver_leave(&away);
    expect_stop(daemon);
}

/* A callback that does not return before the next job runs. */
static void on_slow_step(void *user, const struct eps_step *step)
{
    pid_t *const second = user;

    if (step->step != 3 || *second)
        return;
    *second = start("second", 3, "");
    processes_await_text("second/metrics.jsonl", "\"step\": 1");
}

static char notes[2000];

static void on_restarted(void *user, const char *sentence)
{
    (void)user;
    strncat(notes, sentence, sizeof notes - strlen(notes) - 1);
}

/* It has made room, and is called again: it waits in the queue, and ends as if it had been alone. Without --restarts,
 * it says how to go on. */
TEST_EACH(a_run_that_made_room_goes_on_if_it_may, 2)
{
    static const struct eps_train_events events = {.on_step = on_slow_step, .on_note = on_restarted};
    static const char *const files[] = {"text.txt"};
    struct eps_train_options o = processes_options("model.json", files, "alone");
    struct eps_error error = {""};
    const pid_t daemon = start_impatient();
    pid_t second = 0;

    o.batch = 8, o.seq = 32, o.steps = 6, o.connect = "lab", o.device_mem = 0, o.workers = 0;
    processes_train(&o);
    o.out = "first", o.restarts = (uint32_t)_i;
    ck_assert_msg(eps_train(&o, &events, &second, &error) == (_i ? 0 : -EIO), "%s", error.text);
    ck_assert_int_eq(processes_wait(second), 0);
    if (_i == 0) {
        ck_assert_holds(error.text, "its client asked for nothing for 1 s while others waited",
                        "eps train --resume first continues from step ");
    } else {
        ck_assert_holds(notes, "restart 1 of 1: saved and ended after ", "while others waited; the run goes on from ");
        outputs_check_same_latest("first", "alone");
        outputs_check_same_metrics("first", "alone", 6);
    }
    expect_stop(daemon);
}

/* ---- a person who thinks while others wait ----------------------------------------------------------------------- */

struct heard {
    char text[400];
    size_t n;
};

static void on_text(void *user, const char *text, size_t n)
{
    struct heard *heard = user;

    ck_assert_uint_lt(heard->n + n, sizeof heard->text);
    memcpy(heard->text + heard->n, text, n);
    heard->n += n;
}

/* Says two things; a run of eps train comes between them, if `between`. */
static void converse(struct heard *heard, const char *connect, bool between)
{
    struct eps_chat_options options = eps_chat_defaults();
    const struct eps_chat_events events = {.on_text = on_text};
    struct eps_answer answer;
    struct eps_error error = {""};
    struct eps_chat *chat;

    options.model = "talker";
    options.connect = connect;
    options.programs = BIN_DIR;
    options.n_tokens = 20;
    ck_assert_msg(eps_chat_open(&chat, &options, &events, heard, &error) == 0, "%s", error.text);
    ck_assert_msg(eps_chat_say(&answer, chat, "hello", 5, &error) == 0, "%s", error.text);
    if (between)
        ck_assert_int_eq(processes_wait(start("second", 3, "")), 0);
    ck_assert_msg(eps_chat_say(&answer, chat, "and more", 8, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(answer.n_reused > 0, !between);
    eps_chat_close(chat);
}

TEST(a_conversation_goes_on_after_the_jobs_that_came_between)
{
    struct heard alone = {.n = 0}, interrupted = {.n = 0};
    const pid_t daemon = start_impatient();

    processes_config("talker.json", 1, 2, 16, 512);
    expect("eps train --model talker.json --data text.txt --steps 1 --seq 8 --batch 1 --out talking && "
           "eps export --model talking/latest --out talker",
           0);
    processes_put_text("talker/chat_template.jinja",
                       "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]");
    converse(&alone, NULL, false);
    converse(&interrupted, "lab", true);
    ck_assert_uint_eq(interrupted.n, alone.n);
    ck_assert_mem_eq(interrupted.text, alone.text, alone.n);
    expect_stop(daemon);
}
