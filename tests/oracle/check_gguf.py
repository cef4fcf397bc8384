"""What eps exports passes through llama.cpp's converters, and comes out as it went in: small models of each family that
llama.cpp knows (gguf_models.py), with their adapters.

    python check_gguf.py LLAMA [--bin build/bin] [--only NAME...] [--simple PROGRAM]

LLAMA is a checkout of llama.cpp, for convert_hf_to_gguf.py, convert_lora_to_gguf.py and models/ggml-vocab-*.gguf. Each
model is random, of transformers, with its tokenizer and chat template. eps trains it for two steps,
whole and by adapters,
and exports it in fp32, in bf16, as adapters alone, and merged. The converters read all of it,
and the origin. Of each GGUF
the tensors have the names that gguf has for the family, their types, and bit for bit the values of our safetensors,
in the
converter's order; what else it says (sizes, tokens, merges, special tokens, template) is what the origin's says.
PROGRAM is llama.cpp's llama-simple: the tokens that it takes to be the likeliest are those of eps generate.

Not converted, by llama.cpp's own limits:
    adapters    of GPT-2, whose factors it exchanges; of Ministral 3, in whose place it writes the base; of classifiers,
                whose head it does not know
    models      OPT and ELECTRA, which it does not know; RoBERTa, XLM-R, EuroBERT and ModernBERT for masked tokens, of
                which it does not know the class or the head
    config      GPT-2 needs n_ctx, GPT-NeoX and Cohere 2 rotary_pct. Published files have them, those that transformers
                writes have not; transformers 5 drops GPT-NeoX's, so that the converter is given the file itself
Exit status 0 or 1.

Made with torch 2.15.0, transformers 5.24.0, gguf 0.19.0 and llama.cpp at 0c1e57098 (in the source of llama-cpp-python
0.3.36).
"""
import argparse
import json
import os
import pathlib
import re
import runpy
import subprocess
import sys
import tempfile
import traceback

import gguf
import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from family_tokens import TOKENIZERS
from gguf_models import MODELS, PIECES, ROOT, TEXT
from programs import BIN, eps

ENCODERS = ("bert", "roberta", "xlm-roberta", "distilbert", "modernbert")
PROMPT, N_GENERATED = "The daemon holds all weights", 12


# ---- Models ----

def origin(name, llama, folder):
    """The model as transformers saves it."""
    row = MODELS[name]
    folder.mkdir()
    first, end, pad = row.special
    if isinstance(row.tokenizer, str):
        TOKENIZERS[row.tokenizer][1](TEXT, 500, folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        tokenizer = row.tokenizer(llama, folder)
        more = (dict(unk_token="[UNK]", cls_token=first, sep_token=end, mask_token="[MASK]")
                if row.special is PIECES else {})
        transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first, eos_token=end, pad_token=pad,
                                             **more).save_pretrained(folder)
    if row.template:
        template = llama / "models" / "templates" / f"{row.template}.jinja"
        (folder / "chat_template.jinja").write_text(template.read_text())
    id_of = lambda text: None if text is None else tokenizer.token_to_id(text)
    torch.manual_seed(1)
    size = tokenizer.get_vocab_size() + 3 * (row.kind == "qwen2")
    numbers = dict(vocab_size=size, bos_token_id=id_of(first), eos_token_id=id_of(end),
                   pad_token_id=id_of(pad)) | row.numbers
    config = transformers.AutoConfig.for_model(row.kind, **numbers)
    auto = transformers.AutoModelForMaskedLM if row.kind in ENCODERS else transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | row.published))


def export_all(name, programs, work):
    """Gives fp32, bf16, adapter and merged, of which some are left out where llama.cpp cannot convert them."""
    machine = ["--device", "cpu", "--batch", 4, "--steps", 2, "--lr", 0.01, "--seq", 32, "--model", work / "origin"]
    if MODELS[name].classes:
        rows = [f"{line[:40]}\tclass {i % 3}" for i, line in enumerate(TEXT[0].splitlines()) if len(line) > 9]
        (work / "data.tsv").write_text("sentence\tlabel\n" + "\n".join(rows).replace('"', "") + "\n")
        machine += ["--task", "classify", "--data", work / "data.tsv"]
    else:
        (work / "data.txt").write_text(TEXT[0])
        machine += ["--data", work / "data.txt"]
    eps(programs, "train", "--out", work / "run", *machine)
    for dtype in ("fp32", "bf16"):
        eps(programs, "export", "--model", work / "run", "--out", work / dtype, "--dtype", dtype)
    if MODELS[name].adapted:
        eps(programs, "train", "--out", work / "adapters", "--lora", "rank=4,alpha=12,targets=all-linear", *machine)
        eps(programs, "export", "--model", work / "adapters", "--out", work / "adapter")
        eps(programs, "export", "--model", work / "adapters", "--merge", "--out", work / "merged")
    return ["fp32", "bf16"] + (["adapter", "merged"] if MODELS[name].adapted else [])


