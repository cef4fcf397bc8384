"""Tokenizers with the pipelines that Llama 2 and 3, Mistral, Qwen, Gemma, BERT, RoBERTa have published, and some with
parts in other combinations, trained small with Hugging Face's tokenizers.

    tokens.py fixtures [--only NAME...]   writes them, and what they make of hostile texts, to tests/fixtures/tokenizers:
                                  NAME.json, texts.json ["text", ...] and NAME.ids.json [[ids], ["text again"]]
    tokens.py compare FILE...     trains larger ones on the files, and compares what build/bin/bench_tokens makes of the
                                  files' text and of many more hostile texts, whole and in pieces, and decoded again
    tokens.py compare --model DIR FILE...      the same for a tokenizer.json that exists
    tokens.py speed FILE...       ratio of bytes per second, ours to the package's, on one thread and on all
    tokens.py characters          every character through every family

Needs tokenizers (made with 0.23.3). Every random choice has a fixed seed.
"""

import argparse
import json
import os
import pathlib
import random
import struct
import subprocess
import sys
import tempfile
import time

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import fixture

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests" / "fixtures" / "tokenizers"
BENCH = ROOT / "build" / "bin" / "bench_tokens"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they'd do; we've seen it, I'm sure they'll return.",
    "In 1984, 2,048 of 65,536 bytes were lost; by 2024 nobody's counting. 3.14159 is not 22/7.",
    "    for (int i = 0; i < n; i++) {\n        total += values[i];\n    }\n\n\treturn total;\n",
    "Größe, Straße, naïve café, Ångström, señor; Привет, мир! Καλημέρα κόσμε. שלום עולם. مرحبا بالعالم.",
    "人工智能是计算机科学的一个分支。日本語の文章です。안녕하세요 세계.",
    "😀 😃 👍🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 e\u0301 n\u0303 — “quotes” … ½ ² Ⅷ ٣",
]

AWKWARD = [
    "", " ", "a", "Hello world", " leading and trailing ", "two  blanks   three    four\n\n\nlines\r\n\twith tabs \t \n",
    "   \n   ", "blank at the end   ", "It's they're I've I'm we'll he'd 's 'S IT'S don't 'tis '''s", "▁ is a mark ▁▁ too▁",
    "0 1 12 123 1234 12345 1234567890 3.14 1,000,000 ٣٤٥ ²³ ½ Ⅷ x2y", "!!! ??? ... --- ()[]{} #!/bin/sh $HOME @user a_b-c.d",
    "naïve café Ångström e\u0301e\u0301 n\u0303 \u0301 lone a\u0323\u0307 a\u0307\u0323", "ﬁ ﬂ ㎏ Ａ１ ｱｲ ﷺ ① ﬀ \u1e9b\u0323 \u212b \u2126",
    "Привет, мир! Καλημέρα κόσμε ς Σ שלום עולם مرحبا", "人工智能。日本語の文章、カタカナ が か\u3099 안녕하세요 \u1112\u1161\u11ab",
    "😀😃 👍🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 ☃️ 𝕏 𐍈 \U0001F468\u200D\U0001F680", "\u00a0no-break\u2003em\u200bzero\u3000wide\u2028line\u2029para\u0085next\u180emongol\ufeffbom",
    "\u001c\u001d\u001e\u001f\u000b\u000c controls \u0001\u007f\u00ad\ufffd\u0300", "a" * 90, "the the thethethethe THE The tHe",
    "\ud7ff\ue000\uffff\U00010000\U0010ffff", "ſ 'ſ K ß ẞ ı İ Ⱥ ǅ", "x" * 101 + " " + "y" * 100 + " zzz", "a , b . c ! d ? e ' f n't g 's do not",
    "<unk>", "a <unk>b", "<0x41><0x0A> <0xZZ> <0x4>", "[UNK] [MASK]s", "##ing ## #", "\n\n\n\n", "a\n\nb", "\t\t", "-", "--a--", "a-", "-a",
]


