/* Norms come after the sums. So a block's output is normed already, no norm follows the last block, and the head has a
 * map and a norm of its own before the table that it shares with the tokens. Each dropout of a block has a site of its
 * own: two of one site would drop the same elements.
 *
 * Files that were converted from TensorFlow call a norm's weight and bias gamma and beta; transformers renames them
 * when it reads them, and so do we. */
#include "proto/model/encoder_family.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *const encoder_positions[] = {"absolute", NULL};

/* Keys of other heads, and what old files say of the pooler. */
const char *const encoder_harmless[] = {"directionality", "pooler_*", NULL};
const char *const encoder_unsupported[] = {"add_cross_attention", "cross_attention_hidden_size", NULL};

void encoder_complete(struct model_config *c, uint32_t row)
{
    struct encoder_config *e = encoder_edit(c);

    e->first_row = row < e->n_rows ? row : e->n_rows;
    c->n_positions = e->n_rows - e->first_row;
    if (isnan(e->dropout_classifier))
        e->dropout_classifier = e->dropout_hidden;
}

int encoder_check(const struct model_config *c, struct error *err)
{
    if (encoder_width(c) % c->n_heads != 0)
        return error_set(err, -EINVAL, "hidden_size is %u: it must be a multiple of num_attention_heads, which is %u",
                         encoder_width(c), c->n_heads);
    if (c->n_positions == 0)
        return error_set(
            err, -EINVAL,
            "max_position_embeddings is %u: positions begin at pad_token_id + 1, so it must be at least %u",
            encoder_of(c)->n_rows, encoder_of(c)->pad < UINT32_MAX - 1 ? encoder_of(c)->pad + 2 : UINT32_MAX);
    if (encoder_of(c)->is_decoder)
        return error_set(err, -EINVAL,
                         "is_decoder is true: this is not supported, it must be false, as every token sees all others");
    return 0;
}

int encoder_check_tied(const struct model_config *c, struct error *err)
{
    if (!c->tied && !c->n_labels)
        return error_set(err, -EINVAL, "tie_word_embeddings is false: this is not supported for %s, it must be true",
                         c->family->model_type);
    return encoder_check(c, err);
}

static const char *const positions[] = {"embeddings.position_ids", "embeddings.token_type_ids", NULL};
static const char *const others[] = {"pooler.dense.weight", "pooler.dense.bias", "cls.seq_relationship.weight",
                                     "cls.seq_relationship.bias", NULL};

bool encoder_is_other(const char *name)
{
    return family_lists(others, name);
}

bool encoder_is_mask(const char *name)
{
    return family_lists(positions, name) || encoder_is_other(name);
}

bool encoder_old_name(char *out, size_t size, const char *name)
{
    const char *dot = strrchr(name, '.');
    const size_t n = dot ? (size_t)(dot - name) : 0;
    static const char norm[] = "LayerNorm";

    if (n < sizeof norm - 1 || strncmp(dot - (sizeof norm - 1), norm, sizeof norm - 1) != 0)
        return false;
    snprintf(out, size, "%.*s.%s", (int)n, name, strcmp(dot, ".weight") == 0 ? "gamma" : "beta");
    return true;
}

static struct program_norm_options encoder_norm_of(const struct model_config *c)
{
    return (struct program_norm_options){.epsilon = c->norm_epsilon, .bias = true};
}

static struct program_linear_options encoder_linear_of(const struct model_config *c)
{
    return (struct program_linear_options){.deviation = c->initializer_range, .bias = true, .out_in = true};
}

static struct program_dropout encoder_dropout_of(const struct model_config *c, enum random_site site)
{
    return (struct program_dropout){.p = encoder_of(c)->dropout_hidden, .site = site};
}

void encoder_write_embedding(struct program *p, const struct model_config *c)
{
    static const struct encoder_embedding names = {"embeddings.LayerNorm", NULL};

    encoder_write_embedding_of(p, c, &names);
}

