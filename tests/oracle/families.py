"""Every dense family that people bring: drawn configs against transformers in float64, and the configs that it writes by default.

    python families.py [--family NAME...] [--draws N] [--only K] [--seed S] [--bin build/bin] [--out FILE]
    python families.py --defaults [--bin build/bin]

Draws (family_draws.py) are of 2 blocks, width <= 64 and rows of 33 tokens. A draw is exact, or refused by name, never
silently other: exit status 1 if one is, or if a refusal names neither the model_type nor a key of the config.

    ours     what the installed programs leave on disk: the gradient is Adam's first moment after one step of eps train with
             betas 0,0.999, the loss that of metrics.jsonl; log-probabilities of the first row by test_exact_logits, whose
             program is in BIN
    oracle   the model that transformers makes of the same directory, attn_implementation="eager", in float64 throughout: inside
             `throughout`, float32 is float64 for all that asks for it (norms, softmax, angles, frequencies), and a dispatch mode
             fails on any operation of construction, forward and backward whose result is narrower. Of the families that
             float64.py has, the first draws' logits are also those of its formulas in NumPy
    file     config.json as save_pretrained writes it; every second draw without the keys whose absence changes nothing for
             transformers (so that defaults are compared), every third with rope_theta and rope_scaling as published files have
    yardstick PyTorch's own fp32: eager, fused attention where the class has it, the minibatch in runs of rows
    exact    log p of each token within 1e-5 of the largest logit, the loss within 1e-5, and of each tensor's gradient the distance
             from float64 within twice PyTorch's own (DESIGN.md section 4); or, as tensors of ten elements are told apart by
             luck, within 1e-6 of the gradient's norm, or within 1e-5 and 8 times PyTorch's own. Where that fails, its own is
             also how far float64 goes if each weight is off by fp32's rounding. Where that fails, too, one distance is compared
             with one where both are as good as random (a draw that multiplies every rounding by 1e3: PyTorch's own is then
             beyond twice ours as often); so twice holds for root mean squares over the draw and 15 beside it, whose weights are
             other by up to 3e-4 of themselves. What computes something else is off by 1e-3 or more: epsilons, multipliers and
             caps are drawn large. A gradient below 1e-12 of the model's is zero analytically: ours may be 1e-6 of the model's
    line     draws, exact, refused; of exact ones the largest and the median of each draw's farthest tensor, as a multiple of PyTorch's
             own distance, how many are beyond twice, and how many were exact by root mean squares

Where gradients of relu and the like meet an input within rounding of their kink, or a softmax is all but one-hot, PyTorch's own
distance grows with ours.

--defaults: of each type of TUNED, the 47 that issue 72 counts, the config that transformers makes by default, and
whether `eps plan` takes it; below them other families, not counted.

Made with torch 2.15.0 and transformers 5.24.0 on the CPU: 40 draws of a family take 15 to 40 s on two slow cores.
"""
import argparse
import contextlib
import json
import math
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import warnings

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "critical")
import numpy as np
import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.utils.logging import disable_progress_bar

import delta_rule
import drawn
import float64
import hybrid
import masked
import mixtures
import muse_glimmer  # noqa: F401: registers a class
from family_draws import ENCODERS, FAMILIES, MIXTURES, SEQ, Draw

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
N_MINIBATCHES, SEED, FRACTION = 2, 5, 0.3
RELATIVE, RATIO, FLOOR = 1e-5, 8.0, 1e-6
NOTHING, NEARLY = 1e-12, 1e-6  # of a model's gradient
N_BESIDE, BESIDE = 16, 3e-4
BY_HAND = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3_text", "bert", "roberta")
N_IDS, SPECIAL, MASK = 22, {0, 1, 2, 3, 4}, 4  # of the encoders' tokenizer
masked.FAMILIES["families"] = (None, None, 0, N_IDS, SPECIAL, MASK)

TUNED = """llama mistral qwen2 qwen3 phi3 phi ministral3 mistral3 smollm3 olmo2 olmo3 gemma2 granite granite_swa cohere2 exaone4
 hunyuan_v1_dense seed_oss glm4 ernie4_5 arcee apertus starcoder2 stablelm gpt_neox opt bloom nanochat muse_glimmer modernbert
 eurobert xlm-roberta distilbert electra deberta-v2 qwen3_5 qwen3_next qwen3_moe mixtral gpt_oss glm4_moe deepseek_v3 lfm2
 gemma4 gemma3n nemotron_h vit""".split()
