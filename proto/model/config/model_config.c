/* A key that nobody lists is refused, as it may change the mathematics. So all keys of the file are looked at first.
 * Then the family's are read in the order of its list: the order of the file changes nothing. What is missing is
 * completed before numbers are checked, so that defaults are held to the same limits. */
#include "proto/model/config/model_config.h"

#include "proto/base/dump.h"
#include "proto/model/config/config_values.h"
#include "proto/model/family.h"
#include "proto/model/model_internal.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Keys that transformers writes, or once wrote, for any model, and that do not affect training a language model:
 * bookkeeping, generation defaults, outputs. */
static const char *const harmless[] = {
    "_attn_implementation",
    "_attn_implementation_autoset",
    "_commit_hash",
    "_name_or_path",
    "_num_labels",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "is_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "predict_special_tokens",
    "prefix",
    "problem_type",
    "remove_invalid_values",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_cache",
    "xla_device",
    /* Written by others: */
    "_flash_attn_2_enabled",
    "transformers.js_config",
    "unsloth_*",
    NULL,
};

/* Keys that change the mathematics, or the code that runs, unless they are off. */
static const char *const unsupported[] = {"auto_map",     "is_encoder_decoder",
                                          "pruned_heads", "tie_encoder_decoder",
                                          "use_bfloat16", NULL};

/* An entry that ends in an asterisk stands for all names that begin so. */
bool family_lists(const char *const *list, const char *name)
{
    for (; list && *list; list++) {
        const size_t n = strlen(*list);
        if (strcmp(*list, name) == 0 || ((*list)[n - 1] == '*' && strncmp(*list, name, n - 1) == 0))
            return true;
    }
    return false;
}

/* What transformers writes for a feature that is not used. */
static bool model_config_is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

int model_config_refuse(struct error *err, const char *name, const json_t *value, const char *accepted)
{
    char *text = dump_json(NULL, value, &(struct dump_form){.separator = ",", .colon = ":", .ascii = true});

    error_set(err, -EINVAL, "%.80s is %.120s: %s", name, text ? text : "too large to print", accepted);
    free(text);
    return -EINVAL;
}

enum { DEFAULT_LABELS = 2, MOST_LABELS = 1 << 16 };

/* Another head means other tensors and another loss. The number of a classifier's labels is read later. Without a
 * list the model has the family's own head. */
static int read_architectures(struct model_config *out, const json_t *value, struct error *err)
{
    const struct family *family = out->family;
    const struct family_classifier *classifier = family->sees_images ? NULL : family->classifier;
    size_t i;
    json_t *item;
    char accepted[120];

    snprintf(accepted, sizeof accepted, "only %s%s%s can be trained", family->architectures[0],
             classifier ? " or " : "", classifier ? classifier->architecture : "");
    if (!value || json_is_null(value))
        return 0;
    if (!json_is_array(value))
        return model_config_refuse(err, "architectures", value, "it must be a list of names");
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(item);
        const bool classifies = name && classifier && strcmp(name, classifier->architecture) == 0;
        if (!classifies && (!name || !family_lists(family->architectures, name)))
            return model_config_refuse(err, "architectures", value, accepted);
        if (i > 0 && !family->sees_images && classifies != (out->n_labels > 0))
            return model_config_refuse(err, "architectures", value, "it must name one head");
        out->n_labels = classifies || family->sees_images ? DEFAULT_LABELS : 0;
    }
    return 0;
}

static bool is_object(const struct family *family, const char *name)
{
    const size_t n = strlen(name);

    for (const struct family_key *key = family->keys; key->name; key++)
        if (strncmp(key->name, name, n) == 0 && key->name[n] == '.')
            return true;
    return false;
}

static int check_pair(const struct family *family, const char *name, const json_t *value, struct error *err);

static int check_inner(const struct family *family, const char *name, const json_t *value, struct error *err)
{
    const char *inner;
    json_t *item;
    int rc = 0;

    if (json_is_null(value))
        return 0;
    if (!json_is_object(value))
        return model_config_refuse(err, name, value, "it must be an object or null");
    json_object_foreach((json_t *)value, inner, item)
    {
        char full[120];
        snprintf(full, sizeof full, "%s.%s", name, inner);
        if ((rc = check_pair(family, full, item, err)) != 0)
            return rc;
    }
    return 0;
}

