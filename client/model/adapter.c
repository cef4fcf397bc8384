/* PEFT's form names modules by patterns; the config's key has those that were matched when it was made (make_key). So a
 * checkpoint's adapter stays what it was, whatever patterns would match later. The base's fingerprint is beside it, and
 * is compared whenever the base's weights are opened. PEFT has dozens of keys: those that change what an adapter
 * computes are refused (unsupported), unknown ones are kept and not read. */
#include "client/model/adapter.h"

#include "client/model/adapter_internal.h"
#include "client/model/file.h"
#include "proto/base/dump.h"
#include "proto/base/json.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/family.h"
#include "proto/model/config/model_config_print.h"
#include "proto/model/file/model_files.h"
#include "proto/model/weights.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BASE_KEY "base" /* beside "peft" and "modules": the base's fingerprint */

bool client_adapter_is_in(const char *directory)
{
    return client_file_is_in(directory, ADAPTER_CONFIG);
}

/* ---- adapter_config.json ---- */

/* Keys that change what an adapter computes, or which tensors it has, unless they are off. */
static const char *const unsupported[] = {"alora_invocation_tokens",
                                          "arrow_config",
                                          "kasa_config",
                                          "layer_replication",
                                          "lora_bias",
                                          "megatron_config",
                                          "monteclora_config",
                                          "trainable_token_indices",
                                          "use_bdlora",
                                          "use_dora",
                                          "use_qalora",
                                          "velora_config",
                                          "ensure_weight_tying",
                                          "modules_to_tie",
                                          NULL};

/* Ways to begin that change the base, too, which is then none that anybody has on a disk. */
static const char *const changes_base[] = {"pissa", "olora", "corda", "loftq", "lora_ga", NULL};

