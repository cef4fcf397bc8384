"""Gradients and 20 training steps of three GPT-2 models by transformers and PyTorch: tests/fixtures/{a,b,c,clip,drop,
widths,frozen_*,base_*,sgd*}. Of c, which is large, 6 by AdamW alone.

    python training.py [a] [b] [c] [clip] [frozen_wte]...        minutes for c, seconds for the others

What is committed, from float64 throughout: losses, and of each tensor's gradient and final weights its norm, a sample
of its elements (all of them for the gradients of a and b), a sketch (drawn.sketch) that gives the norm of a
difference, and the distances of PyTorch's own fp32 runs from float64, which are the yardstick for ours. c_attn.bias
stands as three pieces, q, k and v: the gradient of k is zero analytically, since softmax does not see what all keys
have in common.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import fnmatch
import os
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel
from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

import drawn
import fixture
import forms

FIXTURES = os.environ.get("EPS_FIXTURES", os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures"))
N_STEPS, N_MINIBATCHES, N_BUCKETS, SAMPLE = 20, 4, 128, 1000
BETAS, DECAY = (0.9, 0.999), 0.1
CLIP_NORM = 1.4

SMALL = {"wte": 0.5, "wpe": 0.3, "lm_head": 0.5, "attn.c_attn": 0.6, "attn.c_proj": 0.4, "mlp.c_fc": 0.5,
         "mlp.c_proj": 0.4, "norm": 0.4, "bias": 0.2}
LARGE = {"wte": 0.07, "wpe": 0.05, "attn.c_attn": 0.1, "attn.c_proj": 0.05, "mlp.c_fc": 0.1, "mlp.c_proj": 0.05,
         "norm": 0.2, "bias": 0.05}
# Training must be well conditioned: where a first gradient is smaller than Adam's epsilon of 1e-8, rounding alone
# decides how far that weight goes, in PyTorch as in ours, and others follow. Of nine draws of b three have such an
# element under AdamW; b3 has none. Among the 53 million of c there are always some, so its epsilon is 1e-4.
MODELS = {
    "a": dict(n_embd=48, n_head=3, n_layer=2, n_positions=40, vocab_size=97, activation_function="gelu_new",
              draw="a", epsilon=1e-8, batch=8, seq=24, label_gap=7, lr=1e-3, scales=SMALL, full_gradient=True),
    "b": dict(n_embd=40, n_head=5, n_layer=3, n_positions=32, vocab_size=131, activation_function="gelu", n_inner=72,
              scale_attn_by_inverse_layer_idx=True, tie_word_embeddings=False,
              draw="b3", epsilon=1e-8, batch=16, seq=19, label_gap=0, lr=1e-3, scales=SMALL, full_gradient=True),
    "c": dict(n_embd=768, n_head=12, n_layer=2, n_positions=64, vocab_size=50257, activation_function="gelu_new",
              draw="c", epsilon=1e-4, batch=8, seq=17, label_gap=11, lr=1e-3, scales=LARGE, full_gradient=False, steps=6),
}
# a again, its gradient clipped to a norm that some of its steps exceed and others do not.
MODELS["clip"] = dict(MODELS["a"], clip_norm=CLIP_NORM, full_gradient=False)
# b with one block more, and blocks that steps drop (stochastic depth): the stream passes them unchanged, and they have no
# gradient, so AdamW neither updates nor decays them, nor counts the step. A kept block's two branches are scaled by
# 1/(1-p). With epsilon 1e-8 some elements of blocks that were seldom updated are ill conditioned. Of the 20 steps some drop nothing, one all, and block 2 comes late.
DROPPED = [[1, 2], [], [0, 2], [2, 3], [0, 1, 2, 3], [2], [0, 3], [1], [3], [], [0, 1, 2], [3, 1], [2], [0], [1, 3], [],
           [0, 2, 3], [1], [2, 3], [0]]
MODELS["drop"] = dict(MODELS["b"], n_layer=4, drop_layers=0.375, epsilon=1e-6, full_gradient=False,
                      sample=200)
# b with another width of the feed-forward layer in each block.
MODELS["widths"] = dict(MODELS["b"], widths=[72, 20, 104], full_gradient=False, sample=200)
# And with frozen tensors (requires_grad=False), named by patterns as eps train --freeze has them: a tied table, all but
# biases, all below the topmost block, the last norm, all but that norm. What is frozen is not in the reference.
FROZEN = {"wte": ("a", ["wte.weight"]), "weights": ("a", ["*.weight"]), "blocks": ("b", ["wte.*", "wpe.*", "h.[01].*"]),
          "norm": ("a", ["ln_f.*"]), "body": ("a", ["wte.*", "wpe.*", "h.*"])}
MODELS.update({f"frozen_{name}": dict(MODELS[of], freeze=patterns, full_gradient=False, sample=200)
               for name, (of, patterns) in FROZEN.items()})
# And with frozen tensors in the forms of --base: matrices whose rows no block of 64 divides, a tied table, a head.
BASES = {"nf4": ("a", ["wte.*", "h.*.attn.c_attn.weight", "h.*.mlp.*.weight", "h.1.ln_1.*"]),
         "int8": ("b", ["lm_head.*", "wpe.*", "h.[01].*.weight"]), "bf16": ("a", ["wte.*", "h.0.*"])}
MODELS.update({f"base_{name}": dict(MODELS[of], freeze=patterns, base=name, full_gradient=False, sample=200)
               for name, (of, patterns) in BASES.items()})
# And by torch.optim.SGD, whose weight decay is a part of the gradient. a has a tied table, b has none; rates at which the
# loss falls, not far from where it would not.
SGD = {"sgd": ("a", dict(momentum=0.9, nesterov=False)), "sgd_nesterov": ("a", dict(momentum=0.95, nesterov=True)),
       "sgd_plain": ("b", dict(momentum=0.0, nesterov=False))}
MODELS.update({name: dict(MODELS[of], sgd=sgd, lr=0.02, full_gradient=False, sample=200)
               for name, (of, sgd) in SGD.items()})
MODELS["sgd_clip"] = dict(MODELS["sgd"], clip_norm=CLIP_NORM)
MODELS["sgd_frozen"] = dict(MODELS["sgd"], freeze=["wpe.*", "h.0.*", "h.1.mlp.c_fc.weight"])
# PyTorch's own fp32: attention spelled out, fused, and the minibatch in eight runs of rows.
WAYS = (("eager", 1), ("sdpa", 1), ("eager", 8))
OURS = ("draw", "epsilon", "batch", "seq", "label_gap", "lr", "scales", "full_gradient", "clip_norm", "freeze", "base", "sample",
        "drop_layers", "widths", "sgd", "steps")


def config_of(name):
    return GPT2Config(**{k: v for k, v in MODELS[name].items() if k not in OURS}, attn_pdrop=0.0, embd_pdrop=0.0,
                      resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def steps_of(name):
    return MODELS[name].get("steps", N_STEPS)


def how_drawn(name, tensor):
    """base and scale of a tensor's weights."""
    scales = MODELS[name]["scales"]
    if ".ln_" in tensor:
        return (1.0, scales["norm"]) if tensor.endswith("weight") else (0.0, scales["bias"])
    if tensor.endswith("bias"):
        return 0.0, scales["bias"]
    return 0.0, next(s for part, s in scales.items() if part + ".weight" in tensor)


