/* A name means another value from layer to layer, so layers are bound in one pass from the bottom up. How long a
 * value lives is known when all of them are bound: so its place, the shape of its gradient and passages come after.
 *
 * A layer takes places for what it writes before it leaves those of what it read last. So none of its outputs lies
 * over an input. Of gradients the first input's may lie over the first output's, where the program allows it
 * (takes_place). */
#include "proto/model/config/values.h"

#include "proto/model/model.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- values ---- */

enum { NAMES = 16 }; /* of a family's values, at most */

/* The value that each name stands for, as layers are added from the bottom up. */
struct scope {
    struct {
        const char *name;
        uint32_t value;
    } names[NAMES];
    uint32_t n;
};

static uint32_t *find_name(struct scope *scope, const char *name)
{
    for (uint32_t i = 0; i < scope->n; i++)
        if (strcmp(scope->names[i].name, name) == 0)
            return &scope->names[i].value;
    return NULL;
}

static void set_name(struct scope *scope, const char *name, uint32_t value)
{
    uint32_t *known = find_name(scope, name);

    if (!known) {
        assert(scope->n < NAMES);
        scope->names[scope->n].name = name;
        known = &scope->names[scope->n++].value;
    }
    *known = value;
}

static bool is_as_large(const struct model_shape *a, const struct model_shape *b)
{
    return a->domain == b->domain && a->columns == b->columns && a->own.first == b->own.first && a->own.n == b->own.n &&
           a->own.of == b->own.of && a->own.height == b->own.height && a->own.width == b->own.width;
}

static uint32_t add_shape(struct model_values *values, struct model_shape shape)
{
    for (uint32_t i = 0; i < values->n_shapes; i++) {
        const struct model_shape *s = &values->shapes[i];
        if (is_as_large(s, &shape) && s->wide == shape.wide && s->by_part == shape.by_part)
            return i;
    }
    assert(values->n_shapes < MODEL_SHAPES);
    values->shapes[values->n_shapes] = shape;
    return values->n_shapes++;
}

/* The shape of a program's value, as others read it. */
static struct model_shape values_shape_of(const struct program *p, int value, bool wide)
{
    const struct program_value *v = &p->values[value];

    return (struct model_shape){.domain = v->domain,
                                .own = v->domain >= PROGRAM_OWN ? p->own[v->domain - PROGRAM_OWN]
                                                                : (struct program_own){0},
                                .columns = v->columns,
                                .wide = wide || v->type == PROGRAM_STATISTIC};
}

static struct model_shape stream_shape(const struct model *m)
{
    return (struct model_shape){.domain = PROGRAM_TOKENS, .columns = m->config.width};
}

static struct model_shape bias_shape(const struct model *m)
{
    return (struct model_shape){.domain = PROGRAM_PART, .columns = model_outputs(&m->config), .wide = true};
}

static uint32_t values_add_value(struct model *m, const char *name, uint32_t layer, struct model_shape shape)
{
    m->values.of[m->values.n] = (struct model_value){
        .name = name, .shape = add_shape(&m->values, shape), .first = layer, .top = layer, .trained = true};
    return m->values.n++;
}

static void values_read_value(struct model *m, struct scope *scope, uint32_t layer, struct model_edges *edges,
                              const char *name, struct model_shape shape)
{
    const uint32_t *value = find_name(scope, name);

    assert(value);
    struct model_value *v = &m->values.of[*value];
    const struct model_shape *s = &m->values.shapes[v->shape];
    assert(is_as_large(s, &shape));
    v->top = layer;
    v->n_readers++;
    edges->reads[edges->n_reads++] = *value;
}

/* True if a layer's block has begun this sum. */
static bool adds_to(const struct model *m, uint32_t layer, const uint32_t *value)
{
    if (!value)
        return false;
    const struct model_value *v = &m->values.of[*value];
    const struct model_layer *first = &m->layers[v->first], *adder = &m->layers[layer];
    return m->values.shapes[v->shape].wide && v->n_readers == 0 && first->kind == adder->kind &&
           first->index == adder->index;
}

static void values_write_value(struct model *m, struct scope *scope, uint32_t layer, struct model_edges *edges,
                               const char *name, struct model_shape shape, bool adds)
{
    const uint32_t *known = find_name(scope, name);
    const uint32_t value = adds && adds_to(m, layer, known) ? *known : values_add_value(m, name, layer, shape);

    set_name(scope, name, value);
    edges->writes[edges->n_writes++] = value;
}

