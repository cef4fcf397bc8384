/* Attention in tiles: causal, in a window and to all keys, heads that share keys and values. */
#include "proto/operation/attention_path.h"
#include "tests/device/attention_shapes.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(single, slow, on_cuda_release, on_cudnn)

enum { N_CASES = COUNT(shapes) * COMMON_TYPES, FIRST_ROW = 5 };

static const struct random_key key = {{11, 22}};
static const float scale = 0.4f;

struct attention {
    struct call_test test;
    const struct shape *shape;
};

/* Sums of a few hundred terms of size 1 in fp32, in blocks: a few times 2^-24; scores of up to 0.4 * 4 * sqrt(width),
 * whose own rounding the exponential passes on, make it a few more. */
static const double tolerance = 40 * 0x1p-24;

/* Where the values have 16 bits, a CUDA device's matrix units are given probabilities, and in backward gradients of
 * scores, rounded to these too: in bf16 each by up to 2^-8 of itself, in fp16 2^-11, either way, and a sum of them by
 * less than that of the largest. Backward half as much again: the output is not the device's own, whose error would
 * cancel some of the probabilities'. */
static double near(const struct call_test *test, const char *output)
{
    const double of_type[] = {tolerance, [NUMBER_BF16] = 0x1p-8, [NUMBER_FP16] = 0x1p-11};
    const bool rounds = backend_get()->cuda && strcmp(output, "log_sum_exp") != 0;

    return (rounds ? of_type[test->type] : tolerance) * (test->call.kind == CALL_attention_backward ? 1.5 : 1);
}

static size_t keys_of(const struct shape *s)
{
    return s->n_keys ? s->n_keys : s->n_tokens;
}

static struct attention attention_of(const struct shape *s, int type)
{
    struct attention t = {.test = {.type = (enum number_type)type, .near = near}, .shape = s};

    t.test.call = (struct call){.kind = CALL_attention,
                                .attention = {.n_rows = s->n_rows,
                                              .n_tokens = s->n_tokens,
                                              .n_heads = s->n_heads,
                                              .width = s->n_heads * s->head_width,
                                              .n_kv_heads = s->n_kv_heads,
                                              .full = s->full,
                                              .window = s->window,
                                              .lengths = s->length ? (void *)call_given : NULL,
                                              .positions = s->documents[0] ? (void *)call_given : NULL,
                                              .kv = s->n_keys ? call_given : NULL,
                                              .n_keys = s->n_keys,
                                              .bias = s->buckets ? (void *)call_given : NULL,
                                              .bias_gradient = s->buckets ? (void *)call_given : NULL,
                                              .buckets = s->buckets ? *s->buckets : (struct device_buckets){0},
                                              .scale = s->head_width > 128 ? scale / 2 : scale,
                                              .cap = s->cap,
                                              .alibi = s->alibi,
                                              .sinks = s->sinks ? call_given : NULL,
                                              .sinks_gradient = s->sinks ? (void *)call_given : NULL,
                                              .dropout = {.p = s->p, .key = key, .first_row = FIRST_ROW}}};
    return t;
}

/* Positions (n_tokens) in documents of these lengths; the second row leaves out the first one. */
static void place_documents(uint32_t *positions, const struct shape *s, size_t row)
{
    size_t begin = 0, end = 0, document = row;

    for (size_t i = 0; i < s->n_tokens; i++) {
        if (i == end) {
            const size_t n = document < COUNT(s->documents) ? s->documents[document++] : 0;
            begin = i;
            end += n > 0 ? n : s->n_tokens;
        }
        positions[i] = (uint32_t)(i - begin);
    }
}

/* Of rows, or of documents. */
static void draw_lengths(struct call_test *test)
{
    const struct shape *s = ((const struct attention *)test)->shape;
    uint32_t *lengths = (void *)(uintptr_t)test->host.attention.lengths;
    uint32_t *positions = (void *)(uintptr_t)test->host.attention.positions;

    for (size_t row = 0; row < s->n_rows && lengths; row++)
        lengths[row] = (uint32_t)(row + 1 < s->n_rows ? keys_of(s) : s->length);
    for (size_t row = 0; row < s->n_rows && positions; row++)
        place_documents(positions + row * s->n_tokens, s, row);
}