def hostile(count, seed, added=()):
    """Texts of characters drawn from every corner, with added tokens among them."""
    draw = random.Random(seed)
    ranges = [(32, 126), (32, 126), (9, 13), (160, 591), (768, 879), (1024, 1279), (0x4E00, 0x4FFF), (0x2000, 0x206F),
              (0x1F600, 0x1F64F), (48, 57), (32, 32), (39, 39), (0x3041, 0x3096), (0xAC00, 0xAC80), (0x1100, 0x11FF),
              (0xFB00, 0xFB06), (0xFF01, 0xFF5E), (0x0590, 0x05FF), (0x2581, 0x2581), (0x1F1E6, 0x1F1FF), (0x0E01, 0x0E3A)]
    for _ in range(count):
        out = []
        for _ in range(draw.randint(1, 60)):
            if added and draw.random() < 0.15:
                out.append(draw.choice(added))
            elif draw.random() < 0.1:
                out.append(chr(draw.randint(*draw.choice(ranges))) * draw.randint(2, 30))
            elif draw.random() < 0.4:
                out.append(draw.choice(["the", " the", " a", "it's", "Hello", "größe", "人工", "  ", "\n", "\n\n", " 1984"]))
            else:
                out.append(chr(draw.randint(*draw.choice(ranges))))
        yield "".join(out)


# ---- The pipelines ----

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
DEEPSEEK = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
            r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def special(*texts):
    return [AddedToken(text, special=True, normalized=False) for text in texts]


