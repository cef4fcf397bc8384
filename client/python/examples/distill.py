"""On-policy distillation: a model writes texts, and learns from what a larger one in torch thinks of each of its tokens (the
reverse Kullback-Leibler divergence of MiniLLM, Gu et al., arXiv:2306.08543, token by token).

    python distill.py MODEL TEACHER [OUT]     directories; both have one tokenizer. Needs torch and transformers
"""

import sys

import eps
import numpy
import torch
import transformers

PROMPTS = ["You may", "The ", "A copy of", "This "]
SAMPLES, TOKENS, SEQ = 16, 24, 48


def log_p_of(teacher, ids, labels):
    """The teacher's log p of each label, 0 where there is none."""
    with torch.no_grad():
        all_log_p = teacher(torch.from_numpy(ids)).logits.float().log_softmax(-1)
    return all_log_p.gather(-1, torch.from_numpy(labels.clip(0)[..., None]))[..., 0].numpy() * (labels >= 0)


def distil(log_p, sampled, teacher):
    """The policy gradient's loss of the divergence from the teacher, by torch. All are (rows, tokens) of log p."""
    log_p, counts = torch.from_numpy(log_p).requires_grad_(), torch.from_numpy(sampled != 0)
    gain = torch.from_numpy(teacher - sampled)
    gain -= gain[counts].mean()
    loss = -((log_p - torch.from_numpy(sampled)).exp() * gain)[counts].mean()
    loss.backward()
    return loss.item(), log_p.grad


def train(model, teacher, out=None, rounds=16, lr=1e-4, device_mem="128MiB"):
    """Trains it, and returns the mean divergence of each round, in nats per token."""
    judge = transformers.AutoModelForCausalLM.from_pretrained(teacher).eval()
    divergences = []
    with eps.Engine(model, batch=len(PROMPTS) * SAMPLES, seq=SEQ, lr=lr, out=out, device_mem=device_mem) as student:
        for round in range(rounds):
            texts = student.generate(PROMPTS, n_samples=SAMPLES, n_tokens=TOKENS, temperature=1.0, seed=1 + round * SAMPLES)
            ids = numpy.zeros((len(texts), SEQ), int)
            labels = numpy.full(ids.shape, -100)
            for row, text in enumerate(texts):
                prompt = list(PROMPTS[text.prompt].encode())  # of a model of bytes; else a tokenizer's
                ids[row, :len(prompt) + len(text.ids)] = prompt + text.ids
                labels[row, len(prompt) - 1:len(prompt) - 1 + len(text.ids)] = text.ids
            sampled, judged = student.logprobs(ids, labels), log_p_of(judge, ids, labels)
            divergences.append((sampled - judged).sum() / (labels >= 0).sum())
            for update in range(2):
                student.forward_backward(ids, lambda log_p: distil(log_p, sampled, judged), labels)
                student.update()
    return divergences


if __name__ == "__main__":
    print(" ".join(f"{mean:.3f}" for mean in train(*sys.argv[1:])))
