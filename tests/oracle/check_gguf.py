"""What eps exports passes through llama.cpp's converters, and comes out as it went in: a small model of each family that
llama.cpp knows, with its adapters.

    python check_gguf.py LLAMA [--bin build/bin] [--only NAME...] [--simple PROGRAM]

LLAMA is a checkout of llama.cpp, for convert_hf_to_gguf.py, convert_lora_to_gguf.py and models/ggml-vocab-*.gguf. Each model
is random, of transformers, with its tokenizer and chat template. eps trains it for two steps, whole and by adapters, and
exports it in fp32, in bf16, as adapters alone, and merged. The converters read all of it, and the origin. Of each GGUF the
tensors have the names that gguf has for the family, their types, and bit for bit the values of our safetensors, in the
converter's order; what else it says (sizes, tokens, merges, special tokens, template) is what the origin's says.
PROGRAM is llama.cpp's llama-simple: the tokens that it takes to be the likeliest are those of eps generate.

GPT-2, Llama 3, Qwen and BERT have their published vocabularies, which the converter recognises by what they make of a text.
Of Llama 2, Mistral, Gemma and RoBERTa small ones are learned here. Where the converter does not look at the tokens, in all
but the last, nothing else is needed; for RoBERTa it is told the name. Not converted, by llama.cpp's own limits: adapters of
GPT-2, whose factors it exchanges, adapters of classifiers, whose head it does not know, and RoBERTa for masked tokens.
GPT-2's config.json needs n_ctx, which published ones have; one that transformers writes today, or a preset of eps, has none.
Exit status 0 or 1.

Made with torch 2.15.0, transformers 5.23.0, gguf 0.19.0 and llama.cpp at 0c1e57098 (in the source of llama-cpp-python 0.3.36).
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
import sentencepiece
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers.convert_slow_tokenizer import bytes_to_unicode

import tokens

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEXT = [path.read_text() for path in (ROOT / "README.md", ROOT / "tests" / "README.md", ROOT / "eps" / "README.md")]
PROMPT, N_GENERATED = "The daemon holds all weights", 12


# ---- Tokenizers ----

def special(text):
    return AddedToken(text, special=True, normalized=False)


def published(llama, name):
    """The tokens, their types and the merges of a vocabulary that llama.cpp has."""
    fields = gguf.GGUFReader(llama / "models" / f"ggml-vocab-{name}.gguf").fields
    merges = fields.get("tokenizer.ggml.merges")
    return (fields["tokenizer.ggml.tokens"].contents(), fields["tokenizer.ggml.token_type"].contents(),
            merges and [tuple(merge.split(" ")) for merge in merges.contents()])


def byte_level(llama, name, pattern=None, **options):
    words, kinds, merges = published(llama, name)
    normal = [kind == gguf.TokenType.NORMAL for kind in kinds]
    t = Tokenizer(models.BPE(vocab={w: i for i, w in enumerate(words) if normal[i]}, merges=merges, **options))
    t.add_tokens([special(w) for i, w in enumerate(words) if kinds[i] == gguf.TokenType.CONTROL])
    t.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    if pattern:
        t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), t.pre_tokenizer])
    t.decoder, t.post_processor = decoders.ByteLevel(), processors.ByteLevel(trim_offsets=False)
    return t


def llama3(llama, _):
    t = byte_level(llama, "llama-bpe", tokens.LLAMA3, ignore_merges=True)
    t.post_processor = processors.Sequence([t.post_processor, tokens.begins_with(t, "<|begin_of_text|>")])
    return t


def qwen(llama, _):
    t = byte_level(llama, "qwen2", tokens.QWEN)
    t.normalizer = normalizers.NFC()
    return t


def word_pieces(llama, _):
    words, kinds, _ = published(llama, "bert-bge")
    control = [kind == gguf.TokenType.CONTROL for kind in kinds]
    pieces = [w if control[i] else w.removeprefix("▁") if w.startswith("▁") else "##" + w for i, w in enumerate(words)]
    t = Tokenizer(models.WordPiece({w: i for i, w in enumerate(pieces)}, unk_token="[UNK]"))
    t.normalizer, t.pre_tokenizer = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    t.add_special_tokens([special(w) for i, w in enumerate(pieces) if control[i]])
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     special_tokens=[(w, pieces.index(w)) for w in ("[CLS]", "[SEP]")])
    t.decoder = decoders.WordPiece()
    return t


def sentence_pieces(folder, prefix, first, extra, keep_model=True):
    """BPE over characters: tokenizer.model, learned by sentencepiece, and the same as a tokenizer.json."""
    (folder / "text").write_text("\n".join(TEXT))
    ids = {f"{name}_id": first.index(text) if text in first else -1
           for name, text in dict(unk="<unk>", bos=first[-2] if prefix else "<bos>", eos=first[-1] if prefix else "<eos>",
                                  pad="<pad>").items()}
    sentencepiece.SentencePieceTrainer.train(
        input=str(folder / "text"), model_prefix=str(folder / "tokenizer"), model_type="bpe", vocab_size=600, byte_fallback=True,
        add_dummy_prefix=prefix, remove_extra_whitespaces=False, normalization_rule_name="identity", control_symbols=extra,
        bos_piece="<s>" if prefix else "<bos>", eos_piece="</s>" if prefix else "<eos>", minloglevel=2, **ids)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))
    for name in ("text", "tokenizer.vocab") + (() if keep_model else ("tokenizer.model",)):
        (folder / name).unlink()
    vocabulary = {pieces.id_to_piece(i): i for i in range(pieces.vocab_size())}
    merges = [sorted((vocabulary[w[:n]], vocabulary[w[n:]]) for n in range(1, len(w))
                     if w[:n] in vocabulary and w[n:] in vocabulary)
              for w, i in vocabulary.items() if not (pieces.is_control(i) or pieces.is_byte(i) or pieces.is_unknown(i))]
    words = list(vocabulary)
    t = Tokenizer(models.BPE(vocab=vocabulary, merges=[(words[a], words[b]) for all_of in merges for a, b in all_of],
                             unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.add_special_tokens([special(text) for text in [*first, *extra]])
    replace = normalizers.Replace(" ", "▁")
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace]) if prefix else replace
    t.decoder = decoders.Sequence(tokens.LLAMA_DECODER + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    t.post_processor = tokens.begins_with(t, "<s>" if prefix else "<bos>")
    return t


def llama2(_, folder):
    return sentence_pieces(folder, True, ["<unk>", "<s>", "</s>"], [])


def mistral(_, folder):
    return sentence_pieces(folder, True, ["<unk>", "<s>", "</s>"], ["[INST]", "[/INST]"], keep_model=False)


def gemma(_, folder):
    return sentence_pieces(folder, False, ["<pad>", "<eos>", "<bos>", "<unk>"], ["<start_of_turn>", "<end_of_turn>"])


# ---- Models ----

DECODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
               max_position_embeddings=128, initializer_range=0.3)
ENCODER = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=66,
               initializer_range=0.3, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
GPT2 = dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, initializer_range=0.3, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0)
LLAMA3_ROPE = dict(rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                   original_max_position_embeddings=64)
GEMMA3_ROPE = dict(sliding_attention=dict(rope_type="default", rope_theta=10000.0),
                   full_attention=dict(rope_type="default", rope_theta=1000000.0))
SPECIAL = {"gpt2": ("<|endoftext|>", "<|endoftext|>", None), "llama3": ("<|begin_of_text|>", "<|eot_id|>", None),
           "qwen": (None, "<|im_end|>", "<|endoftext|>"), "llama2": ("<s>", "</s>", None), "gemma": ("<bos>", "<eos>", "<pad>"),
           "word_pieces": ("[CLS]", "[SEP]", "[PAD]"), "roberta": ("<s>", "</s>", "<pad>")}  # first, end, pad
MODELS = {  # model type, architecture in gguf, tokenizer, its special tokens, template in models/templates, numbers
    "gpt2": ("gpt2", "GPT2", lambda llama, _: byte_level(llama, "gpt-2"), "gpt2", None, GPT2),
    "llama3": ("llama", "LLAMA", llama3, "llama3", "meta-llama-Llama-3.1-8B-Instruct", DECODER | dict(
        rope_parameters=LLAMA3_ROPE)),
    "llama2": ("llama", "LLAMA", llama2, "llama2", None, DECODER | dict(tie_word_embeddings=True)),
    "mistral": ("mistral", "LLAMA", mistral, "llama2", "unsloth-mistral-Devstral-Small-2507", DECODER | dict(
        head_dim=12, sliding_window=None)),
    "qwen2": ("qwen2", "QWEN2", qwen, "qwen", "Qwen-Qwen2.5-7B-Instruct", DECODER),
    "qwen3": ("qwen3", "QWEN3", qwen, "qwen", "Qwen-Qwen3-0.6B", DECODER | dict(head_dim=16, tie_word_embeddings=True)),
    "gemma": ("gemma", "GEMMA", gemma, "gemma", "google-gemma-2-2b-it", DECODER | dict(head_dim=16)),
    "gemma3": ("gemma3_text", "GEMMA3", gemma, "gemma", "google-gemma-2-2b-it", DECODER | dict(
        head_dim=16, num_hidden_layers=3, sliding_window=16, query_pre_attn_scalar=16, rope_parameters=GEMMA3_ROPE,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"])),
    "bert": ("bert", "BERT", word_pieces, "word_pieces", None, ENCODER),
    "bert_classes": ("bert", "BERT", word_pieces, "word_pieces", None, ENCODER),
    "roberta_classes": ("roberta", "BERT", lambda *_: tokens.roberta(TEXT, 500), "roberta", None, ENCODER | dict(
        type_vocab_size=1)),
}
ADAPTED = [name for name in MODELS if name != "gpt2" and "classes" not in name and name != "bert"]


def origin(name, llama, folder):
    """The model as transformers saves it."""
    kind, _, make_tokenizer, meanings, template, numbers = MODELS[name]
    folder.mkdir()
    tokenizer = make_tokenizer(llama, folder)
    first, end, pad = SPECIAL[meanings]
    more = dict(unk_token="[UNK]", cls_token=first, sep_token=end, mask_token="[MASK]") if kind == "bert" else {}
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=first, eos_token=end, pad_token=pad, **more)
    if template:
        made.chat_template = (llama / "models" / "templates" / f"{template}.jinja").read_text()
    made.save_pretrained(folder)
    id_of = lambda text: None if text is None else tokenizer.token_to_id(text)
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(kind, **numbers, vocab_size=tokenizer.get_vocab_size() + 3 * (kind == "qwen2"),
                                               bos_token_id=id_of(first), eos_token_id=id_of(end), pad_token_id=id_of(pad))
    auto = transformers.AutoModelForMaskedLM if kind in ("bert", "roberta") else transformers.AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    if kind == "gpt2":  # as the published file has it; the converter takes it from there
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | {"n_ctx": numbers["n_positions"]}))


def run(programs, *words):
    done = subprocess.run([os.path.join(programs, "eps"), *map(str, words)], capture_output=True)  # bytes: \r stays
    if done.returncode:
        sys.exit(f"eps {' '.join(map(str, words))}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def export_all(name, programs, work):
    """Gives fp32, bf16, adapter and merged, of which some are left out where llama.cpp cannot convert them."""
    machine = ["--device", "cpu", "--batch", 4, "--steps", 2, "--lr", 0.01, "--seq", 32, "--model", work / "origin"]
    if "classes" in name:
        rows = [f"{line[:40]}\tclass {i % 3}" for i, line in enumerate(TEXT[0].splitlines()) if len(line) > 9]
        (work / "data.tsv").write_text("sentence\tlabel\n" + "\n".join(rows).replace('"', "") + "\n")
        machine += ["--task", "classify", "--data", work / "data.tsv"]
    else:
        (work / "data.txt").write_text(TEXT[0])
        machine += ["--data", work / "data.txt"]
    run(programs, "train", "--out", work / "run", *machine)
    for dtype in ("fp32", "bf16"):
        run(programs, "export", "--model", work / "run", "--out", work / dtype, "--dtype", dtype)
    if name in ADAPTED:
        run(programs, "train", "--out", work / "adapters", "--lora", "rank=4,alpha=12,targets=all-linear", *machine)
        run(programs, "export", "--model", work / "adapters", "--out", work / "adapter")
        run(programs, "export", "--model", work / "adapters", "--merge", "--out", work / "merged")
    return ["fp32", "bf16"] + (["adapter", "merged"] if name in ADAPTED else [])


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
            if name.startswith("roberta"):
                from conversion.base import TextModel
                TextModel.get_vocab_base_pre = lambda self, tokenizer: "roberta-bpe"
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


def wanted(kind, tensor, x, config):
    """The name without what llama.cpp leaves out, and the values as it orders them; None: not taken."""
    tensor = tensor.removeprefix("bert.").removeprefix("roberta.")
    if kind in ("bert", "roberta") and tensor.startswith(("cls.predictions", "pooler", "lm_head")):
        return None
    if tensor in ("classifier.weight", "classifier.bias"):
        tensor = tensor.replace("classifier", "classifier.out_proj")
    if kind in ("llama", "mistral") and (".q_proj." in tensor or ".k_proj." in tensor):
        x = turned(x, config["num_attention_heads" if ".q_proj." in tensor else "num_key_value_heads"])
    if kind == "gpt2" and tensor.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
        x = x.T
    if kind.startswith("gemma") and tensor.endswith("norm.weight"):
        x = x + np.float32(1)
    if kind == "roberta" and tensor == "embeddings.position_embeddings.weight":
        x = x[config["pad_token_id"] + 1:]
    return tensor, x


def compare_tensors(name, what, reader, folder, config, dtype):
    """Names, types and values against the safetensors of a folder."""
    kind, arch = MODELS[name][:2]
    names, got = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], len(DECODER)), {t.name: t for t in reader.tensors}
    n_tensors = 0
    for tensor, x in sorted(load_file(folder / "model.safetensors").items()):
        want = wanted(kind, tensor, x.float().numpy(), config)
        if want is None:
            continue
        theirs = names.get_name(want[0], try_suffixes=(".weight", ".bias"))
        if theirs not in got:
            sys.exit(f"{name}, {what}: {tensor} should be {theirs}, of which there is none")
        found = got.pop(theirs)
        small = want[1].ndim < 2 or theirs in ("position_embd.weight", "token_types.weight") or not theirs.endswith(".weight")
        if found.tensor_type.name != ("F32" if small else dtype):
            sys.exit(f"{name}, {what}: {theirs} is {found.tensor_type.name}")
        if not np.array_equal(numbers_of(found), want[1]):
            sys.exit(f"{name}, {what}: {theirs} is not {tensor}")
        n_tensors += 1
    if set(got) - {"rope_freqs.weight"}:
        sys.exit(f"{name}, {what}: {sorted(got)} are none of the model's")
    return n_tensors


def compare_adapter(name, reader, folder, config, shapes):
    """The factors of each map, B in the order of its rows; shapes are those of the base in its GGUF."""
    kind, arch = MODELS[name][:2]
    names, got = gguf.get_tensor_name_map(gguf.MODEL_ARCH[arch], len(DECODER)), {t.name: t for t in reader.tensors}
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
    vocabulary = made["model"]["vocab"] | {token["content"]: token["id"] for token in made["added_tokens"]}
    phantom = lambda w: w if w[0] == "[" and w[-1] == "]" and len(w) > 1 else w[2:] if w.startswith("##") else "▁" + w
    wrong = [w for w, i in vocabulary.items() if words[i] != (phantom(w) if MODELS[name][0] == "bert" else w)]
    if wrong:
        sys.exit(f"{name}: tokens differ: {wrong[:9]}")
    merges = reader.fields.get("tokenizer.ggml.merges")
    if merges and merges.contents() != [" ".join(merge) for merge in made["model"]["merges"]]:
        sys.exit(f"{name}: merges differ")
    if template.exists() and reader.fields["tokenizer.chat_template"].contents() != template.read_text():
        sys.exit(f"{name}: the chat template differs")
    return len(vocabulary)


def bytes_of(tokenizer):
    """What llama.cpp writes for each token: a token that is a byte writes it, whether or not a character comes of it."""
    letters = {v: k for k, v in bytes_to_unicode().items()} if "ByteLevel" in tokenizer.backend_tokenizer.to_str() else None

    def of(token):
        if re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        if letters and all(c in letters for c in token):
            return bytes(letters[c] for c in token)
        return token.replace("\u2581", " ").encode()
    return [of(token) for token in tokenizer.convert_ids_to_tokens(range(len(tokenizer)))]


def compare_generated(name, programs, simple, file, model):
    """The likeliest tokens after a prompt. llama.cpp rounds keys, values and GELU to 16 bits, so where the texts part, the
    two tokens must be all but equally likely by transformers: their logits within a fiftieth of all logits' deviation."""
    theirs = subprocess.run([simple, "-m", file, "-n", str(N_GENERATED), PROMPT], capture_output=True)
    ours = json.loads(run(programs, "generate", "--model", model, "--prompt", PROMPT, "--tokens", N_GENERATED,
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
    first = told(whole("origin", "f32")) if "classes" not in name else None
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
            if options.simple and what != "bf16" and "bert" not in name:
                compare_generated(name, options.bin, options.simple, work / f"{what}.gguf", work / what)
        said.append(f"{what} {n_tensors} tensors")
    texts = ", texts" if options.simple and "bert" not in name else ""
    print(f"{name}: {', '.join(said)}, {n_tokens} tokens{texts}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    parser = argparse.ArgumentParser()
    parser.add_argument("llama", type=pathlib.Path)
    parser.add_argument("--bin", default=str(ROOT / "build" / "bin"))
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
