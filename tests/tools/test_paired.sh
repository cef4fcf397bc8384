#!/usr/bin/env bash
# What scripts of tools/bench print of differences that are paired by seed (tools/bench/paired.awk). Means and standard errors
# are by hand; the 97.5 % quantiles of Student's t are those of his tables (12.706, 4.303, 2.776, 2.571); what is found in 80 %
# was solved with scipy 1.17 (the normal distribution's tail, integrated over chi2.pdf): 16.3340, 5.65347, 3.76107 and 3.51393
# standard errors of 2, 3, 5 and 6 pairs.
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

# squares 1/4, 0, 1/4: an error of sqrt(1/12), 0.288675
check '+1.5000 (95 % interval +0.2579 to +2.7421; 80 % power from 1.6320)' '1 0' '2 0.5' '3 1'
check '-0.4500 (95 % interval -1.0853 to +0.1853; 80 % power from 0.8167)' '1 1.5' '2 2.4' # two errors would tell it from 0
check '+3.0000 (95 % interval +1.0368 to +4.9632; 80 % power from 2.6595)' '2 1' '4 2' '6 3' '8 4' '10 5' # 0.7071068
check '+3.5000 (95 % interval +1.5367 to +5.4633; 80 % power from 2.6838)' '1 0' '2 0' '3 0' '4 0' '5 0' '6 0' # 0.7637626
check '+0.0000 (95 % interval +0.0000 to +0.0000; 80 % power from 0.0000)' '1 1' '2 2'
check '+0.2500 (one pair: no interval)' '1.25 1'
check '-1.9999 (one pair: no interval)' '1e-4 2'
for lines in '' '1 ' '1 0\n2' 'nan 1\n2 1' '1 inf'; do
    # shellcheck disable=SC2059 # lines have line ends
    ! got=$(printf "$lines" | difference 1 2) || { echo "test_paired: of $lines: $got" >&2; exit 1; }
done
