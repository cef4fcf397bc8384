/* What may be adapted is asked of the operations of a layer's program, never of names: a name says what it means in one
 * family alone. A layer has one unit, whose pieces are the tensors of its program in their order, so an operation's
 * tensor leads to the model's without a search. The base's tensors are frozen and in no checkpoint, so `place` counts
 * those of the adapter alone; model_set_saved runs when all programs have their adapters.
 *
 * A number of another type is read as NaN or 0, and each check is written so that these fail it. */
#include "proto/model/adapter.h"

#include "proto/base/dump.h"
#include "proto/model/model_internal.h"
#include "proto/operation/operation.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint32_t model_count_adapter_forms(const struct model_adapter *adapter)
{
    return adapter->forms.n ? adapter->forms.n : 1;
}

uint32_t model_adapter_form_of(const struct model_adapter *adapter, uint32_t block)
{
    return adapter->forms.n ? adapter->forms.of[block] : 0;
}

void model_adapt_program(struct program *p, const struct model_adapter *adapter, uint32_t form)
{
    const struct program_adaptation how = {.all = {adapter->rank, adapter->factor},
                                           .maps = adapter->forms.n ? adapter->forms.maps[form] : NULL,
                                           .dropout = adapter->dropout,
                                           .modules = adapter->modules,
                                           .trained = adapter->trained};

    program_adapt(p, &how);
}

void model_set_saved(struct model *model)
{
    const struct model_adapter *adapter = &model->config.adapter;

    for (struct model_tensor *t = model->tensors; t < model->tensors + model->n_tensors; t++) {
        t->saved = adapter->rank == 0 || t->adapts || program_adapter_holds(adapter->trained, t->name);
        t->frozen = t->fixed || !t->saved;
        t->place = t->saved ? model->n_saved++ : 0;
    }
}

/* ---- the key of config.json ---- */

static int adapter_refuse(struct error *err, const char *name, const json_t *value, const char *accepted)
{
    char *text = dump_json(NULL, value, &dump_compact);

    error_set(err, -EINVAL, "%s: %s is %.100s: %s", ADAPTER_KEY, name, text ? text : "missing", accepted);
    free(text);
    return -EINVAL;
}

/* A list of strings as "a,b". */
static int adapter_read_names(char *out, size_t size, const char *name, const json_t *value, struct error *err)
{
    size_t i, n = 0;
    json_t *item;

    out[0] = 0;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_array(value))
        return adapter_refuse(err, name, value, "it must be a list of names");
    json_array_foreach(value, i, item)
    {
        const char *text = json_string_value(item);
        if (!text || !*text || strchr(text, ','))
            return adapter_refuse(err, name, value, "it must be a list of names");
        if (strlen(text) + 2 > size - n)
            return adapter_refuse(err, name, value, "these names are too long");
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "," : "", text);
    }
    return 0;
}

/* NaN: it is no number. */
static double adapter_number_of(const json_t *peft, const char *name, double otherwise)
{
    const json_t *value = json_object_get(peft, name);

    return !value ? otherwise : json_is_number(value) ? json_number_value(value) : NAN;
}

static float adapter_factor_of(const json_t *peft, double rank, double alpha)
{
    return (float)(alpha / (json_is_true(json_object_get(peft, "use_rslora")) ? sqrt(rank) : rank));
}

static int adapter_read_map(struct program_adapter_map *out, const json_t *value, const json_t *peft, struct error *err)
{
    const json_int_t rank = json_integer_value(json_array_get(value, 0));
    const double alpha = json_number_value(json_array_get(value, 1));

    *out = (struct program_adapter_map){0};
    if (json_is_null(value))
        return 0;
    if (rank < 1 || rank > ADAPTER_MOST_RANK || !(alpha > 0 && alpha <= 1e6))
        return adapter_refuse(err, "forms", value, "a map's form must be a rank and an alpha, or null");
    *out = (struct program_adapter_map){(uint32_t)rank, adapter_factor_of(peft, (double)rank, alpha)};
    return 0;
}

