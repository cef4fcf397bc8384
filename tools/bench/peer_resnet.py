#!/usr/bin/env python3
"""Steps of torchvision's residual nets by PyTorch on the CPU, in fp32, channels last, SGD with Nesterov's momentum.

    peer_resnet.py NAME SIDE BATCH STEPS [THREADS]

Without THREADS the best of one and of all processors. SIDE 32: the stem is CIFAR's, of 3 x 3 and without a pool. Prints a line
of milliseconds for each step but the first two; and on the last one the bytes of memory that training took beside the libraries:
what the process grew by at most."""
import os
import resource
import sys
import time

import torch
import torchvision

name, side, batch, steps = sys.argv[1], *map(int, sys.argv[2:5])
threads = [int(sys.argv[5])] if len(sys.argv) > 5 else sorted({1, os.cpu_count()})


def run(n_threads, n):
    torch.set_num_threads(n_threads)
    torch.manual_seed(1)
    model = torchvision.models.get_model(name, num_classes=10)
    if side == 32:
        model.conv1, model.maxpool = torch.nn.Conv2d(3, 64, 3, 1, 1, bias=False), torch.nn.Identity()
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, 0.9, weight_decay=5e-4, nesterov=True)
    x = torch.randn(batch, 3, side, side).contiguous(memory_format=torch.channels_last)
    labels, times = torch.arange(batch) % 10, []
    for _ in range(n):
        before = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(model(x), labels).backward()
        optimizer.step()
        times.append(1e3 * (time.perf_counter() - before))
    return times


def grown():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


torch.nn.functional.conv2d(torch.randn(1, 3, 8, 8), torch.randn(4, 3, 3, 3)).sum()  # the libraries
before = grown()
best = min(threads, key=lambda n: min(run(n, 3))) if len(threads) > 1 else threads[0]
for ms in run(best, steps)[2:]:
    print(f"{ms:.1f}")
print(grown() - before)
