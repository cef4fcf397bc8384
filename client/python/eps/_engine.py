"""eps.Engine: a model that a program trains by a loop of its own, minibatch by minibatch."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import sys
import tempfile
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator, Optional

from eps import _arrays
from eps._ask import Text, generate
from eps._library import Call, Error, OptionError, StrPath, ffi, lib, text_of
from eps._options import fill
from eps._train import Memory, Step, memory_now, step_of
from eps._weights import Weights

_endless = 2**40  # the most steps that a run has
_no_label = 2**32 - 1  # EPS_NO_LABEL
_own = ("data", "eval_data", "steps", "epochs", "schedule", "warmup", "min_lr", "order", "save_every", "save_minutes",
        "eval_every", "eval_tokens", "patience", "resume", "attach", "connect", "restarts", "config", "like",
        "dry_run")  # what the engine itself says


@dataclass
class _Rows:
    """Rows to train or to score; the batch's others have no label."""

    ids: Any
    labels: Any
    weights: Any = None  # None: all 1
    scores: bool = False
    first: int = 0  # scored as if they were these rows of the step
    drops: bool = False  # and with its dropout
    base: bool = False  # without adapters
    log_p: Any = None  # what came of it


class _Core:
    """What the program and the library's thread share. The thread runs eps_train, and asks for rows by on_rows; each waits
    for the other by `changed`, and looks at what is there: nothing is lost if a wait is interrupted."""

    def __init__(self, folder: Path, on_note: Optional[Callable[[str], Any]]) -> None:
        self.pid = os.getpid()
        self.folder = folder
        self.call = Call()
        self.changed = threading.Condition()
        self.wish: Any = None  # the program's: a _Rows, "save", "weights", "end" or "drop"
        self.waits = False  # the thread, for a wish
        self.ended: Optional[BaseException] = None
        self.drops = False  # the thread is to end at once
        self.step: Optional[Step] = None
        self.saved: Optional[Path] = None
        self.failed: Optional[str] = None
        self.lr: Optional[float] = None
        self.scored: Any = None  # the rows that were given last
        self.vocabulary, self.adapts = 0, False
        self.weights: Optional[Weights] = None
        self.weights_are_new = False  # no step has been done since
        self.on_note = on_note
        self.thread: Optional[threading.Thread] = None

    def listen(self, to: Any) -> None:
        call = self.call
        to.on_rows = call.callback("enum eps_rows(void *, struct eps_step_rows *)", self.rows, lib.EPS_ROWS_DROP)
        to.on_weights = call.callback("void(void *, const struct eps_weights *)", self.on_weights)
        events = self.events = call.keep(ffi.new("struct eps_train_events *"))
        events.on_step = call.callback("void(void *, const struct eps_step *)", self.stepped)
        events.on_saved = call.callback("void(void *, uint64_t, const char *)", self.on_saved)
        events.on_save_failed = call.callback("void(void *, uint64_t, const char *)", self.on_save_failed)
        events.on_note = call.callback("void(void *, const char *)", self.note)
        events.should_stop = call.callback("int(void *)", lambda user: 2 if self.drops else 0, 2)

    def stepped(self, user: Any, step: Any) -> None:
        self.step = step_of(step)

    def on_saved(self, user: Any, step: int, path: Any) -> None:
        self.saved = Path(text_of(path) or "")

    def on_save_failed(self, user: Any, step: int, why: Any) -> None:
        self.failed = text_of(why)

    def on_weights(self, user: Any, weights: Any) -> None:
        self.weights, self.weights_are_new = Weights(weights, self.weights), True

    def note(self, user: Any, sentence: Any) -> None:
        if self.on_note:
            self.on_note(text_of(sentence))
        elif sys.stderr is not None:
            print(f"eps: {text_of(sentence)}", file=sys.stderr)

    def rows(self, user: Any, rows: Any) -> int:
        if rows.log_p:
            self.scored.log_p = self.take(rows.log_p, "float32", rows, len(self.scored.ids)).copy()
        with self.changed:
            self.vocabulary, self.adapts, self.waits = rows.vocabulary, rows.adapts, True
            self.changed.notify_all()
            while self.wish is None:
                self.changed.wait()
            wish, self.wish, self.waits = self.wish, None, False
        if isinstance(wish, str):
            return {"save": lib.EPS_ROWS_SAVE, "weights": lib.EPS_ROWS_WEIGHTS, "end": lib.EPS_ROWS_END,
                    "drop": lib.EPS_ROWS_DROP}[wish]
        self.give(rows, wish)
        self.weights_are_new &= wish.scores
        return lib.EPS_ROWS_SCORE if wish.scores else lib.EPS_ROWS_TRAIN

    @staticmethod
    def take(pointer: Any, kind: str, rows: Any, n_rows: int) -> Any:
        """The memory of the library's array (n_rows, n_tokens)."""
        import numpy

        return numpy.frombuffer(ffi.buffer(pointer, 4 * n_rows * rows.n_tokens), dtype=kind).reshape(n_rows, rows.n_tokens)

    def give(self, rows: Any, wish: _Rows) -> None:
        import numpy

        n = len(wish.ids)
        place = slice(wish.first, wish.first + n)
        ids, labels = (self.take(to, "uint32", rows, rows.n_rows) for to in (rows.ids, rows.labels))
        ids[:], labels[:] = 0, _no_label
        ids[place], labels[place] = wish.ids, numpy.where(wish.labels < 0, _no_label, wish.labels)
        if wish.weights is not None:
            self.take(rows.weights, "float32", rows, rows.n_rows)[place] = wish.weights
        if self.lr is not None:
            rows.lr = self.lr
        rows.first_scored, rows.n_scored, rows.drops, rows.base = wish.first, n, wish.drops, wish.base
        self.scored = wish

    def serve(self, to: Any) -> None:
        ended: BaseException = Error("the engine is closed", 0)
        try:
            self.call.done(lib.eps_train(to, self.events, ffi.NULL, self.call.error))
        except BaseException as error:
            ended = error
        with self.changed:
            self.ended = ended
            self.changed.notify_all()

    def await_wait(self) -> bool:
        """Until the thread waits, or has ended. A first Ctrl-C is kept until then: returns whether there was one; a second
        one ends the thread at once."""
        n_interrupts = 0
        while True:
            try:
                with self.changed:
                    while not (self.waits and self.wish is None) and self.ended is None:
                        self.changed.wait()
                return n_interrupts > 0
            except KeyboardInterrupt:
                n_interrupts += 1
                self.drops = n_interrupts > 1

    def ask(self, wish: Any) -> None:
        with self.changed:
            self.wish = wish
            self.changed.notify_all()


