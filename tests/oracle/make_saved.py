"""T5 models as transformers saves them, and an adapter as PEFT does, with losses in float64: tests/fixtures/{saved_t5,
saved_flan,adapter_flan}.

    python make_saved.py

saved_t5 is as version 1.0: tied, plain, in fp32. saved_flan is as 1.1: gated, with a head of its own, in bf16. transformers
5 writes of either that it is tied (tie_word_embeddings), and reads the second head back because it differs from the table.
adapter_flan is of all linear maps of saved_flan but the head, whose directory it names from its own. reference.json has
sources and targets, whose tokens are those of tests/fixtures/tokenizers/t5.json, and the mean loss of a target's token.

Made with torch 2.15.0, transformers 5.23.0 and peft 0.21.2 on the CPU.
"""
import json
import os
import shutil
import types

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration
from transformers.utils import logging

import drawn
import fixture
from make_targets import FIXTURES, how_drawn, norm

PAIRS = [("the quick fox", "lazy dog"), ("a", "the quick brown fox jumps over the lazy dog"), ("it's 1984", "x"),
         ("naïve café", "they'll return"), ("fox fox fox fox fox", "dog dog"), ("the", "the")]
TOKENIZER = os.path.join(FIXTURES, "tokenizers", "t5.json")
SIZES = dict(d_model=12, d_kv=5, d_ff=14, num_layers=2, num_decoder_layers=1, num_heads=2, vocab_size=176, dropout_rate=0.0,
             relative_attention_num_buckets=8, relative_attention_max_distance=7, decoder_start_token_id=0)
VERSIONS = {"saved_t5": dict(SIZES, feed_forward_proj="relu"),
            "saved_flan": dict(SIZES, feed_forward_proj="gated-gelu", tie_word_embeddings=False)}
ADAPTER = dict(r=2, lora_alpha=6, target_modules="all-linear", task_type="SEQ_2_SEQ_LM")


def model_of(name, tied=False):
    """As version 1.1 has it, with a head of its own, where its configuration unties it; tied: as transformers 5 makes it."""
    config = T5Config(**VERSIONS[name])
    model = T5ForConditionalGeneration(config)
    if not config.scale_decoder_outputs and not tied:
        model.lm_head.weight = torch.nn.Parameter(torch.empty_like(model.shared.weight))
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            p.copy_(torch.from_numpy(drawn.weights(f"{name}:{tensor}", p.numel(), *how_drawn(tensor))).view_as(p))
    return model


def exact(model):
    """In float64, with norms in it, too."""
    for module in model.double().eval().modules():
        if type(module).__name__ == "T5LayerNorm":
            module.forward = types.MethodType(norm, module)
    return model


def load(folder, adapter=None):
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return exact(PeftModel.from_pretrained(model, adapter, autocast_adapter_dtype=False) if adapter else model)


def loss_of(model, pairs=PAIRS):
    """The mean of all tokens of targets, each row by itself."""
    tokenizer, total, n = Tokenizer.from_file(TOKENIZER), 0.0, 0
    with torch.no_grad():
        for source, target in pairs:
            ids, labels = (torch.tensor([tokenizer.encode(text).ids]) for text in (source, target))
            total += model(input_ids=ids, labels=labels).loss.item() * labels.shape[1]
            n += labels.shape[1]
    return total / n


def fresh(name):
    folder = os.path.join(FIXTURES, name)
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def refer(folder, loss):
    print(os.path.basename(folder), loss)
    fixture.write(os.path.join(folder, "reference.json"),
                  {"loss": loss, "pairs": [{"source": source, "target": target} for source, target in PAIRS]})


def make(name, dtype):
    folder = fresh(name)
    model_of(name).to(dtype).save_pretrained(folder)
    refer(folder, loss_of(load(folder)))


def make_adapter(base):
    folder = fresh("adapter_flan")
    model = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(os.path.join(FIXTURES, base), dtype=torch.float32),
                           LoraConfig(**ADAPTER))
    with torch.no_grad():
        for t, p in model.named_parameters():
            if "lora_" in t:
                p.copy_(torch.from_numpy(drawn.weights(f"adapter_flan:{t}", p.numel(), 0.0, 0.8)).view_as(p))
    model.peft_config["default"].base_model_name_or_path = f"../{base}"
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    config["target_modules"].sort()
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    refer(folder, loss_of(load(os.path.join(FIXTURES, base), folder)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    make("saved_t5", torch.float32)
    make("saved_flan", torch.bfloat16)
    make_adapter("saved_flan")
