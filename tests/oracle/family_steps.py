"""Twenty steps of AdamW on drawn models of every family, against transformers in float64 throughout.

    python family_steps.py [--family NAME...] [--draws N] [--seed S] [--bin build/bin] [--verbose]

The draws are those of families.py, the first N that are not refused. Rows are read in order, two minibatches in turn;
an encoder's have other masks in each step. lr 1e-3, weight decay 0.1 of tensors of two dimensions or more, Adam's own betas.

    ours      losses of metrics.jsonl and the weights of the checkpoint at step 20
    oracle    the same steps, model and AdamW, in float64 throughout
    yardstick PyTorch's own fp32: eager, fused attention, the minibatch row by row
    exact     each step's loss within 1e-5, or twice PyTorch's own distance; each tensor's weights within twice PyTorch's own
              distance (DESIGN.md section 4), or 2^-24 of its norm for each step, which is what storing them costs. Of a tensor
              those elements count whose first gradient is at least 8 times the root mean square of PyTorch's errors in it:
              below, Adam's first step, lr times its sign, may go either way in PyTorch as in ours. Where that fails, own is also
              how far float64 goes from weights that are off by fp32's rounding

A line for each family: draws, exact ones, the largest and the median ratio of a draw's farthest tensor. Exit status 1 if one is
not exact.
"""
import argparse
import json
import os
import sys
import tempfile
import time
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from transformers.utils.logging import disable_progress_bar

import drawn
import families
import hybrid
import masked
import mixtures
import training
from families import FAMILIES, FRACTION, NOTHING, ROOT, SEED, SEQ

N_STEPS, LR, DECAY, EPSILON = 20, 1e-3, 0.1, 1e-8
MOST = 10  # draws for each that is not refused
ZERO, ELEMENTS = 8, 8  # first gradients that count, in PyTorch's errors; a tensor with fewer of them is left out


def minibatch(m, step):
    """ids and labels of a step, (batch, SEQ) each."""
    n_rows = (len(m.stream) - 1) // SEQ
    rows = range(step * m.batch, (step + 1) * m.batch)
    if not m.encoder:
        windows = [row % n_rows * SEQ for row in rows]
        return tuple(torch.tensor(np.array([m.stream[at + k:at + k + SEQ] for at in windows])).long() for k in (0, 1))
    key = masked.masks_key(SEED, False)
    rows = [masked.masked("families", m.stream[row % n_rows * SEQ:][:SEQ].tolist(), 0, key, row, FRACTION) for row in rows]
    return tuple(torch.tensor([row[k] for row in rows]) for k in range(2))


def train(m, model, n_runs=1):
    """Losses, weights and the first gradient, by parameter."""
    moments = {t: (torch.zeros_like(p), torch.zeros_like(p)) for t, p in model.named_parameters()}
    (b1, b2), losses, first = training.BETAS, [], {}
    for step in range(N_STEPS):
        ids, labels = minibatch(m, step)
        n_valid, loss = int((labels >= 0).sum()), 0.0
        model.zero_grad(set_to_none=True)
        for i, l in zip(ids.chunk(n_runs), labels.chunk(n_runs)):
            part = F.cross_entropy(m.logits(model, i).flatten(0, 1), l.flatten(), ignore_index=-100, reduction="sum") / n_valid
            part.backward()
            loss += part.item()
        losses.append(loss)
        with torch.no_grad():
            for t, p in model.named_parameters():
                g = torch.zeros_like(p) if p.grad is None else p.grad
                if step == 0:
                    first[t] = g.double().numpy().copy()
                a, b = moments[t]
                a.mul_(b1).add_(g, alpha=1 - b1)
                b.mul_(b2).addcmul_(g, g, value=1 - b2)
                p.mul_(1 - LR * (DECAY if p.dim() > 1 else 0.0))
                p.addcdiv_(a / (1 - b1 ** (step + 1)), (b / (1 - b2 ** (step + 1))).sqrt_().add_(EPSILON), value=-LR)
    return losses, {t: p.detach().double().numpy().copy() for t, p in model.named_parameters()}, first


def exactly(m, weights):
    with families.throughout():
        return train(m, m.make(dtype=torch.float64, weights=weights))


def yardsticks(m, weights):
    out = {}
    for way, attention, n_runs in (("eager", "eager", 1), ("fused", "sdpa", 1), ("runs", "eager", m.batch)):
        try:
            out[way] = train(m, m.make(attention, weights=weights), n_runs)
        except ValueError:  # a class without fused attention
            assert way == "fused"
    return out


def neighbours(m, weights):
    out = {}
    for k in range(2):
        off = {t: torch.from_numpy(drawn.weights(f"{m.name}:{t}:{k}", w.numel(), 0.0, 2.0**-23)).view(w.shape) for t, w in weights.items()}
        out[f"neighbour {k}"] = exactly(m, {t: w.double() * (1 + off[t].double()) for t, w in weights.items()})
    return out


