/* tests/sim/clock.cpp - virtual time: when work begins and ends, and who waited for whom.
 *
 * A lane is what does one thing at a time: the host, a stream, another thread of the host. It keeps what it did as spans,
 * each at work or waiting for another lane. So the cause of a wait is found afterwards: who was at work meanwhile, or if
 * the other waited too, whom it waited for. */
#include "tests/sim/state.hpp"

#include <algorithm>
#include <string.h>
#include <string>

enum { AT_WORK = -1 };

struct span {
    double from, to;
    int waits_for; /* a lane, or AT_WORK */
};

struct lane {
    std::string name;
    double free, ready; /* its last piece ends; what it waits for is reached */
    unsigned awaited;   /* whom `ready` is of */
    std::vector<span> spans;
};

struct engine {
    double free;
    unsigned lane; /* that used it last */
};

static struct clock_state {
    bool on;
    struct profile profile;
    std::vector<lane> lanes;
    engine engines[CUDASIM_ENGINES];
    cudasim_price price; /* of the operation whose first kernel is to come */
    double call;         /* seconds that its launch takes */
    bool in_operation;
    unsigned long unpriced;
} &state = *new clock_state(); /* never destroyed: the end of the program looks into it */

bool cudasim_has_time(void)
{
    return state.on;
}

/* ---- durations ---- */

struct cudasim_duration cudasim_copy_duration(double bytes, bool to_device, bool from_device)
{
    if (!state.on)
        return {CUDASIM_COMPUTES, 0};
    if (to_device && from_device)
        return {CUDASIM_COMPUTES, bytes / state.profile.memory_bytes_per_s};
    return {to_device ? CUDASIM_UPLOADS : CUDASIM_DOWNLOADS, bytes / state.profile.link_bytes_per_s};
}

struct cudasim_duration cudasim_product_duration(double operations, double bytes, double rows, double width,
                                                 enum number_type type)
{
    if (!state.on)
        return {CUDASIM_COMPUTES, 0};
    return {CUDASIM_COMPUTES, std::max(operations / profile_flops(&state.profile, type, rows, width),
                                       bytes / state.profile.memory_bytes_per_s) +
                                  state.profile.call_s};
}

void cudasim_operation(const struct cudasim_price *price)
{
    state.in_operation = price != NULL;
    state.price = price ? *price : cudasim_price{};
    state.call = price ? state.profile.call_s : 0;
}

double cudasim_conv2d_flops(enum conv2d_kind kind, enum conv2d_path path, enum number_type type, double pixels)
{
    return state.on ? profile_conv2d_flops(&state.profile, kind, path, type, pixels) : 0;
}

double cudasim_multiprocessors(void)
{
    return state.on ? state.profile.n_multiprocessors : 0;
}

double cudasim_norm_slowness(enum profile_direction direction)
{
    return state.on ? state.profile.memory_bytes_per_s / profile_norm_bytes_per_s(&state.profile, direction) : 1;
}

double cudasim_attention_flops(enum profile_direction direction, enum attention_path path, enum number_type type,
                               const struct attention_shape *shape)
{
    return state.on ? profile_attention_flops(&state.profile, direction, path, type, shape) : 0;
}

/* A table may be named by a member of an argument. */
static bool touches_host(const cudasim_launch &launch)
{
    for (const cudasim_pointer &pointer : launch.pointers)
        if (cudasim_is_host(pointer.address))
            return true;
    return false;
}

struct cudasim_duration cudasim_kernel_duration(const cudasim_launch &launch)
{
    const cudasim_price price = state.price;
    const double call = state.call;

    if (!state.on)
        return {CUDASIM_COMPUTES, 0};
    state.unpriced += !state.in_operation;
    state.price = {}, state.call = 0;
    struct cudasim_duration d = {CUDASIM_COMPUTES, price.bytes / state.profile.memory_bytes_per_s};
    if (price.operations > 0)
        d.seconds = std::max(d.seconds, price.operations / price.flops);
    if (price.host_bytes > 0 && touches_host(launch))
        d.seconds = std::max(d.seconds, price.host_bytes / state.profile.link_bytes_per_s);
    d.seconds += call;
    return d;
}

/* ---- lanes ---- */

unsigned cudasim_make_lane(const char *name)
{
    if (state.lanes.size() == CUDASIM_LANES)
        cudasim_fault("time passes for %d lanes at most", CUDASIM_LANES);
    state.lanes.push_back({name, 0, 0, CUDASIM_HOST, {}});
    return (unsigned)state.lanes.size() - 1;
}

static lane &host()
{
    return state.lanes[CUDASIM_HOST];
}

static void add_span(lane &to, double from, double until, int waits_for)
{
    if (until <= from)
        return;
    if (!to.spans.empty() && to.spans.back().waits_for == waits_for && to.spans.back().to == from)
        to.spans.back().to = until;
    else
        to.spans.push_back({from, until, waits_for});
}

/* Until when, and for whom, the lane's next piece waits. */
static std::pair<double, unsigned> constraint(const lane &l, double issued, const struct cudasim_duration *d)
{
    std::pair<double, unsigned> latest = {issued, CUDASIM_HOST};

    if (l.ready > latest.first)
        latest = {l.ready, l.awaited};
    if (d && d->seconds > 0 && state.engines[d->engine].free > latest.first)
        latest = {state.engines[d->engine].free, state.engines[d->engine].lane};
    return latest;
}

