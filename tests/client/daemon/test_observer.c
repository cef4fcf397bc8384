/* How a daemon is found, what its answers say, and how long somebody waits for it. A test plays daemons, each in a
 * process of its own that answers as it is told. */
#include "client/daemon/observer.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/proto/wire/message_samples.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_TIMEOUT(60) /* 3 s pass before a daemon that hangs is given up */
SUITE_FIXTURE(processes_setup, processes_remove)

/* ---- daemons that are played ------------------------------------------------------------------------------------ */

static struct message answer; /* to STATUS */

static void answer_status(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    (void)fds, (void)n_fds;
    if (m->kind == MESSAGE_STATUS)
        session_send(s, &answer);
}

static void (*played)(struct session *s, const struct message *m, const int *fds, unsigned n_fds);

static void ignore_opening(struct session *s, const struct message *peer)
{
    (void)s, (void)peer;
}

static void ignore_closing(struct session *s, const char *reason)
{
    (void)s, (void)reason;
}

static void play_daemon(struct stage *st)
{
    const struct session_events events = {ignore_opening, played, ignore_closing};
    struct error err = {""};

    ck_assert_msg(session_listen(&st->listener, &st->loop, st->directory, &events, NULL, &err) == 0, "%s", err.text);
    stage_signal(st);
    uv_run(&st->loop, UV_RUN_DEFAULT);
}

static const char *directory_of(const char *name)
{
    return processes_path(print(PROCESSES_RUNTIME "/eps/%s", name));
}

/* A daemon of this name that does so with each message; it listens on return, and ends with the test. */
static pid_t play(const char *name,
                  void (*does)(struct session *s, const struct message *m, const int *fds, unsigned n_fds))
{
    struct stage st;

    stage_begin(&st);
    ck_assert_int_eq(rmdir(st.directory), 0);
    snprintf(st.directory, sizeof st.directory, "%s", directory_of(name));
    played = does;
    const pid_t pid = stage_fork(&st, play_daemon);
    stage_await(&st);
    close(st.gate);
    uv_close((uv_handle_t *)&st.watchdog, NULL); /* this side's loop is not needed */
    uv_run(&st.loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&st.loop), 0);
    return pid;
}

/* One whose job is in this state, belongs to this user, and writes to this directory. */
static pid_t play_job(const char *name, enum message_state state, uid_t uid, const char *out)
{
    answer = (struct message){.kind = MESSAGE_STATUS_REPLY,
                              .status_reply = {.state = state, .uid = uid, .saved_step = MESSAGE_NO_STEP}};
    snprintf(answer.status_reply.out, sizeof answer.status_reply.out, "%s", out);
    return play(name, answer_status);
}

/* ---- addresses -------------------------------------------------------------------------------------------------- */

/* A message has room for the end of a long path. Anybody's daemon may name any directory. */
static const struct {
    const char *before, *end; /* of the directory, which is DIRECTORY/a/book; before NULL: DIRECTORY */
    unsigned other_user;
    int rc;
} writers[] = {
    {"...", "/a/book", 0, 0},
    {"...", "/b/book", 0, -ENOENT},
    {"...", "", 0, 0},
    {NULL, "/a/book", 1, -ENOENT},
};

TEST_EACH(a_run_is_found_by_the_end_of_its_directory_if_it_is_the_callers, COUNT(writers))
{
    const char *before = writers[_i].before ? writers[_i].before : processes_directory();
    char found[PATH_MAX];
    struct error err = {""};

    expect("mkdir -p a/book", 0);
    play_job("lab", STATE_TRAINING, geteuid() + writers[_i].other_user, print("%s%s", before, writers[_i].end));
    ck_assert_int_eq(client_observer_find(found, sizeof found, "a/book", &err), writers[_i].rc);
    if (writers[_i].rc)
        ck_assert_holds(err.text, "a/book: no daemon of yours listens there or writes its run there");
    else
        ck_assert_str_eq(found, directory_of("lab"));
}

/* Of the others, one has no such job and one hangs. */
TEST(the_only_detached_job_is_chosen_and_several_are_named)
{
    char found[PATH_MAX];
    struct error err = {""};

    play_job("busy", STATE_TRAINING, geteuid(), "");
    const pid_t hung = play_job("hung", STATE_DETACHED, geteuid(), "");
    ck_assert_int_eq(kill(hung, SIGSTOP), 0);
    play_job("left", STATE_DETACHED, geteuid(), "");
    ck_assert_int_eq(client_observer_find_detached(found, sizeof found, &err), 0);
    ck_assert_str_eq(found, directory_of("left"));
    ck_assert_int_eq(kill(hung, SIGCONT), 0);
    ck_assert_int_eq(client_observer_find_detached(found, sizeof found, &err), -ENOTUNIQ);
    ck_assert_str_eq(err.text, "2 daemons have a detached job: name one of hung, left");
}

