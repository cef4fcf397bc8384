#!/usr/bin/env python3
"""Trains LoRA adapters of a Qwen 3 by PEFT on the CPU and prints its speed: the peer of tools/bench/lora.sh.

    peer_lora.py make --model DIR                     writes random weights in bf16 beside DIR/config.json
    peer_lora.py train --model DIR --data FILE.bin    prints one JSON object per variant, and at the end the fastest again
                                                      with "best": true

Variants: the base in fp32 or bf16, computed as it is or under autocast to bf16; the adapters in fp32, as PEFT keeps them
beside a bf16 base, or in bf16; activations kept or recomputed; eager or fused (sdpa) attention; compiled or not. AdamW is
fused. The data are 16-bit tokens, of which each step takes the next --batch rows. Freed memory of an earlier variant stays
with the process, so rss_bytes is right when there is one variant.
"""
import argparse
import array
import gc
import itertools
import json
import os
import resource
import statistics
import time

from peer_environment import restart_at_best

VARIANTS = {"base": ("bf16", "fp32"), "autocast": ("on", "off"), "adapters": ("fp32", "bf16"), "checkpoint": ("off", "on"),
            "attention": ("sdpa", "eager"), "compile": ("off", "on")}


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("what", choices=("make", "train"))
    p.add_argument("--model", required=True)
    p.add_argument("--data")
    for name, default in (("rank", 16), ("batch", 8), ("seq", 256), ("threads", os.cpu_count()), ("steps", 4),
                          ("warmup", 2)):
        p.add_argument("--" + name, type=int, default=default)
    for name, values in VARIANTS.items():
        p.add_argument("--" + name, choices=("all", *values), default="all")
    return p.parse_args()


options = arguments()
restart_at_best(options.threads, HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")

import peft  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402


def make(o):
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(o.model)
    transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(o.model)


def load(o, way):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        o.model, dtype=torch.bfloat16 if way["base"] == "bf16" else torch.float32, attn_implementation=way["attention"])
    model.config.use_cache = False
    if way["checkpoint"] == "on":
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    model = peft.get_peft_model(model, peft.LoraConfig(r=o.rank, lora_alpha=2 * o.rank, target_modules="all-linear"),
                                autocast_adapter_dtype=way["adapters"] == "fp32")
    return model.train()


def measure(o, way, rows):
    torch.manual_seed(1)
    model = load(o, way)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01, fused=True)
    step = torch.compile(model) if way["compile"] == "on" else model
    times = []
    for i in range(o.warmup + o.steps):
        ids = rows[i * o.batch:(i + 1) * o.batch]
        began = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=way["autocast"] == "on"):
            loss = step(input_ids=ids[:, :-1], labels=ids[:, 1:], shift_labels=ids[:, 1:]).loss
        loss.backward()
        optimizer.step()
        loss = loss.item()
        times.append(time.perf_counter() - began)
    ms = statistics.median(times[o.warmup:]) * 1e3
    return {"peer": f"peft {peft.__version__} torch {torch.__version__}", **way, "ms": round(ms, 1), "loss": round(loss, 4),
            "trained": sum(p.numel() for p in trained), "parameters": sum(p.numel() for p in model.parameters()),
            "rss_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
            "tokens_per_s": round(o.batch * o.seq / ms * 1e3, 1)}


def ways(o):
    given = [values if getattr(o, name) == "all" else (getattr(o, name),) for name, values in VARIANTS.items()]
    for values in itertools.product(*given):
        way = dict(zip(VARIANTS, values))
        if way["base"] == "fp32" and way["adapters"] == "bf16":
            continue  # PEFT gives adapters the type of their base
        yield way


def train(o):
    torch.set_num_threads(o.threads)
    with open(o.data, "rb") as f:
        stream = torch.tensor(array.array("H", f.read()), dtype=torch.long)
    rows = stream.unfold(0, o.seq + 1, o.seq)
    results = []
    for way in ways(o):
        results.append(measure(o, way, rows))
        gc.collect()
        print(json.dumps(results[-1]), flush=True)
    print(json.dumps(dict(min(results, key=lambda r: r["ms"]), best=True)), flush=True)


(make if options.what == "make" else train)(options)