def byte_level(corpus, size, pre, first=(), **options):
    """BPE over bytes, with `first` as the first tokens."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre
    trained.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=size, special_tokens=list(first), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    made = json.loads(trained.to_str())["model"]
    tokenizer = Tokenizer(models.BPE(vocab=made["vocab"], merges=[tuple(m) for m in made["merges"]], **options))
    tokenizer.pre_tokenizer = pre
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def characters(corpus, size, first, alphabet, fallback=True, **options):
    """BPE over characters, of words that begin with a mark, with tokens for all bytes unless fallback is off."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(), pre_tokenizers.Digits(True)])
    tokens = list(first) + ([f"<0x{b:02X}>" for b in range(256)] if fallback else [])
    trained.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=size + len(tokens), special_tokens=tokens,
                                                            limit_alphabet=max(alphabet, size // 8), show_progress=False))
    made = json.loads(trained.to_str())["model"]
    return Tokenizer(models.BPE(vocab=made["vocab"], merges=[tuple(m) for m in made["merges"]],
                                byte_fallback=fallback, **options))


def word_piece(corpus, size, lowercase):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer.train_from_iterator(corpus, trainers.WordPieceTrainer(vocab_size=size, special_tokens=specials,
                                                                    limit_alphabet=max(100, size // 8), show_progress=False))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", tokenizer.token_to_id("[CLS]")), ("[SEP]", tokenizer.token_to_id("[SEP]"))])
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def begins_with(tokenizer, text):
    return processors.TemplateProcessing(single=f"{text} $A", pair=f"{text} $A {text}:1 $B:1",
                                         special_tokens=[(text, tokenizer.token_to_id(text))])


def llama3(corpus, size):
    t = byte_level(corpus, size, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        ignore_merges=True)
    t.add_special_tokens(special("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"))
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), begins_with(t, "<|begin_of_text|>")])
    return t


def qwen(corpus, size):
    t = byte_level(corpus, size, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(QWEN), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    t.normalizer = normalizers.NFC()
    t.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    t.add_tokens([AddedToken(text, normalized=False) for text in ("<think>", "</think>", "<tool_call>")])
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    return t


def deepseek(corpus, size):
    t = byte_level(corpus, size, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"), pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
         pre_tokenizers.Split(Regex(DEEPSEEK), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    t.normalizer = normalizers.Sequence([])
    t.add_special_tokens(special("<｜begin▁of▁sentence｜>"))
    return t


def roberta(corpus, size):
    t = byte_level(corpus, size, pre_tokenizers.ByteLevel(add_prefix_space=False), ["<s>", "<pad>", "</s>", "<unk>"])
    t.add_special_tokens(special("<s>", "</s>") + [AddedToken("<mask>", lstrip=True, special=True, normalized=False)])
    t.post_processor = processors.RobertaProcessing(("</s>", t.token_to_id("</s>")), ("<s>", t.token_to_id("<s>")))
    return t


def gpt2_prefix(corpus, size):
    t = byte_level(corpus, size, pre_tokenizers.Sequence([pre_tokenizers.Digits(True), pre_tokenizers.ByteLevel()]))
    t.add_tokens([AddedToken("word", single_word=True), AddedToken("人工", single_word=True, normalized=False),
                  AddedToken("<l>", lstrip=True, rstrip=True)])
    return t


LLAMA_DECODER = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def llama2(corpus, size):
    t = characters(corpus, size, ["<unk>", "<s>", "</s>"], 120, unk_token="<unk>", fuse_unk=True)
    t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    t.add_special_tokens(special("<unk>", "<s>", "</s>"))
    t.decoder = decoders.Sequence(LLAMA_DECODER + [decoders.Strip(" ", 1, 0)])
    t.post_processor = begins_with(t, "<s>")
    return t


def llama2_old(corpus, size):
    """As Llama 2's first files: its special tokens are normalised."""
    t = llama2(corpus, size)
    root = json.loads(t.to_str())
    for token in root["added_tokens"]:
        token["normalized"] = True
    return Tokenizer.from_str(json.dumps(root))


def mistral(corpus, size):
    t = characters(corpus, size, ["<unk>", "<s>", "</s>"], 120, unk_token="<unk>", fuse_unk=True)
    t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    t.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    t.decoder = decoders.Sequence(LLAMA_DECODER + [decoders.Strip(" ", 1, 0)])
    t.post_processor = begins_with(t, "<s>")
    return t


def gemma(corpus, size):
    t = characters(corpus, size, ["<pad>", "<eos>", "<bos>", "<unk>"], 120, unk_token="<unk>", fuse_unk=True)
    t.normalizer = normalizers.Replace(" ", "▁")
    t.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    t.add_special_tokens(special("<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"))
    t.add_tokens([AddedToken(c * n, normalized=False) for n in range(2, 8) for c in ("\n", "▁")])
    t.decoder = decoders.Sequence(LLAMA_DECODER)
    t.post_processor = begins_with(t, "<bos>")
    return t


def bert(corpus, size):
    return word_piece(corpus, size, True)


def bert_cased(corpus, size):
    return word_piece(corpus, size, False)


# Some of SentencePiece's rules, whose own table is 300 KB: ligatures and wide letters, blanks, what is removed, a sequence,
# a part of another one.
RULES = [("\ufb01", "fi"), ("\uff21", "A"), ("\uff11", "1"), ("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\r", " "),
         ("\u200b", ""), ("\u0001", ""), ("e\u0301", "\u00e9"), ("n\u0303", "\u00f1"), ("\u2026", "..."), ("\u00bd", "1/2"),
         ("\ufdfa", "\u0635\u0644\u0649 \u0627\u0644\u0644\u0647"), ("か\u3099", "が"), ("\u1112\u1161\u11ab", "한"), ("\u1112", "ㅎ")]


def pieces(corpus, size, rules, **how):
    """SentencePiece's model, learned; rules: its own table's name, or a list."""
    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2
    with tempfile.TemporaryDirectory() as work:
        how["normalization_rule_name" if isinstance(rules, str) else "normalization_rule_tsv"] = rules
        if not isinstance(rules, str):
            how["normalization_rule_tsv"] = f"{work}/rules.tsv"
            pathlib.Path(how["normalization_rule_tsv"]).write_text("".join(
                " ".join(f"{ord(c):X}" for c in a) + "\t" + " ".join(f"{ord(c):X}" for c in b) + "\n" for a, b in rules))
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(line for text in corpus for line in text.split("\n") if line.strip()), model_prefix=f"{work}/t5",
            vocab_size=size, model_type="unigram", character_coverage=0.98, hard_vocab_limit=False, minloglevel=2, **how)
        model = sentencepiece_model_pb2.ModelProto()
        model.ParseFromString(pathlib.Path(f"{work}/t5.model").read_bytes())
    return model


def unigram(corpus, size, rules):
    """As transformers writes the tokenizer of T5."""
    model = pieces(corpus, size, rules, pad_id=0, eos_id=1, unk_id=2, bos_id=-1)
    t = Tokenizer(models.Unigram([(p.piece, p.score) for p in model.pieces], unk_id=2, byte_fallback=False))
    if model.normalizer_spec.precompiled_charsmap:
        t.normalizer = normalizers.Precompiled(model.normalizer_spec.precompiled_charsmap)
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    t.decoder = decoders.Metaspace()
    t.add_special_tokens(special("<pad>", "</s>", "<unk>", "<extra_id_0>", "<extra_id_1>"))
    t.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>",
                                                     special_tokens=[("</s>", t.token_to_id("</s>"))])
    return t


def t5(corpus, size):
    return unigram(corpus, size, RULES)


def t5_whole(corpus, size):
    return unigram(corpus, size, "nmt_nfkc")


def albert(corpus, size):
    """Unigram over words that keep their blanks, behind other changes."""
    t = unigram(corpus, size, RULES)
    t.normalizer = normalizers.Sequence([normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), t.normalizer])
    t.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return t


def parts(number):
    """Parts that the families do not have, over BPE of characters without bytes."""
    behaviours = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]

    def make(corpus, size):
        t = characters(corpus, size, ["<unk>"], 60, False, unk_token="<unk>", fuse_unk=number % 2 == 0)
        t.add_tokens([AddedToken("Word", single_word=True), AddedToken("é!", normalized=True, lstrip=True)])
        split = pre_tokenizers.Split
        t.normalizer, t.pre_tokenizer, t.decoder = [
            (normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]),
             pre_tokenizers.Whitespace(), None),
            (normalizers.Sequence([normalizers.Strip(), normalizers.Replace(Regex(r"\s+"), " ")]),
             pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]),
             decoders.Metaspace()),
            (normalizers.NFKC(), pre_tokenizers.Sequence([pre_tokenizers.Punctuation(behaviours[number % 5]),
                                                           pre_tokenizers.Digits(False)]), decoders.Fuse()),
            (normalizers.NFD(), split("-", behaviours[number % 5]), decoders.Metaspace(prepend_scheme="never")),
            (normalizers.Sequence([normalizers.NFC(), normalizers.Replace("ab", "c")]),
             split(Regex(r"[\p{L}\p{N}]+"), behaviours[number % 5], invert=True), None),
            (None, split(Regex(r"[a-y]+| "), behaviours[number // 6 % 5], invert=number % 2 == 1), decoders.Metaspace()),
        ][number % 6]
        return Tokenizer.from_str(t.to_str())
    return make


def scripts(corpus, size):
    """Scripts, of which PCRE2's own names mean more characters."""
    t = byte_level(corpus, size, pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(r"\p{Han}+|[\p{Hiragana}\p{katakana}]+|\p{Greek}\P{Greek}|\p{^Old_Italic}{4}|"
                                    r"[^\p{Arabic}\p{Deva}\p{Latin}]{1,3}"), "isolated"),
         pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))
    return t


