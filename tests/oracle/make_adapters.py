"""Adapters as PEFT saves them, of models in tests/fixtures, with their losses in float64: tests/fixtures/adapter_*.

    python make_adapters.py [NAME]...

    adapter_tied     GPT-2, all linear maps, by the names of all modules
    adapter_qwen3    a pattern; rsLoRA
    adapter_llama3   names, of which one matches nothing, and one excluded
    adapter_gemma3   all linear maps
    adapter_mistral  one name; saved with a pattern of ranks that is empty, and a key of a PEFT to come
    adapter_table    a tied Gemma 3, whose table of tokens is trained beside them: the head stays
    adapter_head     a tied Llama, whose head is: the table stays
    adapter_both     a tied GPT-2, both: they are two
    adapter_ranks    a GPT-2, ranks and alphas of their own by module, by block and by both; rsLoRA
    adapter_qwen3_moe  all linear maps: experts and routers among them; rsLoRA
    adapter_mixtral  names of what files have: experts' w1, w2 and w3, and queries
    adapter_olmoe    a pattern that matches gates and ups alone
    adapter_qwen2_moe  an expert's tensors by target_parameters, with ranks of their own
    adapter_layers   a Qwen 3, one block alone, and a map of the other that is named whole; two maps of one input that differ

Each names its base by a path from its own directory. reference.json has token ids and the mean loss over windows of seq, as
eps eval cuts them, with the adapter and without.

Made with torch 2.15.0, transformers 5.23.0 (of mixtures 5.24.0) and peft 0.21.2 on the CPU.
"""
import contextlib
import json
import os
import shutil
import sys

import torch
import torch.nn.functional as F
from peft import LoraConfig, PeftModel, get_peft_model

from transformers import AutoModelForCausalLM

import drawn
import families
import fixture
import float64
import logits

SEQ, N = 12, 12 * 12 + 1
ADAPTERS = {
    "tied": dict(r=2, lora_alpha=6, target_modules="all-linear", fan_in_fan_out=True),
    "qwen3": dict(r=3, lora_alpha=4, target_modules=r".*\.(q|v)_proj", use_rslora=True),
    "llama3": dict(r=2, lora_alpha=8, target_modules=["q_proj", "o_proj", "mlp.down_proj", "out_proj"],
                   exclude_modules=["o_proj"], lora_dropout=0.1),
    "gemma3": dict(r=2, lora_alpha=4, target_modules="all-linear"),
    "mistral": dict(r=4, lora_alpha=4, target_modules=["v_proj"]),
    "table": dict(r=2, lora_alpha=4, target_modules=["q_proj"], modules_to_save=["embed_tokens"]),
    "head": dict(r=2, lora_alpha=4, target_modules=["up_proj"], modules_to_save=["lm_head"]),
    "both": dict(r=2, lora_alpha=4, target_modules=["c_proj"], modules_to_save=["wte", "lm_head"], fan_in_fan_out=True),
    "ranks": dict(r=2, lora_alpha=4, target_modules="all-linear", fan_in_fan_out=True, use_rslora=True,
                  rank_pattern={r".*\.1\.attn\.c_attn": 5, "^transformer.h.0.mlp.c_fc|mlp.c_fc": 1, "c_attn": 3},  # PEFT sorts keys,
                  alpha_pattern={r".*\.0\..*": 2.5, "attn.c_proj": 7}),  # and the first counts that matches
    "qwen3_moe": dict(r=2, lora_alpha=6, target_modules="all-linear", use_rslora=True),
    "mixtral": dict(r=3, lora_alpha=4, target_modules=["q_proj", "w1", "w2", "w3"]),
    "olmoe": dict(r=2, lora_alpha=4, target_modules=r".*\.experts\.(gate|up)_proj"),
    "qwen2_moe": dict(r=2, lora_alpha=4, target_modules=["v_proj"],
                      target_parameters=["experts.down_proj", "mlp.experts.gate_up_proj"], rank_pattern={".*gate_up_proj": 3},
                      alpha_pattern={"down_proj": 7}),
    "layers": dict(r=3, lora_alpha=6, target_modules=["q_proj", "v_proj", "mlp.down_proj", "model.layers.0.self_attn.k_proj"],
                   layers_to_transform=[1], layers_pattern="layers", rank_pattern={"v_proj": 1}, alpha_pattern={"v_proj": 9}),
}
BASES = {"table": "gemma3_tied", "head": "llama_linear", "both": "tied", "ranks": "untied", "layers": "qwen3"}  # others are named after theirs


