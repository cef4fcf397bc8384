#!/usr/bin/env python3
"""Trains GPT-2 with PyTorch's FSDP2 and CPU offload and prints its speed: the peer of one GPU whose memory is too small.

    peer_fsdp2.py --width 1600 --layers 48 --heads 25 --batch 16 --seq 1024

Parameters, gradients and AdamW's state are fp32 in pinned host memory. Blocks are gathered to the device in bf16, each
while the previous one computes. Activations are recomputed or kept, according to --checkpoint. AdamW is PyTorch's fused
one for the CPU, with one thread per processor. Tokens are random. Gradients travel in fp32 or bf16; all four
combinations are tried, unless they do not fit, and each gives one JSON object.
"""
import argparse
import gc
import itertools
import json
import os
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.utils.checkpoint import checkpoint


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    for name, default in (("width", 1600), ("layers", 48), ("heads", 25), ("vocabulary", 50257), ("batch", 16),
                          ("microbatch", 0), ("seq", 1024), ("steps", 4), ("warmup", 2),
                          ("threads", os.cpu_count())):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--seconds", type=int, default=200, help="no way begins after these")
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return p.parse_args()


class Block(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads = o.heads
        self.ln_1, self.ln_2 = nn.LayerNorm(o.width), nn.LayerNorm(o.width)
        self.c_attn, self.c_proj = nn.Linear(o.width, 3 * o.width), nn.Linear(o.width, o.width)
        self.up, self.down = nn.Linear(o.width, 4 * o.width), nn.Linear(4 * o.width, o.width)

    def forward(self, x):
        b, t, d = x.shape
        q, k, v = (a.view(b, t, self.heads, -1).transpose(1, 2) for a in self.c_attn(self.ln_1(x)).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(y.transpose(1, 2).reshape(b, t, d))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, o, recompute):
        super().__init__()
        self.recompute = recompute
        self.wte, self.wpe = nn.Embedding(o.vocabulary, o.width), nn.Embedding(o.seq, o.width)
        self.blocks = nn.ModuleList(Block(o) for _ in range(o.layers))
        self.ln_f = nn.LayerNorm(o.width)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe.weight[:ids.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if self.recompute else block(x)
        return F.cross_entropy(F.linear(self.ln_f(x), self.wte.weight).flatten(0, 1).float(), labels.flatten())


def make(o, mesh, recompute, reduce):
    with torch.device("meta"):
        model = GPT2(o, recompute)
    policy = {"mesh": mesh, "offload_policy": CPUOffloadPolicy(pin_memory=o.device == "cuda"),
              "mp_policy": MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=reduce)}
    for block in model.blocks:
        fully_shard(block, **policy)
    fully_shard(model, **policy)
    for before, after in zip(model.blocks, list(model.blocks)[1:]):
        before.set_modules_to_forward_prefetch([after])
        after.set_modules_to_backward_prefetch([before])
    model.to_empty(device="cpu")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() > 1:    # drawn where that is fast
                p.to_local().copy_(torch.randn(p.to_local().shape, device=o.device) * 0.02)
            else:
                p.to_local().fill_(float("ln_" in name and "weight" in name))
    groups = [{"params": [p for p in model.parameters() if p.dim() > 1], "weight_decay": 0.01},
              {"params": [p for p in model.parameters() if p.dim() == 1], "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=3e-4, fused=True)


def measure(o, mesh, recompute, reduce):
    torch.manual_seed(1)
    model, optimizer = make(o, mesh, recompute, reduce)
    rows = o.microbatch or o.batch
    tokens, times = torch.randint(o.vocabulary, (o.batch, o.seq + 1), device=o.device), []
    for _ in range(o.warmup + o.steps):
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        for part in tokens.split(rows):
            loss = model(part[:, :-1], part[:, 1:]) * (len(part) / o.batch)
            loss.backward()
        optimizer.step()
        loss.item()     # waits
        times.append(time.perf_counter() - began)
    ms = statistics.median(times[o.warmup:]) * 1e3
    return {"peer": "torch " + torch.__version__, "recompute": recompute, "gradients": str(reduce).split(".")[1],
            "parameters": sum(p.numel() for p in model.parameters()), "threads": torch.get_num_threads(),
            "loss": round(loss.item(), 4), "ms": round(ms, 1), "tokens_per_s": round(o.batch * o.seq / ms * 1e3, 1),
            "peak_bytes": torch.cuda.max_memory_allocated() if o.device == "cuda" else 0}


def main():
    o = arguments()
    began = time.perf_counter()
    torch.set_num_threads(o.threads)
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("nccl" if o.device == "cuda" else "gloo", init_method=f"file://{folder}/store", rank=0,
                                world_size=1)
        mesh = init_device_mesh(o.device, (1,))
        for reduce, recompute in itertools.product((torch.bfloat16, torch.float32), (False, True)):
            if time.perf_counter() - began > o.seconds:
                break
            try:
                print(json.dumps(measure(o, mesh, recompute, reduce)), flush=True)
            except torch.OutOfMemoryError:
                print(json.dumps({"recompute": recompute, "does_not_fit": True}), flush=True)
            gc.collect()    # a model refers to itself
            torch.cuda.empty_cache()
        dist.destroy_process_group()


main()