# ---- Conversion ----

def convert(llama, script, name, out, *words):
    """In a process of its own, which has llama.cpp's own gguf, and torch as it is loaded here."""
    log = out.with_suffix(".log")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with open(log, "w") as to:
                os.dup2(to.fileno(), 1)
                os.dup2(to.fileno(), 2)
            for module in [m for m in sys.modules if m.split(".")[0] == "gguf"]:
                del sys.modules[module]
            sys.path[0:0] = [str(llama), str(llama / "gguf-py")]
            from conversion.base import ModelBase, TextModel
            if MODELS[name].pre:
                TextModel.get_vocab_base_pre = lambda self, tokenizer: MODELS[name].pre
            if MODELS[name].published:
                ModelBase.load_hparams = staticmethod(lambda at, *_: json.loads((at / "config.json").read_text()))
            sys.argv = [script, "--outfile", str(out), *map(str, words)]
            runpy.run_path(str(llama / script), run_name="__main__")
            status = 0
        except SystemExit as end:
            status = end.code or 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(child, 0)[1]:
        sys.exit(f"{name}: {script} {' '.join(map(str, words))}: {log.read_text()[-2000:]}")
    return gguf.GGUFReader(out)


def told(reader):
    """What a GGUF says besides tensors, without what it makes of the folder's name and the sum of sizes."""
    skip = ("GGUF.", "general.name", "general.basename", "general.finetune", "general.size_label", "general.file_type",
            "general.version", "general.base_model.")
    return {key: field.contents() for key, field in reader.fields.items() if not key.startswith(skip)}


def numbers_of(tensor):
    return gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(tuple(map(int, tensor.shape[::-1])))


# ---- What a GGUF should hold ----

def turned(weights, n_heads):
    """The rows of q's or k's heads in llama.cpp's order: halves that rotate together are neighbours."""
    return weights.reshape(n_heads, 2, len(weights) // n_heads // 2, -1).swapaxes(1, 2).reshape(weights.shape)


def apart(weights, n_heads):
    """q of all heads, then k, then v, where each head's three follow one another."""
    return weights.reshape(n_heads, 3, len(weights) // n_heads // 3, -1).swapaxes(0, 1).reshape(weights.shape)


HEADS = {".q_proj.": "num_attention_heads", ".k_proj.": "num_key_value_heads"}
TURNED = ("llama", "mistral", "ministral3", "arcee", "smollm3", "granite", "olmo")
FACTORS = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}
# kind: the tensors that its architecture in llama.cpp has not
LEFT_OUT = {"bert": "cls.predictions|pooler", "roberta": "pooler|lm_head", "xlm-roberta": "pooler|lm_head",
            "distilbert": "vocab_", "modernbert": "decoder"}


def wanted(kind, tensor, x, config):
    """The name without what llama.cpp leaves out, and the values as it orders them; None: not taken."""
    if kind in LEFT_OUT:
        tensor = re.sub("^(bert|roberta|distilbert|model)[.]", "", tensor)
        if re.match(LEFT_OUT[kind], tensor):
            return None
        tensor = re.sub("^classifier[.](weight|bias)$", r"classifier.out_proj.\1", tensor)
    heads = [key for part, key in HEADS.items() if part in tensor]
    if kind in TURNED and heads:
        x = turned(x, config[heads[0]])
    if kind == "gpt_neox" and ".query_key_value." in tensor:
        x = apart(x, config["num_attention_heads"])
    if kind == "gpt2" and tensor.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        x = x.T
    if kind.startswith("gemma") and tensor.endswith("norm.weight"):
        x = x + np.float32(1)
    if tensor.endswith("conv.conv.weight"):  # of LFM2: (channels, 1, taps)
        x = x.squeeze(1)
    if kind in ("roberta", "xlm-roberta") and tensor == "embeddings.position_embeddings.weight":
        x = x[config["pad_token_id"] + 1:]
    return tensor, x


def compare_tensors(name, what, reader, folder, config, dtype):
    """Names, types and values against the safetensors of a folder."""
    kind, arch = MODELS[name][:2]
    names, got = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], 3), {t.name: t for t in reader.tensors}
    n_tensors, rope = 0, config.get("rope_parameters") or {}
    for tensor, x in sorted(load_file(folder / "model.safetensors").items()):
        want = wanted(kind, tensor, x.float().numpy(), config)
        if want is None:
            continue
        theirs = names.get_name(want[0], try_suffixes=(".weight", ".bias"))
        if theirs not in got:
            sys.exit(f"{name}, {what}: {tensor} should be {theirs}, of which there is none")
        found = got.pop(theirs)
        small = (want[1].ndim < 2 or theirs in ("position_embd.weight", "token_types.weight")
                 or "shortconv.conv" in theirs or not theirs.endswith(".weight"))
        if found.tensor_type.name != ("F32" if small else dtype):
            sys.exit(f"{name}, {what}: {theirs} is {found.tensor_type.name}")
        if not np.array_equal(numbers_of(found), want[1]):
            sys.exit(f"{name}, {what}: {theirs} is not {tensor}")
        n_tensors += 1
    for theirs, ours in FACTORS.items():
        if ours in rope and not np.array_equal(numbers_of(got.pop(theirs)), np.float32(rope[ours])):
            sys.exit(f"{name}, {what}: {theirs} is not {ours}")
    if set(got) - {"rope_freqs.weight"}:
        sys.exit(f"{name}, {what}: {sorted(got)} are none of the model's")
    return n_tensors


