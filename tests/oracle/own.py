"""What the families that only tests have (tests/families) share in PyTorch, and their fixtures.

A family's script, make_NAME.py, has its model as modules of plain PyTorch, in one piece where the family's blocks are
several layers. What is committed of its gradient and of training steps is as training.py has it; the continuation of a
prompt by its likeliest tokens is chosen as logits.py does. Where tensors are frozen, the patterns are those of eps train
--freeze.
"""
import dataclasses
import fnmatch
import math
import os
import shutil
import typing

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import distribution
import drawn
import fixture
import logits
import training

BATCH, SEQ, LABEL_GAP, N_STEPS = 8, 17, 7, 10


class Config:
    def __init__(self, numbers):
        self.__dict__.update(numbers)


@dataclasses.dataclass
class Family:
    config: dict                # config.json; model_type is its name
    block: typing.Callable      # of Config and the block's number: a module of (x, fused)
    frozen: list                # patterns
    gradient_sample: int = 500  # elements of a tensor
    sample: int = 100
    model: typing.Callable = None  # of Family and whether attention is fused; None: Model
    ways: tuple = training.WAYS    # in which fp32 computes
    generates: bool = True
    source: int = 0                # tokens of a row that have no label
    tied: typing.Callable = None   # of the model: the tensor that two layers share
    frozen_prefix: str = "model."

    named: str = None
    n_steps: int = N_STEPS
    drop_layers: float = 0         # with what probability steps drop blocks
    dropped: list = None           # blocks that each step drops
    orders: list = None            # the block in the place of each, of each step
    arrange: typing.Callable = None  # of the model and an order
    drop: typing.Callable = None   # of the model and a factor for each block's branches, 0 of a dropped one
    block_of: typing.Callable = None  # of a tensor's name: its block; None: it is in none
    epsilon: float = 1e-8
    sparse: float = 0              # share of the elements of blocks' matrices that are trained

    @property
    def name(self):
        return self.named or self.config["model_type"]


# ---- modules ----


class RMSNorm(nn.Module):
    def __init__(self, width, epsilon):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x):
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.epsilon)


