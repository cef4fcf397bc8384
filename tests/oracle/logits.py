"""Model directories as transformers writes them, with their logits in float64:
tests/fixtures/{tied,untied,bf16,fp16,bare,bert*,gemma*,llama*,mistral*,qwen*,roberta*,wrapped*}, and those of FAMILIES.

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
    qwen2*   tied; not tied, a head of keys and values for each query's, a window in the second block
    qwen3*   tied; not tied, wide heads and biases, a window in the second block
    roberta* positions begin at 2; at 4, and gelu_new but for the head's gelu
    FAMILIES one of each further family, with what it has of its own
    wrapped* text models of others, which see images, too: a Gemma 3; a Qwen 2 of Llava

Beside each: tokens.json with ids (rows, seq), and logits.f64, (rows, seq, vocabulary). Beside those of GREEDY, of
which some have 16 positions and some more than are used, also greedy.json, a prompt and its likeliest continuation.
Made with torch 2.15.0 and transformers 5.23.0, those of FAMILIES with 5.24.0.
"""
import json
import math
import os
import shutil
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMaskedLM, BertConfig, BertForMaskedLM, BertForPreTraining, Gemma3Config, Gemma3ForCausalLM,
                          Gemma3ForConditionalGeneration, Gemma3TextConfig, GemmaConfig, GemmaForCausalLM, GPT2Config,
                          GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM, LlavaConfig, LlavaForConditionalGeneration,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3_5MoeConfig,
                          Qwen3_5MoeForConditionalGeneration, Qwen3_5MoeTextConfig, Qwen3Config, Qwen3ForCausalLM, RobertaConfig, RobertaForMaskedLM)

import drawn
import families
import family_draws
import fixture
import float64
import hybrid
import mixtures

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
ROWS, SEQ = 2, 13
GPT2 = dict(n_embd=24, n_head=3, n_layer=2, n_positions=16, vocab_size=61, initializer_range=0.3, bos_token_id=0,
            eos_token_id=0)
DECODER = dict(hidden_size=24, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2, intermediate_size=28,
               max_position_embeddings=16, vocab_size=61, initializer_range=0.3, bos_token_id=0, eos_token_id=None)
ENCODER = {k: v for k, v in DECODER.items() if "token_id" not in k and k != "num_key_value_heads"}
LLAMA3 = dict(rope_type="llama3", rope_theta=100.0, factor=4.0, low_freq_factor=0.1, high_freq_factor=1.0,
              original_max_position_embeddings=8)
