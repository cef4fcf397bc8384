/* device/cuda/kernels/sample.cu - rows that stand for all in a sum over rows: their scores, the choice, the copies.
 *
 * A block chooses from one of the blocks of tokens of one row, all in shared memory. Scores are sorted as whole numbers
 * by a bitonic network (Batcher 1968), and summed up exactly, so the order of threads changes nothing. */
#include "device/cuda/kernels/pack.cuh"

/* ---- scores ---- */

/* Blocks stride rows. */
template <typename T, int V>
static __global__ void __launch_bounds__(ROW_THREADS) norms_of_rows(struct device_row_norms op)
{
    __shared__ struct block_sums shared;
    const size_t n_heads = op.n_heads > 0 ? op.n_heads : 1;
    unsigned turn = 0;

    for (size_t item = blockIdx.x; item < op.m * n_heads; item += gridDim.x) {
        const size_t row = item / n_heads, head = item % n_heads;
        const T *const x = (const T *)op.x + row * op.stride + head * op.n;
        const size_t to = op.n_heads > 0 ? (row / op.n_tokens * n_heads + head) * op.n_tokens + row % op.n_tokens : row;
        float sum[1] = {0};

        for (size_t at = threadIdx.x * V; at < op.n; at += blockDim.x * V) {
            const pack<T, V> some = load<V>(x + at);
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[0] += some[v] * some[v];
        }
        block_sum(&shared, turn++, sum);
        if (threadIdx.x == 0)
            op.norms[to] = op.multiply ? op.norms[to] * sqrtf(sum[0]) : sqrtf(sum[0]);
    }
}

template <typename T> static cudaError_t row_norms(const struct cuda_queue *q, const struct device_row_norms *op)
{
    const bool are_whole = is_whole((const T *)op->x, op->stride) && op->n % whole<T>::V == 0;
    const size_t packs = are_whole ? op->n / whole<T>::V : op->n;

    return launch(are_whole ? norms_of_rows<T, whole<T>::V> : norms_of_rows<T, 1>,
                  dim3(smaller(op->m * sample_heads(op), (size_t)q->n_processors * BLOCKS)),
                  whole_warps(smaller(packs, ROW_THREADS)), 0, q->stream, *op);
}

cudaError_t cuda_row_norms(const struct cuda_queue *q, const struct device_row_norms *op)
{
    if (op->m == 0)
        return cudaSuccess;
    return TYPED(q, row_norms)(q, op);
}

/* Blocks stride rows. */
static __global__ void __launch_bounds__(ROW_THREADS) weigh(struct device_weigh_scores op)
{
    __shared__ struct block_sums shared;
    unsigned turn = 0;

    for (size_t row = blockIdx.x; row < op.n_rows; row += gridDim.x) {
        const uint16_t *const norms = op.norms + row * op.stride;
        float *const scores = op.scores + row * op.n_tokens;
        float sums[2] = {0, 0}; /* of the known ones; how many */

        for (size_t i = threadIdx.x; i < op.n_tokens; i += blockDim.x) {
            const bool known = norms[i] > 0 && norms[i] < SAMPLE_PADDING;
            sums[0] += known ? __uint_as_float((uint32_t)norms[i] << 16) : 0;
            sums[1] += known ? 1 : 0;
        }
        block_sum(&shared, turn++, sums);
        const float mean = sums[1] > 0 ? sums[0] / sums[1] : 0;
        for (size_t i = threadIdx.x; i < op.n_tokens; i += blockDim.x)
            scores[i] *= SAMPLE_WEIGHT(norms[i], __uint_as_float((uint32_t)norms[i] << 16), mean);
    }
}

cudaError_t cuda_weigh_scores(const struct cuda_queue *q, const struct device_weigh_scores *op)
{
    if (op->n_rows * op->n_tokens == 0)
        return cudaSuccess;
    return launch(weigh, dim3(smaller(op->n_rows, (size_t)q->n_processors * BLOCKS)),
                  whole_warps(smaller(op->n_tokens, ROW_THREADS)), 0, q->stream, *op);
}

