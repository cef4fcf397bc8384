"""Weights of an engine, beside those that PyPI's safetensors reads of a checkpoint of the same step."""

import gc
import json
import subprocess
import sys
from pathlib import Path

import eps
import numpy
import pytest
from safetensors.numpy import load_file

BATCH, SEQ, WIDTH = 4, 16, 32
HOW = dict(device_mem="64MiB", deterministic=True, lr=1e-2)
IDS = numpy.random.default_rng(5).integers(0, 256, (6, BATCH, SEQ))
LLAMA = dict(hidden_size=WIDTH, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, vocab_size=256, rms_norm_eps=1e-6, hidden_act="silu")
GPT2 = dict(model_type="gpt2", n_layer=2, n_head=4, n_embd=WIDTH, n_positions=64, vocab_size=256, embd_pdrop=0.0,
            resid_pdrop=0.0, attn_pdrop=0.0, activation_function="gelu_new", layer_norm_epsilon=1e-5)
MODELS = {
    "gpt2": GPT2,
    "gpt2-untied": dict(GPT2, tie_word_embeddings=False),
    "divided": dict(GPT2, n_embd=7, n_head=1, vocab_size=8200),  # its table lies in two places
    "llama": dict(LLAMA, model_type="llama", tie_word_embeddings=False),
    "mistral": dict(LLAMA, model_type="mistral", tie_word_embeddings=False),
    "qwen2": dict(LLAMA, model_type="qwen2", tie_word_embeddings=True),
    "qwen3": dict(LLAMA, model_type="qwen3", head_dim=8, tie_word_embeddings=True),
    "gemma3": dict(LLAMA, model_type="gemma3_text", head_dim=8, hidden_activation="gelu_pytorch_tanh", tie_word_embeddings=True),
}


def config(name):
    Path(f"{name}.json").write_text(json.dumps(MODELS[name]))
    return f"{name}.json"


def begin(name, **how):
    return eps.Engine(config(name) if name in MODELS else name, batch=BATCH, seq=SEQ, **{**HOW, **how})


def rounded(array, precision, frozen):
    """As numbers of 16 bits have it: to nearest; ties of a master away from zero, of what is frozen to even."""
    if precision == "fp32":
        return array
    if precision == "bf16":
        bits = array.view(numpy.uint32)
        return ((bits + (0x7FFF + (bits >> 16 & 1) if frozen else 0x8000)) >> 16).astype(numpy.uint16)
    half = array.astype(numpy.float16)
    further = numpy.nextafter(half, numpy.copysign(numpy.float16(numpy.inf), half))
    middle = (half.astype(numpy.float64) + further.astype(numpy.float64)) / 2
    return half if frozen else numpy.where(array.astype(numpy.float64) == middle, further, half)


def check(engine, precision="fp32", file="model.safetensors", frozen=None):
    """All weights are the checkpoint's, of the same step, or of what is frozen in the base."""
    saved = load_file(engine.save() / file)
    got = dict(engine.named_weights())
    assert set(saved) <= set(got) and set(got) - set(saved) == set(frozen or {})
    for name, array in got.items():
        want = rounded(saved[name], precision, False) if name in saved else rounded(frozen[name], precision, True)
        assert array.dtype == want.dtype and array.shape == want.shape and not array.flags.writeable
        assert array.tobytes() == want.tobytes(), name
    return got


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("name", MODELS)
def test_weights_are_the_checkpoints_bit_for_bit(name, precision):
    with begin(name, precision=precision) as engine:
        for ids in IDS[:2]:
            engine.step(ids)
            got = check(engine, precision)
        assert ("lm_head.weight" in got) == (not MODELS[name].get("tie_word_embeddings", True))


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_adapters_and_frozen_tensors_are_there_too(precision):
    with begin("llama") as engine:
        engine.step(IDS[0])
        base = engine.save()
        subprocess.run(["cp", "-r", base, "base"], check=True)
    frozen = load_file("base/model.safetensors")
    with begin("base", lora="rank=2,targets=q_proj", precision=precision) as engine:
        engine.step(IDS[0])
        got = check(engine, precision, "adapter_model.safetensors", frozen)
        assert sum(name.startswith("base_model.model.") for name in got) == 4
    with begin("base", lora="rank=2,targets=q_proj", base="nf4") as engine:
        got = dict(engine.named_weights())
        assert "model.layers.0.self_attn.q_proj.weight" not in got and got["model.norm.weight"].dtype == numpy.uint16
        with pytest.raises(eps.Error, match="model.layers.0.self_attn.q_proj.weight is coded in nf4"):
            engine.weights("model.layers.0.self_attn.q_proj.weight")
        assert engine.step(IDS[0]) > 0
    with begin("base", freeze="model.layers.0.*", precision=precision) as engine:
        engine.step(IDS[0])
        check(engine, precision)