SLIDING = dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)
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
    "gemma": (GemmaForCausalLM, GemmaConfig(**DECODER | dict(
        num_key_value_heads=1, head_dim=10, max_position_embeddings=256))),
    "gemma_untied": (GemmaForCausalLM, GemmaConfig(**DECODER | dict(
        num_key_value_heads=4, head_dim=6, tie_word_embeddings=False, attention_bias=True, rms_norm_eps=1e-3))),
    "llama3": (LlamaForCausalLM, LlamaConfig(**DECODER | dict(
        head_dim=10, attention_bias=True, mlp_bias=True, rope_parameters=LLAMA3, max_position_embeddings=256))),
    "llama_linear": (LlamaForCausalLM, LlamaConfig(**DECODER | dict(
        num_key_value_heads=1, tie_word_embeddings=True, rms_norm_eps=1e-3, rope_parameters=LINEAR))),
    "mistral": (MistralForCausalLM, MistralConfig(**DECODER | dict(sliding_window=None))),
    "mistral_window": (MistralForCausalLM, MistralConfig(**DECODER | dict(
        sliding_window=5, max_position_embeddings=256))),
    "qwen2_tied": (Qwen2ForCausalLM, Qwen2Config(**DECODER | dict(tie_word_embeddings=True))),
    "qwen2": (Qwen2ForCausalLM, Qwen2Config(**DECODER | dict(
        num_key_value_heads=4, hidden_act="gelu_pytorch_tanh", max_position_embeddings=256, **SLIDING))),
    "gemma3": (Gemma3ForCausalLM, Gemma3TextConfig(**{k: v for k, v in DECODER.items()} | dict(
        head_dim=10, num_key_value_heads=1, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=7,
        final_logit_softcapping=3.0, attention_bias=True, tie_word_embeddings=False, max_position_embeddings=256,
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
        head_dim=10, num_key_value_heads=1, attention_bias=True, max_position_embeddings=256, **SLIDING))),
}
ROTATED = dict(rope_type="default", rope_theta=100.0)
YARN = dict(rope_type="yarn", rope_theta=100.0, factor=4.0, original_max_position_embeddings=64)
FAMILIES = {  # of which what they have of their own is on; positions beyond SEQ, so that a greedy text is one context
    "apertus": dict(pad_token_id=None, attention_bias=True, rope_parameters=LLAMA3),
    "arcee": dict(mlp_bias=True, rope_parameters=YARN),
    "bloom": dict(num_attention_heads=6),
    "cohere": dict(pad_token_id=None, logit_scale=0.5, use_qk_norm=True),
    "cohere2": dict(pad_token_id=None, logit_scale=0.5, num_hidden_layers=4, sliding_window=5),
    "distilbert": dict(dim=24, hidden_dim=28, n_heads=4, n_layers=2),
    "electra": dict(embedding_size=12),
    "ernie4_5": dict(head_dim=10, use_bias=True),
    "eurobert": dict(pad_token_id=None, head_dim=10),
    "gemma2": dict(head_dim=10, sliding_window=5, attn_logit_softcapping=3.0, final_logit_softcapping=20.0, rms_norm_eps=1e-2,
                   tie_word_embeddings=False),
    "glm": dict(pad_token_id=None, head_dim=12),
    "glm4": dict(pad_token_id=None, head_dim=12),
    "gpt_neox": dict(rope_parameters=dict(ROTATED, partial_rotary_factor=0.7)),
    "hunyuan_v1_dense": dict(head_dim=10, attention_bias=True),
    "ministral3": dict(pad_token_id=None, head_dim=10, rope_parameters=dict(
        YARN, llama_4_scaling_beta=0.3, mscale=0.8, mscale_all_dim=0.5)),
    "modernbert": dict(pad_token_id=None, num_hidden_layers=3, local_attention=6),
    "muse_glimmer_text": dict(head_dim=10, attention_bias=True, num_hidden_layers=5, sliding_window=5, post_norm_eps=1e-2,
                              output_multiplier=0.5, final_logit_softcapping=3.0, qk_scale_factor=2.0),
    "nanochat": dict(pad_token_id=None, attention_bias=True, final_logit_softcapping=3.0, rms_norm_eps=1e-2),
    "olmo": dict(attention_bias=True),
    "opt": dict(ffn_dim=28, pad_token_id=1),
    "phi": dict(qk_layernorm=True, rope_parameters=dict(ROTATED, partial_rotary_factor=0.67)),
    "xlm-roberta": dict(pad_token_id=1),
    "exaone4": dict(num_hidden_layers=4, sliding_window=5),
    "granite": dict(attention_multiplier=0.3, residual_multiplier=0.4, embedding_multiplier=3.0, logits_scaling=2.5,
                    attention_bias=True),
    "lfm2": dict(num_hidden_layers=3, conv_bias=True, conv_L_cache=4, block_multiple_of=8,
                 layer_types=["conv", "full_attention", "conv"]),
    "lfm3": dict(pad_token_id=None, num_hidden_layers=3, head_dim=12, attention_bias=True, conv_bias=True, sliding_window=5,
                 layer_types=["conv", "full_attention", "sliding_attention"], rope_parameters=dict(
                     full_attention=dict(rope_type="proportional", rope_theta=100.0, partial_rotary_factor=0.5),
                     sliding_attention=dict(ROTATED, rope_theta=50.0))),
    "qwen3_5_text": dict(num_hidden_layers=4, head_dim=12, attention_bias=True, linear_num_key_heads=2, linear_num_value_heads=4,
                         linear_key_head_dim=8, linear_value_head_dim=10, full_attention_interval=2,
                         rope_parameters=dict(ROTATED, partial_rotary_factor=0.5, mrope_section=[1, 1, 1])),
    "qwen3_5_moe_text": dict(num_hidden_layers=4, head_dim=12, attention_bias=True, linear_num_key_heads=2, linear_num_value_heads=4,
                             linear_key_head_dim=8, linear_value_head_dim=10, full_attention_interval=2, num_experts=8,
                             num_experts_per_tok=3, moe_intermediate_size=20, shared_expert_intermediate_size=28,
                             rope_parameters=dict(ROTATED, partial_rotary_factor=0.5, mrope_section=[1, 1, 1])),
    "mixtral": dict(num_local_experts=5, num_experts_per_tok=2, head_dim=10, sliding_window=5),
    "olmoe": dict(num_experts=8, num_experts_per_tok=3, pad_token_id=None, attention_bias=True),
    "qwen2_moe": dict(num_hidden_layers=3, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, mlp_only_layers=[1],
                      shared_expert_intermediate_size=28, use_sliding_window=True, sliding_window=5, max_window_layers=2),
    "qwen3_moe": dict(num_hidden_layers=3, num_experts=16, num_experts_per_tok=4, moe_intermediate_size=20, head_dim=10,
                      norm_topk_prob=True, mlp_only_layers=[1]),
    "lfm2_moe": dict(num_hidden_layers=4, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, num_dense_layers=1,
                     routed_scaling_factor=1.5, conv_bias=True, layer_types=["conv", "full_attention", "conv", "full_attention"]),
    "glm4_moe": dict(num_hidden_layers=3, n_routed_experts=12, n_group=4, topk_group=2, num_experts_per_tok=3,
                     moe_intermediate_size=12, n_shared_experts=2, routed_scaling_factor=2.5, use_qk_norm=True,
                     attention_bias=True, head_dim=12, rope_parameters=dict(ROTATED, partial_rotary_factor=0.5)),
    "minimax_m2": dict(num_local_experts=6, num_experts_per_tok=2, head_dim=10,
                       rope_parameters=dict(ROTATED, partial_rotary_factor=0.4)),
    "olmo_hybrid": dict(pad_token_id=None, num_hidden_layers=4, attention_bias=True, linear_num_key_heads=2,
                        linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=10, rope_parameters=ROTATED,
                        layer_types=["linear_attention", "full_attention", "linear_attention", "full_attention"]),
    "granite_swa": dict(num_hidden_layers=4, sliding_window=5, attention_multiplier=0.3, embedding_multiplier=3.0,
                        logits_scaling=2.5, layer_rope_theta=[100.0, 50.0, 0, 50.0]),
    "olmo2": dict(rms_norm_eps=1e-2),
    "olmo3": dict(num_hidden_layers=4, sliding_window=5, rope_parameters=dict(
        sliding_attention=ROTATED, full_attention=dict(LINEAR, rope_theta=100.0))),
    "phi3": dict(pad_token_id=None, sliding_window=6, rope_parameters=dict(ROTATED, partial_rotary_factor=0.67)),
    "seed_oss": dict(head_dim=10, attention_out_bias=True),
    "smollm3": dict(pad_token_id=None, num_hidden_layers=4, no_rope_layer_interval=2, use_sliding_window=True, sliding_window=5),
    "stablelm": dict(use_qkv_bias=True, use_parallel_residual=True, rope_parameters=dict(ROTATED, partial_rotary_factor=0.34)),
    "starcoder2": dict(sliding_window=5),
}
GREEDY = ("gemma", "gemma_untied", "gemma3", "llama3", "llama_linear", "mistral", "mistral_window", "qwen2", "qwen2_tied",
          "qwen3", "qwen3_tied")
