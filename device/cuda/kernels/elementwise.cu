/* device/cuda/kernels/elementwise.cu - biases, activations, gates, dropout: each element read and written once. */
#include "device/cuda/kernels/dropout.cuh"
#include "device/cuda/kernels/exponential.cuh"
#include "device/cuda/kernels/over_rows.cuh"
#include "device/cuda/kernels/sum_rows.cuh"

/* ---- bias: 2 values per element ---- */

template <typename T, int V> struct bias_rows {
    T *c;
    const T *bias;
    size_t stride;

    struct operands {
        pack<T, V> c, bias;
    };

    __device__ operands load_at(size_t row, size_t column) const
    {
        const operands held = {load<V>(c + row * stride + column), load<V>(bias + column)};
        return held;
    }

    __device__ void store_at(const operands &held, size_t row, size_t column) const
    {
        float sum[V];

#pragma unroll
        for (int v = 0; v < V; v++)
            sum[v] = held.c[v] + held.bias[v];
        store(c + row * stride + column, sum);
    }
};

template <typename T>
static cudaError_t add_bias(const struct cuda_queue *q, void *c, size_t stride, const void *bias, size_t m, size_t n)
{
    const bias_rows<T, whole<T>::V> packs = {(T *)c, (const T *)bias, stride};
    const bias_rows<T, 1> elements = {packs.c, packs.bias, stride};
    const bool are_whole = is_whole(packs.c, stride) && is_whole(packs.bias, n);

    return run_either<T, bias_rows>(q, are_whole, packs, elements, m, n);
}

cudaError_t cuda_add_bias(const struct cuda_queue *q, void *c, size_t c_stride, const void *bias, size_t m, size_t n)
{
    return TYPED(q, add_bias)(q, c, c_stride, bias, m, n);
}

/* ---- activations ---- */

/* x * sigmoid(2u), u = sqrt(2/pi) (x + 0.044715 x^3): the tanh form of GELU without tanh's cancellation below 0.
 * Hendrycks & Gimpel, arXiv:1606.08415. This is exp(-2u), kept finite; the products restore a NaN of x. */
static __device__ inline float gelu_new_exponential(float x)
{
    const float a = -2.302208198f, b = -0.1029432396f; /* -2 sqrt(2/pi) / ln 2, and 0.044715 of it */

    return exp2f(fminf(120, x * (x * x * b + a)));
}

/* Phi(x), the normal distribution's integral, and its density: Phi(-|x|) = exp(-x^2/2) t p(t), t = 1/(1 + 0.35|x|), to
 * 4e-7 of itself in fp32 up to |x| = 14, where the exponential is 0. */
static __device__ inline float normal(float x, float *density)
{
    const float e = exp2f(x * x * -0.7213475204f), t = __fdividef(1, 1 + 0.35f * fabsf(x));
    float p = -0.02914558652f;

    p = p * t + 0.1439701274f;
    p = p * t - 0.2557111277f;
    p = p * t + 0.1591706145f;
    p = p * t - 0.02310733781f;
    p = p * t + 0.1055068937f;
    p = p * t + 0.1198331687f;
    p = p * t + 0.1398618247f;
    p = p * t + 0.1396214071f;
    p *= e * t;
    *density = e * 0.3989422804f;
    return x < 0 ? p : 1 - p;
}

/* exp(-1.702 x), kept finite, for x * sigmoid(1.702 x). */
static __device__ inline float gelu_quick_exponential(float x)
{
    return exp2f(fminf(120, x * -2.45546696f));
}

template <enum model_activation A> static __device__ inline float activation(float x)
{
    float density;

    if (A == MODEL_GELU_NEW)
        return __fdividef(x, 1 + gelu_new_exponential(x));
    if (A == MODEL_GELU)
        return x * normal(x, &density);
    if (A == MODEL_SILU)
        return __fdividef(x, 1 + exponential_of_minus(x));
    if (A == MODEL_GELU_QUICK)
        return __fdividef(x, 1 + gelu_quick_exponential(x));
    if (A == MODEL_TANH)
        return tanhf(x);
    if (A == MODEL_RELU2)
        return x < 0 ? 0 : x * x;
    if (A == MODEL_SIGMOID)
        return x != x ? x : __fdividef(1, 1 + exponential_of_minus(x)); /* a NaN stays */
    return x < 0 ? 0 : x;                                               /* a NaN stays */
}

