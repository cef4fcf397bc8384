"""Quantised checkpoints, as eps reads them, against the values that bitsandbytes and MXFP4's table give.

Makes a small Llama; transformers saves it by bitsandbytes (nf4, nf4 with nested scales, fp4, 8 bits), and MXFP4 blocks are
drawn. `eps export` writes each as fp32. All values must be equal. Made with bitsandbytes 0.50.2, transformers 5.23.

    python check_coded.py --bin ../../build/bin
"""
import argparse
import json
import os
import shutil
import tempfile

import bitsandbytes.functional as bnb
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, LlamaForCausalLM

from programs import eps

E2M1 = torch.tensor([0, .5, 1, 1.5, 2, 3, 4, 6, -0., -.5, -1, -1.5, -2, -3, -4, -6])
FORMS = {
    "nf4": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4"),
    "nf4-nested": dict(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True),
    "fp4": dict(load_in_4bit=True, bnb_4bit_quant_type="fp4"),
    "int8": dict(load_in_8bit=True),
}


def decode_4bit(tensors, name):
    parts = {key[len(name) + 1:]: value for key, value in tensors.items() if key.startswith(name + ".")}
    state = bnb.QuantState.from_dict(parts, device=torch.device("cpu"))
    scales = state.absmax
    if state.nested:
        scales = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    codes = tensors[name].flatten()
    codes = torch.stack([codes >> 4, codes & 15], 1).flatten().long()
    return (state.code[codes].view(-1, state.blocksize) * scales.float()[:, None]).view(state.shape)


def decode(tensors):
    out = {}
    for name, value in tensors.items():
        if not name.endswith(".weight"):
            continue
        scales = tensors.get(name.removesuffix("weight") + "SCB")
        if name + ".quant_map" in tensors:
            value = decode_4bit(tensors, name)
        elif scales is not None:
            value = bnb.int8_vectorwise_dequant(value, scales)
        out[name] = value
    return out


def draw_mxfp4(source, directory):
    """Both names that a matrix may have: with ".weight" and without. Returns the values."""
    tensors, values = {}, {}
    for name, value in load_file(f"{source}/model.safetensors").items():
        if "proj" not in name:
            tensors[name] = values[name] = value
            continue
        rows, columns = value.shape
        blocks = torch.randint(0, 256, (rows, columns // 32, 16), dtype=torch.uint8)
        scales = torch.randint(115, 125, (rows, columns // 32), dtype=torch.uint8)
        stem = name if "mlp" in name else name.removesuffix(".weight")
        tensors[stem + "_blocks"], tensors[stem + "_scales"] = blocks, scales
        pairs = torch.stack([E2M1[(blocks & 15).long()], E2M1[(blocks >> 4).long()]], -1)
        values[name] = (pairs.reshape(rows, -1, 32) * torch.exp2(scales.float() - 127)[..., None]).reshape(rows, columns)
    shutil.copytree(source, directory)
    save_file(tensors, f"{directory}/model.safetensors", metadata={"format": "pt"})
    with open(f"{directory}/config.json") as file:
        config = json.load(file)
    with open(f"{directory}/config.json", "w") as file:
        json.dump(config | {"quantization_config": {"quant_method": "mxfp4"}}, file)
    return values


def check(name, directory, want, binaries):
    out = f"{directory}-out"
    eps(binaries, "export", "--model", directory, "--out", out, "--dtype", "fp32")
    got = load_file(f"{out}/model.safetensors")
    with open(f"{out}/config.json") as file:
        assert "quantization_config" not in json.load(file), name
    assert got.keys() == want.keys(), name
    for tensor in want:
        assert torch.equal(got[tensor], want[tensor]), (name, tensor)
    print(f"{name}: {len(want)} tensors, all values equal")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", required=True)
    binaries = os.path.abspath(parser.parse_args().bin)
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as here:
        plain = f"{here}/plain"
        LlamaForCausalLM(LlamaConfig(vocab_size=64, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                     num_attention_heads=2, num_key_value_heads=1)).save_pretrained(plain)
        for name, form in FORMS.items():
            model = AutoModelForCausalLM.from_pretrained(plain, quantization_config=BitsAndBytesConfig(**form),
                                                         device_map="cpu")
            model.save_pretrained(f"{here}/{name}")
            check(name, f"{here}/{name}", decode(load_file(f"{here}/{name}/model.safetensors")), binaries)
        check("mxfp4", f"{here}/mxfp4", draw_mxfp4(plain, f"{here}/mxfp4"), binaries)


if __name__ == "__main__":
    main()
