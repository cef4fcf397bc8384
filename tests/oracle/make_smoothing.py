"""Cross entropy with label smoothing, and its gradient, by PyTorch in float64: tests/fixtures/smoothing.json.

    python make_smoothing.py

Each case has logits in sixty-fourths (rows of n), labels, of which some are ignored (-100), the losses of rows, and the
gradient of their mean, by torch.nn.functional.cross_entropy. One case is without smoothing, of one a single row counts.

Made with torch 2.15.0 on the CPU.
"""
import os

import torch
from torch.nn.functional import cross_entropy

import fixture

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "smoothing.json")
CASES = [(0.1, 7, [3, -100, 6, 0, -100]), (0.3, 13, [12, 5, -100, 5, 0, 1]), (0.9, 9, [-100, 4, -100]), (0.0, 5, [2, -100, 4])]


def case(smoothing, n, labels):
    whole = torch.randint(-384, 385, (len(labels), n))
    logits, labels = (whole.double() / 64).requires_grad_(), torch.tensor(labels)
    losses = cross_entropy(logits, labels, label_smoothing=smoothing, reduction="none")
    cross_entropy(logits, labels, label_smoothing=smoothing).backward()
    return {"smoothing": smoothing, "n": n, "labels": labels.tolist(), "logits": whole.flatten().tolist(),
            "losses": losses.tolist(), "gradient": logits.grad.flatten().tolist()}


if __name__ == "__main__":
    torch.manual_seed(1)
    fixture.write(FIXTURE, [case(*numbers) for numbers in CASES])