/* finishes: what the program gives a part differs from part to part. */
static void bind_program(struct model *m, struct scope *scope, uint32_t layer, struct model_edges *edges,
                         const struct program *p, bool finishes)
{
    assert(!finishes || p->n_tensors == 0);
    for (int i = 0; i < p->n_inputs; i++)
        values_read_value(m, scope, layer, edges, p->inputs[i].name, values_shape_of(p, p->inputs[i].value, false));
    for (int i = 0; i < p->n_outputs; i++) {
        const struct program_boundary *output = &p->outputs[i];
        struct model_shape shape = values_shape_of(p, output->value, output->adds);
        shape.by_part = finishes;
        assert(!finishes || shape.domain == PROGRAM_PART);
        values_write_value(m, scope, layer, edges, output->name, shape, output->adds);
    }
}

/* What the head reads: the stream, in any domain of tokens. */
static struct model_shape predicted_shape(const struct model *m, struct scope *scope)
{
    const struct model_shape *written = &m->values.shapes[m->values.of[*find_name(scope, "")].shape];
    struct model_shape shape = stream_shape(m);

    assert(written->domain == PROGRAM_TOKENS || written->domain >= PROGRAM_OWN);
    shape.domain = written->domain, shape.own = written->own;
    return shape;
}

static void bind_layers(struct model *m)
{
    struct scope scope = {0};

    for (uint32_t l = 0; l < m->n_layers; l++) {
        struct model_layer *layer = &m->layers[l];
        switch (layer->kind) {
        case MODEL_EMBEDDING:
            values_write_value(m, &scope, l, &layer->edges, "", stream_shape(m), false);
            break;
        case MODEL_BLOCK:
        case MODEL_SINGLE:
            bind_program(m, &scope, l, &layer->edges, &layer->program->program, false);
            if (layer->program->finish)
                bind_program(m, &scope, l, &layer->finish, &layer->program->finish->program, true);
            break;
        case MODEL_HEAD:
            values_read_value(m, &scope, l, &layer->edges, "", predicted_shape(m, &scope));
            if (find_name(&scope, PROGRAM_LOGIT_BIAS))
                values_read_value(m, &scope, l, &layer->edges, PROGRAM_LOGIT_BIAS, bias_shape(m));
            break;
        }
    }
    for (uint32_t v = 0; v < m->values.n; v++)
        assert(m->values.of[v].n_readers > 0);
    /* Dropout changes the gradient of what the embedding writes, which is the first value, in its place, and the head
     * makes that of what it reads there, unit by unit: neither may be a sum. */
    assert(m->values.of[0].n_readers == 1 || m->embedding.dropout.p == 0);
    assert(m->values.of[m->layers[m->n_layers - 1].edges.reads[0]].n_readers == 1);
}

/* What finishes a layer; NULL: nothing. */
static const struct model_program *finish_of(const struct model_layer *layer)
{
    return layer->program ? layer->program->finish : NULL;
}

/* ---- which values stay ---- */

/* program: NULL of the head, which reads all. */
static bool is_read_backward(const struct model_program *program, uint32_t input)
{
    return !program || program->reads >> input & 1;
}

/* True if the layer's backward pass reads its own output. */
static bool is_read_by_writer(const struct model_program *program, uint32_t output)
{
    return program && program_is_at_hand(&program->program, program->program.outputs[output].value);
}

static void mark_stashed(struct model *m, const struct model_edges *edges, const struct model_program *program)
{
    for (uint32_t i = 0; i < edges->n_reads; i++) {
        struct model_value *value = &m->values.of[edges->reads[i]];
        value->stashed |= is_read_backward(program, i) || model_is_small(&m->values.shapes[value->shape]);
    }
    for (uint32_t i = 0; i < edges->n_writes; i++)
        m->values.of[edges->writes[i]].stashed |= is_read_by_writer(program, i);
}

static void find_stashed(struct model *m)
{
    for (const struct model_layer *layer = m->layers; layer < m->layers + m->n_layers; layer++) {
        mark_stashed(m, &layer->edges, layer->program);
        mark_stashed(m, &layer->finish, finish_of(layer));
    }
}

/* ---- values that can be derived again ---- */

/* The index of the chain that a light layer's result joins: of what it reads, or a new one. MODEL_CHAINS: none. */
static uint32_t find_chain(const struct model *m, uint32_t l)
{
    const struct model_edges *edges = &m->layers[l].edges;
    const struct model_values *values = &m->values;
    const uint32_t shape = values->of[edges->writes[0]].shape;
    uint32_t chain = values->n_chains;

    for (uint32_t i = 0; i < edges->n_reads; i++) {
        const struct model_value *x = &values->of[edges->reads[i]];
        if (!x->stashed)
            return MODEL_CHAINS;
        if (x->chain > 0)
            chain = x->chain - 1;
    }
    if (chain < values->n_chains)
        return chain == values->n_chains - 1 && values->chains[chain].shape == shape ? chain : MODEL_CHAINS;
    return chain == 0 || values->chains[chain - 1].topmost < l ? chain : MODEL_CHAINS;
}

