"""Data of a Python program: rows of any iterable become lines of a file, which the library reads."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from typing import Any, Iterable, Iterator, Optional

from eps._library import Error


def _is_paths(data: Any) -> bool:
    """A str is a path, and so is each of a list; texts come as dicts, or by an iterator."""
    each = [data] if isinstance(data, (str, os.PathLike)) else data
    return isinstance(each, (list, tuple)) and len(each) > 0 and all(isinstance(i, (str, os.PathLike)) for i in each)


def _rows(data: Any) -> Iterable[Any]:
    """A pandas.DataFrame's, or a pyarrow.Table's, as dicts; any other iterable is one of rows."""
    if hasattr(data, "to_dict") and hasattr(data, "columns"):
        return (dict(zip(data.columns, row)) for row in data.itertuples(index=False, name=None))
    if hasattr(data, "to_batches"):
        return (row for batch in data.to_batches() for row in batch.to_pylist())
    if isinstance(data, dict) and any(hasattr(split, "column_names") for split in data.values()):
        raise TypeError(f"data has splits ({', '.join(data)}): name one, as data[\"{next(iter(data))}\"]")
    if isinstance(data, (dict, bytes)) or not hasattr(data, "__iter__"):
        raise TypeError(f"data must be paths, or an iterable of str or dict, not {type(data).__name__}")
    return data


_columnar = (".parquet", ".arrow", ".feather")
_free_bytes, _most_times = 64 << 20, 250  # what a file of columns may expand to, as of a compressed text (client/data)
_batch_rows = 1024


def _batches(path: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet
    with pyarrow.memory_map(path) as file:
        if path.endswith(".parquet"):
            of_file = pyarrow.parquet.ParquetFile(file)
            groups = range(of_file.metadata.num_row_groups)
            _bound(path, sum(of_file.metadata.row_group(i).total_byte_size for i in groups))
            yield from of_file.iter_batches(_batch_rows)
            return
        try:
            of_file = pyarrow.ipc.open_file(file)
            yield from (of_file.get_batch(i) for i in range(of_file.num_record_batches))
        except pyarrow.ArrowInvalid:  # a stream, as the package datasets writes it
            file.seek(0)
            yield from pyarrow.ipc.open_stream(file)


def _table_rows(path: str) -> Iterator[Any]:
    """Those of a file of columns, by pyarrow."""
    try:
        import pyarrow
    except ImportError as error:
        raise ImportError(f"{path} needs the package pyarrow: pip install pyarrow") from error
    try:
        for batch in _batches(path):
            for first in range(0, batch.num_rows, _batch_rows):
                yield from batch.slice(first, _batch_rows).to_pylist()
    except FileNotFoundError:
        raise Error(f"{path}: No such file or directory", errno.ENOENT) from None
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        kind = os.path.splitext(path)[1][1:]
        raise Error(f"{path} cannot be read as {kind}, it may be damaged: {error}", errno.EINVAL) from error


def _bound(path: str, n: int) -> None:
    """Refuses a file of columns that expands to n bytes, or more, if it is a bomb."""
    if n > _free_bytes and n > _most_times * os.path.getsize(path):
        raise Error(f"{path}: expands to more than {_most_times} times its size, unlike text: "
                    "write its rows as .jsonl yourself if they are text", errno.EINVAL)


def _plain(value: Any) -> Any:
    """Of values that JSON does not know: numbers and arrays of numpy."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value of type {type(value).__name__} is in it")


def _line(row: Any, number: int) -> str:
    if isinstance(row, str):
        row = {"text": row}
    if not isinstance(row, dict):
        raise TypeError(f"row {number} of data is of type {type(row).__name__}: it must be a str or a dict")
    try:
        return json.dumps(row, ensure_ascii=False, default=_plain)
    except (TypeError, ValueError) as error:
        raise TypeError(f"row {number} of data cannot be written as JSON: {error}") from None


@contextlib.contextmanager
def as_files(data: Any) -> Iterator[Optional[Any]]:
    """Paths of the data, which last as long as the context; None for None."""
    is_paths = data is None or _is_paths(data)
    paths = [data] if isinstance(data, (str, os.PathLike)) else list(data) if is_paths and data else []
    tables = [os.fspath(path) for path in paths if os.fspath(path).endswith(_columnar)]
    if is_paths and not tables:
        yield data
        return
    with tempfile.TemporaryDirectory(prefix="eps-data-") as folder, contextlib.ExitStack() as open_files:
        def lines(name: str, rows: Iterable[Any], table: Optional[str] = None) -> str:
            """The file has no name, only a link to it has: a process that is killed leaves no rows behind."""
            file = open_files.enter_context(tempfile.TemporaryFile(dir=folder))
            n = 0
            for number, row in enumerate(rows, 1):
                n += file.write((_line(row, number) + "\n").encode("utf-8", "surrogateescape"))
                if table:
                    _bound(table, n)
            file.flush()
            path = os.path.join(folder, name)
            os.symlink(f"/proc/self/fd/{file.fileno()}", path)
            return path

        if is_paths:
            yield [lines(f"{i}.jsonl", _table_rows(path), path) if path in tables else path
                   for i, path in enumerate(map(os.fspath, paths))]
        else:
            yield lines("rows.jsonl", _rows(data))
