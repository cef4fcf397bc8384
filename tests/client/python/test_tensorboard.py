"""Event files, read back by TensorBoard's own reader, which checks each record's sum."""

from pathlib import Path

import eps
import pytest

from conftest import SMALL, command, words

event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(folder):
    """{tag: [(step, value)]}"""
    read = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def texts(folder):
    """{tag: [(step, text)]}"""
    read = event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    read.Reload()
    for tag in (tags := read.Tags()["tensors"]):
        assert read.SummaryMetadata(tag).plugin_data.plugin_name == "text"
    return {tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in read.Tensors(tag)] for tag in tags}


def near(value):
    return pytest.approx(value, rel=1e-6)  # they are in single precision


def test_tensorboard_reads_what_the_run_tells():
    run = eps.train("text.txt", out="run", eval_every=2, clip_norm=1.0, tensorboard="a/b", **SMALL)
    read = scalars("a/b")
    assert read["train/loss"] == [(s.step, near(s.loss)) for s in run.steps]
    assert read["train/lr"] == [(s.step, near(s.lr)) for s in run.steps]
    assert read["train/grad_norm"] == [(s.step, near(s.grad_norm)) for s in run.steps]
    assert read["speed/step_ms"] == [(s.step, near(s.step_ms)) for s in run.steps]
    assert read["memory/device_peak_bytes"] == [(s.step, near(s.device_peak_bytes)) for s in run.steps]
    assert read["eval/loss"] == [(s.step, near(s.eval_loss)) for s in run.steps if s.eval_loss is not None]
    assert read["eval/loss_before"] == [(1, near(run.steps[0].eval_before))]


def test_a_resumed_run_replaces_the_steps_that_it_does_again():
    eps.train("text.txt", out="run", save_every=2, tensorboard="events", **SMALL)
    Path("run/latest").unlink()
    Path("run/latest").symlink_to("step-2")
    for entry in Path("run/step-4").iterdir():
        entry.unlink()
    Path("run/step-4").rmdir()
    command("train", "--resume", "run", "--steps", "5", "--tensorboard", "events")
    losses = [(line.step, near(line.loss)) for line in eps.metrics("run")]
    assert len(losses) == 5 and scalars("events")["train/loss"] == losses


def test_samples_are_texts():
    prompts = ["the number", "of " * 3000 + "é" * 3000]
    run = eps.train("text.txt", out="run", sample_every=2, sample_prompt=prompts, tensorboard="events", **SMALL)
    assert [(s.step, s.prompt) for s in run.samples] == [(2, prompts[0]), (2, prompts[1]), (4, prompts[0]), (4, prompts[1])]
    read = texts("events")
    assert read["samples/1/text_summary"] == [(s.step, f"{s.prompt}\n\n{s.text}") for s in run.samples[::2]]
    cut = (prompts[1].encode()[:6 << 10]).decode(errors="ignore")
    assert read["samples/2/text_summary"] == [(s.step, f"{cut}\n\n{s.text}") for s in run.samples[1::2]]


def test_where_no_events_can_be_is_said():
    with pytest.raises(eps.Error) as caught:
        eps.train("text.txt", out="run", tensorboard="text.txt/events", **SMALL)
    assert str(caught.value) == "`tensorboard` text.txt/events: Not a directory"
