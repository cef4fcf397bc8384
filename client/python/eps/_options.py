"""Options of a training run: keywords from the library's table of options (client/eps_options.h), one row each."""

from __future__ import annotations

import inspect
import os
import re
from typing import Any, Iterator, Mapping, Optional, Sequence

from eps._library import Call, OptionError, ffi, lib, number_of, programs, text_of


def rows() -> Iterator[tuple[str, Any]]:
    """Each option's keyword, and its row: --min-lr is min_lr."""
    n = ffi.new("size_t *")
    table = lib.eps_options(n)
    for i in range(n[0]):
        if table[i].kind != lib.EPS_OPTION_HEADING and (table[i].train or table[i].plan):
            yield text_of(table[i].name)[2:].replace("-", "_"), table[i]


_rows = dict(rows())

_whole = {
    lib.EPS_OPTION_COUNT: "uint32_t",
    lib.EPS_OPTION_AUTO: "uint32_t",
    lib.EPS_OPTION_NUMBER_32: "uint32_t",
    lib.EPS_OPTION_LONG: "uint64_t",
    lib.EPS_OPTION_NUMBER: "uint64_t",
    lib.EPS_OPTION_BYTES: "uint64_t",
}
_from_one = (lib.EPS_OPTION_COUNT, lib.EPS_OPTION_AUTO, lib.EPS_OPTION_LONG)
_texts = (lib.EPS_OPTION_TEXT, lib.EPS_OPTION_OPTIONAL_TEXT, lib.EPS_OPTION_PATTERNS)


_kinds = {
    lib.EPS_OPTION_FLAG: "a bool",
    lib.EPS_OPTION_TEXT: "a str",
    lib.EPS_OPTION_OPTIONAL_TEXT: "a str",
    lib.EPS_OPTION_PATTERNS: "a str, or a list of str",
    lib.EPS_OPTION_TEXTS: "a str or a path, or a list of them",
    lib.EPS_OPTION_BYTES: 'an int, or a str as "1.5GiB"',
    lib.EPS_OPTION_AUTO: 'an int, or "auto"',
    lib.EPS_OPTION_REAL: "a float",
    lib.EPS_OPTION_PAIR: "a pair of floats",
}


def kind_of(row: Any) -> str:
    """The Python type of a row's value, in words."""
    if row.kind == lib.EPS_OPTION_CHOICE:
        return one_of(words_of(row))
    return _kinds.get(row.kind, "an int")


def one_of(words: Sequence[str]) -> str:
    return "one of " + ", ".join(words)


def words_of(row: Any) -> list[str]:
    return text_of(row.value).split("|")


def words_of_option(name: str) -> list[str]:
    """The words of a choice."""
    return words_of(_rows[name])


def choice_of(name: str, value: Any, words: Sequence[str]) -> int:
    """The number of a choice's word, from 1."""
    if value not in words:
        raise OptionError(f"{name} is {value!r}: it must be {one_of(words)}", 33)
    return 1 + words.index(value)


def bytes_of(call: Call, name: str, value: str) -> int:
    out = ffi.new("uint64_t *")
    call.done(lib.eps_parse_bytes(out, name.encode(), value.encode(), call.error))
    return out[0]


def checked_real(name: str, value: float) -> float:
    """Refuses NaN, which the library takes for unset."""
    if value != value:
        raise OptionError(f"{name} is nan: it must be a number", 33)
    return value


def _wrong(name: str, row: Any, value: Any) -> TypeError:
    return TypeError(f"{name} must be {kind_of(row)}, not {type(value).__name__}")


def _put_whole(at: Any, call: Call, name: str, row: Any, value: Any) -> None:
    if row.kind == lib.EPS_OPTION_AUTO and value == "auto":
        value = 0
    elif row.kind == lib.EPS_OPTION_BYTES and isinstance(value, str):
        value = bytes_of(call, name, value)
    elif isinstance(value, bool) or not hasattr(value, "__index__"):
        raise _wrong(name, row, value)
    elif (value := value.__index__()) < (row.kind in _from_one):
        raise OptionError(f"{name} is {value}: it must be from {int(row.kind in _from_one)} on", 33)
    kind = _whole[row.kind]
    if value >= 1 << 8 * ffi.sizeof(kind):
        raise OptionError(f"{name} is {value}: it must be below 2^{8 * ffi.sizeof(kind)}", 33)
    ffi.cast(kind + " *", at)[0] = value


def _is_real(value: Any) -> bool:
    return not isinstance(value, (bool, str)) and (hasattr(value, "__float__") or hasattr(value, "__index__"))


def _put_reals(at: Any, name: str, row: Any, value: Any) -> None:
    values = (value,) if row.kind == lib.EPS_OPTION_REAL else value
    n = 1 if row.kind == lib.EPS_OPTION_REAL else 2
    if not isinstance(values, (tuple, list)) or len(values) != n or not all(map(_is_real, values)):
        raise _wrong(name, row, value)
    for i, each in enumerate(values):
        ffi.cast("double *", at)[i] = checked_real(name, float(each))