def over_blanks(corpus, size):
    """Added tokens that take blanks along, before others that are blanks: those are found, too."""
    t = byte_level(corpus, size, pre_tokenizers.ByteLevel(add_prefix_space=False))
    t.add_tokens([AddedToken("<r>", rstrip=True), AddedToken("<b>", lstrip=True, rstrip=True), AddedToken("  "),
                  AddedToken("\n", rstrip=True), AddedToken(" <c>", rstrip=True), AddedToken("\t<l>", lstrip=True)])
    return t


def eaten(normalizer):
    """The mark that leads a text, behind a normalizer that may take what the text begins with."""
    def make(corpus, size):
        t = characters(corpus, size, ["<unk>"], 60, unk_token="<unk>", fuse_unk=True)
        t.normalizer = normalizer
        t.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        t.add_tokens([AddedToken("<s>", normalized=False), AddedToken("tick", normalized=True)])
        t.decoder = decoders.Metaspace(prepend_scheme="first")
        return Tokenizer.from_str(t.to_str())
    return make


EATEN = {"eaten0": eaten(normalizers.Strip()),
         "eaten1": eaten(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Replace("q", "")])),
         "eaten2": eaten(normalizers.Sequence([normalizers.BertNormalizer(lowercase=True), normalizers.Replace(Regex("th|x+"), "")]))}

# Beside those that all have.
MORE_TEXTS = {
    "scripts": ["、漢、。・ア・ー「あ」〆々〇〒 ㆐ ｰ ﾞ", "α\u0342β\u1dc0 ω\u0304", "٠١،؟ ـ \u064b ﷺ ﷲ", "क।॥ अ\u0951 ॐ", "𐌀𐌁, x",
                "\u0363a ꜀ ː", "ひ\u3099ゝヽ・ン"],
    "over_blanks": ["<r>  a", "<r>   \n b", "<r> \n  \n", "<r> \t  <b>  <c> x", "<r>\n\n <c>  a", "a <b>  <b>  ", "<b> \t<l>\t <c>",
                    "\n   <r>\n\n\n<b>", "<r>", "<r> ", "<r>  ", "<r>    <c>   <c>\n \t<l>x"],
    "bert": ["a\u166db c\u166d", "a\u1734b \u1734", "a\u1885b \u1886c", "a\ua9bdb", "a\U000111c9b \U000111c9"],
    **{name: [a + b + c for a in ("", " ", "q", "x", "th", "\u0301", "\x07", "tick", "<s>") for b in (" a", "the", "tick", "<s>a")
              for c in ("", " b<s> c")] for name in EATEN}}

