#include "tests/kit/inprocess/programs.h"

#include <math.h>

static float scale_of(const struct programs_shape *s)
{
    return 1 / sqrtf((float)(s->width / s->n_heads));
}

void programs_gpt2(struct program *p, const struct programs_shape *s)
{
    const struct program_norm_options norm = {.epsilon = 1e-5f, .bias = true};
    const struct program_linear_options linear = {.deviation = 0.02f, .bias = true};
    const struct program_attention_options attention = {.n_heads = s->n_heads, .scale = scale_of(s)};
    const struct program_dropout first = {.p = s->dropout, .site = RANDOM_DROPOUT_RESIDUAL_ATTENTION};
    const struct program_dropout second = {.p = s->dropout, .site = RANDOM_DROPOUT_RESIDUAL_MLP};

    const int x = program_begin(p, s->width);
    const int n1 = program_norm(p, x, "ln_1", &norm);
    const int qkv = program_linear(p, n1, "attn.c_attn", 3 * s->width, &linear);
    const int a = program_attention(p, qkv, &attention);
    const int h = program_linear(p, a, "attn.c_proj", s->width, &linear);
    const int r = program_add(p, x, h, &first);
    const int n2 = program_norm(p, r, "ln_2", &norm);
    const int u = program_linear(p, n2, "mlp.c_fc", s->inner, &linear);
    const int g = program_activation(p, u, MODEL_GELU_NEW);
    const int m = program_linear(p, g, "mlp.c_proj", s->width, &linear);
    program_end(p, program_add(p, r, m, &second));
}

/* LlamaDecoderLayer: root mean square norms before, rotary positions of base 10,000, grouped heads, a gated unit of
 * SiLU, no biases. Tensors: norm, q, k, v, o, norm, gate, up, down; weights are (in, out). */
static void write_llama(struct program *p, const struct programs_shape *s)
{
    const uint32_t head = s->width / s->n_heads;
    const struct program_norm_options norm = {.epsilon = 1e-5f, .rms = true};
    const struct program_linear_options linear = {.deviation = 0.02f};
    const struct program_rope_options rope = {.n_heads = s->n_heads + s->n_kv_heads, .head_width = head, .base = 10000};
    const struct program_attention_options attention = {.n_heads = s->n_heads,
                                                        .n_kv_heads = s->n_kv_heads,
                                                        .scale = scale_of(s)};
    const struct program_dropout none = {0};
    const struct program_part qkv[] = {{"self_attn.q_proj", s->width},
                                       {"self_attn.k_proj", s->n_kv_heads * head},
                                       {"self_attn.v_proj", s->n_kv_heads * head}};
    const struct program_part gate_up[] = {{"mlp.gate_proj", s->inner}, {"mlp.up_proj", s->inner}};

    const int x = program_begin(p, s->width);
    const int n1 = program_norm(p, x, "input_layernorm", &norm);
    const int straight = program_linears(p, n1, qkv, 3, &linear);
    const int turned = program_rope(p, straight, &rope);
    const int a = program_attention(p, turned, &attention);
    const int r = program_add(p, x, program_linear(p, a, "self_attn.o_proj", s->width, &linear), &none);
    const int n2 = program_norm(p, r, "post_attention_layernorm", &norm);
    const int h = program_linears(p, n2, gate_up, 2, &linear);
    const int g = program_glu(p, h, MODEL_SILU);
    program_end(p, program_add(p, r, program_linear(p, g, "mlp.down_proj", s->width, &linear), &none));
}

/* BertLayer: norms after, every query sees all keys, GELU by the error function. Queries, keys and values in one
 * map. */
static void write_bert(struct program *p, const struct programs_shape *s)
{
    const struct program_norm_options norm = {.epsilon = 1e-5f, .bias = true};
    const struct program_linear_options linear = {.deviation = 0.02f, .bias = true};
    const struct program_attention_options attention = {.n_heads = s->n_heads, .full = true, .scale = scale_of(s)};
    const struct program_dropout first = {.p = s->dropout, .site = RANDOM_DROPOUT_RESIDUAL_ATTENTION};
    const struct program_dropout second = {.p = s->dropout, .site = RANDOM_DROPOUT_RESIDUAL_MLP};

    const int x = program_begin(p, s->width);
    const int qkv = program_linear(p, x, "attention.self.qkv", 3 * s->width, &linear);
    const int a = program_attention(p, qkv, &attention);
    const int h = program_linear(p, a, "attention.output.dense", s->width, &linear);
    const int n1 = program_norm(p, program_add(p, x, h, &first), "attention.output.LayerNorm", &norm);
    const int u = program_linear(p, n1, "intermediate.dense", s->inner, &linear);
    const int g = program_activation(p, u, MODEL_GELU);
    const int m = program_linear(p, g, "output.dense", s->width, &linear);
    program_end(p, program_norm(p, program_add(p, n1, m, &second), "output.LayerNorm", &norm));
}

void programs_write(struct program *p, int which, const struct programs_shape *shape)
{
    static void (*const write[PROGRAMS])(struct program *, const struct programs_shape *) = {
        [PROGRAMS_GPT2] = programs_gpt2, [PROGRAMS_LLAMA] = write_llama, [PROGRAMS_BERT] = write_bert};

    write[which](p, shape);
}
