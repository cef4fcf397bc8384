/* What PEFT makes of an adapter_config.json before it adapts a mixture of experts (_convert_peft_config_moe, 0.21).
 *
 * transformers joins the experts of a block: all gates and ups are one tensor, all downs another, and the router is no
 * linear map there either. PEFT adapts such tensors by target_parameters. In most families (struct family's
 * adapts_experts) it still takes names of the maps that files have, an expert's gate_proj or w1, and the router's gate,
 * for these tensors: also those that all-linear stands for. What joins two maps has twice the rank, and twice the alpha.
 * A pattern is first replaced by the last parts of the names that it matches, wherever these are. The result converts to
 * itself. */
#include "client/model/adapter_internal.h"
#include "proto/model/family.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { NAMES = 8 /* of maps that became parts of tensors */ };

/* The last part of a map's name in files, and of the tensor that it is in, "gate_proj" and "gate_up_proj". */
struct part {
    char map[PROGRAM_NAME_BYTES], tensor[PROGRAM_NAME_BYTES];
    bool targeted;
};

struct converting {
    struct client_adapter_targets targets;
    const char *within, *prefix; /* as in model_adapter_name */
    bool every, matches;         /* all-linear; a pattern */
    bool from_maps;              /* PEFT takes names of maps for tensors */
    struct part parts[NAMES];
    unsigned n_parts;
    json_t *modules, *parameters; /* lists, owned */
};

static void list_add(json_t *list, const char *text)
{
    size_t i;
    json_t *item;

    json_array_foreach(list, i, item)
    {
        if (strcmp(json_string_value(item), text) == 0)
            return;
    }
    json_array_append_new(list, json_string(text));
}

/* ---- the model's names ---- */

static bool convert_fits(struct converting *c, const char *name)
{
    return c->every || (c->matches && client_adapter_find(&c->targets, name).rank > 0);
}

/* Of the tensor `whole`. A pattern may match its own name, or what the map's would be beside it. */
static void part_add(struct converting *c, const char *map, const char *whole, const char *tensor)
{
    const size_t n_before = (size_t)(client_adapter_last(whole) - whole);
    char beside[CHECKPOINT_TENSOR_BYTES];
    unsigned i = 0;

    while (i < c->n_parts && strcmp(c->parts[i].map, map) != 0)
        i++;
    if (i == NAMES)
        return;
    if (i == c->n_parts) {
        c->n_parts++;
        snprintf(c->parts[i].map, sizeof c->parts[i].map, "%s", map);
        snprintf(c->parts[i].tensor, sizeof c->parts[i].tensor, "%s", tensor);
    }
    snprintf(beside, sizeof beside, "%.*s%s", (int)n_before, whole, map);
    c->parts[i].targeted |= convert_fits(c, beside);
}

static int convert_linear(void *data, const struct model_linear *linear)
{
    struct converting *c = data;
    char bare[2 * PROGRAM_ADAPTED_BYTES], name[CHECKPOINT_TENSOR_BYTES], tensor[PROGRAM_NAME_BYTES];

    snprintf(bare, sizeof bare, "%.*s", (int)linear->n, linear->name);
    model_adapter_name(name, sizeof name, c->within, c->prefix, bare);
    if (linear->role == LINEAR_PLAIN) {
        if (convert_fits(c, name))
            list_add(c->modules, client_adapter_last(name));
    } else if (linear->role == LINEAR_ROUTER) {
        snprintf(tensor, sizeof tensor, "%.60s.weight", client_adapter_last(name));
        part_add(c, client_adapter_last(name), name, tensor);
    } else {
        const char *const comma = strchr(linear->parts, ',');
        snprintf(tensor, sizeof tensor, "%.*s", comma ? (int)(comma - linear->parts) : (int)strlen(linear->parts),
                 linear->parts);
        part_add(c, tensor, name, client_adapter_last(name));
        if (comma)
            part_add(c, comma + 1, name, client_adapter_last(name));
    }
    return 0;
}

/* ---- targets ---- */

/* True of a map of an expert, which has its tensor with others or alone; not of the router's. */
static bool part_is_expert(const struct part *part)
{
    return strcmp(client_adapter_last(part->tensor), "weight") != 0;
}

/* --lora's own: "experts", and tensors by the names that target_parameters has. True: it was one. */
static bool take_own(struct converting *c, const char *target)
{
    bool any = false;

    for (struct part *j = c->parts; j < c->parts + c->n_parts; j++)
        if (strcmp(target, "experts") == 0 && part_is_expert(j))
            any = j->targeted = true;
    for (struct part *j = c->parts; !any && j < c->parts + c->n_parts; j++)
        if (client_adapter_is_end(target, j->tensor) && (strchr(target, '.') || strcmp(j->tensor, j->map) != 0) &&
            !(c->from_maps && client_adapter_is_end(target, j->map))) {
            list_add(c->parameters, target);
            any = true;
        }
    return any;
}

