"""How far from float64 the product's gradients and trained weights are, beside PyTorch's own distance: random models.

    python distribution.py [--family NAME...|all] [--bin build/bin] [--seed S...] [--models N] [--only K] [--precision fp32|bf16]
                           [--steps 0|1|10|20] [--bits B [--even]] [--out FILE]

Each model, of GPT-2 or of another family, is drawn from seed and number alone: 1 to 6 layers, 1 to 7 heads of any width, a vocabulary up to 60,000,
sequences of 3 to 300, 1 to 8 parts, every switch of the config and of `eps train` that leaves the result defined. The
other families' models are smaller, and any three in a row have each switch on and off. BERT and RoBERTa predict masked
tokens, which masked.py chooses as eps does: by a rule of its own, so each minibatch has other masks. What is measured is what the
installed programs leave on disk: the gradient is Adam's first moment after one step with betas 0,0.999; trained weights
are those of a checkpoint. With 0 steps it is log-probabilities, by test_exact_logits, whose program is in BIN. float64
is float64 throughout (float64.py).

    ratio   |ours - float64| / the largest |PyTorch's - float64| of its ways to compute, of a tensor
    ways    fp32: attention spelled out, fused, and the minibatch in as many runs of rows as it has parts. bf16: all of
            the model in bf16, with both attentions; in 20 steps AdamW then has an fp32 master of it. Autocast, whose
            residual stream is fp32, is told beside them
    counts  every element of a gradient. q, k and v of c_attn.bias are tensors of their own, and k is left out: its
            gradient is zero analytically, so that all of it is rounding. Of trained weights an element counts if its
            first gradient is no such rounding: at least 8 times the root mean square of PyTorch's errors in that
            tensor's. Where it is less, Adam's first step, lr times its sign, may go either way in PyTorch as in ours.
            A gradient of less than 1e-12 of the model's is zero analytically (queries where a window has one key): ours
            may be 1e-6 of the model's
    model   its farthest tensor, of those with 8 elements that count
    control the same of PyTorch beside itself: one attention's distance by the other's, as ours by the latter alone. The
            farthest of some fifty tensors, often of ten elements, is well above 1 wherever two roundings differ
    told    median, 95 % and the largest of the models drawn: N of each seed and family. A largest one is that of its
            draw: another draw has another, and a larger draw a larger one

Where a first gradient is below Adam's epsilon, rounding decides how far that element goes, and what reads it follows: in 10
steps of fp32, 5 % of 126 models of the decoders' families (seeds 2 to 8) have a tensor at 2.97 or farther, the largest 4.77.

The gradient of relu jumps where its input passes zero, and rounding decides on which side an input near it falls. In 20
steps of fp32, 3 of 60 models met such a jump: in one of them ours alone, in two of them one of PyTorch's ways alone.

--bits B starts from weights of B bits, of which bf16 has 8: of 9 every second one is a tie. What is relayed of a split
master rounds them away from zero; --even gives the programs weights that are rounded already, to even. Of 40 models in
bf16 the gradients with ties away were 0.89 times as far from float64 as with ties to even (the geometric mean of 1,925
tensors; 0.96 with 11 bits, as fp16 has them): the relayed half biases nothing.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import argparse
import contextlib
import functools
import json
import math
import os
import random
import pathlib
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import (BertConfig, BertForMaskedLM, Gemma3ForCausalLM, Gemma3TextConfig, GemmaConfig, GemmaForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3_5ForCausalLM, Qwen3_5TextConfig, Qwen3Config,
                          Qwen3ForCausalLM, RobertaConfig, RobertaForMaskedLM)

import drawn
import families
import float64
import masked
import training

N_MINIBATCHES, ELEMENTS, SEED = 4, 8, 5
ZERO = 8  # times the root mean square of PyTorch's errors
NOTHING, NEARLY = 1e-12, 1e-6  # of a model's gradient


FAMILIES = {"gpt2": (GPT2Config, GPT2LMHeadModel), "llama": (LlamaConfig, LlamaForCausalLM),
            "mistral": (MistralConfig, MistralForCausalLM), "qwen2": (Qwen2Config, Qwen2ForCausalLM),
            "qwen3": (Qwen3Config, Qwen3ForCausalLM), "gemma": (GemmaConfig, GemmaForCausalLM),
            "gemma3": (Gemma3TextConfig, Gemma3ForCausalLM), "qwen3_5": (Qwen3_5TextConfig, Qwen3_5ForCausalLM), "bert": (BertConfig, BertForMaskedLM),
            "roberta": (RobertaConfig, RobertaForMaskedLM)}
ENCODERS = ("bert", "roberta")
THROUGHOUT = ("qwen3_5",)  # in float64 by families.throughout, which has the rule token by token
TOKENIZERS = pathlib.Path(__file__).resolve().parent.parent / "fixtures" / "tokenizers"  # NAME.json, of 401 ids at most


def largest(family, steps):
    """Tokens of a minibatch and the vocabulary, at most."""
    if steps == 0:
        return 40, 61
    return (600 if steps == 1 else 160, 60000 if steps == 1 else 4000) if family == "gpt2" else (160, 2000)


def draw_decoder(r, turn, family, heads, width, seq, vocabulary):
    """The config of a family like Llama. A head has an even number of columns, of which some may be a fraction of width.
    turn(values) takes the next value from one model to the next."""
    ropes = (dict(rope_type="default", rope_theta=r.choice((10000.0, 1e6))),
             dict(rope_type="linear", rope_theta=10000.0, factor=4.0),
             dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=max(2, seq // 2)))
    between = [n for n in range(1, heads + 1) if heads % n == 0]
    config = dict(num_hidden_layers=r.randint(1, 4), num_attention_heads=heads, hidden_size=width,
                  num_key_value_heads=turn((1, heads, r.choice(between))), head_dim=2 * r.randint(1, 12),
                  intermediate_size=turn((width + 3, 2 * width)), max_position_embeddings=seq + turn((0, 5)),
                  vocab_size=vocabulary, hidden_act=turn(("silu", "gelu_pytorch_tanh")), attention_dropout=0.0,
                  tie_word_embeddings=turn((True, False)), rms_norm_eps=turn((1e-5, 1e-6, 1e-3)), rope_parameters=turn(ropes))
    if family in ("llama", "qwen3", "gemma", "gemma3"):
        config["attention_bias"] = turn((True, False))
    if family == "llama":
        config["mlp_bias"] = turn((True, False))
    if family.startswith("gemma"):
        config["pad_token_id"] = turn((None, 0))
    if family == "mistral":
        config["sliding_window"] = turn((None, r.choice((1, seq + 1)), r.randint(2, max(2, seq - 1))))
    if family in ("qwen2", "qwen3"):
        config["num_hidden_layers"] += 1
        if turn((True, False)):
            config.update(use_sliding_window=True, sliding_window=r.randint(1, seq), max_window_layers=1)
    if family == "qwen3_5":
        key_heads = turn((1, 2, 3))
        config.update(hidden_act="silu", num_hidden_layers=config["num_hidden_layers"] + 1, attention_bias=turn((True, False)),
                      full_attention_interval=2, linear_conv_kernel_dim=turn((4, 2)), linear_num_key_heads=key_heads,
                      linear_num_value_heads=key_heads * turn((1, 2)), linear_key_head_dim=turn((8, 5)),
                      linear_value_head_dim=turn((8, 3, 16)),
                      rope_parameters=config["rope_parameters"] | dict(partial_rotary_factor=1.0, mrope_section=[1, 1, 1]))
    if family == "gemma3":  # the draw is of hidden_activation there
        config.update(hidden_activation=config.pop("hidden_act"), sliding_window=r.randint(1, seq),
                      num_hidden_layers=config["num_hidden_layers"] + 1,
                      sliding_window_pattern=turn((1, 2, 3)), query_pre_attn_scalar=r.choice((4, 24, 256)),
                      final_logit_softcapping=turn((None, 1.0, 30.0)), rope_parameters=dict(
                          full_attention=config["rope_parameters"],
                          sliding_attention=dict(rope_type="default", rope_theta=turn((100.0, 10000.0)))))
    return config


def draw_encoder(r, turn, family, heads, width, seq, vocabulary):
    """The config of a family like BERT; what every token sees is every other one."""
    config = dict(num_hidden_layers=r.randint(1, 4), num_attention_heads=heads, hidden_size=width,
                  intermediate_size=turn((width + 3, 2 * width)), vocab_size=vocabulary, pad_token_id=turn((1, 0, 3)),
                  hidden_act=turn(("gelu", "gelu_new", "relu")), layer_norm_eps=turn((1e-12, 1e-5, 1e-3)),
                  type_vocab_size=turn((2, 1, 3)), hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    first = config["pad_token_id"] + 1 if family == "roberta" else 0
    return config | dict(max_position_embeddings=first + seq + turn((0, 5)))


def draw(family, seed, number, precision, tokens, most):
    """A model, its minibatches and how it is trained."""
    r = random.Random(f"{seed}:{number}" if family == "gpt2" else f"{seed}:{family}:{number}")
    begin = random.Random(f"{seed}:{family}")

    def turn(values):
        return values[(begin.randrange(6) + number) % len(values)]

    parts = r.choice((1, 1, 2, 3, 4, 8))
    seq = min(round(math.exp(r.uniform(math.log(3), math.log(300)))), tokens // parts)
    batch = parts * r.randint(1, max(1, min(8, tokens // parts // seq)))
    least = 410 if family in ENCODERS and most > 410 else 11  # the tokenizers' ids
    vocabulary = round(math.exp(r.uniform(math.log(least), math.log(most))))
    heads, largest = r.choice((1, 2, 3, 3, 4, 5, 5, 7)), 96 if vocabulary < 8000 else 24
    width = heads * r.randint(2, max(3, min(24, largest // heads)))
    others = draw_encoder if family in ENCODERS else draw_decoder
    config = others(r, turn, family, heads, width, seq, vocabulary) if family != "gpt2" else dict(
        n_layer=r.randint(1, 6), n_head=heads, n_embd=width, n_positions=seq + r.choice((0, 0, 5)),
        vocab_size=vocabulary, activation_function=r.choice(("gelu_new", "gelu", "relu")),
        n_inner=r.choice((None, None, width + 3, 2 * width)), tie_word_embeddings=r.random() < 0.6,
        scale_attn_weights=r.random() < 0.8, scale_attn_by_inverse_layer_idx=r.random() < 0.3,
        layer_norm_epsilon=r.choice((1e-5, 1e-6, 1e-3)))
    return dict(name=f"{seed}:{number}", family=family, config=config, seq=seq, batch=batch, parts=parts,
                microbatch=r.choice((0, 1, r.randint(1, batch // parts))), gain=math.exp(r.uniform(-1, 0.7)),
                wte=math.exp(r.uniform(-3, 0)), optimizer=r.choice(("adamw", "adama")) if parts > 1 else "adamw",
                commit=r.choice(("eager", "eager", "fenced")), grad=r.choice(("fp32", "bf16"))
                if precision == "bf16" else "fp32", minimum=r.random() < 0.3, lr=1e-3, decay=0.1,
                fraction=turn((0.15, 0.4)) if family in ENCODERS else None)


def to_bits(w, bits):
    """To nearest, ties to even, as fp32."""
    mantissa, exponent = np.frexp(w.astype(np.float64))
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits).astype(np.float32)


def scales_of(m):
    """Of each tensor: base and scale of its weights (drawn.weights)."""
    out = {}
    with torch.device("meta"):
        shapes = {t: p.shape for t, p in FAMILIES[m["family"]][1](config_of(m)).named_parameters()}
    for t, shape in shapes.items():
        if t.endswith(("A_log", "dt_bias")):
            how = 0.5, 1.0
        elif t.endswith("conv1d.weight"):
            how = 0.0, m["gain"] * math.sqrt(12 / shape[-1])
        elif ".ln_" in t or "norm" in t.lower():
            plain = "linear_attn" in t or not m["family"].startswith(("gemma", "qwen3_5"))  # or 1 + weight
            how = (float(plain), 0.4) if t.endswith("weight") else (0.0, 0.2)
        elif t.endswith("bias"):
            how = 0.0, 0.2
        elif "wte" in t or "wpe" in t or "embed" in t:
            how = 0.0, m["wte"]
        else:
            how = 0.0, m["gain"] * math.sqrt(12 / shape[1 if "lm_head" in t or m["family"] != "gpt2" else 0])
        out[t] = (*how, shape)
    return out


def weights_of(m, bits):
    out = {}
    for t, (base, scale, shape) in scales_of(m).items():
        w = drawn.weights(f"{m['name']}:{t}", math.prod(shape), base, scale)
        out[t] = torch.from_numpy(to_bits(w, bits) if bits < 24 else w).view(shape)
    return out


def config_of(m):
    if m["family"] in ENCODERS:
        return FAMILIES[m["family"]][0](**m["config"])
    if m["family"] != "gpt2":
        return FAMILIES[m["family"]][0](**m["config"], bos_token_id=0, eos_token_id=0)
    return GPT2Config(**m["config"], attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)


def config_json(m):
    if m["family"] != "gpt2":
        return config_of(m).to_dict() | {"architectures": [FAMILIES[m["family"]][1].__name__]}
    return {"model_type": "gpt2", **{k: v for k, v in m["config"].items() if v is not None}, "attn_pdrop": 0.0,
            "embd_pdrop": 0.0, "resid_pdrop": 0.0}


def stream_of(m):
    """Windows of seq tokens, one after the other, each label its token's successor."""
    ids, _ = drawn.minibatch(m["name"], 0, 1, N_MINIBATCHES * m["batch"] * m["seq"], m["config"]["vocab_size"], 0)
    return np.append(ids[0], ids[0, 0])


