/* device/cuda/kernels/gated_delta_backward.cu - the gated delta rule, backward, in three launches and sums over tokens.
 *
 * The first alone is sequential: from a document's last chunk to its first, a block goes through a strip of the values of
 * one head with the gradient of the state in registers. It leaves that of each state, of values, and of what each chunk's d
 * is solved from. Then chunks are independent. A block of the second launch has a chunk and a head: it computes d again,
 * and the gradients of what is as large as a chunk's tokens squared, from which those of the gates follow. A block of the
 * third has a chunk and a strip of the keys of a key head: it adds up the gradients of queries and keys, head by head.
 *
 * With r what d is solved from, d' its gradient and r' that of r, r' solves (I + L)^T r' = d', and L's gradient is -r' d^T.
 * So that of b is r'.d times the slope of beta over beta: no division by beta. g of a token is a factor of what later
 * tokens read of earlier ones and of the state: its gradient is the sum of these products, without those that others
 * cancel. And the product of a vector with its gradient, which normalising needs, is a sum of the same products. */
#include "device/cuda/kernels/gated_delta.cuh"
#include "device/cuda/kernels/sum_rows.cuh"

/* ---- gradients of states ---- */

/* slope: the state's gradient. solved: the inverse of I + L. */
struct states_room {
    square keys, queries, slope, solved;
    chunk_rows rows;
};

/* Products of the chunk's keys with keys, and with the gradient of the state behind it, if there is one. */
template <typename T, int STRIPS>
__device__ inline void multiply_keys(states_room *room, const gated_delta<T> &d, const chunk &c, int key_head,
                                     const float (&slope)[STRIPS][SUMS], float (&keys_keys)[SUMS],
                                     float (&keys_slope)[SUMS])
{
    typedef precision<T> P;

#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        if (s * SIDE >= d.key_width)
            break;
        __syncthreads();
        fetch_raw_keys<P>(&room->keys, d, c, key_head, s);
        if (!c.is_last)
            P::store(&room->slope, slope[s]);
        __syncthreads();
        P::template multiply<false, true>(keys_keys, &room->keys, &room->keys);
        if (!c.is_last)
            P::template multiply<false, false>(keys_slope, &room->keys, &room->slope);
    }
}

/* Products of its queries with its keys. */
template <typename P, typename T>
__device__ inline void multiply_queries(square *queries, square *keys, const gated_delta<T> &d, const chunk &c,
                                        int key_head, float (&queries_keys)[SUMS])
{
    for (int s = 0; s < d.key_strips(); s++) {
        __syncthreads();
        fetch_raw_keys<P>(keys, d, c, key_head, s);
        fetch_raw_queries<P>(queries, d, c, key_head, s);
        __syncthreads();
        P::template multiply<false, true>(queries_keys, queries, keys);
    }
}

/* The gradient of what d is solved from, times -e^G beta, as a factor in the place of the slope; and of values. change:
 * of d, as far as the state behind the chunk reads it. */
template <typename T>
__device__ inline void solve_backward(states_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                      const float (&weights)[SUMS], float (&change)[SUMS])
{
    typedef precision<T> P;
    float solved[SUMS] = {};

    __syncthreads();
    P::store(&room->keys, weights);
    fetch<P>(&room->queries, d.outputs(d.y_gradient, c.at, c.n, head, strip), unscaled);
    __syncthreads();
    P::template multiply<true, false>(change, &room->keys, &room->queries);
    P::store(&room->slope, change);
    __syncthreads();
    P::template multiply<true, false>(solved, &room->solved, &room->slope);
    emit<P>(d.outputs(d.scratch.change_slope, c.at, c.n, head, strip), solved, &room->keys);
    scale_rows<P>(solved, room->rows.beta);
    __syncthreads();
    emit<P>(d.values(d.qkv_gradient, c.at, c.n, head, strip), solved, &room->keys);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        solved[i] *= -room->rows.decay[P::row(i)];
    P::store(&room->slope, solved);
}