def compare_adapter(name, reader, folder, config, shapes):
    """The factors of each map, B in the order of its rows; shapes are those of the base in its GGUF."""
    kind, arch = MODELS[name][:2]
    names, got = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], 3), {t.name: t for t in reader.tensors}
    settings = json.loads((folder / "adapter_config.json").read_text())
    if reader.fields["adapter.lora.alpha"].contents() != settings["lora_alpha"]:
        sys.exit(f"{name}, adapter: alpha is {reader.fields['adapter.lora.alpha'].contents()}")
    stored = load_file(folder / "adapter_model.safetensors")
    for tensor, x in sorted(stored.items()):
        stem, factor = tensor.removeprefix("base_model.model.").removesuffix(".weight").rsplit(".", 1)
        base = names.get_name(f"{stem}.weight", try_suffixes=(".weight",))
        theirs, values = f"{base}.{factor.lower()}", x.float().numpy()
        if factor == "lora_B":
            values = wanted(kind, f"{stem}.weight", values, config)[1]
        if theirs not in got or not np.array_equal(numbers_of(got[theirs]), values):
            sys.exit(f"{name}, adapter: {theirs} is not {tensor}")
        if values.shape[1 if factor == "lora_A" else 0] != shapes[base][0 if factor == "lora_A" else 1]:
            sys.exit(f"{name}, adapter: {theirs} does not fit {base}")
        del got[theirs]
    if got:
        sys.exit(f"{name}, adapter: {sorted(got)} are none of the adapter's")
    return len(stored)


def compare_tokens(name, reader, folder):
    """The vocabulary and the merges, against tokenizer.json itself; the template, against its file."""
    words, template = reader.fields["tokenizer.ggml.tokens"].contents(), folder / "chat_template.jinja"
    made = json.loads((folder / "tokenizer.json").read_text())
    pieces = made["model"]["vocab"]  # of Unigram, a list with scores
    pieces = pieces if isinstance(pieces, dict) else {piece: i for i, (piece, _) in enumerate(pieces)}
    vocabulary = pieces | {token["content"]: token["id"] for token in made["added_tokens"]}
    phantom = lambda w: w if w[0] == "[" and w[-1] == "]" and len(w) > 1 else w[2:] if w.startswith("##") else "▁" + w
    as_words = MODELS[name].special is PIECES and MODELS[name].arch == "BERT"
    wrong = [w for w, i in vocabulary.items() if words[i] != (phantom(w) if as_words else w)]
    if wrong:
        sys.exit(f"{name}: tokens differ: {wrong[:9]}")
    merges = reader.fields.get("tokenizer.ggml.merges")
    if merges and merges.contents() != [" ".join(merge) for merge in made["model"]["merges"]]:
        sys.exit(f"{name}: merges differ")
    if template.exists() and reader.fields["tokenizer.chat_template"].contents() != template.read_text():
        sys.exit(f"{name}: the chat template differs")
    return len(vocabulary)