/* Accepts the keys that the family has, and those that change nothing. */
static int check_pair(const struct family *family, const char *name, const json_t *value, struct error *err)
{
    if (strcmp(name, "model_type") == 0 || strcmp(name, "architectures") == 0 || strcmp(name, ADAPTER_KEY) == 0 ||
        strcmp(name, MODEL_GUESTS_KEY) == 0 || strcmp(name, QUANTIZED_KEY) == 0)
        return 0; /* read apart */
    if (is_object(family, name))
        return check_inner(family, name, value, err);
    for (const struct family_key *key = family->keys; key->name; key++)
        if (strcmp(key->name, name) == 0)
            return 0; /* read in the order of the list */
    if (family_lists(harmless, name) || family_lists(family->harmless, name))
        return 0;
    if (family_lists(unsupported, name) || family_lists(family->unsupported, name))
        return model_config_is_off(value)
                   ? 0
                   : model_config_refuse(err, name, value, "this is not supported, it must be off (null or false)");
    return model_config_refuse(err, name, value, "this key is unknown, and it may change the mathematics");
}

/* The value of "a" or "a.b". NULL: the file has none. Names with dots are the family's own notation for an object
 * within the file. */
static const json_t *model_config_find_value(const json_t *object, const char *name)
{
    const char *dot = strchr(name, '.');
    char part[80];

    for (; dot; name = dot + 1, dot = strchr(name, '.')) {
        snprintf(part, sizeof part, "%.*s", (int)(dot - name), name);
        object = json_object_get(object, part);
    }
    return json_object_get(object, name);
}

static int check_same(const struct family_key *key, const json_t *object, struct error *err)
{
    const json_t *value = json_object_get(object, key->name), *other = json_object_get(object, key->other);
    char accepted[80];

    if (!value || !other || model_config_is_off(value) || model_config_is_off(other) || json_equal(value, other))
        return 0;
    snprintf(accepted, sizeof accepted, "it must be the same as %s", key->other);
    return model_config_refuse(err, key->name, value, accepted);
}

const struct family *family_find(const json_t *config)
{
    const char *name = json_string_value(json_object_get(config, "model_type"));
    const size_t n = strlen(MODEL_GUESTS_TYPE);

    if (name && json_object_get(config, MODEL_GUESTS_KEY) && strncmp(name, MODEL_GUESTS_TYPE, n) == 0)
        name += n;
    for (const struct family *const *family = model_families; name && *family; family++)
        if (strcmp((*family)->model_type, name) == 0)
            return *family;
    return NULL;
}

/* The family that trains this architecture, whatever its model_type. */
static const struct family *find_architecture(const json_t *config)
{
    const char *name = json_string_value(json_array_get(json_object_get(config, "architectures"), 0));

    for (const struct family *const *family = model_families; name && *family; family++)
        for (const char *const *a = (*family)->architectures; a && *a; a++)
            if (strcmp(*a, name) == 0)
                return *family;
    return NULL;
}

/* The family whose name begins most like this one: of a derived family, as qwen3_moe, the plain one. NULL: none does by
 * four letters, and they would say nothing. */
static const char *find_nearest(const json_t *type)
{
    enum { LEAST = 4 };
    const char *name = json_string_value(type), *found = NULL;
    size_t most = LEAST - 1;

    for (const struct family *const *family = model_families; name && *family; family++) {
        const char *other = (*family)->model_type;
        size_t n = 0;
        while (name[n] && name[n] == other[n])
            n++;
        if (n > most)
            most = n, found = other;
    }
    return found;
}

