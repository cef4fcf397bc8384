"""Adapters that PEFT saves, drawn at random, have PEFT's loss: alone, and merged.

    python draw_adapters.py [N] [--bin build/bin] [--seed S]

A draw is a small decoder of tests/fixtures, ranks, factors, targets by name, by pattern or all, some of them excluded, ranks
and alphas of their own by module, by block or by both, blocks that are left out, and modules that are trained as a whole: the
table of tokens, the head, both or none. In tied models these are two in PEFT, unless none is saved. Each is trained for a step
of 1e-12: what that run exports has every tensor of PEFT's, within ten such steps, and PEFT's settings. Exit status 0 or 1.

Made with torch 2.15.0, transformers 5.23.0 and peft 0.21.2 on the CPU.
"""
import argparse
import array
import json
import os
import random
import sys
import tempfile
import warnings

import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model

from safetensors.torch import load_file

import logits
from programs import BIN, eps

BASES = {"tied": "wte", "untied": "wte", "llama_linear": "embed_tokens", "llama3": "embed_tokens", "gemma3_tied": "embed_tokens",
         "gemma": "embed_tokens", "qwen2_tied": "embed_tokens", "qwen3_tied": "embed_tokens", "mistral": "embed_tokens"}
GPT2 = ["c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj"]
OTHERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "mlp.down_proj"]
SEQ, WITHIN = 12, 2e-5  # of the loss


def patterns(draw, names, values):
    """Names, whole, by block or by pattern, in the order in which PEFT saves them: the first counts that matches."""
    some = [draw.choice([n, r"layers\.0\..*" + n, r"h\.1\..*" + n, r".*\.[01]\..*" + n, r"^(model|transformer)\..*\." + n,
                         f"[a-z_]+|{n}"]) for n in draw.sample(names, draw.choice([0, 0, 1, 2, 3]))]
    return {key: draw.choice(values) for key in sorted(set(some))}


def blocks(draw):
    layers = draw.choice([None, None, 0, 1, [0], [1], [0, 1], [1, 7], []])
    return dict(layers_to_transform=layers, layers_pattern=None if layers is None else draw.choice([None, "(layers|h)", ["h", "layers"]]))


def settings(draw, base):
    names = GPT2 if BASES[base] == "wte" else OTHERS
    some = draw.sample(names, draw.randint(1, 3))
    table = draw.choice([[], [], [BASES[base]], ["lm_head"], [BASES[base], "lm_head"]])
    targets = draw.choice(["all-linear", some, some, r".*\.(" + "|".join(n.replace(".", r"\.") for n in some) + ")",
                           r".*\.0\.(.*\.)?(" + "|".join(some) + ")"])
    layers = blocks(draw) if isinstance(targets, list) else {}
    return dict(r=draw.randint(1, 6), rank_pattern=patterns(draw, names, [1, 2, 5, 9]),
                alpha_pattern=patterns(draw, names, [1, 2.5, 16]), **layers, lora_alpha=draw.choice([1, 3, 8, 2.5]), use_rslora=draw.random() < 0.3,
                lora_dropout=draw.choice([0, 0.1]), fan_in_fan_out=names is GPT2, modules_to_save=table or None,
                target_modules=targets,
                exclude_modules=draw.choice([None, None, [n for n in names if n not in some][:1]]))


def loss_of(binaries, folder, data, base=None):
    return json.loads(eps(binaries, "eval", "--model", folder, "--data", data, "--seq", SEQ, "--json", "--device", "cpu",
                          *(["--base-model", base] if base else [])))["loss"]


def same_files(binaries, folder, data, base, work):
    """Trained for a step of 1e-12, and exported: PEFT's tensors and settings."""
    run, out = os.path.join(work, "run"), os.path.join(work, "out")
    eps(binaries, "train", "--model", folder, "--base-model", base, "--data", data, "--seq", SEQ, "--batch", 2, "--steps", 1, "--lr",
        "1e-12", "--weight-decay", 0, "--device", "cpu", "--out", run)
    eps(binaries, "export", "--model", run, "--base-model", base, "--out", out)
    tensors, configs = ([read(os.path.join(where, name)) for where in (folder, out)]
                        for read, name in ((load_file, "adapter_model.safetensors"),
                                           (lambda path: json.load(open(path)), "adapter_config.json")))
    for config in configs:
        del config["base_model_name_or_path"]
    return configs[0] == configs[1] and tensors[0].keys() == tensors[1].keys() and all(
        torch.allclose(t, tensors[1][name], rtol=0, atol=1e-11) for name, t in tensors[0].items())


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("n", type=int, nargs="?", default=100)
    arguments.add_argument("--bin", default=BIN)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    draw, farthest, faults = random.Random(options.seed), 0, 0
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for k in range(options.n):
        base = draw.choice(list(BASES))
        path, how = os.path.join(logits.FIXTURES, base), settings(draw, base)
        torch.manual_seed(draw.randrange(2**31))
        kind = logits.MODELS[base][0]
        model = get_peft_model(kind.from_pretrained(path, dtype=torch.float32), LoraConfig(task_type="CAUSAL_LM", **how))
        with torch.no_grad():
            for p in model.parameters():
                if p.requires_grad:
                    p.add_(torch.randn_like(p) * 0.3)
        with tempfile.TemporaryDirectory() as folder:
            adapter, data = os.path.join(folder, "adapter"), os.path.join(folder, "ids.bin")
            model.save_pretrained(adapter, save_embedding_layers=False)
            ids = torch.randint(0, model.config.vocab_size, (4 * SEQ + 1,))
            with open(data, "wb") as file:
                array.array("H", ids.tolist()).tofile(file)
            again = PeftModel.from_pretrained(kind.from_pretrained(path, dtype=torch.float32), adapter).eval()
            with torch.no_grad():
                want = torch.nn.functional.cross_entropy(again(input_ids=ids[:-1].view(-1, SEQ)).logits.flatten(0, 1), ids[1:]).item()
            merged = os.path.join(folder, "merged")
            eps(options.bin, "export", "--model", adapter, "--base-model", path, "--merge", "--out", merged)
            if not same_files(options.bin, adapter, data, path, folder):
                faults += 1
                print(k, base, how, "another adapter is exported")
            for got in loss_of(options.bin, adapter, data, path), loss_of(options.bin, merged, data):
                farthest = max(farthest, abs(got - want) / want)
                if abs(got - want) > WITHIN * want:
                    faults += 1
                    print(k, base, how, want, got)
    print(f"{options.n} adapters drawn by seed {options.seed}: {faults} faults, the farthest {farthest:.1e} of the loss")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
