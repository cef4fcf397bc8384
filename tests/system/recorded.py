#!/usr/bin/env python3
"""recorded.py BIN [--python PYTHON] [--only TEXT] [--against FILE]: what runs give, to the bit, as lines to compare.

For changes that must change nothing a user can see: moves, renames, a task that becomes one file. Each case makes its own
data and model, runs commands of BIN (a build's bin/) on them, and prints a line for each fact: "case fact value". Facts are
losses and rates of each step, planned memory, hashes of weights, of moments, of what training.json says, of exported files;
texts that were generated; what eps data shows; and the sentences of refusals. Times, ids and addresses are left out.

With --against, prints only what differs from that record (- it, + now), and exits with 1 if anything does. A run's bits are
those of one kind of processor: a record that was made on another kind is refused, with exit status 2. Make it anew with the
old programs, on this machine.

  --python PYTHON  an interpreter that has the package (pip install client/python): the engine's case, left out without it
  --only TEXT      cases whose names contain it

By hand: it takes some minutes. tests/system/recorded.txt is the record of the commit that it names.
"""
import argparse
import contextlib
import hashlib
import json
import os
import pathlib
import random
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import zlib

FAMILIES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
CAUSAL = ["a", "llama3", "mistral_window", "qwen2", "qwen3", "gemma", "gemma3"]
SOURCED = ["t5", "drop_t5", "dynamic_conv", "dynamic_conv_gated"] # with targets
MASKED = ["bert", "roberta"]
NETS = ["resnet_basic", "resnet_bottleneck", "wide_resnet", "half_wide", "ghost_bottleneck", "ghost_wide", "pooled_wide"]
SPECIAL = ["[PAD]", "[MASK]", "[CLS]", "[SEP]", "<|user|>", "<|assistant|>", "<|end|>"]
SPANS = [f"<extra_id_{i}>" for i in range(10)]
TEMPLATE = ("{% for message in messages %}<|{{ message.role }}|>{% if message.role == 'assistant' %}{% generation %}"
            "{{ message.content }}<|end|>{% endgeneration %}{% else %}{{ message.content }}<|end|>{% endif %}{% endfor %}"
            "{% if add_generation_prompt %}<|assistant|>{% endif %}")


# ---- data and models ----

def words(seed, n):
    draw = random.Random(seed)
    return " ".join(draw.choice("of the a small large model layer reads writes row token and then again".split())
                    for _ in range(n))


def write_text():
    pathlib.Path("text.txt").write_text("".join(words(i, 9) + f" {i * i % 97}\n" for i in range(400)))


def write_ids():
    draw = random.Random(1)
    pathlib.Path("ids.bin").write_bytes(struct.pack("<4000H", *(draw.randrange(61) for _ in range(4000))))


def lines(path, rows):
    pathlib.Path(path).write_text("".join(json.dumps(row) + "\n" for row in rows))


def write_rows():
    turn = lambda role, seed, n: {"role": role, "content": words(seed, n)}
    lines("chat.jsonl", [{"messages": [m for k in range(1 + i % 3) for m in (turn("user", 7 * i + k, 2 + i % 5),
                                                                            turn("assistant", i + k, 1 + i % 4))]}
                         for i in range(60)])
    lines("pairs.jsonl", [{"prompt": words(i, 3), "chosen": words(i + 1, 3), "rejected": words(i + 2, 2)}
                          for i in range(60)])
    lines("targets.jsonl", [{"prompt": words(i, 5), "completion": words(i, 3)} for i in range(60)])
    with open("labels.tsv", "w") as f:
        f.write("sentence\tlabel\n" + "".join(f"{words(i, 4)}\tLABEL_{i % 3}\n" for i in range(90)))
    with open("scores.tsv", "w") as f:
        f.write("text\tscore\n" + "".join(f"{words(i, 4)}\t{i % 7 / 4}\n" for i in range(90)))


def write_png(path, size, draw):
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + draw.randbytes(3 * size) for _ in range(size))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows, 0)) + chunk(b"IEND", b""))


def write_images():
    draw = random.Random(2)
    for label in "cat", "dog":
        folder = pathlib.Path("images") / label
        folder.mkdir(parents=True)
        for i in range(24):
            write_png(folder / f"{i:02}.png", 32 + i % 3, draw)


