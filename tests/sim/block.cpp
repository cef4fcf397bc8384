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

enum fibre_state { READY, WAITS, RETURNED };

struct copy {
    void *to;
    const void *from;
    size_t bytes, given;
    unsigned group;
};

struct fibre {
    void *stack, *sp;
    void *fake; /* AddressSanitizer's */
    unsigned number;
    uint3 index;
    enum fibre_state state;
    struct cudasim_place place; /* that it waits at */
    bool whole;                 /* for the block, saying `yes` */
    bool yes;
    unsigned mask; /* for these of its warp */
    const void *mine;
    size_t bytes;
    void *all;
    unsigned meetings; /* of its whole warp, or block */
    unsigned group;    /* of copies, not yet committed */
    std::vector<copy> copies;
};

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

static struct block_state {
    std::vector<fibre *> fibres; /* as many as were ever needed */
    const cudasim_launch *launch;
    uint64_t number; /* of all that have run */
    unsigned n_threads;
    fibre *running;
    void *sp, *fake; /* of who runs the block */
    const void *stack;
    size_t stack_bytes;
    unsigned n_yes;
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

static void suspend()
{
    fibre *me = block.running;

    START_SWITCH(&me->fake, block.stack, block.stack_bytes);
    cudasim_switch(&me->sp, block.sp);
    FINISH_SWITCH(me->fake, &block.stack, &block.stack_bytes);
}

static void resume(fibre *next)
{
    block.running = next;
    threadIdx = next->index;
    START_SWITCH(&block.fake, next->stack, STACK_BYTES);
    cudasim_switch(&block.sp, next->sp);
    FINISH_SWITCH(block.fake, NULL, NULL);
    block.running = NULL;
}

/* One fibre is the same thread of block after block. */
static void live()
{
    FINISH_SWITCH(NULL, &block.stack, &block.stack_bytes);
    for (;;) {
        block.launch->body();
        block.running->state = RETURNED;
        suspend();
    }
}

static fibre *make_fibre(unsigned number)
{
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    fibre *made = new fibre();
    char *memory = (char *)mmap(NULL, STACK_BYTES + page, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);

    if (memory == MAP_FAILED || mprotect(memory, page, PROT_NONE))
        cudasim_fault("no memory for the stack of thread %u", number);
    made->number = number;
    made->stack = memory + page;
    void **top = (void **)(memory + page + STACK_BYTES) - 2; /* as if `live` had been called: 16-byte aligned, less 8 */
    *top = (void *)live;
    made->sp = top - 6;
    return made;
}

/* ---- meetings ---- */

static bool same_place(const fibre *a, const fibre *b)
{
    return a->state == WAITS && b->state == WAITS && a->whole == b->whole && a->place.line == b->place.line &&
           (a->place.what == b->place.what || !strcmp(a->place.what, b->place.what)) &&
           (a->whole || (a->mask == b->mask && a->bytes == b->bytes));
}

static void describe(char *to, size_t size, const fibre *who)
{
    if (who->number >= block.n_threads)
        snprintf(to, size, "there is no thread %u", who->number);
    else if (who->state == RETURNED)
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
static char laid[warpSize * 1024];   /* what the lanes of a warp lay down */

/* A lane that `me` waits for, or NULL. Lanes arrive in their order, so the last is the first to be looked at. */
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

void cudasim_meet(struct cudasim_place place, unsigned mask, const void *mine, size_t bytes, void *all)
{
    fibre *me = block.running;
    const unsigned first = me->number / warpSize * warpSize;

    if (!(mask >> me->number % warpSize & 1))
        cudasim_fault("%s in line %d: the mask %08x lacks the lane itself", place.what, place.line, mask);
    if (bytes > sizeof laid / warpSize)
        cudasim_fault("%s in line %d: %zu bytes of a lane", place.what, place.line, bytes);
    me->state = WAITS, me->whole = false;
    me->meetings += mask == 0xffffffff;
    me->place = place, me->mask = mask, me->mine = mine, me->bytes = bytes, me->all = all;
    if (missing(me)) {
        suspend();
        return;
    }
    memset(laid, CUDASIM_POISON_BYTE, warpSize * bytes);
    for (unsigned lane = 0; lane < warpSize && bytes; lane++)
        if (mask >> lane & 1)
            memcpy(laid + lane * bytes, block.fibres[first + lane]->mine, bytes);
    for (unsigned lane = 0; lane < warpSize; lane++)
        if (mask >> lane & 1) {
            if (bytes)
                memcpy(block.fibres[first + lane]->all, laid, warpSize * bytes);
            block.fibres[first + lane]->state = READY;
        }
}

unsigned cudasim_barrier(struct cudasim_place place, bool yes)
{
    fibre *me = block.running;

    me->state = WAITS, me->whole = true, me->place = place, me->yes = yes;
    me->meetings++;
    suspend();
    return block.n_yes;
}

/* Nobody is ready: lets all through a barrier, if that is where they are. */
static void pass_barrier()
{
    unsigned n_yes = 0, first = 0;

    while (block.fibres[first]->state == RETURNED)
        first++;
    for (unsigned i = 0; i < block.n_threads; i++) {
        const fibre *f = block.fibres[i], *one = block.fibres[first];

        if (f->state == WAITS && !f->whole)
            never_meet(f, missing(f));
        if (!same_place(one, f))
            never_meet(one, f);
        n_yes += f->yes;
    }
    block.n_yes = n_yes;
    for (unsigned i = 0; i < block.n_threads; i++)
        block.fibres[i]->state = READY;
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
    switch (cudasim_thread_order()) {
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
    if (cudasim_thread_order() != CUDASIM_THREADS_RANDOM)
        return;
    order.resize(n);
    for (unsigned i = 0; i < n; i++) {
        const unsigned k = cudasim_random(i + 1);
        order[i] = order[k];
        order[k] = i;
    }
}

static void run_block()
{
    std::vector<unsigned> order;
    unsigned n_returned = 0;

    block.number++;
    memset(block.shared, CUDASIM_POISON_BYTE, block.launch->shared);
    cudasim_forget_shared(block.launch->kernel);
    for (unsigned i = 0; i < block.n_threads; i++) {
        fibre *f = block.fibres[i];
        f->state = READY, f->group = f->meetings = 0;
        f->copies.clear();
        f->index = {i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y};
    }
    while (n_returned < block.n_threads) {
        bool moved = false, moved_warp = false;

        shuffle(order, block.n_threads);
        for (unsigned i = 0; i < block.n_threads; i++) {
            fibre *f = block.fibres[ordered(i, block.n_threads, order)];
            if (f->state == READY) {
                resume(f);
                moved = moved_warp = true;
                n_returned += f->state == RETURNED;
            }
            if ((i + 1) % warpSize == 0 && moved_warp && cudasim_thread_order() != CUDASIM_THREADS_RANDOM)
                i -= warpSize; /* as far as the warp gets */
            if ((i + 1) % warpSize == 0)
                moved_warp = false;
        }
        if (!moved)
            pass_barrier();
    }
    check_shared();
}

void cudasim_run_grid(const cudasim_launch &launch)
{
    const unsigned n_blocks = launch.grid.x * launch.grid.y * launch.grid.z;
    std::vector<unsigned> order;

    gridDim = launch.grid, blockDim = launch.block;
    block.launch = &launch;
    block.n_threads = blockDim.x * blockDim.y * blockDim.z;
    while (block.fibres.size() < block.n_threads)
        block.fibres.push_back(make_fibre((unsigned)block.fibres.size()));
    lay_out_shared();
    shuffle(order, n_blocks);
    for (unsigned i = 0; i < n_blocks; i++) {
        const unsigned k = ordered(i, n_blocks, order);
        blockIdx = {k % gridDim.x, k / gridDim.x % gridDim.y, k / gridDim.x / gridDim.y};
        run_block();
    }
    block.launch = NULL;
}

bool cudasim_is_running(struct cudasim_running *running)
{
    if (!block.running)
        return false;
    *running = {block.running->number, block.running->meetings, block.number, block.launch->kernel};
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

    cudasim_meet(place, 0xffffffffu, &row, sizeof row, rows);
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
    if (block.running && n >= 0 && (size_t)n < size)
        snprintf(to + n, size - (size_t)n, "thread %u: ", block.running->number);
}
