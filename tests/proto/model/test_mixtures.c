/* Mixtures of experts: their numbers as transformers 5.24 fills them in, their tensors, what of a config is refused or left
 * out, and which linear maps are experts' and routers'. */
#include "tests/kit/command.h"
#include "tests/kit/test.h"
#include "tests/proto/model/config_texts.h"

#include "proto/model/adapter.h"
#include "proto/model/family.h"
#include "proto/model/model.h"
#include "proto/model/decoder_moe.h"

#include <errno.h>
#include <string.h>

#define MIXTRAL   DECODER("mixtral")
#define OLMOE     DECODER("olmoe")
#define QWEN2_MOE DECODER("qwen2_moe")
#define QWEN3_MOE DECODER("qwen3_moe")
#define GLM4_MOE  DECODER("glm4_moe") ", 'num_key_value_heads': 2"
#define MINIMAX   DECODER("minimax_m2") ", 'num_key_value_heads': 2"
#define LFM2_MOE  DECODER("lfm2_moe") ", 'num_key_value_heads': 2"
#define ROUTED    ", 'n_routed_experts': 8, 'num_experts_per_tok': 2"
#define FEW       ", 'num_experts': 5, 'num_experts_per_tok': 2"
#define QWEN3_5_MOE                                                                                                    \
    "{'model_type': 'qwen3_5_moe_text', 'hidden_size': 96, 'num_hidden_layers': 3, 'num_attention_heads': 4, "         \
    "'vocab_size': 61, 'moe_intermediate_size': 150"

static int parse(struct model_config *out, const char *text, struct error *err)
{
    const char *json = quoted(text);

    return model_config_parse(out, json, strlen(json), err);
}

static void mixture_open(struct model *out, const char *text)
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, text, &err) == 0, "%s", err.text);
    ck_assert_msg(model_init(out, &c, &err) == 0, "%s", err.text);
}

/* Configurations of three blocks. */
static const struct {
    const char *text;
    uint32_t n_experts, n_chosen, inner, shared;
    unsigned dense, sliding; /* bit i: block i */
    bool normalises;
    uint32_t window;
} mixtures[] = {
    {MIXTRAL ", 'num_key_value_heads': 2}", 8, 2, 150, 0, 0, 0, true, 0},
    {MIXTRAL ", 'num_key_value_heads': 2, 'num_local_experts': 3, 'num_experts_per_tok': 3, 'sliding_window': 7, "
             "'router_jitter_noise': 0.0}",
     3, 3, 150, 0, 0, 7, true, 7},
    {MIXTRAL ", 'num_key_value_heads': 2, 'num_experts': 4}", 4, 2, 150, 0, 0, 0, true, 0},
    {OLMOE "}", 64, 8, 150, 0, 0, 0, false, 0},
    {OLMOE FEW ", 'norm_topk_prob': true, 'clip_qkv': null}", 5, 2, 150, 0, 0, 0, true, 0},
    {QWEN3_MOE "}", 128, 8, 768, 0, 0, 0, false, 0},
    {QWEN3_MOE FEW
     ", 'moe_intermediate_size': 20, 'norm_topk_prob': true, 'mlp_only_layers': [1], 'sliding_window': 9, "
     "'use_sliding_window': true, 'max_window_layers': 1}",
     5, 2, 20, 0, 2, 7, true, 9},
    {QWEN3_MOE FEW ", 'decoder_sparse_step': 2, 'mlp_only_layers': null, 'sliding_window': 9}", 5, 2, 768, 0, 5, 0,
     false, 0},
    {QWEN2_MOE ", 'num_key_value_heads': 4}", 60, 4, 1408, 5632, 0, 0, false, 0},
    {QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'shared_expert_intermediate_size': 30, 'use_sliding_window': true, "
                   "'sliding_window': 9}",
     5, 2, 1408, 30, 0, 5, false, 9},
    {QWEN2_MOE FEW
     ", 'num_key_value_heads': 4, 'use_sliding_window': true, 'sliding_window': 9, 'max_window_layers': 2}",
     5, 2, 1408, 5632, 0, 1, false, 9},
    {QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'use_sliding_window': false, 'sliding_window': 0}", 5, 2, 1408, 5632, 0,
     0, false, 0},
    {QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'sliding_window': null, 'mlp_only_layers': null}", 5, 2, 1408, 5632, 0,
     0, false, 0},
    {QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'use_sliding_window': true, 'sliding_window': 9, 'layer_types': "
                   "['full_attention', 'sliding_attention', 'full_attention']}",
     5, 2, 1408, 5632, 0, 2, false, 9},
};