static bool adapter_is_off(const json_t *value)
{
    return !value || json_is_null(value) || json_is_false(value) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static int adapter_check(const json_t *peft, struct error *err)
{
    const char *type = json_string_value(json_object_get(peft, "peft_type"));
    const char *bias = json_string_value(json_object_get(peft, "bias"));
    const char *begun = json_string_value(json_object_get(peft, "init_lora_weights"));

    if (!type || strcmp(type, "LORA") != 0)
        return error_set(err, -EINVAL, "peft_type is %.60s: only LORA is read", type ? type : "missing");
    if (bias && strcmp(bias, "none") != 0)
        return error_set(err, -EINVAL, "bias is %.60s: only none is read, which trains no bias of the base", bias);
    for (const char *const *key = unsupported; *key; key++)
        if (!adapter_is_off(json_object_get(peft, *key)))
            return error_set(err, -EINVAL, "%s is set: this is not supported", *key);
    for (const char *const *name = changes_base; begun && *name; name++)
        if (strncmp(begun, *name, strlen(*name)) == 0)
            return error_set(err, -EINVAL,
                             "init_lora_weights is %.60s, which changes the base as well: let PEFT convert the adapter "
                             "to a plain one (path_initial_model_for_weight_conversion)",
                             begun);
    return 0;
}

int client_adapter_read(json_t **peft, const char *directory, struct error *err)
{
    char path[PATH_MAX], *text;
    json_error_t why;
    size_t n;
    int rc = client_file_join(path, directory, ADAPTER_CONFIG, err);
    const int fd = rc ? rc : client_file_open(path, err);

    *peft = NULL;
    if (fd < 0)
        return fd;
    rc = client_file_read(&text, &n, fd, path, err);
    close(fd);
    if (rc)
        return rc;
    *peft = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    free(text);
    rc = json_is_object(*peft) ? adapter_check(*peft, err)
                               : error_set(err, -EINVAL, "not a JSON object, as an adapter_config.json must be");
    if (!rc)
        return 0;
    json_decref(*peft);
    *peft = NULL;
    error_prefix(err, path);
    return rc;
}

static bool adapter_is_directory(const char *path)
{
    struct stat st;

    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A name that was given counts alone. One that PEFT wrote may be a path as seen from where the adapter was trained, or
 * from the adapter's directory; downloading is the user's. */
static int find_base(char out[PATH_MAX], const json_t *peft, const char *directory, const char *base, struct error *err)
{
    const char *name = json_string_value(json_object_get(peft, "base_model_name_or_path"));
    char beside[PATH_MAX];

    if (base)
        return realpath(base, out) ? 0 : error_set(err, -errno, "--base-model %.200s: %s", base, strerror(errno));
    if (!name || !*name)
        return error_set(err, -ENOENT,
                         "%.100s does not say which model its adapter is for (base_model_name_or_path): name that "
                         "model's directory with --base-model",
                         *directory ? directory : ADAPTER_CONFIG);
    if (adapter_is_directory(name) && realpath(name, out))
        return 0;
    if (*name != '/' && client_file_join(beside, directory, name, NULL) == 0 && adapter_is_directory(beside) &&
        realpath(beside, out))
        return 0;
    return error_set(err, -ENOENT,
                     "the adapter's base is %.120s, and there is no such directory: name where that model is with "
                     "--base-model%s",
                     name, strchr(name, '/') && *name != '/' ? ", once you have it (hf download)" : "");
}

int client_adapter_find_base(char out[PATH_MAX], const json_t *peft, const char *directory, const char *base,
                             struct error *err)
{
    const int rc = find_base(out, peft, directory, base, err);

    if (rc || !client_adapter_is_in(out))
        return rc;
    return error_set(err, -EINVAL,
                     "%.200s: the base of an adapter cannot be an adapter: merge it with eps export --merge", out);
}

/* ---- the model ---- */

/* The config as JSON, owned; NULL with a sentence. */
static json_t *adapter_read_config(const struct client_model *model, struct error *err)
{
    char *text;
    size_t n;

    if (client_file_read(&text, &n, model->config_fd, CHECKPOINT_CONFIG, err))
        return NULL;
    json_t *config = json_loadb(text, n, 0, NULL);
    free(text);
    if (!config)
        error_memory(err);
    return config;
}

static int adapter_write_config(struct client_model *model, const json_t *config, struct error *err)
{
    char *text = model_config_text(config);
    const int rc = text ? client_model_replace_config(model, text, err) : error_memory(err);

    free(text);
    return rc;
}

static int set_side(struct client_model *model, const json_t *peft, struct error *err)
{
    char *text =
        dump_json(NULL, peft, &(struct dump_form){.indent = "  "}); /* of patterns the first counts that fits */

    if (!model->side)
        model->side = json_object();
    const int rc = text ? json_object_set_new(model->side, ADAPTER_CONFIG, json_sprintf("%s\n", text)) : -1;
    free(text);
    return rc ? error_memory(err) : 0;
}

/* Compares the base with the one that the adapter was trained on, if that is known; else notes it. */
static int adapter_check_base(const struct client_model *model, json_t *key, const char *base, struct error *err)
{
    const char *known = json_string_value(json_object_get(key, BASE_KEY));
    uint64_t fingerprint;
    char digits[20];
    int rc = client_adapter_fingerprint(&fingerprint, model, false, err);

    if (rc)
        return rc;
    snprintf(digits, sizeof digits, "%016" PRIx64, fingerprint);
    if (known && strcmp(known, digits) != 0)
        return error_set(err, -EINVAL,
                         "the adapter was trained on another model than that in %.200s: name the right one with "
                         "--base-model",
                         base);
    return json_object_set_new(key, BASE_KEY, json_string(digits)) ? error_memory(err) : 0;
}

/* In PEFT the table of tokens and the head of a tied base are two modules, of which each that modules_to_save names
 * becomes a copy. *unties: it names either. -EINVAL where two stacks, or more than a head, share the table. */
static int check_tied(bool *unties, const struct client_model *model, const json_t *peft, struct error *err)
{
    const struct model_config *c = &model->config;
    const json_t *saved = json_object_get(peft, "modules_to_save");
    struct model m;
    size_t i;
    json_t *item;

    *unties = false;
    if (!c->tied || c->n_labels || json_array_size(saved) == 0)
        return 0;
    int rc = model_init(&m, c, err);
    if (rc)
        return rc;
    json_array_foreach((json_t *)(uintptr_t)saved, i, item)
    {
        const char *name = json_string_value(item), *table = m.tensors[m.embedding.tables[0].tensor].name;
        char head[64];
        snprintf(head, sizeof head, "%s.weight", c->family->logits);
        if (!name || (!program_adapter_holds(name, table) && !program_adapter_holds(name, head)))
            continue;
        *unties = true;
        if (c->family->has_source || c->family->masked)
            rc = error_set(err, -EINVAL,
                           "modules_to_save has %.60s, a table that other modules of this %s model share: this is not "
                           "supported",
                           name, c->family->model_type);
    }
    model_free(&m);
    return rc;
}

/* The value of the config's key, borrowed; made of peft if the config has none. */
static json_t *make_key(const struct client_model *model, json_t *config, json_t *peft, struct error *err)
{
    json_t *key = json_object_get(config, ADAPTER_KEY), *resolved;
    bool in_out, unties;

    if (key)
        return key;
    if (check_tied(&unties, model, peft, err))
        return NULL;
    const char *within = client_adapter_within(model);
    if (client_adapter_convert(peft, &model->config, within, false, err))
        return NULL;
    if (client_adapter_resolve(&resolved, &in_out, &model->config, within, peft, false, err))
        return NULL;
    key = json_pack("{s:o, s:s*}", "peft", json_deep_copy(peft), "within", *within ? within : NULL);
    const bool is_whole = json_object_update(key, resolved) == 0;
    json_decref(resolved);
    if (json_object_set_new(config, ADAPTER_KEY, key) == 0 && is_whole &&
        (!unties || (json_object_set_new(key, "unties", json_true()) == 0 &&
                     json_object_set_new(config, "tie_word_embeddings", json_false()) == 0)))
        return key;
    error_memory(err);
    return NULL;
}

/* The base's path is written anew each time, as it may have moved; modules and fingerprint stay what they were. */
int client_adapter_set(struct client_model *model, json_t *peft, const char *base, struct error *err)
{
    json_t *config = adapter_read_config(model, err), *key = config ? make_key(model, config, peft, err) : NULL;
    int rc = key ? 0 : -EINVAL;

    if (!rc && model->n_weights > 0)
        rc = adapter_check_base(model, key, base, err);
    if (!rc && (json_object_set_new(peft, "base_model_name_or_path", json_string(base)) ||
                json_object_set_new(key, "peft", json_deep_copy(peft))))
        rc = error_memory(err);
    if (!rc)
        rc = adapter_write_config(model, config, err);
    if (!rc)
        rc = set_side(model, peft, err);
    json_decref(config);
    return rc;
}

int client_adapter_remove(struct client_model *model, struct error *err)
{
    json_t *config = adapter_read_config(model, err);
    int rc = config ? 0 : -ENOMEM;

    json_object_del(config, ADAPTER_KEY);
    if (!rc)
        rc = adapter_write_config(model, config, err);
    json_decref(config);
    json_object_del(model->side, ADAPTER_CONFIG);
    return rc;
}

/* ---- fresh adapters ---- */

struct lora {
    json_t *targets; /* a list, or "all-linear"; owned */
    double rank, alpha, dropout;
    bool rslora;
    unsigned given; /* a bit for each key of a number */
};

static int adapter_read_number(double *out, const char *text, const char *key, double least, double most,
                               struct error *err)
{
    char *end;

    *out = strtod(text, &end);
    if (*text && !*end && *out >= least && *out <= most)
        return 0;
    return error_set(err, -EDOM, "--lora %s=%.60s: it must be a number from %g to %g", key, text, least, most);
}

/* One word of the list: "rank=16", or one more target. *targets: the words behind targets=. */
static int adapter_read_word(struct lora *out, const char *word, bool *targets, struct error *err)
{
    const struct {
        const char *name;
        double *to, least, most;
        bool whole;
    } keys[] = {{"rank", &out->rank, 1, ADAPTER_MOST_RANK, true},
                {"alpha", &out->alpha, 1e-3, 1e6, false},
                {"dropout", &out->dropout, 0, 0.99, false}};
    const char *equals = strchr(word, '=');
    const size_t n = equals ? (size_t)(equals - word) : 0;

    if (!*word)
        return error_set(err, -EDOM, "--lora: nothing stands before one of its commas: leave that comma out");
    if (equals)
        *targets = n == 7 && strncmp(word, "targets", n) == 0;
    else if (strcmp(word, "rslora") == 0) {
        *targets = false, out->rslora = true;
        return 0;
    }
    if (*targets && equals && !equals[1])
        return error_set(err, -EDOM,
                         "--lora targets= names nothing: list ends of modules' names, as in targets=q_proj,v_proj, or "
                         "leave it out for all-linear");
    if (*targets) {
        word = equals ? equals + 1 : word;
        if (!json_is_array(out->targets))
            out->targets = json_array();
        return json_array_append_new(out->targets, json_string(word))
                   ? error_set(err, -EDOM, "--lora targets=%.60s: not UTF-8", word)
                   : 0;
    }
    for (unsigned k = 0; k < sizeof keys / sizeof *keys; k++) {
        if (n != strlen(keys[k].name) || strncmp(word, keys[k].name, n) != 0)
            continue;
        if (out->given >> k & 1)
            return error_set(err, -EDOM, "--lora has %s twice: leave one out", keys[k].name);
        out->given |= 1u << k;
        const int rc = adapter_read_number(keys[k].to, equals + 1, keys[k].name, keys[k].least, keys[k].most, err);
        return rc || !keys[k].whole || *keys[k].to == (double)(int)*keys[k].to
                   ? rc
                   : error_set(err, -EDOM, "--lora %s=%.60s: it must be a whole number", keys[k].name, equals + 1);
    }
    return error_set(err, -EDOM,
                     "--lora %.60s: it takes rank=N, alpha=X, targets=NAME,... or targets=all-linear, dropout=X and "
                     "rslora, separated by commas",
                     word);
}

static int adapter_parse(struct lora *out, const char *text, struct error *err)
{
    char word[200];
    bool targets = false;
    int rc = 0;

    *out = (struct lora){.rank = 16};
    for (size_t n; !rc && *text; text += n + (text[n] == ',')) {
        n = strcspn(text, ",");
        snprintf(word, sizeof word, "%.*s", (int)n, text);
        rc = n < sizeof word ? adapter_read_word(out, word, &targets, err)
                             : error_set(err, -EDOM, "--lora %.60s...: this is too long", word);
    }
    const char *only = json_string_value(json_array_get(out->targets, 0));
    if (!rc && (!out->targets || (json_array_size(out->targets) == 1 && only && strcmp(only, "all-linear") == 0))) {
        json_decref(out->targets);
        out->targets = json_string("all-linear");
    }
    if (out->alpha == 0)
        out->alpha = 2 * out->rank;
    return rc;
}

/* Modules of a classifier that are trained as a whole: its head; and those that the base's files lack, which an adapter
 * could not be loaded without. NULL: no memory. */
static json_t *trained_modules(const struct client_model *model, struct error *err)
{
    const struct model_config *c = &model->config;
    const char *head = c->family->classifier->logits;
    struct weights weights = {0};
    struct model description;
    char name[128];
    json_t *out = json_pack("[s#]", head, (int)strcspn(head, "."));

    if (model->n_weights == 0 || model_init(&description, c, err))
        return out;
    if (weights_open_base(&weights, &description, model->weights, model->n_weights, NULL, err) == 0)
        for (uint32_t t = 0; t < description.n_tensors; t++) {
            const char *tensor = description.tensors[t].name;
            snprintf(name, sizeof name, "%.*s", (int)(strrchr(tensor, '.') - tensor), tensor);
            if (!weights.entries[t] && strncmp(name, head, strcspn(head, ".")) != 0 &&
                strcmp(strrchr(tensor, '.'), ".weight") == 0)
                json_append(&out, json_string(name));
        }
    weights_close(&weights);
    model_free(&description);
    return out;
}

/* The last parts of all modules' names: what other programs match as well. NULL: no memory. */
static json_t *last_parts(const json_t *modules)
{
    json_t *out = json_array(), *item, *seen = json_object();
    size_t i;

    json_array_foreach((json_t *)(uintptr_t)modules, i, item)
    {
        const char *const last = client_adapter_last(json_string_value(item));
        if (json_object_get(seen, last))
            continue;
        json_put(&seen, last, json_true());
        json_append(&out, seen ? json_string(last) : NULL);
    }
    json_decref(seen);
    return out;
}

/* The pattern of the modules within a wrapper, whose other parts have modules of the same names. NULL: no memory. */
static json_t *modules_within(const char *within, const json_t *modules)
{
    char text[2 * ADAPTER_MODULES_BYTES];
    size_t i, n = (size_t)snprintf(text, sizeof text, "model\\.%s\\.(?:.*\\.)?(?:", within);
    json_t *item;

    json_array_foreach((json_t *)(uintptr_t)modules, i, item)
    {
        if (i > 0 && n + 2 < sizeof text)
            text[n++] = '|';
        for (const char *c = json_string_value(item); *c && n + 4 < sizeof text; c++) {
            if (*c == '.')
                text[n++] = '\\';
            text[n++] = *c;
        }
    }
    snprintf(text + n, sizeof text - n, ")");
    return json_string(text);
}

/* PEFT writes whole numbers without a point. */
static json_t *number_json(double x)
{
    return x == (double)(json_int_t)x ? json_integer((json_int_t)x) : json_real(x);
}

/* As PEFT writes it, without what only other kinds of adapters have. */
static json_t *make_peft(const struct client_model *model, const struct lora *lora, struct error *err)
{
    const struct model_config *c = &model->config;
    const char *task = client_model_peft(c).task;
    json_t *const modules = c->n_labels > 0 ? trained_modules(model, err) : NULL;

    if (c->n_labels > 0 && !modules)
        return NULL;
    return json_pack("{s:{}, s:n, s:s, s:s, s:b, s:b, s:b, s:n, s:n, s:o, s:o, s:o*, s:s, s:o, s:{}, s:n, s:O, s:s?, "
                     "s:b, s:b}",
                     "alpha_pattern", "auto_mapping", "base_model_name_or_path", model->directory, "bias", "none",
                     "fan_in_fan_out", false, "inference_mode", true, "init_lora_weights", true, "layers_pattern",
                     "layers_to_transform", "lora_alpha", number_json(lora->alpha), "lora_dropout",
                     json_real(lora->dropout), "modules_to_save", modules, "peft_type", "LORA", "r",
                     number_json(lora->rank), "rank_pattern", "revision", "target_modules", lora->targets, "task_type",
                     task, "use_dora", false, "use_rslora", lora->rslora);
}

/* What the resolver refuses is the option here, and no file. */
static int adapter_add(struct client_model *model, const struct lora *lora, struct error *err)
{
    int rc = client_file_check_name(model->directory, err);

    if (rc)
        return rc;
    json_t *peft = make_peft(model, lora, err), *key = NULL;
    const char *within = client_adapter_within(model);
    bool in_out;
    rc = peft ? client_adapter_convert(peft, &model->config, within, true, err) : error_memory(err);
    if (!rc)
        rc = client_adapter_resolve(&key, &in_out, &model->config, within, peft, true, err);

    if (rc == -EINVAL) {
        error_prefix(err, "--lora");
        rc = -EDOM;
    }
    const json_t *modules = json_object_get(key, "modules");
    json_t *const known = json_object_get(peft, "target_modules");
    json_t *const targets = rc                      ? NULL
                            : *within               ? modules_within(within, modules)
                            : json_is_string(known) ? last_parts(modules)
                                                    : json_incref(known);
    if (!rc && ((in_out && json_object_set_new(peft, "fan_in_fan_out", json_true())) ||
                json_object_set_new(peft, "target_modules", targets)))
        rc = error_memory(err);
    json_decref(key);
    if (!rc)
        rc = client_adapter_set(model, peft, model->directory, err);
    json_decref(peft);
    return rc;
}

static int add_fresh(struct client_model *model, const char *text, bool weightless, struct error *err)
{
    struct lora lora;
    int rc = adapter_parse(&lora, text, err);

    if (!rc && model->config.adapter.rank > 0)
        rc = error_set(err, -EDOM,
                       "--lora: %s is an adapter already, and its training goes on: leave --lora out, or name its base",
                       model->name);
    if (!rc && !weightless && model->n_weights == 0)
        rc = error_set(err, -EDOM,
                       "--lora adapts a model that has weights: name its directory with --model, with config.json and "
                       "*.safetensors");
    if (!rc)
        rc = adapter_add(model, &lora, err);
    json_decref(lora.targets);
    return rc;
}

int client_adapter_add(struct client_model *model, const char *lora, struct error *err)
{
    return add_fresh(model, lora, false, err);
}

int client_adapter_plan(struct client_model *model, const char *lora, struct error *err)
{
    return add_fresh(model, lora, true, err);
}
