/* device/cuda/kernels/gated_delta.cu - the gated delta rule, forward and for generation.
 *
 * Forward a block has a strip of the values of one head, and the documents that begin in some tokens. It goes through
 * their chunks with the state in registers, as sums: a strip of keys at a time, whose part of all four products along keys
 * it adds up. Each block makes the triangle of a chunk for itself: products of keys with keys are a quarter of its work
 * where heads have 128 values, and would be 512 bytes a token and head in memory.
 *
 * Generation goes from token to token, so that its bits are the same however tokens are divided into calls. A thread has a
 * column of the state, of every eighth row; memory's part is the state, read and written once. */
#include "device/cuda/kernels/gated_delta.cuh"

/* solved: the inverse of I + L, then d. */
struct forward_room {
    square keys, queries, state, solved;
    chunk_rows rows;
};

/* Products of the chunk's keys, or queries, with its keys, and with the state, if there is one. Two sums at a time leave a
 * thread enough registers for the state. */
template <bool OF_QUERIES, typename T, int STRIPS>
__device__ inline void multiply_rows(forward_room *room, const gated_delta<T> &d, const chunk &c, int key_head,
                                     const float (&state)[STRIPS][SUMS], float (&rows_keys)[SUMS],
                                     float (&rows_state)[SUMS])
{
    typedef precision<T> P;
    const square *const rows = OF_QUERIES ? &room->queries : &room->keys;

#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        if (s * SIDE >= d.key_width)
            break;
        __syncthreads();
        fetch_raw_keys<P>(&room->keys, d, c, key_head, s);
        if (OF_QUERIES)
            fetch_raw_queries<P>(&room->queries, d, c, key_head, s);
        if (!c.is_first)
            P::store(&room->state, state[s]);
        __syncthreads();
        P::template multiply<false, true>(rows_keys, rows, &room->keys);
        if (!c.is_first)
            P::template multiply<false, false>(rows_state, rows, &room->state);
    }
}

/* d, as a factor, in the place of the inverse. */
template <typename T>
__device__ inline void solve(forward_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                             const float (&keys_state)[SUMS])
{
    typedef precision<T> P;
    float right[SUMS], change[SUMS] = {};

    fetch<P>(&room->queries, d.values(d.qkv, c.at, c.n, head, strip), unscaled);
    __syncthreads();
    P::read(right, &room->queries);
    solved_from<P>(right, keys_state, &room->rows);
    P::store(&room->queries, right); /* each thread's own numbers */
    __syncthreads();
    P::template multiply<false, false>(change, &room->solved, &room->queries);
    __syncthreads();
    P::store(&room->solved, change);
}

template <typename T, int STRIPS>
__device__ inline void forward_chunk(forward_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                     T *y, const float (&state)[STRIPS][SUMS])
{
    typedef precision<T> P;
    float weights[SUMS] = {}, of_state[SUMS] = {};
    const int key_head = head / d.group;

    load_rows(&room->rows, d, c, head);
    multiply_rows<false, T, STRIPS>(room, d, c, key_head, state, weights, of_state);
    scale_rows<P>(of_state, room->rows.key);
    triangle_of<P>(weights, &room->rows);
    invert<P>(&room->solved, weights);
    solve(room, d, c, head, strip, of_state);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        weights[i] = of_state[i] = 0;
    multiply_rows<true, T, STRIPS>(room, d, c, key_head, state, weights, of_state);
    weights_of<P>(weights, &room->rows);
    __syncthreads();
    P::store(&room->keys, weights);
    scale_rows<P>(of_state, room->rows.query);
    scale_rows<P>(of_state, room->rows.decay);
    __syncthreads();
    P::template multiply<false, false>(of_state, &room->keys, &room->solved);
    emit<P>(d.outputs(y, c.at, c.n, head, strip), of_state, &room->queries);
}

/* The state behind a chunk, from which the next one goes on. */
template <typename T, int STRIPS>
__device__ inline void move_state(forward_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                  float (&state)[STRIPS][SUMS])
{
    typedef precision<T> P;

#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        if (s * SIDE >= d.key_width)
            break;
        __syncthreads();
        fetch<P>(&room->keys, d.keys(d.qkv, c.at, c.n, head / d.group, s),
                 [&](int r) { return room->rows.key[r] * room->rows.left[r]; });
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            state[s][i] *= room->rows.decay[c.n - 1];
        P::template multiply<true, false>(state[s], &room->keys, &room->solved);
        emit<P>(d.state(d.states, c.row, c.token + c.n, head, s, strip), state[s], &room->queries);
    }
}

template <typename T, int STRIPS>
static __global__ void __launch_bounds__(SQUARE_THREADS, 1) delta_forward(const gated_delta<T> d, T *y)
{
    forward_room *const room = shared_memory<forward_room>();
    const int strips = d.value_strips(), head = (int)blockIdx.y / strips, strip = (int)blockIdx.y % strips;
    int from, to;
    const int row = span_of(d, DOCUMENT_SPAN, &from, &to);

    for (int first = from; (first = next_begin(d, row, first, to, ~0u)) < to; first++) {
        float state[STRIPS][SUMS] = {};
        chunk c;

        for (int token = first;; token += c.n) {
            c = chunk_of(d, row, token);
            forward_chunk<T, STRIPS>(room, d, c, head, strip, y, state);
            if (c.is_last)
                break;
            move_state<T, STRIPS>(room, d, c, head, strip, state);
        }
    }
}

/* ---- generation ---- */

enum {
    GO_WARPS = SQUARE_THREADS / WARP,
    GO_COLUMNS = WARP,
    GO_TOKENS = GO_WARPS /* of which each warp prepares one */
};

