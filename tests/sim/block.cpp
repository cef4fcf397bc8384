/* tests/sim/block.cpp - a block's threads: fibres of one host thread.
 *
 * Each runs until it returns or waits at a meeting, then the next; when all that are to meet are there, they go on. In
 * between nothing interrupts a thread. So the order of threads (cudasim_order) decides what a thread sees of another
 * that it has not met, and a missing barrier is a wrong result in one order or the other, every time. When nobody can go
 * on, somebody has not come: that is a fault, told with the two that wait for each other. */
#include "tests/sim/state.hpp"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifdef CUDASIM_ASAN
#include <sanitizer/common_interface_defs.h>
#define START_SWITCH  __sanitizer_start_switch_fiber
#define FINISH_SWITCH __sanitizer_finish_switch_fiber
enum { STACK_BYTES = 1 << 20 }; /* locals have red zones of their own */
#else
#define START_SWITCH(fake, bottom, size)  ((void)0)
#define FINISH_SWITCH(fake, bottom, size) ((void)0)
enum { STACK_BYTES = 256 << 10 };
#endif

struct copy {
    void *to;
    const void *from;
    size_t bytes, given;
    unsigned group;
};

struct fibre {
    void *sp;
    const void *stack;
    size_t stack_bytes;
    void *fake; /* AddressSanitizer's */
    unsigned number;
    uint3 index;
    bool returned;
    struct cudasim_place place; /* that it waits at */
    bool whole;                 /* for the block, saying `yes` */
    bool yes;
    unsigned mask; /* for these of its warp */
    const void *mine;
    size_t bytes;
    void *theirs;
    unsigned first, n; /* lanes whose values it wants */
    unsigned meetings; /* of its whole warp, or block */
    unsigned group;    /* of copies, not yet committed */
    std::vector<copy> copies;
};

/* Lanes that wait for the others of their mask. */
struct meeting {
    struct cudasim_place place;
    unsigned mask, arrived;
    size_t bytes;
};

struct warp {
    unsigned ready; /* lanes that can go on */
    std::vector<meeting> meetings;
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

static struct block_state {
    std::vector<fibre *> fibres; /* as many as were ever needed */
    std::vector<warp> warps;     /* theirs */
    const cudasim_launch *launch;
    uint64_t number; /* of all that have run */
    unsigned n_threads, n_returned, n_yes;
    enum cudasim_threads order;
    fibre runner;          /* who runs the block */
    fibre *running, *last; /* last: who ran before */
    char *pages, *shared; /* the block's dynamic shared memory: its last byte is followed by a page that is not there */
} &block = *new block_state(); /* never destroyed: the end of the program looks into it */

/* Saves the callee's registers and the stack in *from, goes on where `to` was saved. */
extern "C" void cudasim_switch(void **from, void *to);
asm(".text\n"
    ".type cudasim_switch, @function\n"
    "cudasim_switch:\n"
    "    pushq %rbp\n"
    "    pushq %rbx\n"
    "    pushq %r12\n"
    "    pushq %r13\n"
    "    pushq %r14\n"
    "    pushq %r15\n"
    "    movq %rsp, (%rdi)\n"
    "    movq %rsi, %rsp\n"
    "    popq %r15\n"
    "    popq %r14\n"
    "    popq %r13\n"
    "    popq %r12\n"
    "    popq %rbx\n"
    "    popq %rbp\n"
    "    ret\n"
    ".size cudasim_switch, . - cudasim_switch\n");

static void go_to(fibre *next)
{
    fibre *me = block.running;

    block.last = me, block.running = next;
    threadIdx = next->index;
    START_SWITCH(&me->fake, next->stack, next->stack_bytes);
    cudasim_switch(&me->sp, next->sp);
    FINISH_SWITCH(me->fake, &block.last->stack, &block.last->stack_bytes);
}

/* A fibre that runs; NULL: none does. */
static fibre *running()
{
    return block.running == &block.runner ? NULL : block.running;
}

static warp &warp_of(const fibre *f)
{
    return block.warps[f->number / warpSize];
}

static unsigned lane_bit(const fibre *f)
{
    return 1u << f->number % warpSize;
}

/* The next of the warp in order, from this lane on and around; NULL if nobody is ready. */
static fibre *next_of_warp(unsigned of, unsigned lane)
{
    const unsigned ready = block.warps[of].ready;
    unsigned chosen;

    if (!ready)
        return NULL;
    if (block.order == CUDASIM_THREADS_BACKWARD) {
        const unsigned before = ready & ((1u << lane) - 1);
        chosen = 31 - (unsigned)__builtin_clz(before ? before : ready);
    } else {
        const unsigned after = ready & (~0u << lane << 1);
        chosen = (unsigned)__builtin_ctz(after ? after : ready);
    }
    return block.fibres[of * warpSize + chosen];
}

/* Goes on when another makes it ready. Until then the rest of its warp, as far as that gets, and then other warps; in
 * random order whoever it is. */
static void suspend()
{
    const fibre *me = block.running;
    fibre *next = NULL;

    if (block.order != CUDASIM_THREADS_RANDOM)
        next = next_of_warp(me->number / warpSize, me->number % warpSize);
    go_to(next ? next : &block.runner);
}

/* One fibre is the same thread of block after block. */
static void live()
{
    FINISH_SWITCH(NULL, &block.last->stack, &block.last->stack_bytes);
    for (;;) {
        block.launch->body();
        fibre *me = block.running;
        me->returned = true;
        warp_of(me).ready &= ~lane_bit(me);
        block.n_returned++;
        suspend();
    }
}

/* Stacks begin at different places of their pages: else those of a warp would share a few lines of the cache. */
static fibre *make_fibre(unsigned number)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), offset = number % warpSize * (page / warpSize);
    fibre *made = new fibre();
    char *memory = (char *)mmap(NULL, page + STACK_BYTES, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE))
        cudasim_fault("no memory for the stack of thread %u", number);
    made->number = number;
    made->stack = memory + page;
    made->stack_bytes = STACK_BYTES - offset;
    /* As if `live` had been called: 16-byte aligned, less 8. */
    void **top = (void **)(memory + page + made->stack_bytes) - 2;
    *top = (void *)live;
    made->sp = top - 6;
    return made;
}

