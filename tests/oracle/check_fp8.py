"""Checkpoints in fp8, as eps reads them, against what transformers makes of them.

Draws small models, and quantises the linear maps of their blocks in PyTorch; one matrix of each has every code that is
a number.

    scalar    Ministral 3, a scale a tensor in bf16, static activations, as Ministral 3 is published
    wrapped   the same as the text model of a Mistral 3, which sees images
    blocks    Qwen 3 in blocks of 128 x 128, scales in fp32
    e8m0      the same, scales in E8M0, in a file of their own
    ragged    Qwen 3 in blocks of 128 x 128, scales in bf16; the last blocks of rows and columns are smaller

What `eps export` writes in fp32, in bf16, and by default (bf16) is bit for bit what from_pretrained with
FineGrainedFP8Config(dequantize=True) has in that type; nothing of the quantisation is left in its files; transformers
computes the same logits of both, bit for bit; and log-probabilities that eps computes of the directory in fp8 are
within 1e-5 of the largest logit in float64 (test_exact_logits, whose program is in BIN). For the ragged ones it is what
_dequantize_fp8_weight gives in fp32: from_pretrained divides sizes by the number of scales, so it takes blocks of
100 x 100 for a matrix of 200 x 200, and refuses one of 201 x 200. Made with torch 2.15.0 and transformers 5.24.0.

    python check_fp8.py --bin ../../build/bin
"""
import argparse
import json
import os
import subprocess
import tempfile

import torch
from safetensors.torch import load_file, save_file
from transformers import (AutoModelForCausalLM, FineGrainedFP8Config, Ministral3Config, Ministral3ForCausalLM,
                          Mistral3Config, Mistral3ForConditionalGeneration, PixtralVisionConfig, Qwen3Config,
                          Qwen3ForCausalLM)
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

from programs import eps

FP8, SEQ, BLOCK = torch.float8_e4m3fn, 12, (128, 128)
COMMON = dict(vocab_size=61, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, bos_token_id=0,
              eos_token_id=None, max_position_embeddings=32, initializer_range=0.1)
EVEN = dict(hidden_size=256, intermediate_size=384, head_dim=64)
RAGGED = dict(hidden_size=201, intermediate_size=330, head_dim=34)
NUMBERS = torch.tensor([code for code in range(256) if code & 127 != 127], dtype=torch.uint8)


def wrapped():
    vision = PixtralVisionConfig(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
                                 image_size=32, patch_size=16)
    text = Ministral3Config(**COMMON, **EVEN)
    return Mistral3ForConditionalGeneration(Mistral3Config(vision_config=vision, text_config=text))


MODELS = {
    "scalar": (lambda: Ministral3ForCausalLM(Ministral3Config(**COMMON, **EVEN)), None, torch.bfloat16),
    "wrapped": (wrapped, None, torch.bfloat16),
    "blocks": (lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, **EVEN)), BLOCK, torch.float32),
    "e8m0": (lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, **EVEN)), BLOCK, torch.float8_e8m0fnu),
    "ragged": (lambda: Qwen3ForCausalLM(Qwen3Config(**COMMON, **RAGGED)), BLOCK, torch.bfloat16),
}


def spread(scales, block, shape):
    """Scales, one for each element."""
    if block is None:
        return scales
    return scales.repeat_interleave(block[0], 0)[:shape[0]].repeat_interleave(block[1], 1)[:, :shape[1]]