static void take_target(struct converting *c, const char *target, bool own)
{
    for (struct part *j = c->parts; c->from_maps && j < c->parts + c->n_parts; j++)
        if (client_adapter_is_end(target, j->map)) {
            j->targeted = true;
            return;
        }
    if (!own || !take_own(c, target))
        list_add(c->modules, target);
}

/* Twice the rank and alpha, where both maps of a tensor are adapted. */
static int convert_double(json_t *peft, const char *tensor, struct error *err)
{
    static const char *const keys[][2] = {{"r", "rank_pattern"}, {"lora_alpha", "alpha_pattern"}};
    char pattern[PROGRAM_NAME_BYTES + 8];

    snprintf(pattern, sizeof pattern, ".*\\.%s", tensor);
    for (size_t i = 0; i < 2; i++) {
        const json_t *value = json_object_get(peft, keys[i][0]);
        const double twice = 2 * (value ? json_number_value(value) : 8);
        json_t *patterns = json_object_get(peft, keys[i][1]);
        if (!json_is_object(patterns) && json_object_set_new(peft, keys[i][1], patterns = json_object()))
            return error_memory(err);
        if (json_object_set_new(patterns, pattern,
                                twice == (double)(json_int_t)twice ? json_integer((json_int_t)twice)
                                                                   : json_real(twice)))
            return error_memory(err);
    }
    return 0;
}

/* The tensor of a map that is adapted, with all that are in it. */
static int take_part(struct converting *c, json_t *peft, const struct part *part, struct error *err)
{
    const struct part *other = NULL;

    for (const struct part *j = c->parts; j < c->parts + c->n_parts; j++)
        if (j != part && strcmp(j->tensor, part->tensor) == 0)
            other = j;
    if (other && !other->targeted)
        return error_set(err, -EINVAL,
                         "its targets include %s and not %s, which are one tensor, %s: name both, or neither",
                         part->map, other->map, part->tensor);
    list_add(c->parameters, part->tensor);
    return other ? convert_double(peft, part->tensor, err) : 0;
}

/* PEFT's own rule: between A and B of a tensor there is no value of tokens to drop. */
static int check_dropout(const json_t *peft, const json_t *parameters, struct error *err)
{
    const double dropout = json_number_value(json_object_get(peft, "lora_dropout"));

    if (dropout == 0 || json_array_size(parameters) == 0)
        return 0;
    return error_set(
        err, -EINVAL,
        "its dropout is %g, and its targets include %s: adapters of experts and routers have none, in PEFT "
        "either; leave it out, or name others, as in targets=q_proj,k_proj,v_proj,o_proj",
        dropout, json_string_value(json_array_get(parameters, 0)));
}

static int convert_targets(struct converting *c, json_t *peft, bool own, struct error *err)
{
    const json_t *targets = json_object_get(peft, "target_modules");
    size_t i;
    json_t *item;
    int rc = 0;

    json_array_foreach((json_t *)(uintptr_t)targets, i, item)
    {
        if (json_is_string(item))
            take_target(c, json_string_value(item), own);
    }
    for (const struct part *j = c->parts; !rc && j < c->parts + c->n_parts; j++)
        if (j->targeted)
            rc = take_part(c, peft, j, err);
    if (!rc)
        rc = check_dropout(peft, c->parameters, err);
    if (!rc && (!json_is_string(targets) || c->from_maps) &&
        json_array_size(c->modules) + json_array_size(c->parameters) > 0 &&
        json_object_set(peft, "target_modules", c->modules))
        rc = error_memory(err);
    if (!rc && json_array_size(c->parameters) > 0 && json_object_set(peft, "target_parameters", c->parameters))
        rc = error_memory(err);
    return rc;
}

int client_adapter_convert(json_t *peft, const struct model_config *config, const char *within, bool own,
                           struct error *err)
{
    const json_t *targets = json_object_get(peft, "target_modules"),
                 *known = json_object_get(peft, "target_parameters");
    const char *const text = json_string_value(targets);
    struct converting c = {.within = within,
                           .prefix = config->family->prefix,
                           .from_maps = config->family->adapts_experts,
                           .modules = json_array(),
                           .parameters = json_is_array(known) ? json_deep_copy(known) : json_array()};
    struct model model;

    c.every = text && c.from_maps && strcasecmp(text, "all-linear") == 0;
    c.matches = text && c.from_maps && !c.every;
    int rc = c.modules && c.parameters ? client_adapter_targets_open(&c.targets, peft, err) : error_memory(err);
    if (!rc && (rc = model_init(&model, config, err)) == 0) {
        model_each_linear(&model, convert_linear, &c);
        rc = c.n_parts > 0 ? convert_targets(&c, peft, own, err) : 0;
        model_free(&model);
    }
    client_adapter_targets_close(&c.targets);
    json_decref(c.modules), json_decref(c.parameters);
    return rc;
}