/* ---- meetings ---- */

static bool is_same(const struct cudasim_place &a, const struct cudasim_place &b)
{
    return a.line == b.line && (a.what == b.what || !strcmp(a.what, b.what));
}

/* Of two that are not ready: they wait for the same. */
static bool same_place(const fibre *a, const fibre *b)
{
    return !a->returned && !b->returned && a->whole == b->whole && is_same(a->place, b->place) &&
           (a->whole || (a->mask == b->mask && a->bytes == b->bytes));
}

static void describe(char *to, size_t size, const fibre *who)
{
    if (who->number >= block.n_threads)
        snprintf(to, size, "there is no thread %u", who->number);
    else if (who->returned)
        snprintf(to, size, "thread %u has returned", who->number);
    else if (who->whole)
        snprintf(to, size, "thread %u waits at %s in line %d", who->number, who->place.what, who->place.line);
    else
        snprintf(to, size, "thread %u waits at %s (mask %08x) in line %d", who->number, who->place.what, who->mask,
                 who->place.line);
}

[[noreturn]] static void never_meet(const fibre *a, const fibre *b)
{
    char one[200], other[200];

    describe(one, sizeof one, a);
    describe(other, sizeof other, b);
    cudasim_fault("%s, but %s", one, other);
}

static fibre &nobody = *new fibre(); /* a lane past the block's end */

/* Nobody is ready: a lane that `me` waits for in vain. */
static const fibre *missing(const fibre *me)
{
    const unsigned first = me->number / warpSize * warpSize;

    for (unsigned lane = warpSize; lane-- > 0;) {
        if (!(me->mask >> lane & 1))
            continue;
        if (first + lane >= block.n_threads) {
            nobody.number = first + lane;
            return &nobody;
        }
        if (!same_place(me, block.fibres[first + lane]))
            return block.fibres[first + lane];
    }
    return NULL;
}