/* The gradient of the state before a chunk, from that behind it. */
template <typename T, int STRIPS>
__device__ inline void move_slope(states_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                  float (&slope)[STRIPS][SUMS])
{
    typedef precision<T> P;

    fetch<P>(&room->queries, d.outputs(d.y_gradient, c.at, c.n, head, strip),
             [&](int r) { return room->rows.decay[r]; });
#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        if (s * SIDE >= d.key_width)
            break;
        __syncthreads();
        fetch_keys<P>(&room->keys, d, c, &room->rows, head / d.group, s);
        fetch_queries<P>(&room->solved, d, c, &room->rows, head / d.group, s);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            slope[s][i] *= room->rows.decay[c.n - 1];
        P::template multiply<true, false>(slope[s], &room->solved, &room->queries);
        P::template multiply<true, false>(slope[s], &room->keys, &room->slope);
        __syncthreads();
        emit<P>(d.state(d.scratch.states, c.row, c.token, head, s, strip), slope[s], &room->solved);
    }
}

template <typename T, int STRIPS>
__device__ inline void states_chunk(states_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                    float (&slope)[STRIPS][SUMS])
{
    typedef precision<T> P;
    float pairs[SUMS] = {}, change[SUMS] = {};

    load_rows(&room->rows, d, c, head);
    multiply_keys<T, STRIPS>(room, d, c, head / d.group, slope, pairs, change);
    triangle_of<P>(pairs, &room->rows);
    invert<P>(&room->solved, pairs);
    scale_rows<P>(change, room->rows.key);
    scale_rows<P>(change, room->rows.left);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        pairs[i] = 0;
    multiply_queries<P>(&room->queries, &room->keys, d, c, head / d.group, pairs);
    weights_of<P>(pairs, &room->rows);
    solve_backward(room, d, c, head, strip, pairs, change);
    if (!c.is_first)
        move_slope<T, STRIPS>(room, d, c, head, strip, slope);
}

template <typename T, int STRIPS>
static __global__ void __launch_bounds__(SQUARE_THREADS, 1) delta_states_gradient(const gated_delta<T> d)
{
    states_room *const room = shared_memory<states_room>();
    const int strips = d.value_strips(), head = (int)blockIdx.y / strips, strip = (int)blockIdx.y % strips;
    int from, to;
    const int row = span_of(d, DOCUMENT_SPAN, &from, &to);

    for (int first = from; (first = next_begin(d, row, first, to, ~0u)) < to; first++) {
        float slope[STRIPS][SUMS] = {};
        int token = first;

        while (!chunk_of(d, row, token).is_last)
            token += CHUNK;
        for (; token >= first; token -= CHUNK)
            states_chunk<T, STRIPS>(room, d, chunk_of(d, row, token), head, strip, slope);
    }
}

/* ---- gradients of what is as large as a chunk's tokens squared, and of gates ---- */

/* Sums over columns: what gradients of y, or of the state, take from each token's query and key by way of the states. */
enum { OF_QUERIES, OF_KEYS, OF_CHANGES, OF_BETA, OF_WEIGHTS, OF_TRIANGLE, ROW_SUMS };

struct chunks_room {
    square keys, queries, state, slope, solved;
    chunk_rows rows;
    row_parts sums[ROW_SUMS];
    float column_sums[SIDE], of_warps[SQUARE_THREADS / WARP];

    __device__ float sum(int which, int row) const
    {
        return sums[which][0][row] + sums[which][1][row];
    }
};

/* A thread's part of these sums; and of the product of a state and its gradient. */
template <typename P> struct row_sums {
    float of[ROW_SUMS][P::ROWS], states;
};

/* Products of keys and queries with a strip of the state before the chunk. */
template <typename P, typename T>
__device__ inline void multiply_state(chunks_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                      float (&keys_state)[SUMS], float (&queries_state)[SUMS])
{
    for (int s = 0; s < d.key_strips() && !c.is_first; s++) {
        head = (int)afresh((unsigned)head);
        __syncthreads();
        fetch_raw_keys<P>(&room->keys, d, c, head / d.group, s);
        fetch_raw_queries<P>(&room->queries, d, c, head / d.group, s);
        fetch<P>(&room->state, d.state((const float *)d.states, c.row, c.token, head, s, strip), unscaled);
        __syncthreads();
        P::template multiply<false, false>(keys_state, &room->keys, &room->state);
        P::template multiply<false, false>(queries_state, &room->queries, &room->state);
    }
    scale_rows<P>(keys_state, room->rows.key);
    scale_rows<P>(queries_state, room->rows.query);
}

