"""Runs of Weights & Biases, kept offline: their files, read back by the messages of wandb's own package."""

import signal
import struct
import sys
import zlib
from pathlib import Path

import eps
import pytest

from conftest import SMALL

wandb = pytest.importorskip("wandb")
pb = pytest.importorskip("wandb.proto.wandb_internal_pb2")

BLOCK = 32 << 10  # as leveldb's log format has it, after a header of 7 bytes


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    yield
    wandb.teardown()  # else the next run lies in this one's folder


def records(path):
    """Each record: chunks of a checksum, a length and a type (1: whole; 2, 3, 4: first, middle, last)."""
    data, at, whole = path.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK
            continue
        crc, n, kind = struct.unpack_from("<IHB", data, at)
        chunk = data[at + 7:at + 7 + n]
        assert zlib.crc32(bytes([kind]) + chunk) == crc
        whole, at = whole + chunk, at + 7 + n
        if kind in (1, 4):
            record = pb.Record()
            record.ParseFromString(whole)
            whole = b""
            yield record


def tracked():
    """The only run here: its record, configuration by key, history [{key: value}], and exit code."""
    wandb.teardown()  # its service writes the rest of the file
    path, = Path("wandb").glob("offline-run-*/run-*.wandb")
    run, config, history, code = None, {}, [], None
    for record in records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
        if kind in ("run", "config"):
            changed = record.run.config if kind == "run" else record.config
            config.update((item.key or item.nested_key[0], item.value_json) for item in changed.update)
        elif kind == "history":
            history.append({item.key or item.nested_key[0]: item.value_json for item in record.history.item})
        elif kind == "exit":
            code = record.exit.exit_code
    return run, config, history, code


def test_a_run_has_the_options_and_the_figures_of_each_step():
    run = eps.train("text.txt", out="run", eval_every=2, wandb={"project": "capitals", "config": {"mine": 5}}, **SMALL)
    told, config, history, code = tracked()
    assert told.project == "capitals" and code == 0
    assert config["mine"] == "5" and config["batch"] == "4" and config["deterministic"] == "true"
    assert config["model"] == '"byte-small"' and float(config["lr"]) == max(step.lr for step in run.steps)
    assert [int(line["_step"]) for line in history] == [1, 2, 3, 4]
    assert [float(line["train/loss"]) for line in history] == [step.loss for step in run.steps]
    assert [float(line["train/lr"]) for line in history] == [step.lr for step in run.steps]
    assert [line.get("eval/loss") and float(line["eval/loss"]) for line in history] == [s.eval_loss for s in run.steps]
    assert float(history[0]["eval/loss_before"]) == run.steps[0].eval_before


def test_a_name_is_a_project_and_a_refused_run_is_finished():
    with pytest.raises(eps.OptionError):
        eps.train("text.txt", out="run", wandb="capitals", **dict(SMALL, seq=0))
    assert not Path("wandb").exists()  # a value that Python refuses begins nothing
    with pytest.raises(eps.OptionError):
        eps.train("text.txt", out="run", wandb="capitals", **dict(SMALL, seq=100000))
    told, config, history, code = tracked()
    assert told.project == "capitals" and history == [] and code == 1


@pytest.mark.parametrize("raised", [ValueError, KeyboardInterrupt])
def test_a_run_is_finished_where_training_ends_early(raised):
    def step(each):
        if each.step == 2 and raised is KeyboardInterrupt:
            signal.raise_signal(signal.SIGINT)
        elif each.step == 2:
            raise ValueError("enough")

    with pytest.raises(raised):
        eps.train("text.txt", out="run", on_step=step, wandb="capitals", **dict(SMALL, steps=100000))
    _, _, history, code = tracked()
    assert [int(line["_step"]) for line in history][:2] == [1, 2] and code == 1


def test_without_the_package_a_sentence_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ImportError, match="^`wandb` needs the package wandb: pip install wandb$"):
        eps.train("text.txt", out="run", wandb="capitals", **SMALL)
    assert not Path("run").exists()
    with pytest.raises(TypeError, match="wandb must be a project's name, or a dict"):
        eps.train("text.txt", out="run", wandb=7, **SMALL)
