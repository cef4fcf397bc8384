"""Losses of a program's own: weights of labels, log-probabilities, and gradients by them, beside what the engine computes
without them."""

import importlib
import json
import threading
from pathlib import Path

import eps
import numpy
import pytest

from conftest import digest
from test_engine import BATCH, HOW, SEQ, model, rows_of  # noqa: F401

NONE = -100


def trained(name, train):
    """The weights' digest after `train(engine)`."""
    with eps.Engine(name, batch=BATCH, seq=SEQ, lr=1e-3, **HOW) as engine:
        train(engine)
        return digest(Path(engine.save()).parent)


def mean(log_p):
    """The gradient of the mean of -log p of BATCH x SEQ labels, and that mean."""
    return -log_p.mean(), numpy.full(log_p.shape, -1 / (BATCH * SEQ))


def test_labels_without_weight_count_as_if_they_were_none(model):
    name, ids, labels = model
    ids, labels = rows_of(ids, 0), rows_of(labels, 0)
    halves, weights = labels.copy(), numpy.zeros(labels.shape)
    halves[:, 1::2], weights[:, ::2] = NONE, 2
    assert trained(name, lambda e: e.step(ids, halves)) == trained(name, lambda e: e.step(ids, labels, weights))
    assert trained(name, lambda e: e.step(ids, labels)) == trained(name, lambda e: e.step(ids, labels, weights > -1))
    assert trained(name, lambda e: e.step(ids, labels)) != trained(name, lambda e: e.step(ids, labels, -weights))


def test_log_probabilities_are_those_of_a_distribution_and_of_the_loss(model):
    name, ids, labels = model
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        log_p = engine.logprobs(ids[:7], labels[:7])
        assert log_p.shape == (7, SEQ) and log_p.dtype == numpy.float32 and (log_p < 0).all()
        assert (engine.logprobs(ids[:7], labels[:7]) == log_p).all()
        shifted = engine.logprobs(ids[:7])
        assert (shifted[:, -1] == 0).all() and (shifted[:, :-1] == log_p[:, :-1]).all()
        some = numpy.where(numpy.arange(SEQ) == 3, numpy.arange(256)[:, None], NONE)
        every = engine.logprobs(numpy.repeat(ids[:1], 256, axis=0), some)
        assert numpy.exp(every[:, 3].astype(float)).sum() == pytest.approx(1, abs=1e-5) and (every[:, 4:] == 0).all()
        loss = engine.step(rows_of(ids, 0), rows_of(labels, 0))
        assert loss == pytest.approx(-log_p[:BATCH].mean(dtype=float), abs=2e-6)


def test_adapters_may_be_left_out(model):
    name, ids, _ = model
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        base = engine.logprobs(ids[:BATCH])
    with eps.Engine(name, batch=BATCH, seq=SEQ, lr=1e-2, lora="rank=4,targets=all-linear", **HOW) as engine:
        assert (engine.logprobs(ids[:BATCH]) == base).all()  # they begin with nothing
        engine.step(rows_of(ids, 0))
        engine.step(rows_of(ids, 0))
        assert (engine.logprobs(ids[:BATCH], adapters=False) == base).all()
        assert numpy.abs(engine.logprobs(ids[:BATCH]) - base).max() > 1e-2
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        with pytest.raises(eps.Error, match="the model has no adapters to leave out"):
            engine.logprobs(ids[:BATCH], adapters=False)
        assert engine.step(rows_of(ids, 0)) > 0


