"""Writes eps/_declared.py: the declarations of libeps's headers as cffi has them, so that no struct is declared twice.

usage: declare.py OUT HEADER...     headers in the order in which one may need another's structs
"""

import re
import sys

import cffi


def declarations(path: str) -> str:
    """A header without its comments, directives of the preprocessor, attributes and the braces of extern "C"."""
    with open(path, encoding="utf-8") as file:
        text = file.read()
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r'#ifdef __cplusplus.*?#endif', "", text, flags=re.DOTALL)
    return re.sub(r"^#.*$", "", text, flags=re.MULTILINE)


def main(out: str, *headers: str) -> None:
    builder = cffi.FFI()
    builder.set_source("eps._declared", None)
    builder.cdef("\n".join(declarations(path) for path in headers))
    builder.emit_python_code(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
