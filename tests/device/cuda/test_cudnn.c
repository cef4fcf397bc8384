/* What becomes of attention where cuDNN is found, and where it has no algorithm for it: the library's plans, or our
 * kernels, with the same result, and a line for the log that says which and why. The library is the simulator's
 * (tests/sim/dnn.cpp), which computes what our graphs say. */
#include "tests/kit/device/simulated.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <string.h>

SUITE_LABELS(cuda)

/* Rows whose statistics are not whole 16 bytes each, and rows of whole 128 tokens. */
enum { MOST = 3 * 128 * 3 * 16, MOST_SUMS = 3 * 128 * 3 };
static const struct shape {
    size_t n_rows, n_tokens, n_heads, width, n_kv_heads;
    bool full;
    size_t window;
    uint32_t lengths[3]; /* 0: rows have none */
} small = {2, 10, 2, 32, 2, .full = false}, large = {3, 128, 3, 48, 3, .full = false},
  head_of_64 = {1, 128, 1, 64, 1, .full = false}, grouped = {2, 128, 4, 64, 2, .full = false},
  full = {2, 40, 2, 32, 2, .full = true}, padded = {3, 40, 2, 32, 2, .full = true, .lengths = {40, 1, 17}},
  sliding = {3, 40, 3, 48, 3, .window = 7}, sliding_grouped = {2, 128, 4, 64, 1, .window = 100},
  wide = {2, 10, 2, 512, 2, .full = false};

static struct cudasim_dnn library(size_t version)
{
    return (struct cudasim_dnn){.version = version, .n_proposals = 1, .proposals = {{.workspace = CUDASIM_DNN_USUAL}}};
}

static const struct cudasim_dnn none = {.version = 0};
static const enum plan_attention ordered = PLAN_ATTENTION_ORDERED;

struct result {
    char told[DEVICE_TOLD];
    uint16_t out[MOST], gradient[3 * MOST];
    float sums[MOST_SUMS];
    struct cudasim_counts prepared, computed; /* calls of preparing, then of computing */
};

static char *at(struct device *dev, size_t kib)
{
    return (char *)simulated.ops->arena(dev) + (kib << 10);
}

static struct device_attention operation(struct device *dev, const struct shape *s, float p)
{
    return (struct device_attention){.n_rows = s->n_rows,
                                     .n_tokens = s->n_tokens,
                                     .n_heads = s->n_heads,
                                     .n_kv_heads = s->n_kv_heads,
                                     .width = s->width,
                                     .full = s->full,
                                     .window = s->window,
                                     .lengths = s->lengths[0] ? (const uint32_t *)(const void *)at(dev, 1984) : NULL,
                                     .scale = 1 / sqrtf((float)(s->width / s->n_heads)),
                                     .qkv = at(dev, 0),
                                     .out = at(dev, 512),
                                     .log_sum_exp = (float *)(void *)at(dev, 768),
                                     .out_gradient = at(dev, 1024),
                                     .qkv_gradient = at(dev, 1280),
                                     .scratch = at(dev, 2048),
                                     .dropout = {.p = p}};
}

static void upload(struct device *dev, const struct shape *s)
{
    static uint16_t values[3 * MOST];

    for (uint32_t i = 0, x = 1; i < 3 * MOST; i++, x = x * 1664525 + 1013904223)
        values[i] = number_to_bf16((float)(int32_t)x / 1e9f);
    simulated.ops->upload(dev, at(dev, 0), values, sizeof values);
    simulated.ops->upload(dev, at(dev, 1024), values + MOST, sizeof values / 3);
    simulated.ops->upload(dev, at(dev, 1280), values, sizeof values); /* what gradients overwrite */
    simulated.ops->upload(dev, at(dev, 1984), s->lengths, sizeof s->lengths);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
}

static struct cudasim_counts since(const struct cudasim_counts *before)
{
    struct cudasim_counts now = simulated.count();