def _end(core: _Core) -> None:
    """Ends the thread and what it runs, at once; in another process it leaves them to theirs."""
    if os.getpid() != core.pid:
        return
    core.drops = True
    if core.thread is not None and core.thread.is_alive() and core.thread is not threading.current_thread():
        core.ask("drop")
        core.thread.join()
    shutil.rmtree(core.folder, ignore_errors=True)


class Engine:
    """A model in training, driven by steps of one's own:

        with eps.Engine("runs/first", batch=8, seq=128, lr=1e-4, device_mem="1GiB", out="runs/mine") as engine:
            for ids in minibatches:
                loss = engine.step(ids)
            print(engine.save())

    model: as in eps.train. batch, seq: rows of a step, and tokens of each. lr: the rate, until step names another.
    out: the run's directory, in which close() saves the last step; without it, what is saved is gone after close().
    on_note(sentence): what the library has to say, which waits for it; by default it goes to standard error. Other options
    are those of eps.train that say how a step computes: optimizer, precision, device, device_mem, microbatch, lora, freeze,
    parts, ...

    It has a daemon and workers of its own, which end with it, or with the interpreter; where that is killed, a run with
    `out` is saved first. Whatever happens between two steps may take as long as it likes. Threads may share it. Ctrl-C is
    raised once the step under way is done; a second one ends the engine at once. It belongs to the process that made it.
    Not for encoder-decoders, classifiers and images."""

    def __init__(self, model: StrPath, *, batch: int, seq: int, lr: float = 2e-5, out: Optional[StrPath] = None,
                 on_note: Optional[Callable[[str], Any]] = None, **options: Any) -> None:
        import numpy

        for name in _own:
            if name in options:
                raise TypeError(f"eps.Engine has no option {name!r}: its steps are the program's")
        for name, value, kind in (("model", model, "a str"), ("batch", batch, "an int"), ("seq", seq, "an int")):
            if value is None:
                raise TypeError(f"{name} must be {kind}, not NoneType")
        # named before it is made: whenever Ctrl-C comes, there is somebody to remove it
        work = Path(tempfile.gettempdir()) / f"eps-engine-{secrets.token_hex(8)}"
        self._core = core = _Core(work, on_note)
        self._finalizer = weakref.finalize(self, _end, core)
        self._lock = threading.Lock()
        self._turn = threading.RLock()  # held by who adds gradients, or updates
        self._judges = False  # a loss_fn runs, in the thread that has the turn
        self._saves = out is not None
        self.batch, self.seq = batch, seq
        self.path = Path(out) if out is not None else work / "run"  #: the run's directory
        self.last: Optional[Step] = None  #: the last step: loss, norms, memory
        self._pending: list[_Rows] = []  # their weights are gradients by log p
        self._inexact = next((name for name in ("label_smoothing", "drop_layers") if options.get(name)), None)
        self._where = {name: options[name] for name in ("device", "device_mem") if name in options}
        try:
            work.mkdir(mode=0o700)
            to = fill(core.call, dict(options, model=model, data=[work / "rows.npy"], order="sequential",
                                      eval_data=str(work / "held-out.npy"), batch=batch, seq=seq, lr=lr, min_lr=lr,
                                      schedule="constant", warmup=0, steps=_endless,
                                      save_every=_endless if self._saves else 0,  # also if this process dies
                                      save_minutes=0, eval_every=_endless, out=self.path), "eps.Engine")
            numpy.lib.format.open_memmap(work / "rows.npy", "w+", numpy.uint16, (8 * batch * (seq + 1),))  # takes no room
            numpy.save(work / "held-out.npy", numpy.zeros(seq + 1, dtype=numpy.uint16))
            core.listen(to)
            core.thread = threading.Thread(target=core.serve, args=(to,), name="eps.Engine", daemon=True)
            core.thread.start()
            interrupted = core.await_wait()
            if core.ended is not None:
                raise core.ended
            if interrupted:
                raise KeyboardInterrupt
        except BaseException:
            self._finalizer()
            raise

    @property
    def vocabulary(self) -> int:
        """Ids are below it."""
        return self._core.vocabulary

    def _check_thread(self) -> None:
        if threading.current_thread() is self._core.thread:
            raise Error("on_note cannot ask the engine, which waits for it", 35)

    def _check_open(self) -> None:
        if os.getpid() != self._core.pid:
            raise Error("the engine belongs to another process", 1)
        self._check_thread()
        if self._core.ended is not None or not self._finalizer.alive:
            raise Error("the engine is closed", 0)

    def _answer(self, wish: Any) -> None:
        """Asks, and waits until the engine waits again, or has ended, which is raised. So is Ctrl-C, after that."""
        core = self._core
        self._check_open()
        with self._lock:
            self._check_open()  # again: another thread may have closed it
            core.ask(wish)
            interrupted = core.await_wait()
            if core.ended is not None:
                self._finalizer()
                if not interrupted:
                    raise core.ended
            if interrupted:
                raise KeyboardInterrupt

    @contextlib.contextmanager
    def _training(self) -> Iterator[None]:
        self._check_open()
        with self._turn:
            if self._judges:
                raise Error("loss_fn cannot train: its log p are those of the weights as they are", 22)
            yield

    def _rate(self, lr: Optional[float]) -> None:
        if lr is not None and (isinstance(lr, str) or not math.isfinite(lr) or lr < 0):
            raise OptionError(f"lr is {lr!r}: it must be a number from 0 on", 33)
        if lr is not None:
            self._core.lr = float(lr)

    def _train(self, rows: _Rows, lr: Optional[float]) -> float:
        if (rows.labels < 0).all():
            raise ValueError("labels holds no label")
        self._rate(lr)
        self._answer(rows)
        self.last = self._core.step
        return math.nan if self.last is None or self.last.loss is None else self.last.loss

    def step(self, ids: Any, labels: Any = None, weights: Any = None, *, lr: Optional[float] = None) -> float:
        """Trains one minibatch, and returns its loss before the update: the mean over its labels of -log p, in nats, each
        times its weight. `last` has more of the step.

        ids (batch, seq): integers of any array. labels (batch, seq): what each token predicts, -100 for nothing; by default
        the token after it, in the last column nothing. weights (batch, seq): finite numbers, also below 0; by default 1.
        lr: of this step and the next ones. Raises ValueError or TypeError of a wrong shape, type, id or rate, and the engine
        goes on; eps.Error if the step fails, and the engine is closed."""
        shape = (self.batch, self.seq)
        rows = _arrays.tokens("ids", ids, shape, 0, self.vocabulary)
        after = _arrays.labels_of(rows, labels, self.vocabulary)
        given = _Rows(rows, after, None if weights is None else _arrays.numbers("weights", weights, shape))
        with self._training():
            if self._pending:
                raise Error("forward_backward has added a gradient: call update first", 22)
            return self._train(given, lr)

    def _score(self, rows: _Rows) -> Any:
        rows.scores = True
        self._answer(rows)
        return rows.log_p

    def logprobs(self, ids: Any, labels: Any = None, *, adapters: bool = True) -> Any:
        """Log p of each label in nats, a float32 array (n, seq), 0 where there is none; without dropout.

        ids (n, seq), labels (n, seq): as in step, but of any number of rows. adapters=False: of the model without its
        adapters (lora); modules that are trained beside them stay as they are."""
        import numpy

        rows = _arrays.tokens("ids", ids, (None, self.seq), 0, self.vocabulary)
        after = _arrays.labels_of(rows, labels, self.vocabulary)
        if not adapters and not self._core.adapts:
            raise Error("the model has no adapters to leave out", 22)
        parts = [slice(first, first + self.batch) for first in range(0, len(rows), self.batch)]
        return numpy.concatenate([self._score(_Rows(rows[part], after[part], base=not adapters)) for part in parts])

    def forward_backward(self, ids: Any, loss_fn: Callable[[Any], Any], labels: Any = None) -> Any:
        """Adds the gradient of a loss of one's own to the next update. Returns the loss that loss_fn returned, or None.

        ids (n, seq), labels (n, seq): as in step; before an update at most `batch` rows in all.
        loss_fn(log_p): gets log p of each label, a float32 array (n, seq) of its own, 0 where there is no label, with the
        dropout that the update will have. Returns the gradient of the loss by these, (n, seq) of any array, or (loss,
        gradient). With torch:

            def loss_fn(log_p):
                log_p = torch.from_numpy(log_p).requires_grad_()
                loss = ...
                loss.backward()
                return loss.item(), log_p.grad

        It may ask the engine, logprobs for one, but not train. What it raises is raised, and the rows are left out. The
        backward pass itself is update's."""
        if self._inexact:
            raise Error(f"{self._inexact} changes the loss: an engine with it has no losses of one's own", 33)
        rows = _arrays.tokens("ids", ids, (None, self.seq), 0, self.vocabulary).copy()  # the update has them again
        after = _arrays.labels_of(rows, labels, self.vocabulary).copy()
        with self._training():
            n = sum(len(pending.ids) for pending in self._pending)
            if n + len(rows) > self.batch:
                raise ValueError(f"ids has {len(rows)} rows, beside {n} before: an update has at most {self.batch}, the "
                                 "engine's batch")
            log_p = self._score(_Rows(rows, after, first=n, drops=True))
            try:
                self._judges = True
                result = loss_fn(log_p)
            finally:
                self._judges = False
            loss, gradient = result if isinstance(result, tuple) else (None, result)
            self._pending.append(_Rows(rows, after, _arrays.numbers("the gradient", gradient, rows.shape)))
            return loss

    def update(self, *, lr: Optional[float] = None) -> None:
        """Updates the weights by the gradients that forward_backward has added since the last one. lr: as in step. Raises
        ValueError if they are too large for float32, or have no label: they are then dropped, and the engine goes on."""
        import numpy

        with self._training():
            if not self._pending:
                raise Error("there is nothing to update by: call forward_backward first", 22)
            self._rate(lr)
            ids, labels, gradient = (numpy.concatenate([getattr(rows, name) for rows in self._pending])
                                     for name in ("ids", "labels", "weights"))
            self._pending = []
            n = (labels >= 0).sum()  # by which the step divides
            with numpy.errstate(over="ignore"):
                weights = gradient * -numpy.float32(n)
            if not numpy.isfinite(weights).all():
                raise ValueError(f"the gradient is too large: times its {n} labels it is not finite")
            self._train(_Rows(ids, labels, weights), None)

    def generate(self, prompt: Any = "", **options: Any) -> list[Text]:
        """Continues prompts with the weights as they are now: eps.generate, with its options. Other processes do it, on a
        copy of the weights; device and device_mem are by default the engine's. Tokens are drawn at temperature 1 from all
        that there are, unless options say otherwise, whatever the model's generation_config.json says: a reward is of what
        the model itself would write."""
        self._check_open()
        drawn = {} if options.get("n_beams") else {"temperature": 1, "top_k": 0, "top_p": 1}
        return generate(None, prompt, connect=str(self.path), **{**self._where, **drawn, **options})

    def memory(self) -> list[Memory]:
        """Bytes of the host, then of each worker's device."""
        self._check_open()
        return memory_now(self.path)

    def save(self) -> Path:
        """Saves a checkpoint, a directory that transformers loads, and that stays until the next one. Returns its path.

        Raises eps.Error if it cannot be saved, and the engine goes on; or before the first step."""
        self._core.failed = None
        self._answer("save")
        if self._core.failed is not None:
            raise Error(self._core.failed, 5)
        if self._core.saved is None:
            raise Error("there is nothing to save: the engine has done no step", 22)
        return self._core.saved

    def weights(self, name: str) -> Any:
        """A tensor as a checkpoint names it: a read-only array of numpy's over the daemon's memory, without a copy. Its values
        are those of the last step until the next one; from then on they change, and it must be asked for again. It can be
        read for ever, and the memory stays as long.

        It has the engine's precision: float32, float16, or of bf16 the bits in uint16 (`.view(ml_dtypes.bfloat16)`, or
        `torch.from_numpy(array).view(torch.bfloat16)`). With lora, adapters have PEFT's names, and the base, which stays, its
        own. A table that does not lie in one piece is copied. Raises KeyError for a name that there is not, and eps.Error for
        what is sparse, or coded in int8 or nf4."""
        return self._look().array(name)

    def named_weights(self) -> Iterator[tuple[str, Any]]:
        """(name, array) of all tensors, as `weights` has them, in the order of a checkpoint; without those that are sparse or
        coded. A server that takes weights after a step is given them in any order:

            for name in server.names:
                server.load(name, engine.weights(name))"""
        return iter(self._look())

    def _look(self) -> Weights:
        core = self._core
        self._check_thread()
        with self._turn:
            if not core.weights_are_new or core.ended is not None or not self._finalizer.alive:
                self._answer("weights")
            if core.weights is None or not core.weights_are_new:  # on_weights has raised
                raised, core.call.raised = core.call.raised, None
                raise raised or Error("the weights did not come", 5)
            return core.weights

    def close(self) -> None:
        """Ends the engine, and with `out` saves its last step first; a second Ctrl-C ends that. Closed again it does nothing.

        On a full disk it says so by on_note, waits ten minutes for room, and then raises eps.Error."""
        core = self._core
        if os.getpid() != core.pid or not self._finalizer.alive:
            return
        self._check_thread()
        with self._lock:
            interrupted = False
            if core.ended is None:
                core.ask("end" if self._saves else "drop")
                interrupted = core.await_wait()
            ended = core.ended
            self._finalizer()
        if interrupted:
            raise KeyboardInterrupt
        if not isinstance(ended, Error) or ended.errno not in (0, 4):
            raise ended or Error("the engine did not end", 5)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *what: Any) -> None:
        self.close()
