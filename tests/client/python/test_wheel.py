"""What is in the wheel: programs that need no more of the system than its C library."""

import re
import subprocess

import eps

from conftest import PROGRAMS


def test_the_programs_bring_their_libraries():
    files = sorted(PROGRAMS.iterdir())
    assert {"eps", "epsd", "eps-worker", "libeps.so.0"} <= {file.name for file in files}
    for file in files:
        said = subprocess.run(["ldd", file], capture_output=True, text=True, check=True).stdout
        assert "not found" not in said
        foreign = [name for name, where in re.findall(r"(\S+) => (\S+)", said) if not where.startswith(str(PROGRAMS))]
        of_system = r"lib(c|m|dl|rt|pthread|resolv|util|anl)\.so"
        if file.name == "eps-cuda.so":  # and what NVIDIA's libraries, which the system has, need themselves
            of_system += r"|lib(cu|nv|gcc_s|stdc\+\+)"
        assert not [name for name in foreign if not re.match(of_system, name)], file


def test_the_package_has_types():
    assert (PROGRAMS.parent / "py.typed").exists()
    assert eps.train.__annotations__["return"] == "Run"