@functools.lru_cache(maxsize=64)
def masked_rows(family, name, stream, seq, batch, step, fraction):
    """ids and labels of a step, (batch, seq): its rows are the stream's windows, and each row of a run has masks of its
    own."""
    key, rows = masked.masks_key(SEED, False), []
    for row in range(step * batch, (step + 1) * batch):
        window = row % (len(stream) // seq) * seq
        rows.append(masked.masked(family, stream[window:window + seq], 0, key, row, fraction))
    return tuple(torch.tensor([row[k] for row in rows]) for k in range(2))


# ---- PyTorch ----

class Run:
    """dtype: of the model; products: what they are in, under autocast; a model in bf16 has an fp32 master."""

    def __init__(self, m, weights, dtype, attention="eager", n_runs=1, products=None):
        self.m, self.n_runs, self.products = m, n_runs, products
        throughout = dtype == torch.float64 and m["family"] in THROUGHOUT
        self.arithmetic = families.throughout if throughout else contextlib.nullcontext
        if dtype == torch.float64 and m["family"] != "gpt2" and not throughout:
            attention = "sdpa"
        with self.arithmetic():
            self.model = FAMILIES[m["family"]][1]._from_config(config_of(m), attn_implementation=attention,
                                                               dtype=torch.float64 if throughout else torch.float32)
        buffers = dict(self.model.named_buffers())
        self.model = self.model.to(dtype).train()
        with torch.no_grad():
            for t, p in self.model.named_parameters():
                p.copy_(weights[t])
            if dtype == torch.bfloat16 and m["family"] != "gpt2":  # as transformers loads a model in bf16: frequencies stay in fp32
                for name, buffer in buffers.items():
                    self.model.get_submodule(name.rpartition(".")[0])._buffers[name.rpartition(".")[2]] = buffer
            if dtype == torch.float64 and not throughout:
                float64.widen(self.model)
        self.tied = self.model.get_input_embeddings().weight if m["config"].get("tie_word_embeddings", True) else None
        wide = torch.float32 if dtype == torch.bfloat16 else dtype
        self.master = {t: weights[t].to(wide).clone() for t, _ in self.model.named_parameters()}
        self.moments = {t: (torch.zeros_like(w), torch.zeros_like(w)) for t, w in self.master.items()}
        self.step, stream = 0, torch.from_numpy(stream_of(m))
        self.ids = stream[:-1].view(N_MINIBATCHES, m["batch"], m["seq"])
        self.labels = stream[1:].view(N_MINIBATCHES, m["batch"], m["seq"])

    def minibatch(self):
        if self.m["family"] not in ENCODERS:
            return self.ids[self.step % N_MINIBATCHES], self.labels[self.step % N_MINIBATCHES]
        m = self.m
        return masked_rows(m["family"], m["name"], tuple(stream_of(m).tolist()), m["seq"], m["batch"], self.step,
                           m["fraction"])

    def logits(self, ids):
        if self.m["family"] not in ENCODERS:
            return self.model(input_ids=ids, use_cache=False).logits
        first = self.m["config"]["pad_token_id"] + 1 if self.m["family"] == "roberta" else 0
        return self.model(input_ids=ids, position_ids=first + torch.arange(ids.shape[1]).expand_as(ids)).logits

    def gradients(self, n_runs):
        """Of each of n_runs runs of rows, whose sum is the gradient."""
        ids, labels = self.minibatch()
        n_valid, self.loss = int((labels >= 0).sum()), 0.0
        for i, l in zip(ids.chunk(n_runs), labels.chunk(n_runs)):
            self.model.zero_grad(set_to_none=True)
            with self.arithmetic():
                with torch.autocast("cpu", dtype=self.products) if self.products else contextlib.nullcontext():
                    loss = F.cross_entropy(self.logits(i).flatten(0, 1), l.flatten(), ignore_index=-100,
                                           reduction="sum") / n_valid
                loss.backward()
            self.loss += loss.item()
            yield {t: self.gradient_of(t, p) for t, p in self.model.named_parameters() if self.trains(t)}

    def trains(self, tensor):
        """Whether the step does."""
        return True

    masks = {}  # of sparse tensors: 1 where an element is trained, else 0

    def sparsify(self, keep, tensors):
        """The largest elements of these stay, as many as the engine keeps; all others are 0."""
        self.masks = {}
        for t in tensors:
            w = self.master[t]
            largest = w.abs().flatten().topk(max(1, int(keep * w.numel() + 0.1))).indices
            self.masks[t] = torch.zeros(w.numel(), dtype=w.dtype).index_fill_(0, largest, 1).view_as(w)
            w.mul_(self.masks[t])
            with torch.no_grad():
                self.model.get_parameter(t).mul_(self.masks[t])

    def gradient_of(self, tensor, p):
        gradient = p.grad.to(self.master[tensor].dtype)
        return gradient * self.masks[tensor] if tensor in self.masks else gradient

    def gradient(self):
        total = None
        for g in self.gradients(self.n_runs):
            total = g if total is None else {t: total[t] + x for t, x in g.items()}
        return total

    def train(self, n_steps):
        """AdamW; or AdamA, arXiv:2305.19982, a tied tensor's parts summed and squared once (see training.py)."""
        lr, (b1, b2), epsilon, self.losses = self.m["lr"], training.BETAS, self.m.get("epsilon", 1e-8), []
        updates = dict.fromkeys(self.master, 0)
        for self.step in range(n_steps):
            whole = [self.gradient()] if self.m["optimizer"] == "adamw" else list(self.gradients(self.m["parts"]))
            self.losses.append(self.loss)
            with torch.no_grad():
                for t, p in self.model.named_parameters():
                    if t not in whole[0]:
                        continue
                    w, (m, v) = self.master[t], self.moments[t]
                    m.mul_(b1)
                    v.mul_(b2)
                    for g in [sum(x[t] for x in whole)] if p is self.tied else [x[t] for x in whole]:
                        m.add_(g, alpha=1 - b1)
                        v.addcmul_(g, g, value=1 - b2)
                    w.mul_(1 - lr * (self.m["decay"] if p.dim() > 1 else 0.0))
                    updates[t] = n = updates[t] + 1
                    w.addcdiv_(m / (1 - b1**n), (v / (1 - b2**n)).sqrt_().add_(epsilon), value=-lr)
                    p.copy_(w)
        return self.master


def flat(tensors):
    return {t: x.detach().double().numpy().ravel() for t, x in tensors.items()}


def ways(m, precision):
    if precision == "fp32":
        return {"eager": dict(dtype=torch.float32), "sdpa": dict(dtype=torch.float32, attention="sdpa"),
                "parts": dict(dtype=torch.float32, n_runs=m["parts"])}
    return {"eager": dict(dtype=torch.bfloat16), "sdpa": dict(dtype=torch.bfloat16, attention="sdpa"),
            "autocast": dict(dtype=torch.float32, products=torch.bfloat16)}


# ---- ours ----

def write_model(m, weights, folder):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w") as f:
        json.dump(config_json(m), f)
    save_file({t: w.contiguous() for t, w in weights.items()}, os.path.join(folder, "model.safetensors"))
    if m["family"] in ENCODERS:  # it names the mask token
        shutil.copy(TOKENIZERS / f"{m['family']}.json", os.path.join(folder, "tokenizer.json"))


def ours(m, weights, precision, steps, programs):
    """Tensors, and the loss of each step."""
    with tempfile.TemporaryDirectory(prefix="distribution-") as folder:
        model, data = os.path.join(folder, "model"), os.path.join(folder, "data.npy")
        write_model(m, weights, model)
        np.save(data, stream_of(m).astype(np.int32))
        adam = ["--betas", "0,0.999"] if steps == 1 else []
        out = os.path.join(folder, "out")
        args = ["--model", model, "--data", data, "--eval-data", data, "--order", "sequential", "--seq", str(m["seq"]),
                "--batch", str(m["batch"]), "--parts", str(m["parts"]), "--steps", str(steps), "--schedule", "constant",
                "--warmup", "0", "--lr", str(m["lr"]), "--weight-decay", str(m["decay"]), "--precision", precision,
                "--grad-dtype", m["grad"], "--optimizer", m["optimizer"], "--device", "cpu", *adam]
        if m["optimizer"] == "adamw" or m["parts"] == 1:
            args += ["--commit", m["commit"]]
        if m["family"] in ENCODERS:
            args += ["--seed", str(SEED), "--mask-fraction", str(m["fraction"])]
        if m["microbatch"]:
            args += ["--microbatch", str(m["microbatch"])]
        environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "2", "GOMP_SPINCOUNT": "0"}

        def run(*command):
            for attempt in range(3):
                shutil.rmtree(out, ignore_errors=True)
                p = subprocess.run([os.path.join(programs, "eps"), *command], env=environment, capture_output=True,
                                   text=True)
                if p.returncode == 0:
                    return p.stdout
                print(f"{m}: {' '.join(command)}: {p.stderr}", file=sys.stderr)
            sys.exit("given up")

        if m["minimum"]:
            args += ["--device-mem", run("plan", *plan_only(args), "--minimum").split()[0]]
        run("train", *args, "--out", out)
        name = "optimizer" if steps == 1 else "model"
        with open(os.path.join(out, "metrics.jsonl")) as f:
            losses = [json.loads(line)["loss"] for line in f]
        with safe_open(os.path.join(out, f"step-{steps}", name + ".safetensors"), "np") as f:
            tensors = {t: f.get_tensor(("m." if steps == 1 else "") + t) for t in weights}
        return {t: torch.from_numpy(np.ascontiguousarray(families.shaped(x, weights[t].numpy()))) for t, x in tensors.items()}, losses


