"""Loads a model directory that we saved with transformers, and holds it against the one it came from.

    python check_saved.py SAVED [ORIGIN]
    python check_saved.py --bin BIN

transformers must not warn. Nothing may be missing or left over; every tensor that transformers then has is bit for bit
the file's (16 bits widened), and the type that config.json names is the file's. With ORIGIN (made by transformers, loaded
by us and saved again) all tensors are equal, after rounding to the type of SAVED, and so are the logits. With --bin, the
folder of eps, this is done with every model that logits.py made, and with what a step of training makes of it: exported
in fp32, bf16, fp16, and in the type in which it came. Then with classifiers and regressions that eps makes of a BERT and of
a RoBERTa for masked tokens; there, what eps eval predicts of pairs of texts is what transformers predicts. And with T5 of
versions 1.0 and 1.1 and as Flan is published, whose losses are those of transformers in float64, before and behind some
steps and once more exported; names, shapes and configurations stay. Exit status 0 or 1.
"""
import functools
import glob
import json
import logging
import os
import shutil
import sys
import tempfile
import warnings

import numpy as np
import torch
from safetensors import safe_open
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM,
                          AutoModelForSequenceClassification, BertConfig, BertForMaskedLM, RobertaConfig, RobertaForMaskedLM)
from transformers.utils import logging as transformers_logging

import make_saved
import mixtures
import muse_glimmer  # noqa: F401: registers a class
import programs

said = []
UNTIED = "so we will NOT tie them"  # transformers 5 says this of every T5 with a head of its own


class Listener(logging.Handler):
    def emit(self, record):
        if UNTIED not in record.getMessage():
            said.append(record.getMessage())


FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")


def kind_of(folder):
    names = AutoConfig.from_pretrained(folder).architectures
    kinds = {"ForMaskedLM": AutoModelForMaskedLM, "ForSequenceClassification": AutoModelForSequenceClassification,
             "T5ForConditionalGeneration": AutoModelForSeq2SeqLM}
    return next((kind for end, kind in kinds.items() if names and names[0].endswith(end)), AutoModelForCausalLM)


def load(folder, may_hold_more=False):
    model, info = kind_of(folder).from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if info[what] and not (may_hold_more and what == "unexpected_keys"):
            sys.exit(f"{folder}: {what}: {sorted(info[what])}")
    return model.eval()


RENAMED = {"block_sparse_moe.gate.weight": "mlp.gate.weight", "embed_out.weight": "lm_head.weight",  # GPT-NeoX's files have a name that transformers 5 gave up
           "self_attn.gate_proj.weight": "self_attn.g_proj.weight"}  # and LFM3's one that it has in files alone


def in_memory(name):
    old = next((old for old in RENAMED if name.endswith(old)), None)
    return name if old is None else name.removesuffix(old) + RENAMED[old]


def stored(folder):
    tensors = {}
    for path in glob.glob(os.path.join(folder, "*.safetensors")):
        if os.path.basename(path) == "optimizer.safetensors":
            continue
        with safe_open(path, "pt") as f:
            tensors.update({in_memory(name): f.get_tensor(name) for name in f.keys()})
    return mixtures.joined(tensors, torch.stack, torch.cat)


def held(model):
    """Its parameters, and what else its files have: Apertus' constants are buffers."""
    state = model.state_dict()
    return dict(model.named_parameters(remove_duplicate=False)) | {name: b for name, b in model.named_buffers() if name in state}


def computed_with(model):
    """Without one that it reads and never uses: an old BERT's file has the bias of logits twice."""
    params = held(model)
    used = params.pop("cls.predictions.decoder.bias", None)
    return params | ({} if used is None else {"cls.predictions.bias": used})


