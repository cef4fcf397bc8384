/* The step loop of daemon and worker allocates nothing, as counted in both processes (tests/kit/preload/allocations.c). */
#include "tests/kit/preload/allocations.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(release)

SUITE_TIMEOUT(240)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

enum { FIRST = 3, WINDOW = 20 };

/* What each mode has that others have not: accumulators and their hand-over; a held gradient, stochastic rounding and
 * layers' inputs on the host; AdamA's parts and a clip of its own. */
static const struct heap_mode {
    const char *name, *heap;
    uint64_t last; /* step that is looked at */
    enum eps_optimizer_kind optimizer;
    uint32_t parts;
    enum eps_number numbers;
    double clip_norm, clip_update;
    bool smallest;
} heap_modes[] = {
    {"adamw", "heap-adamw", 100, EPS_ADAMW, 2, EPS_FP32, NAN, NAN, false},
    {"fenced", "heap-fenced", 60, EPS_ADAMW, 2, EPS_BF16, 1, NAN, true},
    {"clipped", "heap-clipped", 60, EPS_ADAMA, 2, EPS_BF16, NAN, 1, true},
};

struct heap {
    const struct heap_mode *mode;
    const struct allocations *counters[2]; /* epsd, eps-worker */
    uint64_t ours_first[2], ours_last[2];
    int64_t live_first[2], live_last[2]; /* the least over a few steps: messages under way come and go */
};

static const char *const programs[2] = {"epsd-", "eps-worker-"};

static void find_counters(struct heap *heap)
{
    char path[300];
    snprintf(path, sizeof path, "%s", processes_path(heap->mode->heap));
    DIR *dir = opendir(path);
    struct dirent *entry;

    while ((entry = readdir(dir)))
        for (int i = 0; i < 2; i++)
            if (strncmp(entry->d_name, programs[i], strlen(programs[i])) == 0) {
                char file[600];
                snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
                int fd = open(file, O_RDONLY);
                heap->counters[i] = mmap(NULL, sizeof(struct allocations), PROT_READ, MAP_SHARED, fd, 0);
                close(fd);
            }
    closedir(dir);
    ck_assert_ptr_nonnull(heap->counters[0]);
    ck_assert_ptr_nonnull(heap->counters[1]);
}

static void on_heap_step(void *user, const struct eps_step *step)
{
    struct heap *heap = user;

    if (step->step == FIRST)
        find_counters(heap);
    for (int i = 0; i < 2 && step->step >= FIRST && step->step <= heap->mode->last; i++) {
        const struct allocations *now = heap->counters[i];
        if (step->step == FIRST) {
            heap->ours_first[i] = now->ours;
            heap->live_first[i] = heap->live_last[i] = INT64_MAX;
        }
        if (step->step < FIRST + WINDOW && now->live_bytes < heap->live_first[i])
            heap->live_first[i] = now->live_bytes;
        if (step->step > heap->mode->last - WINDOW && now->live_bytes < heap->live_last[i])
            heap->live_last[i] = now->live_bytes;
        heap->ours_last[i] = now->ours;
    }
}

TEST_EACH(step_loop_allocates_nothing, COUNT(heap_modes))
{
    const struct heap_mode *mode = &heap_modes[_i];
    const char *files[] = {processes_text("heap.txt", 4096)};
    struct eps_train_options options =
        processes_options(processes_config("heap.json", 4, 2, 16, 16), files, processes_path(mode->name));
    const struct eps_train_events events = {.on_step = on_heap_step};
    struct heap heap = {.mode = mode};
    struct eps_error error;

    options.steps = mode->last + 2; /* the checkpoint of the end begins when the last step is covered */
    options.batch = 4;
    options.seq = 16;
    options.save_every = 0; /* a checkpoint takes memory while it is written */
    options.parts = mode->parts, options.optimizer = mode->optimizer;
    options.precision = options.moments = options.grad_dtype = mode->numbers;
    options.clip_norm = mode->clip_norm, options.clip_update = mode->clip_update;
    if (mode->smallest)
        ck_assert_int_eq(eps_plan_minimum(&options.device_mem, &options, &error), 0);
    ck_assert_int_eq(mkdir(processes_path(mode->heap), 0700), 0);
    setenv("ALLOCATIONS_DIR", processes_path(mode->heap), 1);
    setenv("LD_PRELOAD", BIN_DIR "/liballocations.so", 1);
    ck_assert_msg(eps_train(&options, &events, &heap, &error) == 0, "%s", error.text);
    unsetenv("LD_PRELOAD");
    for (int i = 0; i < 2; i++) {
        ck_assert_msg(heap.ours_last[i] == heap.ours_first[i],
                      "%s: %s called an allocator %" PRIu64 " times between steps %d and %" PRIu64, mode->name,
                      programs[i], heap.ours_last[i] - heap.ours_first[i], FIRST, mode->last);
        ck_assert_msg(heap.live_last[i] == heap.live_first[i],
                      "%s: %s: %" PRId64 " live bytes at step %d, %" PRId64 " at step %" PRIu64, mode->name,
                      programs[i], heap.live_first[i], FIRST, heap.live_last[i], mode->last);
    }
}