template <enum model_activation A> static __device__ inline float activation_gradient(float x)
{
    if (A == MODEL_GELU_NEW) {
        const float a = 1.595769122f, b = 0.2140644488f; /* derivative of 2u: a + b x^2 */
        const float e = gelu_new_exponential(x), s = __fdividef(1, 1 + e);
        return s + x * (a + b * (x * x)) * s * (e * s);
    }
    if (A == MODEL_GELU) {
        float density;
        const float integral = normal(x, &density);
        return integral + x * density;
    }
    if (A == MODEL_SILU) {
        const float e = exponential_of_minus(x), s = __fdividef(1, 1 + e);
        return s + x * s * (e * s);
    }
    if (A == MODEL_SIGMOID) {
        const float e = exponential_of_minus(x), s = __fdividef(1, 1 + e);
        return x != x ? x : s * (e * s);
    }
    if (A == MODEL_GELU_QUICK) {
        const float e = gelu_quick_exponential(x), s = __fdividef(1, 1 + e);
        return s + 1.702f * x * s * (e * s);
    }
    if (A == MODEL_RELU2)
        return x < 0 ? 0 : 2 * x;
    if (A == MODEL_TANH) {
        const float t = tanhf(x);
        return 1 - t * t;
    }
    return x > 0 ? 1 : 0;
}

/* 2 values per element. */
template <enum model_activation A> struct activated {
    template <typename T, int V> struct rows {
        T *c;
        const T *pre;
        size_t stride;

        typedef pack<T, V> operands;

        __device__ operands load_at(size_t row, size_t column) const
        {
            return load<V>(pre + row * stride + column);
        }

        __device__ void store_at(const operands &held, size_t row, size_t column) const
        {
            float y[V];

#pragma unroll
            for (int v = 0; v < V; v++)
                y[v] = activation<A>(held[v]);
            store(c + row * stride + column, y);
        }
    };

    /* c *= act'(pre): 3 values per element, which rows may be summed from (sum_rows.cuh) */
    template <typename T, int V> struct gradient_rows {
        T *c;
        const T *pre;
        size_t stride;

        struct operands {
            pack<T, V> c, pre;
        };

        __device__ operands load_at(size_t row, size_t column) const
        {
            const operands held = {load<V>(c + row * stride + column), load<V>(pre + row * stride + column)};
            return held;
        }

        __device__ pack<T, V> value_at(const operands &held, size_t row, size_t column) const
        {
            float y[V];

#pragma unroll
            for (int v = 0; v < V; v++)
                y[v] = held.c[v] * activation_gradient<A>(held.pre[v]);
            const pack<T, V> rounded = round_to<T>(y);
            store(c + row * stride + column, rounded);
            return rounded;
        }

        __device__ void store_at(const operands &held, size_t row, size_t column) const
        {
            value_at(held, row, column);
        }
    };
};

/* Rows without gaps are treated as one long row. */
template <typename T, template <typename, int> class F>
static cudaError_t run_activation(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m,
                                  size_t n)
{
    const size_t rows = stride == n ? 1 : m, columns = stride == n ? m * n : n;
    const size_t apart = rows == 1 ? columns : stride;
    const F<T, whole<T>::V> packs = {(T *)c, (const T *)pre, apart};
    const F<T, 1> elements = {packs.c, packs.pre, apart};
    const bool are_whole = is_whole(packs.c, apart) && is_whole(packs.pre, columns);

    return run_either<T, F>(q, are_whole, packs, elements, rows, columns);
}

