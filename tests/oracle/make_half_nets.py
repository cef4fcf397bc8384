"""Twenty steps of residual nets whose weights have 16 bits, by PyTorch's SGD with Nesterov's momentum: tests/fixtures/
half_{wide,basic,bottleneck}, in bf16, and half_fp16_{wide,basic,bottleneck}.

    python make_half_nets.py [NAME...]

Nets are those of make_nets.py, some with more channels and labels, all weights and running statistics rounded to the type
to nearest, ties to even. What is committed is a sample of the final weights and statistics in float64, and the distances from
it of PyTorch's own type, which are the yardstick for ours: all of the net in it, by oneDNN, without it, and channels last, and
an fp32 net under autocast. Weights and statistics have fp32 masters; weights are rounded after each step, or where autocast
reads them. Once more, sgd_bf16, with a momentum that is kept in bf16. In fp16 the loss is multiplied by SCALE, and gradients
are divided by it.

Made with torch 2.15.0 and torchvision 0.29.2 on the CPU.
"""
import contextlib
import copy
import os
import shutil
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import drawn
import fixture
import make_nets
import training

N_STEPS, MOMENTUM, SCALE, SAMPLE = 20, 0.9, 1024.0, 40
# No tensor has fewer than 8 elements: of 4 or 5, ours went up to 2.8 times as far from float64 as PyTorch's by chance.
OF = {"wide": ("wide_resnet", {}), "basic": ("resnet_basic", dict(embedding_size=10)),
      "bottleneck": ("resnet_bottleneck", dict(embedding_size=8))}
# Rates at which a loss falls by a third, and roundings do not grow from step to step. At 0.02 they do, by relu's kinks and norms
# of few images: then PyTorch's fp16 ends no nearer to float64 than its bf16.
RATES = {"wide": 4e-3, "basic": 5e-4, "bottleneck": 1e-4}
TYPES = {"half": torch.bfloat16, "half_fp16": torch.float16}
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16"}
CONFIGS = {f"half_{net}": make_nets.CONFIGS[of] | ours | dict(num_labels=16) for net, (of, ours) in OF.items()}
make_nets.CONFIGS |= CONFIGS
WAYS = ("onednn", "plain", "last", "autocast")


class Run(make_nets.Run):
    """way: how PyTorch's own type computes; None: float64. moments: of the momentum, where it has a type of its own."""

    def __init__(self, net, type, way=None, moments=None):
        super().__init__(net, "sgd", 1, torch.float64, way)
        dtype = {None: torch.float64, "autocast": torch.float32}.get(way, type)
        with torch.no_grad():
            for x in make_nets.tensors_of(self.model).values():
                x.copy_(x.to(type))
        self.master = copy.deepcopy(self.model).to(torch.float64 if dtype == torch.float64 else torch.float32)
        self.model, self.dtype, self.kept = self.model.to(dtype), dtype, moments
        self.products = type if way == "autocast" else None
        self.scale = SCALE if way and type == torch.float16 else 1.0
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0  # the minibatch's statistics alone

    def backward(self):
        self.model.zero_grad(set_to_none=True)
        ids, labels = self.minibatch()
        with torch.autocast("cpu", dtype=self.products) if self.products else contextlib.nullcontext():
            loss = F.cross_entropy(self.logits(ids).flatten(0, 1), labels.flatten(), reduction="sum") / len(ids)
        (loss * self.scale).backward()
        for p, w in zip(self.model.parameters(), self.master.parameters()):
            w.grad = p.grad.to(w.dtype) / self.scale
        return loss.item()

    def train(self, lr):
        optimizer = torch.optim.SGD(training.groups_of(self.master), lr=lr, momentum=MOMENTUM, nesterov=True, foreach=False)
        self.losses = []
        for self.step in range(N_STEPS):
            self.losses.append(self.backward())
            optimizer.step()
            for state in optimizer.state.values() if self.kept else ():
                state["momentum_buffer"] = state["momentum_buffer"].to(self.kept)
            with torch.no_grad():
                for b, w in zip(self.model.buffers(), self.master.buffers()):
                    if b.is_floating_point():
                        w.mul_(0.9).add_(b, alpha=0.1)
                for p, w in zip(self.model.parameters(), self.master.parameters()):
                    p.copy_(w)
        return {t: x.astype(np.float64) for t, x in make_nets.flat(make_nets.tensors_of(self.master)).items()}


def brief(x):
    return float(f"{x:.4e}")


def pieces(writer, label, exact, others, key):
    for tensor, x in exact.items():
        at = drawn.sample(f"{label}:{tensor}:sample", x.size, SAMPLE)
        yield {"tensor": tensor, "tensor_n": x.size, "piece": "", "first": 0, "n": x.size,
               "norm": brief(np.linalg.norm(x)), "n_sample": at.size, "sample": writer.add(x[at]), "left_out": [],
               key: [brief(np.linalg.norm((other[tensor] - x)[at])) for other in others]}


def make(name):
    (kind, net), writer = name.rsplit("_", 1), training.Writer()
    lr, net, type = RATES[net], f"half_{net}", TYPES[kind]
    run = Run(net, type)
    weights = [{"tensor": t, "shape": list(p.shape), "n": p.numel(), "base": make_nets.how_drawn(t, p)[0],
                "scale": make_nets.how_drawn(t, p)[1]} for t, p in make_nets.tensors_of(run.model).items()]
    exact, sets = run.train(lr), []
    print(name, *(f"{loss:.4f}" for loss in run.losses), flush=True)
    for optimizer, moments in (("sgd", None), ("sgd_bf16", torch.bfloat16)):
        runs = [Run(net, type, way, moments) for way in WAYS]
        others = [r.train(lr) for r in runs]
        sets.append({"optimizer": optimizer, "parts": 1, "losses": run.losses, "yardstick": NAMES[type],
                     f"{NAMES[type]}_losses": [r.losses for r in runs],
                     "pieces": list(pieces(writer, f"{name}:{optimizer}1", exact, others, f"{NAMES[type]}_distances"))})
    folder = os.path.join(training.FIXTURES, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    fixture.write(os.path.join(folder, "config.json"), CONFIGS[net])
    fixture.write(os.path.join(folder, "reference.json"), {
        "name": name, "draw": net, "made_with": f"torch {torch.__version__}", "batch": make_nets.BATCH,
        "seq": CONFIGS[net]["image_size"]**2, "label_gap": 0, "n_labels": CONFIGS[net]["num_labels"],
        "n_minibatches": training.N_MINIBATCHES, "n_steps": N_STEPS, "lr": lr, "beta1": 0.0, "beta2": 0.0, "epsilon": 0.0,
        "weight_decay": training.DECAY, "n_buckets": training.N_BUCKETS, "momentum": MOMENTUM, "nesterov": True,
        "weights": weights, "training": sets})
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in sys.argv[1:] or [f"{kind}_{net}" for kind in TYPES for net in OF]:
        make(which)
