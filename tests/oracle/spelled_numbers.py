"""Numbers in JSON: how Python spells them, and how eps does.

    spelled_numbers.py fixtures        writes tests/fixtures/numbers.json, for tests/proto/base/test_dump.c
    spelled_numbers.py compare [N]     compares build/bin/test_dump with repr of N (100000) random doubles, of every power of two
                               and of its neighbours; prints how many are equal
"""

import json
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

import fixture

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
OUT = ROOT / "tests" / "fixtures" / "numbers.json"


def powers(step):
    for exponent in range(-1074, 1024, step):
        x = math.ldexp(1, exponent)
        yield from (x, -math.nextafter(x, 0), math.nextafter(x, math.inf))


def drawn(n, seed):
    draw = random.Random(seed)
    for i in range(n):
        kind = i % 6
        if kind == 0:
            x = struct.unpack("<d", struct.pack("<Q", draw.getrandbits(64)))[0]
        elif kind == 1:
            x = round(draw.uniform(-1000, 1000), draw.randint(0, 6))
        elif kind == 2:
            x = draw.randint(1, 999) * 10.0 ** draw.randint(-12, 24)
        elif kind == 3:
            x = float(f"{draw.randint(1, 10 ** draw.randint(1, 17))}e{draw.randint(-330, 300)}")
        elif kind == 4:
            x = struct.unpack("<f", struct.pack("<f", draw.gauss(0, 1)))[0]
        else:
            x = draw.random()
        if math.isfinite(x):
            yield x


def of_eps(numbers):
    with tempfile.NamedTemporaryFile("w") as file:
        file.write("".join(x.hex() + "\n" for x in numbers))
        file.flush()
        return subprocess.run([ROOT / "build/bin/test_dump", "numbers", file.name], capture_output=True, check=True, text=True).stdout.split()


def compare(n):
    numbers = [*powers(1), *drawn(n, 20260901)]
    wrong = [(repr(x), got) for x, got in zip(numbers, of_eps(numbers), strict=True) if repr(x) != got]
    print(f"{len(numbers)} numbers, {len(wrong)} differ", *wrong[:5])
    return len(wrong)


if __name__ == "__main__":
    if sys.argv[1:] == ["fixtures"]:
        edges = [0.0, -0.0, 1e15, 1e16, 1e17, 123456789012345.6, 9999999999999998.0, 1e-4, 1e-5, 9.999e-5, 5e-324, 1.7976931348623157e308,
                 2.0 ** -44, 1e22, 1e23, 19.99, 1e-07, 0.1 + 0.2, 1e-06, 100.0]
        fixture.write(OUT, [[x.hex(), repr(x)] for x in [*edges, *powers(61), *drawn(200, 1)]])
    elif sys.argv[1:2] == ["compare"]:
        sys.exit(compare(int(sys.argv[2]) if len(sys.argv) > 2 else 100000) > 0)
    else:
        sys.exit(__doc__)
