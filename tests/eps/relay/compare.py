#!/usr/bin/env python3
"""compare.py TEST_RELAY [N] - the relay in C against its executable specification, relay.py, line by line.

Generates N traces of each kind of generate.py with the specification (10,000 unless told otherwise; of walks, which are
long, a third), and has `TEST_RELAY --trace` say what the relay in C does at the same events; of the first hundred also
`--refuse`, where each request for memory is refused once. Stops at the first line that differs. Then each mutant of
mutants.py must differ from the specification in one of these hundred: else they would not tell a relay in C that breaks
the same rule.
"""
import subprocess
import sys
import tempfile
from multiprocessing import Pool

import generate
import mutants
import relay

BATCH = 50
FIRST = 2 * BATCH


def compare(job):
    """(traces, events, actions, None or what differs, the first traces) of one batch."""
    test_relay, kind, first, n = job
    lines, seeds, traces = [], [], [generate.trace(kind, seed) for seed in range(first, first + n)]
    for seed, trace in enumerate(traces, first):
        lines += trace
        seeds += [seed] * len(trace)
    actions, bad = sum(x[0] == ' ' for x in lines), None
    with tempfile.NamedTemporaryFile('w', suffix='.trace') as f:
        f.write('\n'.join(lines) + '\n')
        f.flush()
        for option in ('--trace', '--refuse')[:2 if first < FIRST else 1]:
            run = subprocess.run([test_relay, option, f.name], stdout=subprocess.PIPE, text=True)
            said = run.stdout.splitlines()
            if said != lines and not bad:
                i = next((i for i, (a, b) in enumerate(zip(lines, said)) if a != b), min(len(lines), len(said)))
                seed = seeds[min(i, len(seeds) - 1)]
                bad = '%s, seed %d, %s: %r, not %r; after %s' % (kind, seed, option, said[i:i + 1], lines[i:i + 1],
                                                                 lines[max(0, i - 8):i])
            if run.returncode and not bad:
                bad = '%s: exit %d' % (option, run.returncode)
    return n, len(lines) - actions - n, actions, bad, traces if first < FIRST else []


def differs(mutant, trace):
    """Whether the mutant does something else at some event."""
    r, expected, said = mutant(relay.config_from_text(trace[0])), [], []
    for line in trace[1:]:
        if line[0] == ' ':
            expected.append(line)
            continue
        if said != expected:
            return True
        try:
            expected, said = [], ['  ' + relay.to_text(a) for a in r.feed(relay.from_text(line))]
        except (KeyError, IndexError, ValueError, TypeError):
            return True
    return said != expected


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    n, first = int(sys.argv[2]) if len(sys.argv) == 3 else 10000, []
    with Pool() as pool:
        for kind in generate.KINDS:
            totals, some = [0, 0, 0], min(n, max(n // 3, FIRST)) if kind == 'walks' else n
            jobs = [(sys.argv[1], kind, i, min(BATCH, some - i)) for i in range(0, some, BATCH)]
            for *counts, bad, traces in pool.imap(compare, jobs):
                if bad:
                    sys.exit('DIFFERENT: ' + bad)
                totals = [a + b for a, b in zip(totals, counts)]
                first += traces
            print('%s: %d traces, %d events, %d actions: the same' % (kind, *totals), flush=True)
    missed = mutants.ALL
    for trace in sorted(first, key=len):
        missed = [mutant for mutant in missed if not differs(mutant, trace)]
    print('%d of %d mutants are told apart' % (len(mutants.ALL) - len(missed), len(mutants.ALL)))
    if missed:
        sys.exit('NOT TOLD APART: ' + ' '.join(mutant.__name__ for mutant in missed))


if __name__ == '__main__':
    main()