FAMILIES = {f.__name__: f for f in (llama3, qwen, deepseek, roberta, gpt2_prefix, llama2, llama2_old, mistral, gemma, bert,
                                    bert_cased, scripts, over_blanks, t5, albert)} | EATEN
WHOLE = {"t5_whole": t5_whole}  # whose table is too large to keep
PARTS = {f"parts{n}": parts(n) for n in range(30)}


def added_of(tokenizer):
    return [token["content"] for token in json.loads(tokenizer.to_str())["added_tokens"]]


# ---- What both make of texts ----

def expected(tokenizer, texts, batch=False):
    """Without truncation and padding, which a tokenizer.json may have for other uses."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    ids = [e.ids for e in tokenizer.encode_batch(texts, add_special_tokens=False)]
    return ids, tokenizer.decode_batch(ids, skip_special_tokens=False)


def ours(folder, texts, *options):
    with tempfile.TemporaryDirectory() as temporary:
        paths = [str(pathlib.Path(temporary) / name) for name in ("in", "ids", "texts")]
        pathlib.Path(paths[0]).write_bytes(b"\xff".join(text.encode() for text in texts))
        subprocess.run([str(BENCH), str(folder), paths[0], "--ids", paths[1], "--texts", paths[2], *options], check=True,
                       stdout=subprocess.DEVNULL)
        raw, at, ids = pathlib.Path(paths[1]).read_bytes(), 0, []
        while at < len(raw):
            n = struct.unpack_from("<I", raw, at)[0]
            if n == 0xFFFFFFFF:
                ids.append(None)
                at += 4
                continue
            ids.append(list(struct.unpack_from(f"<{n}I", raw, at + 4)))
            at += 4 + 4 * n
        return ids, [text.decode() for text in pathlib.Path(paths[2]).read_bytes().split(b"\xff")[:-1]]


def differences(name, texts, want, got):
    wrong = 0
    for text, ids, again, our_ids, our_text in zip(texts, want[0], want[1], got[0], got[1], strict=True):
        if ids != our_ids or again != our_text:
            wrong += 1
            if wrong <= 2:
                what = "ids" if ids != our_ids else "text again"
                at = next((i for i, (a, b) in enumerate(zip(ids, our_ids or [])) if a != b), None)
                print(f"{name}: {what} of {text[:100]!r}: at {at}: {(ids if what == 'ids' else again)[:30]} and "
                      f"{(our_ids if what == 'ids' else our_text)[:30] if our_ids is not None else None}")
    return wrong


def documents(paths, seed=1):
    """The files' text as documents of 1 character to 100,000."""
    draw = random.Random(seed)
    text = "".join(pathlib.Path(p).read_text(errors="ignore") for p in paths)
    out, at = [], 0
    while at < len(text):
        n = int(10 ** draw.uniform(0, 5))
        out.append(text[at:at + n])
        at += n
    return out


def compare(folder, tokenizer, name, texts):
    want = expected(tokenizer, texts)
    wrong = 0
    for options in ([], ["--piece", "7"], ["--piece", "1000", "--threads", "2"]):
        wrong += differences(f"{name} {' '.join(options)}", texts, want, ours(folder, texts, *options))
    print(f"{name}: {len(texts)} texts, {sum(len(t.encode()) for t in texts)} bytes, {sum(map(len, want[0]))} tokens: "
          f"{wrong} differ", flush=True)
    return wrong


def with_folder(tokenizer, work):
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(str(pathlib.Path(folder) / "tokenizer.json"))
        return work(pathlib.Path(folder))


def trained(make, corpus, size):
    return Tokenizer.from_str(make(corpus, size).to_str())


def chosen(names):
    everything = FAMILIES | WHOLE | PARTS
    return {n: everything[n] for n in names} if names else everything


def run_compare(options):
    texts = documents(options.files)
    wrong = 0
    if options.model:
        tokenizer = Tokenizer.from_file(str(pathlib.Path(options.model) / "tokenizer.json"))
        hard = AWKWARD + list(hostile(options.hostile, 7, added_of(tokenizer)))
        return compare(options.model, tokenizer, options.model, texts + hard)
    for name, make in chosen(options.only).items():
        tokenizer = trained(make, texts[:200] + CORPUS, options.size)
        hard = AWKWARD + MORE_TEXTS.get(name, []) + list(hostile(options.hostile, 7, added_of(tokenizer)))
        wrong += with_folder(tokenizer, lambda folder: compare(folder, tokenizer, name, texts + hard))
    return wrong


