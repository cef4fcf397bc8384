"""Holds the number formats of `eps export` against PyTorch's conversions.

    python check_types.py BIN

BIN is the folder of eps. All finite fp16 and bf16 are widened, and rounded back; and 4 million fp32, drawn by their bits
within fp16's range, are rounded to each. Exit status 0 or 1.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from safetensors.torch import load_file, save_file

from programs import eps

WIDTH = 8
NAMES = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}


def make(folder, values):
    """A GPT-2 of one block, whose table of tokens holds the values."""
    rows = -(-len(values) // WIDTH)
    table = torch.zeros(rows * WIDTH, dtype=values.dtype)
    table[:len(values)] = values
    shapes = {"wpe.weight": (2, WIDTH), "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    for name, shape in {"ln_1.weight": (WIDTH,), "ln_1.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
                        "attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,),
                        "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,),
                        "mlp.c_fc.weight": (WIDTH, 4 * WIDTH), "mlp.c_fc.bias": (4 * WIDTH,),
                        "mlp.c_proj.weight": (4 * WIDTH, WIDTH), "mlp.c_proj.bias": (WIDTH,)}.items():
        shapes["h.0." + name] = shape
    tensors = {"transformer." + name: torch.zeros(shape, dtype=values.dtype) for name, shape in shapes.items()}
    tensors["transformer.wte.weight"] = table.view(rows, WIDTH)
    os.makedirs(folder)
    save_file(tensors, os.path.join(folder, "model.safetensors"))
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump({"model_type": "gpt2", "n_layer": 1, "n_head": 1, "n_embd": WIDTH, "n_positions": 2,
                   "vocab_size": rows}, f)


def check(bin_, home, values, to):
    source, out = os.path.join(home, "source"), os.path.join(home, "out")
    subprocess.run(["rm", "-rf", source, out], check=True)
    make(source, values)
    eps(bin_, "export", "--model", source, "--out", out, "--dtype", NAMES[to])
    got = load_file(os.path.join(out, "model.safetensors"))["transformer.wte.weight"].flatten()[:len(values)]
    want = values.to(to)
    bits = torch.int32 if to == torch.float32 else torch.int16
    same = got.dtype == to and torch.equal(got.view(bits), want.view(bits))
    print(f"{len(values)} {NAMES[values.dtype]} to {NAMES[to]}: {'equal' if same else 'DIFFERENT'}")
    return same


def main(bin_):
    bits = torch.arange(-2**15, 2**15, dtype=torch.int32).to(torch.int16)
    halves = [bits.view(t) for t in (torch.float16, torch.bfloat16)]
    halves = [h[torch.isfinite(h.float())] for h in halves]
    torch.manual_seed(0)
    drawn = torch.randint(-2**31, 2**31, (1 << 23,), dtype=torch.int64).to(torch.int32).view(torch.float32)
    drawn = drawn[torch.isfinite(drawn) & (drawn.abs() < 65520)]
    narrow = torch.ldexp(torch.rand(1 << 21) * 2 - 1, torch.randint(-27, 17, (1 << 21,)))
    drawn = torch.cat([drawn, narrow[narrow.abs() < 65520]])
    with tempfile.TemporaryDirectory() as home:
        results = [check(bin_, home, h, torch.float32) for h in halves]
        results += [check(bin_, home, h, h.dtype) for h in halves]
        results += [check(bin_, home, h.float(), h.dtype) for h in halves]
        results += [check(bin_, home, drawn, t) for t in (torch.float16, torch.bfloat16)]
    sys.exit(not all(results))


if __name__ == "__main__":
    main(*sys.argv[1:])
