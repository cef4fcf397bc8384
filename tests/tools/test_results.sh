#!/usr/bin/env bash
# Lines of finished seeds (tools/bench/results/README.md), by which a comparison goes on: a stub stands for what is trained.
#
# usage: tests/tools/test_results.sh
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/bench/common.sh

make_work
finished=$work/lines.jsonl setting='a net' seeds=2
score() {
    echo "$1 $2" >>"$work/calls"
    [ "$1" != broken ] || return 0
    echo "0.$2 1.5"
}

# expect WHAT GOT WANTED
expect() {
    [ "$2" = "$3" ] || { echo "test_results: $1: '$2', not '$3'" >&2; exit 1; }
}

# calls: what was trained since the last time
calls() {
    [ ! -e "$work/calls" ] || paste -sd , "$work/calls"
    rm -f "$work/calls"
}

# elsewhere ARM SEED FIGURE: a line of another machine, whose name begins as this one's does
elsewhere() {
    printf '{"setting": "a net", "arm": "%s", "seed": %s, "machine": "%s0", "commit": "c", "date": "d", "accuracy": %s, "loss": 2}\n' \
        "$1" "$2" "$(machine)" "$3" >>"$finished"
}

prepare() { echo prepare >>"$work/calls"; }
measure_all exact half
expect 'at first' "$(calls)" 'prepare,exact 1,half 1,exact 2,half 2'
expect 'figures' "$(figures_of half exact half | paste -sd ,)" '0.1 1.5,0.2 1.5'
measure_all exact half
expect 'with all lines' "$(calls)" ''
sed -i '/"half", "seed": 1/d' "$finished"
measure_all exact half
expect 'with a line less' "$(calls)" 'prepare,half 1'

seeds=3
elsewhere exact 3 0.7
elsewhere half 3 0.8
measure_all exact half
expect 'a seed of another machine' "$(calls)" ''
expect 'its figure' "$(figures_of half exact half | tail -n 1)" '0.8 2'
measure_all exact half third
expect 'an arm more' "$(calls)" 'prepare,third 1,third 2,exact 3,half 3,third 3'
expect 'then its figure' "$(figures_of half exact half third | tail -n 1)" '0.3 1.5'

setting='another net' seeds=1
measure_all exact
expect 'another setting' "$(calls)" 'prepare,exact 1'
! (measure_all broken) 2>/dev/null || { echo 'test_results: a run without figures has a line' >&2; exit 1; }
calls >/dev/null

table=$(tools/bench/results.sh "$finished")
expect 'its tables' "$(grep -c '^lines: ' <<<"$table")" 2
expect 'a row' "$(grep '^| half ' <<<"$table")" \
    '| half | 3 | 0.1000, 0.2000, 0.8000; +0.0333 (95 % interval -0.1101 to +0.1768; 80 % power from 0.1884) | 1.5000, 1.5000, 2.0000; +0.0000 (95 % interval +0.0000 to +0.0000; 80 % power from 0.0000) |'
