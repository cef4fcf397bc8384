"""eps.plan: what a run takes, before it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping, Optional

from eps._library import Call, ffi, lib, text_of
from eps._options import describe, fill

_unknown = 2**64 - 1


@dataclass(frozen=True)
class Side:
    """Bytes of one side: planned, the limit (None: unknown), and by category, as eps mem shows them."""

    bytes: int
    limit: Optional[int]
    categories: dict[str, int]


def _side_of(side: Any) -> Side:
    terms = {text_of(side.terms[i].category) or "": side.terms[i].bytes for i in range(side.n_terms)}
    return Side(side.bytes, None if side.limit == _unknown else side.limit, terms)


@dataclass(frozen=True)
class Plan:
    """The plan of a training run: bytes on both sides, the choice that makes them fit, and the time of a step."""

    fits: bool
    why: str  #: if it does not fit: what is needed
    n_parameters: int
    n_workers: int
    host: Side
    worker: Side  #: each of them
    minimum: int  #: smallest sufficient device_mem
    checkpoint_bytes: int
    microbatch: int  #: rows
    step_ms: float
    measured: bool  #: times use this machine's profile (eps bench); else another machine's


@dataclass(frozen=True)
class Path:
    """What computes one kind of operation: busy milliseconds of a step, and TFLOP/s while it runs (None: of the rest)."""

    kind: str
    path: str
    ms: float
    tflops: Optional[float]


@dataclass(frozen=True)
class Timeline:
    """A simulated step in a long run. busy_ms and waited_ms by queue: down, compute, up, optimizer."""

    fits: bool
    why: str
    measured: bool
    step_ms: float
    tokens_per_s: float  #: of all workers, as tflops, at 6 operations a parameter and token
    tflops: float
    binds: str  #: the busiest queue
    busy_ms: dict[str, float]
    waited_ms: dict[str, dict[str, float]]  #: of each queue, by the one that it waited for, or "messages"
    paths: list[Path]


_queues = {"down": lib.EPS_DOWN, "compute": lib.EPS_COMPUTE, "up": lib.EPS_UP, "optimizer": lib.EPS_OPTIMIZER}
_waits = {**_queues, "messages": lib.EPS_MESSAGES}


def _fill(call: Call, options: Mapping[str, Any], of: str) -> Any:
    """struct eps_train_options; with data, what eps.train chooses by them. engine=True: of the steps of an eps.Engine."""
    given = dict(options)
    is_engine = given.pop("engine", False)
    to = fill(call, given, of)
    batch = to.batch
    call.done(lib.eps_plan_data(to, call.error))
    to.batch = batch if of == "eps.plan_batch" else to.batch
    if is_engine:
        to.on_rows = call.callback("enum eps_rows(void *, struct eps_step_rows *)", lambda user, rows: lib.EPS_ROWS_DROP)
    return to


def plan(**options: Any) -> Plan:
    """Plans a run, as the command eps plan does: needs no data, weights, daemon or device; with data (paths of files) it
    plans for what eps.train chooses by them. engine=True plans for an eps.Engine.

    Returns a Plan whether it fits or not."""
    call = Call()
    out = ffi.new("struct eps_plan *")
    call.done(lib.eps_plan(out, _fill(call, options, "eps.plan"), call.error))
    return Plan(fits=out.fits, why=text_of(out.why) or "", n_parameters=out.n_parameters, n_workers=out.n_workers,
                host=_side_of(out.host), worker=_side_of(out.worker), minimum=out.minimum,
                checkpoint_bytes=out.checkpoint_bytes, microbatch=out.microbatch, step_ms=out.step_ms,
                measured=out.measured)


def plan_timeline(**options: Any) -> Timeline:
    """Simulates a step: its time, what binds it, what each queue waits for, and what computes it."""
    call = Call()
    out = ffi.new("struct eps_timeline *")
    call.done(lib.eps_plan_timeline(out, _fill(call, options, "eps.plan_timeline"), call.error))
    paths = [Path(text_of(p.kind) or "", text_of(p.path) or "", p.ms, p.tflops or None)
             for p in (out.paths[i] for i in range(out.n_paths))]
    return Timeline(fits=out.fits, why=text_of(out.why) or "", measured=out.measured, step_ms=out.step_ms,
                    tokens_per_s=out.tokens_per_s, tflops=out.tflops,
                    binds=next(name for name, i in _queues.items() if i == out.binds),
                    busy_ms={name: out.busy_ms[i] for name, i in _queues.items()},
                    waited_ms={name: {other: out.waited_ms[i][j] for other, j in _waits.items() if j != i}
                               for name, i in _queues.items()},
                    paths=paths)


def _number(function: Any, kind: str, options: Mapping[str, Any], of: str) -> int:
    call, out = Call(), ffi.new(kind)
    call.done(function(out, _fill(call, options, of), call.error))
    return out[0]


def plan_minimum(**options: Any) -> int:
    """The smallest sufficient device_mem, in bytes."""
    return _number(lib.eps_plan_minimum, "uint64_t *", options, "eps.plan_minimum")


def plan_depth(**options: Any) -> int:
    """The largest number of layers like the model's that fits both memories."""
    return _number(lib.eps_plan_depth, "uint32_t *", options, "eps.plan_depth")


def plan_batch(**options: Any) -> int:
    """The largest batch that fits both memories."""
    return _number(lib.eps_plan_batch, "uint32_t *", options, "eps.plan_batch")


for _function in (plan, plan_timeline, plan_minimum, plan_depth, plan_batch):
    describe(_function, of_plan=True)
