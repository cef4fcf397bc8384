#include "proto/model/adapter.h"

#include "proto/base/dump.h"
#include "proto/model/model_internal.h"
#include "proto/operation/operation.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void model_adapt_program(struct program *p, const struct model_adapter *adapter)
{
    const struct program_adaptation how = {.rank = adapter->rank,
                                           .factor = adapter->factor,
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
        t->frozen = !t->saved;
        t->place = t->saved ? model->n_saved++ : 0;
    }
}

/* ---- the key of config.json ---- */

static int refuse(struct error *err, const char *name, const json_t *value, const char *accepted)
{
    char *text = dump_json(NULL, value, &dump_compact);

    error_set(err, -EINVAL, "%s: %s is %.100s: %s", ADAPTER_KEY, name, text ? text : "missing", accepted);
    free(text);
    return -EINVAL;
}

/* A list of strings as "a,b". */
static int read_names(char *out, size_t size, const char *name, const json_t *value, struct error *err)
{
    size_t i, n = 0;
    json_t *item;

    out[0] = 0;
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_array(value))
        return refuse(err, name, value, "it must be a list of names");
    json_array_foreach(value, i, item)
    {
        const char *text = json_string_value(item);
        if (!text || !*text || strchr(text, ','))
            return refuse(err, name, value, "it must be a list of names");
        if (strlen(text) + 2 > size - n)
            return refuse(err, name, value, "these names are too long");
        n += (size_t)snprintf(out + n, size - n, "%s%s", n ? "," : "", text);
    }
    return 0;
}

/* NaN: it is no number. */
static double number_of(const json_t *peft, const char *name, double otherwise)
{
    const json_t *value = json_object_get(peft, name);

    return !value ? otherwise : json_is_number(value) ? json_number_value(value) : NAN;
}

int model_adapter_read(struct model_adapter *out, const json_t *value, struct error *err)
{
    const json_t *peft = json_object_get(value, "peft"), *rslora = json_object_get(peft, "use_rslora");
    const double rank = number_of(peft, "r", 8), alpha = number_of(peft, "lora_alpha", 8),
                 dropout = number_of(peft, "lora_dropout", 0);

    *out = (struct model_adapter){0};
    if (!(rank >= 1 && rank <= ADAPTER_MOST_RANK && rank == floor(rank)))
        return refuse(err, "r", json_object_get(peft, "r"), "it must be a whole number from 1 to 4096");
    if (!(alpha > 0 && alpha <= 1e6))
        return refuse(err, "lora_alpha", json_object_get(peft, "lora_alpha"),
                      "it must be greater than 0 and at most 1e6");
    if (!(dropout >= 0 && dropout < 1))
        return refuse(err, "lora_dropout", json_object_get(peft, "lora_dropout"),
                      "it must be at least 0 and less than 1");
    int rc = read_names(out->modules, sizeof out->modules, "modules", json_object_get(value, "modules"), err);
    if (!rc)
        rc = read_names(out->trained, sizeof out->trained, "modules_to_save", json_object_get(peft, "modules_to_save"),
                        err);
    if (rc)
        return rc;
    out->rank = (uint32_t)rank;
    out->factor = (float)(alpha / (json_is_true(rslora) ? sqrt(rank) : rank));
    out->dropout = (float)dropout;
    out->unties = json_is_true(json_object_get(value, "unties"));
    return 0;
}

/* ---- names ---- */

static int each_of_layer(const struct model *model, const struct model_layer *layer,
                         int (*on_linear)(void *data, const struct model_linear *linear), void *data)
{
    const struct program *p = &layer->program->program;
    const struct model_piece *pieces =
        &model->pieces[model->units[model->visits[layer->first_visit]].first_piece]; /* one for each tensor */
    int rc = 0;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        for (int i = 0; rc == 0 && op->kind == &operation_linear && i < op->linear.n_parts; i++) {
            const char *stem = p->tensors[op->tensor + i].name,
                       *name = model->tensors[pieces[op->tensor + i].tensor].name;
            rc = on_linear(data, &(struct model_linear){.name = name,
                                                        .n = (size_t)(strrchr(name, '.') - name),
                                                        .stem = stem,
                                                        .n_stem = (size_t)(strrchr(stem, '.') - stem),
                                                        .in_out = !op->linear.out_in});
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
