"""Makes a model of transformers compute in float64 throughout, and shows that it does.

    python float64.py

transformers 5.23 computes RMS norms, rotary angles and the softmax of eager attention in fp32 also where a model is in
float64, and its own fp32 shares those errors. widen() overrides norms, angles and the embedding's scale in one model;
attention has to be sdpa, whose softmax is in the type of its arguments. The frequencies are those that transformers computes
in fp32, to fp32's rounding.

As a script: logits and a directional derivative of a model of each family are those of NumPy in float64, written
from the families' papers with neither torch nor transformers. Exit status 0 or 1.
Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import math
import sys
import types

import numpy as np
import torch


def frequencies_of(rope, head_width):
    """Of each pair of columns, the angle between neighbouring positions."""
    n = head_width
    f = float(rope["rope_theta"]) ** (-np.arange(0, n, 2, dtype=np.float64) / n)
    if rope["rope_type"] == "linear":
        return f / rope["factor"]
    if rope["rope_type"] == "llama3":  # in section 3.1.3 of arXiv:2407.21783: between low and high, some of both
        waves, low, high = (rope["original_max_position_embeddings"] * f / (2 * math.pi), rope["low_freq_factor"],
                            rope["high_freq_factor"])
        kept = np.clip((waves - low) / (high - low), 0, 1)
        return f * (kept + (1 - kept) / rope["factor"])
    assert rope["rope_type"] == "default", rope
    return f


def rope_of(config, kind):
    return config.rope_parameters[kind] if kind in config.rope_parameters else config.rope_parameters


def head_width_of(config):
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def _norm(self, x):
    epsilon = self.eps if hasattr(self, "eps") else self.variance_epsilon
    weight = self.weight + (1 if type(self).__name__.startswith("Gemma") else 0)
    return weight * x / torch.sqrt(x.pow(2).mean(-1, keepdim=True) + epsilon)


def _angles(self, x, position_ids, kind=None):
    f = frequencies_of(rope_of(self.config, kind), head_width_of(self.config))
    theirs = getattr(self, f"{kind}_inv_freq") if kind else self.inv_freq
    torch.testing.assert_close(torch.from_numpy(f), theirs.double(), rtol=1e-5, atol=0)
    angles = position_ids[..., None].double() * torch.from_numpy(np.concatenate((f, f)))
    return angles.cos(), angles.sin()


def widen(model):
    """Overrides what is left of fp32 in a model that is in float64 and attends by sdpa. GPT-2, BERT and RoBERTa have
    nothing of it."""
    assert model.dtype == torch.float64
    if model.config.model_type in ("gpt2", "bert", "roberta"):
        return model
    assert model.config._attn_implementation == "sdpa"
    n_norms = n_angles = 0
    for module in model.modules():
        name = type(module).__name__
        if name.endswith("RMSNorm"):
            module.forward, n_norms = types.MethodType(_norm, module), n_norms + 1
        elif name.endswith("RotaryEmbedding"):
            module.forward, n_angles = types.MethodType(_angles, module), n_angles + 1
        elif hasattr(module, "embed_scale"):
            module.embed_scale.fill_(math.sqrt(model.config.hidden_size))
    assert n_norms > 2 * model.config.num_hidden_layers and n_angles == 1
    return model


# ---- by hand ----

def _rms(x, weight, config):
    offset = 1 if config.model_type.startswith("gemma") else 0
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + config.rms_norm_eps) * (weight + offset)


def _rotate(x, f):
    """x: (tokens, heads, columns); column j and the one half a head on are a complex number."""
    half = x.shape[-1] // 2
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * np.arange(len(x))[:, None, None] * f)
    return np.concatenate((z.real, z.imag), -1)


def _act(name, x):
    if name == "silu":
        return x / (1 + np.exp(-x))
    if name == "relu":
        return np.maximum(x, 0)
    if name == "gelu":
        return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))
    name = "gelu_pytorch_tanh" if name == "gelu_new" else name
    assert name == "gelu_pytorch_tanh", name
    return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def _attend(q, k, v, window, scale):
    out = np.zeros((len(q), q.shape[1], v.shape[2]))
    for i in range(len(q)):
        seen = range(max(0, i - window + 1) if window else 0, i + 1)
        for head in range(q.shape[1]):
            of = head // (q.shape[1] // k.shape[1])
            scores = np.array([q[i, head] @ k[j, of] for j in seen]) * scale
            p = np.exp(scores - scores.max())
            out[i, head] = sum(w * v[j, of] for w, j in zip(p / p.sum(), seen))
    return out


def logits_by_hand(config, weights, ids):
    """weights: {name: float64 array}; ids: of one row. Every switch that distribution.py draws."""
    c, gemma3 = config, config.model_type == "gemma3_text"
    heads, kv_heads, width = c.num_attention_heads, c.num_key_value_heads, head_width_of(c)
    table = weights["model.embed_tokens.weight"]
    x = table[ids] * (math.sqrt(c.hidden_size) if c.model_type.startswith("gemma") else 1)
    for n in range(c.num_hidden_layers):
        of = f"model.layers.{n}."

        def linear(x, name):
            return x @ weights[of + name + ".weight"].T + weights.get(of + name + ".bias", 0)

        def norm(x, name):
            return _rms(x, weights[of + name + ".weight"], c)

        kinds = getattr(c, "layer_types", None)
        slides = kinds[n] == "sliding_attention" if kinds else bool(getattr(c, "sliding_window", None))
        h = norm(x, "input_layernorm")
        q, k, v = (linear(h, f"self_attn.{p}_proj").reshape(len(ids), m, width)
                   for p, m in (("q", heads), ("k", kv_heads), ("v", kv_heads)))
        if gemma3 or c.model_type == "qwen3":
            q, k = norm(q, "self_attn.q_norm"), norm(k, "self_attn.k_norm")
        f = frequencies_of(rope_of(c, kinds[n]) if gemma3 else c.rope_parameters, width)
        a = _attend(_rotate(q, f), _rotate(k, f), v, c.sliding_window if slides else None,
                    (c.query_pre_attn_scalar if gemma3 else width) ** -0.5)
        a = linear(a.reshape(len(ids), heads * width), "self_attn.o_proj")
        x = x + (norm(a, "post_attention_layernorm") if gemma3 else a)
        h = norm(x, "pre_feedforward_layernorm" if gemma3 else "post_attention_layernorm")
        act = c.hidden_activation if gemma3 else c.hidden_act
        m = linear(_act(act, linear(h, "mlp.gate_proj")) * linear(h, "mlp.up_proj"), "mlp.down_proj")
        x = x + (norm(m, "post_feedforward_layernorm") if gemma3 else m)
    logits = _rms(x, weights["model.norm.weight"], c) @ (table if c.tie_word_embeddings else weights["lm_head.weight"]).T
    cap = getattr(c, "final_logit_softcapping", None)
    return cap * np.tanh(logits / cap) if cap else logits


def encoder_by_hand(config, weights, ids):
    """The same of BERT and RoBERTa, whose tokens see all others; norms come after, and all types of tokens are 0."""
    c, of = config, config.model_type + "."

    def linear(x, name):
        return x @ weights[name + ".weight"].T + weights[name + ".bias"]

    def norm(x, name):
        x = x - x.mean(-1, keepdims=True)
        return (x / np.sqrt((x * x).mean(-1, keepdims=True) + c.layer_norm_eps) * weights[name + ".weight"]
                + weights[name + ".bias"])

    table, first = weights[of + "embeddings.word_embeddings.weight"], 0 if of == "bert." else c.pad_token_id + 1
    x = (table[ids] + weights[of + "embeddings.position_embeddings.weight"][first:first + len(ids)]
         + weights[of + "embeddings.token_type_embeddings.weight"][0])
    x = norm(x, of + "embeddings.LayerNorm")
    for n in range(c.num_hidden_layers):
        at = f"{of}encoder.layer.{n}."
        q, k, v = (linear(x, f"{at}attention.self.{p}").reshape(len(ids), c.num_attention_heads, -1)
                   for p in ("query", "key", "value"))
        scores = np.einsum("ihc,jhc->hij", q, k) / math.sqrt(q.shape[-1])
        p = np.exp(scores - scores.max(-1, keepdims=True))
        a = np.einsum("hij,jhc->ihc", p / p.sum(-1, keepdims=True), v).reshape(x.shape)
        x = norm(x + linear(a, at + "attention.output.dense"), at + "attention.output.LayerNorm")
        h = _act(c.hidden_act, linear(x, at + "intermediate.dense"))
        x = norm(x + linear(h, at + "output.dense"), at + "output.LayerNorm")
    if of == "bert.":
        x = norm(_act(c.hidden_act, linear(x, "cls.predictions.transform.dense")), "cls.predictions.transform.LayerNorm")
        return x @ table.T + weights["cls.predictions.bias"]
    x = norm(_act("gelu", linear(x, "lm_head.dense")), "lm_head.layer_norm")
    return x @ table.T + weights["lm_head.bias"]


def check(name, run, ids, direction):
    """Worst differences, of what is largest: of logits, and of how their squares' sum changes in a direction of all weights."""
    model = run.model
    for of, module in model.named_modules():  # what a padding token reads gets no gradient: that is no derivative
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            direction[of + ".weight"][module.padding_idx] = 0
    logits_of = encoder_by_hand if model.config.model_type in ("bert", "roberta") else logits_by_hand

    def by_hand(t):
        return logits_of(model.config, {n: p.detach().numpy() + t * direction[n]
                                             for n, p in model.named_parameters()}, ids.numpy())

    logits = run.logits(ids[None])[0]
    (logits**2).sum().backward()
    want = by_hand(0)
    off = np.abs(logits.detach().numpy() - want).max() / np.abs(want).max()
    slope = sum(float((p.grad.numpy() * direction[n]).sum()) for n, p in model.named_parameters())
    t = 1e-5
    at = [(by_hand(k * t) ** 2).sum() for k in (-2, -1, 1, 2)]
    steep = (8 * (at[2] - at[1]) - (at[3] - at[0])) / (12 * t)  # fourth order: t^4 is 1e-20
    apart = abs(slope - steep) / abs(steep)
    print(f"{name}: logits {off:.1e}, derivative {apart:.1e}")
    return off < 1e-12 and apart < 1e-7


def main():
    import distribution
    good = True
    for family in distribution.FAMILIES:
        if family == "gpt2":
            continue
        for number in range(3):
            m = distribution.draw(family, 1, number, "fp32", *distribution.largest(family, 0))
            run = distribution.Run(m, distribution.weights_of(m, 24), torch.float64)
            r = np.random.default_rng(number)
            direction = {n: r.standard_normal(p.shape) * float(p.detach().abs().mean()) for n, p in run.model.named_parameters()}
            good &= check(f"{family} {number}", run, run.ids[0, 0], direction)
    sys.exit(not good)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