static bool is_derivable(const struct model *m, const struct model_layer *layer)
{
    if (!layer->program || layer->edges.n_writes != 1 || !program_is_light(&layer->program->program))
        return false;
    const struct model_value *y = &m->values.of[layer->edges.writes[0]];
    const struct model_shape *shape = &m->values.shapes[y->shape];
    return y->stashed && !model_is_small(shape) && !shape->wide && !layer->program->finish;
}

static void find_chains(struct model *m)
{
    for (uint32_t l = 0; l < m->n_layers; l++) {
        const uint32_t c = is_derivable(m, &m->layers[l]) ? find_chain(m, l) : MODEL_CHAINS;
        if (c == MODEL_CHAINS)
            continue;
        struct model_value *y = &m->values.of[m->layers[l].edges.writes[0]];
        struct model_chain *chain = &m->values.chains[c];
        if (c == m->values.n_chains)
            *chain = (struct model_chain){.shape = y->shape, .lowest = l};
        m->values.n_chains = c + 1;
        y->chain = c + 1;
        y->stored_place = chain->n++;
        chain->topmost = chain->topmost < y->top ? y->top : chain->topmost;
    }
}

/* ---- places ---- */

/* The places of a shape that are taken. */
struct places {
    bool taken[MODEL_SHAPES][MODEL_PLACES];
};

static uint32_t model_values_take(struct places *places, uint32_t shape, uint32_t *n)
{
    uint32_t place = 0;

    while (place < MODEL_PLACES && places->taken[shape][place])
        place++;
    assert(place < MODEL_PLACES);
    places->taken[shape][place] = true;
    *n = *n <= place ? place + 1 : *n;
    return place;
}

/* Small ones are never taken over: each has its place for good. */
static void place_value(struct model *m, struct places *training, struct places *forward, struct model_value *v)
{
    struct model_shape *shape = &m->values.shapes[v->shape];

    if (v->stashed && v->chain == 0)
        v->stored_place = shape->n_stored++;
    if (v->stashed)
        v->place = shape->n_stashed++;
    else
        v->place = model_values_take(training, v->shape, &shape->n_passing);
    if (!model_is_small(shape))
        v->forward_place = model_values_take(forward, v->shape, &shape->n_forward);
}

static void place_written(struct model *m, uint32_t layer, const struct model_edges *edges, struct places *training,
                          struct places *forward)
{
    for (uint32_t i = 0; i < edges->n_writes; i++)
        if (m->values.of[edges->writes[i]].first == layer)
            place_value(m, training, forward, &m->values.of[edges->writes[i]]);
}

static void leave_read(const struct model *m, uint32_t layer, const struct model_edges *edges, struct places *training,
                       struct places *forward)
{
    for (uint32_t i = 0; i < edges->n_reads; i++) {
        const struct model_value *v = &m->values.of[edges->reads[i]];
        if (v->top != layer || model_is_small(&m->values.shapes[v->shape]))
            continue;
        forward->taken[v->shape][v->forward_place] = false;
        if (!v->stashed)
            training->taken[v->shape][v->place] = false;
    }
}

/* From the bottom up. A place is free above the topmost reader. */
static void place_values(struct model *m)
{
    struct places training = {0}, forward = {0};

    for (uint32_t l = 0; l < m->n_layers; l++) {
        place_written(m, l, &m->layers[l].edges, &training, &forward);
        place_written(m, l, &m->layers[l].finish, &training, &forward);
        leave_read(m, l, &m->layers[l].edges, &training, &forward);
    }
}

/* The shape of a value's gradient. */
static struct model_shape gradient_shape(const struct model_values *values, const struct model_value *v)
{
    const struct model_shape *shape = &values->shapes[v->shape];

    return (struct model_shape){.domain = shape->domain,
                                .own = shape->own,
                                .columns = shape->columns,
                                .wide = v->n_readers > 1 || model_is_small(shape),
                                .by_part = shape->domain == PROGRAM_PART};
}

