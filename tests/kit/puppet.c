#include "tests/kit/puppet.h"

#include "proto/base/process.h"
#include "proto/model/norms.h"
#include "proto/operation/call/sample.h"
#include "proto/plan/memory/data.h"
#include "proto/wire/segment.h"
#include "tests/kit/driver.h"

#include <check.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

struct puppet {
    uv_loop_t loop;
    struct session *session;
    struct message assign;
    struct model model;
    struct segment inbox, data;
    enum puppet_fault fault;
    bool refused; /* ASSIGN, once */
    bool busy, backward, has_next;
    struct message share, next;
    uint32_t visit;
    uint32_t n_slots; /* with the daemon */
    uint32_t n_late;  /* pulls that VOID is to answer */
    uint32_t n_early; /* pulls of the topmost block, ahead of its turn */
    uv_timer_t timer;
    uint64_t count;
};

float puppet_pattern(uint32_t visit, uint64_t i)
{
    return 1e-3f * (float)((int)((i * 7 + visit * 13) % 11) - 5);
}

float puppet_norm(uint64_t step)
{
    return ldexpf(1, (int)step);
}

static bool is_beside(const struct puppet *p)
{
    return p->fault == PUPPET_BESIDE || p->fault == PUPPET_FINDS_NORMS;
}

static uint32_t topmost_block(const struct puppet *p)
{
    uint32_t unit = p->model.n_units;

    while (p->model.units[unit - 1].n_norm_maps == 0)
        unit--;
    return unit - 1;
}

static void ask_early(struct puppet *p)
{
    const struct message m = {.kind = MESSAGE_PULL, .pull = {.version = p->share.share.step, .unit = topmost_block(p)}};

    p->n_early++;
    session_send(p->session, &m);
}

/* True if the weights were pulled early; then what came with them is checked. */
static bool is_early(struct puppet *p, const struct message *m)
{
    if (p->n_early == 0 || m->weights.unit != topmost_block(p))
        return false;
    const struct plan_goal *goal = &p->assign.assign.goal;
    const uint64_t step = p->share.share.step;
    const uint16_t *found =
        (const uint16_t *)(const void *)((const char *)p->data.base +
                                         plan_data_norms_at(goal, &p->model, p->share.share.buffer,
                                                            p->model.units[m->weights.unit].first_norm_map));
    for (size_t i = 0; i < (size_t)goal->batch * goal->seq; i++)
        if (found[i] != SAMPLE_PADDING && found[i] != (step > 0 ? number_to_bf16(puppet_norm(step - 1)) : 0))
            _exit(PUPPET_GIVEN);
    p->n_early--;
    return true;
}

static void ask_weights(struct puppet *p)
{
    struct message m = {.kind = MESSAGE_PULL};

    m.pull.version = p->share.share.step;
    m.pull.unit = p->model.visits[p->visit];
    session_send(p->session, &m);
}

/* Of a step that is over; the answer comes before all that it asks for afterwards. */
static void ask_late(struct puppet *p, uint64_t version)
{
    if (p->fault == PUPPET_PULLS_LATE) {
        p->n_late++;
        session_send(p->session, &(struct message){.kind = MESSAGE_PULL, .pull = {.version = version}});
    }
}

static void on_void(struct puppet *p, const struct message *m)
{
    if (p->n_late == 0 || m->voided.unit != 0 || m->voided.version > p->share.share.step)
        _exit(PUPPET_GIVEN);
    p->n_late--;
}