/* For backward: also the output of the reference's, rounded: a device's might be on the other side of a tie. */
static void draw_output(struct call_test *test)
{
    struct attention whole = *(const struct attention *)test;
    struct call_test *const forward = &whole.test;
    const double *expected[CALL_ARRAYS];

    draw_lengths(test);
    forward->call.kind = CALL_attention, forward->prepare = draw_lengths;
    call_make(forward);
    forward->host.attention.qkv = test->host.attention.qkv;
    forward->host.attention.kv = test->host.attention.kv;
    call_expect(forward, expected);
    const struct call_array *out = call_find(test, "out");
    for (size_t i = 0; i < out->n; i++)
        operation_set(test->type, call_get(out), i,
                      (float)expected[call_find(forward, "out") - forward->work.arrays][i]);
}

/* Where it is the library's: its scratch, which holds NaNs before, and not a byte more than asked for. */
static void prepare(struct mirror *at, struct device_attention *op, const struct call_test *test)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);
    struct plan_attention_scratch scratch;
    char told[DEVICE_TOLD];

    op->bias_gradient = op->sinks_gradient = NULL; /* forward has none */
    if (!((const struct attention *)test)->shape->is_prepared)
        return;
    plan_attention_lay_out(&scratch, backend_get()->attention, &sizes);
    if (scratch.way != PLAN_ATTENTION_OWN)
        op->scratch = mirror_scratch(at, scratch.bytes);
    at->ops->prepare_attention(at->dev, op, &backend_get()->attention, 1, told);
}

static void prepare_alone(struct mirror *at, struct call *call, const struct call_test *test)
{
    prepare(at, &call->attention, test);
}

/* From the log-sum-exp of the device's own forward pass, of whose rounding backward makes up for its own. */
static struct device_attention run_forward(struct mirror *at, struct call *call, const struct call_test *test)
{
    struct device_attention op = call->attention;

    op.out = mirror_scratch(at, op.n_rows * op.n_tokens * op.width * number_bytes(test->type));
    prepare(at, &op, test);
    call->attention.scratch = op.scratch;
    at->ops->attention(at->dev, &op);
    op.bias_gradient = call->attention.bias_gradient, op.sinks_gradient = call->attention.sinks_gradient;
    return op;
}

static void run_forward_first(struct mirror *at, struct call *call, const struct call_test *test)
{
    run_forward(at, call, test);
}

/* Then backward of its output. */
static void run_both(struct mirror *at, struct call *call, const struct call_test *test)
{
    call->attention = run_forward(at, call, test);
}

/* Where cuDNN is found, what it has no part in is left to the run without it. */
static bool is_left_out(void)
{
    return backend_get()->attention != PLAN_ATTENTION_OWN;
}

/* In 16 bits. */
static bool is_for_tensor_cores(const struct shape *s)
{
    return s->head_width % 8 == 0 && s->head_width >= 32 && s->head_width <= 256;
}

/* What CUDA computes fast in fp16. */
static bool is_fast_in_fp16(const struct shape *s)
{
    return is_for_tensor_cores(s) && s->head_width <= 128 && s->p == 0 && !s->window && !s->documents[0] && !s->buckets;
}

/* Each shape has a number type of its own: where tensor cores have a part, mostly bf16. A few have fp16 besides, on all
 * devices: every sixth, and of those that are fast so the shorter ones. */
static bool is_its_own(const struct shape *s, int type)
{
    const ptrdiff_t nth = s - shapes;

    if (type == NUMBER_FP16)
        return (nth % 6 == 0 || (is_fast_in_fp16(s) && s->n_tokens <= 70)) && !is_left_out();
    return is_left_out() || (type == NUMBER_BF16) == (is_for_tensor_cores(s) ? nth % 5 > 0 : nth % 2 > 0);
}