def check(saved, origin=None):
    said.clear()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ours = load(saved)
        as_said = kind_of(saved).from_pretrained(saved)
    said[:] = [line for line in said if "xIELU not available" not in line]  # a kernel of Apertus that it does without
    if said or warned:
        sys.exit(f"{saved}: transformers warns: {said} {[str(w.message) for w in warned]}")
    params = held(ours)
    files = stored(saved)
    there = {params[name].data_ptr() for name in files if name in params}
    left = [name for name, p in params.items() if p.data_ptr() not in there]  # tied ones have one place under several names
    if left or set(files) - set(params):
        sys.exit(f"{saved}: names differ: {sorted(set(files) - set(params) | set(left))}")
    for name, tensor in files.items():
        if not torch.equal(tensor.float(), params[name]):
            sys.exit(f"{saved}: {name} is not what transformers has of it")
        if tensor.dtype != as_said.dtype:
            sys.exit(f"{saved}: {name} is {tensor.dtype}, config.json says {as_said.dtype}")
    if origin:
        theirs = load(origin, may_hold_more=True)  # an old file has other heads, too
        for name, p in computed_with(theirs).items():
            p.data = p.to(as_said.dtype).float()
            if not torch.equal(p, params[name]):
                sys.exit(f"{saved}: {name}: {(p - params[name]).abs().max().item():.3e} apart")
        n = min(11, getattr(theirs.config, "max_position_embeddings", 11))
        inputs = {"input_ids": torch.arange(2 * n).view(2, n) % theirs.config.vocab_size}
        if theirs.config.is_encoder_decoder:
            inputs["decoder_input_ids"] = inputs["input_ids"].flip(0)
        with torch.no_grad():
            if not torch.equal(theirs(**inputs).logits, ours(**inputs).logits):
                sys.exit("equal tensors, but logits differ: config.json is not the same model")
    print(f"{saved}: {len(files)} tensors equal" + (", logits equal" if origin else ""))


PAIRS = make_saved.PAIRS * 3


def rows_of(path, classes):
    with open(path, "w") as out:
        print("text", "text_pair", "label", sep="\t", file=out)
        for i, (first, second) in enumerate(PAIRS):
            print(first, second, f"class {i % classes}" if classes else i / 7, sep="\t", file=out)


def check_predictions(saved, predicted, classes):
    """eps's probabilities, or numbers, against those of transformers, which has each row by itself, without padding; fp32
    on either side, six digits in the file."""
    tokenizer, model = Tokenizer.from_file(os.path.join(saved, "tokenizer.json")), load(saved)
    with torch.no_grad():
        made = [tokenizer.encode(*pair) for pair in PAIRS]
        logits = torch.cat([model(input_ids=torch.tensor([row.ids]), token_type_ids=torch.tensor([row.type_ids])).logits
                            for row in made])
    theirs = logits.softmax(1).numpy() if classes else logits.numpy()
    lines = [line.rstrip("\n").split("\t") for line in open(predicted)]
    ours = np.array([line[1:] if classes else line for line in lines[1:]], dtype=float)
    if np.abs(ours - theirs).max() > 2e-5:
        sys.exit(f"{saved}: predictions are {np.abs(ours - theirs).max():.2e} apart")
    print(f"{saved}: {len(ours)} predictions equal")


def check_classifiers(eps):
    size = dict(vocab_size=450, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
                max_position_embeddings=70, initializer_range=0.3)
    families = {"bert": BertForMaskedLM(BertConfig(**size)), "roberta": RobertaForMaskedLM(RobertaConfig(**size, type_vocab_size=1))}
    for (name, model), classes in ((family, classes) for family in families.items() for classes in (0, 2, 3)):
        with tempfile.TemporaryDirectory(prefix=f"{name}-{classes}-") as home:
            origin, data, run = (os.path.join(home, part) for part in ("origin", "data.tsv", "run"))
            model.save_pretrained(origin)
            os.symlink(os.path.join(FIXTURES, "tokenizers", f"{name}.json"), os.path.join(origin, "tokenizer.json"))
            rows_of(data, classes)
            machine = ["--device", "cpu", "--device-mem", "64MiB"]
            eps("train", "--model", origin, "--task", "classify" if classes else "regress", "--data", data, "--eval-data", data,
                "--steps", "4", "--batch", "4", "--lr", "0.01", "--out", run, *machine)
            trained = os.path.join(run, "step-4")
            check(trained)
            predicted = os.path.join(home, "predicted.tsv")
            eps("eval", "--model", trained, "--data", data, "--predictions", predicted, *machine)
            check_predictions(trained, predicted, classes)
            for dtype in ("fp32", "bf16", "fp16"):
                out = os.path.join(home, dtype)
                eps("export", "--model", trained, "--out", out, "--dtype", dtype)
                check(out, trained)


def same_kind(saved, origin):
    """Names, shapes, and what transformers makes of the configuration."""
    shapes = [{name: tensor.shape for name, tensor in stored(folder).items()} for folder in (saved, origin)]
    configs = [AutoConfig.from_pretrained(folder).to_dict() for folder in (saved, origin)]
    for config in configs:
        for key in ("dtype", "_name_or_path", "transformers_version"):
            config.pop(key, None)
    if shapes[0] != shapes[1] or configs[0] != configs[1]:
        sys.exit(f"{saved}: names, shapes or the configuration are not those of {origin}")


