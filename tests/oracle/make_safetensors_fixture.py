#!/usr/bin/env python3
"""Writes tests/fixtures/vectors/package.safetensors and tests/fixtures/vectors/package_f32.safetensors with the safetensors package.

The first has one tensor of each type that matters, among them a scalar and an empty one; the second has the tensors
that tests/proto/model/test_safetensors.c writes itself and compares byte by byte. Needs: pip install safetensors numpy."""

import pathlib

import numpy
from safetensors import TensorSpec, serialize
from safetensors.numpy import save_file

DATA = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "vectors"


def spec(dtype, values):
    return TensorSpec(dtype=dtype, shape=list(values.shape), data_ptr=values.ctypes.data, data_len=values.nbytes)


def main():
    f32 = numpy.arange(6, dtype=numpy.float32).reshape(2, 3) / 4 - 0.5
    f16 = numpy.array([1, -2, 0.5, 65504, 2.0**-24, numpy.inf], dtype=numpy.float16)
    bf16 = numpy.array([0x3F80, 0xC000, 0x4049, 0x0001], dtype=numpy.uint16)  # 1, -2, 3.140625, 2^-133
    i64 = numpy.array([7, 8], dtype=numpy.int64)
    flags = numpy.tril(numpy.ones((1, 1, 3, 3), dtype=numpy.uint8))
    scalar = numpy.array(2.5, dtype=numpy.float32)
    empty = numpy.zeros((0, 4), dtype=numpy.float32)
    tensors = {
        "wte.weight": spec("float32", f32),
        "half": spec("float16", f16),
        "brain": spec("bfloat16", bf16),
        "counts": spec("int64", i64),
        "h.0.attn.bias": spec("bool", flags),
        "scalar": spec("float32", scalar),
        "empty": spec("float32", empty),
    }
    (DATA / "package.safetensors").write_bytes(serialize(tensors, {"format": "pt", "note": "a \"quoted\" \u00fc"}))
    save_file({"h.0.ln_1.bias": numpy.array([1, 2, 3], dtype=numpy.float32), "wte.weight": f32},
              DATA / "package_f32.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
