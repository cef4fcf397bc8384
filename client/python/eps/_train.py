"""eps.train, and the run that it returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Callable, Mapping, Optional, Union

from eps._data import as_files
from eps._library import Call, StrPath, ffi, lib, number_of, text_of
from eps._options import describe, fill, values
from eps._progress import Progress
from eps._wandb import Tracker


@dataclass(frozen=True)
class Step:
    """A step, as a line of metrics.jsonl. What is unknown is None."""

    step: int  #: from 1
    n_steps: int  #: of the run; 0: unknown
    time: Optional[float]  #: when it was done, in seconds since 1970
    loss: Optional[float]  #: nats per token, of a task per row, before this step's update
    lr: float
    tokens: int  #: so far, without padding
    tokens_per_s: Optional[float]
    step_ms: Optional[float]
    eval_loss: Optional[float]  #: held-out loss, where this step evaluated
    eval_before: Optional[float]  #: of the first step: the held-out loss before it
    grad_norm: Optional[float]  #: of the whole gradient before clipping; None unless the commit is fenced
    skipped: bool  #: a contribution was not finite, so nothing was updated
    device_peak_bytes: int
    host_bytes: int
    scores: dict[str, Optional[float]]  #: of a task or of preferences, where this step evaluated
    rewards: dict[str, Optional[float]]  #: of the step's preferences, by the names that TRL logs


def _scores(pointer: Any, n: int) -> dict[str, Optional[float]]:
    return {text_of(pointer[i].name) or "": number_of(pointer[i].value) for i in range(n)}


def step_of(s: Any) -> Step:
    """A Step of struct eps_step."""
    return Step(step=s.step, n_steps=s.n_steps, time=number_of(s.time), loss=number_of(s.loss), lr=s.lr, tokens=s.tokens,
                tokens_per_s=number_of(s.tokens_per_s), step_ms=number_of(s.step_ms), eval_loss=number_of(s.eval_loss),
                eval_before=number_of(s.eval_before), grad_norm=number_of(s.grad_norm), skipped=s.skipped,
                device_peak_bytes=s.device_peak_bytes, host_bytes=s.host_bytes, scores=_scores(s.scores, s.n_scores),
                rewards=_scores(s.rewards, s.n_rewards))


@dataclass(frozen=True)
class Memory:
    """Bytes of the host (worker 0) or of a worker's device: at most, planned, and by category."""

    worker: int
    device: str
    budget: int  #: of the device; 0 for the host
    peak: int
    planned: int
    categories: dict[str, int]  #: the peak of each


def _memory_of(side: Any) -> Memory:
    rows = {text_of(side.rows[i].category) or "": side.rows[i].peak for i in range(side.n_rows)}
    return Memory(side.worker, text_of(side.device) or "", side.budget, side.peak, side.planned, rows)


def memory_now(address: StrPath) -> list[Memory]:
    """The host's memory, then each worker's, of a live daemon, by its name or its run's directory."""
    call, sides = Call(), []
    on_memory = call.callback("void(void *, const struct eps_memory *)", lambda user, side: sides.append(_memory_of(side)))
    call.done(lib.eps_mem(call.text(str(address)), on_memory, ffi.NULL, call.error))
    return sides


@dataclass(frozen=True)
class Sample:
    """What the model wrote after a prompt (sample_every), or for it, where it writes the target of a source."""

    step: int
    prompt: str
    text: str


@dataclass
class Run:
    """A run's directory, and what this call of train did in it."""

    path: Path
    steps: list[Step] = field(default_factory=list)  #: those that this call ran
    saved: list[Path] = field(default_factory=list)  #: checkpoints that it wrote
    notes: list[str] = field(default_factory=list)  #: sentences that no option asks for
    samples: list[Sample] = field(default_factory=list)  #: with sample_every
    memory: list[Memory] = field(default_factory=list)  #: of the host, then of each worker
    eval_loss: Optional[float] = None  #: the last held-out loss

    @property
    def latest(self) -> Path:
        """The newest checkpoint: a directory that transformers loads."""
        return self.path / "latest"

    def metrics(self) -> list[Step]:
        """All steps in the run's metrics.jsonl, also those of earlier calls."""
        return metrics(self.path)


def metrics(run: StrPath) -> list[Step]:
    """The steps in a run's metrics.jsonl, in order; the run may still be active.

    Raises eps.Error if there is none."""
    call, steps = Call(), []
    on_step = call.callback("void(void *, const struct eps_step *)", lambda user, s: steps.append(step_of(s)))
    call.done(lib.eps_metrics_read(call.text(str(run)), on_step, ffi.NULL, ffi.NULL, call.error))
    return steps


@dataclass
class Blocks:
    """The blocks of one step, from 0 nearest the input; a callback may change both lists for this step."""

    step: int
    n_blocks: int
    computed: list[int]  #: in the order in which the step computes them
    frozen: list[int]  #: of these, those that it does not train


def _choose_blocks(function: Callable[[Blocks], None]) -> Callable[[Any, Any], None]:
    def on_blocks(user: Any, s: Any) -> None:
        blocks = Blocks(s.step, s.n_blocks, [s.computed[i] for i in range(s.n_computed)],
                        [s.frozen[i] for i in range(s.n_frozen)])
        function(blocks)
        for name, values in (("computed", blocks.computed), ("frozen", blocks.frozen)):
            if len(values) > s.n_blocks:
                raise ValueError(f"{name} has {len(values)} blocks, and the model {s.n_blocks}")
        s.n_computed, s.n_frozen = len(blocks.computed), len(blocks.frozen)
        for i, block in enumerate(blocks.computed):
            s.computed[i] = block
        for i, block in enumerate(blocks.frozen):
            s.frozen[i] = block

    return on_blocks