double cudasim_beginning(unsigned number, double issued, const struct cudasim_duration *duration)
{
    const lane &l = state.lanes[number];

    return std::max(l.free, constraint(l, issued, duration).first);
}

double cudasim_begin(unsigned number, double issued, const struct cudasim_duration *duration)
{
    lane &l = state.lanes[number];
    const auto latest = constraint(l, issued, duration);
    const double begin = std::max(l.free, latest.first);

    if (!duration || duration->seconds <= 0)
        return begin;
    add_span(l, l.free, begin, (int)latest.second);
    l.free = begin + duration->seconds;
    add_span(l, begin, l.free, AT_WORK);
    state.engines[duration->engine] = {l.free, number};
    return l.free;
}

void cudasim_lane_awaits(unsigned number, unsigned other, double until)
{
    lane &l = state.lanes[number];

    if (until > l.ready)
        l.ready = until, l.awaited = other;
}

void cudasim_host_meets(unsigned other, double until)
{
    add_span(host(), host().free, until, (int)other);
    host().free = std::max(host().free, until);
}

/* ---- the test's calls ---- */

void cudasim_time(const struct profile *profile)
{
    cudasim_call call(NULL);

    cudasim_run_all();
    state.on = profile != NULL;
    state.lanes.clear();
    memset(state.engines, 0, sizeof state.engines);
    state.unpriced = 0;
    if (!profile)
        return;
    state.profile = *profile;
    cudasim_make_lane("host");
    cudasim_streams_begin();
}

double cudasim_now(void)
{
    cudasim_call call(NULL);

    return state.on ? host().free : 0;
}

void cudasim_host_works(double seconds)
{
    cudasim_call call(NULL);

    if (!state.on)
        return;
    add_span(host(), host().free, host().free + seconds, AT_WORK);
    host().free += seconds;
}

unsigned cudasim_thread(const char *name)
{
    cudasim_call call(NULL);

    return state.on ? cudasim_make_lane(name) : 0;
}

double cudasim_thread_works(unsigned thread, double seconds)
{
    return cudasim_thread_worked(thread, cudasim_now(), seconds);
}

double cudasim_thread_worked(unsigned thread, double since, double seconds)
{
    cudasim_call call(NULL);

    if (!state.on)
        return 0;
    lane &l = state.lanes[thread];
    const double begin = std::max(l.free, since);
    add_span(l, l.free, begin, CUDASIM_HOST);
    add_span(l, begin, begin + seconds, AT_WORK);
    return l.free = begin + seconds;
}

void cudasim_host_awaits(unsigned thread, double until)
{
    cudasim_call call(NULL);

    if (state.on)
        cudasim_host_meets(thread, until);
}

/* Adds to waited[] who was at work from `from` to `until`, as far as lane `number` knows. */
static void attribute(double waited[], unsigned number, double from, double until, unsigned depth)
{
    const std::vector<span> &spans = state.lanes[number].spans;
    auto s = std::lower_bound(spans.begin(), spans.end(), from, [](const span &a, double t) { return a.to <= t; });

    for (; s != spans.end() && s->from < until; s++) {
        const double a = std::max(from, s->from), b = std::min(until, s->to);
        if (a > from)
            waited[CUDASIM_NOBODY] += a - from;
        if (s->waits_for == AT_WORK || depth == CUDASIM_LANES)
            waited[number] += b - a;
        else
            attribute(waited, (unsigned)s->waits_for, a, b, depth + 1);
        from = b;
    }
    if (from < until)
        waited[CUDASIM_NOBODY] += until - from;
}

static void tell_lane(struct cudasim_lane *to, const lane &l, double makespan)
{
    snprintf(to->name, sizeof to->name, "%s", l.name.c_str());
    for (const span &s : l.spans) {
        if (s.waits_for == AT_WORK)
            to->busy += s.to - s.from;
        else
            attribute(to->waited, (unsigned)s.waits_for, s.from, s.to, 0);
    }
    to->idle = makespan - to->busy;
    to->waited[CUDASIM_NOBODY] += makespan - l.free;
}

void cudasim_tell_time(struct cudasim_report *report)
{
    cudasim_call call(NULL);

    cudasim_run_all();
    *report = {};
    report->n_lanes = (unsigned)state.lanes.size();
    report->unpriced = state.unpriced;
    for (const lane &l : state.lanes)
        report->makespan = std::max(report->makespan, l.free);
    for (unsigned i = 0; i < report->n_lanes; i++)
        tell_lane(&report->lanes[i], state.lanes[i], report->makespan);
}

void cudasim_print_time(FILE *to, const struct cudasim_report *report)
{
    fprintf(to, "makespan %.6f ms\n", report->makespan * 1e3);
    for (const struct cudasim_lane *l = report->lanes; l < report->lanes + report->n_lanes; l++) {
        fprintf(to, "%-12s busy %.6f ms, idle %.6f ms", l->name, l->busy * 1e3, l->idle * 1e3);
        for (unsigned i = 0; i <= CUDASIM_LANES; i++)
            if (l->waited[i] > 0)
                fprintf(to, ", %.6f ms for %s", l->waited[i] * 1e3,
                        i == CUDASIM_NOBODY ? "nobody" : report->lanes[i].name);
        fprintf(to, "\n");
    }
    if (report->unpriced > 0)
        fprintf(to, "%lu kernels took no time\n", report->unpriced);
}