/* Of so many modules. *most: the largest rank. */
static int read_maps(struct model_adapter_forms *out, uint32_t *most, const json_t *forms, size_t n_modules,
                     const json_t *peft, struct error *err)
{
    int rc = 0;

    if (n_modules > ADAPTER_MAPS || json_array_size(forms) < 1 || json_array_size(forms) > ADAPTER_FORMS)
        return adapter_refuse(err, "forms", forms, "it must be a list of 1 to 64 forms, of at most 32 modules");
    for (*most = 0; !rc && out->n < json_array_size(forms); out->n++) {
        const json_t *form = json_array_get(forms, out->n);
        if (json_array_size(form) != n_modules)
            return adapter_refuse(err, "forms", form,
                                  "a form must have a rank and an alpha, or null, for each of the modules");
        for (size_t i = 0; !rc && i < n_modules; i++) {
            struct program_adapter_map *map = &out->maps[out->n][i];
            rc = adapter_read_map(map, json_array_get(form, i), peft, err);
            *most = *most < map->rank ? map->rank : *most;
        }
    }
    return rc || *most > 0 ? rc : adapter_refuse(err, "forms", forms, "one of them must adapt a module");
}

static int read_form(uint8_t *out, const struct model_adapter_forms *forms, const char *name, const json_t *value,
                     struct error *err)
{
    const json_int_t form = json_is_integer(value) ? json_integer_value(value) : -1;

    if (form < 0 || form >= forms->n)
        return adapter_refuse(err, name, value, "it must be the place of one of the forms");
    *out = (uint8_t)form;
    return 0;
}

static int read_forms(struct model_adapter *out, const json_t *value, uint32_t n_blocks, struct error *err)
{
    struct model_adapter_forms *forms = &out->forms;
    const json_t *blocks = json_object_get(value, "blocks");
    int rc = read_maps(forms, &out->rank, json_object_get(value, "forms"),
                       json_array_size(json_object_get(value, "modules")), json_object_get(value, "peft"), err);

    if (!rc && (json_array_size(blocks) != n_blocks || n_blocks > ADAPTER_BLOCKS))
        return error_set(err, -EINVAL, "%s: blocks has %zu forms: it must have one for each of the %u blocks",
                         ADAPTER_KEY, json_array_size(blocks), n_blocks);
    for (; !rc && forms->n_blocks < n_blocks; forms->n_blocks++)
        rc = read_form(&forms->of[forms->n_blocks], forms, "blocks", json_array_get(blocks, forms->n_blocks), err);
    return rc ? rc : read_form(&forms->outside, forms, "outside", json_object_get(value, "outside"), err);
}

/* Defaults are of an adapter: without these two it would be one that adapts nothing. */
static int adapter_check_form(const json_t *value, struct error *err)
{
    const json_t *peft = json_object_get(value, "peft"), *modules = json_object_get(value, "modules");

    if (!json_is_object(value))
        return adapter_refuse(err, "its value", value, "it must be an object, with peft and modules");
    if (!json_is_object(peft))
        return adapter_refuse(err, "peft", peft, "it must be an object");
    if (json_array_size(modules) == 0)
        return adapter_refuse(err, "modules", modules, "it must be a list of names, at least of one");
    return 0;
}

/* It becomes part of names in files, and so do modules. */
static int adapter_read_within(char out[ADAPTER_WITHIN_BYTES], const json_t *value, struct error *err)
{
    const char *text = json_string_value(value);
    const size_t n = text ? strlen(text) : 0;

    if (!value)
        return 0;
    if (n == 0 || n >= ADAPTER_WITHIN_BYTES || strspn(text, "abcdefghijklmnopqrstuvwxyz_") < n)
        return adapter_refuse(err, "within", value, "it must be the name of a module");
    memcpy(out, text, n + 1);
    return 0;
}

int model_adapter_read(struct model_adapter *out, const json_t *value, uint32_t n_blocks, struct error *err)
{
    const json_t *peft = json_object_get(value, "peft");
    const double rank = adapter_number_of(peft, "r", 8), alpha = adapter_number_of(peft, "lora_alpha", 8),
                 dropout = adapter_number_of(peft, "lora_dropout", 0);

    *out = (struct model_adapter){0};
    int rc = adapter_check_form(value, err);
    if (rc)
        return rc;
    if (!(rank >= 1 && rank <= ADAPTER_MOST_RANK && rank == floor(rank)))
        return adapter_refuse(err, "r", json_object_get(peft, "r"), "it must be a whole number from 1 to 4096");
    if (!(alpha > 0 && alpha <= 1e6))
        return adapter_refuse(err, "lora_alpha", json_object_get(peft, "lora_alpha"),
                              "it must be greater than 0 and at most 1e6");
    if (!(dropout >= 0 && dropout < 1))
        return adapter_refuse(err, "lora_dropout", json_object_get(peft, "lora_dropout"),
                              "it must be at least 0 and less than 1");
    rc = adapter_read_names(out->modules, sizeof out->modules, "modules", json_object_get(value, "modules"), err);
    if (!rc)
        rc = adapter_read_names(out->trained, sizeof out->trained, "modules_to_save",
                                json_object_get(peft, "modules_to_save"), err);
    if (!rc)
        rc = adapter_read_within(out->within, json_object_get(value, "within"), err);
    if (rc)
        return rc;
    out->rank = (uint32_t)rank;
    out->factor = adapter_factor_of(peft, rank, alpha);
    out->dropout = (float)dropout;
    out->unties = json_is_true(json_object_get(value, "unties"));
    return json_object_get(value, "forms") ? read_forms(out, value, n_blocks, err) : 0;
}