def alphabet():
    """The characters by which byte-level BPE spells bytes (GPT-2)."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or 174 <= b]
    others = {b: 256 + i for i, b in enumerate(b for b in range(256) if b not in plain)}
    return [chr(others.get(b, b)) for b in range(256)]


def write_model(name, config, added):
    """A directory with a config.json of this vocabulary, a tokenizer of bytes, and a chat template; no weights."""
    folder = pathlib.Path(name)
    folder.mkdir()
    vocabulary = {c: i for i, c in enumerate(added + alphabet())}
    tokens = [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
               "special": True} for i, t in enumerate(added)]
    config = json.loads((FAMILIES / config / "config.json").read_text())
    config |= {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": added.index("<|end|>"), "decoder_start_token_id": 0}
    config |= {k: 256 + len(added) for k in config if k in ("vocab_size", "source_vocab_size")}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer.json").write_text(json.dumps({
        "version": "1.0", "added_tokens": tokens, "normalizer": None, "post_processor": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "mask_token": "[MASK]", "cls_token": "[CLS]",
        "sep_token": "[SEP]", "eos_token": "<|end|>", "chat_template": TEMPLATE}))


def write_all():
    write_text(), write_ids(), write_rows(), write_images()
    for name in "qwen3", "gemma3", "generate":
        write_model("chat-" + name, name, SPECIAL)
    for name in CAUSAL + NETS + ["generate"]:
        shutil.copy(FAMILIES / name / "config.json", name + ".json")
    for name in SOURCED + MASKED:
        write_model(name, name, SPECIAL)
    write_model("labels-bert", "labels_bert", SPECIAL)
    write_model("score-bert", "labels_regression", SPECIAL)
    write_model("spans-t5", "t5", SPECIAL + SPANS)


# ---- running ----

class Recorder:
    def __init__(self, programs, out, case):
        self.programs, self.out, self.case = programs, out, case

    def say(self, fact, value):
        print(f"{self.case} {fact} {value}", file=self.out, flush=True)

    def run(self, *args):
        """Exit status, standard output and errors of a command of eps; the last two without this case's folder."""
        done = subprocess.run([self.programs + "/eps", *args], capture_output=True, text=True, errors="backslashreplace")
        return done.returncode, done.stdout.replace(os.getcwd(), ""), done.stderr.replace(os.getcwd(), "")

    def ask(self, fact, *args):
        """Standard output; or None, once the failure is told as the fact."""
        rc, out, err = self.run(*args)
        if rc:
            self.say(fact, f"exit {rc}: " + " | ".join(err.split("\n"))[-600:])
        return None if rc else out


def digest(data):
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()[:16]


def without(value, names):
    """JSON without these keys, at any depth."""
    if isinstance(value, dict):
        return {k: without(v, names) for k, v in value.items() if k not in names}
    return [without(v, names) for v in value] if isinstance(value, list) else value


TIMES = {"time", "tokens_per_s", "images_per_s", "rows_per_s", "step_ms", "optimizer_ms", "ms", "hiding_tokens", "saved_ms",
         "pid", "seconds", "job", "budget", "available", "id"}
MEMORY = {"memory", "device_peak_bytes", "host_bytes"}


def tell_folder(r, fact, folder):
    """A hash of each file; of JSON without this case's folder, and without sums of files that name it."""
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        if path.suffix == ".json":
            told = json.loads(data.decode().replace(os.getcwd(), ""))
            for name in "adapter_config.json", "base_config.json":
                told.get("files", {}).pop(name, None)
            data = json.dumps(without(told, {"checksum"}), sort_keys=True)
        r.say(f"{fact} {path.relative_to(folder)}", digest(data))


def tell_run(r, out):
    """Steps, memory and the newest checkpoint of a run. Memory is told now and then, and does not change."""
    steps = [without(json.loads(line), TIMES) for line in pathlib.Path(out, "metrics.jsonl").read_text().splitlines()]
    for line in steps:
        r.say(f"step {line['step']}", json.dumps(without(line, MEMORY | {"step"}), sort_keys=True))
    r.say("memory", json.dumps(next({k: line.get(k) for k in sorted(MEMORY)} for line in steps if "memory" in line),
                               sort_keys=True))
    tell_folder(r, "saved", pathlib.Path(out, "latest").resolve())


FIXED = {"--eval-every": "0", "--save-every": "1"} # else the time decides which checkpoints are there


def train(r, *args, out="run"):
    device = [] if "--connect" in args else ["--device", "cpu"]
    device += [word for name in FIXED if not {name, "--resume"} & set(args) for word in (name, FIXED[name])]
    said = r.ask("train", "train", *args, "--seed", "5", "--deterministic", *device, "--out", out)
    if said is None:
        return False
    for line in said.splitlines():
        if re.match("data |rows |plan |planned ", line):
            r.say("says", " ".join(line.split()))
    tell_run(r, out)
    return True


