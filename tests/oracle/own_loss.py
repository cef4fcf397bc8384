"""A loss of a program's own, by eps.Engine and by PyTorch: gradients of random models of every family of decoders.

    python own_loss.py [--models N] [--seed S]

Needs the package eps (pip install client/python). Models, float64 and PyTorch's ways in fp32 are those of distribution.py. The
loss is that of client/python/examples/grpo.py, of log p of the labels of some rows: old and reference log p, advantages
and labels are drawn. Its gradient by log p is compared with autograd's, in float64; the model's gradient, which is Adam's first
moment after one update with betas 0,0.999, with PyTorch's of that loss, in float64 and in fp32.

    told    of each model its farthest tensor: |ours - float64| / |float64|, and |ours - float64| over PyTorch's distance
    fails   beyond 1e-5 and twice PyTorch's distance (DESIGN.md, section 4); a gradient by log p beyond 1e-6 of autograd's
"""
import argparse
import pathlib
import sys
import tempfile

import eps
import numpy as np
import torch
from safetensors import safe_open

import distribution
import families
import training

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "client" / "python" / "examples"))
import grpo  # noqa: E402


def drawn_rows(m, run):
    """ids, labels; old and reference log p, advantages, and which tokens count."""
    r = np.random.default_rng(m["number"])
    ids, labels = (x.numpy() for x in run.minibatch())
    labels = np.where(r.random(labels.shape) < 0.6, labels, -100)
    labels[0, 0] = ids[0, 0]
    return ids, labels, r.normal(0, 1, labels.shape), r.normal(0, 1, labels.shape), r.normal(0, 1, (len(ids), 1))


def log_p_of(run, ids, labels):
    every = run.logits(torch.from_numpy(ids)).log_softmax(-1)
    at = torch.from_numpy(labels.clip(0))[..., None]
    return torch.where(torch.from_numpy(labels >= 0), every.gather(-1, at)[..., 0], 0)


def by_torch(log_p, old, reference, advantage, counts):
    ratio = (log_p - old).exp()
    gain = torch.minimum(ratio * advantage, ratio.clamp(1 - grpo.CLIP, 1 + grpo.CLIP) * advantage)
    kl = (reference - log_p).exp() - (reference - log_p) - 1
    return ((grpo.BETA * kl - gain) * counts).sum() / counts.sum()


def gradient_of(run, ids, labels, near):
    """PyTorch's: of the loss by log p, and of the model."""
    log_p = log_p_of(run, ids, labels)
    log_p.retain_grad()
    run.model.zero_grad(set_to_none=True)
    by_torch(log_p, *(torch.from_numpy(x).to(log_p.dtype) for x in near)).backward()
    return log_p, distribution.flat({t: run.gradient_of(t, p) for t, p in run.model.named_parameters()})


def ours(m, weights, ids, labels, near):
    with tempfile.TemporaryDirectory(prefix="own-loss-") as folder:
        model = folder + "/model"
        distribution.write_model(m, weights, model)
        with eps.Engine(model, batch=len(ids), seq=m["seq"], lr=1e-6, betas=(0.0, 0.999), precision="fp32", device="cpu",
                        parts=1, on_note=lambda sentence: None) as engine:
            for half in (slice(0, 1), slice(1, None)):
                if len(ids[half]):
                    share = (labels[half] >= 0).sum() / (labels >= 0).sum()
                    counts = [x[half] for x in near]

                    def part(log_p):
                        loss, gradient = grpo.grpo(log_p.astype(float), *counts)
                        return loss * share, gradient * share  # grpo's is a mean over the tokens that it sees

                    if (labels[half] >= 0).any():
                        engine.forward_backward(ids[half], part, labels[half])
            engine.update()
            with safe_open(str(engine.save() / "optimizer.safetensors"), "np") as f:
                return {t: families.shaped(f.get_tensor("m." + t).astype(float), w.numpy()).ravel() for t, w in weights.items()}


def check(m):
    weights = distribution.weights_of(m, 24)
    exact = distribution.Run(m, weights, torch.float64)
    ids, labels, old, reference, advantage = drawn_rows(m, exact)
    with torch.no_grad():  # near the model's, so that some ratios are clipped and some are not
        now = log_p_of(exact, ids, labels).numpy()
    near = (now + 0.2 * old, now + 0.2 * reference, advantage, (labels >= 0).astype(float))
    log_p, wanted = gradient_of(exact, ids, labels, near)
    by_hand = grpo.grpo(log_p.detach().numpy(), *near)[1]
    if np.abs(by_hand - log_p.grad.numpy()).max() > 1e-6 * np.abs(by_hand).max():
        sys.exit(f"{m}: the loss's own gradient is not autograd's")
    others = [gradient_of(distribution.Run(m, weights, **how), ids, labels, near)[1]
              for how in distribution.ways(m, "fp32").values()]
    mine, farthest = ours(m, weights, ids, labels, near), (0, 0, "")
    whole = np.sqrt(sum((g ** 2).sum() for g in wanted.values()))
    for t in weights:
        for k, (suffix, _, x) in enumerate(training.pieces_of(t, wanted[t])):
            if suffix == ".k" or np.linalg.norm(x) <= distribution.NOTHING * whole:
                continue
            off, theirs = (np.linalg.norm(training.pieces_of(t, of[t])[k][2] - x) for of in
                           (mine, max(others, key=lambda of: np.linalg.norm(training.pieces_of(t, of[t])[k][2] - x))))
            ratio = off / max(theirs, 1e-30)
            if off > 1e-5 * np.linalg.norm(x) and ratio > 2:
                sys.exit(f"{m}: {t}{suffix} is {off / np.linalg.norm(x):.1e} off, {ratio:.2f} times PyTorch's")
            farthest = max(farthest, (off / np.linalg.norm(x), ratio, t + suffix))
    print(f"{m['family']:8} {farthest[0]:.1e} of the gradient, {farthest[1]:.2f} of PyTorch's distance: {farthest[2]}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--seed", type=int, default=9)
    options = parser.parse_args()
    for family in distribution.FAMILIES:
        for number in range(options.models if family not in distribution.ENCODERS else 0):
            m = distribution.draw(family, options.seed, number, "fp32", *distribution.largest(family, 1))
            check(m | {"number": number})
    print("own_loss.py: all gradients agree")


if __name__ == "__main__":
    main()