def test_threads_get_what_they_asked_for(model):
    name, ids, _ = model
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        expected = [engine.logprobs(ids[i:i + 2]) for i in range(16)]
        found = [None] * 16

        def ask(first):
            for i in range(first, 16, 4):
                found[i] = engine.logprobs(ids[i:i + 2])

        threads = [threading.Thread(target=ask, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert all((one == other).all() for one, other in zip(found, expected))


def config_of(dropout):
    """A directory of a model that drops values at this rate."""
    eps.train("text.txt", model="byte-small", steps=1, batch=BATCH, seq=SEQ, out="plain", device_mem="64MiB")
    eps.export("plain", "dropping")
    path = Path("dropping/config.json")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(dict(config, resid_pdrop=dropout, embd_pdrop=dropout, attn_pdrop=dropout)))
    return "dropping"


@pytest.mark.parametrize("dropout", [0, 0.3])
def test_a_loss_of_ones_own_trains_as_the_engines_does(model, dropout):
    name, ids, labels = config_of(dropout), rows_of(model[1], 0), rows_of(model[2], 0)
    losses = []

    def own(parts):
        def train(engine):
            for step in range(2):
                for part in parts:
                    losses.append(engine.forward_backward(ids[part], mean, labels[part]))
                engine.update()
        return train

    plain = trained(name, lambda engine: [losses.append(engine.step(ids, labels)) for step in range(2)])
    assert trained(name, own([slice(0, 4)])) == plain
    assert losses[2:4] == pytest.approx(losses[:2], abs=2e-6)
    assert trained(name, own([slice(0, 1), slice(1, 4)])) == plain


def test_rows_that_are_left_out_add_nothing(model):
    name, ids, labels = model
    ids, labels = rows_of(ids, 0), rows_of(labels, 0)

    def fails(log_p):
        raise ZeroDivisionError("no reward")

    def train(engine):
        engine.forward_backward(ids[:2], mean, labels[:2])
        with pytest.raises(ZeroDivisionError, match="no reward"):
            engine.forward_backward(ids[2:], fails, labels[2:])
        for wrong, kind, says in ((numpy.zeros((2, 3)), ValueError, r"the gradient has the shape \(2, 3\): it must be \(2, 32\)"),
                                  (numpy.full((2, SEQ), numpy.nan), ValueError, "the gradient holds nan"),
                                  (None, TypeError, "the gradient must be numbers, not object")):
            with pytest.raises(kind, match=says):
                engine.forward_backward(ids[2:], lambda log_p: wrong, labels[2:])
        with pytest.raises(ValueError, match="ids has 3 rows, beside 2 before: an update has at most 4"):
            engine.forward_backward(ids[:3], mean)
        with pytest.raises(eps.Error, match="forward_backward has added a gradient: call update first"):
            engine.step(ids)
        engine.update()
        with pytest.raises(eps.Error, match="nothing to update by"):
            engine.update()

    def alone(engine):
        engine.forward_backward(ids[:2], mean, labels[:2])
        engine.update()

    assert trained(name, train) == trained(name, alone)


def test_a_loss_may_ask_but_not_train(model):
    name, ids, _ = model
    ids = rows_of(ids, 0)

    def train(asks):
        def loss_fn(log_p):
            if asks:
                assert engine.logprobs(ids).shape == log_p.shape and len(dict(engine.named_weights())) > 0
                for trains in (lambda: engine.step(ids), engine.update, lambda: engine.forward_backward(ids, mean)):
                    with pytest.raises(eps.Error, match="loss_fn cannot train"):
                        trains()
            return mean(log_p)

        with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
            given = ids.copy()
            engine.forward_backward(given, loss_fn)
            given[:] = 0  # they were copied
            engine.update()
            return digest(Path(engine.save()).parent)

    assert train(True) == train(False)


def test_a_gradient_that_is_too_large_leaves_the_engine(model):
    name, ids, _ = model
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        engine.forward_backward(rows_of(ids, 0), lambda log_p: numpy.full(log_p.shape, 3e38))
        with pytest.raises(ValueError, match="too large: times its 124 labels"):
            engine.update()
        assert engine.step(rows_of(ids, 0)) > 0
    for ask in (engine.memory, engine.generate):
        with pytest.raises(eps.Error, match="the engine is closed"):
            ask()


def test_weights_that_are_none_are_refused(model):
    name, ids, _ = model
    ids = rows_of(ids, 0)
    with eps.Engine(name, batch=BATCH, seq=SEQ, label_smoothing=0.1, **HOW) as engine:
        for weights, kind, says in ((numpy.ones((2, 2)), ValueError, r"weights has the shape \(2, 2\)"),
                                    (numpy.full(ids.shape, numpy.inf), ValueError, "weights holds inf"),
                                    ("all", TypeError, "weights must be numbers")):
            with pytest.raises(kind, match=says):
                engine.step(ids, None, weights)
        with pytest.raises(eps.Error, match="label_smoothing changes the loss"):
            engine.forward_backward(ids, mean)
        assert engine.step(ids) > 0


def test_a_plan_tells_the_least_memory_of_an_engine(model):
    name, ids, _ = model
    how = dict(model=name, batch=BATCH, seq=SEQ)
    least = eps.plan_minimum(engine=True, **how)
    assert eps.plan_minimum(**how) < least == eps.plan(engine=True, **how).minimum
    with pytest.raises(eps.Error, match="device_mem"):
        eps.Engine(name, batch=BATCH, seq=SEQ, device_mem=least - 1)
    with eps.Engine(name, batch=BATCH, seq=SEQ, device_mem=least) as engine:
        assert engine.step(rows_of(ids, 0)) > 0


def test_an_engine_writes_and_tells_its_memory(model):
    name, ids, _ = model
    with eps.Engine(name, batch=BATCH, seq=SEQ, **HOW) as engine:
        before = engine.generate("The", n_tokens=8, temperature=0)
        assert before[0].ids == eps.generate(name, "The", n_tokens=8, temperature=0)[0].ids
        for step in range(3):
            engine.step(rows_of(ids, step), lr=1e-2)
        after = engine.generate(["The", "A"], n_tokens=8, temperature=0)
        saved = eps.generate(engine.save(), ["The", "A"], n_tokens=8, temperature=0)
        assert [text.ids for text in after] == [text.ids for text in saved] and after[0].ids != before[0].ids
        host, device = engine.memory()
        assert (host.worker, host.budget, device.budget) == (0, 0, 64 << 20)
        assert 0 < device.peak <= device.planned <= device.budget and host.peak > 0


@pytest.fixture
def example(monkeypatch):
    """Imports a program of client/python/examples."""
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[3] / "client" / "python" / "examples")
    return importlib.import_module


