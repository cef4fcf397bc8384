"""Numbers that this script and tests/kit/fixtures/fixture.c draw alike, so that weights and tokens need not be committed.

    word(key, i) = SplitMix64's output function of key + (i + 1) * golden      (Steele, Lea, Flood, OOPSLA 2014)
    key(text)    = FNV-1a of the text, 64 bits

A weight is base + ((word >> 40) * 2^-24 - 1/2) * scale, computed in double and rounded once to fp32; a token is
skewed to small ids by the product of two uniform numbers.
"""
import numpy as np

GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def key(text):
    h = 0xCBF29CE484222325
    for byte in text.encode():
        h = (h ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return np.uint64(h)


def words(text, first, n):
    with np.errstate(over="ignore"):
        z = key(text) + (np.arange(first, first + n, dtype=np.uint64) + np.uint64(1)) * GOLDEN
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def weights(text, n, base, scale):
    u = (words(text, 0, n) >> np.uint64(40)).astype(np.float64) * 2.0**-24 - 0.5
    return (float(base) + u * float(np.float32(scale))).astype(np.float32)


def minibatch(name, number, batch, seq, vocabulary, label_gap):
    """ids and labels (batch, seq), int64; label -100 where none counts: every label_gap-th on average, 0 for never."""
    z = words(f"{name}:ids:{number}", 0, batch * (seq + 1))
    v = np.uint64(vocabulary)
    tokens = ((z >> np.uint64(32)) % v) * ((z & np.uint64(0xFFFFFFFF)) % v) // v
    tokens = tokens.astype(np.int64).reshape(batch, seq + 1)
    ids, labels = tokens[:, :-1].copy(), tokens[:, 1:].copy()
    if label_gap:
        gap = words(f"{name}:gaps:{number}", 0, batch * seq) % np.uint64(label_gap) == 0
        labels[gap.reshape(batch, seq)] = -100
    return ids, labels


def sample(text, n, size):
    """Positions of the committed elements: all of them in order when they are few enough."""
    if n <= size:
        return np.arange(n, dtype=np.int64)
    return (words(text, 0, size) % np.uint64(n)).astype(np.int64)


def sketch(text, x, n_buckets):
    """x (n), float64, thrown with random signs into a power of two of buckets (count sketch; Charikar, Chen,
    Farach-Colton 2002). Linear; the sum of squares of a difference's sketch is its squared norm in expectation, with
    deviation sqrt(2 / n_buckets) of it."""
    out = np.zeros(n_buckets)
    for first in range(0, x.size, 1 << 20):
        part = x[first:first + (1 << 20)]
        z = words(text, first, part.size)
        signed = np.where(z & np.uint64(n_buckets), -part, part)
        out += np.bincount((z & np.uint64(n_buckets - 1)).astype(np.int64), signed, n_buckets)
    return out