TEST_EACH(numbers_of_mixtures_are_those_of_transformers, COUNT(mixtures))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, mixtures[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_moe_config *own = decoder_moe_of(&c);
    ck_assert_uint_eq(own->n_experts, mixtures[_i].n_experts);
    ck_assert_uint_eq(own->n_chosen, mixtures[_i].n_chosen);
    ck_assert_uint_eq(own->expert_width ? own->expert_width : c.inner_width, mixtures[_i].inner);
    ck_assert_uint_eq(own->shared_width, mixtures[_i].shared);
    ck_assert_int_eq(own->normalises, mixtures[_i].normalises);
    ck_assert_uint_eq(own->decoder.window, mixtures[_i].window);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(c.family->kind_of_block(&c, i), (mixtures[_i].sliding >> i & 1 ? DECODER_SLIDES : 0) |
                                                              (mixtures[_i].dense >> i & 1 ? DECODER_MOE_DENSE : 0));
}

/* As Qwen3_5MoeTextConfig of transformers 5.24 fills it in; weights sum to 1 whatever the file says. */
static const struct {
    const char *more;
    uint32_t n_experts, n_chosen, shared;
    unsigned attends; /* bit i: block i */
} qwen3_5_moes[] = {
    {"", 256, 8, 512, 0},
    {FEW ", 'shared_expert_intermediate_size': 30, 'full_attention_interval': 2", 5, 2, 30, 2},
    {FEW ", 'layer_types': ['full_attention', 'linear_attention', 'full_attention'], 'mlp_only_layers': []", 5, 2, 512,
     5},
};

TEST_EACH(numbers_of_qwen3_5_s_mixtures_are_those_of_transformers, COUNT(qwen3_5_moes))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, print(QWEN3_5_MOE "%s}", qwen3_5_moes[_i].more), &err) == 0, "%s", err.text);
    const struct decoder_moe_config *own = decoder_moe_of(&c);
    ck_assert_uint_eq(own->n_experts, qwen3_5_moes[_i].n_experts);
    ck_assert_uint_eq(own->n_chosen, qwen3_5_moes[_i].n_chosen);
    ck_assert_uint_eq(own->shared_width, qwen3_5_moes[_i].shared);
    ck_assert(own->normalises && own->expert_width == 0 && c.inner_width == 150 && own->decoder.norm_offset);
    ck_assert(own->decoder.n_kv_heads == 2 && own->decoder.head_width == 256 && own->decoder.rope.share == 0.25f);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(c.family->kind_of_block(&c, i), !(qwen3_5_moes[_i].attends >> i & 1));
}

static void check_shape(const struct model *model, const char *name, uint64_t rows, uint64_t columns)
{
    const struct model_tensor *t = model_find(model, name);

    ck_assert_msg(t != NULL, "%s is missing", name);
    ck_assert_uint_eq(t->shape[0], rows);
    ck_assert_uint_eq(t->shape[1], columns);
    ck_assert(t->n_dims == 2 && t->decays);
}

/* ---- by sigmoids ---- */

