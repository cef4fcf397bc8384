#!/usr/bin/env python3
"""compare.py RELAY_PY TEST_RELAY [N] - the relay in C against its executable specification, line by line.

Generates N traces of each kind of generate.py (10,000 unless told otherwise) with the specification, and has
`TEST_RELAY --trace` say what the relay in C does at the same events. Stops at the first line that differs.
"""
import os
import subprocess
import sys
import tempfile
from multiprocessing import Pool

import generate

BATCH = 100


def compare(job):
    """(traces, events, actions, None or what differs) of one batch."""
    relay_py, test_relay, kind, first, n = job
    relay, check_relay = generate.load_both(relay_py)
    lines, seeds = [], []
    for seed in range(first, first + n):
        trace = generate.walk(check_relay, seed) if kind == 'walks' else generate.chaos(relay, seed, kind == 'rooms')
        lines += trace
        seeds += [seed] * len(trace)
    actions = sum(x[0] == ' ' for x in lines)
    with tempfile.NamedTemporaryFile('w', suffix='.trace') as f:
        f.write('\n'.join(lines) + '\n')
        f.flush()
        run = subprocess.run([test_relay, '--trace', f.name], stdout=subprocess.PIPE, text=True)
    said = run.stdout.splitlines()
    bad = 'exit %d' % run.returncode if run.returncode else None
    if said != lines:
        i = next((i for i, (a, b) in enumerate(zip(lines, said)) if a != b), min(len(lines), len(said)))
        bad = '%s, seed %d: %r, not %r; after %s' % (kind, seeds[min(i, len(seeds) - 1)], said[i:i + 1], lines[i:i + 1],
                                                     lines[max(0, i - 8):i])
    return n, len(lines) - actions - n, actions, bad


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    relay_py, test_relay = map(os.path.abspath, sys.argv[1:3])
    n = int(sys.argv[3]) if len(sys.argv) == 4 else 10000
    totals = {kind: [0, 0, 0] for kind, _ in generate.FILES}
    with Pool() as pool:
        for kind in totals:
            jobs = [(relay_py, test_relay, kind, i, min(BATCH, n - i)) for i in range(0, n, BATCH)]
            for *counts, bad in pool.imap(compare, jobs):
                if bad:
                    sys.exit('DIFFERENT: ' + bad)
                totals[kind] = [a + b for a, b in zip(totals[kind], counts)]
            print('%s: %d traces, %d events, %d actions: the same' % (kind, *totals[kind]), flush=True)


if __name__ == '__main__':
    main()
