#!/usr/bin/env bash
# What tools/test.sh counts of a log of ctest, by hand.
#
# usage: tests/tools/test_summary.sh
set -euo pipefail
cd "$(dirname "$0")/../.."

# check WANTED LINE...
check() {
    local got
    got=$(printf '%s\n' "${@:2}" | awk -f tools/summary.awk)
    [ "$got" = "$1" ] || { echo "test_summary: $got, not $1, of:" "${@:2}" >&2; exit 1; }
}

check '8 0 0' '7: 100%: Checks: 8, Failures: 0, Errors: 0' ' 1/2 Test   #7: test_a ....   Passed    0.1 sec'
check '6 2 0' '7: 75%: Checks: 8, Failures: 1, Errors: 1' ' 1/2 Test   #7: test_a ....***Failed    0.1 sec'
check '6 0 2' '7: skipped: a.c:3: no mpirun' '7: skipped: a.c:9: no mpirun' '7: 100%: Checks: 8, Failures: 0, Errors: 0' \
    ' 1/2 Test   #7: test_a ....   Passed    0.1 sec'
check '7 0 2' '7: skipped: a.c:3: x' '7: 100%: Checks: 3, Failures: 0, Errors: 0' '12: 100%: Checks: 5, Failures: 0, Errors: 0' \
    '  1/3 Test  #7: test_a ....   Passed    0.1 sec' '  2/3 Test #12: test_b ....   Passed    0.1 sec' \
    '  3/3 Test #13: test_c ....***Skipped   0.1 sec'
check '8 1 0' '7: 100%: Checks: 8, Failures: 0, Errors: 0' ' 1/2 Test   #7: test_a ....***Exception: SegFault  0.1 sec'
check '1 0 0' '7: said: skipped: nothing' ' 1/2 Test   #7: script ....   Passed    0.1 sec'
check '0 1 0' 'No tests were found!!!'