def model_of(name, dtype, attention="eager"):
    model = GPT2LMHeadModel._from_config(config_of(name), attn_implementation=attention, dtype=torch.float32)
    for block, width in zip(model.transformer.h, MODELS[name].get("widths", ())):
        block.mlp = GPT2MLP(width, model.config)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            w = drawn.weights(f"{MODELS[name]['draw']}:{tensor}", p.numel(), *how_drawn(name, tensor))
            p.copy_(torch.from_numpy(w).view_as(p))
            p.requires_grad_(not any(fnmatch.fnmatch(tensor.removeprefix("transformer."), pattern)
                                     for pattern in MODELS[name].get("freeze", ())))
            if "base" in MODELS[name] and not p.requires_grad:
                p.copy_(forms.decoded(p, MODELS[name]["base"], tensor.startswith("transformer.h.") and p.dim() == 2))
    return model.to(dtype).train()


def drop(name, model, step):
    """Has the model's next pass be that of a step (from 0)."""
    if "drop_layers" not in MODELS[name]:
        return
    scale = 1 / (1 - MODELS[name]["drop_layers"])
    for i, block in enumerate(model.transformer.h):
        block.attn._forward_hooks.clear()
        block.mlp._forward_hooks.clear()
        block.attn.register_forward_hook(lambda module, args, out: (out[0] * scale, *out[1:]))
        block.mlp.register_forward_hook(lambda module, args, out: out * scale)
        block.__dict__.pop("forward", None)
        if i in DROPPED[step]:
            block.forward = lambda hidden_states, *args, **kwargs: hidden_states