/* Whether all of the mask are there now; the meeting is over then. */
static bool complete(const fibre *me)
{
    std::vector<meeting> &meetings = warp_of(me).meetings;
    size_t i = 0;

    while (i < meetings.size() &&
           (meetings[i].mask != me->mask || meetings[i].bytes != me->bytes || !is_same(meetings[i].place, me->place)))
        i++;
    if (i == meetings.size())
        meetings.push_back({me->place, me->mask, 0, me->bytes});
    meetings[i].arrived |= lane_bit(me);
    if (meetings[i].arrived != me->mask)
        return false;
    meetings[i] = meetings.back();
    meetings.pop_back();
    return true;
}

alignas(16) static char laid[warpSize * 1024]; /* what the lanes of a warp lay down */

/* Numbers, which most of it is, need no call. */
static inline void copy_bytes(void *to, const void *from, size_t bytes)
{
    if (bytes == 4)
        memcpy(to, from, 4);
    else
        memcpy(to, from, bytes);
}

/* Gives each lane of the mask what it wants of the others, once that is computed, where it must be. */
static void exchange(fibre *const *lanes, unsigned mask, size_t bytes, void (*compute)(void *all))
{
    if (mask != ~0u)
        memset(laid, CUDASIM_POISON_BYTE, warpSize * bytes);
    for (unsigned lane = 0; lane < warpSize; lane++)
        if (mask >> lane & 1)
            copy_bytes(laid + lane * bytes, lanes[lane]->mine, bytes);
    if (compute)
        compute(laid);
    for (unsigned lane = 0; lane < warpSize; lane++)
        if (mask >> lane & 1)
            copy_bytes(lanes[lane]->theirs, laid + lanes[lane]->first * bytes, lanes[lane]->n * bytes);
}

static void meet(struct cudasim_place place, unsigned mask, const void *mine, size_t bytes, void *theirs,
                 unsigned first, unsigned n, void (*compute)(void *all))
{
    fibre *me = block.running;

    if (!(mask & lane_bit(me)))
        cudasim_fault("%s in line %d: the mask %08x lacks the lane itself", place.what, place.line, mask);
    if (bytes > sizeof laid / warpSize)
        cudasim_fault("%s in line %d: %zu bytes of a lane", place.what, place.line, bytes);
    me->whole = false;
    me->meetings += mask == 0xffffffff;
    me->place = place, me->mask = mask, me->mine = mine, me->bytes = bytes;
    me->theirs = theirs, me->first = first, me->n = n;
    if (complete(me)) {
        if (bytes)
            exchange(&block.fibres[me->number / warpSize * warpSize], mask, bytes, compute);
        warp_of(me).ready |= mask;
    } else {
        warp_of(me).ready &= ~lane_bit(me);
        suspend();
    }
}

void cudasim_meet(struct cudasim_place place, unsigned mask, const void *mine, size_t bytes, void *theirs,
                  unsigned first, unsigned n)
{
    meet(place, mask, mine, bytes, theirs, first, n, NULL);
}

void cudasim_compute(struct cudasim_place place, void *mine, size_t bytes, void (*compute)(void *all))
{
    meet(place, ~0u, mine, bytes, mine, block.running->number % warpSize, 1, compute);
}

unsigned cudasim_barrier(struct cudasim_place place, bool yes)
{
    fibre *me = block.running;

    me->whole = true, me->place = place, me->yes = yes;
    me->meetings++;
    warp_of(me).ready &= ~lane_bit(me);
    suspend();
    return block.n_yes;
}

/* Lanes of a warp that the block has. */
static unsigned all_lanes(unsigned of)
{
    const unsigned n = block.n_threads - of * warpSize;

    return n < warpSize ? (1u << n) - 1 : ~0u;
}

static void make_all_ready()
{
    for (unsigned i = 0; i * warpSize < block.n_threads; i++)
        block.warps[i].ready = all_lanes(i);
}

/* Nobody is ready: lets all through a barrier, if that is where they are. */
static void pass_barrier()
{
    unsigned n_yes = 0, first = 0;

    while (block.fibres[first]->returned)
        first++;
    for (unsigned i = 0; i < block.n_threads; i++) {
        const fibre *f = block.fibres[i], *one = block.fibres[first];

        if (!f->returned && !f->whole)
            never_meet(f, missing(f));
        if (!same_place(one, f))
            never_meet(one, f);
        n_yes += f->yes;
    }
    block.n_yes = n_yes;
    make_all_ready();
}

