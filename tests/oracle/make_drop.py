"""Prints the blocks that steps drop (proto/model/drop.h), for tests/proto/model/test_drop.c.

    python3 tests/oracle/make_drop.py

A block is dropped if its word is below p * 2^32. The word is the first of counter zero, under the key of (seed, step, block,
site), which proto/base/random.h defines. Philox is masked.py's, which knows the published vectors."""
import masked

SITE = 16  # RANDOM_DROP_LAYER


def word(seed, step, block):
    first = masked.philox(masked.words(step) + masked.words(block), masked.words(seed))
    first = list(first[:3]) + [first[3] ^ SITE]
    return masked.philox([0, 0, 0, 0], masked.philox(first, masked.words(seed))[:2])[0]


for seed, step, p in ((7, 0, 0.25), (7, 1, 0.25), (7, 1, 0.5), (1 << 40, 5 << 32, 0.25)):
    dropped = sum(1 << block for block in range(70) if word(seed, step, block) < p * 2**32)
    print(f"{{{seed:#x}, {step:#x}, {p}, {{{dropped & (1 << 64) - 1:#018x}, {dropped >> 64:#04x}}}}},")

# Of 5 blocks that all are dropped, the one that is kept of those that are trained: the word furthest from being dropped.
for seed, step, trained in ((3, 0, 0b11111), (3, 1, 0b11111), (3, 2, 0b11111), (3, 2, 0b00110), (3, 3, 0b10001)):
    kept = max((block for block in range(5) if trained >> block & 1), key=lambda block: word(seed, step, block))
    print(f"{{{seed}, {step}, {trained:#x}, {kept}}},")
