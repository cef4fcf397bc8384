"""Mixtures of experts beside transformers: what its tensors join, and how near scores are to a tie."""
import math
import os
import re

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def joined(gradient, stack=np.stack, concatenate=np.concatenate):
    """With experts' tensors as transformers has them: one of all gates and ups, (experts, 2 inner, width), one of all downs."""
    out, parts = {}, {}
    for t, g in gradient.items():
        found = re.fullmatch(r"(.*\.)(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight", t)
        if found:
            name = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(found[3], found[3])
            parts.setdefault(found[1] + "mlp.experts.", {}).setdefault(name, {})[int(found[2])] = g
        else:
            out[t] = g
    for prefix, of in parts.items():
        gate, up, down = (stack([of[name][i] for i in range(len(of[name]))]) for name in ("gate_proj", "up_proj", "down_proj"))
        out[prefix + "gate_up_proj"], out[prefix + "down_proj"] = concatenate((gate, up), 1), down
    return out


def join(folder, name="model.safetensors"):
    """The file that transformers saved, with experts joined as Qwen 3.5's are published."""
    path = os.path.join(folder, name)
    save_file(joined(load_file(path), torch.stack, torch.cat), path, {"format": "pt"})


def gap(scores, n):
    """The least distance of a score that is chosen from one that is not."""
    best = torch.sort(scores, dim=-1, descending=True)[0]
    return (best[:, n - 1] - best[:, n]).min().item() if n < best.shape[-1] else math.inf
