"""The gated delta rule token by token, in whatever type it is given: arXiv:2412.06464, equation 10. In transformers' place, whose
form by chunks solves a triangular system of its own: with `families.throughout` both are float64, and this one is the formula.

    with delta_rule.token_by_token(): ...
"""
import contextlib
import importlib

import torch

MODULES = [f"transformers.models.{name}.modeling_{name}" for name in ("qwen3_5", "qwen3_5_moe", "olmo_hybrid")]


def unit(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def recurrence(query, key, value, g, beta, initial_state=None, output_final_state=False, **_):
    """query, key (rows, tokens, key heads, width), value (rows, tokens, heads, width), g, beta (rows, tokens, heads)."""
    of_each = value.shape[2] // key.shape[2]
    q = unit(query).repeat_interleave(of_each, 2) * query.shape[-1] ** -0.5
    k = unit(key).repeat_interleave(of_each, 2)
    state = value.new_zeros(value.shape[0], value.shape[2], key.shape[-1], value.shape[-1]) if initial_state is None else initial_state
    out = []
    for t in range(value.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        d = beta[:, t, :, None] * (value[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t]))
        state = state + k[:, t, :, :, None] * d[:, :, None]
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(out, 1), state if output_final_state else None


@contextlib.contextmanager
def token_by_token():
    names, kept = ("torch_chunk_gated_delta_rule", "torch_recurrent_gated_delta_rule"), []
    for module in map(importlib.import_module, MODULES):
        for name in names:
            kept.append((module, name, getattr(module, name)))
            setattr(module, name, recurrence)
    try:
        yield
    finally:
        for module, name, usual in kept:
            setattr(module, name, usual)
