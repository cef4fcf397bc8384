"""Tensors and models in fp8, in tests/fixtures: vectors/fp8_{blocks,scalar}.safetensors, and fp8 and fp8_blocks.

    python make_fp8.py

    vectors/fp8_blocks  matrices in blocks of 2 x 32, each with its scales and, as want.NAME, what
                        _dequantize_fp8_weight makes of both in fp32: every code; and sizes that are no multiples of a
                        block's, with scales in each type
    vectors/fp8_scalar  the same, with one scale a tensor, a single number or a list of one
    fp8                 a Ministral 3 with one scale a tensor and static activations
    fp8_blocks          a Qwen 3 in blocks of 16 x 32, no size a multiple

Beside the models: tokens.json and logits.f64, as logits.py has them, of the weights that transformers makes of fp8.
Made with torch 2.15.0 and transformers 5.24.0.
"""
import os
import shutil

import torch
from safetensors.torch import save_file
from transformers import Ministral3Config, Ministral3ForCausalLM, Qwen3Config, Qwen3ForCausalLM
from transformers.integrations.finegrained_fp8 import _dequantize_fp8_weight

import check_fp8
import drawn
import families
import fixture

FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
FP8, ROWS, SEQ = torch.float8_e4m3fn, 1, 9
SIZES = dict(vocab_size=256, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=14,
             hidden_size=40, intermediate_size=70, max_position_embeddings=64, initializer_range=0.2, bos_token_id=0,
             eos_token_id=None, tie_word_embeddings=True)


def codes_of(rows, columns):
    return torch.randint(0, 256, (rows, columns), dtype=torch.uint8).masked_fill_(torch.rand(rows, columns) < 0.1, 0)


def make_vectors(name, block, parts):
    """parts: name of a matrix, its codes, its scales."""
    tensors = {}
    for stem, codes, scales in parts:
        weight = codes.view(FP8)
        exact = scales.float().reshape(() if block is None else scales.shape)
        tensors |= {stem: weight, f"{stem}_scale_inv": scales,
                    f"want.{stem}": _dequantize_fp8_weight(weight, exact, block, torch.float32)}
    save_file(tensors, f"{FIXTURES}/vectors/{name}.safetensors", {"format": "pt"})


def make_model(name, plain, block, scale_type):
    directory = f"{FIXTURES}/{name}"
    shutil.rmtree(directory, ignore_errors=True)
    tensors = check_fp8.make(directory, plain, block, scale_type)
    os.remove(f"{directory}/generation_config.json")
    exact = {tensor: value.double() for tensor, value in check_fp8.dequantised(tensors, block, torch.float32).items()}
    ids, _ = drawn.minibatch(name, 0, ROWS, SEQ, SIZES["vocab_size"], 0)
    with families.throughout():
        model = type(plain)._from_config(plain.config, dtype=torch.float64, attn_implementation="eager").eval()
        model.load_state_dict(exact, strict=False)
        with torch.no_grad():
            logits = model(input_ids=torch.from_numpy(ids)).logits
    assert logits.dtype == torch.float64
    fixture.write(f"{directory}/tokens.json",
                  {"rows": ROWS, "seq": SEQ, "vocabulary": SIZES["vocab_size"], "ids": ids.tolist()})
    logits.numpy().astype("<f8").tofile(f"{directory}/logits.f64")


def main():
    torch.manual_seed(0)
    every = torch.arange(256, dtype=torch.uint8).view(8, 32)
    powers = torch.exp2(torch.randint(-20, 9, (2, 2)).float()).to(torch.float8_e8m0fnu)
    make_vectors("fp8_blocks", [2, 32], [
        ("layers.0.every.weight", every, torch.randn(4, 1).bfloat16()),
        ("layers.0.ragged.weight", codes_of(5, 70), torch.randn(3, 3)),
        ("layers.0.half.weight", codes_of(3, 33), torch.randn(2, 2).half()),
        ("layers.0.power.weight", codes_of(4, 40), powers)])
    make_vectors("fp8_scalar", None, [
        ("layers.0.every.weight", every, torch.tensor(0.00123).bfloat16()),
        ("layers.0.other.weight", codes_of(3, 5), torch.tensor([2.5e-4]))])
    make_model("fp8", Ministral3ForCausalLM(Ministral3Config(**SIZES)), None, torch.bfloat16)
    make_model("fp8_blocks", Qwen3ForCausalLM(Qwen3Config(**SIZES)), (16, 32), torch.float32)


if __name__ == "__main__":
    main()