def quantise(weight, block, scale_type):
    shape = weight.shape
    grid = [-(-size // edge) for size, edge in zip(shape, block or shape)]
    padded = torch.zeros([n * edge for n, edge in zip(grid, block or shape)])
    padded[:shape[0], :shape[1]] = weight
    largest = padded.view(grid[0], -1, grid[1], padded.shape[1] // grid[1]).abs().amax((1, 3)) / 448
    scales = (largest.squeeze() if block is None else largest).to(scale_type)
    return (weight / spread(scales.float(), block, shape)).clamp(-448, 448).to(FP8), scales


def save(directory, tensors, apart):
    """As one file, or with the scales in another."""
    os.remove(f"{directory}/model.safetensors")
    files = {name: "model.safetensors" for name in tensors}
    if apart:
        files = {name: f"model-0000{1 + name.endswith('_scale_inv')}-of-00002.safetensors" for name in tensors}
        with open(f"{directory}/model.safetensors.index.json", "w") as file:
            json.dump({"metadata": {}, "weight_map": files}, file)
    for file in set(files.values()):
        save_file({name: tensors[name] for name in tensors if files[name] == file}, f"{directory}/{file}",
                  metadata={"format": "pt"})


def make(directory, model, block, scale_type):
    """Saves it and rewrites its files. Returns the tensors of the file."""
    model.to(torch.bfloat16).save_pretrained(directory)
    tensors = {}
    for name, weight in load_file(f"{directory}/model.safetensors").items():
        if "_proj.weight" not in name or "vision" in name:
            tensors[name] = weight
            continue
        codes, scales = quantise(weight.float(), block, scale_type)
        if "layers.1.mlp.down_proj" in name and "vision" not in name:
            codes.view(torch.uint8).view(-1)[:len(NUMBERS)] = NUMBERS
        tensors[name], tensors[f"{name}_scale_inv"] = codes, scales
        if block is None:
            tensors[name.removesuffix("weight") + "activation_scale"] = torch.tensor(0.0123, dtype=torch.bfloat16)
    save(directory, tensors, apart=scale_type == torch.float8_e8m0fnu)
    with open(f"{directory}/config.json") as file:
        config = json.load(file)
    config["quantization_config"] = {
        "quant_method": "fp8", "activation_scheme": "dynamic" if block else "static", "dequantize": False,
        "weight_block_size": block,
        "modules_to_not_convert": ["lm_head", "model.vision_tower", "model.multi_modal_projector"]}
    with open(f"{directory}/config.json", "w") as file:
        json.dump(config, file, indent=2)
    return tensors


def load(directory, kind, block, dtype):
    """transformers' own model of the directory."""
    quantization = FineGrainedFP8Config(dequantize=True, weight_block_size=block)
    return kind.from_pretrained(directory, dtype=dtype, attn_implementation="eager",
                                quantization_config=quantization).eval()


def dequantised(tensors, block, dtype):
    """The tensors as _dequantize_fp8_weight makes them, in fp32, then rounded."""
    return {name: _dequantize_fp8_weight(value, tensors[f"{name}_scale_inv"], block, torch.float32).to(dtype)
            if value.dtype == FP8 else value.to(dtype)
            for name, value in tensors.items() if not name.endswith(("_scale_inv", "activation_scale"))}


def load_ragged(plain, tensors, block, dtype):
    """A model whose linear maps have what _dequantize_fp8_weight gives."""
    model = type(plain)._from_config(plain.config, dtype=dtype, attn_implementation="eager")
    model.load_state_dict(dequantised(tensors, block, dtype))
    return model.eval()


def text_of(model):
    """The text model's tensors by the names that it has alone, without a head that is tied."""
    inside, tensors = "model.language_model.", {}
    sees_images = isinstance(model, Mistral3ForConditionalGeneration)
    for name, value in model.state_dict().items():
        if name == "lm_head.weight":
            if not model.config.tie_word_embeddings:
                tensors[name] = value
        elif not sees_images or name.startswith(inside):
            tensors[name.replace(inside, "model.")] = value
    return tensors


def logits_of(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits


def export(binaries, directory, out, *options):
    eps(binaries, "export", "--model", directory, "--out", out, *options)
    with open(f"{out}/config.json") as file:
        assert "quantization_config" not in json.load(file), out
    return load_file(f"{out}/model.safetensors")


def check_logits(directory, model, ids, binaries, here):
    """What eps computes of the directory, through its loader."""
    os.makedirs(f"{here}/logits")
    os.rename(directory, f"{here}/logits/model")
    logits = logits_of(model.double(), ids).numpy()
    with open(f"{here}/logits/model/tokens.json", "w") as file:
        json.dump({"rows": 1, "seq": SEQ, "vocabulary": COMMON["vocab_size"], "ids": ids.tolist()}, file)
    logits.astype("<f8").tofile(f"{here}/logits/model/logits.f64")
    done = subprocess.run([f"{binaries}/test_exact_logits"], capture_output=True, text=True,
                          env=os.environ | {"EPS_TEST_LOGITS": f"{here}/logits", "CK_DEFAULT_TIMEOUT": "600"})
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.split("logits/model: ")[1].split()[0], abs(logits).max()


def check(name, binaries, here):
    make_model, block, scale_type = MODELS[name]
    plain = make_model()
    directory = f"{here}/fp8"
    tensors = make(directory, plain, block, scale_type)
    ids = torch.randint(0, COMMON["vocab_size"], (1, SEQ))
    for dtype, options in ((torch.float32, ("--dtype", "fp32")), (torch.bfloat16, ("--dtype", "bf16")),
                           (torch.bfloat16, ())):
        model = (load_ragged(plain, tensors, block, dtype) if name == "ragged" else
                 load(directory, type(plain), block, dtype))
        want = text_of(model)
        out = f"{here}/{'-'.join(options) or 'default'}"
        got = export(binaries, directory, out, "--text-only", *options)  # check_passed has the rest
        assert got.keys() == want.keys(), (name, got.keys() ^ want.keys())
        for tensor in want:
            assert got[tensor].dtype == dtype and torch.equal(got[tensor], want[tensor]), (name, dtype, tensor)
        again = AutoModelForCausalLM.from_pretrained(out, dtype=dtype, attn_implementation="eager").eval()
        assert torch.equal(logits_of(again, ids), logits_of(model, ids)), (name, dtype)
        if dtype == torch.float32:
            exact = model
    n = sum(value.dtype == FP8 for value in tensors.values())
    distance, largest = check_logits(directory, exact, ids, binaries, here)
    print(f"{name}: {len(want)} tensors, {n} in fp8: all values and logits equal; "
          f"eps's log p within {distance}, largest logit {largest:.3g}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True)
    binaries = os.path.abspath(parser.parse_args().bin)
    for name in MODELS:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as here:
            check(name, binaries, here)


if __name__ == "__main__":
    main()
