"""Conversations as tokens: what transformers and TRL make of them, and what eps makes of them.

    conversations.py fixtures          writes tests/fixtures/conversations.json, for tests/client/text/test_conversation.c
    conversations.py compare [N]       compares build/bin/test_conversation with them on N (1000) random conversations for
                                       each of TRL's templates, and prints what is equal, and a hash of the conversations

The oracle's masks are those of transformers' apply_chat_template(return_assistant_tokens_mask=True) with TRL's training
templates, which mark answers by {% generation %}. eps encodes the same conversations with these templates (by the mark), and
with the originals that TRL patched (by prefixes). The oracle of the latter is by_prefixes here, over transformers' texts and
tokenizers' offsets; and where an original makes the text of its patched form, TRL's mask. The oracle of special tokens that
messages spell is tokenizers' encode_special_tokens. Made with transformers 5.23.0 and trl
1.16.0.
"""

import datetime
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import trl
from tokenizers import AddedToken, Tokenizer
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils, logging

import fixture
import templates

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TEMPLATES = pathlib.Path(trl.__file__).parent / "chat_templates"
FIXTURES = ROOT / "tests" / "fixtures"
TOKENIZERS = ["bpe/tokenizer", "bpe/split", "tokenizers/llama2", "tokenizers/llama2_old", "tokenizers/llama3", "tokenizers/mistral",
              "tokenizers/gemma", "tokenizers/qwen", "tokenizers/deepseek"]

WORDS = ["the", "Answer", "is", "42", "it's", "naïve", "Größe", "人工智能", "😀", "e\u0301", "\n", "\n\n", "  ", "\t", "def f(x):", "<b>",
         "x < y", "{\"a\": 1}", "-", "...", "Привет", "ﬁ", "\u00a0", "<|", "|>", "end of turn", "<", ">", "assistant", "user\n"]
ENDS = ["", "", "", " ", "\n", "  \n"]


class Today(datetime.datetime):
    """What eps takes for the present."""

    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26, 11)


def names():
    return sorted(path.stem.removesuffix("_training") for path in TEMPLATES.glob("*_training.jinja"))


def special_tokens(source):
    return sorted(set(re.findall(r"<\|[A-Za-z_]+\|>|<｜[^｜'\"\s]+｜>|<(?:start|end)_of_[a-z]+>|\[/?INST\]|<bos>|<turn\||<\|turn>", source)))


def make_tokenizer(path, source):
    tokenizer = json.loads((FIXTURES / f"{path}.json").read_text())
    tokenizer["post_processor"] = None  # one that trims offsets lets transformers' masks vanish where an answer begins with a blank
    tokenizer = Tokenizer.from_str(json.dumps(tokenizer))
    tokens = special_tokens(source)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in [*tokens, "<BOS>", "<EOS>"]])
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<BOS>", eos_token="<EOS>")


def text(draw, most=12):
    words = [draw.choice(WORDS) + draw.choice(["", " ", " "]) for _ in range(draw.randint(1, most))]
    return draw.choice(ENDS) + "".join(words) + draw.choice(ENDS)


def call(draw):
    return {"type": "function", "function": {"name": draw.choice(["get", "put"]),
                                             "arguments": {"a": draw.choice([1, "x y", "naïve", True]), "b": text(draw, 3)}}}


def answer(draw):
    message = {"role": "assistant", "content": text(draw)}
    if draw.random() < 0.15:
        message["reasoning_content"] = text(draw, 6).strip() or "so"
    elif draw.random() < 0.15:
        message["content"] = "<think>\n" + text(draw, 6).strip() + "\n</think>\n\n" + message["content"]
    return message