def bytes_of(tokenizer):
    """What llama.cpp writes for each token: one that is a byte writes it, whether or not a character comes of it."""
    of_bytes = "ByteLevel" in tokenizer.backend_tokenizer.to_str()
    letters = {v: k for k, v in bytes_to_unicode().items()} if of_bytes else None

    def of(token):
        if re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        if letters and all(c in letters for c in token):
            return bytes(letters[c] for c in token)
        return token.replace("\u2581", " ").encode()
    return [of(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def compare_generated(name, programs, simple, file, model):
    """The likeliest tokens after a prompt. llama.cpp rounds keys, values and GELU to 16 bits, so where the texts part,
    the two tokens must be all but equally likely by transformers: their logits within a fiftieth of all logits'
    deviation."""
    theirs = subprocess.run([simple, "-m", file, "-n", str(N_GENERATED), PROMPT], capture_output=True)
    ours = json.loads(eps(programs, "generate", "--model", model, "--prompt", PROMPT, "--tokens", N_GENERATED,
                          "--temperature", 0, "--device", "cpu", "--json"))["ids"]
    if theirs.returncode:
        sys.exit(f"{name}: {simple}: {theirs.stderr.decode(errors='replace')[-2000:]}")
    rest = theirs.stdout.removesuffix(b"\n")
    rest = rest[rest.index(PROMPT.encode()) + len(PROMPT.encode()):]
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    written = bytes_of(tokenizer)
    for at, token in enumerate(ours):
        if not rest.startswith(written[token]):
            break
        rest = rest[len(written[token]):]
    else:
        return
    context = tokenizer(PROMPT)["input_ids"] + ours[:at]
    with torch.no_grad():
        logits = transformers.AutoModelForCausalLM.from_pretrained(model)(torch.tensor([context])).logits[0, -1].float()
    other = max(float(logits[i]) for i, b in enumerate(written) if b and rest.startswith(b))
    gap = abs(float(logits[ours[at]]) - other) / float(logits.std())
    if gap > 0.02:
        sys.exit(f"{name}: llama.cpp goes on with {rest!r}, eps with {written[ours[at]]!r}: {gap:.3f} deviations apart")


def check(name, options, work):
    llama = options.llama
    origin(name, llama, work / "origin")
    made = export_all(name, options.bin, work)
    config = json.loads((work / "fp32" / "config.json").read_text())
    whole = lambda what, dtype: convert(llama, "convert_hf_to_gguf.py", name, work / f"{what}.gguf", work / what,
                                        "--outtype", dtype)
    first = told(whole("origin", "f32")) if not MODELS[name].classes else None
    n_tokens, shapes, said = 0, {}, []
    for what in made:
        if what == "adapter":
            reader = convert(llama, "convert_lora_to_gguf.py", name, work / "adapter.gguf", work / what,
                             "--base", work / "origin")
            n_tensors = compare_adapter(name, reader, work / what, config, shapes)
        else:
            reader = whole(what, "auto" if what == "bf16" else "f32")
            n_tensors = compare_tensors(name, what, reader, work / what, config, "BF16" if what == "bf16" else "F32")
            n_tokens = compare_tokens(name, reader, work / "origin")
            shapes = {t.name: tuple(map(int, t.shape)) for t in reader.tensors}
            last = told(reader)
            apart = [key for key in {**(first or {}), **last} if first and last.get(key) != first.get(key)]
            if apart:
                sys.exit(f"{name}, {what}: not as of the origin: {apart}")
            if options.simple and what != "bf16" and MODELS[name].kind not in ENCODERS:
                compare_generated(name, options.bin, options.simple, work / f"{what}.gguf", work / what)
        said.append(f"{what} {n_tensors} tensors")
    texts = ", texts" if options.simple and MODELS[name].kind not in ENCODERS else ""
    print(f"{name}: {', '.join(said)}, {n_tokens} tokens{texts}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser()
    parser.add_argument("llama", type=pathlib.Path)
    parser.add_argument("--bin", default=BIN)
    parser.add_argument("--only", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--simple")
    chosen = parser.parse_args()
    failed = []
    for each in chosen.only:
        with tempfile.TemporaryDirectory(prefix="gguf-") as folder:
            os.environ["XDG_RUNTIME_DIR"] = folder
            try:
                check(each, chosen, pathlib.Path(folder))
            except SystemExit as why:
                print(f"FAILED: {why}", flush=True)
                failed.append(each)
    print(f"{len(chosen.only) - len(failed)} passed, {len(failed)} failed")
    sys.exit(bool(failed))