uint32_t model_adapter_least_rank(const struct model_adapter *adapter)
{
    uint32_t least = adapter->rank;

    for (uint32_t form = 0; form < adapter->forms.n; form++)
        for (size_t i = 0; i < ADAPTER_MAPS; i++) {
            const uint32_t rank = adapter->forms.maps[form][i].rank;
            least = rank > 0 && rank < least ? rank : least;
        }
    return least;
}

/* ---- names ---- */

const char *model_adapter_name(char *out, size_t n, const char *within, const char *prefix, const char *name)
{
    const size_t n_prefix = strlen(prefix);

    if (*within && strncmp(name, prefix, n_prefix) == 0)
        snprintf(out, n, "model.%s.%s", within, name + n_prefix);
    else
        snprintf(out, n, "%s", name);
    return out;
}

/* The pieces of the layer's one unit: those of each of its program's tensors, in their order. */
static const struct model_piece *layer_pieces(const struct model *model, const struct model_layer *layer)
{
    return &model->pieces[model->units[model->visits[layer->first_visit]].first_piece];
}

/* Of a map beside which the tensors STEM.lora_A.weight and STEM.lora_B.weight are. */
static bool adapted_linear(struct model_adapted *out, const struct model *model, const struct program_operation *op,
                           const struct program *p, const struct model_piece *pieces, const char *name)
{
    char stem[PROGRAM_ADAPTED_BYTES];
    const char *const dot = strrchr(name, '.');
    const size_t n = strlen(program_adapted_name(stem, name, (size_t)(dot - name)));

    for (int i = 0; op->kind == &operation_adapter && i < op->adapter.n_maps; i++) {
        const uint32_t a = pieces[program_tensors_before(p, op->tensor + 2 * i)].tensor;
        const char *const of = model->tensors[a].name;
        if (strncmp(of, stem, n) != 0 || strcmp(of + n, ".lora_A.weight") != 0 || strcmp(dot, ".weight") != 0)
            continue;
        *out = (struct model_adapted){a, a + 1, op->adapter.maps[i].rank, op->adapter.maps[i].factor, .n_experts = 1};
        return true;
    }
    return false;
}

/* Of an expert's gate, up or down. */
static bool adapted_expert(struct model_adapted *out, const struct program_operation *op, const struct program *p,
                           const struct model_piece *pieces, uint32_t tensor)
{
    for (int i = 0; op->kind == &operation_experts && i < 3; i++) {
        const uint32_t first = pieces[program_tensors_before(p, op->tensor + i)].tensor, n = op->experts.n_experts;
        const struct program_adapter_map *map = i == 2 ? &op->experts.down : &op->experts.gate_up;
        if (tensor < first || tensor >= first + n || map->rank == 0)
            continue;
        const uint32_t a = pieces[program_tensors_before(p, program_experts_tensor(op, i == 2))].tensor;
        *out =
            (struct model_adapted){a, a + 1, map->rank, map->factor, tensor - first, n, i == 1 ? op->experts.inner : 0};
        return true;
    }
    return false;
}

struct model_adapted model_find_adapted(const struct model *model, uint32_t tensor)
{
    struct model_adapted out = {0};

    for (const struct model_layer *layer = model->layers; layer < model->layers + model->n_layers; layer++) {
        const struct program *p = layer->program ? &layer->program->program : NULL;
        const struct model_piece *pieces = p ? layer_pieces(model, layer) : NULL;
        for (int o = 0; p && o < p->n_operations; o++)
            if (adapted_linear(&out, model, &p->operations[o], p, pieces, model->tensors[tensor].name) ||
                adapted_expert(&out, &p->operations[o], p, pieces, tensor))
                return out;
    }
    return out;
}

