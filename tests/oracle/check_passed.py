"""What a wrapper has beside its text model comes back from eps: small random models of transformers that see images, with
a head that drafts tokens (MTP) beside them.

    python check_passed.py [--bin build/bin] [NAME ...]

Each is saved by transformers, in bf16, and trained for some steps, whole and with adapters. Of eps export, whole and
--merge, every tensor that is not the text model's has the sha256 that it had, names and config.json are the source's, and
AutoModelForImageTextToText loads it without a key that is missing; left over are the draft head's alone, as in the source.
What was trained moved the logits, which --text-only has, too. PEFT loads the adapters on the source, no key missing or left
over, none of them in the vision tower, and gives the merged logits. Exit status 0 or 1.

Made with torch 2.15.0, transformers 5.24.0 and peft 0.21.2 on the CPU.
"""
import argparse
import functools
import glob
import hashlib
import json
import os
import pathlib
import random
import sys
import tempfile

import torch
import transformers
from peft import PeftModel
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, CONFIG_MAPPING

import mixtures
import muse_glimmer  # noqa: F401: registers a class
import programs

SIZES = dict(vocab_size=61, hidden_size=24, intermediate_size=28, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=6, initializer_range=0.3, max_position_embeddings=256, pad_token_id=0, bos_token_id=1,
             eos_token_id=2)
VISION = dict(hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4)
SIGLIP = dict(VISION, model_type="siglip_vision_model", vision_use_head=False)
IMAGE = 60  # the token of an image
QWEN = dict(depth=1, hidden_size=8, intermediate_size=12, num_heads=2, out_hidden_size=24, patch_size=4)
QWEN_IDS = dict(image_token_id=IMAGE, video_token_id=59, vision_start_token_id=58, vision_end_token_id=57)
MROPE = dict(rope_parameters=dict(rope_type="default", rope_theta=1e4, mrope_section=[1, 1, 1]))
LINEAR = dict(full_attention_interval=2, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=4,
              linear_value_head_dim=4, rope_parameters=dict(
                  rope_type="default", rope_theta=1e4, partial_rotary_factor=1.0, mrope_section=[1, 1, 1], mrope_interleaved=True))
EXPERTS = dict(num_experts=5, num_experts_per_tok=2, moe_intermediate_size=12, shared_expert_intermediate_size=10)
WRAPPERS = {  # the wrapper, its text model, its vision tower, more of its own keys
    "gemma3": ("gemma3_text", SIGLIP, dict(mm_tokens_per_image=4, image_token_index=IMAGE, image_token_id=IMAGE)),
    "llava": ("qwen2", dict(VISION, model_type="clip_vision_model"), dict(image_token_index=IMAGE, image_token_id=IMAGE)),
    "mistral3": ("mistral", dict(VISION, model_type="pixtral", head_dim=4, num_channels=3),
                 dict(image_token_index=IMAGE, image_token_id=IMAGE)),
    "qwen3_vl": ("qwen3_vl_text", QWEN | dict(deepstack_visual_indexes=[0]), QWEN_IDS),
    "qwen2_5_vl": ("qwen2_5_vl_text", QWEN | dict(fullatt_block_indexes=[0], window_size=8), QWEN_IDS),
    "qwen2_vl": ("qwen2_vl_text", dict(depth=1, embed_dim=8, hidden_size=24, num_heads=2, patch_size=4), QWEN_IDS),
    "qwen3_5": ("qwen3_5_text", QWEN, QWEN_IDS),
    "qwen3_5_moe": ("qwen3_5_moe_text", QWEN, QWEN_IDS),
    "muse_glimmer": ("muse_glimmer_text", dict(num_hidden_layers=1, hidden_size=8, intermediate_size=12, num_attention_heads=2,
                                               patch_size=4, pos_emb_height=2, pos_emb_width=2, max_position_embeddings=4),
                     dict(image_token_id=IMAGE, video_token_id=59, out_hidden_size=32, projector_hidden_size=12)),
    "smolvlm": ("llama", dict(VISION, model_type="smolvlm_vision"), dict(image_token_id=IMAGE, scale_factor=2)),
}
DRAFT = {"mtp.layers.0.weight": torch.randn(5, 3).to(torch.float8_e4m3fn), "mtp.norm.weight": torch.randn(7).double(),
         "mtp.count": torch.arange(3, dtype=torch.uint8)}
MACHINE = ["--device", "cpu", "--device-mem", "64MiB", "--batch", "4", "--seq", "12", "--lr", "0.02"]
WITHIN = 2e-5  # of the largest logit


def as_published_first(folder):
    """Before transformers 4.52: the text model's keys beside the wrapper's own, and no part of names for it."""
    config = json.loads((folder / "config.json").read_text())
    text = config.pop("text_config")
    rope = text.pop("rope_parameters")
    config |= {key: value for key, value in text.items() if key not in ("model_type", "layer_types")}
    config |= dict(rope_theta=rope["rope_theta"], rope_scaling=dict(type="mrope", mrope_section=rope["mrope_section"]))
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {key.replace("model.language_model.", "model.").replace("model.visual.", "visual."): tensor
               for key, tensor in stored(folder).items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def make_source(name, folder):
    text, vision, own = WRAPPERS[name]
    more = MROPE if "_vl_" in text else LINEAR if name.startswith("qwen3_5") else {}
    sizes = {k: v for k, v in SIZES.items() if k != "intermediate_size"} | EXPERTS if "moe" in name else SIZES
    text = CONFIG_MAPPING[text](**sizes, **more, tie_word_embeddings=name == "gemma3")
    config = CONFIG_MAPPING[name](text_config=text.to_dict(), vision_config=dict(vision), **own,
                                  tie_word_embeddings=text.tie_word_embeddings)
    model = AutoModelForImageTextToText.from_config(config)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn_like(p) * 0.1)
    model.to(torch.bfloat16).save_pretrained(folder)
    if name == "qwen2_vl":
        as_published_first(folder)
    if name == "qwen3_5_moe":
        mixtures.join(folder)
    save_file(DRAFT, folder / "draft.safetensors", {"format": "pt"})
    os.rename(folder / "model.safetensors", folder / "a.safetensors")
    files = {path.name: safe_open(path, "pt").keys() for path in folder.glob("*.safetensors")}
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": {key: path for path, keys in files.items() for key in keys}}))
    (folder / "preprocessor_config.json").write_text('{"size": 8}')