def rotate(x, base):
    """x: (rows, heads, tokens, columns); column j and the one half a head on are a complex number, turned by its position
    times base^(-2j / columns)."""
    n, tokens = x.shape[-1], x.shape[-2]
    frequencies = base ** (-torch.arange(0, n, 2, dtype=torch.float64) / n)
    angles = (torch.arange(tokens, dtype=torch.float64)[:, None] * frequencies).to(x.dtype)
    cos, sin, a, b = angles.cos(), angles.sin(), x[..., :n // 2], x[..., n // 2:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Attention(nn.Module):
    """base: of rotary positions; None: there are none. window: None: a token sees all before it. full: it sees all."""

    def __init__(self, c, kv_heads, width, base, window=None, normed=False, full=False):
        super().__init__()
        self.heads, self.kv_heads, self.width, self.base, self.window = c.num_attention_heads, kv_heads, width, base, window
        self.full = full
        self.q_proj = nn.Linear(c.hidden_size, self.heads * width, bias=False)
        self.k_proj = nn.Linear(c.hidden_size, kv_heads * width, bias=False)
        self.v_proj = nn.Linear(c.hidden_size, kv_heads * width, bias=False)
        if normed:
            self.q_norm, self.k_norm = RMSNorm(width, c.rms_norm_eps), RMSNorm(width, c.rms_norm_eps)
        self.o_proj = nn.Linear(self.heads * width, c.hidden_size, bias=False)

    def forward(self, x, fused, text=None):
        """text: whose keys and values x attends to; None: its own."""
        rows, tokens, _ = x.shape
        text = x if text is None else text

        def heads(y, n):
            return y.view(rows, y.shape[1], n, self.width).transpose(1, 2)

        q, k, v = (heads(self.q_proj(x), self.heads), heads(self.k_proj(text), self.kv_heads),
                   heads(self.v_proj(text), self.kv_heads))
        if hasattr(self, "q_norm"):
            q, k = self.q_norm(q), self.k_norm(k)
        if self.base:
            q, k = rotate(q, self.base), rotate(k, self.base)
        k, v = (y.repeat_interleave(self.heads // self.kv_heads, 1) for y in (k, v))
        behind = torch.arange(tokens)[:, None] - torch.arange(text.shape[1])
        seen = self.full | (behind >= 0) & (behind < (self.window or tokens))
        if fused:
            a = F.scaled_dot_product_attention(q, k, v, seen)
        else:
            scores = (q @ k.transpose(2, 3) / math.sqrt(self.width)).masked_fill(~seen, -math.inf)
            a = scores.softmax(-1) @ v
        return self.o_proj(a.transpose(1, 2).reshape(rows, tokens, self.heads * self.width))


class MLP(nn.Module):
    def __init__(self, c, inner, bias):
        super().__init__()
        self.gate_proj, self.up_proj = (nn.Linear(c.hidden_size, inner, bias=bias) for _ in range(2))
        self.down_proj = nn.Linear(inner, c.hidden_size, bias=bias)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and a gated MLP, each behind a norm."""

    def __init__(self, c, _):
        super().__init__()
        self.input_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.self_attn = Attention(c, c.num_key_value_heads, c.head_dim, None)
        self.post_attention_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.mlp = MLP(c, c.intermediate_size, False)

    def forward(self, x, fused):
        x = x + self.self_attn(self.input_layernorm(x), fused)
        return x + self.mlp(self.post_attention_layernorm(x))


class Model(nn.Module):
    order = None  # of its blocks; None: as they are

    def __init__(self, family, fused):
        super().__init__()
        c, self.fused = Config(family.config), fused
        self.model = nn.ModuleDict(dict(
            embed_tokens=nn.Embedding(c.vocab_size, c.hidden_size),
            layers=nn.ModuleList(family.block(c, n) for n in range(c.num_hidden_layers)),
            norm=RMSNorm(c.hidden_size, c.rms_norm_eps)))
        self.lm_head = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def named_parameters(self, *args, **kwargs):
        """Those that are trained: distribution.Run trains all that it sees."""
        return ((t, p) for t, p in super().named_parameters(*args, **kwargs) if p.requires_grad)

    def forward(self, ids):
        x = self.model.embed_tokens(ids)
        for i in self.order or range(len(self.model.layers)):
            x = self.model.layers[i](x, self.fused)
        return self.lm_head(self.model.norm(x))


# ---- fixtures ----


def how_drawn(tensor, shape):
    """base and scale of a tensor's weights."""
    if ("norm" in tensor or ".ln_" in tensor) and tensor.endswith("weight"):
        return 1.0, 0.4
    if tensor.endswith("bias"):
        return 0.0, 0.2
    if "lora_" in tensor:
        return 0.0, 0.35
    return 0.0, 0.6 if "embed" in tensor else 0.8 * math.sqrt(12 / shape[1])


def model_of(family, dtype, attention="eager", frozen=()):
    model = (family.model or Model)(family, attention == "sdpa")
    with torch.no_grad():
        for tensor, p in list(model.named_parameters()):
            p.copy_(torch.from_numpy(drawn.weights(f"{family.name}:{tensor}", p.numel(), *how_drawn(tensor, p.shape))).view_as(p))
            p.requires_grad_(not any(fnmatch.fnmatch(tensor, family.frozen_prefix + pattern) for pattern in frozen))
    return model.to(dtype)


class Run(distribution.Run):
    def __init__(self, family, frozen, optimizer, parts, dtype, attention="eager", n_runs=1):
        self.m = dict(family=family.name, optimizer=optimizer, parts=parts, lr=1e-3, decay=training.DECAY,
                      epsilon=family.epsilon)
        self.family, self.model, self.n_runs = family, model_of(family, dtype, attention, frozen), n_runs
        self.products, self.tied, self.step = None, family.tied(self.model) if family.tied else None, 0
        self.master = {t: p.detach().clone() for t, p in self.model.named_parameters()}
        self.moments = {t: (torch.zeros_like(w), torch.zeros_like(w)) for t, w in self.master.items()}
        if family.sparse:
            self.sparsify(family.sparse, [t for t, w in self.master.items() if ".layers." in t and w.dim() == 2])

    def minibatch(self):
        ids, labels = drawn.minibatch(self.family.name, self.step % training.N_MINIBATCHES, BATCH, SEQ,
                                      self.family.config["vocab_size"], LABEL_GAP)
        labels[:, :self.family.source] = -100
        return torch.from_numpy(ids), torch.from_numpy(labels)

    def logits(self, ids):
        if self.family.orders:
            self.family.arrange(self.model, self.family.orders[self.step])
        if self.family.dropped:
            n = 1 + max(block for blocks in self.family.dropped for block in blocks)
            self.family.drop(self.model, [0 if i in self.family.dropped[self.step] else 1 / (1 - self.family.drop_layers)
                                          for i in range(n)])
        return self.model(ids)

    def trains(self, tensor):
        return not self.family.dropped or self.family.block_of(tensor) not in self.family.dropped[self.step]

    def gradient_of(self, tensor, p):
        """Zeros where nobody reads what the tensor serves: all decoders are dropped."""
        return torch.zeros_like(p) if p.grad is None and self.family.dropped else super().gradient_of(tensor, p)


def flat(tensors):
    return {t: x.detach().numpy().ravel().copy() for t, x in tensors.items()}


def make_gradient(family, name, writer, frozen):
    runs = [Run(family, frozen, "adamw", 1, torch.float64)]
    runs += [Run(family, frozen, "adamw", 1, torch.float32, *way) for way in family.ways]
    exact, *singles = [flat(run.gradient()) for run in runs]
    return {"loss": runs[0].loss, "fp32_losses": [run.loss for run in runs[1:]],
            "pieces": training.digest(writer, f"{name}:gradient", exact, singles, family.gradient_sample)}


def make_training(family, name, writer, frozen, optimizer, parts):
    ways = family.ways if parts == 1 else family.ways[:2]
    runs = [Run(family, frozen, optimizer, parts, torch.float64)]
    runs += [Run(family, frozen, optimizer, parts, torch.float32, *way) for way in ways]
    start = flat(runs[0].master)
    exact, *singles = [flat(run.train(family.n_steps)) for run in runs]
    print(name, optimizer, parts, runs[0].losses[0], "->", runs[0].losses[-1], flush=True)
    return {"optimizer": optimizer, "parts": parts, "losses": runs[0].losses,
            "fp32_losses": [run.losses for run in runs[1:]],
            "pieces": training.digest(writer, f"{name}:{optimizer}{parts}", exact, singles, family.sample, start)}


def continued(family, dtype, prompts):
    """The likeliest tokens after each prompt, and the least that one was ahead by; without caches."""
    model, rows, margins = model_of(family, dtype), prompts, []
    for _ in range(logits.N_TOKENS):
        with torch.no_grad():
            top = model(rows)[:, -1].double().topk(2)
        margins.append(top.values[:, 0] - top.values[:, 1])
        rows = torch.cat((rows, top.indices[:, :1]), 1)
    return rows[:, prompts.shape[1]:], torch.stack(margins).amin(0)


def make_greedy(family):
    """Of some prompts the one whose continuation varies most, also in its last quarter, and has no near tie."""
    prompts = torch.from_numpy(drawn.minibatch(family.name, 99, logits.N_PROMPTS, 7, family.config["vocab_size"], 0)[0])
    ids, margins = continued(family, torch.float64, prompts)
    different = [min(len(set(row.tolist())), 2 * len(set(row[-logits.N_TOKENS // 4:].tolist()))) for row in ids]
    best = max((k for k in range(logits.N_PROMPTS) if margins[k] > logits.LEAST_MARGIN), key=lambda k: different[k])
    print("greedy", different[best], "different tokens, smallest margin", float(margins[best]), flush=True)
    assert different[best] >= logits.LEAST_DIFFERENT
    assert torch.equal(continued(family, torch.float32, prompts[best:best + 1])[0][0], ids[best])
    return {"prompt": prompts[best].tolist(), "ids": ids[best].tolist()}


def make_one(family, name, frozen=()):
    writer, folder = training.Writer(), os.path.join(training.FIXTURES, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    fixture.write(os.path.join(folder, "config.json"), family.config)
    reference = {
        "name": name, "draw": family.name, "made_with": f"torch {torch.__version__}", "batch": BATCH, "seq": SEQ,
        "label_gap": LABEL_GAP, **({"source": family.source} if family.source else {}), "n_minibatches": training.N_MINIBATCHES, "n_steps": family.n_steps, "lr": 1e-3,
        "beta1": training.BETAS[0], "beta2": training.BETAS[1], "epsilon": family.epsilon, "weight_decay": training.DECAY,
        "n_buckets": training.N_BUCKETS,
        "weights": [{"tensor": t, "shape": getattr(p, "file_shape", list(p.shape)), "n": p.numel(), "base": how_drawn(t, p.shape)[0],
                     "scale": how_drawn(t, p.shape)[1]} for t, p in model_of(family, torch.float64).named_parameters()],
        "gradient": make_gradient(family, name, writer, frozen),
        "training": [make_training(family, name, writer, frozen, "adamw", 1)]}
    if family.orders:
        reference["orders"] = family.orders
    if family.sparse:
        reference["sparse"] = family.sparse
    if family.dropped:
        reference |= {"drop_layers": family.drop_layers, "dropped": family.dropped}
    if frozen and not family.config.get("adapter"):
        reference["freeze"] = ",".join(frozen)
    elif not frozen:
        reference["training"].append(make_training(family, name, writer, frozen, "adama", 2))
        if family.generates:
            reference["greedy"] = make_greedy(family)
    fixture.write(os.path.join(folder, "reference.json"), reference)
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))


def make(family):
    """Both of its fixtures."""
    torch.set_num_threads(1)
    make_one(family, family.name)
    make_one(family, "frozen_" + family.name, family.frozen)