def _paths(name: str, row: Any, value: Any) -> list[str]:
    values = [value] if isinstance(value, (str, os.PathLike)) else value
    if not isinstance(values, (list, tuple)) or not all(isinstance(each, (str, os.PathLike)) for each in values):
        raise _wrong(name, row, value)
    return [os.fspath(each) for each in values]


def _put(to: Any, call: Call, name: str, row: Any, value: Any) -> None:
    at = ffi.cast("char *", to) + row.offset
    if row.kind == lib.EPS_OPTION_FLAG:
        if not isinstance(value, bool):
            raise _wrong(name, row, value)
        ffi.cast("bool *", at)[0] = value
    elif row.kind == lib.EPS_OPTION_TEXTS:
        paths = [call.text(path) for path in _paths(name, row, value)]
        ffi.cast("char ***", at)[0] = call.keep(ffi.new("char *[]", paths))
        ffi.cast("size_t *", at + ffi.sizeof("char **"))[0] = len(paths)
    elif row.kind in _texts:
        if row.kind != lib.EPS_OPTION_PATTERNS and not isinstance(value, (str, os.PathLike)):
            raise _wrong(name, row, value)
        ffi.cast("char **", at)[0] = call.text(",".join(_paths(name, row, value)))
    elif row.kind in _whole:
        _put_whole(at, call, name, row, value)
    elif row.kind in (lib.EPS_OPTION_REAL, lib.EPS_OPTION_PAIR):
        _put_reals(at, name, row, value)
    else:
        ffi.cast("uint32_t *", at)[0] = choice_of(name, value, words_of(row))


def unknown(name: str, known: Mapping[str, Any], of: str) -> TypeError:
    """The error for a keyword that a function does not have, with what it is called here, or the nearest that it has."""
    names = [ffi.new("char[]", each.encode()) for each in known]
    options = [ffi.new("char[]", ("--" + each.replace("_", "-")).encode()) for each in known]
    foreign = ffi.new("char[]", lib.EPS_FOREIGN_TEXT)
    if lib.eps_foreign(foreign, name.encode(), ffi.new("char *[]", options), len(options)):
        return TypeError(f"{of} has no option {name!r}: {text_of(foreign)}")
    nearest = text_of(lib.eps_nearest(name.encode(), ffi.new("char *[]", names), len(names)))
    return TypeError(f"{of} has no option {name!r}" + (f": did you mean {nearest!r}?" if nearest else ""))


def fill(call: Call, given: Mapping[str, Any], of: str) -> Any:
    """struct eps_train_options * with the options that are not None; borrows from the call."""
    to = call.keep(ffi.new("struct eps_train_options *"))
    to[0] = lib.eps_train_defaults()
    to.programs = programs
    for name, value in given.items():
        if name not in _rows:
            raise unknown(name, _rows, of)
        if value is not None:
            _put(to, call, name, _rows[name], value)
    return to


def _value(of: Any, row: Any) -> Any:
    """None: unset."""
    at = ffi.cast("char *", of) + row.offset
    if row.kind == lib.EPS_OPTION_FLAG:
        return ffi.cast("bool *", at)[0] or None
    if row.kind == lib.EPS_OPTION_TEXTS:
        n = ffi.cast("size_t *", at + ffi.sizeof("char **"))[0]
        return [text_of(ffi.cast("char ***", at)[0][i]) for i in range(n)] or None
    if row.kind in _texts:
        return text_of(ffi.cast("char **", at)[0])
    if row.kind == lib.EPS_OPTION_REAL:
        return number_of(ffi.cast("double *", at)[0])
    if row.kind == lib.EPS_OPTION_PAIR:
        pair = [number_of(ffi.cast("double *", at)[i]) for i in range(2)]
        return None if None in pair else pair
    kind = _whole.get(row.kind, "uint32_t")
    number = ffi.cast(kind + " *", at)[0]
    if row.kind == lib.EPS_OPTION_CHOICE:
        return words_of(row)[number - 1] if number else None
    if row.kind in (lib.EPS_OPTION_NUMBER, lib.EPS_OPTION_NUMBER_32):
        return None if number == (1 << 8 * ffi.sizeof(kind)) - 1 else number
    return number or None


def values(of: Any) -> dict[str, Any]:
    """The options that are set in a struct eps_train_options *, by their keywords."""
    found = {name: _value(of, row) for name, row in _rows.items() if text_of(row.train) is not None}
    return {name: value for name, value in found.items() if value is not None}


def describe(function: Any, of_plan: bool, without: tuple[str, ...] = ()) -> None:
    """Gives a function that takes **options the signature and the help of the options' rows."""
    lines, parameters = [], []
    for name, row in _rows.items():
        words: Optional[str] = text_of(row.plan if of_plan else row.train)
        if name in without or words is None:
            continue
        parameters.append(inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None))
        words = re.sub(r"--([a-z][a-z-]*)", lambda m: m[1].replace("-", "_"), " ".join(words.split()))
        lines.append(f"    {name}: {kind_of(row)}\n        {words}")
    own = inspect.signature(function)
    kept = [p for p in own.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = own.replace(parameters=kept + parameters)
    function.__doc__ = inspect.cleandoc(function.__doc__) + "\n\nOptions:\n" + "\n".join(lines)