def minibatch_of(name, number):
    m = MODELS[name]
    ids, labels = drawn.minibatch(m["draw"], number, m["batch"], m["seq"], m["vocab_size"], m["label_gap"])
    return torch.from_numpy(ids), torch.from_numpy(labels)


def loss_of(model, ids, labels, n_valid):
    """Sum over these rows, divided by the valid labels of the whole minibatch."""
    logits = model(input_ids=ids, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum") / n_valid


def backward(model, ids, labels, n_runs=1):
    """The gradient of the minibatch's mean loss, summed into .grad over n_runs equal runs of rows."""
    n_valid, total = int((labels >= 0).sum()), 0.0
    for i, l in zip(ids.chunk(n_runs), labels.chunk(n_runs)):
        loss = loss_of(model, i, l, n_valid)
        loss.backward()
        total += loss.item()
    return total


def groups_of(model):
    trained = [p for p in model.parameters() if p.requires_grad]
    return [{"params": [p for p in trained if p.dim() > 1], "weight_decay": DECAY},
            {"params": [p for p in trained if p.dim() == 1], "weight_decay": 0.0}]


def adamw(model, lr, epsilon):
    return torch.optim.AdamW(groups_of(model), lr=lr, betas=BETAS, eps=epsilon, foreach=False)


def train(name, dtype, attention, n_runs, norms=None):
    """norms: takes the gradient's, where it is clipped."""
    model, losses = model_of(name, dtype, attention), []
    clip_norm = MODELS[name].get("clip_norm")
    m = MODELS[name]
    optimizer = (torch.optim.SGD(groups_of(model), lr=m["lr"], foreach=False, **m["sgd"]) if "sgd" in m
                 else adamw(model, m["lr"], m["epsilon"]))
    for step in range(steps_of(name)):
        optimizer.zero_grad(set_to_none=True)
        drop(name, model, step)
        losses.append(backward(model, *minibatch_of(name, step % N_MINIBATCHES), n_runs))
        if clip_norm:
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), clip_norm)
            if norms is not None:
                norms.append(norm.item())
        optimizer.step()
    return model, losses


