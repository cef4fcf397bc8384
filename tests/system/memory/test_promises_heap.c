/* The step loop of daemon and worker allocates nothing, as counted in both processes
 * (tests/kit/preload/allocations.c). */
#include "tests/kit/command.h"
#include "tests/kit/preload/allocations.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(release)

SUITE_TIMEOUT(240)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

enum { FIRST = 3, WINDOW = 10, LAST = 40, MOST = 400 /* steps */ };

/* What each mode has that others have not: accumulators and their hand-over; a held gradient, stochastic rounding and
 * layers' inputs on the host; AdamA's parts and a clip of its own. */
static const struct {
    const char *name;
    enum eps_optimizer_kind optimizer;
    enum eps_number numbers;
    double clip_norm, clip_update;
    bool smallest;
} modes[] = {
    {"adamw", EPS_ADAMW, EPS_FP32, NAN, NAN, false},
    {"fenced", EPS_ADAMW, EPS_BF16, 1, NAN, true},
    {"clipped", EPS_ADAMA, EPS_BF16, NAN, 1, true},
};

/* Of a program. Live bytes at first are the least over a few steps: messages under way come and go. They have not grown
 * if they are as few again at LAST or after. */
struct heap {
    const char *pattern; /* of its file */
    const struct allocations *now;
    uint64_t ours_first, ours_last;
    int64_t live_first, live_last;
    bool is_seen; /* up to LAST */
};

static const struct allocations *find_counters(const char *pattern)
{
    glob_t found;

    ck_assert_int_eq(glob(pattern, 0, NULL, &found), 0);
    const int fd = open(found.gl_pathv[0], O_RDONLY);
    const struct allocations *counters = mmap(NULL, sizeof *counters, PROT_READ, MAP_SHARED, fd, 0);
    ck_assert(counters != MAP_FAILED);
    close(fd);
    globfree(&found);
    return counters;
}

static void on_step(void *user, const struct eps_step *step)
{
    for (struct heap *heap = user; heap->pattern && step->step >= FIRST; heap++) {
        if (step->step == FIRST) {
            heap->now = find_counters(heap->pattern);
            heap->ours_first = heap->now->ours;
            heap->live_first = heap->live_last = INT64_MAX;
        }
        if (step->step < FIRST + WINDOW && heap->now->live_bytes < heap->live_first)
            heap->live_first = heap->now->live_bytes;
        if (step->step > LAST - WINDOW && heap->now->live_bytes < heap->live_last)
            heap->live_last = heap->now->live_bytes;
        if (step->step <= MOST - 2) /* when the last step is covered, the run's end begins, which takes memory */
            heap->ours_last = heap->now->ours;
        heap->is_seen = step->step >= LAST;
    }
}

static int should_stop(void *user)
{
    bool done = true;

    for (const struct heap *heap = user; heap->pattern; heap++)
        done = done && heap->is_seen && heap->live_last <= heap->live_first;
    return done;
}

TEST_EACH(step_loop_allocates_nothing, COUNT(modes))
{
    const char *files[] = {processes_text("heap.txt", 4096)}, *counters = print("heap-%s", modes[_i].name);
    struct eps_train_options options = processes_options(processes_config("heap.json", 4, 2, 16, 16), files, "");
    const struct eps_train_events events = {.on_step = on_step, .should_stop = should_stop};
    struct heap heaps[3] = {{.pattern = print("%s/epsd-*", counters)}, {.pattern = print("%s/eps-worker-*", counters)}};
    struct eps_error error;

    options.out = modes[_i].name;
    options.steps = MOST;
    options.save_every = 0;
    options.batch = 4, options.seq = 16, options.parts = 2;
    options.optimizer = modes[_i].optimizer;
    options.precision = options.grad_dtype = modes[_i].numbers;
    options.moments = modes[_i].numbers == EPS_BF16 ? EPS_MOMENTS_BF16 : EPS_MOMENTS_FP32;
    options.clip_norm = modes[_i].clip_norm, options.clip_update = modes[_i].clip_update;
    if (modes[_i].smallest)
        ck_assert_int_eq(eps_plan_minimum(&options.device_mem, &options, &error), 0);
    ck_assert_int_eq(mkdir(counters, 0700), 0);
    setenv("ALLOCATIONS_DIR", processes_path(counters), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liballocations.so", 1);
    const int rc = eps_train(&options, &events, heaps, &error);
    ck_assert_msg(rc == -EINTR || rc == 0, "%s", error.text); /* stopped, or all steps done */
    unsetenv("LD_PRELOAD");
    for (const struct heap *heap = heaps; heap->pattern; heap++) {
        ck_assert_msg(heap->ours_last == heap->ours_first, "%s: an allocator was called %" PRIu64 " times",
                      heap->pattern, heap->ours_last - heap->ours_first);
        ck_assert_msg(heap->live_last <= heap->live_first, "%s: %" PRId64 " live bytes at first, %" PRId64 " at last",
                      heap->pattern, heap->live_first, heap->live_last);
    }
}
