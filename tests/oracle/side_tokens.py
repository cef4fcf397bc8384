"""Tokens and switches that only a tokenizer's side files have, against transformers.

    side_tokens.py [--draws N] [--seed S] [--show N] [--types]

Each draw takes a tokenizer of tests/fixtures/tokenizers, writes tokens and switches into any of eight places (the
added_tokens_decoder, the extra tokens, the seven names, other names and the switches of tokenizer_config.json;
added_tokens.json; names and extra tokens of special_tokens_map.json), names one of the classes that load it, and compares
the ids that transformers' AutoTokenizer and build/bin/test_side make of texts with these tokens in them. Ids must be
equal, or eps must refuse the tokenizer or the text by a sentence. --types: also with other model_types in config.json, and
often with no class in tokenizer_config.json. Exit status 1 if any differ.

    side_tokens.py fixtures       writes a few drawn cases, with the ids and names of tokens of transformers, to
                                  tests/fixtures/tokenizers/side.expected.json
    side_tokens.py tidied         writes texts that transformers decodes with clean_up_tokenization_spaces to tidy.expected.json
"""
import argparse
import collections
import json
import logging
import os
import pathlib
import random
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
logging.disable(logging.WARNING)
from transformers import AutoTokenizer  # noqa: E402

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
FIXTURES = ROOT / "tests" / "fixtures"
PROGRAM = ROOT / "build" / "bin" / "test_side"

