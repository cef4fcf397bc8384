"""The examples of client/python/examples, run as programs."""

import re
import subprocess
import sys
from pathlib import Path

import eps

from conftest import lines

EXAMPLES = Path(__file__).parents[3] / "client" / "python" / "examples"


def example(name, *words):
    return subprocess.run([sys.executable, EXAMPLES / name, *words], capture_output=True, text=True, check=True).stdout


def test_a_sweep_prints_each_rates_held_out_loss():
    said = example("sweep.py", "byte-small", "text.txt", "rates", "1e-3", "1e-5", "--steps", "5", "--device-mem", "64MiB")
    header, *rows = said.splitlines()[-3:]
    assert header.split() == ["rate", "held-out", "loss"] and [row.split()[0] for row in rows] == ["0.001", "1e-05"]
    told = [lines(f"rates/{rate}/metrics.jsonl")[-1]["eval_loss"] for rate in ("0.001", "1e-05")]
    assert [row.split()[1] for row in rows] == [f"{loss:.4f}" for loss in told]
    assert told[0] < told[1] and [row.split()[2:] for row in rows] == [["best"], []]
