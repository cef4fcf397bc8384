"""eps.plan, eps.evaluate, eps.generate, eps.export: as their commands; and what is refused."""

import inspect
import json
import os
import re
from pathlib import Path

import eps
import pytest

from eps._library import ffi, lib

from conftest import LINES, PROGRAMS, SMALL, command, words

ASKED = dict(model="gpt2", batch=8, seq=256, device_mem="256MiB", host_mem="16GiB")


# Each function, its command, and the keywords that are no options of it.
FUNCTIONS = [(eps.evaluate, lib.EPS_COMMAND_EVAL, {"on_note"}),
             (eps.generate, lib.EPS_COMMAND_GENERATE, {"prompt", "on_text", "on_note"}),
             (eps.Chat, lib.EPS_COMMAND_CHAT, {"on_note"}), (eps.export, lib.EPS_COMMAND_EXPORT, {"on_note"})]


@pytest.mark.parametrize("function, number, own", FUNCTIONS)
def test_keywords_are_the_options_of_the_command(function, number, own):
    n = ffi.new("size_t *")
    table = lib.eps_options(n)
    names = {ffi.string(row.name).decode()[2:].replace("-", "_") for row in ffi.unpack(table, n[0])
             if row.name and row.columns[number].help}
    counts = {"beams", "samples", "tokens"}
    assert {"n_" + name if name in counts else name for name in names} == set(inspect.signature(function).parameters) - own


@pytest.fixture
def run():
    return eps.train("text.txt", out="run", **SMALL).path


def test_a_plan_is_the_commands():
    told, plan = json.loads(command("plan", "--json", *words(ASKED))), eps.plan(**ASKED)
    assert plan.fits and plan.worker.bytes == told["workers"][0]["current"] and plan.host.bytes == told["host"]["current"]
    assert plan.worker.limit == 256 << 20 and plan.minimum == told["minimum"] == eps.plan_minimum(**ASKED)
    assert {k: v["current"] for k, v in told["host"]["categories"].items() if v["current"]} == plan.host.categories
    assert plan.microbatch == told["choice"]["microbatch"] and plan.n_parameters == told["parameters"]
    small = {**ASKED, "device_mem": plan.minimum - 1}
    assert not eps.plan(**small).fits and "device_mem" in eps.plan(**small).why
    assert eps.plan_batch(**{**ASKED, "batch": None}) == int(command("plan", "--find-batch", *words({k: v for k, v in ASKED.items() if k != "batch"})))
    assert eps.plan_depth(**ASKED) == int(command("plan", "--find-depth", *words(ASKED)))


def test_a_timeline_is_the_commands():
    asked = {**ASKED, "device": "cuda", "device_mem": "4GiB"}
    told, line = json.loads(command("plan", "--timeline", "--json", *words(asked))), eps.plan_timeline(**asked)
    assert line.step_ms == pytest.approx(told["step_ms"], rel=1e-9) and line.binds == told["binds"]
    assert line.busy_ms == pytest.approx({name: queue["busy_ms"] for name, queue in told["queues"].items()}, rel=1e-9)
    assert [(p.kind, p.path) for p in line.paths] == [(p["kind"], p["path"]) for p in told["paths"]]


def test_a_loss_is_the_commands(run):
    told = json.loads(command("eval", "--model", str(run), "--data", "text.txt", "--json"))
    measured = eps.evaluate(run, "text.txt")
    assert measured.loss == told["loss"] and measured.tokens == told["tokens"]
    assert eps.evaluate(run, [{"text": line} for line in LINES], seq=16).tokens > 0


def test_texts_are_the_commands(run):
    pieces = []
    texts = eps.generate(run, ["the number", "and"], n_samples=2, n_tokens=12, temperature=0.8, seed=7,
                         on_text=pieces.append)
    assert [(t.prompt, t.sample) for t in texts] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert "".join(pieces) == "".join(t.text for t in texts) and all(len(t.ids) == 12 for t in texts)
    told = command("generate", "--model", str(run), "--prompt", "the number", "--tokens", "12", "--temperature", "0.8",
                   "--seed", "7", "--device-mem", "64MiB")
    assert told.startswith("the number" + texts[0].text)
    assert eps.generate(run, list(b"the number"), n_tokens=12, temperature=0)[0].ids == \
        eps.generate(run, "the number", n_tokens=12, temperature=0)[0].ids


def test_an_export_names_what_loads_it(run):
    assert eps.export(run, "exported", dtype="bf16") == "AutoModelForCausalLM"
    assert (Path("exported") / "config.json").exists()
    with pytest.raises(eps.Error, match="exported"):
        eps.export(run, "exported")