# fixture: config.json's model_type, and classes that tokenizer_config.json may name; None: it names none
BASES = {
    "llama3": ("llama", ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer", "TokenizersBackend"]),
    "llama2": ("mistral", ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer"]),
    "mistral": ("llama", ["PreTrainedTokenizerFast", "LlamaTokenizerFast", "LlamaTokenizer"]),
    "qwen": ("qwen2", ["Qwen2Tokenizer", "Qwen2TokenizerFast"]),
    "gemma": ("gemma3_text", ["GemmaTokenizer", "GemmaTokenizerFast"]),
    "bert": ("bert", ["BertTokenizer", "BertTokenizerFast"]),
    "bert_cased": ("bert", ["BertTokenizer", "BertTokenizerFast"]),
    "roberta": ("roberta", ["RobertaTokenizer", "RobertaTokenizerFast"]),
    "t5": ("t5", ["T5Tokenizer", "T5TokenizerFast"]),
    "gpt2_files": ("gpt2", ["GPT2Tokenizer", "GPT2TokenizerFast"]),
    "gpt2": ("gpt2", ["GPT2Tokenizer", "GPT2TokenizerFast", "PreTrainedTokenizerFast"]),
    "gpt_neox": ("gpt_neox", ["GPTNeoXTokenizer", "GPTNeoXTokenizerFast"]),
    "cohere": ("cohere", ["CohereTokenizer", "CohereTokenizerFast"]),
    "xlm_roberta": ("xlm-roberta", ["XLMRobertaTokenizer", "XLMRobertaTokenizerFast"]),
}
# Other model_types of models that come with such tokenizers. Not drawn: llama2 as a LlamaTokenizer of llama, to which
# transformers 5 gives a Metaspace in place of the normalizer that its published tokenizer.json has: a text that begins with
# a blank, or goes on behind a special token, then has one mark less.
TYPES = {
    "llama3": ["llama", "mistral", "smollm3", "arcee", "seed_oss", "hunyuan_v1_dense", "exaone4", "eurobert",
               "ministral3", "glm", "glm4", "olmo2", "olmo3", "granite", "phi3"],
    "llama2": ["mistral", "phi3", "ernie4_5"], "mistral": ["llama", "mistral", "ernie4_5"],
    "qwen": ["qwen2", "qwen3", "llama", "mistral", "stablelm"], "gemma": ["gemma", "gemma2", "gemma3_text"],
    "bert": ["bert", "distilbert", "electra"], "bert_cased": ["bert", "distilbert", "electra"], "roberta": ["roberta"],
    "t5": ["t5"], "gpt2_files": ["gpt2", "opt"],
    "gpt2": ["gpt2", "llama", "mistral", "phi", "starcoder2", "opt", "olmo2", "granite", "stablelm", "modernbert",
             "exaone4"],
    "gpt_neox": ["gpt_neox", "olmo"], "cohere": ["cohere", "cohere2"], "xlm_roberta": ["xlm-roberta"]}
MORE = {"bert": ["DistilBertTokenizer", "ElectraTokenizer"], "gpt2": ["CodeGenTokenizer"]}  # with --types
BYTE_LEVEL = ["llama3", "qwen", "gpt2"]
NAMES = ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"]
NEW = ["<pad>", "[PAD]", "<x1>", "<|tool|>", "[NEW]", "quick", "zq", "<image>", "<|im_start|>", "</s>", "<s>", "é!"]


def base_files(name):
    """{file: text}, and the parsed vocabulary and added tokens."""
    if name.startswith("gpt2"):
        folder = FIXTURES / "bpe"
        names = ["vocab.json", "merges.txt"] if name == "gpt2_files" else ["tokenizer.json"]
        files = {n: (folder / n).read_text() for n in names}
    else:
        files = {"tokenizer.json": (FIXTURES / "tokenizers" / f"{name}.json").read_text()}
    if "tokenizer.json" in files:
        root = json.loads(files["tokenizer.json"])
        vocab = root["model"]["vocab"]
        return files, [v[0] for v in vocab] if isinstance(vocab, list) else list(vocab), [t["content"] for t in root["added_tokens"]]
    return files, list(json.loads(files["vocab.json"])), ["<|endoftext|>"]


def added(draw, text, explicit=True):
    token = {"content": text, "lstrip": draw.random() < 0.2, "rstrip": draw.random() < 0.2,
             "single_word": draw.random() < 0.1, "normalized": draw.random() < 0.3}
    if explicit:
        token["special"] = draw.random() < 0.5
    return token


def draw_case(draw, types=False):
    base = draw.choice(list(BASES))
    model_type, classes = BASES[base]
    files, vocab, known = base_files(base)
    size = len(vocab)
    pool = draw.sample(NEW, 4) + known[:6] + [w for w in draw.sample(vocab, 6) if w.isalpha() and w.isascii()]
    pick = lambda: draw.choice(pool)
    config, mapping = {"tokenizer_class": draw.choice(classes)}, {}
    if base.startswith("bert"):
        config["do_lower_case"] = base == "bert"
    places = draw.sample(range(8), draw.choice([0, 1, 1, 1, 2, 2, 3, 4]))
    if 0 in places:
        own = known if draw.random() < 0.8 else []
        full = json.loads(files["tokenizer.json"])["added_tokens"] if "tokenizer.json" in files else []
        config["added_tokens_decoder"] = {str(t["id"]): {k: v for k, v in t.items() if k != "id"} for t in full if t["content"] in own}
        for i in range(draw.randint(1, 3)):
            config["added_tokens_decoder"][str(size + len(known) + i + draw.choice([0, 0, 5]))] = added(draw, pick())
    if 1 in places:
        key = draw.choice(["additional_special_tokens", "extra_special_tokens"])
        texts = [pick() for _ in range(draw.randint(1, 2))]
        config[key] = texts if draw.random() < 0.6 or key[0] == "a" else {f"n{i}_token": t for i, t in enumerate(texts)}
    if 2 in places:
        for key in draw.sample(NAMES, draw.randint(1, 3)):
            text = pick()
            config[key] = draw.choice([text, {"__type": "AddedToken", **added(draw, text)}, text, None])
    if 3 in places:
        config["image_token"] = pick()
    if 4 in places:
        key = draw.choice(["add_bos_token", "add_eos_token", "split_special_tokens", "add_prefix_space", "legacy",
                           "clean_up_tokenization_spaces"])
        config[key] = draw.random() < 0.7
    if 5 in places:
        files["added_tokens.json"] = json.dumps({pick(): size + len(known) + i + draw.choice([0, 0, 3]) for i in range(draw.randint(1, 3))})
    if 6 in places:
        for key in draw.sample(NAMES, draw.randint(1, 3)):
            text = pick()
            mapping[key] = draw.choice([text, added(draw, text, explicit=False)])
    if 7 in places:
        mapping["additional_special_tokens"] = [pick() for _ in range(draw.randint(1, 2))]
    if mapping:
        files["special_tokens_map.json"] = json.dumps(mapping)
    if draw.random() < 0.95 or base.startswith("bert"):
        files["tokenizer_config.json"] = json.dumps(config)
    texts = ["", "The quick brown fox"]
    for _ in range(4):
        words = [draw.choice([pick(), "the", " fox", " over ", "it's", "\n", "a", " "]) for _ in range(draw.randint(1, 8))]
        texts.append("".join(words))
    if types:
        model_type = draw.choice(TYPES[base])
        config["tokenizer_class"] = draw.choice(
            classes + MORE.get(base, []) + ["PreTrainedTokenizerFast", "Unknown"] + ["LlamaTokenizerFast"] * (base in BYTE_LEVEL))
        if draw.random() < 0.5:
            del config["tokenizer_class"]
        if "tokenizer_config.json" in files:
            files["tokenizer_config.json"] = json.dumps(config)
    return {"base": base, "places": places, "model_type": model_type, "side": files, "vocabulary": 1 << 20, "texts": texts}


def transformers_ids(case, folder):
    """[[ids], ...], end id; or the exception's text."""
    for name, text in case["side"].items():
        (folder / name).write_text(text)
    (folder / "config.json").write_text(json.dumps({"model_type": case["model_type"]}))
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(folder))
        return {"ids": [tokenizer(text)["input_ids"] for text in case["texts"]], "end": tokenizer.eos_token_id,
                "names": tokenizer.special_tokens_map, "class": type(tokenizer).__name__}
    except Exception as error:  # whatever it raises, it does not load
        return f"{type(error).__name__}: {error}"


# What draws seldom have: no class but by model_type, which may also replace the one that is named; added_tokens.json is
# read before special_tokens_map.json's additional tokens count; Qwen2Tokenizer gives its named tokens no whitespace,
# CohereTokenizer those that no file names. The fourth: another model_type than the base's.
RARE = [("llama2", {"added_tokens.json": {"[NEW]": 618}, "special_tokens_map.json": {"additional_special_tokens": ["[NEW]"]},
                    "tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast"}}, ["[NEW]theit's", "a[NEW] fox"]),
        ("qwen", {"tokenizer_config.json": {"tokenizer_class": "Qwen2Tokenizer", "pad_token": {
            "__type": "AddedToken", "content": "<pad>", "lstrip": True, "rstrip": True, "normalized": False, "special": True}}},
         ["a <pad> fox", "<pad>  the"]),
        ("qwen", {"tokenizer_config.json": {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": {
            "__type": "AddedToken", "content": "<pad>", "lstrip": True, "normalized": False, "special": True}}}, ["a <pad> fox"]),
        ("t5", {"special_tokens_map.json": {"additional_special_tokens": ["quick"]}}, ["the quick fox <pad>"]),
        ("gemma", {"tokenizer_config.json": {"added_tokens_decoder": {"0": {"content": "<pad>", "special": True}}}},
         ["the <mask> fox<eos>", "<unk>"]),
        ("roberta", {"tokenizer_config.json": {"mask_token": "<x1>"}}, ["the <x1> fox <mask>"]),
        ("llama2", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "added_tokens_decoder": {
            "600": {"content": "<x1>", "special": True}}}}, ["a <x1> fox</s>", "<s> the"]),
        ("bert", {"tokenizer_config.json": {"do_lower_case": True, "sep_token": "[CLS]"}}, ["", "the fox"], "electra"),
        ("bert", {"tokenizer_config.json": {"do_lower_case": False}}, ["The FOX"], "distilbert"),
        ("gemma", {"tokenizer_config.json": {}}, ["the <mask> fox<eos>"], "gemma2"),
        ("gpt2", {"tokenizer_config.json": {}}, ["the fox"], "opt"),
        ("gpt2", {"tokenizer_config.json": {"tokenizer_class": "GPT2Tokenizer", "added_tokens_decoder": {
            "600": {"content": "<x1>", "special": True}}}}, ["a<|endoftext|> fox <x1>"], "granite"),
        ("mistral", {"tokenizer_config.json": {"tokenizer_class": "LlamaTokenizer", "add_prefix_space": False}}, ["the fox"],
         "ernie4_5"),
        ("gpt_neox", {"tokenizer_config.json": {}}, ["the    fox<|padding|>"]),
        ("cohere", {"tokenizer_config.json": {"added_tokens_decoder": {
            "3": {"content": "<SEP>", "rstrip": True, "special": True}}}}, ["<SEP> over", "<CLS> over"]),
        ("xlm_roberta", {"tokenizer_config.json": {"eos_token": "<pad>"}}, ["the fox"]),
        ("xlm_roberta", {"tokenizer_config.json": {"bos_token": "<pad>"}}, ["the fox"]),
        ("xlm_roberta", {"tokenizer_config.json": {"sep_token": "<pad>"}}, ["the fox <mask>"])]


