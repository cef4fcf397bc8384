"""Gradients and 20 training steps of two encoder-decoders with dynamic convolutions, from the equations of arXiv:1901.10430 in
plain PyTorch: tests/fixtures/{dynamic_conv,dynamic_conv_gated,frozen_dynamic_conv,drop_dynamic_conv,
order_dynamic_conv,sparse_conv}.

    python make_dynamic_conv.py

dynamic_conv has one table for sources, targets and the head; dynamic_conv_gated a table for each, gated linear units, and a
token of padding, whose rows the input does not train. The first SOURCE tokens of a row are its source, of which
1 + (first id) % SOURCE count; the others are the decoder's inputs. Kernels are of several sizes, some longer than a source,
one even. A convolution is a sum over shifted copies, or in fp32's other way a product with a matrix of the filters' taps.
In sparse_conv the largest half of each block's matrices is trained, and the others are 0. What is frozen: the source's first block, some maps of others. Made with torch 2.15.0 on the CPU.
"""
import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn

import make_t5
import own
import training

SOURCE = 10
BASE = dict(model_type="dynamic_conv", architectures=["DynamicConvForConditionalGeneration"], is_encoder_decoder=True,
            d_model=20, num_heads=2, ffn_dim=26, encoder_layers=3, decoder_layers=2, encoder_kernel_sizes=[3, 7, 3],
            decoder_kernel_sizes=[4, 11], decoder_start_token_id=0, eos_token_id=1, vocab_size=61, layer_norm_eps=1e-5,
            dropout=0.0, attention_dropout=0.0, activation_dropout=0.0, weight_dropout=0.0)
MODELS = {"dynamic_conv": dict(BASE, glu=False, tie_word_embeddings=True),
          "dynamic_conv_gated": dict(BASE, glu=True, tie_word_embeddings=False, source_vocab_size=70, pad_token_id=3)}
FROZEN = ["encoder.layers.0.*", "encoder.layers.1.conv.weight", "decoder.layers.0.linear1.*", "decoder.layers.1.conv.weight"]


