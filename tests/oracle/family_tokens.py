"""Each family's tokenizer: what eps makes of texts, against transformers and tokenizers.

    family_tokens.py [--only NAME...] [--texts N] [--size N] [--bin build/bin] [FILE...]
    family_tokens.py fixtures       writes a few small ones to tests/fixtures/tokenizers, as tokens.py does

A tokenizer has the normalizer, pre-tokenizer, decoder, post-processor and added tokens that the family's published
tokenizer.json has, where transformers has a class or a converter for it by that class; its vocabulary is learned from
FILEs' text, or from what tokens_real.py gathers. It is saved as transformers saves it, beside a config.json with the
family's model_type, and where a family's published files name another class, with that one's name. Not so where the
class drops a part of the file, which eps keeps: GPT2Tokenizer the digits that StarCoder 2 has apart, or a normalizer.

Of N texts (2,000: documents of one character to some thousands, in all scripts that the text has, and tokens.py's
hostile ones, with every added token among them), compared are
    raw      the ids of tokenizers for tokenizer.json, and these decoded again (build/bin/bench_tokens)
    auto     the ids of transformers' AutoTokenizer, what goes before and after a text included (build/bin/test_side)
Each text is equal, or refused by a sentence: such are counted. Refused is the pattern of Tiny Aya, which has \\b. Exit
status 1 if any text differs.

Made with transformers 5.24.0, tokenizers 0.23.3, sentencepiece 0.2.3.
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
import transformers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors

import fixture
import tokens
import tokens_real

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests" / "fixtures" / "tokenizers"

# ---- Patterns of published files ----

SHORT, BLANKS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)", r"\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
CASES = [rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}*{LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{UPPER}+{LOWER}*"]
TEKKEN = "|".join([*CASES, r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+", BLANKS])
GPT4O = "|".join([*(f"{case}{SHORT}?" for case in CASES), r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+", BLANKS])
SEED = "|".join([SHORT, r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+", BLANKS])
EXAONE = "|".join([SHORT, r"[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}",
                   r" ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]", BLANKS])
POSSESSIVE = "|".join([r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}",
                       r" ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]", BLANKS])
TINY_AYA = r"\d{1,3}(?=(?:\d{3})*\b)"
HAN = "[一-龥぀-ゟ゠-ヿ]+"
BLOOM = r" ?[^(\s|[.,!?…。，、।۔،])]+"


def splits(*patterns):
    """Each pattern's matches apart, then bytes."""
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns] +
                                   [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def gpt2_words():
    return pre_tokenizers.ByteLevel(add_prefix_space=False)


def digits_apart():
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_words()])


def runs_of_blanks(longest):
    """As GPT-NeoX, Phi and OLMo have them: text like any other, but whole."""
    return [AddedToken(" " * n, normalized=True) for n in range(longest, 1, -1)]


def control(*texts, **flags):
    return [AddedToken(text, special=True, normalized=False, **flags) for text in texts]


# ---- Tokenizers as their files have them ----

def of_bytes(pre, added, before=(), after=(), nfc=False, first=(), **options):
    """BPE of bytes. before and after: tokens around each text; first: tokens that the vocabulary begins with."""
    def make(corpus, size):
        t = tokens.byte_level(corpus, size, pre(), first, **options)
        if nfc:
            t.normalizer = normalizers.NFC()
        t.add_tokens(added)
        t.post_processor = processors.ByteLevel(trim_offsets=False)
        if before or after:
            t.post_processor = processors.Sequence([t.post_processor, template(t, before, after)])
        return t
    return make


def template(t, before, after):
    """In JSON, as TemplateProcessing takes no text with a colon, which <seed:bos> has."""
    piece = lambda text: {"SpecialToken": {"id": text, "type_id": 0}}
    one, two = ([{"Sequence": {"id": text, "type_id": i}}] for i, text in enumerate("AB"))
    around = lambda text: [*map(piece, before), *text, *map(piece, after)]
    known = {text: {"id": text, "ids": [t.token_to_id(text)], "tokens": [text]} for text in (*before, *after)}
    made = processors.TemplateProcessing(single="$A", pair="$A $B")
    made.__setstate__(json.dumps({"type": "TemplateProcessing", "single": around(one),
                                  "pair": around(one) + around(two), "special_tokens": known}).encode())
    return made


