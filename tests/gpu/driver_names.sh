#!/usr/bin/env bash
# usage: driver_names.sh STUB SOURCE
# Writes a C source in which every function of the toolkit's stub of the driver does nothing, unless gpu/driver.c defines
# it. Without a stub there are none.
set -euo pipefail
{
    echo "int nothing(void)"
    echo "{"
    echo "    return 0;"
    echo "}"
    [ ! -e "$1" ] || nm -D --defined-only "$1" |
        sed -n 's/.* \(cu[A-Za-z0-9_]*\).*/int \1(void) __attribute__((weak, alias("nothing")));/p'
} >"$2.new"
mv "$2.new" "$2"
