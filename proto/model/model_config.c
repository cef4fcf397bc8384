#include "proto/model/model.h"

#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CONFIG_BYTES = 16 << 20 };

enum key_type { KEY_COUNT, KEY_REAL, KEY_SWITCH };

static const struct key {
    const char *name;
    enum key_type type;
    size_t offset; /* in struct model_config */
    bool required;
} keys[] = {
    {"n_layer", KEY_COUNT, offsetof(struct model_config, n_layers), true},
    {"n_head", KEY_COUNT, offsetof(struct model_config, n_heads), true},
    {"n_embd", KEY_COUNT, offsetof(struct model_config, width), true},
    {"n_positions", KEY_COUNT, offsetof(struct model_config, n_positions), true},
    {"vocab_size", KEY_COUNT, offsetof(struct model_config, vocabulary), true},
    {"tie_word_embeddings", KEY_SWITCH, offsetof(struct model_config, tied), false},
    {"scale_attn_weights", KEY_SWITCH, offsetof(struct model_config, scale_attention), false},
    {"scale_attn_by_inverse_layer_idx", KEY_SWITCH, offsetof(struct model_config, scale_by_layer), false},
    {"layer_norm_epsilon", KEY_REAL, offsetof(struct model_config, norm_epsilon), false},
    {"attn_pdrop", KEY_REAL, offsetof(struct model_config, dropout_attention), false},
    {"embd_pdrop", KEY_REAL, offsetof(struct model_config, dropout_embedding), false},
    {"resid_pdrop", KEY_REAL, offsetof(struct model_config, dropout_residual), false},
    {"initializer_range", KEY_REAL, offsetof(struct model_config, initializer_range), false},
};

/* What transformers writes, or wrote in older versions, and what changes nothing in training GPT-2 as a language model:
 * bookkeeping, generation defaults, outputs, other heads, and the same mathematics in another order. */
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
    "reorder_and_upcast_attn",
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
};

/* These change the mathematics, or the code that runs, unless they are off. */
static const char *const unsupported[] = {
    "add_cross_attention", "auto_map",       "cross_attention_hidden_size", "is_encoder_decoder", "pruned_heads",
    "quantization_config", "sliding_window", "tie_encoder_decoder",         "use_bfloat16",
};

static bool is_listed(const char *const *list, size_t n, const char *name)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(list[i], name) == 0)
            return true;
    return false;
}

static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) || (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static int refuse(struct error *err, const char *name, const json_t *value, const char *accepted)
{
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII);

    error_set(err, -EINVAL, "%.80s is %.120s: %s", name, text ? text : "too large to print", accepted);
    free(text);
    return -EINVAL;
}

static int read_key(struct model_config *out, const struct key *key, const json_t *value, struct error *err)
{
    char *field = (char *)out + key->offset;

    switch (key->type) {
    case KEY_COUNT:
        if (!json_is_integer(value) || json_integer_value(value) < 0 || json_integer_value(value) > UINT32_MAX)
            return refuse(err, key->name, value, "it must be a positive whole number");
        *(uint32_t *)field = (uint32_t)json_integer_value(value);
        return 0;
    case KEY_REAL:
        if (!json_is_number(value))
            return refuse(err, key->name, value, "it must be a number");
        *(float *)field = (float)json_number_value(value);
        return 0;
    case KEY_SWITCH:
        if (!json_is_boolean(value))
            return refuse(err, key->name, value, "it must be true or false");
        *(bool *)field = json_is_true(value);
        return 0;
    }
    return -EINVAL;
}

static int read_activation(struct model_config *out, const json_t *value, struct error *err)
{
    static const struct {
        const char *name;
        enum model_activation activation;
    } known[] = {{"gelu_new", MODEL_GELU_NEW},
                 {"gelu_pytorch_tanh", MODEL_GELU_NEW},
                 {"gelu", MODEL_GELU},
                 {"relu", MODEL_RELU}};
    const char *name = json_string_value(value);

    for (size_t i = 0; name && i < sizeof known / sizeof known[0]; i++) {
        if (strcmp(name, known[i].name) == 0) {
            out->activation = known[i].activation;
            return 0;
        }
    }
    return refuse(err, "activation_function", value, "it must be gelu_new, gelu_pytorch_tanh, gelu or relu");
}