static void fill_slot(struct puppet *p, uint32_t index, uint32_t visit)
{
    const struct model_unit *unit = &p->model.units[p->model.visits[visit]];
    float *slot = (float *)((char *)p->inbox.base + index * model_slot_bytes(&p->model, NUMBER_FP32));

    for (uint64_t i = 0; i < unit->n; i++)
        slot[i] = ldexpf(puppet_pattern(visit, i), (int)p->share.share.step); /* no step's norm is another's */
    if (p->share.share.step == 1 && p->fault == PUPPET_IN_FIRST_CONTRIBUTION && visit == p->model.n_visits - 1)
        slot[unit->n / 2] = NAN;
    if (p->share.share.step == 1 && p->fault == PUPPET_IN_FIRST_OF_TWO && visit == p->model.n_visits - 2)
        slot[unit->n / 2] = NAN;
    if (p->share.share.step == 1 && p->fault == PUPPET_IN_LAST_CONTRIBUTION && visit == 0)
        slot[unit->n - 1] = INFINITY;
}

static void fill_norms(struct puppet *p, uint32_t index, uint32_t visit)
{
    float *slot = (float *)((char *)p->inbox.base + index * model_slot_bytes(&p->model, NUMBER_FP32));

    for (uint64_t i = 0; i < p->model.units[p->model.visits[visit]].n_norms; i++)
        slot[i] = puppet_norm(p->share.share.step);
}

static void announce_slot(struct puppet *p, uint32_t index, uint32_t visit, uint32_t slice)
{
    struct message m = {.kind = MESSAGE_CONTRIBUTION};

    m.contribution.name.step = p->share.share.step;
    m.contribution.name.part = p->share.share.parts[0].part;
    m.contribution.name.attempt = p->share.share.parts[0].attempt;
    m.contribution.name.visit = visit;
    m.contribution.name.slice = slice;
    m.contribution.slot = index;
    session_send(p->session, &m);
}

static void contribute(struct puppet *p)
{
    const bool two =
        p->share.share.step == 1 && p->fault == PUPPET_IN_FIRST_OF_TWO && p->visit == p->model.n_visits - 1;

    const bool norms = p->model.units[p->model.visits[p->visit]].n_norms > 0;

    p->n_slots = two || norms ? 2 : 1;
    if (two)
        fill_slot(p, 2, p->visit - 1);
    fill_slot(p, 1, p->visit);
    if (two)
        announce_slot(p, 2, p->visit - 1, 0);
    announce_slot(p, 1, p->visit, 0);
    if (norms) {
        fill_norms(p, 2, p->visit);
        announce_slot(p, 2, p->visit, 1);
    }
    p->busy = p->visit > 0 || !is_beside(p); /* the next step may come before the last slot is freed */
}

/* Something that no worker of ours would say in a step that has just begun. */
static void break_a_rule(struct puppet *p)
{
    struct message m = {.kind = MESSAGE_PULL, .pull = {.version = p->share.share.step, .unit = p->model.n_units}};

    if (p->fault == PUPPET_FAILS)
        m = (struct message){.kind = MESSAGE_FAILED, .failed = {.code = -EDOM, .error.text = "no mood"}};
    session_send(p->session, &m);
}

static void begin_step(struct puppet *p, const struct message *share)
{
    p->busy = true;
    p->backward = false;
    p->share = *share;
    p->visit = 0;
    if (p->fault >= PUPPET_PULLS_AMISS && p->fault <= PUPPET_FAILS && p->share.share.step == 1)
        break_a_rule(p);
    if (p->share.share.step > 0)
        ask_late(p, p->share.share.step - 1);
    if (p->fault == PUPPET_FINDS_NORMS)
        ask_early(p);
    ask_weights(p);
}

static void turn(struct puppet *p)
{
    const bool faulty = p->share.share.step == 1 && p->fault == PUPPET_IN_LOSS;
    const struct message m = {.kind = MESSAGE_LOSS,
                              .loss = {.step = p->share.share.step,
                                       .part = p->share.share.parts[0].part,
                                       .attempt = p->share.share.parts[0].attempt,
                                       .sum = faulty ? 0 : 64,
                                       .finite = !faulty}};

    p->backward = true;
    session_send(p->session, &m);
    ask_weights(p);
}

