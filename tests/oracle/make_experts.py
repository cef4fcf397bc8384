"""A model of a family that only tests have, by PyTorch: tests/fixtures/{experts,frozen_experts}.

    python make_experts.py

In tests/families/experts.c each of a block's eight experts is a layer. What is frozen: all below the third expert of the
lowest block, that is, the lowest that is trained is in the midst of a block; a block's last expert; the attention of
another.

Made with torch 2.15.0 on the CPU.
"""
from torch import nn

import own

EXPERTS = 8
CONFIG = dict(model_type="experts", architectures=["ExpertsForCausalLM"], num_hidden_layers=2, hidden_size=20,
              num_attention_heads=2, num_key_value_heads=1, head_dim=6, intermediate_size=10, vocab_size=61,
              max_position_embeddings=256, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
FROZEN = ["embed_tokens.*", "layers.0.input_layernorm.*", "layers.0.self_attn.*", "layers.0.experts.[017].*",
          "layers.1.self_attn.*"]


class Expert(own.MLP):
    def __init__(self, c):
        super().__init__(c, c.intermediate_size, False)
        self.norm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x):
        return super().forward(self.norm(x))


class Block(nn.Module):
    def __init__(self, c, _):
        super().__init__()
        self.input_layernorm = nn.LayerNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, None)
        self.experts = nn.ModuleList(Expert(c) for _ in range(EXPERTS))

    def forward(self, x, fused):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        return x + sum(expert(x) for expert in self.experts)


if __name__ == "__main__":
    own.make(own.Family(CONFIG, Block, FROZEN, gradient_sample=50, sample=25))
