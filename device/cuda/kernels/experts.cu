/* device/cuda/kernels/experts.cu - mixtures of experts (proto/operation/call/experts.h).
 *
 * How many tokens an expert has is known to the device alone. So launches are the same for any choice: one expert after
 * the other, each for all tokens, and blocks whose rows are beyond the expert's return at once. As launches run in
 * order, a token's terms are added in that of experts, and no two threads add to one sum.
 *
 * Products are in expert_product.cuh, those of adapters in expert_adapter.cuh. */
#include "device/cuda/kernels/expert_adapter.cuh"
#include "device/cuda/kernels/expert_product.cuh"
#include "device/cuda/kernels/exponential.cuh"

enum { EXPERT_THREADS = 128, TILE = 64 };

/* ---- the order: a stable counting sort ---- */

struct choices {
    const uint32_t *numbers;
    size_t n; /* places: tokens times n_chosen */

    __device__ bool is(size_t place, unsigned expert) const
    {
        return place < n && numbers[place] == expert;
    }
};

/* A warp has an expert, and goes through all places. */
static __global__ void __launch_bounds__(WARP) count_choices(const struct choices all, uint32_t *starts)
{
    uint32_t n = 0;

    for (size_t first = 0; first < all.n; first += WARP)
        n += (uint32_t)__popc(__ballot_sync(WHOLE_WARP, all.is(first + threadIdx.x, blockIdx.x)));
    if (threadIdx.x == 0)
        starts[blockIdx.x] = n;
}

static __global__ void __launch_bounds__(WARP) begin_experts(uint32_t *starts, size_t n_experts)
{
    uint32_t before = 0;

    if (threadIdx.x > 0)
        return;
    for (size_t i = 0; i < n_experts; i++) {
        const uint32_t n = starts[i];
        starts[i] = before;
        before += n;
    }
    starts[n_experts] = before;
}

static __global__ void __launch_bounds__(WARP)
    place_choices(const struct choices all, const uint32_t *starts, uint32_t *order)
{
    uint32_t at = starts[blockIdx.x];

    for (size_t first = 0; first < all.n; first += WARP) {
        const bool mine = all.is(first + threadIdx.x, blockIdx.x);
        const unsigned lanes = __ballot_sync(WHOLE_WARP, mine);
        if (mine)
            order[at + (uint32_t)__popc(lanes & ((1u << threadIdx.x) - 1))] = (uint32_t)(first + threadIdx.x);
        at += (uint32_t)__popc(lanes);
    }
}

/* ---- one expert's rows ---- */

/* A block has a row. */
template <typename T>
static __global__ void __launch_bounds__(EXPERT_THREADS)
    gather_tokens(const struct rows rows, T *to, const T *from, size_t n)
{
    if (blockIdx.x >= rows.count())
        return;
    for (size_t j = threadIdx.x; j < n; j += blockDim.x)
        to[blockIdx.x * n + j] = from[rows.token(blockIdx.x) * n + j];
}

/* Adds each row, times its weight if they are weighed, to its token's sum. */
static __global__ void __launch_bounds__(EXPERT_THREADS)
    add_terms(const struct rows rows, float *sum, const float *terms, size_t n, uint32_t weighed)
{
    if (blockIdx.x >= rows.count())
        return;
    float *const to = sum + rows.token(blockIdx.x) * n;
    const float w = weighed ? rows.weight(blockIdx.x) : 1;
    for (size_t j = threadIdx.x; j < n; j += blockDim.x)
        to[j] += w * terms[blockIdx.x * n + j];
}

template <typename T>
static __global__ void __launch_bounds__(EXPERT_THREADS) round_sums(T *to, const float *sum, size_t n)
{
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;

    if (i < n)
        set(to + i, sum[i]);
}

