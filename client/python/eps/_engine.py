"""eps.Engine: a model that a program trains by a loop of its own, minibatch by minibatch."""

from __future__ import annotations

import queue
import tempfile
import threading
from pathlib import Path
from typing import Any, Optional

from eps._library import Call, Error, StrPath, ffi, lib, text_of
from eps._options import fill
from eps._train import Step, step_of

_ignored = -100  # the label that PyTorch's cross entropy leaves out
_endless = 2**40  # the most steps that a run has


def _matrix(name: str, values: Any, shape: tuple[int, int], least: int, vocabulary: int) -> Any:
    """An array of numpy's (rows, tokens) of any integers: lists, numpy, torch, whatever has DLPack or buffers."""
    import numpy

    if hasattr(values, "detach"):  # torch's, on any device
        values = values.detach().cpu()
    array = numpy.from_dlpack(values) if hasattr(values, "__dlpack__") and not isinstance(values, numpy.ndarray) \
        else numpy.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, not {array.dtype}")
    if array.shape != shape:
        raise ValueError(f"{name} has the shape {array.shape}: it must be {shape}, the engine's batch and seq")
    wrong = array[(array >= vocabulary) | ((array < 0) & (array != least))]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}: the model's ids are from 0 to {vocabulary - 1}"
                         + (f", and {least} is no label" if least else ""))
    return array


