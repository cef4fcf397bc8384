#!/usr/bin/env python3
"""Trains a BERT of `transformers` on random masked tokens on a GPU whose memory is capped: the peer of tools/gpu/rivals.sh.

    peer_bert_capped.py --config config.json --gib 16 --seq 128 --most 256 --seconds 60

Weights are fp32 and computed with in bf16 (autocast), attention is sdpa, AdamW is fused. Activations are kept, then recomputed
(gradient checkpointing); with each, batches double until one does not fit or is --most. Each gives one JSON object: batch,
checkpoint, sequences per second of the median step, peak bytes. No batch begins after --seconds.
"""
import argparse
import gc
import json
import statistics
import time

import torch
import transformers


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--config", required=True)
    p.add_argument("--gib", type=float, required=True)
    for name, default in (("seq", 128), ("most", 256), ("steps", 4), ("seconds", 60)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    return p.parse_args()


def run(a, model, optimizer, batch):
    """Seconds of the median step."""
    vocabulary, times = model.config.vocab_size, []
    for _ in range(a.steps):
        ids = torch.randint(2, vocabulary, (batch, a.seq), device=a.device)
        labels = torch.where(torch.rand(batch, a.seq, device=a.device) < 0.15, ids, -100)
        began = time.perf_counter()
        with torch.autocast(a.device, torch.bfloat16):
            loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # waits for the device
        times.append(time.perf_counter() - began)
    return statistics.median(times[1:])


def peak(a):
    return torch.cuda.max_memory_reserved() if a.device == "cuda" else 0


def climb(a, config, checkpoint, deadline):
    torch.manual_seed(1)
    model = transformers.BertForMaskedLM(config).to(a.device).train()
    if checkpoint:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batch = 2
    while batch <= a.most and time.monotonic() < deadline:
        try:
            seconds = run(a, model, optimizer, batch)
        except torch.cuda.OutOfMemoryError:
            break
        print(json.dumps({"batch": batch, "checkpoint": checkpoint, "sequences_per_s": round(batch / seconds, 1),
                          "peak_bytes": peak(a)}), flush=True)
        batch *= 2


def main():
    a = arguments()
    config = transformers.BertConfig.from_json_file(a.config)
    config._attn_implementation = "sdpa"
    if a.device == "cuda":
        whole = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, a.gib * 2**30 / whole))
    deadline = time.monotonic() + a.seconds
    for checkpoint in (False, True):
        climb(a, config, checkpoint, deadline)
        gc.collect()
        if a.device == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()


main()
