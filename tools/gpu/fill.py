#!/usr/bin/env python3
"""fill.py GIB: allocates this much memory, no faster than it becomes free, and frees it.

Some virtual machines begin with little memory and get more as they use it. Their free memory is known only after this.
Ends early if no more memory becomes free for a while.
"""
import mmap
import sys
import time

STEP, KEPT, PATIENCE = 256 << 20, 2 << 30, 20


def free():
    with open("/proc/meminfo") as meminfo:
        return next(int(line.split()[1]) << 10 for line in meminfo if line.startswith("MemAvailable"))


def main():
    wanted, held = int(sys.argv[1]) << 30, []
    block, last = b"\1" * STEP, time.monotonic()
    while len(held) * STEP + free() < wanted and time.monotonic() - last < PATIENCE:
        if free() < KEPT:
            time.sleep(0.05)
            continue
        held.append(mmap.mmap(-1, STEP, mmap.MAP_PRIVATE))
        held[-1][:] = block
        last = time.monotonic()
    print(f"{len(held) * STEP >> 30} GiB held, {free() >> 30} GiB free")


main()