static int each_of_part(const struct model_layer *layer, const struct program_operation *op, int part,
                        const struct model *model, int (*on_linear)(void *data, const struct model_linear *linear),
                        void *data)
{
    const struct program *p = &layer->program->program;
    const struct program_tensor *t = &p->tensors[op->tensor + part];
    const char *const name =
        model->tensors[layer_pieces(model, layer)[program_tensors_before(p, op->tensor + part)].tensor].name;
    char whole[PROGRAM_ADAPTED_BYTES], stem[PROGRAM_ADAPTED_BYTES];

    program_adapted_name(whole, name, (size_t)(strrchr(name, '.') - name));
    program_adapted_name(stem, t->name, (size_t)(strrchr(t->name, '.') - t->name));
    return on_linear(data, &(struct model_linear){.role = model_is_router(p, op) ? LINEAR_ROUTER : LINEAR_PLAIN,
                                                  .layer = layer,
                                                  .name = whole,
                                                  .n = strlen(whole),
                                                  .stem = stem,
                                                  .n_stem = strlen(stem),
                                                  .in_out = !op->linear.out_in});
}

/* "gate_proj" of "mlp.experts.%u.gate_proj.weight", behind what is there. */
static void adapter_add_part(char *out, size_t n, const char *name)
{
    const char *const end = strrchr(name, '.'), *from = end;
    const size_t at = strlen(out);

    while (from > name && from[-1] != '.')
        from--;
    snprintf(out + at, n - at, "%s%.*s", at ? "," : "", (int)(end - from), from);
}

/* All gates and ups of a layer's experts, or all downs. */
static int each_of_experts(const struct model_layer *layer, const struct program_operation *op, bool down,
                           const struct model *model, int (*on_linear)(void *data, const struct model_linear *linear),
                           void *data)
{
    const struct program *p = &layer->program->program;
    const struct program_tensor *t = &p->tensors[op->tensor + (down ? 2 : 0)];
    const struct model_piece *const pieces = layer_pieces(model, layer);
    const char *const first = model->tensors[pieces[program_tensors_before(p, op->tensor)].tensor].name;
    const size_t n_own = strlen(first) + strlen("%u") - strlen("0") - strlen(p->tensors[op->tensor].name);
    char whole[2 * PROGRAM_ADAPTED_BYTES], stem[PROGRAM_ADAPTED_BYTES], parts[PROGRAM_NAME_BYTES] = "";

    program_experts_name(stem, p, op, down);
    snprintf(whole, sizeof whole, "%.*s%s", (int)n_own, first, stem);
    adapter_add_part(parts, sizeof parts, t->name);
    if (!down)
        adapter_add_part(parts, sizeof parts, t[1].name);
    return on_linear(data, &(struct model_linear){.role = LINEAR_EXPERTS,
                                                  .layer = layer,
                                                  .name = whole,
                                                  .n = strlen(whole),
                                                  .stem = stem,
                                                  .n_stem = strlen(stem),
                                                  .parts = parts,
                                                  .n_experts = op->experts.n_experts});
}

static int each_of_layer(const struct model *model, const struct model_layer *layer,
                         int (*on_linear)(void *data, const struct model_linear *linear), void *data)
{
    const struct program *p = &layer->program->program;
    int rc = 0;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
        for (int i = 0; rc == 0 && op->kind == &operation_linear && i < op->linear.n_parts; i++)
            rc = each_of_part(layer, op, i, model, on_linear, data);
        for (int i = 0; rc == 0 && op->kind == &operation_experts && i < 2; i++)
            rc = each_of_experts(layer, op, i, model, on_linear, data);
    }
    return rc;
}

int model_each_linear(const struct model *model, int (*on_linear)(void *data, const struct model_linear *linear),
                      void *data)
{
    int rc = 0;

    for (const struct model_layer *layer = model->layers; rc == 0 && layer < model->layers + model->n_layers; layer++)
        if (layer->program)
            rc = each_of_layer(model, layer, on_linear, data);
    return rc;
}

static int is_in_out(void *data, const struct model_linear *linear)
{
    const char *tensor = data;

    return linear->in_out && strncmp(tensor, linear->name, linear->n) == 0 &&
           strcmp(tensor + linear->n, ".weight") == 0;
}

bool model_is_in_out(const struct model *model, const char *tensor)
{
    return model_each_linear(model, is_in_out, (void *)(uintptr_t)tensor) != 0;
}
