"""The gradient of a GPT-2 model whose weights are bf16, and 20 steps of it, by PyTorch: tests/fixtures/half.

The model and the minibatch are those of training.py's "a", the weights rounded to bf16 to nearest, ties to even. What is
committed is as there: the gradient in float64 of these very weights, and the distances from it of PyTorch's own bf16 in
three ways, which are the yardstick for ours: all of the model in bf16, with attention spelled out and fused, and fp32
weights under autocast. In 20 steps AdamW has fp32 masters, rounded to bf16 after each: the first two ways alone.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import contextlib
import json
import os

import numpy as np
import torch

import distribution
import drawn
import fixture
import training

NAME, MODEL, SAMPLE = "half", "a", 200
# What the model is in, what its products are in, and its attention.
WAYS = ((torch.bfloat16, None, "eager"), (torch.bfloat16, None, "sdpa"), (torch.float32, torch.bfloat16, "eager"))


def model_of(dtype, attention="eager"):
    model = training.model_of(MODEL, torch.float32, attention)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.to(torch.bfloat16))
    return model.to(dtype).train()


def gradient_of(dtype, products=None, attention="eager"):
    model = model_of(dtype, attention)
    with torch.autocast("cpu", dtype=products) if products else contextlib.nullcontext():
        ids, labels = training.minibatch_of(MODEL, 0)
        n_valid = int((labels >= 0).sum())
        loss = training.loss_of(model, ids, labels, n_valid)
    loss.backward()
    return {t: p.grad.double().numpy().ravel() for t, p in model.named_parameters()}, loss.item()


def train(dtype, attention="eager"):
    model, master = model_of(dtype, attention), model_of(torch.float64 if dtype == torch.float64 else torch.float32)
    optimizer, losses = training.adamw(master, training.MODELS[MODEL]["lr"], training.MODELS[MODEL]["epsilon"]), []
    for step in range(training.N_STEPS):
        model.zero_grad(set_to_none=True)
        losses.append(training.backward(model, *training.minibatch_of(MODEL, step % training.N_MINIBATCHES)))
        for p, w in zip(model.parameters(), master.parameters()):
            w.grad = p.grad.to(w.dtype)
        optimizer.step()
        with torch.no_grad():
            for p, w in zip(model.parameters(), master.parameters()):
                p.copy_(w)
    return {t: w.astype(np.float64) for t, w in training.arrays(master, "weights").items()}, losses


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
                        "bf16_distances": [float(np.linalg.norm((piece(w) - x)[at][counts])) for w in weights]})
    return out


def main():
    writer, folder = training.Writer(), os.path.join(training.FIXTURES, NAME)
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(training.FIXTURES, MODEL, "reference.json")) as f:
        result = json.load(f)
    del result["gradient"], result["training"]
    exact, loss = gradient_of(torch.float64)
    gradients, losses = zip(*(gradient_of(*way) for way in WAYS))
    result.update({"name": NAME, "made_with": f"torch {torch.__version__}",
                   "gradient": {"loss": loss, "yardstick": "bf16", "bf16_losses": losses,
                                "pieces": training.digest(writer, f"{NAME}:gradient", exact, gradients,
                                                          training.SAMPLE, yardstick="bf16")}})
    first, firsts = exact, gradients[:2]
    exact, course = train(torch.float64)
    weights, courses = zip(*(train(dtype, attention) for dtype, products, attention in WAYS if not products))
    result["training"] = [{"optimizer": "adamw", "parts": 1, "losses": course, "yardstick": "bf16",
                           "bf16_losses": courses,
                           "pieces": sampled(writer, f"{NAME}:adamw1", exact, weights, first, firsts)}]
    for entry in result["gradient"]["pieces"] + result["training"][0]["pieces"]:
        print(entry["tensor"], entry["piece"], *(f"{d / entry['norm']:.2e}" for d in entry["bf16_distances"]))
    with open(os.path.join(training.FIXTURES, MODEL, "config.json")) as f, \
            open(os.path.join(folder, "config.json"), "w") as to:
        to.write(f.read())
    fixture.write(os.path.join(folder, "reference.json"), result)
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    print(f"loss {loss:.6f}, in bf16 {losses}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
