"""Lines of tuning data with all that may stand in them, drawn at random, against a reader in Python of a page.

    python draw_keys.py [N] [--bin build/bin] [--seed S]

Each line is a conversation in one of five layouts, with words of several trainers for what is trained, parts beside the
messages, nulls, keys that nobody reads, and numbers that only Python reads. What eps data shows of it must be what jinja2 and
this script's few rules say: the text, what of it is trained, and how often each key is not read. Exit status 0 or 1.

Made with jinja2 3.1.6.
"""
import argparse
import collections
import json
import math
import os
import random
import sys
import tempfile

import jinja2

from programs import BIN, eps

TEMPLATE = ("{{ first or '' }}{% for t in tools or [] %}{{ '(' + t.function.name + ')' }}{% endfor %}"
            "{% for d in documents or [] %}{{ '{' + d.text + '}' }}{% endfor %}"
            "{% for m in messages %}{{ '<' + m['role'] + '>' + m.content + (m.mood or '') }}"
            "{% if m.role == 'assistant' %}{{ '.' }}{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}")
CONFIG = {"model_type": "gpt2", "vocab_size": 256, "n_embd": 16, "n_layer": 1, "n_head": 1, "n_positions": 2048}
WORDS = ["train", "weight", "training", "trainable", "loss_mask", "loss"]
UNREAD = {"id": [3, "x", 1e300], "meta": [{"a": [1, None]}], "score": [math.nan, math.inf, -math.inf, 10 ** 30, -2 ** 63 - 1]}


def say(draw, message, trained):
    """Says of an answer, by one word or two, whether it is trained."""
    for word in draw.sample(WORDS, draw.choice([1, 1, 2])) if trained is not None else []:
        message[word] = trained if word == "train" else draw.choice([trained, int(trained), float(trained)])
    if draw.random() < 0.2:
        message.setdefault(draw.choice(WORDS), None)


def text(draw):
    return "".join(draw.choice("abc xyz\n\"{}é") for _ in range(draw.randint(1, 12)))


def make(draw):
    """A line, and its messages as a template sees them, which of them are trained, variables, and unread keys."""
    layout = draw.choice(["messages", "conversations", "prompt", "alpaca", "preference"])
    turns, unread, line = [], collections.Counter(), {}
    for _ in range(1 if layout == "preference" else draw.randint(1, 4)):
        turns += [{"role": "user", "content": text(draw)}, {"role": "assistant", "content": text(draw)}]
    answers = [i for i in range(len(turns)) if turns[i]["role"] == "assistant"]
    said = {i: draw.choice([None, True, False]) for i in answers} if layout in ("messages", "conversations") else {}
    if said and all(value is False for value in said.values()):
        said[answers[-1]] = True
    trained = {i for i in answers if said.get(i) is not False}
    if layout in ("prompt", "preference"):
        trained = {answers[-1]}
    if layout in ("messages", "prompt"):
        for turn in turns:
            if draw.random() < 0.2:
                turn["mood"] = draw.choice("!?")
            if draw.random() < 0.2:
                turn["mark"] = draw.choice([1, math.nan, [10 ** 40]])
                unread[".mark"] = 1
    if layout == "messages":
        line["messages"] = [dict(turn) for turn in turns]
        for i in answers:
            say(draw, line["messages"][i], said[i])
    elif layout == "conversations":
        line["conversations"] = [{"from": {"user": "human", "assistant": "gpt"}[t["role"]], "value": t["content"]} for t in turns]
        for i in answers:
            say(draw, line["conversations"][i], said[i])
    elif layout == "prompt":
        line["prompt"], line["completion"] = turns[:-1], turns[-1:]
    elif layout == "alpaca":
        line.update(instruction=turns[-2]["content"], output=turns[-1]["content"],
                    history=[[turns[i]["content"], turns[i + 1]["content"]] for i in range(0, len(turns) - 2, 2)])
    else:
        line.update(prompt=turns[:1], chosen=turns[1:], rejected=[{"role": "assistant", "content": text(draw)}])
    variables, messages = {"tools": None, "documents": None}, turns
    if draw.random() < 0.3:
        line["system"] = text(draw)
        messages = [{"role": "system", "content": line["system"]}] + turns
        trained = {i + 1 for i in trained}
    functions = [{"name": draw.choice("fgh")} for _ in range(draw.randint(1, 2))]
    tools = [{"type": "function", "function": f} for f in functions]
    kind = draw.choice(["", "", "tools", "text", "functions", "empty"])
    if kind in ("tools", "text"):
        line["tools"] = tools if kind == "tools" else json.dumps(tools)
    elif kind == "functions":
        line["functions"] = functions
    elif kind:
        line.update(tools=[], functions=None)
    variables["tools"] = tools if kind in ("tools", "text", "functions") else None
    documents = [{"text": text(draw)}]
    kind = draw.choice(["", "", "beside", "within"])
    if kind == "beside":
        line["documents"] = documents
    if kind == "within" or draw.random() < 0.2:
        line["chat_template_kwargs"] = {"first": draw.choice("zw")} | ({"documents": documents} if kind == "within" else {})
        variables["first"] = line["chat_template_kwargs"]["first"]
    variables["documents"] = documents if kind else None
    for key in draw.sample(list(UNREAD), draw.randint(0, 2)):
        line[key] = draw.choice(UNREAD[key])
        unread[key] = 1
    if draw.random() < 0.3:
        line["nothing"] = None
    keys = list(line)
    draw.shuffle(keys)
    return {key: line[key] for key in keys}, messages, trained, variables, unread