static const struct {
    const char *text;
    uint32_t n_experts, n_chosen, inner, n_shared, n_groups, n_chosen_groups;
    unsigned dense; /* bit i: block i */
    bool normalises;
    float epsilon, scale;
} sigmoids[] = {
    {LFM2_MOE "}", 32, 4, 1792, 0, 0, 0, 3, true, 1e-6f, 1},
    {LFM2_MOE FEW ", 'num_dense_layers': 0, 'moe_intermediate_size': 20, 'norm_topk_prob': false, "
                  "'routed_scaling_factor': 2.5}",
     5, 2, 20, 0, 0, 0, 0, false, 1e-6f, 2.5f},
    {GLM4_MOE "}", 128, 8, 1408, 1, 1, 1, 1, true, 1e-20f, 1},
    {GLM4_MOE ROUTED ", 'first_k_dense_replace': 0, 'n_group': 4, 'topk_group': 2, 'n_shared_experts': 3, "
                     "'num_nextn_predict_layers': 1, 'moe_intermediate_size': 20}",
     8, 2, 20, 3, 4, 2, 0, true, 1e-20f, 1},
    {MINIMAX ", 'rotary_dim': 64}", 256, 8, 150, 0, 0, 0, 0, true, 0, 1},
};

TEST_EACH(numbers_of_routers_by_sigmoid_are_those_of_transformers, COUNT(sigmoids))
{
    struct model_config c;
    struct error err;

    ck_assert_msg(parse(&c, sigmoids[_i].text, &err) == 0, "%s", err.text);
    const struct decoder_moe_config *own = decoder_moe_of(&c);
    ck_assert(own->sigmoid && own->normalises == sigmoids[_i].normalises);
    ck_assert_uint_eq(own->n_experts, sigmoids[_i].n_experts);
    ck_assert_uint_eq(own->n_chosen, sigmoids[_i].n_chosen);
    ck_assert_uint_eq(own->expert_width ? own->expert_width : c.inner_width, sigmoids[_i].inner);
    ck_assert_uint_eq(own->n_shared, sigmoids[_i].n_shared);
    ck_assert_uint_eq(own->n_groups, sigmoids[_i].n_groups);
    ck_assert_uint_eq(own->n_chosen_groups, sigmoids[_i].n_chosen_groups);
    ck_assert(own->epsilon == sigmoids[_i].epsilon && own->scale == sigmoids[_i].scale);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(c.family->kind_of_block(&c, i), sigmoids[_i].dense >> i & 1 ? DECODER_MOE_DENSE : 0);
}

/* transformers: int(128 * (rotary_dim / 128)), and all of them without either key. */
TEST(minimax_rotates_as_many_columns_as_rotary_dim_says)
{
    struct model_config c;
    struct error err;

    for (uint32_t n = 2; n <= 128; n += 2) {
        ck_assert_int_eq(parse(&c, print(MINIMAX ", 'rotary_dim': %u}", n), &err), 0);
        ck_assert_uint_eq((uint32_t)(128 * (double)decoder_of(&c)->rope.share), n);
    }
    ck_assert_int_eq(parse(&c, MINIMAX "}", &err), 0);
    ck_assert_float_eq(decoder_of(&c)->rope.share, 1);
}

/* No gradient reaches it, no step moves it, and in whatever type a job has its weights, it is relayed in fp32: else
 * other experts would be chosen. It is no parameter, as transformers counts. */
TEST(a_choices_bias_is_fixed_and_in_fp32)
{
    static const struct {
        const char *text, *name;
        uint64_t n, n_parameters; /* of two blocks with experts and one without: by transformers */
    } rows[] = {
        {LFM2_MOE FEW ", 'num_dense_layers': 1, 'moe_intermediate_size': 20}",
         "model.layers.2.feed_forward.expert_bias", 5, 205776},
        {GLM4_MOE ROUTED ", 'moe_intermediate_size': 20}", "model.layers.2.mlp.gate.e_score_correction_bias", 8,
         272544},
        {MINIMAX ", 'num_local_experts': 6, 'num_experts_per_tok': 2}",
         "model.layers.2.block_sparse_moe.e_score_correction_bias", 6, 1265184},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        struct model model;
        mixture_open(&model, rows[i].text);
        const struct model_tensor *t = model_find(&model, rows[i].name);
        ck_assert_msg(t != NULL, "%s is missing", rows[i].name);
        ck_assert(t->fixed && t->frozen && t->saved && t->n_dims == 1 && t->n == rows[i].n);
        ck_assert_uint_eq(model.n_parameters, rows[i].n_parameters);
        ck_assert_uint_eq(model.n_trained, rows[i].n_parameters);
        for (const struct model_piece *p = model.pieces; p < model.pieces + model.n_pieces; p++)
            ck_assert_int_eq(p->form, model.tensors[p->tensor].fixed ? FORM_FP32 : FORM_VALUES);
        model_free(&model);
    }
}

