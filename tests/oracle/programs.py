"""The programs of a build, as the scripts here run them.

A folder of programs is build/bin, unless a script is told another one (--bin). What fails ends the script with the
command and what it said.
"""
import pathlib
import subprocess
import sys

BIN = pathlib.Path(__file__).resolve().parents[2] / "build" / "bin"


def run(folder, name, *words, **options):
    """What the program prints, as text in which line ends are as they were. options: as of subprocess.run."""
    done = subprocess.run([pathlib.Path(folder, name).absolute(), *map(str, words)], capture_output=True, **options)
    if done.returncode:
        sys.exit(f"{name} {' '.join(map(str, words))}: {done.stderr.decode(errors='replace')}")
    return done.stdout.decode(errors="replace")


def eps(folder, *words, **options):
    return run(folder, "eps", *words, **options)