def convolve(x, scores, heads, before, fused):
    """x (rows, tokens, width); scores (rows, tokens, heads * taps): y_t = sum over k of softmax(scores_t)_k x_(t+k-before)."""
    rows, tokens, width = x.shape
    filters = scores.view(rows, tokens, heads, -1).softmax(-1)
    taps, by_head = filters.shape[-1], x.view(rows, tokens, heads, width // heads)
    if fused:
        matrix = x.new_zeros(rows, heads, tokens, tokens)
        for k in range(taps):
            t = torch.arange(tokens)
            t = t[(t + k >= before) & (t + k < before + tokens)]
            matrix[:, :, t, t + k - before] = filters[:, t, :, k].transpose(1, 2)
        return (matrix @ by_head.transpose(1, 2)).transpose(1, 2).reshape(x.shape)
    padded = F.pad(by_head, (0, 0, 0, 0, before, taps - 1 - before))
    return sum(filters[..., k, None] * padded[:, k:k + tokens] for k in range(taps)).reshape(x.shape)


class Linear(nn.Module):
    """scores = x W, with rows head * taps + tap."""

    def __init__(self, width, columns):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(columns, width))


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.width = c.num_heads, c.d_model // c.num_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(c.d_model, c.d_model) for _ in range(4))

    def forward(self, x, source, mask, fused):
        def heads(y):
            return y.view(*y.shape[:2], self.heads, self.width).transpose(1, 2)

        q, k, v, seen = heads(self.q_proj(x)), heads(self.k_proj(source)), heads(self.v_proj(source)), mask[:, None, None]
        if fused:
            a = F.scaled_dot_product_attention(q, k, v, seen)
        else:
            a = (q @ k.transpose(2, 3) / math.sqrt(self.width)).masked_fill(~seen, -math.inf).softmax(-1) @ v
        return self.out_proj(a.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    scale = 1  # of its branches; 0: a step drops it

    def __init__(self, c, taps, decodes):
        super().__init__()
        d = c.d_model
        self.heads, self.glu, self.before = c.num_heads, c.glu, taps - 1 if decodes else taps // 2
        self.linear1, self.conv = nn.Linear(d, 2 * d if c.glu else d), Linear(d, c.num_heads * taps)
        self.linear2, self.conv_layer_norm = nn.Linear(d, d), nn.LayerNorm(d, c.layer_norm_eps)
        if decodes:
            self.encoder_attn, self.encoder_attn_layer_norm = Attention(c), nn.LayerNorm(d, c.layer_norm_eps)
        self.fc1, self.fc2 = nn.Linear(d, c.ffn_dim), nn.Linear(c.ffn_dim, d)
        self.final_layer_norm = nn.LayerNorm(d, c.layer_norm_eps)

    def forward(self, x, fused, mask, source=None):
        """mask (rows, tokens of the source): which are there."""
        if self.scale == 0:
            return x
        h = self.linear1(x)
        if self.glu:
            gate, h = h.chunk(2, -1)
            h = gate.sigmoid() * h
        if source is None:
            h = h.masked_fill(~mask[..., None], 0)
        h = convolve(h, h @ self.conv.weight.T, self.heads, self.before, fused)
        x = self.conv_layer_norm(x + self.scale * self.linear2(h))
        if source is not None:
            x = self.encoder_attn_layer_norm(x + self.scale * self.encoder_attn(x, source, mask, fused))
        return self.final_layer_norm(x + self.scale * self.fc2(self.fc1(x).relu()))


class Stack(nn.Module):
    def __init__(self, c, kernels, decodes):
        super().__init__()
        self.layers = nn.ModuleList(Block(c, taps, decodes) for taps in kernels)


class Model(nn.Module):
    order = None  # of its blocks, the encoder's first; None: as they are

    def __init__(self, family, fused):
        super().__init__()
        c, self.fused = own.Config(family.config), fused
        pad = family.config.get("pad_token_id")
        self.embed_tokens = nn.Embedding(c.vocab_size, c.d_model, pad)
        if "source_vocab_size" in family.config:
            self.source_embed_tokens = nn.Embedding(c.source_vocab_size, c.d_model, pad)
        self.encoder = Stack(c, c.encoder_kernel_sizes, False)
        self.decoder = Stack(c, c.decoder_kernel_sizes, True)
        if not c.tie_word_embeddings:
            self.output_projection = nn.Linear(c.d_model, c.vocab_size, bias=False)

    def named_parameters(self, *args, **kwargs):
        return ((t, p) for t, p in super().named_parameters(*args, **kwargs) if p.requires_grad)

    def embed(self, table, ids):
        """Rows of the table by d_model^1/2, and fixed positions in separate halves."""
        half = table.embedding_dim // 2
        w = torch.exp(-torch.arange(half, dtype=torch.float64) * math.log(10000) / (half - 1))
        angles = torch.arange(ids.shape[1], dtype=torch.float64)[:, None] * w
        return table(ids) * math.sqrt(table.embedding_dim) + torch.cat((angles.sin(), angles.cos()), 1).to(table.weight.dtype)

    def forward(self, ids):
        """Logits of all tokens of rows; of the source's they are zero."""
        mask = torch.arange(SOURCE) < 1 + ids[:, :1] % SOURCE
        source = self.embed(getattr(self, "source_embed_tokens", self.embed_tokens), ids[:, :SOURCE])
        first, order = len(self.encoder.layers), self.order or range(len(self.encoder.layers) + len(self.decoder.layers))
        for i in order[:first]:
            source = self.encoder.layers[i](source, self.fused, mask)
        x = self.embed(self.embed_tokens, ids[:, SOURCE:])
        for i in order[first:]:
            x = self.decoder.layers[i - first](x, self.fused, mask, source)
        head = self.output_projection if hasattr(self, "output_projection") else self.embed_tokens
        logits = x @ head.weight.T
        return torch.cat((torch.zeros(len(ids), SOURCE, logits.shape[2], dtype=logits.dtype), logits), 1)


def drop(model, scales):
    for block, scale in zip((*model.encoder.layers, *model.decoder.layers), scales, strict=True):
        block.scale = scale


def arrange(model, order):
    model.order = order


# In each step, within both stacks.
ORDERS = [[2, 0, 1, 4, 3], [1, 0, 2, 3, 4], [0, 1, 2, 4, 3], [2, 1, 0, 3, 4], [0, 1, 2, 3, 4]] * 4


def family_of(name):
    tied = (lambda model: model.embed_tokens.weight) if MODELS[name]["tie_word_embeddings"] else None
    return own.Family(MODELS[name], None, FROZEN, gradient_sample=50, sample=25, model=Model, generates=False,
                      source=SOURCE, tied=tied, frozen_prefix="", named=name, n_steps=training.N_STEPS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in MODELS:
        own.make_one(family_of(which), which)
    own.make_one(family_of("dynamic_conv"), "frozen_dynamic_conv", FROZEN)
    own.make_one(dataclasses.replace(family_of("dynamic_conv"), drop=drop, **make_t5.dropping("layers")), "drop_dynamic_conv")
    own.make_one(dataclasses.replace(family_of("dynamic_conv"), arrange=arrange, orders=ORDERS), "order_dynamic_conv")
    own.make_one(dataclasses.replace(family_of("dynamic_conv"), sparse=0.5), "sparse_conv")
