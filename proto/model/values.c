#include "proto/model/values.h"

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

static uint32_t add_shape(struct model_values *values, struct model_shape shape)
{
    for (uint32_t i = 0; i < values->n_shapes; i++) {
        const struct model_shape *s = &values->shapes[i];
        if (s->domain == shape.domain && s->n_own == shape.n_own && s->columns == shape.columns &&
            s->wide == shape.wide && s->by_part == shape.by_part)
            return i;
    }
    assert(values->n_shapes < MODEL_SHAPES);
    values->shapes[values->n_shapes] = shape;
    return values->n_shapes++;
}

/* The shape of a program's value, as others read it. */
static struct model_shape shape_of(const struct program *p, int value, bool wide)
{
    const struct program_value *v = &p->values[value];

    return (struct model_shape){.domain = v->domain,
                                .n_own = v->domain >= PROGRAM_OWN ? p->n_own[v->domain - PROGRAM_OWN] : 0,
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

static uint32_t layer_index(const struct model *m, const struct model_layer *layer)
{
    return (uint32_t)(layer - m->layers);
}

static uint32_t add_value(struct model *m, const char *name, uint32_t layer, struct model_shape shape)
{
    m->values.of[m->values.n] = (struct model_value){
        .name = name, .shape = add_shape(&m->values, shape), .first = layer, .top = layer, .trained = true};
    return m->values.n++;
}

static void read_value(struct model *m, struct scope *scope, struct model_layer *layer, const char *name,
                       struct model_shape shape)
{
    const uint32_t *value = find_name(scope, name);

    assert(value);
    struct model_value *v = &m->values.of[*value];
    const struct model_shape *s = &m->values.shapes[v->shape];
    assert(s->domain == shape.domain && s->n_own == shape.n_own && s->columns == shape.columns);
    v->top = layer_index(m, layer);
    v->n_readers++;
    layer->reads[layer->n_reads++] = *value;
}

/* True if the layer's block has begun this sum. */
static bool adds_to(const struct model *m, const struct model_layer *layer, const uint32_t *value)
{
    if (!value)
        return false;
    const struct model_value *v = &m->values.of[*value];
    const struct model_layer *first = &m->layers[v->first];
    return m->values.shapes[v->shape].wide && v->n_readers == 0 && first->kind == layer->kind &&
           first->index == layer->index;
}

static void write_value(struct model *m, struct scope *scope, struct model_layer *layer, const char *name,
                        struct model_shape shape, bool adds)
{
    const uint32_t *known = find_name(scope, name);
    const uint32_t value = adds && adds_to(m, layer, known) ? *known : add_value(m, name, layer_index(m, layer), shape);

    set_name(scope, name, value);
    layer->writes[layer->n_writes++] = value;
}

static void bind_program(struct model *m, struct scope *scope, struct model_layer *layer)
{
    const struct program *p = &layer->program->program;

    for (int i = 0; i < p->n_inputs; i++)
        read_value(m, scope, layer, p->inputs[i].name, shape_of(p, p->inputs[i].value, false));
    for (int i = 0; i < p->n_outputs; i++) {
        const struct program_boundary *output = &p->outputs[i];
        write_value(m, scope, layer, output->name, shape_of(p, output->value, output->adds), output->adds);
    }
}

static void bind_layers(struct model *m)
{
    struct scope scope = {0};

    for (struct model_layer *layer = m->layers; layer < m->layers + m->n_layers; layer++)
        switch (layer->kind) {
        case MODEL_EMBEDDING:
            write_value(m, &scope, layer, "", stream_shape(m), false);
            break;
        case MODEL_BLOCK:
        case MODEL_SINGLE:
            bind_program(m, &scope, layer);
            break;
        case MODEL_HEAD:
            read_value(m, &scope, layer, "", stream_shape(m));
            if (find_name(&scope, PROGRAM_LOGIT_BIAS))
                read_value(m, &scope, layer, PROGRAM_LOGIT_BIAS, bias_shape(m));
            break;
        }
    for (uint32_t v = 0; v < m->values.n; v++)
        assert(m->values.of[v].n_readers > 0);
}

/* ---- places ---- */

/* Those of a shape that are taken. */
struct places {
    bool taken[MODEL_SHAPES][MODEL_PLACES];
};

static uint32_t take(struct places *places, uint32_t shape, uint32_t *n)
{
    uint32_t place = 0;

    while (place < MODEL_PLACES && places->taken[shape][place])
        place++;
    assert(place < MODEL_PLACES);
    places->taken[shape][place] = true;
    *n = *n <= place ? place + 1 : *n;
    return place;
}

static bool is_read_backward(const struct model_layer *layer, uint32_t input)
{
    return layer->kind == MODEL_HEAD || program_inputs_read(&layer->program->program) >> input & 1;
}

static void find_stashed(struct model *m)
{
    for (struct model_layer *layer = m->layers; layer < m->layers + m->n_layers; layer++)
        for (uint32_t i = 0; i < layer->n_reads; i++) {
            struct model_value *value = &m->values.of[layer->reads[i]];
            value->stashed |= is_read_backward(layer, i) || model_is_small(&m->values.shapes[value->shape]);
        }
}

static void place_value(struct model *m, struct places *training, struct places *forward, struct model_value *v)
{
    struct model_shape *shape = &m->values.shapes[v->shape];

    if (v->stashed)
        v->place = shape->n_stashed++;
    else
        v->place = take(training, v->shape, &shape->n_passing);
    if (!model_is_small(shape))
        v->forward_place = take(forward, v->shape, &shape->n_forward);
}

/* From the bottom up. A place is free above the topmost reader. */
static void place_values(struct model *m)
{
    struct places training = {0}, forward = {0};

    for (uint32_t l = 0; l < m->n_layers; l++) {
        const struct model_layer *layer = &m->layers[l];
        for (uint32_t i = 0; i < layer->n_writes; i++)
            if (m->values.of[layer->writes[i]].first == l)
                place_value(m, &training, &forward, &m->values.of[layer->writes[i]]);
        for (uint32_t i = 0; i < layer->n_reads; i++) {
            const struct model_value *v = &m->values.of[layer->reads[i]];
            if (v->top != l)
                continue;
            forward.taken[v->shape][v->forward_place] = false;
            if (!v->stashed)
                training.taken[v->shape][v->place] = false;
        }
    }
}

/* The shape of a value's gradient. */
static struct model_shape gradient_shape(const struct model_values *values, const struct model_value *v)
{
    struct model_shape shape = values->shapes[v->shape];

    shape.wide = v->n_readers > 1 || model_is_small(&shape);
    shape.by_part = shape.domain == PROGRAM_PART;
    return shape;
}

/* True if the gradient of the layer's first input takes the place of its first output's. */
static bool takes_place(const struct model *m, const struct model_layer *layer)
{
    if (!layer->program || layer->n_reads == 0 || layer->n_writes == 0 || !layer->program->passes)
        return false;
    const struct model_value *x = &m->values.of[layer->reads[0]], *y = &m->values.of[layer->writes[0]];
    return x->top == layer_index(m, layer) && x->gradient_shape == y->gradient_shape &&
           !m->values.shapes[y->gradient_shape].wide;
}

/* From the top down. A place is free below the lowest writer. */
static void place_gradients(struct model *m)
{
    struct places places = {0};

    for (uint32_t l = m->n_layers; l-- > 0;) {
        const struct model_layer *layer = &m->layers[l];
        const bool passes = takes_place(m, layer);
        for (uint32_t i = 0; i < layer->n_reads; i++) {
            struct model_value *v = &m->values.of[layer->reads[i]];
            if (v->top != l)
                continue;
            if (i == 0 && passes)
                v->gradient_place = m->values.of[layer->writes[0]].gradient_place;
            else
                v->gradient_place = take(&places, v->gradient_shape, &m->values.shapes[v->gradient_shape].n_gradients);
        }
        for (uint32_t i = 0; i < layer->n_writes; i++) {
            const struct model_value *v = &m->values.of[layer->writes[i]];
            if (v->first == l && !(i == 0 && passes))
                places.taken[v->gradient_shape][v->gradient_place] = false;
        }
    }
}

/* ---- passages ---- */

static void add_operand(struct model_passage *passage, bool backward, struct model_operand operand)
{
    passage->operands[backward][passage->n[backward]++] = operand;
}

static void pass_input(const struct model *m, struct model_passage *passage, const struct model_layer *layer,
                       uint32_t i)
{
    const struct model_value *v = &m->values.of[layer->reads[i]];
    struct model_operand operand = {.role = MODEL_INPUT,
                                    .index = (uint8_t)i,
                                    .shape = (uint8_t)v->shape,
                                    .loads = true};

    add_operand(passage, false, operand);
    if (is_read_backward(layer, i))
        add_operand(passage, true, operand);
}

static void pass_input_gradient(const struct model *m, struct model_passage *passage, const struct model_layer *layer,
                                uint32_t i)
{
    const struct model_value *v = &m->values.of[layer->reads[i]];
    const bool begins = v->top == layer_index(m, layer);

    add_operand(passage, true,
                (struct model_operand){.role = MODEL_INPUT_GRADIENT,
                                       .index = (uint8_t)i,
                                       .shape = (uint8_t)v->gradient_shape,
                                       .loads = !begins,
                                       .stores = true,
                                       .begins = begins,
                                       .passes = i == 0 && layer->program && layer->program->passes});
}

/* Backward, the place of the first output serves as workspace; small outputs are at hand. */
static void pass_output(const struct model *m, struct model_passage *passage, const struct model_layer *layer,
                        uint32_t i)
{
    const struct model_value *v = &m->values.of[layer->writes[i]];
    const bool adds = layer->program && layer->program->program.outputs[i].adds;
    const bool begins = v->first == layer_index(m, layer);
    const struct model_operand operand = {.role = MODEL_OUTPUT,
                                          .index = (uint8_t)i,
                                          .shape = (uint8_t)v->shape,
                                          .loads = !begins,
                                          .stores = true,
                                          .begins = adds && begins};
    const bool is_small = model_is_small(&m->values.shapes[v->shape]);

    add_operand(passage, false, operand);
    if (is_small || (i == 0 && layer->program && !adds))
        add_operand(passage, true,
                    (struct model_operand){
                        .role = MODEL_OUTPUT, .index = (uint8_t)i, .shape = (uint8_t)v->shape, .loads = is_small});
    add_operand(passage, true,
                (struct model_operand){.role = MODEL_OUTPUT_GRADIENT,
                                       .index = (uint8_t)i,
                                       .shape = (uint8_t)v->gradient_shape,
                                       .loads = true});
}

static struct model_passage passage_of(const struct model *m, const struct model_layer *layer)
{
    struct model_passage passage = {0};

    for (uint32_t i = 0; i < layer->n_reads; i++)
        pass_input(m, &passage, layer, i);
    for (uint32_t i = 0; i < layer->n_writes; i++)
        pass_output(m, &passage, layer, i);
    for (uint32_t i = 0; i < layer->n_reads; i++)
        pass_input_gradient(m, &passage, layer, i);
    return passage;
}

static void add_passages(struct model *m)
{
    struct model_values *values = &m->values;

    for (struct model_layer *layer = m->layers; layer < m->layers + m->n_layers; layer++) {
        const struct model_passage passage = passage_of(m, layer);
        uint32_t i = 0;
        while (i < values->n_passages && memcmp(&values->passages[i], &passage, sizeof passage) != 0)
            i++;
        assert(i < MODEL_PASSAGES);
        values->passages[i] = passage;
        values->n_passages += i == values->n_passages;
        layer->passage = (uint8_t)i;
    }
}

/* ---- frozen tensors ---- */

/* True if one of the tensors that a value by part is made of is trained. */
static bool is_made_of_trained(const struct model *m, const struct model_value *v)
{
    const struct model_layer *layer = &m->layers[v->first];
    const struct program *p = &layer->program->program;
    const struct model_piece *pieces = &m->pieces[m->units[m->visits[layer->first_visit]].first_piece];
    int i = 0;

    while (&m->values.of[layer->writes[i]] != v)
        i++;
    return !m->tensors[pieces[p->operations[p->values[p->outputs[i].value].operation].tensor].tensor].frozen;
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

    for (uint32_t p = 0; p < m->n_programs; p++)
        n += m->programs[p].n_layers * (uint32_t)m->programs[p].program.n_outputs;
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
    place_values(m);
    for (struct model_value *v = m->values.of; v < m->values.of + m->values.n; v++)
        v->gradient_shape = add_shape(&m->values, gradient_shape(&m->values, v));
    place_gradients(m);
    add_passages(m);
    return 0;
}

void model_free_values(struct model *m)
{
    free(m->values.of);
    free(m->values.passages);
}
