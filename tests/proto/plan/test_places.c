/* What is derived from a program: no step reads what is not there, in any layout, and none is larger than by hand. */
#include "proto/operation/operation.h"
#include "proto/plan/memory/layers.h"
#include "tests/kit/inprocess/programs.h"
#include "tests/kit/test.h"

enum { SHAPES = 100, BYTES_AT_MOST = 1 << 22, CELL = PLAN_ALIGNMENT };

struct drawn {
    struct programs_shape shape;
    struct plan_setting setting;
    struct plan_shape tokens;
};

static uint32_t draw(uint64_t *state, uint32_t n)
{
    *state = *state * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return (uint32_t)(*state >> 33) % n;
}

/* Small ones, with heads of any width. */
static struct drawn draw_shape(int number)
{
    uint64_t state = (uint64_t)number;
    const uint32_t n_kv_heads = 1 + draw(&state, 3), n_heads = n_kv_heads * (1 + draw(&state, 3));
    const uint32_t width = n_heads * 2 * (1 + draw(&state, 20));
    const bool cuda = draw(&state, 2);

    return (struct drawn){
        .shape = {width, n_heads, n_kv_heads, 1 + draw(&state, 5 * width), draw(&state, 2) ? 0.1f : 0},
        .setting = {.backend = cuda ? &plan_cuda : &plan_cpu,
                    .goal = {.purpose = PLAN_TRAIN, .precision = draw(&state, 2) ? NUMBER_BF16 : NUMBER_FP32},
                    .attention = PLAN_ATTENTION_OWN,
                    .n_threads = 1 + draw(&state, 4)},
        .tokens = {1 + draw(&state, 3), 1 + draw(&state, 30)},
    };
}

/* ---- dataflow ---- */

/* A layer's memory, in cells that buffers begin at: the buffer that was written there last, or -1. */
struct memory {
    const struct program *p;
    const struct schedule *s;
    const struct plan_places *places;
    const struct drawn *d;
    int16_t workspace[BYTES_AT_MOST / CELL];
    int elsewhere[SCHEDULE_GRADIENT + 1]; /* the same, of the places that hold one buffer at a time; kept: none */
};

static uint64_t scratch_of(const struct drawn *d, size_t n_kv_heads)
{
    const struct plan_attention_sizes sizes = {.n_rows = d->tokens.n_rows,
                                               .n_tokens = d->tokens.n_tokens,
                                               .n_heads = d->shape.n_heads,
                                               .n_kv_heads = n_kv_heads,
                                               .width = d->shape.width};

    return d->setting.backend->scratch_bytes(&sizes, d->setting.n_threads);
}

