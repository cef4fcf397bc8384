"""Writes tests/fixtures/vectors/clip.txt: steps of AdamW after torch.nn.utils.clip_grad_norm_, by PyTorch in float64.

    python3 tests/oracle/make_clip.py > tests/fixtures/vectors/clip.txt

The model is tests/kit/inprocess/store_fixture.h's small one, tied. Weights and gradients are number(i, seed) below, which the test
computes as well; seeds: 1000 + tensor for weights, 100 * step + tensor for gradients, which are multiplied by the
step's scale. A file line is a word and its numbers:
    clip MAX_NORM LR BETA1 BETA2 EPSILON DECAY
    step SCALE NORM        (of the gradient before it is clipped), for each
    tensor NAME N w ...    after the last step
"""
import torch

LAYERS, WIDTH, INNER, POSITIONS, VOCABULARY = 2, 8, 32, 5, 17
MAX_NORM, LR, BETA1, BETA2, EPSILON, DECAY = 1.0, 0.01, 0.9, 0.99, 1e-8, 0.5
SCALES = [1.0, 0.015625, 8.0, 0.0078125, 0.25]  # some clipped, some not


def number(n, seed):
    pattern = (torch.arange(n, dtype=torch.int64) + seed * 1000003) * 2654435761 % 2**32
    return (torch.where(pattern >= 2**31, pattern - 2**32, pattern).to(torch.float32) * 2.0**-31).to(torch.float64)


shapes = [("transformer.wte.weight", (VOCABULARY, WIDTH)), ("transformer.wpe.weight", (POSITIONS, WIDTH))]
for i in range(LAYERS):
    for name, shape in (("ln_1.weight", (WIDTH,)), ("ln_1.bias", (WIDTH,)), ("attn.c_attn.weight", (WIDTH, 3 * WIDTH)),
                        ("attn.c_attn.bias", (3 * WIDTH,)), ("attn.c_proj.weight", (WIDTH, WIDTH)),
                        ("attn.c_proj.bias", (WIDTH,)), ("ln_2.weight", (WIDTH,)), ("ln_2.bias", (WIDTH,)),
                        ("mlp.c_fc.weight", (WIDTH, INNER)), ("mlp.c_fc.bias", (INNER,)),
                        ("mlp.c_proj.weight", (INNER, WIDTH)), ("mlp.c_proj.bias", (WIDTH,))):
        shapes.append((f"transformer.h.{i}.{name}", shape))
shapes += [("transformer.ln_f.weight", (WIDTH,)), ("transformer.ln_f.bias", (WIDTH,))]

tensors = []
for k, (name, shape) in enumerate(shapes):
    n = torch.Size(shape).numel()
    tensors.append(number(n, 1000 + k).reshape(shape).requires_grad_())
optimizer = torch.optim.AdamW([{"params": [t for t in tensors if t.dim() == 2], "weight_decay": DECAY},
                               {"params": [t for t in tensors if t.dim() == 1], "weight_decay": 0.0}],
                              lr=LR, betas=(BETA1, BETA2), eps=EPSILON)
print("clip", MAX_NORM, LR, BETA1, BETA2, EPSILON, DECAY)
for step, scale in enumerate(SCALES, 1):
    for k, t in enumerate(tensors):
        t.grad = number(t.numel(), 100 * step + k).reshape(t.shape) * scale
    norm = torch.nn.utils.clip_grad_norm_(tensors, MAX_NORM)
    print("step", scale, repr(float(norm)))
    optimizer.step()
for (name, _), t in zip(shapes, tensors):
    print("tensor", name, t.numel(), *("%.10g" % x for x in t.detach().reshape(-1).tolist()))
