"""Gradients of twelve random models by PyTorch, fp32 and bf16 in turn: tests/fixtures/drawn.

    python make_drawn.py

The models are the first that distribution.py's draw gives of GPT-2 for seed "drawn", with small minibatches. What is committed
of each is as training.py has it: of every tensor's gradient in float64 its norm, a few elements and a sketch, and how
far from it PyTorch's own fp32, or bf16 from weights that are bf16, ends up in each of its ways.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import os
import shutil

import numpy as np
import torch

import distribution
import drawn
import fixture
import training

N_MODELS, SAMPLE, TOKENS, VOCABULARY, LABEL_GAP = 12, 16, 200, 12000, 9
FOLDER = os.path.join(training.FIXTURES, "drawn")


def gradient(m, weights, dtype, attention="eager", n_runs=1, products=None):
    run = distribution.Run(m, weights, dtype, attention, n_runs, products)
    ids, labels = drawn.minibatch(m["name"], 0, m["batch"], m["seq"], m["config"]["vocab_size"], LABEL_GAP)
    run.ids, run.labels = torch.from_numpy(ids)[None], torch.from_numpy(labels)[None]
    return distribution.flat(run.gradient()), run


def make(number):
    precision, name = ("fp32", "bf16")[number % 2], f"drawn/{number:02}"
    m = distribution.draw("gpt2", "drawn", number, precision, TOKENS, VOCABULARY)
    folder, writer = os.path.join(training.FIXTURES, name), training.Writer()
    weights = distribution.weights_of(m, 8 if precision == "bf16" else 24)
    exact, run = gradient(m, weights, torch.float64)
    singles = [gradient(m, weights, **how)[0] for way, how in distribution.ways(m, precision).items()
               if way != "autocast"]
    pieces = training.digest(writer, f"{name}:gradient", exact, singles, SAMPLE, yardstick=precision)
    os.makedirs(folder)
    fixture.write(os.path.join(folder, "config.json"), distribution.config_json(m))
    fixture.write(os.path.join(folder, "reference.json"), {
        "name": name, "draw": m["name"], "made_with": f"torch {torch.__version__}", "precision": precision,
        "parts": m["parts"], "microbatch": m["microbatch"], "batch": m["batch"], "seq": m["seq"],
        "label_gap": LABEL_GAP, "n_minibatches": 1, "n_steps": 1, "lr": 0, "beta1": 0, "beta2": 0,
        "epsilon": 0, "weight_decay": 0, "n_buckets": training.N_BUCKETS,
        "weights": [{"tensor": t, "shape": list(w.shape), "n": w.numel(), "base": base, "scale": scale}
                    for (t, w), (base, scale, _) in zip(weights.items(), distribution.scales_of(m).values())],
        "gradient": {"loss": run.loss, "yardstick": precision, "pieces": pieces}})
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    print(name, m, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    shutil.rmtree(FOLDER, ignore_errors=True)
    for i in range(N_MODELS):
        make(i)