/* ---- the choice ---- */

enum {
    CHOICE_THREADS = 256,
    CHOICE_EACH = SAMPLE_BLOCK / CHOICE_THREADS, /* of a thread, side by side */
    INDEX_BITS = 11,
    INDEX_LAST = SAMPLE_BLOCK - 1,
};
static_assert(1 << INDEX_BITS == SAMPLE_BLOCK, "an index fits its bits");

struct choice {
    uint64_t
        sorted[SAMPLE_BLOCK]; /* (whole number << INDEX_BITS) + INDEX_LAST - index, the largest first; then zeros */
    uint64_t before[SAMPLE_BLOCK + 1]; /* the whole numbers of all before this one, summed up */
    uint64_t sums[CHOICE_THREADS];     /* each thread's own */
    uint32_t largest[CHOICE_THREADS];
    double rules[CHOICE_THREADS];
    unsigned winners[CHOICE_THREADS];
};

static __device__ inline uint64_t whole_of(uint64_t key)
{
    return key >> INDEX_BITS;
}

/* The largest pattern of the scores, which is in the order of numbers that are not negative; of a NaN or an infinity, no
 * less than that of the latter. */
static __device__ uint32_t find_largest(struct choice *c, const float *scores, size_t n)
{
    uint32_t largest = 0;

    for (size_t i = threadIdx.x; i < n; i += CHOICE_THREADS) {
        const uint32_t pattern = __float_as_uint(scores[i]) & 0x7fffffffu;
        largest = largest < pattern ? pattern : largest;
    }
    c->largest[threadIdx.x] = largest;
    __syncthreads();
    for (int i = 0; i < CHOICE_THREADS; i++)
        largest = largest < c->largest[i] ? c->largest[i] : largest;
    return largest;
}

/* For each power of two, sequences of twice its length that rise and fall are merged. */
static __device__ void sort(uint64_t *keys)
{
    for (unsigned length = 2; length <= SAMPLE_BLOCK; length *= 2)
        for (unsigned far = length / 2; far > 0; far /= 2) {
            for (unsigned pair = threadIdx.x; pair < SAMPLE_BLOCK / 2; pair += CHOICE_THREADS) {
                const unsigned i = pair / far * far * 2 + pair % far;
                const uint64_t a = keys[i], b = keys[i + far];

                if ((a < b) == ((i & length) == 0)) {
                    keys[i] = b;
                    keys[i + far] = a;
                }
            }
            __syncthreads();
        }
}

static __device__ void sum_up(struct choice *c)
{
    const unsigned first = threadIdx.x * CHOICE_EACH;
    uint64_t sum = 0;

    for (unsigned i = 0; i < CHOICE_EACH; i++)
        sum += whole_of(c->sorted[first + i]);
    c->sums[threadIdx.x] = sum;
    __syncthreads();
    sum = 0;
    for (unsigned i = 0; i < threadIdx.x; i++)
        sum += c->sums[i];
    for (unsigned i = 0; i < CHOICE_EACH; i++) {
        c->before[first + i] = sum;
        sum += whole_of(c->sorted[first + i]);
    }
    if (threadIdx.x == CHOICE_THREADS - 1)
        c->before[SAMPLE_BLOCK] = sum;
    __syncthreads();
}

static __device__ unsigned count_winners(struct choice *c, unsigned k, enum sample_rule by)
{
    double smallest = INFINITY;
    unsigned winners = 0;

    if (by == SAMPLE_NONE || by == SAMPLE_ALL)
        return by == SAMPLE_ALL ? k : 0;
    for (unsigned i = threadIdx.x; i < k; i += CHOICE_THREADS) {
        const double rest = (double)(c->before[SAMPLE_BLOCK] - c->before[i]);
        const double rule = (by == SAMPLE_VARIANCE ? rest * rest : rest) / (double)(k - i);

        if (rule < smallest) {
            smallest = rule;
            winners = i;
        }
    }
    c->rules[threadIdx.x] = smallest;
    c->winners[threadIdx.x] = winners;
    __syncthreads();
    for (int i = 0; i < CHOICE_THREADS; i++)
        if (c->rules[i] < smallest || (c->rules[i] == smallest && c->winners[i] < winners)) {
            smallest = c->rules[i];
            winners = c->winners[i];
        }
    return winners;
}

