/* tests/sim/stream.cpp - streams and events: queues of work that wait until the host does.
 *
 * Then one piece after another runs, of the stream that cudasim_order says, until what the host waits for is done and no
 * further. So whatever no event or wait orders comes as late, or as early, as it can. Where time passes (clock.cpp), the
 * piece that begins first is next. */
#include "tests/sim/state.hpp"

#include <deque>
#include <map>
#include <memory>
#include <string.h>
#include <string>
#include <unordered_set>

struct CUevent_st {
    uint64_t recorded, reached; /* records of it so far: queued, done */
    bool live;
    double time;   /* when it was reached last, */
    unsigned lane; /* in whose */
};

struct piece {
    uint64_t number; /* in order of issue */
    double issued;   /* when */
    struct cudasim_duration duration;
    std::function<void()> run;
    cudaEvent_t awaited, recorded; /* or NULL */
    uint64_t record;               /* of the event */
};

struct CUstream_st {
    std::deque<piece> pieces;
    uint64_t issued, done;
    bool live;
    unsigned lane;
    double last; /* when its last piece was done */
};

/* Never destroyed: the end of the program looks into them. */
static std::vector<cudaStream_t> &streams =
    *new std::vector<cudaStream_t>; /* all there ever were, so that use after destruction is seen */
static std::unordered_set<cudaEvent_t> &events = *new std::unordered_set<cudaEvent_t>;
static std::map<const void *, size_t> &allowed_shared = *new std::map<const void *, size_t>; /* by kernel */
static uint64_t n_issued;

void cudasim_check_stream(cudaStream_t stream, const char *who)
{
    if (!stream)
        cudasim_fault("%s: the default stream is not simulated", who);
    for (cudaStream_t s : streams)
        if (s == stream && s->live)
            return;
    cudasim_fault("%s: stream %p was never created, or is destroyed", who, (void *)stream);
}

static void check_event(cudaEvent_t event, const char *who)
{
    if (!events.count(event) || !event->live)
        cudasim_fault("%s: event %p was never created, or is destroyed", who, (void *)event);
}

/* ---- running ---- */

static bool may_run(cudaStream_t s)
{
    return !s->pieces.empty() && (!s->pieces[0].awaited || s->pieces[0].awaited->reached >= s->pieces[0].record);
}

/* Of those that take time, the first to begin; others bring that about, and come before. */
static cudaStream_t choose_by_time()
{
    cudaStream_t chosen = NULL;
    double first = 0;

    for (cudaStream_t s : streams) {
        if (!may_run(s))
            continue;
        const piece &next = s->pieces[0];
        const bool marks = next.awaited || next.recorded;
        const double begins = marks ? -1 : cudasim_beginning(s->lane, next.issued, &next.duration);
        if (!chosen || begins < first || (begins == first && next.number < chosen->pieces[0].number))
            chosen = s, first = begins;
    }
    return chosen;
}

/* The stream whose turn it is. There is one: an event that is awaited was recorded before. */
static cudaStream_t choose()
{
    cudaStream_t chosen = NULL;
    unsigned n = 0;

    if (cudasim_has_time())
        return choose_by_time();

    for (cudaStream_t s : streams) {
        if (!may_run(s))
            continue;
        n++;
        switch (cudasim_stream_order()) {
        case CUDASIM_STREAMS_AS_ISSUED:
            if (!chosen || s->pieces[0].number < chosen->pieces[0].number)
                chosen = s;
            break;
        case CUDASIM_STREAMS_OLDEST_FIRST:
            if (!chosen)
                chosen = s;
            break;
        case CUDASIM_STREAMS_NEWEST_FIRST:
            chosen = s;
            break;
        case CUDASIM_STREAMS_RANDOM:
            if (cudasim_random(n) == 0)
                chosen = s;
            break;
        }
    }
    return chosen;
}

static void pass_time(cudaStream_t s, const piece &done)
{
    if (done.awaited)
        cudasim_lane_awaits(s->lane, done.awaited->lane, done.awaited->time);
    s->last = cudasim_begin(s->lane, done.issued, &done.duration);
    if (done.recorded)
        done.recorded->time = s->last, done.recorded->lane = s->lane;
}

static void run_one()
{
    cudaStream_t s = choose();
    const piece next = s->pieces[0];

    s->pieces.pop_front();
    if (next.run)
        next.run();
    if (cudasim_has_time())
        pass_time(s, next);
    if (next.recorded && next.record > next.recorded->reached)
        next.recorded->reached = next.record;
    s->done++;
}

template <typename Done> static void run_until(Done done)
{
    if (done() || cudasim_is_lost())
        return;
    cudasim_open_memory();
    while (!done())
        run_one();
    cudasim_close_memory();
}