def train_adama(name, dtype, attention, n_parts):
    """arXiv:2305.19982 with N = n_parts: both moments decay once, then each part's gradient and its square are added.
    A tied tensor's parts are summed and squared once. A tensor without a gradient, of a dropped block, is left alone."""
    model, losses = model_of(name, dtype, attention), []
    lr, epsilon, (b1, b2) = MODELS[name]["lr"], MODELS[name]["epsilon"], BETAS
    tied = model.transformer.wte.weight if MODELS[name].get("tie_word_embeddings", True) else None
    params = list(model.parameters())
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in params]
    updates = [0] * len(params)

    def fold(m, v, g):
        m.add_(g, alpha=1 - b1)
        v.addcmul_(g, g, value=1 - b2)

    for step in range(1, steps_of(name) + 1):
        drop(name, model, step - 1)
        dropped = DROPPED[step - 1] if "drop_layers" in MODELS[name] else []
        trained = [not any(t.startswith(f"transformer.h.{i}.") for i in dropped) for t, _ in model.named_parameters()]
        for (m, v), trains in zip(moments, trained):
            if trains:
                m.mul_(b1)
                v.mul_(b2)
        ids, labels = minibatch_of(name, (step - 1) % N_MINIBATCHES)
        n_valid, total = int((labels >= 0).sum()), 0.0
        model.zero_grad(set_to_none=True)
        for i, l in zip(ids.chunk(n_parts), labels.chunk(n_parts)):
            loss = loss_of(model, i, l, n_valid)
            loss.backward()
            total += loss.item()
            for p, (m, v) in zip(params, moments):
                if p is not tied and p.grad is not None:
                    fold(m, v, p.grad)
                    p.grad = None
        losses.append(total)
        with torch.no_grad():
            for k, (p, (m, v)) in enumerate(zip(params, moments)):
                if not trained[k]:
                    continue
                updates[k] += 1
                if p is tied:
                    fold(m, v, p.grad)
                p.mul_(1 - lr * (DECAY if p.dim() > 1 else 0.0))
                p.addcdiv_(m / (1 - b1**updates[k]), (v / (1 - b2**updates[k])).sqrt_().add_(epsilon), value=-lr)
    return model, losses


class Writer:
    """Collects values.f64; each add returns its place, in elements."""

    def __init__(self):
        self.values, self.n = [], 0

    def add(self, x):
        first, self.n = self.n, self.n + x.size
        self.values.append(np.ascontiguousarray(x, dtype="<f8"))
        return first


def pieces_of(tensor, x):
    """A tensor (flat), or q, k and v of c_attn.bias: (suffix, first, elements)."""
    if tensor.endswith("encoder_attn.k_proj.bias"):
        return [(".k", 0, x)]
    if not tensor.endswith("c_attn.bias"):
        return [("", 0, x)]
    width = x.size // 3
    return [("." + part, i * width, x[i * width:(i + 1) * width]) for i, part in enumerate("qkv")]


def digest(writer, label, exact, singles, sample, start=None, yardstick="fp32"):
    """exact: {tensor: float64 array}; singles: the same of each fp32 run, or of whatever is the yardstick; start: where
    training began."""
    out = []
    for tensor, x in exact.items():
        path = pieces_of(tensor, x - start[tensor]) if start else None
        others = [pieces_of(tensor, s[tensor].astype(np.float64)) for s in singles]
        for k, (suffix, first, piece) in enumerate(pieces_of(tensor, x)):
            text = f"{label}:{tensor}{suffix}"
            at = drawn.sample(text + ":sample", piece.size, sample)
            entry = {"tensor": tensor, "tensor_n": x.size, "piece": suffix[1:], "first": first, "n": piece.size,
                     "norm": float(np.linalg.norm(piece)),
                     f"{yardstick}_distances": [float(np.linalg.norm(o[k][2] - piece)) for o in others],
                     **({"moved": float(np.linalg.norm(path[k][2]))} if start else {}),
                     "n_sample": at.size, "sample": writer.add(piece[at])}
            if at.size < piece.size:
                entry[f"{yardstick}_sample_distances"] = [float(np.linalg.norm((o[k][2] - piece)[at])) for o in others]
                entry["sketch"] = writer.add(drawn.sketch(text + ":sketch", piece, N_BUCKETS))
            out.append(entry)
    return out


def arrays(model, what):
    return {t: (p.grad if what == "grad" else p).detach().numpy().ravel().copy() for t, p in model.named_parameters()
            if p.requires_grad and (what == "weights" or p.grad is not None)}