/* Products of keys with the gradient of the state behind it; and of the two states, one by one. */
template <typename P, typename T>
__device__ inline void multiply_slope(chunks_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                      float (&keys_slope)[SUMS], float *product)
{
    for (int s = 0; s < d.key_strips() && !c.is_last; s++) {
        head = (int)afresh((unsigned)head);
        const array_part<const float> slope =
            d.state((const float *)d.scratch.states, c.row, c.token + c.n, head, s, strip);

        __syncthreads();
        fetch_raw_keys<P>(&room->keys, d, c, head / d.group, s);
        fetch<P>(&room->state, slope, unscaled);
        if (!c.is_first) {
            const array_part<const float> state = d.state((const float *)d.states, c.row, c.token, head, s, strip);
            each_four([&](int r, int column, int) {
                float x[4], y[4];

                read_four(x, state, r, column);
                read_four(y, slope, r, column);
#pragma unroll
                for (int v = 0; v < 4; v++)
                    *product = fmaf(x[v], y[v], *product);
            });
        }
        __syncthreads();
        P::template multiply<false, false>(keys_slope, &room->keys, &room->state);
    }
    scale_rows<P>(keys_slope, room->rows.key);
}

/* A strip of values: d, and what it gives to the gradients of the weights and of L. */
template <typename P, typename T>
__device__ inline void chunk_strip(chunks_room *room, const gated_delta<T> &d, const chunk &c, int head, int strip,
                                   float (&weights_slope)[SUMS], float (&triangle_slope)[SUMS], row_sums<P> &sums)
{
    float keys_state[SUMS] = {}, queries_state[SUMS] = {}, keys_slope[SUMS] = {}, x[SUMS], change[SUMS] = {};
    const chunk_rows *const rows = &room->rows;

    head =
        (int)afresh((unsigned)head); /* addresses are computed here: before the loop they would take sums' registers */
    multiply_state<P>(room, d, c, head, strip, keys_state, queries_state);
    __syncthreads();
    fetch<P>(&room->slope, d.values(d.qkv, c.at, c.n, head, strip), unscaled);
    fetch<P>(&room->state, d.outputs(d.y_gradient, c.at, c.n, head, strip), unscaled);
    fetch<P>(&room->queries, d.outputs((const float *)d.scratch.change_slope, c.at, c.n, head, strip), unscaled);
    __syncthreads();
    P::read(x, &room->state);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums.of[OF_QUERIES][P::own(i)] += x[i] * (rows->decay[P::row(i)] * queries_state[i]);
    P::read(x, &room->queries);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums.of[OF_KEYS][P::own(i)] += x[i] * (rows->beta[P::row(i)] * rows->decay[P::row(i)] * keys_state[i]);
    P::read(x, &room->slope);
    solved_from<P>(x, keys_state, rows);
    P::store(&room->keys, x);
    __syncthreads();
    P::template multiply<false, false>(change, &room->solved, &room->keys);
    P::store(&room->slope, change);
    P::read(x, &room->queries);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums.of[OF_BETA][P::own(i)] += change[i] * x[i];
    __syncthreads();
    emit<P>(d.outputs(d.scratch.change, c.at, c.n, head, strip), change, &room->keys);
    P::template multiply<false, true>(weights_slope, &room->state, &room->slope);
    P::template multiply<false, true>(triangle_slope, &room->queries, &room->slope);
    multiply_slope<P>(room, d, c, head, strip, keys_slope, &sums.states);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        sums.of[OF_CHANGES][P::own(i)] += change[i] * (rows->left[P::row(i)] * keys_slope[i]);
}

/* Gradients of the weights of d in y and of L times the decays, for the launch that follows; and the sums of their products
 * with these, whose sum becomes a square of numbers. Weights and L are where those gradients go. */
template <typename P, typename T>
__device__ inline void finish_pairs(chunks_room *room, const gated_delta<T> &d, const chunk &c, int head,
                                    float (&weights_slope)[SUMS], float (&triangle_slope)[SUMS], row_sums<P> &sums)
{
    const array_part<float> scores = d.pairs(d.scratch.scores, c.at, c.n, head);
    const array_part<float> solved = d.pairs(d.scratch.solved, c.at, c.n, head);
    float products[SUMS];

#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = P::row(i), column = P::column(i);
        const bool counts = r < c.n && column <= r;

        products[i] = counts ? weights_slope[i] * scores.first[r * scores.stride + column] : 0;
        sums.of[OF_WEIGHTS][P::own(i)] += products[i];
        weights_slope[i] = counts ? weights_slope[i] * room->rows.between(r, column) : 0;
    }
    __syncthreads(); /* one after the other, as registers are few */
    emit<P>(scores, weights_slope, &room->keys);
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = P::row(i), column = P::column(i);
        const bool counts = r < c.n && column < r;
        const float product = counts ? -triangle_slope[i] * solved.first[r * solved.stride + column] : 0;

        products[i] += product;
        sums.of[OF_TRIANGLE][P::own(i)] += product;
        triangle_slope[i] = counts ? -triangle_slope[i] * (room->rows.beta[r] * room->rows.between(r, column)) : 0;
    }
    __syncthreads();
    emit<P>(solved, triangle_slope, &room->queries);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        room->solved.at[P::row(i)][P::column(i)] = products[i];
}