void encoder_write_embedding_of(struct program *p, const struct model_config *c, const struct encoder_embedding *names)
{
    const struct program_norm_options norm = encoder_norm_of(c);
    const struct program_linear_options linear = encoder_linear_of(c);
    const struct program_dropout dropout = encoder_dropout_of(c, RANDOM_DROPOUT_EMBEDDING);
    const int x = program_begin(p, c->width);
    const int e = program_drop(p, program_norm(p, x, names->norm, &norm), &dropout);

    program_output(p, "",
                   encoder_width(c) == c->width ? e : program_linear(p, e, names->map, encoder_width(c), &linear));
}

void encoder_write_block(struct program *p, const struct model_config *c)
{
    static const struct encoder_block names = {.query = "attention.self.query",
                                               .key = "attention.self.key",
                                               .value = "attention.self.value",
                                               .output = "attention.output.dense",
                                               .attention_norm = "attention.output.LayerNorm",
                                               .up = "intermediate.dense",
                                               .down = "output.dense",
                                               .mlp_norm = "output.LayerNorm"};

    encoder_write_block_of(p, c, &names);
}

/* Norms after: r = norm(x + attention(x)), y = norm(r + mlp(r)). */
void encoder_write_block_of(struct program *p, const struct model_config *c, const struct encoder_block *names)
{
    const uint32_t width = encoder_width(c);
    const struct program_norm_options norm = encoder_norm_of(c);
    const struct program_linear_options linear = encoder_linear_of(c);
    const struct program_part qkv[] = {{names->query, width}, {names->key, width}, {names->value, width}};
    const struct program_attention_options attention = {
        .n_heads = c->n_heads,
        .full = true,
        .scale = 1 / sqrtf((float)(width / c->n_heads)),
        .dropout = {.p = encoder_of(c)->dropout_attention, .site = RANDOM_DROPOUT_ATTENTION},
    };
    const struct program_dropout none = {0}, dropout = encoder_dropout_of(c, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const struct program_dropout after_attention = names->keeps_attention ? none : dropout;
    const struct program_dropout after_mlp = encoder_dropout_of(c, RANDOM_DROPOUT_RESIDUAL_MLP);

    const int x = program_begin(p, width);
    const int a = program_attention(p, program_linears(p, x, qkv, 3, &linear), &attention);
    const int h = program_linear(p, a, names->output, width, &linear);
    const int r = program_norm(p, program_add(p, x, h, &after_attention), names->attention_norm, &norm);
    const int u = program_linear(p, r, names->up, c->inner_width, &linear);
    const int m = program_linear(p, program_activation(p, u, c->activation), names->down, width, &linear);
    program_end(p, program_norm(p, program_add(p, r, m, &after_mlp), names->mlp_norm, &norm));
}

void encoder_write_head(struct program *p, const struct model_config *c, const struct encoder_head *names,
                        enum model_activation activation)
{
    const struct program_norm_options norm = encoder_norm_of(c);
    const struct program_linear_options linear = encoder_linear_of(c);
    const int x = program_begin(p, encoder_width(c));
    const int g = program_activation(p, program_linear(p, x, names->dense, c->width, &linear), activation);

    program_output(p, "", program_norm(p, g, names->norm, &norm));
    program_logit_bias(p, names->bias, c->vocabulary);
}

void encoder_write_classifier(struct program *p, const struct model_config *c, const struct encoder_classifier *names)
{
    const struct program_linear_options linear = encoder_linear_of(c);
    const float drop = encoder_of(c)->dropout_classifier;
    const struct program_dropout before = {.p = names->drops_input ? drop : 0, .site = RANDOM_DROPOUT_CLASSIFIER_INPUT};
    const struct program_dropout after = {.p = drop, .site = RANDOM_DROPOUT_CLASSIFIER};
    const int x = program_drop(p, program_begin(p, c->width), &before);
    const int t = program_activation(p, program_linear(p, x, names->dense, c->width, &linear), names->activation);

    program_end(p, program_drop(p, t, &after));
    program_logit_bias(p, names->bias, c->n_labels);
}

const struct family_table encoder_tables[] = {
    {"embeddings.word_embeddings", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)},
    {"embeddings.position_embeddings", MODEL_BY_POSITION, .rows = FAMILY_OWN(struct encoder_config, n_rows),
     .first = FAMILY_OWN(struct encoder_config, first_row)},
    {"embeddings.token_type_embeddings", MODEL_BY_SEGMENT, .rows = FAMILY_OWN(struct encoder_config, n_segments)},
    {0},
};