def tell_answer(r, fact, *args):
    """What a command prints, of JSON what is no time."""
    said = r.ask(fact, *args)
    if said is not None and "--json" in args:
        r.say(fact, json.dumps(without(json.loads(said), TIMES), sort_keys=True))
    elif said is not None:
        r.say(fact, json.dumps(re.sub(r", [0-9.e+]+ tokens/s.*", "", said)[-3000:]))


# ---- cases ----

SMALL = "--batch 4 --steps 4 --device-mem 64MiB"
CASES = {}


def trained(r, options, asks=()):
    """A run; then commands on its last checkpoint, as {model}."""
    if not train(r, *options.split()):
        return
    for fact, ask in asks:
        tell_answer(r, fact, *[a.replace("~", " ") for a in ask.format(model="run/latest").split()])


def exported(r, *more):
    for options in "", "--dtype bf16", *more:
        if r.ask("export" + options, "export", "--model", "run/latest", "--out", "exported", *options.split()) is not None:
            tell_folder(r, "export" + options, pathlib.Path("exported"))
        shutil.rmtree("exported", ignore_errors=True)


def add(name, options, *asks, export=False):
    def run(r):
        trained(r, options, asks)
        if export and pathlib.Path("run/latest").exists():
            exported(r)
    CASES[name] = run


def add_cases():
    ids = "--data ids.bin --seq 12 " + SMALL
    for name in CAUSAL:
        add("family-" + name, f"--model {name}.json {ids}", ("eval", "eval --model {model} --data ids.bin --json --seq 12"),
            export=True)
    for name in SOURCED:
        add("family-" + name, f"--model {name}/config.json --data targets.jsonl --seq 64 " + SMALL,
            ("eval", "eval --model {model} --data targets.jsonl --json"),
            ("writes", "generate --model {model} --prompt of~the --tokens 12 --temperature 0"), export=True)
    for name in MASKED:
        add("family-" + name, f"--model {name}/config.json --data text.txt --seq 12 " + SMALL,
            ("eval", "eval --model {model} --data text.txt --json"), export=True)
    for name in NETS:
        add("net-" + name, f"--model {name}.json --data images {SMALL}",
            ("eval", "eval --model {model} --data images --json"))
    add("preset-image", "--model wrn-28-2 --data images --augment crop=4,flip --batch 4 --steps 2 --device-mem 256MiB",
        ("shows", "data images --images --image 32x32"))
    text = "--model generate.json --data text.txt --seq 32 " + SMALL
    add("text", text + " --eval-every 2", ("eval", "eval --model {model} --data text.txt --json"),
        ("writes", "generate --model {model} --prompt of~the --tokens 24 --temperature 0"),
        ("draws", "generate --model {model} --prompt of~the --tokens 24 --seed 3"), export=True)
    add("text-preset", "--model byte-small --data text.txt --steps 2 --batch 2 --seq 32 --device-mem 256MiB")
    add("text-sequential", text + " --order sequential --separator none")
    for name, options in {
            "bf16": "--precision bf16", "bf16-moments": "--precision bf16 --moments bf16 --grad-dtype bf16",
            "no-master": "--precision bf16 --master none --commit fenced --sums bf16", "fp16": "--precision fp16",
            "parts": "--parts 2 --optimizer adama", "adamw-parts": "--parts 2 --optimizer adamw", "folded": "--parts 2 "
            "--optimizer adama --commit folded", "fenced": "--parts 2 --commit fenced --clip-norm 1",
            "sgd": "--optimizer sgd --parts 2", "nesterov": "--optimizer sgd --nesterov --clip-norm 1", "clipped": "--clip-update 1",
            "wta": "--approximate wta=0.3", "coded": "--approximate coded=8", "drop": "--drop-layers 0.3",
            "freeze": "--freeze wte.* h.0.*", "thaw": "--freeze h.0.* --freeze-until 2", "small": "--device-mem 3MiB",
            "step": "--schedule step --lr-steps 2 --warmup 0", "audited": "--audit 2 --check-memory"}.items():
        add("with-" + name, text + " " + options)
    for name in "qwen3", "gemma3", "generate":
        chat = f"--model chat-{name}/config.json --data chat.jsonl --seq 96 " + SMALL
        add("chat-" + name, chat, ("shows", f"data chat.jsonl --model chat-{name} --seq 96"),
            ("eval", "eval --model {model} --data chat.jsonl --seq 96 --json"))
    chat = "--model chat-qwen3/config.json --data chat.jsonl --seq 160 " + SMALL
    for name, options in {"all": "--train-on all", "last": "--train-on last", "drop": "--long drop --seq 60",
                          "pack": "--pack", "wta": "--approximate wta=0.3"}.items():
        add("chat-" + name, chat + " " + options)
    add("chat-packed", chat.replace("--steps 4", "--epochs 1") + " --pack",
        ("shows", "data chat.jsonl --model chat-qwen3 --seq 160 --pack"))
    pairs = "--model chat-qwen3/config.json --data pairs.jsonl --seq 96 " + SMALL
    add("preferences", pairs + " --dpo-beta 0.1 --eval-every 2", ("shows", "data pairs.jsonl --model chat-qwen3"))
    add("classify", "--model labels-bert/config.json --data labels.tsv --task classify --epochs 1 --batch 4 --device-mem 64MiB "
        "--save-every 3",
        ("eval", "eval --model {model} --data labels.tsv --json"), ("eval-other", "eval --model {model} --data scores.tsv --json"))
    add("regress", "--model score-bert/config.json --data scores.tsv --task regress --epochs 1 --batch 4 --device-mem 64MiB "
        "--save-every 3",
        ("eval", "eval --model {model} --data scores.tsv --json"))
    add("spans", "--model spans-t5/config.json --data text.txt --seq 24 --mask-fraction 0.15 " + SMALL,
        ("eval", "eval --model {model} --data text.txt --mask-fraction 0.15 --seq 24 --json"))
    add("targets", "--model spans-t5/config.json --data targets.jsonl --seq 64 --label-smoothing 0.1 " + SMALL,
        ("eval", "eval --model {model} --data targets.jsonl --json"),
        ("writes", "generate --model {model} --prompt of~the --tokens 12 --temperature 0"))
    add_whole(text, chat, pairs)
    add_refusals(text, chat, pairs)