/* True if the gradient of the layer's first input takes the place of its first output's. */
static bool takes_place(const struct model *m, uint32_t l)
{
    const struct model_layer *layer = &m->layers[l];

    if (!layer->program || !layer->program->passes)
        return false;
    const struct model_value *x = &m->values.of[layer->edges.reads[0]], *y = &m->values.of[layer->edges.writes[0]];
    return x->top == l && x->gradient_shape == y->gradient_shape && !m->values.shapes[y->gradient_shape].wide;
}

static void place_read(struct model *m, struct places *places, uint32_t layer, const struct model_edges *edges,
                       bool passes)
{
    for (uint32_t i = 0; i < edges->n_reads; i++) {
        struct model_value *v = &m->values.of[edges->reads[i]];
        if (v->top != layer)
            continue;
        if (i == 0 && passes)
            v->gradient_place = m->values.of[edges->writes[0]].gradient_place;
        else
            v->gradient_place =
                model_values_take(places, v->gradient_shape, &m->values.shapes[v->gradient_shape].n_gradients);
    }
}

static void leave_written(const struct model *m, struct places *places, uint32_t layer, const struct model_edges *edges,
                          bool passes)
{
    for (uint32_t i = 0; i < edges->n_writes; i++) {
        const struct model_value *v = &m->values.of[edges->writes[i]];
        if (v->first == layer && !(i == 0 && passes))
            places->taken[v->gradient_shape][v->gradient_place] = false;
    }
}

/* Sets the shape of a value's gradient, which is there between layers that write and read the value. */
static void shape_gradient(struct model_values *values, struct model_value *v)
{
    v->gradient_shape = add_shape(values, gradient_shape(values, v));
    struct model_shape *shape = &values->shapes[v->gradient_shape];
    if (shape->topmost == 0) /* the first of this shape, and so the lowest */
        shape->lowest = v->first;
    if (v->top > shape->topmost)
        shape->topmost = v->top;
}

/* From the top down. A place is free below the lowest writer. */
static void place_gradients(struct model *m)
{
    struct places places = {0};

    for (struct model_value *v = m->values.of; v < m->values.of + m->values.n; v++)
        shape_gradient(&m->values, v);
    for (uint32_t l = m->n_layers; l-- > 0;) {
        const struct model_layer *layer = &m->layers[l];
        const bool passes = takes_place(m, l);
        place_read(m, &places, l, &layer->finish, false);
        place_read(m, &places, l, &layer->edges, passes);
        leave_written(m, &places, l, &layer->finish, false);
        leave_written(m, &places, l, &layer->edges, passes);
    }
}

/* ---- passages ---- */

/* A program, and what it passes. */
struct passing {
    const struct model *m;
    const struct model_edges *edges;
    const struct model_program *program; /* NULL: of embedding and head */
    uint32_t layer;
};

static void add_operand(struct model_passage *passage, bool backward, struct model_operand operand)
{
    passage->operands[backward][passage->n[backward]++] = operand;
}

static void pass_input(const struct passing *p, struct model_passage *passage, uint32_t i)
{
    const struct model_value *v = &p->m->values.of[p->edges->reads[i]];
    const struct model_operand operand = {.role = MODEL_INPUT,
                                          .index = (uint8_t)i,
                                          .shape = (uint8_t)v->shape,
                                          .loads = true};

    add_operand(passage, false, operand);
    if (is_read_backward(p->program, i))
        add_operand(passage, true, operand);
}

static void pass_input_gradient(const struct passing *p, struct model_passage *passage, uint32_t i)
{
    const struct model_value *v = &p->m->values.of[p->edges->reads[i]];
    const bool begins = v->top == p->layer;

    add_operand(passage, true,
                (struct model_operand){.role = MODEL_INPUT_GRADIENT,
                                       .index = (uint8_t)i,
                                       .shape = (uint8_t)v->gradient_shape,
                                       .loads = !begins,
                                       .stores = true,
                                       .begins = begins,
                                       .passes = i == 0 && p->program && p->program->passes});
}

/* Backward, the place of the first output serves as workspace, unless it is at hand. */
static void pass_output(const struct passing *p, struct model_passage *passage, uint32_t i)
{
    const struct model_value *v = &p->m->values.of[p->edges->writes[i]];
    const bool adds = p->program && p->program->program.outputs[i].adds, begins = v->first == p->layer;
    const bool is_at_hand = model_is_small(&p->m->values.shapes[v->shape]) || is_read_by_writer(p->program, i);
    struct model_operand operand = {.role = MODEL_OUTPUT,
                                    .index = (uint8_t)i,
                                    .shape = (uint8_t)v->shape,
                                    .loads = !begins,
                                    .stores = true,
                                    .begins = adds && begins};

    add_operand(passage, false, operand);
    operand.loads = is_at_hand;
    operand.stores = operand.begins = false;
    if (is_at_hand || (i == 0 && p->program && !adds))
        add_operand(passage, true, operand);
    add_operand(passage, true,
                (struct model_operand){.role = MODEL_OUTPUT_GRADIENT,
                                       .index = (uint8_t)i,
                                       .shape = (uint8_t)v->gradient_shape,
                                       .loads = true});
}

