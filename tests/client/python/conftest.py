"""What the package's tests share: the installed package's programs, a small text, options of a small run."""

import hashlib
import json
import os
import subprocess
from pathlib import Path

import eps
import pytest

PROGRAMS = Path(eps.__file__).parent / "programs"
SMALL = dict(model="byte-small", steps=4, batch=4, seq=32, device_mem="64MiB", deterministic=True)
LINES = [f"the number {i} is followed by the number {i + 1}, and that by {i + 2}" for i in range(300)]
TEMPLATE = ("{% for m in messages %}{% if m.content == 'no' %}{{ raise_exception('not that') }}{% endif %}"
            "[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Each test has a folder of its own, and no profile of this machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("\n".join(LINES))
    return tmp_path


@pytest.fixture(scope="session")
def conversing(tmp_path_factory):
    """A model of bytes, hardly trained, that has a chat template."""
    run = eps.train([{"text": line} for line in LINES], model="byte-small", steps=1, batch=4, seq=32, device_mem="64MiB",
                    out=tmp_path_factory.mktemp("conversing"))
    (run.latest / "chat_template.jinja").write_text(TEMPLATE)
    return run.latest


def command(*words):
    """The command's standard output; it must succeed."""
    done = subprocess.run([PROGRAMS / "eps", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def words(options):
    """Options of a command, of keywords."""
    out = []
    for name, value in options.items():
        out += ["--" + name.replace("_", "-")] + ([] if value is True else [str(value)])
    return out


def digest(run):
    """Of the newest checkpoint's weights."""
    return hashlib.sha256((Path(run) / "latest" / "model.safetensors").read_bytes()).hexdigest()


def lines(path):
    """Those of a file of JSON lines."""
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def programs_in(folder):
    """Daemons and workers that run in this folder: their numbers, and programs."""
    found = {}
    for process in Path("/proc").iterdir():
        try:
            program = Path(os.readlink(process / "exe"))
            if program.parent == PROGRAMS and os.readlink(process / "cwd") == str(folder):
                found[int(process.name)] = program.name
        except (OSError, ValueError):
            pass
    return found
