"""What eps saves of a ResNet, loaded by torchvision, and what torchvision saves, evaluated by eps: the same predictions.

    python check_nets.py [--bin BIN]

The presets resnet-18 and resnet-50, and configs of ResNet-34 and -101, of images of 72 x 72, some steps on random ones. Exit
status 0 if all probabilities are within 1e-5, and `eps plan` counts torchvision's parameters.
"""
import argparse
import json
import pathlib
import tempfile

import numpy as np
import torch
import torchvision
from safetensors.torch import load_file, save_file

from programs import BIN, eps

N, SIDE, CLASSES = 12, 72, 4
CONFIG = dict(model_type="torchvision_resnet", architectures=["TorchvisionResNetForImageClassification"], stem="imagenet",
              image_size=SIDE, num_channels=3, image_mean=[0.485, 0.456, 0.406], image_std=[0.229, 0.224, 0.225])
NETS = {"resnet18": "resnet-18", "resnet50": "resnet-50",  # presets
        "resnet34": CONFIG | dict(layer_type="basic", depths=[3, 4, 6, 3]),
        "resnet101": CONFIG | dict(layer_type="bottleneck", depths=[3, 4, 23, 3])}


def model_of(name, home):
    """What --model takes."""
    if isinstance(NETS[name], str):
        return NETS[name]
    (home / "net.json").write_text(json.dumps(NETS[name] | dict(num_labels=CLASSES)))
    return "net.json"


def predictions(binaries, model, home, name):
    eps(binaries, "eval", "--model", model, "--data", "images.npy", "--predictions", f"{name}.jsonl", cwd=home)
    lines = [json.loads(line) for line in (home / f"{name}.jsonl").read_text().splitlines()]
    return torch.tensor([[line["probability"][str(c)] for c in range(CLASSES)] for line in lines])


def by_torchvision(net, images, config):
    mean, deviation = (torch.tensor(config[key]).view(3, 1, 1) for key in ("image_mean", "image_std"))
    with torch.no_grad():
        x = (torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255 - mean) / deviation
        return net.eval()(x).softmax(1)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=BIN)
    binaries, worst, miscounted = parser.parse_args().bin, 0.0, False
    for name in NETS:
        with tempfile.TemporaryDirectory() as home:
            home = pathlib.Path(home)
            images = np.random.default_rng(1).integers(0, 256, (N, SIDE, SIDE, 3), dtype=np.uint8)
            np.save(home / "images.npy", images)
            np.save(home / "labels.npy", np.arange(N, dtype=np.uint8) % CLASSES)
            model = model_of(name, home)
            eps(binaries, "train", "--model", model, "--image", f"{SIDE}x{SIDE}", "--data", "images.npy", "--batch", 6, "--steps", 3,
                "--out", "run", "--device", "cpu", cwd=home)
            saved = home / "run" / "latest"
            config = json.loads((saved / "config.json").read_text())
            net = getattr(torchvision.models, name)(num_classes=CLASSES)
            net.load_state_dict(load_file(saved / "model.safetensors"))
            plan = eps(binaries, "plan", "--json", "--model", saved, "--batch", 6, cwd=home)
            miscounted |= json.loads(plan)["parameters"] != sum(p.numel() for p in net.parameters())
            ours = predictions(binaries, saved, home, "ours")
            worst = max(worst, (ours - by_torchvision(net, images, config)).abs().max().item())

            torch.manual_seed(2)
            fresh = getattr(torchvision.models, name)(num_classes=CLASSES)
            fresh(torch.randn(8, 3, SIDE, SIDE))  # moves the running statistics
            (home / "fresh").mkdir()
            save_file(fresh.state_dict(), home / "fresh" / "model.safetensors")
            (home / "fresh" / "config.json").write_text(json.dumps(config))
            ours = predictions(binaries, home / "fresh", home, "fresh")
            worst = max(worst, (ours - by_torchvision(fresh, images, config)).abs().max().item())
            print(name, "largest difference of a probability so far", worst, flush=True)
    return miscounted or worst > 1e-5


if __name__ == "__main__":
    raise SystemExit(main())
