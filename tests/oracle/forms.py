"""The forms of frozen weights (proto/base/form.h) by bitsandbytes: codes, scales and decoded weights of an fp32 matrix.

NF4 is decoded by the package's own PyTorch code, as its library for CPUs takes scales of other blocks where rows are no
multiple of 64. Made with bitsandbytes 0.50.2.
"""
import bitsandbytes.functional as bnb
import torch
from bitsandbytes.backends.default.ops import _dequantize_4bit_compute


def nf4(x):
    codes, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=False)
    decoded = _dequantize_4bit_compute.__wrapped__(codes.reshape(-1), state.absmax, state.code, 64, x.shape, torch.float32)
    return codes, state.absmax, decoded


def int8(x):
    codes, scales, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(x.clone(), 0.0)
    return codes, scales, bnb.int8_vectorwise_dequant(codes, scales)


def bf16(x):
    return x.bfloat16(), torch.zeros(0), x.bfloat16().float()


def decoded(x, base, is_matrix):
    """x as a run with --base has it: only matrices of layers are coded in fewer than 16 bits."""
    return {"nf4": nf4, "int8": int8, "bf16": bf16}[base if is_matrix else "bf16"](x)[2]
