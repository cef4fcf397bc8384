"""Loads a model directory that we saved with transformers, and holds it against the one it came from.

    python check_saved.py SAVED [ORIGIN]
    python check_saved.py --bin BIN

transformers must not warn. Nothing may be missing or left over; every tensor that transformers then has is bit for bit
the file's (16 bits widened), and the type that config.json names is the file's. With ORIGIN (made by transformers, loaded
by us and saved again) all tensors are equal, after rounding to the type of SAVED, and so are the logits. With --bin, the
folder of eps, this is done with every model that logits.py made, and with what a step of training makes of it: exported
in fp32, bf16, fp16, and in the type in which it came. Exit status 0 or 1.
"""
import glob
import logging
import os
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import torch
from safetensors import safe_open
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.utils import logging as transformers_logging

said = []


class Listener(logging.Handler):
    def emit(self, record):
        said.append(record.getMessage())


FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")


def kind_of(folder):
    names = AutoConfig.from_pretrained(folder).architectures
    return AutoModelForMaskedLM if names and names[0].endswith("ForMaskedLM") else AutoModelForCausalLM


def load(folder):
    model, info = kind_of(folder).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what]:
            sys.exit(f"{folder}: {what}: {sorted(info[what])}")
    return model.eval()


def stored(folder):
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        if os.path.basename(path) == "optimizer.safetensors":
            continue
        with safe_open(path, "pt") as f:
            tensors.update({name: f.get_tensor(name) for name in f.keys()})
    return tensors


def check(saved, origin=None):
    said.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ours = load(saved)
        as_said = kind_of(saved).from_pretrained(saved)
    if said or warned:
        sys.exit(f"{saved}: transformers warns: {said} {[str(w.message) for w in warned]}")
    params = dict(ours.named_parameters())
    files = stored(saved)
    if set(files) != set(params):
        sys.exit(f"{saved}: names differ: {sorted(set(files) ^ set(params))}")
    for name, tensor in files.items():
        if not torch.equal(tensor.float(), params[name]):
            sys.exit(f"{saved}: {name} is not what transformers has of it")
        if tensor.dtype != as_said.dtype:
            sys.exit(f"{saved}: {name} is {tensor.dtype}, config.json says {as_said.dtype}")
    if origin:
        theirs = load(origin)
        for name, p in theirs.named_parameters():
            p.data = p.to(as_said.dtype).float()
            if not torch.equal(p, params[name]):
                sys.exit(f"{saved}: {name}: {(p - params[name]).abs().max().item():.3e} apart")
        n = min(11, theirs.config.max_position_embeddings)
        ids = torch.arange(2 * n).view(2, n) % theirs.config.vocab_size
        with torch.no_grad():
            if not torch.equal(theirs(input_ids=ids).logits, ours(input_ids=ids).logits):
                sys.exit("equal tensors, but logits differ: config.json is not the same model")
    print(f"{saved}: {len(files)} tensors equal" + (", logits equal" if origin else ""))


def check_all(programs):
    def eps(*words):
        done = subprocess.run([os.path.join(programs, "eps"), *words], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"eps {' '.join(words)}: {done.stderr}")

    for path in sorted(glob.glob(os.path.join(FIXTURES, "*", "tokens.json"))):
        with tempfile.TemporaryDirectory(prefix="saved-") as home:
            data, run = os.path.join(home, "data.npy"), os.path.join(home, "run")
            np.save(data, np.arange(200, dtype=np.int32) * 7 % 61)
            eps("train", "--model", os.path.dirname(path), "--data", data, "--out", run, "--steps", "1", "--batch", "2",
                "--seq", "9", "--lr", "0.01", "--device", "cpu", "--device-mem", "64MiB")
            trained = os.path.join(run, "step-1")
            check(trained)
            for origin in (os.path.dirname(path), trained):
                for dtype in ("fp32", "bf16", "fp16", None):
                    out = os.path.join(home, f"{os.path.basename(origin)}-{dtype or 'own'}")
                    eps("export", "--model", origin, "--out", out, *(["--dtype", dtype] if dtype else []))
                    check(out, origin)


def main(*arguments):
    transformers_logging.get_logger("transformers").addHandler(Listener(logging.WARNING))
    if arguments[0] == "--bin":
        check_all(*arguments[1:])
    else:
        check(*arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
