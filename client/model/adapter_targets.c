/* Which modules PEFT adapts, and with which rank and alpha: what adapter_config.json says of names.
 *
 * The rules are PEFT's own, in check_target_module_exists and get_pattern_key, patterns included: they are compiled
 * here from the same texts. Of several keys of rank_pattern that match a module the first in the file counts. A pattern
 * that gives no answer within STEPS refuses the adapter, since "no match" would be another adapter. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "client/model/adapter_internal.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { STEPS = 100000 /* of a pattern, for one name */ };

struct client_adapter_pattern {
    const char *key; /* of adapter_config.json */
    pcre2_code *code;
    double value;
};

/* ---- patterns ---- */

/* Compiles front, text and end, one behind another. */
static int pattern_compile(struct client_adapter_pattern *out, const char *key, const char *front, const char *text,
                           const char *end, uint32_t options, struct error *err)
{
    const size_t size = strlen(front) + strlen(text) + strlen(end) + 1;
    char *whole = malloc(size);
    PCRE2_SIZE where;
    int code;

    *out = (struct client_adapter_pattern){.key = key};
    if (!whole)
        return error_memory(err);
    snprintf(whole, size, "%s%s%s", front, text, end);
    out->code = pcre2_compile((PCRE2_SPTR)whole, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | options, &code, &where, NULL);
    free(whole);
    return out->code ? 0 : error_set(err, -EINVAL, "%s has %.100s, which is not a pattern", key, text);
}

