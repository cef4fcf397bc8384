"""Convolutional nets by PyTorch, of torchvision's blocks: tests/fixtures/{wide_resnet,resnet_basic,resnet_bottleneck}, and
two of these with gradients from means of blocks, {pooled_wide,means_bottleneck}; one of which the largest weights of the
blocks' filters are trained, and the others are 0, sparse_wide; two with ghost batches, {ghost_wide,ghost_bottleneck}.

    python make_nets.py [NAME...]

A row's ids are the pixels of an image, a byte each for red, green and blue; its label stands at the first of them. Batch norms
are those of a part, or a ghost batch. Of several the running statistics move once, towards their mean. Weights of convolutions are
(out, ky, kx, in), as units have them.

Made with torch 2.15.0 and torchvision 0.29.2 on the CPU.
"""
import os
import shutil
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torchvision.models.resnet import BasicBlock, Bottleneck, conv1x1

import distribution
import drawn
import fixture
import own
import training

BATCH, N_LABELS, N_STEPS, EPSILON, SAMPLE = 8, 5, 8, 1e-6, 25
MEAN, DEVIATION = [0.5, 0.25, 0.125], [0.25, 0.5, 0.125]
COMMON = dict(num_channels=3, image_mean=MEAN, image_std=DEVIATION, num_labels=N_LABELS)
CONFIGS = {
    "wide_resnet": dict(model_type="wide_resnet", architectures=["WideResNetForImageClassification"], depth=16,
                        widen_factor=1, image_size=11, **COMMON),
    "resnet_basic": dict(model_type="torchvision_resnet", architectures=["TorchvisionResNetForImageClassification"],
                         layer_type="basic", depths=[2, 1, 2, 1], embedding_size=6, stem="cifar", image_size=13, **COMMON),
    "resnet_bottleneck": dict(model_type="torchvision_resnet",
                              architectures=["TorchvisionResNetForImageClassification"], layer_type="bottleneck",
                              depths=[1, 2, 1, 1], embedding_size=4, stem="imagenet", image_size=35, **COMMON),
}


POOLED = {"pooled_wide": 2, "means_bottleneck": 4}                     # sides of blocks
SPARSE = {"sparse_wide": 0.3}                                          # shares that stay
CONFIGS |= {"pooled_wide": CONFIGS["wide_resnet"], "means_bottleneck": CONFIGS["resnet_bottleneck"],
            "sparse_wide": CONFIGS["wide_resnet"],
            "ghost_wide": CONFIGS["wide_resnet"] | {"ghost_batch_size": 2},
            "ghost_bottleneck": CONFIGS["resnet_bottleneck"] | {"ghost_batch_size": 4}}


class Pooled(torch.autograd.Function):
    """A convolution whose weight's gradient is that of an input of means (arXiv:2409.11902); all else is exact."""

    @staticmethod
    def forward(ctx, x, weight, stride, padding, side):
        ctx.save_for_backward(x, weight)
        ctx.how = stride, padding, side
        return F.conv2d(x, weight, None, stride, padding)

    @staticmethod
    def backward(ctx, gradient):
        (x, weight), (stride, padding, side) = ctx.saved_tensors, ctx.how
        means = F.avg_pool2d(x, side, side, ceil_mode=True, count_include_pad=False)
        means = means.repeat_interleave(side, 2).repeat_interleave(side, 3)[:, :, :x.shape[2], :x.shape[3]]
        return (nn.grad.conv2d_input(x.shape, weight, gradient, stride, padding),
                nn.grad.conv2d_weight(means, weight.shape, gradient, stride, padding), None, None, None)


def pool(model, side):
    """Convolutions in blocks that read what a norm and a relu made there: not torchvision's first ones, nor its shortcuts."""
    first = () if isinstance(model, WideResNet) else ("conv1", "downsample.0")
    for name, module in model.named_modules():
        if isinstance(module, nn.Conv2d) and "." in name and not name.endswith(first):
            module.forward = lambda x, m=module: Pooled.apply(x, m.weight, m.stride, m.padding, side)


