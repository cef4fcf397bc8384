"""Group relative policy optimisation (Shao et al., arXiv:2402.03300, equation 3) of a toy reward: the share of vowels.

    python grpo.py MODEL [OUT]      MODEL: a directory of a model of bytes, whose ids are those of its texts
"""

import sys

import eps
import numpy

PROMPTS = ["You may", "The ", "A copy of", "This "]
GROUP, TOKENS, SEQ = 8, 24, 48  # samples of a prompt; tokens of each; tokens of a row
CLIP, BETA = 0.2, 0.04


def reward(text):
    return sum(letter in "aeiou" for letter in text.lower()) / TOKENS


def grpo(log_p, old, reference, advantage, counts):
    """The loss and its gradient by log_p. All are (rows, tokens); counts: 1 for each token that was sampled."""
    ratio = numpy.exp(log_p - old)  # of the policy to the one that sampled
    gain, clipped = ratio * advantage, numpy.clip(ratio, 1 - CLIP, 1 + CLIP) * advantage
    kl = numpy.exp(reference - log_p) - (reference - log_p) - 1
    share = counts / counts.sum()
    loss = ((BETA * kl - numpy.minimum(gain, clipped)) * share).sum()
    gradient = (BETA * (1 - numpy.exp(reference - log_p)) - numpy.where(gain <= clipped, gain, 0)) * share
    return loss, gradient


def rows_of(texts):
    """Prompts and samples as rows; labels are the sampled tokens alone."""
    ids, labels = numpy.zeros((len(texts), SEQ), int), numpy.full((len(texts), SEQ), -100)
    for row, (prompt, sample) in enumerate(texts):
        both = list(prompt.encode()) + sample
        ids[row, :len(both)] = both
        labels[row, len(prompt) - 1:len(both) - 1] = sample
    return ids, labels


def train(model, out=None, rounds=12, lr=1e-3, device_mem="128MiB"):
    """Trains it, and returns the mean reward of each round."""
    rewards, n = [], len(PROMPTS) * GROUP
    how = dict(batch=n, seq=SEQ, device_mem=device_mem)
    with eps.Engine(model, lr=lr, out=out, **how) as policy, eps.Engine(model, **how) as reference:
        for round in range(rounds):
            samples = policy.generate(PROMPTS, n_samples=GROUP, n_tokens=TOKENS, temperature=1.0, seed=1 + round * GROUP)
            gained = numpy.array([reward(sample.text) for sample in samples]).reshape(len(PROMPTS), GROUP)
            spread = gained.std(axis=1, keepdims=True) + 1e-4
            advantage = ((gained - gained.mean(axis=1, keepdims=True)) / spread).reshape(n, 1)
            ids, labels = rows_of([(PROMPTS[sample.prompt], sample.ids) for sample in samples])
            old, base = policy.logprobs(ids, labels), reference.logprobs(ids, labels)
            for update in range(2):
                policy.forward_backward(ids, lambda log_p: grpo(log_p, old, base, advantage, labels >= 0), labels)
                policy.update()
            rewards.append(gained.mean())
    return rewards


if __name__ == "__main__":
    print(" ".join(f"{mean:.3f}" for mean in train(*sys.argv[1:])))
