"""Trains a model at several learning rates, and prints their held-out losses: python sweep.py MODEL DATA OUT RATE..."""
import argparse
import math

import eps

parser = argparse.ArgumentParser(description="Trains at several learning rates, and prints their held-out losses.")
for name in ("model", "data", "out"):
    parser.add_argument(name)
parser.add_argument("rates", type=float, nargs="+")
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--device-mem", default="1GiB")
asked = parser.parse_args()

losses = {}
for rate in asked.rates:
    run = eps.train(asked.data, model=asked.model, lr=rate, steps=asked.steps, device_mem=asked.device_mem,
                    out=f"{asked.out}/{rate:g}")
    losses[rate] = math.inf if run.eval_loss is None else run.eval_loss  # None: the run diverged
best = min(losses, key=lambda rate: losses[rate])
print("rate     held-out loss")
for rate, loss in losses.items():
    print(f"{rate:<8g} {loss:.4f}{'  best' if rate == best else ''}")
