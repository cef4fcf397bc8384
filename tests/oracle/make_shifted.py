"""A model of a family that only tests have, by PyTorch: tests/fixtures/{shifted,frozen_shifted}.

    python make_shifted.py

Every block adds one vector, model.shift.bias, to what its attention reads. What is frozen: that vector, and a block.

Made with torch 2.15.0 on the CPU.
"""
import torch
from torch import nn

import own

CONFIG = dict(model_type="shifted", architectures=["ShiftedForCausalLM"], num_hidden_layers=3, hidden_size=20,
              num_attention_heads=2, num_key_value_heads=1, head_dim=6, intermediate_size=26, vocab_size=61,
              max_position_embeddings=256, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
FROZEN = ["shift.*", "layers.1.*"]


class Block(own.Block):
    def forward(self, x, fused, shift):
        x = x + self.self_attn(self.input_layernorm(x) + shift, fused)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(own.Model):
    def __init__(self, family, fused):
        super().__init__(family, fused)
        self.model["shift"] = nn.ParameterDict({"bias": torch.zeros(family.config["hidden_size"])})

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for layer in self.model.layers:
            x = layer(x, self.fused, self.model.shift["bias"])
        return self.lm_head(self.model.norm(x))


if __name__ == "__main__":
    own.make(own.Family(CONFIG, Block, FROZEN, gradient_sample=50, sample=25, model=Model))
