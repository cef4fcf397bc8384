"""The programs in Python of README.md and of the package's own page run as they are pasted, in that order, beside the run that
the guide makes first; and what the page names is there."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import eps

ROOT = Path(__file__).parents[3]
PAGES = [ROOT / "README.md", ROOT / "client" / "python" / "README.md"]


def programs(page):
    return re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)


def run(program):
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout


def test_the_readmes_program_runs_as_it_is():
    (program,) = programs(PAGES[0])
    assert len(program.splitlines()) <= 10
    *steps, answer = run(program).splitlines()
    assert [step.split()[0] for step in steps] == ["20", "40", "60", "80", "100"] and answer == " Italy."


def test_the_pages_programs_run_as_they_are():
    eps.train("text.txt", model="byte-small", batch=16, seq=64, steps=30, device_mem="128MiB", out="runs/first")
    said = [run(program) for program in programs(PAGES[1])]
    assert len(said) == 2
    least, *steps, answer = said[0].splitlines()
    assert int(least) == eps.plan_minimum(model="runs/first/latest", batch=10, seq=48)
    assert [step.split()[0] for step in steps] == ["20", "40", "60", "80"] and answer.startswith(" Ita")
    assert said[1].split()[-1] == "runs/own/step-50" and Path("runs/own/step-50/model.safetensors").exists()


def test_what_the_page_names_is_there():
    text = PAGES[1].read_text()
    callbacks = set(re.findall(r"`(on_[a-z]+)`", text)) - {"on_weights"}  # that one is C's
    assert callbacks and callbacks <= set(inspect.signature(eps.train).parameters)
    for owner, name in re.findall(r"`(eps|engine)\.([A-Za-z_]+)", text):
        assert hasattr(eps if owner == "eps" else eps.Engine, name), name
    for example in re.findall(r"`([a-z]+\.py)`", text):
        assert (ROOT / "client" / "python" / "examples" / example).exists()
