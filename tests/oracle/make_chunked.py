"""A model of a family that only tests have, by PyTorch: tests/fixtures/{chunked,frozen_chunked}.

    python make_chunked.py

In tests/families/chunked.c an MLP comes in four layers; here it is one product up and one down, of weights that are put
together. What is frozen: a block in the middle, two chunks, and some tensors of another.

Made with torch 2.15.0 on the CPU.
"""
import torch
import torch.nn.functional as F
from torch import nn

import own

CHUNKS = 4
CONFIG = dict(model_type="chunked", architectures=["ChunkedForCausalLM"], num_hidden_layers=3, hidden_size=24,
              num_attention_heads=4, num_key_value_heads=2, head_dim=8, intermediate_size=56, rope_theta=10000.0,
              vocab_size=61, max_position_embeddings=256, hidden_act="gelu", rms_norm_eps=1e-5,
              tie_word_embeddings=False)
FROZEN = ["layers.1.*", "layers.0.mlp.[02].*", "layers.2.mlp.3.up_proj.*"]


class Chunk(nn.Module):
    """Weights alone; the last one has the bias of the whole."""

    def __init__(self, c, number):
        super().__init__()
        inner = c.intermediate_size // CHUNKS
        self.up_proj = nn.Linear(c.hidden_size, inner)
        self.down_proj = nn.Linear(inner, c.hidden_size, bias=number == CHUNKS - 1)


class Block(nn.Module):
    def __init__(self, c, _):
        super().__init__()
        self.input_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, c.rope_theta)
        self.post_attention_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = nn.ModuleList(Chunk(c, n) for n in range(CHUNKS))

    def forward(self, x, fused):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        up = F.linear(self.post_attention_layernorm(x), torch.cat([m.up_proj.weight for m in self.mlp]),
                      torch.cat([m.up_proj.bias for m in self.mlp]))
        return x + F.linear(F.gelu(up), torch.cat([m.down_proj.weight for m in self.mlp], 1), self.mlp[-1].down_proj.bias)


if __name__ == "__main__":
    own.make(own.Family(CONFIG, Block, FROZEN, gradient_sample=100, sample=50))