static void on_weights(struct puppet *p, const struct message *m)
{
    if (p->n_late > 0)
        _exit(PUPPET_GIVEN);
    if (m->weights.lent)
        session_send(p->session, &(struct message){.kind = MESSAGE_READ,
                                                   .read = {.version = m->weights.version, .unit = m->weights.unit}});
    if (is_early(p, m))
        return;
    if (p->backward && p->share.share.step == 1 && p->fault == PUPPET_DIES) {
        _exit(0);
    } else if (p->backward) {
        contribute(p);
    } else if (p->visit + 1 < p->model.n_visits) {
        p->visit++;
        ask_weights(p);
    } else {
        turn(p);
    }
}

static void next_visit(struct puppet *p)
{
    if (--p->n_slots > 0)
        return;
    if (p->share.share.step == 1 && p->fault == PUPPET_DIES_LATER)
        _exit(0);
    if (p->share.share.step == 1 && p->fault == PUPPET_STOPS_LATER && p->visit == p->model.n_visits - 1)
        raise(SIGSTOP);
    p->busy = p->visit > 0;
    if (p->busy) {
        p->visit--;
        ask_weights(p);
    } else if (p->has_next) {
        p->has_next = false;
        begin_step(p, &p->next);
    } else {
        ask_late(p, p->share.share.step);
    }
}

static void take_assignment(struct puppet *p, const struct message *m, const int *fds)
{
    struct message reply = {.kind = MESSAGE_ASSIGNED};
    struct model_config config;
    struct segment text;
    struct error err = {""};

    if (segment_attach(&text, fds[3], m->assign.config_bytes, SEGMENT_READ, &err) ||
        model_config_parse(&config, text.base, m->assign.config_bytes, &err) || model_init(&p->model, &config, &err))
        _exit(1);
    p->assign = *m;
    plan_approximate(&p->model, &m->assign.goal);
    if (segment_attach(&p->inbox, fds[1], 3 * model_slot_bytes(&p->model, NUMBER_FP32), SEGMENT_READ_WRITE, &err) ||
        segment_attach(&p->data, fds[2], plan_data_bytes(&m->assign.goal, &p->model), SEGMENT_READ, &err))
        _exit(1);
    for (uint32_t u = 0; u < p->model.n_units; u++)
        if (p->model.units[u].n_slices != 1 + (p->model.units[u].n_norms > 0))
            _exit(1);
    session_send(p->session, &reply);
}

/* Where a puppet that falls silent does so: true, and this message is not to be answered otherwise. */
static bool falls_silent(const struct puppet *p, const struct message *m)
{
    const struct message ahead = {.kind = MESSAGE_PULL, .pull = {.version = m->share.step + 1}},
                         failed = {.kind = MESSAGE_LOSS, .loss = {.step = m->share.step}}; /* not finite */

    if (p->fault == PUPPET_PULLS_AHEAD && m->kind == MESSAGE_SHARE)
        session_send(p->session, &ahead);
    if (p->fault == PUPPET_NEVER_RELEASES && m->kind == MESSAGE_SHARE)
        session_send(p->session, &failed);
    return (p->fault == PUPPET_NEVER_ASSIGNED && m->kind == MESSAGE_ASSIGN) ||
           (p->fault > PUPPET_NEVER_ASSIGNED && p->fault <= PUPPET_PULLS_AHEAD && m->kind == MESSAGE_SHARE) ||
           (p->fault == PUPPET_NEVER_RELEASES && m->kind == MESSAGE_RELEASE);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct puppet *p = session_data(s);

    (void)n_fds;
    if (falls_silent(p, m))
        return;
    if (m->kind == MESSAGE_ASSIGN && p->fault == PUPPET_DIES_ASSIGNED)
        _exit(0);
    if (m->kind == MESSAGE_ASSIGN && (p->fault == PUPPET_REFUSES || (p->fault == PUPPET_REFUSES_ONCE && !p->refused))) {
        p->refused = true;
        session_send(s, &(struct message){.kind = MESSAGE_REFUSED,
                                          .refused = {.code = -ENOMEM, .error.text = "no arena"}});
    } else if (m->kind == MESSAGE_ASSIGN) {
        take_assignment(p, m, fds);
    } else if (m->kind == MESSAGE_SHARE && p->busy && is_beside(p)) {
        _exit(1); /* before it has contributed all, or a second time */
    } else if (m->kind == MESSAGE_SHARE && p->busy) {
        p->has_next = true;
        p->next = *m;
    } else if (m->kind == MESSAGE_SHARE) {
        begin_step(p, m);
    } else if (m->kind == MESSAGE_WEIGHTS) {
        on_weights(p, m);
    } else if (m->kind == MESSAGE_VOID && p->fault == PUPPET_PULLS_LATE) {
        on_void(p, m);
    } else if (m->kind == MESSAGE_VOID && p->busy) { /* a step that was given up goes on to its end */
        on_weights(p, &(struct message){.kind = MESSAGE_WEIGHTS});
    } else if (m->kind == MESSAGE_FREE && p->busy && p->backward) {
        next_visit(p);
    } else if (m->kind == MESSAGE_RELEASE) { /* in the middle of a step too */
        p->busy = p->has_next = false;
        session_send(s, m);
    }
}