TEST(a_daemon_is_called_by_its_name_where_that_leads_to_it)
{
    static const char *const unnamed[] = {"%s/lab", "%s/" PROCESSES_RUNTIME "/eps/lab/",
                                          "%s/" PROCESSES_RUNTIME "/eps/./lab", "%s/" PROCESSES_RUNTIME "/lab"};
    char directory[PATH_MAX];

    ck_assert_str_eq(client_observer_name(directory_of("lab")), "lab");
    for (int i = 0; i < COUNT(unnamed); i++) {
        snprintf(directory, sizeof directory, unnamed[i], processes_directory());
        ck_assert_str_eq(client_observer_name(directory), directory);
    }
}

/* ---- sentences -------------------------------------------------------------------------------------------------- */

static const struct {
    uint32_t place;
    const char *said;
} places[] = {{1, "1st"},   {2, "2nd"},   {3, "3rd"},   {4, "4th"},     {11, "11th"},   {12, "12th"},
              {13, "13th"}, {20, "20th"}, {21, "21st"}, {103, "103rd"}, {111, "111th"}, {122, "122nd"}};

TEST_EACH(a_place_in_the_queue_is_an_ordinal, COUNT(places))
{
    const struct message m = {.kind = MESSAGE_QUEUED, .queued = {.job = 7, .place = places[_i].place}};
    struct error sentence;

    client_observer_say_queued(&sentence, &m);
    ck_assert_str_eq(sentence.text, print("job 7 waits for its turn at the daemon: %s in the queue", places[_i].said));
}

static const struct {
    enum message_loss how;
    const char *host;
    bool waits;
    const char *said;
} losses[] = {
    {LOSS_UNFIT, "big-2", false, "worker 3 (cpu on big-2) is left out: no arena"},
    {LOSS_EARLY, "", false, "worker 3 (cpu) was lost before the job began: no arena"},
    {LOSS_EARLY, "", true,
     "worker 3 (cpu) was lost before the job began: no arena; the step waits for another worker to attach"},
};

TEST_EACH(a_worker_that_has_done_nothing_is_named_with_what_became_of_it, COUNT(losses))
{
    struct message m = {.kind = MESSAGE_LOST,
                        .lost = {.worker = 3,
                                 .device = "cpu",
                                 .how = losses[_i].how,
                                 .waits = losses[_i].waits,
                                 .error = {"no arena"}}};
    struct error sentence;

    snprintf(m.lost.host, sizeof m.lost.host, "%s", losses[_i].host);
    client_observer_say_missing(&sentence, &m);
    ck_assert_str_eq(sentence.text, losses[_i].said);
}

/* ---- waits ------------------------------------------------------------------------------------------------------ */

static char notes[1000];

static void collect(void *user, const char *sentence)
{
    (void)user;
    strcat(strcat(notes, sentence), "\n");
}

/* Updates done, and whether the open step waits, as the daemon says in turn. */
TEST(a_step_that_waits_is_told_of_once)
{
    static const struct {
        uint64_t step;
        bool waits;
    } replies[] = {{4, false}, {4, true}, {4, true}, {5, false}, {5, true}};
    struct client_saved_wait wait = {.directory = directory_of("lab"), .on_note = collect};

    for (int i = 0; i < COUNT(replies); i++)
        client_observer_note_wait(&wait, &(struct message){.kind = MESSAGE_STATUS_REPLY,
                                                           .status_reply = {.step = replies[i].step,
                                                                            .waits = replies[i].waits}});
    ck_assert_str_eq(notes, "step 5 waits for a worker: attach one with eps-worker --connect lab\n"
                            "step 6 waits for a worker: attach one with eps-worker --connect lab\n");
}

/* Two pages, the second of one unit; until then it speaks of more than there is memory for. */
static void promise_units(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct message reply = {.kind = MESSAGE_UNITS_REPLY, .units_reply = {.first = m->units.first}};

    (void)fds, (void)n_fds;
    reply.units_reply.n = m->units.first == 0 ? MESSAGE_PAGE_UNITS : 1;
    reply.units_reply.n_units = m->units.first == 0 ? UINT32_MAX : MESSAGE_PAGE_UNITS + 1;
    reply.units_reply.version = 7;
    if (m->kind == MESSAGE_UNITS)
        session_send(s, &reply);
}

