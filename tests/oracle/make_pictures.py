"""A model of a family that only tests have, by PyTorch: tests/fixtures/{pictures,frozen_pictures}.

    python make_pictures.py

The first tokens of each row are the pixels of an image, of which convolutions, a batch norm over the part, and a pool make
features; all tokens attend to them. Weights of convolutions are (out, ky kx c) here, as in units; files have them by channel. What is frozen: the lower
convolution, and some tensors of a decoder.

Made with torch 2.15.0 on the CPU.
"""
from torch import nn

import own

CONFIG = dict(model_type="pictures", architectures=["PicturesForCausalLM"], num_hidden_layers=3, hidden_size=20,
              num_attention_heads=2, num_key_value_heads=1, head_dim=6, intermediate_size=26, vocab_size=61,
              max_position_embeddings=256, hidden_act="silu", rms_norm_eps=1e-5, tie_word_embeddings=False)
FROZEN = ["layers.0.conv1.*", "layers.1.cross_attn.*", "layers.2.self_attn.*"]
HEIGHT, WIDTH = 3, 5


class Convolution(nn.Module):
    def __init__(self, n, groups, stride, bias):
        super().__init__()
        self.weight = nn.Parameter(own.torch.zeros(n, 9 * n // groups))
        self.weight.file_shape = [n, n // groups, 3, 3]
        self.bias = nn.Parameter(own.torch.zeros(n)) if bias else None
        self.groups, self.stride = groups, stride

    def forward(self, x):
        weight = self.weight.view(len(self.weight), 3, 3, -1).permute(0, 3, 1, 2)
        return nn.functional.conv2d(x, weight, self.bias, self.stride, 1, 1, self.groups)


class BatchNorm(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.weight = nn.Parameter(own.torch.ones(c.hidden_size))
        self.bias = nn.Parameter(own.torch.zeros(c.hidden_size))
        self.epsilon = c.rms_norm_eps

    def forward(self, x):
        return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.epsilon)


class Features(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = Convolution(c.hidden_size, 1, 2, False)
        self.batch_norm = BatchNorm(c)
        self.conv2 = Convolution(c.hidden_size, 2, 1, True)

    def forward(self, x):
        x = x.view(len(x), HEIGHT, WIDTH, -1).permute(0, 3, 1, 2)
        x = nn.functional.max_pool2d(self.conv2(self.batch_norm(self.conv1(x)).relu()), 2, 1)
        return x.flatten(2).transpose(1, 2)


class Decoder(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.input_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, None)
        self.cross_attn_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.cross_attn = own.Attention(c, c.num_key_value_heads, c.head_dim, None, full=True)
        self.post_attention_layernorm = own.RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = own.MLP(c, c.intermediate_size, False)

    def forward(self, x, fused, features):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        x = x + self.cross_attn(self.cross_attn_layernorm(x), fused, features)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(own.Model):
    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        features, *decoders = self.model.layers
        y = features(x[:, :HEIGHT * WIDTH])
        for layer in decoders:
            x = layer(x, self.fused, y)
        return self.lm_head(self.model.norm(x))


if __name__ == "__main__":
    own.make(own.Family(CONFIG, lambda c, number: Decoder(c) if number else Features(c), FROZEN, gradient_sample=50,
                        sample=25, model=Model, ways=(("eager", 1), ("sdpa", 1)), generates=False))
