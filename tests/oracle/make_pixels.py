"""A model of a family that only tests have, by PyTorch: tests/fixtures/{pixels,frozen_pixels}.

    python make_pixels.py

There is no table of tokens: the three bytes of a token's id, normalised, are mapped to the stream. What is frozen: that map,
and a block.

Made with torch 2.15.0 on the CPU.
"""
import torch
from torch import nn

import own

CONFIG = dict(model_type="pixels", architectures=["PixelsForCausalLM"], num_hidden_layers=3, hidden_size=20,
              num_attention_heads=2, num_key_value_heads=1, head_dim=6, intermediate_size=26, vocab_size=61,
              max_position_embeddings=256, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
FROZEN = ["stem.*", "layers.1.*"]
MEAN, DEVIATION = (0.125, 0.25, 0), (0.0625, 0.5, 1)


class Model(own.Model):
    def __init__(self, family, fused):
        super().__init__(family, fused)
        del self.model["embed_tokens"]
        self.model["stem"] = nn.Linear(3, family.config["hidden_size"])

    def forward(self, ids):
        dtype = self.lm_head.weight.dtype
        bytes = torch.stack([ids >> shift & 255 for shift in (0, 8, 16)], -1).to(torch.float64)
        x = self.model.stem(((bytes / 255 - torch.tensor(MEAN)) / torch.tensor(DEVIATION)).to(dtype))
        for layer in self.model.layers:
            x = layer(x, self.fused)
        return self.lm_head(self.model.norm(x))


if __name__ == "__main__":
    own.make(own.Family(CONFIG, own.Block, FROZEN, gradient_sample=50, sample=25, model=Model, generates=False))
