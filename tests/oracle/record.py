#!/usr/bin/env python3
"""Records what the programs plan and train, so that a change of the code can be shown to change neither.

    record.py plans BIN OUT [--n 2000] [--seed 1] [--like BEFORE]
                                                    `eps plan --json` of random settings, a line each
    record.py runs BIN OUT                          ten short training runs on the CPU, and what they generate
    record.py compare BEFORE AFTER                  exit status 1 where AFTER is worse, or trains other bits

BIN is the folder of eps, epsd and eps-worker. Settings name every budget, so no line depends on the machine's free memory.
Each is planned at a drawn budget, and near the least that it needs (BEFORE's, where it is given). Of a run: metrics.jsonl
without times and bytes, and a checksum of every file of its checkpoint. `compare` reports another choice, and calls worse:
more bytes at the same choice, a larger --minimum, a longer predicted time (a thousandth is a tie to the planner).
"""
import argparse, hashlib, json, os, random, subprocess, sys, tempfile
from concurrent.futures import ThreadPoolExecutor

MIB = 1 << 20
TIMES = {"time", "tokens_per_s", "step_ms", "host_bytes", "memory", "device_peak_bytes"}


def draw_model(r):
    heads = r.choice([1, 2, 3, 4, 5, 8, 12, 16, 25, 32])
    width = heads * r.choice([8, 13, 16, 32, 64, 64, 80, 128])
    dropout = r.choice([0.0, 0.0, 0.1])
    return {
        "model_type": "gpt2", "n_embd": width, "n_head": heads,
        "n_layer": r.choice([1, 2, 3, 6, 12, 24, 48, 96]) if r.random() < 0.98 else 4096,
        "n_inner": r.choice([None, None, None, width, 2 * width, 3 * width // 2, 8 * width]),
        "n_positions": r.choice([40, 128, 512, 1024, 2048]), "vocab_size": r.choice([97, 256, 5003, 32000, 50257]),
        "activation_function": r.choice(["gelu_new", "gelu_new", "gelu", "relu"]),
        "attn_pdrop": r.choice([0.0, 0.0, 0.1]), "embd_pdrop": dropout, "resid_pdrop": dropout,
        "tie_word_embeddings": r.random() < 0.7,
    }


def draw_options(r, model):
    parts = r.choice([1, 1, 1, 2, 4])
    options = {
        "--batch": parts * r.choice([1, 2, 3, 5, 8, 16, 40]), "--parts": parts,
        "--seq": r.choice([1, 7, 40, 128, 256, 1024]),
        "--device": r.choice(["cpu", "cuda"]), "--precision": r.choice(["fp32", "bf16"]),
        "--grad-dtype": r.choice(["fp32", "bf16"]), "--moments": r.choice(["fp32", "bf16"]),
        "--device-mem": int(2 ** r.uniform(21, 37)), "--host-mem": 1 << 44,
    }
    options["--seq"] = min(options["--seq"], model["n_positions"])
    if parts > 1:
        options["--workers"] = r.choice([1, 2])
        options["--optimizer"] = r.choice(["adama", "adamw"])
    if r.random() < 0.2:
        options["--microbatch"] = r.randint(1, options["--batch"] // parts)
    return options


def plan_one(bin_, number, seed, like):
    r = random.Random(f"{seed}/{number}")
    model = draw_model(r)
    options = draw_options(r, model)
    with tempfile.TemporaryDirectory() as home:
        path = os.path.join(home, "config.json")
        with open(path, "w") as f:
            json.dump(model, f)
        command = [os.path.join(bin_, "eps"), "plan", "--model", path, "--json"]
        for name, value in options.items():
            command += [name, str(value)]
        env = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home, XDG_CACHE_HOME=home, XDG_STATE_HOME=home)
        done = subprocess.run(command, capture_output=True, text=True, env=env)
        first = json.loads(done.stdout) if done.stdout else {"error": done.stderr.replace(path, "MODEL")}
        # Twice the least is where layers begin to be kept: a drawn budget is seldom there.
        if "minimum" in first:
            budget = like["near"]["workers"][0]["budget"] if like else int(first["minimum"] * r.uniform(1, 3))
            command[command.index("--device-mem") + 1] = str(budget)
            near = subprocess.run(command, capture_output=True, text=True, env=env).stdout
            first["near"] = json.loads(near)
            command[command.index("--json")] = "--timeline"
            first["timeline"] = subprocess.run(command, capture_output=True, text=True, env=env).stdout
    return {"number": number, "model": model, "options": options, "plan": first}


def record_plans(args):
    before = [{}] * args.n
    if args.like:
        with open(args.like) as f:
            before = [json.loads(line)["plan"] for line in f]
    with ThreadPoolExecutor(4) as pool, open(args.out, "w") as out:
        for line in pool.map(lambda i: plan_one(args.bin, i, args.seed, before[i] if "near" in before[i] else None),
                             range(len(before))):
            out.write(json.dumps(line) + "\n")


RUNS = [  # precision, options, dropout, how much of what is useful the device has
    ("fp32", [], 0.0, "roomy"), ("fp32", [], 0.0, "least"), ("bf16", [], 0.0, "roomy"), ("bf16", [], 0.0, "least"),
    ("fp32", [], 0.1, "roomy"), ("bf16", [], 0.1, "least"),
    ("fp32", ["--parts", "2", "--optimizer", "adama"], 0.1, "roomy"),
    ("bf16", ["--parts", "2", "--optimizer", "adama"], 0.0, "least"),
    ("fp32", ["--parts", "2", "--optimizer", "adamw", "--clip-norm", "0.5"], 0.1, "least"),
    ("bf16", ["--grad-dtype", "bf16", "--moments", "bf16", "--microbatch", "3"], 0.1, "roomy"),
]


def checksums(folder):
    sums = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".safetensors"):
            with open(os.path.join(folder, name), "rb") as f:
                sums[name] = hashlib.sha256(f.read()).hexdigest()
    return sums


def run_one(bin_, number):
    precision, options, dropout, room = RUNS[number]
    r = random.Random(number)
    model = {"model_type": "gpt2", "n_embd": 48, "n_head": 3, "n_layer": 3, "n_positions": 64, "vocab_size": 256,
             "attn_pdrop": dropout, "embd_pdrop": dropout, "resid_pdrop": dropout,
             "n_inner": [None, 72, 200][number % 3], "activation_function": ["gelu_new", "gelu", "relu"][number // 4],
             "scale_attn_by_inverse_layer_idx": number % 2 == 1, "tie_word_embeddings": number % 3 != 2}
    eps = os.path.join(bin_, "eps")
    with tempfile.TemporaryDirectory() as home:
        env = dict(os.environ, HOME=home, XDG_CONFIG_HOME=home, XDG_CACHE_HOME=home, XDG_STATE_HOME=home,
                   GOMP_SPINCOUNT="2000")
        path, data, out = (os.path.join(home, name) for name in ("config.json", "data.txt", "out"))
        with open(path, "w") as f:
            json.dump(model, f)
        with open(data, "w") as f:
            f.write("".join(r.choice("abcdefgh \n") for _ in range(20000)))
        common = ["--model", path, "--device", "cpu", "--precision", precision, "--batch", "10", "--seq", "40"] + options
        if room == "least":
            common += ["--device-mem", subprocess.run([eps, "plan", "--minimum"] + common, capture_output=True, text=True,
                                                      env=env, check=True).stdout.strip()]
        else:
            common += ["--device-mem", "256MiB"]
        done = subprocess.run([eps, "train", "--data", data, "--steps", "5", "--seed", "7", "--eval-every", "5",
                               "--out", out] + common, capture_output=True, text=True, env=env)
        if done.returncode:
            sys.exit(f"run {number}: {done.stderr}")
        with open(os.path.join(out, "metrics.jsonl")) as f:
            metrics = [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in f]
        text = subprocess.run([eps, "generate", "--model", os.path.join(out, "step-5"), "--prompt", "abc", "--tokens",
                               "20", "--seed", "3", "--device", "cpu"], capture_output=True,
                              env=env)
        return {"run": number, "metrics": metrics, "files": checksums(os.path.join(out, "step-5")),
                "generated": text.stdout.hex(), "status": text.returncode}


def record_runs(args):
    with open(args.out, "w") as out:
        for number in range(len(RUNS)):
            out.write(json.dumps(run_one(args.bin, number)) + "\n")


def worse_plan(before, after, notes):
    if "error" in before:
        return [] if before == after else ["another error"]
    wrong = []
    old, new = before["workers"][0], after["workers"][0]
    if before["choice"] != after["choice"]:
        notes["other choice"] = notes.get("other choice", 0) + 1
    elif new["peak"] > old["peak"]:
        wrong.append(f"bytes {old['peak']} -> {new['peak']}")
    elif new["peak"] < old["peak"]:
        notes["fewer bytes"] = notes.get("fewer bytes", 0) + 1
    if after["ms"] != before["ms"]:
        notes["other times"] = notes.get("other times", 0) + 1
    if before["fits"] and not after["fits"]:
        wrong.append("no longer fits")
    if before["fits"] and after["ms"]["step"] > before["ms"]["step"] * 1.001:
        wrong.append(f"step {before['ms']['step']} -> {after['ms']['step']} ms")
    if after["minimum"] > before["minimum"]:
        wrong.append(f"minimum {before['minimum']} -> {after['minimum']}")
    if after["minimum"] < before["minimum"]:
        notes["smaller minimum"] = notes.get("smaller minimum", 0) + 1
    return wrong


def compare(args):
    with open(args.before) as f, open(args.after) as g:
        before, after = [json.loads(line) for line in f], [json.loads(line) for line in g]
    if len(before) != len(after):
        sys.exit(f"{len(before)} lines, then {len(after)}")
    n_wrong, notes, n_same = 0, {}, 0
    for a, b in zip(before, after):
        wrong = []
        if "plan" in a:
            wrong = worse_plan(a["plan"], b["plan"], notes)
            if "near" in a["plan"] and "near" in b["plan"]:
                wrong += worse_plan(a["plan"]["near"], b["plan"]["near"], notes)
        elif a != b:
            wrong = [key for key in a if a[key] != b.get(key)]
        n_same += a == b
        n_wrong += bool(wrong)
        if wrong and n_wrong <= 20:
            print(a.get("number", a.get("run")), "; ".join(wrong))
    print(f"{len(before)} compared, {n_same} the same to the last digit, {n_wrong} worse; {notes}")
    sys.exit(n_wrong > 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, function in (("plans", record_plans), ("runs", record_runs)):
        command = commands.add_parser(name)
        command.add_argument("bin")
        command.add_argument("out")
        command.set_defaults(function=function)
        if name == "plans":
            command.add_argument("--n", type=int, default=2000)
            command.add_argument("--seed", type=int, default=1)
            command.add_argument("--like")
    command = commands.add_parser("compare")
    command.add_argument("before")
    command.add_argument("after")
    command.set_defaults(function=compare)
    args = parser.parse_args()
    args.function(args)


if __name__ == "__main__":
    main()