def write_fixtures():
    draw, out = random.Random(7), []
    for base, side, texts, *other in RARE:
        files = {**base_files(base)[0], **{name: json.dumps(value) for name, value in side.items()}}
        model_type = other[0] if other else BASES[base][0]
        case = {"base": base, "model_type": model_type, "side": files, "texts": texts}
        with tempfile.TemporaryDirectory() as folder:
            want = transformers_ids(case, pathlib.Path(folder))
        out.append({"base": base, "model_type": model_type, "side": {k: v for k, v in files.items() if k in side}, "texts": texts,
                    "ids": want["ids"], "names": want["names"]})
    while len(out) < len(RARE) + 58:
        case = draw_case(draw)
        with tempfile.TemporaryDirectory() as folder:
            want = transformers_ids(case, pathlib.Path(folder))
        if isinstance(want, str) or (not case["places"] and "tokenizer_config.json" in case["side"]):
            continue
        side = {k: v for k, v in case["side"].items() if k not in ("tokenizer.json", "vocab.json", "merges.txt")}
        out.append({"base": case["base"], "model_type": case["model_type"], "side": side, "texts": case["texts"],
                    "ids": want["ids"], "names": want["names"]})
    (FIXTURES / "tokenizers" / "side.expected.json").write_text(
        "[" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in out) + "]\n")


