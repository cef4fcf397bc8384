"""What sampling leaves of a distribution, by transformers: tests/fixtures/sampling.json.

Logits are those of `skewed` in tests/client/text/test_sample.c. Each case has a text's tokens and the options; stored are
the probabilities from which transformers would draw, after the processors that `generate` itself puts together. `greedy` has
continuations with a repetition penalty, of the model and prompts of make_generate.py.
Made with torch 2.15.0 and transformers 5.23.0.
"""
import os
import random

import numpy as np
import torch
from transformers import GenerationConfig

import fixture
import make_generate

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "sampling.json")


def skewed(n):
    i = np.arange(n, dtype=np.uint32)
    with np.errstate(over="ignore"):
        words = (i * np.uint32(2654435761)) >> np.uint32(8) & np.uint32(0xFFFF)
    return torch.from_numpy(words.astype(np.float32) / np.float32(8192) - np.float32(3))


def probabilities(model, n, ids, options):
    """Of the processors that generate() makes of these options, in its order."""
    config = GenerationConfig(do_sample=True, **options)
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=len(ids),
                                             encoder_input_ids=None, prefix_allowed_tokens_fn=None, logits_processor=[],
                                             device="cpu", model_kwargs={})
    scores = processors(torch.tensor([ids]), skewed(n)[None])
    return torch.softmax(scores.double(), -1)[0].tolist(), [type(p).__name__ for p in processors]


def main():
    draw, cases, orders = random.Random(1), [], set()
    model = make_generate.model_of(torch.float32)
    for k in range(24):
        n = draw.choice([5, 17, 40])
        ids = [draw.randrange(n) for _ in range(draw.randrange(1, 12))]
        options = {"repetition_penalty": draw.choice([1.0, 1.2, 2.5, 0.5]), "temperature": draw.choice([0.7, 1.3, 2.0]),
                   "top_k": draw.choice([0, 3, 12]), "top_p": draw.choice([1.0, 0.8, 0.95]),
                   "min_p": draw.choice([0.05, 0.3, 0.7, 1.0] if k % 4 else [0.0])}
        p, order = probabilities(model, n, ids, options)
        orders.add(tuple(order))
        cases.append({"n": n, "ids": ids, **options, "p": p})
    greedy = []
    for prompt in make_generate.PROMPTS:
        ids = list(prompt.encode())
        out = model.generate(torch.tensor([ids]), max_new_tokens=100, min_new_tokens=100, do_sample=False,
                             repetition_penalty=1.3, pad_token_id=0)
        greedy.append({"prompt": prompt, "repetition_penalty": 1.3, "ids": out[0, len(ids):].tolist()})
    print(*sorted(orders), sep="\n")
    fixture.write(FIXTURE, {"cases": cases, "greedy": greedy})


if __name__ == "__main__":
    main()
