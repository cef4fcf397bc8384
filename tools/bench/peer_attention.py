#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention, causal, in bf16: the peer that bench_cuda's attention is measured against.

    peer_attention.py [--width 2048] [--tokens 16384] [--device cuda]

For head widths 64 and 128 and rows of 1 Ki to 8 Ki tokens a line forward-HEAD-TOKENS|MILLISECONDS|BACKEND, and one
backward-...: the middle of several rounds by the fastest of its backends. q, k and v are views of one buffer, as ours.
"""
import argparse
import statistics
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION,
            "memory-efficient": SDPBackend.EFFICIENT_ATTENTION}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=16384, help="of all rows")
    p.add_argument("--longest", type=int, default=8192, help="tokens of a row")
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def middle_ms(run, synchronize, enough_ms=40, rounds=7):
    """As bench_cuda: once to load, once to see how often fits, then rounds of that many calls."""
    def calls(n):
        synchronize()
        began = time.perf_counter()
        for _ in range(n):
            run()
        synchronize()
        return (time.perf_counter() - began) * 1e3
    calls(1)
    n = 1 + int(min(1000, enough_ms / max(calls(1), 0.01)))
    return statistics.median(calls(n) / n for _ in range(rounds))


def measure(o, head, seq, backend, synchronize):
    heads, rows = o.width // head, o.tokens // seq
    qkv = torch.randn(rows, seq, 3, heads, head, device=o.device, dtype=torch.bfloat16, requires_grad=True)
    gradient = torch.randn(rows, heads, seq, head, device=o.device, dtype=torch.bfloat16)

    def forward():
        q, k, v = (x.transpose(1, 2) for x in qkv.unbind(2))
        return scaled_dot_product_attention(q, k, v, is_causal=True)
    with sdpa_kernel(backend):
        with torch.no_grad():
            ahead = middle_ms(forward, synchronize)
        q, k, v = (x.transpose(1, 2).detach().requires_grad_() for x in qkv.unbind(2))
        out = scaled_dot_product_attention(q, k, v, is_causal=True)
        back = middle_ms(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), synchronize)
    return ahead, back


def main():
    o = arguments()
    synchronize = torch.cuda.synchronize if o.device == "cuda" else lambda: None
    for head in (64, 128):
        seq = min(1024, o.longest)
        while seq <= o.longest:
            found = {}
            for name, backend in BACKENDS.items():
                try:
                    found[name] = measure(o, head, seq, backend, synchronize)
                except RuntimeError:    # not for this device or shape
                    continue
            for at, what in enumerate(("forward", "backward")):
                if found:
                    best = min(found, key=lambda name: found[name][at])
                    print(f"{what}-{head}-{seq}|{found[best][at]:.4f}|{best}", flush=True)
            seq *= 2


main()