/* The block's sum of what threads have, in an order of its own. */
__device__ inline float block_total(float *of_warps, float x)
{
    float sum = 0;

    x = warp_sum(x);
    if (lane_index() == 0)
        of_warps[threadIdx.x / WARP] = x;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < SQUARE_THREADS / WARP; w++)
        sum += of_warps[w];
    return sum;
}

/* The gradient of token t's g: of what tokens from t on read of tokens before t and of the state before the chunk, and of
 * what the state behind the chunk has of both. */
__device__ inline float g_gradient(const chunks_room *room, int t, int n, float of_states)
{
    float sum = of_states;

    for (int i = t; i < n; i++)
        sum += room->solved.at[i][t] + (room->sum(OF_QUERIES, i) - room->sum(OF_KEYS, i));
    for (int j = 0; j < t; j++)
        sum += room->sum(OF_CHANGES, j);
    return sum;
}

/* A thread has a token. Rows of the square of products become the sums of those before each. */
template <typename T>
__device__ inline void finish_gates(chunks_room *room, const gated_delta<T> &d, const chunk &c, int head,
                                    float of_states)
{
    const int t = (int)threadIdx.x;
    const size_t at = (c.at + t) * d.n_heads + head;
    float sum = 0;

    if (t < SIDE) {
        for (int i = t; i < c.n; i++)
            sum += room->solved.at[i][t];
        room->column_sums[t] = sum;
    }
    __syncthreads();
    if (t < SIDE) {
        sum = 0;
        for (int j = 0; j < SIDE; j++) {
            const float x = room->solved.at[t][j];
            room->solved.at[t][j] = sum;
            sum += x;
        }
    }
    __syncthreads();
    if (t >= c.n)
        return;
    const chunk_rows *const rows = &room->rows;
    const float slope = g_gradient(room, t, c.n, of_states);
    const float a_slope = slope * -expf(number_at(d.a_log + head)) * rows->softplus_slope[t];
    T *const gates = d.gates_gradient + (c.at + t) * 2 * d.n_heads + head;

    set(gates, a_slope);
    set(gates + d.n_heads, room->sum(OF_BETA, t) * rows->forgotten[t]);
    d.scratch.dt_terms[at] = a_slope;
    d.scratch.a_log_terms[at] = slope * rows->g[t];
    d.scratch.query_dots[at] = room->sum(OF_QUERIES, t) + room->sum(OF_WEIGHTS, t);
    d.scratch.key_dots[at] =
        (room->sum(OF_TRIANGLE, t) + room->column_sums[t]) + (room->sum(OF_CHANGES, t) - room->sum(OF_KEYS, t));
}

template <typename T>
__device__ inline void chunk_gradients(chunks_room *room, const gated_delta<T> &d, const chunk &c, int head)
{
    typedef precision<T> P;
    float weights[SUMS] = {}, triangle[SUMS] = {};
    row_sums<P> sums = {};

    load_rows(&room->rows, d, c, head);
    for (int s = 0; s < d.key_strips(); s++) {
        __syncthreads();
        fetch_raw_keys<P>(&room->keys, d, c, head / d.group, s);
        fetch_raw_queries<P>(&room->queries, d, c, head / d.group, s);
        __syncthreads();
        P::template multiply<false, true>(triangle, &room->keys, &room->keys);
        P::template multiply<false, true>(weights, &room->queries, &room->keys);
    }
    weights_of<P>(weights, &room->rows);
    __syncthreads();
    emit<P>(d.pairs(d.scratch.scores, c.at, c.n, head), weights, &room->keys);
    triangle_of<P>(triangle, &room->rows);
    emit<P>(d.pairs(d.scratch.solved, c.at, c.n, head), triangle, &room->queries);
    invert<P>(&room->solved, triangle);
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        weights[i] = triangle[i] = 0;
    for (int strip = 0; strip < d.value_strips(); strip++)
        chunk_strip<P>(room, d, c, head, strip, weights, triangle, sums);
    finish_pairs<P>(room, d, c, head, weights, triangle, sums);
#pragma unroll
    for (int i = 0; i < ROW_SUMS; i++)
        P::sum_columns(room->sums[i], sums.of[i]);
    const float states = block_total(room->of_warps, sums.states);
    finish_gates(room, d, c, head, room->rows.decay[c.n - 1] * states);
}

