"""The gradient of a GPT-2 model whose weights are bf16, by PyTorch: tests/fixtures/half.

The model and the minibatch are those of training.py's "a", the weights rounded to bf16 to nearest, ties to even. What is
committed is as there: the gradient in float64 of these very weights, and the distances from it of PyTorch's own bf16 in
three ways, which are the yardstick for ours: all of the model in bf16, with attention spelled out and fused, and fp32
weights under autocast.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import contextlib
import json
import os

import numpy as np
import torch

import training

NAME, MODEL = "half", "a"
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
    for entry in result["gradient"]["pieces"]:
        print(entry["tensor"], entry["piece"], *(f"{d / entry['norm']:.2e}" for d in entry["bf16_distances"]))
    with open(os.path.join(training.FIXTURES, MODEL, "config.json")) as f, \
            open(os.path.join(folder, "config.json"), "w") as to:
        to.write(f.read())
    with open(os.path.join(folder, "reference.json"), "w") as f:
        json.dump(result, f, indent=1)
        f.write("\n")
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    print(f"loss {loss:.6f}, in bf16 {losses}")


if __name__ == "__main__":
    torch.set_num_threads(2)
    main()
