"""Makes fixtures by each path of instructions that PyTorch has on x86-64, and stores the distances of all side by side.

    python paths.py make_t5.py
    python paths.py training.py drop

How far fp32 ends up from float64 depends on them: of a small sum by a factor of 2, of a weight whose gradient is nearly zero
by one of 20 in as many steps. The largest distance is the yardstick for ours. Everything else is of the first path.
"""
import json
import os
import subprocess
import sys
import tempfile

import fixture
import training

PATHS = (("avx512", "AVX512", "AVX512_CORE"), ("avx2", "AVX2", "AVX2"), ("default", "SSE4_2", "SSE41"))


def run(path, folder):
    aten, mkl, onednn = path
    subprocess.run([sys.executable, *sys.argv[1:]], check=True,
                   env=os.environ | {"EPS_FIXTURES": folder, "ATEN_CPU_CAPABILITY": aten, "MKL_ENABLE_INSTRUCTIONS": mkl,
                                     "ONEDNN_MAX_CPU_ISA": onednn})


def read(path):
    with open(path) as file:
        return json.load(file)


def add(to, other):
    """The other's fp32 results beside these."""
    for key, value in to.items():
        if key.startswith("fp32_"):
            value += other[key]


def merge(path, other_path):
    whole, other = read(path), read(other_path)
    for to, more in zip([whole["gradient"], *whole["training"]], [other["gradient"], *other["training"]], strict=True):
        add(to, more)
        for piece, another in zip(to["pieces"], more["pieces"], strict=True):
            add(piece, another)
    fixture.write(path, whole)


if __name__ == "__main__":
    run(PATHS[0], training.FIXTURES)
    for path in PATHS[1:]:
        with tempfile.TemporaryDirectory() as folder:
            run(path, folder)
            for name in os.listdir(folder):
                merge(os.path.join(training.FIXTURES, name, "reference.json"), os.path.join(folder, name, "reference.json"))
