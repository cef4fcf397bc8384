"""libeps, and what every call of it shares: its errors, Ctrl-C, and exceptions of callbacks.

A call runs with the interpreter's lock released, and takes it for each callback. Python's own handlers of signals run
while a callback does: the library asks several times a second whether it should stop."""

from __future__ import annotations

import errno
import math
import os
from pathlib import Path
from typing import Any, Callable, Optional, Union

from eps._declared import ffi

StrPath = Union[str, "os.PathLike[str]"]

_folder = Path(__file__).parent / "programs"
lib = ffi.dlopen(str(_folder / "libeps.so.0"))
programs = ffi.new("char[]", os.fsencode(_folder))  #: where epsd and eps-worker are


class Error(Exception):
    """What the library says of a call that failed: one sentence. `errno` is the error's number."""

    def __init__(self, sentence: str, number: int) -> None:
        super().__init__(sentence)
        self.errno = number


class OptionError(Error, ValueError):
    """An option's value is invalid, or options contradict each other."""


def text_of(pointer: Any) -> Optional[str]:
    """A string of the library; None for NULL."""
    return ffi.string(pointer).decode(errors="replace") if pointer else None


def number_of(value: float) -> Optional[float]:
    """None for NaN, which stands for what is unknown."""
    return None if math.isnan(value) else value


class Call:
    """One call of the library: its callbacks, and what they raised.

    An exception in a callback ends the call, after a save if it is a run's, and is raised then; so does Ctrl-C. A second
    Ctrl-C ends a run at once."""

    def __init__(self) -> None:
        self.error = ffi.new("struct eps_error *")
        self.raised: Optional[BaseException] = None
        self.interrupts = 0
        self._alive: list[Any] = []  # callbacks, and memory that the library borrows

    def _note(self, kind: Any, value: BaseException, trace: Any) -> None:
        self.interrupts += isinstance(value, KeyboardInterrupt)
        if self.raised is None or (self.interrupts == 1 and isinstance(value, KeyboardInterrupt)):
            self.raised = value.with_traceback(trace)

    def keep(self, value: Any) -> Any:
        self._alive.append(value)
        return value

    def text(self, value: StrPath) -> Any:
        """Borrowed by the library until the call ends."""
        if "\0" in os.fsdecode(value):
            raise ValueError(f"{value!r} has a character of code 0")
        return self.keep(ffi.new("char[]", os.fsencode(value)))

    def callback(self, declaration: str, function: Callable[..., Any], error: int = 0) -> Any:
        """A function of this C type; `error` is what it returns where an exception is raised."""
        returns = () if declaration.startswith("void") else (error,)
        return self.keep(ffi.callback(declaration, function, *returns, onerror=self._note))

    def stop(self) -> Any:
        """should_stop."""
        return self.callback("int(void *)", lambda user: min(2, max(self.interrupts, self.raised is not None)), 1)

    def done(self, rc: int) -> None:
        """Raises what ended the call: a callback's exception, or the library's error."""
        if self.raised is not None:
            raise self.raised
        if rc:
            sentence = text_of(self.error.text) or os.strerror(-rc)
            raise (OptionError if -rc == errno.EDOM else Error)(sentence, -rc)