class Engine:
    """A model in training, driven by steps of one's own:

        with eps.Engine("runs/first/latest", batch=8, seq=128, lr=1e-4, device_mem="1GiB") as engine:
            for ids in minibatches:
                loss = engine.step(ids)
            engine.save("runs/mine")

    model: as in eps.train. batch, seq: rows of a step, and tokens of each. lr: the rate, until step names another.
    Other options are those of eps.train that say how a step computes: optimizer, precision, device, device_mem,
    microbatch, lora, freeze, parts, workers, deterministic, ... It has a daemon and workers of its own, which end with it;
    a killed interpreter leaves none behind. Not for encoder-decoders, classifiers and images."""

    def __init__(self, model: StrPath, *, batch: int, seq: int, lr: float = 2e-5, out: Optional[StrPath] = None,
                 **options: Any) -> None:
        import numpy

        for name in ("data", "eval_data", "steps", "epochs", "schedule", "warmup", "save_every", "save_minutes",
                     "eval_every", "resume", "attach", "connect"):
            if name in options:
                raise TypeError(f"eps.Engine has no option {name!r}: its steps are the program's")
        self.batch, self.seq = batch, seq
        self._folder: Optional[tempfile.TemporaryDirectory[str]] = tempfile.TemporaryDirectory(prefix="eps-engine-")
        work = Path(self._folder.name)
        self.path = Path(out) if out is not None else work / "run"  #: the run's directory
        numpy.save(work / "rows.npy", numpy.zeros(8 * batch * (seq + 1), dtype=numpy.uint16))
        numpy.save(work / "held-out.npy", numpy.zeros(seq + 1, dtype=numpy.uint16))
        self._call = Call()
        self._to = fill(self._call, dict(options, model=str(model), data=[work / "rows.npy"], order="sequential",
                                         eval_data=str(work / "held-out.npy"), batch=batch, seq=seq, lr=float(lr),
                                         min_lr=float(lr), schedule="constant", warmup=0, steps=_endless, epochs=None,
                                         save_every=_endless, save_minutes=0, eval_every=_endless, out=str(self.path)),
                        "eps.Engine")
        self._asked: queue.Queue[Any] = queue.Queue(1)  # what the program wants
        self._told: queue.Queue[Any] = queue.Queue()  # what became of it
        self._rows: Any = None
        self._saved: Optional[Path] = None
        self._failed: Optional[str] = None
        self._lr: Optional[float] = None
        self.vocabulary = 0  #: ids are below it
        self.last: Optional[Step] = None  #: the last step: loss, norms, memory
        self._lock = threading.Lock()
        self._thread: Optional[threading.Thread] = threading.Thread(target=self._run, name="eps.Engine", daemon=True)
        self._listen()
        self._thread.start()
        self._wait()

    # ---- the library's thread ----

    def _listen(self) -> None:
        call = self._call
        self._to.on_rows = call.callback("enum eps_rows(void *, struct eps_step_rows *)", self._on_rows,
                                         lib.EPS_ROWS_END)
        events = self._events = call.keep(ffi.new("struct eps_train_events *"))
        events.on_step = call.callback("void(void *, const struct eps_step *)",
                                       lambda user, step: self._told.put(step_of(step)))
        events.on_saved = call.callback("void(void *, uint64_t, const char *)", self._on_saved)
        events.on_save_failed = call.callback("void(void *, uint64_t, const char *)", self._on_save_failed)
        events.should_stop = call.stop()

    def _on_saved(self, user: Any, step: int, path: Any) -> None:
        self._saved = Path(text_of(path) or "")

    def _on_save_failed(self, user: Any, step: int, why: Any) -> None:
        self._failed = text_of(why)

    def _on_rows(self, user: Any, rows: Any) -> int:
        self.vocabulary = rows.vocabulary
        self._told.put(None)  # the engine waits
        wish = self._asked.get()
        if wish in ("end", "save"):
            return lib.EPS_ROWS_END if wish == "end" else lib.EPS_ROWS_SAVE
        import numpy

        ids, labels = wish
        n = rows.n_rows * rows.n_tokens
        for to, values in ((rows.ids, ids), (rows.labels, labels)):
            view = numpy.frombuffer(ffi.buffer(to, 4 * n), dtype=numpy.uint32).reshape(rows.n_rows, rows.n_tokens)
            view[:] = numpy.where(values < 0, 2**32 - 1, values)
        if self._lr is not None:
            rows.lr = self._lr
        return lib.EPS_ROWS_TRAIN

    def _run(self) -> None:
        try:
            self._call.done(lib.eps_train(self._to, self._events, ffi.NULL, self._call.error))
            self._told.put(Error("the engine is closed", 0))
        except BaseException as error:
            self._told.put(error)

    # ---- the program's ----

    def _wait(self) -> Any:
        """What the library tells next; raises what ended it."""
        told = self._told.get()
        if isinstance(told, BaseException):
            self._end()
            raise told
        return told

    def _ask(self, wish: Any) -> None:
        if self._thread is None:
            raise Error("the engine is closed", 0)
        self._asked.put(wish)

    def _answer(self, wish: Any) -> Any:
        """Asks, and waits until the engine waits again. Returns the step, if there was one. Ctrl-C is raised after that."""
        interrupted, done = None, None
        with self._lock:
            self._ask(wish)
            while True:
                try:
                    told = self._wait()
                except KeyboardInterrupt as signal:
                    interrupted = signal
                    continue
                if told is None:
                    break
                done = told
        if interrupted is not None:
            raise interrupted
        return done

    def step(self, ids: Any, labels: Any = None, *, lr: Optional[float] = None) -> float:
        """Trains one minibatch, and returns its loss before the update, nats per label; `last` has more of the step.

        ids (batch, seq): integers of any array. labels (batch, seq): what each token predicts, -100 for nothing; by default
        the token after it, in the last column nothing. lr: of this step and the next ones. Raises ValueError or TypeError of
        a wrong shape, type or id, and the engine goes on; eps.Error if the step fails, and the engine is closed."""
        import numpy

        shape = (self.batch, self.seq)
        rows = _matrix("ids", ids, shape, 0, self.vocabulary)
        if labels is None:
            after = numpy.full(shape, _ignored, dtype=numpy.int64)
            after[:, :-1] = rows[:, 1:]
        else:
            after = _matrix("labels", labels, shape, _ignored, self.vocabulary)
        if (after < 0).all():
            raise ValueError("labels holds no label")
        if lr is not None:
            self._lr = float(lr)
        self.last = self._answer((rows, after))
        return float("nan") if self.last.loss is None else self.last.loss

    def save(self) -> Path:
        """Saves a checkpoint, a directory that transformers loads, and that stays until the next one. Returns its path.

        Raises eps.Error if it cannot be saved, and the engine goes on; or before the first step."""
        self._failed = None
        self._answer("save")
        if self._failed is not None:
            raise Error(self._failed, 5)
        if self._saved is None:
            raise Error("there is nothing to save: the engine has done no step", 22)
        return self._saved

    def _end(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def close(self) -> None:
        """Ends the engine. With `out`, its last step is saved first."""
        if self._thread is None:
            return
        with self._lock:
            self._ask("end")
            while not isinstance(told := self._told.get(), BaseException):
                pass
        self._end()
        if not isinstance(told, Error) or told.errno not in (0, 4):
            raise told

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *what: Any) -> None:
        self.close()