/* ---- copies under way ---- */

void cudasim_copy(void *to, const void *from, size_t bytes, size_t given)
{
    if ((bytes != 4 && bytes != 8 && bytes != 16) || given > bytes || (uintptr_t)to % bytes ||
        (given > 0 && (uintptr_t)from % bytes))
        cudasim_fault("an asynchronous copy of %zu of %zu bytes from %p to %p", given, bytes, from, to);
    if (given)
        cudasim_touched(__builtin_return_address(0), from, given);
    cudasim_touched(__builtin_return_address(0), to, bytes);
    block.running->copies.push_back({to, from, bytes, given, block.running->group});
}

void cudasim_copy_commit(void)
{
    block.running->group++;
}

void cudasim_copy_wait(unsigned left)
{
    fibre *me = block.running;
    size_t done = 0;

    for (; done < me->copies.size() && me->copies[done].group + left < me->group; done++) {
        const copy &c = me->copies[done];
        if (c.given)
            memcpy(c.to, c.from, c.given);
        memset((char *)c.to + c.given, 0, c.bytes - c.given);
    }
    me->copies.erase(me->copies.begin(), me->copies.begin() + (ptrdiff_t)done);
}

/* ---- blocks ---- */

void *cudasim_shared(void)
{
    return block.shared;
}

static size_t shared_rounded()
{
    return (block.launch->shared + 127) / 128 * 128;
}

static void lay_out_shared()
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE),
                 whole = (CUDASIM_MOST_SHARED + CUDASIM_RED + page - 1) / page * page;

    if (!block.pages) {
        block.pages = (char *)mmap(NULL, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (block.pages == MAP_FAILED || mprotect(block.pages + whole, page, PROT_NONE))
            cudasim_fault("no memory for shared memory");
    }
    CUDASIM_UNPOISON(block.pages, whole);
    block.shared = block.pages + whole - shared_rounded();
    memset(block.shared - CUDASIM_RED, CUDASIM_RED_BYTE, CUDASIM_RED + shared_rounded());
    CUDASIM_POISON(block.shared - CUDASIM_RED, CUDASIM_RED);
    CUDASIM_POISON(block.shared + block.launch->shared, shared_rounded() - block.launch->shared);
}

__attribute__((no_sanitize("address"))) static void check_shared()
{
    const char *const last = block.shared + shared_rounded();

    for (const char *at = block.shared - CUDASIM_RED; at < last; at++) {
        if (at == block.shared)
            at += block.launch->shared;
        if (at < last && *at != (char)CUDASIM_RED_BYTE)
            cudasim_fault("shared memory is damaged at byte %td of %zu", at - block.shared, block.launch->shared);
    }
}

/* The i-th in order, of n. */
static unsigned ordered(unsigned i, unsigned n, const std::vector<unsigned> &shuffled)
{
    switch (block.order) {
    case CUDASIM_THREADS_BACKWARD:
        return n - 1 - i;
    case CUDASIM_THREADS_RANDOM:
        return shuffled[i];
    case CUDASIM_THREADS_FORWARD:
        break;
    }
    return i;
}

static void shuffle(std::vector<unsigned> &order, unsigned n)
{
    if (block.order != CUDASIM_THREADS_RANDOM)
        return;
    order.resize(n);
    for (unsigned i = 0; i < n; i++) {
        const unsigned k = cudasim_random(i + 1);
        order[i] = order[k];
        order[k] = i;
    }
}

/* Each that is ready, in order, warp by warp: as far as the warp gets. False if there was nobody. */
static bool run_warps()
{
    const unsigned n_warps = (block.n_threads + warpSize - 1) / warpSize;
    bool moved = false;

    for (unsigned i = 0; i < n_warps; i++) {
        const bool backward = block.order == CUDASIM_THREADS_BACKWARD;
        fibre *next = next_of_warp(backward ? n_warps - 1 - i : i, backward ? 0 : warpSize - 1);
        if (next) {
            go_to(next);
            moved = true;
        }
    }
    return moved;
}

