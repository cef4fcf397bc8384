#!/usr/bin/env python3
"""What PyTorch's autograd saves of a step of the nets of tools/bench/lean.sh and derived.sh, as its saved-tensor hooks see it:
each storage once, parameters not counted. In fp32, with relus in place where nothing else reads what they overwrite; dynamic convolutions
as sums of shifted copies (tests/oracle/make_dynamic_conv.py), without dropout, which would save more.

    peer_saved.py --net NAME --rows N     wrn-28-2 (images of 32 x 32), dynamic_conv, dynamic_conv-iwslt (pairs of 32 + 32
                                          tokens), gpt2-124m (rows of 512 tokens), or torchvision's resnet-18-32, with its
                                          first convolution of 3 x 3 and no pool, resnet-18-224 and resnet-50-224; prints
                                          parameters and bytes saved

The plain forms of lean.sh are 16 bytes a parameter, or 12 by SGD with momentum, and these bytes of 2 and 4 rows, prolonged.
Needs what tests/oracle/requirements.txt names.
"""
import argparse
import pathlib
import sys
import types

import torch
import torch.nn.functional as F
import torchvision
from torch import nn

sys.path.append(str(pathlib.Path(__file__).parents[2] / "tests" / "oracle"))
import make_dynamic_conv  # noqa: E402


class Residual(nn.Module):
    """WRN-28-2's block: batch norm and relu before each convolution (arXiv:1605.07146)."""

    def __init__(self, n_in, n_out, stride):
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(n_in), nn.BatchNorm2d(n_out)
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, 1, 1, bias=False)
        self.shortcut = None if n_in == n_out else nn.Conv2d(n_in, n_out, 1, stride, bias=False)

    def forward(self, x):
        h = F.relu(self.bn1(x), inplace=True)
        return self.conv2(F.relu(self.bn2(self.conv1(h)), inplace=True)) + (self.shortcut(h) if self.shortcut else x)


class WideResNet(nn.Module):
    def __init__(self):
        super().__init__()
        widths = [16, 32, 64, 128]
        self.conv = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.blocks = nn.ModuleList(Residual(widths[g if i == 0 else g + 1], widths[g + 1], 2 if i == 0 and g > 0 else 1)
                                    for g in range(3) for i in range(4))
        self.bn, self.fc = nn.BatchNorm2d(128), nn.Linear(128, 10)

    def forward(self, x):
        x = self.conv(x)
        for block in self.blocks:
            x = block(x)
        return self.fc(F.relu(self.bn(x), inplace=True).mean((2, 3)))


class GPT2Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj, self.up, self.down = (nn.Linear(a * width, b * width) for a, b in ((1, 3), (1, 1), (1, 4), (4, 1)))

    def forward(self, x):
        q, k, v = (t.view(*x.shape[:2], self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, width, layers, heads, vocabulary, positions):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(positions, width)
        self.blocks, self.ln_f = nn.Sequential(*(GPT2Block(width, heads) for _ in range(layers))), nn.LayerNorm(width)

    def forward(self, ids):
        x = self.blocks(self.wte(ids) + self.wpe(torch.arange(ids.shape[1])))
        return self.ln_f(x) @ self.wte.weight.T


SMALL = dict(d_model=128, num_heads=4, ffn_dim=256, vocab_size=6000, encoder_layers=4, decoder_layers=4,
             encoder_kernel_sizes=[3, 7, 15, 31], decoder_kernel_sizes=[3, 7, 15, 31], layer_norm_eps=1e-5, glu=False,
             tie_word_embeddings=True)
PUBLISHED = dict(SMALL, d_model=512, ffn_dim=1024, vocab_size=6632, source_vocab_size=8848, encoder_layers=7, decoder_layers=6,
                 encoder_kernel_sizes=[3, 7, 15, 31, 31, 31, 31], decoder_kernel_sizes=[3, 7, 15, 31, 31, 31],
                 tie_word_embeddings=False)


def net_of(name, rows):
    """A net, and its loss of these rows."""
    if name == "wrn-28-2":
        net = WideResNet()
        return net, lambda: F.cross_entropy(net(torch.randn(rows, 3, 32, 32)), torch.randint(10, (rows,)))
    if name.startswith("resnet"):
        kind, side = name.rsplit("-", 1)
        net = getattr(torchvision.models, kind.replace("-", ""))(num_classes=10)
        if side == "32":
            net.conv1, net.maxpool = nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.Identity()
        return net, lambda: F.cross_entropy(net(torch.randn(rows, 3, int(side), int(side))), torch.randint(10, (rows,)))
    if name == "gpt2-124m":
        net, vocabulary, tokens = GPT2(768, 12, 12, 50257, 512), 50257, 512
        return net, lambda: F.cross_entropy(net(torch.randint(vocabulary, (rows, tokens))).flatten(0, 1),
                                            torch.randint(vocabulary, (rows * tokens,)))
    make_dynamic_conv.SOURCE = 32
    config = SMALL if name == "dynamic_conv" else PUBLISHED
    net = make_dynamic_conv.Model(types.SimpleNamespace(config=config), fused=False)
    ids, labels = (torch.randint(config["vocab_size"], (rows, n)) for n in (64, 32))
    return net, lambda: F.cross_entropy(net(ids)[:, 32:].flatten(0, 1), labels.flatten(), label_smoothing=0.1)


def main():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--net", choices=("wrn-28-2", "dynamic_conv", "dynamic_conv-iwslt", "gpt2-124m", "resnet-18-32",
                                     "resnet-18-224", "resnet-50-224"), required=True)
    p.add_argument("--rows", type=int, required=True)
    o = p.parse_args()
    torch.manual_seed(1)
    net, loss = net_of(o.net, o.rows)
    own = {q.untyped_storage().data_ptr() for q in net.parameters()}
    saved = {}

    def see(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            saved[storage.data_ptr()] = storage  # which keeps its address from others
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        kept = loss()
    print(f"{sum(q.numel() for q in net.parameters())} parameters, {sum(s.nbytes() for s in saved.values())} bytes saved")
    del kept


if __name__ == "__main__":
    main()