template <typename T>
static __global__ void __launch_bounds__(EXPERT_THREADS)
    make_units(const struct rows rows, T *units, const T *both, size_t inner)
{
    if (blockIdx.x >= rows.count())
        return;
    const T *const gate = both + blockIdx.x * 2 * inner, *const up = gate + inner;
    for (size_t j = threadIdx.x; j < inner; j += blockDim.x) {
        const float g = to_float(gate[j]);
        set(units + blockIdx.x * inner + j, g / (1 + exponential_of_minus(g)) * to_float(up[j]));
    }
}

/* Of the gradients of units, before they are weighed, the gradient of the weight; those of gate and up, in their places;
 * and the weighed units, in the place of the first. */
template <typename T>
static __global__ void __launch_bounds__(EXPERT_THREADS)
    turn_units(const struct rows rows, T *units, T *both, float *weights_gradient, size_t inner)
{
    __shared__ float sums[EXPERT_THREADS / WARP];
    float sum = 0;

    if (blockIdx.x >= rows.count())
        return;
    const float w = rows.weight(blockIdx.x);
    T *const gate = both + blockIdx.x * 2 * inner, *const up = gate + inner, *const unit = units + blockIdx.x * inner;
    for (size_t j = threadIdx.x; j < inner; j += blockDim.x) {
        const float g = to_float(gate[j]), u = to_float(up[j]), d = to_float(unit[j]);
        const float e = exponential_of_minus(g), s = 1 / (1 + e);
        sum = fmaf(g * s * u, d, sum);
        set(gate + j, w * d * u * (s + g * s * (e * s)));
        set(up + j, w * d * (g * s));
        set(unit + j, w * (g * s * u));
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0)
        sums[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x > 0)
        return;
    for (unsigned i = 1; i < EXPERT_THREADS / WARP; i++)
        sum += sums[i];
    weights_gradient[rows.place(blockIdx.x)] = sum;
}

/* ---- launchers ---- */

