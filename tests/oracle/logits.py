"""Model directories as transformers writes them, with their logits in float64:
tests/fixtures/{tied,untied,bf16,fp16,bare,bert*,gemma*,llama*,mistral*,qwen*,roberta*}.

    python logits.py [NAME]...

    tied     one file, no lm_head
    untied   lm_head, n_inner, gelu in its erf form, scaled by layer, in several files with an index
    bf16     weights in bfloat16
    fp16     a Llama, weights in float16, in several files with an index
    bare     GPT2Model alone: names without "transformer.", no head of its own
    bert*    every token sees all others; relu, and three types of tokens; as published ones are, with old names of norms,
             layers for another task, and copies of what is tied
    gemma*   one head of keys and values, wide heads; not tied, with biases
    llama*   scaled frequencies as in Llama 3, wide heads and biases; linear scaling and one head of keys and values
    mistral* without a window; with one of 5 keys
    qwen2*   tied; not tied, a head of keys and values for each query's
    qwen3*   tied; not tied, wide heads and biases
    roberta* positions begin at 2; at 4, and gelu_new but for the head's gelu

Beside each: tokens.json with ids (rows, seq), and logits.f64, (rows, seq, vocabulary). Beside mistral_window also
greedy.json, a prompt and its likeliest continuation.
Made with torch 2.15.0 and transformers 5.23.0.
"""
import json
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, BertForPreTraining, Gemma3ForCausalLM, Gemma3TextConfig, GemmaConfig, GemmaForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3Config,
                          Qwen3ForCausalLM, RobertaConfig, RobertaForMaskedLM)

import drawn

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
ROWS, SEQ = 2, 13
GPT2 = dict(n_embd=24, n_head=3, n_layer=2, n_positions=16, vocab_size=61, initializer_range=0.3, bos_token_id=0,
            eos_token_id=0)
DECODER = dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=28,
               max_position_embeddings=16, vocab_size=61, initializer_range=0.3, bos_token_id=0, eos_token_id=0)
ENCODER = {k: v for k, v in DECODER.items() if "token_id" not in k and k != "num_key_value_heads"}
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=0.1, high_freq_factor=1.0,
              original_max_position_embeddings=8)
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=3.0)
MODELS = {
    "tied": (GPT2LMHeadModel, GPT2Config(**GPT2)),
    "untied": (GPT2LMHeadModel, GPT2Config(**GPT2 | dict(
        tie_word_embeddings=False, n_inner=40, n_layer=3, activation_function="gelu",
        scale_attn_by_inverse_layer_idx=True))),
    "bf16": (GPT2LMHeadModel, GPT2Config(**GPT2 | dict(n_head=2))),
    "fp16": (LlamaForCausalLM, LlamaConfig(**DECODER)),
    "bare": (GPT2LMHeadModel, GPT2Config(**GPT2 | dict(n_head=4))),
    "bert": (BertForMaskedLM, BertConfig(**ENCODER)),
    "bert_relu": (BertForMaskedLM, BertConfig(**ENCODER | dict(
        hidden_size=21, num_attention_heads=3, num_hidden_layers=3, hidden_act="relu", type_vocab_size=3,
        max_position_embeddings=SEQ, layer_norm_eps=1e-3))),
    "bert_old": (BertForPreTraining, BertConfig(**ENCODER | dict(num_attention_heads=2, num_hidden_layers=1))),
    "gemma": (GemmaForCausalLM, GemmaConfig(**DECODER | dict(num_key_value_heads=1, head_dim=10))),
    "gemma_untied": (GemmaForCausalLM, GemmaConfig(**DECODER | dict(
        num_key_value_heads=4, head_dim=6, tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-3))),
    "llama3": (LlamaForCausalLM, LlamaConfig(**DECODER | dict(
        head_dim=10, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3))),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(**DECODER | dict(
        num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-3, rope_parameters=LINEAR))),
    "mistral": (MistralForCausalLM, MistralConfig(**DECODER | dict(sliding_window=None))),
    "mistral_window": (MistralForCausalLM, MistralConfig(**DECODER | dict(
        sliding_window=5, max_position_embeddings=64))),
    "qwen2_tied": (Qwen2ForCausalLM, Qwen2Config(**DECODER | dict(tie_word_embeddings=True))),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**DECODER | dict(
        num_key_value_heads=4, hidden_act="gelu_pytorch_tanh"))),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**{k: v for k, v in DECODER.items()} | dict(
        head_dim=10, num_key_value_heads=1, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=7,
        final_logit_softcapping=3.0, attention_bias=True, tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters=dict(sliding_attention=dict(rope_type="default", rope_theta=100.0), full_attention=LINEAR)))),
    "gemma3_tied": (Gemma3ForCausalLM, Gemma3TextConfig(**DECODER | dict(
        head_dim=6, num_hidden_layers=6, sliding_window=4, query_pre_attn_scalar=6))),
    "qwen3_tied": (Qwen3ForCausalLM, Qwen3Config(**DECODER | dict(
        head_dim=6, tie_word_embeddings=True, rms_norm_eps=1e-2))),
    "roberta": (RobertaForMaskedLM, RobertaConfig(**ENCODER | dict(type_vocab_size=1))),
    "roberta_pad": (RobertaForMaskedLM, RobertaConfig(**ENCODER | dict(
        num_attention_heads=1, hidden_act="gelu_new", max_position_embeddings=SEQ + 4, pad_token_id=3,
        layer_norm_eps=1e-5))),
    "qwen3": (Qwen3ForCausalLM, Qwen3Config(**DECODER | dict(
        head_dim=10, num_key_value_heads=1, attention_bias=True))),
}


