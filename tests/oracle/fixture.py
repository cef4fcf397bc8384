"""Writes fixtures as JSON, with a line for each record.

A record is a list of scalars, or an object of scalars and such lists: a tensor's sample is one line, however long. All else
is a line for each of its items, unless it fits into one; short items that follow one another share theirs, as many as fit.
Python's floats come back bit for bit.
"""
import json

WIDTH = 120


def is_scalar(value):
    return not isinstance(value, (dict, list, tuple))


def is_flat(value):
    return not isinstance(value, dict) and (is_scalar(value) or all(map(is_scalar, value)))


def is_record(value):
    return all(map(is_flat, value.values())) if isinstance(value, dict) else is_flat(value)


def text(value, indent=0):
    line = json.dumps(value)
    if is_record(value) or indent + len(line) <= WIDTH:
        return line
    if isinstance(value, dict):
        items = [f"{json.dumps(name)}: {text(item, indent + 1)}" for name, item in value.items()]
    else:
        items = [text(item, indent + 1) for item in value]
    lines = []
    for item in items:
        joined = f"{lines[-1]}, {item}" if lines else item
        if lines and "\n" not in joined and indent + 1 + len(joined) <= WIDTH:
            lines[-1] = joined
        else:
            lines.append(item)
    first, last = "{}" if isinstance(value, dict) else "[]"
    return f"{first}\n" + ",\n".join(" " * (indent + 1) + each for each in lines) + f"\n{' ' * indent}{last}"


def write(path, value):
    with open(path, "w") as f:
        f.write(text(value) + "\n")
