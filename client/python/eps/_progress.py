"""A bar of a run's progress, by tqdm where it is installed."""

from __future__ import annotations

import sys
from typing import Any, Optional


def _is_watched() -> bool:
    return sys.stderr is not None and sys.stderr.isatty() or "ipykernel" in sys.modules


class Progress:
    """wanted None: where somebody watches, if tqdm is there. True: tqdm must be there."""

    def __init__(self, wanted: Optional[bool]) -> None:
        self._bar: Any = None
        self._make: Any = None
        if wanted or (wanted is None and _is_watched()):
            try:
                from tqdm.auto import tqdm
            except ImportError:
                if wanted:
                    raise
            else:
                self._make = tqdm

    def begin(self, n_steps: int) -> None:
        self._n_steps = n_steps

    def step(self, step: Any) -> None:
        if self._make and not self._bar:
            self._bar = self._make(total=self._n_steps, initial=step.step - 1, unit="step")
        if self._bar is not None:
            held_out = "" if step.eval_loss is None else f", held out {step.eval_loss:.4f}"
            self._bar.set_postfix_str("" if step.loss is None else f"loss {step.loss:.4f}{held_out}", refresh=False)
            self._bar.update()

    def end(self) -> None:
        if self._bar is not None:
            self._bar.close()