def as_saved(make, class_name="PreTrainedTokenizerFast", **names):
    """What save_pretrained writes of a tokenizer that is its file alone; published files often name another class."""
    def made(corpus, size, folder):
        transformers.PreTrainedTokenizerFast(tokenizer_object=make(corpus, size), **names).save_pretrained(folder)
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"tokenizer_class": class_name}))
    return made


def of_class(class_name, added=(), named=("<unk>", "<s>", "</s>"), marked=False, **options):
    """A class of transformers, with a vocabulary that is learned by its own pre-tokenizer. marked: of characters, where
    a word begins with a mark."""
    made_by = getattr(transformers, class_name)

    def made(corpus, size, folder):
        pre = made_by(**options).backend_tokenizer.pre_tokenizer
        learned = tokens.characters(corpus, size, named, 120) if marked else tokens.byte_level(corpus, size, pre, named)
        model = json.loads(learned.to_str())["model"]
        t = made_by(vocab=model["vocab"], merges=[tuple(merge) for merge in model["merges"]], **options)
        t.add_tokens(list(added))
        t.save_pretrained(folder)
    return made


def llama_file(added, prefix, class_name, **names):
    """Llama 2's pipeline as its file has it, with a mark before a text or none, and a family's own added tokens."""
    def make(corpus, size):
        t = tokens.characters(corpus, size, ["<unk>", "<s>", "</s>"], 120, unk_token="<unk>", fuse_unk=True)
        replace = normalizers.Replace(" ", "▁")
        t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), replace] if prefix else [replace])
        t.decoder = decoders.Sequence(tokens.LLAMA_DECODER + ([decoders.Strip(" ", 1, 0)] if prefix else []))
        t.add_tokens(control("<unk>", "<s>") + added)
        t.post_processor = tokens.begins_with(t, "<s>")
        return t
    return as_saved(make, class_name, bos_token="<s>", unk_token="<unk>", **names)


def word_pieces(class_name="BertTokenizer", **options):
    def made(corpus, size, folder):
        vocabulary = tokens.word_piece(corpus, size, options.get("do_lower_case", True)).get_vocab()
        getattr(transformers, class_name)(vocab=vocabulary, **options).save_pretrained(folder)
    return made


def unigram(class_name, before):
    """A class over Unigram. before: its first pieces, in fairseq's order; rules: a table of characters, by default
    SentencePiece's own."""
    def made(corpus, size, folder, rules="nmt_nfkc"):
        model = tokens.pieces(corpus, size, rules)
        vocabulary = before + [(p.piece, p.score) for p in model.pieces[3:]] + [("<mask>", 0.0)]
        getattr(transformers, class_name)(
            vocab=vocabulary,
            _spm_precompiled_charsmap=model.normalizer_spec.precompiled_charsmap).save_pretrained(folder)
    return made


END, IM, CHAT = "<|endoftext|>", ("<|im_start|>", "<|im_end|>"), ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
ANONYMOUS = [AddedToken(f"|||{what}|||", normalized=True) for what in ("IP_ADDRESS", "EMAIL_ADDRESS", "PHONE_NUMBER")]
LLAMA_TOKENS = control("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|mask|>")
LLAMA3 = lambda: splits(tokens.LLAMA3)
DEEPSEEK = lambda: splits(r"\p{N}{1,3}", HAN, tokens.DEEPSEEK)
NAMES = dict(bos_token=END, eos_token=END, unk_token=END)
XLM = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
CAMEMBERT = [("<s>NOTUSED", 0.0), ("<pad>", 0.0), ("</s>NOTUSED", 0.0), ("<unk>", 0.0), ("<unk>NOTUSED", -100.0)]
PHI4 = of_bytes(LLAMA3, control(END, *IM, "<|im_sep|>", lstrip=True, rstrip=True) + control("<|dummy_0|>"))
GLM = of_bytes(LLAMA3, control(END, "[MASK]", "[gMASK]", "[sMASK]", "<sop>", "<eop>", "<|system|>", "<|user|>") +
               [AddedToken("<tool_call>", normalized=False)], ["[gMASK]", "<sop>"])