def shown(messages, trained, variables, render):
    """Bytes of the text, with a bit for each that is trained: what it has after the text before the answer."""
    whole = render(messages=messages, **variables).encode()
    bits = [0] * len(whole)
    for i in trained:
        begin = len(render(messages=messages[:i], add_generation_prompt=True, **variables).encode())
        end = len(render(messages=messages[:i + 1], **variables).encode())
        bits[begin:end] = [1] * (end - begin)
    return whole, bits


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("n", type=int, nargs="?", default=1000)
    arguments.add_argument("--bin", default=BIN)
    arguments.add_argument("--seed", type=int, default=1)
    options = arguments.parse_args()
    draw = random.Random(options.seed)
    render = jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(TEMPLATE).render
    files, faults = {False: [], True: []}, 0
    for _ in range(options.n):
        drawn = make(draw)
        files["chosen" in drawn[0]].append(drawn)
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w") as file:
            json.dump(CONFIG, file)
        with open(os.path.join(folder, "chat_template.jinja"), "w") as file:
            file.write(TEMPLATE)
        for preferences, lines in files.items():
            path = os.path.join(folder, "lines.jsonl")
            with open(path, "w") as file:
                file.writelines(json.dumps(line[0], ensure_ascii=draw.random() < 0.5) + "\n" for line in lines)
            said = json.loads(eps(options.bin, "data", path, "--model", folder, "--limit", 2 * options.n, "--json"))
            rows = [row for row in said["rows"] if row.get("side") != "rejected"]
            unread = collections.Counter()
            for row, (line, messages, trained, variables, keys) in zip(rows, lines, strict=True):
                want, bits = shown(messages, trained, variables, render)
                faults += bytes(row["ids"]) != want or row["trained"] != bits
                if bytes(row["ids"]) != want or row["trained"] != bits:
                    print(json.dumps(line), bytes(row["ids"]), want, row["trained"], bits, sep="\n")
                unread += keys
            told = said["notes"][0]
            for key, n in unread.items():
                one = f'"{key.lstrip(".")}" of {"messages in " if key[0] == "." else ""}{n} line{"s" if n > 1 else ""}'
                if f"the key {one}" not in told:
                    print(f"not told: {one}: {told}")
                    faults += 1
            if told.count("the key") != len(unread):
                print(f"told of other keys, too: {told}")
                faults += 1
    print(f"{options.n} lines drawn by seed {options.seed}: {faults} faults")
    sys.exit(faults > 0)


if __name__ == "__main__":
    main()