static uint64_t rounded(uint64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Of a linear map's contribution from some tokens: all tokens' scores; what is chosen, its weights, and its rows of
 * both operands. */
static uint64_t sample_bytes(const struct memory *m, const struct program_operation *op)
{
    const struct plan_shape *tokens = &m->d->tokens;
    const uint64_t rows = tokens->n_rows, n = tokens->n_tokens, value = number_bytes(m->d->setting.goal.precision);
    const uint64_t share = (uint64_t)(m->d->setting.goal.sampling.share * (double)n), k = share > 1 ? share : 1;

    if (m->d->setting.goal.sampling.share == 0 || k >= n)
        return 0;
    return rounded(rows * n * 4) + 2 * rounded(rows * k * 4) +
           rounded(rows * k * m->p->values[op->inputs[0]].columns * value) +
           rounded(rows * k * m->p->values[op->outputs[0]].columns * value);
}

static uint64_t bytes_of(const struct memory *m, int buffer)
{
    const int value = m->s->buffers[buffer].value;
    const uint64_t tokens = (uint64_t)m->d->tokens.n_rows * m->d->tokens.n_tokens;
    const struct program_operation *op = &m->p->operations[m->s->steps[m->s->buffers[buffer].first].operation];

    if (value == SCHEDULE_NONE)
        return op->kind == &operation_linear ? sample_bytes(m, op) : scratch_of(m->d, m->d->shape.n_kv_heads);
    return tokens * m->p->values[value].columns *
           (m->p->values[value].type == PROGRAM_STATISTIC ? 4 : number_bytes(m->d->setting.goal.precision));
}

static void write_buffer(struct memory *m, int buffer)
{
    const enum schedule_place place = m->s->buffers[buffer].place;

    if (buffer == SCHEDULE_NONE)
        return;
    ck_assert_int_ne(place, SCHEDULE_INPUT);
    m->elsewhere[place] = buffer;
    if (place != SCHEDULE_WORKSPACE)
        return;
    ck_assert_uint_le(m->places->at[buffer] + bytes_of(m, buffer), m->places->bytes);
    ck_assert_uint_eq(m->places->at[buffer] % PLAN_ALIGNMENT, 0);
    for (uint64_t i = 0; i < bytes_of(m, buffer); i += CELL)
        m->workspace[(m->places->at[buffer] + i) / CELL] = (int16_t)buffer;
}

static void read_buffer(const struct memory *m, int buffer, int step)
{
    if (buffer == SCHEDULE_NONE)
        return;
    const enum schedule_place place = m->s->buffers[buffer].place;
    if (place == SCHEDULE_OUTPUT || place == SCHEDULE_GRADIENT)
        ck_assert_msg(m->elsewhere[place] == buffer, "step %d reads buffer %d, and finds %d", step, buffer,
                      m->elsewhere[place]);
    if (place != SCHEDULE_WORKSPACE)
        return;
    const uint64_t bytes = bytes_of(m, buffer);
    for (uint64_t i = 0; i < bytes; i += CELL) {
        const int found = m->workspace[(m->places->at[buffer] + i) / CELL];
        if (found != buffer) /* each assertion is a system call */
            ck_abort_msg("step %d reads buffer %d, and finds %d", step, buffer, found);
    }
}

static void run_step(struct memory *m, int n)
{
    const struct schedule_step *step = &m->s->steps[n];
    const bool forward = step->action == SCHEDULE_FORWARD || step->action >= SCHEDULE_SAMPLE;

    for (int i = 0; i < PROGRAM_INPUTS; i++)
        read_buffer(m, step->inputs[i], n);
    for (int i = 0; i < PROGRAM_OUTPUTS && !forward; i++)
        read_buffer(m, step->outputs[i], n);
    read_buffer(m, step->y_gradient, n);
    if (step->accumulate)
        read_buffer(m, step->x_gradient, n);
    if (step->scratch != SCHEDULE_NONE)
        write_buffer(m, step->scratch);
    for (int i = 0; i < PROGRAM_OUTPUTS && forward; i++)
        write_buffer(m, step->outputs[i]);
    for (int i = 0; i < PROGRAM_OUTPUTS; i++)
        write_buffer(m, step->after[i]);
    write_buffer(m, step->other_gradient);
    write_buffer(m, step->x_gradient);
    /* What is written leaves what is read as it was, but where it is the same buffer. */
    for (int i = 0; i < PROGRAM_INPUTS; i++)
        read_buffer(m, step->inputs[i], n);
    for (int i = 0; i < PROGRAM_OUTPUTS; i++)
        read_buffer(m, step->outputs[i], n);
    for (int i = 0; i < PROGRAM_OUTPUTS; i++)
        read_buffer(m, step->after[i], n);
    read_buffer(m, step->y_gradient, n);
    read_buffer(m, step->scratch, n);
}

static uint64_t run_schedule(const struct drawn *d, const struct program *p, const struct schedule *s)
{
    struct plan_places places;
    static struct memory memory;
    struct memory *m = &memory;

    plan_places(&places, p, s, &d->setting, d->tokens);
    ck_assert_uint_le(places.bytes, BYTES_AT_MOST);
    m->p = p, m->s = s, m->places = &places, m->d = d;
    for (uint64_t i = 0; i < places.bytes; i += CELL)
        m->workspace[i / CELL] = SCHEDULE_NONE;
    for (int i = 0; i < s->n_buffers; i++)
        if (s->buffers[i].place == SCHEDULE_GRADIENT)
            m->elsewhere[SCHEDULE_GRADIENT] = i;
    for (int n = 0; n < s->n_steps; n++)
        run_step(m, n);
    if (s->gradients[0] != SCHEDULE_NONE)
        ck_assert_int_eq(m->elsewhere[SCHEDULE_GRADIENT], s->gradients[0]);
    return places.bytes;
}

/* Whatever of its values the layer keeps. */
TEST_EACH(every_step_finds_what_it_reads, PROGRAMS)
{
    static struct model_program layer;

    for (int i = 0; i < (SANITIZED ? SHAPES / 50 : SHAPES / 5); i++) {
        struct drawn d = draw_shape(i);
        if (_i != PROGRAMS_LLAMA)
            d.shape.n_kv_heads = d.shape.n_heads;
        d.setting.goal.sampling.share = i % 2 ? 0.6 : 0;
        programs_write(&layer.program, _i, &d.shape);
        program_compress(&layer.program, i % 3 ? 0 : 4);
        model_complete_program(&layer);
        for (uint32_t keeping = 0; keeping < layer.n_keepings; keeping++) {
            run_schedule(&d, &layer.program, &layer.forward[keeping]);
            run_schedule(&d, &layer.program, &layer.backward[keeping]);
        }
    }
}

/* ---- bytes ---- */

/* GPT-2's block as it was once arranged by hand, for forward and backward in one: a norm's result and statistics; qkv,
 * what was attended, log-sum-exp, the residual; twice the inner width, or the gradient of qkv if that is larger;
 * scratch. What is kept lies elsewhere, and then once the inner width is enough. */
static uint64_t bytes_by_hand(const struct drawn *d, bool kept)
{
    const uint64_t tokens = (uint64_t)d->tokens.n_rows * d->tokens.n_tokens,
                   value = number_bytes(d->setting.goal.precision);
    const uint64_t width = tokens * value * d->shape.width, inner = tokens * value * d->shape.inner;
    const uint64_t scratch = scratch_of(d, d->shape.n_heads);
    const uint64_t normed = rounded(width) + rounded(tokens * 8);

    if (kept)
        return normed + rounded(inner > 3 * width ? inner : 3 * width) + rounded(scratch);
    return normed + rounded(3 * width) + 2 * rounded(width) + rounded(tokens * 4 * d->shape.n_heads) +
           rounded(2 * inner > 3 * width ? 2 * inner : 3 * width) + rounded(scratch);
}

/* What keeps a part takes no more than what keeps nothing. */
TEST(no_layout_takes_more_than_by_hand)
{
    static struct model_program layer;
    uint64_t found = 0, by_hand = 0;

    for (int i = 0; i < SHAPES; i++) {
        const struct drawn d = draw_shape(i);
        programs_gpt2(&layer.program, &d.shape);
        model_complete_program(&layer);
        for (uint32_t keeping = 0; keeping < layer.n_keepings; keeping++) {
            const uint64_t most = bytes_by_hand(&d, keeping == layer.n_keepings - 1);
            struct plan_places places;
            plan_places(&places, &layer.program, &layer.backward[keeping], &d.setting, d.tokens);
            ck_assert_msg(places.bytes <= most, "shape %d keeping %u: %llu, by hand %llu", i, keeping,
                          (unsigned long long)places.bytes, (unsigned long long)most);
            found += places.bytes, by_hand += most;
            plan_places(&places, &layer.program, &layer.forward[keeping], &d.setting, d.tokens);
            ck_assert_uint_le(places.bytes, most);
        }
    }
    ck_assert_uint_lt(found, by_hand);
}

/* Of 2 rows of 5 tokens, width 16 and an inner width of 64, what a block keeps in 8 bits and in 4, row by row: queries,
 * keys and values 240 numbers, what was attended 80, the residual 80, the inner 320, in blocks of 64 with 2 bytes each,
 * in whole 16 bytes. Products and the activation alone read the inner one; all others stay in 8 bits. The log-sum-exp
 * is as it was. */
TEST_EACH(what_is_kept_in_few_bits_takes_their_bytes, 2)
{
    static struct model_program layer;
    const struct programs_shape shape = {16, 2, 2, 64, 0};
    const struct plan_setting setting = {.backend = &plan_cpu, .goal = {.purpose = PLAN_TRAIN}};
    const uint64_t qkv = 2 * 272, attended = 2 * 144, residual = 2 * 144, inner = 2 * (_i ? 176 : 336),
                   sums = 2 * 5 * 2 * 4;

    programs_gpt2(&layer.program, &shape);
    program_compress(&layer.program, _i ? 4 : 8);
    model_complete_program(&layer);
    ck_assert_uint_eq(layer.n_keepings, 2);
    ck_assert_uint_eq(plan_kept_bytes(&layer.program, layer.kept[1], &setting, (struct plan_shape){2, 5}),
                      rounded(qkv) + rounded(attended) + rounded(residual) + rounded(inner) + rounded(sums));
}

/* Of 2 rows of 10 tokens, of which 3 are chosen, and an inner width of 64: of what relu reads its signs, 640 bits a
 * row; of what it makes 3 tokens a row, as they are, in 8 bits and in 4, with a number and a weight for each. If
 * nothing is allowed, what it reads, as it makes the rest again. */
TEST_EACH(a_relu_keeps_signs_and_rows, 4)
{
    static const struct {
        bool samples;
        unsigned bits;
        uint64_t inner;
    } cases[] = {{false, 0, 2 * 10 * 64 * 4},
                 {true, 0, 2 * 80 + 32 + 2 * 3 * 64 * 4 + 2 * 64},
                 {true, 8, 2 * 80 + 32 + 2 * 208 + 32 + 2 * 64},
                 {true, 4, 2 * 80 + 32 + 2 * 112 + 32 + 2 * 64}};
    static struct model_program layer;
    const struct programs_shape shape = {16, 2, 2, 64, 0};
    const struct plan_setting setting = {.backend = &plan_cpu, .goal = {.purpose = PLAN_TRAIN, .sampling.share = 0.3}};
    uint64_t inner = 0;

    programs_gpt2(&layer.program, &shape);
    for (int i = 0; i < layer.program.n_operations; i++)
        if (layer.program.operations[i].kind == &operation_activation)
            layer.program.operations[i].activation.function = MODEL_RELU;
    if (cases[_i].samples)
        program_sample(&layer.program);
    program_compress(&layer.program, cases[_i].bits);
    model_complete_program(&layer);
    for (int value = 0; value < layer.program.n_values; value++)
        if (layer.program.values[value].columns == 64)
            inner += plan_kept_bytes(&layer.program, layer.kept[layer.n_keepings - 1] & UINT64_C(1) << value, &setting,
                                     (struct plan_shape){2, 10});
    ck_assert_uint_eq(inner, cases[_i].inner);
}