/* The same, in random order of all threads. */
static bool run_shuffled(std::vector<unsigned> &order)
{
    bool moved = false;

    shuffle(order, block.n_threads);
    for (unsigned i : order) {
        fibre *f = block.fibres[i];
        if (warp_of(f).ready & lane_bit(f)) {
            go_to(f);
            moved = true;
        }
    }
    return moved;
}

static void run_block()
{
    std::vector<unsigned> order;

    block.number++;
    memset(block.shared, CUDASIM_POISON_BYTE, block.launch->shared);
    cudasim_forget_shared(block.launch->kernel);
    for (unsigned i = 0; i < block.n_threads; i++) {
        fibre *f = block.fibres[i];
        f->returned = false;
        f->group = f->meetings = 0;
        f->copies.clear();
    }
    make_all_ready();
    block.n_returned = 0;
    while (block.n_returned < block.n_threads)
        if (!(block.order == CUDASIM_THREADS_RANDOM ? run_shuffled(order) : run_warps()))
            pass_barrier();
    check_shared();
}

void cudasim_run_grid(const cudasim_launch &launch)
{
    const unsigned n_blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    std::vector<unsigned> order;

    gridDim = launch.grid, blockDim = launch.block;
    block.launch = &launch;
    block.order = cudasim_thread_order();
    block.running = &block.runner;
    block.n_threads = blockDim.x * blockDim.y * blockDim.z;
    while (block.fibres.size() < block.n_threads)
        block.fibres.push_back(make_fibre((unsigned)block.fibres.size()));
    block.warps.resize((block.fibres.size() + warpSize - 1) / warpSize);
    for (unsigned i = 0; i < block.n_threads; i++)
        block.fibres[i]->index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    lay_out_shared();
    shuffle(order, n_blocks);
    for (unsigned i = 0; i < n_blocks; i++) {
        const unsigned k = ordered(i, n_blocks, order);
        blockIdx = {k % gridDim.x, k / gridDim.x % gridDim.y, k / gridDim.x / gridDim.y};
        run_block();
    }
    block.launch = NULL;
}

bool cudasim_is_running(struct cudasim_running *now)
{
    const fibre *me = running();

    if (!me)
        return false;
    *now = {me->number, me->meetings, block.number, block.launch->kernel};
    return true;
}

bool cudasim_is_shared(const void *address)
{
    const char *at = (const char *)address;

    return (block.shared <= at && at < block.shared + block.launch->shared) ||
           cudasim_is_static_shared(block.launch->kernel, address);
}

__attribute__((weak)) void cudasim_touched(const void *, const void *, size_t)
{
}

__attribute__((weak)) void cudasim_touched_rows(const uintptr_t[])
{
}

void cudasim_matrices(uint32_t pairs[4], uintptr_t row, bool transposed, struct cudasim_place place)
{
    const unsigned lane = block.running->number % warpSize;
    uintptr_t rows[warpSize];

    cudasim_meet(place, 0xffffffffu, &row, sizeof row, rows, 0, warpSize);
    cudasim_touched_rows(rows);
    for (unsigned i = 0; i < 4; i++) {
        const uint16_t *upper = (const uint16_t *)rows[8 * i + lane % 4 * 2];
        const uint16_t *lower = (const uint16_t *)rows[8 * i + lane % 4 * 2 + 1];
        if (transposed)
            pairs[i] = upper[lane / 4] | (uint32_t)lower[lane / 4] << 16;
        else
            pairs[i] = ((const uint32_t *)rows[8 * i + lane / 4])[lane % 4];
    }
}

bool cudasim_past_shared(const void *address)
{
    const char *const last = block.pages ? block.shared + shared_rounded() : NULL;

    return block.launch && last <= address && (const char *)address < last + sysconf(_SC_PAGESIZE);
}

void cudasim_where(char *to, size_t size)
{
    int n = 0;

    *to = '\0';
    if (block.launch)
        n = snprintf(to, size, "kernel %s, block (%u, %u, %u): ", cudasim_kernel_name(block.launch->kernel), blockIdx.x,
                     blockIdx.y, blockIdx.z);
    if (running() && n >= 0 && (size_t)n < size)
        snprintf(to + n, size - (size_t)n, "thread %u: ", running()->number);
}