TEST(experts_without_a_bias_are_chosen_by_scores_alone)
{
    struct model model;

    mixture_open(&model, LFM2_MOE FEW ", 'use_expert_bias': false}");
    ck_assert_ptr_null(model_find(&model, "model.layers.2.feed_forward.expert_bias"));
    check_shape(&model, "model.layers.2.feed_forward.gate.weight", 5, 96);
    model_free(&model);
}

TEST(every_token_has_glm_s_shared_experts_without_a_gate)
{
    struct model model;

    mixture_open(&model, GLM4_MOE ROUTED ", 'moe_intermediate_size': 20, 'n_shared_experts': 3, 'use_qk_norm': true}");
    check_shape(&model, "model.layers.1.mlp.shared_experts.gate_proj.weight", 60, 96);
    check_shape(&model, "model.layers.2.mlp.shared_experts.down_proj.weight", 96, 60);
    check_shape(&model, "model.layers.0.mlp.gate_proj.weight", 150, 96);
    ck_assert_ptr_nonnull(model_find(&model, "model.layers.0.self_attn.q_norm.weight"));
    ck_assert_ptr_null(model_find(&model, "model.layers.0.mlp.gate.weight"));
    model_free(&model);
}

/* Each expert's matrices are tensors of their own, as files have them, and are decayed and coded as matrices. */
TEST(experts_are_tensors_of_files)
{
    static const struct {
        const char *text, *router, *gate, *up, *down;
    } rows[] = {
        {MIXTRAL ", 'num_key_value_heads': 2, 'num_local_experts': 5}", "block_sparse_moe.gate",
         "block_sparse_moe.experts.%u.w1", "block_sparse_moe.experts.%u.w3", "block_sparse_moe.experts.%u.w2"},
        {OLMOE FEW "}", "mlp.gate", "mlp.experts.%u.gate_proj", "mlp.experts.%u.up_proj", "mlp.experts.%u.down_proj"},
        {QWEN3_MOE FEW ", 'moe_intermediate_size': 150}", "mlp.gate", "mlp.experts.%u.gate_proj",
         "mlp.experts.%u.up_proj", "mlp.experts.%u.down_proj"},
        {QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'moe_intermediate_size': 150}", "mlp.gate",
         "mlp.experts.%u.gate_proj", "mlp.experts.%u.up_proj", "mlp.experts.%u.down_proj"},
        {QWEN3_5_MOE FEW "}", "mlp.gate", "mlp.experts.%u.gate_proj", "mlp.experts.%u.up_proj",
         "mlp.experts.%u.down_proj"},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        struct model model;
        mixture_open(&model, rows[i].text);
        for (unsigned layer = 0; layer < 3; layer++) {
            check_shape(&model, print("model.layers.%u.%s.weight", layer, rows[i].router), 5, 96);
            for (unsigned expert = 0; expert < 5; expert++) {
                const char *const stems[] = {rows[i].gate, rows[i].up, rows[i].down};
                for (int k = 0; k < 3; k++) {
                    char stem[64];
                    const char *number = strchr(stems[k], '%');
                    snprintf(stem, sizeof stem, "%.*s%u%s", (int)(number - stems[k]), stems[k], expert, number + 2);
                    check_shape(&model, print("model.layers.%u.%s.weight", layer, stem), k < 2 ? 150 : 96,
                                k < 2 ? 96 : 150);
                }
            }
            ck_assert_ptr_null(model_find(&model, print("model.layers.%u.mlp.experts.5.gate_proj.weight", layer)));
        }
        model_free(&model);
    }
}