/* The host waits for work of this lane to be done then. */
static void meet(unsigned lane, double time)
{
    if (cudasim_has_time())
        cudasim_host_meets(lane, time);
}

void cudasim_run_stream(cudaStream_t stream)
{
    const uint64_t target = stream->issued;

    run_until([=]() { return stream->done >= target; });
    meet(stream->lane, stream->last);
}

void cudasim_run_all(void)
{
    run_until([]() {
        for (cudaStream_t s : streams)
            if (!s->pieces.empty())
                return false;
        return true;
    });
}

void cudasim_await_all(void)
{
    cudasim_run_all();
    for (cudaStream_t s : streams)
        if (s->live)
            meet(s->lane, s->last);
}

/* What a query sees: the device has got one piece further, if that is what it takes to get anywhere. Where time passes,
 * all that is asked for has been run, and who asks too early has waited until the next time. */
template <typename Done> static cudaError_t query(Done done, const double &time, const unsigned &lane)
{
    bool once = false;

    if (cudasim_has_time()) {
        run_until(done);
        const bool early = time > cudasim_now();
        meet(lane, time);
        return early ? cudaErrorNotReady : cudaSuccess;
    }

    run_until([&]() {
        const bool enough = once || done();
        once = true;
        return enough;
    });
    return done() ? cudaSuccess : cudaErrorNotReady;
}

static void queue(cudaStream_t stream, piece piece)
{
    piece.number = n_issued++;
    piece.issued = cudasim_now();
    stream->pieces.push_back(piece);
    stream->issued++;
}

void cudasim_queue(cudaStream_t stream, const struct cudasim_duration &duration, const std::function<void()> &work)
{
    queue(stream, {0, 0, duration, work, NULL, NULL, 0});
}

static unsigned n_lanes; /* that streams have */

static void give_lane(cudaStream_t stream)
{
    stream->lane = cudasim_make_lane(("stream " + std::to_string(n_lanes++)).c_str());
    stream->last = cudasim_now();
}

void cudasim_streams_begin(void)
{
    n_lanes = 0;
    for (cudaEvent_t e : events)
        e->time = 0, e->lane = CUDASIM_HOST;
    for (cudaStream_t s : streams)
        if (s->live)
            give_lane(s);
}

void cudasim_streams_left(void)
{
    for (cudaStream_t s : streams)
        if (s->live)
            cudasim_fault("stream %p is left at the end", (void *)s);
    for (cudaEvent_t e : events)
        if (e->live)
            cudasim_fault("event %p is left at the end", (void *)e);
}

/* ---- the runtime's calls ---- */