def ours(m, programs):
    """Losses and weights by the file's names; or None and the sentence that refuses."""
    folder = os.path.join(m.folder, "run")
    os.makedirs(folder)
    data = os.path.join(folder, "data.npy")
    np.save(data, m.stream.astype(np.int32))
    command = ["train", "--model", m.folder, "--data", data, "--eval-data", data, "--order", "sequential", "--seq", SEQ, "--batch",
               m.batch, "--parts", m.parts, "--steps", N_STEPS, "--schedule", "constant", "--warmup", 0, "--lr", LR,
               "--weight-decay", DECAY, "--precision", "fp32", "--optimizer", "adamw", "--device", "cpu", "--device-mem", "64MiB",
               "--threads", 1, "--seed", SEED, "--out", os.path.join(folder, "out")]
    if m.microbatch:
        command += ["--microbatch", m.microbatch]
    if m.encoder:
        command += ["--mask-fraction", FRACTION]
    done = families.run(programs, folder, *command)
    if done.returncode:
        return None, families.sentence_of(done)
    with open(os.path.join(folder, "out", "metrics.jsonl")) as f:
        losses = [json.loads(line)["loss"] for line in f]
    with safe_open(os.path.join(folder, "out", f"step-{N_STEPS}", "model.safetensors"), "np") as f:
        return losses, mixtures.joined(hybrid.whole({t: f.get_tensor(t).astype(np.float64) for t in f.keys()}))


def judge(m, exact, theirs, losses, tensors):
    """The farthest tensor as a multiple of PyTorch's own distance, and all that is other."""
    other, worst = [], (0.0, "")
    whole = np.sqrt(sum(np.linalg.norm(g) ** 2 for g in exact[2].values()))
    assert len(losses) == N_STEPS
    for step, want in enumerate(exact[0]):
        own = max(abs(y[0][step] / want - 1) for y in theirs.values())
        if not abs(losses[step] / want - 1) <= max(families.RELATIVE, 2 * own):
            other.append(f"step {step + 1}: the loss is {losses[step]:.7g}, not {want:.7g}")
    for t, want in exact[1].items():
        name, first = m.names[t], exact[2][t]
        if name not in tensors or tensors[name].size != want.size:
            other.append(f"{name} is not there")
            continue
        rounding = max(np.sqrt(np.mean((y[2][t] - first) ** 2)) for y in theirs.values())
        counts = (np.abs(first) >= ZERO * rounding) & (first != 0)
        if np.linalg.norm(first) <= NOTHING * whole or counts.sum() < min(ELEMENTS, want.size):
            continue
        norm = np.linalg.norm(want[counts])
        off = np.linalg.norm((tensors[name].reshape(want.shape) - want)[counts])
        own = max(np.linalg.norm((y[1][t] - want)[counts]) for y in theirs.values())
        ratio = off / max(own, 2.0**-24 * norm)
        worst = max(worst, (float(ratio), name))
        if not off <= max(2 * own, N_STEPS * 2.0**-24 * norm):
            other.append(f"{name}: {off / norm:.1e} of its norm, {ratio:.1f} of PyTorch's own")
    return worst, other


def sweep(a, family):
    began, ratios, bad, passed_over = time.monotonic(), [], 0, 0
    with tempfile.TemporaryDirectory(prefix="family-steps-") as top:
        for number in range(MOST * a.draws):
            if len(ratios) + bad == a.draws:
                break
            m = families.Model(family, a.seed, number)
            weights = m.save(os.path.join(top, f"{number:04}"))
            losses, tensors = ours(m, a.bin)
            if losses is None:
                passed_over += 1
                continue
            exact, theirs = exactly(m, weights), yardsticks(m, weights)
            worst, other = judge(m, exact, theirs, losses, tensors)
            if other:
                worst, other = judge(m, exact, theirs | neighbours(m, weights), losses, tensors)
            if other:
                bad += 1
                print(f"  {m.name}: OTHER: {'; '.join(other[:6])}\n    {families.short(m)}", flush=True)
            else:
                ratios.append(worst[0])
            if a.verbose:
                print(f"  {m.name}: {worst[0]:.2f} {worst[1]}", flush=True)
    far = f", ratio at most {max(ratios):.2f}, median {np.median(ratios):.2f}" if ratios else ""
    print(f"{family}: {len(ratios) + bad} draws, {len(ratios)} exact, {passed_over} refused, {bad} OTHER{far} "
          f"({time.monotonic() - began:.0f} s)", flush=True)
    return not bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=os.path.abspath, default=ROOT / "build" / "bin")
    parser.add_argument("--family", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="NAME")
    parser.add_argument("--draws", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--verbose", action="store_true", help="a line for each draw")
    a = parser.parse_args()
    good = [bool(sweep(a, family)) for family in a.family]
    print(f"{sum(good)} of {len(good)} families: {N_STEPS} steps of every draw exact")
    sys.exit(not all(good))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    torch.set_num_threads(1)
    main()