def test_a_policy_learns_what_is_rewarded(model, example):
    rewards = example("grpo").train(model[0], out="policy", rounds=4, lr=3e-3)
    assert rewards[-1] > 2 * rewards[0] and Path("policy/latest/model.safetensors").exists()


def test_the_policys_gradient_is_the_slope_of_its_loss(example):
    grpo, r = example("grpo").grpo, numpy.random.default_rng(4)
    log_p, counts = r.normal(-2, 1, (3, 5)), (r.random((3, 5)) < 0.7).astype(float)
    near = (log_p + r.normal(0, 0.3, (3, 5)), log_p + r.normal(0, 0.3, (3, 5)), numpy.array([[1.0], [-1.0], [0.5]]), counts)
    slopes = numpy.zeros(log_p.shape)
    for at in numpy.ndindex(log_p.shape):
        step = numpy.zeros(log_p.shape)
        step[at] = 1e-6
        slopes[at] = (grpo(log_p + step, *near)[0] - grpo(log_p - step, *near)[0]) / 2e-6
    gradient = grpo(log_p, *near)[1]
    assert numpy.abs(gradient - slopes).max() < 1e-8 and (gradient[counts > 0] == 0).sum() < (counts > 0).sum() / 2


def test_a_model_comes_nearer_to_its_teacher(model, example):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    distill, r = example("distill"), numpy.random.default_rng(4)
    eps.train("text.txt", model=model[0], steps=60, batch=BATCH, seq=48, lr=3e-3, out="taught", device_mem="64MiB")
    eps.export("taught", "teacher")
    divergences = distill.train(model[0], "teacher", rounds=8, lr=1e-3)
    assert max(divergences[-2:]) < divergences[0]
    sampled, judged = -r.random((2, 4, 6)).astype(numpy.float32)
    loss, gradient = distill.distil(sampled, sampled, judged)
    assert gradient.numpy() == pytest.approx(-(judged - sampled - (judged - sampled).mean()) / 24, abs=1e-7)
