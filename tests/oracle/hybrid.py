"""Files of OLMo Hybrid as published: weights of three convolutions, of queries, keys and values. transformers 5.24 joins them as
it reads them, and cuts them in equal thirds as it saves them.

    cut(folder)             the files that it saved, cut as published ones are
    joined(gradient, taps)  moments by name, tap by tap, with those of the three as one
    whole(tensors)          weights by name, with those of the three as one
"""
import os

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

PARTS = ["q_conv1d", "k_conv1d", "v_conv1d"]


def names_of(first):
    return [first.replace(PARTS[0], part) for part in PARTS]


def cut(folder):
    config, path = AutoConfig.from_pretrained(folder), os.path.join(folder, "model.safetensors")
    of_keys = config.linear_num_key_heads * config.linear_key_head_dim
    sizes = [of_keys, of_keys, config.linear_num_value_heads * config.linear_value_head_dim]
    tensors = load_file(path)
    for first in [t for t in tensors if PARTS[0] in t]:
        whole = torch.cat([tensors[t] for t in names_of(first)])
        tensors |= {t: x.contiguous() for t, x in zip(names_of(first), whole.split(sizes))}
    save_file(tensors, path, {"format": "pt"})


def joined(gradient, taps):
    out = dict(gradient)
    for first in [t for t in gradient if PARTS[0] in t]:
        parts = [out.pop(t).reshape(taps, -1) for t in names_of(first)]
        out[first.replace(PARTS[0], "conv1d")] = np.concatenate(parts, 1).reshape(1, -1)
    return out


def whole(tensors):
    out = dict(tensors)
    for first in [t for t in tensors if PARTS[0] in t]:
        out[first.replace(PARTS[0], "conv1d")] = np.concatenate([out.pop(t) for t in names_of(first)])
    return out
