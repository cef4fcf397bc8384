"""Convolutions and pools of images, and their gradients, by PyTorch in float64: tests/fixtures/convolutions.json.

    python make_convolutions.py

Images are stored channels-last, weights as [o][ky][kx][c]. Given numbers are stored as multiples of 1/64, so that bf16 has
them, too. Made with torch 2.15.0 on the CPU.
"""
import json
import os

import torch
from torch.nn import functional

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "convolutions.json")
CONVOLUTIONS = [  # rows, height, width, channels in and out, groups, window, stride, padding
    (2, 7, 6, 3, 5, 1, 3, 1, 1),
    (2, 9, 8, 4, 6, 2, 3, 2, 1),
    (1, 11, 12, 3, 4, 1, 7, 2, 3),
    (3, 5, 5, 6, 3, 3, 1, 2, 0),
]
POOLS = [(2, 7, 6, 3, 3, 2, 1), (1, 6, 6, 5, 2, 2, 0), (2, 4, 4, 3, 4, 1, 0)]  # rows, height, width, channels, window ...


def drawn(*shape):
    return (torch.randint(-127, 128, shape, generator=drawn.generator).double() / 64).requires_grad_()


def last(x):
    return x.detach().movedim(1, -1).flatten().tolist()


def given(x):
    return [round(number * 64) for number in last(x)]


def convolution(n, height, width, n_in, n_out, groups, window, stride, padding):
    x, w, b = drawn(n, n_in, height, width), drawn(n_out, n_in // groups, window, window), drawn(n_out, 1)
    y = functional.conv2d(x, w, b[:, 0], stride, padding, 1, groups)
    dy = drawn(*y.shape)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    return {"sizes": [n, height, width, n_in, n_out, groups, window, stride, padding], "x": given(x), "weight": given(w),
            "bias": given(b), "y_gradient": given(dy), "y": last(y), "x_gradient": last(dx), "weight_gradient": last(dw)}


def pool(function, n, height, width, channels, window, stride, padding):
    x = drawn(n, channels, height, width)
    x.data = (x.data * 2).round() / 2  # many are equal
    y = function(x, window, stride, padding)
    dy = drawn(*y.shape)
    return {"sizes": [n, height, width, channels, window, stride, padding], "x": given(x), "y_gradient": given(dy),
            "y": last(y), "x_gradient": last(torch.autograd.grad(y, x, dy)[0])}


if __name__ == "__main__":
    drawn.generator = torch.Generator().manual_seed(1)
    with open(FIXTURE, "w") as file:
        json.dump({"conv2d": [convolution(*sizes) for sizes in CONVOLUTIONS],
                   "max_pool": [pool(functional.max_pool2d, *sizes) for sizes in POOLS],
                   "average_pool": [pool(functional.avg_pool2d, *sizes) for sizes in POOLS]}, file)
        file.write("\n")