    now.launches -= before->launches;
    now.dnn_plans -= before->dnn_plans;
    now.dnn_backwards -= before->dnn_backwards;
    now.dnn_searches -= before->dnn_searches;
    return now;
}

/* The results of the rows; the rest of them is 0. */
static void read_back(struct device *dev, struct result *r, const struct device_attention *op)
{
    const size_t m = op->n_rows * op->n_tokens, n = m * op->width;
    const size_t kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);

    memset(r->out, 0, sizeof r->out), memset(r->sums, 0, sizeof r->sums);
    memset(r->gradient, 0, sizeof r->gradient);
    simulated.ops->download(dev, r->out, op->out, n * sizeof *r->out);
    simulated.ops->download(dev, r->gradient, op->qkv_gradient, (n + 2 * m * kv_width) * sizeof *r->gradient);
    simulated.ops->download(dev, r->sums, op->log_sum_exp, op->n_rows * op->n_heads * op->n_tokens * sizeof *r->sums);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
}

/* Prepared for a shape and a way of backward, attention of the first n_rows. */
static void attend(struct result *r, const struct cudasim_dnn *dnn, const struct shape *s, enum plan_attention way,
                   size_t n_rows)
{
    simulated.have_dnn(dnn);
    struct device *dev = simulated_open(NUMBER_BF16, CUDASIM_STREAMS_AS_ISSUED);
    struct device_attention op = operation(dev, s, 0);

    struct cudasim_counts before = simulated.count();
    simulated.ops->prepare_attention(dev, &op, &way, 1, r->told);
    r->prepared = since(&before);
    upload(dev, s);
    op.n_rows = n_rows;
    before = simulated.count();
    simulated.ops->attention(dev, &op);
    simulated.ops->attention_backward(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    r->computed = since(&before);
    read_back(dev, r, &op);
    simulated_close(dev);
}

/* Both round probabilities and their gradients to bf16, 8 bits, and what they sum up to; values are at most 2.2, and
 * their sums in gradients some tens. */
static void assert_alike(const struct result *theirs, const struct result *own)
{
    for (int i = 0; i < MOST; i++)
        ck_assert_float_eq_tol(number_from_bf16(theirs->out[i]), number_from_bf16(own->out[i]), 0.03f);
    for (int i = 0; i < MOST_SUMS; i++)
        ck_assert_float_eq_tol(theirs->sums[i], own->sums[i], 1e-5f);
    for (int i = 0; i < 3 * MOST; i++) {
        const float x = number_from_bf16(own->gradient[i]);
        ck_assert_float_eq_tol(number_from_bf16(theirs->gradient[i]), x, 0.03f + 0.02f * fabsf(x));
    }
}

static struct result own, theirs, again;

/* Forward's plans and, of all ways of backward, those that a library of this version has on this device; of a row less,
 * as single rows. */
static const struct found {
    const char *target;
    size_t version;
    enum plan_attention way;
    const struct shape *shape;
    const char *told;
} found[] = {
    {"sm_80", 91900, PLAN_ATTENTION_SCORES, &large, "attention: cuDNN 9.19.0 forward and backward; it took"},
    {"sm_90", 91002, PLAN_ATTENTION_SCORES, &large, "attention: cuDNN 9.10.2 forward and backward; it took"},
    {"sm_90", 92501, PLAN_ATTENTION_ORDERED, &large, "attention: cuDNN 9.25.1 forward and backward; it took"},
    {"sm_90", 92501, PLAN_ATTENTION_ORDERED, &small, "attention: cuDNN 9.25.1 forward and backward; it took"},
    {"sm_100", 91900, PLAN_ATTENTION_TWICE, &large, "attention: cuDNN 9.19.0 forward and backward; it took"},
    {"sm_100", 92501, PLAN_ATTENTION_TWICE, &small, "attention: cuDNN 9.25.1 forward and backward; it took"},
    {"sm_90", 92501, PLAN_ATTENTION_ORDERED, &grouped, "attention: cuDNN 9.25.1 forward and backward; it took"},
    {"sm_100", 91900, PLAN_ATTENTION_TWICE, &grouped, "attention: cuDNN 9.19.0 forward and backward; it took"},
    {"sm_90", 92501, PLAN_ATTENTION_ORDERED, &full, "attention: cuDNN 9.25.1 forward and backward; it took"},
    {"sm_100", 91900, PLAN_ATTENTION_TWICE, &padded, "attention: cuDNN 9.19.0 forward and backward; it took"},
    {"sm_90", 92501, PLAN_ATTENTION_ORDERED, &sliding, "attention: cuDNN 9.25.1 forward and backward; it took"},
    {"sm_100", 91900, PLAN_ATTENTION_TWICE, &sliding_grouped, "attention: cuDNN 9.19.0 forward and backward; it took"},
    {"sm_90", 92501, PLAN_ATTENTION_ORDERED, &wide, "attention: cuDNN 9.25.1 forward and backward; it took"},
};
enum { N_FOUND = sizeof found / sizeof *found };

SUITE_FIXTURE(simulated_load, NULL)

TEST_EACH(attention_is_the_librarys_where_it_is_found, 2 * N_FOUND)
{
    const struct found *f = &found[_i / 2];
    const size_t n_rows = f->shape->n_rows - (size_t)(_i % 2), n_plans = _i % 2 ? n_rows : 1;
    const struct cudasim_dnn dnn = library(f->version);

    simulated.target(f->target, NULL);
    attend(&own, &none, f->shape, PLAN_ATTENTION_OWN, n_rows);
    attend(&theirs, &dnn, f->shape, f->way, n_rows);
    ck_assert_msg(strncmp(theirs.told, f->told, strlen(f->told)) == 0, "%s", theirs.told);
    ck_assert_uint_eq(theirs.computed.launches, 0);
    ck_assert_uint_eq(theirs.computed.dnn_searches, 0); /* all of that is done */
    ck_assert_uint_eq(theirs.computed.dnn_backwards, n_plans);
    ck_assert_uint_eq(theirs.computed.dnn_plans, 2 * n_plans);
    ck_assert_uint_eq(theirs.prepared.dnn_plans, 4); /* of all rows and of one, each has been run */
    assert_alike(&theirs, &own);
    if (_i % 2)
        return;
    attend(&again, &dnn, f->shape, f->way, n_rows);
    ck_assert_mem_eq(theirs.out, again.out, sizeof again.out);
    ck_assert_mem_eq(theirs.sums, again.sums, sizeof again.sums);
    ck_assert_mem_eq(theirs.gradient, again.gradient, sizeof again.gradient);
}

static const char none_fits[] = "attention: our own kernels: it has no algorithm of fixed bits that fits";

/* Forward that the library refuses in some way; what it has is too large, or fails, or varies from run to run. */
static const struct refusal {
    struct cudasim_dnn dnn;
    const char *told;
} refusals[] = {
    {{.version = 91900}, none_fits},
    {{.version = 91900, .n_proposals = 1, .proposals = {{.varies = true}}}, none_fits},
    {{.version = 91900, .n_proposals = 1, .proposals = {{.is_refused = true}}}, none_fits},
    {{.version = 91900, .n_proposals = 1, .proposals = {{.workspace = 1 << 30}}}, none_fits},
    {{.version = 91900, .n_proposals = 1, .fails = true}, "attention: our own kernels: failed"},
    {{.version = 0},
     "attention: our own kernels: no libcudnn_graph.so.9 of this CUDA was found; EPS_CUDNN=DIR says where it is"},
};
enum { N_REFUSALS = sizeof refusals / sizeof *refusals };

TEST_EACH(attention_is_ours_where_the_library_has_no_algorithm, N_REFUSALS)
{
    attend(&own, &none, &small, PLAN_ATTENTION_OWN, small.n_rows);
    attend(&theirs, &refusals[_i].dnn, &small, PLAN_ATTENTION_ORDERED, small.n_rows);
    ck_assert_str_eq(theirs.told, refusals[_i].told);
    ck_assert_uint_eq(theirs.computed.launches, own.computed.launches);
    ck_assert_uint_eq(theirs.computed.dnn_plans, 0);
    ck_assert_mem_eq(theirs.out, own.out, sizeof own.out);
    ck_assert_mem_eq(theirs.sums, own.sums, sizeof own.sums);
    ck_assert_mem_eq(theirs.gradient, own.gradient, sizeof own.gradient);
}

/* Though the library is there. */
TEST(attention_is_ours_where_the_job_says_so)
{
    const struct cudasim_dnn dnn = library(92501);

    simulated.target("sm_90", NULL);
    attend(&own, &none, &large, PLAN_ATTENTION_OWN, large.n_rows);
    attend(&theirs, &dnn, &large, PLAN_ATTENTION_OWN, large.n_rows);
    ck_assert_str_eq(theirs.told, "attention: our own kernels: the job's way (--attention)");
    ck_assert_uint_eq(theirs.computed.launches, own.computed.launches);
    ck_assert_uint_eq(theirs.computed.dnn_plans, 0);
    ck_assert_mem_eq(theirs.gradient, own.gradient, sizeof own.gradient);
}

TEST(the_first_proposal_that_will_do_is_taken)
{
    const struct cudasim_dnn dnn = {.version = 91900,
                                    .n_proposals = 4,
                                    .proposals = {{.varies = true}, {.is_refused = true}, {.workspace = 1 << 30}, {0}}};

    attend(&theirs, &dnn, &large, PLAN_ATTENTION_SCORES, large.n_rows);
    ck_assert_uint_eq(theirs.computed.dnn_plans, 2);
    ck_assert_uint_eq(theirs.computed.launches, 0);
}

/* Of a version that cannot, of a job's way, of a shape, and of a library that has it not after all. */
static const struct forward_only {
    size_t version;
    bool no_backward;
    enum plan_attention way;
    const struct shape *shape;
    const char *told;
} forward_only[] = {
    {90800, false, PLAN_ATTENTION_FORWARD, &large,
     "attention: cuDNN 9.8.0 forward, our own kernels backward (this version has none of fixed bits for this device); "
     "it"},
    {92501, false, PLAN_ATTENTION_FORWARD, &large,
     "attention: cuDNN 9.25.1 forward, our own kernels backward (the job's way (--attention)); it"},
    {91900, false, PLAN_ATTENTION_SCORES, &small,
     "attention: cuDNN 9.19.0 forward, our own kernels backward (it has none for this shape); it"},
    {91900, false, PLAN_ATTENTION_SCORES, &head_of_64,
     "attention: cuDNN 9.19.0 forward, our own kernels backward (they are better for this shape); it"},
    {91900, false, PLAN_ATTENTION_SCORES, &grouped,
     "attention: cuDNN 9.19.0 forward, our own kernels backward (they are better for this shape); it"},
    {91900, false, PLAN_ATTENTION_SCORES, &sliding,
     "attention: cuDNN 9.19.0 forward, our own kernels backward (they are better for this shape); it"},
    {91900, false, PLAN_ATTENTION_SCORES, &wide,
     "attention: cuDNN 9.19.0 forward, our own kernels backward (it has none for this shape); it"},
    {92501, true, PLAN_ATTENTION_ORDERED, &large,
     "attention: cuDNN 9.25.1 forward, our own kernels backward (it has no algorithm of fixed bits that fits); it"},
    {91900, false, PLAN_ATTENTION_ORDERED, &large,
     "attention: cuDNN 9.19.0 forward, our own kernels backward (it has no algorithm of fixed bits that fits); it"},
};
enum { N_FORWARD_ONLY = sizeof forward_only / sizeof *forward_only };

TEST_EACH(backward_is_ours_where_the_library_has_none, N_FORWARD_ONLY)
{
    const struct forward_only *f = &forward_only[_i];
    struct cudasim_dnn dnn = library(f->version);

    dnn.no_backward = f->no_backward;
    simulated.target("sm_90", NULL);
    attend(&own, &none, f->shape, PLAN_ATTENTION_OWN, f->shape->n_rows);
    attend(&theirs, &dnn, f->shape, f->way, f->shape->n_rows);
    ck_assert_msg(strncmp(theirs.told, f->told, strlen(f->told)) == 0, "%s", theirs.told);
    ck_assert_uint_eq(theirs.computed.dnn_plans, 1);
    ck_assert_uint_eq(theirs.computed.dnn_backwards, 0);
    ck_assert_uint_eq(theirs.computed.launches, own.computed.launches - 1); /* forward's */
    assert_alike(&theirs, &own);
}

/* Dropout's bits must be ours; fp32 and fp16 are not the library's, nor are heads of 4 values, nor documents in a row.
 */
TEST_EACH(the_library_is_not_asked_for_what_it_could_not_do_alike, 5)
{
    static const enum number_type types[] = {NUMBER_FP32, NUMBER_BF16, NUMBER_BF16, NUMBER_BF16, NUMBER_FP16};
    static const char *const why[] = {"attention: our own kernels: cuDNN is used in bf16 alone",
                                      "attention: our own kernels: cuDNN's dropout has other bits",
                                      "attention: our own kernels: cuDNN has none for this shape",
                                      "attention: our own kernels: cuDNN is not used for packed rows",
                                      "attention: our own kernels: cuDNN is used in bf16 alone"};
    const struct shape narrow = {2, 10, 8, 32, 8, .full = false};
    const struct cudasim_dnn dnn = library(92501);
    char told[DEVICE_TOLD];

    simulated.have_dnn(&dnn);
    struct device *dev = simulated_open(types[_i], CUDASIM_STREAMS_AS_ISSUED);
    struct device_attention op = operation(dev, _i == 2 ? &narrow : &small, _i == 1 ? 0.1f : 0);
    if (_i == 3)
        op.positions = (const uint32_t *)(const void *)at(dev, 1984);
    simulated.ops->prepare_attention(dev, &op, &ordered, 1, told);
    ck_assert_str_eq(told, why[_i]);
    const unsigned long before = simulated.count().launches;
    simulated.ops->attention(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    ck_assert_uint_eq(simulated.count().launches, before + 1);
    ck_assert_uint_eq(simulated.count().dnn_searches, 0);
    simulated_close(dev);
}

/* As a Gemma 3 has them, with blocks of another config; what is prepared anew replaces what was. A call of another
 * mask, or of other heads, is none of them; a window as long as the row is no window. */
TEST(each_shape_of_a_model_is_prepared)
{
    const struct shape *const shapes[] = {&large, &sliding, &grouped, &wide};
    const enum plan_attention scores = PLAN_ATTENTION_SCORES, ways[] = {scores, scores, scores, scores};
    const struct cudasim_dnn dnn = library(91900);
    struct device_attention ops[4];
    char told[DEVICE_TOLD];

    simulated.target("sm_90", NULL);
    simulated.have_dnn(&dnn);
    struct device *dev = simulated_open(NUMBER_BF16, CUDASIM_STREAMS_AS_ISSUED);
    for (int i = 0; i < 4; i++)
        ops[i] = operation(dev, shapes[i], 0);
    simulated.ops->prepare_attention(dev, ops, ways, 4, told);
    static const char all[] =
        "attention: cuDNN 9.19.0 forward and backward"
        "; 3 heads of 16 in windows: forward, our own kernels backward (they are better for this shape)"
        "; 4 heads of 16: forward, our own kernels backward (they are better for this shape)"
        "; 2 heads of 256: forward, our own kernels backward (it has none for this shape); it took ";
    ck_assert_msg(strncmp(told, all, strlen(all)) == 0, "%s", told);
    upload(dev, &large);
    for (int i = 0; i < 4; i++) {
        struct cudasim_counts before = simulated.count();
        simulated.ops->attention(dev, &ops[i]);
        simulated.ops->attention_backward(dev, &ops[i]);
        ck_assert_int_eq(simulated.ops->sync(dev), 0);
        const struct cudasim_counts done = since(&before);
        ck_assert_uint_eq(done.dnn_plans, i == 0 ? 2 : 1);
        ck_assert_uint_eq(done.dnn_backwards, i == 0);
        ck_assert(i == 0 ? done.launches == 0 : done.launches > 0);
    }
    struct device_attention others[4] = {ops[0], ops[0], ops[1], ops[0]};
    others[0].window = 9, others[1].n_heads = others[1].n_kv_heads = 1, others[2].window = 8, others[3].window = 128;
    for (int i = 0; i < 4; i++) {
        struct cudasim_counts before = simulated.count();
        simulated.ops->attention(dev, &others[i]);
        ck_assert_int_eq(simulated.ops->sync(dev), 0);
        ck_assert_uint_eq(since(&before).dnn_plans, i == 3);
    }
    simulated.ops->prepare_attention(dev, &ops[1], ways, 1, told);
    struct cudasim_counts before = simulated.count();
    simulated.ops->attention(dev, &ops[0]);
    simulated.ops->attention(dev, &ops[1]);
    ck_assert_int_eq(simulated.ops->sync(dev), 0);
    ck_assert_uint_eq(since(&before).dnn_plans, 1);
    simulated_close(dev);
}

/* What was chosen stays chosen: other bits in the middle of a run would be worse than its end. */
TEST(what_fails_in_a_step_is_a_fault)
{
    struct cudasim_dnn dnn = library(92501);
    char told[DEVICE_TOLD];
    struct error err;

    simulated.have_dnn(&dnn);
    struct device *dev = simulated_open(NUMBER_BF16, CUDASIM_STREAMS_AS_ISSUED);
    const struct device_attention op = operation(dev, &small, 0);
    simulated.ops->prepare_attention(dev, &op, &ordered, 1, told);
    dnn.fails = true;
    simulated.have_dnn(&dnn);
    simulated.ops->attention(dev, &op);
    ck_assert_int_eq(simulated.ops->sync(dev), -EIO);
    ck_assert_int_eq(simulated.ops->fault(dev, &err), -EIO);
    ck_assert_ptr_nonnull(strstr(err.text, "cuda:0, attention forward through cuDNN (failed): "));
    simulated_close(dev);
}

/* The best ways by versions and devices, as the library's own frontend has them. */
TEST_EACH(the_best_way_is_a_fact_of_device_and_library, 8)
{
    static const struct {
        const char *target;
        size_t version;
        enum plan_attention way;
    } facts[] = {
        {"sm_80", 91001, PLAN_ATTENTION_FORWARD}, {"sm_80", 91002, PLAN_ATTENTION_SCORES},
        {"sm_89", 92800, PLAN_ATTENTION_SCORES},  {"sm_90", 91900, PLAN_ATTENTION_SCORES},
        {"sm_90", 92500, PLAN_ATTENTION_ORDERED}, {"sm_100", 91800, PLAN_ATTENTION_FORWARD},
        {"sm_100", 91801, PLAN_ATTENTION_TWICE},  {"sm_90", 0, PLAN_ATTENTION_OWN},
    };
    const struct cudasim_dnn dnn = library(facts[_i].version);
    struct device_facts known;
    struct error err;

    simulated.target(facts[_i].target, NULL);
    simulated.have_dnn(&dnn);
    ck_assert_int_eq(simulated.ops->probe(0, &known, &err), 0);
    ck_assert_int_eq(known.attention, facts[_i].way);
}
