"""Rows from Hugging Face's datasets: the run of the same rows as lines of .jsonl."""

import json
import os
from pathlib import Path

import eps
import pytest

from conftest import LINES, SMALL, digest
from test_examples import example

os.environ["HF_HUB_OFFLINE"] = "1"  # as it is imported
datasets = pytest.importorskip("datasets")

PAIRS = [{"prompt": line[:20], "completion": line[20:]} for line in LINES]
CONVERSATIONS = [{"messages": [{"role": "user", "content": f"{i}?"}, {"role": "assistant", "content": f"yes {i}"}]}
                 for i in range(40)]
ROWS = {"texts": [{"text": line} for line in LINES], "pairs": PAIRS, "conversations": CONVERSATIONS}


@pytest.fixture(autouse=True)
def cache(folder, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", folder / "datasets")


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.mark.parametrize("kind", ROWS)
def test_a_datasets_rows_train_as_a_file_of_them_does(conversing, kind):
    path = write(Path("rows.jsonl"), ROWS[kind])
    how = {**SMALL, "model": conversing, "steps": 2}
    expected = digest(eps.train(path, out="file", **how).path)
    forms = {"mapped": datasets.Dataset.from_list(ROWS[kind]),
             "streamed": datasets.load_dataset("json", data_files=path, split="train", streaming=True)}
    assert isinstance(forms["streamed"], datasets.IterableDataset)
    for name, form in forms.items():
        assert digest(eps.train(form, out=name, **how).path) == expected, name


def test_rows_of_several_layouts_have_no_value_where_others_have_one():
    """datasets gives each row all columns, with None."""
    rows = [{"text": LINES[0]}] + PAIRS
    dataset = datasets.Dataset.from_list([{"text": None, "prompt": None, "completion": None, **row} for row in rows])
    assert dataset[0] == {"text": LINES[0], "prompt": None, "completion": None}
    expected = digest(eps.train(write(Path("rows.jsonl"), rows), out="file", **SMALL).path)
    assert digest(eps.train(dataset, out="dataset", **SMALL).path) == expected


def test_several_splits_are_refused_by_the_name_of_one():
    splits = datasets.Dataset.from_list(PAIRS).train_test_split(0.1, seed=1)
    with pytest.raises(TypeError, match=r'data has splits \(train, test\): name one, as data\["train"\]'):
        eps.train(splits, out="run", **SMALL)


def test_the_example_trains_on_questions_and_answers(conversing):
    Path("sums").mkdir()
    sums = [{"question": f"{i} + 1", "answer": f"{i + 1}"} for i in range(100)]
    write(Path("sums/train.jsonl"), sums)
    said = example("finetune.py", conversing, "sums", "run").splitlines()
    rows = [{"prompt": row["question"] + "\n", "completion": row["answer"]} for row in sums]
    run = eps.train(rows, model=conversing, epochs=1, lr=1e-4, device_mem="1GiB", out="expected")
    assert digest("run") == digest("expected") and f"held out {run.eval_loss}" in said