TEST(a_promise_of_units_takes_no_memory)
{
    const struct eps_unit *units;
    struct eps_observer *observer;
    struct eps_error error = {""};
    size_t n = 0;

    play("lab", promise_units);
    ck_assert_msg(eps_observer_open(&observer, "lab", NULL, NULL, &error) == 0, "%s", error.text);
    ck_assert_msg(eps_observer_units(observer, &units, &n, &error) == 0, "%s", error.text);
    ck_assert_uint_eq(n, MESSAGE_PAGE_UNITS + 1);
    ck_assert_uint_eq(units[MESSAGE_PAGE_UNITS].version, 7);
    eps_observer_close(observer);
}

/* SAVED overtakes the answer to a question that was asked meanwhile. */
static void save_before_answering(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    (void)fds, (void)n_fds;
    if (m->kind == MESSAGE_STATUS)
        session_send(s, &(struct message){.kind = MESSAGE_SAVED, .saved.step = 9});
    session_send(s, m->kind == MESSAGE_STATUS
                        ? &answer
                        : &(struct message){.kind = MESSAGE_MEMORY_REPLY, .memory_reply.last = 1});
}

TEST(the_wait_for_a_save_leaves_no_answer_to_the_next_question)
{
    struct client_saved_wait wait = {.directory = directory_of("lab")};
    struct client_link link;
    struct message m;
    struct error err = {""};

    answer = (struct message){.kind = MESSAGE_STATUS_REPLY, .status_reply.saved_step = MESSAGE_NO_STEP};
    play("lab", save_before_answering);
    driver_look(&link, "lab");
    ck_assert_int_eq(client_observer_await_saved(&m, &link, &wait, &err), 0);
    ck_assert_int_eq(m.kind, MESSAGE_SAVED);
    ck_assert_uint_eq(m.saved.step, 9);
    client_link_send(&link, &(struct message){.kind = MESSAGE_MEMORY});
    ck_assert_int_eq(client_link_next(&link, &m, NULL, &err), 0);
    ck_assert_int_eq(m.kind, MESSAGE_MEMORY_REPLY);
    client_link_send(&link, &(struct message){.kind = MESSAGE_MEMORY});
    ck_assert_int_eq(client_observer_await_saved(&m, &link, &wait, &err), -EPROTO);
    ck_assert_str_eq(err.text, "the daemon sent MEMORY_REPLY where SAVED was due");
    client_link_free(&link);
}

static void expect_no_note(void *user, const char *sentence)
{
    (void)user;
    ck_abort_msg("it says: %s", sentence);
}

/* A limit that no test waits for. */
static struct client_await patient(void (*on_note)(void *user, const char *sentence), void *user)
{
    return (struct client_await){.ms = 100000000, .on_note = on_note, .user = user};
}

static struct {
    const char *address;
    bool patient;
    int rc;
    const char *sentence;
} const absent[] = {
    {"nobody", false, -ENOENT, "no daemon at "},
    {NULL, true, -ENOENT, "no daemon of yours is running"},
    {"", true, -ENOENT, "no daemon of yours is running"},
    {"tcp://127.0.0.1:1", true, -EPROTONOSUPPORT, "tcp://127.0.0.1:1"},
};

TEST_EACH(who_names_no_daemon_that_may_come_waits_for_none, COUNT(absent))
{
    const struct client_await await = patient(expect_no_note, NULL);
    struct client_link link;
    struct error err = {""};

    ck_assert_int_eq(client_link_init(&link, &err), 0);
    ck_assert_int_eq(client_await_daemon(&link, absent[_i].address, ROLE_VIEWER, absent[_i].patient ? &await : NULL,
                                         &err),
                     absent[_i].rc);
    ck_assert_holds(err.text, absent[_i].sentence);
    client_link_free(&link);
}

static void begin_run(void *user, const char *sentence)
{
    collect(user, sentence);
    play_job("lab", STATE_TRAINING, geteuid(), user);
}

TEST(a_daemon_is_waited_for_by_the_directory_that_its_run_will_write)
{
    char book[PATH_MAX];
    const struct client_await await = patient(begin_run, book);
    struct client_link link;
    struct message m;
    struct error err = {""};

    snprintf(book, sizeof book, "%s", processes_path("book"));
    ck_assert_int_eq(mkdir(book, 0700), 0);
    ck_assert_int_eq(client_link_init(&link, &err), 0);
    ck_assert_msg(client_await_daemon(&link, "./book", ROLE_VIEWER, &await, &err) == 0, "%s", err.text);
    ck_assert_str_eq(notes, "waiting for the daemon ./book\n");
    ck_assert_int_eq(client_observer_status(&link, &m, &err), 0);
    ck_assert_str_eq(m.status_reply.out, book);
    client_link_free(&link);
}

