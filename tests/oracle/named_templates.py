"""Several chat templates of a model: which one transformers takes for a conversation, and which one eps does.

    named_templates.py [N]     compares the tokens of N (300) drawn conversations, with tools and without, for models whose
                               templates are a list, or the files that transformers saves; prints how many are equal
"""

import json
import pathlib
import random
import sys
import tempfile

import conversations
from programs import BIN, eps

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
CONFIG = {"model_type": "gpt2", "vocab_size": 65536, "n_positions": 1024, "n_embd": 16, "n_layer": 1, "n_head": 1}


def template(mark):
    return ("{% for m in messages %}<|im_start|>{{ m.role }} " + mark + "\n{{ m.content }}<|im_end|>{% endfor %}{{ tools | tojson if tools is not none }}"
            "{% if add_generation_prompt %}<|im_start|>assistant " + mark + "\n{% endif %}")


def compare(n):
    draw, wrong, equal = random.Random(20260920), 0, 0
    for names in (["default", "tool_use"], ["default", "rag"], ["default", "tool_use", "rag"]):
        for as_files in (True, False):
            tokenizer = conversations.make_tokenizer("bpe/tokenizer", template(""))
            tokenizer.chat_template = {name: template(name) for name in names}
            rows = [conversations.conversation(draw, with_tools=False) for _ in range(n // 6)]
            for row in rows:
                if draw.random() < 0.5:
                    row["tools"] = draw.choice([[], [{"name": "f", "most": draw.choice([19.99, 1e-7, 10 ** 20])}]])
            with tempfile.TemporaryDirectory() as folder:
                tokenizer.save_pretrained(folder, save_jinja_files=as_files)
                pathlib.Path(folder, "config.json").write_text(json.dumps(CONFIG))
                data = pathlib.Path(folder, "data.jsonl")
                data.write_text("".join(json.dumps(row) + "\n" for row in rows))
                for chosen in (None, *names):
                    got = json.loads(eps(BIN, "data", data, "--model", folder, "--json", "--limit", 100000, "--train-on", "all",
                                         *(["--chat-template", chosen] if chosen else [])))["rows"]
                    for row, ours in zip(rows, got, strict=True):
                        theirs = tokenizer.apply_chat_template(row["messages"], tools=row.get("tools"), chat_template=chosen, tokenize=True, return_dict=True)
                        same = ours["ids"] == theirs["input_ids"]
                        equal, wrong = equal + same, wrong + (not same)
                        if not same and wrong < 4:
                            print("   ", names, as_files, chosen, json.dumps(row)[:200])
    print(f"{equal} texts equal, {wrong} differ")
    return wrong


if __name__ == "__main__":
    sys.exit(compare(int(sys.argv[1]) if len(sys.argv) > 1 else 300) > 0)
