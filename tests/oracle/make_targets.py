"""Targets that encoder-decoders write: tests/fixtures/{targets,targets_gated,targets_conv}/{config,reference}.json.

    python make_targets.py

Two small T5 models, as of version 1.0 and 1.1, whose weights are drawn by formula (drawn.py), large enough that targets
end at different places and beams cross. A text is a source and the target that transformers' generate writes, with 1 to
5 beams and several length penalties. A model with dynamic convolutions (make_dynamic_conv.py), which transformers does not
have, is searched by `search` below, which reads whole texts for each token and has to find what generate finds of T5, too.
fp32 and float64, whose norms are in float64 too, have to choose the same tokens.

Made with torch 2.15.0 and transformers 5.23.0 on the CPU.
"""
import os
import random
import types

import torch
from transformers import T5Config, T5ForConditionalGeneration

import drawn
import fixture
import make_dynamic_conv

ENDS = [1, 8, 20, 33, 45, 58, 70, 83, 91]
FIXTURES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures")
BASE = dict(model_type="t5", d_model=32, d_kv=12, d_ff=40, num_layers=3, num_decoder_layers=2, num_heads=3, vocab_size=97,
            relative_attention_num_buckets=8, relative_attention_max_distance=20, dropout_rate=0.0,
            is_encoder_decoder=True, decoder_start_token_id=0, pad_token_id=0, eos_token_id=ENDS)
MODELS = {"targets": dict(BASE, feed_forward_proj="relu", tie_word_embeddings=True),
          "targets_gated": dict(BASE, feed_forward_proj="gated-gelu", tie_word_embeddings=False)}
SCALES = {"shared": 0.5, "layer_norm": 0.4, "relative_attention_bias": 3.0, ".q.": 0.6, ".k.": 0.6, ".v.": 1.2, ".o.": 1.2,
          "wi": 1.0, "wo": 1.0, "lm_head": 0.4}
N_TOKENS, LENGTHS = 40, [1, 3, 9, 17, 30, 41]
WAYS = [(1, 1.0), (2, 1.0), (4, 1.0), (4, 0.0), (4, 2.5), (5, -1.0)]


CONV = dict(make_dynamic_conv.MODELS["dynamic_conv_gated"], d_model=24, eos_token_id=[1, 14, 70], vocab_size=97, source_vocab_size=97)
CONV_SCALES = {"norm.weight": 0.4, "norm.bias": 0.3, "bias": 0.2, "embed_tokens": 0.5, "conv": 1.5, "output": 0.5, "": 0.6}


def norm(self, x):
    return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.variance_epsilon)


def how_drawn(tensor):
    """base and scale of a tensor's weights."""
    return float("layer_norm" in tensor), next(s for part, s in SCALES.items() if part in tensor)


def model_of(name, dtype):
    model = T5ForConditionalGeneration._from_config(T5Config(**MODELS[name]), attn_implementation="eager").to(dtype).eval()
    if not MODELS[name]["tie_word_embeddings"]:
        model.lm_head.weight = torch.nn.Parameter(torch.empty(BASE["vocab_size"], BASE["d_model"], dtype=dtype))
    assert model.config.scale_decoder_outputs == MODELS[name]["tie_word_embeddings"]
    for module in model.modules():
        if type(module).__name__ == "T5LayerNorm":
            module.forward = types.MethodType(norm, module)
    with torch.no_grad():
        for tensor, p in model.named_parameters():
            weights = drawn.weights(f"{name}:{tensor}", p.numel(), *how_drawn(tensor))
            p.copy_(torch.from_numpy(weights).reshape(p.shape).to(dtype))
    return model


def write(model, source, beams, penalty):
    out = model.generate(torch.tensor([source]), max_new_tokens=N_TOKENS, do_sample=False, num_beams=beams,
                         length_penalty=penalty, early_stopping=False, eos_token_id=ENDS)
    ids = out[0, 1:].tolist()
    end = next((i for i, token in enumerate(ids) if token in ENDS), len(ids))
    return ids[:end + 1]