SEEDS = {"mistral_window": 1, "granite": 1, "phi": 1, "gemma2": 1}  # whose greedy text is no loop
N_PROMPTS, N_TOKENS, LEAST_DIFFERENT, LEAST_MARGIN = 48, 200, 14, 1e-3


def continue_greedily(model, prompts, cached):
    """The likeliest tokens after each prompt, and the least that one was ahead by. Where a context exceeds the model's
    positions, it keeps the last half of them, as eps generate does."""
    rows, positions, margins = prompts.clone(), getattr(model.config, "max_position_embeddings", math.inf), []
    context, cache = rows, None
    for _ in range(N_TOKENS):
        with torch.no_grad():
            out = model(input_ids=context if cache is None else context[:, -1:], past_key_values=cache, use_cache=cached)
        logits, cache = out.logits[:, -1].double(), out.past_key_values if cached else None
        top = logits.topk(2)
        margins.append(top.values[:, 0] - top.values[:, 1])
        rows, context = (torch.cat((x, top.indices[:, :1]), 1) for x in (rows, context))
        if context.shape[1] > positions:
            context, cache = context[:, -(positions // 2):], None
    return rows[:, prompts.shape[1]:], torch.stack(margins).amin(0)


def make_greedy(name, folder, kind, exact):
    """Of some prompts the one whose continuation varies most, also in its last quarter: fp32 without a cache and float64
    with one agree on it, and nowhere in it are two tokens near a tie."""
    r = torch.Generator().manual_seed(sum(name.encode()))
    prompts = torch.randint(0, exact.config.vocab_size, (N_PROMPTS, 7), generator=r)
    ids, margins = continue_greedily(exact, prompts, True)
    different = [min(len(set(row.tolist())), 2 * len(set(row[-N_TOKENS // 4:].tolist()))) for row in ids]
    best = max((k for k in range(N_PROMPTS) if margins[k] > LEAST_MARGIN), key=lambda k: different[k])
    if name not in FAMILIES:
        single = kind.from_pretrained(folder, attn_implementation="eager", dtype=torch.float32).eval()
        assert torch.equal(continue_greedily(single, prompts[best:best + 1], False)[0][0], ids[best])
    print(f"{name}: greedy, {len(set(ids[best].tolist()))} different tokens, {len(set(ids[best][-50:].tolist()))} in the "
          f"last 50, smallest margin {margins[best]:.1e}")
    assert different[best] >= LEAST_DIFFERENT, different[best]
    fixture.write(os.path.join(folder, "greedy.json"),
                  {"prompt": prompts[best].tolist(), "ids": ids[best].tolist()})


def save_as_published(model, folder):
    """As the files of BERT are: norms have gamma and beta, copies of tied tensors are there, and layers of another head.
    Where the two biases of the logits differ, transformers computes with the decoder's."""
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")
    tensors = {old(name): p.clone() for name, p in model.state_dict().items()}
    tensors["cls.predictions.bias"] -= 1 + torch.arange(len(tensors["cls.predictions.bias"])) / 8
    save_file(tensors, os.path.join(folder, "model.safetensors"), {"format": "pt"})
    path = os.path.join(folder, "config.json")
    with open(path) as f:
        config = json.load(f)
    with open(path, "w") as f:
        json.dump(config | dict(architectures=["BertForMaskedLM"]), f, indent=2)
        f.write("\n")


def make(name):
    torch.manual_seed(SEEDS.get(name, sum(name.encode())))
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
    again = kind.from_pretrained(folder, attn_implementation="eager" if config.model_type == "gpt2" else "sdpa",
                                 dtype=torch.float64).eval()
    float64.widen(again)
    read = dict(again.named_parameters())
    for t, p in model.named_parameters():
        assert torch.equal(p.double(), read["cls.predictions.decoder.bias" if t == "cls.predictions.bias" and
                                            name == "bert_old" else t])
    ids, _ = drawn.minibatch(name, 0, ROWS, SEQ, config.vocab_size, 0)
    if name.startswith("roberta"):
        ids[ids == config.pad_token_id] = 5    # padding has no position
    with torch.no_grad():
        logits = again(input_ids=torch.from_numpy(ids))
        logits = logits.prediction_logits if name == "bert_old" else logits.logits
    assert logits.dtype == torch.float64
    fixture.write(os.path.join(folder, "tokens.json"),
                  {"rows": ROWS, "seq": SEQ, "vocabulary": config.vocab_size, "ids": ids.tolist()})
    logits.numpy().astype("<f8").tofile(os.path.join(folder, "logits.f64"))
    if name in GREEDY:
        make_greedy(name, folder, kind, again)
    print(name, sorted(os.listdir(folder)), float(logits.abs().max()))


def drawn_of(model):
    return dict(model.named_parameters()) | dict(families.biases_of(model))


def make_family(name):
    """Of FAMILIES: as transformers saves it, in float64 throughout."""
    torch.manual_seed(SEEDS.get(name, sum(name.encode())))
    known = AutoConfig.for_model(name)
    sizes = {k: v for k, v in DECODER.items() if k != "max_position_embeddings" and hasattr(known, k)}
    is_encoder = name in family_draws.ENCODERS
    kind = AutoModelForMaskedLM if is_encoder else AutoModelForCausalLM
    positions = dict(max_position_embeddings=256) if hasattr(known, "max_position_embeddings") else {}
    config = AutoConfig.for_model(name, **sizes | positions | FAMILIES[name])
    model, folder = kind.from_config(config), os.path.join(FIXTURES, name)
    with torch.no_grad():
        for p in drawn_of(model).values():
            p.add_(torch.randn_like(p) * 0.1)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    if name == "olmo_hybrid":
        hybrid.cut(folder)
    ids, _ = drawn.minibatch(name, 0, ROWS, SEQ, config.vocab_size, 0)
    if is_encoder:
        ids[ids == config.pad_token_id] = 5    # padding has no position
    with families.throughout():
        experts = {"experts_implementation": "eager"} if name in family_draws.MIXTURES else {}
        again = kind.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager", dtype=torch.float64,
                                 **experts).eval()
        with torch.no_grad():
            for t, p in drawn_of(again).items():
                p.copy_(drawn_of(model)[t])
            logits = again(input_ids=torch.from_numpy(ids)).logits
        assert logits.dtype == torch.float64
        fixture.write(os.path.join(folder, "tokens.json"),
                      {"rows": ROWS, "seq": SEQ, "vocabulary": config.vocab_size, "ids": ids.tolist()})
        logits.numpy().astype("<f8").tofile(os.path.join(folder, "logits.f64"))
        if not is_encoder:
            make_greedy(name, folder, kind, again)
    print(name, sorted(os.listdir(folder)), float(logits.abs().max()))


VISION = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
WRAPPED = {  # Gemma 3's names are the published ones; those of the other are as transformers has them
    "wrapped_gemma3": (Gemma3ForConditionalGeneration, lambda: Gemma3Config(
        text_config=MODELS["gemma3_tied"][1].to_dict(), mm_tokens_per_image=4,
        vision_config=dict(VISION, model_type="siglip_vision_model", vision_use_head=False))),
    "wrapped_qwen2": (LlavaForConditionalGeneration, lambda: LlavaConfig(
        text_config=MODELS["qwen2"][1].to_dict(), vision_config=dict(VISION, model_type="clip_vision_model"))),
    "wrapped_qwen3_5_moe": (Qwen3_5MoeForConditionalGeneration, lambda: Qwen3_5MoeConfig(
        text_config=Qwen3_5MoeTextConfig(**{k: v for k, v in DECODER.items() if k != "intermediate_size"} | dict(
            hidden_size=16, num_experts=5, num_experts_per_tok=2, moe_intermediate_size=6, shared_expert_intermediate_size=7, head_dim=8,
            full_attention_interval=2, linear_num_key_heads=1, linear_num_value_heads=2, linear_key_head_dim=4,
            linear_value_head_dim=5, rope_parameters=dict(ROTATED, partial_rotary_factor=0.5, mrope_section=[1, 1, 0]))).to_dict(),
        vision_config=dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, out_hidden_size=16, patch_size=2,
                           num_position_embeddings=4))),
}


def throughout(folder, model, ids):
    """Logits of a mixture with the delta rule, in float64 throughout."""
    with families.throughout(), torch.no_grad():
        again = AutoModelForImageTextToText.from_config(AutoConfig.from_pretrained(folder), attn_implementation="eager",
                                                        dtype=torch.float64, experts_implementation="eager").eval()
        for t, p in again.named_parameters():
            p.copy_(dict(model.named_parameters())[t])
        return again(input_ids=torch.from_numpy(ids)).logits


def make_wrapped(name):
    """A text model beside an encoder of images, which text alone does not reach."""
    torch.manual_seed(sum(name.encode()))
    kind, config = WRAPPED[name][0], WRAPPED[name][1]()
    model, folder = kind(config), os.path.join(FIXTURES, name)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    again = kind.from_pretrained(folder, attn_implementation="sdpa", dtype=torch.float64).eval()
    if name == "wrapped_qwen2":
        save_file({t: p.clone() for t, p in model.state_dict().items()}, os.path.join(folder, "model.safetensors"),
                  {"format": "pt"})
    float64.widen(again.model.language_model)
    ids, _ = drawn.minibatch(name, 0, ROWS, SEQ, config.text_config.vocab_size, 0)
    if name == "wrapped_qwen3_5_moe":
        mixtures.join(folder)
    logits = throughout(folder, model, ids) if name == "wrapped_qwen3_5_moe" else None
    with torch.no_grad():
        logits = again(input_ids=torch.from_numpy(ids)).logits if logits is None else logits
    assert logits.dtype == torch.float64
    fixture.write(os.path.join(folder, "tokens.json"),
                  {"rows": ROWS, "seq": SEQ, "vocabulary": config.text_config.vocab_size, "ids": ids.tolist()})
    logits.numpy().astype("<f8").tofile(os.path.join(folder, "logits.f64"))
    print(name, sorted(os.listdir(folder)), float(logits.abs().max()))


if __name__ == "__main__":
    for which in sys.argv[1:] or [*MODELS, *FAMILIES, *WRAPPED]:
        (make_wrapped if which in WRAPPED else make_family if which in FAMILIES else make)(which)
