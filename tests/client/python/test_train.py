"""eps.train: what the command does, told to Python, and stopped by it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import eps
import pytest

from conftest import LINES, SMALL, command, digest, lines, programs_in, words


def rounded(loss):
    """As metrics.jsonl has it."""
    return float(f"{loss:.12g}")


def test_a_run_has_the_commands_losses_and_weights_bit_for_bit():
    command("train", "--data", "text.txt", "--out", "command", *words(SMALL))
    seen = []
    run = eps.train("text.txt", out="package", on_step=seen.append, **SMALL)
    assert digest("command") == digest(run.path)
    assert [rounded(step.loss) for step in run.steps] == [line["loss"] for line in lines("command/metrics.jsonl")]
    assert seen == run.steps and [step.step for step in seen] == [1, 2, 3, 4]
    assert run.path == Path("package") and run.latest.resolve().name == "step-4"


def test_samples_are_what_the_checkpoints_write_and_change_no_bit():
    heard = []
    run = eps.train("text.txt", out="run", sample_every=2, sample_prompt=["the number", "1"], save_every=2, seed=7,
                    on_sample=heard.append, **SMALL)
    eps.train("text.txt", out="without", save_every=2, seed=7, **SMALL)
    assert digest("run") == digest("without")
    assert heard == run.samples and [s.step for s in heard] == [2, 2, 4, 4]
    for i, step in enumerate((2, 4)):
        written = eps.generate(f"run/step-{step}", ["the number", "1"], n_tokens=64, seed=7 + step)
        assert [(s.prompt, s.text) for s in heard[2 * i:2 * i + 2]] == [("the number", written[0].text), ("1", written[1].text)]


def test_a_sample_that_fails_is_a_note_and_training_goes_on(monkeypatch):
    with tempfile.TemporaryDirectory() as there:  # a socket's path is short
        def step(each):
            monkeypatch.setenv("XDG_RUNTIME_DIR", there if each.step == 3 else str(Path("text.txt").resolve()))

        run = eps.train("text.txt", out="run", sample_every=1, sample_prompt="a", on_step=step, **SMALL)
    assert len(run.steps) == 4 and [s.step for s in run.samples] == [3]
    told = [note.split(": ") for note in run.notes if note.startswith("no sample")]
    assert [each[0] for each in told] == ["no sample after step 1", "no sample after step 4"]  # step 2 says nothing new
    assert all("text.txt" in " ".join(each) and each[-1].endswith("; training goes on") for each in told)


@pytest.mark.parametrize("options, sentence", [
    (dict(sample_every=2, sample_prompt=["a", b"\xff".decode(errors="surrogateescape")]),
     "`sample_prompt`: text 2 is not UTF-8"),
    (dict(sample_every=2), "`sample_every` needs a text to continue: give `sample_prompt` TEXT"),
    (dict(sample_prompt="a"), "`sample_prompt` is for samples while training: give `sample_every` N")])
def test_wrong_options_of_samples_are_refused(options, sentence):
    with pytest.raises(eps.OptionError) as caught:
        eps.train("text.txt", out="run", **options, **SMALL)
    assert str(caught.value) == sentence


def test_a_run_tells_of_its_evaluations_checkpoints_notes_and_memory():
    evaluated, saved, notes, begun = [], [], [], time.time()
    run = eps.train("text.txt", out="run", eval_every=2, save_every=2, on_evaluation=lambda *e: evaluated.append(e),
                    on_save=lambda *s: saved.append(s), on_note=notes.append, verbose=True, **SMALL)
    assert [step for step, _ in evaluated] == [0, 2, 4] and run.eval_loss == evaluated[-1][1]
    assert [step.eval_loss for step in run.steps] == [None, evaluated[1][1], None, evaluated[2][1]]
    assert {step for step, _ in saved} == {2, 4} and all(path.is_dir() for _, path in saved)
    assert notes == run.notes and any("recipe" in note for note in notes)
    host, device = run.memory
    assert host.worker == 0 and device.budget == 64 << 20
    assert 0 < device.peak == device.planned <= device.budget and sum(device.categories.values()) >= device.peak
    assert [m.loss for m in eps.metrics("run")] == [rounded(step.loss) for step in run.steps]
    assert run.metrics() == eps.metrics("run")
    times = [begun, *(step.time for step in run.steps), time.time()]
    assert times == sorted(times) and [m.time for m in eps.metrics("run")] == list(map(rounded, times[1:-1]))


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped():
    eps.train("text.txt", out="whole", schedule="constant", warmup=0, **SMALL)
    eps.train("text.txt", out="parts", schedule="constant", warmup=0, **{**SMALL, "steps": 2})
    run = eps.train(resume="parts", steps=4)
    assert [step.step for step in run.steps] == [3, 4] and digest("whole") == digest("parts")


def test_a_callback_leaves_blocks_out():
    safetensors = pytest.importorskip("safetensors.numpy")
    seen = []

    def without_the_last(blocks):
        seen.append((blocks.step, blocks.n_blocks, list(blocks.computed), list(blocks.frozen)))
        blocks.computed.pop()

    eps.train("text.txt", out="begun", **{**SMALL, "steps": 1})
    before = safetensors.load_file("begun/latest/model.safetensors")
    run = eps.train(resume="begun", steps=2, on_blocks=without_the_last)
    after = safetensors.load_file(run.latest / "model.safetensors")
    n = seen[0][1]
    assert seen == [(2, n, list(range(n)), [])]
    changed = {name for name in after if (after[name] != before[name]).any()}
    assert not any(f"h.{n - 1}." in name for name in changed) and any("h.0." in name for name in changed)

    def beyond(blocks):
        blocks.computed += [0] * n

    with pytest.raises(ValueError, match=f"computed has {2 * n} blocks, and the model {n}"):
        eps.train("text.txt", out="beyond", on_blocks=beyond, **SMALL)


def in_file(rows):
    with open("rows.jsonl", "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    return eps.train("rows.jsonl", out="file", **SMALL)


def test_rows_of_a_program_train_as_a_file_of_them_does(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    rows = [{"text": line} for line in LINES]
    expected = [step.loss for step in in_file(rows).steps]
    forms = {"list": rows, "generator": (row for row in rows), "texts": iter(LINES)}
    n_folders = []

    def look(step):
        n_folders.append(len(list(tmp_path.glob("eps-data-*"))))

    for name, form in forms.items():
        assert [step.loss for step in eps.train(form, out=name, on_step=look, **SMALL).steps] == expected, name
    assert eps.train(rows, resume="list", steps=5).steps[0].step == 5
    look(None)
    assert set(n_folders[:-1]) == {1} and n_folders[-1] == 0


def test_tables_are_rows():
    pandas = pytest.importorskip("pandas")
    pyarrow = pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"prompt": [line[:20] for line in LINES], "completion": [line[20:] for line in LINES]})
    expected = [step.loss for step in in_file(frame.to_dict("records")).steps]
    for name, form in {"frame": frame, "table": pyarrow.Table.from_pandas(frame)}.items():
        assert [step.loss for step in eps.train(form, out=name, **SMALL).steps] == expected, name


def test_files_of_columns_are_rows():
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = [{"prompt": line[:20], "completion": line[20:]} for line in LINES]
    table = pyarrow.Table.from_pylist(rows)
    expected = in_file(rows + rows)
    parquet.write_table(table, "rows.parquet", row_group_size=7)
    with pyarrow.OSFile("rows.feather", "wb") as file, pyarrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    with pyarrow.OSFile("rows.arrow", "wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=5)
    Path("own.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for i, files in enumerate((["rows.parquet", "own.jsonl"], ["rows.feather", "rows.arrow"])):
        run = eps.train(files, out=f"columns-{i}", **SMALL)
        assert [step.loss for step in run.steps] == [step.loss for step in expected.steps], files
    path = Path("own.jsonl")
    held = [eps.train(rows, eval_data=data, out=f"held-{i}", **SMALL).eval_loss
            for i, data in enumerate((path, "rows.parquet", rows, iter(rows)))]
    assert len(set(held)) == 1 and held[0] != expected.eval_loss
    whole = Path("rows.parquet").read_bytes()
    for name, content in {"none.parquet": b"no table", "none.arrow": b"", "cut.parquet": whole[:-9],
                          "flipped.parquet": whole[:40] + bytes(40) + whole[80:]}.items():
        Path(name).write_bytes(content)
        with pytest.raises(eps.Error, match=f"^{name} cannot be read as .*, it may be damaged: "):
            eps.train(name, out="none", **SMALL)
    with pytest.raises(eps.Error, match="^gone.parquet: No such file"):
        eps.train("gone.parquet", out="none", **SMALL)


def test_a_table_that_expands_beyond_all_measure_is_refused():
    """By what it says of itself, and, where that is a lie or not said, as it is written."""
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    plain = pyarrow.table({"text": ["a" * 1000] * 100_000})
    parquet.write_table(plain, "bomb.parquet", compression="zstd", use_dictionary=False)
    parquet.write_table(plain, "dictionary.parquet", compression="zstd")
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    with pyarrow.OSFile("bomb.arrow", "wb") as file, pyarrow.ipc.new_file(file, plain.schema, options=options) as writer:
        writer.write_table(plain, max_chunksize=10_000)
    for name in "bomb.parquet", "dictionary.parquet", "bomb.arrow":
        assert os.path.getsize(name) * 250 < plain.nbytes
        with pytest.raises(eps.Error, match=f"^{name}: expands to more than 250 times its size, unlike text: write its"):
            eps.train(name, out="none", **SMALL)


def test_a_process_that_is_killed_leaves_no_rows_behind(tmp_path):
    """Only a folder, with a link to a descriptor of that process."""
    program = ("import eps, os, signal\n"
               "eps.train([{'text': 'x' * 100000}] * 100, out='killed', steps=9, batch=2, seq=8,\n"
               "          on_step=lambda step: os.kill(os.getpid(), signal.SIGKILL))\n")
    killed = subprocess.run([sys.executable, "-c", program], env={**os.environ, "TMPDIR": str(tmp_path)})
    assert killed.returncode == -9
    folders = list(tmp_path.glob("eps-data-*"))
    assert len(folders) == 1
    assert all(path.is_symlink() for path in folders[0].iterdir())


def test_files_of_columns_need_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match="^rows.parquet needs the package pyarrow: pip install pyarrow$"):
        eps.train("rows.parquet", out="run", **SMALL)


class Own(Exception):
    pass


def test_an_exception_in_a_callback_ends_the_run_after_a_save():
    def fail(step):
        if step.step == 2:
            raise Own("of mine")

    with pytest.raises(Own, match="of mine"):
        eps.train("text.txt", out="run", on_step=fail, **{**SMALL, "steps": 400})
    saved = max(line["step"] for line in lines("run/metrics.jsonl"))
    assert 2 <= saved < 400 and Path("run/latest").resolve().name == f"step-{saved}"
    assert eps.train(resume="run", steps=saved + 1).steps[0].step == saved + 1


def test_an_exception_in_the_data_begins_no_run():
    def rows():
        yield LINES[0]
        raise Own("in the middle")

    with pytest.raises(Own):
        eps.train(rows(), out="run", **SMALL)
    assert not Path("run").exists()


SCRIPT = """
import eps, sys
def on_step(step):
    print(step.step, flush=True)
try:
    eps.train("text.txt", out="run", on_step=on_step, model="byte-small", steps=100000, batch=4, seq=32, device_mem="64MiB")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def begin():
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "1\n"
    return child


def test_control_c_saves_and_raises_keyboard_interrupt():
    child = begin()
    child.send_signal(signal.SIGINT)
    said = child.communicate(timeout=300)[0].split()
    assert said[-1] == "interrupted" and child.returncode == 0
    step = max(line["step"] for line in lines("run/metrics.jsonl"))
    assert Path("run/latest").resolve().name == f"step-{step}"


def test_a_killed_interpreter_leaves_nothing_behind(folder):
    child = begin()
    assert programs_in(folder)
    child.kill()
    child.wait()
    while programs_in(folder):  # they notice
        os.sched_yield()