NEOX_CODE = of_bytes(gpt2_words, control(END, "<|padding|>") + runs_of_blanks(24), nfc=True)
MODERNBERT = of_bytes(gpt2_words, control("<|padding|>", END, "[UNK]", "[CLS]", "[SEP]", "[PAD]") +
                      control("[MASK]", lstrip=True) + runs_of_blanks(24) + ANONYMOUS, ["[CLS]"], ["[SEP]"], nfc=True)
OLMO2 = of_bytes(LLAMA3, ANONYMOUS + control(END, *IM))
STARCODER = of_bytes(digits_apart, control(END, "<fim_prefix>", "<file_sep>", "<repo_name>"))
PHI3_TOKENS = ([AddedToken("</s>", rstrip=True, normalized=False)] + control(END) +
               control("<|placeholder1|>", *CHAT, rstrip=True))

# name: (model_type, maker)
TOKENIZERS = {
    "arcee": ("arcee", as_saved(of_bytes(LLAMA3, LLAMA_TOKENS + control(*IM), ["<|begin_of_text|>"],
                                         ignore_merges=True))),
    "camembert": (None, unigram("CamembertTokenizer", CAMEMBERT)),
    "bert_chinese": ("bert", word_pieces(do_lower_case=False, tokenize_chinese_chars=False)),
    "bloom": (None, as_saved(of_bytes(lambda: splits(BLOOM), control("<unk>", "<s>", "</s>", "<pad>")))),
    "cohere": ("cohere", of_class("CohereTokenizer", control("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
                                  ["<PAD>", "<UNK>", "<CLS>", "<SEP>", "<MASK_TOKEN>", "<BOS_TOKEN>"],
                                  add_bos_token=True)),
    "cohere2": ("cohere2", as_saved(of_bytes(digits_apart, control("<BOS_TOKEN>", "<|END_OF_TURN_TOKEN|>"),
                                             ["<BOS_TOKEN>"], nfc=True), "CohereTokenizer", bos_token="<BOS_TOKEN>")),
    "distilbert": ("distilbert", word_pieces()),
    "distilbert_named": ("distilbert", word_pieces("DistilBertTokenizer")),
    "electra": ("electra", word_pieces(strip_accents=False)),
    "ernie4_5": ("ernie4_5", llama_file(control("</s>", "<|begin_of_sentence|>", "<mask:1>"), False, "LlamaTokenizer",
                                        eos_token="</s>")),
    "eurobert": ("eurobert", as_saved(of_bytes(LLAMA3, LLAMA_TOKENS, ["<|begin_of_text|>"], ["<|end_of_text|>"],
                                               ignore_merges=True), mask_token="<|mask|>")),
    "exaone4": ("exaone4", as_saved(of_bytes(gpt2_words, control("[BOS]", "[|endofturn|]", "[PAD]") +
                                             [AddedToken("<think>", normalized=False)], nfc=True), bos_token="[BOS]",
                                    eos_token="[|endofturn|]", pad_token="[PAD]")),
    "exaone_words": (None, as_saved(of_bytes(lambda: splits(EXAONE), control("[BOS]"), nfc=True))),
    "gemma2": ("gemma2", of_class("GemmaTokenizer", control("<start_of_turn>", "<end_of_turn>"),
                                  ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"], marked=True, add_bos_token=True)),
    "glm": ("glm", as_saved(GLM, eos_token=END, pad_token=END)),
    "glm4": ("glm4", as_saved(GLM, "PreTrainedTokenizer", eos_token=END, pad_token=END)),
    "gpt_neox": ("gpt_neox", of_class("GPTNeoXTokenizer", runs_of_blanks(24), [END, "<|padding|>"])),
    "granite": ("granite", as_saved(STARCODER, "GPT2Tokenizer", **NAMES)),
    "granite4": ("granite", as_saved(of_bytes(LLAMA3, control("<|end_of_text|>", "<|start_of_role|>")), "GPT2Tokenizer",
                                     bos_token="<|end_of_text|>", eos_token="<|end_of_text|>")),
    "hunyuan": ("hunyuan_v1_dense", as_saved(of_bytes(
        DEEPSEEK, control("<｜hy_begin▁of▁sentence｜>", "<｜hy_User｜>"), ["<｜hy_begin▁of▁sentence｜>"]))),
    "lfm2": ("lfm2", as_saved(of_bytes(LLAMA3, control("<|pad|>", "<|startoftext|>", END, *IM), ["<|startoftext|>"]),
                              bos_token="<|startoftext|>", eos_token="<|im_end|>", pad_token="<|pad|>")),
    "ministral3": ("ministral3", as_saved(of_bytes(
        lambda: splits(TEKKEN), control("<unk>", "<s>", "</s>", "[INST]", "[/INST]"), ["<s>"], ignore_merges=True),
        "LlamaTokenizer", bos_token="<s>")),
    "modernbert": ("modernbert", as_saved(MODERNBERT, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
                                          pad_token="[PAD]", mask_token="[MASK]")),
    "nanochat": (None, as_saved(of_bytes(lambda: splits(POSSESSIVE), control("<|bos|>", "<|user_start|>"),
                                         ["<|bos|>"]))),
    "olmo": ("olmo", of_class("GPTNeoXTokenizer", runs_of_blanks(24) + ANONYMOUS, [END, "<|padding|>"])),
    "olmo_code": ("olmo", as_saved(NEOX_CODE, "GPTNeoXTokenizer", **NAMES, pad_token="<|padding|>")),
    "olmo2": ("olmo2", as_saved(OLMO2, "GPT2Tokenizer", **NAMES)),
    "olmo3": ("olmo3", as_saved(OLMO2, "GPT2TokenizerFast", **NAMES)),
    "opt": ("opt", of_class("GPT2Tokenizer", (), ["<s>", "<pad>", "</s>", "<unk>"], bos_token="</s>", eos_token="</s>",
                            unk_token="</s>", pad_token="<pad>", add_bos_token=True)),
    "phi": ("phi", as_saved(of_bytes(gpt2_words, control(END) + runs_of_blanks(31) +
                                     [AddedToken("\t" * n) for n in range(9, 1, -1)]), "CodeGenTokenizer", **NAMES)),
    "phi3": ("phi3", llama_file(PHI3_TOKENS, True, "LlamaTokenizer", eos_token=END, pad_token=END)),
    "phi4": ("phi3", as_saved(PHI4, "GPT2Tokenizer", **NAMES)),
    "phi4_mini": ("phi3", as_saved(of_bytes(lambda: splits(GPT4O), control(END) + control(*CHAT, rstrip=True)),
                                   "GPT2TokenizerFast", **NAMES)),
    "qwen3": ("qwen3", of_class("Qwen2Tokenizer", control(*IM) + [AddedToken("<think>", normalized=False)], [END])),
    "qwen3_5": ("qwen3_5_text", of_class("Qwen3_5Tokenizer", control(*IM), [END])),
    "seed_oss": ("seed_oss", as_saved(of_bytes(lambda: splits(SEED), control("<seed:bos>", "<seed:pad>", "<seed:eos>"),
                                               ["<seed:bos>"], ignore_merges=True), bos_token="<seed:bos>")),
    "smollm3": ("smollm3", as_saved(of_bytes(LLAMA3, LLAMA_TOKENS + control(*IM), ignore_merges=True),
                                    pad_token="<|im_end|>")),
    "stablelm": ("stablelm", as_saved(of_bytes(lambda: splits(tokens.QWEN), control(END, *IM, "<|reg0|>")),
                                      "GPT2Tokenizer", **NAMES)),
    "starcoder2": ("starcoder2", as_saved(STARCODER, **NAMES)),
    "tiny_aya": ("cohere2", as_saved(of_bytes(lambda: splits(TINY_AYA, GPT4O), control("<BOS_TOKEN>"),
                                              ["<BOS_TOKEN>"]))),
    "xlm_roberta": ("xlm-roberta", unigram("XLMRobertaTokenizer", XLM)),
}


# ---- Comparison ----

def made(name, corpus, size, folder):
    model_type, make = TOKENIZERS[name]
    make(corpus, size, folder)
    if model_type:
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))


def texts_of(corpus, n, tokenizer):
    """Documents of one character to some thousands, one of them long, then hostile ones."""
    draw = random.Random(5)
    text, hard = "\n".join(corpus).replace("\0", " "), tokens.AWKWARD + ["the end " * 5000]
    n_documents = (n - len(hard)) // 2
    out = []
    for _ in range(n_documents):
        at, size = draw.randrange(len(text)), int(10 ** draw.uniform(0, 3.5))
        out.append(text[at:at + size])
    hard += tokens.hostile(n - n_documents - len(hard), 7, tokens.added_of(tokenizer))
    return out + hard


def side_of(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.name != "config.json"}


def ours_with_ends(folder, model_type, texts, programs):
    """Of each text its ids or the sentence that refuses it; one sentence if the tokenizer is refused."""
    case = {"side": side_of(folder), "model_type": model_type, "vocabulary": 1 << 20, "texts": texts}
    with tempfile.NamedTemporaryFile("w", suffix=".json") as f:
        json.dump([case], f)
        f.flush()
        done = subprocess.run([programs / "test_side", "encode", f.name], capture_output=True, text=True, check=True)
    (answer,) = json.loads(done.stdout)
    return answer if isinstance(answer, str) else answer["ids"]


def compare_auto(name, folder, texts, got):
    """The number of texts that differ, and what was refused."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    want = [theirs(text)["input_ids"] for text in texts]
    refused = collections.Counter(ids for ids in got if isinstance(ids, str))
    wrong = [i for i in range(len(texts)) if not isinstance(got[i], str) and got[i] != want[i]]
    for i in wrong[:2]:
        at = next((k for k, (a, b) in enumerate(zip(want[i], got[i])) if a != b), min(len(want[i]), len(got[i])))
        print(f"{name}, auto ({type(theirs).__name__}): {texts[i][:80]!r}: at {at}: "
              f"{theirs.convert_ids_to_tokens(want[i][at:at + 9])} and "
              f"{theirs.convert_ids_to_tokens(got[i][at:at + 9])}")
    return len(wrong), refused


def compare(name, corpus, options):
    programs = pathlib.Path(options.bin)
    tokens.BENCH = programs / "bench_tokens"
    with tempfile.TemporaryDirectory(prefix="family-tokens-") as top:
        folder = pathlib.Path(top)
        made(name, [text[:20000] for text in corpus], options.size, folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        texts = texts_of(corpus, options.texts, tokenizer)
        got = ours_with_ends(folder, TOKENIZERS[name][0], texts, programs)
        if isinstance(got, str):
            print(f"{name}: refused: {got}", flush=True)
            return 0
        want = tokens.expected(tokenizer, texts)
        raw = tokens.differences(f"{name}, raw", texts, want, tokens.ours(folder, texts))
        auto, refused, said = 0, {}, ""
        if TOKENIZERS[name][0]:
            auto, refused = compare_auto(name, folder, texts, got)
            said = f", auto {auto} differ, {sum(refused.values())} refused"
        print(f"{name}: {len(texts)} texts, {sum(len(t.encode()) for t in texts)} bytes, {sum(map(len, want[0]))} ids: "
              f"raw {raw} differ{said}", flush=True)
        for why, n in refused.items():
            print(f"    {n} refused: {why[:200]}", flush=True)
        return raw + auto


KEPT = {"gpt_neox": 400, "cohere": 400, "bloom": 400, "xlm_roberta": 500}  # their sizes


def write_fixtures():
    """tokenizer.json alone; one that is there stays."""
    for name, size in KEPT.items():
        path, more = OUT / f"{name}.json", {"rules": tokens.RULES} if name == "xlm_roberta" else {}  # for 300 KB less
        with tempfile.TemporaryDirectory() as folder:
            if not path.exists():
                TOKENIZERS[name][1](tokens.CORPUS * 3, size, pathlib.Path(folder), **more)
                Tokenizer.from_file(f"{folder}/tokenizer.json").save(str(path), pretty=False)
        tokens.write_expected(name, Tokenizer.from_file(str(path)))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*")
    parser.add_argument("--only", nargs="+", default=list(TOKENIZERS), choices=list(TOKENIZERS))
    parser.add_argument("--texts", type=int, default=2000)
    parser.add_argument("--size", type=int, default=3000)
    parser.add_argument("--bin", default=str(ROOT / "build" / "bin"))
    options = parser.parse_args()
    if options.files == ["fixtures"]:
        sys.exit(write_fixtures())
    corpus = ([pathlib.Path(path).read_text(errors="replace") for path in options.files] if options.files
              else tokens_real.gather(3_000_000)) + tokens.CORPUS
    wrong = {name: compare(name, corpus, options) for name in options.only}
    print(f"{sum(n == 0 for n in wrong.values())} of {len(wrong)} tokenizers without a difference")
    sys.exit(any(wrong.values()))


if __name__ == "__main__":
    main()