def _listen(call: Call, run: Run, progress: Progress, tracker: Tracker, on_step: Optional[Callable[[Step], Any]],
            on_evaluation: Optional[Callable[[int, float], Any]], on_save: Optional[Callable[[int, Path], Any]],
            on_sample: Optional[Callable[[Sample], Any]], on_note: Optional[Callable[[str], Any]]) -> Any:
    """struct eps_train_events *"""

    def start(user: Any, options: Any, n_parameters: int) -> None:
        run.path = Path(text_of(options.out) or "")
        progress.begin(options.steps)
        tracker.begin(values(options))

    def step(user: Any, s: Any) -> None:
        each = step_of(s)
        run.steps.append(each)
        progress.step(each)
        tracker.step(each)
        if on_step:
            on_step(each)

    def evaluated(user: Any, at: int, loss: float, tokens: int) -> None:
        run.eval_loss = number_of(loss)
        if on_evaluation:
            on_evaluation(at, loss)

    def saved(user: Any, at: int, path: Any) -> None:
        run.saved.append(Path(text_of(path) or ""))
        if on_save:
            on_save(at, run.saved[-1])

    def sample(user: Any, at: int, prompt: Any, text: Any, n: int) -> None:
        run.samples.append(Sample(at, text_of(prompt) or "", ffi.buffer(text, n)[:].decode()))
        if on_sample:
            on_sample(run.samples[-1])

    def note(user: Any, sentence: Any) -> None:
        run.notes.append(text_of(sentence) or "")
        if on_note:
            on_note(run.notes[-1])

    events = call.keep(ffi.new("struct eps_train_events *"))
    events.on_start = call.callback("void(void *, const struct eps_train_options *, uint64_t)", start)
    events.on_step = call.callback("void(void *, const struct eps_step *)", step)
    events.on_evaluated = call.callback("void(void *, uint64_t, double, uint64_t)", evaluated)
    events.on_saved = call.callback("void(void *, uint64_t, const char *)", saved)
    events.on_sample = call.callback("void(void *, uint64_t, const char *, const char *, size_t)", sample)
    events.on_note = call.callback("void(void *, const char *)", note)
    events.on_memory = call.callback("void(void *, const struct eps_memory *)",
                                     lambda user, side: run.memory.append(_memory_of(side)))
    events.should_stop = call.stop()
    return events


def train(data: Any = None, *, on_step: Optional[Callable[[Step], Any]] = None,
          on_evaluation: Optional[Callable[[int, float], Any]] = None,
          on_save: Optional[Callable[[int, Path], Any]] = None, on_sample: Optional[Callable[[Sample], Any]] = None,
          on_note: Optional[Callable[[str], Any]] = None, on_blocks: Optional[Callable[[Blocks], None]] = None, progress: Union[bool, None] = None,
          wandb: Union[str, Mapping[str, Any], None] = None,
          **options: Any) -> Run:
    """Trains a model, as the command eps train with the same options does: the same losses and weights, bit for bit.

    data: a path, or a list of paths, of text, .jsonl, .bin, .npy or images; by pyarrow also .parquet, .arrow and .feather. Or rows, as dicts that lines of .jsonl have:
        {"text"}, {"messages"}, {"prompt", "completion"}, {"prompt", "chosen", "rejected"}, {"source", "target"}, ...: a
        list of them, a datasets.Dataset, a pandas.DataFrame, a pyarrow.Table, a generator, which may also yield texts.
        Rows are read once, before the first step, into a file that is gone after the call; to resume, give them again.
        eval_data may be the same.
    on_step(step): after each step, a Step. on_evaluation(step, loss), on_save(step, path), on_note(sentence).
    on_sample(sample): with sample_every, a Sample.
    on_blocks(blocks): before each step, a Blocks; may leave out, reorder and freeze blocks of that step.
    wandb: a project's name, or a dict of keywords of wandb.init: a run of Weights & Biases with the options and the figures of
        each step, by the package wandb, which WANDB_MODE=offline keeps here. It is finished however training ends.
    progress: a bar by tqdm; by default if the program runs in a terminal or a notebook and tqdm is there.

    Ctrl-C finishes the current step, saves a checkpoint, and raises KeyboardInterrupt; a second one ends the run at once.
    An exception in a callback does as the first one, and is raised. Where it raises eps.Error, the sentence says why;
    eps.OptionError, a ValueError, of an option's value."""
    call, run = Call(), Run(Path())
    bar = Progress(progress)
    with as_files(data) as files, as_files(options.get("eval_data")) as held_out:
        given = dict(options) if files is None else dict(options, data=files)
        if held_out is not None:
            given["eval_data"] = held_out[0] if isinstance(held_out, list) and len(held_out) == 1 else held_out
        to = fill(call, given, "eps.train")
        if on_blocks:
            to.on_blocks = call.callback("void(void *, struct eps_step_blocks *)", _choose_blocks(on_blocks))
        tracker, failed = Tracker(wandb), True
        events = _listen(call, run, bar, tracker, on_step, on_evaluation, on_save, on_sample, on_note)
        try:
            call.done(lib.eps_train(to, events, ffi.NULL, call.error))
            failed = False
        finally:
            bar.end()
            tracker.end(failed)
    return run


describe(train, of_plan=False, without=("data",))
