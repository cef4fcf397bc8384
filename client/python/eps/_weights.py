"""The weights of an engine, as they are in the daemon's memory."""

from __future__ import annotations

import mmap
import os
from typing import Any, Iterator, Optional

from eps._library import Error, ffi, lib, text_of

_types = {lib.EPS_FP32: "float32", lib.EPS_BF16: "uint16", lib.EPS_FP16: "float16"}


class Weights:
    """All tensors after one step. The mapping lives as long as an array of it does."""

    def __init__(self, weights: Any, before: Optional[Weights]) -> None:
        self.inode = os.fstat(weights.fd).st_ino
        if before is not None and before.inode == self.inode:
            self.memory = before.memory
        else:
            self.memory = mmap.mmap(weights.fd, weights.bytes, access=mmap.ACCESS_READ)
        self.tensors = {}
        for i in range(weights.n_tensors):
            t = weights.tensors[i]
            self.tensors[text_of(t.name)] = (_types[t.type], tuple(t.shape[0:t.n_dims]), text_of(t.why),
                                             [(p.offset, p.n_rows) for p in t.pieces[0:t.n_pieces]])

    def array(self, name: str) -> Any:
        import numpy

        if name not in self.tensors:
            raise KeyError(f"the model has no tensor {name!r}")
        kind, shape, why, pieces = self.tensors[name]
        if why is not None:
            raise Error(f"{name} {why}", 22)
        rows = [numpy.ndarray((n_rows, *shape[1:]), kind, self.memory, offset) for offset, n_rows in pieces]
        if len(rows) == 1:
            return rows[0]
        array = numpy.concatenate(rows)
        array.flags.writeable = False
        return array

    def __iter__(self) -> Iterator[tuple[str, Any]]:
        return ((name, self.array(name)) for name, (_, _, why, _) in self.tensors.items() if why is None)
