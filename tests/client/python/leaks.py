"""What engines leave behind that are opened, stepped and closed or forgotten in one interpreter, and that Ctrl-C ends at some
moment.

usage: leaks.py [ENGINES [INTERRUPTED]]      2000 and 100 by default, which take some ten minutes on two cores

Prints what the interpreter has before and after; the exit status is 1 if there is more of anything."""

import gc
import os
import signal
import sys
import tempfile
import threading
from pathlib import Path

import eps
import numpy

from conftest import programs_in

SHAPE = (4, 32)
WARM = 20  # engines after which the interpreter has what it keeps
MOST_KIB = 1  # of memory that an engine may leave, on average: less than one page


def left():
    """Descriptors, threads (Python's, and all), folders of engines and daemons, processes."""
    folders = [entry for entry in os.listdir(tempfile.gettempdir()) if entry.startswith("eps")]
    return {"descriptors": len(os.listdir("/proc/self/fd")), "threads of Python": threading.active_count(),
            "threads": len(os.listdir("/proc/self/task")), "folders": len(folders),
            "processes": len(programs_in(Path.cwd()))}


def resident_kib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 1024


def once(model, closes=True):
    engine = eps.Engine(model, batch=SHAPE[0], seq=SHAPE[1], device_mem="64MiB")
    engine.step(numpy.ones(SHAPE, int))
    if closes:
        engine.close()


def interrupted(model, after_s):
    """By SIGALRM, as by Ctrl-C: while the engine is opened, in a step, or closed."""
    try:
        signal.setitimer(signal.ITIMER_REAL, after_s)
        with eps.Engine(model, batch=SHAPE[0], seq=SHAPE[1], device_mem="64MiB") as engine:
            for _ in range(10):
                engine.step(numpy.ones(SHAPE, int))
        signal.pause()  # it was faster
    except KeyboardInterrupt:
        pass


def main(n_engines=2000, n_interrupted=100):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="eps-leaks-") as folder:
        os.chdir(folder)
        os.environ["TMPDIR"] = tempfile.tempdir = folder  # where no other program's are counted
        run = eps.train(({"text": "a text to begin with"} for _ in range(100)), model="byte-small", steps=1, batch=4,
                        seq=32, out="begun", device_mem="64MiB", on_note=lambda sentence: None)
        for _ in range(min(WARM, n_engines)):
            once(run.path)
        gc.collect()
        before, kib = left(), resident_kib()
        for i in range(n_engines):
            once(run.path, closes=i % 10 > 0)  # every tenth is forgotten
        middle = resident_kib()
        for i in range(n_interrupted):
            interrupted(run.path, 0.001 + 0.3 * i / n_interrupted)
        gc.collect()
        after = left()
        os.chdir("/")
    most = kib + max(MOST_KIB * (n_engines + n_interrupted), 4096)  # or what a heap may grow by once
    print(f"{n_engines} engines, and {n_interrupted} that were interrupted: before, after")
    for name, n in before.items():
        print(f"  {name:18} {n:8} {after[name]:8}")
    print(f"  {'resident KiB':18} {kib:8} {resident_kib():8}   ({middle} before the interrupted ones)")
    return 0 if after == before and resident_kib() <= most else 1


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
