"""Tokens of tokenizer 13a, and corpus BLEU, by sacrebleu's defaults: tests/fixtures/bleu.json.

`texts` has the step of the tokenizer that each text is about, and its tokens with a blank between neighbours; at the end
random texts of what the steps look for. `corpora` has segments [hypothesis, reference], and sacrebleu's score of them all.
Made with sacrebleu 2.6.0.
"""
import os
import random

import sacrebleu

import fixture

FIXTURE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "bleu.json")

ASCII = [chr(c) for c in range(0x21, 0x7F) if not chr(c).isalnum()]
SPACES = [chr(c) for c in range(0x110000) if chr(c).isspace()]
NO_SPACES = [chr(c) for c in [*range(0x09), *range(0x0E, 0x1C), 0x7F, 0x84, 0x86, 0x9F, 0xA1, 0xAD, 0x167F, 0x1681, 0x180E,
                              0x1FFF, *range(0x200B, 0x2010), 0x2027, *range(0x202A, 0x202F), 0x2030, 0x205E, 0x2060, 0x2FFF,
                              0x3001, 0xFEFF]]
TEXTS = {
    "empty": ["", " ", "\n", " \t\u3000\n"],
    "<skipped>": ["<skipped>", "a <skipped> b", "a<skipped>b", "<skip<skipped>ped>", "<Skipped>", "<skipped", "a-<skipped>\nb"],
    "hyphenation": ["hyphen-\nated", "hyphen -\n ated", "end-\n", "end-\n-\n", "a--\n-\nb", "a-\r\nb", "1-\n2", "a -\n\n b"],
    "line ends": ["a\nb", "a\n\nb\n", "a\r\nb", "\na"],
    "entities": ["&quot;a&quot;", "R&amp;D", "a &lt; b &gt; c", "&amp;quot;", "&amp;lt;b&amp;gt;", "&amp;amp;", "&lt;skipped&gt;",
                 "&QUOT;", "&quot", "&apos;", "a&am<skipped>p;b", "&lt&gt;", "& amp;", "&#38;"],
    "punctuation": [f"a{c}b {c}b a{c} 1{c}2" for c in ASCII],
    "period and comma": ["1.5", "1,000.5", ".5", "5.", "a.5", "5.a", "a.b", "U.S.A.", "a..b", "a...", "...", "1..2", "1.,2",
                         ",.,", "0.9,0", "9.0,9", "1.2.3",
                         "a,b,c", "3,a", ".,1,.", "é.1", "1.é", "。.1", "1,\u0661", "\u0661.\u0662", "a.\u2028b"],
    "dash": ["1-2", "0-9", "9-0", "1-a", "a-1", "a-b", "1--2", "1-2-3", "-1", "1 -2", "1-", "1-.5", "1.-2", "\u0661-2",
             "1\u20132", "2-,3"],
    "white space": [f"{c}a{c}b{c}" for c in SPACES],
    "no white space": [f"{c}a{c}b{c}" for c in NO_SPACES],
    "characters": ["Der Bär läuft über die Straße.", "Это — предложение, правда?", "«Bonjour», dit-il.", "日本語。テスト、です.", "😀.😀,1",
                   "e\u0301.", "It's 'quoted' don't", "Mixed CASE mixed", "naïve—café…", "\U00010000-1", "a\u0000b", "100%",
                   "x=y+z*(a/b)", "http://a.b/c?d=1&e=2", "ﬁ ² ½.5", "٣٫١٤"],
}
PIECES = [".", ",", "-", "'", "1", "22", "a", "Bc", " ", "  ", "\n", "-\n", "\r", "\t", "\x1c", "\x85", "\u3000", "\u200b",
          "<skipped>", "<skip", "ped>", "&quot;", "&amp;", "&lt;", "&gt;", "&", ";", "amp;", "lt;", "é", "語", "😀", "(", "/",
          "`", "~"]