def add_whole(text, chat, pairs):
    def adapted(r, options):
        """A run that adapts the model of another, exported alone and merged."""
        first = options.replace(" --dpo-beta 0.1", "").replace("pairs.jsonl", "chat.jsonl").split(" --lora")[0]
        if not train(r, *first.split(), out="base"):
            return
        options = re.sub("--model [^ ]*", "--model base/step-4", options)
        if train(r, *options.split()):
            exported(r, "--merge")

    def resumed(r):
        if train(r, *text.split(), "--save-every", "2"):
            tell_answer(r, "verify", "verify", "run", "--json")
            train(r, "--resume", "run/step-4", "--steps", "6")

    def planned(r, preset, alone):
        for options in alone, "--precision bf16 --moments bf16", "--device-mem 700MiB --batch 4":
            tell_answer(r, f"plan {options or 'alone'}", "plan", "--model", preset, "--device", "cpu", *options.split(), "--json")

    def workers(r):
        train(r, *text.split(), "--parts", "4", "--workers", "3")

    CASES["resumed"], CASES["workers"] = resumed, workers
    for name, options in {"lora-text": text + " --lora rank=4", "lora-nf4": text + " --lora rank=4,targets=c_attn --base nf4",
                          "lora-int8": text + " --lora rank=4,rslora,dropout=0.1 --base int8", "lora-chat": chat + " --lora rank=4",
                          "lora-pairs": pairs + " --dpo-beta 0.1 --lora rank=4 --parts 2"}.items():
        CASES[name] = lambda r, options=options: adapted(r, options)
    for preset, alone in {"byte-small": "", "gpt2": "", "wrn-28-2": "--batch 16", "resnet-50": "--batch 16"}.items():
        CASES["plan-" + preset] = lambda r, preset=preset, alone=alone: planned(r, preset, alone)


def add_refusals(text, chat, pairs):
    """Options of one task with the data of another, for each command that takes data."""
    others = ["--pack", "--dpo-beta 0.1", "--train-on last", "--long refuse", "--source-seq 4", "--task classify",
              "--mask-fraction 0.2", "--augment flip", "--image 32x32", "--label-smoothing 0.1", "--columns a,b",
              "--chat-template x", "--split-special-tokens no", "--separator eos"]
    data = {"text": text, "chat": chat, "pairs": pairs,
            "labels": "--model labels-bert/config.json --data labels.tsv --task classify --batch 4 --steps 4 --device-mem 64MiB",
            "images": "--model wide_resnet.json --data images " + SMALL,
            "targets": "--model spans-t5/config.json --data targets.jsonl --seq 64 " + SMALL}

    def refusals(r, options, command):
        """Of each option: the loss, which it may have changed, or the refusal."""
        always = ["--seed", "5", "--deterministic", "--device", "cpu", "--out"]
        if command == "eval":
            r.run("train", *options.split(), *always, "base")
        for other in [""] + others:
            shutil.rmtree("run", ignore_errors=True)
            if command == "eval":
                rc, out, err = r.run("eval", "--model", "base/latest", *options.split()[2:4], "--json", *other.split())
            else:
                rc, _, err = r.run("train", *options.split(), *other.split(), *always, "run")
                out = "" if rc else pathlib.Path("run/metrics.jsonl").read_text().splitlines()[-1]
            said = err.strip().split("\n")[-1][:300] if rc else json.loads(out)["loss"]
            r.say(other or "alone", f"exit {rc} {said}")

    for name, options in data.items():
        for command in "train", "eval":
            CASES[f"options-{command}-{name}"] = lambda r, o=options, c=command: refusals(r, o, c)