TEST(every_token_has_qwen2_s_shared_expert_by_a_gate_of_one_number)
{
    struct model model;

    mixture_open(&model, QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'shared_expert_intermediate_size': 30, "
                                       "'mlp_only_layers': [2]}");
    check_shape(&model, "model.layers.0.mlp.shared_expert.gate_proj.weight", 30, 96);
    check_shape(&model, "model.layers.1.mlp.shared_expert.up_proj.weight", 30, 96);
    check_shape(&model, "model.layers.1.mlp.shared_expert.down_proj.weight", 96, 30);
    check_shape(&model, "model.layers.0.mlp.shared_expert_gate.weight", 1, 96);
    check_shape(&model, "model.layers.2.mlp.gate_proj.weight", 150, 96);
    ck_assert_ptr_null(model_find(&model, "model.layers.2.mlp.shared_expert_gate.weight"));
    model_free(&model);
}

/* ---- refused, left out ---- */

static const struct {
    const char *text, *why;
} refused[] = {
    {MIXTRAL ", 'num_key_value_heads': 2, 'output_router_logits': true}",
     "output_router_logits is true and router_aux_loss_coef is 0.001: the load-balance loss is not computed here"},
    {MIXTRAL ", 'num_key_value_heads': 2, 'router_jitter_noise': 0.1}", "router_jitter_noise is 0.1"},
    {OLMOE ", 'clip_qkv': 8.0}", "clip_qkv is 8"},
    {QWEN3_MOE ", 'num_experts': 8, 'num_experts_per_tok': 9}", "num_experts_per_tok is 9"},
    {QWEN3_MOE ", 'num_experts': 64, 'num_experts_per_tok': 33}", "num_experts_per_tok is 33"},
    {QWEN3_MOE ", 'num_experts': 5000}", "num_experts is 5000"},
    {QWEN2_MOE ", 'num_key_value_heads': 4, 'hidden_act': 'gelu'}", "hidden_act is not silu"},
    {QWEN2_MOE ", 'num_key_value_heads': 4, 'use_sliding_window': true, 'sliding_window': 0}",
     "use_sliding_window is true, and sliding_window is null or 0"},
    {QWEN3_MOE ", 'n_group': 2}", "n_group"},
    {GLM4_MOE ROUTED ", 'n_group': 3}", "n_group is 3"},
    {GLM4_MOE ROUTED ", 'n_group': 8}", "n_group is 8"},
    {GLM4_MOE ROUTED ", 'n_group': 4, 'topk_group': 5}", "topk_group is 5"},
    {GLM4_MOE ", 'n_routed_experts': 8, 'num_experts_per_tok': 3, 'n_group': 4, 'topk_group': 1}", "topk_group is 1"},
    {MINIMAX ", 'router_jitter_noise': 0.1}", "router_jitter_noise is 0.1"},
    {MINIMAX ", 'output_router_logits': true}", "output_router_logits is true"},
    {LFM2_MOE ", 'layer_types': ['conv']}", "layer_types has 1 entries"},
    {QWEN3_5_MOE ", 'norm_topk_prob': false}", "norm_topk_prob"},
    {QWEN3_5_MOE ", 'output_router_logits': true}", "output_router_logits is true"},
};

TEST_EACH(what_is_not_computed_of_mixtures_is_refused_by_its_key, COUNT(refused))
{
    struct model_config c;
    struct error err;

    ck_assert_int_eq(parse(&c, refused[_i].text, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, refused[_i].why) != NULL, "%s", err.text);
}

TEST(a_coefficient_of_the_balance_loss_is_left_out_with_a_note)
{
    static const struct {
        const char *text;
        bool left_out;
    } rows[] = {
        {QWEN3_MOE "}", true},
        {QWEN3_MOE ", 'router_aux_loss_coef': 0.0}", false},
        {QWEN3_MOE ", 'router_aux_loss_coef': 0.0, 'output_router_logits': true}", false},
        {OLMOE ", 'router_aux_loss_coef': 0.5, 'output_router_logits': false}", true},
    };

    for (int i = 0; i < COUNT(rows); i++) {
        struct model_config c;
        struct error err;
        ck_assert_msg(parse(&c, rows[i].text, &err) == 0, "%s", err.text);
        const char *note = c.family->left_out(&c);
        ck_assert_int_eq(note != NULL, rows[i].left_out);
        ck_assert(!note || strstr(note, "router_aux_loss_coef in config.json has no effect"));
    }
}