def search(logits, beams, penalty, ends):
    """The best text of a beam search. logits: of the token that follows each of these texts.

    Of all continuations of the texts that are alive, those among the best `beams` that end are texts that are found, and the
    best that do not live on. The score of a text that is found is the sum of its log p over its length to the power of
    `penalty`; `beams` of them are kept, and the search is over once the best living one, as long as it is, would not be."""
    living, found = [(0.0, [])], []
    for n in range(1, N_TOKENS + 1):
        log_p = logits([text for _, text in living]).double().log_softmax(-1)
        scores = torch.tensor([score for score, _ in living], dtype=torch.float64)[:, None] + log_p
        order = scores.flatten().argsort(descending=True, stable=True)[:(1 + len(ends)) * beams].tolist()
        every = [(scores.flatten()[i].item(), living[i // scores.shape[1]][1] + [i % scores.shape[1]]) for i in order]
        found += [(score / n ** penalty, text) for score, text in every[:beams] if text[-1] in ends or n == N_TOKENS]
        found = sorted(found, reverse=True)[:beams]
        living = [(score, text) for score, text in every if text[-1] not in ends][:beams]
        if len(found) == beams and living[0][0] / n ** penalty <= found[-1][0]:
            break
    return found[0][1]


def search_t5(model, source, beams, penalty):
    start = [BASE["decoder_start_token_id"]]

    @torch.no_grad()
    def logits(texts):
        sources, targets = torch.tensor([source] * len(texts)), torch.tensor([start + text for text in texts])
        return model(input_ids=sources, decoder_input_ids=targets, use_cache=False).logits[:, -1]

    return search(logits, beams, penalty, ENDS)


class Conv:
    """As much of a model as `write_conv` needs."""

    def __init__(self, dtype):
        self.config = CONV
        self.of = make_dynamic_conv.Model(self, False).to(dtype)
        with torch.no_grad():
            for tensor, p in self.of.named_parameters():
                weights = drawn.weights(f"targets_conv:{tensor}", p.numel(), *how_drawn_conv(tensor))
                p.copy_(torch.from_numpy(weights).reshape(p.shape).to(dtype))

    def named_parameters(self):
        return self.of.named_parameters()

    @torch.no_grad()
    def read(self, source):
        read = self.of.embed(self.of.source_embed_tokens, torch.tensor([source]))
        for block in self.of.encoder.layers:
            read = block(read, False, torch.ones(1, len(source), dtype=torch.bool))
        return read

    @torch.no_grad()
    def logits(self, read, texts):
        start, read = [CONV["decoder_start_token_id"]], read.expand(len(texts), -1, -1)
        x = self.of.embed(self.of.embed_tokens, torch.tensor([start + text for text in texts]))
        for block in self.of.decoder.layers:
            x = block(x, False, torch.ones(read.shape[:2], dtype=torch.bool), read)
        return x[:, -1] @ self.of.output_projection.weight.T


def write_conv(model, source, beams, penalty):
    read = model.read(source)
    return search(lambda texts: model.logits(read, texts), beams, penalty, CONV["eos_token_id"])


def how_drawn_conv(tensor):
    return float(tensor.endswith("norm.weight")), next(s for part, s in CONV_SCALES.items() if part in tensor)


def make(name, config, single, double, how_drawn, ways, write):
    draws, texts, n_ended = random.Random(name), [], 0
    for length in LENGTHS:
        source = [draws.randrange(2, BASE["vocab_size"]) for _ in range(length - 1)] + [1]
        targets = []
        for beams, penalty in ways:
            target = write(single, source, beams, penalty)
            assert target == write(double, source, beams, penalty), "fp32 and float64 disagree"
            assert name not in MODELS or target == search_t5(double, source, beams, penalty), "a search of its own disagrees"
            targets.append({"beams": beams, "length_penalty": penalty, "ids": target})
            n_ended += target[-1] in config["eos_token_id"]
        texts.append({"source": source, "targets": targets})
        print(name, length, [(len(t["ids"]), len(set(t["ids"]))) for t in targets],
              len({tuple(t["ids"]) for t in targets}), "different")
    assert 2 <= n_ended < len(LENGTHS) * len(ways), "some end, some do not"
    folder = os.path.join(FIXTURES, name)
    os.makedirs(folder, exist_ok=True)
    fixture.write(os.path.join(folder, "config.json"), config)
    weights = [{"tensor": n, "shape": list(p.shape), "n": p.numel(), "base": how_drawn(n)[0], "scale": how_drawn(n)[1]}
               for n, p in single.named_parameters()]
    fixture.write(os.path.join(folder, "reference.json"), {
        "draw": name, "made_with": f"torch {torch.__version__}", "weights": weights, "tokens": N_TOKENS, "texts": texts})


if __name__ == "__main__":
    torch.set_num_threads(1)
    for which in MODELS:
        make(which, MODELS[which], model_of(which, torch.float32), model_of(which, torch.float64), how_drawn, WAYS, write)
    make("targets_conv", CONV, Conv(torch.float32), Conv(torch.float64), how_drawn_conv, WAYS, write_conv)