CORPORA = {
    "perfect": [["The cat sat on the mat.", "The cat sat on the mat."],
                ["Costs rose 3.5% in 1998-1999.", "Costs rose 3.5% in 1998-1999."]],
    "usual": [["The dog bit the man.", "The dog had bit the man."], ["It wasn't surprising.", "It was not unexpected."],
              ["The man bit him first, in 1,000 places.", "The man had bitten the dog first, in 1,000 places."],
              ["Er ging über die Straße nach Hause.", "Er ging über die große Straße heim."]],
    "brief": [["The cat sat on the mat", "The cat sat on the mat, and then it went away again."], ["He ran", "He ran off."]],
    "long": [["The cat sat on the mat, and then it went away again.", "The cat sat on the mat"]],
    "clipped": [["the the the the the the the", "the cat is on the mat"], ["a b a b a b a b a b", "a b a b c a b"]],
    "no 4-gram": [["the cat sat here now", "the cat sat there then"], ["one two", "one three"]],
    "no 3-gram": [["the cat came here now", "the cat sat there then"]],
    "no 2-gram": [["now cat here the of", "the cat sat there then"]],
    "no match": [["a b c d e", "v w x y z"], ["f g h i", "f' g' h' i'"]],
    "mixed case": [["The Cat Sat On the mat today", "the cat sat on the mat today"]],
    "one word": [["yes", "yes"]],
    "three words": [["one two three", "one two three"], ["four", "four"]],
    "an empty hypothesis": [["", "nothing is said here"], ["The cat sat on the mat.", "The cat sat on the mat."]],
    "empty hypotheses": [["", "nothing is said here"], [" \n", "nor here"]],
    "an empty reference": [["something is said here, though", ""], ["The cat sat on the mat.", "The cat sat on the mat."]],
    "empty": [["", ""]],
    "across segments": [["a b", "a b c d"], ["c d", "e f g h"], ["a b c d", "d c b a"]],
    "across the texts": [["a b", "a b a b a"], ["c d e f", "c d e g"]],
    "13a": [["He said: &quot;R&amp;D costs 1,000.50-2,000&quot;<skipped>", "He said: \"R&D costs 1,000.50-2,000\""],
            ["hyphen-\nated\u3000text, no?", "hyphenated text, no ?"],
            ["A 3-year-old's toy (red).", "A 3 -year-old's toy ( red ) ."]],
    "characters": [["日本語。テスト、です. はい.", "日本語。テスト、です . はい ."],
                   ["Это — предложение, правда, да?", "Это — предложение, правда?"],
                   ["😀 😀 😀 é e\u0301 é", "😀 😀 é é e\u0301"]],
}


def random_text(draw, most_pieces=14):
    return "".join(draw.choice(PIECES) for _ in range(draw.randrange(most_pieces)))


def random_corpus(draw, n, words):
    """Hypotheses lack a tenth of their references' words and have others for a fifth of the rest."""
    segments = []
    for _ in range(n):
        reference = [draw.choice(words) for _ in range(draw.randrange(1, 40))]
        hypothesis = [draw.choice(words) if draw.random() < 0.2 else word for word in reference if draw.random() < 0.9]
        segments.append([" ".join(hypothesis), " ".join(reference)])
    return segments


def tokens(text):
    return sacrebleu.BLEU()._preprocess_segment(text)


def scored(name, segments):
    hypotheses, references = zip(*segments)
    score = sacrebleu.BLEU().corpus_score(hypotheses, [references])
    return {"name": name, "score": score.score, "precisions": score.precisions, "brevity_penalty": score.bp,
            "matches": score.counts, "n_grams": score.totals, "hypothesis_tokens": score.sys_len,
            "reference_tokens": score.ref_len, "segments": segments}


def signature():
    metric = sacrebleu.BLEU()
    metric.corpus_score(["a"], [["a"]])  # which tells it how many references there are
    fields = metric.get_signature().format().split("|")
    return "|".join(field for field in fields if not field.startswith("version:"))


def main():
    draw = random.Random(1)
    words = ["the", "The", "a", "cat", "dog", "1,000", "3.5%", "1998-1999", "it's", "(so)", "end.", "über", "語", "&quot;x&quot;"]
    texts = {**TEXTS, "random": [random_text(draw) for _ in range(300)]}
    corpora = {**CORPORA, "random": random_corpus(draw, 40, words), "two words": random_corpus(draw, 10, words[:2])}
    fixture.write(FIXTURE, {
        "signature": signature(),
        "texts": [{"step": step, "text": text, "tokens": tokens(text)} for step, each in texts.items() for text in each],
        "corpora": [scored(name, segments) for name, segments in corpora.items()]})


if __name__ == "__main__":
    main()
