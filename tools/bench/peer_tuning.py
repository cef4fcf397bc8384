#!/usr/bin/env python3
"""The Python half of tools/bench/tuning.sh: texts and a tokenizer, PEFT's tuning, and the accuracy of either side.

    peer_tuning.py make --train TSV --dev TSV --work DIR    DIR/text.jsonl, held_out.jsonl (texts without labels) and
                                                            dev.jsonl (conversations); DIR/model: tokenizer and template
    peer_tuning.py draw --train TSV --work DIR --seed N --rows N
                                                            DIR/conversations.jsonl, in the order of both sides
    peer_tuning.py adapt --work DIR --model DIR --seed N    DIR/adapters: PEFT's new ones, from which both sides begin
    peer_tuning.py train --work DIR --model DIR --seed N    DIR/adapters trained by PEFT on DIR/conversations.jsonl, merged
                                                            into DIR/theirs
    peer_tuning.py score --work DIR --model DIR             prints accuracy over dev.jsonl, and the loss of its answers

A model is right where its likeliest next token, of the whole vocabulary, begins the right answer.
"""
import argparse
import csv
import gzip
import json
import math
import pathlib
import random
import statistics

import tokenizers
import torch
import transformers

WORDS = ("bad", "good")  # the answers, by label
# As a text that goes on, so that a model of plain text, which has never met a token of chats, has all it needs.
TEMPLATE = """{%- for message in messages -%}
{%- if message.role == 'assistant' -%}
{%- generation -%}{{ ' ' + message.content + '<|endoftext|>' }}{%- endgeneration -%}
{%- else -%}{{ message.content + ' : the film is' }}{%- endif -%}
{%- endfor -%}"""


def arguments():
    p = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    p.add_argument("what", choices=("make", "draw", "adapt", "train", "score"))
    for name in ("train", "dev", "work", "model"):
        p.add_argument("--" + name, type=pathlib.Path)
    for name, default in (("seed", 0), ("rows", 0), ("batch", 32), ("rank", 16), ("vocabulary", 8000), ("seq", 128), ("warmup", 0),
                          ("threads", 0)):
        p.add_argument("--" + name, type=int, default=default)
    p.add_argument("--lr", type=float, default=1e-3)
    p.add_argument("--dropout", type=float, default=0.05)
    return p.parse_args()


def rows(path):
    with gzip.open(path, "rt", encoding="utf-8", newline="") if path.suffix == ".gz" else open(path, encoding="utf-8", newline="") as f:
        for row in csv.DictReader(f, delimiter="\t", quoting=csv.QUOTE_NONE):
            yield row["sentence"].strip(), int(row["label"])


def conversation(text, label):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": WORDS[label]}]}


def write_lines(path, lines):
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def read_lines(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def make(o):
    texts = [text for text, _ in rows(o.train)]
    random.Random(0).shuffle(texts)
    held = len(texts) // 100
    write_lines(o.work / "held_out.jsonl", ({"text": text} for text in texts[:held]))
    write_lines(o.work / "text.jsonl", ({"text": text} for text in texts[held:]))
    write_lines(o.work / "dev.jsonl", (conversation(*row) for row in rows(o.dev)))
    raw = tokenizers.Tokenizer(tokenizers.models.BPE())
    raw.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = tokenizers.decoders.ByteLevel()
    raw.train_from_iterator(texts, tokenizers.trainers.BpeTrainer(
        vocab_size=o.vocabulary, special_tokens=["<|endoftext|>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|endoftext|>", pad_token="<|endoftext|>")
    tokenizer.chat_template = TEMPLATE
    tokenizer.save_pretrained(o.work / "model")


def draw(o):
    lines = [conversation(*row) for row in rows(o.train)]
    random.Random(o.seed).shuffle(lines)
    write_lines(o.work / "conversations.jsonl", lines[:o.rows or None])


def load(path):
    return transformers.AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32), transformers.AutoTokenizer.from_pretrained(path)


def batches(tokenizer, lines, size):
    """Minibatches in order: tokens, and labels that are -100 outside of answers; rows padded at their ends."""
    for at in range(0, len(lines) - size + 1, size):
        made = [tokenizer.apply_chat_template(line["messages"], return_dict=True, return_assistant_tokens_mask=True)
                for line in lines[at:at + size]]
        long = max(len(one["input_ids"]) for one in made)
        ids = torch.full((size, long), tokenizer.pad_token_id)
        labels = torch.full((size, long), -100)
        seen = torch.zeros((size, long), dtype=torch.long)
        for i, one in enumerate(made):
            row, mask = torch.tensor(one["input_ids"]), torch.tensor(one["assistant_masks"], dtype=torch.bool)
            ids[i, :len(row)], seen[i, :len(row)] = row, 1
            labels[i, :len(row)][mask] = row[mask]
        yield {"input_ids": ids, "attention_mask": seen, "labels": labels}


def rate(step, warmup, steps):
    """The rate of eps: transformers' own warm-up begins with a step whose rate is 0, which Adam's second moment remembers."""
    if step < warmup:
        return (step + 1) / (warmup + 1)
    return (1 + math.cos(math.pi * (step - warmup) / (steps - warmup))) / 2


def adapt(o):
    import peft
    torch.manual_seed(o.seed)
    base, tokenizer = load(o.model)
    model = peft.get_peft_model(base, peft.LoraConfig(r=o.rank, lora_alpha=2 * o.rank, lora_dropout=o.dropout,
                                                      target_modules="all-linear", task_type="CAUSAL_LM"))
    model.save_pretrained(o.work / "adapters")
    tokenizer.save_pretrained(o.work / "adapters")


def train(o):
    import peft
    torch.manual_seed(o.seed)
    base, tokenizer = load(o.model)
    lines = read_lines(o.work / "conversations.jsonl")
    model = peft.PeftModel.from_pretrained(base, o.work / "adapters", is_trainable=True).train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=o.lr, weight_decay=0.01, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, o.warmup, len(lines) // o.batch))
    losses = []
    for batch in batches(tokenizer, lines, o.batch):
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(loss.item())
    merged = model.merge_and_unload()
    merged.save_pretrained(o.work / "theirs")
    tokenizer.save_pretrained(o.work / "theirs")
    print(json.dumps({"peer": f"peft {peft.__version__}", "steps": len(losses), "loss": round(statistics.mean(losses[-50:]), 4)}))


@torch.no_grad()
def score(o):
    model, tokenizer = load(o.model)
    lines = read_lines(o.work / "dev.jsonl")
    answers = [tokenizer.encode(" " + word, add_special_tokens=False)[0] for word in WORDS]
    assert answers[0] != answers[1]
    right, loss, tokens = 0, 0.0, 0
    for line, batch in zip(lines, batches(tokenizer, lines, 1)):
        logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits[0, :-1]
        labels = batch["labels"][0, 1:]
        first = int((labels != -100).nonzero()[0])
        right += int(logits[first].argmax()) == answers[WORDS.index(line["messages"][1]["content"])]
        loss += torch.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum").item()
        tokens += int((labels != -100).sum())
    print(json.dumps({"accuracy": round(right / len(lines), 5), "loss": round(loss / tokens, 5)}))


options = arguments()
transformers.logging.set_verbosity_error()
if options.threads:
    torch.set_num_threads(options.threads)
{"make": make, "draw": draw, "adapt": adapt, "train": train, "score": score}[options.what](options)
