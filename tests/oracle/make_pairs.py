"""What Hugging Face's tokenizers make of single texts and pairs, cut to a length ("longest_first"): tests/fixtures/pairs.json.

    python make_pairs.py

Each row has texts, seq, ids, and second: the first token of segment 1, or the number of tokens. The tokenizers are the
fixtures of BERT and RoBERTa; for a third, BERT's post-processor is written as BertProcessing. Every choice has a fixed seed.
"""
import json
import pathlib
import random

from tokenizers import Tokenizer

import fixture

FIXTURES = pathlib.Path(__file__).resolve().parent.parent / "fixtures"
WORDS = "the quick brown fox jumps over lazy dog it's they'll größe 1984 人工 naïve [SEP] <mask> [MASK]s </s> 😀 x2y !!! -".split()


def post_processor(name):
    if name != "BertProcessing":
        return None
    return {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}


def row(tokenizer, texts, seq):
    tokenizer.enable_truncation(seq, strategy="longest_first")
    made = tokenizer.encode(*texts)
    second = made.type_ids.index(1) if 1 in made.type_ids else len(made.ids)
    assert made.type_ids == [0] * second + [1] * (len(made.ids) - second)
    return {"texts": texts, "seq": seq, "ids": made.ids, "second": second}


def rows(tokenizer, draw):
    for i in range(60):
        texts = [" ".join(draw.choices(WORDS, k=draw.choice([1, 1, 2, 3, 5, 9, 30]))) for _ in range(1 + (i % 3 > 0))]
        n_added = tokenizer.num_special_tokens_to_add(len(texts) == 2)
        for seq in {n_added + len(texts), n_added + draw.randint(2, 40), n_added + draw.randint(2, 12), 200}:
            yield row(tokenizer, texts, seq)
    for texts in [""], [" "], ["", ""], ["", "fox"], ["fox", ""]:
        for seq in tokenizer.num_special_tokens_to_add(len(texts) == 2) + len(texts), 200:
            yield row(tokenizer, texts, seq)


def main():
    out, draw = [], random.Random(1)
    for name, processor in (("bert", None), ("bert_cased", None), ("roberta", None), ("bert", "BertProcessing")):
        made = json.loads((FIXTURES / "tokenizers" / f"{name}.json").read_text())
        if processor:
            made["post_processor"] = post_processor(processor)
        tokenizer = Tokenizer.from_str(json.dumps(made))
        out.append({"tokenizer": name, "post_processor": post_processor(processor), "rows": list(rows(tokenizer, draw))})
    fixture.write(FIXTURES / "pairs.json", out)


if __name__ == "__main__":
    main()