def test_a_run_is_reshaped_and_trained_on(run):
    notes = []
    assert eps.reshape(run, "deeper", grow=1, on_note=notes.append) == "deeper"
    config = [json.loads((Path(of) / "latest/config.json").read_text()) for of in (run, "deeper")]
    assert config[1]["n_layer"] == config[0]["n_layer"] + 1 and notes == []
    with pytest.raises(eps.OptionError, match="one of `grow` and `replace`"):
        eps.reshape(run, "other")


WRONG = [
    (dict(lrr=1), TypeError, "eps.train has no option 'lrr': did you mean 'lr'"),
    (dict(per_device_train_batch_size=4), TypeError,
     "'per_device_train_batch_size': `batch` is the whole batch of a step, `microbatch` the rows"),
    (dict(learning_rate=1e-4), TypeError, "eps.train has no option 'learning_rate': it is called `lr` here"),
    (dict(n_gpu_layers=1), TypeError, "'n_gpu_layers': layers are not placed by number: what fits `device_mem`"),
    (dict(batch="3"), TypeError, "batch must be an int, not str"),
    (dict(batch=True), TypeError, "batch must be an int, not bool"),
    (dict(batch=-1), eps.OptionError, "batch is -1: it must be from 1 on"),
    (dict(batch=1 << 40), eps.OptionError, "batch is 1099511627776: it must be below 2^32"),
    (dict(lr="fast"), TypeError, "lr must be a float, not str"),
    (dict(lr=float("nan")), eps.OptionError, "lr is nan: it must be a number"),
    (dict(model=["byte-small"]), TypeError, "model must be a str, not list"),
    (dict(model="byte-small\0"), ValueError, "has a character of code 0"),
    (dict(lr=-1.0), eps.OptionError, "lr"),
    (dict(betas=0.9), TypeError, "betas must be a pair of floats, not float"),
    (dict(schedule="cosin"), eps.OptionError, "schedule is 'cosin': it must be one of cosine, linear"),
    (dict(nesterov=1), TypeError, "nesterov must be a bool, not int"),
    (dict(device_mem="12Q"), eps.OptionError, "device_mem: '12Q' is not a size"),
    (dict(device_mem=1), eps.Error, "device_mem"),
    (dict(device="tpu"), eps.OptionError, "`device` tpu: it is auto, cpu, cuda"),
    (dict(momentum=0.5), eps.OptionError, "momentum"),
    (dict(model="no-such-model"), eps.Error, "no-such-model"),
    (dict(data="absent.txt"), eps.Error, "absent.txt"),
    (dict(data=7), TypeError, "data must be paths, or an iterable of str or dict, not int"),
    (dict(data=[{"text": "x"}, 7]), TypeError, "row 2 of data is of type int: it must be a str or a dict"),
    (dict(data=[{"text": {1, 2}}]), TypeError, "row 1 of data cannot be written as JSON: a value of type set is in it"),
    (dict(data=[{"words": "x"}]), eps.Error, "line 1"),
    (dict(out="text.txt"), eps.Error, "text.txt"),
]


@pytest.mark.parametrize("given, kind, says", WRONG, ids=lambda value: re.sub(r"\W+", "-", str(value))[:40])
def test_what_is_wrong_is_said_in_one_sentence(given, kind, says):
    options = {**SMALL, "data": "text.txt", "out": "run", **given}
    with pytest.raises(kind) as caught:
        eps.train(options.pop("data"), **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value) and not Path("run").exists()


def test_help_lists_every_option_of_the_command(capsys):
    help(eps.train)
    text = capsys.readouterr().out
    options = set(re.findall(r"^ +(?:-\w, )?--([a-z-]+)", command("train", "--help", "all"), re.MULTILINE))
    missing = {name for name in options - {"help", "threads", "quiet", "verbose", "programs", "yes"}
               if f"{name.replace('-', '_')}: " not in text}
    assert not missing


def test_calls_leave_nothing_open(run):
    def count():
        return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))

    eps.generate(run, "the", n_tokens=1)
    before = count()
    for _ in range(5):
        eps.generate(run, "the", n_tokens=1)
        eps.plan(**ASKED)
        with pytest.raises(eps.Error):
            eps.evaluate(run, "absent.txt")
    assert count() == before


def test_a_forked_child_may_call(run):
    child = os.fork()
    if child == 0:
        os._exit(0 if eps.generate(run, "the", n_tokens=1) and eps.plan(**ASKED).fits else 1)
    assert os.waitpid(child, 0)[1] == 0
