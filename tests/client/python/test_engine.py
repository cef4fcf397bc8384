"""eps.Engine: steps of a program's own, beside the same steps of eps.train."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import eps
import numpy
import pytest

from conftest import digest, programs_in

SEQ, BATCH = 32, 4
HOW = dict(device_mem="64MiB", deterministic=True, weight_decay=0.1, clip_norm=1.0)


@pytest.fixture
def model():
    """A small model, and its text's rows in order: ids, and the token after each."""
    eps.train("text.txt", model="byte-small", steps=1, batch=BATCH, seq=SEQ, out="begun", device_mem="64MiB")
    text = numpy.frombuffer(Path("text.txt").read_bytes(), dtype=numpy.uint8).astype(numpy.int32)
    n = (len(text) - 1) // SEQ
    return "begun/latest", text[:n * SEQ].reshape(n, SEQ), text[1:n * SEQ + 1].reshape(n, SEQ)


def rows_of(matrix, step):
    return matrix[step * BATCH:(step + 1) * BATCH]


def test_steps_have_the_runs_losses_and_weights_bit_for_bit(model):
    name, ids, labels = model
    run = eps.train("text.txt", model=name, eval_data="text.txt", steps=3, batch=BATCH, seq=SEQ, lr=1e-3, min_lr=1e-3,
                    schedule="constant", warmup=0, order="sequential", out="run", **HOW)
    with eps.Engine(name, batch=BATCH, seq=SEQ, lr=1e-3, out="engine", **HOW) as engine:
        losses = [engine.step(rows_of(ids, i), rows_of(labels, i)) for i in range(3)]
        assert losses == [step.loss for step in run.steps]
        assert engine.last.grad_norm == run.steps[-1].grad_norm and engine.last.step == 3
        assert digest(Path(engine.save()).parent) == digest(run.path)
    assert digest("engine") == digest(run.path)


def test_arrays_of_any_kind_are_rows(model):
    name, ids, _ = model
    losses = set()
    for kind in (numpy.asarray, lambda rows: rows.astype(numpy.uint16), numpy.ndarray.tolist, numpy.asfortranarray):
        with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
            losses.add(engine.step(kind(rows_of(ids, 0))))
    assert len(losses) == 1
    shifted = numpy.full((BATCH, SEQ), -100)
    shifted[:, :-1] = rows_of(ids, 0)[:, 1:]
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        assert engine.step(rows_of(ids, 0), shifted) in losses


def test_on_note_cannot_ask_the_engine(model):
    name, ids, _ = model
    said = []

    def note(sentence):
        if "frozen no more" in sentence:
            for ask in (lambda: engine.step(rows_of(ids, 0)), engine.save, engine.memory, engine.named_weights, engine.close):
                with pytest.raises(eps.Error, match="on_note cannot ask the engine"):
                    ask()
            said.append(sentence)

    with eps.Engine(name, batch=BATCH, seq=SEQ, freeze="*wte*", freeze_until=1, on_note=note, **HOW) as engine:
        engine.step(rows_of(ids, 0))
        engine.step(rows_of(ids, 1))
    assert len(said) == 1


def test_a_rate_counts_from_its_step_on(model):
    name, ids, _ = model

    def end(rates):
        with eps.Engine(name, batch=BATCH, seq=SEQ, lr=1e-3, **HOW) as engine:
            for i, lr in enumerate(rates):
                engine.step(rows_of(ids, i), lr=lr)
            return engine.last.lr, digest(Path(engine.save()).parent)

    assert end([None, 0.0, None])[0] == 0 and end([0.0, 0.0, 0.0]) == end([0.0, None, None])
    assert end([1e-3, 1e-3, 1e-3]) == end([None, None, None]) != end([None, 5e-4, None])


@pytest.mark.parametrize("ids, labels, kind, says", [
    (numpy.zeros((BATCH, SEQ + 1), int), None, ValueError, "ids has the shape (4, 33): it must be (4, 32)"),
    (numpy.zeros((BATCH, SEQ)), None, TypeError, "ids must be integers, not float64"),
    (numpy.full((BATCH, SEQ), 256), None, ValueError, "ids holds 256: the model's ids are from 0 to 255"),
    (numpy.full((BATCH, SEQ), -1), None, ValueError, "ids holds -1"),
    (numpy.zeros((BATCH, SEQ), int), numpy.full((BATCH, SEQ), -1), ValueError, "labels holds -1: the model's ids are from 0 to 255, and -100"),
    (numpy.zeros((BATCH, SEQ), int), numpy.full((BATCH, SEQ), -100), ValueError, "labels holds no label"),
    ("rows", None, TypeError, "ids must be integers"),
])
def test_wrong_rows_are_refused_and_the_engine_goes_on(model, ids, labels, kind, says):
    with eps.Engine(model[0], batch=BATCH, seq=SEQ, **HOW) as engine:
        with pytest.raises(kind) as caught:
            engine.step(ids, labels)
        assert says in str(caught.value)
        assert engine.step(rows_of(model[1], 0)) > 0 and engine.last.step == 1


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf"), "1"])
def test_a_rate_that_is_none_is_refused_and_the_engine_goes_on(model, lr):
    with eps.Engine(model[0], batch=BATCH, seq=SEQ, **HOW) as engine:
        with pytest.raises(eps.OptionError, match="lr is .*: it must be a number from 0 on"):
            engine.step(rows_of(model[1], 0), lr=lr)
        assert engine.step(rows_of(model[1], 0)) > 0


