"""Trains two small byte-level BPE tokenizers with Hugging Face's tokenizers, and writes them and what they make of awkward
texts to tests/fixtures/bpe: tokenizer.json, vocab.json and merges.txt (GPT-2's pattern, 600 tokens), split.json (a
pattern as Llama 3's, 500 tokens, words taken whole), added.json (the first, with added tokens of every kind), blanks.json
(the first, with runs of blanks as added tokens, as CodeGen has them), and expected.json, {"tokenizer": [["text", [ids]], ...], ...}.
And tests/fixtures/bytes/tokenizer.json, of a model of bytes. And tests/fixtures/learned: a text with long runs, rare words
and awkward characters, and model.json, {"vocab": {token: id}, "merges": [...]}, that is learned from it down to the last
pair that occurs twice; the end token has been moved behind the bytes, to 256.

usage: python tests/oracle/make_tokenizer.py      (pip install tokenizers; made with 0.23.3)
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import fixture

OUT = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "bpe"

CORPUS = [
    "The quick brown fox jumps over the lazy dog. It's what they'd do; we've seen it, I'm sure they'll return.",
    "In 1984, 2,048 of 65,536 bytes were lost; by 2024 nobody's counting. 3.14159 is not 22/7.",
    "    for (int i = 0; i < n; i++) {\n        total += values[i];\n    }\n\n\treturn total;\n",
    "Größe, Straße, naïve café, Ångström, señor; Привет, мир! Καλημέρα κόσμε. שלום עולם. مرحبا بالعالم.",
    "人工智能是计算机科学的一个分支。日本語の文章です。안녕하세요 세계.",
    "😀 😃 👍🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 e\u0301 n\u0303 — “quotes” … ½ ² Ⅷ ٣",
]

AWKWARD = [
    "",
    " ",
    "a",
    "Hello world",
    " leading and trailing ",
    "two  blanks   three    four\n\n\nlines\r\n\twith tabs \t \n",
    "   \n   ",
    "blank at the end   ",
    "It's they're I've I'm we'll he'd 's 'S IT'S don't 'tis '''s",
    "0 1 12 123 1234 12345 1234567890 3.14 1,000,000 ٣٤٥ ²³ ½ Ⅷ x2y",
    "!!! ??? ... --- ()[]{} <|endoftext|> #!/bin/sh $HOME @user a_b-c.d",
    "naïve café Ångström e\u0301e\u0301 n\u0303 \u0301 lone",
    "Привет, мир! Καλημέρα κόσμε שלום עולם مرحبا",
    "人工智能。日本語の文章、カタカナ 안녕하세요",
    "😀😃 👍🏽 👩‍👩‍👧‍👦 🇫🇷🇩🇪 ☃️ 𝕏 𐍈",
    "\u00a0no-break\u2003em\u200bzero\u3000wide\u2028line\u2029para\u0085next\u180emongol\ufeffbom",
    "\u001c\u001d\u001e\u001f\u000b\u000c controls \u0001\u007f",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "the the the thethethethe THE The tHe",
    "    for (int i = 0; i < n; i++) {\n        total += values[i];\n    }\n",
    "\ud7ff\ue000\uffff\U00010000\U0010ffff",
    "a mongolian vowel separator is no blank  \u180e",
    "ſ 'ſ K ß ẞ ı İ",
    "<|endoftext|>",
    "one<|endoftext|>two <|endoftext|> three<|endoftext|><|endoftext|>\n<|endoftext|",
    "<|endoftext|<|endoftext|>|endoftext|> <|ENDOFTEXT|>",
]

# Where added tokens, blanks and words meet.
MIXED = ["<l>", "<r>", "<b>", "<b>c", "<n>", "…end…", "  ", "    ", " ", "\n", "\u3000", "\t", "a", "the", "it's", "<", "é", "9"]


def noise(count):
    """Texts of characters drawn from every corner, the same each time."""
    draw = random.Random(20260101)
    ranges = [(32, 126), (32, 126), (9, 13), (160, 591), (768, 879), (1024, 1279), (0x4E00, 0x4FFF), (0x2000, 0x206F),
              (0x1F600, 0x1F64F), (48, 57), (32, 32), (39, 39)]
    for _ in range(count):
        yield "".join(chr(draw.randint(*draw.choice(ranges))) for _ in range(draw.randint(1, 120)))


def train(pre_tokenizer, size, corpus, min_frequency=0, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=["<|endoftext|>"], show_progress=False,
                                  min_frequency=min_frequency,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    return tokenizer


def mixed(count):
    draw = random.Random(20260102)
    for _ in range(count):
        yield "".join(draw.choice(MIXED) for _ in range(draw.randint(1, 14)))


def expected(tokenizer, texts):
    tokenizer = Tokenizer.from_str(tokenizer.to_str())
    return [[text, tokenizer.encode(text).ids] for text in texts]


def bytes_alone():
    """No merges: a byte's letter has the byte's value as its id."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = [c for c in letters if ord(c) < 256]
    rest = [c for c in letters if ord(c) >= 256]
    missing = [b for b in range(256) if b not in {ord(c) for c in plain}]
    vocab = {c: ord(c) for c in plain} | dict(zip(rest, missing))
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=False)
    for text in AWKWARD:
        ids = tokenizer.encode(text).ids
        assert bytes(ids) == text.encode() and tokenizer.decode(ids) == text, text
    return tokenizer


