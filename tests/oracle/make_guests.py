"""A Llama of which some blocks are those of other models (proto/model/guests.h), by PyTorch: tests/fixtures/guests.

    python paths.py make_guests.py

Block 1 is a GPT-2's, by transformers; block 2 a Llama's with other heads and another activation; block 4 a Qwen 3's, with
norms of heads, whose blocks slide from block 3 on. Blocks 0 and 3 are the model's own.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import math

import torch
from torch import nn
from transformers import GPT2Config
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

import own

OF_GPT2 = dict(model_type="gpt2", n_head=3, n_inner=40, activation_function="gelu_new", layer_norm_epsilon=1e-6,
               attn_pdrop=0.0, resid_pdrop=0.0)
OF_LLAMA = dict(model_type="llama", hidden_size=24, num_attention_heads=6, num_key_value_heads=1, head_dim=6,
                intermediate_size=20, hidden_act="gelu", rms_norm_eps=1e-3, rope_theta=50.0)
OF_QWEN3 = dict(model_type="qwen3", architectures=["Qwen3ForCausalLM"], hidden_size=24, num_hidden_layers=99,
                num_attention_heads=2, num_key_value_heads=2, head_dim=14, intermediate_size=36, hidden_act="silu",
                rms_norm_eps=1e-6, vocab_size=1000, rope_theta=1000.0, use_sliding_window=True, sliding_window=4,
                max_window_layers=3)
CONFIG = dict(model_type="eps_llama", architectures=["LlamaForCausalLM"], num_hidden_layers=5, hidden_size=24,
              num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=28, hidden_act="silu",
              rope_theta=100.0, vocab_size=61, max_position_embeddings=256, rms_norm_eps=1e-5,
              tie_word_embeddings=False,
              eps_blocks=[dict(blocks=[1], config=OF_GPT2), dict(blocks=[2], config=OF_LLAMA),
                          dict(blocks=[4], config=OF_QWEN3)])
ACTIVATIONS = dict(silu=nn.functional.silu, gelu=nn.functional.gelu)


class Gated(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(24, c.intermediate_size, bias=False) for _ in range(2))
        self.down_proj, self.activation = nn.Linear(c.intermediate_size, 24, bias=False), ACTIVATIONS[c.hidden_act]

    def forward(self, x):
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class Llama(nn.Module):
    """Of a Llama's config, or a Qwen 3's."""

    def __init__(self, c, window=None):
        super().__init__()
        self.input_layernorm, self.post_attention_layernorm = (own.RMSNorm(24, c.rms_norm_eps) for _ in range(2))
        self.self_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, c.rope_theta, window,
                                       c.model_type == "qwen3")
        if c.model_type == "qwen3":
            self.self_attn.q_norm.epsilon = self.self_attn.k_norm.epsilon = c.rms_norm_eps
        self.mlp = Gated(c)

    def forward(self, x, fused):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        return x + self.mlp(self.post_attention_layernorm(x))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        numbers = {k: v for k, v in OF_GPT2.items() if k != "model_type"}
        self.block = GPT2Block(GPT2Config(n_embd=24, attn_implementation="eager", **numbers), layer_idx=1)

    def forward(self, x, fused):
        self.block.attn.config._attn_implementation = "sdpa" if fused else "eager"
        n = x.shape[1]
        mask = torch.full((n, n), -math.inf, dtype=x.dtype).triu(1)[None, None]
        out = self.block(x, attention_mask=mask)
        return out[0] if isinstance(out, tuple) else out


class Model(own.Model):
    """With the names that eps gives."""

    def named_parameters(self, *args, **kwargs):
        return ((t.replace("model.layers.1.block.", "transformer.h.1."), p)
                for t, p in super().named_parameters(*args, **kwargs))


def block(c, number):
    guests = {1: GPT2, 2: lambda: Llama(own.Config(OF_LLAMA)), 4: lambda: Llama(own.Config(OF_QWEN3), 4)}
    return guests[number]() if number in guests else Llama(c)


if __name__ == "__main__":
    torch.set_num_threads(1)
    own.make_one(own.Family(CONFIG, block, [], named="guests", model=Model, gradient_sample=200), "guests")
