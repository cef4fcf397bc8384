"""Puts the libraries that a folder's programs need beside them, so that they run on other releases of the system: all but
those of the C library and of NVIDIA. Each file then looks for them in its own folder.

usage: bundle.py FOLDER      needs ldd and patchelf
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

# those that every system has, of its own version
SYSTEM = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|util|anl))\.so\.\d+|lib(cuda|cublas|cudnn|nv).*")


def needed(path: Path) -> "dict[str, Path]":
    """Libraries that the loader finds for a file, by name."""
    said = subprocess.run(["ldd", path], capture_output=True, text=True, check=True).stdout
    found = re.findall(r"^\s*(\S+) => (/\S+)", said, re.MULTILINE)
    return {name: Path(where) for name, where in found if not SYSTEM.fullmatch(name)}


def main(folder: Path) -> None:
    programs = list(folder.iterdir())
    libraries: "dict[str, Path]" = {}
    for program in programs:
        libraries.update(needed(program))
    for name, where in libraries.items():
        if where.parent != folder:
            shutil.copy(where.resolve(), folder / name)
    for file in folder.iterdir():
        subprocess.run(["patchelf", "--set-rpath", "$ORIGIN", file], check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
