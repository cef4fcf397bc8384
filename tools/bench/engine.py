#!/usr/bin/env python3
"""A step of eps.Engine against one of eps.train, the same model, rows and options, in alternating rounds: what a program's own
loop costs. Prints both medians, in milliseconds from step to step, and their ratio. Needs the package and numpy.

usage: tools/bench/engine.py [--width 384] [--layers 6] [--batch 8] [--seq 256] [--steps 12] [--rounds 5] [--device cpu]
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import eps
import numpy


def config(options):
    return {"model_type": "gpt2", "n_embd": options.width, "n_layer": options.layers, "n_head": max(1, options.width // 64),
            "vocab_size": 8000, "n_positions": options.seq, "attn_pdrop": 0.0, "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def of_train(options, how, rows, out):
    """Seconds between the ends of steps, but of the first three."""
    ends = []
    eps.train(rows, out=out, steps=options.steps, eval_data=rows, eval_tokens=options.seq, order="sequential", save_every=0,
              eval_every=0, on_step=lambda step: ends.append(time.perf_counter()), **how)
    return numpy.diff(ends)[2:]


def of_engine(options, how, tokens):
    ends = []
    n = options.batch * options.seq
    with eps.Engine(how["model"], **{k: v for k, v in how.items() if k not in ("model", "schedule", "warmup")}) as engine:
        for i in range(options.steps):
            ids = tokens[i * n:(i + 1) * n].reshape(options.batch, options.seq)
            engine.step(ids, tokens[i * n + 1:(i + 1) * n + 1].reshape(options.batch, options.seq))
            ends.append(time.perf_counter())
    return numpy.diff(ends)[2:]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, value in dict(width=384, layers=6, batch=8, seq=256, steps=12, rounds=5).items():
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        model, rows = Path(work) / "config.json", Path(work) / "rows.npy"
        model.write_text(json.dumps(config(options)))
        tokens = numpy.random.default_rng(1).integers(0, 8000, options.steps * options.batch * options.seq + 1)
        numpy.save(rows, tokens.astype(numpy.uint16))
        how = dict(model=str(model), batch=options.batch, seq=options.seq, lr=1e-4, schedule="constant", warmup=0,
                   precision="fp32", device=options.device)
        train, engine = [], []
        for i in range(options.rounds):
            train += list(of_train(options, how, str(rows), f"{work}/run-{i}"))
            engine += list(of_engine(options, how, tokens))
    a, b = statistics.median(train) * 1e3, statistics.median(engine) * 1e3
    print(f"width {options.width}, {options.layers} layers, {options.batch} x {options.seq} tokens: "
          f"eps.train {a:.2f} ms a step, eps.Engine {b:.2f}: {b / a:.4f}")


main()