template <typename T>
static cudaError_t activate(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m, size_t n,
                            enum model_activation kind)
{
    switch (kind) {
    case MODEL_GELU_NEW:
        return run_activation<T, activated<MODEL_GELU_NEW>::rows>(q, c, pre, stride, m, n);
    case MODEL_GELU:
        return run_activation<T, activated<MODEL_GELU>::rows>(q, c, pre, stride, m, n);
    case MODEL_RELU:
        return run_activation<T, activated<MODEL_RELU>::rows>(q, c, pre, stride, m, n);
    case MODEL_SILU:
        return run_activation<T, activated<MODEL_SILU>::rows>(q, c, pre, stride, m, n);
    case MODEL_TANH:
        return run_activation<T, activated<MODEL_TANH>::rows>(q, c, pre, stride, m, n);
    case MODEL_SIGMOID:
        return run_activation<T, activated<MODEL_SIGMOID>::rows>(q, c, pre, stride, m, n);
    case MODEL_RELU2:
        return run_activation<T, activated<MODEL_RELU2>::rows>(q, c, pre, stride, m, n);
    case MODEL_GELU_QUICK:
        return run_activation<T, activated<MODEL_GELU_QUICK>::rows>(q, c, pre, stride, m, n);
    }
    return cudaErrorInvalidValue;
}

/* With the sums of columns, in the order of reduce_rows, which reads c again where packs are not whole. */
template <typename T, enum model_activation A>
static cudaError_t run_gradient(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m, size_t n,
                                float *sums)
{
    typedef typename activated<A>::template gradient_rows<T, whole<T>::V> whole_rows;
    const whole_rows packs = {(T *)c, (const T *)pre, stride};

    if (sums && is_whole(packs.c, stride) && is_whole(packs.pre, stride) && n % whole<T>::V == 0)
        return sum_onto<T, whole<T>::V>(q, sums, packs, m, n);
    const cudaError_t rc = run_activation<T, activated<A>::template gradient_rows>(q, c, pre, stride, m, n);
    const struct device_reduce_rows reduce = {sums, c, m, n, stride};
    return rc == cudaSuccess && sums ? cuda_reduce_rows(q, &reduce) : rc;
}

template <typename T>
static cudaError_t multiply_gradient(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m,
                                     size_t n, enum model_activation kind, float *sums)
{
    switch (kind) {
    case MODEL_GELU_NEW:
        return run_gradient<T, MODEL_GELU_NEW>(q, c, pre, stride, m, n, sums);
    case MODEL_GELU:
        return run_gradient<T, MODEL_GELU>(q, c, pre, stride, m, n, sums);
    case MODEL_RELU:
        return run_gradient<T, MODEL_RELU>(q, c, pre, stride, m, n, sums);
    case MODEL_SILU:
        return run_gradient<T, MODEL_SILU>(q, c, pre, stride, m, n, sums);
    case MODEL_TANH:
        return run_gradient<T, MODEL_TANH>(q, c, pre, stride, m, n, sums);
    case MODEL_SIGMOID:
        return run_gradient<T, MODEL_SIGMOID>(q, c, pre, stride, m, n, sums);
    case MODEL_RELU2:
        return run_gradient<T, MODEL_RELU2>(q, c, pre, stride, m, n, sums);
    case MODEL_GELU_QUICK:
        return run_gradient<T, MODEL_GELU_QUICK>(q, c, pre, stride, m, n, sums);
    }
    return cudaErrorInvalidValue;
}

cudaError_t cuda_activate_rows(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m, size_t n,
                               enum model_activation activation)
{
    return TYPED(q, activate)(q, c, pre, stride, m, n, activation);
}

cudaError_t cuda_activation_gradient(const struct cuda_queue *q, void *c, const void *pre, size_t stride, size_t m,
                                     size_t n, enum model_activation activation, float *sums)
{
    return TYPED(q, multiply_gradient)(q, c, pre, stride, m, n, activation, sums);
}

cudaError_t cuda_activate(const struct cuda_queue *q, const struct device_activate *op)
{
    return cuda_activate_rows(q, op->y, op->x, op->n, 1, op->n, op->activation);
}

