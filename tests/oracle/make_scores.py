"""GLUE's metrics of random predictions, by scikit-learn and SciPy: tests/fixtures/scores.json.

    python make_scores.py

Each case has logits (n rows of n_labels, whole numbers, so that ties occur), labels, and the metrics; null is undefined.
Cases without a prediction, or without a label, of some class are among them, and constant numbers. Fixed seeds.
"""
import math
import pathlib
import random
import warnings

from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

import fixture

OUT = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "scores.json"


def classes(draw, n, n_labels, of_labels, of_predictions):
    logits = [[draw.randint(-3, 3) for _ in range(n_labels)] for _ in range(n)]
    for row in logits:
        row[draw.choice(of_predictions)] += 4
    labels = [draw.choice(of_labels) for _ in range(n)]
    predicted = [row.index(max(row)) for row in logits]
    case = {"n_labels": n_labels, "logits": sum(logits, []), "labels": labels, "accuracy": accuracy_score(labels, predicted)}
    if n_labels == 2:
        case["f1"] = f1_score(labels, predicted, zero_division=0)
        case["matthews"] = matthews_corrcoef(labels, predicted)
    else:
        case["macro_f1"] = f1_score(labels, predicted, average="macro", zero_division=0)
    return case


def numbers(draw, n, of_labels, of_predictions):
    logits, labels = [of_predictions() for _ in range(n)], [of_labels() for _ in range(n)]

    def defined(x):
        return None if math.isnan(x) else x
    return {"n_labels": 1, "logits": logits, "labels": labels, "pearson": defined(pearsonr(logits, labels).statistic),
            "spearman": defined(spearmanr(logits, labels).statistic)}


def main():
    draw, out = random.Random(2), []
    warnings.simplefilter("ignore")
    for n in (1, 2, 7, 40, 300):
        for n_labels in (2, 3, 5):
            every = range(n_labels)
            out.append(classes(draw, n, n_labels, every, every))
            out.append(classes(draw, n, n_labels, [0], every))
            out.append(classes(draw, n, n_labels, every, [n_labels - 1]))
    out.append(classes(draw, 9, 2, [0], [0]))
    out.append(classes(draw, 9, 5, [1, 3], [1]))
    for n in (2, 3, 40, 300):
        out.append(numbers(draw, n, lambda: draw.randint(0, 5), lambda: draw.randint(-4, 4) / 4))
        out.append(numbers(draw, n, lambda: 1e6 + draw.randint(0, 99) / 16, lambda: draw.randint(-999, 999) / 8))
        out.append(numbers(draw, n, lambda: 3, lambda: draw.randint(0, 5)))
    fixture.write(OUT, out)


if __name__ == "__main__":
    main()