def plan_only(args):
    """What `eps plan` takes of them."""
    left_out = ("--eval-data", "--order", "--steps", "--schedule", "--warmup", "--lr", "--weight-decay", "--betas",
                "--data", "--seed", "--mask-fraction")
    return [a for i, a in enumerate(args) if a not in left_out and (i == 0 or args[i - 1] not in left_out)]


# ---- distances ----

def measure(m, precision, steps, bits, even, programs):
    weights = weights_of(m, bits)
    exact = Run(m, weights, torch.float64)
    first = flat(exact.gradient())
    runs = {way: Run(m, weights, **how) for way, how in ways(m, precision).items()}
    firsts = {way: flat(run.gradient()) for way, run in runs.items()}
    given = {t: torch.from_numpy(to_bits(w.numpy(), 8)) for t, w in weights.items()} if even else weights
    mine, losses = ours(m, given, precision, steps, programs)
    mine = flat(mine)
    if steps == 1:
        target, others = first, firsts
        for run in (exact, *runs.values()):
            run.losses = [run.loss]
    else:
        target = flat(exact.train(steps))
        others = {way: flat(run.train(steps)) for way, run in runs.items()}
    rows, whole = [], math.sqrt(sum(np.linalg.norm(g) ** 2 for g in first.values()))
    off = [max(abs(x / y - 1) for x, y in zip(of, exact.losses, strict=True))
           for of in (losses, *(runs[way].losses for way in yardsticks(runs)))]
    for t in weights:
        for k, (suffix, _, x) in enumerate(training.pieces_of(t, target[t])):
            def piece(of):
                return training.pieces_of(t, of[t])[k][2]
            rounding = max(np.sqrt(np.mean((piece(firsts[way]) - piece(first)) ** 2)) for way in yardsticks(firsts))
            counts = np.abs(piece(first)) >= (0 if steps == 1 else ZERO * rounding)
            n_counted = int((counts & (piece(first) != 0)).sum())
            if np.linalg.norm(piece(first)) <= NOTHING * whole:
                if steps == 1 and np.linalg.norm(piece(mine)) > (NEARLY if precision == "fp32" else 2.0**-9) * whole:
                    sys.exit(f"{m}: {t}: a gradient of zero is {np.linalg.norm(piece(mine)):.2e} of {whole:.2e}")
                continue
            if suffix == ".k" or n_counted < ELEMENTS:
                continue
            rows.append({"tensor": t + suffix, "n": int(x.size), "counted": n_counted,
                         "norm": float(np.linalg.norm(x[counts])),
                         "ours": float(np.linalg.norm((piece(mine) - x)[counts])),
                         **{way: float(np.linalg.norm((piece(o) - x)[counts])) for way, o in others.items()}})
    return rows, off


