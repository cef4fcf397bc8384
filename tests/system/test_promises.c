/* The memory that is promised, measured from outside: device caps, the ledger against the operating system's count,
 * bytes a parameter, and a step loop that allocates nothing. */
#include "tests/kit/preload/allocations.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

SUITE_LABELS(release, serial)

struct seen {
    uint64_t device_peak, steps;
};

static void on_step(void *user, const struct eps_step *step)
{
    struct seen *seen = user;

    seen->device_peak = step->device_peak_bytes;
    seen->steps++;
}

/* 20 caps from hopeless to roomy, on a geometric scale. Below some figure all are refused, above it none, and the
 * figure that a refusal names is that one: a run with it is accepted, with one byte less refused. */
static int run_with_cap(uint64_t cap, struct seen *seen, struct eps_error *error)
{
    const char *files[] = {processes_path("caps.txt")};
    struct eps_train_options options = processes_options(processes_path("caps.json"), files, NULL);
    const struct eps_train_events events = {.on_step = on_step};
    char out[64];

    snprintf(out, sizeof out, "caps-%" PRIu64, cap);
    options.out = processes_path(out);
    options.steps = 2;
    options.batch = 8;
    options.seq = 64;
    options.device_mem = cap;
    *seen = (struct seen){0, 0};
    return eps_train(&options, &events, seen, error);
}

SUITE_TIMEOUT(240)
SUITE_FIXTURE_ONCE(processes_setup, processes_remove)

TEST(no_device_cap_is_ever_passed)
{
    uint64_t cap = 1 << 20, smallest = 0;
    unsigned refused = 0, kept = 0;
    struct eps_error error;
    struct seen seen;

    processes_config("caps.json", 4, 4, 128, 64);
    processes_text("caps.txt", 4096);
    for (int i = 0; i < 20; i++, cap += cap / 3) {
        int rc = run_with_cap(cap, &seen, &error);
        if (rc) {
            const char *figure = strstr(error.text, "at least ");
            ck_assert_msg(rc == -ENOSPC, "%s", error.text);
            ck_assert_uint_eq(seen.steps, 0);
            ck_assert_msg(kept == 0, "%" PRIu64 " bytes refused after less was enough: %s", cap, error.text);
            ck_assert_msg(figure != NULL, "no figure in: %s", error.text);
            ck_assert_ptr_nonnull(strchr(figure, '('));
            smallest = strtoull(strchr(figure, '(') + 1, NULL, 10); /* "at least 39.0 MiB (40800768 bytes)" */
            refused++;
        } else {
            ck_assert_uint_eq(seen.steps, 2);
            ck_assert_uint_gt(seen.device_peak, 0);
            ck_assert_uint_le(seen.device_peak, cap);
            kept++;
        }
    }
    ck_assert_uint_gt(refused, 3);
    ck_assert_uint_gt(kept, 3);
    ck_assert_int_eq(run_with_cap(smallest, &seen, &error), 0);
    ck_assert_uint_le(seen.device_peak, smallest);
    ck_assert_int_eq(run_with_cap(smallest - 1, &seen, &error), -ENOSPC);
}

struct ledger_seen {
    pid_t daemon;
    uint64_t resident, ledger, weights, moments, n_parameters;
};

static uint64_t resident(pid_t pid)
{
    return processes_status_bytes(pid, "RssAnon") + processes_status_bytes(pid, "RssShmem");
}

static void on_memory(void *user, const struct eps_memory *side)
{
    struct ledger_seen *seen = user;

    for (size_t i = 0; side->worker == 0 && i < side->n_rows; i++) {
        if (strcmp(side->rows[i].category, "weights") == 0)
            seen->weights = side->rows[i].current;
        if (strstr(side->rows[i].category, "moment"))
            seen->moments += side->rows[i].current;
    }
    if (side->worker == 0)
        seen->ledger = side->current;
}

static void on_third_step(void *user, const struct eps_step *step)
{
    struct ledger_seen *seen = user;

    if (step->step != 3)
        return;
    seen->resident = resident(seen->daemon);
    ck_assert_int_eq(eps_mem("lab", on_memory, seen, NULL), 0);
}

static void on_start(void *user, const struct eps_train_options *resolved, uint64_t n_parameters)
{
    (void)resolved;
    ((struct ledger_seen *)user)->n_parameters = n_parameters;
}

TEST(ledger_agrees_with_the_operating_system)
{
    const char *files[] = {processes_text("ledger.txt", 8192)};
    struct eps_train_options options =
        processes_options(processes_config("ledger.json", 6, 8, 512, 128), files, processes_path("ledger-run"));
    const struct eps_train_events events = {.on_start = on_start, .on_step = on_third_step};
    struct ledger_seen seen = {.daemon = processes_daemon("lab", 1, NULL)};
    const uint64_t before = resident(seen.daemon);
    struct eps_error error;

    options.connect = "lab";
    options.steps = 3;
    options.batch = 4;
    options.seq = 128;
    ck_assert_msg(eps_train(&options, &events, &seen, &error) == 0, "%s", error.text);
    const double grown = (double)(seen.resident - before), counted = (double)seen.ledger;
    ck_assert_msg(grown < counted * 1.03 + 8e6 && grown > counted * 0.97 - 8e6,
                  "the system says %.1f MB, the ledger %.1f MB", grown / 1e6, counted / 1e6);
    /* 12 bytes a parameter: 4 of weights, 8 of moments; units begin on cache lines, which rounds up by less than 64
     * bytes each. */
    ck_assert_uint_ge(seen.weights + seen.moments, 12 * seen.n_parameters);
    ck_assert_uint_le(seen.weights + seen.moments, 12 * (seen.n_parameters + 16 * 20));
    ck_assert_int_eq(eps_stop("lab", NULL), 0);
    ck_assert_int_eq(processes_wait(seen.daemon), 0);
}

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
    {"adamw", "heap-adamw", 1000, EPS_ADAMW, 2, EPS_FP32, NAN, NAN, false},
    {"fenced", "heap-fenced", 150, EPS_ADAMW, 2, EPS_BF16, 1, NAN, true},
    {"clipped", "heap-clipped", 150, EPS_ADAMA, 2, EPS_BF16, NAN, 1, true},
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

    if (SANITIZED) /* the sanitizer has replaced malloc itself */
        return;
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