def conversation(draw, with_tools):
    messages = [{"role": "system", "content": text(draw)}] if draw.random() < 0.3 else []
    for _ in range(draw.randint(1, 4)):
        messages.append({"role": "user", "content": text(draw)})
        if with_tools and draw.random() < 0.2:
            messages.append({"role": "assistant", "content": "", "tool_calls": [call(draw) for _ in range(draw.randint(1, 2))]})
            messages.append({"role": "tool", "name": "get", "content": text(draw)})
        messages.append(answer(draw))
    if draw.random() < 0.1:
        messages.append({"role": "user", "content": text(draw)})
    out = {"messages": messages}
    if with_tools and draw.random() < 0.3:
        out["tools"] = [{"type": "function", "function": {"name": "get", "description": text(draw, 4),
                                                          "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}]
    return out


def oracle(tokenizer, template, one, **options):
    """ids and mask, or None if it refuses. The first token has no predecessor, so its mask is 0."""
    try:
        out = tokenizer.apply_chat_template(one["messages"], tools=one.get("tools"), chat_template=template, tokenize=True,
                                            return_dict=True,
                                            tokenizer_kwargs={"return_offsets_mapping": True}, **options)
    except Exception:
        return None
    mask = out.get("assistant_masks", [0] * len(out["input_ids"]))
    for i in range(1, len(mask)):  # a character of several tokens: transformers marks the first alone, where it ends an answer
        mask[i] = mask[i] or (mask[i - 1] and out["offset_mapping"][i] == out["offset_mapping"][i - 1])
    return {"ids": out["input_ids"], "trained": "".join("1" if bit else "0" for bit in [0, *mask[1:]])}


def render(tokenizer, template, one, n, prompts):
    return tokenizer.apply_chat_template(one["messages"][:n], tools=one.get("tools"), chat_template=template, tokenize=False,
                                         add_generation_prompt=prompts)


def by_prefixes(tokenizer, template, one):
    """The rows of a conversation by prefixes, or None where one is refused. An answer whose text so far is no prefix of the
    row (but for an end token, Phi 3's) has a row of its own."""
    rows, n = [], len(one["messages"])
    try:
        text, spans = render(tokenizer, template, one, n, False), []
        for i in reversed([i for i in range(n) if one["messages"][i]["role"] == "assistant"]):
            before, so_far = (render(tokenizer, template, one, *end) for end in ((i, True), (i + 1, False)))
            if not so_far.startswith(before) or so_far == before:
                return None
            if not text.startswith(so_far):
                if text.startswith(so_far.removesuffix("<EOS>")):
                    so_far = so_far.removesuffix("<EOS>")
                else:
                    rows += [(text, spans)] if spans else []
                    text, spans = so_far, []
            spans.append((len(before), len(so_far)))
    except Exception:
        return None
    return [masked(tokenizer, *row) for row in reversed([*rows, (text, spans)])]


def masked(tokenizer, text, spans):
    """By offsets alone: a token is trained if one of its characters is in an answer."""
    out = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    bits = [any(a < to and b > start for start, to in spans) for a, b in out["offset_mapping"]]
    return {"ids": out["input_ids"], "trained": "".join("1" if bit else "0" for bit in [False, *bits[1:]])}


def side_of(tokenizer, template):
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save_pretrained(folder)
        return {"tokenizer.json": pathlib.Path(folder, "tokenizer.json").read_text(),
                "tokenizer_config.json": json.dumps({"bos_token": "<BOS>", "eos_token": "<EOS>"}), "chat_template.jinja": template}


def run(cases):
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(cases, file)
        file.flush()
        out = subprocess.run([ROOT / "build/bin/test_conversation", "encode", file.name], capture_output=True, check=True)
    return json.loads(out.stdout)


def case(tokenizer, template, conversations, train_on="answers"):
    return {"side": side_of(tokenizer, template), "vocabulary": 65536, "train_on": train_on, "conversations": conversations}


def compare(n):
    wrong, digest = 0, hashlib.sha256()
    for number, name in enumerate(names()):
        draw = random.Random(20260500 + number)
        marked, original = (TEMPLATES / f"{name}_training.jinja").read_text(), (TEMPLATES / f"{name}.jinja").read_text()
        tokenizer = make_tokenizer(TOKENIZERS[number % len(TOKENIZERS)], original)
        conversations = [conversation(draw, with_tools=i % 2 == 0) for i in range(n)]
        digest.update(json.dumps(conversations).encode())
        wants = [oracle(tokenizer, marked, one, return_assistant_tokens_mask=True) for one in conversations]
        plain = [oracle(tokenizer, original, one) for one in conversations]
        prefixes = [by_prefixes(tokenizer, original, one) for one in conversations]
        by_mark, by_prefix = run([case(tokenizer, marked, conversations), case(tokenizer, original, conversations)])
        count = dict.fromkeys(["equal", "both refuse", "no answer", "refused only here", "wrong", "prefixes equal", "prefixes refused",
                               "prefixes refused only here", "prefixes wrong", "rows of prefixes", "as TRL's", "with TRL's text"], 0)
        for one, want, got, want_prefix, prefix in zip(conversations, wants, by_mark, prefixes, by_prefix):
            note(count, "", tokenizer, name, one, want and [want], got)
            note(count, "prefixes ", tokenizer, name, one, want_prefix, prefix)
            if isinstance(prefix, list):
                count["rows of prefixes"] += len(prefix)
                if want and len(prefix) == 1 and prefix[0]["ids"] == want["ids"]:
                    count["with TRL's text"] += 1
                    count["as TRL's"] += prefix == [want]
        wrong += count["wrong"] + count["prefixes wrong"]
        print(f"{name:28}", ", ".join(f"{value} {key}" for key, value in count.items() if value))
    wrong += compare_own(n)
    print("conversations", digest.hexdigest())
    return wrong


def compare_own(n):
    """The templates of templates.py, which mark nothing: by prefixes, against the slow reference."""
    wrong = 0
    for number, (name, template) in enumerate(templates.FAMILIES.items()):
        draw = random.Random(20260700 + number)
        tokenizer = make_tokenizer(TOKENIZERS[number % len(TOKENIZERS)], template)
        conversations = [conversation(draw, with_tools=False) for _ in range(n)]
        count = dict.fromkeys(["prefixes equal", "prefixes refused", "prefixes refused only here", "prefixes wrong", "rows of prefixes"], 0)
        for one, got in zip(conversations, run([case(tokenizer, template, conversations)])[0]):
            note(count, "prefixes ", tokenizer, name, one, by_prefixes(tokenizer, template, one), got)
            count["rows of prefixes"] += len(got) if isinstance(got, list) else 0
        wrong += count["prefixes wrong"]
        print(f"ours: {name:22}", ", ".join(f"{value} {key}" for key, value in count.items() if value))
    return wrong


def note(count, way, tokenizer, name, one, want, got):
    refused = isinstance(got, dict)
    if want is None or refused:
        kind = ("refused" if way else "both refuse") if want is None and refused else "refused only here" if refused else "wrong"
        if kind == "refused only here" and not way and "1" not in want[0]["trained"]:
            kind = "no answer"
    else:
        kind = "equal" if got == want else "wrong"
    count[way + kind] += 1
    if kind in ("wrong", "refused only here") and count[way + kind] <= 2:
        print("  ", name, way + kind, got["error"] if refused else "", json.dumps(one)[:200])
        if want and not refused:
            for a, b in zip(want, got):
                if a != b:
                    show(tokenizer, a, b)


def show(tokenizer, want, got):
    for i, (a, b) in enumerate(zip(want["ids"], got["ids"])):
        if a != b or want["trained"][i] != got["trained"][i]:
            print("   at", i, "want", [tokenizer.decode(want["ids"][max(i - 4, 0):i + 4])], want["trained"][max(i - 4, 0):i + 4], "got",
                  [tokenizer.decode(got["ids"][max(i - 4, 0):i + 4])], got["trained"][max(i - 4, 0):i + 4])
            return
    print("   lengths", len(want["ids"]), len(got["ids"]))


# ---- fixtures: a few of these for each way, and what the random ones do not have ----

MARKED = """\
{%- for m in messages %}
    {%- if m.role == 'assistant' %}
        {{- '<|im_start|>assistant\n' }}
        {%- generation %}{{- m.content }}{%- endgeneration %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
CHATML = MARKED.replace("{%- generation %}", "").replace("{%- endgeneration %}", "")
# Qwen 3's: what was thought before the last question is left out.
THINKING = """\
{%- set ns = namespace(last=0) %}
{%- for m in messages %}{%- if m.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for m in messages %}
    {{- '<|im_start|>' + m.role + '\n' }}
    {%- if m.role == 'assistant' and loop.index0 > ns.last %}{{- '<think>\n' + (m.reasoning_content or '') + '\n</think>\n\n' }}{%- endif %}
    {{- m.content.strip() + '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
# Mistral's: blanks beside what is special, and an end token.
INSTRUCT = """\
{{- bos_token }}
{%- for m in messages %}
    {%- if m.role == 'assistant' %}{{- ' ' + m.content | trim + eos_token }}
    {%- elif m.role == 'user' %}{{- '[INST] ' + m.content | trim + ' [/INST]' }}
    {%- else %}{{- raise_exception('no ' + m.role) }}{%- endif %}
{%- endfor %}"""
# What follows a conversation is no part of its answers; roles in special tokens: Phi 3's.
ENDED = """\
{%- for m in messages %}{{- '<|' + m.role + '|>\n' + m.content + '<|end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\n' }}{%- else %}{{- eos_token }}{%- endif %}"""

WAYS = [("chatml", CHATML, "bpe/tokenizer"), ("marked", MARKED, "bpe/split"), ("thinking", THINKING, "tokenizers/qwen"),
        ("instruct", INSTRUCT, "tokenizers/llama2"), ("instruct", INSTRUCT, "tokenizers/mistral"),
        ("ended", ENDED, "tokenizers/llama3"), ("chatml", CHATML, "tokenizers/gemma"), ("chatml", CHATML, "tokenizers/llama2_old")]
SPELT = ["<|im_end|>", "say <|im_start|>assistant\n", "<s></s>[INST]", "<|im_end|", "a<|im_end|><|im_end|>b", " <EOS> ", "<think>"]


def mark_end(tokenizer, row, special):
    """The special token after an answer is trained, too."""
    ids, bits = row["ids"], list(row["trained"])
    for i in range(1, len(bits)):
        if bits[i - 1] == "1" and row["trained"][i - 1] == "1" and ids[i] in special:
            bits[i] = "1"
    return {"ids": ids, "trained": "".join(bits)}


def plain_ids(tokenizer, path, template, one):
    """Special tokens that messages spell are text, by tokenizers' encode_special_tokens: the template's own are cut out of the
    text, and the pieces between them are encoded. None for a tokenizer that looks where a text begins."""
    if path in ("tokenizers/llama2", "tokenizers/mistral"):
        return None
    tokens = [*special_tokens(template + ROLES), "<BOS>", "<EOS>"]
    hidden = json.loads(json.dumps(one))
    for message in hidden["messages"]:
        for token in tokens:
            message["content"] = message["content"].replace(token, "\ue000" + token[1:])
    text = tokenizer.apply_chat_template(hidden["messages"], chat_template=template, tokenize=False)
    backend, ids = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str()), []
    backend.encode_special_tokens = True
    for piece in re.split("(" + "|".join(map(re.escape, tokens)) + ")", text):
        if piece in tokens:
            ids.append(tokenizer.convert_tokens_to_ids(piece))
        else:
            ids += backend.encode(re.sub("\ue000(.)", lambda m: ("[" if m[1] in "/I" else "<") + m[1], piece), add_special_tokens=False).ids
    return ids


ROLES = "<|user|><|assistant|><|end|>"


def spelt(draw):
    return {"messages": [{"role": role, "content": " ".join(draw.sample([*SPELT, *WORDS[:6]], 3)).strip()}
                         for role in ("user", "assistant") * draw.randint(1, 2)]}


PLACED = "it's naïve: Größe 42,  人工智能😀!\n\n e\u0301 <|im_end|>x \u00a0the end"


def places(path):
    """For each character of a text, the first and the last token that it is in, by tokenizers' offsets."""
    tokenizer = make_tokenizer(path, CHATML)
    out = tokenizer(PLACED, add_special_tokens=False, return_offsets_mapping=True)
    found = [[i for i, (a, b) in enumerate(out["offset_mapping"]) if a <= at < b] for at in range(len(PLACED))]
    return {"tokenizer": path, "tokens": {token: tokenizer.convert_tokens_to_ids(token) for token in [*special_tokens(CHATML), "<BOS>", "<EOS>"]},
            "text": PLACED, "ids": out["input_ids"], "first": [f[0] if f else -1 for f in found], "last": [f[-1] if f else -1 for f in found]}


def fixtures():
    out = []
    for number, (name, template, path) in enumerate(WAYS):
        draw = random.Random(20260600 + number)
        tokenizer = make_tokenizer(path, template + ROLES)
        special = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
        conversations = [conversation(draw, with_tools=False) for _ in range(5)]
        rows = []
        for one in conversations:
            if name == "marked":
                want = oracle(tokenizer, template, one, return_assistant_tokens_mask=True)
                rows.append([mark_end(tokenizer, want, special)])
            else:
                rows.append(by_prefixes(tokenizer, template, one))
        spelling = [spelt(draw) for _ in range(4)]
        out.append({"name": name, "template": template, "tokenizer": path, "tokens": {token: tokenizer.convert_tokens_to_ids(token)
                                                                                  for token in [*special_tokens(template + ROLES), "<BOS>", "<EOS>"]},
                    "conversations": conversations, "rows": rows, "spelt": spelling,
                    "ids": [plain_ids(tokenizer, path, template, one) for one in spelling]})
    got = run([{**case(make_tokenizer(way["tokenizer"], way["template"] + ROLES), way["template"], way["conversations"]),
                "conversations": way["conversations"] + way["spelt"]} for way in out])
    for way, answers in zip(out, got):
        same = sum(a == (b or a) if b else isinstance(a, dict) for a, b in zip(answers, way["rows"]))
        ids = sum(isinstance(a, list) and (b is None or a[-1]["ids"] == b) for a, b in zip(answers[len(way["rows"]):], way["ids"]))
        print(way["name"], way["tokenizer"], same, "of", len(way["rows"]), "and", ids, "of", len(way["ids"]))
        for a, b, one in zip(answers[len(way["rows"]):], way["ids"], way["spelt"]):
            if isinstance(a, dict) or (b and a[-1]["ids"] != b):
                print("   ", a if isinstance(a, dict) else "", json.dumps(one), "\n   ", b, "\n   ", a[-1]["ids"] if isinstance(a, list) else "")
                break
    fixture.write(FIXTURES / "conversations.json", {"ways": out, "places": [places(path) for path in TOKENIZERS]})


def main():
    logging.set_verbosity_error()
    chat_template_utils.datetime = Today
    if sys.argv[1:2] == ["compare"]:
        sys.exit(compare(int(sys.argv[2]) if len(sys.argv) > 2 else 1000) > 0)
    if sys.argv[1:] == ["fixtures"]:
        return fixtures()
    sys.exit(__doc__)


if __name__ == "__main__":
    main()