def mixture_of(name, dtype):
    """Made anew, as its buffers are then of this type, too; files are read in their own."""
    how = dict(attn_implementation="eager", experts_implementation="eager")
    model = AutoModelForCausalLM.from_pretrained(os.path.join(logits.FIXTURES, name), dtype=torch.float32, **how)
    with families.throughout() if dtype == torch.float64 else contextlib.nullcontext():
        out = AutoModelForCausalLM.from_config(model.config, dtype=dtype, **how).eval()
    out.load_state_dict(model.state_dict())
    return out


def base_of(name, dtype):
    if name in logits.FAMILIES:
        return mixture_of(name, dtype)
    model = logits.MODELS[name][0].from_pretrained(os.path.join(logits.FIXTURES, name), dtype=torch.float32,
                                                   attn_implementation="sdpa").to(dtype).eval()
    return float64.widen(model) if dtype == torch.float64 else model


def loss_of(model, ids):
    inputs, labels = torch.tensor(ids[:-1]).view(-1, SEQ), torch.tensor(ids[1:]).view(-1, SEQ)
    with torch.no_grad():
        return F.cross_entropy(model(input_ids=inputs).logits.flatten(0, 1), labels.flatten()).item()


def make(name):
    folder = os.path.join(logits.FIXTURES, f"adapter_{name}")
    shutil.rmtree(folder, ignore_errors=True)
    base = BASES.get(name, name)
    model = get_peft_model(base_of(base, torch.float32), LoraConfig(task_type="CAUSAL_LM", **ADAPTERS[name]))
    with torch.no_grad():
        for t, p in model.named_parameters():
            if "lora_" in t:
                p.copy_(torch.from_numpy(drawn.weights(f"{name}:{t}", p.numel(), 0.0, 0.8)).view_as(p))
            elif p.requires_grad:
                p.add_(torch.from_numpy(drawn.weights(f"{name}:{t}", p.numel(), 0.0, 0.3)).view_as(p))
    model.peft_config["default"].base_model_name_or_path = f"../{base}"
    model.save_pretrained(folder)
    os.remove(os.path.join(folder, "README.md"))
    path = os.path.join(folder, "adapter_config.json")
    with open(path) as f:
        config = json.load(f)
    if name == "mistral":
        config["key_of_a_later_peft"] = True
    for names in config["target_modules"], config["target_parameters"]:
        if isinstance(names, list):
            names.sort()
    with open(path, "w") as f:
        json.dump(config, f, indent=2)
        f.write("\n")
    ids = drawn.minibatch(name, 0, 1, N, model.config.vocab_size, 0)[0][0].tolist()
    exact = base_of(base, torch.float64)
    with families.throughout() if base in logits.FAMILIES else contextlib.nullcontext():
        without = loss_of(exact, ids)
    exact = PeftModel.from_pretrained(exact, folder, autocast_adapter_dtype=False).to(torch.float64).eval()
    with families.throughout() if base in logits.FAMILIES else contextlib.nullcontext():
        loss = loss_of(exact, ids)
    fixture.write(os.path.join(folder, "reference.json"), {"seq": SEQ, "base": without, "loss": loss, "ids": ids})
    print(name, without, loss, config["target_modules"], config["target_parameters"])


if __name__ == "__main__":
    for which in sys.argv[1:] or ADAPTERS:
        make(which)
