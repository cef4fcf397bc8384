"""Draws a text with long runs, rare words and awkward characters, and has Hugging Face's tokenizers learn a byte-level BPE
from it: tests/fixtures/learned/text.txt, and model.json, {"vocab": {token: id}, "merges": [...]}, in which the end token
has been moved behind the bytes, to 256.

usage: python tests/oracle/make_learned.py      (pip install tokenizers; made with 0.23.3)
"""

import json
import pathlib
import random

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "learned"
STEMS = ["learn", "token", "merge", "pair", "größe", "naïve", "байт", "слово", "人工智能", "👍🏽", "aaaaaaaaa", "ababababab",
         "----------------", "____", "x", "0", "1984", "3.14159", "it's", "we've", "they'll", "\u0301", "\u200b"]
ENDS = ["", "", "", "s", "ing", "er", "ed", "able", "'s", ".", ",", "!!", "\n", "\n\n    ", "\r\n", "\t", "  ", " "]


def text():
    draw = random.Random(20260301)
    words = [draw.choice(STEMS) + draw.choice(ENDS) for _ in range(300)]
    return "".join(words[min(int(draw.expovariate(0.02)), 299)] + draw.choice([" ", " ", " ", "", "  "])
                   for _ in range(4000))


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(vocab_size=100000, min_frequency=2, special_tokens=["<|endoftext|>"],
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False)
    tokenizer.train_from_iterator([text()], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = {token: 256 if id == 0 else id - 1 if id <= 256 else id for token, id in model["vocab"].items()}
    merges = [" ".join(merge) for merge in model["merges"]]
    (OUT / "text.txt").write_text(text(), newline="")
    (OUT / "model.json").write_text(json.dumps({"vocab": vocab, "merges": merges}, ensure_ascii=True) + "\n")
    print(len(text().encode()), "bytes,", len(vocab), "tokens,", len(merges), "merges")


main()