def save_t5(version, origin):
    """As transformers saves it, but for Flan, which is as published: transformers 4 wrote tie_word_embeddings as it was."""
    make_saved.model_of("saved_t5" if version == "1.0" else "saved_flan", version == "1.1, tied").save_pretrained(origin)
    if version == "Flan":
        path = os.path.join(origin, "config.json")
        with open(path) as f:
            config = json.load(f)
        config.pop("scale_decoder_outputs")
        with open(path, "w") as f:
            json.dump(config | {"tie_word_embeddings": False}, f)
    os.symlink(make_saved.TOKENIZER, os.path.join(origin, "tokenizer.json"))


def check_t5(eps):
    for version in ("1.0", "1.1", "1.1, tied", "Flan"):
        with tempfile.TemporaryDirectory(prefix=f"t5-{version}-") as home:
            origin, data, run = (os.path.join(home, part) for part in ("origin", "data.jsonl", "run"))
            save_t5(version, origin)
            with open(data, "w") as out:
                for source, target in make_saved.PAIRS:
                    print(json.dumps({"source": source, "target": target}), file=out)
            machine = ["--device", "cpu", "--device-mem", "64MiB"]

            def check_loss(folder):
                ours = json.loads(eps("eval", "--model", folder, "--data", data, "--json", *machine))["loss"]
                theirs = make_saved.loss_of(make_saved.load(folder))
                if abs(ours - theirs) > 1e-6 * theirs:
                    sys.exit(f"{folder}: the loss is {ours}, transformers' {theirs}")
                print(f"{folder}: losses {ours:.9f} and {theirs:.9f}")

            check_loss(origin)
            eps("train", "--model", origin, "--data", data, "--steps", "4", "--batch", "3", "--lr", "0.01", "--out", run, *machine)
            trained = os.path.join(run, "step-4")
            for folder in (origin, trained):
                for dtype in ("fp32", "bf16", "fp16", None):
                    out = os.path.join(home, f"{os.path.basename(folder)}-{dtype or 'own'}")
                    eps("export", "--model", folder, "--out", out, *(["--dtype", dtype] if dtype else []))
                    check(out, folder)
                    same_kind(out, origin)
                    check_loss(out)


def with_mask(origin, home):
    """A copy of a model that predicts masked tokens, with a tokenizer that names one: the fixtures have none. All tokens
    that the family's class would add have places in the model's table."""
    copy, config = os.path.join(home, os.path.basename(origin)), AutoConfig.from_pretrained(origin)
    shutil.copytree(origin, copy)
    first = ["<s>", "<pad>", "</s>", "<unk>"] if "roberta" in config.model_type else ["[UNK]", "[SEP]", "[PAD]", "[CLS]"]
    unknown, mask = (first[3], "<mask>") if "roberta" in config.model_type else (first[0], "[MASK]")
    words = [f"word{i}" for i in range(config.vocab_size - len(first) - 1)]
    vocabulary = {token: i for i, token in enumerate([*first, *words, mask])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token=unknown))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens([*first, mask])
    tokenizer.save(os.path.join(copy, "tokenizer.json"))
    return copy


def is_comparable(origin):
    """Not what sees images, too; nor codes in blocks whose edges transformers does not read: check_fp8.py has them."""
    with open(os.path.join(origin, "config.json")) as config:
        return "wrapped" not in origin and "quantization_config" not in json.load(config)


def check_all(binaries):
    eps = functools.partial(programs.eps, binaries)
    check_t5(eps)
    check_classifiers(eps)
    for path in sorted(glob.glob(os.path.join(FIXTURES, "*", "tokens.json"))):
        with tempfile.TemporaryDirectory(prefix="saved-") as home:
            data, run = os.path.join(home, "data.npy"), os.path.join(home, "run")
            np.save(data, np.arange(200, dtype=np.int32) * 7 % 61)
            origin = os.path.dirname(path)
            model = with_mask(origin, home) if kind_of(origin) is AutoModelForMaskedLM else origin
            eps("train", "--model", model, "--data", data, "--out", run, "--steps", "1", "--batch", "2",
                "--seq", "9", "--lr", "0.01", "--device", "cpu", "--device-mem", "64MiB")
            trained = os.path.join(run, "step-1")
            check(trained)
            for source in (origin, trained):
                for dtype in ("fp32", "bf16", "fp16", None):
                    out = os.path.join(home, f"{os.path.basename(source)}-{dtype or 'own'}")
                    eps("export", "--model", source, "--text-only", "--out", out, *(["--dtype", dtype] if dtype else []))
                    check(out, source if source == trained or is_comparable(origin) else None)


def main(*arguments):
    transformers_logging.get_logger("transformers").addHandler(Listener(logging.WARNING))
    if arguments[0] == "--bin":
        check_all(*arguments[1:])
    else:
        check(*arguments)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(*sys.argv[1:])