static int refuse_type(const json_t *config, struct error *err)
{
    const json_t *type = json_object_get(config, "model_type");
    const struct family *meant = find_architecture(config);

    if (!type)
        return error_set(err, -EINVAL, "model_type is missing: eps models lists those that are trained");
    const char *nearest = find_nearest(type);
    char remedy[240];
    snprintf(remedy, sizeof remedy, "it must be one that eps models lists%s%s", nearest ? "; the nearest name is " : "",
             nearest ? nearest : "");
    if (!meant)
        return model_config_refuse(err, "model_type", type, remedy);
    snprintf(remedy, sizeof remedy,
             "eps models does not list it, but its architecture %s is that of \"%s\": write that, if it is one",
             json_string_value(json_array_get(json_object_get(config, "architectures"), 0)), meant->model_type);
    return model_config_refuse(err, "model_type", type, remedy);
}

/* As transformers does: id2label decides, then num_labels, then two. */
static int read_label_count(size_t *out, const json_t *config, struct error *err)
{
    const json_t *names = json_object_get(config, "id2label"), *number = json_object_get(config, "num_labels");
    const size_t n_numbered = json_object_size(json_object_get(config, "label2id"));
    uint32_t n = DEFAULT_LABELS;
    int rc = 0;

    if (names && !json_is_null(names)) {
        if (!json_is_object(names))
            return model_config_refuse(err, "id2label", names, "it must be an object with a name for each label");
        *out = json_object_size(names);
        return 0;
    }
    if (number && !json_is_null(number))
        rc = config_read_count(&n, "num_labels", number, err);
    *out = n;
    if (!rc && n_numbered > 0 && n_numbered != n)
        return error_set(err, -EINVAL,
                         "label2id has %zu labels, and without id2label the model has %u: add id2label, a name for "
                         "each number",
                         n_numbered, n);
    return rc;
}

/* A classifier's labels, as transformers reads them. */
static int model_config_read_labels(struct model_config *out, const json_t *config, struct error *err)
{
    const json_t *type = json_object_get(config, "problem_type");
    const char *name = json_string_value(type);
    size_t n;

    if (out->n_labels == 0)
        return 0;
    int rc = read_label_count(&n, config, err);
    if (rc)
        return rc;
    if (n < 1 || n > MOST_LABELS)
        return error_set(err, -EINVAL, "the model has %zu labels (id2label or num_labels): it must have 1 to %d", n,
                         MOST_LABELS);
    out->n_labels = (uint32_t)n;
    out->regression = n == 1;
    out->tied = false;
    if (!type || json_is_null(type) ||
        (name && strcmp(name, n == 1 ? "regression" : "single_label_classification") == 0))
        return 0;
    return model_config_refuse(err, "problem_type", type,
                               n == 1 ? "a model of one label must have regression"
                                      : "a model of several labels must have single_label_classification");
}

/* As PyTorch reads a padding_idx: less than 0, it counts from the end of the vocabulary. */
static int read_padding(struct model_config *out, const json_t *config, struct error *err)
{
    const struct family *family = out->family;
    const json_t *id = json_object_get(config, "pad_token_id");
    const json_int_t n = out->vocabulary, at = id ? json_integer_value(id) : family->padding;

    if (family->trains_padding || json_is_null(id) || (!id && family->padding == FAMILY_NO_TOKEN))
        return 0;
    if (id && !json_is_integer(id))
        return model_config_refuse(err, "pad_token_id", id, "it must be null or a token's number");
    if (at < -n || at >= n)
        return error_set(err, -EINVAL,
                         "pad_token_id is %" JSON_INTEGER_FORMAT
                         ": it must be null or less than vocab_size, which is %u",
                         at, out->vocabulary);
    out->has_padding = true;
    out->padding = (uint32_t)(at < 0 ? at + n : at);
    return 0;
}

/* True if the family ignores this key, which is then noted. */
static bool model_config_ignores(struct model_config *out, const struct family_key *key, const json_t *value)
{
    if (!family_lists(out->family->ignored, key->name))
        return false;
    if (value && !json_is_true(value) && !json_is_null(value))
        out->ignored = key->name;
    return true;
}

