/* device/cuda/kernels/route.cu - the choice of experts (proto/operation/call/experts.h). */
#include "device/cuda/kernels/exponential.cuh"
#include "device/cuda/kernels/pack.cuh"

#include <limits.h>

enum { EXPERT_THREADS = 128 };

template <typename T> struct route {
    const T *scores;
    float *weights;
    uint32_t *numbers;
    const float *weights_gradient;
    T *scores_gradient;
    size_t m;
    uint32_t n_experts, n_chosen, normalises, n_each; /* experts of a group */
    const float *bias;
    uint32_t n_groups, n_chosen_groups;
    float epsilon, scale;
};

/* An expert that may be chosen. A score that is no number comes after all that are; its weight is none, either. */
struct candidate {
    float score;
    int number;

    __device__ bool precedes(const candidate &other) const
    {
        return score > other.score || (score == other.score && number < other.number);
    }
};

static __device__ inline float sigmoid_of(float x)
{
    return __fdividef(1, 1 + exponential_of_minus(x));
}

template <bool SIGMOID, typename T>
static __device__ inline candidate candidate_of(const struct route<T> &op, const T *scores, unsigned number)
{
    const float score = load<1>(scores + number)[0];
    const float rank = SIGMOID ? sigmoid_of(score) + (op.bias ? op.bias[number] : 0) : score;

    return {rank != rank ? -INFINITY : rank, (int)number};
}

/* A bit for each group whose experts may be chosen, in all lanes: each lane has a group. */
template <typename T> static __device__ inline unsigned choose_groups(const struct route<T> &op, const T *scores)
{
    const unsigned lane = threadIdx.x % WARP, n = op.n_each;
    float first = -INFINITY, second = -INFINITY;
    unsigned before = 0;

    for (unsigned j = lane * n; lane < op.n_groups && j < (lane + 1) * n; j++) {
        const float rank = candidate_of<true>(op, scores, j).score;
        second = rank > first ? first : fmaxf(rank, second);
        first = fmaxf(rank, first);
    }
    const candidate own = {first + second, (int)lane};
    for (unsigned g = 0; g < op.n_groups; g++) {
        const candidate other = {__shfl_sync(WHOLE_WARP, own.score, (int)g), (int)g};
        before += other.precedes(own);
    }
    return __ballot_sync(WHOLE_WARP, lane < op.n_groups && before < op.n_chosen_groups);
}

/* The first of those that the last one precedes, in all lanes. */
template <bool SIGMOID, typename T>
static __device__ inline candidate best_after(const candidate &last, const struct route<T> &op, const T *scores,
                                              unsigned groups)
{
    candidate best = {-INFINITY, INT_MAX};

    for (unsigned j = threadIdx.x % WARP; j < op.n_experts; j += WARP) {
        const candidate c = candidate_of<SIGMOID>(op, scores, j);
        if ((!SIGMOID || groups >> j / op.n_each & 1) && last.precedes(c) && c.precedes(best))
            best = c;
    }
    for (int far = WARP / 2; far > 0; far /= 2) {
        const candidate c = {__shfl_xor_sync(WHOLE_WARP, best.score, far),
                             __shfl_xor_sync(WHOLE_WARP, best.number, far)};
        if (c.precedes(best))
            best = c;
    }
    return best;
}

/* The sum of all experts' exponentials, in all lanes. */
template <typename T> static __device__ inline float route_total(const T *scores, unsigned n_experts, float largest)
{
    float total = 0;

    for (unsigned j = threadIdx.x % WARP; j < n_experts; j += WARP)
        total += expf(load<1>(scores + j)[0] - largest);
    return warp_sum(total);
}

/* With sigmoids, what the chosen ones' are divided by, in all lanes; own: a lane's, or 0. */
template <typename T> static __device__ inline float sigmoid_total(const struct route<T> &op, float own)
{
    return op.normalises ? warp_sum(own) + op.epsilon : 1;
}

/* A warp has a token; each lane, of those chosen, its own. */
template <typename T, bool SIGMOID>
static __global__ void __launch_bounds__(EXPERT_THREADS) route_forward(const struct route<T> op)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    const unsigned lane = threadIdx.x % WARP;
    candidate last = {INFINITY, -1}, own = {}, first = {};

    if (i >= op.m)
        return;
    const T *const s = op.scores + i * op.n_experts;
    const unsigned groups = SIGMOID && op.n_groups > 0 ? choose_groups(op, s) : 1;
    for (unsigned c = 0; c < op.n_chosen; c++) {
        last = best_after<SIGMOID>(last, op, s, groups);
        first = c == 0 ? last : first;
        own = c == lane ? last : own;
    }
    const float score = lane < op.n_chosen ? load<1>(s + own.number)[0] : 0;
    const float largest = load<1>(s + first.number)[0];
    const float mine = lane >= op.n_chosen ? 0 : SIGMOID ? sigmoid_of(score) : expf(score - largest);
    const float total = SIGMOID         ? sigmoid_total(op, mine)
                        : op.normalises ? warp_sum(mine)
                                        : route_total(s, op.n_experts, largest);
    if (lane < op.n_chosen) {
        op.weights[i * op.n_chosen + lane] = (SIGMOID ? op.scale * mine : mine) / total;
        op.numbers[i * op.n_chosen + lane] = (uint32_t)own.number;
    }
}

