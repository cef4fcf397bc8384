"""Gradients and 10 training steps, or LONGER, of adapters by PEFT: tests/fixtures/lora_*, a model of each family.

    python make_lora.py [NAME]...

The base's tensors and the adapters' are drawn, B too, so that no gradient is zero. What is committed is as training.py has it,
of the adapters' tensors alone; config.json holds the adapter as eps keeps it there (proto/model/adapter.h). In lora_dropout
PEFT's masks are replaced by those that eps draws (proto/base/random.h), which are computed here from that definition.

Made with torch 2.15.0, transformers 5.23.0 (5.24.0: lora_qwen3_5, lora_mixtral, lora_qwen*_moe) and peft 0.21.2 on the CPU.
"""
import contextlib
import math
import os
import re
import shutil
import sys

import numpy as np
import torch
from peft import LoraConfig, get_peft_model

from transformers import MixtralConfig, MixtralForCausalLM, Qwen2MoeConfig, Qwen2MoeForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

import distribution
import drawn
import families
import fixture
import float64
import forms
import logits
import masked
import mixtures
import training

BATCH, SEQ, LABEL_GAP, N_STEPS, SITE = 8, 17, 7, 10, 256  # SITE: RANDOM_DROPOUT_ADAPTER
SIZES = dict(max_position_embeddings=24, initializer_range=0.02)
ENCODER = logits.ENCODER | SIZES | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
DECODER = {k: v for k, v in (logits.DECODER | SIZES).items() if "token_id" not in k}
GPT2 = {k: v for k, v in logits.GPT2.items() if "token_id" not in k} | dict(n_positions=24)
MIXTURES = {"mixtral": (MixtralConfig, MixtralForCausalLM), "qwen2_moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM),
            "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM)}
distribution.FAMILIES |= MIXTURES
GAP = 1e-5  # of scores, by which no other expert is chosen in fp32
MODELS = {  # family, numbers of the config, numbers of the adapter
    "lora_gpt2": ("gpt2", GPT2, dict(r=4, lora_alpha=8, target_modules=["c_attn", "c_proj"], fan_in_fan_out=True)),
    "lora_gpt2_all": ("gpt2", GPT2 | dict(tie_word_embeddings=False, activation_function="gelu", n_layer=3), dict(
        r=3, lora_alpha=4, target_modules="all-linear", use_rslora=True, fan_in_fan_out=True)),
    "lora_llama": ("llama", DECODER | dict(head_dim=10, attention_bias=True, mlp_bias=True), dict(
        r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"])),
    "lora_mistral": ("mistral", DECODER | dict(sliding_window=5), dict(
        r=8, lora_alpha=16, target_modules="all-linear", use_rslora=True)),
    "lora_qwen2": ("qwen2", DECODER | dict(tie_word_embeddings=True), dict(
        r=2, lora_alpha=4, target_modules=["k_proj", "mlp.up_proj"])),
    "lora_qwen3": ("qwen3", DECODER | dict(head_dim=10, **logits.SLIDING), dict(
        r=5, lora_alpha=10, target_modules="all-linear")),
    "lora_qwen3_5": ("qwen3_5", DECODER | dict(
        head_dim=10, full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
        linear_value_head_dim=10, rope_parameters=dict(logits.ROTATED, partial_rotary_factor=1.0, mrope_section=[1, 1, 1])), dict(
        r=4, lora_alpha=8, target_modules="all-linear")),
    "lora_gemma": ("gemma", DECODER | dict(num_key_value_heads=1, head_dim=10), dict(
        r=4, lora_alpha=4, target_modules=["gate_proj", "o_proj", "down_proj"])),
    "lora_gemma3": ("gemma3", DECODER | dict(
        head_dim=10, num_key_value_heads=1, num_hidden_layers=3, sliding_window=5, query_pre_attn_scalar=7,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"], rope_parameters=dict(
            sliding_attention=dict(rope_type="default", rope_theta=100.0), full_attention=logits.LINEAR)), dict(
        r=4, lora_alpha=8, target_modules="all-linear")),
    "lora_bert": ("bert", ENCODER, dict(r=4, lora_alpha=8, target_modules=["query", "value", "dense"])),
    "lora_roberta": ("roberta", ENCODER | dict(type_vocab_size=1, max_position_embeddings=26, pad_token_id=1), dict(
        r=6, lora_alpha=3, target_modules="all-linear", use_rslora=True)),
    # Ranks and alphas by module, by block and by both; one block without adapters; maps of one input that differ.
    "lora_patterns": ("qwen3", DECODER | dict(head_dim=10, num_hidden_layers=3), dict(
        r=4, lora_alpha=8, layers_to_transform=[0, 2],
        target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
        rank_pattern={"q_proj": 6, "layers.2.self_attn.v_proj": 1, "down_proj": 2},
        alpha_pattern={"v_proj": 9, "layers.0.mlp.up_proj": 3.5, r".*\.2\..*_proj": 5})),
    "lora_patterns_rs": ("gpt2", GPT2 | dict(n_layer=3), dict(
        r=3, lora_alpha=4, layers_to_transform=[1, 2], target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True,
        use_rslora=True, rank_pattern={"h.1.attn.c_proj": 7, "mlp.c_proj": 1}, alpha_pattern={"c_attn": 2.5})),
    # Experts and routers, in all blocks but one; with rsLoRA; and of Qwen 2 neither, as PEFT has it.
    "lora_qwen3_moe": ("qwen3_moe", DECODER | dict(
        head_dim=10, num_hidden_layers=3, num_experts=8, num_experts_per_tok=3, moe_intermediate_size=20, norm_topk_prob=True,
        mlp_only_layers=[1]), dict(r=3, lora_alpha=6, target_modules="all-linear")),
    "lora_mixtral": ("mixtral", DECODER | dict(head_dim=10, num_local_experts=5, num_experts_per_tok=2), dict(
        r=4, lora_alpha=3, target_modules="all-linear", use_rslora=True)),
    "lora_qwen2_moe": ("qwen2_moe", DECODER | dict(
        num_experts=6, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=20), dict(
        r=3, lora_alpha=6, target_modules="all-linear")),
    "lora_dropout": ("llama", DECODER, dict(r=3, lora_alpha=5, target_modules=["q_proj", "v_proj"], lora_dropout=0.25)),
}
# The draw of weights and tokens where it has another name: in that of the name itself a first gradient is smaller than Adam's
# epsilon, and rounding alone decides how far that element goes (training.py).
DRAWS = {"lora_bert": "lora_bert_2", "lora_mixtral": "lora_mixtral_5"}
# Gradients alone, over the base that bitsandbytes codes and decodes: each family in 4 or 8 bits.
MODELS |= {f"lora_{family}_{base}": MODELS[f"lora_{family}"] for family, base in (
    ("gpt2", "nf4"), ("llama", "int8"), ("mistral", "nf4"), ("qwen2", "int8"), ("qwen3", "nf4"), ("gemma", "nf4"),
    ("gemma3", "int8"), ("bert", "nf4"), ("roberta", "int8"), ("qwen3_moe", "nf4"), ("mixtral", "int8"))}
LONGER = dict.fromkeys(("lora_qwen3_5", "lora_qwen3_moe", "lora_mixtral", "lora_qwen2_moe"), 20)  # steps
FIRST_TENSOR = {"q_proj": 4, "v_proj": 6}  # of lora_dropout's adapters in a block: behind the norm's, q's, k's and v's


def base_of(name):
    """How the base is coded; None: not at all."""
    return name.split("_")[-1] if name.endswith(("_nf4", "_int8")) else None


def draw_of(name):
    plain = name.removesuffix(f"_{base_of(name)}")
    return DRAWS.get(plain, plain)


def config_of(name):
    family, numbers, _ = MODELS[name]
    dropout = dict(attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0) if family == "gpt2" else {}
    tokens = {} if family in distribution.ENCODERS else dict(bos_token_id=0, eos_token_id=0)
    return distribution.FAMILIES[family][0](**numbers, **dropout, **tokens)


def how_drawn(name, tensor, shape):
    """base and scale of a tensor's weights."""
    if tensor.endswith(("A_log", "dt_bias")):
        return 0.5, 1.0
    if "norm" in tensor.lower() or ".ln_" in tensor:
        plain = "linear_attn" in tensor or not name.startswith(("lora_gemma", "lora_qwen3_5"))  # or 1 + weight
        return (float(plain), 0.4) if tensor.endswith("weight") else (0.0, 0.2)
    if tensor.endswith("bias"):
        return 0.0, 0.2
    if "embed" in tensor or "wte" in tensor or "wpe" in tensor:
        return 0.0, 0.6
    if "lora_" in tensor:
        return 0.0, 0.35
    if len(shape) == 3:
        return 0.0, 0.8 * math.sqrt(12 / shape[2])
    return 0.0, 0.8 * math.sqrt(12 / shape[0 if "gpt2" in name and "lm_head" not in tensor else 1])


def ours(tensor):
    """The name in eps: without those that PEFT adds."""
    return re.sub(r"\.base_layer(?!\.lora_)", "", tensor.removeprefix("base_model.model.")).replace(".default", "")


def parts(family, tensor, p):
    """Of a parameter of transformers: those of files, by our names. Experts are one tensor there, and files of Mixtral have
    other names."""
    name, of = ours(tensor), ("w1", "w3", "w2") if family == "mixtral" else ("gate_proj", "up_proj", "down_proj")
    if family == "mixtral" and ".lora_" not in name:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if ".experts." not in name or ".lora_" in name:
        return [(name, p)]
    stem, joined = name.rsplit(".", 1)
    return [(f"{stem}.{e}.{n}.weight", w) for e in range(len(p)) for n, w in (
        zip(of[:2], p[e].chunk(2)) if joined == "gate_up_proj" else [(of[2], p[e])])]


class Mask(torch.nn.Module):
    """In place of torch.nn.Dropout: row, token and column of x have Philox's words, by seed 0, step, unit and site."""

    def __init__(self, run, module, p):
        super().__init__()
        self.run, self.p = run, p
        block = int(re.search(r"layers\.(\d+)\.", module).group(1))
        self.unit, self.site = 1 << 56 | block << 24, SITE + FIRST_TENSOR[module.split(".")[-1]]

    def forward(self, x):
        first = masked.philox(masked.words(self.run.step) + masked.words(self.unit), masked.words(0))
        first[3] ^= self.site
        key, (rows, tokens, n) = masked.philox(first, masked.words(0))[:2], x.shape
        quads = tokens * n // 4
        assert tokens * n % 4 == 0 or tokens * n < 4 * (quads + 1)
        keep = np.array([[w for quad in range(quads + 1) for w in masked.philox(masked.words(quad) + masked.words(
            self.run.first_row + row), key)][:tokens * n] for row in range(rows)]) >= int(self.p * 2**32)
        return x * torch.from_numpy(keep.reshape(rows, tokens, n)).to(x.dtype) / (1 - self.p)


class Adapted:
    """A model of PEFT; its parameters are those that are trained, by our names."""

    def __init__(self, model):
        self.model, self.zero_grad = model, model.zero_grad

    def named_parameters(self):
        return ((ours(t), p) for t, p in self.model.named_parameters() if p.requires_grad)

    def __call__(self, **inputs):
        return self.model(**inputs)


class Run(distribution.Run):
    def __init__(self, name, dtype, attention="eager", n_runs=1):
        family, numbers, adapter = MODELS[name]
        throughout = dtype == torch.float64 and (family in distribution.THROUGHOUT or family in MIXTURES)
        experts = {"experts_implementation": "eager"} if family in MIXTURES else {}
        self.arithmetic = families.throughout if throughout else contextlib.nullcontext
        attention = "sdpa" if dtype == torch.float64 and family != "gpt2" and not throughout else attention
        with self.arithmetic():
            base = distribution.FAMILIES[family][1]._from_config(
                config_of(name), attn_implementation=attention, dtype=dtype if throughout else torch.float32,
                **experts).to(dtype).train()
        if dtype == torch.float64 and not throughout:
            float64.widen(base)
        model = get_peft_model(base, LoraConfig(**adapter, lora_bias=False), autocast_adapter_dtype=False).to(dtype)
        self.name, self.n_runs, self.step, self.first_row, self.products, self.tied = name, n_runs, 0, 0, None, None
        self.weights = {}
        with torch.no_grad():
            for t, p, frozen in [(t, w, not p.requires_grad) for whole, p in model.named_parameters() for t, w in parts(family, whole, p)]:
                w = drawn.weights(f"{draw_of(name)}:{t}", p.numel(), *how_drawn(name, t, p.shape))
                # Of a convolution over tokens ours are tap by tap.
                w = torch.from_numpy(w).view_as(p) if p.dim() < 3 else torch.from_numpy(w).view(p.shape[2], -1).T[:, None]
                if base_of(name) and frozen:
                    linear = p.dim() == 2 and not re.search(r"embed|wte|wpe|decoder|lm_head\.weight|(mlp|moe)\.gate\.weight", t)
                    w = forms.decoded(w.float(), base_of(name), linear)
                p.copy_(w)
                self.weights[t] = p
        for module, dropout in [(t, m) for t, m in model.named_modules() if t.endswith("lora_dropout")]:
            if "default" in dropout and adapter.get("lora_dropout"):
                dropout["default"] = Mask(self, module.removesuffix(".lora_dropout"), adapter["lora_dropout"])
        for router in [m for m in model.modules() if hasattr(m, "top_k") and family in MIXTURES]:
            router.register_forward_hook(lambda router, _, out: self.check_gap(mixtures.gap(out[0].detach(), router.top_k)))
        self.model, self.modules = Adapted(model), model.targeted_module_names
        self.modules = self.modules + [t.removesuffix(".weight") for t in model.targeted_parameter_names]
        self.master = {t: p.detach().clone() for t, p in self.model.named_parameters()}
        self.moments = {t: (torch.zeros_like(w), torch.zeros_like(w)) for t, w in self.master.items()}
        self.m = dict(family=family, config=numbers, optimizer="adamw", parts=1, lr=1e-3, decay=training.DECAY)

    def check_gap(self, gap):
        assert gap > GAP, f"{self.name}: scores within {gap} of a tie"

    def minibatch(self):
        return map(torch.from_numpy, drawn.minibatch(draw_of(self.name), self.step % training.N_MINIBATCHES, BATCH, SEQ,
                                                     config_of(self.name).vocab_size, LABEL_GAP))

    def logits(self, ids):
        out = super().logits(ids)
        self.first_row = (self.first_row + len(ids)) % BATCH
        return out


def flat(tensors):
    return {t: x.detach().numpy().ravel().copy() for t, x in tensors.items()}


def stems(run):
    """What is adapted, by the names within a layer."""
    prefix = run.model.model.base_model.model.base_model_prefix
    return sorted({re.sub(rf"^({prefix}\.)?(h|layers|encoder\.layer)\.\d+\.", "", m) for m in run.modules})


def wrapped(adapted, module):
    """What PEFT put around it: of experts, around the module that they are in, once for each tensor of theirs."""
    if module in adapted:
        return adapted[module]
    module, _, tensor = module.rpartition(".")
    outer = adapted[module]
    return outer if outer.parameter_name == tensor else outer.base_layer


def forms_of(run, modules):
    """The ranks and alphas that PEFT gave each of the modules, block by block (proto/model/adapter.h)."""
    layers = [re.search(r"\.(?:h|layers|layer)\.(\d+)\.(.*)", m) for m in run.modules]
    adapted = dict(run.model.model.base_model.model.named_modules())
    maps = {(int(of[1]), of[2]): [wrapped(adapted, m).r["default"], wrapped(adapted, m).lora_alpha["default"]] for m, of in zip(run.modules, layers)}
    blocks = [[maps.get((block, m)) for m in modules] for block in range(run.model.model.config.num_hidden_layers)]
    nowhere = [None] * len(modules)
    kinds = [nowhere] + [b for i, b in enumerate(blocks) if b != nowhere and b not in blocks[:i]]
    return {"forms": kinds, "blocks": [kinds.index(b) for b in blocks], "outside": 0}


def config_json(name, run):
    family, _, adapter = MODELS[name]
    by_pattern = forms_of(run, stems(run)) if "rank_pattern" in adapter or any("experts" in m for m in run.modules) else {}
    keep = {k: v for k, v in config_of(name).to_dict().items() if k not in ("transformers_version", "id2label", "label2id")}
    return keep | {"architectures": [distribution.FAMILIES[family][1].__name__],
                   "adapter": {"peft": {"peft_type": "LORA"} | adapter, "modules": stems(run)} | by_pattern}


def train(name, ways, writer):
    runs = [Run(name, *way) for way in ways]
    start = flat(runs[0].master)
    exact, *singles = [flat(run.train(LONGER.get(name, N_STEPS))) for run in runs]
    print(name, stems(runs[0]), runs[0].losses[0], "->", runs[0].losses[-1], flush=True)
    return {"optimizer": "adamw", "parts": 1, "losses": runs[0].losses, "fp32_losses": [run.losses for run in runs[1:]],
            "pieces": training.digest(writer, f"{name}:adamw1", exact, singles, 100, start)}


def make(name):
    folder, writer = os.path.join(training.FIXTURES, name), training.Writer()
    shutil.rmtree(folder, ignore_errors=True)
    os.makedirs(folder)
    ways = ((torch.float64,), *((torch.float32, *way) for way in training.WAYS))
    runs = [Run(name, *way) for way in ways]
    fixture.write(os.path.join(folder, "config.json"), config_json(name, runs[0]))
    exact, *singles = [flat(run.gradient()) for run in runs]
    gradient = {"loss": runs[0].loss, "fp32_losses": [run.loss for run in runs[1:]],
                "pieces": training.digest(writer, f"{name}:gradient", exact, singles, 300)}
    reference = {
        "name": name, "draw": draw_of(name), "made_with": f"torch {torch.__version__}", "batch": BATCH, "seq": SEQ,
        "label_gap": LABEL_GAP, "n_minibatches": training.N_MINIBATCHES, "n_steps": LONGER.get(name, N_STEPS), "lr": 1e-3,
        "beta1": training.BETAS[0], "beta2": training.BETAS[1], "epsilon": 1e-8, "weight_decay": training.DECAY,
        "n_buckets": training.N_BUCKETS,
        "weights": [{"tensor": t, "shape": list(p.shape), "n": p.numel(),
                     **dict(zip(("base", "scale"), how_drawn(name, t, p.shape)))} for t, p in runs[0].weights.items()],
        "gradient": gradient}
    if not base_of(name):
        reference["training"] = [train(name, ways, writer)]
    fixture.write(os.path.join(folder, "reference.json"), reference)
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in sys.argv[1:] or MODELS:
        make(which)