/* Another head means other tensors and another loss. */
static int check_architectures(const json_t *value, struct error *err)
{
    size_t i;
    json_t *item;

    if (json_is_null(value))
        return 0;
    if (!json_is_array(value))
        return refuse(err, "architectures", value, "it must be a list of names");
    json_array_foreach(value, i, item)
    {
        const char *name = json_string_value(item);
        if (!name || (strcmp(name, "GPT2LMHeadModel") != 0 && strcmp(name, "GPT2Model") != 0))
            return refuse(err, "architectures", value, "only GPT2LMHeadModel can be trained");
    }
    return 0;
}

/* Before any other key, as those of another model are its own. */
static int check_type(const json_t *value, struct error *err)
{
    const char *name = json_string_value(value);

    if (!value || (name && strcmp(name, "gpt2") == 0))
        return 0;
    return refuse(err, "model_type", value, "only models of GPT-2's type (gpt2) are supported");
}

/* Keys that need more than one value's type. *known tells whether this was one of them. */
static int read_special(struct model_config *out, const char *name, const json_t *value, bool *known, struct error *err)
{
    *known = true;
    if (strcmp(name, "model_type") == 0)
        return 0; /* looked at first */
    if (strcmp(name, "architectures") == 0)
        return check_architectures(value, err);
    if (strcmp(name, "activation_function") == 0)
        return read_activation(out, value, err);
    if (strcmp(name, "n_inner") == 0) {
        static const struct key inner = {"n_inner", KEY_COUNT, offsetof(struct model_config, inner_width), false};
        if (json_is_null(value))
            return 0;
        if (json_is_integer(value) && json_integer_value(value) == 0)
            return refuse(err, name, value, "it must be null or a positive whole number");
        return read_key(out, &inner, value, err);
    }
    *known = false;
    return 0;
}

static int read_pair(struct model_config *out, const char *name, const json_t *value, struct error *err)
{
    bool known;
    int rc = read_special(out, name, value, &known, err);

    if (known)
        return rc;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (strcmp(keys[i].name, name) == 0)
            return read_key(out, &keys[i], value, err);
    if (strcmp(name, "n_ctx") == 0 || strncmp(name, "summary_", 8) == 0 ||
        is_listed(harmless, sizeof harmless / sizeof harmless[0], name))
        return 0;
    if (strncmp(name, "rope_", 5) == 0 || is_listed(unsupported, sizeof unsupported / sizeof unsupported[0], name))
        return is_off(value) ? 0 : refuse(err, name, value, "this is not supported, it must be off (null or false)");
    return refuse(err, name, value, "this key is unknown, and it may change the mathematics");
}

static int read_object(struct model_config *out, json_t *object, struct error *err)
{
    const char *name;
    json_t *value;
    int rc = check_type(json_object_get(object, "model_type"), err);

    if (rc != 0)
        return rc;
    json_object_foreach(object, name, value) if ((rc = read_pair(out, name, value, err)) != 0) return rc;
    if (!json_object_get(object, "model_type"))
        return error_set(err, -EINVAL, "model_type is missing: it must be gpt2");
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        if (keys[i].required && !json_object_get(object, keys[i].name))
            return error_set(err, -EINVAL, "%s is missing", keys[i].name);
    const json_t *n_ctx = json_object_get(object, "n_ctx");
    if (n_ctx && (!json_is_integer(n_ctx) || json_integer_value(n_ctx) != out->n_positions))
        return refuse(err, "n_ctx", n_ctx, "it must be the same as n_positions");
    if (out->inner_width == 0 && out->width <= UINT32_MAX / 4)
        out->inner_width = 4 * out->width;
    return model_config_check(out, err);
}

int model_config_parse(struct model_config *out, const char *text, size_t n, struct error *err)
{
    struct model_config config = {.tied = true,
                                  .scale_attention = true,
                                  .norm_epsilon = 1e-5f,
                                  .dropout_attention = 0.1f,
                                  .dropout_embedding = 0.1f,
                                  .dropout_residual = 0.1f,
                                  .initializer_range = 0.02f};
    json_error_t why;

    if (n > MAX_CONFIG_BYTES)
        return error_set(err, -EINVAL, "%zu bytes are too many for a config.json (at most 16 MiB)", n);
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &why);
    if (!root)
        return error_set(err, -EINVAL, "not JSON at line %d, column %d: %s", why.line, why.column, why.text);
    int rc = json_is_object(root) ? read_object(&config, root, err)
                                  : error_set(err, -EINVAL, "not a JSON object, as a config.json must be");
    json_decref(root);
    if (rc == 0)
        *out = config;
    return rc;
}