STEMS = ["learn", "token", "merge", "pair", "größe", "naïve", "байт", "слово", "人工智能", "👍🏽", "aaaaaaaaa", "ababababab",
         "----------------", "____", "x", "0", "1984", "3.14159", "it's", "we've", "they'll", "\u0301", "\u200b"]
ENDS = ["", "", "", "s", "ing", "er", "ed", "able", "'s", ".", ",", "!!", "\n", "\n\n    ", "\r\n", "\t", "  ", " "]


def text_to_learn():
    draw = random.Random(20260301)
    words = [draw.choice(STEMS) + draw.choice(ENDS) for _ in range(300)]
    return "".join(words[min(int(draw.expovariate(0.02)), 299)] + draw.choice([" ", " ", " ", "", "  "])
                   for _ in range(4000))


def learned():
    text, folder = text_to_learn(), OUT.parent / "learned"
    tokenizer = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 100000, [text], min_frequency=2)
    model = json.loads(tokenizer.to_str())["model"]
    vocab = {token: 256 if id == 0 else id - 1 if id <= 256 else id for token, id in model["vocab"].items()}
    merges = [" ".join(merge) for merge in model["merges"]]
    (folder / "text.txt").write_text(text, newline="")
    fixture.write(folder / "model.json", {"vocab": vocab, "merges": merges})


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    gpt2 = train(pre_tokenizers.ByteLevel(add_prefix_space=False), 600, CORPUS * 3)
    llama = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    split = train(pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(llama), "isolated"),
                                           pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
                  500, CORPUS * 3, ignore_merges=True)
    shorter = json.loads(split.to_str())  # so that some tokens can only be taken whole
    shorter["model"]["merges"] = shorter["model"]["merges"][:-80]
    split = Tokenizer.from_str(json.dumps(shorter))
    gpt2.save(str(OUT / "tokenizer.json"), pretty=False)
    gpt2.model.save(str(OUT))  # vocab.json, merges.txt
    split.save(str(OUT / "split.json"), pretty=False)
    added = Tokenizer.from_str(gpt2.to_str())
    added.add_special_tokens([AddedToken("<l>", lstrip=True, normalized=False), AddedToken("<b>", normalized=False),
                              AddedToken("<r>", rstrip=True, normalized=False)])
    added.add_tokens([AddedToken("<b>c", lstrip=True, rstrip=True, normalized=False), AddedToken("…end…"),
                      AddedToken("<n>", rstrip=True, normalized=True),
                      AddedToken("end", lstrip=True, normalized=True)])
    added.save(str(OUT / "added.json"), pretty=False)
    blanks = Tokenizer.from_str(gpt2.to_str())
    blanks.add_tokens([AddedToken(" " * n, normalized=True) for n in range(2, 7)] + [AddedToken("\t\t", normalized=False)])
    blanks.save(str(OUT / "blanks.json"), pretty=False)
    (OUT.parent / "bytes").mkdir(exist_ok=True)
    bytes_alone().save(str(OUT.parent / "bytes" / "tokenizer.json"), pretty=False)
    texts = AWKWARD + list(noise(60))
    answers = {"tokenizer": expected(gpt2, texts), "split": expected(split, texts),
               "added": expected(added, AWKWARD + list(mixed(300))),
               "blanks": expected(blanks, AWKWARD + list(mixed(100)))}
    fixture.write(OUT / "expected.json", answers)
    learned()


main()