OTHERS = """gemma gemma3_text gemma3 gpt2 bert roberta t5 glm olmo cohere helium muse_glimmer_text qwen2_vl qwen2_5_vl qwen3_vl
 qwen3_5_text llava camembert lfm3 olmo_hybrid lfm2_moe minimax_m2 qwen3_5_moe qwen3_5_moe_text""".split()
assert len(TUNED) == len(set(TUNED)) == 47


# ---- float64 throughout ----

class Wide(TorchDispatchMode):
    """Fails on any operation whose result is narrower than float64."""

    def __init__(self, *narrow):
        super().__init__()
        self.narrow, self.n = narrow, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        self.n += 1
        for x in tree_leaves(out):
            if isinstance(x, torch.Tensor) and x.dtype in self.narrow:
                raise AssertionError(f"{function} makes {x.dtype} of shape {tuple(x.shape)}")
        return out


@contextlib.contextmanager
def throughout():
    """Within, float32 is float64 for all that asks for it."""
    narrow, usual = torch.float32, torch.get_default_dtype()
    kept = {name: getattr(torch, name) for name in ("float32", "float", "FloatTensor")}
    to_float = torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.FloatTensor = torch.DoubleTensor
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        with Wide(narrow, torch.float16) as mode, delta_rule.token_by_token():
            yield mode
    finally:
        torch.set_default_dtype(usual)
        torch.Tensor.float = to_float
        for name, value in kept.items():
            setattr(torch, name, value)


# ---- a draw ----

def biases_of(model):
    """What experts are chosen with beside their scores: no gradient reaches it."""
    return [(t, b) for t, b in model.named_buffers() if mixtures.is_bias(t)]