cudaError_t cudaDeviceSynchronize(void)
{
    CUDASIM_CALL();

    cudasim_counted.device_waits++;
    cudasim_await_all();
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    CUDASIM_CALL();

    if (flags != cudaStreamNonBlocking)
        cudasim_fault("cudaStreamCreateWithFlags: streams that wait for the default stream are not simulated");
    *stream = new CUstream_st();
    (*stream)->live = true;
    streams.push_back(*stream);
    if (cudasim_has_time())
        give_lane(*stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    CUDASIM_CALL();

    cudasim_check_stream(stream, "cudaStreamDestroy");
    cudasim_run_stream(stream);
    stream->live = false;
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    CUDASIM_CALL();

    cudasim_check_stream(stream, "cudaStreamSynchronize");
    cudasim_counted.stream_waits++;
    cudasim_run_stream(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    CUDASIM_CALL();

    cudasim_check_stream(stream, "cudaStreamQuery");
    return query([=]() { return stream->pieces.empty(); }, stream->last, stream->lane);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags)
{
    CUDASIM_CALL();

    cudasim_check_stream(stream, "cudaStreamWaitEvent");
    check_event(event, "cudaStreamWaitEvent");
    if (flags)
        return call.failed(cudaErrorInvalidValue);
    queue(stream, {0, 0, {}, NULL, event, NULL, event->recorded});
    return cudaSuccess;
}

/* The host's function runs in the stream's turn, and takes no time. It may call nothing of the runtime's. */
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void *data)
{
    CUDASIM_CALL();

    cudasim_check_stream(stream, "cudaLaunchHostFunc");
    queue(stream, {0, 0, {}, [=]() { f(data); }, NULL, NULL, 0});
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    CUDASIM_CALL();

    if (!(flags & cudaEventDisableTiming))
        cudasim_fault("cudaEventCreateWithFlags: events that take the time are not simulated");
    cudasim_counted.events++;
    *event = new CUevent_st();
    (*event)->live = true;
    events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    CUDASIM_CALL();

    check_event(event, "cudaEventDestroy");
    event->live = false;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    CUDASIM_CALL();

    cudasim_check_stream(stream, "cudaEventRecord");
    check_event(event, "cudaEventRecord");
    queue(stream, {0, 0, {}, NULL, NULL, event, ++event->recorded});
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    CUDASIM_CALL();

    check_event(event, "cudaEventQuery");
    return query([=]() { return event->reached == event->recorded; }, event->time, event->lane);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    CUDASIM_CALL();

    check_event(event, "cudaEventSynchronize");
    cudasim_counted.event_waits++;
    run_until([=]() { return event->reached == event->recorded; });
    meet(event->lane, event->time);
    return cudaSuccess;
}

/* ---- launches ---- */

static void note_pointers(std::vector<cudasim_pointer> &to, const cudasim_parameter &parameter, const void *x,
                          unsigned i)
{
    const char *const bytes = (const char *)x;

    for (size_t at = 0; (parameter.is_pointer || parameter.clear) && at + sizeof(void *) <= parameter.bytes;
         at += sizeof(void *)) {
        const void *word;
        memcpy(&word, bytes + at, sizeof word);
        to.push_back({word, parameter.is_pointer && !parameter.is_const, parameter.is_pointer, i});
    }
}

/* With copies of the arguments, each in 16-byte units of its own. */
static cudasim_launch capture(const cudasim_kernel &kernel, dim3 grid, dim3 block, void *const *args, size_t shared)
{
    struct alignas(16) unit {
        unsigned char bytes[16];
    };
    struct copies {
        std::vector<unit> units;
        std::vector<void *> at;
    };
    const auto copy = std::make_shared<copies>();
    cudasim_launch launch = {kernel.address, grid, block, shared, {}, {}};
    size_t n_units = 0;

    for (unsigned i = 0; i < kernel.n_parameters; i++)
        n_units += (kernel.parameters[i].bytes + sizeof(unit) - 1) / sizeof(unit);
    copy->units.resize(n_units);
    unit *to = copy->units.data();
    for (unsigned i = 0; i < kernel.n_parameters; i++) {
        const cudasim_parameter &parameter = kernel.parameters[i];
        memcpy(to, args[i], parameter.bytes);
        if (parameter.clear)
            parameter.clear(to);
        note_pointers(launch.pointers, parameter, to, i);
        copy->at.push_back(to);
        to += (parameter.bytes + sizeof(unit) - 1) / sizeof(unit);
    }
    launch.body = [kernel, copy]() { kernel.call(kernel.address, copy->at.data()); };
    return launch;
}

static void check_pointers(const cudasim_launch &launch)
{
    for (const cudasim_pointer &pointer : launch.pointers) {
        const std::string who = std::string("kernel ") + cudasim_kernel_name(launch.kernel) + ", argument " +
                                std::to_string(pointer.argument);

        if (!pointer.surely)
            cudasim_check_word(who.c_str(), pointer.address);
        else if (pointer.address)
            cudasim_check(who.c_str(), pointer.address, 0, pointer.writes);
    }
}

cudaError_t cudasim_queue_launch(cudaStream_t stream, const cudasim_kernel &kernel, dim3 g, dim3 b, void *const *args,
                                 size_t shared)
{
    cudasim_call call("cudaLaunchKernel");
    const cudasim_launch launch = capture(kernel, g, b, args, shared);
    const auto allowed = allowed_shared.find(launch.kernel);

    if (call.rc != cudaSuccess)
        return call.rc;
    cudasim_check_stream(stream, "cudaLaunchKernel");
    if (!g.x || !g.y || !g.z || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535 || !b.x || !b.y || !b.z || b.z > 64 ||
        b.x > CUDASIM_MOST_THREADS || b.y > CUDASIM_MOST_THREADS || b.x * b.y * b.z > CUDASIM_MOST_THREADS)
        return call.failed(cudaErrorInvalidConfiguration);
    if (launch.shared > (allowed == allowed_shared.end() ? (size_t)CUDASIM_SHARED : allowed->second))
        return call.failed(cudaErrorInvalidValue);
    if (const cudaError_t rc = cudasim_fits(launch))
        return call.failed(rc);
    check_pointers(launch);
    cudasim_counted.launches++;
    for (const cudasim_pointer &pointer : launch.pointers)
        if (pointer.surely && pointer.writes && cudasim_is_host(pointer.address)) {
            cudasim_counted.host_stores++;
            break;
        }
    cudasim_queue(stream, cudasim_kernel_duration(launch), [=]() {
        check_pointers(launch);
        cudasim_run_grid(launch);
    });
    return cudaSuccess;
}

cudaError_t cudasim_set_attribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    cudasim_call call("cudaFuncSetAttribute");

    if (call.rc != cudaSuccess || attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return call.rc;
    if (value < 0 || (size_t)value > cudasim_most_shared())
        return call.failed(cudaErrorInvalidValue);
    allowed_shared[kernel] = (size_t)value;
    return cudaSuccess;
}