class GhostNorm(nn.BatchNorm2d):
    """Hoffer et al. (arXiv:1705.08741): runs of `ghost` rows are normalised by themselves."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        ghosts, n = x.split(self.ghost), len(x) // self.ghost
        means, variances = x.new_zeros(n, x.shape[1]), x.new_ones(n, x.shape[1])
        y = [F.batch_norm(g, m, v, self.weight, self.bias, True, 1.0, self.eps) for g, m, v in zip(ghosts, means, variances)]
        self.running_mean.copy_(means.mean(0))
        self.running_var.copy_(variances.mean(0))
        return torch.cat(y)


def haunt(model, rows):
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.__class__, module.ghost = GhostNorm, rows


class WideBlock(nn.Module):
    """Zagoruyko & Komodakis (arXiv:1605.07146): the shortcut's convolution reads the first norm's result."""

    def __init__(self, n_in, n, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(n_in), nn.Conv2d(n_in, n, 3, stride, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(n), nn.Conv2d(n, n, 3, 1, 1, bias=False)
        self.convShortcut = nn.Conv2d(n_in, n, 1, stride, bias=False) if n_in != n or stride > 1 else None

    def forward(self, x):
        o = F.relu(self.bn1(x))
        y = self.conv2(F.relu(self.bn2(self.conv1(o))))
        return y + (x if self.convShortcut is None else self.convShortcut(o))


class Stage(nn.Module):
    def __init__(self, blocks):
        super().__init__()
        self.layer = nn.Sequential(*blocks)

    def forward(self, x):
        return self.layer(x)


class WideResNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        n_in = 16
        for i in range(3):
            n, blocks = 16 * 2**i * c["widen_factor"], []
            for k in range((c["depth"] - 4) // 6):
                blocks.append(WideBlock(n_in, n, 2 if i and k == 0 else 1))
                n_in = n
            setattr(self, f"block{i + 1}", Stage(blocks))
        self.bn1, self.fc = nn.BatchNorm2d(n_in), nn.Linear(n_in, c["num_labels"])

    def forward(self, x):
        x = self.block3(self.block2(self.block1(self.conv1(x))))
        return self.fc(F.relu(self.bn1(x)).mean((2, 3)))


class ResNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        block, n_in = BasicBlock if c["layer_type"] == "basic" else Bottleneck, c["embedding_size"]
        large = c["stem"] == "imagenet"
        self.conv1 = nn.Conv2d(3, n_in, 7 if large else 3, 2 if large else 1, 3 if large else 1, bias=False)
        self.bn1, self.large = nn.BatchNorm2d(n_in), large
        for i, depth in enumerate(c["depths"]):
            inner, blocks = c["embedding_size"] * 2**i, []
            for k in range(depth):
                stride, n = 2 if i and k == 0 else 1, inner * block.expansion
                down = nn.Sequential(conv1x1(n_in, n, stride), nn.BatchNorm2d(n)) if n_in != n or stride > 1 else None
                blocks.append(block(n_in, inner, stride, down, base_width=64))
                n_in = n
            setattr(self, f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(n_in, c["num_labels"])

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.max_pool2d(x, 3, 2, 1) if self.large else x
        return self.fc(self.layer4(self.layer3(self.layer2(self.layer1(x)))).mean((2, 3)))


def in_unit(p):
    """As units have it: channels last."""
    return p.permute(0, 2, 3, 1) if p.dim() == 4 else p


def tensors_of(model):
    """Parameters, and running statistics."""
    return dict(model.named_parameters()) | {t: b for t, b in model.named_buffers() if not t.endswith("tracked")}


def how_drawn(tensor, p):
    """base and scale."""
    if tensor.endswith("running_var") or (p.dim() == 1 and tensor.endswith("weight")):
        return 1.0, 0.4
    if p.dim() == 1:
        return 0.0, 0.2
    return 0.0, float(np.float32(np.sqrt(12 / (p.numel() / len(p)))))


def model_of(name, dtype):
    c = CONFIGS[name]
    model = (WideResNet if c["model_type"] == "wide_resnet" else ResNet)(c)
    if name in POOLED:
        pool(model, POOLED[name])
    if "ghost_batch_size" in c:
        haunt(model, c["ghost_batch_size"])
    with torch.no_grad():
        for t, p in tensors_of(model).items():
            w = torch.from_numpy(drawn.weights(f"{name}:{t}", p.numel(), *how_drawn(t, p)))
            in_unit(p).copy_(w.view_as(in_unit(p)))
    return model.to(dtype).train()


def pixels_of(name, ids, dtype):
    side = CONFIGS[name]["image_size"]
    bytes = torch.stack([ids >> shift & 255 for shift in (0, 8, 16)], 1).double().view(len(ids), 3, side, side)
    mean, deviation = (torch.tensor(x, dtype=torch.float64).view(3, 1, 1) for x in (MEAN, DEVIATION))
    return ((bytes / 255 - mean) / deviation).to(dtype)


class Run(distribution.Run):
    """way: how fp32 computes: by oneDNN, without it, or channels last."""

    def __init__(self, name, optimizer, parts, dtype, way="onednn"):
        self.m = dict(optimizer=optimizer, parts=parts, lr=1e-3, decay=training.DECAY, epsilon=EPSILON)
        self.name, self.way, self.model, self.n_runs = name, way, model_of(name, dtype), 1
        if way == "last":
            self.model = self.model.to(memory_format=torch.channels_last)
        self.products, self.tied, self.step = None, None, 0
        self.master = {t: p.detach().clone() for t, p in self.model.named_parameters()}
        self.moments = {t: (torch.zeros_like(w), torch.zeros_like(w)) for t, w in self.master.items()}
        self.dtype = dtype
        if name in SPARSE:
            self.sparsify(SPARSE[name], [t for t, p in self.model.named_parameters()
                                         if p.dim() == 4 and p.shape[2] > 1 and "." in t.removesuffix(".weight")])

    def minibatch(self):
        side, n_labels = CONFIGS[self.name]["image_size"], CONFIGS[self.name]["num_labels"]
        ids, labels = drawn.minibatch(self.name, self.step % training.N_MINIBATCHES, BATCH, side * side, 1 << 24, 0)
        return torch.from_numpy(ids), torch.from_numpy(labels[:, :1] % n_labels)

    def logits(self, ids):
        x = pixels_of(self.name, ids, self.dtype)
        x = x.contiguous(memory_format=torch.channels_last) if self.way == "last" else x
        with torch.backends.mkldnn.flags(enabled=self.way != "plain"):
            return self.model(x)[:, None]

    def gradients(self, n_runs):
        """Running statistics begin anew in each part, and are then set to what is due."""
        running = {t: b for t, b in tensors_of(self.model).items() if "running" in t}
        before, sums = {t: b.clone() for t, b in running.items()}, {t: torch.zeros_like(b) for t, b in running.items()}
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.momentum = 1.0
        for g in super().gradients(n_runs):
            for t, b in running.items():
                sums[t] += b
            yield g
        with torch.no_grad():
            for t, b in running.items():
                b.copy_(0.9 * before[t] + 0.1 * sums[t] / n_runs)


def flat(tensors):
    return {t: in_unit(x).detach().numpy().ravel().copy() for t, x in tensors.items()}


RUNS = [dict(dtype=torch.float64), dict(dtype=torch.float32), dict(dtype=torch.float32, way="plain"),
        dict(dtype=torch.float32, way="last")]


def make_gradient(name, writer):
    runs = [Run(name, "adamw", 1, **how) for how in RUNS]
    exact, *singles = [flat(run.gradient()) for run in runs]
    return {"loss": runs[0].loss, "fp32_losses": [run.loss for run in runs[1:]],
            "pieces": training.digest(writer, f"{name}:gradient", exact, singles, 4 * SAMPLE)}


def make_training(name, writer, optimizer, parts):
    runs = [Run(name, optimizer, parts, **how) for how in RUNS]
    start = flat(tensors_of(runs[0].model))
    for run in runs:
        run.train(N_STEPS)
    exact, *singles = [flat(tensors_of(run.model)) for run in runs]
    print(name, optimizer, parts, runs[0].losses[0], "->", runs[0].losses[-1], flush=True)
    return {"optimizer": optimizer, "parts": parts, "losses": runs[0].losses,
            "fp32_losses": [run.losses for run in runs[1:]],
            "pieces": training.digest(writer, f"{name}:{optimizer}{parts}", exact, singles, SAMPLE, start)}


def make(name):
    writer, folder = training.Writer(), os.path.join(training.FIXTURES, name)
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    fixture.write(os.path.join(folder, "config.json"), CONFIGS[name])
    run = Run(name, "adamw", 1, torch.float64)
    with torch.no_grad():
        run.model.eval()
        logits = run.logits(run.minibatch()[0])[:, 0]
    reference = {
        "name": name, "draw": name, "made_with": f"torch {torch.__version__}", "batch": BATCH,
        "seq": CONFIGS[name]["image_size"]**2, "label_gap": 0, "n_labels": N_LABELS,
        "n_minibatches": training.N_MINIBATCHES, "n_steps": N_STEPS, "lr": 1e-3, "beta1": training.BETAS[0],
        "beta2": training.BETAS[1], "epsilon": EPSILON, "weight_decay": training.DECAY, "n_buckets": training.N_BUCKETS,
        "logits": logits.tolist(),
        "weights": [{"tensor": t, "shape": list(p.shape), "n": p.numel(), "base": how_drawn(t, p)[0],
                     "scale": how_drawn(t, p)[1]} for t, p in tensors_of(run.model).items()],
        "gradient": make_gradient(name, writer),
        "training": [make_training(name, writer, "adamw", 1), make_training(name, writer, "adama", 2)]}
    if name in POOLED:
        reference["pooled"] = POOLED[name]
    if name in SPARSE:
        reference["sparse"] = SPARSE[name]
    fixture.write(os.path.join(folder, "reference.json"), reference)
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in sys.argv[1:] or CONFIGS:
        make(which)