template <typename T>
static __global__ void __launch_bounds__(SQUARE_THREADS, 1) delta_chunks_gradient(const gated_delta<T> d)
{
    chunks_room *const room = shared_memory<chunks_room>();
    int from, to;
    const int row = span_of(d, CHUNK, &from, &to);

    for (int token = from; (token = next_begin(d, row, token, to, CHUNK - 1)) < to; token++)
        chunk_gradients(room, d, chunk_of(d, row, token), (int)blockIdx.y);
}

/* ---- gradients of queries and keys ---- */

struct keys_room {
    square keys, queries, left, second, right;
    chunk_rows rows;
    float query_dots[SIDE], key_dots[SIDE];
};

/* What one head reads of the states with queries and keys, and leaves in them with keys. */
template <typename P, typename T>
__device__ inline void add_states(keys_room *room, const gated_delta<T> &d, const chunk &c, int head, int key_strip,
                                  float (&queries_slope)[SUMS], float (&keys_slope)[SUMS])
{
    const chunk_rows *const rows = &room->rows;

    for (int strip = 0; strip < d.value_strips(); strip++) {
        if (!c.is_first) {
            __syncthreads();
            fetch<P>(&room->left, d.outputs(d.y_gradient, c.at, c.n, head, strip),
                     [&](int r) { return rows->decay[r]; });
            fetch<P>(&room->second, d.outputs((const float *)d.scratch.change_slope, c.at, c.n, head, strip),
                     [&](int r) { return -(rows->beta[r] * rows->decay[r]); });
            fetch<P>(&room->right, d.state((const float *)d.states, c.row, c.token, head, key_strip, strip), unscaled);
            __syncthreads();
            P::template multiply<false, true>(queries_slope, &room->left, &room->right);
            P::template multiply<false, true>(keys_slope, &room->second, &room->right);
        }
        if (!c.is_last) {
            __syncthreads();
            fetch<P>(&room->left, d.outputs((const float *)d.scratch.change, c.at, c.n, head, strip),
                     [&](int r) { return rows->left[r]; });
            fetch<P>(&room->right,
                     d.state((const float *)d.scratch.states, c.row, c.token + c.n, head, key_strip, strip), unscaled);
            __syncthreads();
            P::template multiply<false, true>(keys_slope, &room->left, &room->right);
        }
    }
}

/* What tokens of the chunk read of each other, of one head. */
template <typename P, typename T>
__device__ inline void add_pairs(keys_room *room, const gated_delta<T> &d, const chunk &c, int head,
                                 float (&queries_slope)[SUMS], float (&keys_slope)[SUMS])
{
    __syncthreads();
    fetch<P>(&room->left, d.pairs((const float *)d.scratch.scores, c.at, c.n, head), unscaled);
    fetch<P>(&room->second, d.pairs((const float *)d.scratch.solved, c.at, c.n, head), unscaled);
    __syncthreads();
    P::template multiply<false, false>(queries_slope, &room->left, &room->keys);
    P::template multiply<true, false>(keys_slope, &room->left, &room->queries);
    P::template multiply<false, false>(keys_slope, &room->second, &room->keys);
    P::template multiply<true, false>(keys_slope, &room->second, &room->keys);
}

/* Gradients of normalised vectors become those of the vectors: with x = f u, of u it is f (x' - x (x.x')). A query is
 * scaled besides, by key_width^-1/2. */
template <typename P>
__device__ inline void slope_of_norm(float (&slope)[SUMS], const square *normal, const float *dots,
                                     const float *factors, float over_square)
{
    float x[SUMS];

    P::read(x, normal);
#pragma unroll
    for (int i = 0; i < SUMS; i++) {
        const int r = P::row(i);
        slope[i] = factors[r] * (slope[i] - x[i] * (over_square * dots[r]));
    }
}

