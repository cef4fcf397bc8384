"""Tuning on preferences: ten steps by TRL's DPOTrainer and by eps, from the same weights, on the same minibatches.

    tune_preferences.py [FAMILY...]      trains a small model of each family by both, and prints the largest distances

Each model is made here, with a byte-level tokenizer and a chat template that marks answers. Both sides train on the same
rows in the data's order, by AdamW without decay; TRL in float64, and in fp32 for a yardstick. Printed are the largest
distances of a step's loss, and of the margins and log-probabilities that TRL logs, over the steps: ours, and TRL's own fp32's.
The exit status is 1 if ours is more than 1e-5 and more than twice TRL's; of an answer's log-probability, which is a sum over
its tokens, more than 1e-5 a token.

Made with torch 2.15.0, transformers 5.23.0 and trl 1.16.0 on the CPU.
"""
import json
import random
import sys
import tempfile

import torch
from datasets import load_dataset
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (AutoModelForCausalLM, AutoTokenizer, Gemma3TextConfig, GemmaConfig, GPT2Config, LlamaConfig,
                          MistralConfig, PreTrainedTokenizerFast, Qwen2Config, Qwen3Config)
from trl import DPOConfig, DPOTrainer

from programs import BIN, eps

STEPS, ROWS, BETA, LR = 10, 8, 0.5, 1e-3
TOKENS = 8  # of an answer, at least
# Some gradients of preferences nearly cancel, since both texts have their prompt in common. With Adam's 1e-8 rounding alone
# would decide how far such a weight goes, in PyTorch as in ours.
EPSILON = 1e-5
TEMPLATE = ("{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' }}{% if m.role == 'assistant' %}{% generation %}"
            "{{ m.content + '<|im_end|>' }}{% endgeneration %}{% else %}{{ m.content + '<|im_end|>' }}{% endif %}"
            "{{ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SIZES = dict(hidden_size=48, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=128, tie_word_embeddings=False, bos_token_id=None, attention_dropout=0.0)
FAMILIES = {
    "gpt2": (GPT2Config, dict(n_embd=48, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0,
                              attn_pdrop=0.0, bos_token_id=None)),
    "llama": (LlamaConfig, SIZES), "mistral": (MistralConfig, dict(SIZES, sliding_window=None)),
    "qwen2": (Qwen2Config, SIZES), "qwen3": (Qwen3Config, dict(SIZES, head_dim=12)),
    "gemma": (GemmaConfig, dict(SIZES, head_dim=12, tie_word_embeddings=True)),
    "gemma3_text": (Gemma3TextConfig, dict(SIZES, head_dim=12, tie_word_embeddings=True, sliding_window=16)),
}


def make_model(family, folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(["cats and dogs run about the garden all day long"] * 5, trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<|end|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|end|>")
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    make_config, sizes = FAMILIES[family]
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(make_config(**sizes, vocab_size=len(fast), eos_token_id=fast.eos_token_id,
                                                         pad_token_id=fast.pad_token_id), dtype=torch.float32)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:
                p.normal_(0, 0.2)
    model.save_pretrained(folder)


def make_data(folder):
    rng, words = random.Random(2), "cats dogs are nice and small they like to run about the garden all day".split()

    def said(role):
        return [{"role": role, "content": " ".join(rng.choices(words, k=rng.randint(2, 8)))}]

    with open(f"{folder}/pairs.jsonl", "w") as pairs:
        for _ in range(STEPS * ROWS):
            print(json.dumps({"prompt": said("user"), "chosen": said("assistant"), "rejected": said("assistant")}),
                  file=pairs)


def ours(folder):
    out = f"{folder}/ours"
    eps(BIN, "train", "--model", f"{folder}/model", "--data", f"{folder}/pairs.jsonl", "--eval-data", f"{folder}/pairs.jsonl", "--batch",
        2 * ROWS, "--steps", STEPS, "--order", "sequential", "--lr", LR, "--schedule", "constant", "--warmup", 0, "--weight-decay", 0,
        "--epsilon", EPSILON, "--dpo-beta", BETA, "--device", "cpu", "--out", out)
    with open(f"{out}/metrics.jsonl") as f:
        return [json.loads(line) for line in f]


class InOrder(DPOTrainer):
    def _get_train_sampler(self, *_):
        return torch.utils.data.SequentialSampler(self.train_dataset)


def theirs(folder, dtype):
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(f"{folder}/model", dtype=dtype),
        args=DPOConfig(output_dir=f"{folder}/theirs", per_device_train_batch_size=ROWS, max_steps=STEPS,
                       learning_rate=LR, lr_scheduler_type="constant", warmup_steps=0, weight_decay=0, beta=BETA,
                       adam_epsilon=EPSILON, max_grad_norm=1e9, logging_steps=1, use_cpu=True, report_to=[],
                       save_strategy="no", bf16=False, gradient_checkpointing=False, disable_tqdm=True),
        train_dataset=load_dataset("json", data_files=f"{folder}/pairs.jsonl", split="train",
                                   cache_dir=f"{folder}/cache"),
        processing_class=AutoTokenizer.from_pretrained(f"{folder}/model"))
    trainer.train()
    return [line for line in trainer.state.log_history if "loss" in line]


def farthest(a, b, key):
    return max(abs(x[key] - y[key]) for x, y in zip(a, b))


def compare(family):
    passed = True
    with tempfile.TemporaryDirectory() as folder:
        make_model(family, f"{folder}/model")
        make_data(folder)
        own, exact, single = ours(folder), theirs(folder, torch.float64), theirs(folder, torch.float32)
    for key in ("loss", "rewards/margins", "logps/chosen"):
        mine, pytorch = farthest(own, exact, key), farthest(single, exact, key)
        print(f"{family:12} {key:16} {mine:.1e}, TRL in fp32 {pytorch:.1e}", flush=True)
        passed &= mine <= max(1e-5 * (TOKENS if key == "logps/chosen" else 1), 2 * pytorch)
    return passed and len(own) == len(exact) == len(single) == STEPS


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(not all([compare(family) for family in sys.argv[1:] or FAMILIES]))