def log_probabilities(run):
    with torch.no_grad(), run.arithmetic():
        return torch.log_softmax(run.logits(run.ids[0]).double(), -1).numpy()


def compare_logits(a, family, precision):
    """test_exact_logits holds ours to 1e-5 of the largest logit, in bf16 to four times PyTorch's own distance."""
    ratios = []
    with tempfile.TemporaryDirectory(prefix="distribution-") as home:
        theirs = []
        for k, (seed, number) in enumerate(numbers(a)):
            m = draw(family, seed, number, precision, *largest(family, 0))
            weights, folder = weights_of(m, a.bits or (8 if precision == "bf16" else 24)), os.path.join(home, f"{k:04}")
            exact = Run(m, weights, torch.float64)
            with torch.no_grad(), exact.arithmetic():
                logits = exact.logits(exact.ids[0]).numpy()
            wanted = log_probabilities(exact)
            theirs.append(max(np.abs(log_probabilities(Run(m, weights, **how)) - wanted).max()
                              for way, how in ways(m, precision).items() if way in ("eager", "sdpa")))
            # What is farther is a defect, and ends the draw; the ratios that are printed tell how far the rest is. In bf16
            # one of 126 models was 2.09 times as far as PyTorch (a Qwen 2, seed 2).
            within = 1e-5 * np.abs(logits).max() if precision == "fp32" else 4 * theirs[-1]
            write_model(m, weights, folder)
            with open(os.path.join(folder, "tokens.json"), "w") as f:
                json.dump({"rows": m["batch"], "seq": m["seq"], "vocabulary": m["config"]["vocab_size"],
                           "ids": exact.ids[0].tolist(), "precision": precision, "within": float(within)}, f)
            logits.astype("<f8").tofile(os.path.join(folder, "logits.f64"))
        done = subprocess.run([os.path.join(a.bin, "test_exact_logits")], capture_output=True, text=True,
                              env={**os.environ, "EPS_TEST_LOGITS": home, "CK_DEFAULT_TIMEOUT": "600"})
        found = [float(line.split()[-1]) for line in done.stdout.splitlines() if line.startswith("logits ")]
        if done.returncode or len(found) != len(theirs):
            sys.exit(f"{family}: {done.stdout}{done.stderr}")
        ratios = [x / y for x, y in zip(found, theirs)]
    distribution(f"{family}, {precision}, log-probabilities, {drawn_by(a)}, the farthest of each model", ratios)