GREEDY, PROMPT, N_TOKENS = ("mistral_window",), [3, 41, 59], 50


def continue_greedily(folder, kind):
    """The likeliest token after each, by recomputing the whole row: float64 and fp32 agree, far from ties."""
    ids = {torch.float64: list(PROMPT), torch.float32: list(PROMPT)}
    margin = float("inf")
    for dtype, row in ids.items():
        model = kind.from_pretrained(folder, attn_implementation="eager", dtype=dtype).eval()
        for _ in range(N_TOKENS):
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([row]), use_cache=False).logits[0, -1]
            top = logits.double().topk(2).values
            margin = min(margin, float(top[0] - top[1]))
            row.append(int(logits.argmax()))
    assert ids[torch.float64] == ids[torch.float32] and margin > 1e-3, margin
    with open(os.path.join(folder, "greedy.json"), "w") as f:
        json.dump({"prompt": PROMPT, "ids": ids[torch.float64][len(PROMPT):]}, f)
        f.write("\n")
    print("greedy", len(set(ids[torch.float64])), "different tokens, smallest margin", margin)


def save_as_published(model, folder):
    """As the files of BERT are: norms have gamma and beta, copies of tied tensors are there, and layers of another head."""
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    save_file({old(name): p.clone() for name, p in model.state_dict().items()},
              os.path.join(folder, "model.safetensors"), {"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump(config | dict(architectures=["BertForMaskedLM"]), f, indent=2)
        f.write("\n")


def make(name):
    torch.manual_seed(sum(name.encode()))
    kind, config = MODELS[name]
    model = kind(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)    # so that no bias is zero and no norm is one
    if name in ("bf16", "fp16"):
        model = model.to({"bf16": torch.bfloat16, "fp16": torch.float16}[name])
    folder = os.path.join(FIXTURES, name)
    shutil.rmtree(folder, ignore_errors=True)
    if name == "untied":
        model.save_pretrained(folder, max_shard_size="40KB")
    elif name == "fp16":
        model.save_pretrained(folder, max_shard_size="10KB")
    elif name == "bare":
        model.transformer.save_pretrained(folder)
    else:
        model.save_pretrained(folder)
    if name == "bert_old":
        save_as_published(model, folder)

    # What is on disk is what counts: read it back before computing.
    again = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float64).eval()
    for (_, p), (_, q) in zip(model.named_parameters(), again.named_parameters()):
        assert torch.equal(p.double(), q)
    ids, _ = drawn.minibatch(name, 0, ROWS, SEQ, config.vocab_size, 0)
    if name.startswith("roberta"):
        ids[ids == config.pad_token_id] = 5    # padding has no position
    with torch.no_grad():
        logits = again(input_ids=torch.from_numpy(ids))
        logits = logits.prediction_logits if name == "bert_old" else logits.logits
    assert logits.dtype == torch.float64
    with open(os.path.join(folder, "tokens.json"), "w") as f:
        json.dump({"rows": ROWS, "seq": SEQ, "vocabulary": config.vocab_size, "ids": ids.tolist()}, f)
        f.write("\n")
    logits.numpy().astype("<f8").tofile(os.path.join(folder, "logits.f64"))
    if name in GREEDY:
        continue_greedily(folder, kind)
    print(name, sorted(os.listdir(folder)), float(logits.abs().max()))


if __name__ == "__main__":
    for which in sys.argv[1:] or MODELS:
        make(which)