class Model:
    """A draw: its config as a file says it, its weights, its rows."""

    def __init__(self, family, seed, number):
        self.name, self.family, self.number = f"{seed}:{family}:{number}", family, number
        d = Draw(family, seed, number)
        self.parts, self.batch = d.turn((1, 2)), 4
        self.microbatch = d.turn((0, 1, self.batch // self.parts))
        self.gain, self.table = math.exp(d.r.uniform(-0.7, 0.5)), math.exp(d.r.uniform(-1.5, 0.5))
        self.style = ("as saved", "without defaults", "as published", "without defaults")[number % 4]
        self.kwargs = FAMILIES[family](d)
        self.gaps = [math.inf]  # of a mixture's scores
        self.encoder = family in ENCODERS
        self.auto = AutoModelForMaskedLM if self.encoder else AutoModelForCausalLM

    def make(self, attention="eager", dtype=torch.float32, weights=None):
        experts = {"experts_implementation": "eager"} if self.family in MIXTURES else {}
        model = self.auto.from_config(AutoConfig.from_pretrained(self.folder), attn_implementation=attention, dtype=dtype, **experts)
        with torch.no_grad():
            for t, p in (*model.named_parameters(), *biases_of(model)):
                p.copy_(self.biases[t] if t in self.biases else weights[t])
        return model.eval()  # nothing drops out

    def save(self, folder, beside=0):
        """What transformers saves of the drawn weights, or of those beside them, and config.json in this draw's style. Returns
        the weights."""
        self.folder = folder
        config = AutoConfig.for_model(self.family, **self.kwargs)
        model = self.auto.from_config(config, attn_implementation="eager", dtype=torch.float32)
        weights = self.weights_of(model)
        if beside:
            weights = {t: (w.double() * self.near_one(f"{t}:beside {beside}", w, BESIDE)).float() for t, w in weights.items()}
        with torch.no_grad():
            self.biases = {t: torch.from_numpy(drawn.weights(f"{self.name}:{t}", b.numel(), 0.0, 0.8)) for t, b in biases_of(model)}
            for t, p in (*model.named_parameters(), *biases_of(model)):
                p.copy_(self.biases[t] if t in self.biases else weights[t])
        model.save_pretrained(folder)
        if self.family == "olmo_hybrid":
            hybrid.cut(folder)
        if self.family == "qwen3_5_moe_text" and self.number % 4 != 1:
            mixtures.join(folder)
        path = os.path.join(folder, "config.json")
        with open(path) as f:
            written = restyled(json.load(f), self.style)
        with open(path, "w") as f:
            json.dump(written, f, indent=1)
        self.config = written
        self.names = names_of(weights, os.path.join(folder, "model.safetensors"))
        self.vocabulary = model.config.vocab_size
        if self.encoder:
            with open(os.path.join(folder, "tokenizer.json"), "w") as f:
                json.dump(tokenizer(self.family), f)
        ids, _ = drawn.minibatch(self.name, 0, 1, N_MINIBATCHES * self.batch * SEQ, self.vocabulary, 0)
        self.stream = np.append(ids[0], ids[0, 0])
        return weights

    def weights_of(self, model):
        """What all of starts alike, as norms and biases do, is spread around that; tables and matrices by their inputs."""
        tables = {id(m.weight): m for m in model.modules() if isinstance(m, torch.nn.Embedding)}
        out = {}
        for t, p in model.named_parameters():
            first = p.detach().flatten()[0].item()
            if id(p) in tables:
                how = 0.0, self.table
            elif p.dim() < 2 or bool((p == first).all()):
                how = first if bool((p == first).all()) else 0.0, 0.8 if "sinks" not in t else 4.0
            else:
                inputs = p.shape[0] if self.family == "gpt2" and "lm_head" not in t else p.shape[2 if ".experts." in t else 1]
                how = 0.0, self.gain * math.sqrt(12 / inputs)
            out[t] = torch.from_numpy(drawn.weights(f"{self.name}:{t}", p.numel(), *how)).view(p.shape)
        return out

    def near_one(self, name, weight, most):
        return 1 + torch.from_numpy(drawn.weights(f"{self.name}:{name}", weight.numel(), 0.0, most)).view(weight.shape).double()

    def minibatch(self):
        """ids and labels of the first step."""
        if not self.encoder:
            rows = torch.from_numpy(self.stream).long()
            n = self.batch * SEQ
            return rows[:n].view(self.batch, SEQ), rows[1:n + 1].view(self.batch, SEQ)
        key = masked.masks_key(SEED, False)
        rows = [masked.masked("families", self.stream[row * SEQ:(row + 1) * SEQ].tolist(), 0, key, row, FRACTION)
                for row in range(self.batch)]
        return tuple(torch.tensor([row[k] for row in rows]) for k in range(2))

    def logits(self, model, ids):
        if self.family in ("roberta", "xlm-roberta"):  # they would not count padding tokens
            first = model.config.pad_token_id + 1
            return model(input_ids=ids, position_ids=first + torch.arange(ids.shape[1]).expand_as(ids)).logits
        return model(input_ids=ids, **({} if self.encoder else {"use_cache": False})).logits

    def step(self, model, n_runs=1):
        """The loss and the gradient of the first minibatch, and the logits of its first row, unmasked."""
        ids, labels = self.minibatch()
        n_valid, loss = int((labels >= 0).sum()), 0.0
        model.zero_grad(set_to_none=True)
        for i, l in zip(ids.chunk(n_runs), labels.chunk(n_runs)):
            part = F.cross_entropy(self.logits(model, i).flatten(0, 1), l.flatten(), ignore_index=-100, reduction="sum") / n_valid
            part.backward()
            loss += part.item()
        gradient = {t: np.zeros(p.shape) if p.grad is None else p.grad.double().numpy() for t, p in model.named_parameters()}
        with torch.no_grad():
            logits = self.logits(model, self.first_row())[0].double().numpy()
        return loss, gradient, logits

    def first_row(self):
        return torch.from_numpy(self.stream[None, :SEQ]).long()


def names_of(weights, path):
    """Of each parameter its name in the file, where transformers has renamed some (GPT-NeoX's head), or names a tied one after
    its other place (XLM-RoBERTa's table). What has no other name there is told apart by its values."""
    with safe_open(path, "pt") as f:
        left = {t: f.get_tensor(t) for t in f.keys() if t not in weights}
    out = {}
    for t, w in weights.items():
        same = [name for name, x in left.items() if x.shape == w.shape and torch.equal(x, w)]
        out[t] = same[0] if same else t
    return out


def tokenizer(family):
    """BERT's, cut to N_IDS ids. RoBERTa's class adds its own special tokens where a file has them not, so they are named so."""
    text = (ROOT / "tests" / "fixtures" / "tokenizers" / "bert.json").read_text()
    if "roberta" in family:
        for bert, theirs in (("[PAD]", "<pad>"), ("[UNK]", "<unk>"), ("[CLS]", "<s>"), ("[SEP]", "</s>"), ("[MASK]", "<mask>")):
            text = text.replace(f'"{bert}"', f'"{theirs}"')
    out = json.loads(text)
    out["model"]["vocab"] = {t: i for t, i in out["model"]["vocab"].items() if i < N_IDS}
    return out


def read(config):
    """All that transformers understands of a config.json."""
    out = AutoConfig.for_model(**config).to_dict()
    return json.loads(json.dumps(out, default=str))


def restyled(config, style):
    """The same config, for transformers, in other words."""
    meaning = read(config)
    if style == "as published" and "rope_type" in (config.get("rope_parameters") or {}):
        other = dict(config)
        rope = other.pop("rope_parameters") | {}
        other["rope_theta"] = rope.pop("rope_theta")
        if "partial_rotary_factor" in rope:
            other["partial_rotary_factor"] = rope.pop("partial_rotary_factor")
        if rope["rope_type"] != "default" or len(rope) > 1:
            other["rope_scaling"] = rope
            if sum(map(ord, rope["rope_type"])) % 2:  # older files call it so
                rope["type"] = rope.pop("rope_type")
        if essence(read(other)) == essence(meaning):
            return other
    if style == "without defaults":
        for key in [k for k in config if k not in ("model_type", "architectures")]:
            other = {k: v for k, v in config.items() if k != key}
            try:
                same = read(other) == meaning
            except Exception:
                same = False
            if same:
                config = other
    return config


def essence(config):
    """Without other words for what rope_parameters has."""
    rope = {k: v for k, v in config["rope_parameters"].items() if k != "type"}
    return {k: v for k, v in config.items() if k not in ("rope_scaling", "rope_theta", "partial_rotary_factor")} | {"rope_parameters": rope}


# ---- ours ----

def run(programs, folder, *command):
    environment = {**os.environ, "XDG_RUNTIME_DIR": folder, "OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "0"}
    return subprocess.run([os.path.join(programs, "eps"), *map(str, command)], env=environment, capture_output=True, text=True,
                          cwd=folder)


def words_of(value):
    """Keys and words of a config, at any depth."""
    if isinstance(value, dict):
        return {w for k, v in value.items() for w in {k} | words_of(v)}
    if isinstance(value, list):
        return {w for v in value for w in words_of(v)}
    return {value} if isinstance(value, str) and len(value) > 2 else set()


def names_something(sentence, config):
    """Whether a refusal names the model_type or a key, or a word that is a key's value."""
    known = words_of(config) | set(AutoConfig.for_model(config["model_type"]).to_dict())
    return bool(set(re.findall(r"[A-Za-z0-9_-]+", sentence)) & (known - {"float32", "dtype", "model", "default"}))


def sentence_of(done):
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return re.sub(r"^eps[a-z -]*: ", "", lines[-1]) if lines else f"exit status {done.returncode}, silent"


def gist(said):
    """A refusal without folders and lists, so that those of several draws are one."""
    return re.sub(r"\[[-0-9.e,]{8,}\]", "[...]", re.sub(r"\S*/families-\S*?/\d{4}/?", "", said))


RENAMED = {"lfm3": [(".self_attn.g_proj.", ".self_attn.gate_proj.")],  # in memory, as moments have it; in files of weights
           "olmo_hybrid": [(".input_layernorm.", ".attention_layer_norm."),
                           (".post_attention_layernorm.", ".feedforward_layer_norm.")]}


def in_files(family, name):
    for inside, file in RENAMED.get(family, ()):
        name = name.replace(inside, file)
    return name


def ours(m, programs):
    """Loss and gradient by name; or the sentence that refuses, and whether it is one: no crash, and it names a key."""
    folder = os.path.join(m.folder, "run")
    os.makedirs(folder)
    data = os.path.join(folder, "data.npy")
    np.save(data, m.stream.astype(np.int32))
    command = ["train", "--model", m.folder, "--data", data, "--eval-data", data, "--order", "sequential", "--seq", SEQ, "--batch",
               m.batch, "--parts", m.parts, "--steps", 1, "--schedule", "constant", "--warmup", 0, "--lr", 1e-3, "--weight-decay",
               0.1, "--precision", "fp32", "--optimizer", "adamw", "--betas", "0,0.999", "--device", "cpu", "--device-mem",
               "64MiB", "--threads", 1, "--seed", SEED, "--out", os.path.join(folder, "out")]
    if m.microbatch:
        command += ["--microbatch", m.microbatch]
    if m.encoder:
        command += ["--mask-fraction", FRACTION]
    done = run(programs, folder, *command)
    if done.returncode:
        said = sentence_of(done)
        return None, None, said, done.returncode == 1 and names_something(said, m.config)
    with open(os.path.join(folder, "out", "metrics.jsonl")) as f:
        loss = json.loads(f.readline())["loss"]
    with safe_open(os.path.join(folder, "out", "step-1", "optimizer.safetensors"), "np") as f:
        gradient = {in_files(m.family, t[2:]): f.get_tensor(t).astype(np.float64) for t in f.keys() if t.startswith("m.")}
    if m.family == "olmo_hybrid":
        gradient = hybrid.joined(gradient, m.kwargs["linear_conv_kernel_dim"])
    return loss, mixtures.joined(gradient), None, False


def write_logits(m, logits, home):
    """For test_exact_logits: its bound is none, as we judge."""
    at = os.path.join(home, f"{m.number:04}")
    os.makedirs(at)
    for name in os.listdir(m.folder):
        if name.endswith((".json", ".safetensors")):
            os.link(os.path.join(m.folder, name), os.path.join(at, name))
    with open(os.path.join(at, "tokens.json"), "w") as f:
        json.dump({"rows": 1, "seq": SEQ, "vocabulary": m.vocabulary, "ids": m.first_row().tolist(), "precision": "fp32",
                   "within": 1e30}, f)
    logits.astype("<f8").tofile(os.path.join(at, "logits.f64"))


def our_logits(home, programs):
    """The largest distance of a log p, by draw; a sentence where there is none."""
    def call(folder):
        return subprocess.run([os.path.join(programs, "test_exact_logits")], capture_output=True, text=True,
                              env={**os.environ, "EPS_TEST_LOGITS": folder, "CK_DEFAULT_TIMEOUT": "900", "OMP_NUM_THREADS": "1"})

    done = call(home)
    found = re.findall(r"^logits \S*/(\d+): (\S+)$", done.stdout, re.MULTILINE)
    out = {int(k): float(x) for k, x in found}
    for name in sorted(os.listdir(home)):
        if int(name) not in out:  # one that fails ends the run: each of the others alone
            with tempfile.TemporaryDirectory(prefix="families-") as alone:
                os.symlink(os.path.join(home, name), os.path.join(alone, name))
                done = call(alone)
            found = re.findall(r"^logits \S*/(\d+): (\S+)$", done.stdout, re.MULTILINE)
            out[int(name)] = float(found[0][1]) if found else (done.stdout + done.stderr).strip()[-300:]
    return out


# ---- distances ----

def log_p(logits):
    return torch.log_softmax(torch.from_numpy(logits), -1).numpy()


def oracle(m, weights):
    """Loss, gradient and logits in float64, proved to be."""
    with throughout() as mode:
        model = m.make(dtype=torch.float64, weights=weights)
        assert all(x.dtype in (torch.float64, torch.int64, torch.bool) for x in (*model.parameters(), *model.buffers()))
        for router in (x for x in model.modules() if type(x).__name__.lower().endswith("topkrouter")):
            router.register_forward_hook(lambda router, x, out: m.gaps.append(mixtures.gap_of(router, x, out[0].detach())))
        mode.narrow += (torch.bfloat16,)
        out = m.step(model)
        assert mode.n > 100
    if m.family in BY_HAND and m.number < 8:
        by_hand(m, model, out[2])
    return out


def by_hand(m, model, logits):
    """float64.py's formulas, of what they have."""
    config = model.config
    rope = getattr(config, "rope_parameters", None) or {}
    act = getattr(config, "hidden_act", None) or config.hidden_activation
    if (any(r.get("rope_type") not in ("default", "linear", "llama3") for r in ([rope] if "rope_type" in rope else rope.values()))
            or act not in ("silu", "relu", "gelu", "gelu_pytorch_tanh", "gelu_new") or getattr(config, "attn_logit_softcapping", None)):
        return
    formula = float64.encoder_by_hand if m.family in ("bert", "roberta") else float64.logits_by_hand
    want = formula(config, {t: p.detach().numpy() for t, p in model.named_parameters()}, m.first_row()[0].numpy())
    off = np.abs(want - logits).max() / np.abs(want).max()
    assert off < 1e-12, f"{m.name}: transformers in float64 is {off:.1e} from the formulas"
    m.checked = True


def yardsticks(m, weights):
    out = {}
    for way, attention, n_runs in (("eager", "eager", 1), ("fused", "sdpa", 1), ("runs", "eager", m.batch)):
        try:
            out[way] = m.step(m.make(attention, weights=weights), n_runs)
        except ValueError:  # a class without fused attention
            assert way == "fused"
    return out


def neighbours(m, weights):
    """What float64 makes of weights that are off by fp32's rounding: how far any fp32 may be where a tensor is ill conditioned."""
    out = {}
    for k in range(4):
        out[f"neighbour {k}"] = oracle(m, {t: w.double() * m.near_one(f"{t}:{k}", w, 2.0**-23) for t, w in weights.items()})
    return out


def shaped(gradient, want):
    """A gradient from moments, shaped as its tensor is in files."""
    if gradient.shape == (want.size,):  # of weights by head
        return gradient.reshape(want.shape)
    if want.ndim == 3 and gradient.shape == (1, want.size):  # of convolutions over tokens, tap by tap
        return gradient.reshape(want.shape[2], want.shape[0]).T[:, None]
    return gradient


def judge(m, exact, theirs, loss, gradient):
    """The farthest tensor as a multiple of PyTorch's own distance, all that is other, and tensors that are too far."""
    other, far, worst = [], {}, (0.0, "")
    whole = math.sqrt(sum(np.linalg.norm(g) ** 2 for g in exact[1].values()))
    own = max(abs(y[0] / exact[0] - 1) for y in theirs.values())
    if not math.isfinite(whole) or not abs(loss / exact[0] - 1) <= max(RELATIVE, 2 * own):
        other.append(f"the loss is {loss:.7g}, not {exact[0]:.7g}")
    for parameter, want in exact[1].items():
        norm, t = np.linalg.norm(want), m.names[parameter]
        if t not in gradient:
            if norm > NOTHING * whole:
                other.append(f"{t} has no gradient")
            continue
        got = shaped(gradient[t], want)
        if got.shape != want.shape:
            other.append(f"{t} is {got.shape}, not {want.shape}")
            continue
        off = np.linalg.norm(got - want)
        own = max(np.linalg.norm(y[1][parameter] - want) for y in theirs.values())
        if norm <= NOTHING * whole:
            if not off <= NEARLY * whole:
                other.append(f"{t}: a gradient of zero is {off:.1e} of {whole:.1e}")
            continue
        ratio = off / max(own, 2.0**-24 * norm)
        worst = max(worst, (float(ratio), t))
        if not math.isfinite(off) or (off > FLOOR * norm and (off > RELATIVE * norm or ratio > RATIO) and off > 2 * own):
            far[parameter] = f"{t}: {off / norm:.1e} of its norm, {ratio:.1f} of PyTorch's own"
    unknown = sorted(set(gradient) - set(m.names.values()))
    if unknown:
        other.append(f"tensors that transformers has not: {' '.join(unknown[:4])}")
    return worst, other, far


def judge_beside(a, family, number, far):
    """Of tensors that are too far, those whose distances are beyond twice PyTorch's own in root mean square."""
    squares = {t: np.zeros(2) for t in far}
    for beside in range(N_BESIDE):
        with tempfile.TemporaryDirectory(prefix="families-") as folder:
            m = Model(family, a.seed, number)
            weights = m.save(folder, beside)
            _, gradient, said, _ = ours(m, a.bin)
            assert said is None, said
            exact, theirs = oracle(m, weights), yardsticks(m, weights)
        for t, sums in squares.items():
            want = exact[1][t]
            own = max(np.linalg.norm(y[1][t] - want) for y in theirs.values())
            sums += (np.array([np.linalg.norm(shaped(gradient[m.names[t]], want) - want), own]) / np.linalg.norm(want)) ** 2
    return [f"{far[t]}, in root mean square {math.sqrt(x / own):.1f}" for t, (x, own) in squares.items() if not x <= 4 * own]


def distance(y, exact):
    """The farthest log p of two steps."""
    return float(np.abs(log_p(y[2]) - log_p(exact[2])).max())


def logits_beside(a, family, number):
    """Root mean squares of our farthest log p, and of PyTorch's own."""
    own = []
    with tempfile.TemporaryDirectory(prefix="families-") as top:
        home = os.path.join(top, "logits")
        for beside in range(N_BESIDE):
            m = Model(family, a.seed, number)
            weights = m.save(os.path.join(top, str(beside)), beside)
            exact = oracle(m, weights)
            own.append(max(distance(y, exact) for y in yardsticks(m, weights).values()))
            m.number = beside
            write_logits(m, exact[2], home)
        off = list(our_logits(home, a.bin).values())
    return [math.sqrt(np.mean(np.square(x))) for x in (off, own)]


def far_logits(a, m, weights, exact, off, own):
    """Of log p that is too far: the sentence, unless float64 goes as far, or PyTorch does in root mean square; whether this was
    asked."""
    if off <= 2 * max(distance(y, exact) for y in neighbours(m, weights).values()):
        return [], False
    ours_far, theirs_far = logits_beside(a, m.family, m.number)
    if ours_far <= 2 * theirs_far:
        return [], True
    return [f"log p is {off:.1e} off, PyTorch's {own:.1e}, in root mean square {ours_far:.1e} and {theirs_far:.1e}"], True


def short(m):
    return {k: v for k, v in m.config.items() if k not in ("architectures", "transformers_version", "dtype", "model_type")}


def sweep(a, family):
    """Draws of a family; whether all were exact or refused by name."""
    began, rows, refused, bad, checked, by_squares = time.monotonic(), [], {}, 0, 0, 0
    with tempfile.TemporaryDirectory(prefix="families-") as top:
        home = os.path.join(top, "logits")
        os.makedirs(home)
        pending = {}
        for number in ([a.only] if a.only is not None else range(a.draws)):
            m = Model(family, a.seed, number)
            weights = m.save(os.path.join(top, f"{number:04}"))
            loss, gradient, said, by_name = ours(m, a.bin)
            if said is not None:
                refused.setdefault(gist(said), []).append(number)
                if not by_name:
                    bad += 1
                    print(f"  {m.name}: refused, but names nothing: {said}\n    {short(m)}", flush=True)
                row = {"draw": m.name, "config": m.config, "refused": said, "by_name": by_name}
                if a.oracle:
                    exact, theirs = oracle(m, weights), yardsticks(m, weights)
                    far = max((max(np.linalg.norm(y[1][t] - g) for y in theirs.values()) / np.linalg.norm(g), t)
                              for t, g in exact[1].items() if np.linalg.norm(g) > 1e-9)
                    print(f"  {m.name}: loss {exact[0]:.4f}, PyTorch's fp32 {far[0]:.1e} off in {far[1]}", flush=True)
            else:
                exact, theirs = oracle(m, weights), yardsticks(m, weights)
                if min(m.gaps) < 1e-5:  # fp32 may choose another expert
                    print(f"  {m.name}: left out, as scores are within {min(m.gaps):.1e} of a tie", flush=True)
                    continue
                checked += hasattr(m, "checked")
                worst, other, far = judge(m, exact, theirs, loss, gradient)
                if other or far:
                    worst, other, far = judge(m, exact, theirs | neighbours(m, weights), loss, gradient)
                by_squares += bool(far)
                other += judge_beside(a, family, number, far) if far else []
                write_logits(m, exact[2], home)
                own = max(distance(y, exact) for y in theirs.values())
                row = {"draw": m.name, "config": m.config, "ratio": worst[0], "tensor": worst[1], "other": other}
                pending[number] = (m, row, weights, exact, own)
            rows.append(row)
        off = our_logits(home, a.bin) if pending else {}
        for number, (m, row, weights, exact, own) in pending.items():
            largest = float(np.abs(exact[2]).max())
            if isinstance(off[number], str):
                row["other"].append(f"no logits: {off[number]}")
            else:
                row["logits"] = [off[number], largest, own]
                if not off[number] <= max(RELATIVE * largest, 2 * own):
                    other, asked = far_logits(a, m, weights, exact, off[number], own)
                    row["other"] += other
                    by_squares += asked
            if row["other"]:
                bad += 1
                print(f"  {m.name}, {m.style}: OTHER: {'; '.join(row['other'][:6])}\n    {short(m)}", flush=True)
            if a.verbose:
                print(f"  {m.name}: {row['ratio']:.2f} {row['tensor']}, log p {off[number]:.1e} ({own:.1e})", flush=True)
    if a.out:
        with open(a.out, "a") as f:
            f.writelines(json.dumps(row) + "\n" for row in rows)
    good = [row["ratio"] for row in rows if "ratio" in row and not row["other"]]
    far = (f", ratio at most {max(good):.2f}, median {np.median(good):.2f}, {sum(x > 2 for x in good)} beyond 2, "
           f"{by_squares} by root mean squares" if good else "")
    hand = f", {checked} by formulas" if checked else ""
    print(f"{family}: {len(rows)} draws, {len(good)} exact, {sum(map(len, refused.values()))} refused, {bad} OTHER{far}{hand} "
          f"({time.monotonic() - began:.0f} s)", flush=True)
    for said, which in sorted(refused.items(), key=lambda x: -len(x[1])):
        print(f"    {len(which)} refused: {said}", flush=True)
    return not bad


# ---- defaults ----

def defaults(a):
    """A line for each type; whether every refusal names something."""
    good = True
    for title, types in (("the 47 that people tune", TUNED), ("others", OTHERS)):
        print(f"{title}:")
        n = 0
        for model_type in types:
            with tempfile.TemporaryDirectory(prefix="families-") as folder:
                config = AutoConfig.for_model(model_type)
                config.save_pretrained(folder)
                # What does not fit is accepted, too; only the config is at stake.
                done = run(a.bin, folder, "plan", "--model", "config.json", "--json", "--device", "cpu", "--seq", 16, "--batch", 1,
                           "--host-mem", "64T", "--device-mem", "4T")
                accepted = done.stdout.startswith("{") and '"fits"' in done.stdout
                said = "accepted" if accepted else sentence_of(done)
                n += accepted
                if not accepted and not names_something(said, config.to_dict()):
                    good, said = False, f"NAMES NOTHING: {said}"
                print(f"  {model_type:18} {said.split(': it must be ')[0]}")
        print(f"accepted: {n} of {len(types)}\n")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=os.path.abspath, default=ROOT / "build" / "bin")
    parser.add_argument("--family", nargs="+", default=list(FAMILIES), choices=list(FAMILIES), metavar="NAME")
    parser.add_argument("--draws", type=int, default=40)
    parser.add_argument("--only", type=int, metavar="K")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--defaults", action="store_true")
    parser.add_argument("--oracle", action="store_true", help="compute what is refused, too: to try new draws")
    parser.add_argument("--verbose", action="store_true", help="a line for each draw")
    parser.add_argument("--out", help="append a line of JSON for each draw")
    a = parser.parse_args()
    if a.defaults:
        sys.exit(not defaults(a))
    good = [sweep(a, family) for family in a.family]
    print(f"{sum(good)} of {len(good)} families: every draw exact or refused by name")
    sys.exit(not all(good))


if __name__ == "__main__":
    warnings.filterwarnings("ignore")
    disable_progress_bar()
    torch.set_num_threads(1)
    main()