def run_speed(options):
    texts = [t for t in documents(options.files) if len(t) > 100]
    n_threads = os.cpu_count()
    n = sum(len(t.encode()) for t in texts)
    for name, make in chosen(options.only or FAMILIES).items():
        tokenizer = trained(make, texts[:300] + CORPUS, options.size)

        def measure(folder):
            path = folder / "texts"
            path.write_bytes(b"\xff".join(t.encode() for t in texts))
            rates = {}
            for threads in (1, n_threads):
                os.environ["RAYON_NUM_THREADS"] = str(threads)
                theirs, mine = [], []
                for _ in range(options.rounds):
                    code = ("import sys,time; from tokenizers import Tokenizer; t=Tokenizer.from_file(sys.argv[1]);"
                            "x=[b.decode() for b in open(sys.argv[2],'rb').read().split(b'\\xff')];"
                            "s=time.perf_counter(); t.encode_batch_fast(x, add_special_tokens=False);"
                            "print(time.perf_counter()-s)")
                    out = subprocess.run([sys.executable, "-c", code, str(folder / "tokenizer.json"), str(path)],
                                         check=True, capture_output=True, text=True)
                    theirs.append(float(out.stdout))
                    out = subprocess.run([str(BENCH), str(folder), str(path), "--threads", str(threads)], check=True,
                                         capture_output=True, text=True)
                    mine.append(json.loads(out.stdout)["seconds"])
                rates[threads] = (n / min(mine), n / min(theirs))
            return rates
        for threads, (mine, theirs) in with_folder(tokenizer, measure).items():
            print(f"{name}, {threads} threads: {mine / 1e6:.1f} MB/s against {theirs / 1e6:.1f}: {mine / theirs:.2f}",
                  flush=True)
    return 0


def run_characters(options):
    """Characters that were added to Unicode lately may differ: the tables on both sides are of several versions."""
    texts = [f"a{chr(c)}b {chr(c)}c" for c in range(1, 0x110000) if not 0xD800 <= c <= 0xDFFF]
    for name, make in chosen(options.only or FAMILIES).items():
        tokenizer = trained(make, CORPUS * 3, options.size)
        want, _ = expected(tokenizer, texts)
        got, _ = with_folder(tokenizer, lambda folder: ours(folder, texts))
        wrong = [ord(t[1]) for t, a, b in zip(texts, want, got, strict=True) if a != b]
        ranges = []
        for c in wrong:
            if ranges and ranges[-1][1] == c - 1:
                ranges[-1][1] = c
            else:
                ranges.append([c, c])
        print(f"{name}: {len(wrong)} characters of {len(texts)} differ: " +
              " ".join(f"{a:X}" if a == b else f"{a:X}-{b:X}" for a, b in ranges), flush=True)
    return 0


def write_expected(name, tokenizer):
    texts = AWKWARD + MORE_TEXTS.get(name, []) + list(hostile(30, 11, added_of(tokenizer)))
    ids, again = expected(tokenizer, texts)
    whole = [tokenizer.encode(t).ids for t in texts[3:4]]
    fixture.write(OUT / f"{name}.expected.json", {"texts": texts, "ids": ids, "again": again, "whole": whole[0]})


def run_fixtures(options):
    OUT.mkdir(parents=True, exist_ok=True)
    some = FAMILIES | {n: PARTS[n] for n in ("parts0", "parts1", "parts2", "parts3", "parts4", "parts11")}
    for name in options.only or some:
        make = some[name]
        path = OUT / f"{name}.json"  # one that is there stays: training gives another one elsewhere
        tokenizer = Tokenizer.from_file(str(path)) if path.exists() else trained(make, CORPUS * 3, 400)
        if not path.exists():
            tokenizer.save(str(path), pretty=False)
        write_expected(name, tokenizer)
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["fixtures", "compare", "speed", "characters"])
    parser.add_argument("files", nargs="*")
    parser.add_argument("--model")
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--size", type=int, default=4000)
    parser.add_argument("--hostile", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    run = {"fixtures": run_fixtures, "compare": run_compare, "speed": run_speed, "characters": run_characters}
    sys.exit(run[options.what](options) > 0)


if __name__ == "__main__":
    main()
