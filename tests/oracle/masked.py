"""Masked tokens: the losses of eps train and eps eval against those of transformers' models in float64, whose ids and
labels are made here, from the rule that client/task/masks.h documents.

    masked.py        a small random BERT and RoBERTa on random ids, with their tokenizers of tests/fixtures/tokenizers

Needs build/bin/eps. Exit status 1 if a loss or a number of labels differs.
"""
import json
import os
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM

from programs import BIN, eps

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
VOCABULARY, SEQ, BATCH, N_TOKENS = 410, 24, 8, 1000
# Classes, the row of position 0, and of the tokenizer the number of ids, the special ones and the mask token. RoBERTa's
# class names <pad> and <unk>, which the file does not call special.
FAMILIES = {"bert": (BertConfig, BertForMaskedLM, 0, 327, {0, 1, 2, 3, 4}, 4),
            "roberta": (RobertaConfig, RobertaForMaskedLM, 2, 401, {0, 1, 2, 3, 400}, 400)}
SITE = 9  # enum random_site
WORD = 0xFFFFFFFF


def philox(counter, key):
    """Philox4x32-10 (Salmon et al. 2011)."""
    c, k = list(counter), list(key)
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(p1 >> 32) ^ c[1] ^ k[0], p1 & WORD, (p0 >> 32) ^ c[3] ^ k[1], p0 & WORD]
        k = [(k[0] + 0x9E3779B9) & WORD, (k[1] + 0xBB67AE85) & WORD]
    return c


def words(n):
    return [n & WORD, n >> 32]


def masks_key(seed, evaluates):
    first = philox(words(0) + words(int(evaluates)), words(seed))
    first[3] ^= SITE
    return philox(first, words(seed))[:2]


def masked(family, ids, first, key, row, fraction):
    """ids and labels of a row; its tokens before `first` are not masked."""
    n_ids, special, mask = FAMILIES[family][3:]
    draws = {i: philox(words(i) + words(row), key) for i in range(first, len(ids)) if ids[i] not in special}
    chosen = [i for i in draws if draws[i][0] < int(fraction * 2**32)]
    if not chosen and draws:
        chosen = [min(draws, key=lambda i: draws[i][0])]
    ids, labels = list(ids), [-100] * len(ids)
    for i in chosen:
        labels[i] = ids[i]
        if draws[i][1] < int(0.8 * 2**32):
            ids[i] = mask
        elif draws[i][1] < int(0.9 * 2**32):
            ids[i] = draws[i][2] * n_ids >> 32
    return ids, labels


def loss_of(family, model, rows):
    ids, labels = (torch.tensor([row[i] for row in rows]) for i in range(2))
    positions = torch.arange(SEQ).expand_as(ids) + FAMILIES[family][2]  # RoBERTa would not count padding tokens
    with torch.no_grad():
        return model(input_ids=ids, position_ids=positions, labels=labels).loss.item(), int((labels != -100).sum())


def check(family):
    """True if all losses agree."""
    agree = True

    def compare(what, ours, theirs):  # each a loss and its labels; metrics.jsonl does not count them
        nonlocal agree
        distance = abs(ours[0] - theirs[0]) / abs(theirs[0])
        right = distance < 1e-5 and (ours[1] is None or ours[1] == theirs[1])  # fp32 against float64
        agree = agree and right
        print(f"{family}, {what}: {ours[0]:.8f}, transformers {theirs[0]:.8f} over {theirs[1]} labels"
              f"{'' if right else '  DIFFERS'}")

    make_config, make_model, first_position = FAMILIES[family][:3]
    torch.manual_seed(1)
    model = make_model(make_config(
        vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
        max_position_embeddings=SEQ + first_position, initializer_range=0.3, hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0)).eval()
    model.save_pretrained(family)
    shutil.copy(ROOT / "tests" / "fixtures" / "tokenizers" / f"{family}.json", f"{family}/tokenizer.json")
    assert set(AutoTokenizer.from_pretrained(family).all_special_ids) == FAMILIES[family][4]
    model = model.double()
    stream = np.random.default_rng(2).integers(0, VOCABULARY, N_TOKENS).astype("<u2")
    stream.tofile("ids.bin")
    stream = stream.tolist()
    common = ("--model", family, "--data", "ids.bin", "--seq", SEQ, "--batch", BATCH, "--device", "cpu")

    # Windows of SEQ; the last ends with the data, and the window before it predicts what it repeats.
    for seed, fraction in ((0, 0.15), (2**40 + 7, 0.4)):
        key, rows = masks_key(seed, True), []
        for window, begin in enumerate(range(0, N_TOKENS, SEQ)):
            start = min(begin, N_TOKENS - SEQ)
            rows.append(masked(family, stream[start:start + SEQ], begin - start, key, window, fraction))
        said = json.loads(eps(BIN, "eval", *common, "--seed", seed, "--mask-fraction", fraction, "--json"))
        compare(f"eval with seed {seed}", (said["loss"], said["tokens"]), loss_of(family, model, rows))

    # At a learning rate of nearly 0 the weights stay, so each step's loss is one of these weights. 7 steps of 8 rows go
    # beyond the 41 windows, so some windows return with other masks.
    eps(BIN, "train", *common, "--eval-data", "ids.bin", "--parts", 2, "--steps", 7, "--order", "sequential", "--seed", 3,
        "--lr", 1e-12, "--weight-decay", 0, "--precision", "fp32", "--out", f"run-{family}")
    key, n_windows = masks_key(3, False), N_TOKENS // SEQ
    for line in open(f"run-{family}/metrics.jsonl"):
        step = json.loads(line)
        first = (step["step"] - 1) * BATCH
        rows = [masked(family, stream[row % n_windows * SEQ:][:SEQ], 0, key, row, 0.15)
                for row in range(first, first + BATCH)]
        compare(f"step {step['step']}", (step["loss"], None), loss_of(family, model, rows))
    return agree


def main():
    with tempfile.TemporaryDirectory() as top:
        os.chdir(top)
        agree = [check(family) for family in FAMILIES]
        os.chdir("/")
    sys.exit(not all(agree))


if __name__ == "__main__":
    main()
