/* Which linear maps an adapter's target_modules name, and which base its files are. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "client/model/adapter_internal.h"

#include "proto/model/checkpoint.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { STEMS = 32, STEPS = 100000 /* of a pattern, for one name */, SAMPLE = 64 /* values of a tensor */ };

/* Names, or a pattern. */
struct targets {
    const json_t *names; /* a list; NULL: the pattern, or all */
    pcre2_code *pattern; /* NULL: all */
};

/* A linear map of one name, in all layers. */
struct stem {
    char name[PROGRAM_NAME_BYTES];
    unsigned n, n_matched;
    bool in_out;
};

struct resolving {
    struct targets targets, excluded;
    const json_t *saved; /* modules_to_save */
    bool used[STEMS];    /* of the first targets: it matched */
    struct stem stems[STEMS];
    unsigned n_stems;
};

static int open_targets(struct targets *out, const char *key, const json_t *value, struct error *err)
{
    const char *text = json_string_value(value);
    PCRE2_SIZE where;
    int code;

    *out = (struct targets){.names = json_is_array(value) ? value : NULL};
    if (out->names || !text || strcasecmp(text, "all-linear") == 0)
        return 0;
    out->pattern =
        pcre2_compile((PCRE2_SPTR)text, PCRE2_ZERO_TERMINATED, PCRE2_ANCHORED | PCRE2_ENDANCHORED, &code, &where, NULL);
    return out->pattern ? 0
                        : error_set(err, -EINVAL, "%s is %.100s: no list of names, and no pattern either", key, text);
}

static bool fits(pcre2_code *pattern, const char *name)
{
    pcre2_match_data *data = pcre2_match_data_create(1, NULL);
    pcre2_match_context *context = pcre2_match_context_create(NULL);
    bool found = false;

    if (data && context && pcre2_set_match_limit(context, STEPS) == 0)
        found = pcre2_match(pattern, (PCRE2_SPTR)name, PCRE2_ZERO_TERMINATED, 0, 0, data, context) >= 0;
    pcre2_match_data_free(data);
    pcre2_match_context_free(context);
    return found;
}

/* As PEFT: the name, or its end behind a dot. */
static bool is_end(const char *name, const char *end)
{
    const size_t n = strlen(name), m = end ? strlen(end) : 0;

    return m > 0 && m <= n && strcmp(name + n - m, end) == 0 && (n == m || name[n - m - 1] == '.');
}

/* used: marks the targets that match; or NULL. */
static bool matches(const struct targets *targets, const char *name, bool used[STEMS])
{
    bool any = false;
    size_t i;
    json_t *item;

    if (!targets->names)
        return !targets->pattern || fits(targets->pattern, name);
    json_array_foreach((json_t *)(uintptr_t)targets->names, i, item)
    {
        if (!is_end(name, json_string_value(item)))
            continue;
        any = true;
        if (used && i < STEMS)
            used[i] = true;
    }
    return any;
}

/* True within a module that is trained as a whole. */
static bool is_saved(const json_t *saved, const char *name)
{
    char inside[128];
    size_t i;
    json_t *item;

    snprintf(inside, sizeof inside, "%s.weight", name);
    json_array_foreach((json_t *)(uintptr_t)saved, i, item)
    {
        if (json_is_string(item) && program_adapter_holds(json_string_value(item), inside))
            return true;
    }
    return false;
}

static int on_linear(void *data, const struct model_linear *linear)
{
    struct resolving *r = data;
    char name[sizeof((struct model_tensor *)0)->name];
    unsigned i = 0;

    snprintf(name, sizeof name, "%.*s", (int)linear->n, linear->name);
    if (is_saved(r->saved, name))
        return 0;
    while (i < r->n_stems &&
           (strlen(r->stems[i].name) != linear->n_stem || strncmp(r->stems[i].name, linear->stem, linear->n_stem) != 0))
        i++;
    if (i == STEMS)
        return -E2BIG;
    struct stem *stem = &r->stems[i];
    if (i == r->n_stems) {
        *stem = (struct stem){.in_out = linear->in_out};
        snprintf(stem->name, sizeof stem->name, "%.*s", (int)linear->n_stem, linear->stem);
        r->n_stems++;
    }
    const bool excluded = (r->excluded.names || r->excluded.pattern) && matches(&r->excluded, name, NULL);
    stem->n++;
    stem->n_matched += !excluded && matches(&r->targets, name, r->used);
    return 0;
}