cudaError_t cuda_activate_backward(const struct cuda_queue *q, const struct device_activate *op)
{
    return cuda_activation_gradient(q, op->gradient, op->x, op->n, 1, op->n, op->activation, NULL);
}

/* ---- soft caps: 2 numbers in fp32 per element ---- */

template <typename, int V> struct capped {
    float *x;
    float cap;

    typedef pack<float, V> operands;

    __device__ operands load_at(size_t, size_t column) const
    {
        return load<V>(x + column);
    }

    __device__ void store_at(const operands &held, size_t, size_t column) const
    {
        float y[V];

#pragma unroll
        for (int v = 0; v < V; v++)
            y[v] = cap * tanhf(held[v] / cap);
        store(x + column, y);
    }
};

cudaError_t cuda_soft_cap(const struct cuda_queue *q, const struct device_soft_cap *op)
{
    const capped<float, whole<float>::V> packs = {op->x, op->cap};
    const capped<float, 1> elements = {op->x, op->cap};

    return run_either<float, capped>(q, is_whole(op->x, op->n), packs, elements, 1, op->n);
}

/* ---- sums: 3 numbers in fp32 per element ---- */

template <typename, int V> struct added {
    float *sum;
    const float *x;

    struct operands {
        pack<float, V> sum, x;
    };

    __device__ operands load_at(size_t, size_t column) const
    {
        return {load<V>(sum + column), load<V>(x + column)};
    }

    __device__ void store_at(const operands &held, size_t, size_t column) const
    {
        float y[V];

#pragma unroll
        for (int v = 0; v < V; v++)
            y[v] = held.sum[v] + held.x[v];
        store(sum + column, y);
    }
};

cudaError_t cuda_add(const struct cuda_queue *q, const struct device_add *op)
{
    const added<float, whole<float>::V> packs = {op->sum, op->x};
    const added<float, 1> elements = {op->sum, op->x};

    return run_either<float, added>(q, is_whole(op->sum, op->n) && is_whole(op->x, op->n), packs, elements, 1, op->n);
}

/* ---- gated: act(gate) * up, 3 values per element; its gradients, 5 ---- */

template <enum model_activation A> struct gated {
    template <typename T, int V> struct rows {
        T *y;
        const T *gate, *up;
        size_t stride, n;

        struct operands {
            pack<T, V> gate, up;
        };

        __device__ operands load_at(size_t row, size_t column) const
        {
            const operands held = {load<V>(gate + row * stride + column), load<V>(up + row * stride + column)};
            return held;
        }

        __device__ void store_at(const operands &held, size_t row, size_t column) const
        {
            float product[V];

#pragma unroll
            for (int v = 0; v < V; v++)
                product[v] = activation<A>(held.gate[v]) * held.up[v];
            store(y + row * n + column, product);
        }
    };

    template <typename T, int V> struct gradient_rows {
        T *gate_gradient, *up_gradient;
        const T *dy, *gate, *up;
        size_t stride, gradient_stride, n;

        struct operands {
            pack<T, V> dy, gate, up;
        };

        __device__ operands load_at(size_t row, size_t column) const
        {
            const operands held = {load<V>(dy + row * n + column), load<V>(gate + row * stride + column),
                                   load<V>(up + row * stride + column)};
            return held;
        }

        __device__ void store_at(const operands &held, size_t row, size_t column) const
        {
            float of_gate[V], of_up[V];

#pragma unroll
            for (int v = 0; v < V; v++) {
                const float d = held.dy[v], x = held.gate[v], u = held.up[v];
                of_gate[v] = d * u * activation_gradient<A>(x);
                of_up[v] = d * activation<A>(x);
            }
            store(gate_gradient + row * gradient_stride + column, of_gate);
            store(up_gradient + row * gradient_stride + column, of_up);
        }
    };
};

