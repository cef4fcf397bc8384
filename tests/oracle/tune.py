"""Tuning on conversations: ten steps by TRL's SFTTrainer and by eps, from the same weights, on the same minibatches.

    tune.py [FAMILY...]       trains a small model of each family by both, and prints the losses' largest distance

TRL has assistant_only_loss and its training template; eps has the same template, so that it trains by the mark. Minibatches
are in the data's order, without clipping, at a constant rate, in fp32 on the CPU. Made with trl 1.16.0, transformers 5.23.0 and
torch 2.15.0.
"""

import json
import pathlib
import random
import sys
import tempfile

import torch
import transformers
from datasets import Dataset
from transformers.utils import logging
from trl import SFTConfig, SFTTrainer

import conversations
from programs import BIN, eps

STEPS, BATCH, RATE = 10, 4, 1e-3
SMALL = dict(vocab_size=700, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
             max_position_embeddings=512)
FAMILIES = {  # the model, its template, its tokenizer
    "gpt2": (lambda: transformers.GPT2Config(vocab_size=700, n_embd=32, n_layer=2, n_head=2, n_positions=512, attn_pdrop=0,
                                             embd_pdrop=0, resid_pdrop=0), "qwen2_5", "bpe/tokenizer"),
    "llama": (lambda: transformers.LlamaConfig(**SMALL), "llama3", "tokenizers/llama3"),
    "mistral": (lambda: transformers.MistralConfig(**SMALL, sliding_window=None), "lfm2", "tokenizers/mistral"),
    "qwen2": (lambda: transformers.Qwen2Config(**SMALL), "qwen2_5", "tokenizers/qwen"),
    "qwen3": (lambda: transformers.Qwen3Config(**SMALL, head_dim=16), "qwen3", "tokenizers/qwen"),
    "gemma": (lambda: transformers.GemmaConfig(**SMALL, head_dim=16), "gemma", "tokenizers/gemma"),
    "gemma3": (lambda: transformers.Gemma3TextConfig(**SMALL, head_dim=16), "gemma3", "tokenizers/gemma"),
}


class InOrder(SFTTrainer):
    def _get_train_sampler(self, *_, **__):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def rows(draw):
    words = ["the", "Answer", "is", "42", "naïve", "Größe", "人工智能", "x < y"]
    for _ in range(STEPS * BATCH):
        messages = []
        for _ in range(draw.randint(1, 3)):
            messages += [{"role": role, "content": " ".join(draw.choices(words, k=draw.randint(1, 8)))} for role in ("user", "assistant")]
        yield {"messages": messages}


def by_trl(folder, tokenizer, data):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    config = SFTConfig(output_dir=str(folder / "trl"), per_device_train_batch_size=BATCH, max_steps=STEPS, learning_rate=RATE,
                       lr_scheduler_type="constant", warmup_steps=0, weight_decay=0.01, max_grad_norm=0.0, logging_steps=1,
                       assistant_only_loss=True, max_length=512, use_cpu=True, report_to=[], save_strategy="no", bf16=False,
                       gradient_checkpointing=False, disable_tqdm=True)
    trainer = InOrder(model=model, args=config, train_dataset=Dataset.from_list(data), processing_class=tokenizer)
    trainer.train()
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def by_eps(folder):
    eps(BIN, "train", "--model", folder, "--data", folder / "data.jsonl", "--eval-data", folder / "data.jsonl", "--order", "sequential",
        "--batch", BATCH, "--steps", STEPS, "--lr", RATE, "--schedule", "constant", "--warmup", 0, "--seq", 512, "--device", "cpu",
        "--device-mem", "256MiB", "--out", folder / "eps")
    return [json.loads(line)["loss"] for line in (folder / "eps/metrics.jsonl").read_text().splitlines()]


def compare(name):
    make, template, path = FAMILIES[name]
    source = (conversations.TEMPLATES / f"{template}_training.jinja").read_text()
    tokenizer = conversations.make_tokenizer(path, source)
    tokenizer.chat_template, tokenizer.pad_token = source, "<EOS>"
    data = list(rows(random.Random(1)))
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as work:
        folder = pathlib.Path(work)
        transformers.AutoModelForCausalLM.from_config(make()).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "data.jsonl").write_text("".join(json.dumps(one) + "\n" for one in data))
        theirs, ours = by_trl(folder, tokenizer, data), by_eps(folder)
    far = max(abs(a - b) / b for a, b in zip(ours, theirs))
    print(f"{name:8} {len(ours)} steps, loss {theirs[0]:.6f} to {theirs[-1]:.6f}, largest relative distance {far:.1e}", flush=True)
    return len(ours) == len(theirs) == STEPS and far < 1e-5  # DESIGN.md, section 4


if __name__ == "__main__":
    logging.set_verbosity_error()
    passed = [compare(name) for name in sys.argv[1:] or FAMILIES]
    sys.exit(not all(passed))
