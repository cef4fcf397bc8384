"""Gradients and three training steps of small classifiers and a regression by transformers: tests/fixtures/labels_*.

    python make_labels.py [NAME...]

Rows differ in length, and BERT's are pairs of texts. They are padded to the longest of their minibatch, and masked. What is
committed is as training.py has it, and the rows themselves; of a regression's gradient also the distances of single rows.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU, those of ELECTRA, DistilBERT and ModernBERT with 5.24.0.
"""
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from transformers import (BertConfig, BertForSequenceClassification, DistilBertConfig, DistilBertForSequenceClassification,
                          ElectraConfig, ElectraForSequenceClassification, ModernBertConfig,
                          ModernBertForSequenceClassification, RobertaConfig, RobertaForSequenceClassification)

import drawn
import fixture
import training

BATCH, SEQ, ROOM, N_STEPS, N_MINIBATCHES, WHOLE = 7, 19, 24, 3, 2, 1 << 62  # rows have up to SEQ tokens
LR, EPSILON = 1e-3, 1e-4
VOCABULARY = 61
SIZES = dict(num_hidden_layers=2, vocab_size=VOCABULARY, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
MODELS = {  # classes, sizes, labels, and the row of position 0
    "labels_bert": (BertConfig, BertForSequenceClassification, 3, 0,
                    dict(hidden_size=21, num_attention_heads=3, intermediate_size=37, max_position_embeddings=ROOM + 1)),
    "labels_roberta": (RobertaConfig, RobertaForSequenceClassification, 2, 2,
                       dict(hidden_size=20, num_attention_heads=5, intermediate_size=33, hidden_act="gelu_new",
                            max_position_embeddings=ROOM + 2, type_vocab_size=1, pad_token_id=1, classifier_dropout=0.0)),
    "labels_regression": (BertConfig, BertForSequenceClassification, 1, 0,
                          dict(hidden_size=18, num_attention_heads=2, intermediate_size=25, hidden_act="relu",
                               max_position_embeddings=ROOM)),
    "labels_electra": (ElectraConfig, ElectraForSequenceClassification, 3, 0,
                       dict(embedding_size=20, hidden_size=20, num_attention_heads=2, intermediate_size=31,
                            max_position_embeddings=ROOM)),
    "labels_distilbert": (DistilBertConfig, DistilBertForSequenceClassification, 3, 0,
                          dict(dim=18, n_heads=3, hidden_dim=29, max_position_embeddings=ROOM, seq_classif_dropout=0.0)),
    # the longest row is longer than what its second block sees; transformers gives NaN where padding sees no key
    "labels_modernbert": (ModernBertConfig, ModernBertForSequenceClassification, 4, 0,
                          dict(hidden_size=16, num_attention_heads=2, intermediate_size=23, max_position_embeddings=ROOM,
                               local_attention=34, layer_types=["full_attention", "sliding_attention"], pad_token_id=0,
                               mlp_bias=True)),
}
OWN_SIZES = {DistilBertConfig: dict(n_layers=2, vocab_size=VOCABULARY, dropout=0.0, attention_dropout=0.0),
             ModernBertConfig: dict(num_hidden_layers=2, vocab_size=VOCABULARY)}  # these know no types of tokens
WAYS = (("eager", 1), ("sdpa", 1), ("eager", BATCH))


def how_drawn(tensor):
    """base and scale of a tensor's weights."""
    if ("LayerNorm" in tensor or "norm" in tensor) and tensor.endswith("weight"):
        return 1.0, 0.4
    return 0.0, 0.4 if tensor.endswith("bias") else 1.6 if "embeddings" in tensor else 1.0


def model_of(name, dtype, attention="eager"):
    make_config, make_model, n_labels, _, sizes = MODELS[name]
    config = make_config(**OWN_SIZES.get(make_config, SIZES), **sizes, num_labels=n_labels)
    model = make_model._from_config(config, attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            w = drawn.weights(f"{name}:{tensor}", p.numel(), *how_drawn(tensor))
            p.copy_(torch.from_numpy(w).view_as(p))
    return model.to(dtype).train()


def rows_of(name, number):
    """ids (2 or more, none of them padding's), where the second segment begins, and the label."""
    make_config, _, n_labels, first, sizes = MODELS[name]
    rng = np.random.default_rng([len(name), number])
    rows = []
    for i in range(BATCH):
        n = SEQ if i == number else int(rng.integers(2, SEQ - 2))
        pairs = sizes.get("type_vocab_size", 2) > 1 and make_config not in OWN_SIZES and i % 3 != 2
        label = round(float(rng.normal()), 3) if n_labels == 1 else int(rng.integers(n_labels))
        rows.append({"ids": [int(x) for x in rng.integers(2, VOCABULARY, n)],
                     "second": int(rng.integers(1, n)) if pairs else n, "label": label})
    return rows


def tensors_of(name, rows):
    n, pad = max(len(row["ids"]) for row in rows), MODELS[name][4].get("pad_token_id", 0)
    def padded(of, value):
        return torch.tensor([of(row) + [value] * (n - len(row["ids"])) for row in rows])
    kind = torch.float64 if MODELS[name][2] == 1 else torch.long
    types = dict(token_type_ids=padded(lambda row: [int(t >= row["second"]) for t in range(len(row["ids"]))], 0))
    return dict(input_ids=padded(lambda row: row["ids"], pad), **(types if MODELS[name][0] not in OWN_SIZES else {}),
                attention_mask=padded(lambda row: [1] * len(row["ids"]), 0)), torch.tensor(
                    [row["label"] for row in rows], dtype=kind)


def loss_of(model, inputs, labels, total):
    """As transformers computes it, but as a sum over these rows divided by all of the minibatch's."""
    logits = model(**inputs).logits
    mean = model(**inputs, labels=labels.to(logits.dtype) if labels.is_floating_point() else labels).loss
    if labels.is_floating_point():
        loss = ((logits.squeeze(-1) - labels.to(logits.dtype))**2).sum() / total
    else:
        loss = F.cross_entropy(logits, labels, reduction="sum") / total
    torch.testing.assert_close(mean * len(labels) / total, loss)
    return loss


def backward(model, name, number, n_runs=1):
    inputs, labels = tensors_of(name, rows_of(name, number))
    total = 0.0
    for part in range(n_runs):
        of = {k: v.chunk(n_runs)[part] for k, v in inputs.items()}
        loss = loss_of(model, of, labels.chunk(n_runs)[part], len(labels))
        loss.backward()
        total += loss.item()
    return total


def train(name, dtype, attention, n_runs):
    model, losses = model_of(name, dtype, attention), []
    optimizer = training.adamw(model, LR, EPSILON)
    for step in range(N_STEPS):
        optimizer.zero_grad(set_to_none=True)
        losses.append(backward(model, name, step % N_MINIBATCHES, n_runs))
        optimizer.step()
    return training.arrays(model, "weights"), losses


def gradient(name, dtype, attention, n_runs):
    model = model_of(name, dtype, attention)
    loss = backward(model, name, 0, n_runs)
    return training.arrays(model, "grad"), loss


def sum_of_rows(name):
    """Of each tensor: the sum over the first minibatch's rows of how far PyTorch's fp32 gradient of that row alone is from
    float64's; the larger of eager and sdpa. In a regression, a row's gradient is a multiple of the error of its one
    prediction, and so is what rounding makes of it. Their sum may cancel by chance, in every tensor at once, and a
    distance of zero says nothing about anybody else's. In a classifier that is so of the bias alone: a few numbers, and
    each the sum of one rounded probability a row."""
    def rows(dtype, attention):
        model = model_of(name, dtype, attention)
        inputs, labels = tensors_of(name, rows_of(name, 0))
        for i in range(BATCH):
            model.zero_grad(set_to_none=True)
            loss_of(model, {k: v[i:i + 1] for k, v in inputs.items()}, labels[i:i + 1], BATCH).backward()
            yield training.arrays(model, "grad")

    def distances(attention):
        pairs = list(zip(rows(torch.float64, "eager"), rows(torch.float32, attention)))
        return {t: sum(float(np.linalg.norm(single[t] - exact[t])) for exact, single in pairs) for t in pairs[0][0]}

    eager, sdpa = distances("eager"), distances("sdpa")
    return {t: max(eager[t], sdpa[t]) for t in eager}


def digest(writer, label, exact, singles, start=None):
    """The gradient of a key's bias is zero analytically, since softmax does not see what all keys have in common."""
    pieces = training.digest(writer, label, exact, singles, WHOLE, start)
    for piece in pieces:
        if piece["tensor"].endswith(("key.bias", "k_lin.bias")):
            piece["piece"] = "k"
    return pieces


def config_json(name):
    make_config, make_model, n_labels, _, sizes = MODELS[name]
    config = {"architectures": [make_model.__name__], "model_type": make_config.model_type, **OWN_SIZES.get(make_config, SIZES),
              **sizes}
    if n_labels != 2:  # as transformers writes it
        config["id2label"] = {str(i): f"LABEL_{i}" for i in range(n_labels)}
    return config


def logits_of(name):
    """Of each row of the first minibatch."""
    with torch.no_grad():
        return model_of(name, torch.float64)(**tensors_of(name, rows_of(name, 0))[0]).logits


def make(name):
    folder, writer = os.path.join(training.FIXTURES, name), training.Writer()
    os.makedirs(folder, exist_ok=True)
    start = training.arrays(model_of(name, torch.float64), "weights")
    exact, loss = gradient(name, torch.float64, "eager", 1)
    singles, single_losses = zip(*(gradient(name, torch.float32, *way) for way in WAYS))
    of_gradient = {"loss": loss, "fp32_losses": single_losses,
                   "pieces": digest(writer, f"{name}:gradient", exact, singles)}
    sums = sum_of_rows(name)
    for piece in of_gradient["pieces"]:
        if MODELS[name][2] == 1 or piece["n"] == MODELS[name][2]:
            piece["fp32_sum_of_rows"] = sums[piece["tensor"]]
    exact, losses = train(name, torch.float64, "eager", 1)
    singles, single_losses = zip(*(train(name, torch.float32, *way) for way in WAYS))
    of_training = {"optimizer": "adamw", "parts": 1, "losses": losses, "fp32_losses": single_losses,
                   "pieces": digest(writer, f"{name}:adamw1", exact, singles, start)}
    fixture.write(os.path.join(folder, "config.json"), config_json(name))
    fixture.write(os.path.join(folder, "reference.json"), {
        "name": name, "draw": name, "made_with": f"torch {torch.__version__}", "batch": BATCH, "seq": ROOM,
        "label_gap": 0, "n_minibatches": N_MINIBATCHES, "n_steps": N_STEPS, "lr": LR,
        "beta1": training.BETAS[0], "beta2": training.BETAS[1], "epsilon": EPSILON,
        "weight_decay": training.DECAY, "n_buckets": training.N_BUCKETS,
        "minibatches": [rows_of(name, number) for number in range(N_MINIBATCHES)],
        "logits": logits_of(name).tolist(),
        "weights": [{"tensor": t, "shape": list(p.shape), "n": p.numel(), "base": how_drawn(t)[0],
                     "scale": how_drawn(t)[1]} for t, p in model_of(name, torch.float64).named_parameters()],
        "gradient": of_gradient, "training": [of_training]})
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    print(name, losses, flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in sys.argv[1:] or MODELS:
        make(which)