template <typename T, enum model_activation A>
static cudaError_t glu(const struct cuda_queue *q, const struct device_glu *op)
{
    typename gated<A>::template rows<T, whole<T>::V> packs = {(T *)op->y, (const T *)op->gate, (const T *)op->up,
                                                              op->stride, op->n};
    typename gated<A>::template rows<T, 1> elements = {packs.y, packs.gate, packs.up, op->stride, op->n};
    const bool are_whole = is_whole(packs.y, op->n) && is_whole(packs.gate, op->stride) && is_whole(packs.up, op->n);

    return run_either<T, gated<A>::template rows>(q, are_whole, packs, elements, op->m, op->n);
}

template <typename T, enum model_activation A>
static cudaError_t glu_gradient(const struct cuda_queue *q, const struct device_glu *op)
{
    typename gated<A>::template gradient_rows<T, whole<T>::V> packs = {(T *)op->gate_gradient,    (T *)op->up_gradient,
                                                                       (const T *)op->y_gradient, (const T *)op->gate,
                                                                       (const T *)op->up,         op->stride,
                                                                       op->gradient_stride,       op->n};
    typename gated<A>::template gradient_rows<T, 1> elements = {
        packs.gate_gradient, packs.up_gradient, packs.dy, packs.gate, packs.up, op->stride, op->gradient_stride, op->n};
    const bool are_whole = is_whole(packs.dy, op->n) && is_whole(packs.gate, op->stride) && is_whole(packs.up, op->n) &&
                           is_whole(packs.gate_gradient, op->gradient_stride) && is_whole(packs.up_gradient, op->n);

    return run_either<T, gated<A>::template gradient_rows>(q, are_whole, packs, elements, op->m, op->n);
}

template <typename T, enum model_activation A>
static cudaError_t glu_of(const struct cuda_queue *q, const struct device_glu *op, bool is_backward)
{
    return is_backward ? glu_gradient<T, A>(q, op) : glu<T, A>(q, op);
}

template <typename T>
static cudaError_t glu_either(const struct cuda_queue *q, const struct device_glu *op, bool is_backward)
{
    switch (op->activation) {
    case MODEL_GELU_NEW:
        return glu_of<T, MODEL_GELU_NEW>(q, op, is_backward);
    case MODEL_GELU:
        return glu_of<T, MODEL_GELU>(q, op, is_backward);
    case MODEL_RELU:
        return glu_of<T, MODEL_RELU>(q, op, is_backward);
    case MODEL_SILU:
        return glu_of<T, MODEL_SILU>(q, op, is_backward);
    case MODEL_TANH:
        return glu_of<T, MODEL_TANH>(q, op, is_backward);
    case MODEL_SIGMOID:
        return glu_of<T, MODEL_SIGMOID>(q, op, is_backward);
    case MODEL_RELU2:
        return glu_of<T, MODEL_RELU2>(q, op, is_backward);
    case MODEL_GELU_QUICK:
        return glu_of<T, MODEL_GELU_QUICK>(q, op, is_backward);
    }
    return cudaErrorInvalidValue;
}

cudaError_t cuda_glu(const struct cuda_queue *q, const struct device_glu *op)
{
    return TYPED(q, glu_either)(q, op, false);
}

cudaError_t cuda_glu_backward(const struct cuda_queue *q, const struct device_glu *op)
{
    return TYPED(q, glu_either)(q, op, true);
}

/* ---- dropout: 2 or 3 values per element, and a quarter of a Philox block ---- */

template <typename T> static cudaError_t dropout_add(const struct cuda_queue *q, const struct device_dropout_add *op)
{
    return run_either<T, dropout_rows>(q, is_whole_sum<T>(op), dropout_of<T, whole<T>::V>(op), dropout_of<T, 1>(op),
                                       op->n_rows * op->n_tokens, op->n);
}

cudaError_t cuda_dropout_add(const struct cuda_queue *q, const struct device_dropout_add *op)
{
    if (!op->x && op->y == op->h && device_dropout_factor(&op->dropout) == 1)
        return cudaSuccess;
    return TYPED(q, dropout_add)(q, op);
}
