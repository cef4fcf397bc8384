"""A model of a family that only tests have, by PyTorch: tests/fixtures/{part_norm,frozen_part_norm}.

    python make_part_norm.py

Each block's MLP reads a batch norm over all tokens of a part, so a minibatch in two parts is another function than in one.
What is frozen: a block's batch norm, all of another.

Made with torch 2.15.0 on the CPU.
"""
import torch
from torch import nn

import own

CONFIG = dict(model_type="part_norm", architectures=["PartNormForCausalLM"], num_hidden_layers=3, hidden_size=20,
              num_attention_heads=2, num_key_value_heads=1, head_dim=6, intermediate_size=26, vocab_size=61,
              max_position_embeddings=256, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
FROZEN = ["layers.0.part_norm.*", "layers.1.*"]


class PartNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(c.hidden_size)), nn.Parameter(torch.zeros(c.hidden_size))
        self.epsilon = c.rms_norm_eps

    def forward(self, x):
        flat = x.reshape(-1, x.shape[-1])
        return nn.functional.batch_norm(flat, None, None, self.weight, self.bias, True, 0.0, self.epsilon).view_as(x)


class Block(nn.Module):
    def __init__(self, c, _):
        super().__init__()
        self.input_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, None)
        self.part_norm = PartNorm(c)
        self.mlp = own.MLP(c, c.intermediate_size, False)

    def forward(self, x, fused):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        return x + self.mlp(self.part_norm(x))


if __name__ == "__main__":
    own.make(own.Family(CONFIG, Block, FROZEN, gradient_sample=50, sample=25, ways=(("eager", 1), ("sdpa", 1)),
                        generates=False))
