#!/usr/bin/env python3
"""Trains GPT-2 or Qwen 3 on random tokens with PyTorch on the CPU and prints its speed: the peer of tools/bench/speed.sh.

    peer_pytorch.py --width 384 --layers 6 --heads 6 --vocabulary 256 --batch 8 --seq 256 --checkpoint on
    peer_pytorch.py --family qwen3 --width 512 --layers 28 --heads 8 --kv 4 --inner 1536 --headwidth 128 ...

Prints one JSON object per variant that this PyTorch supports (eager or fused attention, each form of AdamW, compiled or
not) and, at the end, the fastest again with "best": true. Works with Debian's python3-torch (1.13) and current releases.

The peer runs at its best (peer_environment.py). On AMD, Debian's package is the fairer peer: wheels from PyPI use MKL, which runs there at half of
OpenBLAS's rate (Zen 5, fp32: 190 against 400 GF/s).
"""
import argparse
import itertools
import json
import os
import resource
import statistics
import time

from peer_environment import restart_at_best


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name, default in (("width", 384), ("layers", 6), ("heads", 6), ("vocabulary", 256), ("batch", 8), ("seq", 256),
                          ("threads", os.cpu_count()), ("steps", 5), ("warmup", 2)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--family", choices=("gpt2", "qwen3"), default="gpt2")
    for name, of in (("kv", "heads of keys and values"), ("inner", "the MLP's width"), ("headwidth", "a head's width")):
        p.add_argument("--" + name, type=int, default=0, help="of qwen3: " + of)
    p.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    p.add_argument("--checkpoint", choices=("on", "off"), default="on", help="recompute each block in backward")
    p.add_argument("--attention", choices=("all", "eager", "sdpa"), default="all")
    p.add_argument("--optimizer", choices=("all", "loop", "foreach", "fused"), default="all")
    p.add_argument("--compile", choices=("all", "on", "off"), default="all", help="torch.compile, from 2.0 on")
    return p.parse_args()


options = arguments()
restart_at_best(options.threads)

import torch  # noqa: E402
import torch.nn as nn  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

HAS_SDPA = hasattr(F, "scaled_dot_product_attention")
HAS_COMPILE = hasattr(torch, "compile")


class Block(nn.Module):
    def __init__(self, o, sdpa):
        super().__init__()
        self.heads, self.sdpa = o.heads, sdpa
        self.ln_1, self.ln_2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.c_attn, self.c_proj = nn.Linear(o.width, 3 * o.width), nn.Linear(o.width, o.width)
        self.up, self.down = nn.Linear(o.width, 4 * o.width), nn.Linear(4 * o.width, o.width)
        self.register_buffer("mask", torch.full((o.seq, o.seq), float("-inf")).triu(1), persistent=False)

    def attention(self, x):
        b, t, d = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.c_attn(x).split(d, dim=2))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = ((q * (d // self.heads) ** -0.5) @ k.transpose(2, 3) + self.mask.to(q.dtype)).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).reshape(b, t, d))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        if hasattr(F, "rms_norm"):
            return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


class QwenBlock(nn.Module):
    """Maps of one input are one product: faster than transformers' separate ones."""

    def __init__(self, o, sdpa):
        super().__init__()
        self.heads, self.kv, self.n, self.inner, self.sdpa = o.heads, o.kv, o.headwidth, o.inner, sdpa
        self.ln_1, self.ln_2, self.q_norm, self.k_norm = (RmsNorm(n) for n in (o.width, o.width, o.headwidth, o.headwidth))
        self.qkv = nn.Linear(o.width, (o.heads + 2 * o.kv) * o.headwidth, bias=False)
        self.o_proj = nn.Linear(o.heads * o.headwidth, o.width, bias=False)
        self.gate_up, self.down = nn.Linear(o.width, 2 * o.inner, bias=False), nn.Linear(o.inner, o.width, bias=False)
        angles = torch.outer(torch.arange(o.seq), 1e6 ** (-torch.arange(0, o.headwidth, 2) / o.headwidth)).repeat(1, 2)
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)
        self.register_buffer("mask", torch.full((o.seq, o.seq), float("-inf")).triu(1), persistent=False)

    def rotate(self, x):
        low, high = x.chunk(2, dim=-1)
        return (x * self.cos + torch.cat((-high, low), dim=-1) * self.sin).to(x.dtype)

    def attention(self, x):
        b, t, _ = x.shape
        q, k, v = self.qkv(x).view(b, t, -1, self.n).transpose(1, 2).split((self.heads, self.kv, self.kv), dim=1)
        q, k = self.rotate(self.q_norm(q)).to(v.dtype), self.rotate(self.k_norm(k)).to(v.dtype)
        k, v = (a.repeat_interleave(self.heads // self.kv, dim=1) for a in (k, v))
        if self.sdpa:
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            y = ((q * self.n ** -0.5) @ k.transpose(2, 3) + self.mask.to(q.dtype)).softmax(-1) @ v
        return self.o_proj(y.transpose(1, 2).reshape(b, t, -1))

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        gate, up = self.gate_up(self.ln_2(x)).split(self.inner, dim=-1)
        return x + self.down(F.silu(gate) * up)


class Model(nn.Module):
    """With one table of tokens, for embedding and head."""

    def __init__(self, o, sdpa):
        super().__init__()
        qwen = o.family == "qwen3"
        self.checkpoint = o.checkpoint == "on"
        self.wte, self.wpe = nn.Embedding(o.vocabulary, o.width), None if qwen else nn.Embedding(o.seq, o.width)
        self.blocks = nn.ModuleList((QwenBlock if qwen else Block)(o, sdpa) for _ in range(o.layers))
        self.ln_f = RmsNorm(o.width) if qwen else nn.LayerNorm(o.width)
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        x = self.wte(ids)
        if self.wpe is not None:
            x = x + self.wpe.weight[:ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=not HAS_COMPILE, preserve_rng_state=False) if self.checkpoint else block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())


def make_optimizer(model, kind):
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=3e-4, **{"loop": {"foreach": False}, "foreach": {"foreach": True},
                                                 "fused": {"fused": True}}[kind])


def measure(o, attention, kind, compiled):
    torch.manual_seed(1)
    model = Model(o, attention == "sdpa").train()
    optimizer = make_optimizer(model, kind)
    step = torch.compile(model) if compiled == "on" else model
    tokens, times = torch.randint(o.vocabulary, (o.batch, o.seq + 1)), []
    for _ in range(o.warmup + o.steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.precision == "bf16"):
            loss = step(tokens[:, :-1], tokens[:, 1:])
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - began)
    ms = statistics.median(times[o.warmup:]) * 1e3
    return {"peer": "torch " + torch.__version__, "precision": o.precision, "checkpoint": o.checkpoint == "on",
            "attention": attention, "optimizer": kind, "compile": compiled,
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "threads": torch.get_num_threads(),
            "parameters": sum(p.numel() for p in model.parameters()), "loss": round(loss.item(), 4), "ms": round(ms, 1),
            "best_ms": round(min(times[o.warmup:]) * 1e3, 1), "tokens_per_s": round(o.batch * o.seq / ms * 1e3, 1)}


def makes(kind):
    """True if this PyTorch has that AdamW on the CPU: fused came with 2.4."""
    try:
        make_optimizer(nn.Linear(1, 1), kind)
    except (TypeError, RuntimeError):
        return False
    return True


def ways(o):
    """Compiling takes long and does not affect the optimizer, so it is tried with the newest AdamW only."""
    attentions = ["eager", "sdpa"] if o.attention == "all" else [o.attention]
    kinds = [kind for kind in (["loop", "foreach", "fused"] if o.optimizer == "all" else [o.optimizer]) if makes(kind)]
    compiles = ["off", "on"] if o.compile == "all" else [o.compile]
    for attention, kind, compiled in itertools.product(attentions, kinds, compiles):
        if attention == "sdpa" and not HAS_SDPA:
            continue
        if compiled == "off" or (HAS_COMPILE and kind == kinds[-1]):
            yield attention, kind, compiled


def main():
    torch.set_num_threads(options.threads)
    results = []
    for way in ways(options):
        results.append(measure(options, *way))
        print(json.dumps(results[-1]), flush=True)
    print(json.dumps(dict(min(results, key=lambda r: r["ms"]), best=True)), flush=True)


main()
