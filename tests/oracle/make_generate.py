"""Greedy continuations by transformers, and a perplexity: tests/fixtures/generate/{config.json,reference.json}.

    python make_generate.py [directory]

A small GPT-2 whose weights are drawn by formula (drawn.py), large enough that its text neither stands still nor goes
in circles, continues three prompts by 200 tokens each, in fp32 and without sampling. Stored are the tokens, and how
far the likeliest one was ahead of the next, at the closest place: margins far above the rounding of fp32 make "the same
tokens" a question with one answer; float64 has to choose them too. The perplexity is that of the first text with its
continuation, by windows of max_length tokens, `stride` apart (transformers, "Perplexity of fixed-length models").

With a directory, the model is written there as well, as transformers saves it.
Made with torch 2.15.0 and transformers 5.23.0.
"""
import os
import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel

import drawn
import fixture

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "fixtures", "generate")
CONFIG = dict(model_type="gpt2", n_layer=4, n_head=4, n_embd=64, n_positions=512, vocab_size=256, attn_pdrop=0.0,
              embd_pdrop=0.0, resid_pdrop=0.0)
DRAW, N_TOKENS = "generate0", 200
SCALES = {"wte": 1.0, "wpe": 3.0, "c_attn": 0.8, "attn.c_proj": 0.8, "c_fc": 0.8, "mlp.c_proj": 0.8, "norm": 0.4,
          "bias": 0.4}
PROMPTS = ["In the beginning ", "x", "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 3]


def how_drawn(tensor):
    """base and scale of a tensor's weights."""
    if ".ln_" in tensor:
        return (1.0, SCALES["norm"]) if tensor.endswith("weight") else (0.0, SCALES["bias"])
    if tensor.endswith("bias"):
        return 0.0, SCALES["bias"]
    return 0.0, next(s for part, s in SCALES.items() if part + ".weight" in tensor)


def model_of(dtype):
    config = GPT2Config(**CONFIG, bos_token_id=None, eos_token_id=None)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="eager").to(dtype).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            weights = drawn.weights(f"{DRAW}:{name}", p.numel(), *how_drawn(name))
            p.copy_(torch.from_numpy(weights).reshape(p.shape).to(dtype))
    return model


def continue_greedily(model, prompt):
    """The tokens, and the logits that each was chosen from."""
    out = model.generate(torch.tensor([prompt]), max_new_tokens=N_TOKENS, min_new_tokens=N_TOKENS, do_sample=False,
                         output_logits=True, return_dict_in_generate=True, pad_token_id=0)
    return out.sequences[0, len(prompt):].tolist(), torch.cat(out.logits).double()


def perplexity(model, ids, max_length, stride):
    """The mean loss of tokens 1 and on, each predicted once, in the first window that has it."""
    total, before = 0.0, 1
    for begin in range(0, len(ids), stride):
        end = min(begin + max_length, len(ids))
        logits = model(torch.tensor([ids[begin:end]])).logits[0]
        losses = torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[begin + 1:end]), reduction="none")
        total += float(losses[before - end:].sum())
        before = end
        if end == len(ids):
            break
    return {"max_length": max_length, "stride": stride, "tokens": len(ids) - 1, "loss": total / (len(ids) - 1)}


def main():
    single, double = model_of(torch.float32), model_of(torch.float64)
    texts = []
    for prompt in PROMPTS:
        ids = list(prompt.encode())
        new, logits = continue_greedily(single, ids)
        exact, exact_logits = continue_greedily(double, ids)
        assert new == exact, "fp32 and float64 disagree"
        top = exact_logits.topk(2).values
        margin = float((top[:, 0] - top[:, 1]).min())
        off = float((logits - exact_logits).abs().max())
        print(f"{len(ids)} + {len(new)} tokens, {len(set(new))} different, smallest margin {margin:.2e}, "
              f"fp32 is off by {off:.2e}")
        texts.append({"prompt": prompt, "ids": new, "smallest_margin": margin, "fp32_off": off})
    text = list(PROMPTS[0].encode()) + texts[0]["ids"]
    with torch.no_grad():
        strided = [perplexity(double, text, *how) for how in ((33, 32), (33, 10), (8, 1))]
    os.makedirs(FOLDER, exist_ok=True)
    fixture.write(os.path.join(FOLDER, "config.json"), CONFIG)
    weights = [{"tensor": n, "shape": list(p.shape), "n": p.numel(), "base": how_drawn(n)[0], "scale": how_drawn(n)[1]}
               for n, p in single.named_parameters()]
    fixture.write(os.path.join(FOLDER, "reference.json"), {
        "draw": DRAW, "made_with": f"torch {torch.__version__}", "weights": weights, "texts": texts, "perplexity": strided})
    if len(sys.argv) > 1:
        single.save_pretrained(sys.argv[1])


if __name__ == "__main__":
    main()
