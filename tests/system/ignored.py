#!/usr/bin/env python3
"""ignored.py BIN: no option is ignored. For every command that takes data, every kind of rows and every option that depends on
them: one of two values changes what comes of it, or both are refused by one sentence that names the option. The oracle is what comes of it (losses, weights, plans, texts), never the table of options.

An option that a command's --help has and no list here is a fault. BIN is a build's bin/.
"""
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import recorded

TASKS = {
    "text": "--model chat-qwen3/config.json --data text.jsonl --seq 32",
    "masked": "--model bert/config.json --data text.jsonl --seq 12",
    "spans": "--model spans-t5/config.json --data text.jsonl --mask-fraction 0.15 --seq 64 --source-seq 50",
    "chat": "--model chat-qwen3/config.json --data marked.jsonl --seq 40",
    "pairs": "--model chat-qwen3/config.json --data pairs.jsonl --seq 24",
    "labels": "--model labels-bert/config.json --data labels.tsv --task classify",
    "scores": "--model score-bert/config.json --data scores.tsv --task regress --columns text,score",
    "images": "--model wide_resnet.json --data images",
    "targets": "--model spans-t5/config.json --data targets.jsonl --seq 40",
}
# Two values of each; "": the option is a flag, and is given or not.
ROWS = {"--separator": "none eos", "--chat-template": "default other", "--train-on": "all last", "--pack": "",
        "--split-special-tokens": "yes no", "--long": "cut drop", "--columns": "1,2 2,1", "--image": "11x11 32x32",
        "--seq": "16 20", "--source-seq": "20 24", "--mask-fraction": "0.2 0.4", "--eval-tokens": "1 300"}
VALUES = {
    "train": ROWS | {
        "--augment": "flip crop=2", "--dpo-beta": "0.1 0.5", "--dpo-smoothing": "0.1 0.4", "--label-smoothing": "0.1 0.3",
        "--task": "classify regress", "--order": "shuffled sequential", "--attention": "own cudnn", "--base-model": "bert qwen3",
        "--approximate": "attention=0.3 pool=2", "--sparse": "keep=0.3 keep=0.5", "--drop-layers": "0.2 0.8",
        "--lora": "rank=2 rank=3", "--sample-every": "1 2"},
    "plan": {key: ROWS[key] for key in ROWS if key != "--eval-tokens"} | {"--order": "shuffled sequential"} | {
        "--task": "classify regress", "--labels": "3 5", "--dpo-beta": "0.1 nan", "--attention": "own cudnn",
        "--base-model": "bert qwen3", "--approximate": "attention=0.3 pool=2", "--sparse": "keep=0.3 keep=0.5",
        "--lora": "rank=2 rank=3"},
    "eval": ROWS | {"--stride": "4 6", "--seed": "1 2", "--bleu": "", "--beams": "1 2", "--length-penalty": "1.5 2",
                    "--tokens": "2 3", "--predictions": "none/p p.tsv", "--base-model": "bert qwen3"},
    "data": {key: ROWS[key] for key in ("--separator", "--chat-template", "--train-on", "--pack", "--split-special-tokens",
                                        "--long", "--image", "--seq")} | {
        "--images": "", "--eval-data": "few.jsonl none", "--order": "shuffled sequential", "--seed": "1 2", "--limit": "1 2",
        "--base-model": "bert qwen3"},
}
PACKED = ("eval", "chat", "--pack")
# What does not depend on the rows.
COMMON = set("""--model --data --help --json --out --resume --attach --change --grow --replace --save-every --save-minutes --keep
--mirror --no-save --steps --epochs --batch --microbatch --parts --lr --min-lr --schedule --lr-steps --lr-factor --warmup
--weight-decay --betas --epsilon --optimizer --momentum --nesterov --clip-norm --clip-update --freeze --freeze-until --base
--commit --precision --state --moments --grad-dtype --master --sums --seed --deterministic --eval-every --patience --verbose --trace --tensorboard
--sample-prompt --restarts --device --device-mem --host-mem --require-pinned --check-memory --workers --audit --connect --wait
--name --config --like --dry-run --threads --quiet --eval-data --card --data-tokens --minimum --find-depth --find-batch --timeline --drop-layers --yes""".split())
ALWAYS = "--batch 4 --steps 2 --device-mem 64MiB --seed 5 --deterministic --device cpu --warmup 0".split()


def replaced(words, name, value):
    """Without the option and its value, then with it."""
    at = words.index(name) if name in words else len(words)
    return words[:at] + words[at + 2:] + [name] + ([value] if value else [])