def test_looks_change_no_step():
    def train(looks):
        with begin("qwen3") as engine:
            losses = []
            for ids in IDS:
                if looks:
                    first = dict(engine.named_weights())
                losses.append(engine.step(ids))
            return losses, (engine.save() / "model.safetensors").read_bytes()

    assert train(True) == train(False)


def test_an_array_outlives_its_step_and_its_engine():
    with begin("gpt2") as engine:
        before = engine.weights("transformer.wte.weight")
        with pytest.raises(ValueError):
            before[0, 0] = 1
        with pytest.raises(ValueError):
            before.flags.writeable = True
        kept = before.copy()
        assert numpy.shares_memory(before, engine.weights("transformer.wte.weight"))
        for ids in IDS[:3]:
            engine.step(ids)
        after = engine.weights("transformer.wte.weight")
        assert not numpy.array_equal(after, kept)
        last = after.copy()
    del engine
    gc.collect()
    assert numpy.array_equal(after, last)  # no step has come since
    before.sum()


def test_names_that_are_none_are_refused_and_the_engine_goes_on():
    with begin("gpt2") as engine:
        with pytest.raises(KeyError, match="the model has no tensor 'wte'"):
            engine.weights("wte")
        assert engine.step(IDS[0]) > 0
        engine.weights("transformer.wte.weight")
    with pytest.raises(eps.Error, match="the engine is closed"):
        engine.weights("transformer.wte.weight")


def test_weights_that_cannot_be_mapped_are_an_error_and_the_engine_goes_on(monkeypatch):
    import eps._weights

    def fail(*_, **__):
        raise OSError(12, "no memory")

    with begin("gpt2") as engine:
        with monkeypatch.context() as patch:
            patch.setattr(eps._weights.mmap, "mmap", fail)
            with pytest.raises(OSError, match="no memory"):
                engine.weights("transformer.wte.weight")
        assert engine.step(IDS[0]) > 0
        check(engine)


SERVER = """
import sys
import numpy
from safetensors.numpy import load_file

pipe = sys.stdin.buffer
for start in iter(pipe.readline, b""):
    saved, n = load_file(start.split()[1].decode()), 0
    while (line := pipe.readline()) != b"finish\\n":
        name, n_bytes = line.decode().split()
        assert pipe.read(int(n_bytes)) == saved[name].tobytes(), name
        n += 1
    print(n, len(saved), flush=True)
"""


def test_a_server_takes_them_over_a_pipe_in_its_own_order():
    server = subprocess.Popen([sys.executable, "-c", SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with begin("mistral") as engine:
        names = sorted((name for name, _ in engine.named_weights()), reverse=True)
        for ids in IDS[:3]:
            engine.step(ids)
            server.stdin.write(f"start {engine.save() / 'model.safetensors'}\n".encode())
            for name in names:
                array = engine.weights(name)
                server.stdin.write(f"{name} {array.nbytes}\n".encode())
                server.stdin.write(array.data)
            server.stdin.write(b"finish\n")
            server.stdin.flush()
            assert server.stdout.readline().split() == [str(len(names)).encode()] * 2
    server.stdin.close()
    assert server.wait() == 0
