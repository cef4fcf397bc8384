#!/usr/bin/env python3
"""Times PyTorch's convolutions in bf16, channels last, through cuDNN with deterministic algorithms: the peers that
bench_cuda's are measured against.

    peer_convolutions.py [--images 64] [--device cuda]

For the shapes of tools/bench/cuda/convolutions.c, prints lines cudnn-DIRECTION-SIZE-IN-OUT-WINDOW-STRIDE|MILLISECONDS|, medians of
several rounds, and net-DIRECTION|MILLISECONDS| of all of ResNet-50's. The gradient of weights is in bf16 here. The first line
names the versions.
"""
import argparse

import torch

from peer_rounds import middle_ms, synchronizer, tell_versions

SHAPES = [  # size, channels in and out, window, stride; how many the net has
    (224, 3, 64, 7, 2, 1), (56, 64, 64, 1, 1, 1), (56, 64, 64, 3, 1, 3), (56, 64, 256, 1, 1, 4), (56, 256, 64, 1, 1, 2),
    (56, 256, 128, 1, 1, 1), (56, 128, 128, 3, 2, 1), (28, 128, 512, 1, 1, 4), (56, 256, 512, 1, 2, 1),
    (28, 512, 128, 1, 1, 3), (28, 128, 128, 3, 1, 3), (28, 512, 256, 1, 1, 1), (28, 256, 256, 3, 2, 1),
    (14, 256, 1024, 1, 1, 6), (28, 512, 1024, 1, 2, 1), (14, 1024, 256, 1, 1, 5), (14, 256, 256, 3, 1, 5),
    (14, 1024, 512, 1, 1, 1), (14, 512, 512, 3, 2, 1), (7, 512, 2048, 1, 1, 3), (14, 1024, 2048, 1, 2, 1),
    (7, 2048, 512, 1, 1, 2), (7, 512, 512, 3, 1, 2)]


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("--images", type=int, default=64)
    p.add_argument("--device", default="cuda")
    return p.parse_args()


def measure(o, shape, synchronize, net):
    size, n_in, n_out, window, stride, n = shape
    last = {"device": o.device, "dtype": torch.bfloat16}
    x = torch.randn(o.images, n_in, size, size, **last).contiguous(memory_format=torch.channels_last)
    w = torch.randn(n_out, n_in, window, window, **last).contiguous(memory_format=torch.channels_last)
    y = torch.nn.functional.conv2d(x, w, None, stride, window // 2)
    dy = torch.randn_like(y)

    def backward(of_x, of_w):
        return torch.ops.aten.convolution_backward(dy, x, w, None, [stride] * 2, [window // 2] * 2, [1, 1], False,
                                                   [0, 0], 1, [of_x, of_w, False])
    runs = {"forward": lambda: torch.nn.functional.conv2d(x, w, None, stride, window // 2),
            "input": lambda: backward(True, False), "weights": lambda: backward(False, True)}
    with torch.no_grad():
        for name, run in runs.items():
            if name == "input" and n_in == 3:    # the image
                continue
            ms = middle_ms(run, synchronize, 8)
            net[name] += n * ms
            print(f"cudnn-{name}-{size}-{n_in}-{n_out}-{window}-{stride}|{ms:.4f}|", flush=True)


def main():
    o = arguments()
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    synchronize = synchronizer(o.device)
    tell_versions(o.device)
    net = {"forward": 0.0, "input": 0.0, "weights": 0.0}
    for shape in SHAPES:
        measure(o, shape, synchronize, net)
    for name, ms in net.items():
        print(f"net-{name}|{ms:.3f}|", flush=True)


main()