template <typename T>
__device__ inline void key_gradients(keys_room *room, const gated_delta<T> &d, const chunk &c, int key_head, int strip)
{
    typedef precision<T> P;
    float queries[SUMS] = {}, keys[SUMS] = {}, dots[2] = {};
    const int t = (int)threadIdx.x;

    for (int i = 0; i < d.group; i++) {
        const int head = key_head * d.group + i;

        load_rows(&room->rows, d, c, head);
        if (i == 0) {
            fetch_keys<P>(&room->keys, d, c, &room->rows, key_head, strip);
            fetch_queries<P>(&room->queries, d, c, &room->rows, key_head, strip);
        }
        if (t < c.n) {
            dots[0] += d.scratch.query_dots[(c.at + t) * d.n_heads + head];
            dots[1] += d.scratch.key_dots[(c.at + t) * d.n_heads + head];
        }
        add_states<P>(room, d, c, head, strip, queries, keys);
        add_pairs<P>(room, d, c, head, queries, keys);
    }
    if (t < SIDE)
        room->query_dots[t] = dots[0], room->key_dots[t] = dots[1];
    __syncthreads();
    slope_of_norm<P>(queries, &room->queries, room->query_dots, room->rows.query, (float)d.key_width);
    slope_of_norm<P>(keys, &room->keys, room->key_dots, room->rows.key, 1);
    emit<P>(d.queries(d.qkv_gradient, c.at, c.n, key_head, strip), queries, &room->left);
    emit<P>(d.keys(d.qkv_gradient, c.at, c.n, key_head, strip), keys, &room->second);
}

template <typename T>
static __global__ void __launch_bounds__(SQUARE_THREADS, 1) delta_keys_gradient(const gated_delta<T> d)
{
    keys_room *const room = shared_memory<keys_room>();
    const int strips = d.key_strips(), key_head = (int)blockIdx.y / strips, strip = (int)blockIdx.y % strips;
    int from, to;
    const int row = span_of(d, CHUNK, &from, &to);

    for (int token = from; (token = next_begin(d, row, token, to, CHUNK - 1)) < to; token++)
        key_gradients(room, d, chunk_of(d, row, token), key_head, strip);
}

/* ---- launchers ---- */

template <typename ROOM, typename T>
static cudaError_t launch_gradient(const struct cuda_queue *q, void (*kernel)(const gated_delta<T>),
                                   const gated_delta<T> &d, dim3 grid)
{
    const cudaError_t rc = allow_shared(kernel, sizeof(ROOM));

    return rc == cudaSuccess ? launch(kernel, grid, SQUARE_THREADS, sizeof(ROOM), q->stream, d) : rc;
}

static cudaError_t sum_terms(const struct cuda_queue *q, float *to, const float *terms,
                             const struct device_gated_delta *op)
{
    const summed_array<float, 1> from = {terms, op->n_heads};

    return to ? sum_onto<float, 1>(q, to, from, op->n_rows * op->n_tokens, op->n_heads) : cudaSuccess;
}

template <typename T> static cudaError_t backward(const struct cuda_queue *q, const struct device_gated_delta *op)
{
    gated_delta<T> d = gated_delta_of<T>(op);
    const size_t key_strips = pieces(op->key_width, SIDE), value_strips = pieces(op->value_width, SIDE);
    cudaError_t rc;

    d.scratch = gated_delta_scratch_of(op);
    rc = launch_gradient<states_room, T>(q,
                                         op->key_width > 2 * SIDE ? delta_states_gradient<T, 4>
                                                                  : delta_states_gradient<T, 2>,
                                         d, gated_delta_grid(op, DOCUMENT_SPAN, op->n_heads * value_strips));
    if (rc == cudaSuccess)
        rc = launch_gradient<chunks_room, T>(q, delta_chunks_gradient<T>, d, gated_delta_grid(op, CHUNK, op->n_heads));
    if (rc == cudaSuccess)
        rc = launch_gradient<keys_room, T>(q, delta_keys_gradient<T>, d,
                                           gated_delta_grid(op, CHUNK, op->n_key_heads * key_strips));
    if (rc == cudaSuccess)
        rc = sum_terms(q, op->a_log_gradient, d.scratch.a_log_terms, op);
    return rc == cudaSuccess ? sum_terms(q, op->dt_bias_gradient, d.scratch.dt_terms, op) : rc;
}

cudaError_t cuda_gated_delta_backward(const struct cuda_queue *q, const struct device_gated_delta *op)
{
    return op->n_rows * op->n_tokens == 0 ? cudaSuccess : TYPED(q, backward)(q, op);
}
