/* Of all that makes routing differ from family to family, what stands here is softmax over all experts, or sigmoids with
 * a bias and groups, the best of them, and weights that are normalised or not. What a config asks for besides is refused
 * by its key, as it would change what is computed without a word. */
#include "proto/model/decoder_moe.h"
#include "proto/operation/call/experts.h"

#include <errno.h>
#include <math.h>

const struct program_experts_names decoder_moe_names = {.gate = "mlp.experts.%u.gate_proj.weight",
                                                        .up = "mlp.experts.%u.up_proj.weight",
                                                        .down = "mlp.experts.%u.down_proj.weight"};

const struct family_joined decoder_moe_joined[] = {
    {"mlp.experts.gate_up_proj", {"mlp.experts.%u.gate_proj.weight", "mlp.experts.%u.up_proj.weight"}},
    {"mlp.experts.down_proj", {"mlp.experts.%u.down_proj.weight"}},
    {0},
};

uint32_t decoder_moe_kind_of_block(const struct model_config *c, uint32_t index)
{
    const struct decoder_moe_config *own = decoder_moe_of(c);
    const bool dense = own->n_experts == 0 || (index + 1) % own->step != 0 || index < own->n_dense ||
                       config_layers_has(&own->dense, index);

    return (config_layers_has(&own->decoder.sliding, index) ? DECODER_SLIDES : 0) | (dense ? DECODER_MOE_DENSE : 0);
}

static int decoder_moe_check_losses(const struct decoder_moe_config *own, struct error *err)
{
    if (own->balances && own->balance != 0)
        return error_set(err, -EINVAL,
                         "output_router_logits is true and router_aux_loss_coef is %g: the load-balance loss is not "
                         "computed here; set output_router_logits to false",
                         (double)own->balance);
    if (own->jitter != 0)
        return error_set(err, -EINVAL, "router_jitter_noise is %g: it must be 0", (double)own->jitter);
    if (own->clip != 0)
        return error_set(err, -EINVAL, "clip_qkv is %g: it must be null", (double)own->clip);
    return 0;
}

/* A group's score is that of two experts; and what is not in the best groups is never chosen. */
static int decoder_moe_check_groups(const struct decoder_moe_config *own, struct error *err)
{
    const uint32_t n = own->n_groups;

    if (!isfinite(own->scale))
        return error_set(err, -EINVAL, "routed_scaling_factor is %g: it must be finite", (double)own->scale);
    if (n == 0 || own->n_experts == 0)
        return 0;
    if (n > DEVICE_EXPERT_GROUPS || own->n_experts % n != 0 || own->n_experts / n < 2)
        return error_set(err, -EINVAL,
                         "n_group is %u: it must be at most %d, and divide the %u experts into groups of 2 or more", n,
                         DEVICE_EXPERT_GROUPS, own->n_experts);
    if (own->n_chosen_groups > n || own->n_chosen > own->n_experts / n * own->n_chosen_groups)
        return error_set(err, -EINVAL,
                         "topk_group is %u: it must be at most n_group, %u, and these groups have the %u experts of a "
                         "token (num_experts_per_tok)",
                         own->n_chosen_groups, n, own->n_chosen);
    return 0;
}

int decoder_moe_check(const struct model_config *c, struct error *err)
{
    const struct decoder_moe_config *own = decoder_moe_of(c);

    if (own->n_experts > DEVICE_EXPERTS)
        return error_set(err, -EINVAL, "num_experts is %u: it must be at most %d", own->n_experts, DEVICE_EXPERTS);
    if (own->n_experts > 0 && (own->n_chosen > own->n_experts || own->n_chosen > DEVICE_CHOSEN))
        return error_set(err, -EINVAL, "num_experts_per_tok is %u: it must be from 1 to %d, and at most the %u experts",
                         own->n_chosen, DEVICE_CHOSEN, own->n_experts);
    if (own->n_experts > 0 && c->activation != MODEL_SILU)
        return error_set(err, -EINVAL, "hidden_act is not silu: experts are computed with silu alone");
    int rc = decoder_moe_check_losses(own, err);
    if (rc == 0)
        rc = decoder_moe_check_groups(own, err);
    return rc ? rc : decoder_check(c, err);
}

const char *decoder_moe_left_out(const struct model_config *c)
{
    const struct decoder_moe_config *own = decoder_moe_of(c);

    return own->n_experts > 0 && own->balance != 0 ? "router_aux_loss_coef in config.json has no effect: no "
                                                     "load-balance loss is added, as transformers adds "
                                                     "none while output_router_logits is false (TRL's trainers add one)"
                                                   : NULL;
}

/* Of the experts that every token has; -1: there are none. The backward of experts writes x's gradient, so that other
 * readers of x stand before them. */
static int decoder_moe_shared(struct program *p, const struct model_config *c, int x)
{
    static const struct decoder_gated_names gated = {"mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj",
                                                     "mlp.shared_expert.down_proj"},
                                            bare = {"mlp.shared_experts.gate_proj", "mlp.shared_experts.up_proj",
                                                    "mlp.shared_experts.down_proj"};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct decoder_moe_config *own = decoder_moe_of(c);

    if (own->shared_width == 0)
        return own->n_shared > 0 ? decoder_gated_as(p, c, x, own->n_shared * own->expert_width, &bare) : -1;
    const int made = decoder_gated_as(p, c, x, own->shared_width, &gated);
    return program_head_gate(p, made, program_linear(p, x, "mlp.shared_expert_gate", 1, &linear), 1);
}

int decoder_moe_experts(struct program *p, const struct model_config *c, int x, const char *router,
                        const struct program_experts_names *names)
{
    const struct decoder_moe_config *own = decoder_moe_of(c);
    const struct program_linear_options linear = {.deviation = c->initializer_range, .out_in = true};
    const struct program_route_options route = {.n_chosen = own->n_chosen,
                                                .normalises = own->normalises,
                                                .sigmoid = own->sigmoid,
                                                .n_groups = own->n_groups,
                                                .n_chosen_groups = own->n_chosen_groups,
                                                .epsilon = own->epsilon,
                                                .scale = own->scale};
    const int shared = decoder_moe_shared(p, c, x);
    const int scores = program_linear(p, x, router, own->n_experts, &linear);
    const int chosen = program_experts(p, x, scores, own->expert_width ? own->expert_width : c->inner_width, names,
                                       &route, c->initializer_range);

    return shared < 0 ? chosen : program_add(p, chosen, shared, &(struct program_dropout){0});
}

void decoder_moe_write_block(struct program *p, const struct model_config *c, uint32_t kind,
                             const struct decoder_attention *how, const char *router,
                             const struct program_experts_names *names)
{
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind & DECODER_SLIDES, decoder_norm(p, c, x, "input_layernorm"), how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int n = decoder_norm(p, c, r, "post_attention_layernorm");
    const int m = kind & DECODER_MOE_DENSE ? decoder_gated(p, c, n, NULL) : decoder_moe_experts(p, c, n, router, names);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}