/* A call's arrays, and its launches up to the first that failed. */
template <typename T> struct mixture {
    const struct cuda_queue *q;
    const struct device_experts *op;
    float *sum, *terms;
    T *gathered, *slopes, *both, *units, *low, *low_down;
    uint32_t *order, *starts;
    cudaError_t rc;

    template <typename... P>
    void run_shared(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, typename as_given<P>::type... p)
    {
        if (rc == cudaSuccess)
            rc = launch(kernel, grid, threads, shared, q->stream, p...);
    }

    template <typename... P>
    void run(void (*kernel)(P...), dim3 grid, unsigned threads, typename as_given<P>::type... p)
    {
        run_shared(kernel, grid, threads, 0, p...);
    }

    struct rows rows(size_t expert) const
    {
        struct rows r = {};

        r.order = order, r.starts = starts, r.weights = op->weights, r.n_chosen = op->n_chosen;
        r.expert = (uint32_t)expert;
        return r;
    }

    dim3 each() const
    {
        return dim3((unsigned)op->m);
    }

    template <typename P> static dim3 tiles(const P &p, size_t side)
    {
        return dim3((unsigned)pieces(p.n, side), (unsigned)pieces(p.m, side));
    }

    void gather(size_t expert, T *to, const void *from)
    {
        run(gather_tokens<T>, each(), EXPERT_THREADS, rows(expert), to, (const T *)from, op->n);
    }

    /* On tensor cores kernels are compiled for the ways that lines lie, as tiles lie alike. */
    template <bool OVER_ROWS, bool OUT_IN, typename C> void queue_product(size_t expert, struct product<T, C> p)
    {
        p.over_rows = OVER_ROWS, p.out_in = OUT_IN;
        if constexpr (sizeof(T) == 2)
            if (tensor::fits(p)) {
                run_shared(tensor::multiply<T, C, OVER_ROWS, OUT_IN>, tiles(p, tensor::SIDE), tensor::THREADS,
                           tensor::SHARED_BYTES, rows(expert), p);
                return;
            }
        run(plain::multiply<T, C, TILE / plain::ACROSS>, tiles(p, TILE), plain::THREADS, rows(expert), strided_of(p));
    }

    /* Rows of k by weights (n, k), or (k, n), of one expert. */
    template <typename C>
    struct product<T, C> map(const T *a, size_t line, const void *weights, size_t expert, size_t weights_line, C *c,
                             size_t n, size_t k) {
        struct product<T, C> p = {
        };

        p.a = a, p.a_line = line, p.b = (const T *)weights + expert * n * k, p.b_line = weights_line;
        p.c = c, p.c_line = n, p.m = op->m, p.n = n, p.k = k;
        return p;
    }

    void
    open(size_t expert)
    {
        struct product<T, T> p = map<T>(gathered, op->n, op->gate, expert, op->n, both, op->inner, op->n);

        p.c_line = 2 * op->inner;
        queue_product<false, true>(expert, p);
        p.b = (const T *)op->up + expert * op->n * op->inner, p.c = both + op->inner;
        queue_product<false, true>(expert, p);
        adapt(lowered_of(expert, false), gathered, both);
    }

    /* ---- adapters ---- */

    lowered<T> lowered_of(size_t expert, bool down) const
    {
        lowered<T> l = {};

        l.of = down ? &op->of_down : &op->gate_up;
        l.in = down ? op->inner : op->n, l.out = down ? op->n : 2 * op->inner;
        l.a = (const T *)l.of->a + expert * l.of->rank * l.in, l.low = down ? low_down : low;
        l.rows = op->m, l.expert = expert, l.n_experts = op->n_experts;
        return l;
    }

    template <typename C> void queue_low(const lowered<T> &l, const strided_product<T, C> &p)
    {
        if (l.of->rank > 0)
            run(plain::multiply<T, C, LOW_EACH>, tiles(p, LOW_TILE), plain::THREADS, rows(l.expert), p);
    }

    /* y += what the adapter makes of x. */
    template <typename C> void adapt(const lowered<T> &l, const T *x, C *y)
    {
        queue_low(l, l.descend(x));
        queue_low(l, l.add(y));
    }

    /* dx += what it makes of dy; low is then the gradient that A's takes. */
    template <typename C> void adapt_back(const lowered<T> &l, const T *dy, C *dx)
    {
        queue_low(l, l.ascend(dy));
        queue_low(l, l.give_back(dx));
    }

    void contribute_a(const lowered<T> &l, const T *x)
    {
        if (l.of->a_gradient)
            queue_low(l, l.contribute_a(x, op->beta != 0));
    }

    void contribute_b(const lowered<T> &l, const T *dy)
    {
        if (l.of->b_gradient)
            queue_low(l, l.contribute_b(dy, op->beta != 0));
    }

    /* Units are weighed, `both` has gradients; low is that of gates and ups as forward, low_down is a gradient, which the
     * weighed units take for A's. Then each becomes the other. */
    void contribute_adapters(size_t expert)
    {
        const lowered<T> gate_up = lowered_of(expert, false), down = lowered_of(expert, true);

        contribute_a(down, units);
        queue_low(down, down.descend(units));
        contribute_b(down, slopes);
        contribute_b(gate_up, both);
        queue_low(gate_up, gate_up.ascend(both));
        contribute_a(gate_up, gathered);
    }

    void add(size_t expert, bool weighed)
    {
        run(add_terms, each(), EXPERT_THREADS, rows(expert), sum, terms, op->n, weighed);
    }

    void forward(size_t expert)
    {
        gather(expert, gathered, op->x);
        open(expert);
        run(make_units<T>, each(), EXPERT_THREADS, rows(expert), units, both, op->inner);
        queue_product<false, true>(expert,
                                   map<float>(units, op->inner, op->down, expert, op->inner, terms, op->n, op->inner));
        adapt(lowered_of(expert, true), units, terms);
        add(expert, true);
    }

    /* Gradients (m, n) of weights: a^T b over the expert's rows. */
    void contribute(size_t expert, float *all, const T *a, size_t a_line, size_t m, const T *b, size_t n)
    {
        struct product<T, float> p = {
        };

        p.a = a, p.a_line = a_line, p.b = b, p.b_line = n;
        p.c = all ? all + expert * m * n : NULL, p.c_line = n, p.m = m, p.n = n, p.adds = op->beta != 0;
        if (all)
            queue_product<true, false>(expert, p);
    }

    void backward(size_t expert)
    {
        const size_t inner = op->inner;

        gather(expert, gathered, op->x);
        gather(expert, slopes, op->y_gradient);
        open(expert);
        queue_product<false, false>(expert, map<T>(slopes, op->n, op->down, expert, inner, units, inner, op->n));
        adapt_back(lowered_of(expert, true), slopes, units);
        run(turn_units<T>, each(), EXPERT_THREADS, rows(expert), units, both, op->weights_gradient, inner);
        contribute(expert, op->gate_gradient, both, 2 * inner, inner, gathered, op->n);
        contribute(expert, op->up_gradient, both + inner, 2 * inner, inner, gathered, op->n);
        contribute(expert, op->down_gradient, slopes, op->n, op->n, units, inner);
        contribute_adapters(expert);
        struct product<T, float> p = map<float>(both, 2 * inner, op->gate, expert, op->n, terms, op->n, inner);
        queue_product<false, false>(expert, p);
        p.a = both + inner, p.b = (const T *)op->up + expert * op->n * inner, p.adds = 1;
        queue_product<false, false>(expert, p);
        queue_low(lowered_of(expert, false), lowered_of(expert, false).give_back(terms));
        add(expert, false);
    }

    void sort()
    {
        struct choices all = {};

        all.numbers = op->numbers, all.n = op->m * op->n_chosen;
        run(count_choices, dim3((unsigned)op->n_experts), WARP, all, starts);
        run(begin_experts, dim3(1), WARP, starts, op->n_experts);
        run(place_choices, dim3((unsigned)op->n_experts), WARP, all, starts, order);
    }

    void finish(void *to)
    {
        const size_t n = op->m * op->n;

        run(round_sums<T>, dim3((unsigned)pieces(n, EXPERT_THREADS)), EXPERT_THREADS, (T *)to, sum, n);
    }
};

