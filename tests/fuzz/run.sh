#!/usr/bin/env bash
# Runs the fuzz targets: each for some seconds, as many at a time as there are processors. Needs clang.
#
# usage: tests/fuzz/run.sh [--seconds N] [TARGET...]    2 seconds, all targets; a target is the X of fuzz_X.c
#        tests/fuzz/run.sh --replay TARGET FILE         one input, such as a finding
#
# New inputs are collected in build/fuzz/corpus. An input that fails is kept in build/fuzz/findings, with what the
# sanitizers said of it; the command that replays it is printed. Exit status: 0, 1 if there was one, 77 without clang.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1

seconds=2 replay=
build=build/fuzz
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) sed -n '2,8s/^# \{0,1\}//p' "$0"; exit ;;
    --seconds) seconds=${2-}; shift 2 || exit 2 ;;
    --replay) replay=${2-} file=${3-}; shift $# ;;
    -*) echo "run.sh: no option is called $1; see tests/fuzz/run.sh --help" >&2; exit 2 ;;
    *) break ;;
    esac
done
all=$(cd tests/fuzz && printf '%s\n' fuzz_*.c | sed 's/^fuzz_//; s/\.c$//')
targets=${*:-${replay:-$all}}
for target in $targets; do
    if [ ! -f "tests/fuzz/fuzz_$target.c" ]; then
        echo "run.sh: no target is called $target; there are:" $all >&2
        exit 2
    fi
done
case $seconds in
'' | *[!0-9]* | 0*) echo "run.sh: --seconds takes a number from 1" >&2; exit 2 ;;
esac

if ! command -v clang >/dev/null; then
    echo "run.sh: fuzzing needs clang and its sanitizers: apt-get install clang libclang-rt-14-dev" >&2
    exit 77
fi
mkdir -p $build/findings
if ! { cmake --preset fuzz -DCMAKE_COMPILE_WARNING_AS_ERROR=ON && cmake --build --preset fuzz; } >$build/build.log 2>&1; then
    grep -E -A 3 'FAILED: |error: |CMake Error' $build/build.log | head -n 40
    echo "run.sh: the targets were not built; see $build/build.log" >&2
    exit 1
fi

# Targets write their files here, in memory if they can.
scratch=$(TMPDIR=/dev/shm mktemp -d 2>/dev/null || mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TMPDIR=$scratch

if [ -n "$replay" ]; then
    $build/bin/fuzz_"$replay" "$file"
    exit
fi

# run TARGET: prints one line; false after a finding
run() {
    local target=$1 log=$build/findings/$1.log corpus=$build/corpus/$1 dictionary=tests/fuzz/dictionary/$1
    local -a seeds=() options=(-max_total_time="$seconds" -artifact_prefix="$build/findings/$1-" -timeout=120 -report_slow_units=120 -print_final_stats=1)

    mkdir -p "$corpus"
    [ ! -d "tests/fuzz/corpus/$target" ] || seeds=("tests/fuzz/corpus/$target")
    [ ! -f "$dictionary" ] || options+=(-dict="$dictionary")
    if $build/bin/fuzz_"$target" "${options[@]}" "$corpus" "${seeds[@]}" >"$log" 2>&1; then
        awk -v target="$target" '/^stat::number_of_executed_units/ { runs = $2 } / cov: / { sub(/.* cov: /, ""); cov = $1 }
            END { printf "%-12s %9d runs, %5d branches\n", target, runs, cov }' "$log"
        return
    fi
    grep -E 'ERROR: |SUMMARY: |runtime error|Assertion|ALARM' "$log" | head -n 5
    awk -v target="$target" '/Test unit written to / { print "replay: tests/fuzz/run.sh --replay " target " " $NF }' "$log"
    return 1
}
export -f run
export seconds build

printf '%s\n' $targets | xargs -P "$(nproc)" -I TARGET bash -c 'run TARGET' || exit 1
