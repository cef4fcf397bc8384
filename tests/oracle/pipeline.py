"""Trains a model of bytes and one of tokens that it learns, loads what was saved as a transformers pipeline, and holds
its greedy text against that of eps generate.

    python pipeline.py [BIN] [MODEL...]   BIN: the directory of eps, by default build/bin; MODEL: those that are trained

Nothing but the saved directory is told to transformers. Exit status 0 or 1. (pip install torch transformers; shown with
transformers 5.23.0 and torch 2.15.0)
"""
import json
import pathlib
import subprocess
import sys
import tempfile

from transformers import pipeline

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMPTS = ["The ", "def main():\n", "Größe und 人工智能 ", "two  blanks\n\n", "x"]
NEW = 40


def ours(bin_dir, model, prompt):
    out = subprocess.run([bin_dir / "eps", "generate", "--model", model, "--prompt", prompt, "--tokens", str(NEW),
                          "--temperature", "0", "--device", "cpu", "--json"], check=True, capture_output=True)
    return json.loads(out.stdout)


def train(bin_dir, preset, folder):
    model, text = folder / preset, folder / "text"
    text.write_bytes(b"".join(path.read_bytes() for path in sorted(ROOT.glob("client/**/*.c"))))
    subprocess.run([bin_dir / "eps", "train", "--model", preset, "--data", text, "--out", model, "--steps", "300",
                    "--batch", "8", "--device", "cpu"], check=True, stdout=subprocess.DEVNULL)
    return model / "latest"


def compare(bin_dir, model):
    generate = pipeline("text-generation", model=str(model))
    wrong = 0
    for prompt in PROMPTS:
        answer = ours(bin_dir, model, prompt)
        theirs = generate(prompt, max_new_tokens=NEW, do_sample=False, return_tensors=True)[0]["generated_token_ids"]
        theirs = [int(i) for i in theirs]
        same = theirs == generate.tokenizer(prompt)["input_ids"] + answer["ids"]
        wrong += not same
        print("same" if same else "NOT THE SAME", repr(prompt), repr(generate.tokenizer.decode(theirs)))
        if not same:
            print(theirs, answer["ids"])
    for key in ("bos_token_id", "eos_token_id"):
        said = getattr(generate.model.config, key)
        if said != generate.tokenizer.eos_token_id:
            print(key, "is", said, "and the tokenizer's", generate.tokenizer.eos_token_id)
            wrong += 1
    return wrong


def main(bin_dir, *models):
    with tempfile.TemporaryDirectory() as folder:
        models = models or [train(bin_dir, preset, pathlib.Path(folder)) for preset in ("byte-small", "text-small")]
        return sum(compare(bin_dir, model) for model in models) != 0


sys.exit(main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "bin"), *sys.argv[2:]))