def test_what_an_engine_cannot_be_is_said(model):
    with pytest.raises(TypeError, match="has no option 'steps'"):
        eps.Engine(model[0], batch=BATCH, seq=SEQ, steps=3)
    with pytest.raises(TypeError, match="has no option 'restarts'"):  # it has no minibatch to do again
        eps.Engine(model[0], batch=BATCH, seq=SEQ, restarts=1)
    with pytest.raises(TypeError, match="eps.Engine has no option 'devise': did you mean 'device'"):
        eps.Engine(model[0], batch=BATCH, seq=SEQ, devise="cpu")
    with pytest.raises(eps.Error, match="device_mem"):
        eps.Engine(model[0], batch=BATCH, seq=SEQ, device_mem=1)
    with pytest.raises(eps.Error, match="absent"):
        eps.Engine("absent", batch=BATCH, seq=SEQ)
    with pytest.raises(TypeError, match="batch must be an int, not str"):
        eps.Engine(model[0], batch="4", seq=SEQ)
    with pytest.raises(TypeError, match="model must be a str, not NoneType"):
        eps.Engine(None, batch=BATCH, seq=SEQ)
    with pytest.raises(TypeError, match="batch must be an int, not NoneType"):
        eps.Engine(model[0], batch=None, seq=SEQ)
    with eps.Engine(model[0], batch=BATCH, seq=SEQ, **HOW) as engine:
        with pytest.raises(eps.Error, match="nothing to save"):
            engine.save()
    with pytest.raises(eps.Error, match="the engine is closed"):
        engine.step(rows_of(model[1], 0))
    engine.close()


def test_two_engines_train_beside_each_other(model):
    name, ids, _ = model
    losses = {}

    def train(which):
        with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
            losses[which] = [engine.step(rows_of(ids, i)) for i in range(3)]

    threads = [threading.Thread(target=train, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert losses[0] == losses[1]


def begin(model):
    return eps.Engine(model[0], batch=BATCH, seq=SEQ, **HOW)


def test_engines_leave_nothing_behind():
    done = subprocess.run([sys.executable, Path(__file__).with_name("leaks.py"), "4", "6"], capture_output=True, text=True,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_killed_worker_is_replaced_and_a_killed_daemon_ends_the_engine(model):
    def kill(name):
        for process, program in programs_in(Path.cwd()).items():
            if program == name:
                os.kill(process, signal.SIGKILL)

    with begin(model) as engine:
        expected = [engine.step(rows_of(model[1], i)) for i in range(2)]
    with begin(model) as engine:
        losses = [engine.step(rows_of(model[1], 0))]
        kill("eps-worker")
        losses.append(engine.step(rows_of(model[1], 1)))
        assert losses == expected
        kill("epsd")
        with pytest.raises(eps.Error):
            engine.step(rows_of(model[1], 2))
        with pytest.raises(eps.Error, match="the engine is closed"):
            engine.step(rows_of(model[1], 2))


def test_a_forked_child_leaves_its_parents_engine_alone(model):
    with begin(model) as engine:
        engine.step(rows_of(model[1], 0))
        child = os.fork()
        if child == 0:
            try:
                engine.step(rows_of(model[1], 0))
            except eps.Error as error:
                engine.close()
                engine._finalizer()  # as at the interpreter's exit
                os._exit(0 if str(error) == "the engine belongs to another process" else 1)
            os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        engine.step(rows_of(model[1], 1))
        assert engine.save().is_dir()


SCRIPT = """
import eps, numpy
with eps.Engine("begun/latest", batch=4, seq=32, out="mine", device_mem="64MiB") as engine:
    try:
        while True:
            engine.step(numpy.ones((4, 32), int))
            print(engine.last.step, flush=True)
    except KeyboardInterrupt:
        print("interrupted", engine.last.step, flush=True)
"""


def test_control_c_comes_between_steps(model):
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "1\n"
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=300)[0].split()
    assert said[-2] == "interrupted" and child.returncode == 0
    assert int(Path("mine/latest").resolve().name.removeprefix("step-")) >= int(said[-1])


KILLED = """
import eps, numpy, os, signal, sys
with eps.Engine("begun/latest", batch=4, seq=32, device_mem="64MiB", **eval(sys.argv[1])) as engine:
    for step in range(3):
        engine.step(numpy.ones((4, 32), int))
    print(engine.path, flush=True)
    if os.fork() == 0: # a child that has its sockets, and lives on
        sys.stdin.read()
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("out", ["mine", None])
def test_a_killed_program_is_saved_where_it_keeps_its_run(model, out):
    options = repr({"out": out} if out else {})
    child = subprocess.Popen([sys.executable, "-c", KILLED, options], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             text=True)
    path = Path(child.stdout.readline().strip())
    assert child.wait(300) == -signal.SIGKILL
    while programs_in(Path.cwd()):
        time.sleep(0.05)
    child.stdin.close()
    assert (path / "latest").exists() == (out is not None)
    if out:
        assert (path / "latest").resolve().name == "step-3"
    else:
        shutil.rmtree(path.parent)