template <typename T>
static struct mixture<T> begin_mixture(const struct cuda_queue *q, const struct device_experts *op, bool backward) {
    const struct device_experts_places places = device_experts_lay(op, q->type, backward);
    char *const at = (char *)op->scratch;
    struct mixture<T> x = {
    };

    x.q = q, x.op = op;
    x.sum = (float *)(at + places.sum), x.terms = (float *)(at + places.rows);
    x.gathered = (T *)(at + places.rows), x.slopes = (T *)(at + places.slopes);
    x.both = (T *)(at + places.both), x.units = (T *)(at + places.units);
    x.low = (T *)(at + places.low), x.low_down = (T *)(at + places.low_down);
    x.order = (uint32_t *)(at + places.order), x.starts = (uint32_t *)(at + places.starts);
    x.rc = cudaMemsetAsync(x.sum, 0, op->m * op->n * sizeof(float), q->stream);
    x.sort();
    return x;
}

template <typename T>
static cudaError_t run_experts(const struct cuda_queue *q, const struct device_experts *op)
{
    struct mixture<T> x = begin_mixture<T>(q, op, false);

    for (size_t expert = 0; expert < op->n_experts; expert++)
        x.forward(expert);
    x.finish(op->y);
    return x.rc;
}

template <typename T> static cudaError_t turn_experts(const struct cuda_queue *q, const struct device_experts *op)
{
    struct mixture<T> x = begin_mixture<T>(q, op, true);

    for (size_t expert = op->n_experts; expert-- > 0;)
        x.backward(expert);
    x.finish(op->x_gradient);
    return x.rc;
}

cudaError_t cuda_experts(const struct cuda_queue *q, const struct device_experts *op)
{
    return op->m == 0 ? cudaSuccess : TYPED(q, run_experts)(q, op);
}

cudaError_t cuda_experts_backward(const struct cuda_queue *q, const struct device_experts *op)
{
    return op->m == 0 ? cudaSuccess : TYPED(q, turn_experts)(q, op);
}