def outcome(program, folder, command, words):
    """Exit status, and the last line of a refusal or what came of it."""
    for left in "run", "p.tsv":
        shutil.rmtree(folder / left, ignore_errors=True)
        (folder / left).unlink(missing_ok=True)
    done = subprocess.run([program, command, *words], cwd=folder, capture_output=True, text=True, errors="replace")
    if done.returncode:
        return done.returncode, done.stderr.strip().split("\n")[-1]
    if command != "train":
        return 0, json.dumps(recorded.without(json.loads(done.stdout), recorded.TIMES)), (folder / "p.tsv").exists()
    steps = [recorded.without(json.loads(line), recorded.TIMES | {"memory"})
             for line in (folder / "run/metrics.jsonl").read_text().splitlines()]
    weights = [recorded.digest(path.read_bytes()) for path in sorted(folder.glob("run/step-*/*.safetensors"))]
    return 0, json.dumps(steps), weights, re.findall("^.*sample.*$", done.stdout, re.M)


def faults_of(program, made, where, command, task):
    """Sentences about the options that this command ignores for these rows."""
    folder, words = where / f"{command}-{task}", TASKS[task].split()
    shutil.copytree(made, folder)
    if command == "eval":
        outcome(program, folder, "train", words + ALWAYS + ["--out", "run"])
        os.rename(folder / "run", folder / "base")
        words = replaced([w for w in words if w not in ("--task", "classify", "regress")], "--model", "base/latest") + ["--json"]
    elif command == "plan":
        words = [w for i, w in enumerate(words) if not {w, words[i - 1]} & {"--data", "--columns", "--mask-fraction"}] + \
            ["--json", "--device", "cpu", "--batch", "4"] + ["--dpo-beta", "0.1"] * (task == "pairs")
    elif command == "data":
        at = words.index("--data") + 1
        words = [words[at], "--json"] + (["--images", "--image", "32x32"] if task == "images" else words[:2] + ["--seq", "24"])
    else:
        words += ALWAYS + ["--out", "run"]
    found, alone = [], outcome(program, folder, command, words)
    for name, values in VALUES[command].items():
        base = words + ["--sample-prompt", "of"] * (name == "--sample-every")
        # Packed rows have the same losses, in sums of another order: equal by luck, but not of rows of each length.
        bases = [replaced(base, "--seq", str(n)) for n in range(40, 60, 2)] if (command, task, name) == PACKED else [base]
        told = [outcome(program, folder, command, replaced(b, name, value)) for b in bases for value in values.split() or [""]]
        before = [outcome(program, folder, command, b) for b in bases] if len(bases) > 1 else [alone] * len(told)
        refused = all(one[0] in (1, 2) and name in one[1] for one in told)
        if not refused and told == before:
            found.append(f"eps {command} of {task}: {name} {values} changes nothing: {alone[1][:300]}")
    return found


def unlisted(program, command):
    said = subprocess.run([program, command, "--help", "all"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall("^  (--[a-z-]+)", said, re.M)) - COMMON - set(VALUES[command])
    return [f"eps {command} --help has {name}, which tests/system/ignored.py does not know" for name in sorted(names)]


def write_rows():
    """What makes each option count: special tokens that messages spell, texts between which separators stand."""
    recorded.lines("text.jsonl", [{"text": recorded.words(i, 9)} for i in range(300)])
    recorded.lines("few.jsonl", [{"prompt": recorded.words(i, 3), "completion": "of the"} for i in range(9)])
    user = [[{"role": "user", "content": recorded.words(i, 1) + " <|end|>"}] for i in range(60)]
    answer = [[{"role": "assistant", "content": recorded.words(i + 1, 1 + i % 4)}] for i in range(60)]
    recorded.lines("marked.jsonl", [{"messages": (user[i] + answer[i]) * (1 + i % 2)} for i in range(60)])
    recorded.lines("pairs.jsonl", [{"prompt": user[i], "chosen": answer[i], "rejected": answer[i - 1]} for i in range(60)])


def main():
    program = str(pathlib.Path(sys.argv[1]).resolve() / "eps")
    with tempfile.TemporaryDirectory(prefix="eps-ignored-") as folder:
        where = pathlib.Path(folder)
        os.environ.update(HOME=folder, XDG_RUNTIME_DIR=folder, LC_ALL="C", OMP_NUM_THREADS="1")
        (where / "made").mkdir()
        os.chdir(where / "made")
        recorded.write_all()
        write_rows()
        tasks = {"train": TASKS, "plan": set(TASKS) - {"scores"}, "eval": set(TASKS) - {"pairs", "scores"},
                 "data": ("text", "chat", "pairs", "images")}
        cases = [(command, task) for command in VALUES for task in tasks[command]]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            found = [pool.submit(faults_of, program, where / "made", where, *case) for case in cases]
            faults = [fault for one in found for fault in one.result()] + [f for c in VALUES for f in unlisted(program, c)]
    print("\n".join(faults) or "no option is ignored")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