/* Reads what config.json has of the family's keys. Keys may be missing: defaults are set already. */
static int read_keys(struct model_config *out, const json_t *object, bool is_guest, struct error *err)
{
    const struct family *family = out->family;
    int rc = 0;

    for (const struct family_key *key = family->keys; !rc && key->name; key++) {
        const json_t *found = model_config_find_value(object, key->name);
        if (model_config_ignores(out, key, found))
            continue;
        if (found)
            rc = config_read_key(out, key, found, err);
        else if (key->required && !(is_guest && model_is_of_frame(key->offset)))
            rc = error_set(err, -EINVAL, "%s is missing", key->name);
        if (!rc && key->type == FAMILY_SAME)
            rc = check_same(key, object, err);
    }
    return rc;
}

static int read_quantized(struct model_config *out, const json_t *value, struct error *err)
{
    return value && !model_config_is_off(value) ? quantized_read(&out->quantized, value, err) : 0;
}

/* What a guest's blocks share with the model that they stand in. */
static void model_config_take_frame(struct model_config *out, const struct model_config *host)
{
    out->width = host->width;
    out->n_layers = host->n_layers;
    out->n_positions = host->n_positions;
    out->vocabulary = host->vocabulary;
}

/* Whose blocks will stand in another model: the head is that model's. */
static int model_config_read_guest(struct model_config *out, const json_t *object, const struct model_config *host,
                                   struct error *err)
{
    model_config_take_frame(out, host); /* for keys that are not there */
    int rc = read_keys(out, object, true, err);
    if (!rc && out->width != host->width)
        rc = error_set(err, -EINVAL, "its blocks have %u columns, and the model's have %u", out->width, host->width);
    if (!rc && (json_object_get(object, ADAPTER_KEY) || json_object_get(object, MODEL_GUESTS_KEY)))
        rc = error_set(err, -EINVAL, "it has " ADAPTER_KEY " or " MODEL_GUESTS_KEY ", which only a model has");
    if (rc)
        return rc;
    model_config_take_frame(out, host);
    for (const struct family_key *key = out->family->keys; key->name; key++)
        if (key->type == FAMILY_LAYERS || key->type == FAMILY_SWITCHES)
            config_repeat_layers((struct config_layers *)(void *)((char *)out + key->offset), out->n_layers);
    out->n_labels = 0;
    out->family->complete(out);
    return model_config_check(out, err);
}

/* A model's guests. No other program must take it for a plain one. */
static int read_guests(struct model_config *out, const json_t *object, struct error *err)
{
    const json_t *list = json_object_get(object, MODEL_GUESTS_KEY), *type = json_object_get(object, "model_type");

    if (!list)
        return 0;
    if (strcmp(json_string_value(type), out->family->model_type) == 0)
        return model_config_refuse(err, "model_type", type,
                                   "with " MODEL_GUESTS_KEY " it must begin with " MODEL_GUESTS_TYPE);
    return model_guests_read(out, list, err);
}

const char *family_left_out(const struct model_config *c)
{
    return c->adapter.rank == 0 && c->family->left_out ? c->family->left_out(c) : NULL;
}

void family_set_defaults(struct model_config *out, const struct family *family)
{
    *out = family->defaults;
    if (family->own_defaults)
        memcpy(out->own.bytes, family->own_defaults, family->own_bytes);
}

/* Reads the family first, since it defines the keys. The order below is that of dependence: the head before the
 * labels, all keys before the family completes what they imply, the adapter and guests after the number of layers is
 * known. */
int model_config_read(struct model_config *out, const json_t *object, const struct model_config *host,
                      struct error *err)
{
    const struct family *family = family_find(object);
    const char *name;
    json_t *value;
    int rc = 0;