/* The high half of a product. */
static __device__ inline uint64_t multiply_high(uint64_t a, uint64_t b)
{
    const uint64_t low = (uint32_t)a * (uint64_t)(uint32_t)b, left = (a >> 32) * (uint32_t)b,
                   right = (uint32_t)a * (b >> 32);
    const uint64_t middle = (low >> 32) + (uint32_t)left + (uint32_t)right;

    return (a >> 32) * (b >> 32) + (left >> 32) + (right >> 32) + (middle >> 32);
}

/* The key in which a number below the rest lies, as the rest's rows lie one behind the other. */
static __device__ uint64_t find(const struct choice *c, unsigned winners, uint64_t number)
{
    unsigned low = winners, high = SAMPLE_BLOCK; /* before[low] <= at < before[high] */
    const uint64_t at = c->before[winners] + number;

    while (high - low > 1) {
        const unsigned middle = low + (high - low) / 2;

        if (c->before[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return c->sorted[low];
}

/* 64 random bits for choice i of a row. */
static __device__ uint64_t draw(const struct device_choose_rows &op, uint64_t row, uint64_t i)
{
    uint32_t words[4];

    device_random_quad(words, op.key, op.first_row + row, i / 2);
    return i % 2 ? (uint64_t)words[2] << 32 | words[3] : (uint64_t)words[0] << 32 | words[1];
}

/* Sorts the k chosen rows of a block that begins at `from`, as the CPU does. */
static __device__ void ascend(struct choice *c, unsigned k, uint32_t from, uint32_t *chosen, float *weights)
{
    __syncthreads(); /* all have found their rows */
    for (unsigned i = threadIdx.x; i < SAMPLE_BLOCK; i += CHOICE_THREADS)
        c->sorted[i] = i < k ? (uint64_t)(SAMPLE_BLOCK - (chosen[i] - from)) << 32 | __float_as_uint(weights[i]) : 0;
    __syncthreads();
    sort(c->sorted);
    for (unsigned i = threadIdx.x; i < k; i += CHOICE_THREADS) {
        chosen[i] = from + SAMPLE_BLOCK - (uint32_t)(c->sorted[i] >> 32);
        weights[i] = __uint_as_float((uint32_t)c->sorted[i]);
    }
}

/* Of `n` tokens from `first` on of a row. */
static __device__ void choose(struct choice *c, const struct device_choose_rows &op, size_t row, size_t first, size_t n)
{
    const size_t begin = op.n_chosen * first / op.n_tokens;
    const unsigned k = (unsigned)(op.n_chosen * (first + n) / op.n_tokens - begin);
    const size_t from = row * op.n_tokens + first, to = row * op.n_chosen + begin;
    const float *const scores = op.scores + from;
    const uint32_t largest = find_largest(c, scores, n);
    const bool finite = largest < 0x7f800000u;

    if (!finite || k == n) {
        for (unsigned i = threadIdx.x; i < k; i += CHOICE_THREADS) {
            op.chosen[to + i] = (uint32_t)(from + i);
            op.weights[to + i] = finite ? 1 : __uint_as_float(0x7fc00000u);
        }
        return;
    }
    for (unsigned i = threadIdx.x; i < SAMPLE_BLOCK; i += CHOICE_THREADS) {
        const double score = i < n ? (double)scores[i] : 0,
                     share = score > 0 ? score / (double)__uint_as_float(largest) : 0;
        const uint64_t whole = (uint64_t)(share * (double)((uint64_t)1 << SAMPLE_SCORE_BITS));

        c->sorted[i] = i < n ? (whole > 0 ? whole : (uint64_t)(score > 0)) << INDEX_BITS | (INDEX_LAST - i) : 0;
    }
    __syncthreads();
    sort(c->sorted);
    sum_up(c);
    const unsigned winners = count_winners(c, k, op.rule);
    const uint64_t rest = c->before[SAMPLE_BLOCK] - c->before[winners];
    for (unsigned i = threadIdx.x; i < k; i += CHOICE_THREADS) {
        const bool wins = i < winners;
        const uint64_t key =
            wins || rest == 0 ? c->sorted[i] : find(c, winners, multiply_high(draw(op, row, begin + i), rest));

        op.chosen[to + i] = (uint32_t)from + INDEX_LAST - (uint32_t)(key & INDEX_LAST);
        op.weights[to + i] = wins       ? 1
                             : rest > 0 ? (float)((double)rest / ((double)(k - winners) * (double)whole_of(key)))
                                        : 0;
    }
    if (op.ascends)
        ascend(c, k, (uint32_t)from, op.chosen + to, op.weights + to);
}

/* Block (x, y): tokens x * tokens ... of row y, and of rows that follow as far apart as there are blocks. */
static __global__ void __launch_bounds__(CHOICE_THREADS) choose_rows(struct device_choose_rows op, size_t tokens)
{
    struct choice *const c = shared_memory<struct choice>();
    const size_t first = blockIdx.x * tokens, left = op.n_tokens - first;

    for (size_t row = blockIdx.y; row < op.n_rows; row += gridDim.y) {
        choose(c, op, row, first, left < tokens ? left : tokens);
        __syncthreads(); /* the next row takes the same memory */
    }
}

cudaError_t cuda_choose_rows(const struct cuda_queue *q, const struct device_choose_rows *op)
{
    const size_t tokens = op->n_rows * op->n_tokens > 0 ? sample_block(op->n_tokens) : 1;

    if (op->n_rows * op->n_tokens == 0)
        return cudaSuccess;
    return launch(choose_rows, dim3((unsigned)pieces(op->n_tokens, tokens), smaller(op->n_rows, 65535)), CHOICE_THREADS,
                  sizeof(struct choice), q->stream, *op, tokens);
}

/* ---- the copies ---- */

template <typename T, int V> static __global__ void copy_rows(struct device_gather_rows op)
{
    for (size_t row = blockIdx.y; row < op.m; row += gridDim.y) {
        const T *const x = (const T *)op.x + op.chosen[row] * op.stride;
        const float weight = op.weights ? op.weights[row] : 1;
        const size_t first = ((size_t)blockIdx.x * PACKS * blockDim.x + threadIdx.x) * V, step = (size_t)blockDim.x * V;
        pack<T, V> held[PACKS];

#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * step < op.n)
                held[k] = load<V>(x + first + k * step);
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * step < op.n) {
                float scaled[V];

#pragma unroll
                for (int v = 0; v < V; v++)
                    scaled[v] = held[k][v] * weight;
                store<V>((T *)op.y + row * op.n + first + k * step, weight == 1 ? held[k] : round_to<T>(scaled));
            }
    }
}

template <typename T> static cudaError_t gather_rows(const struct cuda_queue *q, const struct device_gather_rows *op)
{
    enum { V = whole<T>::V };
    const bool are_whole =
        is_whole((const T *)op->x, op->stride) && is_whole((T *)op->y, op->n) && op->n % (size_t)V == 0;
    const struct row_grid over = rows_over(q, op->m, op->n, are_whole ? V : 1);

    return launch(are_whole ? copy_rows<T, V> : copy_rows<T, 1>, over.grid, over.threads, 0, q->stream, *op);
}

cudaError_t cuda_gather_rows(const struct cuda_queue *q, const struct device_gather_rows *op)
{
    if (op->m * op->n == 0)
        return cudaSuccess;
    return TYPED(q, gather_rows)(q, op);
}