/* As above. The gradients of all scores are written first, then those of the chosen ones over them. */
template <typename T> static __global__ void __launch_bounds__(EXPERT_THREADS) route_turn(const struct route<T> op)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP, own = i * op.n_chosen + threadIdx.x % WARP;
    const unsigned lane = threadIdx.x % WARP;

    if (i >= op.m)
        return;
    const T *const s = op.scores + i * op.n_experts;
    T *const ds = op.scores_gradient + i * op.n_experts;
    const float weight = lane < op.n_chosen ? op.weights[own] : 0,
                gradient = lane < op.n_chosen ? op.weights_gradient[own] : 0;
    const float mean = warp_sum(weight * gradient), largest = load<1>(s + op.numbers[i * op.n_chosen])[0];
    const float total = op.normalises ? 1 : route_total(s, op.n_experts, largest);
    for (unsigned j = lane; j < op.n_experts; j += WARP)
        set(ds + j, op.normalises ? 0 : -expf(load<1>(s + j)[0] - largest) / total * mean);
    __syncwarp();
    if (lane < op.n_chosen)
        set(ds + op.numbers[own], weight * (gradient - mean));
}

/* Likewise, of sigmoids. */
template <typename T>
static __global__ void __launch_bounds__(EXPERT_THREADS) route_turn_sigmoids(const struct route<T> op)
{
    const size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP, own = i * op.n_chosen + threadIdx.x % WARP;
    const unsigned lane = threadIdx.x % WARP;

    if (i >= op.m)
        return;
    const bool is_chosen = lane < op.n_chosen;
    T *const ds = op.scores_gradient + i * op.n_experts;
    const float s = is_chosen ? load<1>(op.scores + i * op.n_experts + op.numbers[own])[0] : 0;
    const float p = is_chosen ? sigmoid_of(s) : 0, gradient = is_chosen ? op.weights_gradient[own] : 0;
    const float total = sigmoid_total(op, p), mean = op.normalises ? warp_sum(p * gradient) / total : 0;
    for (unsigned j = lane; j < op.n_experts; j += WARP)
        set(ds + j, 0);
    __syncwarp();
    if (is_chosen)
        set(ds + op.numbers[own], op.scale / total * p * sigmoid_of(-s) * (gradient - mean));
}

template <typename T> static struct route<T> route_of(const struct device_route *op) {
    struct route<T> r = {
    };

    r.scores = (const T *)op->scores, r.weights = op->weights, r.numbers = op->numbers,
    r.weights_gradient = op->weights_gradient;
    r.scores_gradient = (T *)op->scores_gradient;
    r.m = op->m, r.n_experts = (uint32_t)op->n_experts, r.n_chosen = (uint32_t)op->n_chosen;
    r.normalises = op->normalises, r.bias = op->bias;
    r.n_each = r.n_experts / (op->n_groups > 0 ? op->n_groups : 1);
    r.n_groups = op->n_groups, r.n_chosen_groups = op->n_chosen_groups;
    r.epsilon = op->epsilon, r.scale = op->scale;
    return r;
}

template <typename T>
static cudaError_t launch_route(const struct cuda_queue *q, const struct device_route *op)
{
    return launch(op->sigmoid ? route_forward<T, true> : route_forward<T, false>,
                  dim3((unsigned)pieces(op->m, EXPERT_THREADS / WARP)), EXPERT_THREADS, 0, q->stream, route_of<T>(op));
}

template <typename T> static cudaError_t launch_route_turn(const struct cuda_queue *q, const struct device_route *op)
{
    return launch(op->sigmoid ? route_turn_sigmoids<T> : route_turn<T>,
                  dim3((unsigned)pieces(op->m, EXPERT_THREADS / WARP)), EXPERT_THREADS, 0, q->stream, route_of<T>(op));
}

cudaError_t cuda_route(const struct cuda_queue *q, const struct device_route *op)
{
    return op->m == 0 ? cudaSuccess : TYPED(q, launch_route)(q, op);
}

cudaError_t cuda_route_backward(const struct cuda_queue *q, const struct device_route *op)
{
    return op->m == 0 ? cudaSuccess : TYPED(q, launch_route_turn)(q, op);
}
