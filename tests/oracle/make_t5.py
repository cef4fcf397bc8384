"""Gradients and 20 training steps of two T5 models by transformers: tests/fixtures/{t5,t5_gated,frozen_t5,drop_t5};
and of adapters by PEFT: lora_t5.

    python paths.py make_t5.py

t5 is as version 1.0: its head is tied and scaled, its MLP plain. t5_gated is as 1.1: untied, gated. The first SOURCE tokens
of a row are its source, of which 1 + (first id) % SOURCE count; the others are the decoder's inputs. Few buckets, so that
most hold several distances, and distances beyond the last one's first. What is frozen: the encoder's bias and norms, some
maps of the decoder. drop_t5 is t5_gated with blocks that steps drop, of both stacks. lora_t5 is t5 with adapters of some maps of attention and of those behind its relu.

transformers 5.23 computes norms' means of squares in fp32 whatever the model is in; here they are in the model's type. Made
with torch 2.15.0, transformers 5.23.0 and peft 0.21.2 on the CPU.
"""
import dataclasses
import types

import torch
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import T5Config, T5ForConditionalGeneration

import own
import training

SOURCE = 10
SIZES = dict(d_model=20, d_kv=6, d_ff=26, num_layers=3, num_decoder_layers=2, num_heads=2, vocab_size=61,
             relative_attention_num_buckets=8, relative_attention_max_distance=7, dropout_rate=0.0)
BASE = dict(model_type="t5", architectures=["T5ForConditionalGeneration"], is_encoder_decoder=True,
            decoder_start_token_id=0, pad_token_id=0, eos_token_id=1, **SIZES)
MODELS = {"t5": dict(BASE, feed_forward_proj="relu", tie_word_embeddings=True),
          "t5_gated": dict(BASE, feed_forward_proj="gated-gelu", tie_word_embeddings=False)}
ADAPTER = dict(r=3, lora_alpha=5, target_modules=["q", "v", "wo"])
MODELS["lora_t5"] = MODELS["t5"] | {"adapter": {"peft": {"peft_type": "LORA"} | ADAPTER, "modules": sorted(
    f"layer.{n}.{name}" for n, name in ((0, "SelfAttention.q"), (0, "SelfAttention.v"), (1, "EncDecAttention.q"),
                                        (1, "EncDecAttention.v"), (1, "DenseReluDense.wo"), (2, "DenseReluDense.wo")))}}
BASE_OF_ADAPTERS = ["*[!AB].weight"]
FROZEN = ["encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight", "encoder.*layer_norm.weight",
          "decoder.block.1.layer.1.*"]

# Of each step: encoder blocks are 0 to 2, decoder blocks 3 and 4. Some steps drop all of one stack, one all blocks. Without
# decoder blocks the encoder has a gradient of zeros.
DROPPED = [[1], [], [2, 4], [3, 4], [0, 1, 2], [3], [0, 1, 2, 3, 4], [2], [4], [0, 3], [0, 2], [], [1, 3, 4], [0, 1, 2, 4], [1, 2],
           [2, 3], [0], [3, 4], [1, 4], [0, 1]]


def dropping(blocks):
    """For an own.Family; blocks: what a stack's are called."""
    def block_of(tensor):
        stack, _, rest = tensor.removeprefix("of.").partition(f".{blocks}.")
        first = {"encoder": 0, "decoder": 3}.get(stack)
        return None if first is None or "relative_attention_bias" in rest else first + int(rest.split(".")[0])

    return dict(drop_layers=0.375, dropped=DROPPED, block_of=block_of, epsilon=1e-6)


def drop(model, scales):
    """Scales each block's branches, behind their dropouts: the bias of all of a stack is the first block's."""
    for block, scale in zip((*model.of.encoder.block, *model.of.decoder.block), scales, strict=True):
        for layer in block.layer:
            layer.dropout._forward_hooks.clear()
            layer.dropout.register_forward_hook(lambda module, args, out, scale=scale: out * scale)


def norm(self, x):
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


class Model(nn.Module):
    def __init__(self, family, fused):
        super().__init__()
        config = T5Config(**{k: v for k, v in family.config.items() if k != "adapter"})
        self.of = T5ForConditionalGeneration._from_config(config, attn_implementation="sdpa" if fused else "eager")
        if not family.config["tie_word_embeddings"]:
            self.of.lm_head.weight = nn.Parameter(torch.empty(config.vocab_size, config.d_model))
        assert self.of.config.scale_decoder_outputs == family.config["tie_word_embeddings"]
        for module in self.of.modules():
            if type(module).__name__ == "T5LayerNorm":
                module.forward = types.MethodType(norm, module)
        if family.config.get("adapter"):
            self.of = get_peft_model(self.of, LoraConfig(**ADAPTER), autocast_adapter_dtype=False).requires_grad_()

    def named_parameters(self, *args, **kwargs):
        """Those that are trained, by the names that they have in eps: without what PEFT adds."""
        return ((t.removeprefix("base_model.model.").replace(".base_layer", "").replace(".default", ""), p)
                for t, p in self.of.named_parameters(*args, **kwargs) if p.requires_grad)

    def forward(self, ids):
        """Logits of all tokens of rows; of the source's they are zero."""
        length = 1 + ids[:, :1] % SOURCE
        mask = (torch.arange(SOURCE) < length).long()
        logits = self.of(input_ids=ids[:, :SOURCE], attention_mask=mask, decoder_input_ids=ids[:, SOURCE:],
                         use_cache=False).logits
        return torch.cat((torch.zeros(len(ids), SOURCE, logits.shape[2], dtype=logits.dtype), logits), 1)


def family_of(name):
    is_tied = MODELS[name]["tie_word_embeddings"] and "adapter" not in MODELS[name]
    tied = (lambda model: model.of.shared.weight) if is_tied else None
    return own.Family(MODELS[name], None, FROZEN, gradient_sample=50, sample=25, model=Model, generates=False,
                      source=SOURCE, tied=tied, frozen_prefix="", named=name,
                      n_steps=training.N_STEPS)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in ("t5", "t5_gated"):
        own.make_one(family_of(which), which)
    own.make_one(family_of("t5"), "frozen_t5", FROZEN)
    own.make_one(dataclasses.replace(family_of("t5_gated"), drop=drop, **dropping("block")), "drop_t5")
    own.make_one(family_of("lora_t5"), "lora_t5", BASE_OF_ADAPTERS)
