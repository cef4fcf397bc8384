"""Gradients of models whose minibatch has the token of padding, by transformers: tests/fixtures/padding_*.

    python make_padding.py

PyTorch leaves that token's row of the embedding out of the gradient (padding_idx). A tied head's gradient reaches it:
Gemma 3's table is tied, Qwen 2's is not. What is committed is as training.py has it.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import os

import numpy as np
import torch

import distribution
import drawn
import fixture
import training

BATCH, SEQ, PARTS = 8, 11, 4
SIZES = dict(num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, hidden_size=20, head_dim=6,
             intermediate_size=28, vocab_size=61, max_position_embeddings=16)
MODELS = {  # Gemma 3's is 0 unless its config says otherwise
    "padding_qwen2": dict(family="qwen2", config=SIZES | dict(pad_token_id=2, tie_word_embeddings=False)),
    "padding_gemma3": dict(family="gemma3", config=SIZES | dict(query_pre_attn_scalar=6, sliding_window=5,
                                                                sliding_window_pattern=2)),
}


class Run(distribution.Run):
    def minibatch(self):
        ids, labels = drawn.minibatch(self.m["name"], 0, BATCH, SEQ, SIZES["vocab_size"], 0)
        padding = self.model.get_input_embeddings().padding_idx
        assert padding is not None and 3 < (ids == padding).sum() < BATCH * SEQ / 2, (ids == padding).sum()
        return torch.from_numpy(ids), torch.from_numpy(labels)


def make(name):
    m = MODELS[name] | dict(name=name, batch=BATCH, seq=SEQ, parts=PARTS, gain=0.8, wte=0.6)
    weights, folder, writer = distribution.weights_of(m, 24), os.path.join(training.FIXTURES, name), training.Writer()
    runs = [Run(m, weights, torch.float64)] + [Run(m, weights, **how) for how in distribution.ways(m, "fp32").values()]
    exact, *singles = [{t: g.numpy().ravel() for t, g in run.gradient().items()} for run in runs]
    os.makedirs(folder, exist_ok=True)
    fixture.write(os.path.join(folder, "config.json"),
                  {"model_type": distribution.FAMILIES[m["family"]][0].model_type, **m["config"]})
    fixture.write(os.path.join(folder, "reference.json"), {
        "name": name, "draw": name, "made_with": f"torch {torch.__version__}", "batch": BATCH, "seq": SEQ,
        "label_gap": 0, "n_minibatches": 1, "n_steps": 1, "lr": 1e-3, "beta1": training.BETAS[0],
        "beta2": training.BETAS[1], "epsilon": 1e-8, "weight_decay": training.DECAY, "n_buckets": training.N_BUCKETS,
        "weights": [{"tensor": t, "shape": list(shape), "n": shape.numel(), "base": base, "scale": scale}
                    for t, (base, scale, shape) in distribution.scales_of(m).items()],
        "gradient": {"loss": runs[0].loss, "fp32_losses": [run.loss for run in runs[1:]],
                     "pieces": training.digest(writer, f"{name}:gradient", exact, singles, 1 << 62)},
        "training": []})
    np.concatenate(writer.values).tofile(os.path.join(folder, "values.f64"))
    row = exact["model.embed_tokens.weight"].reshape(-1, SIZES["hidden_size"])[m["config"].get("pad_token_id", 0)]
    print(name, runs[0].loss, "gradient of the row of padding", np.linalg.norm(row), flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in MODELS:
        make(which)
