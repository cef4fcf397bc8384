#!/usr/bin/env bash
# Installs a wheel of the package in a fresh root of another release of Debian, and trains there. By hand: it downloads some
# 100 MB. Needs root, and mmdebstrap.
#
# usage: tests/client/python/other_release.sh WHEEL [RELEASE]      trixie by default
set -euo pipefail

wheel=$(realpath "$1") release=${2:-trixie}
root=$(mktemp -d)
trap 'umount -q "$root/proc" "$root/dev/shm"; rm -rf --one-file-system "$root"' EXIT
mmdebstrap --quiet --variant=apt --include=python3-venv,python3-pip,python3-cffi,python3-numpy "$release" "$root"
cp "$wheel" "$root/tmp/"
cat >"$root/tmp/train.py" <<'PYTHON'
import platform
import eps
import numpy
rows = [{"text": f"the number {i} is followed by {i + 1}"} for i in range(300)]
run = eps.train(rows, model="byte-small", batch=4, seq=32, steps=20, device_mem="64MiB", out="/tmp/run")
assert run.steps[-1].loss < run.steps[0].loss and run.memory[1].peak == run.memory[1].planned
with eps.Engine(run.path, batch=4, seq=32, device_mem="64MiB") as engine:
    loss = engine.step(numpy.full((4, 32), 97))
text = eps.generate(run.path, "the", n_tokens=5)[0]
assert len(text.ids) == 5
print(f"{platform.freedesktop_os_release()['PRETTY_NAME']}, Python {platform.python_version()}: trained to {run.steps[-1].loss:.4f}")
PYTHON
mount -t proc proc "$root/proc"
mkdir -p "$root/dev/shm"
mount -t tmpfs tmpfs "$root/dev/shm"
chroot "$root" sh -ec "python3 -m venv --system-site-packages /tmp/venv
    /tmp/venv/bin/pip install --quiet --no-index --no-deps /tmp/$(basename "$wheel")
    cd /tmp && /tmp/venv/bin/python train.py"