def stored(folder):
    tensors = {}
    for path in glob.glob(str(folder / "*.safetensors")):
        with safe_open(path, "pt") as f:
            tensors |= {key: f.get_tensor(key) for key in f.keys()}
    return tensors


def digest(tensor):
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return str(tensor.dtype), tuple(tensor.shape), hashlib.sha256(raw).hexdigest()


def is_text(key):
    return key.startswith(("language_model.", "model.language_model.", "model.text_model.", "model.embed_tokens.", "model.layers.",
                           "model.norm.", "lm_head."))


def load(folder):
    model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = sorted(info["missing_keys"]) + sorted(info["mismatched_keys"]) + sorted(set(info["unexpected_keys"]) - set(DRAFT))
    if wrong:
        sys.exit(f"{folder}: keys are missing, misshapen or left over: {wrong}")
    return model.eval()


def logits(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(3, 29).view(2, 13)).logits


def near(what, ours, theirs):
    off, largest = (ours - theirs).abs().max().item(), theirs.abs().max().item()
    if off > WITHIN * largest:
        sys.exit(f"{what}: logits are {off:.1e} apart, of {largest:.1f}")
    return off


def check_whole(source, out):
    was, now = stored(source), stored(out)
    if set(was) != set(now):
        sys.exit(f"{out}: names differ: {sorted(set(was) ^ set(now))[:6]}")
    passed = [key for key in was if not is_text(key)]
    for key in passed:
        if digest(was[key]) != digest(now[key]):
            sys.exit(f"{out}: {key} is {digest(now[key])}, was {digest(was[key])}")
    configs = [json.loads((folder / "config.json").read_text()) for folder in (source, out)]
    if configs[0] != configs[1]:
        sys.exit(f"{out}: config.json is not the source's")
    if (source / "preprocessor_config.json").read_bytes() != (out / "preprocessor_config.json").read_bytes():
        sys.exit(f"{out}: preprocessor_config.json is not the source's")
    return len(passed)


def check_adapter(name, source, alone, merged):
    base = load(source)
    model = PeftModel.from_pretrained(base, alone).eval()
    again = model.load_adapter(alone, "again")
    wrong = [key for key in again.missing_keys if "again" in key] + list(again.unexpected_keys)
    inside = [key for key in model.state_dict() if "lora_" in key and "language_model" not in key and "text_model." not in key]
    model.set_adapter("default")
    if wrong or inside:
        sys.exit(f"{alone}: keys are missing or left over: {wrong}; in other parts: {inside}")
    return near(f"{name}: adapters", logits(model), logits(load(merged)))


def check(eps, name, work):
    source, data = work / "source", work / "data.bin"
    torch.manual_seed(sum(name.encode()))
    make_source(name, source)
    r = random.Random(name)
    data.write_bytes(b"".join(min(r.randrange(3, 60), r.randrange(3, 60)).to_bytes(2, "little") for _ in range(999)))
    plain = logits(load(source))
    eps("train", "--model", source, "--data", data, "--steps", 4, "--out", work / "run", *MACHINE)
    eps("export", "--model", source, "--out", work / "same")
    if {key: digest(t) for key, t in stored(source).items()} != {key: digest(t) for key, t in stored(work / "same").items()}:
        sys.exit(f"{name}: the source as it is came back otherwise")
    eps("export", "--model", work / "run", "--out", work / "whole")
    n = check_whole(source, work / "whole")
    eps("export", "--model", work / "run", "--text-only", "--out", work / "text")
    whole = logits(load(work / "whole"))
    text = logits(AutoModelForCausalLM.from_pretrained(work / "text", dtype=torch.float32).eval())
    off = near(f"{name}: the text model alone", text, whole)
    eps("train", "--model", source, "--data", data, "--steps", 8, "--lora", "rank=3", "--out", work / "lora", *MACHINE)
    eps("export", "--model", work / "lora", "--out", work / "alone")
    eps("export", "--model", work / "lora", "--merge", "--out", work / "rounded")
    check_whole(source, work / "rounded")
    eps("export", "--model", work / "lora", "--merge", "--dtype", "fp32", "--out", work / "merged")
    adapted = check_adapter(name, source, work / "alone", work / "merged")
    check_adapter(name, source, work / "lora" / "latest", work / "merged")
    moved = min((x - plain).abs().max().item() for x in (whole, logits(load(work / "merged"))))
    if moved < 1e-2:
        sys.exit(f"{name}: training moved the logits by {moved:.1e}")
    print(f"{name}: {n} tensors have their sha256; text alone {off:.1e}, adapters {adapted:.1e} off; moved by {moved:.1e}",
          flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=programs.BIN)
    parser.add_argument("names", nargs="*", default=list(WRAPPERS))
    options = parser.parse_args()

    for name in options.names or WRAPPERS:
        with tempfile.TemporaryDirectory(prefix=f"passed-{name}-") as work:
            check(functools.partial(programs.eps, options.bin), name, pathlib.Path(work))


if __name__ == "__main__":
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    main()