ENGINE = """
import eps
with eps.Engine("qwen3.json", batch=4, seq=16, lr=1e-3, device="cpu", device_mem="64MiB", seed=5) as engine:
    for i in range(3):
        print(engine.step([[(i * 7 + r * 3 + t) % 61 for t in range(16)] for r in range(4)]))
"""


@contextlib.contextmanager
def hosts(programs, n):
    """A daemon of n hosts, each with a worker; its name."""
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(n), programs + "/eps", "up", "recorded", "--device",
               "cpu", "--device-mem", "64MiB", "--", "--mpi"]
    up = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open("up.log", "w"), start_new_session=True)
    try:
        yield "recorded"
    finally:
        os.killpg(up.pid, signal.SIGTERM)
        up.wait()


def add_optional(python):
    def engine(r):
        done = subprocess.run([python, "-c", ENGINE], capture_output=True, text=True)
        r.say("losses", " ".join(done.stdout.split()) if not done.returncode else "failed: " + done.stderr[-300:])

    def several(r):
        text = "--model generate.json --data text.txt --seq 32 --batch 4 --steps 4"
        with hosts(r.programs, 2) as name:
            train(r, *text.split(), "--parts", "2", "--connect", name)

    if python:
        CASES["engine"] = engine
    if shutil.which("mpirun"):
        CASES["hosts"] = several


# ---- all of them ----

def processor():
    flags = set(re.search(r"^flags\s*:(.*)$", pathlib.Path("/proc/cpuinfo").read_text(), re.M).group(1).split())
    return " ".join(name for name in ("avx2", "avx512f", "avx512_bf16", "amx_bf16") if name in flags)


def record(programs, out, only):
    where = tempfile.mkdtemp(prefix="eps-recorded-")
    os.environ.update(HOME=where, XDG_RUNTIME_DIR=where, LC_ALL="C", OMP_NUM_THREADS="2")
    try:
        os.mkdir(f"{where}/made")
        os.chdir(f"{where}/made")
        write_all()
        for name in sorted(CASES):
            if only not in name:
                continue
            shutil.copytree(f"{where}/made", f"{where}/{name}")
            os.chdir(f"{where}/{name}")
            CASES[name](Recorder(programs, out, name))
            os.chdir(where)
            shutil.rmtree(f"{where}/{name}")
    finally:
        os.chdir("/")
        shutil.rmtree(where, ignore_errors=True)


def differences(old, new, only):
    """Of the cases that can run here, and were to."""
    def facts(text):
        return {line for line in text.splitlines() if line.split(" ", 1)[0] in CASES and only in line.split(" ", 1)[0]}

    before, now = facts(old), facts(new)
    return [f"{'-' if fact in before else '+'} {fact}" for fact in sorted(before ^ now)]


def main():
    parser = argparse.ArgumentParser(usage=__doc__.split(": ")[0])
    parser.add_argument("programs")
    parser.add_argument("--python")
    parser.add_argument("--only", default="")
    parser.add_argument("--against", type=pathlib.Path)
    args = parser.parse_args()
    programs = str(pathlib.Path(args.programs).resolve())
    head = f"# processor: {processor()}"
    against = args.against.read_text() if args.against else None

    if against is not None and head not in against.splitlines()[:3]:
        print(f"recorded.py: {args.against} was made on another kind of processor than this one ({processor()}): make it anew "
              "here with the old programs", file=sys.stderr)
        return 2
    add_cases()
    add_optional(args.python)
    if against is None:
        print(head, flush=True)
        record(programs, sys.stdout, args.only)
        return 0
    with tempfile.TemporaryFile("w+") as now:
        record(programs, now, args.only)
        now.seek(0)
        found = differences(against, now.read(), args.only)
    print("\n".join(found + [f"{len(found)} lines differ"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
