"""The gated delta rule, and its gradients, by PyTorch's autograd in float64: tests/fixtures/delta.json.

    python make_delta.py

The recurrence of arXiv:2412.06464 as transformers' torch_recurrent_gated_delta_rule has it (which computes in fp32), with
queries and keys normalised, and g and beta made of a, b, A_log and dt_bias as by its Qwen 3.5, and OLMo Hybrid (`doubled`).
Given numbers are stored as multiples of 1/64, so that bf16 has them, too. A row has documents of these lengths, one behind
the other: rows of qkv are queries, keys and values of all heads, those of gates a and then b of each head.

Made with torch 2.15.0 on the CPU.
"""
import os

import torch
from torch.nn.functional import softplus

import fixture

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "delta.json")
CASES = [  # heads of values, of keys, widths of keys and values, doubled, documents
    (2, 1, 3, 2, False, [66, 3]),
    (2, 2, 2, 3, True, [1, 9]),
]


def drawn(*shape):
    return (torch.randint(-127, 128, shape).double() / 64).requires_grad_()


def given(x):
    return (x.detach() * 64).round().long().flatten().tolist()


def normal(x):
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def document(qkv, gates, a_log, dt_bias, heads, key_heads, key_width, value_width, doubled):
    n, keys = len(qkv), key_heads * key_width
    q, k = (qkv[:, i * keys:(i + 1) * keys].reshape(n, key_heads, key_width).repeat_interleave(heads // key_heads, 1)
            for i in range(2))
    q, k, v = normal(q) * key_width**-0.5, normal(k), qkv[:, 2 * keys:].reshape(n, heads, value_width)
    g = -a_log.exp() * softplus(gates[:, :heads] + dt_bias, threshold=700)
    beta = torch.sigmoid(gates[:, heads:]) * (2 if doubled else 1)
    state, out = torch.zeros(heads, key_width, value_width, dtype=torch.float64), []
    for t in range(n):
        state = state * g[t].exp()[:, None, None]
        d = (v[t] - torch.einsum("hkv,hk->hv", state, k[t])) * beta[t][:, None]
        state = state + k[t][:, :, None] * d[:, None]
        out.append(torch.einsum("hkv,hk->hv", state, q[t]))
    return torch.stack(out)


def case(heads, key_heads, key_width, value_width, doubled, documents):
    n = sum(documents)
    qkv, gates = drawn(n, 2 * key_heads * key_width + heads * value_width), drawn(n, 2 * heads)
    a_log, dt_bias, dy = drawn(heads), drawn(heads), drawn(n, heads, value_width)
    y = torch.cat([document(*rows, a_log, dt_bias, heads, key_heads, key_width, value_width, doubled)
                   for rows in zip(qkv.split(documents), gates.split(documents))])
    gradients = torch.autograd.grad(y, (qkv, gates, a_log, dt_bias), dy)
    names = ["qkv", "gates", "a_log", "dt_bias"]
    return {"sizes": [heads, key_heads, key_width, value_width, int(doubled)], "documents": documents,
            **dict(zip(names, map(given, (qkv, gates, a_log, dt_bias)))), "y_gradient": given(dy),
            "y": y.flatten().tolist(),
            **{f"{name}_gradient": g.flatten().tolist() for name, g in zip(names, gradients)}}


if __name__ == "__main__":
    torch.manual_seed(1)
    fixture.write(FIXTURE, [case(*numbers) for numbers in CASES])