/* index: the number of the group "idx"; or NULL. */
static bool pattern_fits(struct client_adapter_targets *t, const struct client_adapter_pattern *pattern,
                         const char *name, json_int_t *index)
{
    pcre2_match_data *data = pcre2_match_data_create_from_pattern(pattern->code, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    char digits[24];
    PCRE2_SIZE size = sizeof digits;
    int n = -1;

    if (data && context && pcre2_set_match_limit(context, STEPS) == 0)
        n = pcre2_match(pattern->code, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, context);
    else
        n = PCRE2_ERROR_NOMEMORY;
    if (n < 0 && n != PCRE2_ERROR_NOMATCH)
        t->unanswered = pattern->key;
    if (n >= 0 && index)
        *index = pcre2_substring_copy_byname(data, (PCRE2_SPTR) "idx", (PCRE2_UCHAR *)digits, &size) == 0
                     ? (json_int_t)strtoll(digits, NULL, 10)
                     : -1;
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    return n >= 0;
}

static int patterns_reserve(struct client_adapter_patterns *out, size_t n, struct error *err)
{
    out->at = calloc(n, sizeof *out->at);
    return out->at || n == 0 ? 0 : error_memory(err);
}

static void patterns_free(struct client_adapter_patterns *patterns)
{
    for (size_t i = 0; i < patterns->n; i++)
        pcre2_code_free(patterns->at[i].code);
    free(patterns->at);
}

/* rank_pattern or alpha_pattern: numbers by pattern. */
static int values_open(struct client_adapter_patterns *out, const json_t *peft, const char *key, bool whole,
                       struct error *err)
{
    const json_t *object = json_object_get(peft, key);
    const char *text;
    json_t *value;

    if (!object || json_is_null(object))
        return 0;
    if (!json_is_object(object))
        return error_set(err, -EINVAL, "%s must be an object: a number for each pattern", key);
    int rc = patterns_reserve(out, json_object_size(object), err);
    json_object_foreach((json_t *)(uintptr_t)object, text, value)
    {
        const double number = json_number_value(value);
        if (!rc && whole && !(json_is_integer(value) && number >= 1 && number <= ADAPTER_MOST_RANK))
            rc =
                error_set(err, -EINVAL, "%s has no whole number from 1 to %d for %.100s", key, ADAPTER_MOST_RANK, text);
        if (!rc && !whole && !(number > 0 && number <= 1e6))
            rc = error_set(err, -EINVAL, "%s has no number above 0, and at most 1e6, for %.100s", key, text);
        if (!rc && (rc = pattern_compile(&out->at[out->n], key, "(.*\\.)?(", text, ")$", 0, err)) == 0)
            out->at[out->n++].value = number;
    }
    return rc;
}

static double values_find(struct client_adapter_targets *t, const struct client_adapter_patterns *values,
                          const char *name, double otherwise)
{
    for (size_t i = 0; i < values->n; i++)
        if (pattern_fits(t, &values->at[i], name, NULL))
            return values->at[i].value;
    return otherwise;
}

/* ---- lists of names ---- */

static int names_open(struct client_adapter_names *out, const char *key, const json_t *value, struct error *err)
{
    const char *text = json_string_value(value);

    *out = (struct client_adapter_names){.list = json_is_array(value) ? value : NULL};
    if (out->list || !text || strcasecmp(text, "all-linear") == 0)
        return 0;
    int rc = patterns_reserve(&out->patterns, 1, err);
    if (!rc)
        rc = pattern_compile(&out->patterns.at[0], key, "", text, "", PCRE2_ENDANCHORED, err);
    out->patterns.n = !rc;
    return rc;
}

bool client_adapter_is_end(const char *name, const char *end)
{
    const size_t n = strlen(name), m = end ? strlen(end) : 0;

    return m > 0 && m <= n && strcmp(name + n - m, end) == 0 && (n == m || name[n - m - 1] == '.');
}

const char *client_adapter_last(const char *name)
{
    const char *const dot = strrchr(name, '.');

    return dot ? dot + 1 : name;
}

/* used: marks the names of the list that match; or NULL. *whole: one is all of this name. */
static bool list_matches(const json_t *list, const char *name, bool *used, bool *whole)
{
    bool any = false;
    size_t i;
    json_t *item;

    *whole = false;
    json_array_foreach((json_t *)(uintptr_t)list, i, item)
    {
        if (!client_adapter_is_end(name, json_string_value(item)))
            continue;
        any = true;
        *whole |= strcmp(name, json_string_value(item)) == 0;
        if (used && i < ADAPTER_MAPS)
            used[i] = true;
    }
    return any;
}

/* used, whole: as list_matches. */
static bool names_match(struct client_adapter_targets *t, const struct client_adapter_names *names, const char *name,
                        bool *used, bool *whole)
{
    *whole = false;
    if (!names->list)
        return names->patterns.n == 0 || pattern_fits(t, &names->patterns.at[0], name, NULL);
    return list_matches(names->list, name, used, whole);
}

/* ---- layers ---- */

static int layers_open(struct client_adapter_targets *out, const json_t *peft, struct error *err)
{
    const json_t *layers = json_object_get(peft, "layers_to_transform");
    json_t *patterns = json_object_get(peft, "layers_pattern"), *item;
    const char *one = json_string_value(patterns);
    size_t i;

    if (!layers || json_is_null(layers) || (json_is_array(layers) && json_array_size(layers) == 0))
        return 0;
    for (i = 0; i < json_array_size(layers) && json_is_integer(json_array_get(layers, i)); i++)
        ;
    if (!json_is_integer(layers) && (!json_is_array(layers) || i < json_array_size(layers)))
        return error_set(err, -EINVAL, "layers_to_transform must be a block's number, or a list of them");
    if (!out->targets.list)
        return error_set(err, -EINVAL, "layers_to_transform is for target_modules that are a list of names");
    out->layers = layers;
    int rc = patterns_reserve(&out->layer_patterns, json_array_size(patterns) + 1, err);
    if (!rc && (one ? *one == 0 : json_array_size(patterns) == 0)) {
        rc = pattern_compile(&out->layer_patterns.at[0], "layers_pattern", "", ".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", "", 0,
                             err);
        out->layer_patterns.n = !rc;
        return rc;
    }
    for (i = 0; !rc && i < (one ? 1 : json_array_size(patterns)); i++) {
        item = one ? patterns : json_array_get(patterns, i);
        if (!json_is_string(item))
            return error_set(err, -EINVAL, "layers_pattern must be a name, or a list of names");
        rc = pattern_compile(&out->layer_patterns.at[i], "layers_pattern", "(?:^|.*?\\.)", json_string_value(item),
                             "\\.(?P<idx>\\d+)\\.", 0, err);
        out->layer_patterns.n += !rc;
    }
    return rc;
}

/* True if the number in the module's name is one of a block that is adapted. */
static bool layers_hold(struct client_adapter_targets *t, const char *name)
{
    json_int_t index = -1;
    size_t i;
    json_t *item;

    for (i = 0; i < t->layer_patterns.n && !pattern_fits(t, &t->layer_patterns.at[i], name, &index); i++)
        ;
    if (index < 0 || json_is_integer(t->layers))
        return index >= 0 && json_integer_value(t->layers) == index;
    json_array_foreach((json_t *)(uintptr_t)t->layers, i, item)
    {
        if (json_integer_value(item) == index)
            return true;
    }
    return false;
}

/* ---- all of it ---- */

int client_adapter_targets_open(struct client_adapter_targets *out, const json_t *peft, struct error *err)
{
    const json_t *excluded = json_object_get(peft, "exclude_modules"), *rank = json_object_get(peft, "r"),
                 *alpha = json_object_get(peft, "lora_alpha");

    *out = (struct client_adapter_targets){.saved = json_object_get(peft, "modules_to_save"),
                                           .parameters = json_object_get(peft, "target_parameters"),
                                           .rank = rank ? json_number_value(rank) : 8,
                                           .alpha = alpha ? json_number_value(alpha) : 8};
    int rc = names_open(&out->targets, "target_modules", json_object_get(peft, "target_modules"), err);
    if (!rc && excluded && !json_is_null(excluded)) {
        out->excludes = true;
        rc = names_open(&out->excluded, "exclude_modules", excluded, err);
    }
    if (!rc)
        rc = layers_open(out, peft, err);
    if (!rc)
        rc = values_open(&out->ranks, peft, "rank_pattern", true, err);
    if (!rc)
        rc = values_open(&out->alphas, peft, "alpha_pattern", false, err);
    if (rc)
        client_adapter_targets_close(out);
    return rc;
}

void client_adapter_targets_close(struct client_adapter_targets *targets)
{
    patterns_free(&targets->targets.patterns);
    patterns_free(&targets->excluded.patterns);
    patterns_free(&targets->layer_patterns);
    patterns_free(&targets->ranks);
    patterns_free(&targets->alphas);
    *targets = (struct client_adapter_targets){0};
}

bool client_adapter_is_saved(const struct client_adapter_targets *targets, const char *name)
{
    char inside[128];
    size_t i;
    json_t *item;

    snprintf(inside, sizeof inside, "%s.weight", name);
    json_array_foreach((json_t *)(uintptr_t)targets->saved, i, item)
    {
        if (json_is_string(item) && program_adapter_holds(json_string_value(item), inside))
            return true;
    }
    return false;
}

/* Rank and alpha of a name that matches. */
static struct client_adapter_map targets_map(struct client_adapter_targets *t, const char *name)
{
    return (struct client_adapter_map){.rank = values_find(t, &t->ranks, name, t->rank),
                                       .alpha = values_find(t, &t->alphas, name, t->alpha)};
}

struct client_adapter_map client_adapter_find(struct client_adapter_targets *t, const char *name)
{
    bool whole;

    if (t->excludes && names_match(t, &t->excluded, name, NULL, &whole))
        return (struct client_adapter_map){0};
    if (!names_match(t, &t->targets, name, t->used, &whole))
        return (struct client_adapter_map){0};
    if (t->layers && !whole && !layers_hold(t, name))
        return (struct client_adapter_map){0};
    return targets_map(t, name);
}

struct client_adapter_map client_adapter_find_parameter(struct client_adapter_targets *t, const char *name)
{
    bool whole;

    return list_matches(t->parameters, name, t->used_parameters, &whole) ? targets_map(t, name)
                                                                         : (struct client_adapter_map){0};
}
