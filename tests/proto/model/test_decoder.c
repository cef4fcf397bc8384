/* Frequencies of rotary positions, and the factors on what is rotated, as transformers 5.24 computes them in float64:
 * ROPE_INIT_FUNCTIONS of a model of 2 heads of 16. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "proto/model/decoder_family.h"
#include "proto/operation/operation.h"

#include <string.h>

#define MODEL                                                                                                          \
    "{'model_type': 'llama', 'hidden_size': 32, 'num_attention_heads': 2, 'num_hidden_layers': 1, "                    \
    "'intermediate_size': 8, 'vocab_size': 50, 'max_position_embeddings': 64, 'rope_parameters': {'rope_theta': 100, "

enum { PAIRS = 8 };

static const struct {
    const char *rope;
    double factor, frequencies[PAIRS];
} scaled[] = {
    /* Columns between are rounded outward, and the factor is 0.1 ln 4 + 1. */
    {"'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'truncate': true",
     1.138629436111989,
     {1, 0.3514633282439682, 0.079056941504209485, 0.044456985250973066, 0.025, 0.014058533129758726,
      0.0079056941504209478, 0.0044456985250973073}},
    /* Not rounded; a ratio of two. */
    {"'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'beta_fast': 4.0, 'beta_slow': 0.25, "
     "'truncate': false, 'mscale': 0.75, 'mscale_all_dim': 1.5",
     0.9139264205839,
     {1, 0.45773915512635555, 0.19858352015369318, 0.078593609324342173, 0.025595245891924211, 0.014058533129758726,
      0.0079056941504209478, 0.0044456985250973073}},
    /* A factor of null is 64/32; one of cosines and sines is given. */
    {"'rope_type': 'yarn', 'factor': null, 'original_max_position_embeddings': 32, 'beta_fast': 1.0, "
     "'beta_slow': 0.125, 'attention_factor': 1.25",
     1.25,
     {1, 0.56234132519034907, 0.31622776601683794, 0.16004514690350302, 0.08, 0.039363892763324436,
      0.018973665961010275, 0.0088913970501946146}},
    /* Of rows of up to 16 tokens; the factor is sqrt(1 + log 4 / log 16). */
    {"'rope_type': 'longrope', 'original_max_position_embeddings': 16, 'short_factor': [1, 1.5, 2, 2.5, 3, 3.5, 4, "
     "4.5], 'long_factor': [2, 4, 6, 8, 10, 12, 14, 16]",
     1.224744871391589,
     {1, 0.3748942167935661, 0.15811388300841897, 0.071131176401556903, 1 / 30., 0.016066895005438543,
      0.0079056941504209478, 0.0039517320223087168}},
    /* Plain up to max_position_embeddings. */
    {"'rope_type': 'dynamic', 'factor': 4.0",
     1,
     {1, 0.56234132519034907, 0.31622776601683794, 0.17782794100389226, 0.1, 0.056234132519034905, 0.031622776601683791,
      0.017782794100389229}},
};

/* The first rotation of a block. */
static struct program_rotation rotation_of(struct program *p, const struct model_config *c)
{
    const struct program_operation *op = p->operations;

    decoder_write_block(p, c, 0);
    while (op->kind != &operation_rope)
        op++;
    return op->rope;
}

TEST_EACH(frequencies_and_factors_are_those_of_transformers, COUNT(scaled))
{
    static struct program p;
    struct model_config c;
    struct error err;
    char text[1024];

    snprintf(text, sizeof text, MODEL "%s}}", scaled[_i].rope);
    const char *json = quoted(text);
    ck_assert_msg(model_config_parse(&c, json, strlen(json), &err) == 0, "%s", err.text);
    const struct program_rotation rope = rotation_of(&p, &c);
    ck_assert_float_eq_tol(rope.factor, (float)scaled[_i].factor, 1e-7f); /* the number is fp32 */
    for (int j = 0; j < PAIRS; j++)
        ck_assert_double_eq_tol(p.numbers[rope.frequencies + j], scaled[_i].frequencies[j], 1e-15);
}

/* A row of 17 tokens is longer than the 16 that were trained: the other list, sqrt(1 + log 2 / log 16). */
TEST(long_rows_have_frequencies_of_their_own)
{
    static const double want[PAIRS] = {0.5,  0.14058533129758727,   0.052704627669472988,  0.022228492625486533,
                                       0.01, 0.0046861777099195751, 0.0022587697572631284, 0.0011114246312743268};
    static struct program p;
    struct model_config c;
    struct error err;
    const char *json =
        quoted(MODEL "'rope_type': 'longrope', 'original_max_position_embeddings': 16, 'factor': 2.0, "
                     "'short_factor': [1, 1.5, 2, 2.5, 3, 3.5, 4, 4.5], 'long_factor': [2, 4, 6, 8, 10, 12, "
                     "14, 16]}}");

    ck_assert_msg(model_config_parse(&c, json, strlen(json), &err) == 0, "%s", err.text);
    const struct program_rotation rope = rotation_of(&p, &c);
    ck_assert_uint_eq(rope.n_short, 16);
    ck_assert_float_eq_tol(rope.factor, 1.118033988749895f, 1e-7f);
    for (int j = 0; j < PAIRS; j++)
        ck_assert_double_eq_tol(p.numbers[rope.long_frequencies + j], want[j], 1e-15);
}

/* transformers looks for truncate beside the kinds of block, where no file of these families can have it. */
#define NESTED                                                                                                         \
    "'hidden_size': 32, 'num_attention_heads': 4, 'num_hidden_layers': 4, 'intermediate_size': 8, 'vocab_size': 50, "  \
    "'pad_token_id': null, 'max_position_embeddings': 64, 'rope_parameters': {'full_attention': {'rope_theta': 100, "  \
    "'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'truncate': "
#define SLIDING "}, 'sliding_attention': {'rope_theta': 100, 'rope_type': 'default'}}}"

static const struct {
    const char *text, *ignored;
    bool unrounded;
} truncates[] = {
    {"{'model_type': 'olmo3', " NESTED "false" SLIDING, "rope_parameters.full_attention.truncate", false},
    {"{'model_type': 'gemma3_text', " NESTED "false" SLIDING, "rope_parameters.full_attention.truncate", false},
    {"{'model_type': 'modernbert', " NESTED "false" SLIDING, "rope_parameters.full_attention.truncate", false},
    {"{'model_type': 'olmo3', " NESTED "true" SLIDING, NULL, false}, /* as it is computed anyway */
    {"{'model_type': 'olmo3', " NESTED "null" SLIDING, NULL, false},
    {MODEL "'rope_type': 'yarn', 'factor': 4.0, 'original_max_position_embeddings': 16, 'truncate': false}}", NULL,
     true},
};

TEST_EACH(a_truncate_where_transformers_does_not_look_is_ignored_and_noted, COUNT(truncates))
{
    struct model_config c;
    struct error err;
    const char *json = quoted(truncates[_i].text);

    ck_assert_msg(model_config_parse(&c, json, strlen(json), &err) == 0, "%s", err.text);
    ck_assert_int_eq(decoder_of(&c)->rope.unrounded, truncates[_i].unrounded);
    if (truncates[_i].ignored)
        ck_assert_str_eq(c.ignored, truncates[_i].ignored);
    else
        ck_assert_ptr_null(c.ignored);
}