static void wish(void *user, const char *sentence)
{
    (void)sentence;
    *(bool *)user = true;
}

static int ask_wish(void *data, struct error *err)
{
    return *(const bool *)data ? error_set(err, -EINTR, "interrupted") : 0;
}

TEST(the_wait_for_a_daemon_ends_when_its_caller_wishes)
{
    bool wished = false;
    const struct client_await await = patient(wish, &wished);
    struct client_link link;
    struct error err = {""};

    ck_assert_int_eq(client_link_init(&link, &err), 0);
    link.watches[1] = (struct client_watch){.ask = ask_wish, .data = &wished};
    ck_assert_int_eq(client_await_daemon(&link, "nobody", ROLE_VIEWER, &await, &err), -EINTR);
    ck_assert_str_eq(err.text, "interrupted");
    client_link_free(&link);
}

static struct {
    int rc;
    const char *address;
    uint64_t ms;
} const final[] = {{-EIO, "lab", 100000000}, {-EAGAIN, NULL, 100000000}, {-EAGAIN, "", 100000000}, {-EAGAIN, "lab", 0}};

TEST_EACH(a_job_that_no_other_worker_can_help_stays_refused, COUNT(final))
{
    struct client_await await = patient(expect_no_note, NULL);
    struct client_link link;
    struct error err = {"no memory"};

    await.ms = final[_i].ms;
    ck_assert_int_eq(client_link_init(&link, NULL), 0);
    ck_assert_int_eq(client_await_another(final[_i].rc, &link, final[_i].address, &await, &err), final[_i].rc);
    ck_assert_str_eq(err.text, "no memory");
    client_link_free(&link);
}

/* Of two workers that are there when a job is asked for, one may be lost with it. */
static void answer_with_loss(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct message lost = message_sample(MESSAGE_LOST);

    lost.lost.how = LOSS_EARLY;
    if (m->kind == MESSAGE_MEMORY) {
        session_send(s, &lost);
        session_send(s, &(struct message){.kind = MESSAGE_MEMORY_REPLY, .memory_reply.last = true});
    }
    answer_status(s, m, fds, n_fds);
}

static void ignore_aside(void *data, const struct message *m)
{
    (void)data, (void)m;
}

static const struct {
    uint32_t there; /* while it waits */
    bool loses;
    int rc;
} later[] = {{2, false, -EAGAIN}, {3, false, 0}, {2, true, 0}, {1, true, -EAGAIN}};

/* The daemon plays both moments: the link counts from the number that it is told. */
TEST_EACH(a_worker_that_came_since_the_job_was_asked_for_ends_the_wait_for_another, COUNT(later))
{
    struct client_await await = {.ms = 1, .n_workers = 2};
    struct client_link link;
    struct message m;
    struct error err = {"no memory"};

    answer = (struct message){.kind = MESSAGE_STATUS_REPLY,
                              .status_reply = {.saved_step = MESSAGE_NO_STEP, .n_workers = later[_i].there}};
    play("lab", answer_with_loss);
    driver_look(&link, "lab");
    link.on_aside = ignore_aside;
    if (later[_i].loses) {
        client_link_send(&link, &(struct message){.kind = MESSAGE_MEMORY});
        ck_assert_int_eq(client_link_expect(&link, MESSAGE_MEMORY_REPLY, &m, NULL, NULL), 0);
    }
    ck_assert_int_eq(client_await_another(-EAGAIN, &link, "lab", &await, &err), later[_i].rc);
    if (later[_i].rc == 0)
        ck_assert_int_eq(client_await_another(-EAGAIN, &link, "lab", &await, &err), -EAGAIN);
    client_link_free(&link);
}

/* The question that was given up is not answered later. */
TEST(the_wait_for_workers_says_how_many_came_and_leaves_no_answer)
{
    pid_t workers[1];
    struct client_link link;
    struct message m;
    struct error err = {""};
    uint32_t n = 7;

    processes_daemon("lab", 1, workers);
    driver_look(&link, "lab");
    ck_assert_int_eq(client_await_workers(&n, &link, 2, 1, &err), -ETIMEDOUT);
    ck_assert_uint_eq(n, 1);
    processes_worker("lab", "64MiB", NULL);
    processes_await_workers("lab", 2);
    client_link_send(&link, &(struct message){.kind = MESSAGE_MEMORY});
    do /* the host, then each worker */
        ck_assert_int_eq(client_link_expect(&link, MESSAGE_MEMORY_REPLY, &m, NULL, &err), 0);
    while (!m.memory_reply.last);
    ck_assert_int_eq(client_await_workers(&n, &link, 2, 100000000, &err), 0);
    ck_assert_uint_eq(n, 2);
    client_link_free(&link);
}