static void on_open(struct session *s, const struct message *welcome)
{
    const struct puppet *p = session_data(s);

    (void)welcome;
    if (p->fault == PUPPET_DIES_ATTACHED)
        _exit(0);
}

static void on_closed(struct session *s, const char *reason)
{
    (void)s;
    _exit(reason && strncmp(reason, "refused: ", 9) == 0 ? PUPPET_REFUSED : 0);
}

static void on_timer(uv_timer_t *timer)
{
    struct puppet *p = timer->data;

    p->count++;
}

static void play(const char *name, enum puppet_fault fault, bool counts)
{
    static const struct session_events events = {on_open, on_message, on_closed};
    struct puppet *p = calloc(1, sizeof *p);
    struct message hello = {.kind = MESSAGE_HELLO,
                            .hello = {.role = ROLE_WORKER,
                                      .pid = (uint32_t)getpid(),
                                      .device = "cpu",
                                      .model = "a puppet",
                                      .host = "stage",
                                      .budget = 1 << 30,
                                      .nonce = 77}};
    char directory[300];
    struct error err = {""};

    p->fault = fault;
    if (fault == PUPPET_STRANGE || fault == PUPPET_NAMELESS)
        strcpy(hello.hello.device, fault == PUPPET_STRANGE ? "foo" : "");
    if (is_beside(p)) {
        strcpy(hello.hello.device, "cuda");
        hello.hello.budget = (uint64_t)4 << 30;
    }
    if (uv_loop_init(&p->loop) || session_directory(directory, sizeof directory, name, &err) ||
        session_connect(&p->session, &p->loop, directory, &hello, &events, p, &err))
        _exit(1);
    session_share_progress(p->session, &p->count);
    uv_timer_init(&p->loop, &p->timer);
    p->timer.data = p;
    if (counts)
        uv_timer_start(&p->timer, on_timer, 100, 100);
    uv_run(&p->loop, UV_RUN_DEFAULT);
    _exit(1);
}

static pid_t start(const char *name, enum puppet_fault fault, bool counts)
{
    const pid_t parent = getpid(), pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent)
        play(name, fault, counts);
    _exit(1);
}

pid_t puppet_start(const char *name, enum puppet_fault fault)
{
    return start(name, fault, false);
}

pid_t puppet_start_counting(const char *name, enum puppet_fault fault)
{
    return start(name, fault, true);
}

void puppet_play(const char *name, enum puppet_fault fault)
{
    play(name, fault, false);
    _exit(1);
}

void puppet_await(const char *name)
{
    struct client_link viewer;
    struct message status;

    driver_look(&viewer, name);
    do
        driver_status(&viewer, &status);
    while (!status.status_reply.n_workers);
    client_link_free(&viewer);
}
