"""Arrays that a program gives: lists, numpy's, torch's, whatever has DLPack or buffers, as numpy's (rows, tokens)."""

from __future__ import annotations

from typing import Any, Optional

ignored = -100  #: the label that PyTorch's cross entropy leaves out


def _array(values: Any) -> Any:
    import numpy

    if hasattr(values, "detach"):  # torch's, on any device
        values = values.detach().cpu()
        values = values.float() if values.is_floating_point() else values  # numpy has no bfloat16
    return numpy.from_dlpack(values) if hasattr(values, "__dlpack__") and not isinstance(values, numpy.ndarray) \
        else numpy.asarray(values)


def tokens(name: str, values: Any, shape: tuple[Optional[int], int], least: int, vocabulary: int) -> Any:
    """Integers below the vocabulary, or `least`. shape: None for any number of rows."""
    array = _array(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    if array.ndim != 2 or array.shape[1] != shape[1] or shape[0] not in (None, len(array)) or len(array) == 0:
        wanted = f"(any, {shape[1]}), with the engine's seq" if shape[0] is None else f"{shape}, the engine's batch and seq"
        raise ValueError(f"{name} has the shape {array.shape}: it must be {wanted}")
    wrong = array[(array >= vocabulary) | ((array < 0) & (array != least))]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}: the model's ids are from 0 to {vocabulary - 1}"
                         + (f", and {least} is no label" if least else ""))
    return array


def labels_of(ids: Any, labels: Any, vocabulary: int) -> Any:
    """What each of the ids predicts: those that are given, or the token after it."""
    import numpy

    if labels is not None:
        return tokens("labels", labels, ids.shape, ignored, vocabulary)
    after = numpy.full(ids.shape, ignored, dtype=numpy.int64)
    after[:, :-1] = ids[:, 1:]
    return after


def numbers(name: str, values: Any, shape: tuple[int, int]) -> Any:
    """Finite numbers, in float32."""
    import numpy

    array = _array(values)
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must be numbers, not {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}: it must be {shape}, as ids")
    array = array.astype(numpy.float32)
    if not numpy.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~numpy.isfinite(array)][0]}: it must hold finite numbers")
    return array