    if (!family)
        return refuse_type(object, err);
    family_set_defaults(out, family);
    out->n_labels = family->sees_images ? DEFAULT_LABELS : 0;
    json_object_foreach((json_t *)object, name, value) if ((rc = check_pair(family, name, value, err)) != 0) return rc;
    if ((rc = read_quantized(out, json_object_get(object, QUANTIZED_KEY), err)) != 0)
        return rc;
    if (host)
        return model_config_read_guest(out, object, host, err);
    if ((rc = read_architectures(out, json_object_get(object, "architectures"), err)) != 0)
        return rc;
    if ((rc = read_keys(out, object, false, err)) != 0)
        return rc;
    if ((rc = model_config_read_labels(out, object, err)) != 0)
        return rc;
    family->complete(out);
    if (json_object_get(object, ADAPTER_KEY) && /* it has a form for each block, which some families only now count */
        (rc = model_adapter_read(&out->adapter, json_object_get(object, ADAPTER_KEY), out->n_layers, err)) != 0)
        return rc;
    if (family->has_source) /* until they are divided */
        out->source = 1, out->row = 2;
    if ((rc = model_config_check(out, err)) != 0 || (rc = read_guests(out, object, err)) != 0)
        return rc;
    return read_padding(out, object, err);
}

int model_config_check_size(size_t n, struct error *err)
{
    if (n <= MODEL_CONFIG_MAX_BYTES)
        return 0;
    return error_set(err, -EINVAL, "%zu bytes are too many for a config.json (at most %d MiB)", n,
                     MODEL_CONFIG_MAX_BYTES >> 20);
}

/* *out is written only if all of it is right. */
int model_config_parse(struct model_config *out, const char *text, size_t n, struct error *err)
{
    struct model_config config;
    json_error_t why;

    int rc = model_config_check_size(n, err);
    if (rc)
        return rc;
    const char *zero = memchr(text, 0, n); /* jansson takes one for white space after a number or a word */
    if (zero)
        return error_set(err, -EINVAL, "not JSON: byte %zu is zero", (size_t)(zero - text));
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return error_set(err, -EINVAL, "not JSON at line %d, column %d: %s", why.line, why.column, why.text);
    rc = json_is_object(root) ? model_config_read(&config, root, NULL, err)
                              : error_set(err, -EINVAL, "not a JSON object, as a config.json must be");
    json_decref(root);
    if (rc == 0)
        *out = config;
    return rc;
}

/* The family's own numbers are bytes to this file: they are copied out. */
static int check_count(const struct family_key *key, const void *number, struct error *err)
{
    uint32_t value;

    memcpy(&value, number, sizeof value);
    if (value >= 1 && value <= key->most)
        return 0;
    return error_set(err, -EINVAL, "%s is %u: it must be from 1 to %u", key->name, value, key->most);
}

/* No range holds NaN. */
static int model_config_check_real(const struct family_key *key, const void *number, struct error *err)
{
    float value;

    memcpy(&value, number, sizeof value);
    switch (key->range) {
    case FAMILY_ANY:
        return 0;
    case FAMILY_FRACTION:
        if (value >= 0 && value <= 1)
            return 0;
        return error_set(err, -EINVAL, "%s is %g: it must be from 0 to 1", key->name, (double)value);
    case FAMILY_PROBABILITY:
        if (value >= 0 && value < 1)
            return 0;
        return error_set(err, -EINVAL, "%s is %g: it must be at least 0 and less than 1", key->name, (double)value);
    case FAMILY_EPSILON:
        if (value > 0 && value <= 1)
            return 0;
        return error_set(err, -EINVAL, "%s is %g: it must be greater than 0 and at most 1", key->name, (double)value);
    }
    return -EINVAL;
}

static bool model_config_is_real(enum family_key_type type)
{
    return type == FAMILY_REAL || type == FAMILY_REAL_OR_DEFAULT;
}

/* Also for configs that were not read from a file, as presets are made. A range is in the family's list, beside the
 * key. */
int model_config_check(const struct model_config *config, struct error *err)
{
    const struct family *family = config->family;

    assert(family && (config->n_labels == 0 || (family->classifier && config->n_labels <= MOST_LABELS)));
    for (const struct family_key *key = family->keys; key && key->name; key++) {
        const void *number = (const char *)config + key->offset;
        const int rc = key->most                         ? check_count(key, number, err)
                       : model_config_is_real(key->type) ? model_config_check_real(key, number, err)
                                                         : 0;
        if (rc)
            return rc;
    }
    return model_widths_check(config, err);
}