def make(name):
    began, m, writer = time.time(), MODELS[name], Writer()
    folder = os.path.join(FIXTURES, name)
    os.makedirs(folder, exist_ok=True)
    config = config_of(name).to_dict()
    config["n_inner"] = m.get("widths", config["n_inner"])
    keep = ("model_type", "n_embd", "n_head", "n_layer", "n_inner", "n_positions", "vocab_size",
            "activation_function", "attn_pdrop", "embd_pdrop", "resid_pdrop", "layer_norm_epsilon",
            "initializer_range", "scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tie_word_embeddings")
    fixture.write(os.path.join(folder, "config.json"), {k: config[k] for k in keep if k in config})

    ids, labels = minibatch_of(name, 0)
    exact = model_of(name, torch.float64)
    result = {"name": name, "draw": m["draw"], "made_with": f"torch {torch.__version__}",
              "batch": m["batch"], "seq": m["seq"],
              "label_gap": m["label_gap"], "n_minibatches": N_MINIBATCHES, "n_steps": steps_of(name), "lr": m["lr"],
              "beta1": BETAS[0], "beta2": BETAS[1], "epsilon": m["epsilon"], "weight_decay": DECAY,
              "n_buckets": N_BUCKETS,
              "weights": [{"tensor": t, "shape": list(p.shape), "n": p.numel(),
                           "base": how_drawn(name, t)[0], "scale": how_drawn(name, t)[1]}
                          for t, p in exact.named_parameters()]}

    start, singles, losses = arrays(exact, "weights"), [], []
    if "sgd" not in m:
        drop(name, exact, 0)
        loss = backward(exact, ids, labels)
        for attention, n_runs in WAYS:
            single = model_of(name, torch.float32, attention)
            drop(name, single, 0)
            losses.append(backward(single, ids, labels, n_runs))
            singles.append(arrays(single, "grad"))
        result["gradient"] = {"loss": loss, "fp32_losses": losses,
                              "pieces": digest(writer, f"{name}:gradient", arrays(exact, "grad"), singles,
                                               1 << 62 if m["full_gradient"] else m.get("sample", SAMPLE))}
        del single
        print(f"{name}: gradient after {time.time() - began:.0f} s", flush=True)
    del singles, exact

    result["training"] = []
    norms = []
    of_adam = (("adamw", 1), ("adama", 2), ("adama", 8))[:1 if "clip_norm" in m or "freeze" in m or "steps" in m else 3]
    for optimizer, n_parts in (("sgd", 1),) if "sgd" in m else of_adam:
        def run(dtype, attention, n_runs=1):
            model, losses = (train_adama(name, dtype, attention, n_parts) if optimizer == "adama" else
                             train(name, dtype, attention, n_runs, norms if dtype == torch.float64 else None))
            return arrays(model, "weights"), losses

        singles, single_losses = zip(*(run(torch.float32, *way) for way in (WAYS if n_parts == 1 else WAYS[:2])))
        exact, losses = run(torch.float64, "eager")
        label = f"{name}:{optimizer}{n_parts}"
        result["training"].append({"optimizer": optimizer, "parts": n_parts, "losses": losses,
                                   "fp32_losses": single_losses,
                                   "pieces": digest(writer, label, exact, singles, m.get("sample", SAMPLE), start)})
        print(f"{label}: loss {losses[0]:.6f} -> {losses[-1]:.6f}, fp32 within "
              f"{max(abs(a - b) for run in single_losses for a, b in zip(losses, run)):.1e}, "
              f"{time.time() - began:.0f} s", flush=True)

    if "drop_layers" in m:
        result["drop_layers"] = m["drop_layers"]
        result["dropped"] = DROPPED
    if "freeze" in m:
        result["freeze"] = ",".join(m["freeze"])
    if "sgd" in m:
        result.update(m["sgd"])
    if "clip_norm" in m:
        result["clip_norm"] = m["clip_norm"]
        result["norms"] = norms
    fixture.write(os.path.join(folder, "reference.json"), result)
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))


if __name__ == "__main__":
    torch.set_num_threads(2)
    for which in sys.argv[1:] or MODELS:
        make(which)