struct go_room {
    float keys[GO_TOKENS][256], queries[GO_TOKENS][256];
    float decay[GO_TOKENS], beta[GO_TOKENS];
    float read[GO_WARPS][GO_COLUMNS], out[GO_WARPS][GO_COLUMNS];
};

/* The warp's token of some from `token` on: its normalised query and key, zeros behind them, and its gates. */
template <typename T, int ROWS>
__device__ inline void prepare_token(go_room *room, const gated_delta<T> &d, size_t token, int head)
{
    const int warp = (int)threadIdx.x / WARP;
    const T *const query = d.queries(d.qkv, token, 1, head / d.group, 0).first;
    const T *const key = query + (size_t)d.n_key_heads * d.key_width;
    const float q = d.query_scale / sqrtf(squares_of(d, query) + 1e-6f), k = 1 / sqrtf(squares_of(d, key) + 1e-6f);

    for (int i = lane_index(); i < ROWS * GO_WARPS; i += WARP) {
        room->queries[warp][i] = i < d.key_width ? q * number_at(query + i) : 0;
        room->keys[warp][i] = i < d.key_width ? k * number_at(key + i) : 0;
    }
    if (lane_index() == 0) {
        const delta_gates x = gates_of(d, token, head);
        room->decay[warp] = expf(x.g), room->beta[warp] = x.beta;
    }
}

/* The block's sum of a column, in the order of warps. */
__device__ inline float column_sum(float (&of_warps)[GO_WARPS][GO_COLUMNS], float x)
{
    float sum = 0;

    of_warps[threadIdx.x / WARP][lane_index()] = x;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < GO_WARPS; w++)
        sum += of_warps[w][lane_index()];
    return sum;
}

/* One token; value: the column's. Returns y. */
template <int ROWS> __device__ inline float go_on(go_room *room, float (&state)[ROWS], int token, float value)
{
    const int warp = (int)threadIdx.x / WARP;
    float read = 0, out = 0;

#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        state[i] *= room->decay[token];
        read = fmaf(state[i], room->keys[token][i * GO_WARPS + warp], read);
    }
    const float change = room->beta[token] * (value - column_sum(room->read, read));
#pragma unroll
    for (int i = 0; i < ROWS; i++) {
        state[i] = fmaf(room->keys[token][i * GO_WARPS + warp], change, state[i]);
        out = fmaf(state[i], room->queries[token][i * GO_WARPS + warp], out);
    }
    return column_sum(room->out, out);
}

template <typename T, int ROWS>
static __global__ void __launch_bounds__(SQUARE_THREADS)
    delta_go_on(const gated_delta<T> d, T *y, float *states, uint32_t has_earlier)
{
    __shared__ go_room room;
    const int warp = (int)threadIdx.x / WARP, column = (int)blockIdx.x * GO_COLUMNS + lane_index(),
              head = (int)blockIdx.y;
    const bool there = column < d.value_width;
    float *const at = states + (size_t)head * d.key_width * d.value_width + column;
    float state[ROWS] = {};

    if (has_earlier && there)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (i * GO_WARPS + warp < d.key_width)
                state[i] = at[(size_t)(i * GO_WARPS + warp) * d.value_width];
    for (int first = 0; first < d.n_tokens; first += GO_TOKENS) {
        const int n = min(d.n_tokens - first, (int)GO_TOKENS);

        __syncthreads();
        if (warp < n)
            prepare_token<T, ROWS>(&room, d, (size_t)first + warp, head);
        __syncthreads();
        for (int i = 0; i < n; i++) {
            const size_t token = (size_t)first + i;
            const float value = there ? number_at(d.values(d.qkv, token, 1, head, 0).first + column) : 0;
            const float out = go_on<ROWS>(&room, state, i, value);

            if (warp == 0 && there)
                set(&d.outputs(y, token, 1, head, 0).first[column], out);
        }
    }
    if (there)
#pragma unroll
        for (int i = 0; i < ROWS; i++)
            if (i * GO_WARPS + warp < d.key_width)
                at[(size_t)(i * GO_WARPS + warp) * d.value_width] = state[i];
}

/* ---- launchers ---- */

template <typename T> static cudaError_t forward(const struct cuda_queue *q, const struct device_gated_delta *op)
{
    const gated_delta<T> d = gated_delta_of<T>(op);
    const auto kernel = op->key_width > 2 * SIDE ? delta_forward<T, 4> : delta_forward<T, 2>;
    const cudaError_t rc = allow_shared(kernel, sizeof(forward_room));

    return rc != cudaSuccess
               ? rc
               : launch(kernel, gated_delta_grid(op, DOCUMENT_SPAN, op->n_heads * pieces(op->value_width, SIDE)),
                        SQUARE_THREADS, sizeof(forward_room), q->stream, d, (T *)op->y);
}

template <typename T> static cudaError_t go_on(const struct cuda_queue *q, const struct device_gated_delta *op)
{
    const gated_delta<T> d = gated_delta_of<T>(op);
    const dim3 grid((unsigned)pieces(op->value_width, GO_COLUMNS), (unsigned)op->n_heads);

    return launch(op->key_width > 2 * SIDE ? delta_go_on<T, 256 / GO_WARPS> : delta_go_on<T, 128 / GO_WARPS>, grid,
                  SQUARE_THREADS, 0, q->stream, d, (T *)op->y, op->state, op->first > 0 ? 1u : 0u);
}

cudaError_t cuda_gated_delta(const struct cuda_queue *q, const struct device_gated_delta *op)
{
    return op->n_rows * op->n_tokens == 0 ? cudaSuccess : TYPED(q, forward)(q, op);
}

cudaError_t cuda_gated_delta_cached(const struct cuda_queue *q, const struct device_gated_delta *op)
{
    return op->n_tokens == 0 ? cudaSuccess : TYPED(q, go_on)(q, op);
}