def write_tidied():
    draw, out, even = random.Random(20261129), [], "clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output"
    words = [" .", " ?", " !", " ,", " ' ", "'", " n't", " 'm", " do not", " 's", " 've", " 're", " '", "  ", " ", "the", " fox", " it", ".", "n't", "..", " ' ' "]
    for base in ("t5", "albert", "bert", "bert_cased", "llama2", "gemma", "qwen"):
        for settings in ({"clean_up_tokenization_spaces": True}, {"clean_up_tokenization_spaces": False}, {},
                         {"clean_up_tokenization_spaces": True, even: True}):
            model_type, classes = BASES.get(base, ("albert", ["PreTrainedTokenizerFast"]))
            config = {"tokenizer_class": classes[0], **settings, **({"do_lower_case": base == "bert"} if base.startswith("bert") else {})}
            files = base_files(base)[0]
            case = {"base": base, "model_type": model_type, "side": {"tokenizer_config.json": json.dumps(config)}, "ids": [], "texts": [], "tidied": []}
            with tempfile.TemporaryDirectory() as folder:
                for name, text in {**files, **case["side"], "config.json": json.dumps({"model_type": model_type})}.items():
                    (pathlib.Path(folder) / name).write_text(text)
                tokenizer = AutoTokenizer.from_pretrained(folder)
            for _ in range(10):
                ids = tokenizer("".join(draw.choice(words) for _ in range(draw.randint(1, 12))), add_special_tokens=False)["input_ids"]
                if ids:
                    case["ids"].append(ids)
                    case["texts"].append(tokenizer.decode(ids))
                    case["tidied"].append(case["texts"][-1] != tokenizer.decode(ids, clean_up_tokenization_spaces=False))
            out.append(case)
    (FIXTURES / "tokenizers" / "tidy.expected.json").write_text(
        "[" + ",\n".join(json.dumps(case, ensure_ascii=False) for case in out) + "]\n")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("what", nargs="?", choices=["compare", "fixtures", "tidied"], default="compare")
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--types", action="store_true")
    parser.add_argument("--show", type=int, default=5)
    args = parser.parse_args()
    if args.what == "fixtures":
        return write_fixtures()
    if args.what == "tidied":
        return write_tidied()
    draw, cases, wants = random.Random(args.seed), [], []
    for _ in range(args.draws):
        case = draw_case(draw, args.types)
        with tempfile.TemporaryDirectory() as folder:
            wants.append(transformers_ids(case, pathlib.Path(folder)))
        cases.append(case)
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cases, file)
        file.flush()
        answers = json.loads(subprocess.run([PROGRAM, "encode", file.name], stdout=subprocess.PIPE, check=True).stdout)
    counts, by_base, refusals, shown = collections.Counter(), collections.Counter(), collections.Counter(), 0
    for case, want, got in zip(cases, wants, answers):
        if isinstance(want, str):
            counts["transformers does not load"] += 1
            continue
        if isinstance(got, str):
            counts["tokenizer refused"] += 1
            refusals[f"{case['base']}: {got[:110]}"] += 1
            continue
        verdict = "equal"
        for text, ids, ours in zip(case["texts"], want["ids"], got["ids"]):
            if isinstance(ours, str):
                verdict = "a text refused" if verdict != "different" else verdict
                refusals[f"{case['base']}: {ours[:60]}"] += 1
            elif ids != ours:
                verdict = "different"
                if shown < args.show:
                    shown += 1
                    small = {k: v for k, v in case["side"].items() if k not in ("tokenizer.json", "vocab.json", "merges.txt")}
                    print(f"--- {case['base']} ({want['class']}) places {case['places']}\n{json.dumps(small)}\n{text!r}\n"
                          f"  theirs {ids}\n  ours   {ours}")
                break
        if verdict == "equal" and want["end"] is not None and want["end"] != got["end"]:
            counts["other end token"] += 1
            if shown < args.show:
                shown += 1
                print(f"--- {case['base']} ({want['class']}) end {want['end']}, ours {got['end']}")
        counts[verdict] += 1
        if verdict == "different":
            by_base[(case["base"], want["class"])] += 1
    print(dict(counts), dict(by_base))
    for text, n in refusals.most_common(12):
        print(f"  {n} x {text}")
    return 1 if counts["different"] else 0


sys.exit(main())
