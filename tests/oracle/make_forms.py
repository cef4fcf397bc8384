"""Codes, scales and decoded weights by bitsandbytes: tests/fixtures/forms.json.

    python make_forms.py

Matrices of fp32: normal weights, blocks of 64 that cross rows, a shorter last block, zeros, midpoints between codes,
magnitudes far apart. Rows of 8 bits by int8_vectorwise_quant, NF4 by quantize_4bit in blocks of 64; the 16 quantiles; and the
8-bit scales of a 4-bit checkpoint (double quantisation).
"""
import bitsandbytes.functional as bnb
import torch

import fixture
import forms

torch.manual_seed(20)


def normal(rows, columns, deviation=0.02):
    return torch.randn(rows, columns) * deviation


def midpoints():
    code = bnb.get_4bit_type("nf4", device="cpu")
    middle = (code[:-1] + code[1:]) / 2
    return torch.cat([code, middle, torch.tensor([1.0]), torch.zeros(32)]).reshape(1, 64)


def far_apart():
    return normal(4, 48) * torch.tensor([1e-30, 1.0, 1e30, 1e-5]).reshape(4, 1)


def with_zeros():
    x = normal(3, 64)
    x[1] = 0
    return x


def halves():
    return (torch.arange(-127, 128) / 2).reshape(1, 255)


def record(x, codes, scales, decoded):
    return {"rows": x.shape[0], "columns": x.shape[1], "values": x.reshape(-1).tolist(),
            "codes": codes.reshape(-1).tolist(), "scales": scales.reshape(-1).tolist(),
            "decoded": decoded.reshape(-1).tolist()}


def nested(x):
    """The scales of a 4-bit checkpoint, before and after they are expanded."""
    _, state = bnb.quantize_4bit(x, blocksize=64, quant_type="nf4", compress_statistics=True)
    expanded = bnb.dequantize_blockwise(state.absmax, state.state2) + state.offset
    return {"absmax": state.absmax.tolist(), "nested_absmax": state.state2.absmax.tolist(),
            "nested_quant_map": state.state2.code.tolist(), "offset": state.offset.item(),
            "block": state.state2.blocksize, "expanded": expanded.tolist()}


fixture.write("../fixtures/forms.json", {
    "nf4_quantiles": bnb.get_4bit_type("nf4", device="cpu").tolist(),
    "nf4": [record(x, *forms.nf4(x)) for x in (normal(4, 64), normal(3, 96), normal(1, 130), with_zeros(), midpoints(), far_apart())],
    "int8": [record(x, *forms.int8(x)) for x in (normal(4, 64), normal(3, 97), normal(2, 5), halves(), far_apart())],
    "nested": nested(normal(265, 64)),
})
