"""Gradients and three training steps of direct preference optimisation by PyTorch: tests/fixtures/pairs_*.

    python make_preferences.py

The loss is written from Rafailov et al., arXiv:2305.18290, equation 7. Rows differ in length; the first tokens of each
are a prompt, which is not scored. What is committed is as training.py has it, and the rows themselves.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import os

import numpy as np
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel, Qwen3Config, Qwen3ForCausalLM

import drawn
import fixture
import training

BATCH, SEQ, ROOM, N_STEPS, N_MINIBATCHES, WHOLE = 8, 17, 20, 3, 2, 1 << 62  # rows have up to SEQ tokens
LR, EPSILON = 1e-3, 1e-4
MODELS = {  # classes, beta, smoothing, sizes
    "pairs_gpt2": (GPT2Config, GPT2LMHeadModel, 0.1, 0.0,
                   dict(n_embd=24, n_head=3, n_layer=2, n_positions=ROOM, vocab_size=61, resid_pdrop=0.0,
                        embd_pdrop=0.0, attn_pdrop=0.0)),
    "pairs_qwen3": (Qwen3Config, Qwen3ForCausalLM, 0.5, 0.2,
                    dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, num_key_value_heads=1, head_dim=8,
                         intermediate_size=40, vocab_size=61, max_position_embeddings=ROOM,
                         tie_word_embeddings=False)),
}
WAYS = (("eager", 1), ("sdpa", 1), ("eager", BATCH // 2))


def how_drawn(tensor):
    """base and scale of a tensor's weights."""
    if ("ln_" in tensor or "norm" in tensor) and tensor.endswith("weight"):
        return 1.0, 0.4
    return 0.0, 0.4 if tensor.endswith("bias") else 1.0


def model_of(name, dtype, attention="eager"):
    make_config, make_model, _, _, sizes = MODELS[name]
    model = make_model._from_config(make_config(**sizes), attn_implementation=attention, dtype=torch.float32)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            w = drawn.weights(f"{name}:{tensor}", p.numel(), *how_drawn(tensor))
            p.copy_(torch.from_numpy(w).view_as(p))
    return model.to(dtype).train()


def rows_of(name, number):
    """Pairs, the chosen text first: ids, how many of them are the prompt, and the reference model's log p."""
    rng = np.random.default_rng([len(name), number, 5])
    rows = []
    for _ in range(BATCH // 2):
        prompt = [int(x) for x in rng.integers(0, 61, int(rng.integers(1, 6)))]
        for _ in range(2):
            n = int(rng.integers(1, SEQ - 5))
            ids = prompt + [int(x) for x in rng.integers(0, 61, n)]
            reference = float(np.float32(-4.2 * n + rng.normal()))
            rows.append({"ids": ids, "prompt": len(prompt), "reference": reference})
    return rows


def log_p(model, row):
    """Of the row's answer, which its prompt precedes."""
    ids = torch.tensor([row["ids"]])
    scored = F.log_softmax(model(input_ids=ids).logits[0, :-1], dim=-1).gather(1, ids[0, 1:, None])[:, 0]
    return scored[row["prompt"] - 1:].sum()


def loss_of(model, rows, beta, smoothing, n_pairs):
    total = 0
    for chosen, rejected in zip(rows[::2], rows[1::2]):
        z = beta * ((log_p(model, chosen) - chosen["reference"]) - (log_p(model, rejected) - rejected["reference"]))
        total = total - (1 - smoothing) * F.logsigmoid(z) - smoothing * F.logsigmoid(-z)
    return total / n_pairs


def backward(model, name, number, n_runs=1):
    _, _, beta, smoothing, _ = MODELS[name]
    rows, total = rows_of(name, number), 0.0
    for run in range(n_runs):
        some = rows[run * BATCH // n_runs:(run + 1) * BATCH // n_runs]
        loss = loss_of(model, some, beta, smoothing, BATCH // 2)
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


def rewards_of(name):
    """What TRL logs of the first minibatch, as sums over its pairs, and each row's log p."""
    with torch.no_grad():
        model, rows, beta = model_of(name, torch.float64), rows_of(name, 0), MODELS[name][2]
        sums = [float(log_p(model, row)) for row in rows]
    reward = [beta * (s - row["reference"]) for s, row in zip(sums, rows)]
    return {"log_p": sums, "chosen": sum(reward[::2]), "rejected": sum(reward[1::2]),
            "right": sum(a > b for a, b in zip(reward[::2], reward[1::2])),
            "chosen_log_p": sum(sums[::2]), "rejected_log_p": sum(sums[1::2])}


def config_json(name):
    make_config, make_model, _, _, sizes = MODELS[name]
    return {"architectures": [make_model.__name__], "model_type": make_config.model_type, **sizes}


def make(name):
    folder, writer = os.path.join(training.FIXTURES, name), training.Writer()
    os.makedirs(folder, exist_ok=True)
    start = training.arrays(model_of(name, torch.float64), "weights")
    exact, loss = gradient(name, torch.float64, "eager", 1)
    singles, single_losses = zip(*(gradient(name, torch.float32, *way) for way in WAYS))
    of_gradient = {"loss": loss, "fp32_losses": single_losses,
                   "pieces": training.digest(writer, f"{name}:gradient", exact, singles, WHOLE)}
    exact, losses = train(name, torch.float64, "eager", 1)
    singles, single_losses = zip(*(train(name, torch.float32, *way) for way in WAYS))
    of_training = {"optimizer": "adamw", "parts": 1, "losses": losses, "fp32_losses": single_losses,
                   "pieces": training.digest(writer, f"{name}:adamw1", exact, singles, 200, start)}
    fixture.write(os.path.join(folder, "config.json"), config_json(name))
    fixture.write(os.path.join(folder, "reference.json"), {
        "name": name, "draw": name, "made_with": f"torch {torch.__version__}", "batch": BATCH, "seq": ROOM,
        "label_gap": 0, "n_minibatches": N_MINIBATCHES, "n_steps": N_STEPS, "lr": LR,
        "beta1": training.BETAS[0], "beta2": training.BETAS[1], "epsilon": EPSILON,
        "weight_decay": training.DECAY, "n_buckets": training.N_BUCKETS,
        "beta": MODELS[name][2], "smoothing": MODELS[name][3],
        "minibatches": [rows_of(name, number) for number in range(N_MINIBATCHES)], "rewards": rewards_of(name),
        "weights": [{"tensor": t, "shape": list(p.shape), "n": p.numel(), "base": how_drawn(t)[0],
                     "scale": how_drawn(t)[1]} for t, p in model_of(name, torch.float64).named_parameters()],
        "gradient": of_gradient, "training": [of_training]})
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    print(name, losses, rewards_of(name), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in MODELS:
        make(which)
