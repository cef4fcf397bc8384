#!/usr/bin/env python3
"""PyTorch's convolutions (oneDNN, channels last) at the sizes of bench_operations, as it prints them.

    peer_conv2d.py [threads] [fp32|bf16]

A single thread is timed by its own clock, as bench_operations does; each figure is the best of the repeats that fit into a
fifth of a second, at least five."""
import sys
import time

import torch

LAYERS = [  # size, channels in and out, window, stride
    ("ResNet-18, CIFAR: first", 32, 3, 64, 3, 1),
    ("ResNet-18: stage 1", 32, 64, 64, 3, 1),
    ("ResNet-18: into stage 2", 32, 64, 128, 3, 2),
    ("ResNet-18: beside it", 32, 64, 128, 1, 2),
    ("ResNet-18: stage 2", 16, 128, 128, 3, 1),
    ("ResNet-18: stage 3", 8, 256, 256, 3, 1),
    ("ResNet-18: stage 4", 4, 512, 512, 3, 1),
    ("WRN-28-2: into stage 1", 32, 16, 32, 3, 1),
    ("WRN-28-2: stage 1", 32, 32, 32, 3, 1),
    ("WRN-28-2: into stage 2", 32, 32, 64, 3, 2),
    ("WRN-28-2: stage 2", 16, 64, 64, 3, 1),
    ("WRN-28-2: stage 3", 8, 128, 128, 3, 1),
    ("ResNet-50: 1 x 1", 14, 1024, 256, 1, 1),
    ("ResNet-50: stage 4", 7, 512, 512, 3, 1),
]
threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
dtype = torch.bfloat16 if len(sys.argv) > 2 and sys.argv[2] == "bf16" else torch.float32
clock = time.thread_time if threads == 1 else time.perf_counter
torch.set_num_threads(threads)


def best(run):
    run()
    start, least, n = clock(), 1e9, 0
    while n < 5 or clock() - start < 0.2:
        before = clock()
        run()
        least = min(least, clock() - before)
        n += 1
    return least


for name, size, n_in, n_out, window, stride in LAYERS:
    x = torch.randn(32, n_in, size, size, dtype=dtype).contiguous(memory_format=torch.channels_last)
    w = torch.randn(n_out, n_in, window, window, dtype=dtype).contiguous(memory_format=torch.channels_last)
    y = torch.nn.functional.conv2d(x, w, None, stride, window // 2)
    dy = torch.randn_like(y)

    def backward(of_x, of_w):
        return torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [window // 2] * 2, [1, 1], False,
                                                   [0, 0], 1, [of_x, of_w, False])

    flops = 2 * y.numel() * n_in * window * window
    times = [best(lambda: torch.nn.functional.conv2d(x, w, None, stride, window // 2)),
             best(lambda: backward(True, False)), best(lambda: backward(False, True))]
    print(f"  {name:28}" + "".join(f" {1e3 * t:8.3f} ms {1e-9 * flops / t:6.1f}" for t in times), flush=True)
