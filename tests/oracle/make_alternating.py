"""A model of the family that only tests have, by PyTorch: tests/fixtures/{alternating,frozen_alternating}.

    python make_alternating.py

The family is defined in tests/families/alternating.c: its blocks are of three kinds. What is frozen: all of one kind of
blocks, one block of another, some tensors of a third.

Made with torch 2.15.0 on the CPU.
"""
from torch import nn

import own

CONFIG = dict(model_type="alternating", architectures=["AlternatingForCausalLM"], num_hidden_layers=7, hidden_size=24,
              num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=28,
              wide_intermediate_size=60, sliding_window=5, window_key_value_heads=1, window_head_dim=10,
              rope_theta=10000.0, rope_local_base_freq=100.0, vocab_size=61, max_position_embeddings=256,
              hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
FROZEN = ["layers.2.*", "layers.6.*", "layers.4.*", "layers.3.mlp.gate_proj.*"]


class Attending(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        self.input_layernorm, self.self_attn = own.RMSNorm(c.hidden_size, c.rms_norm_eps), attention
        self.post_attention_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = own.MLP(c, c.intermediate_size, False)

    def forward(self, x, fused):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        return x + self.mlp(self.post_attention_layernorm(x))


class Wide(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.mlp_norm = nn.LayerNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = own.MLP(c, c.wide_intermediate_size, True)

    def forward(self, x, fused):
        return x + self.mlp(self.mlp_norm(x))


def block(c, number):
    if number % 2:
        return Wide(c)
    if number % 4:
        return Attending(c, own.Attention(c, c.window_key_value_heads, c.window_head_dim, c.rope_local_base_freq,
                                          c.sliding_window, True))
    return Attending(c, own.Attention(c, c.num_key_value_heads, c.head_dim, c.rope_theta))


# In each step: kinds of block change places.
ORDERS = [[6, 5, 4, 3, 2, 1, 0], [1, 0, 3, 2, 5, 4, 6], [0, 1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6, 0, 1],
          [5, 0, 6, 2, 1, 4, 3]] * 2


def arrange(model, order):
    model.order = order


if __name__ == "__main__":
    own.make(own.Family(CONFIG, block, FROZEN))
    own.make_one(own.Family(CONFIG, block, FROZEN, orders=ORDERS, arrange=arrange, generates=False), "order_alternating")