/* The simulated device, which is slow, takes each shape in its own type alone. */
static bool suits(const struct shape *s, int type)
{
    const size_t keys = s->window && s->window + 64 < s->n_tokens ? s->window + 64 : keys_of(s);

    return ((!backend_get()->simulated && type != NUMBER_FP16) || is_its_own(s, type)) &&
           (s->is_prepared || !is_left_out()) &&
           backend_suits(0.7 * (double)(s->n_rows * s->n_tokens * keys * s->n_heads * s->head_width));
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH_IF(attention_is_the_formula, 2 * COUNT(shapes) * NUMBER_TYPES,
             suits(&shapes[_i / 2 / NUMBER_TYPES], _i / 2 % NUMBER_TYPES))
{
    const struct shape *s = &shapes[_i / 2 / NUMBER_TYPES];
    struct attention t = attention_of(s, _i / 2 % NUMBER_TYPES);

    t.test.call.kind = _i % 2 ? CALL_attention_backward : CALL_attention;
    t.test.prepare = _i % 2 ? draw_output : draw_lengths;
    t.test.before = _i % 2 ? run_forward_first : prepare_alone;
    call_check(&t.test);
}

/* Case i of N_CASES: its shape and type. */
static const struct shape *shape_of(int i)
{
    return &shapes[i / COMMON_TYPES];
}

static bool case_suits(int i)
{
    return suits(shape_of(i), i % COMMON_TYPES);
}

/* Queries of each row and head, apart from each other, every fifth one twice; or all, once. */
static void choose_queries(const struct call_test *test, bool all)
{
    const struct device_attention *op = &test->host.attention;

    for (size_t i = 0; i < op->n_rows * op->n_heads * op->n_chosen; i++) {
        const size_t at = i % op->n_chosen, from = i / op->n_chosen * op->n_tokens;
        const size_t query = (at - (!all && at % 5 == 4)) * op->n_tokens / op->n_chosen;
        ((uint32_t *)(uintptr_t)op->chosen)[i] = (uint32_t)(from + query);
        ((float *)(uintptr_t)op->weights)[i] = all ? 1 : 1 + 0.25f * (float)(i % 4);
    }
}

/* Roundings of a third of the terms average out less, by the root of 3. */
static double near_chosen(const struct call_test *test, const char *output)
{
    return sqrt(3) * near(test, output);
}

static void draw_chosen(struct call_test *test)
{
    draw_output(test);
    choose_queries(test, false);
}

/* Gradients of keys and values from some queries, all else from all; of each shape in its own type. */
TEST_EACH_IF(attention_of_chosen_queries_is_the_formula, N_CASES,
             is_its_own(shape_of(_i), _i % COMMON_TYPES) && case_suits(_i))
{
    const struct shape *s = shape_of(_i);
    struct attention t = attention_of(s, _i % COMMON_TYPES);

    t.test.call.kind = CALL_attention_backward;
    t.test.call.attention.chosen = (void *)call_given, t.test.call.attention.weights = (void *)call_given;
    t.test.call.attention.n_chosen = (s->n_tokens + 2) / 3;
    t.test.prepare = draw_chosen, t.test.before = run_forward_first, t.test.near = near_chosen;
    call_check(&t.test);
}

static void draw_all(struct call_test *test)
{
    draw_lengths(test);
    choose_queries(test, true);
}

/* All of them, once each: the sums have the terms that they have without a choice, in this order. */
TEST_EACH_IF(all_queries_chosen_change_no_bit_of_the_cpus, N_CASES, !backend_get()->cuda && case_suits(_i))
{
    const struct shape *s = shape_of(_i);
    struct attention none = attention_of(s, _i % COMMON_TYPES), all;

    none.test.call.kind = CALL_attention_backward, none.test.before = run_both;
    all = none;
    none.test.prepare = draw_lengths, all.test.prepare = draw_all;
    all.test.call.attention.chosen = (void *)call_given, all.test.call.attention.weights = (void *)call_given;
    all.test.call.attention.n_chosen = s->n_tokens;
    call_make(&none.test), call_make(&all.test);
    call_once(&none.test), call_once(&all.test);
    for (unsigned i = 0; i < none.test.work.n_arrays; i++) {
        const struct call_array *a = &none.test.work.arrays[i];
        if (a->use & CALL_WRITTEN)
            ck_assert_mem_eq(call_get(a), call_get(call_find(&all.test, a->name)),
                             a->n * call_type_bytes(a->type, none.test.type));
    }
}

/* True of what rows share: the bias, sinks, and their gradients. */
static bool is_of_all_rows(const struct call_array *array)
{
    return strncmp(array->name, "bias", 4) == 0 || strncmp(array->name, "sinks", 5) == 0;
}

/* A row computed by itself, at its place in the minibatch, equals the same row among others: by our own kernels, as a
 * library may divide its work as it likes. */
TEST_EACH_IF(attention_of_a_row_does_not_depend_on_the_others, N_CASES,
             shape_of(_i)->n_rows > 1 && !shape_of(_i)->is_prepared && case_suits(_i))
{
    const struct shape *s = shape_of(_i);
    struct attention all = attention_of(s, _i % COMMON_TYPES), alone;

    all.test.call.kind = CALL_attention_backward, all.test.before = run_both;
    alone = all;
    alone.test.call.attention.n_rows = 1, alone.test.call.attention.dropout.first_row += s->n_rows - 1;
    all.test.prepare = draw_lengths;
    call_make(&all.test), call_make(&alone.test);
    for (unsigned i = 0; i < all.test.work.n_arrays; i++) {
        const struct call_array *a = &all.test.work.arrays[i], *one = &alone.test.work.arrays[i];
        const size_t row = a->n / s->n_rows * call_type_bytes(a->type, all.test.type);
        if (is_of_all_rows(a))
            memcpy(call_get(one), call_get(a), a->n * call_type_bytes(a->type, all.test.type));
        else if (a->use & CALL_READ && !(a->use & CALL_FORWARD))
            memcpy(call_get(one), (char *)call_get(a) + (s->n_rows - 1) * row, row);
    }
    call_once(&all.test), call_once(&alone.test);
    for (unsigned i = 0; i < all.test.work.n_arrays; i++) {
        const struct call_array *gradient = &alone.test.work.arrays[i];
        if (gradient->use & CALL_WRITTEN && !is_of_all_rows(gradient))
            ck_assert_mem_eq(call_get(gradient),
                             device_element(all.test.type, call_get(&all.test.work.arrays[i]),
                                            (s->n_rows - 1) * gradient->n),
                             gradient->n * number_bytes(all.test.type));
    }
}

/* Neither forward nor backward; windows longer than a row are as good as none. On the simulated device one of them. */
TEST_EACH_IF(a_window_of_a_whole_row_changes_no_bit, N_CASES,
             !shape_of(_i)->full && !shape_of(_i)->window && !shape_of(_i)->is_prepared && case_suits(_i))
{
    const struct shape *s = shape_of(_i);
    const size_t windows[] = {s->n_tokens, s->n_tokens + 1, UINT32_MAX};
    struct attention none = attention_of(s, _i % COMMON_TYPES);

    none.test.call.kind = CALL_attention_backward, none.test.before = run_both;
    call_make(&none.test), call_once(&none.test);
    for (int i = 0; i < COUNT(windows); i++) {
        struct attention whole = none;
        if (backend_get()->simulated && i != _i / COMMON_TYPES % COUNT(windows))
            continue;
        whole.test.call.attention.window = windows[i];
        call_make(&whole.test);
        call_once(&whole.test);
        const struct call_array *gradient = call_find(&none.test, "qkv_gradient");
        ck_assert_mem_eq(call_get(gradient), whole.test.host.attention.qkv_gradient,
                         gradient->n * number_bytes(none.test.type));
    }
}

/* Gives a call the inputs of another one, by name. */
static void copy_inputs(const struct call_test *to, const struct call_test *from)
{
    for (unsigned i = 0; i < from->work.n_arrays; i++) {
        const struct call_array *a = &from->work.arrays[i];
        if ((a->type == CALL_VALUES || is_of_all_rows(a)) && a->use & CALL_READ && !(a->use & CALL_FORWARD))
            memcpy(call_get(call_find(to, a->name)), call_get(a), a->n * call_type_bytes(a->type, from->type));
    }
}

/* Asserts that two calls wrote the same bits for tokens first .. end-1 of row 0, and of what rows share, if these are
 * all its tokens. */
static void check_tokens(const struct call_test *a, const struct call_test *b, size_t first, size_t end)
{
    const struct device_attention *op = &a->host.attention;

    for (unsigned i = 0; i < a->work.n_arrays; i++) {
        const struct call_array *x = &a->work.arrays[i], *y = call_find(b, x->name);
        const size_t bytes = call_type_bytes(x->type, a->type);
        if (is_of_all_rows(x)) {
            if (x->use & CALL_WRITTEN && end - first == op->n_tokens)
                ck_assert_mem_eq(call_get(x), call_get(y), x->n * bytes);
            continue;
        }
        /* one number for each head and token, or a token's values side by side */
        const size_t runs = x->type == CALL_FP32 ? op->n_heads : 1;
        const size_t columns = x->n / op->n_rows / op->n_tokens / runs;
        for (size_t run = 0; x->use & CALL_WRITTEN && run < runs; run++) {
            const size_t at = (run * op->n_tokens + first) * columns * bytes;
            ck_assert_mem_eq((char *)call_get(x) + at, (char *)call_get(y) + at, (end - first) * columns * bytes);
        }
    }
}

/* Forward or backward. */
static struct attention packed_of(const struct shape *s, int type, bool backward)
{
    struct attention t = attention_of(s, type);

    t.test.call.kind = backward ? CALL_attention_backward : CALL_attention;
    t.test.before = backward ? run_both : prepare_alone;
    t.test.prepare = draw_lengths;
    return t;
}

/* What a CUDA device's tensor cores compute without documents alone (attention.cu): wide heads that are dropped, full
 * rows, and a bias. */
static bool is_by_other_kernels(const struct shape *s, int type)
{
    return backend_get()->cuda && type == NUMBER_BF16 && is_for_tensor_cores(s) &&
           ((s->head_width > 64 && s->p > 0) || s->full || s->buckets);
}

static bool may_be_one_document(int i)
{
    const struct shape *s = shape_of(i);

    return !s->documents[0] && !s->n_keys && !s->length && s->n_rows == 1 && !s->is_prepared &&
           !is_by_other_kernels(s, i % COMMON_TYPES) && case_suits(i);
}

TEST_EACH_IF(a_document_as_long_as_its_row_changes_no_bit, 2 * N_CASES, may_be_one_document(_i / 2))
{
    const struct shape *s = shape_of(_i / 2);
    struct shape whole = *s;
    struct attention none = packed_of(s, _i / 2 % COMMON_TYPES, _i % 2), one;

    whole.documents[0] = s->n_tokens;
    one = packed_of(&whole, _i / 2 % COMMON_TYPES, _i % 2);
    call_make(&none.test), call_make(&one.test);
    copy_inputs(&one.test, &none.test);
    call_once(&none.test), call_once(&one.test);
    check_tokens(&none.test, &one.test, 0, s->n_tokens);
}

/* Other values around tokens first .. end-1 of row 0, in one document on each side, or one for each token. */
static void change_neighbours(const struct call_test *test, size_t first, size_t end, bool alone)
{
    const struct device_attention *op = &test->host.attention;
    uint32_t *positions = (void *)(uintptr_t)op->positions;

    for (unsigned i = 0; i < test->work.n_arrays; i++) {
        const struct call_array *a = &test->work.arrays[i];
        const size_t columns = a->n / op->n_rows / op->n_tokens;
        if (a->type == CALL_VALUES && a->use & CALL_READ && !(a->use & CALL_FORWARD))
            for (size_t j = 0; j < op->n_tokens * columns; j++)
                if (j / columns < first || j / columns >= end)
                    operation_set(test->type, call_get(a), j, 3 - 2 * operation_get(test->type, call_get(a), j));
    }
    for (size_t i = 0; i < op->n_tokens; i++)
        if (i < first || i >= end)
            positions[i] = alone ? 0 : (uint32_t)(i < first ? i : i - end);
}

/* Whatever documents are beside it, at its place in a row: that of the row's middle, forward and backward. */
TEST_EACH_IF(other_documents_of_its_row_change_no_bit_of_a_document, 4 * N_CASES,
             shape_of(_i / 4)->documents[0] && !shape_of(_i / 4)->is_prepared && case_suits(_i / 4))
{
    const struct shape *s = shape_of(_i / 4);
    struct attention t = packed_of(s, _i / 4 % COMMON_TYPES, _i % 2), beside = t;

    call_make(&t.test), call_make(&beside.test);
    copy_inputs(&beside.test, &t.test);
    const uint32_t *positions = t.test.host.attention.positions;
    const size_t first = s->n_tokens / 2 - positions[s->n_tokens / 2];
    size_t end = first + 1;
    while (end < s->n_tokens && positions[end] > 0)
        end++;
    change_neighbours(&beside.test, first, end, _i / 2 % 2);
    call_once(&t.test), call_once(&beside.test);
    check_tokens(&t.test, &beside.test, first, end);
}

/* Columns first .. first+n-1 of rows of `stride` values. */
static void *take_columns(const struct call_test *test, const void *from, size_t rows, size_t stride, size_t first,
                          size_t n)
{
    char *to = operation_room(test->type, rows * n);

    for (size_t i = 0; i < rows; i++)
        memcpy(to + i * n * number_bytes(test->type), device_element(test->type, from, i * stride + first),
               n * number_bytes(test->type));
    return to;
}

/* Neither forward nor backward: where queries, keys and values of the same tokens are two arrays, each gets its columns
 * of the gradient. */
static bool has_keys_of_its_own(int i)
{
    const struct shape *s = shape_of(i);

    return s->full && !s->window && !s->n_keys && !s->documents[0] && !s->buckets && !s->sinks && !s->is_prepared &&
           case_suits(i);
}

TEST_EACH_IF(keys_in_another_array_change_no_bit, N_CASES, has_keys_of_its_own(_i))
{
    const struct shape *s = shape_of(_i);
    struct attention one = attention_of(s, _i % COMMON_TYPES), two;
    const size_t rows = s->n_rows * s->n_tokens, width = one.test.call.attention.width;
    const size_t keys = 2 * s->n_kv_heads * s->head_width, columns[] = {0, width, keys};

    one.test.call.kind = CALL_attention_backward, one.test.before = run_both, one.test.prepare = draw_lengths;
    two = one;
    two.test.call.attention.kv = call_given, two.test.call.attention.n_keys = s->n_tokens;
    call_make(&one.test), call_make(&two.test);
    struct device_attention *whole = &one.test.host.attention, *apart = &two.test.host.attention;
    apart->qkv = take_columns(&one.test, whole->qkv, rows, width + keys, 0, width);
    apart->kv = take_columns(&one.test, whole->qkv, rows, width + keys, width, keys);
    apart->out_gradient = whole->out_gradient;
    call_once(&one.test), call_once(&two.test);
    const void *const gradients[] = {apart->qkv_gradient, apart->kv_gradient};
    for (int i = 0; i < 2; i++) {
        const void *want = take_columns(&one.test, whole->qkv_gradient, rows, width + keys, columns[i], columns[i + 1]);
        ck_assert_mem_eq(gradients[i], want, rows * columns[i + 1] * number_bytes(one.test.type));
    }
}

/* Scores of 1000 and -1000 would overflow an exponential that is not taken relative to the largest. */
static void draw_large(struct call_test *test)
{
    static const float values[] = {1, 2500, 3, 1, -2500, 5};

    for (size_t i = 0; i < 6; i++)
        operation_set(test->type, (void *)(uintptr_t)test->host.attention.qkv, i, values[i]);
}

static double near_large(const struct call_test *test, const char *output)
{
    (void)test;
    return strcmp(output, "out") == 0 ? 0 : 0x1p-23;
}

TEST_EACH(attention_holds_large_scores, COMMON_TYPES)
{
    static const struct shape s = {1, 2, 1, 1, 1, .p = 0};
    struct attention t = attention_of(&s, _i);

    t.test.prepare = draw_large, t.test.near = near_large;
    call_check(&t.test);
}
