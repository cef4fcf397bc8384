#!/usr/bin/env python3
"""Peak memory of PyTorch for training steps of a GPT-2 on the CPU: the peer of tools/bench/bench_memory.sh.

The figure is the peak resident memory (VmHWM) beyond that after loading PyTorch and one step of a tiny model, so the
library itself does not count. Freed blocks return to the system at once, so an allocator's cache does not count, either.

  plain       every row at once, torch.optim.AdamW
  accumulate  gradient accumulation over microbatches, then AdamW
  adama       microbatches; each gradient is folded into both moments in place during backward, and freed
              (Zhang et al., arXiv:2305.19982)
"""
import argparse, json, os, sys

os.environ.setdefault("MALLOC_MMAP_THRESHOLD_", "65536")
os.environ.setdefault("MALLOC_TRIM_THRESHOLD_", "0")
if os.environ.get("EPS_PEER_CHILD") != "1":  # glibc reads these when the process starts
    os.environ["EPS_PEER_CHILD"] = "1"
    os.execv(sys.executable, [sys.executable] + sys.argv)

import torch
import torch.nn.functional as F


class Block(torch.nn.Module):
    def __init__(self, width, heads, inner):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.proj = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, inner), torch.nn.Linear(inner, width)

    def forward(self, x):
        rows, tokens, width = x.shape
        q, k, v = (t.view(rows, tokens, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).split(width, 2))
        h = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(rows, tokens, width)
        x = x + self.proj(h)
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class GPT2(torch.nn.Module):
    def __init__(self, a):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(a.vocabulary, a.width), torch.nn.Embedding(a.seq, a.width)
        self.h = torch.nn.ModuleList(Block(a.width, a.heads, 4 * a.width) for _ in range(a.layers))
        self.ln_f = torch.nn.LayerNorm(a.width)

    def forward(self, ids, labels):
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        for block in self.h:
            x = block(x)
        return F.cross_entropy((self.ln_f(x) @ self.wte.weight.T).view(-1, self.wte.num_embeddings), labels.reshape(-1))


def resident(field):
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))


class AdamA:
    """Folds each gradient as it is computed; the tied table's once, after autograd has summed its two uses."""

    def __init__(self, parameters, n, betas=(0.9, 0.999)):
        self.parameters, self.n, self.betas, self.t, self.first = list(parameters), n, betas, 0, True
        self.state = {p: (torch.zeros_like(p), torch.zeros_like(p)) for p in self.parameters}
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.fold)

    def fold(self, p):
        (m, v), (b1, b2) = self.state[p], self.betas
        if self.first:
            m.mul_(b1), v.mul_(b2)
        p.grad.div_(self.n)
        m.add_(p.grad, alpha=1 - b1)
        v.addcmul_(p.grad, p.grad, value=1 - b2)
        p.grad = None

    @torch.no_grad()
    def step(self, lr=1e-4, epsilon=1e-8):
        self.t += 1
        for p in self.parameters:
            m, v = self.state[p]
            for at in range(0, p.shape[0], 1024):  # in pieces: the quotient takes no room worth counting
                root = (v[at:at + 1024] / (1 - self.betas[1] ** self.t)).sqrt_().add_(epsilon)
                p[at:at + 1024].addcdiv_(m[at:at + 1024], root, value=-lr / (1 - self.betas[0] ** self.t))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["plain", "accumulate", "adama"])
    for name, value in (("layers", 12), ("heads", 12), ("width", 768), ("vocabulary", 50257), ("seq", 1024),
                        ("batch", 8), ("microbatch", 1), ("steps", 2)):
        parser.add_argument("--" + name, type=int, default=value)
    a = parser.parse_args()
    if a.mode == "plain":
        a.microbatch = a.batch
    n = a.batch // a.microbatch
    torch.manual_seed(0)
    small = argparse.Namespace(layers=1, heads=1, width=8, vocabulary=8, seq=8)
    model = GPT2(small)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)
    model(torch.zeros(1, 8, dtype=torch.long), torch.zeros(1, 8, dtype=torch.long)).backward()
    optimizer.step()
    del model, optimizer
    before = resident("VmRSS")
    model = GPT2(a)
    optimizer = AdamA(model.parameters(), n) if a.mode == "adama" else torch.optim.AdamW(model.parameters(), 1e-4)
    for _ in range(a.steps):
        tokens = torch.randint(a.vocabulary, (a.batch, a.seq + 1))
        for i in range(n):
            rows = tokens[i * a.microbatch:(i + 1) * a.microbatch]
            loss = model(rows[:, :-1], rows[:, 1:])
            if a.mode == "adama":
                optimizer.first = i == 0
                loss.backward()
            else:
                (loss / n).backward()
        optimizer.step()
        if a.mode != "adama":
            optimizer.zero_grad(set_to_none=True)
    parameters = sum(p.numel() for p in model.parameters())
    print(json.dumps({"mode": a.mode, "parameters": parameters, "peak_bytes": resident("VmHWM") - before,
                      "loss": loss.item(), "torch": torch.__version__}))


main()