/* ": its linear maps are attn.c_attn, mlp.c_fc and mlp.c_proj; all-linear means all of them". */
static int refuse(struct error *err, const struct resolving *r, const char *target)
{
    error_set(err, -EINVAL, "the target %.60s matches no linear map that can be adapted here: these are", target);
    for (unsigned i = 0; i < r->n_stems; i++)
        error_append(err, "%s %s", i == 0 ? "" : i + 1 < r->n_stems ? "," : " and", r->stems[i].name);
    error_append(err, "; all-linear means all of them");
    return -EINVAL;
}

static int check_used(const struct resolving *r, bool strict, struct error *err)
{
    bool any = false;
    size_t i;
    json_t *item;

    for (unsigned s = 0; s < r->n_stems; s++) {
        const struct stem *stem = &r->stems[s];
        any |= stem->n_matched > 0;
        if (stem->n_matched > 0 && stem->n_matched < stem->n)
            return error_set(err, -EINVAL,
                             "the targets match %s in %u of %u layers, and an adapter must have it in all of them",
                             stem->name, stem->n_matched, stem->n);
    }
    json_array_foreach((json_t *)(uintptr_t)r->targets.names, i, item)
    {
        if (strict && i < STEMS && !r->used[i])
            return refuse(err, r, json_is_string(item) ? json_string_value(item) : "(no name)");
    }
    return any ? 0 : refuse(err, r, "of this adapter");
}

int client_adapter_resolve(json_t **modules, bool *in_out, const struct model_config *config, const json_t *peft,
                           bool strict, struct error *err)
{
    struct resolving r = {.saved = json_object_get(peft, "modules_to_save")};
    const json_t *excluded = json_object_get(peft, "exclude_modules");
    struct model model;
    int rc = open_targets(&r.targets, "target_modules", json_object_get(peft, "target_modules"), err);

    *modules = NULL, *in_out = false;
    if (!rc && excluded && !json_is_null(excluded))
        rc = open_targets(&r.excluded, "exclude_modules", excluded, err);
    if (!rc)
        rc = model_init(&model, config, err);
    if (!rc) {
        rc = model_each_linear(&model, on_linear, &r) ? error_set(err, -EINVAL, "this model has too many linear maps")
                                                      : check_used(&r, strict, err);
        model_free(&model);
    }
    if (!rc && !(*modules = json_array()))
        rc = error_set(err, -ENOMEM, "out of memory");
    for (unsigned i = 0; !rc && i < r.n_stems; i++)
        if (r.stems[i].n_matched > 0) {
            *in_out |= r.stems[i].in_out;
            json_array_append_new(*modules, json_string(r.stems[i].name));
        }
    pcre2_code_free(r.targets.pattern);
    pcre2_code_free(r.excluded.pattern);
    return rc;
}

/* ---- the base ---- */

static int add_tensor(uint64_t *sum, const struct safetensors_entry *entry, struct error *err)
{
    float values[SAMPLE];
    char text[512];
    const uint64_t n = entry->n < SAMPLE ? entry->n : SAMPLE;
    int n_text = snprintf(text, sizeof text, "%.200s", entry->name);

    if (entry->type > SAFETENSORS_BF16 || n == 0)
        return 0;
    for (uint32_t i = 0; i < entry->n_dims; i++)
        n_text += snprintf(text + n_text, sizeof text - (size_t)n_text, " %ju", (uintmax_t)entry->shape[i]);
    const int rc = safetensors_read(values, entry, entry->n - n, n, err);
    *sum += checkpoint_hash(text, (size_t)n_text) ^ 3 * checkpoint_hash(values, n * sizeof *values);
    return rc;
}

int client_adapter_fingerprint(uint64_t *out, const struct client_model *model, struct error *err)
{
    int rc = 0;

    *out = 0;
    for (unsigned i = 0; !rc && i < model->n_weights; i++) {
        struct safetensors file;
        rc = safetensors_open(&file, model->weights[i].fd, err);
        for (size_t k = 0; !rc && k < file.n_entries; k++)
            rc = add_tensor(out, &file.entries[k], err);
        safetensors_close(&file);
    }
    return rc;
}
