"""The gradient of a GPT-2 model whose weights have 16 bits, and 20 steps of it, by PyTorch: tests/fixtures/half, in bf16,
and tests/fixtures/half_fp16.

    python make_half.py [NAME...]

The model and the minibatch are those of training.py's "a", the weights rounded to the type to nearest, ties to even. What is
committed is as there: the gradient in float64 of these very weights, and the distances from it of PyTorch's own type in
three ways, which are the yardstick for ours: all of the model in it, with attention spelled out and fused, and fp32
weights under autocast. In 20 steps AdamW has fp32 masters, rounded after each: the first two ways alone. In fp16 the loss is
multiplied by SCALE, and gradients are divided by it.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import contextlib
import json
import os
import sys

import numpy as np
import torch

import distribution
import drawn
import fixture
import training

MODEL, SAMPLE, SCALE = "a", 200, 1024.0
TYPES = {"half": torch.bfloat16, "half_fp16": torch.float16}
TYPE = None  # the fixture's


def ways():
    """What the model is in, what its products are in, and its attention."""
    return ((TYPE, None, "eager"), (TYPE, None, "sdpa"), (torch.float32, TYPE, "eager"))


def scale_of(dtype, products=None):
    return SCALE if torch.float16 in (dtype, products) else 1.0


def model_of(dtype, attention="eager"):
    model = training.model_of(MODEL, torch.float32, attention)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(TYPE))
    return model.to(dtype).train()


def gradient_of(dtype, products=None, attention="eager"):
    model = model_of(dtype, attention)
    with torch.autocast("cpu", dtype=products) if products else contextlib.nullcontext():
        ids, labels = training.minibatch_of(MODEL, 0)
        n_valid = int((labels >= 0).sum())
        loss = training.loss_of(model, ids, labels, n_valid)
    scale = scale_of(dtype, products)
    (loss * scale).backward()
    return {t: p.grad.double().numpy().ravel() / scale for t, p in model.named_parameters()}, loss.item()


def train(dtype, attention="eager"):
    model, master = model_of(dtype, attention), model_of(torch.float64 if dtype == torch.float64 else torch.float32)
    optimizer, losses = training.adamw(master, training.MODELS[MODEL]["lr"], training.MODELS[MODEL]["epsilon"]), []
    for step in range(training.N_STEPS):
        model.zero_grad(set_to_none=True)
        ids, labels = training.minibatch_of(MODEL, step % training.N_MINIBATCHES)
        loss, scale = training.loss_of(model, ids, labels, int((labels >= 0).sum())), scale_of(dtype)
        (loss * scale).backward()
        losses.append(loss.item())
        for p, w in zip(model.parameters(), master.parameters()):
            w.grad = p.grad.to(w.dtype) / scale
        optimizer.step()
        with torch.no_grad():
            for p, w in zip(model.parameters(), master.parameters()):
                p.copy_(w)
    return {t: w.astype(np.float64) for t, w in training.arrays(master, "weights").items()}, losses


def yardstick():
    return "bf16" if TYPE == torch.bfloat16 else "fp16"


def sampled(writer, label, exact, weights, first, firsts):
    """Of trained weights a sample of elements, without those whose first gradient is within rounding of zero, as
    distribution.py has it: there Adam's first step may go either way, in PyTorch as in ours."""
    out = []
    for tensor in exact:
        for k, (suffix, begin, x) in enumerate(training.pieces_of(tensor, exact[tensor])):
            def piece(of):
                return training.pieces_of(tensor, of[tensor])[k][2]
            at = drawn.sample(f"{label}:{tensor}{suffix}:sample", x.size, SAMPLE)
            rounding = max(np.sqrt(np.mean((piece(g) - piece(first)) ** 2)) for g in firsts)
            counts = np.abs(piece(first)[at]) >= distribution.ZERO * rounding
            if suffix == ".k":
                counts[:] = True
            out.append({"tensor": tensor, "tensor_n": exact[tensor].size, "piece": suffix[1:], "first": begin,
                        "n": x.size, "norm": float(np.linalg.norm(x)), "n_sample": at.size,
                        "sample": writer.add(x[at]), "left_out": np.flatnonzero(~counts).tolist(),
                        f"{yardstick()}_distances": [float(np.linalg.norm((piece(w) - x)[at][counts])) for w in weights]})
    return out


def make(name):
    global TYPE
    TYPE = TYPES[name]
    writer, folder = training.Writer(), os.path.join(training.FIXTURES, name)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(training.FIXTURES, MODEL, "reference.json")) as f:
        result = json.load(f)
    del result["gradient"], result["training"]
    exact, loss = gradient_of(torch.float64)
    gradients, losses = zip(*(gradient_of(*way) for way in ways()))
    result.update({"name": name, "made_with": f"torch {torch.__version__}",
                   "gradient": {"loss": loss, "yardstick": yardstick(), f"{yardstick()}_losses": losses,
                                "pieces": training.digest(writer, f"{name}:gradient", exact, gradients,
                                                          training.SAMPLE, yardstick=yardstick())}})
    first, firsts = exact, gradients[:2]
    exact, course = train(torch.float64)
    weights, courses = zip(*(train(dtype, attention) for dtype, products, attention in ways() if not products))
    result["training"] = [{"optimizer": "adamw", "parts": 1, "losses": course, "yardstick": yardstick(),
                           f"{yardstick()}_losses": courses,
                           "pieces": sampled(writer, f"{name}:adamw1", exact, weights, first, firsts)}]
    for entry in result["gradient"]["pieces"] + result["training"][0]["pieces"]:
        print(entry["tensor"], entry["piece"], *(f"{d / entry['norm']:.2e}" for d in entry[f"{yardstick()}_distances"]))
    with open(os.path.join(training.FIXTURES, MODEL, "config.json")) as f, \
            open(os.path.join(folder, "config.json"), "w") as to:
        to.write(f.read())
    fixture.write(os.path.join(folder, "reference.json"), result)
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    print(f"{name}: loss {loss:.6f}, in 16 bits {losses}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    for which in sys.argv[1:] or TYPES:
        make(which)