/* The shortest of two spellings that mean the same numbers: 15 digits, else all 17. */
static char *print(const json_t *config)
{
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    json_t *back = text ? json_loads(text, 0, NULL) : NULL;
    const bool same = json_equal(back, config);

    json_decref(back);
    if (same)
        return text;
    free(text);
    return json_dumps(config, JSON_INDENT(2));
}

/* An id beyond the vocabulary names a token that is not there; and of an id that is not said, transformers takes
 * GPT-2's, 50256, for granted. Returns whether something was changed. */
static bool drop_foreign_ids(json_t *config)
{
    static const char *const ids[] = {"bos_token_id", "eos_token_id"};
    enum { GPT2_END = 50256 };
    const json_t *size = json_object_get(config, "vocab_size");
    bool changed = false;

    for (size_t i = 0; json_is_integer(size) && i < sizeof ids / sizeof *ids; i++) {
        const json_t *id = json_object_get(config, ids[i]);
        const json_int_t value = id ? json_integer_value(id) : GPT2_END;
        if ((!id || json_is_integer(id)) && value >= json_integer_value(size))
            changed = json_object_set_new(config, ids[i], json_null()) == 0 || changed;
    }
    return changed;
}

char *model_config_print(const char *text, size_t n, enum number_type type)
{
    const char *name = type == NUMBER_BF16 ? "bfloat16" : "float32";
    json_t *config = json_loadb(text, n, 0, NULL);
    const char *said = json_string_value(json_object_get(config, "torch_dtype"));
    const bool changed = drop_foreign_ids(config);
    char *out = NULL;

    if (!changed && said && strcmp(said, name) == 0 && !json_object_get(config, "dtype")) {
        out = strndup(text, n);
    } else if (json_is_object(config) && json_object_set_new(config, "torch_dtype", json_string(name)) == 0) {
        json_object_del(config, "dtype");
        out = print(config);
    }
    json_decref(config);
    return out;
}

static int check_count(const char *name, uint32_t value, uint32_t most, struct error *err)
{
    if (value >= 1 && value <= most)
        return 0;
    return error_set(err, -EINVAL, "%s is %u: it must be from 1 to %u", name, value, most);
}

int model_config_check(const struct model_config *config, struct error *err)
{
    const struct {
        const char *name;
        uint32_t value, most;
    } counts[] = {
        {"n_layer", config->n_layers, 4096},
        {"n_head", config->n_heads, 65536},
        {"n_embd", config->width, 65536},
        {"n_inner", config->inner_width, 1 << 20},
        {"n_positions", config->n_positions, 1 << 24},
        {"vocab_size", config->vocabulary, 1 << 24},
    };
    const struct {
        const char *name;
        float value;
    } dropouts[] = {{"attn_pdrop", config->dropout_attention},
                    {"embd_pdrop", config->dropout_embedding},
                    {"resid_pdrop", config->dropout_residual}};
    int rc;

    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++)
        if ((rc = check_count(counts[i].name, counts[i].value, counts[i].most, err)) != 0)
            return rc;
    if (config->width % config->n_heads != 0)
        return error_set(err, -EINVAL, "n_embd is %u: it must be a multiple of n_head, which is %u", config->width,
                         config->n_heads);
    if (config->activation != MODEL_GELU_NEW && config->activation != MODEL_GELU && config->activation != MODEL_RELU)
        return error_set(err, -EINVAL, "activation_function is unknown");
    for (size_t i = 0; i < sizeof dropouts / sizeof dropouts[0]; i++)
        if (!(dropouts[i].value >= 0 && dropouts[i].value < 1)) /* false for NaN */
            return error_set(err, -EINVAL, "%s is %g: it must be at least 0 and less than 1", dropouts[i].name,
                             (double)dropouts[i].value);
    if (!(config->norm_epsilon > 0 && config->norm_epsilon <= 1))
        return error_set(err, -EINVAL, "layer_norm_epsilon is %g: it must be greater than 0 and at most 1",
                         (double)config->norm_epsilon);
    if (!(config->initializer_range >= 0 && config->initializer_range <= 1))
        return error_set(err, -EINVAL, "initializer_range is %g: it must be from 0 to 1",
                         (double)config->initializer_range);
    return 0;
}
