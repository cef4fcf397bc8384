"""Mixtures of experts beside transformers: what its tensors join, and how near scores are to a tie."""
import math
import os
import re

import numpy as np
import torch
from safetensors.torch import load_file, save_file


def joined(gradient, stack=np.stack, concatenate=np.concatenate):
    """With experts' tensors as transformers has them in memory: one of all gates and ups, (experts, 2 inner, width), one of all downs."""
    out, parts = {}, {}
    for t, g in gradient.items():
        found = re.fullmatch(r"(.*\.)(mlp|block_sparse_moe|feed_forward)\.experts\.(\d+)\.(gate_proj|up_proj|down_proj|w1|w2|w3)\.weight", t)
        if found:
            name = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}.get(found[4], found[4])
            module = "mlp" if found[2] == "block_sparse_moe" else found[2]
            parts.setdefault(f"{found[1]}{module}.experts.", {}).setdefault(name, {})[int(found[3])] = g
        else:
            out[t] = g
    for prefix, of in parts.items():
        gate, up, down = (stack([of[name][i] for i in range(len(of[name]))]) for name in ("gate_proj", "up_proj", "down_proj"))
        out[prefix + "gate_up_proj"], out[prefix + "down_proj"] = concatenate((gate, up), 1), down
    return out


def is_bias(name):
    """Of the choice, by sigmoid: a buffer."""
    return name.endswith(("e_score_correction_bias", "expert_bias"))


def gap_of(router, inputs, logits):
    """The least distance of what is chosen from what is not, of experts and of groups; inputs: of the router."""
    if not type(router).__name__.startswith(("Lfm2Moe", "Glm4Moe", "MiniMaxM2")):
        return gap(logits, router.top_k)
    bias = getattr(router, "e_score_correction_bias", inputs[1] if len(inputs) > 1 else None)
    scores = logits.sigmoid() if bias is None else logits.sigmoid() + bias
    n_groups, least = getattr(router, "num_group", 1), math.inf
    if n_groups > 1:
        of = scores.view(len(scores), n_groups, -1)
        groups = of.topk(2, -1)[0].sum(-1)
        least = gap(groups, router.topk_group)
        best = groups.topk(router.topk_group, -1)[1]
        scores = of.gather(1, best[..., None].expand(-1, -1, of.shape[-1])).flatten(1)
    return min(least, gap(scores, router.top_k))


def join(folder, name="model.safetensors"):
    """The file that transformers saved, with experts joined as Qwen 3.5's are published."""
    path = os.path.join(folder, name)
    save_file(joined(load_file(path), torch.stack, torch.cat), path, {"format": "pt"})


def gap(scores, n):
    """The least distance of a score that is chosen from one that is not."""
    best = torch.sort(scores, dim=-1, descending=True)[0]
    return (best[:, n - 1] - best[:, n]).min().item() if n < best.shape[-1] else math.inf
