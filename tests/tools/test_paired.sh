#!/usr/bin/env bash
# What scripts of tools/bench print of differences that are paired by seed (tools/bench/common.sh), by hand.
#
# usage: tests/tools/test_paired.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

# check WANTED PAIR...
check() {
    local got
    got=$(printf '%s\n' "${@:2}" | difference 1 2)
    [ "$got" = "$1" ] || { echo "test_paired: of ${*:2}: $got, not $1" >&2; exit 1; }
}

check '+1.5000, standard error 0.2887, so +0.9226 to +2.0774: higher' '1 0' '2 0.5' '3 1' # squares 1/4, 0, 1/4: sqrt(1/12)
check '-0.4500, standard error 0.0500, so -0.5500 to -0.3500: lower' '1 1.5' '2 2.4'
check '-0.3000, standard error 0.2000, so -0.7000 to +0.1000: equal' '1 1.5' '2 2.1'
check '+0.1000, standard error 0.1000, so -0.1000 to +0.3000: equal' '1.2 1' '2 2'
check '+0.0000, standard error 0.0000, so +0.0000 to +0.0000: equal' '1 1' '2 2'
check '+0.2500' '1.25 1'
check '-1.9999' '1e-4 2'
for lines in '' '1 ' '1 0\n2' 'nan 1\n2 1' '1 inf'; do
    # shellcheck disable=SC2059 # lines have line ends
    ! got=$(printf "$lines" | difference 1 2) || { echo "test_paired: of $lines: $got" >&2; exit 1; }
done