/* ---- linear maps ---- */

struct roles {
    unsigned n[3];
};

static int count_role(void *data, const struct model_linear *linear)
{
    struct roles *roles = data;
    const char *name = print("%.*s.weight", (int)linear->n, linear->name);
    const bool router = strstr(name, "mlp.gate.") != NULL, expert = strstr(name, ".experts.") != NULL;

    ck_assert_int_eq(linear->role, expert ? LINEAR_EXPERTS : router ? LINEAR_ROUTER : LINEAR_PLAIN);
    roles->n[linear->role]++;
    if (expert)
        ck_assert(linear->n_experts == 5 &&
                  strcmp(linear->parts, strstr(name, "gate_up_proj.") ? "gate_proj,up_proj" : "down_proj") == 0);
    return 0;
}

/* Of 2 sparse blocks and a dense one: 4 maps of attention in each, 3 of the dense MLP, 4 beside Qwen 2's experts, which
 * are two maps of 5 experts. */
TEST(maps_of_experts_and_routers_are_told_from_others)
{
    struct roles roles = {{0}}, shared = {{0}};
    struct model model;

    mixture_open(&model, QWEN3_MOE FEW ", 'mlp_only_layers': [1]}");
    ck_assert_int_eq(model_each_linear(&model, count_role, &roles), 0);
    model_free(&model);
    ck_assert(roles.n[LINEAR_PLAIN] == 15 && roles.n[LINEAR_ROUTER] == 2 && roles.n[LINEAR_EXPERTS] == 2 * 2);
    mixture_open(&model, QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'mlp_only_layers': [1]}");
    ck_assert_int_eq(model_each_linear(&model, count_role, &shared), 0);
    model_free(&model);
    ck_assert(shared.n[LINEAR_PLAIN] == 23 && shared.n[LINEAR_ROUTER] == 2 && shared.n[LINEAR_EXPERTS] == 2 * 2);
}

/* In 4 bits scores would choose other experts. */
TEST(a_frozen_base_has_experts_in_few_bits_and_routers_as_they_are)
{
    struct model model;
    struct error err;
    unsigned n_coded = 0;

    mixture_open(&model, QWEN2_MOE FEW ", 'num_key_value_heads': 4, 'mlp_only_layers': [1]}");
    ck_assert_int_eq(model_freeze(&model, "layers.*", model_base_of(FORM_NF4, NUMBER_BF16), &err), 0);
    for (const struct model_piece *p = model.pieces; p < model.pieces + model.n_pieces; p++) {
        const char *name = model.tensors[p->tensor].name;
        ck_assert(!strstr(name, "mlp.gate.weight") || p->form == FORM_VALUES);
        ck_assert(!strstr(name, ".experts.") || p->form == FORM_NF4);
        n_coded += p->form == FORM_NF4;
    }
    ck_assert_uint_eq(n_coded, 3 * 4 + 3 + 2 * (5 * 3 + 4));
    model_free(&model);
}

/* One expert of a block cannot be trained without the others: their gradients are one array. */
TEST(experts_of_a_block_are_frozen_together)
{
    struct model model;
    struct error err;

    mixture_open(&model, QWEN3_MOE FEW "}");
    ck_assert_int_eq(model_freeze(&model, "layers.0.mlp.experts.*", (struct model_base){0}, &err), 0);
    model_free(&model);
    mixture_open(&model, QWEN3_MOE FEW "}");
    ck_assert_int_eq(model_freeze(&model, "layers.0.mlp.experts.3.*", (struct model_base){0}, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "are trained, or frozen, together"));
    model_free(&model);
}
