"""A model of a family that only tests have, by PyTorch: tests/fixtures/{crossing,frozen_crossing}.

    python make_crossing.py

The first tokens of each row are encoded by themselves, and all tokens attend to them. What is frozen: the encoder, whose
input's gradient nobody needs then but the embedding; some tensors of a decoder.

Made with torch 2.15.0 on the CPU.
"""
from torch import nn

import own

CONFIG = dict(model_type="crossing", architectures=["CrossingForCausalLM"], num_hidden_layers=3, hidden_size=20,
              num_attention_heads=2, num_key_value_heads=1, head_dim=6, intermediate_size=26, vocab_size=61,
              context_length=5, max_position_embeddings=256, hidden_act="silu", rms_norm_eps=1e-5,
              tie_word_embeddings=False)
FROZEN = ["layers.0.*", "layers.1.cross_attn.*", "layers.2.self_attn.*"]


class Block(nn.Module):
    """Block 0 encodes; the others decode."""

    def __init__(self, c, number):
        super().__init__()
        encodes = number == 0
        self.input_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, None, full=encodes)
        if not encodes:
            self.cross_attn_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
            self.cross_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, None, full=True)
        self.post_attention_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = own.MLP(c, c.intermediate_size, False)

    def forward(self, x, fused, context=None):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        if context is not None:
            x = x + self.cross_attn(self.cross_attn_layernorm(x), fused, context)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(own.Model):
    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        encoder, *decoders = self.model.layers
        context = encoder(x[:, :CONFIG["context_length"]], self.fused)
        for layer in decoders:
            x = layer(x, self.fused, context)
        return self.lm_head(self.model.norm(x))


if __name__ == "__main__":
    own.make(own.Family(CONFIG, Block, FROZEN, gradient_sample=50, sample=25, model=Model, generates=False))