/* Returns the passage's index: of one that is there already, if it is equal. */
static uint8_t find_passage(struct model *m, const struct passing *p)
{
    struct model_values *values = &m->values;
    struct model_passage passage = {0};
    uint32_t i = 0;

    for (uint32_t k = 0; k < p->edges->n_reads; k++)
        pass_input(p, &passage, k);
    for (uint32_t k = 0; k < p->edges->n_writes; k++)
        pass_output(p, &passage, k);
    for (uint32_t k = 0; k < p->edges->n_reads; k++)
        pass_input_gradient(p, &passage, k);
    while (i < values->n_passages && memcmp(&values->passages[i], &passage, sizeof passage) != 0)
        i++;
    assert(i < MODEL_PASSAGES);
    values->passages[i] = passage;
    values->n_passages += i == values->n_passages;
    return (uint8_t)i;
}

static void find_passages(struct model *m)
{
    for (uint32_t l = 0; l < m->n_layers; l++) {
        struct model_layer *layer = &m->layers[l];
        layer->edges.passage = find_passage(m, &(struct passing){m, &layer->edges, layer->program, l});
        if (finish_of(layer))
            layer->finish.passage = find_passage(m, &(struct passing){m, &layer->finish, finish_of(layer), l});
    }
}

/* ---- frozen tensors ---- */

/* True if the tensor that a value by part is made of is trained. */
static bool is_made_of_trained(const struct model *m, const struct model_value *v)
{
    const struct model_layer *layer = &m->layers[v->first];
    const struct program *p = &layer->program->program;
    const struct model_piece *pieces = &m->pieces[m->units[m->visits[layer->first_visit]].first_piece];
    int i = 0;

    while (&m->values.of[layer->edges.writes[i]] != v)
        i++;
    const int operation = p->values[p->outputs[i].value].operation;
    return !m->tensors[pieces[program_tensors_before(p, p->operations[operation].tensor)].tensor].frozen;
}

void model_mark_trained_values(struct model *m)
{
    for (uint32_t i = 0; i < m->values.n_shapes; i++)
        m->values.shapes[i].trained = false;
    for (struct model_value *v = m->values.of; v < m->values.of + m->values.n; v++) {
        const struct model_shape *shape = &m->values.shapes[v->shape];
        v->trained = shape->domain != PROGRAM_PART || shape->by_part || is_made_of_trained(m, v);
        m->values.shapes[v->gradient_shape].trained |= v->trained;
    }
}

/* ---- */

static uint32_t count_writes(const struct model *m)
{
    uint32_t n = 1; /* the embedding's */

    for (const struct model_program *p = m->programs; p < m->programs + m->n_programs; p++)
        n += p->n_layers * (uint32_t)(p->program.n_outputs + (p->finish ? p->finish->program.n_outputs : 0));
    return n;
}

int model_bind_values(struct model *m)
{
    m->values.of = calloc(count_writes(m), sizeof *m->values.of);
    m->values.passages = calloc(MODEL_PASSAGES, sizeof *m->values.passages);
    if (!m->values.of || !m->values.passages)
        return -ENOMEM;
    bind_layers(m);
    find_stashed(m);
    find_chains(m);
    place_values(m);
    place_gradients(m);
    find_passages(m);
    return 0;
}

void model_free_values(struct model *m)
{
    free(m->values.of);
    free(m->values.passages);
}

/* What the head reads. */
static const struct model_shape *head_shape(const struct model *model)
{
    const struct model_edges *head = &model->layers[model->n_layers - 1].edges;

    return &model->values.shapes[model->values.of[head->reads[0]].shape];
}

uint32_t model_predicted(const struct model *model, uint32_t n_tokens)
{
    const struct model_shape *stream = head_shape(model);

    return stream->domain == PROGRAM_TOKENS ? n_tokens : program_own_elements(&stream->own, n_tokens);
}

uint32_t model_first_predicted(const struct model *model, uint32_t n_tokens)
{
    const struct model_shape *stream = head_shape(model);

    return stream->domain == PROGRAM_TOKENS ? 0 : program_own_first(&stream->own, n_tokens);
}
