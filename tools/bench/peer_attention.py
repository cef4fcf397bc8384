#!/usr/bin/env python3
"""Times PyTorch's scaled_dot_product_attention, causal, in bf16: the peers that bench_cuda's attention is measured against.

    peer_attention.py [--width 2048] [--tokens 16384] [--device cuda]

Two peers: PyTorch's cuDNN backend, selected by name, and its default choice, which on some devices is half as fast. For
head widths 64 and 128 and rows of 1 Ki to 8 Ki tokens, prints lines cudnn-forward-HEAD-TOKENS|MILLISECONDS| and
default-forward-..., the latter with the name of the choice, and the same for backward: medians of several rounds.
Unsupported cases have no line. q, k and v are views of one buffer, as in ours. The first line names the versions.
"""
import argparse
import contextlib

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from peer_rounds import middle_ms, synchronizer, tell_versions

PEERS = {"cudnn": lambda: sdpa_kernel(SDPBackend.CUDNN_ATTENTION), "default": contextlib.nullcontext}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--width", type=int, default=2048)
    p.add_argument("--tokens", type=int, default=16384, help="of all rows")
    p.add_argument("--longest", type=int, default=8192, help="tokens of a row")
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def chosen(q, k, v):
    """PyTorch's default choice."""
    try:
        return SDPBackend(torch._fused_sdp_choice(q, k, v, is_causal=True)).name
    except (AttributeError, ValueError):
        return "of no known name"


def measure(o, peer, head, seq, synchronize):
    heads, rows = o.width // head, o.tokens // seq
    qkv = torch.randn(rows, seq, 3, heads, head, device=o.device, dtype=torch.bfloat16)
    gradient = torch.randn(rows, heads, seq, head, device=o.device, dtype=torch.bfloat16)
    q, k, v = (x.transpose(1, 2).requires_grad_() for x in qkv.unbind(2))
    name = ", " + chosen(q, k, v) if peer == "default" else ""

    def forward():
        return scaled_dot_product_attention(q, k, v, is_causal=True)

    def tell(what, ms):
        print(f"{peer}-{what}-{head}-{seq}|{ms:.4f}|{name}", flush=True)
    with PEERS[peer]():
        with torch.no_grad():
            tell("forward", middle_ms(forward, synchronize, 40))
        out = forward()
        tell("backward", middle_ms(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), synchronize,
                                   40))


def main():
    o = arguments()
    synchronize = synchronizer(o.device)
    tell_versions(o.device)
    for head in (64, 128):
        seq = min(1024, o.longest)
        while seq <= o.longest:
            for peer in PEERS:
                try:
                    measure(o, peer, head, seq, synchronize)
                except RuntimeError:    # not for this device or shape
                    continue
            seq *= 2


main()
