#!/usr/bin/env python3
"""Trains a BERT of `transformers` on random masked tokens with PyTorch on the CPU: the peer of tools/bench/bert.sh.

Attention is sdpa, AdamW is fused, and a step with one sequence comes first. Prints one JSON object.

  memory    peak memory of one step beyond that after loading the libraries; freed blocks return to the system at once, so
            an allocator's cache does not count
  speed     sequences per second of the last step, with the default allocator

What does not fit the machine's available memory says so.
"""
import argparse
import json
import resource
import time

from peer_environment import restart_at_best

p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
p.add_argument("what", choices=("memory", "speed"))
p.add_argument("--config", required=True)
for name in ("batch", "seq", "steps", "threads"):
    p.add_argument("--" + name, type=int, required=True)
p.add_argument("--checkpoint", choices=("yes", "no"), required=True)
a = p.parse_args()

freed_at_once = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0"}
restart_at_best(a.threads, HF_HUB_OFFLINE="1", **(freed_at_once if a.what == "memory" else {}))

import torch  # noqa: E402
import transformers  # noqa: E402


def status(field, path="/proc/self/status"):
    with open(path) as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def train(batch, steps, config):
    """Sequences per second of the last step."""
    torch.manual_seed(1)
    model = transformers.BertForMaskedLM(config).train()
    if a.checkpoint == "yes":
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    for rows in [1] + [batch] * steps:
        ids = torch.randint(2, config.vocab_size, (rows, a.seq))
        labels = torch.where(torch.rand(rows, a.seq) < 0.15, ids, -100)
        began = time.perf_counter()
        model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        seconds = time.perf_counter() - began
    return batch / seconds


def main():
    torch.set_num_threads(a.threads)
    config = transformers.BertConfig.from_json_file(a.config)
    config._attn_implementation = "sdpa"
    small = transformers.BertConfig(vocab_size=16, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
                                    intermediate_size=8)
    train(1, 1, small)
    before = status("VmRSS")
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (before + status("MemAvailable", "/proc/meminfo"), most))
    try:
        speed = train(a.batch, a.steps if a.what == "speed" else 1, config)
    except (MemoryError, RuntimeError) as e:
        if "allocate" not in str(e) and not isinstance(e, MemoryError):
            raise
        print(json.dumps({"fits": False}))
        return
    print(json.dumps({"fits": True, "bytes": status("VmHWM") - before} if a.what == "memory" else
                     {"fits": True, "sequences_per_s": round(speed, 3)}))


main()