def yardsticks(ways_of):
    return [way for way in ways_of if way in ("eager", "sdpa", "parts")]


def ratio(row):
    return row["ours"] / max(row[way] for way in yardsticks(row))


def distribution(text, values):
    values = np.sort(np.array(values))
    at = values[min(len(values) - 1, math.ceil(0.95 * len(values)) - 1)]
    print(f"{text}: median {np.median(values):.2f}, 95 % at {at:.2f}, the largest of {len(values)} {values[-1]:.2f}, "
          f"mean of logarithms {math.exp(np.mean(np.log(values))):.3f}")


def numbers(a):
    """Seed and number of each model."""
    return [(seed, number) for seed in a.seed for number in ([a.only] if a.only is not None else range(a.models))]


def drawn_by(a):
    return f"seed{'s' if len(a.seed) > 1 else ''} {' '.join(map(str, a.seed))}"


def compare(a, family, precision, steps):
    bits = a.bits or (8 if precision == "bf16" else 24)
    models, losses = [], []
    for seed, number in numbers(a):
        m = draw(family, seed, number, precision, *largest(family, steps))
        rows, off = measure(m, precision, steps, bits, a.even, a.bin)
        row, c = max(rows, key=ratio), config_of(m)
        models.append(rows)
        losses.append((off[0], max(off[1:])))
        print(f"{seed}:{number}: L{c.num_hidden_layers} h{c.num_attention_heads} w{c.hidden_size} V{c.vocab_size} "
              f"{m['batch']}x{m['seq']} "
              f"parts {m['parts']} {m['optimizer']}: {ratio(row):.2f} {row['tensor']} ({row['counted']}/{row['n']}), "
              f"median {np.median([ratio(r) for r in rows]):.2f}", flush=True)
        if a.out:
            with open(a.out, "a") as f:
                row = {"precision": precision, "steps": steps, "bits": bits, "model": m, "rows": rows}
                f.write(json.dumps(row) + "\n")
    what = f"{family}, {precision}, {steps} step{'s' if steps > 1 else ''}, {drawn_by(a)}"
    distribution(f"{what}, the farthest tensor of each model", [max(map(ratio, rows)) for rows in models])
    distribution(f"{what}, all tensors", [ratio(r) for rows in models for r in rows])
    far = max((r["ours"] / r["norm"], ratio(r), r["tensor"]) for rows in models for r in rows)
    print(f"{what}: of a tensor's norm at most {far[0]:.1e} ({far[2]}, {far[1]:.2f} of PyTorch's), "
          f"of a loss {max(losses)[0]:.1e} (PyTorch's {max(losses)[1]:.1e})")
    for x, y in (("ours", "eager"), ("sdpa", "eager"), ("ours", "sdpa"), ("eager", "sdpa"), ("ours", "autocast")):
        if y in models[0][0]:
            distribution(f"{what}, {x} by {y}, the farthest tensor of each model",
                         [max(r[x] / r[y] for r in rows if r[y]) for rows in models])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default=os.path.join(os.path.dirname(__file__), "..", "..", "build", "bin"))
    parser.add_argument("--family", nargs="+", default=["gpt2"], choices=[*FAMILIES, "all"])
    parser.add_argument("--seed", type=int, nargs="+", default=[1])
    parser.add_argument("--models", type=int, default=60)
    parser.add_argument("--only", type=int)
    parser.add_argument("--precision", nargs="+", default=["fp32", "bf16"], choices=("fp32", "bf16"))
    parser.add_argument("--steps", type=int, nargs="+", default=[1, 20], choices=(0, 1, 10, 20))
    parser.add_argument("--bits", type=int)
    parser.add_argument("--even", action="store_true")
    parser.add_argument("--out")
    a = parser.parse_args()
    for family in FAMILIES if "all" in a.family else a.family:
        for steps in a.steps:
            for precision in a.precision:
                if steps == 0:
                    compare_logits(a, family, precision)
                else:
                    compare(a, family, precision, steps)


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
